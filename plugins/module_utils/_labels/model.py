# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The data from which labels are computed. PRIVATE to the collection."""

from __future__ import annotations

import typing as t

Labels = t.Dict[str, str]
# The facts of gpu_info or a part of them. The module gpu_info documents them.
Facts = t.Mapping[str, t.Any]


class MigDevice(t.NamedTuple):
    """A MIG device. profile: `1g.10gb`, `1g.10gb+me`, `1c.2g.20gb`.

    attributes: NVML's values by suffix of the label: `memory` (MiB), `multiprocessors`, `slices.gi`, `slices.ci`,
    `engines.copy`, `engines.decoder`, `engines.encoder`, `engines.jpeg`, `engines.ofa`.
    """

    profile: str
    attributes: t.Mapping[str, int]


class Gpu(t.NamedTuple):
    """A GPU. Values that could not be read are None. If mig_devices is None, the MIG devices get no labels.

    memory_mib: the total of NVML; capability: the compute capability; pci_class: `0300` or `0302`; fabric: (cluster
    UUID, clique id), None if the GPU has no fabric.
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
    """A host. driver: the version of the loaded driver; cuda: the newest version that it supports; machine: the DMI
    product name; vgpu: (version, branch) of the hypervisor's driver, for a vGPU guest. Each is None if there is none.
    """

    gpus: t.Tuple[Gpu, ...]
    driver: str | None = None
    cuda: t.Tuple[int, int] | None = None
    machine: str | None = None
    vgpu: t.Tuple[str, str] | None = None


class Sharing(t.NamedTuple):
    """The sharing of GPUs. strategy: `none`, `time-slicing` or `mps`; replicas: by name of the resource; renamed:
    whether shared resources get another name."""

    strategy: str = "none"
    replicas: t.Mapping[str, int] | None = None
    renamed: bool = False

    def of(self, resource: str) -> int:
        """The replicas of a resource; 1 if it is not shared."""
        return (self.replicas or {}).get(resource, 1)


class Reading(t.NamedTuple):
    """The facts of a host and its labels. unread: `[{gpu, error}]`, the GPUs that could not be read completely."""

    facts: Facts
    labels: Labels
    unread: t.List[t.Dict[str, str]]
