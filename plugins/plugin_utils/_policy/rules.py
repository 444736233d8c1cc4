# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keys of a document, and documents of a policy, that are mutually exclusive. Pure. PRIVATE.

Source: the resource definitions, the code and the chart's own checks (templates/validations.yaml) of GPU Operator 26.7.
"""

from __future__ import annotations

import itertools
import math
import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import node_terms
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.schema import fault_at
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.untyped import Section
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.yamltext import Document
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.defaults import get_path

# The operator itself sets this label, to assign Nodes to NVIDIADrivers.
_RESERVED = "nvidia.com/gpu-operator.driver.owner"
_ALONE = ("values", "GPUClusterPolicy")
# A DaemonSet with more nodeSelectorTerms is hard to read, and slows down the scheduler.
_TERMS = 256


def document_faults(kind: str, document: Document, root: tuple[str, ...]) -> list[str]:
    """Faults of one document that conforms to its schema. root: the path of the spec in the document."""
    spec = document.part(*root).data
    found = []
    driver = "" if kind == "NVIDIADriver" else "driver."
    version = get_path(spec, f"{driver}version")
    if get_path(spec, f"{driver}usePrecompiled") and str(version or "").startswith("sha256:"):
        found.append((f"{driver}version", "a digest cannot be used with usePrecompiled, which needs an image for each "
                                          "kernel; write the branch, such as '595'"))
    for apply in _BY_KIND.get(kind, ()):
        found += apply(spec)
    return [fault_at(document, (*root, *(int(key) if key.isdecimal() else key for key in path.split("."))), text)
            for path, text in found]


def _nvidia_driver_faults(spec: Section) -> list[tuple[str, str]]:
    selector = spec.get("nodeSelector") or {}
    found = []
    if spec.get("default") and selector:
        found.append(("nodeSelector", "the default NVIDIADriver is for the Nodes that no other one selects, so it must "
                                      "not have a selector; remove nodeSelector, or set default to false"))
    if _RESERVED in selector:
        found.append(("nodeSelector", f"the label {_RESERVED} is reserved for the GPU Operator; use another label"))
    return found + _affinity_faults(spec)


def _affinity_faults(spec: Section) -> list[tuple[str, str]]:
    """Faults of terms that the API server refuses in a pod, or that select no Node."""
    path = "nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"
    if get_path(spec, path) is None:
        return []
    path, found = f"{path}.nodeSelectorTerms", []
    terms = node_terms.required(spec["nodeAffinity"])
    if not terms:
        found.append((path, "a term is missing; add one, or remove nodeAffinity"))
    for index, term in enumerate(terms):
        expressions = [(f"{path}.{index}.{kind}.{number}", one) for kind in ("matchExpressions", "matchFields")
                       for number, one in enumerate(term.get(kind) or ())]
        if not expressions:
            found.append((f"{path}.{index}", "a term without expressions selects no Node; add one, or remove the term"))
        found += [(f"{where}.values", text) for where, one in expressions
                  for text in _values_fault(one, ".matchFields." in where)]
    return found


def _values_fault(expression: Section, of_field: bool) -> list[str]:
    """The fault of the values of an expression, if they have one. of_field: whether it compares a field."""
    operator, values = expression["operator"], list(expression.get("values") or ())
    if of_field:
        return [] if len(values) == 1 else ["one value is needed, the name of a Node"]
    if operator in ("Exists", "DoesNotExist"):
        return [f"the operator {operator} takes no values; remove them"] if values else []
    if operator in ("In", "NotIn"):
        return [] if values else [f"the operator {operator} needs one value or more"]
    if len(values) == 1 and re.fullmatch("-?[0-9]+", values[0], re.ASCII):
        return []
    return [f"the operator {operator} needs one whole number in quotes, such as '5'"]


def _values_faults(spec: Section) -> list[tuple[str, str]]:
    if get_path(spec, "clusterPolicy.deployCR") and get_path(spec, "gpuCluster.deployCR"):
        return [("gpuCluster.deployCR", "GPUCluster and ClusterPolicy exclude each other; set one to false")]
    return []


def _cdi_faults(spec: Section) -> list[tuple[str, str]]:
    if not get_path(spec, "cdi.nriPluginEnabled"):
        return []
    return [("cdi.nriPluginEnabled", f"the NRI plugin needs {path}; set it to true, or nriPluginEnabled to false")
            for path in ("cdi.enabled", "toolkit.enabled") if get_path(spec, path) is False]


_BY_KIND: dict[str, tuple[t.Callable[[Section], list[tuple[str, str]]], ...]] = {
    "NVIDIADriver": (_nvidia_driver_faults,), "ClusterPolicy": (_cdi_faults,), "values": (_cdi_faults, _values_faults),
}


def kind_faults(kinds: t.Sequence[str]) -> list[str]:
    """Faults if documents of these kinds cannot be combined in one policy."""
    found = [f"there are {kinds.count(kind)} documents of kind {kind}; a cluster has only one; remove the others"
             for kind in dict.fromkeys(kinds) if kind != "NVIDIADriver" and kinds.count(kind) > 1]
    if {"ClusterPolicy", "GPUCluster"} <= set(kinds):
        found.append("GPUCluster and ClusterPolicy exclude each other; remove one of them")
    return found + [f"{kind} cannot be combined with other documents ({', '.join(dict.fromkeys(kinds))}); remove them"
                    for kind in _ALONE if kind in kinds and set(kinds) != {kind}]


def driver_faults(drivers: t.Sequence[tuple[str, Section]]) -> list[str]:
    """Faults of NVIDIADrivers that are mutually exclusive. drivers: the name and spec of each."""
    names = [name for name, _spec in drivers]
    found = [f"{names.count(name)} NVIDIADrivers have the name {name}; give each its own name"
             for name in dict.fromkeys(names) if names.count(name) > 1]
    defaults = [name for name, spec in drivers if spec.get("default")]
    if len(defaults) > 1:
        found.append(f"NVIDIADrivers {', '.join(defaults)} all have default: true; only one may have it")
    others = [(name, spec) for name, spec in drivers if not spec.get("default")]
    for (one, its), (other, own) in itertools.combinations(others, 2):
        if _selects_all_of(its, own) or _selects_all_of(own, its):
            found.append(f"NVIDIADrivers {one} ({_selected(its)}) and {other} ({_selected(own)}) select the "
                         "same Nodes; use selectors that exclude each other, or set default to true in one of them")
    return found


def terms_fault(pools: t.Sequence[tuple[str, t.Mapping[str, str], t.Sequence[Section]]], own: t.Sequence[Section]
                ) -> str:
    """The fault if the DaemonSet of the default driver would need too many terms to exclude the Nodes of NVIDIADrivers:
    the numbers of the terms that exclude the Nodes of each of them multiply. Empty if it would not.

    pools: C((name, nodeSelector, terms)) of each NVIDIADriver that selects Nodes; own: the terms of the default driver.
    """
    counts = {name: node_terms.count_of_others(selector, terms) for name, selector, terms in pools}
    total = math.prod(counts.values()) * (len(own) or 1)
    if total <= max(_TERMS, len(own)):
        return ""
    several = ", ".join(name for name, count in counts.items() if count > 1)
    beside = f" and its nodeAffinity has {len(own)} terms" if own[1:] else ""
    return (f"the DaemonSet of the default driver would have {total} nodeSelectorTerms, because the Nodes that "
            f"NVIDIADrivers {several} select are excluded from it{beside}; at most {_TERMS} are allowed. Give the "
            "Nodes of each NVIDIADriver a label of their own, and select them by nodeSelector")


def _selects_all_of(wider: Section, narrower: Section) -> bool:
    """Whether an NVIDIADriver certainly selects all Nodes that another one selects. What two different affinities
    select is known only when the Nodes are read."""
    terms = node_terms.required(wider.get("nodeAffinity"))
    return bool((wider.get("nodeSelector") or {}).items() <= (narrower.get("nodeSelector") or {}).items()
                and (not terms or terms == node_terms.required(narrower.get("nodeAffinity"))))


def _selected(spec: Section) -> str:
    chosen = [f"{key}={value}" for key, value in sorted((spec.get("nodeSelector") or {}).items())]
    chosen += ["its nodeAffinity"] if node_terms.required(spec.get("nodeAffinity")) else []
    return ", ".join(chosen) or "all Nodes with a GPU"
