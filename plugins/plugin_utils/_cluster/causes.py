# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From where a pod stands to why, and what to do. A table, read from the top; the first row that fits counts. PRIVATE.

Its rows come from threads of the GPU Operator's users and from the order in which the operands wait for each other on
a node (GPU Operator 26.7 manifests): driver, container toolkit, the validator's toolkit-validation, then the rest.
"""

from __future__ import annotations

import re
import typing as t
from dataclasses import dataclass

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._cluster.pods import Stuck


@dataclass(frozen=True)
class Cause:
    """cause: what is likely wrong; hint: the next step; waits_for: components that come first on that node."""

    cause: str
    hint: str
    waits_for: t.Tuple[str, ...] = ()


@dataclass(frozen=True)
class _Row:
    """What a row asks of a stuck pod (empty: anything) and what it then says."""

    cause: str
    hint: str
    words: str = ""
    reasons: t.Tuple[str, ...] = ()
    component: str = ""
    containers: t.Tuple[str, ...] = ()
    states: t.Tuple[str, ...] = ()
    waits_for: t.Tuple[str, ...] = ()

    def fits(self, stuck: Stuck, said: str) -> bool:
        """Whether this row speaks of that pod."""
        return ((not self.component or stuck.component == self.component)
                and (not self.containers or stuck.container in self.containers)
                and (not self.reasons or stuck.reason in self.reasons)
                and (not self.states or stuck.state in self.states)
                and (not self.words or re.search(self.words, said, re.IGNORECASE) is not None))


_PULL = ("ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable")
_CONFIG = ("CreateContainerConfigError", "CreateContainerError")
_LOG = "Read its log: kubectl --namespace NAMESPACE logs {pod} --container {container} --previous"
_BEFORE_VALIDATOR = ("driver", "container_toolkit")
_BEFORE_REST = ("driver", "container_toolkit", "validator")

_ROWS: t.Tuple[_Row, ...] = (
    # What the node or the API server itself says is certain.
    _Row("the pod is refused by the namespace's pod security level",
         "Set psa.enabled: true in the policy, or label the namespace pod-security.kubernetes.io/enforce=privileged.",
         words=r"violates PodSecurity|forbidden by .*PodSecurity"),
    _Row("a quota of the namespace forbids the pod",
         "Raise the quota; pods of the class system-node-critical need one outside kube-system.",
         words=r"exceeded quota|insufficient quota"),
    _Row("the service account of the pod is missing", "Run site.yml: it brings back what was removed.",
         words=r"serviceaccount .*not found"),
    _Row("the node's runtime has no handler of this name: nvidia is not in its configuration",
         "Make the container toolkit ready on {node}; on RKE2, k3s and k0s look whether it writes the file that this "
         "runtime reads.", words=r"no runtime for|RuntimeHandler .*not supported|unknown runtime",
         waits_for=_BEFORE_VALIDATOR),
    _Row("the RuntimeClass of the pod is missing", "Run site.yml: it brings back what was removed.",
         words=r"RuntimeClass .*not found"),
    _Row("there is no driver image for this operating system or kernel: {image}",
         "Choose a driver version whose image exists for it, or deliver the driver on the host (gpu_placement).",
         component="driver", reasons=_PULL, words=r"not found|manifest unknown|no such manifest"),
    _Row("{registry} refuses to give {image}",
         "Name a pull secret in gpu_pull_secrets that exists in the namespace, or a mirror in gpu_image_registry.",
         reasons=_PULL, words=r"unauthorized|denied|authentication|forbidden|401|403"),
    _Row("{registry} has no {image}", "Correct repository and version in the policy, or copy the image there.",
         reasons=_PULL, words=r"not found|manifest unknown|no such manifest|InvalidImageName|couldn't parse image"),
    _Row("{image} cannot be pulled from {registry}",
         "Look whether {node} reaches {registry}; name a mirror in gpu_image_registry where it may not.",
         reasons=_PULL),
    _Row("a ConfigMap or Secret that the pod needs is missing",
         "Create what the message names; if it is ours, run site.yml.", reasons=_CONFIG,
         words=r"configmap|secret|couldn't find key"),
    _Row("a ConfigMap or Secret that the pod mounts is missing",
         "Create what the message names; if it is ours, run site.yml.",
         words=r"MountVolume.*(configmap|secret).*not found|references non-existent config key"),
    _Row("a folder of the node cannot be mounted", "Look whether the path that the message names is there on {node}.",
         words=r"MountVolume|hostPath type check failed"),
    _Row("the kubelet put the pod off the node to free disk, memory or processes",
         "Free what the message names on {node}; driver images and builds need several GB in /var.",
         reasons=("Evicted",)),
    _Row("the container ran out of memory", "Raise its memory limit in the policy (resources).",
         reasons=("OOMKilled",)),
    _Row("the node is too full for the pod", "Free CPU or memory on {node}, or lower the requests in the policy.",
         states=("Pending",), words=r"Insufficient |Too many pods"),
    _Row("a taint of the node keeps the pod off it", "Add its toleration to daemonsets.tolerations in the policy.",
         states=("Pending",), words=r"untolerated taint|had taint"),
    _Row("no node fits the pod's selector or affinity", "Read the message: a label or another pod stands against it.",
         states=("Pending",), words=r"didn't match|didn't satisfy|affinity"),
    _Row("the scheduler has not placed the pod", "Look whether a scheduler runs in the cluster.", states=("Pending",),
         containers=("",)),
    # The driver's own ways to fail.
    _Row("the node has a driver of its own",
         "Add it to the group gpu_hosts with gpu_placement hybrid, remove that driver, or set driver.enabled: false.",
         component="driver", words=r"pre-installed|host driver|already installed on the host"),
    _Row("the old driver is in use and cannot be unloaded",
         "Stop or drain what uses the GPU on {node} (gpu_disruption: drain), or reboot it.",
         component="driver", words=r"in use|could not unload|failed to uninstall|cannot unload"),
    _Row("nouveau holds the GPU", "Blacklist nouveau on {node} and reboot it.", component="driver", words=r"nouveau"),
    _Row("Secure Boot refuses the unsigned module",
         "Use precompiled signed modules or enrol a key on {node}, or deliver the driver on the host.",
         component="driver", words=r"Required key not available|Key was rejected|secure ?boot|lockdown"),
    _Row("headers or packages of the node's kernel are not in the repositories",
         "Boot a kernel whose headers are available, name a mirror (driver.repoConfig), or use precompiled drivers.",
         component="driver", words=r"kernel.headers|kernel version|Unable to (locate|find) package|linux-headers"),
    _Row("the driver manager cannot clear the node for the new driver",
         "A module is in use, or pods did not leave: drain {node} (gpu_disruption: drain) or reboot it. " + _LOG,
         component="driver", containers=("k8s-driver-manager",), reasons=("CrashLoopBackOff", "Error")),
    _Row("the driver manager waits for pods that use the GPU, or for network drivers",
         "Stop GPU pods on {node}; with RDMA look at the MOFED driver.", component="driver",
         containers=("k8s-driver-manager",)),
    _Row("the driver cannot be built or loaded",
         "Usual causes: kernel headers not found, Secure Boot, a loaded nouveau, a mismatched fabric manager. " + _LOG,
         component="driver", reasons=("CrashLoopBackOff", "Error")),
    _Row("the driver is being built and loaded; this takes minutes", "Wait, or raise the timeout. " + _LOG.replace(
         " --previous", ""), component="driver", containers=("nvidia-driver-ctr",)),
    # Then who waits for whom on the node.
    _Row("CUDA says that the system is not initialised (802): the fabric manager is missing or of another version",
         "Run a fabric manager of exactly the driver's version on {node}; NVLink 5 also needs ib_umad and mlx5_ib.",
         words=r"\b802\b|system not yet initialized|SYSTEM_NOT_READY"),
    _Row("the driver is not ready on the node", "See the driver there; where the host has it: nvidia-smi on {node}.",
         containers=("driver-validation",), waits_for=("driver",)),
    _Row("the nvidia runtime injects nothing: it finds no driver library (libnvidia-ml.so.1)",
         "Look whether the driver works on {node} (nvidia-smi) and whether the container toolkit was started after it.",
         words=r"load library failed|libnvidia-ml", waits_for=_BEFORE_VALIDATOR),
    _Row("the nvidia runtime is not injected: the container toolkit is not ready on the node, or its runtime lacks the "
         "handler nvidia",
         "See the container toolkit there; look for runtimes.nvidia in the runtime's configuration on {node} and "
         "restart the runtime.", component="validator", containers=("toolkit-validation",),
         waits_for=_BEFORE_VALIDATOR),
    _Row("no validator has passed toolkit-validation on the node (no toolkit-ready file)",
         "See the validator there.", containers=("toolkit-validation",), waits_for=_BEFORE_REST),
    _Row("a CUDA program does not run on the node",
         "Read the log of the pod nvidia-cuda-validator there; a driver of another branch than the libraries, MIG "
         "without instances and a missing fabric manager are usual.", component="validator",
         containers=("cuda-validation",), waits_for=_BEFORE_VALIDATOR),
    _Row("the node offers no GPU to pods",
         "See the device plugin there; it offers none before the driver answers, or where MIG has no instances.",
         component="validator", containers=("plugin-validation",), waits_for=(*_BEFORE_VALIDATOR, "device_plugin")),
    _Row("the container cannot be started by the runtime",
         "Read the message; with the nvidia runtime: look at the container toolkit on {node}.",
         reasons=("RunContainerError", "ContainerCannotRun", "StartError", *_CONFIG)),
    # Per component, when it fails by itself.
    _Row("the plugin finds no usable GPU: MIG is enabled without instances, or its configuration is not valid",
         "Look at MIG on {node} and at devicePlugin.config in the policy. " + _LOG, component="device_plugin",
         reasons=("CrashLoopBackOff", "Error")),
    _Row("the toolkit cannot write or restart the runtime's configuration",
         "Look whether the configuration in the policy (toolkit.env) is the file that the runtime on {node} reads. "
         + _LOG, component="container_toolkit", reasons=("CrashLoopBackOff", "Error")),
    _Row("the MIG layout cannot be applied: its name is not known, or a GPU is in use",
         "Look at the label nvidia.com/mig.config of {node} and at what uses its GPUs. " + _LOG,
         component="mig_manager", reasons=("CrashLoopBackOff", "Error")),
    _Row("DCGM's engine cannot read the GPUs",
         "The driver may be too old for it, or its fabric manager does not run on {node}. " + _LOG, component="dcgm",
         reasons=("CrashLoopBackOff", "Error")),
    _Row("the exporter cannot read the GPUs", "Where DCGM is delivered, see it there, as the exporter asks it; else "
         "another profiler may hold them, or the driver is too old. " + _LOG,
         component="dcgm_exporter", reasons=("CrashLoopBackOff", "Error")),
    _Row("the labels cannot be computed", "MPS together with MIG is refused; NVML must answer. " + _LOG,
         component="feature_discovery", reasons=("CrashLoopBackOff", "Error")),
    _Row("the container ends again and again", _LOG, reasons=("CrashLoopBackOff", "Error", "Completed")),
    _Row("the controller does not create the pod", "Look at its events: kubectl --namespace NAMESPACE get events.",
         states=("not created",)),
    _Row("the pod is being replaced", "Wait.", states=("Terminating",)),
    _Row("the container runs but says that it is not ready", _LOG.replace(" --previous", ""), states=("Running",)),
    _Row("the pod is still starting", "Wait, or raise the timeout; kubectl describe pod {pod} tells more."),
)


def explain(stuck: Stuck, events: t.Sequence[str] = (), namespace: str = "") -> Cause:
    """The likely cause for a pod that is not ready. events: messages of warnings about it, the newest last."""
    said = "\n".join([stuck.reason, stuck.message, *events])
    row = next(row for row in _ROWS if row.fits(stuck, said))
    words = {"image": stuck.image or "its image", "registry": _registry(stuck.image), "node": stuck.node or "the node",
             "pod": stuck.pod, "container": stuck.container}
    return Cause(row.cause.format(**words), row.hint.replace("NAMESPACE", namespace).format(**words), row.waits_for)


def _registry(image: str) -> str:
    """The registry of an image as the runtime reads its name."""
    first = image.split("/", 1)[0]
    named = "/" in image and ("." in first or ":" in first or first == "localhost")
    return first if named else "docker.io" if image else "the registry"
