# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""gpu_diagnosis as a task: what it reads from the run and the cluster, prints, returns and writes."""

from __future__ import annotations

import gzip
import io
import json
import pathlib
import tarfile
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.action import gpu_diagnosis
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._actions import output_file
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube import client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.errors import ClusterError
from ansible_collections.gpuops.nvidia.tests.unit.actions.test_gpu_report import run
from ansible_collections.gpuops.nvidia.tests.unit.reports.test_report import fleet
from ansible_collections.gpuops.nvidia.tests.unit.simulated.acting import act

PLAN = {**fleet()["plan"], "checks": []}
LOGGED = {"evidence": {"kernel.log": "NVRM: token=abc", "../x": "y"},
          "dcgm": {"ran": True, "passed": False, "why": "W"},
          "explained": [{"message": "m", "meaning": "The headers are missing.", "action": "Install them."}]}


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    for module in (gpu_diagnosis, output_file):
        monkeypatch.setattr(module, "display", SimpleNamespace(display=lines.append))
    return lines


def variables(**more: Any) -> dict[str, Any]:
    """The variables of the run, with the evidence of one host."""
    found = run()
    found["hostvars"].raw_get("gpu01")["preflight_evidence"] = LOGGED
    return found


def texts(path: pathlib.Path) -> dict[str, str]:
    """The texts of an archive by path."""
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(path.read_bytes()))) as archive:
        return {one.name: (archive.extractfile(one) or io.BytesIO()).read().decode() for one in archive.getmembers()}


def test_the_diagnoses_and_the_archive(printed: list[str], tmp_path: pathlib.Path) -> None:
    path = tmp_path / "support.tar.gz"
    found = act(gpu_diagnosis.ActionModule, {"plan": PLAN, "bundle_path": str(path)}, variables())
    assert not found.get("failed"), found
    first = next(one for one in found["diagnoses"] if one["machines"] == ["gpu01"])
    assert first["state"] == "failed" and first["causes"][0]["cause"] == "dcgmi diag reports: W"
    assert "The headers are missing" in [one["cause"] for one in first["causes"]]
    assert "Diagnosis: " in printed[0] and printed[1] == f"Support bundle: {path}" and found["changed"]
    content = texts(path)
    assert content["gpu-support/hosts/gpu01/kernel.log"] == "NVRM: token=********"
    assert content["gpu-support/hosts/gpu01/_x"] == "y" and "gpu-support/hosts/gpu04/facts.json" in content
    assert json.loads(content["gpu-support/report.json"])["schema"] == 1
    assert not [name for name in content if "/cluster/" in name]
    again = act(gpu_diagnosis.ActionModule, {"plan": PLAN, "bundle_path": str(path)}, variables())
    assert not again["changed"] and path.stat().st_mode & 0o777 == 0o600


def test_check_mode_writes_no_archive(printed: list[str], tmp_path: pathlib.Path) -> None:
    path = tmp_path / "support.tar.gz"
    found = act(gpu_diagnosis.ActionModule, {"plan": None, "bundle_path": str(path)}, variables(), check=True)
    assert found["changed"] and not path.exists() and "not written in check mode" in printed[1]


class Answers:
    """A cluster whose events cannot be read."""

    def __init__(self, *_where: Any) -> None:
        pass

    def list(self, _version: str, kind: str, namespace: str | None) -> list[dict[str, Any]]:
        assert namespace == (None if kind == "Node" else "gpu-operator")
        if kind == "Event":
            raise ClusterError("The events cannot be read.", "", verb="list", status=403)
        return [{"metadata": {"name": kind, "managedFields": [{"manager": "m"}]},
                 "spec": {"containers": [{"name": "c", "env": [{"name": "A", "value": "s3cret"}]}]}}]


def test_the_cluster_is_in_the_archive(printed: list[str], tmp_path: pathlib.Path,
                                       monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "Client", Answers)
    config = tmp_path / "config"
    config.write_text("")
    planned = {"kubeconfig": str(config), "context": None, "render_to": "", "namespace": "gpu-operator"}
    found = gpu_diagnosis._of_cluster({}, planned)
    assert "s3cret" not in str(found) and "manager" not in str(found)
    assert json.loads(found["cluster/pods.json"])[0]["spec"] == {"containers": [{"name": "c"}]}
    assert "cannot be read" in found["cluster/events.txt"] and "cluster/nodes.json" in found
    assert gpu_diagnosis._of_cluster({}, {**planned, "render_to": "/x"}) == {}


def test_a_cluster_that_cannot_be_reached_is_named_in_the_archive(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_where: Any) -> None:
        raise ClusterError("gone.kubeconfig does not exist.", "")

    monkeypatch.setattr(client, "Client", refuse)
    found = gpu_diagnosis._of_cluster({}, {"kubeconfig": "gone.kubeconfig", "render_to": "", "namespace": "n"})
    assert found == {"cluster/error.txt": "gone.kubeconfig does not exist.\n"}


def test_hosts_whose_names_give_the_same_path_are_both_in_the_archive() -> None:
    hosts = {name: {"facts": {"name": name}} for name in ("gpu/1", "gpu 1")}
    found = gpu_diagnosis._of_hosts({"hosts": hosts}, {})
    assert list(found) == ["hosts/gpu_1/facts.json", "hosts/gpu_1-1/facts.json"]


def test_a_requested_test_without_a_result_is_named(printed: list[str]) -> None:
    made = variables()
    made["hostvars"].raw_get("gpu01")["preflight_evidence"] = {
        **LOGGED, "dcgm": {"ran": False, "passed": None, "why": "GPU clients run: python3"}}
    act(gpu_diagnosis.ActionModule, {"plan": PLAN}, made)
    assert printed[1] == "gpu01: dcgmi diag has no result: GPU clients run: python3"
