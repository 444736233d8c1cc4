# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Finds the cause of a pod that is not ready in the table of known causes. Pure. PRIVATE."""

from __future__ import annotations

import functools
import itertools
import re
import typing as t
from dataclasses import dataclass

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._rollout.known_causes import CREATED, LOGGED, SAID, Row
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._rollout.pods import Stuck

# Lines that are searched, and characters of each.
_MOST, _LONGEST = 40, 4096


@dataclass(frozen=True)
class Cause:
    """Why a pod is not ready.

    cause: in words; hint: the next step for a user; waits_for: components of the Node that must be ready first;
    certain: whether waiting alone cannot help; do: commands for a user, that for the log first.
    """

    cause: str
    hint: str
    waits_for: t.Tuple[str, ...] = ()
    certain: bool = False
    do: t.Tuple[str, ...] = ()


def explain(stuck: Stuck, events: t.Sequence[str] = (), namespace: str = "", log: t.Sequence[str] = ()) -> Cause:
    """The likely cause of a pod that is not ready.

    events: messages of its warnings, the newest last; log: the last lines of the container that is not ready.
    """
    state = CREATED if stuck.container and not stuck.started and not stuck.reason else stuck.state
    row = _row(stuck.component, stuck.container, stuck.reason, stuck.state, state,
               "\n".join(_last_lines([stuck.reason, stuck.message]) + _last_lines(events)), "\n".join(_last_lines(log)))
    command = log_command(stuck, namespace)
    words = {"image": stuck.image or "its image", "registry": _registry(stuck.image), "node": stuck.node or "the node",
             "pod": stuck.pod, "container": stuck.container, "namespace": namespace, "log": command}
    reading = [command] if stuck.pod and stuck.container and stuck.started else []
    looking = [f"kubectl --namespace {namespace} describe pod {stuck.pod}"] if stuck.pod and not reading else []
    more = [one.format(**words) for one in row.do if stuck.node or "{node}" not in one]
    before = tuple(itertools.takewhile(lambda name: name != stuck.component, row.waits_for))
    return Cause(row.cause.format(**words), row.hint.format(**words), before, row.certain, (*reading, *looking, *more))


def log_command(stuck: Stuck, namespace: str) -> str:
    """The command that shows the log in which the cause is."""
    previous = " --previous" if of_former(stuck) else ""
    return f"kubectl --namespace {namespace} logs {stuck.pod} --container {stuck.container}{previous}"


def of_former(stuck: Stuck) -> bool:
    """Whether the cause is in the log of the container's previous instance, because it waits to be started again."""
    return stuck.restarts > 0 and stuck.failed and stuck.reason != "Error"


def _last_lines(lines: t.Sequence[str]) -> list[str]:
    """The last lines, cut to the limits, because a kubelet may send texts of any length."""
    return [line[:_LONGEST] for line in lines[-_MOST:]]


# On a thousand Nodes most pods have the same state.
@functools.lru_cache(maxsize=1024)
def _row(component: str, container: str, reason: str, state: str, ours: str, said: str, log: str) -> Row:
    """The first row of the table that matches a pod. ours: its state, or C(created); said: reason, message, events."""
    def fits(row: Row, text: str) -> bool:
        return ((not row.component or component == row.component)
                and (not row.containers or container in row.containers)
                and (not row.reasons or reason in row.reasons)
                and (not row.states or state in row.states or ours in row.states)
                and (not row.words or re.search(row.words, text, re.IGNORECASE) is not None))

    return next((row for row in SAID if fits(row, said)), None) or next(
        row for row in LOGGED if fits(row, f"{said}\n{log}"))


def _registry(image: str) -> str:
    """The registry of an image, as a container runtime finds it in the name."""
    first = image.split("/", 1)[0]
    named = "/" in image and ("." in first or ":" in first or first == "localhost")
    return first if named else "docker.io" if image else "the registry"
