# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The findings about the health of GPUs, and the meanings of Xids."""

from __future__ import annotations

import copy
import datetime
from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import xids
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning import preflight
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning.findings import counts, grouped
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning.preflight_health import HEALTH_CHECKS, of_host
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import monitoring
from ansible_collections.gpuops.nvidia.tests.unit.simulated.host_facts import driven, facts

VERSION = "595.91.07"
MANAGER = {"pid": 1, "name": "nv-fabricmanage", "gpu": None, "instance": None, "unit": None, "container": None}
UNIT = "nvidia-fabricmanager.service"
WELL = {"ecc": {"volatile": 0, "aggregate": 0}, "retired_pages_pending": None,
        "remapped_rows": {"correctable": 1, "uncorrectable": 1, "pending": False, "failed": False},
        "nvlink": {"links": 12, "down": []}, "idle": True, "slowdown": [], "fabric": None, "recovery": "none",
        "pcie": {"width": 16, "width_max": 16, "generation": 1, "generation_max": 4}}
# What an older driver, or a GPU that does not know better, says.
UNKNOWN = {"ecc": {"volatile": None, "aggregate": None}, "retired_pages_pending": None, "remapped_rows": None,
           "nvlink": None, "idle": None, "slowdown": None, "fabric": None, "recovery": None,
           "pcie": dict.fromkeys(("width", "width_max", "generation", "generation_max"))}
LOST = {"error": "The GPU does not answer: GPU_IS_LOST."}
UNLISTED = {"error": "The GPU does not answer: NVML does not list it."}
MIG = {"enabled": True, "pending": True, "instances": []}


def host(*ill: dict[str, Any], models: tuple[str, ...] = ("20b2",) * 8, well: dict[str, Any] | None = None,
         **more: Any) -> dict[str, Any]:
    """A host with a driver. ill: what differs from a healthy GPU, for the first GPUs; error and mig are facts of the
    GPU itself. well: the health of the others."""
    made = driven(facts(models), VERSION)
    for gpu, different in zip(made["gpus"], [*ill, *[{}] * len(made["gpus"])]):
        of_gpu = {key: different[key] for key in ("error", "mig") if key in different}
        health = {**copy.deepcopy(well or WELL), **{key: different[key] for key in different if key not in of_gpu}}
        gpu.update(of_gpu, health=None if "error" in of_gpu else health)
    made.update(more)
    return made


def found(known: dict[str, Any]) -> list[tuple[str, str, str]]:
    """(check, severity, detail) of all findings."""
    every = list(of_host("gpu-1", known))
    for one in every:
        assert one.host == "gpu-1" and one.text and not one.text.endswith(".") and not one.fix.endswith(".")
    return [(one.check, one.severity, one.detail) for one in every]


def rows(**different: Any) -> dict[str, Any]:
    return {"remapped_rows": {**WELL["remapped_rows"], **different}}


def link(**different: Any) -> dict[str, Any]:
    return {"pcie": {**WELL["pcie"], **different}}


def down(*links: int) -> dict[str, Any]:
    return {"nvlink": {"links": 12, "down": list(links)}}


def xid(number: int, pci: str = "0000:07:00.0", count: int = 1) -> dict[str, Any]:
    return {"pci": pci, "xid": number, "count": count, "first": "2026-11-27T20:00:00Z", "last": "2026-11-27T20:01:02Z"}


FIRST, SECOND = "0000:07:00.0", "0000:0f:00.0"
PCIE = ("20f3",) * 2  # boards without switches
SINCE = "until 2026-11-27T20:01:02Z"
CASES: dict[str, tuple[dict[str, Any], list[tuple[str, str, str]]]] = {
    "healthy": (host(), []),
    "unknown": (host(well=UNKNOWN), []),
    "no driver": (facts(), []),
    "a Node, whose facts do not say it": ({**facts(), "xids": None}, []),
    "lost": (host({}, LOST), [("gpu_lost", "error", SECOND)]),
    "not listed": (host(UNLISTED, UNLISTED), [("gpu_lost", "error", f"{FIRST}, {SECOND}")]),
    "another error": (host({"error": "The GPU does not answer: RESET_REQUIRED."}), []),
    "gone from the bus": (host(xids=[xid(79, "0000:c3:00.0")]), [
        ("gpu_lost", "error", "0000:c3:00.0"), ("xid", "warning", f"0000:c3:00.0, 1 time {SINCE}")]),
    "reset recommended": (host({"recovery": "reset"}), [("gpu_recovery", "error", FIRST)]),
    "reboot recommended": (host({"recovery": "reboot"}), [("gpu_recovery", "error", FIRST)]),
    "Xid of a program": (host(xids=[xid(31, count=3)]), [("xid", "info", f"{FIRST}, 3 times {SINCE}")]),
    "Xid of the GPU": (host(xids=[xid(95)]), [("xid", "warning", f"{FIRST}, 1 time {SINCE}")]),
    "unknown Xid": (host(xids=[xid(9999)]), [("xid", "warning", f"{FIRST}, 1 time {SINCE}")]),
    "remapping failed": (host(rows(failed=True)), [("ecc", "warning", FIRST)]),
    "remapping pending": (host(rows(pending=True), rows(pending=True)), [("ecc", "warning", f"{FIRST}, {SECOND}")]),
    "page pending": (host({"retired_pages_pending": True}), [("ecc", "warning", FIRST)]),
    "errors now": (host({"ecc": {"volatile": 2, "aggregate": 9}}), [("ecc", "warning", f"{FIRST}, 2 errors")]),
    "errors before": (host({"ecc": {"volatile": 0, "aggregate": 9}}), [("ecc", "info", FIRST)]),
    "link down": (host(down(3, 4)), [("nvlink", "warning", f"{FIRST}, 2 links of 12")]),
    "links of one GPU down": (host(down(*range(12))), [("nvlink", "warning", f"{FIRST}, 12 links of 12")]),
    "all links down, no fabric manager": (host(*[down(*range(12))] * 8), []),
    "links down in MIG mode": (host({**down(*range(12)), "mig": MIG}), []),
    "bridges": (host(down(*range(4, 12)), down(*range(4, 12)), models=PCIE), []),
    "bridge on two of four": (host(down(*range(12)), models=PCIE), []),
    "link of a bridge down": (host(down(3, *range(4, 12)), models=PCIE, well={**WELL, **down(*range(4, 12))}),
                              [("nvlink", "warning", f"{FIRST}, 9 links of 12")]),
    "half the lanes, idle": (host(link(width=8)), [("pcie_link", "info", FIRST)]),
    "half the lanes, busy": (host({**link(width=8, generation=4), "idle": False}), [("pcie_link", "warning", FIRST)]),
    "half the lanes": (host({**link(width=8), "idle": None}), [("pcie_link", "warning", FIRST)]),
    "low generation, busy": (host({**link(generation=1), "idle": False}), [("pcie_link", "warning", FIRST)]),
    "low generation": (host({**link(generation=1), "idle": None}), []),
    "hot": (host({"slowdown": ["hw", "hw_thermal"]}), [("slowdown", "warning", FIRST)]),
    "hot and without power": (host({"slowdown": ["hw_power_brake", "sw_thermal"]}), [
        ("slowdown", "warning", FIRST), ("slowdown", "warning", FIRST)]),
    "a change of clocks": (host({"slowdown": ["hw"]}), []),
    "not registered": (host({"fabric": {"state": "not_started", "status": 0}}, clients=[MANAGER]),
                       [("fabric", "error", FIRST)]),
    "registers": (host({"fabric": {"state": "in_progress", "status": 0}}, clients=[MANAGER]),
                  [("fabric", "warning", FIRST)]),
    "registration failed": (host({"fabric": {"state": "completed", "status": 999}}, clients=[MANAGER]),
                            [("fabric", "error", FIRST)]),
    "registered": (host({"fabric": {"state": "completed", "status": 0}}, clients=[MANAGER]), []),
    "not registered, no manager": (host({"fabric": {"state": "not_started", "status": 0}}), []),
    "not registered, rack": (host({"fabric": {"state": "not_started", "status": 0}}, models=("2941",) * 4),
                             [("fabric", "error", FIRST)]),
}


@pytest.mark.parametrize("case", CASES)
def test_health(case: str) -> None:
    known, expected = CASES[case]
    assert found(known) == expected


def test_every_check_has_a_case() -> None:
    assert set(HEALTH_CHECKS) == {check for _known, expected in CASES.values() for check, _severity, _gpus in expected}


def test_a_failed_fabric_manager_is_said_once() -> None:
    known = host(driver={**host()["driver"], "services": {UNIT: {"state": "failed", "enabled": "enabled"}}})
    assert found(known) == [("fabric", "warning", "")]
    plan = {"release": "26.7.0", "placement": {}, "cluster": None, "hosts": {}}
    every = preflight.checks({**plan, "placement": {"driver": "none"}}, {"gpu-1": known}, None,
                             datetime.date(2026, 11, 21))
    assert [one.text for one in every if one.check == "fabric"] == [
        f"{UNIT} has failed: CUDA fails with 'system not yet initialized' (802)"]


def test_hosts_with_the_same_problem_share_a_row() -> None:
    """Which GPU it is, how often and when differ."""
    sick = {"gpu-1": host(xids=[xid(79)]), "gpu-2": host(xids=[xid(79, SECOND, 5)]), "gpu-3": host(), "gpu-4": None}
    said = preflight.health(sick)
    assert counts(said) == {"error": 0, "warning": 1, "info": 0}
    (hosts, one), = grouped(said)
    assert hosts == [f"gpu-1 ({FIRST}, 1 time {SINCE})", f"gpu-2 ({SECOND}, 5 times {SINCE})"]
    assert one["text"] == "Xid 79 since the boot: the GPU has fallen off the bus" and "eboot" in one["fix"]


def test_errors_are_first() -> None:
    said = preflight.health({"gpu-1": host({}, LOST, xids=[xid(31)]), "gpu-2": host(rows(pending=True))})
    assert [one["severity"] for one in said] == ["error", "warning", "info"]


def test_xids_have_a_meaning() -> None:
    assert len(xids.MEANINGS) > 90 and max(xids.MEANINGS) < 200
    for number, meaning in xids.MEANINGS.items():
        assert meaning.text and meaning.text[0].islower() and not meaning.text.endswith("."), number
        assert meaning.action.severity in ("info", "warning") and not meaning.action.fix.endswith(".")
    # No number is explained twice.
    assert sum(len(list(xids._numbers(numbers))) for numbers, _action, _text in xids._ROWS) == len(xids.MEANINGS)


@pytest.mark.parametrize(("number", "severity", "words"), [
    (13, "info", "Restart the program"), (31, "info", "Restart the program"), (43, "info", "no action"),
    (48, "warning", "gpu-reset"), (63, "info", "no action"), (64, "warning", "gpu-reset"), (74, "warning", "nvlink"),
    (79, "warning", "Reboot"), (92, "warning", "field diagnostics"), (94, "warning", "Restart the program; when no"),
    (32, "warning", "PCIe link"),
    (121, "info", "was corrected"), (151, "warning", "virtual machine"),
    (95, "warning", "gpu-reset"), (119, "warning", "gpu-reset"), (140, "warning", "gpu-reset"),
    (145, "warning", "gpu_recovery"), (154, "info", "gpu_recovery"), (54, "warning", "cables"),
    (4, "warning", "Look it up")])
def test_recommended_actions(number: int, severity: str, words: str) -> None:
    """As NVIDIA's catalog says it."""
    action = xids.meaning_of(number).action
    assert action.severity == severity and words in action.fix


def test_alerts_and_findings_agree() -> None:
    """The default of the alert about fatal Xids has only Xids after which the GPU needs a reset or a reboot."""
    fatal = monitoring.THRESHOLDS["fatal_xids"]
    assert isinstance(fatal, list) and {xids.meaning_of(number).action.severity for number in fatal} == {"warning"}
