# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The options of the .run installer for each branch, the names of its files, and its record. Pure.

Sources: NVIDIA/nvidia-installer, option_table.h of 470.256.02 to 590.48.01 (options), backup.c (record).
"""

from __future__ import annotations

import os
import re
import typing as t
from dataclasses import dataclass

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.spec import branch_of
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError, InputError

RECORD = "/var/lib/nvidia/log"
RECORD_FOLDERS = "/var/lib/nvidia/dirs"
# The URL of NVIDIA's data center drivers.
_VENDOR = "https://us.download.nvidia.com/tesla/{version}/NVIDIA-Linux-{arch}-{version}.run"
_FILE = re.compile(r"NVIDIA-Linux-(?P<arch>[a-z0-9_]+)-(?P<version>\d{3}\.\d+(?:\.\d+)?)(?:-[a-z0-9-]+)?\.run\Z")
_CHECKSUM = re.compile(r"sha256:([0-9a-fA-F]{64})\Z")
_DIGEST = re.compile(r"([0-9a-fA-F]{64})\b")
# The first versions that support --skip-module-load, --kernel-module-type and --allow-installation-with-running-driver.
_SKIPS_LOAD = (550, 40, 7)
_HAS_TYPE = (555, 42, 2)
_WORKS_LOADED = (545, 23, 6)
# The first branch with open modules, and with options whose names contain "modules" instead of "module".
_HAS_OPEN = 515
_INSTALLED_LINK, _INSTALLED_FILE, _FORMER_LINK = 0, 1, 2
_NUMBER = re.compile(r"[0-9]{1,9}\Z")
_OCTAL = re.compile(r"[0-7]{1,9}\Z")
_NO_ID = 2**32 - 1  # chown(2) interprets this number as "no change"


def numbers(version: str) -> tuple[int, ...]:
    """The parts of a version such as C(595.91.07), for comparisons."""
    return tuple(int(part) for part in version.split("."))


def skips_load(version: str) -> bool:
    """Whether the installer has an option to skip its test, which loads modules without the parameters of the host."""
    return numbers(version) >= _SKIPS_LOAD


def install_options(version: str, flavour: str, key: tuple[str, str] | None = None, loaded: bool = False,
                    compute_only: bool = False) -> list[str]:
    """The options of an installation without prompts.

    key: the paths of the private key and the certificate with which modules are signed. loaded: whether modules of
    another driver stay loaded until a reboot. compute_only: whether to omit the libraries of OpenGL. Raises InputError
    if the branch does not have this module type, and HostError if its installer does not work while modules are loaded.
    """
    words = ["--silent", "--dkms", "--no-nouveau-check", *_flavour_options(version, flavour)]
    if compute_only:
        words.append("--no-opengl-files")
    if skips_load(version):
        words.append("--skip-module-load")
    if loaded and numbers(version) < _WORKS_LOADED:
        raise HostError(f"The installer of {version} does not work while modules are loaded.",
                        "Stop the GPU clients, or reboot without them, then run again.")
    if loaded:
        words.append("--allow-installation-with-running-driver")
    return words + ([f"--module-signing-secret-key={key[0]}", f"--module-signing-public-key={key[1]}"] if key else [])


def module_options(version: str, flavour: str, kernel: str, key: tuple[str, str] | None = None) -> list[str]:
    """The options that add DKMS modules for a kernel to an installed driver of this version."""
    only = "--kernel-modules-only" if branch_of(version) >= _HAS_OPEN else "--kernel-module-only"
    return [*install_options(version, flavour, key), only, f"--kernel-name={kernel}"]


def _flavour_options(version: str, flavour: str) -> list[str]:
    if numbers(version) >= _HAS_TYPE:
        return [f"--kernel-module-type={flavour}"]
    if branch_of(version) >= _HAS_OPEN:
        return [f"--kernel-module-build-directory={'kernel-open' if flavour == 'open' else 'kernel'}"]
    if flavour == "open":
        raise InputError(f"Driver {version} has no open kernel modules.",
                         f"Use proprietary modules, or a branch from {_HAS_OPEN} on.", path="kernel_module_type",
                         value="open", allowed=["proprietary"])
    return []


@dataclass(frozen=True)
class Archive:
    """The origin of a .run file.

    src: a URL without its query, or an absolute path. sha256: 64 hexadecimal digits, empty if it is not set. query: the
    query of the URL with its question mark. It can be a secret signature, so no message or step contains it.
    """

    version: str
    src: str
    sha256: str
    query: str = ""

    @property
    def is_url(self) -> bool:
        """Whether the file must be downloaded."""
        return "://" in self.src

    @property
    def digest_url(self) -> str:
        """The URL of the digest file that NVIDIA publishes for each archive."""
        return f"{self.src}.sha256sum"


def archive_of(wanted: t.Mapping[str, str] | None, version: str | None, arch: str) -> Archive | None:
    """The archive according to the option C(runfile) and the desired version; None if neither contains a version.

    Raises InputError for an invalid option.
    """
    given = wanted or {}
    src, checksum = str(given.get("src") or ""), str(given.get("checksum") or "")
    found = _CHECKSUM.match(checksum)
    if checksum and not found:
        raise InputError(f"'{checksum}' is not a digest.", "Set sha256: and 64 hexadecimal digits.",
                         path="runfile.checksum", value=checksum)
    src, mark, query = src.partition("?") if "://" in src else (src, "", "")
    if src:
        version = _version_of(src, version, arch)
    if version is None:
        return None
    return Archive(version, src or _VENDOR.format(version=version, arch=arch), found.group(1).lower() if found else "",
                   mark + query)


def _version_of(src: str, version: str | None, arch: str) -> str | None:
    """The version in the file name, or the desired version if the file name contains none. Raises InputError if they
    differ."""
    if not re.match(r"https?://[^/]|/", src) or any(sign.isspace() for sign in src):
        raise InputError(f"'{src}' is neither a URL nor an absolute path.",
                         "Set https://..., http://..., or the path of a file on the host.", path="runfile.src",
                         value=src)
    if re.match(r"https?://[^/]*@", src):
        raise InputError("A URL must not contain a user or password: it is in results and logs.",
                         "Copy the file to the host, and set its path.", path="runfile.src")
    named = _FILE.search(src)
    if not named:
        return version
    if named.group("arch") != arch:
        raise InputError(f"{src} is for {named.group('arch')}, but this host is {arch}.", f"Set the file for {arch}.",
                         path="runfile.src", value=src)
    if version and named.group("version") != version:
        raise InputError(f"{src} is version {named.group('version')}, not {version}.",
                         "Correct runfile.src or version.", path="runfile.src", value=src, allowed=version)
    return named.group("version")


def version_in(src: str) -> str | None:
    """The version in the original name of a .run file, None for other names."""
    named = _FILE.search(src.partition("?")[0])
    return named.group("version") if named else None


def parse_digest(text: str) -> str | None:
    """The digest in the output of sha256sum(1), None if there is none."""
    found = _DIGEST.match(text.strip())
    return found.group(1).lower() if found else None


@dataclass(frozen=True)
class Record:
    """The record that the installer writes: the version, the installed paths, and the former files.

    links: the targets of former links, by path. backups: C((copy of the former file, mode, uid, gid)), by path.
    folders: folders that the installer created.
    """

    version: str
    paths: t.Tuple[str, ...]
    links: t.Mapping[str, str]
    backups: t.Mapping[str, t.Tuple[str, int, int, int]]
    folders: t.Tuple[str, ...]

    @property
    def complete(self) -> bool:
        """Whether the record contains paths. After an interrupted installation it may contain none."""
        return bool(self.paths)


def parse_record(log: str, folders: str) -> Record | None:
    """Parses the two files of the record, which may be incomplete after an interrupted installation.

    Returns None if the log contains no version, because then no file was installed. Invalid entries are ignored. Raises
    HostError for an invalid version.
    """
    lines = log.splitlines()
    version = re.search(r"\((\S+)\)\s*\Z", lines[0][-200:]) if lines else None
    if not version:
        return None
    if not re.match(r"[0-9]{1,9}(\.[0-9]{1,9})+\Z", version.group(1)):
        raise HostError(f"{RECORD}, line 1: '{version.group(1)}' is not the version of a driver.",
                        "The file was edited: correct it, or remove the driver with nvidia-uninstall.",
                        path=RECORD)
    paths: list[str] = []
    links: dict[str, str] = {}
    backups: dict[str, t.Tuple[str, int, int, int]] = {}
    rest = iter(lines[2:])
    for line in rest:
        number, _colon, path = line.partition(": ")
        detail = next(rest, None)
        if detail is None or not _NUMBER.match(number):
            break
        if int(number) == _FORMER_LINK:
            next(rest, None)
        if not _is_path(path):
            continue
        if int(number) in (_INSTALLED_LINK, _INSTALLED_FILE):
            paths.append(path)
        elif int(number) == _FORMER_LINK:
            links[path] = detail
        else:
            owner = _owner(detail)
            if owner:
                backups[path] = (f"{os.path.dirname(RECORD)}/{number}", *owner)
    made = sorted({line for line in folders.splitlines() if _is_path(line)}, reverse=True)
    return Record(version.group(1), tuple(dict.fromkeys(paths)), links, backups, tuple(made))


def _is_path(text: str) -> bool:
    """Whether a text is an absolute path without C(..), which is the format in which the installer writes paths."""
    return text.startswith("/") and ".." not in text.split("/") and "\0" not in text


def _owner(detail: str) -> t.Tuple[int, int, int] | None:
    """C((mode, uid, gid)) from a line C(CHECKSUM MODE UID GID), None for other lines."""
    words = detail.split()
    numbers = all(word.isdigit() and len(word) < 11 and word.isascii() for word in words[2:])
    if len(words) != 4 or not _OCTAL.match(words[1]) or not numbers:
        return None
    uid, gid = int(words[2]), int(words[3])
    return (int(words[1], 8) & 0o7777, uid, gid) if max(uid, gid) < _NO_ID else None
