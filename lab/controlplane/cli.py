# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""python3 -m lab cluster: clusters on this machine. See C(python3 -m lab cluster --help)."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from lab.controlplane import binary, cluster, faults, nodes, processes
from lab.host import lab as labs
from lab.node import node

SETS = ("hybrid", "plain", "empty")
SETS_HELP = ("hybrid (default): the hosts of --lab, 20 GPU nodes that are no hosts, 4 without GPUs; plain: --gpu and "
             "--cpu; empty: none (default with --kubeconfig)")


def add_commands(top: argparse.ArgumentParser) -> None:
    """The commands below C(python3 -m lab cluster)."""
    commands = top.add_subparsers(dest="action", required=True)

    def command(name: str, text: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=text, description=text)
        made.add_argument("--name", default="main", help="the cluster (default %(default)s)")
        return made

    up = command("up", "start a cluster, or register an existing one")
    up.add_argument("--kubeconfig", type=Path, help="an existing cluster, to be known under this name")
    up.add_argument("--nodes", choices=SETS, help=SETS_HELP)
    node_options(up)
    made = command("nodes", "create nodes, or change the labels and the status of those that are there")
    made.add_argument("nodes", choices=SETS, nargs="?", default="hybrid", help=SETS_HELP)
    node_options(made)
    joined = command("join", "make a host of a lab, of kind ubuntu2404, a Node with a kubelet that runs containers")
    joined.add_argument("host")
    joined.add_argument("--lab", default="main", help="the host's lab (default %(default)s)")
    joined.add_argument("--image", action="append", default=[], help="the full name of an image that it has: a "
                        "stand-in, which has a driver where the name ends in /driver:TAG")
    staged = command("stage", "set or heal a fault: " + "; ".join(f"{key}: {text}" for key, text in
                                                                  faults.FAULTS.items()))
    staged.add_argument("fault", choices=faults.FAULTS)
    staged.add_argument("state", choices=("on", "off"))
    staged.add_argument("--node", default="", help="only on this node (default: on all)")
    staged.add_argument("--app", default="", help="a DaemonSet or Deployment")
    staged.add_argument("--container", default="", help="which container (default: the first, init containers aside)")
    staged.add_argument("--running", action="store_true", help="the container runs and does not get ready")
    staged.add_argument("--seconds", type=float, default=0.0)
    command("down", "stop and remove a cluster").add_argument("--purge", action="store_true", help="all clusters")
    commands.add_parser("status", help="all clusters, their processes and nodes")
    commands.add_parser("build", help="only build the control plane's program, and print its path")
    command("kubeconfig", "print the path of the administrator's kubeconfig")
    command("audit", "print the path of the audit log")


def node_options(command: argparse.ArgumentParser) -> None:
    """The options that describe the nodes."""
    command.add_argument("--gpu", type=int, default=0, help="plain: nodes with 8 GPUs")
    command.add_argument("--cpu", type=int, default=0, help="plain: nodes without GPUs")
    command.add_argument("--model", default="a100-80", help="plain: the GPUs (default %(default)s)")
    command.add_argument("--prefix", default="gpu", help="plain: how the GPU nodes' names begin (default %(default)s)")
    command.add_argument("--os", default="ubuntu24.04", choices=(*nodes.SYSTEMS, "mixed"),
                         help="of nodes that are no hosts; mixed: Ubuntu 24.04 and 22.04 by turns")
    command.add_argument("--lab", default="main", help="hybrid: the lab whose hosts are nodes (default %(default)s)")
    command.add_argument("--gfd", action="store_true", help="with the labels of GPU feature discovery")
    command.add_argument("--bare", action="store_true", help="without the labels of node feature discovery")


def main(choice: argparse.Namespace) -> int:
    """Runs the chosen command; returns the exit code."""
    if choice.action == "build":
        print(binary.program())
    elif choice.action == "up":
        up(choice)
    elif choice.action == "nodes":
        create_nodes(cluster.load(choice.name), choice, choice.nodes)
    elif choice.action == "join":
        join(cluster.load(choice.name), choice)
    elif choice.action == "stage":
        stage(cluster.load(choice.name), choice)
    elif choice.action == "down":
        down(choice.name, choice.purge)
    elif choice.action == "status":
        status()
    else:
        made = cluster.load(choice.name)
        print(made.kubeconfig if choice.action == "kubeconfig" else made.audit_log)
    return 0


def up(choice: argparse.Namespace) -> None:
    """Starts or registers a cluster, and creates its nodes."""
    if choice.kubeconfig:
        made, usual = cluster.register(choice.name, choice.kubeconfig), "empty"
    else:
        made, usual = cluster.up(choice.name, lambda text: print(text, flush=True)), "hybrid"
    create_nodes(made, choice, choice.nodes or usual)
    print(made.kubeconfig)


def create_nodes(made: cluster.Cluster, choice: argparse.Namespace, kind: str) -> None:
    """The nodes that the options describe."""
    began = time.monotonic()
    wanted = []
    if kind == "hybrid":
        wanted = nodes.hybrid(choice.lab, choice.os)
    elif kind == "plain":
        wanted = nodes.plain(choice.gpu, choice.cpu, choice.model, choice.os, choice.prefix)
    nodes.create(made, wanted, nodes.Labels(found=not choice.bare, described=choice.gfd))
    print(f"cluster {made.name}: {len(wanted)} nodes Ready after {time.monotonic() - began:.1f} s", flush=True)


def join(made: cluster.Cluster, choice: argparse.Namespace) -> None:
    """A host as a Node."""
    began = time.monotonic()
    node.join(made, labs.load(choice.lab), choice.host, choice.image)
    print(f"cluster {made.name}: {choice.host} is a Node, Ready after {time.monotonic() - began:.1f} s", flush=True)


def stage(made: cluster.Cluster, choice: argparse.Namespace) -> None:
    """Sets or heals a fault."""
    if choice.state == "off":
        count = faults.off(made, choice.fault, choice.app, choice.node)
        print(f"cluster {made.name}: {choice.fault} healed ({count} pods)")
        return
    wanted = faults.fault(choice.fault, choice.app, choice.node, choice.container, choice.running, choice.seconds)
    print(f"cluster {made.name}: {choice.fault} set, shown by {faults.on(made, wanted)} pods")


def down(name: str, purge: bool) -> None:
    """Removes one cluster, or all."""
    if purge:
        cluster.purge()
        print("no cluster of the lab is left on this machine; the program that they run stays")
    elif name in cluster.names():
        cluster.down(name)
        print(f"cluster {name} is removed")
    else:
        print(f"cluster {name} is not there")


def status() -> None:
    """Prints one line for each cluster and for each process."""
    for name in cluster.names():
        made = cluster.load(name)
        if made.external:
            print(f"cluster {name}: registered from {made.external}")
            continue
        print(f"cluster {name}: {'up' if made.runs else 'not running'} at https://127.0.0.1:{made.ports['api']}")
        for part, mark in made.marks.items():
            state = f"{processes.memory(mark):>5} MiB" if processes.runs(mark) else "has ended"
            print(f"  {part:<24} {mark[0]:>7} {state}")
    if not cluster.names():
        print("no cluster; start one: python3 -m lab cluster up")
