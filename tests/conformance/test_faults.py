# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Faults on demand, clients that use a GPU, and what is kept after a reset or a reload of the module."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from ctypes import byref, c_uint, c_ulonglong, c_void_p
from pathlib import Path
from typing import Any

import pytest

from tests.conformance import nvml
from tests.conformance.conftest import Machine

Make = Callable[..., Machine]
Action = Callable[[nvml.Nvml, c_void_p], Any]


def code_of(action: Callable[[], Any]) -> int:
    """The NVML error of an action, 0 if there is none."""
    try:
        action()
    except nvml.NvmlError as error:
        return error.code
    return 0


def ready(machine: Make, *boards: str) -> Machine:
    """A machine whose first GPU has MIG enabled and one GPU instance with one compute instance."""
    host = machine(*(boards or ("a100-80=2",)))
    with host.nvml.session() as library:
        gpu = library.gpus()[0]
        library.set_mig_mode(gpu, 1)
        library.handle("GpuInstanceCreateComputeInstance", library.create(gpu, 9), 2)
    return host


def name_of(library: nvml.Nvml, gpu: c_void_p) -> Any:
    return library.text("DeviceGetName", gpu)


def first_instance(library: nvml.Nvml, gpu: c_void_p) -> c_void_p:
    return library.instances(gpu)[0][0]


def destroy_compute(library: nvml.Nvml, gpu: c_void_p) -> None:
    library.call("ComputeInstanceDestroy", library.compute_instances(first_instance(library, gpu))[0][0])


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ("init-unknown", nvml.UNKNOWN),
        ("driver-not-loaded", nvml.DRIVER_NOT_LOADED),
        ("lib-mismatch", nvml.LIB_RM_VERSION_MISMATCH),
    ],
)
def test_faults_of_init(fault: str, code: int, machine: Make) -> None:
    host = machine("t4=1")
    host.sim("fault", "set", fault)
    assert code_of(lambda: host.nvml.call("Init_v2")) == code
    host.sim("fault", "clear", fault)
    with host.nvml.session() as library:
        assert library.gpus()


@pytest.mark.parametrize(
    ("fault", "words", "action", "code"),
    [
        ("gpu-lost", [], name_of, nvml.GPU_IS_LOST),
        ("off-bus", [], name_of, nvml.GPU_IS_LOST),
        ("timeout", [], name_of, nvml.TIMEOUT),
        ("reset-required", [], name_of, nvml.RESET_REQUIRED),
        ("corrupted-inforom", [], name_of, nvml.CORRUPTED_INFOROM),
        ("memory-not-supported", [], lambda n, g: n.fill(nvml.Memory, "DeviceGetMemoryInfo", g), nvml.NOT_SUPPORTED),
        ("no-permission", [], lambda n, g: n.set_mig_mode(g, 0), nvml.NO_PERMISSION),
        ("no-permission", [], lambda n, g: n.create(g, 19), nvml.NO_PERMISSION),
        ("insufficient-resources", [], lambda n, g: n.create(g, 19), nvml.INSUFFICIENT_RESOURCES),
        ("create-fails-at", ["1"], lambda n, g: n.create(g, 19), nvml.INSUFFICIENT_RESOURCES),
        ("create-fails-at", ["1", "19"], lambda n, g: n.create(g, 19), nvml.IN_USE),
        ("destroy-in-use", [], destroy_compute, nvml.IN_USE),
    ],
)
def test_faults_of_one_gpu(fault: str, words: list[str], action: Action, code: int, machine: Make) -> None:
    host = ready(machine)
    with host.nvml.session() as library:
        gpu, other = library.gpus()
        host.sim("fault", "set", fault, "0", *words)
        assert code_of(lambda: action(library, gpu)) == code
        assert code_of(lambda: name_of(library, other)) == 0
        host.sim("fault", "clear", fault, "0")
        assert code_of(lambda: action(library, gpu)) == 0


def told(library: nvml.Nvml, gpu: c_void_p) -> list[int]:
    """The errors of all calls that tell the first profile of an A100, and of the call for its placements."""
    versions = ((nvml.GiProfileInfoV2, 2), (nvml.GiProfileInfoV3, 3))
    return [code_of(action) for action in (
        lambda: library.fill(nvml.GiProfileInfo, "DeviceGetGpuInstanceProfileInfo", gpu, 0),
        *(lambda kind=kind, version=version: library.fill(
            kind, "DeviceGetGpuInstanceProfileInfoV", gpu, 0, version=version) for kind, version in versions),
        lambda: library.fill(nvml.GiProfileInfoV2, "DeviceGetGpuInstanceProfileInfoByIdV", gpu, 19, version=2),
        lambda: library.placements(gpu, 19))]


@pytest.mark.parametrize(("driver", "off"), [
    ("470.256.02", nvml.NOT_SUPPORTED), ("535.309.01", nvml.NOT_SUPPORTED), ("545.23.08", nvml.NOT_SUPPORTED),
    ("550.54.14", 0), ("570.172.08", 0), ("595.91.07", 0)])
def test_profiles_while_mig_is_off(machine: Make, driver: str, off: int) -> None:
    host = machine("a100-80=2")
    host.sim("driver", driver)
    with host.nvml.session() as library:
        first, second = library.gpus()
        assert told(library, first) == told(library, second) == [off] * 5
        library.set_mig_mode(second, 1)
        assert (told(library, first), told(library, second)) == ([off] * 5, [0] * 5)
        library.create(second, 19)
        assert len(library.instances(second)) == 1


@pytest.mark.parametrize("count", [1, 7])
def test_wrong_instance_counts(machine: Make, count: int) -> None:
    """nvidia-smi, which asks for a later version of the structure, prints the right ones."""
    host = machine("a30=1")
    right = host.run("nvidia-smi", "mig", "-lgip").stdout
    host.sim("fault", "set", "profile-counts", "0", str(count))
    with host.nvml.session() as library:
        gpu = library.gpus()[0]
        answers = [library.fill(nvml.GiProfileInfo, "DeviceGetGpuInstanceProfileInfo", gpu, enum)
                   for enum in (0, 1, 3, 7, 8)]
    assert {info.instanceCount for info in answers} == {count} and [info.id for info in answers] == [14, 5, 0, 21, 6]
    assert host.run("nvidia-smi", "mig", "-lgip").stdout == right


def test_a_mode_that_only_a_reboot_applies(machine: Make) -> None:
    host = machine("a100-80=1")
    host.sim("fault", "set", "reboot-only", "0")
    with host.nvml.session() as library:
        gpu = library.gpus()[0]
        assert (library.set_mig_mode(gpu, 1), library.mig_mode(gpu)) == (nvml.RESET_REQUIRED, (0, 1))
        reset = host.run("nvidia-smi", "--gpu-reset", "-i", "0")
        assert (reset.returncode, library.mig_mode(gpu)) == (3, (0, 1)) and "Not Supported" in reset.stdout
        host.sim("reload")
        assert library.mig_mode(gpu) == (1, 1)


def test_a_gpu_off_the_bus_is_not_counted(machine: Make) -> None:
    host = machine("a100-80=3")
    with host.nvml.session() as library:
        second = library.text("DeviceGetUUID", library.gpus()[1])
        host.sim("fault", "set", "off-bus", "0")
        assert len(library.gpus()) == 2 == len(host.sim("pci").splitlines())
        assert library.text("DeviceGetUUID", library.gpus()[0]) == second


def test_one_reading_is_lost(machine: Make) -> None:
    host = machine("t4=1")
    with host.nvml.session() as library:
        gpu = library.gpus()[0]
        host.sim("fault", "set", "lost-reading", "0")
        assert [code_of(lambda: name_of(library, gpu)) for _ignored in range(2)] == [nvml.UNKNOWN, 0]


def test_the_nth_creation_fails(machine: Make) -> None:
    host = machine("a100-80=1")
    with host.nvml.session() as library:
        gpu = library.gpus()[0]
        library.set_mig_mode(gpu, 1)
        host.sim("fault", "set", "create-fails-at", "0", "3")
        codes = [code_of(lambda: library.create(gpu, 19)) for _ignored in range(5)]
        assert codes == [0, 0, nvml.INSUFFICIENT_RESOURCES, 0, 0]


def test_slow_calls_and_ecc_errors(machine: Make) -> None:
    host = machine("t4=1")
    with host.nvml.session() as library:
        gpu = library.gpus()[0]
        host.sim("fault", "set", "slow", "all", "120")
        start = time.monotonic()
        name_of(library, gpu)
        assert time.monotonic() - start > 0.1
        host.sim("fault", "clear")
        host.sim("fault", "set", "ecc-errors", "0", "7")
        count = c_ulonglong()
        library.call("DeviceGetTotalEccErrors", gpu, 1, 0, byref(count))
        assert count.value == 7


def uints(name: str, count: int) -> Callable[[nvml.Nvml, c_void_p], list[int]]:
    """A call that writes this many unsigned integers."""

    def read(library: nvml.Nvml, gpu: c_void_p) -> list[int]:
        values = [c_uint() for _each in range(count)]
        library.call(name, gpu, *map(byref, values))
        return [value.value for value in values]

    return read


def errors_ever(library: nvml.Nvml, gpu: c_void_p) -> int:
    count = c_ulonglong()
    library.call("DeviceGetTotalEccErrors", gpu, 1, 1, byref(count))
    return count.value


def is_down(library: nvml.Nvml, gpu: c_void_p) -> int:
    active = c_uint()
    library.call("DeviceGetNvLinkState", gpu, 3, byref(active))
    return int(not active.value)


def clock_reasons(library: nvml.Nvml, gpu: c_void_p) -> list[int]:
    reasons = [c_ulonglong(), c_ulonglong()]
    library.call("DeviceGetCurrentClocksEventReasons", gpu, byref(reasons[0]))
    library.call("DeviceGetCurrentClocksThrottleReasons", gpu, byref(reasons[1]))
    return [reason.value & ~1 for reason in reasons]  # without "idle"


def recovery(library: nvml.Nvml, gpu: c_void_p) -> int:
    value = nvml.FieldValue(fieldId=230)
    library.call("DeviceGetFieldValues", gpu, 1, byref(value))
    assert value.nvmlReturn == 0
    return int(value.value) & 0xFFFFFFFF


ROWS = uints("DeviceGetRemappedRows", 4)


@pytest.mark.parametrize(("fault", "board", "value", "read", "healthy", "faulty"), [
    ("ecc-aggregate", "a100-80", 7, errors_ever, 0, 7),
    ("pages-pending", "t4", 0, uints("DeviceGetRetiredPagesPendingStatus", 1), [0], [1]),
    ("rows-remapped", "a100-80", 3, ROWS, [0, 0, 0, 0], [0, 3, 0, 0]),
    ("remap-pending", "a100-80", 0, ROWS, [0, 0, 0, 0], [0, 0, 1, 0]),
    ("remap-failed", "a100-80", 0, ROWS, [0, 0, 0, 0], [0, 0, 0, 1]),
    ("nvlink-down", "a100-80", 3, is_down, 0, 1),
    ("pcie-width", "l40s", 8, uints("DeviceGetCurrPcieLinkWidth", 1), [16], [8]),
    ("pcie-generation", "l40s", 2, uints("DeviceGetCurrPcieLinkGeneration", 1), [4], [2]),
    ("slowdown", "t4", 64, clock_reasons, [0, 0], [64, 64]),
    ("recovery", "h100-80", 2, recovery, 0, 2),
    ("fabric-failed", "h100-80", 9, lambda n, g: n.fill(nvml.FabricInfo, "DeviceGetGpuFabricInfo", g).status, 0, 9),
])
def test_faults_of_health(fault: str, board: str, value: int, read: Action, healthy: Any, faulty: Any,
                          machine: Make) -> None:
    host = machine(f"{board}=2")
    for gpu in ("0", "1"):
        host.sim("client", "add", "--gpu", gpu, "python3")  # an idle GPU reduces its link
    with host.nvml.session() as library:
        gpu, other = library.gpus()
        assert read(library, gpu) == healthy
        host.sim("fault", "set", fault, "0", str(value))
        assert (read(library, gpu), read(library, other)) == (faulty, healthy)


def test_xids_are_records_of_the_kernel_log(machine: Make) -> None:
    host = machine("a100-80=2")
    assert host.sim("kmsg") == ""
    host.sim("fault", "set", "xid", "1", "79", "2")
    assert [line[:47] for line in host.sim("kmsg").splitlines()] == [
        "3,0,1000000,-;NVRM: Xid (PCI:0000:0f:00): 79, p", "3,1,2000000,-;NVRM: Xid (PCI:0000:0f:00): 79, p"]


@pytest.mark.parametrize(("fault", "status"), [("in-use", nvml.IN_USE), ("mode-pending", nvml.RESET_REQUIRED)])
def test_a_mode_change_stays_pending(fault: str, status: int, machine: Make) -> None:
    host = machine("a100-80=1")
    with host.nvml.session() as library:
        gpu = library.gpus()[0]
        host.sim("fault", "set", fault, "0")
        assert library.set_mig_mode(gpu, 1) == status
        assert library.mig_mode(gpu) == (0, 1)
        assert host.run("nvidia-smi", "--gpu-reset", "-i", "0").returncode == 0
        assert library.mig_mode(gpu) == (1, 1)


def test_a_reset_mends_or_is_refused(machine: Make) -> None:
    host = ready(machine)
    host.sim("fault", "set", "reset-required", "0")
    host.sim("fault", "set", "reset-fails", "0")
    assert host.run("nvidia-smi", "--gpu-reset", "-i", "0").returncode == nvml.IN_USE
    host.sim("fault", "clear", "reset-fails")
    assert host.run("nvidia-smi", "--gpu-reset", "-i", "0").returncode == 0
    with host.nvml.session() as library:
        gpu = library.gpus()[0]
        assert library.mig_mode(gpu) == (1, 1)
        assert library.instances(gpu) == []


def test_a_gpu_that_answers_nothing_is_reset_by_its_address(machine: Make) -> None:
    host = machine("a100-80=3")
    with host.nvml.session() as library:
        gpus = library.gpus()
        places = [library.fill(nvml.PciInfo, "DeviceGetPciInfo_v3", gpu).busId.decode() for gpu in gpus]
        host.sim("fault", "set", "reset-required", "1")
        host.sim("fault", "set", "off-bus", "0")  # the list of NVML has one place less
        told = host.run("nvidia-smi", "--gpu-reset", "-i", places[1])
        assert (told.returncode, code_of(lambda: name_of(library, gpus[1]))) == (0, 0), told.stdout
        assert f"GPU {places[1]} was successfully reset" in told.stdout
        missing = host.run("nvidia-smi", "--gpu-reset", "-i", places[0])
        assert (missing.returncode, missing.stdout) == (nvml.NOT_FOUND, "No devices were found\n")


def test_every_fault_that_is_offered_is_tested_here(machine: Make) -> None:
    offered = {line.split()[0] for line in machine("t4=1").sim("fault", "list").splitlines()}
    source = Path(__file__).read_text(encoding="utf-8")
    assert len(offered) >= 10
    assert {name for name in offered if f'"{name}"' not in source} == set()


def test_clients_hold_what_they_use(machine: Make) -> None:
    host = ready(machine)
    with host.nvml.session() as library:
        gpu, other = library.gpus()
        instance = library.instances(gpu)[0][1].id
        pid = host.sim(
            "client", "add", "--gpu", "0", "--gi", str(instance), "--ci", "0", "--memory", "1000", "trainer"
        ).strip()
        host.sim("client", "add", "--gpu", "1", "--kind", "G", "Xorg")
        assert code_of(lambda: destroy_compute(library, gpu)) == nvml.IN_USE
        assert library.set_mig_mode(other, 1) == nvml.IN_USE
        assert host.run("nvidia-smi", "--gpu-reset", "-i", "0").returncode == nvml.IN_USE
        rows, count = (nvml.ProcessInfo * 4)(), c_uint(4)
        device = library.handle("DeviceGetMigDeviceHandleByIndex", gpu, 0)
        for handle in (gpu, device):
            library.call("DeviceGetComputeRunningProcesses_v3", handle, byref(count), rows)
            found = [(row.pid, row.usedGpuMemory >> 20, row.gpuInstanceId) for row in rows[: count.value]]
            assert found == [(int(pid), 1000, instance)]
        count = c_uint(0)
        call = library.library.nvmlDeviceGetComputeRunningProcesses_v3
        assert call(gpu, byref(count), None) == nvml.INSUFFICIENT_SIZE
        assert count.value == 1
        host.sim("client", "remove", "all")
        assert code_of(lambda: destroy_compute(library, gpu)) == 0
        assert library.set_mig_mode(other, 1) == 0


def test_a_live_client_ends_with_its_process(machine: Make) -> None:
    host = machine("a100-80=1")
    with subprocess.Popen(["sleep", "60"]) as process, host.nvml.session() as library:
        gpu = library.gpus()[0]
        host.sim("client", "add", "--pid", str(process.pid), "--live", "sleep")
        assert library.set_mig_mode(gpu, 1) == nvml.IN_USE
        process.kill()
        process.wait()
        assert library.set_mig_mode(gpu, 1) == 0


def test_instances_keep_the_mode_on(machine: Make) -> None:
    host = ready(machine)
    with host.nvml.session() as library:
        gpu = library.gpus()[0]
        assert code_of(lambda: library.call("GpuInstanceDestroy", first_instance(library, gpu))) == nvml.IN_USE
        assert library.set_mig_mode(gpu, 0) == nvml.IN_USE
        destroy_compute(library, gpu)
        library.call("GpuInstanceDestroy", first_instance(library, gpu))
        assert library.set_mig_mode(gpu, 0) == 0
        assert library.mig_mode(gpu) == (0, 0)


@pytest.mark.parametrize(("board", "mode_after"), [("a100-80", 1), ("a30", 1), ("h100-80", 0), ("b200", 0)])
def test_what_survives_a_reload(board: str, mode_after: int, machine: Make) -> None:
    """Ampere keeps the MIG mode in its InfoROM, later generations do not; none keeps instances (NVIDIA MIG User
    Guide)."""
    host = machine(f"{board}=1")
    with host.nvml.session() as library:
        gpu = library.gpus()[0]
        library.set_mig_mode(gpu, 1)
        library.create(gpu, next(iter(library.profile_ids(gpu).values())))
    pid = host.sim("client", "add", "holder").strip()
    assert host.run("gpusim", "reload").returncode == 3
    host.sim("client", "remove", pid)
    host.sim("reload")
    with host.nvml.session() as library:
        gpu = library.gpus()[0]
        assert library.mig_mode(gpu) == (mode_after, mode_after)
        assert library.instances(gpu) == []


def test_driver_and_library_versions(machine: Make, tmp_path: Path) -> None:
    """The version of the library is in its real file name; the version of the module is in the driver line of the
    state."""
    host = machine("t4=1")
    shutil.copy(host.folder / "libnvidia-ml.so.1", tmp_path / "libnvidia-ml.so.570.172.08")
    (tmp_path / "libnvidia-ml.so.1").symlink_to("libnvidia-ml.so.570.172.08")
    shutil.copy(host.folder / "nvidia-smi", tmp_path)
    installed = Machine(tmp_path, host.state)
    assert installed.run("nvidia-smi").returncode == 0
    host.sim("driver", "595.91.07")
    mismatch = installed.run("nvidia-smi")
    assert (mismatch.returncode, mismatch.stdout) == (
        18,
        "Failed to initialize NVML: Driver/library version mismatch\n",
    )
    assert host.run("nvidia-smi").returncode == 0  # a library without a version goes with any module
    host.sim("driver", "none")
    absent = installed.run("nvidia-smi")
    assert absent.returncode == 9
    assert "couldn't communicate with the NVIDIA driver" in absent.stdout


@pytest.mark.parametrize(
    ("driver", "cuda"),
    [
        ("535.261.03", 12020),
        ("550.163.01", 12040),
        ("560.35.05", 12060),
        ("565.57.01", 12070),
        ("570.172.08", 12080),
        ("575.57.08", 12090),
        ("580.95.05", 13000),
        ("590.48.01", 13010),
        ("595.91.07", 13020),
        ("610.10.01", 13030),
    ],
)
def test_cuda_version_of_a_branch(driver: str, cuda: int, machine: Make) -> None:
    host = machine("--driver", driver, "t4=1")
    with host.nvml.session() as library:
        assert library.number("SystemGetCudaDriverVersion_v2") == cuda
        assert library.text("SystemGetNVMLVersion") == f"{cuda // 1000}.{driver}"


def test_init_is_counted(machine: Make) -> None:
    host = machine("t4=1")
    library = host.nvml
    assert code_of(lambda: library.call("DeviceGetCount_v2", byref(c_uint()))) == nvml.UNINITIALIZED
    with library.session():
        with library.session():
            pass
        assert library.number("DeviceGetCount_v2") == 1
    assert code_of(lambda: library.call("Shutdown")) == nvml.UNINITIALIZED


def test_a_state_that_cannot_be_written_gives_no_permission(machine: Make) -> None:
    """Write permission for the state file stands for permission to use the driver's capabilities."""
    host = machine("a100-80=1")
    with tempfile.TemporaryDirectory() as name:  # open to everybody, unlike pytest's own folders
        folder = Path(name)
        for path in (host.folder / "libnvidia-ml.so.1", host.folder / "nvidia-smi", host.state):
            shutil.copy(path, folder)
        folder.chmod(0o755)
        (folder / "state").chmod(0o444)
        nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.geteuid() == 0 else []
        environment = {**host.environment, "GPUSIM_STATE": f"{folder}/state", "LD_LIBRARY_PATH": name}
        for arguments, status in (["-L"], 0), (["-mig", "1"], nvml.NO_PERMISSION), (["-pm", "1"], nvml.NO_PERMISSION):
            result = subprocess.run(
                [*nobody, f"{folder}/nvidia-smi", *arguments],
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            assert result.returncode == status, result.stdout + result.stderr


def test_calls_are_traced(machine: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    host = machine("t4=2")
    monkeypatch.setenv("GPUSIM_TRACE", str(tmp_path / "trace"))
    with host.nvml.session() as library:
        for gpu in library.gpus():
            name_of(library, gpu)
    lines = (tmp_path / "trace").read_text(encoding="utf-8").split()
    assert lines == [
        "nvmlInit_v2",
        "nvmlDeviceGetCount_v2",
        *["nvmlDeviceGetHandleByIndex_v2"] * 2,
        *["nvmlDeviceGetName"] * 2,
        "nvmlShutdown",
    ]
