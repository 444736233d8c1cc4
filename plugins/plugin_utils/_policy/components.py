# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The one ordered list of components, and what a user may set for each on a host. Pure data. PRIVATE."""

from __future__ import annotations

import typing as t
from dataclasses import dataclass

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError


@dataclass(frozen=True)
class Component:
    """A part of a host that one role delivers.

    name: role and plan key; title: for tables; section: where a policy switches it on or off; variables: the role's
    variables that take part in resolving (C(driver_version)), as a user sets them in the inventory; result: the
    variable in which the role registers what its module returned.
    """

    name: str
    title: str
    section: str
    variables: t.Tuple[str, ...]

    @property
    def result(self) -> str:
        """C(driver_result)."""
        return f"{self.name}_result"


# In the order in which they are delivered; removal goes the other way.
COMPONENTS: t.Tuple[Component, ...] = (
    Component("driver", "driver", "driver", (
        "driver_version", "driver_branch", "driver_kernel_module_type", "driver_source", "driver_state")),
    Component("container_toolkit", "container toolkit", "toolkit", (
        "container_toolkit_version", "container_toolkit_runtime", "container_toolkit_cdi",
        "container_toolkit_set_as_default", "container_toolkit_mode")),
    Component("mig_manager", "MIG", "migManager", (
        "mig_manager_selected", "mig_manager_config", "mig_manager_config_file")),
    Component("feature_discovery", "labels", "gfd", (
        "feature_discovery_mig_strategy", "feature_discovery_sharing")),
)
NAMES: t.Tuple[str, ...] = tuple(component.name for component in COMPONENTS)
VARIABLES: t.Tuple[str, ...] = tuple(name for component in COMPONENTS for name in component.variables)


def by_name(name: str) -> Component:
    """A component. Raises InputError for a name that is none."""
    for component in COMPONENTS:
        if component.name == name:
            return component
    raise InputError(f"component {name!r} is not known.", f"Choose from {', '.join(NAMES)}.", path="components",
                     value=name, allowed=list(NAMES))


def placements(wanted: t.Any) -> dict[str, str]:
    """C({component: host|none}) of the variable gpu_placement: C(hosts), or a mapping. Raises InputError.

    Delivery in a cluster is not there yet and is refused, never skipped.
    """
    if wanted in (None, "hosts"):
        return dict.fromkeys(NAMES, "host")
    if wanted in ("cluster", "hybrid"):
        raise InputError(f"{wanted!r} is not supported by this version of the collection.",
                         "Set gpu_placement: hosts; delivery in a cluster comes with a later version.",
                         path="gpu_placement", value=wanted, allowed=["hosts"])
    if not isinstance(wanted, dict):
        raise InputError(f"{wanted!r} is not allowed.", "Set 'hosts', or a mapping of components to 'host' or 'none'.",
                         path="gpu_placement", value=wanted, allowed=["hosts"])
    chosen = dict.fromkeys(NAMES, "host")
    for name, place in wanted.items():
        by_name(name)
        if place not in ("host", "none"):
            raise InputError(f"{place!r} is not supported by this version of the collection.",
                             "Set 'host' or 'none'; delivery in a cluster comes with a later version.",
                             path=f"gpu_placement.{name}", value=place, allowed=["host", "none"])
        chosen[name] = place
    return chosen
