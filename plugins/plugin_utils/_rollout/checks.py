# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Computes a check for each component from numbers of pods and from the pods that are not ready. Pure. PRIVATE."""

from __future__ import annotations

import re
import typing as t
from dataclasses import replace

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.hidden import masked
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.checks import Check, Problem, SharedProblem
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.workloads import Workload
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import mig
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.deploy_labels import LABELS
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.label_nodes import fold
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._rollout.causes import Cause, explain
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._rollout.cluster import Cluster
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._rollout.drift import Difference
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._rollout.logs import SHOWN, Log
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._rollout.pods import Stuck

_LOST = Cause("the node is NotReady: its kubelet does not report to the API server",
              "Bring {node} back; its pods then come by themselves.",
              do=("kubectl describe node {node}",))
_LONGEST_MESSAGE = 160  # characters, in the line of a problem
_LAYOUT = "layout "  # the state of a Node whose MIG layout is not applied yet begins with it


class Outdated(t.NamedTuple):
    """An outdated pod of a DaemonSet with the update strategy OnDelete.

    current, desired: the image tags of its first container, in the pod and in the newest revision; empty if unknown.
    """

    stuck: Stuck
    current: str = ""
    desired: str = ""


class Observed(t.NamedTuple):
    """What a rollout has read of the cluster.

    stuck: the pods that are not ready; lost: the Nodes that are NotReady; uncounted: C((component, Node)) of lost Nodes
    that the numbers of a workload leave out; outdated: pods; events: by C((kind, name)) the messages of warnings;
    layouts: MIG layouts that are not applied, with the pod of the MIG manager; logs: by pod; labels: by Node, of Nodes
    with a pod that is not ready.
    """

    stuck: t.Sequence[Stuck] = ()
    lost: t.AbstractSet[str] = frozenset()
    uncounted: t.Sequence[t.Tuple[str, str]] = ()
    outdated: t.Sequence[Outdated] = ()
    events: t.Mapping[t.Tuple[str, str], t.Sequence[str]] = {}
    layouts: t.Sequence[t.Tuple[mig.Stand, str]] = ()
    logs: t.Mapping[str, Log] = {}
    labels: t.Mapping[str, t.Mapping[str, str]] = {}


class Explained(t.NamedTuple):
    """A pod that is not ready, and its cause. waits_for: the component that must be ready first, or empty."""

    stuck: Stuck
    cause: Cause
    waits_for: str


def explained(cluster: Cluster, observed: Observed) -> list[Explained]:
    """The causes of all pods that are not ready, without those of lost Nodes."""
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


def roots(cluster: Cluster, observed: Observed) -> list[Stuck]:
    """The pods that wait for no other component. Their logs are worth reading."""
    return [one.stuck for one in explained(cluster, observed) if not one.waits_for]


def checks(cluster: Cluster, components: t.Sequence[str], works: t.Sequence[Workload], observed: Observed,
           check_mode: bool = False) -> list[Check]:
    """A check for each component, in the order of components. In check mode what is not ready is pending."""
    problems = _problems(cluster, works, observed)
    found = [_check(name, [work for work in works if work.component == name], problems, cluster)
             for name in components]
    return [replace(check, state="pending", detail=f"check mode: {check.detail}") if check_mode and not check.ok
            else check for check in found]


def compared(found: t.Sequence[Check], differences: t.Sequence[Difference], check_mode: bool = False) -> list[Check]:
    """The checks with the differences from the plan as further causes.

    A check with the state absent is kept as it is. Differences that belong to no checked component, such as those of
    labels of Nodes, get a check of their own. In check mode differences are pending, because the run has not repaired
    them yet.
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
    return SharedProblem(one.component, state="differs from the plan", cause=one.cause, hint=one.hint, level=level,
                         nodes=[*one.nodes], where=where, text=f"{where}: {one.cause}" if where else one.cause)


def _with_causes(check: Check, causes: t.Sequence[SharedProblem]) -> Check:
    """A check with further causes. Its state and hint are those of the first failed cause."""
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
    """The GPU Nodes without a problem; none if a component is not ready on a Node that is not known."""
    affected = {problem.node for check in found for problem in check.nodes}
    unknown = any(not check.ok and len(check.nodes) < max(1, check.desired - check.ready) for check in found)
    return [] if unknown or "" in affected else [name for name in gpu_nodes if name not in affected]


def _problems(cluster: Cluster, works: t.Sequence[Workload], observed: Observed) -> list[Problem]:
    """The problems of all components on all Nodes."""
    not_ready = {(stuck.component, stuck.node) for stuck in observed.stuck}
    outdated = {one.stuck.pod for one in observed.outdated}
    found = [_problem(one.stuck, _outdated(one, cluster), "pending")
             for one in sorted(observed.outdated, key=lambda one: one.stuck.node)]
    found += [_problem(Stuck(component, node, "", "", "not counted"), _LOST, "pending")
              for component, node in observed.uncounted if (component, node) not in not_ready]
    found += [_layout(stand, pod, cluster.namespace) for stand, pod in observed.layouts]
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
        found.append(replace(problem, message=problem.message or masked(events[-1] if events else ""),
                             waits_for=waits_for, log=[*log.lines[-SHOWN:]] if log.of == stuck.pod else [],
                             log_problem=log.problem))
    return found


def _events(stuck: Stuck, observed: Observed) -> t.Sequence[str]:
    return observed.events.get(("Pod", stuck.pod), ()) if stuck.pod else ()


def _problem(stuck: Stuck, cause: Cause, level: str) -> Problem:
    return Problem(stuck.component, stuck.node, stuck.pod, stuck.container, stuck.state, stuck.reason,
                   masked(stuck.message), stuck.since, stuck.restarts, cause.cause, cause.hint.format(node=stuck.node),
                   [one.format(node=stuck.node) for one in cause.do], level=level)


def shared(problems: t.Sequence[Problem], everything: t.Sequence[Problem] = ()) -> list[SharedProblem]:
    """The problems of one component, once for all Nodes with the same cause; failed ones and those of many Nodes first.

    everything: the problems of all components, by which C(holds_up) is counted. The fields of the result are those of
    a problem whose log was read, if there is one.
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
    """A problem in one line: Nodes, container and state, cause."""
    if one.waits_for:
        return f"waits for {one.waits_for.replace('_', ' ')} on {where}"
    place = f" {one.container}" if one.container else ""
    reason = f", {one.reason}" if one.reason else ""
    message = f" (message: {_end(one.message)})" if one.message else ""
    likely = "likely cause: " if one.level == "failed" and not one.state.startswith(_LAYOUT) else ""
    return f"{where}:{place} {one.state}{reason}; {likely}{one.cause}{message}"


def _where(nodes: t.AbstractSet[str]) -> str:
    folded = fold(nodes) if nodes else "no node"
    return f"{len(nodes)} nodes, {folded}" if len(nodes) > 1 else folded


def _outdated(one: Outdated, cluster: Cluster) -> Cause:
    """Nothing but a deletion replaces an outdated pod. The driver manager of a driver pod may evict GPU pods itself."""
    images = "" if one.current == one.desired else f" (its image is {one.current}, planned is {one.desired})"
    delete = f"kubectl -n {cluster.namespace} delete pod {one.stuck.pod}"
    do: tuple[str, ...] = (delete,)
    if one.stuck.component != "driver":
        hint = "Delete the pod when its Node may be disturbed."
    elif cluster.driver_evicts:
        hint = ("Node by Node: delete the pod; its driver manager evicts the GPU pods of {node} first "
                "(gpu_disruption).")
    else:
        hint = "Node by Node: drain {node}, delete the pod and, once the new one is ready, uncordon."
        do = ("kubectl drain {node} --ignore-daemonsets", delete, "kubectl uncordon {node}")
    return Cause(f"the pod is outdated{images} and runs until it is deleted", hint, do=do)


def _layout(stand: mig.Stand, pod: str, namespace: str) -> Problem:
    cause, hint = mig.says(stand, namespace, pod)
    stuck = Stuck("mig_manager", stand.node, pod, "", f"{_LAYOUT}{stand.asked} {stand.state or 'not begun'}")
    return replace(_problem(stuck, _LOST, "failed" if stand.state == mig.FAILED else "pending"), cause=cause, hint=hint)


def _uncreated(works: t.Sequence[Workload], observed: Observed) -> t.Iterator[Stuck]:
    """A pod without a name for each workload whose controller fails to create pods, with the reason from its events."""
    for work in works:
        created = sum(stuck.component == work.component for stuck in observed.stuck)
        events = observed.events.get((work.kind, work.name), ())
        if events and work.ready + created < work.desired:
            yield Stuck(work.component, "", "", "", "not created", "FailedCreate", events[-1])


def _on_host(cause: Cause, stuck: Stuck, cluster: Cluster) -> Cause:
    """The cause, with another hint if the pod waits for a component that is delivered on the host."""
    delivered = [name for name in cause.waits_for if name in cluster.on_host.get(stuck.node, ())]
    if not delivered:
        return cause
    return replace(cause, hint=f"{' and '.join(delivered)} of this node are delivered on the host "
                               f"{cluster.hosts.get(stuck.node, stuck.node)}: see its checks.")


def _by_label(cause: Cause, stuck: Stuck, cluster: Cluster, observed: Observed) -> Cause:
    """The cause, or another one if a deploy label of the Node keeps a component away that the pod waits for."""
    for name in cause.waits_for:
        key = LABELS.get(name, "")
        value = observed.labels.get(stuck.node, {}).get(key, "true")
        if value == "true" or name in cluster.on_host.get(stuck.node, ()) or name not in cluster.delivered:
            continue
        label, what = f"{key}={value}", name.replace("_", " ")
        remove = f"kubectl label node {stuck.node} {key}-"
        if value == "pre-installed":
            return Cause(f"the node has the label {label}, so it gets no driver pod, but its own driver does not work",
                         "Repair the driver of the host (nvidia-smi must work). If the host must not have a driver: "
                         "remove nvidia-smi and the label, and run site.yml.", cause.waits_for, False,
                         (f"ssh {stuck.node} command -v nvidia-smi", remove))
        if value.startswith("paused-"):
            return Cause(f"the {what} of the node is paused by the label {label}", "A driver upgrade or a change of "
                         "MIG is under way. If none is, it was interrupted: set the label to true.", cause.waits_for,
                         False, (f"kubectl label node {stuck.node} --overwrite {key}=true",))
        return Cause(f"the {what} is kept off the node by the label {label}",
                     "Remove the label and run site.yml, or deliver the component on the host.", cause.waits_for,
                     False, (remove,))
    return cause


def _check(name: str, works: t.Sequence[Workload], problems: t.Sequence[Problem], cluster: Cluster) -> Check:
    """The check of one component. works: its workloads; problems: those of all components."""
    desired, ready = sum(work.desired for work in works), sum(work.ready for work in works)
    updated = sum(work.updated for work in works)
    nodes = [one for one in problems if one.component == name]
    causes = shared(nodes, problems)

    def check(state: str, detail: str, hint: str = "") -> Check:
        return Check(name, state == "ok", state, detail, hint, desired, ready, updated, nodes, causes)

    if not works and cluster.take_over:
        return check("absent", "it still belongs to the operator", "Run adopt.yml without check mode.")
    if not works:
        return check("absent", "the cluster has no object of it", "Run site.yml; its plan names the objects.")
    if causes:
        more = f"; {len(causes) - 1} more causes" if len(causes) > 2 else "; 1 more cause" if causes[1:] else ""
        # A lost Node is not a failure of the run, unless all Nodes are lost and the component is ready on none.
        lost = not ready and all(cause.cause == _LOST.cause for cause in causes)
        return check("failed" if lost else causes[0].level, f"{ready}/{desired} ready; {causes[0].text}{more}",
                     causes[0].hint)
    unseen = [work.name for work in works if not work.seen]
    if unseen:
        return check("failed", f"its controller has not observed the last change of {', '.join(unseen)}",
                     "Check that kube-controller-manager runs.")
    if not all(work.settled for work in works):
        count, what = (ready, "ready") if ready < desired else (updated, "updated")
        return check("failed", f"{count}/{desired} {what} at the timeout", "Raise the timeout.")
    return check("ok", f"{ready}/{desired} ready" if desired else f"no Node needs it: {_why_none(name, cluster)}")


def _end(message: str) -> str:
    """The end of a message in one line, because messages of container runtimes have their cause at the end."""
    line = " ".join(message.split())
    return line if len(line) <= _LONGEST_MESSAGE else f"...{line[-_LONGEST_MESSAGE:].partition(' ')[2]}"


def _why_none(name: str, cluster: Cluster) -> str:
    """Why a component has no desired pods."""
    if not cluster.gpu_nodes:
        return "the cluster has no GPU node"
    if all(name in cluster.on_host.get(node, ()) for node in cluster.gpu_nodes):
        return "every GPU node has it on its host"
    if name == "mig_manager":
        return "no GPU node is labelled as MIG capable"
    return "no GPU node has its label"
