# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bad input: one clear error each, before anything is changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.integration import user
from tests.integration.conftest import LabHosts

HOST = "gpu-a2"
POLICY = {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": {"name": "cluster-policy"}}
CASES: dict[str, tuple[dict[str, Any], str]] = {
    "unknown key": ({"gpu_policy": {**POLICY, "spec": {"driver": {"verison": "595.91.07"}}}}, "spec.driver.verison"),
    "wrong type": ({"gpu_policy": {**POLICY, "spec": {"driver": {"enabled": "perhaps"}}}}, "spec.driver.enabled"),
    "unknown release": ({"gpu_release": "12.1.0"}, "12.1.0"),
    "wrong fingerprint": ({"driver_repository_fingerprint": "A" * 40}, "A" * 40),
    "unreachable repository": ({"driver_repository_url": "http://127.0.0.1:9/none"}, "127.0.0.1:9"),
    "version not there": ({"driver_version": "595.1.1"}, "595.1.1"),
    "profile the GPU lacks": ({"mig_manager_selected": "all-1g.18gb"}, "1g.18gb"),
    "unknown disruption": ({"gpu_disruption": "always"}, "always"),
    "wrong toolkit fingerprint": ({"container_toolkit_repository_fingerprint": "B" * 40}, "B" * 40),
}


@pytest.fixture(scope="module")
def before(lab: LabHosts) -> list[str]:
    """A fresh host; its snapshot."""
    lab("reset", HOST)
    return lab.snapshot(HOST)


@pytest.mark.parametrize("case", CASES)
def test_one_clear_error_and_nothing_changed(lab: LabHosts, before: list[str], case: str) -> None:
    variables, expected = CASES[case]
    run = user.playbook("site", lab.hosts, "--limit", HOST, **variables)
    assert run.rc != 0, run.output
    assert len(run.errors()) == 1, run.errors()
    assert expected in run.errors()[0]
    assert "Traceback" not in run.output and "MODULE FAILURE" not in run.output
    assert lab.snapshot(HOST) == before


def test_a_host_without_a_gpu(lab: LabHosts, before: list[str]) -> None:
    lab("fault", HOST, "no-gpus", "on")
    run = user.playbook("site", lab.hosts, "--limit", HOST)
    lab("fault", HOST, "no-gpus", "off")
    assert run.rc != 0 and len(run.errors()) == 1, run.output
    assert HOST in run.errors()[0] and "GPU" in run.errors()[0]
    assert lab.snapshot(HOST) == before


def test_preflight_names_everything_that_stands_in_the_way(lab: LabHosts, before: list[str], tmp_path: Path) -> None:
    document = tmp_path / "preflight.json"
    lab("fault", HOST, "nouveau", "on")
    run = user.playbook("preflight", lab.hosts, "--limit", HOST, gpu_report_json=str(document), driver_branch=470,
                        driver_kernel_module_type="open")
    lab("fault", HOST, "nouveau", "off")
    report = json.loads(document.read_text())
    assert run.rc != 0 and "Traceback" not in run.output, run.output
    assert [sorted(one["id"] for one in refusal["constraints"]) for refusal in report["refusals"]] == [
        ["branch.flavours", "driver.kernelModuleType", "driver.version"]]
    found = {(one["severity"], one["check"]) for one in report["findings"] if HOST in str(one["host"])}
    assert report["counts"]["error"] > 0 and {check for _severity, check in found} >= {"nouveau"}, found
    assert "nouveau" in run.output and lab.snapshot(HOST) == before


def test_an_unreachable_host(lab: LabHosts, before: list[str]) -> None:
    run = user.playbook("site", lab.hosts, "--limit", f"{HOST},gpu-l1", "-e",
                        '{"ansible_ssh_common_args": "-o ConnectTimeout=3"}', ansible_port=9)
    assert run.rc != 0
    assert any("unreachable" in error.lower() or "connect" in error.lower() for error in run.errors()), run.output
    assert lab.snapshot(HOST) == before
