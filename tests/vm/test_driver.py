# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver with a real kernel: DKMS and gcc, kmod, references to modules. In this order."""

from __future__ import annotations

from tests.vm.conftest import FIRST, OTHER, Guest

PROFILING = {"nvidia": {"NVreg_RestrictProfilingToAdminUsers": 0}}


def test_first_driver_was_built_by_dkms(guest: Guest) -> None:
    guest.works(FIRST)
    kernel = guest.sh("uname -r")
    assert f"nvidia/{FIRST}, {kernel}, x86_64: installed" in guest.sh("dkms status")
    assert guest.sh("modinfo -F vermagic nvidia").startswith(f"{kernel} SMP")
    assert "nvidia" in guest.sh("modinfo -F depends nvidia-uvm").split(",")
    assert "CC [M]" in guest.sh(f"cat /var/lib/dkms/nvidia/{FIRST}/{kernel}/x86_64/log/make.log")


def test_parameters_take_effect(guest: Guest) -> None:
    assert "RmProfilingAdminOnly: 1" in guest.sh("cat /proc/driver/nvidia/params")
    assert guest.role(version=FIRST, module_parameters=PROFILING)["changed"]
    assert "RmProfilingAdminOnly: 0" in guest.sh("cat /proc/driver/nvidia/params")
    guest.works(FIRST)


def test_unload_is_refused_while_a_unit_holds_a_gpu(guest: Guest) -> None:
    pid = guest.hold()
    assert "in use" in guest.fails("rmmod nvidia")
    before = guest.situation()
    result = guest.role(version=OTHER, module_parameters=PROFILING)
    assert not result["changed"]
    assert [(one["pid"], one["unit"]) for one in result["holders"]] == [(pid, "trainer.service")]
    assert result["pending"][0]["action"] == "unload modules"
    assert "held by trainer.service" in result["pending"][0]["pending_reason"]
    assert guest.situation() == before
    guest.works(FIRST)
    guest.sh("systemctl stop trainer")


def test_switch_and_reload_without_reboot(guest: Guest) -> None:
    boot = guest.sh("cat /proc/sys/kernel/random/boot_id")
    foreseen = guest.plan(version=OTHER, module_parameters=PROFILING)
    result = guest.role(version=OTHER, module_parameters=PROFILING)
    assert [step["id"] for step in result["plan"]] == foreseen
    assert (result["pending"], result["reboot_required"]) == ([], False)
    guest.works(OTHER)
    assert guest.sh("cat /proc/sys/kernel/random/boot_id") == boot
    assert "RmProfilingAdminOnly: 0" in guest.sh("cat /proc/driver/nvidia/params")
