# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Renders manifests from the plan of the cluster and the templates of a role, which import C(pod.j2). PRIVATE.

Reads only files. The variables of the templates are C(namespace), C(component) (the plan of the component),
C(common) (the settings of all components) and C(script(name)), the text of a file in the role.
"""

from __future__ import annotations

import functools
import glob
import json
import os
import re
import typing as t

import jinja2
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.components import IN_CLUSTERS
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.yamltext import parse
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.objects import (
    SHARED,
    labels_of_pods,
    namespace_manifest,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands import openshift
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands.variables import set_variables
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.cluster_openshift import (
    NAMESPACE as OPENSHIFT_NAMESPACE,
)

Manifest = t.Dict[str, t.Any]
Plan = t.Mapping[str, t.Any]

# Objects that all components need and that belong to none (the Namespace, the RuntimeClasses) come first.
ORDER: t.Tuple[str, ...] = (SHARED, *(component.name for component in IN_CLUSTERS))

_ROLES = os.path.join(os.path.dirname(__file__), "..", "..", "..", "roles")
_SHARED = os.path.dirname(__file__)  # pod.j2, which templates import
# Characters that JSON leaves as they are, but that YAML reads as the end of a line or does not allow.
_UNPRINTABLE = re.compile("[\x7f-\xa0\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")


def render(component: str, cluster: Plan) -> list[Manifest]:
    """The objects of a component in the order in which they are created; none if the component is absent.

    component: a name of L(components), or C(SHARED) of L(objects) for the objects that all components need.
    """
    if component == SHARED:
        return _shared(cluster)
    plan = cluster["components"][component]
    return _manifests(component, plan, cluster) if plan["state"] == "present" else []


def _shared(cluster: Plan) -> list[Manifest]:
    """The objects that all components need. With the NRI plugin, annotations give GPUs to pods, so that no pod needs a
    RuntimeClass."""
    common, namespace = cluster["common"], cluster["namespace"]
    found = [namespace_manifest(namespace, cluster["psa"], common["openshift"] and namespace == OPENSHIFT_NAMESPACE)]
    if common["openshift"]:
        found += openshift.prometheus(namespace)
    if not common["nri"]:
        handlers = [common["runtime_class"], *(("nvidia-cdi", "nvidia-legacy") if common["cdi"] else ())]
        found += [{"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": name}, "handler": name}
                  for name in handlers]
    return found


def _manifests(component: str, plan: Plan, cluster: Plan) -> list[Manifest]:
    found: list[Manifest] = []
    pools = {pool["name"]: _pool(pool, plan, cluster["common"]) for pool in plan.get("pools", ())}
    names = {"namespace": cluster["namespace"], "component": {**plan, "pools": list(pools.values())},
             "common": cluster["common"], "script": functools.partial(_script, component)}
    for name in _templates(component):
        text = _environment().get_template(name).render(names)
        found += [document.data for document in parse(text, name, own=True)]
    if cluster["common"]["openshift"]:
        found += openshift.rights(found, cluster["namespace"])
    if component != "nfd":  # Node Feature Discovery has no variables in the policy
        for manifest in found:
            if manifest["kind"] == "DaemonSet":
                set_variables(manifest, pools.get(manifest["metadata"]["name"], plan), cluster["common"])
    return sorted(found, key=lambda manifest: _RANKS.get(manifest["kind"], len(_RANKS)))


def _pool(pool: Plan, plan: Plan, common: Plan) -> Plan:
    """The plan of one DaemonSet of a component. The settings of its NVIDIADriver take precedence."""
    own = pool["own"]
    return {**plan, **pool, "common": {
        **common, "labels": {**common["labels"], **labels_of_pods(own["labels"])},
        "annotations": {**common["annotations"], **own["annotations"]},
        "tolerations": [*common["tolerations"], *own["tolerations"]],
        "priority_class": own["priority_class"] or common["priority_class"],
        "pod_security_context": own["pod_security_context"] or common["pod_security_context"]}}


# Kinds that other kinds need come first.
_RANKS = {kind: rank for rank, kind in enumerate((
    "CustomResourceDefinition", "ServiceAccount", "ClusterRole", "Role", "ClusterRoleBinding", "RoleBinding",
    "ConfigMap", "Service"))}


@functools.lru_cache(maxsize=None)
def _environment() -> jinja2.Environment:
    # Nothing is escaped for HTML.
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader([_ROLES, _SHARED]), autoescape=False,
                                     undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = _quoted
    environment.filters["combine"] = _combined
    return environment


def _combined(*mappings: t.Mapping[str, str]) -> dict[str, str]:
    """Merges several mappings. A later one takes precedence, as with Ansible's filter of this name."""
    return {key: value for mapping in mappings for key, value in mapping.items()}


def _quoted(value: t.Any) -> str:
    """A value as JSON that YAML reads as the same value.

    Jinja's own filter writes a character beyond 16 bits as two escapes, which YAML reads as two characters.
    """
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


@functools.lru_cache(maxsize=None)
def _templates(component: str) -> tuple[str, ...]:
    files = sorted(glob.glob(os.path.join(_ROLES, component, "templates", "*.yaml.j2")))
    return tuple(f"{component}/templates/{os.path.basename(path)}" for path in files)


def _script(component: str, name: str) -> str:
    with open(os.path.join(_ROLES, component, "files", name), encoding="utf-8") as handle:
        return handle.read()
