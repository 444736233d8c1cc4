# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Creates device nodes, now and at boot.

The kernel modules do not create device nodes. The packages of NVIDIA and of distributions contain udev rules that run
nvidia-modprobe. The .run file contains nvidia-modprobe, but no such rules. Therefore, the device nodes would not exist
until the first program uses CUDA.
"""

from __future__ import annotations

import os
import stat
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.files import RESTORE
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.parts import DesiredDriver, Part, Phased
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.state import DriverState
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.device_nodes import ownership, required_nodes
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step

MAKE = "make device nodes"
RULES_FILE = "/etc/udev/rules.d/60-gpuops-nvidia.rules"
WRITE_RULES = "write device rules"


def rules_text(gpus: int) -> bytes:
    """The udev rules for a number of GPUs (nvidia-modprobe(1): -c creates the node of a minor number, -u the nodes of
    nvidia-uvm)."""
    nodes = " ".join(f"-c {minor}" for minor in range(gpus))
    calls = {"nvidia": nodes, "nvidia_uvm": "-u -c 0"}
    lines = "".join(f'ACTION=="add", SUBSYSTEM=="module", KERNEL=="{name}", RUN+="/usr/bin/nvidia-modprobe {words}"\n'
                    for name, words in calls.items())
    return f"# Written by gpuops.nvidia: creates device nodes when the modules are loaded.\n{lines}".encode()


class DeviceNodes(Part):
    """Creates the device nodes of a loaded driver, and the udev rules for a driver from a .run file."""

    def plan(self, now: DriverState, desired: DesiredDriver) -> list[Phased]:
        """See L(Part)."""
        return [*self._rules(now, desired), *self._nodes(now, desired)]

    def _nodes(self, now: DriverState, desired: DesiredDriver) -> list[Phased]:
        """The step for missing or wrong device nodes. It is not needed before a reload of the modules, which creates
        the nodes."""
        if not now.nodes or desired.reload or desired.offline:
            return []
        reason = ", ".join(f"{path}: {fault}" for path, fault in now.nodes.items())
        return [("load", Step(MAKE, " ".join(now.nodes), reason))]

    def _rules(self, now: DriverState, desired: DesiredDriver) -> list[Phased]:
        text = rules_text(len(now.gpus) or 1)  # an image need not name its GPUs
        if desired.source == "runfile":
            if self.host.root.data(RULES_FILE) == text:
                return []
            return [("configure", Step(WRITE_RULES, RULES_FILE, "the .run file contains none", data={"text": text}))]
        if self.host.journal.get("file", RULES_FILE) is None:
            return []
        return [("configure", Step(RESTORE, RULES_FILE, "the packages contain rules"))]

    def execute(self, step: Step) -> bool:
        """See L(Part)."""
        if step.action == MAKE:
            self._make(step.target.split())
        elif step.action == WRITE_RULES:
            self.host.journal.write_file(step.target, step.data["text"])
        else:
            return False
        return True

    def _make(self, paths: t.Sequence[str]) -> None:
        """Creates device nodes as nvidia-modprobe does. Writes no journal entries, because the nodes disappear when the
        modules are unloaded."""
        root = self.host.root
        owner, numbers = ownership(root), required_nodes(root)
        for path in paths:
            local_path = root.at(path)
            if owner is None or path not in numbers:
                raise HostError(f"{path} is no longer a device of the loaded driver.", "Run again.", path=path)
            current = root.stat(path)
            if current is None or not stat.S_ISCHR(current.st_mode):
                if root.is_there(path):
                    os.unlink(local_path)
                os.mknod(local_path, stat.S_IFCHR | 0o600, os.makedev(*numbers[path]))
            os.chown(local_path, owner.uid, owner.gid)
            os.chmod(local_path, owner.mode)
