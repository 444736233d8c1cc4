# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which hosts are Nodes, how many are disturbed at a time, and a host that cannot get its plan."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import releases
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.refusals import PolicyError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory import host_nodes
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning.resolve import resolve
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import formats
from ansible_collections.gpuops.nvidia.tests.unit.simulated.host_facts import facts

ROOT = pathlib.Path(__file__).parents[3]


@pytest.mark.parametrize(("asked", "hosts", "count"), [
    (1, 7, 1), ("3", 7, 3), ("25%", 100, 25), ("25%", 7, 1), ("10%", 3, 1), ("100%", 3, 3)])
def test_how_many_at_a_time(asked: Any, hosts: int, count: int) -> None:
    assert host_nodes.batch(asked, hosts) == count


@pytest.mark.parametrize("asked", [0, -1, True, "", "0%", "101%", "1.5", "all", None, "1\n", "٣"])
def test_what_is_no_number_of_hosts_is_refused(asked: Any) -> None:
    with pytest.raises(InputError, match="not a number of hosts") as caught:
        host_nodes.batch(asked, 7)
    assert caught.value.details["path"] == "gpu_max_unavailable"


@pytest.mark.parametrize(("given", "strict"), [(True, True), ("false", False), ("yes", True), (False, False)])
def test_strict_is_true_or_false(given: Any, strict: bool) -> None:
    wanted = {"max_unavailable": 1, "strict": given}
    host_nodes.check(wanted)
    assert wanted["strict"] is strict


def test_strict_is_nothing_else() -> None:
    with pytest.raises(InputError, match="'maybe' is neither true nor false"):
        host_nodes.check({"max_unavailable": 1, "strict": "maybe"})


def plan(level: str) -> dict[str, Any]:
    return {"disruption": level, "hosts": {name: {"driver": {"disruption": level}, "preview": []} for name in "ab"}}


def known(kubernetes: str | None) -> dict[str, Any]:
    return {"host": {"markers": {"kubernetes": kubernetes}}}


def test_a_host_is_a_node_where_the_cluster_has_one() -> None:
    found = plan("reboot")
    facts_of = dict.fromkeys("ab", known("k3s"))
    note, = host_nodes.attach(found, {"a": "node-a"}, {"node-a": True, "c": False}, facts_of)
    assert found["hosts"]["a"]["node"] == {"name": "node-a", "left": True} and found["hosts"]["b"]["node"] == {}
    # A host of a Kubernetes cluster whose Node has another name would be rebooted without a cordon.
    assert {host: parts["driver"]["disruption"] for host, parts in found["hosts"].items()} == {
        "a": "reboot", "b": "idle"}
    assert note == ("b: the host belongs to a Kubernetes cluster, but the cluster has no Node b, so the run cannot "
                    "cordon the Node and evict its pods: gpu_disruption reboot counts as idle. Set gpu_node_name to "
                    "the name of the host's Node, or gpu_kubeconfig to its cluster.")


def test_a_host_without_kubernetes_is_no_node_and_needs_none() -> None:
    found = plan("reboot")
    assert host_nodes.attach(found, {}, {"c": False}, dict.fromkeys("ab", known(None))) == []
    assert found["hosts"]["b"] == {"driver": {"disruption": "reboot"}, "preview": [], "node": {}}


def test_hosts_that_the_plan_rejects_or_leaves_out_have_a_node_and_a_level() -> None:
    """remediate must not reboot a Node in service because nothing else is delivered on its host."""
    found = {**plan("reboot"), "hosts": {}}
    told = {"a": known("k3s"), "b": known("k3s"), "c": known(None), "d": None}
    assert host_nodes.attach(found, {}, {"a": False}, told) == []
    assert found["host_nodes"] == {"a": {"name": "a", "left": False}, "b": {}, "c": {}}
    assert found["host_levels"] == {"a": "reboot", "b": "idle", "c": "reboot"}


@pytest.mark.parametrize(("level", "here"), [
    ("never", "never"), ("idle", "idle"), ("drain", "idle"), ("reboot", "idle")])
def test_a_host_of_a_cluster_that_is_not_named_is_not_drained(level: str, here: str) -> None:
    found = plan(level)
    notes = host_nodes.attach(found, {}, None, {"a": known("kubeadm"), "b": known(None)})
    assert (found["hosts"]["a"]["driver"]["disruption"], found["hosts"]["b"]["driver"]["disruption"]) == (here, level)
    assert len(notes) == (level != here)
    assert all(note.startswith("a: the host belongs to a Kubernetes cluster, but gpu_kubeconfig") for note in notes)
    rendered = host_nodes.attach(plan(level), {}, None, {"a": known("kubeadm"), "b": known(None)}, rendered=True)
    assert all("cluster, but gpu_render_to is set, so" in note for note in rendered) and len(rendered) == len(notes)


@pytest.mark.parametrize(("level", "node", "kubernetes", "here"), [
    ("reboot", "", "kubeadm", "idle"), ("drain", "", "k3s", "idle"), ("drain", "", None, "drain"),
    ("drain", "node-a", "kubeadm", "drain"), ("idle", "", "kubeadm", "idle"), ("never", "", "kubeadm", "never")])
def test_a_removal_has_the_same_limit(level: str, node: str, kubernetes: str | None, here: str) -> None:
    """The playbook checks a host only if the result matters."""
    play = yaml.safe_load((ROOT / "playbooks" / "remove.yml").read_text(encoding="utf-8"))[1]
    removal = {"disruption": level, "hosts": {"a": {"node": {"name": node, "left": False} if node else {}}}}
    looks = not node and level in ("drain", "reboot")
    found = {"facts": known(kubernetes)} if looks else {"skipped": True}
    variables = {"inventory_hostname": "a", "remove_from": removal, "preflight_found": found,
                 **{name: trust_as_template(play["vars"][name])
                    for name in ("gpu_plan", "gpu_undisturbed", "gpu_node_unknown")}}
    templar = Templar(DataLoader(), variables=variables)
    look = trust_as_template("{{ " + play["tasks"][0]["when"] + " }}")
    assert templar.template(look) is looks
    assert templar.template(variables["gpu_plan"])["disruption"] == here
    unknown = templar.template(variables["gpu_node_unknown"])
    assert unknown is (here != level)
    made = host_nodes.removal({"a": node or "a"}, {node: False}, level)["a"]
    assert bool(made["node"]) is bool(node)
    tell = next(one for one in play["tasks"] if one.get("when") == "gpu_node_unknown")
    variables["remove_from"] = {"disruption": level, "hosts": {"a": made}}
    if unknown:
        said = Templar(DataLoader(), variables=variables).template(
            trust_as_template(tell["ansible.builtin.debug"]["msg"]))
        assert said == host_nodes.unknown_nodes(["a"], ["a"], True, level, rendered=False)
        assert f"the cluster has no Node a, so the run cannot cordon the Node and evict its pods: gpu_disruption " \
            f"{level} counts as idle" in said


def test_one_host_that_cannot_follow_the_policy_leaves_the_others_their_plan() -> None:
    chosen = releases.release()
    fleet: dict[str, Any] = {"a": facts("A100"), "b": {**facts("A100"), "gpus": []}}
    found = resolve(formats.read(None, chosen), chosen, fleet, {}, strict=False)
    assert list(found["hosts"]) == ["a"] and list(found["refused"]) == ["b"]
    assert found["refused"]["b"]["message"] == "no NVIDIA GPU is on its PCI bus."
    assert found["refused"]["b"]["hint"] == (
        "Remove the host from the group gpu_hosts. To install the driver in an image, use the role driver with "
        "driver_image: true.")
    with pytest.raises(PolicyError, match="b: no NVIDIA GPU"):
        resolve(formats.read(None, chosen), chosen, fleet, {})
    with pytest.raises(PolicyError):
        resolve(formats.read(None, chosen), chosen, {"b": fleet["b"]}, {}, strict=False)
