# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The steps from the current to the desired layout. Each GPU has its own plan and gate. PRIVATE to the collection.

Step ids name GPUs by PCI address, and instances by profile and placement, so they are the same with and without a
driver.
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, field

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError, InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig.layout import (
    Board,
    Devices,
    Difference,
    Layout,
    Placement,
    difference,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig.profile_names import DesiredDevices, Target
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import PendingStep, Step, follow, gate

STOP, DESTROY, CREATE = "stop GPU clients", "destroy MIG instances", "create MIG instances"
START = "start stopped service again"
LATER = "create is false: instances are created while the operands of the Node are paused"
# Processes in pods are not signalled: only the API server knows disruption budgets, and the kubelet would restart them.
EVICT = "evict these pods: run the playbook gpuops.nvidia.mig or the module gpuops.nvidia.node_drain"
# The result of the module.
Result = t.Dict[str, t.Any]
MODE = {True: "enable MIG mode", False: "disable MIG mode"}
FINISH = "reboot to finish the MIG mode"
WAITS = "only a reboot applies the new mode, which is pending"


class Holder(t.NamedTuple):
    """A process that uses a GPU.

    gpu: PCI address; instance: id of the GPU instance; unit, container, pod: those to which the process belongs; start:
    first memory unit of the GPU instance, None for the whole GPU; compute: first slice of the compute instance, None if
    unknown.
    """

    pid: int
    name: str | None
    gpu: str
    instance: int | None
    unit: str | None
    container: str | None
    pod: str | None
    start: int | None
    compute: int | None

    def as_client(self) -> dict[str, object]:
        """JSON for the result, with the keys that gpu_info has for clients."""
        return {"pid": self.pid, "name": self.name, "gpu": self.gpu, "instance": self.instance, "unit": self.unit,
                "container": self.container}


@dataclass
class Gpu:
    """The current state of a GPU. board: None if its profiles are unknown; mode: (current, after the next reset).

    assumed: whether the state is from device tables, without a driver. told: whether the profiles are those that this
    GPU or an equal one has told; otherwise they are from device tables. holders: the processes that use the GPU, read
    only if steps disturb them. unread: why the GPU cannot be read, otherwise empty. Mode and layout of an unreadable
    GPU are unknown; nothing is planned for it.
    """

    target: Target
    board: Board | None
    mode: t.Tuple[bool, bool]
    layout: Layout = ()
    assumed: bool = False
    told: bool = True
    holders: t.List[Holder] = field(default_factory=list)
    unread: str = ""

    @property
    def pci(self) -> str:
        """The PCI address, by which steps name the GPU."""
        return self.target.pci

    def as_dict(self) -> dict[str, object]:
        """JSON for results and the journal, see layout_json."""
        return layout_json(self.mode[0], self.layout)


class Goal(t.NamedTuple):
    """The desired state of a GPU. reason: the reason in its steps."""

    enabled: bool
    layout: Layout
    reason: str


class GpuPlan(t.NamedTuple):
    """The plan of a GPU. steps: those that the level allows; pending: the others; waits: whether the new MIG mode is
    set, and waits for a reboot."""

    gpu: Gpu
    goal: Goal
    change: Difference
    steps: t.List[Step]
    pending: t.List[PendingStep]
    waits: bool = False


def layout_json(enabled: bool, layout: Layout) -> dict[str, object]:
    """JSON of a layout: `{enabled, instances: [{profile, start, compute: [[slices, start]]}]}`."""
    instances = [{"profile": item.profile, "start": item.start, "compute": [list(compute) for compute in item.compute]}
                 for item in sorted(layout, key=lambda item: item.start)]
    return {"enabled": enabled, "instances": instances}


def goal_from_json(gpu: Gpu, data: Result, path: str) -> Goal:
    """The goal from JSON of a file, see layout_json. Raises HostError if the GPU cannot have this layout."""
    try:
        layout = tuple(Placement(item["profile"], item["start"], tuple((part[0], part[1]) for part in item["compute"]))
                       for item in data["instances"])
        goal = Goal(data["enabled"], layout, "as it was before")
    except (KeyError, TypeError, IndexError):
        goal = None
    if goal is not None and not goal.layout:
        return goal
    if goal is not None and hidden(gpu):
        raise hidden_profiles(gpu)
    if goal is None or gpu.board is None or not gpu.board.holds(goal.layout):
        raise HostError(f"GPU {gpu.pci} ({gpu.target.model}) cannot have the layout that {path} contains for it.",
                        "The file was edited, or the driver has changed: run mig_config with a layout.", path=path)
    return goal


def hidden(gpu: Gpu) -> bool:
    """Whether the profiles of a GPU are unknown although it answers, see hidden_profiles."""
    return gpu.target.profiles is None and not gpu.assumed and not gpu.unread


def hidden_profiles(gpu: Gpu, path: str = "") -> InputError:
    """The error for instances on a GPU that does not tell its profiles, of a model without a table."""
    return InputError(f"the MIG profiles of GPU {gpu.pci} ({gpu.target.model}) are unknown: this driver tells them "
                      "only while MIG is on, and there is no table for this model.",
                      f"Enable MIG first: run mig_config with selected all-enabled and devices [{gpu.target.number}], "
                      "then run again with the layout. Drivers from R550 on also tell the profiles while MIG is off.",
                      path=path, value=gpu.target.device_id)


def goal_of(gpu: Gpu, desired: DesiredDevices) -> Goal:
    """The goal with the desired devices. Raises InputError if they do not fit; its hint names devices that fit."""
    if not desired.enabled or desired.devices is None or gpu.board is None:
        return Goal(desired.enabled, (), desired.path)
    layout = gpu.board.target(gpu.layout, desired.devices)
    if layout is None:
        requested = _counted(gpu.board, desired.devices)
        most = ", ".join(f"{profile.instances} x {name}" for name, profile in gpu.board.profiles.items())
        raise InputError(f"{requested} do not fit together on GPU {gpu.pci} ({gpu.target.model}).",
                         f"These fit, for example: {nearest(gpu.board, desired.devices)}. The most of each profile: "
                         f"{most}.", path=desired.path, value=requested)
    return Goal(True, layout, desired.path)


def nearest(board: Board, desired: Devices) -> str:
    """The selections of the desired devices that fit and have the most devices, at most three: `2 x 3g.40gb`."""
    fits: list[dict[tuple[str, int], int]] = [{}]
    for key, count in sorted(desired.items()):
        # If devices do not fit, they do not fit together with others either. So only those that fit are extended.
        more = fits
        for _ignored in range(count):
            grown = ({**devices, key: devices.get(key, 0) + 1} for devices in more)
            more = [devices for devices in grown if board.target((), devices)]
            fits = fits + more
            if not more:
                break
    most = max(sum(devices.values()) for devices in fits)
    return " or ".join([_counted(board, devices) for devices in fits if sum(devices.values()) == most][:3])


def _counted(board: Board, devices: Devices) -> str:
    return ", ".join(f"{count} x {board.device(*key)}" for key, count in sorted(devices.items())) or "none of them"


def words(holders: t.Iterable[Holder]) -> str:
    """Names of processes: `python (4242, train.service), python (4244, pod ml/train-0)`."""
    return ", ".join(dict.fromkeys(_word(holder) for holder in holders))


def _word(holder: Holder) -> str:
    owner = (f"pod {holder.pod}" if holder.pod else holder.unit or
             (f"container {holder.container}" if holder.container else ""))
    return f"{holder.name or 'process'} ({holder.pid}{f', {owner}' if owner else ''})"


def pods_of(holders: t.Iterable[Holder]) -> list[str]:
    """The pods of processes, each once."""
    return list(dict.fromkeys(f"pod {holder.pod}" for holder in holders if holder.pod))


def busy(placement: Placement, holders: t.Iterable[Holder]) -> Placement:
    """The GPU instance with its field busy: the compute instances that these processes use."""
    return placement._replace(busy=tuple(compute for compute in placement.compute if any(
        _on(holder, (placement._replace(compute=(compute,)),)) for holder in holders)))


def _on(holder: Holder, placements: Layout) -> bool:
    """Whether a process uses one of these compute instances. If NVML does not report which, it can be any."""
    return any(holder.start == placement.start and (
        holder.compute is None or any(first == holder.compute for _slices, first in placement.compute))
        for placement in placements)


def plan(gpu: Gpu, goal: Goal, level: str, services: t.Sequence[str] = (), create: bool = True) -> GpuPlan:
    """The steps for a GPU: stop clients, destroy instances, change the mode, create instances.

    services: units that can be stopped and started again. Other processes are signalled, but never processes in pods:
    if one of these blocks a step, all steps are pending at every level. create: if false, and the steps create
    instances, all steps are pending.
    """
    change = difference(gpu.layout, goal.layout)
    switch = gpu.mode != (goal.enabled, goal.enabled)
    steps: list[Step] = []

    def step(action: str, what: str, needs: str, **data: object) -> None:
        target = f"{gpu.pci} {what}".strip()
        assumed = gpu.assumed or action == CREATE and not gpu.told
        steps.append(Step(action, target, goal.reason, needs, assumed, {"pci": gpu.pci, **data}))

    blocking = [holder for holder in gpu.holders if switch or _on(holder, change.destroyed)]
    if blocking:
        units = [unit for unit in services if any(holder.unit == unit for holder in blocking)]
        step(STOP, words(blocking), "drain", units=units, pids=[holder.pid for holder in blocking])
    if change.destroyed and gpu.board:
        step(DESTROY, gpu.board.describe(change.destroyed), "idle", placements=change.destroyed)
    if switch:
        step(MODE[goal.enabled], "", "idle", enabled=goal.enabled)
    if change.created and gpu.board:
        names = dict.fromkeys(placement.profile for placement in change.created)
        step(CREATE, gpu.board.describe(change.created), "never", placements=change.created,
             profiles=[gpu.board.profiles[name] for name in names])
    pods = pods_of(blocking)
    allowed, pending = gate(steps, "never" if pods else level)
    if pods:
        pending[0] = pending[0].pending(f"in use by {', '.join(pods)}; {EVICT}")
    if not create and creates(allowed):
        allowed, pending = [], follow(allowed, LATER)
    return GpuPlan(gpu, goal, change, allowed, pending)


def block(planned: GpuPlan, why: str) -> GpuPlan:
    """The plan of a GPU that has its former layout again, because a process opened the GPU during the change.

    Its steps are those that stopped services; the others are pending. why: the reason of the first pending step.
    """
    done = [step for step in planned.steps if step.action == STOP]
    rest = [step for step in planned.steps if step.action != STOP]
    return planned._replace(steps=done, pending=[*follow(rest, why), *planned.pending])


def wait_for_reboot(planned: GpuPlan) -> GpuPlan:
    """The plan of a GPU whose new MIG mode only a reboot applies. Its level allows all steps.

    Its steps are those before the change of the mode, and the change unless the mode was pending before. A reboot and
    the others are pending.
    """
    at = next(index for index, step in enumerate(planned.steps) if step.action in MODE.values())
    gpu, enabled = planned.gpu, planned.goal.enabled
    finish = Step(FINISH, gpu.pci, planned.goal.reason, "reboot", data={"pci": gpu.pci})
    return planned._replace(steps=planned.steps[:at if gpu.mode[1] == enabled else at + 1], waits=True,
                            pending=[*follow([finish, *planned.steps[at + 1:]], WAITS), *planned.pending])


def creates(steps: t.Iterable[Step]) -> bool:
    """Whether one of the steps creates instances."""
    return any(step.action == CREATE for step in steps)


def disturbs(gpu: Gpu, goal: Goal) -> bool:
    """Whether the steps to the goal disturb processes that use the GPU."""
    return gpu.mode != (goal.enabled, goal.enabled) or bool(difference(gpu.layout, goal.layout).destroyed)


def devices_json(gpu: Gpu, layout: Layout) -> list[dict[str, object]]:
    """JSON of MIG devices for the result: `[{gpu, device, start}]`."""
    return [{"gpu": gpu.pci, "device": gpu.board.device(placement.profile, compute[0]), "start": placement.start}
            for placement in layout for compute in placement.compute] if gpu.board else []


def text_waiting(planned: GpuPlan) -> str:
    """A line of the diff: the state of a GPU whose new MIG mode waits for a reboot."""
    now, then = ("on" if enabled else "off" for enabled in (planned.gpu.mode[0], planned.goal.enabled))
    return f"{planned.gpu.pci} MIG {now}, {then} after a reboot\n"


def text(gpu: Gpu, goal: Goal | None = None) -> str:
    """A line of the diff: the state of a GPU, or its goal."""
    enabled, layout = (gpu.mode[0], gpu.layout) if goal is None else (goal.enabled, goal.layout)
    instances = gpu.board.describe(layout) if gpu.board else ""
    return f"{gpu.pci} MIG {'on' if enabled else 'off'}{f': {instances}' if instances else ''}\n"
