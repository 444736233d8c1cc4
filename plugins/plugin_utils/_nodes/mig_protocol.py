# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Implements the label protocol of MIG: reads the labels of Nodes, writes them for a host, or requests a layout from
the vendor's manager. PRIVATE."""

from __future__ import annotations

import time
import typing as t
from dataclasses import dataclass, field, replace

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Result, Step, gate, outcome, plan_diff
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.label_keys import MIG_CONFIG, Labels
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory import host_nodes
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.errors import ClusterError, without_errors
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import mig_labels, node, operand_pods
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.deploy_labels import MIG_MANAGER
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.label_nodes import fold
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.mig_labels import NodeMig
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.node import NodePatch, NodeState
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.node_lock import HELD, Holder, holder_of, refuse_held

_PAUSE, _LINE = 1.0, 15.0  # seconds between two requests, and between two lines of progress


@dataclass(frozen=True)
class Request:
    """The parameters of a task.

    names: the Nodes, empty for all Nodes of the vendor's manager; layout: empty to use the layout in a Node's label;
    expected: the layout that the label requested when the run read it, None to accept any; outcome, reason: the state
    of a change that has ended, and why it failed; seen: in check mode, maps a Node to the labels that an earlier task
    of the same run would have written; at_once: how many Nodes change at the same time, a number or a percentage;
    max_fail: the percentage of Nodes that may fail before the task stops changing Nodes; namespace: the namespace of
    the operands; timeout: seconds for each wait; holder: this run, which holds the Nodes (another run must not hold
    them); release: whether this run releases them; level: the allowed disruption; pause: whether to pause the operands
    that use GPUs.
    """

    names: t.Sequence[str]
    layout: str = ""
    expected: str | None = None
    outcome: str = mig_labels.SUCCESS
    reason: str = ""
    seen: t.Mapping[str, Labels] = field(default_factory=dict)
    namespace: str = "gpu-operator"
    at_once: str = "1"
    max_fail: int = 0
    timeout: float = 300
    check: bool = False
    holder: Holder | None = None
    release: bool = True
    level: str = "never"
    pause: bool = True


class Protocol:
    """Runs one task. tell: called with a line of progress; clock, sleep: monotonic and sleep of the module time."""

    def __init__(self, client: Client, request: Request, tell: t.Callable[[str], None] = lambda line: None,
                 clock: t.Callable[[], float] = time.monotonic, sleep: t.Callable[[float], None] = time.sleep) -> None:
        self._client, self._request = client, request
        self._tell, self._clock, self._sleep = tell, clock, sleep

    def gathered(self) -> Result:
        """Reads the MIG state of each Node."""
        return outcome([], nodes={name: mig_labels.read(one).as_dict() for name, one in self._nodes().items()})

    def changing(self) -> Result:
        """Holds the Nodes, sets their state to pending and pauses the operands. Raises ClusterError if the operands'
        pods do not end in time."""
        nodes = self._ours()
        refuse_held(self._request.holder, nodes.values())
        changes = {name: self._begun(one) for name, one in nodes.items()}
        steps = [step for name, change in changes.items() for step in mig_labels.steps(name, change)]
        if not self._request.check:
            self._write(nodes, lambda live: NodePatch(self._begun(live), self._taken(live)))
            if self._request.pause:
                operand_pods.await_end(self._client, list(nodes), mig_labels.PAUSES, mig_labels.PAUSED,
                                       self._request.timeout, self._clock, self._sleep)
        return outcome(steps, (), plan_diff("node_mig", steps), labels=changes)

    def settled(self) -> Result:
        """Sets the state to success, or to failed with the reason, and resumes all paused operands, even operands that
        a killed run has paused."""
        return self._settled(self._ours())

    def recovered(self) -> Result:
        """Sets the state to failed on Nodes on which a run was killed during a change. Other Nodes are not changed."""
        states = {name: (one, mig_labels.read(one)) for name, one in self._nodes().items()}
        return self._settled({name: one for name, (one, now) in states.items() if now.unfinished and not now.managed})

    def _settled(self, nodes: t.Mapping[str, NodeState]) -> Result:
        reason = mig_labels.reason_of(self._request.reason, self._request.outcome)
        refuse_held(self._request.holder, nodes.values())
        changes = {name: self._ended(one) for name, one in nodes.items()}
        steps = [step for name, one in nodes.items()
                 for step in mig_labels.steps(name, changes[name], one.annotations.get(mig_labels.REASON) != reason)]
        if not self._request.check:
            self._write(nodes, lambda live: NodePatch(self._ended(live), {
                **({mig_labels.REASON: reason} if live.annotations.get(mig_labels.REASON) != reason else {}),
                **self._given_back(live)}))
        return outcome(steps, (), plan_diff("node_mig", steps), labels=changes)

    def requested(self) -> Result:
        """Requests the layout from the vendor's manager, a few Nodes at a time, and waits until it is applied.

        Below the level C(idle) no new layout is requested, and the requests are pending. If too many Nodes fail or
        exceed the timeout, no further Nodes are changed. If another run holds a Node: raises ClusterError if the task
        names Nodes; otherwise leaves the Node out and reports it at the end.
        """
        nodes = self._nodes()
        if not nodes:
            self._tell(f"No Node is served by a MIG manager of the cluster ({MIG_MANAGER}=true).")
        states = {name: mig_labels.read(one) for name, one in nodes.items()}
        foreign = [name for name, one in states.items() if not one.managed]
        if foreign:
            raise InputError(f"No MIG manager of the cluster serves {fold(foreign)}.",
                             f"Name Nodes with the label {MIG_MANAGER}=true.", path="nodes", value=foreign)
        held = self._held(nodes)
        gates = {name: gate(self._request_steps(one), self._request.level) for name, one in states.items()
                 if name not in held and (self._request.layout or one.layout)}
        steps = [step for allowed, _waiting in gates.values() for step in allowed]
        pending = [step for _allowed, waiting in gates.values() for step in waiting]
        chosen = [name for name, (_allowed, waiting) in gates.items() if not waiting]
        todo = [] if self._request.check else chosen
        at_once = host_nodes.batch(self._request.at_once, len(chosen), "at_once")
        done: list[str] = []
        failed: dict[str, NodeMig | None] = {}
        while todo and len(failed) * 100 <= self._request.max_fail * len(chosen):
            batch, todo = todo[:at_once], todo[at_once:]
            changed = [name for name in batch if self._layout_change(states[name])]
            self._write(changed, self._request_layout)
            bad = self._await_manager(batch, changed)
            done += [name for name in batch if name not in bad]
            failed.update(bad)
        texts = [*(self._explained(name, one) for name, one in failed.items()),
                 *([f"{fold(todo)}: not requested after that."] if todo else []), *held.values()]
        result = outcome(steps, pending, plan_diff("node_mig", steps), done=done, failed_nodes=[*failed, *held],
                         left=todo)
        return {**result, "failed": True, "msg": "\n".join(texts)} if texts else result

    def _taken(self, live: NodeState) -> dict[str, str | None]:
        """The annotation with which this run holds a Node, empty if it already holds the Node."""
        refuse_held(self._request.holder, [live])
        return {HELD: self._request.holder.text} if self._request.holder and not self._holds(live) else {}

    def _given_back(self, live: NodeState) -> dict[str, str | None]:
        refuse_held(self._request.holder, [live])
        return {HELD: None} if self._request.release and self._holds(live) else {}

    def _holds(self, live: NodeState) -> bool:
        """Whether this run holds a Node."""
        holder = holder_of(live)
        return bool(self._request.holder and holder and self._request.holder.is_same_run(holder))

    def _held(self, nodes: t.Mapping[str, NodeState]) -> dict[str, str]:
        """Maps each Node that another run holds to a message with the remedy. If the task names Nodes, raises
        ClusterError instead."""
        if self._request.names:
            refuse_held(self._request.holder, nodes.values())
            return {}
        held = {}
        for name, one in nodes.items():
            try:
                refuse_held(self._request.holder, [one])
            except ClusterError as error:
                held[name] = str(error)
        return held

    def _nodes(self) -> dict[str, NodeState]:
        """The Nodes of the task; in check mode, with the labels that earlier tasks would have written."""
        if self._request.names:
            nodes = node.named(self._client, self._request.names)
        else:
            nodes = {one.name: one for one in map(NodeState.read, self._client.list(
                "v1", "Node", label_selector=f"{MIG_MANAGER}=true", metadata_only=True))}
        seen = self._request.seen if self._request.check else {}
        return {name: replace(one, labels={**one.labels, **seen.get(name, {})}) for name, one in nodes.items()}

    def _ours(self) -> dict[str, NodeState]:
        """The Nodes of the task. Raises InputError if the MIG manager of the cluster serves one of them."""
        nodes = self._nodes()
        managed = [name for name, one in nodes.items() if mig_labels.read(one).managed]
        if managed:
            raise InputError(f"The cluster's MIG manager serves {fold(managed)}, and two writers would undo each "
                             "other.", "Set the placement of MIG to host (gpu_placement), or use state requested "
                             f"({MIG_MANAGER}=true there).", path="nodes", value=managed)
        return nodes

    def _write(self, names: t.Iterable[str], change: t.Callable[[NodeState], NodePatch]) -> None:
        """Writes all Nodes at the same time. Raises the first error after all requests have ended."""
        without_errors(self._client.many(lambda name: node.write(self._client, name, change), names))

    def _begun(self, one: NodeState) -> mig_labels.Changes:
        layout = self._request.layout or one.labels.get(MIG_CONFIG, "")
        if not layout:
            raise InputError(f"No layout is requested for Node {one.name}.",
                             f"Set layout, or the label {MIG_CONFIG} of the Node.", path="layout")
        self._refuse_overtaken(one)
        return mig_labels.labels_before(one.labels, layout, self._request.pause)

    def _ended(self, one: NodeState) -> mig_labels.Changes:
        """The labels at the end of a change. If somebody has requested another layout meanwhile, that request stays,
        and ClusterError is raised for the state success."""
        if self._request.outcome == mig_labels.SUCCESS:
            self._refuse_overtaken(one)
        layout = "" if self._overtaken(one.labels) else self._request.layout
        return mig_labels.labels_after(one.labels, layout, self._request.outcome)

    def _overtaken(self, labels: Labels) -> bool:
        """Whether somebody has requested another layout since the run read the label."""
        return self._request.expected is not None and labels.get(MIG_CONFIG, "") not in (
            self._request.expected, self._request.layout)

    def _refuse_overtaken(self, one: NodeState) -> None:
        if self._overtaken(one.labels):
            raise ClusterError(f"Node {one.name} now requests {one.labels.get(MIG_CONFIG) or 'no layout'}.",
                               "Its label was changed during the run. Run again.", verb="patch",
                               object=f"Node {one.name}", reason="Conflict")

    def _layout_change(self, one: NodeMig) -> mig_labels.Changes:
        layout = self._request.layout or one.layout
        return {} if one.layout == layout else {MIG_CONFIG: layout}

    def _request_steps(self, one: NodeMig) -> list[Step]:
        """The steps that request the layout. They need the level idle: to apply it, the manager destroys instances."""
        return [replace(step, needs="idle") for step in mig_labels.steps(one.node, self._layout_change(one))]

    def _request_layout(self, live: NodeState) -> NodePatch:
        """The patch that requests a layout and removes the state of the former layout, so that the next state that the
        manager writes is about the new layout."""
        changes = self._layout_change(mig_labels.read(live))
        return NodePatch({**changes, mig_labels.STATE: None} if changes else {})

    def _await_manager(self, names: t.Sequence[str], changed: t.Collection[str]) -> dict[str, NodeMig | None]:
        """Waits for the manager. Returns the Nodes that have failed or exceeded the timeout, whose label now requests
        another layout, or that were deleted. A deleted Node has the value None."""
        end, shown = self._clock() + self._request.timeout, self._clock()
        while True:
            answers = without_errors(self._client.many(lambda name: self._client.get("v1", "Node", name), names))
            found = {name: mig_labels.read(NodeState.read(one)) if one else None for name, one in zip(names, answers)}
            waiting = [one for one in found.values() if one and not self._requests_another(one)
                       and (one.is_waiting or (one.node in changed and not one.state))]
            if not waiting or self._clock() >= end:
                return {name: one for name, one in found.items() if one is None or one in waiting
                        or one.state == mig_labels.FAILED or self._requests_another(one)}
            if self._clock() - shown >= _LINE:
                shown = self._clock()
                self._tell("; ".join(f"{one.node}: {one.layout} {one.state or 'not begun'}" for one in waiting))
            self._sleep(_PAUSE)

    def _requests_another(self, one: NodeMig) -> bool:
        return bool(self._request.layout) and one.layout != self._request.layout

    def _explained(self, name: str, one: NodeMig | None) -> str:
        if one is None:
            return f"{name}: the Node is gone."
        if self._requests_another(one):
            return f"{name}: its label now requests {one.layout or 'no layout'}; its MIG manager applies that."
        pods = self._client.list("v1", "Pod", namespace=self._request.namespace, label_selector=mig_labels.MANAGER,
                                 field_selector=f"spec.nodeName={one.node}")
        problem, hint = mig_labels.explain(one, self._request.namespace, pods[0]["metadata"]["name"] if pods else "")
        return f"{one.node}: {problem}. {hint}"
