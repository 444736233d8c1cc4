# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A cluster in memory for code that only reads: objects of the API in a compact notation."""

from __future__ import annotations

from typing import Any, Callable, Iterable, List

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import GpuopsError

NAMESPACE = "gpu-operator"
NAMES = ("nfd", "driver", "container_toolkit", "validator", "device_plugin", "feature_discovery", "dcgm_exporter",
         "mig_manager")
INITS = {"driver": ["k8s-driver-manager"], "container_toolkit": ["driver-validation"],
         "validator": ["driver-validation", "toolkit-validation", "cuda-validation", "plugin-validation"]}


def one_by_one(do: Callable[[Any], Any], items: Iterable[Any]) -> List[Any]:
    """The client's many() without threads: an error of the collection replaces the answer."""
    answers: List[Any] = []
    for item in items:
        try:
            answers.append(do(item))
        except GpuopsError as error:
            answers.append(error)
    return answers


def plan(*nodes: str, on_host: dict[str, list[str]] | None = None) -> dict[str, Any]:
    """gpu_plan.cluster with all components and these GPU Nodes."""
    return {"namespace": NAMESPACE, "server": "https://10.0.0.1:6443",
            "components": {name: {"state": "present"} for name in NAMES},
            "nodes": {"gpu": list(nodes), "cpu": 1, "by_host": {node: f"{node}.example" for node in on_host or {}}},
            "deploy": {"components": dict.fromkeys(NAMES, True), "on_host": on_host or {}}}


def node(name: str, ready: bool = True, **labels: str) -> dict[str, Any]:
    """A Node with the label that all DaemonSets here select."""
    return {"metadata": {"name": name, "labels": {"gpu": "true", **labels}},
            "status": {"conditions": [{"type": "Ready", "status": "True" if ready else "Unknown"}]}}


def daemon_set(component: str, desired: int, ready: int, updated: int | None = None, **spec: Any) -> dict[str, Any]:
    """A DaemonSet of ours."""
    return {"kind": "DaemonSet",
            "metadata": {"name": f"nvidia-{component}", "uid": f"uid-{component}", "generation": 2,
                         "labels": {"gpuops.nvidia/component": component,
                                    "app.kubernetes.io/managed-by": "gpuops.nvidia"}},
            "spec": {"selector": {"matchLabels": {"app": component}},
                     "template": {"spec": {"nodeSelector": {"gpu": "true"}}}, **spec},
            "status": {"desiredNumberScheduled": desired, "numberReady": ready, "observedGeneration": 2,
                       "updatedNumberScheduled": desired if updated is None else updated}}


def pod(component: str, where: str, init: int | None = None, reason: str = "", message: str = "", ready: bool = False,
        image: str = "nvcr.io/nvidia/x:1", revision: str = "new", **status: Any) -> dict[str, Any]:
    """A pod of a component on a Node. init: the index of the init container at which it is."""
    inits = INITS.get(component, ["toolkit-validation"])
    at = len(inits) if init is None else init
    waiting = {"waiting": {"reason": reason, "message": message}} if reason else {"running": {}}
    told = [{"name": name, "restartCount": 3, "ready": index < at, "state":
             {"terminated": {"exitCode": 0}} if index < at else waiting if index == at else
             {"waiting": {"reason": "PodInitializing"}}} for index, name in enumerate(inits)]
    main = {"name": f"{component}-ctr", "ready": ready, "restartCount": 7,
            "state": waiting if init is None else {"waiting": {"reason": "PodInitializing"}}}
    return {"metadata": {"name": f"{component}-{where}", "labels": {"app": component,
                                                                    "controller-revision-hash": revision},
                         "ownerReferences": [{"uid": f"uid-{component}"}]},
            "spec": {"nodeName": where, "initContainers": [{"name": name, "image": image} for name in inits],
                     "containers": [{"name": f"{component}-ctr", "image": image}]},
            "status": {"phase": "Running" if init is None else "Pending", "initContainerStatuses": told,
                       "containerStatuses": [main],
                       "conditions": [{"type": "Ready", "status": "True" if ready else "False"}], **status}}


def warning(kind: str, name: str, message: str, when: str = "2026-01-01T00:00:00Z") -> dict[str, Any]:
    """An event."""
    return {"involvedObject": {"kind": kind, "name": name}, "message": message, "lastTimestamp": when}


class FakeClient:
    """Answers from lists by kind; asked counts the requests. each: called before every read of DaemonSets."""

    def __init__(self, each: Callable[[FakeClient, int], None] | None = None, **objects: list[dict[str, Any]]) -> None:
        self.objects, self._each = objects, each
        self.asked: list[str] = []
        self.restarts: dict[str, Any] = {}
        self.printed: list[list[str]] = []
        self.logs: dict[str, Any] = {}  # by pod: a text, or what is raised

    def list(self, api_version: str, kind: str, namespace: str | None = None, label_selector: str | None = None,
             field_selector: str | None = None, metadata_only: bool = False) -> list[dict[str, Any]]:
        self.asked.append(f"list {kind}")
        if kind == "DaemonSet" and self._each:
            self._each(self, self.asked.count("list DaemonSet"))
        assert kind == "Node" or namespace == NAMESPACE
        found = self.objects.get(kind, [])
        if kind in ("DaemonSet", "Deployment", "Node", "Event") or not label_selector:
            return found
        wanted = dict(part.split("=") for part in label_selector.split(","))
        return [one for one in found if wanted.items() <= (one["metadata"].get("labels") or {}).items()]

    def get(self, api_version: str, kind: str, name: str, namespace: str | None = None) -> dict[str, Any] | None:
        self.asked.append(f"get {kind}")
        return next((one for one in self.objects.get(kind, []) if one["metadata"]["name"] == name), None)

    def pod_rows(self, namespace: str) -> dict[str, Any]:
        """Pods with the restarts of the list C(restarts): names and what kubectl prints; and the rows C(printed)."""
        assert namespace == NAMESPACE
        self.asked.append("rows of Pods")
        return {"columnDefinitions": [{"name": name} for name in ("Name", "Ready", "Status", "Restarts", "Age", "IP",
                                                                  "Node")],
                "rows": [*({"cells": [name, "1/1", "Running", said, "9d", "<none>", "n1"]}
                           for name, said in self.restarts.items()), *({"cells": row} for row in self.printed)]}

    def log(self, name: str, namespace: str, container: str, previous: bool = False, lines: int = 40) -> str:
        assert namespace == NAMESPACE
        self.asked.append(f"log {name} {container}{' previous' if previous else ''}")
        said = self.logs.get(name, "")
        if isinstance(said, Exception):
            raise said
        return said

    many = staticmethod(one_by_one)


class Clock:
    """A clock that only advances when a caller sleeps."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
