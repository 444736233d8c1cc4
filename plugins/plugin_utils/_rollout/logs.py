# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The last lines of the containers that hold up a rollout: few requests, however many pods stand alike. PRIVATE."""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import GpuopsError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.hidden import masked
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.errors import ClusterError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._rollout.causes import of_former
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._rollout.pods import Stuck, where_it_stands

# Logs that are read at once; lines that are read, that are shown, and their width.
MOST, LINES, SHOWN, WIDTH = 10, 40, 12, 200
SAMPLE = "cuda-validation"
_SAMPLE_PODS = "app=nvidia-cuda-validator"
# What a kubelet gives for the log of a container that was removed meanwhile, as if it were its log.
_REMOVED = "unable to retrieve container logs for "
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Log(t.NamedTuple):
    """lines: the last of the container, the newest last; problem: why there are none; of: the pod that was read."""

    lines: t.Sequence[str] = ()
    problem: str = ""
    of: str = ""


class Reads(t.Protocol):
    """What is needed of a client (L(client.Client))."""

    def log(self, name: str, namespace: str, container: str, previous: bool = False, lines: int = 40) -> str:
        """Last lines."""

    def list(self, api_version: str, kind: str, namespace: str | None = None, label_selector: str | None = None,
             field_selector: str | None = None, metadata_only: bool = False) -> t.List[t.Dict[str, t.Any]]:
        """Objects."""

    def many(self, do: t.Callable[[t.Any], t.Any], items: t.Iterable[t.Any]) -> t.Sequence[t.Any]:
        """The same for all."""


class OnTheWay:
    """One log of each container that ends in failure, the first time that one does so, at most MOST in a run."""

    def __init__(self, client: Reads, namespace: str) -> None:
        self._client, self._namespace = client, namespace
        self._known: dict[t.Tuple[str, str], Log] = {}

    def of(self, roots: t.Sequence[Stuck]) -> dict[str, Log]:
        """By pod the log of its own, or of one whose container is the same."""
        failed = [stuck for stuck in roots if stuck.failed]
        new = {_kind(stuck): stuck for stuck in reversed(failed) if _kind(stuck) not in self._known}
        if new and len(self._known) < MOST:
            chosen = list(new.values())[:MOST - len(self._known)]
            found = read(self._client, self._namespace, chosen)
            self._known.update({_kind(stuck): found[stuck.pod] for stuck in chosen if stuck.pod in found})
        return {stuck.pod: self._known[_kind(stuck)] for stuck in failed if _kind(stuck) in self._known}


def _kind(stuck: Stuck) -> t.Tuple[str, str]:
    return stuck.component, stuck.container


def read(client: Reads, namespace: str, roots: t.Sequence[Stuck]) -> dict[str, Log]:
    """By pod the log that tells of it: its own, or that of one that stands alike. roots: pods that wait for nobody.

    One log for each kind of standing, and while that is less than MOST, of more pods of these kinds: alike in status,
    they may differ in why.
    """
    kinds: dict[t.Tuple[str, ...], list[Stuck]] = {}
    for stuck in roots:
        # One that waits for its image or configuration says nothing of it in a log of former days.
        if stuck.pod and stuck.container and stuck.started and (stuck.failed or not stuck.reason):
            kinds.setdefault((stuck.component, stuck.container, stuck.reason, stuck.message), []).append(stuck)
    turns = max(map(len, kinds.values()), default=0)
    chosen = [alike[turn] for turn in range(min(turns, MOST)) for alike in kinds.values() if turn < len(alike)][:MOST]
    answers = client.many(lambda stuck: _of(client, namespace, stuck), chosen)
    found = {stuck.pod: answer if isinstance(answer, Log) else Log(problem=_problem(answer), of=stuck.pod)
             for stuck, answer in zip(chosen, answers)}
    for alike in kinds.values():
        own = next((found[stuck.pod] for stuck in alike if stuck.pod in found), None)
        found.update({stuck.pod: own for stuck in alike if own and stuck.pod not in found})
    return found


def _of(client: Reads, namespace: str, stuck: Stuck) -> Log:
    former = of_former(stuck)
    lines = told(client.log(stuck.pod, namespace, stuck.container, former, LINES))
    if lines and lines[0].startswith(_REMOVED):
        lines = told(client.log(stuck.pod, namespace, stuck.container, not former, LINES))
    if stuck.container == SAMPLE:
        return Log((*lines, *_of_sample(client, namespace, stuck.node)), of=stuck.pod)
    return Log(lines, of=stuck.pod)


def _of_sample(client: Reads, namespace: str, node: str) -> t.Sequence[str]:
    """What the pod says that the validator starts for a CUDA program."""
    pods = client.list("v1", "Pod", namespace=namespace, label_selector=_SAMPLE_PODS,
                       field_selector=f"spec.nodeName={node}")
    if not pods:
        return []
    stand = where_it_stands(max(pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp"))), "validator")
    lines = told(client.log(stand.pod, namespace, stand.container, lines=LINES)) if stand.started else []
    return [f"{stand.pod}: {' '.join(part for part in (stand.state, stand.reason, stand.message) if part)}", *lines]


def told(text: str) -> list[str]:
    """The last lines of a log as they may be shown: without colours, empty lines, repetitions and secrets, cut."""
    lines: list[str] = []
    for line in text.split("\n"):
        # A line that is drawn again and again, such as a progress bar, counts as it was at last.
        line = masked(_COLOURS.sub("", line.rstrip().rpartition("\r")[2])).replace("\t", " ")
        line = "".join(sign for sign in line if sign.isprintable()).rstrip()
        line = line if len(line) <= WIDTH else f"{line[:WIDTH - 3]}..."
        if line and line not in lines:
            lines.append(line)
    return lines[-LINES:]


def _problem(error: GpuopsError) -> str:
    """Why a log could not be read, in one line."""
    if isinstance(error, ClusterError) and error.status == 403:
        return "its log may not be read: the user of this kubeconfig lacks the right get pods/log"
    said = " ".join(error.message.split()).rstrip(".")
    if isinstance(error, ClusterError) and error.status >= 500:
        # Before it stands the whole address.
        return f"its log cannot be read: the kubelet of the node does not answer ({said.rpartition('dial ')[2][-120:]})"
    return f"its log cannot be read: {said[:160]}"
