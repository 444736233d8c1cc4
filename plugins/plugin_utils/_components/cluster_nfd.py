# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the chart's section for Node Feature Discovery means if the collection delivers it. Pure. PRIVATE."""

from __future__ import annotations

import typing as t

SECTION = "node-feature-discovery"
TOLERATIONS = f"{SECTION}.worker.tolerations"
_CONTROL_PLANE = {"key": "node-role.kubernetes.io/control-plane", "operator": "Equal", "value": "",
                  "effect": "NoSchedule"}
_GPU = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
# The values of the charts of GPU Operator 24.6 to 26.7 (values.yaml), which the collection delivers.
_CHART: t.Mapping[str, t.Any] = {
    "enableNodeFeatureApi": True, "priorityClassName": "system-node-critical",
    "gc.enable": True, "gc.replicaCount": 1,
    **{f"{part}.serviceAccount.name": SECTION for part in ("gc", "worker", "master")},
    "gc.serviceAccount.create": False, "worker.serviceAccount.create": False, "master.serviceAccount.create": True,
    "worker.config.sources.pci.deviceClassWhitelist": ["02", "0200", "0207", "0300", "0302"],
    "worker.config.sources.pci.deviceLabelFields": ["vendor"], "master.config.extraLabelNs": ["nvidia.com"],
}


def without_effect(section: t.Any) -> list[str]:
    """The paths of a policy with values for NFD that differ from what is delivered, except L(tolerations)."""
    return [f"{SECTION}.{path}" for path, value in _leaves(section if isinstance(section, dict) else {}, "")
            if f"{SECTION}.{path}" != TOLERATIONS and _CHART.get(path) != value]


def tolerations(given: t.Any, common: t.Iterable[t.Any]) -> list[t.Any]:
    """The tolerations of the worker. These are the one for control planes; its own, or by default the one for tainted
    GPU nodes; and those of all components, as the worker has to run on the same Nodes. given: the worker's tolerations
    in the policy, None if it has none."""
    found: list[t.Any] = []
    for one in [_CONTROL_PLANE, *([_GPU] if given is None else given), *common]:
        if one not in found:
            found.append(one)
    return found


def _leaves(section: t.Mapping[str, t.Any], path: str) -> t.Iterator[tuple[str, t.Any]]:
    for key, value in section.items():
        full = f"{path}.{key}" if path else str(key)
        if isinstance(value, dict) and value:
            yield from _leaves(value, full)
        elif value not in (None, {}):
            yield full, value
