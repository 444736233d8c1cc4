# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The interface of a container runtime, and its options and proposals. PRIVATE to the collection."""

from __future__ import annotations

import abc
import pathlib
import typing as t
from dataclasses import asdict, dataclass, field

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit.packages import BINARIES
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.host_state import (
    Answer,
    FileRecord,
    Journal,
    RuntimeState,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.values import Value

# The runtime classes that this collection can declare.
NAMES = ("nvidia", "nvidia-cdi", "nvidia-legacy")
# What a run can set in a file: runtime classes, and options that are on.
PARTS = (*NAMES, "set_as_default", "cdi", "nri")

# The first line of files that only this collection writes.
HEADER = "# Written by the Ansible collection gpuops.nvidia, which repairs what is changed here.\n"
# Reasons of steps: for a file that is written again, and for a restart although no file changes.
EDITED = "the file was edited after a run had written it"
STALE = "its files have changed since it was started"


@dataclass(frozen=True)
class Options:
    """The options of the module."""

    set_as_default: bool
    cdi: bool
    mode: str
    drop_in_path: str | None = None
    nri: bool = False
    state: str = "present"
    runtime: str = "auto"
    config_path: str | None = None
    settings: t.Mapping[str, Value] = field(default_factory=dict)
    disruption: str = "never"

    @property
    def classes(self) -> dict[str, str]:
        """Maps a runtime class to the path of its program."""
        names = ["nvidia"] if self.mode == "auto" else ["nvidia", f"nvidia-{self.mode}"]
        return dict.fromkeys(names, BINARIES[self.mode])

    @property
    def parts(self) -> list[str]:
        """The elements of PARTS that are desired."""
        return [*self.classes, *(name for name in PARTS if getattr(self, name, False))]


@dataclass(frozen=True)
class Probe:
    """What the host side reads of a runtime. In commands, `{binary}` and `{config}` stand for the paths on the host.

    binary: a name on PATH, or a path. units: the first one that runs is taken, otherwise the first one that exists.
    config, drop_in: default paths. config_flags: flags of the unit's command line that name the configuration file.
    more: patterns of other files to read. dump: prints the effective configuration. facts: commands by name; they run
    on every host that has the runtime, so they must be quick. health: prints a table of plugins whose last column is
    `ok`; it runs before and after a restart. reads_once: whether the runtime reads its files only when it starts, and
    cannot be asked what it has read.
    """

    name: str
    binary: str
    config: str
    units: t.Sequence[str] = ()
    config_flags: t.Sequence[str] = ()
    drop_in: str | None = None
    more: t.Sequence[str] = ()
    dump: t.Sequence[str] = ()
    facts: t.Mapping[str, t.Sequence[str]] = field(default_factory=dict)
    health: t.Sequence[str] = ()
    reads_once: bool = False

    def as_request(self) -> dict[str, object]:
        """The probe as JSON for the host side, which has the same defaults."""
        return {name: value for name, value in asdict(self).items() if value or name in ("units", "config_flags")}


@dataclass(frozen=True)
class FileChange:
    """One file that differs from the desired one. after: the desired text, None if there must be no file.

    part: `main` or `drop-in`. restore: whether the former bytes of the journal are written instead of `after`.
    baseline: for a file that somebody has edited since a run has written it, its text without our part. From then on, a
    removal restores this text instead of the one before the first run.
    """

    path: str
    before: str | None
    after: str | None
    part: str
    reason: str = ""
    baseline: str | None = None
    restore: bool = False


@dataclass(frozen=True)
class Trial:
    """A command with which the runtime itself checks candidate files before they are written.

    files: name to text; in texts and in argv, `{dir}` stands for the temporary folder that holds the files.
    """

    files: dict[str, str]
    argv: list[str]


@dataclass
class Proposal:
    """The changes of a runtime, and how they take effect.

    changes: in the order of writing. trials: none if the runtime cannot check files. parts: those of PARTS that the
    files then set.
    act: what makes the changes effective, `restart`, `reload` or `none`. needs: the lowest gpu_disruption level that
    allows it. due: why the act is needed although no file changes. reload_first: whether a reload already applies a
    part of the changes, if the restart has to wait. confirm: a command that succeeds when the daemon has applied the
    changes; it is retried for a minute after the act. idle: a command that succeeds as long as a restart stops no
    container; it runs directly before a restart that needs a lower level than `drain`.
    instructions: what the user has to set elsewhere because another product manages the file; nothing is changed then.
    settings: defaults for the settings file of nvidia-container-runtime, by dotted name.
    """

    changes: list[FileChange] = field(default_factory=list)
    trials: list[Trial] = field(default_factory=list)
    act: str = "restart"
    needs: str = "never"
    act_reason: str = "its configuration changes"
    due: str = ""
    reload_first: bool = False
    confirm: list[str] = field(default_factory=list)
    idle: list[str] = field(default_factory=list)
    instructions: str = ""
    settings: dict[str, Value] = field(default_factory=dict)
    parts: list[str] = field(default_factory=list)
    previous_default: str | None = None
    warnings: list[str] = field(default_factory=list)

    def write(self, path: str, before: str | None, after: str | None, part: str, journal: Journal,
              baseline: str | None = None) -> None:
        """Adds the change of a file if its text differs."""
        if before != after:
            reason = EDITED if journal.is_edited(path) else ""
            self.changes.append(FileChange(path, before, after, part, reason, baseline))

    def drop_unused(self, state: RuntimeState, journal: Journal, current: str | None) -> None:
        """Removes the drop-ins that runs have written, except the current one."""
        self.changes += [FileChange(path, state.files[path], None, "drop-in", "no longer used")
                         for path, record in journal.files.items()
                         if record.part == "drop-in" and path != current and state.files.get(path) is not None]

    def restore(self, path: str, text: str | None, record: FileRecord) -> None:
        """Restores a file to its text before the first run. text: the current text."""
        self.changes.append(FileChange(path, text, record.before, record.part, "as it was", restore=True))

    def restore_all(self, state: RuntimeState, journal: Journal) -> Proposal:
        """Restores all files, also those that somebody has edited. Returns the proposal itself."""
        self.previous_default = journal.default_runtime or None
        for path, record in journal.files.items():
            text = state.files.get(path)
            if record.state != "before" and text != record.before:
                self.restore(path, text, record)
        return self

    def keep_edits(self, path: str, text: str, rest: str, part: str) -> None:
        """Removes only this collection's part from a file that was edited. rest: the text without this part."""
        self.warnings.append(f"{path} was edited after this collection had written it: only the part of this "
                             "collection was removed.")
        if rest != text:
            self.changes.append(FileChange(
                path, text, rest, part, "the file was edited: only the part of this collection", baseline=rest))


def unwanted_parts(journal: Journal, options: Options, default: Value) -> set[str]:
    """The elements of PARTS that a run has set and that are no longer desired, without the default runtime class."""
    ours = {part for record in journal.files.values() for part in record.parts}
    return ours - set(options.parts) - {name for name in NAMES if name == default}


class Runtime(abc.ABC):
    """A container runtime. Its methods compute from what the host side has read, and raise HostError."""

    probe: Probe

    @abc.abstractmethod
    def propose(self, state: RuntimeState, journal: Journal, options: Options) -> Proposal:
        """The changes from the current to the desired configuration."""

    @abc.abstractmethod
    def propose_removal(self, state: RuntimeState, journal: Journal) -> Proposal:
        """The changes that remove this collection's part of the configuration."""

    def check_trials(self, state: RuntimeState, results: t.Sequence[Answer], options: Options, proposal: Proposal
                     ) -> None:
        """Raises HostError if the runtime rejects a candidate file."""
        path = proposal.changes[-1].path if proposal.changes else state.config
        for result in results:
            if result.rc != 0:
                program = pathlib.PurePosixPath(self.probe.binary).name
                raise HostError(f"{program} rejects the candidate for {path}: {result.failure}.",
                                "Nothing was changed. Correct what the message names, then run again.", path=path)
