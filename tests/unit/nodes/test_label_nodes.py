# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Deploy labels on many Nodes: requests, waits, failures, differences."""

from __future__ import annotations

from typing import Any, Callable

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.errors import ClusterError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import label_nodes
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.deploy_labels import ANNOTATION, GONE
from ansible_collections.gpuops.nvidia.tests.unit.simulated.fakes import one_by_one

NFD = "feature.node.kubernetes.io/"
GPU = {f"{NFD}pci-10de.present": "true", f"{NFD}system-os_release.ID": "ubuntu"}
DEPLOY = {"components": {"driver": True, "device_plugin": True}, "on_host": {"gpu-2": ["driver"]}}
OURS = {"nvidia.com/gpu.present": "true", "nvidia.com/gpu.deploy.client": "true",
        "nvidia.com/gpu.deploy.driver": "true", "nvidia.com/gpu.deploy.device-plugin": "true"}


class Server:
    """An API server in memory, with the methods of the client. nodes: maps names to labels."""

    def __init__(self, nodes: dict[str, dict[str, str]]) -> None:
        self.server = "https://lab"
        self.labels = {name: dict(labels) for name, labels in nodes.items()}
        self.annotations: dict[str, dict[str, str]] = {name: {} for name in nodes}
        self.fields: dict[str, list[dict[str, Any]]] = {}
        self.ready = dict.fromkeys(nodes, "True")
        self.asked: list[str] = []
        self.refuses: dict[str, int] = {}
        self.on_list: Callable[[int], None] = lambda count: None

    def list(self, api_version: str, kind: str, metadata_only: bool = False) -> list[dict[str, Any]]:
        """Metadata of the Nodes."""
        assert metadata_only and (api_version, kind) == ("v1", "Node")
        self.asked.append("list")
        self.on_list(self.asked.count("list"))
        return [{"metadata": {"name": name, "labels": dict(labels), "annotations": dict(self.annotations[name]),
                              "managedFields": self.fields.get(name)}}
                for name, labels in self.labels.items()]

    def may(self, *right: Any) -> bool:
        """Everything."""
        return True

    def get(self, api_version: str, kind: str, name: str) -> dict[str, Any]:
        """One Node's status."""
        self.asked.append(f"get {name}")
        return {"metadata": {"name": name}, "status": {"conditions": [
            {"type": "MemoryPressure", "status": "True"}, {"type": "Ready", "status": self.ready[name]}]}}

    def merge_patch(self, api_version: str, kind: str, name: str, namespace: None, body: dict[str, Any]) -> None:
        """RFC 7396."""
        self.asked.append(f"patch {name}")
        if name in self.refuses:
            raise ClusterError(f"Node {name}: refused.", "Ask.", status=self.refuses[name])
        for part, stored in (("labels", self.labels), ("annotations", self.annotations)):
            for key, value in body["metadata"].get(part, {}).items():
                if value is None:
                    stored[name].pop(key, None)
                else:
                    stored[name][key] = value

    many = staticmethod(one_by_one)

    def run(self, state: str = "present", check: bool = False, told: dict[str, dict[str, str]] | None = None,
            unread: tuple[str, ...] = (), **options: Any) -> dict[str, Any]:
        """Runs the task on this server; only the requests of this run are kept."""
        self.asked = []
        given = {"state": state, "kubeconfig": "k", "context": None, "nodes": None, "wait_for_nfd": 0,
                 "deploy": DEPLOY, "adopt": [], "gone_after": 600, **options}
        return label_nodes.label_nodes(given, check, told, unread)


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, dict[str, str]]], Server]:
    """Creates the server for the task, without an operator."""
    def make(nodes: dict[str, dict[str, str]]) -> Server:
        server = Server(nodes)
        monkeypatch.setattr(label_nodes, "Client", lambda kubeconfig, context: server)
        return server

    monkeypatch.setattr(label_nodes, "refuse_operator", lambda client: client.asked.append("guard"))
    monkeypatch.setattr(label_nodes, "PAUSE", 0.0)
    return make


Serve = Callable[[dict[str, dict[str, str]]], Server]
TOLD = {"nvidia.com/gpu.product": "Tesla-T4", "nvidia.com/gpu.count": "8"}
FLEET = {**{f"gpu-{number}": GPU for number in range(1, 4)}, "cpu": {f"{NFD}system-os_release.ID": "ubuntu"}}


def test_one_list_and_one_patch_for_each_that_differs(serve: Serve) -> None:
    """Check mode sends the same read requests and writes nothing; the second run writes nothing; a removal leaves
    nothing."""
    server = serve(FLEET)
    before = {name: dict(labels) for name, labels in server.labels.items()}
    said = server.run(check=True)
    assert server.labels == before and server.asked == ["guard", "list"]
    result = server.run()
    assert server.asked == ["guard", "list", "patch gpu-1", "patch gpu-2", "patch gpu-3"]
    assert result == said and result["changed"]
    assert result["counts"] == {"nodes": 4, "gpu": 3, "without_nfd": 0, "changed": 3, "failed": 0}
    assert result["nodes"]["gpu-1"] == {"added": OURS, "changed": {}, "removed": {}}
    assert "nvidia.com/gpu.deploy.driver" not in server.labels["gpu-2"]
    again = server.run()
    assert server.asked == ["guard", "list"] and not again["changed"] and not again["diff"] and again["nodes"] == {}
    gone = server.run("absent", deploy=None)
    assert gone["nodes"]["gpu-1"]["removed"] == OURS
    assert server.labels == before and not any(server.annotations.values())


def test_the_same_change_is_one_difference(serve: Serve) -> None:
    server = serve({**{f"gpu-{number:03d}": GPU for number in range(1000)}, "gpu-2": GPU})
    entries = server.run(check=True)["diff"]
    assert [entry["after_header"] for entry in entries] == ["Nodes gpu-[000-999]", "Node gpu-2"]
    keys = ",".join(sorted(OURS))
    assert entries[0]["before"] == "" and entries[0]["after"] == "".join(
        f"label {key}=true\n" for key in sorted(OURS)) + f"annotation {ANNOTATION}={keys}\n"


def test_a_difference_shows_what_goes_and_what_changes(serve: Serve) -> None:
    server = serve(FLEET)
    server.run()
    server.labels["gpu-1"]["nvidia.com/gpu.present"] = "no"
    entry, = server.run(deploy={"components": {"driver": True}}, nodes=["gpu-1"], check=True)["diff"]
    assert entry["before"].splitlines()[:2] == ["label nvidia.com/gpu.deploy.device-plugin=true",
                                                "label nvidia.com/gpu.present=no"]
    assert entry["after"].splitlines()[:1] == ["label nvidia.com/gpu.present=true"]


def test_single_nodes_that_fail_are_named(serve: Serve) -> None:
    """The others are served. A Node that has just been deleted is no failure."""
    server = serve(FLEET)
    server.refuses = {"gpu-2": 403, "gpu-3": 404}
    result = server.run()
    assert result["failed"] and result["changed"] and list(result["nodes"]) == ["gpu-1"]
    assert result["failures"] == {"gpu-2": "Node gpu-2: refused. Ask."}
    assert result["msg"] == "1 of 3 Nodes could not be labelled (gpu-2), the others are. Node gpu-2: refused. Ask."
    assert server.labels["gpu-1"] == {**GPU, **OURS}


def test_labels_of_an_operator_are_taken_over(serve: Serve) -> None:
    """One write keeps the labels that are also wanted and removes those of components that are not delivered; a false
    of the user stays."""
    theirs = {**OURS, "nvidia.com/gpu.deploy.dcgm": "true", "nvidia.com/gpu.deploy.node-status-exporter": "false"}
    server = serve({"gpu-1": {**GPU, **theirs}})
    result = server.run(take_over=True)
    assert server.asked == ["list", "patch gpu-1"]  # an operator that runs is no reason to refuse
    assert result["nodes"]["gpu-1"] == {"added": {}, "changed": {}, "removed": {"nvidia.com/gpu.deploy.dcgm": "true"}}
    assert set(server.annotations["gpu-1"][ANNOTATION].split(",")) == set(OURS)
    assert not server.run(take_over=True)["changed"] and not server.run()["changed"]


def test_named_nodes_alone(serve: Serve) -> None:
    server = serve(FLEET)
    server.run(nodes=["gpu-3", "cpu"])
    assert server.asked == ["guard", "list", "patch gpu-3"]
    with pytest.raises(InputError, match=r"has no Node gpu-\[7-8\]"):
        server.run(nodes=["gpu-7", "gpu-8", "gpu-1"])
    assert server.asked == ["guard", "list"]


def test_options_are_checked_before_anything_is_asked(serve: Serve) -> None:
    server = serve(FLEET)
    with pytest.raises(InputError, match="deploy"):
        server.run(deploy=None)
    with pytest.raises(InputError, match="drivr"):
        server.run(deploy={"components": {"drivr": True}})
    assert server.asked == []


def test_a_live_operator_is_refused_before_nodes_are_read(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading is always allowed."""
    def refuse(client: Any) -> None:
        raise ClusterError("An operator lives here.")

    server = serve(FLEET)
    monkeypatch.setattr(label_nodes, "refuse_operator", refuse)
    for state in ("present", "absent"):
        with pytest.raises(ClusterError):
            server.run(state)
        assert server.asked == []
    assert server.run("gathered")["nodes"]


def test_only_nodes_that_seem_to_have_lost_their_gpu_are_read_whole(serve: Serve) -> None:
    """The time of the first observation is stored; the labels are removed after the delay."""
    server = serve(FLEET)
    server.run()
    for name in ("gpu-1", "gpu-3"):
        del server.labels[name][f"{NFD}pci-10de.present"]
    server.ready["gpu-3"] = "Unknown"
    first = server.run()
    assert server.asked == ["guard", "list", "get gpu-1", "get gpu-3", "patch gpu-1"]
    assert first["diff"][0]["after"].startswith(f"annotation {GONE}=20") and GONE in server.annotations["gpu-1"]
    assert [note.split(",")[0] for note in first["notes"]] == ["gpu-3: no GPU is seen any more",
                                                               "gpu-1: no GPU is seen any more. The labels go in the "
                                                               "first run after this has been so for 600 seconds "
                                                               "(gone_after)."]
    assert server.labels["gpu-1"]["nvidia.com/gpu.present"] == "true"
    assert not server.run()["changed"]
    result = server.run(gone_after=0)
    assert result["nodes"]["gpu-1"]["changed"] == {"nvidia.com/gpu.present": {"before": "true", "after": "false"}}
    assert len(result["notes"]) == 1 and GONE not in server.annotations["gpu-1"]
    assert server.labels["gpu-3"]["nvidia.com/gpu.deploy.driver"] == "true"
    assert not server.run()["changed"]


def test_what_hosts_have_told_is_in_the_same_patch(serve: Serve) -> None:
    """Without deploy, too, but then only for these Nodes."""
    server = serve(FLEET)
    told = {"gpu-1": TOLD, "cpu": {"nvidia.com/vgpu.present": "false"}}
    result = server.run(told=told)
    assert server.asked == ["guard", "list", "patch gpu-1", "patch gpu-2", "patch gpu-3"]
    assert result["nodes"]["gpu-1"]["added"] == {**OURS, **TOLD} and result["foreign"] == []
    assert server.labels["cpu"] == FLEET["cpu"] and not server.run(told=told)["changed"]
    more = server.run(told={"gpu-2": TOLD}, deploy=None)
    assert server.asked == ["guard", "list", "patch gpu-2"] and more["counts"]["nodes"] == 1
    assert server.labels["gpu-2"].items() >= TOLD.items() and not server.run(told=told)["changed"]
    assert server.run("gathered", told=told)["nodes"]["gpu-1"]["wanted"] == {**OURS, **TOLD}
    with pytest.raises(InputError, match="has no Node gpu-9") as caught:
        server.run(told={"gpu-9": TOLD})
    assert caught.value.details["path"] == "hosts"


def test_one_lost_reading_moves_no_label_of_a_host(serve: Serve) -> None:
    """The task that reports the reading has the former labels."""
    server = serve(FLEET)
    server.run(told={"gpu-1": TOLD})
    lost = {**TOLD, "nvidia.com/gpu.count": "7"}
    server.run(told={"gpu-1": lost, "gpu-2": lost}, unread=("gpu-1", "gpu-2"))
    assert [server.labels[name]["nvidia.com/gpu.count"] for name in ("gpu-1", "gpu-2")] == ["8", "7"]


def test_what_others_keep_is_told_by_groups(serve: Serve) -> None:
    server = serve({name: {**labels, "nvidia.com/gpu.count": "4"} for name, labels in FLEET.items()})
    server.labels["gpu-3"]["nvidia.com/gpu.deploy.driver"] = "true"
    result = server.run(told=dict.fromkeys(FLEET, TOLD), nodes=["gpu-1", "gpu-2", "gpu-3"])
    assert result["foreign"] == [{"labels": ["nvidia.com/gpu.count"], "nodes": ["gpu-1", "gpu-2"]},
                                 {"labels": ["nvidia.com/gpu.count", "nvidia.com/gpu.deploy.driver"],
                                  "nodes": ["gpu-3"]}]
    assert result["warnings"] == result["notes"] and result["notes"][0].startswith("gpu-[1-3]: labels that")
    assert server.labels["gpu-1"]["nvidia.com/gpu.count"] == "4"
    adopted = server.run(told=dict.fromkeys(FLEET, TOLD), adopt=["nvidia.com/gpu.count"], nodes=["gpu-1"])
    assert adopted["nodes"]["gpu-1"]["changed"] == {"nvidia.com/gpu.count": {"before": "4", "after": "8"}}
    assert adopted["foreign"] == [] and not server.run(told=dict.fromkeys(FLEET, TOLD), nodes=["gpu-1"])["changed"]


@pytest.mark.parametrize("nfd, expected", [("none", "8"), ("foreign", "4")])
def test_lists_of_nfd_count_while_one_is_there(serve: Serve, monkeypatch: pytest.MonkeyPatch, nfd: str,
                                               expected: str) -> None:
    """The list is read only if labels that it names are to be adopted."""
    server = serve({"gpu-1": {**GPU, "nvidia.com/gpu.count": "4"}})
    server.annotations["gpu-1"] = {"nfd.node.kubernetes.io/feature-labels": "nvidia.com/gpu.count"}
    monkeypatch.setattr(label_nodes.read_cluster, "whose_nfd", lambda client: client.asked.append("nfd") or nfd)
    told: Any = {"told": {"gpu-1": TOLD}}
    server.run(**told)
    assert "nfd" not in server.asked and server.labels["gpu-1"]["nvidia.com/gpu.count"] == "4"
    server.run(adopt=["nvidia.com/gpu.count"], **told)
    assert "nfd" in server.asked and server.labels["gpu-1"]["nvidia.com/gpu.count"] == expected
    assert not server.run(**told)["changed"]


def test_a_host_that_is_not_believed_fails_its_node_alone(serve: Serve) -> None:
    """It still gets its deploy labels; so do the other Nodes."""
    server = serve(FLEET)
    result = server.run(told={"gpu-1": {**TOLD, "node-role.kubernetes.io/control-plane": ""}, "gpu-3": TOLD})
    assert result["failed"] and list(result["failures"]) == ["gpu-1"] and "control-plane" in result["msg"]
    assert "nvidia.com/gpu.count" not in server.labels["gpu-1"]
    assert server.labels["gpu-3"].items() >= {**OURS, **TOLD}.items()


def test_waiting_for_nfd_lets_the_others_catch_up(serve: Serve) -> None:
    """The wait continues as long as more Nodes get their first label."""
    server = serve({name: {} for name in FLEET})

    def label_one(count: int) -> None:
        if count > 2:
            server.labels[f"gpu-{min(3, count - 2)}"].update(GPU)

    server.on_list = label_one
    assert server.run(wait_for_nfd=60)["counts"]["changed"] == 3
    assert server.asked.count("list") == 6


def test_where_hosts_have_told_only_an_nfd_of_ours_is_waited_for(serve: Serve) -> None:
    server = serve({name: {} for name in FLEET})
    told = {"gpu-1": TOLD}
    result = server.run(told=told, wait_for_nfd=60)
    assert list(result["nodes"]) == ["gpu-1"] and result["counts"]["without_nfd"] == 3
    with pytest.raises(ClusterError, match=r"within 0\.02 seconds"):
        server.run(told=told, wait_for_nfd=0.02, deploy={"components": {"nfd": True}})


def test_nfd_that_stays_away(serve: Serve) -> None:
    """After the time limit this is a failure, without a limit it is a note; check mode does not wait."""
    server = serve({name: {} for name in FLEET})
    with pytest.raises(ClusterError, match=r"within 0\.02 seconds"):
        server.run(wait_for_nfd=0.02)
    for result in (server.run(), server.run(check=True, wait_for_nfd=600)):
        assert not result["changed"] and result["counts"]["without_nfd"] == 4
        assert result["notes"] == result["warnings"] and "nfd" in result["notes"][0]
    assert serve({}).run(wait_for_nfd=600)["counts"]["nodes"] == 0


def test_looking_says_what_is_wanted_ours_and_foreign(serve: Serve) -> None:
    server = serve({**FLEET, "gpu-9": {**GPU, "nvidia.com/gpu.deploy.dcgm": "true"}})
    server.run()
    result = server.run("gathered")
    assert server.asked == ["list"] and not result["changed"]
    assert result["nodes"]["gpu-9"] == {"gpu": True, "wanted": OURS, "present": OURS,
                                        "foreign": {"nvidia.com/gpu.deploy.dcgm": "true"}}
    assert "cpu" not in result["nodes"]
    assert server.run("gathered", deploy=None)["nodes"]["gpu-9"]["wanted"] == {}


def test_what_cannot_be_served_or_decided_is_said(serve: Serve) -> None:
    server = serve({**FLEET, "vm-1": {**GPU, "nvidia.com/gpu.workload.config": "vm-vgpu"}})
    result = server.run(deploy={"components": {"mig_manager": True}})
    assert result["undecided"] == ["gpu-1", "gpu-2", "gpu-3"]
    assert len(result["notes"]) == 1 and result["notes"][0].startswith("vm-1: ")


@pytest.mark.parametrize("names, text", [
    (["b"], "b"), ([], ""), (["gpu-9", "gpu-10", "gpu-8"], "gpu-[8-9], gpu-10"),
    (["a-03", "a-01", "a-02", "a-7", "login"], "login, a-7, a-[01-03]"),
    (["ip-10-0-1-7.ec2.internal", "ip-10-0-1-8.ec2.internal"], "ip-10-0-1-[7-8].ec2.internal"),
    ([f"n{number}x{number}" for number in range(10, 30)],
     ", ".join(f"n{number}x{number}" for number in range(10, 22)) + " and 8 more"),
])
def test_many_names_are_short(names: list[str], text: str) -> None:
    assert label_nodes.fold(names) == text


def wrote(manager: str, *labels: str, **more: str) -> dict[str, Any]:
    """A record of who has written which labels of a Node."""
    return {"manager": manager, "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", **more,
            "fieldsV1": {"f:metadata": {"f:labels": {".": {}, **{f"f:{label}": {} for label in labels}}}}}


def test_labels_whose_list_is_lost_go_with_a_removal(serve: Callable[[dict[str, dict[str, str]]], Server]) -> None:
    """Labels of ours that others have written since are named."""
    server = serve({"gpu-1": GPU, "gpu-2": GPU, "cpu-1": {}})
    server.run()
    del server.annotations["gpu-1"][ANNOTATION]
    mine, paused = [key for key in OURS if not key.endswith("driver")], "nvidia.com/gpu.deploy.driver"
    server.fields["gpu-1"] = [wrote("kubelet", "kubernetes.io/os"), wrote("gpuops.nvidia", *mine),
                              wrote("driver-manager", paused), {"manager": "x", "operation": "Update"}]
    preview = server.run("absent", check=True)
    result = server.run("absent")
    assert preview["warnings"] == result["warnings"] == [
        f"gpu-1: {paused} stays, as nothing says that we wrote it. To remove: kubectl label node NODE "
        f"{paused}-"]
    assert server.labels == {"gpu-1": {**GPU, paused: "true"}, "gpu-2": GPU, "cpu-1": {}}
    assert server.run("absent")["changed"] is False


def test_numbers_that_do_not_follow_each_other_are_cut_off_too() -> None:
    """One line with half of a thousand Nodes would not be readable."""
    said = label_nodes.fold(f"gpu-{number:04d}" for number in range(0, 894, 2))
    assert said == "gpu-[" + ",".join(f"{number:04d}" for number in range(0, 24, 2)) + "] and 435 more"
    assert label_nodes.fold(["a-1", "a-2", "a-4", "b"]) == "b, a-[1-2,4]"


def test_the_mig_state_that_we_wrote_goes_with_a_removal(serve: Serve) -> None:
    state, reason = "nvidia.com/mig.config.state", "gpuops.nvidia/mig-reason"

    server = serve({"ours": {state: "failed"}, "theirs": {state: "success"}})
    server.fields = {"ours": [wrote("gpuops.nvidia", state)], "theirs": [wrote("mig-manager", state)]}
    server.annotations["ours"][reason] = "it failed"
    assert server.run("absent")["changed"]
    assert server.labels == {"ours": {}, "theirs": {state: "success"}} and not server.annotations["ours"]
