# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From policy, release and a cluster's Nodes to what the cluster shall hold, or one refusal. Pure. PRIVATE."""

from __future__ import annotations

import posixpath
import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._result import allows
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._components import IN_CLUSTERS, device_plugin
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._components.component import Component, Context, environment
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import components
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.label_keys import MIG_CONFIG
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.refusals import (
    Concerned,
    Refusals,
    Refused,
    left_out,
    policy_error,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.releases import Release, version_key
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.schema import shown
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.wording import labels_stay, some_of
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._drivers import cluster_pools as pools
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory import cluster_nodes as nodes
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import deploy_labels
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning import cluster_profiles
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import cluster_openshift
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.cluster_images import (
    VENDOR,
    image,
    of_former_releases,
    pull_policy,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.defaults import look
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.formats import Policy

Facts = t.Mapping[str, t.Any]
Plan = t.Dict[str, t.Any]

OPENSHIFT_NAMESPACE = cluster_openshift.NAMESPACE
_INSTALL_DIR = "/usr/local/nvidia"
TOLERATION = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}

# What a policy may switch on and this version does not deliver: (path, value that asks for it, what to do).
_UNSUPPORTED: tuple[tuple[str, t.Any, str], ...] = (
    ("sandboxWorkloads.enabled", True, "Set it to false: this version delivers containers only."),
    ("gpuCluster.deployCR", True, "Give a ClusterPolicy, or values with false here: dynamic resource allocation is not "
                                  "supported yet."),
)
# What this version leaves out without harm to the rest: (path, what is said).
_LEFT_OUT: tuple[tuple[str, str], ...] = (
    ("operator.labels", "they are for the pod of the GPU Operator, which does not run"),
    ("operator.annotations", "they are for the pod of the GPU Operator, which does not run"),
    ("operator.metrics", "they are those of the GPU Operator, which does not run"),
)
_CHECKS = ("driver", "toolkit", "cuda", "plugin")


def resolve_cluster(policy: Policy, release: Release, facts: Facts | None, places: t.Mapping[str, str],
                    inventory_hosts: t.Mapping[str, str], settings: t.Mapping[str, t.Any],
                    disruption: str) -> Plan:
    """The plan of the cluster, C(gpu_plan.cluster).

    facts: what read_cluster returned, None where manifests are only rendered. places: of components.placements.
    inventory_hosts: by host of the inventory the name of its Node. settings: C({namespace, image_registry,
    pull_secrets, proxy, node_os, placement, profiles, sharing, monitoring, plugin_configs, strict}), all optional.
    proxy: of L(_proxy.read); placement: gpu_placement as the user gave it; profiles: L(cluster_profiles.theirs) has
    them; sharing: L(sharing.read) of gpu_sharing; monitoring: L(monitoring.read) of gpu_monitoring; plugin_configs: by
    Node the name of its configuration; strict: whether one Node without a driver that suits it leaves all without a
    plan. Raises PolicyError with every reason.
    """
    reasons: list[Refused] = []
    by_host, notes = _hosts(facts, inventory_hosts, reasons)
    gpu = sorted(name for name, node in _nodes(facts).items() if node["gpu"])
    refused: list[Concerned] = []
    on_host = _on_host(facts, gpu, by_host, places, settings, refused, notes)
    with_toolkit = {name: _nodes(facts)[name] for name in gpu if "container_toolkit" not in on_host.get(name, ())}
    openshift = cluster_openshift.found(policy, facts)
    runtime = _runtime(facts, gpu, with_toolkit)
    context = Context(policy, release, str(settings.get("image_registry") or VENDOR),
                      list(settings.get("pull_secrets") or []), disruption,
                      "crio" if openshift else runtime.value, openshift,
                      policy.enabled("devicePlugin") and places["device_plugin"] == "cluster", notes=notes,
                      service_monitors=None if facts is None else bool(facts.get("service_monitors")),
                      prometheus_rules=None if facts is None else bool(facts.get("prometheus_rules")),
                      monitoring=settings.get("monitoring"), proxy=settings.get("proxy") or {},
                      gpu_sharing=settings.get("sharing"), namespace=namespace_of(settings), facts=facts, gpu_nodes=gpu,
                      on_host=on_host, node_os=list(settings.get("node_os") or []))
    reasons += _unsupported(policy)
    notes += [f"{path} is set in the policy: {text}." for path, text in _LEFT_OUT if policy.get(path)]
    notes += _of_platform(context, namespace_of(settings))
    configs: dict[str, str] = {}
    if places["device_plugin"] == "cluster" and policy.enabled("devicePlugin"):
        known = _nodes(facts) if facts else by_host
        configs = {node: name for node, name in (settings.get("plugin_configs") or {}).items() if node in known}
        context.sharing = device_plugin.settle(policy, context.gpu_sharing, facts, configs, reasons, refused, notes)
        if context.sharing and not allows(disruption, "drain"):
            notes += device_plugin.hold(context.sharing, configs, _nodes(facts), disruption)
    parts = _parts(context, places, reasons)
    without_driver = [*context.without_driver, *context.faults()]
    refused += without_driver
    reasons += _reasons_for_no_plan(refused, gpu, settings)
    notes += _partly(context, parts, on_host, by_host)
    if not openshift and "container_toolkit" in context.present:
        notes += _other_runtimes(runtime, with_toolkit)
    mig_default = str(policy.get("migManager.config.default") or "")
    notes += _without_layout(context, mig_default, {name: _nodes(facts)[name]["labels"] for name in gpu
                                                    if "mig_manager" not in on_host.get(name, ())})
    out = set() if reasons else _named(without_driver)
    served = [pools.described(pool, release, context.mirror, _nodes(facts)) for pool in context.pools
              if out.isdisjoint(pool.nodes)]
    if reasons:
        raise policy_error(policy.origin, release.version, [(one, ["cluster"]) for one in reasons], " in the cluster",
                           pools=served)
    rejected = left_out(refused)
    deploy = {
        "components": {name: one["state"] == "present" for name, one in parts.items()}, "on_host": on_host,
        "mig_default": mig_default, "mig_changes": allows(disruption, "idle"),
        "pods_may_end": allows(disruption, "drain"), "without_driver": sorted(_named(context.without_driver)),
        "hosts": list(by_host.values()) if places["feature_discovery"] in ("host", "hybrid") else [],
        "plugin_configs": configs,
    }
    notes += _staying(deploy, {name: _nodes(facts)[name] for name in gpu})
    return {
        "namespace": namespace_of(settings),
        "psa": bool(policy.get("psa.enabled")) and (not openshift or namespace_of(settings) == OPENSHIFT_NAMESPACE),
        "release": release.version, "disruption": disruption, "registry": context.mirror,
        "server": (facts or {}).get("server"),
        "common": _common(context), "components": parts,
        "nodes": {"gpu": gpu, "cpu": len(_nodes(facts)) - len(gpu), "pools": nodes.pools(_nodes(facts)),
                  "by_host": by_host},
        "pools": served, "rejected": rejected, "deploy": deploy, "notes": context.notes,
    }


def _of_platform(context: Context, namespace: str) -> list[str]:
    """What does nothing on this platform, each a sentence."""
    if not context.openshift:
        toolkit = context.get("operator.use_ocp_driver_toolkit")
        return ["operator.use_ocp_driver_toolkit is set in the policy: it is for OpenShift alone."] if toolkit else []
    if namespace == OPENSHIFT_NAMESPACE:
        return []
    psa = ", nor does psa.enabled set labels" if context.get("psa.enabled") else ""
    return [f"gpu_namespace is {namespace}: OpenShift's own Prometheus does not look into it{psa}; name it "
            f"{OPENSHIFT_NAMESPACE}, where nobody else lives."]


def namespace_of(settings: t.Mapping[str, t.Any]) -> str:
    """Where the operands live."""
    return str(settings.get("namespace") or "gpu-operator")


def _nodes(facts: Facts | None) -> t.Mapping[str, t.Mapping[str, t.Any]]:
    return {} if facts is None else t.cast("t.Mapping[str, t.Mapping[str, t.Any]]", facts["nodes"])


def _hosts(facts: Facts | None, inventory_hosts: t.Mapping[str, str],
           reasons: list[Refused]) -> tuple[dict[str, str], list[str]]:
    """(by Node its host of the inventory, notes)."""
    taken: dict[str, str] = {}
    strangers = []
    for host, node in inventory_hosts.items():
        if node in taken:
            reasons.append(Refused(f"hosts {taken[node]} and {host} both are Node {node!r}",
                                   "Set gpu_node_name of each host to its own Node."))
        elif facts is not None and node not in facts["nodes"]:
            strangers.append(host)
        else:
            taken[node] = host
    notes = [f"{', '.join(strangers)}: no such Node is in the cluster; served as hosts only (gpu_node_name names a "
             "host's Node)."] if strangers else []
    return dict(sorted(taken.items())), notes


def _on_host(facts: Facts | None, gpu: t.Sequence[str], by_host: t.Iterable[str], places: t.Mapping[str, str],
             settings: t.Mapping[str, t.Any], refused: list[Concerned], notes: list[str]) -> dict[str, list[str]]:
    """By Node the components that it has without the cluster: as a host of the inventory, or as a prepared system."""
    delivered = [one.name for one in IN_CLUSTERS if places[one.name] in ("host", "hybrid")]
    found = {node: list(delivered) for node in by_host} if delivered else {}
    theirs = cluster_profiles.theirs({name: _nodes(facts)[name] for name in gpu}, places,
                                     components.named(settings.get("placement"), "cluster"),
                                     settings.get("profiles") or {}, refused)
    notes += cluster_profiles.told(theirs)
    for name, mine in theirs.items():
        found[name] = list(dict.fromkeys([*found.get(name, ()), *mine]))
    return found


def _parts(context: Context, places: t.Mapping[str, str], reasons: list[Refused]) -> dict[str, Plan]:
    """By component its plan. reasons: gets what cannot be."""
    parts: dict[str, Plan] = {}
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
                         settings: t.Mapping[str, t.Any]) -> list[Refused]:
    """Why there is no plan at all because of Nodes: gpu_strict is set, or no Node with a GPU is left."""
    strict = settings.get("strict", True) or _named(refused).issuperset(gpu)
    return [one.of(names) for one, names in refused] if strict else []


def _named(refused: t.Iterable[Concerned]) -> set[str]:
    return {name for _reason, names in refused for name in names}


def _other_runtimes(runtime: nodes.Agreed, served: t.Mapping[str, t.Mapping[str, t.Any]]) -> list[str]:
    """Which Nodes have another container runtime than the one that the toolkit configures, as a sentence."""
    others = [name for name, node in served.items() if node["runtime"] not in ("", runtime.value)]
    return [f"{some_of(others)}: the container runtime is not {runtime.value}, the only one that the toolkit of the "
            f"cluster configures, because {runtime.because}. Install the toolkit on these Nodes yourself, or add them "
            "to gpu_hosts and set gpu_placement: hybrid."] if others else []


def _runtime(facts: Facts | None, gpu: t.Sequence[str], served: t.Collection[str]) -> nodes.Agreed:
    """The container runtime for the cluster. served: the Nodes that get their toolkit from it, which count first."""
    every = _nodes(facts)
    return nodes.runtime_of((every[name] for name in served or gpu or every),
                            str((facts or {}).get("toolkit_runtime") or ""))


def _unsupported(policy: Policy) -> list[Refused]:
    found = [Refused(f"{path}: {shown(value)} is not supported in a cluster yet", remedy)
             for path, value, remedy in _UNSUPPORTED if policy.get(path) == value]
    selector = policy.get("driver.nvidiaDriverCRD.nodeSelector")
    if selector and policy.get("driver.useNvidiaDriverCRD"):
        found.append(Refused(f"driver.nvidiaDriverCRD.nodeSelector: {shown(selector)} is not supported in a cluster",
                             "Give an NVIDIADriver with this nodeSelector instead, beside the policy."))
    return found


def _absent(context: Context, component: Component, place: str) -> str:
    """Why the cluster does not get a component, empty where it does."""
    section = component.entry.section
    if section and not context.enabled(section):
        return f"{section}.enabled is false"
    if place in ("none", "host"):
        return "gpu_placement delivers it on hosts" if place == "host" else "gpu_placement says so"
    foreign = component.foreign(context.facts) if context.facts is not None else ""
    known = context.gpu_nodes or list(context.nodes)
    if not foreign and known and all(component.name in context.on_host.get(name, ()) for name in known):
        return "every GPU node has it itself"
    return foreign


def _common(context: Context) -> Plan:
    """What is the same for the pods of all components."""
    get = context.get
    cdi, nri = bool(get("cdi.enabled")), bool(get("cdi.nriPluginEnabled"))
    runtime_class = str(get("operator.runtimeClass") or "nvidia")
    return {
        "tolerations": list(get("daemonsets.tolerations") or [TOLERATION]),
        "priority_class": str(get("daemonsets.priorityClassName") or "system-node-critical"),
        "update_strategy": str(get("daemonsets.updateStrategy") or "RollingUpdate"),
        # A daemon that is replaced ends its clients.
        "mps_rolls": allows(context.disruption, "drain"),
        "max_unavailable": _number(get("daemonsets.rollingUpdate.maxUnavailable") or "1"),
        "labels": dict(get("daemonsets.labels") or {}), "annotations": dict(get("daemonsets.annotations") or {}),
        "pod_security_context": dict(get("daemonsets.podSecurityContext") or {}),
        "runtime": context.runtime, "runtime_class": runtime_class,
        # Pods get GPUs by the class, unless the runtime has no such handler.
        "pod_runtime_class": "" if nri or (not cdi and context.runtime == "crio") else runtime_class,
        "host_root": str(get("hostPaths.rootFS") or "/"),
        "driver_install_dir": str(get("hostPaths.driverInstallDir") or "/run/nvidia/driver"),
        "kubelet_root": str(get("hostPaths.kubeletRootDir") or "/var/lib/kubelet"),
        "toolkit_install_dir": str(get("toolkit.installDir") or _INSTALL_DIR), "cdi_hook": _hook(context),
        # What operands do and are allowed follows the release, as their images do.
        "since": {release: version_key(context.release.version) >= version_key(release)
                  for release in ("25.3.0", "25.10.0", "26.3.0", "26.7.0")},
        "openshift": context.openshift, "cdi": cdi, "nri": nri, "mig_strategy": str(get("mig.strategy") or ""),
        "validation": {
            "image": image(context.policy, context.release, "validator", context.mirror),
            "pull": pull_policy(context.policy, "validator"),
            "resources": get("validator.resources") or {},
            "env": {check: environment(get(f"validator.{check}.env")) for check in _CHECKS},
        },
    }


def _partly(context: Context, parts: t.Mapping[str, Plan],
            on_host: t.Mapping[str, t.Sequence[str]], by_host: t.Container[str]) -> list[str]:
    """What is delivered and does not serve all that it is meant for, each a sentence."""
    found = []
    if context.get("nfd.nodefeaturerules") and parts.get("nfd", {}).get("state") == "absent":
        found.append("nfd.nodefeaturerules is set in the policy: NFD is not delivered here, and neither are its rules.")
    extra = [one.get("kind") for one in context.get("extraObjects") or () if isinstance(one, dict)]
    left = sorted({str(kind) for kind in extra if kind != "NVIDIADriver"})
    if left:
        found.append(f"extraObjects is set in the policy: {', '.join(left)} may be anything and is not delivered with "
                     "it. Give these manifests to gpuops.nvidia.operands (its option manifests).")
    automatic = any(look(source.spec, "driver.upgradePolicy.autoUpgrade") for source in context.policy.sources)
    if automatic and "driver" in context.present:
        found.append("driver.upgradePolicy.autoUpgrade is true in the policy: no running driver is replaced in a "
                     "cluster by itself. A run names the Nodes whose driver is outdated, and the commands.")
    former = of_former_releases(context.policy, context.release)
    if former:
        told = some_of([f"{path} {version}" for path, version in former.items()])
        found.append(f"{told} in the policy: the version of an older release, which {context.release.version} has "
                     "replaced. Take it out of the policy unless it was chosen.")
    # Packages of hosts have it where the device plugin looks; a prepared system may have it anywhere.
    theirs = [name for name, names in on_host.items() if name not in by_host
              and "container_toolkit" in names and "device_plugin" not in names]
    if theirs and {"container_toolkit", "device_plugin"} <= context.present and context.enabled("cdi"):
        found.append(f"{some_of(theirs)}: the toolkit is the system's there and the cluster's elsewhere. The device "
                     "plugin takes its nvidia-cdi-hook from /usr/bin; where it is in another folder, give these Nodes "
                     "a link.")
    return found


def _staying(deploy: Plan, gpu: t.Mapping[str, t.Mapping[str, t.Any]]) -> list[str]:
    """Which Nodes keep labels by which pods run there that are not planned any more, a sentence."""
    asked = deploy_labels.parse_deploy(deploy)
    # A Node whose NFD labels are missing is still one with a GPU to the plan.
    kept = {name: deploy_labels.kept_labels(deploy_labels.Node(name, node["labels"], node["annotations"]), asked).keys()
            - {deploy_labels.LABELS.get(one) for one in asked.delivered_on(name)} for name, node in gpu.items()}
    names = [name for name, labels in kept.items() if labels]
    return [labels_stay(some_of(names), sorted({key for labels in kept.values() for key in labels}))] if names else []


def _without_layout(context: Context, layout: str, nodes_labels: t.Mapping[str, t.Mapping[str, str]]) -> list[str]:
    """Which Nodes do not get the default layout, as the MIG manager would destroy the instances that they have."""
    if not layout or "mig_manager" not in context.present or allows(context.disruption, "idle"):
        return []
    kept = [name for name, labels in nodes_labels.items()
            if deploy_labels.mig_capable(labels) and not labels.get(MIG_CONFIG)]
    return [f"{some_of(kept)}: no MIG layout is asked for, and migManager.config.default ({layout}) is not, as "
            f"gpu_disruption is {context.disruption}: it would destroy instances that were made by hand. Label the "
            f"Nodes with {MIG_CONFIG}, or set gpu_disruption: idle."] if kept else []


def _hook(context: Context) -> str:
    """The program that CDI specifications name, where it comes with the toolkit's container; else empty."""
    if "container_toolkit" not in context.present:
        return ""
    return posixpath.join(str(context.get("toolkit.installDir") or _INSTALL_DIR), "toolkit/nvidia-cdi-hook")


def _number(text: t.Any) -> int | str:
    """C(1) or C(25%), as a DaemonSet has them."""
    return int(text) if re.fullmatch("[0-9]{1,9}", str(text)) else str(text)
