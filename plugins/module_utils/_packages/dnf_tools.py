# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How dnf is called, and what it prints read. PRIVATE to the collection."""

from __future__ import annotations

import os
import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import CommandError, HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._files import read_text
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.base import Change, columns
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.rpm import (
    LOCK_LIMIT,
    TRANSACTION_LIMIT,
    newest_first,
    qualified,
    waiting,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Completed, Runner, which

REPOSITORIES = "/etc/yum.repos.d"
VARIABLES = "/etc/dnf/vars"
CACHE = "/var/cache/dnf"
SETTINGS = "/etc/dnf/dnf.conf"
# Without weak dependencies: some of the vendor's bring a desktop or the other flavour's modules. Level 3 prints what
# the solver decides, a line a package. A lock that another holds ends dnf, so that the waiting is ours and bounded.
_OPTIONS = ("-y", "-d", "3", "--setopt=install_weak_deps=0", "--setopt=exit_on_lock=1")
_DECISION = re.compile(r"---> Package (\S+)\.([^.\s]+) (\S+) will be (.+)")
# What dnf says of the version that comes; "upgraded", "erased" and "obsoleted" are said of the one that goes.
_COMES = ("installed", "an upgrade", "a downgrade", "reinstalled", "obsoleting")
_GOES = ("erased", "obsoleted")
_LOCKED = re.compile(r".* already locked by \d+|.*can't create transaction lock.*")


def parse_decisions(text: str, installed: t.Mapping[str, str]) -> list[Change]:
    """Reads the solver's lines. installed: name to version before."""
    after: dict[str, str | None] = {}
    for name, arch, version, fate in _DECISION.findall(text):
        name = qualified(name, arch)
        if fate in _COMES:
            after[name] = version
        elif fate in _GOES:
            after.setdefault(name, None)
    return [Change(name, installed.get(name), version) for name, version in after.items()]


def parse_candidates(text: str) -> dict[str, list[str]]:
    """Reads lines C(name TAB architecture TAB epoch TAB version-release): name to full versions, newest first."""
    found: dict[str, list[str]] = {}
    for name, arch, epoch, version in columns(text, 4, "dnf"):
        found.setdefault(qualified(name, arch), []).append(version if epoch == "0" else f"{epoch}:{version}")
    return newest_first(found)


def specs(packages: t.Mapping[str, str]) -> list[str]:
    """C(name-epoch:version-release) for each, the name alone where any version will do; sorted."""
    return [f"{name}-{packages[name]}" if packages[name] else name for name in sorted(packages)]


def program() -> str:
    """What dnf 4 is called: where dnf is DNF 5, which prints no decisions that can be read, it has another name."""
    path = which("dnf")
    return "dnf4" if path and os.path.basename(os.path.realpath(path)) == "dnf5" else "dnf"


def dnf(run: Runner, words: t.Sequence[str], wait: float = LOCK_LIMIT, limit: float = TRANSACTION_LIMIT,
        env: t.Mapping[str, str] | None = None) -> Completed:
    """Runs dnf without questions; waits, up to C(wait) seconds, while another package manager holds its lock.

    With C(--assumeno) among the words a transaction that dnf could do is no failure.
    """
    def fine(done: Completed) -> bool:
        return done.rc == 0 or "--assumeno" in words and "Operation aborted" in done.stdout + done.stderr

    def locked(done: Completed) -> str:
        found = None if fine(done) else _LOCKED.search(done.stderr + done.stdout)
        return found.group().strip() if found else ""

    name = program()
    done = waiting(lambda: run([name, *_OPTIONS, *words], timeout=limit, check=False, env=env), locked, wait)
    if fine(done):
        return done
    if done.rc == 127:
        raise HostError(f"This host has no {name}: plans are made by dnf 4.",
                        "Install it: dnf install /usr/bin/dnf4 on Fedora, tdnf install dnf on Azure Linux.")
    raise CommandError(done.argv, done.rc, done.stdout, done.stderr)


def problems(text: str) -> str:
    """The lines of dnf's output that say why it cannot."""
    lines = [line.strip() for line in text.splitlines()]
    best = [line for line in lines if re.match(r"(Error:? \S|Problem|- |nothing provides|No match|All matches)", line)]
    return " / ".join(best or [line for line in lines if line][-3:])


def hold_path(name: str) -> str:
    """The variable of dnf whose value says which packages of a repository of ours are to be seen."""
    return f"{VARIABLES}/gpuops_{name.replace('-', '_')}"


def transfer(own: bool) -> dict[str, str]:
    """How dnf is told to fetch, as options of curl. own: from the repository itself, which may ask for a password."""
    told = dict(re.findall(r"^(\w+)[ \t]*=[ \t]*(.*\S)", read_text(SETTINGS) or "", re.MULTILINE))
    found = {"proxy": told["proxy"]} if told.get("proxy", "_none_") != "_none_" else {}
    for option, prefix, wanted in (("proxy-user", "proxy_", bool(found)), ("user", "", own)):
        if wanted and f"{prefix}username" in told:
            found[option] = f"{told[f'{prefix}username']}:{told.get(f'{prefix}password', '')}"
    return found
