# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A change that ends pods of GPU clients waits for the level that allows it: the run itself, on an API server."""

from __future__ import annotations

import calendar
import copy
from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import LEVELS
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube import objects
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.errors import ClusterError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import deploy_labels, label_nodes
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.node_lock import Holder
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands import deliver, node_by_node
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands.render import render
from ansible_collections.gpuops.nvidia.tests.unit.components.test_driver_containers import driver
from ansible_collections.gpuops.nvidia.tests.unit.components.test_driver_containers import policy as cluster_policy
from ansible_collections.gpuops.nvidia.tests.unit.operands.test_removal import kinds_asked
from ansible_collections.gpuops.nvidia.tests.unit.simulated.clusters import facts, node, plan
from ansible_collections.gpuops.nvidia.tests.unit.simulated.nodes import patched
from ansible_collections.gpuops.nvidia.tests.unit.simulated.server import ApiServer

DRIVER, MPS = "nvidia-driver-daemonset", objects.MPS_DAEMON
SPACE = "/apis/apps/v1/namespaces/gpu-operator/daemonsets"
UBUNTU = {"feature.node.kubernetes.io/system-os_release.ID": "ubuntu",
          "feature.node.kubernetes.io/system-os_release.VERSION_ID": "22.04"}
SHARED = {"config": {"name": "shared", "create": True, "default": "a", "data": {
    "a": "version: v1\nsharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}\n"}}}
KERNEL = {**node(), "kernel": "5.15.0-84-generic"}
CLUSTER = facts(KERNEL, nfd="foreign")
PARTS = (objects.SHARED, "driver", "device_plugin", "dcgm_exporter")
LABEL = "nvidia.com/gpu.deploy.driver"
GPU = {**UBUNTU, "feature.node.kubernetes.io/pci-10de.present": "true"}
NOW = calendar.timegm((2026, 11, 22, 7, 0, 0))
POLICY = {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "name": "cluster-policy", "uid": "p"}


def rendered(made: dict[str, Any]) -> list[objects.Wanted]:
    return objects.wanted({name: render(name, made) for name in PARTS})


def run(client: Client, made: dict[str, Any], check: bool = False, kept: tuple[str, ...] = ()) -> dict[str, Any]:
    return deliver.present(client, rendered(made), None, check, level=made["disruption"], kept=kept)


def adopted(client: Client, made: dict[str, Any], check: bool = False, kept: tuple[str, ...] = ()) -> dict[str, Any]:
    return deliver.adopted(client, rendered(made), PARTS, check, made["disruption"], kept)


def started(api: ApiServer, client: Client, policy: Any = None, cluster: dict[str, Any] | None = None,
            pods: int = 2) -> dict[str, Any]:
    """A cluster whose DaemonSets have pods on its two Nodes."""
    assert not run(client, plan(policy, cluster or CLUSTER))["pending"]
    for path, one in api.objects.items():
        if path.startswith(SPACE):
            one["status"] = {"currentNumberScheduled": pods}
    api.put(*({"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"n{number}", "labels": {
        **UBUNTU, LABEL: "true"}}} for number in (1, 2)))
    return {path: one for path, one in api.objects.items() if "driver" in path}


CHANGES: dict[str, dict[str, Any]] = {
    "another kind of DaemonSet": {"policy": {"driver": {"usePrecompiled": True, "version": "580"}}},
    "another namespace": {"namespace": "elsewhere"},
    "no driver": {"policy": {"driver": {"enabled": False}}},
    "NVIDIADrivers": {"policy": [cluster_policy(useNvidiaDriverCRD=True), driver("a")]},
}


@pytest.mark.parametrize(("change", "check"), [*((change, False) for change in CHANGES), ("no driver", True)])
@pytest.mark.parametrize("deliver_by", [run, adopted])
def test_driver_pods_do_not_go_all_at_once(api: ApiServer, client: Client, change: str, check: bool,
                                           deliver_by: Any) -> None:
    """With site.yml, and with another run of adopt.yml in a cluster that is ours."""
    before = started(api, client)
    operator_at_rest(api)
    for level in ("never", "idle"):
        result = deliver_by(client, plan(cluster=CLUSTER, disruption=level, **CHANGES[change]), check)
        held = [one["id"] for one in result["pending"]]
        assert f"delete: DaemonSet gpu-operator/{DRIVER}" in held
        assert all(f"gpu_disruption is '{level}', this needs 'drain'" in one["pending_reason"]
                   for one in result["pending"])
        assert any("Set gpu_disruption: drain" in one for one in result["warnings"])
        assert not any("driver" in one["id"] for one in result["plan"])
        assert {path: one for path, one in api.objects.items() if "driver" in path} == before
    result = deliver_by(client, plan(cluster=CLUSTER, disruption="drain", **CHANGES[change]), check)
    assert result["pending"] == []
    assert f"delete: DaemonSet gpu-operator/{DRIVER}" in [one["id"] for one in result["plan"]]
    assert (f"{SPACE}/{DRIVER}" in api.objects) == check


@pytest.mark.parametrize("deliver_by", [run, adopted])
def test_what_the_plan_keeps_stays_at_drain(api: ApiServer, client: Client, deliver_by: Any) -> None:
    """With site.yml, and with another run of adopt.yml: the DaemonSet of an NVIDIADriver that cannot be resolved."""
    started(api, client)
    operator_at_rest(api)
    made = plan(cluster=CLUSTER, disruption="drain", **CHANGES["no driver"])
    for kept in ((DRIVER,), ()):
        deliver_by(client, made, kept=kept)
        assert (f"{SPACE}/{DRIVER}" in api.objects) == bool(kept)


def operator_at_rest(api: ApiServer, replicas: int = 0) -> None:
    """A GPU Operator that an adoption has stopped, and its policy."""
    api.put({"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": {"name": POLICY["name"], "uid": "p"}},
            {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {
                "name": "gpu-operator", "namespace": "gpu-operator", "labels": {"app": "gpu-operator"}},
             "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "gpu-operator"}}}})


@pytest.mark.parametrize("level", ["never", "drain"])
def test_a_driver_that_would_move_is_not_taken_from_its_operator(api: ApiServer, client: Client, level: str) -> None:
    """If the operator were stopped and still owned an object, neither the operator nor we would maintain the
    cluster."""
    started(api, client)
    operator_at_rest(api, 1)
    one = api.objects[f"{SPACE}/{DRIVER}"]
    one["metadata"]["ownerReferences"] = [{**POLICY, "controller": True}]
    one["spec"]["template"]["spec"]["nodeSelector"] = {}
    api.objects["/api/v1/nodes/n2"]["metadata"]["labels"] = {}
    api.requests.clear()
    made = plan(cluster=CLUSTER, disruption=level)
    if level == "drain":
        ids = [step["id"] for step in adopted(client, made, check=True)["plan"]]
        assert {f"{action}: DaemonSet gpu-operator/{DRIVER}" for action in ("delete", "create")} <= set(ids)
        return
    with pytest.raises(ClusterError, match=f"adopt: DaemonSet gpu-operator/{DRIVER}.*on 1 Nodes, such as n2") as caught:
        adopted(client, made)
    assert "gpu_disruption: drain" in caught.value.hint and api.sent() == []


TAINT = {"key": "gpu-only", "value": "yes", "effect": "NoExecute"}
TOLERATION = {"key": "gpu-only", "operator": "Exists"}


@pytest.mark.parametrize(("taint", "tolerations", "held"), [
    (TAINT, [{"key": "other", "operator": "Exists"}], True),
    (TAINT, [{"operator": "Exists"}], False),
    ({**TAINT, "effect": "NoSchedule"}, [{"key": "other", "operator": "Exists"}], False),
    ({**TAINT, "key": "never-tolerated"}, [{"key": "other", "operator": "Exists"}], False),
])
def test_a_toleration_that_keeps_pods_stays(api: ApiServer, client: Client, taint: dict[str, str],
                                            tolerations: list[dict[str, str]], held: bool) -> None:
    """The controller of DaemonSets ends pods that do not tolerate a NoExecute taint according to the new template."""
    started(api, client, {"daemonsets": {"tolerations": [TOLERATION]}})
    api.objects["/api/v1/nodes/n2"]["spec"] = {"taints": [taint]}
    for level in ("never", "drain"):
        result = run(client, plan({"daemonsets": {"tolerations": tolerations}}, CLUSTER, disruption=level), True)
        ids = [one["id"] for one in result["pending"]]
        assert (f"update: DaemonSet gpu-operator/{DRIVER}" in ids) == (held and level == "never")
        assert all("1 Nodes, such as n2" in one["pending_reason"] for one in result["pending"][:1])


@pytest.mark.parametrize("moves", [False, True])
def test_a_replaced_daemonset_keeps_its_pods_where_its_selector_lets_it(api: ApiServer, client: Client,
                                                                        moves: bool) -> None:
    """Its pods stay when it is removed; then the controller of the new DaemonSet decides about them."""
    started(api, client)
    spec = api.objects[f"{SPACE}/{DRIVER}"]["spec"]
    former = copy.deepcopy(spec["selector"])
    spec["selector"]["matchLabels"]["former"] = "yes"
    if moves:
        spec["template"]["spec"]["nodeSelector"] = {}
        api.objects["/api/v1/nodes/n2"]["metadata"]["labels"] = {}
    result = run(client, plan({"daemonsets": {"annotations": {"a": "b"}}}, CLUSTER))
    assert [one["id"] for one in result["pending"] if "DaemonSet" in one["id"]] == (
        [f"replace: DaemonSet gpu-operator/{DRIVER}"] if moves else [])
    assert (api.objects[f"{SPACE}/{DRIVER}"]["spec"]["selector"] == former) != moves


def test_a_mig_manager_that_would_move_says_which_level_it_needs(api: ApiServer, client: Client) -> None:
    """Together with a driver that would move, the level that both need."""
    for parts, needs in ((("mig_manager",), "idle"), (("mig_manager", "driver"), "drain")):
        api.objects.clear()
        for level, space in (("never", "former"), ("never", "latter"), ("idle", "latter")):
            made = plan(cluster=CLUSTER, disruption=level, namespace=space)
            wanted = objects.wanted({name: render(name, made) for name in (objects.SHARED, *parts)})
            result = deliver.present(client, wanted, None, False, level=level)
            for path, one in api.objects.items():
                if "/daemonsets/" in path:
                    one["status"] = {"currentNumberScheduled": 1}
            api.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "labels": {
                LABEL: "true", "nvidia.com/gpu.deploy.mig-manager": "true", "nvidia.com/mig.config": "a"}}})
            if space == "former":
                assert result["pending"] == []
            elif level == "never":
                assert {one["needs"] for one in result["pending"]} == {"idle", needs}
                assert any(f"Set gpu_disruption: {needs} in a maintenance window" in one
                           for one in result["warnings"]), result["warnings"]
            else:
                assert {one["needs"] for one in result["pending"]} == {needs} - {"idle"}


@pytest.mark.parametrize("systems", [1, 2])
@pytest.mark.parametrize("way", ["site", "adopt", "remove", "remove nfd"])
def test_nfd_stays_where_drivers_of_several_systems_stay(api: ApiServer, client: Client, systems: int, way: str
                                                         ) -> None:
    """Their DaemonSets select by its labels; one of a single system does not. From drain on it goes."""
    cluster = facts(*[node(), node(("ubuntu", "24.04"))][:systems])

    def made(level: str, policy: Any = None) -> tuple[list[objects.Wanted], str]:
        found = plan(policy, cluster, disruption=level)
        # The server of these tests serves no new kinds.
        return objects.wanted({name: [one for one in render(name, found) if one["kind"] != "CustomResourceDefinition"]
                               for name in (objects.SHARED, "nfd", "driver")
                               if name == objects.SHARED or found["components"][name]["state"] == "present"}), level

    def removed(level: str) -> dict[str, Any]:
        if way.startswith("remove"):
            api.before = kinds_asked
            return deliver.absent(client, ["nfd"] if way == "remove nfd" else None, 5, True,
                                  terms=node_by_node.Terms(Holder.of_run(), level=level))
        wanted, level = made(level, {"nfd": {"enabled": False}})
        if way == "adopt":
            return deliver.adopted(client, wanted, (objects.SHARED, "nfd", "driver"), True, level)
        return deliver.present(client, wanted, None, True, level=level)

    wanted, level = made("never")
    assert not deliver.present(client, wanted, None, False, level=level)["pending"]
    operator_at_rest(api)
    for path, one in api.objects.items():
        if path.startswith(f"{SPACE}/nvidia-driver"):
            one["status"] = {"currentNumberScheduled": 2}
    parts = [one for one in wanted if one.component == "nfd"]
    for level in ("never", "idle", "drain"):
        result = removed(level)
        gone, stay = ({one["id"] for one in result[name] if "node-feature-discovery" in one["id"]}
                      for name in ("plan", "pending"))
        assert len(gone | stay) == len(parts) and not (stay if systems == 1 or level == "drain" else gone)
        assert any("driver-daemonset-ubuntu22.04 selects its Nodes by labels" in one["pending_reason"]
                   for one in result["pending"]) == bool(stay)


def test_what_has_no_pods_may_go(api: ApiServer, client: Client) -> None:
    started(api, client, pods=0)
    assert run(client, plan({"driver": {"enabled": False}}, CLUSTER))["pending"] == []
    assert f"{SPACE}/{DRIVER}" not in api.objects


def test_what_disturbs_nobody_is_done_meanwhile(api: ApiServer, client: Client) -> None:
    started(api, client)
    run(client, plan({"driver": {"enabled": False}, "dcgmExporter": {"enabled": False}}, CLUSTER))
    assert f"{SPACE}/nvidia-dcgm-exporter" not in api.objects and f"{SPACE}/{DRIVER}" in api.objects


@pytest.mark.parametrize(("labels", "held"), [(UBUNTU, 0), ({}, 1)])
def test_a_selector_that_leaves_nodes_out_waits(api: ApiServer, client: Client, labels: dict[str, str],
                                                held: int) -> None:
    """A Node with another system joins: the existing DaemonSet gets a selector for its own system."""
    started(api, client)
    api.objects["/api/v1/nodes/n2"]["metadata"]["labels"] = {**labels, LABEL: "true"}
    cluster = {**facts(KERNEL, node(("ubuntu", "24.04")), nfd="foreign"), "driver_daemon_sets": {DRIVER: "ubuntu22.04"}}
    result = run(client, plan(cluster=cluster))
    daemon_sets = [one for one in result["pending"] if "DaemonSet" in one["id"]]
    assert [one["pending_reason"].partition("higher: ")[2] for one in daemon_sets[:held]] == [
        "its pods would end at once on 1 Nodes, such as n2"][:held]
    assert bool(result["pending"]) == bool(held)


def test_the_mps_daemon_goes_where_its_clients_may_end(api: ApiServer, client: Client) -> None:
    """A changed configuration replaces none of its pods, and without the device plugin it stays."""
    started(api, client, {"devicePlugin": SHARED})
    assert api.objects[f"{SPACE}/{MPS}"]["spec"]["updateStrategy"] == {"type": "OnDelete"}
    for level, pending in (("idle", [f"delete: DaemonSet gpu-operator/{MPS}"]), ("drain", [])):
        result = run(client, plan({"devicePlugin": {"enabled": False}}, CLUSTER, disruption=level))
        assert [one["id"] for one in result["pending"]] == pending
    assert f"{SPACE}/{MPS}" not in api.objects
    run(client, plan({"devicePlugin": SHARED}, CLUSTER, disruption="drain"))
    assert api.objects[f"{SPACE}/{MPS}"]["spec"]["updateStrategy"] == {"type": "OnDelete"}


@pytest.mark.parametrize("level", LEVELS)
def test_an_mps_daemon_that_would_leave_nodes_waits_at_every_level(api: ApiServer, client: Client, level: str) -> None:
    """A new DaemonSet would adopt and end the daemon of n2, because the policy does not tolerate its taint any more.
    When a user has taken n2 out of service, the change is made."""
    tainted = {"key": "reserved", "effect": "NoExecute"}
    policy = {"devicePlugin": SHARED, "daemonsets": {"tolerations": [{"operator": "Exists"}]}}
    started(api, client, policy)
    shares = {"nvidia.com/mps.capable": "true", "nvidia.com/gpu.deploy.device-plugin": "true"}
    for name, taints in (("n1", []), ("n2", [tainted])):
        api.objects[f"/api/v1/nodes/{name}"].update(
            metadata={"name": name, "labels": {**UBUNTU, **shares}}, spec={"taints": taints})
    before = api.objects[f"{SPACE}/{MPS}"]
    for _again in range(2):
        result = run(client, plan({"devicePlugin": SHARED}, CLUSTER, disruption=level))
        step = next(one for one in result["pending"] if MPS in one["id"])
        assert (step["id"], step["pending_reason"]) == (
            f"update: DaemonSet gpu-operator/{MPS}",
            "a run cannot end these MPS daemons Node by Node: its pods would end at once "
            "on 1 Nodes, such as n2")
        assert api.objects[f"{SPACE}/{MPS}"] == before
    assert level != "drain" or any("(for the MPS daemon: nvidia.com/gpu.deploy.device-plugin=false)" in one
                                   for one in result["warnings"])
    api.objects["/api/v1/nodes/n2"]["metadata"]["labels"]["nvidia.com/gpu.deploy.device-plugin"] = "false"
    run(client, plan({"devicePlugin": SHARED}, CLUSTER, disruption=level))
    assert {"operator": "Exists"} not in api.objects[f"{SPACE}/{MPS}"]["spec"]["template"]["spec"]["tolerations"]


@pytest.mark.parametrize(("policy", "labels", "key"), [
    ({"driver": {"enabled": False}}, {}, "gpu.deploy.driver"),
    ({"devicePlugin": {"enabled": False}}, {"nvidia.com/mps.capable": "true"}, "gpu.deploy.device-plugin"),
    ({"devicePlugin": {"enabled": False}}, {"nvidia.com/mps.capable": "true"}, "device-plugin.config"),
])
def test_labels_by_which_such_pods_stand_stay(policy: Any, labels: dict[str, str], key: str) -> None:
    label = f"nvidia.com/{key}"
    gpu = {**labels, **GPU}
    one = deploy_labels.Node("n1", {**gpu, label: "true"}, {deploy_labels.ANNOTATION: label})
    for level in ("never", "idle", "drain"):
        made = plan(policy, facts(node(**gpu)), disruption=level)
        now, notes = labelled(one, made)
        assert (label in now.labels) == (level != "drain") == bool(notes)


@pytest.mark.parametrize(("label", "component", "marks"), [
    (LABEL, "driver", {}),
    ("nvidia.com/gpu.deploy.device-plugin", "device_plugin", {"nvidia.com/mps.capable": "true"})])
def test_a_label_goes_once_its_pods_have_ended(label: str, component: str, marks: dict[str, str]) -> None:
    """From drain on, gpu_labels removes it only from the Nodes for which the work Node by Node reports the end."""
    one = deploy_labels.Node("n1", {**GPU, **marks, label: "true"}, {deploy_labels.ANNOTATION: label})
    terms = deploy_labels.Terms(NOW)
    for part in ("driver", "device_plugin"):
        given = {"components": {name: name != part for name in ("driver", "device_plugin")}}
        found = deploy_labels.leaving([one], deploy_labels.parse_deploy({**given, "pods_may_end": False}), terms)
        assert found == ({component: ["n1"]} if part == component else {})
    given = {"components": {component: False}}
    asked: dict[str, Any]
    for asked, stays in (({"ended_on": []}, True), ({"ended_on": ["n2"]}, True), ({"ended_on": ["n1"]}, False),
                         ({}, False), ({"leaving": {component: ["n1"]}}, True), ({"leaving": {}}, False)):
        deploy = deploy_labels.parse_deploy({**given, **asked})
        change = deploy_labels.plan_present(one, deploy, terms)
        assert (label in patched(one, change.patch() if change else {"metadata": {}}).labels) is stays
        assert [note for note in label_nodes.notes([one], deploy, terms) if "removes it after" in note] == (
            [f"n1: {label} stays, because the removal would end driver or MPS pods that GPU clients use. A run of "
             "site.yml removes it after it has stopped these pods Node by Node."] if stays else [])


@pytest.mark.parametrize(("labels", "on_host", "leaves"), [
    ({**GPU, LABEL: "true"}, {}, False), ({**GPU, LABEL: "true"}, {"n1": ["driver"]}, True),
    ({LABEL: "true"}, {"n1": ["driver"]}, True),  # its host tells what GPUs it has, and no NFD does
    ({**GPU, LABEL: "false"}, {"n1": ["driver"]}, False), ({**UBUNTU, LABEL: "true"}, {}, False)])
def test_whose_driver_pods_end_with_their_label(labels: dict[str, str], on_host: dict[str, list[str]], leaves: bool
                                                ) -> None:
    """Not those with a value that a user has set, nor those of a Node whose GPU has not been lost for long enough."""
    one = deploy_labels.Node("n1", labels, ready=True)
    deploy = deploy_labels.parse_deploy({"components": {"driver": True}, "on_host": on_host})
    found = deploy_labels.leaving([one], deploy, deploy_labels.Terms(NOW))
    assert found == ({"driver": ["n1"]} if leaves else {})


def labelled(one: deploy_labels.Node, made: dict[str, Any]) -> tuple[deploy_labels.Node, list[str]]:
    """(the Node after gpu_labels, the notes about labels that stay). Checks that a second run has nothing more to
    do."""
    asked, terms = deploy_labels.parse_deploy(made["deploy"]), deploy_labels.Terms(NOW)
    notes = [note for note in label_nodes.notes([one], asked, terms) if "Set gpu_disruption: drain" in note]
    change = deploy_labels.plan_present(one, asked, terms)
    now = patched(one, change.patch() if change else {"metadata": {}})
    assert deploy_labels.plan_present(now, asked, terms) is None
    return now, notes


OURS = {deploy_labels.ANNOTATION: LABEL}
HYBRID: dict[str, Any] = {"placement": "hybrid", "hosts": {"a": "n1"}}
LOST = {deploy_labels.GONE: "2026-11-22T06:48:20Z"}


@pytest.mark.parametrize(("labels", "annotations", "stays"), [
    ({**GPU, LABEL: "true"}, OURS, True),
    ({**GPU, LABEL: "paused-for-driver-upgrade"}, OURS, True),
    ({**GPU, LABEL: "true"}, {}, True),  # left over from others; a driver pod of ours may run by it
    ({**GPU, LABEL: "true", "nvidia.com/gpu.deploy.operands": "false"}, OURS, False),
    ({**GPU, LABEL: "true", "nvidia.com/gpu.workload.config": "vm-passthrough"}, OURS, False),
    ({**UBUNTU, LABEL: "true", "nvidia.com/gpu.present": "true"}, {**OURS, **LOST}, True),
    ({**UBUNTU, LABEL: "true", "nvidia.com/gpu.deploy.operands": "false"}, {**OURS, **LOST}, False),
])
@pytest.mark.parametrize("level", ["never", "idle", "drain"])
def test_a_driver_that_goes_to_hosts_or_has_lost_its_gpu_is_not_ended(
        labels: dict[str, str], annotations: dict[str, str], stays: bool, level: str) -> None:
    """Otherwise, drivers would end on all Nodes at once after a change of gpu_placement, or if NFD finds no PCI devices
    any more."""
    one = deploy_labels.Node("n1", {**labels, "nvidia.com/gpu.deploy.dcgm": "true"}, annotations, ready=True)
    cluster = facts({**node(**labels), "annotations": annotations, "gpu": GPU.items() <= labels.items()}, node())
    made = plan(cluster=cluster, disruption=level, **HYBRID)
    now, notes = labelled(one, made)
    stays = stays and level != "drain"
    assert now.labels.get(LABEL) == (labels[LABEL] if stays else None)
    assert stays == bool(notes)
    assert (LABEL in now.ours) == (stays and bool(annotations))
    assert any(f"n1: {LABEL} stays" in note and "gpu_disruption: drain" in note for note in made["notes"]) == (
        stays and GPU.items() <= labels.items())


@pytest.mark.parametrize("placed", [{}, HYBRID])
def test_a_driver_that_is_planned_is_not_said_to_stay(placed: dict[str, Any]) -> None:
    """Without labels of NFD, the plan still considers its Node to have a GPU."""
    one = {**node(**UBUNTU, **{LABEL: "true", "nvidia.com/gpu.present": "true"}), "annotations": OURS}
    notes = plan(cluster=facts(one, node()), **placed)["notes"]
    assert any("gpu_disruption: drain" in note for note in notes) == bool(placed)


def test_a_value_of_the_users_own_counts_where_a_driver_goes_to_hosts() -> None:
    one = deploy_labels.Node("n1", {**GPU, LABEL: "pre-installed"}, OURS)
    now, notes = labelled(one, plan(cluster=facts(node(), node()), **HYBRID))
    assert now.labels[LABEL] == "pre-installed" and LABEL not in now.ours and not notes


def test_a_node_that_no_driver_is_planned_for_gets_no_label_of_one() -> None:
    """A running driver pod stays until pods may end."""
    cluster = facts(node(), node(system=None))
    for level in ("never", "drain"):
        made = plan(cluster=cluster, strict=False, disruption=level)
        assert list(made["rejected"]) == ["n2"]
        for name in ("n1", "n2"):
            fresh, notes = labelled(deploy_labels.Node(name, GPU), made)
            assert fresh.labels["nvidia.com/gpu.deploy.device-plugin"] == "true" and not notes
            assert (LABEL in fresh.labels) == (name == "n1")
        now, notes = labelled(deploy_labels.Node("n2", {**GPU, LABEL: "true"}, OURS), made)
        assert (LABEL in now.labels) == (level == "never") == bool(notes)


@pytest.mark.parametrize("level", ["never", "drain"])
def test_a_node_that_shares_by_mps_keeps_its_configuration(level: str) -> None:
    """The sidecar of the daemon restarts it if the label changes or goes. The clients of the daemon must go before."""
    text = "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}\n"
    policy = {"devicePlugin": {"config": {**SHARED["config"], "data": {**SHARED["config"]["data"], "b": text}}}}
    cluster = facts(*(node(**labels) for labels in (
        {"nvidia.com/mps.capable": "true", "nvidia.com/device-plugin.config": "a"}, {"nvidia.com/mps.capable": "true"},
        {"nvidia.com/device-plugin.config": "a"},
        *[{"nvidia.com/mps.capable": "true", "nvidia.com/device-plugin.config": "b"}] * 2)))
    cluster["nodes"]["n5"]["annotations"] = {deploy_labels.ANNOTATION: "nvidia.com/device-plugin.config"}
    configs = dict.fromkeys(("n1", "n2", "n3"), "b")
    made = plan(policy, cluster, plugin_configs=configs, disruption=level)
    assert made["deploy"]["plugin_configs"] == {"n1": "a", "n3": "b", "n5": "b"}  # that of n4 is not ours
    note, = (one for one in made["notes"] if one.startswith("n1, n2, n5: the configuration of the device plugin is "))
    assert "kubectl label --overwrite node n1 nvidia.com/device-plugin.config=b;" in note
    alone = plan(policy, {**cluster, "nodes": {"n5": cluster["nodes"]["n5"]}}, disruption=level)
    assert any("label --overwrite node n5 nvidia.com/device-plugin.config-;" in one for one in alone["notes"])
