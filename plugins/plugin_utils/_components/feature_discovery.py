# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""GPU feature discovery: its plans on a host and in a cluster, and its check. Pure. PRIVATE."""

from __future__ import annotations

import re

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._labels.sharing_config import parse_sharing
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._components import component
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._components.device_plugin import plugin_config
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._components.mig_manager import mig_strategy
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.refusals import Refused
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.untyped import Value
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.wording import counted, some_of
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.cluster_images import pull_secrets
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.formats import Policy


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
    if host.place == "host" and own is None:
        host.notes += _unused_configurations(policy)
    sharing: Value = policy.sharing if own is None else own
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


def _unused_configurations(policy: Policy) -> list[str]:
    """A note about the configurations of the device plugin in the policy that no host uses."""
    config = policy.get("devicePlugin.config") or {}
    data, default = config.get("data") if config.get("create") else None, str(config.get("default") or "")
    unused = [str(name) for name in data if name != default] if isinstance(data, dict) else []
    return [f"devicePlugin.config.data: {some_of(unused)}: no effect on hosts: the labels of hosts are those of "
            f"devicePlugin.config.default{f' ({default})' if default else ', which is not set'}; for others, set "
            "feature_discovery_sharing."] if unused else []


def cluster_plan(context: component.Context, shared: component.PresentPlan) -> LabelsPart:
    """The plan in a cluster. The pods use the configurations of the device plugin. Raises Refused."""
    config: component.Config = {**plugin_config(context), "data": {}}
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
