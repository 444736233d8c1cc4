# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""NVIDIA's self-extracting driver archive, as a stand-in made by makeself."""

from __future__ import annotations

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


def runfile_name(version: str) -> str:
    """As the vendor names it."""
    return f"NVIDIA-Linux-x86_64-{version}.run"


def write_runfile(driver: Driver, folder: Path) -> None:
    """Make the archive of a release in a folder."""
    header, count = REFUSAL.subn(lambda _match: PASS_ON, HEADER.read_text(encoding="utf-8"))
    if count != 1:
        raise SystemExit(f"{HEADER} is of a makeself that this lab does not know: its refusal of options was not found")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gpuops-run-") as temporary:
        work = Path(temporary)
        name = runfile_name(driver.version)
        root = work / name.removesuffix(".run")
        programs: Files = {
            "nvidia-installer": script("nvidia-installer.sh", VERSION=driver.version),
            "nvidia-modprobe": script("nvidia-modprobe.sh"), "nvidia-smi": driver.nvml / "nvidia-smi",
            "nvidia-persistenced": driver.built / "persistenced"}
        lay_out({
            **programs, "disable-nouveau.conf": DENIED, "libnvidia-ml.so": driver.nvml / "libnvidia-ml.so.1",
            **{f"{stem}.so": driver.built / f"{stem}.so" for stem in ("libcuda", "libnvidia-ptxjitcompiler")},
            **{f"firmware/gsp_{chip}.bin": f"stand-in {driver.version}\n" for chip in ("tu10x", "ga10x")},
            **{f"{sub}/dkms.conf": dkms_conf(driver.version) for sub in ("kernel", "kernel-open")},
            **{f"{sub}/prebuilt/{module}.ko": driver.module(flavour, module) for module in MODULES
               for sub, flavour in (("kernel", "proprietary"), ("kernel-open", "open"))}}, root)
        for program in programs:
            (root / program).chmod(0o755)
        (work / "header.sh").write_text(header, encoding="utf-8")
        run_quietly(["makeself", "--quiet", "--sha256", "--nox11", "--noprogress", "--complevel", "1", "--header",
                     str(work / "header.sh"), "--tar-extra", "--owner=0 --group=0", str(root), str(folder / name),
                     f"NVIDIA Accelerated Graphics Driver for Linux-x86_64 {driver.version} (stand-in)",
                     "./nvidia-installer"], f"the archive {name}")
