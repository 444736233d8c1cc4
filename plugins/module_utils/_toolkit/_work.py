# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plans the packages and executes the steps that the controller planned. PRIVATE to the collection.

Journal kinds beside those of files and packages: C(config) path to C({part, runtime}); C(default_runtime) runtime to
the name before us; C(cdi) specification that we had generated; C(restart) unit to the files' bytes at its last good
start: the entry stands from before the first write until the unit has come back.
"""

from __future__ import annotations

import base64
import os
import stat
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import CommandError, HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._files import digest, read_bytes, write_atomic
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages._apt import Apt
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages._base import Repository, matches
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages._work import INSTALL, PackageWork
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Runner, which
from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit._read import CDI_SPECS, REFRESH_UNIT, SETTINGS

# Named together: apt does not find an older set by its dependencies (NVIDIA/nvidia-container-toolkit issue 1091).
PACKAGES = ("nvidia-container-toolkit", "nvidia-container-toolkit-base", "libnvidia-container-tools",
            "libnvidia-container1")
# Holds nvidia-container-runtime.cdi and nvidia-container-runtime.legacy.
EXTENSIONS = "nvidia-container-toolkit-operator-extensions"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def _repository(request: t.Mapping[str, t.Any]) -> Repository:
    raw = request["repository"]
    machine = os.uname().machine
    url = raw["url"].replace("$(ARCH)", _ARCHITECTURES.get(machine, machine))
    return Repository("container-toolkit", url, raw["key"], raw["fingerprint"])


def plan_packages(request: t.Mapping[str, t.Any], journal: Journal, run: Runner) -> dict[str, t.Any]:
    """C({installed, steps}): the packages of the request that are there, and the steps that the rest takes.

    All packages share one version: the one asked for, else the one we installed or found, else the newest.
    """
    if which("dpkg-query") is None:
        if request["state"] == "absent" and not journal.of_kind("package"):
            return {"installed": {}, "steps": []}
        raise HostError("This host has no dpkg: the toolkit's packages cannot be managed here by this version.",
                        "Install the packages by hand, or leave this host out.")
    manager = Apt(run)
    state = manager.read()
    names = PACKAGES if request["mode"] == "auto" else (*PACKAGES, EXTENSIONS)
    there = {name: state.installed[name] for name in names if name in state.installed}
    journalled = {name: entry["after"]["version"] for name, entry in journal.of_kind("package").items()
                  if entry["after"]}
    if request["state"] == "absent":
        steps = PackageWork(manager, journal, None).plan_absent(state)
        return {"installed": there, "steps": [_pack(step) for step in steps]}
    version = request["version"] or journalled.get(names[0]) or there.get(names[0]) or next(iter(there.values()), None)
    wanted: dict[str, str | None] = dict.fromkeys(names, version)
    work = PackageWork(manager, journal, _repository(request))
    given = not journalled and not work.plan_repair(state, wanted) and all(
        matches(there.get(name), version) for name in names)
    if given or version and work.is_present(state, wanted):
        return {"installed": there, "steps": []}
    steps = work.plan_repair(state, wanted)
    with manager.probe(_repository(request)) as probe:
        wanted = {name: probe.resolve(name, version or probe.resolve(names[0], None)) for name in names}
        steps += work.plan_repository(probe)
        steps += work.plan_install(probe, state, wanted)
    return {"installed": there, "steps": [_pack(step) for step in steps]}


def _pack(step: Step) -> dict[str, t.Any]:
    data = {key: {"base64": base64.b64encode(value).decode()} if isinstance(value, bytes) else value
            for key, value in step.data.items()}
    return {**step.as_dict(), "data": data}


def unpack(raw: t.Mapping[str, t.Any]) -> Step:
    """A step as it was before it travelled to the controller."""
    data = {key: base64.b64decode(value["base64"]) if isinstance(value, dict) and set(value) == {"base64"} else value
            for key, value in raw["data"].items()}
    return Step(raw["action"], raw["target"], raw["reason"], raw["needs"], raw["assumed"], data)


class Work:
    """Executes steps. request: that of the read phase, for the repository."""

    def __init__(self, request: t.Mapping[str, t.Any], journal: Journal, run: Runner) -> None:
        self.journal = journal
        self.run = run
        absent = request["state"] == "absent"
        self.manager = Apt(run)
        self.packages = PackageWork(self.manager, journal, None if absent else _repository(request))

    def execute(self, step: Step) -> None:
        """One step; each can be run again after having been killed in its middle."""
        if step.action == INSTALL:
            # Written by the packages' scripts, and left behind by their removal.
            self.journal.keep_file(SETTINGS)
        if self.packages.execute(step):
            return
        acts: dict[str, t.Callable[[Step], None]] = {
            "write file": self._write, "edit file": self._write, "remove file": self._write,
            "restore file": self._restore, "restart service": self._restart,
            "generate CDI specification": self._generate, "remove CDI specification": self._remove_spec}
        acts[step.action](step)

    def settle(self) -> None:
        """After an absent run: what is left in the journal has no meaning any more."""
        self.packages.settle(self.manager.read())
        self.journal.unfinished = None
        for kind in ("config", "default_runtime", "cdi", "restart"):
            for key in list(self.journal.of_kind(kind)):
                path = self.journal.get("file", key)
                if kind == "config" and path is not None:
                    self.journal.forget("file", key)
                self.journal.forget(kind, key)
        for folder in sorted(self.journal.of_kind("directory"), reverse=True):
            self.journal.forget("directory", folder)

    # -- files

    def _write(self, step: Step) -> None:
        data, path = step.data, str(step.data["path"])
        self._expect(path, data["before"])
        self.journal.keep("config", path, {"part": data["part"], "runtime": data["runtime"]})
        self.journal.keep("default_runtime", data["runtime"], data["default"])
        self._owe_restart(data["unit"], path)
        if data["text"] is None:
            self._give_back(path)
            return
        text = data["text"].encode("utf-8")
        if data["baseline"] is not None:
            self._rebase(path, data["baseline"].encode("utf-8"), digest(text))
        self.journal.write_file(path, text)

    def _give_back(self, path: str) -> None:
        if self.journal.get("file", path) is not None:
            self.journal.restore_file(path)
        elif os.path.lexists(path):
            os.unlink(path)
        self.journal.forget("config", path)

    def _restore(self, step: Step) -> None:
        path = str(step.data["path"])
        if path != SETTINGS:
            self._expect(path, step.data["before"])
            self._owe_restart(step.data["unit"], path)
        self._give_back(path)

    @staticmethod
    def _expect(path: str, before: str | None) -> None:
        data = read_bytes(path)
        if data != (None if before is None else before.encode("utf-8")):
            raise HostError(f"{path} changed while its new content was being computed.", "Run again.", path=path)

    def _rebase(self, path: str, baseline: bytes, after: str) -> None:
        """Somebody has edited the file since: from now on removal gives back their file without our part."""
        entry = self.journal.get("file", path)
        if entry is None or entry["after"] == after:
            return
        os.makedirs(self.journal.blobs, mode=0o700, exist_ok=True)
        write_atomic(os.path.join(self.journal.blobs, digest(baseline)), baseline, mode=0o600)
        shape = os.stat(path)
        now = {"mode": f"{stat.S_IMODE(shape.st_mode):04o}", "uid": shape.st_uid, "gid": shape.st_gid}
        entry["before"] = {"state": "file", **now, "blob": digest(baseline)}
        self.journal.note("file", path, after)

    # -- the service

    def _owe_restart(self, unit: str | None, path: str) -> None:
        if unit is None:
            return
        self.journal.keep("restart", unit, None)
        files = dict((self.journal.get("restart", unit) or {})["after"] or {})
        if path not in files:
            data = read_bytes(path)
            files[path] = None if data is None else base64.b64encode(data).decode()
            self.journal.note("restart", unit, files)

    def _restart(self, step: Step) -> None:
        unit = str(step.data["unit"])
        healthy = self._healthy(step.data["health"])
        error = self._try_restart(unit)
        broken = sorted(healthy - self._healthy(step.data["health"])) if error is None and healthy else []
        if broken:
            error = f"it came back without {', '.join(broken)}"
        if error is None:
            self.journal.forget("restart", unit)
            return
        log = self.run(["journalctl", "-u", unit, "-n", "20", "--no-pager", "-o", "cat"], check=False).stdout
        raise self._roll_back(unit, error, log)

    def _try_restart(self, unit: str) -> str | None:
        try:
            done = self.run(["systemctl", "restart", unit], timeout=180, check=False)
        except CommandError as stuck:
            return stuck.message
        if done.rc != 0:
            first = done.stderr.strip().partition("\n")[0].rstrip(".")
            return first or f"systemctl restart exited with {done.rc}"
        state = self.run(["systemctl", "is-active", unit], check=False).stdout.strip()
        return None if state == "active" else f"it is {state}"

    def _healthy(self, argv: t.Sequence[str]) -> set[str]:
        """The plugins that the daemon reports as loaded; empty where it cannot be asked."""
        try:
            done = self.run(list(argv), timeout=20, check=False)
        except CommandError:
            return set()
        rows = [line.split() for line in done.stdout.splitlines()[1:]] if done.rc == 0 else []
        return {".".join(row[:2]) for row in rows if len(row) > 2 and row[-1] == "ok"}

    def _roll_back(self, unit: str, error: str, log: str) -> HostError:
        files = (self.journal.get("restart", unit) or {})["after"] or {}
        for path, old in files.items():
            if old is None:
                if os.path.lexists(path):
                    os.unlink(path)
                if self.journal.get("file", path):
                    self.journal.note("file", path, "absent")
            else:
                data = base64.b64decode(old)
                os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
                write_atomic(path, data)
                if self.journal.get("file", path):
                    self.journal.note("file", path, digest(data))
        self.run(["systemctl", "reset-failed", unit], check=False)
        again = self._try_restart(unit)
        tail = " / ".join(line for line in log.strip().splitlines()[-8:])
        if again is None:
            self.journal.forget("restart", unit)
            state = "The former files are back and it runs with them."
        else:
            state = f"The former files are back, yet it does not start with them either: {again}."
        return HostError(f"{unit} did not take its new configuration: {error}. {state} Its log: {tail or 'empty'}",
                         "Correct what the log names, then run again.", unit=unit, files=sorted(files))

    # -- CDI

    def _generate(self, step: Step) -> None:
        path = str(step.data["path"])
        self.journal.keep("cdi", path, {"state": "absent"})
        self.run(["systemctl", "start", REFRESH_UNIT], timeout=180, check=False)
        if not any(os.path.isfile(spec) for spec in CDI_SPECS):
            # No such unit (toolkit before 1.18), or one that gave up.
            self.run(["nvidia-ctk", "cdi", "generate", f"--output={path}"], timeout=120,
                     hint=f"See journalctl -u {REFRESH_UNIT}.")
        if not any(os.path.isfile(spec) for spec in CDI_SPECS):
            raise HostError(f"No CDI specification was written to {path}.", f"See journalctl -u {REFRESH_UNIT}.")

    @staticmethod
    def _remove_spec(step: Step) -> None:
        if os.path.lexists(step.data["path"]):
            os.unlink(step.data["path"])
