# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The container toolkit's Debian packages, as stand-ins around the vendor's own programs built from source.

Sources: NVIDIA/nvidia-container-toolkit, folder packaging/debian (relations, what postinst does, that nothing removes
config.toml at purge, units in /etc up to 1.19 and in /lib with debhelper's handling from 1.20).
"""

from __future__ import annotations

from pathlib import Path

from lab.packages.content import compile_library, script, text
from lab.packages.deb import Deb, Link
from lab.packages.driver_debs import LDCONFIG, LIBRARIES, unit_scripts

UNITS = ("nvidia-cdi-refresh.service", "nvidia-cdi-refresh.path")
SETTINGS = "etc/nvidia-container-toolkit/nvidia-cdi-refresh.env"
SETTINGS_TEXT = """\
# Environment of nvidia-cdi-refresh.service: NVIDIA_CTK_... variables that override the options of its command.
"""


def toolkit_debs(version: str, tools: dict[str, Path], built: Path) -> list[Deb]:
    """The four packages of a release.

    tools: path of nvidia-ctk, nvidia-cdi-hook and nvidia-container-runtime. built: folder for compiled stand-ins.
    """
    built.mkdir(parents=True, exist_ok=True)
    full = f"{version}-1"
    library = compile_library("libnvidia-container.so.1", version, built / "libnvidia-container.so")
    return [
        Deb("nvidia-container-toolkit", full,
            {"Depends": f"nvidia-container-toolkit-base (= {full}), libnvidia-container-tools (= {full})",
             "Breaks": "nvidia-container-runtime (<= 3.5.0-1), nvidia-container-runtime-hook",
             "Replaces": "nvidia-container-runtime (<= 3.5.0-1), nvidia-container-runtime-hook"},
            {"usr/bin/nvidia-container-runtime-hook": script("nvidia-container-runtime-hook.sh", VERSION=version),
             "usr/bin/nvidia-container-toolkit": Link("nvidia-container-runtime-hook")}),
        _base(version, tools),
        Deb("libnvidia-container-tools", full, {"Depends": f"libnvidia-container1 (= {full})"},
            {"usr/bin/nvidia-container-cli": script("nvidia-container-cli.sh", VERSION=version)}),
        Deb("libnvidia-container1", full, triggers=LDCONFIG,
            files={f"{LIBRARIES}/libnvidia-container.so.{version}": library,
                   f"{LIBRARIES}/libnvidia-container.so.1": Link(f"libnvidia-container.so.{version}")}),
    ]


def _base(version: str, tools: dict[str, Path]) -> Deb:
    old = version.startswith("1.19.")
    folder = "etc/systemd/system" if old else "lib/systemd/system"
    # The refresh tries again from 1.18.2 on, but for 1.19.0.
    units = {f"{folder}/{unit}": text(unit, RESTART="Restart=on-failure\nRestartSec=5\n") for unit in UNITS}
    conffiles = [f"/{SETTINGS}", *(f"/{path}" for path in units if old)]
    write = text("toolkit-base.postinst")
    if old:
        scripts = {"postinst": write + text("toolkit-refresh-119.postinst")}
    else:
        moved = text("toolkit-moved-units.sh")
        scripts = unit_scripts(" ".join(UNITS), moved + write)
        scripts = {**scripts, "preinst": moved, "prerm": moved + scripts["prerm"], "postrm": moved + scripts["postrm"]}
    return Deb("nvidia-container-toolkit-base", f"{version}-1",
               files={**{f"usr/bin/{name}": path for name, path in tools.items()}, **units, SETTINGS: SETTINGS_TEXT},
               scripts=scripts, conffiles=conffiles)
