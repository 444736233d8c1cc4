# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Takes a Node out of service before its host is disturbed, and puts it back as it was. PRIVATE to the collection.

While a Node is out of service, one run holds it and its operands are paused by their deploy labels. If the level
allows it, the Node is also cordoned and the pods that use GPUs are evicted, before the operands are paused. Labels and
annotations of the Node keep this state, so that the next run can continue after a run was killed.

The labels carry the value that the vendor's driver manager writes for a driver upgrade (k8s-driver-manager, GPU
Operator 26.7), so that other tools know what it means.
"""

from __future__ import annotations

import time
import typing as t
from dataclasses import dataclass, field, replace

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import GpuopsError
from ansible_collections.gpuops.nvidia.plugins.module_utils._labels.deploy_labels import LABELS
from ansible_collections.gpuops.nvidia.plugins.module_utils._labels.label_keys import DEPLOY
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step, allows, outcome, plan_diff
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.printable import printable
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.errors import ClusterError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import cordon, drain, mig, node, operand_pods
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.holder import HELD, Holder, refuse_held

PAUSED = "paused-for-driver-upgrade"
PAUSES = tuple(dict.fromkeys((*(LABELS[name] for name in LABELS if name != "driver"), *mig.PAUSES)))
# The annotation that says why the last maintenance failed.
REASON = "gpuops.nvidia/maintenance-failed"
# The annotation of a Node whose driver and MPS pods are being removed: their components, separated by commas, and
# OTHERS if other work has cordoned the Node before. A component stays in it until its removal has succeeded.
REMOVING = "gpuops.nvidia/removing"
OTHERS = "others"
UPGRADE = "nvidia.com/gpu-driver-upgrade-state"
_UPGRADE_ENDED = ("", "unknown", "upgrade-done", "upgrade-failed")
_KEPT = 1000  # characters of a reason
_PAUSE = 1.0  # seconds between two looks

Object = t.Mapping[str, t.Any]
Result = t.Dict[str, t.Any]


@dataclass(frozen=True)
class Request:
    """What a task asks.

    drain: the Node, the level, the timeout in seconds and which pods may be evicted; holder: this run; clients: what
    uses the GPUs, in the form in which the host's modules return holders; reason: why the maintenance failed, empty if
    it succeeded; begun: the result of the task that began, of which a run needs ready, and check mode all; removing:
    the components whose driver or MPS pods are removed from the Node, empty for other work.
    """

    drain: drain.Request
    holder: Holder
    clients: t.Sequence[t.Mapping[str, t.Any]] = ()
    reason: str = ""
    begun: t.Mapping[str, t.Any] = field(default_factory=dict)
    removing: t.AbstractSet[str] = frozenset()

    @property
    def name(self) -> str:
        """The Node."""
        return self.drain.names[0]


def left_behind(annotations: t.Mapping[str, str]) -> bool:
    """Whether a run that was killed or failed has left its annotations on a Node."""
    return HELD in annotations or REASON in annotations or REMOVING in annotations


def unfinished(one: Object) -> frozenset[str]:
    """The components whose pods a run has begun to remove from a Node and has not finished, and OTHERS."""
    return frozenset(_annotations(one).get(REMOVING, "").split(",")) - {""}


class Maintenance:
    """One task. tell: called with a line on the way; clock, sleep: as of the module time."""

    def __init__(self, client: Client, request: Request, tell: t.Callable[[str], None] = lambda line: None,
                 clock: t.Callable[[], float] = time.monotonic, sleep: t.Callable[[float], None] = time.sleep) -> None:
        self._client, self._request = client, request
        self._tell, self._clock, self._sleep = tell, clock, sleep

    def started(self) -> Result:
        """Takes the Node out of service. If it raises GpuopsError, the Node is as it was before.

        If the level does not allow to end what uses the GPUs, nothing is changed, C(started) in the result is false,
        and C(pending) names what uses them.
        """
        one = self._node()
        self._refuse_upgrade(one)
        if self._request.removing and not _ready(one):
            raise ClusterError(f"Node {self._request.name} is not Ready, so that its pods would not end.",
                               f"See why with kubectl describe node {self._request.name}, or delete the Node if it "
                               "is gone for good.", verb="get", object=f"Node {self._request.name}", reason="NotReady")
        preview = self._drain(check=True)
        obstacles = self._obstacles(preview)
        if obstacles:
            return outcome([], obstacles, started=False, ready=_ready(one), paused=[], cordoned=[], evicted=[],
                           staying=preview["staying"])
        steps = _steps(self._request.name, one, [_again(step) for step in preview["plan"]])
        result = outcome(steps, (), plan_diff("node_maintenance", steps), started=True, ready=_ready(one),
                         paused=_to_pause(one), cordoned=preview["cordoned"], evicted=[], staying=preview["staying"])
        return result if self._request.drain.check else {**result, **self._start(one)}

    def ended(self) -> Result:
        """Puts the Node back into service. With a reason, a Node that this collection has cordoned stays cordoned, and
        so does one on which other work of it is not finished.

        A Node that no run of this collection holds or has left behind is not touched. Raises ClusterError if the Node
        was Ready before and does not become Ready in time.
        """
        one, begun = self._node(), self._request.begun
        if not left_behind(_annotations(one)) and not (self._request.drain.check and begun.get("started")):
            return outcome([], started=False, ready=_ready(one), paused=[], cordoned=[], evicted=[], staying=[])
        reason = printable(" ".join(self._request.reason.split()))[:_KEPT]
        paused = _paused(one) or list(begun.get("paused") or ())
        steps = [Step("resume", f"{key[len(DEPLOY):]} on Node {self._request.name}") for key in paused]
        if reason:
            steps.append(Step("say why", f"Node {self._request.name}", reason))
        elif not self._left(one) and (cordon.before(one) is not None or begun.get("cordoned")):
            steps.append(Step("uncordon", f"Node {self._request.name}", "it gets back its former state"))
        steps.append(Step("release", f"Node {self._request.name}"))
        if not self._request.drain.check:
            if not reason and begun.get("ready", True):
                one = self._await_ready(one)
            node.write(self._client, self._request.name, lambda live: self._released(live, reason))
        return outcome(steps, (), plan_diff("node_maintenance", steps), started=False, ready=_ready(one), paused=[],
                       cordoned=[], evicted=[], staying=[])

    def _await_ready(self, one: Object) -> Object:
        """Waits for the kubelet, for example after a reboot or a restart of the runtime. Returns the Ready Node."""
        end = self._clock() + self._request.drain.timeout
        while not _ready(one):
            if self._clock() >= end:
                raise ClusterError(f"Node {self._request.name} is not Ready {self._request.drain.timeout:g} s after "
                                   "its host was changed.", "Look at the kubelet and the container runtime of the host "
                                   "(journalctl -u kubelet), and run again.", verb="get",
                                   object=f"Node {self._request.name}", reason="NotReady")
            self._sleep(_PAUSE)
            one = self._node()
        return one

    def _node(self) -> Object:
        one = node.named(self._client, [self._request.name])[self._request.name]
        refuse_held(self._request.holder, [one])
        return one

    def _refuse_upgrade(self, one: Object) -> None:
        state = operand_pods.labels(one).get(UPGRADE, "")
        if state not in _UPGRADE_ENDED:
            raise ClusterError(f"A driver upgrade is under way on Node {self._request.name} ({UPGRADE}={state}).",
                               "Wait until it has ended. If it was abandoned, remove the label.", verb="patch",
                               object=f"Node {self._request.name}", reason="Upgrading")
        # Any other change of a layout holds its Node, and is settled by the next run if it was killed.
        if mig.stand(one).managed and mig.stand(one).state == mig.PENDING:
            raise ClusterError(f"A change of the MIG layout is under way on Node {self._request.name}.",
                               "Wait until its MIG manager has ended it.", verb="patch",
                               object=f"Node {self._request.name}", reason="Changing")

    def _drain(self, check: bool) -> Result:
        request = replace(self._request.drain, check=check)
        return drain.Drain(self._client, request, self._tell, self._clock, self._sleep).drained()

    def _obstacles(self, preview: Result) -> list[dict[str, t.Any]]:
        """What uses the GPUs and must not be ended at this level, as pending steps. From C(drain) on there is none:
        pods are evicted, and the host's modules decide about processes of the host."""
        level = self._request.drain.level
        if allows(level, "drain"):
            return []
        evictions = [step for step in preview["pending"] if step["action"] == "evict"]
        stops = [Step("stop", f"{one.get('name')} (pid {one.get('pid')})", "it uses a GPU", "drain").as_dict()
                 for one in self._request.clients if not one.get("container")]
        return [{**step, "pending_reason": f"gpu_disruption is '{level}', this needs 'drain' or higher"}
                for step in evictions + stops]

    def _start(self, one: Object) -> Result:
        """Carries out the plan; returns what only the run knows. If something goes wrong, the Node is as one again."""
        name = self._request.name
        node.write(self._client, name, self._taken)
        try:
            drained = self._drain(check=False) if allows(self._request.drain.level, "drain") else {}
            if not drained.get("failed"):
                # After the evictions, as the end of the MPS daemon ends its clients, whatever their budgets say.
                node.write(self._client, name, self._pausing)
                operand_pods.await_end(self._client, [name], PAUSES, PAUSED, self._request.drain.timeout, self._clock,
                                       self._sleep)
        except GpuopsError:
            self._give_back(one)
            raise
        if drained.get("failed"):
            self._give_back(one)
            return {key: drained[key] for key in ("failed", "msg", "blocked")}
        return {"evicted": drained.get("evicted", [])}

    def _give_back(self, one: Object) -> None:
        node.write(self._client, self._request.name, lambda live: self._as_before(live, one))

    def _taken(self, live: Object) -> dict[str, t.Any] | None:
        """The patch by which this run holds the Node."""
        refuse_held(self._request.holder, [live])
        work = self._request.removing | self._left(live) if self._request.removing else ()
        mark = {REMOVING: ",".join(sorted(work))} if work else {}
        return {"metadata": {"annotations": {HELD: self._request.holder.text, **mark}}}

    def _left(self, one: Object) -> frozenset[str]:
        """The work on the Node that this task does not finish, in the words of REMOVING."""
        work = unfinished(one)
        if not self._request.removing:
            return work - {OTHERS}
        if not work and cordon.before(one) is not None:
            return frozenset({OTHERS})
        return work - self._request.removing

    def _pausing(self, live: Object) -> dict[str, t.Any] | None:
        """The patch that pauses the operands."""
        refuse_held(self._request.holder, [live])
        labels = dict.fromkeys(_to_pause(live), PAUSED)
        return {"metadata": {"labels": labels}} if labels else None

    def _as_before(self, live: Object, one: Object) -> dict[str, t.Any] | None:
        """The patch that takes back what this run has written on the Node since it was one. What an earlier run has
        left behind stays for the next run."""
        refuse_held(self._request.holder, [live])
        former = _annotations(one)
        patch = {} if cordon.ANNOTATION in former else cordon.uncordon(live) or {}
        annotations = {**patch.get("metadata", {}).get("annotations", {}),
                       **{key: former.get(key) for key in (HELD, REMOVING) if key in _annotations(live)}}
        resumed = [key for key in _paused(live) if key not in _paused(one)]
        return {**patch, "metadata": {"annotations": annotations, "labels": dict.fromkeys(resumed, "true")}}

    def _released(self, live: Object, reason: str) -> dict[str, t.Any] | None:
        refuse_held(self._request.holder, [live])
        work, former = unfinished(live), _annotations(live)
        left = work if reason else self._left(live)
        if reason and work and not self._request.removing:
            left |= {OTHERS}
        patch = (None if left or reason else cordon.uncordon(live)) or {}
        annotations = {**patch.get("metadata", {}).get("annotations", {}), HELD: None,
                       REASON: reason or (former.get(REASON) if left else None)}
        if REMOVING in former:
            annotations[REMOVING] = ",".join(sorted(left)) if left - {OTHERS} else None
        return {**patch, "metadata": {"annotations": annotations, "labels": dict.fromkeys(_paused(live), "true")}}


def _ready(one: Object) -> bool:
    return any(condition.get("type") == "Ready" and condition.get("status") == "True"
               for condition in (one.get("status") or {}).get("conditions") or ())


def _steps(name: str, one: Object, evictions: t.Sequence[Step]) -> list[Step]:
    return [Step("hold", f"Node {name}", "no other run works on it"), *evictions,
            *(Step("pause", f"{key[len(DEPLOY):]} on Node {name}") for key in _to_pause(one))]


def _again(step: t.Mapping[str, t.Any]) -> Step:
    return Step(step["action"], step["target"], step["reason"], step["needs"])


def _to_pause(one: Object) -> list[str]:
    labels = operand_pods.labels(one)
    return [key for key in PAUSES if labels.get(key) == "true"]


def _paused(one: Object) -> list[str]:
    labels = operand_pods.labels(one)
    return [key for key in PAUSES if labels.get(key) == PAUSED]


def _annotations(one: Object) -> dict[str, str]:
    return dict(one["metadata"].get("annotations") or {})
