# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""File trees that look like hosts to the readers, with the layout of real /sys, /proc and /var/lib/dpkg."""

from __future__ import annotations

import typing as t
from pathlib import Path

from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Completed

OS_RELEASE = """PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"
NAME="Debian GNU/Linux"
VERSION_ID="12"
VERSION_CODENAME=bookworm
ID=debian
"""
UBUNTU = 'ID=ubuntu\nID_LIKE=debian\nVERSION_ID="24.04"\nVERSION_CODENAME=noble\nPRETTY_NAME="Ubuntu 24.04.3 LTS"\n'
RHEL = 'ID="rhel"\nID_LIKE="fedora"\nVERSION_ID="9.4"\nPRETTY_NAME="Red Hat Enterprise Linux 9.4 (Plow)"\n'
NO_NVML: dict[str, t.Any] = {"available": False, "error": None, "driver": None, "library": None, "cuda": None,
                             "gpus": [], "clients": []}
SYSTEMCTL = ["systemctl", "show", "--property=Id,LoadState,ActiveState,UnitFileState,WantedBy,RequiredBy,TriggeredBy,"
             "StateChangeTimestampMonotonic"]


def put(root: Path, path: str, text: str | bytes) -> None:
    """Writes a file and creates its folders."""
    target = root / path.lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(text if isinstance(text, bytes) else text.encode())


def link(root: Path, path: str, target: str) -> None:
    """Creates a symbolic link and its folders."""
    place = root / path.lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(target)


def pci(root: Path, address: str, device: str, subsystem: str = "10de:1463", pci_class: str = "0302",
        vendor: str = "10de", driver: str | None = None, config: bytes | None = None) -> None:
    """One PCI function."""
    folder = f"/sys/bus/pci/devices/{address}"
    board_vendor, board = subsystem.split(":")
    for name, value in (("vendor", vendor), ("device", device), ("class", f"{pci_class}00"),
                        ("subsystem_vendor", board_vendor), ("subsystem_device", board)):
        put(root, f"{folder}/{name}", f"0x{value}\n")
    if driver:
        link(root, f"{folder}/driver", f"../../../../bus/pci/drivers/{driver}")
    if config is not None:
        put(root, f"{folder}/config", config)


def package(name: str, version: str, maintainer: str = "NVIDIA <maintainer@nvidia.com>",
            status: str = "install ok installed") -> str:
    """A paragraph of the status file of dpkg."""
    return (f"Package: {name}\nStatus: {status}\nPriority: optional\nSection: misc\nInstalled-Size: 10\n"
            f"Maintainer: {maintainer}\nArchitecture: amd64\nVersion: {version}\nDepends: libc6\n"
            f"Description: a package\n It says: more\n")


def dpkg(root: Path, *paragraphs: str) -> None:
    """The status file of dpkg, with these paragraphs between others. The packages have no files."""
    put(root, "/var/lib/dpkg/status", "\n".join([package("adduser", "3.134"), *paragraphs, package("zlib1g", "1.2")]))
    for paragraph in paragraphs:
        put(root, f"/var/lib/dpkg/info/{paragraph.splitlines()[0].partition(': ')[2]}.list", "/.\n")


def host(root: Path, name: str, machine: str | None, release: str = "6.1.0-28-amd64") -> None:
    """A Debian 12 host with kernel headers, systemd and containerd."""
    put(root, "/proc/sys/kernel/hostname", f"{name}\n")
    put(root, "/proc/sys/kernel/osrelease", f"{release}\n")
    put(root, "/etc/os-release", OS_RELEASE)
    put(root, f"/usr/src/linux-headers-{release}/Makefile", "all:\n")
    link(root, f"/lib/modules/{release}/build", f"/usr/src/linux-headers-{release}")
    if machine:
        put(root, "/sys/class/dmi/id/product_name", f"{machine}\n")
    (root / "run/systemd/system").mkdir(parents=True)
    (root / "sys/module/ext4").mkdir(parents=True)
    put(root, "/etc/containerd/config.toml", 'version = 2\n# nvidia is not set up here\n[plugins]\n')


def process(root: Path, pid: int, name: str, *files: str, group: str = "/init.scope") -> None:
    """A process with open files, in a control group of version 2."""
    put(root, f"/proc/{pid}/comm", f"{name}\n")
    put(root, f"/proc/{pid}/cgroup", f"0::{group}\n")
    for number, path in enumerate(("/dev/null", *files)):
        link(root, f"/proc/{pid}/fd/{number}", path)


class Answers:
    """A runner that answers from a table and records the commands."""

    def __init__(self, table: t.Mapping[tuple[str, ...], str] | None = None) -> None:
        self.table = dict(table or {})
        self.asked: list[list[str]] = []

    def __call__(self, argv: t.Sequence[str], *, timeout: float = 60, check: bool = True, stdin: str | None = None,
                 env: t.Mapping[str, str] | None = None, hint: str = "") -> Completed:
        """The answer of the first entry whose words begin the command; a command without an entry does not exist."""
        self.asked.append(list(argv))
        for words, answer in self.table.items():
            if tuple(argv[:len(words)]) == words:
                return Completed(tuple(argv), 0, answer, "")
        return Completed(tuple(argv), 127, "", "not found")
