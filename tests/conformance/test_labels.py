# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The complete path from NVML to the text of a label on simulated machines, compared with the labels of GFD on the same
machines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from ansible_collections.gpuops.nvidia.plugins.module_utils._labels.nfd import render
from ansible_collections.gpuops.nvidia.tests.unit.facts import trees
from ansible_collections.gpuops.nvidia.tests.unit.labels import situations
from ansible_collections.gpuops.nvidia.tests.unit.labels.test_gfd import labels_of

from tests.conformance.conftest import Machine

# pynvml binds to one library for a process's life, so each machine is read by a process of its own.
READ = """
import json, sys
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.label_facts import collect_devices, nvml_snapshot
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._labels.gfd import compute_labels
from ansible_collections.gpuops.nvidia.plugins.module_utils._labels.sharing_config import parse_sharing
from ansible_collections.gpuops.nvidia.plugins.module_utils._labels.from_facts import node_from_facts
root, strategy, sharing = sys.argv[1:]
node, unread = node_from_facts(collect_devices(Root(root), nvml_snapshot(clients=False)))
print(json.dumps([compute_labels(node, strategy, parse_sharing(json.loads(sharing))), unread]))
"""

MIG_ALL = ["nvidia-smi -mig 1"]
SEVEN = ["nvidia-smi mig -cgi 19,19,19,19,19,19,19 -C"]
HALF = ["nvidia-smi -i 4,5,6,7 -mig 1", "nvidia-smi mig -i 4,5,6,7 -cgi 19,19,19,19,19,19,19 -C"]
BALANCED = ["nvidia-smi mig -cgi 9,14,19,19 -C"]

# Situation: the machine and what is done to it.
MACHINES: dict[str, tuple[str, list[str]]] = {
    "eight A100, no MIG": ("a100-80=8", []),
    "four L40S": ("l40s=4", []),
    "one T4": ("t4=1", []),
    "four V100": ("v100=4", []),
    "eight H100, product with blanks": ("h100-80=8", []),
    "eight B200": ("b200=8", []),
    "time-slicing": ("a100-80=8", []),
    "MPS": ("a100-80=8", []),
    "MIG on all GPUs, strategy none": ("a100-80=8", MIG_ALL + SEVEN),
    "MIG on half of the GPUs, strategy none": ("a100-80=8", HALF),
    "single, seven 1g.10gb each": ("a100-80=8", MIG_ALL + SEVEN),
    "single, no GPU in MIG mode": ("a100-80=8", []),
    "single, only some GPUs in MIG mode": ("a100-80=8", HALF),
    "single, two profiles": ("a100-80=8", MIG_ALL + BALANCED),
    "single, with media engines": ("a100-80=1", [*MIG_ALL, "nvidia-smi mig -cgi 20 -C"]),
    "single, compute instances smaller than their GPU instance": (
        "a100-80=1", [*MIG_ALL, "nvidia-smi mig -cgi 9", "nvidia-smi mig -cci 0,0,0"]),
    "single, time-slicing": ("a100-80=8", MIG_ALL + SEVEN),
    "single, other boards": ("a30=2", [*MIG_ALL, "nvidia-smi mig -cgi 5,5 -C"]),
    "mixed, half of the GPUs": ("a100-80=8", HALF),
    "mixed, all GPUs": ("a100-80=8", MIG_ALL + SEVEN),
    "mixed, a GPU in MIG mode without instances": ("a100-80=2", MIG_ALL),
    "mixed, three profiles": ("a100-80=2", MIG_ALL + BALANCED),
    "mixed, time-slicing of a profile": ("a100-80=8", MIG_ALL + SEVEN),
}


GOLDEN = Path(__file__).parent / "gfd"
# What was captured: the strategy of the run; its sharing configuration lies beside it where there was one.
CAPTURED = {"none": "none", "timeslicing": "none", "mig-single-1g": "single", "mig-mixed-half": "mixed"}


def read(machine: Machine, tree: Path, situation: situations.Situation) -> tuple[dict[str, str], list[dict[str, str]]]:
    """(labels, unread GPUs) of a machine whose PCI bus is a tree of files."""
    trees.put(tree, "/sys/class/dmi/id/product_name", "DGXA100 920-23687-2530-000\n")
    for line in machine.sim("pci").splitlines():
        address, vendor, device, pci_class, board_vendor, board, *_rest = (
            word.removeprefix("0x") for word in line.split("\t"))
        trees.pci(tree, address, device, f"{board_vendor}:{board}", pci_class[:4], vendor, driver="nvidia")
    environment = {**machine.environment, "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    done = subprocess.run([sys.executable, "-c", READ, str(tree), situation.strategy, json.dumps(situation.sharing)],
                          env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    labels, unread = json.loads(done.stdout)
    return labels, unread


def make(machine: Callable[..., Machine], name: str) -> tuple[Machine, situations.Situation]:
    """Creates the machine of a situation."""
    model, commands = MACHINES[name]
    made = machine(model)
    for command in commands:
        done = made.run(*command.split())
        assert done.returncode == 0, done.stdout + done.stderr
    return made, next(situation for situation in situations.ALL if situation.name == name)


@pytest.mark.parametrize("name", MACHINES)
def test_labels(name: str, machine: Callable[..., Machine], tmp_path: Path) -> None:
    """Compares each label."""
    made, situation = make(machine, name)
    assert read(made, tmp_path / "tree", situation) == (labels_of(situation.labels), [])


@pytest.mark.parametrize("name", CAPTURED)
def test_captured(name: str, machine: Callable[..., Machine], tmp_path: Path) -> None:
    """Compares the output with that of gpu-feature-discovery 0.20.0 on the same machine, byte for byte."""
    made = machine("a100-80=8")
    made.sim("load", str(GOLDEN / f"{name}.state"))
    config = GOLDEN / f"{name}.config.yaml"
    sharing = yaml.safe_load(config.read_text()) if config.exists() else None
    situation = situations.Situation(name, "captured", situations.node(), "", CAPTURED[name], sharing)
    labels, unread = read(made, tmp_path / "tree", situation)
    assert (render(labels), unread) == ((GOLDEN / f"{name}.labels").read_text(), [])


@pytest.mark.parametrize(("fabric", "clique"), [
    (("3", "7f3c00000000000000000000000000c1", "32766"), "7f3c0000-0000-0000-0000-0000000000c1.32766"),
    (("2", "7f3c00000000000000000000000000c1", "32766"), None),
    (("3", "0" * 32, "0"), None),
], ids=["joined", "joining", "within the machine"])
def test_clique(fabric: tuple[str, str, str], clique: str | None, machine: Callable[..., Machine],
                tmp_path: Path) -> None:
    """The label exists only for a fabric that spans several machines, and only after the GPUs have joined it."""
    made, situation = make(machine, "eight B200")
    made.sim("fabric", *fabric)
    labels, unread = read(made, tmp_path / "tree", situation)
    expected = labels_of(situation.labels)
    assert (labels, unread) == ({**expected, **({"nvidia.com/gpu.clique": clique} if clique else {})}, [])


@pytest.mark.parametrize("fault", ["gpu-lost", "timeout"])
def test_one_lost_gpu_moves_no_label(fault: str, machine: Callable[..., Machine], tmp_path: Path) -> None:
    """The lost GPU is named, and the labels of the other GPUs do not change."""
    made, situation = make(machine, "eight A100, no MIG")
    made.sim("fault", "set", fault, "3")
    labels, unread = read(made, tmp_path / "tree", situation)
    assert labels == labels_of(situation.labels)
    assert [entry["gpu"] for entry in unread] == ["0000:4e:00.0"]


@pytest.mark.parametrize("fault", ["init-unknown", "driver-not-loaded", "lib-mismatch"])
def test_without_nvml_the_bus_speaks(fault: str, machine: Callable[..., Machine], tmp_path: Path) -> None:
    """If the driver does not respond, labels come from PCI ids, labels for versions are missing, and each GPU is named
    as unread."""
    made, situation = make(machine, "four L40S")
    made.sim("fault", "set", fault)
    labels, unread = read(made, tmp_path / "tree", situation)
    assert [entry["gpu"] for entry in unread] == ["0000:17:00.0", "0000:2a:00.0", "0000:3d:00.0", "0000:65:00.0"]
    assert labels == labels_of("""gpu.machine=DGXA100-920-23687-2530-000 gpu.mode=compute vgpu.present=false
        gpu.product=NVIDIA-L40S gpu.count=4 gpu.family=ada-lovelace gpu.compute.major=8 gpu.compute.minor=9
        mig.capable=false""")
