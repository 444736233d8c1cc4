# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes labels to Nodes: lists all Nodes once, and patches Nodes that differ, several at the same time. PRIVATE."""

from __future__ import annotations

import time
import typing as t
from dataclasses import replace

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import GpuopsError, InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Result, diff_entry
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import label_keys, wording
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.label_keys import WORKLOAD, Labels
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.wording import labels_stay, mig_manager_not_started
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube import rights
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.errors import ClusterError, without_errors
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.refuse_operator import refuse_operator
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.status import is_ready
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import deploy_labels, read_cluster
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.deploy_labels import (
    Change,
    Deploy,
    Node,
    Summary,
    Terms,
)

PAUSE = 2.0  # seconds between two requests while labels of NFD are awaited
fold = wording.fold


class Foreign(t.TypedDict):
    """Labels of others, and the Nodes that have them."""

    labels: t.List[str]
    nodes: t.List[str]


class Gathered(t.TypedDict):
    """A Node in the result of state gathered. wanted: planned labels; present: ours; foreign: labels of others."""

    gpu: bool
    wanted: t.Dict[str, str]
    present: t.Dict[str, str]
    foreign: t.Dict[str, str]


def label_nodes(arguments: t.Mapping[str, t.Any], check_mode: bool,
                reported: t.Mapping[str, Labels] | None = None, unread: t.Collection[str] = ()) -> Result:
    """Runs the task: reads the Nodes, plans the changes and writes them.

    arguments: the options for target C(node); reported: maps a Node to the labels that gpu_labels has computed on its
    host, None if the task is not about features; unread: Nodes whose hosts could not read all their GPUs. The present
    labels of these Nodes are not changed because of such a failure.

    Returns the result of the task. Raises InputError and ClusterError before anything is written; later errors of
    single Nodes are in the result.
    """
    state = arguments["state"]
    if state == "present" and arguments["deploy"] is None and reported is None:
        raise InputError("With state present, deploy or hosts is required.", "Set deploy to gpu_plan.cluster.deploy of "
                         "a resolved plan, or set hosts to the hosts whose labels their Nodes get.", path="deploy")
    deploy = None if arguments["deploy"] is None else deploy_labels.parse_deploy(arguments["deploy"])
    adopt = label_keys.parse_adopt(arguments["adopt"])
    take_over = arguments.get("take_over", False)
    if take_over:
        adopt |= deploy_labels.CONTAINER_SET | {label_keys.PRESENT}
    client = Client(arguments["kubeconfig"], arguments["context"])
    if state != "gathered" and not take_over:
        refuse_operator(client)
    # In check mode NFD is not delivered, so its labels would not appear. If hosts have reported their labels, the run
    # waits for NFD only if it delivers NFD.
    awaited = state == "present" and deploy and not check_mode and (not reported or "nfd" in deploy.components)
    wait = arguments["wait_for_nfd"] if awaited else 0
    only_reported = state == "present" and deploy is None
    with rights.named(client):
        every = read_nodes(client, wait)
    found = chosen(every, arguments["nodes"], reported, client.server, only_reported)
    reported = reported or {}
    wrong = invalid_labels(found, reported)
    silent = {*wrong, *(node.name for node in found if node.name in unread and "nvidia.com/gpu.product" in node.labels)}
    nodes = [replace(node, host=None if node.name in silent else reported.get(node.name), adopt=adopt)
             for node in found]
    if any(adopt & node.nfd for node in nodes) and read_cluster.whose_nfd(client) == "none":
        nodes = [replace(node, orphaned=True) for node in nodes]
    if state == "absent":
        plans = [deploy_labels.plan_absent(replace(node, adopt=node.adopt | (node.written & {deploy_labels.MIG_STATE})))
                 for node in nodes]
        return _write_all(client, plans, _result(nodes, left_over(nodes), [], []), {}, check_mode)
    nodes = _with_readiness(client, nodes, deploy)
    terms = Terms(time.time(), arguments["gone_after"])
    undecided = [node.name for node in nodes if deploy and deploy_labels.undecided(node, deploy)]
    result = _result(nodes, notes(nodes, deploy, terms), foreign(nodes, deploy), undecided)
    if state == "gathered":
        return {**result, "nodes": gathered(nodes, deploy)}
    plans = [deploy_labels.plan_present(node, deploy, terms) for node in nodes]
    return _write_all(client, plans, result, wrong, check_mode)


def differing(client: Client, given: t.Mapping[str, t.Any],
              with_gpus: t.Mapping[str, int] | None = None) -> dict[str, Summary]:
    """Maps a Node to the deploy labels that a run would change.

    given: C(gpu_plan.cluster.deploy); with_gpus: maps a Node to the number of GPUs that its host has reported. Present
    feature labels count as correct.
    """
    deploy, with_gpus = replace(deploy_labels.parse_deploy(given), ended_on=None), with_gpus or {}
    nodes = [node.with_gpus(with_gpus[node.name]) if with_gpus.get(node.name) else node for node in read_nodes(client)]
    nodes = _with_readiness(client, nodes, deploy)
    changes = (deploy_labels.plan_present(node, deploy, Terms(time.time())) for node in nodes)
    return {change.node: change.summary() for change in changes if change}


def invalid_labels(nodes: t.Iterable[Node], reported: t.Mapping[str, Labels]) -> dict[str, str]:
    """Maps a Node to the reason why the labels that its host has reported are invalid and are not written."""
    faults = {node.name: label_keys.wrong_feature(reported.get(node.name, {})) for node in nodes}
    return {name: f"Node {name}: the labels that its host reports are invalid: {text}."
            for name, text in faults.items() if text}


def _result(nodes: t.Sequence[Node], texts: list[str], others: list[Foreign], undecided: list[str]) -> Result:
    """The keys that all results have. texts: notes; others: labels of others; undecided: as in the result."""
    counts = {"nodes": len(nodes), "gpu": sum(node.gpu for node in nodes),
              "without_nfd": sum(not node.described for node in nodes), "changed": 0, "failed": 0}
    return {"changed": False, "notes": texts, "warnings": texts, "foreign": others, "diff": [], "undecided": undecided,
            "counts": counts}


def _write_all(client: Client, plans: t.Iterable[Change | None], result: Result, wrong: t.Mapping[str, str],
               check_mode: bool) -> Result:
    """Writes the changes of the plans, and returns the result. wrong: maps a Node to the reason why its plan is
    incomplete."""
    changes = [change for change in plans if change]
    rights.require(client, [], [rights.LABEL_NODES] if changes else [])
    done, failures = (changes, {}) if check_mode else label(client, changes)
    return written(result, done, {**wrong, **failures}, f"{len(changes) + len(wrong)} Nodes could not be labelled")


def written(result: Result, done: t.Sequence[Change], failures: t.Mapping[str, str], failed: str,
            kind: str = "Node") -> Result:
    """The result of a task that has written changes. failures: maps the Nodes that failed to their errors; failed: the
    text C(5 Nodes could not be labelled), with the number of all Nodes to write; kind: the kind of written objects."""
    found = {**result, "changed": bool(done), "diff": diff(done, kind), "failures": failures,
             "counts": {**result["counts"], "changed": len(done), "failed": len(failures)},
             "nodes": {change.node: change.summary() for change in done}}
    return {**found, "failed": True, "msg": f"{len(failures)} of {failed} ({fold(failures)}), the others are. "
            f"{next(iter(failures.values()))}"} if failures else found


def foreign(nodes: t.Iterable[Node], deploy: Deploy | None) -> list[Foreign]:
    """The labels that we would write but that others have set. Nodes with the same labels are one entry."""
    return [{"labels": keys, "nodes": names}
            for keys, names in _grouped(nodes, lambda node: deploy_labels.foreign(node, deploy))]


def chosen(found: list[Node], names: t.Sequence[str] | None, reported: t.Mapping[str, Labels] | None, server: str,
           reported_only: bool) -> list[Node]:
    """The Nodes of a task. names: None for all; reported_only: whether to omit Nodes whose hosts have not reported."""
    known = {node.name for node in found}
    for path, given, hint in (
            ("nodes", names or (), "Name Nodes as kubectl get nodes shows them, or omit the option for all Nodes."),
            ("hosts", reported or (), "Set gpu_node_name of a host whose Node has another name, or omit the host.")):
        missing = sorted(set(given) - known)
        if missing:
            raise InputError(f"{server} has no Node {fold(missing)}.", hint, path=path, value=missing)
    return [node for node in found if (names is None or node.name in names)
            and (not reported_only or node.name in (reported or ()))]


def read_nodes(client: Client, wait_for_nfd: float = 0) -> list[Node]:
    """All Nodes with their labels. Their status, which is most of a Node, is not requested.

    wait_for_nfd: the seconds to wait until a Node has a label of NFD, and then until no further Nodes get labels.
    Raises ClusterError if no Node gets a label of NFD in this time.
    """
    nodes = _list(client)
    if wait_for_nfd and nodes and not any(node.described for node in nodes):
        return _await_nfd(client, wait_for_nfd)
    return nodes


def _with_readiness(client: Client, nodes: t.Sequence[Node], deploy: Deploy | None) -> list[Node]:
    """The same Nodes. Reads whether they are Ready, but only for Nodes that seem to have lost their GPU."""
    lost = [node for node in nodes if node.host is None and deploy_labels.seems_gone(node, deploy)]
    states = without_errors(client.many(lambda node: client.get("v1", "Node", node.name), lost))
    ready = {node.name for node, state in zip(lost, states) if state and is_ready(state)}
    return [replace(node, ready=node.name in ready) for node in nodes]


def _list(client: Client) -> list[Node]:
    return [Node(meta["name"], meta.get("labels") or {}, meta.get("annotations") or {},
                 written=read_cluster.written(meta))
            for meta in (item["metadata"] for item in client.list("v1", "Node", metadata_only=True))]


def _await_nfd(client: Client, seconds: float) -> list[Node]:
    end = time.monotonic() + seconds
    before = 0
    while True:
        late = time.monotonic() >= end
        nodes = _list(client)
        now = sum(node.described for node in nodes)
        if now and (now == before or late):
            return nodes
        if late:
            raise ClusterError(f"No Node of {client.server} got a label of Node Feature Discovery "
                               f"({label_keys.NFD}...) within {seconds:g} seconds.",
                               "Check the pods of node-feature-discovery: kubectl get pods -A | grep "
                               "node-feature-discovery. Or increase wait_for_nfd.", object="Node", verb="list")
        before = now
        time.sleep(PAUSE)


def label(client: Client, changes: t.Sequence[Change]) -> tuple[list[Change], dict[str, str]]:
    """Writes the changes. Returns (the changes that were written, a mapping of the other Nodes to their errors).

    A Node that was deleted meanwhile is in neither.
    """
    answers = client.many(lambda change: _write(client, change), changes)
    failures = {change.node: str(answer) for change, answer in zip(changes, answers)
                if isinstance(answer, GpuopsError)}
    return [change for change, answer in zip(changes, answers) if answer is True], failures


def _write(client: Client, change: Change) -> bool:
    """Writes a change. Returns whether the Node still exists. The Node in the answer is not kept, because 5,000 Nodes
    would need much memory."""
    try:
        client.merge_patch("v1", "Node", change.node, None, change.patch())
    except ClusterError as error:
        if error.status == 404:
            return False
        raise
    return True


def gathered(nodes: t.Iterable[Node], deploy: Deploy | None) -> dict[str, Gathered]:
    """Describes each Node that has a GPU, or deploy or feature labels."""
    shown: dict[str, Gathered] = {}
    for node in nodes:
        planned = deploy_labels.wanted_labels(node, deploy) if node.gpu and deploy else {}
        present, others = deploy_labels.owned(node)
        shown[node.name] = {"gpu": node.gpu, "wanted": {**planned, **(node.host or {} if node.gpu else {})},
                            "present": present, "foreign": others}
    return {name: one for name, one in shown.items() if any(one.values())}


def notes(nodes: t.Sequence[Node], deploy: Deploy | None, terms: Terms) -> list[str]:
    """Sentences for the user about the Nodes, in addition to the changes."""
    texts = []
    if nodes and not any(node.described for node in nodes):
        texts.append("No Node has labels of Node Feature Discovery, so it is not known which Nodes have a GPU. "
                     "Deliver the component nfd, and set wait_for_nfd to the seconds to wait for its labels.")
    sandbox = [node.name for node in nodes if node.gpu and node.labels.get(WORKLOAD) in deploy_labels.SANDBOX]
    if sandbox:
        texts.append(f"{fold(sandbox)}: {WORKLOAD} requests virtual machines, which this version does not "
                     "support. No operand is delivered there.")
    lost = [node for node in nodes if deploy_labels.seems_gone(node, deploy)]
    kept = [node.name for node in lost if not (node.ready or node.host is not None)]
    gone = [node for node in lost if node.name not in kept]
    if kept:
        texts.append(f"{fold(kept)}: no GPU is seen any more, but the Node is not Ready. Its labels are kept until "
                     "it is.")
    away = [node for node in gone if deploy_labels.stayed_away(node, terms)]
    stay = staying([node for node in nodes if node.gpu] + away, deploy) if deploy else []
    waits = [node.name for node in nodes if deploy and node.gpu and deploy_labels.manager_waits(node, deploy)]
    stay += [mig_manager_not_started(fold(waits))] if waits else []
    return texts + waiting(gone, terms) + stay + kept_features(nodes)


def staying(nodes: t.Iterable[Node], deploy: Deploy) -> list[str]:
    """A sentence for each set of deploy labels that are no longer planned but stay."""
    return [labels_stay(fold(names), keys, deploy.pods_may_end)
            for keys, names in _grouped(nodes, lambda node: frozenset(deploy_labels.kept_labels(node, deploy)))]


def left_over(nodes: t.Iterable[Node]) -> list[str]:
    """A sentence for each set of deploy labels that a removal leaves although we may have written them."""
    return [f"{fold(names)}: {', '.join(keys)} {'stay' if len(keys) > 1 else 'stays'}, as nothing says that we wrote "
            f"{'them' if len(keys) > 1 else 'it'}. To remove: kubectl label node NODE "
            f"{' '.join(f'{key}-' for key in keys)}" for keys, names in _grouped(nodes, deploy_labels.left_over)]


def _grouped(nodes: t.Iterable[Node], labels: t.Callable[[Node], frozenset[str]]) -> list[tuple[list[str], list[str]]]:
    """[(labels, the names of the Nodes for which the function returns these)]. Nodes without labels are left out."""
    groups: dict[frozenset[str], list[str]] = {}
    for node in nodes:
        groups.setdefault(labels(node), []).append(node.name)
    return [(sorted(keys), names) for keys, names in groups.items() if keys]


def waiting(lost: t.Iterable[Node], terms: Terms) -> list[str]:
    """A sentence about the Nodes that have lost their GPUs but keep their labels for now."""
    names = [node.name for node in lost if not deploy_labels.stayed_away(node, terms)]
    return [f"{fold(names)}: no GPU is seen any more. The labels go in the first run after this has been so for "
            f"{terms.gone_after:g} seconds (gone_after)."] if names else []


def kept_features(nodes: t.Iterable[Node]) -> list[str]:
    """A sentence about the Nodes on which others maintain features that hosts have reported."""
    theirs = [node.name for node in nodes
              if any(not label_keys.is_deploy(key) for key in deploy_labels.foreign(node, None))]
    return [f"{fold(theirs)}: labels that the hosts have told are kept there by Node Feature Discovery (GPU feature "
            "discovery publishes through it) or by others; ours are left out. See foreign."] if theirs else []


def diff(changes: t.Iterable[Change], kind: str = "Node") -> list[dict[str, str]]:
    """The diff for Ansible. Nodes with the same change are one entry."""
    groups: dict[tuple[str, str], list[str]] = {}
    for change in changes:
        before = _text(change.before, change.annotations_before)
        after = _text({**change.before, **change.labels}, {**change.annotations_before, **change.annotations})
        groups.setdefault((before, after), []).append(change.node)
    return [diff_entry(f"{kind}{'s' if len(names) > 1 else ''} {fold(names)}", before, after)
            for (before, after), names in groups.items()]


def _text(labels: t.Mapping[str, str | None], annotations: t.Mapping[str, str | None]) -> str:
    return "".join(f"{kind} {key}={values[key]}\n" for kind, values in (("label", labels), ("annotation", annotations))
                   for key in sorted(values) if values[key] is not None)
