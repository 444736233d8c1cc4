# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which driver DaemonSet selects which Node, according to the rules of the scheduler."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._components.driver_containers import existing_names
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import releases
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.refusals import PolicyError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import formats
from ansible_collections.gpuops.nvidia.tests.unit.simulated.clusters import facts, node, objects, plan

NFD = "feature.node.kubernetes.io"
DRIVER = "nvidia-driver-daemonset"
UBUNTU22, UBUNTU24, RHEL94, RHEL96 = ("ubuntu", "22.04"), ("ubuntu", "24.04"), ("rhel", "9.4"), ("rhel", "9.6")


def labelled(system: tuple[str, str], kernel: str = "5.15.0-84-generic", **labels: str) -> dict[str, Any]:
    """A Node with the labels of NFD and with deploy labels."""
    made = node(system, **labels)
    made["labels"].update({
        "nvidia.com/gpu.deploy.driver": "true", f"{NFD}/kernel-version.full": kernel,
        f"{NFD}/system-os_release.ID": system[0], f"{NFD}/system-os_release.VERSION_ID": system[1],
        f"{NFD}/system-os_release.VERSION_ID.major": system[1].split(".")[0]})
    return {**made, "kernel": kernel}


def driver(name: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": "nvidia.com/v1alpha1", "kind": "NVIDIADriver", "metadata": {"name": name}, "spec": {
        "driverType": "gpu", "image": "driver", "repository": "nvcr.io/nvidia", "default": "nodeSelector" not in spec,
        **spec}}


def policy(**section: Any) -> dict[str, Any]:
    return {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": {"name": "p"},
            "spec": {"driver": section}}


def served(given: Any, cluster: dict[str, Any], **more: Any) -> dict[str, list[str]]:
    """Maps Nodes to the DaemonSets that their labels select, as C(NAME TAG)."""
    found: dict[str, list[str]] = {name: [] for name in cluster["nodes"]}
    for manifest in objects(given, cluster, **more).values():
        if manifest["kind"] != "DaemonSet" or not manifest["metadata"]["name"].startswith("nvidia-") \
                or "driver" not in manifest["metadata"]["name"]:
            continue
        spec = manifest["spec"]["template"]["spec"]
        tag = spec["containers"][0]["image"].rpartition(":")[2]
        for name, one in cluster["nodes"].items():
            if lets_in(spec, one["labels"]):
                found[name].append(f"{manifest['metadata']['name']} {tag}")
    return found


def lets_in(spec: dict[str, Any], labels: dict[str, str]) -> bool:
    """Whether nodeSelector and one of the terms of the affinity match; of a term, all expressions must match
    (Kubernetes, Assigning Pods)."""
    affinity = spec["affinity"].get("nodeAffinity")
    terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"] if affinity else [{}]
    return spec["nodeSelector"].items() <= labels.items() and any(
        all(_holds(one, labels) for one in term.get("matchExpressions", ())) for term in terms)


def _holds(expression: dict[str, Any], labels: dict[str, str]) -> bool:
    have, values = labels.get(expression["key"]), expression.get("values", [])
    number = int(have) if have and have.isdecimal() else None
    return {"In": have in values, "NotIn": have not in values, "Exists": have is not None, "DoesNotExist": have is None,
            "Gt": number is not None and bool(values) and values[0].isdecimal() and number > int(values[0]),
            "Lt": number is not None and bool(values) and values[0].isdecimal() and number < int(values[0])}[
                expression["operator"]]


def test_each_system_gets_its_own_image() -> None:
    cluster = facts(labelled(UBUNTU22), labelled(RHEL94), labelled(RHEL96), labelled(UBUNTU24))
    assert served(None, cluster) == {
        "n1": [f"{DRIVER}-ubuntu22.04 595.91.07-ubuntu22.04"], "n2": [f"{DRIVER}-rhel9 595.91.07-rhel9"],
        "n3": [f"{DRIVER}-rhel9 595.91.07-rhel9"], "n4": [f"{DRIVER}-ubuntu24.04 595.91.07-ubuntu24.04"]}


def test_systems_may_need_different_drivers() -> None:
    """The requirements of the GPUs of one system do not affect the others."""
    volta = {"nvidia.com/gpu.family": "volta"}
    cluster = facts(labelled(UBUNTU22, **volta), labelled(RHEL94, **{"nvidia.com/gpu.family": "hopper"}))
    assert served(None, cluster) == {"n1": [f"{DRIVER}-ubuntu22.04 580.173.02-ubuntu22.04"],
                                     "n2": [f"{DRIVER}-rhel9 595.91.07-rhel9"]}


@pytest.mark.parametrize(("there", "systems", "names"), [
    ({}, [UBUNTU22], [DRIVER]),
    ({DRIVER: "ubuntu22.04"}, [UBUNTU22], [DRIVER]),
    # a second system comes, goes, and the first goes
    ({DRIVER: "ubuntu22.04"}, [UBUNTU22, RHEL94], [f"{DRIVER}-rhel9", DRIVER]),
    ({DRIVER: "ubuntu22.04", f"{DRIVER}-rhel9": "rhel9"}, [UBUNTU22], [DRIVER]),
    ({DRIVER: "ubuntu22.04", f"{DRIVER}-rhel9": "rhel9"}, [RHEL94], [f"{DRIVER}-rhel9"]),
    ({f"{DRIVER}-rhel9": "rhel9"}, [RHEL94], [f"{DRIVER}-rhel9"]),
    # a Node was upgraded from one system to the next
    ({DRIVER: "ubuntu22.04"}, [UBUNTU24], [f"{DRIVER}-ubuntu24.04"]),
])
def test_what_is_there_keeps_its_name(there: dict[str, str], systems: Any, names: list[str]) -> None:
    cluster = {**facts(*(labelled(system) for system in systems)), "driver_daemon_sets": there}
    release = releases.release("26.7.0")
    assert {*names, DRIVER} <= set(existing_names(formats.read(None, release), systems, release))
    made = objects(None, cluster)
    assert [name.partition("/")[2] for name in made if name.startswith(f"DaemonSet/{DRIVER}")] == names
    for name in names:
        marks = made[f"DaemonSet/{name}"]["metadata"]["annotations"]
        assert made[f"DaemonSet/{name}"]["spec"]["template"]["spec"]["containers"][0]["image"].endswith(
            f"-{marks['gpuops.nvidia/system']}")
    assert all(len(found) == 1 for found in served(None, cluster).values())


def test_names_that_follow_from_the_policy_are_not_looked_for() -> None:
    release = releases.release("26.7.0")
    for given in (policy(usePrecompiled=True, version="580"), policy(enabled=False),
                  [driver("a", nodeSelector={"zone": "a"})]):
        assert existing_names(formats.read(given, release), [UBUNTU22], release) == []


def test_a_kernel_each_where_modules_come_built() -> None:
    one, other = "5.15.0-84-generic", "6.8.0-45-generic"
    cluster = facts(labelled(UBUNTU22, one), labelled(UBUNTU24, other), labelled(UBUNTU22, other))
    assert served(policy(usePrecompiled=True, version="580"), cluster) == {
        "n1": [f"{DRIVER}-5.15.0-84-generic-ubuntu22.04 580-5.15.0-84-generic-ubuntu22.04"],
        "n2": [f"{DRIVER}-6.8.0-45-generic-ubuntu24.04 580-6.8.0-45-generic-ubuntu24.04"],
        "n3": [f"{DRIVER}-6.8.0-45-generic-ubuntu22.04 580-6.8.0-45-generic-ubuntu22.04"]}


def test_names_of_kernels() -> None:
    """The name does not contain the architecture, unless two kernels differ only in it; a label has at most 63
    characters."""
    given = policy(usePrecompiled=True, version="580", repository="registry.example/mine")
    long = "5.14.0-570.12.1.el9_6.with_a_rather_long_name_of_someone.x86_64"
    cluster = facts(labelled(RHEL96, "5.14.0-570.12.1.el9_6.x86_64"), labelled(RHEL96, "5.14.0-503.el9_5.aarch64"),
                    labelled(RHEL96, "5.14.0-503.el9_5.x86_64"), labelled(RHEL96, long))
    names = [pool["name"] for pool in plan(given, cluster)["components"]["driver"]["pools"]]
    assert names == [f"{DRIVER}-5.14.0-503.el9.5.aarch64-rhel9", f"{DRIVER}-5.14.0-503.el9.5.x86.64-rhel9",
                     f"{DRIVER}-5.14.0-570.12.1.el9.6.with.a.rather.long.name.of.someone-rhel9",
                     f"{DRIVER}-5.14.0-570.12.1.el9.6-rhel9"]
    assert {pool["app"] for pool in plan(given, cluster)["components"]["driver"]["pools"]} == {DRIVER}
    assert all(len(found) == 1 for found in served(given, cluster).values())


SOUND = "5.15.0-84-generic"
BUILT = policy(usePrecompiled=True, version="580", repository="registry.example/mine")


@pytest.mark.parametrize("kernel", ["", "a b-generic", "x" * 64, "6.8.0 $(x)-generic", "-6.8.0-generic"])
def test_a_kernel_that_is_no_value_of_a_label_is_refused(kernel: str) -> None:
    alone, made = (plan(BUILT, facts(*nodes), strict=False) for nodes in (
        [labelled(UBUNTU22)], [labelled(UBUNTU22), labelled(UBUNTU22, kernel)]))
    assert list(made["rejected"]) == ["n2"]
    assert (made["components"], made["pools"]) == (alone["components"], alone["pools"])


def test_a_kernel_is_written_as_nfd_writes_it() -> None:
    """Neither a label nor the tag of an image can contain a plus sign."""
    pool, = plan(BUILT, facts(labelled(("debian", "13"), "6.12.43+deb13-amd64")))["components"]["driver"]["pools"]
    assert pool["node_selector"] == {f"{NFD}/kernel-version.full": "6.12.43_deb13-amd64"}
    assert pool["images"]["driver"].endswith("driver:580-6.12.43_deb13-amd64-debian13")


@pytest.mark.parametrize("rival", ["5.15.0-84-GENERIC", "5.15.0_84-generic", "5.15.0-84-genericx86_64",
                                   "5.15.0..84-generic", "5.15.0-84-generic_x86_64"])
def test_a_kernel_that_reads_the_same_renames_nothing_that_is_there(rival: str) -> None:
    """Nor when the kernel disappears again; two kernels never have the same name."""
    mine = f"{DRIVER}-{SOUND}-ubuntu22.04"
    there = {"driver_kernels": {mine: SOUND}}

    def names(*kernels: str, **known: Any) -> dict[str, str]:
        cluster = {**facts(*(labelled(UBUNTU22, kernel) for kernel in kernels)), **known}
        return {pool["kernel"]: pool["name"] for pool in plan(BUILT, cluster)["components"]["driver"]["pools"]}

    assert names(SOUND) == {SOUND: mine}
    both = names(SOUND, rival, **there)
    assert both[SOUND] == mine != both[rival]
    fresh = names(SOUND, rival)
    assert len({*fresh.values()}) == 2
    assert names(SOUND, driver_kernels={name: kernel for kernel, name in fresh.items()}) == {SOUND: fresh[SOUND]}
    for name in (*both.values(), *fresh.values()):
        assert all(re.fullmatch("[a-z0-9]([a-z0-9-]*[a-z0-9])?", part) for part in name.split(".")), name


def test_a_kernel_that_reads_the_same_renames_nothing_of_an_nvidia_driver() -> None:
    given = driver("most", usePrecompiled=True, version="580", repository="registry.example/mine")
    there = {"nvidia_drivers": {"most": {"uid": "1", "there": {f"ubuntu22.04-{SOUND}": "x"}}},
             "driver_kernels": {"x": SOUND}}
    cluster = {**facts(labelled(UBUNTU22), labelled(UBUNTU22, SOUND.upper())), **there}
    names = {pool["kernel"]: pool["name"] for pool in plan(given, cluster)["components"]["driver"]["pools"]}
    assert names[SOUND] == "x" != names[SOUND.upper()]


def test_a_system_and_a_kernel_have_no_name_of_another() -> None:
    cluster = {**facts(labelled(RHEL94, "5.15-84"), labelled(("84-rhel", "9"), "5.15")),
               "driver_kernels": {f"{DRIVER}-5.15-84-rhel9": "5.15-84"}}
    pools = plan(BUILT, cluster, strict=False)["components"]["driver"]["pools"]
    names = {pool["kernel"]: pool["name"] for pool in pools}
    assert names["5.15-84"] == f"{DRIVER}-5.15-84-rhel9" and len({*names.values()}) == len(pools)


def test_kernels_are_needed_where_modules_come_built() -> None:
    with pytest.raises(PolicyError, match="driver.usePrecompiled needs an image for each kernel"):
        plan(policy(usePrecompiled=True), facts(), node_os=["ubuntu24.04"])


def test_nvidia_drivers() -> None:
    """The default NVIDIADriver gets the Nodes that no other selects, including Nodes that join later."""
    given = [driver("old", version="550.163.01", nodeSelector={"zone": "a", "age": "old"}),
             driver("next", version="610.57.04", nodeSelector={"canary": "yes"}), driver("rest", version="595.91.07")]
    cluster = facts(labelled(UBUNTU22, zone="a", age="old"), labelled(UBUNTU22, zone="a"), labelled(RHEL94, age="old"),
                    labelled(UBUNTU24, canary="yes"), labelled(RHEL94, zone="a", age="new", canary="no"))
    old, rest = "nvidia-gpu-driver-old-ubuntu22.04", "nvidia-gpu-driver-rest"
    assert served(given, cluster) == {
        "n1": [f"{old} 550.163.01-ubuntu22.04"], "n2": [f"{rest}-ubuntu22.04 595.91.07-ubuntu22.04"],
        "n3": [f"{rest}-rhel9 595.91.07-rhel9"], "n5": [f"{rest}-rhel9 595.91.07-rhel9"],
        "n4": ["nvidia-gpu-driver-next-ubuntu24.04 610.57.04-ubuntu24.04"]}
    pod = objects(given, cluster)[f"DaemonSet/{old}"]["spec"]["template"]
    assert pod["metadata"]["labels"]["nvidia.com/node.os-version"] == "ubuntu22.04"
    assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"} in pod["spec"]["containers"][0]["env"]


@pytest.mark.parametrize(("known", "name"), [
    ({}, "nvidia-gpu-driver-most-ubuntu22.04"),
    ({"uid": "671ab3cd-a8d9-4301-9379-6af4625544c0", "there": {}}, "nvidia-gpu-driver-ubuntu22.04-6f8ffd8c98"),
    ({"uid": "671ab3cd-a8d9-4301-9379-6af4625544c0", "there": {"ubuntu22.04": "x", "rhel9": "y"}}, "x"),
    ({"uid": "", "there": {"ubuntu22.04": "x"}}, "x"),
    ({"uid": "", "there": {"ubuntu22.04-5.15": "x"}}, "nvidia-gpu-driver-most-ubuntu22.04")])
def test_nvidia_drivers_in_the_cluster_keep_their_daemon_sets(known: Any, name: str) -> None:
    """An existing name is kept; otherwise it is the operator's name for a resource with this uid (seen with 26.7.0),
    otherwise our own."""
    cluster = {**facts(node()), "nvidia_drivers": {"most": known} if known else {}}
    policy = {"apiVersion": "nvidia.com/v1alpha1", "kind": "NVIDIADriver", "metadata": {"name": "most"}, "spec": {
        "driverType": "gpu", "image": "driver", "version": "595.91.07", "default": True}}
    found = objects(policy, cluster)
    assert [key for key in found if key.startswith("DaemonSet/nvidia-gpu-driver") or key == f"DaemonSet/{name}"] == [
        f"DaemonSet/{name}"]
    made = found[f"DaemonSet/{name}"]
    assert made["metadata"]["annotations"]["gpuops.nvidia/driver"] == "most"
    assert made["spec"]["selector"]["matchLabels"] == {"app": name}


def test_nvidia_drivers_beside_a_cluster_policy() -> None:
    """NVIDIADrivers count if the policy enables them; the policy defines what all DaemonSets share."""
    shared = {"labels": {"team": "ml"}, "tolerations": [{"key": "team", "operator": "Exists"}]}
    beside = policy(useNvidiaDriverCRD=True)
    beside["spec"]["daemonsets"] = shared
    made = objects([beside, driver("one", labels={"mine": "yes"}, tolerations=[{"key": "own", "operator": "Exists"}])],
                   facts(labelled(UBUNTU22)))
    assert f"DaemonSet/{DRIVER}" not in made
    pod = made["DaemonSet/nvidia-gpu-driver-one-ubuntu22.04"]["spec"]["template"]
    assert {"team": "ml", "mine": "yes"}.items() <= pod["metadata"]["labels"].items()
    assert [one["key"] for one in pod["spec"]["tolerations"]] == ["team", "own"]
    toolkit = made["DaemonSet/nvidia-container-toolkit-daemonset"]["spec"]["template"]
    assert "mine" not in toolkit["metadata"]["labels"]
    assert toolkit["spec"]["tolerations"] == shared["tolerations"]


def affinity(*terms: list[tuple[str, ...]]) -> dict[str, Any]:
    """A required node affinity of terms of (key, operator, values...)."""
    return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": key, "operator": operator, **({"values": values} if values else {})}
                              for key, operator, *values in term]} for term in terms]}}


def test_an_affinity_decides_which_nodes_an_nvidia_driver_gets() -> None:
    given = [driver("a", version="580.173.02", default=False, nodeAffinity=affinity([("pool", "In", "volta")])),
             driver("b", version="595.91.07")]
    cluster = facts(labelled(UBUNTU22, pool="volta"), labelled(UBUNTU22))
    assert served(given, cluster) == {"n1": ["nvidia-gpu-driver-a-ubuntu22.04 580.173.02-ubuntu22.04"],
                                      "n2": ["nvidia-gpu-driver-b-ubuntu22.04 595.91.07-ubuntu22.04"]}
    made = plan(given, cluster)
    assert [one["nodes"] for one in made["pools"]] == [["n1"], ["n2"]]
    assert not any("NVIDIADriver" in one for one in made["notes"])


@pytest.mark.parametrize("terms", [
    [[("pool", "In", "volta")]], [[("pool", "NotIn", "volta", "hopper")]], [[("pool", "Exists")]],
    [[("pool", "DoesNotExist")]], [[("slots", "Gt", "4")]], [[("slots", "Lt", "4")]],
    [[("pool", "In", "volta"), ("slots", "Gt", "4")]], [[("pool", "In", "volta")], [("slots", "Lt", "4")]],
    [[("pool", "In", "volta"), ("slots", "Lt", "5")], [("pool", "DoesNotExist"), ("slots", "Exists")]]])
@pytest.mark.parametrize("selector", [{}, {"zone": "a"}])
def test_each_node_gets_one_driver_with_any_affinity(terms: Any, selector: dict[str, str]) -> None:
    """The DaemonSet of the default NVIDIADriver leaves out exactly the Nodes that the other one selects, as planned."""
    given = [driver("a", version="580.173.02", default=False, nodeAffinity=affinity(*terms),
                    **({"nodeSelector": selector} if selector else {})), driver("b", version="595.91.07")]
    labels = [{**pool, **slots, **zone} for pool in ({}, {"pool": "volta"}, {"pool": "other"})
              for slots in ({}, {"slots": "4"}, {"slots": "5"}, {"slots": "3"}) for zone in ({}, {"zone": "a"})]
    cluster = facts(*(labelled(UBUNTU22, **one) for one in labels))
    want = {name: f"nvidia-gpu-driver-{'a' if a else 'b'}-ubuntu22.04" for name, a in (
        (name, selector.items() <= one["labels"].items() and any(all(
            _holds({"key": key, "operator": operator, "values": values}, one["labels"])
            for key, operator, *values in term) for term in terms)) for name, one in cluster["nodes"].items())}
    assert {name: [one.split()[0] for one in found] for name, found in served(given, cluster).items()} == {
        name: [one] for name, one in want.items()}
    assert {name: pool["driver"]["version"] for pool in plan(given, cluster)["pools"] for name in pool["nodes"]} == {
        name: "580.173.02" if "driver-a-" in one else "595.91.07" for name, one in want.items()}


def test_an_affinity_can_name_a_node() -> None:
    named = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]}]}}
    made = objects([driver("a", version="580.173.02", default=False, nodeAffinity=named), driver("b")],
                   facts(labelled(UBUNTU22), labelled(UBUNTU22)))
    spec = made["DaemonSet/nvidia-gpu-driver-b-ubuntu22.04"]["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    assert spec["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"] == [
        {"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n2"]}]}]
    assert "DaemonSet/nvidia-gpu-driver-a-ubuntu22.04" in made


def test_nodes_that_no_affinity_selects_get_no_driver() -> None:
    """The affinity of the default NVIDIADriver limits the Nodes that no other one selects."""
    given = [driver("b", nodeAffinity=affinity([("pool", "Exists")]))]
    made = plan(given, facts(labelled(UBUNTU22, pool="x"), labelled(UBUNTU22)))
    assert [one["nodes"] for one in made["pools"]] == [["n1"]]
    assert any(one.startswith("n2: no NVIDIADriver selects it") for one in made["notes"])


def test_affinities_that_select_one_node() -> None:
    given = [driver("a", default=False, nodeAffinity=affinity([("zone", "Exists")])),
             driver("b", default=False, nodeAffinity=affinity([("rack", "Exists")]))]
    assert plan(given, facts(labelled(UBUNTU22, zone="a"), labelled(UBUNTU22, rack="1")))["rejected"] == {}
    with pytest.raises(PolicyError, match="n1: NVIDIADrivers a and b select the same Nodes"):
        plan(given, facts(labelled(UBUNTU22, zone="a", rack="1")))


def test_nvidia_drivers_that_want_one_node() -> None:
    given = [driver("a", nodeSelector={"zone": "a"}), driver("b", nodeSelector={"rack": "1"})]
    with pytest.raises(PolicyError, match="n1: NVIDIADrivers a and b select the same Nodes"):
        plan(given, facts(labelled(UBUNTU22, zone="a", rack="1"), labelled(UBUNTU22, zone="a")))


def test_who_gets_no_driver_is_said() -> None:
    given = [driver("a", nodeSelector={"zone": "a"}), driver("b", nodeSelector={"zone": "b"})]
    made = plan(given, facts(labelled(UBUNTU22, zone="a"), labelled(UBUNTU22, zone="c")))
    assert "n2: no NVIDIADriver selects it; no driver is delivered there." in made["notes"]
    assert "NVIDIADriver b selects no Node with a GPU; nothing is delivered for it." in made["notes"]
    assert [pool["name"] for pool in made["components"]["driver"]["pools"]] == ["nvidia-gpu-driver-a-ubuntu22.04"]


@pytest.mark.parametrize("given", [[driver("a", nodeSelector={"zone": "a"})], [
    driver("a", nodeSelector={"zone": "a"}, usePrecompiled=True, version="580"),
    driver("b", nodeSelector={"zone": "b"}, driverType="vgpu-host-manager")]])
def test_nvidia_drivers_that_select_no_node_with_a_gpu_get_no_daemon_set(given: Any) -> None:
    """The result is the same as if other NVIDIADrivers selected Nodes; Nodes without a GPU do not replace them."""
    made = plan(given, facts(labelled(UBUNTU22), node(RHEL94, gpu=False, zone="a")))
    part = made["components"]["driver"]
    assert (part["state"], part["because"]) == ("absent", ["no NVIDIADriver selects a Node with a GPU"])
    assert "n1: no NVIDIADriver selects it; no driver is delivered there." in made["notes"]
    assert "NVIDIADriver a selects no Node with a GPU; nothing is delivered for it." in made["notes"]
    # While none is known, what comes may be any.
    waiting = plan(given[:1], facts(labelled(UBUNTU22), **{"n1": {**labelled(UBUNTU22), "gpu": False}}))
    assert waiting["components"]["driver"]["state"] == "present" and waiting["components"]["driver"]["pools"]


# What makes an NVIDIADriver one that cannot be followed, and what is said of it.
FAULTY: list[tuple[dict[str, Any], str]] = [
    ({"driverType": "vgpu-host-manager"}, "driver.driverType: 'vgpu-host-manager' is not supported"),
    ({"version": "123"}, "has no driver of branch 123"),
    ({"repoConfig": {"name": "repos"}}, "ConfigMap 'repos' is not in namespace gpu-operator"),
]


def test_a_guest_driver_needs_an_image_of_the_user() -> None:
    guests = driver("b", nodeSelector={"zone": "b"}, driverType="vgpu")
    there = facts(labelled(UBUNTU22, zone="a"), labelled(UBUNTU22, zone="b"))
    made = plan([driver("a", nodeSelector={"zone": "a"}), guests], there, strict=False)
    assert "the guest driver is only in the NVIDIA Licensing Portal" in made["rejected"]["n2"]["message"]
    assert "driver.repository with your own image of the guest driver" in made["rejected"]["n2"]["hint"]
    guests["spec"]["repository"] = "registry.example/mine"
    assert not plan([driver("a", nodeSelector={"zone": "a"}), guests], there)["rejected"]


@pytest.mark.parametrize(("spec", "words"), FAULTY)
def test_an_nvidia_driver_that_cannot_be_followed_keeps_no_other_from_its_nodes(spec: Any, words: str) -> None:
    """The objects that it has delivered so far do not change, and its Nodes keep their labels; no other driver is
    delivered there."""
    good, bad = driver("a", nodeSelector={"zone": "a"}), driver("b", nodeSelector={"zone": "b"}, **spec)
    there = {"uid": "", "there": {"ubuntu22.04": "nvidia-gpu-driver-b-ubuntu22.04"}}
    cluster = {**facts(labelled(UBUNTU22, zone="a"), labelled(UBUNTU22, zone="b"), labelled(UBUNTU22)),
               "config_maps": {"repos": None}, "nvidia_drivers": {"b": there}}
    given = [good, bad, driver("rest")]
    made = plan(given, cluster, strict=False)
    assert list(made["rejected"]) == ["n2"]
    assert re.search(f"NVIDIADriver b.*{re.escape(words)}", made["rejected"]["n2"]["message"])
    assert made["rejected"]["n2"]["message"].count("NVIDIADriver b") == 1
    assert served(given, cluster, strict=False) == {
        "n1": ["nvidia-gpu-driver-a-ubuntu22.04 595.91.07-ubuntu22.04"], "n2": [],
        "n3": ["nvidia-gpu-driver-rest-ubuntu22.04 595.91.07-ubuntu22.04"]}
    assert [pool["nodes"] for pool in made["pools"]] == [["n1"], ["n3"]]
    assert made["components"]["driver"]["kept"] == ["nvidia-gpu-driver-b-ubuntu22.04"]
    assert made["deploy"]["without_driver"] == []
    assert "DaemonSet nvidia-gpu-driver-b-ubuntu22.04: not changed until its NVIDIADriver can be resolved." in \
        made["notes"]
    with pytest.raises(PolicyError, match="n2: NVIDIADriver b"):
        plan(given, cluster, strict=True)
    with pytest.raises(PolicyError, match="n1: NVIDIADriver b"):  # no Node is left
        plan(given, {**cluster, "nodes": {"n1": cluster["nodes"]["n2"]}}, strict=False)


def test_what_stays_of_an_nvidia_driver_needs_no_other_one() -> None:
    """The other Nodes have their driver on the host."""
    there = {"uid": "", "there": {"ubuntu22.04": "x"}}
    cluster = {**facts(labelled(UBUNTU22), labelled(UBUNTU22, zone="b")), "nvidia_drivers": {"b": there}}
    made = plan([driver("b", nodeSelector={"zone": "b"}, version="123"), driver("rest")], cluster, strict=False,
                placement="hybrid", hosts={"host": "n1"})["components"]["driver"]
    assert (made["state"], made["pools"], made["kept"]) == ("present", [], ["x"])


def test_an_nvidia_driver_without_a_node_is_no_fault() -> None:
    made = plan([driver("a", nodeSelector={"zone": "a"}),
                 driver("b", nodeSelector={"zone": "b"}, driverType="vgpu-host-manager")],
                facts(labelled(UBUNTU22, zone="a")))
    assert made["rejected"] == {}
    assert "NVIDIADriver b selects no Node with a GPU; nothing is delivered for it." in made["notes"]


# -- ConfigMaps and Secrets

def with_files(system: tuple[str, str], runtime: str = "containerd", **section: Any) -> dict[str, str]:
    """Maps mount points to the volumes that a policy adds to the driver container."""
    cluster = {**facts({**labelled(system), "runtime": runtime}),
               "config_maps": {"repos": {"my.file": ""}, "ca": {"ca.crt": ""}}}
    pod = next(one["spec"]["template"]["spec"] for name, one in objects(policy(**section), cluster).items()
               if name.startswith(f"DaemonSet/{DRIVER}"))
    mine = {one["mountPath"]: one["name"] for one in pod["containers"][0]["volumeMounts"] if one["name"].startswith((
        "repos", "ca", "subscription-", "lib-modules"))}
    assert set(mine.values()) <= {volume["name"] for volume in pod["volumes"]}
    return mine


@pytest.mark.parametrize(("system", "repositories", "certificates"), [
    (("ubuntu", "24.04"), "/etc/apt/sources.list.d", "/usr/local/share/ca-certificates"),
    (("debian", "12"), "/etc/apt/sources.list.d", "/usr/local/share/ca-certificates"),
    (("rhel", "9.6"), "/etc/yum.repos.d", "/etc/pki/ca-trust/extracted/pem"),
    (("rocky", "9.7"), "/etc/yum.repos.d", "/etc/pki/ca-trust/extracted/pem"),
    (("ol", "8.10"), "/etc/yum.repos.d", "/etc/pki/ca-trust/extracted/pem"),
    (("sles", "15.6"), "/etc/zypp/repos.d", "/etc/pki/trust/anchors"),
    (("sl-micro", "6.1"), "/etc/zypp/repos.d", "/etc/pki/trust/anchors"),
])
def test_folders_of_each_system(system: tuple[str, str], repositories: str, certificates: str) -> None:
    found = with_files(system, repoConfig={"configMapName": "repos"}, certConfig={"name": "ca"},
                       repository="registry.example/mine")
    assert {path: name for path, name in found.items() if name in ("repos", "ca")} == {
        f"{repositories}/my.file": "repos", f"{certificates}/ca.crt": "ca"}


def test_a_volume_has_the_name_of_its_config_map_where_it_can_have_it() -> None:
    """The operator uses this name, and fails for names that contain a dot or occur twice."""
    cluster = {**facts(labelled(("ubuntu", "24.04"))), "config_maps": {"a.b": {"one.list": ""}, "c": {"two": ""}}}
    for names, expected in ((("a.b", "c"), ["repo-config", "c"]), (("c", "c"), ["c", "cert-config"])):
        given = policy(repoConfig={"configMapName": names[0]}, certConfig={"name": names[1]})
        files = plan(given, cluster)["components"]["driver"]["pools"][0]["files"]
        assert [one["volume"]["name"] for one in files] == expected


RHEL = {"/run/secrets/etc-pki-entitlement", "/run/secrets/redhat.repo", "/run/secrets/rhsm"}
SUSE = {"/etc/SUSEConnect", "/etc/zypp/credentials.d"}


@pytest.mark.parametrize(("system", "runtime", "section", "expected"), [
    (RHEL94, "containerd", {}, RHEL), (RHEL94, "crio", {}, set()),
    (RHEL94, "containerd", {"repoConfig": {"configMapName": "repos"}}, {"/etc/yum.repos.d/my.file"}),
    (("rocky", "9.7"), "containerd", {}, set()), (UBUNTU22, "containerd", {}, set()),
    (("sles", "15.6"), "containerd", {}, SUSE), (("sl-micro", "6.1"), "crio", {}, SUSE),
    (("sles", "15.6"), "containerd", {"repoConfig": {"configMapName": "repos"}}, {*SUSE, "/etc/zypp/repos.d/my.file"}),
    # modules that come built need no packages; SUSE's look at the host's
    (("sles", "15.6"), "containerd", {"usePrecompiled": True, "version": "580", "certConfig": {"name": "ca"}},
     {"/run/host/lib/modules"}),
])
def test_subscriptions(system: tuple[str, str], runtime: str, section: Any, expected: set[str]) -> None:
    assert set(with_files(system, runtime, repository="registry.example/mine", **section)) == expected


SECTION = {"repoConfig": {"configMapName": "repos"}, "secretEnv": "pro", "licensingConfig": {
    "secretName": "licence", "nlsEnabled": True}, "virtualTopology": {"config": "topology"}}
THERE: dict[str, Any] = {"config_maps": {"repos": {"a": ""}, "topology": {"nvidia-topologyd.conf": ""}},
                         "secrets": {"pro": True, "licence": True}}


@pytest.mark.parametrize(("config_maps", "secrets", "reason", "remedy"), [
    ({"repos": None}, {}, "driver.repoConfig.configMapName: ConfigMap 'repos' is not in namespace elsewhere",
     "kubectl -n elsewhere create configmap repos --from-file=FILE"),
    ({"repos": {}}, {}, "driver.repoConfig.configMapName: ConfigMap 'repos' in namespace elsewhere is empty",
     "Add a key"),
    ({"topology": {"other": "text"}}, {}, "driver.virtualTopology.config: ConfigMap 'topology' in namespace elsewhere "
     "has no key nvidia-topologyd.conf", "Add nvidia-topologyd.conf to it"),
    ({}, {"pro": False}, "driver.secretEnv: Secret 'pro' is not in namespace elsewhere",
     "create secret generic pro --from-literal=NAME=VALUE"),
    ({}, {"licence": False}, "driver.licensingConfig.secretName: Secret 'licence' is not in namespace elsewhere",
     "--from-file=gridd.conf --from-file=client_configuration_token.tok"),
])
def test_what_a_policy_names_and_is_not_there(config_maps: Any, secrets: Any, reason: str, remedy: str) -> None:
    """Everything missing is reported at once before a change; otherwise pods would wait without end."""
    cluster = {**facts(labelled(UBUNTU22)), "config_maps": {**THERE["config_maps"], **config_maps},
               "secrets": {**THERE["secrets"], **secrets}}
    with pytest.raises(PolicyError) as caught:
        plan(policy(**SECTION), cluster, namespace="elsewhere")
    refusal, = caught.value.details["refusals"]
    assert reason in refusal["reason"]
    assert remedy in refusal["remedy"]
    # a driver that is not delivered needs none of it
    assert plan({"driver": {**SECTION, "enabled": False}}, cluster)["components"]["driver"]["state"] == "absent"


def test_everything_that_is_not_there_is_named_at_once() -> None:
    cluster = {**facts(labelled(UBUNTU22)), "config_maps": dict.fromkeys(THERE["config_maps"]),
               "secrets": dict.fromkeys(THERE["secrets"], False)}
    given = [driver("a", nodeSelector={"zone": "a"}, repoConfig={"name": "repos"}), driver("b", secretEnv="pro")]
    with pytest.raises(PolicyError) as caught:
        plan(policy(**SECTION), cluster)
    assert len(caught.value.details["refusals"]) == 4
    with pytest.raises(PolicyError, match="NVIDIADriver b, driver.secretEnv: Secret 'pro'") as caught:
        plan(given, cluster)
    assert len(caught.value.details["refusals"]) == 1  # a selects no Node


def test_keys_that_nobody_knows() -> None:
    """A Secret that the user may not read is accepted by its name; the keys of a ConfigMap become files."""
    cluster = facts(labelled(UBUNTU22))
    assert plan(policy(secretEnv="pro"), cluster)["components"]["driver"]["pools"][0]["secret_env"] == "pro"
    with pytest.raises(PolicyError, match="driver.certConfig.name: the keys of ConfigMap 'ca' are not known"):
        plan(policy(certConfig={"name": "ca"}), cluster)
    carried = [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "ca"}, "data": {"ca.crt": "x"}}]
    made = plan({"driver": {"certConfig": {"name": "ca"}}, "extraObjects": carried}, cluster)
    assert made["components"]["driver"]["pools"][0]["files"][0]["mounts"] == {
        "/usr/local/share/ca-certificates/ca.crt": "ca.crt"}


def test_what_has_no_effect_is_said() -> None:
    cluster = {**facts(labelled(UBUNTU22)), "secrets": {"pro": True},
               "config_maps": {"ca": {"ca.crt": ""}, "modules": {"nvidia": "", "nvidia-uvm.conf": ""}}}

    def notes(*given: Any) -> list[str]:
        return [note for note in plan(list(given), cluster)["notes"] if not note.startswith("dcgm")]

    built = {"usePrecompiled": True, "version": "580", "certConfig": {"name": "ca"}, "secretEnv": "pro"}
    left_out = "is ignored: with precompiled modules, no packages are downloaded."
    assert {f"driver.certConfig.name {left_out}", f"driver.secretEnv {left_out}"} <= set(notes(policy(**built)))
    # an NVIDIADriver's container gets the Secret all the same
    mine = notes(driver("mine", **built))
    assert f"NVIDIADriver mine, driver.certConfig.name {left_out}" in mine
    assert not any("secretEnv" in note for note in mine)
    assert notes(policy(kernelModuleConfig={"name": "modules"})) == [
        "driver.kernelModuleConfig.name: no kernel module reads nvidia of ConfigMap 'modules'; allowed: nvidia.conf, "
        "nvidia-uvm.conf, nvidia-modeset.conf, nvidia-peermem.conf."]
    assert notes(policy(certConfig={"name": "ca"}, secretEnv="pro")) == []
    assert "NVIDIADriver mine, driver.livenessProbe is ignored: the driver container has " \
        "only a startup probe." in notes(
        driver("mine", nodeSelector={"nvidia.com/gpu.deploy.driver": "true"}, livenessProbe={"periodSeconds": 3}))


def test_of_the_pod_template_the_level_changes_one_variable() -> None:
    """docs/cluster.md tells users that all driver pods are outdated if gpu_disruption changes to drain, or back."""
    made = {level: json.dumps(objects(disruption=level)[f"DaemonSet/{DRIVER}"]["spec"]["template"])
            for level in ("never", "idle", "drain", "reboot")}
    off, on = (f'"ENABLE_GPU_POD_EVICTION", "value": "{value}"' for value in ("false", "true"))
    assert made["never"] == made["idle"] == made["drain"].replace(on, off) != made["drain"] == made["reboot"]
