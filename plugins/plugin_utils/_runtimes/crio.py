# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""CRI-O: one drop-in. PRIVATE to the collection.

Sources: CRI-O's pkg/config, crio.conf.d(5) and crio(8). CRI-O reads the main file, then all files in the drop-in folder
in the order of their names, regardless of their extension. The last file with the table of a runtime replaces the whole
table. From 1.26 on, SIGHUP reloads runtimes and the default runtime. `crio config` checks all files, but silently omits
a runtime whose program is missing.
"""

from __future__ import annotations

import pathlib
import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError, InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit.options import RUNTIME_CLASSES
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes import base
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.host_state import Journal, RuntimeState
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.toml import load, render
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.values import Path, Table, Value, lookup

FOLDER = "/etc/crio/crio.conf.d"
DROP_IN = f"{FOLDER}/99-gpuops-nvidia.conf"
# nvidia-ctk 1.18.0 to 1.19.0 wrote a file that CRI-O does not read (NVIDIA/nvidia-container-toolkit issue 1829).
_UNREAD_FILE = "/etc/crio/conf.d/99-nvidia.toml"
_VENDOR_FILES = ("99-nvidia.conf", "99-nvidia.toml")  # written by the GPU Operator and by nvidia-ctk
_PACKAGED = "/usr/libexec/crio"
_RELOADS, _CRUN_FIRST = (1, 26), (1, 31)
_BACKUP = re.compile(r"^[.#].*|.*(~|#|\.(bak|orig|save|swp|swo|rpmsave|rpmnew|rpmorig|dpkg-\w+|ucf-\w+))$")
_RUNTIME: Path = ("crio", "runtime")
# Keys that determine the program of a runtime. They are not copied from the default runtime.
_PROGRAM = ("runtime_path", "runtime_type", "runtime_config_path", "inherit_default_runtime", "platform_runtime_paths")


class Crio(base.Runtime):
    probe = base.Probe(
        name="crio", binary="crio", units=["crio.service", "cri-o.service"], config="/etc/crio/crio.conf",
        config_flags=["-c", "--config"], drop_in=DROP_IN, reads_once=True,
        other_files=[f"{FOLDER}/**", f"{FOLDER}/.*", _UNREAD_FILE],
        facts={"low_level": ["sh", "-c", f"command -v runc; command -v crun; ls {_PACKAGED}/runc {_PACKAGED}/crun"]})

    def read(self, state: RuntimeState) -> base.Configuration:
        merged = _merged(_files(state))
        return base.Configuration(_programs(merged), merged.default or _default_runtime(state), True)

    def propose(self, state: RuntimeState, journal: Journal, options: base.Options) -> base.Proposal:
        drop_in = options.drop_in_path or DROP_IN
        _check_drop_in_path(state, drop_in)
        others = _merged({path: text for path, text in _files(state).items()
                         if path != drop_in and path not in journal.files})
        default = others.default or _default_runtime(state)
        base.check_name(journal, options, _programs(others), state.config)
        proposal = base.Proposal(action=_service_action(state), previous_default=journal.default_runtime or default,
                                 parts=options.parts)
        proposal.settings = _low_level_runtimes(state)
        proposal.due_reason = base.STALE if state.stale else ""
        current = state.files.get(drop_in)
        if current is None and _is_configured(others, options):
            return proposal  # foreign files contain the desired configuration
        desired = _render(others, str(proposal.previous_default), options)
        proposal.remove_unused_drop_ins(state, journal, drop_in)
        proposal.write(drop_in, current, desired, "drop-in", journal)
        candidate = {path: text for path, text in _files(state).items()
                     if path not in {change.path for change in proposal.changes}}
        candidate[drop_in] = desired
        _check_effect(candidate, drop_in, options)
        if proposal.changes:
            _add_warnings(state, candidate, drop_in, proposal)
            proposal.trials.append(_trial(state, candidate))
        return proposal

    def propose_removal(self, state: RuntimeState, journal: Journal) -> base.Proposal:
        """See Runtime. The drop-in is removed even if somebody has edited it."""
        proposal = base.Proposal(action=_service_action(state), previous_default=journal.default_runtime)
        proposal.remove_unused_drop_ins(state, journal, None)
        return proposal


class _Merged(t.NamedTuple):
    """The merged configuration of all files. default: the default runtime, None if it is not set; runtimes: name to
    table; source: setting to the file that sets it."""

    default: str | None
    runtimes: dict[str, Table]
    source: dict[str, str]


# -- the current configuration


def _service_action(state: RuntimeState) -> str:
    return "reload" if state.release >= _RELOADS else "restart"


def _default_runtime(state: RuntimeState) -> str:
    return "crun" if state.release >= _CRUN_FIRST else "runc"


def _check_drop_in_path(state: RuntimeState, drop_in: str) -> None:
    if not drop_in.startswith(f"{FOLDER}/"):
        raise InputError("CRI-O does not read this file.", f"Choose a file in {FOLDER}, or omit the option.",
                         path="drop_in_path", value=drop_in)
    words = state.command
    for index, word in enumerate(words):
        flag, sign, value = word.partition("=")
        folder = value if sign else "".join(words[index + 1:index + 2])
        if flag in ("-d", "--config-dir") and folder.rstrip("/") != FOLDER:
            raise HostError(f"CRI-O is started with {flag} {folder}, so it does not read {drop_in}.",
                            f"Remove this flag, so that CRI-O reads {FOLDER}.", path=drop_in, flag=flag)


def _files(state: RuntimeState) -> dict[str, str]:
    """Maps the path of each file to its text, in the order in which CRI-O reads the files."""
    drop_ins = _sorted(path for path in state.files if path.startswith(f"{FOLDER}/"))
    return {path: text for path in [state.config, *drop_ins] if (text := state.files.get(path)) is not None}


def _sorted(paths: t.Iterable[str]) -> list[str]:
    """The drop-ins in the order of CRI-O, which compares paths folder by folder."""
    return sorted(paths, key=lambda path: path.split("/"))


def _merged(files: t.Mapping[str, str]) -> _Merged:
    default: str | None = None
    runtimes: dict[str, Table] = {}
    source: dict[str, str] = {}
    for path, text in files.items():
        table = lookup(load(text, path), _RUNTIME)
        if not isinstance(table, dict):
            continue
        if isinstance(table.get("default_runtime"), str):
            default, source["default_runtime"] = table["default_runtime"], path
        declared = table.get("runtimes", {})
        if not isinstance(declared, dict) or not all(isinstance(runtime, dict) for runtime in declared.values()):
            raise HostError(f"{path}: crio.runtime.runtimes must contain only tables.",
                            "Correct the file, then run again.", path=path)
        for name, runtime in declared.items():
            runtimes[name], source[f"runtimes.{name}"] = runtime, path
    return _Merged(default, runtimes, source)


def _programs(merged: _Merged) -> dict[str, str | None]:
    """Maps each declared runtime to its program, None if CRI-O searches its PATH for the program."""
    return {name: base.text_or_none(runtime.get("runtime_path")) for name, runtime in merged.runtimes.items()}


def _is_configured(merged: _Merged, options: base.Options) -> bool:
    if options.default not in (None, merged.default):
        return False
    # Without runtime_path, CRI-O searches its PATH for the program.
    return all(merged.runtimes.get(name, {}).get("runtime_path") == binary
               for name, binary in options.classes.items())


# -- the desired configuration


def _render(others: _Merged, default: str, options: base.Options) -> str:
    """The text of the drop-in. A runtime class is a copy of the default runtime with NVIDIA's program."""
    programs = _programs(others)
    source = next((others.runtimes[name] for name in (default, "crun", "runc")
                   if name in programs and name not in (*RUNTIME_CLASSES, *options.classes)
                   and not base.is_nvidia(programs[name])), {})
    values: dict[Path, Value] = {}
    if options.default:
        values[(*_RUNTIME, "default_runtime")] = options.default
    for name, binary in options.classes.items():
        table: Path = (*_RUNTIME, "runtimes", name)
        values[(*table, "runtime_path")] = binary
        values[(*table, "runtime_type")] = "oci"
        for key in sorted(set(source) - set(_PROGRAM)):
            values[(*table, key)] = source[key]
    return base.HEADER + render(values)


def _low_level_runtimes(state: RuntimeState) -> dict[str, Value]:
    """The setting with the paths of runc and crun, if nvidia-container-runtime would find neither on its PATH.

    CRI-O's packages install both in a folder of their own (NVIDIA/gpu-operator issue 984).
    """
    programs = state.facts["low_level"].stdout.split()
    packaged = [path for path in programs if path.startswith(f"{_PACKAGED}/")]
    if len(packaged) < len(programs) or not packaged:
        return {}
    return {"nvidia-container-runtime.runtimes": packaged}


def _check_effect(files: t.Mapping[str, str], drop_in: str, options: base.Options) -> None:
    """Raises HostError if another file overrides keys of this collection's drop-in."""
    merged = _merged({path: files[path] for path in sorted(files, key=lambda path: (
        path.startswith(f"{FOLDER}/") or path == drop_in, path.split("/")))})
    keys = [f"runtimes.{name}" for name in options.classes] + ["default_runtime"] * options.set_as_default
    for key in keys:
        last_file = merged.source[key]
        if last_file == drop_in:
            continue
        name = pathlib.PurePosixPath(last_file).name
        if name in _VENDOR_FILES:
            origin = " of the NVIDIA GPU Operator or 'nvidia-ctk runtime configure'"
            hint = ("Leave the runtime to the GPU Operator (placement 'cluster' or 'none' for container_toolkit), or "
                    "remove this file first.")
        else:
            origin = ", which looks like a backup of an editor," if _BACKUP.match(name) else ""
            hint = ("CRI-O reads every file in this folder. Remove the file, or rename it so that it sorts before "
                    f"{pathlib.PurePosixPath(drop_in).name}.")
        raise HostError(f"{last_file}{origin} also sets {key} and is read after {drop_in}.", hint, path=last_file)


def _add_warnings(state: RuntimeState, files: t.Mapping[str, str], drop_in: str, proposal: base.Proposal) -> None:
    backups = [path for path in files if path != drop_in and path.startswith(f"{FOLDER}/")
               and _BACKUP.match(pathlib.PurePosixPath(path).name)]
    if backups:
        proposal.warnings.append(f"CRI-O reads every file in {FOLDER}, including backups of editors and packages: "
                                 f"{', '.join(backups)}.")
    if state.files.get(_UNREAD_FILE) is not None:
        proposal.warnings.append(f"{_UNREAD_FILE} has no effect, because CRI-O does not read it. nvidia-ctk 1.18.0 to "
                                 "1.19.0 has written it. You can remove it.")


def _trial(state: RuntimeState, files: t.Mapping[str, str]) -> base.Trial:
    """`crio config` with copies of all drop-ins in one folder. Numbers in their names keep the order."""
    drop_ins = _sorted(path for path in files if path != state.config)
    copies = {f"{index:03}-{pathlib.PurePosixPath(path).name}": files[path] for index, path in enumerate(drop_ins)}
    main = state.config if state.config in files else ""
    return base.Trial(copies, [state.binary, "--config", main, "--config-dir", "{dir}", "config"])
