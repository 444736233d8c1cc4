# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Manages packages with zypper and rpm.

A file in the folder of system checks (L(zypper_tools.CHECKS)) fixes the version, without changes to the locks of users:
zypper does not install a package that the file declares as a conflict.
"""

from __future__ import annotations

import os
import shutil
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import CommandError, HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.base import (
    TRANSACTION_LIMIT,
    Change,
    Repository,
    specifiers,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.rpm import (
    RpmManager,
    repository_id,
    repository_text,
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

# Removes only the packages in the command. The plan also contains the dependencies that this collection installed.
_REMOVE = ("remove", "--no-clean-deps")


class Zypper(RpmManager):
    """Implements C(base.Manager) with zypper and rpm."""

    repositories = REPOSITORIES
    duplicates = "rpm --erase NAME-VERSION"

    def is_consistent(self) -> bool:
        """Whether all dependencies are installed. zypper installs packages one by one, and does not record
        transactions."""
        done = self.run(["rpm", "--verify", "--all", "--nofiles", "--nodigest", "--nosignature"], timeout=300,
                        check=False)
        return "nsatisfied dependencies" not in done.stdout + done.stderr

    def probe(self, repository: Repository) -> ZypperProbe:
        """See C(zypper_probe.ZypperProbe)."""
        return ZypperProbe(self.run, repository, self.lock_timeout)

    def _text(self, repository: Repository) -> bytes:
        # Because of the priority, packages of this repository are preferred to those of other repositories.
        extra = ["autorefresh=0", "priority=50"] if repository.held else ["autorefresh=0"]
        return repository_text(repository, self.key_path(repository), extra)

    def refresh(self, repository: Repository) -> None:
        """See C(base.Manager). Errors of other repositories are ignored."""
        self._zypper(["refresh", repository_id(repository)], limit=600)

    def forget_lists(self, url: str) -> None:
        """Deletes the cache of each repository C(gpuops-*) that has no repository file."""
        for kind in ("raw", "solv", "packages"):
            folder = f"{CACHE}/{kind}"
            for name in os.listdir(folder) if os.path.isdir(folder) else ():
                if name.startswith("gpuops-") and not os.path.exists(f"{self.repositories}/{name}.repo"):
                    shutil.rmtree(f"{folder}/{name}")

    def install(self, packages: t.Mapping[str, str], auto: t.Sequence[str] = (), gone: t.Sequence[str] = ()) -> None:
        """See C(base.Manager). C(auto) is ignored, because zypper cannot mark packages as dependencies."""
        self._zypper([STALE, *INSTALL, *specifiers(packages), *(f"!{name}" for name in gone)])

    def reinstall(self, packages: t.Mapping[str, str], check: bool = False) -> None:
        """Runs zypper install --force. check: whether to run it with --dry-run, where a package that is not in any
        downloaded list is no error."""
        try:
            self._zypper([STALE, *INSTALL, "--force", *(["--dry-run"] if check else []), *specifiers(packages)])
        except CommandError as error:
            if not check or error.details["rc"] != NOT_FOUND:
                raise

    def simulate_install(self, names: t.Sequence[str]) -> list[Change]:
        """Runs zypper install --dry-run."""
        try:
            return parse_changes(self._zypper([STALE, *INSTALL, "--dry-run", *names]).stdout)
        except CommandError as error:
            raise HostError(f"zypper cannot install {' '.join(names)}: {problems(error.output)}.",
                            "Check the repositories (zypper repos) and locks (zypper locks) of the host.",
                            packages=list(names)) from error

    def simulate_removal(self, names: t.Sequence[str]) -> list[Change]:
        """Runs zypper remove --dry-run."""
        return parse_changes(self._zypper([STALE, *_REMOVE, "--dry-run", *names]).stdout)

    def _remove(self, names: t.Sequence[str]) -> None:
        self._zypper([STALE, *_REMOVE, *names])

    def _zypper(self, words: t.Sequence[str], limit: float = TRANSACTION_LIMIT) -> Completed:
        return zypper(self.run, words, self.lock_timeout, limit)
