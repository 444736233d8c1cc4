# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Refusals, which are reasons why there is no plan, and the error that has the refusals of all hosts. Pure. PRIVATE."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import GpuopsError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.untyped import Data, Value
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.wording import some_of

# Hosts that a message names for one reason.
_SHOWN = 20


class Change(t.TypedDict):
    """A change of the user that makes a plan possible. drop: id of the constraint that is lifted; also: ids of other
    constraints that must be lifted with it; result: the variables or keys to set, as text."""

    drop: str
    also: t.List[str]
    result: str


class Refused(Exception):
    """The reason why there is no plan, and the remedy. constraints: (id, text) of constraints that exclude each other;
    free: the changes of which each leads to a plan."""

    def __init__(self, reason: str, remedy: str, constraints: t.Sequence[t.Tuple[str, str]] = (),
                 free: t.Sequence[Change] = ()) -> None:
        super().__init__(reason)
        self.reason = reason
        self.remedy = remedy
        self.constraints = tuple(constraints)
        self.free = tuple(free)

    @property
    def reasons(self) -> tuple[Refused, ...]:
        """This refusal, so that code that catches both classes can read this attribute of L(Refusals)."""
        return (self,)

    def of(self, hosts: t.Sequence[str]) -> Refused:
        """The same refusal with the names of hosts in its reason: C(node-1, node-2: ...)."""
        return Refused(f"{some_of(hosts)}: {self.reason}", self.remedy, self.constraints, self.free)

    def as_dict(self, hosts: t.Sequence[str]) -> Data:
        """C({hosts, reason, remedy, constraints: [{id, text}], free: [L(Change)]})."""
        return {"hosts": list(hosts), "reason": self.reason, "remedy": self.remedy,
                "constraints": [{"id": name, "text": text} for name, text in self.constraints],
                "free": [dict(one) for one in self.free]}


class Refusals(Exception):
    """Several refusals."""

    def __init__(self, reasons: t.Sequence[Refused]) -> None:
        super().__init__()
        self.reasons = tuple(reasons)


class PolicyError(GpuopsError):
    """A well-formed policy that these hosts, or this cluster, cannot follow.

    details: C(refusals), a list with the result of L(Refused.as_dict) for each, and for a cluster C(pools), the pools
    of its plan that have a driver.
    """

    kind = "policy"


class Unexpected(GpuopsError):
    """A defect of this collection, or an exception of Ansible."""

    kind = "unexpected"


# A refusal, and the names of the hosts or Nodes that it is about.
Concerned = t.Tuple[Refused, t.Sequence[str]]


def left_out(refused: t.Iterable[Concerned]) -> dict[str, dict[str, str]]:
    """Maps each host or Node that cannot follow the policy to C({path, message, hint})."""
    found: dict[str, list[Refused]] = {}
    for reason, names in refused:
        for name in names:
            found.setdefault(name, []).append(reason)
    return {name: {"path": "gpu_policy", "message": "".join(f"{one.reason}. " for one in reasons).strip(),
                   "hint": " ".join(one.remedy for one in reasons)} for name, reasons in found.items()}


def policy_error(policy: str, release: str, refused: t.Iterable[Concerned], where: str = "",
                 **details: Value) -> PolicyError:
    """One error with all refusals. policy: its origin; release: the version; where: added to the first sentence."""
    given = list(refused)
    lines = "".join(f"\n  {some_of(hosts, _SHOWN)}: {one.reason}.\n    {one.remedy}" for one, hosts in given)
    return PolicyError(f"The policy ({policy}, release {release}) cannot be carried out{where}:{lines}\n"
                       "Nothing was changed.", refusals=[one.as_dict(hosts) for one, hosts in given], **details)
