# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""NVIDIA's self-extracting driver archives, as stand-ins made by makeself, each with its digest beside it."""

from __future__ import annotations

import hashlib
import re
import tempfile
from pathlib import Path

from lab.packages.content import MODULES, Driver, dkms_conf, script
from lab.packages.deb import Files, lay_out
from lab.packages.driver_debs import DENIED
from lab.tools import run_quietly

HEADER = Path("/usr/share/makeself/makeself-header.sh")
# makeself refuses options that it does not know; the vendor's header hands them to the installer, and knows one more.
REFUSAL = re.compile(r"^    -\*\)\n\techo Unrecognized flag.*?;;\n", re.MULTILINE | re.DOTALL)
PASS_ON = """\
    -x | --extract-only)
\tscript=""
\tcleanup_script=""
\tkeep=y
\tshift
\t;;
    -*)
\tbreak ;;
"""
POWERD = """\
[Unit]
Description=nvidia-powerd service

[Service]
Type=oneshot
ExecStart=/bin/true
"""
# The first branch with open kernel modules: NVIDIA/open-gpu-kernel-modules, its first release.
FIRST_OPEN = 515


def runfile_name(version: str) -> str:
    """The file name as the vendor chooses it."""
    return f"NVIDIA-Linux-x86_64-{version}.run"


def write_runfile(driver: Driver, folder: Path) -> None:
    """Make the archive of a release in a folder, and the file with its SHA-256."""
    header, count = REFUSAL.subn(lambda _match: PASS_ON, HEADER.read_text(encoding="utf-8"))
    if count != 1:
        raise SystemExit(f"{HEADER} is of a makeself that this lab does not know: its refusal of options was not found")
    folder.mkdir(parents=True, exist_ok=True)
    name = runfile_name(driver.version)
    with tempfile.TemporaryDirectory(prefix="gpuops-run-") as temporary:
        work = Path(temporary)
        root = work / name.removesuffix(".run")
        lay_out(_content(driver), root)
        for program in _programs(driver):
            (root / program).chmod(0o755)
        (work / "header.sh").write_text(header, encoding="utf-8")
        run_quietly(["makeself", "--quiet", "--sha256", "--nox11", "--noprogress", "--complevel", "1", "--header",
                     str(work / "header.sh"), "--tar-extra", "--owner=0 --group=0", str(root), str(folder / name),
                     f"NVIDIA Accelerated Graphics Driver for Linux-x86_64 {driver.version} (stand-in)",
                     "./nvidia-installer"], f"the archive {name}")
    digest = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    (folder / f"{name}.sha256sum").write_text(f"{digest}  {name}\n", encoding="utf-8")


def _programs(driver: Driver) -> Files:
    return {"nvidia-installer": script("nvidia-installer.sh", VERSION=driver.version),
            "nvidia-modprobe": script("nvidia-modprobe.sh"), "nvidia-smi": driver.nvml / "nvidia-smi",
            "nvidia-persistenced": driver.built / "persistenced"}


def _content(driver: Driver) -> Files:
    flavours = {"kernel": "proprietary"}
    if driver.branch >= FIRST_OPEN:
        flavours["kernel-open"] = "open"
    return {
        **_programs(driver), "disable-nouveau.conf": DENIED, "libnvidia-ml.so": driver.nvml / "libnvidia-ml.so.1",
        "nvidia.icd": "libnvidia-opencl.so.1\n", "nvidia-powerd.service": POWERD,
        "nvidia-persistenced-init.tar.bz2": "stand-in of the samples for init systems\n",
        **{f"{stem}.so": driver.built / f"{stem}.so" for stem in ("libcuda", "libnvidia-ptxjitcompiler")},
        **{f"firmware/gsp_{chip}.bin": f"stand-in {driver.version}\n" for chip in ("tu10x", "ga10x")},
        **{f"{folder}/dkms.conf": dkms_conf(driver.version) for folder in flavours},
        **{f"{folder}/prebuilt/{module}.ko": driver.module(flavour, module)
           for module in MODULES for folder, flavour in flavours.items()}}
