# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads the last log lines of containers that are not ready, with few requests even for many pods. PRIVATE."""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import GpuopsError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.hidden import without_private_keys, without_secrets
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.errors import ClusterError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._rollout.causes import needs_previous_log
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._rollout.pods import NotReadyPod, not_ready_pod

# Limits: logs that are read, lines of a log that are read, lines that are shown, characters of a line.
MOST, LINES, SHOWN, WIDTH = 10, 40, 12, 200
SAMPLE = "cuda-validation"
_SAMPLE_PODS = "app=nvidia-cuda-validator"
# A kubelet returns this line as the log of a container that has been removed.
_REMOVED = "unable to retrieve container logs for "
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Log(t.NamedTuple):
    """The end of a log. lines: the newest last; problem: why there are no lines; of: the pod whose log was read."""

    lines: t.Sequence[str] = ()
    problem: str = ""
    of: str = ""


class FirstLogs:
    """The logs that a rollout reads while it waits: for each component and container the log of the first failed pod.

    It keeps at most MOST logs.
    """

    def __init__(self, client: Client, namespace: str) -> None:
        self._client, self._namespace = client, namespace
        self._known: dict[t.Tuple[str, str], Log] = {}

    def of(self, roots: t.Sequence[NotReadyPod]) -> dict[str, Log]:
        """Maps each failed pod to its log, or to the log of the same container in another pod of its component."""
        failed = [stuck for stuck in roots if stuck.failed]
        new = {_kind(stuck): stuck for stuck in reversed(failed) if _kind(stuck) not in self._known}
        if new and len(self._known) < MOST:
            chosen = list(new.values())[:MOST - len(self._known)]
            found = read(self._client, self._namespace, chosen)
            self._known.update({_kind(stuck): found[stuck.pod] for stuck in chosen if stuck.pod in found})
        return {stuck.pod: self._known[_kind(stuck)] for stuck in failed if _kind(stuck) in self._known}


def _kind(stuck: NotReadyPod) -> t.Tuple[str, str]:
    return stuck.component, stuck.container


def read(client: Client, namespace: str, roots: t.Sequence[NotReadyPod]) -> dict[str, Log]:
    """Maps a pod to its log, or to the log of a pod with the same status.

    roots: pods that do not wait for another component. Reads one log for each status, then more up to MOST, because
    pods with the same status may have different causes.
    """
    kinds: dict[t.Tuple[str, ...], list[NotReadyPod]] = {}
    for stuck in roots:
        # A container that waits for its image or configuration has only an old log, which does not show the reason.
        if stuck.pod and stuck.container and stuck.started and (stuck.failed or not stuck.reason):
            kinds.setdefault((stuck.component, stuck.container, stuck.reason, stuck.message), []).append(stuck)
    turns = max(map(len, kinds.values()), default=0)
    chosen = [alike[turn] for turn in range(min(turns, MOST)) for alike in kinds.values() if turn < len(alike)][:MOST]
    answers = client.many(lambda stuck: _of(client, namespace, stuck), chosen)
    logs = {stuck.pod: answer if isinstance(answer, Log) else Log(problem=_problem(answer), of=stuck.pod)
            for stuck, answer in zip(chosen, answers)}
    for alike in kinds.values():
        shared = next((logs[stuck.pod] for stuck in alike if stuck.pod in logs), None)
        logs.update({stuck.pod: shared for stuck in alike if shared and stuck.pod not in logs})
    return logs


def _of(client: Client, namespace: str, stuck: NotReadyPod) -> Log:
    previous = needs_previous_log(stuck)
    lines = readable(client.log(stuck.pod, namespace, stuck.container, previous, LINES))
    if lines and lines[0].startswith(_REMOVED):
        lines = readable(client.log(stuck.pod, namespace, stuck.container, not previous, LINES))
    if stuck.container == SAMPLE:
        return Log((*lines, *_of_sample(client, namespace, stuck.node)), of=stuck.pod)
    return Log(lines, of=stuck.pod)


def _of_sample(client: Client, namespace: str, node: str) -> t.Sequence[str]:
    """The state and the last log lines of the pod in which the validator runs its CUDA program; empty without it."""
    pods = client.list("v1", "Pod", namespace=namespace, label_selector=_SAMPLE_PODS,
                       field_selector=f"spec.nodeName={node}")
    if not pods:
        return []
    newest = not_ready_pod(max(pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp"))), "validator")
    lines = readable(client.log(newest.pod, namespace, newest.container, lines=LINES)) if newest.started else []
    state = " ".join(part for part in (newest.state, newest.reason, newest.message) if part)
    return [f"{newest.pod}: {state}", *lines]


def readable(text: str) -> list[str]:
    """The last lines of a log without colours, empty lines, repeated lines and secrets, cut to WIDTH."""
    lines: list[str] = []
    for line in without_private_keys(text).split("\n"):
        # A program may overwrite a line, such as a progress bar: only the last version is kept.
        line = without_secrets(_COLOURS.sub("", line.rstrip().rpartition("\r")[2])).replace("\t", " ")
        line = "".join(character for character in line if character.isprintable()).rstrip()
        line = line if len(line) <= WIDTH else f"{line[:WIDTH - 3]}..."
        if line and line not in lines:
            lines.append(line)
    return lines[-LINES:]


def _problem(error: GpuopsError) -> str:
    """Why a log could not be read, as one line."""
    if isinstance(error, ClusterError) and error.status == 403:
        return "the log cannot be read: the user of this kubeconfig does not have the permission get pods/log"
    message = " ".join(error.message.split()).rstrip(".")
    if isinstance(error, ClusterError) and error.status >= 500:
        cause = message.rpartition("dial ")[2][-120:]  # without the URL before it
        return f"the log cannot be read: the kubelet of the node does not respond ({cause})"
    return f"the log cannot be read: {message[:160]}"
