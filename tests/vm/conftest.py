# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A virtual machine with a real kernel."""

from __future__ import annotations

import base64
import io
import json
import subprocess
import tarfile
from collections.abc import Iterator
from typing import Any

import pytest

from lab import runs
from lab.host import engine, needs
from lab.packages import CUDA_PATH
from lab.vm import image, inventory, machine, packages
from tests.integration import user

runs.begin()
FIRST, OTHER = "595.91.07", "580.126.20"
MODULES = {"nvidia", "nvidia_uvm", "nvidia_modeset"}


class Guest:
    """The machine, through SSH and through the role."""

    def __init__(self, made: machine.Machine) -> None:
        self.machine = made
        self.inventory = inventory.write(made)

    def sh(self, script: str) -> str:
        """The output of a shell script; fails if the script does."""
        return self.machine.ssh(script).stdout.strip()

    def fails(self, script: str) -> str:
        """The output of a shell script that must fail."""
        done = self.machine.ssh(script, check=False)
        assert done.returncode, f"{script} did not fail: {done.stdout}"
        return done.stderr + done.stdout

    def keep_code(self) -> None:
        """Gives the machine the compiled code of what Ansible will send, if its Python has the version of this
        machine's.

        Compilation takes long on an emulated processor.
        """
        folder = "/var/lib/gpulab/kept-code"
        done = subprocess.run([str(user.PYTHON), "-c", COMPILE, str(user.collections())], check=True, timeout=300,
                              env={"GPUOPS_KEPT_CODE": str(engine.kept_code())}, capture_output=True, text=True)
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as archive:
            for name in done.stdout.split():
                archive.add(name, name.rpartition("/")[2])
        self.machine.ssh(f"base64 -d | tar -xz -C {folder}", stdin=base64.b64encode(packed.getvalue()).decode())

    def role(self, **variables: Any) -> dict[str, Any]:
        """The result of nvidia_driver after a run of the role on this host; the variables have no prefix."""
        values = {f"driver_{name}": value for name, value in {"disruption": "idle", **variables}.items()}
        run = user.ansible("ansible-playbook", f"-i{self.inventory}", "-e", json.dumps(values),
                           user.role("driver"), timeout=1200)
        assert run.rc == 0, run.output
        return run.result(inventory.HOST, "nvidia_driver")

    def works(self, version: str) -> None:
        """Checks that the kernel, the library, the tool and the device nodes have the same version."""
        assert self.sh("cat /sys/module/nvidia/version") == version
        assert f" {version} " in self.sh("cat /proc/driver/nvidia/version")
        assert {line.split()[0] for line in self.sh("cat /proc/modules").splitlines()} >= MODULES
        assert len(self.sh("nvidia-smi -L").splitlines()) == 2
        assert version in self.sh("nvidia-smi")
        assert self.sh("ls /dev/nvidia0 /dev/nvidia1 /dev/nvidiactl /dev/nvidia-uvm | wc -l") == "4"
        # The kernel accepts these numbers: there is a driver behind the nodes.
        self.sh("exec 3< /dev/nvidia1 4< /dev/nvidiactl 5< /dev/nvidia-uvm")

    def hold(self) -> int:
        """Starts a unit "trainer" that uses the first GPU; returns its process once it does, because systemd waits only
        for its fork."""
        self.sh("systemd-run --quiet --unit trainer sh -c 'exec sleep infinity < /dev/nvidia0'")
        return int(self.sh("pid=$(systemctl show trainer --property MainPID --value); for _ in $(seq 600); do "
                           "grep -qsx sleep /proc/$pid/comm && echo $pid && exit; sleep 0.2; done; "
                           "echo the unit trainer does not become sleep >&2; exit 1"))

    def situation(self) -> str:
        """Everything that an installation, a switch or an unload would change."""
        return self.sh("cat /proc/modules | cut -d ' ' -f 1,4 | sort; dpkg-query -W; dkms status; systemctl is-active "
                       "nvidia-persistenced; find /etc /lib/modules/*/updates -type f -exec sha256sum {} + | sort")


# In the user's environment, whose Python keeps code as the machine's does: the code of modules and what they import.
COMPILE = """
import _imp, pathlib, sys
import ansible.module_utils, kept_code
ours = pathlib.Path(sys.argv[1], "ansible_collections/gpuops/nvidia/plugins")
theirs = pathlib.Path(ansible.module_utils.__file__).parent
for path in (*ours.glob("module*/**/*.py"), *theirs.glob("*.py"), *theirs.glob("[!f]*/*.py")):
    source = path.read_bytes()
    kept_code.code_of(path.name, source)
    print(f"{kept_code.FOLDER}/{kept_code.MAGIC:x}-{len(source):x}-{_imp.source_hash(kept_code.MAGIC, source).hex()}")
"""
# As an administrator would, from the vendor's repository; then comes a newer kernel without its headers, as where only
# its package is upgraded: DKMS can build nothing for it.
BY_HAND = f"""\
export DEBIAN_FRONTEND=noninteractive
echo 'deb [trusted=yes] http://{machine.REPOSITORIES}/{CUDA_PATH} /' > /etc/apt/sources.list.d/hand.list
apt-get -qq update
apt-get -qq install linux-headers-$(uname -r) nvidia-driver-pinning-{FIRST}
apt-get -qq install --no-install-recommends nvidia-driver-cuda nvidia-kernel-open-dkms
rm /etc/apt/sources.list.d/hand.list
modprobe nvidia-uvm && modprobe nvidia-modeset
apt-get -qq install linux-image-@NEWER@
! dkms status | grep -F @NEWER@
"""


@pytest.fixture(scope="module")
def guest(kernels: tuple[str, str]) -> Iterator[Guest]:
    """A machine with a driver that was installed without the role, and a newer kernel that boots next."""
    needs.ensure((*needs.PACKAGES, *needs.VM_PACKAGES))
    user.install()
    script = BY_HAND.replace("@NEWER@", kernels[1])
    inputs = [(packages.repository() / "digest").read_bytes(), script.encode()]
    state = machine.state("driver", inputs, machine.booted(), lambda made: made.ssh(f"set -eu\n{script}"))
    made = Guest(machine.up("guest", state))
    made.keep_code()
    yield made
    machine.remove("guest")


@pytest.fixture(scope="session")
def kernels() -> tuple[str, str]:
    """The running kernel, and a newer one that can be installed."""
    return image.kernels()
