# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads an APT repository and simulates a transaction with apt, before the host is changed.

apt runs with a temporary folder that contains sources (links to the host's files, and the new file), package lists
(links to the host's lists, and downloaded ones), a cache and preferences. It uses the package status of the host.
Therefore, the simulation shows what the real command does after the repository and the pinning package are installed.
"""

from __future__ import annotations

import os
import re
import typing as t
from urllib.parse import urlsplit

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import CommandError, HostError, RepositoryError
from ansible_collections.gpuops.nvidia.plugins.module_utils._files import read_bytes
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages import apt_method
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.apt_tools import (
    LISTS,
    SIGNED,
    SOURCES,
    apt_get,
    apt_install,
    is_list_of,
    parse_simulation,
    source_text,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.base import (
    Change,
    fetch_error,
    specifiers,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.repository_probe import RepositoryProbe
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.versions import debian_key

PREFERENCES = "/etc/apt/preferences.d"
PROXY = "apt's proxy (Acquire::http::Proxy)"
# apt reads this after the configuration of the host. The host's proxies remain in effect; its hooks, which could change
# files, do not.
_CONFIGURATION = """\
Dir::State::lists "{root}/lists";
Dir::Cache "{root}/cache";
Dir::Etc::sourceparts "{root}/sources";
Dir::Etc::preferencesparts "{root}/preferences";
Dir::Log "{root}/log";
Acquire::GzipIndexes "false";
Acquire::Languages "none";
Acquire::http::Timeout "20";
Acquire::https::Timeout "20";
Acquire::Retries "1";
APT::Get::List-Cleanup "false";
APT::Update::Error-Mode "any";
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear DPkg::Pre-Install-Pkgs;
"""
_UNSIGNED = re.compile(r"is not signed|NO_PUBKEY|BADSIG|EXPKEYSIG|EXPSIG|REVKEYSIG|At least one invalid signature")
# Of these, the ones where the key is the expected one, but no longer valid (doc/DETAILS of GnuPG, status lines).
_INVALID = {"EXPKEYSIG": "the key has expired", "EXPSIG": "the signature has expired",
            "REVKEYSIG": "the key was revoked"}
_FETCH = re.compile(r"^[EW]: (?!Download Failed|Some index files)")


def parse_packages(text: str) -> dict[str, list[str]]:
    """Parses a C(Packages) index. Returns C({name: [version]}), with the newest version first."""
    found: dict[str, set[str]] = {}
    name = ""
    for line in text.splitlines():
        if line.startswith("Package:"):
            name = line[8:].strip()
        elif line.startswith("Version:"):
            found.setdefault(name, set()).add(line[8:].strip())
    return {name: sorted(versions, key=debian_key, reverse=True) for name, versions in found.items()}


class AptProbe(RepositoryProbe):
    """Implements C(base.Probe) with apt."""

    index = ""

    def simulate(self, install: t.Mapping[str, str], pins: t.Mapping[str, str], without: t.Sequence[str] = (),
                 gone: t.Sequence[str] = (), files: t.Mapping[str, bytes] | None = None) -> list[Change]:
        """See C(base.Probe). The changes of the pinning packages themselves are not included."""
        self._pin(pins)
        self._hide(without)
        for path, content in (files or {}).items():
            self._prefer(os.path.basename(path), content)
        words = [*specifiers(install), *(f"{name}-" for name in gone)]
        try:
            done = apt_install(self.run, ["-c", self._configuration, "-s", "--allow-downgrades", "install", *words],
                               without=without)
        except CommandError as error:
            text = error.output
            reasons = [line.strip() for line in text.splitlines()
                       if "Depends:" in line or "Conflicts:" in line or line.startswith("E:")]
            raise HostError(f"apt cannot install {' '.join(words)}: {' / '.join(reasons) or text.strip()}",
                            "Check for held packages (apt-mark showhold), pins (apt-cache policy), old package lists "
                            "(apt-get update), and missing dependencies (apt-get --fix-broken install).") from error
        return parse_simulation(done.stdout)

    @property
    def _configuration(self) -> str:
        return f"{self.root}/apt.conf"

    def _places(self) -> dict[str, str]:
        return {"sources": SOURCES, "preferences": PREFERENCES, "lists": LISTS}

    def _make_folders(self) -> None:
        os.chmod(self.root, 0o755)  # the download programs of apt run as user _apt and read the keyring
        for folder in ("lists/partial", "cache/archives/partial", "sources", "preferences", "log"):
            os.makedirs(f"{self.root}/{folder}")
        with open(self._configuration, "w", encoding="utf-8") as stream:
            stream.write(_CONFIGURATION.format(root=self.root))

    def _open(self) -> None:
        self._make_folders()
        source = f"gpuops-{self.repository.name}.sources"
        self.link(SOURCES, f"{self.root}/sources", lambda name: name != source)
        self.link(PREFERENCES, f"{self.root}/preferences")
        self.link(LISTS, f"{self.root}/lists", lambda name: name not in ("lock", "partial", "auxfiles")
                  and not is_list_of(name, self.repository.url))
        self.key = self._fetch_key()
        self.write("keyring.gpg", self.key)
        self.write(f"sources/{source}", source_text(self.repository, f"{self.root}/keyring.gpg"))
        self._check_keyrings()
        self._update(f"{self.root}/sources/{source}")
        self.index = "\n\n".join((read_bytes(f"{self.root}/lists/{name}") or b"").decode()
                                 for name in os.listdir(f"{self.root}/lists")
                                 if is_list_of(name, self.repository.url) and name.endswith("_Packages"))
        self.candidates = parse_packages(self.index)

    def _fetch_key(self) -> bytes:
        """The expected key, without other keys. apt downloads it, with the proxies and certificates of the host."""
        path, uri = f"{self.root}/fetched", self.repository.key_uri
        parts = urlsplit(uri)
        if parts.query and parts.scheme in apt_method.SCHEMES:
            failure = apt_method.fetch(self.run, self._configuration, uri, path)
            if failure:
                raise fetch_error(uri, failure, PROXY)
        else:
            self._download(uri, path)
        return self.wanted_key(path)

    def _download(self, uri: str, path: str, digest: str = "") -> None:
        done = self.run(["/usr/lib/apt/apt-helper", "-c", self._configuration, "download-file", uri, path,
                         *([digest] if digest else [])], timeout=120, check=False)
        if done.rc != 0 or not os.path.isfile(path):
            raise fetch_error(uri, last_line(done.stderr or done.stdout), PROXY)

    def _check_keyrings(self) -> None:
        """Raises RepositoryError if another source file sets a different keyring for this URL. apt would then read no
        sources."""
        errors = self.run(["apt-get", "-c", self._configuration, "indextargets"], check=False).stderr
        conflict = re.search(r"Conflicting values set for option Signed-By .*", errors)
        if conflict:
            url = self.repository.url
            source = " and ".join(self._sources_of(url)) or "A package source of this host"
            raise RepositoryError(f"{source} uses {url} with another keyring: {conflict.group()}.",
                                  f"Remove it from {SOURCES} (apt-get purge cuda-keyring, if that package installed "
                                  "it), or set another repository.url.", url=url)

    def _sources_of(self, url: str) -> list[str]:
        """The files of the host that contain this URL. The last folder of the URL can be a variable of apt, such as
        $(ARCH)."""
        place = url.rstrip("/").rpartition("/")[0]
        names = sorted(os.listdir(f"{self.root}/sources"))
        return [f"{SOURCES}/{name}" for name in names if not name.startswith("gpuops-")
                and place in (read_bytes(f"{self.root}/sources/{name}") or b"").decode(errors="replace")]

    def _update(self, source: str) -> None:
        try:
            apt_get(self.run, ["-c", self._configuration, "-o", f"Dir::Etc::sourcelist={source}", "-o",
                               "Dir::Etc::sourceparts=-", *SIGNED, "update"], limit=600)
        except CommandError as error:
            text = str(error.details["stderr"]) + str(error.details["stdout"])
            unsigned = _UNSIGNED if _UNSIGNED.search(text) else None
            raise self.unreadable(last_line(text, unsigned), bool(unsigned), PROXY, why_invalid(text)) from error

    def _pin(self, pins: t.Mapping[str, str]) -> None:
        """Uses the preferences of these pinning packages for the simulation.

        Pinning packages conflict with each other, so the preferences of installed ones are not used.
        """
        for name, version in pins.items():
            found = self._file(name, version)
            path = f"{self.root}/{name}.deb"
            self._download(f"{self.repository.url.rstrip('/')}/{found['Filename']}", path, f"SHA256:{found['SHA256']}")
            self.run(["dpkg-deb", "-x", path, f"{self.root}/pins"])
        pinned = f"{self.root}/pins{PREFERENCES}"
        if not os.path.isdir(pinned):
            return
        self._hide(self._other_pins(set(pins)))
        for name in os.listdir(pinned):
            self._prefer(name, read_bytes(f"{pinned}/{name}") or b"")

    def _hide(self, names: t.Sequence[str]) -> None:
        """Removes the preferences of packages from the temporary folder. names: packages that are removed before."""
        for name in names:
            for path in self.run(["dpkg-query", "-L", name], check=False).stdout.splitlines():
                linked = f"{self.root}/preferences/{os.path.basename(path)}"
                if os.path.dirname(path) == PREFERENCES and os.path.islink(linked):
                    os.unlink(linked)

    def _prefer(self, name: str, content: bytes) -> None:
        """Writes a preferences file for the simulation, which replaces the host's file with this name."""
        if os.path.lexists(f"{self.root}/preferences/{name}"):
            os.unlink(f"{self.root}/preferences/{name}")
        self.write(f"preferences/{name}", content)

    def _file(self, name: str, version: str) -> dict[str, str]:
        """The fields of a package version in the signed index. Raises RepositoryError."""
        for stanza in self.index.split("\n\n"):
            if f"\nPackage: {name}\n" in f"\n{stanza}\n" and f"\nVersion: {version}\n" in f"\n{stanza}\n":
                return dict(re.findall(r"^([A-Za-z0-9-]+): (.*)$", stanza, re.MULTILINE))
        raise RepositoryError(f"{self.repository.url} has no {name} {version}.", package=name, wanted=version)

    def _other_pins(self, pins: set[str]) -> list[str]:
        """The installed pinning packages that are not in pins."""
        stems = {name.rsplit("-", 1)[0] for name in pins}
        text = self.run(["dpkg-query", "-W", "-f", "${Package}\\n", *(f"{stem}-*" for stem in sorted(stems))],
                        check=False).stdout
        return [name for name in text.split() if name not in pins]


def why_invalid(text: str) -> str:
    """What the output of apt says about a key that is no longer valid, to follow the words "Check repository.key"."""
    return next((f": {words}" for status, words in _INVALID.items() if status in text), "")


def last_line(text: str, wanted: t.Pattern[str] | None = None) -> str:
    """The most informative line in the output of apt: the last line that matches wanted, otherwise the last error."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    best = [line for line in lines if (wanted or _FETCH).search(line)]
    best = best or [line for line in lines if line.startswith("E:")] or lines or ["it printed nothing"]
    return re.sub(r"^[EW]: ", "", best[-1]).rstrip(".")
