# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The base class of repository probes: the temporary folder, the key, and the choice of a version."""

from __future__ import annotations

import os
import shutil
import tempfile
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import CommandError, RepositoryError
from ansible_collections.gpuops.nvidia.plugins.module_utils._files import read_bytes
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.base import (
    Repository,
    fetch_advice,
    matches,
    upstream,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.openpgp import keys
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Completed, Runner

# The end of a hint: many mirrors do not have the signature of the metadata.
MIRROR_ADVICE = "; a mirror needs repodata/repomd.xml.asc, too"
# The maximum number of versions in an error.
_NAMED = 12
_Self = t.TypeVar("_Self", bound="RepositoryProbe")


class RepositoryProbe:
    """The base class of all implementations of C(base.Probe). wait: maximum seconds to wait for locks."""

    def __init__(self, run: Runner, repository: Repository, wait: float = 0) -> None:
        self._runner = run
        self.repository = repository
        self.wait = wait
        self.root = ""
        self.key = b""
        self.candidates: dict[str, list[str]] = {}

    def __enter__(self: _Self) -> _Self:
        self.root = tempfile.mkdtemp(prefix="gpuops-packages-")
        try:
            self._open()
            if not self.candidates:
                raise RepositoryError(f"{self.repository.url} lists no packages for this host's architecture.",
                                      "Check the URL.", url=self.repository.url)
        except BaseException:
            shutil.rmtree(self.root, ignore_errors=True)
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        shutil.rmtree(self.root, ignore_errors=True)

    def run(self, argv: t.Sequence[str], *, timeout: float = 60, check: bool = True, stdin: str | None = None,
            env: t.Mapping[str, str] | None = None, hint: str = "") -> Completed:
        """As L(_run.run). In errors, the paths of links in the temporary folder are replaced by paths on the host."""
        try:
            done = self._runner(argv, timeout=timeout, check=check, stdin=stdin, env=env, hint=hint)
        except CommandError as error:
            error.message = self._named(error.message)
            error.details.update({key: self._named(error.details[key]) for key in ("stdout", "stderr")})
            raise
        # The output of a successful command is not changed, because it may contain paths of files to read.
        return done._replace(stdout=self._named(done.stdout) if done.rc else done.stdout,
                             stderr=self._named(done.stderr))

    def _named(self, text: str) -> str:
        for folder, original in self._places().items() if self.root else ():
            text = text.replace(f"{self.root}/{folder}", original)
        return text

    def _places(self) -> dict[str, str]:
        """The folders of the host by the name of the folder in C(root) that replaces them."""
        return {}

    def link(self, folder: str, into: str, wanted: t.Callable[[str], bool] = lambda _name: True) -> None:
        """Links the files of a host's folder into another folder. Creates its subfolders, because programs would write
        through links to folders."""
        os.makedirs(into, exist_ok=True)
        for name in os.listdir(folder) if os.path.isdir(folder) else ():
            path = os.path.join(folder, name)
            if not wanted(name):
                continue
            if os.path.isdir(path):
                self.link(path, f"{into}/{name}")
            elif os.path.isfile(path):
                os.symlink(path, f"{into}/{name}")

    def write(self, name: str, data: bytes) -> None:
        """Writes a file in C(root) that all users may read."""
        with open(f"{self.root}/{name}", "wb") as stream:
            stream.write(data)
        os.chmod(f"{self.root}/{name}", 0o644)

    def _open(self) -> None:
        """Reads the repository into the folder C(root), and sets key and candidates."""
        raise NotImplementedError

    def unreadable(self, reason: str, unsigned: bool, proxy: str, advice: str = "") -> RepositoryError:
        """The error for package lists that cannot be read. unsigned: whether they are not signed with the expected key.

        proxy: see L(base.fetch_advice). advice: the end of the hint about the key.
        """
        url = self.repository.url
        if unsigned:
            return RepositoryError(f"{url} is not signed by the key {self.repository.wanted_fingerprint}: {reason}.",
                                   f"Nothing was installed. Check repository.key{advice}.", url=url)
        return RepositoryError(f"{url} cannot be read: {reason}.", fetch_advice(reason, proxy), url=url)

    def resolve(self, name: str, version: str | None) -> str:
        """See C(base.Probe)."""
        offered = self.candidates.get(name, [])
        for candidate in offered:
            if matches(candidate, version):
                return candidate
        available = list(dict.fromkeys(upstream(candidate) for candidate in offered))
        if not available:
            raise RepositoryError(f"{self.repository.url} has no package {name}.",
                                  "Check whether the URL is that of a repository for this distribution.", package=name)
        raise RepositoryError(f"{self.repository.url} has no {name} {version}.",
                              f"It has {', '.join(available[:_NAMED])}{' ...' if len(available) > _NAMED else ''}.",
                              package=name, wanted=version, available=available)

    def wanted_key(self, path: str) -> bytes:
        """The key with the expected fingerprint, without other keys in the downloaded file. Raises RepositoryError."""
        uri, wanted = self.repository.key_uri, self.repository.wanted_fingerprint
        try:
            found = keys(read_bytes(path) or b"")
        except ValueError as error:
            raise RepositoryError(f"{uri} is not an OpenPGP public key: {error}.", "Check the URL.", url=uri) from error
        if wanted not in found:
            raise RepositoryError(
                f"The key {uri} has the fingerprint {', '.join(found) or '(none of version 4)'}, not {wanted}.",
                "Nothing was installed. Compare it with the fingerprint that the vendor publishes. Correct "
                "repository.fingerprint only if they are equal.", url=uri, found=list(found), expected=wanted)
        return found[wanted]
