# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From where a pod stands, and what was said of it, to why and what to do. Pure. PRIVATE."""

from __future__ import annotations

import functools
import itertools
import re
import typing as t
from dataclasses import dataclass

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._rollout.known_causes import CREATED, LOGGED, SAID, Row
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._rollout.pods import Stuck

# Lines that are looked through, and characters of each.
_MOST, _LONGEST = 40, 4096


@dataclass(frozen=True)
class Cause:
    """cause: what is likely wrong; hint: the next step; waits_for: components that come first on that node.

    certain: waiting alone cannot help; do: commands that can be pasted, the reading of the log first.
    """

    cause: str
    hint: str
    waits_for: t.Tuple[str, ...] = ()
    certain: bool = False
    do: t.Tuple[str, ...] = ()


def explain(stuck: Stuck, events: t.Sequence[str] = (), namespace: str = "", log: t.Sequence[str] = ()) -> Cause:
    """The likely cause for a pod that is not ready.

    events: messages of warnings about it, the newest last; log: the last lines of the container at which it stands.
    """
    state = CREATED if stuck.container and not stuck.started and not stuck.reason else stuck.state
    row = _row(stuck.component, stuck.container, stuck.reason, stuck.state, state,
               "\n".join(_some([stuck.reason, stuck.message]) + _some(events)), "\n".join(_some(log)))
    command = log_command(stuck, namespace)
    words = {"image": stuck.image or "its image", "registry": _registry(stuck.image), "node": stuck.node or "the node",
             "pod": stuck.pod, "container": stuck.container, "namespace": namespace, "log": command}
    reading = [command] if stuck.pod and stuck.container and stuck.started else []
    looking = [f"kubectl --namespace {namespace} describe pod {stuck.pod}"] if stuck.pod and not reading else []
    more = [one.format(**words) for one in row.do if stuck.node or "{node}" not in one]
    before = tuple(itertools.takewhile(lambda name: name != stuck.component, row.waits_for))
    return Cause(row.cause.format(**words), row.hint.format(**words), before, row.certain, (*reading, *looking, *more))


def log_command(stuck: Stuck, namespace: str) -> str:
    """How somebody reads the log that tells: of a container that ended the former one's."""
    previous = " --previous" if of_former(stuck) else ""
    return f"kubectl --namespace {namespace} logs {stuck.pod} --container {stuck.container}{previous}"


def of_former(stuck: Stuck) -> bool:
    """Whether the log that tells is that of the container before: it waits to be started again."""
    return stuck.restarts > 0 and stuck.failed and stuck.reason != "Error"


def _some(lines: t.Sequence[str]) -> list[str]:
    """As much of the last ones as is looked through: a kubelet may send texts of any length."""
    return [line[:_LONGEST] for line in lines[-_MOST:]]


# On a thousand nodes most pods stand alike.
@functools.lru_cache(maxsize=1024)
def _row(component: str, container: str, reason: str, state: str, ours: str, said: str, log: str) -> Row:
    """The first row that speaks of such a pod. ours: its state, or C(created)."""
    def fits(row: Row, text: str) -> bool:
        return ((not row.component or component == row.component)
                and (not row.containers or container in row.containers)
                and (not row.reasons or reason in row.reasons)
                and (not row.states or state in row.states or ours in row.states)
                and (not row.words or re.search(row.words, text, re.IGNORECASE) is not None))

    return next((row for row in SAID if fits(row, said)), None) or next(
        row for row in LOGGED if fits(row, f"{said}\n{log}"))


def _registry(image: str) -> str:
    """The registry of an image as the runtime reads its name."""
    first = image.split("/", 1)[0]
    named = "/" in image and ("." in first or ":" in first or first == "localhost")
    return first if named else "docker.io" if image else "the registry"
