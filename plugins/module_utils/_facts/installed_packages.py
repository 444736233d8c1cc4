# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads the installed packages from the database of the package manager. PRIVATE to the collection."""

from __future__ import annotations

from dataclasses import dataclass

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import CommandError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Runner

_DPKG_STATUS = "/var/lib/dpkg/status"
_RPM_DATABASES = ("/var/lib/rpm", "/usr/lib/sysimage/rpm")
_RPM_FORMAT = "%{NAME}\\t%|EPOCH?{%{EPOCH}:}|%{VERSION}-%{RELEASE}\\t%{VENDOR}\\n"

# Parts of the names of packages that matter for GPUs and containers: about a dozen of 2,000 packages of a server.
_MARKS = ("nvidia", "libnv", "libcuda1", "cuda-drivers", "nvlsm", "containerd", "docker", "moby-engine", "cri-o",
          "podman", "datacenter-gpu-manager", "cuda-toolkit-")
_DISTRIBUTORS = ("debian.org", "debian.net", "ubuntu.com", "canonical.com", "red hat", "fedora", "suse", "rocky",
                 "almalinux", "amazon", "microsoft", "oracle")


@dataclass(frozen=True)
class Package:
    """A package. version: as the package manager writes it; packager: the maintainer (deb) or vendor (rpm)."""

    version: str
    packager: str

    @property
    def from_distribution(self) -> bool:
        """Whether the distribution built the package. NVIDIA's packages have NVIDIA's address."""
        return any(name in self.packager.lower() for name in _DISTRIBUTORS)


def read_packages(root: Root, run: Runner, family: str) -> dict[str, Package]:
    """Maps names to the installed packages whose name contains one of _MARKS. family: that of the distribution."""
    if family == "debian":
        return parse_dpkg_status(root.data(_DPKG_STATUS) or b"")
    if any(root.exists(folder) for folder in _RPM_DATABASES):
        try:
            done = run(["rpm", "-qa", "--qf", _RPM_FORMAT], check=False, timeout=60)
        except CommandError:
            return {}
        return parse_rpm_list(done.stdout)
    return {}


def parse_dpkg_status(status: bytes) -> dict[str, Package]:
    """The installed packages in dpkg's status file, which has paragraphs as in deb-control(5)."""
    packages: dict[str, Package] = {}
    for paragraph in status.split(b"\n\n"):
        name = paragraph.partition(b"\n")[0].partition(b":")[2].strip().decode("utf-8", "replace")
        if not _matters(name) or b"\nStatus: " not in paragraph:
            continue
        fields = dict(line.split(": ", 1) for line in paragraph.decode("utf-8", "replace").splitlines()
                      if ": " in line and not line.startswith(" "))
        if fields.get("Status", "").endswith(" installed"):
            packages[name] = Package(fields.get("Version", ""), fields.get("Maintainer", ""))
    return packages


def parse_rpm_list(text: str) -> dict[str, Package]:
    """The packages in the output of C(rpm -qa) with _RPM_FORMAT: name, version, vendor, separated by tabs."""
    packages: dict[str, Package] = {}
    for line in text.splitlines():
        name, separator, rest = line.partition("\t")
        if separator and _matters(name):
            version, _separator, vendor = rest.partition("\t")
            packages[name] = Package(version, vendor)
    return packages


def _matters(name: str) -> bool:
    return any(mark in name for mark in _MARKS)


def upstream(version: str) -> str:
    """The version without epoch and package revision: C(1.20.0) in C(1:1.20.0-1)."""
    return version.rpartition(":")[2].partition("-")[0]
