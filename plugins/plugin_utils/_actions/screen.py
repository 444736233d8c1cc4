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
    """Prints a line without colours and without control sequences."""
    display.display(printable(text))


def piped() -> bool:
    """Whether output goes to a file or a pipe, as under AWX and in CI."""
    return not ANSIBLE_COLOR and display.columns <= 79


def style() -> Style:
    """The style of this terminal. If output goes to a file or a pipe, lines have at most 119 columns.

    A worker process of Ansible has no terminal, so the values are used that Ansible has determined at its start. For a
    pipe these are 79 columns. A terminal without colours is therefore detected by its greater width.
    """
    utf8 = locale.getpreferredencoding(False).lower().replace("-", "") == "utf8"
    width = 119 if piped() else min(display.columns, 160)
    return Style(width, utf8 and os.environ.get("TERM") != "dumb", _paint)


def _paint(text: str, state: str) -> str:
    return stringc(text, _COLOURS[state]) if state in _COLOURS else text
