# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What views of a repository share, whatever reads it: a folder of their own, and finding a version. PRIVATE."""

from __future__ import annotations

import shutil
import tempfile
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import RepositoryError
from ansible_collections.gpuops.nvidia.plugins.module_utils._files import read_bytes
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages._base import Repository, matches, upstream
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages._openpgp import keys
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Runner

# So many versions are named in an error.
_NAMED = 12
_Self = t.TypeVar("_Self", bound="View")


class View:
    """The part of C(_base.Probe) that is the same for all; use by C(with), which removes the folder at the end."""

    def __init__(self, run: Runner, repository: Repository) -> None:
        self.run = run
        self.repository = repository
        self.root = ""
        self.key = b""
        self.candidates: dict[str, list[str]] = {}

    def __enter__(self: _Self) -> _Self:
        self.root = tempfile.mkdtemp(prefix="gpuops-packages-")
        try:
            self._open()
        except BaseException:
            shutil.rmtree(self.root, ignore_errors=True)
            raise
        return self

    def __exit__(self, *exc: t.Any) -> None:
        shutil.rmtree(self.root, ignore_errors=True)

    def _open(self) -> None:
        """Reads the repository into the folder C(root); sets key and candidates."""
        raise NotImplementedError

    def resolve(self, name: str, version: str | None) -> str:
        """The newest full version in this repository that is the wanted one."""
        offered = self.candidates.get(name, [])
        for candidate in offered:
            if matches(candidate, version):
                return candidate
        available = list(dict.fromkeys(upstream(candidate) for candidate in offered))
        if not available:
            raise RepositoryError(f"{self.repository.url} has no package {name}.",
                                  "Check the URL: is it the repository of this distribution?", package=name)
        raise RepositoryError(f"{self.repository.url} has no {name} {version}.",
                              f"It has {', '.join(available[:_NAMED])}{' ...' if len(available) > _NAMED else ''}.",
                              package=name, wanted=version, available=available)

    def wanted_key(self, path: str) -> bytes:
        """The key of the wanted fingerprint alone, of those in a file that was fetched. Raises RepositoryError."""
        uri, wanted = self.repository.key_uri, self.repository.wanted_fingerprint
        try:
            found = keys(read_bytes(path) or b"")
        except ValueError as error:
            raise RepositoryError(f"{uri} is no OpenPGP public key: {error}.", "Check the URL.", url=uri) from error
        if wanted not in found:
            raise RepositoryError(
                f"The key {uri} has the fingerprint {', '.join(found) or '(none of version 4)'}, not {wanted}.",
                "Nothing was installed. Compare with what the vendor publishes; correct repository.fingerprint only "
                "if that is what it says.", url=uri, found=list(found), expected=wanted)
        return found[wanted]
