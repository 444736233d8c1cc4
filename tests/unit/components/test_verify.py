# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compares facts with a plan: the state and the text of every check."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._components.verify import (
    Check,
    verify,
    with_module_results,
    with_pending,
)
from ansible_collections.gpuops.nvidia.tests.unit.simulated.samples import MIG_CONFIG, changed, facts

DRIVER = {"placement": "host", "version": "595.91.07", "branch": 595, "kernel_module_type": "open"}
TOOLKIT = {"placement": "host", "version": "1.20.0", "runtime": "auto", "cdi": True}
MIG = {"placement": "host", "selected": "all-1g.10gb", "config": MIG_CONFIG}
LABELS = {"placement": "host", "mig_strategy": "single"}
PERSISTENCED, MANAGER = "nvidia-persistenced.service", "nvidia-fabricmanager.service"
RUNS, OFF, MASKED, GONE = ({"state": state, "enabled": enabled} for state, enabled in (
    ("active", "enabled"), ("inactive", "disabled"), ("absent", "masked"), ("absent", "")))
GOOD = facts("A100", "A100", driver="595.91.07", toolkit="1.20.0", containerd=True)
NAMED = {"devices": ["0", "1", *(gpu["uuid"] for gpu in GOOD["gpus"])], "driver": "595.91.07"}
SLICED = facts("A100", driver="595.91.07", mig={"1g.10gb": 7})
UNNAMED = facts("A100", driver="595.91.07", toolkit="1.20.0", containerd=True, mig={"1g.10gb": 2})
UNNAMED["gpus"][0]["mig"]["instances"][0]["uuids"] = [None]
LOST = changed(GOOD, driver={})
LOST["gpus"][1].update(uuid=None, error="The GPU does not answer: it is lost.")
UNSEEN = changed(GOOD, driver={})
UNSEEN["gpus"][1].update(uuid=None)
ILL = changed(GOOD, driver={})
ILL["gpus"][1].update(error="memory_mib: unknown error")
TURNING = changed(GOOD, driver={})
HALF = changed(GOOD, driver={})
HALF["gpus"][0]["mig"] = SLICED["gpus"][0]["mig"]
ONLY = {**MIG_CONFIG, "mig-configs": {"all-1g.10gb": MIG_CONFIG["mig-configs"]["all-1g.10gb"]}}
KEPT = {"pci": "0000:07:00.0", "enabled": True,
        "instances": [{"profile": "1g.10gb", "start": start, "compute": [[1, 0]]} for start in range(7)]}
UUID = SLICED["gpus"][0]["uuid"].lower()
LASTING = changed(SLICED, mig_boot={"enabled": True, "gpus": {UUID: KEPT}})
BOARD = {**DRIVER, "state": "present", "persistenced": True, "fabric": {"manager": "fabricmanager", "imex": False}}


def served(**services: dict[str, str]) -> dict[str, Any]:
    """A host with NVSwitches on which these services have these states, and all others run."""
    known = {PERSISTENCED: RUNS, MANAGER: RUNS, **{f"nvidia-{name}.service": one for name, one in services.items()}}
    return changed(GOOD, driver={"services": known}, nvlink={"fabric": "nvswitch"})


FAULT = {"concern": "mig", "message": "mig.json is damaged.", "hint": "Remove it."}
FAULTY = {"brought": [], "faults": [FAULT], "former_driver": None}
FAULTY_DRIVER = {"brought": [], "faults": [{**FAULT, "concern": "driver"}]}
MISMATCH = changed(GOOD, driver={"library": "610.57.04", "nvml": {"available": False, "error": "mismatch"}})
for board in MISMATCH["gpus"]:
    board.update(uuid=None, mig=None)
PARTLY = copy.deepcopy(LASTING)
PARTLY["gpus"].append({**MISMATCH["gpus"][1], "error": "The GPU does not answer: GPU_IS_LOST."})
TURNING["gpus"][0]["mig"] = {"enabled": False, "pending": True, "instances": []}

DOCKER = {"version": "28.1.1", "running": True, "boot": "yes", "stale": None, "cri": None,
          "classes": ["nvidia"]}


def runtimes(kubernetes: str | None = None, **parts: dict[str, Any]) -> dict[str, Any]:
    """The good host with other runtimes. The arguments replace keys of containerd."""
    host = changed(GOOD, driver={})
    for name, values in parts.items():
        host["runtimes"][name] = {**(host["runtimes"][name] or {}), **values}
    host["host"]["markers"]["kubernetes"] = kubernetes
    return host


@pytest.mark.parametrize(("component", "want", "host", "state", "words"), [
    ("driver", DRIVER, GOOD, "ok", "595.91.07 open"),
    ("driver", {**DRIVER, "version": None}, GOOD, "ok", "595.91.07 open"),
    ("driver", {"placement": "none", "version": None, "branch": None}, GOOD, "ok", "595.91.07 open"),
    ("driver", DRIVER, facts("A100"), "absent", "no driver is installed"),
    ("driver", {"placement": "none"}, facts("A100"), "absent", "no driver is installed"),
    ("driver", {**DRIVER, "version": "610.57.04"}, GOOD, "failed", "595.91.07 is loaded, desired is 610.57.04"),
    ("driver", {**DRIVER, "version": None, "branch": 610}, GOOD, "failed", "desired is branch 610"),
    ("driver", {**DRIVER, "kernel_module_type": "proprietary"}, GOOD, "failed", "desired are proprietary modules"),
    ("driver", DRIVER, changed(GOOD, driver={"loaded": None}), "failed", "no kernel module is loaded"),
    ("driver", {**DRIVER, "gds": True, "gdrcopy": True}, GOOD, "failed", "nvidia_fs and gdrdrv are not loaded"),
    ("driver", {**DRIVER, "peermem": True}, changed(GOOD, modules={"nvidia_peermem": True}), "ok", "595.91.07 open"),
    ("driver", DRIVER, changed(GOOD, driver={"library": "610.57.04"}), "failed", "libraries have version 610.57.04"),
    ("driver", DRIVER, changed(GOOD, driver={"loaded": "580.1.1", "reboot_pending": True}), "pending", "580.1.1 is"),
    ("driver", DRIVER, changed(GOOD, driver={"nvml": {"available": False, "error": "driver/library mismatch"}}),
     "failed", "NVML does not answer: driver/library mismatch"),
    ("driver", BOARD, served(), "ok", "595.91.07 open"),
    ("driver", BOARD, served(fabricmanager=OFF), "failed", f"{MANAGER} is inactive"),
    ("driver", BOARD, served(fabricmanager={**RUNS, "enabled": "disabled"}), "failed", f"{MANAGER} does not start at"),
    ("driver", BOARD, served(fabricmanager=MASKED), "failed", f"{MANAGER} is masked"),
    ("driver", BOARD, served(fabricmanager=GONE), "failed", f"{MANAGER} is not installed"),
    ("driver", BOARD, served(persistenced=MASKED), "failed", f"{PERSISTENCED} is masked"),
    ("driver", BOARD, served(persistenced=GONE), "failed", f"{PERSISTENCED} is not installed"),
    ("driver", {**BOARD, "persistenced": False}, served(), "failed", f"{PERSISTENCED} runs, but the plan disables it"),
    ("driver", {**BOARD, "persistenced": False}, served(persistenced=GONE), "ok", "595.91.07 open"),
    ("driver", {**BOARD, "fabric": {"manager": None, "imex": False}}, served(fabricmanager=OFF), "ok", "595.91.07"),
    ("driver", {**BOARD, "state": "adopted", "placement": "none"}, served(persistenced=GONE), "ok", "595.91.07"),
    ("driver", BOARD, changed(served(), driver={"services": None}), "ok", "595.91.07 open"),
    ("driver", {**BOARD, "packages": ["nvidia-driver-cuda", "nvlsm", "ibverbs"]}, served(), "failed",
     "nvlsm is not installed"),
    ("driver", {**BOARD, "packages": ["nvidia-driver-cuda"]}, served(), "ok", "595.91.07 open"),
    ("driver", BOARD, changed(served(), modules={"nvidia_uvm": False}), "failed", "nvidia_uvm is not loaded"),
    ("driver", {**BOARD, "state": "adopted", "placement": "none"}, changed(GOOD, modules={"nvidia_uvm": False}), "ok",
     "595.91.07"),
    ("driver", BOARD, changed(served(), nvlink={"fabric": "nvlink5"}), "failed", "ib_umad is not loaded"),
    ("driver", DRIVER, LOST, "failed", "0000:0f:00.0: The GPU does not answer: it is lost"),
    ("driver", DRIVER, UNSEEN, "failed", "NVML does not report 1 of 2 GPUs (0000:0f:00.0)"),
    ("driver", DRIVER, ILL, "failed", "0000:0f:00.0: memory_mib: unknown error"),
    ("driver", DRIVER, changed(GOOD, driver={"missing_files": ["/usr/lib/libnvidia-ml.so.1"]}), "failed",
     "1 file of its packages is missing or damaged (/usr/lib/libnvidia-ml.so.1)"),
    ("driver", DRIVER, changed(GOOD, driver={"missing_files": ["/a", "/b", "/c", "/d"]}), "failed",
     "4 files of its packages are missing or damaged (/a, /b, /c and 1 more)"),
    ("driver", DRIVER, changed(GOOD, driver={"nodes": {"/dev/nvidia0": "missing", "/dev/nvidia1": "mode 0000"}}),
     "failed", "/dev/nvidia0: missing; /dev/nvidia1: mode 0000"),
    ("driver", DRIVER, changed(GOOD, driver={"nodes": None, "missing_files": None}), "ok", "595.91.07 open"),
    # Nothing of it is repaired where somebody else brings the driver.
    ("driver", {"placement": "none"}, changed(GOOD, driver={"nodes": {"/dev/nvidia0": "missing"}, "missing_files": [
        "/a"]}), "ok", "595.91.07 open"),
    ("container_toolkit", TOOLKIT, GOOD, "ok", "1.20.0, containerd, CDI"),
    ("container_toolkit", TOOLKIT, changed(GOOD, toolkit={"missing_files": ["/usr/bin/nvidia-ctk"]}), "failed",
     "1 file of its packages is missing or damaged (/usr/bin/nvidia-ctk)"),
    ("container_toolkit", TOOLKIT, runtimes(containerd={"stale": True}), "failed",
     "containerd has not loaded its current configuration files"),
    ("container_toolkit", TOOLKIT, runtimes(containerd={"stale": None}), "ok", "1.20.0, containerd, CDI"),
    ("container_toolkit", TOOLKIT, runtimes(containerd={"boot": "masked", "running": False}), "pending",
     "containerd is masked"),
    ("container_toolkit", TOOLKIT, runtimes(containerd={"boot": "no", "running": False}), "pending",
     "containerd does not run"),
    ("container_toolkit", TOOLKIT, runtimes(containerd={"boot": "no"}), "pending", "containerd does not start at boot"),
    ("container_toolkit", TOOLKIT, runtimes(containerd={"boot": None, "running": None}), "ok", "containerd, CDI"),
    # Only the one that is configured counts: Docker, which brings a containerd, but in Kubernetes.
    ("container_toolkit", TOOLKIT, runtimes(containerd={"stale": True, "boot": "no"}, docker=DOCKER), "ok", "docker"),
    ("container_toolkit", TOOLKIT, runtimes(docker={**DOCKER, "boot": "no"}), "pending", "docker does not start at"),
    ("container_toolkit", TOOLKIT, runtimes("kubeadm", docker={**DOCKER, "running": False}), "ok", "containerd and"),
    ("container_toolkit", {**TOOLKIT, "runtime": "docker"}, runtimes("kubeadm", docker={**DOCKER, "running": False}),
     "pending", "docker does not run"),
    ("container_toolkit", TOOLKIT, runtimes("k3s", containerd={"running": False}), "ok", "1.20.0, containerd"),
    ("container_toolkit", TOOLKIT, runtimes(containerd={"running": False}, docker={**DOCKER}), "ok", "docker"),
    ("container_toolkit", TOOLKIT, facts("A100"), "absent", "not installed"),
    ("container_toolkit", TOOLKIT, facts("A100", toolkit="1.19.1", containerd=True), "failed", "desired is 1.20.0"),
    ("container_toolkit", TOOLKIT, facts("A100", toolkit="1.20.0"), "failed", "containerd does not have the nvidia"),
    ("container_toolkit", TOOLKIT, facts("A100", toolkit="1.20.0", containerd=True, cdi=False), "failed",
     "the CDI specification is missing"),
    ("container_toolkit", {**TOOLKIT, "cdi": False}, facts("A100", toolkit="1.20.0", containerd=True, cdi=False), "ok",
     "1.20.0, containerd"),
    ("container_toolkit", TOOLKIT, changed(GOOD, toolkit={"cdi": NAMED}), "ok", "1.20.0, containerd, CDI"),
    ("container_toolkit", TOOLKIT, changed(GOOD, toolkit={"cdi": {**NAMED, "devices": ["0", "1"]}}), "ok", "CDI"),
    ("container_toolkit", TOOLKIT, changed(GOOD, toolkit={"cdi": {**NAMED, "driver": "580.126.20"}}), "failed",
     "the CDI specification is for driver 580.126.20, but 595.91.07 is loaded"),
    ("container_toolkit", TOOLKIT, changed(GOOD, toolkit={"cdi": {**NAMED, "devices": NAMED["devices"][:3]}}), "failed",
     f"the CDI specification does not have {GOOD['gpus'][1]['uuid']}"),
    ("container_toolkit", TOOLKIT, changed(GOOD, toolkit={"cdi": {**NAMED, "devices": [*NAMED["devices"], "MIG-1"]}}),
     "failed", "the CDI specification has unknown devices: MIG-1"),
    ("container_toolkit", TOOLKIT, facts("A100", driver="595.91.07", toolkit="1.20.0", containerd=True, cdi=False,
                                         mig={}), "ok", "1.20.0, containerd"),
    ("container_toolkit", TOOLKIT, facts("A100", driver="595.91.07", toolkit="1.20.0", containerd=True, cdi=False,
                                         mig={"1g.10gb": 2}), "failed", "the CDI specification is missing"),
    # the UUID of a MIG device is not known, so that the names in the specification cannot be compared
    ("container_toolkit", TOOLKIT, changed(UNNAMED, toolkit={"cdi": {**NAMED, "devices": ["MIG-1"]}}), "ok", "CDI"),
    ("container_toolkit", {**TOOLKIT, "runtime": "rke2"}, GOOD, "ok", "1.20.0, CDI"),
    ("container_toolkit", {**TOOLKIT, "runtime": "docker"}, GOOD, "failed", "docker is not installed"),
    ("container_toolkit", TOOLKIT, facts("A100", toolkit="1.20.0", containerd=None), "ok", "1.20.0, CDI"),
    # each of several
    ("container_toolkit", {**TOOLKIT, "runtime": ["docker", "podman", "crio"]}, runtimes(docker=DOCKER), "failed",
     "podman and crio are not installed"),
    ("container_toolkit", {**TOOLKIT, "runtime": "containerd,docker"}, runtimes(docker={**DOCKER, "classes": []}),
     "failed", "docker does not have the nvidia runtime"),
    ("container_toolkit", {**TOOLKIT, "runtime": ["docker"]}, runtimes(containerd={"classes": []}, docker=DOCKER),
     "ok", "1.20.0, docker, CDI"),
    ("container_toolkit", {**TOOLKIT, "runtime": ["docker", "k3s", "podman"]}, runtimes("k3s", docker=DOCKER, podman={
        **DOCKER, "classes": []}), "ok", "1.20.0, docker, CDI"),
    ("container_toolkit", {**TOOLKIT, "runtime": "all"}, runtimes(docker=DOCKER), "ok",
     "1.20.0, containerd and docker, CDI"),
    ("container_toolkit", {**TOOLKIT, "runtime": "all"}, runtimes(containerd={"classes": []}, docker={
        **DOCKER, "classes": []}), "failed", "containerd and docker do not have the nvidia runtime"),
    ("container_toolkit", {**TOOLKIT, "runtime": "all"}, runtimes(containerd={"classes": [], "cri": False},
                                                                  docker=DOCKER), "ok", "1.20.0, docker, CDI"),
    ("container_toolkit", {**TOOLKIT, "runtime": "all"}, runtimes(containerd={"classes": [], "cri": False}),
     "failed", "containerd does not have the nvidia runtime"),
    ("container_toolkit", {**TOOLKIT, "runtime": "all"}, runtimes(containerd={"stale": True}, crio={
        **DOCKER, "stale": True}), "failed", "crio has not loaded its current configuration files"),
    ("container_toolkit", {**TOOLKIT, "runtime": "all"}, runtimes(containerd={"boot": "masked"}, docker={
        **DOCKER, "boot": "no"}), "pending", "containerd is masked; docker does not start at boot"),
    ("container_toolkit", {**TOOLKIT, "runtime": "all"}, facts("A100", toolkit="1.20.0", containerd=None), "ok",
     "1.20.0, CDI"),
    ("mig_manager", MIG, SLICED, "ok", "all-1g.10gb (7 devices)"),
    ("mig_manager", MIG, GOOD, "failed", "0000:07:00.0 has MIG off, desired is 7 x 1g.10gb and 1 more GPU"),
    ("mig_manager", MIG, facts("A100", driver="595.91.07", mig={"1g.10gb": 6}), "failed", "has 6 x 1g.10gb"),
    ("mig_manager", MIG, facts("A100", driver="595.91.07", mig={}), "failed", "has MIG on, empty"),
    ("mig_manager", {**MIG, "selected": "all-disabled"}, SLICED, "failed", "7 x 1g.10gb, desired is MIG off"),
    ("mig_manager", {**MIG, "selected": "all-disabled"}, GOOD, "ok", "all-disabled (0 devices)"),
    ("mig_manager", {**MIG, "devices": [0]}, TURNING, "pending", "0000:07:00.0 changes with the next reset"),
    ("mig_manager", MIG, TURNING, "failed", "0000:0f:00.0 has MIG off, desired is 7 x 1g.10gb"),
    ("mig_manager", {**MIG, "boot": True}, LASTING, "ok", "all-1g.10gb (7 devices)"),
    ("mig_manager", {**MIG, "boot": True}, SLICED, "failed", "gpuops-mig.service is not enabled"),
    ("mig_manager", {**MIG, "boot": True}, changed(LASTING, mig_boot={"gpus": None}), "failed",
     "0000:07:00.0 will have no layout after a boot, desired is 7 x 1g.10gb"),
    ("mig_manager", {**MIG, "boot": True}, changed(LASTING, mig_boot={"gpus": {UUID: {
        **KEPT, "instances": KEPT["instances"][:6]}}}), "failed", "will have 6 x 1g.10gb after a boot"),
    ("mig_manager", {**MIG, "boot": True}, changed(LASTING, mig_boot={"gpus": {UUID: {
        **KEPT, "enabled": False}}}), "failed", "will have MIG off after a boot"),
    ("mig_manager", {**MIG, "devices": ["0000:0f:00.0"]}, HALF, "failed", "0000:0f:00.0 has MIG off, desired is 7"),
    ("mig_manager", {**MIG, "devices": [0]}, HALF, "ok", "all-1g.10gb (7 devices)"),
    ("mig_manager", {**MIG, "devices": ["1"], "selected": "all-disabled"}, HALF, "ok", "all-disabled (0 devices)"),
    ("mig_manager", {**MIG, "selected": "", "config": ONLY}, GOOD, "failed", "0000:07:00.0 has MIG off, desired is 7"),
    ("mig_manager", {**MIG, "selected": None, "config": None}, SLICED, "ok", "not managed (7 x 1g.10gb)"),
    ("mig_manager", {**MIG, "selected": None, "config": None}, facts("T4", driver="595.91.07"), "ok",
     "not managed (no MIG)"),
    ("mig_manager", MIG, MISMATCH, "failed", "the MIG state of 0000:07:00.0, 0000:0f:00.0 is not known"),
    ("mig_manager", {**MIG, "selected": None, "config": None}, MISMATCH, "ok", "not managed (MIG unknown)"),
    ("mig_manager", MIG, PARTLY, "failed", "the MIG state of 0000:0f:00.0 is not known"),
    ("mig_manager", {**MIG, "selected": None, "config": None}, TURNING, "pending", "0000:07:00.0 changes with the"),
    ("mig_manager", {**MIG, "selected": "all-disabled"}, TURNING, "failed", "has MIG on, desired is MIG off"),
    ("mig_manager", {**MIG, "boot": True}, changed(SLICED, mig_boot={"masked": True}), "ok",
     "all-1g.10gb (7 devices); gpuops-mig.service is masked, so the layout is lost at the next boot"),
    ("mig_manager", {**MIG, "boot": True}, changed(LASTING, mig_boot={"vendor": "nvidia-mig-manager.service"}),
     "failed", "nvidia-mig-manager.service is enabled, and applies"),
    ("mig_manager", MIG, {**SLICED, "journals": FAULTY}, "failed", "mig.json is damaged"),
    ("mig_manager", MIG, {**GOOD, "journals": FAULTY}, "failed", "mig.json is damaged; 0000:07:00.0 has MIG"),
    ("driver", DRIVER, {**GOOD, "journals": FAULTY_DRIVER}, "failed", "mig.json is damaged"),
    ("driver", {**DRIVER, "placement": "none"}, {**GOOD, "journals": FAULTY_DRIVER}, "ok",
     "595.91.07"),
    ("feature_discovery", LABELS, GOOD, "ok", "2 GPUs"),
    ("feature_discovery", LABELS, facts("A100"), "failed", "no labels can be computed"),
])
def test_check(component: str, want: dict[str, Any], host: dict[str, Any], state: str, words: str) -> None:
    check, = verify({component: want}, host)
    assert (check.component, check.state, check.ok) == (component, state, state == "ok")
    assert words in check.detail
    assert check.ok or check.hint


@pytest.mark.parametrize(("docker", "state", "words"), [
    ({"classes": ["nvidia"], "running": True}, "ok", "1.20.0, containerd, CDI"),
    ({"classes": ["runc"], "running": True}, "failed",
     "the rootless Docker of builder does not have the nvidia runtime"),
    ({"classes": ["nvidia"], "running": False}, "pending", "the rootless Docker of builder does not run"),
    ({"classes": None, "running": None}, "ok", "1.20.0, containerd, CDI"),
])
def test_the_rootless_docker_of_a_user(docker: dict[str, Any], state: str, words: str) -> None:
    host = {**GOOD, "rootless": {"builder": docker}}
    check, = verify({"container_toolkit": {**TOOLKIT, "rootless_users": ["builder"]}}, host)
    assert (check.state, check.detail) == (state, words)
    assert verify({"container_toolkit": TOOLKIT}, host)[0].ok  # not in the plan


def test_the_name_of_the_runtime_class() -> None:
    want = {**TOOLKIT, "nvidia_runtime_name": "gpu"}
    check, = verify({"container_toolkit": want}, GOOD)
    assert (check.state, check.detail) == ("failed", "containerd does not have the gpu runtime")
    assert verify({"container_toolkit": want}, runtimes(containerd={"classes": ["gpu", "runc"]}))[0].ok


def test_the_commands_for_several_runtimes_can_be_told_apart() -> None:
    host = runtimes(containerd={"boot": "masked"}, docker={**DOCKER, "boot": "no"})
    check, = verify({"container_toolkit": {**TOOLKIT, "runtime": "all"}}, host)
    assert "systemctl unmask containerd; A run" in check.hint and check.hint.endswith("systemctl enable docker")


@pytest.mark.parametrize(("error", "words", "hint"), [
    ("GPU_IS_LOST", "0000:0f:00.0 is lost", "Reboot the host"),
    ("RESET_REQUIRED", "needs a reset", "nvidia-smi --gpu-reset -i 0000:0f:00.0"),
    ("NVML does not list it", "has fallen off the bus", "power-cycle"),
    ("TIMEOUT", "does not answer in time", "journalctl"),
    ("UNKNOWN", "answers with an unknown error", "journalctl"),
])
def test_the_state_of_a_gpu_and_what_to_do(error: str, words: str, hint: str) -> None:
    host = changed(GOOD, driver={})
    host["gpus"][1].update(uuid=None, error=f"The GPU does not answer: {error}.")
    check, = verify({"driver": DRIVER}, host)
    assert (check.state, words in check.detail, hint in check.hint) == ("failed", True, True)
    assert "site.yml" not in check.hint


def test_only_what_is_asked_and_delivered() -> None:
    toolkit = {**TOOLKIT, "placement": "none"}
    expected = {"driver": DRIVER, "container_toolkit": toolkit, "mig_manager": MIG, "preview": []}
    assert [check.component for check in verify(expected, GOOD)] == ["driver", "mig_manager"]
    assert [check.component for check in verify(expected, GOOD, ["mig_manager"])] == ["mig_manager"]


@pytest.mark.parametrize(("labels", "state"), [
    ({"nvidia.com/gpu.count": "8", "a": "b"}, "ok"), ({"nvidia.com/gpu.count": "0"}, "failed"), ({}, "failed"),
    ({"nvidia.com/gpu.count": "\u00b2"}, "failed"), ({"nvidia.com/gpu.count": "9" * 5000}, "failed")])
def test_labels(labels: dict[str, str], state: str) -> None:
    check, = verify({"feature_discovery": LABELS}, facts("A100"), labels=labels)
    assert check.state == state


def test_labels_are_judged_without_facts_of_the_host() -> None:
    check, = verify({"feature_discovery": LABELS}, {"gpus": []}, labels={"nvidia.com/gpu.count": "8"})
    assert check.ok


STEP = {"id": "reload modules: nvidia", "needs": "idle", "pending_reason": "gpu_disruption is 'never'"}
NEXT = {"id": "start service: x", "needs": "never", "pending_reason": "it follows 'reload modules: nvidia'"}
FAILED = [Check("driver", "failed", "old", "hint"), Check("mig_manager", "failed", "off", "hint"),
          Check("x", "ok", "y")]


def test_what_was_not_allowed_is_pending_and_so_is_what_waits_for_the_driver() -> None:
    driver, mig, fine = with_pending(FAILED, {"driver": [STEP, NEXT]})
    assert (driver.state, driver.detail) == (
        "pending", "reload modules: nvidia and 1 more: gpu_disruption is 'never'")
    assert driver.hint == "Set gpu_disruption: idle."
    assert (mig.state, mig.detail) == ("pending", "it waits for the driver: off")
    assert fine.ok


def test_what_no_level_allows_keeps_the_hint_of_its_check() -> None:
    pending, = with_pending([Check("container_toolkit", "pending", "x does not run", "Start it.")],
                            {"container_toolkit": [NEXT]})
    assert (pending.state, pending.hint) == ("pending", "Start it.")


def test_what_waits_for_no_level_names_none() -> None:
    step = {"id": "configure MIG: 0000:07:00.0", "needs": "never", "pending_reason": "GPU 0 does not answer."}
    check, = with_pending([Check("mig_manager", "failed", "not known", "Make it answer.")], {"mig_manager": [step]})
    assert (check.state, check.hint) == ("pending", "Make it answer.")


def test_pending_of_another_component_excuses_nothing() -> None:
    assert [check.state for check in with_pending(FAILED, {"mig_manager": [STEP]})] == ["failed", "pending", "ok"]


def test_check_mode_fails_nothing() -> None:
    assert [check.state for check in with_pending(FAILED, {}, check_mode=True)] == ["pending", "pending", "ok"]


def test_what_the_modules_would_do_counts_beside_the_facts() -> None:
    checks = [Check("driver", "ok", "595"), Check("container_toolkit", "failed", "no CDI", "Run site.yml."),
              Check("mig_manager", "ok", "off"), Check("dcgm", "ok", "4"), Check("cuda", "ok", "13")]
    steps = [{"id": "write file: /etc/modprobe.d/x.conf"}, {"id": "build initramfs: 6.8"}]
    waits = [{"id": "reset GPU: 0", "pending_reason": "it is in use", "needs": "drain"}]
    found = with_module_results(checks, {"driver": steps, "container_toolkit": steps}, {"mig_manager": waits},
                                {"dcgm": {"message": "The key is another one.", "hint": "Look."}})
    assert [(check.component, check.state, check.detail) for check in found] == [
        ("driver", "failed", "a run would write file: /etc/modprobe.d/x.conf and 1 more"),
        ("container_toolkit", "failed", "no CDI"), ("mig_manager", "pending", "reset GPU: 0: it is in use"),
        ("dcgm", "failed", "The key is another one"), ("cuda", "ok", "13")]
    assert found[2].hint == "Set gpu_disruption: drain."


def test_what_the_facts_say_of_a_component_that_waits_stays() -> None:
    stopped = [Check("container_toolkit", "pending", "containerd does not run", "A run does not change this.")]
    waits = {"container_toolkit": [{"id": "start service: x", "pending_reason": "y", "needs": "never"}]}
    assert with_pending(with_module_results(stopped, {}, waits, {}), waits) == stopped
