# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Each breakage of a converged host: verify, check and run agree on it, one run mends it, a second does nothing.

Three hosts are broken at a time, each in its own way, and get their converged disks back afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from lab.host import lab as labs
from tests.campaign.breakages import BREAKAGES, Breakage
from tests.integration import user
from tests.integration.conftest import LabHosts, own_lab
from tests.integration.converged import HOSTS, converge

Round = dict[str, Breakage]


def rounds() -> list[Round]:
    """By host its breakage: each breakage once, in as few rounds as its hosts allow."""
    waiting, found = list(BREAKAGES), []
    while waiting:
        now: Round = {}
        for host in HOSTS:
            mine = next((one for one in waiting if one.host == host), None) or next(
                (one for one in waiting if not one.host), None)
            if mine:
                now[host] = mine
                waiting.remove(mine)
        found.append(now)
    return found


@pytest.fixture(scope="module")
def lab() -> Iterator[LabHosts]:
    """The hosts of the demo, converged."""
    user.install()
    with own_lab("campaign", labs.DEFAULT) as made:
        converge(made)
        yield made


def failed(run: user.Run, host: str) -> list[str]:
    """What a run says went wrong on a host."""
    return [str(line["result"].get("msg")) for line in run.of(host) if line["kind"] == "failed"]


def waits(run: user.Run, host: str) -> list[str]:
    """The steps that are pending on a host, previews of the plan left out."""
    return [step["id"] for line in run.of(host) if not line["play"].startswith("Resolve")
            for step in line["result"].get("pending") or () if isinstance(step, dict)]


def faults(lab: LabHosts, broken: Round) -> dict[str, list[str]]:
    """By host and breakage what does not hold."""
    hosts = ",".join(broken)

    def play(name: str, *words: str) -> user.Run:
        return user.playbook(name, lab.wishes, "--limit", hosts, *words)

    for host, one in broken.items():
        lab.sh(host, one.script)
    verified, checked, first = play("verify"), play("site", "--check"), play("site")
    for host, one in broken.items():
        if one.undo:
            lab.sh(host, one.undo)
    again, last = play("site"), play("verify")
    return {f"{host}: {one.name}": [*_broken(host, one, verified, checked, first), *_mended(host, one, again, last)]
            for host, one in broken.items()}


def _broken(host: str, one: Breakage, verified: user.Run, checked: user.Run, first: user.Run) -> list[str]:
    """Of the runs on the broken host."""
    sees, plans = bool(failed(verified, host)), checked.steps(host)
    told, found = failed(checked, host), []
    if sees != bool(plans or waits(checked, host) or told):
        found.append(f"verify {failed(verified, host)}; check {plans} {waits(checked, host)} {told}")
    if one.refused:
        found += [f"not refused by {name}: {failed(run, host)}" for name, run in (("check", checked), ("run", first))
                  if not any(one.refused in text for text in failed(run, host))]
    else:
        found += [f"{name} failed: {failed(run, host)}" for name, run in (("check", checked), ("run", first))
                  if failed(run, host)]
        if plans != first.steps(host):
            found.append(f"check {plans}; run {first.steps(host)}")
    return found


def _mended(host: str, one: Breakage, again: user.Run, last: user.Run) -> list[str]:
    """Of the runs behind them."""
    if one.refused and not one.undo:
        return []
    found = [f"{name} failed: {failed(run, host)}" for name, run in (("second run", again), ("second verify", last))
             if failed(run, host)]
    if not one.refused and (again.steps(host) or again.changed(host)):
        found.append(f"second run {again.steps(host)} {again.changed(host)}")
    return found


@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", range(len(rounds())))
def test_round(lab: LabHosts, number: int) -> None:
    broken = rounds()[number]
    try:
        found: dict[str, Any] = {name: what for name, what in faults(lab, broken).items() if what}
    finally:
        for host in HOSTS:
            lab.reset(host, converge(lab).disks[host])
    assert found == {}, "\n".join(f"{name}\n    " + "\n    ".join(what) for name, what in found.items())
