# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Device nodes at boot. PRIVATE to the collection.

The modules make no nodes by themselves. The vendor's and the distributions' packages bring udev rules that call
nvidia-modprobe; the .run file brings the program without any rule, and relies on the first program that uses CUDA.
"""

from __future__ import annotations

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver._files import RESTORE
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver._parts import Aim, Part, Phased
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver._state import Situation
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step

RULES_FILE = "/etc/udev/rules.d/60-gpuops-nvidia.rules"
WRITE_RULES = "write device rules"


def rules_text(gpus: int) -> bytes:
    """The rules for a number of GPUs (nvidia-modprobe(1): -c makes the node of a minor, -u those of unified memory)."""
    nodes = " ".join(f"-c {minor}" for minor in range(gpus))
    calls = {"nvidia": nodes, "nvidia_uvm": "-u -c 0"}
    lines = "".join(f'ACTION=="add", SUBSYSTEM=="module", KERNEL=="{name}", RUN+="/usr/bin/nvidia-modprobe {words}"\n'
                    for name, words in calls.items())
    return f"# Written by gpuops.nvidia: device nodes when the modules are loaded.\n{lines}".encode()


class Nodes(Part):
    """The rules beside a driver from a .run file; beside packages they go again."""

    def plan(self, now: Situation, aim: Aim) -> list[Phased]:
        """See L(Part)."""
        text = rules_text(len(now.gpus))
        if aim.source == "runfile":
            if self.host.root.data(RULES_FILE) == text:
                return []
            return [("configure", Step(WRITE_RULES, RULES_FILE, "the .run file brings none", data={"text": text}))]
        if self.host.journal.get("file", RULES_FILE) is None:
            return []
        return [("configure", Step(RESTORE, RULES_FILE, "packages bring their own"))]

    def execute(self, step: Step) -> bool:
        """See L(Part)."""
        if step.action != WRITE_RULES:
            return False
        self.host.journal.write_file(step.target, step.data["text"])
        return True
