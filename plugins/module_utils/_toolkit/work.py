# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan of packages and CDI, which the host side makes itself, and the execution of all steps. PRIVATE.

Entries in the journal, besides those of `packages.py`, `cdi.py` and `config.py`: `settings`, the settings file; `after`
has by name the settings that runs have changed, as `{before, after}`.
"""

from __future__ import annotations

import base64
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.package_names import TOOLKIT_SETTINGS as SETTINGS
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.work import INSTALL
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Runner
from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit.cdi import Cdi
from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit.config import ConfigWork
from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit.packages import Json, Packages


def plan(request: Json, journal: Journal, run: Runner) -> dict[str, object]:
    """JSON of both plans: `{packages, cdi}`."""
    packages = Packages(request, journal, run).plan()
    cdi = Cdi(request, journal, run).plan(packages.steps)
    return {"packages": {**packages._asdict(), "steps": [_pack(step) for step in packages.steps]},
            "cdi": {**cdi._asdict(), "steps": [_pack(step) for step in cdi.steps],
                    "pending": [step.as_dict() for step in cdi.pending]}}


def _pack(step: Step) -> dict[str, object]:
    data = {key: {"base64": base64.b64encode(value).decode()} if isinstance(value, bytes) else value
            for key, value in step.data.items()}
    return {**step.as_dict(), "data": data}


def unpack(raw: Json) -> Step:
    """A step from its JSON."""
    data = {key: base64.b64decode(value["base64"]) if isinstance(value, dict) and set(value) == {"base64"} else value
            for key, value in raw["data"].items()}
    return Step(raw["action"], raw["target"], raw["reason"], raw["needs"], raw["assumed"], data)


class Work:
    """Executes steps."""

    def __init__(self, request: Json, journal: Journal, run: Runner) -> None:
        self.journal = journal
        self.absent = request["state"] == "absent"
        self.packages = Packages(request, journal, run)
        self.config = ConfigWork(journal, run, request["disruption"])
        self.cdi = Cdi(request, journal, run)
        self._acts: dict[str, t.Callable[[Step], None]] = {
            **self.config.acts, **self.cdi.acts,
            "edit settings": self._edit_settings, "restore settings": self._restore_settings}

    def execute(self, step: Step) -> None:
        """Executes a step. A step that was killed can be executed again."""
        if step.action == INSTALL:
            # The scripts of packages write this file, and do not remove it.
            self.journal.keep_file(SETTINGS)
            self.cdi.keep()
        act = self._acts.get(step.action)
        if act is not None:
            act(step)
        elif not self.packages.execute(step):
            raise HostError(f"The step '{step.id}' is unknown.", "This is a bug: report it.")

    def forget_restored(self) -> None:
        """Ends a removal: drops the rest of the journal."""
        self.packages.forget_restored()
        self.journal.unfinished = None
        for kind in ("config", "default_runtime", "cdi", "settings", "restart"):
            for key in list(self.journal.of_kind(kind)):
                if kind in ("config", "settings"):
                    self.journal.forget("file", key)
                self.journal.forget(kind, key)
        self.journal.forget("file", SETTINGS)
        self.journal.drop_folders()  # those of files that somebody has removed
        for folder in self.journal.of_kind("directory"):
            self.journal.forget("directory", folder)

    def _edit_settings(self, step: Step) -> None:
        path = str(step.data["path"])
        self.config.expect(path, step.data["before"])
        self.journal.keep("settings", path, None)
        self.journal.note("settings", path, step.data["ours"])
        self.journal.write_file(path, step.data["text"].encode("utf-8"))
        if self.absent:  # the rest of the file is not ours
            self.journal.forget("file", path)
            self.journal.forget("settings", path)

    def _restore_settings(self, step: Step) -> None:
        self.config.give_back(str(step.data["path"]))
        self.journal.forget("settings", str(step.data["path"]))
