# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plans the packages and executes the steps that the controller planned. PRIVATE to the collection.

Journal kind beside those of files, packages and C(_config.py): C(cdi) specification that we had generated.
"""

from __future__ import annotations

import base64
import os
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages._apt import Apt
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages._base import Repository, matches
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages._work import INSTALL, PackageWork
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Runner, which
from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit._config import ConfigWork
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
        self.config = ConfigWork(journal, run)

    def execute(self, step: Step) -> None:
        """One step; each can be run again after having been killed in its middle."""
        if step.action == INSTALL:
            # Written by the packages' scripts, and left behind by their removal.
            self.journal.keep_file(SETTINGS)
        if self.packages.execute(step):
            return
        acts: dict[str, t.Callable[[Step], None]] = {
            **self.config.acts, "generate CDI specification": self._generate,
            "remove CDI specification": self._remove_spec, "restore settings": self._restore_settings}
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

    def _restore_settings(self, step: Step) -> None:
        self.config.give_back(str(step.data["path"]))

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
