# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The .run installer: the options of each branch, names of its files, and its record. Pure.

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
# The vendor's data center drivers; the machine's name is in both parts.
_VENDOR = "https://us.download.nvidia.com/tesla/{version}/NVIDIA-Linux-{arch}-{version}.run"
_FILE = re.compile(r"NVIDIA-Linux-(?P<arch>[a-z0-9_]+)-(?P<version>\d{3}\.\d+(?:\.\d+)?)(?:-[a-z0-9-]+)?\.run\Z")
_CHECKSUM = re.compile(r"sha256:([0-9a-fA-F]{64})\Z")
_DIGEST = re.compile(r"([0-9a-fA-F]{64})\b")
# The first versions with an option.
_SKIPS_LOAD = (550, 40, 7)
_HAS_TYPE = (555, 42, 2)
_WORKS_BESIDE = (545, 23, 6)
# The first branch with open modules, and the first that names options for modules in the plural.
_HAS_OPEN = 515
_INSTALLED_LINK, _INSTALLED_FILE, _FORMER_LINK = 0, 1, 2
_NUMBER = re.compile(r"[0-9]{1,9}\Z")
_OCTAL = re.compile(r"[0-7]{1,9}\Z")
_NO_ID = 2**32 - 1  # to chown(2) it is no user and no group


def numbers(version: str) -> tuple[int, ...]:
    """C(595.91.07) as numbers, to compare."""
    return tuple(int(part) for part in version.split("."))


def skips_load(version: str) -> bool:
    """Whether the installer can be kept from loading modules as a test, with other parameters than the host's."""
    return numbers(version) >= _SKIPS_LOAD


def install_options(version: str, flavour: str, key: tuple[str, str] | None = None, beside: bool = False) -> list[str]:
    """The options for an installation without questions.

    key: paths of the secret key and the certificate to sign the modules with. beside: modules of another driver stay
    loaded until a reboot. Raises InputError where the branch has no modules of this flavour, HostError where its
    installer does not work beside loaded ones.
    """
    words = ["--silent", "--dkms", "--no-nouveau-check", *_flavour_options(version, flavour)]
    if skips_load(version):
        words.append("--skip-module-load")
    if beside and numbers(version) < _WORKS_BESIDE:
        raise HostError(f"The installer of {version} does not work while modules are loaded.",
                        "Stop what uses the GPUs, or boot without it, then run again.")
    return words + (["--allow-installation-with-running-driver"] if beside else []) + _key_options(key)


def module_options(version: str, flavour: str, kernel: str, key: tuple[str, str] | None = None) -> list[str]:
    """The options that add the modules for a kernel, registered with DKMS, to an installed driver of this version."""
    only = "--kernel-modules-only" if branch_of(version) >= _HAS_OPEN else "--kernel-module-only"
    return [*install_options(version, flavour, key), only, f"--kernel-name={kernel}"]


def _flavour_options(version: str, flavour: str) -> list[str]:
    if numbers(version) >= _HAS_TYPE:
        return [f"--kernel-module-type={flavour}"]
    if branch_of(version) >= _HAS_OPEN:
        return [f"--kernel-module-build-directory={'kernel-open' if flavour == 'open' else 'kernel'}"]
    if flavour == "open":
        raise InputError(f"Driver {version} has no open kernel modules: they begin with branch {_HAS_OPEN}.",
                         "Use proprietary ones, or a later branch.", path="kernel_module_type", value="open",
                         allowed=["proprietary"])
    return []


def _key_options(key: tuple[str, str] | None) -> list[str]:
    if key is None:
        return []
    return [f"--module-signing-secret-key={key[0]}", f"--module-signing-public-key={key[1]}"]


@dataclass(frozen=True)
class Archive:
    """Where a .run file comes from.

    src: a URL without its query, or an absolute path. sha256: 64 hex digits, empty where not given. query: with its
    question mark; it may hold a signature that is a secret, so it is in no message and no step.
    """

    version: str
    src: str
    sha256: str
    query: str = ""

    @property
    def is_url(self) -> bool:
        """Whether it has to be fetched."""
        return "://" in self.src

    @property
    def digest_url(self) -> str:
        """The file with its digest that the vendor puts beside each archive."""
        return f"{self.src}.sha256sum"


def archive_of(wanted: t.Mapping[str, t.Any] | None, version: str | None, arch: str) -> Archive | None:
    """The archive that the option C(runfile) and the wanted version name; None where neither names a version.

    Raises InputError for what cannot be right.
    """
    given = wanted or {}
    src, checksum = str(given.get("src") or ""), str(given.get("checksum") or "")
    found = _CHECKSUM.match(checksum)
    if checksum and not found:
        raise InputError(f"'{checksum}' is no digest.", "Give sha256: and the 64 hexadecimal digits of the file.",
                         path="runfile.checksum", value=checksum)
    src, mark, query = src.partition("?") if "://" in src else (src, "", "")
    if src:
        version = _version_of(src, version, arch)
    if version is None:
        return None
    return Archive(version, src or _VENDOR.format(version=version, arch=arch), found.group(1).lower() if found else "",
                   mark + query)


def _version_of(src: str, version: str | None, arch: str) -> str | None:
    """The version that the name of the file says, checked against the wanted one; the latter for another name."""
    if not re.match(r"https?://[^/]|/", src) or any(sign.isspace() for sign in src):
        raise InputError(f"'{src}' is neither a URL nor an absolute path.",
                         "Give https://..., http://..., or the path of a file on the host.", path="runfile.src",
                         value=src)
    if re.match(r"https?://[^/]*@", src):
        raise InputError("A URL must not hold a user or password: it is named in results and logs.",
                         "Put the file on the host, and give its path.", path="runfile.src")
    named = _FILE.search(src)
    if not named:
        return version
    if named.group("arch") != arch:
        raise InputError(f"{src} is for {named.group('arch')}, this host is {arch}.", "Give the file for this machine.",
                         path="runfile.src", value=src)
    if version and named.group("version") != version:
        raise InputError(f"{src} is version {named.group('version')}, not {version}.", "Let both agree.",
                         path="runfile.src", value=src, allowed=version)
    return named.group("version")


def version_in(src: str) -> str | None:
    """The version in the name that the vendor gave a file, None for another name."""
    named = _FILE.search(src.partition("?")[0])
    return named.group("version") if named else None


def parse_digest(text: str) -> str | None:
    """The digest in a file as sha256sum(1) writes them, None where it has none."""
    found = _DIGEST.match(text.strip())
    return found.group(1).lower() if found else None


@dataclass(frozen=True)
class Record:
    """What the installer wrote down: the version, paths that it put there, and what stood there before.

    links: path to former target. backups: path to C((file that keeps the former one, mode, uid, gid)).
    folders: made by it.
    """

    version: str
    paths: t.Tuple[str, ...]
    links: t.Mapping[str, str]
    backups: t.Mapping[str, t.Tuple[str, int, int, int]]
    folders: t.Tuple[str, ...]

    @property
    def complete(self) -> bool:
        """Whether it names any file: one that does not is that of an installation cut off."""
        return bool(self.paths)


def parse_record(log: str, folders: str) -> Record | None:
    """Reads the two files of the record, as far as an installer that was killed has written them.

    None where the log has no version: nothing was put anywhere then. Entries that the installer cannot have written are
    left out. Raises HostError where what stands as version is none.
    """
    lines = log.splitlines()
    version = re.search(r"\((\S+)\)\s*\Z", lines[0][-200:]) if lines else None
    if not version:
        return None
    if not re.match(r"[0-9]{1,9}(\.[0-9]{1,9})+\Z", version.group(1)):
        raise HostError(f"{RECORD}, line 1: '{version.group(1)}' is not the version of a driver.",
                        "Somebody has edited that file: correct it, or remove the driver with nvidia-uninstall.",
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
    """Whether it is an absolute path without C(..), as the installer writes them."""
    return text.startswith("/") and ".." not in text.split("/") and "\0" not in text


def _owner(detail: str) -> t.Tuple[int, int, int] | None:
    """(mode, uid, gid) of C(CHECKSUM MODE UID GID), None where it does not say them."""
    words = detail.split()
    numbers = all(word.isdigit() and len(word) < 11 and word.isascii() for word in words[2:])
    if len(words) != 4 or not _OCTAL.match(words[1]) or not numbers:
        return None
    uid, gid = int(words[2]), int(words[3])
    return (int(words[1], 8) & 0o7777, uid, gid) if max(uid, gid) < _NO_ID else None
