# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Driver packages for Ubuntu as stand-ins: those of NVIDIA's repository and those of Canonical's archive.

Both descend from one packaging, so that they share most names and differ in suffixes. Sources: NVIDIA Driver
Installation Guide ("Ubuntu 590 and later packages"), NVIDIA/ubuntu-packaging-nvidia-driver (relations),
NVIDIA/gpu-driver-container, packages.ubuntu.com; DKMS names and folders of modules as hosts report them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lab.packages.content import MODULES, Driver, dkms_conf, script, text
from lab.packages.deb import Deb, Files, Link
from lab.packages.driver_debs import DENIED, LDCONFIG, LIBRARIES, MODPROBE, pinning, unit_scripts
from lab.packages.keys import Key


@dataclass(frozen=True)
class Naming:
    """How a repository names and numbers its packages. branch: the suffix; dkms: the name of the module in DKMS."""

    branch: str
    revision: str
    dkms: str = "nvidia"

    def exact(self, driver: Driver, *stems: str, opened: str = "") -> str:
        """Relations to packages of the same release."""
        return ", ".join(f"{stem}{self.branch}{opened} (= {driver.version}-{self.revision})" for stem in stems)

    def deb(self, driver: Driver, stem: str, relations: dict[str, str] | None = None, files: Files | None = None,
            scripts: dict[str, str] | None = None, opened: str = "", **more: object) -> Deb:
        """A package of a release."""
        return Deb(f"{stem}{self.branch}{opened}", f"{driver.version}-{self.revision}", relations or {}, files or {},
                   scripts or {}, **more)  # type: ignore[arg-type]


def only_one(virtual: str, **others: str) -> dict[str, str]:
    """The relations by which of all branches and flavours only one can be installed."""
    return {**dict.fromkeys(("Provides", "Conflicts", "Replaces"), virtual), **others}


def vendor_naming(driver: Driver) -> Naming:
    """From 590 on, names in NVIDIA's repository do not contain the branch."""
    return Naming("" if driver.branch >= 590 else f"-{driver.branch}", "1ubuntu1")


def common_debs(driver: Driver, names: Naming) -> list[Deb]:
    """Libraries, programs, and the modules of both flavours to be built by DKMS."""
    debs = [*_libraries(driver, names), *_programs(driver, names), _kernel_common(driver, names)]
    for flavour, opened in (("open", "-open"), ("proprietary", "")):
        debs += [*_sources(driver, names, flavour, opened),
                 names.deb(driver, "nvidia-headless-no-dkms", {"Depends": ", ".join((
                     names.exact(driver, "libnvidia-cfg1", "libnvidia-compute", "nvidia-compute-utils",
                                 "nvidia-kernel-common"),
                     names.exact(driver, "nvidia-kernel-source", opened=opened)))}, opened=opened),
                 names.deb(driver, "nvidia-headless", {"Depends": names.exact(
                     driver, "nvidia-headless-no-dkms", "nvidia-dkms", opened=opened)}, opened=opened)]
    return debs


def vendor_debs(drivers: list[Driver]) -> list[Deb]:
    """NVIDIA's repository for Ubuntu."""
    debs = [pinning(str(branch), f"{branch}-1", f"branch {branch}", f"{branch}.")
            for branch in sorted({driver.branch for driver in drivers})]
    for driver in drivers:
        names = vendor_naming(driver)
        debs += common_debs(driver, names)
        debs += [pinning(driver.version, f"{driver.version}-1", f"release {driver.version}", f"{driver.version}-"),
                 Deb("nvidia-modprobe", f"{driver.version}-1ubuntu1",
                     files={"usr/bin/nvidia-modprobe": script("nvidia-modprobe.sh")}),
                 Deb("nvidia-fabricmanager", f"{driver.version}-1", files=fabric_manager(driver)),
                 Deb("libnvidia-nscq", f"{driver.version}-1", files=_library(driver, "libnvidia-nscq.so.2.0"))]
        for opened, meta, other in (("-open", "nvidia-open", "cuda-drivers"), ("", "cuda-drivers", "nvidia-open")):
            debs += [names.deb(driver, "nvidia-driver", only_one("nvidia-driver-binary", Depends=", ".join((
                names.exact(driver, "nvidia-utils", "libnvidia-compute", "nvidia-compute-utils"),
                names.exact(driver, "nvidia-dkms", opened=opened), f"nvidia-modprobe (>= {driver.version})"))),
                opened=opened),
                names.deb(driver, meta, {"Depends": names.exact(driver, "nvidia-driver", opened=opened),
                                         "Conflicts": f"{other}{names.branch}"})]
    return debs


def local_repository_deb(version: str, repository: Path, key: Key) -> Deb:
    """The vendor's local installer: a repository as a folder, its keyring beside the packages, and a source of it."""
    name = f"nvidia-driver-local-repo-ubuntu2404-{version}"
    keyring = "nvidia-driver-local-keyring.gpg"
    source = f"etc/apt/sources.list.d/{name}.list"
    return Deb(name, "1.0-1", files={
        **{f"var/{name}/{path.name}": path for path in sorted(repository.iterdir())},
        f"var/{name}/{keyring}": key.binary,
        source: f"deb [signed-by=/usr/share/keyrings/{keyring}] file:///var/{name} /\n"}, conffiles=[f"/{source}"])


def fabric_manager(driver: Driver) -> Files:
    """The files of the fabric manager's package, which does not enable its unit."""
    return {"usr/bin/nv-fabricmanager": driver.built / "fabricmanager",
            "lib/systemd/system/nvidia-fabricmanager.service": text("nvidia-fabricmanager.service"),
            "usr/share/nvidia/nvswitch/fabricmanager.cfg": "LOG_LEVEL=4\nFABRIC_MODE=0\n"}


def _library(driver: Driver, soname: str) -> Files:
    stem = soname.partition(".so")[0]
    source = driver.nvml / soname if stem == "libnvidia-ml" else driver.built / f"{stem}.so"
    real = f"{stem}.so.{driver.version}"
    return {f"{LIBRARIES}/{real}": source, f"{LIBRARIES}/{soname}": Link(real)}


def _libraries(driver: Driver, names: Naming) -> list[Deb]:
    files = {**_library(driver, "libnvidia-ml.so.1"), **_library(driver, "libcuda.so.1"),
             **_library(driver, "libnvidia-ptxjitcompiler.so.1")}
    return [names.deb(driver, "libnvidia-compute", only_one("libnvidia-compute"), files, triggers=LDCONFIG),
            names.deb(driver, "libnvidia-cfg1", only_one("libnvidia-cfg1"))]


def _programs(driver: Driver, names: Naming) -> list[Deb]:
    library = names.exact(driver, "libnvidia-compute")
    return [
        names.deb(driver, "nvidia-utils", only_one("nvidia-utils", Depends=library),
                  {"usr/bin/nvidia-smi": driver.nvml / "nvidia-smi"}),
        names.deb(driver, "nvidia-compute-utils", only_one("nvidia-compute-utils", Depends=library),
                  {"usr/bin/nvidia-persistenced": driver.built / "persistenced",
                   "lib/systemd/system/nvidia-persistenced.service": text("nvidia-persistenced.service")},
                  unit_scripts("nvidia-persistenced.service"))]


def _kernel_common(driver: Driver, names: Naming) -> Deb:
    return names.deb(driver, "nvidia-kernel-common", only_one("nvidia-kernel-common"), {
        "lib/modprobe.d/nvidia-kernel-common.conf": MODPROBE, "lib/modprobe.d/nvidia-graphics-drivers.conf": DENIED,
        **{f"lib/firmware/nvidia/{driver.version}/gsp_{chip}.bin": f"stand-in {driver.version}\n"
           for chip in ("tu10x", "ga10x")}})


def _sources(driver: Driver, names: Naming, flavour: str, opened: str) -> list[Deb]:
    version, folder = driver.version, f"usr/src/{names.dkms}-{driver.version}"
    conf = dkms_conf(version).replace('PACKAGE_NAME="nvidia"', f'PACKAGE_NAME="{names.dkms}"')
    scripts = {name: text(f"dkms.{name}", VERSION=version).replace("-m nvidia ", f"-m {names.dkms} ")
               for name in ("postinst", "prerm")}
    return [names.deb(driver, "nvidia-kernel-source", only_one("nvidia-kernel-source"), {
        f"{folder}/dkms.conf": conf,
        **{f"{folder}/prebuilt/{module}.ko": driver.module(flavour, module) for module in MODULES}}, opened=opened),
        names.deb(driver, "nvidia-dkms", only_one("nvidia-dkms-kernel", Depends=", ".join((
            "dkms (>= 2.1.0.0)", names.exact(driver, "nvidia-kernel-common"),
            names.exact(driver, "nvidia-kernel-source", opened=opened)))), scripts=scripts, opened=opened)]
