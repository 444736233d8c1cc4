# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reading an APT repository and simulating a transaction before anything on the host has changed. PRIVATE.

apt gets a temporary folder: its own sources (the host's, linked, and the new one), its own lists (the host's, linked,
and those fetched now), its own cache and preferences. Its status file stays the host's. So a simulation says what the
real command will do after the repository and the pinning package have been installed.
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
    Repository,
    fetch_advice,
    specifiers,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.versions import debian_key
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.view import View
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Runner

PREFERENCES = "/etc/apt/preferences.d"
PROXY = "apt's proxy (Acquire::http::Proxy)"
# Read after the host's own configuration: its proxies stay, its hooks (which could write) do not.
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
_FETCH = re.compile(r"^[EW]: (?!Download Failed|Some index files)")


def parse_packages(text: str) -> dict[str, list[str]]:
    """Reads a C(Packages) index: name to its versions, newest first."""
    found: dict[str, set[str]] = {}
    name = ""
    for line in text.splitlines():
        if line.startswith("Package:"):
            name = line[8:].strip()
        elif line.startswith("Version:"):
            found.setdefault(name, set()).add(line[8:].strip())
    return {name: sorted(versions, key=debian_key, reverse=True) for name, versions in found.items()}


class AptProbe(View):
    """Implements C(base.Probe); use by C(with), which removes the folder at the end."""

    def __init__(self, run: Runner, repository: Repository) -> None:
        super().__init__(run, repository)
        self.index = ""

    # -- what it answers

    def simulate(self, install: t.Mapping[str, str], pins: t.Mapping[str, str], without: t.Sequence[str] = (),
                 gone: t.Sequence[str] = (), files: t.Mapping[str, bytes] | None = None) -> list[Change]:
        """What apt-get would do; the pinning packages' own changes are not in the list, they are installed before."""
        self._pin(pins)
        self._hide(without)
        for path, content in (files or {}).items():
            self._prefer(os.path.basename(path), content)
        words = [*specifiers(install), *(f"{name}-" for name in gone)]
        try:
            done = apt_install(self.run, ["-c", self._configuration, "-s", "--allow-downgrades", "install", *words],
                               without=without)
        except CommandError as error:
            text = str(error.details["stdout"]) + str(error.details["stderr"])
            reasons = [line.strip() for line in text.splitlines()
                       if "Depends:" in line or "Conflicts:" in line or line.startswith("E:")]
            raise HostError(f"apt cannot install {' '.join(words)}: {' / '.join(reasons) or text.strip()}",
                            "Look for held packages (apt-mark showhold), for pins (apt-cache policy), for package "
                            "lists that are missing or old (apt-get update), and for packages that lack others "
                            "(apt-get --fix-broken install).") from error
        return parse_simulation(done.stdout)

    # -- how

    @property
    def _configuration(self) -> str:
        return f"{self.root}/apt.conf"

    def _places(self) -> dict[str, str]:
        return {"sources": SOURCES, "preferences": PREFERENCES, "lists": LISTS}

    def _make_folders(self) -> None:
        os.chmod(self.root, 0o755)  # apt's download methods run as _apt and read the keyring
        for folder in ("lists/partial", "cache/archives/partial", "sources", "preferences", "log"):
            os.makedirs(f"{self.root}/{folder}")
        with open(self._configuration, "w", encoding="utf-8") as stream:
            stream.write(_CONFIGURATION.format(root=self.root))

    def _open(self) -> None:
        self._make_folders()
        ours = f"gpuops-{self.repository.name}.sources"
        self._link(SOURCES, "sources", lambda name: name != ours)
        self._link(PREFERENCES, "preferences", lambda name: True)
        self._link(LISTS, "lists", lambda name: name not in ("lock", "partial", "auxfiles")
                   and not is_list_of(name, self.repository.url))
        self.key = self._fetch_key()
        self._write("keyring.gpg", self.key)
        self._write(f"sources/{ours}", source_text(self.repository, f"{self.root}/keyring.gpg"))
        self._refuse_rivals()
        self._update(f"{self.root}/sources/{ours}")
        self.index = "\n\n".join((read_bytes(f"{self.root}/lists/{name}") or b"").decode()
                                 for name in os.listdir(f"{self.root}/lists")
                                 if is_list_of(name, self.repository.url) and name.endswith("_Packages"))
        self.candidates = parse_packages(self.index)
        if not self.candidates:
            raise RepositoryError(f"{self.repository.url} lists no packages for this host's architecture.",
                                  "Check the URL and suite.", url=self.repository.url)

    def _link(self, folder: str, into: str, wanted: t.Callable[[str], bool]) -> None:
        for name in os.listdir(folder) if os.path.isdir(folder) else ():
            if wanted(name) and os.path.isfile(os.path.join(folder, name)):
                os.symlink(os.path.join(folder, name), f"{self.root}/{into}/{name}")

    def _write(self, name: str, data: bytes) -> None:
        with open(f"{self.root}/{name}", "wb") as stream:
            stream.write(data)
        os.chmod(f"{self.root}/{name}", 0o644)

    def _fetch_key(self) -> bytes:
        """The wanted key alone, fetched by apt's own transport: the host's proxies and certificates hold for it."""
        path, uri = f"{self.root}/fetched", self.repository.key_uri
        parts = urlsplit(uri)
        if parts.query and parts.scheme in apt_method.SCHEMES:
            said = apt_method.fetch(self.run, self._configuration, uri, path)
            if said:
                raise RepositoryError(f"{uri} cannot be fetched: {said}.", fetch_advice(said, PROXY), url=uri)
        else:
            self._download(uri, path)
        return self.wanted_key(path)

    def _download(self, uri: str, path: str, digest: str = "") -> None:
        done = self.run(["/usr/lib/apt/apt-helper", "-c", self._configuration, "download-file", uri, path,
                         *([digest] if digest else [])], timeout=120, check=False)
        if done.rc != 0 or not os.path.isfile(path):
            said = last_line(done.stderr or done.stdout)
            raise RepositoryError(f"{uri} cannot be fetched: {said}.", fetch_advice(said, PROXY), url=uri)

    def _refuse_rivals(self) -> None:
        """With two keyrings for one place, as of the vendor's cuda-keyring and of ours, apt would read no source."""
        said = self.run(["apt-get", "-c", self._configuration, "indextargets"], check=False).stderr
        conflict = re.search(r"Conflicting values set for option Signed-By .*", said)
        if conflict:
            url = self.repository.url
            raise RepositoryError(f"This host has {url} as a source with another keyring: {conflict.group()}.",
                                  f"Remove that source from {SOURCES} (apt-get purge cuda-keyring, where that package "
                                  "brought it), or name another repository.url.", url=url)

    def _update(self, source: str) -> None:
        try:
            apt_get(self.run, ["-c", self._configuration, "-o", f"Dir::Etc::sourcelist={source}", "-o",
                               "Dir::Etc::sourceparts=-", *SIGNED, "update"], limit=600)
        except CommandError as error:
            text = str(error.details["stderr"]) + str(error.details["stdout"])
            url = self.repository.url
            if _UNSIGNED.search(text):
                raise RepositoryError(f"{url} is not signed by the key {self.repository.wanted_fingerprint}: "
                                      f"{last_line(text, _UNSIGNED)}.", "Nothing was installed. Check repository.key.",
                                      url=url) from error
            said = last_line(text)
            raise RepositoryError(f"{url} cannot be read: {said}.", fetch_advice(said, PROXY), url=url) from error

    def _pin(self, pins: t.Mapping[str, str]) -> None:
        """Puts the preferences that pinning packages will bring in force for the simulation, instead of their rivals'.

        Such packages exclude each other, so those of an installed rival (same Provides) go.
        """
        for name, version in pins.items():
            found = self._file(name, version)
            path = f"{self.root}/{name}.deb"
            self._download(f"{self.repository.url.rstrip('/')}/{found['Filename']}", path, f"SHA256:{found['SHA256']}")
            self.run(["dpkg-deb", "-x", path, f"{self.root}/pins"])
        brought = f"{self.root}/pins{PREFERENCES}"
        if not os.path.isdir(brought):
            return
        self._hide(self._rivals(set(pins)))
        for name in os.listdir(brought):
            self._prefer(name, read_bytes(f"{brought}/{name}") or b"")

    def _hide(self, names: t.Sequence[str]) -> None:
        """Puts the preferences of packages that will have gone out of force."""
        for name in names:
            for path in self.run(["dpkg-query", "-L", name], check=False).stdout.splitlines():
                linked = f"{self.root}/preferences/{os.path.basename(path)}"
                if os.path.dirname(path) == PREFERENCES and os.path.islink(linked):
                    os.unlink(linked)

    def _prefer(self, name: str, content: bytes) -> None:
        """A file of preferences, empty where it will have gone, in the place of the host's."""
        if os.path.lexists(f"{self.root}/preferences/{name}"):
            os.unlink(f"{self.root}/preferences/{name}")
        self._write(f"preferences/{name}", content)

    def _file(self, name: str, version: str) -> dict[str, str]:
        """The fields of one package in the signed index."""
        for stanza in self.index.split("\n\n"):
            if f"\nPackage: {name}\n" in f"\n{stanza}\n" and f"\nVersion: {version}\n" in f"\n{stanza}\n":
                return dict(re.findall(r"^([A-Za-z0-9-]+): (.*)$", stanza, re.MULTILINE))
        raise RepositoryError(f"{self.repository.url} has no {name} {version}.", package=name, wanted=version)

    def _rivals(self, pins: set[str]) -> list[str]:
        stems = {name.rsplit("-", 1)[0] for name in pins}
        text = self.run(["dpkg-query", "-W", "-f", "${Package}\\n", *(f"{stem}-*" for stem in sorted(stems))],
                        check=False).stdout
        return [name for name in text.split() if name not in pins]


def last_line(text: str, wanted: t.Pattern[str] | None = None) -> str:
    """The line of apt's output that says most: the last error, or the last that matches."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    best = [line for line in lines if (wanted or _FETCH).search(line)]
    best = best or [line for line in lines if line.startswith("E:")] or lines or ["it printed nothing"]
    return re.sub(r"^[EW]: ", "", best[-1]).rstrip(".")
