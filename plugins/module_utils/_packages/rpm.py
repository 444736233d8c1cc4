# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What all package managers with RPM's database share: reading it, keys in it, files of a repository. PRIVATE."""

from __future__ import annotations

import os
import re
import time
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import CommandError, HostError, RepositoryError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.package_files import lost_files
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._files import read_bytes
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.base import (
    PackageState,
    Repository,
    columns,
    fetch_advice,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.openpgp import armor, keys
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.versions import rpm_key
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Completed, Runner

KEYS = "/etc/pki/rpm-gpg"
# Seconds: for another package manager to end; for one transaction with its DKMS builds.
LOCK_LIMIT = 300
TRANSACTION_LIMIT = 3600
# The epoch is left out where there is none, as on the command line.
_EVR = "%|EPOCH?{%{EPOCH}:}|%{VERSION}-%{RELEASE}"
QUERY = ("rpm", "-qa", "--qf", f"%{{NAME}}\\t%{{ARCH}}\\t{_EVR}\\n")
# Such packages stand beside each other in several versions (installonlypkgs of dnf.conf(5), multiversion of zypp.conf).
_SEVERAL = re.compile(r"kernel|gpg-pubkey\Z")
# What rpm leaves of a configuration file that somebody changed.
_LEFT = (".rpmsave", ".rpmnew", ".rpmorig")


def qualified(name: str, arch: str) -> str:
    """The name, with the architecture where it is not this machine's."""
    return name if arch in (os.uname().machine, "noarch", "(none)") else f"{name}.{arch}"


def parse_state(text: str) -> PackageState:
    """Reads what L(QUERY) prints. A package in two versions is what an upgrade that was cut off leaves."""
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
    """What a repository offers: name to full versions, newest first."""
    return {name: sorted(set(versions), key=rpm_key, reverse=True) for name, versions in found.items()}


def repository_id(repository: Repository) -> str:
    """What package managers call the repository."""
    return f"gpuops-{repository.name}"


def repository_text(repository: Repository, key: str, extra: t.Sequence[str] = ()) -> bytes:
    """A file of a repository (dnf.conf(5), zypper(8)). key: path of the armored key of packages and metadata.

    What names packages is trusted no less strictly than what is in them: the metadata's signature is always wanted.
    """
    lines = ["# Written by gpuops.nvidia; it goes with the component that uses it.", f"[{repository_id(repository)}]",
             f"name=gpuops.nvidia {repository.name}", f"baseurl={repository.url}", "enabled=1",
             f"gpgcheck={int(repository.signed)}", "repo_gpgcheck=1", f"gpgkey=file://{key}", *extra, ""]
    return "\n".join(lines).encode()


def waiting(call: t.Callable[[], Completed], locked: t.Callable[[Completed], str], wait: float) -> Completed:
    """The outcome of a call, made again for up to C(wait) seconds while another package manager holds its lock.

    locked: what the output says of who holds it, empty where nobody does. Raises HostError.
    """
    deadline = time.monotonic() + wait
    while True:
        done = call()
        who = locked(done)
        if not who:
            return done
        if time.monotonic() >= deadline:
            raise HostError(f"Another package manager has held its lock for over {wait:.0f} s: {who}.",
                            "Wait until it has ended, or raise lock_timeout; then run again.")
        time.sleep(3)


def said(error: CommandError) -> str:
    """All that a command printed."""
    return str(error.details["stdout"]) + str(error.details["stderr"])


def fetch(run: Runner, url: str, path: str, options: t.Mapping[str, str], settings: str) -> None:
    """Downloads by curl, which rpm depends on. Raises RepositoryError.

    options: of curl; they may hold passwords, and the query of the URL may be a signature, so they are in no command
    line. settings: where the proxy is set.
    """
    config = "".join('{} = "{}"\n'.format(name, re.sub(r'(["\\])', r"\\\1", value))
                     for name, value in {"url": url, **options}.items())
    done = run(["curl", "--fail", "--silent", "--show-error", "--location", "--retry", "1", "--max-time", "60",
                "--config", "-", "--output", path], timeout=150, check=False, stdin=config)
    if done.rc != 0:
        lines = (done.stderr or done.stdout).strip().splitlines() or [f"curl ended with {done.rc}"]
        raise RepositoryError(f"{url} cannot be fetched: {lines[-1].rstrip('.')}.",
                              fetch_advice(lines[-1], f"the proxy in {settings}"), url=url)


def unusable(repository: Repository, why: str, signature: bool, settings: str) -> RepositoryError:
    """The error for a repository whose metadata cannot be read. signature: because it is not of the wanted key."""
    url = repository.url
    if signature:
        return RepositoryError(f"{url} is not signed by the key {repository.wanted_fingerprint}: {why}.",
                               "Nothing was installed. Check repository.key; a mirror needs repodata/repomd.xml.asc, "
                               "too.", url=url)
    return RepositoryError(f"{url} cannot be read: {why}.", fetch_advice(why, f"the proxy in {settings}"), url=url)


class RpmManager:
    """The part of C(base.Manager) that is rpm's. lock_timeout: seconds to wait for another's lock."""

    repair_command = ("rpm", "--erase", "--allmatches", "--nodeps")
    # The folder of the package manager's repository files; what removes all versions of a package but the newest.
    repositories = ""
    duplicates = ""

    def __init__(self, run: Runner, lock_timeout: float = LOCK_LIMIT) -> None:
        self.run = run
        self.lock_timeout = lock_timeout

    def read(self) -> PackageState:
        """One query of rpm; its database is opened for reading."""
        return parse_state(self.run(list(QUERY)).stdout)

    def source_path(self, repository: Repository) -> str:
        """The repository's file."""
        return f"{self.repositories}/{repository_id(repository)}.repo"

    def key_path(self, repository: Repository) -> str:
        """The armored key."""
        return f"{KEYS}/{repository_id(repository)}.asc"

    def files(self, repository: Repository, key: bytes) -> dict[str, bytes]:
        """The key first: a repository without it would break every transaction."""
        return {self.key_path(repository): armor(key), self.source_path(repository): self._text(repository)}

    def _text(self, repository: Repository) -> bytes:
        raise NotImplementedError

    def is_configured(self, repository: Repository) -> bool:
        """Compares the repository's file byte by byte and computes the key's fingerprint; no command, no network."""
        try:
            held = keys(read_bytes(self.key_path(repository)) or b"")
        except ValueError:
            return False
        return (list(held) == [repository.wanted_fingerprint]
                and read_bytes(self.source_path(repository)) == self._text(repository))

    def trusts(self, fingerprint: str) -> bool:
        """Whether rpm's database has the key."""
        return bool(self._keys(fingerprint))

    def trust(self, repository: Repository) -> None:
        """rpm --import of our key file."""
        self.run(["rpm", "--import", self.key_path(repository)])

    def distrust(self, fingerprint: str) -> None:
        """Takes the key out of rpm's database."""
        for package in self._keys(fingerprint):
            self.run(["rpm", "--erase", package])

    def _keys(self, fingerprint: str) -> list[str]:
        """rpm's names of a key: its version is the last digits of the fingerprint, or all of them."""
        text = self.run(["rpm", "-q", "gpg-pubkey", "--qf", "%{NAME}-%{VERSION}-%{RELEASE}\n"], check=False).stdout
        return [line for line in text.split() if line.startswith("gpg-pubkey-")
                and fingerprint.lower().endswith(line.split("-")[2])]

    def lost_files(self, names: t.Sequence[str]) -> dict[str, list[str]]:
        """One query of rpm."""
        return lost_files(Root(), self.run, "redhat", names) or {}

    def remove(self, names: t.Sequence[str], purge: bool = True) -> None:
        """Removes exactly these; with purge also what rpm then keeps of configuration files that were changed.

        What it kept before this may be older than our packages: that stays.
        """
        settings = self.run(["rpm", "-qc", *names], check=False).stdout.splitlines() if purge else []
        left = [path + suffix for path in settings if os.path.isabs(path) for suffix in _LEFT
                if not os.path.lexists(path + suffix)]
        self._remove(names)
        for path in left:
            if os.path.lexists(path):
                os.unlink(path)

    def _remove(self, names: t.Sequence[str]) -> None:
        raise NotImplementedError

    def repair(self, names: t.Sequence[str]) -> None:
        """rpm --erase of all versions without asking for dependencies: they come anew. Others' packages are theirs."""
        before = self.read()
        there = [name for name in names if name in {**before.installed, **before.broken}]
        if there:
            self.run([*self.repair_command, *there], timeout=TRANSACTION_LIMIT)
        broken = self.read().broken
        if broken and not there:
            raise HostError(f"An upgrade that was cut off left two versions: {', '.join(sorted(broken))}.",
                            f"Put it in order: {self.duplicates}.", packages=dict(broken))
