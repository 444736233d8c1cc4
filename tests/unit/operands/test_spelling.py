# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which differences of a pod template count as the same, because they only come from another writer."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands import spelling
from ansible_collections.gpuops.nvidia.tests.unit.simulated.clusters import facts, node, objects
from ansible_collections.gpuops.nvidia.tests.unit.simulated.clusters import pod as pod_of

KERNEL = {**node(), "kernel": "5.15.0-84-generic"}
WAIT = "until [ -f /ready ]; do echo %s; sleep 5; done"


def pod(env: list[Any] | None = None, args: str = "", init: list[str] | None = None, **more: Any) -> dict[str, Any]:
    """A DaemonSet with one container. env: alternating names and values."""
    items = iter(env or [])
    container = {"name": "main", "env": [{"name": name, "value": next(items)} for name in items],
                 **({"args": [args]} if args else {})}
    return {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "x"}, "spec": {"template": {"spec": {
        "containers": [container], "initContainers": [{"name": name} for name in init or []], **more}}}}


def like(want: dict[str, Any], have: dict[str, Any]) -> Any:
    return spelling.like(want, have)["spec"]["template"]["spec"]


def test_order_is_the_live_one_where_it_means_nothing() -> None:
    want, have = pod(["A", "1", "B", "2"]), pod(["B", "2", "A", "1"])
    for items, one in ((["v", "w"], want), (["w", "v"], have)):
        one["spec"]["template"]["spec"]["volumes"] = [{"name": name, "emptyDir": {}} for name in items]
    assert like(want, have) == have["spec"]["template"]["spec"]


def test_a_variable_that_names_another_stays_behind_it() -> None:
    want, have = pod(["A", "1", "B", "$(A)"]), pod(["B", "$(A)", "A", "1"])
    assert like(want, have) == want["spec"]["template"]["spec"]


def test_what_is_wanted_otherwise_stays_wanted() -> None:
    """The result has the live order and the wanted values; entries that only one side has follow our order."""
    assert like(pod(["A", "1", "B", "3"]), pod(["B", "2", "A", "1"]))["containers"][0]["env"] == [
        {"name": "B", "value": "3"}, {"name": "A", "value": "1"}]
    for have in (["B", "2"], ["C", "9", "B", "2", "A", "1"]):
        assert like(pod(["A", "1", "B", "2"]), pod(have))["containers"][0]["env"] == [
            {"name": "A", "value": "1"}, {"name": "B", "value": "2"}]


def test_containers_run_in_our_order() -> None:
    assert [one["name"] for one in like(pod(init=["a", "b"]), pod(init=["b", "a"]))["initContainers"]] == ["a", "b"]


@pytest.mark.parametrize(("want", "have", "kept"), [
    (WAIT % "waiting", WAIT % "not yet", True),
    (WAIT % "waiting", WAIT.replace("5", "6") % "waiting", False),
    (WAIT % "waiting", WAIT % "$(reboot)", False),
    (WAIT % "waiting", WAIT % "x | sh", False),
])
def test_only_plain_words_that_are_printed_are_no_difference(want: str, have: str, kept: bool) -> None:
    assert like(pod(args=want), pod(args=have))["containers"][0]["args"] == [have if kept else want]


@pytest.mark.parametrize(("section", "container", "program"), [
    ("gds", "nvidia-fs-ctr", "nvidia-gds-driver"), ("gdrcopy", "nvidia-gdrcopy-ctr", "nvidia-gdrcopy-driver")])
def test_a_driver_with_storage_and_copy_modules_is_the_operators(section: str, container: str, program: str) -> None:
    """GPU Operator 24.6 to 26.7 traces the script and waits for every module whose name contains nvidia."""
    made = pod_of(objects({section: {"enabled": True}}, facts(KERNEL)), "nvidia-driver-daemonset")
    mine = next(one for one in made["containers"] if one["name"] == container)
    theirs = {"containers": [{**mine, "command": ["bash", "-xc"], "args": [
        "until [ -d /run/nvidia/driver/usr/src ] && lsmod | grep nvidia; do echo  not yet...; sleep 10; done; exec "
        f"{program} install"]}]}
    want, have = ({"kind": "DaemonSet", "spec": {"template": {"spec": spec}}}
                  for spec in ({"containers": [mine]}, theirs))
    assert like(want, have) == theirs


def test_quantities_keep_the_live_spelling() -> None:
    want, have = ({"requests": {"memory": text}} for text in ("1024Mi", "1Gi"))
    assert like(pod(resources=want), pod(resources=have))["resources"] == have
    assert like(pod(resources=want), pod(resources={"requests": {"memory": "2Gi"}}))["resources"] == want


@pytest.mark.parametrize(("version", "digest"), [("1", "theirs"), ("2", "ours")])
def test_a_driver_that_is_installed_alike_is_not_installed_again(version: str, digest: str) -> None:
    names = ["DRIVER_CONFIG_DIGEST"]
    want, have = pod([*names, "ours", "V", version]), pod([*names, "theirs", "V", "1"])
    assert {"name": names[0], "value": digest} in like(want, have)["containers"][0]["env"]


def test_other_kinds_are_left_alone() -> None:
    want = {"kind": "Role", "rules": [{"verbs": ["get"]}]}
    assert spelling.like(want, {"kind": "Role", "rules": [{"verbs": ["list"]}]}) is want
