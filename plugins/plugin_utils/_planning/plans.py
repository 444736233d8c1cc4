# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The types of plans, which gpu_policy returns and Ansible passes to roles as mappings. PRIVATE."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._components.component import ClusterPart, HostPlan
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._components.container_toolkit import ToolkitPlan
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._components.driver import DriverPlan
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._components.mig_manager import MigPlan
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.untyped import Data, Section
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._drivers.cluster_pools import PoolReport
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.monitoring import Monitoring
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.sharing import Sharing


class PlanProfile(t.TypedDict):
    name: t.Optional[str]
    because: str


Rejected = t.Dict[str, t.Dict[str, str]]  # C({path, message, hint}) by host or Node


class PlanOfHost(t.TypedDict):
    """The plan of a host, with the plans of its components. software: options of nvidia_software; preview: the
    components whose modules run in check mode in a preview; delivered: the components with the placement C(host)."""

    driver: DriverPlan
    container_toolkit: ToolkitPlan
    mig_manager: MigPlan
    feature_discovery: HostPlan
    cuda: HostPlan
    dcgm: HostPlan
    dcgm_exporter: HostPlan
    node_status_exporter: HostPlan
    validator: HostPlan
    profile: PlanProfile
    software: t.Dict[str, Data]
    preview: t.List[str]
    delivered: t.List[str]


class Validation(t.TypedDict):
    """The init containers that wait until other operands are ready. env: the variables of each check, by check."""

    image: str
    pull: str
    resources: Section
    env: t.Dict[str, t.Dict[str, str]]


class Common(t.TypedDict):
    """The values that the pods of all operands share. pod_runtime_class: empty if pods get GPUs without a runtime
    class; cdi_hook: the path of the hook in CDI specifications, empty if it is not in the toolkit's container; since:
    for each of several releases, whether this release is the same or newer; all paths are paths on Nodes."""

    tolerations: t.List[Section]
    priority_class: str
    update_strategy: Section
    labels: t.Dict[str, str]
    annotations: t.Dict[str, str]
    pod_security_context: Data
    runtime: str
    runtime_class: str
    pod_runtime_class: str
    host_root: str
    host_dev_char: str
    driver_install_dir: str
    kubelet_root: str
    toolkit_install_dir: str
    cdi_hook: str
    since: t.Dict[str, bool]
    openshift: bool
    cdi: bool
    nri: bool
    nri_devices: str
    mig_strategy: str
    validation: Validation


class Deploy(t.TypedDict):
    """The data from which the deploy labels of Nodes are computed, see L(deploy_labels.parse_deploy). hosts: the hosts
    in the inventory that compute the feature labels of their Nodes."""

    components: t.Dict[str, bool]
    on_host: t.Dict[str, t.List[str]]
    mig_default: str
    mig_changes: bool
    pods_may_end: bool
    without_driver: t.List[str]
    hosts: t.List[str]
    plugin_configs: t.Dict[str, str]


class PlanNodes(t.TypedDict):
    """The Nodes of a plan. gpu: the names of the Nodes with a GPU; cpu: the number of the other Nodes; pools: the
    result of L(cluster_nodes.pools); by_host: the hosts in the inventory by their Nodes."""

    gpu: t.List[str]
    cpu: int
    pools: t.List[Data]
    by_host: t.Dict[str, str]


class ClusterPlan(t.TypedDict):
    """The plan of a cluster. psa: whether the namespace gets the labels for Pod Security admission; registry: the image
    registry; server: the URL of the API server, None without a cluster; components: their plans by name; pools: the
    pools that get a driver."""

    namespace: str
    psa: bool
    release: str
    disruption: str
    registry: str
    server: t.Optional[str]
    common: Common
    components: t.Dict[str, ClusterPart]
    nodes: PlanNodes
    pools: t.List[PoolReport]
    rejected: Rejected
    deploy: Deploy
    notes: t.List[str]


class FleetPlan(t.TypedDict):
    """The plan of all hosts and the cluster. policy: the origin of the policy; placement: the placements by component;
    explanations: the reasons by host; refused: the rejected hosts."""

    release: str
    policy: str
    format: str
    disruption: str
    placement: t.Dict[str, str]
    hosts: t.Dict[str, PlanOfHost]
    notes: t.List[str]
    explanations: t.Dict[str, t.List[str]]
    refused: Rejected
    cluster: t.NotRequired[t.Optional[ClusterPlan]]


class Settings(t.TypedDict, total=False):
    """Variables for a cluster. proxy: the result of L(_proxy.read); placement: gpu_placement as the user sets it;
    profiles: gpu_profile by Node, with the key C("") for all other Nodes; sharing: the result of L(sharing.read);
    monitoring: the result of L(monitoring.read); plugin_configs: device_plugin_config by Node; strict: whether a Node
    without a suitable driver prevents the plan for all Nodes."""

    namespace: str
    image_registry: t.Optional[str]
    pull_secrets: t.List[str]
    proxy: t.Optional[t.Dict[str, str]]
    node_os: t.List[str]
    placement: object
    profiles: t.Dict[str, t.Optional[str]]
    sharing: t.Optional[Sharing]
    monitoring: t.Optional[Monitoring]
    plugin_configs: t.Dict[str, str]
    strict: bool
