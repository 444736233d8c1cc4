# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Configurations in mig-parted's format (version v1): checks, resolves and writes them. PRIVATE to the collection."""

from __future__ import annotations

import re
import typing as t
from dataclasses import dataclass

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig.profile_names import (
    DesiredDevices,
    Target,
    named,
    nearest_of,
)

# 1c.3g.40gb, 1g.10gb+me, 1g.24gb-me, and lists of attributes after one sign (go-nvlib, names of MIG profiles).
_ATTRIBUTE = r"[a-zA-Z](?:[a-zA-Z0-9.]*[a-zA-Z0-9])?"
_DEVICE = re.compile(rf"(?:(\d{{1,9}})c\.)?(\d{{1,9}})g\.\d+gb(?:[+-]({_ATTRIBUTE}(?:,{_ATTRIBUTE})*))?")
_FILTER = re.compile(r"(?:0[xX])?([0-9a-fA-F]{4})10[dD][eE](?::(?:0[xX])?([0-9a-fA-F]{4})([0-9a-fA-F]{4}))?")
_KEYS = ("device-filter", "devices", "mig-enabled", "mig-devices")


@dataclass(frozen=True)
class Entry:
    """An entry of a configuration. path: its path in the document; filters: (PCI device id, subsystem or None); words:
    names of GPUs, see Target.answers_to, None for all; devices: (name of a MIG device, number)."""

    path: str
    filters: t.Tuple[t.Tuple[str, str | None], ...]
    words: t.Tuple[str, ...] | None
    enabled: bool
    devices: t.Tuple[t.Tuple[str, int], ...]

    def passes(self, gpu: Target) -> bool:
        """Whether a GPU passes `device-filter`."""
        return not self.filters or any(device == gpu.device_id and subsystem in (None, gpu.subsystem)
                                       for device, subsystem in self.filters)

    def matches(self, gpu: Target) -> bool:
        """Whether the entry is for this GPU. `all` is for all GPUs that support MIG."""
        if self.words is None:
            return self.passes(gpu) and gpu.profiles != []
        return self.passes(gpu) and any(gpu.answers_to(word) for word in self.words)


def parse(document: object) -> dict[str, list[Entry]]:
    """Maps the names of the configurations in a document to their entries. Raises InputError."""
    config = _mapping(document, "config", ("version", "mig-configs"))
    if config.get("version") != "v1":
        raise InputError(f"{config.get('version')!r} is not a version of mig-parted's format.", "Write 'version: v1'.",
                         path="config.version", value=config.get("version"), allowed=["v1"])
    named = config.get("mig-configs")
    if not isinstance(named, dict) or not named:
        raise InputError("it must be a mapping of names to lists of entries.",
                         f"Each entry is a mapping with the keys {', '.join(_KEYS)}.", path="config.mig-configs",
                         value=named)
    return {str(name): _entries(entries, f"mig-configs.{name}") for name, entries in named.items()}


def select(configs: t.Mapping[str, list[Entry]], name: str | None) -> tuple[str, list[Entry]]:
    """(name, entries) of the selected configuration, or of the only one if name is None. Raises InputError."""
    if name is None and len(configs) == 1:
        name = next(iter(configs))
    if name is None:
        raise InputError("config has several configurations, but none is selected.",
                         f"Set selected to one of {', '.join(configs)}.", path="selected", value=None,
                         allowed=list(configs))
    if name not in configs:
        raise InputError(f"config has no configuration {name!r}{nearest_of(name, configs)}.",
                         f"Set selected to one of {', '.join(configs)}.", path="selected", value=name,
                         allowed=list(configs))
    return name, configs[name]


def resolve(entries: t.Sequence[Entry], gpus: t.Sequence[Target], chosen: t.Collection[str]
            ) -> dict[str, DesiredDevices]:
    """Maps the PCI addresses of the chosen GPUs to their desired devices, without GPUs that have no entry.

    chosen: PCI addresses. Raises InputError for a name that no GPU has, for two different entries for a GPU, and for a
    profile that a GPU does not have.
    """
    desired_devices: dict[str, DesiredDevices] = {}
    # 'all' skips GPUs that do not support MIG. It is an error if no GPU supports MIG.
    chosen_gpus = [gpu for gpu in gpus if gpu.pci in chosen]
    none_can = all(gpu.profiles == [] for gpu in chosen_gpus)
    for entry in entries:
        if any(entry.passes(gpu) for gpu in gpus):
            for word in entry.words or ():
                named(word, gpus, f"{entry.path}.devices")
        for gpu in chosen_gpus:
            if entry.matches(gpu) or none_can and entry.enabled and entry.words is None and entry.passes(gpu):
                desired = _desired_devices(entry, gpu)
                former = desired_devices.setdefault(gpu.pci, desired)
                if (former.enabled, former.devices) != (desired.enabled, desired.devices):
                    raise InputError(f"GPU {gpu.pci} has another configuration in {former.path}.",
                                     "Use one entry for each GPU.", path=entry.path)
    return desired_devices


def export(gpus: t.Sequence[tuple[int, bool, t.Mapping[str, int]]]) -> dict[str, object]:
    """A document with the configuration `current`. gpus: (index, whether MIG is enabled, device name to number)."""
    groups: dict[tuple[bool, tuple[tuple[str, int], ...]], list[int]] = {}
    for index, enabled, devices in gpus:
        groups.setdefault((enabled, tuple(sorted(devices.items()))), []).append(index)
    entries = [{"devices": "all" if len(groups) == 1 else indices, "mig-enabled": enabled, "mig-devices": dict(devices)}
               for (enabled, devices), indices in groups.items()]
    return {"version": "v1", "mig-configs": {"current": entries}}


def _desired_devices(entry: Entry, gpu: Target) -> DesiredDevices:
    if not entry.enabled:
        return DesiredDevices(entry.path, False, {})
    if gpu.profiles is None:
        return DesiredDevices(entry.path, True, None if entry.devices else {})
    if not gpu.profiles:
        raise InputError(f"GPU {gpu.pci} ({gpu.model}) does not support MIG.",
                         "Select the other GPUs with 'devices' or 'device-filter'.", path=entry.path, value=gpu.model)
    slices = {_canonical(profile.name): (profile.name, profile.slices) for profile in gpu.profiles}
    devices: dict[tuple[str, int], int] = {}
    for device, count in entry.devices:
        prefix, _ignored, rest = device.rpartition("c.")
        profile, most = slices.get(_canonical(rest), ("", 0))
        size = int(prefix) if prefix else most
        if not 0 < size <= most:
            raise InputError(f"GPU {gpu.pci} ({gpu.model}) has no profile {device}{nearest_of(device, slices)}.",
                             f"It has {', '.join(profile.name for profile in gpu.profiles)}.",
                             path=f"{entry.path}.mig-devices", value=device,
                             allowed=[profile.name for profile in gpu.profiles])
        if count:
            devices[(profile, size)] = devices.get((profile, size), 0) + count
    return DesiredDevices(f"{entry.path}.mig-devices", True, devices)


def _entries(entries: object, path: str) -> list[Entry]:
    if not isinstance(entries, list) or not entries:
        raise InputError("it must be a list of entries.",
                         f"Each entry is a mapping with the keys {', '.join(_KEYS)}.", path=path, value=entries)
    return [_entry(entry, f"{path}[{index}]") for index, entry in enumerate(entries)]


def _entry(data: object, path: str) -> Entry:
    entry = _mapping(data, path, _KEYS)
    enabled = entry.get("mig-enabled")
    if not isinstance(enabled, bool):
        raise InputError(f"{enabled!r} is not true or false.", "Write true or false, without quotes.",
                         path=f"{path}.mig-enabled", value=enabled, allowed=[True, False])
    given = entry.get("mig-devices")
    if enabled and given is None:
        raise InputError("it is required if mig-enabled is true.", "Write {} for MIG mode without MIG devices.",
                         path=f"{path}.mig-devices", value=given)
    devices = _counts({} if given is None else given, f"{path}.mig-devices")
    if devices and not enabled:
        raise InputError("MIG devices need MIG mode, but mig-enabled is false.",
                         "Set mig-enabled to true, or remove mig-devices.",
                         path=f"{path}.mig-devices")
    return Entry(path, tuple(_filters(entry.get("device-filter"), f"{path}.device-filter")),
                 _words(entry.get("devices"), f"{path}.devices"), enabled, devices)


def _filters(value: object, path: str) -> t.Iterator[tuple[str, str | None]]:
    for text in value if isinstance(value, list) else [value] if value else []:
        # Without quotes, YAML parses 0x20B210DE as a number.
        match = _FILTER.fullmatch(f"{text:08x}" if isinstance(text, int) else str(text))
        if match is None:
            raise InputError(f"{text!r} is not the PCI id of a GPU.",
                             "Write 0xDDDD10DE (device and vendor), or with a subsystem 0xDDDD10DE:0xSSSSVVVV.",
                             path=path, value=text)
        device, subsystem, vendor = match.groups()
        yield device.lower(), f"{vendor}:{subsystem}".lower() if subsystem else None


def _words(value: object, path: str) -> tuple[str, ...] | None:
    if value == "all":
        return None
    words = value if isinstance(value, list) else [value]
    if not words or any(isinstance(word, bool) or not isinstance(word, (int, str)) or str(word) in ("", "all")
                        or isinstance(word, int) and word < 0 for word in words):
        raise InputError(f"{value!r} is neither 'all' nor a list of GPUs.",
                         "Name GPUs by index, UUID, PCI device id, model, or PCI address (in quotes: YAML can parse it "
                         "as a number).", path=path, value=value, allowed=["all", "[0, 1, ...]"])
    return tuple(str(word) for word in words)


def _counts(value: object, path: str) -> tuple[tuple[str, int], ...]:
    if not isinstance(value, dict):
        raise InputError("it must be a mapping of profiles to counts.", "Example: '1g.10gb: 7'.", path=path,
                         value=value)
    for name, count in value.items():
        match = _DEVICE.fullmatch(str(name))
        attributes = match.group(3).split(",") if match and match.group(3) else []
        if match is None or int(match.group(1) or 0) > int(match.group(2)) or len(attributes) > len(set(attributes)):
            raise InputError(f"{name!r} is not the name of a MIG device.",
                             "Examples of names: 1g.10gb, 1g.10gb+me, 1c.3g.40gb.", path=path, value=name)
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise InputError(f"{count!r} is not a number of devices.", "Write 0 or a positive number, without quotes.",
                             path=f"{path}.{name}", value=count)
    if value and not any(value.values()):
        raise InputError("all counts are 0.", "Write {} for MIG mode without MIG devices.", path=path, value=value)
    return tuple((str(name), count) for name, count in value.items())


def _canonical(device: str) -> str:
    """The name of a profile with sorted attributes, because mig-parted accepts them in any order."""
    name, sign, rest = re.fullmatch(r"([^+-]*)([+-]?)(.*)", device).groups()  # type: ignore[union-attr]
    return f"{name}{sign}{','.join(sorted(rest.split(',')))}"


def _mapping(value: object, path: str, keys: t.Sequence[str]) -> dict[str, object]:
    if not isinstance(value, dict):
        raise InputError("it must be a mapping.", f"Known keys: {', '.join(keys)}.", path=path, value=value)
    for key in value:
        if key not in keys:
            raise InputError(f"unknown key {key!r}{nearest_of(str(key), keys)}.", f"Known keys: {', '.join(keys)}.",
                             path=path, value=key, allowed=list(keys))
    return value
