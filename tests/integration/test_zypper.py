# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver on a host with real zypper and rpm: installed, held, switched both ways, cut off, and taken away."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import yaml

from lab.packages.keys import keys
from tests.integration.conftest import own_lab
from tests.integration.driver import DriverHost

OLD, MIDDLE, NEW = "580.126.20", "595.80.01", "595.91.07"


@pytest.fixture(scope="module")
def host() -> Iterator[DriverHost]:
    """A host of SUSE Linux Enterprise Server in a lab of its own."""
    with own_lab("susetest", "gpu-s1=a100-80:1@sles15") as lab:
        yield DriverHost(lab, "gpu-s1")


@pytest.fixture(scope="module")
def clean(host: DriverHost) -> list[str]:
    """The snapshot of the host as it is at first."""
    return host.snapshot()


@pytest.mark.parametrize(("variables", "said"), [
    ({"driver_version": "595.1.1"}, f"It has {NEW}, {MIDDLE}, {OLD}"),
    ({"driver_repository_fingerprint": "0" * 40}, "has the fingerprint"),
    ({"driver_repository_url": "http://192.0.2.1/nothing/", "driver_repository_key": "k.pub"}, "cannot be fetched"),
    ({"driver_version": NEW, "driver_kernel_module_type": "proprietary"}, "no proprietary kernel modules of branch"),
])
def test_bad_input_changes_nothing(host: DriverHost, clean: list[str], variables: dict[str, str], said: str) -> None:
    run = host.role(**variables)
    assert run.rc != 0 and said in run.errors()[0], run.output
    assert host.snapshot() == clean


def test_metadata_that_another_key_has_signed_changes_nothing(host: DriverHost, clean: list[str]) -> None:
    hosts = yaml.safe_load(host.lab.hosts[0].read_text())["all"]["children"]["gpu_hosts"]["hosts"]
    server = hosts[host.name]["driver_repository_url"].partition("/compute/")[0]
    run = host.role(driver_version=OLD, driver_repository_key=f"{server}/wrong-key",
                    driver_repository_fingerprint=keys()["stranger"].fingerprint)
    assert run.rc != 0 and "is not signed by the key" in run.errors()[0], run.output
    assert host.snapshot() == clean


def test_a_lock_is_waited_for_and_named(host: DriverHost, clean: list[str]) -> None:
    host.sh("mkfifo /run/held; (zypper --non-interactive shell < /run/held > /dev/null 2>&1 &); "
            "(sleep 600 > /run/held &) < /dev/null > /dev/null 2>&1; "
            "timeout 300 sh -c 'until [ -s /run/zypp.pid ]; do sleep 0.2; done'")
    try:
        run = host.role(driver_version=OLD, driver_lock_timeout=3)
    finally:
        host.sh("pkill -x zypper; pkill -x sleep; rm -f /run/held")
    assert run.rc != 0 and "has held its lock for over 3 s" in run.errors()[0], run.output
    assert host.snapshot() == clean


def test_first_installation_does_what_check_showed(host: DriverHost, clean: list[str]) -> None:
    host.switch(driver_version=MIDDLE)
    assert set(host.brought().values()) == {MIDDLE}
    assert MIDDLE in host.sh("nvidia-smi --query-gpu=driver_version --format=csv,noheader")


def test_a_converged_host_is_left_alone_without_zypper(host: DriverHost) -> None:
    stat = "stat -c '%n %Y' /var/cache/zypp/* /var/lib/zypp/* /var/log/zypp* /var/lib/rpm/rpmdb.sqlite"
    host.sh("mv /usr/bin/zypper /usr/bin/zypper.away; "
            "touch -d '1 hour ago' /var/cache/zypp/* /var/lib/rpm/rpmdb.sqlite")
    before = host.sh(stat)
    try:
        run = host.role(driver_version=MIDDLE)
    finally:
        host.sh("mv /usr/bin/zypper.away /usr/bin/zypper")
    assert host.untouched(run)
    assert host.sh(stat) == before


@pytest.mark.parametrize("command", ["update", "dist-upgrade"])
def test_updates_leave_the_version_even_with_the_vendors_own_repository(host: DriverHost, command: str) -> None:
    before = host.brought()
    url = host.sh("sed -n s/^baseurl=//p /etc/zypp/repos.d/gpuops-driver.repo").strip()
    host.sh(f"printf '[cuda]\\nname=cuda\\nbaseurl={url}\\ngpgcheck=0\\nenabled=1\\npriority=10\\n' "
            "> /etc/zypp/repos.d/cuda.repo; zypper -n --no-gpg-checks refresh cuda")
    try:
        assert NEW in host.sh("zypper -n --no-refresh search -s nvidia-compute-utils-G07")
        said = host.sh(f"zypper -n --no-refresh {command}")
    finally:
        host.sh("rm /etc/zypp/repos.d/cuda.repo; rm -r /var/cache/zypp/*/cuda")
    assert "Nothing to do" in said
    assert host.brought() == before


def test_up_and_down_between_versions_and_generations(host: DriverHost) -> None:
    host.switch(driver_version=NEW)
    assert set(host.brought().values()) == {NEW}
    assert "Nothing to do" in host.sh("zypper -n --no-refresh update")
    host.switch(driver_branch="580")
    assert set(host.brought().values()) == {OLD} and all("G06" in name for name in host.brought())
    assert OLD in host.sh("cat /proc/driver/nvidia/version")
    assert host.untouched(host.role(driver_branch="580"))


def test_open_and_proprietary_modules_of_one_version(host: DriverHost) -> None:
    host.switch(driver_version=OLD, driver_kernel_module_type="proprietary")
    assert "nvidia-driver-G06" in host.brought() and "nvidia-open-driver-G06" not in host.brought()
    assert host.sh("modinfo -F license nvidia").strip() == "NVIDIA"
    host.switch(driver_version=OLD, driver_kernel_module_type="open")
    assert "Open Kernel Module" in host.sh("cat /proc/driver/nvidia/version")


def test_a_run_killed_in_the_transaction_goes_on(host: DriverHost) -> None:
    with host.killed_in_transaction(NEW, "zypper", "rpm"):
        cut = host.role(driver_version=NEW)
    assert cut.rc != 0, cut.output
    assert host.switch(driver_version=NEW)
    assert set(host.brought().values()) == {NEW}
    assert host.untouched(host.role(driver_version=NEW))


def test_removal_leaves_nothing(host: DriverHost, clean: list[str]) -> None:
    host.switch(tasks="remove")
    assert host.snapshot() == clean
    assert host.untouched(host.role(tasks="remove"))
