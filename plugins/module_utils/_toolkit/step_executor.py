# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plans packages and CDI on the host, and executes all steps. PRIVATE to the collection.

Journal entries besides those of `packages.py`, `cdi.py` and `config.py`: `settings`, for the settings file. Its `after`
maps each setting that runs have changed to `{before, after}`.
"""

from __future__ import annotations

import base64
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.package_names import TOOLKIT_SETTINGS as SETTINGS
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.configured import read_repository
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.work import INSTALL
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Runner
from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit.cdi import Cdi, CdiPlan
from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit.config import ConfigFiles, UserConfigFiles
from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit.packages import NAME, Json, Packages, PackagesPlan
from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit.users import OF_USER, Identity, checked


def plan(request: Json, journal: Journal, run: Runner) -> dict[str, object]:
    """Both plans as JSON: `{packages, cdi}`."""
    packages = Packages(request, journal, run).plan()
    return _as_json(packages, Cdi(request, journal, run).plan(packages.steps))


def gather(request: Json, journal: Journal, run: Runner) -> tuple[dict[str, object], dict[str, object]]:
    """C((state, more)) of an unchanged host: the same JSON without steps, and C({repository, specification}), see
    L(read_repository) and L(Cdi.specification)."""
    cdi = Cdi(request, journal, run)
    return _as_json(Packages(request, journal, run).read(), cdi.read()), {
        "repository": read_repository(Root(), NAME), "specification": cdi.specification()}


def _as_json(packages: PackagesPlan, cdi: CdiPlan) -> dict[str, object]:
    return {"packages": {**packages._asdict(), "steps": [step_as_json(step) for step in packages.steps]},
            "cdi": {**cdi._asdict(), "steps": [step_as_json(step) for step in cdi.steps],
                    "pending": [step.as_dict() for step in cdi.pending]}}


def step_as_json(step: Step) -> dict[str, object]:
    data = {key: {"base64": base64.b64encode(value).decode()} if isinstance(value, bytes) else value
            for key, value in step.data.items()}
    return {**step.as_dict(), "data": data}


def step_from_json(raw: Json) -> Step:
    """Converts JSON to a step."""
    data = {key: base64.b64decode(value["base64"]) if isinstance(value, dict) and set(value) == {"base64"} else value
            for key, value in raw["data"].items()}
    return Step(raw["action"], raw["target"], raw["reason"], raw["needs"], raw["assumed"], data)


class StepExecutor:
    """Executes the steps of packages, CDI, configuration files and the settings file."""

    def __init__(self, request: Json, journal: Journal, run: Runner) -> None:
        self.journal = journal
        self.absent = request["state"] == "absent"
        self.kept_users = request.get("kept_users") or ()
        self.packages = Packages(request, journal, run)
        self.run, self.level = run, request["disruption"]
        self.config = ConfigFiles(journal, run, self.level)
        self.cdi = Cdi(request, journal, run)
        self._handlers: dict[str, t.Callable[[Step], None]] = {
            **self.config.handlers, **self.cdi.handlers,
            "edit settings": self._edit_settings, "restore settings": self._restore_settings}

    def execute(self, step: Step) -> None:
        """Executes a step. It can be repeated after a killed run."""
        if step.action == INSTALL:
            # The scripts of packages write this file and do not remove it.
            self.journal.keep_file(SETTINGS)
            self.cdi.journal_gpu_spec()
        handlers = self._of_user(step.data["user"]).handlers if step.data.get("user") else self._handlers
        handler = handlers.get(step.action)
        if handler is not None:
            handler(step)
        elif not self.packages.execute(step):
            raise HostError(f"No handler for step '{step.id}'.", "This is a bug. Report it.")

    def _of_user(self, name: str) -> UserConfigFiles:
        return UserConfigFiles(self.journal, Identity(checked(name), self.run), self.level)

    def forget_restored(self) -> None:
        """After a removal: deletes the remaining journal entries, except those of users that it has left out."""
        self.packages.forget_restored()
        self.journal.unfinished = None
        for kind in ("config", "default_runtime", "cdi", "settings", "restart", "user_file"):
            for key, entry in list(self.journal.of_kind(kind).items()):
                # The name of the user is in the runtime, the unit or the entry.
                before = entry["before"] if kind in ("config", "user_file") else {}
                runtime = before.get("runtime") or key
                if (before.get("user") or runtime.partition(OF_USER)[2]) in self.kept_users:
                    continue
                if kind in ("config", "settings"):
                    self.journal.forget("file", key)
                self.journal.forget(kind, key)
        self.journal.forget("file", SETTINGS)
        self.journal.drop_folders()  # of files that somebody else has removed
        for folder in self.journal.of_kind("directory"):
            self.journal.forget("directory", folder)

    def _edit_settings(self, step: Step) -> None:
        path = str(step.data["path"])
        self.config.check_unchanged(path, step.data["before"])
        self.journal.keep("settings", path, None)
        self.journal.note("settings", path, step.data["ours"])
        self.journal.write_file(path, step.data["text"].encode("utf-8"))
        if self.absent:  # the rest of the file is foreign
            self.journal.forget("file", path)
            self.journal.forget("settings", path)

    def _restore_settings(self, step: Step) -> None:
        self.config.restore(str(step.data["path"]))
        self.journal.forget("settings", str(step.data["path"]))
