# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Simulated nodes, as a kubelet registers them, with the labels of node feature discovery and GFD."""

from __future__ import annotations

import json
import platform
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.controlplane import api, cluster
from lab.host import lab

BOARDS = {board["model"]: board for board in json.loads(
    (Path(__file__).resolve().parents[1] / "nvml" / "boards.json").read_text())["boards"]}
DRIVER = "595.91.07"  # what GFD's labels say of nodes that have a driver
CUDA = "13.2"
KUBELET = "v1.36.3"
NODES = "/api/v1/nodes"


@dataclass(frozen=True)
class System:
    """An operating system as it appears in a node and its labels. runtime: containerd's version."""

    id: str
    version: str
    image: str
    kernel: str
    runtime: str


SYSTEMS = {
    "ubuntu22.04": System("ubuntu", "22.04", "Ubuntu 22.04.5 LTS", "5.15.0-151-generic", "1.7.28"),
    "ubuntu24.04": System("ubuntu", "24.04", "Ubuntu 24.04.3 LTS", "6.8.0-71-generic", "1.7.28"),
    "debian12": System("debian", "12", "Debian GNU/Linux 12 (bookworm)", platform.release(), "1.6.20"),
}


@dataclass(frozen=True)
class Node:
    """A node. model: the model of its GPUs, a name in boards.json, or empty. address: empty if kwok chooses it."""

    name: str
    system: str = "ubuntu24.04"
    model: str = ""
    gpus: int = 0
    address: str = ""
    on_host: bool = False


@dataclass(frozen=True)
class Labels:
    """Which labels nodes have in addition to those of the kubelet. found: node feature discovery's; described: GFD's
    (not on hosts)."""

    found: bool = True
    described: bool = False


def hosts(name: str) -> list[Node]:
    """The hosts of a lab as nodes with their addresses; if there is no lab of that name, those of the default lab."""
    known = lab.load(name) if name in lab.names() else None
    shapes = known.hosts if known else lab.parse(lab.DEFAULT)[0]
    found = []
    for host, gpus in shapes.items():
        model, _ignored, count = gpus.split()[0].partition("=")
        found.append(Node(host, "debian12", model, int(count), known.address(host) if known else "", on_host=True))
    return found


def plain(gpu: int, cpu: int, model: str, system: str, prefix: str = "gpu") -> list[Node]:
    """Nodes PREFIX-1 ... with 8 GPUs of one model, then cpu-1 ... without. system: a name in SYSTEMS, or mixed."""
    if model not in BOARDS:
        raise SystemExit(f"--model {model!r}: known are {', '.join(sorted(BOARDS))}")
    ubuntu = ("ubuntu24.04", "ubuntu22.04") if system == "mixed" else (system,)
    found = [Node(f"{prefix}-{place + 1}", ubuntu[place % len(ubuntu)], model, 8) for place in range(gpu)]
    return found + [Node(f"cpu-{place + 1}", ubuntu[place % len(ubuntu)]) for place in range(cpu)]


def hybrid(name: str, system: str) -> list[Node]:
    """The hosts of a lab, 20 further GPU nodes of three models that are no hosts, and 4 nodes without GPUs."""
    found = hosts(name)
    for model, count in (("a100-80", 8), ("h100-80", 8), ("l40s", 4)):
        found += plain(count, 0, model, system, f"sim-{model.partition('-')[0]}")
    return [*found, *plain(0, 4, "l40s", system)]


def manifest(node: Node, labels: Labels) -> dict[str, Any]:
    """The Node object, its status included."""
    system = SYSTEMS[node.system]
    size = {"cpu": "128" if node.gpus else "32", "memory": "1056Gi" if node.gpus else "128Gi",
            "ephemeral-storage": "900Gi", "hugepages-1Gi": "0", "hugepages-2Mi": "0", "pods": "110"}
    found = {"beta.kubernetes.io/arch": "amd64", "beta.kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
             "kubernetes.io/os": "linux", "kubernetes.io/hostname": node.name}
    found |= discovered(node) if labels.found else {}
    found |= described(node) if labels.described and node.model and not node.on_host else {}
    status: dict[str, Any] = {
        "capacity": size, "allocatable": size,
        "nodeInfo": {
            "architecture": "amd64", "bootID": "", "containerRuntimeVersion": f"containerd://{system.runtime}",
            "kernelVersion": system.kernel, "kubeProxyVersion": "", "kubeletVersion": KUBELET, "machineID": "",
            "operatingSystem": "linux", "osImage": system.image, "systemUUID": "",
        },
    }
    if node.address:
        status["addresses"] = [{"type": "InternalIP", "address": node.address},
                               {"type": "Hostname", "address": node.name}]
    return {"apiVersion": "v1", "kind": "Node", "status": status,
            "metadata": {"name": node.name, "labels": found, "annotations": {"kwok.x-k8s.io/node": "fake"}}}


def create(made: cluster.Cluster, wanted: list[Node], labels: Labels) -> None:
    """Creates nodes, or brings them to this description, and waits until they are Ready."""
    if wanted and not cluster.has_kwok(made):
        raise SystemExit(f"the cluster of {made.kubeconfig} has no kwok (no CRD stages.kwok.x-k8s.io), so nodes made "
                         "there would never be Ready: install kwok with its Stage CRD enabled, or use the nodes that "
                         "are there (--nodes empty)")
    objects = [manifest(node, labels) for node in wanted]
    with made.api() as server:
        def write(item: dict[str, Any]) -> None:
            item["metadata"]["labels"][cluster.MADE_BY] = made.name
            where = f"{NODES}/{item['metadata']['name']}"
            server.apply(where, item)
            server.apply(f"{where}/status", item)

        api.many(write, objects)
        wait_ready(server, {node.name for node in wanted})


def wait_ready(server: api.Api, names: set[str], limit: float = 300.0) -> None:
    """Waits until nodes are Ready."""
    end = time.monotonic() + limit
    while True:
        late = names - {node["metadata"]["name"] for node in server.objects(NODES) if ready(node)}
        if not late:
            return
        if time.monotonic() > end:
            raise SystemExit(f"nodes that are not Ready after {limit:.0f} s: {', '.join(sorted(late)[:10])}")
        time.sleep(0.2)


def ready(found: dict[str, Any]) -> bool:
    """Whether a Node or a Pod is Ready."""
    return any(condition["type"] == "Ready" and condition["status"] == "True"
               for condition in found["status"].get("conditions", ()))


def discovered(node: Node) -> dict[str, str]:
    """Labels of node feature discovery; with the configuration of the GPU Operator, a PCI label contains only the
    vendor."""
    system = SYSTEMS[node.system]
    numbers = re.findall(r"\d+", system.kernel)
    labels = {"kernel-version.full": system.kernel, "kernel-version.major": numbers[0],
              "kernel-version.minor": numbers[1], "kernel-version.revision": numbers[2],
              "system-os_release.ID": system.id, "system-os_release.VERSION_ID": system.version,
              "system-os_release.VERSION_ID.major": system.version.partition(".")[0],
              "system-os_release.VERSION_ID.minor": system.version.partition(".")[2]}
    if node.model:
        labels["pci-10de.present"] = "true"
    return {f"feature.node.kubernetes.io/{key}": value for key, value in labels.items()}


def described(node: Node) -> dict[str, str]:
    """Labels of GPU feature discovery for GPUs that are not partitioned."""
    board = BOARDS[node.model]
    major, minor = board["compute_capability"]
    driver, cuda = DRIVER.split("."), CUDA.split(".")
    labels = {
        "cuda.driver-version.full": DRIVER, "cuda.driver-version.major": driver[0],
        "cuda.driver-version.minor": driver[1], "cuda.driver-version.revision": driver[2],
        "cuda.driver.major": driver[0], "cuda.driver.minor": driver[1], "cuda.driver.rev": driver[2],
        "cuda.runtime-version.full": CUDA, "cuda.runtime-version.major": cuda[0],
        "cuda.runtime-version.minor": cuda[1], "cuda.runtime.major": cuda[0], "cuda.runtime.minor": cuda[1],
        "gpu.compute.major": major, "gpu.compute.minor": minor, "gpu.count": node.gpus,
        "gpu.family": board["architecture"].lower().replace("ada", "ada-lovelace"),
        "gpu.memory": board["memory_mib"], "gpu.mode": "compute", "gpu.product": board["name"].replace(" ", "-"),
        "gpu.replicas": 1, "gpu.sharing-strategy": "none", "mig.capable": str(bool(board["profiles"])).lower(),
        "mig.strategy": "single", "mps.capable": "false", "vgpu.present": "false",
    }
    return {f"nvidia.com/{key}": str(value) for key, value in labels.items()}
