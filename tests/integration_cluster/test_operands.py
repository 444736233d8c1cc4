# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube import kinds, objects, ready, wire
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.errors import ClusterError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.refuse_operator import refuse_operator
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands import deliver

from tests.integration_cluster import samples
from tests.integration_cluster.conftest import Audit, Kubectl
from tests.integration_cluster.definitions import crd, create, removed
from tests.integration_cluster.proxy import Flaky
from tests.integration_cluster.world import Object, World, release
from tests.waiting import until


@pytest.fixture
def world(kubectl: Kubectl, client: Client, fresh: Callable[[], str]) -> Iterator[World]:
    name = fresh()
    yield World(kubectl, client, name, samples.objects(name))
    release(client, name)


def config_map(name: str, namespace: str, **data: str) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}, "data": data}


def test_an_empty_server(world: World, audit: Audit) -> None:
    preview = world.run(check=True)
    assert not audit.writes
    assert preview["counts"]["create"] == len(world.manifests)
    audit.start()
    done = world.run()
    assert (done["plan"], done["diff"], done["objects"]) == (preview["plan"], preview["diff"], preview["objects"])
    assert Counter(one["name"] for one in audit.writes) == Counter(item["metadata"]["name"]
                                                                   for item in world.manifests)
    before = world.settled()
    audit.start()
    again = world.run()
    assert not again["changed"] and again["counts"]["keep"] == len(world.manifests)
    assert not audit.writes and world.versions() == before
    lists = Counter(one["uri"].split("?")[0] for one in audit.requests)
    assert max(lists.values()) == 2  # one of the second run, one of versions()
    assert {one["verb"] for one in audit.requests} == {"list"}


def test_values_of_secrets_are_not_shown(world: World) -> None:
    shown = json.dumps([world.run(check=True), world.run()])
    world.kubectl("patch", "secret", "token", "--type", "merge", "--patch", '{"data": {"password": "b3RoZXI="}}')
    shown += json.dumps(world.run())
    assert "(hidden, it differs)" in shown
    assert not any(word in shown for word in ("s3cr3t", "czNjcjN0LXZhbHVl", "b3RoZXI="))


def test_kinds_come_before_their_objects(client: Client, kubectl: Kubectl) -> None:
    """The kind is one that no other test defines in this cluster."""
    kind = crd("nvidia.com", "NVIDIADriver", "nvidiadrivers", "v1alpha1")
    rule = {"apiVersion": "nvidia.com/v1alpha1", "kind": "NVIDIADriver", "metadata": {"name": "ours"},
            "spec": {"rules": [{"name": "a"}]}}
    world = World(kubectl, client, "kinds", [rule, kind])
    with removed(kubectl, client, kind):
        preview = world.run(check=True)
        done = world.run()
        assert [step["target"].split()[0] for step in done["plan"]] == ["CustomResourceDefinition", "NVIDIADriver"]
        assert preview["plan"] == done["plan"]
        assert not world.run()["changed"]
        world.patch("nvidiadriver", "ours", {"op": "add", "path": "/spec/extra", "value": 1})
        assert world.run()["counts"]["repair"] == 1
        assert world.get("nvidiadriver", "ours")["spec"] == rule["spec"]
        kubectl("apply", "--server-side", "--filename", "-", stdin={**rule, "metadata": {"name": "theirs"}})
        taken = world.remove()
        assert {step["id"] for step in taken["plan"]} == {
            "delete: NVIDIADriver ours", "release: CustomResourceDefinition nvidiadrivers.nvidia.com"}
        left = kubectl.get("crd", "nvidiadrivers.nvidia.com")
        assert "gpuops" not in json.dumps(left["metadata"])
        assert kubectl.get("nvidiadriver", "theirs")
        kubectl("delete", "nvidiadriver", "theirs")
        # The kind that stayed is now others': it serves, and is left where it is.
        assert [one["action"] for one in world.run()["objects"]] == ["reuse", "create"]
        assert [step["action"] for step in world.remove()["plan"]] == ["delete"]


def test_a_foreign_object_serves_or_stands_in_the_way(world: World, audit: Audit) -> None:
    name = world.name
    world.tool("create", "namespace", name)
    world.manifests = [config_map("a", name, key="value"), config_map("b", name, key="value")]
    world.tool("create", "--filename", "-", stdin=config_map("a", name, key="value", more="x"))
    world.tool("create", "--filename", "-", stdin=config_map("b", name, key="other"))
    audit.start()
    for check in (True, False):
        with pytest.raises(ClusterError) as caught:
            world.run(check=check)
        assert (f"ConfigMap {name}/b exists and is not managed by this collection (managed by kubectl-create)"
                in str(caught.value))
        assert "data.key" in str(caught.value)
    assert not audit.writes
    world.kubectl("delete", "configmap", "b")
    actions = {one["object"].split("/")[1]: one["action"] for one in world.run()["objects"]}
    assert actions == {"a": "reuse", "b": "create"}
    assert "labels" not in world.get("configmap", "a")["metadata"]
    assert [step["id"] for step in world.remove()["plan"]] == [f"delete: ConfigMap {name}/b"]
    assert world.get("configmap", "a")["data"]["more"] == "x"


def test_a_foreign_namespace_keeps_its_own(world: World) -> None:
    world.tool("create", "--filename", "-", stdin={"apiVersion": "v1", "kind": "Namespace", "metadata": {
        "name": world.name, "labels": {"app.kubernetes.io/managed-by": "Helm", "team": "x"}}})
    former = world.tool.get("namespace", world.name)["metadata"]["labels"]
    assert world.run()["changed"] and not world.run()["changed"]
    labels = world.tool.get("namespace", world.name)["metadata"]["labels"]
    assert {**labels, **former} == labels and labels["pod-security.kubernetes.io/enforce"] == "privileged"
    world.remove(everything=True)
    left = world.tool.get("namespace", world.name)["metadata"]
    assert left["labels"] == former and "annotations" not in left
    world.kubectl("label", "namespace", world.name, "pod-security.kubernetes.io/enforce=baseline")
    with pytest.raises(ClusterError, match="is 'baseline' and must be 'privileged'"):
        world.run()


def test_everything_goes_with_the_namespace_that_we_made(world: World) -> None:
    world.run()
    preview = world.remove(everything=True, check=True)
    assert preview["plan"][-1]["id"] == f"delete: Namespace {world.name}"
    assert world.remove(everything=True)["plan"] == preview["plan"]
    assert not world.versions()
    assert world.client.get("v1", "Namespace", world.name) is None
    assert not world.remove(everything=True)["changed"]


def test_a_namespace_with_foreign_things_in_it_stays(world: World) -> None:
    world.run()
    world.tool("create", "--filename", "-", stdin=config_map("theirs", world.name, key="x"))
    done = world.remove(everything=True)
    assert done["plan"][-1]["id"] == f"release: Namespace {world.name}"
    assert "ConfigMap theirs" in done["plan"][-1]["reason"]
    assert world.get("configmap", "theirs")
    assert "gpuops" not in json.dumps(world.tool.get("namespace", world.name)["metadata"])


def test_what_is_not_wanted_is_pruned_and_only_it(world: World) -> None:
    other = World(world.tool, world.client, f"{world.name}x", [config_map("other", world.name, key="x")])
    world.run()
    other.run()
    world.manifests = [item for item in world.manifests if item["kind"] not in ("RuntimeClass", "Deployment")]
    before = world.settled()
    done = world.run()
    assert [step["id"] for step in done["plan"]] == [
        f"delete: Deployment {world.name}/master", f"delete: RuntimeClass {world.name}"]
    left = {key: version for key, version in before.items() if "RuntimeClass" not in key and "Deployment" not in key}
    gone = [key for key in before if key not in left]
    assert {key: version for key, version in world.versions().items() if key not in gone} == left
    assert not other.run()["changed"]


def test_a_failure_names_object_and_field_and_the_next_run_goes_on(world: World, audit: Audit) -> None:
    ports = world.wanted("Service")["spec"]["ports"]
    ports[0]["port"] = 99999
    with pytest.raises(ClusterError) as caught:
        world.run()
    error = caught.value.as_result()["error"]
    assert (error["object"], error["status"], error["fields"]) == (
        f"Service {world.name}/metrics", 422, ["spec.ports[0].port"])
    assert f"create: Namespace {world.name}" in error["done"]
    ports[0]["port"] = 9400
    audit.start()
    assert {step["target"].split()[0] for step in world.run()["plan"]} == {"Service", "DaemonSet", "Deployment"}
    assert len(audit.writes) == 3


def test_a_misspelt_field_is_named(world: World) -> None:
    world.run()
    world.wanted("DaemonSet")["spec"]["template"]["spec"]["hostPid"] = True
    with pytest.raises(ClusterError, match=r"DaemonSet .*/agent: .*hostPid"):
        world.run(check=True)


def test_what_is_being_removed_is_made_anew(world: World, kubeconfig: str, tmp_path: Path) -> None:
    world.run()
    world.patch("configmap", "settings", {"op": "add", "path": "/metadata/finalizers", "value": ["example.org/hold"]})
    world.kubectl("delete", "--wait=false", "configmap", "settings")
    looks = itertools.count(1)

    def hold(number: int, method: str, path: str) -> None:
        """Releases the object when the run has seen twice that it still exists."""
        if (method, path.rpartition("/")[2]) == ("GET", "settings") and next(looks) == 3:
            world.patch("configmap", "settings", {"op": "remove", "path": "/metadata/finalizers"})

    with Flaky(kubeconfig, hold) as server:
        waiting = World(world.tool, Client(server.kubeconfig(tmp_path)), world.name, world.manifests)
        assert [step["id"] for step in waiting.run()["plan"]] == [f"create: ConfigMap {world.name}/settings"]
    assert next(looks) > 3
    assert "deletionTimestamp" not in world.get("configmap", "settings")["metadata"]


def test_a_flaky_server_is_ridden_through(world: World, kubeconfig: str, tmp_path: Path) -> None:
    """Every request fails twice before it succeeds, in another way each time."""
    met: Counter[str] = Counter()
    faults: list[int | str] = [429, 500, "drop", 503, "lose", 409]

    def twice(number: int, method: str, path: str) -> int | str | None:
        met[f"{method} {path}"] += 1
        met[method] += 1
        fault = faults[met[method] % (6 if method == "PATCH" else 5)]
        return fault if met[f"{method} {path}"] < 3 else None

    with Flaky(kubeconfig, twice) as server:
        flaky = World(world.tool, Client(server.kubeconfig(tmp_path)), world.name, world.manifests)
        assert flaky.run()["counts"]["create"] == len(world.manifests)
        assert {one[2] for one in server.seen} == {None, *faults}
        world.patch("daemonset", "agent", {"op": "add", "path": "/spec/template/spec/hostPID", "value": True})
        assert flaky.run()["counts"]["repair"] == 1
        assert not flaky.run()["changed"]
        flaky.remove()
    assert set(world.versions()) == {str(("v1", "Namespace", "", world.name))}


def test_a_server_that_stays_broken_is_given_up(kubeconfig: str, tmp_path: Path,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(wire.time, "sleep", pauses.append)
    with Flaky(kubeconfig, lambda *_words: 503) as server:
        with pytest.raises(ClusterError, match="injected"):
            Client(server.kubeconfig(tmp_path)).get("v1", "Namespace", "default")
        assert server.count == 7 and pauses == sorted(pauses) and 4 < sum(pauses) < 9


def test_a_race_with_another_writer(world: World, kubeconfig: str, tmp_path: Path) -> None:
    """Another client writes once between our list request and our adoption."""
    world.run()
    world.patch("daemonset", "agent", {"op": "add", "path": "/spec/template/spec/hostPID", "value": True})
    raced: list[str] = []

    def race(number: int, method: str, path: str) -> None:
        if method == "PATCH" and not raced:
            raced.append(path)
            world.patch("daemonset", "agent", {"op": "add", "path": "/spec/template/spec/hostIPC", "value": True})

    with Flaky(kubeconfig, race) as server:
        World(world.tool, Client(server.kubeconfig(tmp_path)), world.name, world.manifests).run()
    spec = world.get("daemonset", "agent")["spec"]["template"]["spec"]
    assert raced and "hostPID" not in spec and "hostIPC" not in spec


def test_lists_come_in_pages(world: World, client: Client) -> None:
    world.tool("create", "namespace", world.name)
    items = [config_map(f"c{number:04d}", world.name) for number in range(1100)]
    client.many(client.apply, items)
    found = client.list("v1", "ConfigMap", world.name, metadata_only=True)
    # A controller adds kube-root-ca.crt.
    assert [one["metadata"]["name"] for one in found if one["metadata"]["name"] != "kube-root-ca.crt"] == [
        item["metadata"]["name"] for item in items]
    assert "data" not in found[0]
    world.tool("delete", "namespace", world.name, "--wait=false")


def test_kinds_that_the_server_lacks(client: Client, audit: Audit) -> None:
    assert client.list("nvidia.com/v1alpha1", "GPUCluster") == []
    audit.start()
    assert not client.knows("nvidia.com/v1alpha1", "GPUCluster")
    assert not audit.requests
    assert client.get("nvidia.com/v1alpha1", "GPUCluster", "x") is None
    assert client.knows("v1", "Pod") and client.version().startswith("v1.")


def test_missing_rights_are_named_before_anything_is_written(world: World, tmp_path: Path, audit: Audit) -> None:
    world.tool("create", "namespace", world.name)
    world.kubectl("create", "serviceaccount", "reader")
    world.tool("create", "clusterrolebinding", f"{world.name}-view", f"--clusterrole={world.name}",
               f"--serviceaccount={world.name}:reader")
    world.tool("create", "--filename", "-", stdin={
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": world.name},
        "rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list"]}]})
    config = yaml.safe_load(Path(world.tool.kubeconfig).read_text())
    config["users"][0]["user"] = {"token": world.kubectl("create", "token", "reader").strip()}
    path = tmp_path / "reader.kubeconfig"
    path.write_text(yaml.safe_dump(config))
    world.kubectl("create", "role", "maps", "--verb=*", "--resource=configmaps")
    world.kubectl("create", "rolebinding", "maps", "--role=maps", f"--serviceaccount={world.name}:reader")
    service = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "y", "namespace": world.name}}
    reader = World(world.tool, Client(str(path)), world.name, [config_map("x", world.name)])
    maps = kinds.find("v1", "ConfigMap")
    # The server's authorizer takes notice of each of these objects a moment after it is there.
    until(lambda: reader.client.may("list", maps) and reader.client.may("patch", maps, world.name), "the rights come")
    assert reader.run(check=True)["changed"] and reader.run()["changed"]
    reader.manifests = [config_map("z", world.name), service, {
        "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "agent", "namespace": world.name},
        "spec": samples.daemon_set()}]
    audit.start()
    for check in (True, False):
        with pytest.raises(ClusterError) as caught:
            reader.run(check=check)
        assert caught.value.status == 403 and sorted(caught.value.details["missing"]) == [
            f"{verb} {kind} in namespace {world.name}" for verb in ("create", "patch")
            for kind in ("daemonsets.apps", "serviceaccounts")]
    assert not audit.writes
    world.manifests = [service]
    world.run()
    with pytest.raises(ClusterError, match=f"delete serviceaccounts in namespace {world.name}"):
        reader.remove()


def test_a_namespace_that_refuses_the_pods_is_refused(world: World, audit: Audit) -> None:
    """An enforced level of a Namespace stays if nobody requests another one, and then no pod could run."""
    home: Object = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": world.name}}
    level = "pod-security.kubernetes.io/enforce"
    world.tool("create", "--filename", "-", stdin={**home, "metadata": {
        "name": world.name, "labels": {level: "baseline", "pod-security.kubernetes.io/warn": "restricted"}}})
    meta = {"name": "agent", "namespace": world.name}
    plain: Object = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": samples.deployment()}
    privileged: Object = {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": meta, "spec": samples.daemon_set()}
    world.manifests = [home, plain]
    assert world.run()["changed"]
    world.manifests = [home, plain, privileged]
    audit.start()
    for check in (True, False):
        with pytest.raises(ClusterError, match=f"{level}=baseline, .* DaemonSet {world.name}/agent"):
            world.run(check=check)
    assert not audit.writes
    world.kubectl("label", "--overwrite", "namespace", world.name, f"{level}=privileged")
    assert world.run()["changed"]
    # What runs stays: a level that comes later is no reason to stop where nothing is to be written.
    world.kubectl("label", "--overwrite", "namespace", world.name, f"{level}=baseline")
    assert not world.run()["changed"]


def test_waiting(world: World, client: Client) -> None:
    selector = {"node": world.name}
    for kind in ("DaemonSet", "Deployment"):
        world.wanted(kind)["spec"]["template"]["spec"]["nodeSelector"] = selector
    wanted = objects.wanted({world.name: world.manifests})
    deliver.present(client, wanted, [world.name], False)
    until(lambda: all(world.get(kind, name)["status"].get("observedGeneration") for kind, name in (
        ("daemonset", "agent"), ("deployment", "master"))), "their controllers see them")
    with pytest.raises(ClusterError, match=rf"Deployment {world.name}/master: 0 of 2 pods"):
        ready.wait(client, wanted, 1)
    world.tool("create", "--filename", "-", stdin={
        "apiVersion": "v1", "kind": "Node", "metadata": {
            "name": world.name, "annotations": {"kwok.x-k8s.io/node": "fake"},
            "labels": selector},
        "status": {"allocatable": {"cpu": "8", "memory": "8Gi", "pods": "50"},
                   "capacity": {"cpu": "8", "memory": "8Gi", "pods": "50"}}})
    ready.wait(client, wanted, 180)
    daemons = world.get("daemonset", "agent")["status"]
    assert daemons["numberReady"] == 1
    # A status that others write all the time is no drift.
    assert not deliver.present(client, wanted, [world.name], False)["changed"]
    world.tool("delete", "node", world.name)


def test_a_live_operator_is_refused(client: Client, kubectl: Kubectl, audit: Audit, fresh: Callable[[], str]) -> None:
    refuse_operator(client)
    assert len(audit.requests) == 1
    definition, space = crd("nvidia.com", "ClusterPolicy", "clusterpolicies", "v1"), fresh()
    kubectl("create", "namespace", space)
    with removed(kubectl, client, definition):
        create(kubectl, definition)
        kubectl("create", "--filename", "-", stdin={"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy",
                                                    "metadata": {"name": "cluster-policy"}, "spec": {}})
        refuse_operator(client)
        spec = {**samples.deployment(), "replicas": 1}
        kubectl("create", "--filename", "-", stdin={"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {
            "name": "gpu-operator", "namespace": space, "labels": {"app": "gpu-operator"}}, "spec": spec})
        with pytest.raises(ClusterError, match=f"ClusterPolicy cluster-policy, Deployment {space}/gpu-operator"):
            refuse_operator(client)
        kubectl("scale", "--namespace", space, "deployment", "gpu-operator", "--replicas", "0")
        refuse_operator(client)
    kubectl("delete", "namespace", space)
