# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Packages of distributions with RPM and dnf 4, by their own commands. PRIVATE to the collection.

A version is held by our own repository file, which needs no plugin and no entry in files of others: with C(held) it
shows the packages that a variable of dnf names, and its priority hides packages of these names in other repositories.
So C(dnf upgrade) finds nothing newer. C(module_hotfixes) lets versions be chosen whatever stream of a module is
enabled.
"""

from __future__ import annotations

import os
import shutil
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._files import read_bytes
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages._base import Change, PackageState, Repository
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages._dnf_probe import DnfProbe
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages._dnf_tools import (
    CACHE,
    KEYS,
    LOCK_LIMIT,
    QUERY,
    REPOSITORIES,
    TRANSACTION_LIMIT,
    dnf,
    hold_path,
    parse_decisions,
    parse_state,
    repository_id,
    repository_text,
    specs,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages._openpgp import armor, keys
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Completed, Runner

# What rpm leaves of a configuration file that somebody changed.
_LEFT = (".rpmsave", ".rpmnew", ".rpmorig")
# Only what is named goes; what came along is in the journal and is named, too.
_ALONE = "--setopt=clean_requirements_on_remove=0"


class Dnf:
    """The host's dnf and rpm; implements C(_base.Manager). lock_timeout: seconds to wait for another's lock."""

    repair_command = ("rpm", "--erase", "--allmatches", "--nodeps")

    def __init__(self, run: Runner, lock_timeout: float = LOCK_LIMIT) -> None:
        self.run = run
        self.lock_timeout = lock_timeout

    def read(self) -> PackageState:
        """One query of rpm; its database is opened for reading."""
        return parse_state(self.run(list(QUERY)).stdout)

    def is_consistent(self) -> bool:
        """Whether dnf's last transaction came to its end.

        rpm keeps no note of scripts that did not run, so what a transaction that was cut off has left looks whole.
        """
        said = self.run(["dnf", "-q", "history", "info"], timeout=120, check=False).stdout
        return "Return-Code" not in said or "Return-Code    : Success" in said

    def probe(self, repository: Repository) -> DnfProbe:
        """See C(_dnf_probe.DnfProbe)."""
        return DnfProbe(self.run, repository, self.lock_timeout)

    def source_path(self, repository: Repository) -> str:
        """The repository's file."""
        return f"{REPOSITORIES}/{repository_id(repository)}.repo"

    def key_path(self, repository: Repository) -> str:
        """The armored key."""
        return f"{KEYS}/{repository_id(repository)}.asc"

    def files(self, repository: Repository, key: bytes) -> dict[str, bytes]:
        """The key first: a repository without it would break every transaction."""
        return {self.key_path(repository): armor(key), self.source_path(repository): self._text(repository)}

    def _text(self, repository: Repository) -> bytes:
        extra = []
        if repository.held:
            variable = os.path.basename(hold_path(repository.name))
            extra = [f"# {hold_path(repository.name)} says which packages there are, so that upgrades bring no others.",
                     f"includepkgs=${variable}", "priority=50", "module_hotfixes=1"]
        return repository_text(repository, self.key_path(repository), extra)

    def is_configured(self, repository: Repository) -> bool:
        """Compares the repository's file byte by byte and computes the key's fingerprint; no command, no network."""
        try:
            held = keys(read_bytes(self.key_path(repository)) or b"")
        except ValueError:
            return False
        return (list(held) == [repository.wanted_fingerprint]
                and read_bytes(self.source_path(repository)) == self._text(repository))

    def refresh(self, repository: Repository) -> None:
        """dnf makecache for our repository alone: other repositories' troubles are not ours."""
        self._dnf(["--disablerepo=*", f"--enablerepo={repository_id(repository)}", "--refresh", "makecache"], limit=600)

    def forget_lists(self, url: str) -> None:
        """What dnf keeps of our repositories, by their names; those whose file is gone are meant."""
        for name in os.listdir(CACHE) if os.path.isdir(CACHE) else ():
            path = os.path.join(CACHE, name)
            stem = name.rpartition("-")[0] if os.path.isdir(path) else name.partition(".")[0]
            if not stem.startswith("gpuops-") or os.path.exists(f"{REPOSITORIES}/{_bare(stem)}.repo"):
                continue
            if os.path.isdir(path):
                shutil.rmtree(path)
            else:
                os.unlink(path)

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
        said = self.run(["rpm", "-q", "gpg-pubkey", "--qf", "%{NAME}-%{VERSION}-%{RELEASE}\n"], check=False).stdout
        return [line for line in said.split() if line.startswith("gpg-pubkey-")
                and fingerprint.lower().endswith(line.split("-")[2])]

    def install(self, packages: t.Mapping[str, str], auto: t.Sequence[str] = (), gone: t.Sequence[str] = ()) -> None:
        """dnf install, which also goes back to older versions; what excludes a wanted package goes."""
        if gone:
            self.remove(gone)
        self._dnf(["--allowerasing", "install", *specs(packages)])
        if auto:
            self._dnf(["mark", "remove", *auto])

    def simulate_install(self, names: t.Sequence[str]) -> list[Change]:
        """dnf install, answered with no."""
        done = self._dnf(["--assumeno", "install", *names])
        return parse_decisions(done.stdout + done.stderr, self.read().installed)

    def simulate_removal(self, names: t.Sequence[str]) -> list[Change]:
        """dnf remove, answered with no."""
        done = self._dnf([_ALONE, "--assumeno", "remove", *names])
        return parse_decisions(done.stdout + done.stderr, self.read().installed)

    def remove(self, names: t.Sequence[str], purge: bool = True) -> None:
        """dnf remove of exactly these; with purge also what rpm keeps of configuration files that were changed."""
        settings = self.run(["rpm", "-qc", *names], check=False).stdout.splitlines() if purge else []
        self._dnf([_ALONE, "remove", *names])
        for path in settings:
            for suffix in _LEFT:
                if os.path.isabs(path) and os.path.lexists(path + suffix):
                    os.unlink(path + suffix)

    def repair(self, names: t.Sequence[str]) -> None:
        """rpm --erase of all versions without asking for dependencies: they come anew. Others' packages are theirs."""
        before = self.read()
        there = [name for name in names if name in {**before.installed, **before.broken}]
        if there:
            self.run([*self.repair_command, *there], timeout=TRANSACTION_LIMIT)
        broken = self.read().broken
        if broken and not there:
            raise HostError(f"An upgrade that was cut off left two versions: {', '.join(sorted(broken))}.",
                            "Put it in order: dnf remove --duplicates.", packages=dict(broken))

    def _dnf(self, words: t.Sequence[str], limit: float = TRANSACTION_LIMIT) -> Completed:
        return dnf(self.run, words, self.lock_timeout, limit)


def _bare(stem: str) -> str:
    """The repository of a cached file such as C(gpuops-cuda-filenames)."""
    for suffix in ("-filenames", "-updateinfo", "-presto", "-modules"):
        if stem.endswith(suffix):
            return stem[:-len(suffix)]
    return stem
