# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The contents of packages: texts of lab/packages/files, and small compiled replacements."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from lab.tools import run_quietly

FILES = Path(__file__).resolve().parent / "files"
MODULES = ("nvidia", "nvidia-uvm", "nvidia-modeset", "nvidia-drm", "nvidia-peermem")
# What "modinfo -F license nvidia" says of each flavour (NVIDIA open-gpu-kernel-modules; NVIDIA's proprietary module).
LICENSES = {"open": "Dual MIT/GPL", "proprietary": "NVIDIA"}
# The driver's CUDA level by branch: NVIDIA CUDA Toolkit release notes.
CUDA = {535: 12020, 580: 13000, 595: 13020, 610: 13030}


@dataclass(frozen=True)
class Driver:
    """A driver release and the compiled files that its packages share.

    nvml: folder with libnvidia-ml.so.1 and nvidia-smi. built: folder of C(compile_driver).
    """

    version: str
    nvml: Path
    built: Path

    @property
    def branch(self) -> int:
        """The first number of the version."""
        return int(self.version.split(".")[0])

    def module(self, flavour: str, name: str) -> Path:
        """A built kernel module."""
        return self.built / flavour / f"{name}.ko"


def text(name: str, **words: str) -> str:
    """A file of the folder C(files), with each @WORD@ replaced."""
    content = (FILES / name).read_text(encoding="utf-8")
    for word, value in words.items():
        content = content.replace(f"@{word}@", value)
    return content


def script(name: str, **words: str) -> bytes:
    """A shell program of the folder C(files), with its first line."""
    return b"#!/bin/sh\n" + text(name, **words).encode()


def dkms_conf(version: str, modules: Sequence[str] = MODULES) -> str:
    """The dkms.conf of the stand-in modules."""
    lines = [text("dkms.conf", VERSION=version)]
    for index, name in enumerate(modules):
        lines.append(f'BUILT_MODULE_NAME[{index}]="{name}"\nDEST_MODULE_LOCATION[{index}]="/updates/dkms"\n'
                     f'STRIP[{index}]="no"\n')
    return "".join(lines)


def compile_driver(version: str, nvml: Path, folder: Path) -> Driver:
    """Compile the modules of both flavours, the libraries and the daemons of one release into a folder."""
    branch = int(version.split(".")[0])
    quoted = f'-DVERSION="{version}"'
    jobs: list[list[str]] = []
    for flavour, license_name in LICENSES.items():
        (folder / flavour).mkdir(parents=True, exist_ok=True)
        jobs.extend([*_c("module.c", folder / flavour / f"{name}.ko"), "-c", quoted, f'-DLICENSE="{license_name}"',
                     f'-DNAME="{name.replace("-", "_")}"'] for name in MODULES)
    jobs.append([*_c("libcuda.c", folder / "libcuda.so"), *_soname("libcuda.so.1"), f"-DCUDA={CUDA[branch]}"])
    jobs.append([*_c("library.c", folder / "libnvidia-nscq.so"), *_soname("libnvidia-nscq.so.2.0"), quoted])
    jobs.append([*_c("library.c", folder / "libnvidia-ptxjitcompiler.so"), *_soname("libnvidia-ptxjitcompiler.so.1"),
                 quoted])
    jobs.extend([*_c(f"{name}.c", folder / name), quoted] for name in ("persistenced", "fabricmanager"))
    compile_all(jobs)
    return Driver(version, nvml, folder)


def compile_library(soname: str, version: str, path: Path) -> Path:
    """A shared library without functions."""
    compile_all([[*_c("library.c", path), *_soname(soname), f'-DVERSION="{version}"']])
    return path


def compile_daemon(source: str, version: str, folder: Path) -> Path:
    """A daemon whose version is an argument."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{source.removesuffix('.c')}-{version}"
    compile_all([[*_c(source, target), f'-DVERSION="{version}"']])
    return target


def compile_module(name: str, version: str, path: Path) -> Path:
    """A kernel module that does not belong to the driver."""
    compile_all([[*_c("module.c", path), "-c", f'-DVERSION="{version}"', '-DLICENSE="GPL v2"', f'-DNAME="{name}"']])
    return path


def compile_all(jobs: list[list[str]]) -> None:
    """Run compiler commands side by side."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda job: run_quietly(job, "a part of the packages"), jobs))


def _c(source: str, target: Path) -> list[str]:
    return ["gcc", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", str(FILES / source), "-o", str(target)]


def _soname(name: str) -> list[str]:
    return ["-shared", "-fPIC", "-fvisibility=hidden", f"-Wl,-soname,{name}"]
