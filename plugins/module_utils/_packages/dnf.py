# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Manages packages with dnf 4 and rpm.

A repository file of this collection fixes the version, without a plugin or changes to other files. If C(held) is set,
only packages that a dnf variable lists are visible in the repository, and its priority hides packages with the same
names in other repositories. Therefore, C(dnf upgrade) finds no newer version. With C(module_hotfixes), the packages are
available regardless of the enabled module stream.
"""

from __future__ import annotations

import os
import shutil
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.base import (
    TRANSACTION_LIMIT,
    Change,
    Repository,
    specifiers,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.dnf_probe import DnfProbe
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.dnf_tools import (
    CACHE,
    REPOSITORIES,
    dnf,
    hold_path,
    parse_decisions,
    program,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.rpm import (
    RpmManager,
    repository_id,
    repository_text,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Completed

# Removes only the packages in the command. The plan also contains the dependencies that this collection installed.
_ALONE = "--setopt=clean_requirements_on_remove=0"


class Dnf(RpmManager):
    """Implements C(base.Manager) with dnf and rpm."""

    repositories = REPOSITORIES
    duplicates = "dnf remove --duplicates"

    def is_consistent(self) -> bool:
        """Whether dnf completed its last transaction.

        rpm does not record which scripts did not run, so packages of an interrupted transaction appear to be complete.
        """
        history = self.run([program(), "-q", "history", "info"], timeout=120, check=False).stdout
        return "Return-Code" not in history or "Return-Code    : Success" in history

    def probe(self, repository: Repository) -> DnfProbe:
        """See C(dnf_probe.DnfProbe)."""
        return DnfProbe(self.run, repository, self.lock_timeout)

    def _text(self, repository: Repository) -> bytes:
        extra = []
        if repository.held:
            variable = os.path.basename(hold_path(repository.name))
            extra = [f"# {hold_path(repository.name)} lists the visible packages, so that upgrades keep the version.",
                     f"includepkgs=${variable}", "priority=50", "module_hotfixes=1"]
        return repository_text(repository, self.key_path(repository), extra)

    def refresh(self, repository: Repository) -> None:
        """See C(base.Manager). Errors of other repositories are ignored."""
        self._dnf(["--disablerepo=*", f"--enablerepo={repository_id(repository)}", "--refresh", "makecache"], limit=600)

    def forget_lists(self, url: str) -> None:
        """Deletes the cache of each repository C(gpuops-*) that has no repository file."""
        for name in os.listdir(CACHE) if os.path.isdir(CACHE) else ():
            path = os.path.join(CACHE, name)
            stem = name.rpartition("-")[0] if os.path.isdir(path) else name.partition(".")[0]
            if not stem.startswith("gpuops-") or os.path.exists(f"{self.repositories}/{_repository_of(stem)}.repo"):
                continue
            if os.path.isdir(path):
                shutil.rmtree(path)
            else:
                os.unlink(path)

    def install(self, packages: t.Mapping[str, str], auto: t.Sequence[str] = (), gone: t.Sequence[str] = ()) -> None:
        """Runs dnf install. The command may also downgrade packages, and remove packages that conflict."""
        if gone:
            self.remove(gone)
        self._dnf(["--allowerasing", "install", *specifiers(packages, "-")])
        if auto:
            self._dnf(["mark", "remove", *auto])

    def reinstall(self, packages: t.Mapping[str, str], check: bool = False) -> None:
        """Runs dnf reinstall. check: whether to answer its confirmation prompt with no, so that nothing is changed."""
        self._dnf([*(["--assumeno"] if check else []), "reinstall", *specifiers(packages, "-")])

    def simulate_install(self, names: t.Sequence[str]) -> list[Change]:
        """Runs dnf install and answers its confirmation prompt with no."""
        done = self._dnf(["--assumeno", "install", *names])
        return parse_decisions(done.stdout + done.stderr, self.read().installed)

    def simulate_removal(self, names: t.Sequence[str]) -> list[Change]:
        """Runs dnf remove and answers its confirmation prompt with no."""
        done = self._dnf([_ALONE, "--assumeno", "remove", *names])
        return parse_decisions(done.stdout + done.stderr, self.read().installed)

    def _remove(self, names: t.Sequence[str]) -> None:
        self._dnf([_ALONE, "remove", *names])

    def _dnf(self, words: t.Sequence[str], limit: float = TRANSACTION_LIMIT) -> Completed:
        return dnf(self.run, words, self.lock_timeout, limit)


def _repository_of(stem: str) -> str:
    """The repository id in the name of a cached file, such as C(gpuops-cuda) for C(gpuops-cuda-filenames)."""
    for suffix in ("-filenames", "-updateinfo", "-presto", "-modules"):
        if stem.endswith(suffix):
            return stem[:-len(suffix)]
    return stem
