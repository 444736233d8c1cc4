# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The licence of a vGPU guest: gridd.conf and the client token, which nvidia-gridd reads.

Keys and comments in gridd.conf that this collection did not write are kept. The token is a secret: no step, result or
journal entry contains it. Source: NVIDIA vGPU Client Licensing User Guide (names and modes of files, FeatureType).
"""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.assignments import merged, name_of
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.files import RESTORE, restore_kept
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.parts import DesiredDriver, Part, Phased
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.services import request_restart, restart
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.spec import Spec
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.state import DriverState
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError, InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._files import write_atomic
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step
from ansible_collections.gpuops.nvidia.plugins.module_utils._units import GRIDD

SETTINGS_FILE = "/etc/nvidia/gridd.conf"
TEMPLATE = "/etc/nvidia/gridd.conf.template"
TOKEN_FILE = "/etc/nvidia/ClientConfigToken/client_configuration_token_gpuops.tok"
_FILES = (SETTINGS_FILE, TOKEN_FILE)
WRITE_SETTINGS = "write licence settings"
WRITE_TOKEN = "write licence token"
# The guide requires the execute permission.
_TOKEN_MODE = 0o744
_KEY = re.compile(r"[A-Za-z][A-Za-z0-9]*\Z")
# The kind of journal entries that contain the values set by this collection.
_KIND = "licence"


def settings(spec: Spec) -> dict[str, str]:
    """The desired keys of gridd.conf. Raises InputError."""
    licence = spec.licence or {}
    found = {str(key): str(value) for key, value in (licence.get("settings") or {}).items() if value is not None}
    for key, value in found.items():
        if not _KEY.match(key) or "\n" in value:
            raise InputError(f"'{key}' is not a key of gridd.conf, or its value has several lines.",
                             "Use keys such as FeatureType, and values of one line.", path=f"licence.settings.{key}")
    if licence.get("feature_type") is not None:
        if "FeatureType" in found:
            raise InputError("FeatureType is set twice, here and by licence.feature_type.", "Remove one of them.",
                             path="licence.settings.FeatureType")
        found["FeatureType"] = str(licence["feature_type"])
    return found


class Licence(Part):
    """Writes gridd.conf and the token. L(services.Services) starts nvidia-gridd, or restarts it after a change."""

    def plan(self, now: DriverState, desired: DesiredDriver) -> list[Phased]:
        """See L(Part)."""
        if not self.host.spec.licence:
            return restore_kept(self.host.journal, _FILES, "configure", "licence is not set")
        wanted = settings(self.host.spec)
        if now.services[GRIDD].state == "absent" and not desired.delivered:
            raise HostError(f"The driver {desired.version} has no {GRIDD}: it is not a vGPU guest driver.",
                            "Install the guest driver of your vGPU release, or omit licence.", unit=GRIDD)
        steps: list[Phased] = []
        # A package that this run installs may contain the template, so the text is computed when the file is written.
        present = self._current_text()
        removed = sorted(set(self.host.journal.of_kind(_KIND)) - set(wanted))
        if wanted if present is None else (wanted or removed) and self._text(present, wanted) != present:
            words = [*sorted(wanted), *(f"without {key}" for key in removed)]
            steps.append(("configure", Step(WRITE_SETTINGS, SETTINGS_FILE, " ".join(words))))
        token = self._token()
        if token and self.host.root.data(TOKEN_FILE) != token:
            steps.append(("configure", Step(WRITE_TOKEN, TOKEN_FILE, "the client's configuration token")))
        return steps + restart(self.host, now, desired, GRIDD, bool(steps))

    def _current_text(self) -> str | None:
        data = self.host.root.data(SETTINGS_FILE)
        return None if data is None else data.decode("utf-8", "replace")

    def _token(self) -> bytes:
        text = ((self.host.spec.licence or {}).get("token") or "").strip()
        return text.encode()

    def absent(self, now: DriverState) -> list[Phased]:
        """See L(Part). The files are restored before the package that owns their folder is removed."""
        return restore_kept(self.host.journal, _FILES, "stop")

    def _text(self, present: str, wanted: t.Mapping[str, str]) -> str:
        """The desired text. Keys that are no longer set are removed, unless somebody else changed their values."""
        return merged(self._without_ours(present, wanted), wanted)

    def _without_ours(self, present: str, wanted: t.Container[str] = ()) -> str:
        """The text with the former lines instead of those that this collection wrote, except lines of wanted keys."""
        journal = self.host.journal
        ours = {f"{key}={entry['after']}": key for key, entry in journal.of_kind(_KIND).items() if key not in wanted}
        kept = journal.former_bytes(SETTINGS_FILE) if journal.get("file", SETTINGS_FILE) is not None else None
        before = (kept or self.host.root.data(TEMPLATE) or b"").decode("utf-8", "replace").splitlines()
        lines = []
        for line in present.splitlines():
            lines += [line] if line not in ours else [old for old in before if name_of(old) == ours[line]]
        return "".join(f"{line}\n" for line in lines)

    def _forget(self, keys: t.Iterable[str]) -> None:
        for key in list(keys):
            self.host.journal.forget(_KIND, key)

    def execute(self, step: Step) -> bool:
        """See L(Part)."""
        journal = self.host.journal
        if step.action == WRITE_SETTINGS:
            request_restart(journal, GRIDD)
            present = self._current_text()
            text = present if present is not None else (self.host.root.data(TEMPLATE) or b"").decode("utf-8", "replace")
            wanted = settings(self.host.spec)
            text = self._text(text, wanted)
            for key, value in wanted.items():
                journal.keep(_KIND, key, None)
                journal.note(_KIND, key, value)
            journal.write_file(step.target, text.encode())
            self._forget(set(journal.of_kind(_KIND)) - set(wanted))
        elif (step.action, step.target) == (RESTORE, SETTINGS_FILE):
            edited = journal.file_is(step.target) == "edited"
            if edited:
                write_atomic(SETTINGS_FILE, self._without_ours(self._current_text() or "").encode())
                journal.forget("file", SETTINGS_FILE)
            self._forget(journal.of_kind(_KIND))
            return edited  # otherwise L(files.Files) restores the former content
        elif step.action == WRITE_TOKEN:
            request_restart(journal, GRIDD)
            journal.write_file(step.target, self._token(), _TOKEN_MODE)
        else:
            return False
        return True
