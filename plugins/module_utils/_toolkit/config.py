# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files of a runtime and its service, with a rollback if it does not start. PRIVATE to the collection.

Entries in the journal: `config`, by path `{part, runtime}`, and in `after` the list of parts that runs have set in it;
`default_runtime`, by runtime the default before the first run; `restart`, by unit `{act, invocation, files}`: the
pending act, systemd's InvocationID of the unit, and by path the bytes and the journal's entry at its last good start.
This entry exists from before the first write until the unit runs again.
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

# Seconds for a daemon to apply a change. k3s and RKE2 write the file of their containerd some time after their start.
PATIENCE = 60


class ConfigWork:
    """Writes and restores configuration files, and restarts or reloads the service. level: the gpu_disruption."""

    def __init__(self, journal: Journal, run: Runner, level: str) -> None:
        self.journal = journal
        self.run = run
        self.level = level
        self.acts: dict[str, t.Callable[[Step], None]] = {
            "write file": self._write, "edit file": self._write, "remove file": self._write,
            "restore file": self._restore, "restart service": self._act, "reload service": self._act}

    def _write(self, step: Step) -> None:
        data, path = step.data, str(step.data["path"])
        self.expect(path, data["before"])
        self.journal.keep("config", path, {"part": data["part"], "runtime": data["runtime"]})
        ours = (self.journal.get("config", path) or {})["after"] or []
        self.journal.note("config", path, sorted({*ours, *data["parts"]}))
        self.journal.keep("default_runtime", data["runtime"], data["default"])
        self._owe(data, path)
        if data["text"] is None:
            self.give_back(path)
            return
        text = data["text"].encode("utf-8")
        if data["baseline"] is not None:
            self._rebase(path, data["baseline"].encode("utf-8"), digest(text))
        self.journal.write_file(path, text)

    def give_back(self, path: str) -> None:
        """Restores a file as it was before the first run."""
        if self.journal.get("file", path) is not None:
            self.journal.restore_file(path)
        else:
            remove(path)
        self.journal.forget("config", path)

    def _restore(self, step: Step) -> None:
        path = str(step.data["path"])
        self.expect(path, step.data["before"])
        self._owe(step.data, path)
        self.give_back(path)

    @staticmethod
    def expect(path: str, before: str | None) -> None:
        """Raises HostError if a file has changed since its new content was computed."""
        data = read_bytes(path)
        if data != (None if before is None else before.encode("utf-8")):
            raise HostError(f"{path} has changed while its new content was being computed.", "Run again.", path=path)

    def _rebase(self, path: str, baseline: bytes, after: str) -> None:
        """Makes a removal restore the baseline: the file that somebody has edited, without our part."""
        entry = self.journal.get("file", path)
        if entry is None or entry["after"] == after:
            return
        make_folders(self.journal.blobs, 0o700)
        write_atomic(os.path.join(self.journal.blobs, digest(baseline)), baseline, mode=0o600)
        shape = os.stat(path)
        now = {"mode": f"{stat.S_IMODE(shape.st_mode):04o}", "uid": shape.st_uid, "gid": shape.st_gid}
        entry["before"] = {"state": "file", **now, "blob": digest(baseline)}
        self.journal.note("file", path, after)

    # -- the service

    def _owe(self, data: Json, path: str) -> None:
        """Journals that the service has to be restarted or reloaded, and the current bytes of the file."""
        unit = data["unit"]
        if unit is None:
            return
        self.journal.keep("restart", unit, None)
        owed, now = (self.journal.get("restart", unit) or {})["after"], self._invocation(unit)
        if not owed or owed["invocation"] != now:  # the unit was restarted since
            owed = {"act": data["act"], "files": {}}
        files = dict(owed["files"])
        if path not in files:
            former = read_bytes(path)
            files[path] = {"bytes": None if former is None else base64.b64encode(former).decode(),
                           "config": self.journal.get("config", path)}
        # A reload does not replace a pending restart.
        act = "restart" if "restart" in (owed["act"], data["act"]) else data["act"]
        self.journal.note("restart", unit, {"act": act, "invocation": now, "files": files})

    def _invocation(self, unit: str) -> str:
        return self.run(["systemctl", "show", unit, "--value", "-p", "InvocationID"], check=False).stdout.strip()

    def _act(self, step: Step) -> None:
        unit, verb = str(step.data["unit"]), str(step.data["act"])
        self._expect_idle(unit, step.data.get("idle", ()))
        healthy = self._healthy(step.data["health"])
        began = int(time.time())
        error = self._try(verb, unit)
        broken = sorted(healthy - self._healthy(step.data["health"])) if error is None and healthy else []
        if broken:
            error = f"it started without {', '.join(broken)}"
        if error is None and not self._takes_over(step.data.get("confirm", ())):
            error = "it still runs with its former configuration"
        if error is None:
            owed = ((self.journal.get("restart", unit) or {}).get("after") or {}).get("act")
            if verb == "restart" or owed != "restart":
                self.journal.forget("restart", unit)
            return
        log = self.run(["journalctl", "-u", unit, f"--since=@{began}", "--no-pager", "-o", "cat"],
                       check=False).stdout
        raise self._roll_back(verb, unit, error, log)

    def _expect_idle(self, unit: str, idle: t.Sequence[str]) -> None:
        """Raises InUse if the restart would stop containers, and the level does not allow that.

        The installation of packages takes minutes, so containers can have started since the plan was made.
        """
        if not idle or allows(self.level, "drain") or self.run(list(idle), timeout=20, check=False).rc == 0:
            return
        raise InUse(f"containers have started since the plan was made, or {unit} does not say whether any run")

    def _try(self, verb: str, unit: str) -> str | None:
        try:
            done = self.run(["systemctl", verb, unit], timeout=180, check=False)
        except CommandError as stuck:
            return stuck.message
        if done.rc != 0:
            first = done.stderr.strip().partition("\n")[0].rstrip(".")
            return first or f"systemctl {verb} exited with {done.rc}"
        state = self.run(["systemctl", "is-active", unit], check=False).stdout.strip()
        return None if state == "active" else f"it is {state}"

    def _healthy(self, argv: t.Sequence[str]) -> set[str]:
        """The plugins that the daemon reports as loaded; empty if it does not answer."""
        if not argv:
            return set()
        try:
            done = self.run(list(argv), timeout=20, check=False)
        except CommandError:
            return set()
        rows = [line.split() for line in done.stdout.splitlines()[1:]] if done.rc == 0 else []
        return {".".join(row[:2]) for row in rows if len(row) > 2 and row[-1] == "ok"}

    def _takes_over(self, confirm: t.Sequence[str]) -> bool:
        """Whether the daemon has applied the change. A reload continues after systemctl has ended."""
        end = time.monotonic() + PATIENCE
        while confirm and self.run(list(confirm), timeout=20, check=False).rc != 0:
            if time.monotonic() > end:
                return False
            time.sleep(0.2)
        return True

    def _roll_back(self, verb: str, unit: str, error: str, log: str) -> HostError:
        files = ((self.journal.get("restart", unit) or {}).get("after") or {}).get("files", {})
        for path, old in files.items():
            if old["bytes"] is None:
                remove(path)
                self.journal.drop_folders(path)
                if self.journal.get("file", path):
                    self.journal.note("file", path, "absent")
            else:
                # A removal has dropped the entry. The file is ours again.
                self.journal.keep("config", path, old["config"]["before"])
                self.journal.note("config", path, old["config"]["after"])
                self.journal.write_file(path, base64.b64decode(old["bytes"]))
        self.run(["systemctl", "reset-failed", unit], check=False)
        again = self._try(verb, unit)
        if again is None:
            self.journal.forget("restart", unit)
            state = "Its former files are restored, and it runs with them." if files else "It runs again."
        elif files:
            state = f"Its former files are restored, but it does not start with them either: {again}."
        else:
            state = f"No file was changed, and a second attempt failed, too: {again}."
        return HostError(f"{unit} did not apply its new configuration: {error}. {state} Its log: "
                         f"{failure(0, log, most=8) if log.strip() else 'empty'}",
                         "Correct what the log names, then run again.", unit=unit, files=sorted(files))
