# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Module parameters and the modules that are loaded at boot."""

from __future__ import annotations

import typing as t
from dataclasses import replace

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.module_parameters import (
    BOOT_FILE,
    OPTIONS_FILE,
    ModuleParameters,
    options_text,
    parameters,
    same,
    written,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.spec import Spec
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError

BOOT = f"configure/list modules for boot: {BOOT_FILE}"
WRITE = f"configure/write module parameters: {OPTIONS_FILE}"
PROFILING = {"nvidia": {"NVreg_RestrictProfilingToAdminUsers": 0}}
PARAMS = "RmProfilingAdminOnly: 1\nRegistryDwords: \"\"\nResmanDebugLevel: 4294967295\n"


def test_files_on_a_bare_host(made: t.Any) -> None:
    wish = {"nvidia-uvm": {"uvm_disable_hmm": True}, **PROFILING}
    assert made.ids(ModuleParameters, module_parameters=wish) == [WRITE, BOOT]
    made.do(ModuleParameters, module_parameters=wish, peermem=True, gds=True, gdrcopy=True)
    assert made.read(OPTIONS_FILE).splitlines()[1:] == [
        "options nvidia NVreg_RestrictProfilingToAdminUsers=0", "options nvidia_uvm uvm_disable_hmm=1"]
    assert made.read(BOOT_FILE).splitlines()[1:] == [
        "nvidia", "nvidia-uvm", "nvidia-modeset", "nvidia-fs", "gdrdrv", "nvidia-peermem"]
    assert made.journal.get("initramfs", "rebuild")["after"] == "owed"
    assert made.ids(ModuleParameters, module_parameters=wish, peermem=True, gds=True, gdrcopy=True) == []


def test_nvlsm_needs_ib_umad_at_boot(made: t.Any) -> None:
    made.desired = replace(made.desired, fabric="nvlink5")
    made.do(ModuleParameters)
    assert "ib_umad" in made.read(BOOT_FILE).split()


def test_text_and_back() -> None:
    wanted = parameters(Spec(module_parameters={"nvidia": {"NVreg_RegistryDwords": "A=1;B=0x2", "NVreg_X": -1}}))
    assert written(options_text(wanted).decode()) == wanted
    assert options_text({}) == b""


@pytest.mark.parametrize(("listed", "wish", "expected"), [
    (PARAMS, PROFILING, "nvidia has NVreg_RestrictProfilingToAdminUsers=1, but 0 is desired"),
    (PARAMS.replace("Only: 1", "Only: 0"), PROFILING, ""),
    ("RestrictProfilingToAdminUsers: 0\n", PROFILING, ""),  # as drivers before 470 listed it
    (PARAMS, {"nvidia": {"NVreg_ResmanDebugLevel": -1}}, ""),
    (PARAMS, {"nvidia_drm": {"modeset": 1}}, ""),  # not loaded
])
def test_reload(made: t.Any, listed: str, wish: dict[str, t.Any], expected: str) -> None:
    made.works()
    made.put("/proc/driver/nvidia/params", listed)
    assert made.part(ModuleParameters, module_parameters=wish).reload(made.now) == expected


def test_a_parameter_that_is_dropped_needs_a_reload_too(made: t.Any) -> None:
    made.do(ModuleParameters, module_parameters=PROFILING)
    made.works()
    made.put("/proc/driver/nvidia/params", PARAMS.replace("Only: 1", "Only: 0"))
    assert made.part(ModuleParameters, module_parameters=PROFILING).reload(made.now) == ""
    assert "no longer set" in made.part(ModuleParameters).reload(made.now)
    assert made.ids(ModuleParameters) == [WRITE]


def test_parameters_of_other_modules_are_in_sysfs(made: t.Any) -> None:
    made.works()
    made.put("/sys/module/nvidia_uvm/parameters/uvm_disable_hmm", "N\n")
    part = made.part(ModuleParameters, module_parameters={"nvidia_uvm": {"uvm_disable_hmm": True}})
    assert "uvm_disable_hmm=N, but 1 is desired" in part.reload(made.now)
    assert "another file of modprobe.d" in part.disagreements(made.now, made.desired)[0]
    made.put("/sys/module/nvidia_uvm/parameters/uvm_disable_hmm", "Y\n")
    assert (part.reload(made.now), part.disagreements(made.now, made.desired)) == ("", [])


def test_a_parameter_that_the_module_does_not_have_is_refused(made: t.Any) -> None:
    made.works()
    made.put("/proc/driver/nvidia/params", PARAMS)
    made.answers["modinfo -F parm nvidia"] = (0, "NVreg_RmNvlinkBandwidth:Reduces it (charp)\n")
    wish = {"nvidia": {"NVreg_RmNvlinkBandwidth": "HALF"}}
    assert made.ids(ModuleParameters, module_parameters=wish) == [WRITE, BOOT]
    with pytest.raises(InputError, match="has no parameter NVreg_Nonsense"):
        made.ids(ModuleParameters, module_parameters={"nvidia": {"NVreg_Nonsense": 1}})


@pytest.mark.parametrize(("wish", "path"), [
    ({"nouveau": {"modeset": 0}}, "module_parameters.nouveau"),
    ({"nvidia": "NVreg_X=1"}, "module_parameters.nvidia"),
    ({"nvidia": {"NVreg_X": "1 install evil"}}, "module_parameters.nvidia.NVreg_X"),
    ({"nvidia": {"a b": 1}}, "module_parameters.nvidia.a b"),
    ({"nvidia": {"NVreg_X": ""}}, "module_parameters.nvidia.NVreg_X"),
])
def test_bad_parameters(wish: dict[str, t.Any], path: str) -> None:
    with pytest.raises(InputError) as caught:
        parameters(Spec(module_parameters=wish))
    assert caught.value.details["path"] == path


@pytest.mark.parametrize(("one", "other", "expected"), [
    ("Y", "1", True), ("0x10", "16", True), ("-1", "4294967295", True), ('"driver"', "driver", True), ("1", "0", False),
    ("a", "b", False),
])
def test_same(one: str, other: str, expected: bool) -> None:
    assert same(one, other) is expected
