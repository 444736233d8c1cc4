# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Computes the plan of a cluster from policy, release and facts, or one error with all refusals. Pure. PRIVATE."""

from __future__ import annotations

import posixpath
import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._result import allows
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._components import IN_CLUSTERS, device_plugin
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._components.component import (
    ClusterPart,
    Component,
    Context,
    environment,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import components
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.facts import NO_CLUSTER, ClusterFacts, Nodes
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.label_keys import MIG_CONFIG, PLUGIN_CONFIG
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.refusals import (
    Concerned,
    Refusals,
    Refused,
    left_out,
    policy_error,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.releases import Release, version_key
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.schema import shown
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.untyped import Section, Value
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.wording import (
    labels_stay,
    mig_manager_not_started,
    some_of,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._drivers import cluster_pools as pools
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory import cluster_nodes as nodes
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.objects import labels_of_pods
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import deploy_labels
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning import cluster_profiles
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning.plans import ClusterPlan, Common, Deploy, Settings
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import cluster_openshift, key_effects
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.cluster_images import (
    VENDOR,
    image,
    old_default_versions,
    pull_policy,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.defaults import get_path
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.formats import Policy
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.translate import to_common

OPENSHIFT_NAMESPACE = cluster_openshift.NAMESPACE
_INSTALL_DIR = "/usr/local/nvidia"
TOLERATION = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}

# The settings that this version does not support: (path in the policy, value, remedy).
_UNSUPPORTED: tuple[tuple[str, object, str], ...] = (
    ("sandboxWorkloads.enabled", True, "Set it to false: this version supports only containers."),
    ("gpuCluster.deployCR", True, "Set it to false, or use a ClusterPolicy: dynamic resource allocation is not "
                                  "supported yet."),
)
_CHECKS = ("driver", "toolkit", "cuda", "plugin")


def resolve_cluster(policy: Policy, release: Release, facts: ClusterFacts | None, places: t.Mapping[str, str],
                    inventory_hosts: t.Mapping[str, str], settings: Settings, disruption: str) -> ClusterPlan:
    """The plan of the cluster, C(gpu_plan.cluster).

    facts: None if manifests are only rendered; places: the result of L(components.placements); inventory_hosts: the
    name of the Node of each host in the inventory, by host. Raises PolicyError with all refusals.
    """
    reasons: list[Refused] = []
    every, namespace = (facts or NO_CLUSTER)["nodes"], namespace_of(settings)
    with_gpu = {name: node for name, node in sorted(every.items()) if node["gpu"]}
    by_host, notes = _hosts(facts, inventory_hosts, reasons)
    gpu = list(with_gpu)
    refused: list[Concerned] = []
    on_host = _on_host(with_gpu, by_host, places, settings, refused, notes)
    with_toolkit = {name: node for name, node in with_gpu.items() if "container_toolkit" not in on_host.get(name, ())}
    openshift = cluster_openshift.is_openshift(policy, facts)
    # If any Nodes get the container toolkit from the cluster, only these determine the container runtime.
    runtime = nodes.runtime_of((with_toolkit or with_gpu or every).values(),
                               (facts or NO_CLUSTER).get("toolkit_runtime", ""))
    context = Context(policy, release, settings.get("image_registry") or VENDOR,
                      list(settings.get("pull_secrets") or []), disruption,
                      "crio" if openshift else runtime.value, openshift,
                      places["device_plugin"] == "cluster" and policy.enabled("devicePlugin"), notes=notes,
                      service_monitors=None if facts is None else facts["service_monitors"],
                      prometheus_rules=None if facts is None else facts.get("prometheus_rules", False),
                      monitoring=settings.get("monitoring"), proxy=settings.get("proxy") or {},
                      gpu_sharing=settings.get("sharing"), namespace=namespace, facts=facts, gpu_nodes=gpu,
                      on_host=on_host, node_os=list(settings.get("node_os") or []))
    reasons += _unsupported(policy)
    notes += key_effects.notes(policy, release, "cluster", places)
    notes += _of_platform(context)
    configs = _plugin_configs(context, settings, every if facts else by_host, places, reasons, refused)
    parts = _parts(context, places, reasons)
    without_driver = [*context.without_driver, *context.faults()]
    refused += without_driver
    reasons += _reasons_for_no_plan(refused, gpu, settings)
    notes += _partly(context, parts, on_host, by_host)
    notes += _without_pull_secrets(context, parts)
    if not openshift and "container_toolkit" in context.present:
        notes += _other_runtimes(runtime, with_toolkit)
    notes += _without_layout(context, {name: node["labels"] for name, node in with_gpu.items()
                                       if "mig_manager" not in on_host.get(name, ())})
    out = set() if reasons else _named(without_driver)
    served = [pools.report_of(pool, release, context.mirror, every) for pool in context.pools
              if out.isdisjoint(pool.nodes)]
    if reasons:
        raise policy_error(policy.origin, release.version, [(one, ["cluster"]) for one in reasons], " in the cluster",
                           pools=served)
    deploy: Deploy = {
        "components": {name: one["state"] == "present" for name, one in parts.items()}, "on_host": on_host,
        "mig_default": _mig_default(context), "mig_changes": allows(disruption, "idle"),
        "pods_may_end": allows(disruption, "drain"), "without_driver": sorted(_named(context.without_driver)),
        "hosts": list(by_host.values()) if places["feature_discovery"] in ("host", "hybrid") else [],
        "plugin_configs": configs,
    }
    notes += _about_labels(deploy, with_gpu)
    return {
        "namespace": namespace,
        "psa": bool(policy.get("psa.enabled")) and (not openshift or namespace == OPENSHIFT_NAMESPACE),
        "release": release.version, "disruption": disruption, "registry": context.mirror,
        "server": facts["server"] if facts else None,
        "common": _common(context), "components": parts,
        "nodes": {"gpu": gpu, "cpu": len(every) - len(gpu), "pools": nodes.pools(every), "by_host": by_host},
        "pools": served, "rejected": left_out(refused), "deploy": deploy, "notes": context.notes,
    }


def _of_platform(context: Context) -> list[str]:
    """Notes about policy keys and variables that have no effect on this platform."""
    if not context.openshift:
        toolkit = context.get("operator.use_ocp_driver_toolkit")
        return ["operator.use_ocp_driver_toolkit is set in the policy: it is ignored, because this cluster is not "
                "OpenShift."] if toolkit else []
    asked = any(get_path(source.spec, "operator.use_ocp_driver_toolkit") is True for source in context.policy.sources)
    # On CoreOS, a driver that is not precompiled is refused.
    found = ["operator.use_ocp_driver_toolkit is true in the policy: it is ignored, because the drivers of this "
             "cluster are precompiled, or their containers build the kernel modules."] if (
        asked and context.enabled("driver")) else []
    if context.namespace == OPENSHIFT_NAMESPACE:
        return found
    psa = ", and psa.enabled does not set its labels" if context.get("psa.enabled") else ""
    return [*found, f"gpu_namespace is {context.namespace}: the Prometheus of OpenShift does not scrape this "
            f"namespace{psa}. Set gpu_namespace to {OPENSHIFT_NAMESPACE}."]


def namespace_of(settings: Settings) -> str:
    """The namespace of the operands."""
    return settings.get("namespace") or "gpu-operator"


def _hosts(facts: ClusterFacts | None, inventory_hosts: t.Mapping[str, str],
           reasons: list[Refused]) -> tuple[dict[str, str], list[str]]:
    """(hosts of the inventory by their Nodes, notes). Adds refusals to reasons."""
    taken: dict[str, str] = {}
    strangers = []
    for host, node in inventory_hosts.items():
        if node in taken:
            reasons.append(Refused(f"the hosts {taken[node]} and {host} have the same Node {node!r}",
                                   "Set gpu_node_name of each host to the name of its own Node."))
        elif facts is not None and node not in facts["nodes"]:
            strangers.append(host)
        else:
            taken[node] = host
    notes = [f"{', '.join(strangers)}: treated as hosts only, because the cluster has no Node of this name "
             "(gpu_node_name sets the name of a host's Node)."] if strangers else []
    return dict(sorted(taken.items())), notes


def _on_host(with_gpu: Nodes, by_host: t.Iterable[str], places: t.Mapping[str, str], settings: Settings,
             refused: list[Concerned], notes: list[str]) -> dict[str, list[str]]:
    """The components that each Node does not get from the cluster, by Node: those that are delivered on its host in the
    inventory, and those that its profile includes."""
    delivered = [one.name for one in IN_CLUSTERS if places[one.name] in ("host", "hybrid")]
    found = {node: list(delivered) for node in by_host} if delivered else {}
    theirs = cluster_profiles.theirs(with_gpu, places, components.named(settings.get("placement"), "cluster"),
                                     settings.get("profiles") or {}, refused)
    notes += cluster_profiles.notes_about(theirs)
    for name, included in theirs.items():
        found[name] = list(dict.fromkeys([*found.get(name, ()), *included]))
    return found


def _unused_sharing(context: Context, settings: Settings, known: t.Container[str],
                    places: t.Mapping[str, str]) -> list[str]:
    """A note about the variables of the device plugin, which is not delivered. With labels that hosts compute, they
    have an effect there. Arguments as in L(_plugin_configs)."""
    names = [*(["gpu_sharing"] if context.gpu_sharing else []),
             *(["device_plugin_config"] if any(one in known for one in settings.get("plugin_configs") or {}) else [])]
    why = ("gpu_placement does not deliver the device plugin" if context.enabled("devicePlugin")
           else "devicePlugin.enabled is false")
    return [f"{', '.join(names)}: no effect in the cluster: {why}."] if (
        names and (places["feature_discovery"] != "host" or not context.enabled("gfd"))) else []


def _plugin_configs(context: Context, settings: Settings, known: t.Container[str], places: t.Mapping[str, str],
                    reasons: list[Refused], refused: list[Concerned]) -> dict[str, str]:
    """The names of the device plugin's configurations by Node. Also sets the attribute sharing of the context. known:
    the names of the Nodes that exist; places: the result of L(components.placements). Adds refusals to reasons, and
    refusals of single Nodes to refused."""
    if not context.has_device_plugin:
        context.notes += _unused_sharing(context, settings, known, places)
        return {}
    configs = {node: name for node, name in (settings.get("plugin_configs") or {}).items() if node in known}
    context.sharing = device_plugin.resolve_sharing(context.policy, context.gpu_sharing, context.facts,
                                                    context.namespace, configs, reasons, refused, context.notes)
    if context.sharing:
        labelled = {node for node, one in context.nodes.items()
                    if PLUGIN_CONFIG in deploy_labels.Node.of_facts(node, one).ours}
        context.notes += device_plugin.keep_mps_configs(context.sharing, configs, context.nodes, labelled)
    return configs


def _parts(context: Context, places: t.Mapping[str, str], reasons: list[Refused]) -> dict[str, ClusterPart]:
    """The plans of the components, by component. Adds refusals to reasons."""
    parts: dict[str, ClusterPart] = {}
    for one in IN_CLUSTERS:
        try:
            absent = _absent(context, one, places[one.name])
            parts[one.name] = {"state": "absent", "because": [absent]} if absent else one.in_cluster(context)
            if parts[one.name]["state"] == "present":
                context.present.add(one.name)
        except (Refused, Refusals) as error:
            reasons += error.reasons
    return parts


def _reasons_for_no_plan(refused: t.Sequence[Concerned], gpu: t.Sequence[str],
                         settings: Settings) -> list[Refused]:
    """The refusals of Nodes because of which the whole cluster is refused: all of them if the setting C(strict) is
    true, otherwise only if no Node with a GPU remains."""
    strict = settings.get("strict", True) or _named(refused).issuperset(gpu)
    return [one.of(names) for one, names in refused] if strict else []


def _named(refused: t.Iterable[Concerned]) -> set[str]:
    return {name for _reason, names in refused for name in names}


def _other_runtimes(runtime: nodes.CommonValue, served: Nodes) -> list[str]:
    """A note about Nodes whose container runtime differs from the one that the toolkit configures."""
    others = [name for name, node in served.items() if node["runtime"] not in ("", runtime.value)]
    return [f"{some_of(others)}: the container runtime is not {runtime.value}, and the container toolkit in the "
            f"cluster configures only {runtime.value}, because {runtime.because}. Install the toolkit on these Nodes "
            "yourself, or add them to the group gpu_hosts and set gpu_placement: hybrid."] if others else []


def _unsupported(policy: Policy) -> list[Refused]:
    found = [Refused(f"{path}: {shown(value)} is not supported in a cluster yet", remedy)
             for path, value, remedy in _UNSUPPORTED if policy.get(path) == value]
    selector, driver_type = (policy.chart_driver.get(key) for key in ("nodeSelector", "driverType"))
    # Without an NVIDIADriver in the policy, the plan of the driver refuses it.
    if driver_type == "vgpu-host-manager" and "NVIDIADriver" in policy.documents and policy.enabled("driver"):
        found.append(Refused(f"driver.nvidiaDriverCRD.driverType: {shown(driver_type)} is not supported in a cluster "
                             "yet", "Set it to gpu or vgpu: this version supports only containers."))
    if selector:
        found.append(Refused(f"driver.nvidiaDriverCRD.nodeSelector: {shown(selector)} is not supported in a cluster",
                             "Add an NVIDIADriver with this nodeSelector to the policy instead."))
    return found


def _absent(context: Context, component: Component[Value], place: str) -> str:
    """The reason why a component is not delivered in the cluster, empty if it is delivered."""
    section = component.entry.section
    if section and not context.enabled(section):
        return f"{section}.enabled is false"
    if place in ("none", "host"):
        return "gpu_placement delivers it on hosts" if place == "host" else "it is set to none in gpu_placement"
    foreign = component.foreign(context.facts) if context.facts is not None else ""
    known = context.gpu_nodes or list(context.nodes)
    if not foreign and known and all(component.name in context.on_host.get(name, ()) for name in known):
        return "every GPU node has it on its host"
    return foreign


def _common(context: Context) -> Common:
    """The values that are common to the pods of all components."""
    get = context.get
    cdi, nri = bool(get("cdi.enabled")), bool(get("cdi.nriPluginEnabled"))
    runtime_class, root = str(get("operator.runtimeClass") or "nvidia"), str(get("hostPaths.rootFS") or "/")
    return {
        "tolerations": list(get("daemonsets.tolerations") or [TOLERATION]),
        "priority_class": str(get("daemonsets.priorityClassName") or "system-node-critical"),
        "update_strategy": _update_strategy(get),
        "labels": labels_of_pods(get("daemonsets.labels") or {}),
        "annotations": dict(get("daemonsets.annotations") or {}),
        "pod_security_context": dict(get("daemonsets.podSecurityContext") or {}),
        "runtime": context.runtime, "runtime_class": runtime_class,
        # Without CDI, CRI-O has no handler for the runtime class.
        "pod_runtime_class": "" if nri or (not cdi and context.runtime == "crio") else runtime_class,
        "host_root": root, "host_dev_char": posixpath.join(root, "dev/char"),
        "driver_install_dir": str(get("hostPaths.driverInstallDir") or "/run/nvidia/driver"),
        "kubelet_root": str(get("hostPaths.kubeletRootDir") or "/var/lib/kubelet"),
        "toolkit_install_dir": str(get("toolkit.installDir") or _INSTALL_DIR), "cdi_hook": _hook(context),
        "since": {release: version_key(context.release.version) >= version_key(release)
                  for release in ("25.3.0", "25.10.0", "26.3.0", "26.7.0")},
        "openshift": context.openshift, "cdi": cdi, "nri": nri,
        # The devices that an annotation requests for a container that needs all GPUs.
        "nri_devices": "management.nvidia.com/gpu=all" if nri else "", "mig_strategy": str(get("mig.strategy") or ""),
        "validation": {
            "image": image(context.policy, context.release, "validator", context.mirror),
            "pull": pull_policy(context.policy, "validator"),
            "resources": get("validator.resources") or {},
            "env": {check: environment(get(f"validator.{check}.env")) for check in _CHECKS},
        },
    }


def _partly(context: Context, parts: t.Mapping[str, ClusterPart], on_host: t.Mapping[str, t.Sequence[str]],
            by_host: t.Container[str]) -> list[str]:
    """Notes about keys of the policy that have no effect, or an effect on some Nodes only."""
    found = []
    if context.get("nfd.nodefeaturerules") and "nfd" in parts and parts["nfd"]["state"] == "absent":
        found.append("nfd.nodefeaturerules is set in the policy: it is ignored, because NFD is not delivered.")
    left = key_effects.undelivered_kinds(context.policy)
    if left:
        found.append(f"extraObjects is set in the policy: objects of the kind {', '.join(left)} are not delivered. "
                     "Apply them with gpuops.nvidia.operands (option manifests).")
    automatic = any(get_path(to_common(source.kind, source.spec), "driver.upgradePolicy.autoUpgrade")
                    for source in context.policy.sources)
    if automatic and "driver" in context.present:
        found.append("driver.upgradePolicy.autoUpgrade is true in the policy, but only the playbook upgrade replaces "
                     "running drivers of a cluster. A run lists the Nodes whose driver is outdated.")
    former = old_default_versions(context.policy, context.release)
    if former:
        stated = some_of([f"{path} {version}" for path, version in former.items()])
        found.append(f"{stated} in the policy: this is the version of a release older than {context.release.version}. "
                     "Remove it from the policy, unless you have chosen it on purpose.")
    # On hosts, packages install nvidia-cdi-hook at the path that the device plugin uses.
    theirs = [name for name, names in on_host.items() if name not in by_host
              and "container_toolkit" in names and "device_plugin" not in names]
    if theirs and {"container_toolkit", "device_plugin"} <= context.present and context.enabled("cdi"):
        found.append(f"{some_of(theirs)}: the system includes the container toolkit, so the device plugin uses "
                     "/usr/bin/nvidia-cdi-hook. If the program is in another folder on these Nodes, create a link.")
    return found


def _without_pull_secrets(context: Context, parts: t.Mapping[str, ClusterPart]) -> list[str]:
    """A note about pull secrets that do not exist. The kubelet then pulls without them, so pods may start nevertheless.
    """
    known = (context.facts or NO_CLUSTER).get("secrets", {})
    plans = [t.cast("Section", one) for one in parts.values()]
    used = {name for one in [*plans, *(pool for plan in plans for pool in plan.get("pools", ()))]
            for name in one.get("pull_secrets", ())}
    missing = sorted(name for name in used if known.get(name) is False)
    space = context.namespace
    return [f"{some_of(missing)}: gpu_pull_secrets or imagePullSecrets of the policy names this Secret, but it is not "
            f"in namespace {space}, so Nodes pull images without it. Create it (kubectl -n {space} create secret "
            f"docker-registry {missing[0]} ...)."] if missing else []


def _about_labels(deploy: Deploy, gpu: Nodes) -> list[str]:
    """Notes about Nodes that keep deploy labels of components that are no longer planned for them, and about Nodes that
    do not get the label of the MIG manager yet."""
    asked = deploy_labels.parse_deploy(deploy)
    nodes = [deploy_labels.Node.of_facts(name, node) for name, node in gpu.items()]
    kept = {node.name: deploy_labels.kept_labels(node, asked).keys()
            - {deploy_labels.LABELS.get(one) for one in asked.delivered_on(node.name)} for node in nodes}
    names = [name for name, labels in kept.items() if labels]
    waits = [node.name for node in nodes if deploy_labels.manager_waits(node, asked)]
    return [*([labels_stay(some_of(names), sorted({key for labels in kept.values() for key in labels}))]
              if names else []), *([mig_manager_not_started(some_of(waits))] if waits else [])]


def _mig_default(context: Context) -> str:
    return str(context.get("migManager.config.default") or "")


def _without_layout(context: Context, nodes_labels: t.Mapping[str, t.Mapping[str, str]]) -> list[str]:
    """A note about Nodes to which the default layout is not applied, because it would destroy their MIG instances."""
    layout = _mig_default(context)
    if not layout or "mig_manager" not in context.present or allows(context.disruption, "idle"):
        return []
    kept = [name for name, labels in nodes_labels.items()
            if deploy_labels.mig_capable(labels) and not labels.get(MIG_CONFIG)]
    return [f"{some_of(kept)}: migManager.config.default ({layout}) is not applied, because gpu_disruption is "
            f"{context.disruption}, and the layout would destroy existing MIG instances. Label the Nodes with "
            f"{MIG_CONFIG}, or set gpu_disruption: idle."] if kept else []


def _hook(context: Context) -> str:
    """The path of the CDI hook in CDI specifications if the hook is in the toolkit's container, otherwise empty."""
    if "container_toolkit" not in context.present:
        return ""
    return posixpath.join(str(context.get("toolkit.installDir") or _INSTALL_DIR), "toolkit/nvidia-cdi-hook")


def _update_strategy(get: t.Callable[[str], Value]) -> Section:
    """The update strategy of a DaemonSet on whose pods no GPU client depends."""
    if get("daemonsets.updateStrategy") == "OnDelete":
        return {"type": "OnDelete"}
    unavailable = _number(str(get("daemonsets.rollingUpdate.maxUnavailable") or "1"))
    return {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": unavailable}}


def _number(text: str) -> int | str:
    """Converts text to a number, or returns a percentage such as C(25%), as in a DaemonSet."""
    return int(text) if re.fullmatch("[0-9]{1,9}", text) else text
