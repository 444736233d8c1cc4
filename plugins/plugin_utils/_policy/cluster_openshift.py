# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is different on OpenShift, as far as it takes none of OpenShift's own APIs. Pure. PRIVATE.

Source of all differences: GPU Operator 26.7 (what its controllers and assets do on OpenShift alone).
"""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.refusals import Refused
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.defaults import look
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.formats import Policy

Nodes = t.Mapping[str, t.Mapping[str, t.Any]]

# Elsewhere others may live, whom neither labels of Pod Security nor the cluster's own Prometheus are for.
NAMESPACE = "nvidia-gpu-operator"
_LABEL = "node.openshift.io/os_id"
_COREOS = "Red Hat Enterprise Linux CoreOS"
# The reason and the remedy of L(Refused).
NO_TOOLKIT = (
    f"on {_COREOS} a driver's modules are built by the image of OpenShift's driver toolkit, which is found by an API "
    "of OpenShift that this version cannot ask",
    "Set driver.usePrecompiled, driver.repository to your own images and driver.version to a branch; or "
    "operator.use_ocp_driver_toolkit to false, where the container is entitled to fetch kernel headers; or leave the "
    "driver to the system (driver.enabled: false).")


def found(policy: Policy, facts: t.Mapping[str, t.Any] | None) -> bool:
    """Whether the cluster is OpenShift: as the policy says, else as the API server does (C(openshift) of the facts).

    Where nobody could ask it, all Nodes have to say so: one kubelet does not decide for all.
    """
    if policy.get("platform.openshift") or facts is None:
        return bool(policy.get("platform.openshift"))
    if facts.get("openshift") is not None:
        return bool(facts["openshift"])
    return bool(facts["nodes"]) and all(claims(node) for node in facts["nodes"].values())


def claims(node: t.Mapping[str, t.Any]) -> bool:
    """Whether a Node says that it is one of OpenShift."""
    return _LABEL in node["labels"] or _coreos(node)


def version(system: tuple[str, str]) -> dict[str, str]:
    """The variable by which a driver's container knows OpenShift's version, which is that of CoreOS, to 4.18 as its
    own system."""
    name, text = system
    return {"OPENSHIFT_VERSION": text} if name == "rhcos" and re.fullmatch(r"\d\.\d+", text) else {}


def needs_toolkit(policy: Policy, mine: Policy, node: t.Mapping[str, t.Any]) -> bool:
    """Whether only the driver toolkit of OpenShift could build the driver of a Node. mine: the policy that holds for
    it. The chart's default is not a user's word: it is made for other clusters."""
    return _coreos(node) and not mine.get("driver.usePrecompiled") and not any(
        look(source.spec, "operator.use_ocp_driver_toolkit") is False for source in policy.sources)


def without_gpus(policy: Policy, nodes: Nodes, asked: t.Iterable[tuple[str, str]]) -> list[Refused]:
    """What only the driver toolkit could build: for the systems that the user names (asked), and, while no Node is
    known to have a GPU, for the Nodes where all of them need it."""
    built = [f"{name}{text} of gpu_node_os" for name, text in asked
             if name == "rhcos" and needs_toolkit(policy, policy, {"os": {"id": name}})]
    if nodes and all(needs_toolkit(policy, policy, node) for node in nodes.values()):
        built += nodes
    return [Refused(*NO_TOOLKIT).of(built)] if built else []


def _coreos(node: t.Mapping[str, t.Any]) -> bool:
    """From OpenShift 4.19 on its os-release has the id rhel."""
    return (node["os"] or {}).get("id") == "rhcos" or str(node.get("os_image") or "").startswith(_COREOS)
