# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The filter disturbing_components: the components that may need disruptive steps on a host."""

from __future__ import annotations

import typing as t

COMPONENTS = ("driver", "container_toolkit", "mig_manager")  # those that can disturb what runs on a host
Data = t.Mapping[str, t.Any]


def disturbing_components(host: Data, level: str, driver: Data, tags: t.Collection[str] = ("all",),
                          skipped: t.Collection[str] = ()) -> list[str]:
    """Returns the components that may need disruptive steps on a host, in the order of L(COMPONENTS).

    A component with the level never needs no second pass. Neither does a driver that waits for a reboot that this run
    must not do, or for a person who enrols a key at the console.
    """
    parts = {name: host[name] for name in COMPONENTS if name in host}
    chosen = [name for name, part in parts.items()
              if part.get("placement") == "host" and part.get("disruption") != "never"
              and ("all" in tags or name in tags) and name not in skipped]
    # The level of the driver may be stricter than that of the run.
    if "driver" in chosen and _waits(str(parts["driver"].get("disruption") or level), driver):
        chosen.remove("driver")
    return chosen


def _waits(level: str, driver: Data) -> bool:
    """Whether a driver waits for a reboot or a person. driver: the result of nvidia_driver, empty if there is none."""
    pending = driver.get("pending") or [{}]
    return pending[0].get("needs") == "reboot" and (
        level != "reboot" or bool((driver.get("mok") or {}).get("pending")))


class FilterModule:
    """How Ansible finds the filter."""

    def filters(self) -> dict[str, t.Callable[..., list[str]]]:
        """Maps the names of the filters to their functions."""
        return {"disturbing_components": disturbing_components}
