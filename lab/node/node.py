# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Makes a lab host a Node of a lab cluster, with a real kubelet, containerd 2, and simulated GPUs.

The cgroups, mounts and network of the kubelet belong to the host and are removed with it (C(python3 -m lab down)).
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from lab import tools
from lab.controlplane import binary, certificates, nodes, processes
from lab.controlplane.cluster import Cluster
from lab.host import engine, needs
from lab.host.lab import Lab, inspect
from lab.node import images

HERE = Path(__file__).resolve().parent
ADDRESS, PORT = "10.96.0.1", 443  # of the API server in hosts and pods: the Service kubernetes
SETUP = "/usr/lib/gpulab/node"
PAUSE = "registry.k8s.io/pause:3.10"
SYSTEMS = {"ubuntu2404": "ubuntu24.04"}  # kinds of hosts that driver containers are published for


def join(cluster: Cluster, lab: Lab, host: str, names: list[str]) -> None:
    """Makes a host a Node and waits until it is Ready. names: the full names of the images that it gets."""
    system = SYSTEMS.get(lab.kind(host))
    if system is None:
        raise SystemExit(f"lab {lab.name} has {host} as {lab.kind(host)}: Nodes are {', '.join(SYSTEMS)}")
    container = lab.container(host)
    needs.go_ready()
    files = programs()
    open_door(cluster, host, int(inspect(container, "{{.State.Pid}}")))
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        shutil.copytree(HERE / "host", folder, dirs_exist_ok=True)
        shutil.copy(cluster.folder / "pki" / "ca.crt", folder)
        (folder / "kubeconfig").write_text(kubeconfig(cluster, host))
        (folder / "node").write_text(f"NAME={host}\nADDRESS={lab.address(host)}\n")
        (folder / "names").write_text("".join(
            f"{name} {images.WITH_DRIVER if '/driver:' in name else images.PLAIN}\n" for name in [*names, PAUSE]))
        engine.podman("exec", container, "mkdir", "-p", SETUP)
        for source in (files, folder):
            engine.podman("cp", f"{source}/.", f"{container}:{SETUP}")
    engine.podman("exec", container, "sh", f"{SETUP}/join.sh")
    model, _ignored, count = lab.hosts[host].split()[0].partition("=")
    describe(cluster, nodes.Node(host, system, model, int(count)))


def programs() -> Path:
    """The folder with the files that are copied to each host, built once with links to other builds."""
    parts = {"kubelet": binary.program(), "images.tar": images.archive()}
    for folder in (tools.containerd_programs(), tools.cni_programs()):
        parts |= {path.name: path for path in folder.iterdir()}

    def link(folder: Path) -> None:
        for name, path in parts.items():
            os.link(path, folder / name)

    return tools.cached("node", [f"{name} {path}".encode() for name, path in sorted(parts.items())], link)


def open_door(cluster: Cluster, host: str, pid: int) -> None:
    """Makes the API server available inside the host; it stops with the cluster."""
    part = f"door-{host}"
    if part in cluster.marks:
        processes.stop([cluster.marks[part]])
    words = [str(HERE / "door.py"), str(pid), ADDRESS, str(PORT), str(cluster.ports["api"])]
    cluster.marks[part] = processes.start(Path(sys.executable), "python3", words, cluster.folder)
    cluster.save()


def kubeconfig(cluster: Cluster, host: str) -> str:
    """The kubeconfig of the kubelet, which has only the permissions of its Node."""
    pki, name = cluster.folder / "pki", f"node-{host}"
    certificates.sign(pki, name, f"/O=system:nodes/CN=system:node:{host}")
    made: dict[str, Any] = json.loads(certificates.kubeconfig(pki, name, cluster.name, PORT))
    made["clusters"][0]["cluster"]["server"] = f"https://{ADDRESS}:{PORT}"
    return json.dumps(made)


def describe(cluster: Cluster, node: nodes.Node, limit: float = 240.0) -> None:
    """Waits for the kubelet to register, and gives the Node the labels that node feature discovery would."""
    end = time.monotonic() + limit
    with cluster.api() as server:
        where = f"{nodes.NODES}/{node.name}"
        while not server.request("GET", where, missing_ok=True):
            if time.monotonic() > end:
                raise SystemExit(f"the kubelet of {node.name} has not registered after {limit:.0f} s; look at: "
                                 f"python3 -m lab exec {node.name} 'journalctl -u kubelet'")
            time.sleep(0.2)
        server.apply(where, {"apiVersion": "v1", "kind": "Node",
                             "metadata": {"name": node.name, "labels": nodes.discovered(node)}})
        nodes.wait_ready(server, {node.name}, limit)
