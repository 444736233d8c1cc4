# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Drivers in the archives of Ubuntu and Debian, which the package sources of the host already contain. Pure.

Sources: Ubuntu Server documentation, "NVIDIA drivers installation"; package lists of Ubuntu 22.04 to 26.04 and of
Debian 12 and 13; NVIDIA/gpu-driver-container (ubuntu24.04/precompiled).
"""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver import deb
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.source import FULL, Source
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.spec import Spec, branch_of
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.base import Archive, upstream

_OWN = r"nvidia|libcuda|libnv"
_ARCHITECTURES = ("x86_64", "aarch64")
_DEBIAN = ("12", "13")
_UBUNTU = ("22.04", "24.04", "26.04")
# The names of kernel metapackages contain no kernel version: linux-image-generic-hwe-24.04.
_KERNEL_META = re.compile(r"linux-image-([a-z][a-z0-9.-]*)\Z")
# Packages for one branch and module type that do not conflict with each other. Groups: kind, branch, server, open.
_KINDS = re.compile(r"(linux-(?:modules|objects)-nvidia|nvidia-dkms|nvidia-headless(?:-no-dkms)?|nvidia-driver)-"
                    r"(\d{3})(-server)?(-open)?(?:-|\Z)")
_VENDOR_ON_DEBIAN = ("nvidia-driver-cuda", "nvidia-kernel-open-dkms", "nvidia-open", "cuda-drivers")
_BUILT_MODULES = "linux-modules-nvidia"
# Packages of NVIDIA's repository for Ubuntu whose names do not contain the branch. apt does not remove them by itself
# if they were installed by name.
_VENDOR_ON_UBUNTU = re.compile(r"nvidia-(open|driver|headless-no-dkms|dkms|kernel-source|utils)(-open)?\Z")


class UbuntuArchive(Source):
    """Ubuntu's drivers for servers (C(-server)). DKMS builds the modules."""

    name = "distribution"
    _other_kinds: t.Tuple[str, ...] = ("linux-",)
    _meta = _desktop = re.compile(r"nvidia-driver-\d{3}-server(-open)?\Z")

    @classmethod
    def for_distribution(cls, os_id: str, os_version: str, arch: str) -> Source | None:
        """The source, or None if it does not support the distribution."""
        return cls() if os_id == "ubuntu" and os_version in _UBUNTU and arch in _ARCHITECTURES else None

    def installed(self, packages: t.Mapping[str, str]) -> str | None:
        """See L(Source). In NVIDIA's repository no package has a name with C(-server)."""
        if any(name.startswith(_BUILT_MODULES) for name in packages) == self.dkms:
            return None
        versions = deb.newest_first((name, [version]) for name, version in packages.items() if _compute(name))
        return next(iter(versions), None)

    def offered(self, candidates: t.Mapping[str, t.Sequence[str]]) -> list[str]:
        """See L(Source). Packages of a branch that has reached its end depend on a newer branch; these are omitted."""
        return deb.newest_first(
            (name, [version for version in versions if branch_of(upstream(version)) == _compute(name)])
            for name, versions in candidates.items() if _compute(name))

    def successor(self, candidates: t.Mapping[str, t.Sequence[str]], branch: int) -> int | None:
        """See L(Source)."""
        found = deb.newest_first([("", candidates.get(f"nvidia-utils-{branch}-server", ()))])
        return branch_of(found[0]) if found and branch_of(found[0]) != branch else None

    def repository(self, spec: Spec) -> Archive:
        """See L(Source). The option C(repository) is for NVIDIA's repository, so it has no effect here."""
        return Archive("archive", "Ubuntu's archive", "", "", origin="Ubuntu", sections=("restricted",), names=_OWN)

    def packages(self, version: str, flavour: str, persistenced: bool, installation: str = "auto"
                 ) -> dict[str, str | None]:
        """See L(Source). The compute libraries include the persistence daemon."""
        branch, suffix = branch_of(version), _open_suffix(flavour)
        full: dict[str, str | None] = {f"nvidia-driver-{branch}-server{suffix}": version}
        return {f"nvidia-headless-no-dkms-{branch}-server{suffix}": version, f"nvidia-utils-{branch}-server": version,
                **self._dkms_package(branch, suffix, version), **(full if installation == FULL else {})}

    def _dkms_package(self, branch: int, suffix: str, version: str) -> dict[str, str | None]:
        return {f"nvidia-dkms-{branch}-server{suffix}": version}

    def companions(self, version: str, wanted: t.Collection[str]) -> dict[str, str | None]:
        """See L(Source). The archive contains only the fabric manager and NSCQ."""
        names = {"fabric_manager": "nvidia-fabricmanager", "nscq": "libnvidia-nscq"}
        return {f"{names[kind]}-{branch_of(version)}": version for kind in wanted if kind in names}

    def conflicting(self, known: t.Collection[str], version: str, flavour: str) -> list[str]:
        """See L(Source). Packages with different modules can be installed side by side; depmod would then choose."""
        kept = (str(branch_of(version)), "-server", _open_suffix(flavour) or None)
        return sorted({*deb.other_companions(known, f"-{kept[0]}"), *(name for name in known if self._excludes(
            kept, _KINDS.match(name), deb.BRANCHED.match(name)) or name.startswith("nvidia-driver-pinning-")
            or _VENDOR_ON_UBUNTU.match(name)
            or name.startswith("nvidia-firmware-") and not name.endswith(f"-{version}"))}
            - set(self.companions(version, ("fabric_manager", "nscq"))))

    def _excludes(self, kept: tuple[str, str, str | None], kind: t.Match[str] | None,
                  branched: t.Match[str] | None) -> bool:
        if kind:
            return kind.groups()[1:] != kept or kind.group(1).startswith(self._other_kinds)
        return branched is not None and branched.groups()[:2] != kept[:2]

    def pin_files(self, version: str, flavour: str) -> dict[str, bytes]:
        """See L(Source)."""
        branch = branch_of(version)
        return {deb.HOLD_FILE: deb.hold(version, [
            f"nvidia-*-{branch}-server*", f"libnvidia-*-{branch}-server*", f"nvidia-fabricmanager-{branch}",
            f"libnvidia-nscq-{branch}"])}


class UbuntuSigned(UbuntuArchive):
    """Ubuntu's drivers for servers with prebuilt and signed modules, which need no compiler and no enrolled key."""

    name = "precompiled"
    dkms = False
    _other_kinds = ("nvidia-dkms",)

    def _dkms_package(self, branch: int, suffix: str, version: str) -> dict[str, str | None]:
        return {}

    def modules(self, version: str, flavour: str, kernels: t.Sequence[str]) -> dict[str, str | None]:
        """See L(Source). Proprietary modules are linked on the host from signed objects, which the packages contain."""
        stem = f"{_BUILT_MODULES}-{branch_of(version)}-server{_open_suffix(flavour)}"
        return {f"{stem}-{kernel}": None for kernel in kernels}

    def followers(self, version: str, flavour: str, known: t.Iterable[str]) -> list[str]:
        """See L(Source)."""
        metas = (found.group(1).replace("virtual", "generic", 1) for found in map(_KERNEL_META.match, known) if found)
        return sorted({f"{_BUILT_MODULES}-{branch_of(version)}-server{_open_suffix(flavour)}-{meta}" for meta in metas})


class DebianArchive(Source):
    """Debian's packages, with one driver branch for each release of Debian. DKMS builds the modules."""

    name = "distribution"
    _meta = _desktop = re.compile(r"nvidia-driver\Z")

    @classmethod
    def for_distribution(cls, os_id: str, os_version: str, arch: str) -> Source | None:
        """The source, or None if it does not support the distribution."""
        return cls() if os_id == "debian" and os_version.split(".")[0] in _DEBIAN and arch in _ARCHITECTURES else None

    def installed(self, packages: t.Mapping[str, str]) -> str | None:
        """See L(Source). If C(nvidia-driver-cuda) is installed, too, the driver is from NVIDIA's repository."""
        if "libcuda1" not in packages or "nvidia-driver-cuda" in packages:
            return None
        return upstream(packages["libcuda1"])

    def offered(self, candidates: t.Mapping[str, t.Sequence[str]]) -> list[str]:
        """See L(Source)."""
        return deb.newest_first([("libcuda1", candidates.get("libcuda1", ()))])

    def repository(self, spec: Spec) -> Archive:
        """See L(Source). The option C(repository) is for NVIDIA's repository, so it has no effect here."""
        return Archive("archive", "Debian's archive", "", "", origin="Debian",
                       sections=("contrib", "non-free", "non-free-firmware"), names=_OWN)

    def packages(self, version: str, flavour: str, persistenced: bool, installation: str = "auto"
                 ) -> dict[str, str | None]:
        """See L(Source). NVIDIA's name for C(nvidia-open-kernel-dkms) is C(nvidia-kernel-open-dkms)."""
        kernel = "nvidia-open-kernel-dkms" if flavour == "open" else "nvidia-kernel-dkms"
        wanted: dict[str, str | None] = {kernel: version, "nvidia-smi": version, "libcuda1": version,
                                         "libnvidia-ml1": version}
        if persistenced:
            wanted["nvidia-persistenced"] = None  # its version differs from the version of the driver
        if installation == FULL:
            wanted["nvidia-driver"] = version
        return wanted

    def conflicting(self, known: t.Collection[str], version: str, flavour: str) -> list[str]:
        """See L(Source). Returns packages that only NVIDIA's repository has, and those of the other module type."""
        other = ("nvidia-kernel-dkms", "nvidia-kernel-support") if flavour == "open" else \
            ("nvidia-open-kernel-dkms", "nvidia-open-kernel-support")
        return sorted(name for name in known if name in (*other, *_VENDOR_ON_DEBIAN)
                      or name.startswith("nvidia-driver-pinning-"))

    def pin_files(self, version: str, flavour: str) -> dict[str, bytes]:
        """See L(Source)."""
        return {deb.HOLD_FILE: deb.hold(version, ["*nvidia*", "libcuda*", "libnv*"])}


def _compute(name: str) -> int | None:
    """The branch in the name of a package with libcuda, None for other packages."""
    found = re.match(r"libnvidia-compute-(\d{3})-server\Z", name)
    return int(found.group(1)) if found else None


def _open_suffix(flavour: str) -> str:
    return "-open" if flavour == "open" else ""
