# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From the GPUs of a host and what they shall have to steps. Each GPU is planned and gated by itself. Pure. PRIVATE.

Step ids name GPUs by PCI address and instances by profile and placement, so they are the same whether the device
was asked or, before a driver, the device tables.
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, field

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError, InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig.layout import (
    Board,
    Difference,
    Layout,
    Piece,
    Wanted,
    difference,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig.profile_names import Target, Wish
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step, gate

STOP, DESTROY, CREATE = "stop GPU clients", "destroy MIG instances", "create MIG instances"
START = "start stopped service again"
# Only the API server knows disruption budgets, and a signalled container is started again by its kubelet at once.
LATER = "create is false: operands of the Node have to learn of the instances"
EVICT = "evict through the Node: run playbook gpuops.nvidia.mig, or gpuops.nvidia.node_drain"
# A process that holds a GPU, see L(holders.read_holders).
Holder = t.Dict[str, t.Any]
MODE = {True: "enable MIG mode", False: "disable MIG mode"}


@dataclass
class Gpu:
    """A GPU as it stands. board: None where its profiles are not known; mode: (now, after the next reset).

    assumed: from device tables. holders: who holds it (L(holders.read_holders)), read only where it matters.
    unread: why it cannot be read; then nothing is known of mode and layout, and nothing is planned.
    """

    target: Target
    board: Board | None
    mode: t.Tuple[bool, bool]
    layout: Layout = ()
    assumed: bool = False
    holders: t.List[Holder] = field(default_factory=list)
    unread: str = ""

    @property
    def pci(self) -> str:
        """The address, by which steps name it."""
        return self.target.pci

    def as_dict(self) -> dict[str, t.Any]:
        """For results and the journal: C({enabled, instances: [{profile, start, compute: [[slices, start]]}]})."""
        return shape(self.mode[0], self.layout)


class Goal(t.NamedTuple):
    """How a GPU shall stand in the end, and why (words for the step)."""

    enabled: bool
    layout: Layout
    reason: str


class GpuPlan(t.NamedTuple):
    """What leads a GPU to its goal, split by the gate."""

    gpu: Gpu
    goal: Goal
    change: Difference
    steps: t.List[Step]
    pending: t.List[t.Dict[str, t.Any]]


def shape(enabled: bool, layout: Layout) -> dict[str, t.Any]:
    """See L(Gpu.as_dict)."""
    instances = [{"profile": piece.profile, "start": piece.start, "compute": [list(part) for part in piece.parts]}
                 for piece in sorted(layout, key=lambda piece: piece.start)]
    return {"enabled": enabled, "instances": instances}


def unshape(gpu: Gpu, data: t.Mapping[str, t.Any], path: str) -> Goal:
    """A goal from what L(shape) wrote to a file. Raises HostError where the GPU cannot have it."""
    try:
        layout = tuple(Piece(item["profile"], item["start"], tuple((part[0], part[1]) for part in item["compute"]))
                       for item in data["instances"])
        goal = Goal(data["enabled"], layout, "as it was before")
    except (KeyError, TypeError, IndexError):
        goal = None
    if goal is None or gpu.board is None or not gpu.board.holds(goal.layout):
        raise HostError(f"GPU {gpu.pci} ({gpu.target.model}) cannot have what {path} says of it.",
                        "Somebody has edited that file, or the driver has changed: run mig_config with a layout.",
                        path=path)
    return goal


def goal_of(gpu: Gpu, wish: Wish) -> Goal:
    """Where the wanted instances come to lie. Raises InputError where there is no way, with what there is."""
    if not wish.enabled or wish.devices is None or gpu.board is None:
        return Goal(wish.enabled, (), wish.path)
    layout = gpu.board.target(gpu.layout, wish.devices)
    if layout is None:
        asked = _counted(gpu.board, wish.devices)
        most = ", ".join(f"{profile.instances} x {name}" for name, profile in gpu.board.profiles.items())
        raise InputError(f"{asked} do not fit together on GPU {gpu.pci} ({gpu.target.model}).",
                         f"What fits, for instance: {nearest(gpu.board, wish.devices)}. At most: {most}.",
                         path=wish.path, value=asked)
    return Goal(True, layout, wish.path)


def nearest(board: Board, wanted: Wanted) -> str:
    """The wanted devices with as few as possible left out, at most three ways: C(1 x 4g.40gb or 2 x 3g.40gb)."""
    fits: list[dict[tuple[str, int], int]] = [{}]
    for key, count in sorted(wanted.items()):
        # What does not fit does not fit with more beside it either, so only what fits is built upon.
        more = fits
        for _ignored in range(count):
            more = [grown for grown in ({**one, key: one.get(key, 0) + 1} for one in more) if board.target((), grown)]
            fits = fits + more
            if not more:
                break
    most = max(sum(one.values()) for one in fits)
    return " or ".join(_counted(board, one) for one in [one for one in fits if sum(one.values()) == most][:3])


def _counted(board: Board, devices: Wanted) -> str:
    return ", ".join(f"{count} x {board.device(*key)}" for key, count in sorted(devices.items())) or "none of them"


def words(holders: t.Iterable[Holder]) -> str:
    """Such as C(python (4242, train.service), python (4243, container 0123456789ab), python (4244, pod ml/train-0))."""
    return ", ".join(dict.fromkeys(_word(holder) for holder in holders))


def _word(holder: Holder) -> str:
    owner = (f"pod {holder['pod']}" if holder["pod"] else holder["unit"] or
             (f"container {holder['container']}" if holder["container"] else ""))
    return f"{holder['name'] or 'process'} ({holder['pid']}{f', {owner}' if owner else ''})"


def pods_of(holders: t.Iterable[Holder]) -> list[str]:
    """The pods among the holders, each once."""
    return list(dict.fromkeys(f"pod {holder['pod']}" for holder in holders if holder["pod"]))


def busy(piece: Piece, holders: t.Iterable[Holder]) -> Piece:
    """The piece with the compute instances marked on which somebody's process runs."""
    return piece._replace(busy=tuple(part for part in piece.parts if any(
        _on(holder, (piece._replace(parts=(part,)),)) for holder in holders)))


def _on(holder: Holder, pieces: Layout) -> bool:
    """Whether a holder uses one of these parts. Where NVML does not tell the compute instance, it may be any."""
    return any(holder["start"] == piece.start and (
        holder["part"] is None or any(part[1] == holder["part"] for part in piece.parts)) for piece in pieces)


def starts(units: t.Iterable[str]) -> list[Step]:
    """The steps at the end of a run that start stopped services again, the last one first."""
    return [Step(START, unit, "it was stopped while MIG changes") for unit in reversed(list(units))]


def plan(gpu: Gpu, goal: Goal, level: str, services: t.Sequence[str] = (), create: bool = True) -> GpuPlan:
    """The steps for a GPU: stop clients, destroy, mode, create; those that level forbids are pending.

    services: units among the holders that can be stopped and started again; other holders are sent a signal. Processes
    in pods never are: where one is in the way, all steps are pending at every level. create: whether instances may be
    created; without that all steps are pending that would end with it.
    """
    change = difference(gpu.layout, goal.layout)
    turn = gpu.mode != (goal.enabled, goal.enabled)
    steps: list[Step] = []

    def step(action: str, what: str, needs: str, **data: t.Any) -> None:
        target = f"{gpu.pci} {what}".strip()
        steps.append(Step(action, target, goal.reason, needs, gpu.assumed, {"pci": gpu.pci, **data}))

    in_the_way = [holder for holder in gpu.holders if turn or _on(holder, change.destroyed)]
    if in_the_way:
        units = [unit for unit in services if any(holder["unit"] == unit for holder in in_the_way)]
        step(STOP, words(in_the_way), "drain", units=units, pids=[holder["pid"] for holder in in_the_way])
    if change.destroyed and gpu.board:
        step(DESTROY, gpu.board.describe(change.destroyed), "idle", pieces=change.destroyed)
    if turn:
        step(MODE[goal.enabled], "", "idle", enabled=goal.enabled)
    if change.created and gpu.board:
        step(CREATE, gpu.board.describe(change.created), "never", pieces=change.created)
    pods = pods_of(in_the_way)
    allowed, pending = gate(steps, "never" if pods else level)
    if pods:
        pending[0]["pending_reason"] = f"in use by {', '.join(pods)}; {EVICT}"
    if not create and creates(allowed):
        allowed, pending = [], _wait(allowed, LATER)
    return GpuPlan(gpu, goal, change, allowed, pending)


def held_up(planned: GpuPlan, why: str) -> GpuPlan:
    """The plan of a GPU that has its former layout, because somebody has come to use it while it was carried out. What
    it has stopped for that is done, the rest is pending."""
    done = [step for step in planned.steps if step.action == STOP]
    rest = [step for step in planned.steps if step.action != STOP]
    return planned._replace(steps=done, pending=[*_wait(rest, why), *planned.pending])


def _wait(steps: t.Sequence[Step], why: str) -> list[dict[str, t.Any]]:
    """Steps as pending ones, the first for a reason, and those that follow it."""
    return [{**step.as_dict(), "pending_reason": f"it follows '{steps[0].id}'" if at else why}
            for at, step in enumerate(steps)]


def creates(steps: t.Iterable[Step]) -> bool:
    """Whether instances are created."""
    return any(step.action == CREATE for step in steps)


def disturbs(gpu: Gpu, goal: Goal) -> bool:
    """Whether reaching the goal takes anything away, so that it matters who uses the GPU."""
    return gpu.mode != (goal.enabled, goal.enabled) or bool(difference(gpu.layout, goal.layout).destroyed)


def moved(gpu: Gpu, layout: Layout) -> list[dict[str, t.Any]]:
    """Compute instances for the result, C([{gpu, device, start}])."""
    return [{"gpu": gpu.pci, "device": gpu.board.device(piece.profile, part[0]), "start": piece.start}
            for piece in layout for part in piece.parts] if gpu.board else []


def text(gpu: Gpu, goal: Goal | None = None) -> str:
    """A GPU as a line, for the diff; goal: as it will be."""
    enabled, layout = (gpu.mode[0], gpu.layout) if goal is None else (goal.enabled, goal.layout)
    lies = gpu.board.describe(layout) if gpu.board else ""
    return f"{gpu.pci} MIG {'on' if enabled else 'off'}{f': {lies}' if lies else ''}\n"
