# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Manages packages with apt and dpkg.

apt installs and verifies packages. L(AptProbe) runs apt with temporary folders, to read a repository and simulate a
transaction before any file of the host is changed.
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
    SIGNED,
    SOURCES,
    apt_get,
    apt_install,
    is_list_of,
    left_copies,
    parse_simulation,
    parse_state,
    source_text,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.base import (
    LOCK_LIMIT,
    TRANSACTION_LIMIT,
    Archive,
    Change,
    PackageState,
    Repository,
    specifiers,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.openpgp import is_key
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Runner


class Apt:
    """Implements C(base.Manager) with apt and dpkg. lock_timeout: maximum seconds to wait for a lock."""

    repair_command = ("dpkg", "--configure", "-a")

    def __init__(self, run: Runner, lock_timeout: float = LOCK_LIMIT) -> None:
        self.run = run
        self.lock_timeout = lock_timeout

    def read(self) -> PackageState:
        """See C(base.Manager). Runs one dpkg-query."""
        layout = "${Package}\t${Architecture}\t${Version}\t${db:Status-Abbrev}\n"
        text = self.run(["dpkg-query", "-W", "-f", layout]).stdout
        native = re.search(r"^dpkg\t(\S+)\t", text, re.MULTILINE)
        state = parse_state(text, native.group(1) if native else "")
        # A file with a number as its name contains a change that dpkg has not merged yet. apt does not work until it is
        # merged.
        changes = os.listdir(DPKG_JOURNAL) if os.path.isdir(DPKG_JOURNAL) else []
        pending = (any(name.isdigit() for name in changes) or bool(left_copies())) and not _is_dpkg_running()
        return PackageState(state.installed, state.broken, state.residual, pending)

    def is_consistent(self) -> bool:
        """Runs apt-get check, which changes nothing."""
        return self.run(["apt-get", "check", "-q"], timeout=300, check=False).rc == 0

    def probe(self, repository: Repository) -> AptProbe:
        """See C(apt_probe.AptProbe)."""
        if isinstance(repository, Archive):
            return ArchiveProbe(self.run, repository)
        return AptProbe(self.run, repository)

    def source_path(self, repository: Repository) -> str:
        """The path of the source file (deb822) of a repository."""
        return f"{SOURCES}/gpuops-{repository.name}.sources"

    def keyring_path(self, repository: Repository) -> str:
        """The path of the keyring of a repository."""
        return f"{KEYRINGS}/gpuops-{repository.name}.gpg"

    def files(self, repository: Repository, key: bytes) -> dict[str, bytes]:
        """See C(base.Manager). The keyring comes first, because every apt command would fail if the source existed
        without it."""
        if isinstance(repository, Archive):
            return {}
        keyring = self.keyring_path(repository)
        return {keyring: key, self.source_path(repository): source_text(repository, keyring)}

    def is_configured(self, repository: Repository) -> bool:
        """See C(base.Manager). Runs no command."""
        if isinstance(repository, Archive):
            return True
        keyring = self.keyring_path(repository)
        return (is_key(read_bytes(keyring) or b"", repository.wanted_fingerprint)
                and read_bytes(self.source_path(repository)) == source_text(repository, keyring))

    def refresh(self, repository: Repository) -> None:
        """See C(base.Manager). Errors of other sources are ignored."""
        if isinstance(repository, Archive):
            update_archive(self.run, repository)
            return
        apt_get(self.run, ["-o", f"Dir::Etc::sourcelist={self.source_path(repository)}", "-o",
                           "Dir::Etc::sourceparts=-", "-o", "APT::Get::List-Cleanup=0",
                           "-o", "APT::Update::Error-Mode=any", *SIGNED, "update"], 600,
                self.lock_timeout)

    def forget_lists(self, url: str) -> None:
        """See C(base.Manager). Otherwise, the lists would remain until the next C(apt-get update)."""
        for folder in (LISTS, f"{LISTS}/partial"):
            for name in os.listdir(folder) if os.path.isdir(folder) else ():
                if is_list_of(name, url):
                    os.unlink(os.path.join(folder, name))

    def trusts(self, fingerprint: str) -> bool:
        """Always true, because apt needs only the keyring that the source file contains."""
        return True

    def trust(self, repository: Repository) -> None:
        """Does nothing, see L(trusts)."""

    def distrust(self, fingerprint: str) -> None:
        """Does nothing, see L(trusts)."""

    def install(self, packages: t.Mapping[str, str], auto: t.Sequence[str] = (), gone: t.Sequence[str] = ()) -> None:
        """Runs apt-get install, which may downgrade packages."""
        words = [*specifiers(packages), *(f"{name}-" for name in gone)]
        apt_install(self.run, ["--allow-downgrades", "install", *words], self.lock_timeout)
        if auto:
            self.run(["apt-mark", "auto", *auto])

    def lost_files(self, names: t.Sequence[str]) -> dict[str, list[str]]:
        """Reads the file lists of dpkg; runs no command."""
        return lost_files(Root(), self.run, "debian", names) or {}

    def reinstall(self, packages: t.Mapping[str, str], check: bool = False) -> None:
        """Runs apt-get install --reinstall. check: whether to run it with -s, which only simulates it."""
        apt_install(self.run, [*(["-s"] if check else []), "--reinstall", "--allow-downgrades", "install",
                               *specifiers(packages)], self.lock_timeout)

    def simulate_install(self, names: t.Sequence[str]) -> list[Change]:
        """Runs apt-get -s install."""
        try:
            return parse_simulation(apt_get(self.run, ["-s", "install", *names]).stdout)
        except CommandError as error:
            raise HostError(f"apt cannot install {' '.join(names)}: {error.details['stderr'].strip()}",
                            "Check the package sources of the host and update its lists (apt-get update).",
                            packages=list(names)) from error

    def simulate_removal(self, names: t.Sequence[str]) -> list[Change]:
        """Runs apt-get -s remove."""
        return parse_simulation(apt_get(self.run, ["-s", "remove", *names]).stdout)

    def remove(self, names: t.Sequence[str], purge: bool = True) -> None:
        """Runs apt-get purge or remove. Also removes incompletely unpacked packages, which dpkg would keep."""
        apt_get(self.run, ["-o", "Dpkg::Options::=--force-remove-reinstreq", "purge" if purge else "remove", *names],
                wait=self.lock_timeout)

    def repair(self, names: t.Sequence[str]) -> None:
        """Runs dpkg --remove without dependency checks, followed by dpkg --configure -a. Raises CommandError."""
        for path in left_copies():
            os.unlink(path)
        before = self.read()
        present = [name for name in names if name in {**before.installed, **before.broken}]
        if present:
            self.run(["dpkg", "--remove", "--force-remove-reinstreq", "--force-depends", *present],
                     timeout=TRANSACTION_LIMIT, env=ENVIRONMENT)
        self.run(list(self.repair_command), timeout=TRANSACTION_LIMIT, check=False, env=ENVIRONMENT)
        state = self.read()
        if state.interrupted:
            done = self.run(list(self.repair_command), timeout=TRANSACTION_LIMIT, check=False, env=ENVIRONMENT)
            raise CommandError(done.argv, done.rc, done.stdout, done.stderr, "Repair the package database yourself.")


def _is_dpkg_running() -> bool:
    """Whether dpkg is running, which then merges its changes itself. Tests the lock of dpkg without acquiring it."""
    try:
        with open(DPKG_LOCK, "rb") as lock:
            os.lockf(lock.fileno(), os.F_TEST, 0)
    except OSError as error:
        return error.errno in (errno.EACCES, errno.EAGAIN)
    return False
