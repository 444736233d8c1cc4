# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Identifies the Ansible run that holds a Node, and decides whether that run may still be active. PRIVATE."""

from __future__ import annotations

import calendar
import os
import platform
import re
import time
import typing as t
from dataclasses import dataclass

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.errors import ClusterError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.node import NodeState

# The annotation that names the run.
HELD = "gpuops.nvidia/held-by"
# Seconds after which a run on another controller counts as gone: longer than a driver's installation with a reboot.
EXPIRES = 3600
_TIME = "%Y-%m-%dT%H:%M:%SZ"
_TEXT = re.compile(r"([\w.-]{1,253})/(\d{1,10})/(\d{1,20})@([1-9]\d{3}-\d\d-\d\dT\d\d:\d\d:\d\dZ)")


@dataclass(frozen=True)
class Holder:
    """A run. controller: its host name; pid, started: the process of ansible-playbook and its start time from /proc (0
    without /proc); since: when it took hold of the Node, in seconds since 1970."""

    controller: str
    pid: int
    started: int
    since: float

    @classmethod
    def of_run(cls) -> Holder:
        """This run. Ansible forks a process for each task, so the run is the parent process."""
        return cls.of_process(os.getppid())

    @classmethod
    def of_process(cls, pid: int) -> Holder:
        """The run with this process ID, which takes hold of a Node now."""
        return cls(re.sub(r"[^\w.-]", "-", platform.node()) or "unknown", pid, _started(pid), time.time())

    @classmethod
    def read(cls, text: str) -> t.Optional[Holder]:
        """Parses an annotation; None if it is empty or not in the form that L(text) writes."""
        found = _TEXT.fullmatch(text)
        try:
            since = calendar.timegm(time.strptime(found[4], _TIME)) if found else 0.0
        except ValueError:
            return None
        return cls(found[1], int(found[2]), int(found[3]), since) if found else None

    @property
    def text(self) -> str:
        """The value of the annotation."""
        return f"{self.controller}/{self.pid}/{self.started}@{time.strftime(_TIME, time.gmtime(self.since))}"

    def is_same_run(self, other: Holder) -> bool:
        """Whether both are the same run, even if it took hold of its Nodes at different times."""
        return (self.controller, self.pid, self.started) == (other.controller, other.pid, other.started)

    def must_wait_for(self, other: Holder) -> bool:
        """Whether another run may still be active: on this controller while its process exists, on another controller
        until EXPIRES seconds have passed."""
        if self.is_same_run(other):
            return False
        if self.controller == other.controller:
            return _lives(other.pid) and _started(other.pid) == other.started
        return abs(self.since - other.since) < EXPIRES


def holder_of(node: NodeState) -> Holder | None:
    """The run that a Node's annotation names, None if it names none."""
    return Holder.read(node.annotations.get(HELD, ""))


def refuse_held(me: Holder | None, nodes: t.Iterable[NodeState]) -> None:
    """Raises ClusterError if another run holds one of the Nodes. me: this run, None to skip the check."""
    for node in nodes:
        holder = holder_of(node)
        if me and holder and me.must_wait_for(holder):
            raise ClusterError(f"Node {node.name} is held by another run ({holder.text}).",
                               "Wait until it has ended. If it no longer runs, remove the annotation: kubectl annotate "
                               f"node {node.name} {HELD}-", verb="patch", object=f"Node {node.name}", reason="Held")


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return pid > 0


def _started(pid: int) -> int:
    """When a process started, in ticks since the boot (proc(5), the 22nd field of stat); 0 if it is not known."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return int(file.read().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0
