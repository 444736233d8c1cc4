# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes the files of a runtime and restarts its service, with a rollback if it does not start. PRIVATE.

Journal entries: `config`, by path: `{part, runtime}`, and in `after` the list of parts that runs have set in the file.
`default_runtime`, by runtime: the default before the first run. `restart`, by unit: `{act, invocation, files}`, the
pending action (`restart` or `reload`), systemd's InvocationID of the unit, and by path the content and journal entry at
the last successful start. A `restart` entry exists from before the first write until the unit runs again.
"""

from __future__ import annotations

import base64
import os
import stat
import time
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import CommandError, HostError, InUse
from ansible_collections.gpuops.nvidia.plugins.module_utils._files import (
    digest,
    make_folders,
    read_bytes,
    remove,
    write_atomic,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step, allows
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Runner
from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit.failure_text import failure
from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit.packages import Json
from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit.users import Identity, UserFiles

# Maximum seconds for a daemon to apply a change. k3s and RKE2 write their containerd file some time after their start.
APPLY_LIMIT = 60


class ConfigFiles:
    """Writes and restores configuration files, and restarts or reloads the service. level: gpu_disruption."""

    def __init__(self, journal: Journal, run: Runner, level: str) -> None:
        self.journal = journal
        self.run = run
        self.level = level
        self.handlers: dict[str, t.Callable[[Step], None]] = {
            "write file": self._write_step, "edit file": self._write_step, "remove file": self._write_step,
            "restore file": self._restore_step, "restart service": self._restart_or_reload,
            "reload service": self._restart_or_reload}

    # -- how files are read and written

    def content(self, path: str) -> bytes | None:
        """The content of a file, None if there is none."""
        return read_bytes(path)

    def write(self, path: str, data: bytes) -> None:
        """Writes a file after recording its former state."""
        self.journal.write_file(path, data)

    def restore(self, path: str) -> None:
        """Restores the state that a file had before the first run."""
        if self.journal.get("file", path) is not None:
            self.journal.restore_file(path)
        else:
            remove(path)
        self.journal.forget("config", path)

    def discard(self, path: str) -> None:
        """Removes a new file again. Its entry remains."""
        remove(path)
        self.journal.drop_folders(path)
        if self.journal.get("file", path):
            self.journal.note("file", path, "absent")

    # -- steps

    def _write_step(self, step: Step) -> None:
        data, path = step.data, str(step.data["path"])
        self.check_unchanged(path, data["before"])
        self.journal.keep("config", path, {"part": data["part"], "runtime": data["runtime"]})
        owned_parts = (self.journal.get("config", path) or {})["after"] or []
        self.journal.note("config", path, sorted({*owned_parts, *data["parts"]}))
        self.journal.keep("default_runtime", data["runtime"], data["default"])
        self._record_pending_action(data, path)
        if data["text"] is None:
            self.restore(path)
            return
        text = data["text"].encode("utf-8")
        if data["baseline"] is not None:
            self.set_baseline(path, data["baseline"].encode("utf-8"), digest(text))
        self.write(path, text)
        # From now on, somebody else may set what an earlier run had set.
        self.journal.note("config", path, sorted(data["parts"]))

    def _restore_step(self, step: Step) -> None:
        path = str(step.data["path"])
        self.check_unchanged(path, step.data["before"])
        self._record_pending_action(step.data, path)
        self.restore(path)

    def check_unchanged(self, path: str, before: str | None) -> None:
        """Raises HostError if a file has changed since its new content was computed."""
        data = self.content(path)
        if data != (None if before is None else before.encode("utf-8")):
            raise HostError(f"{path} has changed while its new content was being computed.", "Run again.", path=path)

    def set_baseline(self, path: str, baseline: bytes, after: str) -> None:
        """Makes a removal restore the baseline: the file as edited by somebody else, without our part."""
        entry = self.journal.get("file", path)
        if entry is None or entry["after"] == after:
            return
        make_folders(self.journal.blobs, 0o700)
        write_atomic(os.path.join(self.journal.blobs, digest(baseline)), baseline, mode=0o600)
        status = os.stat(path)
        attributes = {"mode": f"{stat.S_IMODE(status.st_mode):04o}", "uid": status.st_uid, "gid": status.st_gid}
        entry["before"] = {"state": "file", **attributes, "blob": digest(baseline)}
        self.journal.note("file", path, after)

    # -- the service

    def _record_pending_action(self, data: Json, path: str) -> None:
        """Records in the journal the pending restart or reload, and the current content of the file."""
        unit = data["unit"]
        if unit is None:
            return
        self.journal.keep("restart", unit, None)
        pending = (self.journal.get("restart", unit) or {})["after"]
        invocation = self._invocation(unit)
        if not pending or pending["invocation"] != invocation:  # the unit has restarted since
            pending = {"act": data["act"], "files": {}}
        files = dict(pending["files"])
        if path not in files:
            former = self.content(path)
            files[path] = {"bytes": None if former is None else base64.b64encode(former).decode(),
                           "config": dict(self.journal.get("config", path) or {})}
        # A reload does not replace a pending restart.
        act = "restart" if "restart" in (pending["act"], data["act"]) else data["act"]
        self.journal.note("restart", unit, {"act": act, "invocation": invocation, "files": files})

    def _invocation(self, unit: str) -> str:
        return self.run(["systemctl", "show", unit, "--value", "-p", "InvocationID"], check=False).stdout.strip()

    def _restart_or_reload(self, step: Step) -> None:
        unit, verb = str(step.data["unit"]), str(step.data["act"])
        self._check_idle(unit, step.data.get("idle", ()))
        healthy = self._healthy_plugins(step.data["health"])
        started_at = int(time.time())
        error = self._systemctl(verb, unit)
        missing = sorted(healthy - self._healthy_plugins(step.data["health"])) if error is None and healthy else []
        if missing:
            error = f"it started without the plugins {', '.join(missing)}"
        if error is None and not self._has_applied(step.data.get("confirm", ())):
            error = "it still runs with its former configuration"
        if error is None:
            pending = ((self.journal.get("restart", unit) or {}).get("after") or {}).get("act")
            if verb == "restart" or pending != "restart":
                self.journal.forget("restart", unit)
            return
        log = self.run(["journalctl", "-u", unit, f"--since=@{started_at}", "--no-pager", "-o", "cat"],
                       check=False).stdout
        raise self._roll_back(verb, unit, error, log)

    def _check_idle(self, unit: str, idle: t.Sequence[str]) -> None:
        """Raises InUse if the restart would stop containers that started after the plan, and the level forbids that."""
        if not idle or allows(self.level, "drain") or self.run(list(idle), timeout=20, check=False).rc == 0:
            return
        raise InUse(f"containers have started since the plan was made, or {unit} does not report whether any run")

    def _systemctl(self, verb: str, unit: str) -> str | None:
        """Restarts or reloads the unit. Returns the error, None if the unit is active afterwards."""
        try:
            completed = self.run(["systemctl", verb, unit], timeout=180, check=False)
        except CommandError as error:
            return error.message
        if completed.rc != 0:
            first = completed.stderr.strip().partition("\n")[0].rstrip(".")
            return first or f"systemctl {verb} exited with {completed.rc}"
        state = self.run(["systemctl", "is-active", unit], check=False).stdout.strip()
        return None if state == "active" else f"it is {state}"

    def _healthy_plugins(self, argv: t.Sequence[str]) -> set[str]:
        """The plugins that the daemon reports as loaded; empty if it does not answer."""
        if not argv:
            return set()
        try:
            completed = self.run(list(argv), timeout=20, check=False)
        except CommandError:
            return set()
        rows = [line.split() for line in completed.stdout.splitlines()[1:]] if completed.rc == 0 else []
        return {".".join(row[:2]) for row in rows if len(row) > 2 and row[-1] == "ok"}

    def _has_applied(self, confirm: t.Sequence[str]) -> bool:
        """Waits until the daemon has applied the change. A reload continues after systemctl has ended."""
        end = time.monotonic() + APPLY_LIMIT
        while confirm and self.run(list(confirm), timeout=20, check=False).rc != 0:
            if time.monotonic() > end:
                return False
            time.sleep(0.2)
        return True

    def _roll_back(self, verb: str, unit: str, error: str, log: str) -> HostError:
        files = ((self.journal.get("restart", unit) or {}).get("after") or {}).get("files", {})
        for path, old in files.items():
            if old["bytes"] is None:
                self.discard(path)
            else:
                # A removal has deleted the entry. The file is owned again.
                self.journal.keep("config", path, old["config"]["before"])
                self.journal.note("config", path, old["config"]["after"])
                self.write(path, base64.b64decode(old["bytes"]))
        self.run(["systemctl", "reset-failed", unit], check=False)
        retry_error = self._systemctl(verb, unit)
        if retry_error is None:
            self.journal.forget("restart", unit)
            state = "Its former files are restored, and it runs with them." if files else "It runs again."
        elif files:
            state = f"Its former files are restored, but it does not start with them either: {retry_error}."
        else:
            state = f"No file was changed, and a second attempt also failed: {retry_error}."
        return HostError(f"{unit} did not apply its new configuration: {error}. {state} Its log: "
                         f"{failure(0, log, most=8) if log.strip() else 'empty'}",
                         "Correct the error in the log, then run again.", unit=unit, files=sorted(files))


class UserConfigFiles(ConfigFiles):
    """The same for the runtime of a user. All commands run as this user."""

    def __init__(self, journal: Journal, identity: Identity, level: str) -> None:
        super().__init__(journal, identity, level)
        self.identity = identity
        self.files = UserFiles(journal, identity)

    def content(self, path: str) -> bytes | None:
        return self.identity.read(path).data

    def write(self, path: str, data: bytes) -> None:
        self.files.write(path, data)

    def restore(self, path: str) -> None:
        self.files.restore(path)
        self.journal.forget("config", path)

    def discard(self, path: str) -> None:
        entry = self.journal.get("user_file", path)
        self.identity.remove(path, entry["before"]["folders"] if entry else ())

    def set_baseline(self, path: str, baseline: bytes, after: str) -> None:
        self.files.set_baseline(path, baseline)
