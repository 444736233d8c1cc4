# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The images that lab hosts start from, one a kind: Debian 12 with systemd, made a bare GPU host of a distribution.

The kinds for other distributions have the os-release of that distribution and its package manager (as Debian packages
it), whose database lists the packages of such a host; the rest is Debian. The kind trixie is Debian 13 with Docker and
Podman.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from lab.host import engine
from lab.nvml.build import build as build_nvml
from lab.tools import alone, cache_root, cached, run_quietly

HERE = Path(__file__).resolve().parent / "image"
SUITE = "bookworm"
# tcc is the smallest C compiler: dkms depends on one, and nothing here compiles.
INCLUDE = ("systemd", "systemd-sysv", "dbus", "openssh-server", "python3", "kmod", "procps", "iproute2",
           "ca-certificates", "containerd", "runc", "pciutils", "make", "dkms", "tcc", "less")
# By kind, what its package manager and what that needs are called in Debian.
DEFAULT = "debian12"
KINDS = {"debian12": (), "debian12user": ("sudo",), "ubuntu2404": (),
         "rocky9": ("dnf", "dnf-plugins-core", "rpm", "curl"),
         "sles15": ("zypper", "libzypp-config", "rpm", "curl"),
         "slurm": ("munge", "slurm-client", "slurmctld", "slurmd"),
         "trixie": ("docker.io", "docker-cli", "podman", "crun", "rootlesskit", "slirp4netns", "uidmap")}
SUITES = {"trixie": "trixie"}
WITHOUT = ("/usr/share/man/*", "/usr/share/doc/*", "/usr/share/locale/*")


def rootfs(kind: str = DEFAULT) -> Path:
    """A tar of the root file system of a kind, made by mmdebstrap once (about a minute)."""
    include, suite = (*INCLUDE, *KINDS[kind]), SUITES.get(kind, SUITE)
    options = ["--variant=minbase", "--components=main", "--aptopt=Apt::Install-Recommends \"false\"",
               *(f"--dpkgopt=path-exclude={path}" for path in WITHOUT), f"--include={','.join(include)}"]

    def make(folder: Path) -> None:
        print(f"making the hosts' root file system: Debian {suite} with {', '.join(include)}", flush=True)
        run_quietly(["mmdebstrap", *options, "--format=tar", suite, str(folder / "root.tar")],
                    "the hosts' root file system")

    return cached("rootfs", [suite.encode(), *(option.encode() for option in options)],
                  make) / "root.tar"


def key() -> Path:
    """The private SSH key that opens every lab host."""
    folder = cache_root() / "ssh"
    folder.mkdir(mode=0o700, exist_ok=True)
    with alone(folder):
        for name in ("id_ed25519", "ssh_host_ed25519_key"):
            if not (folder / name).exists():
                subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "gpuops-lab", "-f",
                                str(folder / name)], check=True, timeout=60)
    return folder / "id_ed25519"


def programs() -> Path:
    """The folder of a host's stand-ins that are written in C."""
    sources = sorted(HERE.glob("*.c"))

    def make(folder: Path) -> None:
        for source in sources:
            run_quietly(["gcc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-o", str(folder / source.stem),
                         str(source)], source.name)

    return cached("host-programs", [source.read_bytes() for source in sources], make)


def image(kind: str = DEFAULT) -> str:
    """The image of a kind, by name; if necessary, it is built from the root file system, our files, the simulator and
    the name of this kernel."""
    base = rootfs(kind)
    nvml = build_nvml()
    ssh = key().parent
    files = sorted(path for path in HERE.rglob("*") if path.is_file()
                   and (path.parent.name != "kinds" or path.stem == kind or path.stem not in KINDS))
    digest = hashlib.sha256(f"{kind} {base} {nvml} {os.uname().release} {key().read_text()}".encode())
    for path in files:
        digest.update(str(path.relative_to(HERE)).encode() + path.read_bytes())
    name = f"localhost/gpuops-host:{digest.hexdigest()[:16]}"
    with alone(cache_root() / f".image-{kind}.lock"):
        if engine.podman("image", "exists", name, check=False).returncode:
            make(name, kind, base, nvml, ssh)
    return name


def make(name: str, kind: str, base: Path, nvml: Path, ssh: Path) -> None:
    """Makes a kind's image."""
    base_name = f"localhost/gpuops-root:{base.parent.name}"
    if engine.podman("image", "exists", base_name, check=False).returncode:
        print("unpacking the root file system", flush=True)
        engine.podman("import", str(base), base_name)
    print(f"making the image of {kind} hosts", flush=True)
    with tempfile.TemporaryDirectory() as made:
        context = Path(made) / "setup"
        shutil.copytree(HERE, context)
        shutil.copy(nvml / "gpusim", context)
        for source in ssh.glob("ssh_host_*"):
            shutil.copy(source, context)
        shutil.copy(ssh / "id_ed25519.pub", context / "authorized_keys")
        for program in programs().iterdir():
            shutil.copy(program, context)
        container = f"gpuops-setup-{kind}-{os.getpid()}"
        try:
            engine.podman("run", "--name", container, "--network", "none", "--volume", f"{context}:/setup:ro",
                          base_name, "sh", "/setup/setup.sh", os.uname().release, kind)
            engine.podman("commit", "--quiet", "--change", "STOPSIGNAL SIGRTMIN+3", container, name)
        finally:
            engine.podman("rm", "--force", container, check=False)
