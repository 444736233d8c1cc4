# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What NVSwitches need."""

from __future__ import annotations

import typing as t
from dataclasses import replace

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver import fabric as fabric_module
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.fabric import NODES, Fabric
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.gpudirect import wanted_extras
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.spec import Spec
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError, InputError

NEW = "595.91.07"
STATE = "GPU 00000000:07:00.0\n    Fabric\n        State                   : {}\n        Status    : Success\n"


@pytest.mark.parametrize(("fabric", "expected"), [
    ("none", []), ("nvswitch", ["fabric_manager", "nscq"]), ("nvlink5_rack", ["imex"]),
    ("nvlink5", ["fabric_manager", "nscq", "nvlsm", "nvsdm", "imex"]),
])
def test_packages(fabric: str, expected: list[str]) -> None:
    assert wanted_extras(Spec(), fabric) == expected
    assert wanted_extras(Spec(fabric="none", gds=True), fabric) == ["gds"]


@pytest.mark.parametrize(("fabric", "expected"), [
    ("nvswitch", []), ("nvlink5", ["load/load module: ib_umad"]), ("nvlink5_rack", []),
])
def test_ib_umad(made: t.Any, fabric: str, expected: list[str]) -> None:
    made.desired = replace(made.desired, fabric=fabric)
    assert made.ids(Fabric) == expected
    made.put("/sys/module/ib_umad/initstate", "live")
    assert made.ids(Fabric) == []


def test_nodes(made: t.Any) -> None:
    made.desired = replace(made.desired, fabric="nvlink5_rack")
    wish = ["10.0.0.1", "fd00::2"]
    assert made.ids(Fabric, imex_nodes=wish) == [f"configure/write IMEX nodes: {NODES}"]
    made.do(Fabric, imex_nodes=wish)
    assert made.read(NODES) == "10.0.0.1\nfd00::2\n"
    assert made.journal.get("restart", "nvidia-imex.service") is not None
    assert made.ids(Fabric, imex_nodes=wish) == []
    made.works(persistenced="active", imex="active")
    made.desired = replace(made.desired, fabric="nvlink5_rack")
    assert made.ids(Fabric, imex_nodes=wish[:1]) == [
        f"configure/write IMEX nodes: {NODES}", "interrupt/restart service: nvidia-imex.service"]
    assert made.ids(Fabric) == [f"configure/restore file: {NODES}"]
    assert [(phase, step.id) for phase, step in made.part(Fabric).absent(made.now)] == [
        ("stop", f"restore file: {NODES}")]


@pytest.mark.parametrize(("fabric", "nodes", "words"), [
    ("nvswitch", ["10.0.0.1"], "cannot share memory"),
    ("nvlink5", ["node-1"], r"imex_nodes\[0\]: 'node-1' is not an IP"),
])
def test_bad_nodes(made: t.Any, fabric: str, nodes: list[str], words: str) -> None:
    made.desired = replace(made.desired, fabric=fabric)
    with pytest.raises(InputError, match=words):
        made.ids(Fabric, imex_nodes=nodes)


def test_the_run_file_brings_no_manager(made: t.Any) -> None:
    made.desired = replace(made.desired, fabric="nvswitch", source="runfile")
    with pytest.raises(HostError, match="does not contain nvidia-fabricmanager.service"):
        made.ids(Fabric)
    made.works(fabricmanager="inactive")
    assert made.ids(Fabric) == []


@pytest.mark.parametrize(("version", "state", "expected"), [
    (NEW, "Completed", []), (NEW, "N/A", []),
    ("580.95.05", "Completed", [f"the fabric manager is 580.95.05, not {NEW}"]),
    (NEW, "In Progress", ["the fabric state of 1 GPUs is 'In Progress' after 0 s"]),
])
def test_truth(made: t.Any, monkeypatch: pytest.MonkeyPatch, version: str, state: str, expected: list[str]) -> None:
    monkeypatch.setattr(fabric_module, "_PATIENCE", 0)
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    made.desired = replace(made.desired, fabric="nvswitch")
    made.answers = {"nv-fabricmanager": (0, f"Fabric Manager version is : {version}\n"),
                    "nvidia-smi -q": (0, STATE.format(state))}
    part = made.do(Fabric)
    made.works(fabricmanager="active")
    assert part.disagreements(made.now, made.desired) == expected


def test_a_converged_host_is_asked_nothing(made: t.Any) -> None:
    made.works(fabricmanager="active")
    made.desired = replace(made.desired, fabric="nvswitch")
    assert made.do(Fabric).disagreements(made.now, made.desired) == []
    assert made.asked == []
