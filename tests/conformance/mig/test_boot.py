# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The program that restores MIG at boot, run as the unit runs it, on simulated GPUs. Needs root (a mount namespace)."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml
import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig import at_boot
from ansible_collections.gpuops.nvidia.plugins.module_utils._program import program

from lab.nvml.build import build
from tests.conformance.conftest import ROOT, Machine

# /etc and /var/lib of the machine are folders of the test, for this program and what it starts.
PRIVATE = ('mount --bind "$1/etc" /etc && mount --bind "$1/lib" /var/lib && '
           'exec /usr/bin/env python3 -I -B "$1/mig-boot.pyz"')
THIRD = {"profile": "3g.40gb", "start": 4, "compute": [[3, 0]]}
FIRST = {"profile": "1g.10gb", "start": 0, "compute": [[1, 0]]}
SPLIT = {"profile": "3g.40gb", "start": 0, "compute": [[2, 0], [1, 2]]}


class Host:
    """A machine with the files that mig_config leaves on a host."""

    def __init__(self, machine: Machine, folder: Path) -> None:
        self.machine = machine
        self.folder = folder
        (folder / "etc" / "gpuops").mkdir(parents=True)
        (folder / "lib").mkdir()
        (folder / "mig-boot.pyz").write_bytes(program(at_boot.__name__))

    def want(self, **gpus: Any) -> None:
        """Writes the layout to restore. gpus: C(gpu0=[instances]), None for MIG off."""
        wanted = {}
        for name, instances in gpus.items():
            uuid, pci = self.of(int(name[3:]))
            wanted[uuid] = {"pci": pci, "enabled": instances is not None, "instances": instances or []}
        self.write({"version": 1, "gpus": wanted})

    def write(self, document: Any) -> None:
        (self.folder / "etc" / "gpuops" / "mig.json").write_text(json.dumps(document))

    def of(self, index: int) -> tuple[str, str]:
        """UUID and PCI address of the GPU with this index."""
        words = self.machine.run("nvidia-smi", "-i", str(index), "--query-gpu=uuid,pci.bus_id",
                                 "--format=csv,noheader").stdout.strip().split(", ")
        return words[0].lower(), words[1].lower()[4:]

    def boot(self) -> subprocess.CompletedProcess[str]:
        """Runs the program."""
        environment = {**self.machine.environment, "GPUSIM_TRACE": str(self.folder / "trace"),
                       "GPUOPS_PYTHON_PATH": str(Path(pynvml.__file__).parent)}
        (self.folder / "trace").write_text("")
        return subprocess.run(["unshare", "--mount", "sh", "-c", PRIVATE, "sh", str(self.folder)], env=environment,
                              capture_output=True, text=True, check=False)

    def writes(self) -> list[str]:
        """The NVML calls of the last run that change something."""
        return [name for name in (self.folder / "trace").read_text().split()
                if any(word in name for word in ("Create", "Destroy", "SetMigMode"))]

    def instance(self, gpu: int) -> list[str]:
        """The description by gpusim of the only compute instance of a GPU."""
        found = [line.split() for line in self.machine.sim("show").splitlines() if line.startswith(f"ci {gpu} ")]
        return ["--gi", found[0][2], "--ci", found[0][3]]

    def stand(self) -> list[str]:
        """The current MIG modes and GPU instances of the machine."""
        lines = [line.split() for line in self.machine.sim("show").splitlines()]
        modes = [line.split("|")[7:10] for line in self.machine.sim("show").splitlines() if line.startswith("gpu ")]
        return [mode[1] for mode in modes] + [f"gi {line[1]} {line[3]}@{line[4]}" for line in lines if line[0] == "gi"]


@pytest.fixture
def host(machine: Callable[..., Machine], tmp_path: Path) -> Callable[..., Host]:
    return lambda *boards: Host(machine(*boards), tmp_path)


@pytest.mark.parametrize("board", ["a100-80", "h100-80"])
def test_a_boot_brings_it_back_and_the_next_run_changes_nothing(host: Callable[..., Host], board: str) -> None:
    made = host(f"{board}=2")
    made.want(gpu0=[FIRST, THIRD], gpu1=[SPLIT])
    first = made.boot()
    assert first.returncode == 0, first.stderr
    stand = made.stand()
    assert "done: create MIG instances:" in first.stdout and len(stand) == 2 + 3
    made.machine.sim("reload")
    assert len(made.stand()) == 2
    again = made.boot()
    assert (again.returncode, made.stand()) == (0, stand)
    assert ("enable MIG mode" in again.stdout) == (board == "h100-80")
    quiet = made.boot()
    assert made.writes() == [] and quiet.stdout.count("has the desired layout") == 2
    assert not list((made.folder / "lib").rglob("*.tmp")) and quiet.stderr == ""


@pytest.mark.parametrize("device_id", ["2330", "230e"])
def test_a_boot_with_a_driver_that_tells_profiles_only_while_mig_is_on(
        machine: Callable[..., Machine], tmp_path: Path, device_id: str) -> None:
    """A Hopper GPU boots with MIG off. The second device id has no table in the collection."""
    changed = tmp_path / "boards.json"
    tables = (ROOT / "lab/nvml/boards.json").read_text()
    changed.write_text(tables.replace('"device": "2330"', f'"device": "{device_id}"'))
    made = Host(machine("h100-80=2", folder=build(changed)), tmp_path)
    made.machine.sim("driver", "535.309.01")
    made.want(gpu0=[FIRST, THIRD], gpu1=[])
    for _boot in range(2):
        done = made.boot()
        assert done.returncode == 0, done.stderr
        assert sorted(made.stand()) == ["1", "1", "gi 0 0@0", "gi 0 2@4"]
        assert done.stdout.count("done: enable MIG mode") == 2
        made.machine.sim("reload")
    made.machine.sim("fault", "set", "in-use", "0")
    stuck = made.boot()
    assert stuck.returncode == 1 and made.stand() == ["0", "1"]
    assert stuck.stderr.count("<3>") == 1 and "0000:" in stuck.stderr


def test_what_is_right_stays(host: Callable[..., Host]) -> None:
    made = host("a100-80=2")
    made.want(gpu0=[FIRST, THIRD], gpu1=[FIRST])
    made.boot()
    made.machine.run("nvidia-smi", "mig", "-i", "1", "-dci")
    made.machine.run("nvidia-smi", "mig", "-i", "1", "-dgi")
    made.want(gpu0=[FIRST, THIRD], gpu1=[THIRD])
    uuids = [line for line in made.machine.run("nvidia-smi", "-L").stdout.splitlines() if "MIG-" in line]
    done = made.boot()
    assert done.returncode == 0 and "has the desired layout" in done.stdout
    after = made.machine.run("nvidia-smi", "-L").stdout
    assert len(uuids) == 2 and all(uuid in after for uuid in uuids)
    assert not [name for name in made.writes() if "Destroy" in name]


def test_a_gpu_that_is_gone_is_a_warning(host: Callable[..., Host]) -> None:
    made = host("a100-80=2")
    made.want(gpu0=[FIRST], gpu1=[FIRST])
    document = json.loads((made.folder / "etc" / "gpuops" / "mig.json").read_text())
    document["gpus"]["gpu-0"] = {"pci": "0000:ff:00.0", "enabled": True, "instances": []}
    made.write(document)
    done = made.boot()
    assert done.returncode == 0, done.stderr
    assert "<4>GPU 0000:ff:00.0 (gpu-0) is not in this host any more." in done.stdout
    assert len(made.stand()) == 2 + 2


def test_a_busy_gpu_is_left_and_named_and_the_others_go_on(host: Callable[..., Host]) -> None:
    made = host("a100-80=2")
    made.want(gpu0=[FIRST], gpu1=[FIRST])
    made.boot()
    made.machine.sim("client", "add", "--pid", "4242", "--gpu", "0", *made.instance(0), "training")
    made.want(gpu0=None, gpu1=[THIRD])
    done = made.boot()
    assert done.returncode == 1 and done.stderr.startswith("<3>stop GPU clients:"), done.stderr
    assert len(done.stderr.splitlines()) == 1 and "training (4242)" in done.stderr and "needs 'drain'" in done.stderr
    assert [line for line in made.stand() if line.startswith("gi")] == ["gi 0 0@0", "gi 1 2@4"]


def test_a_gpu_that_fails_does_not_keep_the_others(host: Callable[..., Host]) -> None:
    made = host("a100-80=2")
    made.want(gpu0=[FIRST], gpu1=[FIRST])
    made.machine.sim("fault", "set", "insufficient-resources", "0")
    done = made.boot()
    assert done.returncode == 1 and "INSUFFICIENT_RESOURCES" in done.stderr
    assert "The former layout of GPU " in done.stderr
    assert [line for line in made.stand() if line.startswith("gi")] == ["gi 1 0@0"]


@pytest.mark.parametrize("text", ["", "{", '{"version": 2, "gpus": {}}'])
def test_a_damaged_file_is_named(host: Callable[..., Host], text: str) -> None:
    made = host("a100-80=1")
    (made.folder / "etc" / "gpuops" / "mig.json").write_text(text)
    done = made.boot()
    assert (done.returncode, made.writes()) == (1, [])
    assert done.stderr.startswith("<3>/etc/gpuops/mig.json is missing or damaged")


def test_what_somebody_has_made_impossible_is_named_and_the_others_go_on(host: Callable[..., Host]) -> None:
    made = host("a100-80=2")
    made.want(gpu0=[{**THIRD, "start": 3}], gpu1=[FIRST])
    document = json.loads((made.folder / "etc" / "gpuops" / "mig.json").read_text())
    made.write({**document, "gpus": {uuid.upper(): entry for uuid, entry in document["gpus"].items()}})
    done = made.boot()
    assert done.returncode == 1 and "cannot have the layout that /etc/gpuops/mig.json" in done.stderr
    assert [line for line in made.stand() if line.startswith("gi")] == ["gi 1 0@0"]


def test_without_a_driver(host: Callable[..., Host]) -> None:
    made = host("a100-80=1")
    made.want(gpu0=[FIRST])
    made.machine.environment["LD_LIBRARY_PATH"] = ""
    done = made.boot()
    assert done.returncode == 1 and "the NVIDIA driver is not installed" in done.stderr
