# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What labels are computed from: plain values, no device, no file. PRIVATE to the collection."""

from __future__ import annotations

import typing as t

Labels = t.Dict[str, str]


class MigDevice(t.NamedTuple):
    """One MIG device. profile: C(1g.10gb), C(1g.10gb+me), C(1c.2g.20gb).

    attributes: what NVML says of it, by label suffix: C(memory) (MiB), C(multiprocessors), C(slices.gi),
    C(slices.ci), C(engines.copy), C(engines.decoder), C(engines.encoder), C(engines.jpeg), C(engines.ofa).
    """

    profile: str
    attributes: t.Mapping[str, int]


class Gpu(t.NamedTuple):
    """One GPU. None is what could not be read; for C(mig_devices) then nothing is said of them.

    memory_mib: NVML's total. capability: compute capability. pci_class: C(0300) or C(0302).
    fabric: C((cluster UUID, clique id)) where the GPU is attached to a fabric.
    """

    name: str | None
    memory_mib: int | None = None
    capability: t.Tuple[int, int] | None = None
    mig_capable: bool = False
    mig_enabled: bool = False
    mig_devices: t.Tuple[MigDevice, ...] | None = ()
    pci_class: str = "0302"
    fabric: t.Tuple[str, int] | None = None


class Node(t.NamedTuple):
    """One host. driver, cuda: None before a driver runs; cuda: the newest CUDA that the driver serves.

    machine: DMI product name. vgpu: C((version, branch)) of the host's driver for a vGPU guest.
    """

    gpus: t.Tuple[Gpu, ...]
    driver: str | None = None
    cuda: t.Tuple[int, int] | None = None
    machine: str | None = None
    vgpu: t.Tuple[str, str] | None = None


class Sharing(t.NamedTuple):
    """How GPUs are shared. strategy: C(none), C(time-slicing) or C(mps); replicas by resource name
    (C(nvidia.com/gpu)); renamed: whether shared resources get another name."""

    strategy: str = "none"
    replicas: t.Mapping[str, int] | None = None
    renamed: bool = False

    def of(self, resource: str) -> int:
        """The replicas of a resource; 1 where it is not shared."""
        return (self.replicas or {}).get(resource, 1)


class Reading(t.NamedTuple):
    """What one look at a host told. facts: of its GPUs; labels: of the host; unread: GPUs that could not be read."""

    facts: t.Dict[str, t.Any]
    labels: Labels
    unread: t.List[t.Dict[str, str]]
