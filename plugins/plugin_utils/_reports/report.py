# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan and the result of a run as text for a terminal. Pure. PRIVATE."""

from __future__ import annotations

import os
import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._components import mig_layouts
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.components import ON_HOSTS, SOFTWARE, by_name
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.wording import counted
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.checks import Document
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._reports import (
    report_cluster,
    report_findings,
    report_gpus,
    report_states,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._reports.model import Host, HostCheck, Report, Step, Steps
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._reports.terminal import Cell, Style

_PCI = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")
# The components that share one column of the result.
_SOFTWARE = (*SOFTWARE, "validator")
# Hosts with the same steps, and these steps.
Groups = t.List[t.Tuple[t.List[str], Steps]]
_TITLE_WIDTH = max(len(component.title) for component in ON_HOSTS)
HOST_HEAD = ("host", "GPUs", "driver", "toolkit", "MIG")


def headline(report: Report) -> str:
    """Release, policy and level of the plan in one line."""
    plan = report.plan
    if not plan:
        return "no plan" if report.problem else "no policy"
    policy = plan["format"] if plan["format"] == "defaults" else f"{os.path.basename(plan['policy'])}, {plan['format']}"
    return f"release {plan['release']} · policy: {policy} · disruption: {plan['disruption']}"


def gpus_of(facts: Document | None) -> str:
    """The models of a host's GPUs with their numbers, such as C(8 x A100-SXM4-80GB)."""
    if facts is None:
        return "no facts"
    counts: dict[str, int] = {}
    for gpu in facts["gpus"]:
        name = report_gpus.model_of(gpu)
        counts[name] = counts.get(name, 0) + 1
    return ", ".join(f"{count} x {name}" for name, count in counts.items()) or "none"


def change_of(current: str, desired: str) -> Cell:
    """C(580.126.20 → 595.91.07), or the state ok if both are the same."""
    return Cell(desired, "ok") if current == desired else Cell(f"{current} → {desired}")


def host_rows(report: Report) -> list[list[Cell]]:
    """A row for each host: its current state and, with a plan, its desired state. The columns are HOST_HEAD."""
    return [_host_cells(name, host, (report.plan or {}).get("hosts", {}).get(name))
            for name, host in report.hosts.items()]


def _host_cells(name: str, host: Host, planned: Document | None) -> list[Cell]:
    facts = host.facts
    cells = [Cell(name), Cell(gpus_of(facts))]
    if facts is None:
        return [*cells, *[Cell("", "none")] * 3]
    driver = facts["driver"]
    current = f"{driver['loaded']} {driver['flavour'] or ''}".strip() if driver["loaded"] else "none"
    toolkit = str(facts["toolkit"]["version"] or "none")
    mig = mig_layouts.overview(facts["gpus"])
    if planned is None:
        return [*cells, Cell(current), Cell(toolkit), Cell(mig)]
    desired = planned["driver"]
    if desired["placement"] == "none":
        cells.append(Cell(f"{current}, adopted"))
    else:
        version = desired["version"] or f"newest of branch {desired['branch']}"
        cells.append(change_of(current, f"{version} {desired['kernel_module_type']}"))
    on_host = planned["container_toolkit"]["placement"] == "host"
    cells.append(change_of(toolkit, planned["container_toolkit"]["version"]) if on_host else Cell(toolkit))
    layout = planned["mig_manager"]["selected"]
    if not layout:
        return [*cells, Cell(mig)]
    return [*cells, Cell(f"{mig} → {layout}") if "mig_manager" in planned["preview"] else Cell(layout, "ok")]


def steps_by_hosts(report: Report, pending: bool = False) -> Groups:
    """The steps, or the pending steps, of all hosts. Hosts with the same steps are one group."""
    groups: Groups = []
    for name, host in report.hosts.items():
        own = host.pending if pending else host.steps
        same = next((hosts for hosts, steps in groups if steps == own), None)
        if same is not None:
            same.append(name)
        elif own:
            groups.append(([name], own))
    return groups


def render_plan(report: Report, style: Style) -> str:
    """The plan with the errors and warnings of the preflight, before a run."""
    lines = [style.entry("", f"GPU plan: {headline(report)}", 0), *_plan_lines(report, style),
             *report_findings.render_short(report.findings, style)]
    return "\n".join(lines)


def render_preflight(report: Report, style: Style) -> str:
    """The plan, or why there is none, and all findings of the preflight."""
    lines = [style.entry("", f"GPU preflight: {headline(report)}", 0)]
    lines += _plan_lines(report, style) if report.plan else _overview(report, style)
    if report.problem:
        lines.append(style.paint(style.entry("", f"{problem(report)}. See the errors below.", 0), "failed"))
    return "\n".join([*lines, *report_findings.render(report.findings, style)])


def problem(report: Report) -> str:
    """Why there is no plan, without the reasons of refusals, which are findings."""
    return report.problem.split("\n", 1)[0].rstrip(":. ")


def _plan_lines(report: Report, style: Style) -> list[str]:
    plan, cluster = report.plan, report.cluster
    lines = _overview(report, style)
    steps = [*_grouped("Steps", steps_by_hosts(report), style),
             *_grouped("Pending", steps_by_hosts(report, pending=True), style)]
    # The steps of a host are not known if it was not reached or a module failed.
    known = not any(one["severity"] == "error" for one in report.findings)
    if not steps and known and (report.hosts or not cluster):
        steps = [f"Nothing to do{' on hosts' if cluster else ''}: every host is as planned."]
    lines += steps
    lines += report_cluster.render_plan(cluster, style) if cluster else []
    return lines + [style.entry("note:", text, 0) for text in plan["notes"]] if plan else lines


def render_state(report: Report, style: Style) -> str:
    """The current state, and what is pending."""
    cluster = report.cluster
    lines = [*(["GPU hosts"] if report.hosts or not cluster else []), *_overview(report, style),
             *_grouped("Pending", steps_by_hosts(report, pending=True), style)]
    lines += report_cluster.render_state(cluster, style) if cluster else []
    lines += report_findings.table(report.findings, style)
    lines += report_states.render(report.states or (), style)
    return "\n".join([*lines, style.text(report.problem)] if report.problem else lines)


def _overview(report: Report, style: Style) -> list[str]:
    """The table of hosts; nothing if the run is only about a cluster."""
    rows = host_rows(report)
    if rows:
        return [style.table(HOST_HEAD, rows)]
    return [] if report.cluster or report.problem else ["This run has no host of the inventory and no cluster."]


def _grouped(title: str, groups: Groups, style: Style) -> list[str]:
    lines = []
    for hosts, steps in groups:
        lines.append(f"{title} on {', '.join(hosts)}:")
        lines += style.titled({by_name(name).title: _alike(items) for name, items in steps.items()}, _TITLE_WIDTH)
    return lines


def _alike(items: t.Sequence[Step]) -> list[str]:
    """The texts of steps. Steps that differ only in the GPU's address are one text."""
    texts: dict[str, str] = {}
    counts: dict[str, int] = {}
    for step in items:
        text, reason = step.id, step.reason if step.pending_reason is None else step.pending_reason
        # A step that follows a pending step needs no reason of its own.
        if reason and not (step.pending_reason and reason.startswith("it follows ")):
            text += f" ({reason})"
        if step.needs != "never" and step.pending_reason is None:
            text += f" [needs gpu_disruption: {step.needs}]"
        key = _PCI.sub("*", text)
        texts.setdefault(key, text)
        counts[key] = counts.get(key, 0) + 1
    return [f"{text}; the same on {counted(counts[key] - 1, 'more GPU')}" if counts[key] > 1 else text
            for key, text in texts.items()]


def columns(report: Report) -> dict[str, list[str]]:
    """The columns of the result: maps titles to components. The software has a column only if it was checked."""
    own = [component for component in ON_HOSTS if component.name not in _SOFTWARE]
    checked = {check.component for host in report.hosts.values() for check in host.checks or ()}
    software = [component.name for component in ON_HOSTS if component.name in _SOFTWARE and component.name in checked]
    return {**{component.title.replace("container toolkit", "toolkit"): [component.name] for component in own},
            **({"software": software} if software else {})}


def result_cell(checks: t.Sequence[HostCheck]) -> Cell:
    """The most severe state among the checks of one column."""
    for state in ("failed", "absent", "pending"):
        found = [check for check in checks if check.state == state]
        if found and len(checks) > 1:
            what = by_name(found[0].component).title if len(found) == 1 else str(len(found))
            return Cell(f"{what} {state}", state)
        if found:
            return Cell(state, state)
    if len(checks) > 1:
        return Cell(f"{len(checks)} parts", "ok")
    return Cell(checks[0].detail, "ok") if checks else Cell("", "none")


def render_result(report: Report, style: Style) -> str:
    """The steps of a run, and the checks of all hosts and of the cluster after it."""
    rows, notes = [], []
    lost = [name for name, host in report.hosts.items() if host.checks is None]
    for name, host in report.hosts.items():
        checks = {check.component: check for check in host.checks or ()}
        lost_cell = Cell("not reached", "failed") if host.checks is None else None
        rows.append([Cell(name), Cell(gpus_of(host.facts)), *(
            lost_cell or result_cell([checks[component] for component in column if component in checks])
            for column in columns(report).values())])
        notes += [(name, component.title, checks[component.name]) for component in ON_HOSTS
                  if component.name in checks and checks[component.name].state != "ok"]
    cluster = report.cluster
    lines = _grouped("Steps of this run", steps_by_hosts(report), style)
    if rows or not cluster:
        lines += ["GPU hosts", style.table(["host", "GPUs", *columns(report)], rows)]
    for name, title, check in notes:
        lines.append(style.paint(style.entry(f"{style.sign(check.state)} {name}, {title}:", check.detail, 0),
                                 check.state))
        if check.hint:
            lines.append(style.entry("", f"→ {check.hint}", 4))
    if lost:
        lines.append(style.paint(style.entry(f"{style.sign('failed')} {', '.join(lost)}:",
                                             "stopped before the end; see the error above", 0), "failed"))
    lines += report_cluster.render_result(cluster, style) if cluster else []
    lines += report_findings.table(report.findings, style)
    lines += report_states.render(report.states or (), style)
    lines.append(style.entry("", verdict(report), 0))
    return "\n".join(lines)


def verdict(report: Report) -> str:
    """The result in one sentence."""
    states = host_states(report)
    lost = sum(host.checks is None for host in report.hosts.values())
    cluster = report_cluster.verdict(report.cluster) if report.cluster else ""
    if cluster and not states and not lost:
        return f"{cluster}."
    parts = [f"{states.count('ok')} of {len(states)} checks are ok on {counted(len(report.hosts), 'host')}",
             *report_cluster.not_ok(states), *([f"{counted(lost, 'host')} not reached"] if lost else [])]
    return ", ".join(parts) + (f"; {cluster}." if cluster else ".")


def host_states(report: Report) -> list[str]:
    """The states of all checks on hosts."""
    return [check.state for host in report.hosts.values() for check in host.checks or ()]
