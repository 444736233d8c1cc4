# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""python3 -m lab cluster: clusters on this machine. See C(python3 -m lab cluster --help)."""

from __future__ import annotations

import argparse
from pathlib import Path

from lab.controlplane import binary, cluster, processes


def add_commands(top: argparse.ArgumentParser) -> None:
    """The commands below C(python3 -m lab cluster)."""
    commands = top.add_subparsers(dest="action", required=True)

    def command(name: str, text: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=text, description=text)
        made.add_argument("--name", default="main", help="the cluster (default %(default)s)")
        return made

    up = command("up", "start a cluster, or register an existing one")
    up.add_argument("--kubeconfig", type=Path, help="an existing cluster, to be known under this name")
    command("down", "stop and remove a cluster").add_argument("--purge", action="store_true", help="all clusters")
    commands.add_parser("status", help="all clusters, their processes and nodes")
    commands.add_parser("build", help="only build the control plane's program, and print its path")
    command("kubeconfig", "print the path of the administrator's kubeconfig")
    command("audit", "print the path of the audit log")


def main(choice: argparse.Namespace) -> int:
    """Does what was chosen; returns the exit code."""
    if choice.action == "build":
        print(binary.program())
    elif choice.action == "up":
        if choice.kubeconfig:
            cluster.register(choice.name, choice.kubeconfig)
        else:
            cluster.up(choice.name)
    elif choice.action == "down":
        down(choice.name, choice.purge)
    elif choice.action == "status":
        status()
    else:
        made = cluster.load(choice.name)
        print(made.kubeconfig if choice.action == "kubeconfig" else made.audit_log)
    return 0


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
    """A line a cluster and a line a process."""
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
