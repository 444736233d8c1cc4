# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Policies and clusters, and their plans or refusals."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import components, releases
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.refusals import PolicyError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.yamltext import Document
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory import cluster_nodes
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning.cluster import resolve_cluster
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import formats, sharing
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.cluster_mig import default_config
from ansible_collections.gpuops.nvidia.tests.unit.simulated.clusters import facts, node, objects, plan, pod

NAMES = [component.name for component in components.IN_CLUSTERS]
# What a policy that says nothing does not deliver.
OFF = ("dcgm", "node_status_exporter")
DEFAULTS = [name for name in NAMES if name not in OFF]
MIRROR = {"image_registry": "mirror.example:5000"}
DIGEST = "sha256:" + "ab" * 32


def present(made: dict[str, Any]) -> list[str]:
    return [name for name, one in made["components"].items() if one["state"] == "present"]


@pytest.mark.parametrize(("policy", "release", "settings", "component", "image", "expected"), [
    ({}, "26.7.0", {}, "device_plugin", "device_plugin", "nvcr.io/nvidia/k8s-device-plugin:v0.20.0"),
    ({}, "26.7.0", {}, "feature_discovery", "feature_discovery", "nvcr.io/nvidia/k8s-device-plugin:v0.20.0"),
    ({}, "26.3.3", {}, "driver", "driver_manager", "nvcr.io/nvidia/cloud-native/k8s-driver-manager:v0.11.0"),
    ({}, "26.7.0", {}, "nfd", "nfd", "registry.k8s.io/nfd/node-feature-discovery:v0.19.0"),
    ({}, "26.7.0", {}, "validator", "validator", "nvcr.io/nvidia/gpu-operator:v26.7.0"),
    ({}, "25.3.4", {}, "validator", "validator", "nvcr.io/nvidia/cloud-native/gpu-operator-validator:v25.3.4"),
    # what the policy leaves out is completed
    ({"devicePlugin": {"version": "v0.19.0"}}, "26.7.0", {}, "device_plugin", "device_plugin",
     "nvcr.io/nvidia/k8s-device-plugin:v0.19.0"),
    ({"devicePlugin": {"repository": "quay.io/me"}}, "26.7.0", {}, "device_plugin", "device_plugin",
     "quay.io/me/k8s-device-plugin:v0.20.0"),
    ({"devicePlugin": {"image": "quay.io/me/plugin:7"}}, "26.7.0", {}, "device_plugin", "device_plugin",
     "quay.io/me/plugin:7"),
    ({"devicePlugin": {"image": "plugin"}}, "26.7.0", {}, "device_plugin", "device_plugin",
     "nvcr.io/nvidia/plugin:v0.20.0"),
    ({"toolkit": {"version": DIGEST}}, "26.7.0", {}, "container_toolkit", "container_toolkit",
     f"nvcr.io/nvidia/k8s/container-toolkit@{DIGEST}"),
    # a mirror stands for the public registries only
    ({}, "26.7.0", MIRROR, "mig_manager", "mig_manager",
     "mirror.example:5000/nvidia/cloud-native/k8s-mig-manager:v0.15.0"),
    ({}, "26.7.0", MIRROR, "nfd", "nfd", "mirror.example:5000/nfd/node-feature-discovery:v0.19.0"),
    ({"migManager": {"repository": "nvcr.io/mine"}}, "26.7.0", MIRROR, "mig_manager", "mig_manager",
     "mirror.example:5000/mine/k8s-mig-manager:v0.15.0"),
    ({"migManager": {"repository": "quay.io/mine"}}, "26.7.0", MIRROR, "mig_manager", "mig_manager",
     "quay.io/mine/k8s-mig-manager:v0.15.0"),
])
def test_images(policy: Any, release: str, settings: Any, component: str, image: str, expected: str) -> None:
    assert plan(policy, release=release, **settings)["components"][component]["images"][image] == expected


@pytest.mark.parametrize(("system", "release", "tag"), [
    (("ubuntu", "22.04"), "26.7.0", "ubuntu22.04"), (("rhel", "9.4"), "26.7.0", "rhel9"),
    (("rhel", "9.4"), "26.3.3", "rhel9.4"), (("rhel", "10.1"), "26.3.3", "rhel10"),
    (("rhel", "10.1"), "25.3.4", "rhel10.1"),
    (("rocky", "9.7"), "26.3.3", "rocky9"), (("ol", "8.10"), "26.7.0", "ol8"), (("ol", "8.10"), "26.3.3", "ol8.10"),
    (("sles", "15.6"), "26.7.0", "sles15.6"), (("debian", "12"), "26.7.0", "debian12"),
])
def test_tag_of_driver_images(system: tuple[str, str], release: str, tag: str) -> None:
    pool, = plan(cluster=facts(node(system)), release=release)["components"]["driver"]["pools"]
    assert pool["name"] == "nvidia-driver-daemonset"
    assert pool["node_selector"] == {}
    assert pool["images"]["driver"].endswith(f"-{tag}")


def test_a_pool_for_each_system() -> None:
    cluster = facts(node(("ubuntu", "22.04")), node(("rhel", "9.4")), node(("rhel", "9.6")),
                    node(("sles", "15.6"), gpu=False))
    ubuntu, rhel = sorted(plan(cluster=cluster)["components"]["driver"]["pools"], key=lambda one: -len(one["os"]))
    assert (ubuntu["name"], rhel["name"]) == ("nvidia-driver-daemonset-ubuntu22.04", "nvidia-driver-daemonset-rhel9")
    assert ubuntu["node_selector"] == {cluster_nodes.OS_ID: "ubuntu", cluster_nodes.OS_VERSION: "22.04"}
    assert rhel["node_selector"] == {cluster_nodes.OS_ID: "rhel", cluster_nodes.OS_MAJOR: "9"}
    assert rhel["images"]["driver"] == "nvcr.io/nvidia/driver:595.91.07-rhel9"


def test_systems_without_nfd_are_those_of_all_nodes() -> None:
    cluster = facts(node(("ubuntu", "24.04"), gpu=False), node(None, gpu=False))
    assert [pool["os"] for pool in plan(cluster=cluster)["components"]["driver"]["pools"]] == ["ubuntu24.04"]


def test_systems_without_a_cluster_are_asked_for() -> None:
    release = releases.release("26.7.0")
    policy, places = formats.read(None, release), components.placements("cluster")
    with pytest.raises(PolicyError, match="node_os"):
        resolve_cluster(policy, release, None, places, {}, {}, "never")
    made = resolve_cluster(policy, release, None, places, {}, {"node_os": ["rhel9.6", "ubuntu24.04"]},
                           "never")
    assert [pool["os"] for pool in made["components"]["driver"]["pools"]] == ["rhel9", "ubuntu24.04"]
    assert (made["server"], made["nodes"]) == (None, {"gpu": [], "cpu": 0, "pools": [], "by_host": {}})


@pytest.mark.parametrize(("pretty", "expected"), [
    ("Ubuntu 22.04.5 LTS", ("ubuntu", "22.04")), ("Ubuntu 24.04 LTS", ("ubuntu", "24.04")),
    ("Red Hat Enterprise Linux 9.4 (Plow)", ("rhel", "9.4")), ("Rocky Linux 9.7 (Blue Onyx)", ("rocky", "9.7")),
    ("Red Hat Enterprise Linux CoreOS 418.94", ("rhcos", "418.94")), ("Oracle Linux Server 8.10", ("ol", "8.10")),
    ("SUSE Linux Enterprise Server 15 SP6", ("sles", "15.6")), ("Debian GNU/Linux 12 (bookworm)", ("debian", "12")),
    ("Talos (v1.9)", None), ("", None),
])
def test_system_by_its_pretty_name(pretty: str, expected: Any) -> None:
    assert cluster_nodes.system_of({}, pretty) == expected
    labels = {cluster_nodes.OS_ID: "rhel", cluster_nodes.OS_VERSION: "8.8"}
    assert cluster_nodes.system_of(labels, pretty) == ("rhel", "8.8")
    # both together become the value of a label
    long = {cluster_nodes.OS_ID: "a" * 40, cluster_nodes.OS_VERSION: ".".join(["9" * 9] * 4)}
    assert cluster_nodes.system_of(long, pretty) == expected


@pytest.mark.parametrize(("runtimes", "expected"), [
    ([("docker", True), ("containerd", True)], "containerd"), ([("crio", True), ("docker", True)], "docker"),
    # one kubelet does not decide what is configured for all
    ([("crio", True), ("crio", True), ("crio", True), ("containerd", True)], "crio"),
    ([("crio", False), ("crio", False), ("containerd", True)], "containerd"),
    ([("crio", True)], "crio"), ([("crio", True), ("containerd", False)], "crio"), ([("other", True)], "containerd"),
])
def test_runtime_is_that_of_gpu_nodes(runtimes: list[tuple[str, bool]], expected: str) -> None:
    cluster = facts(*(node(runtime=runtime, gpu=gpu) for runtime, gpu in runtimes))
    made = plan(cluster=cluster)
    assert made["common"]["runtime"] == expected
    others = [f"n{index}" for index, (runtime, gpu) in enumerate(runtimes, 1) if gpu and runtime != expected]
    said = [note.partition(":")[0] for note in made["notes"] if "container runtime is not" in note]
    assert said == ([", ".join(others)] if others else [])


@pytest.mark.parametrize(("runtimes", "running", "expected", "because"), [
    (["crio", "containerd"], "", "containerd", "it is the first supported one of the most"),
    (["crio", "containerd"], "crio", "crio", "it is in use"),
    (["crio", "containerd", "docker"], "docker", "docker", "it is in use"),
    # as many as are in wrong hands, but less than half of all
    (["crio"] * 3 + ["containerd"] * 2, "containerd", "crio", "more than half"),
    (["containerd"] * 3 + ["crio"] * 2, "containerd", "containerd", "more than half"),
    (["containerd", "containerd", "crio", "docker"], "", "containerd", "most Nodes have it"),
    (["containerd", "crio", *["nonsense"] * 9], "crio", "crio", "it is in use"),
    (["nonsense"], "crio", "crio", "no Node reports a supported one"),
])
def test_less_than_half_of_the_nodes_change_no_runtime(runtimes: list[str], running: str, expected: str,
                                                       because: str) -> None:
    made = plan(cluster={**facts(*(node(runtime=runtime) for runtime in runtimes)), "toolkit_runtime": running})
    assert made["common"]["runtime"] == expected
    note, = [note for note in made["notes"] if "container runtime is not" in note]
    assert f"because {because}" in note


@pytest.mark.parametrize(("disruption", "env", "eviction", "noted"), [
    ("never", [], "false", False), ("idle", [], "false", False), ("drain", [], "true", False),
    ("reboot", [], "true", False), ("never", [("ENABLE_GPU_POD_EVICTION", "true")], "false", True),
    ("drain", [("ENABLE_GPU_POD_EVICTION", "false")], "false", False),
    ("never", [("ENABLE_GPU_POD_EVICTION", "0")], "false", False),
    ("never", [("ENABLE_AUTO_DRAIN", "yes")], "false", True),
    *(("idle", [(name, value)], "false", True) for name in ("ENABLE_GPU_POD_EVICTION", "ENABLE_AUTO_DRAIN")
      for value in ("1", "t", "T", "TRUE", "True")),
])
def test_eviction_is_what_disruption_allows(disruption: str, env: Any, eviction: str, noted: bool) -> None:
    policy = {"driver": {"manager": {"env": [{"name": name, "value": value} for name, value in env]}}}
    made = plan(policy, disruption=disruption)
    assert made["components"]["driver"]["pools"][0]["manager_env"] == {
        "ENABLE_GPU_POD_EVICTION": eviction, "ENABLE_AUTO_DRAIN": "false"}
    assert any("gpu_disruption" in note for note in made["notes"]) == noted


@pytest.mark.parametrize(("disruption", "value", "expected", "noted"), [
    ("never", "true", "false", True), ("idle", "1", "false", True), ("drain", "T", "false", True),
    ("drain", "f", "false", False), ("reboot", "true", "true", False),
])
def test_the_mig_manager_reboots_where_disruption_allows_it(disruption: str, value: str, expected: str,
                                                            noted: bool) -> None:
    made = plan({"migManager": {"env": [{"name": "WITH_REBOOT", "value": value}]}}, disruption=disruption)
    assert made["components"]["mig_manager"]["env"] == {"WITH_REBOOT": expected}
    assert any("migManager.env: WITH_REBOOT stays false" in note for note in made["notes"]) == noted


@pytest.mark.parametrize("argument", ["nvidia-mig-manager --with-reboot", "WITH_REBOOT=1 /bin/entrypoint.sh",
                                      "nvidia-mig-manager -n $NODE_NAME -r=true"])
def test_arguments_of_the_mig_manager_that_reboot_are_refused(argument: str) -> None:
    policy = {"migManager": {"args": [argument]}}
    assert plan(policy, disruption="reboot")["components"]["mig_manager"]["args"] == [argument]
    with pytest.raises(PolicyError, match=r"migManager\.args lets the MIG manager reboot Nodes"):
        plan(policy, disruption="drain")


@pytest.mark.parametrize(("disruption", "noted"), [
    ("never", "n1: migManager.config.default (all-disabled) is not applied"), ("idle", "")])
def test_the_default_layout_is_asked_for_where_disruption_allows_it(disruption: str, noted: str) -> None:
    capable = {"nvidia.com/mig.capable": "true"}
    cluster = facts(node(**capable), node(**capable, **{"nvidia.com/mig.config": "all-1g.10gb"}), node())
    made = plan({"migManager": {"config": {"default": "all-disabled"}}}, cluster, disruption=disruption)
    assert (made["deploy"]["mig_default"], made["deploy"]["mig_changes"]) == ("all-disabled", not noted)
    notes = [note.partition(",")[0] for note in made["notes"] if "migManager.config.default" in note]
    assert notes == ([noted] if noted else [])
    waits = [note.partition(", ")[0] for note in made["notes"] if "the MIG manager would start" in note]
    assert waits == (["n2: nvidia.com/gpu.deploy.mig-manager is not set"] if noted else [])


def test_the_exporter_reads_variables_as_go_does() -> None:
    env = [{"name": "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS", "value": "1"}]
    assert plan({"dcgmExporter": {"env": env}})["components"]["dcgm_exporter"]["read_pods"]


@pytest.mark.parametrize(("policy", "absent"), [
    ({}, []), ({"driver": {"enabled": False}}, ["driver"]), ({"toolkit": {"enabled": False}}, ["container_toolkit"]),
    ({"nfd": {"enabled": False}, "dcgmExporter": {"enabled": False}}, ["nfd", "dcgm_exporter"]),
    ({"devicePlugin": {"enabled": False}, "gfd": {"enabled": False}, "migManager": {"enabled": False}},
     ["device_plugin", "feature_discovery", "mig_manager"]),
    # null is "not set", and not set is on
    ({"driver": {"enabled": None}, "dcgmExporter": {"enabled": None}}, []),
])
def test_switches(policy: Any, absent: list[str]) -> None:
    made = plan(policy)
    assert list(made["components"]) == NAMES
    assert present(made) == [name for name in DEFAULTS if name not in absent]
    assert made["deploy"]["components"] == {name: name in present(made) for name in NAMES}
    assert all(made["components"][name]["because"] for name in absent)


def test_a_foreign_nfd_is_reused() -> None:
    assert plan(cluster=facts(node(), nfd="foreign"))["components"]["nfd"] == {
        "state": "absent", "because": ["reused: the cluster has an NFD that another tool manages"]}
    assert plan(cluster=facts(node(), nfd="ours"))["components"]["nfd"]["state"] == "present"


def test_hybrid() -> None:
    cluster = facts(node(), node(("rhel", "9.4")), cpu=node(gpu=False))
    made = plan(cluster=cluster, placement="hybrid", hosts={"a": "n1", "elsewhere": "n9"})
    assert present(made) == DEFAULTS
    assert made["deploy"]["on_host"] == {"n1": ["driver", "container_toolkit", "mig_manager"]}
    assert made["deploy"]["hosts"] == []
    assert {key: made["nodes"][key] for key in ("gpu", "cpu", "by_host")} == {
        "gpu": ["n1", "n2"], "cpu": 1, "by_host": {"n1": "a"}}
    # the host's system needs no driver container
    assert [pool["os"] for pool in made["components"]["driver"]["pools"]] == ["rhel9"]
    assert [note.split(":")[0] for note in made["notes"] if "gpu_node_name" in note] == ["elsewhere"]


@pytest.mark.parametrize("gpu", [True, False])
def test_hybrid_where_every_node_is_a_host(gpu: bool) -> None:
    made = plan(cluster=facts(node(gpu=gpu), node(gpu=gpu)), placement="hybrid", hosts={"a": "n1", "b": "n2"})
    assert present(made) == ["nfd", "validator", "device_plugin", "feature_discovery", "dcgm_exporter"]


BOTTLEROCKET = ["driver", "container_toolkit", "device_plugin", "mig_manager"]


def test_what_a_prepared_system_has_is_left_to_it() -> None:
    rocket = node(("bottlerocket", "1.34.0"))
    made = plan(cluster=facts(node(), rocket, rocket))
    assert made["deploy"]["on_host"] == {"n2": BOTTLEROCKET, "n3": BOTTLEROCKET}
    assert [pool["os"] for pool in made["components"]["driver"]["pools"]] == ["ubuntu22.04"]
    assert any(note.startswith("n2, n3: not delivered, because the system includes it: driver, "
                               "container toolkit, device plugin, MIG; Bottlerocket")
               for note in made["notes"])
    alone = plan(cluster=facts(rocket))
    assert present(alone) == ["nfd", "validator", "feature_discovery", "dcgm_exporter"]


@pytest.mark.parametrize(("profiles", "expected"), [
    ({"": "none"}, {}), ({"n1": "none"}, {}), ({"n1": "none", "": "talos"}, {}),
    ({"": "flatcar"}, {"n1": ["driver"]}), ({"n1": None}, {"n1": ["driver", "container_toolkit"]}),
])
def test_gpu_profile_of_nodes(profiles: dict[str, str | None], expected: dict[str, list[str]]) -> None:
    cluster = facts(node(("amzn", "2023"), kubelet="v1.33.1-eks-1234567"))
    assert plan(cluster=cluster, profiles=profiles, node_os=["ubuntu24.04"])["deploy"]["on_host"] == expected


def test_what_a_prepared_system_cannot_get_is_refused_where_it_is_asked_for() -> None:
    cluster = facts(node(("flatcar", "4230.2.1")), node())
    with pytest.raises(PolicyError, match="n1: the component driver is requested, but Flatcar") as caught:
        plan(cluster=cluster, placement={"driver": "cluster"})
    assert caught.value.details["refusals"][0]["constraints"][0]["id"] == "profile"


def test_a_mapping_places_each() -> None:
    made = plan(placement={"driver": "host", "container_toolkit": "cluster", "mig_manager": "none"}, hosts={"a": "n1"})
    assert present(made) == ["container_toolkit"]
    assert made["deploy"]["on_host"] == {
        "n1": ["driver", "validator", "feature_discovery", "dcgm", "dcgm_exporter", "node_status_exporter"]}
    assert made["deploy"]["hosts"] == ["a"]  # their labels go to their Nodes from the controller


@pytest.mark.parametrize(("policy", "cluster", "words"), [
    ({"driver": {"usePrecompiled": True}}, None, ["driver.usePrecompiled"]),
    ({"driver": {"useNvidiaDriverCRD": True}, "sandboxWorkloads": {"enabled": True}}, None,
     ["sandboxWorkloads.enabled"]),
    ({"driver": {"nvidiaDriverCRD": {"enabled": True, "nodeSelector": {"a": "b"}}}}, None,
     ["driver.nvidiaDriverCRD.nodeSelector: {'a': 'b'}"]),
    ({"devicePlugin": {"config": {"create": True, "data": {}}}}, None, ["devicePlugin.config.create"]),
    ({"driver": {"version": "nonsense"}}, None, ["'nonsense'"]), ({"driver": {"version": "999"}}, None, ["branch 999"]),
    ({"driver": {"version": DIGEST}}, facts(node(), node(("rhel", "9.4"))), ["rhel9, ubuntu22.04"]),
    ({}, facts(node(None)), ["n1: the operating system"]), ({}, facts(), ["node_os"]),
    ({"driver": {"version": "595.91.07"}}, facts(node(**{"nvidia.com/gpu.family": "volta"})),
     ["n1: driver.version of gpu_policy requests driver 595.91.07, but", "(volta)", "driver.version: 580.173.02"]),
    ({}, facts(node(**{"nvidia.com/gpu.family": "volta"}), node(**{"nvidia.com/gpu.family": "hopper"})),
     ["595.91.07 (n2) and 580.173.02 (n1)", "Set driver.version to 580.173.02, which all of them support, or use "]),
])
def test_refusals(policy: Any, cluster: Any, words: list[str]) -> None:
    with pytest.raises(PolicyError) as caught:
        plan(policy, cluster=cluster)
    text = str(caught.value)
    assert all(word in text for word in words), text
    assert "Nothing was changed." in text
    assert all(one["reason"] and one["remedy"] for one in caught.value.details["refusals"])
    assert len(caught.value.details["refusals"]) >= len([word for word in words if "." in word and " " not in word])


KERNEL = "5.15.0-84-generic"
SHARED = sharing.read(Document({"mps": {"resources": [{"name": "nvidia.com/gpu", "replicas": 4}]}}))
VOLTA = {"nvidia.com/gpu.family": "volta"}
COREOS = {**node(("rhel", "9.6")), "os_image": "Red Hat Enterprise Linux CoreOS 9.6.20250715-0"}
PRECOMPILED = {"driver": {"usePrecompiled": True, "version": "580"}}


@pytest.mark.parametrize(("policy", "settings", "bad", "words", "alone"), [
    ({}, {}, node(None), "the operating system of the Node is not known.", False),
    ({"driver": {"version": "595.91.07"}}, {}, node(**VOLTA), "(volta)", False),
    ({}, {}, node(**VOLTA), "need different drivers: 595.91.07 (n1, n2) and 580.173.02 (n3)", True),
    ({"driver": {"version": "560.35.03"}}, {}, node(**VOLTA), "do not support kernelModuleType auto", True),
    (PRECOMPILED, {}, {**node(), "kernel": ""}, "kernelVersion is empty", False),
    ({"driver": {"version": DIGEST}}, {}, node(("rhel", "9.4")), "a digest, which is for one system", True),
    ({}, {}, COREOS, "on Red Hat Enterprise Linux CoreOS", False),
    ({}, {"placement": {"driver": "cluster", "container_toolkit": "cluster"}},
     {**node(None), "os_image": "Talos (v1.13.0)"}, "the component driver is requested, but Talos", False),
])
def test_a_node_without_a_driver_that_suits_it_keeps_nobody_else_waiting(policy: Any, settings: Any, bad: Any,
                                                                         words: str, alone: bool) -> None:
    """alone: whether there is a plan for this Node if it is the only one."""
    sound = [{**node(), "kernel": KERNEL}] * 2
    without = plan(policy, cluster=facts(*sound), strict=False, **settings)
    made = plan(policy, cluster=facts(*sound, bad), strict=False, **settings)
    assert list(made["rejected"]) == ["n3"] and words in made["rejected"]["n3"]["message"]
    for part in ("components", "pools", "common"):
        assert made[part] == without[part]
    assert not any("no NVIDIADriver" in note for note in made["notes"])
    with pytest.raises(PolicyError, match="n3: "):
        plan(policy, cluster=facts(*sound, bad), strict=True, **settings)
    if alone:
        assert plan(policy, cluster=facts(bad), strict=False, **settings)["rejected"] == {}
        return
    with pytest.raises(PolicyError, match="n1: "):
        plan(policy, cluster=facts(bad), strict=False, **settings)


def test_a_node_that_cannot_share_as_asked_keeps_its_driver() -> None:
    bad = {**node(**{"nvidia.com/mig.config": "all-1g.10gb"}), "kernel": KERNEL}
    made = plan(cluster=facts({**node(), "kernel": KERNEL}, bad), strict=False, sharing=SHARED)
    assert "MPS sharing is requested" in made["rejected"]["n2"]["message"]
    assert made["deploy"]["without_driver"] == [] and made["pools"][0]["nodes"] == ["n1", "n2"]
    with pytest.raises(PolicyError, match="n2: "):
        plan(cluster=facts(node(), bad), strict=True, sharing=SHARED)


def test_most_nodes_decide_which_driver_is_the_common_one() -> None:
    made = plan(cluster=facts(node(), node(**VOLTA), node(**VOLTA)), strict=False)
    assert [pool["version"] for pool in made["components"]["driver"]["pools"]] == ["580.173.02"]
    assert list(made["rejected"]) == ["n1"]


NEW, OLD = "595.91.07", "580.173.02"


@pytest.mark.parametrize(("voltas", "others", "running", "expected", "because"), [
    (1, 1, "", NEW, "it is the newest of the most frequent values"),
    (1, 1, OLD, OLD, "it is in use"), (1, 1, NEW, NEW, "it is in use"),
    (2, 3, OLD, NEW, "more than half"), (3, 2, NEW, OLD, "more than half"),
    # of another system, or of no pool
    (1, 1, f"{OLD}-rhel9", NEW, "it is the newest"), (1, 1, "570.1.1", NEW, "it is the newest"),
])
def test_less_than_half_of_the_nodes_change_no_driver(voltas: int, others: int, running: str, expected: str,
                                                      because: str) -> None:
    tag = running if "-" in running else f"{running}-ubuntu22.04"
    cluster = {**facts(*[node(**VOLTA)] * voltas, *[node()] * others),
               "driver_images": {"nvidia-driver-daemonset": {"tag": tag, "kernel_module_type": "auto"}}}
    made = plan(cluster=cluster, strict=False)
    assert [pool["version"] for pool in made["components"]["driver"]["pools"]] == [expected]
    assert {f"{expected} is chosen, because {because}" in one["message"] for one in made["rejected"].values()} == {True}


@pytest.mark.parametrize("running", ["open", "proprietary"])
def test_the_kernel_modules_that_run_stay_on_a_tie(running: str) -> None:
    cluster = {**facts(node(**VOLTA), node(**{"nvidia.com/gpu.family": "hopper"})), "driver_images": {
        "nvidia-driver-daemonset": {"tag": "560.35.03-ubuntu22.04", "kernel_module_type": running}}}
    made = plan({"driver": {"version": "560.35.03"}}, cluster=cluster, strict=False)
    assert [pool["kernel_module_type"] for pool in made["components"]["driver"]["pools"]] == [running]
    assert list(made["rejected"]) == ["n2" if running == "proprietary" else "n1"]


@pytest.mark.parametrize(("running", "expected"), [("", "ubuntu22.04"), ("rhel9", "rhel9")])
def test_a_digest_stays_with_the_system_that_runs(running: str, expected: str) -> None:
    nodes = [node(gpu=False), node(("rhel", "9.4"), gpu=False)]
    cluster = {**facts(*nodes), "driver_daemon_sets": {"nvidia-driver-daemonset": running} if running else {}}
    made = plan({"driver": {"version": DIGEST}}, cluster=cluster)
    assert [pool["os"] for pool in made["components"]["driver"]["pools"]] == [expected]
    assert any(f"{expected} is chosen, because" in note for note in made["notes"])


def test_a_stranger_among_hosts_of_the_inventory_stops_none_of_them() -> None:
    """They have their drivers on the hosts, and no other Node would get one from the cluster."""
    made = plan(cluster=facts(node(), node(None)), placement="hybrid", hosts={"a": "n1"}, strict=False)
    assert list(made["rejected"]) == ["n2"]
    assert made["components"]["driver"]["state"] == "absent" and "device_plugin" in present(made)


def test_while_no_gpu_is_known_most_nodes_decide_which_system_a_digest_suits() -> None:
    nodes = [node(gpu=False), node(gpu=False), node(("debian", "12"), gpu=False)]
    made = plan({"driver": {"version": DIGEST}}, cluster=facts(*nodes))
    assert [pool["os"] for pool in made["components"]["driver"]["pools"]] == ["ubuntu22.04"]
    with pytest.raises(PolicyError, match="debian12, ubuntu22.04"):
        plan({"driver": {"version": DIGEST}}, cluster=facts(), node_os=["ubuntu22.04", "debian12"])


def test_while_no_gpu_is_known_a_kernel_without_a_name_is_left_out() -> None:
    nodes = [{**node(gpu=False), "kernel": kernel} for kernel in (KERNEL, "", "a b-generic")]
    made = plan(PRECOMPILED, cluster=facts(*nodes))
    assert [pool["kernel"] for pool in made["components"]["driver"]["pools"]] == [KERNEL]


def test_pools() -> None:
    """Pools are formed by what one image supports."""
    volta = {"nvidia.com/gpu.family": "volta", "nvidia.com/gpu.product": "Tesla-V100-SXM2-32GB"}
    cluster = facts(node(**volta), node(**volta), node(("rhel", "9.4"), **volta))
    made = plan(cluster=cluster)
    assert [(pool["nodes"], pool["os"], pool["gpu"], pool["driver"]["image"]) for pool in made["pools"]] == [
        (["n1", "n2"], "ubuntu 22.04", "Tesla-V100-SXM2-32GB", "nvcr.io/nvidia/driver:580.173.02-ubuntu22.04"),
        (["n3"], "rhel 9.4", "Tesla-V100-SXM2-32GB", "nvcr.io/nvidia/driver:580.173.02-rhel9")]
    assert [(pool["version"], pool["kernel_module_type"]) for pool in made["components"]["driver"]["pools"]] == [
        ("580.173.02", "auto")] * 2
    made = plan({"driver": {"usePrecompiled": True, "version": "580"}},
                cluster=facts({**node(**volta), "kernel": "5.15.0-84-generic"}))
    pool, = made["pools"]
    assert (pool["kernel"], pool["driver"]["image"]) == (
        "5.15.0-84-generic", "nvcr.io/nvidia/driver:580-5.15.0-84-generic-ubuntu22.04")


@pytest.mark.parametrize(("version", "families", "expected"), [
    ("580.173.02", ["volta", "hopper"], "auto"), ("550.163.01", ["volta", "hopper"], "proprietary"),
    ("550.163.01", ["hopper"], "proprietary"), ("560.35.03", ["hopper"], "open"), ("560.35.03", [], "open"),
    ("560.35.03", ["volta", "hopper"], None),
])
def test_auto_is_told_to_containers_that_understand_it(version: str, families: list[str], expected: str | None) -> None:
    nodes = [node(**{"nvidia.com/gpu.family": family}) for family in families] or [node()]
    if expected is None:
        with pytest.raises(PolicyError, match="do not support kernelModuleType auto"):
            plan({"driver": {"version": version}}, cluster=facts(*nodes))
        return
    made = plan({"driver": {"version": version}}, cluster=facts(*nodes))
    assert made["components"]["driver"]["pools"][0]["kernel_module_type"] == expected


@pytest.mark.parametrize("policy", [
    {"nfd": {"nodefeaturerules": True, "enabled": False}}, {"extraObjects": [{"kind": "ConfigMap"}]},
    {"driver": {"livenessProbe": {"periodSeconds": 3}}},
])
def test_what_is_left_out_is_said(policy: Any) -> None:
    section, = policy
    assert [note for note in plan(policy)["notes"] if note.startswith(f"{section}.") or note.startswith(f"{section} ")]
    assert not [note for note in plan()["notes"] if note.startswith(f"{section}.") or note.startswith(f"{section} ")]


def test_an_nvidia_driver_among_extra_objects_is_not_left_out() -> None:
    driver = {"apiVersion": "nvidia.com/v1alpha1", "kind": "NVIDIADriver", "metadata": {"name": "a"},
              "spec": {"driverType": "gpu", "image": "driver"}}
    assert not [note for note in plan({"extraObjects": [driver]})["notes"] if note.startswith("extraObjects")]
    said, = [note for note in plan({"extraObjects": [driver, {"kind": "Secret"}]})["notes"]
             if note.startswith("extraObjects")]
    assert "objects of the kind Secret are not delivered" in said


def test_the_hook_where_the_toolkit_is_the_host_s_on_some_nodes() -> None:
    """One device plugin serves both kinds of Nodes: its entrypoint uses the hook of the host if the container has none.
    On a prepared system, only the user can give its path."""
    cluster = facts(node(), node())
    mixed = plan(cluster=cluster, placement="hybrid", hosts={"a": "n1"})
    assert not [note for note in mixed["notes"] if "nvidia-cdi-hook" in note]
    talos = {**node(None), "os_image": "Talos (v1.13.0)"}
    said = plan(cluster=facts(talos, node()))["notes"]
    assert [note.partition(":")[0] for note in said if "nvidia-cdi-hook" in note] == ["n1"]
    assert mixed["common"]["cdi_hook"] == "/usr/local/nvidia/toolkit/nvidia-cdi-hook"
    for hosts, placement in (({"a": "n1", "b": "n2"}, "hybrid"), ({}, "cluster")):
        made = plan(cluster=cluster, placement=placement, hosts=hosts)
        assert not [note for note in made["notes"] if "nvidia-cdi-hook" in note]
        assert made["common"]["cdi_hook"] == ("" if hosts else "/usr/local/nvidia/toolkit/nvidia-cdi-hook")


def test_two_hosts_on_a_node() -> None:
    with pytest.raises(PolicyError, match="the hosts a and b have the same Node 'n1'"):
        plan(placement="hybrid", hosts={"a": "n1", "b": "n1"})


@pytest.mark.parametrize(("version", "expected"), [
    ("580", "580.173.02"), ("R580", "580.173.02"), ("580.1.2-ubuntu20.04", "580.1.2"), ("595.91.07", "595.91.07"),
])
def test_version_of_the_driver(version: str, expected: str) -> None:
    pool, = plan({"driver": {"version": version}})["components"]["driver"]["pools"]
    assert pool["images"]["driver"] == f"nvcr.io/nvidia/driver:{expected}-ubuntu22.04"


def test_digest_of_the_driver() -> None:
    pool, = plan({"driver": {"version": DIGEST}})["components"]["driver"]["pools"]
    assert pool["images"]["driver"] == f"nvcr.io/nvidia/driver@{DIGEST}"


def test_service_monitor_where_the_cluster_knows_it() -> None:
    assert plan(cluster=facts(node(), monitors=True))["components"]["dcgm_exporter"]["service_monitor"]
    made = plan(cluster=facts(node()))
    assert not made["components"]["dcgm_exporter"]["service_monitor"]
    assert any("ServiceMonitor" in note for note in made["notes"])
    # older charts have it off
    assert not plan(cluster=facts(node(), monitors=True), release="26.3.3")["components"]["dcgm_exporter"][
        "service_monitor"]


def test_default_mig_layouts() -> None:
    config = default_config()
    assert {"all-disabled", "all-enabled", "all-balanced", "all-1g.10gb.me", "all-7g.80gb"} <= set(config)
    counts = {device: entry["mig-devices"] for entry in config["all-1g.10gb"] for device in entry["device-filter"]}
    assert (counts["0x20B010DE"], counts["0x233010DE"]) == ({"1g.10gb": 4}, {"1g.10gb": 7})
    assert len(config) > 70


@pytest.mark.parametrize(("policy", "placement", "waits"), [
    ({}, "cluster", True), ({}, "hybrid", True), ({"devicePlugin": {"enabled": False}}, "cluster", False),
    ({}, {"container_toolkit": "cluster", "validator": "cluster"}, False),
    ({}, {"container_toolkit": "cluster", "validator": "cluster", "device_plugin": "none"}, False),
    ({}, {"container_toolkit": "cluster", "validator": "cluster", "device_plugin": "cluster"}, True),
])
def test_nobody_waits_for_a_device_plugin_that_nobody_delivers(policy: Any, placement: Any, waits: bool) -> None:
    """GPU Operator 26.7 removes the check if devicePlugin.enabled is false; gpu_placement exists only here."""
    checks = [one["name"] for one in pod(objects(policy, placement=placement), "nvidia-operator-validator")[
        "initContainers"]]
    assert ("plugin-validation" in checks) is waits


def test_a_device_plugin_of_the_system_is_waited_for() -> None:
    bottlerocket = {**node(None), "os_image": "Bottlerocket OS 1.34.0 (aws-k8s-1.33-nvidia)"}
    found = objects(cluster=facts(bottlerocket))
    assert "DaemonSet/nvidia-device-plugin-daemonset" not in found
    assert "plugin-validation" in [one["name"] for one in pod(found, "nvidia-operator-validator")["initContainers"]]


@pytest.mark.parametrize(("policy", "placement", "told"), [
    ({"driver": {"upgradePolicy": {"autoUpgrade": True}}}, "cluster", True),
    ({"driver": {"upgradePolicy": {"autoUpgrade": False}}}, "cluster", False), ({}, "cluster", False),
    ({"driver": {"enabled": False, "upgradePolicy": {"autoUpgrade": True}}}, "cluster", False),
])
def test_who_expects_automatic_upgrades_is_told(policy: Any, placement: str, told: bool) -> None:
    assert any("autoUpgrade" in note for note in plan(policy, placement=placement)["notes"]) is told
