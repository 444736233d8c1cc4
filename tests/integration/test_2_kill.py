# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every module that changes a host, killed before and after each step of its plan; then run to its end, and removed."""

from __future__ import annotations

import pytest

from tests.integration import user
from tests.integration.conftest import LabHosts

HOST = "gpu-a1"
# What each module is run with, what removes it, and what has to be there first.
MODULES = {
    "nvidia_driver": ("driver", {}),
    "container_toolkit": ("container_toolkit", {}),
    "mig_config": ("mig_manager", {"mig_manager_selected": "all-1g.10gb"}),
    "gpu_labels": ("feature_discovery", {"feature_discovery_target": "nfd_file"}),
}
LIMIT = 60  # no plan here has that many steps


def role(lab: LabHosts, name: str, tasks: str, **variables: object) -> user.Run:
    """Runs one task file of a role alone, as a user of single roles does."""
    play = user.HOME / "role.yml"
    play.write_text("- hosts: all\n  gather_facts: false\n  tasks:\n    - ansible.builtin.import_role:\n"
                    f"        name: gpuops.nvidia.{name}\n        tasks_from: {tasks}\n")
    return user.playbook(str(play), lab.hosts, "--limit", HOST, **variables)


@pytest.fixture(scope="module")
def clean(lab: LabHosts) -> list[str]:
    """A fresh host; its snapshot."""
    lab("reset", HOST)
    return lab.snapshot(HOST)


@pytest.mark.parametrize("module", MODULES)
def test_killed_at_every_step(lab: LabHosts, clean: list[str], module: str) -> None:
    name, variables = MODULES[module]
    variables = {**variables, f"{name}_disruption": "idle"} if name != "feature_discovery" else variables
    python = lab.put_killer(HOST)
    before = lab.snapshot(HOST)
    kills = 0
    for number in range(LIMIT):
        # Before the next step, then after it: each run gets one step further, and every one is a rerun of a killed one.
        moment = "before" if number % 2 == 0 else "after"
        lab.sh(HOST, f"echo {moment} 1 > /run/kill-step")
        run = role(lab, name, "host", ansible_python_interpreter=python, **variables)
        if run.rc == 0:
            break
        assert not any("gpuops" in str(line["result"].get("error")) for line in run.results), run.output
        kills += 1
    lab.sh(HOST, "rm -f /run/kill-step")
    assert 2 <= kills < LIMIT, "nothing was killed, or it never ended"
    done = role(lab, name, "host", **variables)
    assert done.rc == 0 and done.changed(HOST) == [], done.output
    if module in ("mig_config", "gpu_labels"):
        removed = role(lab, name, "remove", **variables)
        assert removed.rc == 0, removed.output
        assert lab.snapshot(HOST) == before


def test_all_of_it_can_still_be_removed(lab: LabHosts, clean: list[str]) -> None:
    for name in ("container_toolkit", "driver"):
        removed = role(lab, name, "remove", **{f"{name}_disruption": "idle"})
        assert removed.rc == 0, removed.output
    lab.sh(HOST, "rm -rf /opt/killer")
    assert lab.snapshot(HOST) == clean
