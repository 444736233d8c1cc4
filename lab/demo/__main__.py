# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""C(make demo): site.yml on three lab hosts, then on the same hosts as Nodes of a cluster, on this machine."""

from __future__ import annotations

import os
import subprocess
import sys

from lab.stages import ROOT, Stages, clock

WHAT = """\
The demo runs gpuops.nvidia.site twice over, each time until nothing is left to change.
  hosts    three GPU hosts: two with 8 A100-80GB each, one with 4 L40S
  hybrid   the same hosts as Nodes of a cluster, beside 20 more GPU Nodes and 4 without GPUs: driver, container toolkit
           and MIG stay on the hosts, the rest is delivered in the cluster
The hosts are systemd containers on this machine, reached by SSH. The GPUs, the kernel module, the vendor's packages and
what runs in pods are simulated; apt, dpkg, dkms, systemd, containerd, the API server and Ansible are real.

It puts on this machine:
  .venv, .build                 ansible-core and what it needs; logs (in this folder; `make clean`)
  the lab                       Debian packages that are missing, hosts and their files, a control plane that is built
                                from Go modules (8 minutes on two cores, once) (`make lab-down PURGE=1`)
"""
LAB = [sys.executable, "-m", "lab"]


def main() -> int:
    """Returns the exit code of the first command that failed, otherwise 0."""
    print(WHAT, flush=True)
    stages = Stages("demo")
    try:
        # The slowest part first, at low priority: the hosts do not wait for it.
        program = stages.start("control plane build", [*LAB, "cluster", "build"])
        lab = stages.start("lab up", [*LAB, "up"])
        if not stages.run("venv", [sys.executable, "-m", "lab.venv"]) or not stages.join(lab):
            return 1
        if not twice(stages, "hosts"):
            return 1
        if not stages.join(program) or not stages.run("cluster up", [*LAB, "cluster", "up", "--gfd"]):
            return 1
        if not twice(stages, "hybrid"):
            return 1
    finally:
        stages.stop()
        print(f"\n{stages.table()}\n", flush=True)
    print("The second runs changed nothing (changed=0). Look around:\n"
          "  python3 -m lab exec gpu-a1 nvidia-smi\n"
          "  export KUBECONFIG=$(python3 -m lab cluster kubeconfig)    # for kubectl; gpuops.nvidia never reads it\n"
          f"  {command('site', 'hybrid')} --check --diff\n"
          f"  {command('status', 'hybrid')}\n"
          f"  {command('remove', 'hybrid')} -e gpu_disruption=drain\n"
          "  make lab-down PURGE=1")
    return 0


def twice(stages: Stages, placement: str) -> bool:
    """Runs site.yml until it has nothing to do. Returns whether both runs succeeded."""
    for turn in ("first", "second"):
        with stages.shown(f"site.yml, {placement}: {turn} run") as stage:
            stage.rc = site(placement)
        if stage.rc:
            return False
        if turn == "first":
            print(f"\nConverged {clock(stages.done[-1].seconds)} after the start of the run.", flush=True)
    return True


def command(playbook: str, placement: str) -> str:
    """The command of the playbook with the inventory of the lab and the variables of the demo, as a user would type
    it."""
    words = [".venv/bin/ansible-playbook", "-i", "$(python3 -m lab inventory)", "-i", "lab/demo/hosts.yml"]
    if placement == "hybrid":
        words += ["-i", "lab/demo/cluster.yml", "-e", "gpu_kubeconfig=$(python3 -m lab cluster kubeconfig)"]
    return " ".join([*words, f"gpuops.nvidia.{playbook}"])


def site(placement: str) -> int:
    """Runs the playbook with its output shown. Returns its exit code."""
    typed = command("site", placement)
    print(f"$ {typed}", flush=True)
    env = {**os.environ, "ANSIBLE_HOME": str(ROOT / ".build" / "ansible-home"), "ANSIBLE_NOCOWS": "1"}
    env.pop("ANSIBLE_COLLECTIONS_PATH", None)
    return subprocess.run(typed, shell=True, cwd=ROOT, env=env, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
