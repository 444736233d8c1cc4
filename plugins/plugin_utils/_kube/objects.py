# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the objects are that we want: manifests with our marks. Pure. PRIVATE to the collection.

Three marks are on each object: the label C(app.kubernetes.io/managed-by), the label C(gpuops.nvidia/component), and
the annotation C(gpuops.nvidia/applied), the SHA-256 of the manifest as it was rendered. The annotation tells whether
what we want has changed, also where that is only a field less.
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
# On a Namespace that we made: such a one goes with `state: absent`.
CREATED = "gpuops.nvidia/created"
# On OpenShift; a user's own value counts.
MONITORED = "openshift.io/cluster-monitoring"
# The component of the Namespace, which all the others share.
SHARED = "cluster"

# The value of a label: a component is one, and the name of a folder.
_COMPONENT = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")

# The DaemonSet whose pods GPU clients need where they share GPUs by MPS.
MPS_DAEMON = "nvidia-device-plugin-mps-control-daemon"

Object = t.Dict[str, t.Any]
# Kind, namespace (empty for a cluster-wide one) and name.
Key = t.Tuple[str, str, str, str]


@dataclass(frozen=True)
class Wanted:
    """One object as it is to be. manifest carries our marks; component is the one that ships it."""

    component: str
    kind: kinds.Kind
    manifest: Object

    @property
    def key(self) -> Key:
        """What it is found by among live objects."""
        return key_of(self.manifest)

    @property
    def label(self) -> str:
        """How messages name it."""
        return label_of(self.manifest)


def key_of(item: t.Mapping[str, t.Any]) -> Key:
    """apiVersion, kind, namespace, name of a manifest or a live object."""
    metadata = item["metadata"]
    return item["apiVersion"], item["kind"], metadata.get("namespace", ""), metadata["name"]


def label_of(item: t.Mapping[str, t.Any]) -> str:
    """C(DaemonSet gpu-operator/nvidia-dcgm)."""
    api_version, kind, namespace, name = key_of(item)
    return kinds.find(api_version, kind).label(name, namespace or None)


def wanted(manifests: t.Mapping[str, t.Sequence[t.Mapping[str, t.Any]]]) -> list[Wanted]:
    """All objects of the components, marked, in the order in which they are created.

    manifests: by component plain manifests. Raises InputError for one that is no manifest, and for two components
    that want one object in two ways.
    """
    found: dict[Key, Wanted] = {}
    for component, items in manifests.items():
        for index, item in enumerate(items):
            one = _marked(component, item, f"{component}[{index}]")
            other = found.setdefault(one.key, one)
            if other is not one and _plain(other.manifest) != _plain(one.manifest):
                raise InputError(f"{one.label} is wanted in two ways, by {other.component} and by {component}.",
                                 "Give one of them another name.", path=f"{component}[{index}]")
    return sorted(found.values(), key=lambda one: (one.kind.rank, one.key))


def namespace_manifest(name: str, privileged: bool, monitored: bool = False) -> Object:
    """The operands' Namespace. privileged: with the labels by which Pod Security Admission lets them run; monitored:
    with that by which OpenShift's own Prometheus looks into it."""
    modes = ("enforce", "audit", "warn") if privileged else ()
    labels = {f"pod-security.kubernetes.io/{mode}": "privileged" for mode in modes}
    if monitored:
        labels[MONITORED] = "true"
    return {"apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": name, **({"labels": labels} if labels else {})}}


def is_operators(owner: t.Mapping[str, t.Any]) -> bool:
    """Whether an owner reference names a resource that a GPU Operator follows."""
    return (owner.get("kind") in ("ClusterPolicy", "NVIDIADriver")
            and str(owner.get("apiVersion", "")).startswith("nvidia.com/"))


def is_ours(live: t.Mapping[str, t.Any]) -> bool:
    """Whether we made a live object: by our label, or, where a foreign hand has taken it away, by our field manager."""
    metadata = live["metadata"]
    if (metadata.get("labels") or {}).get(MANAGED_BY) == MANAGER_NAME:
        return True
    return any(entry.get("manager") == MANAGER_NAME and entry.get("operation") == "Apply"
               for entry in metadata.get("managedFields") or [])


def marks(component: str) -> dict[str, str]:
    """The labels that say that an object is ours."""
    return {MANAGED_BY: MANAGER_NAME, COMPONENT: str(component)}


def component_of(live: t.Mapping[str, t.Any]) -> str:
    """The component that a live object of ours belongs to; empty where its label is gone."""
    return str((live["metadata"].get("labels") or {}).get(COMPONENT, ""))


def for_namespace(one: Wanted, live: t.Mapping[str, t.Any] | None) -> Wanted:
    """A Namespace as it is applied, given the live one: marked as created by us, or with our labels alone.

    In a foreign Namespace its own managed-by label stays.
    """
    manifest = copy.deepcopy(one.manifest)
    metadata = manifest["metadata"]
    if live is None or CREATED in (live["metadata"].get("annotations") or {}):
        metadata["annotations"][CREATED] = "true"
    else:
        del metadata["labels"][MANAGED_BY]
    said = ((live or {"metadata": {}})["metadata"].get("labels") or {}).get(MONITORED)
    if said is not None and MONITORED in metadata["labels"]:
        metadata["labels"][MONITORED] = said
    return Wanted(one.component, one.kind, manifest)


def _marked(component: str, item: t.Any, path: str) -> Wanted:
    if not _COMPONENT.fullmatch(component):
        raise InputError(f"{component!r} is not the name of a component.", "Write at most 63 letters, digits, '-', '_' "
                         "and '.', with a letter or a digit at both ends.", path="component", value=component)
    if not isinstance(item, dict) or not isinstance(item.get("metadata"), dict):
        raise InputError("This is no manifest.", "Give a mapping with apiVersion, kind and metadata.name.", path=path)
    for name in ("apiVersion", "kind"):
        if not isinstance(item.get(name), str):
            raise InputError(f"The manifest has no {name}.", "Give a manifest with apiVersion and kind.", path=path)
    kind = kinds.find(item["apiVersion"], item["kind"])
    metadata = item["metadata"]
    if not isinstance(metadata.get("name"), str) or not metadata["name"]:
        raise InputError(f"This {item['kind']} has no name.", "Give metadata.name.", path=f"{path}.metadata.name")
    if kind.namespaced != bool(metadata.get("namespace")):
        raise InputError(f"{item['kind']} {metadata['name']} {'needs a' if kind.namespaced else 'can have no'} "
                         "namespace.", "Correct metadata.namespace.", path=f"{path}.metadata.namespace",
                         value=metadata.get("namespace"))
    for key in ("name", "namespace"):
        if metadata.get(key) and not kinds.is_name(metadata[key]):
            raise InputError(f"{metadata[key]!r} is not a valid {key}.",
                             "Write a name without spaces, slashes and percent signs.", path=f"{path}.metadata.{key}",
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
    """A copy in JSON's own types: Ansible's texts carry tags that no YAML writer knows."""
    try:
        return t.cast(Object, json.loads(json.dumps(item)))
    except (TypeError, ValueError) as error:
        raise InputError(f"A manifest holds texts, numbers, lists and mappings only: {error}.",
                         "Put dates and the like in quotes.", path=path) from error


def _plain(manifest: Object) -> Object:
    """Without the mark that names the component."""
    metadata = manifest["metadata"]
    labels = {name: value for name, value in metadata["labels"].items() if name != COMPONENT}
    return {**manifest, "metadata": {**metadata, "labels": labels}}


def _encoded(manifest: Object) -> Object:
    """stringData of a Secret as data, which is how the server keeps it."""
    plain = manifest.pop("stringData", None) if manifest["kind"] == "Secret" else None
    if plain:
        manifest["data"] = {**(manifest.get("data") or {}),
                            **{name: base64.b64encode(str(value).encode()).decode() for name, value in plain.items()}}
    return manifest
