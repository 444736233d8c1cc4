# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What belongs to the driver on hosts with NVLink 5 and for GPUDirect, as stand-in Debian packages.

Sources: NVIDIA/gpu-driver-container (which packages such hosts get, and under which names), NVIDIA/gdrcopy, folder
packages (relations, module, udev rule, the list for boot), NVIDIA/gds-nvidia-fs (name and version of the module).
"""

from __future__ import annotations

from pathlib import Path

from lab.packages.content import Driver, compile_library, compile_module, script, text
from lab.packages.deb import Deb, Link
from lab.packages.driver_debs import LDCONFIG, LIBRARIES

NVLSM, GDS, GDRCOPY = "2025.10.14", "2.28.4", "2.5.1"
NODES = """\
# Addresses of the nodes of the IMEX domain, one a line.
"""


def fabric_debs(driver: Driver) -> list[Deb]:
    """The packages that have the driver's version: IMEX and the library for switches of NVLink 5."""
    version = f"{driver.version}-1"
    library = f"libnvsdm.so.{driver.version}"
    return [
        Deb("nvidia-imex", version, files={
            "usr/bin/nvidia-imex": script("nvidia-imex.sh", VERSION=driver.version),
            "lib/systemd/system/nvidia-imex.service": text("nvidia-imex.service"),
            "etc/nvidia-imex/nodes_config.cfg": NODES}, conffiles=["/etc/nvidia-imex/nodes_config.cfg"]),
        Deb("libnvsdm", version, files={f"{LIBRARIES}/{library}": driver.built / "libnvidia-nscq.so",
                                        f"{LIBRARIES}/libnvsdm.so.1": Link(library)}, triggers=LDCONFIG),
    ]


def extra_debs(built: Path) -> list[Deb]:
    """The packages with versions of their own: NVLSM, GPUDirect Storage, GDRCopy. built: folder for compiled files."""
    built.mkdir(parents=True, exist_ok=True)
    library = compile_library("libgdrapi.so.2", GDRCOPY, built / "libgdrapi.so")
    exact = f"(= {GDRCOPY}-1)"
    return [
        Deb("nvlsm", f"{NVLSM}-1", files={"usr/sbin/nvlsm": script("nvlsm.sh"),
                                          "usr/share/nvidia/nvlsm/nvlsm.conf": "# Settings of NVLSM.\n"}),
        # Debian's own; the lab has no mirror of it.
        Deb("infiniband-diags", "44.0-2", files={"usr/sbin/ibstat": script("nvlsm.sh")}),
        Deb("nvidia-gds", f"{GDS}-1", {"Depends": f"nvidia-fs (= {GDS}-1)"}),
        Deb("nvidia-fs", f"{GDS}-1", {"Depends": f"nvidia-fs-dkms (= {GDS}-1)"}),
        _module_deb("nvidia-fs-dkms", "nvidia-fs", GDS, built),
        _module_deb("gdrdrv-dkms", "gdrdrv", GDRCOPY, built),
        Deb("libgdrapi", f"{GDRCOPY}-1", triggers=LDCONFIG, files={
            f"{LIBRARIES}/libgdrapi.so.{GDRCOPY}": library,
            f"{LIBRARIES}/libgdrapi.so.2": Link(f"libgdrapi.so.{GDRCOPY}")}),
        Deb("gdrcopy", f"{GDRCOPY}-1", {"Depends": f"gdrdrv-dkms {exact}, libgdrapi {exact}"}),
    ]


def _module_deb(package: str, module: str, version: str, built: Path) -> Deb:
    source = f"usr/src/{module}-{version}"
    files: dict[str, str | bytes | Path | Link] = {
        f"{source}/dkms.conf": text("extra-dkms.conf", NAME=module, VERSION=version),
        f"{source}/prebuilt/{module}.ko": compile_module(module.replace("-", "_"), version, built / f"{module}.ko")}
    if module == "gdrdrv":
        files["usr/lib/modules-load.d/gdrdrv.conf"] = "gdrdrv\n"
        files["usr/lib/udev/rules.d/70-gdrdrv.rules"] = 'KERNEL=="gdrdrv", MODE="0666"\n'
    return Deb(package, f"{version}-1", {"Depends": "dkms (>= 1.95)"}, files, {
        "postinst": text("extra-dkms.postinst", NAME=module, VERSION=version),
        "prerm": text("extra-dkms.prerm", NAME=module, VERSION=version)})
