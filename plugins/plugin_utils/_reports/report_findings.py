# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a preflight found, for people. Pure. PRIVATE. Findings are dictionaries, see L(findings)."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.wording import some_of
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning.findings import counts, grouped
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._reports.terminal import Cell, Style

Findings = t.Sequence[t.Mapping[str, t.Any]]
HEAD = ("", "where", "finding", "what to do")
_WORDS = {"error": ("error", "errors"), "warning": ("warning", "warnings"), "info": ("note", "notes")}


def rows(found: Findings) -> list[list[Cell]]:
    """One row for what is said of the same hosts: severity, where, finding, fix."""
    return [[Cell(one["severity"], one["severity"]), Cell(some_of(hosts)), Cell(one["text"]),
             Cell(one["fix"], "" if one["fix"] else "none")] for hosts, one in grouped(found)]


def render(found: Findings, style: Style) -> list[str]:
    """All of them as a table, and the sum."""
    return [*(["Findings:", style.table(HEAD, rows(found), rules=True)] if found else []), verdict(found)]


def render_short(found: Findings, style: Style) -> list[str]:
    """Errors and warnings as lines, for the head of a run."""
    lines = []
    for hosts, one in grouped(found):
        if one["severity"] == "info":
            continue
        label = f"{style.sign(one['severity'])} {one['severity']}, {some_of(hosts)}:"
        lines.append(style.paint(style.entry(label, one["text"], 0), one["severity"]))
        if one["fix"]:
            lines.append(style.entry("", f"→ {one['fix']}", 4))
    return lines


def verdict(found: Findings) -> str:
    """C(1 error, 2 warnings, 1 note.)."""
    told = [f"{count} {word(severity, count)}" for severity, count in counts(found).items() if count]
    return f"{', '.join(told)}." if told else "Nothing was found that stands in the way."


def word(severity: str, count: int) -> str:
    """C(error), C(warnings), C(note) ..., as the count has it."""
    return _WORDS[severity][count != 1]
