# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tables and lists for a terminal. Pure. PRIVATE."""

from __future__ import annotations

import textwrap
import typing as t
from dataclasses import dataclass

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.printable import printable

# The signs of a report: (Unicode, ASCII).
_SIGNS = {
    "ok": ("✔", "ok"), "pending": ("…", ".."), "failed": ("✖", "XX"), "absent": ("✖", "XX"), "none": ("–", "-"),
    "error": ("✖", "XX"), "warning": ("▲", "!!"), "info": ("·", "--"),
    "full": ("█", "#"), "empty": ("░", "."), "arrow": ("→", "->"), "horizontal": ("─", "-"), "vertical": ("│", "|"),
    "top": ("┌┬┐", "+++"), "middle": ("├┼┤", "+++"), "bottom": ("└┴┘", "+++"),
}
Paint = t.Callable[[str, str], str]


@dataclass(frozen=True)
class Cell:
    """A table cell. state: ok, pending, failed, absent, none, a severity, or empty for plain text."""

    text: str
    state: str = ""


def plain(text: str, state: str) -> str:
    """A text without colour."""
    return text


@dataclass(frozen=True)
class Style:
    """A terminal. width: in columns; fancy: whether it shows UTF-8; paint: colours a text by its state."""

    width: int = 100
    fancy: bool = True
    paint: Paint = plain

    def sign(self, name: str) -> str:
        """A sign that the terminal can show."""
        return _SIGNS[name][0 if self.fancy else 1]

    def text(self, text: str) -> str:
        """A text with characters that the terminal can show, and without control sequences."""
        text = printable(text)
        return text if self.fancy else text.replace("→", "->").replace("·", "-").encode("ascii", "replace").decode()

    def table(self, head: t.Sequence[str], rows: t.Sequence[t.Sequence[Cell]], rules: bool = False) -> str:
        """A table no wider than the terminal; cells that do not fit are wrapped. rules: lines between rows."""
        texts = [[self._cell(cell) for cell in row] for row in rows]
        columns = list(zip(head, *texts))
        widths = _fit([max(len(item) for item in column) for column in columns],
                      [max([len(name), 8]) for name in head], self.width - 3 * len(head) - 1)
        edge = self.sign("vertical")
        lines = [self._rule("top", widths), self._row([Cell(name, "title") for name in head], head, widths, edge),
                 self._rule("middle", widths)]
        for number, (row, row_texts) in enumerate(zip(rows, texts)):
            if rules and number:
                lines.append(self._rule("middle", widths))
            lines.append(self._row(row, row_texts, widths, edge))
        return "\n".join([*lines, self._rule("bottom", widths)])

    def entry(self, label: str, text: str, indent: int, label_width: int = 0) -> str:
        """C(label  text), wrapped so that further lines begin below the text."""
        start = " " * indent + f"{printable(label):<{label_width}}" + ("  " if label else "")
        return textwrap.fill(self.text(text), max(self.width, 40), initial_indent=start,
                             subsequent_indent=" " * len(start), break_on_hyphens=False, break_long_words=False)

    def titled(self, texts: t.Mapping[str, t.Sequence[str]], width: int) -> list[str]:
        """The texts by title, each with L(entry); a title is only before its first text. width: that of the titles."""
        return [self.entry("" if number else title, text, width + 4 if number else 2, 0 if number else width)
                for title, lines in texts.items() for number, text in enumerate(lines)]

    def _cell(self, cell: Cell) -> str:
        sign = self.sign(cell.state) if cell.state in _SIGNS else ""
        return f"{sign} {self.text(cell.text)}".strip()

    def _rule(self, name: str, widths: t.Sequence[int]) -> str:
        corners = self.sign(name)
        return corners[0] + corners[1].join(self.sign("horizontal") * (width + 2) for width in widths) + corners[2]

    def _row(self, cells: t.Sequence[Cell], texts: t.Sequence[str], widths: t.Sequence[int], edge: str) -> str:
        wrapped = [textwrap.wrap(text, width, break_on_hyphens=False) or [""] for text, width in zip(texts, widths)]
        lines = []
        for index in range(max(len(part) for part in wrapped)):
            parts = [self.paint(f"{(part[index] if index < len(part) else ''):<{width}}", cell.state)
                     for cell, part, width in zip(cells, wrapped, widths)]
            lines.append(f"{edge} " + f" {edge} ".join(parts) + f" {edge}")
        return "\n".join(lines)


def _fit(natural: t.Sequence[int], smallest: t.Sequence[int], room: int) -> list[int]:
    """Column widths that fit the room. The widest columns are reduced first, none below its smallest width."""
    widths = list(natural)
    while sum(widths) > room:
        index = max(range(len(widths)), key=lambda number: (widths[number] > smallest[number], widths[number]))
        if widths[index] <= smallest[index]:
            break
        widths[index] -= 1
    return widths
