# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks before the first write that the user of the kubeconfig has all permissions that a run needs. PRIVATE.

A user needs the verb escalate to create a role with permissions that the user does not have, and the verb bind to bind
such a role (Kubernetes documentation, "Privilege escalation prevention and bootstrapping").
"""

from __future__ import annotations

import contextlib
import typing as t

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube import kinds
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.changes import Change
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.errors import ClusterError, without_errors
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.objects import Object

# Verb, kind, namespace (empty for the whole cluster).
Right = t.Tuple[str, kinds.Kind, str]

_RBAC = "rbac.authorization.k8s.io/v1"
_ROLES, _BINDINGS = ("Role", "ClusterRole"), ("RoleBinding", "ClusterRoleBinding")
# Maps the action of a change to the verbs that it needs; other actions need patch. A server-side apply that creates an
# object needs create and patch.
_VERBS: t.Mapping[str, t.Sequence[str]] = {"create": ("create", "patch"), "delete": ("delete",),
                                           "replace": ("delete", "create", "patch")}
_NODE = kinds.find("v1", "Node")
LABEL_NODES: Right = ("patch", _NODE, "")
EVICT_PODS: Right = ("create", kinds.Kind("v1", "Eviction", "pods/eviction", True, 0), "")
_LISTED = (("v1", "Node"), ("v1", "Pod"), ("v1", "Event"), ("apps/v1", "ControllerRevision"),
           ("nvidia.com/v1", "ClusterPolicy"))
_READ = (("apiextensions.k8s.io/v1", "CustomResourceDefinition"), ("v1", "Node"), ("v1", "Pod"),
         ("apps/v1", "DaemonSet"))
_HINT = ("Give the user these permissions (a ClusterRole with all of them is in docs/cluster.md), or use the "
         "kubeconfig of another user.")


def require(client: Client, changes: t.Sequence[Change], besides: t.Sequence[Right] = ()) -> None:
    """Raises ClusterError (status 403) that names all missing permissions.

    changes: the changes whose permissions are checked; besides: further permissions to check.
    """
    needed: dict[Right, str] = {}
    granted: dict[Right, list[Change]] = {}
    for change in changes:
        if change.writes:
            for verb in _VERBS.get(change.action, ("patch",)):
                needed.setdefault((verb, change.kind, change.namespace), change.label)
        right = _grants(change)
        if right:
            needed.setdefault(right, change.label)
            granted.setdefault(right, []).append(change)
    needed.update({right: needed.get(right, f"a {right[1].kind}") for right in besides})
    roles = {(change.kind.kind, change.namespace, change.manifest["metadata"]["name"]): change.manifest
             for change in changes if change.manifest and change.kind.kind in _ROLES}
    missing = [right for right in _lacking(client, needed) if right not in granted or not all(
        _holds(client, right, change, roles) for change in granted[right])]
    if missing:
        raise _error(f"The user of this kubeconfig may not {_text(missing)}. Nothing has been changed.", missing,
                     needed[missing[0]])


@contextlib.contextmanager
def named(client: Client, namespace: str = "", everything: bool = False) -> t.Iterator[None]:
    """A context manager that, if a read is forbidden, raises one ClusterError that names all missing permissions.

    namespace: the namespace of the operands, empty if it is not known yet; everything: also check the kinds that only a
    removal reads.
    """
    try:
        yield
    except ClusterError as error:
        if error.status != 403 or "missing" in error.details:
            raise
        rows = [(row, "" if _anywhere(row) else namespace) for row in kinds.shipped(everything)]
        reads = _lacking(client, [("list", row, space) for row, space in rows]
                         + [("list", kinds.find(*one), "") for one in _LISTED]
                         + [("get", kinds.find(*one), namespace if kinds.find(*one).namespaced else "")
                            for one in _READ])
        if not reads:
            raise
        writes = _lacking(client, [(verb, row, space) for row, space in rows if row.shipped
                                   for verb in ("create", "patch", "delete")] + [LABEL_NODES])
        more = f" To write, a run also needs: {_text(writes)}." if writes else ""
        raise _error(f"The user of this kubeconfig may not {_text(reads)}.{more}", [*reads, *writes],
                     error.object) from error


def _anywhere(row: kinds.Kind) -> bool:
    """Whether a run lists a kind in all namespaces, for example to find another NFD or the objects of Prometheus."""
    return not row.namespaced or row.kind in ("DaemonSet", "Deployment") or row.rank == kinds.CUSTOM


def _error(message: str, missing: t.Sequence[Right], label: str) -> ClusterError:
    return ClusterError(message, _HINT, verb="plan", object=label, status=403, reason="Forbidden",
                        missing=[f"{verb} {kind.resource}{_place(space)}" for verb, kind, space in missing])


def _lacking(client: Client, rights: t.Iterable[Right]) -> list[Right]:
    unique = list(dict.fromkeys(rights))
    return [right for right, held in zip(unique, without_errors(client.many(lambda right: client.may(*right), unique)))
            if not held]


def _grants(change: Change) -> Right | None:
    """The permission escalate or bind, which a change of a role or binding needs; None for other changes.

    It is not needed if the user has all permissions of the role.
    """
    if not change.writes or not change.manifest or change.action == "delete":
        return None
    if change.kind.kind in _ROLES:
        return "escalate", change.kind, change.namespace
    if change.kind.kind in _BINDINGS:
        return "bind", kinds.find(_RBAC, str(change.manifest["roleRef"]["kind"])), change.namespace
    return None


def _holds(client: Client, right: Right, change: Change, roles: t.Mapping[t.Tuple[str, str, str], Object]) -> bool:
    """Whether the user may create this role or binding: with escalate or bind, or with all permissions of the role.

    roles: maps kind, namespace and name to a role among the changes. A binding to another role is not checked.
    """
    verb, kind, namespace = right
    manifest = t.cast(Object, change.manifest)
    name = manifest["metadata"]["name"] if verb == "escalate" else manifest["roleRef"]["name"]
    role = roles.get((kind.kind, namespace if kind.namespaced else "", name))
    if role is None or client.may(verb, kind, namespace, name):
        return True
    rules = {(verb, kinds.Kind(f"{group}/v1" if group else "v1", resource, resource, True, 0), namespace, object_name)
             for rule in role.get("rules") or () for group in rule.get("apiGroups") or ()
             for resource in rule.get("resources") or () for verb in rule["verbs"]
             for object_name in rule.get("resourceNames") or ("",)}
    return all(without_errors(client.many(lambda rule: client.may(*rule), rules)))


def _text(rights: t.Sequence[Right]) -> str:
    """Permissions in a message: C(create, patch serviceaccounts, configmaps in namespace x; delete daemonsets.apps)."""
    verbs: dict[tuple[kinds.Kind, str], list[str]] = {}
    for verb, kind, namespace in rights:
        verbs.setdefault((kind, namespace), []).append(verb)
    groups: dict[tuple[str, str], list[str]] = {}
    for (kind, namespace), words in verbs.items():
        groups.setdefault((", ".join(words), namespace), []).append(kind.resource)
    return "; ".join(f"{words} {', '.join(names)}{_place(space)}" for (words, space), names in groups.items())


def _place(namespace: str) -> str:
    return f" in namespace {namespace}" if namespace else ""
