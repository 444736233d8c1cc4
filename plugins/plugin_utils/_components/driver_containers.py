# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver containers of a cluster: which DaemonSets there are, and what each is made of. Pure. PRIVATE.

There is one for the Nodes of one policy (the section driver, or an NVIDIADriver), one system and, where modules come
built, one kernel. Source of names, labels and selectors: GPU Operator 26.7, which for the section driver takes the
system of one arbitrary Node; here each Node gets the image of its own.
"""

from __future__ import annotations

import collections
import hashlib
import itertools
import re
import typing as t
from dataclasses import dataclass

from ansible_collections.gpuops.nvidia.plugins.module_utils import _proxy
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import allows
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._components import component, driver_files
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import releases
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.refusals import Refusals, Refused
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.releases import Release
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.schema import shown
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.wording import some_of
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._drivers import cluster_pools as pools
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory import cluster_nodes as nodes
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import cluster_images as images
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import cluster_openshift, cluster_references
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.formats import Policy

Site = t.Tuple[nodes.System, str]

_SIDE = ("gds", "gdrcopy")
_PLAIN = "nvidia-driver-daemonset"
_FOR_PACKAGES = ("driver.repoConfig.configMapName", "driver.certConfig.name", "driver.secretEnv")
_MODULE_FILES = ("nvidia.conf", "nvidia-uvm.conf", "nvidia-modeset.conf", "nvidia-peermem.conf")
# Names of objects may be longer than the labels by which their pods are found.
_LABEL = 63
# How Kubernetes' SafeEncodeString writes the digits 0 to 9.
_DIGITS = str.maketrans("0123456789", "456789bcdf")
# Variables by which the driver manager evicts pods, and drains the Node.
_MOVES_PODS = ("ENABLE_GPU_POD_EVICTION", "ENABLE_AUTO_DRAIN")


@dataclass(frozen=True)
class Cluster:
    """Where drivers go. found: the pools of Nodes; sites: system and kernel of each Node that counts, while no Node is
    known to have a GPU; asked: the systems that the user names."""

    found: t.Sequence[pools.Pool]
    sites: t.Sequence[Site]
    asked: t.Sequence[nodes.System]


@dataclass(frozen=True)
class Delivery:
    """One DaemonSet. policy: what holds for its Nodes; kernel: empty where modules are built."""

    policy: Policy
    system: nodes.System
    os_tag: str
    kernel: str
    driver: pools.Delivered


def cluster_plan(context: component.Context, shared: component.PresentPlan) -> component.Plan:
    """The plan of the driver, absent if no Node gets it and no DaemonSet of it is kept. Raises Refused and Refusals."""
    every, gpu, asked = context.nodes, context.gpu_nodes, _asked_systems(context.node_os)
    names = [name for name in gpu or every if "driver" not in context.on_host.get(name, ())]
    if not names and not asked:
        raise Refused("no Node is known whose operating system tells which driver image to use",
                      "Name a cluster by gpu_kubeconfig, or set gpu_node_os, such as [ubuntu24.04].")
    if not asked:
        names = _of_known_systems(context, names)
    if gpu:
        context.pools += pools.pools(context.policy, context.release, {name: every[name] for name in names},
                                     context.without_driver, context.faulty)
    agreed = pools.agreed(context.pools, context.release, asked, pools.running_of(context.facts or {}),
                          context.without_driver)
    refused = {name for _reason, having in (*context.without_driver, *context.faults()) for name in having}
    left = [name for name in names if name not in refused]
    if gpu and not left:
        because = ["no Node is left that could get it"]
        if context.faulty:
            return {**shared, "pools": [], "because": because, "kept": _kept(context)}
        return {"state": "absent", "because": because}
    reasons = cluster_openshift.without_gpus(context.policy, {} if gpu else {name: every[name] for name in left}, asked)
    if reasons:
        raise Refusals(reasons)
    lone = sorted(set(left).difference(*(pool.nodes for pool in agreed))) if gpu else []
    if lone:
        context.notes.append(f"{some_of(lone)}: no NVIDIADriver selects {'it' if len(lone) == 1 else 'them'}; no "
                             "driver is delivered there.")
    sites = [(system, "") for system in asked] or [
        ((every[name]["os"]["id"], every[name]["os"]["version"]), nodes.kernel_of(every[name])) for name in left]
    made = _of_all_policies(context, Cluster(agreed, sites, asked))
    staying = _kept(context)
    if not made and not staying and not context.faulty:
        return {"state": "absent", "because": ["no NVIDIADriver selects a Node with a GPU"]}
    because = list(dict.fromkeys(why for one in made for why in t.cast("list[str]", one["because"])))
    return {**shared, "pools": made, "because": because, "kept": staying}


def _asked_systems(node_os: t.Sequence[object]) -> list[nodes.System]:
    """Those of gpu_node_os. Raises Refused."""
    parsed = [nodes.parse_tag(str(text)) for text in node_os]
    if None in parsed:
        raise Refused(f"gpu_node_os {node_os!r} names no systems", "Write them as ubuntu24.04 or rhel9.6.")
    return [system for system in parsed if system is not None]


def _of_known_systems(context: component.Context, names: t.Sequence[str]) -> list[str]:
    """The Nodes of which it is known which driver image they need; the others get no driver. Raises Refused."""
    unknown = [name for name in names if not context.nodes[name].get("os")]
    reason = Refused("the operating system is not known", "Let NFD label the Node, or set gpu_node_os.")
    # Where no Node has NFD's labels yet, one without a GPU may have any system.
    if unknown and context.gpu_nodes:
        context.without_driver.append((reason, unknown))
    elif unknown and len(unknown) == len(names):
        raise reason.of(unknown)
    return [name for name in names if name not in unknown]


def _of_all_policies(context: component.Context, cluster: Cluster) -> list[component.Plan]:
    """All DaemonSets. Raises Refusals if the section driver cannot be followed, or an NVIDIADriver that selects no Node
    which is known to have a GPU."""
    reasons: list[Refused] = []
    made: list[component.Plan] = []
    for mine in _policies(context.policy):
        if mine.driver_name in context.faulty:
            continue
        try:
            made += _daemon_sets(context, mine, cluster)
        except (Refused, Refusals) as error:
            selected = [name for pool in cluster.found if pool.policy.driver_name == mine.driver_name
                        for name in pool.nodes]
            if mine.driver_name and selected:
                context.faulty[mine.driver_name] = pools.of_driver(mine, error.reasons, selected)
            else:
                reasons += error.reasons
    if reasons:
        raise Refusals(reasons)
    return made


def _kept(context: component.Context) -> list[str]:
    """Names of the DaemonSets of NVIDIADrivers that cannot be followed, which stay as they are: without them, their
    Nodes would lose the driver. Adds a note for each."""
    known = (context.facts or {}).get("nvidia_drivers") or {}
    names = sorted(str(name) for driver in context.faulty if driver in known
                   for name in known[driver]["there"].values())
    context.notes += [f"DaemonSet {name}: left as it is until its NVIDIADriver can be followed." for name in names]
    return names


def _daemon_sets(context: component.Context, mine: Policy, cluster: Cluster) -> list[component.Plan]:
    """The plans of the DaemonSets of one policy. Raises Refused and Refusals."""
    deliveries = _deliveries(context, mine, cluster)
    if not deliveries:
        return []
    refused = [*_unsupported(mine), *cluster_references.missing(mine, context.facts, context.namespace)]
    if refused:
        raise Refusals(refused)
    made = [_daemon_set(context, one, deliveries) for one in deliveries]
    context.notes += [*_without_effect(mine, context.facts), *_unknown(mine, deliveries)]
    return made


def _unsupported(mine: Policy) -> list[Refused]:
    path, value = "driver.driverType", "vgpu-host-manager"
    return [Refused(f"{cluster_references.place(mine, path)}: {shown(value)} is not supported in a cluster yet",
                    "Set it to gpu or vgpu: this version serves containers only.")] if mine.get(path) == value else []


def lasting(policy: Policy, systems: t.Iterable[nodes.System], release: Release) -> list[str]:
    """Names that DaemonSets for these systems may have from former runs and would keep."""
    if not policy.fallback or not policy.enabled("driver") or policy.get("driver.usePrecompiled"):
        return []
    return [_PLAIN, *sorted({f"{_PLAIN}-{nodes.tag(system, release)}" for system in systems})]


def by_kernels(policy: Policy) -> bool:
    """Whether any DaemonSet is for one kernel."""
    return policy.enabled("driver") and any(one.get("driver.usePrecompiled") for one in _policies(policy))


def by_nvidia_drivers(policy: Policy) -> bool:
    """Whether any DaemonSet is for an NVIDIADriver."""
    return policy.enabled("driver") and any(one.driver_name for one in _policies(policy))


def _policies(policy: Policy) -> list[Policy]:
    """The NVIDIADrivers with a selector, then what holds for the other Nodes."""
    return [*(policy.for_pool(pool) for pool in policy.pools), *([policy] if policy.fallback else [])]


def _without_effect(mine: Policy, facts: component.Facts | None) -> list[str]:
    """What a user has set that reaches no container, each a sentence."""
    said = []
    if mine.get("driver.usePrecompiled"):
        said += [f"{cluster_references.place(mine, path)} is left out: modules come built, so that no package is "
                 "fetched." for path in _FOR_PACKAGES if mine.get(path)
                 and (path != "driver.secretEnv" or not mine.driver_name)]
    path = "driver.kernelModuleConfig.name"
    strange = ([key for key in cluster_references.keys(mine, path, facts) if key not in _MODULE_FILES]
               if mine.get(path) else [])
    if strange:
        said.append(f"{cluster_references.place(mine, path)}: no module reads {', '.join(strange)} of ConfigMap "
                    f"{mine.get(path)!r}; known are {', '.join(_MODULE_FILES)}.")
    return said + [f"{cluster_references.place(mine, path)} is set: the driver's container has a startup probe only."
                   for path in ("driver.livenessProbe", "driver.readinessProbe") if mine.get(path)]


def _unknown(mine: Policy, deliveries: t.Sequence[Delivery]) -> list[str]:
    """Versions of branches of which nothing is known, each a sentence."""
    versions = sorted({one.driver.version for one in deliveries if not one.driver.version.startswith("sha256:")})
    return [f"{cluster_references.place(mine, 'driver.version')} {version}: driver branch "
            f"{releases.branch_of(version)} is not known to this collection; what it drives is not checked."
            for version in versions if releases.branch(releases.branch_of(version)) is None]


def _deliveries(context: component.Context, mine: Policy, cluster: Cluster) -> list[Delivery]:
    """Those of one policy, in order. Raises Refused and Refusals."""
    own = [pool for pool in cluster.found if pool.policy.driver_name == mine.driver_name]
    if context.gpu_nodes and not own:
        if mine.driver_name:
            context.notes.append(f"NVIDIADriver {mine.driver_name} selects no Node with a GPU; nothing is delivered "
                                 "for it.")
        return []
    precompiled = bool(mine.get("driver.usePrecompiled"))
    sites = ([(system, pool.here.kernel) for pool in own
              for system in (cluster.asked or ([pool.here.os] if pool.here.os else []))]
             or [(system, kernel if precompiled else "") for system, kernel in cluster.sites])
    places: dict[tuple[str, str], nodes.System] = {}
    for system, kernel in sorted(sites):
        if kernel or not precompiled:
            places.setdefault((nodes.tag(system, context.release), kernel), system)
    if not places:
        raise Refused("driver.usePrecompiled needs an image for each kernel, and no Node tells which kernels there are",
                      "Name the cluster (gpu_kubeconfig), or set it to false.")
    if pools.is_digest(mine) and len(places) > 1:
        if cluster.asked:
            raise pools.of_one_system(sorted(os_tag for os_tag, _kernel in places))
        # Only Nodes that are not known to have a GPU; those with GPUs are refused by name.
        tags = collections.Counter(nodes.tag(system, context.release) for system, _kernel in sites)
        chosen = nodes.agree(tags, pools.running_of(context.facts or {}).systems,
                             lambda value: (releases.version_key(value), value), "the newest")
        places = {place: system for place, system in places.items() if place[0] == chosen.value}
        context.notes.append(f"driver.version is a digest, which suits one system: {chosen.value} is chosen, because "
                             f"{chosen.because}.")
    return [Delivery(mine, system, os_tag, kernel, pools.one_for_all(mine, context.release, [
        pool for pool in own if pool.here.kernel == kernel
        and (cluster.asked or pool.here.os is None or nodes.tag(pool.here.os, context.release) == os_tag)]))
        for (os_tag, kernel), system in sorted(places.items())]


def _daemon_set(context: component.Context, one: Delivery, beside: t.Sequence[Delivery]) -> component.Plan:
    """beside: all of the same policy."""
    mine, get = one.policy, one.policy.get
    precompiled, short = bool(one.kernel), _short(one, beside, context.facts or {})
    side = [name for name in _SIDE if mine.enabled(name)]
    name = _name(one, beside, short, context.facts or {})
    rdma = mine.enabled("driver.rdma")
    args = list(get("driver.args") or [])
    return {
        "name": name, "app": _app(name, precompiled and not mine.driver_name),
        "owner": mine.driver_name, "os": one.os_tag, "kernel": one.kernel,
        "marks": _marks(one, short), "node_selector": _selector(one, beside), "affinity": _affinity(mine),
        "version": one.driver.version, "kernel_module_type": one.driver.flavour, "because": list(one.driver.because),
        "images": _images(context, one, side),
        "pull": {image: images.pull_policy(mine, image) for image in ("driver", "driver_manager", *side)},
        "pull_secrets": images.pull_secrets(mine, ("driver", "driver_manager", *side), context.secrets),
        # The arguments of a ClusterPolicy replace those of the container; an NVIDIADriver's come behind them.
        "args": ["init", *args] if args and mine.driver_name else args,
        "env": {**(cluster_openshift.version(one.system) if context.openshift else {}),
                **_environment(context, mine, "driver", precompiled)}, "resources": get("driver.resources") or {},
        "host_network": bool(get("driver.hostNetwork")), "manager_env": _manager_env(context, mine),
        "startup_probe": _probe(get("driver.startupProbe"), 5 if precompiled and mine.driver_name else 60),
        "secret_env": "" if precompiled and not mine.driver_name else str(get("driver.secretEnv") or ""),
        "gds": "gds" in side, "gdrcopy": "gdrcopy" in side, "rdma": rdma,
        "host_mofed": rdma and bool(get("driver.rdma.useHostMofed")),
        "gds_env": _environment(context, mine, "gds", precompiled),
        "gdrcopy_env": _environment(context, mine, "gdrcopy", precompiled),
        "gds_args": list(get("gds.args") or []), "gdrcopy_args": list(get("gdrcopy.args") or []),
        "files": driver_files.files(mine, one.system[0], context.runtime, precompiled, context.facts),
        "own": _own(mine),
    }


def operators_name(driver_type: str, os_tag: str, kernel: str, uid: str) -> str:
    """What the operator calls the DaemonSet of an NVIDIADriver with this uid. kernel: empty where modules are built."""
    number = 0x811C9DC5  # FNV-1a, 32 bits
    for byte in (f"{uid}-{kernel}" if kernel else uid).encode():
        number = (number ^ byte) * 0x01000193 & 0xFFFFFFFF
    coded = str(number).translate(_DIGITS)
    return f"{f'nvidia-{driver_type}-driver-{os_tag}'[:_LABEL - len(coded) - 1]}-{coded}"


def _name(one: Delivery, beside: t.Sequence[Delivery], short: str, facts: component.Facts) -> str:
    """One that is renamed restarts the pods of all its Nodes: what is there keeps its name when systems come and go, or
    the cluster is taken over; an NVIDIADriver's always have one of their own."""
    if one.policy.driver_name:
        place = _place(one, short)
        known = (facts.get("nvidia_drivers") or {}).get(one.policy.driver_name) or {"uid": "", "there": {}}
        if place in known["there"]:
            return str(known["there"][place])
        if known["uid"]:
            return operators_name(one.policy.driver_type, one.os_tag, one.kernel, known["uid"])
        return f"nvidia-{one.policy.driver_type}-driver-{one.policy.driver_name}-{place}"[:253]
    there = facts.get("driver_daemon_sets") or {}
    if short:
        return f"{_PLAIN}-{_place(one, short)}"
    own = f"{_PLAIN}-{one.os_tag}"
    if _PLAIN in there:
        return _PLAIN if there[_PLAIN] == one.os_tag else own
    return own if len(beside) > 1 or own in there else _PLAIN


def _app(name: str, precompiled: bool) -> str:
    """What its pods are selected by. The operator's DaemonSets for kernels have it in common, and a selector can never
    change: with another one they could not be taken over."""
    if precompiled:
        return _PLAIN
    return name if len(name) <= _LABEL else f"{name[:_LABEL - 9].rstrip('.-')}-{_hash(name)}"


def _short(one: Delivery, beside: t.Sequence[Delivery], facts: component.Facts) -> str:
    """The kernel as it stands in the name: without the machine, as images are for all, unless another kernel reads the
    same there. What is in the cluster for this kernel keeps its name, whatever comes beside it."""
    kernels, forms = facts.get("driver_kernels") or {}, _forms(one.kernel)
    there = ((facts.get("nvidia_drivers") or {}).get(one.policy.driver_name) or {"there": {}})["there"]
    for short in forms:
        name = there.get(_place(one, short)) if one.policy.driver_name else f"{_PLAIN}-{_place(one, short)}"
        if one.kernel and kernels.get(name) == one.kernel:
            return short
    others = {_place(other, short) for other in beside if other is not one for short in _forms(other.kernel)}
    return next((short for short in forms if _place(one, short) not in others), forms[-1])


def _forms(kernel: str) -> list[str]:
    """How a kernel may stand in a name, the shortest first; no other kernel has the last one."""
    if not kernel:
        return [""]
    whole = _plain(kernel)
    return [_plain(re.sub(r"(x86_64|aarch64)(_64k)?", "", kernel)) or whole, whole,
            f"{whole[:_LABEL - 9].rstrip('.-')}-{_hash(kernel)}"]


def _place(one: Delivery, short: str) -> str:
    """System, and kernel where modules come built, in the order in which the operator has them."""
    if not short:
        return one.os_tag
    return f"{one.os_tag}-{short}" if one.policy.driver_name else f"{short}-{one.os_tag}"


def _plain(kernel: str) -> str:
    """Each part between dots of a DNS subdomain begins and ends with a letter or digit."""
    return re.sub(r"[.-]*\.[.-]*", ".", re.sub(r"[^a-z0-9.-]", ".", kernel.lower())).strip(".-")


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _marks(one: Delivery, short: str) -> dict[str, str]:
    """Labels that tell what a pod is."""
    marks = {"nvidia.com/precompiled": "true" if one.kernel else "false"}
    if one.policy.driver_name:
        marks["nvidia.com/node.os-version"] = one.os_tag
        if short:
            marks["nvidia.com/precompiled.kernel-version"] = short
    return marks


def _selector(one: Delivery, beside: t.Sequence[Delivery]) -> dict[str, str]:
    found = {str(key): str(value) for key, value in (one.policy.get("driver.nodeSelector") or {}).items()}
    if one.policy.driver_name or len({other.os_tag for other in beside}) > 1:
        found.update(nodes.selector(one.system, one.os_tag))
    return {**found, nodes.KERNEL: one.kernel} if one.kernel else found


def _affinity(mine: Policy) -> list[dict[str, object]]:
    """Terms of which one must hold for a Node, as a pod has them: those that the user gives, each without the Nodes
    that NVIDIADrivers with a selector take."""
    told = mine.get("driver.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution") or {}
    terms = [dict(term) for term in told.get("nodeSelectorTerms") or ()] or [{}]
    if mine.pools:
        # A Node is another's where all labels of its selector hold: it is ours where one of them does not.
        absent = [[{"key": key, "operator": "NotIn", "values": [value]} for key, value in pool.node_selector.items()]
                  for pool in mine.pools]
        terms = [{**term, "matchExpressions": [*(term.get("matchExpressions") or ()), *expressions]}
                 for term in terms for expressions in itertools.product(*absent)]
    return [term for term in terms if term]


def _images(context: component.Context, one: Delivery, side: t.Sequence[str]) -> dict[str, str]:
    mine, release, mirror = one.policy, context.release, context.mirror
    version = f"{one.driver.version}-{one.kernel}" if one.kernel else one.driver.version
    versions = {"driver": version, **{
        name: str(images.section(mine, name).get("version") or release.components[name]) for name in side}}
    return {"driver_manager": images.image(mine, release, "driver_manager", mirror),
            **{name: images.for_system(mine, release, name, mirror, tag, one.os_tag)
               for name, tag in versions.items()}}


def _own(mine: Policy) -> component.Plan:
    """Labels never change what selects pods."""
    get = mine.get
    labels = {key: value for key, value in (get("driver.labels") or {}).items()
              if key != "app" and not key.startswith("app.kubernetes.io/")}
    return {"labels": labels, "annotations": dict(get("driver.annotations") or {}),
            "tolerations": list(get("driver.tolerations") or []),
            "priority_class": str(get("driver.priorityClassName") or ""),
            "pod_security_context": dict(get("driver.podSecurityContext") or {})}


def _manager_env(context: component.Context, mine: Policy) -> dict[str, str]:
    """Whether the driver manager may evict comes from gpu_disruption; the policy's other variables stay."""
    found = {"ENABLE_GPU_POD_EVICTION": str(allows(context.disruption, "drain")).lower(), "ENABLE_AUTO_DRAIN": "false",
             **component.environment(mine.get("driver.manager.env"))}
    return component.gated(context, "driver.manager.env", found, dict.fromkeys(_MOVES_PODS, "drain"))


def _environment(context: component.Context, mine: Policy, section: str, precompiled: bool) -> dict[str, str]:
    """Variables of a container that fetches packages: of gpu_proxy, then the policy's own, which count. Raises Refused.

    A DaemonSet shows its variables to whoever may read it: a proxy with a password comes by driver.secretEnv.
    """
    own = component.environment(mine.get(f"{section}.env"))
    if precompiled or not context.proxy:
        return own
    if _proxy.has_password(context.proxy):
        if not mine.get("driver.secretEnv"):
            raise Refused(f"gpu_proxy has a password, which would stand in the DaemonSet of the driver, and "
                          f"{cluster_references.place(mine, 'driver.secretEnv')} names no Secret",
                          "Put HTTPS_PROXY, https_proxy and the like into a Secret of the operands' namespace (kubectl "
                          "create secret generic driver-proxy --from-literal=HTTPS_PROXY=...) and set driver.secretEnv "
                          "to its name.")
        return own
    said = {name.lower() for name in own}
    return {**{name: value for name, value in _proxy.variables(context.proxy).items() if name.lower() not in said},
            **own}


def _probe(wanted: t.Mapping[str, int] | None, delay: int) -> dict[str, int]:
    probe = {"initialDelaySeconds": delay, "periodSeconds": 10, "timeoutSeconds": 60, "failureThreshold": 120,
             "successThreshold": 1}
    # Zero means "not set" in a ClusterPolicy.
    probe.update({key: value for key, value in (wanted or {}).items() if value})
    return probe
