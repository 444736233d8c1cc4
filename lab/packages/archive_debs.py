# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The parts of Ubuntu's and Debian's archives that hold drivers, as stand-ins in signed archives with pockets.

Sources: packages.ubuntu.com (drivers C(-server), modules that Canonical builds, transitional packages of ended
branches), Ubuntu Server documentation; packages.debian.org (bookworm: nvidia-graphics-drivers, firmware-nvidia-gsp).
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from lab.packages.content import MODULES, Driver, dkms_conf, text
from lab.packages.deb import Deb, Link, Pockets
from lab.packages.driver_debs import DENIED, LDCONFIG, LIBRARIES, unit_scripts
from lab.packages.ubuntu_debs import Naming, common_debs, fabric_manager
from lab.tools import run_quietly

KERNEL = os.uname().release
# A kernel package's version; what stands after the plus counts the builds of modules for it.
KERNEL_VERSION = f"{KERNEL.split('-')[0]}-1+1"
ENDED = 590

# As nvidia-kernel-support has them: files of modules are named after the alternative, modules are not.
RENAMED = """\
install nvidia modprobe -i nvidia-current@OPEN@ $CMDLINE_OPTS
install nvidia-modeset modprobe nvidia ; modprobe -i nvidia-current@OPEN@-modeset $CMDLINE_OPTS
install nvidia-drm modprobe nvidia-modeset ; modprobe -i nvidia-current@OPEN@-drm $CMDLINE_OPTS
install nvidia-uvm modprobe nvidia ; modprobe -i nvidia-current@OPEN@-uvm $CMDLINE_OPTS
"""


SIGN = Path(__file__).resolve().parent.parent / "host" / "image" / "lib" / "sign-file"


def ubuntu_naming(driver: Driver) -> Naming:
    """Canonical's archive has the branch in the names of packages, and the version of a package contains that of
    Ubuntu."""
    return Naming(f"-{driver.branch}-server", "0ubuntu0.24.04.1", "nvidia-srv")


def ubuntu_archive(former: Driver, drivers: list[Driver]) -> Pockets:
    """C({suite: {component: packages}}). former: the release with which the archive began; updates contain the
    others."""
    updates = [deb for driver in drivers for deb in _ubuntu_release(driver)]
    newest = max(drivers, key=lambda driver: driver.branch)
    names = ubuntu_naming(newest)
    full = f"{newest.version}-{names.revision}"
    updates += [Deb(f"{stem}-{ENDED}-server{opened}", full, {"Depends": names.exact(newest, stem, opened=opened)})
                for stem, opened in (("nvidia-utils", ""), ("libnvidia-compute", ""),
                                     ("nvidia-headless-no-dkms", "-open"), ("nvidia-dkms", "-open"))]
    extras = [deb for driver in drivers for deb in _extras(driver)]
    meta = Deb("linux-image-generic", KERNEL_VERSION, {"Depends": f"linux-image-{KERNEL}"})
    return {"noble": {"main": [meta], "restricted": _ubuntu_release(former, ready=False),
                      "multiverse": _extras(former)},
            "noble-updates": {"main": [], "restricted": updates, "multiverse": extras}}


def _extras(driver: Driver) -> list[Deb]:
    full = f"{driver.version}-{ubuntu_naming(driver).revision}"
    return [Deb(f"nvidia-fabricmanager-{driver.branch}", full, files=fabric_manager(driver)),
            Deb(f"libnvidia-nscq-{driver.branch}", full)]


def _ubuntu_release(driver: Driver, ready: bool = True) -> list[Deb]:
    names = ubuntu_naming(driver)
    return [*common_debs(driver, names), *(_ready_made(driver) if ready else ())]


def _signed(driver: Driver, flavour: str) -> dict[str, bytes]:
    """Maps names to the content of modules that are signed with a key that no host has to enrol."""
    with tempfile.TemporaryDirectory(prefix="gpuops-sign-") as temporary:
        key, certificate = Path(temporary) / "key", Path(temporary) / "certificate"
        run_quietly(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                     "-subj", "/CN=Kernel modules of the lab's archive", "-outform", "DER", "-keyout", str(key),
                     "-out", str(certificate)], "the key of built modules")
        for name in MODULES:
            shutil.copy(driver.module(flavour, name), Path(temporary) / name)
            run_quietly(["sh", str(SIGN), "sha512", str(key), str(certificate), str(Path(temporary) / name)], name)
        return {name: (Path(temporary) / name).read_bytes() for name in MODULES}


def _ready_made(driver: Driver) -> list[Deb]:
    """Open modules in loadable form; proprietary ones are linked on the host from objects."""
    branch, stem = f"{driver.branch}-server", "linux-modules-nvidia"
    common = f"nvidia-kernel-common-{branch} (>= {driver.version})"
    folder = f"lib/modules/{KERNEL}/kernel/nvidia-{driver.branch}srv"
    link = f"/{folder}"
    index = f"depmod {KERNEL}\n"
    debs = [Deb(f"{stem}-{branch}-open-{KERNEL}", KERNEL_VERSION, {"Depends": f"linux-image-{KERNEL}, {common}"},
                {f"{folder}-open/{name}.ko": content for name, content in _signed(driver, "open").items()},
                {"postinst": index, "postrm": index}),
            Deb(f"linux-objects-nvidia-{branch}-{KERNEL}", KERNEL_VERSION, {},
                {f"{folder}/bits/{name}.o": content for name, content in _signed(driver, "proprietary").items()}),
            Deb(f"{stem}-{branch}-{KERNEL}", KERNEL_VERSION, {
                "Depends": f"linux-image-{KERNEL}, {common}, linux-objects-nvidia-{branch}-{KERNEL} "
                           f"(= {KERNEL_VERSION})"}, {},
                {"postinst": f'for part in {link}/bits/*.o; do\n    name=${{part##*/}}\n    cp "$part" '
                             f'"{link}/${{name%.o}}.ko"\ndone\n{index}',
                 "prerm": f"rm -f {link}/*.ko\n", "postrm": index})]
    return debs + [Deb(f"{stem}-{branch}{opened}-generic", KERNEL_VERSION,
                       {"Depends": f"{stem}-{branch}{opened}-{KERNEL} (= {KERNEL_VERSION}), {common}"})
                   for opened in ("-open", "")]


def debian_archive(driver: Driver) -> Pockets:
    """Bookworm with one release of the driver."""
    full = f"{driver.version}-1~deb12u1"

    def library(package: str, soname: str, **relations: str) -> Deb:
        stem = soname.partition(".so")[0]
        source = driver.nvml / soname if stem == "libnvidia-ml" else driver.built / f"{stem}.so"
        return Deb(package, full, relations, {f"{LIBRARIES}/{stem}.so.{driver.version}": source,
                                              f"{LIBRARIES}/{soname}": Link(f"{stem}.so.{driver.version}")},
                   triggers=LDCONFIG)

    tied = f"libnvidia-ptxjitcompiler1 (= {full})"
    non_free = [library("libnvidia-ml1", "libnvidia-ml.so.1"), library("libcuda1", "libcuda.so.1", Depends=tied),
                library("libnvidia-ptxjitcompiler1", "libnvidia-ptxjitcompiler.so.1"),
                Deb("nvidia-smi", full, {"Depends": f"libnvidia-ml1 (= {full})"},
                    {"usr/bin/nvidia-smi": driver.nvml / "nvidia-smi"}),
                *_debian_kernel(driver, full, "nvidia-kernel", "proprietary", "")]
    contrib = [Deb("nvidia-installer-cleanup", "20220217+3"), Deb("nvidia-modprobe", "535.161.07-1"),
               Deb("nvidia-persistenced", "535.171.04-1", {}, {
                   "usr/bin/nvidia-persistenced": driver.built / "persistenced",
                   "lib/systemd/system/nvidia-persistenced.service": text("nvidia-persistenced.service")},
                   unit_scripts("nvidia-persistenced.service")),
               *_debian_kernel(driver, full, "nvidia-open-kernel", "open", "-open")]
    firmware = [Deb("firmware-nvidia-gsp", full, files={
        f"lib/firmware/nvidia/{driver.version}/gsp_tu10x.bin": f"stand-in {driver.version}\n"})]
    # apt does not tell the origin of a component without packages.
    main = [Deb("dh-dkms", "3.0.10-8+deb12u1", arch="all")]
    return {"bookworm": {"main": main, "contrib": contrib, "non-free": non_free, "non-free-firmware": firmware}}


def _debian_kernel(driver: Driver, full: str, stem: str, flavour: str, opened: str) -> list[Deb]:
    name, version = f"nvidia-current{opened}", driver.version
    folder = f"usr/src/{name}-{version}"
    conf = dkms_conf(version).replace('PACKAGE_NAME="nvidia"', f'PACKAGE_NAME="{name}"')
    conf += "".join(f'DEST_MODULE_NAME[{index}]="{module.replace("nvidia", name, 1)}"\n'
                    for index, module in enumerate(MODULES))
    scripts = {part: text(f"dkms.{part}", VERSION=version).replace("-m nvidia ", f"-m {name} ")
               for part in ("postinst", "prerm")}
    support = f"{stem}-support"
    return [
        Deb(f"{stem}-dkms", full, {
            "Depends": f"dkms, nvidia-installer-cleanup, firmware-nvidia-gsp (= {full}), {support} (= {full})",
            "Conflicts": "nvidia-kernel-dkms-any", "Provides": "nvidia-kernel-dkms-any"},
            {f"{folder}/dkms.conf": conf,
             **{f"{folder}/prebuilt/{module}.ko": driver.module(flavour, module) for module in MODULES}}, scripts),
        Deb(support, full, {"Conflicts": "nvidia-kernel-support-any", "Provides": "nvidia-kernel-support-any",
                            "Depends": "nvidia-modprobe"},
            conffiles := {"etc/modprobe.d/nvidia.conf": RENAMED.replace("@OPEN@", opened),
                          "etc/modprobe.d/nvidia-blacklists-nouveau.conf": DENIED,
                          f"etc/nvidia/current{opened}/nvidia-load.conf": "nvidia-drm\n"},
            conffiles=[f"/{path}" for path in conffiles])]
