# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Computes the steps of container_toolkit from the state of a host, and diffs without credentials. PRIVATE."""

from __future__ import annotations

import re
import typing as t
from dataclasses import dataclass

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError, InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import LEVELS, PendingStep, Step, diff_entry
from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit.users import OF_USER
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import hidden
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes import owners, podman, registry, settings_file
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.base import (
    FileChange,
    Options,
    Proposal,
    Runtime,
    Trial,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.docker import rootless_pid
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.host_state import HostState, RuntimeState, User
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.toml import TOKEN
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.values import Value

# Matches the header of a TOML table, or a key or variable with its separator in TOML, JSON, YAML or in a string.
_KEY = re.compile(r"""^[ \t]*\[\[?(?P<table>[^\]\n]{1,1000})\]\]?[ \t]*(?:\#.*)?$|"""
                  r"""(?P<key>"(?:[^"\\\n]|\\.){0,200}"|'[^'\n]{0,200}'|(?<![\w.-])[\w.-]+)\s{0,100}(?:=[ \t]*|:\s*)""",
                  re.MULTILINE)
_PLAIN = re.compile(r"(?:null|true|false)\b")
_BARE = re.compile(r"[^\n\"'}\]]*")


@dataclass(frozen=True)
class Plan:
    """The plan of a host. pending: steps that the user must execute.

    proposals: by name of the runtime, in the order of registry.choose; for a removal, those of all runtimes that runs
    have configured. Empty if there is no runtime. of_users: warnings about rootless containers. left_out: the users
    whose files a removal cannot restore yet.
    """

    steps: list[Step]
    pending: list[PendingStep]
    proposals: dict[str, Proposal]
    of_users: t.Sequence[str] = ()
    left_out: t.Sequence[str] = ()

    @property
    def changes(self) -> list[FileChange]:
        """The changes of all files."""
        return [change for proposal in self.proposals.values() for change in proposal.changes]

    @property
    def trials(self) -> list[tuple[str, Trial]]:
        """The trials of all runtimes, each with the name of its runtime."""
        return [(name, trial) for name, proposal in self.proposals.items() for trial in proposal.trials]

    @property
    def warnings(self) -> list[str]:
        """The instructions for other products, then the warnings."""
        proposals = self.proposals.values()
        return [*filter(None, [proposal.instructions for proposal in proposals]),
                *[warning for proposal in proposals for warning in proposal.warnings], *self.of_users]

    @property
    def previous_default(self) -> str | None:
        """The default runtime class of the first runtime before the first run."""
        return next((proposal.previous_default for proposal in self.proposals.values()), None)


def plan(state: HostState, options: Options) -> Plan:
    """The plan of an installation or a removal, depending on options.state. Raises HostError and InputError."""
    return _plan_removal(state) if options.state == "absent" else _plan_installation(state, options)


def _plan_removal(state: HostState) -> Plan:
    names = {record.runtime for record in state.journal.files.values()}
    # A restart can still be pending after its files were restored.
    names |= {name for name, runtime in state.runtimes.items() if runtime.unit in state.journal.restart}
    proposals: dict[str, Proposal] = {}
    unread = dict(state.unread)
    for name, runtime in _in_order(state.runtimes):
        if name not in names:
            continue
        user = state.runtimes[name].user
        try:
            proposals[name] = runtime.propose_removal(state.runtimes[name], state.journal.of(name))
        except (HostError, AttributeError, TypeError, ValueError) as error:
            if user is None:
                raise
            # A user must not be able to prevent the removal.
            unread[user] = (error.message.rstrip(".") if isinstance(error, HostError)
                            else f"{state.runtimes[name].config} has an unexpected structure")
    pending = [_pending("restore files", f"docker{OF_USER}{name}", f"{reason}. Correct this, then run again")
               for name, reason in unread.items()]
    return Plan(removal_steps(state, proposals), pending, proposals, left_out=list(unread))


def _in_order(keys: t.Iterable[str]) -> list[tuple[str, Runtime]]:
    """The runtimes of these keys of HostState.runtimes, in the order of the registry, those of root first."""
    order = list(registry.RUNTIMES.values())
    return sorted(((key, registry.of(key)) for key in keys),
                  key=lambda item: (OF_USER in item[0], order.index(item[1])))


def _plan_installation(state: HostState, options: Options) -> Plan:
    names = registry.choose(options.runtime, state.runtimes, registry.KUBELET in state.markers)
    if options.rootless_users:
        names = [name for name in names if name != "docker" or not _is_only_rootless(state.runtimes[name])]
    proposals = {name: _propose(name, state, options) for name in (*names, *_dockers_of_users(state, options))}
    steps = installation_steps(state, proposals, merged_settings(proposals, options.settings))
    return Plan(steps, [*pending_steps(state, proposals), *_pending_of_users(state, options)], proposals,
                _warnings_of_users(state, options))


def _propose(name: str, state: HostState, options: Options) -> Proposal:
    """The proposal of a runtime, or if another product manages its configuration, the settings for this product."""
    runtime = state.runtimes[name]
    registry.check_paths(name, runtime, options.drop_in_path)
    proposal = registry.of(name).propose(runtime, state.journal.of(name), options)
    if proposal.changes and not options.config_path and runtime.user is None:
        instructions = owners.check_owner(state.markers, name, runtime, options)
        if instructions:
            return Proposal(action="none", previous_default=proposal.previous_default, instructions=instructions)
    return proposal


def merged_settings(proposals: t.Mapping[str, Proposal], given: t.Mapping[str, Value]) -> dict[str, Value]:
    """The values for the settings file. given: the option `settings`, which takes precedence over the proposals.

    Raises InputError if two runtimes need different values of a setting.
    """
    chosen = settings_file.by_name(given)
    needed: dict[str, Value] = {}
    first: dict[str, str] = {}
    for name, proposal in proposals.items():
        for setting, value in proposal.settings.items():
            if setting not in chosen and needed.setdefault(setting, value) != value:
                raise InputError(f"{first[setting]} needs {needed[setting]!r}, and {name} needs {value!r}.",
                                 "Set the value that both can use, or configure only one of these runtimes.",
                                 path=f"settings.{setting}", value=None, allowed="one value for all runtimes")
            first.setdefault(setting, name)
    return {**needed, **given}


def installation_steps(state: HostState, proposals: t.Mapping[str, Proposal], settings: t.Mapping[str, Value]
                       ) -> list[Step]:
    """The steps of an installation, in order. proposals: by runtime; settings: for the settings file."""
    packages, cdi = state.packages.steps, state.cdi.steps
    # Device nodes are linked first: the scripts of packages can make systemd reload its units, and then containers lose
    # devices without a link.
    steps = [step for step in cdi if step.action.startswith("link")]
    steps += packages + settings_file.plan(settings, state.settings, bool(packages))
    steps += [step for step in cdi if step not in steps]
    # The runtimes come last, because a step that gpu_disruption forbids blocks all later steps.
    return steps + runtime_steps(state, proposals)


def pending_steps(state: HostState, proposals: t.Mapping[str, Proposal]) -> list[PendingStep]:
    """The steps that are pending for other reasons than gpu_disruption."""
    pending = []
    if not proposals:
        pending.append(_pending("configure", "container runtime",
                                "no supported container runtime is installed"))
    for name, proposal in proposals.items():
        if proposal.instructions:
            pending.append(_pending("configure", name, proposal.instructions))
        pending += _pending_service_steps(state.runtimes[name], state.users)
    return pending + state.cdi.pending


def _pending(action: str, target: str, reason: str) -> PendingStep:
    return Step(action, target).pending(reason)


def _pending_service_steps(state: RuntimeState, users: t.Mapping[str, User]) -> list[PendingStep]:
    """The step that starts, enables or unmasks the service, if needed. Only the administrator executes it."""
    unit = state.unit
    if unit is None:
        return []
    if state.user is not None:
        return [] if state.running else [
            _pending("start service", unit, _start_reason(users[state.user], state.user))]
    if state.boot == "masked":
        return [_pending("unmask service", unit,
                         f"it is masked, and a run does not change this. To unmask it, run systemctl unmask {unit}")]
    if not state.running and not state.on_demand:
        return [_pending("start service", unit,
                         f"it is not running, and a run does not change this. To start it, run systemctl enable "
                         f"--now {unit}")]
    if state.boot == "no":
        return [_pending("enable service", unit,
                         f"it does not start at boot, and a run does not change this. To enable it, run systemctl "
                         f"enable {unit}")]
    return []


# -- rootless containers: those of users get GPUs through CDI. The legacy mode would need the setting no-cgroups, which
# applies to the whole host and takes the GPUs from containers of root (NVIDIA/nvidia-container-toolkit issue 85).


def _dockers_of_users(state: HostState, options: Options) -> list[str]:
    """The Docker of each user of the option, as keys of `state.runtimes`."""
    keys = [f"docker{OF_USER}{user}" for user in options.rootless_users]
    return [key for key in keys if key in state.runtimes]


def _is_only_rootless(state: RuntimeState) -> bool:
    """Whether the Docker of root does not run and a user runs one."""
    return not state.running and rootless_pid(state) is not None


def _warnings_of_users(state: HostState, options: Options) -> list[str]:
    """Reasons why containers of users would get no GPUs, and which users of earlier runs were not read."""
    found = [f"The rootless Docker of {name}, which an earlier run has configured, is left out: {reason}."
             for name, reason in state.unread.items()]
    for name in options.rootless_users:
        user = state.users[name]
        if user.closed:
            found.append(f"{name} cannot open {', '.join(user.closed)}, so rootless containers of {name} get no GPUs. "
                         "Check the mode and the group of these files (ls -l).")
        if user.podman is not None:
            try:
                folders = podman.folders_of(user.podman.path, user.podman.text)
            except HostError as error:
                found.append(error.message)
                continue
            if folders is not None and not podman.finds_specs(folders):
                found.append(f"{user.podman.path}: cdi_spec_dirs is {', '.join(folders) or 'empty'}. Podman of {name} "
                             "does not find the specification in /var/run/cdi.")
    return found


def _pending_of_users(state: HostState, options: Options) -> list[PendingStep]:
    """The steps of the user or the administrator that are needed before the Docker of a user can be configured."""
    found = []
    for name in options.rootless_users:
        if f"docker{OF_USER}{name}" not in state.runtimes and state.users[name].podman is None:
            found.append(Step("configure", f"containers{OF_USER}{name}").pending(
                "this user has no rootless Docker, and Podman is not installed. To set up Docker, run "
                "dockerd-rootless-setuptool.sh install as this user, then run again"))
    return found


def _start_reason(user: User, name: str) -> str:
    """Why the Docker of a user does not run, and what starts it."""
    linger = "" if user.lingers else f" To start it at boot, run loginctl enable-linger {name}."
    if not user.manager:
        return (f"no service of {name} runs, because {name} is not logged in. Docker reads its file when it is "
                f"started.{linger}")
    return (f"it is not running, and a run does not change this. To start it, run systemctl --user enable --now docker "
            f"as {name}.{linger}")


# -- steps


def removal_steps(state: HostState, proposals: t.Mapping[str, Proposal]) -> list[Step]:
    """The steps of a removal, in order. proposals: by runtime."""
    steps = runtime_steps(state, proposals)
    package_steps = state.packages.steps
    purging = any(step.action.startswith(("purge", "remove packages")) for step in package_steps)
    # The scripts of the packages write the settings file, so it is removed after the packages. The repository is last.
    steps_at_end = [step for step in package_steps if step.action.startswith(("remove repository", "release"))]
    steps += state.cdi.steps + [step for step in package_steps if step not in steps_at_end]
    return steps + settings_file.plan_removal(state.settings, purging) + steps_at_end


def runtime_steps(host: HostState, proposals: t.Mapping[str, Proposal]) -> list[Step]:
    """The steps for the files of all runtimes, then the restarts and reloads of runtimes that have not applied them.

    A step that gpu_disruption forbids, or that containers prevent, blocks all later ones. Therefore, steps with a low
    level come first, and of these, the ones that containers cannot prevent.
    """
    files = [_file_step(change, host.runtimes[name], name, proposal)
             for name, proposal in proposals.items() for change in proposal.changes]
    services = [step for name, proposal in proposals.items() for step in _service_steps(host, name, proposal)]
    return files + sorted(services, key=lambda step: (LEVELS.index(step.needs), bool(step.data.get("idle"))))


def _service_steps(host: HostState, runtime: str, proposal: Proposal) -> list[Step]:
    """One restart or reload if the runtime has not applied its files, and a reload before a restart that may wait."""
    state = host.runtimes[runtime]
    steps: list[Step] = []
    unit = state.unit or ""
    pending_action = host.journal.restart.get(unit)
    action = proposal.action if proposal.changes or proposal.due_reason else "none"
    reason = proposal.action_reason if proposal.changes else proposal.due_reason
    reload_helps = action == "reload" or action == "restart" and proposal.reload_first
    if pending_action and pending_action != action and action != "restart":
        # A reload does not replace a pending restart.
        action, reason = pending_action, "an earlier run changed its configuration but did not complete"
    if action != "none" and state.running:
        data = {"unit": unit, "health": state.health, "runtime": runtime, "confirm": proposal.confirm,
                "user": state.user}
        if action == "restart" and reload_helps and proposal.needs != "never":
            steps.append(Step("reload service", unit, "it applies the changes that do not need the restart",
                              data={**data, "act": "reload"}))
        idle = proposal.idle if action == "restart" and proposal.needs != "drain" else []
        steps.append(Step(f"{action} service", unit, reason, proposal.needs,
                          data={**data, "act": action, "idle": idle}))
    return steps


def _file_step(change: FileChange, state: RuntimeState, runtime: str, proposal: Proposal) -> Step:
    if change.after is None:
        action = "remove file"
    elif change.restore:
        action = "restore file"
    else:
        action = "write file" if change.before is None or change.part == "drop-in" else "edit file"
    return Step(action, change.path, change.reason, data={
        "path": change.path, "text": change.after, "before": change.before, "baseline": change.baseline,
        "restore": change.restore, "part": change.part, "runtime": runtime, "default": proposal.previous_default,
        "parts": proposal.parts, "user": state.user,
        "unit": state.unit if state.running and proposal.action != "none" else None, "act": proposal.action})


def as_request(steps: t.Sequence[Step]) -> list[dict[str, object]]:
    """The steps as JSON for the host."""
    return [{**step.as_dict(), "data": dict(step.data)} for step in steps]


def diffs(changes: t.Sequence[FileChange]) -> list[dict[str, str]]:
    """The diffs of the files, without credentials."""
    return [diff_entry(change.path, mask(change.before or ""), mask(change.after or "")) for change in changes]


def mask(text: str) -> str:
    """The text without credentials: values of keys such as `password`, and parts such as users in URLs are masked.

    The text can be invalid. If the end of a value is unknown, the rest of the text is masked.
    """
    text = hidden.without_private_keys(text)
    pieces: list[str] = []
    position, in_headers = 0, False
    while True:
        match = _KEY.search(text, position)
        if match is None:
            break
        pieces.append(text[position:match.end()])
        position = match.end()
        if match["table"]:
            in_headers = re.sub(r"\W", "", match["table"].rpartition(".")[2]).lower() in ("header", "headers")
        elif in_headers or _is_secret(match["key"]):
            end = _value_end(text, position)
            if end > position:
                pieces.append(f'"{hidden.HIDDEN}"' if text[position] in "[{\"'" else hidden.HIDDEN)
                position = end
    return hidden.without_parts("".join(pieces) + text[position:])


def _is_secret(key: str) -> bool:
    """Whether a key may hold a secret. The headers of requests often do."""
    return hidden.is_secret(key) or re.sub(r"\W", "", key).lower().endswith(("header", "headers"))


def _value_end(text: str, start: int) -> int:
    """The end offset of the value at start; start if the value cannot be a credential."""
    if text[start:start + 1] not in ("[", "{", '"', "'"):
        match = _BARE.match(text, start)
        return start if match is None or _PLAIN.match(text, start) else start + len(match.group().rstrip())
    depth = 0
    for match in TOKEN.finditer(text, start):
        token = match.group()
        if token in ("'", '"'):  # a string that does not end
            return len(text)
        depth += 1 if token in "[{" else -1 if token in "]}" else 0
        if depth <= 0:
            return match.end()
    return len(text)


def check_no_steps_left(steps: t.Sequence[Step], after: t.Sequence[Step]) -> None:
    """Raises HostError if the host still needs steps after the run."""
    remaining = [step.id for step in after]
    if remaining:
        raise HostError(f"After the run, the host still needs these steps: {', '.join(remaining)}.",
                        "Find the program on the host that reverts the changes.",
                        done=[step.id for step in steps], left=remaining)
