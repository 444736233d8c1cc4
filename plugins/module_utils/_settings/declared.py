# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The settings that a user declares: what is valid, and which entry applies to a GPU. Pure. PRIVATE to the collection.
"""

from __future__ import annotations

import re
import typing as t
from dataclasses import dataclass

from ansible_collections.gpuops.nvidia.plugins.module_utils._devices import MODELS
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError, brief, nearest
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig.profile_names import Target, names_uuid

PERSISTENCE, ECC, COMPUTE_MODE, POWER_LIMIT = "persistence", "ecc", "compute_mode", "power_limit"
APPLICATIONS, GRAPHICS_LOCK, MEMORY_LOCK = "application_clocks", "locked_graphics_clocks", "locked_memory_clocks"
# In the order in which they are set. Persistence is first, because without it the driver may forget the others.
SETTINGS = (PERSISTENCE, ECC, COMPUTE_MODE, POWER_LIMIT, APPLICATIONS, MEMORY_LOCK, GRAPHICS_LOCK)
LOCKS = (GRAPHICS_LOCK, MEMORY_LOCK)
COMPUTE_MODES = ("default", "exclusive_process", "prohibited")
# The keys of a setting that is a mapping of clocks in MHz.
CLOCKS = {APPLICATIONS: ("memory", "graphics"), GRAPHICS_LOCK: ("min", "max"), MEMORY_LOCK: ("min", "max")}
# How specific a selector is.
ALL, MODEL, SINGLE = 0, 1, 2
_KINDS = {ALL: "all", MODEL: "a model", SINGLE: "a single GPU"}
_SINGLE = re.compile(r"\d{1,3}|(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.IGNORECASE)
_DEVICE_ID = re.compile(r"[0-9a-f]{4}", re.IGNORECASE)
_MOST, _HIGHEST = 256, 100_000

# A setting as it is declared: bool, word, watts, or clocks in MHz by CLOCKS. None is a lock that is not set.
Value = t.Union[bool, str, int, float, t.Dict[str, int], None]


@dataclass(frozen=True)
class Entry:
    """An entry of the declaration. path: its place in the option; gpus: the words that select GPUs; settings: the
    declared ones by name."""

    path: str
    gpus: t.Tuple[str, ...]
    settings: t.Mapping[str, Value]


@dataclass(frozen=True)
class Wanted:
    """The declared value of a setting of a GPU. path: the entry; kind: how specific its selector is."""

    value: Value
    path: str
    kind: int


def watts(milliwatts: int) -> Value:
    """A limit of power as it is declared: whole watts as a whole number."""
    return milliwatts // 1000 if milliwatts % 1000 == 0 else milliwatts / 1000


def milliwatts(value: Value) -> int:
    """The limit of power for NVML."""
    return round(t.cast("float", value) * 1000)


def parse(entries: object, option: str = "entries") -> list[Entry]:
    """The entries of a declaration. Raises InputError. option: the name of the option."""
    if entries is None:
        raise InputError("the declaration is missing.", "Set it; an empty list restores the former settings.",
                         path=option)
    if not isinstance(entries, list) or len(entries) > _MOST:
        raise InputError(f"a list of at most {_MOST} entries is expected.", "Each entry has gpus and settings.",
                         path=option, value=brief(entries))
    return [_entry(entry, f"{option}[{index}]") for index, entry in enumerate(entries)]


def _entry(entry: object, path: str) -> Entry:
    if not isinstance(entry, dict):
        raise InputError("a mapping with gpus and settings is expected.", path=path, value=brief(entry))
    for key in entry:
        if key not in ("gpus", *SETTINGS):
            near = nearest(str(key), SETTINGS)
            raise InputError(f"{brief(key)} is not a setting{f' (nearest: {near})' if near else ''}.",
                             f"Allowed: gpus, {', '.join(SETTINGS)}.", path=path, value=brief(key),
                             allowed=["gpus", *SETTINGS])
    settings = {name: _value(name, entry[name], f"{path}.{name}") for name in SETTINGS if entry.get(name) is not None}
    if not settings:
        raise InputError("the entry has no setting.", f"Set one of {', '.join(SETTINGS)}, or remove the entry.",
                         path=path, allowed=list(SETTINGS))
    if APPLICATIONS in settings and any(lock in settings for lock in LOCKS):
        raise _both(path)
    return Entry(path, _words(entry.get("gpus"), f"{path}.gpus"), settings)


def _both(path: str) -> InputError:
    return InputError(f"{APPLICATIONS} and locked clocks are declared for the same GPU, and locked clocks replace "
                      "application clocks.", "Declare one of them.", path=path)


def _words(words: object, path: str) -> tuple[str, ...]:
    found = [words] if isinstance(words, str) else words
    if not isinstance(found, list) or not found or not all(
            isinstance(word, (str, int)) and not isinstance(word, bool) and str(word).strip() for word in found):
        raise InputError("all, or a list of GPUs is expected.",
                         "Name GPUs by UUID, index, PCI address (in quotes) or model.", path=path, value=brief(words))
    words = tuple(str(word).strip() for word in found)
    if "all" in words and len(words) > 1:
        raise InputError("all is combined with other GPUs.", "Use all alone, or remove it.", path=path,
                         value=list(words))
    return words


def _value(name: str, value: object, path: str) -> Value:
    if name in (PERSISTENCE, ECC):
        if not isinstance(value, bool):
            raise InputError("true or false is expected.", path=path, value=brief(value), allowed=[True, False])
        return value
    if name == COMPUTE_MODE:
        if value not in COMPUTE_MODES:
            near = nearest(str(value), COMPUTE_MODES)
            raise InputError(f"{brief(value)} is not a compute mode{f' (nearest: {near})' if near else ''}.",
                             f"Allowed: {', '.join(COMPUTE_MODES)}.", path=path, value=brief(value),
                             allowed=list(COMPUTE_MODES))
        return str(value)
    if name == POWER_LIMIT:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < _HIGHEST:
            raise InputError("a number of watts is expected.", path=path, value=brief(value))
        return watts(round(value * 1000))
    return _clocks(name, value, path)


def _clocks(name: str, value: object, path: str) -> dict[str, int]:
    keys = CLOCKS[name]
    if not isinstance(value, dict) or sorted(str(key) for key in value) != sorted(keys):
        raise InputError(f"a mapping with {keys[0]} and {keys[1]}, in MHz, is expected.", path=path, value=brief(value),
                         allowed=list(keys))
    for key in keys:
        if isinstance(value[key], bool) or not isinstance(value[key], int) or not 0 < value[key] < _HIGHEST:
            raise InputError("a clock in MHz is expected.", path=f"{path}.{key}", value=brief(value[key]))
    if name in LOCKS and value["min"] > value["max"]:
        raise InputError(f"min ({value['min']} MHz) is above max ({value['max']} MHz).", "Swap them.", path=path,
                         value=dict(value))
    return {key: value[key] for key in keys}


def resolve(entries: t.Sequence[Entry], gpus: t.Sequence[Target]) -> dict[str, dict[str, Wanted]]:
    """The declared settings of each GPU: C({PCI address: {setting: Wanted}}); GPUs without any are missing.

    For each setting, the entry with the most specific selector applies: one GPU before a model, a model before all.
    Raises InputError if two entries of the same kind declare different values for a GPU, or for a GPU that the host
    does not have. A model that the host does not have is ignored.
    """
    found: dict[str, dict[str, Wanted]] = {}
    for entry in entries:
        for pci, kind in _selected(entry, gpus).items():
            for name, value in entry.settings.items():
                wanted = Wanted(value, entry.path, kind)
                former = found.setdefault(pci, {}).get(name)
                if former is not None and former.kind == kind and former.value != value:
                    raise InputError(f"{former.path} and {entry.path} declare different values for GPU {pci}, and both "
                                     f"select it by {_KINDS[kind]}: {text(name, former.value)} and "
                                     f"{text(name, value)}.",
                                     "Remove one of them, or name the GPU by UUID in the entry that shall apply.",
                                     path=f"{entry.path}.{name}", value=value)
                if former is None or former.kind < kind:
                    found[pci][name] = wanted
    for settings in found.values():
        if APPLICATIONS in settings and any(lock in settings for lock in LOCKS):
            raise _both(settings[APPLICATIONS].path)
    return found


def _selected(entry: Entry, gpus: t.Sequence[Target]) -> dict[str, int]:
    """The GPUs of an entry: PCI address to the kind of the most specific word that selects it."""
    if entry.gpus == ("all",):
        return {gpu.pci: ALL for gpu in gpus}
    found: dict[str, int] = {}
    for word in entry.gpus:
        kind = SINGLE if names_uuid(word) or _SINGLE.fullmatch(word) else MODEL
        matching = [gpu for gpu in gpus if gpu.answers_to(word)]
        if not matching and kind == MODEL:
            _require_model(word, gpus, f"{entry.path}.gpus")
        elif not matching and not (names_uuid(word) and any(not gpu.uuid for gpu in gpus)):
            existing = ", ".join(f"{gpu.number} = {gpu.pci} ({gpu.model}{', ' if gpu.uuid else ''}{gpu.uuid})"
                                 for gpu in gpus)
            raise InputError(f"this host has no GPU {word!r}.", f"It has {existing}. Declare single GPUs in the "
                             "variables of their host.", path=f"{entry.path}.gpus", value=word,
                             allowed=[gpu.pci for gpu in gpus])
        for gpu in matching:
            found[gpu.pci] = max(kind, found.get(gpu.pci, ALL))
    return found


def _require_model(word: str, gpus: t.Sequence[Target], path: str) -> None:
    """Raises InputError if a word that selects no GPU of this host is no model, either."""
    names = {model.name for model in MODELS.values() if model.name} | {gpu.model for gpu in gpus}
    plain = {name.lower().replace("nvidia ", "", 1): name for name in names}
    if _DEVICE_ID.fullmatch(word) or word.lower().replace("nvidia ", "", 1) in plain:
        return
    near = nearest(word, [*plain.values(), *plain], 0.7)
    near = plain.get(near, near)
    models = ", ".join(sorted({gpu.model for gpu in gpus}))
    advice = ("YAML parses a PCI address without quotes as a number." if re.fullmatch(r"\d+(\.\d+)?", word) else
              f"This host has {models}. nvidia-smi -L shows the names.")
    raise InputError(f"{brief(word)} is not a model of GPUs{f' (nearest: {near})' if near else ''}.", advice, path=path,
                     value=brief(word), allowed=sorted({gpu.model for gpu in gpus}))


def near_misses(entries: t.Sequence[Entry], gpus: t.Sequence[Target]) -> list[str]:
    """A note for each word that is the name of another model, but the beginning of the name of a GPU of the host."""
    notes = []
    for entry in entries:
        for word in entry.gpus:
            plain = word.lower().replace("nvidia ", "", 1)
            models = sorted({gpu.model for gpu in gpus if plain in gpu.model.lower().split()})
            if models and not any(gpu.answers_to(word) for gpu in gpus):
                notes.append(f"{entry.path}.gpus: {word!r} selects no GPU of this host, because it is the name of "
                             f"another model. This host has {', '.join(models)}.")
    return notes


def text(name: str, value: Value) -> str:
    """A value for messages and steps, such as C(300 W)."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if value is None:
        return "not locked" if name in LOCKS else "unknown"
    if isinstance(value, dict):
        first, second = CLOCKS[name]
        return (f"{value[first]}-{value[second]} MHz" if name in LOCKS else
                f"{value[first]} MHz memory and {value[second]} MHz graphics")
    return f"{value} W" if name == POWER_LIMIT else str(value)
