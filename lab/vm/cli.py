# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""python3 -m lab vm: virtual machines with a real kernel. See C(python3 -m lab vm --help)."""

from __future__ import annotations

import argparse
import time

from lab.host import needs
from lab.vm import inventory, machine


def add_commands(top: argparse.ArgumentParser) -> None:
    """The commands below C(python3 -m lab vm)."""
    commands = top.add_subparsers(dest="action", required=True)

    def command(name: str, text: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=text, description=text)
        made.add_argument("--name", default="vm", help="the machine (default %(default)s)")
        return made

    commands.add_parser("build", help="only make the disk and the state that machines go on from")
    command("up", "a fresh machine that has booted and has no driver, in the place of one of this name")
    command("down", "end and remove a machine")
    command("ssh", "run a shell command in a machine as its root").add_argument("words", nargs="+")
    command("inventory", "write the Ansible inventory and print its path")
    commands.add_parser("status", help="all machines")


def main(choice: argparse.Namespace) -> int:
    """Runs the chosen command; returns the exit code."""
    if choice.action in ("build", "up"):
        needs.ensure((*needs.PACKAGES, *needs.VM_PACKAGES))
    if choice.action == "build":
        print(machine.booted())
    elif choice.action == "up":
        began = time.monotonic()
        made = machine.up(choice.name)
        print(f"machine {made.name} up after {time.monotonic() - began:.1f} s\n{inventory.write(made)}")
    elif choice.action == "down":
        machine.remove(choice.name)
        print(f"machine {choice.name} is removed; what machines go on from stays (lab down --purge removes it)")
    elif choice.action == "ssh":
        return machine.load(choice.name).ssh(" ".join(choice.words), check=False, capture=False).returncode
    elif choice.action == "inventory":
        print(inventory.write(machine.load(choice.name)))
    else:
        for name in machine.names():
            found = machine.load(name)
            print(f"{name}: {'up' if found.runs else 'has ended'}, ssh -p {found.port} root@127.0.0.1")
    return 0
