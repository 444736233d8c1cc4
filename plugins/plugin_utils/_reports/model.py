# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a report shows, read from the documents of gpu_policy, gpu_info, gpu_verify, operands and gpu_labels. PRIVATE.

C(report_shapes.check) checks documents that a user has written by hand.
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, field

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.node_status import NodeStatus
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
    operands did not run; labelled: the Nodes whose labels were changed; checks: None if gpu_verify did not run;
    observed: the Nodes on which states depend, empty if gpu_verify did not read them.
    """

    plan: Document = field(default_factory=dict)
    server: str = ""
    objects: t.Sequence[Change] | None = None
    labelled: t.Sequence[str] = ()
    checks: t.Sequence[Check] | None = None
    observed: t.Mapping[str, NodeStatus] = field(default_factory=dict)

    @classmethod
    def of(cls, cluster: Document) -> Cluster:
        """The cluster of C({plan, operands, labels, checks, observed})."""
        operands, checks = cluster.get("operands") or {}, cluster.get("checks")
        objects = operands.get("objects")
        return cls(cluster.get("plan") or {}, operands.get("server") or "",
                   None if objects is None else [read(Change, one) for one in objects],
                   sorted((cluster.get("labels") or {}).get("nodes") or ()),
                   None if checks is None else [Check.of(one) for one in checks],
                   {name: read(NodeStatus, one) for name, one in (cluster.get("observed") or {}).items()})


@dataclass(frozen=True)
class NodeState:
    """The state of a host or Node. state: one of L(states.STATES); reason: one word; message: a sentence without a full
    stop; since: since when (RFC 3339), empty if the cluster does not tell; host: the host, empty for a Node that is no
    host of the run; desired: the version, or only the branch, of the driver in the plan, empty for none; running: the
    version that is loaded, empty for none; running, reboot_pending, drift, cordoned: None if not known.
    """

    name: str
    state: str
    reason: str
    message: str
    since: str = ""
    host: str = ""
    desired: str = ""
    running: str | None = None
    reboot_pending: bool | None = None
    drift: bool | None = None
    cordoned: bool | None = None

    def as_dict(self) -> dict[str, t.Any]:
        """C({state, reason, message, host, driver: {desired, running}, reboot_pending, drift, cordoned}), and C(since)
        if it is known."""
        return {"state": self.state, "reason": self.reason, "message": self.message,
                **({"since": self.since} if self.since else {}), "host": self.host,
                "driver": {"desired": self.desired, "running": self.running},
                "reboot_pending": self.reboot_pending, "drift": self.drift, "cordoned": self.cordoned}


@dataclass(frozen=True)
class Report:
    """A report. plan: the plan of gpu_policy, None if there is none; problem: why there is none, empty with a plan;
    findings: as L(findings.Finding.as_dict) returns them; states: those of hosts and Nodes, None if they are not
    shown."""

    plan: Document | None
    problem: str
    hosts: t.Mapping[str, Host]
    cluster: Cluster | None
    findings: t.Sequence[t.Mapping[str, str]]
    states: t.Sequence[NodeState] | None = None

    @classmethod
    def of(cls, report: Document) -> Report:
        """The report of C({plan, problem, hosts, cluster, findings})."""
        cluster = report.get("cluster")
        return cls(report.get("plan"), report.get("problem") or "",
                   {name: Host.of(host) for name, host in report["hosts"].items()},
                   Cluster.of(cluster) if cluster else None, report.get("findings") or ())
