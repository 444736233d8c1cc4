# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which deploy labels a Node gets, and which of them are ours."""

from __future__ import annotations

import dataclasses
import typing as t

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import deploy_labels, label_nodes
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.deploy_labels import (
    ANNOTATION,
    GONE,
    GONE_AFTER,
    Deploy,
    Node,
    Terms,
    differs,
    mig_capable,
    owned,
    parse_deploy,
    plan_absent,
    seems_gone,
    undecided,
)
from ansible_collections.gpuops.nvidia.tests.unit.simulated.nodes import (
    ALL,
    CAPABLE,
    GPU,
    NAMES,
    NFD,
    NOW,
    OPERATOR,
    SYSTEM,
    D,
    added,
    after,
    node,
    patched,
    plan_present,
)

# -- what a Node gets


@pytest.mark.parametrize("seen", [f"{NFD}pci-{kind}10de.present" for kind in ("", "0302_", "0300_")])
def test_a_gpu_node_gets_what_the_operator_writes(seen: str) -> None:
    """The annotation lists exactly these labels."""
    labels = {**SYSTEM, seen: "true"}
    now = after(node(labels))
    assert added(now, labels) == OPERATOR
    assert now.annotations == {ANNOTATION: ",".join(sorted(OPERATOR))}


@pytest.mark.parametrize("labels", [{}, SYSTEM, {**SYSTEM, f"{NFD}pci-10de.present": "false"},
                                    {**SYSTEM, f"{NFD}pci-15b3.present": "true"}])
def test_a_node_without_a_gpu_is_not_written(labels: dict[str, str]) -> None:
    assert plan_present(node(labels), ALL) is None


def test_only_what_is_delivered_is_labelled() -> None:
    """A disabled component, and one that is on the host, get no label; the next plan removes theirs."""
    labels = after(node(GPU)).labels
    less = Deploy(ALL.components - {"dcgm_exporter"}, {"n": frozenset({"driver"}), "other": frozenset(NAMES)})
    now = after(after(node(GPU)), less)
    assert set(labels) - set(now.labels) == {f"{D}dcgm-exporter", f"{D}driver"}
    assert after(node(GPU), less).labels == now.labels


def test_the_mig_manager_comes_with_capable_gpus() -> None:
    now = after(node({**GPU, **CAPABLE}))
    assert added(now, {**GPU, **CAPABLE, **OPERATOR}) == {
        f"{D}mig-manager": "true", "nvidia.com/mig.config": "all-disabled"}
    assert f"{D}mig-manager" in now.ours and "nvidia.com/mig.config" in now.ours


def test_no_layout_where_the_policy_has_none_or_the_node_has_one() -> None:
    """A layout of the user never becomes ours."""
    assert "nvidia.com/mig.config" not in after(node({**GPU, **CAPABLE}), Deploy(frozenset(NAMES))).labels
    chosen = {**GPU, **CAPABLE, "nvidia.com/mig.config": "all-1g.10gb"}
    now = after(node(chosen))
    assert now.labels["nvidia.com/mig.config"] == "all-1g.10gb" and "nvidia.com/mig.config" not in now.ours
    off = after(node({**GPU, **CAPABLE, f"{D}mig-manager": "false"}))
    assert "nvidia.com/mig.config" not in off.labels


def test_where_no_layout_may_change_none_is_asked_for_and_none_is_taken_back() -> None:
    """Otherwise, instances that were created by hand would be destroyed; without the label, the manager would reject
    the layout."""
    quiet = dataclasses.replace(ALL, mig_changes=False)
    fresh = after(node({**GPU, **CAPABLE}), quiet)
    assert f"{D}mig-manager" in fresh.labels and "nvidia.com/mig.config" not in fresh.labels
    full = after(node({**GPU, **CAPABLE}))
    for deploy in (quiet, dataclasses.replace(quiet, mig_default="")):
        assert after(full, deploy) == full
    assert after(fresh).labels["nvidia.com/mig.config"] == "all-disabled"
    chosen = after(node({**GPU, **CAPABLE, "nvidia.com/mig.config": "all-1g.10gb"}), quiet)
    assert chosen.labels["nvidia.com/mig.config"] == "all-1g.10gb" and "nvidia.com/mig.config" not in chosen.ours


@pytest.mark.parametrize("there", [{}, {f"{D}mig-manager": "true"}, {f"{D}mig-manager": "paused-for-driver-upgrade"},
                                   {f"{D}mig-manager": "false"}, {f"{D}mig-manager": ""}])
def test_no_mig_manager_starts_on_a_node_with_a_layout_where_none_may_change(there: dict[str, str]) -> None:
    """It would apply the layout at once. One that runs stays, and other operands come."""
    quiet = dataclasses.replace(ALL, mig_changes=False)
    chosen = {**GPU, **CAPABLE, "nvidia.com/mig.config": "all-1g.10gb", **there}
    for one in (node(chosen), node(chosen, [f"{D}mig-manager"])):
        now = after(one, quiet)
        assert now.labels.get(f"{D}mig-manager") == there.get(f"{D}mig-manager") and f"{D}dcgm-exporter" in now.labels
        notes = label_nodes.notes([one], quiet, Terms(NOW))
        assert notes == ([] if there else [
            f"{one.name}: {D}mig-manager is not set, because gpu_disruption is never: the MIG manager would start, and "
            "apply the layout that the label nvidia.com/mig.config requests, which destroys other MIG instances. Set "
            "gpu_disruption: idle to allow this."])
        assert after(now).labels.get(f"{D}mig-manager") == (there or {f"{D}mig-manager": "true"})[f"{D}mig-manager"]
    assert not label_nodes.notes([node(chosen)], ALL, Terms(NOW))


@pytest.mark.parametrize("more", [{f"{D}operands": "false"}, {"nvidia.com/mig.capable": "false"},
                                  {"nvidia.com/mig.config": ""}, {"nvidia.com/gpu.workload.config": "vm-vgpu"}])
def test_nothing_is_said_of_a_mig_manager_that_does_not_wait(more: dict[str, str]) -> None:
    one = node({**GPU, **CAPABLE, "nvidia.com/mig.config": "all-1g.10gb", **more})
    quiet = dataclasses.replace(ALL, mig_changes=False)
    assert not any("mig-manager" in note for note in label_nodes.notes([one], quiet, Terms(NOW)))


@pytest.mark.parametrize("labels, expected", [
    ({}, None), ({"nvidia.com/mig.capable": ""}, None), (CAPABLE, True), ({"nvidia.com/mig.capable": "false"}, False),
    ({"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}, True), ({"nvidia.com/gpu.product": "NVIDIA-A30"}, True),
    ({"nvidia.com/gpu.product": "Tesla-T4"}, False), ({**CAPABLE, "nvidia.com/vgpu.host-driver-version": "570"}, False),
    ({"nvidia.com/mig.capable": "false", "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB"}, False),
])
def test_mig_capability(labels: dict[str, str], expected: bool | None) -> None:
    assert mig_capable(labels) is expected


def test_feature_labels_that_vanish_stop_no_mig_manager() -> None:
    """The MIG manager itself stops feature discovery while it works."""
    full = after(node({**GPU, **CAPABLE}))
    bare = Node("n", {key: value for key, value in full.labels.items() if key not in CAPABLE}, full.annotations)
    assert plan_present(bare, ALL) is None
    assert undecided(bare, ALL) and not undecided(full, ALL)
    said = after(Node("n", {**bare.labels, "nvidia.com/mig.capable": "false"}, full.annotations))
    assert f"{D}mig-manager" not in said.labels and "nvidia.com/mig.config" not in said.labels


# -- values that others wrote


@pytest.mark.parametrize("value", ["false", "pre-installed", "paused-for-driver-upgrade", "true_paused-for-mig-change"])
def test_a_value_is_honoured(value: str) -> None:
    """Whether the value existed first or has replaced ours."""
    first = after(node({**GPU, f"{D}driver": value}))
    assert first.labels[f"{D}driver"] == value and f"{D}driver" not in first.ours
    full = after(node(GPU))
    now = after(Node("n", {**full.labels, f"{D}driver": value}, full.annotations))
    assert now.labels[f"{D}driver"] == value
    assert (f"{D}driver" in now.ours) == (value not in ("false", "pre-installed"))  # the user's from then on
    host = Deploy(frozenset(NAMES), {"n": frozenset({"driver"})})
    attracts = value.startswith(("paused", "true"))
    assert (f"{D}driver" in after(first, host).labels) != attracts


def test_a_driver_that_is_pre_installed_stays_so_while_others_come_and_go() -> None:
    """The driver pods of this Node were ours: without the label, the next plan would start one there."""
    full = after(node(GPU))
    now = Node("n", {**full.labels, f"{D}driver": "pre-installed"}, full.annotations)
    for deploy in (Deploy(ALL.components - {"driver"}), ALL, Deploy(ALL.components, {"n": frozenset({"driver"})}), ALL):
        now = after(now, deploy)
        assert now.labels[f"{D}driver"] == "pre-installed"


def test_an_empty_value_counts_as_none() -> None:
    now = after(node({**GPU, f"{D}driver": ""}))
    assert now.labels[f"{D}driver"] == "true" and f"{D}driver" in now.ours


def test_an_empty_label_keeps_the_mig_manager_off() -> None:
    """For this label alone, the operator checks only whether it exists."""
    now = after(node({**GPU, **CAPABLE, f"{D}mig-manager": ""}))
    assert now.labels[f"{D}mig-manager"] == "" and f"{D}mig-manager" not in now.ours
    assert "nvidia.com/mig.config" not in now.labels
    full = after(node({**GPU, **CAPABLE}))
    emptied = after(dataclasses.replace(full, labels={**full.labels, f"{D}mig-manager": ""}))
    assert emptied.labels[f"{D}mig-manager"] == "" and f"{D}mig-manager" not in emptied.ours


def test_labels_of_another_kind_of_workload_go() -> None:
    """Except on Nodes for virtual machines, and except for a request of a user."""
    vm = {f"{D}vfio-manager": "true", f"{D}sandbox-validator": "paused-for-driver-upgrade", f"{D}kata-manager": "false"}
    assert {key: value for key, value in after(node({**GPU, **vm})).labels.items() if key in vm} == {
        f"{D}kata-manager": "false"}
    served = after(node({**GPU, **vm, "nvidia.com/gpu.workload.config": "vm-passthrough"})).labels
    assert served.items() >= vm.items()
    off = after(node({**GPU, **vm, "nvidia.com/gpu.workload.config": "vm-passthrough", f"{D}operands": "false"}))
    assert f"{D}vfio-manager" not in off.labels


def test_a_label_deleted_by_hand_comes_back() -> None:
    full = after(node(GPU))
    less = Node("n", {key: value for key, value in full.labels.items() if key != f"{D}driver"}, full.annotations)
    assert after(less).labels == full.labels


def test_a_wrong_answer_about_the_gpu_is_put_right() -> None:
    """gpu.present is not a request of a user."""
    now = after(node({**GPU, "nvidia.com/gpu.present": "false"}))
    assert now.labels["nvidia.com/gpu.present"] == "true"


@pytest.mark.parametrize("switch", [{f"{D}operands": "false"}, {"nvidia.com/gpu.workload.config": "vm-passthrough"},
                                    {"nvidia.com/gpu.workload.config": "vm-vgpu"}])
def test_a_node_that_is_kept_free(switch: dict[str, str]) -> None:
    """No label that starts an operand is left, whoever owns it; other labels of users stay."""
    full = after(node({**GPU, **CAPABLE, f"{D}dcgm": "true", f"{D}device-plugin": "false"}))
    now = after(Node("n", {**full.labels, **switch}, full.annotations))
    assert {key: value for key, value in now.labels.items() if key not in {**GPU, **CAPABLE}} == {
        **switch, "nvidia.com/gpu.present": "true", f"{D}device-plugin": "false"}
    assert now.ours == {"nvidia.com/gpu.present"}
    assert after(node({**GPU, **switch})).labels == {**GPU, **switch, "nvidia.com/gpu.present": "true"}


def test_workload_container_is_the_default() -> None:
    now = after(node({**GPU, "nvidia.com/gpu.workload.config": "container"}))
    assert now.labels[f"{D}driver"] == "true"


def test_a_leftover_label_does_not_bring_a_second_driver() -> None:
    """If the host has the driver, the label that a GPU Operator has left is removed, but no other label and no
    switch."""
    left = {**GPU, f"{D}driver": "true", f"{D}container-toolkit": "false", f"{D}dcgm": "true"}
    deploy = Deploy(frozenset(NAMES), {"n": frozenset({"driver", "container_toolkit"})})
    now = after(node(left), deploy)
    assert f"{D}driver" not in now.labels
    assert now.labels[f"{D}container-toolkit"] == "false" and now.labels[f"{D}dcgm"] == "true"
    off = Deploy(frozenset(NAMES) - {"driver"}, {"n": frozenset({"driver"})})
    assert after(node(left), off).labels[f"{D}driver"] == "true"  # nothing of ours follows it


# -- a GPU that is gone


def lose(full: Node, ready: bool = True) -> Node:
    """NFD no longer finds the GPU."""
    return dataclasses.replace(full, ready=ready, labels={
        key: value for key, value in full.labels.items() if "pci-" not in key})


def test_a_gpu_that_is_gone() -> None:
    """First, only the time of observation is stored; after the delay, the labels are removed. They return with the
    GPU."""
    full = after(node({**GPU, **CAPABLE}))
    seen = after(lose(full))
    assert seen.labels == lose(full).labels
    assert seen.annotations == {**full.annotations, GONE: "2026-11-22T07:00:00Z"}
    assert plan_present(seen, ALL, NOW + GONE_AFTER - 1) is None
    now = after(seen, now=NOW + GONE_AFTER)
    assert now.labels == {**SYSTEM, **CAPABLE, "nvidia.com/gpu.present": "false"}
    assert now.annotations == {ANNOTATION: "nvidia.com/gpu.present"}
    back = after(dataclasses.replace(now, labels={**now.labels, **GPU}))
    assert back.labels == full.labels and back.annotations == full.annotations


def test_a_gpu_that_comes_back_in_time() -> None:
    """NFD was restarted: only the stored time has changed, and the next delay starts from then."""
    full = after(node(GPU))
    seen = after(lose(full))
    back = after(dataclasses.replace(seen, labels={**seen.labels, **GPU}), now=NOW + 60)
    assert back == full
    again = after(lose(back), now=NOW + GONE_AFTER + 60)
    assert again.labels == lose(full).labels and again.annotations[GONE] == "2026-11-22T07:11:00Z"


@pytest.mark.parametrize("mark", ["", "yesterday", "2026-11-22T08:00:00Z", "2026-11-13T07:00:00Z"])
def test_a_sighting_that_cannot_be_counts_from_now(mark: str) -> None:
    full = after(node(GPU))
    now = after(dataclasses.replace(lose(full), annotations={**full.annotations, GONE: mark}))
    assert now.annotations[GONE] == "2026-11-22T07:00:00Z" and now.labels == lose(full).labels


def test_without_a_time_it_is_gone_at_once() -> None:
    change = deploy_labels.plan_present(lose(after(node(GPU))), ALL, Terms(NOW, 0))
    assert change is not None and change.labels["nvidia.com/gpu.present"] == "false"
    assert GONE not in change.annotations


def test_removal_takes_the_sighting_along() -> None:
    seen = after(lose(after(node(GPU))))
    change = plan_absent(seen)
    assert change is not None and patched(seen, change.patch()).annotations == {}


def test_a_gpu_that_is_gone_takes_labels_of_others_along() -> None:
    """Otherwise, their operands would run without a GPU; a Node that never had a GPU is ignored."""
    lost = {**SYSTEM, "nvidia.com/gpu.present": "true", f"{D}dcgm": "true", f"{D}driver": "false",
            f"{D}dra-driver": "true"}
    seen = after(node({**GPU, f"{D}dra-driver": "true"}))
    assert seen.labels[f"{D}dra-driver"] == "true"
    now = after(after(node(lost)), now=NOW + GONE_AFTER)
    assert now.labels == {**SYSTEM, "nvidia.com/gpu.present": "false", f"{D}driver": "false"}
    assert plan_present(node({**SYSTEM, f"{D}dcgm": "true"}), ALL) is None


def test_a_flap_moves_nothing() -> None:
    """A Node that is not ready, or that has no label of NFD, for any time."""
    full = after(node(GPU))
    lost = dataclasses.replace(lose(full, ready=False), annotations={**full.annotations, GONE: "2026-11-01T00:00:00Z"})
    assert plan_present(lost, ALL) is None
    silent = dataclasses.replace(lost, ready=True, labels={
        key: value for key, value in lost.labels.items() if not key.startswith(NFD)})
    assert plan_present(silent, ALL) is None
    assert seems_gone(lost, ALL) and not seems_gone(silent, ALL)


# -- removal


def test_removal_takes_exactly_the_listed_keys() -> None:
    """Paused labels, too. Foreign keys stay, and so does a request that has replaced our value."""
    foreign = {**GPU, **CAPABLE, "nvidia.com/gpu.deploy.nvsm": "true", f"{D}dcgm-exporter": "true", "a/b": "c"}
    full = after(node(foreign))
    users = {f"{D}driver": "pre-installed", f"{D}gpu-feature-discovery": "false",
             "nvidia.com/mig.config": "all-1g.10gb"}
    rewritten = {**full.labels, f"{D}device-plugin": "paused-for-mig-change", **users}
    before = Node("n", rewritten, full.annotations)
    change = plan_absent(before)
    assert change is not None
    now = patched(before, change.patch())
    assert now.labels == {**foreign, **users}
    assert now.annotations == {} and plan_absent(now) is None
    assert plan_absent(node(foreign)) is None


def written(full: Node, *labels: str) -> Node:
    """The same without the list of our labels; the managed fields show who has written them."""
    return dataclasses.replace(full, annotations={}, written=frozenset(labels))


def test_a_list_that_is_lost_is_made_again_of_what_the_server_knows() -> None:
    """Labels of others, and those that they have changed since, stay theirs."""
    full = after(node({**GPU, D + "dcgm": "true"}))
    lost = written(full, *full.ours)
    assert after(lost).annotations == full.annotations
    paused = written(patched(full, {"metadata": {"labels": {D + "driver": "paused"}}}), *(full.ours - {D + "driver"}))
    assert D + "driver" not in after(paused).ours


def test_what_is_in_the_list_counts_where_there_is_one() -> None:
    """A change of MIG also pauses the labels of other owners, and restores their former values."""
    full = after(node({**GPU, D + "driver": "true"}))
    more = dataclasses.replace(full, written=full.ours | {D + "driver"})
    change = plan_absent(more)
    assert change is not None and D + "driver" not in change.labels and D + "device-plugin" in change.labels


def test_removal_without_the_list_takes_what_the_server_knows() -> None:
    full = after(node(GPU))
    change = plan_absent(written(full, *(full.ours - {D + "driver"}), "nvidia.com/gpu.deploy.operands", "team"))
    assert change is not None and set(change.labels) == set(full.ours) - {D + "driver"}
    left = patched(written(full), change.patch())
    assert deploy_labels.left_over(left) == {D + "driver"}
    assert plan_absent(written(left)) is None
    for value in ("false", "pre-installed"):
        assert deploy_labels.left_over(node({D + "driver": value, "nvidia.com/mig.config": "x"})) == frozenset()


def test_a_patch_names_only_what_differs() -> None:
    full = after(node(GPU))
    less = Node("n", {key: value for key, value in full.labels.items() if key != f"{D}driver"}, full.annotations)
    change = plan_present(less, ALL)
    assert change is not None and change.patch() == {"metadata": {"labels": {f"{D}driver": "true"}}}
    assert change.summary() == {"added": {f"{D}driver": "true"}, "changed": {}, "removed": {}}
    wrong = Node("n", {**full.labels, "nvidia.com/gpu.present": "no", f"{D}client": ""}, full.annotations)
    change = plan_present(wrong, Deploy(ALL.components - {"driver"}))
    assert change is not None and change.summary() == {
        "added": {f"{D}client": "true"}, "removed": {f"{D}driver": "true"},
        "changed": {"nvidia.com/gpu.present": {"before": "no", "after": "true"}}}


def test_looking() -> None:
    full = after(node({**GPU, f"{D}dcgm": "true", "a/b": "c"}))
    assert owned(full) == (OPERATOR, {f"{D}dcgm": "true"})
    assert not differs([full, node(SYSTEM)], ALL, NOW) and differs([full, node(GPU)], ALL, NOW)


# -- the option


def test_what_a_plan_gives_is_read() -> None:
    plan = {"components": {"nfd": True, "driver": False, "device_plugin": True}, "on_host": {"n": ["driver"]},
            "mig_default": "all-disabled", "differs": True}
    assert parse_deploy(plan) == Deploy(frozenset({"nfd", "device_plugin"}), {"n": frozenset({"driver"})},
                                        "all-disabled")
    assert not parse_deploy({**plan, "mig_changes": False}).mig_changes


@pytest.mark.parametrize("wrong, path", [
    ({}, "deploy.components"), ({"components": ["driver"]}, "deploy.components"),
    ({"components": {"drivr": True}}, "deploy.components.drivr"),
    ({"components": {"driver": "host"}}, "deploy.components.driver"),
    ({"components": {}, "on_host": {"n": ["drivr"]}}, "deploy.on_host.n"),
    ({"components": {}, "mig_default": "all-1g.10gb"}, "deploy.mig_default"),
    ({"components": {}, "on_host": ["n"]}, "deploy.on_host"),
    ({"components": {}, "on_host": {"n": "driver"}}, "deploy.on_host.n"),
])
def test_a_wrong_option_is_named(wrong: dict[str, t.Any], path: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_deploy(wrong)
    assert caught.value.details["path"] == path and caught.value.hint


def test_every_component_of_the_cluster_has_its_label() -> None:
    """The labels are those on which plan and labels agree."""
    assert set(NAMES) - set(deploy_labels.LABELS) == {"nfd"}


@pytest.mark.parametrize("lost", [False, True])
def test_a_driver_label_of_a_former_operator_stays_while_pods_may_not_end(lost: bool) -> None:
    """The driver moves to the host, or the GPU is lost: driver pods can run because of a label that existed before."""
    deploy = Deploy(frozenset(NAMES), {"n": frozenset({"driver"})}, pods_may_end=False)
    full = after(node({**GPU, f"{D}driver": "true"}), ALL)
    before = dataclasses.replace(full, labels={**full.labels, f"{NFD}pci-10de.present": "false" if lost else "true"},
                                 annotations={**full.annotations, **({GONE: "2026-11-22T06:00:00Z"} if lost else {})})
    assert f"{D}driver" not in before.ours
    now = after(before, deploy)
    assert now.labels[f"{D}driver"] == "true" and f"{D}driver" not in now.ours
    assert f"{D}driver" not in deploy_labels.foreign(now, deploy)
    assert f"{D}driver" in deploy_labels.kept_labels(now, deploy)
    assert f"{D}driver" not in after(before, dataclasses.replace(deploy, pods_may_end=True)).labels
