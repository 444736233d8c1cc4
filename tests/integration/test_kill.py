# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every module that changes a host, killed before and after each step of its plan; then run to its end, and removed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration import user
from tests.integration.conftest import LabHosts

HOST = "gpu-k1"
# The role that runs each module, and its variables.
MODULES: dict[str, tuple[str, dict[str, object]]] = {
    "nvidia_driver": ("driver", {"driver_disruption": "idle", "driver_version": "595.91.07"}),
    "container_toolkit": ("container_toolkit", {"container_toolkit_disruption": "idle"}),
    "mig_config": ("mig_manager", {"mig_manager_disruption": "idle", "mig_manager_selected": "all-balanced",
                                   "mig_manager_devices": [0, 1]}),
    "gpu_labels": ("feature_discovery", {"feature_discovery_target": "nfd_file",
                                         "feature_discovery_state": "present"}),
}


def role(lab: LabHosts, name: str, tasks: str, *words: str, **variables: object) -> user.Run:
    """Runs one task file of a role alone, as a user of single roles does."""
    play = user.HOME / f"{name}-{tasks}.yml"
    play.write_text("- hosts: all\n  gather_facts: false\n  tasks:\n    - ansible.builtin.import_role:\n"
                    f"        name: gpuops.nvidia.{name}\n        tasks_from: {tasks}\n")
    return user.playbook(str(play), lab.hosts, "--limit", HOST, *words, **variables)


@pytest.fixture(scope="module")
def lab() -> Iterator[LabHosts]:
    """A lab of its own, for these tests take long and run beside the others."""
    hosts = LabHosts("kill")
    hosts("up", "--hosts", f"{HOST}=a100-80:8")
    yield hosts
    hosts("down")


@pytest.fixture(scope="module")
def clean(lab: LabHosts) -> list[str]:
    """The snapshot of the host as it is at first."""
    lab("reset", HOST)
    return lab.snapshot(HOST)


def killed(lab: LabHosts, module: str, tasks: str, moment: str, step: str) -> bool:
    """Runs a task file to be killed at a step; False where it ended well because that step was not to be done."""
    name, variables = MODULES[module]
    lab.sh(HOST, f"printf '%s\\n' '{moment}' '{step}' > /run/kill-step")
    run = role(lab, name, tasks, ansible_python_interpreter="/opt/killer/python3", **variables)
    assert run.rc == 0 or [line["result"].get("rc") for line in run.of(HOST, ("failed",))] == [137], run.output
    return run.rc != 0


def kill(lab: LabHosts, module: str, tasks: str, undo: str) -> list[str]:
    """Runs a task file killed before and after each step that check mode names; returns these steps.

    Each run goes on from what a killed one left. Where nothing of that step was left to do, one begins anew.
    """
    name, variables = MODULES[module]
    steps = [step["id"] for step in role(lab, name, tasks, "--check", **variables).result(HOST, module)["plan"]]
    lab.put_killer(HOST)
    for step in steps:
        for moment in ("before", "after"):
            if not killed(lab, module, tasks, moment, step):
                assert role(lab, name, undo, **variables).rc == 0
                assert killed(lab, module, tasks, moment, step), f"never {moment} {step}"
    lab.sh(HOST, "rm -rf /run/kill-step /opt/killer")
    last = role(lab, name, tasks, **variables)
    assert last.rc == 0, last.output
    assert role(lab, name, tasks, **variables).changed(HOST) == []
    return steps


@pytest.mark.parametrize("module", MODULES)
def test_killed_at_every_step(lab: LabHosts, clean: list[str], module: str) -> None:
    assert kill(lab, module, "host", "remove")


@pytest.mark.parametrize("module", list(reversed(MODULES)))
def test_removal_killed_at_every_step(lab: LabHosts, clean: list[str], module: str) -> None:
    assert kill(lab, module, "remove", "host")


def test_nothing_is_left_of_all_that(lab: LabHosts, clean: list[str]) -> None:
    assert lab.snapshot(HOST) == clean
