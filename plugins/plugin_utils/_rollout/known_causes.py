# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The table of known causes: why a pod is not ready. The first row that matches a pod applies. Only data. PRIVATE.

Sources: issues of the GPU Operator; the errors that the programs in the pods print (driver container, driver manager,
validator, container toolkit, device plugin and DCGM exporter of GPU Operator 26.7); the order in which the operands of
a Node become ready: driver, container toolkit, toolkit-validation of the validator, then the others.
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._rollout.pods import ENDED


@dataclass(frozen=True)
class KnownCause:
    """A known cause, and the conditions of the pods that it explains. An empty condition matches every pod.

    cause, hint, waits_for, certain, do: as in L(causes.Cause); pattern: a regular expression that searches messages and
    log lines; component, containers, reasons, states: allowed values of the fields of L(pods.NotReadyPod).
    """

    cause: str
    hint: str
    pattern: str = ""
    reasons: t.Tuple[str, ...] = ()
    component: str = ""
    containers: t.Tuple[str, ...] = ()
    states: t.Tuple[str, ...] = ()
    waits_for: t.Tuple[str, ...] = ()
    certain: bool = False
    do: t.Tuple[str, ...] = ()


_PULL = ("ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable")
_CONFIG = ("CreateContainerConfigError", "CreateContainerError")
_START = ("RunContainerError", "ContainerCannotRun", "StartError", *_CONFIG)
_BEFORE_VALIDATOR = ("driver", "container_toolkit")
_BEFORE_REST = ("driver", "container_toolkit", "validator")
_READ = "Read the log: {log}"
_NOT_THERE = r"not found|manifest unknown|no such manifest|does not exist"
_RESTART_TOOLKIT = ("kubectl --namespace {namespace} delete pod --selector app=nvidia-container-toolkit-daemonset "
                    "--field-selector spec.nodeName={node}")
_RESTART = "kubectl --namespace {namespace} delete pod {pod}"
_UNSTARTED = ("Wait, or raise the timeout. If the pod stays in this state for minutes, delete it. For details: "
              "kubectl --namespace {namespace} describe pod {pod}")
_VALIDATIONS = ("driver-validation", "toolkit-validation", "cuda-validation", "plugin-validation")
# A state that only this table uses: the container has not been started, and the API gives no reason.
CREATED = "created"
_GPU_CLIENTS = "ssh {node} sudo lsof /dev/nvidia*"

# Causes that the messages of a kubelet or of the API server show. No log is needed.
STATUS_CAUSES: t.Tuple[KnownCause, ...] = (
    KnownCause(
        "the pod security level of the namespace does not allow the pod",
        "Set psa.enabled: true in the policy and run site.yml, or label the namespace "
        "pod-security.kubernetes.io/enforce=privileged.",
        pattern=r"violates PodSecurity|forbidden by .{0,300}PodSecurity",
        do=("kubectl label namespace {namespace} --overwrite pod-security.kubernetes.io/enforce=privileged",)),
    KnownCause(
        "a ResourceQuota of the namespace does not allow the pod",
        "Raise the quota. Outside kube-system, pods of the priority class system-node-critical need a quota that "
        "allows this class.",
        pattern=r"exceeded quota|insufficient quota", do=("kubectl --namespace {namespace} describe resourcequota",)),
    KnownCause(
        "the ServiceAccount of the pod is missing",
        "Run site.yml: it creates missing objects again.",
        pattern=r"serviceaccount .{0,300}not found"),
    KnownCause(
        "the configuration of the node's container runtime has no runtime handler named nvidia",
        "Make sure that the container toolkit is ready on {node}. On RKE2, k3s and k0s, check that the toolkit writes "
        "the file that the runtime reads (toolkit.env: CONTAINERD_CONFIG, CONTAINERD_SOCKET).",
        pattern=r"no runtime for|RuntimeHandler .{0,300}not supported|unknown runtime|failed to find runtime handler",
        waits_for=_BEFORE_VALIDATOR, do=("ssh {node} sudo containerd config dump", _RESTART_TOOLKIT)),
    KnownCause(
        "the RuntimeClass of the pod is missing",
        "Run site.yml: it creates missing objects again.",
        pattern=r"RuntimeClass .{0,300}not found"),
    KnownCause(
        "the container runtime cannot find the CDI devices that the pod requests: their CDI specification is missing "
        "on the node, or it describes other GPUs",
        "Check the container toolkit on {node}. If it is ready, restart its pod: the pod writes the specification "
        "when it starts.",
        pattern=r"unresolvable CDI devices|CDI device injection failed",
        waits_for=_BEFORE_VALIDATOR, do=("ssh {node} ls -l /var/run/cdi /etc/cdi", _RESTART_TOOLKIT)),
    KnownCause(
        "pods cannot start on the node because its pod network does not work",
        "Repair the network plugin (CNI) on {node}. It is not a GPU component.",
        pattern=r"failed to set ?up network for sandbox|cni plugin not initialized|NetworkPlugin.{0,300}not ready",
        do=("kubectl describe node {node}",)),
    KnownCause(
        "there is no driver image for the operating system or the kernel of the node: {image}",
        "Choose a driver version that has an image for this system, or deliver the driver on the host "
        "(gpu_placement). With precompiled drivers, boot a kernel for which an image is published.",
        component="driver", reasons=_PULL, pattern=_NOT_THERE, certain=True),
    KnownCause(
        "{registry} denies access to {image}",
        "Add a pull secret that exists in the namespace to gpu_pull_secrets, or set gpu_image_registry to a mirror.",
        reasons=_PULL, pattern=r"unauthorized|denied|authentication|forbidden|\b401\b|\b403\b",
        do=("kubectl --namespace {namespace} get secrets --field-selector type=kubernetes.io/dockerconfigjson",)),
    KnownCause(
        "{registry} limits the number of image pulls, and the limit is reached",
        "Wait, add the pull secret of an account to gpu_pull_secrets, or set gpu_image_registry to a mirror.",
        reasons=_PULL,
        pattern=r"toomanyrequests|rate limit|\b429\b"),
    KnownCause(
        "the container runtime of the node does not trust the certificate of {registry}",
        "Install the CA certificate of the registry for the container runtime on {node}. The key driver.certConfig is "
        "for the packages of the driver, not for images.",
        reasons=_PULL, pattern=r"x509|certificate|tls: "),
    KnownCause(
        "there is no {image} for the CPU architecture of the node",
        "Choose a version that has an image for this architecture.",
        reasons=_PULL, pattern=r"no match for platform|no matching manifest", certain=True),
    KnownCause(
        "{registry} does not have {image}",
        "Correct the repository and the version in the policy, or copy the image to the registry.",
        reasons=_PULL, pattern=rf"{_NOT_THERE}|InvalidImageName|couldn't parse image|ErrImageNeverPull", certain=True),
    KnownCause(
        "{image} cannot be pulled from {registry}",
        "Check that {node} can connect to {registry}, or set gpu_image_registry to a mirror.",
        reasons=_PULL),
    KnownCause(
        "a ConfigMap or Secret that the pod needs is missing, or a key in it is missing",
        "Create what the message names. If it belongs to a component, run site.yml.",
        reasons=_CONFIG,
        pattern=r"configmap|secret|couldn't find key", certain=True),
    KnownCause(
        "a ConfigMap or Secret that the pod mounts is missing, or a key in it is missing",
        "Create what the message names. If it belongs to a component, run site.yml.",
        certain=True,
        pattern=r"MountVolume.{0,300}(configmap|secret).{0,300}not found|references non-existent config key"),
    KnownCause(
        "a file or directory of the node cannot be mounted",
        "Check that the path in the message exists on {node}. If the path belongs to a RHEL subscription, register "
        "the node, or set driver.repoConfig.",
        pattern=r"MountVolume|hostPath type check failed"),
    KnownCause(
        "the kubelet evicted the pod because the node has too little free disk space, memory or process IDs",
        "On {node}, free the resource that the message names. Driver images and builds need several GB in /var.",
        reasons=("Evicted",)),
    KnownCause(
        "the disk of the node is full",
        "Free disk space on {node}. Driver images and builds need several GB in /var.",
        pattern=r"no space left on device"),
    KnownCause(
        "the container ran out of memory",
        "Raise the memory limit of the container in the policy (resources).",
        pattern=r"\bOOMKilled\b"),
    KnownCause(
        "the node does not have enough resources for the pod",
        "Free CPU or memory on {node}, or lower the requests of the component in the policy (resources).",
        states=("Pending",), pattern=r"Insufficient |Too many pods"),
    KnownCause(
        "the pod does not tolerate a taint of the node",
        "Add a toleration of the taint to daemonsets.tolerations in the policy.",
        states=("Pending",), pattern=r"untolerated taint|had taint"),
    KnownCause(
        "no node matches the selector or the affinity of the pod",
        "Read the message: a label of the node is missing, or another pod excludes this pod.",
        states=("Pending",), pattern=r"didn't match|didn't satisfy|affinity"),
    KnownCause(
        "the scheduler has not assigned the pod to a node",
        "Check that the scheduler of the cluster runs.",
        states=("Pending",),
        containers=("",)),
    KnownCause(
        "the driver container was stopped because its startup probe failed too many times",
        "Raise driver.startupProbe.failureThreshold in the policy (the probe runs every "
        "driver.startupProbe.periodSeconds), or use precompiled drivers. " + _READ,
        component="driver", containers=("nvidia-driver-ctr",),
        pattern=r"(?s)exit code 1(37|43).{0,2000}Startup probe failed"),
)

# Causes that the messages of the programs show: in the status, in events, and in the last lines of the log.
LOG_CAUSES: t.Tuple[KnownCause, ...] = (
    KnownCause(
        "the disk of the node is full",
        "Free disk space on {node}. Driver images and builds need several GB in /var.",
        pattern=r"no space left on device", do=("ssh {node} df -h /var",)),
    KnownCause(
        "the container runtime has not started the container {container} yet: it pulls the image, or it was restarted "
        "and has lost the container",
        _UNSTARTED,
        states=(CREATED,), containers=_VALIDATIONS,
        waits_for=_BEFORE_REST, do=(_RESTART,)),
    KnownCause(
        "the container runtime has not started the container {container} yet: it pulls the image, or it was restarted "
        "and has lost the container",
        _UNSTARTED,
        states=(CREATED,), do=(_RESTART,)),
    # Failures of the driver.
    KnownCause(
        "the driver is already installed on the host, or the host has a leftover nvidia-smi without a driver",
        "If the host has a driver, add the host to the group gpu_hosts with gpu_placement: hybrid, or set "
        "driver.enabled: false. If it has none, remove nvidia-smi and the label nvidia.com/gpu.deploy.driver from "
        "{node}, and run site.yml.",
        component="driver", pattern=r"driver is (already )?pre-installed|already installed on the host|"
                                    r"Host driver detected",
        do=("ssh {node} command -v nvidia-smi", "kubectl label node {node} nvidia.com/gpu.deploy.driver-")),
    KnownCause(
        "the kernel module nouveau uses the GPU",
        "Blacklist nouveau on {node} and reboot the node: nothing else frees the GPU.",
        component="driver", pattern=r"failed to unload nouveau|nouveau\S{0,100} is (currently )?in use|"
                                    r"nouveau.{0,300}is loaded|"
                                    r"Nouveau kernel driver is currently in use",
        do=("ssh {node} \"echo 'blacklist nouveau' | sudo tee /etc/modprobe.d/blacklist-nouveau.conf; "
            "sudo update-initramfs -u || sudo dracut --force\"",)),
    KnownCause(
        "another driver container runs on the node, or its lock remains",
        "Wait until the previous driver pod has ended. If there is none, reboot {node}.",
        component="driver",
        pattern=r"instance of the NVIDIA driver is already running"),
    KnownCause(
        "pods that use the GPU cannot be evicted from the node",
        "The log names the pods and the reason (a PodDisruptionBudget, no controller, local data). Delete the pods, "
        "or allow their eviction (driver.upgradePolicy.drain and gpu_disruption: drain).",
        component="driver",
        pattern=r"failed to drain node|until all GPU pods are drained|cannot delete .{0,300}pods|"
                r"violate the pod's disruption|"
                r"still hold GPU resource claims|GPU clients? .{0,300}timed out",
        do=("kubectl get pods --all-namespaces --field-selector spec.nodeName={node}",)),
    KnownCause(
        "the old driver is in use and cannot be unloaded",
        "Stop the GPU clients on {node} (kubectl drain evicts those in pods), or reboot it.",
        component="driver", pattern=r"driver is in use|could not unload|failed to (unload|uninstall) (nvidia )?driver|"
                                    r"nvidia\S{0,100} is in use|cannot unload|failed to uninstall nvidia driver",
        do=(_GPU_CLIENTS,)),
    KnownCause(
        "the root file system of the previous driver container is still mounted on the node",
        "Drain {node}, so that no process uses /run/nvidia/driver, and delete the pod. If this does not help, reboot "
        "the node.",
        component="driver", pattern=r"(unmount|/run/nvidia/driver).{0,300}(busy|stale)|target is busy", do=(_RESTART,)),
    KnownCause(
        "Secure Boot rejects the unsigned kernel module",
        "Use precompiled signed modules, enroll a signing key on {node}, or deliver the driver on the host.",
        component="driver", pattern=r"Required key not available|Key was rejected|secure ?boot|lockdown", certain=True,
        do=("ssh {node} mokutil --sb-state",)),
    KnownCause(
        "the node cannot connect to the package repositories of the operating system",
        "Check the name resolution, the proxy (gpu_proxy) and the firewall of {node}. Without internet access, set "
        "driver.repoConfig to a mirror and driver.certConfig to the CA certificate of the mirror, or use precompiled "
        "drivers.",
        component="driver", pattern=r"Failed to update package cache|failed to reach .{0,300}repositories|"
                                    r"Could not resolve host|Temporary failure (in name )?resol|"
                                    r"failed to update the dnf metadata|Failed to (download|fetch|retrieve) |"
                                    r"Could not connect to|Cannot download repomd"),
    KnownCause(
        "the RHEL subscription of the node is not valid in the container",
        "Register {node}, or set driver.repoConfig to repositories that need no subscription.",
        component="driver",
        pattern=r"RHEL entitlement|not registered|subscription-manager"),
    KnownCause(
        "the repositories do not have the headers or packages of the node's kernel",
        "Boot a kernel whose headers are available, set driver.repoConfig to a mirror that has them, or use "
        "precompiled drivers.",
        component="driver", pattern=r"Could not resolve Linux kernel version|Unable to (locate|find) package|"
                                    r"Could not locate Linux kernel version string|Unable to resolve RHEL version|"
                                    r"(No match for argument|Unable to find a match):? kernel|"
                                    r"(linux|kernel)-(headers|image|modules|devel|core)\S{0,100} .{0,300}"
                                    r"(not found|no installation)|"
                                    r"kernel.headers not found|No package kernel",
        do=("ssh {node} uname -r",)),
    KnownCause(
        "the kernel modules ib_umad and mlx5_ib, which NVLink 5 needs, are missing on the node",
        "Install the extra modules of the kernel on {node} (Ubuntu: the package linux-modules-extra of its kernel), "
        "and load ib_umad and mlx5_ib. Without them NVLink 5 does not work, and CUDA returns the error 802.",
        component="driver",
        pattern=r"(ib_umad|mlx5_\w{1,20}) (not found|kernel modules to be loaded)|"
                r"Module (ib_umad|mlx5_\w{1,20}) not found|"
                r"mlx5_core and ib_umad",
        do=("ssh {node} sudo modprobe --all ib_umad mlx5_ib",)),
    KnownCause(
        "the fabric manager does not start, or its version differs from the version of the driver",
        "Stop a fabric manager that runs on the host {node}, or install exactly the driver's version of it.",
        component="driver", pattern=r"fabric ?manager.{0,300}(fail|error|abort|mismatch|don't match)|"
                                    r"Failed to (start|initialize).{0,300}(fabric|NVSwitch)"),
    KnownCause(
        "the kernel modules were built for another kernel than the running one",
        "Boot the newest kernel that is installed on {node}, or delete the pod, so that it builds the modules again.",
        component="driver", pattern=r"Invalid module format|disagrees about version of symbol|"
                                    r"Unknown symbol in module|version magic", do=("ssh {node} uname -r", _RESTART)),
    KnownCause(
        "the driver finds no GPU that it supports: it needs other kernel modules (driver.kernelModuleType) or another "
        "driver branch, or the GPU is faulty",
        "Run preflight.yml: it compares the GPU with driver.kernelModuleType and driver.version. Search the kernel "
        "log of {node} for NVRM and Xid.",
        component="driver", pattern=r"could not insert '?nvidia'?: No such device|RmInitAdapter failed|"
                                    r"not supported by (the )?open|requires use of the NVIDIA open|No NVIDIA GPU",
        do=("ssh {node} \"sudo dmesg | grep -E 'NVRM|Xid' | tail\"",)),
    KnownCause(
        "the kernel modules cannot be built for the kernel of the node",
        "The driver does not support this kernel, or the compiler of the kernel is missing: choose a newer driver "
        "(driver.version) or an older kernel.",
        component="driver",
        pattern=r"make(\[\d{1,9}\])?: \*\*\*|Failed to build|unable to build the NVIDIA kernel module|"
                r"build of the kernel module (has )?failed|unable to find .{0,300}compiler"),
    KnownCause(
        "the hypervisor provides no vGPU, or no vGPU that the driver supports",
        "Check the vGPU of {node} in the hypervisor. The driver of the guest must be compatible with the driver "
        "branch of the hypervisor.",
        component="driver", pattern=r"cannot find vgpu devices|cannot find match for compatible vgpu driver"),
    KnownCause(
        "the driver waits for network drivers (MOFED) that are not installed",
        "Deliver them (Network Operator), set driver.rdma.useHostMofed: true if the host has them, or set "
        "driver.rdma.enabled: false.",
        component="driver",
        pattern=r"Waiting for MOFED|/run/mellanox/drivers|failed to wait for MOFED|waiting for mellanox"),
    KnownCause(
        "the kernel module nvidia-peermem (GPUDirect RDMA) cannot be loaded: the network drivers do not support peer "
        "memory",
        "On {node}, load the network drivers before the GPU driver, or set driver.rdma.enabled: false.",
        component="driver",
        pattern=r"nvidia.peermem.{0,300}(fail|not loaded|Invalid argument)|failed to load nvidia-peermem"),
    KnownCause(
        "the kernel modules of the driver cannot be loaded",
        "Usual causes: Secure Boot, the module nouveau is loaded, the modules were built for another kernel, the "
        "driver does not support the GPU. Read the kernel log of {node}.",
        component="driver",
        pattern=r"Unable to load the kernel module|could not insert '?nvidia",
        do=("ssh {node} \"sudo dmesg | tail -n 30\"",)),
    KnownCause(
        "the driver manager has no permission to use the API server",
        "Run site.yml: it restores the permissions (RBAC) and the ServiceAccounts.",
        component="driver",
        containers=("k8s-driver-manager",), pattern=r"is forbidden: User|Unauthorized"),
    KnownCause(
        "the driver manager cannot prepare the node for the new driver",
        "A kernel module is in use, or pods still run: drain {node} (gpu_disruption: drain) or reboot it. " + _READ,
        component="driver", containers=("k8s-driver-manager",), reasons=ENDED),
    KnownCause(
        "the driver manager waits for the end of pods that use the GPU, or for network drivers",
        "Stop the GPU pods on {node}. With RDMA, check the MOFED driver.",
        component="driver",
        containers=("k8s-driver-manager",), states=("Init:0/1", "Init:0/2"), reasons=("",)),
    KnownCause(
        "the driver cannot be built or loaded",
        "Usual causes: the kernel headers are missing, Secure Boot, the module nouveau is loaded, the fabric manager "
        "has another version than the driver. " + _READ,
        component="driver", reasons=ENDED),
    KnownCause(
        "the driver is being built and loaded, which takes minutes",
        "Wait, or raise the timeout. " + _READ,
        component="driver", containers=("nvidia-driver-ctr",), reasons=("",)),
    # Messages of CUDA, NVML and the nvidia runtime on a Node with a driver.
    KnownCause(
        "CUDA reports that the system is not initialized (802): the fabric manager is missing, or its version differs "
        "from the version of the driver",
        "Run a fabric manager of exactly the driver's version on {node}. NVLink 5 also needs the kernel modules "
        "ib_umad and mlx5_ib.",
        pattern=r"(error|code|returned|runtime error)\D{0,12}\b802\b|system not yet initialized|SYSTEM_NOT_READY|"
                r"SystemNotReady", do=("ssh {node} systemctl status nvidia-fabricmanager",
                                       "ssh {node} sudo modprobe --all ib_umad mlx5_ib")),
    KnownCause(
        "the driver libraries and the kernel module have different driver versions",
        "The driver was changed while pods were running: reboot {node}, or restart the pods of the driver and of the "
        "container toolkit there.",
        pattern=r"driver/library version mismatch", waits_for=("driver",), do=(_RESTART_TOOLKIT,)),
    KnownCause(
        "the driver is too old for the CUDA version of the image",
        "Choose a driver branch that supports the CUDA version of the image, or the release that belongs to the "
        "driver.",
        pattern=r"driver version is insufficient|unsatisfied condition: cuda|forward compatibility was attempted"),
    KnownCause(
        "the GPU is busy or has failed",
        "On {node}, check whether the compute mode is exclusive or prohibited, whether a change of MIG is in progress, "
        "and whether the kernel log has an Xid.",
        pattern=r"busy or unavailable|GPU is lost|fallen off the bus",
        do=("ssh {node} nvidia-smi -q -d COMPUTE",)),
    KnownCause(
        "no GPU is visible in the container: MIG is enabled without instances, or device nodes are missing",
        "Check MIG on {node} and whether /dev/nvidia0 exists. The container toolkit injects the devices that exist "
        "when the pod starts.",
        pattern=r"no CUDA-capable device", waits_for=_BEFORE_VALIDATOR,
        do=("ssh {node} nvidia-smi -L",)),
    KnownCause(
        "the kernel module of the driver is not loaded",
        "Check the driver pod of the node. If the driver is delivered on the host, run nvidia-smi on {node}.",
        waits_for=("driver",),
        pattern=r"nvml error: driver not loaded|couldn't communicate with the NVIDIA driver"),
    # Components that wait for other components of the Node.
    KnownCause(
        "the driver is not ready on the node",
        "Check the driver pod of the node. If the driver is delivered on the host, run nvidia-smi on {node}.",
        containers=("driver-validation",), waits_for=("driver",)),
    KnownCause(
        "the nvidia runtime cannot inject the driver: it does not find the library libnvidia-ml.so.1",
        "Check that the driver works on {node} (nvidia-smi), and that the container toolkit was started after the "
        "driver.",
        pattern=r"load library failed|libnvidia-ml", waits_for=_BEFORE_VALIDATOR, do=(_RESTART_TOOLKIT,)),
    KnownCause(
        "the driver is not injected into the container: the container toolkit is not ready on the node, or the "
        "container runtime has no runtime handler named nvidia",
        "Check the container toolkit on {node}. If it is ready, check that the configuration of the runtime has "
        "runtimes.nvidia, and restart the runtime.",
        component="validator", containers=("toolkit-validation",),
        waits_for=_BEFORE_VALIDATOR, do=("ssh {node} sudo containerd config dump", _RESTART_TOOLKIT)),
    KnownCause(
        "toolkit-validation has not passed on the node, so the file toolkit-ready is missing",
        "Check the validator pod of the node.",
        containers=("toolkit-validation",), waits_for=_BEFORE_REST, reasons=("",)),
    KnownCause(
        "a CUDA program does not run on the node",
        "Read the log of the pod nvidia-cuda-validator on the node. Usual causes: driver and libraries have different "
        "branches, MIG is enabled without instances, the fabric manager is missing.",
        component="validator",
        containers=("cuda-validation",), waits_for=_BEFORE_VALIDATOR,
        do=("kubectl --namespace {namespace} logs --selector app=nvidia-cuda-validator --all-containers --prefix",)),
    KnownCause(
        "the node has no allocatable GPU",
        "Check the device plugin of the node. It offers no GPUs before the driver works, or while MIG is enabled "
        "without instances.",
        component="validator", containers=("plugin-validation",), waits_for=(*_BEFORE_VALIDATOR, "device_plugin"),
        do=("kubectl get node {node} --output jsonpath='{{.status.allocatable}}'",)),
    # Failures of one component.
    KnownCause(
        "the sharing configuration is missing, empty, or in a format that the device plugin cannot read",
        "Correct gpu_sharing, or the ConfigMap that devicePlugin.config names and the label "
        "nvidia.com/device-plugin.config of {node}.",
        component="device_plugin",
        pattern=r"specified config .{0,300}does not exist|no configuration files available|no config was set|"
                r"unable to (load|parse|read|finalize) config|unknown field|strict decoding error|"
                r"error reading directory",
        do=("kubectl --namespace {namespace} get configmaps", "kubectl get node {node} --label-columns "
            "nvidia.com/device-plugin.config")),
    KnownCause(
        "MIG is enabled on a GPU without instances, or the instances do not match mig.strategy",
        "Apply a MIG layout to the GPUs of {node} (label nvidia.com/mig.config), or set mig.strategy: mixed.",
        component="device_plugin",
        pattern=r"migEnabled|invalid MIG configuration|same migEnabled value|more than one MIG device type",
        do=("ssh {node} nvidia-smi -L", "kubectl get node {node} --label-columns nvidia.com/mig.config.state")),
    KnownCause(
        "MPS cannot be used together with MIG on the node",
        "Use time-slicing on nodes with MIG, or disable MIG there.",
        pattern=r"not supported (with|for) MPS|MPS sharing.{0,300}not supported|not supported for mig"),
    KnownCause(
        "the pod does not find the driver, because the nvidia runtime does not inject it",
        "Check that the pod has the RuntimeClass nvidia and that the container toolkit is ready on {node}. Then "
        "restart the pod.",
        pattern=r"could not load NVML|non-NVML platform|Incompatible (platform|strategy) detected|"
                r"Cannot init NVML|failed to initialize NVML", waits_for=_BEFORE_VALIDATOR, do=(_RESTART,)),
    KnownCause(
        "the device plugin finds no usable GPU: MIG is enabled without instances, or the configuration of the plugin "
        "is not valid",
        "Check MIG on {node} and devicePlugin.config in the policy. " + _READ,
        component="device_plugin",
        reasons=ENDED),
    KnownCause(
        "the container toolkit cannot read the configuration of the runtime: the file is a template or not valid",
        "Remove CONTAINERD_CONFIG from toolkit.env if it names a template (config.toml.tmpl): the toolkit then writes "
        "a separate file. Otherwise correct the file on {node}.",
        component="container_toolkit",
        pattern=r"unable to load config|keys cannot contain|parsing error|toml: "),
    KnownCause(
        "the container toolkit cannot connect to the socket of the runtime",
        "Set CONTAINERD_SOCKET in toolkit.env to the socket of the runtime on {node} (k3s and RKE2: "
        "/run/k3s/containerd/containerd.sock).",
        component="container_toolkit",
        pattern=r"unable to (dial|restart|signal)|\.sock: connect: |unable to send SIGHUP"),
    KnownCause(
        "the container toolkit cannot write the configuration of the runtime, or cannot restart the runtime",
        "Check that toolkit.env in the policy names the configuration file that the runtime on {node} reads. " +
        _READ,
        component="container_toolkit", reasons=ENDED),
    KnownCause(
        "the MIG layout cannot be applied: its name is not known, or a GPU is in use",
        "Check the label nvidia.com/mig.config of {node}, and which GPU clients run there. " + _READ,
        component="mig_manager", reasons=ENDED, do=("kubectl get node {node} --label-columns "
                                                    "nvidia.com/mig.config,nvidia.com/mig.config.state",)),
    KnownCause(
        "DCGM cannot read the GPUs",
        "The driver may be too old for DCGM, or the fabric manager does not run on {node}. " + _READ,
        component="dcgm",
        reasons=ENDED),
    KnownCause(
        "the DCGM exporter cannot connect to DCGM",
        "Check DCGM on {node}. If DCGM runs on the host, check its address in dcgmExporter.env.",
        component="dcgm_exporter",
        pattern=r"connect(ing)? to (remote |nv-)?hostengine|connection to the host engine", waits_for=("dcgm",)),
    KnownCause(
        "another profiler uses the profiling metrics, or the GPU has none",
        "Stop other profilers (DCGM, Nsight) on {node}, or remove the DCGM_FI_PROF_ metrics from dcgmExporter.config.",
        component="dcgm_exporter", pattern=r"Profiling module|profiling is not supported"),
    KnownCause(
        "the DCGM exporter cannot read its list of metrics",
        "Correct the ConfigMap that dcgmExporter.config names.",
        component="dcgm_exporter", pattern=r"Could not read metrics file|malformed|Could not find DCGM field",
        do=("kubectl --namespace {namespace} get configmaps",)),
    KnownCause(
        "the DCGM exporter cannot read the GPUs",
        "If DCGM is delivered, check DCGM on the node: the exporter reads the GPUs through it. Otherwise another "
        "profiler may use the GPUs, or the driver is too old. " + _READ,
        component="dcgm_exporter", reasons=ENDED),
    KnownCause(
        "GPU feature discovery cannot compute the labels",
        "Check that MPS and MIG are not used together, and that NVML works (nvidia-smi on {node}). " + _READ,
        component="feature_discovery", reasons=ENDED),
    KnownCause(
        "the container runtime cannot start the container",
        "Read the message. With the nvidia runtime, check the container toolkit on {node}.",
        reasons=_START),
    KnownCause(
        "the container exits repeatedly",
        _READ,
        reasons=(*ENDED, "Completed")),
    KnownCause(
        "the controller cannot create the pod",
        "Read the events: kubectl --namespace {namespace} get events",
        states=("not created",)),
    KnownCause(
        "the pod is being replaced",
        "Wait. If this takes minutes, the node does not respond: check {node}.",
        states=("Terminating",)),
    KnownCause(
        "the container runs but is not ready",
        _READ,
        states=("Running",), reasons=("",)),
    KnownCause(
        "the pod is still starting",
        "Wait, or raise the timeout. For details: kubectl --namespace {namespace} describe pod {pod}"),
)
