# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""NVIDIA's repository for a host with a real kernel: that of lab.packages, but with modules as C source for DKMS."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from lab.nvml.build import build as build_nvml
from lab.packages import CUDA_PATH
from lab.packages.content import FILES, LICENSES, Driver, compile_driver, dkms_conf
from lab.packages.deb import Deb, Files, write_repository
from lab.packages.driver_debs import KEY_FILE, branch_debs, driver_debs, keyring_deb
from lab.packages.keys import keys
from lab.tools import cached

# Those that every server loads: a compiler takes long in an emulated machine, which goes without drm and peermem.
MODULES = ("nvidia", "nvidia-uvm", "nvidia-modeset")
DRIVERS = ("580.126.20", "595.91.07")
SOURCE = Path(__file__).resolve().parent / "dkms"
FLAVOURS = {"nvidia-kernel-open-dkms": "open", "nvidia-kernel-dkms": "proprietary"}
# This overrides how lab.packages has ready modules copied: a dkms.conf is a shell script. A build without what
# debuggers want is shorter.
BUILD = """\
MAKE[0]="'make' -j$(nproc) KERNEL=$kernel_source_dir KCFLAGS=-g0 modules"
CLEAN="'make' KERNEL=$kernel_source_dir clean"
"""


def repository() -> Path:
    """The folder to serve; the repository in it is at lab.packages.CUDA_PATH, with its key.

    Its file C(digest) changes only if the content of the packages changes, not with every change of their code.
    """
    nvml, key = build_nvml(), keys()["cuda"]
    code = [*(FILES.parent / f"{name}.py" for name in ("content", "deb", "driver_debs")), *FILES.iterdir(),
            *SOURCE.iterdir(), Path(__file__)]

    def make(folder: Path) -> None:
        print(f"making the virtual machine's repository with drivers {', '.join(DRIVERS)}", flush=True)
        with tempfile.TemporaryDirectory(prefix="gpuops-packages-") as work:
            drivers = [compile_driver(version, nvml, Path(work) / version) for version in DRIVERS]
            debs = [with_source(deb, driver) for driver in drivers
                    for deb in (*branch_debs(driver.branch, driver.version), *driver_debs(driver))]
            (folder / "digest").write_text(digest(debs))
            write_repository([keyring_deb(key), *debs], folder / CUDA_PATH, key,
                             {"Origin": "NVIDIA", "Label": "NVIDIA CUDA", "Architectures": "amd64"})
        shutil.copy(key.public, folder / CUDA_PATH / KEY_FILE)

    return cached("vm-packages", [str(nvml).encode(), key.fingerprint.encode(),
                                  *(path.read_bytes() for path in sorted(code))], make)


def digest(debs: list[Deb]) -> str:
    """The digest of all packages."""
    found = hashlib.sha256()
    for deb in debs:
        files = {name: content.read_bytes() if isinstance(content, Path) else content
                 for name, content in sorted(deb.files.items())}
        found.update(repr(replace(deb, files=files)).encode())
    return found.hexdigest()


def with_source(deb: Deb, driver: Driver) -> Deb:
    """A package of modules with their source instead of built ones; other packages unchanged."""
    if deb.name not in FLAVOURS:
        return deb
    folder = f"usr/src/nvidia-{driver.version}"
    release = f"RELEASE := {driver.version}\nLICENSE := {LICENSES[FLAVOURS[deb.name]]}\n"
    sources = {f"{folder}/{path.name}": path for path in sorted(SOURCE.iterdir())}
    files: Files = {**sources, f"{folder}/release.mk": release,
                    f"{folder}/dkms.conf": dkms_conf(driver.version, MODULES) + BUILD}
    return replace(deb, files=files)
