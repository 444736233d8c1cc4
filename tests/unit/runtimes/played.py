# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host as the planner of a runtime sees it: files, journal and daemon, all in memory."""

from __future__ import annotations

import json
import pathlib
import typing as t
from dataclasses import dataclass, field

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.base import Options, Proposal, Runtime
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.host_state import (
    FileRecord,
    Journal,
    ProgramResult,
    RuntimeState,
)


def shape(path: pathlib.Path) -> str:
    """The text of a shape; C(crlf) and C(bom) in its name add these, because no file of the collection itself may
    contain them."""
    text, name = path.read_bytes().decode(), f"{path.parent.name}/{path.name}"
    if "crlf" in name:
        text = text.replace("\n", "\r\n")
    return ("\ufeff" if "bom" in name else "") + text


@dataclass
class Played:
    """files: maps paths to texts. facts, dump: the output of the commands of the runtime. before, written: the content
    of the journal."""

    runtime: Runtime
    version: str
    config: str
    files: dict[str, str] = field(default_factory=dict)
    facts: dict[str, ProgramResult] = field(default_factory=dict)
    dump: ProgramResult | None = None
    unit: str | None = "x.service"
    command: list[str] = field(default_factory=list)
    running: bool = True
    boot: str | None = "yes"
    stale: bool = False
    owed: dict[str, str] = field(default_factory=dict)
    before: dict[str, str | None] = field(default_factory=dict)
    written: dict[str, tuple[str | None, str]] = field(default_factory=dict)
    parts: set[str] = field(default_factory=set)
    default: str | None = None

    def seen(self) -> RuntimeState:
        """The data that the host side has read."""
        ours = [self.config, self.runtime.probe.drop_in, *self.before]
        return RuntimeState("/usr/bin/x", self.config, self.unit, self.running, self.boot, stale=self.stale,
                            command=self.command, version=self.version, dump=self.dump, facts=self.facts,
                            files={**{path: None for path in ours if path}, **self.files})

    def journal(self) -> Journal:
        """The part of the journal that planners read."""
        config = {}
        for path, (text, part) in self.written.items():
            now = self.files.get(path)
            state = "before" if now == self.before[path] else "ours" if now == text else "edited"
            config[path] = FileRecord(part, state, self.before[path], self.runtime.probe.name, sorted(self.parts))
        return Journal(config, self.default, self.owed)

    def propose(self, **options: t.Any) -> Proposal:
        """The plan after a round trip to the host side."""
        wish = Options(**{"set_as_default": True, "cdi": True, "mode": "auto", **options})
        proposal = self.runtime.propose(self.seen(), self.journal(), wish)
        for trial in proposal.trials:
            json.dumps([trial.files, trial.argv])
        return proposal

    def converge(self, **options: t.Any) -> Proposal:
        """Writes the desired state."""
        return self._apply(self.propose(**options))

    def remove(self) -> Proposal:
        """Removes what was written."""
        return self._apply(self.runtime.propose_removal(self.seen(), self.journal()))

    def _apply(self, proposal: Proposal) -> Proposal:
        for change in proposal.changes:
            assert self.files.get(change.path) == change.before
            self.default = self.default or proposal.previous_default
            self.parts = set(proposal.parts)
            self.before.setdefault(change.path, change.before)
            if change.baseline is not None:
                self.before[change.path] = change.baseline
            after = self.before[change.path] if change.after is None and change.part == "drop-in" else change.after
            if after is None:
                del self.files[change.path]
            else:
                self.files[change.path] = after
            if change.restore or change.after is None:
                del self.written[change.path], self.before[change.path]
            else:
                self.written[change.path] = (after, change.part)
        return proposal
