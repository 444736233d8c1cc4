# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the terminal of this run can show. PRIVATE to the collection."""

from __future__ import annotations

import locale
import os

from ansible.utils.color import ANSIBLE_COLOR, stringc
from ansible.utils.display import Display
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.printable import printable
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._reports.terminal import Style

_COLOURS = {"ok": "green", "pending": "yellow", "warning": "yellow", "failed": "red", "absent": "red", "error": "red"}
display = Display()


def tell(text: str) -> None:
    """Prints a line that has no colours, and nothing that a terminal would obey."""
    display.display(printable(text))


def piped() -> bool:
    """Whether output goes to a file or a pipe, as under AWX and in CI."""
    return not ANSIBLE_COLOR and display.columns <= 79


def style() -> Style:
    """The style of this terminal. Where output goes to a file or a pipe, lines are kept to 119 columns.

    A worker has no terminal of its own: what Ansible found out at its start counts. Without colours a terminal tells
    itself from a pipe, which has 79 columns to Ansible, by being wider.
    """
    utf8 = locale.getpreferredencoding(False).lower().replace("-", "") == "utf8"
    width = 119 if piped() else min(display.columns, 160)
    return Style(width, utf8 and os.environ.get("TERM") != "dumb", _paint)


def _paint(text: str, state: str) -> str:
    return stringc(text, _COLOURS[state]) if state in _COLOURS else text
