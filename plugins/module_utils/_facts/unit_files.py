# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What systemd shows of a unit: whether it runs, starts at boot, and has read its files. PRIVATE to the collection."""

from __future__ import annotations

import os
import time
import typing as t

SHOWN = ("Id", "LoadState", "ActiveState", "UnitFileState", "WantedBy", "RequiredBy", "TriggeredBy",
         "StateChangeTimestampMonotonic")
_PULLS = ("WantedBy", "RequiredBy", "TriggeredBy")
Unit = t.Mapping[str, str]


def is_active(unit: Unit) -> bool:
    """Whether it runs."""
    return unit.get("ActiveState") in ("active", "reloading")


def at_boot(unit: Unit) -> str | None:
    """C(yes) where it is enabled or another unit pulls it in, C(no), C(masked), or None where that cannot be told."""
    state = unit.get("UnitFileState", "")
    if "masked" in (unit.get("LoadState"), state):
        return "masked"
    if state.startswith("enabled") or any(unit.get(name) for name in _PULLS):
        return "yes"
    return "no" if state == "disabled" else None


def is_stale(paths: t.Iterable[str], unit: Unit) -> bool | None:
    """Whether one of the files has changed since the unit was started, or told to read them, last.

    None where it does not run or systemd does not say since when. The change of the inode counts, as a file that is
    moved keeps the time of its content.
    """
    shown = unit.get("StateChangeTimestampMonotonic", "")
    since = int(shown) / 1_000_000 if shown.isdecimal() and len(shown) <= 20 else 0
    if not is_active(unit) or not since:
        return None
    now = time.time()
    started = now - (time.monotonic() - since)
    # A time to come was noted when the clock was wrong.
    return any(started < changed <= now for changed in map(_changed, paths))


def _changed(path: str) -> float:
    try:
        return os.stat(path).st_ctime
    except OSError:
        return 0
