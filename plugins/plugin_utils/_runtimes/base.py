# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The interface of a container runtime: its options, its probe, and its proposed changes. PRIVATE."""

from __future__ import annotations

import abc
import pathlib
import typing as t
from dataclasses import asdict, dataclass, field

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError, InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit.options import OPTION_PARTS, RUNTIME_CLASSES
from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit.packages import BINARIES
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.host_state import (
    FileRecord,
    Journal,
    ProgramResult,
    RuntimeState,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.values import Value

# The first line of files that only this collection writes.
HEADER = "# Written by the Ansible collection gpuops.nvidia. Changes are overwritten.\n"
# Reasons of steps: to write a file again, and to restart although no file changes.
EDITED = "the file was edited after a run had written it"
STALE = "its files have changed since it was started"


@dataclass(frozen=True)
class Options:
    """The options of the module."""

    set_as_default: bool
    cdi: bool
    mode: str
    nvidia_runtime_name: str = RUNTIME_CLASSES[0]
    nvidia_runtime_path: str | None = None
    drop_in_path: str | None = None
    nri: bool = False
    rootless_users: t.Sequence[str] = ()
    state: str = "present"
    runtime: t.Sequence[str] = ("auto",)
    config_path: str | None = None
    settings: t.Mapping[str, Value] = field(default_factory=dict)
    disruption: str = "never"

    @property
    def classes(self) -> dict[str, str]:
        """Maps a runtime class to the path of its program."""
        program = BINARIES[self.mode]
        classes = {self.nvidia_runtime_name: self.nvidia_runtime_path or program}
        return classes if self.mode == "auto" else {**classes, f"nvidia-{self.mode}": program}

    @property
    def parts(self) -> list[str]:
        """The desired runtime classes and OPTION_PARTS."""
        return [*self.classes, *(name for name in OPTION_PARTS if getattr(self, name))]

    @property
    def default(self) -> str | None:
        """The desired default runtime, None if it is not to be changed."""
        return self.nvidia_runtime_name if self.set_as_default else None


@dataclass(frozen=True)
class Probe:
    """The files, units and commands from which the host reads the state of a runtime.

    In commands, `{binary}` and `{config}` are replaced by the paths on the host. binary: a name on PATH, or a path.
    units: the first running unit is used, otherwise the first existing one. config, drop_in: default paths.
    config_flags: flags of the unit's command line that name the configuration file. other_files: patterns of other
    files to read. dump: prints the effective configuration. facts: commands by name, which must be quick, because they
    run on every host that has the runtime. health: prints a table of plugins with the status in the last column; it
    runs before and after a restart. reads_once: whether the runtime reads its files only at its start and cannot report
    the configuration that it has read.
    """

    name: str
    binary: str
    config: str
    units: t.Sequence[str] = ()
    config_flags: t.Sequence[str] = ()
    drop_in: str | None = None
    other_files: t.Sequence[str] = ()
    dump: t.Sequence[str] = ()
    facts: t.Mapping[str, t.Sequence[str]] = field(default_factory=dict)
    health: t.Sequence[str] = ()
    reads_once: bool = False

    def as_request(self) -> dict[str, object]:
        """The probe as JSON for the host, which has the same defaults."""
        return {name: value for name, value in asdict(self).items() if value or name in ("units", "config_flags")}


@dataclass(frozen=True)
class Configuration:
    """The current configuration of a runtime, also if this collection has not written it.

    classes: maps all declared runtime classes to the path of their program, None if the program is unknown.
    default: the default runtime. cdi, nri: whether they are enabled. None: the runtime has no such setting, or it is
    unknown.
    """

    classes: dict[str, str | None]
    default: str | None = None
    cdi: bool | None = None
    nri: bool | None = None


def is_nvidia(program: Value) -> bool:
    """Whether a program is the NVIDIA container runtime or a variant of it."""
    return isinstance(program, str) and program.rpartition("/")[2].startswith("nvidia-container-runtime")


def text_or_none(value: Value) -> str | None:
    """A string of a file, None for other values."""
    return value if isinstance(value, str) else None


@dataclass(frozen=True)
class FileChange:
    """The change of one file. after: the desired text, None to remove the file.

    part: `main` or `drop-in`. restore: whether the former content in the journal is written instead of `after`.
    baseline: for a file that was edited after a run, its text without our part. A later removal restores this text
    instead of the text before the first run.
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
    """A command of the runtime that checks candidate files before they are written.

    files: name to text. In texts and in argv, `{dir}` is replaced by the temporary folder with the files.
    """

    files: dict[str, str]
    argv: list[str]


@dataclass
class Proposal:
    """The changes of a runtime, and the action that applies them.

    changes: in the order of writing. trials: empty if the runtime cannot check files. parts: the runtime
    classes and OPTION_PARTS that the changed files set.
    action: `restart`, `reload` or `none`. needs: the lowest gpu_disruption level that allows the action. due_reason:
    the reason for an action although no file changes. reload_first: whether a reload applies a part of the changes
    while the restart is pending. confirm: a command that succeeds when the daemon has applied the changes; it is
    retried for a minute after the action. idle: a command that succeeds if a restart stops no container; it runs
    directly before a restart that needs a lower level than `drain`.
    instructions: for a file that another product manages, the settings for this product; then nothing is changed.
    classes: the runtime classes that the changes can add, change or remove.
    settings: defaults for the settings file of nvidia-container-runtime, by dotted name.
    """

    changes: list[FileChange] = field(default_factory=list)
    trials: list[Trial] = field(default_factory=list)
    action: str = "restart"
    needs: str = "never"
    action_reason: str = "its configuration changes"
    due_reason: str = ""
    reload_first: bool = False
    confirm: list[str] = field(default_factory=list)
    idle: list[str] = field(default_factory=list)
    instructions: str = ""
    settings: dict[str, Value] = field(default_factory=dict)
    parts: list[str] = field(default_factory=list)
    classes: t.Collection[str] = ()
    previous_default: str | None = None
    warnings: list[str] = field(default_factory=list)

    def write(self, path: str, before: str | None, after: str | None, part: str, journal: Journal,
              baseline: str | None = None) -> None:
        """Adds the change of a file if the text differs."""
        if before != after:
            reason = EDITED if journal.is_edited(path) else ""
            self.changes.append(FileChange(path, before, after, part, reason, baseline))

    def remove_unused_drop_ins(self, state: RuntimeState, journal: Journal, current: str | None) -> None:
        """Adds the removal of owned drop-ins, except the current one."""
        self.changes += [FileChange(path, state.files[path], None, "drop-in", "no longer used")
                         for path, record in journal.files.items()
                         if record.part == "drop-in" and path != current and state.files.get(path) is not None]

    def restore(self, path: str, text: str | None, record: FileRecord) -> None:
        """Adds the restoration of a file. text: the current text."""
        self.changes.append(FileChange(path, text, record.before, record.part, "this collection has written it",
                                       restore=True))

    def restore_all(self, state: RuntimeState, journal: Journal) -> Proposal:
        """Adds the restoration of all files, even of edited ones. Returns the proposal itself."""
        self.previous_default = journal.default_runtime or None
        for path, record in journal.files.items():
            text = state.files.get(path)
            if record.state != "before" and text != record.before:
                self.restore(path, text, record)
        return self

    def keep_edits(self, path: str, text: str, rest: str, part: str) -> None:
        """Adds the removal of this collection's part from an edited file. rest: the text without this part."""
        self.warnings.append(f"{path} was edited after this collection had written it. Only the part of this "
                             "collection was removed.")
        if rest != text:
            self.changes.append(FileChange(
                path, text, rest, part, "the file was edited, so only our part is removed", baseline=rest))


def all_parts(journal: Journal) -> set[str]:
    """All parts that runs can have set."""
    return {*RUNTIME_CLASSES, *journal.classes, *OPTION_PARTS}


def unwanted_parts(journal: Journal, options: Options, default: Value) -> set[str]:
    """The parts that a run has set and that are no longer desired. A runtime class that remains the default is kept."""
    unwanted = journal.parts - set(options.parts)
    if options.set_as_default or "set_as_default" in unwanted:
        return unwanted
    return {part for part in unwanted if part != default}


def parts_without(unwanted: set[str], journal: Journal, options: Options) -> list[str]:
    """The parts that are set after a run that has removed the unwanted ones."""
    return sorted({*options.parts, *(journal.parts - unwanted)})


def check_name(journal: Journal, options: Options, declared: t.Mapping[str, Value], path: str) -> None:
    """Raises InputError if the name of the NVIDIA runtime belongs to another runtime.

    declared: the program of each declared runtime class, None if it is unknown. path: the file that declares it.
    """
    name = options.nvidia_runtime_name
    if name in (*RUNTIME_CLASSES, *journal.classes) or name not in declared:
        return
    program = declared[name]
    if not is_nvidia(program) and program != options.nvidia_runtime_path:
        raise InputError(f"the configuration of {path} declares another runtime with this name"
                         f"{f', which runs {program}' if program else ''}.", "Choose another name.",
                         path="nvidia_runtime_name", value=name)


class Runtime(abc.ABC):
    """A container runtime. Its methods compute changes from the state of a host, and raise HostError."""

    probe: Probe

    @abc.abstractmethod
    def read(self, state: RuntimeState) -> Configuration:
        """The current configuration. Raises HostError if a file cannot be read."""

    @abc.abstractmethod
    def propose(self, state: RuntimeState, journal: Journal, options: Options) -> Proposal:
        """The changes from the current to the desired configuration."""

    @abc.abstractmethod
    def propose_removal(self, state: RuntimeState, journal: Journal) -> Proposal:
        """The changes that remove this collection's part of the configuration."""

    def check_trials(self, state: RuntimeState, results: t.Sequence[ProgramResult], options: Options, proposal: Proposal
                     ) -> None:
        """Raises HostError if the runtime rejects a candidate file."""
        path = proposal.changes[-1].path if proposal.changes else state.config
        for result in results:
            if result.rc != 0:
                program = pathlib.PurePosixPath(self.probe.binary).name
                raise HostError(f"{program} rejects the candidate for {path}: {result.failure}.",
                                "Nothing was changed. Correct the reported error, then run again.", path=path)
