# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compares the state of a host with the plan of each component. Pure. PRIVATE."""

from __future__ import annotations

import typing as t
from dataclasses import asdict, dataclass

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._components import ON_HOSTS
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._components.component import HostPlan, HostState
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.facts import HostFacts
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.untyped import Section

# The steps of the modules of components, by component.
Steps = t.Mapping[str, t.Sequence[Section]]


@dataclass(frozen=True)
class Check:
    """The result for a component. state, detail, hint: as in L(Result)."""

    component: str
    state: str
    detail: str
    hint: str = ""

    @property
    def ok(self) -> bool:
        """Whether the component conforms to the plan."""
        return self.state == "ok"

    def as_dict(self) -> dict[str, object]:
        """C({component, ok, state, detail, hint})."""
        return {**asdict(self), "ok": self.ok}


def verify(expected: t.Mapping[str, HostPlan], facts: HostFacts, only: t.Sequence[str] | None = None,
           labels: t.Mapping[str, str] | None = None, samples: t.Sequence[Section] | None = None) -> list[Check]:
    """Compares the state of a host with its plan (expected). only: the components to check, None for all; labels,
    samples: as in L(HostState).

    Components that are not delivered on the host are skipped, except the driver, because an adopted driver must work,
    too.
    """
    seen = HostState(facts, labels, samples)
    # If only labels are checked, the facts may contain GPUs only.
    refused = {fault["concern"]: fault for fault in (facts["journals"]["faults"] if "journals" in facts else ())}
    checks = []
    for component in ON_HOSTS:
        want = expected.get(component.name)
        if want is None or (only is not None and component.name not in only):
            continue
        result = component.checked(want, seen)
        fault = refused.get(component.journal or component.name)
        if result is not None:
            check = Check(component.name, *result)
            checks.append(_failed_check(check, fault) if fault and want.get("placement") != "none" else check)
    return checks


def _failed_check(check: Check, error: Section) -> Check:
    """The check of a component that its module refuses to change. error: the module's error, or a journal fault."""
    more = "" if check.ok else f"; {check.detail}"
    return Check(check.component, "failed", f"{str(error['message']).strip().rstrip('.')}{more}", str(error["hint"]))


def with_module_results(checks: t.Sequence[Check], plans: Steps, pending: Steps,
                        errors: t.Mapping[str, Section]) -> list[Check]:
    """The checks, combined with the results of modules in check mode, which detect more than the facts show.

    plans, pending: planned and pending steps, by component; errors: C({message, hint}) by component.
    """
    result = []
    for check in checks:
        steps, waiting = plans.get(check.component), pending.get(check.component)
        error = errors.get(check.component)
        if error:
            result.append(_failed_check(check, error))
        elif check.ok and steps:
            result.append(Check(check.component, "failed", f"a run would {_first(steps)}",
                                "Run site.yml: it repairs this."))
        elif check.ok and waiting:
            result.append(_pending_check(check, waiting))
        else:
            result.append(check)
    return result


def _pending_check(check: Check, waiting: t.Sequence[Section]) -> Check:
    """A pending check. waiting: the pending steps."""
    level = waiting[0].get("needs") or "never"  # all levels allow such a step, which waits for something else
    return Check(check.component, "pending", f"{_first(waiting)}: {waiting[0]['pending_reason']}",
                 check.hint if level == "never" else f"Set gpu_disruption: {level}.")


def _first(steps: t.Sequence[Section]) -> str:
    """The id of the first step, and the number of further steps."""
    return f"{steps[0]['id']}{f' and {len(steps) - 1} more' if len(steps) > 1 else ''}"


def with_pending(checks: t.Sequence[Check], pending: Steps, check_mode: bool = False) -> list[Check]:
    """The checks. The state of a failed check is changed to C(pending) if its component or the driver has pending
    steps.

    pending: steps by component; check_mode: whether to change all failed checks to C(pending), because nothing has been
    changed yet.
    """
    result = []
    for check in checks:
        waiting = pending.get(check.component) or []
        if waiting and check.state in ("failed", "absent"):
            result.append(_pending_check(check, waiting))
        elif pending.get("driver") and not check.ok:
            result.append(Check(check.component, "pending", f"it waits for the driver: {check.detail}"))
        elif check_mode and not check.ok:
            result.append(Check(check.component, "pending", f"check mode: {check.detail}"))
        else:
            result.append(check)
    return result
