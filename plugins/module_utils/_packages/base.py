# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What every package manager answers, as plain data. PRIVATE to the collection.

One file a package manager (C(apt.py)) implements L(Manager) and L(Probe); C(work.py) plans and executes with them.
"""

from __future__ import annotations

import re
import typing as t
from dataclasses import dataclass, field

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError, InputError

_NAME = re.compile(r"[a-z0-9][a-z0-9-]*\Z")
# User and password, or a token, in a URL.
_SECRET = re.compile(r"(?<=://)[^/@]*@")
# What OpenSSL (curl, Python) and GnuTLS (apt) say of an authority that the host does not know.
_UNTRUSTED = re.compile(r"unable to get (local )?issuer|self.signed certificate|issuer is unknown", re.I)
_FINGERPRINT = re.compile(r"[0-9A-F]{40}\Z")


def columns(text: str, count: int, program: str) -> t.Iterator[list[str]]:
    """The lines of a program's table, split at tabs. Raises HostError for one that has not so many columns."""
    for line in text.splitlines():
        found = line.split("\t")
        if len(found) != count:
            raise HostError(f"{program} printed a line of {len(found)} columns, {count} are wanted: {line[:200]!r}.",
                            f"Run {program} by hand: its database may be damaged.")
        yield found


@dataclass(frozen=True)
class Repository:
    """A signed package repository.

    name: short, ours; it names the files on the host. url: its base. key: URL of its public key, or an absolute path on
    the host, or a file name below url. fingerprint: that the key must have, 40 hex digits. suite and components: as in
    an APT source; the suite C(/) is a flat repository. signed: whether RPM packages are signed one by one; where they
    are not, the signed list of packages vouches for them by their digests.
    """

    name: str
    url: str
    key: str
    fingerprint: str
    suite: str = "/"
    components: t.Tuple[str, ...] = ()
    held: bool = False
    signed: bool = True

    def __post_init__(self) -> None:
        if not _NAME.match(self.name):
            raise InputError(f"'{self.name}' cannot name a repository.", "Use lower-case letters, digits and dashes.",
                             path="repository.name", value=self.name)
        if "://" not in self.url or self.url.split() != [self.url]:
            raise InputError(f"'{self.url}' is no URL.", "Give the base of the repository, such as https://host/path/.",
                             path="repository.url", value=self.url)
        for option, uri in (("url", self.url), ("key", self.key)):
            if _SECRET.search(uri):
                raise InputError("A URL must not hold a user or password: sources of packages are read by everybody.",
                                 "Put them where the package manager keeps them: a file of mode 600 in "
                                 "/etc/apt/auth.conf.d (apt_auth.conf(5)), or username and password in dnf.conf.",
                                 path=f"repository.{option}", value=_SECRET.sub("***@", uri))
        if not _FINGERPRINT.match(self.wanted_fingerprint):
            raise InputError(f"'{self.fingerprint}' is no OpenPGP fingerprint.", "Give all 40 hexadecimal digits.",
                             path="repository.fingerprint", value=self.fingerprint)

    @property
    def wanted_fingerprint(self) -> str:
        """The fingerprint in the canonical form: 40 upper-case hex digits."""
        return re.sub(r"[\s:]", "", self.fingerprint).upper()

    @property
    def key_uri(self) -> str:
        """Where the key is fetched from."""
        if "://" in self.key:
            return self.key
        return f"file://{self.key}" if self.key.startswith("/") else f"{self.url.rstrip('/')}/{self.key}"


@dataclass(frozen=True)
class Archive(Repository):
    """The distribution's own archive, by the sources that the host has: nothing of ours is configured for it.

    url: what it is called in messages. origin: C(Origin) of its Release files; by it, not by names, packages are told
    from those of other repositories. sections: components of it that are needed. names: matches
    the packages that are a component's own; versions of the others (compilers, libraries) are not ours to keep.
    """

    origin: str = ""
    sections: t.Tuple[str, ...] = ()
    names: str = ""

    def __post_init__(self) -> None:
        """Nothing in it comes from a user."""


@dataclass(frozen=True)
class PackageState:
    """What the package database says.

    installed: name to version, whole ones only (a foreign architecture's name is C(name:arch)). broken: name to the
    database's own status letters, for those neither whole nor absent. residual: removed, with configuration left.
    interrupted: the package manager was stopped in the middle and wants its repair command first.
    """

    installed: t.Mapping[str, str]
    broken: t.Mapping[str, str] = field(default_factory=dict)
    residual: t.FrozenSet[str] = frozenset()
    interrupted: bool = False


@dataclass(frozen=True)
class Change:
    """What a transaction does to one package. before, after: versions, None for absent."""

    name: str
    before: str | None
    after: str | None


class Probe(t.Protocol):
    """A read-only view of a repository whose key and signature have been verified; a context manager."""

    @property
    def key(self) -> bytes:
        """The verified key in binary form."""

    @property
    def candidates(self) -> t.Mapping[str, t.Sequence[str]]:
        """What the repository has: name to full versions, newest first."""

    def __enter__(self) -> Probe:
        """Opens the view."""

    def __exit__(self, *exc: t.Any) -> None:
        """Leaves nothing behind."""

    def resolve(self, name: str, version: str | None) -> str:
        """The newest full version of a package that L(matches); RepositoryError with those available otherwise."""

    def simulate(self, install: t.Mapping[str, str], pins: t.Mapping[str, str], without: t.Sequence[str] = (),
                 gone: t.Sequence[str] = (), files: t.Mapping[str, bytes] | None = None) -> list[Change]:
        """What installing these versions would do.

        pins: pinning packages whose pins are in force then. without: packages that will have been removed before.
        gone: packages that the same transaction removes. files: path to content of files of ours that hold versions,
        as they will stand then; None where they stay as they are.
        """


class Manager(t.Protocol):
    """A package manager."""

    @property
    def repair_command(self) -> t.Sequence[str]:
        """The command of L(repair), for plans."""

    def read(self) -> PackageState:
        """The package database, by one command, no lock taken, no cache opened."""

    def is_consistent(self) -> bool:
        """Whether all dependencies of installed packages are met."""

    def probe(self, repository: Repository) -> Probe:
        """Reads a repository without changing the host. Raises RepositoryError."""

    def files(self, repository: Repository, key: bytes) -> dict[str, bytes]:
        """Path to content of the files that make the repository known to the host."""

    def is_configured(self, repository: Repository) -> bool:
        """Whether these files stand on the host, with the key of the wanted fingerprint."""

    def refresh(self, repository: Repository) -> None:
        """Fetches the lists of this repository only."""

    def forget_lists(self, url: str) -> None:
        """Removes the fetched lists of the repository at url, whose files are gone."""

    def trusts(self, fingerprint: str) -> bool:
        """Whether the host has what else it needs to trust a repository's key, apart from its files."""

    def trust(self, repository: Repository) -> None:
        """Brings that."""

    def distrust(self, fingerprint: str) -> None:
        """Takes it away."""

    def install(self, packages: t.Mapping[str, str], auto: t.Sequence[str] = (), gone: t.Sequence[str] = ()) -> None:
        """Installs exact versions, configuration files of the host kept.

        auto: those that are but dependencies. gone: packages that the same transaction removes.
        """

    def lost_files(self, names: t.Sequence[str]) -> dict[str, list[str]]:
        """Installed package to those of its programs and libraries that are gone; none where that cannot be told."""

    def reinstall(self, packages: t.Mapping[str, str], check: bool = False) -> None:
        """Brings the files of installed packages anew, at the versions that they have.

        check: changes nothing, and raises GpuopsError where that is known to fail.
        """

    def simulate_install(self, names: t.Sequence[str]) -> list[Change]:
        """What installing these packages from the host's own sources would do. Raises HostError where it cannot be."""

    def simulate_removal(self, names: t.Sequence[str]) -> list[Change]:
        """What removing these packages would do."""

    def remove(self, names: t.Sequence[str], purge: bool = True) -> None:
        """Removes packages, with their configuration files when purge."""

    def repair(self, names: t.Sequence[str]) -> None:
        """Finishes what an interrupted package manager left, after the packages C(names) have been taken out."""


def upstream(version: str) -> str:
    """The vendor's version in a package's: C(1:595.91.07-1ubuntu1) is C(595.91.07)."""
    return version.split(":", 1)[-1].rsplit("-", 1)[0]


def matches(version: str | None, wanted: str | None) -> bool:
    """Whether an installed or offered version is the wanted one.

    wanted: a full package version, the vendor's version, or None for any.
    """
    return version is not None and (wanted is None or wanted in (version, upstream(version)))


def specifiers(packages: t.Mapping[str, str]) -> list[str]:
    """C(name=version) for each, the name alone where any version will do (an empty one); sorted."""
    return [f"{name}={packages[name]}" if packages[name] else name for name in sorted(packages)]


def fetch_advice(said: str, proxy: str) -> str:
    """What to do about a server that cannot be read. said: what the program that tried printed. proxy: its setting."""
    if _UNTRUSTED.search(said):
        return ("Add the certificate of the server's authority to this host's trust store, by "
                "update-ca-certificates(8) or update-ca-trust(8); then run again.")
    return f"From this host, check the URL, the network and {proxy}."
