# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What views of a repository share, whatever reads it: a folder of their own, and finding a version. PRIVATE."""

from __future__ import annotations

import os
import shutil
import tempfile
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import CommandError, RepositoryError
from ansible_collections.gpuops.nvidia.plugins.module_utils._files import read_bytes
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.base import Repository, matches, upstream
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.openpgp import keys
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Completed, Runner

# So many versions are named in an error.
_NAMED = 12
_Self = t.TypeVar("_Self", bound="View")


class View:
    """The part of C(base.Probe) that is the same for all; use by C(with), which removes the folder at the end."""

    def __init__(self, run: Runner, repository: Repository) -> None:
        self._runner = run
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

    def run(self, argv: t.Sequence[str], **options: t.Any) -> Completed:
        """As L(_run.run); what a command says of a file in the folder of ours it says of the host's file."""
        try:
            done = self._runner(argv, **options)
        except CommandError as error:
            error.message = self._named(error.message)
            error.details.update({key: self._named(error.details[key]) for key in ("stdout", "stderr")})
            raise
        # What a command that has ended well prints may be paths of files that are to be read.
        return done._replace(stdout=self._named(done.stdout) if done.rc else done.stdout,
                             stderr=self._named(done.stderr))

    def _named(self, text: str) -> str:
        for ours, theirs in self._places().items() if self.root else ():
            text = text.replace(f"{self.root}/{ours}", theirs)
        return text

    def _places(self) -> dict[str, str]:
        """Folders in C(root) that stand for folders of the host."""
        return {}

    def link(self, folder: str, into: str, wanted: t.Callable[[str], bool] = lambda _name: True) -> None:
        """Links the host's files into a folder; folders are made anew, as programs would write through a link."""
        os.makedirs(into, exist_ok=True)
        for name in os.listdir(folder) if os.path.isdir(folder) else ():
            path = os.path.join(folder, name)
            if not wanted(name):
                continue
            if os.path.isdir(path):
                self.link(path, f"{into}/{name}")
            else:
                os.symlink(path, f"{into}/{name}")

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
