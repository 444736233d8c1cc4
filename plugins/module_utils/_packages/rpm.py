# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Functions for the package managers that use rpm: the wait for a lock, its database, its keys, repository files."""

from __future__ import annotations

import os
import re
import shutil
import time
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.package_files import lost_files
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._files import read_bytes
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.base import (
    LOCK_LIMIT,
    TRANSACTION_LIMIT,
    PackageState,
    Repository,
    columns,
    fetch_error,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.openpgp import armor, is_key
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.versions import rpm_key
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Completed, Runner

KEYS = "/etc/pki/rpm-gpg"
# A package without an epoch is printed without an epoch, as on the command line of dnf.
_EVR = "%|EPOCH?{%{EPOCH}:}|%{VERSION}-%{RELEASE}"
QUERY = ("rpm", "-qa", "--qf", f"%{{NAME}}\\t%{{ARCH}}\\t{_EVR}\\n")
# Packages of which several versions can be installed (installonlypkgs in dnf.conf(5), multiversion in zypp.conf).
_SEVERAL = re.compile(r"kernel|gpg-pubkey\Z")
# The suffixes of changed configuration files that rpm keeps.
_KEPT_SUFFIXES = (".rpmsave", ".rpmnew", ".rpmorig")


def qualified(name: str, arch: str) -> str:
    """The name of a package, followed by its architecture if this differs from the machine's architecture."""
    return name if arch in (os.uname().machine, "noarch", "(none)") else f"{name}.{arch}"


def parse_state(text: str) -> PackageState:
    """Parses the output of L(QUERY). A package with two versions is broken, because an upgrade was interrupted."""
    found: dict[str, list[str]] = {}
    for name, arch, version in columns(text, 3, "rpm"):
        found.setdefault(qualified(name, arch), []).append(version)
    installed, broken = {}, {}
    for name, versions in found.items():
        if len(versions) > 1 and not _SEVERAL.match(name):
            broken[name] = f"installed as {' and '.join(sorted(versions))}"
        else:
            installed[name] = max(versions, key=rpm_key)
    return PackageState(installed, broken)


def newest_first(found: t.Mapping[str, t.Iterable[str]]) -> dict[str, list[str]]:
    """C({name: [full version]}), with the newest version first and without duplicates."""
    return {name: sorted(set(versions), key=rpm_key, reverse=True) for name, versions in found.items()}


def repository_id(repository: Repository) -> str:
    """The name of the repository for dnf and zypper."""
    return f"gpuops-{repository.name}"


def repository_text(repository: Repository, key: str, extra: t.Sequence[str] = ()) -> bytes:
    """The content of the configuration file of a repository (dnf.conf(5), zypper(8)). key: the path of the armored key.

    The signature of the metadata is always verified, because the metadata decides which packages are installed.
    """
    lines = ["# Written by gpuops.nvidia; it is removed together with the component that uses it.",
             f"[{repository_id(repository)}]",
             f"name=gpuops.nvidia {repository.name}", f"baseurl={repository.url}", "enabled=1",
             f"gpgcheck={int(repository.signed)}", "repo_gpgcheck=1", f"gpgkey=file://{key}", *extra, ""]
    return "\n".join(lines).encode()


def retry_while_locked(call: t.Callable[[], Completed], locked: t.Callable[[Completed], str], wait: float) -> Completed:
    """Returns the result of a call, and repeats the call while another package manager holds the lock.

    locked: returns the message about the lock, or an empty text if the lock was not held. wait: maximum seconds; raises
    HostError after this time.
    """
    deadline = time.monotonic() + wait
    while True:
        done = call()
        message = locked(done)
        if not message:
            return done
        if time.monotonic() >= deadline:
            raise HostError(f"Another package manager has held its lock for over {wait:.0f} s: {message}.",
                            "Wait until it has ended, or increase lock_timeout; then run again.")
        time.sleep(3)


def fetch(run: Runner, url: str, path: str, options: t.Mapping[str, str], settings: str) -> None:
    """Downloads a file with curl, on which rpm depends. Raises RepositoryError.

    options: options of curl. curl reads them and the URL from standard input, because they may contain secrets and all
    users can see command lines. settings: the file that contains the proxy setting.
    """
    config = "".join('{} = "{}"\n'.format(name, re.sub(r'(["\\])', r"\\\1", value))
                     for name, value in {"url": url, **options}.items())
    done = run(["curl", "--fail", "--silent", "--show-error", "--location", "--retry", "1", "--max-time", "60",
                "--config", "-", "--output", path], timeout=150, check=False, stdin=config)
    if done.rc != 0:
        lines = (done.stderr or done.stdout).strip().splitlines() or [f"curl ended with {done.rc}"]
        raise fetch_error(url, lines[-1].rstrip("."), f"the proxy in {settings}")


def copy_database_without(run: Runner, copy: str, names: t.Sequence[str]) -> None:
    """Copies rpm's database to a new folder and removes packages from the copy."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(database_path(run), copy)
    run(["rpm", "--dbpath", copy, "--erase", "--justdb", "--allmatches", "--nodeps", "--noscripts", "--notriggers",
         *names])


def database_path(run: Runner) -> str:
    """The folder of rpm's database."""
    return run(["rpm", "--eval", "%_dbpath"]).stdout.strip()


class RpmManager:
    """Implements the part of C(base.Manager) that uses rpm. lock_timeout: maximum seconds to wait for a lock."""

    repair_command = ("rpm", "--erase", "--allmatches", "--nodeps")
    # The folder of repository files, and instructions for an administrator to remove older versions of packages.
    repositories = ""
    duplicates = ""

    def __init__(self, run: Runner, lock_timeout: float = LOCK_LIMIT) -> None:
        self.run = run
        self.lock_timeout = lock_timeout

    def read(self) -> PackageState:
        """See C(base.Manager). Runs one query of rpm."""
        return parse_state(self.run(list(QUERY)).stdout)

    def source_path(self, repository: Repository) -> str:
        """The path of the repository file."""
        return f"{self.repositories}/{repository_id(repository)}.repo"

    def key_path(self, repository: Repository) -> str:
        """The path of the armored key."""
        return f"{KEYS}/{repository_id(repository)}.asc"

    def files(self, repository: Repository, key: bytes) -> dict[str, bytes]:
        """See C(base.Manager). The key comes first, because every transaction would fail if the repository existed
        without it."""
        return {self.key_path(repository): armor(key), self.source_path(repository): self._text(repository)}

    def _text(self, repository: Repository) -> bytes:
        raise NotImplementedError

    def is_configured(self, repository: Repository) -> bool:
        """See C(base.Manager). Runs no command."""
        return (is_key(read_bytes(self.key_path(repository)) or b"", repository.wanted_fingerprint)
                and read_bytes(self.source_path(repository)) == self._text(repository))

    def trusts(self, fingerprint: str) -> bool:
        """See C(base.Manager)."""
        return bool(self._keys(fingerprint))

    def trust(self, repository: Repository) -> None:
        """See C(base.Manager)."""
        self.run(["rpm", "--import", self.key_path(repository)])

    def distrust(self, fingerprint: str) -> None:
        """See C(base.Manager)."""
        for package in self._keys(fingerprint):
            self.run(["rpm", "--erase", package])

    def _keys(self, fingerprint: str) -> list[str]:
        """The packages in which rpm stores a key. The version of a package is the fingerprint, or its last digits."""
        text = self.run(["rpm", "-q", "gpg-pubkey", "--qf", "%{NAME}-%{VERSION}-%{RELEASE}\n"], check=False).stdout
        return [line for line in text.split() if line.startswith("gpg-pubkey-")
                and fingerprint.lower().endswith(line.split("-")[2])]

    def lost_files(self, names: t.Sequence[str]) -> dict[str, list[str]]:
        """See C(base.Manager). Runs one query of rpm."""
        return lost_files(Root(), self.run, "redhat", names) or {}

    def remove(self, names: t.Sequence[str], purge: bool = True) -> None:
        """See C(base.Manager). Does not remove dependencies.

        purge: whether to also delete the changed configuration files that rpm keeps. Copies that existed before the
        removal are not deleted, because they may be older than the installation by this collection.
        """
        settings = self.run(["rpm", "-qc", *names], check=False).stdout.splitlines() if purge else []
        kept = [path + suffix for path in settings if os.path.isabs(path) for suffix in _KEPT_SUFFIXES
                if not os.path.lexists(path + suffix)]
        self._remove(names)
        for path in kept:
            if os.path.lexists(path):
                os.unlink(path)

    def _remove(self, names: t.Sequence[str]) -> None:
        raise NotImplementedError

    def repair(self, names: t.Sequence[str]) -> None:
        """Removes all versions of packages, but no dependencies. Raises HostError if packages are broken that this
        collection has not installed."""
        before = self.read()
        present = [name for name in names if name in {**before.installed, **before.broken}]
        if present:
            self.run([*self.repair_command, *present], timeout=TRANSACTION_LIMIT)
        broken = self.read().broken
        if broken and not present:
            raise HostError("An interrupted upgrade left two versions of these packages: "
                            f"{', '.join(sorted(broken))}.", f"Remove the older ones: {self.duplicates}.",
                            packages=dict(broken))
