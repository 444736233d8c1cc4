# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads from Pod objects and Tables of the API why a pod is not ready. Pure. PRIVATE."""

from __future__ import annotations

import datetime
import functools
import re
import typing as t
from dataclasses import dataclass

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.objects import Live, Object

# Reasons of a waiting container that only say that it has not been started yet.
_TURN = ("PodInitializing", "ContainerCreating", "")
_AGO = re.compile(r"\((?:(?P<minutes>\d{1,9})m)?(?:(?P<seconds>\d{1,9})s)? ago\)")
# Seconds: the longest back-off of a kubelet is 5 minutes, and a Table shows "5m" until it shows "6m".
_LONGEST_PAUSE = 359
# The most characters of a reason and of a message, which may be of any length.
_LONGEST_WORD, _LONGEST_MESSAGE = 256, 4096
# A reason of ours: the container runs again after a failure. The API has no reason for this.
RESTARTED = "Restarted"
# Reasons of a container that has run and failed.
ENDED = ("CrashLoopBackOff", "Error", "OOMKilled", "ContainerStatusUnknown", RESTARTED)


@dataclass(frozen=True)
class Stuck:
    """A pod that is not ready.

    node: empty if it is not scheduled; container: the first one that is not ready or, of init containers, not
    completed; empty before containers are started; state: as kubectl shows it (C(Init:1/4), C(Pending), C(Running));
    reason, message: those of the API (C(CrashLoopBackOff)); restarts, image: those of the container; started: whether
    the container has run, so that it has a log; since: when the pod became not ready (RFC 3339).
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
        """Whether its container has failed, also if it has been or will be started again."""
        return self.reason in ENDED


def node_of(pod: Live) -> str:
    """The Node of a pod; of an unscheduled pod of a DaemonSet the Node for which it was created."""
    spec = pod["spec"]
    if spec.get("nodeName"):
        return str(spec["nodeName"])
    needed = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution") or {}
    for term in needed.get("nodeSelectorTerms") or ():
        for field in term.get("matchFields") or ():
            if field.get("key") == "metadata.name" and field.get("values"):
                return str(field["values"][0])
    return ""


def stuck_pod(pod: Live, component: str) -> Stuck:
    """Why a pod of a component is not ready."""
    status, at = pod.get("status") or {}, functools.partial(_stuck, pod, component)
    if "deletionTimestamp" in pod["metadata"]:
        return at("Terminating")
    if status.get("phase") == "Failed":
        return at("Failed", reason=status.get("reason") or "", message=status.get("message") or "")
    if not pod["spec"].get("nodeName"):
        scheduled = _condition(status, "PodScheduled")
        return at("Pending", reason=scheduled.get("reason") or "", message=scheduled.get("message") or "")
    first = _first_init(pod)
    if first is not None:
        done, total, container = first
        own = _status(status.get("initContainerStatuses"), container["name"])
        return at(f"Init:{done}/{total}", container["name"], *_container_state(own),
                  image=container.get("image") or "")
    for container in pod["spec"]["containers"]:
        own = _status(status.get("containerStatuses"), container["name"])
        if not own.get("ready"):
            return at(status.get("phase") or "Pending", container["name"], *_container_state(own),
                      image=container.get("image") or "")
    return at(status.get("phase") or "Pending")


def _stuck(pod: Live, component: str, state: str, container: str = "", reason: str = "", message: str = "",
           restarts: int = 0, started: bool = False, image: str = "") -> Stuck:
    return Stuck(component, node_of(pod), pod["metadata"]["name"], container, state, reason[:_LONGEST_WORD],
                 message.strip()[:_LONGEST_MESSAGE], restarts, image, started, _since(pod))


class Row(t.NamedTuple):
    """A pod as a row of the Table that the API server prints for kubectl.

    ready: whether all its containers are ready (this does not change if its Node is lost); status: such as C(Init:1/4),
    C(CrashLoopBackOff) or C(Running); restarts: such as C(4 (2m3s ago)); node: empty if it is not scheduled.
    """

    name: str
    ready: bool
    status: str
    restarts: str
    node: str


def rows(table: Live) -> list[Row]:
    """The pods of a Table of the API (meta.k8s.io/v1)."""
    columns = [column["name"] for column in table.get("columnDefinitions") or ()]
    found = []
    for row in table.get("rows") or ():
        cells = {name: str(cell) for name, cell in zip(columns, row["cells"])}
        ready, _slash, desired = cells.get("Ready", "").partition("/")
        status, node = cells.get("Status", ""), cells.get("Node", "")
        found.append(Row(cells["Name"], ready == desired and status == "Running", status, cells.get("Restarts", ""),
                         "" if node == "<none>" else node))
    return found


def restarted_lately(table: Live) -> dict[str, int]:
    """Maps a pod to the seconds since one of its containers ended, if these are less than a kubelet's longest back-off.

    The Tables of API servers before 1.22 do not have this time.
    """
    found = {}
    for row in rows(table):
        age = _AGO.search(row.restarts)
        ago = 60 * int(age["minutes"] or 0) + int(age["seconds"] or 0) if age else _LONGEST_PAUSE + 1
        if ago <= _LONGEST_PAUSE:
            found[row.name] = ago
    return found


def runs_since(pod: Live, ago: float) -> float:
    """For how many seconds all containers of a pod have been running, 0 if unknown. ago: seconds since one has ended.

    The times of a status are by the clock of the kubelet, so only their difference is used.
    """
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    ended = [one["lastState"]["terminated"].get("finishedAt") for one in statuses
             if (one.get("lastState") or {}).get("terminated")]
    started = [((one.get("state") or {}).get("running") or {}).get("startedAt") for one in statuses]
    if not ended or not all(ended) or not all(started):
        return 0.0
    return max(ago - (max(map(_time, started)) - max(map(_time, ended))).total_seconds(), 0.0)


def _time(text: t.Any) -> datetime.datetime:
    return datetime.datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ")


def after_a_restart(pod: Live, component: str) -> Stuck:
    """A pod that may be ready now: its container that was started again, and why that had ended."""
    for container in pod["spec"]["containers"]:
        own = _status((pod.get("status") or {}).get("containerStatuses"), container["name"])
        if own.get("ready") and own.get("restartCount"):
            return _stuck(pod, component, "Running", container["name"], *_container_state(own),
                          image=container.get("image") or "")
    return stuck_pod(pod, component)


def _first_init(pod: Live) -> tuple[int, int, Object] | None:
    """(number of completed init containers, number of all, the first that is not completed) or None."""
    inits = pod["spec"].get("initContainers") or []
    statuses = (pod.get("status") or {}).get("initContainerStatuses")
    for done, container in enumerate(inits):
        own = _status(statuses, container["name"])
        ended = (own.get("state") or {}).get("terminated")
        sidecar = container.get("restartPolicy") == "Always"
        if (sidecar and not own.get("started")) or (not sidecar and (ended is None or ended.get("exitCode") != 0)):
            return done, len(inits), container
    return None


def _status(statuses: t.Iterable[Object] | None, name: str) -> Object:
    """The status of a container, empty if there is none yet."""
    return next((one for one in statuses or () if one["name"] == name), {})


def _condition(status: Object, kind: str) -> Object:
    return next((one for one in status.get("conditions") or () if one["type"] == kind), {})


def _since(pod: Live) -> str:
    """When the pod became not ready, by its condition Ready; else when it was created."""
    ready = _condition(pod.get("status") or {}, "Ready")
    return str(ready.get("lastTransitionTime") or pod["metadata"].get("creationTimestamp") or "")


def _container_state(status: Object) -> tuple[str, str, int, bool]:
    """(reason, message, restarts, started) of a container, by its last end if its state has no message."""
    state, last = status.get("state") or {}, (status.get("lastState") or {}).get("terminated") or {}
    waiting, ended = state.get("waiting") or {}, state.get("terminated") or {}
    reason = waiting.get("reason") or ended.get("reason") or ""
    reason = "" if reason in _TURN else reason
    # Of a container that runs again, the reason of its failure matters. Exit code 255: the Node was rebooted.
    if "running" in state and last.get("exitCode") not in (None, 0, 255):
        reason = RESTARTED
    message = waiting.get("message") or ended.get("message") or ""
    code = (ended or last).get("exitCode")
    # The message "back-off 5m0s restarting failed container=..." does not say why the container ended.
    if message.startswith("back-off ") and reason == "CrashLoopBackOff":
        message = ""
    if not message and code is not None:
        message = (ended or last).get("message") or f"it ended with exit code {code}"
        if (ended or last).get("reason") == "OOMKilled":
            message = f"OOMKilled: {message}"
    restarts = int(status.get("restartCount") or 0)
    return reason, message, restarts, bool(restarts or ended or last or "running" in state)
