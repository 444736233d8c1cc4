# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Kubernetes objects: their type, names and keys, and the marks of owned objects. Pure. PRIVATE to the collection.

An owned object has three marks: the label C(app.kubernetes.io/managed-by), the label C(gpuops.nvidia/component), and
the annotation C(gpuops.nvidia/applied) with the SHA-256 of the rendered manifest. The annotation shows that the
manifest has changed, even if the only change is a removed field.
"""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import re
import typing as t
from dataclasses import dataclass

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube import kinds

MANAGED_BY, MANAGER_NAME = "app.kubernetes.io/managed-by", "gpuops.nvidia"
COMPONENT = "gpuops.nvidia/component"
APPLIED = "gpuops.nvidia/applied"
# An annotation of a Namespace that the collection has created: `state: absent` deletes such a Namespace.
CREATED = "gpuops.nvidia/created"
# A label of a Namespace on OpenShift. A value that a user has set is not changed.
MONITORED = "openshift.io/cluster-monitoring"
# The component name of objects that all components share, such as the Namespace.
SHARED = "cluster"

# The name of a component is used as the value of a label and as the name of a folder.
_COMPONENT = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")

# The DaemonSet of the MPS daemons. GPU clients that share GPUs by MPS need its pods.
MPS_DAEMON = "nvidia-device-plugin-mps-control-daemon"

# DaemonSets select their pods by these labels, so the user's labels do not replace them (as in GPU Operator 26.7).
_SELECTING = ("app", "app.kubernetes.io/part-of")

# A Kubernetes object or a part of one, with the structure of the Kubernetes API.
Object = t.Dict[str, t.Any]
# An object that is only read.
Live = t.Mapping[str, t.Any]
# apiVersion, kind, namespace (empty for a cluster-wide object), name.
Key = t.Tuple[str, str, str, str]


@dataclass(frozen=True)
class Wanted:
    """A desired object. component: the component of the object; manifest: includes the marks of owned objects."""

    component: str
    kind: kinds.Kind
    manifest: Object

    @property
    def key(self) -> Key:
        """The key of the object, by which the current object is found."""
        return key_of(self.manifest)

    @property
    def label(self) -> str:
        """The name of the object in messages, such as C(DaemonSet gpu-operator/nvidia-dcgm)."""
        return label_of(self.manifest)


def key_of(item: Live) -> Key:
    """The key of a manifest or of a current object."""
    metadata = item["metadata"]
    return item["apiVersion"], item["kind"], metadata.get("namespace", ""), metadata["name"]


def label_of(item: Live) -> str:
    """The name of an object in messages, such as C(DaemonSet gpu-operator/nvidia-dcgm)."""
    api_version, kind, namespace, name = key_of(item)
    return kinds.find(api_version, kind).label(name, namespace or None)


def wanted(manifests: t.Mapping[str, t.Sequence[Live]]) -> list[Wanted]:
    """The desired objects of all components, with their marks, in the order in which they are created.

    manifests: maps a component to its manifests. Raises InputError for an invalid manifest, and if two components have
    different manifests of the same object.
    """
    by_key: dict[Key, Wanted] = {}
    for component, items in manifests.items():
        for index, item in enumerate(items):
            desired = _marked(component, item, f"{component}[{index}]")
            first = by_key.setdefault(desired.key, desired)
            if first is not desired and _plain(first.manifest) != _plain(desired.manifest):
                raise InputError(f"{first.component} and {component} have different manifests of {desired.label}.",
                                 "Give one of the two objects another name.", path=f"{component}[{index}]")
    return sorted(by_key.values(), key=lambda desired: (desired.kind.rank, desired.key))


def namespace_manifest(name: str, privileged: bool, monitored: bool = False) -> Object:
    """The Namespace of the operands.

    privileged: add the labels that let Pod Security Admission admit privileged pods; monitored: add the label that lets
    the Prometheus of OpenShift scrape the Namespace.
    """
    modes = ("enforce", "audit", "warn") if privileged else ()
    labels = {f"pod-security.kubernetes.io/{mode}": "privileged" for mode in modes}
    if monitored:
        labels[MONITORED] = "true"
    return {"apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": name, **({"labels": labels} if labels else {})}}


def is_operators(owner: Live) -> bool:
    """Whether an owner reference names a custom resource of the GPU Operator."""
    return (owner.get("kind") in ("ClusterPolicy", "NVIDIADriver")
            and str(owner.get("apiVersion", "")).startswith("nvidia.com/"))


def controller_of(live: Live) -> Live:
    """The owner reference to the controller of an object, such as the DaemonSet of a pod; empty without a controller.
    """
    return next((owner for owner in live["metadata"].get("ownerReferences") or () if owner.get("controller")), {})


def controller_uid(live: Live) -> str:
    """The UID of the controller of an object; empty without a controller."""
    return str(controller_of(live).get("uid", ""))


def label_selector(labels: t.Mapping[str, str]) -> str:
    """The selector of the objects that have all these labels, as list requests take it."""
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))


def is_ours(live: Live) -> bool:
    """Whether a current object is owned: it has the managed-by label or, if the label was removed, the field manager.
    """
    metadata = live["metadata"]
    if (metadata.get("labels") or {}).get(MANAGED_BY) == MANAGER_NAME:
        return True
    return any(entry.get("manager") == MANAGER_NAME and entry.get("operation") == "Apply"
               for entry in metadata.get("managedFields") or [])


def marks(component: str) -> dict[str, str]:
    """The labels of an owned object."""
    return {MANAGED_BY: MANAGER_NAME, COMPONENT: str(component)}


def component_of(live: Live) -> str:
    """The component of an owned object; empty if the label is missing."""
    return str((live["metadata"].get("labels") or {}).get(COMPONENT, ""))


def for_namespace(one: Wanted, live: Live | None) -> Wanted:
    """The Namespace to apply. A new Namespace gets the annotation CREATED; a foreign one keeps its managed-by label.

    live: the current Namespace, None if it is missing.
    """
    manifest = copy.deepcopy(one.manifest)
    metadata = manifest["metadata"]
    if live is None or CREATED in (live["metadata"].get("annotations") or {}):
        metadata["annotations"][CREATED] = "true"
    else:
        del metadata["labels"][MANAGED_BY]
    monitored = ((live or {"metadata": {}})["metadata"].get("labels") or {}).get(MONITORED)
    if monitored is not None and MONITORED in metadata["labels"]:
        metadata["labels"][MONITORED] = monitored
    return Wanted(one.component, one.kind, manifest)


def _marked(component: str, item: object, path: str) -> Wanted:
    if not _COMPONENT.fullmatch(component):
        raise InputError(f"{component!r} is not a valid name of a component.", "Write at most 63 letters, digits, '-', "
                         "'_' and '.', with a letter or a digit at both ends.", path="component", value=component)
    if not isinstance(item, dict) or not isinstance(item.get("metadata"), dict):
        raise InputError(f"{path} is not a manifest.", "Write a mapping with apiVersion, kind and metadata.name.",
                         path=path)
    for name in ("apiVersion", "kind"):
        if not isinstance(item.get(name), str):
            raise InputError(f"The manifest {path} has no {name}.", f"Add {name} to the manifest.", path=path)
    kind = kinds.find(item["apiVersion"], item["kind"])
    metadata = item["metadata"]
    if not isinstance(metadata.get("name"), str) or not metadata["name"]:
        raise InputError(f"The {item['kind']} of the manifest {path} has no name.", "Add metadata.name.",
                         path=f"{path}.metadata.name")
    if kind.namespaced != bool(metadata.get("namespace")):
        raise InputError(f"{item['kind']} {metadata['name']} {'needs a' if kind.namespaced else 'cannot have a'} "
                         "namespace.", f"{'Add' if kind.namespaced else 'Remove'} metadata.namespace.",
                         path=f"{path}.metadata.namespace", value=metadata.get("namespace"))
    for key in ("name", "namespace"):
        if metadata.get(key) and not kinds.is_name(metadata[key]):
            raise InputError(f"{metadata[key]!r} is not a valid {key}.",
                             f"Write a {key} without spaces, slashes or percent signs.", path=f"{path}.metadata.{key}",
                             value=metadata[key])
    if kind.kind == "Namespace":
        component = SHARED
    manifest = _encoded(copied(item, path))
    manifest.pop("status", None)
    digest = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    own = manifest["metadata"]
    own["labels"] = {**(own.get("labels") or {}), **marks(component)}
    own["annotations"] = {**(own.get("annotations") or {}), APPLIED: digest}
    return Wanted(component, kind, manifest)


def copied(item: Object, path: str) -> Object:
    """A copy of a manifest with only the types of JSON, because YAML writers reject the tagged strings of Ansible.

    path: the path of the manifest, for the error. Raises InputError for values that JSON does not have, such as dates.
    """
    try:
        return t.cast(Object, json.loads(json.dumps(item)))
    except (TypeError, ValueError) as error:
        raise InputError(f"A manifest can have only strings, numbers, booleans, lists and mappings: {error}.",
                         "Put dates and times in quotes.", path=path) from error


def _plain(manifest: Object) -> Object:
    """The manifest without the label of the component."""
    metadata = manifest["metadata"]
    labels = {name: value for name, value in metadata["labels"].items() if name != COMPONENT}
    return {**manifest, "metadata": {**metadata, "labels": labels}}


def _encoded(manifest: Object) -> Object:
    """The manifest. In a Secret, stringData is moved to data, as the API server stores it."""
    plain = manifest.pop("stringData", None) if manifest["kind"] == "Secret" else None
    if plain:
        manifest["data"] = {**(manifest.get("data") or {}),
                            **{name: base64.b64encode(str(value).encode()).decode() for name, value in plain.items()}}
    return manifest


def labels_of_pods(labels: t.Mapping[str, str]) -> dict[str, str]:
    """The labels of the policy, without the labels that operands select their pods by."""
    return {key: value for key, value in labels.items() if key not in _SELECTING}
