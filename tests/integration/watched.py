# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A user of the collection whose controller is observed: the files that a playbook writes and the programs that it
starts."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.integration import user

RECORDER = Path(__file__).parent / "recorder"
# What Ansible itself keeps in ANSIBLE_HOME, and Python beside its sources.
_ANSIBLES = ("tmp", "cp", "__pycache__")
# Where modules keep their state, on hosts alone.
STATE = Path("/var/lib/gpuops")


class Controller:
    """project: the working directory of the runs. logs: the files that Ansible writes because the settings of the user
    request them."""

    def __init__(self, folder: Path) -> None:
        self.project, self.logs, self._home, self._temporary, self._recorder = (
            folder / name for name in ("project", "logs", "home", "temporary", "recorder"))
        for one in (self.project, self.logs, self._home / "tmp", self._temporary, self._recorder):
            one.mkdir(parents=True)
        shutil.copy(RECORDER / "sitecustomize.py", self._recorder)
        self._settings = {
            "ANSIBLE_HOME": str(self._home), "TMPDIR": str(self._temporary), "PYTHONPATH": str(self._recorder),
            "ANSIBLE_LOG_PATH": str(self.logs / "log"), "ANSIBLE_CACHE_PLUGIN": "jsonfile",
            "ANSIBLE_CACHE_PLUGIN_CONNECTION": str(self.logs / "cache"), "ANSIBLE_RETRY_FILES_ENABLED": "1",
            "ANSIBLE_RETRY_FILES_SAVE_PATH": str(self.logs), "ANSIBLE_DISPLAY_TRACEBACK": "always"}

    def run(self, playbook: str, inventories: list[Path], *words: str, **variables: Any) -> user.Run:
        """Runs a playbook of the collection with maximum verbosity."""
        return user.playbook(playbook, inventories, "-vvvv", "--diff", *words, settings=self._settings,
                             cwd=self.project, **variables)

    def files(self) -> dict[str, tuple[int, int, str]]:
        """Maps paths to mode, modification time and digest of all files of the user, without the logs."""
        found = {}
        tops = (self.project, self._home, self._temporary, user.collections(), STATE)
        for top in filter(Path.exists, tops):
            for path in (top, *top.rglob("*")):
                if not set(_ANSIBLES).intersection(path.relative_to(top).parts):
                    about = path.lstat()
                    content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
                    found[str(path)] = (about.st_mode, about.st_mtime_ns, content)
        return found

    def written(self, before: Mapping[str, tuple[int, int, str]]) -> set[str]:
        """The names of the files that are new or changed, and of the logs."""
        after = self.files()
        return {Path(path).name for path in after if after[path] != before.get(path) and Path(path).is_file()}

    def texts(self, *inputs: Path) -> dict[str, str]:
        """Maps names to the texts of all files in the project and the logs, except those of the user."""
        return {str(path.relative_to(top)): path.read_text(errors="replace") for top in (self.project, self.logs)
                for path in sorted(top.rglob("*")) if path.is_file() and path not in inputs}

    def programs(self) -> str:
        """The command lines of all programs that the runs have started, as every user of the controller could see
        them."""
        return (self._recorder / "acts").read_text()
