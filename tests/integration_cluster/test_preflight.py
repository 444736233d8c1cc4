# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The preflight reads from the cluster what a run would write, and each obstacle is a finding."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube import kinds
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client

from tests.integration_cluster.conftest import Audit, Kubectl
from tests.integration_cluster.plays import LOCAL, run
from tests.integration_cluster.test_compared import POLICY
from tests.waiting import until

SPACE = "preflight"


def preflight(folder: Path, kubeconfig: Path | str, rc: int) -> tuple[str, str]:
    """(output, errors) of a preflight with this exit code."""
    report = folder / "report.json"
    variables: dict[str, Any] = {"gpu_placement": "cluster", "gpu_kubeconfig": str(kubeconfig), "gpu_policy": POLICY,
                                 "gpu_namespace": SPACE, "gpu_report_json": str(report)}
    done = run(folder, "preflight", {"gpu_control": {"hosts": {"cluster": LOCAL}, "vars": variables}})
    assert done.rc == rc, done.output
    found = json.loads(report.read_text())["findings"]
    return done.output, "; ".join(one["text"] for one in found if one["severity"] == "error")


def readable(kubeconfig: Path) -> list[bool]:
    """Whether its user may list Nodes and objects of the namespace."""
    client = Client(str(kubeconfig))
    return [client.may("list", kinds.find("v1", "Node")), client.may("list", kinds.find("v1", "Pod"), SPACE)]


def refused(kubectl: Kubectl) -> bool:
    """Whether the namespace already rejects privileged pods."""
    container = {"name": "x", "image": "example.org/x:1", "securityContext": {"privileged": True}}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x", "namespace": SPACE},
           "spec": {"containers": [container]}}
    try:
        kubectl("create", "--dry-run=server", "--filename", "-", stdin=pod)
    except AssertionError as error:
        return "violates PodSecurity" in str(error)
    return False


def test_steps_and_errors_of_the_cluster(kubectl: Kubectl, kubeconfig: str, tmp_path: Path, audit: Audit) -> None:
    kubectl("create", "namespace", SPACE)
    try:
        said, errors = preflight(tmp_path, kubeconfig, 0)
        for one in ("Steps in the cluster:", "DaemonSet", "label 2 Nodes: gpu-1, gpu-2", "changed=0"):
            assert one in said, said
        assert not errors
        # A user who only reads.
        kubectl("create", "serviceaccount", "reader", "--namespace", SPACE)
        kubectl("create", "clusterrole", SPACE, "--verb=get,list", "--resource=*.*")
        kubectl("create", "clusterrolebinding", SPACE, f"--clusterrole={SPACE}", f"--serviceaccount={SPACE}:reader")
        config = yaml.safe_load(Path(kubeconfig).read_text())
        config["users"][0]["user"] = {"token": kubectl("create", "token", "reader", "--namespace", SPACE).strip()}
        reader = tmp_path / "reader.conf"
        reader.write_text(yaml.safe_dump(config))
        # The API server learns of rights by a watch of its own.
        until(lambda: all(readable(reader)), "the reader may list what preflight reads")
        _said, errors = preflight(tmp_path, reader, 2)
        assert "The user of this kubeconfig may not patch namespaces, nodes; create" in errors
        kubectl("label", "namespace", SPACE, "pod-security.kubernetes.io/enforce=restricted")
        until(lambda: refused(kubectl), "the admission knows the label of the namespace")
        assert "the API server refuses the pods of" in preflight(tmp_path, kubeconfig, 2)[1]
        assert not [one for one in audit.writes if one["agent"] == "gpuops.nvidia"]
    finally:
        kubectl("delete", "--ignore-not-found", "clusterrolebinding,clusterrole", SPACE)
        kubectl("delete", "namespace", SPACE)
