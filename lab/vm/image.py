# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The virtual machine's disk: Debian 12 with a cloud kernel, GRUB, DKMS and gcc. It is created without mounting a file
system."""

from __future__ import annotations

import shutil
import struct
import subprocess
import tempfile
from pathlib import Path

from lab.host import image as host_image
from lab.nvml.build import build as build_nvml
from lab.tools import cached, run_quietly

HERE = Path(__file__).resolve().parent / "guest"
SUITE = "bookworm"
INCLUDE = ("systemd", "systemd-sysv", "udev", "dbus", "openssh-server", "python3", "kmod", "procps", "iproute2",
           "ca-certificates", "pciutils", "make", "dkms", "gcc", "libc6-dev", "less", "initramfs-tools", "grub-pc-bin",
           "grub2-common")
SECTOR = 512
FIRST = 2048  # the partition's first sector; GRUB's image lies before it
MIB = 6144  # what the disk may hold; it is stored sparse


def rootfs() -> Path:
    """The folder with root.tar, boot.img, core.img and kernels (two releases, the older first); a minute and a half."""
    options = ["--variant=minbase", "--components=main", "--aptopt=Apt::Install-Recommends \"false\"",
               *(f"--dpkgopt=path-exclude={path}" for path in host_image.WITHOUT), f"--include={','.join(INCLUDE)}"]
    hook = HERE / "root.sh"

    def make(folder: Path) -> None:
        print(f"making the virtual machine's root file system: Debian {SUITE} with two kernels", flush=True)
        run_quietly(["mmdebstrap", *options, f"--customize-hook=sh {hook} \"$1\" {folder}", "--format=tar", SUITE,
                     str(folder / "root.tar")], "the virtual machine's root file system")

    return cached("vm-root", [SUITE.encode(), hook.read_bytes(), *(option.encode() for option in options)], make)


def kernels() -> tuple[str, str]:
    """The releases of the installed kernel and of the next one, which lies in the guest's own repository."""
    older, newer = (rootfs() / "kernels").read_text().split()
    return older, newer


def disk() -> Path:
    """The disk as qcow2, never booted."""
    base, nvml, keys = rootfs(), build_nvml(), host_image.key().parent
    parts = [*sorted(HERE.iterdir()), host_image.HERE / "lib" / "common", host_image.programs() / "pci",
             nvml / "gpusim", *sorted((host_image.HERE / "python").glob("kept*")), *sorted(keys.iterdir())]

    def make(folder: Path) -> None:
        print("making the virtual machine's disk", flush=True)
        with tempfile.TemporaryDirectory(dir=folder) as made:
            root = Path(made) / "root"
            root.mkdir(mode=0o755)
            run_quietly(["tar", "--extract", "--numeric-owner", "--xattrs", "--xattrs-include=*", "--file",
                         str(base / "root.tar"), "--directory", str(root)], "the root file system")
            setup = root / "setup"
            setup.mkdir()
            for part in parts:
                shutil.copy(part, setup)
            shutil.copy(keys / "id_ed25519.pub", setup / "authorized_keys")
            run_quietly(["chroot", str(root), "sh", "/setup/setup.sh", kernels()[0]], "the virtual machine's files")
            shutil.rmtree(setup)
            raw = Path(made) / "disk.raw"
            boot_record(raw, base)
            run_quietly(["mke2fs", "-q", "-t", "ext4", "-d", str(root), "-E",
                         f"offset={FIRST * SECTOR}", str(raw), f"{MIB - FIRST * SECTOR // 2**20}M"], "the file system")
            run_quietly(["qemu-img", "convert", "-f", "raw", "-O", "qcow2", str(raw), str(folder / "disk.qcow2")],
                        "the disk")

    content = [part.name.encode() + part.read_bytes() for part in parts]
    return cached("vm-disk", [str(base).encode(), str((MIB, FIRST)).encode(), *content], make) / "disk.qcow2"


def boot_record(raw: Path, base: Path) -> None:
    """An empty disk with a partition, GRUB's first sector and its image (PC BIOS: four entries of 16 bytes at 446).

    The image looks for its own rest in the sectors that follow it; it is made to be written from sector 1 on.
    """
    first, image = (base / "boot.img").read_bytes(), (base / "core.img").read_bytes()
    if len(image) > (FIRST - 1) * SECTOR:
        raise SystemExit(f"GRUB's image of {len(image)} bytes does not fit before the partition")
    entry = struct.pack("<B3sB3sII", 0x80, b"\xfe\xff\xff", 0x83, b"\xfe\xff\xff", FIRST, MIB * 2**20 // SECTOR - FIRST)
    with raw.open("wb") as stream:
        stream.write(first[:446] + entry + bytes(48) + b"\x55\xaa" + image)
        stream.truncate(MIB * 2**20)


def qemu_version() -> str:
    """The version of the package: a state is only valid for its version."""
    return subprocess.run(["dpkg-query", "-W", "-f", "${Version}", "qemu-system-x86"], check=True, text=True,
                          capture_output=True, timeout=60).stdout
