# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The ordered list of components: where each can be delivered, and which variables it has. Pure data. PRIVATE."""

from __future__ import annotations

import typing as t
from dataclasses import dataclass

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import LEVELS
from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit.options import CHOOSING, RUNTIMES


@dataclass(frozen=True)
class Entry:
    """A component, which one role delivers.

    name: the name of its role, and its key in plans; title: its name in tables; section: the section of the policy that
    switches it on and off, empty if it is always on; places: where it can be delivered; variables: the role's variables
    that the plan depends on, such as C(driver_version); secrets: variables of which the plan only depends on whether
    they are set; stage: on hosts, components are delivered in the order of their stages, 0 for those that change
    drivers, runtimes or MIG, 1 for those that describe or open the GPUs, 2 for those that check them.
    """

    name: str
    title: str
    section: str
    places: t.Tuple[str, ...]
    variables: t.Tuple[str, ...] = ()
    secrets: t.Tuple[str, ...] = ()
    stage: int = 1

    @property
    def result(self) -> str:
        """The variable in which the role registers the result of its module, such as C(driver_result)."""
        return f"{self.name}_result"


_BOTH, _HOST = ("host", "cluster"), ("host",)
# In the order of delivery in a cluster, which is that of the GPU Operator. Removal has the reverse order.
COMPONENTS: t.Tuple[Entry, ...] = (
    Entry("nfd", "NFD", "nfd", ("cluster",)),
    Entry("driver", "driver", "driver", _BOTH, (
        "driver_version", "driver_branch", "driver_kernel_module_type", "driver_source", "driver_installation",
        "driver_state",
        "driver_repository_url", "driver_repository_key", "driver_repository_fingerprint", "driver_runfile_src",
        "driver_persistenced", "driver_fabric", "driver_imex_nodes", "driver_fabric_manager_settings",
        "driver_peermem", "driver_gds", "driver_gdrcopy", "driver_module_parameters", "driver_next_kernel",
        "driver_hold_kernel", "driver_image", "driver_licence_feature_type", "driver_lock_timeout",
        "driver_reboot_timeout", "driver_disruption"),
        ("driver_signing_key", "driver_signing_certificate", "driver_signing_password", "driver_licence_token",
         "driver_licence_settings", "driver_proxy", "driver_runfile_checksum"), stage=0),
    Entry("container_toolkit", "container toolkit", "toolkit", _BOTH, (
        "container_toolkit_version", "container_toolkit_runtime", "container_toolkit_config_path",
        "container_toolkit_drop_in_path", "container_toolkit_cdi", "container_toolkit_cdi_management",
        "container_toolkit_nri", "container_toolkit_set_as_default",
        "container_toolkit_nvidia_runtime_name", "container_toolkit_nvidia_runtime_path",
        "container_toolkit_rootless_users", "container_toolkit_mode", "container_toolkit_settings",
        "container_toolkit_repository_url", "container_toolkit_repository_key",
        "container_toolkit_repository_fingerprint", "container_toolkit_disruption"),
        ("container_toolkit_proxy",), stage=0),
    Entry("validator", "validator", "", _BOTH, stage=2),
    Entry("device_plugin", "device plugin", "devicePlugin", ("cluster",), ("device_plugin_config",)),
    Entry("feature_discovery", "labels", "gfd", _BOTH, (
        "feature_discovery_mig_strategy", "feature_discovery_sharing", "feature_discovery_target",
        "feature_discovery_node_name", "feature_discovery_slurm_folder")),
    Entry("cuda", "CUDA", "cuda", _HOST, ("cuda_version", "cuda_profile")),
    Entry("dcgm", "DCGM", "dcgm", _BOTH, ("dcgm_version", "dcgm_profiling", "dcgm_args", "dcgm_env")),
    Entry("dcgm_exporter", "DCGM exporter", "dcgmExporter", _BOTH, (
        "dcgm_exporter_version", "dcgm_exporter_listen", "dcgm_exporter_counters", "dcgm_exporter_args",
        "dcgm_exporter_env", "dcgm_exporter_job_mapping", "dcgm_exporter_web_config")),
    Entry("mig_manager", "MIG", "migManager", _BOTH, (
        "mig_manager_selected", "mig_manager_config", "mig_manager_config_file", "mig_manager_devices",
        "mig_manager_boot", "mig_manager_disruption"), stage=0),
    Entry("node_status_exporter", "node status", "nodeStatusExporter", _BOTH, (
        "node_status_exporter_folder", "node_status_exporter_interval")),
)
NAMES: t.Tuple[str, ...] = tuple(component.name for component in COMPONENTS)
IN_CLUSTERS: t.Tuple[Entry, ...] = tuple(component for component in COMPONENTS if "cluster" in component.places)
ON_HOSTS: t.Tuple[Entry, ...] = tuple(sorted(
    (component for component in COMPONENTS if "host" in component.places), key=lambda component: component.stage))
# Components on hosts that one task with nvidia_software installs, and the variable that has the result of this task.
SOFTWARE: t.Tuple[str, ...] = ("cuda", "dcgm", "dcgm_exporter", "node_status_exporter")
SOFTWARE_RESULT = "software_result"
# The role variables that the inventory sets for a host, by name; a value can be of any type until it is checked.
HostVars = t.Mapping[str, object]
VARIABLES: t.Tuple[str, ...] = tuple(name for component in COMPONENTS for name in component.variables)
SECRETS: t.Tuple[str, ...] = tuple(name for component in COMPONENTS for name in component.secrets)
# Variables that are true by default, so false changes something.
TRUE_BY_DEFAULT: t.Tuple[str, ...] = (
    "driver_persistenced", "driver_next_kernel", "container_toolkit_cdi", "mig_manager_boot", "dcgm_profiling")
# Allowed values of host variables. Numbers, versions and names are checked where they are used.
CHOICES: t.Dict[str, t.Tuple[str, ...]] = {
    "driver_state": ("present", "absent", "adopted", "rolled_back"),
    "driver_kernel_module_type": ("auto", "open", "proprietary"),
    "driver_source": ("auto", "distribution", "cuda_repository", "runfile", "precompiled"),
    "driver_installation": ("auto", "full", "compute-only"),
    "driver_fabric": ("auto", "none"),
    "container_toolkit_runtime": (*CHOOSING, *RUNTIMES),
    "container_toolkit_mode": ("auto", "cdi", "legacy"),
    "feature_discovery_mig_strategy": ("none", "single", "mixed"),
    **dict.fromkeys(("driver_disruption", "container_toolkit_disruption", "mig_manager_disruption"), LEVELS),
}
# Host variables that take one of their CHOICES or several of them, as a list or a text with commas.
SEVERAL: t.Tuple[str, ...] = ("container_toolkit_runtime",)
# Types of host variables that are lists or mappings, and what to write.
SHAPES: t.Dict[str, t.Tuple[type, str]] = {
    "driver_imex_nodes": (list, "a list of addresses"),
    "driver_fabric_manager_settings": (dict, "a mapping of settings to values, such as {FABRIC_MODE: 1}"),
    "dcgm_args": (list, "a list of arguments"),
    "dcgm_env": (dict, "a mapping of variables to values, such as {DCGM_SUPPORT_NON_NVIDIA_CPU: 1}"),
    "container_toolkit_rootless_users": (list, "a list of users of the host"),
    "container_toolkit_settings": (dict, "a mapping of settings to values, nested or with dotted names"),
    "dcgm_exporter_args": (list, "a list of arguments"),
    "dcgm_exporter_env": (dict, "a mapping of variables to values, such as {DCGM_EXPORTER_INTERVAL: 10000}"),
    "mig_manager_devices": (list, "a list of GPUs, each by PCI address in quotes, index, UUID, PCI device id or model"),
    "driver_module_parameters": (dict, "a mapping of modules to parameters, such as {nvidia: {NVreg_X: 1}}"),
}
# Host variables in whole seconds.
SECONDS: t.Tuple[str, ...] = ("driver_lock_timeout", "driver_reboot_timeout")
# With a hybrid placement, hosts of the inventory get these as hosts, and all other Nodes get them from the cluster.
HYBRID = ("driver", "container_toolkit", "mig_manager")
WORDS = ("hosts", "cluster", "hybrid")


def by_name(name: str) -> Entry:
    """A component. Raises InputError if no component has the name."""
    for component in COMPONENTS:
        if component.name == name:
            return component
    raise _unknown(name, "components")


def _unknown(name: object, path: str) -> InputError:
    return InputError(f"component {name!r} is not known.", f"Choose from {', '.join(NAMES)}.", path=path, value=name,
                      allowed=list(NAMES))


def named(wanted: object, place: str) -> set[str]:
    """The components that gpu_placement (wanted) names with this place."""
    return {name for name, one in wanted.items() if one == place} if isinstance(wanted, dict) else set()


def placements(wanted: object) -> dict[str, str]:
    """C({component: host|cluster|hybrid|none}) of gpu_placement (wanted), a word or a mapping. Raises InputError.

    A component that a mapping does not name is placed as with C(hosts).
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
            raise _unknown(name, "gpu_placement")
        allowed = [*by_name(name).places, "none"]
        if place not in allowed:
            raise InputError(f"{place!r} is not allowed.", f"Set {' or '.join(allowed)}.",
                             path=f"gpu_placement.{name}", value=place, allowed=allowed)
        chosen[name] = place
    return chosen
