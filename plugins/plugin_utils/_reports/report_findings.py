# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The findings of the preflight as text for a terminal. Pure. PRIVATE."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.wording import some_of
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning.findings import counts, grouped
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._reports.terminal import Cell, Style

# As L(findings.Finding.as_dict) returns them.
Findings = t.Sequence[t.Mapping[str, str]]
HEAD = ("", "where", "finding", "what to do")
_WORDS = {"error": ("error", "errors"), "warning": ("warning", "warnings"), "info": ("note", "notes")}


def rows(found: Findings) -> list[list[Cell]]:
    """A row for each finding, with all hosts that have it. The columns are HEAD."""
    return [[Cell(one["severity"], one["severity"]), Cell(some_of(hosts)), Cell(one["text"]),
             Cell(one["fix"], "" if one["fix"] else "none")] for hosts, one in grouped(found)]


def hosts(found: Findings) -> list[list[str]]:
    """All hosts of each row."""
    return [list(having) for having, _one in grouped(found)]


def render(found: Findings, style: Style) -> list[str]:
    """All findings as a table, and their numbers."""
    return [*table(found, style), verdict(found)]


def table(found: Findings, style: Style) -> list[str]:
    """All findings as a table; nothing without findings."""
    return ["Findings:", style.table(HEAD, rows(found), rules=True)] if found else []


def render_short(found: Findings, style: Style) -> list[str]:
    """Errors and warnings as lines, for the beginning of a run."""
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
    numbers = [f"{count} {word(severity, count)}" for severity, count in counts(found).items() if count]
    return f"{', '.join(numbers)}." if numbers else "The preflight found no problem."


def word(severity: str, count: int) -> str:
    """The word for a number of findings: C(error), C(warnings), C(note)."""
    return _WORDS[severity][count != 1]
