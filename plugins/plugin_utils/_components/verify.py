# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a host is as its plan says, component by component. Pure. PRIVATE."""

from __future__ import annotations

import typing as t
from dataclasses import asdict, dataclass

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._components import ON_HOSTS
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._components.component import Expected, Facts, Seen

# By component steps of its module, as plain data.
Steps = t.Mapping[str, t.Sequence[Facts]]


@dataclass(frozen=True)
class Check:
    """state: C(ok), C(pending) (it waits for something that is named), C(failed), or C(absent) (nothing is there)."""

    component: str
    state: str
    detail: str
    hint: str = ""

    @property
    def ok(self) -> bool:
        """Whether nothing is left to do."""
        return self.state == "ok"

    def as_dict(self) -> dict[str, object]:
        """C({component, ok, state, detail, hint})."""
        return {**asdict(self), "ok": self.ok}


def verify(expected: t.Mapping[str, Expected], facts: Facts, only: t.Sequence[str] | None = None,
           labels: t.Mapping[str, str] | None = None, samples: t.Sequence[Facts] | None = None) -> list[Check]:
    """Compares the plan of a host with its facts. only: these components; labels, samples: as L(Seen) has them.

    A component that nobody delivers here is left out, the driver apart: an adopted one must work too.
    """
    seen = Seen(facts, labels, samples)
    # Where labels are judged alone, facts are of the GPUs alone.
    faults = (facts.get("journals") or {}).get("faults", ())
    refused = {fault["concern"]: fault for fault in faults}
    checks = []
    for component in ON_HOSTS:
        want = expected.get(component.name)
        if want is None or (only is not None and component.name not in only):
            continue
        result = component.checked(want, seen)
        fault = refused.get(component.journal or component.name)
        if result is not None:
            check = Check(component.name, *result)
            checks.append(_refused(check, fault) if fault and want.get("placement") != "none" else check)
    return checks


def _refused(check: Check, fault: t.Mapping[str, str]) -> Check:
    """A component whose journal its module refuses, so that no run changes or repairs it."""
    more = "" if check.ok else f"; {check.detail}"
    return Check(check.component, "failed", f"{fault['message'].rstrip('.')}{more}", fault["hint"])


def with_answers(checks: t.Sequence[Check], plans: Steps, pending: Steps,
                 errors: t.Mapping[str, Facts]) -> list[Check]:
    """Checks that are ok by the facts, and by what the modules have answered in check mode are not.

    plans, pending: by component the steps of its module; errors: C({message, hint}) of those that refuse to run.
    """
    result = []
    for check in checks:
        steps, waiting = plans.get(check.component), pending.get(check.component)
        error = errors.get(check.component)
        if error:
            more = "" if check.ok else f"; {check.detail}"
            result.append(Check(check.component, "failed", f"{str(error['message']).strip().rstrip('.')}{more}",
                                str(error["hint"])))
        elif check.ok and steps:
            result.append(Check(check.component, "failed", f"a run would {_first(steps)}",
                                "Run site.yml; it repairs exactly this."))
        elif check.ok and waiting:
            result.append(_waits(check, waiting))
        else:
            result.append(check)
    return result


def _waits(check: Check, waiting: t.Sequence[Facts]) -> Check:
    """A check of what waits for these steps."""
    level = waiting[0].get("needs") or "never"  # which allows such a step, so that it waits for something else
    return Check(check.component, "pending", f"{_first(waiting)}: {waiting[0]['pending_reason']}",
                 check.hint if level == "never" else f"Allow it by gpu_disruption: {level}.")


def _first(steps: t.Sequence[Facts]) -> str:
    """The first of some steps, and how many follow."""
    return f"{steps[0]['id']}{f' and {len(steps) - 1} more' if len(steps) > 1 else ''}"


def with_pending(checks: t.Sequence[Check], pending: Steps, check_mode: bool = False) -> list[Check]:
    """Checks that are not ok because a step was not allowed become C(pending), with that reason.

    pending: by component what its module returned; what waits for the driver waits too. In check mode nothing has been
    done yet, so nothing has failed.
    """
    result = []
    for check in checks:
        waiting = pending.get(check.component) or []
        if waiting and check.state in ("failed", "absent"):
            result.append(_waits(check, waiting))
        elif pending.get("driver") and not check.ok:
            result.append(Check(check.component, "pending", f"it waits for the driver: {check.detail}"))
        elif check_mode and not check.ok:
            result.append(Check(check.component, "pending", f"check mode: {check.detail}"))
        else:
            result.append(check)
    return result
