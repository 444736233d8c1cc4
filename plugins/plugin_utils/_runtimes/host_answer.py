# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks and decodes the answers of hosts for container_toolkit. PRIVATE to the collection.

The controller computes the plan from an answer, and a host can be compromised. Therefore, the controller only uses an
answer with the structure that `read.py` and `step_executor.py` of `module_utils/_toolkit` produce.
"""

from __future__ import annotations

from dataclasses import replace

from ansible_collections.gpuops.nvidia.plugins.module_utils._result import LEVELS, PendingStep, Step
from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit.cdi import CdiPlan
from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit.options import CHOOSING
from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit.packages import PackagesPlan
from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit.users import OF_USER
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.shapes import (
    Anything,
    Fault,
    Fields,
    Flag,
    Nullable,
    Number,
    OneOf,
    Rows,
    Shape,
    Table,
    Text,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory import answer_shapes
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.base import Options
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.host_state import (
    FileRecord,
    HostJournal,
    HostState,
    ProgramResult,
    RuntimeState,
    Setting,
    SettingsState,
    User,
    UserFile,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.registry import RUNTIMES, of
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.values import Table as Json

_MAX_ROWS = 10_000
_FLAG, _TEXT, _PATH = Flag(), Text(), Text(longest=4096)
_MAYBE_TEXT = Nullable(_TEXT)
_FILE = Nullable(Text(longest=4 * 2**20))
_OUTPUT = Text(longest=2**20)
_ANSWER: dict[str, Shape] = {"rc": Number(smallest=-1000, largest=1000), "stdout": _OUTPUT, "stderr": _OUTPUT}
_PROGRAM, _DUMP = Fields(_ANSWER), Fields(_ANSWER, {"journal": _OUTPUT})


class _Setting:
    """A value of the settings file: a string, a number, a boolean or a list of strings; null if it is not set."""

    def fault(self, value: object) -> Fault | None:
        """See Shape."""
        if value is None or isinstance(value, (bool, str)) or isinstance(value, int) and abs(value) < 2**63:
            return None
        return Rows(_PATH, _MAX_ROWS).fault(value)


_RUNTIME = Fields({
    "binary": _PATH, "unit": _MAYBE_TEXT, "running": _FLAG, "boot": Nullable(OneOf(("yes", "no", "masked"))),
    "on_demand": _FLAG, "stale": _FLAG, "command": Rows(_PATH, _MAX_ROWS), "config": _PATH,
    "version": _OUTPUT, "imports": Table(_PATH, Rows(_PATH, _MAX_ROWS), _MAX_ROWS),
    "files": Table(_PATH, _FILE, _MAX_ROWS),
    "health": Rows(_PATH, 64), "dump": Nullable(_DUMP), "facts": Table(_TEXT, Nullable(_PROGRAM), 64)})
_USER = Fields({"config_folder": _PATH, "runtime_folder": _PATH, "manager": _FLAG, "lingers": _FLAG,
                "closed": Rows(_PATH, 1000), "docker": Nullable(_RUNTIME),
                "podman": Nullable(Fields({"path": _PATH, "text": _FILE}))})
_JOURNAL = Fields({
    "present": _FLAG, "default_runtime": Table(_TEXT, _MAYBE_TEXT, 64),
    "restart": Table(_TEXT, OneOf(("restart", "reload")), 64),
    "config": Table(_PATH, Fields({"part": _TEXT, "is": _TEXT, "before": _FILE, "runtime": _TEXT,
                                   "parts": Rows(_TEXT, 64)}), 1000)})
_STEPS = Rows(Fields({**answer_shapes.STEP, "data": Table(_TEXT, Anything(), 64)}, closed=False), _MAX_ROWS)
_HOST_STATE = Fields({
    "runtimes": Table(OneOf(tuple(RUNTIMES)), Nullable(_RUNTIME), 64), "markers": Rows(_PATH, 1000),
    "rootless": Table(_TEXT, _USER, 1000), "unread": Table(_TEXT, Text(longest=10_000), 1000), "journal": _JOURNAL,
    "settings": Fields({"text": _FILE, "ours": Table(_TEXT, Fields({"before": _Setting(), "after": _Setting()}), 1000),
                        "file": Nullable(OneOf(("before", "ours", "edited"))), "new": _FLAG}),
    "packages": Fields({"installed": Table(_TEXT, _TEXT, _MAX_ROWS), "version": _MAYBE_TEXT, "steps": _STEPS}),
    "cdi": Fields({"specs": Rows(_PATH, _MAX_ROWS), "driver": _MAYBE_TEXT, "steps": _STEPS,
                   "pending": answer_shapes.PENDING, "warnings": Rows(Text(longest=10_000), 1000)})})
_OPTIONS = Fields({
    "state": OneOf(("present", "absent", "gathered")), "runtime": Rows(OneOf((*CHOOSING, *RUNTIMES)), 64),
    "mode": OneOf(("auto", "cdi", "legacy")), "config_path": Nullable(_PATH), "drop_in_path": Nullable(_PATH),
    "rootless_users": Rows(_TEXT, 1000), "nvidia_runtime_name": _TEXT, "nvidia_runtime_path": Nullable(_PATH),
    "set_as_default": _FLAG, "cdi": _FLAG, "nri": _FLAG, "settings": Table(_TEXT, Anything(), 1000),
    "disruption": OneOf(LEVELS)}, closed=False)
_PHASES: dict[str, dict[str, Shape]] = {
    "read": {"host_state": _HOST_STATE, "options": _OPTIONS},
    "apply": {"host_state": _HOST_STATE, "options": _OPTIONS, "blocked_step": _MAYBE_TEXT},
    "gather": {"host_state": _HOST_STATE, "options": _OPTIONS, "specification": Fields({
        "path": Nullable(_PATH), "devices": Rows(_TEXT, _MAX_ROWS), "driver": _MAYBE_TEXT, "management": _FLAG,
        "unit": _FLAG}),
        "repository": Fields({}, {"url": _PATH, "key": _PATH, "fingerprint": _TEXT})},
    "try": {"trials": Rows(_PROGRAM, 1000)}}


def fault(phase: str, answer: Json) -> Fault | None:
    """The first fault in the answer of a host, None if it is valid. phase: `read`, `gather`, `try` or `apply`."""
    for name, shape in _PHASES[phase].items():
        found = shape.fault(answer.get(name))
        if found is not None:
            return found.below(name)
    if "host_state" not in _PHASES[phase]:
        return None
    state = answer["host_state"]
    unknown = [name for name in answer["options"]["rootless_users"] if name not in state["rootless"]]
    if unknown and answer["options"]["state"] != "absent":
        return Fault("host_state.rootless", f"without {unknown[0]}", "all users of the option")
    return _missing_results({**state["runtimes"], **_dockers(state)})


def _dockers(raw: Json) -> Json:
    """The answers about the Docker of each user, by key of HostState.runtimes."""
    return {f"docker{OF_USER}{name}": user["docker"] for name, user in raw["rootless"].items() if user["docker"]}


def _missing_results(runtimes: Json) -> Fault | None:
    """The fault of the first installed runtime that lacks results of its probe, None if there is none."""
    for name, raw in runtimes.items():
        probe = of(name).probe
        if raw and raw["config"] not in raw["files"]:
            return Fault(f"host_state.runtimes.{name}.files", "without the configuration file", "all requested files")
        missing = [fact for fact in probe.facts if raw and raw["binary"] and not raw["facts"].get(fact)]
        if missing or raw and raw["binary"] and probe.dump and raw["dump"] is None:
            return Fault(f"host_state.runtimes.{name}", f"without {missing[0] if missing else 'dump'}",
                         "the results of all requested commands")
    return None


def options_of(answer: Json) -> Options:
    """The options in an answer without faults."""
    return Options(**{name: answer["options"][name] for name in _OPTIONS.needed})


def state_of(answer: Json) -> HostState:
    """The state of the host in an answer without faults."""
    raw = answer["host_state"]
    journal, settings = raw["journal"], raw["settings"]
    records = {path: FileRecord(record["part"], record["is"], record["before"], record["runtime"], record["parts"])
               for path, record in journal["config"].items()}
    ours = {name: Setting(setting["before"], setting["after"]) for name, setting in settings["ours"].items()}
    users = {name: User(**{**user, "podman": UserFile(**user["podman"]) if user["podman"] else None})
             for name, user in ((name, {key: value for key, value in user.items() if key != "docker"})
                                for name, user in raw["rootless"].items())}
    runtimes = {name: _runtime(runtime) for name, runtime in raw["runtimes"].items() if runtime}
    for key, docker in _dockers(raw).items():
        user = key.partition(OF_USER)[2]
        runtimes[key] = replace(_runtime(docker), user=user, user_folders=(
            users[user].config_folder, users[user].runtime_folder))
    return HostState(
        runtimes, raw["markers"],
        HostJournal(journal["present"], records, journal["default_runtime"], journal["restart"]),
        SettingsState(**{**settings, "ours": ours}),
        PackagesPlan(**{**raw["packages"], "steps": _steps(raw["packages"])}),
        CdiPlan(**{**raw["cdi"], "steps": _steps(raw["cdi"]), "pending": _pending(raw["cdi"])}), users, raw["unread"])


def blocked_step_of(answer: Json) -> str | None:
    """The id of the restart that running containers block, in an answer without faults."""
    blocked_step: str | None = answer.get("blocked_step")
    return blocked_step


def specification_of(answer: Json) -> Json:
    """The CDI specification in an answer without faults: `path`, `devices`, `driver`, `management`, `unit`."""
    specification: Json = answer["specification"]
    return specification


def repository_of(answer: Json) -> Json:
    """The configured repository in an answer without faults, as the option; empty if there is none."""
    repository: Json = answer["repository"]
    return repository


def trials_of(answer: Json) -> list[ProgramResult]:
    """The results of the trials in an answer without faults."""
    return [ProgramResult(**trial) for trial in answer["trials"]]


def _runtime(raw: Json) -> RuntimeState:
    return RuntimeState(**{**raw, "dump": ProgramResult(**raw["dump"]) if raw["dump"] else None,
                           "facts": {name: ProgramResult(**fact) for name, fact in raw["facts"].items() if fact}})


def _steps(raw: Json) -> list[Step]:
    return [Step(step["action"], step["target"], step["reason"], step["needs"], step["assumed"], step["data"])
            for step in raw["steps"]]


def _pending(raw: Json) -> list[PendingStep]:
    return [Step(step["action"], step["target"], step["reason"], step["needs"], step["assumed"]).pending(
        step["pending_reason"]) for step in raw["pending"]]
