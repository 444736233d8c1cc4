# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Docker: edits of members of daemon.json. PRIVATE to the collection.

Sources: moby's daemon/config and daemon/reload; tests with dockerd 26.1. SIGHUP reloads the runtimes and the default
runtime, but a removed key keeps its former value until the daemon restarts. CDI is set up only at the start. From 23.0
on, `dockerd --validate` exists. It accepts a default runtime that is not declared.
"""

from __future__ import annotations

import copy
import json
import re
import shlex
import typing as t
from dataclasses import dataclass, field

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit import cdi_files
from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit.options import OPTION_PARTS, RUNTIME_CLASSES
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes import base
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.host_state import Journal, RuntimeState
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.json_text import Document
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.values import (
    Path,
    Table,
    Value,
    lookup,
    remove_empty,
    restore_value,
)

_CLIENT = "docker -H unix:///var/run/docker.sock info --format"
_ROOTLESS_CLIENT = 'docker -H "unix://$XDG_RUNTIME_DIR/docker.sock" info --format'
_INFO = _CLIENT + " '{{{{json .}}}}'"  # the host replaces double braces by single ones
# Prints the information about the Docker of a user. The host runs it as this user.
ROOTLESS_INFO = ["sh", "-c", f"{_ROOTLESS_CLIENT} '{{{{json .}}}}'"]
# A folder with a link to the CDI specification, see ROOTLESS in `_toolkit/cdi_files.py`.
_ROOTLESS_SPECS = cdi_files.ROOTLESS
_SPECS = ["/etc/cdi", "/var/run/cdi"]
_CDI: Path = ("features", "cdi")
_SPEC_DIRS: Path = ("cdi-spec-dirs",)
# From this release on, a rootless Docker also reads the two folders of its user.
_FOLDERS_OF_USER = (29, 2)
_CDI_SUPPORTED, _CDI_DEFAULT, _HAS_VALIDATE = (25, 0), (28, 2), (23, 0)
# Files in which distributions set the variables of the unit's command line.
_VARIABLES = ("/etc/default/docker", "/etc/sysconfig/docker")


class Docker(base.Runtime):
    probe = base.Probe(
        name="docker", binary="dockerd", units=["docker.service", "snap.docker.dockerd.service"],
        config="/etc/docker/daemon.json", config_flags=["--config-file"],
        other_files=[*_VARIABLES, "/run/user/*/docker.pid"],
        # Only if the daemon is running: a connection to its socket would start it.
        facts={"info": ["sh", "-c", f"systemctl -q is-active docker.service && exec {_INFO}"]})

    def read(self, state: RuntimeState) -> base.Configuration:
        _check_file_is_read(state)
        data, flags = Document(state.text or "", state.config).data, _flags(state)
        default = flags.default_runtime or base.text_or_none(data.get("default-runtime")) or "runc"
        cdi = _has_cdi(state, data) or flags.cdi
        return base.Configuration(_programs(data, flags), default, cdi if state.release >= _CDI_SUPPORTED else None)

    def propose(self, state: RuntimeState, journal: Journal, options: base.Options) -> base.Proposal:
        _check_file_is_read(state)
        path, text = state.config, state.text
        document, flags = Document(text or "", path), _flags(state)
        before = copy.deepcopy(document.data)
        default = flags.default_runtime or before.get("default-runtime")
        former = journal.default_runtime or str(default or "runc")
        proposal = base.Proposal(previous_default=former,
                                 classes={*RUNTIME_CLASSES, *journal.classes, *options.classes})
        base.check_name(journal, options, _programs(before, flags), path)
        unwanted = base.unwanted_parts(journal, options, default)
        proposal.parts = base.parts_without(unwanted, journal, options)
        if path in journal.files:
            _remove_parts(document, state, Document(journal.before(path), path).data, unwanted)
        for member, value in _desired(state, before, flags, options, proposal, unwanted).items():
            document.set(member, value)
        if document.data != before:
            _check_flags(path, before, document.data, flags)
            _check_default(path, document.data, flags)
            proposal.write(path, text, document.text, "main", journal,
                           _without_ours(text or "", state, path, journal) if journal.is_edited(path) else None)
            if state.release >= _HAS_VALIDATE:
                proposal.trials.append(base.Trial({"daemon.json": document.text}, [
                    state.binary, "--validate", "--config-file", "{dir}/daemon.json"]))
        else:
            proposal.warnings.clear()
        _choose_action(state, journal, before, document.data, proposal)
        if not proposal.changes:
            _compare_running_daemon(state, document.data, flags, options, proposal)
        if _info(state):
            default = flags.default_runtime or document.data.get("default-runtime")
            words = [*options.classes, *([f"default={default}"] if default else [])]
            proposal.confirm = ["sh", "-c", _confirm(state), "sh", *words]
        return proposal

    def propose_removal(self, state: RuntimeState, journal: Journal) -> base.Proposal:
        proposal = base.Proposal(previous_default=journal.default_runtime)
        before = after = Document(state.files.get(state.config) or "", state.config).data
        # The file that the daemon reads comes last, because it determines the action.
        for path, record in sorted(journal.files.items(), key=lambda item: item[0] == state.config):
            text = state.files.get(path)
            if text is None or record.state == "before":
                continue
            rest = record.before if record.state == "ours" else _without_ours(text, state, path, journal)
            before, after = Document(text, path).data, Document(rest or "", path).data
            if record.state == "ours":
                proposal.restore(path, text, record)
            else:
                if rest != text:
                    _check_default(path, after, _flags(state))
                proposal.keep_edits(path, text, rest or "", "main")
        _choose_action(state, journal, before, after, proposal)
        return proposal


# -- the current configuration


@dataclass
class _Flags:
    """The settings on dockerd's command line. features: unparsed, such as `cdi=true`."""

    runtimes: list[str] = field(default_factory=list)
    default_runtime: str | None = None
    features: list[str] = field(default_factory=list)
    live_restore: bool = False

    @property
    def cdi(self) -> bool:
        """Whether a flag enables CDI."""
        return any(feature in ("cdi", "cdi=", "cdi=true") for feature in self.features)


def _check_file_is_read(state: RuntimeState) -> None:
    """Raises HostError if the daemon does not read the configuration file."""
    if str(state.unit).startswith("snap."):
        raise HostError(f"Docker does not read {state.config}: it is a snap ({state.unit}) with its own toolkit.",
                        "Use the setting of the snap (snap set docker nvidia-support...), or install Docker from "
                        "packages of the distribution or of Docker.", unit=state.unit)
    rootless = rootless_pid(state)
    if rootless and not state.running:
        raise HostError(f"Docker does not read {state.config}, because it runs rootless ({rootless}).",
                        "Name the user of this Docker in rootless_users.", path=rootless)


def rootless_pid(state: RuntimeState) -> str | None:
    """The file with the process id of a rootless Docker of the host, None if there is none."""
    return next((path for path, text in state.files.items() if text and path.startswith("/run/user/")), None)


def _flags(state: RuntimeState) -> _Flags:
    flags = _Flags()
    words = list(_expanded(state))
    for index, word in enumerate(words):
        flag, sign, value = word.partition("=")
        value = value if sign else "".join(words[index + 1:index + 2])
        if flag == "--add-runtime":
            flags.runtimes.append(value.partition("=")[0])
        elif flag == "--default-runtime":
            flags.default_runtime = value
        elif flag == "--feature":
            flags.features.append(value)
        elif flag == "--live-restore":
            flags.live_restore = not sign or value.lower() in ("1", "t", "true")
    return flags


def _expanded(state: RuntimeState) -> t.Iterator[str]:
    """The words of the unit's command line, with the values of its variables."""
    variables: dict[str, str] = {}
    for path in _VARIABLES:
        for line in (state.files.get(path) or "").splitlines():
            match = re.fullmatch(r"\s*(?:export\s+)?([A-Za-z_]\w*)=(.*)", line)
            if match:
                variables[match.group(1)] = match.group(2).strip().strip("\"'")
    for word in state.command:
        match = re.fullmatch(r"\$\{?(\w+)\}?", word)
        if match:
            yield from shlex.split(variables.get(match.group(1), "").replace("'", ""))
        else:
            yield word


def _info(state: RuntimeState) -> Table | None:
    """The output of `docker info`, None if the daemon does not answer."""
    answer = state.facts.get("info")
    if not state.running or answer is None or answer.rc != 0:
        return None
    try:
        info = json.loads(answer.stdout)
    except (ValueError, RecursionError):
        return None
    return info if isinstance(info, dict) and isinstance(info.get("Runtimes"), dict) else None


def _programs(data: Table, flags: _Flags) -> dict[str, str | None]:
    """Maps each declared runtime to its program, None if it is unknown."""
    declared = data.get("runtimes")
    return {**dict.fromkeys(flags.runtimes),
            **{name: base.text_or_none(lookup(data, ("runtimes", name, "path")))
               for name in (declared if isinstance(declared, dict) else ())}}


def _has_cdi(state: RuntimeState, data: Table) -> bool:
    """Whether a daemon that starts with this file supports CDI devices."""
    feature = lookup(data, _CDI)
    return (state.release >= _CDI_DEFAULT and feature is not False
            or state.release >= _CDI_SUPPORTED and feature is True)


# -- the desired configuration


def _desired(state: RuntimeState, data: Table, flags: _Flags, options: base.Options, proposal: base.Proposal,
             unwanted: set[str]) -> dict[Path, Value]:
    """Maps the path of each member that differs to its desired value."""
    values: dict[Path, Value] = {}
    for name, binary in options.classes.items():
        entry = lookup(data, ("runtimes", name))
        if name in flags.runtimes or isinstance(entry, dict) and _is_program(entry.get("path"), binary):
            continue
        if entry is None or isinstance(entry, dict) and "runtimeType" in entry:
            values["runtimes", name] = {"path": binary}  # Docker does not accept a type and a path
        else:
            values["runtimes", name, "path"] = binary
    default = flags.default_runtime or data.get("default-runtime")
    if options.default:
        if default != options.default:
            values[("default-runtime",)] = options.default
    elif ("set_as_default" in unwanted and default in proposal.classes
          and proposal.previous_default not in (None, *proposal.classes)):
        # If the member were removed, the daemon would keep its current default until it restarts.
        values[("default-runtime",)] = proposal.previous_default
    if state.user is not None:
        values.update(_rootless(state, data))
    if options.cdi and data.get("cdi-spec-dirs") == []:
        raise HostError(f"{state.config}: 'cdi-spec-dirs' is empty, so Docker finds no CDI devices.",
                        "Remove this member, or set cdi to false.", path=state.config)
    if options.cdi and not _has_cdi(state, data) and not flags.cdi:
        if state.release >= _CDI_SUPPORTED:
            values[_CDI] = True
        else:
            proposal.warnings.append("This Docker does not support CDI (from 25.0 on). Containers get GPUs only "
                                     "through the runtime class.")
    return values


def _rootless(state: RuntimeState, data: Table) -> dict[Path, Value]:
    """The folders of CDI specifications for the Docker of a user. Raises HostError for a release without CDI."""
    if state.binary and state.release < _CDI_SUPPORTED:
        raise HostError(f"Docker {state.release[0]}.{state.release[1]} does not support CDI (from 25.0 on), and "
                        f"rootless containers of {state.user} get GPUs only through CDI.",
                        "Update Docker, or omit this user.", path="rootless_users", value=state.user)
    folders = data.get("cdi-spec-dirs")
    if isinstance(folders, list) and _ROOTLESS_SPECS in folders:
        return {}
    if not isinstance(folders, list):
        folders = _folders_of_user(state) if state.release >= _FOLDERS_OF_USER else _SPECS
    return {_SPEC_DIRS: [*folders, _ROOTLESS_SPECS]}


def _folders_of_user(state: RuntimeState) -> list[Value]:
    """The default folders of the Docker of a user, from _FOLDERS_OF_USER on."""
    return [*_SPECS, *[f"{folder}/cdi" for folder in state.user_folders]]


def _is_program(path: Value, binary: str) -> bool:
    """Whether a runtime's path is the program. nvidia-ctk writes only the name, which dockerd finds on its PATH."""
    return path in (binary, binary.rpartition("/")[2])


def _check_flags(path: str, before: Table, after: Table, flags: _Flags) -> None:
    """Raises HostError if a flag and a changed member set the same option, so that dockerd would not start."""
    for flag, key, is_set in (("--default-runtime", "default-runtime", flags.default_runtime is not None),
                              ("--feature", "features", bool(flags.features))):
        if is_set and key in after and after[key] != before.get(key):
            raise HostError(f"dockerd is started with {flag}. It does not start if '{key}' in {path} is also set.",
                            f"Move {flag} from the unit's command line into the file, then run again.",
                            path=path, flag=flag, key=key)


def _check_default(path: str, data: Table, flags: _Flags) -> None:
    """Raises HostError if the default runtime is not declared. `dockerd --validate` does not check this."""
    default = data.get("default-runtime")
    declared = data.get("runtimes")
    names = ["runc", *(declared if isinstance(declared, dict) else ()), *flags.runtimes]
    if default and default not in names and not str(default).startswith("io.containerd."):
        raise HostError(f"{path}: the default runtime '{default}' is not declared. dockerd would not start.",
                        "Declare it in 'runtimes' or correct 'default-runtime'.", path=path)


def _without_ours(text: str, state: RuntimeState, path: str, journal: Journal) -> str:
    """The text with the former values of this collection's part."""
    document = Document(text, path)
    former, parts = Document(journal.before(path), path).data, base.all_parts(journal)
    _remove_parts(document, state, former, parts)
    if document.data.get("default-runtime") in (*parts, "runc"):  # _desired can have set runc
        restore_value(document, former, ("default-runtime",))
    return document.text


def _remove_parts(document: Document, state: RuntimeState, former: Table, parts: t.Collection[str]) -> None:
    """Restores the former values of these parts: runtime classes and the CDI feature."""
    filled = [key for key in ("runtimes", "features") if document.data.get(key)]
    for name in sorted(set(parts) - set(OPTION_PARTS)):
        restore_value(document, former, ("runtimes", name))
    if "cdi" in parts and lookup(document.data, _CDI) is True:
        restore_value(document, former, _CDI)
    folders = document.data.get("cdi-spec-dirs")
    if "cdi" in parts and isinstance(folders, list) and _ROOTLESS_SPECS in folders:
        rest = [folder for folder in folders if folder != _ROOTLESS_SPECS]
        if "cdi-spec-dirs" not in former and rest in (_SPECS, _folders_of_user(state)):
            document.remove(_SPEC_DIRS)
        else:
            document.set(_SPEC_DIRS, rest)
    for key in filled:
        if key not in former:
            remove_empty(document, former, (key,))


# -- the action


def _choose_action(state: RuntimeState, journal: Journal, before: Table, after: Table, proposal: base.Proposal) -> None:
    reasons = []
    if _has_cdi(state, before) != _has_cdi(state, after):
        reasons.append("CDI is set up when the daemon starts")
    elif before.get("cdi-spec-dirs") != after.get("cdi-spec-dirs"):
        reasons.append("the daemon reads the list of folders for CDI only at its start")
    removed = [key for key in ("runtimes", "default-runtime") if before.get(key) not in (None, {}, "runc")
               and key not in after]
    if removed:
        reasons.append(f"the daemon keeps the former value of '{removed[0]}' until it restarts")
    proposal.action = "restart" if reasons else "reload"
    if reasons:
        proposal.action_reason = "; ".join(reasons)
        proposal.reload_first = not removed
    if reasons or journal.restart.get(state.unit or "") == "restart":
        _set_needed_level(state, after, proposal)


def _set_needed_level(state: RuntimeState, data: Table, proposal: base.Proposal) -> None:
    """Sets the level that a restart needs.

    Containers keep running if live-restore is on before and after the restart. Otherwise, the daemon stops them at its
    start (moby, daemon.restore).
    """
    info = _info(state)
    if info is None:
        proposal.needs = "drain" if state.running else "never"
        return
    # A restart of the unit of a user ends all processes in it.
    keeps_containers = state.user is None and info.get("LiveRestoreEnabled") and (
        data.get("live-restore") is True or _flags(state).live_restore)
    if not keeps_containers:
        proposal.needs = "drain" if info.get("ContainersRunning") or info.get("ContainersPaused") else "idle"
    proposal.idle = ["sh", "-c", _idle(state, bool(keeps_containers))]


def _client(state: RuntimeState) -> str:
    return _CLIENT if state.user is None else _ROOTLESS_CLIENT


def _confirm(state: RuntimeState) -> str:
    """A script that succeeds if the daemon has all runtimes of its arguments. The argument default=NAME is the default
    runtime."""
    return ('reported=" $(' + _client(state)
            + " 'default={{.DefaultRuntime}}{{range $name, $_ := .Runtimes}} {{$name}}{{end}}') \"; "
            'for word; do case $reported in *" $word "*) ;; *) exit 1;; esac; done')


def _idle(state: RuntimeState, live_restore: bool) -> str:
    """A script that succeeds if a restart stops no container: none is running or paused, or live-restore is on."""
    idle = "test \"$(" + _client(state) + " '{{.ContainersRunning}} {{.ContainersPaused}}')\" = '0 0'"
    return f"test \"$({_client(state)} '{{{{.LiveRestoreEnabled}}}}')\" = true || {idle}" if live_restore else idle


def _compare_running_daemon(state: RuntimeState, data: Table, flags: _Flags, options: base.Options,
                            proposal: base.Proposal) -> None:
    """Sets the action for a daemon that has not applied its current file."""
    info = _info(state)
    if info is None:
        return
    default = flags.default_runtime or data.get("default-runtime") or info.get("DefaultRuntime")
    stale = not set(options.classes) <= set(info["Runtimes"]) or default != info.get("DefaultRuntime")
    known = info.get("CDISpecDirs")
    unread = state.user is not None and isinstance(known, list) and _ROOTLESS_SPECS not in known
    if _has_cdi(state, data) and options.cdi and (known == [] or unread):
        proposal.action, proposal.due_reason = "restart", "the daemon has started before CDI was enabled"
        proposal.reload_first = stale
        _set_needed_level(state, data, proposal)
    elif stale:
        proposal.action, proposal.due_reason = "reload", "the daemon has not read its file since it was changed"
