# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Changes by other clients are repaired, and nothing else; fields of other clients stay."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.errors import ClusterError

from tests.integration_cluster import samples
from tests.integration_cluster.conftest import Audit, Kubectl
from tests.integration_cluster.drifts import (
    ENV,
    ON_COMPONENTS,
    ON_SAMPLES,
    container,
    ds,
    patch,
    repaired,
    title,
    together,
)
from tests.integration_cluster.proxy import Flaky
from tests.integration_cluster.world import World, release
from tests.waiting import until


@pytest.fixture(scope="module")
def left(kubeconfig: str) -> Iterator[None]:
    """Removes our label from the Namespace at the end."""
    yield
    release(Client(kubeconfig), "drift")


@pytest.fixture
def world(kubectl: Kubectl, client: Client, left: None) -> World:
    """The same objects for each test, in their desired state, whatever an earlier test has left."""
    made = World(kubectl, client, "drift", samples.objects("drift"))
    made.run()
    return made


@pytest.mark.parametrize("names", together(ON_SAMPLES), ids=title)
def test_drifts_are_repaired(world: World, audit: Audit, names: tuple[str, ...]) -> None:
    repaired(world, audit, [ON_SAMPLES[name] for name in names])


def test_drifts_are_many_and_a_third_of_them_additions() -> None:
    every = [*ON_SAMPLES.values(), *ON_COMPONENTS.values()]
    assert len(every) >= 80 and sum(one.added for one in every) >= 40
    assert not {*ON_SAMPLES} & {*ON_COMPONENTS}
    assert sum(one.added for one in ON_COMPONENTS.values()) * 3 >= len(ON_COMPONENTS)


KEPT: dict[str, Callable[[World], object]] = {
    "DaemonSet annotated": lambda world: world.kubectl("annotate", "daemonset", "agent", "example.org/note=x"),
    "ConfigMap labelled": lambda world: world.kubectl("label", "configmap", "settings", "example.org/team=x"),
    "Namespace labelled": lambda world: world.kubectl("label", "namespace", "drift", "example.org/team=x"),
    "status": lambda world: world.kubectl("patch", "daemonset", "agent", "--subresource", "status", "--type", "merge",
                                          "--patch", '{"status": {"collisionCount": 7}}'),
    "rollout restart": lambda world: world.kubectl("rollout", "restart", "daemonset", "agent"),
    "image pull secret of a ServiceAccount": patch("serviceaccount", "agent", "add", "/imagePullSecrets",
                                                   [{"name": "theirs"}]),
    "finalizer": patch("configmap", "settings", "add", "/metadata/finalizers", ["example.org/keep"]),
    "the same value by another manager": lambda world: world.server_side(container(image="example.org/agent:1")),
}


@pytest.mark.parametrize("act", KEPT)
def test_what_is_theirs_stays(world: World, audit: Audit, act: str) -> None:
    KEPT[act](world)
    try:
        before = world.settled()
        audit.start()
        assert not world.run()["changed"]
        assert not audit.writes
        assert world.versions() == before
    finally:
        if act == "finalizer":
            world.patch("configmap", "settings", {"op": "remove", "path": "/metadata/finalizers"})


def test_a_repair_leaves_what_is_theirs(world: World) -> None:
    world.kubectl("annotate", "--overwrite", "daemonset", "agent", "example.org/note=mine")
    world.kubectl("rollout", "restart", "daemonset", "agent")
    ds("hostPID", "add", True)(world)
    assert world.run()["counts"]["repair"] == 1
    found = world.get("daemonset", "agent")
    assert found["metadata"]["annotations"]["example.org/note"] == "mine"
    template = found["spec"]["template"]
    assert "kubectl.kubernetes.io/restartedAt" in template["metadata"]["annotations"]
    assert "hostPID" not in template["spec"]


def test_replicas_that_we_do_not_name_are_the_autoscalers(world: World) -> None:
    del world.wanted("Deployment")["spec"]["replicas"]
    world.run()
    world.kubectl("scale", "deployment", "master", "--replicas", "4")
    assert not world.run()["changed"]
    assert world.get("deployment", "master")["spec"]["replicas"] == 4


def test_what_we_no_longer_want_goes(world: World) -> None:
    world.wanted("DaemonSet")["spec"]["template"]["spec"]["containers"][0]["env"].pop(0)
    done = world.run()
    assert [step["id"] for step in done["plan"]] == ["update: DaemonSet drift/agent"]
    assert [one["reasons"] for one in done["objects"] if one["action"] == "update"] == [
        ["spec.template.spec.containers[0].env"]]
    assert "MODE" in done["diff"][0]["before"] and "MODE" not in done["diff"][0]["after"]
    found = world.get("daemonset", "agent")["spec"]["template"]["spec"]["containers"][0]["env"]
    assert [one["name"] for one in found] == ["NOTHING", "NODE_NAME", "TARGET"]
    assert not world.run()["changed"]


def test_the_diff_of_a_repair_shows_the_drift_and_nothing_else(world: World) -> None:
    ds("containers/0/env/-", "add", ENV)(world)
    entry = world.run(check=True)["diff"][0]
    before, after = entry["before"].splitlines(), entry["after"].splitlines()
    assert [line.strip() for line in before if line not in after] == ["- name: ADDED", "value: x"]
    assert [line for line in after if line not in before] == []


INJECT: dict[str, Any] = {
    "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicy", "metadata": {"name": "inject"},
    "spec": {
        "matchConstraints": {"resourceRules": [{
            "apiGroups": ["apps"], "apiVersions": ["v1"], "resources": ["daemonsets"],
            "operations": ["CREATE", "UPDATE"]}]},
        "reinvocationPolicy": "Never",
        "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": (
            "Object{spec: Object.spec{template: Object.spec.template{metadata: Object.spec.template.metadata{"
            "annotations: {'injected': 'yes'}}, "
            "spec: Object.spec.template.spec{priorityClassName: 'system-cluster-critical'}}}}")}}]}}
BOUND = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicyBinding",
         "metadata": {"name": "inject"}, "spec": {"policyName": "inject", "matchResources": {
             "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "drift"}}}}}


@pytest.fixture
def admission(world: World) -> Iterator[None]:
    """An admission policy that adds an annotation to each DaemonSet that is written in the namespace, and sets another
    value for a field of ours."""
    world.kubectl("apply", "--server-side", "--filename", "-", stdin={
        "apiVersion": "v1", "kind": "List", "items": [INJECT, BOUND]})
    yield
    world.kubectl("delete", "mutatingadmissionpolicybinding,mutatingadmissionpolicy", "inject")


def test_what_admission_adds_to_each_write_stays(world: World, audit: Audit, admission: None) -> None:
    images = (f"evil:{number}" for number in itertools.count())

    def injected() -> bool:
        """Whether the policy has changed the repair of another image: the server activates the policy after a
        moment."""
        ds("containers/0/image", "replace", next(images))(world)
        assert world.run()["counts"]["repair"] == 1
        return "injected" in (world.get("daemonset", "agent")["spec"]["template"]["metadata"].get("annotations") or {})

    until(injected, "the server's policy takes effect")
    audit.start()
    assert not world.run()["changed"] and not audit.writes


@pytest.mark.parametrize("each", [1, 2])
def test_another_writer_that_does_not_rest_ends_the_run(world: World, kubeconfig: str, tmp_path: Path,
                                                        each: int) -> None:
    """The other client writes before each of our requests and wins every race, or adds something after each
    adoption."""
    sent = itertools.count(1)

    def rival(number: int, method: str, path: str) -> None:
        if method == "PATCH" and (count := next(sent)) % each == 0:
            ds("hostname", "add", f"rival-{count}")(world)

    ds("hostname", "add", "rival-0")(world)
    with Flaky(kubeconfig, rival) as server:
        bothered = World(world.tool, Client(server.kubeconfig(tmp_path)), world.name, world.manifests)
        with pytest.raises(ClusterError, match="others write it faster than it can be repaired: kubectl-patch"):
            bothered.run()
    assert next(sent) <= 13
    assert world.run()["counts"]["repair"] == 1 and not world.run()["changed"]
