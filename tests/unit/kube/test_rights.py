# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One error names all missing permissions of the user, before anything is written."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube import refuse_operator
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.errors import ClusterError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import deploy_labels, label_nodes, read_cluster
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands import deliver
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._rollout import drift
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._rollout.rollout import Rollout
from ansible_collections.gpuops.nvidia.tests.unit.operands.test_removal import kinds_asked
from ansible_collections.gpuops.nvidia.tests.unit.simulated import clusters, server
from ansible_collections.gpuops.nvidia.tests.unit.simulated.server import ApiServer, Reply, Request, status

POLICY = {"nfd": {"enabled": False}, "driver": {"enabled": False}, "toolkit": {"enabled": False},
          "migManager": {"enabled": False}, "dcgmExporter": {"enabled": False}}
SPACE = "gpu-operator"
PCI = {"feature.node.kubernetes.io/pci-10de.present": "true"}


@pytest.fixture(scope="module")
def plan() -> dict[str, Any]:
    return clusters.plan(POLICY, clusters.facts(clusters.node(**PCI)))


DOCUMENT = pathlib.Path(__file__).parents[3] / "docs" / "cluster.md"


def documented() -> dict[str, Any]:
    """The documented ClusterRole, which users copy."""
    text = next(text for text in DOCUMENT.read_text().split("```yaml\n") if "\nkind: ClusterRole\n" in text[:99])
    found: dict[str, Any] = yaml.safe_load(text.partition("```")[0])
    return found


def held(role: dict[str, Any], asked: dict[str, Any]) -> bool:
    """Whether a role that is bound in the whole cluster allows a request, by the rules of the authorizer."""
    resource = "/".join(part for part in (asked["resource"], asked.get("subresource", "")) if part)
    return any(asked["group"] in rule["apiGroups"] and resource in rule["resources"] and asked["verb"] in rule["verbs"]
               for rule in role["rules"])


def guarded(api: ApiServer, role: dict[str, Any], used: set[tuple[str, str]]) -> None:
    """A server that answers each request according to the role. used: gets (verb, resource) of the allowed requests."""
    api.allowed = lambda asked: held(role, asked)

    def before(request: Request) -> Reply | None:
        row = server._place(request.path)[1]
        if row is None:
            return None
        if row.kind == "CustomResourceDefinition" and request.path in api.objects:
            api.objects[request.path]["status"] = {"conditions": [{"type": "Established", "status": "True"}]}
        new = request.verb == "apply" and request.path not in api.objects
        for verb in ("create", "patch") if new else ("patch",) if request.verb == "apply" else (request.verb,):
            if not held(role, {"verb": verb, "group": row.group, "resource": row.plural}):
                return status(403, f"may not {verb} {row.plural}")
            used.add((verb, row.plural))
        return None

    api.before = before


def may(api: ApiServer, rule: Callable[[dict[str, Any]], bool]) -> None:
    """A user with these permissions: the reviews and the list requests are answered accordingly."""
    api.allowed = rule

    def before(request: Request) -> Reply | None:
        parts = request.path.split("/")
        asked = {"verb": request.verb, "resource": parts[-1] if request.verb == "list" else parts[-2],
                 "namespace": SPACE if "namespaces" in parts[:-1] else ""}
        return status(403, "no") if request.verb in ("list", "get") and not rule(asked) else None

    api.before = before


def refused(do: Callable[[], object]) -> list[str]:
    with pytest.raises(ClusterError) as caught:
        do()
    assert caught.value.status == 403 and "docs/cluster.md" in caught.value.hint
    missing: list[str] = caught.value.details["missing"]
    assert all(one.split(" ")[1] in caught.value.message for one in missing)
    return missing


def test_nodes_are_among_them_where_new_operands_are_found_by_labels(api: ApiServer, client: Client,
                                                                     plan: dict[str, Any]) -> None:
    wanted = deliver.of_plan(plan, None)
    api.allowed = lambda asked: asked["resource"] not in ("nodes", "serviceaccounts")
    for check in (True, False):
        assert refused(lambda check=check: deliver.present(client, *wanted, check, labels=False)) == [
            "create serviceaccounts in namespace gpu-operator", "patch serviceaccounts in namespace gpu-operator",
            "patch nodes"]
    assert api.sent() == []
    api.allowed = lambda asked: asked["resource"] != "nodes"
    assert deliver.present(client, *wanted, check=True)["changed"], "manifests of the user's own label no Node"


def test_labels_that_differ_need_the_right_too(api: ApiServer, client: Client, plan: dict[str, Any]) -> None:
    wanted = deliver.of_plan(plan, None)
    deliver.present(client, *wanted, check=False)
    api.allowed = lambda asked: asked["resource"] != "nodes"
    assert not deliver.present(client, *wanted, check=False, labels=False)["changed"]
    assert refused(lambda: deliver.present(client, *wanted, check=False, labels=True)) == ["patch nodes"]
    api.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "labels": PCI}})
    arguments = {"state": "present", "deploy": plan["deploy"], "adopt": [], "nodes": None, "wait_for_nfd": 0,
                 "gone_after": 600, "kubeconfig": str(api.kubeconfig), "context": None}
    for check in (True, False):
        assert refused(lambda check=check: label_nodes.label_nodes(arguments, check)) == ["patch nodes"]


def test_who_may_not_give_rights_away_may_write_roles_with_his_own(api: ApiServer, client: Client,
                                                                   plan: dict[str, Any]) -> None:
    wanted = deliver.of_plan(plan, None)
    may(api, lambda asked: asked["verb"] not in ("escalate", "bind"))
    assert deliver.present(client, *wanted, check=True)["changed"]
    may(api, lambda asked: asked["verb"] not in ("escalate", "bind", "watch"))
    api.requests.clear()
    missing = refused(lambda: deliver.present(client, *wanted, check=False))
    assert {one.split(" in ")[0] for one in missing} == {
        f"{verb} {kind}.rbac.authorization.k8s.io" for kind in ("roles", "clusterroles") for verb in (
            "escalate", "bind")}
    assert api.sent() == []
    # By name is enough.
    may(api, lambda asked: asked["verb"] != "watch" and (asked["verb"] not in ("escalate", "bind")
                                                         or "name" in asked))
    assert deliver.present(client, *wanted, check=True)["changed"]


@pytest.mark.parametrize("labelled", [False, True])
def test_who_removes_all_needs_the_right_for_nodes_that_are_labelled(
        api: ApiServer, client: Client, plan: dict[str, Any], labelled: bool) -> None:
    """The labels are removed after the operands."""
    deliver.present(client, *deliver.of_plan(plan, None), check=False)
    marks = {deploy_labels.ANNOTATION: "nvidia.com/gpu.present"} if labelled else {}
    api.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "annotations": marks}})
    api.allowed = lambda asked: asked["resource"] != "nodes"
    api.before = kinds_asked
    api.requests.clear()
    if labelled:
        assert refused(lambda: deliver.absent(client, None, 1, False)) == ["patch nodes"]
        assert api.sent() == []
    assert deliver.absent(client, None if not labelled else ["device_plugin"], 1, True)["changed"]


READS: dict[str, Callable[[Client, dict[str, Any]], object]] = {
    "guard": lambda client, plan: refuse_operator.refuse_operator(client),
    "cluster": lambda client, plan: read_cluster.read_cluster(client),
    "operands": lambda client, plan: deliver.present(client, *deliver.of_plan(plan, None), check=False),
    "removal": lambda client, plan: deliver.absent(client, None, 1, False),
}


@pytest.mark.parametrize("what", READS)
def test_rights_to_read_are_named_at_once(api: ApiServer, client: Client, plan: dict[str, Any], what: str) -> None:
    api.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
    may(api, lambda asked: asked["resource"] in ("services", "runtimeclasses"))
    missing = refused(lambda: READS[what](client, plan))
    assert {"list nodes", "list clusterpolicies.nvidia.com", "list daemonsets.apps",
            "get customresourcedefinitions.apiextensions.k8s.io", "patch nodes"} <= set(missing)
    assert ("list secrets" in missing) == (what == "removal")
    assert any(one.startswith("create configmaps") for one in missing) and "list services" not in missing
    assert api.sent() == []


def test_the_namespace_of_the_operands_counts(api: ApiServer, client: Client, plan: dict[str, Any]) -> None:
    """A user can have permissions only there."""
    may(api, lambda asked: asked["namespace"] == SPACE)
    found = drift.differences(client, plan, None)[0]
    assert "may not list" in found.cause and "configmaps" not in found.cause.partition("To write")[0]


def test_what_the_reviews_do_not_explain_stays_as_the_server_said_it(api: ApiServer, client: Client) -> None:
    api.before = lambda request: status(403, "a webhook says no") if request.verb == "list" else None
    with pytest.raises(ClusterError, match="a webhook says no"):
        refuse_operator.refuse_operator(client)


WHOLE = {"ccManager": {"enabled": False}, "nodeStatusExporter": {"enabled": True}}
# What no run of this test does: an object that vanishes or is made anew while it is written, a driver's pods, a Node
# that is lost, a user's own NVIDIADriver.
SELDOM = {("get", "configmaps"), ("get", "pods"), ("get", "nodes"), ("get", "daemonsets"), ("list", "nvidiadrivers"),
          ("list", "controllerrevisions"), ("list", "events"), ("list", "pods"), ("get", "pods/log")}


def test_the_documented_role_is_enough_and_has_nothing_to_spare(api: ApiServer, client: Client) -> None:
    role, used = documented(), set[tuple[str, str]]()
    guarded(api, role, used)
    whole = clusters.plan(WHOLE, clusters.facts(clusters.node(**PCI), monitors=True))
    api.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "labels": PCI}})
    refuse_operator.refuse_operator(client)
    read_cluster.read_cluster(client)
    deliver.present(client, *deliver.of_plan(whole, None), check=False, labels=True)
    label_nodes.label_nodes({"state": "present", "deploy": whole["deploy"], "adopt": [], "nodes": None,
                             "wait_for_nfd": 0, "gone_after": 600, "kubeconfig": str(api.kubeconfig),
                             "context": None}, False)
    assert drift.differences(client, whole, None) == []
    assert Rollout(client, whole, [*whole["components"]]).now()
    for part in whole["components"].values():
        part.update(state="absent", because=["not wanted"])
    deliver.present(client, *deliver.of_plan(whole, None), check=False, labels=True)
    # Beside these it has what rights.named asks for where one of them is missing.
    needed = set[tuple[str, str]]()

    def asked(one: dict[str, Any]) -> bool:
        needed.add((one["verb"], one["resource"]))
        return False

    api.allowed, api.before = asked, lambda request: status(403, "no") if request.verb == "list" else None
    with pytest.raises(ClusterError):
        refuse_operator.refuse_operator(client)
    assert needed <= {(verb, name) for rule in role["rules"] for name in rule["resources"] for verb in rule["verbs"]}
    spare = {(verb, name) for rule in role["rules"] for name in rule["resources"] for verb in rule["verbs"]} - used
    spare -= needed | SELDOM | {(verb, name) for verb in ("escalate", "bind") for name in ("roles", "clusterroles")}
    # An object that others write at the same time is read anew.
    assert {verb for verb, _name in spare} <= {"get", "list"} and not spare & {("get", "secrets"), ("list", "secrets")}
