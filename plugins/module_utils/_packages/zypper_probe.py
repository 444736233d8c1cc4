# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reading an RPM repository with zypper and simulating before anything on the host has changed. PRIVATE.

zypper gets a temporary root whose package database holds the wanted key and nothing else, so that only what is signed
by it is read. Simulations then take repositories and metadata from there, the host's own linked beside the new one's,
and the package database of the host.
"""

from __future__ import annotations

import os
import shutil
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import CommandError, HostError, RepositoryError
from ansible_collections.gpuops.nvidia.plugins.module_utils._files import read_text
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.base import Change, Repository, specifiers
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.openpgp import armor, bound
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.rpm import (
    fetch,
    repository_id,
    repository_text,
    said,
    unusable,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.view import View
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
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Completed, Runner

_LIMIT = 600
_UNSIGNED = ("Signature verification failed", "unsigned", "unknown key", "not signed")


class ZypperProbe(View):
    """Implements C(base.Probe); use by C(with), which removes the folder at the end. wait: seconds for locks."""

    def __init__(self, run: Runner, repository: Repository, wait: float) -> None:
        super().__init__(run, repository)
        self.wait = wait

    # -- what it answers

    def simulate(self, install: t.Mapping[str, str], pins: t.Mapping[str, str], without: t.Sequence[str] = (),
                 gone: t.Sequence[str] = (), files: t.Mapping[str, bytes] | None = None) -> list[Change]:
        """What zypper would do; there are no pinning packages for it, so C(pins) is empty."""
        where = self._without(without) if without else [
            "--reposd-dir", self._repositories, "--cache-dir", self._cache]
        words = [*specifiers(install), *(f"!{name}" for name in gone if name not in without)]
        try:
            done = self._zypper([*where, STALE, *INSTALL, "--dry-run", *words], self._checks(files or {}))
        except CommandError as error:
            raise HostError(f"zypper cannot install {' '.join(words)}: {problems(said(error))}.",
                            "Look for locks (zypper locks) and for a repository that has what is missing (dkms is in "
                            "PackageHub).") from error
        return parse_changes(done.stdout)

    # -- how

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
        ours = repository_id(self.repository)
        fetch(self.run, self.repository.key_uri, f"{self.root}/fetched", proxy(), PROXY)
        self.key = bound(self.wanted_key(f"{self.root}/fetched"))
        self._write("key", armor(self.key))
        database = self._tree + self._database()
        for folder in (self._repositories, database):
            os.makedirs(folder)
        self.run(["rpm", "--root", self._tree, "--import", f"{self.root}/key"])
        self._write(f"tree{REPOSITORIES}/{ours}.repo", repository_text(self.repository, f"{self.root}/key"))
        self.candidates = self._query(ours)
        if not self.candidates:
            raise RepositoryError(f"{self.repository.url} lists no packages for this host's architecture.",
                                  "Check the URL.", url=self.repository.url)
        shutil.rmtree(f"{self._cache}/solv/@System", ignore_errors=True)
        self.link(REPOSITORIES, self._repositories, lambda name: name != f"{ours}.repo")
        for kind in ("raw", "solv"):
            self.link(f"{CACHE}/{kind}", f"{self._cache}/{kind}", lambda name: name not in (ours, "@System"))

    def _query(self, ours: str) -> dict[str, list[str]]:
        try:
            self._zypper(["--root", self._tree, "refresh", ours], {})
        except CommandError as error:
            text = said(error)
            raise unusable(self.repository, problems(text), any(word in text for word in _UNSIGNED), PROXY) from error
        return parse_candidates(self._zypper(["--root", self._tree, STALE, "search", "--details", "--type", "package"],
                                             {}).stdout)

    def _database(self) -> str:
        return self.run(["rpm", "--eval", "%_dbpath"]).stdout.strip()

    def _write(self, name: str, data: bytes) -> None:
        with open(f"{self.root}/{name}", "wb") as stream:
            stream.write(data)

    def _checks(self, files: t.Mapping[str, bytes]) -> dict[str, str]:
        """The environment in which versions are held by what these files will say, and the host's others."""
        checks = f"{self.root}/checks"
        shutil.rmtree(checks, ignore_errors=True)
        os.mkdir(checks)
        for name in os.listdir(CHECKS) if os.path.isdir(CHECKS) else ():
            if os.path.join(CHECKS, name) not in files:
                shutil.copy(os.path.join(CHECKS, name), checks)
        for path, content in files.items():
            self._write(f"checks/{os.path.basename(path)}", content)
        lines = [line for line in (read_text(SETTINGS) or "").splitlines()
                 if not line.startswith("solver.checkSystemFileDir")]
        lines += ["[main]", f"solver.checkSystemFileDir = {checks}", ""]
        self._write("zypp.conf", "\n".join(lines).encode())
        return {"ZYPP_CONF": f"{self.root}/zypp.conf"}

    def _without(self, names: t.Sequence[str]) -> list[str]:
        """The options for the tree, its package database now a copy of the host's where some are not installed."""
        database = self._database()
        shutil.rmtree(self._tree + database)
        shutil.copytree(database, self._tree + database)
        self.run(["rpm", "--dbpath", self._tree + database, "--erase", "--justdb", "--allmatches", "--nodeps",
                  "--noscripts", "--notriggers", *names])
        return ["--root", self._tree]
