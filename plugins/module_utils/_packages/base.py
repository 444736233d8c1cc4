# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The interface of package managers, and the data that they exchange with their callers.

Each package manager has a file (such as C(apt.py)) that implements L(Manager) and L(Probe). C(work.py) uses these to
plan and execute steps.
"""

from __future__ import annotations

import re
import typing as t
from dataclasses import dataclass, field

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError, InputError, RepositoryError

# Maximum seconds to wait for the lock of another package manager, and for one transaction including its DKMS builds.
LOCK_LIMIT = 300
TRANSACTION_LIMIT = 3600
_NAME = re.compile(r"[a-z0-9][a-z0-9-]*\Z")
# The user and password, or the token, in a URL.
_SECRET = re.compile(r"(?<=://)[^/@]*@")
# Errors of OpenSSL (curl, Python) and GnuTLS (apt) for a certificate from an unknown authority.
_UNTRUSTED = re.compile(r"unable to get (local )?issuer|self.signed certificate|issuer is unknown", re.I)
_FINGERPRINT = re.compile(r"[0-9A-F]{40}\Z")


def columns(text: str, count: int, program: str) -> t.Iterator[list[str]]:
    """Yields the columns of each line of a tab-separated table. Raises HostError if a line has a different number of
    columns."""
    for line in text.splitlines():
        found = line.split("\t")
        if len(found) != count:
            raise HostError(f"{program} printed a line with {len(found)} columns instead of {count}: {line[:200]!r}.",
                            f"Run {program} yourself and check whether its database is damaged.")
        yield found


@dataclass(frozen=True)
class Repository:
    """A signed package repository.

    name: a short name from this collection, which the names of files on the host contain. url: the base URL. key: the
    URL of its public key, an absolute path on the host, or a file name relative to url. fingerprint: the expected
    fingerprint of the key, 40 hexadecimal digits. suite, components: as in an APT source; the suite C(/) is a flat
    repository. held: whether dnf and zypper must keep the versions of its packages. signed: whether each RPM package is
    signed; otherwise the packages are verified by the digests in the signed list of packages.
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
            raise InputError(f"'{self.name}' is not a repository name.", "Use lower-case letters, digits and dashes.",
                             path="repository.name", value=self.name)
        if "://" not in self.url or self.url.split() != [self.url]:
            raise InputError(f"'{self.url}' is not a URL.", "Set a base URL such as https://host/path/.",
                             path="repository.url", value=self.url)
        for option, uri in (("url", self.url), ("key", self.key)):
            if _SECRET.search(uri):
                raise InputError("A URL must not contain a user or password: every user can read the package sources.",
                                 "Write them to a file of the package manager: a file with mode 600 in "
                                 "/etc/apt/auth.conf.d (apt_auth.conf(5)), or username and password in dnf.conf.",
                                 path=f"repository.{option}", value=_SECRET.sub("***@", uri))
        if not _FINGERPRINT.match(self.wanted_fingerprint):
            raise InputError(f"'{self.fingerprint}' is not an OpenPGP fingerprint.", "Set all 40 hexadecimal digits.",
                             path="repository.fingerprint", value=self.fingerprint)

    @property
    def wanted_fingerprint(self) -> str:
        """The expected fingerprint as 40 upper-case hexadecimal digits."""
        return re.sub(r"[\s:]", "", self.fingerprint).upper()

    @property
    def key_uri(self) -> str:
        """The URL of the key."""
        if "://" in self.key:
            return self.key
        return f"file://{self.key}" if self.key.startswith("/") else f"{self.url.rstrip('/')}/{self.key}"


@dataclass(frozen=True)
class Archive(Repository):
    """The archive of the distribution. The package sources of the host already contain it, so no files are written.

    url: the name of the archive in messages. origin: the field C(Origin) of its Release files, which identifies its
    packages. sections: the required components of the archive. names: a regular expression for the names of packages
    that belong to a component of this collection; the versions of all others (compilers, libraries) are not fixed.
    """

    origin: str = ""
    sections: t.Tuple[str, ...] = ()
    names: str = ""

    def __post_init__(self) -> None:
        """Validates nothing, because no field comes from a user."""


@dataclass(frozen=True)
class PackageState:
    """The content of the package database.

    installed: completely installed packages, as C({name: version}); the name of a package for another architecture is
    C(name:arch). broken: partly installed packages, as C({name: status in the database}). residual: removed packages
    whose configuration files remain. interrupted: whether a transaction was interrupted, so that the package manager
    must be repaired first.
    """

    installed: t.Mapping[str, str]
    broken: t.Mapping[str, str] = field(default_factory=dict)
    residual: t.FrozenSet[str] = frozenset()
    interrupted: bool = False


@dataclass(frozen=True)
class Change:
    """The change of one package by a transaction. before, after: versions, None if the package is not installed."""

    name: str
    before: str | None
    after: str | None


class Probe(t.Protocol):
    """A context manager that reads a repository and verifies its key and signature, without changing the host."""

    @property
    def key(self) -> bytes:
        """The verified key in binary form."""

    @property
    def candidates(self) -> t.Mapping[str, t.Sequence[str]]:
        """The packages in the repository, as C({name: [full version]}), with the newest version first."""

    def __enter__(self) -> Probe:
        """Reads the repository."""

    def __exit__(self, *exc: object) -> None:
        """Removes all temporary files."""

    def resolve(self, name: str, version: str | None) -> str:
        """The newest full version of a package that L(matches) the version. If there is none, raises RepositoryError
        with the available versions."""

    def simulate(self, install: t.Mapping[str, str], pins: t.Mapping[str, str], without: t.Sequence[str] = (),
                 gone: t.Sequence[str] = (), files: t.Mapping[str, bytes] | None = None) -> list[Change]:
        """The changes that the installation of these versions would make. Raises HostError if the installation is
        impossible.

        install: C({name: version}). pins: the pinning packages, which are installed first, as C({name: version}).
        without: packages that are removed before. gone: packages that the same transaction removes. files: the files
        that fix versions, if they are changed before, as C({path: content}).
        """


class Manager(t.Protocol):
    """A package manager."""

    @property
    def repair_command(self) -> t.Sequence[str]:
        """The command that L(repair) runs, as the plan shows it."""

    def read(self) -> PackageState:
        """Reads the package database with one command that takes no lock."""

    def is_consistent(self) -> bool:
        """Whether the last transaction is complete and the dependencies of all packages are installed."""

    def probe(self, repository: Repository) -> Probe:
        """Reads a repository without changing the host. Raises RepositoryError."""

    def files(self, repository: Repository, key: bytes) -> dict[str, bytes]:
        """The files that configure the repository on the host, as C({path: content})."""

    def is_configured(self, repository: Repository) -> bool:
        """Whether the files of L(files) exist on the host, with the expected key."""

    def refresh(self, repository: Repository) -> None:
        """Downloads the package lists of this repository only."""

    def forget_lists(self, url: str) -> None:
        """Deletes the downloaded package lists of a repository that is no longer configured."""

    def trusts(self, fingerprint: str) -> bool:
        """Whether the package database trusts the key. True for package managers that need only the key file."""

    def trust(self, repository: Repository) -> None:
        """Imports the key of the repository into the package database."""

    def distrust(self, fingerprint: str) -> None:
        """Removes the key from the package database."""

    def install(self, packages: t.Mapping[str, str], auto: t.Sequence[str] = (), gone: t.Sequence[str] = ()) -> None:
        """Installs exact versions and keeps changed configuration files. packages: C({name: version}), with an empty
        text for any version.

        auto: packages to mark as dependencies. gone: packages that the same transaction removes.
        """

    def lost_files(self, names: t.Sequence[str]) -> dict[str, list[str]]:
        """Missing or damaged programs and libraries, as C({package: [path]}). Empty if they cannot be determined.

        names: installed packages.
        """

    def reinstall(self, packages: t.Mapping[str, str], check: bool = False) -> None:
        """Reinstalls packages in their installed versions. packages: C({name: version}).

        check: whether to only simulate the reinstallation. Raises GpuopsError if it would fail.
        """

    def simulate_install(self, names: t.Sequence[str]) -> list[Change]:
        """The changes that an installation from the package sources of the host would make. Raises HostError if the
        installation is impossible."""

    def simulate_removal(self, names: t.Sequence[str]) -> list[Change]:
        """The changes that the removal of these packages would make."""

    def remove(self, names: t.Sequence[str], purge: bool = True) -> None:
        """Removes packages. purge: whether to remove their configuration files as well."""

    def repair(self, names: t.Sequence[str]) -> None:
        """Removes packages (names), and then completes the interrupted transaction."""


def upstream(version: str) -> str:
    """The vendor version in a package version, such as C(595.91.07) for C(1:595.91.07-1ubuntu1)."""
    return version.split(":", 1)[-1].rsplit("-", 1)[0]


def matches(version: str | None, wanted: str | None) -> bool:
    """Whether a package version matches the desired version.

    version: None if the package is not installed. wanted: a package version, a vendor version, or None for any version.
    """
    return version is not None and (wanted is None or wanted in (version, upstream(version)))


def specifiers(packages: t.Mapping[str, str], separator: str = "=") -> list[str]:
    """C(name=version) for each package, or only the name if the version is empty; sorted."""
    return [f"{name}{separator}{packages[name]}" if packages[name] else name for name in sorted(packages)]


def fetch_advice(reason: str, proxy: str) -> str:
    """The hint for a failed download. reason: the error of the program. proxy: the name of the proxy setting."""
    if _UNTRUSTED.search(reason):
        return ("Add the certificate of the authority to the trust store of this host with "
                "update-ca-certificates(8) or update-ca-trust(8), then run again.")
    return f"From this host, check the URL, the network and {proxy}."


def fetch_error(uri: str, reason: str, proxy: str) -> RepositoryError:
    """The error for a failed download. reason, proxy: see L(fetch_advice)."""
    return RepositoryError(f"{uri} cannot be fetched: {reason}.", fetch_advice(reason, proxy), url=uri)
