# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The inventory of Nodes: variables, groups, what users compose, and the cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible import constants
from ansible.errors import AnsibleError, AnsibleParserError
from ansible.inventory.data import InventoryData
from ansible.parsing.dataloader import DataLoader
from ansible.plugins.doc_fragments import constructed, inventory_cache
from ansible_collections.gpuops.nvidia.plugins.inventory import gpu_nodes
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._cluster import fleet

Object = dict[str, Any]
GPU = "feature.node.kubernetes.io/pci-10de.present"
A100 = {GPU: "true", "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB", "nvidia.com/gpu.count": "8",
        "nvidia.com/gpu.family": "ampere", "nvidia.com/cuda.driver-version.full": "595.91.07",
        "nvidia.com/cuda.runtime-version.full": "13.2", "nvidia.com/mig.capable": "true",
        "nvidia.com/mig.strategy": "mixed", "nvidia.com/mig.config": "all-1g.10gb",
        "nvidia.com/mig.config.state": "success", "nvidia.com/gpu-driver-upgrade-state": "upgrade-done"}


def node(name: str, labels: dict[str, str], ready: bool = True, resources: dict[str, str] | None = None,
         **spec: Any) -> Object:
    """A Node as the API server has it."""
    return {"metadata": {"name": name, "labels": labels}, "spec": spec, "status": {
        "conditions": [{"type": "Ready", "status": "True" if ready else "Unknown"}],
        "allocatable": {"cpu": "8", **(resources or {})},
        "addresses": [{"type": "InternalIP", "address": "10.0.0.7"}, {"type": "InternalIP", "address": "fd00::7"},
                      {"type": "Hostname", "address": name}],
        "nodeInfo": {"osImage": "{{ 1 + 1 }}", "kernelVersion": "6.8.0", "containerRuntimeVersion": "containerd://2.1",
                     "kubeletVersion": "v1.36.3"}}}


FLEET = [
    node("a", A100, resources={"nvidia.com/mig-1g.10gb": "56", "nvidia.com/gpu": "0"}, providerID="aws:///x"),
    node("b", {GPU: "true", "nvidia.com/gpu.product": "Tesla-T4"}, taints=[{"key": "x/y", "effect": "NoSchedule"}]),
    node("c", {"nvidia.com/gpu.present": "true", "nvidia.com/cuda.driver.major": "570",
               "nvidia.com/cuda.driver.minor": "172", "nvidia.com/cuda.driver.rev": "08"}, unschedulable=True),
    node("d", {}, ready=False, resources={"nvidia.com/gpu.shared": "16"}),
    node("cpu", {}),
]


class Asked:
    """Stands for the client; counts lists."""

    count = 0
    fails = False

    def __init__(self, kubeconfig: str, context: str | None) -> None:
        self.place = (kubeconfig, context)

    def list(self, api_version: str, kind: str) -> list[Object]:
        """The Nodes."""
        type(self).count += 1
        if self.fails:
            raise InputError("No cluster.", "Look.", path="kubeconfig")
        return FLEET


def load() -> gpu_nodes.InventoryModule:
    """The plugin as Ansible's loader gives it, which does not work without installed collections."""
    options = {}
    for text in (constructed.ModuleDocFragment.DOCUMENTATION, inventory_cache.ModuleDocFragment.DOCUMENTATION,
                 gpu_nodes.DOCUMENTATION):
        options.update(yaml.safe_load(text)["options"])
    constants.config.initialize_plugin_configuration_definitions("inventory", gpu_nodes.InventoryModule.NAME, options)
    plugin = gpu_nodes.InventoryModule()
    plugin._load_name = plugin.NAME
    return plugin


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> type[Asked]:
    """The client of each test."""
    made = type("Made", (Asked,), {})
    monkeypatch.setattr(gpu_nodes, "Client", made)
    return made


def read(folder: Path, use_cache: bool = True, **options: Any) -> InventoryData:
    """What a file with these options gives."""
    path = folder / "x.gpu_nodes.yml"
    path.write_text(yaml.safe_dump({"plugin": "gpuops.nvidia.gpu_nodes", "kubeconfig": "k", **options}))
    plugin, found = load(), InventoryData()
    assert plugin.verify_file(str(path))
    plugin.parse(found, DataLoader(), str(path), use_cache)
    if options.get("cache"):
        plugin.update_cache_if_changed()
    found.reconcile_inventory()
    return found


def groups(found: InventoryData, host: str) -> set[str]:
    """The groups of a host, but for all and ungrouped."""
    return {group.name for group in found.hosts[host].get_groups()} - {"all", "ungrouped"}


def test_hosts_and_groups(tmp_path: Path) -> None:
    found = read(tmp_path)
    assert set(found.hosts) == {"a", "b", "c", "d"}
    assert groups(found, "a") == {
        "gpu_model_nvidia_a100_sxm4_80gb", "gpu_driver_595_91_07", "gpu_mig_capable", "gpu_mig_strategy_mixed",
        "gpu_mig_config_all_1g_10gb", "gpu_mig_state_success", "gpu_state_ready", "gpu_upgrade_upgrade_done"}
    assert groups(found, "b") == {"gpu_model_tesla_t4", "gpu_driver_unknown", "gpu_mig_incapable",
                                  "gpu_state_no_resources"}
    assert groups(found, "c") == {"gpu_model_unknown", "gpu_driver_570_172_08", "gpu_mig_unknown",
                                  "gpu_state_cordoned"}
    assert "gpu_state_not_ready" in groups(found, "d")


def test_a_node_that_leaves_and_one_that_offers_network_cards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first is not ready any more, though its kubelet reports; the other has no GPU."""
    leaving = node("e", A100, resources={"nvidia.com/gpu": "8"})
    leaving["metadata"]["deletionTimestamp"] = "2026-11-22T07:00:00Z"
    monkeypatch.setattr(Asked, "list", lambda *asked: [leaving, node("nic", {}, resources={"nvidia.com/hostdev": "8"})])
    found = read(tmp_path)
    assert set(found.hosts) == {"e"} and "gpu_state_not_ready" in groups(found, "e")


def test_variables(tmp_path: Path) -> None:
    """What a kubelet says is never a template."""
    variables = read(tmp_path).hosts["a"].get_vars()
    assert variables["ansible_host"] == "10.0.0.7" and variables["gpu_node_name"] == "a"
    labels = variables["gpu_node"].pop("labels")
    assert labels == A100 and variables["gpu_node"] == {
        "model": "NVIDIA-A100-SXM4-80GB", "count": 8, "family": "ampere", "driver": "595.91.07", "cuda": "13.2",
        "mig": {"capable": True, "strategy": "mixed", "config": "all-1g.10gb", "state": "success"},
        "upgrade_state": "upgrade-done", "resources": {"nvidia.com/mig-1g.10gb": 56}, "taints": [], "ready": True,
        "schedulable": True, "state": "ready", "os_image": "{{ 1 + 1 }}", "kernel": "6.8.0",
        "runtime": "containerd://2.1", "kubelet": "v1.36.3", "provider_id": "aws:///x"}
    assert fleet.describe(FLEET[1])["gpu_node"]["taints"] == ["x/y"]


@pytest.mark.parametrize("types, address", [(["Hostname", "InternalIP"], "a"), (["ExternalIP"], None),
                                            (["ExternalIP", "InternalIP"], "10.0.0.7")])
def test_addresses(tmp_path: Path, types: list[str], address: str | None) -> None:
    assert read(tmp_path, address_types=types).hosts["a"].get_vars().get("ansible_host") == address


def test_all_nodes(tmp_path: Path) -> None:
    found = read(tmp_path, nodes="all")
    assert "cpu" in found.hosts and groups(found, "cpu") == set()


def test_what_users_compose(tmp_path: Path) -> None:
    found = read(tmp_path, compose={"rack": "gpu_node.kernel | upper"}, groups={"gpu_hosts": "gpu_node.ready"},
                 keyed_groups=[{"key": "gpu_node.family", "prefix": "family"}])
    assert found.hosts["a"].get_vars()["rack"] == "6.8.0" and "family_ampere" in groups(found, "a")
    assert {name for name in found.hosts if "gpu_hosts" in groups(found, name)} == {"a", "b", "c"}
    with pytest.raises(AnsibleError):
        read(tmp_path, strict=True, compose={"rack": "gpu_node.nothing.at_all"})


def test_the_cache(tmp_path: Path, asked: type[Asked]) -> None:
    """One list for two readings; another context is another cluster; a refresh asks again."""
    options: Any = {"cache": True, "cache_plugin": "jsonfile", "cache_connection": str(tmp_path / "cache")}
    first = read(tmp_path, **options)
    again = read(tmp_path, **options)
    assert asked.count == 1
    assert again.hosts["a"].get_vars() == first.hosts["a"].get_vars() and groups(again, "a") == groups(first, "a")
    read(tmp_path, context="other", **options)
    read(tmp_path, use_cache=False, **options)
    assert asked.count == 3
    read(tmp_path)
    assert asked.count == 4
    (tmp_path / "k").write_text("another cluster")
    read(tmp_path, **options)
    assert asked.count == 5
    read(tmp_path, **options)
    asked.fails = True
    (tmp_path / "k").unlink()
    (tmp_path / "k").mkdir()
    with pytest.raises(AnsibleParserError, match="cannot be read"):
        read(tmp_path, **options)
    assert asked.count == 5


def test_the_kubeconfig_is_beside_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places: list[Any] = []

    def client(*place: Any) -> Asked:
        places.append(place)
        return Asked(*place)

    monkeypatch.setattr(gpu_nodes, "Client", client)
    (tmp_path / "k").write_text("")
    read(tmp_path, context="c")
    read(tmp_path, kubeconfig="~/nowhere")
    assert places == [(str(tmp_path / "k"), "c"), (str(Path("~/nowhere").expanduser()), None)]


def test_a_cluster_that_does_not_answer(tmp_path: Path, asked: type[Asked]) -> None:
    asked.fails = True
    with pytest.raises(AnsibleParserError, match="No cluster"):
        read(tmp_path)


@pytest.mark.parametrize("name, mine", [("gpu_nodes.yaml", True), ("x.gpu_nodes.yml", True), ("hosts.yml", False)])
def test_which_files_are_read(tmp_path: Path, name: str, mine: bool) -> None:
    (tmp_path / name).write_text("plugin: gpuops.nvidia.gpu_nodes\n")
    assert load().verify_file(str(tmp_path / name)) is mine
