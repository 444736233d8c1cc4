# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A removal waits as long as objects are removed, but not without limit."""

from __future__ import annotations

from types import SimpleNamespace
from typing import List

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube import objects
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.errors import ClusterError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands import deliver, removal
from ansible_collections.gpuops.nvidia.tests.unit.operands.test_apply import (
    DAEMONS,
    MAPS,
    SPACE,
    SPACES,
    pods,
    settings,
)
from ansible_collections.gpuops.nvidia.tests.unit.simulated.fakes import Clock
from ansible_collections.gpuops.nvidia.tests.unit.simulated.server import ApiServer, Reply, Request

HOME = "/api/v1/namespaces/s/pods"


@pytest.fixture
def told() -> List[str]:
    """The messages about remaining objects."""
    return []


def kinds_asked(request: Request) -> Reply | None:
    """This server has only the kinds that a removal handles."""
    return Reply(200, {"kind": "APIGroupDiscoveryList", "items": []}) if request.path in ("/api", "/apis") else None


def started(api: ApiServer, client: Client, count: int) -> None:
    """A DaemonSet with this number of pods, which is removed after them."""
    deliver.present(client, objects.wanted({"c": [SPACE, settings(), pods()]}), ["c"], False)
    api.before = kinds_asked
    api.objects[f"{DAEMONS}/d"]["metadata"]["finalizers"] = ["foregroundDeletion"]
    api.put(*({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"p{number}", "namespace": "s",
                                                               "ownerReferences": [{"uid": "d"}]}}
              for number in range(count)))


def ending(api: ApiServer, clock: Clock, every: float) -> None:
    """From now on, one pod ends every this many seconds, and the DaemonSet is removed after the last one."""
    begin, count = clock.now, len([path for path in api.objects if path.startswith(HOME)])

    def before(request: Request) -> Reply | None:
        left = max(0, count - int((clock.now - begin) / every))
        for path in [path for path in api.objects if path.startswith(HOME)][left:]:
            del api.objects[path]
        if not left and api.objects.get(f"{DAEMONS}/d", SPACE)["metadata"].get("deletionTimestamp"):
            del api.objects[f"{DAEMONS}/d"]
        return kinds_asked(request)

    api.before = before


def test_as_long_as_pods_go_they_are_waited_for(api: ApiServer, client: Client, clock: Clock, told: list[str]) -> None:
    started(api, client, 40)
    ending(api, clock, 25)
    begin = clock.now
    assert deliver.absent(client, None, 60, False, told.append)["counts"]["delete"] == 3
    assert clock.now - begin > 900 and api.objects == {}
    assert told[0] == "The removal has run for 20 s. Left: 1 object, 40 pods."
    assert 30 < len(told) < 70 and told[-1].endswith(" s. Left: 1 object, 1 pod.")


def test_what_does_not_move_is_named_and_the_next_run_goes_on(
        api: ApiServer, client: Client, clock: Clock, told: list[str]) -> None:
    started(api, client, 2)
    begin = clock.now
    said = "No object or pod was removed for 60 s. Left: 1 object, 2 pods: DaemonSet s/d."
    with pytest.raises(ClusterError, match=said) as caught:
        deliver.absent(client, None, 60, False, told.append)
    assert caught.value.reason == "Timeout" and caught.value.details["left"] == ["DaemonSet s/d"]
    assert 60 < clock.now - begin < 80 and f"{SPACES}/s" in api.objects and f"{MAPS}/a" not in api.objects
    ending(api, clock, 10)
    api.requests.clear()
    assert deliver.absent(client, None, 60, False, told.append)["counts"]["delete"] == 1
    assert api.sent() == [f"delete {SPACES}/s"] and api.objects == {}


def test_a_few_of_many_are_named(api: ApiServer, client: Client, told: list[str]) -> None:
    deliver.present(client, objects.wanted({"c": [SPACE, *(settings(f"m{number:02}") for number in range(12))]}), ["c"],
                    False)
    for path, item in api.objects.items():
        item["metadata"]["finalizers"] = ["x"] if path.startswith(MAPS) else []
    with pytest.raises(ClusterError, match="Left: 12 objects: .*s/m09 and 2 more. Check"):
        deliver.absent(client, ["c"], 10, False, told.append)


def test_a_namespace_that_somebody_uses_since_the_plan_stays(
        api: ApiServer, client: Client, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    started(api, client, 1)
    ending(api, clock, 1)
    gone = api.before
    kinds = [{"metadata": {"name": ""}, "versions": [{"version": "v1", "resources": [
        {"resource": "configmaps", "responseKind": {"group": "", "version": "v1", "kind": "ConfigMap"},
         "scope": "Namespaced", "verbs": ["list"]}]}]}]

    def before(request: Request) -> Reply | None:
        gone(request)
        items = kinds if request.path == "/api" else []
        return Reply(200, {"kind": "APIGroupDiscoveryList", "items": items}) if request.path in ("/api", "/apis") \
            else None

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        if f"{MAPS}/theirs" not in api.objects:
            api.put({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "theirs", "namespace": "s"}})

    api.before = before
    monkeypatch.setattr(removal, "time", SimpleNamespace(monotonic=clock, sleep=sleep))
    done = deliver.absent(client, None, 60, False)
    assert (done["counts"]["delete"], done["counts"]["release"]) == (2, 1)
    assert done["plan"][-1]["reason"] == "others use it: ConfigMap theirs"
    assert set(api.objects) == {f"{SPACES}/s", f"{MAPS}/theirs"}
    assert not api.objects[f"{SPACES}/s"]["metadata"]["labels"]
