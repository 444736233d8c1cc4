# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads the state of systemd units."""

from __future__ import annotations

import typing as t
from dataclasses import dataclass

from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Runner


@dataclass(frozen=True)
class Service:
    """The state of a unit: C(active), C(inactive), C(failed) ... enabled: C(enabled), C(disabled) ..., or empty.

    The state of a masked or missing unit is C(absent); enabled is then C(masked) or empty.
    """

    state: str
    enabled: str


# The services of the driver.
PERSISTENCED = "nvidia-persistenced.service"
FABRIC_MANAGER = "nvidia-fabricmanager.service"
IMEX = "nvidia-imex.service"
GRIDD = "nvidia-gridd.service"
# Unit file states of units that start at boot, or that udev starts, as units of distributions.
AT_BOOT = ("enabled", "enabled-runtime", "static", "indirect", "alias")


def read_units(run: Runner, units: t.Sequence[str]) -> dict[str, Service]:
    """The state of units, read with one systemctl; C(absent) if it fails."""
    return parse_units(show_units(run, units), units)


def show_units(run: Runner, units: t.Sequence[str]) -> str:
    """The output of systemctl show for units, separated by empty lines; empty if it fails."""
    return run(["systemctl", "show", *units, "-p", "LoadState,ActiveState,UnitFileState"], check=False).stdout.strip()


def parse_units(text: str, units: t.Sequence[str]) -> dict[str, Service]:
    """Parses the output of L(show_units)."""
    found = dict.fromkeys(units, Service("absent", ""))
    for unit, block in zip(units, text.split("\n\n")):
        values = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        if values.get("LoadState") == "loaded":
            found[unit] = Service(values.get("ActiveState", ""), values.get("UnitFileState", ""))
        elif values.get("LoadState") == "masked":
            found[unit] = Service("absent", "masked")
    return found
