# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""For each breakage of a converged host, verify, check and run report the same; one run repairs it, and a second run
changes nothing.

Three hosts are broken at the same time, each in another way. Afterwards their converged disks are restored. To try
some: C(pytest tests/campaign -k "mig or keyring") chooses rounds by the names of their breakages, and the variable
C(BREAKAGES) (a regular expression for names) of the environment makes rounds of these breakages alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.campaign.breakages import BREAKAGES, LAB, Breakage
from tests.integration import user
from tests.integration.conftest import LabHosts, own_lab
from tests.integration.converged import HOSTS, converge

Round = dict[str, Breakage]
# The modules of components whose names differ from theirs.
MODULES = {"driver": "nvidia_driver", "mig_manager": "mig_config", "feature_discovery": "gpu_labels",
           **dict.fromkeys(("cuda", "dcgm", "dcgm_exporter", "node_status_exporter"), "nvidia_software")}
# Seconds for five playbook runs and three boots, on a machine that does other things besides.
LIMIT = 1800


def rounds() -> list[Round]:
    """Maps hosts to breakages, for each round: each breakage once, in as few rounds as possible."""
    chosen = re.compile(os.environ.get("BREAKAGES", ""))
    waiting, found = [one for one in BREAKAGES if chosen.search(one.name)], []
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
    """A lab with the converged hosts of the demo."""
    user.install()
    with own_lab("campaign", LAB) as made:
        converge(made)
        yield made


def failures(run: user.Run, host: str) -> list[str]:
    """The errors that a run reports for a host."""
    return [f"{line['kind']}: {line['result'].get('msg')}" for line in run.of(host, ("failed", "unreachable"))]


def reports(run: user.Run, host: str) -> list[str]:
    """What a run reports for a host: errors, and the differences from the plan."""
    checks = [check for line in run.of(host) if line["action"].endswith(".gpu_verify")
              for check in line["result"].get("checks") or ()]
    return [*failures(run, host), *(f"{check['state']}: {check['component']}: {check['detail']}" for check in checks)]


def faults(run: user.Run, host: str) -> list[str]:
    """The checks of a host that are not as planned."""
    return [text for text in reports(run, host) if not text.startswith("ok: ")]


def modules(run: user.Run, host: str) -> set[str]:
    """The modules whose components are not as planned, by the comparison with the plan."""
    components = {check["component"] for line in run.of(host) if line["action"].endswith(".gpu_verify")
                  for check in line["result"].get("checks") or () if check["state"] != "ok"}
    return {MODULES.get(name, name) for name in components}


def disagreements(lab: LabHosts, broken: Round, folder: Path) -> dict[str, list[str]]:
    """Maps host and breakage to the results that are not as expected."""
    extra = folder / "hosts.ini"

    def play(name: str, *words: str) -> user.Run:
        return user.playbook(name, [*lab.wishes, extra], "--limit", ",".join(broken), *words)

    extra.write_text(_inventory(broken))
    for host, one in broken.items():
        lab.sh(host, one.script)
    verified, checked, first = play("verify"), play("site", "--check"), play("site")
    extra.write_text(_inventory({host: one for host, one in broken.items() if not one.undo}))
    for host, one in broken.items():
        if one.undo:
            lab.sh(host, one.undo)
    again, last = play("site"), play("verify")
    return {f"{host}: {one.name}": [*_broken(host, one, verified, checked, first), *_repaired(host, one, again, last)]
            for host, one in broken.items()}


def _inventory(broken: Round) -> str:
    return "[gpu_hosts]\n" + "".join(f"{host} {one.variables}\n" for host, one in broken.items())


def _broken(host: str, one: Breakage, verified: user.Run, checked: user.Run, first: user.Run) -> list[str]:
    """Compares the runs on the broken host with the expectation."""
    runs = {"verify": verified, "check": checked, "run": first}
    planned, done = checked.steps(host), first.steps(host)
    found = [f"{name} did not compare the host" for name, run in runs.items() if not reports(run, host)]
    if not (faults(verified, host) or one.stays or one.unseen):
        found.append("verify reports nothing")
    if one.unseen:
        found += [f"{name} reports {faults(run, host)}" for name, run in runs.items() if faults(run, host)]
    if one.refused or one.stays:
        found += [f"{name} does not report «{one.refused or one.stays}»: {reports(run, host)}"
                  for name, run in runs.items()
                  if not any((one.refused or one.stays) in text for text in reports(run, host))]
    if not one.refused:
        found += [f"{name} failed: {failures(run, host)}" for name, run in runs.items()
                  if name != "verify" and failures(run, host)]
        if planned != done:
            found.append(f"check {planned}; run {done}")
    steps = [step for each in planned.values() for step in each]
    # Verify may report more: a CDI specification names MIG devices that are gone until mig_config creates them again.
    if one.repairs and not modules(verified, host) >= set(planned):
        found.append(f"verify reports {sorted(modules(verified, host))}; check plans {planned}")
    if one.repairs and not any(one.repairs in step for step in steps):
        found.append(f"check plans no «{one.repairs}»: {planned}")
    if (one.stays or one.unseen) and (steps or first.changed(host)):
        found.append(f"there is nothing to do: {planned} {first.changed(host)}")
    return found


def _repaired(host: str, one: Breakage, again: user.Run, last: user.Run) -> list[str]:
    """Compares the runs after the repair with the expectation."""
    found = [f"{name} reports {faults(run, host) or 'nothing'}"
             for name, run in (("second run", again), ("second verify", last))
             if faults(run, host) or not reports(run, host)]
    # What an error ended may have waited for the run after it.
    if not one.refused and (again.steps(host) or again.changed(host)):
        found.append(f"second run {again.steps(host)} {again.changed(host)}")
    return found


@pytest.mark.timeout(LIMIT)
@pytest.mark.parametrize("broken", [pytest.param(one, id=", ".join(each.name for each in one.values()))
                                    for one in rounds()])
def test_round(lab: LabHosts, broken: Round, tmp_path: Path) -> None:
    try:
        found = {name: what for name, what in disagreements(lab, broken, tmp_path).items() if what}
    finally:
        for host in broken:
            lab.reset(host, converge(lab).disks[host])
    assert found == {}, "\n".join(f"{name}\n    " + "\n    ".join(what) for name, what in found.items())
