# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What foreign hands change is repaired, exactly that, and what is theirs stays."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._cluster.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._cluster.errors import ClusterError

from tests.integration_cluster import samples
from tests.integration_cluster.conftest import Audit, Kubectl
from tests.integration_cluster.drifts import ENV, ON_COMPONENTS, ON_SAMPLES, container, ds, patch, repaired
from tests.integration_cluster.world import World


@pytest.fixture(scope="module")
def world(kubectl: Kubectl, kubeconfig: str) -> World:
    made = World(kubectl, Client(kubeconfig), "drift", samples.objects("drift"))
    made.run()
    return made


@pytest.mark.parametrize("drift", ON_SAMPLES)
def test_a_drift_is_repaired(world: World, audit: Audit, drift: str) -> None:
    found = ON_SAMPLES[drift]
    assert not world.run()["changed"], "the former test left something"
    before = world.settled()
    repaired(world, audit, found)
    after = world.settled()
    moved = {key for key in after if before.get(key) != after[key]}
    assert all(re.search(rf"'{found.kind}', .*'{found.name}'", key) for key in moved)
    assert not world.run(check=True)["changed"]


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
    world.run()
    KEPT[act](world)
    before = world.settled()
    audit.start()
    assert not world.run()["changed"]
    assert not audit.writes
    assert world.versions() == before
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
    manifest = world.wanted("Deployment")
    former = manifest["spec"].pop("replicas")
    world.run()
    world.kubectl("scale", "deployment", "master", "--replicas", "4")
    assert not world.run()["changed"]
    assert world.get("deployment", "master")["spec"]["replicas"] == 4
    manifest["spec"]["replicas"] = former
    world.run()


def test_what_we_no_longer_want_goes(world: World) -> None:
    pod = world.wanted("DaemonSet")["spec"]["template"]["spec"]
    variable = pod["containers"][0]["env"].pop(0)
    done = world.run()
    assert [step["id"] for step in done["plan"]] == ["update: DaemonSet drift/agent"]
    assert [one["reasons"] for one in done["objects"] if one["action"] == "update"] == [
        ["spec.template.spec.containers[0].env"]]
    assert "MODE" in done["diff"][0]["before"] and "MODE" not in done["diff"][0]["after"]
    found = world.get("daemonset", "agent")["spec"]["template"]["spec"]["containers"][0]["env"]
    assert [one["name"] for one in found] == ["NOTHING", "NODE_NAME"]
    pod["containers"][0]["env"].insert(0, variable)
    assert world.run()["changed"] and not world.run()["changed"]


def test_the_diff_of_a_repair_shows_the_drift_and_nothing_else(world: World) -> None:
    ds("containers/0/env/-", "add", ENV)(world)
    entry = world.run(check=True)["diff"][0]
    before, after = entry["before"].splitlines(), entry["after"].splitlines()
    assert [line.strip() for line in before if line not in after] == ["- name: ADDED", "value: x"]
    assert [line for line in after if line not in before] == []
    world.run()


INJECT: dict[str, Any] = {
    "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicy", "metadata": {"name": "inject"},
    "spec": {
        "matchConstraints": {"resourceRules": [{
            "apiGroups": ["apps"], "apiVersions": ["v1"], "resources": ["daemonsets"],
            "operations": ["CREATE", "UPDATE"]}]},
        "reinvocationPolicy": "Never",
        "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": (
            "Object{spec: Object.spec{template: Object.spec.template{metadata: Object.spec.template.metadata{"
            "annotations: {'injected': 'yes'}}}}}")}}]}}
BOUND = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicyBinding",
         "metadata": {"name": "inject"}, "spec": {"policyName": "inject", "matchResources": {
             "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "drift"}}}}}


def test_what_admission_adds_to_each_write_stays(world: World, audit: Audit) -> None:
    for one in (INJECT, BOUND):
        world.kubectl("apply", "--server-side", "--filename", "-", stdin=one)

    def injected() -> bool:
        annotations = world.get("daemonset", "agent")["spec"]["template"]["metadata"].get("annotations") or {}
        return "injected" in annotations

    for number in range(60):  # it takes the server a moment to take notice of the policy
        ds("containers/0/image", "replace", f"evil:{number}")(world)
        assert world.run()["counts"]["repair"] == 1
        if injected():
            break
        time.sleep(0.5)
    audit.start()
    assert injected() and not world.run()["changed"] and not audit.writes
    world.kubectl("delete", "mutatingadmissionpolicybinding,mutatingadmissionpolicy", "inject")


def test_an_addition_that_comes_back_ends_no_run_late(world: World) -> None:
    over = threading.Event()

    def stubborn() -> None:
        """Writes hostPID whenever it is not there."""
        hand = Client(world.tool.kubeconfig)
        while not over.is_set():
            found = hand.get("apps/v1", "DaemonSet", "agent", "drift") or {}
            if "hostPID" not in found["spec"]["template"]["spec"]:
                with contextlib.suppress(ClusterError):
                    hand.merge_patch("apps/v1", "DaemonSet", "agent", "drift", {
                        "spec": {"template": {"spec": {"hostPID": True}}}}, field_manager="stubborn")

    other = threading.Thread(target=stubborn)
    other.start()
    try:
        for _time in range(3):
            while "hostPID" not in world.get("daemonset", "agent")["spec"]["template"]["spec"]:
                time.sleep(0.1)
            try:
                assert world.run()["counts"]["repair"] == 1
            except ClusterError as error:
                assert "others write it faster than it can be repaired: stubborn" in error.message
    finally:
        over.set()
        other.join()
    world.run()
    assert not world.run()["changed"]
