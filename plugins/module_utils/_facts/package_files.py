# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Finds files of installed packages that are missing or damaged. PRIVATE to the collection.

Only programs, libraries and modules are checked: many systems omit documentation, and administrators may remove files
in /etc. A driver has a gigabyte of files, so a file is compared with the checksum in its package only if it was written
after the installation. The content of modules is not compared, because the host signs them. Sources: dpkg-divert(1),
dpkg(1), deb-md5sums(5); rpm's tags and file flags (rpmfi.h, rpmfiles.h, rpmcrypto.h).
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
_CHECKED = re.compile(r"(/usr)?/(s?bin|lib\w*|src)/[^\0]{,4080}\Z")
_PROGRAM = re.compile(r"/s?bin/[^/]+\Z|\.(so|ko)(\.[^/]*)?\Z")
_MODULE = re.compile(r"\.ko(\.[^/]*)?\Z")
# One line for each file of each package. rpm has installed a file with the state 0.
_FORMAT = ("[%{=NAME}\\t%{FILESTATES}\\t%{FILEFLAGS}\\t%{FILENAMES}\\t%{FILEMTIMES}\\t%{=FILEDIGESTALGO}"
           "\\t%{FILEDIGESTS}\\n]")
_FILE = re.compile(r"^([^\t\n]*)\t0\t(\d{1,10})\t([^\t\n]*)\t(\d{1,10})\t([^\t\n]*)\t([^\t\n]*)$", re.M)
# The numbers by which rpm stores the algorithm of digests.
_ALGORITHMS = {"1": "md5", "2": "sha1", "8": "sha256", "9": "sha384", "10": "sha512"}
# File flags: configuration, documentation, missingok, ghost, licence, readme.
_IGNORED_FLAGS = 1 | 2 | 8 | 64 | 128 | 256


class _File(t.NamedTuple):
    """A file of a package. least, most: the range of its mtime, in seconds since 1970, if it was not written after the
    installation. digest: that of its content by algorithm, in hexadecimal, empty if the package has none."""

    path: str
    least: float = 0
    most: float = 0
    algorithm: str = ""
    digest: str = ""


def lost_files(root: Root, run: Runner, family: str, names: t.Sequence[str]) -> dict[str, list[str]] | None:
    """Maps packages to the paths of their missing or damaged files; None if unknown.

    family: that of the distribution; names: installed packages. Runs rpm once, or reads the files of dpkg.
    """
    if not names:
        return {}
    files = _of_dpkg(root, names) if family == "debian" else _of_rpm(run, names)
    if files is None:
        return None
    lost = {name: [file.path for file in packaged if _CHECKED.match(file.path) and not _is_intact(root, file)]
            for name, packaged in files.items()}
    return {name: paths for name, paths in lost.items() if paths}


def _is_intact(root: Root, file: _File) -> bool:
    path = root.at(file.path)
    try:
        if not _PROGRAM.search(file.path) or not stat.S_ISREG(os.lstat(path).st_mode):
            return root.is_there(file.path)
        with open(path, "rb") as handle:
            found, head = os.fstat(handle.fileno()), handle.read(HEADER)
            handle.seek(0)
            return (found.st_size >= least_size(head)
                    and (file.least <= found.st_mtime < file.most + 1 or _has_digest(file, handle)))
    except OSError:
        return root.is_there(file.path)


def _has_digest(file: _File, handle: t.BinaryIO) -> bool:
    """Whether a file has the digest in its package. True if there is no digest to compare."""
    if not file.digest or _MODULE.search(file.path):
        return True
    try:
        digest = hashlib.new(file.algorithm)
    except ValueError:  # a host in FIPS mode has no MD5
        return True
    for part in iter(lambda: handle.read(1 << 20), b""):
        digest.update(part)
    return digest.hexdigest() == file.digest


def _of_dpkg(root: Root, names: t.Sequence[str]) -> dict[str, list[_File]] | None:
    diverted = set((root.text("/var/lib/dpkg/diversions") or "").splitlines()[::3])
    # The name of a list may end with an architecture (NAME:amd64.list).
    lists = {name[:-5].partition(":")[0]: name for name in reversed(root.names(_INFO)) if name.endswith(".list")}
    found = {}
    for name in names:
        text = root.text(f"{_INFO}/{lists[name]}") if name in lists else None
        if text is None:
            return None
        # dpkg writes the list after it has unpacked the files, whose times are those in the package.
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
        if not int(flags) & _IGNORED_FLAGS:
            time, kind = int(changed), _ALGORITHMS.get(algorithm, "md5")  # "(none)" is MD5
            found.setdefault(name, []).append(_File(path, time, time, kind, digest))
    return found if done.rc == 0 else None
