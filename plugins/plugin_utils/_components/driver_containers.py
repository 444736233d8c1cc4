# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan of the driver's DaemonSets in a cluster. Pure. PRIVATE.

There is one DaemonSet for each combination of a policy (the section driver, or an NVIDIADriver), an operating system
and, with precompiled modules, a kernel. Source of names, labels and selectors: GPU Operator 26.7. For the section
driver, the operator uses the operating system of an arbitrary Node; here each Node gets the image for its own system.
"""

from __future__ import annotations

import collections
import hashlib
import re
import typing as t
from dataclasses import dataclass

from ansible_collections.gpuops.nvidia.plugins.module_utils import _proxy
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import allows
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._components import component, driver_files
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import node_terms, releases
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.facts import NO_CLUSTER, ClusterFacts
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.refusals import Refusals, Refused
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.releases import Release
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.schema import shown
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.untyped import Data, Section
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.wording import some_of
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._drivers import cluster_pools as pools
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory import cluster_nodes as nodes
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import cluster_images as images
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import (
    cluster_openshift,
    driver_references,
    upgrade_policy,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.formats import Policy

Site = t.Tuple[nodes.System, str]

_SIDE = ("gds", "gdrcopy")
_PLAIN = "nvidia-driver-daemonset"
_FOR_PACKAGES = ("driver.repoConfig.configMapName", "driver.certConfig.name", "driver.secretEnv")
_MODULE_FILES = ("nvidia.conf", "nvidia-uvm.conf", "nvidia-modeset.conf", "nvidia-peermem.conf")
# The maximum length of a label value; names of objects can be longer.
_LABEL = 63
# The digits 0 to 9 as encoded by Kubernetes' SafeEncodeString.
_DIGITS = str.maketrans("0123456789", "456789bcdf")
# Variables that allow the driver manager to evict pods and to drain the Node.
_MOVES_PODS = ("ENABLE_GPU_POD_EVICTION", "ENABLE_AUTO_DRAIN")


@dataclass(frozen=True)
class Cluster:
    """The Nodes of a cluster. found: their driver pools; sites: the system and kernel of each Node, for clusters in
    which no Node is known to have a GPU; asked: the systems in gpu_node_os."""

    found: t.Sequence[pools.Pool]
    sites: t.Sequence[Site]
    asked: t.Sequence[nodes.System]


@dataclass(frozen=True)
class DaemonSetTarget:
    """A DaemonSet to plan. policy: the policy of its Nodes; os_tag: the operating system as in image tags; kernel:
    empty if the modules are built on the Node."""

    policy: Policy
    system: nodes.System
    os_tag: str
    kernel: str
    driver: pools.DaemonSetDriver


class Own(t.TypedDict):
    """The values that the NVIDIADriver of a DaemonSet sets in place of the section daemonsets."""

    labels: t.Dict[str, str]
    annotations: t.Dict[str, str]
    tolerations: t.List[Section]
    priority_class: str
    pod_security_context: Section


class DaemonSet(t.TypedDict):
    """The plan of a DaemonSet. app: the label that selects its pods; owner: the NVIDIADriver, empty for none; os,
    kernel: as in L(DaemonSetTarget); marks: labels of its pods; affinity: node selector terms, of which at least one
    must match; images, pull: references and pull policies, by image name; startup_probe: in seconds; secret_env: the
    name of a Secret, empty for none; own: the values that an NVIDIADriver sets itself; upgrade: how its pods are
    replaced."""

    name: str
    app: str
    owner: str
    os: str
    kernel: str
    marks: t.Dict[str, str]
    node_selector: t.Dict[str, str]
    affinity: t.List[Data]
    version: str
    kernel_module_type: str
    because: t.List[str]
    images: t.Dict[str, str]
    pull: t.Dict[str, str]
    pull_secrets: t.List[str]
    args: t.List[str]
    env: t.Dict[str, str]
    resources: Section
    host_network: bool
    manager_env: t.Dict[str, str]
    startup_probe: t.Dict[str, int]
    secret_env: str
    gds: bool
    gdrcopy: bool
    rdma: bool
    host_mofed: bool
    gds_env: t.Dict[str, str]
    gdrcopy_env: t.Dict[str, str]
    gds_args: t.List[str]
    gdrcopy_args: t.List[str]
    files: t.List[driver_files.File]
    own: Own
    upgrade: upgrade_policy.UpgradePolicy


class DriverPart(component.PresentPlan):
    """The plan in a cluster. pools: the DaemonSets; kept: the names of DaemonSets that remain unchanged."""

    pools: t.List[DaemonSet]
    kept: t.List[str]


def cluster_plan(context: component.Context, shared: component.PresentPlan) -> component.ClusterPart:
    """L(DriverPart), or an absent part if no Node gets a driver and none is kept. Raises Refused and Refusals."""
    every, gpu, asked = context.nodes, context.gpu_nodes, _asked_systems(context.node_os)
    names = [name for name in gpu or every if "driver" not in context.on_host.get(name, ())]
    if not names and not asked:
        raise Refused("no Node is known that needs a driver, so the operating system of the driver image is not known",
                      "Set gpu_kubeconfig to a cluster with Nodes, or set gpu_node_os, such as [ubuntu24.04].")
    if not asked:
        names = _of_known_systems(context, names)
    if gpu:
        context.pools += pools.pools(context.policy, context.release, {name: every[name] for name in names},
                                     context.without_driver, context.faulty)
    running = pools.running_of(context.facts or NO_CLUSTER)
    agreed = pools.with_common_driver(context.pools, context.release, asked, running,
                                      context.without_driver)
    refused = {name for _reason, having in (*context.without_driver, *context.faults()) for name in having}
    left = [name for name in names if name not in refused]
    if gpu and not left:
        because = ["no Node can get a driver"]
        if context.faulty:
            return _part(shared, [], because, _kept(context))
        return {"state": "absent", "because": because}
    reasons = cluster_openshift.toolkit_refusals(
        context.policy, {} if gpu else {name: every[name] for name in left}, asked)
    if reasons:
        raise Refusals(reasons)
    lone = sorted(set(left).difference(*(pool.nodes for pool in agreed))) if gpu else []
    if lone:
        context.notes.append(f"{some_of(lone)}: no NVIDIADriver selects {'it' if len(lone) == 1 else 'them'}; no "
                             "driver is delivered there.")
    sites: list[Site] = [(system, "") for system in asked] or [
        ((system["id"], system["version"]), nodes.kernel_of(every[name]))
        for name in left for system in [every[name]["os"]] if system]
    made = _of_all_policies(context, Cluster(agreed, sites, asked))
    staying = _kept(context)
    if not made and not staying and not context.faulty:
        return {"state": "absent", "because": ["no NVIDIADriver selects a Node with a GPU"]}
    return _part(shared, made, list(dict.fromkeys(why for one in made for why in one["because"])), staying)


def _part(shared: component.PresentPlan, made: list[DaemonSet], because: list[str], kept: list[str]) -> DriverPart:
    return {**shared, "pools": made, "because": because, "kept": kept}


def _asked_systems(node_os: t.Sequence[object]) -> list[nodes.System]:
    """The systems in gpu_node_os. Raises Refused."""
    parsed = [nodes.parse_tag(str(text)) for text in node_os]
    if None in parsed:
        raise Refused(f"gpu_node_os {node_os!r} is not a list of operating systems",
                      "Write them in the form ubuntu24.04 or rhel9.6.")
    return [system for system in parsed if system is not None]


def _of_known_systems(context: component.Context, names: t.Sequence[str]) -> list[str]:
    """The Nodes whose system is known; the others get no driver. Raises Refused if none is known."""
    unknown = [name for name in names if not context.nodes[name].get("os")]
    reason = Refused("the operating system of the Node is not known", "Let NFD label the Node, or set gpu_node_os.")
    # Before NFD has labelled the Nodes, no GPU is known. Then at least one Node must have a known system.
    if unknown and context.gpu_nodes:
        context.without_driver.append((reason, unknown))
    elif unknown and len(unknown) == len(names):
        raise reason.of(unknown)
    return [name for name in names if name not in unknown]


def _of_all_policies(context: component.Context, cluster: Cluster) -> list[DaemonSet]:
    """The DaemonSets of all policies. Raises Refusals if the section driver, or an NVIDIADriver that selects no Node
    with a GPU, is refused."""
    reasons: list[Refused] = []
    made: list[DaemonSet] = []
    for policy in _policies(context.policy):
        if policy.driver_name in context.faulty:
            continue
        try:
            made += _daemon_sets(context, policy, cluster)
        except (Refused, Refusals) as error:
            selected = [name for pool in cluster.found if pool.policy.driver_name == policy.driver_name
                        for name in pool.nodes]
            if policy.driver_name and selected:
                context.faulty[policy.driver_name] = pools.refusals_of_driver(policy, error.reasons, selected)
            else:
                reasons += error.reasons
    if reasons:
        raise Refusals(reasons)
    return made


def _kept(context: component.Context) -> list[str]:
    """The names of the DaemonSets of refused NVIDIADrivers. They remain unchanged, because their Nodes would lose the
    driver without them. Adds a note for each."""
    known = (context.facts or NO_CLUSTER).get("nvidia_drivers", {})
    names = sorted(name for driver in context.faulty if driver in known
                   for name in known[driver]["there"].values())
    context.notes += [f"DaemonSet {name}: not changed until its NVIDIADriver can be resolved." for name in names]
    return names


def _daemon_sets(context: component.Context, policy: Policy, cluster: Cluster) -> list[DaemonSet]:
    """The plans of the DaemonSets of one policy. Raises Refused and Refusals."""
    deliveries = _targets(context, policy, cluster)
    if not deliveries:
        return []
    refused = [*_unsupported(policy), *driver_references.missing(policy, context.facts, context.namespace)]
    if refused:
        raise Refusals(refused)
    made = [_daemon_set(context, one, deliveries) for one in deliveries]
    context.notes += [*_without_effect(policy, context.facts), *_unknown(policy, deliveries)]
    return made


def _unsupported(policy: Policy) -> list[Refused]:
    most = upgrade_policy.read(policy)["max_unavailable"]
    if most.endswith("%") and int(most[:-1]) > 100:
        path = driver_references.path_text(policy, "driver.upgradePolicy.maxUnavailable")
        return [Refused(f"{path}: {most} is more than all Nodes", "Set a number, or a percentage up to 100%.")]
    if policy.driver_type != "vgpu-host-manager":
        return []
    path = "driver.driverType" if policy.get("driver.driverType") else "driver.nvidiaDriverCRD.driverType"
    return [Refused(f"{driver_references.path_text(policy, path)}: {shown(policy.driver_type)} is not supported in a "
                    "cluster yet", "Set it to gpu or vgpu: this version supports only containers.")]


def existing_names(policy: Policy, systems: t.Iterable[nodes.System], release: Release) -> list[str]:
    """The names that existing DaemonSets for these systems can have. An existing DaemonSet keeps its name."""
    if not policy.fallback or not policy.enabled("driver") or policy.get("driver.usePrecompiled"):
        return []
    return [_PLAIN, *sorted({f"{_PLAIN}-{nodes.tag(system, release)}" for system in systems})]


def has_kernel_daemon_sets(policy: Policy) -> bool:
    """Whether the policy has DaemonSets that are each for one kernel."""
    return policy.enabled("driver") and any(one.get("driver.usePrecompiled") for one in _policies(policy))


def has_nvidia_drivers(policy: Policy) -> bool:
    """Whether the policy has DaemonSets for NVIDIADrivers."""
    return policy.enabled("driver") and any(one.driver_name for one in _policies(policy))


def _policies(policy: Policy) -> list[Policy]:
    """The policies of NVIDIADrivers with a selector, followed by the policy of all other Nodes."""
    return [*(policy.for_pool(pool) for pool in policy.pools), *([policy] if policy.fallback else [])]


def _without_effect(policy: Policy, facts: ClusterFacts | None) -> list[str]:
    """Notes about keys of the policy that have no effect on the containers."""
    notes = []
    if policy.get("driver.usePrecompiled"):
        notes += [f"{driver_references.path_text(policy, path)} is ignored: with precompiled modules, no packages are "
                  "downloaded." for path in _FOR_PACKAGES if policy.get(path)
                  and (path != "driver.secretEnv" or not policy.driver_name)]
    path = "driver.kernelModuleConfig.name"
    strange = ([key for key in driver_references.keys(policy, path, facts) if key not in _MODULE_FILES]
               if policy.get(path) else [])
    if strange:
        notes.append(f"{driver_references.path_text(policy, path)}: no kernel module reads {', '.join(strange)} of "
                     f"ConfigMap {policy.get(path)!r}; allowed: {', '.join(_MODULE_FILES)}.")
    return notes + [f"{driver_references.path_text(policy, path)} is ignored: the driver container has only a startup "
                    "probe." for path in ("driver.livenessProbe", "driver.readinessProbe") if policy.get(path)]


def _unknown(policy: Policy, deliveries: t.Sequence[DaemonSetTarget]) -> list[str]:
    """Notes about driver versions of unknown branches."""
    versions = sorted({one.driver.version for one in deliveries if not one.driver.version.startswith("sha256:")})
    return [f"{driver_references.path_text(policy, 'driver.version')} {version}: driver branch "
            f"{releases.branch_of(version)} is not known to this collection, so its support of the GPUs is not checked."
            for version in versions if releases.branch(releases.branch_of(version)) is None]


def _targets(context: component.Context, policy: Policy, cluster: Cluster) -> list[DaemonSetTarget]:
    """The DaemonSets of one policy, sorted by system and kernel. Raises Refused and Refusals."""
    own = [pool for pool in cluster.found if pool.policy.driver_name == policy.driver_name]
    if context.gpu_nodes and not own:
        if policy.driver_name:
            context.notes.append(f"NVIDIADriver {policy.driver_name} selects no Node with a GPU; nothing is delivered "
                                 "for it.")
        return []
    precompiled = bool(policy.get("driver.usePrecompiled"))
    sites = ([(system, pool.situation.kernel) for pool in own
              for system in (cluster.asked or ([pool.situation.os] if pool.situation.os else []))]
             or [(system, kernel if precompiled else "") for system, kernel in cluster.sites])
    places: dict[tuple[str, str], nodes.System] = {}
    for system, kernel in sorted(sites):
        if kernel or not precompiled:
            places.setdefault((nodes.tag(system, context.release), kernel), system)
    if not places:
        raise Refused("driver.usePrecompiled needs an image for each kernel, but the kernels are not known",
                      "Set gpu_kubeconfig to the cluster, or driver.usePrecompiled to false.")
    if pools.is_digest(policy) and len(places) > 1:
        if cluster.asked:
            raise pools.digest_refusal(sorted(os_tag for os_tag, _kernel in places))
        # Nodes that are not known to have a GPU. Those with a known GPU were already refused when pools were computed.
        tags = collections.Counter(nodes.tag(system, context.release) for system, _kernel in sites)
        chosen = nodes.common_value(tags, pools.running_of(context.facts or NO_CLUSTER).systems,
                                    lambda value: (releases.version_key(value), value), "the newest")
        places = {place: system for place, system in places.items() if place[0] == chosen.value}
        context.notes.append(f"driver.version is a digest, which is for one system: {chosen.value} is chosen, because "
                             f"{chosen.because}.")
    return [DaemonSetTarget(policy, system, os_tag, kernel, pools.daemon_set_driver(policy, context.release, [
        pool for pool in own if pool.situation.kernel == kernel
        and (cluster.asked or pool.situation.os is None or nodes.tag(pool.situation.os, context.release) == os_tag)]))
        for (os_tag, kernel), system in sorted(places.items())]


def _daemon_set(context: component.Context, one: DaemonSetTarget, beside: t.Sequence[DaemonSetTarget]) -> DaemonSet:
    """The plan of a DaemonSet. beside: all DaemonSets of the same policy."""
    policy, get, facts = one.policy, one.policy.get, context.facts or NO_CLUSTER
    precompiled, short = bool(one.kernel), _short_kernel(one, beside, facts)
    side = [name for name in _SIDE if policy.enabled(name)]
    name = _name(one, beside, short, facts)
    rdma = policy.enabled("driver.rdma")
    args = list(get("driver.args") or [])
    return {
        "name": name, "app": _app(name, precompiled and not policy.driver_name),
        "owner": policy.driver_name, "os": one.os_tag, "kernel": one.kernel,
        "marks": _pod_labels(one, short), "node_selector": _selector(one, beside), "affinity": _affinity(policy),
        "version": one.driver.version, "kernel_module_type": one.driver.flavour, "because": list(one.driver.because),
        "images": _images(context, one, side),
        "pull": {image: images.pull_policy(policy, image) for image in ("driver", "driver_manager", *side)},
        "pull_secrets": images.pull_secrets(policy, ("driver", "driver_manager", *side), context.secrets),
        # The arguments in a ClusterPolicy replace those of the container; the arguments in an NVIDIADriver are added to
        # them.
        "args": ["init", *args] if args and policy.driver_name else args,
        "env": {**(cluster_openshift.version(one.system) if context.openshift else {}),
                **_environment(context, policy, "driver", precompiled)}, "resources": get("driver.resources") or {},
        "host_network": bool(get("driver.hostNetwork")), "manager_env": _manager_env(context, policy),
        "startup_probe": _probe(get("driver.startupProbe"), 5 if precompiled and policy.driver_name else 60),
        "secret_env": "" if precompiled and not policy.driver_name else str(get("driver.secretEnv") or ""),
        "gds": "gds" in side, "gdrcopy": "gdrcopy" in side, "rdma": rdma,
        "host_mofed": rdma and bool(get("driver.rdma.useHostMofed")),
        "gds_env": _environment(context, policy, "gds", precompiled),
        "gdrcopy_env": _environment(context, policy, "gdrcopy", precompiled),
        "gds_args": list(get("gds.args") or []), "gdrcopy_args": list(get("gdrcopy.args") or []),
        "files": driver_files.files(policy, one.system[0], context.runtime, precompiled, context.facts),
        "own": _own(policy), "upgrade": upgrade_policy.read(policy),
    }


def operators_name(driver_type: str, os_tag: str, kernel: str, uid: str) -> str:
    """The name that the operator gives to the DaemonSet of the NVIDIADriver with this uid. kernel: empty if modules are
    built on the Node."""
    number = 0x811C9DC5  # FNV-1a, 32 bits
    for byte in (f"{uid}-{kernel}" if kernel else uid).encode():
        number = (number ^ byte) * 0x01000193 & 0xFFFFFFFF
    coded = str(number).translate(_DIGITS)
    return f"{f'nvidia-{driver_type}-driver-{os_tag}'[:_LABEL - len(coded) - 1]}-{coded}"


def _name(one: DaemonSetTarget, beside: t.Sequence[DaemonSetTarget], short: str, facts: ClusterFacts) -> str:
    """The name of a DaemonSet. An existing DaemonSet keeps its name, because a new name would restart its pods. short:
    the kernel as the name contains it."""
    if one.policy.driver_name:
        place = _name_suffix(one, short)
        known = facts.get("nvidia_drivers", {}).get(one.policy.driver_name)
        if known and place in known["there"]:
            return known["there"][place]
        if known and known["uid"]:
            return operators_name(one.policy.driver_type, one.os_tag, one.kernel, known["uid"])
        return f"nvidia-{one.policy.driver_type}-driver-{one.policy.driver_name}-{place}"[:253]
    there = facts.get("driver_daemon_sets", {})
    if short:
        return f"{_PLAIN}-{_name_suffix(one, short)}"
    own = f"{_PLAIN}-{one.os_tag}"
    if _PLAIN in there:
        return _PLAIN if there[_PLAIN] == one.os_tag else own
    return own if len(beside) > 1 or own in there else _PLAIN


def _app(name: str, precompiled: bool) -> str:
    """The label that selects the pods. In the operator, all DaemonSets for kernels have the same label. This label is
    kept, because the selector of an adopted DaemonSet cannot be changed."""
    if precompiled:
        return _PLAIN
    return name if len(name) <= _LABEL else f"{name[:_LABEL - 9].rstrip('.-')}-{_hash(name)}"


def _short_kernel(one: DaemonSetTarget, beside: t.Sequence[DaemonSetTarget], facts: ClusterFacts) -> str:
    """The kernel as the name contains it: without the machine architecture, unless another kernel would then have the
    same name. An existing DaemonSet for the kernel keeps its name."""
    kernels, forms = facts.get("driver_kernels", {}), _kernel_forms(one.kernel)
    known = facts.get("nvidia_drivers", {}).get(one.policy.driver_name)
    there = known["there"] if known else {}
    for short in forms:
        suffix = _name_suffix(one, short)
        name = there.get(suffix, "") if one.policy.driver_name else f"{_PLAIN}-{suffix}"
        if one.kernel and kernels.get(name) == one.kernel:
            return short
    others = {_name_suffix(other, short) for other in beside if other is not one
              for short in _kernel_forms(other.kernel)}
    return next((short for short in forms if _name_suffix(one, short) not in others), forms[-1])


def _kernel_forms(kernel: str) -> list[str]:
    """The forms of a kernel that names can contain, from the shortest to the longest. The last form is unique."""
    if not kernel:
        return [""]
    whole = _plain(kernel)
    return [_plain(re.sub(r"(x86_64|aarch64)(_64k)?", "", kernel)) or whole, whole,
            f"{whole[:_LABEL - 9].rstrip('.-')}-{_hash(kernel)}"]


def _name_suffix(one: DaemonSetTarget, short: str) -> str:
    """The suffix of the name: the system and, with precompiled modules, the kernel, in the operator's order."""
    if not short:
        return one.os_tag
    return f"{one.os_tag}-{short}" if one.policy.driver_name else f"{short}-{one.os_tag}"


def _plain(kernel: str) -> str:
    """The kernel as a valid DNS subdomain: each of its parts begins and ends with a letter or digit."""
    return re.sub(r"[.-]*\.[.-]*", ".", re.sub(r"[^a-z0-9.-]", ".", kernel.lower())).strip(".-")


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _pod_labels(one: DaemonSetTarget, short: str) -> dict[str, str]:
    """The labels of the pods, except the label that selects them."""
    marks = {"nvidia.com/precompiled": "true" if one.kernel else "false"}
    if one.policy.driver_name:
        marks["nvidia.com/node.os-version"] = one.os_tag
        if short:
            marks["nvidia.com/precompiled.kernel-version"] = short
    return marks


def _selector(one: DaemonSetTarget, beside: t.Sequence[DaemonSetTarget]) -> dict[str, str]:
    found = {str(key): str(value) for key, value in (one.policy.get("driver.nodeSelector") or {}).items()}
    if one.policy.driver_name or len({other.os_tag for other in beside}) > 1:
        found.update(nodes.selector(one.system, one.os_tag))
    return {**found, nodes.KERNEL: one.kernel} if one.kernel else found


def _affinity(policy: Policy) -> list[Data]:
    """The nodeSelectorTerms of the pods: the user's terms, each extended so that it excludes the Nodes of NVIDIADrivers
    that select their own."""
    terms = [dict(term) for term in node_terms.required(policy.get("driver.nodeAffinity"))] or [{}]
    for pool in policy.pools:
        terms = [node_terms.both(term, other) for term in terms
                 for other in node_terms.others(pool.node_selector, pool.terms)]
    return [term for term in terms if term]


def _images(context: component.Context, one: DaemonSetTarget, side: t.Sequence[str]) -> dict[str, str]:
    policy, release, mirror = one.policy, context.release, context.mirror
    version = f"{one.driver.version}-{one.kernel}" if one.kernel else one.driver.version
    versions = {"driver": version, **{
        name: str(images.section(policy, name).get("version") or release.components[name]) for name in side}}
    return {"driver_manager": images.image(policy, release, "driver_manager", mirror),
            **{name: images.for_system(policy, release, name, mirror, tag, one.os_tag)
               for name, tag in versions.items()}}


def _own(policy: Policy) -> Own:
    """The values that an NVIDIADriver sets itself. The labels do not include those that select pods."""
    get = policy.get
    labels = {key: value for key, value in (get("driver.labels") or {}).items()
              if key != "app" and not key.startswith("app.kubernetes.io/")}
    return {"labels": labels, "annotations": dict(get("driver.annotations") or {}),
            "tolerations": list(get("driver.tolerations") or []),
            "priority_class": str(get("driver.priorityClassName") or ""),
            "pod_security_context": dict(get("driver.podSecurityContext") or {})}


def _manager_env(context: component.Context, policy: Policy) -> dict[str, str]:
    """The variables of the driver manager. Whether it may evict pods depends on gpu_disruption."""
    found = {"ENABLE_GPU_POD_EVICTION": str(allows(context.disruption, "drain")).lower(), "ENABLE_AUTO_DRAIN": "false",
             **component.environment(policy.get("driver.manager.env"))}
    return component.limit_by_level(context, "driver.manager.env", found, dict.fromkeys(_MOVES_PODS, "drain"))


def _environment(context: component.Context, policy: Policy, section: str, precompiled: bool) -> dict[str, str]:
    """The variables of a container that downloads packages: those of gpu_proxy and those of the policy. The policy
    takes precedence.

    Raises Refused for a proxy URL with a password. A password must be in driver.secretEnv, because users can read
    DaemonSets.
    """
    own = component.environment(policy.get(f"{section}.env"))
    if precompiled or not context.proxy:
        return own
    if _proxy.has_password(context.proxy):
        if not policy.get("driver.secretEnv"):
            raise Refused(f"gpu_proxy has a password, which users could read in the DaemonSet of the driver, and "
                          f"{driver_references.path_text(policy, 'driver.secretEnv')} names no Secret",
                          "Write HTTPS_PROXY, https_proxy and the other variables to a Secret in the namespace of the "
                          "operands (kubectl create secret generic driver-proxy --from-literal=HTTPS_PROXY=...) and "
                          "set driver.secretEnv to its name.")
        return own
    own_names = {name.lower() for name in own}
    return {**{name: value for name, value in _proxy.variables(context.proxy).items() if name.lower() not in own_names},
            **own}


def _probe(wanted: t.Mapping[str, int] | None, delay: int) -> dict[str, int]:
    probe = {"initialDelaySeconds": delay, "periodSeconds": 10, "timeoutSeconds": 60, "failureThreshold": 120,
             "successThreshold": 1}
    # Zero means "not set" in a ClusterPolicy.
    probe.update({key: value for key, value in (wanted or {}).items() if value})
    return probe
