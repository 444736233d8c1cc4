# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads the policy from a cluster."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import releases
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.errors import ClusterError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.kinds import find
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.read_policy import read_policy
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import export, formats


class Fake:
    """A server that has the kinds of these objects."""

    server = "https://10.0.0.1:6443"

    def __init__(self, **objects: list[dict[str, Any]]) -> None:
        self.objects = objects

    def list(self, api_version: str, kind: str) -> list[dict[str, Any]]:
        assert find(api_version, kind).namespaced is False
        return [{**item, "apiVersion": api_version, "kind": kind} for item in self.objects.get(kind, [])]

    def knows(self, api_version: str, kind: str) -> bool:
        return kind in self.objects


def item(name: str, **spec: Any) -> dict[str, Any]:
    """The object as the API server returns it."""
    return {"metadata": {"name": name, "uid": "1", "managedFields": [{"manager": "helm"}], "annotations": {"a": "b"}},
            "spec": spec, "status": {"state": "ready", "conditions": []}}


def test_what_stands_there_is_a_policy() -> None:
    found = read_policy(Fake(ClusterPolicy=[item("cluster-policy", driver={"useNvidiaDriverCRD": True})],
                             NVIDIADriver=[item("b", nodeSelector={"a": "b"}), item("a", default=True)]))
    assert [one["metadata"] for one in found] == [{"name": "cluster-policy"}, {"name": "a"}, {"name": "b"}]
    assert all(set(one) == {"apiVersion", "kind", "metadata", "spec"} for one in found)
    policy = formats.read(found, releases.release("26.7.0"), "the policy in https://10.0.0.1:6443")
    assert (policy.origin, policy.kind) == ("the policy in https://10.0.0.1:6443", "ClusterPolicy")
    assert [pool.name for pool in policy.pools] == ["b"]
    assert export.to_nvidia_driver(policy) == found[1:]


@pytest.mark.parametrize(("objects", "part"), [
    ({}, "no GPU Operator was installed"),
    ({"ClusterPolicy": []}, "has no ClusterPolicy, GPUCluster or NVIDIADriver"),
])
def test_none(objects: Any, part: str) -> None:
    with pytest.raises(ClusterError, match=part) as error:
        read_policy(Fake(**objects))
    assert error.value.hint == "Set the policy to a file or a mapping."
