# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which deploy labels a Node gets, and what is ours among them."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._labels import _deploy
from ansible_collections.gpuops.nvidia.plugins.module_utils._labels._deploy import (
    ANNOTATION,
    Deploy,
    Node,
    differs,
    mig_capable,
    owned,
    parse_deploy,
    plan_absent,
    plan_present,
    undecided,
)

NFD = "feature.node.kubernetes.io/"
SYSTEM = {f"{NFD}system-os_release.ID": "ubuntu"}
GPU = {**SYSTEM, f"{NFD}pci-10de.present": "true"}
CAPABLE = {"nvidia.com/mig.capable": "true"}
D = "nvidia.com/gpu.deploy."
NAMES = ("nfd", "driver", "container_toolkit", "validator", "device_plugin", "feature_discovery", "dcgm_exporter",
         "mig_manager")
ALL = Deploy(frozenset(NAMES), {}, "all-disabled")
# What GPU Operator 26.7 writes to a GPU Node of the default policy, without the labels of components that are not
# delivered (dcgm, node-status-exporter).
OPERATOR = {"nvidia.com/gpu.present": "true", **{D + word: "true" for word in (
    "client", "container-toolkit", "dcgm-exporter", "device-plugin", "driver", "gpu-feature-discovery",
    "operator-validator")}}


def node(labels: t.Mapping[str, str], ours: t.Iterable[str] = (), ready: bool = True) -> Node:
    """A Node as the API server has it."""
    return Node("n", dict(labels), {ANNOTATION: ",".join(sorted(ours))} if ours else {}, ready)


def after(before: Node, deploy: Deploy = ALL) -> Node:
    """The Node once the patch is on it, as a merge patch works; a second plan has nothing more to do."""
    change = plan_present(before, deploy)
    now = patched(before, change.patch() if change else {"metadata": {}})
    again = plan_present(now, deploy)
    assert again is None, again
    return now


def patched(before: Node, patch: t.Mapping[str, t.Any]) -> Node:
    """RFC 7396 on labels and annotations."""
    metadata = patch["metadata"]
    parts = [{key: value for key, value in {**old, **metadata.get(name, {})}.items() if value is not None}
             for name, old in (("labels", before.labels), ("annotations", before.annotations))]
    return Node(before.name, parts[0], parts[1], before.ready)


def added(now: Node, before: t.Mapping[str, str]) -> dict[str, str]:
    """Labels that the Node did not have."""
    return {key: value for key, value in now.labels.items() if key not in before}


# -- what a Node gets


@pytest.mark.parametrize("seen", [f"{NFD}pci-{kind}10de.present" for kind in ("", "0302_", "0300_")])
def test_a_gpu_node_gets_what_the_operator_writes(seen: str) -> None:
    """And the annotation lists exactly that."""
    labels = {**SYSTEM, seen: "true"}
    now = after(node(labels))
    assert added(now, labels) == OPERATOR
    assert now.annotations == {ANNOTATION: ",".join(sorted(OPERATOR))}


@pytest.mark.parametrize("labels", [{}, SYSTEM, {**SYSTEM, f"{NFD}pci-10de.present": "false"},
                                    {**SYSTEM, f"{NFD}pci-15b3.present": "true"}])
def test_a_node_without_a_gpu_is_not_written(labels: dict[str, str]) -> None:
    assert plan_present(node(labels), ALL) is None


def test_only_what_is_delivered_is_labelled() -> None:
    """A component that is off, and one that the host has, get no label; the next plan takes theirs away."""
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
    """A layout of the user is never ours."""
    assert "nvidia.com/mig.config" not in after(node({**GPU, **CAPABLE}), Deploy(frozenset(NAMES))).labels
    chosen = {**GPU, **CAPABLE, "nvidia.com/mig.config": "all-1g.10gb"}
    now = after(node(chosen))
    assert now.labels["nvidia.com/mig.config"] == "all-1g.10gb" and "nvidia.com/mig.config" not in now.ours
    off = after(node({**GPU, **CAPABLE, f"{D}mig-manager": "false"}))
    assert "nvidia.com/mig.config" not in off.labels


@pytest.mark.parametrize("labels, expected", [
    ({}, None), ({"nvidia.com/mig.capable": ""}, None), (CAPABLE, True), ({"nvidia.com/mig.capable": "false"}, False),
    ({"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}, True), ({"nvidia.com/gpu.product": "NVIDIA-A30"}, True),
    ({"nvidia.com/gpu.product": "Tesla-T4"}, False), ({**CAPABLE, "nvidia.com/vgpu.host-driver-version": "570"}, False),
    ({"nvidia.com/mig.capable": "false", "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB"}, False),
])
def test_mig_capability(labels: dict[str, str], expected: bool | None) -> None:
    assert mig_capable(labels) is expected


def test_feature_labels_that_vanish_stop_no_mig_manager() -> None:
    """It stops feature discovery itself while it works."""
    full = after(node({**GPU, **CAPABLE}))
    bare = Node("n", {key: value for key, value in full.labels.items() if key not in CAPABLE}, full.annotations)
    assert plan_present(bare, ALL) is None
    assert undecided(bare, ALL) and not undecided(full, ALL)
    said = after(Node("n", {**bare.labels, "nvidia.com/mig.capable": "false"}, full.annotations))
    assert f"{D}mig-manager" not in said.labels and "nvidia.com/mig.config" not in said.labels


# -- values that others wrote


@pytest.mark.parametrize("value", ["false", "pre-installed", "paused-for-driver-upgrade", "true_paused-for-mig-change"])
def test_a_value_is_honoured(value: str) -> None:
    """Whether it was there first, or has replaced ours."""
    first = after(node({**GPU, f"{D}driver": value}))
    assert first.labels[f"{D}driver"] == value and f"{D}driver" not in first.ours
    full = after(node(GPU))
    now = after(Node("n", {**full.labels, f"{D}driver": value}, full.annotations))
    assert now.labels[f"{D}driver"] == value
    assert (f"{D}driver" in now.ours) == (value != "false")  # that one is the user's from then on
    host = Deploy(frozenset(NAMES), {"n": frozenset({"driver"})})
    attracts = value.startswith(("paused", "true"))
    assert (f"{D}driver" in after(first, host).labels) != attracts


def test_an_empty_value_counts_as_none() -> None:
    now = after(node({**GPU, f"{D}driver": ""}))
    assert now.labels[f"{D}driver"] == "true" and f"{D}driver" in now.ours


def test_a_label_deleted_by_hand_comes_back() -> None:
    full = after(node(GPU))
    less = Node("n", {key: value for key, value in full.labels.items() if key != f"{D}driver"}, full.annotations)
    assert after(less).labels == full.labels


def test_a_wrong_answer_about_the_gpu_is_put_right() -> None:
    """gpu.present is no wish."""
    now = after(node({**GPU, "nvidia.com/gpu.present": "false"}))
    assert now.labels["nvidia.com/gpu.present"] == "true"


@pytest.mark.parametrize("switch", [{f"{D}operands": "false"}, {"nvidia.com/gpu.workload.config": "vm-passthrough"},
                                    {"nvidia.com/gpu.workload.config": "vm-vgpu"}])
def test_a_node_that_is_kept_free(switch: dict[str, str]) -> None:
    """Nothing that attracts an operand is left, of whomever it is; what the user wrote is."""
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
    """Where the host has the driver, the label that a GPU Operator left is taken, but no other and no switch."""
    left = {**GPU, f"{D}driver": "true", f"{D}container-toolkit": "false", f"{D}dcgm": "true"}
    deploy = Deploy(frozenset(NAMES), {"n": frozenset({"driver", "container_toolkit"})})
    now = after(node(left), deploy)
    assert f"{D}driver" not in now.labels
    assert now.labels[f"{D}container-toolkit"] == "false" and now.labels[f"{D}dcgm"] == "true"
    off = Deploy(frozenset(NAMES) - {"driver"}, {"n": frozenset({"driver"})})
    assert after(node(left), off).labels[f"{D}driver"] == "true"  # nothing of ours follows it


# -- a GPU that is gone


def test_a_gpu_that_is_gone() -> None:
    """Seen by a ready Node that NFD still describes; the answer stays, and returns with the GPU."""
    full = after(node({**GPU, **CAPABLE}))
    lost = {key: value for key, value in full.labels.items() if "pci-" not in key}
    now = after(Node("n", lost, full.annotations, ready=True))
    assert now.labels == {**SYSTEM, **CAPABLE, "nvidia.com/gpu.present": "false"}
    assert now.ours == {"nvidia.com/gpu.present"}
    back = after(Node("n", {**now.labels, **GPU}, now.annotations))
    assert back.labels == full.labels and back.ours == full.ours


def test_a_gpu_that_is_gone_takes_labels_of_others_along() -> None:
    """Their operands would run where there is nothing; what a Node without a mark of a GPU carries is not looked at."""
    lost = {**SYSTEM, "nvidia.com/gpu.present": "true", f"{D}dcgm": "true", f"{D}driver": "false"}
    assert after(node(lost)).labels == {**SYSTEM, "nvidia.com/gpu.present": "false", f"{D}driver": "false"}
    assert plan_present(node({**SYSTEM, f"{D}dcgm": "true"}), ALL) is None


def test_a_flap_moves_nothing() -> None:
    """A Node that is not ready, or without any label of NFD."""
    full = after(node(GPU))
    lost = {key: value for key, value in full.labels.items() if "pci-" not in key}
    assert plan_present(Node("n", lost, full.annotations, ready=False), ALL) is None
    silent = {key: value for key, value in lost.items() if not key.startswith(NFD)}
    assert plan_present(Node("n", silent, full.annotations, ready=True), ALL) is None
    assert Node("n", lost, full.annotations).seems_gone and not Node("n", silent, full.annotations).seems_gone


# -- removal


def test_removal_takes_exactly_the_listed_keys() -> None:
    """Also paused ones; foreign keys, and a wish that replaced our value, stay."""
    foreign = {**GPU, **CAPABLE, "nvidia.com/gpu.deploy.nvsm": "true", f"{D}dcgm-exporter": "true", "a/b": "c"}
    full = after(node(foreign))
    rewritten = {**full.labels, f"{D}device-plugin": "paused-for-mig-change", f"{D}driver": "pre-installed",
                 f"{D}gpu-feature-discovery": "false", "nvidia.com/mig.config": "all-1g.10gb"}
    before = Node("n", rewritten, full.annotations)
    change = plan_absent(before)
    assert change is not None
    now = patched(before, change.patch())
    assert now.labels == {**foreign, f"{D}gpu-feature-discovery": "false", "nvidia.com/mig.config": "all-1g.10gb"}
    assert now.annotations == {} and plan_absent(now) is None
    assert plan_absent(node(foreign)) is None


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
    assert owned(full) == {"present": OPERATOR, "foreign": {f"{D}dcgm": "true"}}
    assert not differs([full, node(SYSTEM)], ALL) and differs([full, node(GPU)], ALL)


# -- the option


def test_what_a_plan_gives_is_read() -> None:
    given = {"components": {"nfd": True, "driver": False, "device_plugin": True}, "on_host": {"n": ["driver"]},
             "mig_default": "all-disabled", "differs": True}
    assert parse_deploy(given) == Deploy(frozenset({"nfd", "device_plugin"}), {"n": frozenset({"driver"})},
                                         "all-disabled")


@pytest.mark.parametrize("given, path", [
    ({}, "deploy.components"), ({"components": ["driver"]}, "deploy.components"),
    ({"components": {"drivr": True}}, "deploy.components.drivr"),
    ({"components": {"driver": "host"}}, "deploy.components.driver"),
    ({"components": {}, "on_host": {"n": ["drivr"]}}, "deploy.on_host.n"),
    ({"components": {}, "mig_default": "all-1g.10gb"}, "deploy.mig_default"),
])
def test_a_wrong_option_is_named(given: dict[str, t.Any], path: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_deploy(given)
    assert caught.value.details["path"] == path and caught.value.hint


def test_every_component_of_the_cluster_has_its_label() -> None:
    """Those of the contract between plan and labels."""
    assert set(NAMES) - set(_deploy.LABELS) == {"nfd"}
