# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Adds two vectors on a GPU with the CUDA driver API, and explains failures.

This needs no compiler and no toolkit: the driver compiles the PTX of the kernel for the GPU. The PTX is for Maxwell,
the oldest architecture that current drivers support. Source: CUDA Driver API; PTX ISA 5.0.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import time
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Fact

if t.TYPE_CHECKING:
    from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.gpus import Snapshot

LIBRARY = "libcuda.so.1"
_COUNT = 1024
_BLOCK = 128
_PTX = b"""\
.version 5.0
.target sm_50
.address_size 64
.visible .entry add_vectors(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n)
{
    .reg .pred %outside;
    .reg .b32 %i, %count, %block, %size, %thread;
    .reg .b64 %pa, %pb, %pc, %offset;
    .reg .f32 %x, %y, %z;
    mov.u32 %block, %ctaid.x;
    mov.u32 %size, %ntid.x;
    mov.u32 %thread, %tid.x;
    mad.lo.s32 %i, %block, %size, %thread;
    ld.param.u32 %count, [n];
    setp.ge.u32 %outside, %i, %count;
    @%outside bra end;
    ld.param.u64 %pa, [a];
    ld.param.u64 %pb, [b];
    ld.param.u64 %pc, [c];
    cvta.to.global.u64 %pa, %pa;
    cvta.to.global.u64 %pb, %pb;
    cvta.to.global.u64 %pc, %pc;
    mul.wide.u32 %offset, %i, 4;
    add.s64 %pa, %pa, %offset;
    add.s64 %pb, %pb, %offset;
    add.s64 %pc, %pc, %offset;
    ld.global.f32 %x, [%pa];
    ld.global.f32 %y, [%pb];
    add.f32 %z, %x, %y;
    st.global.f32 [%pc], %z;
end:
    ret;
}
"""
# Error codes of cuda.h, with their cause on a host. Messages contain the number of other codes.
_ERRORS = {
    2: ("CUDA_ERROR_OUT_OF_MEMORY", "the GPU has no memory left"),
    3: ("CUDA_ERROR_NOT_INITIALIZED", ""),
    46: ("CUDA_ERROR_DEVICE_UNAVAILABLE",
         "another process uses the GPU, whose compute mode is exclusive; or its compute mode is prohibited"),
    100: ("CUDA_ERROR_NO_DEVICE", "CUDA finds no GPU that it can use"),
    101: ("CUDA_ERROR_INVALID_DEVICE", ""),
    209: ("CUDA_ERROR_NO_BINARY_FOR_GPU", ""),
    214: ("CUDA_ERROR_ECC_UNCORRECTABLE", "memory of the GPU has an error that cannot be corrected"),
    218: ("CUDA_ERROR_INVALID_PTX", "the driver does not compile PTX: libnvidia-ptxjitcompiler may be missing"),
    221: ("CUDA_ERROR_JIT_COMPILER_NOT_FOUND", "libnvidia-ptxjitcompiler is missing"),
    700: ("CUDA_ERROR_ILLEGAL_ADDRESS", ""),
    719: ("CUDA_ERROR_LAUNCH_FAILED", ""),
    802: ("CUDA_ERROR_SYSTEM_NOT_READY", "the NVSwitches are not configured: a fabric manager with the version of the "
          "driver must run"),
    803: ("CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "kernel module and libraries have different versions"),
    804: ("CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", ""),
    999: ("CUDA_ERROR_UNKNOWN", "check that nvidia-uvm is loaded and /dev/nvidia-uvm exists"),
}
# Errors because other processes use the GPU, which works.
_IN_USE = (2, 46)


class Failure(Exception):
    """A failed call. state: C(busy) or C(failed)."""

    def __init__(self, reason: str, code: int = 0) -> None:
        super().__init__(reason)
        self.state = "busy" if code in _IN_USE else "failed"


def samples(snapshot: Snapshot, timeout: float) -> list[Fact]:
    """The result C(samples) of gpu_info. snapshot: that of NVML. timeout: seconds for all devices together."""
    if not snapshot["available"]:
        return [{"gpu": None, "device": None, "state": "failed",
                 "reason": snapshot["error"] or "no driver is installed"}]
    if not snapshot["gpus"]:
        return [{"gpu": None, "device": None, "state": "failed", "reason": "the driver has no GPU"}]
    used: dict[str, str] = {}
    for client in snapshot["clients"]:
        used.setdefault(client["gpu"], f"{client['name'] or 'a process'} (pid {client['pid']}) computes on it")
    rows = [_row(gpu, used.get(gpu["pci"], "")) for gpu in snapshot["gpus"]]
    results = check([row["device"] for row in rows if row["state"] is None], timeout)
    return [{**row, **(results[row["device"]] if row["state"] is None else {})} for row in rows]


def _row(gpu: Fact, used: str) -> Fact:
    """A GPU as C({gpu, device, state, reason}); state is None if the device should be tested."""
    devices = [gpu["uuid"]]
    if gpu["mig"] and gpu["mig"]["enabled"]:
        devices = [uuid for instance in gpu["mig"]["instances"] for uuid in instance["uuids"]]
    row: Fact = {"gpu": gpu["pci"], "device": devices[0] if devices else None, "state": None, "reason": ""}
    if gpu["error"] or gpu["uuid"] is None:
        row.update(device=None, state="failed", reason=f"the GPU does not answer: {gpu['error']}")
    elif used:
        row.update(state="busy", reason=used)
    elif not devices:
        row.update(state="busy", reason="MIG is enabled, but there is no MIG device")
    return row


def check(devices: t.Sequence[str], limit: float, sample: t.Callable[[str], None] | None = None) -> dict[str, Fact]:
    """UUID of each GPU or MIG device to C({state, reason}), with state C(ok), C(busy) or C(failed).

    A separate process, which sees only this device, tests each device; all run in parallel. limit: seconds for all.
    """
    children = {device: _fork(device, sample or add_vectors) for device in devices}
    deadline = time.monotonic() + limit
    found = {}
    for device, (pid, pipe) in children.items():
        output = b""
        with os.fdopen(pipe, "rb", buffering=0) as stream:
            ready = select.poll()  # select does not support descriptors above 1023
            ready.register(stream, select.POLLIN)
            while ready.poll(max(0.0, deadline - time.monotonic()) * 1000):
                part = stream.read(65536)
                if not part:
                    break
                output += part
            else:
                os.kill(pid, signal.SIGKILL)
        _ignored, status = os.waitpid(pid, 0)
        try:
            found[device] = json.loads(output)
        except ValueError:
            ended = f"it did not end within {limit:.0f} s" if status == signal.SIGKILL else \
                f"the process that ran it ended with status {status}"
            found[device] = {"state": "failed", "reason": ended}
    return found


def _fork(device: str, sample: t.Callable[[str], None]) -> tuple[int, int]:
    """C((pid, pipe)) of a process that tests a device. The parent must never use CUDA, or its children could not."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    try:
        os.close(reading)
        os.environ["CUDA_VISIBLE_DEVICES"] = device
        result = {"state": "ok", "reason": ""}
        try:
            sample(device)
        except Failure as failure:
            result = {"state": failure.state, "reason": str(failure)}
        os.write(writing, json.dumps(result).encode())
    finally:
        os._exit(0)


def add_vectors(_device: str) -> None:
    """Adds two vectors of 1024 numbers on the only visible device. Raises Failure."""
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError:
        raise Failure(f"{LIBRARY} is not installed: the compute packages of the driver are missing") from None

    def call(name: str, *arguments: object) -> None:
        code = getattr(library, name)(*arguments)
        if code:
            known, meaning = _ERRORS.get(code, (f"error {code}", ""))
            raise Failure(f"{name}: {known}{f' ({meaning})' if meaning else ''}", code)

    call("cuInit", 0)
    device, context, module, function = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuCtxCreate_v2", ctypes.byref(context), 0, device)
    try:
        call("cuModuleLoadData", ctypes.byref(module), _PTX)
        call("cuModuleGetFunction", ctypes.byref(function), module, b"add_vectors")
        size = ctypes.c_size_t(4 * _COUNT)
        numbers = (ctypes.c_float * _COUNT)(*range(_COUNT))
        places = [ctypes.c_uint64() for _vector in range(3)]
        for place in places:
            call("cuMemAlloc_v2", ctypes.byref(place), size)
        for place in places[:2]:
            call("cuMemcpyHtoD_v2", place, numbers, size)
        count = ctypes.c_uint(_COUNT)
        words = (ctypes.c_void_p * 4)(*(ctypes.addressof(one) for one in [*places, count]))
        call("cuLaunchKernel", function, _COUNT // _BLOCK, 1, 1, _BLOCK, 1, 1, 0, None, words, None)
        call("cuCtxSynchronize")
        answer = (ctypes.c_float * _COUNT)()
        call("cuMemcpyDtoH_v2", answer, places[2], size)
        if list(answer) != [2.0 * number for number in range(_COUNT)]:
            raise Failure("the GPU computes wrong sums")
    finally:
        library.cuCtxDestroy_v2(context)
