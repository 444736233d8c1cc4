# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""GPUs as generic resources of Slurm, and the files that configure them."""

from __future__ import annotations

import itertools
import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._labels.from_facts import node_from_facts
from ansible_collections.gpuops.nvidia.plugins.module_utils._labels.gfd import compute_labels
from ansible_collections.gpuops.nvidia.plugins.module_utils._labels.slurm import (
    gres_lines,
    resources,
    slurm_name,
    summary,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._labels.slurm_files import SlurmFiles, matches
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step, apply
from ansible_collections.gpuops.nvidia.tests.unit.facts import samples

# As the driver writes it: GPU instance, then its compute instances.
TABLE = "config 1\nmonitor 2\n" + "".join(f"gpu7/gi{7 + gi}/access {700 + 9 * gi}\ngpu7/gi{7 + gi}/ci0/access "
                                          f"{701 + 9 * gi}\n" for gi in range(7))
NODE = "gpu-a1"
LINES = ["# slurm.conf: NodeName=gpu-a1 Gres=gpu:nvidia_l40s:1 Feature=nvidia_l40s,ada-lovelace",
         "NodeName=gpu-a1 AutoDetect=off Name=gpu Type=nvidia_l40s File=/dev/nvidia0"]
OTHER = [LINES[0], LINES[1].replace("nvidia0", "nvidia1")]


def test_a_host_with_mig_on_one_gpu() -> None:
    """According to gres.conf(5): seven whole GPUs with one file each, seven MIG devices with three files each."""
    facts = samples.a100_converged()
    labels = compute_labels(node_from_facts(facts)[0], "mixed")
    described = gres_lines(resources(facts, TABLE), NODE, labels)
    whole = "NodeName=gpu-a1 AutoDetect=off Name=gpu Type=nvidia_a100-sxm4-80gb File=/dev/nvidia"
    piece = ("NodeName=gpu-a1 AutoDetect=off Name=gpu Type=nvidia_a100-sxm4-80gb_1g.10gb MultipleFiles=/dev/nvidia7,"
             "/dev/nvidia-caps/nvidia-cap{},/dev/nvidia-caps/nvidia-cap{}")
    assert summary(described) == {
        "lines": [f"{whole}{number}" for number in range(7)]
        + [piece.format(700 + 9 * number, 701 + 9 * number) for number in range(7)],
        "gres": "gpu:nvidia_a100-sxm4-80gb:7,gpu:nvidia_a100-sxm4-80gb_1g.10gb:7",
        "features": ["nvidia_a100-sxm4-80gb", "nvidia_a100-sxm4-80gb_1g.10gb", "ampere", "cc8.0", "driver595",
                     "cuda13.2"],
    }
    assert described[0].startswith("# slurm.conf: NodeName=gpu-a1 Gres=gpu:nvidia_a100-sxm4-80gb:7,")


def test_minors_are_not_indices() -> None:
    """The name of the device file contains the minor number, whatever the order in NVML."""
    facts = samples.a100_converged()
    facts["gpus"] = facts["gpus"][:2]
    facts["gpus"][0]["minor"], facts["gpus"][1]["minor"] = 5, 0
    assert [one.files for one in resources(facts, "")] == [("/dev/nvidia5",), ("/dev/nvidia0",)]


def test_without_a_driver_nothing_can_be_handed_out() -> None:
    assert resources(samples.a100_before(), TABLE) == [] and summary(gres_lines([], NODE, {})) == {
        "lines": [], "gres": "", "features": []}


def test_a_mig_device_without_its_capability_is_refused() -> None:
    with pytest.raises(HostError, match="gpu7/gi7"):
        resources(samples.a100_converged(), "")
    with pytest.raises(HostError, match="gpu7/gi7"):
        resources(samples.a100_converged(), f"gpu7/gi7/access {'9' * 5000}\n")


@pytest.mark.parametrize(("text", "type_"), [
    ("NVIDIA H100 80GB HBM3", "nvidia_h100_80gb_hbm3"), ("Tesla V100-SXM2-32GB", "tesla_v100-sxm2-32gb"),
    ("NVIDIA RTX 6000 (Ada):x,y", "nvidia_rtx_6000_ada_x_y"),
])
def test_type(text: str, type_: str) -> None:
    """Characters that are not allowed in requests of Slurm become underscores."""
    assert slurm_name(text) == type_


@pytest.mark.parametrize(("names", "node", "meant"), [
    (None, "gpu-a1", True), ("gpu-a1", "gpu-a1", True), ("gpu-a1", "gpu-a11", False), ("gpu-a[1-4]", "gpu-a3", True),
    ("gpu-a[1-4,7],login", "gpu-a7", True), ("gpu-a[1-4,7],login", "login", True), ("gpu-a[1-4]", "gpu-a5", False),
    ("gpu-a[01-12]", "gpu-a1", False), ("gpu-a[01-12]", "gpu-a02", True), ("gpu-a[8-12]", "gpu-a10", True),
    ("r[1-2]n[1-9]", "r2n5", True), ("r[1-2]n[1-9]", "r3n5", False), ("gpu.a1", "gpuxa1", False),
])
def test_node_names(names: str | None, node: str, meant: bool) -> None:
    """Host lists of Slurm."""
    assert matches(names, node) is meant


class Host:
    """A Slurm folder with a journal; the device files in devices exist."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.devices = ["/dev/nvidia0", "/dev/nvidia1"]
        self.turn_to("slurm")

    def turn_to(self, folder: str) -> None:
        """Sets another value of slurm_folder."""
        self.folder = self.root / folder
        self.folder.mkdir(parents=True)
        self.conf, self.ours = self.folder / "gres.conf", self.folder / "gpuops-gres.conf"

    def run(self, lines: list[str] | None, kill: t.Callable[[SlurmFiles, Step], None] | None = None) -> list[str]:
        """Writes lines to the files, or removes them (None). Returns the actions."""
        with Journal("slurm", root=str(self.root / "journal")) as journal:
            files = SlurmFiles(journal, str(self.folder), self.devices.__contains__)
            steps = files.plan_absent() if lines is None else files.plan_present(lines, NODE)
            apply(steps, (lambda step: kill(files, step)) if kill else files.execute, journal)
            journal.unfinished = None
        return [step.action for step in steps]

    def tree(self) -> dict[str, str]:
        """Every file with its content."""
        return {str(path.relative_to(self.root)): path.read_text() for path in self.root.rglob("*") if path.is_file()}


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path / "host")


@pytest.mark.parametrize("before", [None, "", "AutoDetect=nvml\n# no newline at the end",
                                    "NodeName=login Name=gpu File=/dev/nvidia0\nName=shard Count=8\n"])
def test_life(host: Host, before: str | None) -> None:
    """The files are written, left unchanged, modified by others, repaired, and removed without a trace."""
    if before is not None:
        host.conf.write_text(before)
    tree = host.tree()
    assert host.run(LINES) == ["write gres file", "include gres file"]
    gap = "\n" if before and not before.endswith("\n") else ""
    assert host.conf.read_text() == f"{before or ''}{gap}Include {host.ours}\n"
    assert host.ours.read_text().splitlines()[1:] == LINES
    assert host.run(LINES) == []
    assert host.run(OTHER) == ["write gres file"]
    host.conf.write_text(before or "")
    assert host.run(OTHER) == ["include gres file"]
    assert host.run(None) == ["remove include of gres file", "remove gres file"]
    assert host.tree() == tree
    assert host.run(None) == []


def test_what_others_wrote_since_stays(host: Host) -> None:
    host.conf.write_text("AutoDetect=nvml\n")
    host.run(LINES)
    host.conf.write_text(host.conf.read_text().replace("AutoDetect=nvml", "Name=nic Count=2") + "Name=shard Count=8\n")
    host.run(None)
    assert host.tree() == {"slurm/gres.conf": "Name=nic Count=2\nName=shard Count=8\n"}


@pytest.mark.parametrize("edited", [False, True])
def test_another_folder(host: Host, edited: bool) -> None:
    """Nothing of ours is left in the former folder, and a removal finds it without the option."""
    host.conf.write_text("AutoDetect=nvml\n")
    host.run(LINES)
    former = host.conf
    if edited:
        former.write_text(former.read_text() + "Name=shard Count=8\n")
    host.turn_to("slurm-23")
    assert host.run(LINES) == [
        "write gres file", "include gres file", "remove include of gres file", "remove gres file"]
    left = {"slurm/gres.conf": "AutoDetect=nvml\n" + ("Name=shard Count=8\n" if edited else "")}
    ours = {path for path in host.tree() if not path.startswith("journal/")}
    assert ours == {"slurm/gres.conf", "slurm-23/gres.conf", "slurm-23/gpuops-gres.conf"}
    assert former.read_text() == left["slurm/gres.conf"] and host.run(LINES) == []
    host.turn_to("elsewhere")
    assert host.run(None) == ["remove include of gres file", "remove gres file"] and host.tree() == left


def test_another_name_of_the_same_folder(host: Host) -> None:
    """A link to the folder and a path with a detour: nothing has moved."""
    host.run(LINES)
    (host.root / "link").symlink_to(host.folder)
    for name in ("link", "slurm/../slurm/"):
        host.folder = host.root / name
        assert host.run(LINES) == []


def test_a_file_that_somebody_has_removed_does_not_come_back(host: Host) -> None:
    host.conf.write_text("AutoDetect=nvml\n")
    host.run(LINES)
    host.conf.unlink()
    host.run(None)
    assert host.tree() == {}


def test_a_link_that_leads_nowhere_is_refused(host: Host) -> None:
    """It is refused before a change, because the removal would lose the link."""
    host.conf.symlink_to(host.root / "shared" / "gres.conf")
    with pytest.raises(HostError, match="shared/gres.conf, which does not exist"):
        host.run(LINES)
    assert host.conf.is_symlink() and host.tree() == {}


def test_a_link_is_followed(host: Host) -> None:
    """For example if the configuration is on a shared file system."""
    shared = host.root / "shared.conf"
    shared.write_text("AutoDetect=nvml\n")
    host.conf.symlink_to(shared)
    host.run(LINES)
    assert shared.read_text() == f"AutoDetect=nvml\nInclude {host.ours}\n"
    host.run(None)
    assert host.conf.is_symlink() and shared.read_text() == "AutoDetect=nvml\n"


def test_no_gpu_leaves_no_file(host: Host) -> None:
    """If there was a GPU before, the file stays, without lines."""
    assert host.run([]) == [] and host.tree() == {}
    host.run(LINES)
    assert host.run([]) == ["write gres file"] and host.ours.read_text().startswith("# Written by")
    assert host.run([]) == []


@pytest.mark.parametrize("line", ["Name=gpu File=/dev/nvidia0", "nodename=gpu-a[1-8] AutoDetect=nvml name=GPU",
                                  "NodeName=x,gpu-a1 Name = gpu Count=1 # ours",
                                  "NodeName=gpu-a1 \\\n  Name=gpu File=/dev/nvidia0"])
def test_gpus_that_are_described_already_are_refused(host: Host, line: str) -> None:
    """They are refused before a change, and the line is named."""
    host.conf.write_text(f"# GPUs\n{line}\n")
    tree = host.tree()
    with pytest.raises(HostError, match="line 2"):
        host.run(LINES)
    assert host.tree() == tree


def test_gpus_that_an_included_file_describes_are_refused(host: Host) -> None:
    """Also if two files include each other; a missing file describes nothing."""
    (host.folder / "site").mkdir()
    more = host.folder / "site" / "gpus.conf"
    more.write_text(f"include {host.conf}\n\nNodeName=gpu-b1 Name=gpu File=/dev/nvidia0\n")
    host.conf.write_text("Include site/gpus.conf # ours\nInclude /nowhere\n")
    host.run(LINES)
    host.run(None)
    more.write_text(more.read_text().replace("gpu-b1", "gpu-[a-b]1,gpu-a1"))
    with pytest.raises(HostError, match=f"^{more} already describes GPUs of gpu-a1, in line 3: NodeName=") as caught:
        host.run(LINES)
    assert caught.value.details["path"] == str(more) and not host.ours.exists()


def test_a_missing_device_file_is_refused(host: Host) -> None:
    """slurmd would not start without it."""
    host.devices = []
    with pytest.raises(HostError, match="/dev/nvidia0"):
        host.run(LINES)
    assert host.tree() == {}


def test_without_slurm(host: Host) -> None:
    host.folder.rmdir()
    with pytest.raises(HostError, match="slurm_folder"):
        host.run(LINES)
    assert host.tree() == {}


class Killed(Exception):
    """Represents the end of the process."""


@pytest.mark.parametrize(("lines", "after", "number"), [
    *itertools.product([LINES, None], [False, True], [0, 1])])
def test_killed_around_each_step(host: Host, lines: list[str] | None, after: bool, number: int) -> None:
    """The next run has the same result, and an included file always exists."""
    seen = itertools.count()

    def kill(files: SlurmFiles, step: Step) -> None:
        last = next(seen) == number
        if after or not last:
            files.execute(step)
        if last:
            raise Killed

    host.conf.write_text("AutoDetect=nvml\n")
    if lines is None:
        host.run(LINES)
    with pytest.raises(Killed):
        host.run(lines, kill)
    assert "Include" not in host.conf.read_text() or host.ours.exists()
    host.run(lines)
    assert host.run(lines) == [] and host.ours.exists() is (lines is not None)
    host.run(None)
    assert host.tree() == {"slurm/gres.conf": "AutoDetect=nvml\n"}
