# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A cluster is adopted from a GPU Operator and handed back, on a real API server.

The operator is simulated: a Deployment that does nothing, and objects as the operator leaves them, with its names,
selectors, owner references and field manager. Their pods have further variables, or the same content in another form.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube import objects, operator, refuse_operator
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.errors import ClusterError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import read_cluster
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands import deliver, hand_back
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands.render import ORDER, render

from lab.controlplane import cluster as clusters
from lab.controlplane import nodes
from tests.integration_cluster.conftest import Audit, Kubectl, occupied
from tests.integration_cluster.definitions import crd, create
from tests.integration_cluster.plays import LOCAL, playbook
from tests.unit.simulated.clusters import plan
from tests.waiting import until

SPACE = "gpu-operator"
# Secrets in variables, as the operator takes them over from its policy or from OpenShift's proxy.
MARK = "pl4nted"
# Node Feature Discovery is left to others, as where the operator's chart has brought it.
ALIKE = "gpu-feature-discovery"
PARTS = ("driver", "container_toolkit", "validator", "device_plugin", "feature_discovery", "dcgm_exporter",
         "mig_manager")
PLACEMENT = {"nfd": "none", "dcgm": "none", "node_status_exporter": "none", **dict.fromkeys(PARTS, "cluster")}
POLICY = {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": {"name": "cluster-policy"}, "spec": {
    **{name: {} for name in ("daemonsets", "devicePlugin", "gfd", "operator", "toolkit")},
    "driver": {"enabled": True}, "dcgm": {"enabled": False}, "dcgmExporter": {"enabled": True},
    "nodeStatusExporter": {"enabled": False}}}
# As the operator labels a Node, switched off components among them.
LABELS = {f"nvidia.com/gpu.deploy.{name}": "true" for name in (
    "driver", "container-toolkit", "operator-validator", "device-plugin", "gpu-feature-discovery", "dcgm",
    "dcgm-exporter", "mig-manager", "node-status-exporter")}
OPERATOR = {"apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "gpu-operator", "namespace": SPACE,
                         "labels": {"app": "gpu-operator", "app.kubernetes.io/version": "v26.7.0"},
                         "annotations": {"meta.helm.sh/release-name": "gpu-op-1",
                                         "meta.helm.sh/release-namespace": SPACE}},
            "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "gpu-operator"}}, "template": {
                "metadata": {"labels": {"app": "gpu-operator"}},
                "spec": {"containers": [{"name": "gpu-operator", "image": "example.org/nothing:1"}]}}}}


# The same with the driver in an NVIDIADriver.
WITH_DRIVER = [
    {**POLICY, "spec": {**POLICY["spec"], "driver": {"enabled": True, "useNvidiaDriverCRD": True}}},
    {"apiVersion": "nvidia.com/v1alpha1", "kind": "NVIDIADriver", "metadata": {"name": "all"}, "spec": {
        "driverType": "gpu", "default": True, "repository": "nvcr.io/nvidia", "image": "driver",
        "version": "580.173.02"}}]


class Land:
    """A cluster that the operator manages.

    policy: a ClusterPolicy, and an NVIDIADriver if there is one. driver: the name of the driver's DaemonSet.
    owners: the owner references of the operator; objects of the driver have the last one.
    """

    def __init__(self, made: clusters.Cluster, policy: list[dict[str, Any]]) -> None:
        self.kubeconfig = str(made.kubeconfig)
        self.kubectl, self.client, self.audit = Kubectl(self.kubeconfig), Client(self.kubeconfig), Audit(made.audit_log)
        self.made: dict[str, dict[str, Any]] = {}
        self.plan = plan(policy, {**read_cluster.read_cluster(self.client),
                                  **read_cluster.read_nvidia_drivers(self.client, SPACE)}, placement=PLACEMENT)
        self.driver, = (item["metadata"]["name"] for item in render("driver", self.plan)
                        if item["kind"] == "DaemonSet")
        self.owners = [hand_back.owner_of(self.kubectl.get(one["kind"], one["metadata"]["name"])) for one in policy]

    @property
    def wanted(self) -> list[objects.Wanted]:
        return objects.wanted({name: render(name, self.plan) for name in ORDER})

    def settle(self) -> None:
        """Does the work of the operator: creates its objects with owner references to its resources."""
        items: list[dict[str, Any]] = []
        for component, item in [(name, one) for name in ORDER for one in render(name, self.plan)]:
            if item["kind"] in ("Namespace", "CustomResourceDefinition"):
                continue
            metadata = item["metadata"]
            metadata["ownerReferences"] = [self.owners[-1 if component == "driver" else 0]]
            metadata["annotations"] = {key: value for key, value in metadata.get("annotations", {}).items()
                                       if not key.startswith("gpuops.nvidia/")}
            if item["kind"] == "DaemonSet":
                metadata["annotations"][operator.HASH] = "1234"
                pod = item["spec"]["template"]["spec"]
                if metadata["name"] == ALIKE:
                    pod["volumes"].reverse()
                    pod["containers"][0]["env"].reverse()
                    waits = pod["initContainers"][0]
                    waits["args"] = [waits["args"][0].replace("echo ", "echo well ")]
                else:
                    pod["containers"][0].setdefault("env", []).extend([
                        {"name": "OF_THE_OPERATOR", "value": "1"}, {"name": "NGC_API_KEY", "value": f"{MARK}-key"},
                        {"name": "HTTPS_PROXY", "value": f"http://me:{MARK}-proxy@proxy.example.com:3128"}])
            self.made[item["metadata"]["name"]] = item
            items.append(item)
        # What only the operator needs.
        items.append({"apiVersion": "v1", "kind": "Service", "spec": {"ports": [{"port": 8080}]},
                      "metadata": {"name": "gpu-operator", "namespace": SPACE, "ownerReferences": [self.owners[0]]}})
        self.kubectl("create", "--field-manager", "gpu-operator", "--filename", "-",
                     stdin={"apiVersion": "v1", "kind": "List", "items": items})

    def owned(self) -> dict[str, tuple[bool, bool]]:
        """Maps each planned object to whether the policy of the operator owns it, and whether it is ours."""
        found = {}
        for one in self.wanted:
            if one.kind.kind != "Namespace":
                have = self.client.get(one.kind.api_version, one.kind.kind, one.manifest["metadata"]["name"],
                                       one.manifest["metadata"].get("namespace"))
                assert have is not None
                found[one.label] = (operator.owns(have), objects.is_ours(have))
        return found

    def pods(self, app: str | None = None) -> dict[str, str]:
        """Maps Nodes to the uids of their pods, by default of the driver, once each Node has one."""
        found: dict[str, str] = {}

        def there() -> bool:
            pods = self.client.list("v1", "Pod", SPACE, f"app={app or self.driver}")
            found.clear()
            found.update({one["spec"]["nodeName"]: one["metadata"]["uid"] for one in pods
                          if one["spec"].get("nodeName") and "deletionTimestamp" not in one["metadata"]})
            return set(found) == {"gpu-1", "gpu-2"}

        until(there, "each Node has a pod")
        return found

    def comes_to_newest(self) -> None:
        """Waits until both driver pods belong to the newest revision of their DaemonSet."""
        def newest() -> bool:
            daemon = self.client.get("apps/v1", "DaemonSet", self.driver, SPACE)
            assert daemon is not None
            status = daemon["status"]
            return (status.get("observedGeneration"), status.get("updatedNumberScheduled")) == (
                daemon["metadata"]["generation"], 2)

        until(newest, "the pods are of the newest revision")

    def labels(self) -> dict[str, str]:
        return {key: value for key, value in self.kubectl.get("node", "gpu-1")["metadata"]["labels"].items()
                if key.startswith("nvidia.com/gpu.deploy.")}

    def replicas(self) -> int:
        return int(self.kubectl.get("--namespace", SPACE, "deployment", "gpu-operator")["spec"]["replicas"])


@contextmanager
def operated(empty: clusters.Cluster, policy: list[dict[str, Any]]) -> Iterator[Land]:
    """A cluster whose GPU Operator has a policy."""
    with occupied(empty, *nodes.plain(2, 1, "a100-80", "ubuntu22.04")) as made:
        kubectl = Kubectl(str(made.kubeconfig))
        create(kubectl, crd("nvidia.com", "ClusterPolicy", "clusterpolicies", "v1"),
               crd("nvidia.com", "NVIDIADriver", "nvidiadrivers", "v1alpha1"))
        kubectl("create", "namespace", SPACE)
        for item in (*policy, OPERATOR):
            kubectl("create", "--filename", "-", stdin=item)
        found = Land(made, policy)
        kubectl("label", "node", "gpu-1", "gpu-2", *(f"{key}={value}" for key, value in LABELS.items()),
                "nvidia.com/gpu.present=true")
        found.settle()
        yield found


@pytest.fixture(scope="module")
def land(empty: clusters.Cluster) -> Iterator[Land]:
    with operated(empty, [POLICY]) as found:
        yield found


@pytest.fixture
def inventory(land: Land, tmp_path: Path) -> dict[str, Any]:
    return inventory_of(land, tmp_path)


def inventory_of(land: Land, tmp_path: Path) -> dict[str, Any]:
    """An inventory of the cluster in the folder tmp_path."""
    (tmp_path / "admin.conf").write_text(Path(land.kubeconfig).read_text())
    return {"gpu_control": {"hosts": {"cluster": LOCAL}}, "all": {"vars": {
        "gpu_kubeconfig": "admin.conf", "gpu_placement": PLACEMENT, "gpu_policy": "live", "gpu_release": "26.7.0"}}}


class Killed(Exception):
    """Ends a run at this point."""


class Mortal(Client):
    """A client that fails after this number of writes."""

    left = 0

    def _patch(self, verb: str, row: Any, name: str, namespace: Any, body: Any, form: str, query: Any, dry_run: bool,
               retry: Any) -> dict[str, Any]:
        if not dry_run:
            if self.left <= 0:
                raise Killed
            self.left -= 1
        return super()._patch(verb, row, name, namespace, body, form, query, dry_run, retry)


def test_the_pods_of_an_nvidia_driver_stay_both_ways(empty: clusters.Cluster, tmp_path: Path) -> None:
    """The DaemonSet keeps the name that the operator has given it. An NVIDIADriver that is created again has another
    uid, and would get another name."""
    with operated(empty, WITH_DRIVER) as land:
        inventory = inventory_of(land, tmp_path)
        drivers = land.pods()
        playbook(tmp_path, "adopt", inventory)
        assert set(land.owned().values()) == {(False, True)} and land.pods() == drivers
        land.audit.start()
        assert "changed=0" in playbook(tmp_path, "site", inventory)
        assert not land.audit.writes
        assert "The operator owns the cluster" in playbook(tmp_path, "hand_back", inventory)
        assert set(land.owned().values()) == {(True, False)} and land.pods() == drivers
        daemon = land.kubectl.get("--namespace", SPACE, "daemonset", land.driver)
        assert daemon["metadata"]["ownerReferences"] == [land.owners[1]]
        assert not [key for key in daemon["metadata"]["annotations"] if key.startswith("gpuops")]
        deliver.adopted(land.client, land.wanted, list(ORDER), False)
        land.kubectl("delete", "nvidiadriver", "all", "--cascade=orphan")
        land.kubectl("create", "--filename", "-", stdin=WITH_DRIVER[1])
        land.audit.start()
        with pytest.raises(ClusterError, match=f"would not adopt these drivers.*DaemonSet {SPACE}/{land.driver}"):
            deliver.handed_back(land.client, WITH_DRIVER[0], False)
        assert not land.audit.writes and land.pods() == drivers


def test_what_stands_in_the_way_is_said_before_anything_is_changed(land: Land) -> None:
    """A selector cannot be changed, an upgrade must end before the operator stops, and OLM would start the operator
    again."""
    command = ["--namespace", SPACE, "label", "--overwrite", "deployment", "gpu-operator"]
    odd = [one if one.label != f"DaemonSet {SPACE}/nvidia-dcgm-exporter" else objects.Wanted(
        one.component, one.kind, {**one.manifest, "spec": {**one.manifest["spec"], "selector": {
            "matchLabels": {"app": "else"}}}}) for one in land.wanted]
    fewer = [one for one in land.wanted if one.component != "mig_manager"]
    land.audit.start()
    with pytest.raises(ClusterError, match="cannot be changed: DaemonSet gpu-operator/nvidia-dcgm-exporter"):
        deliver.adopted(land.client, odd, list(ORDER), False)
    with pytest.raises(ClusterError, match="runs these objects, which are not in the plan: DaemonSet "
                       "gpu-operator/nvidia-mig-manager"):
        deliver.adopted(land.client, fewer, list(ORDER), False)
    assert not land.audit.writes
    land.kubectl(*command, "olm.owner=gpu-operator-certified.v26.7.0")
    land.kubectl("label", "node", "gpu-1", "nvidia.com/gpu-driver-upgrade-state=drain-required")
    try:
        land.audit.start()
        with pytest.raises(ClusterError, match="Operator Lifecycle Manager.*ClusterServiceVersion gpu-operator-cert"):
            deliver.adopted(land.client, land.wanted, list(ORDER), False)
        assert not land.audit.writes
        land.kubectl(*command, "olm.owner-")
        with pytest.raises(ClusterError, match=r"1 Node: gpu-1 \(drain-required\)"):
            deliver.adopted(land.client, land.wanted, list(ORDER), False)
    finally:
        land.kubectl(*command, "olm.owner-")
        land.kubectl("label", "node", "gpu-1", "nvidia.com/gpu-driver-upgrade-state-")
    assert land.replicas() == 1


def test_taken_over_and_handed_back(land: Land, inventory: dict[str, Any], tmp_path: Path) -> None:
    """The first run is killed. At its end, the operator manages the cluster as at its beginning."""
    taken_over(land, inventory, tmp_path)
    changes_nothing(land, inventory, tmp_path)
    handed_back(land, inventory, tmp_path)


def taken_over(land: Land, inventory: dict[str, Any], tmp_path: Path) -> None:
    """Runs the preview first, which writes nothing. After each run, an object belongs either to the operator or to us,
    never to both."""
    before, drivers, alike = land.labels(), land.pods(), land.pods(ALIKE)
    land.audit.start()
    shown = playbook(tmp_path, "adopt", inventory, "--check", "--diff")
    assert "-  replicas: 1" in shown and "+  replicas: 0" in shown and "OF_THE_OPERATOR" in shown
    assert "http://(hidden, it differs)@proxy.example.com" in shown and "NGC_API_KEY" in shown and MARK not in shown
    assert not land.audit.writes
    for writes in (1, 2, 3, 10, 41):
        mortal = Mortal(land.kubeconfig, workers=1)
        mortal.left = writes
        with pytest.raises(Killed):
            deliver.adopted(mortal, land.wanted, list(ORDER), False)
        # One that the patch has just made ours may lack only what we want of it.
        assert all(owned != ours for owned, ours in land.owned().values()), writes
        assert land.replicas() == 0
    assert MARK not in playbook(tmp_path, "adopt", inventory, "-vvv", "--diff")
    assert set(land.owned().values()) == {(False, True)}
    assert land.pods() == drivers and land.pods(ALIKE) == alike
    # Switched off, and so not delivered: the operator labels for these too.
    kept = {key: value for key, value in before.items() if not key.endswith((".dcgm", "status-exporter"))}
    assert land.labels() == {**kept, "nvidia.com/gpu.deploy.client": "true"}


def changes_nothing(land: Land, inventory: dict[str, Any], tmp_path: Path) -> None:
    """Checks that a second run changes nothing."""
    for name in ("adopt", "site"):
        land.audit.start()
        out = playbook(tmp_path, name, inventory)
        assert not land.audit.writes and "changed=0" in out
    helm, left = deliver.adopted(land.client, land.wanted, list(ORDER), False)["warnings"]
    assert "helm uninstall gpu-op-1" in helm and "Service gpu-operator/gpu-operator" in left
    daemon = land.kubectl.get("--namespace", SPACE, "daemonset", "nvidia-dcgm-exporter")
    assert "OF_THE_OPERATOR" not in str(daemon["spec"])
    # The policy and the way back are still there, and so is what belongs to the operator alone.
    assert land.kubectl.get("clusterpolicy", "cluster-policy")["spec"] == POLICY["spec"]
    assert operator.owns(land.kubectl.get("--namespace", SPACE, "service", "gpu-operator"))


def handed_back(land: Land, inventory: dict[str, Any], tmp_path: Path) -> None:
    drivers, labels = land.pods(), land.labels()
    inventory["all"]["vars"]["gpu_policy"] = {**POLICY, "spec": {**POLICY["spec"], "driver": {
        "enabled": True, "version": "580.173.02"}}}
    land.audit.start()
    playbook(tmp_path, "hand_back", inventory, "--check")
    assert not land.audit.writes and land.replicas() == 0
    (tmp_path / "cluster-policy.yml").write_text("of another cluster\n")
    said = playbook(tmp_path, "hand_back", inventory, "-vvv", "--diff")
    assert "The operator owns the cluster" in said and MARK not in said
    assert [path.read_text() for path in tmp_path.glob("cluster-policy.yml.*")] == ["of another cluster\n"]
    written = yaml.safe_load((tmp_path / "cluster-policy.yml").read_text())
    live = land.kubectl.get("clusterpolicy", "cluster-policy")
    assert written["spec"] == live["spec"] and live["spec"]["driver"]["version"] == "580.173.02"
    assert set(land.owned().values()) == {(True, False)}
    deployment = land.kubectl.get("--namespace", SPACE, "deployment", "gpu-operator")
    assert deployment["spec"]["replicas"] == 1 and operator.REPLICAS not in deployment["metadata"]["annotations"]
    daemon = land.kubectl.get("--namespace", SPACE, "daemonset", "nvidia-driver-daemonset")["metadata"]
    assert operator.HASH not in daemon["annotations"] and "gpuops" not in str(daemon["labels"])
    assert land.pods() == drivers and land.labels() == labels
    land.audit.start()
    playbook(tmp_path, "hand_back", inventory)
    assert not land.audit.writes
    # All its driver pods are of the newest revision before it looks for others, and after it has rendered its own.
    land.comes_to_newest()
    land.kubectl("replace", "--field-manager", "gpu-operator", "--filename", "-",
                 stdin=land.made["nvidia-driver-daemonset"])
    land.comes_to_newest()
    assert land.pods() == drivers
    # And we leave it alone again.
    with pytest.raises(ClusterError, match="A GPU Operator manages this cluster"):
        refuse_operator.refuse_operator(land.client)
