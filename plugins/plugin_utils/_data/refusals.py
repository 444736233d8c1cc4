# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Why there is no plan: one reason, several at once, and the error that lists those of all hosts. Pure. PRIVATE."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import GpuopsError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.wording import some_of

Named = t.Tuple[str, str]
# Hosts that a message names for one reason.
_SHOWN = 20


class Refused(Exception):
    """No plan. constraints: (id, text) of those that exclude each other; free: C({drop, also, result}) of each that a
    user can change: its id, what must be changed with it, what would be the plan then."""

    def __init__(self, reason: str, remedy: str, constraints: t.Sequence[Named] = (),
                 free: t.Sequence[t.Mapping[str, t.Any]] = ()) -> None:
        super().__init__(reason)
        self.reason = reason
        self.remedy = remedy
        self.constraints = tuple(constraints)
        self.free = tuple(free)

    @property
    def reasons(self) -> tuple[Refused, ...]:
        """Itself, so that it is caught together with several (L(Refusals))."""
        return (self,)

    def of(self, hosts: t.Sequence[str]) -> Refused:
        """The same with the hosts in its reason: C(node-1, node-2: ...)."""
        return Refused(f"{some_of(hosts)}: {self.reason}", self.remedy, self.constraints, self.free)

    def as_dict(self, hosts: t.Sequence[str]) -> dict[str, t.Any]:
        """C({hosts, reason, remedy, constraints, free})."""
        return {"hosts": list(hosts), "reason": self.reason, "remedy": self.remedy,
                "constraints": [{"id": name, "text": text} for name, text in self.constraints],
                "free": [dict(one) for one in self.free]}


class Refusals(Exception):
    """Several reasons at once."""

    def __init__(self, reasons: t.Sequence[Refused]) -> None:
        super().__init__()
        self.reasons = tuple(reasons)


class PolicyError(GpuopsError):
    """A well-formed policy that these hosts, or this cluster, cannot follow.

    details: C(refusals: [{hosts, reason, remedy, constraints: [{id, text}], free: [{drop, also, result}]}]), and of a
    cluster C(pools) as far as they were worked out, as in the plan.
    """

    kind = "policy"


class Unexpected(GpuopsError):
    """A defect of this collection, or what Ansible itself has raised."""

    kind = "unexpected"


# A reason, and whom it concerns.
Concerned = t.Tuple[Refused, t.Sequence[str]]


def left_out(refused: t.Iterable[Concerned]) -> dict[str, dict[str, str]]:
    """By host or Node that cannot follow the policy C({path, message, hint}): why, and what to do."""
    found: dict[str, list[Refused]] = {}
    for reason, names in refused:
        for name in names:
            found.setdefault(name, []).append(reason)
    return {name: {"path": "gpu_policy", "message": "".join(f"{one.reason}. " for one in reasons).strip(),
                   "hint": " ".join(one.remedy for one in reasons)} for name, reasons in found.items()}


def policy_error(policy: str, release: str, refused: t.Iterable[Concerned], where: str = "",
                 **details: t.Any) -> PolicyError:
    """One error of all reasons, each with those whom it concerns. policy: where it comes from; release: its version."""
    given = list(refused)
    lines = "".join(f"\n  {some_of(hosts, _SHOWN)}: {one.reason}.\n    {one.remedy}" for one, hosts in given)
    return PolicyError(f"The policy ({policy}, release {release}) cannot be carried out{where}:{lines}\n"
                       "Nothing was changed.", refusals=[one.as_dict(hosts) for one, hosts in given], **details)
