# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""DCGM's Debian packages, as stand-ins: the one of DCGM 3, the split ones of DCGM 4, and the exporter.

Sources: NVIDIA/DCGM (cmake/packaging.cmake: names, relations, epoch 1), NVIDIA/dcgm-exporter (packaging: unit, files).
"""

from __future__ import annotations

from pathlib import Path

from lab.packages.content import compile_daemon, text
from lab.packages.deb import Deb, Files
from lab.packages.driver_debs import unit_scripts

# CUDA levels of drivers for which DCGM 4 has libraries of their own.
LEVELS = (11, 12, 13)
UNIT = "nvidia-dcgm.service"
EXPORTER_UNIT = "nvidia-dcgm-exporter.service"
COUNTERS = "etc/dcgm-exporter/default-counters.csv"


def dcgm_debs(version: str, built: Path) -> list[Deb]:
    """All packages of one release. built: folder for the compiled daemon."""
    full = f"1:{version}-1"
    engine: Files = {"usr/bin/nv-hostengine": compile_daemon("hostengine.c", version, built),
                     f"lib/systemd/system/{UNIT}": text(UNIT)}
    if version.startswith("3."):
        return [Deb("datacenter-gpu-manager", full.removesuffix("-1"), files=engine, scripts=unit_scripts(UNIT))]
    own = "datacenter-gpu-manager-4-proprietary"
    core = f"datacenter-gpu-manager-4-core (= {full})"
    rival = dict.fromkeys(("Conflicts", "Replaces"), "datacenter-gpu-manager")
    debs = [Deb("datacenter-gpu-manager-4-core", full, rival, engine, unit_scripts(UNIT)),
            Deb(own, full, {"Depends": core})]
    for level in LEVELS:
        debs.append(Deb(f"datacenter-gpu-manager-4-cuda{level}", full, {
            "Depends": core, "Provides": "datacenter-gpu-manager-4",
            "Recommends": f"{own}-cuda{level} (= {full})"}))
        debs.append(Deb(f"{own}-cuda{level}", full, {
            "Depends": f"{own} (= {full}), datacenter-gpu-manager-4-cuda{level} (= {full})"}))
    return debs


def exporter_deb(version: str, built: Path) -> Deb:
    """The exporter, whose version is its own."""
    return Deb("datacenter-gpu-manager-exporter", f"{version}-1", {"Depends": "datacenter-gpu-manager-4-core"},
               {"usr/bin/dcgm-exporter": compile_daemon("dcgm-exporter.c", version, built),
                COUNTERS: text(Path(COUNTERS).name), f"lib/systemd/system/{EXPORTER_UNIT}": text(EXPORTER_UNIT)},
               {"postinst": text("reload.postinst")}, [f"/{COUNTERS}"])
