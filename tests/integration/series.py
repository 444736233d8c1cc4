# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Several plays with task files of roles in one run of ansible-playbook, which starts and packs the modules once."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tests.integration import user
from tests.integration.conftest import LabHosts

FIRST, THEN = "first", "then"


@dataclass(frozen=True)
class Play:
    """A play with one task file of the role. first, then: shell scripts on the host before and after it, also in check
    mode.

    role, hosts: those of the series if empty.
    """

    variables: Mapping[str, Any] = field(default_factory=dict)
    tasks: str = "host"
    check: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    first: str = ""
    then: str = ""
    role: str = ""
    hosts: str = ""

    def again(self, then: str = "") -> Play:
        """The same play again, without its scripts."""
        return replace(self, check=False, first="", then=then)


@dataclass
class Done(user.Run):
    """The result of one play. said: the output of the script after the role; before: the output of the script before
    the role, by host."""

    said: str = ""
    before: Mapping[str, str] = field(default_factory=dict)

    def parts(self, host: str) -> list[str]:
        """The output of the script before the role on a host, split at lines of C(======)."""
        return [part.strip() for part in self.before[host].split("======\n")]


def _script(name: str, text: str) -> list[dict[str, Any]]:
    task = {"name": name, "ansible.builtin.raw": {"_raw_params": f"{{% raw %}}{text}{{% endraw %}}"},
            "check_mode": False, "vars": {"ansible_ssh_use_tty": False}}
    return [task] if text else []


def _play(number: int, role: str, host: str, play: Play) -> dict[str, Any]:
    return {"name": str(number), "hosts": play.hosts or host, "gather_facts": False, "check_mode": play.check,
            "vars": dict(play.variables),
            "tasks": [*_script(FIRST, play.first),
                      # A play whose role failed does not keep the host from the next one.
                      {"block": [{"ansible.builtin.import_role": {"name": f"gpuops.nvidia.{play.role or role}",
                                                                  "tasks_from": play.tasks}}],
                       "rescue": [{"ansible.builtin.meta": "noop"}], "ignore_unreachable": True,
                       "environment": dict(play.environment)},
                      *_script(THEN, play.then)]}


def series(lab: LabHosts, host: str, role: str, plays: Sequence[Play]) -> list[Done]:
    """Runs the plays one after another, and continues after a failed one; returns the result of each. A script that
    fails ends the series."""
    path = user.HOME / f"series-{os.getpid()}.json"
    path.write_text(json.dumps([_play(number, role, host, play) for number, play in enumerate(plays)]))
    run = user.ansible("ansible-playbook", *(f"-i{inventory}" for inventory in lab.hosts), str(path),
                       timeout=600 + 120 * len(plays))
    path.unlink()
    found = []
    for number, play in enumerate(plays):
        lines = [line for line in run.results if line["play"] == str(number)]
        scripts = [line for line in lines if line["task"] in (FIRST, THEN)]
        wanted = {(name, 0) for name, text in ((FIRST, play.first), (THEN, play.then)) if text}
        assert {(line["task"], line["result"].get("rc")) for line in scripts} == wanted, run.output
        own = [line for line in lines if line not in scripts]
        assert own, run.output
        failed = any(line["kind"] in ("failed", "unreachable") for line in own)
        first, then = ({line["host"]: line["result"]["stdout"] for line in scripts if line["task"] == name}
                       for name in (FIRST, THEN))
        found.append(Done(int(failed), run.output, own, next(iter(then.values()), ""), first))
    return found


def run(lab: LabHosts, *plays: Play) -> list[Done]:
    """Runs plays that name their roles, by default on all hosts of the lab."""
    return series(lab, "all", "", plays)


def well(lab: LabHosts, *plays: Play) -> list[Done]:
    """The same, but all plays must succeed."""
    found = run(lab, *plays)
    for done in found:
        assert done.rc == 0, done.output
    return found
