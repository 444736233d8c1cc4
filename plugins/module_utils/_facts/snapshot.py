# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Everything that NVML tells of a host, as facts; what changes GPUs has no use for it. PRIVATE to the collection."""

from __future__ import annotations

import ctypes
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import DeviceError
from ansible_collections.gpuops.nvidia.plugins.module_utils._nvml import Nvml, text_of
from ansible_collections.gpuops.nvidia.plugins.module_utils._nvml_data import Device, compute_name


class Snapshots(Nvml):
    """A session that reads facts."""

    def snapshot(self, mig: bool = True, clients: bool = True) -> dict[str, t.Any]:
        """C({available, error, driver, library, cuda, gpus, clients}) for facts; clients: see L(clients).

        gpus: C([{pci, device_id, subsystem, model, index, uuid, minor, serial, memory_mib, compute_capability, mig,
        fabric, error}]) in order of pci. C(fabric) is C({cluster, clique}), null where the GPU has joined none.
        C(mig) is null where the GPU cannot do it, else C({enabled, pending, instances}) with
        instances C([{gi, profile, profile_id, start, size, uuids, devices}]) and devices (the MIG devices)
        C([{ci, profile, uuid, gi_slices, ci_slices, memory_mib, multiprocessors, copy, decoder, encoder, jpeg, ofa}]).
        """
        result: dict[str, t.Any] = {"available": self.available, "error": self.error, "driver": None, "library": None,
                                    "cuda": None, "gpus": [], "clients": []}
        if not self.available:
            return result
        lib = self._lib
        result["driver"] = text_of(self._try(lib.nvmlSystemGetDriverVersion))
        # The major number of the API and the library's release: 13.595.91.07.
        result["library"] = (text_of(self._try(lib.nvmlSystemGetNVMLVersion)) or "").partition(".")[2] or None
        cuda = self._try(lib.nvmlSystemGetCudaDriverVersion)
        result["cuda"] = f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else None
        for device, problem in self._find_devices():
            if not device.pci:
                result["gpus"].append({**self._unread(device), "error": problem})
                continue
            result["gpus"].append(self._facts(device, mig))
            if clients:
                result["clients"] += self.clients(device)
        result["gpus"].sort(key=lambda gpu: (gpu["pci"] is None, gpu["pci"]))
        return result

    def clients(self, device: Device) -> list[dict[str, t.Any]]:
        """The processes on a GPU, C([{pid, name, gpu, instance}]); gpu: its pci, instance: GPU instance id or null."""
        found = {(process["pid"], process["instance"]): {
            "pid": process["pid"], "name": process["name"], "gpu": device.pci, "instance": process["instance"]}
            for process in self.processes(device)}
        return list(found.values())

    @staticmethod
    def _unread(device: Device) -> dict[str, t.Any]:
        empty = dict.fromkeys(("model", "uuid", "minor", "serial", "memory_mib", "compute_capability", "mig", "fabric",
                               "error"))
        return {"pci": device.pci or None, "device_id": device.device_id or None, "subsystem": device.subsystem or None,
                "index": device.number, **empty}

    def _facts(self, device: Device, mig: bool) -> dict[str, t.Any]:
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
            mode = self.mode(device) if mig else None
            if mode is not None:
                facts["mig"] = {"enabled": mode[0], "pending": mode[1], "instances": []}
                if mode[0]:
                    facts["mig"]["instances"] = self._mig_facts(device)
        except DeviceError as error:
            facts["error"] = error.message
        return facts

    def _fabric(self, device: Device) -> dict[str, t.Any] | None:
        """The NVLink fabric beyond the machine that the GPU has joined. One within a machine has no cluster UUID."""
        info = self._lib.c_nvmlGpuFabricInfo_t()
        if self._try(self._lib.nvmlDeviceGetGpuFabricInfo, device.handle, ctypes.byref(info)) is None:
            return None
        digits = bytes(info.clusterUuid).hex()
        joined = info.state == self._lib.NVML_GPU_FABRIC_STATE_COMPLETED and info.status == self._lib.NVML_SUCCESS
        if not joined or not digits.strip("0"):
            return None
        cluster = "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
        return {"cluster": cluster, "clique": info.cliqueId}

    def _mig_facts(self, device: Device) -> list[dict[str, t.Any]]:
        lib = self._lib
        instances = {instance.id: instance for instance in self.instances(device) if instance.id is not None}
        facts: dict[int, dict[str, t.Any]] = {}
        for ident, instance in instances.items():
            facts[ident] = {"gi": ident, "profile": instance.profile.name, "profile_id": instance.profile.id,
                            "start": instance.start, "size": instance.profile.size, "uuids": [], "devices": []}
        wanted = sum(len(instance.compute) for instance in instances.values())
        for index in range(self._try(lib.nvmlDeviceGetMaxMigDeviceCount, device.handle) or 0):
            if wanted == 0:
                break
            handle = self._try(lib.nvmlDeviceGetMigDeviceHandleByIndex, device.handle, index)
            gi = None if handle is None else self._try(lib.nvmlDeviceGetGpuInstanceId, handle)
            if gi not in instances:  # an index without a device, or one made a moment ago
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
