# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Nodes as an inventory sees them: what is known of one, and the groups that it belongs to. Pure. PRIVATE."""

from __future__ import annotations

import ipaddress
import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.label_keys import MIG_CONFIG
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.printable import cleaned
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory.cluster_nodes import has_gpu
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.status import offered_gpus, says_ready
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import deploy_labels

Object = t.Mapping[str, t.Any]
Facts = t.Dict[str, t.Any]

# The version of what L(describe) returns and caches keep: increase it if a key comes, goes or changes its meaning.
SCHEMA = 1
_UNKNOWN = "unknown"
_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*")
# Names of the controller itself, as RFC 6761 and /etc/hosts of the distributions have them.
_LOCAL = re.compile(r"(ip6-)?(localhost[46]?|loopback)(\..*)?|.*\.localhost")
# inet_aton(3) reads 7, 127.1 and 0x7f.1 as addresses: a name that ends so is none (RFC 1123, 2.1).
_NUMBER_AT_END = re.compile(r"(.*\.)?([0-9]+|0x[0-9a-f]*)")


def is_name(text: t.Any) -> bool:
    """Whether it is the name of a Node: an RFC 1123 subdomain."""
    return isinstance(text, str) and len(text) <= 253 and _NAME.fullmatch(text) is not None


def is_address(text: t.Any) -> bool:
    """Whether it is an IP address or a host name by which another machine than the controller is reached.

    A kubelet says what its addresses are. ssh takes C(-oProxyCommand=...) in the place of one for an option that runs a
    command on the controller, and tasks for a host at C(127.0.0.1) run on the controller.
    """
    if not isinstance(text, str):
        return False
    address = _ip(text)
    if address is not None:
        return not (address.is_loopback or address.is_unspecified or address.is_multicast or address.is_link_local)
    name = text.lower()
    return text.isascii() and is_name(name) and not (_LOCAL.fullmatch(name) or _NUMBER_AT_END.fullmatch(name))


def shared_addresses(nodes: t.Iterable[Facts]) -> dict[str, list[str]]:
    """C({address: names of Nodes}) for each that several Nodes have as an address or as their name. nodes: of
    L(describe)."""
    owners: dict[str, set[str]] = {}
    for node in (node for node in nodes if is_name(node["name"])):
        for address in (node["name"], *node["reachable"]):
            owners.setdefault(_spelled(address), set()).add(node["name"])
    return {address: sorted(names) for address, names in owners.items() if len(names) > 1}


def who_shares(name: str, address: str, shared: t.Mapping[str, list[str]]) -> list[str]:
    """The Nodes of which nobody knows which one is at an address, empty where it is this Node's alone.

    shared: of L(shared_addresses). A host name that is the name of a Node is that Node's, whoever else gives it: no
    other Node of the cluster has this name.
    """
    return [] if address == name and _ip(name) is None else shared.get(_spelled(address), [])


def _ip(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """As an IP address; of one that is mapped into IPv6 the IPv4 address. None for one with a zone: anything may follow
    the C(%), and a link of the Node's own is none of the controller's."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    if "%" in text:
        return None
    return address.ipv4_mapped or address if isinstance(address, ipaddress.IPv6Address) else address


def _spelled(address: str) -> str:
    """One spelling for all of the same address."""
    return str(_ip(address) or address.lower())


def describe(node: Object) -> Facts:
    """C({name, addresses: {type: address}, reachable: all addresses that can be used, gpu: whether it has one, and what
    the plugin documents as gpu_node}).

    Values are None where nobody has told them: labels of GPU feature discovery say the most.
    """
    meta, spec, status = node["metadata"], node.get("spec") or {}, node.get("status") or {}
    labels: dict[str, str] = dict(meta.get("labels") or {})
    info, offered = status.get("nodeInfo") or {}, offered_gpus(node)
    addresses: dict[str, str] = {}
    reachable = []
    for one in status.get("addresses") or ():
        kind, address = one["type"], one["address"]
        # The first of a type; one that cannot be used only where there is no other, so that it can be named.
        if kind not in addresses or is_address(address) > is_address(addresses[kind]):
            addresses[kind] = address
        if is_address(address):
            reachable.append(address)
    count = labels.get("nvidia.com/gpu.count", "")
    facts: Facts = {
        "model": labels.get("nvidia.com/gpu.product") or None,
        "count": int(count) if re.fullmatch("[0-9]{1,9}", count) else None,
        "family": labels.get("nvidia.com/gpu.family") or None, "driver": _driver(labels),
        "cuda": labels.get("nvidia.com/cuda.runtime-version.full") or None,
        "mig": {"capable": deploy_labels.mig_capable(labels), "strategy": labels.get("nvidia.com/mig.strategy") or None,
                "config": labels.get(MIG_CONFIG) or None, "state": labels.get(f"{MIG_CONFIG}.state") or None},
        "upgrade_state": labels.get("nvidia.com/gpu-driver-upgrade-state") or None,
        "resources": offered, "taints": [taint["key"] for taint in spec.get("taints") or ()],
        "ready": says_ready(node), "schedulable": not spec.get("unschedulable"), "labels": labels,
        "os_image": info.get("osImage") or None, "kernel": info.get("kernelVersion") or None,
        "runtime": info.get("containerRuntimeVersion") or None, "kubelet": info.get("kubeletVersion") or None,
        "provider_id": spec.get("providerID") or None,
    }
    facts["state"] = _state(facts)
    return {"name": meta["name"], "addresses": addresses, "reachable": reachable,
            "gpu": has_gpu(labels) or bool(offered), "gpu_node": cleaned(facts)}


def groups(facts: Facts) -> list[str]:
    """The groups of a Node with GPUs, by the C(gpu_node) of L(describe); names are not sanitised yet."""
    mig = facts["mig"]
    found = {"model": facts["model"] or _UNKNOWN, "driver": facts["driver"] or _UNKNOWN, "state": facts["state"],
             "mig": {True: "capable", False: "incapable", None: _UNKNOWN}[mig["capable"]],
             **{f"mig_{key}": mig[key] for key in ("strategy", "config", "state")}, "upgrade": facts["upgrade_state"]}
    return [f"gpu_{name}_{value}".lower() for name, value in found.items() if value]


def _driver(labels: t.Mapping[str, str]) -> str | None:
    full = labels.get("nvidia.com/cuda.driver-version.full")
    if full:
        return full
    # The older names of the same.
    parts = [labels.get(f"nvidia.com/cuda.driver.{part}", "") for part in ("major", "minor", "rev")]
    return ".".join(part for part in parts if part) or None


def _state(facts: Facts) -> str:
    if not facts["ready"]:
        return "not_ready"
    if not facts["schedulable"]:
        return "cordoned"
    return "ready" if facts["resources"] else "no_resources"
