# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Nodes for tests, and the effect of a patch on them."""

from __future__ import annotations

import calendar
import dataclasses
import typing as t

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import deploy_labels
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.deploy_labels import ANNOTATION, Deploy, Node, Terms

NFD = "feature.node.kubernetes.io/"
SYSTEM = {f"{NFD}system-os_release.ID": "ubuntu"}
GPU = {**SYSTEM, f"{NFD}pci-10de.present": "true"}
CAPABLE = {"nvidia.com/mig.capable": "true"}
D = "nvidia.com/gpu.deploy."
NAMES = ("nfd", "driver", "container_toolkit", "validator", "device_plugin", "feature_discovery", "dcgm_exporter",
         "mig_manager")
NOW = calendar.timegm((2026, 11, 22, 7, 0, 0))
ALL = Deploy(frozenset(NAMES), {}, "all-disabled")
# What GPU Operator 26.7 writes to a GPU Node of the default policy, without the labels of components that are not
# delivered (dcgm, node-status-exporter).
OPERATOR = {"nvidia.com/gpu.present": "true", **{D + word: "true" for word in (
    "client", "container-toolkit", "dcgm-exporter", "device-plugin", "driver", "gpu-feature-discovery",
    "operator-validator")}}


def node(labels: t.Mapping[str, str], ours: t.Iterable[str] = (), ready: bool = True) -> Node:
    """A Node as the API server returns it."""
    return Node("n", dict(labels), {ANNOTATION: ",".join(sorted(ours))} if ours else {}, ready)


def plan_present(before: Node, deploy: Deploy | None, now: float = NOW) -> deploy_labels.Change | None:
    """Plans at a fixed time."""
    return deploy_labels.plan_present(before, deploy, Terms(now))


def after(before: Node, deploy: Deploy | None = ALL, now: float = NOW) -> Node:
    """The Node after the patch, applied as a merge patch; checks that a second plan has nothing more to do."""
    change = plan_present(before, deploy, now)
    then = patched(before, change.patch() if change else {"metadata": {}})
    again = plan_present(then, deploy, now)
    assert again is None, again
    return then


def patched(before: Node, patch: t.Mapping[str, t.Any]) -> Node:
    """RFC 7396 on labels and annotations."""
    metadata = patch["metadata"]
    parts = [{key: value for key, value in {**old, **metadata.get(name, {})}.items() if value is not None}
             for name, old in (("labels", before.labels), ("annotations", before.annotations))]
    return dataclasses.replace(before, labels=parts[0], annotations=parts[1])


def added(now: Node, before: t.Mapping[str, str]) -> dict[str, str]:
    """The labels that the Node did not have before."""
    return {key: value for key, value in now.labels.items() if key not in before}
