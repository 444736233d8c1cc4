# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The container toolkit's RPM packages, as stand-ins around the vendor's own programs built from source.

Sources: NVIDIA/nvidia-container-toolkit, folder packaging/rpm (relations, scripts, units in /etc up to 1.19); the
vendor's nvidia-container-toolkit.repo: its metadata is signed, its packages are not.
"""

from __future__ import annotations

from pathlib import Path

from lab.packages.content import compile_library, script, text
from lab.packages.deb import Files, Link
from lab.packages.driver_rpms import LDCONFIG, Rpm, write_rpm
from lab.packages.keys import Key
from lab.packages.toolkit_debs import SETTINGS, SETTINGS_TEXT, UNITS
from lab.tools import run_quietly

# The package's %posttrans; the units are enabled by presets where systemd is up.
POST = """\
/usr/bin/nvidia-ctk --quiet config --config-file=/etc/nvidia-container-runtime/config.toml --in-place
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload || :
    systemctl enable --now nvidia-cdi-refresh.path nvidia-cdi-refresh.service || :
fi
"""
PREUN = """\
[ $1 -ne 0 ] || [ ! -d /run/systemd/system ] || \
systemctl disable --now nvidia-cdi-refresh.path nvidia-cdi-refresh.service || :
"""


def write_toolkit_rpms(versions: tuple[str, ...], tools: dict[str, Path], folder: Path, work: Path, key: Key) -> None:
    """The repository of all releases. tools: as of toolkit_debs; work: a folder for compiled stand-ins."""
    folder.mkdir(parents=True, exist_ok=True)
    for version in versions:
        for rpm in toolkit_rpms(version, tools, work / f"rpm-{version}"):
            write_rpm(rpm, version, folder)
    run_quietly(["createrepo_c", "--quiet", "--no-database", str(folder)], "the toolkit's RPM repository")
    key.sign(folder / "repodata" / "repomd.xml", detached=folder / "repodata" / "repomd.xml.asc")


def toolkit_rpms(version: str, tools: dict[str, Path], built: Path) -> list[Rpm]:
    """The four packages of a release."""
    built.mkdir(parents=True, exist_ok=True)
    library = compile_library("libnvidia-container.so.1", version, built / "libnvidia-container.so")
    same = f"= {version}-1"
    return [
        _rpm("nvidia-container-toolkit", {
            "usr/bin/nvidia-container-runtime-hook": script("nvidia-container-runtime-hook.sh", VERSION=version),
            "usr/bin/nvidia-container-toolkit": Link("nvidia-container-runtime-hook")},
            f"Requires: nvidia-container-toolkit-base {same}", f"Requires: libnvidia-container-tools {same}"),
        _base(version, tools),
        _rpm("libnvidia-container-tools",
             {"usr/bin/nvidia-container-cli": script("nvidia-container-cli.sh", VERSION=version)},
             f"Requires: libnvidia-container1 {same}"),
        Rpm("libnvidia-container1", (), {
            f"usr/lib64/libnvidia-container.so.{version}": library,
            "usr/lib64/libnvidia-container.so.1": Link(f"libnvidia-container.so.{version}")}, LDCONFIG, epoch=0,
            release="1"),
    ]


def _rpm(name: str, files: Files, *relations: str) -> Rpm:
    return Rpm(name, relations, files, epoch=0, release="1")


def _base(version: str, tools: dict[str, Path]) -> Rpm:
    folder = "etc/systemd/system" if version.startswith("1.19.") else "usr/lib/systemd/system"
    units = {f"{folder}/{unit}": text(unit, RESTART="Restart=on-failure\nRestartSec=5\n") for unit in UNITS}
    return Rpm("nvidia-container-toolkit-base", (),
               {**{f"usr/bin/{name}": path for name, path in tools.items()}, **units, SETTINGS: SETTINGS_TEXT},
               {"post": POST, "preun": PREUN}, folders=("etc/nvidia-container-toolkit",), epoch=0, release="1")
