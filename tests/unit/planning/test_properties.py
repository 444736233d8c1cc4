# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Properties of every fleet: there is a plan or a refusal, whatever the order, and no plan depends on another host."""

from __future__ import annotations

import json
from typing import Any

from ansible_collections.gpuops.nvidia.plugins.module_utils._devices import MODELS
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import components, releases
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.refusals import PolicyError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning.cluster import resolve_cluster
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning.resolve import resolve
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import formats
from ansible_collections.gpuops.nvidia.tests.unit.simulated.host_facts import facts
from hypothesis import given, settings
from hypothesis import strategies as st

Data = dict[str, Any]

DEVICES = sorted({model.device_id for model in MODELS.values()}) + ["3fff"]
SYSTEMS = [("ubuntu22.04", "5.15.0-119-generic"), ("ubuntu24.04", "6.8.0-45-generic"),
           ("ubuntu24.04", "6.8.0-1031-aws"),
           ("ubuntu20.04", "5.4.0-1-generic"), ("debian12", "6.1.0-28-amd64"), ("rhel9.6", "5.14.0-570.el9_6.x86_64"),
           ("rocky8.10", "4.18.0-553.el8_10.x86_64"), ("sles15.6", "6.4.0-150600.23-default"), ("fedora43", "6.17.1"),
           ("azurelinux3.0", "6.6.57.1-2.azl3"), ("amzn2023", "6.1.1-1.amzn2023.x86_64"), ("talos1.13", "6.18.1-talos"),
           ("flatcar4230.2.1", "6.6.95-flatcar"), ("alpine3.20", "6.6.1-0-lts")]
VERSIONS = ["", "470.256.02", "535.309.01", "550.163.01", "570.124.06", "580.65.06", "580.173.02", "595.91.07",
            "620.10", "580", "R595", "999", "nonsense"]

hosts = st.builds(
    lambda gpus, system, arch, secure_boot, enrolled, headers, vgpu: facts(
        gpus, *system, arch, secure_boot, vgpu=vgpu, host={"mok": {"enrolled": enrolled}, "kernel": headers}),
    st.lists(st.sampled_from(DEVICES), max_size=4), st.sampled_from(SYSTEMS),
    st.sampled_from(["x86_64", "aarch64", "riscv64"]), st.sampled_from([None, False, True]),
    st.sampled_from([None, False, True]),
    st.fixed_dictionaries({"headers": st.booleans(), "headers_available": st.sampled_from([None, False, True])}),
    st.sampled_from([None, None, {"version": None, "branch": None}]))
variables = st.fixed_dictionaries({}, optional={
    "driver_version": st.sampled_from(VERSIONS), "driver_branch": st.sampled_from([535, 580, "610"]),
    "driver_kernel_module_type": st.sampled_from(["auto", "open", "proprietary", "closed"]),
    "driver_source": st.sampled_from(["auto", "cuda_repository", "distribution", "runfile", "precompiled"]),
    "driver_gds": st.sampled_from([True, False, "yes", "perhaps"]), "driver_gdrcopy": st.booleans(),
    "driver_peermem": st.booleans(), "driver_next_kernel": st.sampled_from([True, "no", 7]),
    "driver_hold_kernel": st.sampled_from([True, "no", 7]),
    "driver_installation": st.sampled_from(["auto", "full", "compute-only"]),
    "driver_imex_nodes": st.sampled_from([[], ["10.0.0.1"], 7, "10.0.0.1"]),
    "driver_module_parameters": st.sampled_from([{}, {"nvidia": {"NVreg_X": 1}}, "NVreg_X=1"]),
    "driver_fabric": st.sampled_from(["auto", "none", "some"]), "driver_signing_key": st.booleans(),
    "driver_runfile_src": st.sampled_from(["", "/srv/driver.run", "/srv/NVIDIA-Linux-x86_64-580.126.09-grid.run", 5]),
    "driver_state": st.sampled_from(["present", "adopted", "rolled_back"]),
    "gpu_profile": st.sampled_from(["auto", "none", "dgx_os"]),
    "mig_manager_selected": st.sampled_from(["all-disabled", "all-enabled", "all-balanced", "all-1g.10gb", "nope"])})
on = st.fixed_dictionaries({}, optional={"enabled": st.booleans()})
policies = st.fixed_dictionaries({}, optional={
    "driver": st.fixed_dictionaries({}, optional={
        "enabled": st.booleans(), "version": st.sampled_from(VERSIONS), "usePrecompiled": st.booleans(),
        "kernelModuleType": st.sampled_from(["auto", "open", "proprietary"]), "rdma": on}),
    "gds": on, "gdrcopy": on, "migManager": on, "mig": st.fixed_dictionaries({"strategy": st.sampled_from(
        ["none", "single", "mixed"])})})
operator_releases = st.sampled_from(releases.available())


def outcome(policy: Data, release: str, fleet: dict[str, Data], mine: dict[str, Data]) -> tuple[Data, Data]:
    """(plans by host, texts of refusals by host); one of them is empty."""
    chosen = releases.release(release)
    try:
        return resolve(formats.read(policy, chosen), chosen, fleet, mine)["hosts"], {}
    except PolicyError as error:
        refused: Data = {}
        for one in error.details["refusals"]:
            for host in one["hosts"]:
                # In one message reasons stand in the order of the hosts that have them.
                refused.setdefault(host, set()).add((one["reason"], one["remedy"]))
        return {}, refused


@given(policies, operator_releases, hosts, variables)
@settings(max_examples=250, deadline=None)
def test_resolve_is_total(policy: Data, release: str, host: Data, mine: Data) -> None:
    """There is a serializable plan, or a refusal with a reason and a hint; a refusal of an NVIDIADriver is under its
    name."""
    chosen = releases.release(release)
    try:
        plan = resolve(formats.read(policy, chosen), chosen, {"a": host}, {"a": mine})
        assert json.loads(json.dumps(plan)) == plan
        driver = plan["hosts"]["a"]["driver"]
        assert driver["because"] and (driver["placement"] == "none" or driver["branch"])
    except PolicyError as error:
        assert json.loads(json.dumps(error.details)) == error.details
        for one in error.details["refusals"]:
            assert one["hosts"] == ["a"] and one["reason"] and one["remedy"]
            assert {free["drop"] for free in one["free"]} <= {rule["id"] for rule in one["constraints"]}


@given(policies, operator_releases, st.lists(hosts, min_size=2, max_size=3), variables,
       st.randoms(use_true_random=False))
@settings(max_examples=80, deadline=None)
def test_the_order_does_not_matter(policy: Data, release: str, fleet: list[Data], mine: Data, chance: Any) -> None:
    """Neither the order of hosts nor the order of the GPUs of a host."""
    named = {f"h{number}": host for number, host in enumerate(fleet)}
    # A layout may speak of GPUs by their place.
    mine.pop("mig_manager_selected", None)
    first = outcome(policy, release, named, dict.fromkeys(named, mine))
    turned = list(named.items())
    chance.shuffle(turned)
    for _name, host in turned:
        chance.shuffle(host["gpus"])
    assert outcome(policy, release, dict(turned), dict.fromkeys(named, mine)) == first


@given(policies, operator_releases, hosts, hosts, variables)
@settings(max_examples=120, deadline=None)
def test_another_host_changes_nothing(policy: Data, release: str, host: Data, other: Data, mine: Data) -> None:
    planned, refused = outcome(policy, release, {"a": host}, {"a": mine})
    both, both_refused = outcome(policy, release, {"a": host, "b": other}, {"a": mine})
    assert both_refused.get("a") == refused.get("a")
    if both:
        assert both["a"] == planned["a"]


nodes = st.builds(
    lambda gpu, system, arch: {
        "labels": {"nvidia.com/gpu.product": gpu[0], "nvidia.com/gpu.family": gpu[1]} if gpu else {}, "annotations": {},
        "os": {"id": system[0].rstrip("0123456789."), "version": system[0].lstrip("abcdefghijklmnopqrstuvwxyz")},
        "os_image": "", "kernel": system[1], "arch": arch, "runtime": "containerd", "runtime_version": "1.7.28",
        "kubelet": "v1.36.0", "provider": None, "taints": [], "ready": True, "gpu": True},
    st.sampled_from([None, ("Tesla-V100-SXM2-32GB", "volta"), ("NVIDIA-H100-80GB-HBM3", "hopper"),
                     ("NVIDIA-B200", "blackwell"), ("NVIDIA-GH200-480GB", "hopper"), ("unheard-of", "rubin")]),
    st.sampled_from(SYSTEMS), st.sampled_from(["amd64", "arm64"]))


def by_node(policy: Data, release: str, seen: dict[str, Data]) -> Data:
    """Maps Nodes to their drivers; nothing if the plan is refused."""
    chosen = releases.release(release)
    cluster = {"server": "s", "version": "v1.36.0", "nfd": "none", "service_monitors": False, "nodes": seen}
    try:
        pools = resolve_cluster(formats.read(policy, chosen), chosen, cluster, components.placements("cluster"), {}, {},
                                "never")["pools"]
    except PolicyError as error:
        pools = error.details["pools"]
        assert all(one["reason"] and one["remedy"] for one in error.details["refusals"])
    return {name: pool["driver"] for pool in pools for name in pool["nodes"]}


@given(policies, operator_releases, st.lists(nodes, min_size=1, max_size=3), nodes)
@settings(max_examples=120, deadline=None)
def test_another_node_changes_no_pool(policy: Data, release: str, some: list[Data], other: Data) -> None:
    """Every Node gets what it would get alone, so their order does not matter either."""
    named = {f"n{number}": node for number, node in enumerate(some)}
    found = by_node(policy, release, {**named, "another": other})
    alone = {name: by_node(policy, release, {name: node}).get(name) for name, node in named.items()}
    assert {name: found.get(name) for name in named} == alone
