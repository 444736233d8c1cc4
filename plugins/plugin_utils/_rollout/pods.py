# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where a pod stands that is not ready. Pure: Pod objects of the API in, plain values out. PRIVATE."""

from __future__ import annotations

import datetime
import re
import typing as t
from dataclasses import dataclass

Pod = t.Mapping[str, t.Any]
# Reasons of a waiting container that say nothing more than that its turn has not come.
_TURN = ("PodInitializing", "ContainerCreating", "")
_AGO = re.compile(r"\((?:(?P<minutes>\d{1,9})m)?(?:(?P<seconds>\d{1,9})s)? ago\)")
_LONGEST_PAUSE = 359  # seconds, of the kubelet between two starts of a container that crashes: 5 minutes, cut off
# Characters of what a kubelet or a program says that are kept. Both may say as much as a request holds.
_LONGEST_WORD, _LONGEST_MESSAGE = 256, 4096
# Our word for a container that runs once more after it had failed; the API has none.
RESTARTED = "Restarted"
# Reasons of a container that has run and failed.
ENDED = ("CrashLoopBackOff", "Error", "OOMKilled", "ContainerStatusUnknown", RESTARTED)


@dataclass(frozen=True)
class Stuck:
    """A pod that is not ready.

    node: empty where none is chosen; container: the first one that is not done or not ready, empty where the pod has
    not come so far; state: as kubectl shows it (C(Init:1/4), C(Pending), C(Running)); reason: the machine's word
    (C(CrashLoopBackOff)); message: what was said besides; restarts: of that container; image: what it runs;
    started: whether that container has run, so that it has a log; since: from when on the pod is not ready (RFC 3339).
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
        """Whether its container has ended in failure, and is or waits to be started again."""
        return self.reason in ENDED


def node_of(pod: Pod) -> str:
    """The pod's node; for one of a DaemonSet that is not scheduled yet the node that it is made for."""
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


def where_it_stands(pod: Pod, component: str) -> Stuck:
    """The place of a pod that is not ready."""
    status = pod.get("status") or {}

    def at(state: str, container: str = "", reason: str = "", message: str = "", restarts: int = 0,
           started: bool = False, image: str = "") -> Stuck:
        return Stuck(component, node_of(pod), pod["metadata"]["name"], container, state, reason[:_LONGEST_WORD],
                     message.strip()[:_LONGEST_MESSAGE], restarts, image, started, _since(pod))

    if "deletionTimestamp" in pod["metadata"]:
        return at("Terminating")
    if status.get("phase") == "Failed":
        return at("Failed", reason=status.get("reason") or "", message=status.get("message") or "")
    if not pod["spec"].get("nodeName"):
        conditions: t.Sequence[t.Mapping[str, t.Any]] = status.get("conditions") or ()
        scheduled = next((one for one in conditions if one["type"] == "PodScheduled"), {})
        return at("Pending", reason=scheduled.get("reason") or "", message=scheduled.get("message") or "")
    first = _first_init(pod)
    if first is not None:
        done, total, name = first
        return at(f"Init:{done}/{total}", name, *_told(_status(status.get("initContainerStatuses"), name)),
                  image=_image(pod, "initContainers", name))
    for container in pod["spec"]["containers"]:
        told = _status(status.get("containerStatuses"), container["name"])
        if not told.get("ready"):
            return at(status.get("phase") or "Pending", container["name"], *_told(told),
                      image=container.get("image") or "")
    return at(status.get("phase") or "Pending")


class Row(t.NamedTuple):
    """A pod as the API server prints it: C(Init:1/4, CrashLoopBackOff, Running) as status, C(4 (2m3s ago)) as restarts.

    ready: whether all its containers are; those of a lost node still are. node: empty where none is chosen.
    """

    name: str
    ready: bool
    status: str
    restarts: str
    node: str


def rows(table: t.Mapping[str, t.Any]) -> list[Row]:
    """The pods of a Table."""
    columns = [column["name"] for column in table.get("columnDefinitions") or ()]
    found = []
    for row in table.get("rows") or ():
        told = {name: str(cell) for name, cell in zip(columns, row["cells"])}
        there, _slash, wanted = told.get("Ready", "").partition("/")
        status, node = told.get("Status", ""), told.get("Node", "")
        found.append(Row(told["Name"], there == wanted and status == "Running", status, told.get("Restarts", ""),
                         "" if node == "<none>" else node))
    return found


def restarted_lately(table: t.Mapping[str, t.Any]) -> dict[str, int]:
    """Pods of which a container has ended within the kubelet's longest pause between two starts: how many seconds ago.

    Servers before 1.22 print no time: none.
    """
    found = {}
    for row in rows(table):
        told = _AGO.search(row.restarts)
        ago = 60 * int(told["minutes"] or 0) + int(told["seconds"] or 0) if told else _LONGEST_PAUSE + 1
        if ago <= _LONGEST_PAUSE:
            found[row.name] = ago
    return found


def runs_since(pod: Pod, ago: float) -> float:
    """For how many seconds all containers of a pod run, of which one ended so many seconds ago; 0 where none tells.

    The kubelet says when a container ended and when it was started again; by its own clock, so that only the
    difference counts.
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


def after_a_restart(pod: Pod, component: str) -> Stuck:
    """How a pod stands that may be ready now: its container that was started again, and how that ended before."""
    for container in pod["spec"]["containers"]:
        told = _status((pod.get("status") or {}).get("containerStatuses"), container["name"])
        if told.get("ready") and told.get("restartCount"):
            reason, message, restarts, started = _told(told)
            return Stuck(component, node_of(pod), pod["metadata"]["name"], container["name"], "Running",
                         reason[:_LONGEST_WORD], message[:_LONGEST_MESSAGE], restarts,
                         container.get("image") or "", started, _since(pod))
    return where_it_stands(pod, component)


def _first_init(pod: Pod) -> tuple[int, int, str] | None:
    """(how many are done, of how many, the first that is not)."""
    inits = pod["spec"].get("initContainers") or []
    statuses = (pod.get("status") or {}).get("initContainerStatuses")
    for done, container in enumerate(inits):
        told = _status(statuses, container["name"])
        ended = (told.get("state") or {}).get("terminated")
        sidecar = container.get("restartPolicy") == "Always"
        if (sidecar and not told.get("started")) or (not sidecar and (ended is None or ended.get("exitCode") != 0)):
            return done, len(inits), container["name"]
    return None


def _status(statuses: t.Any, name: str) -> t.Mapping[str, t.Any]:
    return next((one for one in statuses or () if one["name"] == name), {})


def _image(pod: Pod, section: str, name: str) -> str:
    return next((one.get("image") or "" for one in pod["spec"][section] if one["name"] == name), "")


def _since(pod: Pod) -> str:
    """From when on the pod is not ready: since it was so last, or since it was made."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    ready: t.Mapping[str, t.Any] = next((one for one in conditions if one["type"] == "Ready"), {})
    return str(ready.get("lastTransitionTime") or pod["metadata"].get("creationTimestamp") or "")


def _told(status: t.Mapping[str, t.Any]) -> tuple[str, str, int, bool]:
    """(reason, message, restarts, started) of a container. How it ended last is told where nothing else is."""
    state, last = status.get("state") or {}, (status.get("lastState") or {}).get("terminated") or {}
    waiting, ended = state.get("waiting") or {}, state.get("terminated") or {}
    reason = waiting.get("reason") or ended.get("reason") or ""
    reason = "" if reason in _TURN else reason
    # It runs once more after it had failed: what ended it tells more than that it runs. 255: its node was restarted.
    if "running" in state and last.get("exitCode") not in (None, 0, 255):
        reason = RESTARTED
    message = waiting.get("message") or ended.get("message") or ""
    code = (ended or last).get("exitCode")
    # «back-off 5m0s restarting failed container=...» tells less than how the container ended.
    if message.startswith("back-off ") and reason == "CrashLoopBackOff":
        message = ""
    if not message and code is not None:
        message = (ended or last).get("message") or f"it ended with exit code {code}"
        if (ended or last).get("reason") == "OOMKilled":
            message = f"OOMKilled: {message}"
    restarts = int(status.get("restartCount") or 0)
    return reason, message, restarts, bool(restarts or ended or last or "running" in state)
