# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Debian's and Ubuntu's packages, by their own commands. PRIVATE to the collection.

The host's real apt does the work and the verifying; L(AptProbe) gives it folders of its own, so that a repository can
be read and a transaction be simulated before a single file of the host has changed.
"""

from __future__ import annotations

import errno
import os
import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import CommandError, HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.package_files import lost_files
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._files import read_bytes
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.apt_archive import ArchiveProbe, update_archive
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.apt_probe import AptProbe
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.apt_tools import (
    DPKG_JOURNAL,
    DPKG_LOCK,
    ENVIRONMENT,
    KEYRINGS,
    LISTS,
    LOCK_LIMIT,
    SIGNED,
    SOURCES,
    TRANSACTION_LIMIT,
    apt_get,
    apt_install,
    is_list_of,
    left_copies,
    parse_simulation,
    parse_state,
    source_text,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.base import (
    Archive,
    Change,
    PackageState,
    Repository,
    specifiers,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.openpgp import keys
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Runner


class Apt:
    """The host's apt and dpkg; implements C(base.Manager). lock_timeout: seconds to wait for another's lock."""

    repair_command = ("dpkg", "--configure", "-a")

    def __init__(self, run: Runner, lock_timeout: float = LOCK_LIMIT) -> None:
        self.run = run
        self.lock_timeout = lock_timeout

    def read(self) -> PackageState:
        """One dpkg-query."""
        layout = "${Package}\t${Architecture}\t${Version}\t${db:Status-Abbrev}\n"
        text = self.run(["dpkg-query", "-W", "-f", layout]).stdout
        native = re.search(r"^dpkg\t(\S+)\t", text, re.MULTILINE)
        state = parse_state(text, native.group(1) if native else "")
        # dpkg keeps a numbered file for each change that it has not merged yet: then apt refuses to work.
        notes = os.listdir(DPKG_JOURNAL) if os.path.isdir(DPKG_JOURNAL) else []
        pending = (any(name.isdigit() for name in notes) or bool(left_copies())) and not _at_work()
        return PackageState(state.installed, state.broken, state.residual, pending)

    def is_consistent(self) -> bool:
        """apt-get check, which changes nothing."""
        return self.run(["apt-get", "check", "-q"], timeout=300, check=False).rc == 0

    def probe(self, repository: Repository) -> AptProbe:
        """See C(apt_probe.AptProbe)."""
        if isinstance(repository, Archive):
            return ArchiveProbe(self.run, repository)
        return AptProbe(self.run, repository)

    def source_path(self, repository: Repository) -> str:
        """The deb822 file of ours."""
        return f"{SOURCES}/gpuops-{repository.name}.sources"

    def keyring_path(self, repository: Repository) -> str:
        """The keyring of ours."""
        return f"{KEYRINGS}/gpuops-{repository.name}.gpg"

    def files(self, repository: Repository, key: bytes) -> dict[str, bytes]:
        """The keyring first: a source without its keyring would break every apt call. None for an archive."""
        if isinstance(repository, Archive):
            return {}
        keyring = self.keyring_path(repository)
        return {keyring: key, self.source_path(repository): source_text(repository, keyring)}

    def is_configured(self, repository: Repository) -> bool:
        """Compares the source byte by byte and computes the keyring's fingerprint; no command, no network."""
        if isinstance(repository, Archive):
            return True
        keyring = self.keyring_path(repository)
        try:
            held = keys(read_bytes(keyring) or b"")
        except ValueError:
            return False
        return (list(held) == [repository.wanted_fingerprint]
                and read_bytes(self.source_path(repository)) == source_text(repository, keyring))

    def refresh(self, repository: Repository) -> None:
        """apt-get update for our source alone: other sources' troubles are not ours."""
        if isinstance(repository, Archive):
            update_archive(self.run, repository)
            return
        apt_get(self.run, ["-o", f"Dir::Etc::sourcelist={self.source_path(repository)}", "-o",
                           "Dir::Etc::sourceparts=-", "-o", "APT::Get::List-Cleanup=0",
                           "-o", "APT::Update::Error-Mode=any", *SIGNED, "update"], 600,
                self.lock_timeout)

    def forget_lists(self, url: str) -> None:
        """What C(apt-get update) would clean up after the source has gone."""
        for folder in (LISTS, f"{LISTS}/partial"):
            for name in os.listdir(folder) if os.path.isdir(folder) else ():
                if is_list_of(name, url):
                    os.unlink(os.path.join(folder, name))

    def trusts(self, fingerprint: str) -> bool:
        """The keyring that a source names is all that apt needs."""
        return True

    def trust(self, repository: Repository) -> None:
        """See L(trusts)."""

    def distrust(self, fingerprint: str) -> None:
        """See L(trusts)."""

    def install(self, packages: t.Mapping[str, str], auto: t.Sequence[str] = (), gone: t.Sequence[str] = ()) -> None:
        """apt-get install; a downgrade is what a plan asked for."""
        words = [*specifiers(packages), *(f"{name}-" for name in gone)]
        apt_install(self.run, ["--allow-downgrades", "install", *words], self.lock_timeout)
        if auto:
            self.run(["apt-mark", "auto", *auto])

    def lost_files(self, names: t.Sequence[str]) -> dict[str, list[str]]:
        """By dpkg's lists of files; no command."""
        return lost_files(Root(), self.run, "debian", names) or {}

    def reinstall(self, packages: t.Mapping[str, str], check: bool = False) -> None:
        """apt-get install --reinstall; with check apt-get -s."""
        apt_install(self.run, [*(["-s"] if check else []), "--reinstall", "--allow-downgrades", "install",
                               *specifiers(packages)], self.lock_timeout)

    def simulate_install(self, names: t.Sequence[str]) -> list[Change]:
        """apt-get -s install."""
        try:
            return parse_simulation(apt_get(self.run, ["-s", "install", *names]).stdout)
        except CommandError as error:
            raise HostError(f"apt cannot install {' '.join(names)}: {error.details['stderr'].strip()}",
                            "Look at the host's sources and lists (apt-get update).", packages=list(names)) from error

    def simulate_removal(self, names: t.Sequence[str]) -> list[Change]:
        """apt-get -s remove."""
        return parse_simulation(apt_get(self.run, ["-s", "remove", *names]).stdout)

    def remove(self, names: t.Sequence[str], purge: bool = True) -> None:
        """apt-get purge or remove of exactly these; also those whose unpacking was cut off, which dpkg would keep."""
        apt_get(self.run, ["-o", "Dpkg::Options::=--force-remove-reinstreq", "purge" if purge else "remove", *names],
                wait=self.lock_timeout)

    def repair(self, names: t.Sequence[str]) -> None:
        """dpkg --remove without asking for dependencies, then dpkg --configure -a for what others left."""
        for path in left_copies():
            os.unlink(path)
        before = self.read()
        there = [name for name in names if name in {**before.installed, **before.broken}]
        if there:
            self.run(["dpkg", "--remove", "--force-remove-reinstreq", "--force-depends", *there],
                     timeout=TRANSACTION_LIMIT, env=ENVIRONMENT)
        self.run(list(self.repair_command), timeout=TRANSACTION_LIMIT, check=False, env=ENVIRONMENT)
        state = self.read()
        if state.interrupted:
            done = self.run(list(self.repair_command), timeout=TRANSACTION_LIMIT, check=False, env=ENVIRONMENT)
            raise CommandError(done.argv, done.rc, done.stdout, done.stderr, "Repair the package database by hand.")


def _at_work() -> bool:
    """Whether a dpkg has its lock just now: then it will merge its notes itself. Takes no lock."""
    try:
        with open(DPKG_LOCK, "rb") as lock:
            os.lockf(lock.fileno(), os.F_TEST, 0)
    except OSError as error:
        return error.errno in (errno.EACCES, errno.EAGAIN)
    return False
