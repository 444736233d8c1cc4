# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Deploy labels on the Nodes of a cluster: one list, one concurrent PATCH for each that differs. PRIVATE."""

from __future__ import annotations

import re
import time
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import GpuopsError, InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._labels import _deploy
from ansible_collections.gpuops.nvidia.plugins.module_utils._labels._deploy import Change, Deploy, Node
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import diff_entry
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._cluster.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._cluster.errors import ClusterError, without_errors
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._cluster.guard import refuse_operator

PAUSE = 2.0  # seconds between two looks for NFD's labels
SHOWN = 12  # names, or ranges of names, in a text
_NUMBERED = re.compile(r"([^.]*?)(\d+)([^\d.]*(?:\..*)?)")


def label_nodes(arguments: t.Mapping[str, t.Any], check_mode: bool) -> dict[str, t.Any]:
    """The whole task: reads the Nodes, plans, writes. arguments: the options that go with target C(node).

    Returns the result of the task. Raises InputError and ClusterError before anything is written; what then goes wrong
    with single Nodes is in the result.
    """
    state = arguments["state"]
    if state == "present" and arguments["deploy"] is None:
        raise InputError("It is needed for state present.", "Give gpu_plan.cluster.deploy of a resolved plan.",
                         path="deploy")
    deploy = None if arguments["deploy"] is None else _deploy.parse_deploy(arguments["deploy"])
    client = Client(arguments["kubeconfig"], arguments["context"])
    if state != "gathered":
        refuse_operator(client)
    # What check mode would deliver does not label anything: waiting for it would be in vain.
    wait = arguments["wait_for_nfd"] if state == "present" and not check_mode else 0
    nodes = read_nodes(client, arguments["nodes"], wait)
    said = notes(nodes) if state != "absent" else []
    undecided = [node.name for node in nodes if state != "absent" and deploy and _deploy.undecided(node, deploy)]
    result: dict[str, t.Any] = {"changed": False, "notes": said, "warnings": said, "diff": [], "undecided": undecided}
    counts = {"nodes": len(nodes), "gpu": sum(node.gpu for node in nodes),
              "without_nfd": sum(not node.described for node in nodes), "changed": 0, "failed": 0}
    if state == "gathered":
        return {**result, "nodes": gathered(nodes, deploy), "counts": counts}
    plans = [_deploy.plan_present(node, deploy) if state == "present" and deploy else _deploy.plan_absent(node)
             for node in nodes]
    changes = [change for change in plans if change]
    done, failures = (changes, {}) if check_mode else label(client, changes)
    counts.update(changed=len(done), failed=len(failures))
    result.update(changed=bool(done), diff=diff(done), counts=counts, failures=failures,
                  nodes={change.node: change.summary() for change in done})
    if failures:
        result.update(failed=True, msg=f"{len(failures)} of {len(changes)} Nodes could not be labelled "
                      f"({fold(failures)}), the others are. {next(iter(failures.values()))}")
    return result


def read_nodes(client: Client, names: t.Sequence[str] | None = None, wait_for_nfd: float = 0) -> list[Node]:
    """The Nodes (all, or those named) with their labels, without their status: that is most of a Node.

    wait_for_nfd: seconds to look again while no Node carries a label of NFD, and then while more Nodes get theirs.
    Raises InputError for a name that is no Node, ClusterError where NFD stays away.
    """
    nodes = _list(client, names)
    if wait_for_nfd and nodes and not any(node.described for node in nodes):
        nodes = _await_nfd(client, names, wait_for_nfd)
    lost = [node for node in nodes if node.seems_gone]
    ready = set()
    states = without_errors(client.many(lambda node: client.get("v1", "Node", node.name), lost))
    for node, state in zip(lost, states):
        if state and _is_ready(state):
            ready.add(node.name)
    return [Node(node.name, node.labels, node.annotations, node.name in ready) for node in nodes]


def _list(client: Client, names: t.Sequence[str] | None) -> list[Node]:
    found = [Node(meta["name"], meta.get("labels") or {}, meta.get("annotations") or {})
             for meta in (item["metadata"] for item in client.list("v1", "Node", metadata_only=True))]
    if names is None:
        return found
    missing = sorted(set(names) - {node.name for node in found})
    if missing:
        raise InputError(f"{client.server} has no Node {fold(missing)}.",
                         "Name Nodes as kubectl get nodes shows them, or leave the option out for all of them.",
                         path="nodes", value=missing)
    return [node for node in found if node.name in names]


def _await_nfd(client: Client, names: t.Sequence[str] | None, seconds: float) -> list[Node]:
    end = time.monotonic() + seconds
    before = 0
    while True:
        late = time.monotonic() >= end
        nodes = _list(client, names)
        now = sum(node.described for node in nodes)
        if now and (now == before or late):
            return nodes
        if late:
            raise ClusterError(f"No Node of {client.server} got a label of Node Feature Discovery ({_deploy.NFD}...) "
                               f"within {seconds:g} seconds.",
                               "Look at the pods of node-feature-discovery: kubectl get pods -A | grep "
                               "node-feature-discovery; or wait longer: wait_for_nfd.", object="Node", verb="list")
        before = now
        time.sleep(PAUSE)


def _is_ready(node: t.Mapping[str, t.Any]) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or []
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def label(client: Client, changes: t.Sequence[Change]) -> tuple[list[Change], dict[str, str]]:
    """Writes the changes. Returns (those that are done, by Node why not).

    A Node that is gone meanwhile is neither: there is nothing left to do.
    """
    answers = client.many(lambda change: _write(client, change), changes)
    failures = {change.node: str(answer) for change, answer in zip(changes, answers)
                if isinstance(answer, GpuopsError)}
    return [change for change, answer in zip(changes, answers) if answer is True], failures


def _write(client: Client, change: Change) -> bool:
    """Whether the Node was still there. Its state in the answer is not kept: 5,000 of them would be much."""
    try:
        client.merge_patch("v1", "Node", change.node, None, change.patch())
    except ClusterError as error:
        if error.status == 404:
            return False
        raise
    return True


def gathered(nodes: t.Iterable[Node], deploy: Deploy | None) -> dict[str, dict[str, t.Any]]:
    """By Node that has a GPU or labels of this family: C({gpu, wanted, present, foreign})."""
    shown = {node.name: {"gpu": node.gpu, "wanted": _deploy.wanted_labels(node, deploy) if node.gpu and deploy else {},
                         **_deploy.owned(node)} for node in nodes}
    return {name: one for name, one in shown.items() if any(one.values())}


def notes(nodes: t.Sequence[Node]) -> list[str]:
    """What a user ought to know of the Nodes beside what changes."""
    said = []
    if nodes and not any(node.described for node in nodes):
        said.append("No Node carries labels of Node Feature Discovery, so that none is known to have a GPU. "
                    "Deliver the component nfd, and give wait_for_nfd the seconds to wait for it.")
    sandbox = [node.name for node in nodes if node.gpu and node.labels.get(_deploy.WORKLOAD) in _deploy.SANDBOX]
    if sandbox:
        said.append(f"{fold(sandbox)}: {_deploy.WORKLOAD} asks for virtual machines, which this version does not "
                    "serve. No operand is delivered there.")
    kept = [node.name for node in nodes if node.seems_gone and not node.ready]
    if kept:
        said.append(f"{fold(kept)}: no GPU is seen any more, but the Node is not Ready. Its labels are kept until "
                    "it is.")
    return said


def diff(changes: t.Iterable[Change]) -> list[dict[str, str]]:
    """Ansible's diff: Nodes with the same change are one entry."""
    groups: dict[tuple[str, str], list[str]] = {}
    for change in changes:
        before = _text(change.before, change.ours_before)
        after = {**change.before, **change.labels}
        after_text = _text({key: value for key, value in after.items() if value is not None}, change.ours)
        groups.setdefault((before, after_text), []).append(change.node)
    return [diff_entry(f"Node{'s' if len(names) > 1 else ''} {fold(names)}", before, after)
            for (before, after), names in groups.items()]


def _text(labels: t.Mapping[str, str], ours: t.AbstractSet[str]) -> str:
    lines = [f"label {key}={labels[key]}\n" for key in sorted(labels)]
    if ours:
        lines.append(f"annotation {_deploy.ANNOTATION}={','.join(sorted(ours))}\n")
    return "".join(lines)


def fold(names: t.Iterable[str]) -> str:
    """Names as ranges, C(gpu-[000-019,025], login), of at most SHOWN pieces."""
    groups: dict[tuple[str, int, str], list[int]] = {}
    pieces = []
    for name in sorted(names):
        match = _NUMBERED.fullmatch(name)
        if match:
            groups.setdefault((match[1], len(match[2]), match[3]), []).append(int(match[2]))
        else:
            pieces.append((name, 1))
    for (start, width, end), numbers in sorted(groups.items()):
        ranges = _ranges(sorted(numbers), width)
        text = f"[{','.join(ranges)}]" if len(numbers) > 1 else ranges[0]
        pieces.append((f"{start}{text}{end}", len(numbers)))
    left = sum(count for _name, count in pieces[SHOWN:])
    return ", ".join(name for name, _count in pieces[:SHOWN]) + (f" and {left} more" if left else "")


def _ranges(numbers: t.Sequence[int], width: int) -> list[str]:
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][-1] + 1:
            found[-1][1:] = [number]
        else:
            found.append([number])
    return ["-".join(f"{number:0{width}d}" for number in one) for one in found]
