# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan and the result of a run as text. Pure. PRIVATE.

A report is C({plan, problem, hosts: {HOST: {facts, checks, steps, pending}}, cluster, findings}): plan is what
L(resolve) returned or None, problem then says why; facts what gpu_info returned or None; checks a list of
C({component, state, detail, hint}) or None; steps and pending by component what the modules returned; cluster the
cluster's part (L(report_cluster)) or None; findings what a preflight found (L(findings)).
"""

from __future__ import annotations

import os
import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._components import mig_layouts
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.components import ON_HOSTS, SOFTWARE, by_name
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._reports import report_cluster, report_findings
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._reports.terminal import Cell, Style

Report = t.Mapping[str, t.Any]
Host = t.Mapping[str, t.Any]
_PCI = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")
# What has no column of its own in results.
_BESIDE = (*SOFTWARE, "validator")
# Hosts that share them, and by component their steps.
Groups = t.List[t.Tuple[t.List[str], t.Dict[str, t.List[t.Any]]]]


def headline(report: Report) -> str:
    """What the plan rests on, in one line."""
    plan = report.get("plan")
    if not plan:
        return "no plan" if report.get("problem") else "no policy"
    policy = plan["format"] if plan["format"] == "defaults" else f"{os.path.basename(plan['policy'])}, {plan['format']}"
    return f"release {plan['release']} · policy: {policy} · disruption: {plan['disruption']}"


def gpus_of(facts: Host | None) -> str:
    """C(8 x NVIDIA A100-SXM4-80GB)."""
    if facts is None:
        return "not asked"
    counts: dict[str, int] = {}
    for gpu in facts["gpus"]:
        name = str(gpu.get("model") or f"GPU {gpu['device_id']}").replace("NVIDIA ", "", 1)
        counts[name] = counts.get(name, 0) + 1
    return ", ".join(f"{count} x {name}" for name, count in counts.items()) or "none"


def change_of(now: str, wanted: str) -> Cell:
    """C(580.126.20 → 595.91.07), or one of them where both are the same."""
    return Cell(wanted, "ok") if now == wanted else Cell(f"{now} → {wanted}")


def plan_cells(host: str, entry: Host, plan: Host | None) -> list[Cell]:
    """One row of the plan: host, GPUs, driver, toolkit, MIG."""
    facts = entry["facts"]
    mine = plan["hosts"].get(host) if plan else None
    cells = [Cell(host), Cell(gpus_of(facts))]
    if facts is None:
        return [*cells, *[Cell("", "none")] * 3]
    driver = facts["driver"]
    now = f"{driver['loaded']} {driver['flavour'] or ''}".strip() if driver["loaded"] else "none"
    toolkit = str(facts["toolkit"]["version"] or "none")
    mig = mig_layouts.overview(facts["gpus"])
    if mine is None:
        return [*cells, Cell(now), Cell(toolkit), Cell(mig)]
    wanted = mine["driver"]
    if wanted["placement"] == "none":
        cells.append(Cell(f"{now}, adopted"))
    else:
        target = f"{wanted['version'] or 'newest of branch ' + str(wanted['branch'])} {wanted['kernel_module_type']}"
        cells.append(change_of(now, target))
    placed = mine["container_toolkit"]["placement"] == "host"
    cells.append(change_of(toolkit, mine["container_toolkit"]["version"]) if placed else Cell(toolkit))
    selected = mine["mig_manager"]["selected"]
    differs = "mig_manager" in mine["preview"]
    if not selected:
        return [*cells, Cell(mig)]
    return [*cells, Cell(f"{mig} → {selected}") if differs else Cell(selected, "ok")]


def steps_by_hosts(report: Report, what: str = "steps") -> Groups:
    """Hosts with the same steps together: C([(hosts, {component: steps})]), hosts without steps left out."""
    groups: Groups = []
    for host, entry in report["hosts"].items():
        mine = {name: items for name, items in entry[what].items() if items}
        if not mine:
            continue
        for names, steps in groups:
            if steps == mine:
                names.append(host)
                break
        else:
            groups.append(([host], mine))
    return groups


def render_plan(report: Report, style: Style) -> str:
    """What will be done, before it is done, and what stands in the way."""
    lines = [style.entry("", f"GPU plan: {headline(report)}", 0), *_plan_lines(report, style),
             *report_findings.render_short(report["findings"], style)]
    return "\n".join(lines)


def render_preflight(report: Report, style: Style) -> str:
    """The plan, or why there is none, and all findings."""
    lines = [style.entry("", f"GPU preflight: {headline(report)}", 0)]
    lines += _plan_lines(report, style) if report.get("plan") else _overview(report, style)
    if report.get("problem"):
        lines.append(style.paint(style.entry("", f"{problem(report)}: see the errors below.", 0), "failed"))
    return "\n".join([*lines, *report_findings.render(report["findings"], style)])


def problem(report: Report) -> str:
    """Why there is no plan, in one sentence; a refusal's reasons are findings."""
    return str(report["problem"]).split("\n", 1)[0].rstrip(":. ")


def _plan_lines(report: Report, style: Style) -> list[str]:
    plan, cluster = report.get("plan"), report.get("cluster")
    lines = _overview(report, style)
    steps = [*_grouped("Steps", steps_by_hosts(report), style),
             *_grouped("Pending", steps_by_hosts(report, "pending"), style)]
    # Of a host that could not be asked, or whose modules gave an error, nobody knows.
    known = not any(one["severity"] == "error" for one in report["findings"])
    if not steps and known and (report["hosts"] or not cluster):
        steps = [f"Nothing to do{' on hosts' if cluster else ''}: every host is as the policy says."]
    lines += steps
    lines += report_cluster.render_plan(cluster, style) if cluster else []
    return lines + [style.entry("note:", text, 0) for text in plan["notes"]] if plan else lines


def render_state(report: Report, style: Style) -> str:
    """What is there, whatever any policy says, and what is pending."""
    cluster = report.get("cluster")
    lines = [*(["GPU hosts"] if report["hosts"] or not cluster else []), *_overview(report, style),
             *_grouped("Pending", steps_by_hosts(report, "pending"), style)]
    lines += report_cluster.render_state(cluster, style) if cluster else []
    return "\n".join([*lines, style.text(report["problem"])] if report.get("problem") else lines)


def _overview(report: Report, style: Style) -> list[str]:
    """Hosts as they are and as they shall be; nothing where the run is about a cluster alone."""
    plan = report.get("plan")
    rows = [plan_cells(host, entry, plan) for host, entry in report["hosts"].items()]
    if not rows and (report.get("cluster") or report.get("problem")):
        return []
    if not rows:
        return ["No host of the inventory and no cluster is in this run."]
    return [style.table(["host", "GPUs", "driver", "toolkit", "MIG"], rows)]


def _grouped(title: str, groups: Groups, style: Style) -> list[str]:
    lines = []
    for hosts, steps in groups:
        lines.append(f"{title} on {', '.join(hosts)}:")
        lines += _steps(steps, style)
    return lines


def _alike(items: t.Sequence[t.Any]) -> list[str]:
    """The words of steps; those that differ by the GPU's address alone stand in one line."""
    texts: dict[str, str] = {}
    counts: dict[str, int] = {}
    for step in items:
        text = str(step["id"])
        reason = step.get("pending_reason", step.get("reason"))
        # What follows a step that is pending needs no reason of its own.
        if reason and not (step.get("pending_reason") and reason.startswith("it follows ")):
            text += f" ({reason})"
        if step.get("needs", "never") != "never" and "pending_reason" not in step:
            text += f" [needs gpu_disruption: {step['needs']}]"
        key = _PCI.sub("*", text)
        texts.setdefault(key, text)
        counts[key] = counts.get(key, 0) + 1
    return [f"{text}; likewise on {_many(counts[key] - 1, 'more GPU')}" if counts[key] > 1 else text
            for key, text in texts.items()]


def _steps(steps: t.Mapping[str, t.Sequence[t.Any]], style: Style) -> list[str]:
    width = max(len(component.title) for component in ON_HOSTS)
    lines = []
    for name, items in steps.items():
        for number, text in enumerate(_alike(items)):
            lines.append(style.entry(by_name(name).title if number == 0 else "", text, 2 if number == 0 else width + 4,
                                     width if number == 0 else 0))
    return lines


def columns(report: Report) -> dict[str, list[str]]:
    """The columns of results: title to components. What stands beside the driver shares one, where it is checked."""
    own = [component for component in ON_HOSTS if component.name not in _BESIDE]
    met = {check["component"] for entry in report["hosts"].values() for check in entry["checks"] or ()}
    beside = [component.name for component in ON_HOSTS if component.name in _BESIDE and component.name in met]
    short = {component.name: component.title.replace("container toolkit", "toolkit") for component in own}
    return {**{title: [name] for name, title in short.items()}, **({"software": beside} if beside else {})}


def result_cell(checks: t.Sequence[t.Mapping[str, t.Any]]) -> Cell:
    """Of several checks in one column the state that matters most."""
    for state in ("failed", "absent", "pending"):
        found = [check for check in checks if check["state"] == state]
        if found and len(checks) > 1:
            what = by_name(found[0]["component"]).title if len(found) == 1 else str(len(found))
            return Cell(f"{what} {state}", state)
        if found:
            return Cell(state, state)
    if len(checks) > 1:
        return Cell(f"{len(checks)} parts", "ok")
    return Cell(checks[0]["detail"], "ok") if checks else Cell("", "none")


def render_result(report: Report, style: Style) -> str:
    """How every component of every host is now, and why where it is not well."""
    rows, notes = [], []
    lost = [host for host, entry in report["hosts"].items() if entry["checks"] is None]
    for host, entry in report["hosts"].items():
        checks = {check["component"]: check for check in entry["checks"] or ()}
        lost_cell = Cell("not reached", "failed") if entry["checks"] is None else None
        rows.append([Cell(host), Cell(gpus_of(entry["facts"])), *(
            lost_cell or result_cell([checks[name] for name in names if name in checks])
            for names in columns(report).values())])
        notes += [(host, component.title, checks[component.name]) for component in ON_HOSTS
                  if component.name in checks and checks[component.name]["state"] != "ok"]
    # Also what the plan at the beginning could not know, such as the repair of a file that was edited by hand.
    cluster = report.get("cluster")
    lines = _grouped("Steps of this run", steps_by_hosts(report), style)
    if rows or not cluster:
        lines += ["GPU hosts", style.table(["host", "GPUs", *columns(report)], rows)]
    for host, title, check in notes:
        lines.append(style.paint(style.entry(f"{style.sign(check['state'])} {host}, {title}:", check["detail"], 0),
                                 check["state"]))
        if check["hint"]:
            lines.append(style.entry("", f"→ {check['hint']}", 4))
    if lost:
        lines.append(style.paint(style.entry(f"{style.sign('failed')} {', '.join(lost)}:",
                                             "stopped before the end; the error stands above", 0), "failed"))
    lines += report_cluster.render_result(cluster, style) if cluster else []
    lines.append(style.entry("", verdict(report), 0))
    return "\n".join(lines)


def verdict(report: Report) -> str:
    """The end in one sentence."""
    states = [check["state"] for entry in report["hosts"].values() for check in entry["checks"] or ()]
    lost = sum(1 for entry in report["hosts"].values() if entry["checks"] is None)
    failed = sum(1 for state in states if state in ("failed", "absent"))
    cluster = report_cluster.verdict(report["cluster"]) if report.get("cluster") else ""
    if cluster and not states and not lost:
        return f"{cluster}."
    parts = [f"{states.count('ok')} of {len(states)} checks are ok on {_many(len(report['hosts']), 'host')}"]
    parts += [f"{states.count('pending')} pending"] if "pending" in states else []
    parts += [f"{failed} failed"] if failed else []
    parts += [f"{_many(lost, 'host')} not reached"] if lost else []
    return ", ".join(parts) + (f"; {cluster}." if cluster else ".")


def _many(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
