# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads facts through NVML. PRIVATE to the collection."""

from __future__ import annotations

import ctypes
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import DeviceError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.gpus import Snapshot
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Fact
from ansible_collections.gpuops.nvidia.plugins.module_utils._nvml import Nvml, text_of
from ansible_collections.gpuops.nvidia.plugins.module_utils._nvml_data import Device, compute_name


class Snapshots(Nvml):
    """An NVML session that reads facts."""

    def snapshot(self, clients: bool = True) -> Snapshot:
        """The current facts. clients: whether to read the processes on GPUs."""
        result: Snapshot = {"available": self.available, "error": self.error, "driver": None, "library": None,
                            "cuda": None, "gpus": [], "clients": []}
        if not self.available:
            return result
        lib = self._lib
        result["driver"] = text_of(self._try(lib.nvmlSystemGetDriverVersion))
        # NVML returns the API's major version and the library's version: 13.595.91.07.
        result["library"] = (text_of(self._try(lib.nvmlSystemGetNVMLVersion)) or "").partition(".")[2] or None
        cuda = self._try(lib.nvmlSystemGetCudaDriverVersion)
        result["cuda"] = f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else None
        for device, problem in self._find_devices():
            if not device.pci:
                result["gpus"].append({**self._unread(device), "error": problem})
                continue
            result["gpus"].append(self._facts(device))
            if clients:
                result["clients"] += self._clients(device)
        result["gpus"].sort(key=lambda gpu: (gpu["pci"] is None, gpu["pci"]))
        return result

    def _clients(self, device: Device) -> list[Fact]:
        """The processes on a GPU, as L(clients.Client), with an entry for each GPU instance that they use."""
        found = {(process["pid"], process["instance"]): {
            "pid": process["pid"], "name": process["name"], "gpu": device.pci, "instance": process["instance"]}
            for process in self.processes(device)}
        return list(found.values())

    @staticmethod
    def _unread(device: Device) -> Fact:
        empty = dict.fromkeys(("model", "uuid", "minor", "serial", "memory_mib", "compute_capability", "mig", "fabric",
                               "health", "error"))
        return {"pci": device.pci or None, "device_id": device.device_id or None, "subsystem": device.subsystem or None,
                "index": device.number, **empty}

    def _facts(self, device: Device) -> Fact:
        lib, facts = self._lib, self._unread(device)
        try:
            facts["uuid"] = self.uuid(device)
            facts["model"] = text_of(self._try(lib.nvmlDeviceGetName, device.handle))
            facts["minor"] = self._try(lib.nvmlDeviceGetMinorNumber, device.handle)
            facts["serial"] = text_of(self._try(lib.nvmlDeviceGetSerial, device.handle))
            memory = self._try(lib.nvmlDeviceGetMemoryInfo, device.handle)
            facts["memory_mib"] = memory.total // 1024**2 if memory else None
            capability = self._try(lib.nvmlDeviceGetCudaComputeCapability, device.handle)
            facts["compute_capability"] = f"{capability[0]}.{capability[1]}" if capability else None
            facts["fabric"] = self._fabric(device)
            mode = self.mode(device)
            if mode is not None:
                facts["mig"] = {"enabled": mode[0], "pending": mode[1], "instances": []}
                if mode[0]:
                    facts["mig"]["instances"] = self._mig_facts(device)
        except DeviceError as error:
            facts["error"] = error.message
        return facts

    def _fabric(self, device: Device) -> Fact | None:
        """C({cluster, clique}) of the GPU's NVLink fabric; None without a fabric that spans several machines."""
        info = self._fabric_info(device)
        if info is None:
            return None
        digits = bytes(info.clusterUuid).hex()
        joined = info.state == self._lib.NVML_GPU_FABRIC_STATE_COMPLETED and info.status == self._lib.NVML_SUCCESS
        if not joined or not digits.strip("0"):
            return None
        cluster = "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
        return {"cluster": cluster, "clique": info.cliqueId}

    def _fabric_info(self, device: Device) -> t.Any:
        """NVML's structure about the GPU's NVLink fabric; None if the GPU or its driver knows none."""
        info = self._lib.c_nvmlGpuFabricInfo_t()
        known = self._try(self._lib.nvmlDeviceGetGpuFabricInfo, device.handle, ctypes.byref(info)) is not None
        return info if known else None

    def _mig_facts(self, device: Device) -> list[Fact]:
        """The fact C(gpus[].mig.instances)."""
        lib = self._lib
        instances = {instance.id: instance for instance in self.instances(device) if instance.id is not None}
        facts: dict[int, Fact] = {}
        for ident, instance in instances.items():
            facts[ident] = {"gi": ident, "profile": instance.profile.name, "profile_id": instance.profile.id,
                            "start": instance.start, "size": instance.profile.size, "uuids": [], "devices": []}
        wanted = sum(len(instance.compute) for instance in instances.values())
        for index in range(self._try(lib.nvmlDeviceGetMaxMigDeviceCount, device.handle) or 0):
            if wanted == 0:
                break
            handle = self._try(lib.nvmlDeviceGetMigDeviceHandleByIndex, device.handle, index)
            gi = None if handle is None else self._try(lib.nvmlDeviceGetGpuInstanceId, handle)
            if gi not in instances:  # no device has this index, or the device has just been created
                continue
            wanted -= 1
            has, slices = self._try(lib.nvmlDeviceGetAttributes, handle), instances[gi].profile.slices
            entry = {"uuid": text_of(self._try(lib.nvmlDeviceGetUUID, handle)),
                     "ci": self._try(lib.nvmlDeviceGetComputeInstanceId, handle)}
            if has:
                entry.update(profile=compute_name(instances[gi].profile.name, slices, has.computeInstanceSliceCount),
                             gi_slices=has.gpuInstanceSliceCount, ci_slices=has.computeInstanceSliceCount,
                             memory_mib=has.memorySizeMB, multiprocessors=has.multiprocessorCount,
                             copy=has.sharedCopyEngineCount, decoder=has.sharedDecoderCount,
                             encoder=has.sharedEncoderCount, jpeg=has.sharedJpegCount, ofa=has.sharedOfaCount)
            facts[gi]["uuids"].append(entry["uuid"])
            facts[gi]["devices"].append(entry)
        return sorted(facts.values(), key=lambda entry: entry["start"])
