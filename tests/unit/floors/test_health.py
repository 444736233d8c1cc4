# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The health of GPUs as NVML tells it, through pynvml on the library of the lab; its shape is that of the answers."""

from __future__ import annotations

import shutil
import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.health import health_snapshot
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory import answer_shapes

from lab.nvml.build import build
from tests.conformance.conftest import Machine

pytestmark = pytest.mark.skipif(not (shutil.which("make") and shutil.which("cc")), reason="it needs a C compiler")
Make = t.Callable[..., Machine]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    def make(*boards: str, driver: str = "595.91.07") -> Machine:
        made = Machine(build(), tmp_path / "state")
        monkeypatch.setenv("GPUSIM_STATE", str(made.state))
        made.sim("init", "--driver", driver, *boards)
        return made

    return make


def health(number: int = 0) -> dict[str, t.Any]:
    found = health_snapshot()["gpus"][number]["health"]
    assert answer_shapes._HEALTH.fault(found) is None
    return dict(found)


def test_healthy_gpus(machine: Make) -> None:
    machine("a100-80=1", "t4=1", "h100-80=1")
    by_model = {gpu["model"]: gpu["health"] for gpu in health_snapshot()["gpus"]}
    assert by_model["NVIDIA A100-SXM4-80GB"] == {
        "ecc": {"volatile": 0, "aggregate": 0}, "retired_pages_pending": None,
        "remapped_rows": {"correctable": 0, "uncorrectable": 0, "pending": False, "failed": False},
        "nvlink": {"links": 12, "down": []}, "idle": True, "slowdown": [], "fabric": None, "recovery": "none",
        "pcie": {"width": 16, "width_max": 16, "generation": 1, "generation_max": 4}}
    turing, hopper = by_model["Tesla T4"], by_model["NVIDIA H100 80GB HBM3"]
    assert (turing["retired_pages_pending"], turing["remapped_rows"], turing["nvlink"]) == (False, None, None)
    assert (hopper["nvlink"]["links"], hopper["fabric"]) == (18, {"state": "completed", "status": 0})


@pytest.mark.parametrize(("model", "fault", "value", "changed"), [
    ("a100-80", "ecc-errors", 7, {"ecc": {"volatile": 7, "aggregate": 7}}),
    ("a100-80", "ecc-aggregate", 7, {"ecc": {"volatile": 0, "aggregate": 7}}),
    ("t4", "pages-pending", 0, {"retired_pages_pending": True}),
    ("a100-80", "rows-remapped", 3, {"remapped_rows": {"correctable": 0, "uncorrectable": 3, "pending": False,
                                                       "failed": False}}),
    ("a100-80", "remap-pending", 0, {"remapped_rows": {"correctable": 0, "uncorrectable": 0, "pending": True,
                                                       "failed": False}}),
    ("l40s", "remap-failed", 0, {"remapped_rows": {"correctable": 0, "uncorrectable": 0, "pending": False,
                                                   "failed": True}}),
    ("v100", "nvlink-down", 5, {"nvlink": {"links": 6, "down": [5]}}),
    ("h100-80", "pcie-width", 8, {"pcie": {"width": 8, "width_max": 16, "generation": 1, "generation_max": 5}}),
    ("h100-80", "slowdown", 64 + 8, {"slowdown": ["hw", "hw_thermal"]}),
    ("h100-80", "slowdown", 128 + 32 + 4, {"slowdown": ["sw_thermal", "hw_power_brake"]}),
    ("h100-80", "fabric-failed", 999, {"fabric": {"state": "completed", "status": 999}}),
    ("h100-80", "recovery", 4, {"recovery": "drain_and_reset"}), ("h100-80", "recovery", 77, {"recovery": None}),
])
def test_faults(machine: Make, model: str, fault: str, value: int, changed: dict[str, t.Any]) -> None:
    """Each shows on its GPU, and nothing else changes."""
    host = machine(f"{model}=2")
    before = health()
    host.sim("fault", "set", fault, "0", str(value))
    assert health() == {**before, **changed} and health(1) == before
    host.sim("fault", "clear", fault, "0")
    assert health() == before


def test_a_busy_gpu_does_not_reduce_its_link(machine: Make) -> None:
    host = machine("l40s=1")
    host.sim("client", "add", "python3")
    assert (health()["idle"], health()["pcie"]["generation"]) == (False, 4)
    host.sim("fault", "set", "pcie-generation", "0", "3")
    assert health()["pcie"]["generation"] == 3


def test_what_a_reset_heals(machine: Make) -> None:
    host = machine("a100-80=1")
    for fault in ("remap-pending", "remap-failed"):
        host.sim("fault", "set", fault, "0")
    host.sim("fault", "set", "recovery", "0", "1")
    assert (health()["recovery"], health()["remapped_rows"]["pending"]) == ("reset", True)
    host.sim("reset", "0")
    assert (health()["recovery"], health()["remapped_rows"]["pending"]) == ("none", False)
    assert health()["remapped_rows"]["failed"] is True


def test_older_drivers_and_mig(machine: Make) -> None:
    """R535 knows no recovery action. NVML does not tell remapped rows while there are MIG instances, and the NVLinks of
    an A100 in MIG mode are off."""
    host = machine("a100-80=1", driver="535.309.01")
    assert health()["recovery"] is None and health()["remapped_rows"] is not None
    assert host.run("nvidia-smi", "-i", "0", "-mig", "1").returncode == 0
    assert host.run("nvidia-smi", "mig", "-i", "0", "-cgi", "19").returncode == 0
    found = health()
    assert found["remapped_rows"] is None and found["nvlink"] == {"links": 12, "down": list(range(12))}


def test_a_lost_gpu_has_no_health(machine: Make) -> None:
    host = machine("a100-80=2")
    host.sim("fault", "set", "gpu-lost", "1")
    assert [gpu["health"] is None for gpu in health_snapshot()["gpus"]] == [False, True]


def test_few_calls(machine: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One call for each NVLink, and no more than one for each other fact."""
    machine("h100-80=8")
    monkeypatch.setenv("GPUSIM_TRACE", str(tmp_path / "trace"))
    health_snapshot()
    calls = (tmp_path / "trace").read_text().split()
    assert calls.count("nvmlDeviceGetNvLinkState") == 8 * 19 and calls.count("nvmlDeviceGetFieldValues") == 8
    assert len(calls) < 8 * 50
