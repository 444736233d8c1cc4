# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Waits for a cluster with hundreds of Nodes: what is read of pods on the way, and at the end."""

from __future__ import annotations

import pytest
from ansible_collections.gpuops.nvidia.tests.unit.rollout.test_rollout import follow
from ansible_collections.gpuops.nvidia.tests.unit.simulated.fakes import FakeClient, daemon_set, node, pod


def crowd(count: int, ready: int, printed: str = "Init:0/4") -> FakeClient:
    """This number of Nodes and pods, of which the last ones are not ready, as objects and as the server prints them."""
    names = [f"gpu-{number:03}" for number in range(count)]
    made = [pod("driver", name, None if place < ready else 0, ready=place < ready) for place, name in enumerate(names)]
    client = FakeClient(DaemonSet=[daemon_set("driver", count, ready)], Node=[node(name) for name in names], Pod=made)
    for place, one in enumerate(made):
        one["metadata"]["name"] = f"nvidia-driver-{place:05}"
        said = ("1/1", "Running") if place < ready else ("0/1", printed)
        client.printed.append([one["metadata"]["name"], *said, "0", "9s", "<none>", names[place]])
    return client


def test_a_look_on_the_way_at_many_pods_reads_two_of_a_kind_and_the_end_all() -> None:
    client = crowd(300, 100)
    checks, told, _seconds = follow(client, ["driver"], timeout=9)
    waiting = told[0].open[0].waiting
    assert len(waiting) == 200 and {one.container for one in waiting} == {"k8s-driver-manager"}
    assert {one.node for one in waiting} == {f"gpu-{number:03}" for number in range(100, 300)}
    # Two looks on the way.
    assert [client.asked.count(what) for what in ("get Pod", "get Node", "list Pod")] == [4, 4, 1]
    assert len(checks["driver"]["nodes"]) == 200


def test_a_few_that_lack_among_many_are_all_read() -> None:
    client = crowd(300, 297)
    client.objects["Pod"][299] = pod("driver", "gpu-299", 0, "CrashLoopBackOff", "back-off")
    client.objects["Pod"][299]["metadata"]["name"] = "nvidia-driver-00299"
    _checks, told, _seconds = follow(client, ["driver"], timeout=3)
    assert [one.node for one in told[0].open[0].failing] == ["gpu-299"]
    assert [one.node for one in told[0].open[0].waiting] == ["gpu-297", "gpu-298"]


def test_many_pods_of_which_some_are_on_lost_nodes_are_soon_not_waited_for() -> None:
    """The server prints them as running."""
    client = crowd(300, 298, printed="Running")
    for place in (298, 299):
        client.printed[place][1:3] = ["1/1", "Running"]
        client.objects["Node"][place] = node(f"gpu-{place}", ready=False)
    checks, _told, seconds = follow(client, ["driver"])
    assert checks["driver"]["state"] == "pending" and "NotReady" in checks["driver"]["detail"] and 15 <= seconds < 25


@pytest.mark.parametrize(("others", "ends"), [("manifest unknown", True), ("i/o timeout", False)])
def test_many_pods_that_stand_alike_are_all_read_before_the_wait_ends_early(others: str, ends: bool) -> None:
    client = crowd(300, 0, printed="Init:ImagePullBackOff")
    for place, one in enumerate(client.objects["Pod"]):
        made = pod("driver", f"gpu-{place:03}", 0, "ImagePullBackOff", "manifest unknown" if place < 9 else others)
        one["status"] = made["status"]
    checks, told, seconds = follow(client, ["driver"], timeout=100)
    assert checks["driver"]["state"] == "failed" and (45 <= seconds < 60 if ends else seconds >= 100)
    assert (told[-1].ends == "waiting cannot help") is ends
