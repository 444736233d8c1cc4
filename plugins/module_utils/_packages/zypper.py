# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Packages of SUSE's distributions, by zypper and rpm. PRIVATE to the collection.

A version is held by a file of ours in zypp's folder of system checks (L(zypper_tools.CHECKS)), which needs no entry
in the locks that users keep: what it says conflicts with the system is brought by no update.
"""

from __future__ import annotations

import os
import shutil
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import CommandError, HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.base import Change, Repository, specifiers
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.rpm import (
    TRANSACTION_LIMIT,
    RpmManager,
    repository_id,
    repository_text,
    said,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.zypper_probe import ZypperProbe
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.zypper_tools import (
    CACHE,
    INSTALL,
    NOT_FOUND,
    REPOSITORIES,
    STALE,
    parse_changes,
    problems,
    zypper,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Completed

# Only what is named goes; what came along is in the journal and is named, too.
_REMOVE = ("remove", "--no-clean-deps")


class Zypper(RpmManager):
    """The host's zypper and rpm; implements C(base.Manager)."""

    repositories = REPOSITORIES
    duplicates = "rpm --erase the older one of each"

    def is_consistent(self) -> bool:
        """Whether what packages need is installed: rpm keeps no note of a transaction, zypp installs one by one."""
        done = self.run(["rpm", "--verify", "--all", "--nofiles", "--nodigest", "--nosignature"], timeout=300,
                        check=False)
        return "nsatisfied dependencies" not in done.stdout + done.stderr

    def probe(self, repository: Repository) -> ZypperProbe:
        """See C(zypper_probe.ZypperProbe)."""
        return ZypperProbe(self.run, repository, self.lock_timeout)

    def _text(self, repository: Repository) -> bytes:
        """What names packages of the driver counts before others that have them too."""
        extra = ["autorefresh=0", "priority=50"] if repository.held else ["autorefresh=0"]
        return repository_text(repository, self.key_path(repository), extra)

    def refresh(self, repository: Repository) -> None:
        """zypper refresh for our repository alone: other repositories' troubles are not ours."""
        self._zypper(["refresh", repository_id(repository)], limit=600)

    def forget_lists(self, url: str) -> None:
        """What zypp keeps of our repositories, by their names; those whose file is gone are meant."""
        for kind in ("raw", "solv", "packages"):
            folder = f"{CACHE}/{kind}"
            for name in os.listdir(folder) if os.path.isdir(folder) else ():
                if name.startswith("gpuops-") and not os.path.exists(f"{self.repositories}/{name}.repo"):
                    shutil.rmtree(f"{folder}/{name}")

    def install(self, packages: t.Mapping[str, str], auto: t.Sequence[str] = (), gone: t.Sequence[str] = ()) -> None:
        """zypper install of exact versions. zypp has no command that marks dependencies, so C(auto) is not used."""
        self._zypper([STALE, *INSTALL, *specifiers(packages), *(f"!{name}" for name in gone)])

    def reinstall(self, packages: t.Mapping[str, str], check: bool = False) -> None:
        """zypper install --force; with check a dry run, which may lack lists that are fetched before the step."""
        try:
            self._zypper([STALE, *INSTALL, "--force", *(["--dry-run"] if check else []), *specifiers(packages)])
        except CommandError as error:
            if not check or error.details["rc"] != NOT_FOUND:
                raise

    def simulate_install(self, names: t.Sequence[str]) -> list[Change]:
        """zypper install --dry-run."""
        try:
            return parse_changes(self._zypper([STALE, *INSTALL, "--dry-run", *names]).stdout)
        except CommandError as error:
            raise HostError(f"zypper cannot install {' '.join(names)}: {problems(said(error))}.",
                            "Look at the host's repositories (zypper repos) and locks (zypper locks).",
                            packages=list(names)) from error

    def simulate_removal(self, names: t.Sequence[str]) -> list[Change]:
        """zypper remove --dry-run."""
        return parse_changes(self._zypper([STALE, *_REMOVE, "--dry-run", *names]).stdout)

    def _remove(self, names: t.Sequence[str]) -> None:
        self._zypper([STALE, *_REMOVE, *names])

    def _zypper(self, words: t.Sequence[str], limit: float = TRANSACTION_LIMIT) -> Completed:
        return zypper(self.run, words, self.lock_timeout, limit)
