# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""python3 -m lab: GPU hosts and clusters on this machine, for the demo, molecule and the tests (C(--help))."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

from lab import runs
from lab.controlplane import cli as cluster_cli
from lab.controlplane import cluster
from lab.host import engine, image, inventory, lab, needs, snapshot, trace
from lab.packages import serve
from lab.vm import cli as vm_cli
from lab.vm import machine

HOST_FAULTS = ("nouveau", "nouveau-in-use", "secure-boot", "module-in-use", "build-fails", "no-headers", "no-gpus",
               "slow-ssh")

PARTS = {"packages": (needs.ensure, "Debian packages on this machine"),
         "browser": (lambda: needs.ensure(needs.BROWSER_PACKAGES), "a browser for the page of the report"),
         "hosts": (lab.build, "the image of most hosts and the repositories (the default)"),
         "kinds": (lab.build_kinds, "the images of all kinds of hosts")}


def main(words: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    choice = parser().parse_args(words)
    began = time.monotonic()
    if choice.command == "up":
        made = lab.up(choice.name, choice.hosts)
        path = inventory.write(made)
        print(f"lab {made.name}: {len(made.hosts)} hosts up after {time.monotonic() - began:.1f} s; "
              f"repositories at {made.url}\n{path}")
        return 0
    if choice.command == "down":
        if choice.purge and choice.name != "main":
            raise SystemExit("--purge takes away all labs and caches: say it without --name")
        return down_all() if choice.all else down(choice.name, choice.purge)
    if choice.command == "build":
        PARTS[choice.part][0]()
        print(f"{choice.part} built, after {time.monotonic() - began:.1f} s")
        return 0
    if choice.command == "cluster":
        return cluster_cli.main(choice)
    if choice.command == "vm":
        return vm_cli.main(choice)
    if choice.command == "trace":
        return trace.main(choice.file, choice.against)
    if choice.command == "status":
        return status()
    found = lab.load(choice.name)
    if choice.command == "exec":
        return execute(found, choice.host, choice.words)
    if choice.command == "inventory":
        print(inventory.write(found))
    elif choice.command == "reset":
        lab.reset(found, choice.host)
    elif choice.command == "snapshot":
        print(engine.enter(found.container(choice.host), "sh", stdin=snapshot.SCRIPT).stdout, end="")
    elif choice.command == "fault":
        fault(found, choice.host, choice.fault, choice.state)
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="python3 -m lab",
                                  description="GPU hosts and clusters on this machine, without a GPU.")
    commands = top.add_subparsers(dest="command", required=True)

    def command(name: str, text: str, host: bool = False) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=text, description=text)
        made.add_argument("--name", default="main", help="the lab (default %(default)s)")
        if host:
            made.add_argument("host", help="a host of the lab")
        return made

    command("up", "start a lab, or complete a running one").add_argument(
        "--hosts", default=lab.DEFAULT, help="NAME=MODEL:COUNT[+MODEL:COUNT][@KIND],... (default %(default)s; kinds: "
        f"{', '.join(image.KINDS)}; none: {image.DEFAULT})")
    removing = command("down", "stop and remove a lab")
    removing.add_argument("--all", action="store_true", help="all labs, clusters and virtual machines (where "
                          f"{runs.VARIABLE} names a run of tests: those of that run)")
    removing.add_argument("--purge", action="store_true", help="those of all runs too, the caches, and the Debian "
                          "packages that the lab installed")
    text = "make what a part of the lab needs, unless it is there"
    commands.add_parser("build", help=text, description=text).add_argument(
        "part", nargs="?", choices=PARTS, default="hosts", help="; ".join(f"{name}: {what}"
                                                                        for name, (_build, what) in PARTS.items()))
    command("status", "all labs and their hosts")
    command("exec", "run a shell command on a host as its root", host=True).add_argument("words", nargs="+")
    command("inventory", "write the Ansible inventory and print its path")
    command("reset", "a fresh host in place of this one", host=True)
    command("snapshot", "print /etc, units and packages, for a comparison", host=True)
    faulty = command("fault", "set or clear a fault")
    faulty.add_argument("host", help="a host, or 'repo' for the repositories")
    faulty.add_argument("fault", help=f"host: {', '.join(HOST_FAULTS)}, unreachable, or one of gpusim as "
                        f"NAME[:GPU[:VALUE[:CODE]]]; repo: {', '.join(serve.FAULTS)}")
    faulty.add_argument("state", choices=("on", "off"))
    text = "clusters: a real control plane, simulated nodes"
    cluster_cli.add_commands(commands.add_parser("cluster", help=text, description=text))
    text = "virtual machines with a real kernel"
    vm_cli.add_commands(commands.add_parser("vm", help=text, description=text))
    tracing = command("trace", "write down what is on this machine: processes, mounts, interfaces, files ...")
    tracing.add_argument("file", help="where to write")
    tracing.add_argument("--against", help="an earlier trace: print the differences, exit 1 if there are any")
    return top


def down(name: str, purge: bool) -> int:
    """Stops one lab, or everything."""
    if purge:
        running = runs.running()
        if running:
            raise SystemExit(f"tests still run on this machine, in the processes {', '.join(running)}: wait for them "
                             "or end them, then run this again")
        for run in runs.names():
            runs.remove(run)
        down_all()
        lab.purge()
        print("Nothing of the lab is left on this machine.")
    elif name in lab.names():
        lab.down(name)
        print(f"lab {name} is removed; its caches stay for the next start (--purge removes them)")
    else:
        print(f"lab {name} is not there")
    return 0


def down_all() -> int:
    """Stops all that this run has, or that users have started."""
    engine.prepare_if_there()
    cluster.purge()
    machine.purge()
    for name in lab.names():
        lab.down(name)
    return 0


def status() -> int:
    """A line a host."""
    for name in lab.names():
        found = lab.load(name)
        print(f"lab {name}: repositories at {found.url}")
        for host, gpus in found.hosts.items():
            state = lab.inspect(found.container(host), "{{.State.Status}}") or "not there"
            print(f"  {host:<12} {state:<10} {found.address(host):<15} {found.kind(host):<10} {gpus}")
    if not lab.names():
        print("no lab; start one: python3 -m lab up")
    if needs.record().exists():
        print(f"installed by the lab: {' '.join(needs.record().read_text().split())}")
    return 0


def execute(found: lab.Lab, host: str, words: list[str]) -> int:
    """Runs one shell command; its input, output and exit code are passed on."""
    command = words[0] if len(words) == 1 else " ".join(words)
    interactive = ["--interactive", "--tty"] if sys.stdin.isatty() and sys.stdout.isatty() else []
    sys.stdout.flush()
    return engine.podman("exec", *interactive, found.container(host), "sh", "-c", command, check=False,
                         capture=False).returncode


def fault(found: lab.Lab, host: str, name: str, state: str) -> None:
    """Sets or clears a fault of a host, of its GPUs, or of the repositories."""
    on = state == "on"
    container = found.container(host)
    if host == "repo":
        if name not in serve.FAULTS:
            raise SystemExit(f"the repositories have no fault {name!r}; there are {', '.join(serve.FAULTS)}")
        path = found.folder / "www" / "faults"
        words = set(path.read_text().split()) - {name}
        path.write_text(" ".join(sorted(words | ({name} if on else set()))))
    elif name == "unreachable":
        engine.enter(container, "ip", "link", "set", "eth0", "down" if on else "up")
        if on:
            lab.close_connections(found.name)
    elif name in HOST_FAULTS:
        engine.enter(container, "/usr/lib/gpulab/fault", name, state)
        if name == "slow-ssh":
            lab.close_connections(found.name)
    else:
        kind, *values = name.split(":")
        engine.enter(container, "gpusim", "fault", "set" if on else "clear", kind,
                      *(values or ["all"])[:None if on else 1])


def run() -> None:
    """Entry point that ends quietly where the reader of our output has gone."""
    try:
        sys.exit(main())
    except (BrokenPipeError, KeyboardInterrupt, subprocess.TimeoutExpired) as problem:
        sys.exit(f"lab: {type(problem).__name__} {problem}".rstrip())
