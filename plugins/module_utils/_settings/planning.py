# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan for the settings of GPUs: the changes, and what values a GPU accepts. Pure. PRIVATE to the collection."""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, field

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig.profile_names import Target
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import (
    PendingStep,
    Step,
    allows,
    level_too_low,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._settings.declared import (
    ALL,
    APPLICATIONS,
    COMPUTE_MODE,
    ECC,
    GRAPHICS_LOCK,
    LOCKS,
    MEMORY_LOCK,
    PERSISTENCE,
    POWER_LIMIT,
    SETTINGS,
    Value,
    Wanted,
    milliwatts,
    text,
    watts,
)

# When a change takes effect.
NOW, RESET = "now", "reset"
_LABELS = {PERSISTENCE: "persistence mode", ECC: "ECC mode", COMPUTE_MODE: "compute mode", POWER_LIMIT: "power limit",
           APPLICATIONS: "application clocks", MEMORY_LOCK: "memory clocks", GRAPHICS_LOCK: "graphics clocks"}
# What the driver forgets when no program has the GPU open and persistence is off.
_FORGOTTEN = tuple(name for name in SETTINGS if name not in (PERSISTENCE, ECC))
_SHOWN = 12


@dataclass
class Limits:
    """What a GPU accepts, in milliwatts and MHz; None or empty if unknown. graphics: by memory clock."""

    power: t.Optional[t.Tuple[int, int]] = None
    graphics: t.Dict[int, t.List[int]] = field(default_factory=dict)


@dataclass
class Gpu:
    """A GPU. values: its settings by name; missing: why it does not have a setting; ecc_current: the mode of ECC now;
    processes: what uses it, such as C(python3 (1234)). assumed: its settings cannot be read yet."""

    target: Target
    values: t.Dict[str, Value] = field(default_factory=dict)
    missing: t.Dict[str, str] = field(default_factory=dict)
    ecc_current: t.Optional[bool] = None
    processes: t.List[str] = field(default_factory=list)
    limits: Limits = field(default_factory=Limits)
    assumed: bool = False

    @property
    def pci(self) -> str:
        """The PCI address."""
        return self.target.pci

    @property
    def name(self) -> str:
        """For messages."""
        return f"GPU {self.pci} ({self.target.model})"


@dataclass(frozen=True)
class Change:
    """One change of one setting. before: None if it is unknown or not locked; effect: C(now), or C(reset) for the next
    reset of the GPU or reboot of the host; path: the entry that declares it, empty for a former value."""

    pci: str
    uuid: str
    setting: str
    before: Value
    after: Value
    effect: str
    path: str

    @property
    def action(self) -> str:
        """The action of the step."""
        verb = "set" if self.path else "restore"
        if self.setting in LOCKS:
            verb = "unlock" if self.after is None else "lock"
        return f"{verb} {_LABELS[self.setting]}"

    def as_dict(self) -> dict[str, t.Any]:
        """The change in results."""
        return {"gpu": self.pci, "uuid": self.uuid, "setting": self.setting, "from": self.before, "to": self.after,
                "effect": self.effect}

    def step(self, gpu: Gpu) -> Step:
        """The step that makes it."""
        reason = f"it is {text(self.setting, self.before)}" if not gpu.assumed else "it cannot be read yet"
        if not self.path:
            reason += ", and is not declared any more"
        target = self.pci if self.after is None else f"{self.pci} {text(self.setting, self.after)}"
        return Step(self.action, target, reason, needs(self, gpu), gpu.assumed, {"change": self})


def needs(change: Change, gpu: Gpu) -> str:
    """The level of gpu_disruption that a change needs. Only a compute mode that forbids what runs now is more than
    never: running programs go on, but they and their workers cannot open the GPU again."""
    limit = {"exclusive_process": 1, "prohibited": 0}.get(str(change.after)) if change.setting == COMPUTE_MODE else None
    return "drain" if limit is not None and len(gpu.processes) > limit else "never"


def supported(gpu: Gpu, wanted: t.Mapping[str, Wanted]) -> tuple[dict[str, Wanted], list[str]]:
    """C((the settings that the GPU has, notes)). Raises InputError if it lacks one that is declared for it by name.

    An entry for all GPUs applies to the GPUs that have its settings; a note names the others.
    """
    kept, notes = {}, []
    for name, one in wanted.items():
        why = gpu.missing.get(name)
        if why is None:
            kept[name] = one
        elif one.kind == ALL:
            notes.append(f"{one.path}.{name} does not apply to {gpu.name}: {why}.")
        else:
            raise InputError(f"{gpu.name} does not have this setting: {why}.",
                             "Remove it from the entry, or declare it for other GPUs.", path=f"{one.path}.{name}",
                             value=one.value, gpu=gpu.pci)
    return kept, notes


def check(gpu: Gpu, wanted: t.Mapping[str, Wanted]) -> None:
    """Raises InputError, with what is allowed, if the GPU does not accept a value."""
    for name, one in wanted.items():
        path = f"{one.path}.{name}"
        if name == POWER_LIMIT and gpu.limits.power:
            low, high = gpu.limits.power
            if not low <= milliwatts(one.value) <= high:
                raise InputError(f"{text(name, one.value)} is outside of the range of {gpu.name}.",
                                 f"Allowed: {watts(low)} to {watts(high)} W.", path=path, value=one.value,
                                 allowed=[watts(low), watts(high)], gpu=gpu.pci)
        elif isinstance(one.value, dict) and gpu.limits.graphics:
            _check_clocks(gpu, name, one.value, path)


def _check_clocks(gpu: Gpu, name: str, value: t.Mapping[str, int], path: str) -> None:
    memory = sorted(gpu.limits.graphics, reverse=True)
    if name == APPLICATIONS:
        _require(gpu, value["memory"], memory, f"{path}.memory")
        _require(gpu, value["graphics"], gpu.limits.graphics[value["memory"]], f"{path}.graphics")
        return
    graphics = {clock for clocks in gpu.limits.graphics.values() for clock in clocks}
    clocks = sorted(graphics) if name == GRAPHICS_LOCK else sorted(memory)
    for key in ("min", "max"):
        if clocks and not clocks[0] <= value[key] <= clocks[-1]:
            raise InputError(f"{value[key]} MHz is outside of the range of {gpu.name}.",
                             f"Allowed: {clocks[0]} to {clocks[-1]} MHz.", path=f"{path}.{key}", value=value[key],
                             allowed=[clocks[0], clocks[-1]], gpu=gpu.pci)


def _require(gpu: Gpu, clock: int, clocks: t.Sequence[int], path: str) -> None:
    if not clocks or clock in clocks:
        return
    near = sorted(sorted(clocks, key=lambda one: abs(one - clock))[:2])
    listed = (", ".join(map(str, sorted(clocks))) if len(clocks) <= _SHOWN else
              f"{len(clocks)} clocks from {min(clocks)} to {max(clocks)}; the nearest are "
              f"{' and '.join(map(str, near))}")
    raise InputError(f"{clock} MHz is not a supported clock of {gpu.name}.", f"Allowed: {listed} MHz.", path=path,
                     value=clock, allowed=sorted(clocks), gpu=gpu.pci)


def changes(gpu: Gpu, wanted: t.Mapping[str, Wanted], former: t.Mapping[str, Value]) -> list[Change]:
    """The changes of a GPU, in the order of SETTINGS. former: the values from before the first change, of settings that
    are not declared any more; they are restored in reverse order."""
    found = []
    for name in SETTINGS:
        if name in wanted:
            found.append((name, wanted[name].value, wanted[name].path))
    for name in reversed(SETTINGS):
        if name in former and name not in wanted and name not in gpu.missing:
            found.append((name, former[name], ""))
    return [Change(gpu.pci, gpu.target.uuid, name, gpu.values.get(name), value,
                   RESET if name == ECC and value != gpu.ecc_current else NOW, path)
            for name, value, path in found if gpu.assumed or gpu.values.get(name) != value]


def gate(found: t.Sequence[Change], gpu: Gpu, level: str) -> tuple[list[Step], list[PendingStep]]:
    """C((steps, pending steps)). The settings of a GPU do not depend on each other."""
    steps, pending = [], []
    for change in found:
        step = change.step(gpu)
        if allows(level, step.needs):
            steps.append(step)
        else:
            pending.append(step.pending(f"{', '.join(gpu.processes)} could not open the GPU again; "
                                        f"{level_too_low(level, step.needs)}"))
    return steps, pending


def forgets(gpu: Gpu, wanted: t.Mapping[str, Wanted]) -> str:
    """A warning if the driver can forget declared settings, because persistence is off; otherwise empty."""
    declared = wanted.get(PERSISTENCE)
    on = declared.value if declared is not None else gpu.values.get(PERSISTENCE)
    if gpu.assumed or on or not any(name in wanted for name in _FORGOTTEN):
        return ""
    return (f"The persistence mode of {gpu.name} is off, so the driver forgets its settings when the last program has "
            "closed it. Declare persistence: true, or run nvidia-persistenced.")


def lines(gpu: Gpu, found: t.Sequence[Change], after: bool) -> str:
    """The settings that change, as text for a diff."""
    return "".join(f"{gpu.pci} {gpu.target.model} {change.setting}: "
                   f"{text(change.setting, change.after if after else change.before)}"
                   f"{' (after the next reset)' if after and change.effect == RESET else ''}\n" for change in found)


def shown(values: t.Mapping[str, Value]) -> dict[str, Value]:
    """Settings as they are declared: in their order, without locks that are not set."""
    return {name: values[name] for name in SETTINGS if values.get(name) is not None}
