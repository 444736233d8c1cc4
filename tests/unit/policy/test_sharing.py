# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Sharing configurations: a table of documents, with the expected messages.

Source of what is right and wrong: configuration v1 of NVIDIA/k8s-device-plugin 0.20 (api/config/v1), its
config-manager, and what its users have reported: renameByDefault below flags and devices are skipped, replicas 1
stops the plugin.
"""

from __future__ import annotations

import datetime
import json
import pathlib
from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.yamltext import Document, load_data, load_document
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import sharing

# As a tutorial has it.
CONFIG_MAP = """\
apiVersion: v1
kind: ConfigMap
metadata:
  name: time-slicing-config
  namespace: gpu-operator
data:
  any: |
    version: v1
    flags:
      migStrategy: none
    sharing:
      timeSlicing:
        renameByDefault: false
        failRequestsGreaterThanOne: false
        resources:
          - name: nvidia.com/gpu
            replicas: 4
"""
GPU = {"name": "nvidia.com/gpu", "replicas": 4}
UUID = "b1028956-cfa2-0990-bf4a-5da9abb51763"


def slicing(*resources: Any, **more: Any) -> dict[str, Any]:
    return {"timeSlicing": {"resources": list(resources), **more}}


def mps(*resources: Any, **more: Any) -> dict[str, Any]:
    return {"mps": {"resources": list(resources), **more}}


def gpu(**more: Any) -> dict[str, Any]:
    return {**GPU, **more}


DEEP: list[Any] = []
for _level in range(500):
    DEEP = [DEEP]
WIDE: list[Any] = []  # ten to the power of ten items, all the same
for _level in range(10):
    WIDE = [WIDE] * 10
SELF: dict[str, Any] = {}
SELF["flags"] = SELF


def read(data: Any) -> sharing.Sharing:
    return sharing.read(Document(data))


@pytest.mark.parametrize(("data", "default", "texts"), [
    (slicing(GPU), "default", 1),
    (mps(GPU), "default", 1),
    (slicing(gpu(name="gpu")), "default", 1),
    (slicing(gpu(name="nvidia.com/mig-1g.10gb"), gpu(name="mig-2g.20gb.me")), "default", 1),
    (slicing(GPU, renameByDefault=True, failRequestsGreaterThanOne=True), "default", 1),
    (slicing(gpu(devices="all")), "default", 1),
    (slicing(gpu(devices=2)), "default", 1),
    (slicing(gpu(devices=[0, "1", "0:1", f"GPU-{UUID}", f"MIG-{UUID}", f"MIG-GPU-{UUID}/3/0"])), "default", 1),
    (slicing(gpu(replicas=100)), "default", 1),
    (mps(gpu(replicas=48)), "default", 1),
    ({"version": "v1", "sharing": slicing(GPU)}, "default", 1),
    ({"version": "v1"}, "default", 1),
    ({"flags": {"migStrategy": "mixed", "plugin": {"deviceListStrategy": ["cdi-cri"]}}, "sharing": slicing(GPU)},
     "default", 1),
    ({"imex": {"channelIDs": [0], "required": True}}, "default", 1),
    ({"configs": {"dense": slicing(GPU), "plain": {}}}, "", 2),
    ({"default": "plain", "configs": {"dense": slicing(GPU), "plain": None}}, "plain", 2),
    ({"configs": {"dense": "version: v1\nsharing: {mps: {resources: [{name: gpu, replicas: 2}]}}"}}, "dense", 1),
    (load_data(CONFIG_MAP, "a tutorial"), "any", 1),
])
def test_right(data: Any, default: str, texts: int) -> None:
    found = read(data)
    assert (found.default, len(found.texts)) == (default, texts)
    for text in found.texts.values():
        assert load_data(text, "what the plugin reads")["version"] == "v1"


WRONG: list[tuple[Any, list[str]]] = [
    # misplaced, which the plugin ignores without a warning
    ({"flags": {"renameByDefault": True}, "sharing": slicing(GPU)},
     ["flags.renameByDefault: true has no effect here; it belongs in sharing.timeSlicing or sharing.mps"]),
    ({"sharing": {"renameByDefault": True, **slicing(GPU)}},
     ["sharing.renameByDefault: true has no effect here; it belongs in sharing.timeSlicing or sharing.mps"]),
    (slicing(gpu(renameByDefault=True)),
     ["sharing.timeSlicing.resources[0].renameByDefault: true has no effect here; it belongs in sharing.timeSlicing"]),
    ({"timeSlicing": {"replicas": 4, "resources": [GPU]}},
     ["sharing.timeSlicing.replicas: 4 has no effect here; it belongs in sharing.timeSlicing.resources[]"]),
    ({"version": "v1", "timeSlicing": {"resources": [GPU]}}, ["timeSlicing: ", "it belongs in sharing"]),
    ({"version": "v1", "migStrategy": "mixed"}, ["migStrategy: 'mixed' has no effect here; it belongs in flags"]),
    ({"flags": {"failRequestsGreaterThanOne": True}}, ["flags.failRequestsGreaterThanOne: ", "sharing.mps"]),
    # unknown, with the nearest
    ({"timeslicing": {"resources": [GPU]}}, ["timeslicing: unknown key; did you mean 'timeSlicing'?"]),
    (slicing(GPU, renameDefault=True),
     ["sharing.timeSlicing.renameDefault: unknown key; did you mean 'renameByDefault'?"]),
    (slicing(gpu(replica=4)), ["resources[0].replica: unknown key; did you mean 'replicas'?"]),
    ({"configs": {"a": slicing(GPU)}, "defaults": "a"}, ["defaults: unknown key; did you mean 'default'?"]),
    # numbers of replicas
    (slicing(gpu(replicas=1)), ["sharing.timeSlicing.resources[0].replicas: 1 is too small", "remove the entry"]),
    (slicing(gpu(replicas=0)), ["resources[0].replicas: 0 is too small; the smallest value is 2"]),
    (slicing(gpu(replicas=-3)), ["resources[0].replicas: -3 is too small"]),
    (slicing(gpu(replicas="4")), ["resources[0].replicas: a whole number is expected, not '4'"]),
    (slicing({"name": "nvidia.com/gpu"}), ["resources[0].replicas: is missing"]),
    (mps(gpu(replicas=49)), ["sharing.mps.resources[0].replicas: 49 is too large; MPS has at most 48 clients"]),
    # which of them
    ({"sharing": {**slicing(GPU), **mps(GPU)}}, ["sharing.mps: mps and timeSlicing are both set", "keep one"]),
    (slicing(gpu(name="nvidia.com/gpus")), ["resources[0].name: 'nvidia.com/gpus' is not a", "nvidia.com/gpu"]),
    (slicing(gpu(name="amd.com/gpu")), ["resources[0].name: 'amd.com/gpu' is not a resource"]),
    (slicing({"replicas": 4}), ["resources[0].name: is missing"]),
    (slicing(GPU, gpu(name="gpu", replicas=2)), ["resources[1].name: 'gpu' is also in resources[0]", "other Nodes"]),
    (slicing(), ["sharing.timeSlicing.resources: no resources are given"]),
    ({"timeSlicing": {}}, ["sharing.timeSlicing.resources: is missing"]),
    (slicing(gpu(devices="some")), ["resources[0].devices: 'some' is not allowed; allowed: all, a number"]),
    (slicing(gpu(devices=["GPU-1"])), ["resources[0].devices: ['GPU-1'] is not allowed"]),
    (slicing(gpu(devices=0)), ["resources[0].devices: 0 is not allowed"]),
    # types and the rest
    (slicing(GPU, failRequestsGreaterThanOne="yes"),
     ["failRequestsGreaterThanOne: true or false is expected, not 'yes'"]),
    ({"version": "v2"}, ["version: 'v2' is not allowed; allowed: 'v1'"]),
    ({"version": 1}, ["version: 1 is not allowed; allowed: 'v1'; write it in quotes"]),
    ({"flags": {"migStrategy": "both"}},
     ["flags.migStrategy: 'both' is not allowed; allowed: 'none', 'single', 'mixed'"]),
    ({"imex": {"channelIDs": [1]}}, ["imex.channelIDs: [1] is not allowed; allowed: [] and [0]"]),
    ({"sharing": []}, ["sharing: a mapping is expected, not []"]),
    ({"configs": []}, ["configs: a mapping of names to configurations is expected, not []"]),
    ({"configs": {"a b": slicing(GPU)}}, ["'a b' is not a valid name of a configuration"]),
    ({"default": "dens", "configs": {"dense": {}, "b": {}}}, ["default: 'dens' is not one", "did you mean 'dense'?"]),
    ({"configs": {"a": slicing(gpu(replicas=1)), "b": slicing(gpu(replicas=0))}},
     ["gpu_sharing has 2 faults", "a: sharing.timeSlicing", "b: sharing.timeSlicing"]),
    ("twice", ["gpu_sharing: a mapping is expected, not 'twice'"]),
    # what JSON does not have
    ({1: {}, **slicing(GPU)}, ["sharing.1: a string is expected as key; write it in quotes"]),
    ({"timeSlicing": {"resources": [GPU], 1: 2, None: 3}}, ["timeSlicing.1: a string", "timeSlicing.None: a string"]),
    ({"configs": {"a": {"version": "v1", True: 1}}}, ["true: a string is expected as key"]),
    ({"flags": {"gfd": {"sleepInterval": datetime.date(2026, 1, 1)}}}, ["sleepInterval: 2026-01-01 is not a string"]),
    ({"flags": {"plugin": {"deviceListStrategy": b"x"}}}, ["deviceListStrategy: b'x' is not a string; write it"]),
    ({"flags": {"gfd": {"sleepInterval": float("nan")}}}, ["sleepInterval: nan is not a valid number"]),
    (mps(gpu(replicas=10**5000)), ["replicas: a number with thousands of digits is not a valid number"]),
    (slicing(gpu(devices=[10**5000])), ["devices[0]: a number with thousands of digits is not a valid number"]),
    (slicing(gpu(devices="\u0663")), ["devices: '\u0663' is not allowed"]),
    (slicing(gpu(devices=DEEP)), ["sharing.timeSlicing.resources: it has more than 30 levels"]),
    (slicing(gpu(devices=WIDE)), ["it has more than 50,000 values"]),
    ({"version": "v1", "flags": SELF}, ["flags.flags.flags: it has more than 30 levels"]),
    # ConfigMaps
    ({"kind": "ConfigMap", "metadata": {"name": "c"}}, ["ConfigMap c", "it has no configuration"]),
    ({"kind": "ConfigMap", "data": {"any": {"version": "v1"}}}, ["any: a string is expected", "write any: |"]),
    ({"kind": "ConfigMap", "data": None, "any": "", "version": "v1", "sharing": None}, ["indentation", "lost"]),
    ({"kind": "ConfigMap", "metadata": {"name": "my.config"}, "data": {"a": "version: v1"}},
     ["metadata.name: 'my.config'"]),
    ({"kind": "ConfigMap", "data": {"a": "version: v1\n---\nversion: v1\n"}},
     ["a: one document is expected, not 2"]),
    ({"kind": "ConfigMap", "data": {"a": "- 1"}}, ["a: a mapping is expected, not [1]"]),
]


@pytest.mark.parametrize(("data", "told"), WRONG)
def test_wrong(data: Any, told: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        read(data)
    text = str(caught.value)
    assert [one for one in told if one not in text] == [], text


def test_a_fault_in_a_file_has_its_line(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "sharing.yml"
    path.write_text("version: v1\nsharing:\n  timeSlicing:\n    resources:\n      - name: nvidia.com/gpu\n        "
                    "replicas: 1\n")
    with pytest.raises(InputError, match=r"resources\[0\]\.replicas \(line 6\): 1 is too small"):
        sharing.read(load_document(str(path), "gpu_sharing"), str(path))
    with pytest.raises(InputError, match=r"any: flags\.renameByDefault \(line 3\): true has no effect"):
        read({"kind": "ConfigMap", "data": {"any": "version: v1\nflags:\n  renameByDefault: true\n"}})
    with pytest.raises(InputError, match="does not exist"):
        load_document(str(tmp_path / "none.yml"), "gpu_sharing")


def test_a_config_map_stays_as_it_is_written() -> None:
    found = read(load_data(CONFIG_MAP, "a tutorial"))
    assert found.name == "time-slicing-config"
    assert found.texts["any"].startswith("version: v1\nflags:\n  migStrategy: none\n")
    assert found.strategy("any") == "timeSlicing"


def test_a_part_becomes_a_configuration() -> None:
    assert json.loads(read(mps(GPU)).texts["default"]) == {
        "version": "v1", "sharing": {"mps": {"resources": [{"name": "nvidia.com/gpu", "replicas": 4}]}}}


def test_checksum_follows_the_content() -> None:
    one, same, other = (sharing.checksum(texts) for texts in ({"a": "1", "b": "2"}, {"b": "2", "a": "1"}, {"a": "1"}))
    assert one == same != other
    assert sharing.checksum({}) == ""


def test_faults_of_all_kinds_come_at_once() -> None:
    """Wrong keys, types and values in several configurations, together with a wrong default."""
    with pytest.raises(InputError) as caught:
        sharing.read(Document({"default": 3, "other": 1, "configs": {
            "a": {"version": "v2", "sharing": {"timeSlicing": {"resources": [
                {"name": "nvidia.com/gpu", "replicas": 1, "colour": "red"}, {"name": 7, "replicas": "many"},
                {"name": "cpu", "replicas": True}, "x"]}}, "imex": {"channelIDs": [3]}},
            "b": {"mps": {"resources": [{"name": "nvidia.com/gpu", "replicas": 99}]},
                  "timeSlicing": {"resources": []}}}}))
    faults = "\n".join(caught.value.details["faults"])
    for words in ("default", "other", "'v2' is not allowed", "1 is too small", "colour", "resources[1].name",
                  "resources[1].replicas", "'cpu' is not a resource", "resources[2].replicas", "resources[3]",
                  "[3] is not allowed", "99 is too large", "no resources are given", "are both set"):
        assert words in faults, words
    with pytest.raises(InputError, match="(?s)has 2 faults.*a: a string is expected.*b: .*1 is too small"):
        sharing.of_texts("m", "", {"a": 1, "b": "sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, "
                                   "replicas: 1}]}}"}, "here")
