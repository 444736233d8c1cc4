# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Converts manifests to facts: the relevant fields of an object, without the defaults of an API server."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

Manifest = Mapping[str, Any]

# Labels that say who wrote an object, not what it is.
WRITERS = ("app.kubernetes.io/managed-by", "helm.sh/chart", "nvidia.com/gpu-operator.state",
           "gpuops.nvidia/component")
POD = ("serviceAccountName", "runtimeClassName", "hostPID", "hostIPC", "hostNetwork", "shareProcessNamespace",
       "automountServiceAccountToken", "priorityClassName", "nodeSelector", "tolerations", "affinity",
       "securityContext")
# What an API server fills in, and annotations that say who wrote an object, and when.
FILLED_IN = {"dnsPolicy": "ClusterFirst", "terminationGracePeriodSeconds": 30}
NOTES = ("nvidia.com/last-applied-hash", "deprecated.daemonset.template.generation", "gpuops.nvidia/",
         "openshift.io/scc")
PROBE = {"initialDelaySeconds": 0, "periodSeconds": 10, "timeoutSeconds": 1, "successThreshold": 1,
         "failureThreshold": 3}


def facts_of(manifests: Iterable[Manifest]) -> dict[str, dict[str, Any]]:
    """``{kind: {name: facts}}``."""
    found: dict[str, dict[str, Any]] = {}
    for manifest in manifests:
        kind = manifest["kind"]
        if kind in _KINDS:
            found.setdefault(kind, {})[manifest["metadata"]["name"]] = _KINDS[kind](manifest)
    return found


def flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """All leaves as (path, value); empty values are left out. A list is one leaf."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from flat(inner, f"{path} | {key}" if path else str(key))
        if not value and path.count(" | ") == 1:
            yield path, "present"
    elif value not in (None, []):
        yield path, value


def _daemon_set(manifest: Manifest) -> dict[str, Any]:
    template = manifest["spec"]["template"]
    pod, strategy = template["spec"], manifest["spec"]["updateStrategy"]
    return {
        "labels": _labels(manifest["metadata"]),
        "annotations": _notes(manifest["metadata"]),
        "podLabels": _labels(template["metadata"]),
        "podAnnotations": _notes(template["metadata"]),
        "selector": manifest["spec"]["selector"]["matchLabels"],
        "updateStrategy": [strategy["type"], strategy.get("rollingUpdate", {}).get("maxUnavailable")],
        **{key: pod[key] for key in POD if key in pod},
        "imagePullSecrets": sorted(one["name"] for one in pod.get("imagePullSecrets", ())),
        **{key: pod[key] for key, usual in FILLED_IN.items() if pod.get(key, usual) != usual},
        "volumes": {volume["name"]: _volume(volume) for volume in pod["volumes"]},
        "initContainers": {item["name"]: _container(item) for item in pod.get("initContainers", ())},
        "containers": {item["name"]: _container(item) for item in pod["containers"]},
        "order": [[item["name"] for item in pod.get(kind, ())] for kind in ("initContainers", "containers")],
    }


def _container(item: Manifest) -> dict[str, Any]:
    return {
        "image": item["image"], "command": item.get("command"), "args": _args(item.get("args")),
        "pull": None if item.get("imagePullPolicy") == "IfNotPresent" else item.get("imagePullPolicy"),
        "resources": item.get("resources"), "envFrom": item.get("envFrom"),
        "env": {one["name"]: _value(one) for one in item.get("env", ())},
        "mounts": {one["mountPath"]: _mount(one) for one in item.get("volumeMounts", ())},
        "ports": [[one["name"], one["containerPort"], one.get("protocol", "TCP")] for one in item.get("ports", ())],
        "security": item.get("securityContext"),
        "lifecycle": sorted(item.get("lifecycle", ())),
        **{kind: _probe(item[kind]) for kind in ("startupProbe", "livenessProbe", "readinessProbe") if kind in item},
    }


def _args(args: list[str] | None) -> list[str] | None:
    return ["(script)"] if args and len(args) == 1 and ";" in args[0] else args


def _value(variable: Manifest) -> str:
    if "valueFrom" in variable:
        return f"from:{next(iter(variable['valueFrom']))}"
    value = str(variable.get("value", ""))
    return "(digest)" if variable["name"] == "DRIVER_CONFIG_DIGEST" and value else value


def _mount(one: Manifest) -> str:
    text = str(one["name"]) + (":ro" if one.get("readOnly") else "")
    text += f":{one['mountPropagation']}" if "mountPropagation" in one else ""
    return text + (f"/{one['subPath']}" if "subPath" in one else "")


def _volume(volume: Manifest) -> str:
    if "hostPath" in volume:
        kind = volume["hostPath"].get("type")
        return f"host {volume['hostPath']['path']}" + (f" ({kind})" if kind else "")
    if "emptyDir" in volume:
        return "emptyDir"
    kind = "configMap" if "configMap" in volume else "secret"
    source = volume[kind]
    keys = ", ".join(f"{one['key']} as {one['path']}" for one in source.get("items", ()))
    return f"{kind} {source.get('name') or source['secretName']}" + (f" ({keys})" if keys else "")


def _probe(probe: Manifest) -> dict[str, Any]:
    how = {"httpGet": {"scheme": "HTTP", **probe["httpGet"]}} if "httpGet" in probe else {}
    return {**PROBE, **probe, **how}


def _labels(metadata: Manifest) -> dict[str, str]:
    return {key: value for key, value in metadata.get("labels", {}).items() if key not in WRITERS}


def _notes(metadata: Manifest) -> dict[str, str]:
    return {key: value for key, value in metadata.get("annotations", {}).items() if not key.startswith(NOTES)}


def _rules(manifest: Manifest) -> dict[str, list[str]]:
    """Maps C(group/resource) to verbs; the key is C(group/resource (names)) if the verbs are limited to some
    objects."""
    found: dict[str, set[str]] = {}
    for rule in manifest["rules"]:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                names = ",".join(sorted(rule.get("resourceNames", ())))
                found.setdefault(f"{group}/{resource}" + (f" ({names})" if names else ""), set()).update(rule["verbs"])
    return {resource: sorted(verbs) for resource, verbs in sorted(found.items())}


def _binding(manifest: Manifest) -> dict[str, Any]:
    return {"role": manifest["roleRef"]["name"], "subjects": [one["name"] for one in manifest["subjects"]]}


def _service_monitor(manifest: Manifest) -> dict[str, Any]:
    spec = manifest["spec"]
    return {"labels": _labels(manifest["metadata"]), **spec,
            "endpoints": {one["port"]: one for one in spec["endpoints"]}}


def _namespace(manifest: Manifest) -> dict[str, Any]:
    return {key: value for key, value in manifest["metadata"].get("labels", {}).items() if "pod-security" in key}


def _service(manifest: Manifest) -> dict[str, Any]:
    spec = manifest["spec"]
    return {"annotations": manifest["metadata"].get("annotations", {}), "selector": spec["selector"],
            "type": spec["type"], "internalTrafficPolicy": spec["internalTrafficPolicy"],
            "ports": [[one["name"], one["port"], one["targetPort"], one["protocol"]] for one in spec["ports"]]}


_KINDS: dict[str, Any] = {
    "DaemonSet": _daemon_set, "Role": _rules, "ClusterRole": _rules, "RoleBinding": _binding,
    "ClusterRoleBinding": _binding, "Service": _service, "ServiceAccount": lambda manifest: {},
    "ConfigMap": lambda manifest: {"keys": sorted(manifest["data"])},
    "ServiceMonitor": _service_monitor, "Namespace": _namespace,
    "RuntimeClass": lambda manifest: {"handler": manifest["handler"]},
}
