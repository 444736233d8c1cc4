# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Finds files of installed packages that are missing or damaged. PRIVATE to the collection.

Only programs, libraries and modules are checked, because many systems omit documentation, and administrators may remove
files in /etc. A driver has a gigabyte of files, so a file is compared with the checksum of its package only if it was
written after the installation. Modules are not compared, because the host signs them. Sources: dpkg-divert(1), dpkg(1),
deb-md5sums(5); rpm's tags and file flags (rpmfi.h, rpmfiles.h, rpmcrypto.h).
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import CommandError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._libraries import HEADER, least_size
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Runner

_INFO = "/var/lib/dpkg/info"
_COUNTS = re.compile(r"(/usr)?/(s?bin|lib\w*|src)/[^\0]{,4080}\Z")
_PROGRAM = re.compile(r"/s?bin/[^/]+\Z|\.(so|ko)(\.[^/]*)?\Z")
_MODULE = re.compile(r"\.ko(\.[^/]*)?\Z")
# One line for each file of each package. rpm has installed a file with the state 0.
_FORMAT = ("[%{=NAME}\\t%{FILESTATES}\\t%{FILEFLAGS}\\t%{FILENAMES}\\t%{FILEMTIMES}\\t%{=FILEDIGESTALGO}"
           "\\t%{FILEDIGESTS}\\n]")
_FILE = re.compile(r"^([^\t\n]*)\t0\t(\d{1,10})\t([^\t\n]*)\t(\d{1,10})\t([^\t\n]*)\t([^\t\n]*)$", re.M)
# The numbers by which rpm stores the algorithm of digests.
_ALGORITHMS = {"1": "md5", "2": "sha1", "8": "sha256", "9": "sha384", "10": "sha512"}
# File flags: configuration, documentation, missingok, ghost, licence, readme.
_NOT_MEANT = 1 | 2 | 8 | 64 | 128 | 256


class _File(t.NamedTuple):
    """A file of a package. least, most: a file whose mtime (seconds since 1970) is between them has not been written
    since its installation. digest: that of its content by algorithm, in hexadecimal, empty if the package has none."""

    path: str
    least: float = 0
    most: float = 0
    algorithm: str = ""
    digest: str = ""


def lost_files(root: Root, run: Runner, family: str, names: t.Sequence[str]) -> dict[str, list[str]] | None:
    """Maps a package to the paths of its missing or damaged files; None if unknown.

    family: that of the distribution; names: those of installed packages. Runs rpm once; with dpkg it only reads files.
    """
    if not names:
        return {}
    files = _of_dpkg(root, names) if family == "debian" else _of_rpm(run, names)
    if files is None:
        return None
    lost = {name: [file.path for file in brought if _COUNTS.match(file.path) and not _is_whole(root, file)]
            for name, brought in files.items()}
    return {name: paths for name, paths in lost.items() if paths}


def _is_whole(root: Root, file: _File) -> bool:
    place = root.at(file.path)
    try:
        if not _PROGRAM.search(file.path) or not stat.S_ISREG(os.lstat(place).st_mode):
            return root.is_there(file.path)
        with open(place, "rb") as handle:
            found, head = os.fstat(handle.fileno()), handle.read(HEADER)
            handle.seek(0)
            return (found.st_size >= least_size(head)
                    and (file.least <= found.st_mtime < file.most + 1 or _has_digest(file, handle)))
    except OSError:
        return root.is_there(file.path)


def _has_digest(file: _File, handle: t.BinaryIO) -> bool:
    """Whether a file has the digest of its package. True without a digest that can be compared."""
    if not file.digest or _MODULE.search(file.path):
        return True
    try:
        whole = hashlib.new(file.algorithm)
    except ValueError:  # a host in FIPS mode has no MD5
        return True
    for part in iter(lambda: handle.read(1 << 20), b""):
        whole.update(part)
    return whole.hexdigest() == file.digest


def _of_dpkg(root: Root, names: t.Sequence[str]) -> dict[str, list[_File]] | None:
    diverted = set((root.text("/var/lib/dpkg/diversions") or "").splitlines()[::3])
    # The name of a list may end with an architecture (NAME:amd64.list).
    lists = {name[:-5].partition(":")[0]: name for name in reversed(root.names(_INFO)) if name.endswith(".list")}
    found = {}
    for name in names:
        text = root.text(f"{_INFO}/{lists[name]}") if name in lists else None
        if text is None:
            return None
        # dpkg writes the list after it has unpacked the files. They have the times that are in the package.
        listed = root.stat(f"{_INFO}/{lists[name]}")
        sums = (root.text(f"{_INFO}/{lists[name][:-5]}.md5sums") or "").splitlines() if listed else []
        digests = {f"/{path}": digest for digest, _space, path in (line.partition("  ") for line in sums)}
        found[name] = [_File(path, 0, listed.st_mtime if listed else 0, "md5", digests.get(path, ""))
                       for path in text.splitlines() if path not in diverted]
    return found


def _of_rpm(run: Runner, names: t.Sequence[str]) -> dict[str, list[_File]] | None:
    try:
        done = run(["rpm", "-q", "--qf", _FORMAT, *names], check=False, timeout=60)
    except CommandError:
        return None
    found: dict[str, list[_File]] = {}
    for name, flags, path, changed, algorithm, digest in _FILE.findall(done.stdout):
        if not int(flags) & _NOT_MEANT:
            time, kind = int(changed), _ALGORITHMS.get(algorithm, "md5")  # "(none)" is MD5
            found.setdefault(name, []).append(_File(path, time, time, kind, digest))
    return found if done.rc == 0 else None
