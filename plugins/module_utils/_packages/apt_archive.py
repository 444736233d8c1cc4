# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads the archive of the distribution through the package sources of the host.

The package lists are downloaded to a temporary folder before each plan, because an archive deletes a version when it
receives the next one. Failures of other sources of the host are ignored.
"""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import CommandError, RepositoryError
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.apt_probe import (
    PREFERENCES,
    PROXY,
    AptProbe,
    last_line,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.apt_tools import LISTS, SOURCES, apt_get
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.base import Archive, fetch_advice
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.versions import debian_key
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Runner

_UPDATE_LIMIT = 600
_FIELDS = ("ORIGIN", "COMPONENT", "ARCHITECTURE", "REPO_URI", "FILENAME")
_FAILED = re.compile(r"(?:Failed to fetch|Err:\d+|The repository '?) ?(\S+://\S+|file:\S+)")


class Index(t.NamedTuple):
    """A package list that apt can download, with fields from its Release file."""

    origin: str
    component: str
    architecture: str
    uri: str
    path: str


def indexes(run: Runner, options: t.Sequence[str] = ()) -> list[Index]:
    """The package lists of all sources of the host (apt-get indextargets)."""
    layout = "\t".join(f"$({name})" for name in _FIELDS)
    text = run(["apt-get", *options, "indextargets", "--format", layout, "Created-By: Packages"]).stdout
    return [Index(*line.split("\t")) for line in text.splitlines() if line.count("\t") == len(_FIELDS) - 1]


def update_archive(run: Runner, archive: Archive, options: t.Sequence[str] = ()) -> list[Index]:
    """Runs apt-get update. Returns the package lists of the archive. Raises RepositoryError if one of them cannot be
    read.

    options: apt options that select a configuration other than the host's.
    """
    complete = True
    try:
        done = apt_get(run, [*options, "update"], limit=_UPDATE_LIMIT)
        text = done.stderr + done.stdout
    except CommandError as error:
        complete, text = False, str(error.details["stderr"]) + str(error.details["stdout"])
    found = [index for index in indexes(run, options) if index.origin == archive.origin]
    places = {index.uri.rstrip("/") for index in found}
    failed = _FAILED.findall(text)
    unreadable = [uri.strip("'") for uri in failed if not found or uri.strip("'").startswith(tuple(places))]
    if unreadable or not complete and not failed:
        reason = last_line(text, re.compile(re.escape(unreadable[0])) if unreadable else None)
        raise RepositoryError(f"{archive.url} cannot be read: {reason}.", fetch_advice(reason, PROXY), urls=unreadable)
    return found


def parse_matching(text: str, names: str) -> dict[str, list[str]]:
    """Parses a C(Packages) index. Returns C({name: [version]}), with the versions in the order of the index.

    names: a regular expression for the names of packages; other packages are omitted.
    """
    stanza = re.compile(rf"^Package: (?=\S*(?:{names}))(\S+)\n(?:(?!Version:)\S.*\n|[ \t].*\n)*Version: (\S+)", re.M)
    found: dict[str, list[str]] = {}
    for name, version in stanza.findall(text):
        found.setdefault(name, []).append(version)
    return found


class ArchiveProbe(AptProbe):
    """Implements C(base.Probe) for an archive, for which this collection installs no key and no source."""

    def __init__(self, run: Runner, repository: Archive) -> None:
        super().__init__(run, repository)
        self.archive = repository

    def _open(self) -> None:
        self._make_folders()
        self.link(SOURCES, f"{self.root}/sources")
        self.link(PREFERENCES, f"{self.root}/preferences")
        self.link(LISTS, f"{self.root}/lists", lambda name: name not in ("lock", "partial", "auxfiles"))
        # An error of one source must not prevent the use of the other sources.
        options = ["-c", self._configuration, "-o", "APT::Update::Error-Mode="]
        found = update_archive(self.run, self.archive, options)
        self._check_sections({index.component for index in found})
        self.candidates = self._read(found)
        if not self.candidates:
            raise RepositoryError(f"{self.archive.url} lists no NVIDIA driver for this host's architecture.",
                                  "Use source cuda_repository, or a mirror that has the driver.")

    def _check_sections(self, available: set[str]) -> None:
        """Raises RepositoryError if components are missing. They are not added, because an administrator may have
        omitted them on purpose."""
        if not available:
            raise RepositoryError(f"{self.archive.url} (Origin {self.archive.origin}) is not a package source of this "
                                  "host.", f"Add it to {SOURCES}, or use source cuda_repository.")
        missing = [name for name in self.archive.sections if name not in available]
        if missing:
            raise RepositoryError(f"The package sources for {self.archive.url} do not have the components "
                                  f"{', '.join(missing)}; they have {', '.join(sorted(available))}.",
                                  f"Add {' '.join(missing)} to the Components of the source in {SOURCES}, then run "
                                  "again.", missing=missing)

    def _read(self, found: t.Sequence[Index]) -> dict[str, list[str]]:
        native = self.run(["dpkg", "--print-architecture"]).stdout.strip()
        versions: dict[str, set[str]] = {}
        for index in found:
            if index.architecture in (native, "all"):
                text = self.run(["/usr/lib/apt/apt-helper", "-c", self._configuration, "cat-file", index.path]).stdout
                for name, known in parse_matching(text, self.archive.names).items():
                    versions.setdefault(name, set()).update(known)
        return {name: sorted(known, key=debian_key, reverse=True) for name, known in versions.items()}
