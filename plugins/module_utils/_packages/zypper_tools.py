# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs zypper and parses its output."""

from __future__ import annotations

import re
import typing as t
from xml.etree import ElementTree

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import CommandError, HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._files import read_text
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.base import (
    LOCK_LIMIT,
    TRANSACTION_LIMIT,
    Change,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.rpm import (
    newest_first,
    qualified,
    retry_while_locked,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Completed, Runner

REPOSITORIES = "/etc/zypp/repos.d"
CACHE = "/var/cache/zypp"
SETTINGS = "/etc/zypp/zypp.conf"
# Files in this folder declare which packages must not be installed (zypp.conf, solver.checkSystemFileDir).
CHECKS = "/etc/zypp/systemCheck.d"
PROXY = "/etc/sysconfig/proxy"
# The metadata of the host's repositories is not downloaded. That of this collection's repository is downloaded
# separately.
STALE = "--no-refresh"
# Plans can contain downgrades. The vendor's recommended packages would install a desktop. Modules and libraries can
# come from different vendors, SUSE and NVIDIA.
INSTALL = ("install", "--oldpackage", "--no-recommends", "--auto-agree-with-licenses", "--allow-vendor-change")
# zypper(8), EXIT CODES: a reboot or restart is requested, another repository was skipped, or the script of a package
# failed. The module checks the results of the scripts later.
_FINE = (0, 102, 103, 106, 107)
_LOCKED, _MISSING = 7, 127
# No downloaded package list contains the package.
NOT_FOUND = 104


def zypper(run: Runner, words: t.Sequence[str], wait: float = LOCK_LIMIT, limit: float = TRANSACTION_LIMIT,
           env: t.Mapping[str, str] | None = None) -> Completed:
    """Runs zypper without prompts. wait: maximum seconds to wait for the lock. limit: maximum seconds for the command.
    Raises HostError, CommandError."""
    def locked(done: Completed) -> str:
        return problems(done.stdout + done.stderr) if done.rc == _LOCKED else ""

    command = ["zypper", "--non-interactive", "--xmlout", *words]
    done = retry_while_locked(lambda: run(command, timeout=limit, check=False, env=env), locked, wait)
    if done.rc == _MISSING:
        raise HostError("This host has no zypper.", "Install zypper, or use source runfile.")
    if done.rc not in _FINE:
        raise CommandError(done.argv, done.rc, done.stdout, done.stderr)
    return done


def problems(text: str) -> str:
    """The reasons for a failure in the XML output of zypper: errors, and the problems of the solver without its
    solutions."""
    found = re.findall(r'<message type="error">(.*?)</message>|<description>(Problem: .*?)(?:\n Solution|</desc)', text,
                       re.DOTALL)
    lines = [" ".join((error or problem).split()) for error, problem in found]
    raw = " / ".join(lines) or " ".join(text.split())[-300:]
    for code, sign in (("&apos;", "'"), ("&quot;", '"'), ("&lt;", "<"), ("&gt;", ">"), ("&amp;", "&")):
        raw = raw.replace(code, sign)
    return raw.rstrip(".")


def parse_changes(text: str) -> list[Change]:
    """Parses the summary of a transaction in the XML output of zypper."""
    changes = []
    for section in _tree(text).iter("install-summary"):
        for kind in section:
            for package in kind.iter("solvable"):
                if package.get("type") == "package":
                    name, version = _name(package), package.get("edition")
                    changes.append(Change(name, version, None) if kind.tag == "to-remove" else
                                   Change(name, package.get("edition-old"), version))
    return changes


def parse_candidates(text: str) -> dict[str, list[str]]:
    """Parses C(zypper search --details). Returns C({name: [full version]}), with the newest version first."""
    found: dict[str, list[str]] = {}
    for package in _tree(text).iter("solvable"):
        found.setdefault(_name(package), []).append(str(package.get("edition")))
    return newest_first(found)


def _name(package: ElementTree.Element) -> str:
    return qualified(str(package.get("name")), str(package.get("arch")))


def _tree(text: str) -> ElementTree.Element:
    try:
        return ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise HostError(f"zypper did not print XML ({error}): {text.strip()[-300:]}", "Check /var/log/zypper.log.") \
            from error


def proxy() -> dict[str, str]:
    """The proxy in SUSE's network settings, as an option of curl; empty if proxies are disabled."""
    text = read_text(PROXY) or ""
    found = re.search(r'^HTTPS?_PROXY="([^"]+)"', text, re.MULTILINE)
    return {"proxy": found.group(1)} if found and re.search(r'^PROXY_ENABLED="?yes', text, re.MULTILINE) else {}
