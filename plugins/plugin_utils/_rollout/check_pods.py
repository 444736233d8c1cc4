# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs a pod with one GPU to its end on some Nodes, as a user's pod: a CUDA program of the validator's image. PRIVATE.

The pod is created only if a GPU of the Node is free, and the scheduler places it, so that it takes no GPU that another
pod uses or is about to get. It is deleted in any case. The pods of a run that was killed are deleted by the next run.
"""

from __future__ import annotations

import calendar
import re
import secrets
import time
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import GpuopsError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.errors import without_errors
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.objects import Object
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.status import is_gpu, is_ready, offered_gpus
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._rollout.drift import Difference
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._rollout.logs import readable
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._rollout.pods import not_ready_pod

LABEL = "gpuops.nvidia/check-pod"
# The components that a pod needs: the image of the first, the resources of the second.
NEEDS = ("validator", "device_plugin")
IN_USE = "skipped: all GPUs in use"
_CONTAINER, _PROGRAM = "check", "vectorAdd"
# Seconds: the longest time of a pod, after which its kubelet ends it; the age at which a pod of another run is a
# leftover; between two polls.
_DEADLINE, _LEFT, _PAUSE = 120, 600, 2.0
_LINES, _WIDTH = 3, 160


class Ran(t.NamedTuple):
    """What became of the pod on a Node. state: C(ok), C(failed), C(skipped), or C(planned) in check mode; reason: why,
    with the last lines of the log for C(failed); hint: what a user should do."""

    node: str
    state: str
    reason: str = ""
    hint: str = ""


def chosen(nodes: t.Sequence[Object], number: int) -> list[Object]:
    """This number of Nodes: the first of each model of GPU, then the second of each, in the order of their names."""
    by_model: dict[str, int] = {}
    turns = []
    for node in sorted(nodes, key=_name):
        model = str((node["metadata"].get("labels") or {}).get("nvidia.com/gpu.product"))
        by_model[model] = by_model.get(model, -1) + 1
        turns.append((by_model[model], _name(node), node))
    return [node for _turn, _node, node in sorted(turns, key=lambda one: one[:2])[:number]]


def free_gpu(node: Object, pods: t.Sequence[Object]) -> str:
    """The resource of a GPU that no pod of the Node has requested, empty if there is none. Full GPUs come first.

    On a Node with shared GPUs, a replica may be free although other programs use all of the memory of its GPU. There, a
    GPU is free only if no pod has any.
    """
    left = offered_gpus(node)
    replicas = str((node["metadata"].get("labels") or {}).get("nvidia.com/gpu.replicas", "1"))
    running = [pod for pod in pods if (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")]
    if replicas not in ("0", "1") and any(_requests(pod["spec"]) for pod in running):
        return ""
    for pod in running:
        for name, amount in _requests(pod["spec"]).items():
            left[name] = left.get(name, 0) - amount
    return min((name for name, amount in left.items() if amount > 0), default="")


def _requests(spec: Object) -> dict[str, int]:
    """The GPUs that a pod requests: those of its containers together, or of one init container if these are more."""
    total: dict[str, int] = {}
    for container in spec.get("containers") or ():
        for name, amount in _amounts(container):
            total[name] = total.get(name, 0) + amount
    for container in spec.get("initContainers") or ():
        for name, amount in _amounts(container):
            total[name] = max(total.get(name, 0), amount)
    return total


def _amounts(container: Object) -> list[tuple[str, int]]:
    resources = container.get("resources") or {}
    wanted = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return [(name, int(amount)) for name, amount in wanted.items() if is_gpu(name) and str(amount).isdecimal()]


def manifest(plan: t.Mapping[str, t.Any], node: str, resource: str, name: str) -> Object:
    """The pod. It has no privileges, and an image that the validator has already pulled to the Node."""
    validator, common = plan["components"]["validator"], plan["common"]
    runtime_class = {"runtimeClassName": common["pod_runtime_class"]} if common["pod_runtime_class"] else {}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {
        "name": name, "namespace": plan["namespace"], "labels": {LABEL: "true"}}, "spec": {
        "restartPolicy": "Never", "activeDeadlineSeconds": _DEADLINE, "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False, "enableServiceLinks": False, **runtime_class,
        "imagePullSecrets": [{"name": secret} for secret in validator["pull_secrets"]],
        "tolerations": common["tolerations"],
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]}}},
        "containers": [{"name": _CONTAINER, "image": validator["images"]["validator"],
                        "imagePullPolicy": validator["pull"]["validator"], "command": ["sh", "-c"], "args": [_PROGRAM],
                        "resources": {"limits": {resource: "1"}},
                        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}}]}}


def run(client: Client, plan: t.Mapping[str, t.Any], ready: t.Sequence[str], amount: int | list[str],
        check_mode: bool = False, clock: t.Callable[[], float] = time.monotonic,
        sleep: t.Callable[[float], None] = time.sleep) -> list[Ran]:
    """Runs the pods of all chosen Nodes at the same time.

    ready: the GPU Nodes on which nothing is missing; amount: from C(check_nodes.count). Raises ClusterError if Nodes or
    pods cannot be read.
    """
    named = amount if isinstance(amount, list) else []
    if not amount:
        return []
    nodes = [node for node in client.list("v1", "Node") if _name(node) in ready and is_ready(node)
             and not (node.get("spec") or {}).get("unschedulable")]
    picked = [node for node in nodes if _name(node) in named] if named else chosen(nodes, t.cast(int, amount))
    have = {_name(node) for node in picked}
    found = [Ran(name, "skipped", "skipped: the Node is cordoned, not Ready, or has another problem")
             for name in named if name not in have]
    if not check_mode:
        _delete_left(client, str(plan["namespace"]))
    on_node = without_errors(client.many(
        lambda node: client.list("v1", "Pod", field_selector=f"spec.nodeName={_name(node)}"), picked))
    pods: dict[str, str] = {}
    made: list[str] = []  # also those whose creation failed: its answer may have been lost
    try:
        for node, there in zip(picked, on_node):
            resource = free_gpu(node, there)
            if not resource:
                found.append(Ran(_name(node), "skipped", IN_USE))
            elif check_mode:
                found.append(Ran(_name(node), "planned", f"a pod with 1 {resource} would run"))
            else:
                name = f"gpuops-check-{secrets.token_hex(5)}"
                made.append(name)
                try:
                    client.apply(manifest(plan, _name(node), resource, name))
                    pods[name] = _name(node)
                except GpuopsError as error:
                    found.append(Ran(_name(node), "failed", f"no pod could be created: {error.message}".rstrip("."),
                                     error.hint or ""))
        found += _ended(client, str(plan["namespace"]), pods, clock, sleep)
    finally:
        client.many(lambda name: client.delete("v1", "Pod", name, str(plan["namespace"])), made)
    return sorted(found)


def undeliverable(plan: t.Mapping[str, t.Any], ready: t.Sequence[str], amount: int | list[str]) -> list[Ran]:
    """The Nodes on which no pod can run, because the cluster does not deliver a component that the pods need."""
    missing = [name for name in NEEDS if (plan["components"].get(name) or {}).get("state") != "present"]
    nodes = amount if isinstance(amount, list) else ready if amount else []
    reason = f"skipped: the cluster does not deliver {' and '.join(missing)}"
    return [Ran(name, "skipped", reason) for name in nodes] if missing else []


def differences(found: t.Sequence[Ran]) -> list[Difference]:
    """What did not run, as differences of the validator. A pod that was skipped or planned is pending."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for one in found:
        if one.state != "ok":
            groups.setdefault((one.reason, one.hint, "failed" if one.state == "failed" else "pending"),
                              []).append(one.node)
    return [Difference("validator", f"pod with one GPU: {reason}", hint, level, tuple(nodes))
            for (reason, hint, level), nodes in groups.items()]


def _ended(client: Client, namespace: str, pods: t.Mapping[str, str], clock: t.Callable[[], float],
           sleep: t.Callable[[float], None]) -> list[Ran]:
    """What became of the pods when each has ended or cannot run. pods: maps a pod to its Node."""
    end, open_pods, found = clock() + _DEADLINE, dict(pods), []
    while open_pods:
        late = clock() >= end
        live = {_name(pod): pod for pod in client.list("v1", "Pod", namespace, f"{LABEL}=true")}
        for name, node in list(open_pods.items()):
            ran = _state(client, namespace, node, live.get(name), late)
            if ran is not None:
                found.append(ran)
                del open_pods[name]
        if open_pods:
            sleep(_PAUSE)
    return found


def _state(client: Client, namespace: str, node: str, pod: Object | None, late: bool) -> Ran | None:
    """What became of a pod, None if it has not ended yet."""
    if pod is None:
        return Ran(node, "failed", "another client deleted the pod", "Run verify again.")
    phase = (pod.get("status") or {}).get("phase")
    if phase == "Succeeded":
        return Ran(node, "ok")
    state = not_ready_pod(pod, "validator")
    if state.reason == "Unschedulable" and _lacks_gpus(state.message) or state.reason.startswith("OutOfnvidia.com/"):
        return Ran(node, "skipped", IN_USE)
    if state.reason == "Unschedulable":
        return Ran(node, "skipped", f"skipped: the scheduler does not place it: {state.message[:_WIDTH]}")
    if phase != "Failed" and not late:
        return None
    about = " ".join(part for part in (state.state, state.reason, state.message[:_WIDTH]) if part)
    try:
        lines = readable(client.log(_name(pod), namespace, _CONTAINER))[-_LINES:]
    except GpuopsError:
        lines = []
    said = f"; its log ends with: {' | '.join(lines)}" if lines else ""
    ended = f"failed ({about})" if phase == "Failed" else f"has not ended after {_DEADLINE} s ({about})"
    return Ran(node, "failed", ended + said, "Compare with the log of the pod nvidia-cuda-validator on the Node, and "
               "search its kernel log (dmesg) for NVRM and Xid.")


def _lacks_gpus(message: str) -> bool:
    """Whether the scheduler's message says that a GPU resource is used up."""
    return any(is_gpu(name.rstrip(".,")) for name in re.findall(r"Insufficient (\S+)", message))


def _delete_left(client: Client, namespace: str) -> None:
    """Deletes the pods of runs that were killed."""
    left = [pod for pod in client.list("v1", "Pod", namespace, f"{LABEL}=true", metadata_only=True)
            if time.time() - _created(pod) > _LEFT]
    client.many(lambda pod: client.delete("v1", "Pod", _name(pod), namespace, pod["metadata"]["uid"]), left)


def _created(item: Object) -> int:
    """When an object was created, in seconds since 1970."""
    return calendar.timegm(time.strptime(item["metadata"]["creationTimestamp"], "%Y-%m-%dT%H:%M:%SZ"))


def _name(item: Object) -> str:
    return str(item["metadata"]["name"])
