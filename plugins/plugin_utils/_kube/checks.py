# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The checks of a cluster's components, which L(_rollout) makes and L(_reports) prints. Pure. PRIVATE.

C(as_dict) gives the JSON of gpu_verify's result, C(of) reads it.
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, field, fields

Document = t.Mapping[str, t.Any]
# Texts by which the kind of a problem is recognized: causes, and (beginnings of) states.
LOST, OUTDATED = "the node is NotReady: its kubelet does not report to the API server", "the pod is outdated"
LAYOUT, DIFFERS = "layout ", "differs from the plan"
Model = t.TypeVar("Model")


def read(model: t.Callable[..., Model], document: Document, **nested: object) -> Model:
    """A dataclass with the values of a mapping. Unknown keys and null values are ignored. nested: values to use as is.
    """
    known = {item.name for item in fields(t.cast(t.Any, model))} - nested.keys()
    return model(**{key: value for key, value in document.items() if key in known and value is not None}, **nested)


@dataclass(frozen=True)
class Problem:
    """Why a component is not ready on one Node.

    node, pod, container: empty if unknown; state: the state of the pod as kubectl shows it, or a word for a problem
    without a pod; reason, message: as in the status of the container or pod; since: when the pod became not ready (RFC
    3339); restarts: the restarts of the container; cause, hint: the cause and what a user should do; do: commands for
    the user; log: the last lines of the container; log_problem: why there are no lines; waits_for: the component that
    must be ready first, empty for none; level: C(failed), or C(pending) if the problem is no failure of this component.
    """

    component: str = ""
    node: str = ""
    pod: str = ""
    container: str = ""
    state: str = ""
    reason: str = ""
    message: str = ""
    since: str = ""
    restarts: int = 0
    cause: str = ""
    hint: str = ""
    do: t.Sequence[str] = ()
    log: t.Sequence[str] = ()
    log_problem: str = ""
    waits_for: str = ""
    level: str = ""

    @property
    def kind(self) -> str:
        """What is the problem: C(lost), the Node; C(difference) from the plan; C(layout), a MIG layout that is not
        applied; C(outdated), a pod that is ready, but outdated; C(pod), one that is not ready."""
        if self.state == DIFFERS:
            return "difference"
        if self.state.startswith(LAYOUT):
            return "layout"
        if self.cause == LOST:
            return "lost"
        # The container is named only if it is not ready.
        return "outdated" if self.cause.startswith(OUTDATED) and not self.container else "pod"


@dataclass(frozen=True)
class SharedProblem(Problem):
    """A problem that one or more Nodes have. The inherited fields are about one of the Nodes.

    nodes: the names of the Nodes; where: the names as a short text; holds_up: maps a component that waits for this one
    to the number of Nodes on which it waits; text: the problem in one line.
    """

    nodes: t.Sequence[str] = ()
    where: str = ""
    holds_up: t.Mapping[str, int] = field(default_factory=dict)
    text: str = ""


@dataclass(frozen=True)
class Check:
    """Whether a component is ready.

    state: C(ok), C(pending), C(failed), or C(absent) if the cluster has no object of the component; detail: the state
    and its causes in one line; hint: what a user should do; desired, ready, updated: numbers of pods; nodes: the
    problems, one for each Node; causes: the same problems, one for all Nodes with the same cause.
    """

    component: str
    ok: bool = True
    state: str = "ok"
    detail: str = ""
    hint: str = ""
    desired: int = 0
    ready: int = 0
    updated: int = 0
    nodes: t.Sequence[Problem] = ()
    causes: t.Sequence[SharedProblem] = ()

    def as_dict(self) -> dict[str, t.Any]:
        """The check as JSON."""
        nodes = [{key: value for key, value in vars(problem).items() if key != "component"} for problem in self.nodes]
        return {**vars(self), "nodes": nodes, "causes": [dict(vars(cause)) for cause in self.causes]}

    @classmethod
    def of(cls, check: Document) -> Check:
        """The check of a JSON document."""
        return read(cls, check, nodes=[read(Problem, problem) for problem in check.get("nodes") or ()],
                    causes=[read(SharedProblem, cause) for cause in check.get("causes") or ()])


class Failing(t.NamedTuple):
    """A Node where a component cannot become ready without help. why: the cause."""

    node: str
    why: str


class Waiting(t.NamedTuple):
    """A Node where a component is not ready yet. container: the container that is starting, or a MIG layout."""

    node: str
    container: str


class Open(t.NamedTuple):
    """A component that is not ready yet. ready, desired: numbers of pods."""

    component: str
    ready: int
    desired: int
    failing: t.Sequence[Failing]
    waiting: t.Sequence[Waiting]


class Progress(t.NamedTuple):
    """The progress of a rollout.

    elapsed: seconds since its start; left: seconds until the timeout; done: components that became ready since the last
    report, with their numbers of pods; open: the components that are not ready, in their order; ends: why the wait
    ends, empty while it continues.
    """

    elapsed: float
    left: float
    ends: str = ""
    done: t.Sequence[t.Tuple[str, int]] = ()
    open: t.Sequence[Open] = ()
