# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A component is enabled, disabled and enabled again: all its objects are removed with it, and no others."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import components
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube import objects as marks
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.objects import Key, Object
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands import plan as planning
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands.render import ORDER, render
from ansible_collections.gpuops.nvidia.tests.unit.simulated.clusters import facts, node, plan

NAMES = [one.name for one in components.IN_CLUSTERS]
# What has objects of its own only with these settings has them.
EVERYTHING: dict[str, Any] = {
    "dcgm": {"enabled": True}, "nodeStatusExporter": {"enabled": True}, "nfd": {"nodefeaturerules": True},
    "dcgmExporter": {"enablePodLabels": True, "serviceMonitor": {"enabled": True},
                     "config": {"create": True, "name": "metrics", "data": "a, gauge, b\n"}},
    "devicePlugin": {"config": {"create": True, "name": "sharing", "default": "a", "data": {"a": "version: v1\n"}}},
}


class Cluster:
    """Objects in memory as the API server stores them: applied by us, with a record of it."""

    def __init__(self) -> None:
        self.live: dict[Key, Object] = {}

    def converge(self, **settings: Any) -> dict[str, set[str]]:
        """The actions of a run, which is then executed."""
        made = plan(EVERYTHING, facts(node(), monitors=True), **settings)
        wanted = marks.wanted({name: render(name, made) for name in ORDER})
        done: dict[str, set[str]] = {}
        for change in planning.plan(self, wanted, self.live, None):  # type: ignore[arg-type]
            done.setdefault(change.action, set()).add(change.label)
            if change.manifest is None:
                del self.live[marks.key_of(change.live or {})]
            elif change.action != "keep":
                self.live[marks.key_of(change.manifest)] = applied(change.manifest)
        return done

    def get(self, api_version: str, kind: str, name: str) -> Object | None:
        return self.live.get((api_version, kind, "", name))

    def list_row(self, row: Any, metadata_only: bool = False) -> list[Object]:
        return []


def applied(manifest: Object) -> Object:
    fields = {key: _fields(value) for key, value in manifest.items() if key not in ("apiVersion", "kind")}
    for key in ("f:name", "f:namespace"):
        fields["metadata"].pop(key, None)
    record = {"manager": marks.MANAGER_NAME, "operation": "Apply", "fieldsType": "FieldsV1",
              "fieldsV1": {f"f:{key}": value for key, value in fields.items()}}
    return {**manifest, "metadata": {**manifest["metadata"], "managedFields": [record]}}


def _fields(value: Any) -> dict[str, Any]:
    return {f"f:{key}": _fields(inner) for key, inner in value.items()} if isinstance(value, dict) else {}


def places(without: str) -> dict[str, str]:
    return {name: "none" if name == without else "cluster" for name in NAMES}


def test_a_second_run_writes_nothing() -> None:
    cluster = Cluster()
    assert set(cluster.converge()) == {"create"}
    assert set(cluster.converge()) == {"keep"}


@pytest.mark.parametrize("component", NAMES)
def test_off_and_on_again(component: str) -> None:
    cluster = Cluster()
    before = cluster.converge(placement=places(""))["create"]
    own = {marks.label_of(one) for one in cluster.live.values() if marks.component_of(one) == component}
    off = cluster.converge(placement=places(component))
    assert off["delete"] == own
    assert {marks.component_of(one) for one in cluster.live.values()} == {*NAMES, marks.SHARED} - {component}
    assert set(cluster.converge(placement=places(component))) == {"keep"}
    on = cluster.converge(placement=places(""))
    assert on["create"] == own
    assert {marks.label_of(one) for one in cluster.live.values()} == before
    # Beside its own only those that speak of it: its clients.
    assert (off.get("update", set()), on.get("update", set())) == (CLIENTS.get(component, set()),) * 2


CLIENTS = {
    "container_toolkit": {"DaemonSet gpu-operator/nvidia-device-plugin-daemonset",
                          "DaemonSet gpu-operator/nvidia-mig-manager"},
    "dcgm": {"DaemonSet gpu-operator/nvidia-dcgm-exporter"},
    # The validator does not check it, and GPU feature discovery does not mount its ConfigMap.
    "device_plugin": {"DaemonSet gpu-operator/nvidia-operator-validator",
                      "DaemonSet gpu-operator/gpu-feature-discovery"},
}
