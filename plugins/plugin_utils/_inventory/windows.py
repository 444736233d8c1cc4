# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The variable gpu_maintenance_windows: when a run may begin what disturbs a host or a Node. Pure. PRIVATE.

A window opens at a local time on some days of the week, and stays open for a number of hours that really pass: on the
nights in which the clocks change, it closes an hour earlier or later by the clock. A start that the change of clocks
skips (02:30 in the spring) is an hour later (03:30), and of a start that comes twice the first one counts. Windows that
overlap or follow each other directly are one.

All times are in seconds since 1970. The caller passes the present time, so that this file has no clock.
"""

from __future__ import annotations

import math
import re
import typing as t
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError, nearest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.schema import shown
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

VARIABLE = "gpu_maintenance_windows"
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
ALL = "all"
_KEYS = ("days", "start", "hours", "timezone")
_MOST, _WEEK = 100, 168  # windows; hours
_START = re.compile(r"(?:[01][0-9]|2[0-3]):[0-5][0-9]")
_HOURS = re.compile(r"[0-9]{1,3}(?:\.[0-9]{1,6})?")
_FORM = "{days: [sat, sun], start: '22:00', hours: 6, timezone: Europe/Berlin}"


@dataclass(frozen=True)
class Window:
    """A window. days: from DAYS; start: C(HH:MM); hours: more than 0, at most a week; timezone: its IANA name."""

    days: t.Tuple[str, ...]
    start: str
    hours: float
    timezone: str

    def as_dict(self) -> dict[str, t.Any]:
        """The window in the plan, which L(parse) reads, too."""
        return {"days": list(self.days), "start": self.start, "hours": self.hours, "timezone": self.timezone}

    def around(self, now: float) -> t.Iterator[tuple[float, float]]:
        """C((opens, closes)) of each time that the window is open, from a week before now to eight days after it."""
        zone = ZoneInfo(self.timezone)
        today = datetime.fromtimestamp(now, zone)
        for days in range(-8, 9):
            day = today.date() + timedelta(days)
            if DAYS[day.weekday()] in self.days:
                hour, minute = map(int, self.start.split(":"))
                opens = datetime(day.year, day.month, day.day, hour, minute, tzinfo=zone).timestamp()
                yield opens, opens + self.hours * 3600


Windows = t.Sequence[Window]


def parse(given: object, path: str = VARIABLE) -> tuple[Window, ...]:
    """The windows of the variable; none if it is not set, or an empty list. Raises InputError with the path of the
    wrong value."""
    if given is None:
        return ()
    if not isinstance(given, (list, tuple)):
        raise InputError(f"a list of windows is expected, not {shown(given)}.", f"Write a list such as [{_FORM}], or "
                         "[] for no windows.", path=path, value=given)
    if len(given) > _MOST:
        raise InputError(f"it has {len(given)} windows.", "Remove some of them.", path=path, value=len(given),
                         allowed=f"at most {_MOST} windows")
    return tuple(_window(one, f"{path}[{index}]") for index, one in enumerate(given))


def _window(given: object, path: str) -> Window:
    if not isinstance(given, t.Mapping):
        raise InputError(f"a window is expected, not {shown(given)}.", f"Write {_FORM}.", path=path, value=given)
    for key in given:
        if key not in _KEYS:
            near = nearest(str(key), _KEYS)
            raise InputError("a window has no such key.", f"Did you mean {near}?" if near else "Remove it.",
                             path=f"{path}.{key}", value=given[key], allowed=[*_KEYS])
    for key in ("start", "hours"):
        if given.get(key) is None:
            raise InputError("it is not set.", f"Write a window such as {_FORM}.", path=f"{path}.{key}")
    return Window(_days(given.get("days", ALL), f"{path}.days"), _start(given["start"], f"{path}.start"),
                  _hours(given["hours"], f"{path}.hours"), _zone(given.get("timezone", "UTC"), f"{path}.timezone"))


def _days(given: object, path: str) -> tuple[str, ...]:
    asked = [given] if isinstance(given, str) else given
    if not isinstance(asked, (list, tuple)) or not asked:
        raise InputError(f"a list of days is expected, not {shown(given)}.", f"Write a list such as [sat, sun], or "
                         f"{ALL}.", path=path, value=given, allowed=[*DAYS, ALL])
    for one in asked:
        if one not in (*DAYS, ALL):
            raise InputError(f"{shown(one)} is not a day.", f"Write {', '.join(DAYS)} or {ALL}.", path=path, value=one,
                             allowed=[*DAYS, ALL])
    return tuple(day for day in DAYS if day in asked or ALL in asked)


def _start(given: object, path: str) -> str:
    if not isinstance(given, str) or not _START.fullmatch(given):
        # YAML reads 22:00 without quotes as the number 1320.
        raise InputError(f"{shown(given)} is not a time of the day.", "Write hours and minutes in quotes, such as "
                         "'22:00' or '04:30'.", path=path, value=given, allowed="'00:00' to '23:59'")
    return given


def _hours(given: object, path: str) -> float:
    text = str(given)
    hours = float(text) if not isinstance(given, bool) and _HOURS.fullmatch(text) else 0.0
    if not 0 < hours <= _WEEK:
        raise InputError(f"{shown(given)} is not a number of hours.", "Write how long the window is open, such as 6 or "
                         "1.5.", path=path, value=given, allowed=f"more than 0, at most {_WEEK}")
    return hours


def _zone(given: object, path: str) -> str:
    allowed = "a name of the IANA time zone database, such as Europe/Berlin or UTC"
    try:
        if not isinstance(given, str):
            raise ValueError
        ZoneInfo(given)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        known = available_timezones()
        near = nearest(given, known) if isinstance(given, str) else ""
        raise InputError(f"the controller knows no time zone {shown(given)}.",
                         f"Did you mean {near}?" if near else f"Write {allowed}." if known else
                         "The controller has no time zone database: install the Python package tzdata.",
                         path=path, value=given, allowed=allowed) from None
    return given


def closes_at(windows: Windows, now: float) -> float | None:
    """When the windows close, None if they are closed now, C(math.inf) if they do not close within a week. Without
    windows they never close."""
    if not windows:
        return math.inf
    times = sorted(found for one in windows for found in one.around(now))
    end = now
    for opens, closes in times:
        if opens <= end:
            end = max(end, closes)
    return None if end <= now else math.inf if end - now > _WEEK * 3600 else end


def opens_at(windows: Windows, now: float) -> tuple[float, Window]:
    """(the next time at which one of the windows opens, this window). There must be a window."""
    return min(((opens, one) for one in windows for opens, _closes in one.around(now) if opens > now),
               key=lambda found: found[0])


def closed(windows: Windows, now: float) -> str:
    """Why nothing is begun now, as a part of a sentence; empty if a window is open."""
    if closes_at(windows, now) is not None:
        return ""
    return f"the maintenance windows are closed until {opening(windows, now)}"


def opening(windows: Windows, now: float) -> str:
    """The next time at which one of the windows opens, such as C(Sat 2026-11-28 22:00 (Europe/Berlin)), in the zone of
    the window."""
    at, window = opens_at(windows, now)
    return _text(at, window.timezone)


def closing(windows: Windows, at: float) -> str:
    """A time at which the windows close, in the zone of the first window."""
    return _text(at, windows[0].timezone)


def stamp(at: float) -> str:
    """A time for programs, such as C(2026-11-28T21:00:00Z)."""
    return datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def note(windows: Windows, now: float) -> str:
    """A sentence about the windows for the plan; empty if there are none, or if they do not close within a week."""
    closes = closes_at(windows, now)
    if closes is None:
        return (f"{VARIABLE}: {closed(windows, now)}. Until then, no host or Node is begun that the run would disturb; "
                "what an earlier run has begun is finished.")
    return "" if closes == math.inf else (f"{VARIABLE}: a maintenance window is open until {closing(windows, closes)}. "
                                          "After that, no further host or Node is begun that the run would disturb.")


def _text(at: float, zone: str) -> str:
    local = datetime.fromtimestamp(at, ZoneInfo(zone))
    return f"{DAYS[local.weekday()].capitalize()} {local:%Y-%m-%d %H:%M} ({zone})"
