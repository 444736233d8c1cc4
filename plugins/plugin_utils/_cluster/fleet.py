# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Nodes as an inventory sees them: what is known of one, and the groups that it belongs to. Pure. PRIVATE."""

from __future__ import annotations

import ipaddress
import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._labels import _deploy
from ansible_collections.gpuops.nvidia.plugins.module_utils._labels._keys import MIG_CONFIG
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._cluster.status import offered_gpus, says_ready
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.cluster_nodes import has_gpu
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.printable import cleaned

Object = t.Mapping[str, t.Any]
Facts = t.Dict[str, t.Any]

_UNKNOWN = "unknown"
_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*")


def is_name(text: t.Any) -> bool:
    """Whether it is the name of a Node: an RFC 1123 subdomain."""
    return isinstance(text, str) and len(text) <= 253 and _NAME.fullmatch(text) is not None


def is_address(text: t.Any) -> bool:
    """Whether it is an IP address or a host name.

    A kubelet says what its addresses are, and ssh takes C(-oProxyCommand=...) in the place of one for an option that
    runs a command on the controller.
    """
    if not isinstance(text, str):
        return False
    if is_name(text.lower()) and text.isascii():
        return True
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return "%" not in text  # anything may follow it, and a link of the Node's own is none of the controller's


def describe(node: Object) -> Facts:
    """C({name, addresses: {type: address}, gpu: whether it has one, and what the plugin documents as gpu_node}).

    Values are None where nobody has told them: labels of GPU feature discovery say the most.
    """
    meta, spec, status = node["metadata"], node.get("spec") or {}, node.get("status") or {}
    labels: dict[str, str] = dict(meta.get("labels") or {})
    info, offered = status.get("nodeInfo") or {}, offered_gpus(node)
    addresses: dict[str, str] = {}
    for one in status.get("addresses") or ():
        kind, address = one["type"], one["address"]
        # The first of a type; one that cannot be used only where there is no other, so that it can be named.
        if kind not in addresses or is_address(address) > is_address(addresses[kind]):
            addresses[kind] = address
    count = labels.get("nvidia.com/gpu.count", "")
    facts: Facts = {
        "model": labels.get("nvidia.com/gpu.product") or None,
        "count": int(count) if re.fullmatch("[0-9]{1,9}", count) else None,
        "family": labels.get("nvidia.com/gpu.family") or None, "driver": _driver(labels),
        "cuda": labels.get("nvidia.com/cuda.runtime-version.full") or None,
        "mig": {"capable": _deploy.mig_capable(labels), "strategy": labels.get("nvidia.com/mig.strategy") or None,
                "config": labels.get(MIG_CONFIG) or None, "state": labels.get(f"{MIG_CONFIG}.state") or None},
        "upgrade_state": labels.get("nvidia.com/gpu-driver-upgrade-state") or None,
        "resources": offered, "taints": [taint["key"] for taint in spec.get("taints") or ()],
        "ready": says_ready(node), "schedulable": not spec.get("unschedulable"), "labels": labels,
        "os_image": info.get("osImage") or None, "kernel": info.get("kernelVersion") or None,
        "runtime": info.get("containerRuntimeVersion") or None, "kubelet": info.get("kubeletVersion") or None,
        "provider_id": spec.get("providerID") or None,
    }
    facts["state"] = _state(facts)
    return {"name": meta["name"], "addresses": addresses, "gpu": has_gpu(labels) or bool(offered),
            "gpu_node": cleaned(facts)}


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
