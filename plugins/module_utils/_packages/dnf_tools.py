# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs dnf 4 and parses its output."""

from __future__ import annotations

import os
import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import CommandError, HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._files import read_text
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.base import (
    LOCK_LIMIT,
    TRANSACTION_LIMIT,
    Change,
    columns,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.rpm import (
    newest_first,
    qualified,
    retry_while_locked,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Completed, Runner, which

REPOSITORIES = "/etc/yum.repos.d"
VARIABLES = "/etc/dnf/vars"
CACHE = "/var/cache/dnf"
SETTINGS = "/etc/dnf/dnf.conf"
# Weak dependencies of the vendor's packages would install a desktop or the other module type. At level 3, dnf prints a
# line for each decision of its solver. With exit_on_lock, dnf does not wait for a lock; L(dnf) does, with a time limit.
_OPTIONS = ("-y", "-d", "3", "--setopt=install_weak_deps=0", "--setopt=exit_on_lock=1")
_DECISION = re.compile(r"---> Package (\S+)\.([^.\s]+) (\S+) will be (.+)")
# The words of dnf for a version that is installed; "upgraded", "erased" and "obsoleted" are for one that is removed.
_INSTALLED = ("installed", "an upgrade", "a downgrade", "reinstalled", "obsoleting")
_REMOVED = ("erased", "obsoleted")
_LOCKED = re.compile(r".* already locked by \d+|.*can't create transaction lock.*")


def parse_decisions(text: str, installed: t.Mapping[str, str]) -> list[Change]:
    """Parses the decisions of the solver. installed: C({name: version}) before the transaction."""
    after: dict[str, str | None] = {}
    for name, arch, version, fate in _DECISION.findall(text):
        name = qualified(name, arch)
        if fate in _INSTALLED:
            after[name] = version
        elif fate in _REMOVED:
            after.setdefault(name, None)
    return [Change(name, installed.get(name), version) for name, version in after.items()]


def parse_candidates(text: str) -> dict[str, list[str]]:
    """Parses lines C(name TAB architecture TAB epoch TAB version-release). Returns C({name: [full version]}), with the
    newest version first."""
    found: dict[str, list[str]] = {}
    for name, arch, epoch, version in columns(text, 4, "dnf"):
        found.setdefault(qualified(name, arch), []).append(version if epoch == "0" else f"{epoch}:{version}")
    return newest_first(found)


def program() -> str:
    """The command name of dnf 4: C(dnf4) if C(dnf) is DNF 5, which does not print the decisions of its solver."""
    path = which("dnf")
    return "dnf4" if path and os.path.basename(os.path.realpath(path)) == "dnf5" else "dnf"


def dnf(run: Runner, words: t.Sequence[str], wait: float = LOCK_LIMIT, limit: float = TRANSACTION_LIMIT,
        env: t.Mapping[str, str] | None = None) -> Completed:
    """Runs dnf without prompts. wait: maximum seconds to wait for the lock. limit: maximum seconds for the command.

    With C(--assumeno) in words, dnf changes nothing, and this function succeeds if the transaction is possible. Raises
    HostError, CommandError.
    """
    def succeeded(done: Completed) -> bool:
        return done.rc == 0 or "--assumeno" in words and "Operation aborted" in done.stdout + done.stderr

    def locked(done: Completed) -> str:
        found = None if succeeded(done) else _LOCKED.search(done.stderr + done.stdout)
        return found.group().strip() if found else ""

    name = program()
    done = retry_while_locked(lambda: run([name, *_OPTIONS, *words], timeout=limit, check=False, env=env), locked, wait)
    if succeeded(done):
        return done
    if done.rc == 127:
        raise HostError(f"This host has no {name}, but this collection needs dnf 4.",
                        "Install it: dnf install /usr/bin/dnf4 on Fedora, tdnf install dnf on Azure Linux.")
    raise CommandError(done.argv, done.rc, done.stdout, done.stderr)


def problems(text: str) -> str:
    """The lines of the output that contain the reason for a failure."""
    lines = [line.strip() for line in text.splitlines()]
    best = [line for line in lines if re.match(r"(Error:? \S|Problem|- |nothing provides|No match|All matches)", line)]
    return " / ".join(best or [line for line in lines if line][-3:])


def hold_path(name: str) -> str:
    """The path of the dnf variable that lists the visible packages of a repository of this collection."""
    return f"{VARIABLES}/gpuops_{name.replace('-', '_')}"


def transfer(own: bool) -> dict[str, str]:
    """The download settings of dnf as options of curl.

    own: whether the URL belongs to the repository; if so, the options include the user and password.
    """
    settings = dict(re.findall(r"^(\w+)[ \t]*=[ \t]*(.*\S)", read_text(SETTINGS) or "", re.MULTILINE))
    found = {"proxy": settings["proxy"]} if settings.get("proxy", "_none_") != "_none_" else {}
    for option, prefix, wanted in (("proxy-user", "proxy_", bool(found)), ("user", "", own)):
        if wanted and f"{prefix}username" in settings:
            found[option] = f"{settings[f'{prefix}username']}:{settings.get(f'{prefix}password', '')}"
    return found
