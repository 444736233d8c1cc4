# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Collects the facts that labels need. Modules that import only this file have a smaller payload. PRIVATE."""

from __future__ import annotations

from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.gpus import Snapshot, merge_gpus
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.pci import Bus, read_bus
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Fact, Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.snapshot import Snapshots
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.system import read_machine
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.versions import loaded_version


def nvml_snapshot(clients: bool = True) -> Snapshot:
    """The facts of a new NVML session, see L(snapshot.Snapshots.snapshot). Raises only MissingLibrary."""
    with Snapshots() as nvml:
        return nvml.snapshot(clients)


def collect_devices(root: Root, snapshot: Snapshot) -> Fact:
    """The part of L(collect.collect) that labels need: C({host: {machine}, gpus, vgpu, driver: {loaded, nvml}})."""
    bus = read_bus(root)
    return {"host": {"machine": read_machine(root)}, "gpus": merge_gpus(bus, snapshot), "vgpu": vgpu_fact(bus),
            "driver": {"loaded": loaded_version(root) or snapshot["driver"], "nvml": nvml_fact(snapshot)}}


def nvml_fact(snapshot: Snapshot) -> Fact:
    """The fact C(driver.nvml) of gpu_info: C({available, error, cuda})."""
    return {"available": snapshot["available"], "error": snapshot["error"], "cuda": snapshot["cuda"]}


def vgpu_fact(bus: Bus) -> dict[str, str] | None:
    """The fact C(vgpu) of gpu_info: C({version, branch}) of the host's driver, None outside a vGPU guest."""
    return None if bus.vgpu is None else {"version": bus.vgpu[0], "branch": bus.vgpu[1]}
