# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The CUDA sample: with a library that really adds, and the results for every kind of failure."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import signal
import subprocess
import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils import _cuda
from ansible_collections.gpuops.nvidia.plugins.module_utils._cuda import samples

from lab.stages import ROOT


def gpu(pci: str, uuid: str | None = "GPU-1", mig: t.Any = None, error: str | None = None) -> dict[str, t.Any]:
    return {"pci": pci, "uuid": uuid, "mig": mig, "error": error}


def seen(*gpus: dict[str, t.Any], clients: t.Sequence[dict[str, t.Any]] = ()) -> dict[str, t.Any]:
    return {"available": True, "error": None, "gpus": list(gpus), "clients": list(clients)}


def test_what_is_tried_on_which_device(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def check(devices: t.Sequence[str], limit: float) -> dict[str, t.Any]:
        asked.extend(devices)
        return {device: {"state": "ok", "reason": ""} for device in devices}

    monkeypatch.setattr("ansible_collections.gpuops.nvidia.plugins.module_utils._cuda.check", check)
    cut = {"enabled": True, "pending": True, "instances": [{"uuids": ["MIG-a", "MIG-b"]}, {"uuids": ["MIG-c"]}]}
    found = samples(seen(gpu("0"), gpu("1", "GPU-2", cut), gpu("2", "GPU-3", {**cut, "instances": []}),
                         gpu("3", None, error="GPU_IS_LOST"), gpu("4", "GPU-5"),
                         clients=[{"gpu": "4", "name": "train", "pid": 7, "instance": None}]), 10)
    assert asked == ["GPU-1", "MIG-a"]
    assert [(one["gpu"], one["state"]) for one in found] == [("0", "ok"), ("1", "ok"), ("2", "busy"), ("3", "failed"),
                                                             ("4", "busy")]
    assert found[4]["reason"] == "train (pid 7) computes on it" and "GPU_IS_LOST" in found[3]["reason"]


def test_without_a_driver() -> None:
    broken = {"available": False, "error": "NVML cannot be used (DRIVER_NOT_LOADED).", "gpus": [], "clients": []}
    assert samples(broken, 10) == [{"gpu": None, "device": None, "state": "failed", "reason": broken["error"]}]
    assert samples({**broken, "error": None}, 10)[0]["reason"] == "no driver is installed"
    assert samples(seen(), 10)[0]["state"] == "failed"


def _refuse(code: int) -> t.Callable[[str], None]:
    def sample(_device: str) -> None:
        raise _cuda.Failure("refused", code)
    return sample


def test_each_device_has_a_process_of_its_own() -> None:
    def sample(device: str) -> None:
        if os.environ["CUDA_VISIBLE_DEVICES"] != device:
            raise _cuda.Failure("sees another device")
        if device == "dies":
            os.kill(os.getpid(), 9)

    found = _cuda.check(["GPU-1", "dies", "GPU-2"], 10, sample)
    assert [found[name]["state"] for name in ("GPU-1", "dies", "GPU-2")] == ["ok", "failed", "ok"]
    assert "CUDA_VISIBLE_DEVICES" not in os.environ
    assert _cuda.check(["x"], 10, _refuse(46)) == {"x": {"state": "busy", "reason": "refused"}}
    assert _cuda.check(["x"], 10, _refuse(719)) == {"x": {"state": "failed", "reason": "refused"}}


def test_what_hangs_is_ended() -> None:
    found = _cuda.check(["a", "b"], 0.5, lambda _device: signal.pause())
    assert {one["reason"] for one in found.values()} == {"it did not end within 0 s"}


def test_descriptors_above_1023(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process with many open files has such pipes, and select accepts none of them."""
    pipe, limits = os.pipe, resource.getrlimit(resource.RLIMIT_NOFILE)

    def high() -> tuple[int, int]:
        ends = pipe()
        moved = fcntl.fcntl(ends[0], fcntl.F_DUPFD, 1024), fcntl.fcntl(ends[1], fcntl.F_DUPFD, 1024)
        for end in ends:
            os.close(end)
        return moved

    monkeypatch.setattr(os, "pipe", high)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(1100, limits[0]), limits[1]))
    try:
        assert _cuda.check(["x"], 10, lambda _device: None) == {"x": {"state": "ok", "reason": ""}}
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


# As much of NVML as the lab's libcuda asks: one GPU; its trouble by a variable.
NVML = """
#include <stdlib.h>
int nvmlInit_v2(void) { char *rc = getenv("NVML_RC"); return rc ? atoi(rc) : 0; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 1; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **h) { *h = (void *)1; return i; }
int nvmlDeviceGetHandleByUUID(const char *u, void **h) { *h = (void *)1; return u[0] != 'G'; }
int nvmlDeviceGetName(void *h, char *n, unsigned l) { (void)h; (void)l; n[0] = 0; return 0; }
"""


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The libcuda of the lab with a simulated NVML; it finds its device node where the test puts one."""
    folder = tmp_path_factory.mktemp("cuda")
    text = (ROOT / "lab/packages/files/libcuda.c").read_text().replace("/dev/nvidia-uvm", str(folder / "uvm"))
    (folder / "libcuda.c").write_text(text)
    (folder / "nvml.c").write_text(NVML)
    for source, name in (("nvml.c", "libnvidia-ml.so.1"), ("libcuda.c", "libcuda.so.1")):
        subprocess.run(["gcc", "-shared", "-fPIC", "-DCUDA=13020", str(folder / source), "-o", str(folder / name)],
                       check=True)
    return folder


def _try(libraries: Path, device: str, **environment: str) -> dict[str, str]:
    """Runs the sample in a Python that finds these libraries."""
    script = ("from ansible_collections.gpuops.nvidia.plugins.module_utils import _cuda; import json, sys;"
              "print(json.dumps(_cuda.check([sys.argv[1]], 20)[sys.argv[1]]))")
    done = subprocess.run(["python3", "-c", script, device], check=True, capture_output=True, text=True, timeout=60,
                          env={**os.environ, "LD_LIBRARY_PATH": str(libraries), **environment})
    return t.cast("dict[str, str]", json.loads(done.stdout))


def test_a_gpu_adds(libraries: Path) -> None:
    (libraries / "uvm").touch()
    assert _try(libraries, "GPU-1") == {"state": "ok", "reason": ""}


@pytest.mark.parametrize(("device", "environment", "text"), [
    ("none", {}, "cuInit: CUDA_ERROR_NO_DEVICE (CUDA finds no GPU that it can use)"),
    ("GPU-1", {"NVML_RC": "18"}, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"),
    ("GPU-1", {"NVML_RC": "9"}, "CUDA_ERROR_NO_DEVICE"),
    ("GPU-1", {"LD_LIBRARY_PATH": "/nonexistent"}, "libcuda.so.1 is not installed")])
def test_trouble_has_a_name(libraries: Path, device: str, environment: dict[str, str], text: str) -> None:
    (libraries / "uvm").touch()
    found = _try(libraries, device, **environment)
    assert found["state"] == "failed" and text in found["reason"]


def test_without_unified_memory(libraries: Path) -> None:
    (libraries / "uvm").unlink(missing_ok=True)
    assert "CUDA_ERROR_UNKNOWN (check that nvidia-uvm is loaded" in _try(libraries, "GPU-1")["reason"]
