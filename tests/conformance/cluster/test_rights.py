# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""No pod of ours has more permissions than the pod of the operator with the same name, whatever the policy."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from tests.conformance.cluster import cases
from tests.conformance.cluster.forms import facts_of, flat

Right = tuple[str, str, str]  # cluster or namespace, group/resource (names), verb


def rights(facts: dict[str, Any]) -> dict[str, set[Right]]:
    """Maps each DaemonSet to the permissions of its service account: the rules of all roles that are bound to it, one
    by one."""
    rules: dict[tuple[str, str], set[tuple[str, str]]] = {}
    bound: dict[tuple[str, str], dict[str, Any]] = {}
    accounts: dict[str, str] = {}
    for path, value in facts.items():
        kind, name, *rest = path.split(" | ")
        if kind in ("Role", "ClusterRole") and rest:
            rules.setdefault((kind, name), set()).update((rest[0], verb) for verb in value)
        elif kind in ("RoleBinding", "ClusterRoleBinding"):
            bound.setdefault((kind, name), {})[rest[0]] = value
        elif kind == "DaemonSet" and rest == ["serviceAccountName"]:
            accounts[name] = value
    return {pod: {("cluster" if kind == "ClusterRoleBinding" else "namespace", what, verb)
                  for (kind, _name), binding in bound.items() if account in binding["subjects"]
                  for what, verb in rules.get((kind[:-len("Binding")], binding["role"]), ())}
            for pod, account in accounts.items()}


def wider(name: str, manifests: list[dict[str, Any]]) -> list[tuple[str, Right]]:
    """The permissions that our pods have in addition to those of the operator's pods. A permission for all objects
    covers one for some objects, and a cluster-wide permission covers a namespaced one."""
    theirs = rights(cases.expected(name))

    def covered(pod: str, right: Right) -> bool:
        _where, what, verb = right
        every = what.partition(" (")[0]
        return any(one in theirs[pod] for one in (right, ("cluster", what, verb), ("cluster", every, verb),
                                                  (right[0], every, verb)))

    return [(pod, right) for pod, mine in rights(dict(flat(facts_of(manifests)))).items() for right in sorted(mine)
            if not covered(pod, right)]


@pytest.mark.parametrize("name", cases.NAMES)
def test_never_wider(name: str) -> None:
    made = cases.ours(name)
    assert wider(name, made) == []
    assert sum(map(len, rights(dict(flat(facts_of(made)))).values())) > 20


def _role(manifests: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    return next(one for one in manifests if (one["kind"], one["metadata"]["name"]) == (kind, name))


@pytest.mark.parametrize(("spoil", "expected"), [
    (lambda all_: _role(all_, "ClusterRole", "nvidia-driver")["rules"][0]["verbs"].append("delete"),
     ("nvidia-driver-daemonset", ("cluster", "/nodes", "delete"))),
    (lambda all_: _role(all_, "Role", "nvidia-mig-manager")["rules"][0]["resources"].append("secrets"),
     ("nvidia-mig-manager", ("namespace", "/secrets", "delete"))),
    (lambda all_: _role(all_, "ClusterRoleBinding", "nvidia-driver")["subjects"].append(
        {"kind": "ServiceAccount", "name": "nvidia-device-plugin", "namespace": "gpu-operator"}),
     ("nvidia-device-plugin-daemonset", ("cluster", "/nodes", "patch"))),
    # what the operator allows in the namespace alone
    (lambda all_: _role(all_, "ClusterRole", "nvidia-mig-manager")["rules"].append(
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["update"]}),
     ("nvidia-mig-manager", ("cluster", "/configmaps", "update"))),
    (lambda all_: _role(all_, "Role", "nvidia-operator-validator")["rules"].append(
        {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["one"], "verbs": ["get"]}),
     ("nvidia-operator-validator", ("namespace", "/secrets (one)", "get"))),
])
def test_a_wider_rule_is_seen(spoil: Callable[[list[dict[str, Any]]], Any], expected: tuple[str, Right]) -> None:
    manifests = copy.deepcopy(cases.ours("default"))
    assert wider("default", manifests) == []
    spoil(manifests)
    assert expected in wider("default", manifests)
