# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""GPUs by name, and layouts by name, generated from what the GPUs can do. Pure. PRIVATE to the collection."""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError, nearest
from ansible_collections.gpuops.nvidia.plugins.module_utils._nvml_data import Profile

_ADDRESS = re.compile(r"(?:(?:0000)?([0-9a-f]{4}):)?([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])")


class Target(t.NamedTuple):
    """A GPU for which a configuration is resolved. profiles: empty where it cannot do MIG, None: not known yet.

    number: its index; uuid: empty where it is not known.
    """

    pci: str
    number: int
    device_id: str
    subsystem: str
    model: str
    profiles: t.Sequence[Profile] | None
    uuid: str = ""

    def answers_to(self, word: str) -> bool:
        """Whether a word names this GPU: an index, a PCI address or device id, a UUID, a model (with NVIDIA or not)."""
        word = word.lower()
        address = _ADDRESS.fullmatch(word)
        if address:
            word = f"{address.group(1) or '0000'}:{address.group(2)}"
        model = self.model.lower()
        return word in (str(self.number), self.pci, self.device_id, self.uuid.lower() or None, model,
                        model.replace("nvidia ", "", 1))


def names_uuid(word: t.Any) -> bool:
    """Whether a word can only be the UUID of a GPU."""
    return str(word).lower().startswith("gpu-")


class Wish(t.NamedTuple):
    """What a GPU shall have. devices: (GPU instance profile, slices of the compute instance) -> count.

    devices is None where the GPU's profiles are not known yet.
    """

    path: str
    enabled: bool
    devices: t.Mapping[t.Tuple[str, int], int] | None


def named(word: str, gpus: t.Sequence[Target], path: str) -> list[Target]:
    """The GPUs that a word names. Raises InputError for none, unless their UUIDs are not known yet."""
    found = [gpu for gpu in gpus if gpu.answers_to(word)]
    if not found and not (names_uuid(word) and any(not gpu.uuid for gpu in gpus)):
        there = ", ".join(f"{gpu.number} = {gpu.pci} ({gpu.model})" for gpu in gpus)
        more = ("YAML takes a PCI address without quotes for a number." if re.fullmatch(r"\d+\.\d+", word) else
                "'device-filter' is for models that need not be there." if path != "devices" else "")
        raise InputError(f"this host has no GPU {word!r}.", f"It has {there}. {more}".strip(), path=path, value=word,
                         allowed=[gpu.pci for gpu in gpus])
    return found


def chosen(words: t.Sequence[str] | None, gpus: t.Sequence[Target]) -> set[str]:
    """The PCI addresses of the GPUs that a task may change: those that words name, all for None. Raises InputError."""
    if words is None:
        return {gpu.pci for gpu in gpus}
    return {gpu.pci for word in words for gpu in named(word, gpus, "devices")}


def generate(name: str | None, gpus: t.Sequence[Target]) -> dict[str, Wish]:
    """What the generated configuration of a name asks of each GPU that it suits (as the vendor's MIG manager does).

    Names: all-disabled, all-enabled, all-balanced, and all-PROFILE with C(.) for C(+). Raises InputError.
    """
    if not gpus:
        return {}
    capable = [gpu for gpu in gpus if gpu.profiles is None or gpu.profiles]
    names: dict[str, dict[str, dict[tuple[str, int], int]]] = {
        "all-disabled": {gpu.pci: {} for gpu in capable}, "all-enabled": {gpu.pci: {} for gpu in capable},
        "all-balanced": {}}
    for gpu in capable:
        plain = sorted((profile for profile in gpu.profiles or () if re.fullmatch(r"\d+g\.\d+gb", profile.name)),
                       key=lambda profile: (profile.slices, profile.size))
        smallest = {profile.slices: profile.name for profile in reversed(plain)}
        counts = {1: 2, 2: 1, 3: 1} if 7 in smallest else {1: 2, 2: 1}
        if plain:
            names["all-balanced"][gpu.pci] = {(smallest[slices], slices): count for slices, count in counts.items()}
        for profile in gpu.profiles or ():
            names.setdefault(f"all-{profile.name.replace('+', '.')}", {})[gpu.pci] = {
                (profile.name, profile.slices): profile.instances}
    if name is None or (name != "all-disabled" and not names.get(name)):
        models = ", ".join(sorted({gpu.model for gpu in gpus}))
        offered = [key for key, value in names.items() if value]
        what = f"no generated configuration {name!r} suits" if name else "no configuration is chosen for"
        raise InputError(f"{what} the GPUs of this host ({models}){nearest_of(str(name), offered)}.",
                         f"Choose one of {', '.join(offered)}, or give config." if offered else "None can do MIG.",
                         path="selected", value=name, allowed=offered)
    return {pci: Wish(f"selected={name}", name != "all-disabled", devices) for pci, devices in names[name].items()}


def nearest_of(word: str, words: t.Iterable[str]) -> str:
    """C( (nearest: 1g.10gb)), or nothing where none is near."""
    near = nearest(word, words)
    return f" (nearest: {near})" if near else ""
