# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compares a run on hosts that forge their answers with the same run on a sound host alone."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.integration import user
from tests.integration.hostile import forged

Data = dict[str, Any]
# What of the plan every host shares.
SHARED = ("release", "policy", "disruption", "placement", "cluster", "strict", "kubeconfig", "exported")


def beside(sound: str, run: user.Run, alone: user.Run, hosts: Iterable[str]) -> None:
    """Checks that the run did the same to the sound host as the run on it alone, and obeyed no other host."""
    found = forged.OBEYED.search(run.output)
    assert found is None, repr(run.output[max(0, found.start() - 300):found.start() + 100])
    at = run.output.find("Traceback")
    assert at < 0, run.output[max(0, at - 2000):at + 2000]
    assert not Path(forged.CANARY).exists()
    assert {line["host"] for line in run.results} <= {sound, *hosts}
    assert done(sound, run) == done(sound, alone), run.output[-6000:]
    assert _plan_of(sound, run) == _plan_of(sound, alone)


def done(sound: str, run: user.Run) -> list[tuple[Any, ...]]:
    """What was done on the sound host, in order. It omits tasks for the whole play, which are attributed to its first
    host, and tasks that end the run because of findings on any host."""
    return [(line["play"], line["task"], line["kind"], line["result"].get("changed"), line["result"].get("plan"))
            for line in run.of(sound) if line["action"] not in (*user.ON_CONTROLLER, "ansible.builtin.fail")]


def plan(run: user.Run) -> Data:
    """The plan of all hosts, or its substitute if the playbook makes no plan."""
    found: Data = next(line["result"] for line in run.results if line["action"] == "gpuops.nvidia.gpu_policy")
    return found


def _plan_of(sound: str, run: user.Run) -> Data:
    found = plan(run)
    return {**{key: found[key] for key in SHARED if key in found}, "mine": (found.get("hosts") or {}).get(sound)}
