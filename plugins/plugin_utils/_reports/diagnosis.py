# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ranks the causes why hosts and Nodes do not work: the first cause of a machine explains the others. Pure. PRIVATE."""

from __future__ import annotations

import typing as t
from dataclasses import asdict, dataclass, field

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.components import COMPONENTS
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.wording import counted
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.checks import Problem, read
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.label_nodes import fold
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._reports.model import HostCheck, Report
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._reports.terminal import Style

# In the order in which a fault causes the next: the title of a concern, and the checks of the preflight about it. The
# concerns of all components follow, in the order in which the components are delivered.
_CONCERNS: t.Tuple[t.Tuple[str, t.Tuple[str, ...]], ...] = (
    ("host", ("facts", "variables", "policy", "journal", "profile")),
    ("hardware", ("gpu_lost", "gpu_recovery", "xid", "ecc", "nvlink", "pcie_link", "slowdown", "gpus")),
    ("driver", ("immutable", "vgpu", "foreign_driver", "nouveau", "secure_boot", "kernel_headers", "dkms", "no_driver",
                "reboot", "holders", "next_kernel", "driver_faults", "driver_end_of_life")),
    ("fabric manager", ("fabric",)),
    ("container toolkit", ("runtime", "toolkit", "nri", "containerd")),
    ("MIG", ("mig_boot",)),
)
_TITLES = {**{check: title for title, checks in _CONCERNS for check in checks},
           **{component.name: component.title for component in COMPONENTS}}
_ORDER = tuple(dict.fromkeys([*(title for title, _checks in _CONCERNS), *(one.title for one in COMPONENTS)]))
_HARDWARE, _DRIVER = "hardware", "driver"
_CLUSTER = "cluster"  # stands for problems without a Node
# The states of machines, the worst first, each with its sign in a terminal.
FAILED, WARNED, WAITING, UNKNOWN, FINE = "failed", "warned", "waiting", "unknown", "fine"
_SIGNS = {FAILED: "failed", WARNED: "warning", UNKNOWN: "none", WAITING: "pending", FINE: "ok"}
# Causes and lines of a log that a terminal shows of one machine.
_CAUSES, _LINES = 3, 3


@dataclass(frozen=True)
class Cause:
    """A cause. concern: what does not work, such as C(driver); certain: 0 for a check that has found the cause, 1 for a
    known message in a log, 2 for a component that is not as planned; waits: whether it is no fault, because a step only
    waits; warns: whether it may explain other faults, but is none itself; evidence: lines of logs."""

    concern: str
    cause: str
    fix: str = ""
    evidence: t.Tuple[str, ...] = ()
    certain: int = 0
    waits: bool = False
    warns: bool = False

    @property
    def rank(self) -> tuple[bool, int, int]:
        """The sort key: faults before what only waits, then what causes the others."""
        return self.waits, _ORDER.index(self.concern), self.certain


@dataclass(frozen=True)
class Logged:
    """What gpu_evidence has found on a host. explained: C({message, meaning, action}) of known messages; failed_tests:
    the failed tests of DCGM, empty if it has passed or has not run."""

    explained: t.Sequence[t.Mapping[str, str]] = ()
    failed_tests: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """The causes of alike machines. machines: names of hosts and Nodes; state: one of C(failed), C(warned), C(waiting),
    C(unknown) and C(fine); causes: the first explains the others."""

    machines: t.Sequence[str]
    state: str
    causes: t.Sequence[Cause] = field(default_factory=list)

    def as_dict(self) -> dict[str, t.Any]:
        """The diagnosis as JSON."""
        causes = [{key: value for key, value in asdict(one).items() if key not in ("certain",)} for one in self.causes]
        return {"machines": list(self.machines), "state": self.state, "causes": causes}


def diagnose(report: Report, logged: t.Mapping[str, Logged]) -> list[Diagnosis]:
    """The diagnoses, the worst first; machines with the same causes are one. A host and its Node are one machine.

    report: with the findings of the preflight; logged: by host, without hosts that have not answered.
    """
    hosts = (report.plan or {}).get("hosts") or {}
    names = {str((one.get("node") or {}).get("name") or host): host for host, one in hosts.items()}
    causes: dict[str, list[Cause]] = {host: _of_host(report, host, logged.get(host, Logged())) for host in report.hosts}
    planned = report.cluster.plan.get("nodes") or {} if report.cluster else {}
    for node in planned.get("gpu") or ():
        causes.setdefault(names.get(node, node), [])
    for check in report.cluster.checks or () if report.cluster else ():
        found = [_of_problem(check.component, one) for one in check.nodes if not one.waits_for]
        if not check.ok and not check.nodes:
            found = [(_CLUSTER, _of_check(read(HostCheck, vars(check))))]
        for node, cause in found:
            causes.setdefault(names.get(node, node), []).append(cause)
    for one in report.findings:
        if one["host"] not in report.hosts and one["severity"] == "error":
            causes.setdefault(names.get(one["host"], one["host"]), []).append(_of_finding(one))
    alike: dict[tuple[t.Any, ...], Diagnosis] = {}
    for name, found_causes in causes.items():
        ranked = sorted(dict.fromkeys(found_causes), key=lambda one: one.rank)
        host = report.hosts.get(name)
        state = _state(ranked, host is not None and host.checks is None)
        key = (state, *((one.concern, one.cause, one.fix) for one in ranked))
        former = alike.get(key)
        alike[key] = Diagnosis([*former.machines, name], state, former.causes) if former else Diagnosis(
            [name], state, ranked)
    return sorted(alike.values(), key=lambda one: (list(_SIGNS).index(one.state), [cause.rank for cause in one.causes]))


def _state(causes: t.Sequence[Cause], unknown: bool) -> str:
    """The state of a machine. unknown: whether it was not compared with a plan."""
    if any(not (one.waits or one.warns) for one in causes):
        return FAILED
    if causes:
        return WARNED if any(one.warns for one in causes) else WAITING
    return UNKNOWN if unknown else FINE


def _of_host(report: Report, name: str, logged: Logged) -> list[Cause]:
    """The causes on a host, unsorted."""
    checks = [one for one in report.hosts[name].checks or () if one.state != "ok"]
    found = [_of_check(one) for one in checks]
    failing = {one.concern for one in found if not one.waits}
    found += [_of_finding(one) for one in report.findings if one["host"] == name and (
        one["severity"] == "error" or one["severity"] == "warning" and (
            _title(one["check"]) == _HARDWARE or _title(one["check"]) in failing))]
    # A message that is older than a repair explains nothing: logs count only while the driver does not work.
    if _DRIVER in failing:
        found += [Cause(_DRIVER, _sentence(one["meaning"]), one["action"], (one["message"],), 1)
                  for one in logged.explained]
    if logged.failed_tests:
        found.append(Cause(_HARDWARE, f"dcgmi diag reports: {logged.failed_tests}",
                           "Read the output of the test in the support bundle (gpu_support_bundle)."))
    return found


def _of_check(check: HostCheck) -> Cause:
    return Cause(_title(check.component), _sentence(check.detail), check.hint, (), 2, check.state == "pending")


def _of_finding(one: t.Mapping[str, str]) -> Cause:
    return Cause(_title(one["check"]), one["text"], one["fix"], tuple(filter(None, [one.get("detail")])),
                 warns=one["severity"] == "warning")


def _of_problem(component: str, one: Problem) -> tuple[str, Cause]:
    """(name of the Node, cause) of a problem of a component in a cluster."""
    cause = one.cause or " ".join(filter(None, (one.container, one.state, one.reason)))
    return one.node or _CLUSTER, Cause(
        _title(component), cause, one.hint, tuple(one.log[-_LINES:]), waits=one.level == "pending")


def _title(name: str) -> str:
    """The concern of a check or component; checks of clusters are about the host."""
    return _TITLES.get(name, "host")


def _sentence(text: str) -> str:
    return text.rstrip(".")


def render(found: t.Sequence[Diagnosis], style: Style) -> str:
    """The diagnoses as text: the first cause with its fix and evidence, and the next ones in a line each."""
    machines = [(name, one.state) for one in found for name in one.machines if name != _CLUSTER]
    total, bad = len(machines), sum(state == FAILED for _name, state in machines)
    lines = [f"Diagnosis: {bad} of {counted(total, 'machine')} {'has' if bad == 1 else 'have'} a fault."]
    for one in found:
        label = f"{style.sign(_SIGNS[one.state])} {fold(one.machines)}:"
        first = one.causes[0] if one.causes else None
        text = f"{first.concern}: {first.cause}" if first else {
            UNKNOWN: "not compared with a plan", FINE: "no fault found"}[one.state]
        lines.append(style.paint(style.entry(label, text, 0), _SIGNS[one.state]))
        if first:
            lines += [style.entry("", f"→ {first.fix}", 4)] if first.fix else []
            lines += [style.text(f"    | {line}")[:style.width] for line in first.evidence[:_LINES]]
        lines += [style.entry("also", f"{also.concern}: {also.cause}", 4) for also in one.causes[1:_CAUSES]]
        if len(one.causes) > _CAUSES:
            lines.append(f"    and {counted(len(one.causes) - _CAUSES, 'further cause')}")
    return "\n".join(lines)
