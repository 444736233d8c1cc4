# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Upgrades the driver pod of one Node. PRIVATE.

The state of the upgrade is on the Node: in the label of the operator (L(upgrades)), and in the labels and annotations
of L(maintenance). Each step does nothing if it has been done already, so a run continues what a killed run, or the
operator, has started.

In contrast to the operator, the operands are paused before the former driver pod is deleted, so that nothing uses the
driver when it is unloaded, and the Node stays cordoned until the validator has passed.
"""

from __future__ import annotations

import time
import typing as t
from dataclasses import dataclass, replace

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import GpuopsError
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import PendingStep, Step, allows, level_too_low
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import upgrades
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube import revisions
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.errors import ClusterError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.objects import Object, controller_uid
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.status import is_ready
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import cordon, drain, evictable, node
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.deploy_labels import ANNOTATION, LABELS
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.evictable import EvictionOptions
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.maintenance import (
    PAUSED,
    REASON,
    Maintenance,
    Outcome,
    Request,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.node import NodePatch, NodeState
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.node_lock import HELD, Holder, holder_of, refuse_held
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.pod import has_ended, pods_on
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands.successors import time_to_start
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.upgrade_policy import Evictions, UpgradePolicy
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._upgrade.fleet import Candidate, Fleet, pods_of

_PAUSE = 1.0  # seconds between two requests
# Seconds: for the end of pods if the policy sets no limit; the age at which the annotation of this run is renewed.
_LONGEST, _RENEW = 3600, 300
VALIDATES = LABELS["validator"]  # the label by which the validator runs on a Node
# The limits of the operator: restarts of a container of the new driver pod, and seconds for the validator.
_MAX_RESTARTS, _VALIDATION = 10, 600.0
_VALIDATOR = "app=nvidia-operator-validator"
_LOST, _GONE = "Lost", "Gone"  # reasons of errors after which a Node is not written any more


@dataclass(frozen=True)
class Terms:
    """How Nodes are upgraded. holder: this run; level: gpu_disruption; clock, sleep: as in the module time; now: the
    seconds since 1970."""

    holder: Holder
    level: str = "never"
    clock: t.Callable[[], float] = time.monotonic
    sleep: t.Callable[[float], None] = time.sleep
    now: t.Callable[[], float] = time.time


class NodeUpgrade:
    """The upgrade of one Node. tell: called with a line of progress.

    has_begun: whether L(run) has changed the driver; seconds: the duration of L(run).
    """

    def __init__(self, client: Client, fleet: Fleet, one: Candidate, terms: Terms,
                 tell: t.Callable[[str], None] = lambda line: None) -> None:
        self._client, self._fleet, self.one, self._terms, self._tell = client, fleet, one, terms, tell
        self._policy: UpgradePolicy = fleet.groups[one.group].policy
        self.has_begun, self.seconds = False, 0.0
        # Whether this run holds the Node, and when it has last checked that.
        self._holds, self._checked = False, 0.0

    @property
    def name(self) -> str:
        """The name of the Node."""
        return self.one.name

    def preview(self) -> tuple[list[Step], list[PendingStep], list[drain.PodEntry]]:
        """(the steps of L(run), the pending steps, the pods that use a GPU and stay)."""
        if self.one.can_be_undone:
            return [_undo_step(self.one)], [], []
        forbidden = self._forbidden()
        if forbidden:
            return [], forbidden, []
        waits = map(_wait_step, self._jobs() if self._evicts else ())
        begun = self._previewed() if self.one.drains else Outcome(started=True)
        if not begun.started:
            return [], list(begun.pending), list(begun.staying)
        ended = self._maintenance(check=True, begun=begun).ended()
        steps = list(begun.steps)
        at = next((index for index, step in enumerate(steps) if step.action in ("evict", "pause")), len(steps))
        return [*steps[:at], *waits, *steps[at:], replace_step(self.one), *ended.steps], [], list(begun.staying)

    def _previewed(self) -> Outcome:
        """The outcome of taking the Node out of service, in check mode. Raises GpuopsError."""
        try:
            return self._maintenance(check=True).started()
        except ClusterError as error:
            if error.reason != "Refused" or not self._policy["drain"]["enabled"]:
                raise
        self._refuse_unselected()
        return self._maintenance(check=True, pods=self._full_drain(check=True)).started()

    def run(self) -> tuple[list[Step], list[PendingStep]]:
        """Upgrades the Node. Returns (the steps, the steps that the level or a GPU client forbids).

        Raises GpuopsError. If the driver pod has not been deleted, the Node is then as before. Otherwise its operands
        run again, it stays cordoned, and its state is C(upgrade-failed).
        """
        if self.one.can_be_undone:
            self._hold()
            self._give_back(untouched=True)
            return [_undo_step(self.one)], []
        forbidden = self._forbidden()
        if forbidden:
            return [], forbidden
        begin = self._terms.clock()
        try:
            return self._run()
        finally:
            self.seconds = self._terms.clock() - begin

    def _forbidden(self) -> list[PendingStep]:
        """The steps that the level forbids; empty if the upgrade may start. Below the level drain, the Node is not
        cordoned, so new jobs would start while the upgrade waits for others."""
        if not allows(self._terms.level, "idle"):
            return [replace_step(self.one).pending(level_too_low(self._terms.level, "idle"))]
        return [] if self._evicts else [
            _wait_step(name).pending("it has not ended; below the level 'drain' no run waits for it")
            for name in self._jobs()]

    def _run(self) -> tuple[list[Step], list[PendingStep]]:
        if self.one.drains:
            begun = self._take_out()
            if not begun.started:
                return [], list(begun.pending)
        else:
            self._hold()
            begun = Outcome(started=True, ready=self.one.node.ready)
        self.has_begun = True
        try:
            self._write(upgrades.POD_RESTART)
            self._replace_pod()
            self._write(lambda live: NodePatch({upgrades.STATE: upgrades.VALIDATION},
                                               self._now(upgrades.VALIDATING_SINCE)))
            resumed = self._maintenance().resumed()
            self._validate()
            self._write(upgrades.UNCORDON)
            ended = self._maintenance(begun=begun, mark=_finished).ended()
        except GpuopsError as error:
            if not _is_lost(error):
                self._maintenance(begun=begun, reason=error.message, mark=_failed).ended()
            raise
        return [*begun.steps, replace_step(self.one), *resumed, *ended.steps], []

    @property
    def _evicts(self) -> bool:
        return allows(self._terms.level, "drain")

    def _take_out(self) -> Outcome:
        """Takes the Node out of service. If it raises GpuopsError, or the Node stays in service, it is as before."""
        if not self._evicts:
            begun = self._maintenance().started()
            if not begun.started:
                return begun
            self._holds = True
            try:
                self._write(lambda live: NodePatch({upgrades.STATE: upgrades.POD_DELETION},
                                                   self._held(live).annotations))
            except GpuopsError as error:
                if not _is_lost(error):
                    self._give_back()
                raise
            return begun
        self._hold()
        try:
            self._write(self._cordoned)
            jobs = self._await_jobs()
            self._write(upgrades.POD_DELETION)
            begun = self._emptied()
        except GpuopsError as error:
            if not _is_lost(error):
                self._give_back()
            raise
        cordons = [_cordon_step(self.name)] if cordon.cordon(self.one.node) else []
        return replace(begun, steps=[begun.steps[0], *cordons, *map(_wait_step, jobs), *begun.steps[1:]])

    def _emptied(self) -> Outcome:
        """Evicts the pods that use GPUs and pauses the operands. If these pods alone cannot be evicted and the policy
        allows a drain, drains the Node. Raises GpuopsError."""
        try:
            return self._started()
        except ClusterError as error:
            if error.reason not in ("Refused", "Blocked") or not self._policy["drain"]["enabled"]:
                raise
        self._refuse_unselected()
        self._write(upgrades.DRAIN)
        outcome = drain.Drain(self._client, self._full_drain(), self._tell, self._terms.clock, self._sleep).drained()
        self._refuse_blocked(outcome)
        # Pods that the selector leaves out are evicted only as podDeletion allows.
        begun = self._started()
        return replace(begun, steps=[*outcome.steps, *begun.steps])

    def _refuse_unselected(self) -> None:
        """Raises ClusterError if a pod that uses a GPU is neither selected by the drain nor evictable by podDeletion,
        because the drain would then evict other pods for nothing."""
        selected = {pod.uid for pod in pods_on(self._client, self.name, self._full_drain().selector)}
        others = [pod for pod in pods_on(self._client, self.name) if pod.uid not in selected]
        refused = evictable.sort(others, self._drain_request(self._policy["pods"]).evictions).refused
        if refused:
            pod, why = refused[0]
            raise ClusterError(f"Pod {pod.label} uses a GPU of Node {self.name}. The drain does not select it, and "
                               f"podDeletion must not evict it, because {why}.", "Change driver.upgradePolicy.drain."
                               "podSelector or podDeletion, or stop the pod.", verb="evict",
                               object=f"Node {self.name}", reason="Refused")

    def _started(self) -> Outcome:
        """Evicts the pods that use GPUs and pauses the operands. Raises GpuopsError, also if a pod is not evicted."""
        begun = self._maintenance().started()
        self._refuse_blocked(begun)
        return begun

    def _refuse_blocked(self, outcome: Outcome | drain.Outcome) -> None:
        """Raises ClusterError if pods have not been evicted."""
        if outcome.failure:
            raise ClusterError(outcome.failure, verb="evict", object=f"Node {self.name}", reason="Blocked",
                               blocked=list(outcome.blocked))

    def _give_back(self, untouched: bool = False) -> None:
        """Puts the Node back as it was: into service, unless an earlier run has left it with a driver that may not
        work. The state of an upgrade that has not changed the driver is removed. untouched: whether it is known that no
        run has changed the driver."""
        state, marks = self.one.state, self.one.node.annotations
        # A Node with a reason may have a driver that does not work, also if a killed run has begun a further upgrade.
        replaced = state in (upgrades.POD_RESTART, upgrades.VALIDATION, upgrades.UNCORDON, upgrades.FAILED)
        begun = not untouched and (replaced or REASON in marks)
        reason = marks.get(REASON, "its upgrade was interrupted") if begun and cordon.ANNOTATION in marks else ""

        def mark(live: NodeState) -> NodePatch:
            kept = state if state == upgrades.DONE or begun and replaced else \
                upgrades.FAILED if begun and state in upgrades.IN_PROGRESS else None
            keys = (upgrades.WAITING_SINCE, *(() if begun else (upgrades.CORDONED_BEFORE,)))
            return NodePatch({upgrades.STATE: kept}, {**_listed(live, kept is not None), **_without(live, *keys)})

        self._maintenance(begun=Outcome(started=True, ready=False), reason=reason, mark=mark).ended()

    def _drain_request(self, pods: Evictions, only_gpu: bool = True, check: bool = False) -> drain.Request:
        evictions = EvictionOptions(only_gpu, pods["force"], pods["delete_emptydir_data"])
        return drain.Request([self.name], evictions, None, pods["timeout"] or _LONGEST, self._terms.level, check,
                             holder=self._holder)

    def _full_drain(self, check: bool = False) -> drain.Request:
        """The eviction of all pods that the policy selects."""
        drained = self._policy["drain"]
        selector = ",".join(filter(None, (drained["selector"], f"{upgrades.DRAIN_SKIP}!=true")))
        return replace(self._drain_request(drained, only_gpu=False, check=check), selector=selector)

    def _maintenance(self, check: bool = False, pods: drain.Request | None = None, **more: t.Any) -> Maintenance:
        """pods: which pods are evicted, by default those of podDeletion."""
        request = Request(pods or self._drain_request(self._policy["pods"], check=check), self._holder, upgrades=True,
                          **more)
        return Maintenance(self._client, request, self._tell, self._terms.clock, self._sleep)

    def _sleep(self, seconds: float) -> None:
        """Sleeps. Renews the annotation of this run, because an eviction may take longer than it is valid."""
        self._terms.sleep(seconds)
        if self._holds and self._terms.now() - self._checked >= _RENEW:
            self._write(lambda live: NodePatch())

    def _hold(self) -> None:
        """Holds the Node."""
        self._write(self._held)
        self._holds = True

    def _write(self, change: str | t.Callable[[NodeState], NodePatch]) -> None:
        """Writes a change of the Node, or only a new state. Renews the annotation with which this run holds the Node,
        because a run on another controller takes the Node when the annotation is too old.

        Raises ClusterError with the reason C(Lost) if this run no longer holds the Node, and C(Gone) if it was deleted.
        """
        seen = False

        def patch(live: NodeState) -> NodePatch:
            nonlocal seen
            me, seen = self._holder, True
            refuse_held(me, [live])
            holder = holder_of(live)
            if self._holds and not (holder and me.is_same_run(holder)):
                raise ClusterError(f"This run no longer holds Node {self.name}, because somebody has "
                                   f"{'changed' if HELD in live.annotations else 'removed'} the annotation {HELD}.",
                                   "Run upgrade again: it finishes the Node.", verb="patch",
                                   object=f"Node {self.name}", reason=_LOST)
            made = _in_state(live, change) if isinstance(change, str) else change(live)
            if holder and me.since - holder.since >= _RENEW:
                made = NodePatch(made.labels, {HELD: me.text, **made.annotations}, made.spec)
            return made

        node.write(self._client, self.name, patch)
        self._checked = self._terms.now()
        if not seen:
            raise ClusterError(f"Node {self.name} was deleted.", "", verb="get", object=f"Node {self.name}",
                               status=404, reason=_GONE)

    @property
    def _holder(self) -> Holder:
        """This run, which holds the Node now."""
        return replace(self._terms.holder, since=self._terms.now())

    def _held(self, live: NodeState) -> NodePatch:
        """The patch with which this run holds the Node. If the operator has cordoned it for this upgrade, the end of
        the upgrade uncordons it."""
        state = live.labels.get(upgrades.STATE)
        begun = state in upgrades.CORDONED
        marks = {HELD: self._holder.text}
        # The operator marks a Node that was cordoned before, and cordons any other one before it writes the next state.
        cordons = begun or state == upgrades.CORDON and HELD not in self.one.node.annotations
        if (cordons and live.cordoned and cordon.before(live) is None
                and upgrades.CORDONED_BEFORE not in live.annotations):
            marks[cordon.ANNOTATION] = "false"
        return NodePatch({} if begun else {upgrades.STATE: upgrades.CORDON}, {**_listed(live), **marks})

    @staticmethod
    def _cordoned(live: NodeState) -> NodePatch:
        """The patch that cordons the Node, and tells the operator if it was cordoned before."""
        patch = cordon.cordon(live)
        foreign = cordon.before(live) is None and live.cordoned
        return NodePatch({upgrades.STATE: upgrades.WAIT},
                         {**patch.annotations, **({upgrades.CORDONED_BEFORE: "true"} if foreign else {})}, patch.spec)

    def _now(self, annotation: str) -> dict[str, str]:
        """An annotation with the present time, in seconds since 1970."""
        return {annotation: f"{self._terms.now():.0f}"}

    def _jobs(self) -> list[str]:
        """The running pods of the Node to whose end the upgrade waits."""
        selector = self._policy["wait"]["selector"]
        if not selector or not self.one.drains:
            return []
        return [f"{pod['metadata']['namespace']}/{pod['metadata']['name']}" for pod in self._client.list(
            "v1", "Pod", label_selector=selector, field_selector=f"spec.nodeName={self.name}")
            if not has_ended(pod)]

    def _await_jobs(self) -> list[str]:
        """Waits until the jobs have ended, or their time is over. Then they are evicted if they use a GPU. Returns the
        jobs."""
        found = jobs = self._jobs()
        if not jobs:
            return []
        self._write(lambda live: NodePatch(
            annotations={} if upgrades.WAITING_SINCE in live.annotations else self._now(upgrades.WAITING_SINCE)))
        limit, told = self._policy["wait"]["timeout"], 0
        begin = self._since(upgrades.WAITING_SINCE)
        while jobs and not (limit and self._terms.now() - begin >= limit):
            if len(jobs) != told:
                self._tell(f"{self.name}: waits for {', '.join(jobs[:3])}{' ...' if len(jobs) > 3 else ''}")
                told = len(jobs)
            self._terms.sleep(_PAUSE)
            self._write(lambda live: NodePatch())
            jobs = self._jobs()
        return found

    def _since(self, annotation: str) -> float:
        """The time in an annotation of the Node, in seconds since 1970; now if there is none."""
        live = node.named(self._client, [self.name])[self.name]
        text = live.annotations.get(annotation, "")
        return float(text) if text.isascii() and text.isdigit() and len(text) < 16 else self._terms.now()

    def _replace_pod(self) -> None:
        """Deletes the outdated driver pod, and waits until a new one is Ready. Raises ClusterError."""
        if self.one.pod:
            former = [pod for pod in pods_of(self._client, self._fleet, self.name)
                      if pod["metadata"]["name"] == self.one.pod]
            for pod in former:
                meta = pod["metadata"]
                self._client.delete("v1", "Pod", meta["name"], meta["namespace"], meta["uid"])
        limit = max(float(self._policy["pods"]["timeout"]), time_to_start(self.one.daemon_set))
        end = self._terms.clock() + limit
        while True:
            pods = [pod for pod in pods_of(self._client, self._fleet, self.name) if self._is_new(pod)]
            if any(is_ready(pod) for pod in pods):
                return
            for pod in pods:
                self._refuse_restarts(pod)
            self._write(lambda live: NodePatch(annotations=_without(live, upgrades.SAFE_LOAD)))
            if self._terms.clock() >= end:
                name = f"Driver pod {pods[0]['metadata']['name']} is not Ready" if pods else "No driver pod was created"
                raise ClusterError(f"{name} {limit:g} s after the former one was deleted.", "Check its DaemonSet and "
                                   "its log (kubectl describe pod, kubectl logs).", verb="get",
                                   object=f"Node {self.name}", reason="NoDriver")
            self._terms.sleep(_PAUSE)

    def _is_new(self, pod: Object) -> bool:
        """Whether a driver pod is of the DaemonSet of the Node and of none of its former revisions."""
        meta = pod["metadata"]
        return (meta["name"] != self.one.pod and "deletionTimestamp" not in meta
                and controller_uid(pod) == self.one.daemon_set["metadata"]["uid"]
                and revisions.hash_of(pod) not in self.one.former)

    def _refuse_restarts(self, pod: Object) -> None:
        """Raises ClusterError if a container of the new driver pod fails again and again."""
        status = pod.get("status") or {}
        for one in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
            if not one.get("ready") and int(one.get("restartCount") or 0) > _MAX_RESTARTS:
                raise ClusterError(f"Container {one['name']} of driver pod {pod['metadata']['name']} has restarted "
                                   f"{one['restartCount']} times.", "Read its log (kubectl logs --previous).",
                                   verb="get", object=f"Node {self.name}", reason="CrashLoop")

    def _validate(self) -> None:
        """Waits until the validator of the Node is Ready. Raises ClusterError."""
        if not (self._fleet.validates and self.one.node.labels.get(VALIDATES) in ("true", PAUSED)):
            return
        end = self._terms.clock() + _VALIDATION
        while True:
            pods = self._client.list("v1", "Pod", namespace=self._fleet.namespace, label_selector=_VALIDATOR,
                                     field_selector=f"spec.nodeName={self.name}")
            if any(is_ready(pod) for pod in pods):
                return
            if self._terms.clock() >= end:
                what = f"Validator pod {pods[0]['metadata']['name']} is not Ready" if pods else "No validator runs"
                raise ClusterError(f"{what} {_VALIDATION:g} s after the new driver.", "Run the playbook status: it "
                                   "names the cause.", verb="get", object=f"Node {self.name}", reason="NotValid")
            self._terms.sleep(_PAUSE)


def replace_step(one: Candidate) -> Step:
    """The step that replaces the driver pod of a Node, or finishes the upgrade if the pod is replaced already."""
    if not one.pod:
        return Step("finish the upgrade", f"Node {one.name}", f"its state is {one.state or 'unknown'}", "idle")
    images = "" if one.current == one.desired else f"{one.current} becomes {one.desired}"
    return Step("replace", f"driver Pod of Node {one.name}", images or "it is outdated", "idle")


def _wait_step(pod: str) -> Step:
    """The step that waits for a job. pod: its namespace and name."""
    return Step("wait", f"Pod {pod}", "driver.upgradePolicy.waitForCompletion selects it", "idle")


def _cordon_step(name: str) -> Step:
    """The step that cordons a Node."""
    return Step("cordon", f"Node {name}", "new pods must not start there", "drain")


def _undo_step(one: Candidate) -> Step:
    """The step that puts a Node back into service whose upgrade is not wanted any more."""
    return Step("undo the upgrade", f"Node {one.name}", one.excluded)


def _is_lost(error: GpuopsError) -> bool:
    """Whether the Node of an upgrade must not be written any more: another run may work on it, or it was deleted."""
    return isinstance(error, ClusterError) and error.reason in (_LOST, _GONE)


def _in_state(live: NodeState, state: str) -> NodePatch:
    """The patch that sets the state of a Node; empty if it has this state."""
    has_state = live.labels.get(upgrades.STATE) == state
    return NodePatch() if has_state else NodePatch({upgrades.STATE: state}, _listed(live))


def _finished(live: NodeState) -> NodePatch:
    """The patch that ends an upgrade."""
    return NodePatch({upgrades.STATE: upgrades.DONE}, {**_listed(live), **_without(
        live, upgrades.REQUESTED, upgrades.CORDONED_BEFORE, upgrades.SAFE_LOAD, upgrades.WAITING_SINCE,
        upgrades.VALIDATING_SINCE)})


def _failed(live: NodeState) -> NodePatch:
    """The patch that marks an upgrade as failed."""
    return NodePatch({upgrades.STATE: upgrades.FAILED},
                     {**_listed(live), **_without(live, upgrades.WAITING_SINCE, upgrades.VALIDATING_SINCE)})


def _without(live: NodeState, *annotations: str) -> dict[str, None]:
    """The changes that remove these annotations from a Node; empty if it has none of them."""
    return {key: None for key in annotations if key in live.annotations}


def _listed(live: NodeState, has_state: bool = True) -> dict[str, str]:
    """The annotation that lists our labels, with or without that of the state, so that a removal deletes it.

    Empty if it does not change, or if the Node has no such annotation, because a removal then reads managedFields.
    """
    text = live.annotations.get(ANNOTATION)
    if text is None:
        return {}
    keys = {*filter(None, text.split(","))} - {upgrades.STATE} | ({upgrades.STATE} if has_state else set())
    changed = ",".join(sorted(keys))
    return {} if changed == text else {ANNOTATION: changed}
