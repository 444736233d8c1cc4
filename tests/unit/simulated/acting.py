# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs an action as a task does, in this process: options are validated, hostvars are those of the play, errors are
results."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar


def act(action: Any, options: dict[str, Any], task_vars: dict[str, Any], check: bool = False,
        actions: dict[str, Any] | None = None) -> dict[str, Any]:
    """The result of a task. action: a class ActionModule; actions: maps names to what the action loader returns.
    actions: by name what the action loader gives."""
    def get(name: str, **parts: Any) -> Any:
        assert actions is not None, f"{name} is not to be asked"
        return actions[name](parts["task"])

    task = SimpleNamespace(args=options, action="gpuops.nvidia.this", async_val=0, check_mode=check,
                           get_play=lambda: SimpleNamespace(get_vars=dict))
    task.copy = lambda: SimpleNamespace(**vars(task))
    loader = DataLoader()
    made = action(task, SimpleNamespace(_shell=SimpleNamespace(tmpdir="unused")), None, loader, Templar(loader), None)
    made._shared_loader_obj = SimpleNamespace(action_loader=SimpleNamespace(get=get))
    result: dict[str, Any] = made.run(task_vars=task_vars)
    return result
