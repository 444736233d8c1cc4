# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Messages of the kernel and of the vendor's programs, and the errors that result from them; free space of file
systems."""

from __future__ import annotations

import os
import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.disk_space import check_free_space
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.failures import explain, explain_error
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import CommandError, HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Completed

KERNEL = "6.1.0-28-amd64"


@pytest.mark.parametrize(("line", "word"), [
    ("NVRM: API mismatch: the client has the version 595.91.07, but NVRM: this kernel module has 580.126.20.",
     "different versions"),
    ("Failed to initialize NVML: Driver/library version mismatch", "different versions"),
    ("NVRM: installed in this system requires use of the NVIDIA open kernel modules.", "need open kernel modules"),
    ("NVRM: installed in this system is not supported by open nvidia.ko because it does not include the required GPU "
     "System Processor (GSP).", "no GSP"),
    ("NVRM: installed in this system is not supported by the NVIDIA 595.91.07 driver release.", "does not support one"),
    ("NVRM: GPU 0000:07:00.0: GPU has fallen off the bus.", "hardware"),
    ("NVRM: Xid (PCI:0000:07:00): 79, pid=77, GPU has gone.", "hardware"),
    ("NVRM: GPU 0000:07:00.0: RmInitAdapter failed! (0x22:0x56:884)", "could not be initialised"),
    ("NVRM: No NVIDIA GPU found.", "No GPU is visible"),
    ("NVRM: The NVIDIA probe routine was not called for 8 device(s).", "Another driver"),
    ("modprobe: ERROR: could not insert 'nvidia': Key was rejected by service", "Secure Boot"),
    ("modprobe: ERROR: could not insert 'nvidia': No such device", "no GPU that it supports"),
    (f"modprobe: FATAL: Module nvidia not found in directory /lib/modules/{KERNEL}", "no driver module"),
    (f"Error! Your kernel headers for kernel {KERNEL} cannot be found at /lib/modules/{KERNEL}/build.", "headers"),
    ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", "is not loaded"),
    ("No devices were found", "finds no GPU"),
    ("ERROR: The installation was canceled due to the availability or presence of an alternate driver installation.",
     "found packages of a driver"),
    ("ERROR: An NVIDIA kernel module 'nvidia-uvm' appears to be already loaded in your kernel.",
     "while a module is loaded"),
    ("rmmod: ERROR: Module nvidia is in use by: nvidia_uvm", "uses the GPUs"),
])
def test_known_messages(line: str, word: str) -> None:
    found = explain(f"something before\n{line}\nsomething after")
    assert found and found[0]["message"] == line and found[0]["action"]
    assert word in found[0]["meaning"]


def test_unknown_messages_are_left_alone() -> None:
    assert explain("nvidia: module verification failed: signature and/or required key missing - tainting kernel") == []


def test_an_error_takes_up_what_the_kernel_said_since() -> None:
    asked: list[tuple[str, ...]] = []

    def run(argv: t.Sequence[str], **_options: t.Any) -> Completed:
        asked.append(tuple(argv))
        return Completed(tuple(argv), 0, f"eth0: link up\n{said}\n", "")

    said = "NVRM: GPU 0000:07:00.0: GPU requires use of the NVIDIA open kernel modules."
    error = CommandError(["modprobe", "nvidia"], 1, "", "modprobe: ERROR: could not insert 'nvidia': No such device")
    explain_error(error, run, 1763755200.7)
    assert asked[0][-1] == "@1763755200" and "-k" in asked[0]
    assert error.details["kernel_log"] == [said]
    assert [one["meaning"] for one in error.details["explained"]] == [
        "These GPUs need open kernel modules.", "The module found no GPU that it supports."]
    assert error.message.endswith("That means: These GPUs need open kernel modules.")
    assert error.hint.startswith("Set kernel_module_type to open")


def folders(root: Path) -> Root:
    for name in ("usr", "etc", "var/cache", "boot"):
        (root / name).mkdir(parents=True)
    return Root(str(root))


class Disk(t.NamedTuple):
    f_bavail: int
    f_flag: int = 0
    f_frsize: int = 1 << 20


@pytest.mark.parametrize(("free", "flag", "words"), [
    (4000, os.ST_RDONLY, "/usr is mounted read-only"),
    (1000, 0, "/usr has 1000 MiB left, and the driver needs 1024 MiB there"),
    (1500, 0, "/var/lib has 1500 MiB left, and the driver needs 1924 MiB there"),
])
def test_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, flag: int, words: str) -> None:
    """The required sizes are added if folders share a file system; a folder that does not exist yet counts where it
    will be created."""
    root = folders(tmp_path)
    (tmp_path / "var/lib").mkdir()
    monkeypatch.setattr(os, "statvfs", lambda _path: Disk(free, flag))
    with pytest.raises(HostError, match=words):
        check_free_space(root, KERNEL)


def test_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = folders(tmp_path)
    (tmp_path / f"boot/initrd.img-{KERNEL}").write_bytes(b"0" * (4 << 20))
    monkeypatch.setattr(os, "statvfs", lambda _path: Disk(1931))
    check_free_space(root, KERNEL)
    monkeypatch.setattr(os, "statvfs", lambda _path: Disk(1930))
    with pytest.raises(HostError, match="/boot has 1930 MiB left"):
        check_free_space(root, KERNEL)
