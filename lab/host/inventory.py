# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The Ansible inventory of a running lab."""

from __future__ import annotations

from pathlib import Path

from lab.host import image
from lab.host.lab import Lab, sockets

SSH = ("-o ControlMaster=auto -o ControlPersist=300s -o ControlPath={sockets}/%C -o StrictHostKeyChecking=no "
       "-o UserKnownHostsFile=/dev/null -o LogLevel=ERROR -o IdentitiesOnly=yes -o ConnectTimeout=60")


def variables(lab: Lab) -> dict[str, str]:
    """The variables of all hosts: how to reach them, and which repositories to use."""
    found = lab.repositories
    return {
        "ansible_user": "root",
        "ansible_ssh_private_key_file": str(image.key()),
        "ansible_ssh_args": SSH.format(sockets=sockets(lab.name)),
        "ansible_pipelining": "true",
        "ansible_python_interpreter": "/usr/bin/python3",
        # The kernel, and so its boot_id, is shared by all hosts.
        "ansible_reboot_boot_time_command": "systemctl show --property=UserspaceTimestampMonotonic --value",
        "driver_repository_url": lab.url + found["cuda_path"],
        "driver_repository_key": lab.url + found["cuda_key_path"],
        "driver_repository_fingerprint": found["cuda_fingerprint"],
        "container_toolkit_repository_url": lab.url + found["toolkit_path"],
        "container_toolkit_repository_key": lab.url + found["toolkit_key_path"],
        "container_toolkit_repository_fingerprint": found["toolkit_fingerprint"],
    }


# By kind of host, which of the repositories the driver comes from where it is not that of Debian.
DRIVER_REPOSITORIES = {"rocky9": "rpm", "sles15": "suse", "ubuntu2404": "ubuntu_cuda"}
# By kind, how an ordinary user becomes root there; a terminal, which sudo wants, and pipelining exclude each other.
USERS = {"debian12user": {"ansible_user": "deploy", "ansible_become": "true",
                          "ansible_become_password": "deploy-password", "ansible_pipelining": "false"}}
# Those with RPM.
RPM_KINDS = ("rocky9", "sles15")


def host_variables(lab: Lab, host: str) -> dict[str, str]:
    """The variables of a host that depend on its kind."""
    found, kind = lab.repositories, lab.kind(host)
    name = DRIVER_REPOSITORIES.get(kind)
    own = dict(USERS.get(kind, {}))
    own |= {"container_toolkit_repository_url": lab.url + found["toolkit_rpm_path"]} if kind in RPM_KINDS else {}
    if name is None:
        return own
    return {**own, "driver_repository_url": lab.url + found[f"{name}_path"],
            "driver_repository_key": lab.url + found[f"{name}_key_path"],
            "driver_repository_fingerprint": found[f"{name}_fingerprint"]}


def write(lab: Lab) -> Path:
    """Writes the inventory beside the lab's record."""
    sockets(lab.name).mkdir(mode=0o700, parents=True, exist_ok=True)
    lines = ["all:", "  children:", "    gpu_hosts:", "      hosts:"]
    for host in lab.hosts:
        lines += [f"        {host}:", f"          ansible_host: {lab.address(host)}", "          ansible_port: 22"]
        lines += [f"          {key}: {plain(value)}" for key, value in host_variables(lab, host).items()]
    lines += ["      vars:"]
    lines += [f"        {key}: {plain(value)}" for key, value in variables(lab).items()]
    path = lab.folder / "inventory.yml"
    path.write_text("\n".join(lines) + "\n")
    return path


def plain(text: str) -> str:
    """A YAML value: a truth value, or a string."""
    return text if text in ("true", "false") else quoted(text)


def quoted(text: str) -> str:
    """A YAML string in double quotes."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
