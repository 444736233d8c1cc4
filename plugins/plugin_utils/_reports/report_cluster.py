# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The cluster's part of a report. Pure. PRIVATE.

C(report["cluster"]) is None without a cluster, else C({plan, operands, labels, checks}): plan is C(gpu_plan.cluster)
or None; operands and labels what the actions operands and gpu_labels returned, or None; checks what gpu_verify
returned for the cluster (_rollout/checks.py has their shape), or None.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.components import COMPONENTS
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.wording import some_of
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._reports.terminal import Cell, Style

Cluster = t.Mapping[str, t.Any]
Steps = t.Dict[str, t.List[str]]
_TITLES = {"": "operator", **{component.name: component.title for component in COMPONENTS}, "nodes": "Nodes"}
TITLE_WIDTH = max(len(title) for title in _TITLES.values())
_NAMED, _LISTED = 3, 12
_CHANGES = ("update", "repair", "replace")
# What operands does with an object; the other actions write nothing.
_VERBS = ("stop", "adopt", "create", "update", "repair", "replace", "release", "delete")


def title_of(name: str) -> str:
    """The words for a component; what several share has its own name."""
    return _TITLES.get(name, name)


def headline(cluster: Cluster) -> str:
    """Which cluster, and its nodes, in one line."""
    plan = cluster.get("plan")
    if not plan:
        return f"Cluster {(cluster.get('operands') or {}).get('server') or ''}".rstrip()
    parts = [f"Cluster {plan.get('server') or 'of rendered manifests'}", f"namespace {plan['namespace']}"]
    if plan.get("server"):
        nodes = plan["nodes"]
        others = f", {_many(nodes['cpu'], 'other node')}" if nodes["cpu"] else ""
        parts.append(f"{_many(len(nodes['gpu']), 'GPU node')}{others}")
    return " · ".join(parts)


def pool_rows(cluster: Cluster) -> list[list[Cell]]:
    """One row a pool: nodes, GPU, system, kernel, runtime."""
    nodes = (cluster.get("plan") or {}).get("nodes") or {}
    return [[Cell(f"{pool['count']}: {some_of(pool['nodes'])}"), Cell(pool["gpu"] or "model not known yet"),
             *[Cell(pool[key] or "", "" if pool[key] else "none") for key in ("os", "kernel", "runtime")]]
            for pool in nodes.get("pools") or ()]


POOL_HEAD = ("nodes", "GPU", "system", "kernel", "runtime")


def component_rows(cluster: Cluster) -> list[list[Cell]]:
    """One row an image that the cluster gets: component, image without its registry, for how many Nodes."""
    plan = cluster.get("plan") or {}
    rows = []
    for name, part in (plan.get("components") or {}).items():
        if part["state"] != "present":
            continue
        for number, (reference, count) in enumerate(_images(name, part, plan)):
            rows.append([Cell("" if number else title_of(name)), Cell(_short(reference)),
                         Cell(count, "" if count else "none")])
    return rows


COMPONENT_HEAD = ("component", "image", "nodes")


def _images(name: str, part: t.Mapping[str, t.Any], plan: t.Mapping[str, t.Any]) -> list[tuple[str, str]]:
    """C([(reference, number of Nodes)]): one of a component, of the driver one for each pool."""
    nodes = plan["nodes"]
    on_host = plan.get("deploy", {}).get("on_host") or {}
    count = sum(name not in on_host.get(node, ()) for node in nodes["gpu"])
    if name == "nfd":
        count = len(nodes["gpu"]) + nodes["cpu"]
    told = str(count) if plan.get("server") else ""
    if name != "driver":
        # Feature discovery tells which GPUs can be cut; the others' Nodes get no MIG manager.
        told = f"up to {told}" if name == "mig_manager" and told else told
        return [(reference, told) for one, reference in (part.get("images") or {}).items() if one == name]
    pools: dict[str, int] = {}
    for pool in plan.get("pools") or ():
        image = pool["driver"]["image"]
        pools[image] = pools.get(image, 0) + len(pool["nodes"])
    if pools and plan.get("server"):
        return [(image, str(count)) for image, count in pools.items()]
    only = len(part["pools"]) == 1
    return [(pool["images"]["driver"], told if only else "") for pool in part["pools"]]


def _short(reference: str) -> str:
    """C(driver:595.91.07-ubuntu22.04), C(driver@sha256:0123456789ab)."""
    name = reference.rsplit("/", 1)[-1]
    return name[:name.index("sha256:") + 19] if "sha256:" in name else name


def left_out(cluster: Cluster) -> list[str]:
    """The components that the cluster does not get, with the reason: C(driver (gpu_placement delivers it on hosts))."""
    parts = (cluster.get("plan") or {}).get("components") or {}
    return [f"{title_of(name)} ({'; '.join(part.get('because') or ['not wanted'])})"
            for name, part in parts.items() if part["state"] == "absent"]


def steps(cluster: Cluster) -> Steps:
    """By title what is done: objects of a component by verb, and Nodes that are labelled."""
    changed: dict[str, list[t.Mapping[str, t.Any]]] = {}
    for item in (cluster.get("operands") or {}).get("objects") or ():
        if item["action"] in _VERBS:
            changed.setdefault(title_of(item["component"]), []).append(item)
    order = list(_TITLES.values())
    found = {title: _by_verb(changed[title]) for title in sorted(
        changed, key=lambda title: order.index(title) if title in order else -1)}
    labels = cluster.get("labels") or {}
    if labels.get("nodes"):
        found["Nodes"] = [f"label {_many(len(labels['nodes']), 'Node')}: {some_of(sorted(labels['nodes']))}"]
    return found


def _by_verb(items: t.Sequence[t.Mapping[str, t.Any]]) -> list[str]:
    """C(create DaemonSet a, ConfigMap b, Service c); many that are created, taken over or deleted by their kinds:
    C(create 7 objects: 2 Role, ...). What is changed is named, up to a dozen."""
    lines = []
    for verb in _VERBS:
        mine = [item for item in items if item["action"] == verb]
        if not mine:
            continue
        if verb in _CHANGES:
            lines.append(f"{verb} {some_of([_object(item) for item in mine], _LISTED)}")
            continue
        if len(mine) <= _NAMED:
            lines.append(f"{verb} {', '.join(_object(item) for item in mine)}")
            continue
        kinds: dict[str, int] = {}
        for item in mine:
            kind = item["object"].split(" ", 1)[0]
            kinds[kind] = kinds.get(kind, 0) + 1
        told = ", ".join(f"{count} {kind}" if count > 1 else kind for kind, count in kinds.items())
        lines.append(f"{verb} {len(mine)} objects: {told}")
    return lines


def _object(item: t.Mapping[str, t.Any]) -> str:
    """C(DaemonSet nvidia-dcgm-exporter), with the first of the fields for which it is changed."""
    kind, _ignored, name = item["object"].partition(" ")
    fields = item["reasons"]
    more = f" and {len(fields) - 1} more" if len(fields) > 1 else ""
    return f"{kind} {name.rsplit('/', 1)[-1]}{f' ({fields[0]}{more})' if fields else ''}"


def result_rows(checks: t.Sequence[t.Mapping[str, t.Any]]) -> list[list[Cell]]:
    """One row a component: ready of wanted, and how it stands."""
    rows = []
    for check in checks:
        some = check["desired"] or check["ready"]
        counts = Cell(f"{check['ready']}/{check['desired']}") if some else Cell("", "none")
        # The counts stand beside already.
        detail = check["detail"] if not check["desired"] else ""
        words = (detail or "ready") if check["ok"] else check["state"]
        rows.append([Cell(title_of(check["component"])), counts, Cell(words, check["state"])])
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
    asked = "objects" in (cluster.get("operands") or {})
    return [*lines, "Nothing to do in the cluster: every object is as wanted."] if asked else lines


def render_nodes(cluster: Cluster, style: Style) -> list[str]:
    """Which cluster, and its GPU nodes by pools."""
    rows = pool_rows(cluster)
    return [style.entry("", headline(cluster), 0), *([style.table(POOL_HEAD, rows)] if rows else [])]


def render_state(cluster: Cluster, style: Style) -> list[str]:
    """The lines of what is there: nodes, what was removed, components where they were looked at."""
    done = _steps(cluster, style, "Steps in the cluster:")
    idle = not done and not cluster.get("plan") and "objects" in (cluster.get("operands") or {})
    lines = [*done, *render_nodes(cluster, style), *(["Nothing of ours was to be removed there."] if idle else [])]
    return [*lines, *_checks(cluster["checks"], style)] if cluster.get("checks") else lines


def render_result(cluster: Cluster, style: Style) -> list[str]:
    """The lines of the result: components by counts, then what is not well and why."""
    lines = [*_steps(cluster, style, "Steps of this run in the cluster:"),
             style.entry("", headline(cluster), 0)]
    folder = _rendered(cluster)
    if folder:
        return [*lines, f"Manifests were written to {folder}; no cluster was touched."]
    if cluster.get("checks") is None:
        return [*lines, style.paint(f"{style.sign('failed')} not reached; the error stands above", "failed")]
    return [*lines, *_checks(cluster["checks"], style)]


def _rendered(cluster: Cluster) -> str:
    return str((cluster.get("plan") or {}).get("render_to") or "")


def _checks(checks: t.Sequence[t.Mapping[str, t.Any]], style: Style) -> list[str]:
    lines = [style.table(RESULT_HEAD, result_rows(checks))] if checks else []
    for titles, detail, check in _alike([check for check in checks if not check.get("causes")]):
        lines += _told(titles, detail, check["state"], check["hint"], style)
    for titles, cause in roots(checks):
        lines += [*_told(titles, cause["text"], cause["level"], cause["hint"], style), *_evidence(cause, style)]
    return lines


def _told(titles: t.Sequence[str], detail: str, state: str, hint: str, style: Style) -> list[str]:
    lines = [style.paint(style.entry(f"{style.sign(state)} {', '.join(titles)}:", detail, 0), state)]
    return [*lines, style.entry("", f"→ {hint}", 4)] if hint else lines


def _evidence(cause: t.Mapping[str, t.Any], style: Style) -> list[str]:
    """What a cause was found by and what can be done: the pod's last lines, commands, who waits."""
    lines = [style.entry("", stand(cause), 4)] if cause["level"] == "failed" and cause["pod"] else []
    room = max(style.width, 40) - 8
    for line in cause["log"]:
        lines.append(f"      {style.sign('vertical')} " + style.text(line if len(line) <= room else
                                                                     f"{line[:room - 3]}..."))
    # Commands stand as they are: wrapped they could not be pasted.
    lines += [f"      {style.text(command)}" for command in cause["do"]]
    return [*lines, style.entry("", held_up(cause), 4)] if cause["holds_up"] else lines


def roots(checks: t.Sequence[t.Mapping[str, t.Any]]) -> list[tuple[list[str], t.Mapping[str, t.Any]]]:
    """Why components of a cluster are not ready: C((titles, cause)), what waits for another one left out.

    Components that lack for the same reason on the same nodes, such as lost ones, stand together.
    """
    found: dict[tuple[str, ...], tuple[list[str], t.Dict[str, t.Any]]] = {}
    for check in checks:
        for cause in check.get("causes") or ():
            if not cause["waits_for"]:
                key = (cause["level"], cause["where"], cause["cause"], cause["hint"])
                found.setdefault(key, ([], cause))[0].append(title_of(check["component"]))
    # Of several components the container of one does not count.
    alike = [(titles, {**cause, "text": f"{cause['where']}: {cause['cause']}" if cause["where"] else cause["cause"]}
              if titles[1:] else cause) for titles, cause in found.values()]
    return sorted(alike, key=lambda one: one[1]["level"] != "failed")


def stand(cause: t.Mapping[str, t.Any]) -> str:
    """C(pod driver-x1, container nvidia-driver-ctr: not ready since 10:02 UTC, 6 restarts; its last lines:)."""
    restarts = f", {cause['restarts']} restarts" if cause["restarts"] else ""
    since = f" since {cause['since'].replace('T', ' ').replace('Z', ' UTC')}" if cause["since"] else ""
    container = f", container {cause['container']}" if cause["container"] else ""
    where = f" on {cause['node']}" if len(cause["nodes"]) > 1 else ""
    last = f"; {cause['log_problem']}" if cause["log_problem"] else "; its last lines:" if cause["log"] else ""
    return f"pod {cause['pod']}{where}{container}: not ready{since}{restarts}{last}"


def held_up(cause: t.Mapping[str, t.Any]) -> str:
    """C(behind it wait: container toolkit (12), validator (12))."""
    return "behind it wait: " + ", ".join(f"{title_of(name)} ({count})" for name, count in cause["holds_up"].items())


def _alike(checks: t.Sequence[t.Mapping[str, t.Any]]) -> list[tuple[list[str], str, t.Mapping[str, t.Any]]]:
    """What is not well: components with the same cause, such as a lost node, together: (titles, detail, check)."""
    groups: dict[tuple[str, str, str], list[t.Mapping[str, t.Any]]] = {}
    for check in checks:
        if check["state"] != "ok":
            _counts, _separator, cause = check["detail"].partition("; ")
            groups.setdefault((check["state"], cause or check["detail"], check["hint"]), []).append(check)
    return [([title_of(check["component"]) for check in group], group[0]["detail"] if len(group) == 1 else cause,
             group[0]) for (_state, cause, _hint), group in groups.items()]


def _steps(cluster: Cluster, style: Style, head: str) -> list[str]:
    lines = []
    for title, texts in steps(cluster).items():
        for number, text in enumerate(texts):
            lines.append(style.entry(title if number == 0 else "", text, 2 if number == 0 else TITLE_WIDTH + 4,
                                     TITLE_WIDTH if number == 0 else 0))
    return [head, *lines] if lines else []


def progress(told: t.Mapping[str, t.Any], style: Style) -> str:
    """What has changed on the way, a line for what is ready now and one for what is waited for, cut to the width.

    C( 1:05  driver ████░░░░ 37/100, 1 failing: gpu-07 (nouveau holds the GPU); behind it validator 30/100)
    """
    minutes, seconds = divmod(int(told["elapsed"]), 60)
    clock = f"{minutes:>2}:{seconds:02}  "
    lines = []
    if told["done"]:
        names = ", ".join(f"{title_of(one['component'])} ({one['ready']})" for one in told["done"])
        lines.append(f"{clock}{style.sign('ok')} ready: {names}{'' if told['open'] else '; that is all'}")
    if told["open"]:
        front = next((one for one in told["open"] if one["failing"]), told["open"][0])
        lines.append(clock + _front(front, style) + _behind([one for one in told["open"] if one is not front]))
    if told["ends"]:
        lines.append(f"{clock}{style.sign('failed')} {told['ends']}; what is lacking is told in the result")
    return "\n".join(text if len(text) <= style.width else f"{text[:style.width - 3]}..." for text in lines)


_BAR = 12


def _front(one: t.Mapping[str, t.Any], style: Style) -> str:
    """The component that the others wait for: how many are ready, what fails, who is waited for."""
    full = _BAR * one["ready"] // max(one["desired"], 1)
    drawn = style.sign("full") * full + style.sign("empty") * (_BAR - full)
    text = f"{title_of(one['component'])} {drawn} {one['ready']}/{one['desired']}"
    if one["failing"]:
        first = one["failing"][0]
        text += f", {len(one['failing'])} failing: {first['node'] or 'no node'} ({first['why']})"
    elif one["waiting"]:
        first = one["waiting"][0]
        more = f" and {len(one['waiting']) - 1} more" if one["waiting"][1:] else ""
        inside = f" ({first['container']})" if first["container"] else ""
        text += f", waiting: {first['node'] or 'no node'}{inside}{more}"
    return text


def _behind(others: t.Sequence[t.Mapping[str, t.Any]]) -> str:
    return "; then " + ", ".join(f"{title_of(one['component'])} {one['ready']}/{one['desired']}"
                                 for one in others) if others else ""


def verdict(cluster: Cluster) -> str:
    """C(8 of 8 components are ready in the cluster), with what is not; empty where nothing was looked at."""
    checks = cluster.get("checks")
    if checks is None and not _rendered(cluster):
        return "the cluster was not reached"
    if not checks:
        return ""
    states = [check["state"] for check in checks]
    failed = sum(state in ("failed", "absent") for state in states)
    parts = [f"{states.count('ok')} of {len(states)} components are ready in the cluster"]
    parts += [f"{states.count('pending')} pending"] if "pending" in states else []
    parts += [f"{failed} failed"] if failed else []
    return ", ".join(parts)


def tiles(cluster: Cluster) -> list[tuple[int, str]]:
    """Figures for the head of a page."""
    found = []
    if cluster.get("plan"):
        found.append((len(cluster["plan"]["nodes"]["gpu"]), "GPU nodes"))
    checks = cluster.get("checks")
    if checks:
        ready = sum(check["ok"] for check in checks)
        found += [(ready, "components ready"), (len(checks) - ready, "components not ready")]
    return found


def _many(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
