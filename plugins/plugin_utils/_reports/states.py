# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The state of each host and Node, by an ordered table of rules: the first that applies decides. Pure. PRIVATE.

docs/states.md has the same table; a test compares them.
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, field, replace

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import upgrades
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.components import COMPONENTS, SOFTWARE
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.label_keys import OPERANDS, WORKLOAD
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.node_status import NodeStatus
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.checks import Check, Document, Problem
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.deploy_labels import (
    LABELS,
    MIG_FAILED,
    MIG_STATE,
    MIG_UNDER_WAY,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._reports.model import (
    Cluster,
    Host,
    HostCheck,
    NodeState,
    Report,
)

NOT_READY, UPGRADING, DEGRADED, DISABLED, READY = "NotReady", "Upgrading", "Degraded", "Disabled", "Ready"
# The states, those that need a person first.
STATES = (NOT_READY, UPGRADING, DEGRADED, DISABLED, READY)

_ORDER = tuple(component.name for component in COMPONENTS)
_TITLES = {component.name: component.title for component in COMPONENTS}
_PAUSED = "paused-"
_UPGRADES = (*upgrades.IN_PROGRESS, upgrades.REQUIRED, upgrades.FAILED)


class Found(t.NamedTuple):
    """A rule that applies. reason: one word; message: a sentence without a full stop; since: since when, empty if the
    cluster does not tell."""

    reason: str
    message: str
    since: str = ""


@dataclass(frozen=True)
class Machine:
    """What a run knows about a host, a Node, or both.

    name: that of the Node, else of the host; host: the host, None if it is not in the run; planned: its plan, None
    without one; node: the Node, None if it is none or was not read; wanted: the components that the cluster delivers on
    the Node; elsewhere: those that its host has instead; problems: (component, problem) of the Node; unready: maps
    components whose pods are not ready on unknown Nodes to the detail of their check; refused: why the plan leaves the
    host or the Node out; findings: those about the health of its GPUs; compared: whether it has been compared with a
    plan; has_plan: whether there is a plan; desired: the driver version of the plan.
    """

    name: str
    host_name: str = ""
    host: Host | None = None
    planned: Document | None = None
    node: NodeStatus | None = None
    wanted: t.FrozenSet[str] = frozenset()
    elsewhere: t.Sequence[str] = ()
    problems: t.Sequence[t.Tuple[str, Problem]] = ()
    unready: t.Mapping[str, str] = field(default_factory=dict)
    refused: str = ""
    findings: t.Sequence[t.Mapping[str, str]] = ()
    compared: bool = True
    has_plan: bool = True
    desired: str = ""

    @property
    def facts(self) -> Document | None:
        """The facts of the host, None if there are none."""
        return self.host.facts if self.host else None

    @property
    def delivered(self) -> t.Sequence[str]:
        """The components that the plan delivers on the host."""
        return (self.planned or {}).get("delivered") or ()

    @property
    def operands(self) -> t.FrozenSet[str]:
        """The components that the cluster delivers on the Node, without those that a label of the user keeps off."""
        labels = self.node.labels if self.node else {}
        return frozenset(one for one in self.wanted if labels.get(one) not in ("false", "pre-installed"))

    @property
    def running(self) -> str | None:
        """The version of the driver that is loaded, empty for none, None if it is not known."""
        if self.facts is not None:
            return str(self.facts["driver"]["loaded"] or "")
        return self.node.driver or None if self.node else None

    @property
    def reboot_pending(self) -> bool | None:
        """Whether the host waits for a reboot, None if it has no facts."""
        if self.facts is None or self.host is None:
            return None
        return bool(self.facts["driver"].get("reboot_pending")) or any(
            step.needs == "reboot" for steps in self.host.pending.values() for step in steps)

    @property
    def drift(self) -> bool | None:
        """Whether the host or the Node differs from the plan, None if it was not compared with one."""
        unknown = self.host is not None and (self.host.facts is None or self.host.checks is None)
        if not self.has_plan or not self.compared or unknown or self.refused:
            return None
        return any(rule(self) is not None for rule in (_layout_failed, _outdated, _drifts))

    def check(self, component: str) -> HostCheck | None:
        """The check of a component of the host, None if there is none."""
        return next((one for one in (self.host.checks if self.host else None) or () if one.component == component),
                    None)

    def of_kind(self, kind: str) -> list[tuple[str, Problem]]:
        """The problems of the Node of one kind: first those that do not wait for another component, then in the order
        of the components."""
        return sorted(((name, one) for name, one in self.problems if one.kind == kind), key=lambda found: (
            bool(found[1].waits_for), _ORDER.index(found[0]) if found[0] in _ORDER else -1))


Applies = t.Callable[[Machine], t.Optional[Found]]


def camel(words: str) -> str:
    """C(gpu_lost) or C(cordon-required) as one word: C(GpuLost), C(CordonRequired)."""
    return "".join(word.capitalize() for word in words.replace("-", "_").split("_"))


def _operands_disabled(one: Machine) -> Found | None:
    if one.node and not one.node.operands:
        return Found("OperandsDisabled", f"the label {OPERANDS}=false keeps all operands off")
    if one.wanted and not one.operands and not one.delivered:
        return Found("OperandsDisabled", "its deploy labels keep all operands off")
    return None


def _virtual_machines(one: Machine) -> Found | None:
    if one.node and one.node.workload:
        return Found("VirtualMachines", f"{WORKLOAD} is {one.node.workload}: no operand is delivered there")
    return None


def _nothing_planned(one: Machine) -> Found | None:
    if one.has_plan and not one.refused and not one.wanted and not (
            one.elsewhere if one.host is None else (one.planned or {}).get("delivered", True)):
        return Found("NothingPlanned", "the plan delivers no component there")
    return None


def _upgrading(one: Machine) -> Found | None:
    state = one.node.upgrade if one.node else ""
    if not one.node or state in ("", upgrades.DONE, upgrades.FAILED, upgrades.REQUIRED):
        return None
    reason = camel(state) if state in _UPGRADES else "UpgradeInProgress"
    left = f"; {one.node.left}".rstrip(".") if one.node.left else ""
    return Found(reason, f"{upgrades.STATE} is {state}{left}", one.node.held_since or one.node.upgrade_since)


def _held(one: Machine) -> Found | None:
    if one.node and one.node.held:
        return Found("HeldByRun", f"a run on {one.node.held} has taken the Node out of service to change it",
                     one.node.held_since)
    return None


def _refused(one: Machine) -> Found | None:
    return Found("PlanRefused", one.refused.rstrip(".")) if one.refused else None


def _unreachable(one: Machine) -> Found | None:
    if one.host is not None and one.host.facts is None:
        return Found("HostUnreachable", "the host has not answered: its facts are not known")
    return None


def _node_lost(one: Machine) -> Found | None:
    lost = one.of_kind("lost")
    if lost or one.node and not one.node.ready:
        since = one.node.ready_since if one.node and not one.node.ready else ""
        return Found("NodeNotReady", lost[0][1].cause if lost else "the condition Ready of the Node is not True", since)
    return None


def _no_gpu(one: Machine) -> Found | None:
    if one.facts is not None and not one.facts["gpus"]:
        return Found("NoGpuVisible", "the host has no GPU on its PCI bus")
    if one.node and one.node.gone_since:
        return Found("NoGpuVisible", "NFD sees no GPU any more", one.node.gone_since)
    if one.node and one.node.capacity and not one.node.offered:
        return Found("NoGpuVisible", f"the kubelet offers none of {one.node.capacity} GPUs or MIG devices")
    return None


def _not_loaded(one: Machine) -> Found | None:
    if one.facts is not None and not one.facts["driver"]["loaded"]:
        check = one.check("driver")
        return Found("DriverNotLoaded", check.detail if check and check.state != "ok" else
                     "no kernel module of a driver is loaded")
    return None


def _not_usable(one: Machine) -> Found | None:
    """A driver of the host, because one in a container has no libraries on the host."""
    if one.facts is None or "driver" in one.wanted:
        return None
    nvml = one.facts["driver"]["nvml"]
    errors = [str(gpu.get("error")) for gpu in one.facts["gpus"] if gpu.get("error")]
    if nvml["available"] is False:
        return Found("DriverNotUsable", f"NVML cannot be used: {nvml['error'] or 'no reason is known'}".rstrip("."))
    if errors and len(errors) == len(one.facts["gpus"]):
        return Found("DriverNotUsable", f"no GPU can be used: {errors[0]}".rstrip("."))
    return None


def _layout_pending(one: Machine) -> Found | None:
    if one.node and one.node.mig in MIG_UNDER_WAY:
        return Found("MigLayoutPending", f"a MIG layout is being applied: {MIG_STATE} is {one.node.mig}")
    return None


def _not_ready(one: Machine) -> Found | None:
    """The first component that is not ready: on the host, then in the cluster."""
    for name in _ORDER:
        fault = _fault_on_host(one, name) if name in one.delivered else ""
        if fault:
            check = one.check(name)
            return _component(name, check.detail if check and check.state != "ok" else fault)
    for name, problem in one.of_kind("pod"):
        if name in LABELS:
            what = " ".join(filter(None, (problem.container, problem.state, problem.reason)))
            return _component(name, f"{what}; {problem.cause}".rstrip("."), problem.since)
    for name in sorted(one.operands, key=_ORDER.index):
        label = one.node.labels.get(name) if one.node else None
        if label is not None and name == "mig_manager":
            continue  # only Nodes whose GPUs support MIG have this label
        if label is not None:
            text = f"the label {LABELS[name]}={label} pauses it" if label.startswith(_PAUSED) else (
                f"the label {LABELS[name]} is missing" if not label else f"the label {LABELS[name]} is {label}")
            return _component(name, text)
        if name in one.unready:
            return _component(name, one.unready[name])
    return None


def _component(name: str, message: str, since: str = "") -> Found:
    return Found(f"{camel(name)}NotReady", f"{_TITLES[name]}: {message}", since)


def _fault_on_host(one: Machine, name: str) -> str:
    """Why a component does not work on its host, empty if it does or if its check decides nothing about that. A
    component that works but is not as planned is drift."""
    facts, check = one.facts, one.check(name)
    if facts is None or check is None or check.state == "ok":
        return ""
    if name == "container_toolkit":
        if not facts["toolkit"]["version"]:
            return "not installed"
        configured = any(runtime and runtime["classes"] for runtime in facts["runtimes"].values())
        return "" if configured else "no container runtime is configured"
    if name == "cuda":
        return "" if facts["software"]["cuda"] else "not installed"
    if name in SOFTWARE:
        program = facts["software"][name]
        return "" if program and program["running"] else "the service does not run" if program else "not installed"
    return "a test has failed" if name == "validator" and check.state == "failed" else ""


def _not_compared(one: Machine) -> Found | None:
    return None if one.compared else Found("NotCompared", "it was not compared with the plan; an error above says why")


def _upgrade_required(one: Machine) -> Found | None:
    if one.node and one.node.upgrade == upgrades.REQUIRED:
        return Found("UpgradeRequired", "it waits for its turn in the upgrade of drivers; its driver works until then")
    return None


def _upgrade_failed(one: Machine) -> Found | None:
    if one.node and one.node.upgrade == upgrades.FAILED:
        return Found("UpgradeFailed", f"{upgrades.STATE} is {upgrades.FAILED}, but its driver works")
    return None


def _unhealthy(severity: str) -> Applies:
    def rule(one: Machine) -> Found | None:
        found = next((item for item in one.findings if item["severity"] == severity), None)
        if found is None:
            return None
        where = f" ({found['detail']})" if found.get("detail") else ""
        return Found(camel(found["check"]), found["text"].rstrip(".") + where)
    return rule


def _gpus_differ(one: Machine) -> Found | None:
    problem = next((problem for name, problem in one.of_kind("difference") if name == "device_plugin"), None)
    if problem:
        return Found("GpusDiffer", problem.cause.rstrip("."))
    if one.node and one.node.offered < one.node.capacity:
        return Found("GpusDiffer", f"the kubelet offers {one.node.offered} of {one.node.capacity} GPUs or MIG devices")
    return None


def _reboots(one: Machine) -> Found | None:
    return Found("RebootPending", "the host waits for a reboot") if one.reboot_pending else None


def _left(one: Machine) -> Found | None:
    return Found("LeftByRun", one.node.left.rstrip(".")) if one.node and one.node.left else None


def _layout_failed(one: Machine) -> Found | None:
    layout = next((problem for _name, problem in one.of_kind("layout")), None)
    if layout:
        return Found("MigLayoutFailed" if layout.level == "failed" else "MigLayoutPending", layout.cause.rstrip("."))
    if one.node and one.node.mig == MIG_FAILED:
        return Found("MigLayoutFailed", f"{MIG_STATE} is {MIG_FAILED}")
    return None


def _outdated(one: Machine) -> Found | None:
    found = one.of_kind("outdated")
    for name, problem in found[:1]:
        return Found("PodOutdated", f"{_TITLES.get(name, name)}: {problem.cause}".rstrip("."))
    return None


def _drifts(one: Machine) -> Found | None:
    check = next((check for name in _ORDER for check in [one.check(name)] if check and check.state != "ok"), None)
    if check:
        return Found("Drift", f"{_TITLES[check.component]}: {check.detail}".rstrip("."))
    problem = next((problem for name, problem in one.of_kind("difference") if name != "device_plugin"), None)
    return Found("Drift", problem.cause.rstrip(".")) if problem else None


def _cordoned(one: Machine) -> Found | None:
    if one.node and one.node.cordoned:
        return Found("Cordoned", "its GPUs work, but the Node is cordoned: it gets no new pods", _serves_since(one))
    return None


def _as_planned(one: Machine) -> Found | None:
    if one.has_plan:
        return Found("AsPlanned", "everything is as planned", _serves_since(one))
    return None


def _works(one: Machine) -> Found:
    return Found("NoPlan", "its driver works; there is no plan to compare it with")


def _serves_since(one: Machine) -> str:
    """Since when the validator is ready on a Node that is Ready."""
    since = one.node.valid_since if one.node else ""
    return max(since, one.node.ready_since) if one.node and since else ""


@dataclass(frozen=True)
class Rule:
    """A rule. reason: as in docs/states.md, where a word in capitals stands for others; find: why it applies, None if
    it does not."""

    state: str
    reason: str
    find: Applies


RULES: t.Tuple[Rule, ...] = (
    Rule(DISABLED, "OperandsDisabled", _operands_disabled),
    Rule(DISABLED, "VirtualMachines", _virtual_machines),
    Rule(DISABLED, "NothingPlanned", _nothing_planned),
    Rule(UPGRADING, "STEP", _upgrading),
    Rule(UPGRADING, "HeldByRun", _held),
    Rule(NOT_READY, "PlanRefused", _refused),
    Rule(NOT_READY, "HostUnreachable", _unreachable),
    Rule(NOT_READY, "NodeNotReady", _node_lost),
    Rule(NOT_READY, "NoGpuVisible", _no_gpu),
    Rule(NOT_READY, "DriverNotLoaded", _not_loaded),
    Rule(NOT_READY, "DriverNotUsable", _not_usable),
    Rule(NOT_READY, "MigLayoutPending", _layout_pending),
    Rule(NOT_READY, "COMPONENTNotReady", _not_ready),
    Rule(NOT_READY, "NotCompared", _not_compared),
    Rule(UPGRADING, "UpgradeRequired", _upgrade_required),
    Rule(DEGRADED, "UpgradeFailed", _upgrade_failed),
    Rule(DEGRADED, "CHECK", _unhealthy("error")),
    Rule(DEGRADED, "GpusDiffer", _gpus_differ),
    Rule(DEGRADED, "RebootPending", _reboots),
    Rule(DEGRADED, "CHECK", _unhealthy("warning")),
    Rule(DEGRADED, "LeftByRun", _left),
    Rule(DEGRADED, "MigLayoutFailed", _layout_failed),
    Rule(DEGRADED, "PodOutdated", _outdated),
    Rule(DEGRADED, "Drift", _drifts),
    Rule(READY, "Cordoned", _cordoned),
    Rule(READY, "AsPlanned", _as_planned),
    Rule(READY, "NoPlan", _works),
)


def state_of(one: Machine) -> NodeState:
    """The state of a machine. The last rule always applies."""
    state, found = next((rule.state, found) for rule in RULES for found in [rule.find(one)] if found is not None)
    return NodeState(one.name, state, *found, host=one.host_name, desired=one.desired, running=one.running,
                     reboot_pending=one.reboot_pending, drift=one.drift,
                     cordoned=one.node.cordoned if one.node else None)


def states(report: Report) -> list[NodeState]:
    """The states of all hosts and GPU Nodes of a report, sorted by name. A host and its Node are one."""
    return [state_of(one) for _name, one in sorted(machines(report).items())]


def machines(report: Report) -> dict[str, Machine]:
    """The machines of a report, by name. A Node whose components are all on a host that the run leaves out (--limit) is
    not among them, because nothing is known about it."""
    plan, cluster = report.plan or {}, report.cluster or Cluster()
    planned, nodes = plan.get("hosts") or {}, cluster.plan.get("nodes") or {}
    names = {host: node for node, host in (nodes.get("by_host") or {}).items()}
    names.update({host: str(one["node"]["name"]) for host, one in planned.items() if one.get("node")})
    health: dict[str, list[t.Mapping[str, str]]] = {}
    for one in report.findings:
        health.setdefault(one["host"], []).append(one)
    read = not cluster.plan.get("render_to")
    refused = {**(plan.get("rejected") or {}), **(cluster.plan.get("rejected") or {})}
    gpu = dict.fromkeys((*(nodes.get("gpu") or ()), *(cluster.plan.get("rejected") or {})) if read else ())
    on_nodes = _on_nodes(cluster, {*gpu, *names.values()} if read else ())
    found: dict[str, Machine] = {}
    for name, host in report.hosts.items():
        node = names.get(name, "")
        mine = replace(on_nodes.get(node) or Machine(name), name=node or name)
        compared = mine.compared and (host.checks is not None or name not in planned)
        found[mine.name] = replace(
            mine, host_name=name, host=host, planned=planned.get(name), findings=health.get(name, ()),
            compared=compared, has_plan=report.plan is not None, refused=_why(refused, name, node),
            desired=_on_host(planned.get(name)) or mine.desired)
    for name in gpu:
        alone = on_nodes[name]
        if name not in found and (alone.wanted or not alone.elsewhere or name in refused):
            found[name] = replace(alone, refused=_why(refused, name))
    return found


def _why(refused: t.Mapping[str, t.Mapping[str, str]], *names: str) -> str:
    """Why the plan leaves a host or Node out, empty if it does not."""
    return next((str(refused[name]["message"]) for name in names if name in refused), "")


def _on_host(planned: Document | None) -> str:
    """The version, or only the branch, of the driver that a plan delivers on a host, empty if it delivers none."""
    driver = (planned or {}).get("driver") or {}
    if driver.get("placement") != "host":
        return ""
    return str(driver.get("version") or driver.get("branch") or "")


def _on_nodes(cluster: Cluster, names: t.Iterable[str]) -> dict[str, Machine]:
    """What is known about Nodes, apart from their hosts."""
    parts, deploy = cluster.plan.get("components") or {}, cluster.plan.get("deploy") or {}
    delivered = frozenset(name for name, part in parts.items() if part.get("state") == "present") & LABELS.keys()
    without, on_host = frozenset(deploy.get("without_driver") or ()), deploy.get("on_host") or {}
    versions = {name: str(pool["driver"].get("version") or "") for pool in cluster.plan.get("pools") or ()
                for name in pool["nodes"]}
    problems: dict[str, list[tuple[str, Problem]]] = {}
    for check in cluster.checks or ():
        for problem in check.nodes:
            problems.setdefault(problem.node, []).append((check.component, problem))
    unready = {check.component: check.detail for check in cluster.checks or () if _somewhere(check)}
    found = {}
    for name in names:
        elsewhere = on_host.get(name) or ()
        wanted = delivered.difference(elsewhere, ("driver",) if name in without else ())
        # A Node that has been deleted since the plan was made is not ready.
        status = cluster.observed.get(name, NodeStatus(ready=False) if cluster.observed else None)
        found[name] = Machine(
            name, node=status, wanted=wanted, elsewhere=elsewhere, problems=problems.get(name, ()), unready=unready,
            compared=cluster.checks is not None or not wanted,
            desired=versions.get(name, "") if "driver" in wanted else "")
    return found


def _somewhere(check: Check) -> bool:
    """Whether a component is not ready on Nodes that are not known."""
    if check.state == "absent":
        return True
    known = sum(problem.kind in ("pod", "lost") and bool(problem.node) for problem in check.nodes)
    return not check.ok and known < check.desired - check.ready
