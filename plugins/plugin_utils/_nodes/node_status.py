# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads what the states of Nodes depend on: one list of Nodes, and one of the validator's pods. PRIVATE."""

from __future__ import annotations

import datetime
import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import upgrades
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.label_keys import NFD, OPERANDS, PCI, WORKLOAD
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.node_status import NodeStatus
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.errors import ClusterError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.objects import Live, Object
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.status import gpu_capacity, is_ready, offered_gpus
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import maintenance
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.deploy_labels import (
    GONE,
    LABELS,
    MIG_STATE,
    SANDBOX,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.node import NodeState
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.node_lock import Holder, holder_of

_VALIDATOR = "app=nvidia-operator-validator"
_CORDON = "node.kubernetes.io/unschedulable"
_TIME = re.compile(r"[1-9]\d{3}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
_SECONDS = re.compile(r"[1-9][0-9]{8,10}")
# The labels of feature discovery with the driver version: in full, and, before 0.18, in parts.
_DRIVER = "nvidia.com/cuda.driver-version.full"
_DRIVER_PARTS = tuple(f"nvidia.com/cuda.driver.{part}" for part in ("major", "minor", "rev"))
# The annotation with the time at which a Node came into this state of an upgrade.
_SINCE = {upgrades.WAIT: upgrades.WAITING_SINCE, upgrades.VALIDATION: upgrades.VALIDATING_SINCE}


def read(client: Client, namespace: str, names: t.Collection[str], me: Holder) -> dict[str, NodeStatus]:
    """The status of each of these Nodes that exists. namespace: that of the operands; me: this run.

    Without the permission to list pods, it is not known since when the validator's pods are ready.
    """
    nodes = [one for one in client.list("v1", "Node") if one["metadata"]["name"] in names]
    left = maintenance.left_by_runs({one["metadata"]["name"]: one["metadata"].get("annotations") or {}
                                     for one in nodes}, me)
    valid = _valid_since(client, namespace) if nodes else {}
    return {name: of_node(one, left.get(name, ""), valid.get(name, "")) for one in nodes
            for name in [str(one["metadata"]["name"])]}


def _valid_since(client: Client, namespace: str) -> dict[str, str]:
    """Maps Nodes to the times since which their validators are ready."""
    try:
        pods = client.list("v1", "Pod", namespace=namespace, label_selector=_VALIDATOR)
    except ClusterError as error:
        if error.status != 403:
            raise
        return {}
    return {str(pod["spec"].get("nodeName")): _transition(pod) for pod in pods if is_ready(pod)}


def of_node(node: Object, left: str = "", valid_since: str = "") -> NodeStatus:
    """The status of a Node. left, valid_since: as in NodeStatus."""
    state, labels = NodeState.read(node), node["metadata"].get("labels") or {}
    holder = None if left else holder_of(state)
    gone = any(key.startswith(NFD) for key in labels) and not any(labels.get(key) == "true" for key in PCI)
    deploy = {name: labels.get(key, "") for name, key in LABELS.items()}
    workload = labels.get(WORKLOAD, "")
    return NodeStatus(
        is_ready(node), _transition(node), state.cordoned, labels.get(upgrades.STATE, ""), _upgrade_since(state),
        holder.controller if holder else "", _time(holder.text.rpartition("@")[2]) if holder else "", left,
        labels.get(OPERANDS) != "false", workload if workload in SANDBOX else "",
        {name: value for name, value in deploy.items() if value != "true"}, labels.get(MIG_STATE, ""),
        labels.get(_DRIVER) or ".".join(labels[key] for key in _DRIVER_PARTS if labels.get(key)),
        sum(gpu_capacity(node).values()), sum(offered_gpus(node).values()),
        _time(state.annotations.get(GONE, "")) if gone else "", valid_since)


def _upgrade_since(node: NodeState) -> str:
    """Since when a Node is in its state of an upgrade; else since when it is cordoned, if it was so for the upgrade."""
    state = node.labels.get(upgrades.STATE, "")
    began = node.annotations.get(_SINCE[state], "") if state in _SINCE else ""
    if _SECONDS.fullmatch(began):
        return datetime.datetime.fromtimestamp(int(began), datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    if state not in upgrades.CORDONED or upgrades.CORDONED_BEFORE in node.annotations:
        return ""
    return next((_time(one.get("timeAdded")) for one in node.taints if one.get("key") == _CORDON), "")


def _transition(live: Live) -> str:
    """When the condition Ready of a Node or pod has changed its status."""
    conditions = (live.get("status") or {}).get("conditions") or ()
    return next((_time(one.get("lastTransitionTime")) for one in conditions if one.get("type") == "Ready"), "")


def _time(text: object) -> str:
    """The text if it is a time of the API, else empty."""
    return text if isinstance(text, str) and _TIME.fullmatch(text) else ""
