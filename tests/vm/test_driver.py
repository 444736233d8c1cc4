# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver with a real kernel: DKMS and gcc, kmod, references to modules, a kernel that boots next.

One machine, one test: each part continues from the previous one, because an emulated processor takes a minute for a
module.
"""

from __future__ import annotations

import pytest

from tests.vm.conftest import FIRST, OTHER, Guest

PROFILING = {"nvidia": {"NVreg_RestrictProfilingToAdminUsers": 0}}


@pytest.mark.timeout(1800)  # the first test on a machine also makes its disk
def test_driver_of_somebody_elses_to_another_one_over_a_kernel(guest: Guest, kernels: tuple[str, str]) -> None:
    running, newer = kernels
    converge(guest, running, newer)
    refuse_to_unload(guest)
    guest.machine.reboot()
    assert guest.sh("uname -r") == newer
    guest.works(FIRST)
    result = guest.role(version=FIRST, module_parameters=PROFILING)
    assert (result["changed"], result["plan"]) == (False, [])
    switch(guest, newer)


def converge(guest: Guest, running: str, newer: str) -> None:
    """An existing driver gets its parameters by a reload, and a module for the kernel that boots next."""
    assert "RmProfilingAdminOnly: 1" in guest.sh("cat /proc/driver/nvidia/params")
    assert guest.sh("uname -r") == running
    result = guest.role(version=FIRST, module_parameters=PROFILING)
    assert result["changed"] and not result["pending"]
    assert "RmProfilingAdminOnly: 0" in guest.sh("cat /proc/driver/nvidia/params")
    assert f"nvidia/{FIRST}, {newer}, x86_64: installed" in guest.sh("dkms status")
    assert "CC [M]" in guest.sh(f"cat /var/lib/dkms/nvidia/{FIRST}/{newer}/x86_64/log/make.log")
    assert guest.sh(f"modinfo -k {newer} -F vermagic nvidia").startswith(f"{newer} SMP")
    assert "nvidia" in guest.sh(f"modinfo -k {newer} -F depends nvidia-uvm").split(",")
    guest.works(FIRST)


def refuse_to_unload(guest: Guest) -> None:
    """While a unit uses a GPU, nothing is changed."""
    pid = guest.hold()
    assert "in use" in guest.fails("rmmod nvidia")
    before = guest.situation()
    result = guest.role(version=OTHER, module_parameters=PROFILING)
    assert not result["changed"]
    assert [(one["pid"], one["unit"]) for one in result["holders"]] == [(pid, "trainer.service")]
    assert result["pending"][0]["action"] == "unload modules"
    # A transient unit cannot be started again: its process counts, not the unit.
    assert f"in use by sleep (pid {pid}, trainer.service)" in result["pending"][0]["pending_reason"]
    assert guest.situation() == before
    guest.works(FIRST)


def switch(guest: Guest, kernel: str) -> None:
    """Switches to another driver without a reboot."""
    boot_id = guest.sh("cat /proc/sys/kernel/random/boot_id")
    result = guest.role(version=OTHER, module_parameters=PROFILING)
    assert (result["pending"], result["reboot_required"]) == ([], False)
    guest.works(OTHER)
    assert guest.sh("cat /proc/sys/kernel/random/boot_id") == boot_id
    assert f"nvidia/{OTHER}, {kernel}, x86_64: installed" in guest.sh("dkms status")
    assert "RmProfilingAdminOnly: 0" in guest.sh("cat /proc/driver/nvidia/params")
