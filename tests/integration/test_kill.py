# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every module that changes a host is killed at each step of its plan, then completed by another run, and removed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from tests.integration import series, user
from tests.integration.conftest import LabHosts, own_lab
from tests.integration.series import Done, Play

HOST = "gpu-k1"
OLD, NEW = "580.126.20", "595.91.07"
KILLED = 137
DRIVER = Play({"driver_disruption": "idle", "driver_version": NEW}, role="driver")
FORMER = Play({"driver_disruption": "idle", "driver_version": OLD}, role="driver")
# With the driver on the host.
TOOLKIT = Play({"container_toolkit_disruption": "idle", "container_toolkit_settings": {
    "nvidia-container-runtime": {"log-level": "debug"}}}, role="container_toolkit")
MODULES = {
    "mig_config": Play({"mig_manager_disruption": "idle", "mig_manager_selected": "all-balanced",
                        "mig_manager_devices": [0, 1]}, role="mig_manager"),
    "gpu_labels": Play({"feature_discovery_target": "nfd_file", "feature_discovery_state": "present"},
                       role="feature_discovery"),
    "nvidia_software": Play({"software_components": {"dcgm": {}, "node_status_exporter": {}}}, role="software"),
}


def run(lab: LabHosts, way: Play, *words: str) -> user.Run:
    """Runs a single task file of a role, as a user of single roles does."""
    return user.playbook(user.role(way.role, way.tasks), lab.hosts, *words, **way.variables)


@pytest.fixture(scope="module")
def lab() -> Iterator[LabHosts]:
    """A separate lab, because these tests take long and run in parallel with the others."""
    with own_lab("kill", f"{HOST}=a100-80:3") as hosts:
        hosts.put_killer(HOST)
        hosts.sh(HOST, "/opt/killer/python3 -c ''")  # what Python compiles is there from the beginning
        yield hosts


@pytest.fixture(scope="module")
def bare(lab: LabHosts) -> str:
    """The disk of a host without a driver."""
    return lab.save(HOST)


@pytest.fixture(scope="module")
def driven(lab: LabHosts, bare: str) -> str:
    """The disk of a host with the driver NEW."""
    lab.reset(HOST, bare)
    done = run(lab, DRIVER)
    assert done.rc == 0, done.output
    return lab.save(HOST)


@pytest.fixture
def host(lab: LabHosts, driven: str) -> LabHosts:
    """The lab, with the driver NEW on a host that has not been changed otherwise."""
    lab.reset(HOST, driven)
    return lab


def armed(way: Play, orders: Sequence[Sequence[str]]) -> Play:
    """The same variables with a Python that kills the module at these moments of these steps, one after the other."""
    lines = "".join(f"{moment}\n{step}\n" for moment, step in orders)
    return replace(way, variables={**way.variables, "ansible_python_interpreter": "/opt/killer/python3"},
                   first=f"cat > /run/kill-step <<'GPUOPS_END'\n{lines}GPUOPS_END")


def killed(done: Done) -> bool:
    """Whether the last run was killed; otherwise it must have succeeded."""
    kills = [line["result"].get("rc") for line in done.of(HOST, ("failed",))]
    assert kills in ([], [KILLED]), done.output
    return bool(kills)


def disarm(lab: LabHosts) -> list[list[str]]:
    """The remaining orders of the killing Python; for a killed run, the last order that it carried out."""
    lines = lab.sh(HOST, "cat /run/kill-step; rm /run/kill-step").splitlines()
    return [lines[index:index + 2] for index in range(0, len(lines), 2)]


def kill(lab: LabHosts, disk: str, way: Play, *moments: str, apart: bool = False) -> list[str]:
    """Runs a task file that is killed at moments of each step that check mode names, then to its end; returns these
    steps.

    Each run continues from the state that a killed run has left. If nothing of a step was left to do, the next run
    starts again with the saved disk. apart: each is a separate run of Ansible, because the plan is made on the
    controller; otherwise only the module runs again.
    """
    preview = run(lab, way, "--check")
    steps = [step for ids in preview.steps(HOST).values() for step in ids]
    assert steps, preview.output
    orders = [[moment, step] for step in steps for moment in moments]
    while True:
        runs = series.run(lab, *(armed(way, batch) for batch in ([[order] for order in orders] if apart else [orders])))
        ended = [killed(done) for done in runs]
        left = disarm(lab)
        if all(ended):
            break
        left = orders[ended.index(False):] if apart else left
        assert left != orders, f"never {left[0]}"
        orders = left
        lab.reset(HOST, disk)
    assert left == orders[-1:]
    _last, again = series.well(lab, way, way)
    assert again.changed(HOST) == []
    return steps


def test_the_driver_killed_at_every_step(lab: LabHosts, bare: str) -> None:
    lab.reset(HOST, bare)
    before = lab.snapshot(HOST)
    held = replace(DRIVER, variables={**DRIVER.variables, "driver_hold_kernel": True})
    assert kill(lab, bare, held, "before", "after")[0].startswith("hold kernels: ")
    kill(lab, lab.save(HOST), replace(held, tasks="remove"), "before", "after")
    assert lab.snapshot(HOST) == before


@pytest.mark.parametrize("module", MODULES)
def test_killed_at_every_step(host: LabHosts, driven: str, module: str) -> None:
    way, before = MODULES[module], host.snapshot_beside_driver(HOST)
    kill(host, driven, way, "before", "after")
    kill(host, host.save(HOST), replace(way, tasks="remove"), "before", "after")
    assert host.snapshot_beside_driver(HOST) == before


def test_the_toolkit_killed_at_every_step(host: LabHosts, driven: str) -> None:
    """It is also killed as soon as a file has been replaced: the former content has been recorded by then, and is
    restored."""
    before = host.snapshot_beside_driver(HOST)
    kill(host, driven, TOOLKIT, "written", apart=True)
    kill(host, host.save(HOST), replace(TOOLKIT, tasks="remove"), "after", apart=True)
    assert host.snapshot_beside_driver(HOST) == before


def test_a_switch_killed_after_every_step(host: LabHosts, driven: str) -> None:
    steps = kill(host, driven, FORMER, "after")
    assert steps[0].startswith("unload modules") and len(steps) > 6


def test_a_way_back_killed(host: LabHosts) -> None:
    """The next run continues to the desired state, and when it fails again, it restores the former one."""
    host.sh(HOST, f"echo 'MAKE[0]=\"echo error: no such thing; false\"' > /etc/dkms/nvidia-{OLD}.conf")
    fetched = f"install packages: nvidia-driver-pinning-{NEW}={NEW}-1"
    built = f"build modules: {NEW} for kernel {host.sh(HOST, 'uname -r').strip()}"
    cut, = series.run(host, armed(FORMER, [(moment, step) for step in (fetched, built)
                                           for moment in ("before", "after")]))
    assert killed(cut) and disarm(host) == [["after", built]]
    failed, back, again = series.run(host, FORMER, replace(DRIVER, first=f"rm /etc/dkms/nvidia-{OLD}.conf"),
                                     FORMER)
    assert failed.rc != 0 and failed.result(HOST, "nvidia_driver")["error"]["rolled_back"] == NEW, failed.output
    assert back.rc == 0 and back.changed(HOST) == []
    assert again.rc == 0, again.output
