# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The rules for OpenShift clusters that need no OpenShift API. Pure. PRIVATE.

Source: the controllers and assets of GPU Operator 26.7.
"""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.facts import ClusterFacts, Node, Nodes
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.refusals import Refused
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.defaults import get_path
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.formats import Policy

# The labels for Pod Security admission and for the cluster's Prometheus are set in this namespace only, because other
# namespaces may be shared.
NAMESPACE = "nvidia-gpu-operator"
_LABEL = "node.openshift.io/os_id"
_COREOS = "Red Hat Enterprise Linux CoreOS"
# (reason, remedy) for L(Refused).
NO_TOOLKIT = (
    f"on {_COREOS}, the driver toolkit image of OpenShift builds the kernel modules, and this version of the "
    "collection cannot find this image",
    "Set driver.usePrecompiled to true, driver.repository to your own images, and driver.version to a branch. Or set "
    "operator.use_ocp_driver_toolkit to false, if the container is entitled to download kernel headers. Or set "
    "driver.enabled to false, if the system installs the driver.")


def is_openshift(policy: Policy, facts: ClusterFacts | None) -> bool:
    """Whether the cluster is OpenShift, according to the policy or, if the policy does not set it, to L(reported)."""
    return bool(policy.get("platform.openshift")) or facts is not None and reported(facts)


def reported(facts: ClusterFacts) -> bool:
    """Whether the cluster is OpenShift according to the API server (C(openshift) in the facts).

    If the facts do not contain this, the cluster is OpenShift only if all Nodes report it.
    """
    if facts.get("openshift") is not None:
        return bool(facts["openshift"])
    return bool(facts["nodes"]) and all(node_is_openshift(node) for node in facts["nodes"].values())


def node_is_openshift(node: Node) -> bool:
    """Whether a Node runs OpenShift, according to its facts."""
    return _LABEL in node["labels"] or _coreos(node)


def version(system: tuple[str, str]) -> dict[str, str]:
    """The variable with OpenShift's version for a driver container. Up to OpenShift 4.18, the version is that of
    CoreOS. system: (ID, VERSION_ID) of os-release."""
    name, text = system
    return {"OPENSHIFT_VERSION": text} if name == "rhcos" and re.fullmatch(r"\d\.\d+", text) else {}


def needs_toolkit(policy: Policy, pool_policy: Policy, node: Node) -> bool:
    """Whether only OpenShift's driver toolkit can build the driver of a Node. pool_policy: the policy of the Node's
    pool. The chart's default of use_ocp_driver_toolkit is ignored, because it is meant for other clusters."""
    return _coreos(node) and _needs_toolkit(policy, pool_policy)


def _needs_toolkit(policy: Policy, pool_policy: Policy) -> bool:
    return not pool_policy.get("driver.usePrecompiled") and not any(
        get_path(source.spec, "operator.use_ocp_driver_toolkit") is False for source in policy.sources)


def toolkit_refusals(policy: Policy, nodes: Nodes, node_os: t.Iterable[tuple[str, str]]) -> list[Refused]:
    """A refusal if only the driver toolkit can build the driver of a system in gpu_node_os (node_os), or of all Nodes.
    It is for clusters in which no Node is known to have a GPU."""
    built = [f"{name}{text} of gpu_node_os" for name, text in node_os
             if name == "rhcos" and _needs_toolkit(policy, policy)]
    if nodes and all(needs_toolkit(policy, policy, node) for node in nodes.values()):
        built += nodes
    return [Refused(*NO_TOOLKIT).of(built)] if built else []


def _coreos(node: Node) -> bool:
    """Whether the system of a Node is CoreOS. Since OpenShift 4.19, the ID in its os-release is rhel."""
    system = node["os"]
    return (system is not None and system["id"] == "rhcos") or str(node.get("os_image") or "").startswith(_COREOS)
