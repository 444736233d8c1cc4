# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs apt-get and parses the output of apt-get and dpkg."""

from __future__ import annotations

import contextlib
import glob
import os
import re
import tempfile
import time
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import CommandError, HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._files import read_bytes
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.base import (
    LOCK_LIMIT,
    TRANSACTION_LIMIT,
    Change,
    PackageState,
    Repository,
    columns,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Completed, Runner

LISTS = "/var/lib/apt/lists"
SOURCES = "/etc/apt/sources.list.d"
KEYRINGS = "/usr/share/keyrings"
DPKG_JOURNAL = "/var/lib/dpkg/updates"
STATUS = "/var/lib/dpkg/status"
DPKG_LOCK = "/var/lib/dpkg/lock"
_COPY = "gpuops-"
# Recommended packages of nvidia-driver-cuda would install a desktop.
_OPTIONS = ("-y", "-q", "--no-install-recommends", "-o", "Dpkg::Options::=--force-confdef",
            "-o", "Dpkg::Options::=--force-confold", "-o", "Dpkg::Use-Pty=0", "-o", "Acquire::Retries=2")
# Refuses unsigned repositories of this collection, even if the host allows them. Otherwise, apt may only show a
# warning.
SIGNED = tuple(word for name in ("AllowInsecureRepositories", "AllowWeakRepositories",
                                 "AllowDowngradeToInsecureRepositories") for word in ("-o", f"Acquire::{name}=false"))
# No prompts, and no restarts by needrestart, because the plan contains all restarts.
ENVIRONMENT = {"DEBIAN_FRONTEND": "noninteractive", "APT_LISTCHANGES_FRONTEND": "none", "NEEDRESTART_SUSPEND": "1",
               "UCF_FORCE_CONFFOLD": "1"}
_CHANGE = re.compile(r"(Inst|Remv|Purg) (\S+)(?: \[([^\]]*)\])?(?: \((\S+))?")
_QUOTED = "\\|{}[]<>\"^~_=!@#$%^&*"
# The name of a package in apt's list of missing dependencies.
_UNMET = re.compile(r"^ (\S+) : ", re.MULTILINE)
_VENDORS = re.compile(r"nvidia|libnv|cuda|datacenter-gpu-manager")
_LOCKED = re.compile(r"Could not get lock|Unable to lock|dpkg frontend lock")
# The second letter of db:Status-Abbrev. The third letter is R if the package must be installed again.
_INSTALLED, _RESIDUAL, _ABSENT = "i", "c", "n"


def parse_state(text: str, native: str = "") -> PackageState:
    """Parses lines C(name TAB architecture TAB version TAB db:Status-Abbrev) of dpkg-query.

    native: the architecture of the host. Packages for another architecture get the name C(name:arch).
    """
    installed, broken, residual = {}, {}, set()
    for name, arch, version, status in columns(text, 4, "dpkg-query"):
        if native and arch not in (native, "all"):
            name = f"{name}:{arch}"
        letter, error = status[1:2].lower(), status[2:3].strip()
        if error or letter not in (_INSTALLED, _RESIDUAL, _ABSENT) or status[1:2] in "HF":
            broken[name] = status.strip()
        elif letter == _INSTALLED:
            installed[name] = version
        elif letter == _RESIDUAL:
            residual.add(name)
    return PackageState(installed, broken, frozenset(residual))


def parse_simulation(text: str) -> list[Change]:
    """Parses the lines C(Inst), C(Remv) and C(Purg) of C(apt-get -s)."""
    changes = []
    for line in text.splitlines():
        found = _CHANGE.match(line)
        if found:
            act, name, before, after = found.groups()
            changes.append(Change(name, before, after if act == "Inst" else None))
    return changes


def list_prefix(url: str) -> str:
    """The prefix of the file names of a repository's downloaded lists (URItoFileName of apt)."""
    bare = re.sub(r"^[a-z+]+://(?:[^/@]*@)?", "", url.rstrip("/") + "/")
    quoted = "".join(f"%{ord(sign):02x}" if sign in _QUOTED else sign for sign in bare)
    return quoted.replace("/", "_")


def is_list_of(name: str, url: str) -> bool:
    """Whether a downloaded list belongs to the repository at url, and not to a repository in a subfolder of it."""
    return re.match(re.escape(list_prefix(url)) + r"(dists_.*|_?[^_]*)\Z", name) is not None


def apt_get(run: Runner, words: t.Sequence[str], limit: float = TRANSACTION_LIMIT,
            wait: float = LOCK_LIMIT) -> Completed:
    """Runs apt-get without prompts. limit: maximum seconds for the command. wait: maximum seconds to wait for the locks
    of apt and dpkg."""
    deadline = time.monotonic() + wait
    # Otherwise, a simulation would leave a log, eipp.log.xz.
    options = [*_OPTIONS, "-o", "Dir::Log::Planner="] if "-s" in words else _OPTIONS
    while True:
        patience = max(0, round(deadline - time.monotonic()))
        done = run(["apt-get", *options, "-o", f"DPkg::Lock::Timeout={patience}", *words], timeout=limit + patience,
                   check=False, env=ENVIRONMENT)
        if done.rc == 0:
            return done
        text = done.stderr + done.stdout
        if not _LOCKED.search(text):
            raise CommandError(done.argv, done.rc, done.stdout, done.stderr)
        # apt reliably names the process that holds the lock only if it does not wait for the lock.
        if time.monotonic() >= deadline and (not patience or "held by" in text):
            lines = [line.strip() for line in text.splitlines() if _LOCKED.search(line)]
            line = next((line for line in lines if "held by" in line), lines[-1])
            raise HostError(f"Another package manager has held its lock for over {wait:.0f} s: {line.rstrip('.')}.",
                            "Wait until it has ended, or increase lock_timeout; then run again.")
        time.sleep(3)


def apt_install(run: Runner, words: t.Sequence[str], wait: float = LOCK_LIMIT, without: t.Sequence[str] = ()
                ) -> Completed:
    """Runs apt-get install, even if dependencies of other NVIDIA packages are missing. Raises HostError, CommandError.

    In that case, apt would refuse every installation. Therefore, packages with missing dependencies are hidden from
    apt; the component that installed them repairs them. words: options, C(install), packages. without: packages that
    are removed before.
    """
    hidden, requested = set(without), {word.partition("=")[0] for word in words}
    while True:
        with _status_without(hidden, None if "-s" in words else os.path.dirname(STATUS)) as options:
            try:
                return apt_get(run, [*options, *words], wait=wait)
            except CommandError as error:
                reported = set(_UNMET.findall(str(error.details["stdout"])))
                unmet = _UNMET.findall(run(["apt-get", *options, "check"], check=False).stdout)
                broken = reported.intersection(unmet) - requested - hidden
                if not broken or not all(map(_VENDORS.search, broken)):
                    raise
                hidden |= broken


@contextlib.contextmanager
def _status_without(names: t.Collection[str], folder: str | None) -> t.Iterator[list[str]]:
    """Yields the option for a copy of dpkg's status without some packages. folder: where to create the copy, which apt
    locks."""
    if not names:
        yield []
        return
    heads = {f"Package: {name.split(':')[0]}" for name in names}
    stanzas = (read_bytes(STATUS) or b"").decode("utf-8", "replace").split("\n\n")
    with tempfile.NamedTemporaryFile(prefix=_COPY, dir=folder) as copy:
        copy.write("\n\n".join(stanza for stanza in stanzas if stanza.split("\n", 1)[0] not in heads).encode())
        copy.flush()
        yield ["-o", f"Dir::State::status={copy.name}"]


def left_copies() -> list[str]:
    """The paths of copies of dpkg's status that remain from killed runs."""
    return glob.glob(f"{glob.escape(os.path.dirname(STATUS))}/{_COPY}*")


def source_text(repository: Repository, keyring: str) -> bytes:
    """The content of the source file (deb822) of a repository (sources.list(5)). keyring: the path of its keyring."""
    lines = ["# Written by gpuops.nvidia; it is removed together with the component that uses it.", "Types: deb",
             f"URIs: {repository.url}", f"Suites: {repository.suite}"]
    if repository.components:
        lines.append(f"Components: {' '.join(repository.components)}")
    return "\n".join([*lines, f"Signed-By: {keyring}", ""]).encode()
