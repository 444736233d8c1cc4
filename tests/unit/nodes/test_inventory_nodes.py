# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Nodes whose hosts have reported their GPUs, and the owners of their labels."""

from __future__ import annotations

import dataclasses
import typing as t

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._labels.gfd import compute_labels
from ansible_collections.gpuops.nvidia.plugins.module_utils._labels.sharing_config import parse_sharing
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import label_keys
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import deploy_labels
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.deploy_labels import (
    ANNOTATION,
    GONE,
    GONE_AFTER,
    HOST_GONE,
    Deploy,
    Node,
    foreign,
    plan_absent,
    undecided,
)
from ansible_collections.gpuops.nvidia.tests.unit.labels import situations_more
from ansible_collections.gpuops.nvidia.tests.unit.simulated.nodes import (
    ALL,
    GPU,
    NAMES,
    NFD,
    NOW,
    OPERATOR,
    D,
    added,
    after,
    node,
    patched,
    plan_present,
)
from hypothesis import given, settings
from hypothesis import strategies as st

TOLD = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB", "nvidia.com/gpu.count": "8",
        "nvidia.com/mig.capable": "true", "nvidia.com/gpu.sharing-strategy": "", "gpuops.nvidia/Tesla-T4.count": "1"}
NONE_TOLD = {"nvidia.com/vgpu.present": "false"}
LISTED = "nfd.node.kubernetes.io/feature-labels"


def host(labels: t.Mapping[str, str], told: t.Mapping[str, str] | None = None) -> Node:
    """A Node whose host has reported labels."""
    return dataclasses.replace(node(labels, ready=False), host=dict(TOLD if told is None else told))


def test_features_and_deploy_labels_go_together() -> None:
    """Also without NFD; the report of the host about MIG decides at once about its MIG manager."""
    now = after(host({"a/b": "c"}))
    assert now.labels == {"a/b": "c", **TOLD, **OPERATOR, f"{D}mig-manager": "true",
                          "nvidia.com/mig.config": "all-disabled"}
    assert now.ours == set(now.labels) - {"a/b"} and not undecided(now, ALL)


def test_each_plan_leaves_the_other_family_as_it_is() -> None:
    """One task has the delivered components, another the reports of hosts."""
    told = after(host({**GPU}), None)
    assert added(told, GPU) == TOLD
    both = after(dataclasses.replace(told, host=None))
    assert added(both, GPU) == {**TOLD, **OPERATOR, f"{D}mig-manager": "true", "nvidia.com/mig.config": "all-disabled"}
    less = after(dataclasses.replace(both, host={"nvidia.com/gpu.count": "7"}), None)
    assert set(both.labels) - set(less.labels) == set(TOLD) - {"nvidia.com/gpu.count"}
    assert less.labels["nvidia.com/gpu.count"] == "7"


def test_a_feature_is_a_statement() -> None:
    """An owned label with a wrong or empty value is corrected; the label of another owner stays."""
    full = after(host({}), None)
    wrong = dataclasses.replace(full, labels={**full.labels, "nvidia.com/gpu.count": "9",
                                              "nvidia.com/gpu.sharing-strategy": "none"})
    assert after(wrong, None).labels == full.labels
    theirs = after(host({"nvidia.com/gpu.count": "9"}), None)
    assert theirs.labels["nvidia.com/gpu.count"] == "9" and "nvidia.com/gpu.count" not in theirs.ours
    assert foreign(theirs, None) == {"nvidia.com/gpu.count"}


@pytest.mark.parametrize("prefix", ["", "gpus."])
def test_what_nfd_keeps_up_is_left_to_it(prefix: str) -> None:
    """This applies even if the label was ours, and the label is not removed with ours; after NFD has dropped it, it is
    ours again."""
    full = after(host({}), None)
    listed = {f"{prefix}{LISTED}": "system-os_release.ID,nvidia.com/gpu.product"}
    taken = dataclasses.replace(full, labels={**full.labels, "nvidia.com/gpu.product": "of-gfd"},
                                annotations={**full.annotations, **listed})
    now = after(taken, None)
    assert now.labels["nvidia.com/gpu.product"] == "of-gfd" and "nvidia.com/gpu.product" not in now.ours
    assert foreign(now, None) == {"nvidia.com/gpu.product"}
    change = plan_absent(taken)
    assert change is not None
    assert patched(taken, change.patch()).labels == {"nvidia.com/gpu.product": "of-gfd"}
    dropped = dataclasses.replace(now, annotations={ANNOTATION: now.annotations[ANNOTATION]}, labels={
        key: value for key, value in now.labels.items() if key != "nvidia.com/gpu.product"})
    assert after(dropped, None).labels == full.labels


def test_what_is_adopted_is_ours() -> None:
    """It is corrected, listed and removed, except for requests of users and labels that NFD maintains."""
    left = {"nvidia.com/gpu.count": "9", "nvidia.com/gpu.family": "volta", f"{D}driver": "true", f"{D}client": "false"}
    adopt = label_keys.parse_adopt([*left, "nvidia.com/gpu.product"])
    before = dataclasses.replace(host({**left, "nvidia.com/gpu.product": "x"}), adopt=adopt,
                                 annotations={LISTED: "nvidia.com/gpu.product"})
    now = after(before)
    assert now.labels["nvidia.com/gpu.count"] == "8" and "nvidia.com/gpu.family" not in now.labels
    assert now.labels["nvidia.com/gpu.product"] == "x" and now.labels[f"{D}client"] == "false"
    assert {"nvidia.com/gpu.count", f"{D}driver"} <= set(now.annotations[ANNOTATION].split(","))
    assert foreign(now, ALL) == {"nvidia.com/gpu.product", f"{D}client"}
    plain = dataclasses.replace(now, adopt=frozenset())
    change = plan_absent(plain)
    assert change is not None
    assert patched(plain, change.patch()).labels == {"nvidia.com/gpu.product": "x", f"{D}client": "false"}


def test_two_tasks_that_disagree_about_a_gpu_are_at_rest() -> None:
    """The host has lost the GPU and NFD still names it, or the reverse: each task stores its own time of
    observation."""
    full = after(after(host({**GPU}), None), ALL)
    told = after(dataclasses.replace(full, host=NONE_TOLD), None)
    assert HOST_GONE in told.annotations and told.labels == full.labels
    by_nfd = dataclasses.replace(told, host=None)
    assert plan_present(by_nfd, ALL, NOW + 60) is None
    gone = after(told, None, NOW + GONE_AFTER)
    assert {key for key in full.labels if key not in gone.labels} == set(TOLD)
    unseen = after(dataclasses.replace(full, host=None, ready=True, labels={
        key: value for key, value in full.labels.items() if "pci-" not in key}))
    assert GONE in unseen.annotations and plan_present(dataclasses.replace(unseen, host=TOLD), None, NOW + 60) is None


def test_a_task_that_is_done_leaves_the_sighting_to_the_other() -> None:
    """Feature labels are removed, deploy labels not yet: the stored times stay, and nothing is written twice."""
    full = after(host({}), ALL)
    lost = after(dataclasses.replace(full, host=NONE_TOLD), None)
    features = after(lost, None, NOW + GONE_AFTER)
    assert HOST_GONE in features.annotations and f"{D}driver" in features.labels
    both = after(features, ALL, NOW + GONE_AFTER)
    assert both.labels == {"nvidia.com/gpu.present": "false"} and HOST_GONE not in both.annotations


def test_a_task_that_nobody_told_anything_writes_nothing() -> None:
    """For example on a Node with a stored time of observation."""
    lost = dataclasses.replace(after(host({**GPU}), None), host=None)
    assert plan_present(dataclasses.replace(lost, annotations={**lost.annotations, GONE: "2026-11-22T06:00:00Z"}),
                        None) is None


def test_lists_of_an_nfd_that_is_no_more_do_not_stand_in_the_way() -> None:
    """After the adoption, its labels are ours also without the option; other names of the lists stay."""
    left = {"nvidia.com/gpu.count": "9", "nvidia.com/gpu.product": "x"}
    before = dataclasses.replace(host(left), annotations={LISTED: "cpu-model.id,nvidia.com/gpu.count",
                                                          f"gpus.{LISTED}": "nvidia.com/gpu.product"})
    assert foreign(before, None) == set(left)
    now = after(dataclasses.replace(before, adopt=frozenset(left), orphaned=True), None)
    assert now.labels == TOLD and now.annotations == {LISTED: "cpu-model.id", ANNOTATION: ",".join(sorted(TOLD))}
    plain = dataclasses.replace(now, adopt=frozenset(), orphaned=False)
    assert plan_present(plain, None) is None and foreign(plain, None) == frozenset()


def test_a_host_without_gpus_gets_nothing_and_loses_its_labels_in_time() -> None:
    assert plan_present(host({}, NONE_TOLD), ALL) is None
    full = after(host({}))
    seen = after(dataclasses.replace(full, host=NONE_TOLD))
    assert seen.labels == full.labels and HOST_GONE in seen.annotations
    now = after(seen, now=NOW + GONE_AFTER)
    assert now.labels == {"nvidia.com/gpu.present": "false"}


@pytest.mark.parametrize("labels", [
    {"node-role.kubernetes.io/control-plane": ""}, {f"{D}driver": "true"}, {"nvidia.com/gpu.present": "true"},
    {"nvidia.com/mig.config": "all-1g.5gb"}, {"nvidia.com/gpu.workload.config": "vm-vgpu"},
    {"nvidia.com/cc.mode": "on"}, {"nvidia.com/gpu.product": "a b"}, {"nvidia.com/gpu.product": "x" * 64},
    {"gpuops.nvidia/": "1"}, {"nvidia.com/gpu.product": "-a"}, {"gpuops.nvidia/x/y": "1"},
    {"nvidia.com/device-plugin.config": "x"}])
def test_a_host_is_believed_about_its_gpus_only(labels: dict[str, str]) -> None:
    assert next(iter(labels)) in label_keys.wrong_feature({**TOLD, **labels})
    assert label_keys.wrong_feature(TOLD) == ""


def test_every_label_of_gpu_feature_discovery_is_a_feature() -> None:
    """In all situations of the table; a host with GPUs is distinguished from one without."""
    for one in situations_more.ALL:
        labels = compute_labels(one.node, one.strategy, parse_sharing(one.sharing))
        assert label_keys.wrong_feature(labels) == "", one.name
        assert bool(one.node.gpus) is bool(set(labels) & set(label_keys.SHOWS_A_GPU)), one.name


@pytest.mark.parametrize("key", [f"{D}operands", "nvidia.com/gpu.workload.config", "example.com/rack", "nvidia.com/",
                                 "nvidia.com/gpu-driver-upgrade-state"])
def test_what_is_never_ours_cannot_be_adopted(key: str) -> None:
    with pytest.raises(InputError) as caught:
        label_keys.parse_adopt(["nvidia.com/gpu.count", key])
    assert caught.value.details["path"] == "adopt" and caught.value.details["value"] == key


# -- foreign labels, by chance


_OURS = [*OPERATOR, f"{D}mig-manager", f"{D}dcgm", f"{D}dra-driver", f"{D}vfio-manager",
         f"{D}operands", "nvidia.com/mig.config", *TOLD]
_THEIRS = ["a/b", "nvidia.com/gpu.workload.config", "nvidia.com/cc.mode", "nvidia.com/gpu-driver-upgrade-state",
           "nvidia.com/mig.config.state", "kubernetes.io/hostname", "node-role.kubernetes.io/gpu"]
_SEEN = [f"{NFD}system-os_release.ID", f"{NFD}pci-10de.present"]
_VALUES = st.sampled_from(["true", "false", "", "pre-installed", "paused-for-mig-change", "all-disabled", "8"])
_LABELS = st.dictionaries(st.sampled_from([*_OURS, *_THEIRS, *_SEEN]), _VALUES, max_size=14)
_KEYS = st.sets(st.sampled_from([*_OURS, *_THEIRS, "nvidia.com/gpu.gone"]))
_NODES = st.builds(
    lambda labels, listed, nfd, mark, ready, told, adopt: Node("n", labels, {
        **({ANNOTATION: ",".join(sorted(listed))} if listed else {}), "example.com/note": "mine",
        **({LISTED: ",".join(sorted(nfd))} if nfd else {}),
        **({GONE: mark, HOST_GONE: mark} if mark else {})}, ready, told, adopt),
    _LABELS, _KEYS, _KEYS, st.sampled_from(["", "2026-11-22T06:00:00Z", "2026-11-22T06:59:00Z", "?"]), st.booleans(),
    st.sampled_from([None, TOLD, NONE_TOLD]), st.sets(st.sampled_from([*OPERATOR, *TOLD])).map(frozenset))
_DEPLOYS = st.one_of(st.none(), st.builds(
    Deploy, st.sets(st.sampled_from(NAMES)).map(frozenset),
    st.sets(st.sampled_from(NAMES)).map(lambda names: {"n": frozenset(names)}), st.sampled_from(["", "all-disabled"])))


@settings(max_examples=400, deadline=None)
@given(_NODES, _DEPLOYS, st.booleans())
def test_foreign_labels_are_never_touched(before: Node, deploy: Deploy | None, removal: bool) -> None:
    """Labels of others stay, except those that would start an operand where none may run; a second plan is empty."""
    change = plan_absent(before) if removal else plan_present(before, deploy)
    if change is None:
        return
    now = patched(before, change.patch())
    nfd = label_keys.nfd_keys(before.annotations)
    for key, value in before.labels.items():
        if now.labels.get(key) == value:
            continue
        put_right = key == "nvidia.com/gpu.present" and deploy is not None and not removal
        attracts = deploy_labels.CONTAINER_SET | deploy_labels.VM_SET | deploy_labels.DRA_SET
        forbidden = key in attracts and key not in now.labels and not removal
        empty = not value and key in _OURS and key != f"{D}mig-manager" and not removal
        assert key in before.ours or put_right or forbidden or empty, (key, value)
        assert key not in nfd and key not in (*_THEIRS, *_SEEN, f"{D}operands")
        assert value != "false" or not key.startswith(D)
    new = set(now.labels) - set(before.labels)
    assert new <= now.ours and not (removal and new)
    assert {key: value for key, value in now.annotations.items() if key not in (ANNOTATION, GONE, HOST_GONE)} == {
        key: value for key, value in before.annotations.items() if key not in (ANNOTATION, GONE, HOST_GONE)}
    plain = dataclasses.replace(now, adopt=frozenset()) if removal else now
    assert (plan_absent(plain) if removal else plan_present(now, deploy)) is None
