# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The cluster of a report as text for a terminal. Pure. PRIVATE."""

from __future__ import annotations

import typing as t
from dataclasses import replace

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.components import COMPONENTS
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.wording import counted, some_of
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.checks import (
    Check,
    Document,
    Open,
    Progress,
    SharedProblem,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._reports.model import Change, Cluster
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._reports.terminal import Cell, Style

_TITLES = {"": "operator", **{component.name: component.title for component in COMPONENTS}, "nodes": "Nodes"}
TITLE_WIDTH = max(len(title) for title in _TITLES.values())
# The most objects that a line names, and the most if they are changed.
_NAMED, _LISTED = 3, 12
_CHANGES = ("update", "repair", "replace")
# The actions of operands that write.
_VERBS = ("stop", "adopt", "create", "update", "repair", "replace", "release", "delete")


def title_of(name: str) -> str:
    """The title of a component, otherwise the name itself."""
    return _TITLES.get(name, name)


def headline(cluster: Cluster) -> str:
    """The server, the namespace and the numbers of Nodes in one line."""
    plan = cluster.plan
    if not plan:
        return f"Cluster {cluster.server}".rstrip()
    parts = [f"Cluster {plan.get('server') or 'of rendered manifests'}", f"namespace {plan['namespace']}"]
    if plan.get("server"):
        nodes = plan["nodes"]
        others = f", {counted(nodes['cpu'], 'other node')}" if nodes["cpu"] else ""
        parts.append(f"{counted(len(nodes['gpu']), 'GPU node')}{others}")
    return " · ".join(parts)


def pool_rows(cluster: Cluster) -> list[list[Cell]]:
    """A row for each group of GPU Nodes that are alike. The columns are POOL_HEAD."""
    nodes = cluster.plan.get("nodes") or {}
    return [[Cell(f"{pool['count']}: {some_of(pool['nodes'])}"), Cell(pool["gpu"] or "model not known yet"),
             *[Cell(pool[key] or "", "" if pool[key] else "none") for key in ("os", "kernel", "runtime")]]
            for pool in nodes.get("pools") or ()]


def pool_nodes(cluster: Cluster) -> list[t.Sequence[str]]:
    """The Nodes of each row of L(pool_rows)."""
    return [pool["nodes"] for pool in (cluster.plan.get("nodes") or {}).get("pools") or ()]


POOL_HEAD = ("nodes", "GPU", "system", "kernel", "runtime")


def component_rows(cluster: Cluster, each: bool = False) -> list[list[Cell]]:
    """A row for each image that the cluster gets. The columns are COMPONENT_HEAD. each: whether each row has the title
    of the component, not only its first one."""
    rows = []
    for name, part in (cluster.plan.get("components") or {}).items():
        if part["state"] != "present":
            continue
        for number, (reference, count) in enumerate(_images(name, part, cluster.plan)):
            rows.append([Cell("" if number and not each else title_of(name)), Cell(_short(reference)),
                         Cell(count, "" if count else "none")])
    return rows


COMPONENT_HEAD = ("component", "image", "nodes")


def _images(name: str, part: Document, plan: Document) -> list[tuple[str, str]]:
    """C([(reference, number of Nodes)]) of a component; the driver has an image for each pool."""
    nodes = plan["nodes"]
    on_host = plan.get("deploy", {}).get("on_host") or {}
    count = sum(name not in on_host.get(node, ()) for node in nodes["gpu"])
    if name == "nfd":
        count = len(nodes["gpu"]) + nodes["cpu"]
    shown = str(count) if plan.get("server") else ""
    if name != "driver":
        # Only Nodes whose GPUs are MIG capable get the MIG manager; feature discovery finds them later.
        shown = f"up to {shown}" if name == "mig_manager" and shown else shown
        return [(reference, shown) for one, reference in (part.get("images") or {}).items() if one == name]
    pools: dict[str, int] = {}
    for pool in plan.get("pools") or ():
        image = pool["driver"]["image"]
        pools[image] = pools.get(image, 0) + len(pool["nodes"])
    if pools and plan.get("server"):
        return [(image, str(count)) for image, count in pools.items()]
    only = len(part["pools"]) == 1
    return [(pool["images"]["driver"], shown if only else "") for pool in part["pools"]]


def _short(reference: str) -> str:
    """An image without its registry: C(driver:595.91.07-ubuntu22.04), C(driver@sha256:0123456789ab)."""
    name = reference.rsplit("/", 1)[-1]
    return name[:name.index("sha256:") + 19] if "sha256:" in name else name


def left_out(cluster: Cluster) -> list[str]:
    """The components that the cluster does not get, with the reason: C(driver (gpu_placement delivers it on hosts))."""
    parts = cluster.plan.get("components") or {}
    return [f"{title_of(name)} ({'; '.join(part.get('because') or ['not planned'])})"
            for name, part in parts.items() if part["state"] == "absent"]


def steps(cluster: Cluster) -> dict[str, list[str]]:
    """Maps the title of a component to the changes of its objects, and C(Nodes) to the Nodes whose labels change."""
    changed: dict[str, list[Change]] = {}
    for item in cluster.objects or ():
        if item.action in _VERBS:
            changed.setdefault(title_of(item.component), []).append(item)
    order = list(_TITLES.values())
    found = {title: _by_verb(changed[title]) for title in sorted(
        changed, key=lambda title: order.index(title) if title in order else -1)}
    if cluster.labelled:
        found["Nodes"] = [f"label {counted(len(cluster.labelled), 'Node')}: {some_of(cluster.labelled)}"]
    return found


def _by_verb(items: t.Sequence[Change]) -> list[str]:
    """A line for each action: C(create DaemonSet a, ConfigMap b), or, of many objects that are not changed but created,
    adopted or deleted, the numbers of each kind: C(create 7 objects: 2 Role, ...)."""
    lines = []
    for verb in _VERBS:
        same = [item for item in items if item.action == verb]
        if same and verb in _CHANGES:
            lines.append(f"{verb} {some_of([_object(item) for item in same], _LISTED)}")
        elif len(same) > _NAMED:
            kinds = [item.object.split(" ", 1)[0] for item in same]
            numbers = {kind: kinds.count(kind) for kind in kinds}
            shown = ", ".join(f"{count} {kind}" if count > 1 else kind for kind, count in numbers.items())
            lines.append(f"{verb} {len(same)} objects: {shown}")
        elif same:
            lines.append(f"{verb} {', '.join(_object(item) for item in same)}")
    return lines


def _object(item: Change) -> str:
    """C(DaemonSet nvidia-dcgm-exporter), with the first field that differs."""
    kind, _ignored, name = item.object.partition(" ")
    reasons = f" ({some_of(item.reasons, 1)})" if item.reasons else ""
    return f"{kind} {name.rsplit('/', 1)[-1]}{reasons}"


def result_rows(checks: t.Sequence[Check]) -> list[list[Cell]]:
    """A row for each component. The columns are RESULT_HEAD."""
    rows = []
    for check in checks:
        some = check.desired or check.ready
        counts = Cell(f"{check.ready}/{check.desired}") if some else Cell("", "none")
        detail = check.detail if not check.desired else ""  # else it repeats the numbers
        text = (detail or "ready") if check.ok else check.state
        rows.append([Cell(title_of(check.component)), counts, Cell(text, check.state)])
    return rows


RESULT_HEAD = ("component", "ready", "state")


def render_plan(cluster: Cluster, style: Style) -> list[str]:
    """The lines of the plan."""
    lines = render_nodes(cluster, style)
    rows = component_rows(cluster)
    lines += [style.table(COMPONENT_HEAD, rows)] if rows else []
    if left_out(cluster):
        lines.append(style.entry("Not in the cluster:", ", ".join(left_out(cluster)), 0))
    done = _steps(cluster, style, "Steps in the cluster:")
    if done:
        return lines + done
    known = cluster.objects is not None
    return [*lines, "Nothing to do in the cluster: every object is as planned."] if known else lines


def render_nodes(cluster: Cluster, style: Style) -> list[str]:
    """The lines about the cluster and its GPU Nodes."""
    rows = pool_rows(cluster)
    return [style.entry("", headline(cluster), 0), *([style.table(POOL_HEAD, rows)] if rows else [])]


def render_state(cluster: Cluster, style: Style) -> list[str]:
    """The lines of the current state: the steps of a removal, Nodes, and components if they were checked."""
    done = _steps(cluster, style, "Steps in the cluster:")
    idle = not done and not cluster.plan and cluster.objects is not None
    lines = [*done, *render_nodes(cluster, style), *(["There were no owned objects to remove."] if idle else [])]
    return [*lines, *_checks(cluster.checks, style)] if cluster.checks else lines


def render_result(cluster: Cluster, style: Style) -> list[str]:
    """The lines of the result: steps, components with their numbers of pods, problems."""
    lines = [*_steps(cluster, style, "Steps of this run in the cluster:"),
             style.entry("", headline(cluster), 0)]
    folder = cluster.plan.get("render_to")
    if folder:
        return [*lines, f"Manifests were written to {folder}; no cluster was changed."]
    if cluster.checks is None:
        return [*lines, style.paint(f"{style.sign('failed')} not reached; see the error above", "failed")]
    return [*lines, *_checks(cluster.checks, style)]


def _checks(checks: t.Sequence[Check], style: Style) -> list[str]:
    lines = [style.table(RESULT_HEAD, result_rows(checks))] if checks else []
    for titles, detail, check in _alike([check for check in checks if not check.causes]):
        lines += _entry(titles, detail, check.state, check.hint, style)
    for titles, cause in roots(checks):
        lines += [*_entry(titles, cause.text, cause.level, cause.hint, style), *_evidence(cause, style)]
    return lines


def _entry(titles: t.Sequence[str], detail: str, state: str, hint: str, style: Style) -> list[str]:
    lines = [style.paint(style.entry(f"{style.sign(state)} {', '.join(titles)}:", detail, 0), state)]
    return [*lines, style.entry("", f"→ {hint}", 4)] if hint else lines


def _evidence(cause: SharedProblem, style: Style) -> list[str]:
    """Further lines about a cause: the pod with its last log lines, commands, components that wait."""
    lines = [style.entry("", pod_line(cause), 4)] if cause.level == "failed" and cause.pod else []
    room = max(style.width, 40) - 8
    for line in cause.log:
        lines.append(f"      {style.sign('vertical')} " + style.text(line if len(line) <= room else
                                                                     f"{line[:room - 3]}..."))
    # Commands are not wrapped, so that they can be pasted.
    lines += [f"      {style.text(command)}" for command in cause.do]
    return [*lines, style.entry("", held_up(cause), 4)] if cause.holds_up else lines


def roots(checks: t.Sequence[Check]) -> list[tuple[list[str], SharedProblem]]:
    """Why components are not ready: C([(titles, problem)]), without components that wait for another one.

    Components with the same problem on the same Nodes, such as lost Nodes, are one entry.
    """
    found: dict[tuple[str, ...], tuple[list[str], SharedProblem]] = {}
    for check in checks:
        for cause in check.causes:
            if not cause.waits_for:
                key = (cause.level, cause.where, cause.cause, cause.hint)
                found.setdefault(key, ([], cause))[0].append(title_of(check.component))
    # The text names a container, which several components do not share.
    alike = [(titles, replace(cause, text=f"{cause.where}: {cause.cause}" if cause.where else cause.cause)
              if titles[1:] else cause) for titles, cause in found.values()]
    return sorted(alike, key=lambda one: one[1].level != "failed")


def pod_line(cause: SharedProblem) -> str:
    """C(pod driver-x1, container nvidia-driver-ctr: not ready since 10:02 UTC, 6 restarts; its last lines:)."""
    restarts = f", {cause.restarts} restarts" if cause.restarts else ""
    since = f" since {cause.since.replace('T', ' ').replace('Z', ' UTC')}" if cause.since else ""
    container = f", container {cause.container}" if cause.container else ""
    where = f" on {cause.node}" if len(cause.nodes) > 1 else ""
    last = f"; {cause.log_problem}" if cause.log_problem else "; its last lines:" if cause.log else ""
    return f"pod {cause.pod}{where}{container}: not ready{since}{restarts}{last}"


def held_up(cause: SharedProblem) -> str:
    """The components that wait for this one: C(waiting for it: container toolkit (12), validator (12)), with Nodes."""
    return "waiting for it: " + ", ".join(f"{title_of(name)} ({count})" for name, count in cause.holds_up.items())


def _alike(checks: t.Sequence[Check]) -> list[tuple[list[str], str, Check]]:
    """C([(titles, detail, check)]) of checks that are not ok. Components with the same detail are one entry."""
    groups: dict[tuple[str, str, str], list[Check]] = {}
    for check in checks:
        if check.state != "ok":
            _counts, _separator, cause = check.detail.partition("; ")
            groups.setdefault((check.state, cause or check.detail, check.hint), []).append(check)
    return [([title_of(check.component) for check in group], group[0].detail if len(group) == 1 else cause, group[0])
            for (_state, cause, _hint), group in groups.items()]


def _steps(cluster: Cluster, style: Style, head: str) -> list[str]:
    lines = style.titled(steps(cluster), TITLE_WIDTH)
    return [head, *lines] if lines else []


def progress(told: Progress, style: Style) -> str:
    """A line for the components that became ready, and one for the others, cut to the width of the terminal.

    C( 1:05  driver ████░░░░ 37/100, 1 failing: gpu-07 (the container exits repeatedly); then validator 30/100)
    """
    minutes, seconds = divmod(int(told.elapsed), 60)
    clock = f"{minutes:>2}:{seconds:02}  "
    lines = []
    if told.done:
        names = ", ".join(f"{title_of(name)} ({ready})" for name, ready in told.done)
        lines.append(f"{clock}{style.sign('ok')} ready: {names}{'' if told.open else '; all are ready'}")
    if told.open:
        front = next((one for one in told.open if one.failing), told.open[0])
        others = [f"{title_of(one.component)} {one.ready}/{one.desired}" for one in told.open if one is not front]
        lines.append(clock + _front(front, style) + (f"; then {', '.join(others)}" if others else ""))
    if told.ends:
        lines.append(f"{clock}{style.sign('failed')} {told.ends}; the result lists what is not ready")
    return "\n".join(text if len(text) <= style.width else f"{text[:style.width - 3]}..." for text in lines)


_BAR = 12


def _front(one: Open, style: Style) -> str:
    """The line about the component that others wait for: a bar, the numbers of its pods, and the first Node that fails
    or waits."""
    full = _BAR * one.ready // max(one.desired, 1)
    drawn = style.sign("full") * full + style.sign("empty") * (_BAR - full)
    text = f"{title_of(one.component)} {drawn} {one.ready}/{one.desired}"
    if one.failing:
        text += f", {len(one.failing)} failing: {one.failing[0].node or 'no node'} ({one.failing[0].why})"
    elif one.waiting:
        more = f" and {len(one.waiting) - 1} more" if one.waiting[1:] else ""
        inside = f" ({one.waiting[0].container})" if one.waiting[0].container else ""
        text += f", waiting: {one.waiting[0].node or 'no node'}{inside}{more}"
    return text


def verdict(cluster: Cluster) -> str:
    """C(8 of 8 components are ready in the cluster), with what is not; empty if no component was checked."""
    if cluster.checks is None and not cluster.plan.get("render_to"):
        return "the cluster was not reached"
    if not cluster.checks:
        return ""
    states = [check.state for check in cluster.checks]
    return ", ".join([f"{states.count('ok')} of {len(states)} components are ready in the cluster", *not_ok(states)])


def not_ok(states: t.Sequence[str]) -> list[str]:
    """The numbers of checks that are not ok: C([1 pending, 2 failed])."""
    numbers = {"pending": states.count("pending"), "failed": states.count("failed") + states.count("absent")}
    return [f"{count} {state}" for state, count in numbers.items() if count]


def tiles(cluster: Cluster) -> list[tuple[int, str]]:
    """Numbers for the head of a page."""
    found = [(len(cluster.plan["nodes"]["gpu"]), "GPU nodes")] if cluster.plan else []
    if cluster.checks:
        ready = sum(check.ok for check in cluster.checks)
        found += [(ready, "components ready"), (len(cluster.checks) - ready, "components not ready")]
    return found
