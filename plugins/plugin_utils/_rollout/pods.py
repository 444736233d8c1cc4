# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Finds out why a pod is not ready, from Pod objects and from Tables of the API. Pure. PRIVATE."""

from __future__ import annotations

import datetime
import functools
import re
import typing as t
from dataclasses import dataclass

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.objects import Live, Object
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.workloads import required_terms

# Reasons of a waiting container that mean only that it has not been started yet.
_NOT_STARTED = ("PodInitializing", "ContainerCreating", "")
_AGO = re.compile(r"\((?:(?P<minutes>\d{1,9})m)?(?:(?P<seconds>\d{1,9})s)? ago\)")
# Seconds. The longest back-off of a kubelet is 5 minutes; a Table shows "5m" up to 359 seconds.
_MAX_BACKOFF = 359
# The maximum number of characters of a reason and of a message. Longer texts are cut.
_MAX_REASON, _MAX_MESSAGE = 256, 4096
# The container runs again after a failure. The API has no reason for this.
RESTARTED = "Restarted"
# Reasons of a container that has run and failed.
ENDED = ("CrashLoopBackOff", "Error", "OOMKilled", "ContainerStatusUnknown", RESTARTED)


@dataclass(frozen=True)
class NotReadyPod:
    """A pod that is not ready.

    node: empty if the pod is not scheduled; container: the first init container that is not completed, otherwise the
    first container that is not ready, empty if the API names none; state: as kubectl shows it (C(Init:1/4), C(Pending),
    C(Running)); reason, message: as in the API (C(CrashLoopBackOff)); restarts, image: the restarts and the image of
    the container; started: whether the container has run, so that it has a log; since: when the pod became not ready
    (RFC 3339).
    """

    component: str
    node: str
    pod: str
    container: str
    state: str
    reason: str = ""
    message: str = ""
    restarts: int = 0
    image: str = ""
    started: bool = True
    since: str = ""

    @property
    def failed(self) -> bool:
        """Whether the container has failed, even if it has been restarted or will be."""
        return self.reason in ENDED


def node_of(pod: Live) -> str:
    """The Node of a pod. For an unscheduled pod of a DaemonSet: the Node for which the pod was created, or empty."""
    spec = pod["spec"]
    if spec.get("nodeName"):
        return str(spec["nodeName"])
    for term in required_terms(spec) or ():
        for field in term.get("matchFields") or ():
            if field.get("key") == "metadata.name" and field.get("values"):
                return str(field["values"][0])
    return ""


def not_ready_pod(pod: Live, component: str) -> NotReadyPod:
    """Why a pod of a component is not ready. pod: the object of the API."""
    status, in_state = pod.get("status") or {}, functools.partial(_not_ready_pod, pod, component)
    if "deletionTimestamp" in pod["metadata"]:
        return in_state("Terminating")
    if status.get("phase") == "Failed":
        return in_state("Failed", reason=status.get("reason") or "", message=status.get("message") or "")
    if not pod["spec"].get("nodeName"):
        scheduled = _condition(status, "PodScheduled")
        return in_state("Pending", reason=scheduled.get("reason") or "", message=scheduled.get("message") or "")
    first = _first_init(pod)
    if first is not None:
        completed, total, container = first
        container_status = _status(status.get("initContainerStatuses"), container["name"])
        return in_state(f"Init:{completed}/{total}", container["name"], *_container_state(container_status),
                        image=container.get("image") or "")
    for container in pod["spec"]["containers"]:
        container_status = _status(status.get("containerStatuses"), container["name"])
        if not container_status.get("ready"):
            return in_state(status.get("phase") or "Pending", container["name"], *_container_state(container_status),
                            image=container.get("image") or "")
    return in_state(status.get("phase") or "Pending")


def _not_ready_pod(pod: Live, component: str, state: str, container: str = "", reason: str = "", message: str = "",
                   restarts: int = 0, started: bool = False, image: str = "") -> NotReadyPod:
    return NotReadyPod(component, node_of(pod), pod["metadata"]["name"], container, state, reason[:_MAX_REASON],
                       message.strip()[:_MAX_MESSAGE], restarts, image, started, _since(pod))


class Row(t.NamedTuple):
    """A pod as a row of the Table that the API server sends for the output of kubectl.

    ready: whether all its containers are ready (still true if its Node is lost); status: such as C(Init:1/4),
    C(CrashLoopBackOff) or C(Running); restarts: such as C(4 (2m3s ago)); node: empty if the pod is not scheduled.
    """

    name: str
    ready: bool
    status: str
    restarts: str
    node: str


def rows(table: Live) -> list[Row]:
    """The pods of a Table of the API (meta.k8s.io/v1)."""
    columns = [column["name"] for column in table.get("columnDefinitions") or ()]
    pods = []
    for row in table.get("rows") or ():
        cells = {name: str(cell) for name, cell in zip(columns, row["cells"])}
        ready, _slash, desired = cells.get("Ready", "").partition("/")
        status, node = cells.get("Status", ""), cells.get("Node", "")
        pods.append(Row(cells["Name"], ready == desired and status == "Running", status, cells.get("Restarts", ""),
                        "" if node == "<none>" else node))
    return pods


def recently_restarted(table: Live) -> dict[str, int]:
    """Maps pods to the seconds since their last restart, if it is not longer ago than the longest back-off.

    The Tables of API servers before 1.22 do not have this time.
    """
    restarted = {}
    for row in rows(table):
        age = _AGO.search(row.restarts)
        ago = 60 * int(age["minutes"] or 0) + int(age["seconds"] or 0) if age else _MAX_BACKOFF + 1
        if ago <= _MAX_BACKOFF:
            restarted[row.name] = ago
    return restarted


def running_seconds(pod: Live, ago: float) -> float:
    """For how many seconds all containers of a pod have been running, 0 if unknown.

    ago: the seconds since a container ended. The times in a status come from the clock of the kubelet, so only their
    difference is used.
    """
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    ended = [status["lastState"]["terminated"].get("finishedAt") for status in statuses
             if (status.get("lastState") or {}).get("terminated")]
    started = [((status.get("state") or {}).get("running") or {}).get("startedAt") for status in statuses]
    if not ended or not all(ended) or not all(started):
        return 0.0
    return max(ago - (max(map(_time, started)) - max(map(_time, ended))).total_seconds(), 0.0)


def _time(text: t.Any) -> datetime.datetime:
    return datetime.datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ")


def restarted_pod(pod: Live, component: str) -> NotReadyPod:
    """A pod, ready or not, with its first restarted container and the reason why this container had ended."""
    for container in pod["spec"]["containers"]:
        status = _status((pod.get("status") or {}).get("containerStatuses"), container["name"])
        if status.get("ready") and status.get("restartCount"):
            return _not_ready_pod(pod, component, "Running", container["name"], *_container_state(status),
                                  image=container.get("image") or "")
    return not_ready_pod(pod, component)


def _first_init(pod: Live) -> tuple[int, int, Object] | None:
    """(number of completed init containers, number of all, the first that is not completed); None if all are."""
    inits = pod["spec"].get("initContainers") or []
    statuses = (pod.get("status") or {}).get("initContainerStatuses")
    for completed, container in enumerate(inits):
        status = _status(statuses, container["name"])
        ended = (status.get("state") or {}).get("terminated")
        sidecar = container.get("restartPolicy") == "Always"
        if (sidecar and not status.get("started")) or (not sidecar and (ended is None or ended.get("exitCode") != 0)):
            return completed, len(inits), container
    return None


def _status(statuses: t.Iterable[Object] | None, name: str) -> Object:
    """The status of the container with this name, empty if there is none yet."""
    return next((status for status in statuses or () if status["name"] == name), {})


def _condition(status: Object, kind: str) -> Object:
    return next((condition for condition in status.get("conditions") or () if condition["type"] == kind), {})


def _since(pod: Live) -> str:
    """When the pod became not ready: the time of its condition Ready, otherwise the time of its creation (RFC 3339)."""
    ready = _condition(pod.get("status") or {}, "Ready")
    return str(ready.get("lastTransitionTime") or pod["metadata"].get("creationTimestamp") or "")


def _container_state(status: Object) -> tuple[str, str, int, bool]:
    """(reason, message, restarts, started) of a container. The message is from its last end if its state has none."""
    state, last = status.get("state") or {}, (status.get("lastState") or {}).get("terminated") or {}
    waiting, ended = state.get("waiting") or {}, state.get("terminated") or {}
    reason = waiting.get("reason") or ended.get("reason") or ""
    reason = "" if reason in _NOT_STARTED else reason
    # The container runs again after a failure. The exit code 255 is no failure: the Node was rebooted.
    if "running" in state and last.get("exitCode") not in (None, 0, 255):
        reason = RESTARTED
    message = waiting.get("message") or ended.get("message") or ""
    code = (ended or last).get("exitCode")
    # The message "back-off 5m0s restarting failed container=..." does not say why the container ended.
    if message.startswith("back-off ") and reason == "CrashLoopBackOff":
        message = ""
    if not message and code is not None:
        message = (ended or last).get("message") or f"the container ended with exit code {code}"
        if (ended or last).get("reason") == "OOMKilled":
            message = f"OOMKilled: {message}"
    restarts = int(status.get("restartCount") or 0)
    return reason, message, restarts, bool(restarts or ended or last or "running" in state)
