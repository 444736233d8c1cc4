# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Everything that is known to go wrong before anything is changed, of hosts and of a cluster. Pure. PRIVATE.

The checks themselves are in L(preflight_host), L(preflight_cluster) and L(preflight_release).
"""

from __future__ import annotations

import datetime
import typing as t

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import releases
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.refusals import Unexpected
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning import (
    preflight_cluster,
    preflight_host,
    preflight_release,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning.findings import Dict, Finding, ordered

Plan = t.Mapping[str, t.Any]
Facts = t.Mapping[str, t.Any]

# A refusal by these constraints says already what these checks would say of the same host.
_SAID_BY = {"kernel.headers": "kernel_headers", "secure_boot": "secure_boot", "vgpu": "vgpu", "nvswitch": "fabric"}


def checks(plan: Plan | None, facts: t.Mapping[str, Facts | None], cluster_facts: Facts | None,
           today: datetime.date | None = None) -> list[Finding]:
    """All findings, errors first.

    plan: what gpu_policy returns, None where it refuses: then what would be delivered is not known, and hosts count as
    getting their driver here. facts: by host what gpu_info returned, None where a host could not be asked;
    cluster_facts: what read_cluster returned, None without a cluster. today: the day for ends of life.
    """
    day = today or datetime.date.today()
    release = releases.release(plan["release"]) if plan else None
    found = list(preflight_release.of_release(release)) if release else []
    for host, known in facts.items():
        found += preflight_host.of_host(host, known, plan, release, day)
    if cluster_facts is not None:
        found += preflight_cluster.of_cluster(cluster_facts, plan, release, facts)
    return ordered(found)


def refused(error: t.Mapping[str, t.Any], facts: t.Mapping[str, Facts | None], cluster_facts: Facts | None = None,
            today: datetime.date | None = None) -> list[Finding]:
    """All findings where a policy cannot be carried out. error: C(result.error) of gpu_policy."""
    refusals, kind = error.get("refusals"), error.get("kind")
    if refusals is None:
        host = "policy" if kind in ("input", "policy", Unexpected.kind) else "cluster"
        first = [Finding(host, "policy", "error", _sentence(text), _sentence(error["hint"]))
                 for text in error.get("faults") or [error["message"]]]
    else:
        first = from_refusals(refusals)
    if kind == Unexpected.kind:
        return first  # the facts may be what the plan has failed for
    said = {(host, _SAID_BY.get(constraint["id"])) for refusal in refusals or () for host in refusal["hosts"]
            for constraint in refusal.get("constraints") or ()}
    found = [one for one in checks(None, facts, cluster_facts, today) if (one.host, one.check) not in said]
    return ordered([*first, *found])


def error_of(result: t.Mapping[str, t.Any]) -> Dict:
    """The error that gpu_policy returned instead of a plan, C({kind, message, hint}); empty where there is none."""
    if not result or "hosts" in result:
        return {}
    # Where the task itself could not be run there is only a text.
    return dict(result.get("error") or {"kind": "", "message": result.get("msg") or "there is no plan", "hint": ""})


def of_result(result: t.Mapping[str, t.Any], facts: t.Mapping[str, Facts | None]) -> list[Dict]:
    """The findings that gpu_policy returned; where it has none, what its error and the facts of the hosts tell."""
    error = error_of(result)
    found = result.get("checks", error.get("checks"))
    if found is not None:
        return list(found)
    return listed(refused(error, facts) if error else checks(result or None, facts, None))


def from_refusals(refusals: t.Sequence[t.Mapping[str, t.Any]]) -> list[Finding]:
    """Refusals of resolve, C([{hosts, reason, remedy}]), as errors."""
    return [Finding(host, "policy", "error", _sentence(one["reason"]), _sentence(one["remedy"]))
            for one in refusals for host in one["hosts"]]


def of_rejected(rejected: t.Mapping[str, t.Mapping[str, str]]) -> list[Finding]:
    """Hosts and Nodes that are left out, C({NAME: {path, message, hint}}), as errors: they are not believed, have a
    variable that cannot be read, or cannot follow the policy."""
    def check(path: str) -> str:
        return {"gpu_policy": "policy", "hostvars": "variables"}.get(path.partition(".")[0], "facts")

    return [Finding(host, check(one["path"]), "error", f"it is left out: {_sentence(one['message'])}",
                    _sentence(one["hint"])) for host, one in rejected.items()]


def with_failures(found: t.Sequence[Dict], failed: t.Mapping[str, t.Mapping[str, t.Mapping[str, t.Any]]]) -> list[Dict]:
    """Findings with the errors of modules that were asked what they would do: C({HOST: {COMPONENT: error}})."""
    errors = [Finding(host, component, "error", _sentence(error["message"]), _sentence(error["hint"]))
              for host, mine in failed.items() for component, error in mine.items()]
    return [*listed(errors), *found]


def listed(found: t.Iterable[Finding]) -> list[Dict]:
    """Findings as plain data, for results and reports."""
    return [one.as_dict() for one in found]


def _sentence(text: t.Any) -> str:
    return str(text).strip().rstrip(".")
