# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The findings of a preflight on hosts and in a cluster. Pure. PRIVATE.

L(preflight_host), L(preflight_health), L(preflight_cluster) and L(preflight_release) contain the checks.
"""

from __future__ import annotations

import datetime
import typing as t

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import releases
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.facts import ClusterFacts, HostFacts
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.refusals import Unexpected
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.schema import UNKNOWN_KEY
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.untyped import Data, Section
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning import (
    preflight_cluster,
    preflight_health,
    preflight_host,
    preflight_release,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning.findings import Finding, FindingDict, ordered
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning.plans import FleetPlan

# The checks that report the same problem as a refusal by these constraints.
_SAME_PROBLEM = {"kernel.headers": "kernel_headers", "secure_boot": "secure_boot", "vgpu": "vgpu", "nvswitch": "fabric"}


def checks(plan: FleetPlan | None, facts: t.Mapping[str, HostFacts | None], cluster_facts: ClusterFacts | None,
           today: datetime.date | None = None) -> list[Finding]:
    """All findings, sorted by severity.

    plan: None if the plan is refused; the checks then assume that the driver is delivered on hosts; facts: the facts by
    host, None for a host without facts; cluster_facts: None without a cluster; today: the date with which the end of
    life of a driver branch is compared, by default the current date.
    """
    day = today or datetime.date.today()
    release = releases.release(plan["release"]) if plan else None
    found = list(preflight_release.of_release(release)) if release else []
    for host, known in facts.items():
        found += preflight_host.of_host(host, known, plan, release, day)
    if cluster_facts is not None:
        found += preflight_cluster.of_cluster(cluster_facts, plan, release, facts)
    return ordered(found)


def refused(error: Section, facts: t.Mapping[str, HostFacts | None], cluster_facts: ClusterFacts | None = None,
            today: datetime.date | None = None) -> list[Finding]:
    """All findings if the plan is refused.

    error: C(result.error) of gpu_policy, C({kind, message, hint, refusals?, faults?}).
    """
    refusals, kind = error.get("refusals"), error.get("kind")
    if refusals is None:
        host = "policy" if kind in ("input", "policy", Unexpected.kind) else "cluster"
        first = [_of_fault(host, str(text), error["hint"]) for text in error.get("faults") or [error["message"]]]
    else:
        first = [Finding(host, "policy", "error", _sentence(one["reason"]), _sentence(one["remedy"]))
                 for one in refusals for host in one["hosts"]]
    if kind == Unexpected.kind:
        return first  # invalid facts may be the cause of the error, so they are not checked
    known = {(host, _SAME_PROBLEM.get(constraint["id"])) for refusal in refusals or () for host in refusal["hosts"]
             for constraint in refusal.get("constraints") or ()}
    found = [one for one in checks(None, facts, cluster_facts, today) if (one.host, one.check) not in known]
    return ordered([*first, *found])


def health(facts: t.Mapping[str, HostFacts | None]) -> list[FindingDict]:
    """The findings about the health of GPUs, which need no plan, sorted by severity. facts: see L(checks)."""
    return listed(ordered(one for host, known in facts.items() if known is not None
                          for one in preflight_health.of_host(host, known)))


def error_of(result: Section) -> Data:
    """The error in a result of gpu_policy, C({kind, message, hint}), empty if there is none."""
    if not result or "hosts" in result:
        return {}
    # If Ansible could not run the task, the result contains only a message.
    return dict(result.get("error") or {"kind": "", "message": result.get("msg") or "there is no plan", "hint": ""})


def of_result(result: Section, facts: t.Mapping[str, HostFacts | None]) -> list[FindingDict]:
    """The findings in a result of gpu_policy. If it has none, those for its error and the facts of hosts."""
    error = error_of(result)
    found = result.get("checks", error.get("checks"))
    if found is not None:
        return list(found)
    return listed(refused(error, facts) if error else checks(t.cast("FleetPlan", result) or None, facts, None))


def of_rejected(rejected: t.Mapping[str, t.Mapping[str, str]]) -> list[Finding]:
    """A finding of severity error for each rejected host and Node, whose facts or variables are invalid, or for which
    the policy is refused.

    rejected: C({NAME: {path, message, hint}}).
    """
    def check(path: str) -> str:
        return {"gpu_policy": "policy", "hostvars": "variables"}.get(path.partition(".")[0], "facts")

    return [Finding(host, check(one["path"]), "error", f"not part of the plan: {_sentence(one['message'])}",
                    _sentence(one["hint"])) for host, one in rejected.items()]


def with_failures(found: t.Sequence[FindingDict], failed: t.Mapping[str, t.Mapping[str, Section]]) -> list[FindingDict]:
    """The findings, preceded by the errors of modules in check mode. failed: C({HOST: {COMPONENT: error}})."""
    errors: dict[tuple[str, str], Finding] = {}
    for host, of_host in failed.items():
        for component, error in of_host.items():
            # Modules that did not run because of the same failure have the same message.
            errors.setdefault((host, error["message"]), Finding(
                host, component, "error", _sentence(error["message"]), _sentence(error["hint"])))
    return [*listed(errors.values()), *found]


def listed(found: t.Iterable[Finding]) -> list[FindingDict]:
    """Findings as mappings, for results and reports."""
    return [one.as_dict() for one in found]


def _of_fault(host: str, fault: str, hint: str) -> Finding:
    """A finding about a policy. The fault of an unknown key contains what to write instead."""
    text, unknown, instead = fault.partition(f"{UNKNOWN_KEY}; ")
    if not unknown:
        return Finding(host, "policy", "error", _sentence(fault), _sentence(hint))
    return Finding(host, "policy", "error", f"{text}{UNKNOWN_KEY}", _sentence(f"{instead[:1].upper()}{instead[1:]}"))


def _sentence(text: object) -> str:
    """A text without the period at its end. An ellipsis stays, because it says that a list goes on."""
    words = str(text).strip()
    return words if words.endswith("...") else words.rstrip(".")
