# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The state of a host that container_toolkit has read. PRIVATE to the collection.

`module_utils/_toolkit/read.py` reads the state on the host. `host_answer.py` creates these classes from its answer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit.cdi import CdiPlan
from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit.failure_text import failure
from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit.options import OPTION_PARTS
from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit.packages import PackagesPlan
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.values import Value


@dataclass(frozen=True)
class ProgramResult:
    """The exit status and the output of a program. journal: the last log lines of its unit, if they were read."""

    rc: int
    stdout: str = ""
    stderr: str = ""
    journal: str = ""

    @property
    def failure(self) -> str:
        """The reason why the program failed, as part of a sentence."""
        return failure(self.rc, self.stderr, self.journal)


@dataclass(frozen=True)
class RuntimeState:
    """One runtime on the host.

    binary: the path of its program, empty if it was uninstalled; config: the path of its configuration file.
    unit: its systemd unit, None if there is none; boot: `yes`, `no` or `masked`; on_demand: whether a running unit,
    such as a socket, starts it when it is needed; command: the words of the unit's command line.
    stale: for a runtime that reads its files only at its start, whether they have changed since then.
    version: the output of `--version`. imports: pattern in the configuration file to the matching paths.
    files: path to text of all files of the probe and the journal, None for a missing file.
    user: whose rootless Docker it is, None for a runtime of root; user_folders: $XDG_CONFIG_HOME and $XDG_RUNTIME_DIR.
    health: the command of the probe; dump, facts: the results of its other commands, see Probe.
    """

    binary: str
    config: str
    unit: str | None = None
    running: bool = False
    boot: str | None = None
    on_demand: bool = False
    stale: bool = False
    command: list[str] = field(default_factory=list)
    version: str = ""
    imports: dict[str, list[str]] = field(default_factory=dict)
    files: dict[str, str | None] = field(default_factory=dict)
    health: list[str] = field(default_factory=list)
    dump: ProgramResult | None = None
    facts: dict[str, ProgramResult] = field(default_factory=dict)
    user: str | None = None
    user_folders: tuple[str, str] = ("", "")

    @property
    def text(self) -> str | None:
        """The text of the configuration file."""
        return self.files[self.config]

    @property
    def release(self) -> tuple[int, int]:
        """Major and minor version. If the version is unknown, (99, 0), which is newer than all others."""
        match = re.search(r"version:?\s+v?(\d{1,9})\.(\d{1,9})", self.version, re.IGNORECASE)
        return (int(match.group(1)), int(match.group(2))) if match else (99, 0)


@dataclass(frozen=True)
class FileRecord:
    """The journal's record of a file.

    part: `main` or `drop-in`. state: `before` (restored or never written), `ours` (unchanged since a run has written
    it) or `edited`. before: the text before the first run, None if there was no file. parts: the runtime classes and
    the OPTION_PARTS that runs have set in the file.
    """

    part: str
    state: str
    before: str | None
    runtime: str
    parts: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Journal:
    """The journal's records of one runtime.

    files: by path. default_runtime: the default runtime before the first run. restart: unit to its pending action,
    `restart` or `reload`.
    """

    files: dict[str, FileRecord] = field(default_factory=dict)
    default_runtime: str | None = None
    restart: dict[str, str] = field(default_factory=dict)

    @property
    def parts(self) -> set[str]:
        """The parts that runs have set in any of the files."""
        return {part for record in self.files.values() for part in record.parts}

    @property
    def classes(self) -> set[str]:
        """The runtime classes that runs have declared."""
        return self.parts - set(OPTION_PARTS)

    def is_edited(self, path: str) -> bool:
        """Whether a file was edited after a run had written it."""
        return path in self.files and self.files[path].state == "edited"

    def before(self, path: str) -> str:
        """The text of a file before the first run, empty if there was no file."""
        return (self.files[path].before or "") if path in self.files else ""


@dataclass(frozen=True)
class HostJournal:
    """The journal's records of all runtimes. present: whether there is a journal; default_runtime: by runtime."""

    present: bool = False
    files: dict[str, FileRecord] = field(default_factory=dict)
    default_runtime: dict[str, str | None] = field(default_factory=dict)
    restart: dict[str, str] = field(default_factory=dict)

    def of(self, runtime: str) -> Journal:
        """The records of one runtime."""
        files = {path: record for path, record in self.files.items() if record.runtime == runtime}
        return Journal(files, self.default_runtime.get(runtime), self.restart)


@dataclass(frozen=True)
class Setting:
    """A setting that a run has changed. before: None if it was not set."""

    before: Value
    after: Value


@dataclass(frozen=True)
class SettingsState:
    """The settings file of nvidia-container-runtime.

    ours: by dotted name, the settings that runs have changed. file: `before`, `ours` or `edited` as in FileRecord, None
    if the file is not in the journal. new: whether there was no file before the first run.
    """

    text: str | None = None
    ours: dict[str, Setting] = field(default_factory=dict)
    file: str | None = None
    new: bool = False


@dataclass(frozen=True)
class UserFile:
    """A file of a user. text: None if it does not exist."""

    path: str
    text: str | None


@dataclass(frozen=True)
class User:
    """A user with rootless Docker or Podman.

    config_folder: $XDG_CONFIG_HOME; runtime_folder: $XDG_RUNTIME_DIR; manager: whether services of the user can run;
    lingers: whether they start at boot; closed: device nodes and CDI specifications that the user cannot open; podman:
    containers.conf of the user, None if Podman is not installed.
    """

    config_folder: str
    runtime_folder: str
    manager: bool
    lingers: bool
    closed: list[str]
    podman: UserFile | None


@dataclass(frozen=True)
class HostState:
    """A host. runtimes: the installed ones, and for a removal those with journalled files; markers: existing paths.

    The key of the rootless Docker of a user is `docker of NAME`. users: by name. unread: why the state of a
    user that only the journal names could not be read, by name.
    """

    runtimes: dict[str, RuntimeState] = field(default_factory=dict)
    markers: list[str] = field(default_factory=list)
    journal: HostJournal = field(default_factory=HostJournal)
    settings: SettingsState = field(default_factory=SettingsState)
    packages: PackagesPlan = PackagesPlan({}, None, [])
    cdi: CdiPlan = CdiPlan([], None, [], [], [])
    users: dict[str, User] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)
