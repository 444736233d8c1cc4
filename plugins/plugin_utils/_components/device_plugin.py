# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The device plugin: its plan in a cluster, and its configurations, by which Nodes share GPUs. Pure. PRIVATE."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._components import component
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.facts import NO_CLUSTER, ClusterFacts, Nodes
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.label_keys import MIG_CONFIG, PLUGIN_CONFIG
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.refusals import Concerned, Refused
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.releases import version_key
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.schema import suggestion
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.wording import some_of
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.yamltext import Document
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import sharing
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.formats import Policy
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.sharing import Sharing

# The label of a Node on which pods share GPUs by MPS; the pods of the MPS daemon select this label.
MPS_CAPABLE = "nvidia.com/mps.capable"
# The major number of the compute capability, and its values before Volta, which is 7.0.
_COMPUTE_MAJOR, _BEFORE_VOLTA = "nvidia.com/gpu.compute.major", ("3", "5", "6")
_SECTION = "devicePlugin.config"
# The value of devicePlugin.env in each ClusterPolicy that a chart up to 25.3.2 has created (its values.yaml).
_OLD_CHART_ENV = {"PASS_DEVICE_SPECS": "true", "FAIL_ON_INIT_ERROR": "true", "DEVICE_LIST_STRATEGY": "envvar",
                  "DEVICE_ID_STRATEGY": "uuid", "NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "all"}


class DevicePluginPart(component.PresentPlan):
    """The plan in a cluster. config: the configurations; mps_root: a folder of the Node; gds, gdrcopy: whether pods get
    the devices of GPUDirect Storage and GDRCopy."""

    config: component.Config
    mps_root: str
    gds: bool
    gdrcopy: bool


def cluster_plan(context: component.Context, shared: component.PresentPlan) -> DevicePluginPart:
    """The plan in a cluster. With CDI, the operator before 25.3.3 ignores the variable DEVICE_LIST_STRATEGY, and so
    does this plan. Raises Refused."""
    env = shared["env"]
    if context.get("cdi.enabled") and "DEVICE_LIST_STRATEGY" in env and (
            version_key(context.release.version) < (25, 3, 3) or _OLD_CHART_ENV.items() <= env.items()):
        context.notes.append(f"devicePlugin.env: DEVICE_LIST_STRATEGY={env.pop('DEVICE_LIST_STRATEGY')} is ignored, "
                             "because cdi.enabled is true. Older releases of the operator ignore it, too.")
    return {**shared, "config": plugin_config(context),
            "mps_root": str(context.get("devicePlugin.mps.root") or "/run/nvidia/mps"),
            "gds": context.enabled("gds"), "gdrcopy": context.enabled("gdrcopy")}


def plugin_config(context: component.Context) -> component.Config:
    """The ConfigMap with the configurations. Raises Refused."""
    carried, found, given = component.config_map(context, "devicePlugin"), context.sharing, context.gpu_sharing
    if found is None:
        return carried
    return {"name": found.name, "default": found.default if given else carried["default"],
            "data": dict(found.texts) if given else carried["data"], "checksum": sharing.checksum(found.texts)}


def resolve_sharing(policy: Policy, given: Sharing | None, facts: ClusterFacts | None, namespace: str,
                    wanted: t.Mapping[str, str], reasons: list[Refused], refused: list[Concerned],
                    texts: list[str]) -> Sharing | None:
    """The configurations that apply, see L(applicable_sharing). given: the variable gpu_sharing; wanted: the name of
    the configuration of each Node, by Node. Adds refusals to reasons, refusals of single Nodes to refused, and notes to
    texts."""
    facts = facts or NO_CLUSTER
    nodes = {name: one for name, one in facts["nodes"].items() if one["gpu"]}
    try:
        found = applicable_sharing(policy, given, facts.get("config_maps", {}), namespace)
    except Refused as error:
        reasons.append(error)
        return None
    if found is None:
        if wanted and not (policy.get(_SECTION) or {}).get("name"):
            reasons.append(no_configurations(f"{some_of(sorted(wanted))}: "))
        return None
    strategy = str(policy.get("mig.strategy") or "")
    reasons += refusals(found, strategy, wanted)
    refused += [*_mig_under_mps(found, wanted, nodes), *_too_many_mps_clients(found, wanted, nodes)]
    texts += notes(found, strategy, wanted, nodes)
    return found


def applicable_sharing(policy: Policy, given: Sharing | None,
                       live: t.Mapping[str, t.Mapping[str, str] | None], namespace: str) -> Sharing | None:
    """The configurations that apply, None if there are none or if they are unknown.

    given: the variable gpu_sharing; live: the data of ConfigMaps in the namespace by name, None for those that do not
    exist. Raises Refused, and InputError for invalid configurations.
    """
    config = policy.get(_SECTION) or {}
    name, default, texts = str(config.get("name") or ""), str(config.get("default") or ""), config.get("data")
    if given is None:
        where = f"{_SECTION}.data of {policy.origin}"
        if not (config.get("create") and texts):
            if name not in live:
                return None
            texts, where = live[name], f"ConfigMap {name} in namespace {namespace}"
            if texts is None:
                raise Refused(f"{_SECTION}.name: ConfigMap {name!r} is not in namespace {namespace}, so the pods of "
                              "the device plugin cannot start",
                              f"Create it (kubectl -n {namespace} create configmap {name} --from-file=CONFIGURATION), "
                              "or set gpu_sharing to its content.")
        if not name:
            return None
        _require_default(default, texts if isinstance(texts, dict) else {}, where)
        return sharing.of_texts(name, default, texts, where)
    if config.get("create") and texts:
        raise Refused(f"gpu_sharing and {_SECTION}.data of {policy.origin} both have configurations",
                      "Keep one of them.")
    if name and given.name and name != given.name:
        raise Refused(f"gpu_sharing is the ConfigMap {given.name!r}, {_SECTION}.name is {name!r}",
                      "Use the same name for both, or remove the name from the policy.")
    default = default or given.default
    _require_default(default, given.texts, "gpu_sharing")
    return Sharing(given.origin, given.name or name or sharing.CONFIG_MAP, default, given.texts, given.documents)


def _require_default(default: str, texts: t.Mapping[str, str], where: str) -> None:
    """Raises Refused if a default is not one of the configurations (texts). where: what contains them."""
    if default and texts and default not in texts:
        raise Refused(f"{_SECTION}.default: {default!r} is not one of the configurations of {where}"
                      f"{suggestion(default, list(texts))}", "Name one of them.")


def no_configurations(whose: str) -> Refused:
    """The refusal of device_plugin_config if there are no configurations. whose: the beginning of the text."""
    return Refused(f"{whose}device_plugin_config is set, but there are no configurations", "Set gpu_sharing.")


def unknown_configuration(name: str, found: Sharing, whose: str) -> Refused | None:
    """The refusal of a name in device_plugin_config that is not one of the configurations, None for one of them. whose:
    the beginning of the text."""
    return None if name in found.texts else Refused(
        f"{whose}device_plugin_config {name!r} is not one of the configurations{suggestion(name, list(found.texts))}",
        f"Name one of {found.origin}.")


def refusals(found: Sharing, strategy: str, wanted: t.Mapping[str, str]) -> list[Refused]:
    """The refusals of these configurations.

    strategy: the value of mig.strategy in the policy; wanted: the names of the configurations in the inventory, by
    Node.
    """
    reasons = []
    for name in sorted(set(wanted.values()) - set(found.texts)):
        having = [node for node, one in wanted.items() if one == name]
        reasons += [one for one in [unknown_configuration(name, found, f"{some_of(having)}: ")] if one]
    for name, document in found.documents.items():
        if found.strategy(name) == "mps" and _strategy(strategy, document) == "mixed":
            reasons.append(Refused(f"{found.origin}, {name}: MPS cannot be used with the MIG strategy mixed",
                                   "Set mig.strategy to none or single, or use timeSlicing."))
    return reasons


def _mig_under_mps(found: Sharing, wanted: t.Mapping[str, str],
                   nodes: Nodes) -> list[Concerned]:
    """The refusals of Nodes that have both a MIG layout and MPS. nodes: the Nodes with a GPU; wanted: as in
    L(refusals)."""
    with_mig = [node for node, one in nodes.items() if one["labels"].get(MIG_CONFIG, "all-disabled") not in
                ("", "all-disabled") and found.strategy(_config(found, wanted, node, one["labels"])) == "mps"]
    return [(Refused(f"MPS sharing is requested, but {MIG_CONFIG} requests MIG; MPS and MIG exclude each other",
                     f"Set device_plugin_config of these hosts to a configuration without MPS, or {MIG_CONFIG}="
                     "all-disabled."), with_mig)] if with_mig else []


def _too_many_mps_clients(found: Sharing, wanted: t.Mapping[str, str], nodes: Nodes) -> list[Concerned]:
    """The refusals of Nodes whose GPUs are older than Volta and have fewer MPS clients than replicas. Without the
    label of the compute capability, a Node is not judged. Arguments as in L(_mig_under_mps)."""
    over = [node for node, one in nodes.items() if one["labels"].get(_COMPUTE_MAJOR, "") in _BEFORE_VOLTA
            and found.mps_replicas(_config(found, wanted, node, one["labels"])) > sharing.OLD_MPS_CLIENTS]
    return [(Refused(f"MPS sharing with more than {sharing.OLD_MPS_CLIENTS} replicas is requested, but GPUs older than "
                     f"Volta have at most {sharing.OLD_MPS_CLIENTS} MPS clients",
                     "Set device_plugin_config of these hosts to a configuration with fewer replicas, or without MPS."),
             over)] if over else []


def _config(found: Sharing, wanted: t.Mapping[str, str], node: str, labels: t.Mapping[str, str]) -> str:
    """The name of the configuration that a Node uses."""
    return wanted.get(node) or labels.get(PLUGIN_CONFIG) or found.default


def keep_mps_configs(found: Sharing, wanted: dict[str, str], nodes: Nodes, labelled: t.Container[str]) -> list[str]:
    """Removes from wanted the changes that would restart the MPS daemon of a Node and so end its clients. Returns
    notes.

    labelled: the Nodes whose label this collection has set, and would remove if wanted did not contain it.
    """
    held: dict[str, str] = {}
    for node, one in nodes.items():
        now, name = str(one["labels"].get(PLUGIN_CONFIG) or ""), wanted.get(node, "")
        differs = (name or found.default) != (now or found.default) and (name or node in labelled)
        if differs and one["labels"].get(MPS_CAPABLE) == "true":
            held[node] = f"{PLUGIN_CONFIG}={name}" if name else f"{PLUGIN_CONFIG}-"
            wanted.pop(node, None)
            if now:
                wanted[node] = now
    node, change = next(iter(held.items()), ("", ""))
    return [f"{some_of([*held])}: the configuration of the device plugin is not changed, because a change ends the "
            f"clients of the MPS daemon. Change one Node at a time: kubectl drain {node} --ignore-daemonsets; "
            f"kubectl label --overwrite node {node} {change}; kubectl uncordon {node}"] if held else []


def notes(found: Sharing, strategy: str, wanted: t.Mapping[str, str],
          nodes: Nodes) -> list[str]:
    """Notes about keys that the device plugin ignores, and about Nodes without a configuration. nodes: the Nodes with a
    GPU; strategy, wanted: as in L(refusals)."""
    texts = [f"{found.origin}, {name}: {text}." for name, document in found.documents.items()
             for text in _without_effect(document, strategy)]
    labels = {node: str(one["labels"].get(PLUGIN_CONFIG) or "") for node, one in nodes.items() if node not in wanted}
    lost = [f"{node} ({name})" for node, name in labels.items() if name and name not in found.texts]
    if lost:
        texts.append(f"{some_of(lost)}: {PLUGIN_CONFIG} does not name a configuration of {found.origin}, so the device "
                     "plugin does not run there.")
    if not found.default and not all(labels.values()):
        texts.append(f"{found.origin} has no default: Nodes without the label {PLUGIN_CONFIG} do not share GPUs.")
    return texts


def _without_effect(document: Document, strategy: str) -> t.Iterator[str]:
    data = document.data or {}
    own = (data.get("flags") or {}).get("migStrategy")
    if own and strategy and own != strategy:
        yield f"flags.migStrategy: {own} has no effect, as mig.strategy {strategy} of the policy takes precedence"
    if data.get("resources"):
        yield "resources: the plugin ignores this section"
    for group, inner in (data.get("sharing") or {}).items():
        for index, one in enumerate((inner or {}).get("resources") or ()):
            path, renamed = f"sharing.{group}.resources[{index}]", inner.get("renameByDefault")
            if one.get("devices", "all") != "all":
                yield f"{path}.devices: the plugin ignores it and shares all GPUs of a Node alike"
            if one.get("rename") and not (renamed and one["rename"].endswith("gpu.shared")):
                yield f"{path}.rename: the plugin ignores it; only renameByDefault renames it, to {one['name']}.shared"
            if "mig-" in one["name"] and _strategy(strategy, document) not in ("mixed", ""):
                yield f"{path}.name: {one['name']} exists only with the MIG strategy mixed"


def _strategy(strategy: str, document: Document) -> str:
    """The MIG strategy that applies. The strategy in the policy takes precedence over the one in the file."""
    return strategy or str(((document.data or {}).get("flags") or {}).get("migStrategy") or "")


COMPONENT: component.Component[component.HostPlan] = component.Component(
    "device_plugin", images=("device_plugin", "validator"), cluster_plan=cluster_plan)
