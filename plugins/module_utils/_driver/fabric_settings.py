# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Sets settings of the fabric manager in the file of its package, and restores them.

Only the lines of the desired settings are changed, and the journal records the former value of each, because an upgrade
of the package replaces the file. L(services) restarts the fabric manager. Source: Fabric Manager User Guide 580,
"Fabric Manager Config Options"; the driver container has the same settings as variables NVFM_CONFIG_NAME.
"""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.assignments import merged, values
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.parts import DesiredDriver, Part, Phased
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.services import (
    forget_restart,
    owes_restart,
    request_restart,
    restart,
    restart_running,
    wanted_units,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.spec import Spec
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.state import DriverState
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError, InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._files import write_atomic
from ansible_collections.gpuops.nvidia.plugins.module_utils._former_driver import FORMER
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step
from ansible_collections.gpuops.nvidia.plugins.module_utils._units import FABRIC_MANAGER

SETTINGS_FILE = "/usr/share/nvidia/nvswitch/fabricmanager.cfg"
SET = "set options of the fabric manager"
# The kind of journal entries that contain the values set by this collection.
KIND = "fabric_setting"
# The key of the entry of the kind FORMER that contains the settings before a change that is not complete yet.
FORMER_SETTINGS = "fabric_settings"
_NAME = re.compile(r"[A-Z][A-Z0-9_]*\Z")
_VALUE = re.compile(r"[!$-&(-\[\]-~]*\Z")


def settings(spec: Spec) -> dict[str, str]:
    """The option fabric_manager_settings as text. Raises InputError."""
    found = {}
    for name, value in (spec.fabric_manager_settings or {}).items():
        if value is None:
            continue
        text = str(int(value)) if isinstance(value, bool) else str(value)
        if not isinstance(value, (str, int)) or not _NAME.match(str(name)) or not _VALUE.match(text):
            raise InputError(f"'{name}={text}' is not a setting of the fabric manager.",
                             "Names consist of uppercase letters, digits and _. A value is a whole number, true, "
                             "false, or ASCII text without spaces, quotes, # and backslashes.",
                             path=f"fabric_manager_settings.{name}", value=value)
        found[str(name)] = text
    return found


class FabricSettings(Part):
    """Edits the file of the fabric manager on hosts that run it. On other hosts, the settings have no effect."""

    def plan(self, now: DriverState, desired: DesiredDriver) -> list[Phased]:
        """See L(Part)."""
        runs = FABRIC_MANAGER in wanted_units(self.host.spec, desired.fabric)
        wanted, present = settings(self.host.spec) if runs else {}, self._present()
        if wanted and present is None and not desired.delivered:
            raise HostError(f"{SETTINGS_FILE} is missing.", "Reinstall the package of the fabric manager, or omit "
                            "fabric_manager_settings.", path=SETTINGS_FILE)
        changes = self._changes(present or "", wanted)
        if wanted and desired.delivered:
            changes = {**changes, **wanted}  # the package that this run installs replaces the file
        steps = self._steps(changes, wanted, "configure")
        return steps + restart(self.host, now, desired, FABRIC_MANAGER, bool(steps)) if runs else steps

    def absent(self, now: DriverState) -> list[Phased]:
        """See L(Part). A package that was installed before stays, with its file and its running service."""
        steps = self._steps(self._changes(self._present() or "", {}), {}, "stop")
        return steps + restart_running(self.host, now, FABRIC_MANAGER, bool(steps))

    def remember(self) -> None:
        """Records the settings that are in force, before a run changes them or replaces the file. A run that continues
        after a kill keeps the record."""
        journal, current = self.host.journal, values(self._present() or "")
        journal.keep(FORMER, FORMER_SETTINGS, {
            name: current[name] for name, entry in journal.of_kind(KIND).items()
            if name in current and _is_ours(entry, current[name])})

    def differing(self) -> dict[str, str | None]:
        """The settings of the options whose values differ in the file, with their values there; None for a missing one.
        Also those of the journal that the options do not have."""
        present = self._present() or ""
        current = values(present)
        return {name: current.get(name) for name in self._changes(present, settings(self.host.spec))}

    def put_back(self) -> None:
        """Writes the settings of the options without a restart. Raises GpuopsError."""
        wanted = settings(self.host.spec)
        for _phase, step in self._steps(self._changes(self._present() or "", wanted), wanted, "configure"):
            self.execute(step)
        self.tidy()

    def _present(self) -> str | None:
        """The text of the file, None if there is none. Each byte survives a write."""
        data = self.host.root.data(SETTINGS_FILE)
        return None if data is None else data.decode("utf-8", "surrogateescape")

    def _steps(self, changes: dict[str, str | None], wanted: dict[str, str], phase: str) -> list[Phased]:
        words = [f"{name}={value}" if name in wanted else f"{name} as it was before"
                 for name, value in sorted(changes.items())]
        return [(phase, Step(SET, SETTINGS_FILE, ", ".join(words), data={"wanted": wanted}))] if changes else []

    def _changes(self, present: str, wanted: dict[str, str]) -> dict[str, str | None]:
        """The values to write; None removes a line. Former values of settings that are no longer wanted are restored,
        unless somebody else has changed them since."""
        current, journal = values(present), self.host.journal
        former = {name: entry["before"] for name, entry in journal.of_kind(KIND).items()
                  if name not in wanted and _is_ours(entry, current.get(name))
                  and current.get(name) != entry["before"]}
        return {**former, **{name: value for name, value in wanted.items() if current.get(name) != value}}

    def execute(self, step: Step) -> bool:
        """See L(Part)."""
        if step.action != SET:
            return False
        journal, wanted = self.host.journal, step.data["wanted"]
        present = self._present()
        if present is None:
            raise HostError(f"{SETTINGS_FILE} is missing after the installation of the fabric manager.",
                            "Omit fabric_manager_settings if this fabric manager has another file.", path=SETTINGS_FILE)
        changes = self._changes(present, wanted)
        owed = owes_restart(journal, FABRIC_MANAGER)
        request_restart(journal, FABRIC_MANAGER)
        current = values(present)
        for name, value in wanted.items():
            entry = journal.get(KIND, name)
            if entry is not None and not _is_ours(entry, current.get(name)):
                journal.forget(KIND, name)  # the file of another package, or somebody's edit
            journal.keep(KIND, name, current.get(name))
            journal.note(KIND, name, {"value": value, "was": current.get(name)})
        if changes:
            try:
                write_atomic(self.host.root.at(SETTINGS_FILE),
                             merged(present, changes).encode("utf-8", "surrogateescape"))
            except OSError:
                if not owed and self._present() == present:
                    forget_restart(journal, FABRIC_MANAGER)
                raise
        for name in list(journal.of_kind(KIND)):
            if name in wanted:
                journal.note(KIND, name, {"value": wanted[name], "was": wanted[name]})
            else:
                journal.forget(KIND, name)
        return True

    def tidy(self) -> None:
        """See L(Part). A setting that is as it was before, or that somebody else has changed since, is not ours."""
        wanted, current = settings(self.host.spec), values(self._present() or "")
        for name, entry in list(self.host.journal.of_kind(KIND).items()):
            value = current.get(name)
            if name not in wanted and (value == entry["before"] or not _is_ours(entry, value)):
                self.host.journal.forget(KIND, name)


def _is_ours(entry: t.Mapping[str, t.Any], value: str | None) -> bool:
    """Whether this collection has written a value, or a killed run was about to replace it."""
    after = entry["after"] or {"value": entry["before"], "was": entry["before"]}
    return value in (after["value"], after["was"])
