# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads and edits files with lines C(NAME=value), such as gridd.conf and fabricmanager.cfg. Pure."""

from __future__ import annotations

import re
import typing as t

_LINE = re.compile(r"\s*([A-Za-z][A-Za-z0-9_]*)\s*=(.*)\Z")


def name_of(line: str) -> str:
    """The name in a line, empty for a comment or another line."""
    found = _LINE.match(line)
    return found.group(1) if found else ""


def _lines(text: str) -> list[str]:
    """The lines of a text, which only line feeds end."""
    return (text[:-1] if text.endswith("\n") else text).split("\n") if text else []


def values(text: str) -> dict[str, str]:
    """The values by name. The last line of a name counts."""
    found = [_LINE.match(line) for line in _lines(text)]
    return {match.group(1): match.group(2).strip() for match in found if match}


def merged(text: str, wanted: t.Mapping[str, str | None]) -> str:
    """The text with the values of these names. None removes a name. Names that are missing are added at the end; other
    lines are not changed."""
    lines, missing = [], dict(wanted)
    end = "\r" if text.partition("\n")[0].endswith("\r") else ""
    for line in _lines(text):
        name = name_of(line)
        if name not in wanted:
            lines.append(line)
            continue
        value = missing.pop(name, None)
        if value is not None:
            lines.append(f"{name}={value}{end}")
    lines += [f"{name}={value}{end}" for name, value in missing.items() if value is not None]
    return "".join(f"{line}\n" for line in lines)
