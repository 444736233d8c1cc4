# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The JSON schemas (draft 2020-12) in the folder schemas, for editors. C(python -m tests.schemas) writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.schema import TYPES, Needed, Schema, limits
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import format_schemas, translate

FOLDER = Path(__file__).resolve().parent.parent / "schemas"
_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_NAMES: dict[type, str] = {str: "string", bool: "boolean", int: "integer", dict: "object", list: "array"}
# Maps paths below the spec to keys that are added to their schemas: description, deprecated.
Notes = Mapping[str, dict[str, Any]]


def of_format(kind: str) -> dict[str, Any]:
    """The JSON schema of a format, which accepts the same documents as L(schema.check)."""
    form = format_schemas.FORMS[kind]
    head = {"$schema": _DRAFT, "title": form.title}
    if not form.api_version:
        return {**head, **_json(form.schema, "", _notes(kind))}
    whole = _json({**format_schemas.ENVELOPE, "spec": Needed(form.schema)}, "", _notes(kind), below="spec")
    whole["properties"]["apiVersion"], whole["properties"]["kind"] = {"const": form.api_version}, {"const": form.kind}
    whole["required"] += ["apiVersion", "kind"]
    return {**head, **whole}


def of_any() -> dict[str, Any]:
    """The JSON schema of a document of any format. The schema refers to those of the formats in the same folder."""
    resources = [kind for kind in format_schemas.FORMS if kind != "values"]
    choices = [{"if": {"properties": {"kind": {"const": kind}}, "required": ["kind"]},
                "then": {"$ref": f"{kind.lower()}.json"}} for kind in resources]
    values = {"if": {"not": {"required": ["kind"]}}, "then": {"$ref": "values.json"}}
    return {"$schema": _DRAFT, "title": "A policy of gpuops.nvidia", "type": "object",
            "properties": {"kind": {"enum": resources}}, "allOf": [*choices, values]}


def _notes(kind: str) -> Notes:
    notes: dict[str, dict[str, Any]] = {path: {"description": text} for path, text in ABOUT.items()}
    for path, (_since, text, _kept) in format_schemas.DEPRECATED.items():
        notes[path] = {"description": f"{path} {text}.", "deprecated": True}
    return {translate.own_key(kind, path): note for path, note in notes.items()}


def _json(schema: Schema, path: str, notes: Notes, below: str = "", null: bool = True) -> dict[str, Any]:
    """The JSON schema of a schema. below: the prefix that the paths in notes do not have; null: whether null is
    allowed."""
    if isinstance(schema, Needed):
        return _json(schema.schema, path, notes, below, null=False)
    note = dict(notes.get(path[len(below) + 1:] if below else path, {}))
    if isinstance(schema, Mapping):
        inner = {key: _json(one, f"{path}.{key}" if path else key, notes, below) for key, one in schema.items()}
        needed = [key for key, one in schema.items() if isinstance(one, Needed)]
        return {**note, "type": _or_null("object", null and bool(path)), "additionalProperties": False,
                "properties": inner, **({"required": needed} if needed or path == "" and below else {})}
    if isinstance(schema, list):
        return {**note, "type": _or_null("array", null), "items": _json(schema[0], path, {}, null=False)}
    if isinstance(schema, tuple):
        return {**note, "enum": [*schema, None] if null else [*schema]}
    return {**note, **_json_type(schema, null)}


def _json_type(schema: str, null: bool) -> dict[str, Any]:
    if schema == "any":
        return {}
    name, least, most = limits(schema)
    kind = TYPES[name]
    names = [*(_NAMES[one] for one in kind.classes), *["null"] * null]
    found: dict[str, Any] = {"type": names if len(names) > 1 else names[0]}
    if kind.pattern:
        found["pattern"] = kind.pattern
    if least is not None:
        found["minimum"] = least
    if most is not None:
        found["maximum"] = most
    if kind.items:
        key = "items" if list in kind.classes else "additionalProperties"
        found[key] = _json_type(kind.items, null=dict in kind.classes)
    return found


def _or_null(name: str, null: bool) -> str | list[str]:
    return [name, "null"] if null else name


def wanted() -> dict[str, dict[str, Any]]:
    """Maps names of files to their schemas."""
    found = {f"{kind.lower()}.json": of_format(kind) for kind in format_schemas.FORMS}
    return {**found, "policy.json": of_any()}


def text(schema: dict[str, Any]) -> str:
    """The text of a file."""
    return json.dumps(schema, indent=1) + "\n"


def main() -> None:
    """Writes all files."""
    FOLDER.mkdir(exist_ok=True)
    for name, schema in wanted().items():
        (FOLDER / name).write_text(text(schema))


# Descriptions of keys of the common shape, which editors show.
ABOUT: dict[str, str] = {
    "operator": "The operator itself.",
    "operator.runtimeClass": "Name of the RuntimeClass and of its handler; nvidia where it is not set.",
    "daemonsets": "What the DaemonSets of all components share.",
    "daemonsets.rollingUpdate.maxUnavailable": "A number or a percentage, in quotes. The driver is not updated by it.",
    "driver": "The driver. On where enabled is not set.",
    "driver.enabled": "False where a driver is installed already: it is used as it is.",
    "driver.version": "A version such as 595.91.07, a digest, or with usePrecompiled a branch such as 595.",
    "driver.kernelModuleType": "Flavour of the kernel modules. auto chooses by GPU and branch.",
    "driver.usePrecompiled": "Modules that the vendor has built for a kernel; version is then a branch.",
    "driver.useNvidiaDriverCRD": "NVIDIADriver resources say which nodes get which driver.",
    "driver.rdma": "GPUDirect RDMA. Off where enabled is not set.",
    "driver.upgradePolicy": "How a new driver version reaches the nodes.",
    "driver.upgradePolicy.autoUpgrade": "False: a running driver is not replaced.",
    "driver.upgradePolicy.maxParallelUpgrades": "0 means all at the same time.",
    "driver.upgradePolicy.maxUnavailable": "A number or a percentage of the nodes, rounded up.",
    "driver.upgradePolicy.waitForCompletion": "Pods to wait for before a node is upgraded; 0 s means without end.",
    "driver.upgradePolicy.podDeletion": "How pods with GPUs are removed from a node.",
    "driver.upgradePolicy.gpuPodDeletion": "How pods with GPUs are removed from a node; the resource's podDeletion.",
    "driver.upgradePolicy.drain": "Whether and how a node is drained where removing GPU pods is not enough.",
    "driver.manager": "The driver manager, which clears a node before a driver is replaced.",
    "driver.repoConfig": "ConfigMap with package repositories for the driver container.",
    "driver.certConfig": "ConfigMap with certificates for the driver container.",
    "driver.licensingConfig": "vGPU licence: gridd.conf and client_configuration_token.tok.",
    "driver.virtualTopology": "ConfigMap with nvidia-topologyd.conf.",
    "driver.kernelModuleConfig": "ConfigMap with parameters of the kernel modules, a file a module.",
    "driver.secretEnv": "Secret whose keys become variables of the driver container.",
    "driver.nvidiaDriverCRD": "Whether NVIDIADriver resources are used, and the one that the chart makes.",
    "toolkit": "The NVIDIA Container Toolkit. On where enabled is not set.",
    "toolkit.installDir": "Folder on the host; /usr/local/nvidia where it is not set.",
    "devicePlugin": "The device plugin. On where enabled is not set.",
    "devicePlugin.config": "ConfigMap with configurations (sharing, renaming). The label "
                           "nvidia.com/device-plugin.config selects one for a node, default is for the others.",
    "dcgm": "DCGM's engine as a DaemonSet of its own. On where enabled is not set; the chart sets it off.",
    "dcgmExporter": "Metrics for Prometheus. On where enabled is not set.",
    "dcgmExporter.config": "ConfigMap with dcgm-metrics.csv.",
    "gfd": "Labels about the GPUs of a node. On where enabled is not set.",
    "mig.strategy": "How MIG devices are offered: none, single (all alike) or mixed.",
    "migManager": "Applies MIG layouts. On where enabled is not set.",
    "migManager.config": "ConfigMap with layouts in mig-parted's format.",
    "migManager.config.default": "Layout of nodes that no label gives another.",
    "migManager.gpuClientsConfig": "ConfigMap with services of the host to stop while MIG changes.",
    "nodeStatusExporter": "Metrics about the validation of a node. Off where enabled is not set.",
    "validator": "Checks each component on its node before the next begins.",
    "gds": "GPUDirect Storage. Off where enabled is not set; from 2.17.5 it needs open kernel modules.",
    "gdrcopy": "GDRCopy. Off where enabled is not set.",
    "cdi": "Container Device Interface. On where enabled is not set from 25.10, off before.",
    "cdi.nriPluginEnabled": "Devices by containerd's NRI instead of a runtime class; needs cdi and toolkit.",
    "sandboxWorkloads": "GPUs for virtual machines. Off where enabled is not set.",
    "vgpuManager": "The host's part of vGPU. Off where enabled is not set.",
    "ccManager": "Confidential computing. Off where enabled is not set.",
    "psa": "Labels the namespace as privileged for pod security admission. Off where enabled is not set.",
    "hostPaths": "Folders on the host.",
    "draDriver": "Driver for dynamic resource allocation, in place of the device plugin.",
    "cuda": "CUDA toolkit of this version.",
}


if __name__ == "__main__":
    main()
