# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From facts to labels, and the feature file of Node Feature Discovery."""

from __future__ import annotations

import json
import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import VERSION, Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._labels.from_facts import node_from_facts
from ansible_collections.gpuops.nvidia.plugins.module_utils._labels.gfd import compute_labels
from ansible_collections.gpuops.nvidia.plugins.module_utils._labels.gpu_loss import (
    forget,
    is_first_loss,
    last_run_complete,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._labels.nfd import FeatureFile, compare, parse, render
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step, apply
from ansible_collections.gpuops.nvidia.tests.unit.facts import samples

LABELS = {"nvidia.com/gpu.count": "8", "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}


# -- from facts


def test_converged_host() -> None:
    """Everything that NVML has reported reaches the labels."""
    node, unread = node_from_facts(samples.a100_converged())
    assert unread == []
    labels = compute_labels(node, "mixed")
    assert {key: labels[f"nvidia.com/{key}"] for key in (
        "cuda.driver-version.full", "cuda.runtime-version.full", "gpu.count", "gpu.product", "gpu.memory", "gpu.mode",
        "gpu.machine", "mig-1g.10gb.count", "mig-1g.10gb.memory", "mig-1g.10gb.engines.copy", "mig.capable")} == {
            "cuda.driver-version.full": "595.91.07", "cuda.runtime-version.full": "13.2", "gpu.count": "8",
            "gpu.product": "NVIDIA-A100-SXM4-80GB", "gpu.memory": "81920", "gpu.mode": "compute",
            "gpu.machine": "DGXA100-920-23687-2530-000", "mig-1g.10gb.count": "7", "mig-1g.10gb.memory": "9728",
            "mig-1g.10gb.engines.copy": "1", "mig.capable": "true"}


def test_before_a_driver() -> None:
    """Without NVML, labels come from the PCI ids, and there is none about CUDA."""
    node, unread = node_from_facts(samples.a100_before())
    labels = compute_labels(node, "single")
    assert unread == [] and node.driver is None
    assert labels["nvidia.com/gpu.product"] == "NVIDIA-A100-SXM4-80GB"
    assert labels["nvidia.com/mig.capable"] == "true"
    assert not [key for key in labels if "cuda" in key or "memory" in key or "strategy" in key]


@pytest.mark.parametrize("sample", samples.ALL)
def test_labels_of_every_sample(sample: str) -> None:
    """In each sample, the count is the number of GPUs of the first model; without GPUs there is none."""
    facts = samples.ALL[sample]()
    labels = compute_labels(node_from_facts(facts)[0])
    first = [gpu for gpu in facts["gpus"] if gpu["model"] == facts["gpus"][0]["model"]]
    assert labels.get("nvidia.com/gpu.count") == (str(len(first)) if first else None)


def lose(gpu: dict[str, t.Any]) -> None:
    """The facts of gpu_info for a GPU that has fallen off the bus."""
    gpu.update(dict.fromkeys(("uuid", "minor", "serial", "memory_mib", "mig")),
               error="The GPU does not answer: GPU_IS_LOST.")


def test_a_lost_gpu_moves_no_label_of_full_gpus() -> None:
    """Its siblings provide the values, and the GPU is named."""
    facts = samples.a100_converged()
    whole = compute_labels(node_from_facts(facts)[0])
    lose(facts["gpus"][2])
    node, unread = node_from_facts(facts)
    assert unread == [{"gpu": "0000:47:00.0", "error": "The GPU does not answer: GPU_IS_LOST."}]
    assert compute_labels(node) == whole


def test_a_driver_that_does_not_answer_is_told() -> None:
    """All its GPUs are unread, except those of virtual machines; labels from PCI ids still exist."""
    facts = samples.a100_before()
    for gpu in facts["gpus"]:
        gpu["kernel_driver"] = "nvidia"
    facts["gpus"][3]["kernel_driver"] = "vfio-pci"
    facts["driver"]["nvml"]["error"] = "NVML cannot be used (DRIVER_NOT_LOADED)."
    node, unread = node_from_facts(facts)
    assert unread == [{"gpu": pci, "error": "NVML cannot be used (DRIVER_NOT_LOADED)."}
                      for pci in samples.ADDRESSES if pci != "0000:4e:00.0"]
    assert node == node_from_facts(samples.a100_before())[0]


def test_all_gpus_lost() -> None:
    """The PCI ids still show the model."""
    facts = samples.a100_converged()
    for gpu in facts["gpus"]:
        lose(gpu)
    node, unread = node_from_facts(facts)
    assert len(unread) == 8
    assert compute_labels(node)["nvidia.com/gpu.count"] == "8"


def test_an_unread_mig_device_is_told() -> None:
    """If a MIG device has no attributes, its GPU counts as unread."""
    facts = samples.a100_converged()
    device = facts["gpus"][7]["mig"]["instances"][3]["devices"][0]
    facts["gpus"][7]["mig"]["instances"][3]["devices"][0] = {"ci": 0, "uuid": device["uuid"]}
    node, unread = node_from_facts(facts)
    assert [entry["gpu"] for entry in unread] == ["0000:bd:00.0"]
    assert node.gpus[7].mig_devices is None


def test_memory_that_was_not_read_is_told() -> None:
    """A GPU is unread if its model reports memory but this GPU did not; a model that never reports it is complete."""
    facts = samples.a100_converged()
    facts["gpus"] = facts["gpus"][:1]
    facts["gpus"][0]["memory_mib"] = None
    assert [entry["gpu"] for entry in node_from_facts(facts)[1]] == ["0000:07:00.0"]
    facts["gpus"][0].update(device_id="2e12", subsystem="10de:21ec", model="NVIDIA GB10", mig=None)
    assert node_from_facts(facts)[1] == []


def test_gpus_of_virtual_machines_do_not_count() -> None:
    """As in GFD, a GPU that NVML does not have does not belong to this host."""
    facts = samples.a100_converged()
    facts["gpus"][0].update(kernel_driver="vfio-pci", index=None, uuid=None, mig=None)
    node, unread = node_from_facts(facts)
    assert (len(node.gpus), unread) == (7, [])


# -- the feature file


def test_text() -> None:
    """The lines are sorted; comments and values with an equals sign survive reading."""
    assert render(LABELS) == "nvidia.com/gpu.count=8\nnvidia.com/gpu.product=NVIDIA-A100-SXM4-80GB\n"
    assert parse(render(LABELS)) == LABELS
    assert parse("# note\n\na=b=c\nflag\n") == {"a": "b=c", "flag": ""}


def test_compare() -> None:
    """Added, changed, removed."""
    assert compare({"a": "1", "b": "2", "c": "3"}, {"a": "1", "b": "5", "d": "4"}) == {
        "added": {"d": "4"}, "changed": {"b": {"before": "2", "after": "5"}}, "removed": {"c": "3"}}


class Host:
    """A folder with a feature file and a journal."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.file = root / "etc/nfd/features.d/gpuops"
        self.journal = root / "journal"

    def run(self, labels: dict[str, str] | None, kill: t.Callable[[Step], None] | None = None) -> list[str]:
        """Writes labels to the file, or removes it (None). Returns the ids of the steps."""
        with Journal("labels", root=str(self.journal)) as journal:
            feature_file = FeatureFile(journal, str(self.file))
            steps = feature_file.plan_absent() if labels is None else feature_file.plan_present(labels)
            apply(steps, kill or feature_file.execute, journal)
            journal.unfinished = None
        return [step.id for step in steps]

    def tree(self) -> set[str]:
        """Everything in the folder, except the empty parent folders of the journal."""
        return {str(path.relative_to(self.root)) for path in self.root.rglob("*")}


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """A host with nothing on it."""
    (tmp_path / "host").mkdir()
    return Host(tmp_path / "host")


def test_life_of_the_file(host: Host) -> None:
    """The file is written, left unchanged, modified by others, repaired, and removed without a trace."""
    written = [f"write feature file: {host.file}"]
    assert host.run(LABELS) == written
    assert host.file.read_text() == render(LABELS)
    inode = host.file.stat().st_ino
    assert host.run(LABELS) == [] and host.file.stat().st_ino == inode
    assert host.run({**LABELS, "nvidia.com/gpu.count": "7"}) == written
    host.file.write_text("nonsense\n")
    assert host.run(LABELS) == written and host.file.read_text() == render(LABELS)
    assert host.run(None) == [f"remove feature file: {host.file}"]
    assert host.tree() == set()
    assert host.run(None) == [] and host.tree() == set()


def test_a_file_that_cannot_be_written_is_refused_by_the_plan(host: Host) -> None:
    """So check mode reports it, too."""
    host.file.mkdir(parents=True)
    host.file.rmdir()
    host.file.symlink_to("/dev/null")
    with Journal("labels", root=str(host.journal), readonly=True) as journal, pytest.raises(
            HostError, match="cannot be written"):
        FeatureFile(journal, str(host.file)).plan_present(LABELS)


def test_a_file_that_was_there_comes_back(host: Host) -> None:
    """The content and mode of the file and the other files in the folder are restored."""
    host.file.parent.mkdir(parents=True)
    host.file.write_text("mine=1\n")
    host.file.chmod(0o640)
    (host.file.parent / "gfd").write_text("other\n")
    before = host.tree()
    host.run(LABELS)
    host.run(None)
    assert (host.file.read_text(), host.file.stat().st_mode & 0o777, host.tree()) == ("mine=1\n", 0o640, before)


def test_lines_of_others_stay(host: Host) -> None:
    """If somebody has added a line since, only our lines are removed."""
    host.run(LABELS)
    host.file.write_text(host.file.read_text() + "rack=12\n")
    host.run(None)
    assert host.file.read_text() == "rack=12\n"
    assert host.run(None) == [] and not host.journal.exists()


def test_a_folder_that_others_use_stays(host: Host) -> None:
    """We created the folder, and somebody else put a file into it."""
    host.run(LABELS)
    (host.file.parent / "gfd").write_text("other\n")
    host.run(None)
    assert (host.file.parent / "gfd").exists() and not host.file.exists() and not host.journal.exists()


def test_gpus_that_leave_the_bus_are_believed_the_second_time(tmp_path: Path) -> None:
    """Eight GPUs, seven once, eight again, then seven permanently, then six."""
    def look(gpus: int, readonly: bool = False) -> bool:
        with Journal("labels", root=str(tmp_path), readonly=readonly) as journal:
            return is_first_loss(journal, gpus)

    assert [look(gpus) for gpus in (8, 8, 7, 8, 7)] == [False, False, True, False, True]
    assert not last_run_complete(str(tmp_path / "labels.json"))
    assert [look(7, readonly=True) for _number in range(2)] == [False, False]
    assert [look(gpus) for gpus in (7, 7, 6, 9)] == [False, False, True, False]
    assert last_run_complete(str(tmp_path / "labels.json"))
    with Journal("labels", root=str(tmp_path)) as journal:
        forget(journal)
    assert not tmp_path.exists() and not last_run_complete(str(tmp_path / "labels.json"))


@pytest.mark.parametrize("version", [VERSION + 1, 0, True, float(VERSION), None])
def test_a_journal_of_another_format_is_left_to_its_reader(tmp_path: Path, version: t.Any) -> None:
    """The reader of the journal reports the problem; a shortcut around it would hide it."""
    path = tmp_path / "labels.json"
    document = {"version": VERSION, "unfinished": None,
                "entries": [{"kind": "reading", "key": "gpus", "before": None, "after": {"gpus": 8, "fewer": False}}]}
    path.write_text(json.dumps(document))
    assert last_run_complete(str(path))
    path.write_text(json.dumps({**document, "version": version}))
    assert not last_run_complete(str(path))


@pytest.mark.parametrize("labels", [LABELS, None], ids=["present", "absent"])
def test_killed_around_the_step(host: Host, labels: dict[str, str] | None) -> None:
    """Killed before or after the step: the next run has the same result."""
    class Killed(Exception):
        """Represents the end of the process."""

    def before(step: Step) -> None:
        raise Killed

    def after(step: Step) -> None:
        with Journal("labels", root=str(host.journal), readonly=True) as state:
            feature_file = FeatureFile(state, str(host.file))
            state.readonly = False
            feature_file.execute(step)
        raise Killed

    for kill in (before, after):
        if labels is None:
            host.run(LABELS)
        with pytest.raises(Killed):
            host.run(labels, kill)
        host.run(labels)
        assert host.run(labels) == []
        assert host.file.exists() is (labels is not None)
        host.run(None)
        assert host.tree() == set()
