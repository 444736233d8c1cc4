# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is rebuilt on the host: the initial RAM file system by its own program, modules of another flavour by DKMS."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.build import Build
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.initramfs import Initramfs, request_rebuild
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.parts import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.spec import Spec
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root

from tests.unit.driver.conftest import KERNEL, VERSION, Made


@pytest.mark.parametrize(("program", "image", "words"), [
    ("/usr/sbin/update-initramfs", f"/boot/initrd.img-{KERNEL}", ("-u", "-k", KERNEL)),
    ("/usr/bin/dracut", f"/boot/initramfs-{KERNEL}.img", ("--force", "--kver", KERNEL)),
    ("/usr/bin/dracut", f"/boot/initrd-{KERNEL}", ("--force", "--kver", KERNEL)),
])
def test_initramfs(made: Made, program: str, image: str, words: tuple[str, ...]) -> None:
    part = Initramfs(Host(Spec(), made.run, Root(str(made.folder)), made.journal))
    request_rebuild(made.journal)
    assert part.plan(made.now, []) == []
    made.put(program)
    made.put(image)
    [(_phase, step)] = part.plan(made.now, [])
    assert part.execute(step)
    assert made.asked == [(program, *words)]
    assert part.plan(made.now, []) == []


def test_the_kernel_that_boots_next_has_an_initramfs_too(made: Made) -> None:
    """An initramfs from before nouveau was deny-listed would load nouveau again at the next boot."""
    part = Initramfs(Host(Spec(), made.run, Root(str(made.folder)), made.journal))
    newer = "6.1.0-31-amd64"
    made.put("/usr/sbin/update-initramfs")
    for kernel in (KERNEL, newer, "6.1.0-9-amd64"):
        made.put(f"/boot/vmlinuz-{kernel}")
        made.put(f"/boot/initrd.img-{kernel}")
    request_rebuild(made.journal)
    [(_phase, step)] = part.plan(made.now, [])
    assert step.id == f"rebuild initramfs: {KERNEL} {newer}"
    part.execute(step)
    assert made.asked == [("/usr/sbin/update-initramfs", "-u", "-k", kernel) for kernel in (KERNEL, newer)]
    assert part.plan(made.now, []) == []


def built(made: Made, license_name: str) -> None:
    """DKMS has built the version; modinfo reports its flavour."""
    made.put(f"/var/lib/dkms/nvidia/{VERSION}/{KERNEL}/x86_64/module/nvidia.ko")
    (made.folder / f"var/lib/dkms/nvidia/kernel-{KERNEL}-x86_64").symlink_to(f"{VERSION}/{KERNEL}/x86_64")
    made.answers[f"modinfo -k {KERNEL} -F license nvidia"] = (0, f"{license_name}\n")
    made.now = replace(made.now, built=(VERSION,), registered={VERSION: "nvidia"})


def test_modules_of_the_wanted_flavour_stay(made: Made) -> None:
    built(made, "Dual MIT/GPL")
    made.do(Build)
    assert not [words for words in made.asked if words[0] == "dkms"]


def test_modules_of_the_other_flavour_are_built_anew(made: Made) -> None:
    built(made, "NVIDIA")
    made.do(Build)
    assert [words[:2] for words in made.asked if words[0] == "dkms"] == [("dkms", "remove"), ("dkms", "install")]
