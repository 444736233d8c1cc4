# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads an RPM repository and simulates a transaction with zypper, before the host is changed.

zypper runs with a temporary root whose package database contains only the expected key, so that it accepts only data
that is signed with this key. Simulations then use the repositories and metadata there, with links to those of the host,
and the package database of the host.
"""

from __future__ import annotations

import os
import shutil
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import CommandError, HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._files import read_text
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.base import Change, specifiers
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.openpgp import armor, without_unsigned_subkeys
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.repository_probe import (
    MIRROR_ADVICE,
    RepositoryProbe,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.rpm import (
    copy_database_without,
    database_path,
    fetch,
    repository_id,
    repository_text,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.zypper_tools import (
    CACHE,
    CHECKS,
    INSTALL,
    PROXY,
    REPOSITORIES,
    SETTINGS,
    STALE,
    parse_candidates,
    parse_changes,
    problems,
    proxy,
    zypper,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Completed

_LIMIT = 600
_UNSIGNED = ("Signature verification failed", "unsigned", "unknown key", "not signed")


class ZypperProbe(RepositoryProbe):
    """Implements C(base.Probe) with zypper."""

    def simulate(self, install: t.Mapping[str, str], pins: t.Mapping[str, str], without: t.Sequence[str] = (),
                 gone: t.Sequence[str] = (), files: t.Mapping[str, bytes] | None = None) -> list[Change]:
        """See C(base.Probe). C(pins) is empty, because there are no pinning packages for zypper."""
        folders = self._without(without) if without else [
            "--reposd-dir", self._repositories, "--cache-dir", self._cache]
        words = [*specifiers(install), *(f"!{name}" for name in gone if name not in without)]
        try:
            done = self._zypper([*folders, STALE, *INSTALL, "--dry-run", *words], self._checks(files or {}))
        except CommandError as error:
            raise HostError(f"zypper cannot install {' '.join(words)}: {problems(error.output)}.",
                            "Check the locks (zypper locks), and whether the repositories have the missing packages "
                            "(PackageHub has dkms).") from error
        return parse_changes(done.stdout)

    def _places(self) -> dict[str, str]:
        return {f"tree{folder}": folder for folder in (REPOSITORIES, CACHE)}

    @property
    def _tree(self) -> str:
        return f"{self.root}/tree"

    @property
    def _repositories(self) -> str:
        return self._tree + REPOSITORIES

    @property
    def _cache(self) -> str:
        return self._tree + CACHE

    def _zypper(self, words: t.Sequence[str], env: t.Mapping[str, str]) -> Completed:
        return zypper(self.run, words, self.wait, _LIMIT, {"ZYPP_LOGFILE": f"{self.root}/log", **env})

    def _open(self) -> None:
        ident = repository_id(self.repository)
        fetch(self.run, self.repository.key_uri, f"{self.root}/fetched", proxy(), PROXY)
        self.key = without_unsigned_subkeys(self.wanted_key(f"{self.root}/fetched"))
        self.write("key", armor(self.key))
        database = self._tree + database_path(self.run)
        for folder in (self._repositories, database):
            os.makedirs(folder)
        self.run(["rpm", "--root", self._tree, "--import", f"{self.root}/key"])
        self.write(f"tree{REPOSITORIES}/{ident}.repo", repository_text(self.repository, f"{self.root}/key"))
        self.candidates = self._query(ident)
        shutil.rmtree(f"{self._cache}/solv/@System", ignore_errors=True)
        self.link(REPOSITORIES, self._repositories, lambda name: name != f"{ident}.repo")
        for kind in ("raw", "solv"):
            self.link(f"{CACHE}/{kind}", f"{self._cache}/{kind}", lambda name: name not in (ident, "@System"))

    def _query(self, ident: str) -> dict[str, list[str]]:
        try:
            self._zypper(["--root", self._tree, "refresh", ident], {})
        except CommandError as error:
            raise self.unreadable(problems(error.output), any(word in error.output for word in _UNSIGNED),
                                  f"the proxy in {PROXY}", MIRROR_ADVICE) from error
        return parse_candidates(self._zypper(["--root", self._tree, STALE, "search", "--details", "--type", "package"],
                                             {}).stdout)

    def _checks(self, files: t.Mapping[str, bytes]) -> dict[str, str]:
        """The environment variables with which zypper uses these system checks and the other checks of the host."""
        checks = f"{self.root}/checks"
        shutil.rmtree(checks, ignore_errors=True)
        os.mkdir(checks)
        for name in os.listdir(CHECKS) if os.path.isdir(CHECKS) else ():
            if os.path.join(CHECKS, name) not in files:
                shutil.copy(os.path.join(CHECKS, name), checks)
        for path, content in files.items():
            self.write(f"checks/{os.path.basename(path)}", content)
        lines = [line for line in (read_text(SETTINGS) or "").splitlines()
                 if not line.startswith("solver.checkSystemFileDir")]
        lines += ["[main]", f"solver.checkSystemFileDir = {checks}", ""]
        self.write("zypp.conf", "\n".join(lines).encode())
        return {"ZYPP_CONF": f"{self.root}/zypp.conf"}

    def _without(self, names: t.Sequence[str]) -> list[str]:
        """The options for the temporary root, with a copy of the host's package database without some packages."""
        copy_database_without(self.run, self._tree + database_path(self.run), names)
        return ["--root", self._tree]
