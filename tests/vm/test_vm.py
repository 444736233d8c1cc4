# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver with a real kernel: DKMS and gcc, kmod, references to modules, boot, a new kernel. In this order."""

from __future__ import annotations

from tests.vm.conftest import FIRST, OTHER, Guest

ALL = {"nvidia", "nvidia_uvm", "nvidia_modeset"}
PROFILING = {"nvidia": {"NVreg_RestrictProfilingToAdminUsers": 0}}


def loaded(guest: Guest) -> set[str]:
    """The driver's modules that the kernel has."""
    return {line.split()[0] for line in guest.sh("cat /proc/modules").splitlines() if line.startswith("nvidia")}


def works(guest: Guest, version: str) -> None:
    """The kernel, the library, the tool and the device nodes agree."""
    assert guest.sh("cat /sys/module/nvidia/version") == version
    assert f" {version} " in guest.sh("cat /proc/driver/nvidia/version")
    assert loaded(guest) >= ALL
    assert len(guest.sh("nvidia-smi -L").splitlines()) == 2
    assert version in guest.sh("nvidia-smi")
    assert guest.sh("ls /dev/nvidia0 /dev/nvidia1 /dev/nvidiactl /dev/nvidia-uvm | wc -l") == "4"
    # The kernel accepts these numbers: there is a driver behind the nodes.
    guest.sh("exec 3< /dev/nvidia1 4< /dev/nvidiactl 5< /dev/nvidia-uvm")


def test_first_driver_was_built_by_dkms(guest: Guest) -> None:
    works(guest, FIRST)
    kernel = guest.sh("uname -r")
    assert f"nvidia/{FIRST}, {kernel}, x86_64: installed" in guest.sh("dkms status")
    assert guest.sh("modinfo -F vermagic nvidia").startswith(f"{kernel} SMP")
    assert "nvidia" in guest.sh("modinfo -F depends nvidia-uvm").split(",")
    assert "CC [M]" in guest.sh(f"cat /var/lib/dkms/nvidia/{FIRST}/{kernel}/x86_64/log/make.log")


def test_parameters_take_effect(guest: Guest) -> None:
    assert "RmProfilingAdminOnly: 1" in guest.sh("cat /proc/driver/nvidia/params")
    assert guest.role(version=FIRST, module_parameters=PROFILING)["changed"]
    assert "RmProfilingAdminOnly: 0" in guest.sh("cat /proc/driver/nvidia/params")
    works(guest, FIRST)


def test_unload_is_refused_while_a_unit_holds_a_gpu(guest: Guest) -> None:
    guest.sh("systemd-run --quiet --unit trainer sh -c 'exec sleep infinity < /dev/nvidia0'")
    pid = int(guest.sh("systemctl show trainer --property MainPID --value"))
    assert "in use" in guest.fails("rmmod nvidia")
    before = guest.situation()
    result = guest.role(version=OTHER, module_parameters=PROFILING)
    assert not result["changed"]
    assert [(one["pid"], one["unit"]) for one in result["holders"]] == [(pid, "trainer.service")]
    assert result["pending"][0]["action"] == "unload modules"
    assert "held by trainer.service" in result["pending"][0]["pending_reason"]
    assert guest.situation() == before
    works(guest, FIRST)
    guest.sh("systemctl stop trainer")


def test_switch_and_reload_without_reboot(guest: Guest) -> None:
    boot = guest.sh("cat /proc/sys/kernel/random/boot_id")
    foreseen = guest.plan(version=OTHER, module_parameters=PROFILING)
    result = guest.role(version=OTHER, module_parameters=PROFILING)
    assert [step["id"] for step in result["plan"]] == foreseen
    assert (result["pending"], result["reboot_required"]) == ([], False)
    works(guest, OTHER)
    assert guest.sh("cat /proc/sys/kernel/random/boot_id") == boot
    assert "RmProfilingAdminOnly: 0" in guest.sh("cat /proc/driver/nvidia/params")


def test_new_kernel_boots_with_its_module(guest: Guest, kernels: tuple[str, str]) -> None:
    _running, newer = kernels
    # Without its headers, as where only the kernel's package is upgraded: its scripts can build nothing.
    guest.sh(f"export DEBIAN_FRONTEND=noninteractive; apt-get -qq update; apt-get -qq install linux-image-{newer}")
    assert newer not in guest.sh("dkms status")
    result = guest.role(version=OTHER, module_parameters=PROFILING)
    assert result["changed"] and not result["pending"]
    assert f"nvidia/{OTHER}, {newer}, x86_64: installed" in guest.sh("dkms status")
    assert guest.sh("uname -r") != newer
    works(guest, OTHER)
    guest.machine.reboot()
    assert guest.sh("uname -r") == newer
    works(guest, OTHER)
    assert "RmProfilingAdminOnly: 0" in guest.sh("cat /proc/driver/nvidia/params")
    result = guest.role(version=OTHER, module_parameters=PROFILING)
    assert (result["changed"], result["plan"]) == (False, [])
