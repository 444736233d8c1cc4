# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Publishes the GPU labels that hosts report as NodeFeature objects, from which NFD creates labels. PRIVATE.

There is one object for each Node, with our marks; other objects are never changed. Labels that NFD already maintains
because of another object are left out. Source: "NodeFeature custom resource" in kubernetes-sigs/node-feature-discovery.
"""

from __future__ import annotations

import time
import typing as t
from dataclasses import dataclass, replace

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import GpuopsError, InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Result
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import label_keys
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.label_keys import Labels
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.errors import ClusterError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.objects import Live, label_selector, marks
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.refuse_operator import refuse_operator
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import deploy_labels, label_nodes
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.deploy_labels import Change, Changes, Node, Terms

API, KIND = "nfd.k8s-sigs.io/v1alpha1", "NodeFeature"
NODE_LABEL = "nfd.node.kubernetes.io/node-name"
# The same labels as on the objects of the module operands, so that its removal finds these objects, too.
MARKS = marks("feature_discovery")


@dataclass(frozen=True)
class Work:
    """The change of the NodeFeature object of one Node.

    change: its new labels, and the annotation with the time since which no GPU has been found; live: the current
    object, None if there is none; gone: whether the object is to be deleted.
    """

    change: Change
    live: Live | None
    gone: bool = False


def publish(arguments: t.Mapping[str, t.Any], check_mode: bool,
            reported: t.Mapping[str, Labels] | None, unread: t.Collection[str] = ()) -> Result:
    """Runs the task. arguments: the options for target C(node_feature); reported: maps a Node to the labels of its
    host; unread: Nodes whose hosts could not read all their GPUs. The published labels of these Nodes are not changed
    because of such a failure.

    Returns the result of the task. Raises InputError and ClusterError before anything is written; later errors of
    single Nodes are in the result.
    """
    state, adopt = arguments["state"], label_keys.parse_adopt(arguments["adopt"])
    if state == "present" and reported is None:
        raise InputError("It is required with state present.", "Name the hosts whose labels their Nodes get.",
                         path="hosts")
    client = Client(arguments["kubeconfig"], arguments["context"])
    if state != "gathered":
        refuse_operator(client)
    nodes = label_nodes.chosen(label_nodes.read_nodes(client), arguments["nodes"], reported, client.server,
                               state == "present")
    everywhere = arguments["nodes"] is None and state != "present"
    live = _live(client, None if everywhere else {node.name for node in nodes})
    if state == "present" and not client.knows(API, KIND):
        raise ClusterError(f"{client.server} has no kind {KIND} ({API}).", "Deliver the component nfd first, or use "
                           "target node, which needs no Node Feature Discovery.", verb="list", object=KIND, status=404)
    reported = reported or {}
    wrong = label_nodes.invalid_labels(nodes, reported)
    silent = {*wrong, *(name for name in unread if name in live)}
    nodes = [_seen(node, live, None if node.name in silent else reported.get(node.name), adopt) for node in nodes]
    result: Result = {"changed": False, "notes": [], "warnings": [], "foreign": [], "diff": [], "counts": {
        "nodes": len(nodes), "gpu": sum(node.gpu for node in nodes), "changed": 0, "failed": 0}}
    if state == "gathered":
        return {**result, "nodes": {name: {"present": labels_of(one)} for name, one in live.items()}}
    terms = Terms(time.time(), arguments["gone_after"])
    if state == "present":
        lost = [_sighted(node, live[node.name]) for node in nodes if _lost(node, live.get(node.name))]
        texts = [*label_nodes.waiting(lost, terms), *label_nodes.kept_features(nodes)]
        result.update(notes=texts, warnings=texts, foreign=label_nodes.foreign(nodes, None))
        works = [work for work in (plan(node, live.get(node.name), terms) for node in nodes) if work]
    else:
        works, wrong = [Work(_removal(name, one), one, gone=True) for name, one in live.items()], {}
    namespace: str = arguments["namespace"]
    answers = [True] * len(works) if check_mode else client.many(lambda work: _write(client, work, namespace), works)
    failures = {work.change.node: str(answer) for work, answer in zip(works, answers)
                if isinstance(answer, GpuopsError)}
    done = [work.change for work, answer in zip(works, answers) if answer is True]
    return label_nodes.written(result, done, {**wrong, **failures},
                               f"{len(works) + len(wrong)} {KIND} objects could not be written", KIND)


def _live(client: Client, names: t.Collection[str] | None) -> dict[str, Live]:
    """Maps Nodes to our objects. names: only these Nodes; None for all Nodes, including Nodes that were deleted."""
    found = {one["metadata"]["labels"].get(NODE_LABEL, ""): one for one in client.list(
        API, KIND, None, label_selector(MARKS))}
    return {name: one for name, one in found.items() if names is None or name in names}


def labels_of(live: Live | None) -> dict[str, str]:
    """The labels that an object requests; empty if there is no object."""
    return dict(((live or {}).get("spec") or {}).get("labels") or {})


def _seen(node: Node, live: t.Mapping[str, Live], host: Labels | None, adopt: frozenset[str]) -> Node:
    """The Node without labels that NFD maintains because of our own object, so that they do not count as foreign."""
    ours = set(labels_of(live.get(node.name)))
    labels = {key: value for key, value in node.labels.items() if key not in ours}
    lists = {key: ",".join(name for name in value.split(",") if name not in ours)
             for key, value in node.annotations.items() if label_keys.is_nfd_list(key)}
    return replace(node, labels=labels, annotations={**node.annotations, **lists}, host=host, adopt=adopt)


def plan(node: Node, live: Live | None, terms: Terms) -> Work | None:
    """The changes for a Node whose host has reported labels, None if there are none. Pure."""
    if node.host is None:
        return None
    before = labels_of(live)
    known = _sighted(node, live or {})
    if _lost(node, live) and not deploy_labels.stayed_away(known, terms):
        first = deploy_labels.first_sighting(known, terms)
        return Work(first, live) if first else None
    wanted = deploy_labels.features(node) if node.gpu else {}
    if not wanted:
        return Work(_removal(node.name, live), live, gone=True) if live is not None else None
    labels: Changes = {key: wanted.get(key) for key in sorted({*before, *wanted}) if before.get(key) != wanted.get(key)}
    annotations: Changes = dict.fromkeys(known.annotations)
    if not labels and not annotations:
        return None
    return Work(Change(node.name, labels, {key: before[key] for key in labels if key in before}, annotations,
                       dict(known.annotations)), live)


def _lost(node: Node, live: Live | None) -> bool:
    """Whether our object publishes GPUs that the host does not have."""
    return node.host is not None and not node.gpu and live is not None


def _sighted(node: Node, live: Live) -> Node:
    """The Node with the annotation of our object that contains the time since which no GPU has been found."""
    kept = (live.get("metadata") or {}).get("annotations") or {}
    return replace(node, annotations={key: kept[key] for key in (node.sighting,) if key in kept})


def _removal(name: str, live: Live | None) -> Change:
    before = labels_of(live)
    return Change(name, dict.fromkeys(sorted(before)), before, {}, {})


def _write(client: Client, work: Work, namespace: str) -> bool:
    change = work.change
    if work.live is None:
        client.apply({"apiVersion": API, "kind": KIND, "metadata": {
            "name": f"gpuops-{change.node}", "namespace": namespace, "labels": {**MARKS, NODE_LABEL: change.node}},
            "spec": {"labels": change.labels}})
        return True
    meta = work.live["metadata"]
    if work.gone:
        client.delete(API, KIND, meta["name"], meta["namespace"], uid=meta["uid"])
        return True
    patch = {**({"metadata": {"annotations": change.annotations}} if change.annotations else {}),
             **({"spec": {"labels": change.labels}} if change.labels else {})}
    try:
        client.merge_patch(API, KIND, meta["name"], meta["namespace"], patch)
    except ClusterError as error:
        if error.status != 404:
            raise
        return False  # NFD removes the objects of a Node that is gone
    return True
