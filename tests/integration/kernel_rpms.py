# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A repository on a host, with packages that a test makes, such as newer kernels."""

from __future__ import annotations

import base64
import io
import tarfile
from pathlib import Path

from lab.packages.driver_rpms import Rpm, write_rpm
from lab.tools import run_quietly

FOLDER = "/opt/kernels"


def package(name: str, version: str, release: str) -> tuple[Rpm, str]:
    """A package without files and its version. Several versions of a kernel can be installed side by side."""
    several = ("Provides: multiversion(kernel)", "Provides: installonlypkg(kernel)")
    return Rpm(name, several if name.startswith("kernel") else (), epoch=0, release=release), version


def put(folder: Path, *packages: tuple[Rpm, str]) -> str:
    """Makes packages in an empty folder. Returns a script that puts their repository into L(FOLDER) of a host."""
    for rpm, version in packages:
        write_rpm(rpm, version, folder)
    run_quietly(["createrepo_c", "--quiet", "--no-database", str(folder)], "the repository of kernels")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        archive.add(folder, ".")
    text = base64.encodebytes(packed.getvalue()).decode()
    return f"mkdir {FOLDER}\nbase64 -d << 'END' | tar -xz -C {FOLDER}\n{text}END\n"
