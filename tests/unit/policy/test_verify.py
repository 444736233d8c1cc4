# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Facts against a plan: state and words of every check."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.verify import Check, verify, with_pending
from ansible_collections.gpuops.nvidia.tests.unit.policy.samples import MIG_CONFIG, changed, facts

DRIVER = {"placement": "host", "version": "595.91.07", "branch": 595, "kernel_module_type": "open"}
TOOLKIT = {"placement": "host", "version": "1.20.0", "runtime": "auto", "cdi": True}
MIG = {"placement": "host", "selected": "all-1g.10gb", "config": MIG_CONFIG}
LABELS = {"placement": "host", "mig_strategy": "single"}
GOOD = facts("A100", "A100", driver="595.91.07", toolkit="1.20.0", containerd=True)
NAMED = {"devices": ["0", "1", *(gpu["uuid"] for gpu in GOOD["gpus"])], "driver": "595.91.07"}
SLICED = facts("A100", driver="595.91.07", mig={"1g.10gb": 7})
LOST = changed(GOOD, driver={})
LOST["gpus"][1].update(uuid=None, error="The GPU does not answer: it is lost.")
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
TURNING["gpus"][0]["mig"] = {"enabled": False, "pending": True, "instances": []}


@pytest.mark.parametrize(("component", "want", "host", "state", "words"), [
    ("driver", DRIVER, GOOD, "ok", "595.91.07 open"),
    ("driver", {**DRIVER, "version": None}, GOOD, "ok", "595.91.07 open"),
    ("driver", {"placement": "none", "version": None, "branch": None}, GOOD, "ok", "595.91.07 open"),
    ("driver", DRIVER, facts("A100"), "absent", "no driver is installed"),
    ("driver", {"placement": "none"}, facts("A100"), "absent", "no driver is installed"),
    ("driver", {**DRIVER, "version": "610.57.04"}, GOOD, "failed", "595.91.07 is loaded, 610.57.04 is wanted"),
    ("driver", {**DRIVER, "version": None, "branch": 610}, GOOD, "failed", "branch 610 is wanted"),
    ("driver", {**DRIVER, "kernel_module_type": "proprietary"}, GOOD, "failed", "open modules are loaded, proprietary"),
    ("driver", DRIVER, changed(GOOD, driver={"loaded": None}), "failed", "no kernel module is loaded"),
    ("driver", {**DRIVER, "gds": True, "gdrcopy": True}, GOOD, "failed", "nvidia_fs and gdrdrv are not loaded"),
    ("driver", {**DRIVER, "peermem": True}, changed(GOOD, modules={"nvidia_peermem": True}), "ok", "595.91.07 open"),
    ("driver", DRIVER, changed(GOOD, driver={"library": "610.57.04"}), "failed", "libraries are 610.57.04"),
    ("driver", DRIVER, changed(GOOD, driver={"loaded": "580.1.1", "reboot_pending": True}), "pending", "580.1.1 is"),
    ("driver", DRIVER, changed(GOOD, driver={"nvml": {"available": False, "error": "driver/library mismatch"}}),
     "failed", "NVML does not answer: driver/library mismatch"),
    ("driver", DRIVER, LOST, "failed", "1 of 2 GPUs are not seen by NVML (0000:0f:00.0)"),
    ("driver", DRIVER, ILL, "failed", "0000:0f:00.0: memory_mib: unknown error"),
    ("container_toolkit", TOOLKIT, GOOD, "ok", "1.20.0, containerd, CDI"),
    ("container_toolkit", TOOLKIT, facts("A100"), "absent", "not installed"),
    ("container_toolkit", TOOLKIT, facts("A100", toolkit="1.19.1", containerd=True), "failed", "1.20.0 is wanted"),
    ("container_toolkit", TOOLKIT, facts("A100", toolkit="1.20.0"), "failed", "containerd does not know the nvidia"),
    ("container_toolkit", TOOLKIT, facts("A100", toolkit="1.20.0", containerd=True, cdi=False), "failed",
     "there is no CDI specification"),
    ("container_toolkit", {**TOOLKIT, "cdi": False}, facts("A100", toolkit="1.20.0", containerd=True, cdi=False), "ok",
     "1.20.0, containerd"),
    ("container_toolkit", TOOLKIT, changed(GOOD, toolkit={"cdi": NAMED}), "ok", "1.20.0, containerd, CDI"),
    ("container_toolkit", TOOLKIT, changed(GOOD, toolkit={"cdi": {**NAMED, "devices": ["0", "1"]}}), "ok", "CDI"),
    ("container_toolkit", TOOLKIT, changed(GOOD, toolkit={"cdi": {**NAMED, "driver": "580.126.20"}}), "failed",
     "the CDI specification is of driver 580.126.20, 595.91.07 is loaded"),
    ("container_toolkit", TOOLKIT, changed(GOOD, toolkit={"cdi": {**NAMED, "devices": NAMED["devices"][:3]}}), "failed",
     f"the CDI specification lacks {GOOD['gpus'][1]['uuid']}"),
    ("container_toolkit", TOOLKIT, changed(GOOD, toolkit={"cdi": {**NAMED, "devices": [*NAMED["devices"], "MIG-1"]}}),
     "failed", "the CDI specification has MIG-1, which is not there"),
    ("container_toolkit", TOOLKIT, facts("A100", driver="595.91.07", toolkit="1.20.0", containerd=True, cdi=False,
                                         mig={}), "ok", "1.20.0, containerd"),
    ("container_toolkit", TOOLKIT, facts("A100", driver="595.91.07", toolkit="1.20.0", containerd=True, cdi=False,
                                         mig={"1g.10gb": 2}), "failed", "there is no CDI specification"),
    ("container_toolkit", {**TOOLKIT, "runtime": "rke2"}, GOOD, "ok", "1.20.0, CDI"),
    ("container_toolkit", {**TOOLKIT, "runtime": "docker"}, GOOD, "failed", "docker is not installed"),
    ("container_toolkit", TOOLKIT, facts("A100", toolkit="1.20.0", containerd=None), "ok", "1.20.0, CDI"),
    ("mig_manager", MIG, SLICED, "ok", "all-1g.10gb (7 devices)"),
    ("mig_manager", MIG, GOOD, "failed", "0000:07:00.0 has MIG off, wanted is 7 x 1g.10gb and 1 more GPU"),
    ("mig_manager", MIG, facts("A100", driver="595.91.07", mig={"1g.10gb": 6}), "failed", "has 6 x 1g.10gb"),
    ("mig_manager", MIG, facts("A100", driver="595.91.07", mig={}), "failed", "has MIG on, empty"),
    ("mig_manager", {**MIG, "selected": "all-disabled"}, SLICED, "failed", "7 x 1g.10gb, wanted is MIG off"),
    ("mig_manager", {**MIG, "selected": "all-disabled"}, GOOD, "ok", "all-disabled (0 devices)"),
    ("mig_manager", MIG, TURNING, "pending", "0000:07:00.0 changes with the next reset"),
    ("mig_manager", {**MIG, "boot": True}, LASTING, "ok", "all-1g.10gb (7 devices)"),
    ("mig_manager", {**MIG, "boot": True}, SLICED, "failed", "gpuops-mig.service is not enabled"),
    ("mig_manager", {**MIG, "boot": True}, changed(LASTING, mig_boot={"gpus": None}), "failed",
     "0000:07:00.0 will have nothing after a boot, wanted is 7 x 1g.10gb"),
    ("mig_manager", {**MIG, "boot": True}, changed(LASTING, mig_boot={"gpus": {UUID: {
        **KEPT, "instances": KEPT["instances"][:6]}}}), "failed", "will have 6 x 1g.10gb after a boot"),
    ("mig_manager", {**MIG, "boot": True}, changed(LASTING, mig_boot={"gpus": {UUID: {
        **KEPT, "enabled": False}}}), "failed", "will have MIG off after a boot"),
    ("mig_manager", {**MIG, "devices": ["0000:0f:00.0"]}, HALF, "failed", "0000:0f:00.0 has MIG off, wanted is 7"),
    ("mig_manager", {**MIG, "devices": [0]}, HALF, "ok", "all-1g.10gb (7 devices)"),
    ("mig_manager", {**MIG, "devices": ["1"], "selected": "all-disabled"}, HALF, "ok", "all-disabled (0 devices)"),
    ("mig_manager", {**MIG, "selected": "", "config": ONLY}, GOOD, "failed", "0000:07:00.0 has MIG off, wanted is 7"),
    ("mig_manager", {**MIG, "selected": None, "config": None}, SLICED, "ok", "not managed (7 x 1g.10gb)"),
    ("mig_manager", {**MIG, "selected": None, "config": None}, facts("T4", driver="595.91.07"), "ok",
     "not managed (no MIG)"),
    ("feature_discovery", LABELS, GOOD, "ok", "2 GPUs"),
    ("feature_discovery", LABELS, facts("A100"), "failed", "nothing to label"),
])
def test_check(component: str, want: dict[str, Any], host: dict[str, Any], state: str, words: str) -> None:
    check, = verify({component: want}, host)
    assert (check.component, check.state, check.ok) == (component, state, state == "ok")
    assert words in check.detail
    assert check.ok or check.hint


def test_only_what_is_asked_and_delivered() -> None:
    toolkit = {**TOOLKIT, "placement": "none"}
    expected = {"driver": DRIVER, "container_toolkit": toolkit, "mig_manager": MIG, "preview": []}
    assert [check.component for check in verify(expected, GOOD)] == ["driver", "mig_manager"]
    assert [check.component for check in verify(expected, GOOD, ["mig_manager"])] == ["mig_manager"]


@pytest.mark.parametrize(("labels", "state"), [
    ({"nvidia.com/gpu.count": "8", "a": "b"}, "ok"), ({"nvidia.com/gpu.count": "0"}, "failed"), ({}, "failed")])
def test_labels(labels: dict[str, str], state: str) -> None:
    check, = verify({"feature_discovery": LABELS}, facts("A100"), labels=labels)
    assert check.state == state


STEP = {"id": "reload modules: nvidia", "needs": "idle", "pending_reason": "gpu_disruption is 'never'"}
NEXT = {"id": "start service: x", "needs": "never", "pending_reason": "it follows 'reload modules: nvidia'"}
FAILED = [Check("driver", "failed", "old", "hint"), Check("mig_manager", "failed", "off", "hint"),
          Check("x", "ok", "y")]


def test_what_was_not_allowed_is_pending_and_so_is_what_waits_for_the_driver() -> None:
    driver, mig, fine = with_pending(FAILED, {"driver": [STEP, NEXT]})
    assert (driver.state, driver.detail) == (
        "pending", "reload modules: nvidia and 1 more: gpu_disruption is 'never'")
    assert driver.hint == "Allow it by gpu_disruption: idle."
    assert (mig.state, mig.detail) == ("pending", "it waits for the driver: off")
    assert fine.ok


def test_pending_of_another_component_excuses_nothing() -> None:
    assert [check.state for check in with_pending(FAILED, {"mig_manager": [STEP]})] == ["failed", "pending", "ok"]


def test_check_mode_fails_nothing() -> None:
    assert [check.state for check in with_pending(FAILED, {}, check_mode=True)] == ["pending", "pending", "ok"]
