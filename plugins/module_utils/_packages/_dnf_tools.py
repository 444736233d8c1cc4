# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How dnf and rpm are called, and what they print read. PRIVATE to the collection."""

from __future__ import annotations

import os
import re
import time
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import CommandError, HostError, RepositoryError
from ansible_collections.gpuops.nvidia.plugins.module_utils._files import read_text
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages._base import Change, PackageState, Repository
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages._versions import rpm_key
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Completed, Runner

REPOSITORIES = "/etc/yum.repos.d"
KEYS = "/etc/pki/rpm-gpg"
VARIABLES = "/etc/dnf/vars"
CACHE = "/var/cache/dnf"
# Seconds: for another package manager to end; for one transaction with its DKMS builds.
LOCK_LIMIT = 300
TRANSACTION_LIMIT = 3600
# The epoch is left out where there is none, as on the command line.
_EVR = "%|EPOCH?{%{EPOCH}:}|%{VERSION}-%{RELEASE}"
QUERY = ("rpm", "-qa", "--qf", f"%{{NAME}}\\t%{{ARCH}}\\t{_EVR}\\n")
# Without weak dependencies: some of the vendor's bring a desktop or the other flavour's modules. Level 3 prints what
# the solver decides, a line a package. A lock that another holds ends dnf, so that the waiting is ours and bounded.
_OPTIONS = ("-y", "-d", "3", "--setopt=install_weak_deps=0", "--setopt=exit_on_lock=1")
_DECISION = re.compile(r"---> Package (\S+)\.([^.\s]+) (\S+) will be (.+)")
# What dnf says of the version that comes; "upgraded", "erased" and "obsoleted" are said of the one that goes.
_COMES = ("installed", "an upgrade", "a downgrade", "reinstalled", "obsoleting")
_GOES = ("erased", "obsoleted")
_LOCKED = re.compile(r".* already locked by \d+|.*can't create transaction lock.*")
# Such packages stand beside each other in several versions (installonlypkgs of dnf.conf(5)).
_SEVERAL = re.compile(r"kernel|gpg-pubkey\Z")


def qualified(name: str, arch: str) -> str:
    """The name, with the architecture where it is not this machine's."""
    return name if arch in (os.uname().machine, "noarch", "(none)") else f"{name}.{arch}"


def parse_state(text: str) -> PackageState:
    """Reads what L(QUERY) prints. A package in two versions is what an upgrade that was cut off leaves."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        name, arch, version = line.split("\t")
        found.setdefault(qualified(name, arch), []).append(version)
    installed, broken = {}, {}
    for name, versions in found.items():
        if len(versions) > 1 and not _SEVERAL.match(name):
            broken[name] = f"installed as {' and '.join(sorted(versions))}"
        else:
            installed[name] = max(versions, key=rpm_key)
    return PackageState(installed, broken)


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
    found: dict[str, set[str]] = {}
    for line in text.splitlines():
        name, arch, epoch, version = line.split("\t")
        found.setdefault(qualified(name, arch), set()).add(version if epoch == "0" else f"{epoch}:{version}")
    return {name: sorted(versions, key=rpm_key, reverse=True) for name, versions in found.items()}


def specs(packages: t.Mapping[str, str]) -> list[str]:
    """C(name-epoch:version-release) for each, the name alone where any version will do; sorted."""
    return [f"{name}-{packages[name]}" if packages[name] else name for name in sorted(packages)]


def dnf(run: Runner, words: t.Sequence[str], wait: float = LOCK_LIMIT, limit: float = TRANSACTION_LIMIT,
        env: t.Mapping[str, str] | None = None) -> Completed:
    """Runs dnf without questions; waits, up to C(wait) seconds, while another package manager holds its lock.

    With C(--assumeno) among the words a transaction that dnf could do is no failure.
    """
    deadline = time.monotonic() + wait
    while True:
        done = run(["dnf", *_OPTIONS, *words], timeout=limit, check=False, env=env)
        if done.rc == 0 or "--assumeno" in words and "Operation aborted" in done.stdout + done.stderr:
            return done
        text = done.stderr + done.stdout
        locked = _LOCKED.search(text)
        if not locked:
            raise CommandError(done.argv, done.rc, done.stdout, done.stderr)
        if time.monotonic() >= deadline:
            raise HostError(f"Another package manager has held its lock for over {wait:.0f} s: "
                            f"{locked.group().strip()}.", "Wait until it has ended, or raise lock_timeout; then run "
                            "again.")
        time.sleep(3)


def problems(text: str) -> str:
    """The lines of dnf's output that say why it cannot."""
    lines = [line.strip() for line in text.splitlines()]
    best = [line for line in lines if re.match(r"(Error:? \S|Problem|- |nothing provides|No match|All matches)", line)]
    return " / ".join(best or [line for line in lines if line][-3:])


def repository_id(repository: Repository) -> str:
    """What dnf calls the repository."""
    return f"gpuops-{repository.name}"


def hold_path(name: str) -> str:
    """The variable of dnf whose value says which packages of a repository of ours are to be seen."""
    return f"{VARIABLES}/gpuops_{name.replace('-', '_')}"


def repository_text(repository: Repository, key: str, extra: t.Sequence[str] = ()) -> bytes:
    """A file of C(yum.repos.d) (dnf.conf(5)). key: path of the armored key, which packages and metadata are signed by.

    What names packages is trusted no less strictly than what is in them: the metadata's signature is always wanted.
    """
    lines = ["# Written by gpuops.nvidia; it goes with the component that uses it.", f"[{repository_id(repository)}]",
             f"name=gpuops.nvidia {repository.name}", f"baseurl={repository.url}", "enabled=1",
             f"gpgcheck={int(repository.signed)}", "repo_gpgcheck=1", f"gpgkey=file://{key}", *extra, ""]
    return "\n".join(lines).encode()


def fetch(run: Runner, url: str, path: str) -> None:
    """Downloads by curl, which rpm depends on, through dnf's proxy. Raises RepositoryError."""
    found = re.search(r"^proxy\s*=\s*(\S+)", read_text("/etc/dnf/dnf.conf") or "", re.MULTILINE)
    proxy = ["--proxy", found.group(1)] if found and found.group(1) != "_none_" else []
    done = run(["curl", "--fail", "--silent", "--show-error", "--location", "--retry", "1", "--max-time", "60", *proxy,
                "--output", path, "--", url], timeout=150, check=False)
    if done.rc != 0:
        lines = (done.stderr or done.stdout).strip().splitlines() or [f"curl ended with {done.rc}"]
        raise RepositoryError(f"{url} cannot be fetched: {lines[-1].rstrip('.')}.",
                              "Check the URL, the network and the proxy in /etc/dnf/dnf.conf from this host.", url=url)
