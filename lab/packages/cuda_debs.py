# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The CUDA toolkit's Debian packages, as stand-ins: a meta package for each level, and its compiler.

Source: CUDA Installation Guide for Linux 13 (names by level, folders, the link /usr/local/cuda by update-alternatives).
"""

from __future__ import annotations

from lab.packages.content import script, text
from lab.packages.deb import Deb


def cuda_debs(release: str) -> list[Deb]:
    """The packages of one release such as 13.0.2."""
    level = ".".join(release.split(".")[:2])
    suffix, folder = level.replace(".", "-"), f"usr/local/cuda-{level}"
    words = {"FOLDER": f"/{folder}", "PRIORITY": level.replace(".", "") + "0"}
    return [
        Deb(f"cuda-toolkit-{suffix}", f"{release}-1",
            {"Depends": f"cuda-nvcc-{suffix} (>= {release}), cuda-toolkit-{suffix}-config-common (>= {release})"}),
        Deb(f"cuda-nvcc-{suffix}", f"{release}-1", files={
            f"{folder}/bin/nvcc": script("nvcc.sh", LEVEL=level, RELEASE=release),
            f"{folder}/version.json": f'{{"cuda": {{"name": "CUDA SDK", "version": "{release}"}}}}\n'},
            scripts={"postinst": f"chmod 755 /{folder}/bin/nvcc\n"}),
        Deb(f"cuda-toolkit-{suffix}-config-common", f"{release}-1", arch="all",
            scripts={name: text(f"cuda-link.{name}", **words) for name in ("postinst", "prerm")}),
    ]
