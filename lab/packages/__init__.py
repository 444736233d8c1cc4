# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Package repositories in the vendor's layout, with stand-in contents: built by the real tools, signed, cached, served.

``python -m lab.packages build --out DIR`` and ``python -m lab.packages serve --root DIR --bind ADDRESS --port N``.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from lab.packages.archive_debs import debian_archive, ubuntu_archive
from lab.packages.content import FILES, Driver, compile_driver
from lab.packages.cuda_debs import cuda_debs
from lab.packages.dcgm_debs import dcgm_debs, exporter_deb
from lab.packages.deb import Deb, write_archive, write_deb, write_repository
from lab.packages.driver_debs import KEY_FILE, branch_debs, driver_debs, keyring_deb
from lab.packages.driver_rpms import KEY_FILE as RPM_KEY_FILE
from lab.packages.driver_rpms import write_el_repository, write_rpm_repository
from lab.packages.fabric_debs import extra_debs, fabric_debs
from lab.packages.keys import Key, keys
from lab.packages.runfile import write_runfile
from lab.packages.suse_rpms import KEY_FILE as SUSE_KEY_FILE
from lab.packages.suse_rpms import suse_rpms
from lab.packages.toolkit_debs import toolkit_debs
from lab.packages.toolkit_rpms import write_toolkit_rpms
from lab.packages.ubuntu_debs import local_repository_deb, vendor_debs
from lab.tools import cached

# Debian packages that the build needs, and a command of each.
COMMANDS = {"gcc": "gcc", "dpkg-dev": "dpkg-scanpackages", "apt-utils": "apt-ftparchive", "gnupg": "gpg",
            "rpm": "rpmbuild", "createrepo-c": "createrepo_c", "makeself": "makeself"}
NEEDS = tuple(COMMANDS)

DRIVERS = ("580.126.20", "595.80.01", "595.91.07", "610.57.04")
TOOLKITS = ("1.19.1", "1.20.0")
DCGM, EXPORTERS, CUDA_TOOLKITS = ("3.3.9", "4.5.0", "4.6.0"), ("4.7.1", "4.8.3"), ("12.9.1", "13.0.1", "13.0.2")
CUDA_PATH = "compute/cuda/repos/debian12/x86_64/"
TOOLKIT_PATH = "libnvidia-container/stable/deb/amd64/"
TOOLKIT_RPM_PATH = "libnvidia-container/stable/rpm/x86_64/"
RPM_PATH = "compute/cuda/repos/rhel9/x86_64/"
# The releases of the RPM repositories, and those of the self-extracting archives, in a folder for each version.
RPM_DRIVERS = ("580.126.20", "595.91.07")
SUSE_PATH = "compute/cuda/repos/sles15/x86_64/"
SUSE_DRIVERS = ("580.126.20", "595.80.01", "595.91.07")
# 535's installer lacks options that later ones have.
RUNFILES = ("535.309.01", "580.126.20", "595.91.07")
RUNFILE_PATH = "tesla/"
# NVIDIA's repository for Ubuntu: names with and without the branch. The archives: what Ubuntu's began with and what its
# updates have; Debian's only release.
UBUNTU_CUDA_PATH = "compute/cuda/repos/ubuntu2404/x86_64/"
UBUNTU_CUDA_DRIVERS = ("580.126.20", "595.80.01", "595.91.07")
# The vendor's local installer: a package with a repository in it, as it was before there were pinning packages.
UBUNTU_LOCAL = "595.91.07"
# What serves the repositories is no part of them.
SERVING = ("serve.py", "__main__.py")
UBUNTU_PATH, DEBIAN_PATH = "ubuntu/", "debian/"
UBUNTU_FORMER, UBUNTU_DRIVERS, DEBIAN_DRIVER = "580.105.08", ("580.126.20", "595.80.01"), "535.309.01"
TOOLKIT_KEY_PATH = "libnvidia-container/gpgkey"


@dataclass(frozen=True)
class Repositories:
    """The result of a build. root: the folder to serve; all paths are relative to it; fingerprints: 40 hex digits."""

    root: Path
    cuda_path: str
    cuda_key_path: str
    cuda_fingerprint: str
    toolkit_path: str
    toolkit_rpm_path: str
    toolkit_key_path: str
    toolkit_fingerprint: str
    rpm_path: str
    rpm_key_path: str
    rpm_fingerprint: str
    suse_path: str
    suse_key_path: str
    suse_fingerprint: str
    runfile_path: str
    ubuntu_cuda_path: str
    ubuntu_cuda_key_path: str
    ubuntu_cuda_fingerprint: str
    ubuntu_path: str
    debian_path: str
    archive_key_path: str


def missing_needs() -> list[str]:
    """The Debian packages in NEEDS whose command is missing."""
    return [package for package, command in COMMANDS.items() if not shutil.which(command)]


def build(out: Path, nvml: Path, tools: dict[str, Path]) -> Repositories:
    """Creates all repositories in out, without other files; does nothing if it already contains the same ones.

    nvml: folder with libnvidia-ml.so.1 and nvidia-smi. tools: path of each program in lab.tools.NAMES.
    """
    if missing := missing_needs():
        raise SystemExit(f"the lab's packages cannot be built: install {' '.join(missing)}")
    signing = keys()
    sources = [path for path in sorted(FILES.parent.rglob("*")) if path.is_file() and "__pycache__" not in path.parts
               and path.name not in SERVING]
    inputs = [*sources, nvml / "libnvidia-ml.so.1", nvml / "nvidia-smi", *(tools[name] for name in sorted(tools))]
    digests = [hashlib.sha256(path.read_bytes()).digest() for path in inputs]
    digests += [os.uname().release.encode(), *(key.fingerprint.encode() for key in signing.values())]
    made = cached("packages", digests, lambda folder: _make(folder, nvml, tools))
    if not out.exists() or not (out / ".from").is_file() or (out / ".from").read_text() != made.name:
        _mirror(made, out)
    return Repositories(out, CUDA_PATH, f"{CUDA_PATH}{KEY_FILE}", signing["cuda"].fingerprint,
                        TOOLKIT_PATH, TOOLKIT_RPM_PATH, TOOLKIT_KEY_PATH, signing["toolkit"].fingerprint,
                        RPM_PATH, f"{RPM_PATH}{RPM_KEY_FILE}", signing["rpm"].fingerprint,
                        SUSE_PATH, f"{SUSE_PATH}{SUSE_KEY_FILE}", signing["rpm"].fingerprint,
                        RUNFILE_PATH,
                        UBUNTU_CUDA_PATH, f"{UBUNTU_CUDA_PATH}{KEY_FILE}", signing["cuda"].fingerprint,
                        UBUNTU_PATH, DEBIAN_PATH, "archive.gpg")


def _mirror(made: Path, out: Path) -> None:
    """Copies with hard links if the file system allows: a copy of the cache needs no space."""
    def place(source: str, target: str) -> None:
        try:
            os.link(source, target)
        except OSError:
            shutil.copy2(source, target)

    if out.exists():
        if any(out.iterdir()) and not (out / ".from").is_file():
            raise SystemExit(f"{out} holds other things; name an empty or a new folder with --out")
        shutil.rmtree(out)
    shutil.copytree(made, out, copy_function=place)
    (out / ".from").write_text(made.name)


def _make(folder: Path, nvml: Path, tools: dict[str, Path]) -> None:
    signing = keys()
    with tempfile.TemporaryDirectory(prefix="gpuops-packages-") as temporary:
        work = Path(temporary)
        drivers = [compile_driver(version, nvml, work / version) for version in DRIVERS]
        beside = [deb for version in DCGM for deb in dcgm_debs(version, work / "dcgm")]
        beside += [exporter_deb(version, work / "dcgm") for version in EXPORTERS]
        beside += [deb for release in CUDA_TOOLKITS for deb in cuda_debs(release)]
        beside += extra_debs(work / "extras")
        write_repository([*_cuda_debs(drivers, signing["cuda"]), *beside], folder / CUDA_PATH, signing["cuda"],
                         {"Origin": "NVIDIA", "Label": "NVIDIA CUDA", "Architectures": "amd64"})
        shutil.copy(signing["cuda"].public, folder / CUDA_PATH / KEY_FILE)
        shutil.copy(signing["cuda"].binary, folder / CUDA_PATH / "cuda-archive-keyring.gpg")
        debs = [deb for version in TOOLKITS for deb in toolkit_debs(version, tools, work / version)]
        write_repository(debs, folder / TOOLKIT_PATH, signing["toolkit"],
                         {"Origin": "NVIDIA", "Label": "libnvidia-container", "Architectures": "amd64"})
        shutil.copy(signing["toolkit"].public, folder / TOOLKIT_KEY_PATH)
        write_toolkit_rpms(TOOLKITS, tools, folder / TOOLKIT_RPM_PATH, work, signing["toolkit"])
        write_el_repository([driver for driver in drivers if driver.version in RPM_DRIVERS], folder / RPM_PATH,
                            signing["rpm"])
        write_rpm_repository([(rpm, driver.version) for driver in drivers if driver.version in SUSE_DRIVERS
                              for rpm in suse_rpms(driver)], folder / SUSE_PATH, signing["rpm"])
        shutil.copy(signing["rpm"].public, folder / SUSE_PATH / SUSE_KEY_FILE)
        known = {driver.version: driver for driver in drivers}
        for version in RUNFILES:
            driver = known.get(version) or compile_driver(version, nvml, work / version)
            write_runfile(driver, folder / RUNFILE_PATH / version)
            known[version] = driver
        known[UBUNTU_FORMER] = compile_driver(UBUNTU_FORMER, nvml, work / UBUNTU_FORMER)
        _write_ubuntu_and_debian(known, folder, signing)
    shutil.copy(signing["stranger"].public, folder / "wrong-key")


def _write_ubuntu_and_debian(known: dict[str, Driver], folder: Path, signing: dict[str, Key]) -> None:
    write_repository(vendor_debs([known[version] for version in UBUNTU_CUDA_DRIVERS]), folder / UBUNTU_CUDA_PATH,
                     signing["cuda"], {"Origin": "NVIDIA", "Label": "NVIDIA CUDA", "Architectures": "amd64"})
    shutil.copy(signing["cuda"].public, folder / UBUNTU_CUDA_PATH / KEY_FILE)
    local = [deb for deb in vendor_debs([known[UBUNTU_LOCAL]]) if "pinning" not in deb.name]
    with tempfile.TemporaryDirectory(prefix="gpuops-local-") as temporary:
        write_repository(local, Path(temporary), signing["cuda"], {"Origin": "NVIDIA", "Label": "NVIDIA driver local"})
        write_deb(local_repository_deb(UBUNTU_LOCAL, Path(temporary), signing["cuda"]), folder)
    ubuntu = ubuntu_archive(known[UBUNTU_FORMER], [known[version] for version in UBUNTU_DRIVERS])
    write_archive(ubuntu, folder / UBUNTU_PATH, signing["archive"], "Ubuntu")
    write_archive(debian_archive(known[DEBIAN_DRIVER]), folder / DEBIAN_PATH, signing["archive"], "Debian")
    shutil.copy(signing["archive"].binary, folder / "archive.gpg")


def _cuda_debs(drivers: list[Driver], key: Key) -> list[Deb]:
    oldest: dict[int, str] = {}
    for driver in drivers:
        oldest.setdefault(driver.branch, driver.version)
    return [keyring_deb(key), *(deb for branch in oldest for deb in branch_debs(branch, oldest[branch])),
            *(deb for driver in drivers for deb in (*driver_debs(driver), *fabric_debs(driver)))]


def describe(repositories: Repositories) -> str:
    """The same as JSON."""
    return json.dumps({name: str(value) for name, value in vars(repositories).items()}, indent=2)
