# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A layout that the MIG manager of the cluster does not have is refused before it is requested for a Node."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from ansible_collections.gpuops.nvidia.plugins.action import node_mig
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.refusals import PolicyError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import mig_protocol
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands.render import render
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.cluster_mig import names_in
from ansible_collections.gpuops.nvidia.tests.unit.inventory.test_inventory_vars import task_vars
from ansible_collections.gpuops.nvidia.tests.unit.simulated.acting import act
from ansible_collections.gpuops.nvidia.tests.unit.simulated.clusters import plan
from ansible_collections.gpuops.nvidia.tests.unit.simulated.fakes import Clock
from ansible_collections.gpuops.nvidia.tests.unit.simulated.server import ApiServer, Request, status

SPACE, LABEL = "gpu-operator", "nvidia.com/mig.config"
NODE = "/api/v1/nodes/n1"
OWN = {"migManager": {"config": {"name": "ours", "create": True, "default": "", "data": {
    "config.yaml": "version: v1\nmig-configs: {small: [], large: []}\n"}}}}


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(mig_protocol, "time", SimpleNamespace(monotonic=clock, sleep=clock.sleep))


def world(api: ApiServer, policy: Any = None, release: str = "26.7.0") -> None:
    """The delivered objects of this policy, and a Node that its MIG manager serves."""
    api.put({"apiVersion": "v1", "kind": "Node", "metadata": {
        "name": "n1", "labels": {"nvidia.com/gpu.deploy.mig-manager": "true"}}})
    api.put(*({**one, "metadata": {**one["metadata"], "labels": {"app": "nvidia-mig-manager"}}}
              for one in render("mig_manager", plan(policy, release=release))))


def asked(api: ApiServer, layout: str, check: bool = False, **options: Any) -> dict[str, Any]:
    return act(node_mig.ActionModule, {"state": "requested", "disruption": "idle", "kubeconfig": str(api.kubeconfig),
                                       "timeout": 1, "layout": layout, **options}, task_vars(localhost={}), check)


def label(api: ApiServer) -> str | None:
    found: str | None = api.objects[NODE]["metadata"]["labels"].get(LABEL)
    return found


@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize(("policy", "release", "source"), [
    (OWN, "26.7.0", "ours"), (None, "26.7.0", "default-mig-parted-config"),
    (None, "25.10.1", "default-mig-parted-config")])
def test_what_the_delivered_config_map_lacks_is_refused(api: ApiServer, policy: Any, release: str, source: str,
                                                        check: bool) -> None:
    world(api, policy, release)
    found = asked(api, "all-9g.90gb", check)
    assert found["failed"] and found["error"]["path"] == "layout" and "No label was written" in found["msg"]
    assert f"ConfigMap {SPACE}/{source}, from which the MIG manager of n1" in found["msg"]
    assert label(api) is None and api.sent() == []
    assert found["error"]["allowed"][:2] == (["small", "large"] if policy else ["all-disabled", "all-enabled"])


def test_what_it_has_is_asked_for(api: ApiServer) -> None:
    world(api, OWN)
    assert "not a layout in" not in asked(api, "small")["msg"] and label(api) == "small"


def test_the_config_map_that_the_manager_made_of_a_node_counts_first(api: ApiServer) -> None:
    world(api)
    api.put({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "n1-mig-config", "namespace": SPACE},
             "data": {"config.yaml": yaml.safe_dump({"mig-configs": {"all-1g.99gb": []}})}})
    assert "ConfigMap gpu-operator/n1-mig-config" in asked(api, "all-1g.10gb", nodes=["n1"])["msg"]
    asked(api, "all-1g.99gb")
    assert label(api) == "all-1g.99gb"


def test_what_cannot_be_read_refuses_nothing(api: ApiServer) -> None:
    api.put({"apiVersion": "v1", "kind": "Node", "metadata": {
        "name": "n1", "labels": {"nvidia.com/gpu.deploy.mig-manager": "true"}}})
    asked(api, "first")
    assert label(api) == "first", "no manager is there whose ConfigMap could be read"
    world(api, OWN)

    def forbidden(request: Request) -> Any:
        return status(403, "no") if request.path.endswith("/configmaps") else None

    api.before = forbidden
    asked(api, "second")
    assert label(api) == "second"
    api.before = lambda request: status(422, "no") if request.path.endswith("/configmaps") else None
    assert "refused to list" in asked(api, "third")["msg"] and label(api) == "second"


def test_files_of_other_kinds_name_no_layout() -> None:
    assert names_in({"a": "{", "b": "- 1", "c": "mig-configs: 3", "d": "mig-configs: {x: []}"}) == ["x"]
    assert names_in({}) == []


@pytest.mark.parametrize("text", ["a: " + "[" * 5000 + "]" * 5000, "- " * 2000, "? " * 2000, "[" * 100_000],
                         ids=["flow", "lists", "complex keys", "open"])
def test_a_config_map_without_bounds_names_no_layout(text: str) -> None:
    """Every ConfigMap in the namespace of the operands is read, whoever has created it."""
    assert names_in({"a": text, "b": "mig-configs: {off: [], 1: []}"}) == ["off", "1"]


def test_a_default_layout_that_the_configuration_lacks_is_refused() -> None:
    """The MIG manager would fail for such a request."""
    with pytest.raises(PolicyError, match=r"default \(all-disabled\) is not a layout .* small, large"):
        plan({"migManager": {"config": {**OWN["migManager"]["config"], "default": "all-disabled"}}})
