# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""GPUDirect: Storage, GDRCopy, RDMA."""

from __future__ import annotations

import shutil
import typing as t
from dataclasses import replace

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.gpudirect import GpuDirect
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError, InputError

KERNEL = "6.1.0-28-amd64"
ALL = {"gds": True, "gdrcopy": True, "peermem": True}
BUILDS = [f"build/build module of GPUDirect: {name} for kernel {KERNEL}" for name in ("nvidia-fs", "gdrdrv")]
LOADS = [f"load/load module: {name}" for name in ("nvidia-fs", "gdrdrv", "nvidia-peermem")]


@pytest.fixture
def rdma(made: t.Any) -> t.Any:
    names = ("nvidia-fs", "gdrdrv")
    made.put(f"/lib/modules/{KERNEL}/modules.dep", "kernel/drivers/infiniband/core/ib_core.ko.xz:\n"
             + "".join(f"updates/dkms/{name}.ko.xz:\n" for name in names))
    for name in names:
        made.put(f"/lib/modules/{KERNEL}/updates/dkms/{name}.ko.xz")
        made.put(f"/var/lib/dkms/{name}/2.5.1/{KERNEL}/x86_64/module/{name}.ko.xz")
        (made.folder / f"var/lib/dkms/{name}/kernel-{KERNEL}-x86_64").symlink_to(f"2.5.1/{KERNEL}/x86_64")
    return made


def test_nothing_is_asked_for(made: t.Any) -> None:
    assert made.ids(GpuDirect) == []


def test_all(rdma: t.Any) -> None:
    assert rdma.ids(GpuDirect, **ALL) == [*BUILDS, *LOADS]
    rdma.do(GpuDirect, **ALL)
    assert [argv[1] for argv in rdma.asked] == ["build", "install"] * 2
    assert all("--force" in argv for argv in rdma.asked)
    rdma.works()
    rdma.now = replace(rdma.now, modules=("nvidia_peermem", "nvidia_fs", "gdrdrv", *rdma.now.modules))
    assert rdma.ids(GpuDirect, **ALL) == []


def test_another_driver_means_another_build(rdma: t.Any) -> None:
    rdma.do(GpuDirect, gdrcopy=True)
    rdma.works()
    rdma.now = replace(rdma.now, modules=("gdrdrv", *rdma.now.modules))
    rdma.desired = replace(rdma.desired, version="610.57.04", reload="why", delivered=True)
    assert rdma.ids(GpuDirect, gdrcopy=True) == [BUILDS[1], LOADS[1]]


def test_what_others_had_loaded_comes_back(made: t.Any) -> None:
    made.works()
    made.now = replace(made.now, modules=("nv_peer_mem", "gdrdrv", "nvidia_drm", *made.now.modules))
    assert made.ids(GpuDirect) == []
    made.desired = replace(made.desired, reload="why")
    assert made.ids(GpuDirect) == [f"load/load module: {name}" for name in ("nvidia-drm", "gdrdrv", "nv-peer-mem")]


def test_refusals(made: t.Any) -> None:
    with pytest.raises(HostError, match="peermem needs the module ib_core"):
        made.ids(GpuDirect, peermem=True)
    made.desired = replace(made.desired, flavour="proprietary")
    with pytest.raises(InputError, match="needs open kernel modules"):
        made.ids(GpuDirect, gds=True)


def test_the_run_file_brings_neither(rdma: t.Any, made: t.Any) -> None:
    made.desired = replace(made.desired, source="runfile")
    assert rdma.ids(GpuDirect, gds=True)  # known to DKMS already
    shutil.rmtree(made.folder / "var/lib/dkms/nvidia-fs")
    with pytest.raises(HostError, match="does not contain nvidia-fs"):
        made.ids(GpuDirect, gds=True)


def test_disagreements(made: t.Any) -> None:
    made.works()
    assert made.part(GpuDirect, gdrcopy=True).disagreements(made.now, made.desired) == ["gdrdrv is not loaded"]
