# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The keys of all formats of a policy, as schemas for L(_data.schema). Pure data. PRIVATE.

Source: the custom resource definitions and the chart of GPU Operator 24.6 to 26.7 (ClusterPolicy nvidia.com/v1,
NVIDIADriver and GPUCluster nvidia.com/v1alpha1, values.yaml). Keys that a later release removed are kept.
"""

from __future__ import annotations

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.node_terms import OPERATORS
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.schema import Form, Keys, Needed, Schema

VARIABLES: Schema = [{"name": Needed("str"), "value": "str"}]
TOLERATIONS: Schema = [
    {"key": "str", "operator": "str", "value": "str", "effect": "str", "tolerationSeconds": "int"},
]
_ACTIONS = ("Replace", "Keep", "Drop", "HashMod", "LabelMap", "LabelDrop", "LabelKeep", "Lowercase", "Uppercase",
            "KeepEqual", "DropEqual")
RELABELINGS: Schema = [{
    "sourceLabels": "strs", "separator": "str", "targetLabel": "str", "regex": "str", "modulus": "int>=0",
    "replacement": "str", "action": (*_ACTIONS, *(action.lower() for action in _ACTIONS)),
}]
RUNTIME_CLASSES: Schema = [{
    "name": Needed("str"), "nodeSelector": "strmap", "artifacts": Needed({"url": Needed("str"), "pullSecret": "str"}),
}]
# Types of Kubernetes objects. Only their keys are checked.
POD_SECURITY: Keys = {
    "runAsUser": "int", "runAsGroup": "int", "fsGroup": "int", "runAsNonRoot": "bool", "fsGroupChangePolicy": "str",
    "supplementalGroupsPolicy": "str", "supplementalGroups": "any", "sysctls": "objects", "seLinuxOptions": "map",
    "seLinuxChangePolicy": "str", "seccompProfile": "map", "appArmorProfile": "map", "windowsOptions": "map",
}
NODE_TERMS: Schema = [{
    "matchExpressions": [{"key": Needed("str"), "operator": Needed(OPERATORS), "values": "strs"}],
    "matchFields": [{"key": Needed(("metadata.name",)), "operator": Needed(("In", "NotIn")), "values": "strs"}],
}]
NODE_AFFINITY: Keys = {
    "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": Needed(NODE_TERMS)},
    "preferredDuringSchedulingIgnoredDuringExecution": "objects",
}
IMAGE: Keys = {
    "repository": "str", "image": "image", "version": "str", "imagePullPolicy": "str", "imagePullSecrets": "strs",
}
MANAGER: Keys = {**IMAGE, "env": VARIABLES}
RESOURCES: Keys = {"limits": "quantities", "requests": "quantities"}
POD: Keys = {**IMAGE, "args": "strs", "env": VARIABLES, "resources": RESOURCES, "hostNetwork": "bool"}
COMPONENT: Keys = {**IMAGE, "enabled": "bool", **POD}
PROBE: Keys = {
    "initialDelaySeconds": "int", "periodSeconds": "int>=1", "timeoutSeconds": "int>=1", "successThreshold": "int>=1",
    "failureThreshold": "int>=1",
}
MONITOR: Keys = {
    "enabled": "bool", "interval": "duration", "scrapeTimeout": "duration", "honorLabels": "bool",
    "additionalLabels": "strmap", "relabelings": RELABELINGS,
}
NAME: Keys = {"name": "str"}
ENV: Keys = {"env": VARIABLES}
SWITCH: Keys = {"enabled": "bool"}
EVICTION: Keys = {"force": "bool", "timeoutSeconds": "int>=0", "deleteEmptyDir": "bool"}
UPGRADE: Keys = {
    "autoUpgrade": "bool", "maxParallelUpgrades": "int>=0", "maxUnavailable": "amount-or-int",
    "waitForCompletion": {"podSelector": "str", "timeoutSeconds": "int>=0"},
    "podDeletion": EVICTION,
    "drain": {**EVICTION, "enable": "bool", "podSelector": "str"},
}
MODULE_TYPES = ("auto", "open", "proprietary")
DRIVER_TYPES = ("gpu", "vgpu", "vgpu-host-manager")
RDMA: Keys = {"enabled": "bool", "useHostMofed": "bool"}
GDS: Keys = {**IMAGE, "enabled": "bool", "args": "strs", "env": VARIABLES}

DRIVER: Keys = {
    **COMPONENT, "useNvidiaDriverCRD": "bool", "usePrecompiled": "bool", "kernelModuleType": MODULE_TYPES,
    "useOpenKernelModules": "bool", "startupProbe": PROBE, "livenessProbe": PROBE, "readinessProbe": PROBE,
    "rdma": RDMA, "upgradePolicy": UPGRADE, "manager": MANAGER, "repoConfig": {"configMapName": "str"},
    "certConfig": NAME, "licensingConfig": {"configMapName": "str", "secretName": "str", "nlsEnabled": "bool"},
    "virtualTopology": {"config": "str"}, "kernelModuleConfig": NAME, "secretEnv": "str",
}
DCGM_EXPORTER: Keys = {
    **COMPONENT, "config": NAME, "serviceMonitor": MONITOR,
    "service": {"type": "str", "internalTrafficPolicy": "str"}, "hostPID": "bool",
    "hpcJobMapping": {"enabled": "bool", "directory": "str"}, "annotations": "strmap", "enablePodLabels": "bool",
    "enablePodUID": "bool", "podLabelAllowlistRegex": "strs",
}
DEVICE_PLUGIN: Keys = {**COMPONENT, "config": {"name": "str", "default": "str"}, "mps": {"root": "str"}}
MIG_MANAGER: Keys = {
    **COMPONENT, "config": {"name": "str", "default": ("all-disabled", "")}, "gpuClientsConfig": NAME,
}
DCGM: Keys = {**COMPONENT, "hostPort": "int"}
OPERATOR: Keys = {
    "defaultRuntime": "str", "runtimeClass": "str", "initContainer": IMAGE, "labels": "strmap",
    "annotations": "strmap", "metrics": {"serviceMonitor": MONITOR}, "use_ocp_driver_toolkit": "bool",
}
DAEMONSETS: Keys = {
    "labels": "strmap", "annotations": "strmap", "tolerations": TOLERATIONS, "priorityClassName": "str",
    "updateStrategy": ("RollingUpdate", "OnDelete"), "rollingUpdate": {"maxUnavailable": "amount"},
    "podSecurityContext": POD_SECURITY,
}
CLUSTER_POLICY: Keys = {
    "operator": OPERATOR,
    "daemonsets": DAEMONSETS,
    "driver": DRIVER,
    "toolkit": {**COMPONENT, "installDir": "str"},
    "devicePlugin": DEVICE_PLUGIN,
    "dcgm": DCGM,
    "dcgmExporter": DCGM_EXPORTER,
    "nodeStatusExporter": COMPONENT,
    "gfd": COMPONENT,
    "mig": {"strategy": ("none", "single", "mixed")},
    "migManager": MIG_MANAGER,
    "psa": SWITCH,
    "psp": SWITCH,
    "validator": {
        **POD, "plugin": ENV, "toolkit": ENV,
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
    "kataManager": {**COMPONENT, "config": {"artifactsDir": "str", "runtimeClasses": RUNTIME_CLASSES}},
    "ccManager": {**COMPONENT, "defaultMode": ("on", "off", "devtools")},
    "hostPaths": {"rootFS": "str", "driverInstallDir": "str", "kubeletRootDir": "str"},
}
_CONFIG_MAP: Keys = {"name": "str", "create": "bool", "data": "map"}
_DRA_PLUGIN: Keys = {
    "env": VARIABLES, "resources": RESOURCES, "healthcheck": {"enabled": "bool", "port": "int>=1<=65535"},
}
DRA_DRIVER: Keys = {
    **IMAGE, "featureGates": "boolmap", "gpus": {"kubeletPlugin": _DRA_PLUGIN},
    "computeDomains": {
        "enabled": "bool", "controller": {"env": VARIABLES, "resources": RESOURCES}, "kubeletPlugin": _DRA_PLUGIN,
    },
}
# The chart uses gpuPodDeletion instead of podDeletion; values may contain either.
_CHART_DRIVER: Keys = {
    **DRIVER,
    "upgradePolicy": {**UPGRADE, "gpuPodDeletion": EVICTION},
    "nvidiaDriverCRD": {
        "enabled": "bool", "deployDefaultCR": "bool", "driverType": DRIVER_TYPES,
        "nodeSelector": "strmap",
    },
}
_CHART_OPERATOR: Keys = {
    **OPERATOR, **IMAGE, "env": VARIABLES, "priorityClassName": "str", "nodeSelector": "strmap", "cleanupCRD": "bool",
    "upgradeCRD": "bool", "tolerations": TOLERATIONS, "affinity": "map", "resources": RESOURCES,
    "logging": {"timeEncoding": "str", "level": "int-or-str", "develMode": "bool"},
}
VALUES: Keys = {
    **CLUSTER_POLICY,
    "operator": _CHART_OPERATOR,
    "driver": _CHART_DRIVER,
    "devicePlugin": {**DEVICE_PLUGIN, "config": {**_CONFIG_MAP, "default": "str"}},
    "dcgmExporter": {**DCGM_EXPORTER, "config": {**_CONFIG_MAP, "data": "any"}},
    "migManager": {**MIG_MANAGER, "config": {**_CONFIG_MAP, "default": ("all-disabled", "")}},
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
NVIDIA_DRIVER: Keys = {
    **POD,
    "default": "bool", "driverType": DRIVER_TYPES, "usePrecompiled": "bool",
    "kernelModuleType": MODULE_TYPES, "useOpenKernelModules": "bool", "manager": MANAGER, "startupProbe": PROBE,
    "livenessProbe": PROBE, "readinessProbe": PROBE, "rdma": RDMA, "gds": GDS, "gdrcopy": GDS, "repoConfig": NAME,
    "certConfig": NAME, "kernelModuleConfig": NAME, "virtualTopologyConfig": NAME,
    "licensingConfig": {"name": "str", "secretName": "str", "nlsEnabled": "bool"}, "secretEnv": "str",
    "nodeSelector": "strmap", "nodeAffinity": NODE_AFFINITY, "tolerations": TOLERATIONS, "labels": "strmap",
    "annotations": "strmap", "priorityClassName": "str", "podSecurityContext": POD_SECURITY, "upgradePolicy": UPGRADE,
}
# The keys of the section driver in the common format that exist only in an NVIDIADriver.
_OF_NVIDIA_DRIVER = ("default", "driverType", "nodeSelector", "nodeAffinity", "tolerations", "labels", "annotations",
                     "priorityClassName", "podSecurityContext")
# The resource of the introductory article on the operator: driver, cuda, devicePlugin, migManager.
GPU_CLUSTER_POLICY: Keys = {
    "driver": {"enabled": "bool", "version": "str"}, "cuda": {"enabled": "bool", "version": "cuda"},
    "devicePlugin": SWITCH, "migManager": SWITCH,
}
# The vendor's sample object contains rootFS, which is not in the definition.
GPU_CLUSTER: Keys = {
    "daemonsets": DAEMONSETS, "dcgm": DCGM, "dcgmExporter": DCGM_EXPORTER,
    "hostPaths": {"driverInstallDir": "str", "kubeletRootDir": "str", "rootFS": "str"},
    "draDriver": Needed(DRA_DRIVER),
}
# The common format, to which all formats are translated: a ClusterPolicy, with keys that exist only in other formats.
COMMON: Keys = {
    **VALUES, "cuda": GPU_CLUSTER_POLICY["cuda"],
    "driver": {**_CHART_DRIVER, **{key: NVIDIA_DRIVER[key] for key in _OF_NVIDIA_DRIVER}},
}
# The keys of a custom resource other than those of its spec.
ENVELOPE: Keys = {"apiVersion": "str", "kind": "str", "metadata": "map", "spec": "any", "status": "any"}

FORMS: dict[str, Form] = {form.kind: form for form in (
    Form("ClusterPolicy", "nvidia.com/v1", CLUSTER_POLICY, "ClusterPolicy of the GPU Operator (nvidia.com/v1)"),
    Form("NVIDIADriver", "nvidia.com/v1alpha1", NVIDIA_DRIVER,
         "NVIDIADriver of the GPU Operator (nvidia.com/v1alpha1)"),
    Form("GPUCluster", "nvidia.com/v1alpha1", GPU_CLUSTER, "GPUCluster of the GPU Operator (nvidia.com/v1alpha1)"),
    Form("GPUClusterPolicy", "gpu.nvidia.com/v1", GPU_CLUSTER_POLICY,
         "GPUClusterPolicy of the introductory article (gpu.nvidia.com/v1)"),
    Form("values", "", VALUES, "Values of the GPU Operator's Helm chart"),
)}

# Deprecated keys of the common format: (the release that deprecated it, the note, whether it still has an effect).
DEPRECATED: dict[str, tuple[str, str, bool]] = {
    "driver.useOpenKernelModules": ("25.3", "has no effect since 25.3; set driver.kernelModuleType instead", False),
    "driver.licensingConfig.configMapName": ("25.10", "is deprecated; set licensingConfig.secretName instead", True),
    "operator.defaultRuntime": ("", "is ignored; the container runtime is detected on each host", False),
    "operator.initContainer": ("26.3", "is ignored since 26.3", False),
    "cdi.default": ("25.10", "is ignored since 25.10", False),
    "dcgm.hostPort": ("", "is ignored", False),
    "psp": ("", "is ignored; pod security policies no longer exist", False),
    "kataManager": ("26.3", "is ignored since 26.3", False),
}
# Keys of the common format, including all keys below them: the first release whose definition contains them.
SINCE: dict[str, str] = {
    "cdi.nriPluginEnabled": "26.3.0", "daemonsets.podSecurityContext": "26.3.0", "dcgmExporter.annotations": "26.3.2",
    "dcgmExporter.enablePodLabels": "26.3.2", "dcgmExporter.enablePodUID": "26.3.2", "dcgmExporter.hostPID": "25.10.0",
    "dcgmExporter.hostNetwork": "26.3.0", "dcgmExporter.hpcJobMapping": "25.10.1",
    "dcgmExporter.podLabelAllowlistRegex": "26.3.2", "dcgmExporter.service": "25.3.1",
    "dcgmExporter.serviceMonitor.scrapeTimeout": "26.7.0", "driver.kernelModuleType": "25.3.0",
    "driver.licensingConfig.secretName": "25.10.0", "driver.secretEnv": "25.10.0",
    "hostPaths.kubeletRootDir": "26.7.0", "kataSandboxDevicePlugin": "26.3.0", "operator.metrics": "26.7.0",
    "sandboxWorkloads.mode": "26.3.0", "vgpuManager.kernelModuleConfig": "26.3.0", "gpuCluster": "26.7.0",
    **{f"{section}.hostNetwork": "26.3.1" for section in (
        "ccManager", "dcgm", "devicePlugin", "driver", "gfd", "kataManager", "kataSandboxDevicePlugin", "migManager",
        "nodeStatusExporter", "sandboxDevicePlugin", "toolkit", "validator", "vfioManager", "vgpuDeviceManager",
        "vgpuManager")},
}
