# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""gpu_verify as a task on a cluster: which cluster it reads, what it waits for, and its messages on the way and at the
end."""

from __future__ import annotations

from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.action import gpu_verify
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.workloads import workload
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.deploy_labels import LABELS
from ansible_collections.gpuops.nvidia.tests.unit.inventory.test_inventory_vars import task_vars
from ansible_collections.gpuops.nvidia.tests.unit.simulated import fakes
from ansible_collections.gpuops.nvidia.tests.unit.simulated.acting import act
from ansible_collections.gpuops.nvidia.tests.unit.simulated.server import ApiServer

NAMES = ("validator", "device_plugin")


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(gpu_verify, "display", SimpleNamespace(display=lines.append))
    return lines


def cluster(api: ApiServer, ready: int = 1) -> dict[str, Any]:
    """A plan with two components; the device plugin has this number of ready pods on one Node."""
    made = fakes.plan("n1")
    made["kubeconfig"] = str(api.kubeconfig)
    made["components"] = {name: {"state": "present"} for name in NAMES} | {"driver": {"state": "absent"}}
    api.put({"apiVersion": "v1", "kind": "Node", **fakes.node("n1")})
    for name, now in (("validator", 1), ("device_plugin", ready)):
        item = fakes.daemon_set(name, 1, now)
        api.put({"apiVersion": "apps/v1", **item, "metadata": {**item["metadata"], "namespace": fakes.NAMESPACE}})
    if not ready:
        pod = fakes.pod("device_plugin", "n1", 0, "ImagePullBackOff", "no such image")
        pod["metadata"].update(namespace=fakes.NAMESPACE, name="nvidia-device_plugin-abcde")
        api.put({"apiVersion": "v1", "kind": "Pod", **pod})
    return made


def verified(check: bool = False, **options: Any) -> dict[str, Any]:
    """The result for pods only: the plans here have no objects."""
    return act(gpu_verify.ActionModule, {"compare": False, **options}, task_vars(localhost={}), check)


def test_a_cluster_in_which_all_is_ready(api: ApiServer, told: list[str]) -> None:
    found = verified(cluster=cluster(api))
    assert [(one["component"], one["state"]) for one in found["checks"]] == [
        ("validator", "ok"), ("device_plugin", "ok")]
    assert not found.get("failed") and found["problems"] == [] and found["verified"] == ["n1"]


def test_what_is_not_ready_in_time_fails_with_its_cause(api: ApiServer, told: list[str]) -> None:
    found = verified(cluster=cluster(api, 0), timeout=0)
    assert found["failed"] and found["verified"] == []
    problem, = found["problems"]
    assert problem.startswith("device plugin: 0/1 ready; ") and "no such image" in problem and found["msg"] == problem
    assert told and "device plugin" in told[-1]
    quiet = verified(cluster=cluster(api, 0), timeout=0, enforce=False)
    assert not quiet.get("failed") and quiet["problems"] == [problem]


def test_only_what_is_asked_for_and_there_is_compared(api: ApiServer, told: list[str]) -> None:
    found = verified(cluster=cluster(api, 0), components=["validator", "driver"], timeout=0)
    assert [one["component"] for one in found["checks"]] == ["validator"] and not found.get("failed")


def test_check_mode_looks_once(api: ApiServer, told: list[str]) -> None:
    """Nothing has been changed yet, so nothing has failed."""
    found = verified(True, cluster=cluster(api, 0))
    assert [one["state"] for one in found["checks"]] == ["ok", "pending"] and not found.get("failed")
    assert api.sent("list").count(f"list /apis/apps/v1/namespaces/{fakes.NAMESPACE}/daemonsets") == 1 and told == []


def test_what_states_depend_on_is_read_if_it_is_asked_for(api: ApiServer, told: list[str]) -> None:
    made = cluster(api)
    assert "observed" not in verified(cluster=made)
    before = len(api.sent("list"))
    found = verified(cluster=made, observe=True)
    more = api.sent("list")[before:]
    plain = api.sent("list")[:before]
    assert len(more) == len(plain) + 2 and sum("pods" in one for one in more) == sum("pods" in one for one in plain) + 1
    assert set(found["observed"]) == {"n1"} and set(found["observed"]["n1"]["labels"]) == set(LABELS)


def test_what_the_run_has_just_seen_is_not_asked_again(api: ApiServer, told: list[str]) -> None:
    made = cluster(api)
    seen = [asdict(workload(item)) for path, item in api.objects.items() if "daemonsets" in path]
    found = verified(cluster=made, workloads=seen)
    assert not found.get("failed") and not [one for one in api.requests if "daemonsets" in one.path]


def test_the_kubeconfig_of_the_task_counts_before_that_of_the_plan(api: ApiServer, told: list[str]) -> None:
    made = cluster(api)
    other = api.kubeconfig.with_name("other")
    other.write_text(api.kubeconfig.read_text())
    found = verified(cluster={**made, "kubeconfig": "/nowhere"}, kubeconfig=str(other))
    assert not found.get("failed")
    found = verified(cluster=made, context="elsewhere")
    assert found["failed"] and "has no context 'elsewhere'" in found["msg"]
    found = verified(cluster={**made, "context": "planned"})
    assert "has no context 'planned'" in found["msg"]
    found = verified(cluster={key: value for key, value in made.items() if key != "kubeconfig"})
    assert found["failed"] and found["error"]["path"] == "kubeconfig"
