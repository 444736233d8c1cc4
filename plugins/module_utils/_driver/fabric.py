# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""NVSwitches: configures IMEX, loads what NVLSM needs, and checks version and state of the fabric manager.

The version that is installed is decided by C(companions) of each source (L(source.Source)). L(services.Services) starts
the services.

The unit of the fabric manager starts NVLSM, which needs ib_umad. The file of an IMEX domain lists the addresses of its
nodes, one in each line. Source: Fabric Manager User Guide 580 and NVIDIA/gpu-driver-container.
"""

from __future__ import annotations

import ipaddress
import re
import time

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.files import restore_kept
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.modules import LOAD
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.parts import DesiredDriver, Part, Phased
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.services import (
    request_restart,
    restart,
    wanted_units,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.spec import Spec
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.state import DriverState
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError, InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step
from ansible_collections.gpuops.nvidia.plugins.module_utils._units import FABRIC_MANAGER, IMEX

NODES = "/etc/nvidia-imex/nodes_config.cfg"
WRITE_NODES = "write IMEX nodes"
_VERSION = re.compile(r"(\d{3}\.\d+(?:\.\d+)?)")
# The state of each GPU in the output of "nvidia-smi -q"; --query-gpu may print other words for the state.
_STATE = re.compile(r"^\s+Fabric\s*\n\s+State\s*:\s*(.+?)\s*$", re.M)
_WAITING = ("Not Started", "In Progress")
# Maximum seconds to wait until the fabric manager is ready.
_PATIENCE = 60


def nodes_text(spec: Spec) -> bytes:
    """The content of the IMEX nodes file. Raises InputError for an invalid address."""
    for index, node in enumerate(spec.imex_nodes):
        try:
            ipaddress.ip_address(str(node))
        except ValueError as error:
            raise InputError(f"'{node}' is not an IP address.", "List the address of each node of the domain.",
                             path=f"imex_nodes[{index}]", value=node) from error
    return "".join(f"{node}\n" for node in spec.imex_nodes).encode()


class Fabric(Part):
    """Prepares the services and checks the fabric."""

    _check = False

    def plan(self, now: DriverState, desired: DesiredDriver) -> list[Phased]:
        """See L(Part)."""
        spec, root = self.host.spec, self.host.root
        steps: list[Phased] = []
        text = nodes_text(spec)
        if text and not desired.fabric.startswith("nvlink5"):
            raise InputError(f"The GPUs of this host cannot share memory with other hosts (fabric: {desired.fabric}).",
                             "Omit imex_nodes for this host: IMEX needs NVLink 5.", path="imex_nodes",
                             value=list(spec.imex_nodes))
        self._check_source(now, desired)
        # The commands run only after a change.
        self._check = desired.delivered or bool(desired.reload) or now.services[FABRIC_MANAGER].state != "active"
        if desired.fabric == "nvlink5" and not root.exists("/sys/module/ib_umad"):
            steps.append(("load", Step(LOAD, "ib_umad", "NVLSM needs it")))
        changes = bool(text) and root.data(NODES) != text
        if changes:
            steps.append(("configure", Step(WRITE_NODES, NODES, ", ".join(map(str, spec.imex_nodes)),
                                            data={"text": text})))
        if not text:
            return steps + restore_kept(self.host.journal, [NODES], "configure", "imex_nodes is empty")
        return steps + restart(self.host, now, desired, IMEX, changes)

    def _check_source(self, now: DriverState, desired: DesiredDriver) -> None:
        if desired.source != "runfile":
            return
        missing = [unit for unit in (FABRIC_MANAGER, IMEX)
                   if unit in wanted_units(self.host.spec, desired.fabric) and now.services[unit].state == "absent"]
        if missing:
            raise HostError(f"The .run file does not contain {' and '.join(missing)}, which the NVSwitches need.",
                            f"Install version {desired.version} of it, use another source, or set fabric to none.",
                            units=missing)

    def absent(self, now: DriverState) -> list[Phased]:
        """See L(Part). The file is restored before the package to which it belongs is removed."""
        return restore_kept(self.host.journal, [NODES], "stop")

    def execute(self, step: Step) -> bool:
        """See L(Part)."""
        if step.action != WRITE_NODES:
            return False
        request_restart(self.host.journal, IMEX)
        self.host.journal.write_file(step.target, step.data["text"])
        return True

    def disagreements(self, now: DriverState, desired: DesiredDriver) -> list[str]:
        """See L(Part)."""
        if FABRIC_MANAGER not in wanted_units(self.host.spec, desired.fabric) or not self._check:
            return []
        done = self.host.run(["nv-fabricmanager", "--version"], check=False)
        version = _VERSION.search(done.stdout + done.stderr)
        if version is None or version.group(1) != desired.version:
            return [f"the fabric manager is {version.group(1) if version else 'missing'}, not {desired.version}"]
        waiting = self._wait() if now.services[FABRIC_MANAGER].state == "active" else []
        return [f"the fabric state of {len(waiting)} GPUs is '{waiting[0]}' after {_PATIENCE} s"] if waiting else []

    def _wait(self) -> list[str]:
        """Waits until the fabric is ready. Returns the states of the GPUs whose fabric is not ready in time."""
        end = time.monotonic() + _PATIENCE
        while True:
            states = _STATE.findall(self.host.run(["nvidia-smi", "-q"], timeout=120, check=False).stdout)
            waiting = [state for state in states if state in _WAITING]
            if not waiting or time.monotonic() > end:
                return waiting
            time.sleep(2)
