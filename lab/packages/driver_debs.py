# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""NVIDIA's driver packages for Debian 12, as stand-ins: names, versions and relations of the CUDA network repository.

Sources: NVIDIA Driver Installation Guide (packages of Debian, pinning packages, flavours), packages.debian.org
(nvidia-kernel-support, firmware-nvidia-gsp, nvidia-persistenced), Debian bug reports that print the relations of
nvidia-driver. If no source says which package contains a file, we have chosen one.
"""

from __future__ import annotations

from pathlib import Path

from lab.packages.content import MODULES, Driver, dkms_conf, script, text
from lab.packages.deb import Deb, Link
from lab.packages.keys import Key

LIBRARIES = "usr/lib/x86_64-linux-gnu"
LDCONFIG = "activate-noawait ldconfig\n"
KEY_FILE = "3bf863cc.pub"
KEYRING = "usr/share/keyrings/cuda-archive-keyring.gpg"
VENDOR = "https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64/"

# Tells the self-extracting installer that packages are here; it then refuses to install.
ALTERNATE = "usr/lib/nvidia/alternate-install-present"
ALTERNATE_TEXT = "Installed from packages.\n"

MODPROBE = """\
# Options and order of NVIDIA's kernel modules.
softdep nvidia post: nvidia-modeset nvidia-uvm
options nvidia NVreg_PreserveVideoMemoryAllocations=1
"""
# NVIDIA's rules make the nodes of modules when these are loaded (descriptions of Debian's nvidia-kernel-common).
RULES = """\
ACTION=="add", DEVPATH=="/module/nvidia", RUN+="/usr/bin/nvidia-modprobe"
ACTION=="add", DEVPATH=="/module/nvidia_uvm", RUN+="/usr/bin/nvidia-modprobe -c0 -u"
"""
DENIED = """\
# NVIDIA's driver and nouveau exclude each other.
blacklist nouveau
options nouveau modeset=0
"""
FABRIC = """\
# Settings of the fabric manager; see NVIDIA's Fabric Manager User Guide.
LOG_LEVEL=4
LOG_FILE_NAME=/var/log/fabricmanager.log
FABRIC_MODE=0
"""
PIN = """\
# Keeps the driver's packages at {what}.
Package: *nvidia* cuda-drivers* libcuda* libnv* firmware-nvidia-gsp*
Pin: version {version}*
Pin-Priority: 1000
"""


def driver_debs(driver: Driver) -> list[Deb]:
    """All packages of one driver release but the branch's pinning package."""
    return [*_metas(driver), *_kernel(driver), *_libraries(driver), *_programs(driver), pinning(driver.version,
            f"{driver.version}-1", f"release {driver.version}", f"{driver.version}-")]


def branch_debs(branch: int, oldest: str) -> list[Deb]:
    """The pinning package of a branch; branch 580 still has metapackages with its number, without an upper version
    limit, as the vendor's."""
    pin = pinning(str(branch), f"{branch}-1", f"branch {branch}", f"{branch}.")
    if branch > 580:
        return [pin]
    return [pin, *(Deb(f"{name}-{branch}", f"{oldest}-1", {"Depends": f"{name} (>= {oldest})"})
                   for name in ("nvidia-open", "cuda-drivers"))]


def keyring_deb(key: Key) -> Deb:
    """cuda-keyring: the key, and a source with the address of the vendor."""
    source = "etc/apt/sources.list.d/cuda-debian12-x86_64.list"
    return Deb("cuda-keyring", "1.1-1", arch="all", conffiles=[f"/{source}"],
               files={KEYRING: key.binary, source: f"deb [signed-by=/{KEYRING}] {VENDOR} /\n"})


def unit_scripts(units: str, postinst: str = "") -> dict[str, str]:
    """Maintainer scripts that enable, start, stop and forget units as debhelper's do."""
    return {"postinst": postinst + text("unit.postinst", UNITS=units), "prerm": text("unit.prerm", UNITS=units),
            "postrm": text("unit.postrm", UNITS=units)}


def _exact(driver: Driver, *names: str) -> str:
    return ", ".join(f"{name} (= {driver.version}-1)" for name in names)


def _metas(driver: Driver) -> list[Deb]:
    kernel = " | ".join(_exact(driver, name) for name in ("nvidia-kernel-dkms", "nvidia-kernel-open-dkms"))
    depends = {
        "nvidia-open": _exact(driver, "nvidia-driver", "nvidia-driver-cuda", "nvidia-kernel-open-dkms"),
        "cuda-drivers": _exact(driver, "nvidia-driver", "nvidia-driver-cuda", "nvidia-kernel-dkms"),
        "nvidia-driver-cuda": ", ".join((
            _exact(driver, "libcuda1", "libnvidia-ml1", "libnvidia-ptxjitcompiler1", "nvidia-smi",
                   "nvidia-persistenced"), f"nvidia-modprobe (>= {driver.version})", kernel)),
        "nvidia-driver": f"{_exact(driver, 'nvidia-driver-libs', 'nvidia-kernel-support')}, {kernel}",
    }
    debs = [Deb(name, f"{driver.version}-1", {"Depends": value}) for name, value in depends.items()]
    debs.append(Deb("nvidia-driver-libs", f"{driver.version}-1", {"Depends": _exact(driver, "libnvidia-ml1")}))
    return debs


def _kernel(driver: Driver) -> list[Deb]:
    version = driver.version
    source = f"usr/src/nvidia-{version}"
    flavours = {"nvidia-kernel-open-dkms": "open", "nvidia-kernel-dkms": "proprietary"}
    debs = []
    for name, flavour in flavours.items():
        other = next(rival for rival in flavours if rival != name)
        debs.append(Deb(
            name, f"{version}-1",
            {"Depends": f"dkms (>= 2.1.0.0), {_exact(driver, 'firmware-nvidia-gsp', 'nvidia-kernel-support')}",
             "Conflicts": other, "Replaces": other},
            {f"{source}/dkms.conf": dkms_conf(version),
             **{f"{source}/prebuilt/{module}.ko": driver.module(flavour, module) for module in MODULES}},
            {"postinst": text("dkms.postinst", VERSION=version), "prerm": text("dkms.prerm", VERSION=version)}))
    conffiles = {"etc/modprobe.d/nvidia.conf": MODPROBE, "etc/modprobe.d/nvidia-blacklists-nouveau.conf": DENIED,
                 "etc/nvidia/nvidia-load.conf": "nvidia\nnvidia-uvm\n"}
    debs.append(Deb("nvidia-kernel-support", f"{version}-1", conffiles=[f"/{path}" for path in conffiles],
                    files={**conffiles, "usr/lib/modules-load.d/nvidia.conf": Link("/etc/nvidia/nvidia-load.conf"),
                           "usr/lib/udev/rules.d/60-nvidia.rules": RULES,
                           ALTERNATE: ALTERNATE_TEXT}))
    debs.append(Deb("firmware-nvidia-gsp", f"{version}-1", files={
        f"lib/firmware/nvidia/{version}/gsp_{chip}.bin": f"stand-in {version}\n" for chip in ("tu10x", "ga10x")}))
    return debs


def _library(driver: Driver, package: str, soname: str, source: Path, **relations: str) -> Deb:
    stem, _so, _number = soname.partition(".so")
    real = f"{stem}.so.{driver.version}"
    return Deb(package, f"{driver.version}-1", relations,
               {f"{LIBRARIES}/{real}": source, f"{LIBRARIES}/{soname}": Link(real)},
               triggers=LDCONFIG)


def _libraries(driver: Driver) -> list[Deb]:
    return [
        _library(driver, "libnvidia-ml1", "libnvidia-ml.so.1", driver.nvml / "libnvidia-ml.so.1"),
        _library(driver, "libcuda1", "libcuda.so.1", driver.built / "libcuda.so",
                 Depends=_exact(driver, "libnvidia-ptxjitcompiler1")),
        _library(driver, "libnvidia-ptxjitcompiler1", "libnvidia-ptxjitcompiler.so.1",
                 driver.built / "libnvidia-ptxjitcompiler.so"),
        _library(driver, "libnvidia-nscq", "libnvidia-nscq.so.2.0", driver.built / "libnvidia-nscq.so"),
    ]


def _programs(driver: Driver) -> list[Deb]:
    version = f"{driver.version}-1"
    return [
        Deb("nvidia-smi", version, {"Depends": _exact(driver, "libnvidia-ml1")},
            {"usr/bin/nvidia-smi": driver.nvml / "nvidia-smi"}),
        Deb("nvidia-modprobe", version, files={"usr/bin/nvidia-modprobe": script("nvidia-modprobe.sh")}),
        Deb("nvidia-persistenced", version, {"Depends": "init-system-helpers (>= 1.51)"},
            {"usr/bin/nvidia-persistenced": driver.built / "persistenced",
             "lib/systemd/system/nvidia-persistenced.service": text("nvidia-persistenced.service"),
             "etc/default/nvidia-persistenced": "# Options of the daemon.\nOPTIONS=--verbose\n"},
            unit_scripts("nvidia-persistenced.service"), ["/etc/default/nvidia-persistenced"]),
        Deb("nvidia-fabricmanager", version, files={
            "usr/bin/nv-fabricmanager": driver.built / "fabricmanager",
            "lib/systemd/system/nvidia-fabricmanager.service": text("nvidia-fabricmanager.service"),
            "usr/share/nvidia/nvswitch/fabricmanager.cfg": FABRIC}),
    ]


def pinning(suffix: str, version: str, what: str, prefix: str) -> Deb:
    """A pinning package; a description of what it pins, and the prefix of these versions."""
    # Not a conffile: the pin must go with its package, or it would outlive the change to another branch. The name ends
    # in .pref: apt reads no file whose name has another ending, and a full version looks like one (apt_preferences).
    preferences = f"etc/apt/preferences.d/nvidia-driver-pinning-{suffix}.pref"
    return Deb(f"nvidia-driver-pinning-{suffix}", version, arch="all",
               relations=dict.fromkeys(("Provides", "Conflicts", "Replaces"), "nvidia-driver-pinning"),
               files={preferences: PIN.format(what=what, version=prefix)})
