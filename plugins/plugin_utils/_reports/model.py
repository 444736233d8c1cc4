# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a report shows, read from the documents of gpu_policy, gpu_info, gpu_verify, operands and gpu_labels. PRIVATE.

C(report_shapes.check) checks documents that a user has written by hand.
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, field

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.checks import Check, Document, read


@dataclass(frozen=True)
class Step:
    """A step of a plan. needs: its level; pending_reason: why it is pending, None if it is not."""

    id: str
    reason: str = ""
    needs: str = "never"
    pending_reason: str | None = None


Steps = t.Mapping[str, t.Sequence[Step]]


@dataclass(frozen=True)
class HostCheck:
    """Whether a component of a host is as planned. state: C(ok), C(pending), C(failed) or C(absent)."""

    component: str
    state: str
    detail: str = ""
    hint: str = ""


@dataclass(frozen=True)
class Host:
    """A host of a report.

    facts: those of gpu_info, None if the host was not reached; checks: None if the run ended before gpu_verify; steps,
    pending: maps of components to their steps, without components that have none.
    """

    facts: Document | None
    checks: t.Sequence[HostCheck] | None
    steps: Steps
    pending: Steps

    @classmethod
    def of(cls, host: Document) -> Host:
        """The host of C({facts, checks, steps, pending})."""
        checks = host["checks"]
        return cls(host["facts"], None if checks is None else [read(HostCheck, one) for one in checks],
                   *({name: [read(Step, one) for one in steps] for name, steps in host[key].items() if steps}
                     for key in ("steps", "pending")))


@dataclass(frozen=True)
class Change:
    """The action of a run on an object. object: such as C(DaemonSet ns/name); reasons: the fields that differ."""

    action: str
    component: str
    object: str
    reasons: t.Sequence[str] = ()


@dataclass(frozen=True)
class Cluster:
    """The cluster of a report.

    plan: C(gpu_plan.cluster), empty without a plan; server: the API server of a run without a plan; objects: None if
    operands did not run; labelled: the Nodes whose labels were changed; checks: None if gpu_verify did not run.
    """

    plan: Document = field(default_factory=dict)
    server: str = ""
    objects: t.Sequence[Change] | None = None
    labelled: t.Sequence[str] = ()
    checks: t.Sequence[Check] | None = None

    @classmethod
    def of(cls, cluster: Document) -> Cluster:
        """The cluster of C({plan, operands, labels, checks})."""
        operands, checks = cluster.get("operands") or {}, cluster.get("checks")
        objects = operands.get("objects")
        return cls(cluster.get("plan") or {}, operands.get("server") or "",
                   None if objects is None else [read(Change, one) for one in objects],
                   sorted((cluster.get("labels") or {}).get("nodes") or ()),
                   None if checks is None else [Check.of(one) for one in checks])


@dataclass(frozen=True)
class Report:
    """A report. plan: the plan of gpu_policy, None if there is none; problem: why there is none, empty with a plan;
    findings: as L(findings.Finding.as_dict) returns them."""

    plan: Document | None
    problem: str
    hosts: t.Mapping[str, Host]
    cluster: Cluster | None
    findings: t.Sequence[t.Mapping[str, str]]

    @classmethod
    def of(cls, report: Document) -> Report:
        """The report of C({plan, problem, hosts, cluster, findings})."""
        cluster = report.get("cluster")
        return cls(report.get("plan"), report.get("problem") or "",
                   {name: Host.of(host) for name, host in report["hosts"].items()},
                   Cluster.of(cluster) if cluster else None, report.get("findings") or ())
