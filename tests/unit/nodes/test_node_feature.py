# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""NodeFeature objects with the reports of hosts: requests, owners of labels, lost GPUs."""

from __future__ import annotations

import time
from typing import Any, Callable

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.errors import ClusterError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import label_nodes, node_feature
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.deploy_labels import ANNOTATION, HOST_GONE
from ansible_collections.gpuops.nvidia.tests.unit.simulated.fakes import one_by_one

TOLD = {"nvidia.com/gpu.product": "Tesla-T4", "nvidia.com/gpu.count": "8"}
NO_GPU = {"nvidia.com/vgpu.present": "false"}
LISTED = "nfd.node.kubernetes.io/feature-labels"
Object = dict[str, Any]


class Server:
    """An API server in memory, with Node Feature Discovery simulated by L(nfd)."""

    def __init__(self) -> None:
        self.server = "https://lab"
        self.nodes: dict[str, dict[str, dict[str, str]]] = {
            name: {"labels": {}, "annotations": {}} for name in ("a", "b", "cpu")}
        self.features: dict[str, Object] = {}
        self.asked: list[str] = []
        self.known = True
        self.refuses: dict[str, int] = {}

    def list(self, api_version: str, kind: str, namespace: None = None, label_selector: str = "",
             metadata_only: bool = False) -> list[Object]:
        """Nodes, or our objects."""
        self.asked.append(f"list {kind}")
        if kind == "Node":
            return [{"metadata": {"name": name, **one}} for name, one in self.nodes.items()]
        assert label_selector == ("app.kubernetes.io/managed-by=gpuops.nvidia,"
                                  "gpuops.nvidia/component=feature_discovery")
        return list(self.features.values())

    def knows(self, api_version: str, kind: str) -> bool:
        """Whether the server has this kind."""
        return self.known

    def apply(self, item: Object) -> None:
        """A new object."""
        name = item["metadata"]["name"]
        self.asked.append(f"apply {name}")
        assert name not in self.features and item["apiVersion"] == node_feature.API
        self.features[name] = {**item, "metadata": {**item["metadata"], "uid": f"uid-{name}"}}

    def merge_patch(self, api_version: str, kind: str, name: str, namespace: str, body: Object) -> None:
        """RFC 7396 on labels and annotations."""
        self.asked.append(f"patch {name}")
        if name in self.refuses:
            raise ClusterError("Refused.", status=self.refuses[name])
        item = self.features[name]
        for part, field in (("spec", "labels"), ("metadata", "annotations")):
            merged = {**item[part].get(field, {}), **body.get(part, {}).get(field, {})}
            item[part] = {**item[part], field: {key: value for key, value in merged.items() if value is not None}}

    def delete(self, api_version: str, kind: str, name: str, namespace: str, uid: str) -> bool:
        """Deletes exactly this object."""
        self.asked.append(f"delete {namespace}/{name}")
        assert self.features.pop(name)["metadata"]["uid"] == uid
        return True

    many = staticmethod(one_by_one)

    def nfd(self) -> None:
        """Sets labels from the objects, and removes labels that no object requests any more."""
        for node in self.nodes.values():
            for key in node["annotations"].pop(LISTED, "").split(","):
                node["labels"].pop(key, None)
        for item in self.features.values():
            node = self.nodes[item["metadata"]["labels"][node_feature.NODE_LABEL]]
            node["labels"].update(item["spec"]["labels"])
            node["annotations"][LISTED] = ",".join(["system-os_release.ID", *item["spec"]["labels"]])

    def run(self, told: dict[str, dict[str, str]] | None = None, state: str = "present", check: bool = False,
            unread: tuple[str, ...] = (), **options: Any) -> Object:
        """Runs the task on this server."""
        self.asked = []
        given = {"state": state, "kubeconfig": "k", "context": None, "nodes": None, "adopt": [], "gone_after": 600,
                 "namespace": "gpu", **options}
        return node_feature.publish(given, check, told, unread)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    """The server for the task, without an operator."""
    made = Server()
    monkeypatch.setattr(node_feature, "Client", lambda kubeconfig, context: made)
    monkeypatch.setattr(node_feature, "refuse_operator", lambda client: client.asked.append("guard"))
    return made


FLEET = {"a": TOLD, "b": TOLD, "cpu": NO_GPU}


def test_one_lost_reading_moves_nothing_that_is_published(server: Server) -> None:
    """The task that reports the reading has the former labels."""
    server.run({"a": TOLD})
    lost = {**TOLD, "nvidia.com/gpu.count": "7"}
    server.run({"a": lost, "b": lost}, unread=("a", "b"))
    assert [server.features[f"gpuops-{name}"]["spec"]["labels"] for name in "ab"] == [TOLD, lost]


def test_life_of_the_objects(server: Server) -> None:
    """Check mode names the objects; they are created, left unchanged after NFD has set labels from them, repaired, and
    removed."""
    said = server.run(FLEET, check=True)
    assert server.asked == ["guard", "list Node", "list NodeFeature"] and not server.features
    assert server.run(FLEET) == said and said["changed"]
    assert server.asked[3:] == ["apply gpuops-a", "apply gpuops-b"]
    assert said["nodes"]["a"] == {"added": TOLD, "changed": {}, "removed": {}}
    assert [entry["after_header"] for entry in said["diff"]] == ["NodeFeatures a, b"]
    assert server.features["gpuops-a"]["metadata"] == {
        "name": "gpuops-a", "namespace": "gpu", "uid": "uid-gpuops-a", "labels": {
            "app.kubernetes.io/managed-by": "gpuops.nvidia", "gpuops.nvidia/component": "feature_discovery",
            node_feature.NODE_LABEL: "a"}}
    server.nfd()
    assert not server.run(FLEET)["changed"] and server.run(FLEET)["foreign"] == []
    server.features["gpuops-a"]["spec"]["labels"] = {"nvidia.com/gpu.count": "9", "a/b": "c"}
    server.nfd()
    mended = server.run(FLEET)
    assert server.asked[3:] == ["patch gpuops-a"] and server.features["gpuops-a"]["spec"]["labels"] == TOLD
    assert mended["nodes"]["a"]["changed"] == {"nvidia.com/gpu.count": {"before": "9", "after": "8"}}
    assert server.run(state="gathered")["nodes"] == {name: {"present": TOLD} for name in ("a", "b")}
    assert server.run(state="absent", nodes=["a"])["nodes"]["a"]["removed"] == TOLD
    assert server.asked[3:] == ["delete gpu/gpuops-a"]
    assert not server.run(state="absent", nodes=[])["changed"] and len(server.features) == 1
    server.run(state="absent")
    assert not server.features and not server.run(state="absent")["changed"]


def test_what_nfd_keeps_up_for_others_is_left_out(server: Server) -> None:
    """GPU feature discovery publishes there; NFD takes over labels that our target node has written."""
    server.nodes["a"] = {"labels": {"nvidia.com/gpu.product": "x"}, "annotations": {LISTED: "nvidia.com/gpu.product"}}
    server.nodes["b"] = {"labels": dict(TOLD), "annotations": {ANNOTATION: ",".join(TOLD)}}
    result = server.run(FLEET)
    assert server.features["gpuops-a"]["spec"]["labels"] == {"nvidia.com/gpu.count": "8"}
    assert server.features["gpuops-b"]["spec"]["labels"] == TOLD
    assert result["foreign"] == [{"labels": ["nvidia.com/gpu.product"], "nodes": ["a"]}]
    assert result["warnings"][0].startswith("a: labels that the hosts have told are kept")


def test_a_gpu_that_is_gone(server: Server) -> None:
    server.run(FLEET)
    lost = {**FLEET, "b": NO_GPU}
    first = server.run(lost)
    assert server.asked[3:] == ["patch gpuops-b"] and first["notes"][0].startswith("b: no GPU is seen any more.")
    assert server.features["gpuops-b"]["spec"]["labels"] == TOLD and not server.run(lost)["changed"]
    server.run(FLEET)
    assert not server.features["gpuops-b"]["metadata"]["annotations"]
    server.run(lost)
    kept = server.features["gpuops-b"]["metadata"]["annotations"]
    kept[HOST_GONE] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 700))
    server.run(lost)
    assert server.asked[3:] == ["delete gpu/gpuops-b"] and not server.run(lost)["changed"]


def test_an_object_that_goes_meanwhile_is_no_failure(server: Server) -> None:
    """NFD removes the object of a Node that no longer exists; another refusal is a failure."""
    server.run(FLEET)
    server.refuses = {"gpuops-a": 404, "gpuops-b": 403}
    less = {"nvidia.com/gpu.count": "7"}
    result = server.run({"a": less, "b": less})
    assert list(result["failures"]) == ["b"] and result["nodes"] == {}
    assert result["msg"].startswith("1 of 2 NodeFeature objects could not be written (b)")


def test_hosts_that_are_silent_or_not_believed(server: Server) -> None:
    server.run(FLEET)
    result = server.run({"a": {**TOLD, "kubernetes.io/hostname": "x"}})
    assert result["failed"] and list(result["failures"]) == ["a"] and len(server.features) == 2
    assert server.asked == ["guard", "list Node", "list NodeFeature"]


@pytest.mark.parametrize("spoil, told, error", [
    (lambda server: None, None, InputError), (lambda server: None, {"z": TOLD}, InputError),
    (lambda server: setattr(server, "known", False), FLEET, ClusterError)])
def test_refused_before_anything_is_written(server: Server, spoil: Callable[[Server], None],
                                            told: dict[str, dict[str, str]] | None, error: type[Exception]) -> None:
    spoil(server)
    with pytest.raises(error):
        server.run(told)
    assert not server.features
    assert label_nodes.fold(server.nodes) == "a, b, cpu"
