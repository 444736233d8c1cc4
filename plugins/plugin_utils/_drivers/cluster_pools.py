# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Chooses the driver of each pool of Nodes, and of each DaemonSet, which can serve several pools. Pure. PRIVATE.

The Nodes of a pool have the same system, GPU models and NVIDIADriver. With precompiled modules, they also have the same
kernel.
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, replace

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import node_terms, releases
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.facts import ClusterFacts, Node, Nodes
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.refusals import Concerned, Refusals, Refused
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.releases import Release, branch_of, version_key
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.wording import some_of
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._drivers.candidates import Candidate, Version
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._drivers.choose_driver import Choice, choose, request_of
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._drivers.constraints import Request
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._drivers.situation import Situation, situation_of
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory import cluster_nodes
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory.node_facts import facts_of_node
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import cluster_images as images
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import cluster_openshift
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.formats import Policy

_UNKNOWN_SITUATION = Situation((), None, None, "", None, True, None, None, False)


@dataclass(frozen=True, eq=False)
class Pool:
    """Nodes that get the same driver. policy, request: the policy and the request of the NVIDIADriver that selects the
    Nodes; situation: their situation; choice: the chosen driver, None if the version is a digest."""

    nodes: t.Tuple[str, ...]
    policy: Policy
    request: Request
    situation: Situation
    choice: Choice | None

    @property
    def driver(self) -> Candidate | None:
        """The chosen driver, None if the version is a digest."""
        return self.choice.driver if self.choice else None


@dataclass(frozen=True)
class DaemonSetDriver:
    """The driver of a DaemonSet. version: the version in the tag of the image, or a digest; flavour: C(auto), C(open)
    or C(proprietary)."""

    version: str
    flavour: str
    because: t.Tuple[str, ...]


def pools(policy: Policy, release: Release, nodes: Nodes, refused: list[Concerned],
          faulty: dict[str, list[Concerned]]) -> list[Pool]:
    """The pools of these Nodes, sorted by their first Node. Adds to refused the Nodes for which there is no suitable
    driver and those that several NVIDIADrivers select. Adds invalid NVIDIADrivers to faulty. Raises Refused if the
    section driver is invalid."""
    faults: dict[int, tuple[Policy, Refused, list[str]]] = {}
    requests: dict[int, tuple[Policy, Request]] = {}
    grouped: dict[tuple[int, Situation], list[str]] = {}
    unfit: dict[tuple[str, str], list[str]] = {}
    for name in sorted(nodes):
        takers = _nvidia_drivers(policy, name, nodes[name])
        if len(takers) > 1:
            rivals = " and ".join(policy.pools[taker].name for taker in takers)
            unfit.setdefault((f"NVIDIADrivers {rivals} select the same Nodes",
                              "Give them a nodeSelector or nodeAffinity that never selects the same Node."),
                             []).append(name)
        if len(takers) != 1:
            continue
        which = takers[0]
        if which not in requests and which not in faults:
            own = policy if which < 0 else policy.for_pool(policy.pools[which])
            try:
                requests[which] = own, cluster_request(own, release)
            except Refused as error:
                if not own.driver_name:
                    raise
                faults[which] = own, error, []
        if which in faults:
            faults[which][2].append(name)
            continue
        why = _no_driver_reason(policy, requests[which][0], nodes[name])
        if why:
            unfit.setdefault(why, []).append(name)
            continue
        situation = situation_of(facts_of_node(name, nodes[name]))
        if requests[which][1].precompiled:
            situation = replace(situation, kernel=cluster_nodes.kernel_of(nodes[name]))
        else:
            situation = replace(situation, kernel="", kernel_flavour=None)
        # The driver container itself starts the services of the fabric.
        grouped.setdefault((which, replace(situation, fabric=None)), []).append(name)
    refused += [(Refused(*why), names) for why, names in unfit.items()]
    faulty.update({own.driver_name: refusals_of_driver(own, [error], names) for own, error, names in faults.values()})
    found = []
    for (which, situation), names in grouped.items():
        own, request = requests[which]
        try:
            choice = None if is_digest(own) else choose(situation, request, release)
            found.append(Pool(tuple(names), own, request, situation, choice))
        except Refusals as error:
            refused += [(one, names) for one in error.reasons]
    return found


def refusals_of_driver(own: Policy, reasons: t.Iterable[Refused], nodes: t.Sequence[str]) -> list[Concerned]:
    """The reasons why an NVIDIADriver is refused, each with its name. nodes: the Nodes that it selects."""
    name = f"NVIDIADriver {own.driver_name}"
    return [(one if name in one.reason else one.of([name]), nodes) for one in reasons]


def _no_driver_reason(policy: Policy, own: Policy, node: Node) -> tuple[str, str] | None:
    """(reason, remedy) if no driver of any version can be delivered to a Node, otherwise None. own: the policy of the
    Node's NVIDIADriver."""
    if own.get("driver.usePrecompiled") and not cluster_nodes.kernel_of(node):
        return ("driver.usePrecompiled needs an image for each kernel, and the Node's kernelVersion is empty or cannot "
                "be the value of a label", "Check the kernel that its kubelet reports (kubectl get node --output "
                "wide), or set driver.usePrecompiled to false.")
    return cluster_openshift.NO_TOOLKIT if cluster_openshift.needs_toolkit(policy, own, node) else None


@dataclass(frozen=True)
class Running:
    """The systems, image tags and kernel module types of the driver DaemonSets in the cluster."""

    systems: t.FrozenSet[str]
    tags: t.FrozenSet[str]
    flavours: t.FrozenSet[str]

    def versions(self, system: str, known: t.Iterable[str]) -> t.Set[str]:
        """The known versions that the image tag of a DaemonSet contains. system: as in image tags, empty for any."""
        return {version for version in known if any(
            tag == f"{version}-{system}" if system else tag.startswith(f"{version}-") for tag in self.tags)}


def running_of(facts: ClusterFacts) -> Running:
    """The systems and drivers of the driver DaemonSets, which are read from objects that kubelets cannot change."""
    images = facts.get("driver_images", {}).values()
    return Running(frozenset(facts.get("driver_daemon_sets", {}).values()), frozenset(one["tag"] for one in images),
                   frozenset(one["kernel_module_type"] for one in images))


def with_common_driver(found: t.Sequence[Pool], release: Release, node_os: t.Collection[cluster_nodes.System],
                       running: Running, refused: list[Concerned]) -> list[Pool]:
    """The pools whose driver is the one that L(cluster_nodes.common_value) chooses for their DaemonSet. Adds the Nodes
    of the other pools to refused. node_os: the systems in gpu_node_os, which replace the systems of the Nodes."""
    def system(pool: Pool) -> str:
        return "" if node_os or pool.situation.os is None else cluster_nodes.tag(pool.situation.os, release)

    left: list[Pool] = []
    for own in _grouped(found, lambda pool: pool.policy.driver_name):
        if is_digest(own[0].policy):
            own = _with_chosen_value(own, system, running.systems, lambda _pools, systems: digest_refusal(systems),
                                     refused)
        for beside in _grouped(own, lambda pool: f"{pool.situation.kernel} {system(pool)}"):
            alike = _with_chosen_value(beside, _tagged, running.versions(system(beside[0]), map(_tagged, beside)),
                                       lambda pools, _tags: _different_drivers(release, pools), refused)
            one = alike[0]
            if one.driver and one.request.flavour == "auto" and not _supports_auto(_tagged(one)):
                alike = _with_chosen_value(alike, _flavour, running.flavours, _different_flavours, refused)
            left += alike
    return [pool for pool in found if pool in left]


def _grouped(found: t.Iterable[Pool], key: t.Callable[[Pool], str]) -> t.Iterable[list[Pool]]:
    groups: dict[str, list[Pool]] = {}
    for pool in found:
        groups.setdefault(key(pool), []).append(pool)
    return groups.values()


def _with_chosen_value(found: list[Pool], key: t.Callable[[Pool], str], running: t.Collection[str],
                       why: t.Callable[[list[Pool], list[str]], Refused], refused: list[Concerned]) -> list[Pool]:
    """The pools for which key returns the common value. Adds the Nodes of the other pools to refused. running: the
    values in use; why: a function that returns the refusal for the pools and values."""
    counts: dict[str, int] = {}
    for pool in found:
        counts[key(pool)] = counts.get(key(pool), 0) + len(pool.nodes)
    best = cluster_nodes.common_value(counts, running, lambda value: (version_key(value), value), "the newest")
    others = sorted(name for pool in found if key(pool) != best.value for name in pool.nodes)
    if others:
        one = why(found, sorted(counts))
        refused.append((Refused(f"{one.reason}; {best.value} is chosen, because {best.because}", one.remedy,
                                one.constraints), others))
    return [pool for pool in found if key(pool) == best.value]


def digest_refusal(systems: list[str]) -> Refused:
    """The refusal of an image digest that would be used for several systems."""
    return Refused(f"driver.version is a digest, which is for one system, but the Nodes have {', '.join(systems)}",
                   "Write a version instead.")


def _different_flavours(pools: list[Pool], _flavours: list[str]) -> Refused:
    version = _tagged(pools[0])
    return Refused(f"driver containers of {version} do not support kernelModuleType auto, but the GPUs of the Nodes "
                   "need both open and proprietary modules",
                   f"Set driver.version to {releases.floor('container_auto')} or newer.",
                   [("driver.version", f"driver {version} is chosen"),
                    ("driver.kernelModuleType", "driver.kernelModuleType is auto")])


def _supports_auto(version: str) -> bool:
    """Whether the driver container of a version supports the kernel module type C(auto)."""
    return version_key(version) >= version_key(releases.floor("container_auto"))


def _flavour(pool: Pool) -> str:
    return pool.driver.flavour if pool.driver else ""


def cluster_request(policy: Policy, release: Release) -> Request:
    """The request of a policy for driver containers. A branch is replaced by its newest version in the release. Raises
    Refused."""
    if is_digest(policy):
        if policy.get("driver.usePrecompiled"):
            raise Refused("driver.version is a digest, but driver.usePrecompiled needs an image for each kernel",
                          "Write the branch, such as 580.",
                          [("driver.version", "driver.version is a digest"),
                           ("driver.usePrecompiled", "driver.usePrecompiled needs an image for each kernel")])
        return Request(cluster=True)
    request = replace(request_of(policy, release, {}), cluster=True)
    if request.version and not request.version.text and not request.precompiled:
        known = [text for text in release.drivers if branch_of(text) == request.version.branch]
        if not known:
            raise Refused(f"release {release.version} has no driver of branch {request.version.branch}",
                          "Set driver.version to a complete version.",
                          [("driver.version", f"{request.by} requests driver {request.version}"),
                           ("release", f"release {release.version} supports drivers {', '.join(release.drivers)}")])
        request = replace(request, version=Version.of(max(known, key=version_key)))
    return request


class PoolDriver(t.TypedDict):
    """The driver of a pool for reports. version: a version, branch or digest; image: its reference, None if unknown."""

    version: str
    kernel_module_type: t.Optional[str]
    image: t.Optional[str]
    because: t.List[str]


class PoolReport(t.TypedDict):
    """A pool for reports. os: such as C(ubuntu 24.04); kernel: set only with precompiled modules; gpu: the names of the
    GPU models."""

    nodes: t.List[str]
    os: str
    kernel: t.Optional[str]
    gpu: t.Optional[str]
    driver: PoolDriver


def report_of(pool: Pool, release: Release, mirror: str, nodes: Nodes) -> PoolReport:
    """The description of a pool and its Nodes for reports."""
    gpus = sorted({str(nodes[name]["labels"].get(cluster_nodes.GPU_PRODUCT) or "") for name in pool.nodes} - {""})
    driver = pool.driver
    return {"nodes": list(pool.nodes), "os": cluster_nodes.os_text(nodes[pool.nodes[0]]),
            "kernel": pool.situation.kernel or None, "gpu": ", ".join(gpus) or None,
            "driver": {"version": _version(pool), "kernel_module_type": driver.flavour if driver else None,
                       "image": _image(pool, release, mirror),
                       "because": list(pool.choice.because) if pool.choice else ["driver.version is a digest"]}}


def _version(pool: Pool) -> str:
    """The version of the driver in a report: a version, a branch or a digest."""
    if pool.driver is None:
        return str(pool.policy.get("driver.version"))
    return pool.driver.version.text or str(pool.driver.version.branch)


def _tag(driver: Candidate, request: Request) -> str:
    """The driver version in the image tag, without the kernel and system."""
    text = driver.version.text
    if driver.signed or not text:
        return str(driver.version.branch)
    return f"{text}-grid" if request.grid else text


def _tagged(pool: Pool) -> str:
    return _tag(pool.driver, pool.request) if pool.driver else _version(pool)


def _image(pool: Pool, release: Release, mirror: str) -> str | None:
    if pool.situation.os is None:
        return None
    version = _tagged(pool)
    if pool.driver and pool.driver.signed:
        version = f"{version}-{pool.situation.kernel}"
    return images.for_system(pool.policy, release, "driver", mirror, version,
                             cluster_nodes.tag(pool.situation.os, release))


def daemon_set_driver(policy: Policy, release: Release, found: t.Sequence[Pool]) -> DaemonSetDriver:
    """The driver of the DaemonSet for all of these pools. policy: the policy of the pools' NVIDIADriver. Raises Refused
    and Refusals."""
    request = cluster_request(policy, release)
    if is_digest(policy):
        return DaemonSetDriver(str(policy.get("driver.version")), request.flavour,
                               (f"driver.version of {policy.origin}",))
    choice = next((pool.choice for pool in found if pool.choice), None) or choose(_UNKNOWN_SITUATION, request, release)
    version = _tag(choice.driver, request)
    if request.flavour != "auto":
        return DaemonSetDriver(version, request.flavour, choice.because)
    if _supports_auto(version):
        return DaemonSetDriver(version, "auto", choice.because[:1])
    return DaemonSetDriver(version, choice.driver.flavour, choice.because)


def _different_drivers(release: Release, found: t.Sequence[Pool]) -> Refused:
    versions: dict[str, list[str]] = {}
    for pool in found:
        versions.setdefault(_version(pool), []).extend(pool.nodes)
    listed = " and ".join(f"{version} ({some_of(names)})" for version, names in sorted(versions.items(), reverse=True))
    suits = next((text for text in sorted(release.drivers, key=version_key, reverse=True)
                  if all(_supports(pool, text, release) for pool in found)), None)
    return Refused(f"Nodes of one system need different drivers: {listed}",
                   f"Set driver.version to {suits}, which all of them support, or use NVIDIADrivers, each with a "
                   "nodeSelector." if suits else "Use NVIDIADrivers, each with a nodeSelector.")


def _supports(pool: Pool, text: str, release: Release) -> bool:
    try:
        choose(pool.situation, replace(pool.request, version=Version.of(text), by="one for all"), release)
    except Refusals:
        return False
    return True


def _nvidia_drivers(policy: Policy, name: str, node: Node) -> list[int]:
    """The indexes of the policy's NVIDIADrivers that select a Node. If there are none, C([-1]) for the driver of all
    other Nodes, or an empty list if the policy has no such driver or its affinity leaves out the Node."""
    takers = [number for number, one in enumerate(policy.pools) if one.selects(name, node["labels"])]
    rest = node_terms.required(policy.get("driver.nodeAffinity"))
    fits = policy.fallback and (not rest or node_terms.any_matches(rest, name, node["labels"]))
    return takers or ([-1] if fits else [])


def is_digest(policy: Policy) -> bool:
    """Whether the driver version in the policy is an image digest."""
    return str(policy.get("driver.version") or "").startswith("sha256:")
