# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The one ordered list of components: where each can be delivered, what a user may set for it. Pure data. PRIVATE."""

from __future__ import annotations

import typing as t
from dataclasses import dataclass

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import LEVELS


@dataclass(frozen=True)
class Entry:
    """A component as playbooks, inventories and policies name it: a part of the system that one role delivers.

    name: role and plan key; title: for tables; section: where a policy switches it on or off, empty where it is always
    on; places: where it can be delivered; variables: the role's variables that take part in resolving
    (C(driver_version)), as a user sets them in the inventory; secrets: those of which only counts whether they are set.
    """

    name: str
    title: str
    section: str
    places: t.Tuple[str, ...]
    variables: t.Tuple[str, ...] = ()
    secrets: t.Tuple[str, ...] = ()

    @property
    def result(self) -> str:
        """The variable in which the role registers what its module returned: C(driver_result)."""
        return f"{self.name}_result"


_BOTH, _HOST = ("host", "cluster"), ("host",)
# In the order in which they are delivered; removal goes the other way.
COMPONENTS: t.Tuple[Entry, ...] = (
    Entry("nfd", "NFD", "nfd", ("cluster",)),
    Entry("driver", "driver", "driver", _BOTH, (
        "driver_version", "driver_branch", "driver_kernel_module_type", "driver_source", "driver_state",
        "driver_repository_url", "driver_repository_key", "driver_repository_fingerprint", "driver_runfile_src",
        "driver_persistenced", "driver_fabric", "driver_imex_nodes", "driver_peermem",
        "driver_gds", "driver_gdrcopy", "driver_module_parameters", "driver_next_kernel", "driver_lock_timeout",
        "driver_reboot_timeout", "driver_disruption"),
        ("driver_signing_key", "driver_licence_token")),
    Entry("cuda", "CUDA", "cuda", _HOST, ("cuda_version", "cuda_profile")),
    Entry("container_toolkit", "container toolkit", "toolkit", _BOTH, (
        "container_toolkit_version", "container_toolkit_runtime", "container_toolkit_cdi",
        "container_toolkit_set_as_default", "container_toolkit_mode", "container_toolkit_disruption")),
    Entry("validator", "validator", "", _BOTH),
    Entry("device_plugin", "device plugin", "devicePlugin", ("cluster",), ("device_plugin_config",)),
    Entry("feature_discovery", "labels", "gfd", _BOTH, (
        "feature_discovery_mig_strategy", "feature_discovery_sharing")),
    Entry("dcgm", "DCGM", "dcgm", _BOTH, ("dcgm_version", "dcgm_profiling")),
    Entry("dcgm_exporter", "DCGM exporter", "dcgmExporter", _BOTH, (
        "dcgm_exporter_version", "dcgm_exporter_listen", "dcgm_exporter_counters")),
    Entry("mig_manager", "MIG", "migManager", _BOTH, (
        "mig_manager_selected", "mig_manager_config", "mig_manager_config_file", "mig_manager_devices",
        "mig_manager_boot", "mig_manager_disruption")),
    Entry("node_status_exporter", "node status", "nodeStatusExporter", _BOTH, (
        "node_status_exporter_folder", "node_status_exporter_interval")),
)
NAMES: t.Tuple[str, ...] = tuple(component.name for component in COMPONENTS)
IN_CLUSTERS: t.Tuple[Entry, ...] = tuple(component for component in COMPONENTS if "cluster" in component.places)
# On a host labels follow MIG, as they describe its devices, and so does DCGM, which holds the GPUs open.
ON_HOSTS: t.Tuple[Entry, ...] = tuple(
    component for name in ("driver", "container_toolkit", "mig_manager", "feature_discovery", "cuda", "dcgm",
                           "dcgm_exporter", "node_status_exporter", "validator")
    for component in COMPONENTS if component.name == name)
# Those of them that one call of nvidia_software brings, and the variable in which its result is registered.
SOFTWARE: t.Tuple[str, ...] = ("cuda", "dcgm", "dcgm_exporter", "node_status_exporter")
SOFTWARE_RESULT = "software_result"
VARIABLES: t.Tuple[str, ...] = tuple(name for component in COMPONENTS for name in component.variables)
SECRETS: t.Tuple[str, ...] = tuple(name for component in COMPONENTS for name in component.secrets)
# What host variables may be that choose; those of numbers, versions and names are judged where they are used.
CHOICES: t.Dict[str, t.Tuple[str, ...]] = {
    "driver_state": ("present", "absent", "adopted"),
    "driver_kernel_module_type": ("auto", "open", "proprietary"),
    "driver_source": ("auto", "distribution", "cuda_repository", "runfile", "precompiled"),
    "driver_fabric": ("auto", "none"),
    "container_toolkit_runtime": ("auto", "k3s", "rke2", "k0s", "microk8s", "docker", "containerd", "crio", "podman"),
    "container_toolkit_mode": ("auto", "cdi", "legacy"),
    "feature_discovery_mig_strategy": ("none", "single", "mixed"),
    **dict.fromkeys(("driver_disruption", "container_toolkit_disruption", "mig_manager_disruption"), LEVELS),
}
# Those that are more than a word: the type, and what to write.
SHAPES: t.Dict[str, t.Tuple[type, str]] = {
    "driver_imex_nodes": (list, "a list of addresses"),
    "mig_manager_devices": (list, "a list of GPUs, each by PCI address in quotes, index, UUID, PCI device id or model"),
    "driver_module_parameters": (dict, "a mapping of modules to parameters, such as {nvidia: {NVreg_X: 1}}"),
}
# Those that are whole seconds.
SECONDS: t.Tuple[str, ...] = ("driver_lock_timeout", "driver_reboot_timeout")
# What a hybrid placement leaves to hosts of the inventory; a Node that is no such host gets it from the cluster.
HYBRID = ("driver", "container_toolkit", "mig_manager")
WORDS = ("hosts", "cluster", "hybrid")


def by_name(name: str) -> Entry:
    """A component. Raises InputError for a name that is none."""
    for component in COMPONENTS:
        if component.name == name:
            return component
    raise InputError(f"component {name!r} is not known.", f"Choose from {', '.join(NAMES)}.", path="components",
                     value=name, allowed=list(NAMES))


def named(wanted: t.Any, place: str) -> set[str]:
    """The components for which gpu_placement itself names a place."""
    return {name for name, one in wanted.items() if one == place} if isinstance(wanted, dict) else set()


def placements(wanted: t.Any) -> dict[str, str]:
    """C({component: host|cluster|hybrid|none}) of the variable gpu_placement: a word, or a mapping. Raises InputError.

    What a mapping does not name is placed as C(hosts) has it.
    """
    on_hosts = {component.name: "host" if "host" in component.places else "none" for component in COMPONENTS}
    if wanted in (None, "", "hosts"):
        return on_hosts
    in_cluster = {component.name: "cluster" if "cluster" in component.places else "none" for component in COMPONENTS}
    if wanted == "cluster":
        return in_cluster
    if wanted == "hybrid":
        return {**in_cluster, **dict.fromkeys(HYBRID, "hybrid")}
    if not isinstance(wanted, dict):
        raise InputError(f"{wanted!r} is not allowed.",
                         f"Set one of {', '.join(WORDS)}, or a mapping of components to host, cluster or none.",
                         path="gpu_placement", value=wanted, allowed=list(WORDS))
    chosen = on_hosts
    for name, place in wanted.items():
        if name not in NAMES:
            raise InputError(f"component {name!r} is not known.", f"Choose from {', '.join(NAMES)}.",
                             path="gpu_placement", value=name, allowed=list(NAMES))
        allowed = [*by_name(name).places, "none"]
        if place not in allowed:
            raise InputError(f"{place!r} is not allowed.", f"Set {' or '.join(allowed)}.",
                             path=f"gpu_placement.{name}", value=place, allowed=allowed)
        chosen[name] = place
    return chosen
