# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads what scontrol, sinfo and squeue print about a node, and the mark of this collection in its reason. Pure.
PRIVATE.

The text form is read, because packages of Slurm such as those of Debian 12 (22.05) are built without JSON, and because
the keys of the JSON differ between releases.
"""

from __future__ import annotations

import re
import typing as t
from dataclasses import dataclass

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError, InputError

# Without the characters of a list of nodes (commas, brackets), and without a dash at the beginning, which would be an
# option of a program.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@$-]{0,63}")
# Slurm prints a state as IDLE+DRAIN, until release 21.08 with an asterisk for a node that does not respond.
_STATE = re.compile(r"[A-Z_]+\*?(\+[A-Z_]+\*?){0,31}")
_SIGNED = re.compile(r"^(?P<text>.*) \[[^\[\]]{1,80}@[^\[\]@]{1,40}\]$")
# Slurm appends further reasons with " : " (since 23.02), so a former reason has doubled colons instead.
_MARK = re.compile(r"gpuops: (?P<failed>failed: )?(?P<what>.{1,400}?) \(run (?P<run>[^ ()]{1,320})\)"
                   r"( was down: (?P<former>.{0,500}?))?( : .{0,2000})?")
_BY_SLURM = frozenset({"REBOOT_ISSUED", "REBOOT_REQUESTED", "REBOOT", "POWERING_UP", "POWERING_DOWN", "POWERED_DOWN",
                       "POWER_UP", "POWER_DOWN"})
_LONGEST = 400
_SHOWN = 10  # jobs that a message names
_JOBS = 100_000


@dataclass(frozen=True)
class Mark:
    """The reason with which this collection drains a node.

    what: what is changed, or why the change has failed. run: the run of Ansible, without spaces and parentheses.
    former: the reason of a node that was DOWN before and stays so, None for a node that was in service.
    """

    what: str
    run: str
    failed: bool = False
    former: str | None = None

    @property
    def text(self) -> str:
        """The reason for Slurm, which L(read) parses."""
        down = "" if self.former is None else f" was down: {plain(self.former).replace(' : ', ' :: ')}"
        what = plain(self.what).replace("(run ", "[run ") or "a change"
        return f"gpuops: {'failed: ' if self.failed else ''}{what} (run {self.run}){down}"

    @classmethod
    def read(cls, reason: str) -> Mark | None:
        """Parses a reason; None if somebody else has given it."""
        found = _MARK.fullmatch(reason)
        if found is None:
            return None
        former = found["former"]
        return cls(found["what"], found["run"], bool(found["failed"]),
                   None if former is None else former.replace(" :: ", " : "))

    def is_of(self, run: str) -> bool:
        """Whether this run has set the mark, even at another time (after the @)."""
        return self.run.partition("@")[0] == run.partition("@")[0]


@dataclass(frozen=True)
class SlurmNode:
    """A node. name: in Slurm; host: its NodeHostName; states: such as IDLE, DRAIN, NOT_RESPONDING; reason: without the
    user and the time that Slurm appends, empty if there is none."""

    name: str
    host: str
    states: t.FrozenSet[str]
    reason: str

    @property
    def drained(self) -> bool:
        """Whether it was taken out of service, so that no job can start on it."""
        return bool(self.states & {"DRAIN", "FAIL"})

    @property
    def busy(self) -> str:
        """The state in which Slurm itself reboots its host or switches it on or off, empty if it does not."""
        return ", ".join(sorted(self.states & _BY_SLURM))

    @property
    def down(self) -> bool:
        """Whether it is DOWN, which ends its jobs."""
        return "DOWN" in self.states

    @property
    def responds(self) -> bool:
        """Whether slurmd answers slurmctld, and has the resources that slurm.conf states."""
        return not self.states & {"NOT_RESPONDING", "INVALID_REG"}

    @property
    def has_jobs(self) -> bool:
        """Whether a job has resources of it, or is about to release them."""
        return bool(self.states & {"ALLOCATED", "MIXED", "COMPLETING"})

    @property
    def mark(self) -> Mark | None:
        """The mark of this collection, None if the node is not drained or somebody else has drained it."""
        return Mark.read(self.reason) if "DRAIN" in self.states else None


@dataclass(frozen=True)
class Job:
    """A job. number: its ID; state: such as RUNNING; user: its owner."""

    number: str
    state: str
    user: str

    @property
    def text(self) -> str:
        """For messages."""
        return f"job {self.number} of {self.user} ({self.state.lower()})"


def plain(text: str) -> str:
    """A text as Slurm and a terminal can take it: printable ASCII on one line, cut to 400 characters."""
    words = " ".join(re.sub(r"[^ -~]", " ", text).split())
    return words if len(words) <= _LONGEST else f"{words[:_LONGEST - 3]}..."


def checked_name(name: str) -> str:
    """The name, which may be an argument of scontrol. Raises InputError."""
    if not _NAME.fullmatch(name):
        raise InputError(f"{plain(name)!r} is not the name of one node of Slurm.",
                         "Set gpu_slurm_node_name to the NodeName in slurm.conf, such as gpu-1.", path="node",
                         value=plain(name), allowed="letters, digits, dots, dashes and underscores")
    return name


def candidates(name: str) -> list[str]:
    """The names by which a host is looked up: its name, and its name up to the first dot."""
    short = name.partition(".")[0]
    return [name] if short == name or short.isdigit() else [name, short]  # not the first part of an IP address


def read_node(text: str) -> SlurmNode:
    """Parses the output of C(scontrol show node NAME). Raises HostError if it is not that of one node.

    Each field that is read has its own place: at the beginning of a line, or behind the address of the node. The texts
    of operators (Reason, Comment) are at the end of the output and on lines of their own.
    """
    lines = [line.strip() for line in text.splitlines()]
    starts = [line for line in lines if line.startswith("NodeName=")]
    fields: dict[str, str] = {}
    for line in lines:
        key, _equals, value = line.partition("=")
        if key in ("NodeName", "NodeAddr", "State", "Reason"):
            fields.setdefault(key, value)
    name = fields.get("NodeName", "").split(" ")[0]
    states = fields.get("State", "").split(" ")[0]
    host = re.search(r" NodeHostName=(\S+)", f" {fields.get('NodeAddr', '')}")
    if len(starts) != 1 or not _NAME.fullmatch(name) or not _STATE.fullmatch(states):
        raise HostError(f"scontrol prints a node in a form that is not known: {plain(text)}.",
                        "Slurm 20.11 and newer are known. Compare with: scontrol show node.")
    found = {one.rstrip("*") for one in states.split("+")} | ({"NOT_RESPONDING"} if "*" in states else set())
    signed = _SIGNED.match(fields.get("Reason", ""))
    return SlurmNode(name, plain(host[1]) if host else "", frozenset(found),
                     signed["text"] if signed else fields.get("Reason", ""))


def find_by_host(text: str, names: t.Sequence[str]) -> str:
    """The node whose NodeHostName is one of names. text: the output of C(sinfo --format=%n|%N).

    Raises HostError if there is none or several.
    """
    rows = [line.strip().split("|") for line in text.splitlines()]
    found = sorted({row[1] for row in rows if len(row) == 2 and row[0] in names and _NAME.fullmatch(row[1])})
    if len(found) != 1:
        several = f"the nodes {', '.join(found)} of Slurm" if found else "no node of Slurm"
        raise HostError(f"The host {plain(names[0])} is {several}.",
                        "Set gpu_slurm_node_name of the host to its NodeName in slurm.conf; if it is not a node of "
                        "Slurm, set gpu_slurm: false for it.")
    return found[0]


def read_jobs(text: str) -> list[Job]:
    """Parses the output of C(squeue --format=%A|%T|%u), without lines that are not jobs. Names of users are checked,
    because a directory service defines them."""
    found = []
    for line in text.splitlines()[:_JOBS]:
        number, _bar, rest = line.strip().partition("|")
        state, _bar, user = rest.partition("|")
        if re.fullmatch(r"\d{1,12}", number):
            found.append(Job(number, state if re.fullmatch(r"[A-Z_]{1,32}", state) else "UNKNOWN",
                             user if _USER.fullmatch(user) else "an unknown user"))
    return found


def named(jobs: t.Sequence[Job]) -> str:
    """The jobs for a message: at most ten of them."""
    more = f" and {len(jobs) - _SHOWN} more" if len(jobs) > _SHOWN else ""
    return ", ".join(job.text for job in jobs[:_SHOWN]) + more
