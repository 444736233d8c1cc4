# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads the state of NVIDIA's modules from the tree of DKMS. PRIVATE to the collection.

The tree is read directly, because C(dkms status) takes longer than all other facts together. The tree (dkms(8), source
of dkms 3) has C(NAME/VERSION/source), C(NAME/VERSION/KERNEL/ARCH) for a built module, and a link
C(NAME/kernel-KERNEL-ARCH) to the module that is installed for a kernel.
"""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root

_TREE = "/var/lib/dkms"
_MODULE = re.compile(r"(nvidia|gdrdrv)")


class DkmsModule(t.TypedDict):
    """A module of DKMS.

    kernel: None for the state added; state: C(installed); C(built), which includes modules whose installed files are
    missing; or C(added) if the version is not built for any kernel.
    """

    name: str
    version: str
    kernel: str | None
    state: str


def read_dkms(root: Root, arch: str) -> list[DkmsModule]:
    """NVIDIA's modules in DKMS, sorted by name, version and kernel. arch: the architecture of the host."""
    found: list[DkmsModule] = []
    for name in filter(_MODULE.match, root.names(_TREE)):
        # The link of a kernel points to VERSION/KERNEL/ARCH below the module's folder.
        links = [(root.link(f"{_TREE}/{name}/{entry}") or "").rstrip("/").split("/")[-3:]
                 for entry in root.names(f"{_TREE}/{name}") if entry.startswith("kernel-")]
        installed = {(link[0], link[1]) for link in links
                     if link[-1] == arch and _is_installed(root, f"{_TREE}/{name}/{'/'.join(link)}/module", link[1])}
        for version in root.names(f"{_TREE}/{name}"):
            if version[0].isdigit():
                found += _kernels(root, name, version, arch, installed)
    return found


def _kernels(root: Root, name: str, version: str, arch: str,
             installed: t.Collection[t.Tuple[str, str]]) -> list[DkmsModule]:
    folder = f"{_TREE}/{name}/{version}"
    kernels = {kernel for kernel in root.names(folder) if root.exists(f"{folder}/{kernel}/{arch}")}
    kernels |= {kernel for other, kernel in installed if other == version}
    if not kernels:
        return [{"name": name, "version": version, "kernel": None, "state": "added"}]
    return [{"name": name, "version": version, "kernel": kernel,
             "state": "installed" if (version, kernel) in installed else "built"} for kernel in sorted(kernels)]


def _is_installed(root: Root, built: str, kernel: str) -> bool:
    """Whether the modules in a folder of DKMS are installed: on the disk, and in the kernel's index if there is one."""
    index, names = root.text(f"/lib/modules/{kernel}/modules.dep"), set(map(_stem, root.names(built)))
    paths = [line.partition(":")[0] for line in (index or "").splitlines()]
    return index is None or names == {_stem(path) for path in paths if _stem(path) in names
                                      and root.exists(f"/lib/modules/{kernel}/{path}")}


def _stem(path: str) -> str:
    return path.rpartition("/")[2].partition(".ko")[0]  # compressed or not
