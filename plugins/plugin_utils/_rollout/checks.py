# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From counts and stuck pods to one check a component, the first cause on a node first. Pure. PRIVATE.

A check is C({component, ok, state, detail, hint, desired, ready, updated, nodes, causes}), as on hosts with counts and
C(nodes: [{node, pod, container, state, reason, message, cause, hint, waits_for, level}]) besides; level is C(failed),
or C(pending) for what comes by itself or waits for another component, named by waits_for.
C(causes) has the same once for all nodes that stand alike (L(groups)).
"""

from __future__ import annotations

import re
import typing as t
from dataclasses import replace

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.hidden import masked
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.workloads import Workload
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import mig
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.deploy_labels import LABELS
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.label_nodes import fold
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._rollout.causes import Cause, explain
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._rollout.drift import Difference
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._rollout.logs import SHOWN, Log
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._rollout.pods import Stuck

Data = t.Dict[str, t.Any]
LOST = Cause("the node is NotReady: it is lost to the cluster", "Bring {node} back; its pods then come by themselves.",
             do=("kubectl describe node {node}",))
_SAID = 160
_LAYOUT = "layout "  # begins the state of a Node whose MIG layout is not settled
# What an entry says of a node beside its name; the component is the check's.
_OF_NODE = ("pod", "container", "state", "reason", "message", "since", "restarts", "cause", "hint", "do", "log",
            "log_problem", "waits_for", "level")
# A check of what has no pods.
_NOTHING: t.Mapping[str, t.Any] = {"ok": True, "state": "ok", "detail": "", "hint": "", "desired": 0, "ready": 0,
                                   "updated": 0, "nodes": (), "causes": ()}
_ALIKE = ("level", "waits_for", "container", "cause")


class Former(t.NamedTuple):
    """An OnDelete pod of a former revision. runs, wanted: the tags of the image of its first container, that of the pod
    and that of the newest revision; empty where not known."""

    stuck: Stuck
    runs: str = ""
    wanted: str = ""


class Seen(t.NamedTuple):
    """What was read at the end.

    stuck: pods that are not ready; lost: nodes that are NotReady; away: C((component, node)) of lost nodes that the
    counts leave out; former: OnDelete pods of a former revision;
    events: by C((kind, name)) the messages of warnings; layouts: of MIG that are not settled, with the manager's pod;
    logs: by pod; labels: by node, of those where a pod is not ready.
    """

    stuck: t.Sequence[Stuck] = ()
    lost: t.AbstractSet[str] = frozenset()
    away: t.Sequence[t.Tuple[str, str]] = ()
    former: t.Sequence[Former] = ()
    events: t.Mapping[t.Tuple[str, str], t.Sequence[str]] = {}
    layouts: t.Sequence[t.Tuple[mig.Stand, str]] = ()
    logs: t.Mapping[str, Log] = {}
    labels: t.Mapping[str, t.Mapping[str, str]] = {}


class Standing(t.NamedTuple):
    """A pod that is not ready, why, and the component that it waits for on its node (empty: none)."""

    stuck: Stuck
    cause: Cause
    before: str


def standings(cluster: t.Mapping[str, t.Any], seen: Seen) -> list[Standing]:
    """Why each pod is not ready. Those of lost nodes are left out."""
    held = {(stuck.component, stuck.node) for stuck in seen.stuck}
    found = []
    for stuck in seen.stuck:
        if stuck.node in seen.lost:
            continue
        events = seen.events.get(("Pod", stuck.pod), ()) if stuck.pod else ()
        log = seen.logs.get(stuck.pod, Log()).lines
        cause = explain(stuck, events, cluster["namespace"], log)
        before = next((name for name in cause.waits_for if (name, stuck.node) in held), "")
        found.append(Standing(stuck, cause if before else _kept_away(cause, stuck, cluster, seen), before))
    return found


def roots(cluster: t.Mapping[str, t.Any], seen: Seen) -> list[Stuck]:
    """The pods that wait for nobody: it is they whose logs tell."""
    return [one.stuck for one in standings(cluster, seen) if not one.before]


def checks(cluster: t.Mapping[str, t.Any], components: t.Sequence[str], works: t.Sequence[Workload],
           seen: Seen, check_mode: bool = False) -> list[Data]:
    """One check for each component, in the order given. cluster: the part of the plan."""
    entries = _entries(cluster, works, seen)
    found = []
    for name in components:
        mine = [work for work in works if work.component == name]
        check = _check(name, mine, entries, cluster)
        if check_mode and not check["ok"]:
            check.update(state="pending", detail=f"check mode: {check['detail']}")
        found.append(check)
    return found


def compared(found: t.Sequence[Data], differences: t.Sequence[Difference], check_mode: bool = False) -> list[Data]:
    """The checks, with what differs from the plan as causes of their components.

    A component of which nothing is there keeps its words. What is nobody's own, such as the labels of Nodes, gets a
    check of its own. In check mode nothing has been done yet, so that nothing has failed.
    """
    by_component: dict[str, list[Data]] = {}
    for one in differences:
        level = "pending" if check_mode else one.level
        by_component.setdefault(one.component, []).append(_difference(one, level))
    checks = [check if check["state"] == "absent" else _with_causes(check, by_component.pop(check["component"], []))
              for check in found]
    known = {check["component"] for check in found}
    return checks + [_with_causes({"component": name, **_NOTHING}, causes)
                     for name, causes in by_component.items() if name not in known]


def _difference(one: Difference, level: str) -> Data:
    """As one of L(groups)."""
    entry = _entry(Stuck(one.component, "", "", "", "differs from the plan"), Cause(one.cause, ""), level)
    where = _where(frozenset(one.nodes)) if one.nodes else ""
    text = f"{where}: {one.cause}" if where else one.cause
    return {**entry, "hint": one.hint, "nodes": [*one.nodes], "where": where, "holds_up": {}, "text": text}


def _with_causes(check: Data, causes: t.Sequence[Data]) -> Data:
    """A check with more causes, the worst state among them and the first one's words."""
    if not causes:
        return check
    own = [] if check["ok"] or check["causes"] else [_difference(Difference(
        check["component"], check["detail"], check["hint"]), check["state"])]
    every = sorted([*check["causes"], *own, *causes], key=lambda cause: cause["level"] != "failed")
    counts = [f"{check['ready']}/{check['desired']} ready"] if check["ok"] and check["desired"] else []
    said = [*counts, *([] if check["ok"] else [check["detail"]]), *(cause["text"] for cause in causes)]
    entries = [{"node": node, **{key: cause[key] for key in _OF_NODE}} for cause in causes for node in cause["nodes"]]
    return {**check, "ok": False, "state": every[0]["level"], "causes": every, "hint": every[0]["hint"],
            "detail": "; ".join(said), "nodes": [*check["nodes"], *entries]}


def verified(cluster: t.Mapping[str, t.Any], found: t.Sequence[Data]) -> list[str]:
    """The GPU Nodes on which nothing is lacking, by the checks; none where somebody lacks that has no name."""
    lacking = {entry["node"] for check in found for entry in check["nodes"]}
    nameless = any(not check["ok"] and len(check["nodes"]) < max(1, check["desired"] - check["ready"])
                   for check in found)
    return [] if nameless or "" in lacking else [name for name in cluster["nodes"]["gpu"] if name not in lacking]


def _entries(cluster: t.Mapping[str, t.Any], works: t.Sequence[Workload], seen: Seen) -> list[Data]:
    held = {(stuck.component, stuck.node) for stuck in seen.stuck}
    former = {one.stuck.pod for one in seen.former}
    found = [_entry(one.stuck, _outdated(one, cluster), "pending")
             for one in sorted(seen.former, key=lambda one: one.stuck.node)]
    found += [_entry(Stuck(component, node, "", "", "not counted"), LOST, "pending")
              for component, node in seen.away if (component, node) not in held]
    found += [_layout(stand, pod, cluster["namespace"]) for stand, pod in seen.layouts]
    for stuck in _uncreated(works, seen):
        found.append(_entry(stuck, explain(stuck, (), cluster["namespace"]), "failed"))
    found += [_entry(stuck, LOST, "pending") for stuck in seen.stuck
              if stuck.node in seen.lost and stuck.pod not in former]
    for stuck, cause, before in standings(cluster, seen):
        if stuck.pod and stuck.pod in former:
            continue
        events = seen.events.get(("Pod", stuck.pod), ()) if stuck.pod else ()
        entry = _entry(stuck, _on_host(cause, stuck, cluster), "pending" if before else "failed")
        log = Log() if before else seen.logs.get(stuck.pod, Log())
        found.append({**entry, "message": entry["message"] or masked(events[-1] if events else ""), "waits_for": before,
                      "log": [*log.lines[-SHOWN:]] if log.of == stuck.pod else [], "log_problem": log.problem})
    return found


def _entry(stuck: Stuck, cause: Cause, level: str) -> Data:
    return {"component": stuck.component, "node": stuck.node, "pod": stuck.pod, "container": stuck.container,
            "state": stuck.state, "reason": stuck.reason, "message": masked(stuck.message), "since": stuck.since,
            "restarts": stuck.restarts, "cause": cause.cause, "hint": cause.hint.format(node=stuck.node),
            "do": [one.format(node=stuck.node) for one in cause.do], "log": [], "log_problem": "", "waits_for": "",
            "level": level}


def groups(entries: t.Sequence[Data], everything: t.Sequence[Data] = ()) -> list[Data]:
    """What stands alike once: an entry, the one whose log was read before others, with C(nodes), C(holds_up), C(text).

    everything: the entries of all components; holds_up: by component on how many of the nodes it waits for this one;
    where: these nodes in words; text: all in one line.
    """
    alike: dict[tuple[str, ...], list[Data]] = {}
    for entry in entries:
        alike.setdefault(tuple(str(entry[key]) for key in _ALIKE), []).append(entry)
    found = []
    for group in alike.values():
        nodes = {entry["node"] for entry in group if entry["node"]}
        waiting: dict[str, int] = {}
        for one in everything:
            if one["waits_for"] == group[0]["component"] and one["node"] in nodes:
                waiting[one["component"]] = waiting.get(one["component"], 0) + 1
        first = next((entry for entry in group if entry["log"]), group[0])
        hint = first["hint"] if len(nodes) < 2 else re.sub(
            rf"(?<![\w.-]){re.escape(first['node'])}(?![\w-])", "each of these nodes", first["hint"])
        whole = {**first, "hint": hint, "nodes": sorted(nodes), "where": _where(nodes), "holds_up": waiting}
        found.append({**whole, "text": sentence(whole)})
    return sorted(found, key=lambda one: (one["level"] != "failed", -len(one["nodes"])))


def sentence(cause: Data) -> str:
    """One of L(groups) in one line: where, how it stands, why."""
    where = cause["where"]
    if cause["waits_for"]:
        return f"waits for {cause['waits_for'].replace('_', ' ')} on {where}"
    place = f" {cause['container']}" if cause["container"] else ""
    reason = f", {cause['reason']}" if cause["reason"] else ""
    said = f" (it said: {_end(cause['message'])})" if cause["message"] else ""
    likely = "likely cause: " if cause["level"] == "failed" and not cause["state"].startswith(_LAYOUT) else ""
    return f"{where}:{place} {cause['state']}{reason}; {likely}{cause['cause']}{said}"


def _where(nodes: t.AbstractSet[str]) -> str:
    folded = fold(nodes) if nodes else "no node"
    return f"{len(nodes)} nodes, {folded}" if len(nodes) > 1 else folded


def _outdated(one: Former, cluster: t.Mapping[str, t.Any]) -> Cause:
    """Nobody restarts such a pod but its user. A driver manager that may evict makes room by itself."""
    differs = "" if one.runs == one.wanted else f" (it runs {one.runs}, wanted is {one.wanted})"
    delete = f"kubectl -n {cluster['namespace']} delete pod {one.stuck.pod}"
    hint = "Delete it when that suits you."
    do: tuple[str, ...] = (delete,)
    if one.stuck.component == "driver":
        pools = ((cluster.get("components") or {}).get("driver") or {}).get("pools") or ()
        if pools and all(pool["manager_env"].get("ENABLE_GPU_POD_EVICTION") == "true" for pool in pools):
            hint = ("Node by Node: delete the pod; its driver manager evicts the GPU pods of {node} first "
                    "(gpu_disruption).")
        else:
            hint = "Node by Node: drain {node}, delete the pod and, once the new one is ready, uncordon."
            do = ("kubectl drain {node} --ignore-daemonsets", delete, "kubectl uncordon {node}")
    return Cause(f"the pod is of a former revision{differs} and stays until it is deleted", hint, do=do)


def _layout(stand: mig.Stand, pod: str, namespace: str) -> Data:
    said, hint = mig.says(stand, namespace, pod)
    about = Stuck("mig_manager", stand.node, pod, "", f"{_LAYOUT}{stand.asked} {stand.state or 'not begun'}")
    return {**_entry(about, LOST, "failed" if stand.state == mig.FAILED else "pending"), "cause": said, "hint": hint}


def _uncreated(works: t.Sequence[Workload], seen: Seen) -> t.Iterator[Stuck]:
    """One entry for a workload with fewer pods than it wants, where its controller says why."""
    for work in works:
        there = sum(stuck.component == work.component for stuck in seen.stuck)
        said = seen.events.get((work.kind, work.name), ())
        if said and work.ready + there < work.desired:
            yield Stuck(work.component, "", "", "", "not created", "FailedCreate", said[-1])


def _on_host(cause: Cause, stuck: Stuck, cluster: t.Mapping[str, t.Any]) -> Cause:
    """The cause, with the host named where it delivers what the pod waits for."""
    delivered = [name for name in cause.waits_for if name in cluster["deploy"]["on_host"].get(stuck.node, ())]
    if not delivered:
        return cause
    host = cluster["nodes"]["by_host"].get(stuck.node, stuck.node)
    return replace(cause, hint=f"{' and '.join(delivered)} of this node are delivered on the host {host}: look at its "
                               "checks.")


def _kept_away(cause: Cause, stuck: Stuck, cluster: t.Mapping[str, t.Any], seen: Seen) -> Cause:
    """The cause, or that what it waits for is kept off the node by a value of its deploy label."""
    for name in cause.waits_for:
        key, delivered = LABELS.get(name, ""), name not in cluster["deploy"]["on_host"].get(stuck.node, ())
        value = seen.labels.get(stuck.node, {}).get(key, "true")
        if value == "true" or not delivered or (cluster["components"].get(name) or {}).get("state") != "present":
            continue
        label, what = f"{key}={value}", name.replace("_", " ")
        away = f"kubectl label node {stuck.node} {key}-"
        if value == "pre-installed":
            return Cause(f"the node is labelled {label}, so no driver comes to it, but no driver of its own works",
                         "Make the host's driver work (nvidia-smi there). Where it is to have none: remove the stray "
                         "nvidia-smi, take the label away and run site.yml.", cause.waits_for, False,
                         (f"ssh {stuck.node} command -v nvidia-smi", away))
        if value.startswith("paused-"):
            return Cause(f"the {what} of the node is paused by the label {label}", "A driver upgrade or a change of "
                         "MIG is under way there. If none is, it has ended in between: set the label to true.",
                         cause.waits_for, False, (f"kubectl label node {stuck.node} --overwrite {key}=true",))
        return Cause(f"the {what} is kept off the node by the label {label}",
                     "Take the label away and run site.yml, or deliver it on the host.", cause.waits_for, False,
                     (away,))
    return cause


def _check(name: str, works: t.Sequence[Workload], everything: t.Sequence[Data],
           cluster: t.Mapping[str, t.Any]) -> Data:
    desired, ready = sum(work.desired for work in works), sum(work.ready for work in works)
    entries = [entry for entry in everything if entry["component"] == name]
    causes = groups(entries, everything)
    check: Data = {"component": name, "ok": False, "state": "failed", "detail": "", "hint": "", "desired": desired,
                   "ready": ready, "updated": sum(work.updated for work in works),
                   "nodes": [{key: value for key, value in entry.items() if key != "component"} for entry in entries],
                   "causes": causes}
    if not works and cluster.get("take_over"):
        return {**check, "state": "absent", "detail": "it is the operator's still",
                "hint": "Run adopt.yml without check mode."}
    if not works:
        return {**check, "state": "absent", "detail": "nothing of it is in the cluster",
                "hint": "Run site.yml; its plan names the objects."}
    if causes:
        more = f"; {len(causes) - 1} more causes" if len(causes) > 2 else "; 1 more cause" if causes[1:] else ""
        # One lost node is no failure of the run; with all of them there is nothing that it could call ready.
        gone = not ready and all(cause["cause"] == LOST.cause for cause in causes)
        return {**check, "state": "failed" if gone else causes[0]["level"],
                "hint": causes[0]["hint"],
                "detail": f"{ready}/{desired} ready; {causes[0]['text']}{more}"}
    unseen = [work.name for work in works if not work.seen]
    if unseen:
        return {**check, "detail": f"its controller has taken no notice of {', '.join(unseen)}",
                "hint": "Look whether kube-controller-manager runs."}
    slow = [work for work in works if not work.settled]
    if slow:
        what = "ready" if ready < desired else "replaced by the new revision"
        count = ready if ready < desired else check["updated"]
        return {**check, "detail": f"{count}/{desired} {what} when the time was over", "hint": "Raise the timeout."}
    detail = f"{ready}/{desired} ready" if desired else f"no node asks for it: {_why_none(name, cluster)}"
    return {**check, "ok": True, "state": "ok", "detail": detail}


def _end(message: str) -> str:
    """One line. Of what runtimes say the end is the cause, what comes before is the way that it took."""
    line = " ".join(message.split())
    return line if len(line) <= _SAID else f"...{line[-_SAID:].partition(' ')[2]}"


def _why_none(name: str, cluster: t.Mapping[str, t.Any]) -> str:
    gpu = cluster["nodes"]["gpu"]
    if not gpu:
        return "the cluster has no GPU node"
    if all(name in cluster["deploy"]["on_host"].get(node, ()) for node in gpu):
        return "every GPU node has it on its host"
    if name == "mig_manager":
        return "no GPU node is labelled as MIG capable"
    return "no GPU node carries its label"
