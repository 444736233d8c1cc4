# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Units of systemd, as they are."""

from __future__ import annotations

import typing as t
from dataclasses import dataclass

from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Runner


@dataclass(frozen=True)
class Service:
    """A unit. state: C(active), C(inactive), C(failed) ...; enabled: C(enabled), C(disabled) ..., empty if absent.

    One that is masked is C(absent) and C(masked).
    """

    state: str
    enabled: str


# The services of the driver itself.
PERSISTENCED = "nvidia-persistenced.service"
FABRIC_MANAGER = "nvidia-fabricmanager.service"
IMEX = "nvidia-imex.service"
GRIDD = "nvidia-gridd.service"
# Unit file states in which a unit starts at boot, or is started by udev as the distribution's own unit is.
AT_BOOT = ("enabled", "enabled-runtime", "static", "indirect", "alias")


def read_units(run: Runner, units: t.Sequence[str]) -> dict[str, Service]:
    """The state of units, by one systemctl; C(absent) where it does not answer."""
    return parse_units(show_units(run, units), units)


def show_units(run: Runner, units: t.Sequence[str]) -> str:
    """What systemctl prints of units, in their order with an empty line between; empty where it does not answer."""
    return run(["systemctl", "show", *units, "-p", "LoadState,ActiveState,UnitFileState"], check=False).stdout.strip()


def parse_units(text: str, units: t.Sequence[str]) -> dict[str, Service]:
    """The state of units from the text of L(show_units)."""
    found = dict.fromkeys(units, Service("absent", ""))
    for unit, block in zip(units, text.split("\n\n")):
        values = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        if values.get("LoadState") == "loaded":
            found[unit] = Service(values.get("ActiveState", ""), values.get("UnitFileState", ""))
        elif values.get("LoadState") == "masked":
            found[unit] = Service("absent", "masked")
    return found
