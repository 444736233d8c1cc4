# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""NVSwitches: fabric manager, NVLSM and IMEX as the GPUs' boards need them.

Sources: which board needs what, Fabric Manager user guide 580 and NVIDIA/gpu-driver-container; the fabric manager's
unit starts NVLSM itself, which needs ib_umad; the nodes of an IMEX domain, one address a line.
Services are started by L(services.Services).
"""

from __future__ import annotations

import ipaddress
import re
import time

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.files import RESTORE
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.modules import LOAD
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.parts import Aim, Part, Phased
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.services import owe_restart, restart, wanted_units
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.spec import Spec
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.state import Situation
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError, InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step
from ansible_collections.gpuops.nvidia.plugins.module_utils._units import FABRIC_MANAGER, IMEX

NODES = "/etc/nvidia-imex/nodes_config.cfg"
WRITE_NODES = "write IMEX nodes"
_VERSION = re.compile(r"(\d{3}\.\d+(?:\.\d+)?)")
# Of each GPU in "nvidia-smi -q"; the same field of --query-gpu has been seen to print other words.
_STATE = re.compile(r"^\s+Fabric\s*\n\s+State\s*:\s*(.+?)\s*$", re.M)
_WAITING = ("Not Started", "In Progress")
# Seconds that the fabric manager is given.
_PATIENCE = 60


def nodes_text(spec: Spec) -> bytes:
    """The file of IMEX. Raises InputError for what is no address."""
    for index, node in enumerate(spec.imex_nodes):
        try:
            ipaddress.ip_address(str(node))
        except ValueError as error:
            raise InputError(f"'{node}' is no IP address.", "Give the address of each node of the domain.",
                             path=f"imex_nodes[{index}]", value=node) from error
    return "".join(f"{node}\n" for node in spec.imex_nodes).encode()


class Fabric(Part):
    """What the services need, and what they achieved."""

    _check = False

    def plan(self, now: Situation, aim: Aim) -> list[Phased]:
        """See L(Part)."""
        spec, root = self.host.spec, self.host.root
        steps: list[Phased] = []
        text = nodes_text(spec)
        if text and not aim.fabric.startswith("nvlink5"):
            raise InputError(f"The GPUs of this host share no memory with other hosts (fabric: {aim.fabric}).",
                             "IMEX is for NVLink 5: leave imex_nodes out here.", path="imex_nodes",
                             value=list(spec.imex_nodes))
        self._check_source(now, aim)
        # Commands are run only where something changes.
        self._check = aim.delivered or bool(aim.reload) or now.services[FABRIC_MANAGER].state != "active"
        if aim.fabric == "nvlink5" and not root.exists("/sys/module/ib_umad"):
            steps.append(("load", Step(LOAD, "ib_umad", "NVLSM manages the switches through it")))
        changes = bool(text) and root.data(NODES) != text
        if changes:
            steps.append(("configure", Step(WRITE_NODES, NODES, ", ".join(map(str, spec.imex_nodes)),
                                            data={"text": text})))
        if not text:
            return steps + self._restores("configure", "no nodes are wanted any more")
        return steps + restart(self.host, now, aim, IMEX, changes)

    def _restores(self, phase: str, reason: str) -> list[Phased]:
        if self.host.journal.get("file", NODES) is None:
            return []
        return [(phase, Step(RESTORE, NODES, reason, data={"files": [NODES]}))]

    def _check_source(self, now: Situation, aim: Aim) -> None:
        if aim.source != "runfile":
            return
        missing = [unit for unit in (FABRIC_MANAGER, IMEX)
                   if unit in wanted_units(self.host.spec, aim.fabric) and now.services[unit].state == "absent"]
        if missing:
            raise HostError(f"The .run file does not bring {' and '.join(missing)}, which this host's NVSwitches need.",
                            f"Install version {aim.version} of it, use another source, or set fabric to none.",
                            units=missing)

    def absent(self, now: Situation) -> list[Phased]:
        """See L(Part). The file is one of a package's: it is restored while the package is there."""
        return self._restores("stop", "as it was before")

    def execute(self, step: Step) -> bool:
        """See L(Part)."""
        if step.action != WRITE_NODES:
            return False
        owe_restart(self.host.journal, IMEX)
        self.host.journal.write_file(step.target, step.data["text"])
        return True

    def disagreements(self, now: Situation, aim: Aim) -> list[str]:
        """See L(Part)."""
        if FABRIC_MANAGER not in wanted_units(self.host.spec, aim.fabric) or not self._check:
            return []
        told = self.host.run(["nv-fabricmanager", "--version"], check=False)
        version = _VERSION.search(told.stdout + told.stderr)
        if version is None or version.group(1) != aim.version:
            return [f"the fabric manager is {version.group(1) if version else 'missing'}, the driver {aim.version}"]
        waiting = self._wait() if now.services[FABRIC_MANAGER].state == "active" else []
        return [f"the fabric of {len(waiting)} GPUs is '{waiting[0]}' after {_PATIENCE} s"] if waiting else []

    def _wait(self) -> list[str]:
        """The states of GPUs whose fabric does not come up; waits for it."""
        end = time.monotonic() + _PATIENCE
        while True:
            states = _STATE.findall(self.host.run(["nvidia-smi", "-q"], timeout=120, check=False).stdout)
            waiting = [state for state in states if state in _WAITING]
            if not waiting or time.monotonic() > end:
                return waiting
            time.sleep(2)
