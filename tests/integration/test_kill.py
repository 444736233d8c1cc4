# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every module that changes a host, killed before and after each step of its plan; then run to its end, and removed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from tests.integration import user
from tests.integration.conftest import LabHosts, own_lab

HOST = "gpu-k1"
OLD, NEW = "580.126.20", "595.91.07"
KILLED = 137


class Way(NamedTuple):
    """A task file of a role with its variables."""

    role: str
    tasks: str
    variables: dict[str, Any]

    def include(self) -> str:
        """The words of a task that runs it."""
        return (f"ansible.builtin.include_role: {{name: gpuops.nvidia.{self.role}, tasks_from: {self.tasks}}}, "
                f"vars: {json.dumps(self.variables)}")

    def back(self) -> Way:
        """The role's removal."""
        return self._replace(tasks="remove")


DRIVER = Way("driver", "host", {"driver_disruption": "idle", "driver_version": NEW})
FORMER = DRIVER._replace(variables={"driver_disruption": "idle", "driver_version": OLD})
MODULES = {
    "nvidia_driver": DRIVER,
    "container_toolkit": Way("container_toolkit", "host", {
        "container_toolkit_disruption": "idle",
        "container_toolkit_settings": {"nvidia-container-runtime": {"log-level": "debug"}}}),
    "mig_config": Way("mig_manager", "host", {"mig_manager_disruption": "idle", "mig_manager_selected": "all-balanced",
                                              "mig_manager_devices": [0, 1]}),
    "gpu_labels": Way("feature_discovery", "host", {"feature_discovery_target": "nfd_file",
                                                    "feature_discovery_state": "present"}),
    "nvidia_software": Way("software", "host", {"software_components": {"dcgm": {}, "node_status_exporter": {}}}),
}
# All orders in one run of Ansible: each goes on from what a killed module left; where nothing of that step was left to
# do, one begins anew.
PLAY = """
- hosts: all
  gather_facts: false
  tasks:
    - {ansible.builtin.include_tasks: @ONCE@, loop: "{{ orders }}", loop_control: {loop_var: order}}
"""
ONCE = """
- ansible.builtin.raw: &arm printf '%s\\n' '{{ order[0] }}' '{{ order[1] }}' > /run/kill-step
- block:
    - {@WAY@}
    - ansible.builtin.set_fact: {ended: true}
  rescue:
    - ansible.builtin.assert: {that: ansible_failed_result.rc == 137}
    - ansible.builtin.set_fact: {ended: false}
- when: ended
  block:
    - ansible.builtin.raw: rm /run/kill-step
    - {@BACK@}
    - ansible.builtin.raw: *arm
    - block:
        - {@WAY@}
        - ansible.builtin.fail: {msg: it was not killed}
      rescue:
        - ansible.builtin.assert:
            that: ansible_failed_result.rc | default(0) == 137
            fail_msg: "never {{ order[0] }} {{ order[1] }}"
"""


def run(lab: LabHosts, way: Way, *words: str, **variables: object) -> user.Run:
    """Runs one task file of a role alone, as a user of single roles does."""
    return user.playbook(user.role(way.role, way.tasks), lab.hosts, "--limit", HOST, *words, **way.variables,
                         **variables)


@pytest.fixture(scope="module")
def lab() -> Iterator[LabHosts]:
    """A lab of its own, for these tests take long and run beside the others."""
    with own_lab("kill", f"{HOST}=a100-80:8") as hosts:
        yield hosts


@pytest.fixture(scope="module")
def clean(lab: LabHosts) -> list[str]:
    """The snapshot of the host as it is at first."""
    return lab.snapshot(HOST)


def planned(lab: LabHosts, module: str, way: Way) -> list[str]:
    """The steps that check mode names."""
    return run(lab, way, "--check").steps(HOST).get(module, [])


def kill(lab: LabHosts, module: str, way: Way, back: Way, moments: tuple[str, ...] = ("before", "after")) -> list[str]:
    """Runs a task file killed at moments of each step that check mode names; returns these steps."""
    steps = planned(lab, module, way)
    lab.put_killer(HOST)
    once, play = user.HOME / "kill-once.yml", user.HOME / "kill.yml"
    once.write_text(ONCE.replace("@WAY@", way.include()).replace("@BACK@", back.include()))
    play.write_text(PLAY.replace("@ONCE@", str(once)))
    done = user.ansible("ansible-playbook", f"-i{lab.hosts[0]}", "--limit", HOST, str(play), "-e", json.dumps({
        "orders": [[moment, step] for step in steps for moment in moments],
        "ansible_python_interpreter": "/opt/killer/python3"}), timeout=3000)
    assert done.rc == 0, done.output
    kills = [line for line in done.of(HOST, ("failed",)) if line["result"].get("rc") == KILLED]
    assert len(kills) == len(moments) * len(steps), done.output
    lab.sh(HOST, "rm -rf /run/kill-step /opt/killer")
    last = run(lab, way)
    assert last.rc == 0, last.output
    assert run(lab, way).changed(HOST) == []
    return steps


@pytest.mark.parametrize("module", MODULES)
def test_killed_at_every_step(lab: LabHosts, clean: list[str], module: str) -> None:
    assert kill(lab, module, MODULES[module], MODULES[module].back())


def test_a_switch_killed_at_every_step(lab: LabHosts, clean: list[str]) -> None:
    steps = kill(lab, "nvidia_driver", FORMER, DRIVER, ("after",))
    assert steps[0].startswith("unload modules") and len(steps) > 6


def test_a_way_back_killed(lab: LabHosts, clean: list[str]) -> None:
    """The next run goes on to what is wanted, and when that fails again, all the way back."""
    lab.sh(HOST, f"echo 'MAKE[0]=\"echo error: no such thing; false\"' > /etc/dkms/nvidia-{NEW}.conf")
    lab.put_killer(HOST)
    fetched = f"install packages: nvidia-driver-pinning-{OLD}={OLD}-1"
    built = f"build modules: {OLD} for kernel {lab.sh(HOST, 'uname -r').strip()}"
    for moment, step in (("before", fetched), ("after", fetched), ("before", built), ("after", built)):
        lab.sh(HOST, f"printf '%s\\n' '{moment}' '{step}' > /run/kill-step")
        killed = run(lab, DRIVER, ansible_python_interpreter="/opt/killer/python3")
        assert [line["result"].get("rc") for line in killed.of(HOST, ("failed",))] == [KILLED], killed.output
    lab.sh(HOST, "rm -rf /run/kill-step /opt/killer")
    failed = run(lab, DRIVER)
    assert failed.rc != 0 and failed.result(HOST, "nvidia_driver")["error"]["rolled_back"] == OLD, failed.output
    lab.sh(HOST, f"rm /etc/dkms/nvidia-{NEW}.conf")
    assert run(lab, FORMER).changed(HOST) == []
    assert run(lab, DRIVER).rc == 0


@pytest.mark.parametrize("module", list(reversed(MODULES)))
def test_removal_killed_at_every_step(lab: LabHosts, clean: list[str], module: str) -> None:
    assert kill(lab, module, MODULES[module].back(), MODULES[module])


def test_nothing_is_left_of_all_that(lab: LabHosts, clean: list[str]) -> None:
    assert lab.snapshot(HOST) == clean
