# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""NVML as plain data, through pynvml on the library of the lab, with GPUs that are healthy, faulty, busy or missing."""

from __future__ import annotations

import ctypes
import importlib
import shutil
import sys
import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils import _nvml
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import DeviceError, MissingLibrary
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._nvml import Nvml
from ansible_collections.gpuops.nvidia.plugins.module_utils._program import pynvml
from ansible_collections.gpuops.nvidia.plugins.module_utils._pynvml import source

from lab.nvml.build import build
from tests.conformance.conftest import Machine

pytestmark = pytest.mark.skipif(not (shutil.which("make") and shutil.which("cc")), reason="it needs a C compiler")
Make = t.Callable[..., Machine]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    def make(*boards: str) -> Machine:
        made = Machine(build(), tmp_path / "state")
        monkeypatch.setenv("GPUSIM_STATE", str(made.state))
        made.sim("init", "--driver", "595.91.07", *boards)
        return made

    return make


@pytest.fixture
def sliced(machine: Make) -> t.Iterator[tuple[Machine, Nvml]]:
    """An A100 in MIG mode with a 3g instance at 4 in two parts and a 1g instance at 0; and a second A100."""
    host = machine("a100-80=2")
    with Nvml() as nvml:
        device = nvml.set_mode(nvml.devices()[0], True)
        profiles = {profile.name: profile for profile in nvml.profiles(device, True)}
        three = nvml.create(device, profiles["3g.40gb"], 4)
        nvml.create_compute(device, profiles["3g.40gb"], three, 2, 0)
        nvml.create_compute(device, profiles["3g.40gb"], three, 1, 2)
        one = nvml.create(device, profiles["1g.10gb"], 0)
        nvml.create_compute(device, profiles["1g.10gb"], one, 1, 0)
        yield host, nvml


def lies(nvml: Nvml, number: int = 0) -> list[tuple[str, int, list[tuple[int, int]]]]:
    return [(one.profile.name, one.start, [(part.slices, part.start) for part in one.compute])
            for one in nvml.instances(nvml.devices()[number])]


def test_gpus(machine: Make) -> None:
    machine("a100-80=1", "t4=1")
    with Nvml() as nvml:
        assert (nvml.available, nvml.error) == (True, None)
        first, second = nvml.devices()
        assert (first.number, first.device_id, second.device_id) == (0, "20b2", "1eb8")
        assert first.pci < second.pci and first.pci.count(":") == 2 and first.pci.endswith(".0")
        assert first.board == f"20b2/{first.subsystem}" and first.subsystem.startswith("10de:")
        assert [uuid for uuid, _device in nvml.answering()] == [nvml.uuid(first), nvml.uuid(second)]
        assert nvml.uuid(first).startswith("GPU-")
        assert (nvml.mode(first), nvml.mode(second)) == ((False, False), None)


def test_a_lost_gpu_is_named_and_the_others_answer(machine: Make) -> None:
    host = machine("a100-80=2")
    host.sim("fault", "set", "gpu-lost", "1")
    with Nvml() as nvml:
        assert [device.number for device in nvml.devices()] == [0]
        assert nvml.silent == [(1, "GPU_IS_LOST")]
        assert [device.number for _uuid, device in nvml.answering()] == [0]


def test_profiles_are_asked_once_for_a_model(machine: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine("a100-80=2")
    monkeypatch.setenv("GPUSIM_TRACE", str(tmp_path / "trace"))
    with Nvml() as nvml:
        found = [nvml.profiles(device, False) for device in nvml.devices()]
    assert found[0] is found[1]
    names = {profile.name: profile for profile in found[0]}
    assert names["3g.40gb"].starts == (0, 4) and names["3g.40gb"].size == 4 and names["3g.40gb"].slices == 3
    assert names["1g.10gb"].instances == 7 and names["1g.10gb+me"].instances == 1
    calls = (tmp_path / "trace").read_text().split()
    assert calls.count("nvmlDeviceGetGpuInstancePossiblePlacements_v2") == len(names)


def test_before_r550_profiles_are_told_only_while_mig_is_on(machine: Make) -> None:
    host = machine("a100-80=2")
    host.sim("driver", "535.309.01")
    with Nvml() as nvml:
        first, second = nvml.devices()
        assert nvml.profiles(first, False) == nvml.told_by_equal(first) == []
        second = nvml.set_mode(second, True)
        assert nvml.told_by_equal(first) == []
        told = nvml.profiles(second, True)
        assert len(told) == 7 and nvml.told_by_equal(first) is told and nvml.profiles(first, False) == []
        first = nvml.set_mode(first, True)
        assert nvml.instances(first) == [] and nvml.profiles(first, True) is told


def test_a_profile_that_cannot_be_read_is_no_missing_one(machine: Make) -> None:
    host = machine("a100-80=1")
    with Nvml() as nvml:
        device = nvml.devices()[0]
        host.sim("fault", "set", "lost-reading", "0")
        total = type("Memory", (), {"total": 80 * 1024**3})
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(nvml._lib, "nvmlDeviceGetMemoryInfo", lambda _handle: total)
            with pytest.raises(DeviceError, match="nvmlDeviceGetGpuInstanceProfileInfo failed with UNKNOWN"):
                nvml.profiles(device, False)
        assert len(nvml.profiles(device, False)) == 7


def test_instances_with_their_parts(sliced: tuple[Machine, Nvml]) -> None:
    _host, nvml = sliced
    wanted = [("1g.10gb", 0, [(1, 0)]), ("3g.40gb", 4, [(2, 0), (1, 2)])]
    assert lies(nvml) == wanted
    with Nvml() as another:  # what one session has made another sees alike
        assert lies(another) == wanted
        ids = {instance.id for instance in another.instances(another.devices()[0])}
        assert len(ids) == 2 and None not in ids
    assert nvml.instances(nvml.devices()[0])[0].id is None


def test_parts_and_instances_go(sliced: tuple[Machine, Nvml]) -> None:
    _host, nvml = sliced
    device = nvml.devices()[0]
    one, three = nvml.instances(device)
    with pytest.raises(DeviceError, match="nvmlGpuInstanceDestroy failed with IN_USE") as caught:
        nvml.destroy(device, one)
    assert caught.value.details["name"] == "IN_USE" and "fuser" in caught.value.hint
    nvml.destroy_compute(device, three.compute[0])
    assert lies(nvml)[1] == ("3g.40gb", 4, [(1, 2)])
    nvml.destroy_compute(device, one.compute[0])
    nvml.destroy(device, one)
    assert [row[0] for row in lies(nvml)] == ["3g.40gb"]


@pytest.mark.parametrize("meanwhile", ["destroyed", "closed", "mode"])
def test_a_handle_that_is_used_again_is_another_instance(machine: Make, monkeypatch: pytest.MonkeyPatch,
                                                         meanwhile: str) -> None:
    """The placement of an instance is cached by its handle, only as long as the handle is valid for it."""
    machine("a100-80=1")
    monkeypatch.setattr(_nvml, "_address", lambda _handle: 1)
    with Nvml() as nvml, Nvml() as other:
        device = nvml.set_mode(nvml.devices()[0], True)
        small = next(profile for profile in nvml.profiles(device, True) if profile.name == "1g.10gb")
        nvml.create(device, small, 0)
        if meanwhile == "closed":
            nvml.close()
        if meanwhile == "destroyed":
            nvml.destroy(device, nvml.instances(device)[0])
        else:
            there = other.devices()[0]
            other.destroy(there, other.instances(there)[0])
        if meanwhile == "mode":
            nvml.set_mode(device, False)
            nvml.set_mode(device, True)
        other.create(other.devices()[0], small, 2)
        if meanwhile == "closed":
            nvml.open()
        assert [row[:2] for row in lies(nvml)] == [("1g.10gb", 2)]


def test_the_handle_of_now(machine: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    machine("a100-80=1")
    with Nvml() as nvml:
        device = nvml.devices()[0]
        asked = []
        monkeypatch.setattr(nvml._lib, "nvmlDeviceGetHandleByPciBusId", lambda pci: asked.append(pci) or "another")
        assert nvml.reopen(device) == device._replace(handle="another")
        assert nvml.set_mode(device, True).handle == "another"
        assert asked == [device.pci.encode()] * 2


def test_what_cannot_be_made_is_refused(sliced: tuple[Machine, Nvml]) -> None:
    _host, nvml = sliced
    device = nvml.devices()[0]
    profiles = {profile.name: profile for profile in nvml.profiles(device, True)}
    one = nvml.instances(device)[0]
    with pytest.raises(DeviceError, match="A 1g.10gb has no compute instance of 2 slices"):
        nvml.create_compute(device, profiles["1g.10gb"], one.handle, 2, 0)
    with pytest.raises(DeviceError) as caught:
        nvml.create(device, profiles["7g.80gb"], 0)
    assert (caught.value.details["name"], caught.value.details["gpu"]) == ("INSUFFICIENT_RESOURCES", device.pci)
    assert (caught.value.details["code"], caught.value.details["call"]) == (
        19 if caught.value.details["name"] == "IN_USE" else 23, "nvmlDeviceCreateGpuInstanceWithPlacement")


def test_processes_by_pid_with_their_instances(sliced: tuple[Machine, Nvml]) -> None:
    host, nvml = sliced
    first, second = nvml.devices()
    ids = dict(zip(("one", "three"), (int(line.split()[2]) for line in sorted(
        (line for line in host.sim("show").splitlines() if line.startswith("gi ")),
        key=lambda line: int(line.split()[4]))), strict=True))
    assert (nvml.processes(first), nvml.processes(second)) == ([], [])
    host.sim("client", "add", "--pid", "4242", "--gpu", "0", "--gi", str(ids["three"]), "--ci", "0", "job")
    host.sim("client", "add", "--pid", "77", "--gpu", "1", "--kind", "G", "display")
    assert [(one["pid"], one["instance"], one["compute"]) for one in nvml.processes(first)] == [
        (4242, ids["three"], 0)]
    assert [(one["pid"], one["instance"], one["compute"]) for one in nvml.processes(second)] == [(77, None, None)]
    assert nvml.processes(second)[0]["name"] == "display"


def test_a_reset_needs_the_session_closed_and_gives_new_handles(sliced: tuple[Machine, Nvml]) -> None:
    _host, nvml = sliced
    device = nvml.devices()[1]
    nvml.close()
    nvml.close()  # once more does no harm
    assert not nvml.available
    nvml.open()
    again = nvml.reopen(device)
    assert again._replace(handle=None) == device._replace(handle=None)
    assert nvml.mode(again) == (False, False)
    assert lies(nvml)[1][1] == 4


@pytest.mark.parametrize(("fault", "name", "words"), [
    ("driver-not-loaded", "DRIVER_NOT_LOADED", "modprobe nvidia"),
    ("lib-mismatch", "LIB_RM_VERSION_MISMATCH", "different versions"),
    ("init-unknown", "UNKNOWN", "")])
def test_an_nvml_that_does_not_answer_says_why(machine: Make, fault: str, name: str, words: str) -> None:
    host = machine("t4=1")
    host.sim("fault", "set", fault)
    with Nvml() as nvml:
        assert not nvml.available
        assert nvml.error is not None and f"({name})" in nvml.error and words in nvml.error
        host.sim("fault", "clear", fault)
        nvml.open()
        assert nvml.available and len(nvml.devices()) == 1


def test_who_may_not_change_gpus_is_told(machine: Make) -> None:
    host = machine("a100-80=1")
    with Nvml() as nvml:
        host.sim("fault", "set", "no-permission")
        with pytest.raises(DeviceError, match="nvmlDeviceSetMigMode failed with NO_PERMISSION") as caught:
            nvml.set_mode(nvml.devices()[0], True)
    assert "become" in caught.value.hint


def test_a_fault_of_the_mode_is_no_gpu_without_mig(machine: Make) -> None:
    host = machine("a100-80=1")
    with Nvml() as nvml:
        device = nvml.devices()[0]
        host.sim("fault", "set", "gpu-lost", "0")
        with pytest.raises(DeviceError, match="GPU_IS_LOST"):
            nvml.mode(device)


def test_a_host_without_the_library_has_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_nvml, "LIBRARY", "libnvidia-ml-that-is-not-there.so.1")
    with Nvml() as nvml:
        assert (nvml.available, nvml.error) == (False, None)


# -- pynvml itself

# The least of a pynvml that will do.
USABLE = """
class NVMLError(Exception):
    value = 9

def nvmlInit():
    raise NVMLError

NVML_ERROR_{where} = 9
c_nvmlGpuFabricInfo_t = nvmlDeviceGetMPSComputeRunningProcesses_v3 = None
"""


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A Python that has pynvml only in folders of the test: python, role and shipped."""
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: None)
    monkeypatch.setattr("ansible_collections.gpuops.nvidia.plugins.module_utils._pynvml.PYTHON_PATH",
                        str(tmp_path / "role"))
    monkeypatch.setenv("GPUOPS_PYTHON_PATH", str(tmp_path / "shipped"))
    monkeypatch.setattr(sys, "path", [str(tmp_path / "python")])
    for name in ("python", "role", "shipped"):
        (tmp_path / name).mkdir()
    return tmp_path


def _used(bare: Path) -> str:
    """Which pynvml is used: its first call fails with that name."""
    importlib.invalidate_caches()
    nvml = Nvml()
    nvml.open()
    del sys.modules["pynvml"]
    assert sys.path == [str(bare / "python")]
    return str(nvml.error).partition("(")[2].partition(")")[0]


@pytest.mark.parametrize("there", [["python", "role"], ["role"], ["shipped"], ["role", "shipped"]])
def test_pynvml_of_the_host_then_of_the_role_then_of_the_task(bare: Path, there: list[str]) -> None:
    for name in there:
        (bare / name / "pynvml.py").write_text(USABLE.format(where=name))
    assert _used(bare) == there[0]


@pytest.mark.parametrize("broken", [
    "raise KeyError(1)", "raise SystemExit(1)", "def (", "import a_module_that_is_not_there",
    "def nvmlInit(): pass\nNVMLError = KeyError  # of years ago"])
def test_one_that_does_not_work_is_as_one_that_is_not_there(bare: Path, broken: str) -> None:
    (bare / "python/pynvml.py").write_text(broken)
    with pytest.raises(MissingLibrary):
        Nvml().open()
    assert "pynvml" not in sys.modules and sys.path == [str(bare / "python")]
    (bare / "role/pynvml.py").write_text(broken)
    (bare / "shipped/pynvml.py").write_text(USABLE.format(where="shipped"))
    assert _used(bare) == "shipped"


def test_what_stays_on_the_host_is_one_that_works(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPUOPS_PYTHON_PATH")
    for text in ("raise KeyError(1)", USABLE.format(where="python")):
        (bare / "python/pynvml.py").write_text(text)
        importlib.invalidate_caches()
        if "KeyError" in text:
            with pytest.raises(MissingLibrary):
                pynvml(Root(str(bare)))
            with pytest.raises(MissingLibrary):
                source()
    assert pynvml(Root(str(bare))).decode() == text
    assert source() == str(bare / "python/pynvml.py")
    (bare / "python/pynvml.py").unlink()
    (bare / "python/pynvml").mkdir()
    (bare / "python/pynvml/__init__.py").write_text(text)
    del sys.modules["pynvml"]
    importlib.invalidate_caches()
    with pytest.raises(MissingLibrary):
        source()
    del sys.modules["pynvml"]


def test_without_pynvml_it_is_asked_for(bare: Path) -> None:
    with pytest.raises(MissingLibrary) as caught:
        Nvml().open()
    assert caught.value.as_result()["error"]["library"] == "pynvml"
