# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Finds the packages of the driver and of the container toolkit by their names. Pure. PRIVATE to the collection."""

from __future__ import annotations

import typing as t

_TOOLKIT = ("nvidia-container-", "libnvidia-container")
# A script of the toolkit's packages writes this file.
TOOLKIT_SETTINGS = "/etc/nvidia-container-runtime/config.toml"
# The default address and port of the DCGM exporter. Source: NVIDIA/dcgm-exporter, its option --address.
EXPORTER_ADDRESS = ":9400"
# Other packages with such names: CUDA, profilers, file system, tools.
_NOT_DRIVER = ("nvidia-cuda-", "nvidia-nsight", "nvidia-gds", "nvidia-fs", "nvidia-mig-", "nvidia-docker",
               "nvidia-profiler", "nvidia-visual-profiler", "nvidia-detect")
_DRIVER = ("nvidia", "libnvidia", "libnvsdm", "libcuda1", "cuda-drivers", "nvlsm", "kmod-nvidia",
           "linux-modules-nvidia", "linux-objects-nvidia", "linux-signatures-nvidia", "xserver-xorg-video-nvidia",
           "firmware-nvidia", "dnf-plugin-nvidia", "xorg-x11-nvidia")
Value = t.TypeVar("Value")


def driver_packages(packages: t.Mapping[str, Value]) -> dict[str, Value]:
    """The packages of the driver: its libraries, modules, firmware and services."""
    return {name: package for name, package in sorted(packages.items()) if is_driver(name)}


def is_driver(name: str) -> bool:
    """Whether a package of this name belongs to the driver."""
    return name.startswith(_DRIVER) and not name.startswith(_TOOLKIT + _NOT_DRIVER)


def toolkit_packages(packages: t.Mapping[str, Value]) -> dict[str, Value]:
    """The packages of the container toolkit."""
    return {name: package for name, package in sorted(packages.items()) if name.startswith(_TOOLKIT)}
