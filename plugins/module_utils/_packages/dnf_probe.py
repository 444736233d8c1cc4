# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads an RPM repository and simulates a transaction with dnf, before the host is changed.

dnf runs with a temporary folder that contains repository files (links to the host's files, and the new file), a cache
(links to the host's metadata, and downloaded metadata), history and logs. It uses the package database of the host.
Therefore, the simulation shows what the real command does after the repository is added.
"""

from __future__ import annotations

import os
import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import CommandError, HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._files import read_text
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.base import Change, specifiers
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.dnf_tools import (
    CACHE,
    REPOSITORIES,
    SETTINGS,
    dnf,
    hold_path,
    parse_candidates,
    parse_decisions,
    problems,
    transfer,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.openpgp import armor, without_unsigned_subkeys
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.repository_probe import (
    MIRROR_ADVICE,
    RepositoryProbe,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.rpm import (
    QUERY,
    copy_database_without,
    fetch,
    parse_state,
    repository_id,
    repository_text,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Completed

_UNSIGNED = re.compile(r"GPG signature verification|Bad GPG|Signing key not found|repomd\.xml\.asc")


class DnfProbe(RepositoryProbe):
    """Implements C(base.Probe) with dnf."""

    def simulate(self, install: t.Mapping[str, str], pins: t.Mapping[str, str], without: t.Sequence[str] = (),
                 gone: t.Sequence[str] = (), files: t.Mapping[str, bytes] | None = None) -> list[Change]:
        """See C(base.Probe). C(pins) is empty, because there are no pinning packages for dnf."""
        env = self._without(without)
        installed = {name: version for name, version in parse_state(self.run(list(QUERY)).stdout).installed.items()
                     if name not in without}
        words = specifiers(install, "-")
        try:
            done = self._dnf([*self._held(files or {}), "--allowerasing", "--assumeno", "install", *words], env)
        except CommandError as error:
            raise HostError(f"dnf cannot install {' '.join(words)}: {problems(error.output)}",
                            "Check which packages are excluded (excludepkgs, dnf versionlock list), and whether the "
                            "repositories have the missing packages (EPEL has dkms).") from error
        changes = parse_decisions(done.stdout + done.stderr, installed)
        return changes + [Change(name, installed[name], None) for name in gone if name in installed]

    def _dnf(self, words: t.Sequence[str], env: t.Mapping[str, str] | None = None, limit: float = 600) -> Completed:
        root = self.root
        return dnf(self.run, [f"--setopt=reposdir={root}/repos", f"--setopt=cachedir={root}/cache",
                              f"--setopt=system_cachedir={root}/cache", f"--setopt=persistdir={root}/persist",
                              f"--setopt=logdir={root}/log", "--setopt=timeout=20", "--setopt=retries=2",
                              # Do not download metadata of the host's repositories.
                              "--setopt=*.metadata_expire=-1", *words],
                   self.wait, limit, env)

    def _places(self) -> dict[str, str]:
        return {"repos": REPOSITORIES, "cache": CACHE}

    def _open(self) -> None:
        for folder in ("persist", "log"):
            os.mkdir(f"{self.root}/{folder}")
        ident = repository_id(self.repository)
        self.link(REPOSITORIES, f"{self.root}/repos", lambda name: name != f"{ident}.repo")
        # Only metadata, without other files of dnf.
        self.link(CACHE, f"{self.root}/cache", lambda name: not name.startswith("gpuops-")
                  and (name.endswith((".solv", ".solvx")) or os.path.isdir(os.path.join(CACHE, name))))
        self.key = self._fetch_key()
        self.write("key", armor(self.key))
        # With this file, all versions are visible; L(simulate) restricts them.
        extra = ("priority=50", "module_hotfixes=1") if self.repository.held else ()
        self.write(f"repos/{ident}.repo", repository_text(self.repository, f"{self.root}/key",
                                                          (*extra, "skip_if_unavailable=0")))
        self.candidates = self._query(ident)

    def _fetch_key(self) -> bytes:
        """The expected key, without other keys."""
        uri = self.repository.key_uri
        own = uri.startswith(f"{self.repository.url.rstrip('/')}/")
        fetch(self.run, uri, f"{self.root}/fetched", transfer(own), SETTINGS)
        return without_unsigned_subkeys(self.wanted_key(f"{self.root}/fetched"))

    def _query(self, ident: str) -> dict[str, list[str]]:
        """All packages in the repository for this machine, regardless of the enabled module stream."""
        layout = "@%{name}\t%{arch}\t%{epoch}\t%{version}-%{release}"
        try:
            done = self._dnf(["--disablerepo=*", f"--enablerepo={ident}", "repoquery", "--available", "--arch",
                              f"{os.uname().machine},noarch", "--qf", layout])
        except CommandError as error:
            raise self.unreadable(problems(error.output), bool(_UNSIGNED.search(error.output)),
                                  f"the proxy in {SETTINGS}", MIRROR_ADVICE) from error
        return parse_candidates("\n".join(line[1:] for line in done.stdout.splitlines() if line.startswith("@")))

    def _held(self, files: t.Mapping[str, bytes]) -> list[str]:
        """The dnf option that restricts the visible packages, according to the variable in C(files) or, if not there,
        on the host."""
        if not self.repository.held:
            return []
        path = hold_path(self.repository.name)
        value = (files[path].decode() if path in files else read_text(path) or "").strip()
        return [f"--setopt={repository_id(self.repository)}.includepkgs={value}"] if value else []

    def _without(self, names: t.Sequence[str]) -> dict[str, str] | None:
        """The environment in which rpm uses a copy of its database without these packages; None if there are none."""
        if not names:
            return None
        copy_database_without(self.run, f"{self.root}/database", names)
        self.write(".rpmmacros", f"%_dbpath {self.root}/database\n".encode())
        return {"HOME": self.root}
