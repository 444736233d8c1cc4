# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver on a host with real zypper and rpm: installed, held, switched both ways, interrupted, and removed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from lab.packages.keys import keys
from tests.integration import kernel_rpms
from tests.integration.conftest import own_lab
from tests.integration.driver import DriverHost, Refused
from tests.integration.series import Play

OLD, MIDDLE, NEW = "580.126.20", "595.80.01", "595.91.07"
SAID = {
    "no such version": f"It has {NEW}, {MIDDLE}, {OLD}",
    "another fingerprint": "has the fingerprint",
    "no such server": "cannot be fetched",
    "no such modules": "no proprietary kernel modules of branch",
    "another signature": "is not signed by the key",
    "lock": "has held its lock for over 3 s",
}
# A zypper that waits for commands has the lock.
HOLD_LOCK = """mkfifo /run/held
zypper --non-interactive shell < /run/held > /dev/null 2>&1 &
sleep 600 > /run/held < /dev/null 2> /dev/null &
timeout 60 sh -c 'until [ -s /run/zypp.pid ]; do sleep 0.1; done'"""
FREE_LOCK = "pkill -x zypper; pkill -x sleep; rm /run/held"


def refusals(server: str) -> dict[str, Play]:
    """The refused options, by case."""
    return {
        "no such version": Play({"driver_version": "595.1.1"}),
        "another fingerprint": Play({"driver_repository_fingerprint": "0" * 40}),
        "no such server": Play({"driver_repository_url": "http://192.0.2.1/nothing/",
                                "driver_repository_key": "k.pub"}),
        "no such modules": Play({"driver_version": NEW, "driver_kernel_module_type": "proprietary"}),
        "another signature": Play({"driver_version": OLD, "driver_repository_key": f"{server}/wrong-key",
                                   "driver_repository_fingerprint": keys()["stranger"].fingerprint}),
        "lock": Play({"driver_version": OLD, "driver_lock_timeout": 3}, first=HOLD_LOCK, then=FREE_LOCK),
    }


@pytest.fixture(scope="module")
def host() -> Iterator[DriverHost]:
    """A host with SUSE Linux Enterprise Server in a separate lab."""
    with own_lab("susetest", "gpu-s1=a100-80:1@sles15") as lab:
        yield DriverHost(lab, "gpu-s1")


@pytest.fixture(scope="module")
def clean(host: DriverHost) -> list[str]:
    """The initial state of the host."""
    return host.fresh_state()


@pytest.fixture(scope="module")
def refused(host: DriverHost, clean: list[str]) -> Refused:
    """All refused cases, on one fresh host."""
    host.start()
    hosts = yaml.safe_load(host.lab.hosts[0].read_text())["all"]["children"]["gpu_hosts"]["hosts"]
    server = hosts[host.name]["driver_repository_url"].partition("/compute/")[0]
    return Refused(host.run_each(refusals(server)), clean, host.state())


@pytest.fixture(scope="module")
def middle(host: DriverHost, clean: list[str]) -> list[str]:
    """The state C(middle) of the host, which has that version; the steps that check mode named and the run executed."""
    host.start()
    steps = host.steps(host.role("--check", driver_version=MIDDLE))
    assert host.state() == clean
    run, = host.run(Play({"driver_version": MIDDLE}))
    assert host.steps(run) == steps != []
    host.save("middle")
    return steps


@pytest.mark.parametrize(("case", "said"), SAID.items())
def test_bad_input_a_wrong_signature_and_a_lock_are_named(host: DriverHost, refused: Refused, case: str,
                                                          said: str) -> None:
    assert said in host.refused(refused.runs[case])


def test_what_is_refused_changes_nothing(refused: Refused) -> None:
    assert refused.after == refused.before


def test_first_installation_does_what_check_showed(host: DriverHost, middle: list[str]) -> None:
    host.start("middle")
    assert set(host.brought().values()) == {MIDDLE}
    assert MIDDLE in host.sh("nvidia-smi --query-gpu=driver_version --format=csv,noheader")
    host.left("middle")


def test_a_converged_host_is_left_alone_without_zypper(host: DriverHost, middle: list[str]) -> None:
    host.start("middle")
    stat = "stat -c '%n %Y' /var/cache/zypp/* /var/lib/zypp/* /var/log/zypp* /var/lib/rpm/rpmdb.sqlite"
    host.sh("mv /usr/bin/zypper /usr/bin/zypper.away; "
            "touch -d '1 hour ago' /var/cache/zypp/* /var/lib/rpm/rpmdb.sqlite")
    before = host.sh(stat)
    host.untouched(host.run(Play({"driver_version": MIDDLE}))[0])
    assert host.sh(stat) == before
    host.sh("mv /usr/bin/zypper.away /usr/bin/zypper")
    host.left("middle")


def test_updates_leave_the_version_even_with_the_vendors_own_repository(host: DriverHost, middle: list[str]) -> None:
    host.start("middle")
    before = host.brought()
    url = host.sh("sed -n s/^baseurl=//p /etc/zypp/repos.d/gpuops-driver.repo").strip()
    host.sh(f"printf '[cuda]\\nname=cuda\\nbaseurl={url}\\ngpgcheck=0\\nenabled=1\\npriority=10\\n' "
            "> /etc/zypp/repos.d/cuda.repo; zypper -n --no-gpg-checks refresh cuda")
    assert NEW in host.sh("zypper -n --no-refresh search -s nvidia-compute-utils-G07")
    for command in ("update", "dist-upgrade"):
        assert "Nothing to do" in host.sh(f"zypper -n --no-refresh {command}"), command
        assert host.brought() == before, command


def test_updates_bring_no_kernel_while_kernels_are_held(host: DriverHost, middle: list[str], tmp_path: Path) -> None:
    """Headers of the installed kernel can be installed meanwhile. The kernel is not that of this machine, whose release
    can have any form."""
    host.start("middle")
    now, newer = "6.4.0-150600.8.5", "6.4.0-150600.8.17"
    names = ("kernel-azure", "kernel-azure-devel", "other")
    host.sh(kernel_rpms.put(tmp_path, *(kernel_rpms.package(name, *f"{release}.1".split("-"))
                                        for release in (now, newer) for name in names)) +
            f"printf '[kernels]\\nname=kernels\\nbaseurl=dir://{kernel_rpms.FOLDER}\\ngpgcheck=0\\n' "
            f"> /etc/zypp/repos.d/kernels.repo; touch /boot/vmlinuz-{now}-azure; "
            "zypper -n --no-gpg-checks refresh kernels; "
            f"zypper -n --no-refresh install --oldpackage kernel-azure-{now}.1 other-{now}.1")
    update = "zypper -n --no-refresh update; zypper -n --no-refresh dist-upgrade; rpm -q kernel-azure other"
    path = "/etc/zypp/systemCheck.d/gpuops-kernel.check"
    check, run, again = host.run(*(Play({"driver_version": MIDDLE, "driver_hold_kernel": True}, check=check, then=then)
                                   for check, then in ((True, ""), (False, update), (False, ""))))
    assert host.steps(check) == host.steps(run) == [f"hold kernels: {path}"]
    host.untouched(again)
    installed = run.said.splitlines()[-2:]
    assert installed == [f"kernel-azure-{now}.1.x86_64", f"other-{newer}.1.x86_64"], run.said
    headers = f"kernel-azure-devel={now}.1"
    assert headers.replace("=", "-") in host.sh(f"zypper -n --no-refresh install {headers}; rpm -qa")
    release, = host.run(Play({"driver_version": MIDDLE}, then=update))
    assert host.steps(release) == [f"release kernels: {path}"]
    assert f"kernel-azure-{newer}.1" in release.said.splitlines()[-2]


def test_up_and_down_between_versions_generations_and_flavours(host: DriverHost, middle: list[str]) -> None:
    host.start("middle")
    host.switch(driver_version=NEW)
    assert set(host.brought().values()) == {NEW}
    assert "Nothing to do" in host.sh("zypper -n --no-refresh update")
    host.switch(driver_branch="580", twice=True)
    assert set(host.brought().values()) == {OLD} and all("G06" in name for name in host.brought())
    assert OLD in host.sh("cat /proc/driver/nvidia/version")
    # Open and proprietary modules of one version.
    host.switch(driver_version=OLD, driver_kernel_module_type="proprietary")
    assert "nvidia-driver-G06" in host.brought() and "nvidia-open-driver-G06" not in host.brought()
    assert host.sh("modinfo -F license nvidia").strip() == "NVIDIA"
    host.switch(driver_version=OLD, driver_kernel_module_type="open")
    assert "Open Kernel Module" in host.sh("cat /proc/driver/nvidia/version")


def test_a_run_killed_in_the_transaction_goes_on_and_removal_leaves_nothing(host: DriverHost, clean: list[str],
                                                                            middle: list[str]) -> None:
    host.start("middle")
    with host.killed_in_transaction(OLD, "zypper", "rpm"):
        cut, = host.run(Play({"driver_version": OLD}))
    assert cut.rc != 0, cut.output
    assert host.switch(driver_version=OLD, driver_hold_kernel=True, twice=True)
    assert set(host.brought().values()) == {OLD}
    host.switch(tasks="remove", twice=True)
    assert host.state() == clean
