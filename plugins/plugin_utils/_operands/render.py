# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Renders manifests from the plan of the cluster: the templates of a role, and the settings of all pods. PRIVATE.

It only reads template files. The variables of templates are C(namespace), C(component) (the plan of the component),
C(common) (the settings of all components) and C(script(name)), the text of a file beside the templates.
"""

from __future__ import annotations

import functools
import glob
import hashlib
import json
import os
import re
import typing as t

import jinja2
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.components import IN_CLUSTERS
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.yamltext import parse
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.objects import MPS_DAEMON, SHARED, namespace_manifest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands import openshift
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.cluster_openshift import (
    NAMESPACE as OPENSHIFT_NAMESPACE,
)

Manifest = t.Dict[str, t.Any]
Plan = t.Mapping[str, t.Any]

# Objects that all components need and that belong to none (the Namespace, the RuntimeClasses) come first.
ORDER: t.Tuple[str, ...] = (SHARED, *(component.name for component in IN_CLUSTERS))

_ROLES = os.path.join(os.path.dirname(__file__), "..", "..", "..", "roles")
# Labels of the user do not replace those by which pods are selected (as in GPU Operator 26.7).
_SELECTING = ("app", "app.kubernetes.io/part-of")
_DIGEST = "DRIVER_CONFIG_DIGEST"
# Characters that JSON leaves as they are, but that YAML reads as the end of a line or does not allow.
_UNPRINTABLE = re.compile("[\x7f-\xa0\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")


def render(component: str, cluster: Plan) -> list[Manifest]:
    """The objects of a component in the order in which they are created; none if the component is absent.

    component: a name of L(components), or C(SHARED) of L(objects) for what all of them need.
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
    names = {"namespace": cluster["namespace"], "component": plan, "common": cluster["common"],
             "script": functools.partial(_script, component)}
    for name in _templates(component):
        text = _environment().get_template(name).render(names)
        found += [document.data for document in parse(text, name, own=True)]
    if cluster["common"]["openshift"]:
        found += openshift.rights(found, cluster["namespace"])
    for manifest in found:
        if manifest["kind"] in ("DaemonSet", "Deployment"):
            mine, common = _of_pool(manifest, plan, cluster["common"])
            _settle(manifest, component, mine, common)
    return sorted(found, key=lambda manifest: _RANKS.get(manifest["kind"], len(_RANKS)))


def _of_pool(manifest: Manifest, plan: Plan, common: Plan) -> tuple[Plan, Plan]:
    """(plan, common settings) of one DaemonSet of a component. Its own settings take precedence, if it has some."""
    pool = next((one for one in plan.get("pools", ()) if one["name"] == manifest["metadata"]["name"]), None)
    if pool is None:
        return plan, common
    own = pool["own"]
    added = {"labels": {**common["labels"], **own["labels"]},
             "annotations": {**common["annotations"], **own["annotations"]},
             "tolerations": [*common["tolerations"], *own["tolerations"]],
             "priority_class": own["priority_class"] or common["priority_class"],
             "pod_security_context": own["pod_security_context"] or common["pod_security_context"]}
    return {**plan, **pool}, {**common, **added}


# Kinds that others need come first.
_RANKS = {kind: rank for rank, kind in enumerate((
    "CustomResourceDefinition", "ServiceAccount", "ClusterRole", "Role", "ClusterRoleBinding", "RoleBinding",
    "ConfigMap", "Service"))}


@functools.lru_cache(maxsize=None)
def _environment() -> jinja2.Environment:
    # Nothing is escaped for HTML.
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(_ROLES), undefined=jinja2.StrictUndefined,
                                     autoescape=False, trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = _quoted
    return environment


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


# -- the settings that all pods share

def _settle(manifest: Manifest, component: str, plan: Plan, common: Plan) -> None:
    spec = manifest["spec"]["template"]["spec"]
    if plan["pull_secrets"]:
        spec["imagePullSecrets"] = [{"name": name} for name in plan["pull_secrets"]]
    if component == "nfd":
        # The section daemonsets of the policy does not apply to Node Feature Discovery.
        return
    _strategy(manifest, component, common)
    _metadata(manifest, common)
    spec["tolerations"] = list(common["tolerations"])
    spec["priorityClassName"] = common["priority_class"]
    if common["pod_security_context"]:
        spec["securityContext"] = dict(common["pod_security_context"])
    if plan["host_network"]:
        spec.update(hostNetwork=True, dnsPolicy="ClusterFirstWithHostNet")
    _containers(manifest, spec, plan, common["validation"])
    _host_root(spec, common["host_root"])
    _driver_folder(spec, common["driver_install_dir"])
    _driver_digest(spec)


def _strategy(manifest: Manifest, component: str, common: Plan) -> None:
    """Sets the update strategy. A driver pod is only replaced after somebody has deleted it; so is an MPS daemon,
    unless its clients may be ended."""
    stays = component == "driver" or (manifest["metadata"]["name"] == MPS_DAEMON and not common["mps_rolls"])
    if stays or common["update_strategy"] == "OnDelete":
        manifest["spec"]["updateStrategy"] = {"type": "OnDelete"}
    else:
        manifest["spec"]["updateStrategy"] = {"type": "RollingUpdate",
                                              "rollingUpdate": {"maxUnavailable": common["max_unavailable"]}}


def _metadata(manifest: Manifest, common: Plan) -> None:
    labels = {key: value for key, value in common["labels"].items() if key not in _SELECTING}
    for metadata in (manifest["metadata"], manifest["spec"]["template"]["metadata"]):
        metadata.setdefault("labels", {}).update(labels)
        if common["annotations"]:
            metadata.setdefault("annotations", {}).update(common["annotations"])


def _containers(manifest: Manifest, spec: Manifest, plan: Plan, validation: Plan) -> None:
    """Sets arguments, variables and resources. Arguments and variables are for the first container, the main one. The
    MPS daemon does not get those of the device plugin, to which it belongs."""
    first = spec["containers"][0]
    if manifest["metadata"]["name"] != MPS_DAEMON:
        if plan["args"]:
            first["args"] = list(plan["args"])
        _set(first, plan["env"])
    for container in [*spec["containers"], *spec.get("initContainers", ())]:
        check, _dash, kind = container["name"].rpartition("-")
        resources = validation["resources"] if kind == "validation" else plan["resources"]
        if kind == "validation":
            _set(container, validation["env"].get(check, {}))
        if container["name"] == "k8s-driver-manager":
            _set(container, plan["manager_env"])
        if resources:
            container["resources"] = dict(resources)


def _set(container: Manifest, variables: t.Mapping[str, str]) -> None:
    """Sets variables of a container. A variable that it already has is replaced at the same position."""
    if not variables:
        return
    items = container.setdefault("env", [])
    places = {item["name"]: index for index, item in enumerate(items)}
    for name, value in variables.items():
        item = {"name": name, "value": value}
        if name in places:
            items[places[name]] = item
        else:
            items.append(item)


def _host_root(spec: Manifest, root: str) -> None:
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    if root in ("", "/"):
        return
    if "host-root" in volumes:
        volumes["host-root"]["hostPath"]["path"] = root
        for container in [*spec["containers"], *spec.get("initContainers", ())]:
            _set(container, {"HOST_ROOT": root})
    if "host-dev-char" in volumes:
        volumes["host-dev-char"]["hostPath"]["path"] = os.path.join(root, "dev/char")


def _driver_folder(spec: Manifest, folder: str) -> None:
    volume = next((one for one in spec["volumes"] if one["name"] == "driver-install-dir"), None)
    if volume is None or volume["hostPath"]["path"] == folder:
        return
    volume["hostPath"]["path"] = folder
    for container in spec.get("initContainers", ()):
        if container["name"] == "driver-validation":
            _set(container, {"DRIVER_INSTALL_DIR": folder, "DRIVER_INSTALL_DIR_CTR_PATH": folder})
            for mount in container["volumeMounts"]:
                if mount["name"] == "driver-install-dir":
                    mount["mountPath"] = folder


def _driver_digest(spec: Manifest) -> None:
    """Sets the digest of all that installs the driver. The driver manager reinstalls the driver only if it changes."""
    holders = [item for container in [*spec["containers"], *spec.get("initContainers", ())]
               for item in container.get("env", ()) if item["name"] == _DIGEST]
    if not holders:
        return
    content = [[container.get(key) for key in ("name", "image", "command", "args", "env", "envFrom", "volumeMounts")]
               for container in spec["containers"]]
    text = json.dumps([content, spec["volumes"]], sort_keys=True)
    for item in holders:
        item["value"] = hashlib.sha256(text.encode()).hexdigest()[:16]
