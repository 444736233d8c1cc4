# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The inventory plugin: reads the GPU Nodes of a cluster, and adds them as hosts."""

from __future__ import annotations

DOCUMENTATION = r"""
name: gpu_nodes
short_description: Use the GPU Nodes of a Kubernetes cluster as hosts
version_added: 0.1.0
description:
  - Reads the Nodes of a cluster with one list request, and adds each Node with an NVIDIA GPU as a host with the same
    name.
  - A Node has a GPU if Node Feature Discovery has found one, if C(nvidia.com/gpu.present) says so, or if its kubelet
    offers a GPU or a part of one (C(nvidia.com/gpu), C(nvidia.com/mig-...)).
  - Model, driver and MIG are read from the labels of GPU feature discovery, whatever program wrote them.
  - Each host has the variables C(gpu_node_name), with which the other parts of this collection find its Node,
    C(ansible_host), see O(address_types), and C(gpu_node).
  - C(gpu_node) is a mapping of C(model), C(count), C(family), C(driver), C(cuda), C(mig) (a mapping of C(capable),
    C(strategy), C(config) and C(state)), C(upgrade_state), C(resources) (the GPU resources that the kubelet offers, by
    name), C(taints) (their keys), C(ready), C(schedulable), C(state), C(labels), C(os_image), C(kernel), C(runtime),
    C(kubelet) and C(provider_id). A value that is not known is null.
  - Each host with a GPU is in the groups C(gpu_model_*), C(gpu_driver_*), C(gpu_mig_capable), C(gpu_mig_incapable) or
    C(gpu_mig_unknown), and C(gpu_state_*). If it has the corresponding labels it is also in C(gpu_mig_strategy_*),
    C(gpu_mig_config_*), C(gpu_mig_state_*) and C(gpu_upgrade_*). The last has the state of a driver upgrade by the
    playbook upgrade or by a GPU Operator. Names are in lower case, with underscores for other characters, such as
    C(gpu_model_nvidia_a100_sxm4_80gb).
  - C(state) is V(not_ready) if the kubelet does not report or the Node is being deleted, V(cordoned), V(no_resources)
    if the kubelet offers no GPU to pods, and otherwise V(ready).
  - A Node with the name C(localhost), C(127.0.0.1), C(all) or C(ungrouped) is left out with a warning, because Ansible
    uses these names for the controller and for groups. So is a Node with the name of a group, or of a host in the
    group C(gpu_control) or with the connection C(local), of an inventory that was read before, because tasks for this
    Node would run there. List this inventory last.
  - A Node without a usable address is left out, too, if its name is not a host name, such as C(127.1), or is an address
    of another Node.
  - The name of the inventory file must end in C(gpu_nodes.yml) or C(gpu_nodes.yaml).
author:
  - The gpuops.nvidia maintainers (!UNKNOWN)
requirements:
  - kubernetes (on the controller)
extends_documentation_fragment:
  - ansible.builtin.constructed
  - ansible.builtin.inventory_cache
options:
  plugin:
    description: The name of this plugin, which marks the file as its configuration.
    type: str
    required: true
    choices: [gpuops.nvidia.gpu_nodes]
  kubeconfig:
    description:
      - The path of the kubeconfig of the cluster. No other kubeconfig is used.
      - A relative path is looked up next to the inventory file, then in the working directory.
      - If it changes, the cache is not used, because it may be for another cluster.
    type: str
    required: true
  context:
    description: A context in O(kubeconfig). The default is the current context.
    type: str
  nodes:
    description:
      - V(gpu) adds only Nodes with GPUs.
      - V(all) adds all Nodes. Nodes without GPUs are in none of the groups.
    type: str
    choices: [gpu, all]
    default: gpu
  address_types:
    description:
      - The types of addresses of a Node for C(ansible_host), in order of preference. If the Node has none of them, its
        name is used.
      - An address that is neither an IP address nor a host name is not used, and there is a warning. The same applies
        to addresses of the controller itself (C(127.0.0.1), C(localhost), C(0.0.0.0)), to multicast and link-local
        addresses, and to numbers that can be read as addresses (C(127.1)).
      - An address that several Nodes report is used for none of them, and a warning names these Nodes. Otherwise the
        tasks for a compromised Node could run on another Node.
      - If a Node is the controller itself, set C(ansible_connection=local) for it in your inventory.
      - The Nodes report their own addresses. A compromised Node can report the address of a machine that is not a Node
        of this cluster. Use an SSH key that only GPU hosts accept, or an empty list, so that the DNS of the controller
        resolves the names of the Nodes.
    type: list
    elements: str
    default: [InternalIP, ExternalIP, Hostname]
"""

EXAMPLES = r"""
# fleet.gpu_nodes.yml: the GPU Nodes of a cluster, read again after ten minutes
plugin: gpuops.nvidia.gpu_nodes
kubeconfig: ~/clusters/gpu.kubeconfig
cache: true
cache_plugin: ansible.builtin.jsonfile
cache_connection: ~/.cache/gpu-nodes
cache_timeout: 600

---
# hosts.gpu_nodes.yml: the same Nodes as hosts of site.yml, with groups by zone
plugin: gpuops.nvidia.gpu_nodes
kubeconfig: gpu.kubeconfig
context: production
address_types: [ExternalIP]
compose:
  ansible_user: "'ops'"
groups:
  gpu_hosts: gpu_node.ready
  without_driver: gpu_node.driver is none
keyed_groups:
  - key: gpu_node.labels['topology.kubernetes.io/zone']
    prefix: zone
"""

import os
import typing as t

from ansible.constants import LOCALHOST
from ansible.errors import AnsibleParserError
from ansible.plugins.inventory import BaseInventoryPlugin, Cacheable, Constructable
from ansible.utils.unsafe_proxy import wrap_var
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import GpuopsError
from ansible_collections.gpuops.nvidia.plugins.module_utils._files import digest, read_bytes
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.wording import SHOWN, fold, some_of
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import inventory_nodes

# No Node may have these names: tasks for the controller would run on it.
_ANSIBLES = ("all", "ungrouped", *LOCALHOST)


class InventoryModule(BaseInventoryPlugin, Constructable, Cacheable):
    """See the documentation above."""

    NAME = "gpuops.nvidia.gpu_nodes"

    def verify_file(self, path: str) -> bool:
        """Whether the file is for this plugin."""
        return bool(super().verify_file(path)) and path.endswith(("gpu_nodes.yml", "gpu_nodes.yaml"))

    def parse(self, inventory: t.Any, loader: t.Any, path: str, cache: bool = True) -> None:
        """Ansible's entry point."""
        super().parse(inventory, loader, path, cache)
        self._read_config_data(path)
        try:
            nodes = self._nodes(path, cache)
        except GpuopsError as error:
            raise AnsibleParserError(str(error)) from error
        self._taken = {*_ANSIBLES, *inventory.groups, *(name for name, host in inventory.hosts.items()
                                                        if _is_controller(host))}
        self._shared = inventory_nodes.shared_addresses(nodes)
        self._unclear: dict[str, list[str]] = {}
        for node in nodes:
            if node["gpu"] or self.get_option("nodes") == "all":
                self._add(node)
        if self._unclear:
            told = [f"{address} ({fold(names)})" for address, names in self._unclear.items()]
            self.display.warning("Several Nodes report the same address, so it is not used: "
                                 f"{some_of(told, SHOWN)}. Check which Node has the address.")

    def _nodes(self, path: str, cache: bool) -> list[inventory_nodes.Facts]:
        """Returns the facts of all Nodes, from the cache if that is allowed. Raises GpuopsError."""
        kubeconfig, context = self._kubeconfig(path), self.get_option("context")
        if not self.get_option("cache"):
            return _ask(kubeconfig, context)
        # The key contains the digest of the kubeconfig, which may be for another cluster now, and the version of the
        # facts, because another version of this plugin may have cached them.
        content = digest(read_bytes(kubeconfig) or b"")
        key = self.get_cache_key(f"{path} {kubeconfig} {context} {content} {inventory_nodes.SCHEMA}")
        if cache:
            try:
                return t.cast("list[inventory_nodes.Facts]", self._cache[key])
            except KeyError:
                pass
        self._cache[key] = found = _ask(kubeconfig, context)
        return found

    def _kubeconfig(self, path: str) -> str:
        given = os.path.expanduser(str(self.get_option("kubeconfig")))
        beside = os.path.join(os.path.dirname(os.path.abspath(path)), given)
        return beside if os.path.exists(beside) else os.path.abspath(given)

    def _add(self, node: inventory_nodes.Facts) -> None:
        """Adds one host. Data from kubelets is never a template."""
        name, strict = node["name"], self.get_option("strict")
        if not inventory_nodes.is_name(name):
            self.display.warning(f"A Node called {_short(name)} is left out: a Node cannot have this name.")
            return
        if name in self._taken:
            self.display.warning(f"A Node called {name} is left out: in Ansible this is the name of another host or of "
                                 "a group.")
            return
        variables = {"gpu_node_name": name, "gpu_node": node["gpu_node"]}
        known = self._address(node)
        if known:
            variables["ansible_host"] = known
        elif not self._is_its_own(name, name):
            self.display.warning(f"Node {name} is left out: it reports no usable address, and its name is no usable "
                                 "host name or is the address of another Node.")
            return
        self.inventory.add_host(name)
        for key, value in variables.items():
            self.inventory.set_variable(name, key, _data(value))
        for group in inventory_nodes.groups(node["gpu_node"]) if node["gpu"] else ():
            self.inventory.add_child(self.inventory.add_group(self._sanitize_group_name(group)), name)
        told = self.inventory.get_host(name).get_vars()
        self._set_composite_vars(self.get_option("compose"), told, name, strict)
        self._add_host_to_composed_groups(self.get_option("groups"), told, name, strict)
        self._add_host_to_keyed_groups(self.get_option("keyed_groups"), told, name, strict)

    def _address(self, node: inventory_nodes.Facts) -> str | None:
        """Returns the address for ansible_host, None if the Node reports no usable one."""
        for kind in self.get_option("address_types"):
            address = node["addresses"].get(kind)
            if not address:
                continue
            if self._is_its_own(node["name"], address):
                return str(address)
            if not inventory_nodes.is_address(address):
                self.display.warning(f"Node {node['name']}: its {kind} {_short(address)} is no IP address or host name "
                                     "of another machine, so it is not used. Check what runs there as its kubelet.")
        return None

    def _is_its_own(self, name: str, address: str) -> bool:
        """Whether an address is usable and no other Node reports it."""
        if not inventory_nodes.is_address(address):
            return False
        names = inventory_nodes.who_shares(name, address, self._shared)
        if names:
            self._unclear[address] = names
        return not names


def _is_controller(host: t.Any) -> bool:
    """Whether tasks for a host of another inventory may run on the controller."""
    of_groups = [group.get_vars() for group in host.get_groups()]
    connections = [told["ansible_connection"] for told in (host.get_vars(), *of_groups) if "ansible_connection" in told]
    return "local" in connections or "gpu_control" in {group.name for group in host.get_groups()}


def _short(value: object) -> str:
    return repr(value) if len(repr(value)) <= 80 else f"{repr(value)[:77]}..."


def _data(value: t.Any) -> t.Any:
    """Returns the value with strings marked as data that ansible-core 2.18 would read as templates."""
    if isinstance(value, dict):
        return {key: _data(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_data(one) for one in value]
    return wrap_var(value) if isinstance(value, str) and "{" in value else value


def _ask(kubeconfig: str, context: str | None) -> list[inventory_nodes.Facts]:
    return [inventory_nodes.describe(node) for node in Client(kubeconfig, context).list("v1", "Node")]
