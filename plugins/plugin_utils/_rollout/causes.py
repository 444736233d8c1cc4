# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Finds out why a pod is not ready, from the table of known causes. Pure. PRIVATE."""

from __future__ import annotations

import functools
import itertools
import re
import typing as t
from dataclasses import dataclass

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._rollout.known_causes import (
    CREATED,
    LOG_CAUSES,
    STATUS_CAUSES,
    KnownCause,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._rollout.pods import NotReadyPod

# The maximum number of lines that are searched, and of characters in each line.
_MAX_LINES, _MAX_CHARACTERS = 40, 4096


@dataclass(frozen=True)
class Cause:
    """Why a pod is not ready.

    cause: a clause without a full stop; hint: what a user should do next; waits_for: components of the Node that must
    be ready first; certain: whether the pod cannot become ready without help; do: commands for a user. The command that
    shows the log comes first.
    """

    cause: str
    hint: str
    waits_for: t.Tuple[str, ...] = ()
    certain: bool = False
    do: t.Tuple[str, ...] = ()


def explain(stuck: NotReadyPod, events: t.Sequence[str] = (), namespace: str = "", log: t.Sequence[str] = ()) -> Cause:
    """The likely cause of a pod that is not ready.

    events: the messages of the pod's events of type Warning, the newest last; log: the last lines of the container that
    is not ready.
    """
    state = CREATED if stuck.container and not stuck.started and not stuck.reason else stuck.state
    row = _row(stuck.component, stuck.container, stuck.reason, stuck.state, state,
               "\n".join(_last_lines([stuck.reason, stuck.message]) + _last_lines(events)), "\n".join(_last_lines(log)))
    log_cmd = log_command(stuck, namespace)
    values = {"image": stuck.image or "its image", "registry": _registry(stuck.image), "node": stuck.node or "the node",
              "pod": stuck.pod, "container": stuck.container, "namespace": namespace, "log": log_cmd}
    show_log = [log_cmd] if stuck.pod and stuck.container and stuck.started else []
    describe = [f"kubectl --namespace {namespace} describe pod {stuck.pod}"] if stuck.pod and not show_log else []
    commands = [command.format(**values) for command in row.do if stuck.node or "{node}" not in command]
    waits_for = tuple(itertools.takewhile(lambda name: name != stuck.component, row.waits_for))
    return Cause(row.cause.format(**values), row.hint.format(**values), waits_for, row.certain,
                 (*show_log, *describe, *commands))


def log_command(stuck: NotReadyPod, namespace: str) -> str:
    """The kubectl command that shows the log of the container, or of its previous instance if that has failed."""
    previous = " --previous" if needs_previous_log(stuck) else ""
    return f"kubectl --namespace {namespace} logs {stuck.pod} --container {stuck.container}{previous}"


def needs_previous_log(stuck: NotReadyPod) -> bool:
    """Whether the cause is in the log of the container's previous instance: the container has failed and restarted."""
    return stuck.restarts > 0 and stuck.failed and stuck.reason != "Error"


def _last_lines(lines: t.Sequence[str]) -> list[str]:
    """The last lines, cut to the limits above, because a kubelet may send texts of any length."""
    return [line[:_MAX_CHARACTERS] for line in lines[-_MAX_LINES:]]


# Cached because in a large cluster most pods have the same state.
@functools.lru_cache(maxsize=1024)
def _row(component: str, container: str, reason: str, state: str, table_state: str, messages: str, log: str,
         ) -> KnownCause:
    """The first row of the table that matches a pod.

    table_state: the state of the pod, or C(created); messages: its reason, message and events, one per line.
    """
    def fits(row: KnownCause, text: str) -> bool:
        return ((not row.component or component == row.component)
                and (not row.containers or container in row.containers)
                and (not row.reasons or reason in row.reasons)
                and (not row.states or state in row.states or table_state in row.states)
                and (not row.pattern or re.search(row.pattern, text, re.IGNORECASE) is not None))

    return next((row for row in STATUS_CAUSES if fits(row, messages)), None) or next(
        row for row in LOG_CAUSES if fits(row, f"{messages}\n{log}"))


def _registry(image: str) -> str:
    """The registry in the name of an image, by the rules of container runtimes; docker.io if the name has none."""
    first = image.split("/", 1)[0]
    has_registry = "/" in image and ("." in first or ":" in first or first == "localhost")
    return first if has_registry else "docker.io" if image else "the registry"
