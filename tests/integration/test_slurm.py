# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts that are nodes of a real Slurm: slurmctld on the first host, slurmd on both, munge. Each run that is not about
something else must replace the driver."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from lab.host import lab as labs
from tests.integration import user
from tests.integration.conftest import LabHosts, own_lab
from tests.waiting import until

CONTROL, OTHER = "gpu-j1", "gpu-j2"
# The nodes of Slurm have other names than their hosts.
NODES = {CONTROL: "n1", OTHER: "n2"}
FIRST, SECOND = "580.126.20", "595.91.07"
POLICY = {"driver": {"enabled": True, "version": FIRST}, "toolkit": {"enabled": False}, "dcgm": {"enabled": False},
          "dcgmExporter": {"enabled": False}, "gfd": {"enabled": False}, "migManager": {"enabled": False}}
CONF = """ClusterName=lab
SlurmctldHost={control}({address})
AuthType=auth/munge
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmUser=slurm
StateSaveLocation=/var/lib/slurm/slurmctld
SlurmdSpoolDir=/var/lib/slurm/slurmd
MpiDefault=none
{nodes}
PartitionName=gpu Nodes=ALL Default=YES
"""
MARK = f"gpuops: driver {SECOND} (run "


class Slurm:
    """The hosts and their nodes."""

    def __init__(self, lab: LabHosts) -> None:
        self.lab = lab
        self.disks: dict[str, str] = {}

    def start(self) -> None:
        """Starts Slurm without nodes' states and jobs of before."""
        lab = labs.load(self.lab.name)
        nodes = "\n".join(f"NodeName={node} NodeHostname={host} NodeAddr={lab.address(host)} CPUs=2"
                          for host, node in NODES.items())
        conf = CONF.format(control=CONTROL, address=lab.address(CONTROL), nodes=nodes)
        for host in NODES:
            daemons = "slurmctld slurmd" if host == CONTROL else "slurmd"
            self.lab.sh(host, "mkdir -p /var/lib/slurm/slurmd; install -d -o slurm /var/lib/slurm/slurmctld\n"
                              f"cat > /etc/slurm/slurm.conf <<'GPUOPS_END'\n{conf}GPUOPS_END\n"
                              f"systemctl restart {daemons}")
        until(lambda: all(self.states(host) == {"IDLE"} for host in NODES), "both nodes are idle")

    def reset(self) -> None:
        """Both hosts with the first driver, and a fresh Slurm."""
        for host, disk in self.disks.items():
            self.lab.reset(host, disk)
        self.start()

    def show(self, host: str, what: str) -> str:
        """A field of the node of a host, empty if scontrol does not print it."""
        text = self.lab.sh(CONTROL, f"scontrol show node {NODES[host]} || true")
        found = re.search(rf"^ *{what}=(.*)$", text, re.M)
        return found[1].strip() if found else ""

    def states(self, host: str) -> set[str]:
        """The states of the node of a host, without that of a node that was asked and has not answered yet."""
        return {*self.show(host, "State").split(" ")[0].split("+")} - {"NOT_RESPONDING"}

    def reason(self, host: str) -> str:
        """The reason of the node of a host, with who gave it."""
        return self.show(host, "Reason")

    def admin(self, host: str, *settings: str) -> None:
        """What an administrator does to the node of a host."""
        words = " ".join(f"'{one}'" for one in settings)
        self.lab.sh(CONTROL, f"scontrol update NodeName={NODES[host]} {words}")

    def job(self, host: str) -> str:
        """Starts a job on the node of a host that runs until L(finish); returns its number."""
        number = self.lab.sh(CONTROL, f"sbatch --parsable --output=/dev/null --nodelist={NODES[host]} "
                                      "--wrap 'while [ ! -e /tmp/finish ]; do sleep 0.2; done'").strip()
        until(lambda: self.job_state(number) == "RUNNING", f"job {number} runs")
        return number

    def job_state(self, number: str) -> str:
        """The state of a job."""
        found = re.search(r"JobState=(\w+)", self.lab.sh(CONTROL, f"scontrol show job {number}"))
        return found[1] if found else ""

    def finish(self, host: str) -> None:
        """Lets the job on a host end by itself."""
        self.lab.sh(host, "touch /tmp/finish")

    def driver(self, host: str) -> str:
        """The version of the loaded driver."""
        return self.lab.sh(host, "cat /sys/module/nvidia/version").strip()

    def variables(self, level: str, **more: Any) -> dict[str, Any]:
        return {"gpu_policy": POLICY, "gpu_disruption": level, "gpu_slurm": True, "driver_version": SECOND,
                "maintenance_slurm_timeout": 120, **more}

    def site(self, level: str, *words: str, **more: Any) -> user.Run:
        """Runs site.yml."""
        return user.playbook("site", self.lab.hosts, *words, **self.variables(level, **more))

    def begin(self, folder: Path, level: str, *words: str) -> subprocess.Popen[str]:
        """Starts site.yml beside the test, in a process group of its own."""
        given = folder / "variables.yml"
        given.write_text(yaml.safe_dump(self.variables(level)))
        program = str(user.HOME / "venv" / "bin" / "ansible-playbook")
        return subprocess.Popen([program, *(f"-i{path}" for path in self.lab.hosts), "-e", f"@{given}", *words,
                                 "gpuops.nvidia.site"], cwd=user.HOME, env=user.environment(), text=True,
                                start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT)


def said(run: user.Run) -> str:
    """What a run has printed, without the line breaks of the report."""
    return " ".join(run.output.split())


@pytest.fixture(scope="module")
def installed() -> Iterator[Slurm]:
    """Both hosts with the first driver."""
    with own_lab("slurm", ",".join(f"{host}=a100-80:1@slurm" for host in NODES)) as lab:
        made = Slurm(lab)
        first = user.playbook("site", lab.hosts, gpu_policy=POLICY, driver_version=FIRST)
        assert first.rc == 0, first.output
        made.disks = {host: lab.save(host) for host in NODES}
        yield made


@pytest.fixture
def slurm(installed: Slurm) -> Slurm:
    installed.reset()
    return installed


@pytest.mark.timeout(1800)
def test_each_level_with_a_job_on_one_of_two_nodes(slurm: Slurm, tmp_path: Path) -> None:
    number = slurm.job(CONTROL)
    both = {CONTROL: FIRST, OTHER: FIRST}

    def state() -> tuple[dict[str, str], dict[str, str], str]:
        return ({host: slurm.driver(host) for host in NODES}, {host: slurm.reason(host) for host in NODES},
                slurm.job_state(number))

    done = slurm.site("never")
    assert done.rc == 0 and "slurm_maintenance" not in done.steps(CONTROL), done.output
    assert state() == (both, {CONTROL: "", OTHER: ""}, "RUNNING")

    done = slurm.site("idle", "--check")
    assert done.rc == 0 and f"job {number} of root (running) runs there" in said(done), done.output
    assert done.steps(OTHER)["slurm_maintenance"] == ["drain: node n2 of Slurm", "resume: node n2 of Slurm"]
    assert state() == (both, {CONTROL: "", OTHER: ""}, "RUNNING")

    done = slurm.site("idle")
    assert done.rc == 0 and f"job {number} of root (running) runs there" in said(done), done.output
    assert done.steps(OTHER)["slurm_maintenance"] == ["drain: node n2 of Slurm", "resume: node n2 of Slurm"]
    assert "slurm_maintenance" not in done.steps(CONTROL)
    assert state() == ({CONTROL: FIRST, OTHER: SECOND}, {CONTROL: "", OTHER: ""}, "RUNNING")
    assert slurm.states(CONTROL) == {"MIXED"} and slurm.states(OTHER) == {"IDLE"}

    done = slurm.site("drain", maintenance_slurm_timeout=3)
    assert done.rc == 2 and f"Node n1 of Slurm was not changed and is as it was before: job {number} of root" in (
        done.output), done.output
    assert state() == ({CONTROL: FIRST, OTHER: SECOND}, {CONTROL: "", OTHER: ""}, "RUNNING")
    assert slurm.states(CONTROL) == {"MIXED"}

    begun = slurm.begin(tmp_path, "drain")
    until(lambda: slurm.reason(CONTROL).startswith(MARK), "the node is drained")
    assert slurm.states(CONTROL) == {"MIXED", "DRAIN"} and slurm.driver(CONTROL) == FIRST
    slurm.finish(CONTROL)
    output, _errors = begun.communicate(timeout=600)
    assert begun.returncode == 0 and f"waits for job {number} of root" in output, output
    assert state() == (dict.fromkeys(NODES, SECOND), {CONTROL: "", OTHER: ""}, "COMPLETED")
    assert slurm.states(CONTROL) == {"IDLE"}
    done = slurm.site("drain")
    assert done.rc == 0 and not done.changed(CONTROL) and not done.changed(OTHER), done.output


@pytest.mark.timeout(1800)
def test_a_node_that_an_administrator_has_taken_out_of_service_stays_so(slurm: Slurm) -> None:
    slurm.admin(CONTROL, "State=DRAIN", "Reason=disk 3 fails [ticket 7]")
    slurm.admin(OTHER, "State=DOWN", "Reason=the fan")
    before = slurm.reason(CONTROL)
    done = slurm.site("drain")
    assert done.rc == 0, done.output
    assert {host: slurm.driver(host) for host in NODES} == dict.fromkeys(NODES, SECOND)
    assert slurm.states(CONTROL) == {"IDLE", "DRAIN"} and slurm.reason(CONTROL) == before
    assert "slurm_maintenance" not in done.steps(CONTROL)
    assert slurm.states(OTHER) == {"DOWN"} and slurm.reason(OTHER).startswith("the fan [")


@pytest.mark.timeout(1800)
def test_the_next_run_goes_on_after_one_that_was_killed(slurm: Slurm, tmp_path: Path) -> None:
    number = slurm.job(CONTROL)
    only = ("--limit", CONTROL)
    begun = slurm.begin(tmp_path, "drain", *only)
    until(lambda: slurm.reason(CONTROL).startswith(MARK), "the node is drained")
    os.killpg(begun.pid, signal.SIGKILL)
    begun.communicate(timeout=60)
    assert slurm.states(CONTROL) == {"MIXED", "DRAIN"}
    done = user.playbook("status", slurm.lab.hosts, *only, **slurm.variables("drain"))
    assert done.rc == 0 and f"Node n1 of Slurm is drained: {MARK}" in said(done), done.output
    # The job of the node forbids the change at this level, so the node is put back.
    done = slurm.site("idle", *only)
    assert done.rc == 0 and slurm.states(CONTROL) == {"MIXED"} and not slurm.reason(CONTROL), done.output

    begun = slurm.begin(tmp_path, "drain", *only)
    until(lambda: slurm.reason(CONTROL).startswith(MARK), "the node is drained again")
    slurm.finish(CONTROL)
    # The module works on the host until its connection ends, and its successor repairs what it has left.
    until(lambda: "apt-get" in slurm.lab.sh(CONTROL, "ps -eo args"), "packages are installed")
    os.killpg(begun.pid, signal.SIGKILL)
    begun.communicate(timeout=60)
    assert slurm.states(CONTROL) == {"IDLE", "DRAIN"} and slurm.reason(CONTROL).startswith(MARK)
    done = slurm.site("drain", *only)
    assert done.rc == 0 and slurm.driver(CONTROL) == SECOND, done.output
    assert slurm.states(CONTROL) == {"IDLE"} and not slurm.reason(CONTROL)
    assert slurm.job_state(number) == "COMPLETED"


@pytest.mark.timeout(1800)
def test_a_failed_change_leaves_the_node_drained_until_a_run_succeeds(slurm: Slurm) -> None:
    """Its commands run on the host of slurmctld."""
    only = {"gpu_slurm_controller": CONTROL, "gpu_slurm_node_name": NODES[OTHER]}
    slurm.lab("fault", OTHER, "build-fails", "on")
    done = slurm.site("drain", "--limit", OTHER, **only)
    assert done.rc == 2 and "Node n2 of Slurm stays drained until a run succeeds." in done.output, done.output
    assert slurm.states(OTHER) == {"IDLE", "DRAIN"} and slurm.reason(OTHER).startswith("gpuops: failed: ")
    done = user.playbook("status", slurm.lab.hosts, "--limit", OTHER, **slurm.variables("drain", **only))
    assert "Node n2 of Slurm is drained: gpuops: failed: " in done.output, done.output
    slurm.lab("fault", OTHER, "build-fails", "off")
    done = slurm.site("drain", "--limit", OTHER, **only)
    assert done.rc == 0 and slurm.driver(OTHER) == SECOND, done.output
    assert slurm.states(OTHER) == {"IDLE"} and not slurm.reason(OTHER)
