# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The state of a pod, and the explanation of it."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.status import is_ready
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._rollout.causes import explain
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._rollout.pods import NotReadyPod, not_ready_pod
from ansible_collections.gpuops.nvidia.tests.unit.simulated import fakes


def stuck(component: str = "device_plugin", container: str = "", state: str = "Running", reason: str = "",
          message: str = "", image: str = "nvcr.io/nvidia/x:1") -> NotReadyPod:
    return NotReadyPod(component, "gpu-a1", "pod-1", container, state, reason, message, 0, image)


@pytest.mark.parametrize(("where", "events", "cause", "hint"), [
    (stuck("validator", "driver-validation", "Init:0/4"), [], "the driver is not ready", "Check the driver pod"),
    (stuck("validator", "toolkit-validation", "Init:1/4"), [], "the driver is not injected",
     "has runtimes.nvidia"),
    (stuck("validator", "toolkit-validation", "Init:1/4", "CrashLoopBackOff", "load library failed: libnvidia-ml.so.1"),
     [], "does not find the library", "nvidia-smi"),
    (stuck("validator", "cuda-validation", "Init:2/4", "CrashLoopBackOff", "cudaGetDeviceCount: error code 802"), [],
     "802", "fabric manager of exactly the driver's version on gpu-a1"),
    (stuck("validator", "cuda-validation", "Init:2/4"), ["system not yet initialized"], "802", "fabric manager"),
    (stuck("validator", "plugin-validation", "Init:3/4"), [], "no allocatable GPU", "device plugin"),
    (stuck("driver", "k8s-driver-manager", "Init:0/1", "CrashLoopBackOff", "the container ended with exit code 1"), [],
     "cannot prepare the node", "kubectl --namespace gpu logs pod-1 --container k8s-driver-manager"),
    (stuck("driver", "k8s-driver-manager", "Init:0/1", "Error", "module nvidia is in use"), [], "in use", "drain"),
    (stuck("driver", "nvidia-driver-ctr", "Running"), [], "being built", "raise the timeout"),
    (stuck("driver", "nvidia-driver-ctr", "Running", "CrashLoopBackOff", "modprobe: Required key not available"), [],
     "Secure Boot", "signed"),
    (stuck("driver", "nvidia-driver-ctr", "Running", "CrashLoopBackOff", "the container ended with exit code 1"), [],
     "cannot be built or loaded", "kernel headers are missing, Secure Boot"),
    (stuck("driver", "nvidia-driver-ctr", "Pending", "ImagePullBackOff", "Back-off",
           "nvcr.io/nvidia/driver:595.91.07-debian12"), ["driver:595.91.07-debian12: not found"],
     "no driver image for the operating system or the kernel of the node: nvcr.io/nvidia/driver:595.91.07-debian12",
     "on the host (gpu_placement)"),
    (stuck("dcgm_exporter", "x", "Pending", "ErrImagePull", "401 Unauthorized", "mirror.example:5000/dcgm:1"), [],
     "mirror.example:5000 denies access to mirror.example:5000/dcgm:1", "gpu_pull_secrets"),
    (stuck("dcgm_exporter", "x", "Pending", "ErrImagePull", "dial tcp: i/o timeout", "busybox"), [],
     "busybox cannot be pulled from docker.io", "gpu_image_registry"),
    (stuck("device_plugin", "x", "Pending", "CreateContainerConfigError", 'configmap "a" not found'), [],
     "ConfigMap or Secret", "site.yml"),
    (stuck("device_plugin", "x", "Init:0/1"),
     ['Failed to create pod sandbox: no runtime for "nvidia" is configured'], "no runtime handler named nvidia",
      "RKE2"),
    (stuck("validator", "toolkit-validation", "Init:1/4", "RunContainerError", "OCI runtime create failed"), [],
     "the driver is not injected", "restart the runtime"),
    (stuck("device_plugin", "x", "Running", "RunContainerError", "exec: not found"), [], "cannot start the container",
     "message"),
    (stuck(state="Pending", reason="Unschedulable", message="0/3 nodes: 1 Insufficient memory"), [], "enough resources",
     "requests"),
    (stuck(state="Pending", reason="Unschedulable", message="1 node(s) had untolerated taint {a: b}"), [], "taint",
     "daemonsets.tolerations"),
    (stuck(state="Pending", reason="Unschedulable", message="1 node(s) didn't match Pod's node affinity"), [],
     "selector or the affinity", "message"),
    (stuck(state="Pending"), [], "has not assigned", "scheduler"),
    (stuck(state="Failed", reason="Evicted", message="low on resource: ephemeral-storage"), [], "evicted the pod",
     "gpu-a1"),
    (stuck(state="not created", reason="FailedCreate", message='pods "x" is forbidden: violates PodSecurity "base"'),
     [], "pod security level", "psa.enabled"),
    (stuck(state="not created", reason="FailedCreate", message="exceeded quota: q"), [], "ResourceQuota", "Raise"),
    (stuck(state="not created", reason="FailedCreate", message="webhook said no"), [], "cannot create", "events"),
    (stuck("dcgm", "nvidia-dcgm-ctr", "Running", "CrashLoopBackOff", "boom"), [], "DCGM cannot",
     "fabric manager does not run on gpu-a1"),
    (stuck("dcgm_exporter", "nvidia-dcgm-exporter", "Running", "CrashLoopBackOff", "boom"), [],
     "exporter cannot read", "through it"),
    (stuck("nfd", "worker", "Running", "CrashLoopBackOff", "boom"), [], "exits repeatedly", "logs pod-1 --container"),
    (stuck("nfd", "worker", "Running"), [], "runs but is not ready", "logs"),
    (stuck("nfd", "worker", "Pending"), [], "still starting", "describe pod pod-1"),
])
def test_table(where: NotReadyPod, events: list[str], cause: str, hint: str) -> None:
    found = explain(where, events, "gpu")
    assert cause in found.cause and hint in found.hint
    assert "{" not in found.cause + found.hint and "NAMESPACE" not in found.hint


@pytest.mark.parametrize(("pod", "state", "container", "reason", "message"), [
    (fakes.pod("validator", "n", 1), "Init:1/4", "toolkit-validation", "", ""),
    (fakes.pod("validator", "n", 0, "CrashLoopBackOff", "back-off 5m0s restarting failed container"), "Init:0/4",
     "driver-validation", "CrashLoopBackOff", ""),
    (fakes.pod("driver", "n", reason="ErrImagePull", message="not found"), "Running", "driver-ctr", "ErrImagePull",
     "not found"),
    (fakes.pod("driver", "n"), "Running", "driver-ctr", "", ""),
    (fakes.pod("nfd", "n") | {"status": {"phase": "Failed", "reason": "Evicted", "message": "disk"}}, "Failed", "",
     "Evicted", "disk"),
    (fakes.pod("nfd", "n", 0) | {"status": {"phase": "Pending"}}, "Init:0/1", "toolkit-validation", "", ""),
])
def test_where_a_pod_stands(pod: dict[str, Any], state: str, container: str, reason: str, message: str) -> None:
    found = not_ready_pod(pod, "x")
    assert (found.state, found.container, found.reason, found.message) == (state, container, reason, message)
    assert not is_ready(pod)


def test_a_crash_tells_how_it_ended() -> None:
    pod = fakes.pod("driver", "n", reason="CrashLoopBackOff", message="back-off 10s restarting failed container")
    told = pod["status"]["containerStatuses"][0]
    told["lastState"] = {"terminated": {"exitCode": 3}}
    assert not_ready_pod(pod, "driver").message == "the container ended with exit code 3"
    told["lastState"]["terminated"]["message"] = "nvidia is in use\n"
    assert not_ready_pod(pod, "driver").message == "nvidia is in use"


def test_a_pod_that_is_not_scheduled_belongs_to_the_node_it_is_made_for() -> None:
    pod = fakes.pod("driver", "n", 0)
    del pod["spec"]["nodeName"]
    pod["spec"]["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["gpu-7"]}]}]}}}
    pod["status"] = {"phase": "Pending", "conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "Insufficient cpu"}]}
    found = not_ready_pod(pod, "driver")
    assert (found.node, found.state, found.reason) == ("gpu-7", "Pending", "Unschedulable")


def test_a_pod_that_goes_is_not_ready() -> None:
    pod = fakes.pod("driver", "n", ready=True)
    assert is_ready(pod)
    pod["metadata"]["deletionTimestamp"] = "now"
    assert not is_ready(pod) and not_ready_pod(pod, "driver").state == "Terminating"


def test_a_sidecar_that_has_started_is_no_stop() -> None:
    pod = fakes.pod("device_plugin", "n", 0)
    pod["spec"]["initContainers"][0]["restartPolicy"] = "Always"
    pod["status"]["initContainerStatuses"][0]["started"] = True
    assert not_ready_pod(pod, "device_plugin").container == "device_plugin-ctr"
