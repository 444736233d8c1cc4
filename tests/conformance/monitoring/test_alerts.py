# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""When each alert fires and when it does not: cases for promtool, with one sample per minute."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from lab.tools import prometheus_programs
from tests.conformance.monitoring.test_queries import rendered, rules

GPU = 'gpu="0", UUID="GPU-a", modelName="H100", hostname="n1"'
OTHER = GPU.replace("GPU-a", "GPU-b").replace('gpu="0"', 'gpu="1"')
INSTANCE = f'{GPU}, GPU_I_ID="1", GPU_I_PROFILE="1g.10gb"'
POD = 'exported_namespace="team", exported_pod="job"'
UP = 'up{job="nvidia-dcgm-exporter", instance="n1"}'
TEMPERATURE = f'DCGM_FI_DEV_GPU_TEMP{{{GPU}, instance="n1"}}'


def gpu(metric: str, labels: str = GPU) -> str:
    return f"DCGM_FI_{metric}{{{labels}}}"


# alert, series with their values, minute, how many fire
CASES: list[tuple[str, dict[str, str], int, int]] = [
    ("GpuExporterDown", {UP: "1x3 0x20"}, 12, 1),
    ("GpuExporterDown", {UP: "1x3 0x2 1x20"}, 12, 0),
    ("GpuExporterDown", {UP.replace("nvidia-dcgm-exporter", "node"): "0x20"}, 12, 0),
    ("GpuExporterSilent", {UP: "1x30"}, 15, 1),
    ("GpuExporterSilent", {UP: "1x30"}, 5, 0),
    ("GpuExporterSilent", {UP: "1x30", TEMPERATURE: "60x30"}, 15, 0),
    ("GpuExporterSilent", {UP: "0x30"}, 15, 0),
    ("GpuLost", {TEMPERATURE: "60x10", gpu("DEV_GPU_TEMP", OTHER): "60x60"}, 40, 1),
    ("GpuLost", {TEMPERATURE: "60x60", gpu("DEV_GPU_TEMP", OTHER): "60x60"}, 40, 0),
    # the whole node is away: that is the exporter's alert
    ("GpuLost", {TEMPERATURE: "60x10", gpu("DEV_GPU_TEMP", OTHER): "60x10"}, 40, 0),
    # long ago: taken out
    ("GpuLost", {TEMPERATURE: "60x10", gpu("DEV_GPU_TEMP", OTHER): "60x500"}, 450, 0),
    # another Pod, another series, the same GPU
    ("GpuLost", {gpu("DEV_GPU_TEMP", f"{GPU}, {POD}"): "60x10", gpu("DEV_GPU_TEMP"): "_x10 60x50"}, 40, 0),
    ("GpuHot", {TEMPERATURE: "60x3 86x20"}, 12, 1),
    ("GpuHot", {TEMPERATURE: "85x20"}, 12, 0),
    ("GpuHot", {TEMPERATURE: "86x3 60x20"}, 12, 0),
    # instances of one GPU are one alert
    ("GpuHot", {gpu("DEV_GPU_TEMP", INSTANCE): "90x20",
                gpu("DEV_GPU_TEMP", INSTANCE.replace('"1"', '"2"')): "90x20"}, 12, 1),
    ("GpuMemoryHot", {gpu("DEV_MEMORY_TEMP"): "96x20"}, 12, 1),
    ("GpuMemoryHot", {gpu("DEV_MEMORY_TEMP"): "95x20"}, 12, 0),
    ("GpuPowerHigh", {gpu("DEV_POWER_USAGE"): "601x30"}, 20, 1),
    ("GpuPowerHigh", {gpu("DEV_POWER_USAGE"): "600x30"}, 20, 0),
    ("GpuPowerHigh", {gpu("DEV_POWER_USAGE"): "601x30"}, 10, 0),
    ("GpuXidFatal", {gpu("DEV_XID_ERRORS"): "0x3 79x20"}, 5, 1),
    ("GpuXidFatal", {gpu("DEV_XID_ERRORS"): "0x3 48x200"}, 180, 1),
    ("GpuXidFatal", {gpu("DEV_XID_ERRORS"): "0x3 43x20"}, 5, 0),
    ("GpuXid", {gpu("DEV_XID_ERRORS"): "0x3 43x20"}, 8, 1),
    ("GpuXid", {gpu("DEV_XID_ERRORS"): "0x3 43x60"}, 30, 0),
    ("GpuXid", {gpu("DEV_XID_ERRORS"): "43x3 0x20"}, 8, 0),
    # the Pod ends in the same minute
    ("GpuXid", {gpu("DEV_XID_ERRORS", f"{GPU}, {POD}"): "0x3 stale", gpu("DEV_XID_ERRORS"): "_x4 31x20"}, 8, 1),
    ("GpuRowRemapFailed", {gpu("DEV_ROW_REMAP_FAILURE"): "0x3 1x10"}, 5, 1),
    ("GpuRowRemapFailed", {gpu("DEV_ROW_REMAP_FAILURE"): "0x10"}, 5, 0),
    ("GpuRowsRemapped", {gpu("DEV_UNCORRECTABLE_REMAPPED_ROWS"): "1x10 2x60"}, 30, 1),
    ("GpuRowsRemapped", {gpu("DEV_UNCORRECTABLE_REMAPPED_ROWS"): "2x100"}, 90, 0),
    ("GpuRowsRemapped", {gpu("DEV_CORRECTABLE_REMAPPED_ROWS"): "1x10 2x60"}, 30, 0),
    ("GpuIdle", {gpu("DEV_GPU_UTIL", f"{GPU}, {POD}"): "90x10 0x200"}, 190, 1),
    ("GpuIdle", {gpu("DEV_GPU_UTIL", f"{GPU}, {POD}"): "0x200"}, 60, 0),
    ("GpuIdle", {gpu("DEV_GPU_UTIL", f"{GPU}, {POD}"): "0x100 50 0x100"}, 190, 0),
    ("GpuIdle", {gpu("DEV_GPU_UTIL"): "0x200"}, 190, 0),
    ("MigIdle", {gpu("PROF_GR_ENGINE_ACTIVE", f"{INSTANCE}, {POD}"): "0.01x200"}, 190, 1),
    ("MigIdle", {gpu("PROF_GR_ENGINE_ACTIVE", f"{INSTANCE}, {POD}"): "0.5x200"}, 190, 0),
    ("MigIdle", {gpu("PROF_GR_ENGINE_ACTIVE", INSTANCE): "0x200"}, 190, 0),
    ("MigIdle", {gpu("PROF_GR_ENGINE_ACTIVE", f"{GPU}, {POD}"): "0x200"}, 190, 0),
    ("GpuEccDoubleBit", {gpu("DEV_ECC_DBE_VOL_TOTAL"): "0x10 1x60"}, 30, 1),
    ("GpuEccDoubleBit", {gpu("DEV_ECC_DBE_VOL_TOTAL"): "1x100"}, 90, 0),
    # 20 % of a minute is 1.2e10 ns
    ("GpuThrottledByHeat", {gpu("DEV_THERMAL_VIOLATION"): "0+12000000000x30"}, 25, 1),
    ("GpuThrottledByHeat", {gpu("DEV_THERMAL_VIOLATION"): "0+3000000000x30"}, 25, 0),
    ("GpuThrottledByPower", {gpu("DEV_POWER_VIOLATION"): "0+12000000000x60"}, 45, 1),
    ("GpuThrottledByPower", {gpu("DEV_POWER_VIOLATION"): "0+12000000000x60"}, 20, 0),
]


def promtool(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([prometheus_programs() / "promtool", *words], cwd=folder, capture_output=True, text=True,
                          check=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(rendered()["PrometheusRule/nvidia-dcgm-exporter"]["spec"]))
    return tmp_path


def played(cases: list[tuple[str, dict[str, str], int, int]]) -> dict[str, Any]:
    """Writes a file for promtool test rules."""
    return {"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": [{
        "interval": "1m", "input_series": [{"series": name, "values": told} for name, told in series.items()],
        "promql_expr_test": [{
            "expr": f'count(ALERTS{{alertname="{alert}", alertstate="firing"}}) or vector(0)',
            "eval_time": f"{minute}m", "exp_samples": [{"labels": "{}", "value": count}]}],
    } for alert, series, minute, count in cases]}


def test_rules_are_well_formed(folder: Path) -> None:
    done = promtool(folder, "check", "rules", "rules.yml")
    assert done.returncode == 0 and "15 rules found" in done.stdout, done.stdout + done.stderr


def test_every_alert_fires_and_does_not() -> None:
    for count in (0, 1):
        assert {case[0] for case in CASES if case[3] == count} == set(rules()), count


def test_cases(folder: Path) -> None:
    (folder / "cases.yml").write_text(yaml.safe_dump(played(CASES)))
    done = promtool(folder, "test", "rules", "cases.yml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_wrong_case_is_found(folder: Path) -> None:
    """Proves that promtool really compares."""
    alert, series, minute, count = CASES[0]
    (folder / "cases.yml").write_text(yaml.safe_dump(played([(alert, series, minute, 1 - count)])))
    assert promtool(folder, "test", "rules", "cases.yml").returncode == 1
