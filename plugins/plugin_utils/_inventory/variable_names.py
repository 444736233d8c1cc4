# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The variables of users and of this collection's roles, which the facts of a host must not set. Pure. PRIVATE.

Facts take precedence over the inventory and over the defaults of roles, and a compromised host can set any fact. A test
compares this list with roles and playbooks.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import nearest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import components

# inventory_dir is a variable of Ansible, to which relative paths of users refer.
NAMES = frozenset({
    "container_toolkit_cdi", "container_toolkit_cdi_management", "container_toolkit_config_path",
    "container_toolkit_disruption", "container_toolkit_drop_in_path", "container_toolkit_mode",
    "container_toolkit_nri", "container_toolkit_nvidia_runtime_name", "container_toolkit_nvidia_runtime_path",
    "container_toolkit_plan", "container_toolkit_preview", "container_toolkit_proxy",
    "container_toolkit_repository_fingerprint", "container_toolkit_repository_key", "container_toolkit_repository_url",
    "container_toolkit_result", "container_toolkit_rootless_users", "container_toolkit_runtime",
    "container_toolkit_set_as_default", "container_toolkit_settings", "container_toolkit_version", "cuda_plan",
    "cuda_profile", "cuda_result", "cuda_version", "dcgm_args", "dcgm_env", "dcgm_exporter_args",
    "dcgm_exporter_counters", "dcgm_exporter_dcgm_args", "dcgm_exporter_dcgm_env", "dcgm_exporter_dcgm_plan",
    "dcgm_exporter_dcgm_profiling", "dcgm_exporter_dcgm_version", "dcgm_exporter_env", "dcgm_exporter_job_mapping",
    "dcgm_exporter_listen", "dcgm_exporter_plan", "dcgm_exporter_result", "dcgm_exporter_version",
    "dcgm_exporter_web_config", "dcgm_plan", "dcgm_profiling", "dcgm_result", "dcgm_version", "deploy_labels_result",
    "device_plugin_config", "device_plugin_result", "driver_applied", "driver_branch", "driver_check",
    "driver_disruption", "driver_fabric", "driver_fabric_manager_settings", "driver_facts", "driver_gdrcopy",
    "driver_gds", "driver_hold_kernel", "driver_image", "driver_image_gpus", "driver_imex_nodes",
    "driver_installation", "driver_kernel_module_type", "driver_licence_feature_type",
    "driver_licence_settings", "driver_licence_token", "driver_lock_timeout", "driver_module_parameters",
    "driver_next_kernel", "driver_peermem", "driver_persistenced", "driver_plan",
    "driver_preview", "driver_proxy", "driver_reboot_timeout", "driver_repository_fingerprint",
    "driver_repository_key", "driver_repository_url", "driver_result", "driver_runfile_checksum", "driver_runfile_src",
    "driver_signing_certificate", "driver_signing_key", "driver_signing_password", "driver_source", "driver_state",
    "driver_version", "feature_discovery_mig_strategy", "feature_discovery_node_name", "feature_discovery_plan",
    "feature_discovery_result", "feature_discovery_sharing", "feature_discovery_slurm_folder",
    "feature_discovery_state", "feature_discovery_target", "gpu_all_components", "gpu_changed", "gpu_check_metrics",
    "gpu_check_pods", "gpu_context", "gpu_dcgm_level", "gpu_support_bundle",
    "gpu_disruption", "gpu_disturbing", "gpu_host_plan", "gpu_image_registry", "gpu_kubeconfig",
    "gpu_maintenance_windows", "gpu_max_fail_percentage", "gpu_max_unavailable", "gpu_mig_layout", "gpu_mig_level",
    "gpu_mig_nodes", "gpu_mig_state", "gpu_mig_waits", "gpu_monitoring", "gpu_namespace", "gpu_node_name",
    "gpu_node_os", "gpu_node_unknown", "gpu_placement", "gpu_plan", "gpu_policy", "gpu_problems", "gpu_profile",
    "gpu_proxy", "gpu_pull_secrets", "gpu_release", "gpu_remove_timeout", "gpu_removed_components", "gpu_render_to",
    "gpu_report_html", "gpu_report_json", "gpu_results", "gpu_selected_components", "gpu_settings",
    "gpu_settings_boot", "gpu_settings_compared", "gpu_settings_differing", "gpu_settings_disruption",
    "gpu_settings_entries", "gpu_settings_level", "gpu_settings_preview", "gpu_settings_result", "gpu_sharing",
    "gpu_disturbing_steps", "gpu_drained", "gpu_known", "gpu_later", "gpu_left", "gpu_level", "gpu_refused",
    "gpu_remediate_again", "gpu_remedies", "gpu_reset", "gpu_reset_preview", "gpu_reset_result", "gpu_sick",
    "gpu_skipped", "gpu_waiting",
    "gpu_slurm", "gpu_slurm_controller", "gpu_slurm_node_name",
    "gpu_software_components", "gpu_startup_taint", "gpu_status_fail_on", "gpu_status_metrics_file",
    "gpu_strict", "gpu_take_over", "gpu_undisturbed", "gpu_upgrade",
    "gpu_upgrade_first", "gpu_waits", "hand_back_file", "hand_back_from", "hand_back_result", "inventory_dir",
    "maintenance_answers", "maintenance_changed", "maintenance_changing", "maintenance_compared",
    "maintenance_compares",
    "maintenance_components", "maintenance_context", "maintenance_creates", "maintenance_creating",
    "maintenance_disruption", "maintenance_disturbs", "maintenance_drain_delete_emptydir_data",
    "maintenance_drain_force", "maintenance_drain_timeout", "maintenance_expected_layout", "maintenance_failed",
    "maintenance_failure", "maintenance_kubeconfig", "maintenance_labels", "maintenance_later", "maintenance_layout",
    "maintenance_left",
    "maintenance_max_fail_percentage", "maintenance_node", "maintenance_recovered", "maintenance_releases",
    "maintenance_result", "maintenance_results", "maintenance_state", "maintenance_stopped", "maintenance_waits",
    "maintenance_slurm_answers", "maintenance_slurm_resumed",
    "maintenance_slurm", "maintenance_slurm_kept", "maintenance_slurm_left", "maintenance_slurm_result",
    "maintenance_slurm_timeout", "maintenance_slurm_waits", "maintenance_again", "maintenance_health",
    "maintenance_previews", "maintenance_remedies", "maintenance_sick",
    "mig_manager_at_once", "mig_manager_boot", "mig_manager_cluster", "mig_manager_config", "mig_manager_config_file",
    "mig_manager_create", "mig_manager_devices", "mig_manager_disruption", "mig_manager_layout",
    "mig_manager_max_fail_percentage", "mig_manager_nodes", "mig_manager_plan", "mig_manager_preview",
    "mig_manager_requested", "mig_manager_requests", "mig_manager_result", "mig_manager_selected",
    "mig_manager_timeout", "nfd_result", "node_status_exporter_folder", "node_status_exporter_interval",
    "node_status_exporter_plan", "node_status_exporter_result", "operands_result", "preflight_ask",
    "preflight_checked", "preflight_cluster", "preflight_cuda_samples", "preflight_cuda_timeout",
    "preflight_bundle", "preflight_check_metrics", "preflight_check_pods", "preflight_dcgm_level", "preflight_evidence",
    "preflight_delivered", "preflight_disruption", "preflight_enforce",
    "preflight_fail_on", "preflight_failure", "preflight_found",
    "preflight_labelled", "preflight_metrics_file", "preflight_observe", "preflight_placement",
    "preflight_plan", "preflight_policy", "preflight_release",
    "preflight_report", "preflight_report_html", "preflight_report_json", "preflight_reported_taint",
    "preflight_slurm",
    "preflight_startup_taint", "preflight_timeout", "remove_from", "software_components", "software_driver_cuda",
    "software_plan", "software_preview", "software_proxy", "software_repository_fingerprint",
    "software_repository_key", "software_repository_url", "software_result", "upgrade_result", "validator_result",
    "validator_timeout",
})

# The prefixes of the names, and the suffixes of names that users do not set.
_PREFIXES = tuple(f"{name}_" for name in (*components.NAMES, "gpu", "hand_back", "maintenance", "preflight", "remove",
                                          "software"))
_INTERNAL = ("_result", "_results", "_plan", "_preview")
# Groups and facts, which are not variables of users.
_OTHERS = ("gpu_control", "gpu_hosts", "gpu_labels", "gpu_node")


def look_alikes(names: t.Iterable[str]) -> list[str]:
    """A note for each name that is similar to one of NAMES, such as C(gpu_polcy), sorted by name."""
    known = sorted(name for name in NAMES if not name.endswith(_INTERNAL))
    notes = []
    for name in sorted(set(names) - NAMES - set(_OTHERS)):
        near = nearest(name, known, 0.8) if name.startswith(_PREFIXES) else ""
        if near:
            notes.append(f"{name} is not a variable of this collection and has no effect. Did you mean {near}?")
    return notes
