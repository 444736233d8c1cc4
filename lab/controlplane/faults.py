# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Faults of simulated pods and nodes: Stages that take precedence over those of kwok as long as they exist.

kwok looks at an object when it changes. So the objects that a fault affects are set back to pending when the fault is
set or removed; kwok then gives them the state of the Stage that applies.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lab.controlplane import api, cluster, nodes

STAGES = "/apis/kwok.x-k8s.io/v1alpha1/stages"
PODS = "/api/v1/pods"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
MARK = "gpuops-lab/fault"
TEMPLATES = Path(__file__).resolve().parent / "stages"
VALIDATOR, HELD = "nvidia-operator-validator", "toolkit-validation"
# Fault to what it does; the command line shows this.
FAULTS = {
    "validator": f"validator pods stay at Init:1/4, {HELD} failing again and again (--running: still running)",
    "crash": "a container of --app fails again and again: CrashLoopBackOff",
    "pull": "the image of a container of --app cannot be pulled: ImagePullBackOff",
    "slow": "pods of --app that start become Ready after --seconds",
    "node-lost": "--node does not report any more; its pods keep their state",
}
NO_DRIVER = ("failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create "
             "failed: unable to start container process: error during container init: error running prestart hook #0: "
             "exit status 1, stdout: , stderr: Auto-detected mode as 'legacy'\nnvidia-container-cli: initialization "
             "error: load library failed: libnvidia-ml.so.1: cannot open shared object file: no such file or "
             "directory: unknown")


@dataclass(frozen=True)
class Fault:
    """One fault. app: a DaemonSet or Deployment; container: empty for the first; node: empty for all nodes."""

    kind: str
    app: str = ""
    node: str = ""
    container: str = ""
    running: bool = False
    seconds: float = 0.0

    @property
    def title(self) -> str:
        """The name of its Stage."""
        told = json.dumps(asdict(self), sort_keys=True).encode()
        return f"fault-{self.kind}-{hashlib.sha256(told).hexdigest()[:8]}"

    def concerns(self, pod: dict[str, Any]) -> bool:
        """Whether the fault affects a pod."""
        owners = pod["metadata"].get("ownerReferences", [])
        return self.node in ("", pod["spec"].get("nodeName")) and (not self.app or any(
            owner["name"] == self.app or owner["kind"] == "ReplicaSet" and owner["name"].startswith(f"{self.app}-")
            for owner in owners))


def fault(kind: str, app: str, node: str, container: str, running: bool, seconds: float) -> Fault:
    """A fault from the command line, complete and validated."""
    if kind == "validator":
        app, container = app or VALIDATOR, container or HELD
    if kind == "node-lost" and not node:
        raise SystemExit("stage node-lost: say which with --node")
    if kind in ("crash", "pull", "slow") and not app:
        raise SystemExit(f"stage {kind}: say which DaemonSet or Deployment with --app")
    if kind == "slow" and seconds <= 0:
        raise SystemExit("stage slow: say how long with --seconds")
    return Fault(kind, app, node, container, running, seconds)


def on(made: cluster.Cluster, wanted: Fault) -> int:
    """Sets a fault; returns how many pods have it."""
    need_kwok(made)
    with made.api() as server:
        if wanted.kind == "node-lost":
            server.request("GET", f"{nodes.NODES}/{wanted.node}")
        for stage in stages(wanted, server):
            stage["metadata"]["labels"] = {cluster.MADE_BY: made.name, MARK: wanted.kind}
            stage["metadata"]["annotations"] = {MARK: json.dumps(asdict(wanted))}
            server.apply(f"{STAGES}/{stage['metadata']['name']}", stage)
        if wanted.kind == "node-lost":
            set_node(server, wanted.node, "Unknown", "NodeStatusUnknown")
            return mark_pods(server, wanted)
        if wanted.kind == "slow":
            time.sleep(1)  # kwok is told of the Stage by a watch, which nothing here can see
            return 0
        return replay(server, wanted, lambda pod: held_by(pod) == wanted.title
                      or "deletionTimestamp" in pod["metadata"])


def off(made: cluster.Cluster, kind: str, app: str, node: str) -> int:
    """Removes the faults of a kind, either all or those of an app or a node; returns how many pods had them."""
    need_kwok(made)
    count = 0
    with made.api() as server:
        healed = {}
        for stage in server.objects(f"{STAGES}?labelSelector={MARK}%3D{kind}"):
            known = Fault(**json.loads(stage["metadata"]["annotations"][MARK]))
            if app in ("", known.app) and node in ("", known.node):
                server.request("DELETE", f"{STAGES}/{stage['metadata']['name']}")
                healed[known.title] = known
        for known in healed.values():
            if known.kind == "node-lost":
                set_node(server, known.node, "False", "SetBack")
            count += replay(server, known, partial(healthy, known.title))
    return count


def need_kwok(made: cluster.Cluster) -> None:
    """Faults are Stages."""
    if not cluster.has_kwok(made):
        raise SystemExit(f"the cluster of {made.kubeconfig} has no kwok (no CRD stages.kwok.x-k8s.io): faults cannot "
                         "be set there")


def stages(wanted: Fault, server: api.Api) -> list[dict[str, Any]]:
    """The Stages of a fault."""
    if wanted.kind == "node-lost":
        return [stage(f"{wanted.title}-node", "Node", [matches(".metadata.name", wanted.node)], template("node-lost")),
                # No kubelet: pods there neither start nor end.
                stage(wanted.title, "Pod", [matches(".spec.nodeName", wanted.node)], "", weight=10**6)]
    where = [{"key": ".metadata.deletionTimestamp", "operator": "DoesNotExist"}, {"key": owner(wanted.app),
                                                                                  "operator": "Exists"}]
    if wanted.node:
        where.append(matches(".spec.nodeName", wanted.node))
    if wanted.kind == "slow":
        where.append(matches(".status.phase", "Pending"))
        usual = server.request("GET", f"{STAGES}/pod-ready")["spec"]["next"]["statusTemplate"]
        return [stage(wanted.title, "Pod", where, usual, delay=wanted.seconds)]
    return [stage(wanted.title, "Pod", where, broken(wanted), event=event(wanted))]


def stage(name: str, kind: str, where: list[dict[str, Any]], status: str, weight: int = 1, delay: float = 0.0,
          event: dict[str, str] | None = None) -> dict[str, Any]:
    """A Stage object. delay: in seconds."""
    then: dict[str, Any] = {"statusTemplate": status} if status else {}
    spec: dict[str, Any] = {"resourceRef": {"apiGroup": "v1", "kind": kind}, "weight": weight,
                            "selector": {"matchExpressions": where},
                            "next": {**then, **({"event": event} if event else {})}}
    if delay:
        spec["delay"] = {"durationMilliseconds": int(delay * 1000)}
    return {"apiVersion": "kwok.x-k8s.io/v1alpha1", "kind": "Stage", "metadata": {"name": name}, "spec": spec}


def matches(key: str, value: str) -> dict[str, Any]:
    """A condition of a Stage's selector."""
    return {"key": key, "operator": "In", "values": [value]}


def owner(app: str) -> str:
    """The jq expression for pods of a DaemonSet, or of a Deployment by its ReplicaSets."""
    return (f'.metadata.ownerReferences.[] | select(.name == "{app}" or (.kind == "ReplicaSet" and '
            f'(.name | startswith("{app}-")))) | .name')


def template(name: str, **values: object) -> str:
    """A status template of ours, with values put in as JSON."""
    text = (TEMPLATES / f"{name}.tmpl").read_text()
    for key, value in values.items():
        text = text.replace(f"@{key.upper()}@", json.dumps(value))
    return text


def broken(wanted: Fault) -> str:
    """The status of a pod with a container that does not start."""
    if wanted.running:
        state = template("state-running")
    elif wanted.kind == "pull":
        state = template("state-pull")
    elif wanted.kind == "validator":
        state = template("state-crash", code=128, ended="StartError", last=NO_DRIVER)
    else:
        state = template("state-crash", code=1, ended="Error", last="")
    text = template("pod-broken", container=wanted.container, title=wanted.title,
                    phase="Running" if wanted.kind == "crash" else "Pending")
    return text.replace("@STATE@", state)


def event(wanted: Fault) -> dict[str, str] | None:
    """The message that the kubelet would report."""
    if wanted.running:
        return None
    if wanted.kind == "pull":
        return {"type": "Warning", "reason": "Failed", "message": "Error: ImagePullBackOff"}
    name = f" {wanted.container}" if wanted.container else ""
    return {"type": "Warning", "reason": "BackOff", "message": f"Back-off restarting failed container{name}"}


def held_by(pod: dict[str, Any]) -> str:
    """The title of the fault that a pod shows, empty for none."""
    return str(next((condition["message"] for condition in pod["status"].get("conditions", ())
                     if condition["type"] == MARK), ""))


def healthy(title: str, pod: dict[str, Any]) -> bool:
    """Whether a pod is Ready, or shows another fault than the one of this title."""
    return nodes.ready(pod) or held_by(pod) not in ("", title)


def replay(server: api.Api, wanted: Fault, done: Callable[[dict[str, Any]], bool], limit: float = 90.0) -> int:
    """Sets the pods of a fault back to pending until C(done) accepts all of them; returns their number."""
    end = time.monotonic() + limit
    pause = again = 0.0
    while True:
        pods = [pod for pod in server.objects(PODS) if wanted.concerns(pod) and pod["spec"].get("nodeName")]
        late = [pod for pod in pods if not done(pod)]
        if not late:
            return len(pods)
        if time.monotonic() > end:
            raise SystemExit(f"stage {wanted.kind}: {len(late)} pods did not follow, for example "
                             f"{late[0]['metadata']['name']}")
        # A slow kwok is given ever more time to play the start of a pod.
        if time.monotonic() >= again:
            api.many(lambda pod: set_back(server, pod), late)
            pause = min(2 * pause + 0.3, 10.0)
            again = time.monotonic() + pause
        time.sleep(0.3)


def set_back(server: api.Api, pod: dict[str, Any]) -> None:
    """Resets a pod to the state right after scheduling: kwok then simulates its start again."""
    since = pod["metadata"]["creationTimestamp"]
    conditions = [{"type": "PodScheduled", "status": "True", "lastTransitionTime": since},
                  {"type": "Ready", "status": "False", "reason": "SetBack", "lastTransitionTime": since}]
    # kwok gives a pod another address each time, and a pod may have one only.
    gone = dict.fromkeys(("containerStatuses", "initContainerStatuses", "podIP", "podIPs"))
    status = {"phase": "Pending", "conditions": conditions, **gone}
    server.request("PATCH", path(pod), {"status": status}, MERGE, missing_ok=True)


def path(pod: dict[str, Any]) -> str:
    """The path of the status of a pod."""
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}/status"


def mark_pods(server: api.Api, lost: Fault) -> int:
    """Marks the pods of a lost node as not Ready, as the node controller does; returns their number."""
    found = [pod for pod in server.objects(PODS) if lost.concerns(pod)]
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    condition = {"type": "Ready", "status": "False", "lastTransitionTime": now}
    api.many(lambda pod: server.request("PATCH", path(pod), {"status": {"conditions": [condition]}}, STRATEGIC,
                                        missing_ok=True), filter(nodes.ready, found))
    return len(found)


def set_node(server: api.Api, name: str, status: str, reason: str, limit: float = 90.0) -> None:
    """Writes the Ready condition of a node until the node has it or, with C(False), until kwok has made the node
    Ready."""
    end = time.monotonic() + limit
    while True:
        found = server.request("GET", f"{nodes.NODES}/{name}")
        now = next(item["status"] for item in found["status"]["conditions"] if item["type"] == "Ready")
        if now == ("True" if status == "False" else status):
            return
        if time.monotonic() > end:
            raise SystemExit(f"node {name} did not follow: its Ready is {now}")
        condition = {"type": "Ready", "status": status, "reason": reason}
        server.request("PATCH", f"{nodes.NODES}/{name}/status", {"status": {"conditions": [condition]}}, STRATEGIC)
        time.sleep(0.3)
