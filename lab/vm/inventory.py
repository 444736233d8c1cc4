# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The Ansible inventory of a virtual machine."""

from __future__ import annotations

from pathlib import Path

from lab.host import image
from lab.host.inventory import quoted
from lab.packages import CUDA_PATH
from lab.packages.driver_debs import KEY_FILE
from lab.packages.keys import keys
from lab.vm.machine import REPOSITORIES, SSH, Machine

HOST = "gpu-vm"


def variables(machine: Machine) -> dict[str, str]:
    """The variables for the connection, and the repository to use."""
    address = f"http://{REPOSITORIES}/{CUDA_PATH}"
    return {
        "ansible_host": "127.0.0.1", "ansible_port": str(machine.port), "ansible_user": "root",
        "ansible_ssh_private_key_file": str(image.key()), "ansible_ssh_args": " ".join((*SSH, *machine.shared)),
        "ansible_pipelining": "true", "ansible_python_interpreter": "/usr/bin/python3",
        "driver_repository_url": address, "driver_repository_key": f"{address}{KEY_FILE}",
        "driver_repository_fingerprint": keys()["cuda"].fingerprint,
    }


def write(machine: Machine) -> Path:
    """Writes the inventory beside the record of the machine."""
    lines = ["all:", "  children:", "    gpu_hosts:", "      hosts:", f"        {HOST}:"]
    lines += [f"          {key}: {value if value == 'true' else quoted(value)}"
              for key, value in variables(machine).items()]
    path = machine.folder / "inventory.yml"
    path.write_text("\n".join(lines) + "\n")
    return path
