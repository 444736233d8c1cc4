# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A systemd unit that puts back at boot what GPUs lose then: its program, its file, their installation and removal.

Used for MIG and for the settings of GPUs. The program has the code of the module, so both do the same.
"""

from __future__ import annotations

import os
import sys
import time
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._files import check_writable, read_bytes
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._nvml import Nvml
from ansible_collections.gpuops.nvidia.plugins.module_utils._program import drop_compiled, program, pynvml
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import (
    Result,
    Step,
    apply,
    diff_entry,
    outcome,
    plan_diff,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Runner

INSTALL, REMOVE = "install boot unit", "remove boot unit"
# Seconds to wait at boot for the kernel module.
_DRIVER_LIMIT = 60


class Place(t.NamedTuple):
    """A unit and its files. enabled: the link that enables it; state: the file with what it puts back; program: its
    program; start: the full name of the module whose C(main) the program runs; text: the unit file with
    C({interpreter}) and C({program})."""

    unit: str
    unit_file: str
    enabled: str
    state: str
    program: str
    pynvml: str
    start: str
    text: str

    @property
    def files(self) -> t.Tuple[str, ...]:
        """All files, in the order in which they are written."""
        return self.state, self.pynvml, self.program, self.unit_file

    @property
    def unit_text(self) -> bytes:
        """The content of the unit file on this host."""
        return self.text.format(interpreter=sys.executable, program=self.program).encode()


class Words(t.NamedTuple):
    """The words of the steps. module: for the diff; remember: the action that writes the file; lost: why it is needed;
    other: why a file is replaced; install: why the unit is needed."""

    module: str
    remember: str
    lost: str
    other: str
    install: str


class BootUnit:
    """Plans and executes the steps for the next boot. check: whether the steps are not executed; files_before: for
    check mode, files that an earlier task of the play installs."""

    def __init__(self, place: Place, words: Words, journal: Journal, command: Runner, check: bool,
                 files_before: t.Sequence[str] = ()) -> None:
        self.place = place
        self.words = words
        self.journal = journal
        self.command = command
        self.check = check
        self.files_before = files_before

    def check_files(self) -> None:
        """Raises HostError if a file cannot be written. Called before anything is changed."""
        for path in self.place.files:
            check_writable(path)

    # -- plans

    def present(self, text: bytes, remembered: bool | None = None, assumed: bool = False) -> list[Step]:
        """The steps that make the next boot put back what text says. remembered: whether the file already says so, if
        its content is not compared; assumed: see Step."""
        steps, place = [], self.place
        if not remembered if remembered is not None else self._differs(place.state, text):
            why = self.words.other if self._owns(place.state) and os.path.exists(place.state) else self.words.lost
            steps.append(Step(self.words.remember, place.state, why, assumed=assumed, data={"text": text}))
        if not all(self._owns(path) and (os.path.exists(path) or path in self.files_before)
                   for path in place.files if path != place.state):
            steps.append(Step(INSTALL, place.unit, self.words.install))
        elif self._differs(place.unit_file, place.unit_text) or self._differs(place.program, program(place.start)):
            steps.append(Step(INSTALL, place.unit, "its files differ"))
        elif not os.path.islink(place.enabled):
            steps.append(Step(INSTALL, place.unit, "it is not enabled"))
        return steps

    def absent(self, why: str) -> list[Step]:
        """The steps that remove all files."""
        return [Step(REMOVE, self.place.unit, why)] if any(self._owns(path) for path in self.place.files) else []

    def _owns(self, path: str) -> bool:
        return self.journal.get("file", path) is not None

    def _differs(self, path: str, desired: bytes) -> bool:
        return not self._owns(path) or read_bytes(path) != desired

    # -- execution

    def execute(self, steps: t.Sequence[Step]) -> Result:
        """Executes the steps, unless in check mode. Returns the result of these steps."""
        state = self.place.state
        diff = [diff_entry(state, (read_bytes(state) or b"").decode("utf-8", "replace"),
                           step.data.get("text", b"").decode()) for step in steps
                if step.action == self.words.remember or step.action == REMOVE and self._owns(state)]
        if not self.check:
            apply(steps, self._execute, self.journal)
        return outcome(steps, [], [*diff, *plan_diff(f"{self.words.module}, at boot", steps)])

    def _execute(self, step: Step) -> None:
        if step.action == self.words.remember:
            self.journal.write_file(self.place.state, step.data["text"])
        elif step.action == INSTALL:
            self._install()
        else:
            self._remove()

    def _install(self) -> None:
        place = self.place
        for path, data in ((place.pynvml, pynvml(Root())), (place.program, program(place.start)),
                           (place.unit_file, place.unit_text)):
            self.journal.write_file(path, data)
        # Only if needed: after a reload, containers that were started without links of device nodes lose their GPUs.
        if "yes" in self.command(["systemctl", "show", place.unit, "-p", "NeedDaemonReload"], check=False).stdout:
            self.command(["systemctl", "daemon-reload"])
        self.command(["systemctl", "enable", "--no-reload", place.unit])

    def _remove(self) -> None:
        place = self.place
        self.command(["systemctl", "disable", "--no-reload", "--now", place.unit], check=False)
        if os.path.islink(place.enabled):  # of a unit that somebody has removed
            os.unlink(place.enabled)
        for path in reversed(place.files):
            if self._owns(path):
                if path == place.pynvml:
                    drop_compiled(path)
                self.journal.restore_file(path)

    def reset_failed(self) -> None:
        """Resets the state failed of the unit, which a failure at the last boot has left."""
        if os.path.exists(self.place.unit_file):
            self.command(["systemctl", "reset-failed", self.place.unit], check=False)


def joined(first: Result, second: Result) -> Result:
    """One result from two: that of the change of GPUs and that of the boot unit. Lists keep the order of arguments."""
    lists = {key: [*first[key], *second[key]] for key in ("plan", "pending", "diff")}
    return {**first, **second, **lists, "changed": first["changed"] or second["changed"]}


def open_nvml(nvml: Nvml, problem: str, unit: str) -> None:
    """Opens NVML when the kernel module is loaded, for the program of a unit. problem: what is impossible without it.
    Raises HostError and MissingLibrary."""
    deadline = time.monotonic() + _DRIVER_LIMIT
    nvml.open()
    while "DRIVER_NOT_LOADED" in (nvml.error or "") and not nvml.available and time.monotonic() < deadline:
        time.sleep(1)
        nvml.open()
    if not nvml.available:
        raise HostError(f"{problem}: {nvml.error or 'the NVIDIA driver is not installed.'}",
                        f"Load the driver, then run systemctl restart {unit}.")
