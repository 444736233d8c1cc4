# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The inventory of Nodes: variables, groups, composed variables, and the cache."""

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
from ansible.utils.display import Display
from ansible_collections.gpuops.nvidia.plugins.inventory import gpu_nodes
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import inventory_nodes

Object = dict[str, Any]
GPU = "feature.node.kubernetes.io/pci-10de.present"
A100 = {GPU: "true", "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB", "nvidia.com/gpu.count": "8",
        "nvidia.com/gpu.family": "ampere", "nvidia.com/cuda.driver-version.full": "595.91.07",
        "nvidia.com/cuda.runtime-version.full": "13.2", "nvidia.com/mig.capable": "true",
        "nvidia.com/mig.strategy": "mixed", "nvidia.com/mig.config": "all-1g.10gb",
        "nvidia.com/mig.config.state": "success", "nvidia.com/gpu-driver-upgrade-state": "upgrade-done"}


def node(name: str, labels: dict[str, str], ready: bool = True, resources: dict[str, str] | None = None,
         address: str = "", **spec: Any) -> Object:
    """A Node as the API server returns it. address: its InternalIP, by default a unique one."""
    return {"metadata": {"name": name, "labels": labels}, "spec": spec, "status": {
        "conditions": [{"type": "Ready", "status": "True" if ready else "Unknown"}],
        "allocatable": {"cpu": "8", **(resources or {})},
        "addresses": [{"type": "InternalIP", "address": address or f"{name}.internal"},
                      {"type": "Hostname", "address": name}],
        "nodeInfo": {"osImage": "{{ 1 + 1 }}", "kernelVersion": "6.8.0", "containerRuntimeVersion": "containerd://2.1",
                     "kubeletVersion": "v1.36.3"}}}


FLEET = [
    node("a", A100, resources={"nvidia.com/mig-1g.10gb": "56", "nvidia.com/gpu": "0"}, address="10.0.0.7",
         providerID="aws:///x"),
    node("b", {GPU: "true", "nvidia.com/gpu.product": "Tesla-T4"}, taints=[{"key": "x/y", "effect": "NoSchedule"}]),
    node("c", {"nvidia.com/gpu.present": "true", "nvidia.com/cuda.driver.major": "570",
               "nvidia.com/cuda.driver.minor": "172", "nvidia.com/cuda.driver.rev": "08"}, unschedulable=True),
    node("d", {}, ready=False, resources={"nvidia.com/gpu.shared": "16"}),
    node("cpu", {}),
]


class Asked:
    """Replaces the client; counts list requests."""

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
    """The plugin without Ansible's loader, which works only for installed collections."""
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


def read(folder: Path, use_cache: bool = True, inventory: InventoryData | None = None, **options: Any
         ) -> InventoryData:
    """What a file with these options gives. inventory: what others have given before."""
    path = folder / "x.gpu_nodes.yml"
    path.write_text(yaml.safe_dump({"plugin": "gpuops.nvidia.gpu_nodes", "kubeconfig": "k", **options}))
    plugin, found = load(), inventory or InventoryData()
    assert plugin.verify_file(str(path))
    plugin.parse(found, DataLoader(), str(path), use_cache)
    if options.get("cache"):
        plugin.update_cache_if_changed()
    found.reconcile_inventory()
    return found


def groups(found: InventoryData, host: str) -> set[str]:
    """The groups of a host, except all and ungrouped."""
    return {group.name for group in found.hosts[host].get_groups()} - {"all", "ungrouped"}


def reached(found: InventoryData) -> dict[str, str | None]:
    """Maps hosts to the addresses at which Ansible reaches them, None for the name."""
    return {name: host.get_vars().get("ansible_host") for name, host in found.hosts.items()}


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
    """The first is no longer Ready, although its kubelet reports; the other has no GPU."""
    leaving = node("e", A100, resources={"nvidia.com/gpu": "8"})
    leaving["metadata"]["deletionTimestamp"] = "2026-11-22T07:00:00Z"
    monkeypatch.setattr(Asked, "list", lambda *asked: [leaving, node("nic", {}, resources={"nvidia.com/hostdev": "8"})])
    found = read(tmp_path)
    assert set(found.hosts) == {"e"} and "gpu_state_not_ready" in groups(found, "e")


def test_variables(tmp_path: Path) -> None:
    """No report of a kubelet is used as a template."""
    variables = read(tmp_path).hosts["a"].get_vars()
    assert variables["ansible_host"] == "10.0.0.7" and variables["gpu_node_name"] == "a"
    labels = variables["gpu_node"].pop("labels")
    assert labels == A100 and variables["gpu_node"] == {
        "model": "NVIDIA-A100-SXM4-80GB", "count": 8, "family": "ampere", "driver": "595.91.07", "cuda": "13.2",
        "mig": {"capable": True, "strategy": "mixed", "config": "all-1g.10gb", "state": "success"},
        "upgrade_state": "upgrade-done", "resources": {"nvidia.com/mig-1g.10gb": 56}, "taints": [], "ready": True,
        "schedulable": True, "state": "ready", "os_image": "{{ 1 + 1 }}", "kernel": "6.8.0",
        "runtime": "containerd://2.1", "kubelet": "v1.36.3", "provider_id": "aws:///x"}
    assert inventory_nodes.describe(FLEET[1])["gpu_node"]["taints"] == ["x/y"]


@pytest.mark.parametrize("types, address", [(["Hostname", "InternalIP"], "a"), (["ExternalIP"], None),
                                            (["ExternalIP", "InternalIP"], "10.0.0.7")])
def test_addresses(tmp_path: Path, types: list[str], address: str | None) -> None:
    assert read(tmp_path, address_types=types).hosts["a"].get_vars().get("ansible_host") == address


HOSTILE = ["-oProxyCommand=touch /tmp/owned", "a b", "a;b", "$(id)", "`id`", "{{ lookup('pipe', 'id') }}", "a\n", "a/b",
           "../x", "-a", "a-", "a..b", "a.-b", ".a", "a.", "a_b", "é", "fe80::1%eth0", "fe80::1%-oProxyCommand=x",
           "1.2.3.4 x", "ssh://x", "root@x", "[::1]", "a" * 64, "a." * 127 + "ab", "\x1b[2J", "\u202ea", 7, ["a"],
           {"a": 1}, True]


def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The warnings from now on."""
    said: list[str] = []
    monkeypatch.setattr(Display, "warning", lambda _self, text, *_more, **_options: said.append(text))
    return said


def test_hostile_addresses_and_names() -> None:
    """ansible_host, or else the name of the host, becomes an argument of ssh on the controller."""
    assert [one for one in HOSTILE if inventory_nodes.is_address(one) or inventory_nodes.is_name(one)] == []


# Where tasks would run on the controller, or nobody knows where.
ELSEWHERE = [
    "127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1", "0:0:0:0:0:ffff:7f00:1", "0.0.0.0", "::", "::ffff:0.0.0.0",
    "localhost", "LocalHost", "a.localhost", "localhost.localdomain", "localhost4", "localhost6.localdomain6",
    "ip6-localhost", "ip6-loopback", "169.254.169.254", "fe80::1", "::ffff:169.254.1.1", "224.0.0.1", "ff02::1",
    "7", "0", "127.1", "127.0.1", "2130706433", "0x7f000001", "0x7f.1", "127.0.0x1", "0177.0.0.1", "017700000001", "0x",
    "10.0.0.256"]


def test_addresses_of_the_controller_itself() -> None:
    assert [one for one in ELSEWHERE if inventory_nodes.is_address(one)] == []


def test_an_address_that_is_none_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next address type is used, and a warning names the Node."""
    bad = [*HOSTILE, *ELSEWHERE]
    said, nodes = warnings(monkeypatch), [node(f"n{number}", A100) for number in range(len(bad))]
    for number, (one, address) in enumerate(zip(nodes, bad)):
        one["status"]["addresses"] = [{"type": "InternalIP", "address": address},
                                      {"type": "ExternalIP", "address": f"10.0.1.{number}"}]
    alone, second = node("alone", A100), node("second", A100)
    alone["status"]["addresses"] = [{"type": "InternalIP", "address": HOSTILE[0]}]
    second["status"]["addresses"] = [*alone["status"]["addresses"], {"type": "InternalIP", "address": "10.0.0.8"}]
    monkeypatch.setattr(Asked, "list", lambda *asked: [*nodes, alone, second])
    hosts = read(tmp_path).hosts
    assert [hosts[one["metadata"]["name"]].get_vars()["ansible_host"] for one in nodes] == [
        f"10.0.1.{number}" for number in range(len(bad))]
    assert "ansible_host" not in hosts["alone"].get_vars()
    assert hosts["second"].get_vars()["ansible_host"] == "10.0.0.8"
    assert len(said) == len(nodes) + 1
    assert said[0].startswith("Node n0: its InternalIP '-oProxyCommand=touch /tmp/owned'")
    assert all(text.isprintable() and len(text) < 250 for text in said)


def addresses(*nodes: tuple[str, str, str]) -> list[Object]:
    """Nodes from lines of C((name, type of an address, address))."""
    made = {name: node(name, A100) for name, _kind, _address in nodes}
    for name in made:
        made[name]["status"]["addresses"] = [{"type": kind, "address": address} for one, kind, address in nodes
                                             if one == name]
    return list(made.values())


@pytest.mark.parametrize("claim", ["10.0.0.7", "::ffff:10.0.0.7", "FD00:0::7", "fd00::7", "gpu-7.example.com"])
def test_an_address_that_two_nodes_give_is_used_for_neither(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, claim: str) -> None:
    """Otherwise, tasks for the Node with the false address would run on the other one. One warning names both."""
    said = warnings(monkeypatch)
    found = addresses(("evil", "InternalIP", claim), ("gpu-7", "InternalIP", "10.0.0.7"),
                      ("gpu-7", "InternalIP", "fd00::7"), ("gpu-7", "Hostname", "GPU-7.example.com"),
                      ("other", "InternalIP", "10.0.0.8"))
    monkeypatch.setattr(Asked, "list", lambda *asked: found)
    types = ["Hostname", "InternalIP"] if claim.startswith("gpu") else ["InternalIP"]
    hosts = reached(read(tmp_path, address_types=types))
    assert hosts["evil"] is None and hosts["other"] == "10.0.0.8"
    assert hosts["gpu-7"] == (None if claim.endswith("10.0.0.7") else "10.0.0.7")
    assert len(said) == 1 and "(evil, gpu-7)" in said[0] and said[0].isprintable()


def test_the_name_of_a_node_is_no_address_of_another_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No Node can use the name of another Node as its address."""
    said = warnings(monkeypatch)
    found = addresses(("evil", "Hostname", "gpu-7"), ("gpu-7", "Hostname", "gpu-7"), ("gpu-8", "Hostname", "gpu-8"))
    monkeypatch.setattr(Asked, "list", lambda *asked: found)
    hosts = reached(read(tmp_path))
    assert hosts == {"evil": None, "gpu-7": "gpu-7", "gpu-8": "gpu-8"}
    assert len(said) == 1 and "gpu-7 (evil, gpu-7)" in said[0]


def test_a_name_that_leads_elsewhere_is_no_address_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without ansible_host, Ansible connects to the name of the host."""
    said = warnings(monkeypatch)
    found = addresses(("10.0.0.7", "Other", "x"), ("gpu-7", "InternalIP", "10.0.0.7"), ("127.1", "InternalIP", "::1"),
                      ("10.0.0.8", "InternalIP", "10.0.0.8"), ("8", "InternalIP", "10.0.0.9"), ("gpu-9", "Other", "x"))
    monkeypatch.setattr(Asked, "list", lambda *asked: found)
    hosts = reached(read(tmp_path))
    assert hosts == {"gpu-7": None, "10.0.0.8": "10.0.0.8", "8": "10.0.0.9", "gpu-9": None}
    assert sum("is left out" in text for text in said) == 2 and sum("10.0.0.7 (" in text for text in said) == 1


@pytest.mark.parametrize("address", ["10.0.0.7", "fd00::7", "::ffff:10.0.0.7", "Gpu-01.Example.COM", "a" * 63,
                                     "0a.b-c.d", "10.0.0.7.example.com", "0xa.b", "localhosts", "my-localhost"])
def test_addresses_that_are_used(address: str) -> None:
    assert inventory_nodes.is_address(address)


def test_a_node_has_the_name_of_a_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = warnings(monkeypatch)
    monkeypatch.setattr(Asked, "list", lambda *asked: [
        *(node(name, A100, address="10.0.0.7") for name in HOSTILE), node("b", A100)])
    assert set(read(tmp_path).hosts) == {"b"} and len(said) == len(HOSTILE)
    assert all(text.isprintable() for text in said)


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "all", "ungrouped"])
def test_a_node_is_not_what_ansible_calls_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Otherwise, tasks for the controller (hosts: localhost, delegate_to) would go to the address of the Node."""
    said = warnings(monkeypatch)
    monkeypatch.setattr(Asked, "list", lambda *asked: [node(name, A100), node("b", A100)])
    assert set(read(tmp_path).hosts) == {"b"}
    assert len(said) == 1 and name in said[0]


def test_a_node_is_no_group_and_no_controller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kubelet chooses its name: as a host of gpu_control it would have the driver installed on the controller."""
    said = warnings(monkeypatch)
    monkeypatch.setattr(Asked, "list", lambda *asked: [node(name, A100) for name in (
        "workers", "control", "here", "there", "known", "b")])
    inventory = InventoryData()
    for group, name in (("workers", "w1"), ("gpu_control", "control"), ("workers", "known"), ("locals", "there")):
        inventory.add_group(group)
        inventory.add_host(name, group)
    inventory.add_host("here")
    inventory.set_variable("here", "ansible_connection", "local")
    inventory.set_variable("locals", "ansible_connection", "local")
    found = read(tmp_path, inventory=inventory).hosts
    assert [name for name, host in found.items() if "gpu_node" in host.get_vars()] == ["known", "b"]
    assert [text.split()[3] for text in said] == ["workers", "control", "here", "there"]


@pytest.mark.parametrize("amount", ["²", "٣", "9" * 5000, "1k", "-1", ""])
def test_amounts_that_are_no_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, amount: str) -> None:
    monkeypatch.setattr(Asked, "list", lambda *asked: [node("a", A100, resources={"nvidia.com/gpu": amount})])
    assert read(tmp_path).hosts["a"].get_vars()["gpu_node"]["resources"] == {}


def test_what_kubelets_say_reaches_no_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = node("a", {**A100, "nvidia.com/gpu.count": "²" * 3})
    one["status"]["nodeInfo"]["osImage"] = "\x1b]0;owned\x07\x9b2J"
    monkeypatch.setattr(Asked, "list", lambda *asked: [one])
    found = read(tmp_path).hosts["a"].get_vars()["gpu_node"]
    assert found["os_image"] == r"\x1b]0;owned\x07\x9b2J" and found["count"] is None


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
    """Two reads use one list request; another context is another cluster; a refresh requests the list again."""
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


def test_what_another_version_has_cached_does_not_count(
        tmp_path: Path, asked: type[Asked], monkeypatch: pytest.MonkeyPatch) -> None:
    options: Any = {"cache": True, "cache_plugin": "jsonfile", "cache_connection": str(tmp_path / "cache")}
    read(tmp_path, **options)
    monkeypatch.setattr(inventory_nodes, "SCHEMA", inventory_nodes.SCHEMA + 1)
    read(tmp_path, **options)
    assert asked.count == 2


def test_the_form_that_caches_keep() -> None:
    """A change of these names requires a new fleet.SCHEMA."""
    found = inventory_nodes.describe(FLEET[0])
    assert inventory_nodes.SCHEMA == 1
    assert " ".join(found) == "name addresses reachable gpu gpu_node"
    assert " ".join(found["gpu_node"]) == (
        "model count family driver cuda mig upgrade_state resources taints ready schedulable labels os_image kernel "
        "runtime kubelet provider_id state")
    assert " ".join(found["gpu_node"]["mig"]) == "capable strategy config state"


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
