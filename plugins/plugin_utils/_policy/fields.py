# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The keys of every accepted format. Pure data in the language of L(schema). PRIVATE.

Source: the custom resource definitions and the chart of GPU Operator 24.6 to 26.7 (ClusterPolicy nvidia.com/v1,
NVIDIADriver nvidia.com/v1alpha1, values.yaml); keys that a release has dropped stay known.
"""

from __future__ import annotations

import typing as t

IMAGE: dict[str, t.Any] = {
    "repository": "str", "image": "str", "version": "str", "imagePullPolicy": "str", "imagePullSecrets": "strs",
}
MANAGER: dict[str, t.Any] = {**IMAGE, "env": "env"}
RESOURCES: dict[str, t.Any] = {"limits": "map", "requests": "map"}
COMPONENT: dict[str, t.Any] = {
    **IMAGE, "enabled": "bool", "args": "strs", "env": "env", "resources": RESOURCES, "hostNetwork": "bool",
}
PROBE: dict[str, t.Any] = {
    "initialDelaySeconds": "int", "periodSeconds": "int>=1", "timeoutSeconds": "int>=1", "successThreshold": "int>=1",
    "failureThreshold": "int>=1",
}
MONITOR: dict[str, t.Any] = {
    "enabled": "bool", "interval": "str", "scrapeTimeout": "str", "honorLabels": "bool", "additionalLabels": "map",
    "relabelings": "objects",
}
NAME: dict[str, t.Any] = {"name": "str"}
ENV: dict[str, t.Any] = {"env": "env"}
SWITCH: dict[str, t.Any] = {"enabled": "bool"}
EVICTION: dict[str, t.Any] = {"force": "bool", "timeoutSeconds": "int>=0", "deleteEmptyDir": "bool"}
UPGRADE: dict[str, t.Any] = {
    "autoUpgrade": "bool", "maxParallelUpgrades": "int>=0", "maxUnavailable": "int-or-str",
    "waitForCompletion": {"podSelector": "str", "timeoutSeconds": "int>=0"},
    "podDeletion": EVICTION,
    "drain": {**EVICTION, "enable": "bool", "podSelector": "str"},
}
MODULE_TYPES = ("auto", "open", "proprietary")
RDMA: dict[str, t.Any] = {"enabled": "bool", "useHostMofed": "bool"}
GDS: dict[str, t.Any] = {**IMAGE, "enabled": "bool", "args": "strs", "env": "env"}

DRIVER: dict[str, t.Any] = {
    **COMPONENT, "useNvidiaDriverCRD": "bool", "usePrecompiled": "bool", "kernelModuleType": MODULE_TYPES,
    "useOpenKernelModules": "bool", "startupProbe": PROBE, "livenessProbe": PROBE, "readinessProbe": PROBE,
    "rdma": RDMA, "upgradePolicy": UPGRADE, "manager": MANAGER, "repoConfig": {"configMapName": "str"},
    "certConfig": NAME, "licensingConfig": {"configMapName": "str", "secretName": "str", "nlsEnabled": "bool"},
    "virtualTopology": {"config": "str"}, "kernelModuleConfig": NAME, "secretEnv": "str",
}
DCGM_EXPORTER: dict[str, t.Any] = {
    **COMPONENT, "config": NAME, "serviceMonitor": MONITOR,
    "service": {"type": "str", "internalTrafficPolicy": "str"}, "hostPID": "bool",
    "hpcJobMapping": {"enabled": "bool", "directory": "str"}, "annotations": "map", "enablePodLabels": "bool",
    "enablePodUID": "bool", "podLabelAllowlistRegex": "strs",
}
OPERATOR: dict[str, t.Any] = {
    "defaultRuntime": "str", "runtimeClass": "str", "initContainer": IMAGE, "labels": "map", "annotations": "map",
    "metrics": {"serviceMonitor": MONITOR}, "use_ocp_driver_toolkit": "bool",
}
CLUSTER_POLICY: dict[str, t.Any] = {
    "operator": OPERATOR,
    "daemonsets": {
        "labels": "map", "annotations": "map", "tolerations": "objects", "priorityClassName": "str",
        "updateStrategy": ("RollingUpdate", "OnDelete"), "rollingUpdate": {"maxUnavailable": "str"},
        "podSecurityContext": "map",
    },
    "driver": DRIVER,
    "toolkit": {**COMPONENT, "installDir": "str"},
    "devicePlugin": {**COMPONENT, "config": {"name": "str", "default": "str"}, "mps": {"root": "str"}},
    "dcgm": {**COMPONENT, "hostPort": "int"},
    "dcgmExporter": DCGM_EXPORTER,
    "nodeStatusExporter": COMPONENT,
    "gfd": COMPONENT,
    "mig": {"strategy": ("none", "single", "mixed")},
    "migManager": {
        **COMPONENT, "config": {"name": "str", "default": ("all-disabled", "")}, "gpuClientsConfig": NAME,
    },
    "psa": SWITCH,
    "psp": SWITCH,
    "validator": {
        **{key: kind for key, kind in COMPONENT.items() if key != "enabled"}, "plugin": ENV, "toolkit": ENV,
        "driver": ENV, "cuda": ENV, "vfioPCI": ENV, "vgpuManager": ENV, "vgpuDevices": ENV,
    },
    "gds": GDS,
    "gdrcopy": GDS,
    "sandboxWorkloads": {
        "enabled": "bool", "defaultWorkload": ("container", "vm-passthrough", "vm-vgpu"), "mode": ("kubevirt", "kata"),
    },
    "vfioManager": {**COMPONENT, "driverManager": MANAGER},
    "sandboxDevicePlugin": COMPONENT,
    "kataSandboxDevicePlugin": COMPONENT,
    "vgpuManager": {**COMPONENT, "driverManager": MANAGER, "kernelModuleConfig": NAME},
    "vgpuDeviceManager": {**COMPONENT, "config": {"name": "str", "default": "str"}},
    "cdi": {"enabled": "bool", "default": "bool", "nriPluginEnabled": "bool"},
    "kataManager": {**COMPONENT, "config": {"artifactsDir": "str", "runtimeClasses": "objects"}},
    "ccManager": {**COMPONENT, "defaultMode": ("on", "off", "devtools")},
    "hostPaths": {"rootFS": "str", "driverInstallDir": "str", "kubeletRootDir": "str"},
}


def _with(section: str, **more: t.Any) -> dict[str, t.Any]:
    """A section of the ClusterPolicy as the chart has it, with the chart's own keys."""
    return {**CLUSTER_POLICY[section], **more}


_CONFIG_MAP: dict[str, t.Any] = {"name": "str", "create": "bool", "data": "map"}
_DRA_PLUGIN: dict[str, t.Any] = {
    "env": "env", "resources": RESOURCES, "healthcheck": {"enabled": "bool", "port": "int>=1"},
}
DRA_DRIVER: dict[str, t.Any] = {
    **IMAGE, "featureGates": "map", "gpus": {"kubeletPlugin": _DRA_PLUGIN},
    "computeDomains": {
        "enabled": "bool", "controller": {"env": "env", "resources": RESOURCES}, "kubeletPlugin": _DRA_PLUGIN,
    },
}
# The chart calls podDeletion gpuPodDeletion; both spellings are in use.
_CHART_DRIVER: dict[str, t.Any] = {
    **DRIVER,
    "upgradePolicy": {**UPGRADE, "gpuPodDeletion": EVICTION},
    "nvidiaDriverCRD": {
        "enabled": "bool", "deployDefaultCR": "bool", "driverType": ("gpu", "vgpu", "vgpu-host-manager"),
        "nodeSelector": "map",
    },
}
_CHART_OPERATOR: dict[str, t.Any] = {
    **OPERATOR, **IMAGE, "env": "env", "priorityClassName": "str", "nodeSelector": "map", "cleanupCRD": "bool",
    "upgradeCRD": "bool", "tolerations": "objects", "affinity": "map", "resources": RESOURCES,
    "logging": {"timeEncoding": "str", "level": "int-or-str", "develMode": "bool"},
}
VALUES: dict[str, t.Any] = {
    **CLUSTER_POLICY,
    "operator": _CHART_OPERATOR,
    "driver": _CHART_DRIVER,
    "devicePlugin": _with("devicePlugin", config={**_CONFIG_MAP, "default": "str"}),
    "dcgmExporter": _with("dcgmExporter", config={**_CONFIG_MAP, "data": "any"}),
    "migManager": _with("migManager", config={**_CONFIG_MAP, "default": ("all-disabled", "")}),
    "platform": {"openshift": "bool"},
    "nfd": {"enabled": "bool", "nodefeaturerules": "bool"},
    "node-feature-discovery": "map",
    "extraObjects": "objects",
    "clusterPolicy": {"deployCR": "bool"},
    "gpuCluster": {"deployCR": "bool"},
    "draDriver": DRA_DRIVER,
    "global": "map",
    "nameOverride": "str",
    "fullnameOverride": "str",
}
NVIDIA_DRIVER: dict[str, t.Any] = {
    **{key: kind for key, kind in COMPONENT.items() if key != "enabled"},
    "default": "bool", "driverType": ("gpu", "vgpu", "vgpu-host-manager"), "usePrecompiled": "bool",
    "kernelModuleType": MODULE_TYPES, "useOpenKernelModules": "bool", "manager": MANAGER, "startupProbe": PROBE,
    "livenessProbe": PROBE, "readinessProbe": PROBE, "rdma": RDMA, "gds": GDS, "gdrcopy": GDS, "repoConfig": NAME,
    "certConfig": NAME, "kernelModuleConfig": NAME, "virtualTopologyConfig": NAME,
    "licensingConfig": {"name": "str", "secretName": "str", "nlsEnabled": "bool"}, "secretEnv": "str",
    "nodeSelector": "map", "nodeAffinity": "map", "tolerations": "objects", "labels": "map", "annotations": "map",
    "priorityClassName": "str", "podSecurityContext": "map", "upgradePolicy": UPGRADE,
}
# The resource of the introductory article on the operator: driver, cuda, devicePlugin, migManager.
GPU_CLUSTER_POLICY: dict[str, t.Any] = {
    "driver": {"enabled": "bool", "version": "str"}, "cuda": {"enabled": "bool", "version": "str"},
    "devicePlugin": SWITCH, "migManager": SWITCH,
}
# What surrounds the spec of every custom resource.
ENVELOPE: dict[str, t.Any] = {"apiVersion": "str", "kind": "str", "metadata": "map", "spec": "any", "status": "any"}

# Keys that the operator ignores today, and what to say about them.
DEPRECATED: dict[str, str] = {
    "driver.useOpenKernelModules": "has no effect since 25.3; set driver.kernelModuleType instead",
    "driver.licensingConfig.configMapName": "is deprecated; set licensingConfig.secretName instead",
    "operator.defaultRuntime": "is ignored; the container runtime is detected on each host",
    "operator.initContainer": "is ignored since 26.3",
    "cdi.default": "is ignored since 25.10",
    "dcgm.hostPort": "is ignored",
    "psp": "is ignored; pod security policies no longer exist",
    "kataManager": "is ignored since 26.3",
}
