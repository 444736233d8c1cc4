# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the host side of container_toolkit has read, as classes. PRIVATE to the collection.

`host_answer.py` makes them of an answer that it has checked; `module_utils/_toolkit/read.py` reads them on the host.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit.cdi import CdiPlan
from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit.failure_text import failure
from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit.packages import PackagesPlan
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.values import Value


@dataclass(frozen=True)
class Answer:
    """The result and the output of a program. journal: the last log lines of its unit, if they were read."""

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
    unit: its systemd unit, None if there is none; boot: `yes`, `no` or `masked`; on_demand: whether another unit starts
    it; command: the words of the unit's command line.
    stale: whether files have changed since it was started, for a runtime that reads them only then.
    version: the output of `--version`. imports: pattern in the configuration file to the paths that match it.
    files: path to text of all files of the probe and the journal, None for a file that does not exist.
    health, dump, facts: the command of the probe and the answers to its other commands, see Probe.
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
    dump: Answer | None = None
    facts: dict[str, Answer] = field(default_factory=dict)

    @property
    def text(self) -> str | None:
        """The text of the configuration file."""
        return self.files[self.config]

    @property
    def release(self) -> tuple[int, int]:
        """Major and minor version; (99, 0), newer than all others, if the program does not print its version."""
        match = re.search(r"version:?\s+v?(\d{1,9})\.(\d{1,9})", self.version, re.IGNORECASE)
        return (int(match.group(1)), int(match.group(2))) if match else (99, 0)


@dataclass(frozen=True)
class FileRecord:
    """The journal's record of a file.

    part: `main` or `drop-in`. state: `before` (restored or never written), `ours` (as a run has written it) or
    `edited`. before: the text before the first run, None if there was no file. parts: those of PARTS in `base.py` that
    runs have set in it.
    """

    part: str
    state: str
    before: str | None
    runtime: str
    parts: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Journal:
    """The journal's records of one runtime.

    files: by path. default_runtime: the default before the first run. restart: unit to the act that is still pending,
    `restart` or `reload`.
    """

    files: dict[str, FileRecord] = field(default_factory=dict)
    default_runtime: str | None = None
    restart: dict[str, str] = field(default_factory=dict)

    def is_edited(self, path: str) -> bool:
        """Whether a file was edited after a run has written it."""
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

    ours: by dotted name, what runs have set in it. file: `before`, `ours` or `edited` as in FileRecord, None if it is
    not in the journal. new: whether there was no file before the first run.
    """

    text: str | None = None
    ours: dict[str, Setting] = field(default_factory=dict)
    file: str | None = None
    new: bool = False


@dataclass(frozen=True)
class HostState:
    """A host. runtimes: those that are installed, or that a removal has files of; markers: paths that exist."""

    runtimes: dict[str, RuntimeState] = field(default_factory=dict)
    markers: list[str] = field(default_factory=list)
    journal: HostJournal = field(default_factory=HostJournal)
    settings: SettingsState = field(default_factory=SettingsState)
    packages: PackagesPlan = PackagesPlan({}, None, [])
    cdi: CdiPlan = CdiPlan([], None, [], [], [])
