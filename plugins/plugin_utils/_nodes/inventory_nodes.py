# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Computes the facts and the groups of a Node for the inventory plugin. Pure. PRIVATE."""

from __future__ import annotations

import ipaddress
import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.label_keys import MIG_CONFIG, UPGRADE_STATE
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.printable import printable_data
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory.cluster_nodes import has_gpu
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.objects import Live
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.status import is_ready, offered_gpus
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import deploy_labels

# The version of the result of L(describe) in caches. Increase it if a key is added or removed or changes its meaning.
SCHEMA = 1
_UNKNOWN = "unknown"
_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*")
# Names of the controller itself, by RFC 6761 and /etc/hosts of the distributions.
_LOCAL = re.compile(r"(ip6-)?(localhost[46]?|loopback)(\..*)?|.*\.localhost")
# inet_aton(3) reads 7, 127.1 and 0x7f.1 as addresses, so a text whose last part is a number is not a host name (RFC
# 1123, 2.1).
_NUMBER_AT_END = re.compile(r"(.*\.)?([0-9]+|0x[0-9a-f]*)")


class Mig(t.TypedDict):
    """The MIG labels of a Node."""

    capable: t.Optional[bool]
    strategy: t.Optional[str]
    config: t.Optional[str]
    state: t.Optional[str]


class GpuNode(t.TypedDict):
    """The variable gpu_node, as the plugin documents it. A value is None if it is not known."""

    model: t.Optional[str]
    count: t.Optional[int]
    family: t.Optional[str]
    driver: t.Optional[str]
    cuda: t.Optional[str]
    mig: Mig
    upgrade_state: t.Optional[str]
    resources: t.Dict[str, int]
    taints: t.List[str]
    ready: bool
    schedulable: bool
    labels: t.Dict[str, str]
    os_image: t.Optional[str]
    kernel: t.Optional[str]
    runtime: t.Optional[str]
    kubelet: t.Optional[str]
    provider_id: t.Optional[str]
    state: str


class Facts(t.TypedDict):
    """The facts of a Node. addresses: maps types to addresses; reachable: all addresses that can be used; gpu: whether
    the Node has a GPU."""

    name: str
    addresses: t.Dict[str, str]
    reachable: t.List[str]
    gpu: bool
    gpu_node: GpuNode


def is_name(text: object) -> bool:
    """Whether a text is a valid name of a Node: an RFC 1123 subdomain."""
    return isinstance(text, str) and len(text) <= 253 and _NAME.fullmatch(text) is not None


def is_address(text: object) -> bool:
    """Whether a text is an IP address or host name that can belong to a machine other than the controller.

    The kubelet of a Node reports its addresses, and the Node may be compromised. ssh would read C(-oProxyCommand=...)
    as an option that runs a command on the controller, and tasks for a host at C(127.0.0.1) run on the controller.
    """
    if not isinstance(text, str):
        return False
    address = _ip(text)
    if address is not None:
        return not (address.is_loopback or address.is_unspecified or address.is_multicast or address.is_link_local)
    name = text.lower()
    return text.isascii() and is_name(name) and not (_LOCAL.fullmatch(name) or _NUMBER_AT_END.fullmatch(name))


def shared_addresses(nodes: t.Iterable[Facts]) -> dict[str, list[str]]:
    """C({address: names of Nodes}) for each address that several Nodes have as an address or as their name. nodes: the
    results of L(describe)."""
    owners: dict[str, set[str]] = {}
    for node in (node for node in nodes if is_name(node["name"])):
        for address in (node["name"], *node["reachable"]):
            owners.setdefault(_spelled(address), set()).add(node["name"])
    return {address: sorted(names) for address, names in owners.items() if len(names) > 1}


def who_shares(name: str, address: str, shared: t.Mapping[str, list[str]]) -> list[str]:
    """The Nodes that share an address, so that a connection may reach any of them. Empty if only one Node has it.

    name: the Node; shared: the result of L(shared_addresses). A host name that is the name of a Node belongs to that
    Node, even if others report it, because names of Nodes are unique.
    """
    return [] if address == name and _ip(name) is None else shared.get(_spelled(address), [])


def _ip(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Parses an IP address. An IPv4 address mapped into IPv6 becomes IPv4. None for other texts, and for an address
    with a zone: any text may follow the C(%), and an interface of the Node does not exist on the controller."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    if "%" in text:
        return None
    return address.ipv4_mapped or address if isinstance(address, ipaddress.IPv6Address) else address


def _spelled(address: str) -> str:
    """The canonical text of an address or host name, so that equal addresses have equal texts."""
    return str(_ip(address) or address.lower())


def describe(node: Live) -> Facts:
    """The facts of a Node. Most values come from the labels of GPU feature discovery."""
    meta, spec, status = node["metadata"], node.get("spec") or {}, node.get("status") or {}
    labels: dict[str, str] = dict(meta.get("labels") or {})
    info, offered = status.get("nodeInfo") or {}, offered_gpus(node)
    addresses: dict[str, str] = {}
    reachable = []
    for one in status.get("addresses") or ():
        kind, address = one["type"], one["address"]
        # The first usable address of a type; if there is none, an unusable one, so that messages can name it.
        if kind not in addresses or is_address(address) > is_address(addresses[kind]):
            addresses[kind] = address
        if is_address(address):
            reachable.append(address)
    count = labels.get("nvidia.com/gpu.count", "")
    ready, schedulable = is_ready(node), not spec.get("unschedulable")
    facts: GpuNode = {
        "model": labels.get("nvidia.com/gpu.product") or None,
        "count": int(count) if re.fullmatch("[0-9]{1,9}", count) else None,
        "family": labels.get("nvidia.com/gpu.family") or None, "driver": _driver(labels),
        "cuda": labels.get("nvidia.com/cuda.runtime-version.full") or None,
        "mig": {"capable": deploy_labels.mig_capable(labels), "strategy": labels.get("nvidia.com/mig.strategy") or None,
                "config": labels.get(MIG_CONFIG) or None, "state": labels.get(f"{MIG_CONFIG}.state") or None},
        "upgrade_state": labels.get(UPGRADE_STATE) or None,
        "resources": offered, "taints": [taint["key"] for taint in spec.get("taints") or ()],
        "ready": ready, "schedulable": schedulable, "labels": labels,
        "os_image": info.get("osImage") or None, "kernel": info.get("kernelVersion") or None,
        "runtime": info.get("containerRuntimeVersion") or None, "kubelet": info.get("kubeletVersion") or None,
        "provider_id": spec.get("providerID") or None,
        "state": "not_ready" if not ready else "cordoned" if not schedulable else
                 "ready" if offered else "no_resources",
    }
    return {"name": meta["name"], "addresses": addresses, "reachable": reachable,
            "gpu": has_gpu(labels) or bool(offered), "gpu_node": printable_data(facts)}


def groups(facts: GpuNode) -> list[str]:
    """The groups of a Node with GPUs. facts: C(gpu_node) of L(describe). The names are not sanitised yet."""
    mig = facts["mig"]
    found = {"model": facts["model"] or _UNKNOWN, "driver": facts["driver"] or _UNKNOWN, "state": facts["state"],
             "mig": {True: "capable", False: "incapable", None: _UNKNOWN}[mig["capable"]],
             "mig_strategy": mig["strategy"], "mig_config": mig["config"], "mig_state": mig["state"],
             "upgrade": facts["upgrade_state"]}
    return [f"gpu_{name}_{value}".lower() for name, value in found.items() if value]


def _driver(labels: t.Mapping[str, str]) -> str | None:
    full = labels.get("nvidia.com/cuda.driver-version.full")
    if full:
        return full
    # The older labels with the same meaning.
    parts = [labels.get(f"nvidia.com/cuda.driver.{part}", "") for part in ("major", "minor", "rev")]
    return ".".join(part for part in parts if part) or None
