# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""verify and status report what site.yml would repair, on a real API server, and write nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.controlplane import cluster as clusters
from lab.controlplane import nodes
from tests.integration import user
from tests.integration_cluster.conftest import Audit, Kubectl, occupied
from tests.integration_cluster.plays import LOCAL, run

POLICY = {"driver": {"enabled": False}, "toolkit": {"enabled": False}, "migManager": {"enabled": False},
          "gfd": {"enabled": False}, "nfd": {"enabled": False}}
EXPORTER = "DaemonSet gpu-operator/nvidia-dcgm-exporter differs in "
TAINT = "example.com/startup"
LABEL = "nvidia.com/gpu.deploy.dcgm-exporter"


class Site:
    """A cluster with GPU Nodes after a run of site.yml."""

    def __init__(self, made: clusters.Cluster, folder: Path) -> None:
        self.kubectl, self.audit, self.folder = Kubectl(str(made.kubeconfig)), Audit(made.audit_log), folder

    def play(self, name: str) -> user.Run:
        """Runs a playbook of the collection."""
        self.audit.start()
        variables: dict[str, Any] = {"gpu_placement": "cluster", "gpu_kubeconfig": self.kubectl.kubeconfig,
                                     "gpu_policy": POLICY, "gpu_startup_taint": TAINT}
        return run(self.folder, name, {"gpu_control": {"hosts": {"cluster": LOCAL}, "vars": variables}})

    def words(self, name: str, rc: int) -> str:
        """The output of a playbook with this exit code; checks that it writes nothing."""
        done = self.play(name)
        assert done.rc == rc, done.output
        assert not [one for one in self.audit.writes if one["agent"] == "gpuops.nvidia"]
        return " ".join(done.output.split())


@pytest.fixture(scope="module")
def site(empty: clusters.Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with occupied(empty, *nodes.plain(1, 0, "a100-80", "ubuntu22.04")) as made:
        found = Site(made, tmp_path_factory.mktemp("compared"))
        found.kubectl("label", "nodes", "--all", "feature.node.kubernetes.io/pci-10de.present=true")
        done = found.play("site")
        assert done.rc == 0, done.output
        yield found


def test_what_others_have_changed_is_seen_before_site_repairs_it(site: Site) -> None:
    """A startup taint that site.yml removes is named and stays, and is no failure."""
    site.kubectl("taint", "node", "gpu-1", f"{TAINT}=true:PreferNoSchedule")
    size = {"nvidia.com/gpu": "1"}
    site.kubectl("patch", "node", "gpu-1", "--subresource", "status", "--type", "merge", "--patch",
                 json.dumps({"status": {"capacity": size, "allocatable": size}}))
    tainted = f"gpu-1: the startup taint {TAINT} is still set"
    for name in ("verify", "status"):
        assert tainted in (said := site.words(name, 0)) and "differs" not in said, said
    site.kubectl("--namespace", "gpu-operator", "set", "image", "daemonset/nvidia-dcgm-exporter", "*=example.org/x:1")
    site.kubectl("label", "node", "gpu-1", f"{LABEL}-")
    for name, rc in (("verify", 2), ("status", 0)):
        said = site.words(name, rc)
        assert EXPORTER in said and f"gpu-1: a label differs from the plan ({LABEL})" in said, said
    assert site.play("site").rc == 0
    said = site.words("verify", 0)
    assert "differs" not in said and TAINT not in said, said
