# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver on a host with real dnf and rpm: installed, held, switched both ways, cut off, and taken away."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration import user
from tests.integration.conftest import LabHosts

HOST, SUSE = "gpu-r1", "gpu-s1"
OLD, NEW = "580.126.20", "595.91.07"


def role(lab: LabHosts, *words: str, tasks: str = "host", host: str = HOST, **variables: object) -> user.Run:
    """Runs a task file of the role driver."""
    play = user.HOME / f"rpm-{tasks}.yml"
    play.write_text("- hosts: all\n  gather_facts: false\n  tasks:\n    - ansible.builtin.import_role:\n"
                    f"        name: gpuops.nvidia.driver\n        tasks_from: {tasks}\n")
    return user.playbook(str(play), lab.hosts, "--limit", host, *words, driver_disruption="idle", **variables)


def plan(run: user.Run) -> list[str]:
    """The steps that a run took or would take."""
    return [step["id"] for step in run.result(HOST, "nvidia_driver")["plan"]]


def brought(lab: LabHosts) -> dict[str, str]:
    """The vendor's packages on the host: name to version, which is one for all of them."""
    lines = lab.sh(HOST, "rpm -qa --qf '%{NAME} %{VERSION}\\n' | grep -e nvidia").splitlines()
    return dict(line.split() for line in lines)


def switch(lab: LabHosts, **variables: str) -> None:
    """Check, then run: the same steps."""
    check = role(lab, "--check", **variables)
    assert check.rc == 0, check.output
    run = role(lab, **variables)
    assert run.rc == 0, run.output
    assert plan(run) == plan(check) != []


@pytest.fixture(scope="module")
def lab() -> Iterator[LabHosts]:
    """A lab of its own with a host of Rocky Linux, and one of SLES, which there are plans for and no more."""
    hosts = LabHosts("rpmtest")
    hosts("up", "--hosts", f"{HOST}=h100-80:8@rocky9,{SUSE}=a100-80:1@sles15")
    yield hosts
    hosts("down")


@pytest.fixture(scope="module")
def clean(lab: LabHosts) -> list[str]:
    """The snapshot of the host as it is at first."""
    lab("reset", HOST)
    return lab.snapshot(HOST)


@pytest.mark.parametrize(("variables", "said"), [
    ({"driver_version": "580.1.1"}, f"It has {NEW}, {OLD}"),
    ({"driver_repository_fingerprint": "0" * 40}, "has the fingerprint"),
    ({"driver_repository_url": "http://192.0.2.1/nothing/", "driver_repository_key": "k.pub"}, "cannot be fetched"),
])
def test_bad_input_changes_nothing(lab: LabHosts, clean: list[str], variables: dict[str, str], said: str) -> None:
    run = role(lab, **variables)
    assert run.rc != 0 and said in run.errors()[0]
    assert lab.snapshot(HOST) == clean


@pytest.mark.parametrize(("fault", "said"), [("down", "cannot be fetched"), ("wrong-key", "has the fingerprint")])
def test_a_disturbed_repository_changes_nothing(lab: LabHosts, clean: list[str], fault: str, said: str) -> None:
    lab("fault", "repo", fault, "on")
    try:
        run = role(lab, driver_version=OLD)
    finally:
        lab("fault", "repo", fault, "off")
    assert run.rc != 0 and said in run.errors()[0]
    assert lab.snapshot(HOST) == clean


def test_suse_is_refused_before_anything_changes(lab: LabHosts) -> None:
    before = lab.snapshot(SUSE)
    run = role(lab, host=SUSE, driver_version=NEW, driver_source="cuda_repository")
    assert run.rc != 0 and "sles 15.7" in run.errors()[0]
    assert lab.snapshot(SUSE) == before


def test_first_installation_does_what_check_showed(lab: LabHosts, clean: list[str]) -> None:
    check = role(lab, "--check", driver_version=OLD)
    assert check.rc == 0, check.output
    assert lab.snapshot(HOST) == clean
    run = role(lab, driver_version=OLD)
    assert run.rc == 0, run.output
    assert plan(run) == plan(check)
    assert set(brought(lab).values()) == {OLD}
    assert OLD in lab.sh(HOST, "nvidia-smi --query-gpu=driver_version --format=csv,noheader")


def test_a_converged_host_is_left_alone_without_dnf(lab: LabHosts) -> None:
    lab.sh(HOST, "mv /usr/bin/dnf /usr/bin/dnf.away; touch -d '1 hour ago' /var/cache/dnf /var/lib/rpm/rpmdb.sqlite")
    before = lab.sh(HOST, "stat -c '%n %Y' /var/cache/dnf/* /var/lib/dnf/* /var/lib/rpm/rpmdb.sqlite")
    try:
        run = role(lab, driver_version=OLD)
    finally:
        lab.sh(HOST, "mv /usr/bin/dnf.away /usr/bin/dnf")
    assert run.rc == 0, run.output
    assert run.changed(HOST) == [] and plan(run) == []
    assert lab.sh(HOST, "stat -c '%n %Y' /var/cache/dnf/* /var/lib/dnf/* /var/lib/rpm/rpmdb.sqlite") == before


def test_upgrades_leave_the_version_even_with_the_vendors_own_repository(lab: LabHosts) -> None:
    before = brought(lab)
    url = lab.sh(HOST, "sed -n s/^baseurl=//p /etc/yum.repos.d/gpuops-driver.repo").strip()
    lab.sh(HOST, f"printf '[cuda-rhel9-x86_64]\\nname=cuda\\nbaseurl={url}\\ngpgcheck=0\\n' "
           "> /etc/yum.repos.d/cuda-rhel9.repo")
    said = lab.sh(HOST, "dnf -y upgrade")
    lab.sh(HOST, "rm /etc/yum.repos.d/cuda-rhel9.repo")
    assert "Nothing to do" in said
    assert brought(lab) == before


def test_up_and_down_between_branches(lab: LabHosts) -> None:
    switch(lab, driver_version=NEW)
    assert set(brought(lab).values()) == {NEW}
    assert "Nothing to do" in lab.sh(HOST, "dnf -y upgrade")
    switch(lab, driver_branch="580")
    assert set(brought(lab).values()) == {OLD}
    assert OLD in lab.sh(HOST, "cat /proc/driver/nvidia/version")
    assert role(lab, driver_branch="580").changed(HOST) == []


def test_open_and_proprietary_modules_of_one_version(lab: LabHosts) -> None:
    switch(lab, driver_version=OLD, driver_kernel_module_type="proprietary")
    assert "kmod-nvidia-latest-dkms" in brought(lab) and "kmod-nvidia-open-dkms" not in brought(lab)
    assert lab.sh(HOST, "modinfo -F license nvidia").strip() == "NVIDIA"
    assert "580-dkms" in lab.sh(HOST, "dnf -q module list --enabled nvidia-driver")
    switch(lab, driver_version=OLD, driver_kernel_module_type="open")
    assert "MIT" in lab.sh(HOST, "modinfo -F license nvidia")
    assert "Open Kernel Module" in lab.sh(HOST, "cat /proc/driver/nvidia/version")


def test_a_run_killed_in_the_transaction_goes_on(lab: LabHosts) -> None:
    lab.sh(HOST, f"(while ! rpm -q libnvidia-ml-{NEW} > /dev/null; do sleep 0.01; done; pkill -9 -x python3; "
           "pkill -9 -x dnf) < /dev/null > /dev/null 2>&1 &")
    cut = role(lab, driver_version=NEW)
    assert cut.rc != 0, cut.output
    assert len(lab.sh(HOST, "rpm -q nvidia-kmod-common").splitlines()) == 2
    check = role(lab, "--check", driver_version=NEW)
    run = role(lab, driver_version=NEW)
    assert run.rc == 0, run.output
    assert plan(run) == plan(check) and plan(run)[0].startswith("repair package database")
    assert set(brought(lab).values()) == {NEW}
    assert "Error" not in lab.sh(HOST, "dnf -q check 2>&1")
    assert role(lab, driver_version=NEW).changed(HOST) == []


def test_removal_leaves_nothing(lab: LabHosts, clean: list[str]) -> None:
    check = role(lab, "--check", tasks="remove")
    run = role(lab, tasks="remove")
    assert run.rc == 0, run.output
    assert plan(run) == plan(check) != []
    assert lab.snapshot(HOST) == clean
    assert role(lab, tasks="remove").changed(HOST) == []
