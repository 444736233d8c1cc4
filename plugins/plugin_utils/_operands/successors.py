# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decides which pods and Nodes new DaemonSets would serve, by the rules of the DaemonSet controller. Pure.

PRIVATE to the collection.

The controller of DaemonSets adopts a pod without an owner if its labels match, and then ends the pod if the DaemonSet
does not select its Node. For Node selectors, affinity and taints, see "Assigning Pods to Nodes" and "Taints and
Tolerations" in the documentation of Kubernetes.
"""

from __future__ import annotations

import functools
import typing as t
from dataclasses import replace

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import node_terms
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.untolerated_taints import untolerated
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.changes import Change
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.objects import MPS_DAEMON, Object, label_of
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.workloads import required_terms
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands import pending_changes

_CHANGES = ("update", "repair", "replace", "adopt")


def split(changes: t.Sequence[Change], live: t.Iterable[Object], nodes: t.Callable[[], t.Sequence[Object]],
          over: t.Container[str]) -> tuple[list[Change], set[str], str]:
    """(the changes; the uids of the driver and MPS DaemonSets that are deleted and whose pods then end Node by Node;
    why none of them can be deleted).

    If the new fields of a DaemonSet would end pods, it is deleted and created again instead. A DaemonSet that is
    deleted is gone before the first Node is changed, even if it has no pods, because it could create pods. If a
    DaemonSet that stays would adopt the pods at once, no DaemonSet is deleted. live: the live objects; nodes: as for
    L(pending_changes.hold); over: components that still have pods afterwards.
    """
    nodes = functools.lru_cache(maxsize=None)(nodes)
    chosen, why = _chosen(changes, {one["metadata"]["uid"]: one for one in live if one["kind"] == "DaemonSet"}, nodes,
                          over)
    found: list[Change] = []
    for one in changes:
        if one.live is None or one.live["metadata"]["uid"] not in chosen:
            found.append(one)
            continue
        if one.action != "delete":
            found.append(replace(one, action="create", live=None))
        found.append(replace(one, action="delete", manifest=None))
    return found, chosen, why


def _chosen(changes: t.Sequence[Change], live: t.Mapping[str, Object], nodes: t.Callable[[], t.Sequence[Object]],
            over: t.Container[str]) -> tuple[set[str], str]:
    """(the uids of the DaemonSets that can be deleted without their pods, why none of them can)."""
    by_uid = {one.live["metadata"]["uid"]: one for one in changes if one.live and one.kind.kind == "DaemonSet"}
    going = {uid for uid, one in by_uid.items() if one.action == "delete"}
    chosen = {uid for uid, one in by_uid.items() if one.component in over and (
        uid in going if live[uid]["metadata"]["name"] == MPS_DAEMON else pending_changes.serves_gpu_clients(live[uid])
        and (uid in going or one.action in _CHANGES and pending_changes.ends(one, nodes)))}
    for taker in sorted(live.keys() - going - chosen):
        for uid in sorted(chosen):
            if _takes(live[taker], live[uid]) and pending_changes.pods_of(live[uid]):
                return set(), (f"{label_of(live[taker])} stays, and it would take the pods of {label_of(live[uid])} "
                               "and end them at once, as it selects them, too")
    return chosen, ""


def _takes(other: Object, live: Object) -> bool:
    """Whether another DaemonSet selects the pods of this one."""
    return (other["metadata"]["uid"] != live["metadata"]["uid"]
            and other["metadata"]["namespace"] == live["metadata"]["namespace"]
            and selects(other, live["spec"]["template"]["metadata"].get("labels") or {}))


def selects(daemon_set: Object, labels: t.Mapping[str, str]) -> bool:
    """Whether a DaemonSet selects pods with these labels in its namespace."""
    selector = daemon_set["spec"]["selector"]
    exact, expressions = selector.get("matchLabels") or {}, selector.get("matchExpressions") or ()
    return bool(exact or expressions) and exact.items() <= labels.items() and all(
        node_terms.holds(one, labels) for one in expressions)


def time_to_start(daemon_set: Object) -> float:
    """The seconds that the kubelet gives the containers of a pod to start (their startupProbes), or 0."""
    probes = [one["startupProbe"] for one in daemon_set["spec"]["template"]["spec"].get("containers") or ()
              if one.get("startupProbe")]
    return max((float(one.get("initialDelaySeconds", 0)) + one.get("periodSeconds", 10) * one.get("failureThreshold", 3)
                for one in probes), default=0.0)


def keeps(wanted: t.Iterable[Object], pod: Object, node: Object) -> bool:
    """Whether a wanted DaemonSet, with the name of the DaemonSet that created the pod, will adopt the pod and let it
    run on its Node. False if other DaemonSets also select the pod, as one of them may adopt and end it first."""
    metadata = pod["metadata"]
    takers = [one for one in wanted if one["metadata"]["namespace"] == metadata["namespace"]
              and selects(one, metadata.get("labels") or {})]
    return len(takers) == 1 and metadata.get("generateName") == f"{takers[0]['metadata']['name']}-" and runs_on(
        takers[0], node, ("NoExecute",))


def runs_on(daemon_set: Object, node: Object, effects: t.Collection[str] = ("NoExecute", "NoSchedule")) -> bool:
    """Whether a DaemonSet runs a pod on a Node. effects: the effects of taints that keep the pod away."""
    spec = daemon_set["spec"]["template"]["spec"]
    labels = node["metadata"].get("labels") or {}
    taints = [one for one in (node.get("spec") or {}).get("taints") or () if one["effect"] in effects]
    terms = required_terms(spec)
    return bool((spec.get("nodeSelector") or {}).items() <= labels.items()
                and not untolerated(taints, spec.get("tolerations") or ())
                and (terms is None or node_terms.any_matches(terms, node["metadata"]["name"], labels)))
