# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The kernel that boots next."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.missing_headers import (
    explain_missing_headers,
    missing_headers,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.next_kernel import NextKernel
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError

VERSION, KERNEL, NEXT = "595.91.07", "6.1.0-28-amd64", "6.1.0-31-amd64"
BUILD = f"build/build modules for the next kernel: {VERSION} for kernel {NEXT}"


def built(made: t.Any, kernel: str) -> None:
    made.put(f"/var/lib/dkms/nvidia/{VERSION}/{kernel}/x86_64/module/nvidia.ko")
    link = made.folder / f"var/lib/dkms/nvidia/kernel-{kernel}-x86_64"
    link.symlink_to(f"{VERSION}/{kernel}/x86_64")


@pytest.fixture
def newer(made: t.Any) -> t.Any:
    made.works(persistenced="active")
    built(made, KERNEL)
    made.put(f"/boot/vmlinuz-{KERNEL}")
    made.put(f"/boot/vmlinuz-{NEXT}")
    made.put(f"/lib/modules/{KERNEL}/build/Makefile")
    return made


@pytest.mark.parametrize(("said", "name"), [
    (f"apt cannot install linux-headers-{KERNEL}: E: Unable to locate package linux-headers-{KERNEL}",
     f"linux-headers-{KERNEL}"),
    ("dnf cannot install kernel-devel-5.14.0-427.el9.x86_64: No match for argument: kernel-devel-5.14.0-427.el9.x86_64",
     "kernel-devel-5.14.0-427.el9.x86_64"),
    ("apt cannot install nvidia-open: E: Unable to correct problems, you have held broken packages.", None),
])
def test_headers_that_no_repository_has_any_more(said: str, name: str | None) -> None:
    """Archives remove the headers of a kernel when the next one is published, but the host still runs it."""
    with pytest.raises(HostError) as caught, explain_missing_headers():
        raise HostError(said, "Look for held packages.")
    hint = caught.value.as_result()["error"]["hint"]
    assert hint == "Look for held packages." if name is None else f"no longer have {name}: upgrade the kernel" in hint


def test_no_other_kernel(made: t.Any) -> None:
    made.put(f"/boot/vmlinuz-{KERNEL}")
    assert made.ids(NextKernel) == []
    assert missing_headers(made.part(NextKernel).host.root, made.now, VERSION, True) == [f"linux-headers-{KERNEL}"]


def test_a_newer_kernel(newer: t.Any) -> None:
    part = newer.part(NextKernel)
    assert missing_headers(part.host.root, newer.now, VERSION, True) == [f"linux-headers-{NEXT}"]
    assert missing_headers(part.host.root, newer.now, VERSION, False) == []
    assert newer.ids(NextKernel, next_kernel=False) == []
    assert newer.ids(NextKernel) == [BUILD]
    assert "which boots next" in part.disagreements(newer.now, newer.desired)[0]
    built(newer, NEXT)
    assert newer.ids(NextKernel) == []
    assert missing_headers(part.host.root, newer.now, VERSION, True) == []
    assert part.disagreements(newer.now, newer.desired) == []


def test_a_build_that_fails_is_no_success(newer: t.Any) -> None:
    newer.answers["dkms install"] = (10, "Error! Bad return status\n")
    with pytest.raises(HostError, match=f"for the next kernel {NEXT}.*Bad return status"):
        newer.do(NextKernel)
    assert newer.asked[0][-4:] == ("-k", NEXT, "-a", "x86_64")


@pytest.mark.parametrize(("told", "good"), [(VERSION, True), ("580.95.05", False), ("", False)])
def test_what_that_kernel_would_load_is_looked_at(newer: t.Any, told: str, good: bool) -> None:
    part = newer.part(NextKernel)
    step = part.plan(newer.now, newer.desired)[0][1]
    built(newer, NEXT)
    newer.answers["modinfo -k"] = (0, told)
    if good:
        assert part.execute(step)
    else:
        with pytest.raises(HostError, match="would load (nvidia|no module)"):
            part.execute(step)
