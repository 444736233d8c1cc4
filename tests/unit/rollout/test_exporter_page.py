# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The page of the DCGM exporter, as the API server fetches it from a pod, must have fresh samples of each GPU."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import PAGE_BYTES, Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._rollout import exporter_page
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._rollout.drift import Difference
from ansible_collections.gpuops.nvidia.tests.unit.simulated.fakes import Clock
from ansible_collections.gpuops.nvidia.tests.unit.simulated.server import ApiServer, Reply, Request, status

SPACE = "gpu-operator"
A, B = "GPU-11111111-aaaa", "GPU-22222222-bbbb"


def node(name: str, **labels: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Node", "spec": {}, "status": {}, "metadata": {"name": name, "labels": {
        "nvidia.com/gpu.deploy.dcgm-exporter": "true", "nvidia.com/gpu.count": "2", **labels}}}


def pod(on: str, phase: str = "Running", **env: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", "status": {"phase": phase}, "metadata": {
        "name": f"exporter-{on}", "namespace": SPACE, "labels": {"app": "nvidia-dcgm-exporter"}},
        "spec": {"nodeName": on, "containers": [{"name": "x", "env": [
            {"name": name, "value": value} for name, value in env.items()]}]}}


def page(**energy: int | None) -> str:
    """A page with these GPUs (A, B), and the values of their energy counters, None for an exporter without it."""
    uuids = {"a": A, "b": B}
    lines = ["# HELP DCGM_FI_DEV_GPU_TEMP GPU temperature (in C).", "# TYPE DCGM_FI_DEV_GPU_TEMP gauge"]
    for name, value in energy.items():
        labels = f'gpu="0",UUID="{uuids[name]}",pci_bus_id="00000000:01:00.0",modelName="NVIDIA L4"'
        lines.append(f"DCGM_FI_DEV_GPU_TEMP{{{labels}}} 42")
        if value is not None:
            lines.append(f"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{{labels}}} {value}")
    return "\n".join([*lines, "go_goroutines 12", ""])


class Exporters:
    """Answers the proxy of the API server. pages: the pages of each pod, one for each read; the last is repeated."""

    def __init__(self, api: ApiServer, **pages: list[Any]) -> None:
        self.pages, self.ports = pages, set[str]()
        api.before = self

    def __call__(self, request: Request) -> Reply | None:
        if "/proxy/" not in request.path:
            return None
        place, _proxy, _page = request.path.rpartition("/pods/")[2].partition("/proxy/")
        name, _colon, port = place.partition(":")
        self.ports.add(port)
        pages = self.pages[name.rpartition("-")[2]]
        answer = pages.pop(0) if len(pages) > 1 else pages[0]
        return answer if isinstance(answer, Reply) else Reply(200, answer)


def check(client: Client, amount: Any, check_mode: bool = False, **uuids: list[str]) -> list[Difference]:
    clock = Clock()
    return exporter_page.differences(client, SPACE, ["n1", "n2"], amount, uuids, check_mode, clock, clock.sleep)


def test_energy_that_grows_is_fresh(api: ApiServer, client: Client) -> None:
    exporters = Exporters(api, n1=[page(a=1, b=1), page(a=1, b=2), page(a=2, b=2)])
    api.put(node("n1"), pod("n1", DCGM_EXPORTER_LISTEN="0.0.0.0:9500"))
    assert check(client, 1) == [] and exporters.ports == {"9500"} and len(exporters.pages["n1"]) == 1
    # What docs/cluster.md names for gpu_check_metrics.
    assert {(one.verb, one.path.partition("/proxy")[1]) for one in api.requests} == {
        ("list", ""), ("get", "/proxy")}
    api.requests.clear()
    assert check(client, 0) == [] and api.requests == []


def test_energy_that_stands_still_is_old(api: ApiServer, client: Client) -> None:
    Exporters(api, n1=[page(a=1, b=1), page(a=1, b=2)])
    api.put(node("n1"), pod("n1"))
    found, = check(client, 1)
    assert "energy counter of 1 of 2 GPUs did not grow within 75 s" in found.cause and found.level == "failed"
    assert check(client, 1, check_mode=True) == []


def test_without_the_counter_samples_are_enough(api: ApiServer, client: Client) -> None:
    exporters = Exporters(api, n1=[page(a=None, b=None)])
    api.put(node("n1"), pod("n1"))
    assert check(client, 1) == [] and exporters.ports == {"9400"} and len(api.requests) == 3


@pytest.mark.parametrize(("labels", "uuids", "cause"), [
    ({}, {}, "samples of 1 of 2 GPUs"),
    ({"nvidia.com/gpu.count": "1"}, {}, ""),
    ({"nvidia.com/gpu.count": "1"}, {"n1": [A, B]}, "samples of 1 of 2 GPUs"),
    ({}, {"n1": [B]}, "samples of 0 of 1 GPUs"),
    ({"nvidia.com/gpu.count": "14", "nvidia.com/mig.strategy": "single"}, {}, ""),
    ({"nvidia.com/gpu.count": "99999999"}, {}, ""),
])
def test_each_gpu_has_samples(api: ApiServer, client: Client, labels: dict[str, str], uuids: dict[str, list[str]],
                              cause: str) -> None:
    Exporters(api, n1=[page(a=1), page(a=2)])
    api.put(node("n1", **labels), pod("n1"))
    found = check(client, ["n1"], **uuids)
    assert [cause in one.cause for one in found] == ([True] if cause else [])


def test_nodes_with_the_same_fault_are_one_difference(api: ApiServer, client: Client) -> None:
    Exporters(api, n1=["nothing"], n2=["DCGM_FI_DEV_GPU_TEMP{gpu=\"0\"} 1"])
    api.put(node("n1"), node("n2"), pod("n1"), pod("n2"))
    found, = check(client, 2)
    assert found.nodes == ("n1", "n2") and "0 of 2" in found.cause


def test_a_user_without_the_permission(api: ApiServer, client: Client) -> None:
    Exporters(api, n1=[status(403, "no")])
    api.put(node("n1"), pod("n1"))
    found, = check(client, 1)
    assert found.level == "pending" and "get pods/proxy" in found.cause


@pytest.mark.parametrize("answer", [Reply(503, "\x1b[31mdial\ntcp: " + "x" * 999), Reply(200, "x" * (PAGE_BYTES + 1))])
def test_a_page_that_cannot_be_read(api: ApiServer, client: Client, answer: Reply) -> None:
    Exporters(api, n1=[page(a=1, b=1), answer])
    api.put(node("n1"), pod("n1"))
    found, = check(client, 1)
    assert found.level == "failed" and "cannot be read" in found.cause and len(found.cause) < 300
    assert found.cause.isprintable()


def test_a_node_that_cannot_be_checked_is_named(api: ApiServer, client: Client) -> None:
    Exporters(api, n2=[page(a=None, b=None)])
    off = {exporter_page.LABELS["dcgm_exporter"]: "false"}
    api.put(node("n1"), pod("n1", "Pending"), node("n2"), pod("n2"))
    without, = check(client, ["n1", "n2"])
    assert without.level == "pending" and without.nodes == ("n1",) and "no pod of the exporter runs" in without.cause
    api.put(node("n1", **off))
    labelled, other = check(client, ["n1", "n3"])
    assert labelled.level == other.level == "pending" and labelled.nodes == ("n1",) and other.nodes == ("n3",)
    assert "the label" in labelled.cause and "another problem" in other.cause and labelled.hint
    # A number takes Nodes that can be checked, so nothing is missing.
    assert check(client, 1) == []


@pytest.mark.parametrize("check_mode", [False, True])
def test_a_number_that_finds_no_node_to_check_says_so(api: ApiServer, client: Client, check_mode: bool) -> None:
    api.put(node("n1"), pod("n1", "Pending"), node("n2"))
    found, = check(client, 1, check_mode)
    assert found.level == "pending" and found.nodes == ("n1", "n2") and "not checked" in found.cause


def test_an_exporter_that_the_cluster_does_not_deliver_is_named() -> None:
    found, = exporter_page.undelivered(["n1", "n2"], 1)
    assert found.level == "pending" and found.nodes == ("n1", "n2")
    assert "the cluster does not deliver dcgm_exporter" in found.cause and found.hint
    assert [one.nodes for one in exporter_page.undelivered(["n1", "n2"], ["n2"])] == [("n2",)]
    assert exporter_page.undelivered(["n1", "n2"], 0) == exporter_page.undelivered([], 2) == []


@pytest.mark.parametrize("second", [page(b=2), page(), "nothing", page(a=None, b=2)])
def test_a_gpu_that_vanishes_from_the_page_is_not_fresh(api: ApiServer, client: Client, second: str) -> None:
    Exporters(api, n1=[page(a=1, b=1), second])
    api.put(node("n1"), pod("n1"))
    found, = check(client, 1)
    assert found.level == "failed" and found.nodes == ("n1",)
    # A GPU that still has samples, but no counter any more, is old.
    assert ("did not grow" if "GPU_TEMP" in second and A in second else "has lost") in found.cause
