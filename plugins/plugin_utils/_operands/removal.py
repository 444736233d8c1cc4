# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Removes our objects, and the Namespace if we have created it and it has no foreign objects. PRIVATE."""

from __future__ import annotations

import time
import typing as t
from dataclasses import replace

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube import kinds, objects
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.changes import Change
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.errors import ClusterError, without_errors
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.objects import Key, Object
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands import apply, pending_changes
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands.node_by_node import LABELS, NodeByNode
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands.plan import WORKLOADS, prune

# Objects that the cluster itself creates in every namespace, and (_RECORDS) kinds whose loss does no harm.
_SYSTEM = {("ServiceAccount", "default"), ("ConfigMap", "kube-root-ca.crt")}
_NAMED = 10  # the maximum number of objects that a message lists
_RECORDS = ("Event", "Lease", "Endpoints", "EndpointSlice", "PodMetrics")
_NAMESPACE = ("v1", "Namespace")
# If pods of these components could not be ended, all objects of the components except workloads stay.
_KEPT = {*LABELS, objects.SHARED}
# Seconds: the first and the longest pause between two requests; the pause between two lines of progress.
_PAUSE, _LONGEST_PAUSE, _AGAIN = 0.2, 5.0, 15.0

Tell = t.Callable[[str], None]


def plan(client: Client, live: t.Mapping[Key, Object], components: t.Collection[str] | None,
         orphans: t.Collection[str] = (), by_nodes: bool = True) -> list[Change]:
    """The deletions of all our objects of these components (None: of all components, with the Namespace or our marks on
    it).

    The DaemonSets whose pods GPU clients need come first, and are deleted without their pods. orphans: the uids of
    objects that such a DaemonSet has left; by_nodes: whether pods may be ended Node by Node; if not, such a DaemonSet
    is deleted only if it has no pods.
    """
    changes = [replace(one, orphans=by_nodes and pending_changes.serves_gpu_clients(t.cast(Object, one.live)))
               for one in prune(client, live, (), components)]
    changes.sort(key=lambda one: not one.orphans)
    if components is None:
        for key, have in live.items():
            mark = have["metadata"].get("labels") or {}
            if key[:2] == _NAMESPACE and objects.COMPONENT in mark and "deletionTimestamp" not in have["metadata"]:
                changes.append(_namespace(client, have, orphans))
    return changes


def going(live: t.Mapping[Key, Object], components: t.Collection[str] | None) -> list[Object]:
    """Our objects that an earlier removal has deleted and that still exist."""
    return [have for have in live.values() if "deletionTimestamp" in have["metadata"] and objects.is_ours(have)
            and (components is None or objects.component_of(have) in components)]


def execute(client: Client, changes: t.Sequence[Change], before: t.Sequence[Object], timeout: float,
            tell: Tell, nodes: NodeByNode) -> list[Change]:
    """Executes a removal, and waits until all objects that it deletes are gone.

    before: objects that are already being deleted; nodes: ends the pods that DaemonSets leave, before the run deletes
    objects that these pods or other operands on their Nodes need; tell: called from time to time with a line about the
    remaining objects.

    Returns the changes that were made. If somebody has created an object in the Namespace since the plan was made, the
    Namespace is not deleted but released.

    Raises ClusterError at the end if Nodes were skipped. Their pods stay, and so do the Namespace and the objects that
    the pods need to start again or by which the next run finds them. Also raises ClusterError if no object has
    disappeared for timeout seconds. The whole wait has no limit, because it depends on the number of Nodes.
    """
    spaces = [one for one in changes if one.kind.kind == "Namespace"]
    rest, failed = end_pods(client, changes, before, timeout, tell, nodes)
    rest = [one for one in rest if one.kind.kind != "Namespace"]
    try:
        _remove(client, rest, [one for one in before if one["kind"] != "Namespace"], timeout, tell)
    except ClusterError as error:
        raise _both(failed, error) if failed else error from None
    if failed:
        raise failed
    # The Namespace is read again, because the wait may have taken minutes. An object that is created between this
    # request and the deletion is still lost: a deletion cannot require that the Namespace is empty.
    spaces = [_namespace(client, t.cast(Object, one.live)) if one.action == "delete" else one for one in spaces]
    _remove(client, spaces, [one for one in before if one["kind"] == "Namespace"], timeout, tell)
    return [*(one for one in changes if one.orphans), *rest, *spaces]


def end_pods(client: Client, changes: t.Sequence[Change], before: t.Sequence[Object], timeout: float, tell: Tell,
             nodes: NodeByNode, between: t.Sequence[Change] = ()) -> tuple[list[Change], ClusterError | None]:
    """Deletes DaemonSets without their pods, and ends the pods Node by Node. Arguments as for L(execute); between:
    changes to make when the DaemonSets are gone, before the first Node is changed.

    Returns (the other changes, without the deletion of objects that pods on skipped Nodes need; the error that names
    the Nodes that were skipped or have failed).
    """
    _remove(client, [one for one in changes if one.orphans],
            [one for one in before if pending_changes.serves_gpu_clients(one)], timeout, tell)
    nodes.keep_apart()
    apply.execute(client, between)
    failed = nodes.run()
    return [one for one in changes if not one.orphans and not (
        failed and one.component in _KEPT and one.action == "delete" and one.kind.kind not in WORKLOADS)], failed


def _remove(client: Client, changes: t.Sequence[Change], before: t.Sequence[Object], timeout: float, tell: Tell
            ) -> None:
    apply.execute(client, changes)
    deleted = [t.cast(Object, one.live) for one in changes if one.action == "delete"]
    _wait(client, [*deleted, *before], timeout, tell)


def foreign_in(client: Client, namespace: str, ours: t.Collection[str] = ()) -> list[str]:
    """The names of objects in a namespace that are neither ours nor the cluster's own, and have no owner. At most 10.

    ours: uids of objects that are ours without a mark.
    """
    rows = client.namespaced_kinds()
    if rows is None:
        return ["(this server does not list its kinds)"]
    found = []
    answers = client.many(lambda row: client.list_row(row, namespace, metadata_only=True),
                          [row for row in rows if row.kind not in _RECORDS])
    for answer in without_errors(answers):
        found += [f"{one['kind']} {one['metadata']['name']}" for one in answer
                  if not objects.is_ours(one) and not one["metadata"].get("ownerReferences")
                  and one["metadata"]["uid"] not in ours
                  and (one["kind"], one["metadata"]["name"]) not in _SYSTEM]
    return sorted(found)[:10]


def _namespace(client: Client, have: Object, orphans: t.Collection[str] = ()) -> Change:
    row = kinds.find(*_NAMESPACE)
    if objects.CREATED not in (have["metadata"].get("annotations") or {}):
        return Change("release", row, objects.SHARED, None, have, ("it was there before",))
    left = foreign_in(client, have["metadata"]["name"], orphans)
    if left:
        return Change("release", row, objects.SHARED, None, have, (f"others use it: {', '.join(left)}",))
    return Change("delete", row, objects.SHARED, None, have)


def _wait(client: Client, gone: t.Sequence[Object], timeout: float, tell: Tell) -> None:
    begin = moved = told = time.monotonic()
    least, pause = (len(gone) + 1, 0), _PAUSE
    while True:
        left = _left(client, gone)
        if not left:
            return
        # The pods of a DaemonSet are deleted before the DaemonSet. Only their number is requested.
        spaces = {one["metadata"]["namespace"] for one in left if one["kind"] in WORKLOADS}
        pods = sum(client.count("v1", "Pod", space) for space in sorted(spaces))
        now = time.monotonic()
        if (len(left), pods) < least:
            least, moved = (len(left), pods), now
        if now - moved > timeout:
            raise _stuck([objects.label_of(one) for one in left], pods, timeout)
        if now - told >= _AGAIN:
            tell(f"The removal has run for {now - begin:.0f} s. Left: {_said(len(left), pods)}.")
            told = now
        time.sleep(pause)
        pause = min(pause * 1.5, _LONGEST_PAUSE)


def _left(client: Client, gone: t.Sequence[Object]) -> list[Object]:
    """The objects of gone that still exist."""
    by_uid = {one["metadata"]["uid"]: one for one in gone}
    places = {(kinds.find(one["apiVersion"], one["kind"]), one["metadata"].get("namespace")) for one in gone}
    return [by_uid[item["metadata"]["uid"]] for kind, namespace in sorted(places, key=str)
            for item in client.list_row(kind, namespace, metadata_only=True) if item["metadata"]["uid"] in by_uid]


def _stuck(left: t.Sequence[str], pods: int, timeout: float) -> ClusterError:
    more = f" and {len(left) - _NAMED} more" if len(left) > _NAMED else ""
    return ClusterError(
        f"No object or pod was removed for {timeout:.0f} s. Left: {_said(len(left), pods)}: "
        f"{', '.join(left[:_NAMED])}{more}.",
        "Check their finalizers (metadata.finalizers) and the pods that they wait for; the next run continues.",
        verb="delete", object=left[0], reason="Timeout", left=left)


def _both(first: ClusterError, then: ClusterError) -> ClusterError:
    return ClusterError(f"{first.message} {then.message}", f"{then.hint} {first.hint}",
                        **{**first.details, **then.details})


def _said(count: int, pods: int) -> str:
    found = f"{count} object{'s' if count > 1 else ''}"
    return f"{found}, {pods} pod{'s' if pods > 1 else ''}" if pods else found
