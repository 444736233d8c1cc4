# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Waits for the jobs of a node of Slurm, and takes the node over from a run that has ended.

Each look at the node is an execution of the module, so that a wait of hours needs no connection of hours.
"""

from __future__ import annotations

import os
import time

from ansible.errors import AnsibleConnectionFailure
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._actions.host import HostAction
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._actions.screen import tell
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.untyped import Data
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.node_lock import Holder

_TIMEOUT = 3600
# Seconds: between two looks, and after which the mark of this run gets the present time, which others compare.
_PAUSE, _RENEW = 5.0, 600.0


class ActionModule(HostAction):
    """See the documentation of the module slurm_maintenance."""

    NEEDED = ("slurm_node", "started", "plan", "pending")

    def run_module(self, task_vars: Data, module_args: Data | None = None) -> Data:
        """See HostAction."""
        args = {**self.options(module_args), "run": Holder.of_run().text}
        try:
            timeout = float(args.get("timeout", _TIMEOUT))
        except (TypeError, ValueError):
            timeout = 0.0  # the module refuses the value
        end, said, steps = time.monotonic() + timeout, "", []
        run, renewed, name = os.getppid(), time.monotonic(), ""
        while True:
            if time.monotonic() - renewed >= _RENEW:
                args["run"], renewed = Holder.of_run().text, time.monotonic()
            result = self._look(task_vars, args, bool(name))
            node = result.get("slurm_node")
            if name and not isinstance(node, dict) and time.monotonic() < end and os.getppid() == run:
                # The wait may take hours, in which slurmctld or a connection may fail for a moment.
                time.sleep(_PAUSE)
                continue
            if name and not isinstance(node, dict):
                return self._timed_out(task_vars, args, name, str(result.get("msg") or "the node").rstrip("."))
            if result.get("failed") or not isinstance(node, dict):
                return result
            name = node["name"]
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

    def _look(self, task_vars: Data, args: Data, tolerant: bool) -> Data:
        """One execution of the module. tolerant: whether a lost connection is a failed result."""
        try:
            return self._of_this_run(task_vars, args)
        except AnsibleConnectionFailure as error:
            if not tolerant:
                raise
            return {"failed": True, "msg": str(error)}

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
        return {"failed": True, "slurm_node": result["slurm_node"], **HostError(
            f"Node {name} of Slurm is held by another run ({held}).",
            f"Wait until it has ended. If it no longer runs, resume the node: scontrol update NodeName={name} "
            "State=RESUME").as_result()}

    def _timed_out(self, task_vars: Data, args: Data, name: str, waits: str) -> Data:
        """The failure after the timeout. A node whose jobs have not ended is as before."""
        if args["state"] == "ended":
            return {"failed": True, **HostError(
                f"Node {name} of Slurm stays drained: {waits}.",
                "Start slurmd on the host, then run again.").as_result()}
        undone = self._look(task_vars, {**args, "state": "ended"}, True)
        after = "is as it was before" if not undone.get("failed") else f"stays drained ({undone.get('msg')})"
        return {"failed": True, **HostError(
            f"Node {name} of Slurm was not changed and {after}: {waits} did not end within the time.",
            "Run again later, or set maintenance_slurm_timeout to more seconds.").as_result()}
