# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A virtual machine with a real kernel, in which the role driver has installed a first driver."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from lab.host import needs
from lab.tools import write_whole
from lab.vm import image, inventory, machine, packages
from tests.integration import user

FIRST, OTHER = "595.91.07", "580.126.20"
MODULES = {"nvidia", "nvidia_uvm", "nvidia_modeset"}
PLAY = """\
- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.import_role:
        name: gpuops.nvidia.driver
        tasks_from: host
"""


class Guest:
    """The machine, by SSH and by the role."""

    def __init__(self, made: machine.Machine) -> None:
        self.machine = made
        self.inventory = inventory.write(made)

    def sh(self, script: str) -> str:
        """What a shell script prints; fails with it."""
        return self.machine.ssh(script).stdout.strip()

    def fails(self, script: str) -> str:
        """What a shell script says that has to fail."""
        done = self.machine.ssh(script, check=False)
        assert done.returncode, f"{script} did not fail: {done.stdout}"
        return done.stderr + done.stdout

    def role(self, *words: str, **variables: Any) -> dict[str, Any]:
        """The result of nvidia_driver after the role's run on this host; variables without their prefix."""
        play = user.HOME / "vm.yml"
        write_whole(play, PLAY)  # both gates with machines have it, at the same time
        values = {f"driver_{name}": value for name, value in {"disruption": "idle", **variables}.items()}
        run = user.ansible("ansible-playbook", f"-i{self.inventory}", *words, "-e", json.dumps(values), str(play),
                           timeout=2400)
        assert run.rc == 0, run.output
        return run.result(inventory.HOST, "nvidia_driver")

    def plan(self, **variables: Any) -> list[str]:
        """The step ids that check mode names."""
        return [step["id"] for step in self.role("--check", **variables)["plan"]]

    def works(self, version: str) -> None:
        """The kernel, the library, the tool and the device nodes agree."""
        assert self.sh("cat /sys/module/nvidia/version") == version
        assert f" {version} " in self.sh("cat /proc/driver/nvidia/version")
        assert {line.split()[0] for line in self.sh("cat /proc/modules").splitlines()} >= MODULES
        assert len(self.sh("nvidia-smi -L").splitlines()) == 2
        assert version in self.sh("nvidia-smi")
        assert self.sh("ls /dev/nvidia0 /dev/nvidia1 /dev/nvidiactl /dev/nvidia-uvm | wc -l") == "4"
        # The kernel accepts these numbers: there is a driver behind the nodes.
        self.sh("exec 3< /dev/nvidia1 4< /dev/nvidiactl 5< /dev/nvidia-uvm")

    def hold(self) -> int:
        """A unit "trainer" that holds the first GPU; its process, once it does: systemd waits for its fork alone."""
        self.sh("systemd-run --quiet --unit trainer sh -c 'exec sleep infinity < /dev/nvidia0'")
        return int(self.sh("pid=$(systemctl show trainer --property MainPID --value); until grep -qsx sleep "
                           "/proc/$pid/comm; do sleep 0.2; done; echo $pid"))

    def situation(self) -> str:
        """All that an install, a switch or an unload would change."""
        return self.sh("cat /proc/modules | cut -d ' ' -f 1,4 | sort; dpkg-query -W; dkms status; systemctl is-active "
                       "nvidia-persistenced; find /etc /lib/modules/*/updates -type f -exec sha256sum {} + | sort")


def install(made: machine.Machine) -> None:
    """The first driver, by the role: the build takes long where a processor is emulated."""
    result = Guest(made).role(version=FIRST)
    assert result["changed"]


@pytest.fixture(scope="module")
def guest(request: pytest.FixtureRequest) -> Iterator[Guest]:
    """A machine that goes on from the first driver's state; each file of tests has its own."""
    name = request.path.stem.replace("_", "-")
    needs.ensure((*needs.PACKAGES, *needs.VM_PACKAGES))
    user.install()
    inputs = [(packages.repository() / "digest").read_bytes()]
    made = machine.up(name, machine.state("driver", inputs, machine.booted(), install))
    yield Guest(made)
    machine.remove(name)


@pytest.fixture(scope="session")
def kernels() -> tuple[str, str]:
    """The kernel that runs and a newer one that can be installed."""
    return image.kernels()
