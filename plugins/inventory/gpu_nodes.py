# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: gpu_nodes
short_description: The GPU Nodes of a Kubernetes cluster as hosts
version_added: 0.1.0
description:
  - Reads the Nodes of a cluster, by one list, and makes a host of each that has an NVIDIA GPU, called as the Node.
  - A Node has a GPU where Node Feature Discovery has seen one, C(nvidia.com/gpu.present) says so, or its kubelet offers
    a GPU or a part of one (C(nvidia.com/gpu), C(nvidia.com/mig-...)).
  - Model, driver and MIG are what labels of GPU feature discovery say, in whatever way they came to the Node.
  - Each host has the variables C(gpu_node_name), by which the other parts of this collection know its Node,
    C(ansible_host), see O(address_types), and C(gpu_node), a mapping of C(model), C(count), C(family), C(driver),
    C(cuda), C(mig) (a mapping of C(capable), C(strategy), C(config) and C(state)), C(upgrade_state), C(resources)
    (what the kubelet offers of GPUs, by name), C(taints) (their keys), C(ready), C(schedulable),
    C(state), C(labels), C(os_image), C(kernel), C(runtime), C(kubelet) and C(provider_id). What nobody has told is
    null.
  - Each host with a GPU is in the groups C(gpu_model_*), C(gpu_driver_*), C(gpu_mig_capable), C(gpu_mig_incapable) or
    C(gpu_mig_unknown), and C(gpu_state_*). Where it has such labels it is also in C(gpu_mig_strategy_*),
    C(gpu_mig_config_*), C(gpu_mig_state_*) and C(gpu_upgrade_*). Names are in lower case, with other characters as
    underscores, such as C(gpu_model_nvidia_a100_sxm4_80gb).
  - C(state) is V(not_ready) where the kubelet does not report or the Node is being removed, V(cordoned),
    V(no_resources) where the kubelet offers no GPU to pods, else V(ready).
  - A Node called C(localhost), C(127.0.0.1), C(all) or C(ungrouped) is left out with a warning. To Ansible these are
    the controller and its groups. So is a Node without an address that can be used, if its name is no host name, such
    as C(127.1), or is an address of another Node.
  - The name of the file has to end in C(gpu_nodes.yml) or C(gpu_nodes.yaml).
author:
  - The gpuops.nvidia maintainers (!UNKNOWN)
requirements:
  - kubernetes (on the controller)
extends_documentation_fragment:
  - ansible.builtin.constructed
  - ansible.builtin.inventory_cache
options:
  plugin:
    description: Says that the file is for this plugin.
    type: str
    required: true
    choices: [gpuops.nvidia.gpu_nodes]
  kubeconfig:
    description:
      - Path of the kubeconfig of the cluster. No other is looked for.
      - A relative path is looked for beside the file, then in the working directory.
      - When it has changed, what is cached does not count, as it may be of another cluster.
    type: str
    required: true
  context:
    description: A context in it, instead of its current one.
    type: str
  nodes:
    description:
      - V(gpu) takes the Nodes that have GPUs.
      - V(all) takes the others, too, which are in none of the groups.
    type: str
    choices: [gpu, all]
    default: gpu
  address_types:
    description:
      - Which address of a Node becomes C(ansible_host), by type; the first that it has. None of them leaves the Node's
        name as the address.
      - What is neither an IP address nor a host name is not used, and a warning says so. The same goes for addresses of
        the controller itself (C(127.0.0.1), C(localhost), C(0.0.0.0)), for multicast and link-local addresses, and for
        numbers that would be read as addresses (C(127.1)).
      - An address that several Nodes give is used for none of them, and a warning names these Nodes. Otherwise a
        compromised Node could have the tasks for it run on another one.
      - A Node that is the controller itself needs C(ansible_connection=local) in the inventory of the user.
      - The Nodes themselves say what their addresses are. A compromised Node can still name a host that is no Node of
        this cluster. Use a key that only hosts with GPUs accept, or an empty list, so that the names of the Nodes are
        resolved by the DNS of the controller.
    type: list
    elements: str
    default: [InternalIP, ExternalIP, Hostname]
"""

EXAMPLES = r"""
# fleet.gpu_nodes.yml: the GPU Nodes of a cluster, asked for once in ten minutes
plugin: gpuops.nvidia.gpu_nodes
kubeconfig: ~/clusters/gpu.kubeconfig
cache: true
cache_plugin: ansible.builtin.jsonfile
cache_connection: ~/.cache/gpu-nodes
cache_timeout: 600

---
# hosts.gpu_nodes.yml: the same Nodes as hosts of site.yml, where their racks are known by a label of the Nodes
plugin: gpuops.nvidia.gpu_nodes
kubeconfig: gpu.kubeconfig
context: production
address_types: [ExternalIP]
compose:
  ansible_user: "'ops'"
groups:
  gpu_hosts: gpu_node.ready
  wants_a_driver: gpu_node.driver is none
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
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.wording import some_of
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import fleet
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.deploy import SHOWN, fold

# What these mean to Ansible, no Node may become: tasks for the controller would go to it.
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
        self._shared = fleet.shared_addresses(nodes)
        self._unclear: dict[str, list[str]] = {}
        for node in nodes:
            if node["gpu"] or self.get_option("nodes") == "all":
                self._add(node)
        if self._unclear:
            told = [f"{address} ({fold(names)})" for address, names in self._unclear.items()]
            self.display.warning("Several Nodes report the same address, so it is not used: "
                                 f"{some_of(told, SHOWN)}. Check which Node has the address.")

    def _nodes(self, path: str, cache: bool) -> list[fleet.Facts]:
        """What is known of all Nodes, from the cache where that is allowed. Raises GpuopsError."""
        kubeconfig, context = self._kubeconfig(path), self.get_option("context")
        if not self.get_option("cache"):
            return _ask(kubeconfig, context)
        # By its content too: the file may have become that of another cluster, or be gone. By the version of the facts
        # too: another version of this plugin may have cached them.
        content = digest(read_bytes(kubeconfig) or b"")
        key = self.get_cache_key(f"{path} {kubeconfig} {context} {content} {fleet.SCHEMA}")
        if cache:
            try:
                return t.cast("list[fleet.Facts]", self._cache[key])
            except KeyError:
                pass
        self._cache[key] = found = _ask(kubeconfig, context)
        return found

    def _kubeconfig(self, path: str) -> str:
        given = os.path.expanduser(str(self.get_option("kubeconfig")))
        beside = os.path.join(os.path.dirname(os.path.abspath(path)), given)
        return beside if os.path.exists(beside) else os.path.abspath(given)

    def _add(self, node: fleet.Facts) -> None:
        """One host. What kubelets have told is data, and never a template."""
        name, strict = node["name"], self.get_option("strict")
        if not fleet.is_name(name):
            self.display.warning(f"A Node called {_short(name)} is left out: that is no name of a Node.")
            return
        if name in _ANSIBLES:
            self.display.warning(f"A Node called {name} is left out: to Ansible that is another host, or a group.")
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
        for group in fleet.groups(node["gpu_node"]) if node["gpu"] else ():
            self.inventory.add_child(self.inventory.add_group(self._sanitize_group_name(group)), name)
        told = self.inventory.get_host(name).get_vars()
        self._set_composite_vars(self.get_option("compose"), told, name, strict)
        self._add_host_to_composed_groups(self.get_option("groups"), told, name, strict)
        self._add_host_to_keyed_groups(self.get_option("keyed_groups"), told, name, strict)

    def _address(self, node: fleet.Facts) -> str | None:
        """Where its host is reached, None where the Node says nothing that can be used."""
        for kind in self.get_option("address_types"):
            address = node["addresses"].get(kind)
            if not address:
                continue
            if self._is_its_own(node["name"], address):
                return str(address)
            if not fleet.is_address(address):
                self.display.warning(f"Node {node['name']}: its {kind} {_short(address)} is no IP address or host name "
                                     "of another machine, so it is not used. Look at what runs there as its kubelet.")
        return None

    def _is_its_own(self, name: str, address: t.Any) -> bool:
        """Whether a Node can be reached at an address, and no other Node gives it."""
        if not fleet.is_address(address):
            return False
        names = fleet.who_shares(name, address, self._shared)
        if names:
            self._unclear[address] = names
        return not names


def _short(value: t.Any) -> str:
    return repr(value) if len(repr(value)) <= 80 else f"{repr(value)[:77]}..."


def _data(value: t.Any) -> t.Any:
    """The same with strings marked that ansible-core 2.18 would take for templates."""
    if isinstance(value, dict):
        return {key: _data(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_data(one) for one in value]
    return wrap_var(value) if isinstance(value, str) and "{" in value else value


def _ask(kubeconfig: str, context: str | None) -> list[fleet.Facts]:
    return [fleet.describe(node) for node in Client(kubeconfig, context).list("v1", "Node")]
