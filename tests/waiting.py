# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Waits for an event instead of for a fixed time."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")


def until(condition: Callable[[], Value], what: str = "", limit: float = 240.0, pause: float = 0.2) -> Value:
    """Waits for a condition; returns its first true value. After limit seconds, an AssertionError names the condition.

    what: a description of the condition; without it, its source is shown.
    """
    end = time.monotonic() + limit
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            what = what or inspect.getsource(condition).strip()
            raise AssertionError(f"timed out after {limit:.0f} s, waiting for: {what} (the last value: {value!r})")
        time.sleep(pause)
