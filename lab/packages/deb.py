# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Debian packages and signed flat APT repositories, made by dpkg-deb, apt-ftparchive and gpg."""

from __future__ import annotations

import gzip
import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from lab.packages.keys import Key
from lab.tools import run_quietly

MAINTAINER = "gpuops.nvidia lab <lab@example.com>"
COPYRIGHT = "A stand-in made by the lab of gpuops.nvidia (GPL-3.0-or-later). Nothing in it comes from NVIDIA.\n"
PROGRAMS = ("usr/bin/", "usr/sbin/")


@dataclass(frozen=True)
class Link:
    """A symbolic link in a package."""

    target: str


# Path without the leading slash to content, a file to copy, or a link.
Files = Mapping[str, str | bytes | Path | Link]


# Suite to component to packages.
Pockets = Mapping[str, Mapping[str, Sequence["Deb"]]]


@dataclass(frozen=True)
class Deb:
    """One binary package.

    relations: control fields such as Depends. files: those in folders of programs become executable. scripts:
    maintainer scripts by name, without their first line. conffiles: paths that dpkg treats as configuration.
    triggers: the text of the triggers file.
    """

    name: str
    version: str
    relations: Mapping[str, str] = field(default_factory=dict)
    files: Files = field(default_factory=dict)
    scripts: Mapping[str, str] = field(default_factory=dict)
    conffiles: Sequence[str] = ()
    triggers: str = ""
    arch: str = "amd64"
    description: str = "stand-in package of the lab"

    @property
    def file_name(self) -> str:
        """The file name as dpkg-deb chooses it."""
        return f"{self.name}_{self.version}_{self.arch}.deb"


def lay_out(files: Files, root: Path) -> None:
    """Put files under a folder, with the modes that packages give them."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, Link):
            path.symlink_to(content.target)
            continue
        if isinstance(content, Path):
            shutil.copyfile(content, path)
        else:
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        path.chmod(0o755 if name.startswith(PROGRAMS) else 0o644)


def write_deb(deb: Deb, folder: Path) -> None:
    """Build the package file into a folder."""
    with tempfile.TemporaryDirectory(prefix="gpuops-deb-") as temporary:
        root = Path(temporary) / "root"
        root.mkdir(mode=0o755)
        lay_out({f"usr/share/doc/{deb.name}/copyright": COPYRIGHT, **deb.files}, root)
        sums = "".join(f"{hashlib.md5(path.read_bytes()).hexdigest()}  {path.relative_to(root)}\n"
                       for path in sorted(root.rglob("*")) if path.is_file() and not path.is_symlink()
                       and f"/{path.relative_to(root)}" not in deb.conffiles)
        fields = {"Package": deb.name, "Version": deb.version, "Architecture": deb.arch, "Maintainer": MAINTAINER,
                  "Section": "misc", "Priority": "optional", **deb.relations, "Description": deb.description}
        control = {"control": "".join(f"{name}: {value}\n" for name, value in fields.items()), "md5sums": sums,
                   "conffiles": "".join(f"{name}\n" for name in deb.conffiles), "triggers": deb.triggers}
        (root / "DEBIAN").mkdir()
        for name, text in control.items():
            if text:
                (root / "DEBIAN" / name).write_text(text)
        for name, text in deb.scripts.items():
            path = root / "DEBIAN" / name
            path.write_text(f"#!/bin/sh\nset -e\n{text}")
            path.chmod(0o755)
        run_quietly(["dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "--build", str(root),
                     str(folder / deb.file_name)], f"the package {deb.name}")


def write_repository(debs: Sequence[Deb], folder: Path, key: Key, release: Mapping[str, str]) -> None:
    """A flat repository: the packages, Packages, Release and its two kinds of signature."""
    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda deb: write_deb(deb, folder), debs))
    packages = _output(["apt-ftparchive", "packages", "."], folder)
    (folder / "Packages").write_bytes(packages)
    (folder / "Packages.gz").write_bytes(gzip.compress(packages, mtime=0))
    _sign_release(folder, key, release)


def write_archive(pockets: Pockets, folder: Path, key: Key, origin: str) -> None:
    """An archive like those of distributions: suites with components, each suite signed, indexes also by their
    hashes."""
    for suite, components in pockets.items():
        for component, debs in components.items():
            pool = folder / "pool" / suite / component
            pool.mkdir(parents=True)
            with ThreadPoolExecutor() as threads:
                list(threads.map(lambda deb, pool=pool: write_deb(deb, pool), debs))
            index = folder / "dists" / suite / component / "binary-amd64"
            index.mkdir(parents=True)
            packages = _output(["apt-ftparchive", "packages", f"pool/{suite}/{component}"], folder)
            (index / "Packages").write_bytes(packages)
            hashes = index / "by-hash" / "SHA256"
            hashes.mkdir(parents=True)
            (hashes / hashlib.sha256(packages).hexdigest()).write_bytes(packages)
        _sign_release(folder / "dists" / suite, key, {
            "Origin": origin, "Label": origin, "Suite": suite, "Codename": suite, "Architectures": "amd64",
            "Components": " ".join(components), "Acquire-By-Hash": "yes",
            "SHA512": "false"})  # as Ubuntu's and Debian's; apt asks for the strongest hash that is listed


def _sign_release(folder: Path, key: Key, release: Mapping[str, str]) -> None:
    options = [word for name, value in release.items() for word in ("-o", f"APT::FTPArchive::Release::{name}={value}")]
    # Written only when made, so that Release does not list itself.
    text = _output(["apt-ftparchive", *options, "release", "."], folder)
    (folder / "Release").write_bytes(text)
    key.sign(folder / "Release", clear=folder / "InRelease", detached=folder / "Release.gpg")


def _output(command: list[str], folder: Path) -> bytes:
    done = subprocess.run(command, cwd=folder, capture_output=True, check=False, timeout=600)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} in {folder} ended with {done.returncode}\n{done.stderr.decode()}")
    return done.stdout
