# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Computes the check of each component: how many of its pods are ready, and why the others are not. Pure. PRIVATE."""

from __future__ import annotations

import re
import typing as t
from dataclasses import replace

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.hidden import without_secrets
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.checks import (
    DIFFERS,
    LAYOUT,
    LOST,
    OUTDATED,
    Check,
    Problem,
    SharedProblem,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.workloads import Workload
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import mig_labels
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.deploy_labels import LABELS
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.label_nodes import fold
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._rollout.causes import Cause, explain
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._rollout.cluster import Cluster
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._rollout.drift import Difference
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._rollout.logs import SHOWN, Log
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._rollout.pods import NotReadyPod

_LOST = Cause(LOST, "Repair {node}. When it is Ready again, its pods start without further action.",
              do=("kubectl describe node {node}",))
_MAX_MESSAGE = 160  # characters of a message in the line of a problem


class Outdated(t.NamedTuple):
    """An outdated pod of a DaemonSet with the update strategy OnDelete.

    current, desired: the image tags of the first container, in the pod and in the newest revision; empty if unknown;
    mps: whether it is the pod of an MPS daemon.
    """

    stuck: NotReadyPod
    current: str = ""
    desired: str = ""
    mps: bool = False


class Observed(t.NamedTuple):
    """The state of the cluster that a rollout has read.

    stuck: the pods that are not ready; lost: the Nodes that are NotReady; uncounted: C((component, Node)) for each lost
    Node that is missing in the numbers of a workload; outdated: the outdated pods; events: maps the C((kind, name)) of
    an object to the messages of its warnings; layouts: each MIG layout that is not applied, with the pod of the MIG
    manager on its Node; logs: maps a pod to its log; labels: maps a Node with a pod that is not ready to its labels.
    """

    stuck: t.Sequence[NotReadyPod] = ()
    lost: t.AbstractSet[str] = frozenset()
    uncounted: t.Sequence[t.Tuple[str, str]] = ()
    outdated: t.Sequence[Outdated] = ()
    events: t.Mapping[t.Tuple[str, str], t.Sequence[str]] = {}
    layouts: t.Sequence[t.Tuple[mig_labels.NodeMig, str]] = ()
    logs: t.Mapping[str, Log] = {}
    labels: t.Mapping[str, t.Mapping[str, str]] = {}


class Explained(t.NamedTuple):
    """A pod that is not ready, and the cause. waits_for: the component that must be ready first, empty for none."""

    stuck: NotReadyPod
    cause: Cause
    waits_for: str


def explained(cluster: Cluster, observed: Observed) -> list[Explained]:
    """The pods that are not ready, with their causes. Pods on lost Nodes are left out."""
    not_ready = {(stuck.component, stuck.node) for stuck in observed.stuck}
    found = []
    for stuck in observed.stuck:
        if stuck.node in observed.lost:
            continue
        log = observed.logs.get(stuck.pod, Log()).lines
        cause = explain(stuck, _events(stuck, observed), cluster.namespace, log)
        waits_for = next((name for name in cause.waits_for if (name, stuck.node) in not_ready), "")
        found.append(Explained(stuck, cause if waits_for else _by_label(cause, stuck, cluster, observed), waits_for))
    return found


def roots(cluster: Cluster, observed: Observed) -> list[NotReadyPod]:
    """The pods that are not ready and do not wait for another component: their logs show the cause."""
    return [one.stuck for one in explained(cluster, observed) if not one.waits_for]


def checks(cluster: Cluster, components: t.Sequence[str], works: t.Sequence[Workload], observed: Observed,
           check_mode: bool = False) -> list[Check]:
    """A check for each component, in the order of components. In check mode the state is pending instead of failed."""
    problems = _problems(cluster, works, observed)
    found = [_check(name, [work for work in works if work.component == name], problems, cluster)
             for name in components]
    return [replace(check, state="pending", detail=f"check mode: {check.detail}") if check_mode and not check.ok
            else check for check in found]


def compared(found: t.Sequence[Check], differences: t.Sequence[Difference], check_mode: bool = False) -> list[Check]:
    """The checks, to which the differences from the plan are added as causes.

    A check with the state absent does not change. Differences of a component that was not checked, and differences in
    the labels of Nodes, become a separate check. In check mode differences are pending, because the run did not repair
    them.
    """
    by_component: dict[str, list[SharedProblem]] = {}
    for one in differences:
        by_component.setdefault(one.component, []).append(_difference(one, "pending" if check_mode else one.level))
    result = [check if check.state == "absent" else _with_causes(check, by_component.pop(check.component, []))
              for check in found]
    known = {check.component for check in found}
    return result + [_with_causes(Check(name), causes) for name, causes in by_component.items() if name not in known]


def _difference(one: Difference, level: str) -> SharedProblem:
    where = _where(frozenset(one.nodes)) if one.nodes else ""
    return SharedProblem(one.component, state=DIFFERS, cause=one.cause, hint=one.hint, level=level,
                         nodes=[*one.nodes], where=where, text=f"{where}: {one.cause}" if where else one.cause)


def _with_causes(check: Check, causes: t.Sequence[SharedProblem]) -> Check:
    """The check with these causes added. Its state and hint come from the first failed cause."""
    if not causes:
        return check
    own = [] if check.ok or check.causes else [_difference(
        Difference(check.component, check.detail, check.hint), check.state)]
    every = sorted([*check.causes, *own, *causes], key=lambda cause: cause.level != "failed")
    counts = [f"{check.ready}/{check.desired} ready"] if check.ok and check.desired else []
    detail = [*counts, *([] if check.ok else [check.detail]), *(cause.text for cause in causes)]
    problems = [Problem(node=node, state=cause.state, cause=cause.cause, hint=cause.hint, level=cause.level)
                for cause in causes for node in cause.nodes]
    return replace(check, ok=False, state=every[0].level, causes=every, hint=every[0].hint, detail="; ".join(detail),
                   nodes=[*check.nodes, *problems])


def verified(gpu_nodes: t.Sequence[str], found: t.Sequence[Check]) -> list[str]:
    """The GPU Nodes without a problem. Empty if a component is not ready and the Node of its pod is not known."""
    affected = {problem.node for check in found for problem in check.nodes}
    unknown = any(not check.ok and len(check.nodes) < max(1, check.desired - check.ready) for check in found)
    return [] if unknown or "" in affected else [name for name in gpu_nodes if name not in affected]


def _problems(cluster: Cluster, works: t.Sequence[Workload], observed: Observed) -> list[Problem]:
    """The problems of all components on all Nodes."""
    not_ready = {(stuck.component, stuck.node) for stuck in observed.stuck}
    outdated = {one.stuck.pod for one in observed.outdated}
    found = [_problem(one.stuck, _outdated(one, cluster), "pending")
             for one in sorted(observed.outdated, key=lambda one: one.stuck.node)]
    found += [_problem(NotReadyPod(component, node, "", "", "not counted"), _LOST, "pending")
              for component, node in observed.uncounted if (component, node) not in not_ready]
    found += [_layout(node_mig, pod, cluster.namespace) for node_mig, pod in observed.layouts]
    found += [_problem(stuck, explain(stuck, (), cluster.namespace), "failed")
              for stuck in _uncreated(works, observed)]
    found += [_problem(stuck, _LOST, "pending") for stuck in observed.stuck
              if stuck.node in observed.lost and stuck.pod not in outdated]
    for stuck, cause, waits_for in explained(cluster, observed):
        if stuck.pod and stuck.pod in outdated:
            continue
        events = _events(stuck, observed)
        problem = _problem(stuck, _on_host(cause, stuck, cluster), "pending" if waits_for else "failed")
        log = Log() if waits_for else observed.logs.get(stuck.pod, Log())
        found.append(replace(problem, message=problem.message or without_secrets(events[-1] if events else ""),
                             waits_for=waits_for, log=[*log.lines[-SHOWN:]] if log.of == stuck.pod else [],
                             log_problem=log.problem))
    return found


def _events(stuck: NotReadyPod, observed: Observed) -> t.Sequence[str]:
    return observed.events.get(("Pod", stuck.pod), ()) if stuck.pod else ()


def _problem(stuck: NotReadyPod, cause: Cause, level: str) -> Problem:
    return Problem(stuck.component, stuck.node, stuck.pod, stuck.container, stuck.state, stuck.reason,
                   without_secrets(stuck.message), stuck.since, stuck.restarts, cause.cause,
                   cause.hint.format(node=stuck.node), [one.format(node=stuck.node) for one in cause.do], level=level)


def shared(problems: t.Sequence[Problem], everything: t.Sequence[Problem] = ()) -> list[SharedProblem]:
    """The problems of one component. The problems of Nodes with the same cause become one problem.

    Failed problems come first, then the problems of the most Nodes. everything: the problems of all components, to
    count C(holds_up). The other fields come from the first problem whose log was read, or else from the first problem.
    """
    alike: dict[tuple[str, ...], list[Problem]] = {}
    for one in problems:
        alike.setdefault((one.level, one.waits_for, one.container, one.cause), []).append(one)
    found = []
    for group in alike.values():
        nodes = {one.node for one in group if one.node}
        holds_up: dict[str, int] = {}
        for one in everything:
            if one.waits_for == group[0].component and one.node in nodes:
                holds_up[one.component] = holds_up.get(one.component, 0) + 1
        first = next((one for one in group if one.log), group[0])
        hint = first.hint if len(nodes) < 2 else re.sub(
            rf"(?<![\w.-]){re.escape(first.node)}(?![\w-])", "each of these nodes", first.hint)
        where = _where(nodes)
        found.append(SharedProblem(**{**vars(first), "hint": hint}, nodes=sorted(nodes), where=where, holds_up=holds_up,
                                   text=_sentence(first, where)))
    return sorted(found, key=lambda one: (one.level != "failed", -len(one.nodes)))


def _sentence(one: Problem, where: str) -> str:
    """A problem in one line: the Nodes, the container, its state and the cause."""
    if one.waits_for:
        return f"waits for {one.waits_for.replace('_', ' ')} on {where}"
    container = f" {one.container}" if one.container else ""
    reason = f", {one.reason}" if one.reason else ""
    message = f" (message: {_end(one.message)})" if one.message else ""
    likely = "likely cause: " if one.level == "failed" and not one.state.startswith(LAYOUT) else ""
    return f"{where}:{container} {one.state}{reason}; {likely}{one.cause}{message}"


def _where(nodes: t.AbstractSet[str]) -> str:
    folded = fold(nodes) if nodes else "no node"
    return f"{len(nodes)} nodes, {folded}" if len(nodes) > 1 else folded


def _outdated(one: Outdated, cluster: Cluster) -> Cause:
    """The cause of an outdated pod. Its hint is to delete the pod: an OnDelete DaemonSet replaces only deleted pods."""
    images = "" if one.current == one.desired else f" (current image: {one.current}, desired: {one.desired})"
    delete = f"kubectl -n {cluster.namespace} delete pod {one.stuck.pod}"
    do: tuple[str, ...] = (delete,)
    if one.stuck.component == "mig_manager":
        hint = ("Delete the pod when the MIG instances of {node} may change: the new pod applies the layout that the "
                "label nvidia.com/mig.config requests.")
    elif one.stuck.component == "driver" and cluster.driver_evicts:
        hint = ("Run the playbook upgrade. Or one Node at a time: delete the pod. Its driver manager first evicts the "
                "GPU pods of {node} (gpu_disruption).")
    elif one.stuck.component == "driver" or one.mps:
        hint = ("One Node at a time: drain {node}, delete the pod and, when the new pod is ready, uncordon the Node."
                if one.mps else "Run the playbook upgrade with gpu_disruption: drain. Or one Node at a time: drain "
                "{node}, delete the pod and, when the new pod is ready, uncordon the Node.")
        do = ("kubectl drain {node} --ignore-daemonsets", delete, "kubectl uncordon {node}")
    else:
        hint = "Delete the pod when workloads on its Node may be interrupted."
    return Cause(f"{OUTDATED}{images} and keeps running until it is deleted", hint, do=do)


def _layout(layout: mig_labels.NodeMig, pod: str, namespace: str) -> Problem:
    cause, hint = mig_labels.explain(layout, namespace, pod)
    reason = f"{LAYOUT}{layout.layout} {layout.state or 'not started'}"
    problem = _problem(NotReadyPod("mig_manager", layout.node, pod, "", reason), _LOST,
                       "failed" if layout.state == mig_labels.FAILED else "pending")
    return replace(problem, cause=cause, hint=hint)


def _uncreated(works: t.Sequence[Workload], observed: Observed) -> t.Iterator[NotReadyPod]:
    """For each workload whose controller cannot create pods: a pod without a name, with the message of the last event.
    """
    for work in works:
        created = sum(stuck.component == work.component for stuck in observed.stuck)
        events = observed.events.get((work.kind, work.name), ())
        if events and work.ready + created < work.desired:
            yield NotReadyPod(work.component, "", "", "", "not created", "FailedCreate", events[-1])


def _on_host(cause: Cause, stuck: NotReadyPod, cluster: Cluster) -> Cause:
    """The cause, with a hint that names the host if the pod waits for components that are delivered on the host."""
    delivered = [name for name in cause.waits_for if name in cluster.on_host.get(stuck.node, ())]
    if not delivered:
        return cause
    return replace(cause, hint=f"Read the checks of the host {cluster.hosts.get(stuck.node, stuck.node)}: this node "
                               f"uses {' and '.join(delivered)} of its host.")


def _by_label(cause: Cause, stuck: NotReadyPod, cluster: Cluster, observed: Observed) -> Cause:
    """The cause. If the pod waits for a component that a deploy label of the Node disables, the label is the cause."""
    for name in cause.waits_for:
        key = LABELS.get(name, "")
        value = observed.labels.get(stuck.node, {}).get(key, "true")
        if value == "true" or name in cluster.on_host.get(stuck.node, ()) or name not in cluster.delivered:
            continue
        label, title = f"{key}={value}", name.replace("_", " ")
        remove = f"kubectl label node {stuck.node} {key}-"
        if value == "pre-installed":
            return Cause(f"the node has the label {label}, so it gets no driver pod, but the driver of the host does "
                         "not work",
                         "Repair the driver of the host (nvidia-smi must work). If the host should not have a driver, "
                         "remove nvidia-smi and the label, and run site.yml.", cause.waits_for, False,
                         (f"ssh {stuck.node} command -v nvidia-smi", remove))
        if value.startswith("paused-"):
            return Cause(f"the label {label} pauses the {title} on the node",
                         "Wait until the driver upgrade or the change of MIG has ended. If none is in progress, it was "
                         "interrupted: set the label to true.", cause.waits_for,
                         False, (f"kubectl label node {stuck.node} --overwrite {key}=true",))
        return Cause(f"the label {label} excludes the node from the {title}",
                     "Remove the label and run site.yml, or deliver the component on the host.", cause.waits_for,
                     False, (remove,))
    return cause


def _check(name: str, works: t.Sequence[Workload], problems: t.Sequence[Problem], cluster: Cluster) -> Check:
    """The check of one component. works: its workloads; problems: the problems of all components."""
    desired, ready = sum(work.desired for work in works), sum(work.ready for work in works)
    updated = sum(work.updated for work in works)
    nodes = [one for one in problems if one.component == name]
    causes = shared(nodes, problems)

    def check(state: str, detail: str, hint: str = "") -> Check:
        return Check(name, state == "ok", state, detail, hint, desired, ready, updated, nodes, causes)

    if not works and cluster.take_over:
        return check("absent", "the GPU Operator still owns this component", "Run adopt.yml without check mode.")
    if not works:
        return check("absent", "the cluster has no objects of this component",
                     "Run site.yml: it creates the objects that its plan lists.")
    if causes:
        more = f"; {len(causes) - 1} more causes" if len(causes) > 2 else "; 1 more cause" if causes[1:] else ""
        # Lost Nodes are a failure of the run only if the component is ready on no Node and all its problems are lost
        # Nodes.
        lost = not ready and all(cause.cause == _LOST.cause for cause in causes)
        return check("failed" if lost else causes[0].level, f"{ready}/{desired} ready; {causes[0].text}{more}",
                     causes[0].hint)
    unobserved = [work.name for work in works if not work.seen]
    if unobserved:
        return check("failed", f"the controller has not observed the last change of {', '.join(unobserved)}",
                     "Check that kube-controller-manager runs.")
    if not all(work.settled for work in works):
        count, condition = (ready, "ready") if ready < desired else (updated, "updated")
        return check("failed", f"{count}/{desired} {condition} at the timeout", "Raise the timeout.")
    return check("ok", f"{ready}/{desired} ready" if desired
                 else f"no Node needs this component: {_why_none(name, cluster)}")


def _end(message: str) -> str:
    """The end of a message as one line. Container runtimes put the cause at the end of their messages."""
    line = " ".join(message.split())
    return line if len(line) <= _MAX_MESSAGE else f"...{line[-_MAX_MESSAGE:].partition(' ')[2]}"


def _why_none(name: str, cluster: Cluster) -> str:
    """Why a component has no desired pods."""
    if not cluster.gpu_nodes:
        return "the cluster has no GPU node"
    if all(name in cluster.on_host.get(node, ()) for node in cluster.gpu_nodes):
        return "it is delivered on the host of every GPU node"
    if name == "mig_manager":
        return "no GPU node has the label for MIG-capable GPUs"
    return "no GPU node has its deploy label"
