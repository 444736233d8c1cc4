# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The facts of a host on which the choice of its driver depends. Hosts with equal facts get the same driver. Pure.
PRIVATE."""

from __future__ import annotations

import functools
import re
import typing as t
from dataclasses import dataclass

from ansible_collections.gpuops.nvidia.plugins.module_utils._devices import model_of
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import releases
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.facts import Gpu, HostFacts, Machine


@dataclass(frozen=True)
class ModelRequirements:
    """The requirements of a GPU model.

    name: such as C(NVIDIA B200 (blackwell)); short: such as C(B200); open_modules: C(no), C(optional), C(required), or
    None if the model is unknown; first: the first version or branch of the driver; family: the name of the
    architecture; architecture: the requirements of the architecture; coherent: whether the model uses coherent driver
    memory.
    """

    name: str
    short: str
    open_modules: str | None
    first: str | None
    family: str | None
    architecture: releases.Architecture | None
    coherent: bool


@dataclass(frozen=True)
class Situation:
    """The facts that determine the driver. gpus: the models, sorted; os: ID and VERSION_ID of os-release, None if
    unknown; kernel: the kernel release; kernel_flavour: such as C(generic) or C(aws); headers: whether the kernel's
    headers are or can be installed; secure_boot: None (off, or unknown), C(mok) (the key of DKMS is enrolled),
    C(unknown) (it is unknown whether the key is enrolled), or C(signed) (no key is enrolled, so that only modules
    signed by the distribution are loaded); fabric: None, C(nvswitch), C(nvlink5) or C(nvlink5_rack)."""

    gpus: t.Tuple[ModelRequirements, ...]
    os: t.Tuple[str, str] | None
    arch: str | None
    kernel: str
    kernel_flavour: str | None
    headers: bool
    secure_boot: str | None
    fabric: str | None
    vgpu: bool


def situation_of(facts: HostFacts) -> Situation:
    """The situation of a host or Node. Unknown facts do not exclude any driver."""
    host = facts["host"]
    kernel, system = host["kernel"], host["os"]
    headers = kernel["headers"] is not False or kernel["headers_available"] is not False
    return Situation(
        tuple(models(facts["gpus"])), (system["id"], system["version_id"] or "") if system["id"] else None,
        host["arch"], kernel["release"] or "", kernel["flavour"], headers, _secure_boot(host), _fabric(facts),
        bool(facts["vgpu"]))


def _secure_boot(host: Machine) -> str | None:
    if not host["secure_boot"]:
        return None
    enrolled = host["mok"]["enrolled"]
    return "unknown" if enrolled is None else "mok" if enrolled else "signed"


def _fabric(facts: HostFacts) -> str | None:
    known = facts["nvlink"]["fabric"]
    if known:
        return None if known == "none" else known
    return "nvswitch" if facts["nvswitches"] else None


def models(gpus: t.Iterable[Gpu]) -> list[ModelRequirements]:
    """The requirements of the models of these GPUs, sorted by name."""
    return sorted({_requirements(gpu["device_id"], gpu["subsystem"], gpu["model"], gpu["architecture"])
                   for gpu in gpus}, key=lambda needs: needs.name)


@functools.lru_cache(maxsize=1024)
def _requirements(device_id: str | None, subsystem: str | None, text: str | None,
                  family: str | None) -> ModelRequirements:
    """The requirements of a GPU, according to its model or, if unknown, to its architecture (family)."""
    model = model_of(device_id, subsystem) if device_id else None
    unnamed = f"GPU {device_id}" if device_id else f"{family or 'unknown'} GPU"
    name = text or (model.name if model else None) or unnamed
    if model is not None:
        family = model.architecture
    architecture = releases.architecture(family)
    label = f"{name} ({family})" if architecture else name
    short = short_name(name)
    if model is not None:
        return ModelRequirements(label, short, model.open_modules, model.first_driver, family, architecture,
                                 model.coherent)
    return ModelRequirements(label, short, architecture.open_modules if architecture else None, None, family,
                             architecture, False)


def short_name(name: str) -> str:
    """A short name, such as C(A100) for C(NVIDIA A100-SXM4-80GB), or C(RTX A6000) for C(NVIDIA RTX A6000)."""
    words = re.sub(r"^(NVIDIA|Tesla)[ -]", "", name)
    return words if re.match(r"(RTX|GeForce|Quadro|GPU)\b", words) else re.split(r"[ -]", words)[0]
