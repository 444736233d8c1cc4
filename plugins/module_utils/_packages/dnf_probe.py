# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reading an RPM repository and simulating a transaction before anything on the host has changed. PRIVATE.

dnf gets a temporary folder: its own repository files (the host's, linked, and the new one), its own cache (the host's
metadata, linked, and those fetched now) and its own history and logs. Its package database stays the host's. So a
simulation says what the real command will do after the repository has been added.
"""

from __future__ import annotations

import os
import re
import shutil
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import CommandError, HostError, RepositoryError
from ansible_collections.gpuops.nvidia.plugins.module_utils._files import read_text
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.base import Change, Repository
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.dnf_tools import (
    CACHE,
    REPOSITORIES,
    SETTINGS,
    dnf,
    hold_path,
    parse_candidates,
    parse_decisions,
    problems,
    specs,
    transfer,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.openpgp import armor, bound
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.rpm import (
    QUERY,
    fetch,
    parse_state,
    repository_id,
    repository_text,
    said,
    unusable,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.view import View
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Completed, Runner

_UNSIGNED = re.compile(r"GPG signature verification|Bad GPG|Signing key not found|repomd\.xml\.asc")


class DnfProbe(View):
    """Implements C(base.Probe); use by C(with), which removes the folder at the end. wait: seconds for locks."""

    def __init__(self, run: Runner, repository: Repository, wait: float) -> None:
        super().__init__(run, repository)
        self.wait = wait

    # -- what it answers

    def simulate(self, install: t.Mapping[str, str], pins: t.Mapping[str, str], without: t.Sequence[str] = (),
                 gone: t.Sequence[str] = (), files: t.Mapping[str, bytes] | None = None) -> list[Change]:
        """What dnf would do; there are no pinning packages for it, so C(pins) is empty."""
        env = self._without(without)
        installed = {name: version for name, version in parse_state(self.run(list(QUERY)).stdout).installed.items()
                     if name not in without}
        words = specs(install)
        try:
            done = self._dnf([*self._held(files or {}), "--allowerasing", "--assumeno", "install", *words], env)
        except CommandError as error:
            raise HostError(f"dnf cannot install {' '.join(words)}: {problems(said(error))}",
                            "Look for excluded packages (excludepkgs, dnf versionlock list) and for a repository that "
                            "has what is missing (dkms is in EPEL).") from error
        changes = parse_decisions(done.stdout + done.stderr, installed)
        return changes + [Change(name, installed[name], None) for name in gone if name in installed]

    # -- how

    def _dnf(self, words: t.Sequence[str], env: t.Mapping[str, str] | None = None, limit: float = 600) -> Completed:
        root = self.root
        return dnf(self.run, [f"--setopt=reposdir={root}/repos", f"--setopt=cachedir={root}/cache",
                              f"--setopt=system_cachedir={root}/cache", f"--setopt=persistdir={root}/persist",
                              f"--setopt=logdir={root}/log", "--setopt=timeout=20", "--setopt=retries=2",
                              # The lists of the host's own repositories are its own affair.
                              "--setopt=*.metadata_expire=-1", *words],
                   self.wait, limit, env)

    def _places(self) -> dict[str, str]:
        return {"repos": REPOSITORIES, "cache": CACHE}

    def _open(self) -> None:
        for folder in ("persist", "log"):
            os.mkdir(f"{self.root}/{folder}")
        ours = repository_id(self.repository)
        self.link(REPOSITORIES, f"{self.root}/repos", lambda name: name != f"{ours}.repo")
        # The metadata of other repositories; what dnf notes beside them is the host's own.
        self.link(CACHE, f"{self.root}/cache", lambda name: not name.startswith("gpuops-")
                  and (name.endswith((".solv", ".solvx")) or os.path.isdir(os.path.join(CACHE, name))))
        self.key = self._fetch_key()
        self._write("key", armor(self.key))
        # Held versions are chosen by the simulation itself; all of them are to be seen.
        extra = ("priority=50", "module_hotfixes=1") if self.repository.held else ()
        self._write(f"repos/{ours}.repo", repository_text(self.repository, f"{self.root}/key",
                                                          (*extra, "skip_if_unavailable=0")))
        self.candidates = self._query(ours)
        if not self.candidates:
            raise RepositoryError(f"{self.repository.url} lists no packages for this host's architecture.",
                                  "Check the URL.", url=self.repository.url)

    def _write(self, name: str, data: bytes) -> None:
        with open(f"{self.root}/{name}", "wb") as stream:
            stream.write(data)

    def _fetch_key(self) -> bytes:
        """The wanted key alone."""
        uri = self.repository.key_uri
        own = uri.startswith(f"{self.repository.url.rstrip('/')}/")
        fetch(self.run, uri, f"{self.root}/fetched", transfer(own), SETTINGS)
        return bound(self.wanted_key(f"{self.root}/fetched"))

    def _query(self, ours: str) -> dict[str, list[str]]:
        """All packages of the repository for this machine, whatever stream of a module is enabled."""
        layout = "@%{name}\t%{arch}\t%{epoch}\t%{version}-%{release}"
        try:
            done = self._dnf(["--disablerepo=*", f"--enablerepo={ours}", "repoquery", "--available", "--arch",
                              f"{os.uname().machine},noarch", "--qf", layout])
        except CommandError as error:
            text = said(error)
            raise unusable(self.repository, problems(text), bool(_UNSIGNED.search(text)), SETTINGS) from error
        return parse_candidates("\n".join(line[1:] for line in done.stdout.splitlines() if line.startswith("@")))

    def _held(self, files: t.Mapping[str, bytes]) -> list[str]:
        """The option for what the variable of the host will say, or says."""
        if not self.repository.held:
            return []
        path = hold_path(self.repository.name)
        value = (files[path].decode() if path in files else read_text(path) or "").strip()
        return [f"--setopt={repository_id(self.repository)}.includepkgs={value}"] if value else []

    def _without(self, names: t.Sequence[str]) -> dict[str, str] | None:
        """The environment in which rpm's database is a copy where some packages are not installed."""
        if not names:
            return None
        database = self.run(["rpm", "--eval", "%_dbpath"]).stdout.strip()
        shutil.rmtree(f"{self.root}/database", ignore_errors=True)
        shutil.copytree(database, f"{self.root}/database")
        self.run(["rpm", "--dbpath", f"{self.root}/database", "--erase", "--justdb", "--allmatches", "--nodeps",
                  "--noscripts", "--notriggers", *names])
        self._write(".rpmmacros", f"%_dbpath {self.root}/database\n".encode())
        return {"HOME": self.root}
