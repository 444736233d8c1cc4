# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From policy, release and a cluster's Nodes to what the cluster shall hold, or one refusal. Pure. PRIVATE."""

from __future__ import annotations

import posixpath
import typing as t

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import cluster_nodes as nodes
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import cluster_pools as pools
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import cluster_profiles, components
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.cluster_images import VENDOR, image, pull_policy
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.cluster_parts import (
    Context,
    environment,
    part,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.formats import Policy
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.matrix import Release
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.refusals import Refusals, Refused, policy_error
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.schema import shown
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.wording import some_of

Facts = t.Mapping[str, t.Any]
Plan = t.Dict[str, t.Any]

_INSTALL_DIR = "/usr/local/nvidia"
TOLERATION = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}

# What a policy may switch on and this version does not deliver: (path, value that asks for it, what to do).
_UNSUPPORTED: tuple[tuple[str, t.Any, str], ...] = (
    ("driver.useNvidiaDriverCRD", True, "Set it to false; an NVIDIADriver may be the policy itself."),
    ("driver.driverType", "vgpu", "Set it to gpu: this version delivers drivers of that type only."),
    ("driver.driverType", "vgpu-host-manager", "Set it to gpu: this version delivers drivers of that type only."),
    ("sandboxWorkloads.enabled", True, "Set it to false: this version delivers containers only."),
    ("platform.openshift", True, "OpenShift is not supported yet."),
    ("gpuCluster.deployCR", True, "Give a ClusterPolicy, or values with false here: dynamic resource allocation is not "
                                  "supported yet."),
)
# What this version leaves out without harm to the rest: (path, what is said).
_LEFT_OUT: tuple[tuple[str, str], ...] = (
    ("operator.labels", "they are for the pod of the GPU Operator, which does not run"),
    ("operator.annotations", "they are for the pod of the GPU Operator, which does not run"),
    ("operator.metrics", "they are those of the GPU Operator, which does not run"),
    ("operator.use_ocp_driver_toolkit", "it is for OpenShift alone"),
    ("driver.livenessProbe", "the driver's container has a startup probe only"),
    ("driver.readinessProbe", "the driver's container has a startup probe only"),
)
_CHECKS = ("driver", "toolkit", "cuda", "plugin")
_UNSUPPORTED_NAMES = ("driver.repoConfig.configMapName", "driver.repoConfig.name", "driver.certConfig.name",
                      "driver.kernelModuleConfig.name")


def resolve_cluster(policy: Policy, release: Release, facts: Facts | None, places: t.Mapping[str, str],
                    inventory_hosts: t.Mapping[str, str], settings: t.Mapping[str, t.Any],
                    disruption: str) -> Plan:
    """The plan of the cluster, C(gpu_plan.cluster).

    facts: what read_cluster returned, None where manifests are only rendered. places: of components.placements.
    inventory_hosts: by host of the inventory the name of its Node. settings: C({namespace, image_registry,
    pull_secrets, node_os, placement, profiles}), all optional; placement: gpu_placement as the user gave it; profiles:
    L(cluster_profiles.theirs) has them. Raises PolicyError with every reason.
    """
    reasons: list[Refused] = []
    by_host, notes = _hosts(facts, inventory_hosts, reasons)
    gpu = sorted(name for name, node in _nodes(facts).items() if node["gpu"])
    on_host = _on_host(facts, gpu, by_host, places, settings, reasons, notes)
    context = Context(policy, release, str(settings.get("image_registry") or VENDOR),
                      list(settings.get("pull_secrets") or []), disruption, _runtime(facts, gpu), said=notes,
                      service_monitors=None if facts is None else bool(facts.get("service_monitors")))
    reasons += _unsupported(policy, facts)
    notes += [f"{path} is set in the policy: {text}." for path, text in _LEFT_OUT if policy.get(path)]
    found: list[pools.Pool] = []
    parts = _parts(context, places, facts, gpu, on_host, settings, found, reasons)
    notes += _partly(context, parts, on_host)
    served = [pools.described(pool, release, context.mirror, _nodes(facts)) for pool in found]
    if reasons:
        raise policy_error(policy.origin, release.version, [(one, ["cluster"]) for one in reasons], " in the cluster",
                           pools=served)
    return {
        "namespace": str(settings.get("namespace") or "gpu-operator"), "psa": bool(policy.get("psa.enabled")),
        "release": release.version, "registry": context.mirror, "server": (facts or {}).get("server"),
        "common": _common(context), "components": parts,
        "nodes": {"gpu": gpu, "cpu": len(_nodes(facts)) - len(gpu), "pools": nodes.pools(_nodes(facts)),
                  "by_host": by_host},
        "pools": served,
        "deploy": {"components": {name: one["state"] == "present" for name, one in parts.items()}, "on_host": on_host,
                   "mig_default": str(policy.get("migManager.config.default") or ""),
                   "hosts": list(by_host.values()) if places["feature_discovery"] in ("host", "hybrid") else []},
        "notes": context.said,
    }


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
             settings: t.Mapping[str, t.Any], reasons: list[Refused], notes: list[str]) -> dict[str, list[str]]:
    """By Node the components that it has without the cluster: as a host of the inventory, or as a prepared system."""
    delivered = [one.name for one in components.IN_CLUSTERS if places[one.name] in ("host", "hybrid")]
    found = {node: list(delivered) for node in by_host} if delivered else {}
    theirs = cluster_profiles.theirs({name: _nodes(facts)[name] for name in gpu}, places,
                                     components.named(settings.get("placement"), "cluster"),
                                     settings.get("profiles") or {}, reasons)
    notes += cluster_profiles.told(theirs)
    for name, mine in theirs.items():
        found[name] = list(dict.fromkeys([*found.get(name, ()), *mine]))
    return found


def _parts(context: Context, places: t.Mapping[str, str], facts: Facts | None, gpu: t.Sequence[str],
           on_host: t.Mapping[str, t.Sequence[str]], settings: t.Mapping[str, t.Any], found: list[pools.Pool],
           reasons: list[Refused]) -> dict[str, Plan]:
    """By component its plan. found: gets the pools of drivers; reasons: gets what cannot be."""
    parts: dict[str, Plan] = {}
    for component in components.IN_CLUSTERS:
        try:
            absent = _absent(context, component, places[component.name], facts, gpu, on_host)
            if absent is None and component.name == "driver":
                context.systems = _systems(facts, gpu, on_host, settings)
                context.driver = _driver(context, facts, gpu, on_host, found)
            parts[component.name] = ({"state": "absent", "because": [absent]} if absent
                                     else part(context, component.name, component.section or component.name))
            if absent is None:
                context.present.add(component.name)
        except Refused as error:
            reasons.append(error)
        except Refusals as error:
            reasons += error.reasons
    return parts


def _runtime(facts: Facts | None, gpu: t.Sequence[str]) -> str:
    every = _nodes(facts)
    return nodes.runtime_of(every[name] for name in gpu or every)


def _unsupported(policy: Policy, facts: Facts | None) -> list[Refused]:
    found = [Refused(f"{path}: {shown(policy.get(path))} is not supported in a cluster yet", remedy)
             for path, value, remedy in _UNSUPPORTED if policy.get(path) == value]
    found += [Refused(f"{path}: ConfigMap {policy.get(path)!r} is not supported in a cluster yet", "Leave it out.")
              for path in _UNSUPPORTED_NAMES if policy.get(path)]
    if any((node.get("os") or {}).get("id") == "rhcos" for node in _nodes(facts).values()):
        found.append(Refused("Nodes run Red Hat Enterprise Linux CoreOS (OpenShift), which is not supported yet",
                             "Use the GPU Operator there."))
    return found


def _absent(context: Context, component: components.Component, place: str, facts: Facts | None,
            gpu: t.Sequence[str], on_host: t.Mapping[str, t.Sequence[str]]) -> str | None:
    """Why the cluster does not get a component, None where it does."""
    if component.section and not context.on(component.section):
        return f"{component.section}.enabled is false"
    if place in ("none", "host"):
        return "gpu_placement delivers it on hosts" if place == "host" else "gpu_placement says so"
    if component.name == "nfd" and facts is not None and facts["nfd"] == "foreign":
        return "reused: the cluster has an NFD of somebody else"
    known = gpu or list(_nodes(facts))
    if known and all(component.name in on_host.get(name, ()) for name in known):
        return "every GPU node has it itself"
    return None


def _systems(facts: Facts | None, gpu: t.Sequence[str], on_host: t.Mapping[str, t.Sequence[str]],
             settings: t.Mapping[str, t.Any]) -> list[nodes.System]:
    """The systems for which there must be a driver container. Raises Refused."""
    asked = settings.get("node_os") or []
    if asked:
        parsed = [nodes.parse_tag(str(text)) for text in asked]
        if None in parsed:
            raise Refused(f"gpu_node_os {list(asked)!r} names no systems",
                          "Write them as ubuntu24.04 or rhel9.6.")
        return [system for system in parsed if system is not None]
    every = _nodes(facts)
    names = [name for name in gpu or every if "driver" not in on_host.get(name, ())]
    if not names:
        raise Refused("no Node is known whose operating system tells which driver image to use",
                      "Name a cluster by gpu_kubeconfig, or set gpu_node_os, such as [ubuntu24.04].")
    unknown = [name for name in names if not every[name].get("os")]
    # Where no Node has NFD's labels yet, one without a GPU may have any system.
    if unknown and (gpu or len(unknown) == len(names)):
        raise Refused(f"the operating system of {', '.join(sorted(unknown))} is not known",
                      "Let NFD label the Nodes, or set gpu_node_os.")
    return sorted({(every[name]["os"]["id"], every[name]["os"]["version"]) for name in names if name not in unknown})


def _common(context: Context) -> Plan:
    """What is the same for the pods of all components."""
    get = context.get
    cdi, nri = bool(get("cdi.enabled")), bool(get("cdi.nriPluginEnabled"))
    runtime_class = str(get("operator.runtimeClass") or "nvidia")
    return {
        "tolerations": list(get("daemonsets.tolerations") or [TOLERATION]),
        "priority_class": str(get("daemonsets.priorityClassName") or "system-node-critical"),
        "update_strategy": str(get("daemonsets.updateStrategy") or "RollingUpdate"),
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
        "cdi": cdi, "nri": nri, "mig_strategy": str(get("mig.strategy") or ""),
        "validation": {
            "image": image(context.policy, context.release, "validator", context.mirror),
            "pull": pull_policy(context.policy, "validator"),
            "resources": get("validator.resources") or {},
            "env": {check: environment(get(f"validator.{check}.env")) for check in _CHECKS},
        },
    }


def _partly(context: Context, parts: t.Mapping[str, Plan],
            on_host: t.Mapping[str, t.Sequence[str]]) -> list[str]:
    """What is delivered and does not serve all that it is meant for, each a sentence."""
    found = []
    if context.get("nfd.nodefeaturerules") and parts.get("nfd", {}).get("state") == "absent":
        found.append("nfd.nodefeaturerules is set in the policy: NFD is not delivered here, and neither are its rules.")
    extra = [one.get("kind") for one in context.get("extraObjects") or () if isinstance(one, dict)]
    left = sorted({str(kind) for kind in extra if kind != "NVIDIADriver"})
    if left:
        found.append(f"extraObjects is set in the policy: {', '.join(left)} may be anything and is not delivered with "
                     "it. Give these manifests to gpuops.nvidia.operands (its option manifests).")
    theirs = [name for name, names in on_host.items() if "container_toolkit" in names and "device_plugin" not in names]
    if theirs and {"container_toolkit", "device_plugin"} <= context.present and context.on("cdi"):
        found.append(f"{some_of(theirs)}: the toolkit is the host's there and the cluster's elsewhere, and one device "
                     f"plugin serves both. Give these hosts a link {_hook(context)} to their nvidia-cdi-hook.")
    return found


def _hook(context: Context) -> str:
    """The program that CDI specifications name, where it comes with the toolkit's container; else empty."""
    if "container_toolkit" not in context.present:
        return ""
    return posixpath.join(str(context.get("toolkit.installDir") or _INSTALL_DIR), "toolkit/nvidia-cdi-hook")


def _number(text: t.Any) -> int | str:
    """C(1) or C(25%), as a DaemonSet has them."""
    return int(text) if str(text).isdigit() else str(text)


def _driver(context: Context, facts: Facts | None, gpu: t.Sequence[str], on_host: t.Mapping[str, t.Sequence[str]],
            found: list[pools.Pool]) -> pools.Delivered:
    """What all driver containers are. found: gets the pools. Raises Refused and Refusals."""
    served = {name: _nodes(facts)[name] for name in gpu if "driver" not in on_host.get(name, ())}
    reasons: list[Refused] = []
    found += pools.pools(context.policy, context.release, served, reasons)
    if reasons:
        raise Refusals(reasons)
    return pools.one_for_all(context.policy, context.release, found)
