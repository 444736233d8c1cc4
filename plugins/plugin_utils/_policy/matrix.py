# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The version matrix as data: one file a release of the GPU Operator, and the driver branches. PRIVATE.

To add a release, put C(releases/VERSION.yml) beside the others; nothing else names it. The newest is the default.
"""

from __future__ import annotations

import functools
import os
import re
import typing as t
from dataclasses import dataclass

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.yamltext import load_data

_FOLDER = os.path.dirname(__file__)


@dataclass(frozen=True)
class Release:
    """One release. components: image tags by our component names; drivers: supported versions, newest first."""

    version: str
    date: str
    components: t.Mapping[str, str]
    defaults: t.Mapping[str, t.Any]
    drivers: t.Tuple[str, ...]


@dataclass(frozen=True)
class Branch:
    """A driver branch. cuda: the highest CUDA version it runs without a compatibility package, None where unknown."""

    number: int
    flavours: t.Tuple[str, ...]
    cuda: str | None = None
    end_of_life: str | None = None


@dataclass(frozen=True)
class Architecture:
    """What every GPU of an architecture needs. open_modules: C(no), C(optional) or C(required)."""

    open_modules: str
    first_branch: int | None = None
    last_branch: int | None = None


def version_key(version: str) -> tuple[int, ...]:
    """Numbers of a version, for comparing."""
    return tuple(int(part) for part in re.findall(r"\d+", version))


def branch_of(version: str) -> int:
    """The driver branch of C(595.91.07), C(595) or C(R595)."""
    return int(version.lstrip("Rr").split(".")[0])


def available() -> tuple[str, ...]:
    """Known releases, oldest first."""
    names = [name[:-4] for name in os.listdir(os.path.join(_FOLDER, "releases")) if name.endswith(".yml")]
    return tuple(sorted(names, key=version_key))


@functools.lru_cache(maxsize=None)
def release(version: str | None = None) -> Release:
    """A release by its version (C(26.3.3), also C(v26.3.3)), the newest without one. Raises InputError."""
    known = available()
    name = (version or known[-1]).lstrip("v")
    if name not in known:
        raise InputError(f"release {version!r} is not known.", f"Choose one of {', '.join(reversed(known))}.",
                         path="gpu_release", value=version, allowed=list(known))
    data = _read(os.path.join("releases", f"{name}.yml"))
    return Release(data["version"], data["date"], data["components"], data["defaults"], tuple(data["drivers"]))


@functools.lru_cache(maxsize=None)
def _drivers() -> dict[str, t.Any]:
    return _read("drivers.yml")


def branch(number: int) -> Branch | None:
    """A driver branch, None where it is not in the data."""
    data = _drivers()["branches"].get(number)
    if data is None:
        return None
    return Branch(number, tuple(data["flavours"]), data.get("cuda"), data.get("end_of_life"))


def architecture(name: str | None) -> Architecture | None:
    """An architecture by its label name (C(ampere)), None where it is not in the data."""
    data = _drivers()["architectures"].get(name)
    if data is None:
        return None
    return Architecture(data["open_modules"], data.get("first_branch"), data.get("last_branch"))


def open_by_default_from() -> int:
    """The first branch whose own installer chooses the open modules."""
    return int(_drivers()["open_by_default_from"])


def _read(name: str) -> dict[str, t.Any]:
    with open(os.path.join(_FOLDER, name), encoding="utf-8") as handle:
        return t.cast("dict[str, t.Any]", load_data(handle.read(), name))
