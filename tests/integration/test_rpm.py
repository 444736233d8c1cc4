# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver on a host with real dnf and rpm: installed, held, switched both ways, cut off, and taken away."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.conftest import own_lab
from tests.integration.driver import DriverHost

OLD, NEW = "580.126.20", "595.91.07"


@pytest.fixture(scope="module")
def host() -> Iterator[DriverHost]:
    """A host of Rocky Linux in a lab of its own."""
    with own_lab("rpmtest", "gpu-r1=h100-80:8@rocky9") as lab:
        yield DriverHost(lab, "gpu-r1")


@pytest.fixture(scope="module")
def clean(host: DriverHost) -> list[str]:
    """The snapshot of the host as it is at first."""
    return host.snapshot()


@pytest.mark.parametrize(("variables", "said"), [
    ({"driver_version": "580.1.1"}, f"It has {NEW}, {OLD}"),
    ({"driver_repository_fingerprint": "0" * 40}, "has the fingerprint"),
    ({"driver_repository_url": "http://192.0.2.1/nothing/", "driver_repository_key": "k.pub"}, "cannot be fetched"),
])
def test_bad_input_changes_nothing(host: DriverHost, clean: list[str], variables: dict[str, str], said: str) -> None:
    run = host.role(**variables)
    assert run.rc != 0 and said in run.errors()[0]
    assert host.snapshot() == clean


@pytest.mark.parametrize(("fault", "said"), [("down", "cannot be fetched"), ("wrong-key", "has the fingerprint")])
def test_a_disturbed_repository_changes_nothing(host: DriverHost, clean: list[str], fault: str, said: str) -> None:
    host.lab("fault", "repo", fault, "on")
    try:
        run = host.role(driver_version=OLD)
    finally:
        host.lab("fault", "repo", fault, "off")
    assert run.rc != 0 and said in run.errors()[0]
    assert host.snapshot() == clean


def test_first_installation_does_what_check_showed(host: DriverHost, clean: list[str]) -> None:
    check = host.role("--check", driver_version=OLD)
    assert check.rc == 0, check.output
    assert host.snapshot() == clean
    run = host.role(driver_version=OLD)
    assert run.rc == 0, run.output
    assert host.plan(run) == host.plan(check)
    assert set(host.brought().values()) == {OLD}
    assert OLD in host.sh("nvidia-smi --query-gpu=driver_version --format=csv,noheader")


def test_a_converged_host_is_left_alone_without_dnf(host: DriverHost) -> None:
    host.sh("mv /usr/bin/dnf /usr/bin/dnf.away; touch -d '1 hour ago' /var/cache/dnf /var/lib/rpm/rpmdb.sqlite")
    before = host.sh("stat -c '%n %Y' /var/cache/dnf/* /var/lib/dnf/* /var/lib/rpm/rpmdb.sqlite")
    try:
        run = host.role(driver_version=OLD)
    finally:
        host.sh("mv /usr/bin/dnf.away /usr/bin/dnf")
    assert run.rc == 0, run.output
    assert run.changed(host.name) == [] and host.plan(run) == []
    assert host.sh("stat -c '%n %Y' /var/cache/dnf/* /var/lib/dnf/* /var/lib/rpm/rpmdb.sqlite") == before


def test_upgrades_leave_the_version_even_with_the_vendors_own_repository(host: DriverHost) -> None:
    before = host.brought()
    url = host.sh("sed -n s/^baseurl=//p /etc/yum.repos.d/gpuops-driver.repo").strip()
    host.sh(f"printf '[cuda-rhel9-x86_64]\\nname=cuda\\nbaseurl={url}\\ngpgcheck=0\\n' "
            "> /etc/yum.repos.d/cuda-rhel9.repo")
    said = host.sh("dnf -y upgrade")
    host.sh("rm /etc/yum.repos.d/cuda-rhel9.repo")
    assert "Nothing to do" in said
    assert host.brought() == before


def test_up_and_down_between_branches(host: DriverHost) -> None:
    host.switch(driver_version=NEW)
    assert set(host.brought().values()) == {NEW}
    assert "Nothing to do" in host.sh("dnf -y upgrade")
    host.switch(driver_branch="580")
    assert set(host.brought().values()) == {OLD}
    assert OLD in host.sh("cat /proc/driver/nvidia/version")
    assert host.role(driver_branch="580").changed(host.name) == []


def test_open_and_proprietary_modules_of_one_version(host: DriverHost) -> None:
    host.switch(driver_version=OLD, driver_kernel_module_type="proprietary")
    assert "kmod-nvidia-latest-dkms" in host.brought() and "kmod-nvidia-open-dkms" not in host.brought()
    assert host.sh("modinfo -F license nvidia").strip() == "NVIDIA"
    assert "580-dkms" in host.sh("dnf -q module list --enabled nvidia-driver")
    host.switch(driver_version=OLD, driver_kernel_module_type="open")
    assert "MIT" in host.sh("modinfo -F license nvidia")
    assert "Open Kernel Module" in host.sh("cat /proc/driver/nvidia/version")


def test_a_run_killed_in_the_transaction_goes_on(host: DriverHost) -> None:
    with host.killed_in_transaction(NEW, "dnf"):
        cut = host.role(driver_version=NEW)
    assert cut.rc != 0, cut.output
    assert len(host.sh("rpm -q libnvidia-ml").splitlines()) == 2
    check = host.role("--check", driver_version=NEW)
    run = host.role(driver_version=NEW)
    assert run.rc == 0, run.output
    assert host.plan(run) == host.plan(check) and host.plan(run)[0].startswith("repair package database")
    assert set(host.brought().values()) == {NEW}
    assert "Error" not in host.sh("dnf -q check 2>&1")
    assert host.role(driver_version=NEW).changed(host.name) == []


def test_removal_leaves_nothing(host: DriverHost, clean: list[str]) -> None:
    check = host.role("--check", tasks="remove")
    run = host.role(tasks="remove")
    assert run.rc == 0, run.output
    assert host.plan(run) == host.plan(check) != []
    assert host.snapshot() == clean
    assert host.role(tasks="remove").changed(host.name) == []
