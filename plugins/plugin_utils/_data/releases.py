# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Releases of the GPU Operator, one file each, and driver branches, one file for all. PRIVATE.

To add a release, add C(gpu_operator/VERSION.yml). The newest release is the default. docs/releases.md has the source of
each key.
"""

from __future__ import annotations

import datetime
import functools
import os
import re
import typing as t
from dataclasses import dataclass

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.untyped import Data, Section
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.yamltext import read_own

_FOLDER = os.path.dirname(__file__)
_KEYS = ("version", "date", "components", "defaults", "drivers")
# Components of every release. Some releases have more: kata_manager, kata_device_plugin, dra_driver.
_COMPONENTS = (
    "driver", "driver_manager", "container_toolkit", "validator", "device_plugin", "dcgm", "dcgm_exporter",
    "mig_manager", "node_feature_discovery", "gds", "gdrcopy", "vfio_manager", "vgpu_device_manager",
    "kubevirt_device_plugin", "cc_manager",
)


@dataclass(frozen=True, eq=False)
class Release:
    """One release. There is only one object for each, so that caches can use it as a key.

    components: maps our names of components to image tags; defaults: defaults of the chart that differ between
    releases; drivers: supported versions, newest first; life: C(supported) (the newest major version), C(deprecated)
    (the one before) or C(ended); systems: those on which the release was validated, rows of C({kubernetes: [first,
    last], OS ID: [VERSION_ID, ...], ...}); openshift, containerd: first and last validated version; precompiled: rows
    of C({ubuntu: VERSION_ID, kernels, flavours, branches}). The last four are None if the file does not have them.
    """

    version: str
    date: str
    components: t.Mapping[str, str]
    defaults: Section
    drivers: t.Tuple[str, ...]
    life: str
    systems: t.Sequence[t.Mapping[str, t.Sequence[str]]] | None = None
    openshift: t.Sequence[str] | None = None
    containerd: t.Sequence[str] | None = None
    precompiled: t.Sequence[Section] | None = None


@dataclass(frozen=True)
class Branch:
    """A driver branch. None means that the vendor has not published it.

    cuda: the highest CUDA version that it runs without a compatibility package; end_of_life: the last month with fixes
    (C(2028-06)), or C(ended); kind: C(long_term), C(production) or C(new_feature).
    """

    number: int
    flavours: t.Tuple[str, ...]
    cuda: str | None = None
    end_of_life: str | None = None
    kind: str | None = None

    def ended(self, today: datetime.date) -> bool:
        """Whether it gets no more fixes on that day; False if its end of life is not published."""
        if self.end_of_life in (None, "ended"):
            return self.end_of_life == "ended"
        return f"{today:%Y-%m}" > str(self.end_of_life)


@dataclass(frozen=True)
class Architecture:
    """The requirements of the GPUs of an architecture.

    open_modules: C(no), C(optional) or C(required); first_branch, last_branch: the first and last driver branch;
    cuda: the first version and the last major version of CUDA toolkits that compile for it, without the last if the
    newest toolkit does.
    """

    open_modules: str
    first_branch: int | None = None
    last_branch: int | None = None
    cuda: t.Tuple[str, ...] = ()


@functools.lru_cache(maxsize=4096)
def version_key(version: str) -> tuple[int, ...]:
    """The numbers of a version, for comparisons. Cached, because the solver compares the same versions often."""
    return tuple(int(part) for part in re.findall("[0-9]{1,18}", version))


def branch_of(version: str) -> int:
    """The driver branch of C(595.91.07), C(595) or C(R595)."""
    return int(version.lstrip("Rr").split(".")[0])


def available() -> tuple[str, ...]:
    """Known releases, oldest first."""
    names = [name[:-4] for name in os.listdir(os.path.join(_FOLDER, "gpu_operator")) if name.endswith(".yml")]
    return tuple(sorted(names, key=version_key))


def release(version: str | None = None) -> Release:
    """A release by its version, such as C(26.3.3) or C(v26.3.3); by default the newest. Raises InputError."""
    known = available()
    name = (version or known[-1]).lstrip("v")
    if name not in known:
        raise InputError(f"release {version!r} is not known.", f"Choose one of {', '.join(reversed(known))}.",
                         path="gpu_release", value=version, allowed=list(known))
    return _release(name)


@functools.lru_cache(maxsize=None)
def _release(name: str) -> Release:
    path = os.path.join("gpu_operator", f"{name}.yml")
    data = read_own(_FOLDER, path)
    _check(data, _KEYS, path, "")
    _check(data["components"], _COMPONENTS, path, "components.")
    if data["version"] != name or data["components"]["driver"] not in data["drivers"]:
        key, value = ("version", name) if data["version"] != name else ("drivers", data["components"]["driver"])
        must = "be" if key == "version" else "contain"
        raise InputError(f"{path}: {key} is {data[key]!r}; it must {must} {value!r}.", _HELP, path=key)
    return Release(data["version"], data["date"], data["components"], data["defaults"], tuple(data["drivers"]),
                   _life(name), data.get("systems"), data.get("openshift"), data.get("containerd"),
                   data.get("precompiled"))


_HELP = "Correct the file; docs/releases.md has the source of each key."


def _check(data: Section, keys: t.Iterable[str], path: str, below: str) -> None:
    """Raises InputError with the missing keys. below: the path of data in the file, with a dot, for messages."""
    missing = [f"{below}{key}" for key in keys if not data.get(key)]
    if missing:
        raise InputError(f"{path}: {', '.join(missing)} missing.", _HELP, path=missing[0])


def _life(name: str) -> str:
    """The state in the life cycle. A new major version deprecates the one before and ends older ones. Source: the
    vendor's life-cycle policy."""
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

    os_id, os_version: on this system; if the release does not list the system, on any. For OpenShift, use
    L(openshift_supported).
    """
    if found.systems is None or os_id == "rhcos":
        return None
    rows = [row for row in found.systems if os_id and os_version in row.get(os_id, ())] or found.systems
    return any(_within(version, row["kubernetes"]) for row in rows)


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
    """Whether the vendor publishes driver images with precompiled modules of a branch for a kernel.

    number: that of the branch; flavour: that of the kernel (C(generic), C(aws)); kernel: its release
    (C(6.8.0-60-generic)), None for any.
    """
    return any(row.get(os_id) == os_version and number in row["branches"] and flavour in row["flavours"]
               and (kernel is None or any(version_key(kernel)[:2] == version_key(one) for one in row["kernels"]))
               for row in found.precompiled or ())


@functools.lru_cache(maxsize=None)
def _drivers() -> Data:
    return read_own(_FOLDER, "drivers.yml")


def branches() -> tuple[int, ...]:
    """The numbers of the known branches, oldest first."""
    return tuple(sorted(_drivers()["branches"]))


@functools.lru_cache(maxsize=None)
def branch(number: int) -> Branch | None:
    """A driver branch, None if it is not in the data."""
    data = _drivers()["branches"].get(number)
    if data is None:
        return None
    return Branch(number, tuple(data["flavours"]), data.get("cuda"), data.get("end_of_life"), data.get("kind"))


@functools.lru_cache(maxsize=None)
def architecture(name: str | None) -> Architecture | None:
    """An architecture by its name in labels (C(ampere)), None if it is not in the data."""
    data = _drivers()["architectures"].get(name)
    if data is None:
        return None
    return Architecture(data["open_modules"], data.get("first_branch"), data.get("last_branch"), tuple(data["cuda"]))


def cuda_needs(level: str) -> str | None:
    """The first driver version that runs a CUDA level (C(12.8), C(13)) by minor version compatibility; None: unknown.

    Before the level's own branch, features that need a newer driver fail.
    """
    first = _drivers()["cuda_majors"].get((version_key(level) or (0,))[0])
    return None if first is None else str(first)


def floor(name: str) -> str:
    """The first version with a property: C(coherent_memory), C(container_auto) (drivers), C(gds_open_modules)."""
    return str(_drivers()["floors"][name])


def gds_needs_open(version: str) -> bool:
    """Whether GPUDirect Storage of a version (C(2.26.6)) needs open kernel modules; True for a digest."""
    return version.startswith("sha256:") or version_key(version) >= version_key(floor("gds_open_modules"))


def known_faults(version: str, component: str = "driver") -> tuple[str, ...]:
    """The known issues that the vendor has published for a version, as clauses without a full stop.

    component: C(driver) or C(container_toolkit).
    """
    return tuple(fault["text"] for fault in _drivers()["faults"][component]
                 if version in fault.get("versions", ())
                 or "before" in fault and version_key(version) < version_key(fault["before"]))
