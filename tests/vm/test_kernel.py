# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A new kernel has the driver's module before it boots, and loads it by itself."""

from __future__ import annotations

from tests.vm.conftest import FIRST, Guest


def test_new_kernel_boots_with_its_module(guest: Guest, kernels: tuple[str, str]) -> None:
    _running, newer = kernels
    # Without its headers, as where only the kernel's package is upgraded: its scripts can build nothing.
    guest.sh(f"export DEBIAN_FRONTEND=noninteractive; apt-get -qq update; apt-get -qq install linux-image-{newer}")
    assert newer not in guest.sh("dkms status")
    result = guest.role(version=FIRST)
    assert result["changed"] and not result["pending"]
    assert f"nvidia/{FIRST}, {newer}, x86_64: installed" in guest.sh("dkms status")
    assert guest.sh("uname -r") != newer
    guest.works(FIRST)
    guest.machine.reboot()
    assert guest.sh("uname -r") == newer
    guest.works(FIRST)
    result = guest.role(version=FIRST)
    assert (result["changed"], result["plan"]) == (False, [])
