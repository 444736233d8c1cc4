# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the user of the kubeconfig may make the changes of a plan, asked before the first of them. PRIVATE."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import GpuopsError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._cluster import kinds
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._cluster.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._cluster.errors import ClusterError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._cluster.plan import Change

# Verb, kind, namespace (empty for a cluster-wide one).
Right = t.Tuple[str, kinds.Kind, str]

# An apply that makes an object needs both.
_VERBS: t.Mapping[str, t.Sequence[str]] = {"create": ("create", "patch"), "delete": ("delete",)}
_SHOWN = 8


def require(client: Client, changes: t.Sequence[Change]) -> None:
    """Raises ClusterError (status 403) that names every right that is missing for these changes."""
    needed: dict[Right, str] = {}
    for change in changes:
        if change.writes:
            for verb in _VERBS.get(change.action, ("patch",)):
                needed.setdefault((verb, change.kind, change.namespace), change.label)
    answers = client.many(lambda right: client.may(*right), needed)
    missing = []
    for (right, label), answer in zip(needed.items(), answers):
        if isinstance(answer, GpuopsError):
            raise answer
        if not answer:
            missing.append((_told(right), label))
    if missing:
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        raise ClusterError(
            f"The user of this kubeconfig lacks rights for {missing[0][1]} and what belongs to it: "
            f"{', '.join(told for told, _label in missing[:_SHOWN])}{more}.",
            "Give the user these rights, or name the kubeconfig of another; nothing has been changed.",
            verb="plan", object=missing[0][1], status=403, reason="Forbidden",
            missing=[told for told, _label in missing])


def _told(right: Right) -> str:
    verb, kind, namespace = right
    return f"{verb} {kind.resource}{f' in namespace {namespace}' if namespace else ''}"
