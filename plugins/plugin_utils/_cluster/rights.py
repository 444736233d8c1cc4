# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the user of the kubeconfig may make the changes of a plan, asked before the first of them. PRIVATE."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._cluster import kinds
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._cluster.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._cluster.errors import ClusterError, without_errors
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._cluster.plan import Change

# Verb, kind, namespace (empty for a cluster-wide one).
Right = t.Tuple[str, kinds.Kind, str]

# An apply that makes an object needs both.
_VERBS: t.Mapping[str, t.Sequence[str]] = {"create": ("create", "patch"), "delete": ("delete",),
                                           "replace": ("delete", "create", "patch")}


def require(client: Client, changes: t.Sequence[Change]) -> None:
    """Raises ClusterError (status 403) that names every right that is missing for these changes."""
    needed: dict[Right, str] = {}
    for change in changes:
        if change.writes:
            for verb in _VERBS.get(change.action, ("patch",)):
                needed.setdefault((verb, change.kind, change.namespace), change.label)
    missing = []
    for right, answer in zip(needed, without_errors(client.many(lambda one: client.may(*one), needed))):
        if not answer:
            missing.append(right)
    if missing:
        raise ClusterError(f"The user of this kubeconfig may not {_told(missing)}.",
                           "Give the user these rights, or name the kubeconfig of another; nothing has been changed.",
                           verb="plan", object=needed[missing[0]], status=403, reason="Forbidden",
                           missing=[f"{verb} {kind.resource}{_place(space)}" for verb, kind, space in missing])


def _told(rights: t.Sequence[Right]) -> str:
    """C(create, patch serviceaccounts, configmaps in namespace x; delete daemonsets.apps in namespace y)."""
    verbs: dict[tuple[kinds.Kind, str], list[str]] = {}
    for verb, kind, namespace in rights:
        verbs.setdefault((kind, namespace), []).append(verb)
    groups: dict[tuple[str, str], list[str]] = {}
    for (kind, namespace), mine in verbs.items():
        groups.setdefault((", ".join(mine), namespace), []).append(kind.resource)
    return "; ".join(f"{mine} {', '.join(names)}{_place(space)}" for (mine, space), names in groups.items())


def _place(namespace: str) -> str:
    return f" in namespace {namespace}" if namespace else ""
