# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Evaluates properties of a systemd unit: whether it runs, starts at boot, and has read its files. PRIVATE."""

from __future__ import annotations

import os
import time
import typing as t

SHOWN = ("Id", "LoadState", "ActiveState", "UnitFileState", "WantedBy", "RequiredBy", "TriggeredBy",
         "StateChangeTimestampMonotonic")
# The properties of a unit, as C(systemctl show) prints them.
Unit = t.Mapping[str, str]


def is_active(unit: Unit) -> bool:
    """Whether the unit runs."""
    return unit.get("ActiveState") in ("active", "reloading")


def triggers(unit: Unit, units: t.Mapping[str, Unit]) -> list[Unit]:
    """The units that start this one on demand, such as a socket. units: by name, of which the others are omitted."""
    return [units[name] for name in unit.get("TriggeredBy", "").split() if name in units]


def at_boot(unit: Unit, on_demand: t.Iterable[Unit] = ()) -> str | None:
    """C(yes) if the unit, or one of those that start it on demand, is enabled, or another unit starts it; C(no),
    C(masked), or None if unknown."""
    state = unit.get("UnitFileState", "")
    if "masked" in (unit.get("LoadState"), state):
        return "masked"
    if state.startswith("enabled") or unit.get("WantedBy") or unit.get("RequiredBy"):
        return "yes"
    if any(at_boot(trigger) == "yes" for trigger in on_demand):
        return "yes"
    return "no" if state == "disabled" else None


def is_stale(paths: t.Iterable[str], unit: Unit) -> bool | None:
    """Whether one of the files has changed since the unit was last started or reloaded.

    None if the unit does not run, or systemd does not report the time. The ctime of the files is compared, because a
    moved file keeps its mtime.
    """
    shown = unit.get("StateChangeTimestampMonotonic", "")
    since = int(shown) / 1_000_000 if shown.isdecimal() and len(shown) <= 20 else 0
    if not is_active(unit) or not since:
        return None
    now = time.time()
    started = now - (time.monotonic() - since)
    # Times in the future are ignored: they were written while the clock was wrong.
    return any(started < changed <= now for changed in map(_changed, paths))


def _changed(path: str) -> float:
    try:
        return os.stat(path).st_ctime
    except OSError:
        return 0
