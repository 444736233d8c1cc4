# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""NVIDIA's driver packages for SUSE Linux Enterprise 15, as stand-ins.

Names: SUSE's notes on the installation of NVIDIA drivers (G06 in July 2025, G07 in 2026); files of each: specs of
openSUSE's nvidia-driver-G06. No package has an epoch, and only conflicting files separate generations.
"""

from __future__ import annotations

from lab.packages.content import MODULES, Driver, dkms_conf, script, text
from lab.packages.deb import Files
from lab.packages.driver_debs import ALTERNATE, ALTERNATE_TEXT, DENIED
from lab.packages.driver_rpms import DKMS_POST, DKMS_PREUN, LDCONFIG, UNIT_POST, UNIT_PREUN, Rpm, library

KEY_FILE = "D42D0685.pub"
# The first branch of G07.
OPEN_FROM = 595
PERSISTENCED = ("usr/bin/nvidia-persistenced", "usr/lib/systemd/system/nvidia-persistenced.service",
                "usr/lib/systemd/system-preset/70-nvidia-driver-cuda.preset")


def suse_rpms(driver: Driver) -> list[Rpm]:
    """All packages of one driver release. DKMS builds the modules; SUSE's built and signed ones are empty packages."""
    last = "G07" if driver.branch >= OPEN_FROM else "G06"
    daemon: Files = dict(zip(PERSISTENCED, (driver.built / "persistenced", text("nvidia-persistenced.service"),
                                            "enable nvidia-persistenced.service\n")))
    unit = {"post": UNIT_POST, "preun": UNIT_PREUN}
    tools: Files = {"usr/bin/nvidia-smi": driver.nvml / "nvidia-smi",
                    "usr/bin/nvidia-modprobe": script("nvidia-modprobe.sh"), ALTERNATE: ALTERNATE_TEXT}
    libraries: Files = {**library(driver, "libcuda", driver.built / "libcuda.so"),
                        **library(driver, "libnvidia-ml", driver.nvml / "libnvidia-ml.so.1"),
                        **library(driver, "libnvidia-ptxjitcompiler", driver.built / "libnvidia-ptxjitcompiler.so")}
    found = [
        _rpm(f"nvidia-compute-{last}", (), libraries, LDCONFIG),
        _rpm(f"nvidia-compute-utils-{last}", (f"Requires: nvidia-compute-{last} = {driver.version}",),
             tools if last == "G07" else {**tools, **daemon}, {} if last == "G07" else unit, ("usr/lib/nvidia",)),
        _rpm(f"nvidia-open-driver-{last}-signed-cuda-kmp-default",
             (f"Conflicts: nvidia-open-driver-{last}", f"Conflicts: nvidia-driver-{last}")),
        _kernel(driver, last, "open"),
    ]
    if last == "G07":
        return [*found, _rpm("nvidia-persistenced", (), daemon, unit)]
    return [*found, _kernel(driver, last, "proprietary")]


def _kernel(driver: Driver, last: str, flavour: str) -> Rpm:
    name, rival = f"nvidia-open-driver-{last}", f"nvidia-driver-{last}"
    if flavour != "open":
        name, rival = rival, name
    source = f"usr/src/nvidia-{driver.version}"
    return _rpm(name, (f"Conflicts: {rival}", "Requires: dkms"), {
        f"{source}/dkms.conf": dkms_conf(driver.version), "usr/lib/modprobe.d/nvidia.conf": DENIED,
        **{f"{source}/prebuilt/{module}.ko": driver.module(flavour, module) for module in MODULES}},
        {"post": DKMS_POST.format(version=driver.version), "preun": DKMS_PREUN.format(version=driver.version)},
        (source, f"{source}/prebuilt"))


def _rpm(name: str, relations: tuple[str, ...] = (), files: Files | None = None, scripts: dict[str, str] | None = None,
         folders: tuple[str, ...] = ()) -> Rpm:
    return Rpm(name, relations, files or {}, scripts or {}, folders, epoch=0, release="1")
