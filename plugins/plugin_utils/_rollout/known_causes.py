# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The table of known causes. The first row that matches a pod counts. Only data. PRIVATE.

Sources: issues of the GPU Operator; the errors that the programs in the pods print (driver container, driver manager,
validator, container toolkit, device plugin and DCGM exporter of GPU Operator 26.7); the order in which the operands
wait for each other on a Node: driver, container toolkit, toolkit-validation of the validator, then the others.
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._rollout.pods import ENDED


@dataclass(frozen=True)
class Row:
    """A known cause, and the pods that have it. An empty condition matches every pod.

    cause, hint, waits_for, certain, do: as in L(causes.Cause); words: a regular expression for messages and log lines;
    component, containers, reasons, states: conditions for the fields of L(pods.Stuck).
    """

    cause: str
    hint: str
    words: str = ""
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
_READ = "Read its log: {log}"
_NOT_THERE = r"not found|manifest unknown|no such manifest|does not exist"
_RESTART_TOOLKIT = ("kubectl --namespace {namespace} delete pod --selector app=nvidia-container-toolkit-daemonset "
                    "--field-selector spec.nodeName={node}")
_RESTART = "kubectl --namespace {namespace} delete pod {pod}"
_UNSTARTED = ("Wait, or raise the timeout; kubectl --namespace {namespace} describe pod {pod} tells more. Where it "
              "stays so for minutes, delete the pod.")
_VALIDATIONS = ("driver-validation", "toolkit-validation", "cuda-validation", "plugin-validation")
# A state that only this table has: the container has not run, for no known reason.
CREATED = "created"
_HOLDERS = "ssh {node} sudo lsof /dev/nvidia*"

# Causes by the messages of a kubelet or the API server. They need no logs.
SAID: t.Tuple[Row, ...] = (
    Row("the pod is refused by the namespace's pod security level",
        "Set psa.enabled: true in the policy, or label the namespace pod-security.kubernetes.io/enforce=privileged.",
        words=r"violates PodSecurity|forbidden by .{0,300}PodSecurity",
        do=("kubectl label namespace {namespace} --overwrite pod-security.kubernetes.io/enforce=privileged",)),
    Row("a quota of the namespace forbids the pod",
        "Raise the quota; pods of the class system-node-critical need one outside kube-system.",
        words=r"exceeded quota|insufficient quota", do=("kubectl --namespace {namespace} describe resourcequota",)),
    Row("the service account of the pod is missing", "Run site.yml: it creates missing objects again.",
        words=r"serviceaccount .{0,300}not found"),
    Row("the node's runtime has no handler of this name: nvidia is not in its configuration",
        "Make the container toolkit ready on {node}; on RKE2, k3s and k0s look whether it writes the file that this "
        "runtime reads (toolkit.env: CONTAINERD_CONFIG, CONTAINERD_SOCKET).",
        words=r"no runtime for|RuntimeHandler .{0,300}not supported|unknown runtime|failed to find runtime handler",
        waits_for=_BEFORE_VALIDATOR, do=("ssh {node} sudo containerd config dump", _RESTART_TOOLKIT)),
    Row("the RuntimeClass of the pod is missing", "Run site.yml: it creates missing objects again.",
        words=r"RuntimeClass .{0,300}not found"),
    Row("the runtime does not find the CDI devices that the pod asks for: their specification is missing on the "
        "node, or is for other GPUs", "See the container toolkit on {node}; if it is ready, restart its pod: it writes "
        "the specification when it starts.", words=r"unresolvable CDI devices|CDI device injection failed",
        waits_for=_BEFORE_VALIDATOR, do=("ssh {node} ls -l /var/run/cdi /etc/cdi", _RESTART_TOOLKIT)),
    Row("the pod network of the node does not work, so no pod starts there",
        "Repair the network plugin (CNI) on {node}; it is not a GPU component.",
        words=r"failed to set ?up network for sandbox|cni plugin not initialized|NetworkPlugin.{0,300}not ready",
        do=("kubectl describe node {node}",)),
    Row("there is no driver image for this operating system or kernel: {image}",
        "Choose a driver version whose image exists for it, or deliver the driver on the host (gpu_placement). With "
        "precompiled drivers: boot a kernel for which one is published.",
        component="driver", reasons=_PULL, words=_NOT_THERE, certain=True),
    Row("{registry} refuses to give {image}",
        "Name a pull secret in gpu_pull_secrets that exists in the namespace, or a mirror in gpu_image_registry.",
        reasons=_PULL, words=r"unauthorized|denied|authentication|forbidden|\b401\b|\b403\b",
        do=("kubectl --namespace {namespace} get secrets --field-selector type=kubernetes.io/dockerconfigjson",)),
    Row("{registry} limits how many images may be pulled", "Wait, name a pull secret of an account in "
        "gpu_pull_secrets, or a mirror in gpu_image_registry.", reasons=_PULL,
        words=r"toomanyrequests|rate limit|\b429\b"),
    Row("the node's runtime does not trust the certificate of {registry}",
        "Give the runtime on {node} the certificate of the registry's authority; driver.certConfig is for the "
        "driver's packages, not for images.", reasons=_PULL, words=r"x509|certificate|tls: "),
    Row("there is no {image} for the node's CPU architecture", "Choose a version whose image supports it.",
        reasons=_PULL, words=r"no match for platform|no matching manifest", certain=True),
    Row("{registry} has no {image}", "Correct repository and version in the policy, or copy the image there.",
        reasons=_PULL, words=rf"{_NOT_THERE}|InvalidImageName|couldn't parse image|ErrImageNeverPull", certain=True),
    Row("{image} cannot be pulled from {registry}",
        "Check that {node} reaches {registry}, or name a mirror in gpu_image_registry.",
        reasons=_PULL),
    Row("a ConfigMap or Secret that the pod needs is missing, or lacks a key",
        "Create what the message names. If it belongs to a component, run site.yml.", reasons=_CONFIG,
        words=r"configmap|secret|couldn't find key", certain=True),
    Row("a ConfigMap or Secret that the pod mounts is missing, or lacks a key",
        "Create what the message names. If it belongs to a component, run site.yml.", certain=True,
        words=r"MountVolume.{0,300}(configmap|secret).{0,300}not found|references non-existent config key"),
    Row("a file or folder of the node cannot be mounted", "Look whether the path that the message names is there on "
        "{node}. On RHEL subscription files are asked for: register the node, or name driver.repoConfig.",
        words=r"MountVolume|hostPath type check failed"),
    Row("the kubelet evicted the pod to free disk, memory or processes",
        "Free the resource that the message names on {node}; driver images and builds need several GB in /var.",
        reasons=("Evicted",)),
    Row("the disk of the node is full", "Free space on {node}; driver images and builds need several GB in /var.",
        words=r"no space left on device"),
    Row("the container ran out of memory", "Raise its memory limit in the policy (resources).",
        words=r"\bOOMKilled\b"),
    Row("the node does not have enough resources for the pod",
        "Free CPU or memory on {node}, or lower the requests in the policy.",
        states=("Pending",), words=r"Insufficient |Too many pods"),
    Row("a taint of the node keeps the pod off it", "Add its toleration to daemonsets.tolerations in the policy.",
        states=("Pending",), words=r"untolerated taint|had taint"),
    Row("no node fits the pod's selector or affinity", "Read the message: a label or another pod prevents it.",
        states=("Pending",), words=r"didn't match|didn't satisfy|affinity"),
    Row("the scheduler has not placed the pod", "Check that a scheduler runs in the cluster.", states=("Pending",),
        containers=("",)),
    Row("the driver was stopped because its startup probe failed for too long",
        "Raise driver.startupProbe.failureThreshold in the policy (each try is driver.startupProbe.periodSeconds), or "
        "use precompiled drivers. " + _READ, component="driver", containers=("nvidia-driver-ctr",),
        words=r"(?s)exit code 1(37|43).{0,2000}Startup probe failed"),
)

# Causes by the messages of the programs: in the status, in events, and in the last lines of the log.
LOGGED: t.Tuple[Row, ...] = (
    Row("the disk of the node is full", "Free space on {node}; driver images and builds need several GB in /var.",
        words=r"no space left on device", do=("ssh {node} df -h /var",)),
    Row("the runtime has not started the container {container} yet: its image is being pulled, or the runtime was "
        "restarted meanwhile and has lost it", _UNSTARTED, states=(CREATED,), containers=_VALIDATIONS,
        waits_for=_BEFORE_REST, do=(_RESTART,)),
    Row("the runtime has not started the container {container} yet: its image is being pulled, or the runtime was "
        "restarted meanwhile and has lost it", _UNSTARTED, states=(CREATED,), do=(_RESTART,)),
    # Failures of the driver.
    Row("the node has a driver of its own, or a stray nvidia-smi that looks like one",
        "Where it has a driver: add it to the group gpu_hosts with gpu_placement hybrid, or set driver.enabled: false. "
        "Where it has none: remove nvidia-smi from {node}, take the label away and run site.yml.",
        component="driver", words=r"driver is (already )?pre-installed|already installed on the host|"
                                  r"Host driver detected",
        do=("ssh {node} command -v nvidia-smi", "kubectl label node {node} nvidia.com/gpu.deploy.driver-")),
    Row("nouveau holds the GPU", "Blacklist nouveau on {node} and reboot it; nothing else frees the GPU.",
        component="driver", words=r"failed to unload nouveau|nouveau\S{0,100} is (currently )?in use|"
                                  r"nouveau.{0,300}is loaded|"
                                  r"Nouveau kernel driver is currently in use",
        do=("ssh {node} \"echo 'blacklist nouveau' | sudo tee /etc/modprobe.d/blacklist-nouveau.conf; "
            "sudo update-initramfs -u || sudo dracut --force\"",)),
    Row("another driver container runs on the node, or its lock is left",
        "Wait until the former pod has ended; if there is none, reboot {node}.", component="driver",
        words=r"instance of the NVIDIA driver is already running"),
    Row("pods that use the GPU cannot be evicted from the node",
        "The log names them and why (a disruption budget, no controller, local data): end them, or allow what "
        "driver.upgradePolicy.drain and gpu_disruption: drain need.", component="driver",
        words=r"failed to drain node|until all GPU pods are drained|cannot delete .{0,300}pods|"
              r"violate the pod's disruption|"
              r"still hold GPU resource claims|GPU clients? .{0,300}timed out",
        do=("kubectl get pods --all-namespaces --field-selector spec.nodeName={node}",)),
    Row("the old driver is in use and cannot be unloaded",
        "Stop or drain what uses the GPU on {node} (gpu_disruption: drain), or reboot it.",
        component="driver", words=r"driver is in use|could not unload|failed to (unload|uninstall) (nvidia )?driver|"
                                  r"nvidia\S{0,100} is in use|cannot unload|failed to uninstall nvidia driver",
        do=(_HOLDERS,)),
    Row("the former driver's root is still mounted on the node",
        "Drain {node}, so that nothing holds /run/nvidia/driver, and delete the pod; else reboot it.",
        component="driver", words=r"(unmount|/run/nvidia/driver).{0,300}(busy|stale)|target is busy", do=(_RESTART,)),
    Row("Secure Boot refuses the unsigned module",
        "Use precompiled signed modules or enrol a key on {node}, or deliver the driver on the host.",
        component="driver", words=r"Required key not available|Key was rejected|secure ?boot|lockdown", certain=True,
        do=("ssh {node} mokutil --sb-state",)),
    Row("the node does not reach the repositories of system packages",
        "Check name resolution, proxy (gpu_proxy) and firewall of {node}; offline: name a mirror in "
        "driver.repoConfig and its authority in driver.certConfig, or use precompiled drivers.",
        component="driver", words=r"Failed to update package cache|failed to reach .{0,300}repositories|"
                                  r"Could not resolve host|Temporary failure (in name )?resol|"
                                  r"failed to update the dnf metadata|Failed to (download|fetch|retrieve) |"
                                  r"Could not connect to|Cannot download repomd"),
    Row("the node's subscription to packages is not valid in the container",
        "Register {node}, or name repositories in driver.repoConfig.", component="driver",
        words=r"RHEL entitlement|not registered|subscription-manager"),
    Row("headers or packages of the node's kernel are not in the repositories",
        "Boot a kernel whose headers are available, name a mirror (driver.repoConfig), or use precompiled drivers.",
        component="driver", words=r"Could not resolve Linux kernel version|Unable to (locate|find) package|"
                                  r"Could not locate Linux kernel version string|Unable to resolve RHEL version|"
                                  r"(No match for argument|Unable to find a match):? kernel|"
                                  r"(linux|kernel)-(headers|image|modules|devel|core)\S{0,100} .{0,300}"
                                  r"(not found|no installation)|"
                                  r"kernel.headers not found|No package kernel",
        do=("ssh {node} uname -r",)),
    Row("the kernel modules of the network for NVLink (ib_umad, mlx5_ib) are not on the node",
        "Install the kernel's extra modules on {node} (Ubuntu: linux-modules-extra of its kernel) and load them; "
        "without them NVLink 5 is not set up and CUDA says 802.", component="driver",
        words=r"(ib_umad|mlx5_\w{1,20}) (not found|kernel modules to be loaded)|"
              r"Module (ib_umad|mlx5_\w{1,20}) not found|"
              r"mlx5_core and ib_umad",
        do=("ssh {node} sudo modprobe --all ib_umad mlx5_ib",)),
    Row("the fabric manager does not start, or is of another version than the driver",
        "Stop a fabric manager that runs on the host {node}, or give it exactly the driver's version.",
        component="driver", words=r"fabric ?manager.{0,300}(fail|error|abort|mismatch|don't match)|"
                                  r"Failed to (start|initialize).{0,300}(fabric|NVSwitch)"),
    Row("the modules were built for another kernel than the running one",
        "Boot the kernel that was updated last on {node}, or delete the pod, so that they are built anew.",
        component="driver", words=r"Invalid module format|disagrees about version of symbol|Unknown symbol in module|"
                                  r"version magic", do=("ssh {node} uname -r", _RESTART)),
    Row("the driver finds no GPU that it can drive: other kernel modules (driver.kernelModuleType) or another branch "
        "are needed, or the GPU is not well",
        "Compare the GPU with driver.kernelModuleType and driver.version (preflight.yml does); look for NVRM and Xid "
        "in the kernel's messages of {node}.",
        component="driver", words=r"could not insert '?nvidia'?: No such device|RmInitAdapter failed|"
                                  r"not supported by (the )?open|requires use of the NVIDIA open|No NVIDIA GPU",
        do=("ssh {node} \"sudo dmesg | grep -E 'NVRM|Xid' | tail\"",)),
    Row("the modules cannot be built for the node's kernel",
        "The driver does not support this kernel, or its compiler is missing: choose a newer driver (driver.version) "
        "or an older kernel.", component="driver",
        words=r"make(\[\d{1,9}\])?: \*\*\*|Failed to build|unable to build the NVIDIA kernel module|"
              r"build of the kernel module (has )?failed|unable to find .{0,300}compiler"),
    Row("the hypervisor provides no vGPU, or none that fits the driver",
        "Check the vGPU of {node} in its hypervisor; the guest's driver must fit the host's branch.",
        component="driver", words=r"cannot find vgpu devices|cannot find match for compatible vgpu driver"),
    Row("the driver waits for network drivers (MOFED) that are not installed",
        "Deliver them (Network Operator), set driver.rdma.useHostMofed: true where the host has them, or "
        "driver.rdma.enabled: false.", component="driver",
        words=r"Waiting for MOFED|/run/mellanox/drivers|failed to wait for MOFED|waiting for mellanox"),
    Row("GPUDirect RDMA cannot be loaded: the network drivers lack peer memory",
        "Load the network drivers before the GPU's on {node}, or set driver.rdma.enabled: false.", component="driver",
        words=r"nvidia.peermem.{0,300}(fail|not loaded|Invalid argument)|failed to load nvidia-peermem"),
    Row("the module does not load into the node's kernel",
        "Usual causes: Secure Boot, a loaded nouveau, a kernel of another build, no supported GPU: look at the "
        "kernel's messages of {node}.", component="driver",
        words=r"Unable to load the kernel module|could not insert '?nvidia",
        do=("ssh {node} \"sudo dmesg | tail -n 30\"",)),
    Row("the driver manager may not ask the API server",
        "Run site.yml: it brings back rights and service accounts.", component="driver",
        containers=("k8s-driver-manager",), words=r"is forbidden: User|Unauthorized"),
    Row("the driver manager cannot clear the node for the new driver",
        "A module is in use, or pods did not leave: drain {node} (gpu_disruption: drain) or reboot it. " + _READ,
        component="driver", containers=("k8s-driver-manager",), reasons=ENDED),
    Row("the driver manager waits for pods that use the GPU, or for network drivers",
        "Stop GPU pods on {node}; with RDMA look at the MOFED driver.", component="driver",
        containers=("k8s-driver-manager",), states=("Init:0/1", "Init:0/2"), reasons=("",)),
    Row("the driver cannot be built or loaded",
        "Usual causes: kernel headers not found, Secure Boot, a loaded nouveau, a mismatched fabric manager. " + _READ,
        component="driver", reasons=ENDED),
    Row("the driver is being built and loaded; this takes minutes", "Wait, or raise the timeout. " + _READ,
        component="driver", containers=("nvidia-driver-ctr",), reasons=("",)),
    # Messages of CUDA, NVML and the nvidia runtime on a Node with a driver.
    Row("CUDA reports that the system is not initialised (802): the fabric manager is missing or of another version",
        "Run a fabric manager of exactly the driver's version on {node}; NVLink 5 also needs ib_umad and mlx5_ib.",
        words=r"(error|code|returned|runtime error)\D{0,12}\b802\b|system not yet initialized|SYSTEM_NOT_READY|"
              r"SystemNotReady", do=("ssh {node} systemctl status nvidia-fabricmanager",
                                     "ssh {node} sudo modprobe --all ib_umad mlx5_ib")),
    Row("libraries and kernel module are of different driver versions",
        "The driver was changed while pods were running: reboot {node}, or restart driver and container toolkit there.",
        words=r"driver/library version mismatch", waits_for=("driver",), do=(_RESTART_TOOLKIT,)),
    Row("the driver is older than the CUDA of the image",
        "Choose a driver branch that has the image's CUDA level, or the release that belongs to the driver.",
        words=r"driver version is insufficient|unsatisfied condition: cuda|forward compatibility was attempted"),
    Row("the GPU is busy or failed", "Look at compute mode (exclusive), at MIG changes under way and for "
        "Xid in the kernel's messages of {node}.", words=r"busy or unavailable|GPU is lost|fallen off the bus",
        do=("ssh {node} nvidia-smi -q -d COMPUTE",)),
    Row("no GPU is visible in the container: MIG without instances, or no device nodes",
        "Look at MIG on {node} and whether /dev/nvidia0 is there; the container toolkit injects what is there when "
        "the pod starts.", words=r"no CUDA-capable device", waits_for=_BEFORE_VALIDATOR,
        do=("ssh {node} nvidia-smi -L",)),
    Row("the kernel module of the driver is not loaded",
        "Check its driver pod; if the driver is on the host, run nvidia-smi on {node}.", waits_for=("driver",),
        words=r"nvml error: driver not loaded|couldn't communicate with the NVIDIA driver"),
    # Components that wait for others on the Node.
    Row("the driver is not ready on the node",
        "Check its driver pod; if the driver is on the host, run nvidia-smi on {node}.",
        containers=("driver-validation",), waits_for=("driver",)),
    Row("the nvidia runtime injects nothing: it finds no driver library (libnvidia-ml.so.1)",
        "Look whether the driver works on {node} (nvidia-smi) and whether the container toolkit was started after it.",
        words=r"load library failed|libnvidia-ml", waits_for=_BEFORE_VALIDATOR, do=(_RESTART_TOOLKIT,)),
    Row("the nvidia runtime is not injected: the container toolkit is not ready on the node, or its runtime lacks the "
        "handler nvidia",
        "See the container toolkit there; look for runtimes.nvidia in the runtime's configuration on {node} and "
        "restart the runtime.", component="validator", containers=("toolkit-validation",),
        waits_for=_BEFORE_VALIDATOR, do=("ssh {node} sudo containerd config dump", _RESTART_TOOLKIT)),
    Row("no validator has passed toolkit-validation on the node (no toolkit-ready file)",
        "See the validator of the node.", containers=("toolkit-validation",), waits_for=_BEFORE_REST, reasons=("",)),
    Row("a CUDA program does not run on the node",
        "Read the log of the pod nvidia-cuda-validator there; a driver of another branch than the libraries, MIG "
        "without instances and a missing fabric manager are usual.", component="validator",
        containers=("cuda-validation",), waits_for=_BEFORE_VALIDATOR,
        do=("kubectl --namespace {namespace} logs --selector app=nvidia-cuda-validator --all-containers --prefix",)),
    Row("the node offers no GPU to pods",
        "See the device plugin there; it offers none before the driver answers, or where MIG has no instances.",
        component="validator", containers=("plugin-validation",), waits_for=(*_BEFORE_VALIDATOR, "device_plugin"),
        do=("kubectl get node {node} --output jsonpath='{{.status.allocatable}}'",)),
    # Failures of one component.
    Row("the configuration for sharing is missing, empty, or in a format that the plugin cannot read",
        "Correct gpu_sharing, or the ConfigMap that devicePlugin.config names and the label "
        "nvidia.com/device-plugin.config of {node}.", component="device_plugin",
        words=r"specified config .{0,300}does not exist|no configuration files available|no config was set|"
              r"unable to (load|parse|read|finalize) config|unknown field|strict decoding error|"
              r"error reading directory",
        do=("kubectl --namespace {namespace} get configmaps", "kubectl get node {node} --label-columns "
            "nvidia.com/device-plugin.config")),
    Row("MIG is enabled on a GPU without instances, or its instances do not fit the strategy",
        "Give the GPUs of {node} a layout (nvidia.com/mig.config), or choose mig.strategy: mixed.",
        component="device_plugin",
        words=r"migEnabled|invalid MIG configuration|same migEnabled value|more than one MIG device type",
        do=("ssh {node} nvidia-smi -L", "kubectl get node {node} --label-columns nvidia.com/mig.config.state")),
    Row("MPS cannot be used with MIG on the node", "Use time-slicing for the nodes with MIG, or turn MIG off there.",
        words=r"not supported (with|for) MPS|MPS sharing.{0,300}not supported|not supported for mig"),
    Row("the pod finds no driver: the nvidia runtime injects nothing into it",
        "Look whether its RuntimeClass nvidia is set and the container toolkit is ready on {node}; then restart the "
        "pod.", words=r"could not load NVML|non-NVML platform|Incompatible (platform|strategy) detected|"
                      r"Cannot init NVML|failed to initialize NVML", waits_for=_BEFORE_VALIDATOR, do=(_RESTART,)),
    Row("the plugin finds no usable GPU: MIG is enabled without instances, or its configuration is not valid",
        "Check MIG on {node} and devicePlugin.config in the policy. " + _READ, component="device_plugin",
        reasons=ENDED),
    Row("the toolkit cannot read the runtime's configuration: it is a template or not valid",
        "Do not name a template (config.toml.tmpl) in toolkit.env CONTAINERD_CONFIG; leave it out, so that a file of "
        "its own is written beside it, or correct the file on {node}.", component="container_toolkit",
        words=r"unable to load config|keys cannot contain|parsing error|toml: "),
    Row("the toolkit does not reach the runtime's socket",
        "Name the socket of the runtime on {node} in toolkit.env (CONTAINERD_SOCKET, k3s and RKE2: "
        "/run/k3s/containerd/containerd.sock).", component="container_toolkit",
        words=r"unable to (dial|restart|signal)|\.sock: connect: |unable to send SIGHUP"),
    Row("the toolkit cannot write or restart the runtime's configuration",
        "Look whether the configuration in the policy (toolkit.env) is the file that the runtime on {node} reads. "
        + _READ, component="container_toolkit", reasons=ENDED),
    Row("the MIG layout cannot be applied: its name is not known, or a GPU is in use",
        "Look at the label nvidia.com/mig.config of {node} and at what uses its GPUs. " + _READ,
        component="mig_manager", reasons=ENDED, do=("kubectl get node {node} --label-columns "
                                                    "nvidia.com/mig.config,nvidia.com/mig.config.state",)),
    Row("DCGM's engine cannot read the GPUs",
        "The driver may be too old for it, or its fabric manager does not run on {node}. " + _READ, component="dcgm",
        reasons=ENDED),
    Row("the exporter does not reach DCGM's engine", "See DCGM on {node}; where it is the host's, look at the address "
        "in dcgmExporter.env.", component="dcgm_exporter",
        words=r"connect(ing)? to (remote |nv-)?hostengine|connection to the host engine", waits_for=("dcgm",)),
    Row("profiling metrics are held by another profiler, or the GPU has none",
        "End other profilers (DCGM, Nsight) on {node}, or leave DCGM_FI_PROF_ metrics out of dcgmExporter.config.",
        component="dcgm_exporter", words=r"Profiling module|profiling is not supported"),
    Row("the exporter cannot read its list of metrics", "Correct the ConfigMap that dcgmExporter.config names.",
        component="dcgm_exporter", words=r"Could not read metrics file|malformed|Could not find DCGM field",
        do=("kubectl --namespace {namespace} get configmaps",)),
    Row("the exporter cannot read the GPUs", "Where DCGM is delivered, see it there, as the exporter asks it; else "
        "another profiler may hold them, or the driver is too old. " + _READ,
        component="dcgm_exporter", reasons=ENDED),
    Row("the labels cannot be computed", "MPS together with MIG is refused; NVML must answer. " + _READ,
        component="feature_discovery", reasons=ENDED),
    Row("the container cannot be started by the runtime",
        "Read the message; with the nvidia runtime: look at the container toolkit on {node}.", reasons=_START),
    Row("the container ends repeatedly", _READ, reasons=(*ENDED, "Completed")),
    Row("the controller does not create the pod", "Read its events: kubectl --namespace {namespace} get events.",
        states=("not created",)),
    Row("the pod is being replaced", "Wait. Where it stays so, its node does not answer: look at {node}.",
        states=("Terminating",)),
    Row("the container runs but is not ready", _READ, states=("Running",), reasons=("",)),
    Row("the pod is still starting",
        "Wait, or raise the timeout; kubectl --namespace {namespace} describe pod {pod} tells more."),
)
