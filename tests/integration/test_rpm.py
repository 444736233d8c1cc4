# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver on a host with real dnf and rpm: installed, held, switched both ways, interrupted, and removed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.dnf_excludes import with_headers

from tests.integration import kernel_rpms
from tests.integration.conftest import own_lab
from tests.integration.driver import DriverHost, Refused
from tests.integration.series import Play

OLD, NEW = "580.126.20", "595.91.07"
BAD = {
    "no such version": ({"driver_version": "580.1.1"}, f"It has {NEW}, {OLD}"),
    "another fingerprint": ({"driver_repository_fingerprint": "0" * 40}, "has the fingerprint"),
    "no such server": ({"driver_repository_url": "http://192.0.2.1/nothing/", "driver_repository_key": "k.pub"},
                       "cannot be fetched"),
}
FAULTS = {"down": "cannot be fetched", "wrong-key": "has the fingerprint"}


@pytest.fixture(scope="module")
def host() -> Iterator[DriverHost]:
    """A Rocky Linux host in a separate lab."""
    with own_lab("rpmtest", "gpu-r1=h100-80:8@rocky9") as lab:
        yield DriverHost(lab, "gpu-r1")


@pytest.fixture(scope="module")
def clean(host: DriverHost) -> list[str]:
    """The initial state of the host."""
    return host.fresh_state()


@pytest.fixture(scope="module")
def refused(host: DriverHost, clean: list[str]) -> Refused:
    """All refused cases, on one fresh host."""
    host.start()
    runs = host.run_each({case: Play(variables) for case, (variables, _said) in BAD.items()})
    for fault in FAULTS:
        with host.fault(fault):
            runs.update(host.run_each({fault: Play({"driver_version": OLD})}))
    return Refused(runs, clean, host.state())


@pytest.fixture(scope="module")
def old(host: DriverHost, clean: list[str]) -> list[str]:
    """The state C(old) of the host, which has the old version; the steps that check mode named and the run executed."""
    host.start()
    check = host.role("--check", driver_version=OLD)
    steps = host.steps(check)
    assert host.state() == clean
    run, = host.run(Play({"driver_version": OLD}))
    assert host.steps(run) == steps != []
    host.save("old")
    return steps


@pytest.mark.parametrize(("case", "said"), [*((case, said) for case, (_variables, said) in BAD.items()),
                                            *FAULTS.items()])
def test_bad_input_and_a_disturbed_repository_are_named(host: DriverHost, refused: Refused, case: str,
                                                        said: str) -> None:
    assert said in host.refused(refused.runs[case])


def test_what_is_refused_changes_nothing(refused: Refused) -> None:
    assert refused.after == refused.before


def test_first_installation_does_what_check_showed(host: DriverHost, old: list[str]) -> None:
    host.start("old")
    assert set(host.brought().values()) == {OLD}
    assert OLD in host.sh("nvidia-smi --query-gpu=driver_version --format=csv,noheader")
    host.left("old")


def test_a_converged_host_is_left_alone_without_dnf(host: DriverHost, old: list[str]) -> None:
    host.start("old")
    stat = "stat -c '%n %Y' /var/cache/dnf/* /var/lib/dnf/* /var/lib/rpm/rpmdb.sqlite"
    host.sh("mv /usr/bin/dnf /usr/bin/dnf.away; touch -d '1 hour ago' /var/cache/dnf /var/lib/rpm/rpmdb.sqlite")
    before = host.sh(stat)
    host.untouched(host.run(Play({"driver_version": OLD}))[0])
    assert host.sh(stat) == before
    host.sh("mv /usr/bin/dnf.away /usr/bin/dnf")
    host.left("old")


def test_upgrades_leave_the_version_even_with_the_vendors_own_repository(host: DriverHost, old: list[str]) -> None:
    host.start("old")
    before = host.brought()
    url = host.sh("sed -n s/^baseurl=//p /etc/yum.repos.d/gpuops-driver.repo").strip()
    host.sh(f"printf '[cuda-rhel9-x86_64]\\nname=cuda\\nbaseurl={url}\\ngpgcheck=0\\n' "
            "> /etc/yum.repos.d/cuda-rhel9.repo")
    assert "Nothing to do" in host.sh("dnf -y upgrade")
    assert host.brought() == before


def test_upgrades_bring_no_kernel_while_kernels_are_held(host: DriverHost, old: list[str], tmp_path: Path) -> None:
    """Headers can be installed meanwhile, by this collection."""
    host.start("old")
    host.sh(kernel_rpms.put(tmp_path, *(kernel_rpms.package(name, version, "1.el9") for version in ("99.1", "99.2")
                                        for name in ("kernel", "kernel-rt-devel", "other"))) +
            f"printf '[kernels]\\nname=kernels\\nbaseurl=file://{kernel_rpms.FOLDER}\\ngpgcheck=0\\n' "
            "> /etc/yum.repos.d/kernels.repo; echo excludepkgs=mine >> /etc/dnf/dnf.conf; "
            "dnf -q -y install kernel-99.1 other-99.1")
    before = host.sh("cat /etc/dnf/dnf.conf")
    upgrade = "dnf -q -y upgrade; rpm -q --qf '%{NAME}-%{VERSION} ' kernel other"
    check, run, again = host.run(*(Play({"driver_version": OLD, "driver_hold_kernel": True}, check=check, then=then)
                                   for check, then in ((True, ""), (False, upgrade), (False, ""))))
    assert host.steps(check) == host.steps(run) == ["hold kernels: /etc/dnf/dnf.conf"]
    host.untouched(again)
    assert run.said.split()[-2:] == ["kernel-99.1", "other-99.2"], run.said
    install = "dnf --assumeno %s install kernel-rt-devel-99.1 2>&1; true"
    assert "filtered out by exclude filtering" in host.sh(install % "")
    found = host.sh(install % " ".join(f"'{word}'" for word in with_headers(host.sh("cat /etc/dnf/dnf.conf"))))
    assert "Install  1 Package" in found, found
    release, = host.run(Play({"driver_version": OLD}, then=f"cat /etc/dnf/dnf.conf; {upgrade}"))
    assert host.steps(release) == ["release kernels: /etc/dnf/dnf.conf"]
    assert release.said.startswith(before) and "kernel-99.2" in release.said


def test_up_and_down_between_branches(host: DriverHost, old: list[str]) -> None:
    host.start("old")
    host.switch(driver_version=NEW)
    assert set(host.brought().values()) == {NEW}
    assert "Nothing to do" in host.sh("dnf -y upgrade")
    host.switch(driver_branch="580", twice=True)
    assert set(host.brought().values()) == {OLD}
    assert OLD in host.sh("cat /proc/driver/nvidia/version")


def test_open_and_proprietary_modules_of_one_version(host: DriverHost, old: list[str]) -> None:
    host.start("old")
    host.switch(driver_version=OLD, driver_kernel_module_type="proprietary")
    assert "kmod-nvidia-latest-dkms" in host.brought() and "kmod-nvidia-open-dkms" not in host.brought()
    assert host.sh("modinfo -F license nvidia").strip() == "NVIDIA"
    assert "580-dkms" in host.sh("dnf -q module list --enabled nvidia-driver")
    host.switch(driver_version=OLD, driver_kernel_module_type="open")
    assert "MIT" in host.sh("modinfo -F license nvidia")
    assert "Open Kernel Module" in host.sh("cat /proc/driver/nvidia/version")


def test_the_packages_of_a_desktop_come_and_go(host: DriverHost, old: list[str]) -> None:
    host.start("old")
    before = host.brought()
    assert host.switch(driver_version=OLD, driver_installation="full", driver_disruption="never", twice=True)
    assert {"nvidia-open", "nvidia-driver"} <= set(host.brought()) and set(host.brought().values()) == {OLD}
    steps = host.switch(driver_version=OLD, driver_installation="compute-only", driver_disruption="never", twice=True)
    assert [step.partition(":")[0] for step in steps] == ["purge packages"]
    assert host.brought() == before and "Error" not in host.sh("dnf -q check 2>&1")


def test_a_run_killed_in_the_transaction_goes_on_and_removal_leaves_nothing(host: DriverHost, clean: list[str],
                                                                            old: list[str]) -> None:
    host.start("old")
    with host.killed_in_transaction(NEW, "dnf"):
        cut, = host.run(Play({"driver_version": NEW}))
    assert cut.rc != 0, cut.output
    assert len(host.sh("rpm -q libnvidia-ml").splitlines()) == 2
    steps = host.switch(driver_version=NEW, driver_hold_kernel=True, twice=True)
    assert steps[0].startswith("hold kernels") and steps[1].startswith("repair package database")
    assert set(host.brought().values()) == {NEW}
    assert "Error" not in host.sh("dnf -q check 2>&1")
    host.switch(tasks="remove", twice=True)
    assert host.state() == clean
