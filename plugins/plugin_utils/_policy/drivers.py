# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver of one host: version, branch and module flavour that all of its GPUs accept, or why none does.

Pure. PRIVATE. Sources of the facts used: L(matrix) and C(_devices).
"""

from __future__ import annotations

import re
import typing as t
from dataclasses import dataclass

from ansible_collections.gpuops.nvidia.plugins.module_utils._devices import model_of
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import matrix
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.formats import Policy
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.matrix import Release, branch_of, version_key


class Refused(Exception):
    """No plan: the constraints that exclude each other, and what would free it."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.remedy = remedy


@dataclass(frozen=True)
class Needs:
    """What one model of GPU needs of a driver. open_modules: no, optional, required, or None where unknown."""

    name: str
    open_modules: str | None
    first: str | None
    last_branch: int | None


@dataclass(frozen=True)
class Wanted:
    """A version (C(595.91.07)) or, with version None, the newest of a branch; source says who asked for it."""

    version: str | None
    branch: int
    source: str

    @property
    def text(self) -> str:
        return f"driver {self.version or f'branch {self.branch}'}"


def needs_of(gpu: t.Mapping[str, t.Any]) -> Needs:
    """The needs of a GPU of the facts: by its model, else by its architecture."""
    model = model_of(gpu["device_id"], gpu.get("subsystem"))
    if model is not None:
        name = gpu.get("model") or model.name or f"GPU {gpu['device_id']}"
        return Needs(f"{name} ({model.architecture})", model.open_modules, model.first_driver, model.last_branch)
    architecture = matrix.architecture(gpu.get("architecture"))
    name = gpu.get("model") or f"GPU {gpu['device_id']}"
    if architecture is None:
        return Needs(name, None, None, None)
    first = str(architecture.first_branch) if architecture.first_branch else None
    return Needs(f"{name} ({gpu['architecture']})", architecture.open_modules, first, architecture.last_branch)


def models(gpus: t.Sequence[t.Mapping[str, t.Any]]) -> list[Needs]:
    """The different models of a host, in order."""
    return list(dict.fromkeys(needs_of(gpu) for gpu in gpus))


def wanted_version(policy: Policy, release: Release, mine: t.Mapping[str, t.Any]) -> Wanted:
    """Whose word counts: the host's variables, else the policy, else the release. Raises Refused."""
    for value, source in (
        (mine.get("driver_version"), "driver_version of this host"),
        (mine.get("driver_branch"), "driver_branch of this host"),
        (policy.get("driver.version"), f"driver.version of {policy.origin}"),
        (release.components["driver"], f"the default of release {release.version}"),
    ):
        if value not in (None, ""):
            return parse_version(str(value), source)
    raise Refused("no driver version is given anywhere", "Set driver.version.")


def parse_version(text: str, source: str) -> Wanted:
    """C(595.91.07), C(595), C(R595), also with an image's system suffix. Raises Refused for anything else."""
    match = re.fullmatch(r"[Rr]?(\d{3})((?:\.\d+){1,2})?(?:-[a-z][a-z0-9.]*)?", text)
    if match is None:
        raise Refused(f"{text!r} ({source}) is not a driver version",
                      "Write a version such as 595.91.07 or a branch such as 595; digests of images are for clusters.")
    return Wanted(f"{match[1]}{match[2]}" if match[2] else None, int(match[1]), source)


def check_together(host_models: t.Sequence[Needs]) -> None:
    """Raises Refused where two GPUs of the host exclude each other under any driver."""
    required = [model for model in host_models if model.open_modules == "required"]
    impossible = [model for model in host_models if model.open_modules == "no"]
    if required and impossible:
        raise Refused(f"{required[0].name} needs open kernel modules and {impossible[0].name} has none: the open ones "
                      f"would ignore the latter", "Put these GPUs into different hosts.")
    limited = [(model.last_branch, model) for model in host_models if model.last_branch is not None]
    floored = [(branch_of(model.first), model) for model in host_models if model.first is not None]
    if limited and floored:
        last, old = min(limited, key=lambda pair: pair[0])
        first, new = max(floored, key=lambda pair: pair[0])
        if first > last:
            raise Refused(f"no driver serves both {old.name}, whose last branch is {last}, and {new.name}, which needs "
                          f"{new.first} or newer", "Put these GPUs into different hosts.")


def check_branch(wanted: Wanted, host_models: t.Sequence[Needs], release: Release) -> None:
    """Raises Refused where a GPU of the host cannot be driven by the version."""
    too_new = [model for model in host_models if model.last_branch is not None and model.last_branch < wanted.branch]
    too_old = [model for model in host_models if model.first is not None and _older(wanted, model.first)]
    if too_new:
        model = too_new[0]
        raise Refused(f"{wanted.text} ({wanted.source}) cannot drive {model.name}, whose last branch is "
                      f"{model.last_branch}", _suggest(host_models, release))
    if too_old:
        model = too_old[0]
        raise Refused(f"{wanted.text} ({wanted.source}) cannot drive {model.name}, which needs {model.first} or newer",
                      _suggest(host_models, release))


def _older(wanted: Wanted, first: str) -> bool:
    if wanted.version is None:
        return wanted.branch < branch_of(first)
    return version_key(wanted.version) < version_key(first)


def _suggest(host_models: t.Sequence[Needs], release: Release) -> str:
    """What to set instead, of the versions that the release supports."""
    for version in release.drivers:
        wanted = Wanted(version, branch_of(version), "")
        if all((model.last_branch is None or wanted.branch <= model.last_branch)
               and (model.first is None or not _older(wanted, model.first)) for model in host_models):
            return f"Set driver.version {version!r} in the policy, or driver_version for this host."
    return f"Release {release.version} supports no driver for it: choose another release by gpu_release."


def module_type(policy: Policy, release: Release, mine: t.Mapping[str, t.Any], wanted: Wanted,
                host_models: t.Sequence[Needs]) -> tuple[str, str]:
    """(open or proprietary, why). Raises Refused where the flavour asked for drives not all GPUs."""
    asked, source = _asked_type(policy, release, mine)
    required = [model for model in host_models if model.open_modules == "required"]
    impossible = [model for model in host_models if model.open_modules == "no"]
    branch = matrix.branch(wanted.branch)
    flavours = branch.flavours if branch else ("open", "proprietary")
    if asked == "auto":
        asked, source = _choose(wanted, flavours, required, impossible)
    if asked == "open" and impossible:
        raise Refused(f"{impossible[0].name} has no open kernel modules, {source} asks for them",
                      "Set it to auto or proprietary.")
    if asked == "proprietary" and required:
        raise Refused(f"{required[0].name} needs open kernel modules, {source} asks for proprietary ones",
                      "Set it to auto or open.")
    if asked not in flavours:
        raise Refused(f"branch {wanted.branch} ({wanted.source}) has no {asked} kernel modules, {source} asks for them",
                      f"Set it to auto, or choose a branch that has {asked} modules.")
    return asked, source


def _asked_type(policy: Policy, release: Release, mine: t.Mapping[str, t.Any]) -> tuple[str, str]:
    asked = mine.get("driver_kernel_module_type")
    if asked:
        if asked not in ("auto", "open", "proprietary"):
            raise Refused(f"driver_kernel_module_type {asked!r} is not allowed", "Set auto, open or proprietary.")
        return str(asked), "driver_kernel_module_type of this host"
    # Before 25.3 the operator obeyed this switch, and nothing but it.
    switch = policy.get("driver.useOpenKernelModules")
    if switch is not None and version_key(release.version) < (25, 3):
        return ("open" if switch else "proprietary"), "driver.useOpenKernelModules"
    return str(policy.get("driver.kernelModuleType")), "driver.kernelModuleType"


def _choose(wanted: Wanted, flavours: t.Sequence[str], required: t.Sequence[Needs],
            impossible: t.Sequence[Needs]) -> tuple[str, str]:
    """What auto means here."""
    if required:
        return "open", f"auto: {required[0].name} needs open modules"
    if impossible:
        return "proprietary", f"auto: {impossible[0].name} has no open modules"
    if len(flavours) == 1:
        return flavours[0], f"auto: branch {wanted.branch} has {flavours[0]} modules only"
    first = matrix.open_by_default_from()
    if wanted.branch >= first:
        return "open", "auto: every GPU supports open modules"
    return "proprietary", f"auto: open modules are the vendor's choice from branch {first} on"
