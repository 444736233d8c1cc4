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

from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.base import Change, Repository
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.dnf_probe import DnfProbe
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.dnf_tools import (
    CACHE,
    REPOSITORIES,
    dnf,
    hold_path,
    parse_decisions,
    program,
    specs,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.rpm import (
    TRANSACTION_LIMIT,
    RpmManager,
    repository_id,
    repository_text,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Completed

# Only what is named goes; what came along is in the journal and is named, too.
_ALONE = "--setopt=clean_requirements_on_remove=0"


class Dnf(RpmManager):
    """The host's dnf and rpm; implements C(base.Manager)."""

    repositories = REPOSITORIES
    duplicates = "dnf remove --duplicates"

    def is_consistent(self) -> bool:
        """Whether dnf's last transaction came to its end.

        rpm keeps no note of scripts that did not run, so what a transaction that was cut off has left looks whole.
        """
        said = self.run([program(), "-q", "history", "info"], timeout=120, check=False).stdout
        return "Return-Code" not in said or "Return-Code    : Success" in said

    def probe(self, repository: Repository) -> DnfProbe:
        """See C(dnf_probe.DnfProbe)."""
        return DnfProbe(self.run, repository, self.lock_timeout)

    def _text(self, repository: Repository) -> bytes:
        extra = []
        if repository.held:
            variable = os.path.basename(hold_path(repository.name))
            extra = [f"# {hold_path(repository.name)} says which packages there are, so that upgrades bring no others.",
                     f"includepkgs=${variable}", "priority=50", "module_hotfixes=1"]
        return repository_text(repository, self.key_path(repository), extra)

    def refresh(self, repository: Repository) -> None:
        """dnf makecache for our repository alone: other repositories' troubles are not ours."""
        self._dnf(["--disablerepo=*", f"--enablerepo={repository_id(repository)}", "--refresh", "makecache"], limit=600)

    def forget_lists(self, url: str) -> None:
        """What dnf keeps of our repositories, by their names; those whose file is gone are meant."""
        for name in os.listdir(CACHE) if os.path.isdir(CACHE) else ():
            path = os.path.join(CACHE, name)
            stem = name.rpartition("-")[0] if os.path.isdir(path) else name.partition(".")[0]
            if not stem.startswith("gpuops-") or os.path.exists(f"{self.repositories}/{_bare(stem)}.repo"):
                continue
            if os.path.isdir(path):
                shutil.rmtree(path)
            else:
                os.unlink(path)

    def install(self, packages: t.Mapping[str, str], auto: t.Sequence[str] = (), gone: t.Sequence[str] = ()) -> None:
        """dnf install, which also goes back to older versions; what excludes a wanted package goes."""
        if gone:
            self.remove(gone)
        self._dnf(["--allowerasing", "install", *specs(packages)])
        if auto:
            self._dnf(["mark", "remove", *auto])

    def reinstall(self, packages: t.Mapping[str, str], check: bool = False) -> None:
        """dnf reinstall; with check answered with no."""
        self._dnf([*(["--assumeno"] if check else []), "reinstall", *specs(packages)])

    def simulate_install(self, names: t.Sequence[str]) -> list[Change]:
        """dnf install, answered with no."""
        done = self._dnf(["--assumeno", "install", *names])
        return parse_decisions(done.stdout + done.stderr, self.read().installed)

    def simulate_removal(self, names: t.Sequence[str]) -> list[Change]:
        """dnf remove, answered with no."""
        done = self._dnf([_ALONE, "--assumeno", "remove", *names])
        return parse_decisions(done.stdout + done.stderr, self.read().installed)

    def _remove(self, names: t.Sequence[str]) -> None:
        self._dnf([_ALONE, "remove", *names])

    def _dnf(self, words: t.Sequence[str], limit: float = TRANSACTION_LIMIT) -> Completed:
        return dnf(self.run, words, self.lock_timeout, limit)


def _bare(stem: str) -> str:
    """The repository of a cached file such as C(gpuops-cuda-filenames)."""
    for suffix in ("-filenames", "-updateinfo", "-presto", "-modules"):
        if stem.endswith(suffix):
            return stem[:-len(suffix)]
    return stem
