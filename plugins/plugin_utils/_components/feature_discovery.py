# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""GPU feature discovery: its plans on a host and in a cluster, and its check. Pure. PRIVATE."""

from __future__ import annotations

import re

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._labels.sharing_config import parse_sharing
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._components import component
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._components.device_plugin import (
    applicable_sharing,
    no_configurations,
    plugin_config,
    unknown_configuration,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._components.mig_manager import mig_strategy
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.refusals import Refused
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.untyped import Value
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.wording import counted, some_of
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import config_maps
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.cluster_images import pull_secrets
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.sharing import Sharing


class LabelsPlan(component.HostPlan):
    """The plan on a host. mig_strategy: C(none), C(single) or C(mixed); sharing: a configuration of the device plugin,
    or None; state, target: options of gpu_labels."""

    state: str
    target: str
    mig_strategy: object
    sharing: object


class LabelsPart(component.PresentPlan):
    """The plan in a cluster. config: the ConfigMap with the device plugin's configurations, without data."""

    config: component.Config


def host_plan(host: component.Host) -> LabelsPlan:
    """The plan on a host. The variables of the host take precedence over the policy. Raises Refused."""
    own, policy = host.variables.get("feature_discovery_sharing"), host.inputs.policy
    sharing: Value = _of_device_plugin(host) if host.place == "host" and own is None else own
    try:
        if host.place == "host":
            parse_sharing(sharing)
    except InputError as error:
        by = f"devicePlugin.config of {policy.origin}" if own is None else "feature_discovery_sharing"
        raise Refused(f"{by}: {error.message.rstrip('.')}",
                      error.hint or "Use the format of the device plugin, such as {timeSlicing: {resources: [...]}}."
                      ) from error
    return {"placement": host.place, "state": "gathered", "target": "facts", "mig_strategy": mig_strategy(host),
            "sharing": sharing, "because": host.because}


def _of_device_plugin(host: component.Host) -> Value:
    """The configuration of the device plugin that the host has: in gpu_sharing, in the values of the chart, or in the
    ConfigMap that devicePlugin.config of the policy names; None for none. Adds a note if it is not known. Raises
    Refused for what a cluster refuses as well."""
    policy, seen = host.inputs.policy, host.inputs.seen
    own, enabled = str(host.variables.get("device_plugin_config") or ""), policy.enabled("devicePlugin")
    name = config_maps.name_of(policy, config_maps.SHARING) if enabled else ""
    for invalid in config_maps.faults(policy, config_maps.SHARING):
        raise invalid
    try:
        found = applicable_sharing(policy, seen.sharing, seen.data if name else {}, seen.namespace)
    except InputError as error:
        text = error.message.partition("\nNothing was changed.")[0].rstrip(".")
        raise Refused(text, error.hint or "Correct the configuration.") from error
    if found is None:
        if name:
            host.notes.append(f"devicePlugin.config.name: the configurations of ConfigMap {name!r} are not known, so "
                              "the labels of hosts do not describe shared GPUs. To describe them, set gpu_kubeconfig "
                              "to the cluster that has it, or set feature_discovery_sharing.")
        elif own and enabled:
            raise no_configurations("")
        elif own:
            host.notes.append("device_plugin_config: no effect: devicePlugin.enabled is false.")
        return None
    if own:
        unknown = unknown_configuration(own, found, "")
        if unknown is not None:
            raise unknown
    document = found.documents.get(own or found.default)
    host.notes += _about_configurations(host, found, own or found.default)
    return document.data if document else None


def _about_configurations(host: component.Host, found: Sharing, chosen: str) -> list[str]:
    """Notes about configurations of the device plugin: those in the values of the chart that the host does not use, and
    if it uses none. chosen: the name of the one that it uses, empty for none."""
    unused = [] if host.inputs.seen.sharing or config_maps.name_of(host.inputs.policy, config_maps.SHARING) else [
        one for one in found.texts if one != chosen]
    if unused:
        by = "device_plugin_config" if host.variables.get("device_plugin_config") else "devicePlugin.config.default"
        return [f"devicePlugin.config.data: {some_of(unused)}: no effect on hosts: the labels of hosts are those of "
                f"{by}{f' ({chosen})' if chosen else ', which is not set'}; for others, set device_plugin_config."]
    if chosen:
        return []
    default = "default of gpu_sharing" if host.inputs.seen.sharing else "devicePlugin.config.default"
    return [f"neither {default} nor device_plugin_config of this host names a configuration of {found.origin}, so its "
            "labels do not describe shared GPUs."]


def cluster_plan(context: component.Context, shared: component.PresentPlan) -> LabelsPart:
    """The plan in a cluster. The pods use the configurations of the device plugin. Raises Refused."""
    config = plugin_config(context)
    if config["data"] and "device_plugin" not in context.present:
        # The ConfigMap is delivered with the device plugin, and pods do not start without a ConfigMap that they mount.
        config["name"] = config["default"] = config["checksum"] = ""
    config["data"] = {}
    # Without a configuration, the pods have no container with the device plugin's image.
    secrets = shared["pull_secrets"] if config["name"] else pull_secrets(
        context.policy, ("feature_discovery", "validator"), context.secrets)
    return {**shared, "config": config, "pull_secrets": secrets}


def check(_want: LabelsPlan, seen: component.HostState) -> component.Result:
    """Checks the labels or, if gpu_labels did not run, whether the GPUs can be read."""
    labels, remedy = seen.labels, "Repair the driver first."
    if labels is None:
        count = sum(1 for gpu in seen.facts["gpus"] if gpu.get("uuid") is not None)
        return component.Result("ok", counted(count, "GPU")) if count else component.Result(
            "failed", "no GPU can be read, so no labels can be computed", remedy)
    number = labels.get("nvidia.com/gpu.count", "0")
    if not re.fullmatch("[0-9]{1,9}", number) or int(number) == 0:
        return component.Result("failed", "the labels describe no GPU", remedy)
    return component.Result("ok", f"{len(labels)} labels, {counted(int(number), 'GPU')}")


COMPONENT = component.Component("feature_discovery", host_plan, check, cluster_plan=cluster_plan,
                                images=("feature_discovery", "device_plugin", "validator"))
