# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What foreign hands change is repaired, exactly that, and what is theirs stays."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._cluster.client import Client

from tests.integration_cluster import samples
from tests.integration_cluster.conftest import Audit, Kubectl
from tests.integration_cluster.world import Object, World


@pytest.fixture(scope="module")
def world(kubectl: Kubectl, kubeconfig: str) -> World:
    made = World(kubectl, Client(kubeconfig), "drift", samples.objects("drift"))
    made.run()
    return made


def ds(path: str, op: str, value: Any = None) -> Callable[[World], None]:
    place = os.path.normpath(f"/spec/template/spec/{path}")
    operation = {"op": op, "path": place, **({} if op == "remove" else {"value": value})}
    return lambda world: world.patch("daemonset", "agent", operation)


def part(kind: str, name: str, path: str, op: str, value: Any = None) -> Callable[[World], None]:
    operation = {"op": op, "path": path, **({} if op == "remove" else {"value": value})}
    return lambda world: world.patch(kind, name, operation)


def container(**more: Any) -> Object:
    return {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "agent"},
            "spec": {"template": {"spec": {"containers": [{"name": "agent", **more}]}}}}


ENV = {"name": "ADDED", "value": "x"}
AGENT, SETTINGS, ROLE = "DaemonSet drift/agent", "ConfigMap drift/settings", "Role drift/agent"
DRIFTS: dict[str, tuple[str, Callable[[World], object]]] = {
    "image": (AGENT, ds("containers/0/image", "replace", "evil:1")),
    "image of an init container": (AGENT, ds("initContainers/0/image", "replace", "evil:1")),
    "env added": (AGENT, ds("containers/0/env/-", "add", ENV)),
    "env changed": (AGENT, ds("containers/0/env/0/value", "replace", "none")),
    "env removed": (AGENT, ds("containers/0/env/0", "remove")),
    "empty env set": (AGENT, ds("containers/0/env/1/value", "add", "something")),
    "hostPID": (AGENT, ds("hostPID", "add", True)),
    "nodeSelector key added": (AGENT, ds("nodeSelector/zone", "add", "a")),
    "container added": (AGENT, ds("containers/-", "add", {"name": "extra", "image": "evil:1"})),
    "toleration removed": (AGENT, ds("tolerations", "remove")),
    "toleration added": (AGENT, ds("tolerations/-", "add", {"operator": "Exists"})),
    "volume added": (AGENT, ds("volumes/-", "add", {"name": "etc", "hostPath": {"path": "/etc"}})),
    "volume changed": (AGENT, ds("volumes/0/hostPath/path", "replace", "/")),
    "mount removed": (AGENT, ds("containers/0/volumeMounts/1", "remove")),
    "limits changed": (AGENT, ds("containers/0/resources/limits/cpu", "replace", "2")),
    "command argument added": (AGENT, ds("initContainers/0/command/-", "add", "x")),
    "label in the pod template": (AGENT, ds("../metadata/labels/extra", "add", "x")),
    "update strategy": (AGENT, part("daemonset", "agent", "/spec/updateStrategy", "replace", {"type": "OnDelete"})),
    "security context added": (AGENT, ds("containers/0/securityContext", "add", {"privileged": True})),
    "env added by server-side apply": (AGENT, lambda world: world.server_side(container(env=[ENV]))),
    "image by server-side apply": (AGENT, lambda world: world.server_side(container(image="evil:2"))),
    "replaced as a whole": (AGENT, lambda world: world.replace(
        "daemonset", "agent", lambda item: item["spec"]["template"]["spec"].update(hostNetwork=True))),
    "managedFields cleared": (AGENT, part("daemonset", "agent", "/metadata/managedFields", "replace", [{}])),
    "rule deleted": (ROLE, part("role", "agent", "/rules/1", "remove")),
    "rule added": (ROLE, part("role", "agent", "/rules/-", "add",
                              {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]})),
    "all rules deleted": (ROLE, part("role", "agent", "/rules", "replace", [])),
    "cluster role": ("ClusterRole drift", part("clusterrole", "drift", "/rules/0/verbs/-", "add", "*")),
    "subject added": ("ClusterRoleBinding drift", part(
        "clusterrolebinding", "drift", "/subjects/-", "add",
        {"kind": "User", "name": "mallory", "apiGroup": "rbac.authorization.k8s.io"})),
    "ConfigMap edited": (SETTINGS, part("configmap", "settings", "/data/config.yaml", "replace", "other")),
    "ConfigMap key added": (SETTINGS, part("configmap", "settings", "/data/more", "add", "x")),
    "ConfigMap binary key added": (SETTINGS, part("configmap", "settings", "/binaryData", "add", {"b": "eA=="})),
    "Secret edited": ("Secret drift/token", part("secret", "token", "/data/password", "replace", "eA==")),
    "Service port added": ("Service drift/metrics", part("service", "metrics", "/spec/ports/-", "add",
                                                         {"name": "more", "port": 9500})),
    "our label removed": (AGENT, lambda world: world.kubectl("label", "daemonset", "agent",
                                                             "app.kubernetes.io/managed-by-")),
    "our label changed": (SETTINGS, lambda world: world.kubectl("label", "--overwrite", "configmap", "settings",
                                                                "app.kubernetes.io/managed-by=Helm")),
    "our annotation removed": (SETTINGS, lambda world: world.kubectl("annotate", "configmap", "settings",
                                                                     "gpuops.nvidia/applied-")),
    "label of the Namespace changed": ("Namespace drift", lambda world: world.kubectl(
        "label", "--overwrite", "namespace", "drift", "pod-security.kubernetes.io/enforce=baseline")),
    "scaled": ("Deployment drift/master", lambda world: world.kubectl("scale", "deployment", "master",
                                                                      "--replicas", "5")),
    "deleted": (SETTINGS, lambda world: world.kubectl("delete", "configmap", "settings")),
    "DaemonSet deleted": (AGENT, lambda world: world.kubectl("delete", "daemonset", "agent")),
    "RuntimeClass deleted": ("RuntimeClass drift", lambda world: world.kubectl("delete", "runtimeclass", "drift")),
}


@pytest.mark.parametrize("drift", DRIFTS)
def test_a_drift_is_repaired(world: World, audit: Audit, drift: str) -> None:
    target, change = DRIFTS[drift]
    assert not world.run()["changed"], "the former test left something"
    before = world.settled()
    change(world)
    audit.start()
    preview = world.run(check=True)
    assert not audit.writes
    done = world.run()
    assert [step["target"] for step in done["plan"]] == [target]
    assert preview["plan"] == done["plan"] and preview["diff"] == done["diff"]
    assert done["plan"][0]["action"] == ("create" if "deleted" in drift and "rule" not in drift else "update"
                                         if drift == "our annotation removed" else "repair")
    name = target.split()[1].split("/")[-1]
    assert {one["name"] for one in audit.writes} == {name}
    assert len(audit.writes) <= 3
    after = world.settled()
    moved = {key for key in after if before.get(key) != after[key]}
    assert all(re.search(rf"'{target.split()[0]}', .*'{name}'", key) for key in moved)
    audit.start()
    again = world.run()
    assert not again["changed"] and not again["plan"] and not again["diff"]
    assert not audit.writes
    assert world.versions() == after
    assert not world.run(check=True)["changed"]


KEPT: dict[str, Callable[[World], object]] = {
    "DaemonSet annotated": lambda world: world.kubectl("annotate", "daemonset", "agent", "example.org/note=x"),
    "ConfigMap labelled": lambda world: world.kubectl("label", "configmap", "settings", "example.org/team=x"),
    "Namespace labelled": lambda world: world.kubectl("label", "namespace", "drift", "example.org/team=x"),
    "status": lambda world: world.kubectl("patch", "daemonset", "agent", "--subresource", "status", "--type", "merge",
                                          "--patch", '{"status": {"collisionCount": 7}}'),
    "rollout restart": lambda world: world.kubectl("rollout", "restart", "daemonset", "agent"),
    "image pull secret of a ServiceAccount": part("serviceaccount", "agent", "/imagePullSecrets", "add",
                                                  [{"name": "theirs"}]),
    "finalizer": part("configmap", "settings", "/metadata/finalizers", "add", ["example.org/keep"]),
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
