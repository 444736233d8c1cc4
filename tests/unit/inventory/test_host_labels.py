# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The labels that hosts have reported, by Nodes."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory.host_labels import read_labels

LABELS = {"nvidia.com/gpu.count": "8"}


class HostVars(dict[str, Any]):
    """Like the class of Ansible; gpu_node_name is templated."""

    def raw_get(self, host: str) -> Any:
        """Returns the variables without templating."""
        return self[host]


def variables(**hosts: dict[str, Any]) -> dict[str, Any]:
    """The variables of a task."""
    return {"hostvars": HostVars(hosts)}


def test_facts_by_node() -> None:
    """The facts of this run or of a fact cache count; a variable of the inventory does not."""
    fact = {"ansible_facts": {"gpu_labels": LABELS}}
    hosts = variables(a={**fact, "gpu_node_name": "node-a"}, b=fact, c={"gpu_labels": LABELS}, d={}, e=fact)
    found = read_labels(hosts, ["a", "b", "c", "d", "a"])
    assert found.labels == {"node-a": LABELS, "b": LABELS} and found.silent == ["c", "d"]
    assert found.nodes == {"node-a": "a", "b": "b", "c": "c", "d": "d"}


def test_a_host_cannot_say_which_node_it_is() -> None:
    """A fact takes precedence over the inventory, so a compromised host could label the Node of another one."""
    spoofed = {"ansible_facts": {"gpu_labels": LABELS, "gpu_node_name": "control-1"}, "gpu_node_name": "control-1"}
    found = read_labels(variables(a=spoofed, b={"ansible_facts": {"gpu_labels": LABELS}}), ["b", "a"])
    assert found.labels == {"b": LABELS} and found.refused == ["a"] and found.nodes == {"b": "b"}
    assert found.silent == []


def test_a_host_that_is_not_believed_has_told_nothing() -> None:
    forged = {"ansible_facts": {"gpu_labels": LABELS, "gpu_disruption": "reboot"}, "gpu_node_name": "node-a"}
    found = read_labels(variables(a=forged), ["a"])
    assert (found.labels, found.silent, found.refused, found.nodes) == ({}, [], ["a"], {"node-a": "a"})
    lied = {"preflight_found": {"error": {"kind": "answer", "path": "facts.gpus", "message": "No.", "hint": "Look."}},
            "ansible_facts": {"gpu_labels": LABELS}}
    found = read_labels(variables(a=lied, b={}), ["a", "b"])
    assert (found.labels, found.silent, found.refused) == ({}, ["b"], ["a"])


def test_labels_that_were_taken_back_are_not_told() -> None:
    """As with state absent: without any label of a GPU, the Node would count as one that has lost it."""
    assert read_labels(variables(a={"ansible_facts": {"gpu_labels": {}}}), ["a"]).silent == ["a"]


def test_hosts_that_could_not_read_all_of_their_gpus() -> None:
    found = read_labels(variables(a={"ansible_facts": {"gpu_labels": LABELS, "gpu_labels_unread": ["0000:07:00.0"]}},
                                  b={"ansible_facts": {"gpu_labels": LABELS, "gpu_labels_unread": []}}), ["a", "b"])
    assert found.unread == {"a"} and set(found.labels) == {"a", "b"}


def test_values_that_are_no_strings_are_labels_all_the_same() -> None:
    """The YAML file of a fact cache can contain such values."""
    fact = {"nvidia.com/gpu.count": 8, "nvidia.com/mig.capable": True, "nvidia.com/vgpu.present": False}
    assert read_labels(variables(a={"ansible_facts": {"gpu_labels": fact}}), ["a"]).labels == {
        "a": {**LABELS, "nvidia.com/mig.capable": "true", "nvidia.com/vgpu.present": "false"}}


@pytest.mark.parametrize("hosts, words", [(["a", "z"], "no host z"), (["a", "b"], "a and b have the same Node n")])
def test_refused(hosts: list[str], words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        read_labels(variables(a={"gpu_node_name": "n"}, b={"gpu_node_name": "n"}), hosts)
    assert caught.value.details["path"] == "hosts"
