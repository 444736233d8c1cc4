# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""CRI-O: one drop-in. PRIVATE to the collection.

Sources: CRI-O's pkg/config, crio.conf.d(5) and crio(8). CRI-O reads the main file, then every file below the drop-in
folder in the order of their names, whatever their extension; it takes the whole table of a runtime from the last file
that has it. From 1.26 on, SIGHUP reloads runtimes and the default runtime. `crio config` checks all files, but silently
leaves out a runtime whose program is missing.
"""

from __future__ import annotations

import pathlib
import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError, InputError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes import base
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.host_state import Journal, RuntimeState
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.toml import load, render
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.values import Path, Table, Value, lookup

FOLDER = "/etc/crio/crio.conf.d"
DROP_IN = f"{FOLDER}/99-gpuops-nvidia.conf"
# nvidia-ctk 1.18.0 to 1.19.0 wrote a file that CRI-O does not read (NVIDIA/nvidia-container-toolkit issue 1829).
_STRAY = "/etc/crio/conf.d/99-nvidia.toml"
_FOREIGN = ("99-nvidia.conf", "99-nvidia.toml")  # written by the GPU Operator and by nvidia-ctk
_PACKAGED = "/usr/libexec/crio"
_RELOADS, _CRUN_FIRST = (1, 26), (1, 31)
_LEFTOVER = re.compile(r"^[.#].*|.*(~|#|\.(bak|orig|save|swp|swo|rpmsave|rpmnew|rpmorig|dpkg-\w+|ucf-\w+))$")
_RUNTIME: Path = ("crio", "runtime")
# Keys that determine the program of a runtime. The copy of the default runtime does not have them.
_PROGRAM = ("runtime_path", "runtime_type", "runtime_config_path", "inherit_default_runtime", "platform_runtime_paths")


class Crio(base.Runtime):
    probe = base.Probe(
        name="crio", binary="crio", units=["crio.service", "cri-o.service"], config="/etc/crio/crio.conf",
        config_flags=["-c", "--config"], drop_in=DROP_IN, reads_once=True,
        more=[f"{FOLDER}/**", f"{FOLDER}/.*", _STRAY],
        facts={"low_level": ["sh", "-c", f"command -v runc; command -v crun; ls {_PACKAGED}/runc {_PACKAGED}/crun"]})

    def propose(self, state: RuntimeState, journal: Journal, options: base.Options) -> base.Proposal:
        drop_in = options.drop_in_path or DROP_IN
        _check_folder(state, drop_in)
        without = _merged({path: text for path, text in _files(state).items()
                           if path != drop_in and path not in journal.files})
        default = without.default or ("crun" if state.release >= _CRUN_FIRST else "runc")
        proposal = base.Proposal(act=_act(state), previous_default=journal.default_runtime or default)
        proposal.settings = _low_level(state)
        proposal.due = base.STALE if state.stale else ""
        old = state.files.get(drop_in)
        if old is None and _satisfies(without, options):
            return proposal  # somebody else has configured it
        desired = _render(without, str(proposal.previous_default), options)
        proposal.drop_unused(state, journal, drop_in)
        proposal.write(drop_in, old, desired, "drop-in", journal)
        candidate = {path: text for path, text in _files(state).items()
                     if path not in {change.path for change in proposal.changes}}
        candidate[drop_in] = desired
        _check_effect(candidate, drop_in, options)
        if proposal.changes:
            _warn(state, candidate, drop_in, proposal)
            proposal.trials.append(_trial(state, candidate))
        return proposal

    def propose_removal(self, state: RuntimeState, journal: Journal) -> base.Proposal:
        """See Runtime. The drop-in is removed even if somebody has edited it."""
        proposal = base.Proposal(act=_act(state), previous_default=journal.default_runtime)
        proposal.drop_unused(state, journal, None)
        return proposal


class _Merged(t.NamedTuple):
    """The configuration of all files together. default: the default runtime, None if it is not set; runtimes: name to
    table; source: the file of each."""

    default: str | None
    runtimes: dict[str, Table]
    source: dict[str, str]


# -- the current configuration


def _act(state: RuntimeState) -> str:
    return "reload" if state.release >= _RELOADS else "restart"


def _check_folder(state: RuntimeState, drop_in: str) -> None:
    if not drop_in.startswith(f"{FOLDER}/"):
        raise InputError("CRI-O does not read this file.", f"Choose a file in {FOLDER}, or omit the option.",
                         path="drop_in_path", value=drop_in)
    words = state.command
    for index, word in enumerate(words):
        flag, sign, value = word.partition("=")
        folder = value if sign else "".join(words[index + 1:index + 2])
        if flag in ("-d", "--config-dir") and folder.rstrip("/") != FOLDER:
            raise HostError(f"CRI-O is started with {flag} {folder} and does not read {drop_in}.",
                            f"Remove that flag, so that it reads {FOLDER}.", path=drop_in, flag=flag)


def _files(state: RuntimeState) -> dict[str, str]:
    """Path to text of the files, in the order in which CRI-O reads them."""
    below = _sorted(path for path in state.files if path.startswith(f"{FOLDER}/"))
    return {path: text for path in [state.config, *below] if (text := state.files.get(path)) is not None}


def _sorted(paths: t.Iterable[str]) -> list[str]:
    """Drop-ins in CRI-O's order: it compares folder by folder."""
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
            raise HostError(f"{path}: crio.runtime.runtimes must hold only tables.",
                            "Correct the file, then run again.", path=path)
        for name, runtime in declared.items():
            runtimes[name], source[f"runtimes.{name}"] = runtime, path
    return _Merged(default, runtimes, source)


def _satisfies(merged: _Merged, options: base.Options) -> bool:
    if options.set_as_default and merged.default != "nvidia":
        return False
    # CRI-O looks for a program on its PATH only if there is no runtime_path.
    return all(merged.runtimes.get(name, {}).get("runtime_path") == binary
               for name, binary in options.classes.items())


# -- the desired configuration


def _render(without: _Merged, default: str, options: base.Options) -> str:
    """The text of the drop-in. A runtime class is a copy of the default runtime with NVIDIA's program."""
    source = next((without.runtimes[name] for name in (default, "crun", "runc")
                   if name not in base.NAMES and name in without.runtimes), {})
    values: dict[Path, Value] = {}
    if options.set_as_default:
        values[(*_RUNTIME, "default_runtime")] = "nvidia"
    for name, binary in options.classes.items():
        table: Path = (*_RUNTIME, "runtimes", name)
        values[(*table, "runtime_path")] = binary
        values[(*table, "runtime_type")] = "oci"
        for key in sorted(set(source) - set(_PROGRAM)):
            values[(*table, key)] = source[key]
    return base.HEADER + render(values)


def _low_level(state: RuntimeState) -> dict[str, Value]:
    """The paths of runc and crun, if nvidia-container-runtime would find neither on its PATH.

    CRI-O's packages install both in a folder of their own (NVIDIA/gpu-operator issue 984).
    """
    found = state.facts["low_level"].stdout.split()
    packaged = [path for path in found if path.startswith(f"{_PACKAGED}/")]
    if len(packaged) < len(found) or not packaged:
        return {}
    return {"nvidia-container-runtime.runtimes": packaged}


def _check_effect(files: t.Mapping[str, str], drop_in: str, options: base.Options) -> None:
    """Raises HostError if a file that is read after this collection's drop-in sets the same keys."""
    merged = _merged({path: files[path] for path in sorted(files, key=lambda path: (
        path.startswith(f"{FOLDER}/") or path == drop_in, path.split("/")))})
    ours = [f"runtimes.{name}" for name in options.classes] + ["default_runtime"] * options.set_as_default
    for key in ours:
        other = merged.source[key]
        if other == drop_in:
            continue
        name = pathlib.PurePosixPath(other).name
        if name in _FOREIGN:
            who = ", written by the NVIDIA GPU Operator or 'nvidia-ctk runtime configure',"
            hint = ("Leave the runtime to the GPU Operator (placement 'cluster' or 'none' for container_toolkit), or "
                    "remove that file first.")
        else:
            who = ", which looks like a backup of an editor," if _LEFTOVER.match(name) else ""
            hint = "CRI-O reads every file in that folder. Remove it, or rename it so that it sorts before ours."
        raise HostError(f"{other}{who} sets {key}, too, and is read after {drop_in}.", hint, path=other)


def _warn(state: RuntimeState, files: t.Mapping[str, str], drop_in: str, proposal: base.Proposal) -> None:
    leftovers = [path for path in files if path != drop_in and path.startswith(f"{FOLDER}/")
                 and _LEFTOVER.match(pathlib.PurePosixPath(path).name)]
    if leftovers:
        proposal.warnings.append(f"CRI-O reads every file in {FOLDER}, including backups of editors and packages: "
                                 f"{', '.join(leftovers)}.")
    if state.files.get(_STRAY) is not None:
        proposal.warnings.append(f"{_STRAY} has no effect, because CRI-O does not read it. nvidia-ctk 1.18.0 to 1.19.0 "
                                 "has written it; you can remove it.")


def _trial(state: RuntimeState, files: t.Mapping[str, str]) -> base.Trial:
    """`crio config` with all drop-ins in one folder; numbers in their names keep the order."""
    below = _sorted(path for path in files if path != state.config)
    copies = {f"{index:03}-{pathlib.PurePosixPath(path).name}": files[path] for index, path in enumerate(below)}
    main = state.config if state.config in files else ""
    return base.Trial(copies, [state.binary, "--config", main, "--config-dir", "{dir}", "config"])
