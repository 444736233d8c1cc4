# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Maintenance windows of hosts: outside of them a run succeeds, changes nothing that disturbs, and names who waits."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from tests.integration import user
from tests.integration.conftest import LabHosts, own_lab

HOSTS = ("gpu-w1", "gpu-w2")
FIRST, SECOND = "580.126.20", "595.91.07"
POLICY = {"driver": {"enabled": True, "version": FIRST}, "toolkit": {"enabled": False}, "dcgm": {"enabled": False},
          "dcgmExporter": {"enabled": False}, "gfd": {"enabled": False}, "migManager": {"enabled": False}}
# Three days from now, which is closed for as long as a test may take, and always.
DAY = datetime.now(timezone.utc) + timedelta(days=3)
CLOSED = [{"days": [f"{DAY:%a}".lower()], "start": "12:00", "hours": 1}]
UNTIL = f"the maintenance windows are closed until {DAY:%a %Y-%m-%d} 12:00 (UTC)"
OPEN = [{"start": "00:00", "hours": 24}]


@pytest.fixture(scope="module")
def lab() -> Iterator[LabHosts]:
    """Two hosts with the first driver. With windows, a first installation is made at any time: it disturbs nothing."""
    with own_lab("windows", ",".join(f"{host}=a100-80:1" for host in HOSTS)) as hosts:
        first = user.playbook("site", hosts.hosts, gpu_policy=POLICY, gpu_disruption="drain",
                              gpu_maintenance_windows=CLOSED)
        assert first.rc == 0, first.output
        yield hosts


def run(lab: LabHosts, name: str, windows: Any, *words: str) -> user.Run:
    return user.playbook(name, lab.hosts, *words, gpu_policy=POLICY, gpu_disruption="drain", driver_version=SECOND,
                         gpu_maintenance_windows=windows)


def drivers(lab: LabHosts) -> list[str]:
    """The versions of the loaded drivers."""
    return [lab.sh(host, "cat /sys/module/nvidia/version").strip() for host in HOSTS]


def test_hosts_wait_for_the_window(lab: LabHosts) -> None:
    """In both playbooks, and in check mode. In the window, both hosts are changed."""
    marks = ("dpkg-query -W; systemctl show -p MainPID containerd nvidia-persistenced; "
             "find /etc -newer /proc/1 -type f | sort")
    before = [lab.sh(host, marks) for host in HOSTS]
    for name, words in (("site", ()), ("upgrade", ()), ("upgrade", ("--check",))):
        done = run(lab, name, CLOSED, *words)
        said = " ".join(done.output.split())
        assert done.rc == 0, done.output
        assert all(done.changed(host) == [] and done.steps(host) == {} for host in HOSTS), done.output
        assert drivers(lab) == [FIRST, FIRST] and [lab.sh(host, marks) for host in HOSTS] == before
        assert f"gpu_maintenance_windows: {UNTIL}" in said, done.output
        later = {line["host"]: line["result"]["ansible_facts"]["maintenance_later"] for line in done.results
                 if "maintenance_later" in (line["result"].get("ansible_facts") or {})}
        assert later == dict.fromkeys(HOSTS, UNTIL)
        report = said.rpartition("GPU hosts")[2]
        assert report.count(UNTIL) == 2 and "gpu_disruption" not in report, done.output

    done = run(lab, "site", OPEN)
    assert done.rc == 0 and drivers(lab) == [SECOND, SECOND], done.output
    for name in ("site", "upgrade"):
        done = run(lab, name, CLOSED)
        assert done.rc == 0 and all(done.changed(host) == [] for host in HOSTS), done.output
        assert UNTIL not in " ".join(done.output.split()).rpartition("GPU hosts")[2]


def test_a_wrong_window_is_refused_before_anything_is_changed(lab: LabHosts) -> None:
    before = drivers(lab)
    done = run(lab, "upgrade", [{**CLOSED[0], "timezone": "Europe/Berln"}])
    assert done.rc != 0 and drivers(lab) == before and all(done.steps(host) == {} for host in HOSTS)
    assert ("gpu_maintenance_windows[0].timezone: the controller knows no time zone 'Europe/Berln'. Did you mean "
            "Europe/Berlin?") in " ".join(done.output.split()), done.output
