# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""When maintenance windows are open: nights, weeks, time zones and their clock changes, and values that are refused."""

from __future__ import annotations

import math
from datetime import datetime, timezone
from typing import Any

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.gpuops.nvidia.plugins.filter.closed_windows import FilterModule
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory import windows

NIGHT = {"days": ["sat"], "start": "22:00", "hours": 6, "timezone": "Europe/Berlin"}


def at(text: str) -> float:
    """A time in UTC (C(2026-11-28 21:00)) as seconds since 1970."""
    return datetime.strptime(text, "%Y-%m-%d %H:%M").replace(tzinfo=timezone.utc).timestamp()


def closes(now: str, *given: dict[str, Any]) -> str | None:
    """When the windows close, None if they are closed."""
    found = windows.closes_at(windows.parse(list(given)), at(now))
    return None if found is None else "never" if found == math.inf else windows.stamp(found)


def opens(now: str, *given: dict[str, Any]) -> str:
    """When the next window opens."""
    return windows.stamp(windows.opens_at(windows.parse(list(given)), at(now))[0])


def test_a_window_over_midnight_is_on_the_day_on_which_it_opens() -> None:
    """Saturday, 2026-11-28, 22:00 in Berlin is 21:00 UTC."""
    assert closes("2026-11-28 20:59", NIGHT) is None
    assert closes("2026-11-28 21:00", NIGHT) == closes("2026-11-29 02:59", NIGHT) == "2026-11-29T03:00:00Z"
    assert closes("2026-11-29 03:00", NIGHT) is None  # the time at which it closes is not in it
    assert closes("2026-11-29 21:00", NIGHT) is None  # Sunday


def test_the_next_opening_may_be_in_the_next_week() -> None:
    assert opens("2026-11-28 20:59", NIGHT) == "2026-11-28T21:00:00Z"
    assert opens("2026-11-28 21:00", NIGHT) == opens("2026-11-29 03:00", NIGHT) == "2026-12-05T21:00:00Z"
    assert opens("2026-12-31 23:00", NIGHT) == "2027-01-02T21:00:00Z"


def test_hours_really_pass_when_the_clocks_go_forward() -> None:
    """2026-03-29, 02:00 becomes 03:00: the window of six hours ends at 05:00 by the clock."""
    assert closes("2026-03-28 21:00", NIGHT) == "2026-03-29T03:00:00Z"
    assert "05:00 (Europe/Berlin)" in windows.note(windows.parse([NIGHT]), at("2026-03-28 22:00"))
    skipped = {**NIGHT, "days": ["sun"], "start": "02:30", "hours": 1}
    assert closes("2026-03-29 01:29", skipped) is None and closes("2026-03-29 01:30", skipped) == "2026-03-29T02:30:00Z"
    assert "Sun 2026-03-29 03:30 (Europe/Berlin)" in windows.closed(windows.parse([skipped]), at("2026-03-28 12:00"))
    assert opens("2026-03-29 02:30", skipped) == "2026-04-05T00:30:00Z"


def test_hours_really_pass_when_the_clocks_go_back() -> None:
    """2026-10-25, 03:00 becomes 02:00: the window ends at 03:00 by the clock. A start that comes twice counts once."""
    assert closes("2026-10-24 20:00", NIGHT) == "2026-10-25T02:00:00Z"
    assert "03:00 (Europe/Berlin)" in windows.note(windows.parse([NIGHT]), at("2026-10-24 21:00"))
    twice = {**NIGHT, "days": ["sun"], "start": "02:30", "hours": 0.5}
    assert closes("2026-10-25 00:30", twice) == "2026-10-25T01:00:00Z" and closes("2026-10-25 01:30", twice) is None


def test_windows_that_overlap_or_follow_each_other_are_one() -> None:
    morning = {"days": ["sun"], "start": "04:00", "hours": 2, "timezone": "Europe/Berlin"}
    assert closes("2026-11-28 22:00", NIGHT, morning) == closes("2026-11-28 22:00", morning, NIGHT) \
        == "2026-11-29T05:00:00Z"
    inside = {**NIGHT, "start": "23:00", "hours": 1}
    assert closes("2026-11-28 22:30", inside, NIGHT) == "2026-11-29T03:00:00Z"


@pytest.mark.parametrize("given", [
    [], [{"start": "00:00", "hours": 24}], [{"days": "all", "start": "12:00", "hours": 24.5}],
    [{"days": ["wed"], "start": "00:00", "hours": 168}]])
def test_no_windows_or_windows_without_a_gap_never_close(given: list[dict[str, Any]]) -> None:
    assert closes("2026-11-28 22:00", *given) == "never"
    assert windows.note(windows.parse(given), at("2026-11-28 22:00")) == ""
    assert windows.closed(windows.parse(given), at("2026-11-28 22:00")) == ""


def test_a_window_as_long_as_a_week_reaches_to_its_next_start() -> None:
    long = {"days": ["wed"], "start": "08:00", "hours": 167}
    assert closes("2026-12-02 06:59", long) == "2026-12-02T07:00:00Z" and closes("2026-12-02 07:30", long) is None


def test_the_plan_says_when_windows_open_or_close() -> None:
    given = windows.parse([NIGHT])
    assert windows.note(given, at("2026-11-28 12:00")) == (
        "gpu_maintenance_windows: the maintenance windows are closed until Sat 2026-11-28 22:00 (Europe/Berlin). Until "
        "then, no host or Node is begun that the run would disturb; what an earlier run has begun is finished.")
    assert windows.note(given, at("2026-11-28 22:00")) == (
        "gpu_maintenance_windows: a maintenance window is open until Sun 2026-11-29 04:00 (Europe/Berlin). After that, "
        "no further host or Node is begun that the run would disturb.")


def test_defaults_and_the_form_in_the_plan() -> None:
    short = windows.parse([{"start": "04:30", "hours": "1.5"}])
    assert short == (windows.Window(windows.DAYS, "04:30", 1.5, "UTC"),)
    assert windows.parse([one.as_dict() for one in short]) == short
    assert windows.parse([{"days": ["sun", "mon", "mon"], "start": "00:00", "hours": 1}])[0].days == ("mon", "sun")
    assert windows.parse(None) == windows.parse([]) == ()


@pytest.mark.parametrize(("given", "path", "message", "hint"), [
    ("22:00", "", "a list of windows is expected", "[{days: [sat, sun], start: '22:00'"),
    ("", "", "a list of windows is expected", "[] for no windows"),
    ("[]", "", "a list of windows is expected, not '[]'", "[] for no windows"),
    (NIGHT, "", "a list of windows is expected", "such as [{"),
    ([NIGHT] * 101, "", "it has 101 windows", "Remove some"),
    (["22:00"], "[0]", "a window is expected, not '22:00'", "{days: [sat, sun]"),
    ([NIGHT, {**NIGHT, "hour": 2}], "[1].hour", "a window has no such key", "Did you mean hours?"),
    ([{**NIGHT, 1: 2}], "[0].1", "a window has no such key", "Remove it."),
    ([{"start": "22:00"}], "[0].hours", "it is not set", "hours: 6"),
    ([{"hours": 1}], "[0].start", "it is not set", "start: '22:00'"),
    ([{**NIGHT, "days": ["sat", "saturday"]}], "[0].days", "'saturday' is not a day", "sat, sun or all."),
    ([{**NIGHT, "days": [6]}], "[0].days", "6 is not a day", "Write mon, tue"),
    ([{**NIGHT, "days": "weekend"}], "[0].days", "'weekend' is not a day", "Write mon, tue"),
    ([{**NIGHT, "days": []}], "[0].days", "a list of days is expected", "such as [sat, sun]"),
    ([{**NIGHT, "days": {"sat": 1}}], "[0].days", "a list of days is expected", "such as [sat, sun]"),
    ([{**NIGHT, "start": 1320}], "[0].start", "1320 is not a time of the day", "in quotes"),
    ([{**NIGHT, "start": "24:00"}], "[0].start", "'24:00' is not a time", "'22:00'"),
    ([{**NIGHT, "start": "9:00"}], "[0].start", "'9:00' is not a time", "'04:30'"),
    ([{**NIGHT, "start": "22:00\n"}], "[0].start", "is not a time", "'04:30'"),
    *[([{**NIGHT, "hours": hours}], "[0].hours", "is not a number of hours", "such as 6")
      for hours in (0, -1, 168.5, 1000, True, "six", "1e2", math.nan, math.inf, [6], {})],
    ([{**NIGHT, "timezone": "Europe/Berln"}], "[0].timezone", "no time zone 'Europe/Berln'",
     "Did you mean Europe/Berlin?"),
    ([{**NIGHT, "timezone": "/etc/passwd"}], "[0].timezone", "knows no time zone", ""),
    ([{**NIGHT, "timezone": "../../etc/passwd"}], "[0].timezone", "knows no time zone", ""),
    ([{**NIGHT, "timezone": "Europe"}], "[0].timezone", "knows no time zone", ""),
    ([{**NIGHT, "timezone": ""}], "[0].timezone", "knows no time zone", "IANA"),
    ([{**NIGHT, "timezone": 2}], "[0].timezone", "knows no time zone 2", "IANA"),
    ([{**NIGHT, "timezone": "\ud800\0"}], "[0].timezone", "knows no time zone", ""),
])
def test_a_wrong_value_is_refused_with_its_path(given: Any, path: str, message: str, hint: str) -> None:
    with pytest.raises(InputError) as caught:
        windows.parse(given)
    assert caught.value.details["path"] == f"gpu_maintenance_windows{path}"
    assert message in caught.value.message and hint in caught.value.hint


def test_a_controller_without_a_database_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(_key: str) -> None:
        raise windows.ZoneInfoNotFoundError

    monkeypatch.setattr(windows, "ZoneInfo", none)
    monkeypatch.setattr(windows, "available_timezones", set)
    with pytest.raises(InputError, match="install the Python package tzdata"):
        windows.parse([NIGHT])


def test_the_filter_answers_for_a_time_and_for_now() -> None:
    closed = FilterModule().filters()["closed_windows"]
    assert closed([NIGHT], at("2026-11-28 12:00")) == \
        "the maintenance windows are closed until Sat 2026-11-28 22:00 (Europe/Berlin)"
    assert closed([NIGHT], at("2026-11-28 22:00")) == closed([]) == closed([{"start": "00:00", "hours": 24}]) == ""
    with pytest.raises(AnsibleFilterError, match=r"gpu_maintenance_windows\[0\].hours: it is not set"):
        closed([{"start": "22:00"}])
