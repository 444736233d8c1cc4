# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json
import os

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = """
name: record
type: notification
short_description: Writes every task result as a line of JSON
description: For the tests; the file is named by the environment variable RECORD_FILE.
requirements: []
"""


class CallbackModule(CallbackBase):
    """Writes one line for each result: C({kind, host, play, task, action, result})."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "notification"
    CALLBACK_NAME = "record"

    def __init__(self) -> None:
        super().__init__()
        self.play = ""
        self.handle = open(os.environ["RECORD_FILE"], "a", encoding="utf-8")  # noqa: SIM115 - open as long as Ansible

    def v2_playbook_on_play_start(self, play) -> None:  # type: ignore[no-untyped-def]
        """Remembers the name of the play."""
        self.play = play.get_name()

    def _line(self, kind: str, result) -> None:  # type: ignore[no-untyped-def]
        line = {"kind": kind, "host": result._host.get_name(), "play": self.play, "task": result._task.get_name(),
                "action": result._task.resolved_action or result._task.action, "result": result._result}
        self.handle.write(json.dumps(line, default=str) + "\n")
        self.handle.flush()

    def v2_runner_on_ok(self, result) -> None:  # type: ignore[no-untyped-def]
        """Records a task that succeeded."""
        self._line("ok", result)

    def v2_runner_on_failed(self, result, ignore_errors=False) -> None:  # type: ignore[no-untyped-def]
        """Records a task that failed."""
        self._line("failed", result)

    def v2_runner_on_unreachable(self, result) -> None:  # type: ignore[no-untyped-def]
        """Records a host that was not reached."""
        self._line("unreachable", result)

    def v2_runner_on_skipped(self, result) -> None:  # type: ignore[no-untyped-def]
        """Records a task that was skipped."""
        self._line("skipped", result)
