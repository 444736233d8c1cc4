# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The label protocol of MIG on Nodes: read it, serve it, or leave it to the vendor's manager. PRIVATE."""

from __future__ import annotations

import time
import typing as t
from dataclasses import dataclass, field

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._labels._deploy import MIG_CONFIG, MIG_MANAGER
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import outcome, plan_diff
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._cluster import mig, node
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._cluster.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._cluster.deploy import fold
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._cluster.errors import ClusterError, without_errors
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._cluster.mig import Stand

_PAUSE, _LINE = 1.0, 15.0  # seconds between two looks, and two lines
Object = t.Mapping[str, t.Any]
Result = t.Dict[str, t.Any]


@dataclass(frozen=True)
class Request:
    """What a task asks. names: of Nodes, empty for all of the vendor's manager; layout: empty for the one that a
    Node's label names; seen: by Node its labels as an earlier task of the same run would have left them, in check
    mode; at_once: Nodes that change together; namespace: of the operands; timeout: seconds for a wait."""

    names: t.Sequence[str]
    layout: str = ""
    outcome: str = mig.SUCCESS
    reason: str = ""
    seen: t.Mapping[str, t.Mapping[str, str]] = field(default_factory=dict)
    namespace: str = "gpu-operator"
    at_once: int = 1
    timeout: float = 300
    check: bool = False


class Protocol:
    """One task. tell: called with a line on the way; clock, sleep: as of the module time."""

    def __init__(self, client: Client, request: Request, tell: t.Callable[[str], None] = lambda line: None,
                 clock: t.Callable[[], float] = time.monotonic, sleep: t.Callable[[float], None] = time.sleep) -> None:
        self._client, self._request = client, request
        self._tell, self._clock, self._sleep = tell, clock, sleep

    def gathered(self) -> Result:
        """Where each Node stands."""
        return outcome([], nodes={name: mig.stand(one).as_dict() for name, one in self._nodes().items()})

    def changing(self) -> Result:
        """Says pending and stops the operands. Raises ClusterError where their pods do not end in time."""
        nodes = self._ours()
        layouts = {name: self._layout(one) for name, one in nodes.items()}
        changes = {name: mig.changing(self._labels(one), layouts[name]) for name, one in nodes.items()}
        steps = [step for name, change in changes.items() for step in mig.steps(name, change)]
        if not self._request.check:
            self._all(lambda name: node.write(self._client, name, lambda live: _patch(
                live, mig.changing(_labels(live), layouts[name]))), layouts)
            self._await_operands()
        return outcome(steps, (), plan_diff("node_mig", steps), labels=changes)

    def settled(self) -> Result:
        """Says success or failed with the reason, and starts what was stopped, also by a run that was killed."""
        state, nodes = self._request.outcome, self._ours()
        reason = mig.reason_of(self._request.reason, state)
        changes = {name: mig.settled(self._labels(one), self._request.layout, state) for name, one in nodes.items()}
        steps = [step for name, one in nodes.items()
                 for step in mig.steps(name, changes[name], _reason(one) != reason)]
        if not self._request.check:
            self._all(lambda name: node.write(self._client, name, lambda live: _patch(
                live, mig.settled(_labels(live), self._request.layout, state), {mig.REASON: reason})), nodes)
        return outcome(steps, (), plan_diff("node_mig", steps), labels=changes)

    def requested(self) -> Result:
        """Asks the vendor's manager for the layout, some Nodes after the other, and sees it to the end.

        Where a Node fails, or is not done in time, those that have not been asked yet are left alone.
        """
        nodes = self._nodes()
        strangers = [name for name, one in nodes.items() if not mig.stand(one).managed]
        if strangers:
            raise InputError(f"No MIG manager of the cluster serves {fold(strangers)}.",
                             f"Name Nodes that carry {MIG_MANAGER}=true.", path="nodes", value=strangers)
        asked = {name: mig.stand(one) for name, one in nodes.items()}
        asked = {name: one for name, one in asked.items() if self._request.layout or one.asked}
        steps = [step for name, one in asked.items() for step in mig.steps(name, self._ask(one))]
        result = outcome(steps, (), plan_diff("node_mig", steps), done=[], failed_nodes=[], left=[])
        todo = [] if self._request.check else list(asked)
        while todo:
            batch, todo = todo[:self._request.at_once], todo[self._request.at_once:]
            changed = {name for name in batch if self._ask(asked[name])}
            self._all(lambda name: node.write(self._client, name, self._request_layout), changed)
            bad = self._await_manager(batch, changed)
            result["done"] += [name for name in batch if name not in bad]
            if bad:
                told = [self._explained(one) for one in bad.values()]
                told += [f"{fold(todo)}: not asked after that."] if todo else []
                result.update(failed=True, left=todo, failed_nodes=list(bad), msg="\n".join(told))
                break
        return result

    def _nodes(self) -> dict[str, dict[str, t.Any]]:
        if not self._request.names:
            found = self._client.list("v1", "Node", label_selector=f"{MIG_MANAGER}=true", metadata_only=True)
            return {one["metadata"]["name"]: one for one in found}
        return node.named(self._client, self._request.names)

    def _ours(self) -> dict[str, dict[str, t.Any]]:
        """The Nodes, none of which another writer serves."""
        nodes = self._nodes()
        theirs = [name for name, one in nodes.items() if mig.stand(one).managed]
        if theirs:
            raise InputError(f"The cluster's MIG manager serves {fold(theirs)}, and two writers would undo each other.",
                             f"Put MIG on hosts by gpu_placement, or use state requested ({MIG_MANAGER}=true there).",
                             path="nodes", value=theirs)
        return nodes

    def _all(self, do: t.Callable[[str], t.Any], names: t.Iterable[str]) -> list[t.Any]:
        """The same for all Nodes at once. Raises the first error, after all have been tried."""
        return without_errors(self._client.many(do, names))

    def _labels(self, one: Object) -> dict[str, str]:
        """What the Node has, in check mode with what earlier tasks would have written."""
        seen = self._request.seen.get(one["metadata"]["name"], {}) if self._request.check else {}
        return {**_labels(one), **seen}

    def _layout(self, one: Object) -> str:
        layout = self._request.layout or mig.stand(one).asked
        if not layout:
            raise InputError(f"Node {one['metadata']['name']} is asked for no layout.",
                             f"Give one, or label the Node with {MIG_CONFIG}.", path="layout")
        return layout

    def _await_operands(self) -> None:
        """Returns when the pods of all paused operands have ended."""
        sets = [one for one in self._client.list("apps/v1", "DaemonSet") if _keys(one) & set(mig.PAUSES)]
        end = self._clock() + self._request.timeout
        while True:
            left = [pod for name, one in self._nodes().items() for pod in self._operands(name, one, sets)]
            if not left:
                return
            if self._clock() >= end:
                raise ClusterError(f"Operands do not end within {self._request.timeout:g} seconds: {', '.join(left)}.",
                                   "Look at them: kubectl describe pod.", verb="wait", object=left[0],
                                   reason="Timeout")
            self._sleep(_PAUSE)

    def _operands(self, name: str, one: Object, sets: t.Sequence[Object]) -> list[str]:
        paused = {key for key in mig.PAUSES if _labels(one).get(key) == mig.PAUSED}
        uids = {item["metadata"]["uid"] for item in sets if _keys(item) & paused}
        pods = self._client.list("v1", "Pod", field_selector=f"spec.nodeName={name}") if uids else []
        return [f"{pod['metadata']['namespace']}/{pod['metadata']['name']}" for pod in pods
                if any(owner["uid"] in uids for owner in pod["metadata"].get("ownerReferences") or ())]

    def _ask(self, one: Stand) -> mig.Changes:
        layout = self._request.layout or one.asked
        return {} if one.asked == layout else {MIG_CONFIG: layout}

    def _request_layout(self, live: Object) -> dict[str, t.Any] | None:
        """A new layout takes the former one's state away: the manager's next word is about the new one."""
        changes = self._ask(mig.stand(live))
        return {"metadata": {"labels": {**changes, mig.STATE: None}}} if changes else None

    def _await_manager(self, names: t.Sequence[str], changed: t.Collection[str]) -> dict[str, Stand]:
        """Those of the Nodes that have failed, or are not done when the time is over."""
        end, told = self._clock() + self._request.timeout, self._clock()
        while True:
            found = [mig.stand(one) for one in self._all(lambda name: self._client.get("v1", "Node", name), names)
                     if one]
            waiting = [one for one in found if one.waits or (one.node in changed and not one.state)]
            if not waiting or self._clock() >= end:
                return {one.node: one for one in found if one in waiting or one.state == mig.FAILED}
            if self._clock() - told >= _LINE:
                told = self._clock()
                self._tell("; ".join(f"{one.node}: {one.asked} {one.state or 'not taken up'}" for one in waiting))
            self._sleep(_PAUSE)

    def _explained(self, one: Stand) -> str:
        pods = self._client.list("v1", "Pod", namespace=self._request.namespace, label_selector=mig.MANAGER,
                                 field_selector=f"spec.nodeName={one.node}")
        said, hint = mig.says(one, self._request.namespace, pods[0]["metadata"]["name"] if pods else "")
        return f"{one.node}: {said}. {hint}"


def _labels(one: Object) -> dict[str, str]:
    return dict(one["metadata"].get("labels") or {})


def _reason(one: Object) -> str | None:
    found: str | None = (one["metadata"].get("annotations") or {}).get(mig.REASON)
    return found


def _patch(live: Object, labels: mig.Changes, said: t.Mapping[str, str | None] | None = None
           ) -> dict[str, t.Any] | None:
    """The patch for labels and the reason, where one is said; None where nothing differs."""
    metadata: dict[str, t.Any] = {"labels": labels} if labels else {}
    if said is not None and said[mig.REASON] != _reason(live):
        metadata["annotations"] = said
    return {"metadata": metadata} if metadata else None


def _keys(item: Object) -> set[str]:
    return set(item["spec"]["template"]["spec"].get("nodeSelector") or {})
