# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How apt and dpkg are called, and what they print read. PRIVATE to the collection."""

from __future__ import annotations

import re
import time
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import CommandError, HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages._base import (
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
DPKG_LOCK = "/var/lib/dpkg/lock"
# Seconds: for another package manager to end, unless the caller says; for one transaction with its DKMS builds.
LOCK_LIMIT = 300
TRANSACTION_LIMIT = 3600

# Without recommended packages: nvidia-driver-cuda's would bring a desktop.
_OPTIONS = ("-y", "-q", "--no-install-recommends", "-o", "Dpkg::Options::=--force-confdef",
            "-o", "Dpkg::Options::=--force-confold", "-o", "Dpkg::Use-Pty=0", "-o", "Acquire::Retries=2")
# For our own repositories, whatever the host allows for others: apt would take an unsigned one with a warning.
SIGNED = tuple(word for name in ("AllowInsecureRepositories", "AllowWeakRepositories",
                                 "AllowDowngradeToInsecureRepositories") for word in ("-o", f"Acquire::{name}=false"))
# No dialogs, no restarts of services by needrestart: what is restarted is in the plan.
ENVIRONMENT = {"DEBIAN_FRONTEND": "noninteractive", "APT_LISTCHANGES_FRONTEND": "none", "NEEDRESTART_SUSPEND": "1",
               "UCF_FORCE_CONFFOLD": "1"}
_CHANGE = re.compile(r"(Inst|Remv|Purg) (\S+)(?: \[([^\]]*)\])?(?: \((\S+))?")
_QUOTED = "\\|{}[]<>\"^~_=!@#$%^&*"
_LOCKED = re.compile(r"Could not get lock|Unable to lock|dpkg frontend lock")
# Third letter of db:Status-Abbrev: R, the package needs to be installed again.
_WHOLE, _RESIDUAL, _ABSENT = "i", "c", "n"


def parse_state(text: str, native: str = "") -> PackageState:
    """Reads lines C(name TAB architecture TAB version TAB db:Status-Abbrev) of dpkg-query.

    native: this host's architecture; the packages of others are named C(name:arch).
    """
    installed, broken, residual = {}, {}, set()
    for name, arch, version, status in columns(text, 4, "dpkg-query"):
        if native and arch not in (native, "all"):
            name = f"{name}:{arch}"
        letter, error = status[1:2].lower(), status[2:3].strip()
        if error or letter not in (_WHOLE, _RESIDUAL, _ABSENT) or status[1:2] in "HF":
            broken[name] = status.strip()
        elif letter == _WHOLE:
            installed[name] = version
        elif letter == _RESIDUAL:
            residual.add(name)
    return PackageState(installed, broken, frozenset(residual))


def parse_simulation(text: str) -> list[Change]:
    """Reads the C(Inst), C(Remv) and C(Purg) lines of C(apt-get -s)."""
    changes = []
    for line in text.splitlines():
        found = _CHANGE.match(line)
        if found:
            act, name, before, after = found.groups()
            changes.append(Change(name, before, after if act == "Inst" else None))
    return changes


def list_prefix(url: str) -> str:
    """How the names of a repository's fetched lists begin (apt's URItoFileName)."""
    bare = re.sub(r"^[a-z+]+://(?:[^/@]*@)?", "", url.rstrip("/") + "/")
    quoted = "".join(f"%{ord(sign):02x}" if sign in _QUOTED else sign for sign in bare)
    return quoted.replace("/", "_")


def is_list_of(name: str, url: str) -> bool:
    """Whether a fetched list is of the repository at url itself, not of one in a folder below it."""
    return re.match(re.escape(list_prefix(url)) + r"(dists_.*|_?[^_]*)\Z", name) is not None


def native_architecture(run: Runner) -> str:
    """What Debian calls this machine: C(amd64), C(arm64)."""
    return run(["dpkg", "--print-architecture"]).stdout.strip()


def apt_get(run: Runner, words: t.Sequence[str], limit: float = TRANSACTION_LIMIT,
            wait: float = LOCK_LIMIT) -> Completed:
    """Runs apt-get without dialogs. wait: seconds, for the locks of others, those too that it does not wait for."""
    deadline = time.monotonic() + wait
    while True:
        patience = max(0, round(deadline - time.monotonic()))
        done = run(["apt-get", *_OPTIONS, "-o", f"DPkg::Lock::Timeout={patience}", *words], timeout=limit + patience,
                   check=False, env=ENVIRONMENT)
        if done.rc == 0:
            return done
        text = done.stderr + done.stdout
        if not _LOCKED.search(text):
            raise CommandError(done.argv, done.rc, done.stdout, done.stderr)
        if time.monotonic() >= deadline:
            lines = [line.strip() for line in text.splitlines() if _LOCKED.search(line)]
            told = next((line for line in lines if "held by" in line), lines[-1])
            raise HostError(f"Another package manager has held its lock for over {wait:.0f} s: {told.rstrip('.')}.",
                            "Wait until it has ended, or raise lock_timeout; then run again.")
        time.sleep(3)


def source_text(repository: Repository, keyring: str) -> bytes:
    """The deb822 source of a repository (sources.list(5)). keyring: the path of its key."""
    lines = ["# Written by gpuops.nvidia; it goes with the component that uses it.", "Types: deb",
             f"URIs: {repository.url}", f"Suites: {repository.suite}"]
    if repository.components:
        lines.append(f"Components: {' '.join(repository.components)}")
    return "\n".join([*lines, f"Signed-By: {keyring}", ""]).encode()
