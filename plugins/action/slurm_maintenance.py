# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Waits for the jobs of a node of Slurm, and takes the node over from a run that has ended.

Each look at the node is an execution of the module, so that a wait of hours needs no connection of hours.
"""

from __future__ import annotations

import os
import time

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._actions.host import HostAction
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._actions.screen import tell
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.untyped import Data
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.node_lock import Holder

_TIMEOUT = 3600
_PAUSE = 5.0  # seconds between two looks


class ActionModule(HostAction):
    """See the documentation of the module slurm_maintenance."""

    NEEDED = ("slurm_node", "started")

    def run_module(self, task_vars: Data, module_args: Data | None = None) -> Data:
        """See HostAction."""
        args = {**self.options(module_args), "run": Holder.of_run().text}
        try:
            timeout = float(args.get("timeout", _TIMEOUT))
        except (TypeError, ValueError):
            timeout = 0.0  # the module refuses the value
        end, said, steps = time.monotonic() + timeout, "", []
        run = os.getppid()
        while True:
            result = self._of_this_run(task_vars, args)
            node = result.get("slurm_node")
            if result.get("failed") or not isinstance(node, dict):
                return result
            steps += result["plan"]
            result.update(plan=steps, changed=bool(steps))
            waits = node["jobs"] or node["waits"]
            if result["started"] or result["pending"] or args["state"] == "gathered" or not waits or (
                    args["state"] == "ended" and not node["waits"]):
                return result
            if time.monotonic() >= end:
                return self._timed_out(task_vars, args, node["name"], waits)
            if waits != said:
                tell(f"node {node['name']} of Slurm: waits for {waits}")
                said = waits
            time.sleep(min(_PAUSE, max(0.1, end - time.monotonic())))
            # Ansible executes a task in a process that goes on when the run is killed, and would drain the node again
            # that the next run has put back.
            if os.getppid() != run:
                return {"failed": True, **HostError("The run has ended while this task waited.").as_result()}

    def _of_this_run(self, task_vars: Data, args: Data) -> Data:
        """Runs the module; if a run that has ended holds the node, this run takes it over."""
        result = super().run_module(task_vars, args)
        held = (result.get("slurm_node") or {}).get("held_by")
        if result.get("failed") or not held:
            return result
        me, holder = Holder.of_run(), Holder.read(held)
        if holder is None or not me.must_wait_for(holder):
            result = super().run_module(task_vars, {**args, "from_run": held})
            if not (result.get("slurm_node") or {}).get("held_by"):
                return result
        name = result["slurm_node"]["name"]
        return {"failed": True, **HostError(
            f"Node {name} of Slurm is held by another run ({held}).",
            f"Wait until it has ended. If it no longer runs, resume the node: scontrol update NodeName={name} "
            "State=RESUME").as_result()}

    def _timed_out(self, task_vars: Data, args: Data, name: str, waits: str) -> Data:
        """The failure after the timeout. A node whose jobs have not ended is as before."""
        if args["state"] == "ended":
            return {"failed": True, **HostError(
                f"Node {name} of Slurm stays drained: {waits}.",
                "Start slurmd on the host, then run again.").as_result()}
        undone = self._of_this_run(task_vars, {**args, "state": "ended"})
        after = "is as it was before" if not undone.get("failed") else f"stays drained ({undone.get('msg')})"
        return {"failed": True, **HostError(
            f"Node {name} of Slurm was not changed and {after}: {waits} did not end within the time.",
            "Run again later, or set maintenance_slurm_timeout to more seconds.").as_result()}
