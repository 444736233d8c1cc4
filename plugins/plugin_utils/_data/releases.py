# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The version matrix as data: one file a release of the GPU Operator, and one of the drivers. PRIVATE.

To add a release, put C(gpu_operator/VERSION.yml) beside the others; nothing else names it. The newest is the default.
docs/releases.md says from where each key is read.
"""

from __future__ import annotations

import datetime
import functools
import os
import re
import typing as t
from dataclasses import dataclass

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.yamltext import load_own

_FOLDER = os.path.dirname(__file__)
_KEYS = ("version", "date", "components", "defaults", "drivers")
# What every release has. A few have more: kata_manager, kata_device_plugin, dra_driver.
_COMPONENTS = (
    "driver", "driver_manager", "container_toolkit", "validator", "device_plugin", "dcgm", "dcgm_exporter",
    "mig_manager", "node_feature_discovery", "gds", "gdrcopy", "vfio_manager", "vgpu_device_manager",
    "kubevirt_device_plugin", "cc_manager",
)


@dataclass(frozen=True, eq=False)
class Release:
    """One release; there is one object of each, so that it can be a key of caches.

    components: image tags by our component names. defaults: those of the chart that differ between releases.
    drivers: supported versions, newest first. life: supported (the newest major), deprecated (the one before) or ended.
    systems: what it was validated on, rows of C({kubernetes: [first, last], OS ID: [VERSION_ID, ...], ...}).
    openshift, containerd: first and last version. precompiled: rows of C({ubuntu: VERSION_ID, kernels, flavours,
    branches}). These four are None where the file does not say.
    """

    version: str
    date: str
    components: t.Mapping[str, str]
    defaults: t.Mapping[str, t.Any]
    drivers: t.Tuple[str, ...]
    life: str
    systems: t.Sequence[t.Mapping[str, t.Sequence[str]]] | None = None
    openshift: t.Sequence[str] | None = None
    containerd: t.Sequence[str] | None = None
    precompiled: t.Sequence[t.Mapping[str, t.Any]] | None = None


@dataclass(frozen=True)
class Branch:
    """A driver branch. What is None is not published.

    cuda: the highest CUDA version it runs without a compatibility package. end_of_life: the last month with fixes
    (C(2028-06)), or C(ended). kind: long_term, production or new_feature.
    """

    number: int
    flavours: t.Tuple[str, ...]
    cuda: str | None = None
    end_of_life: str | None = None
    kind: str | None = None

    def ended(self, today: datetime.date) -> bool:
        """Whether it gets no more fixes on that day; False where its end is not published."""
        if self.end_of_life in (None, "ended"):
            return self.end_of_life == "ended"
        return f"{today:%Y-%m}" > str(self.end_of_life)


@dataclass(frozen=True)
class Architecture:
    """What every GPU of an architecture needs.

    open_modules: C(no), C(optional) or C(required). cuda: the first version and the last major of CUDA toolkits that
    compile for it, without a last one where they still do.
    """

    open_modules: str
    first_branch: int | None = None
    last_branch: int | None = None
    cuda: t.Tuple[str, ...] = ()


@functools.lru_cache(maxsize=4096)
def version_key(version: str) -> tuple[int, ...]:
    """Numbers of a version, for comparing. The solver compares the same few versions a million times."""
    return tuple(int(part) for part in re.findall("[0-9]{1,18}", version))


def branch_of(version: str) -> int:
    """The driver branch of C(595.91.07), C(595) or C(R595)."""
    return int(version.lstrip("Rr").split(".")[0])


def available() -> tuple[str, ...]:
    """Known releases, oldest first."""
    names = [name[:-4] for name in os.listdir(os.path.join(_FOLDER, "gpu_operator")) if name.endswith(".yml")]
    return tuple(sorted(names, key=version_key))


def release(version: str | None = None) -> Release:
    """A release by its version (C(26.3.3), also C(v26.3.3)), the newest without one. Raises InputError."""
    known = available()
    name = (version or known[-1]).lstrip("v")
    if name not in known:
        raise InputError(f"release {version!r} is not known.", f"Choose one of {', '.join(reversed(known))}.",
                         path="gpu_release", value=version, allowed=list(known))
    return _release(name)


@functools.lru_cache(maxsize=None)
def _release(name: str) -> Release:
    path = os.path.join("gpu_operator", f"{name}.yml")
    data = _read(path)
    _check(data, _KEYS, path, "")
    _check(data["components"], _COMPONENTS, path, "components.")
    if data["version"] != name or data["components"]["driver"] not in data["drivers"]:
        key, value = ("version", name) if data["version"] != name else ("drivers", data["components"]["driver"])
        raise InputError(f"{path}: {key} is {data[key]!r}; it must be or hold {value!r}.", _HELP, path=key)
    return Release(data["version"], data["date"], data["components"], data["defaults"], tuple(data["drivers"]),
                   _life(name), data.get("systems"), data.get("openshift"), data.get("containerd"),
                   data.get("precompiled"))


_HELP = "Mend the file; docs/releases.md says from where each key is read."


def _check(data: t.Mapping[str, t.Any], keys: t.Iterable[str], path: str, below: str) -> None:
    """Raises InputError that names what is left out."""
    missing = [f"{below}{key}" for key in keys if not data.get(key)]
    if missing:
        raise InputError(f"{path}: {', '.join(missing)} missing.", _HELP, path=missing[0])


def _life(name: str) -> str:
    """By the vendor's rule: a new major version deprecates the one before and ends all older ones."""
    majors = sorted({version_key(known)[:2] for known in available()}, reverse=True)
    return ("supported", "deprecated", "ended")[min(majors.index(version_key(name)[:2]), 2)]


def os_supported(found: Release, os_id: str, os_version: str) -> bool | None:
    """Whether the release was validated on a system (C(ID) and C(VERSION_ID) of os-release); None: not known."""
    if os_id == "rhcos":
        return openshift_supported(found, os_version)
    return None if found.systems is None else any(os_version in row.get(os_id, ()) for row in found.systems)


def kubernetes_supported(found: Release, version: str, os_id: str | None = None,
                         os_version: str | None = None) -> bool | None:
    """Whether the release was validated with a Kubernetes (C(v1.34.2+k3s1)); None: not known.

    os_id, os_version: on this system; on one that the release does not know, on any. OpenShift's versions of
    Kubernetes are its own business: see L(openshift_supported).
    """
    if found.systems is None or os_id == "rhcos":
        return None
    mine = [row for row in found.systems if os_id and os_version in row.get(os_id, ())] or found.systems
    return any(_within(version, row["kubernetes"]) for row in mine)


def openshift_supported(found: Release, version: str) -> bool | None:
    """Whether the release was validated with an OpenShift (C(4.20.3)); None: not known."""
    return None if found.openshift is None else _within(version, found.openshift)


def containerd_supported(found: Release, version: str) -> bool | None:
    """Whether the release was validated with a containerd (C(2.2.1)); None: not known."""
    return None if found.containerd is None else _within(version, found.containerd)


def _within(version: str, both: t.Sequence[str]) -> bool:
    return version_key(both[0]) <= version_key(version)[:2] <= version_key(both[1])


def precompiled(found: Release, number: int, os_id: str, os_version: str, flavour: str | None,
                kernel: str | None = None) -> bool:
    """Whether the vendor publishes driver images that hold the modules of a branch for a kernel.

    flavour: of the kernel (C(generic), C(aws)). kernel: its release (C(6.8.0-60-generic)); without it any counts.
    """
    return any(row.get(os_id) == os_version and number in row["branches"] and flavour in row["flavours"]
               and (kernel is None or any(version_key(kernel)[:2] == version_key(one) for one in row["kernels"]))
               for row in found.precompiled or ())


@functools.lru_cache(maxsize=None)
def _drivers() -> dict[str, t.Any]:
    return _read("drivers.yml")


def branches() -> tuple[int, ...]:
    """The numbers of the known branches, oldest first."""
    return tuple(sorted(_drivers()["branches"]))


@functools.lru_cache(maxsize=None)
def branch(number: int) -> Branch | None:
    """A driver branch, None where it is not in the data."""
    data = _drivers()["branches"].get(number)
    if data is None:
        return None
    return Branch(number, tuple(data["flavours"]), data.get("cuda"), data.get("end_of_life"), data.get("kind"))


@functools.lru_cache(maxsize=None)
def architecture(name: str | None) -> Architecture | None:
    """An architecture by its label name (C(ampere)), None where it is not in the data."""
    data = _drivers()["architectures"].get(name)
    if data is None:
        return None
    return Architecture(data["open_modules"], data.get("first_branch"), data.get("last_branch"), tuple(data["cuda"]))


def open_by_default_from() -> int:
    """The first branch whose own installer chooses the open modules."""
    return int(_drivers()["open_by_default_from"])


def cuda_needs(level: str) -> str | None:
    """The first driver version that runs a CUDA level (C(12.8), C(13)), by minor version compatibility; None: unknown.

    A driver of the level's own branch or newer runs all of it; from this version on it runs with fewer features.
    """
    first = _drivers()["cuda_majors"].get((version_key(level) or (0,))[0])
    return None if first is None else str(first)


def floor(name: str) -> str:
    """The version from which something holds: coherent_memory, container_auto (drivers), gds_open_modules."""
    return str(_drivers()["floors"][name])


def gds_needs_open(version: str) -> bool:
    """Whether a version of GPUDirect Storage's module (C(2.26.6)) needs open kernel modules; a digest may."""
    return version.startswith("sha256:") or version_key(version) >= version_key(floor("gds_open_modules"))


def known_faults(version: str, component: str = "driver") -> tuple[str, ...]:
    """What is published against a version, one clause each without a full stop. component: or container_toolkit."""
    return tuple(fault["text"] for fault in _drivers()["faults"][component]
                 if version in fault.get("versions", ())
                 or "before" in fault and version_key(version) < version_key(fault["before"]))


def _read(name: str) -> dict[str, t.Any]:
    with open(os.path.join(_FOLDER, name), encoding="utf-8") as handle:
        return t.cast("dict[str, t.Any]", load_own(handle.read()))
