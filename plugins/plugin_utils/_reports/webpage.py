# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The report as one page of HTML that needs nothing else. Pure. PRIVATE. Every value is escaped."""

from __future__ import annotations

import html
import typing as t

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.components import by_name
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning.findings import counts
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._reports import report_cluster, report_findings
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._reports.report import (
    Report,
    columns,
    gpus_of,
    headline,
    plan_cells,
    problem,
    steps_by_hosts,
    verdict,
)

_STYLE = """
:root{--ground:#f5f6f4;--paper:#fff;--ink:#1d211b;--soft:#666d62;--line:#dde1da;--ok:#4d7a00;--okbg:#ecf5dc;
--pending:#8a5a00;--pendingbg:#fff2d6;--failed:#b3261e;--failedbg:#fde7e5}
@media(prefers-color-scheme:dark){:root{--ground:#151713;--paper:#1e211c;--ink:#e7eae3;--soft:#9aa294;--line:#343930;
--ok:#a4d65e;--okbg:#26331a;--pending:#f0c05a;--pendingbg:#3a2f17;--failed:#ff8a80;--failedbg:#43201d}}
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--ink);font:15px/1.5 system-ui,"Segoe UI",Roboto,sans-serif}
main{max-width:1120px;margin:0 auto;padding:40px 24px 64px}
h1{font-size:26px;margin:0 0 4px}h2{font-size:17px;margin:40px 0 12px}p.soft{color:var(--soft);margin:0}
p.problem{color:var(--failed);background:var(--failedbg);border-radius:10px;padding:12px 20px;margin:24px 0 0}
.wide+p.soft,p.soft+.wide{margin-top:12px}
.tiles{display:flex;flex-wrap:wrap;gap:12px;margin:24px 0 0}
.tile{background:var(--paper);border:1px solid var(--line);border-radius:10px;padding:12px 20px;min-width:120px}
.tile b{display:block;font-size:26px;line-height:1.2}.tile span{color:var(--soft);font-size:13px}
.wide{overflow-x:auto;background:var(--paper);border:1px solid var(--line);border-radius:10px}
table{border-collapse:collapse;width:100%}
th,td{text-align:left;vertical-align:top;padding:10px 16px;border-bottom:1px solid var(--line)}
tr:last-child td{border-bottom:0}th{font-size:13px;color:var(--soft);font-weight:600;white-space:nowrap}
td:first-child{font-weight:600;white-space:nowrap}
.mark{display:inline-block;border-radius:20px;padding:1px 10px;font-size:13px;font-weight:600}
.mark.ok{color:var(--ok);background:var(--okbg)}.mark.pending{color:var(--pending);background:var(--pendingbg)}
.mark.warning{color:var(--pending);background:var(--pendingbg)}.mark.info{color:var(--soft);background:var(--ground)}
.mark.failed,.mark.absent,.mark.error{color:var(--failed);background:var(--failedbg)}
td small{display:block;color:var(--soft);margin-top:4px}
ol,ul{margin:0;padding:12px 16px 12px 40px}li{margin:2px 0}li small{color:var(--soft)}
details{background:var(--paper);border:1px solid var(--line);border-radius:10px;margin:8px 0}
summary{cursor:pointer;padding:10px 16px;font-weight:600}h3{font-size:14px;margin:0;padding:4px 16px 0}
.name{white-space:nowrap}details>p,details>p.soft{margin:4px 16px 8px}
pre{margin:4px 16px 12px;padding:10px 14px;overflow-x:auto;background:var(--ground);border:1px solid var(--line);
border-radius:8px;font:13px/1.5 ui-monospace,Menlo,Consolas,monospace}
code{font:13px/1.4 ui-monospace,Menlo,Consolas,monospace}
"""
# Places of one component on the page; the result of gpu_verify has them all.
_SHOWN = 30


def page(report: Report) -> str:
    """The whole document."""
    plan, cluster = report.get("plan"), report.get("cluster")
    title = "GPU hosts and cluster" if cluster and report["hosts"] else "GPU cluster" if cluster else "GPU hosts"
    body = [f"<h1>{title}</h1><p class=soft>{_e(headline(report))}</p>", _tiles(report)]
    if report.get("problem"):
        body.append(f"<p class=problem>{_e(problem(report))}: see the errors below.</p>")
    if report["findings"]:
        rows = [[_mark(row[0].text, row[0].state), _names(row[1].text), *[_e(cell.text) for cell in row[2:]]]
                for row in report_findings.rows(report["findings"])]
        body.append(f"<h2>Findings</h2>{_table(report_findings.HEAD, rows)}"
                    f"<p class=soft>{_e(report_findings.verdict(report['findings']))}</p>")
    if any(entry["checks"] is not None for entry in report["hosts"].values()):
        body.append(f"<h2>Result</h2>{_results(report)}<p class=soft>{_e(verdict(report))}</p>")
    body.append(_cluster(cluster) if cluster else "")
    if report["hosts"] or not cluster:
        rows = [[_plan_cell(cell.text, cell.state) for cell in plan_cells(host, entry, plan)]
                for host, entry in report["hosts"].items()]
        body.append(f"<h2>{'Plan' if plan else 'Hosts'}</h2>"
                    f"{_table(['host', 'GPUs', 'driver', 'toolkit', 'MIG'], rows)}")
    body.append(_steps(report, "steps", "Steps"))
    body.append(_steps(report, "pending", "Pending"))
    if plan:
        body.append(_list("Notes", plan["notes"]))
        body.append(_reasons(plan["explanations"]))
    return ("<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
            f"<title>{title}</title><style>{_STYLE}</style><main>{''.join(body)}</main></html>\n")


def _e(text: t.Any) -> str:
    return html.escape(str(text))


def _names(text: str) -> str:
    """Names one below the other, none of them broken."""
    return f"<span class=name>{_e(text).replace(', ', ',<br>')}</span>"


def _tiles(report: Report) -> str:
    states = [check["state"] for entry in report["hosts"].values() for check in entry["checks"] or ()]
    gpus = sum(len(entry["facts"]["gpus"]) for entry in report["hosts"].values() if entry["facts"])
    cluster = report.get("cluster")
    tiles = [(len(report["hosts"]), "hosts"), (gpus, "GPUs")] if report["hosts"] or not cluster else []
    if cluster:
        tiles += report_cluster.tiles(cluster)
    tiles += [(count, report_findings.word(severity, count)) for severity, count in counts(report["findings"]).items()
              if count]
    if states:
        tiles += [(states.count("ok"), "checks ok"), (states.count("pending"), "pending"),
                  (len(states) - states.count("ok") - states.count("pending"), "failed")]
    return "<div class=tiles>" + "".join(
        f"<div class=tile><b>{count}</b><span>{_e(name)}</span></div>" for count, name in tiles) + "</div>"


def _table(head: t.Sequence[str], rows: t.Sequence[t.Sequence[str]]) -> str:
    top = "".join(f"<th>{_e(name)}</th>" for name in head)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<div class=wide><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"


def _plan_cell(text: str, state: str) -> str:
    return f"{_e(text)} <span class='mark ok'>as planned</span>" if state == "ok" else _e(text)


def _results(report: Report) -> str:
    rows, shown = [], columns(report)
    for host, entry in report["hosts"].items():
        checks = {check["component"]: check for check in entry["checks"] or ()}
        row = [_e(host), _e(gpus_of(entry["facts"]))]
        for names in shown.values():
            found = [checks[name] for name in names if name in checks]
            if entry["checks"] is None:
                row.append("<span class='mark failed'>not reached</span>")
            else:
                row.append("".join(_check(check, len(names) > 1) for check in found) or "–")
        rows.append(row)
    return _table(["host", "GPUs", *shown], rows)


def _check(check: t.Mapping[str, t.Any], named: bool) -> str:
    hint = f"<small>→ {_e(check['hint'])}</small>" if check["hint"] else ""
    title = f"{by_name(check['component']).title}: " if named else ""
    return (f"<span class='mark {_e(check['state'])}'>{_e(check['state'])}</span>"
            f"<small>{_e(title + check['detail'])}</small>{hint}")


def _cluster(cluster: report_cluster.Cluster) -> str:
    """The cluster: components by counts with what is not well, nodes by pools, objects by steps."""
    text = f"<h2>Cluster</h2><p class=soft>{_e(report_cluster.headline(cluster))}</p>"
    checks = cluster.get("checks") or ()
    if checks:
        rows = [[_e(row[0].text), _e(row[1].text or "–"), _mark(row[2].text, check["state"]) + _why(check)]
                for row, check in zip(report_cluster.result_rows(checks), checks)]
        text += f"{_table(report_cluster.RESULT_HEAD, rows)}<p class=soft>{_e(report_cluster.verdict(cluster))}.</p>"
        text += _causes(checks)
    pools = [[_e(cell.text or "–") for cell in row] for row in report_cluster.pool_rows(cluster)]
    text += f"<h2>GPU nodes</h2>{_table(report_cluster.POOL_HEAD, pools)}" if pools else ""
    images = [[_e(row[0].text), _e(row[1].text), _e(row[2].text or "–")]
              for row in report_cluster.component_rows(cluster)]
    text += f"<h2>Components</h2>{_table(report_cluster.COMPONENT_HEAD, images)}" if images else ""
    steps = report_cluster.steps(cluster)
    if steps:
        text += "<h2>Steps in the cluster</h2><details open><summary>Objects and Nodes</summary>" + "".join(
            f"<h3>{_e(title)}</h3><ul>{''.join(f'<li><code>{_e(line)}</code></li>' for line in lines)}</ul>"
            for title, lines in steps.items()) + "</details>"
    return text + _list("Not in the cluster", report_cluster.left_out(cluster))


def _mark(text: str, state: str) -> str:
    return f"<span class='mark {_e(state)}'>{_e(text)}</span>"


def _causes(checks: t.Sequence[t.Mapping[str, t.Any]]) -> str:
    """Why components are not ready, each cause once, with what it was found by and what to do."""
    found = report_cluster.roots(checks)
    text = ""
    for titles, cause in found:
        lines = "".join(f"{_e(line)}\n" for line in cause["log"])
        commands = "".join(f"{_e(command)}\n" for command in cause["do"])
        text += (f"<details open><summary>{_mark(cause['level'], cause['level'])} {_e(', '.join(titles))}: "
                 f"{_e(cause['cause'])}</summary><p>{_e(cause['text'])}.</p>")
        if cause["level"] == "failed" and cause["pod"]:
            text += f"<p class=soft>{_e(report_cluster.stand(cause))}</p>"
        text += f"<pre>{lines}</pre>" if lines else ""
        text += f"<p><b>→ {_e(cause['hint'])}</b></p>" + (f"<pre>{commands}</pre>" if commands else "")
        text += f"<p class=soft>{_e(report_cluster.held_up(cause))}</p>" if cause["holds_up"] else ""
        text += "</details>"
    return f"<h2>Why components are not ready</h2>{text}" if text else ""


def _why(check: t.Mapping[str, t.Any]) -> str:
    """Every place where a component of the cluster is not ready."""
    if check["state"] == "ok":
        return ""
    if check.get("causes"):
        return "".join(f"<small>{_e(cause['text'])}</small>" for cause in check["causes"])
    if not check["nodes"]:
        return f"<small>{_e(check['detail'])}</small><small>→ {_e(check['hint'])}</small>"
    more = len(check["nodes"]) - _SHOWN
    return "".join(map(_place, check["nodes"][:_SHOWN])) + (f"<small>and {more} more</small>" if more > 0 else "")


def _place(one: t.Mapping[str, t.Any]) -> str:
    where = " ".join(part for part in (one["container"], one["state"], one["reason"]) if part)
    said = f": {one['message']}" if one["message"] else ""
    why = (f"<small>waits for {_e(report_cluster.title_of(one['waits_for']))} there</small>" if one["waits_for"] else
           f"<small>{_e(one['cause'])}</small><small>→ {_e(one['hint'])}</small>")
    return f"<small><b>{_e(one['node'] or 'no node')}</b> {_e(where + said)}</small>{why}"


def _steps(report: Report, what: str, title: str) -> str:
    groups = steps_by_hosts(report, what)
    if not groups:
        return ""
    text = f"<h2>{title}</h2>"
    for hosts, steps in groups:
        text += f"<details open><summary>{_e(', '.join(hosts))}</summary>"
        for name, items in steps.items():
            text += f"<h3>{_e(by_name(name).title)}</h3><ol>" + "".join(
                f"<li><code>{_e(step['id'])}</code> <small>{_e(step.get('pending_reason') or step.get('reason') or '')}"
                "</small></li>" for step in items) + "</ol>"
        text += "</details>"
    return text


def _list(title: str, items: t.Sequence[str]) -> str:
    listed = "".join(f"<li>{_e(item)}</li>" for item in items)
    return f"<h2>{_e(title)}</h2><div class=wide><ul>{listed}</ul></div>" if items else ""


def _reasons(explanations: t.Mapping[str, t.Sequence[str]]) -> str:
    entries = "".join(f"<details><summary>{_e(host)}</summary><ul>{''.join(f'<li>{_e(item)}</li>' for item in items)}"
                      "</ul></details>" for host, items in explanations.items())
    return f"<h2>Why</h2>{entries}" if entries else ""
