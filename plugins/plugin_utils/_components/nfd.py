# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Node Feature Discovery: its plan in a cluster. Pure. PRIVATE."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._components import component
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.untyped import Section
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import key_effects

_SECTION = "node-feature-discovery"
_TOLERATIONS = f"{_SECTION}.worker.tolerations"
_CONTROL_PLANE = {"key": "node-role.kubernetes.io/control-plane", "operator": "Equal", "value": "",
                  "effect": "NoSchedule"}
_GPU = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
# The values of the charts of GPU Operator 24.6 to 26.7 (values.yaml), which the collection delivers.
_CHART: t.Mapping[str, object] = {
    "enableNodeFeatureApi": True, "priorityClassName": "system-node-critical",
    "gc.enable": True, "gc.replicaCount": 1,
    **{f"{part}.serviceAccount.name": _SECTION for part in ("gc", "worker", "master")},
    "gc.serviceAccount.create": False, "worker.serviceAccount.create": False, "master.serviceAccount.create": True,
    "worker.config.sources.pci.deviceClassWhitelist": ["02", "0200", "0207", "0300", "0302"],
    "worker.config.sources.pci.deviceLabelFields": ["vendor"], "master.config.extraLabelNs": ["nvidia.com"],
}


class NfdPart(component.PresentPlan):
    """The plan in a cluster. rules: whether the GPU Operator's NodeFeatureRules are delivered; tolerations: the
    tolerations of the NFD worker."""

    rules: bool
    tolerations: t.List[Section]


def cluster_plan(context: component.Context, shared: component.PresentPlan) -> NfdPart:
    """The plan in a cluster, with the values of the chart. Adds a note for each policy value without an effect."""
    ignored = _without_effect(context.get(_SECTION))
    if ignored:
        named = ", ".join(key_effects.shortened(ignored, [*ignored, _TOLERATIONS]))
        context.notes.append(f"{named}: ignored, because NFD is delivered with the default values of the chart. To use "
                             "other values, set nfd.enabled to false and install NFD yourself.")
    return {**shared, "rules": bool(context.get("nfd.nodefeaturerules")), "tolerations": _tolerations(
        context.get(_TOLERATIONS), context.get("daemonsets.tolerations") or ())}


def _without_effect(section: object) -> list[str]:
    """The paths of NFD values in a policy that differ from the delivered values, except L(_tolerations)."""
    return [f"{_SECTION}.{path}" for path, value in _leaves(section if isinstance(section, dict) else {}, "")
            if f"{_SECTION}.{path}" != _TOLERATIONS and _CHART.get(path) != value]


def _tolerations(given: t.Iterable[Section] | None, common: t.Iterable[Section]) -> list[Section]:
    """The tolerations of the worker: the one for control planes; the worker's own or, by default, the one for tainted
    GPU nodes; and those of all components, because the worker must run on the same Nodes. given: the worker's own
    tolerations in the policy, None if it has none."""
    found: list[Section] = []
    for one in [_CONTROL_PLANE, *([_GPU] if given is None else given), *common]:
        if one not in found:
            found.append(one)
    return found


def _leaves(section: Section, path: str) -> t.Iterator[tuple[str, object]]:
    for key, value in section.items():
        full = f"{path}.{key}" if path else str(key)
        if isinstance(value, dict) and value:
            yield from _leaves(value, full)
        elif value not in (None, {}):
            yield full, value


COMPONENT: component.Component[component.HostPlan] = component.Component(
    "nfd", images=("nfd",), cluster_plan=cluster_plan,
    foreign=lambda facts: ("reused: the cluster has an NFD that another tool manages" if facts["nfd"] == "foreign"
                           else ""))
