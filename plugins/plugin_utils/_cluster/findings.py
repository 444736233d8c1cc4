# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From counts and stuck pods to one check a component, the first cause on a node first. Pure. PRIVATE.

A check is C({component, ok, state, detail, hint, desired, ready, updated, nodes}), as on hosts with counts and
C(nodes: [{node, pod, container, state, reason, message, cause, hint, waits_for, level}]) besides; level is C(failed),
or C(pending) for what comes by itself or waits for another component, named by waits_for.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._cluster import mig
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._cluster.causes import Cause, explain
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._cluster.deploy import fold
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._cluster.pods import Stuck
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._cluster.workloads import Workload

Data = t.Dict[str, t.Any]
LOST = Cause("the node is NotReady: it is lost to the cluster", "Bring {node} back; its pods then come by themselves.")
FORMER = Cause("the pod runs the former revision until it is restarted",
               "Its restart stops GPU work on {node}: delete the pod when the node is idle, or allow it by "
               "gpu_disruption: drain.")
_SAID = 160
_LAYOUT = "layout "  # begins the state of a Node whose MIG layout is not settled


class Seen(t.NamedTuple):
    """What was read at the end.

    stuck: pods that are not ready; lost: nodes that are NotReady; away: C((component, node)) of lost nodes that the
    counts leave out; former: OnDelete pods of a former revision;
    events: by C((kind, name)) the messages of warnings; layouts: of MIG that are not settled, with the manager's pod.
    """

    stuck: t.Sequence[Stuck] = ()
    lost: t.AbstractSet[str] = frozenset()
    away: t.Sequence[t.Tuple[str, str]] = ()
    former: t.Sequence[Stuck] = ()
    events: t.Mapping[t.Tuple[str, str], t.Sequence[str]] = {}
    layouts: t.Sequence[t.Tuple[mig.Stand, str]] = ()


def checks(cluster: t.Mapping[str, t.Any], components: t.Sequence[str], works: t.Sequence[Workload],
           seen: Seen, check_mode: bool = False) -> list[Data]:
    """One check for each component, in the order given. cluster: the part of the plan."""
    entries = _entries(cluster, works, seen)
    found = []
    for name in components:
        mine = [work for work in works if work.component == name]
        check = _check(name, mine, [entry for entry in entries if entry["component"] == name], cluster)
        if check_mode and not check["ok"]:
            check.update(state="pending", detail=f"check mode: {check['detail']}")
        found.append(check)
    return found


def verified(cluster: t.Mapping[str, t.Any], found: t.Sequence[Data]) -> list[str]:
    """The GPU Nodes on which nothing is lacking, by the checks; none where somebody lacks that has no name."""
    lacking = {entry["node"] for check in found for entry in check["nodes"]}
    nameless = any(not check["ok"] and len(check["nodes"]) < max(1, check["desired"] - check["ready"])
                   for check in found)
    return [] if nameless or "" in lacking else [name for name in cluster["nodes"]["gpu"] if name not in lacking]


def _entries(cluster: t.Mapping[str, t.Any], works: t.Sequence[Workload], seen: Seen) -> list[Data]:
    held = {(stuck.component, stuck.node) for stuck in seen.stuck}
    former = {stuck.pod for stuck in seen.former}
    found = [_entry(stuck, FORMER, "pending") for stuck in seen.former]
    found += [_entry(Stuck(component, node, "", "", "not counted"), LOST, "pending")
              for component, node in seen.away if (component, node) not in held]
    found += [_layout(stand, pod, cluster["namespace"]) for stand, pod in seen.layouts]
    for stuck in [*_uncreated(works, seen), *seen.stuck]:
        if stuck.pod and stuck.pod in former:
            continue
        if stuck.node in seen.lost:
            found.append(_entry(stuck, LOST, "pending"))
            continue
        events = seen.events.get(("Pod", stuck.pod), ()) if stuck.pod else ()
        cause = explain(stuck, events, cluster["namespace"])
        before = next((name for name in cause.waits_for if (name, stuck.node) in held), "")
        entry = _entry(stuck, _on_host(cause, stuck, cluster), "pending" if before else "failed")
        found.append({**entry, "message": entry["message"] or (events[-1] if events else ""), "waits_for": before})
    return found


def _entry(stuck: Stuck, cause: Cause, level: str) -> Data:
    return {"component": stuck.component, "node": stuck.node, "pod": stuck.pod, "container": stuck.container,
            "state": stuck.state, "reason": stuck.reason, "message": stuck.message, "cause": cause.cause,
            "hint": cause.hint.format(node=stuck.node), "waits_for": "", "level": level}


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
    return Cause(cause.cause, f"{' and '.join(delivered)} of this node are delivered on the host {host}: look at its "
                              "checks.", cause.waits_for)


def _check(name: str, works: t.Sequence[Workload], entries: t.Sequence[Data],
           cluster: t.Mapping[str, t.Any]) -> Data:
    desired, ready = sum(work.desired for work in works), sum(work.ready for work in works)
    check: Data = {"component": name, "ok": False, "state": "failed", "detail": "", "hint": "", "desired": desired,
                   "ready": ready, "updated": sum(work.updated for work in works),
                   "nodes": [{key: value for key, value in entry.items() if key != "component"} for entry in entries]}
    if not works and cluster.get("take_over"):
        return {**check, "state": "absent", "detail": "it is the operator's still",
                "hint": "Run adopt.yml without check mode."}
    if not works:
        return {**check, "state": "absent", "detail": "nothing of it is in the cluster",
                "hint": "Run site.yml; its plan names the objects."}
    if entries:
        worst = "failed" if any(entry["level"] == "failed" for entry in entries) else "pending"
        first = [entry for entry in entries if entry["level"] == worst]
        return {**check, "state": worst, "detail": f"{ready}/{desired} ready; {_told(first)}", "hint": first[0]["hint"]}
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


def _told(entries: t.Sequence[Data]) -> str:
    """The first cause and where; others are counted."""
    first = entries[0]
    alike = [entry for entry in entries if all(entry[key] == first[key] for key in ("container", "state", "cause"))]
    if first["waits_for"]:
        alike = [entry for entry in entries if entry["waits_for"] == first["waits_for"]]
    others = len(entries) - len(alike)
    more = f"; {others} more with other causes" if others else ""
    where = fold({entry["node"] or "no node" for entry in alike})
    if first["waits_for"]:
        return f"waits for {first['waits_for'].replace('_', ' ')} on {where}{more}"
    place = f" {first['container']}" if first["container"] else ""
    reason = f", {first['reason']}" if first["reason"] else ""
    said = f" (it said: {_end(first['message'])})" if first["message"] else ""
    likely = "likely cause: " if first["level"] == "failed" and not first["state"].startswith(_LAYOUT) else ""
    return f"{where}:{place} {first['state']}{reason}; {likely}{first['cause']}{said}{more}"


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
