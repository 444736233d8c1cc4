# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module as users call it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client

from tests.integration_cluster import samples
from tests.integration_cluster.conftest import Audit, Kubectl
from tests.integration_cluster.plays import module
from tests.integration_cluster.world import release


@pytest.fixture
def operands(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Runs the module; returns its result."""
    return functools.partial(module, tmp_path, "operands")


def test_from_preview_to_removal(operands: Callable[..., dict[str, Any]], kubeconfig: str, kubectl: Kubectl,
                                 client: Client, audit: Audit, fresh: Callable[[], str]) -> None:
    name = fresh()
    options = {"kubeconfig": kubeconfig, "component": name, "manifests": samples.objects(name)}
    preview = operands("--check", "--diff", **options)
    assert preview["changed"] and not audit.writes
    done = operands("--diff", **options)
    assert done["plan"] == preview["plan"] and len(done["plan"]) == 12
    assert "+  name: settings" in done["shown"] and done["shown"] == preview["shown"]
    audit.start()
    again = operands("--diff", **options)
    assert not again["changed"] and again["counts"]["keep"] == 12 and not audit.writes
    kubectl("--namespace", name, "set", "env", "daemonset/agent", "--containers=agent", "ADDED=x")
    assert [step["reason"] for step in operands(**options)["plan"]] == [
        "spec.template.spec.containers[name=agent].env[name=ADDED]"]
    gone = operands(kubeconfig=kubeconfig, state="absent", components=[name])
    assert gone["counts"]["delete"] == 11
    assert not operands(kubeconfig=kubeconfig, state="absent", components=[name])["changed"]
    release(client, name)


def test_a_refusal_is_one_clear_message(operands: Callable[..., dict[str, Any]], kubeconfig: str) -> None:
    result = operands(kubeconfig=kubeconfig, component="x", manifests=[
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "Upper", "namespace": "default"}}])
    assert not result["changed"] and result["error"]["kind"] == "cluster" and result["error"]["status"] == 422
    assert result["msg"].startswith("ConfigMap default/Upper: the API server refused to apply it (Invalid)")
    assert operands(kubeconfig=kubeconfig)["error"]["path"] == "cluster, manifests"
    assert operands(kubeconfig=kubeconfig, cluster={"namespace": "x"})["msg"] == (
        "cluster: It has no common, components, so it is not the plan of a cluster. Set it to the result cluster of "
        "gpu_policy.")
