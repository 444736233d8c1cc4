# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What all runtimes share: options, proposals, and what a runtime must answer. PRIVATE to the collection."""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, field

from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit.packages import BINARIES

# The runtime classes that this collection may declare.
NAMES = ("nvidia", "nvidia-cdi", "nvidia-legacy")
# All that a file may say by our hand: runtime classes, and options that are on.
PARTS = (*NAMES, "set_as_default", "cdi", "nri")

# Why a daemon is restarted although its files are right.
STALE = "its files have changed since it was started"


@dataclass(frozen=True)
class Options:
    """The part of the module's options that shapes a runtime's files."""

    set_as_default: bool
    cdi: bool
    mode: str
    drop_in_path: str | None = None
    nri: bool = False

    @property
    def classes(self) -> dict[str, str]:
        """Runtime class to program."""
        names = ["nvidia"] if self.mode == "auto" else ["nvidia", f"nvidia-{self.mode}"]
        return dict.fromkeys(names, BINARIES[self.mode])

    @property
    def parts(self) -> list[str]:
        """Those of C(PARTS) that are wanted."""
        return [*self.classes, *(name for name in PARTS if getattr(self, name, False))]


@dataclass(frozen=True)
class FileChange:
    """One file that differs from what is wanted. after: None for no file.

    part: C(main) or C(drop-in). baseline: for a file that somebody has edited since we wrote it: what it would be
    without our part; removal gives back this instead of what stood there at first.
    restore: put back the journalled bytes instead of writing after.
    """

    path: str
    before: str | None
    after: str | None
    part: str
    reason: str
    baseline: str | None = None
    restore: bool = False


@dataclass(frozen=True)
class Trial:
    """What the runtime itself shall judge before a file is put in place.

    files: name to text, C({dir}) stands for the temporary folder that holds them. argv: the command, likewise.
    Its result reaches C(Runtime.judge) as C({rc, stdout, stderr}).
    """

    files: dict[str, str]
    argv: list[str]


@dataclass
class Proposal:
    """What a runtime wants changed.

    changes: in the order of writing. trials: what the runtime shall judge before, empty where it cannot.
    act: what makes the changes effective: C(restart), C(reload) or C(none). needs: the level of C(_result.LEVELS) from
    which on this is allowed. due: why the act is needed although no file changes, empty where it is not.
    reload_first: whether part of it takes effect by a reload, done before a restart that may have to wait.
    confirm: a command that succeeds once the daemon has taken over the change; it is given a minute
    after the act. idle: a command that succeeds while a restart stops nothing; one that needs less than C(drain) runs
    it again right before. told: what somebody has to set elsewhere, as the file is another product's; there is no
    change then.
    settings: what the settings file of nvidia-container-runtime must say for this runtime, where the user says nothing.
    parts: what the files then say by our hand, see C(Options.parts).
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
    told: str = ""
    settings: dict[str, t.Any] = field(default_factory=dict)
    parts: list[str] = field(default_factory=list)
    previous_default: str | None = None
    warnings: list[str] = field(default_factory=list)


def switched_off(journal: t.Mapping[str, t.Any], options: Options, default: t.Any) -> set[str]:
    """What a former run has set and this one does not want; the class that is the default now stays declared."""
    ours = {part for record in journal["config"].values() for part in record["parts"]}
    return ours - set(options.parts) - {name for name in NAMES if name == default}


def give_back(seen: t.Mapping[str, t.Any], journal: t.Mapping[str, t.Any], proposal: Proposal) -> Proposal:
    """The withdrawal of files that are wholly ours, put into a proposal that says how it takes effect."""
    proposal.previous_default = journal["default_runtime"] or None
    for path, record in journal["config"].items():
        text = seen["files"].get(path)
        if record["is"] != "before" and text != record["before"]:
            proposal.changes.append(FileChange(path, text, record["before"], record["part"], "as it was", restore=True))
    return proposal


class Runtime(t.Protocol):
    """One container runtime. All methods are pure.

    probe: plain data. name; binary (a name on PATH or a path); units (the first that runs, else that exists, is taken;
    empty where there is no daemon); config, drop_in (default paths, drop_in may be None); config_flags of the unit's
    command line. All else may be left out: more (patterns of further files to read), dump (argv; C({binary}) and
    C({config}) are filled in), facts (name to argv, likewise, cheap ones only: they run on every host that has the
    runtime), reads_once (whether it reads its files at its start alone and shows nobody what it has read), health
    (argv, prints a table of plugins whose last column is C(ok), asked before and after the act).

    seen, in all methods: C({binary, unit, running, boot, on_demand, stale, command, version, config, files, imports,
    dump, facts}): unit None where there is none, boot as L(unit_files.at_boot), on_demand whether another unit starts
    it, stale whether files have changed since the start of one that reads them once, command the words of its command
    line, files path to text (None: no such file), dump and each of facts C({rc, stdout, stderr}).
    """

    @property
    def probe(self) -> t.Mapping[str, t.Any]:
        """What the host side reads."""

    def propose(self, seen: t.Mapping[str, t.Any], journal: t.Mapping[str, t.Any], options: Options) -> Proposal:
        """The difference between what stands on the host and what is wanted."""

    def judge(self, seen: t.Mapping[str, t.Any], results: t.Sequence[t.Mapping[str, t.Any]], options: Options,
              proposal: Proposal) -> None:
        """Raises HostError unless the trials' results are what is wanted and nothing else has moved."""

    def withdraw(self, seen: t.Mapping[str, t.Any], journal: t.Mapping[str, t.Any]) -> Proposal:
        """What gives the host back without our part."""
