# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every named layout of the vendor follows from the profiles of its GPUs."""

from __future__ import annotations

import collections
import typing as t
from pathlib import Path

import pytest
import yaml
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig import boards, profile_names
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig.layout import Board

PUBLISHED = yaml.safe_load(Path(__file__).with_name("published_layouts.yml").read_text(encoding="utf-8"))
LAYOUTS: dict[str, dict[str, str]] = PUBLISHED["layouts"]
_CAPABLE = list(boards.known())


def counts(text: str) -> dict[str, int]:
    """Counts from a text such as C(1g.10gb x 2, 2g.20gb x 1)."""
    return {name: int(count) for name, count in (row.split(" x ") for row in text.split(", ") if " x " in row)}


def target(device_id: str) -> profile_names.Target:
    return profile_names.Target("gpu", 0, device_id, "", device_id, boards.profiles_of(device_id))


def generated(name: str, gpu: profile_names.Target) -> dict[str, int] | None:
    """The layout that a name requests on a GPU, None if it is not for this GPU; the layout must also fit."""
    try:
        wish = profile_names.generate(name, [gpu])["gpu"]
    except InputError:
        return None
    assert wish.devices is not None
    assert Board(gpu.profiles or []).target((), wish.devices) is not None or not wish.devices
    return {profile: count for (profile, _slices), count in wish.devices.items()}


def test_there_are_as_many_as_published() -> None:
    assert len(LAYOUTS) == 81


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_published_name(name: str) -> None:
    suits = {device: found for device in _CAPABLE if (found := generated(name, target(device))) is not None}
    if name in PUBLISHED["other_sizes"]:
        assert not suits
        suits = {"2941": generated(name, _larger(target("2941"))) or {}}
    assert suits, "no GPU has it"
    for devices, text in LAYOUTS[name].items():
        named = list(suits) if devices == "any" else devices.split()
        assert {device: suits.get(device) for device in named} == {device: counts(text) for device in named}


def _larger(gpu: profile_names.Target) -> profile_names.Target:
    """The same board with the memory of the pre-production model."""
    sizes = {"93gb": "95gb", "186gb": "189gb"}
    rows: list[t.Any] = []
    for profile in gpu.profiles or ():
        slices, size = profile.name.split(".", 1)
        rows.append(profile._replace(name=f"{slices}.{sizes.get(size, size)}"))
    return gpu._replace(profiles=rows)


def test_every_profile_of_the_tables_has_a_name() -> None:
    """Names that the file of the vendor lacks (such as 1g.5gb of other boards) exist, too."""
    for device in _CAPABLE:
        gpu = target(device)
        for profile in gpu.profiles or ():
            found = generated(f"all-{profile.name.replace('+', '.')}", gpu)
            assert found == collections.Counter({profile.name: profile.instances})
