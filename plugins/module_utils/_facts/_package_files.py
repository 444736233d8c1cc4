# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files of installed packages that are missing or truncated. PRIVATE to the collection.

Only programs, libraries and modules count: documentation is left out of many systems, and what stands below /etc is the
administrator's to remove. Sources: dpkg-divert(1), dpkg(1) for its folder of lists; rpm's tags and file flags (rpmfi.h,
rpmfiles.h).
"""

from __future__ import annotations

import os
import re
import stat
import struct
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import CommandError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts._root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Runner

_INFO = "/var/lib/dpkg/info"
_COUNTS = re.compile(r"(/usr)?/(s?bin|lib\w*|src)/")
_PROGRAM = re.compile(r"/s?bin/[^/]+\Z|\.(so|ko)(\.[^/]*)?\Z")
_ELF64 = b"\x7fELF\x02\x01"  # little endian, as all machines with these GPUs are
_HEADER = 64
# One line for each file of each package; state 0: rpm has put it there.
_FORMAT = "[%{=NAME}\\t%{FILESTATES}\\t%{FILEFLAGS}\\t%{FILENAMES}\\n]"
# Configuration, documentation, may be missing, is not in the package (ghost), licence, readme.
_NOT_MEANT = 1 | 2 | 8 | 64 | 128 | 256


def lost_files(root: Root, run: Runner, family: str, names: t.Sequence[str]) -> dict[str, list[str]] | None:
    """Package to the paths that it has brought and that are missing or truncated; None where that cannot be told.

    family: the distribution's. names: of installed packages. Costs one rpm, or nothing but reading where dpkg is.
    """
    if not names:
        return {}
    files = _of_dpkg(root, names) if family == "debian" else _of_rpm(run, names)
    if files is None:
        return None
    lost = {name: [path for path in paths if _COUNTS.match(path) and not _is_whole(root, path)]
            for name, paths in files.items()}
    return {name: paths for name, paths in lost.items() if paths}


def _is_whole(root: Root, path: str) -> bool:
    place = root.at(path)
    try:
        if not _PROGRAM.search(path) or not stat.S_ISREG(os.lstat(place).st_mode):
            return root.is_there(path)
        with open(place, "rb") as handle:
            size, head = os.fstat(handle.fileno()).st_size, handle.read(_HEADER)
    except OSError:
        return root.is_there(path)
    return size >= (_end(head) if head.startswith(_ELF64) else 1)


def _end(head: bytes) -> int:
    """The least size of a file with this ELF header: where the table of its sections ends, which linkers write last."""
    if len(head) < _HEADER:
        return _HEADER
    offset, = struct.unpack_from("<Q", head, 40)
    length, count = struct.unpack_from("<HH", head, 58)
    return int(offset + length * count)


def _of_dpkg(root: Root, names: t.Sequence[str]) -> dict[str, list[str]] | None:
    diverted = set((root.text("/var/lib/dpkg/diversions") or "").splitlines()[::3])
    # Of a package that several architectures may have, the list is named after one, too.
    lists = {name[:-5].partition(":")[0]: name for name in reversed(root.names(_INFO)) if name.endswith(".list")}
    found = {}
    for name in names:
        text = root.text(f"{_INFO}/{lists[name]}") if name in lists else None
        if text is None:
            return None
        found[name] = [path for path in text.splitlines() if path not in diverted]
    return found


def _of_rpm(run: Runner, names: t.Sequence[str]) -> dict[str, list[str]] | None:
    try:
        done = run(["rpm", "-q", "--qf", _FORMAT, *names], check=False, timeout=60)
    except CommandError:
        return None
    found: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        words = line.split("\t")
        if len(words) == 4 and words[1] == "0" and not int(words[2]) & _NOT_MEANT:
            found.setdefault(words[0], []).append(words[3])
    return found if done.rc == 0 else None
