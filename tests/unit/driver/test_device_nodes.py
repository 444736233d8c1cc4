# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Device nodes, now and at boot."""

from __future__ import annotations

import os
import stat
import typing as t
from dataclasses import replace
from types import SimpleNamespace

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.device_nodes import (
    RULES_FILE,
    DeviceNodes,
    rules_text,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.device_nodes import node_faults
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root


def test_packages_bring_their_own(made: t.Any) -> None:
    assert made.ids(DeviceNodes) == []


def test_the_run_file_does_not(made: t.Any) -> None:
    made.desired = replace(made.desired, source="runfile")
    assert made.ids(DeviceNodes) == [f"configure/write device rules: {RULES_FILE}"]
    made.do(DeviceNodes)
    assert made.ids(DeviceNodes) == []
    assert 'KERNEL=="nvidia_uvm", RUN+="/usr/bin/nvidia-modprobe -u -c 0"' in made.read(RULES_FILE)
    made.desired = replace(made.desired, source="cuda_repository")
    assert made.ids(DeviceNodes) == [f"configure/restore file: {RULES_FILE}"]


def test_a_node_for_each_gpu() -> None:
    assert b"nvidia-modprobe -c 0 -c 1 -c 2\"" in rules_text(3)


@pytest.fixture
def loaded(made: t.Any, monkeypatch: pytest.MonkeyPatch) -> t.Any:
    """A host with one GPU and a loaded driver. Files represent its devices; the created ones are recorded."""
    made.works()
    made.put("/proc/driver/nvidia/params",
             "ModifyDeviceFiles: 1\nDeviceFileUID: 0\nDeviceFileGID: 44\nDeviceFileMode: 432\n")
    made.put("/proc/driver/nvidia/gpus/0000:07:00.0/information", "Device Minor: \t 0\n")
    made.devices = {"/dev/nvidiactl": 0o666, "/dev/nvidia0": 0o660}
    made.owners = {}

    def named(path: str) -> str:
        return path[len(str(made.folder)):]

    def look(self: Root, path: str) -> t.Any:
        mode = made.devices.get(path)
        return None if mode is None else SimpleNamespace(st_mode=stat.S_IFCHR | mode)

    def make(path: str, mode: int, device: int) -> None:
        assert stat.S_ISCHR(mode) and not os.path.lexists(path)
        made.devices[named(path)] = stat.S_IMODE(mode)
        made.owners[named(path)] = [(os.major(device), os.minor(device))]

    monkeypatch.setattr(Root, "stat", look)
    monkeypatch.setattr(os, "mknod", make)
    monkeypatch.setattr(os, "chown", lambda path, *owner: made.owners.setdefault(named(path), []).append(owner))
    monkeypatch.setattr(os, "chmod", lambda path, mode: made.devices.update({named(path): mode}))
    return made


def _look(made: t.Any) -> None:
    made.now = replace(made.now, nodes=node_faults(Root(str(made.folder))))


@pytest.mark.parametrize(("broken", "reason", "owners"), [
    ({"/dev/nvidia0": None}, "/dev/nvidia0: missing", {"/dev/nvidia0": [(195, 0), (0, 44)]}),
    ({"/dev/nvidia0": 0}, "/dev/nvidia0: mode 0000", {"/dev/nvidia0": [(0, 44)]}),
    ({"/dev/nvidiactl": None, "/dev/nvidia0": 0o600}, "/dev/nvidiactl: missing, /dev/nvidia0: mode 0600",
     {"/dev/nvidiactl": [(195, 255), (0, 44)], "/dev/nvidia0": [(0, 44)]}),
])
def test_a_node_of_a_loaded_driver_is_made(loaded: t.Any, broken: dict[str, t.Any], reason: str, owners: t.Any) -> None:
    _look(loaded)
    assert loaded.ids(DeviceNodes) == []
    loaded.devices.update(broken)
    _look(loaded)
    (phase, step), = loaded.part(DeviceNodes).plan(loaded.now, loaded.desired)
    assert (phase, step.id, step.reason) == ("load", f"make device nodes: {' '.join(broken)}", reason)
    loaded.do(DeviceNodes)
    assert loaded.owners == owners
    _look(loaded)
    assert loaded.ids(DeviceNodes) == []


def test_what_is_no_device_gives_way(loaded: t.Any) -> None:
    loaded.put("/dev/nvidia0", "a dump")
    loaded.devices["/dev/nvidia0"] = None
    _look(loaded)
    loaded.do(DeviceNodes)
    assert loaded.devices["/dev/nvidia0"] == 0o660


def test_nodes_come_with_modules_that_are_loaded_anew(loaded: t.Any) -> None:
    loaded.devices.clear()
    _look(loaded)
    loaded.desired = replace(loaded.desired, reload="another version")
    assert loaded.ids(DeviceNodes) == []


def test_a_gpu_that_has_gone_since_gets_no_node(loaded: t.Any) -> None:
    loaded.now = replace(loaded.now, nodes={"/dev/nvidia7": "missing"})
    with pytest.raises(HostError, match="/dev/nvidia7 is no longer a device of the loaded driver"):
        loaded.do(DeviceNodes)
