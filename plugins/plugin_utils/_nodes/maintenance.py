# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Takes a Node out of service before its host is disturbed, and puts it back as it was. PRIVATE to the collection.

While a Node is out of service, one run holds it and its operands are paused by their deploy labels. If the level
allows it, the Node is also cordoned and the pods that use GPUs are evicted, before the operands are paused. If MIG
instances are only created in free space, pods can stay, and only the operands that read the list of instances at their
start are paused.
Labels and annotations of the Node store this state, so that the next run can continue after a run was killed.

The labels carry the value that the vendor's driver manager writes for a driver upgrade (k8s-driver-manager, GPU
Operator 26.7), so that other tools know what it means.
"""

from __future__ import annotations

import time
import typing as t
from dataclasses import dataclass, field, replace

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import GpuopsError
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import (
    PendingStep,
    Result,
    Step,
    allows,
    level_too_low,
    outcome,
    plan_diff,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import facts, upgrades
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.label_keys import DEPLOY, Labels
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.printable import printable
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.errors import ClusterError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.objects import Live, component_of, is_ours
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import (
    cordon,
    drain,
    evictable,
    mig_labels,
    node,
    operand_pods,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.deploy_labels import LABELS, gets_driver_pod
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.node import NodePatch, NodeState
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.node_lock import HELD, Holder, refuse_held
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.pod import Pod, pods_on

PAUSED = "paused-for-driver-upgrade"
PAUSES = tuple(dict.fromkeys((*(LABELS[name] for name in LABELS if name != "driver"), *mig_labels.PAUSES)))
# The deploy labels of the operands that read the MIG instances of the GPUs only when they start.
_KNOWING = tuple(LABELS[name] for name in ("device_plugin", "feature_discovery", "dcgm_exporter", "dcgm"))
# The annotation that says why the last maintenance failed.
REASON = "gpuops.nvidia/maintenance-failed"
# The annotation of a Node whose driver and MPS pods are being removed: their components, separated by commas, and
# OTHERS if other work has cordoned the Node before. A component stays listed until its removal has succeeded.
REMOVING = "gpuops.nvidia/removing"
OTHERS = "others"
_UPGRADE_ENDED = ("", "unknown", upgrades.DONE, upgrades.FAILED)
_DRIVER = "driver"  # in REMOVING
_KEPT = 1000  # the maximum number of characters of a reason
_PAUSE = 1.0  # seconds between two requests


@dataclass(frozen=True)
class Outcome:
    """The planned or completed actions of a task.

    started: whether the Node is out of service; ready: whether it was Ready before; level: the level at which the host
    may be changed, empty if the task does not take the Node out of service; paused: the labels of paused operands;
    cordoned: the Nodes that were cordoned; evicted, blocked, staying: as in L(drain.Outcome); failure: the message if
    pods could not be evicted, empty otherwise.
    """

    steps: t.Sequence[Step] = ()
    pending: t.Sequence[PendingStep] = ()
    started: bool = False
    ready: bool = True
    level: str = ""
    paused: t.Sequence[str] = ()
    cordoned: t.Sequence[str] = ()
    evicted: t.Sequence[drain.PodEntry] = ()
    staying: t.Sequence[drain.PodEntry] = ()
    blocked: t.Sequence[drain.PodEntry] = ()
    failure: str = ""

    @classmethod
    def read(cls, result: Result) -> Outcome:
        """Reads the values from the result of L(as_dict) that the end of a maintenance needs."""
        return cls(started=bool(result.get("started")), ready=bool(result.get("ready", True)),
                   paused=[str(key) for key in result.get("paused") or ()],
                   cordoned=[str(name) for name in result.get("cordoned") or ()])

    def as_dict(self) -> Result:
        """The result of the task."""
        failed = {"failed": True, "msg": self.failure, "blocked": list(self.blocked)} if self.failure else {}
        return outcome(self.steps, self.pending, plan_diff("node_maintenance", self.steps), started=self.started,
                       ready=self.ready, paused=list(self.paused), cordoned=list(self.cordoned),
                       evicted=list(self.evicted), staying=list(self.staying),
                       **({"level": self.level} if self.level else {}), **failed)


@dataclass(frozen=True)
class Request:
    """The parameters of a task.

    drain: the Node, the level, the timeout in seconds and which pods may be evicted; holder: this run; clients: the
    processes that use the GPUs, as in the facts of the host; reason: why the maintenance failed, empty if it succeeded;
    begun: the outcome of the task that took the Node out of service (a run uses only its field ready, check mode uses
    all); removing: the components whose driver or MPS pods are removed from the Node, empty for other work; seen: in
    check mode, maps a Node to the labels that an earlier task of the same run would have written; evict: whether the
    change disturbs pods and processes that use the GPUs; creates: whether it creates MIG instances in free space, which
    may be done even if the rest of the change must not be done.
    """

    drain: drain.Request
    holder: Holder
    clients: t.Sequence[facts.Client] = ()
    reason: str = ""
    begun: Outcome = Outcome()
    removing: t.AbstractSet[str] = frozenset()
    seen: t.Mapping[str, Labels] = field(default_factory=dict)
    evict: bool = True
    creates: bool = False
    upgrades: bool = False
    mark: t.Callable[[NodeState], NodePatch] = lambda live: NodePatch()

    @property
    def name(self) -> str:
        """The name of the Node."""
        return self.drain.names[0]


def left_behind(annotations: Labels) -> bool:
    """Whether a run that was killed or failed has left its annotations on a Node."""
    return HELD in annotations or REASON in annotations or REMOVING in annotations


def left_by_runs(nodes: t.Mapping[str, Labels], me: Holder) -> dict[str, str]:
    """Maps each Node that a killed or failed run has left out of service to a sentence that says why. A Node that a run
    still holds is left out.

    nodes: maps names to the annotations of Nodes; me: this run.
    """
    found = {}
    for name, marks in nodes.items():
        holder = Holder.read(marks.get(HELD, ""))
        if not left_behind(marks) or holder and (me.is_same_run(holder) or me.must_wait_for(holder)):
            continue
        why = printable(marks.get(REASON, "")).rstrip(".")[:_KEPT]
        how = f"left Node {name} cordoned" if cordon.ANNOTATION in marks else f"failed on Node {name}"
        found[name] = (f"An earlier run has {how}: {why}." if why else
                       f"An earlier run was killed while it worked on Node {name}.")
    return found


def unfinished(one: Live) -> frozenset[str]:
    """The components whose pods a run has started, but not finished, to remove from a Node; may include OTHERS."""
    return _removing(one["metadata"].get("annotations") or {})


def _removing(annotations: Labels) -> frozenset[str]:
    return frozenset(annotations.get(REMOVING, "").split(",")) - {""}


class Maintenance:
    """Runs one task. tell: called with a line of progress; clock, sleep: monotonic and sleep of the module time."""

    def __init__(self, client: Client, request: Request, tell: t.Callable[[str], None] = lambda line: None,
                 clock: t.Callable[[], float] = time.monotonic, sleep: t.Callable[[float], None] = time.sleep) -> None:
        self._client, self._request = client, request
        self._tell, self._clock, self._sleep = tell, clock, sleep

    def started(self) -> Outcome:
        """Takes the Node out of service. If it raises GpuopsError, the Node is as it was before.

        If a pod or process uses the GPUs and the level forbids ending it, C(started) of the outcome is false, and
        C(pending) names the pod or process. In this case nothing was changed, except if pods have started meanwhile:
        then the operands were paused and resumed again. MIG instances in free space are created nevertheless, with
        C(level) set to C(never), unless this would end an MPS daemon.
        """
        one = self._node()
        self._refuse_upgrade(one)
        if self._request.removing and not one.ready:
            raise ClusterError(f"Node {one.name} is not Ready, so its pods would not end.",
                               f"Find the cause with kubectl describe node {one.name}, or delete the Node if its "
                               "host no longer exists.", verb="get", object=f"Node {one.name}", reason="NotReady")
        mps = self._mps()
        gentle = not self._request.evict and not mps
        preview = drain.Outcome() if gentle else self._drain(check=True)
        obstacles = [] if gentle else self._obstacles(preview, mps)
        in_service = Outcome(ready=one.ready, level="never")
        if obstacles and (mps or not self._request.creates):
            return replace(in_service, pending=obstacles, staying=preview.staying)
        gentle = gentle or bool(obstacles)
        keys = _to_pause(one.labels, _KNOWING if gentle else PAUSES)
        steps = [Step("hold", f"Node {one.name}", "no other run works on it"), *(() if gentle else preview.steps),
                 *(Step("pause", f"{key[len(DEPLOY):]} on Node {one.name}") for key in keys)]
        result = Outcome(steps, obstacles, True, one.ready, "never" if gentle else self._request.drain.level, keys,
                         preview.cordoned, staying=preview.staying)
        if self._request.drain.check:
            return result
        evicts = not gentle and allows(self._request.drain.level, "drain")
        drained = self._start(one, keys, evicts)
        result = replace(result, evicted=() if drained.failure else drained.evicted, blocked=drained.blocked,
                         failure=drained.failure)
        if gentle or evicts:
            return result
        # The Node is not cordoned, so new pods could start until its device plugin had ended.
        try:
            again = self._drain(check=True)
        except GpuopsError:
            self._give_back(one)
            raise
        obstacles = self._obstacles(again, [])
        if obstacles and not self._request.creates:
            self._give_back(one)
            return replace(in_service, steps=[*steps, *self._undone(keys)], pending=obstacles, staying=again.staying)
        return replace(result, pending=obstacles, level="never" if obstacles else result.level)

    def _mps(self) -> list[str]:
        """The MPS daemons of the Node that would end with the device plugin; empty if their clients may be evicted."""
        if self._request.evict and not self._request.creates and self._request.drain.level != "never":
            return []
        return [pod.label for pod in self._pods() if pod.mps and not pod.ended]

    def _staying(self) -> list[tuple[str, str]]:
        """C((pod, reason)) for pods that use a GPU and that no eviction would end, such as those of DaemonSets. Our
        operands are left out, because they are paused for the work and come back."""
        staying = [(pod, why) for pod, why in evictable.sort(self._pods(), self._request.drain.evictions).staying
                   if not pod.mps]
        ours = {one["metadata"]["uid"] for one in (self._client.list("apps/v1", "DaemonSet") if staying else ())
                if is_ours(one) and component_of(one) in LABELS}
        return [(pod.label, why) for pod, why in staying if not pod.owners & ours]

    def _pods(self) -> list[Pod]:
        return pods_on(self._client, self._request.name)

    def _undone(self, paused: t.Sequence[str], *between: Step) -> list[Step]:
        """The steps that put the Node back into service. paused: the labels of paused operands; between: further steps,
        before the step that releases the Node."""
        return [*(Step("resume", f"{key[len(DEPLOY):]} on Node {self._request.name}") for key in paused), *between,
                Step("release", f"Node {self._request.name}")]

    def resumed(self) -> list[Step]:
        """Resumes the operands of the Node, which stays held and cordoned. Returns the steps."""
        paused = [key for key in PAUSES if key in _paused(self._node().labels)]

        def change(live: NodeState) -> NodePatch:
            refuse_held(self._request.holder, [live])
            return NodePatch(dict.fromkeys(_paused(live.labels), "true"))

        node.write(self._client, self._request.name, change)
        return self._undone(paused)[:-1]

    def ended(self) -> Outcome:
        """Puts the Node back into service. A Node that this collection has cordoned stays cordoned if a reason is
        given, or if other work of the collection on the Node is not finished.

        A Node is not changed if no run holds it or has left it out of service. If an upgrade of its driver pod has left
        it so, only that upgrade or the removal of the driver uncordons it: its driver may not work. Other work leaves
        the Node as it is, or, if this run has taken the Node out of service, cordoned. C(pending) says so. Raises
        ClusterError if the Node was Ready before and does not become Ready in time.
        """
        one, begun, check = self._node(), self._request.begun, self._request.drain.check
        if not left_behind(one.annotations) and not (check and begun.started):
            return Outcome(ready=one.ready)
        if not begun.started and self._upgrade_left(one):
            return Outcome(pending=[self._left_to_upgrade(one, "release")], ready=one.ready)
        reason = printable(" ".join(self._request.reason.split()))[:_KEPT]
        paused = [key for key in PAUSES if key in {*_paused(one.labels), *(begun.paused if check else ())}]
        between, pending = [], []
        if reason:
            between = [Step("write the reason", f"Node {one.name}", reason)]
        elif self._upgrade_failed(one):
            pending = [self._left_to_upgrade(one, "uncordon")]
        elif not self._left(one) and (cordon.before(one) is not None or begun.cordoned):
            between = [Step("uncordon", f"Node {one.name}", "its former state is restored")]
        if not check:
            if not reason and begun.ready:
                one = self._await_ready(one)
            node.write(self._client, one.name, lambda live: self._released(live, reason))
        return Outcome(self._undone(paused, *between), pending, ready=one.ready)

    def _upgrade_left(self, one: NodeState) -> bool:
        """Whether the Node is in the middle of an upgrade of its driver pod, or this has failed, and this task is not
        the one to finish it. A Node that gets no driver pod has at most the label of a former one."""
        return (one.labels.get(upgrades.STATE) in upgrades.UNFINISHED and gets_driver_pod(one.labels)
                and not self._request.upgrades and _DRIVER not in self._request.removing)

    def _upgrade_failed(self, one: NodeState) -> bool:
        """Whether this task leaves the Node cordoned because of an upgrade that has failed before it."""
        return self._upgrade_left(one) and REASON in one.annotations and cordon.before(one) is not None

    def _left_to_upgrade(self, one: NodeState, action: str) -> PendingStep:
        """The step with this action, which only the upgrade of the driver pod executes."""
        state = one.labels[upgrades.STATE]
        how = "has failed" if state == upgrades.FAILED else "is not finished"
        return Step(action, f"Node {one.name}", "its former state is restored").pending(
            f"an upgrade of its driver pod {how} ({upgrades.STATE}={state}). The playbook upgrade finishes it. If it "
            "was abandoned, remove the label and run again")

    def _await_ready(self, one: NodeState) -> NodeState:
        """Waits until the Node is Ready, for example after a reboot or a restart of the runtime. Returns the Node."""
        end = self._clock() + self._request.drain.timeout
        while not one.ready:
            if self._clock() >= end:
                raise ClusterError(f"Node {one.name} is not Ready {self._request.drain.timeout:g} s after its host was "
                                   "changed.", "Check the kubelet and the container runtime of the host (journalctl "
                                   "-u kubelet), and run again.", verb="get", object=f"Node {one.name}",
                                   reason="NotReady")
            self._sleep(_PAUSE)
            one = self._node()
        return one

    def _node(self) -> NodeState:
        one = node.named(self._client, [self._request.name])[self._request.name]
        refuse_held(self._request.holder, [one])
        seen = self._request.seen.get(one.name, {}) if self._request.drain.check else {}
        return replace(one, labels={**one.labels, **seen})

    def _refuse_upgrade(self, one: NodeState) -> None:
        state = one.labels.get(upgrades.STATE, "")
        if state not in _UPGRADE_ENDED and not self._request.upgrades and gets_driver_pod(one.labels):
            raise ClusterError(f"A driver upgrade is in progress on Node {one.name} ({upgrades.STATE}={state}).",
                               "Wait until it has ended. If it was abandoned, run the playbook upgrade, or remove the "
                               "label.", verb="patch", object=f"Node {one.name}", reason="Upgrading")
        # A change of the layout by this collection holds its Node; if the run was killed, the next run finishes it.
        layout = mig_labels.read(one)
        if layout.managed and layout.state in mig_labels.UNDER_WAY:
            raise ClusterError(f"A change of the MIG layout is in progress on Node {one.name}.",
                               "Wait until its MIG manager has completed it.", verb="patch", object=f"Node {one.name}",
                               reason="Changing")

    def _drain(self, check: bool) -> drain.Outcome:
        request = replace(self._request.drain, check=check)
        return drain.Drain(self._client, request, self._tell, self._clock, self._sleep).drained()

    def _obstacles(self, preview: drain.Outcome, mps: t.Sequence[str]) -> list[PendingStep]:
        """Pending steps for pods and processes that use the GPUs and must not be ended at this level. Empty at C(drain)
        and above, where pods are evicted and the host's modules handle processes. mps: the result of L(_mps)."""
        level = self._request.drain.level
        if allows(level, "drain"):
            return []
        evictions = [step for step in preview.pending if step.action == "evict"]
        staying = [Step("stop", f"Pod {name}", "it uses a GPU", "drain").pending(
            f"gpu_disruption is '{level}', and no level evicts this pod, because {why}. Keep it off the Node; at "
            "'drain' and higher, a run waits for the pod only while one of its processes uses a GPU")
            for name, why in self._staying()]
        stops = [Step("stop", f"{client.get('name')} (pid {client.get('pid')})", "it uses a GPU", "drain")
                 for client in self._request.clients if self._request.evict and not client.get("container")]
        daemons = [Step("stop", f"MPS daemon {name}", "its clients would end", "idle")
                   for name in mps if not allows(level, "idle")]
        return [step.pending(level_too_low(level, step.needs)) for step in [*evictions, *stops, *daemons]] + staying

    def _start(self, one: NodeState, keys: t.Collection[str], evicts: bool) -> drain.Outcome:
        """Executes the plan. Returns the outcome of the drain, empty if there was no drain.

        one: the Node in its former state, which is restored if something fails; keys: the labels of the operands to
        pause; evicts: whether the Node is drained.
        """
        node.write(self._client, one.name, self._taken)
        try:
            drained = self._drain(check=False) if evicts else drain.Outcome()
            if not drained.failure:
                # After the evictions, because the end of the MPS daemon ends its clients without regard to budgets.
                node.write(self._client, one.name, lambda live: self._pausing(live, keys))
                operand_pods.await_end(self._client, [one.name], PAUSES, PAUSED, self._request.drain.timeout,
                                       self._clock, self._sleep)
        except GpuopsError:
            self._give_back(one)
            raise
        if drained.failure:
            self._give_back(one)
        return drained

    def _give_back(self, one: NodeState) -> None:
        node.write(self._client, one.name, lambda live: self._as_before(live, one))

    def _taken(self, live: NodeState) -> NodePatch:
        """The patch with which this run holds the Node."""
        refuse_held(self._request.holder, [live])
        work = self._request.removing | self._left(live) if self._request.removing else ()
        mark = {REMOVING: ",".join(sorted(work))} if work else {}
        former = live.annotations
        if (work and cordon.ANNOTATION in former and REMOVING not in former
                and former.get(HELD, self._request.holder.text) != self._request.holder.text):
            # This run does not finish the work of the former run, so the reason stays on the Node for the next run.
            mark[REASON] = former.get(REASON) or "the run was killed"
        return NodePatch(annotations={HELD: self._request.holder.text, **mark})

    def _left(self, one: NodeState) -> frozenset[str]:
        """The work on the Node that this task does not finish, in the terms of the annotation REMOVING."""
        work = _removing(one.annotations)
        if not self._request.removing:
            return work - {OTHERS}
        if not work and cordon.before(one) is not None:
            return frozenset({OTHERS})
        return work - self._request.removing

    def _pausing(self, live: NodeState, keys: t.Collection[str]) -> NodePatch:
        """The patch that pauses the operands with these labels."""
        refuse_held(self._request.holder, [live])
        return NodePatch(dict.fromkeys(_to_pause(live.labels, keys), PAUSED))

    def _as_before(self, live: NodeState, one: NodeState) -> NodePatch:
        """The patch that restores the former state of the Node. one: the Node before this run changed it. Annotations
        that an earlier run has left on the Node stay for the next run."""
        refuse_held(self._request.holder, [live])
        former = one.annotations
        patch = NodePatch() if cordon.ANNOTATION in former else cordon.uncordon(live)
        marks = {key: former.get(key) for key in (HELD, REMOVING, REASON) if key in live.annotations}
        resumed = [key for key in _paused(live.labels) if key not in _paused(one.labels)]
        return NodePatch(dict.fromkeys(resumed, "true"), {**patch.annotations, **marks}, patch.spec)

    def _released(self, live: NodeState, reason: str) -> NodePatch:
        refuse_held(self._request.holder, [live])
        former = live.annotations
        work = _removing(former)
        left = work if reason else self._left(live)
        waits = not reason and self._upgrade_failed(live)
        if reason and work and not self._request.removing:
            left |= {OTHERS}
        patch = NodePatch() if left or reason or waits else cordon.uncordon(live)
        marks = {HELD: None, REASON: reason or (former.get(REASON) if left or waits else None)}
        if REMOVING in former:
            marks[REMOVING] = ",".join(sorted(left)) if left - {OTHERS} else None
        own = self._request.mark(live)
        # Without its driver pod, no later upgrade would find the Node.
        ended = (not reason and _DRIVER in self._request.removing
                 and live.labels.get(upgrades.STATE) in upgrades.UNFINISHED)
        return NodePatch({**dict.fromkeys(_paused(live.labels), "true"), **({upgrades.STATE: None} if ended else {}),
                          **own.labels},
                         {**patch.annotations, **marks, **own.annotations}, patch.spec)


def _to_pause(labels: Labels, keys: t.Iterable[str]) -> list[str]:
    return [key for key in keys if labels.get(key) == "true"]


def _paused(labels: Labels) -> list[str]:
    return [key for key in PAUSES if labels.get(key) == PAUSED]
