# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Labels from plain values, and the sharing configuration."""

from __future__ import annotations

import re
import typing as t

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._devices import MODELS
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError, InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._labels.gfd import compute_labels, sanitise
from ansible_collections.gpuops.nvidia.plugins.module_utils._labels.model import Gpu, Sharing
from ansible_collections.gpuops.nvidia.plugins.module_utils._labels.sharing_config import parse_sharing
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.label_keys import wrong_feature
from ansible_collections.gpuops.nvidia.tests.unit.labels import situations, situations_more
from ansible_collections.gpuops.nvidia.tests.unit.labels.situations import A100, M1G, Situation, node, sliced


def labels_of(words: str) -> dict[str, str]:
    """Labels from words; a duplicate is a mistake in the table."""
    pairs = [word.split("=", 1) for word in words.split()]
    labels = {key if "/" in key else f"nvidia.com/{key}": value for key, value in pairs}
    assert len(labels) == len(pairs), [key for key, _value in pairs if [k for k, _v in pairs].count(key) > 1]
    return labels


@pytest.mark.parametrize("situation", situations_more.ALL, ids=lambda situation: situation.name)
def test_situation(situation: Situation) -> None:
    """Exactly the expected labels, no more and no less."""
    found = compute_labels(situation.node, situation.strategy, parse_sharing(situation.sharing))
    assert found == labels_of(situation.labels)


def test_enough_situations() -> None:
    """No situation is missing or duplicated."""
    assert len({situation.name for situation in situations_more.ALL}) == len(situations_more.ALL) >= 75


def test_a_long_product_makes_room_for_what_follows() -> None:
    """The value has at most 63 characters: the model is shortened so that the suffix remains readable."""
    pro = Gpu("NVIDIA RTX PRO 6000 Blackwell Server Edition", 97887, (12, 0), mig_capable=True, mig_enabled=True)
    board = pro._replace(mig_devices=(situations.mig("1g.24gb+me.all", 24192, 46, 1, 1, 1, 4, 4, 4, 1),))
    key = "nvidia.com/mig-1g.24gb.me.all.product"
    whole = "NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition-MIG-1g.24gb.me.all"
    assert len(whole) == 63 and compute_labels(node(board), "mixed")[key] == whole
    shared = parse_sharing(situations.slicing("nvidia.com/mig-1g.24gb.me.all", 2))
    assert compute_labels(node(board), "mixed", shared)[key] == (
        "NVIDIA-RTX-PRO-6000-Blackwell-Server-MIG-1g.24gb.me.all-SHARED")


@pytest.mark.parametrize("facts", [
    {"machine": "-[ThinkSystem " + "x" * 70 + "]-"}, {"vgpu": ("580.65\0x\n", "\ufffd\ufffdr580_00")},
    {"gpus": (sliced(A100._replace(name=None)),)}, {"gpus": (A100._replace(name="NVIDIA " + "Very Long " * 9),)}])
def test_every_value_can_be_one(facts: dict[str, t.Any]) -> None:
    """Firmware and board can report any text: with one invalid value, the Node would get none of the labels."""
    for strategy in ("none", "single", "mixed"):
        labels = compute_labels(node(A100)._replace(**facts), strategy)
        assert wrong_feature(labels) == ""


def test_mig_devices_that_nobody_could_read_make_no_layout_invalid() -> None:
    """Otherwise, the first labels of a host would say that no resource is available, and the next ones the opposite."""
    unread = sliced(A100)._replace(mig_devices=None)
    labels = compute_labels(node(*2 * [unread]), "single")
    assert (labels["nvidia.com/gpu.product"], labels["nvidia.com/gpu.replicas"]) == ("NVIDIA-A100-SXM4-80GB", "0")
    for others, product in (([sliced(A100, M1G)], "MIG-1g.10gb"), ([sliced(A100)], "MIG-INVALID"),
                            ([A100], "MIG-INVALID")):
        labels = compute_labels(node(unread, *others), "single")
        assert labels["nvidia.com/gpu.product"] == f"NVIDIA-A100-SXM4-80GB-{product}"


def test_what_one_gpu_of_a_model_does_not_tell_another_may() -> None:
    """The first GPU can have fallen off the bus."""
    labels = compute_labels(node(A100._replace(capability=None, memory_mib=None), A100))
    whole = compute_labels(node(A100, A100))
    assert labels == whole and labels["nvidia.com/gpu.family"] == "ampere"


@pytest.mark.parametrize(("driver", "parts"), [
    ("595.91.07", ("595", "91", "07")), ("595.91", ("595", "91", "")), ("595", ("595", "", ""))])
def test_a_driver_version_of_fewer_parts(driver: str, parts: tuple[str, str, str]) -> None:
    labels = compute_labels(node(A100)._replace(driver=driver))
    assert tuple(labels[f"nvidia.com/cuda.driver-version.{key}"] for key in ("major", "minor", "revision")) == parts


def test_before_a_driver_runs_memory_is_not_told() -> None:
    assert "nvidia.com/gpu.memory" not in compute_labels(node(A100)._replace(driver=None))


def test_mps_excludes_mig() -> None:
    """gpu-feature-discovery ends with an error in this case, and so does this collection."""
    sharing = parse_sharing(situations.mps("nvidia.com/gpu", 2))
    with pytest.raises(HostError, match="MPS"):
        compute_labels(node(A100, sliced(A100, M1G)), "mixed", sharing)


@pytest.mark.parametrize(("text", "value"), [
    ("NVIDIA H100 80GB HBM3", "NVIDIA-H100-80GB-HBM3"), ("  a   b ", "a-b"), ("a/b(c),d", "abcd"), ("x\ty", "xy"),
    ("Größe_1.2-3", "Gre_1.2-3"), ("", ""), ("ThinkSystem SR675 V3 -[7D9RCTO1WW]-", "ThinkSystem-SR675-V3--7D9RCTO1WW"),
    ("PowerEdge R760xa rev.", "PowerEdge-R760xa-rev"), ("x" * 62 + " y", "x" * 62), ("x" * 70, "x" * 63), ("...", ""),
])
def test_sanitise(text: str, value: str) -> None:
    """Invalid characters are removed, whitespace becomes one dash, and the result is valid as the value of a label."""
    assert sanitise(text) == value


def test_labels_of_each_model_are_valid() -> None:
    """In Kubernetes, a name or value has at most 63 characters, and begins and ends with a letter or digit."""
    valid = re.compile(r"^[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$")
    models = {model.name: model for model in MODELS.values() if model.name}
    gpus = [Gpu(name, 100, model.compute_capability, model.mig_capable) for name, model in models.items()]
    labels = compute_labels(node(*gpus, Gpu("NVIDIA " + "Very Long " * 9, 1, (9, 0))))
    names = [key for key in labels if key.startswith("gpuops.nvidia/")]
    assert len(names) == 7 * (len(models) + 1)
    assert [key for key in labels if not valid.match(key.partition("/")[2])] == []
    assert [value for key, value in labels.items() if "Very" not in value and value and not valid.match(value)] == []


@pytest.mark.parametrize("document", [
    None, {}, {"version": "v1"}, {"version": "v1", "sharing": {}}, {"version": "v1", "flags": {"migStrategy": "mixed"}},
    {"sharing": None}, {"timeSlicing": None},
])
def test_not_shared(document: dict[str, t.Any] | None) -> None:
    """Many forms of a configuration without sharing."""
    assert parse_sharing(document) == Sharing()


def test_devices_and_rename_of_a_resource_are_ignored() -> None:
    """The device plugin ignores them, too."""
    resource = {"name": "nvidia.com/gpu", "rename": "nvidia.com/x", "devices": [0], "replicas": 2}
    assert parse_sharing({"timeSlicing": {"resources": [resource]}}) == Sharing("time-slicing", {"nvidia.com/gpu": 2})


@pytest.mark.parametrize(("document", "path"), [
    ({"timeSlices": {}}, "sharing.timeSlices"),
    ({"version": "v2"}, "sharing.version"),
    ({"version": "v1", "sharing": {"timeslicing": {}}}, "sharing.sharing.timeslicing"),
    ({"timeSlicing": []}, "sharing.timeSlicing"),
    ({"timeSlicing": {"resources": []}}, "sharing.timeSlicing.resources"),
    ({"timeSlicing": {"renameDefault": True}}, "sharing.timeSlicing.renameDefault"),
    ({"mps": {"resources": [{"replicas": 2}]}}, "sharing.mps.resources[0].name"),
    ({"mps": {"resources": [{"name": "gpu", "replicas": 1}]}}, "sharing.mps.resources[0].replicas"),
    ({"mps": {"resources": [{"name": "gpu", "replicas": "4"}]}}, "sharing.mps.resources[0].replicas"),
    ({"mps": {"resources": [{"name": "gpu", "replicas": True}]}}, "sharing.mps.resources[0].replicas"),
    ({"mps": {"resources": ["gpu"]}}, "sharing.mps.resources[0]"),
    ({"mps": {"resources": [{"name": "gpu", "count": 2}]}}, "sharing.mps.resources[0].count"),
])
def test_wrong_sharing(document: dict[str, t.Any], path: str) -> None:
    """One error that names the path."""
    with pytest.raises(InputError) as caught:
        parse_sharing(document)
    assert caught.value.details["path"] == path
