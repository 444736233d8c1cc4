# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The findings before a change: each check with a case in which it has a finding and one in which it has none."""

from __future__ import annotations

import copy
import datetime
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning import preflight
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning.findings import Finding, counts, grouped
from ansible_collections.gpuops.nvidia.tests.unit.simulated.host_facts import driven, facts
from ansible_collections.gpuops.nvidia.tests.unit.simulated.samples import changed

TODAY = datetime.date(2026, 11, 21)
VERSION = "580.173.02"
ADOPTED = {"placement": "none", "version": None, "branch": None}
IN_CLUSTER = {"placement": "cluster"}
OFF = {"placement": "none"}
DAMAGED = {"faults": [{"concern": "mig", "message": "It is damaged.", "hint": "Mend it."}]}
BARE = {"gpus": ["26b9"] * 2}


def plan_of(release: str = "26.7.0", preview: tuple[str, ...] = ("driver",), profile: dict[str, str] | None = None,
            driver: dict[str, Any] | None = None, toolkit: dict[str, Any] | None = None,
            mig: dict[str, Any] | None = None) -> dict[str, Any]:
    """The plan of one host, gpu-1, whose driver and toolkit are delivered on the host."""
    mine = {"driver": driver or {"placement": "host", "version": VERSION, "branch": 580},
            "container_toolkit": toolkit or {"placement": "host", "version": "1.20.0"},
            "mig_manager": mig or {}, "preview": list(preview), "profile": profile}
    return {"release": release, "placement": {"driver": "host", "container_toolkit": "host"}, "cluster": None,
            "hosts": {"gpu-1": mine}}


def found(known: dict[str, Any] | None, plan: dict[str, Any] | None = None) -> dict[str, str]:
    """Maps checks to severities, for one host. A check with two findings has both."""
    every = preflight.checks(plan or plan_of(), {"gpu-1": known}, None, TODAY)
    result: dict[str, str] = {}
    for one in every:
        assert one.host == "gpu-1" and one.text and not one.text.endswith(".") and not one.fix.endswith(".")
        result[one.check] = f"{result[one.check]} {one.severity}" if one.check in result else one.severity
    return result


def client(**parts: Any) -> dict[str, Any]:
    """A process that uses a GPU."""
    return {"pid": 4711, "name": "python3", "gpu": "0000:07:00.0", "instance": None, "unit": None, "container": None,
            **parts}


MANAGER = client(name="nv-fabricmanage", unit="nvidia-fabricmanager.service", gpu=None)
DCGM = client(name="nv-hostengine", unit="nvidia-dcgm.service")
PERSISTENCED = client(name="nvidia-persiste", unit="nvidia-persistenced.service")


def on_board(**more: Any) -> dict[str, Any]:
    """A board with eight A100, on which this driver is loaded."""
    return {**driven(facts(), VERSION), **more}


NEXT = "6.8.0-90-generic"
BUILT = [{"name": "nvidia", "version": VERSION, "kernel": kernel, "state": "installed"}
         for kernel in ("6.8.0-45-generic", NEXT)]
ON_BOARD = plan_of(driver={"placement": "host", "version": VERSION, "branch": 580,
                           "fabric": {"manager": "fabricmanager", "imex": False, "version": VERSION, "imex_nodes": []}})


def tray(*nodes: str) -> dict[str, Any]:
    """The driver of a compute tray that shares memory with these trays."""
    return {"placement": "host", "version": VERSION, "branch": 580,
            "fabric": {"manager": None, "imex": True, "version": None, "imex_nodes": list(nodes)}}


# name: (facts, plan or None for that of a host, what is found besides nothing)
CASES: dict[str, tuple[dict[str, Any] | None, dict[str, Any] | None, dict[str, str]]] = {
    "nothing": (facts(**BARE), None, {}),
    "nothing, converged": (driven(facts(**BARE), VERSION), plan_of(preview=()), {}),
    "no answer": (None, None, {"facts": "error"}),
    "nouveau loaded, the role unloads it": (facts(**BARE, modules={"nouveau": True}), None, {"nouveau": "info"}),
    "nouveau loaded, driver adopted": (facts(**BARE, modules={"nouveau": True}), plan_of(driver=ADOPTED),
                                       {"nouveau": "error", "no_driver": "error"}),
    "nouveau loaded, driver container": (facts(**BARE, modules={"nouveau": True}), plan_of(driver=IN_CLUSTER),
                                         {"nouveau": "error"}),
    "nouveau not denied, driver container": (facts(**BARE), plan_of(driver=IN_CLUSTER), {"nouveau": "warning"}),
    "nouveau denied, driver container": (facts(**BARE, modules={"nouveau_denied": True}), plan_of(driver=IN_CLUSTER),
                                         {}),
    "headers nowhere": (facts(**BARE, host={"kernel": {"headers": False, "headers_available": False}}), None,
                        {"kernel_headers": "error"}),
    "headers nowhere, driver container": (
        facts(**BARE, modules={"nouveau_denied": True},
              host={"kernel": {"headers": False, "headers_available": False}}), plan_of(driver=IN_CLUSTER),
        {"kernel_headers": "warning"}),
    "headers can be had": (facts(**BARE, host={"kernel": {"headers": False, "headers_available": True}}), None, {}),
    "headers not known": (facts(**BARE, host={"kernel": {"headers": False}}), None, {"kernel_headers": "warning"}),
    "headers not needed": (facts(**BARE, host={"kernel": {"headers": False, "headers_available": False}}),
                           plan_of(driver={"placement": "host", "version": VERSION, "precompiled": True}), {}),
    "headers, driver runs": (driven(facts(**BARE, host={"kernel": {"headers": False}}), VERSION), plan_of(), {}),
    "next kernel": (facts(**BARE, host={"kernel": {"newest_installed": NEXT}}), None, {"next_kernel": "info"}),
    "next kernel, the driver is there for it": (
        driven(facts(**BARE, host={"kernel": {"newest_installed": NEXT}}, driver={"dkms": BUILT}), VERSION),
        plan_of(preview=()), {}),
    "next kernel, another driver is there for it": (
        driven(facts(**BARE, host={"kernel": {"newest_installed": NEXT}}, driver={"dkms": BUILT}), "570.211.01"), None,
        {"next_kernel": "info"}),
    "next kernel, not wanted": (facts(**BARE, host={"kernel": {"newest_installed": NEXT}}),
                                plan_of(driver={"placement": "host", "version": VERSION, "next_kernel": False}),
                                {"next_kernel": "warning"}),
    "next kernel, driver adopted": (driven(facts(**BARE, host={"kernel": {"newest_installed": NEXT}}), VERSION),
                                    plan_of(driver=ADOPTED, preview=()), {"next_kernel": "warning"}),
    "next kernel, driver adopted and there for it": (
        driven(facts(**BARE, host={"kernel": {"newest_installed": NEXT}}, driver={"dkms": BUILT}), VERSION),
        plan_of(driver=ADOPTED, preview=()), {}),
    "next kernel, driver container": (
        facts(**BARE, modules={"nouveau_denied": True}, host={"kernel": {"newest_installed": NEXT}}),
        plan_of(driver=IN_CLUSTER), {}),
    "DKMS built, not installed": (
        facts(**BARE, driver={"dkms": [{"name": "nvidia", "version": "550.1", "kernel": "6.8.0-45-generic",
                                        "state": "built"}]}), None, {"dkms": "warning"}),
    "DKMS installed": (
        facts(**BARE, driver={"dkms": [{"name": "nvidia", "version": "550.1", "kernel": "6.8.0-45-generic",
                                        "state": "installed"}]}), None, {}),
    "DKMS of another kernel": (
        facts(**BARE, driver={"dkms": [{"name": "nvidia", "version": "550.1", "kernel": "5.15.0-1-generic",
                                        "state": "built"}]}), None, {}),
    "Secure Boot, no key": (facts(**BARE, secure_boot=True), None, {"secure_boot": "error"}),
    "Secure Boot, key enrolled": (facts(**BARE, secure_boot=True, host={"mok": {"enrolled": True}}), None, {}),
    "Secure Boot, key not known": (facts(**BARE, secure_boot=True, host={"mok": {"enrolled": None}}), None,
                                   {"secure_boot": "warning"}),
    "Secure Boot, signed modules": (
        facts(**BARE, secure_boot=True),
        plan_of(driver={"placement": "host", "version": VERSION, "secure_boot": "signed"}), {}),
    "Secure Boot, a key of one's own": (
        facts(**BARE, secure_boot=True),
        plan_of(driver={"placement": "host", "version": VERSION, "secure_boot": "mok"}), {"secure_boot": "warning"}),
    "Secure Boot, a key of one's own that is enrolled": (
        facts(**BARE, secure_boot=True, host={"mok": {"enrolled": True}}),
        plan_of(driver={"placement": "host", "version": VERSION, "secure_boot": "mok"}), {}),
    "lockdown without Secure Boot": (facts(**BARE, host={"lockdown": "integrity"}), None, {"secure_boot": "warning"}),
    "ended branch": (facts(**BARE), plan_of(driver={"placement": "host", "version": "535.309.01", "branch": 535}),
                     {"driver_end_of_life": "warning"}),
    "ended branch, adopted": (driven(facts(**BARE), "550.163.01"), plan_of(driver=ADOPTED, preview=()),
                              {"driver_end_of_life": "warning"}),
    "known fault": (facts(**BARE), plan_of(driver={"placement": "host", "version": "570.148.08", "branch": 570}),
                    {"driver_faults": "warning", "driver_end_of_life": "warning"}),
    "driver of a container": (driven(facts(**BARE), VERSION, source="container"), None, {"foreign_driver": "error"}),
    "board, no driver": (facts(), ON_BOARD, {"fabric": "info"}),
    "board, no driver, no plan": (facts(), {**plan_of(), "hosts": {}}, {"fabric": "info"}),
    "board, nobody brings a manager": (facts(), None, {"fabric": "warning"}),
    "board, manager installed beforehand": (facts(driver={"packages": {"nvidia-fabricmanager": "580.173.02-1"}}), None,
                                            {}),
    "board, manager runs": (on_board(clients=[MANAGER]), {**ON_BOARD, "hosts": {"gpu-1": {
        **ON_BOARD["hosts"]["gpu-1"], "preview": []}}}, {}),
    "board, manager does not run, the role starts it": (on_board(clients=[PERSISTENCED]), ON_BOARD, {"fabric": "info"}),
    "board, driver adopted, manager runs": (on_board(clients=[MANAGER]), plan_of(driver=ADOPTED, preview=()), {}),
    "board, driver adopted, manager does not run": (on_board(clients=[PERSISTENCED]),
                                                    plan_of(driver=ADOPTED, preview=()), {"fabric": "error"}),
    "board, driver adopted, manager of another version": (
        on_board(clients=[MANAGER], driver={**on_board()["driver"],
                                            "packages": {"nvidia-fabricmanager": "1:580.95.05-1"}}),
        plan_of(driver=ADOPTED, preview=()), {"fabric": "error"}),
    "board, driver container": (facts(modules={"nouveau_denied": True}), plan_of(driver=IN_CLUSTER), {}),
    "HGX B200, no driver": (facts(["2901"] * 8), ON_BOARD, {"fabric": "warning info"}),
    "HGX B200, no driver, switches can be managed": (facts(["2901"] * 8, modules={"mlx5_core": True}), ON_BOARD,
                                                     {"fabric": "info"}),
    "HGX B200, nobody brings a manager": (facts(["2901"] * 8), None, {"fabric": "warning warning"}),
    "HGX B200, driver adopted, runs without manager": (
        driven(facts(["2901"] * 8, modules={"ib_umad": True, "mlx5_core": True}), VERSION),
        plan_of(driver=ADOPTED, preview=()), {"fabric": "warning"}),
    "GB200 tray": (facts(["2941"] * 4, arch="aarch64"), plan_of(driver=tray()), {"fabric": "warning"}),
    "GB200 tray, the others are named": (facts(["2941"] * 4, arch="aarch64"),
                                         plan_of(driver=tray("10.0.0.1", "10.0.0.2")), {}),
    "GB200 tray, driver adopted": (driven(facts(["2941"] * 4, arch="aarch64"), VERSION, source="preinstalled"),
                                   plan_of(driver=ADOPTED, preview=()), {"fabric": "warning"}),
    "GB200 tray with IMEX": (
        facts(["2941"] * 4, arch="aarch64", driver={"packages": {"nvidia-imex": "580.173.02-1"}}),
        plan_of(driver=ADOPTED), {"no_driver": "error"}),
    "held while the driver changes": (driven(facts(**BARE, clients=[client()]), "570.211.01"), plan_of(),
                                      {"holders": "warning"}),
    "held while MIG changes": (driven(facts(["20b5"], clients=[client(unit="slurmd.service")]), VERSION),
                               plan_of(preview=("mig_manager",)), {"holders": "warning"}),
    "held, nothing changes": (driven(facts(**BARE, clients=[client()]), VERSION), plan_of(preview=()), {}),
    "held while modules come beside the driver": (driven(facts(**BARE, clients=[client()]), VERSION), plan_of(), {}),
    "held while the other modules are wanted": (
        driven(facts(**BARE, clients=[client()]), VERSION),
        plan_of(driver={"placement": "host", "version": VERSION, "kernel_module_type": "proprietary"}),
        {"holders": "warning"}),
    "held while libraries are of another version": (changed(
        driven(facts(**BARE, clients=[client()]), VERSION), driver={"library": "570.211.01"}), plan_of(),
        {"holders": "warning"}),
    "held by DCGM, which stops for the driver": (driven(facts(**BARE, clients=[DCGM]), "570.211.01"), plan_of(), {}),
    "held by DCGM while MIG changes": (driven(facts(["20b5"], clients=[DCGM]), VERSION),
                                       plan_of(preview=("mig_manager",)), {}),
    "held by the driver's own services": (driven(facts(**BARE, clients=[PERSISTENCED]), "570.211.01"), plan_of(), {}),
    "reboot pending": (driven(facts(**BARE, driver={"reboot_pending": True}), VERSION), plan_of(preview=()),
                       {"reboot": "warning"}),
    "no runtime": (facts(**BARE, runtimes={"containerd": None}), None, {"runtime": "warning"}),
    "runtime stopped": (facts(**BARE, runtimes={"containerd": {"running": False}}), None, {"runtime": "warning"}),
    "runtime masked": (facts(**BARE, runtimes={"containerd": {"boot": "masked"}}), None, {"runtime": "warning"}),
    "runtime disabled": (facts(**BARE, runtimes={"containerd": {"boot": "no"}}), None, {"runtime": "warning"}),
    "runtime without an answer": (facts(**BARE, runtimes={"containerd": {"boot": None, "running": None}}), None, {}),
    "no runtime, no toolkit wanted": (facts(**BARE, runtimes={"containerd": None}), plan_of(toolkit=OFF), {}),
    "toolkit beside k3s": (facts(**BARE, host={"markers": {"kubernetes": "k3s"}}), None, {}),
    "old toolkit": (facts(**BARE), plan_of(toolkit={"placement": "host", "version": "1.17.5"}), {"toolkit": "warning"}),
    "toolkit in parts": (facts(**BARE, toolkit={"version": "1.20.0", "packages": {
        "nvidia-container-toolkit": "1.20.0-1", "libnvidia-container1": "1.17.8-1"}}), None, {"toolkit": "warning"}),
    "damaged journal": (facts(**BARE, journals=DAMAGED), plan_of(), {"journal": "error"}),
    "journal where nothing is delivered": (facts(**BARE, journals=DAMAGED), plan_of(driver=ADOPTED, toolkit=OFF),
                                           {"no_driver": "error"}),
    "masked boot unit": (facts(["20b5"], mig_boot={"masked": True}), plan_of(
        mig={"placement": "host", "selected": "all-1g.10gb", "boot": True}), {"mig_boot": "warning"}),
    "lost GPU": (facts([{**facts(["26b9"])["gpus"][0], "error": "The GPU does not answer: Unknown Error."}]), None,
                 {"gpus": "warning"}),
    "two models": (facts(["26b9", "1eb8"]), None, {"gpus": "info"}),
    "vGPU guest": (facts(**BARE, vgpu={"version": "550.90", "branch": "r550"}), None, {"vgpu": "error"}),
    "vGPU guest, its .run file without a licence": (
        facts(**BARE, vgpu={"version": "550.90", "branch": "r550"}),
        plan_of(driver={"placement": "host", "version": VERSION, "source": "runfile"}), {"vgpu": "warning"}),
    "vGPU guest, its .run file and licence": (
        facts(**BARE, vgpu={"version": "550.90", "branch": "r550"}),
        plan_of(driver={"placement": "host", "version": VERSION, "source": "runfile", "licence": True}), {}),
    "vGPU guest, its driver adopted": (facts(**BARE, vgpu={"version": "550.90", "branch": "r550"}),
                                       plan_of(driver=ADOPTED), {"no_driver": "error"}),
    "vGPU guest, its driver adopted and there": (
        driven(facts(**BARE, vgpu={"version": "550.90", "branch": "r550"}), VERSION), plan_of(driver=ADOPTED), {}),
    "read-only /usr": (facts(**BARE, os="sl-micro6.1", host={"markers": {"immutable": True}}), None,
                       {"immutable": "error"}),
    "read-only /usr, all in the cluster": (
        facts(**BARE, os="sl-micro6.1", modules={"nouveau_denied": True}, host={"markers": {"immutable": True}}),
        plan_of(driver=ADOPTED, toolkit=IN_CLUSTER), {"no_driver": "error"}),
    "system not validated": (facts(**BARE, os="debian12", modules={"nouveau_denied": True}),
                             plan_of(driver=IN_CLUSTER), {"system": "warning"}),
    "profile": (facts(**BARE, host={"markers": {"dgx": {"name": "DGX", "version": "7"}}}),
                plan_of(driver=ADOPTED, profile={"name": "dgx_os", "because": "found by x"}),
                {"profile": "info", "no_driver": "error"}),
    "profile switched off": (facts(**BARE, host={"markers": {"dgx": {"name": "DGX", "version": "7"}}}), None, {}),
}


@pytest.mark.parametrize("case", CASES)
def test_host(case: str) -> None:
    known, plan, expected = CASES[case]
    assert found(known, plan) == expected


def test_every_check_has_a_case() -> None:
    from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning.preflight_host import CHECKS

    assert set(CHECKS) <= {check for _known, _plan, expected in CASES.values() for check in expected}


def test_every_check_is_documented() -> None:
    from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning import (
        preflight_cluster,
        preflight_health,
        preflight_host,
    )

    checks = {*preflight_host.CHECKS, *preflight_health.HEALTH_CHECKS, *preflight_cluster.CLUSTER_CHECKS,
              *preflight_cluster.NODE_CHECKS, "policy", "facts", "variables", "release"}
    page = (pathlib.Path(__file__).parents[3] / "docs" / "preflight.md").read_text(encoding="utf-8")
    listed = {name for row in re.findall(r"^\| (`[^|]+) \|", page, re.M) for name in re.findall(r"`(\w+)`", row)}
    others = {"driver", "container_toolkit", "mig_manager", "gpu_report_html", "gpu_report_json",
              "gpu_status_metrics_file"}
    assert checks == listed - others


def texts(known: dict[str, Any], plan: dict[str, Any] | None = None) -> str:
    every = preflight.checks(plan or plan_of(), {"gpu-1": known}, None, TODAY)
    return "\n".join(f"{one.text} → {one.fix}" for one in every)


def test_findings_name_what_helps() -> None:
    told = texts(facts(["2901"] * 8, os="ubuntu24.04"))
    assert "Install nvidia-fabricmanager 580.173.02 and nvlsm after the driver" in told
    assert "linux-modules-extra" in told and "802" in told
    assert "nvidia-fabric-manager 570.211.01" in texts(
        facts(os="rhel9.6"), plan_of(driver={"placement": "host", "version": "570.211.01", "branch": 570}))
    holders = [client(), client(pid=1, unit="slurmd.service"), client(pid=2, container="0123456789abcdef"),
               client(pid=3, name="jupyter")]
    told = texts(driven(facts(**BARE, clients=holders), "570.211.01"))
    assert "GPU clients run: python3 (pid 4711), slurmd.service, python3 (container 0123456789ab) and 1 more" in told
    assert "linux-headers-6.8.0-45-generic is not in the package index" in texts(
        facts(**BARE, host={"kernel": {"headers": False, "headers_available": False}}))
    assert "Set driver.version to one of 595.91.07, 580.173.02" in texts(
        facts(**BARE), plan_of(driver={"placement": "host", "version": "535.309.01", "branch": 535}))


def test_what_is_not_known_is_not_said() -> None:
    """In the facts of a Node, nearly everything is None."""
    unknown = facts(**BARE, secure_boot=None, modules=dict.fromkeys(facts()["modules"]), nvlink={"fabric": None},
                    driver={"reboot_pending": None}, host={
                        "lockdown": None, "mok": {"tool": None, "enrolled": None}, "markers": {"immutable": None},
                        "kernel": {"headers": None, "headers_available": None, "newest_installed": None}})
    assert found(unknown) == {}


def test_without_a_plan_facts_still_speak() -> None:
    error = {"kind": "policy", "message": "The policy (x) cannot be carried out:\n  ...", "hint": "", "refusals": [
        {"hosts": ["gpu-1", "gpu-2"], "reason": "driver 595 cannot drive Tesla V100", "remedy": "Set 580.",
         "constraints": [{"id": "driver.version", "text": "x"}, {"id": "gpu:volta", "text": "y"}]},
        {"hosts": ["gpu-2"], "reason": "Secure Boot is on", "remedy": "Switch it off.",
         "constraints": [{"id": "secure_boot", "text": "z"}]}]}
    known = facts(["1db5"], secure_boot=True)
    every = preflight.refused(error, {"gpu-1": known, "gpu-2": copy.deepcopy(known)}, None, TODAY)
    assert [(one.host, one.check, one.severity) for one in every] == [
        ("gpu-1", "policy", "error"), ("gpu-2", "policy", "error"), ("gpu-2", "policy", "error"),
        ("gpu-1", "secure_boot", "error")], "what a refusal says is not said twice"
    assert every[0].fix == "Set 580"


@pytest.mark.parametrize("kind, host", [("input", "policy"), ("policy", "policy"), ("unexpected", "policy"),
                                        ("api", "cluster"), ("", "cluster")])
def test_other_errors_are_findings_too(kind: str, host: str) -> None:
    error = {"kind": kind, "message": "spec.driver.verison: no such key.", "hint": "Did you mean version?"}
    assert preflight.refused(error, {}, None, TODAY) == [
        Finding(host, "policy", "error", "spec.driver.verison: no such key", "Did you mean version?")]


def test_every_fault_of_a_document_is_a_finding() -> None:
    error = {"kind": "input", "message": "2 faults:...", "hint": "", "faults": ["a: unknown.", "b: no number."]}
    assert [one.text for one in preflight.refused(error, {}, None, TODAY)] == ["a: unknown", "b: no number"]


def test_what_gpu_policy_returned() -> None:
    said = [{"host": "gpu-1", "check": "x"}]
    bad = facts(**BARE, modules={"nouveau": True}, driver={"source": "container"})
    error = {"kind": "input", "message": "p.yml: no.", "hint": ""}
    assert preflight.of_result({"hosts": {}, "checks": said}, {"gpu-1": bad}) == said
    assert preflight.of_result({"error": {**error, "checks": said}}, {"gpu-1": bad}) == said
    every = preflight.of_result({"error": error, "msg": "p.yml: no."}, {"gpu-1": bad})
    assert [one["check"] for one in every] == ["policy", "foreign_driver", "nouveau"], "it failed before it had facts"
    assert preflight.error_of({"msg": "argument missing"})["message"] == "argument missing"
    assert [one["text"] for one in preflight.of_result({"msg": "argument missing"}, {})] == ["argument missing"]
    assert preflight.error_of({}) == {} == preflight.error_of({"hosts": {}})
    assert [one["check"] for one in preflight.of_result({}, {"gpu-1": bad})] == ["foreign_driver", "nouveau"]


def test_what_modules_say_of_their_own_accord() -> None:
    error = {"kind": "host", "message": "It is not ours to change.", "hint": "Let it be."}
    found = preflight.with_failures([{"check": "x"}], {"gpu-1": {"container_toolkit": error}, "gpu-2": {}})
    assert found == [{"host": "gpu-1", "check": "container_toolkit", "severity": "error",
                      "text": "It is not ours to change", "fix": "Let it be", "detail": ""}, {"check": "x"}]


def test_modules_that_do_not_run_for_the_same_reason_are_one_finding() -> None:
    first, later = ({"message": text, "hint": "Do it."} for text in ("No package.", "It failed before: No package."))
    found = preflight.with_failures([], {"gpu-1": {"driver": first, "dcgm": later, "cuda": later},
                                         "gpu-2": {"dcgm": later}})
    assert [(one["host"], one["check"]) for one in found] == [("gpu-1", "driver"), ("gpu-1", "dcgm"), ("gpu-2", "dcgm")]


def test_a_list_that_goes_on_keeps_its_ellipsis() -> None:
    error = {"kind": "input", "message": "", "hint": "", "faults": ["a: unknown key; allowed: b, c, ...", "b: wrong"]}
    assert [(one.text, one.fix) for one in preflight.refused(error, {})] == [
        ("a: unknown key", "Allowed: b, c, ..."), ("b: wrong", "")]


def test_a_fabric_manager_is_not_announced_for_a_host_that_is_left_out() -> None:
    told = [one.text for one in preflight.checks({**plan_of(), "hosts": {}}, {"gpu-1": facts()}, None, TODAY)
            if one.check == "fabric"]
    assert told and not told[0].startswith("the driver role installs")


def test_order_and_sums() -> None:
    known = facts(["26b9", "1eb8"], secure_boot=True, runtimes={"containerd": None})
    every = preflight.listed(preflight.checks(plan_of(), {"gpu-1": known, "gpu-2": known}, None, TODAY))
    assert [one["severity"] for one in every] == ["error", "error", "warning", "warning", "info", "info"]
    assert counts(every) == {"error": 1, "warning": 1, "info": 1}
    assert [hosts for hosts, _one in grouped(every)] == [["gpu-1", "gpu-2"]] * 3


def test_findings_do_not_depend_on_the_day_they_are_computed() -> None:
    plan = plan_of(driver={"placement": "host", "version": VERSION, "branch": 580})
    later = preflight.checks(plan, {"gpu-1": facts(**BARE)}, None, datetime.date(2028, 7, 1))
    assert [one.check for one in later] == ["driver_end_of_life"]


@pytest.mark.parametrize("release, severity", [("26.7.0", None), ("26.3.3", "info"), ("24.6.0", "warning")])
def test_life_of_the_release(release: str, severity: str | None) -> None:
    every = preflight.checks(plan_of(release, driver=ADOPTED), {}, None, TODAY)
    assert [(one.host, one.check, one.severity) for one in every] == (
        [("policy", "release", severity)] if severity else [])


# --- a cluster ---

LABEL = "feature.node.kubernetes.io/pci-10de.present"
GPU = {LABEL: "true"}


def node(**parts: Any) -> dict[str, Any]:
    return {"labels": dict(GPU), "annotations": {}, "os": {"id": "ubuntu", "version": "24.04"},
            "os_image": "Ubuntu 24.04.3 LTS", "kernel": "6.8.0-45-generic", "arch": "amd64", "runtime": "containerd",
            "runtime_version": "2.1.4", "ready": True, "gpu": True, "kubelet": "v1.35.2", "provider": None,
            "taints": [], **parts}


def in_cluster(nodes: dict[str, Any], nfd: str = "ours", version: str = "v1.35.2", hosts: dict[str, Any] | None = None,
               absent: tuple[str, ...] = (), on_host: tuple[str, ...] = (), common: dict[str, Any] | None = None,
               socket: str = "/run/containerd", image: str = "nvcr.io/nvidia/k8s/container-toolkit:v1.20.0",
               openshift: bool | None = None) -> list[tuple[str, str, str]]:
    """(host, check, severity) for a cluster whose plan delivers everything except the components in absent; those in
    on_host are on the host of Node a."""
    names = ("nfd", "driver", "container_toolkit", "device_plugin")
    parts: dict[str, Any] = {name: {"state": "absent" if name in absent else "present"} for name in names}
    parts["container_toolkit"].update(folders=[{"name": "containerd-socket", "path": socket}],
                                      images={"container_toolkit": image})
    plan = {"release": "26.7.0", "placement": dict.fromkeys(names, "cluster"), "hosts": {}, "cluster": {
        "components": parts, "nodes": {"by_host": {name: name for name in hosts or {}}},
        "deploy": {"on_host": {"a": list(on_host)}},
        "common": {"nri": False, "runtime": "containerd", "tolerations": [
            {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}], **(common or {})}}}
    seen = {"server": "https://x:6443", "version": version, "nodes": nodes, "nfd": nfd, "service_monitors": False,
            "openshift": openshift}
    every = preflight.checks(plan, hosts or {}, seen, TODAY)
    assert all(one.text and not one.text.endswith(".") and not one.fix.endswith(".") for one in every)
    return [(one.host, one.check, one.severity) for one in every]


def test_a_good_cluster() -> None:
    tainted = node(taints=[{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}])
    cordoned = node(taints=[{"key": "node.kubernetes.io/unschedulable", "value": None, "effect": "NoSchedule"}])
    assert in_cluster({"a": tainted, "b": cordoned, "c": node(gpu=False, labels={}, ready=False)}) == []


@pytest.mark.parametrize("nodes, version, openshift, warned", [
    ({"a": {}}, "v1.32.9", None, False),
    ({"a": {}, "b": {"os": {"id": "ubuntu", "version": "22.04"}}}, "v1.32.9", None, True),
    ({"a": {"os": None}}, "v1.31.2", None, True),
    ({}, "v1.31.2", None, True),
    ({"a": {"os": {"id": "rhcos", "version": "4.18"}}}, "v1.31.2", None, False),  # each Node is one of OpenShift
    ({"a": {}}, "v1.31.2", True, False),  # the API server is one of OpenShift
    ({"a": {}}, "v1.31.2", False, True),
])
def test_kubernetes_is_compared_for_the_systems_of_the_gpu_nodes(
        nodes: dict[str, Any], version: str, openshift: bool | None, warned: bool) -> None:
    """Release 26.7.0 supports Kubernetes 1.32 only on Ubuntu 24.04, and has a separate table for OpenShift."""
    cluster = {name: node(**parts) for name, parts in nodes.items()}
    results = in_cluster(cluster, version=version, openshift=openshift)
    assert (("cluster", "kubernetes", "warning") in results) is warned


def test_nfd() -> None:
    none = {"a": node(gpu=False, labels={})}
    assert in_cluster(none, nfd="none", absent=("nfd",)) == [("cluster", "nfd", "error")]
    assert in_cluster(none, nfd="none") == [("cluster", "nfd", "info")]
    assert in_cluster(none, nfd="foreign") == [("cluster", "nfd", "warning")]
    known = facts(**BARE, modules={"nouveau_denied": True})
    nodes = {"a": node(), "b": node(gpu=False, labels={})}
    assert in_cluster(nodes, hosts={"b": known}) == [("b", "nfd", "error")], "the host knows better"
    assert in_cluster(nodes, hosts={"a": known}) == []
    assert in_cluster(nodes, hosts={"a": None}) == [], "nobody needs to reach it"


@pytest.mark.parametrize("parts, expected", [
    ({"ready": False}, ("ready", "warning")),
    ({"taints": [{"key": "dedicated", "value": "ml", "effect": "NoExecute"}]}, ("taints", "warning")),
    ({"taints": [{"key": "dedicated", "value": "ml", "effect": "PreferNoSchedule"}]}, None),
    ({"taints": [{"key": "nvidia.com/gpu", "value": "", "effect": "NoExecute"}]}, ("taints", "warning")),
    ({"os": {"id": "ubuntu", "version": "20.04"}}, ("system", "warning")),
    ({"os": None}, None),
    ({"runtime_version": "1.6.20"}, ("containerd", "warning")),
    ({"runtime_version": ""}, None),
    ({"labels": {**GPU, "cloud.google.com/gke-accelerator": "nvidia-l4"}}, ("device_plugin", "warning")),
])
def test_nodes(parts: dict[str, Any], expected: tuple[str, str] | None) -> None:
    said = [one for one in in_cluster({"a": node(**parts)}) if one[1] != "profile"]
    assert said == ([("a", *expected)] if expected else [])


def test_the_plan_against_its_nodes() -> None:
    assert in_cluster({"a": node(), "b": node(runtime="crio")}) == [("cluster", "runtime", "warning")]
    assert in_cluster({"a": node()}, version="v1.29.0") == [("cluster", "kubernetes", "warning")]
    assert in_cluster({"a": node()}, image="x/container-toolkit:v1.17.5-ubuntu20.04") == [
        ("cluster", "toolkit", "warning")]
    for version, bad in (("1.7.29", True), ("1.7.30", False), ("2.0.5", True), ("2.1.4", False)):
        assert in_cluster({"a": node(runtime_version=version)}, common={"nri": True}) == (
            [("a", "nri", "error")] if bad else []), version


def test_profiles_of_nodes() -> None:
    k3s = {"a": node(kubelet="v1.35.2+k3s1")}
    assert in_cluster(k3s) == [("a", "profile", "error"), ("a", "profile", "info")], "the socket is elsewhere"
    assert in_cluster(k3s, socket="/run/k3s/containerd") == [("a", "profile", "info")]
    assert in_cluster(k3s, absent=("container_toolkit",)) == [("a", "profile", "info")]


def test_what_a_node_has_already_is_not_brought_once_more() -> None:
    old = {"a": node(os={"id": "debian", "version": "12"}, runtime_version="1.6.20")}
    assert in_cluster(old, on_host=("driver", "container_toolkit")) == [], "the host has its own"
    aks = {"a": node(labels={**GPU, "kubernetes.azure.com/agentpool": "gpu"})}
    assert in_cluster(aks) == [("a", "profile", "warning"), ("a", "profile", "warning"), ("a", "profile", "info")]
    assert in_cluster(aks, absent=("driver", "container_toolkit")) == [("a", "profile", "info")]
    talos = {"a": node(os=None, os_image="Talos (v1.13.2)")}
    assert in_cluster(talos) == [("a", "profile", "error"), ("a", "profile", "warning"), ("a", "profile", "info")]


def test_tolerations_as_kubernetes_matches_them() -> None:
    tainted = {"a": node(taints=[{"key": "dedicated", "value": "ml", "effect": "NoSchedule"}])}
    for toleration, fits in (
        ({"operator": "Exists"}, True), ({"key": "dedicated", "operator": "Exists"}, True),
        ({"key": "dedicated", "operator": "Equal", "value": "ml", "effect": "NoSchedule"}, True),
        ({"key": "dedicated", "value": "ml"}, True), ({"key": "dedicated", "value": "web"}, False),
        ({"key": "dedicated", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "x", "value": "ml"}, False),
    ):
        assert bool(in_cluster(tainted, common={"tolerations": [toleration]})) is not fits, toleration


def test_a_cluster_without_a_plan() -> None:
    seen = {"server": "x", "version": "v1.35.2", "nodes": {"a": node(ready=False)}, "nfd": "ours",
            "service_monitors": False}
    error = {"kind": "policy", "message": "m", "hint": "", "refusals": [
        {"hosts": ["cluster"], "reason": "r", "remedy": "s"}]}
    assert [(one.host, one.check) for one in preflight.refused(error, {}, seen, TODAY)] == [
        ("cluster", "policy"), ("a", "ready")]


def test_the_labels_of_nodes_are_previewed_by_what_a_run_writes_them() -> None:
    """The options are the same: without the reports of hosts, a preview would miss Nodes that only these describe."""
    root = pathlib.Path(__file__).parents[3]
    preview, *runs = ({key: str(value).replace("preflight_plan", "gpu_plan") for key, value in options.items()}
                      for path in ("roles/preflight/tasks/findings.yml", "playbooks/site.yml",
                                   "roles/preflight/tasks/rollout.yml")
                      for options in labellings(yaml.safe_load((root / path).read_text())))
    assert "hosts" in preview and len(runs) == 2
    for options in runs:
        assert preview == {key: value for key, value in options.items() if key != "wait_for_nfd"}


def labellings(tasks: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The options of gpu_labels in plays and tasks."""
    for task in tasks:
        if "gpuops.nvidia.gpu_labels" in task:
            yield task["gpuops.nvidia.gpu_labels"]
        yield from labellings(task.get("tasks") or task.get("block") or [])


def test_the_modules_are_asked_with_the_plan() -> None:
    """The components that the roles deliver, and the level, come from gpu_plan, which only some playbooks set."""
    root = pathlib.Path(__file__).resolve().parents[3]
    asked = yaml.safe_load((root / "roles/preflight/tasks/preview.yml").read_text())
    assert len(asked) == 4
    for task in asked:
        assert task["vars"]["gpu_plan"] == "{{ preflight_plan }}", task["name"]
