# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What of a host's facts decides which driver suits it: equal situations get equal drivers. Pure. PRIVATE."""

from __future__ import annotations

import functools
import re
import typing as t
from dataclasses import dataclass

from ansible_collections.gpuops.nvidia.plugins.module_utils._devices import model_of
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import releases

Facts = t.Mapping[str, t.Any]


@dataclass(frozen=True)
class Needs:
    """What one model of GPU needs of a driver.

    name: C(NVIDIA B200 (blackwell)); short: C(B200); open_modules: C(no), C(optional), C(required), or None where the
    model is not known; first: the first version or branch; architecture: what the whole architecture needs.
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
    """gpus: different models, sorted. os: id and version of os-release, None where unknown. kernel: its release.

    kernel_flavour: C(generic), C(aws) ...; headers: whether modules can be built, or made buildable by a package;
    secure_boot: None (off, or not known), C(mok) (a key of DKMS is enrolled), C(unknown) (whether one is enrolled), or
    C(signed) (none is: what is built does not load). fabric: None, C(nvswitch), C(nvlink5) or C(nvlink5_rack).
    """

    gpus: t.Tuple[Needs, ...]
    os: t.Tuple[str, str] | None
    arch: str | None
    kernel: str
    kernel_flavour: str | None
    headers: bool
    secure_boot: str | None
    fabric: str | None
    vgpu: bool


def situation(facts: Facts) -> Situation:
    """Of the facts that gpu_info returned, or that were made of a Node: what those do not know excludes nothing."""
    host = facts["host"]
    kernel, system = host.get("kernel") or {}, host.get("os") or {}
    gpus = models(facts["gpus"])
    headers = kernel.get("headers") is not False or kernel.get("headers_available") is not False
    return Situation(
        tuple(gpus), (system["id"], system.get("version_id") or "") if system.get("id") else None, host.get("arch"),
        str(kernel.get("release") or ""), kernel.get("flavour"), headers, _secure_boot(host), _fabric(facts, gpus),
        bool(facts.get("vgpu")))


def _secure_boot(host: Facts) -> str | None:
    if not host.get("secure_boot"):
        return None
    enrolled = (host.get("mok") or {}).get("enrolled")
    return "unknown" if enrolled is None else "mok" if enrolled else "signed"


def _fabric(facts: Facts, gpus: t.Sequence[Needs]) -> str | None:
    known = (facts.get("nvlink") or {}).get("fabric")
    if known:
        return None if known == "none" else str(known)
    return "nvswitch" if facts.get("nvswitches") else None


def models(gpus: t.Sequence[Facts]) -> list[Needs]:
    """The different models of a host, sorted by name."""
    found = {_needs(gpu.get("device_id"), gpu.get("subsystem"), gpu.get("model"), gpu.get("architecture"))
             for gpu in gpus}
    return sorted(found, key=lambda needs: needs.name)


@functools.lru_cache(maxsize=1024)
def _needs(device_id: str | None, subsystem: str | None, text: str | None, family: str | None) -> Needs:
    """The needs of a GPU of the facts: by its model, else by its architecture."""
    model = model_of(device_id, subsystem) if device_id else None
    unnamed = f"GPU {device_id}" if device_id else f"{family or 'unknown'} GPU"
    name = text or (model.name if model else None) or unnamed
    if model is not None:
        family = model.architecture
    architecture = releases.architecture(family)
    label = f"{name} ({family})" if architecture else name
    short = short_name(name)
    if model is not None:
        return Needs(label, short, model.open_modules, model.first_driver, family, architecture, model.coherent)
    return Needs(label, short, architecture.open_modules if architecture else None, None, family, architecture, False)


def short_name(name: str) -> str:
    """C(A100) of C(NVIDIA A100-SXM4-80GB), C(RTX A6000) of C(NVIDIA RTX A6000)."""
    words = re.sub(r"^(NVIDIA|Tesla)[ -]", "", name)
    return words if re.match(r"(RTX|GeForce|Quadro|GPU)\b", words) else re.split(r"[ -]", words)[0]
