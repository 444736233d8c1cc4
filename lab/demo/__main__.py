# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""C(make demo): site.yml on three lab hosts, twice, on this machine."""

from __future__ import annotations

import os
import subprocess
import sys

from lab.stages import ROOT, Stages, clock

WHAT = """\
The demo runs gpuops.nvidia.site on three GPU hosts: two with 8 A100-80GB each, one with 4 L40S.
The hosts are systemd containers on this machine, reached by SSH. The GPUs, the kernel module and the vendor's
packages are simulated; apt, dpkg, dkms, systemd, containerd and Ansible are real.

It puts on this machine:
  .venv, .build                 ansible-core and what it needs; logs (in this folder; `make clean`)
  the lab                       Debian packages that are missing, hosts and their files (`make lab-down PURGE=1`)
"""


def main() -> int:
    """Returns the exit code of the first thing that failed, else 0."""
    print(WHAT, flush=True)
    stages = Stages("demo")
    try:
        lab = stages.start("lab up", [sys.executable, "-m", "lab", "up"])
        if not stages.run("venv", [sys.executable, "-m", "lab.venv"]) or not stages.join(lab):
            return 1
        inventory = subprocess.run([sys.executable, "-m", "lab", "inventory"], cwd=ROOT, check=True, text=True,
                                   capture_output=True).stdout.strip().splitlines()[-1]
        for name in ("site.yml: first run", "site.yml: second run"):
            with stages.shown(name) as stage:
                stage.rc = site(inventory)
            if stage.rc:
                return 1
            if len(stages.done) == 3:
                print(f"\nAll hosts converged {clock(stages.done[-1].seconds)} after the start of the run.", flush=True)
    finally:
        stages.stop()
        print(f"\n{stages.table()}\n", flush=True)
    print(f"The second run changed nothing (changed=0 on every host). Look around:\n"
          f"  python3 -m lab exec gpu-a1 nvidia-smi\n"
          f"  {shown('site')} --check --diff\n"
          f"  {shown('status')}\n"
          f"  {shown('remove')}\n"
          f"  make lab-down PURGE=1")
    return 0


def command(inventory: str, playbook: str) -> list[str]:
    """The playbook with the lab's inventory and what the demo wants of its hosts."""
    return [".venv/bin/ansible-playbook", "-i", inventory, "-i", "lab/demo/hosts.yml", f"gpuops.nvidia.{playbook}"]


def shown(playbook: str) -> str:
    """The command as a user would type it."""
    return " ".join(command("$(python3 -m lab inventory)", playbook))


def site(inventory: str) -> int:
    """Runs the playbook with its output shown. Returns its exit code."""
    print(f"$ {shown('site')}", flush=True)
    env = {**os.environ, "ANSIBLE_HOME": str(ROOT / ".build" / "ansible-home"), "ANSIBLE_NOCOWS": "1"}
    env.pop("ANSIBLE_COLLECTIONS_PATH", None)
    return subprocess.run(command(inventory, "site"), cwd=ROOT, env=env, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
