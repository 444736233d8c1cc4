# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The work of `operands`: read, plan, carry out, say what was done. PRIVATE to the collection."""

from __future__ import annotations

import collections
import typing as t
from dataclasses import asdict

from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step, diff_entry, outcome
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._cluster import (
    apply,
    diff,
    hand_back,
    live,
    operator,
    removal,
    rights,
    take_over,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._cluster.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._cluster.errors import ClusterError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._cluster.objects import Wanted
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._cluster.plan import Change, plan
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._cluster.workloads import COMPONENT, workload

_ACTIONS = ("create", "update", "repair", "replace", "adopt", "delete", "release", "reuse", "keep")
_SHOWN_REASONS = 5


def present(client: Client, wanted: t.Sequence[Wanted], components: t.Collection[str] | None, check: bool,
            guard: t.Callable[[Client], None] = lambda client: None) -> dict[str, t.Any]:
    """Makes the cluster hold what is wanted, and of components (None: of all) nothing else. Returns the result.

    guard: raises where this cluster must not be written; not asked where there is nothing to write. The result has
    C(workloads), the DaemonSets and Deployments as counts, where nothing was written: then they are still so.
    """
    there = live.read(client, wanted)
    try:
        changes = plan(client, wanted, there, components)
    except ClusterError:
        guard(client)  # what is in the way of an object may be all of another's
        raise
    writes = any(change.writes for change in changes)
    if writes:
        guard(client)
    rights.require(client, changes)
    if check:
        apply.rehearse(client, changes, there)
    else:
        apply.execute(client, changes)
    seen = [] if writes else [asdict(workload(item)) for item in there.values()
                              if item["kind"] in ("DaemonSet", "Deployment")
                              and COMPONENT in (item["metadata"].get("labels") or {})]
    return {**result(client, changes), "workloads": seen}


def taken_over(client: Client, wanted: t.Sequence[Wanted], components: t.Collection[str],
               check: bool) -> dict[str, t.Any]:
    """The same in a cluster that a GPU Operator owns: it is stopped, and what is wanted of its objects becomes ours.

    All writes are tried on the server before the operator is stopped. The result has C(warnings): what the user has to
    know of who installed it.
    """
    found = operator.read(client)
    there = live.read(client, wanted)
    take_over.check(found, wanted, there)
    changes = [*operator.stop(found), *plan(client, wanted, there, components, operator.owns)]
    rights.require(client, changes)
    apply.rehearse(client, changes, there)
    if not check:
        apply.execute(client, [change for change in changes if change.action == "stop"])
        take_over.wait_stopped(client, found)
        # The operator may have written until it ended.
        there = live.read(client, wanted)
        apply.execute(client, plan(client, wanted, there, components, operator.owns))
    return {**result(client, changes), "workloads": [], "warnings": take_over.notes(found, changes, there)}


def handed_back(client: Client, policy: t.Mapping[str, t.Any], check: bool) -> dict[str, t.Any]:
    """Gives all objects of ours to the GPU Operator that is installed. C(operator): whether there is one."""
    changes = hand_back.plan(client, dict(policy))
    rights.require(client, changes or [])
    if not check:
        hand_back.execute(client, changes or [])
    return {**result(client, changes or []), "operator": changes is not None}


def absent(client: Client, components: t.Collection[str] | None, timeout: float, check: bool) -> dict[str, t.Any]:
    """Removes what is ours of components (None: all, and the Namespace), and waits up to timeout seconds."""
    there = live.read(client, [], everything=True)
    changes = removal.plan(client, there, components)
    rights.require(client, changes)
    if not check:
        removal.execute(client, changes, timeout)
    return result(client, changes)


def result(client: Client, changes: t.Sequence[Change]) -> dict[str, t.Any]:
    """C({changed, plan, diff, objects: [{object, component, action, reasons, before, after}], counts, server})."""
    shown, steps, differences = [], [], []
    for change in changes:
        before, after = _pair(change) if change.writes else ({}, {})
        shown.append({"object": change.label, "component": change.component, "action": change.action,
                      "reasons": list(change.reasons), "before": before, "after": after})
        if change.writes:
            steps.append(Step(change.action, change.label, _reason(change)))
            differences.append(diff_entry(change.label, diff.text(before), diff.text(after)))
    counts = collections.Counter(change.action for change in changes)
    return outcome(steps, (), differences, objects=shown, counts={name: counts[name] for name in _ACTIONS},
                   server=client.server)


def _pair(change: Change) -> tuple[dict[str, t.Any], dict[str, t.Any]]:
    if change.action in ("hand over", "forget"):
        return {}, {}  # nothing but marks
    return diff.pair(None if change.action in ("delete", "release") else change.manifest, change.live)


def _reason(change: Change) -> str:
    more = len(change.reasons) - _SHOWN_REASONS
    return ", ".join(change.reasons[:_SHOWN_REASONS]) + (f" and {more} more" if more > 0 else "")
