# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""CRI-O: one drop-in file of ours. PRIVATE to the collection.

Facts (CRI-O's pkg/config and its pages crio.conf.d(5) and crio(8)): the main file comes first, then every file below
the drop-in folder in the order of their names, whatever these end in; a runtime's table is taken whole from the last
file that has it. SIGHUP reads runtimes and default runtime again from 1.26 on. C(crio config) checks the whole
configuration; a runtime whose program is missing is left out silently.
"""

from __future__ import annotations

import pathlib
import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError, InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit.failure_text import words_of
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.base import (
    NAMES,
    STALE,
    FileChange,
    Options,
    Proposal,
    Trial,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.toml import Path, load, lookup, render

FOLDER = "/etc/crio/crio.conf.d"
DROP_IN = f"{FOLDER}/99-gpuops-nvidia.conf"
# nvidia-ctk 1.18.0 to 1.19.0 wrote a file where CRI-O never looks (NVIDIA/nvidia-container-toolkit issue 1829).
_STRAY = "/etc/crio/conf.d/99-nvidia.toml"
_FOREIGN = ("99-nvidia.conf", "99-nvidia.toml")  # of the GPU Operator and of nvidia-ctk
_PACKAGED = "/usr/libexec/crio"
_RELOADS, _CRUN_FIRST = (1, 26), (1, 31)
_HEADER = "# Written by the Ansible collection gpuops.nvidia, which repairs what is changed here.\n"
_LEFTOVER = re.compile(r"^[.#].*|.*(~|#|\.(bak|orig|save|swp|swo|rpmsave|rpmnew|rpmorig|dpkg-\w+|ucf-\w+))$")
_RUNTIME: Path = ("crio", "runtime")
# What the copy of the default runtime does not take over: these say which program it is.
_OWN = ("runtime_path", "runtime_type", "runtime_config_path", "inherit_default_runtime", "platform_runtime_paths")


class Crio:
    """Implements C(base.Runtime)."""

    probe: t.ClassVar[t.Mapping[str, t.Any]] = {
        "name": "crio", "binary": "crio", "units": ["crio.service", "cri-o.service"], "config": "/etc/crio/crio.conf",
        "config_flags": ["-c", "--config"], "drop_in": DROP_IN,
        "reads_once": True, "more": [f"{FOLDER}/**", f"{FOLDER}/.*", _STRAY],
        "facts": {"low_level": ["sh", "-c", f"command -v runc; command -v crun; ls {_PACKAGED}/runc {_PACKAGED}/crun"]},
    }

    def propose(self, seen: t.Mapping[str, t.Any], journal: t.Mapping[str, t.Any], options: Options) -> Proposal:
        """See C(base.Runtime)."""
        drop_in = options.drop_in_path or DROP_IN
        _check_folder(seen, drop_in)
        ours = {drop_in, *(path for path, record in journal["config"].items() if record["runtime"] == "crio")}
        without = _merged({path: text for path, text in _files(seen).items() if path not in ours})
        default = without.default or ("crun" if _version(seen) >= _CRUN_FIRST else "runc")
        proposal = Proposal(act=_act(seen), previous_default=journal["default_runtime"] or default)
        proposal.settings = _low_level(seen)
        proposal.due = STALE if seen["stale"] else ""
        old = seen["files"].get(drop_in)
        if old is None and _satisfies(without, options):
            return proposal  # somebody has configured it already
        wanted = _render(without, str(proposal.previous_default), options)
        _drop_stale(seen, journal, drop_in, proposal)
        if old != wanted:
            record = journal["config"].get(drop_in)
            reason = "it was changed by somebody since" if record and record["is"] == "edited" else ""
            proposal.changes.append(FileChange(drop_in, old, wanted, "drop-in", reason))
        candidate = {path: text for path, text in _files(seen).items()
                     if path not in {change.path for change in proposal.changes}}
        candidate[drop_in] = wanted
        _check_effect(candidate, drop_in, options)
        if proposal.changes:
            _warn(seen, candidate, drop_in, proposal)
            proposal.trials.append(_trial(seen, candidate))
        return proposal

    def judge(self, seen: t.Mapping[str, t.Any], results: t.Sequence[t.Mapping[str, t.Any]], options: Options,
              proposal: Proposal) -> None:
        """See C(base.Runtime)."""
        for result in results:
            if result["rc"] != 0:
                raise HostError(f"CRI-O rejects its files with {proposal.changes[0].path}: {words_of(result)}.",
                                "Nothing was changed. Correct what it names, then run again.",
                                path=proposal.changes[0].path)

    def withdraw(self, seen: t.Mapping[str, t.Any], journal: t.Mapping[str, t.Any]) -> Proposal:
        """See C(base.Runtime). A drop-in of ours is ours alone: it goes also where somebody has edited it."""
        proposal = Proposal(act=_act(seen), previous_default=journal["default_runtime"])
        _drop_stale(seen, journal, None, proposal)
        return proposal


class _Merged(t.NamedTuple):
    """What the files say together. runtimes: name to table; source: the file that each comes from, default: C(None)
    where none says one."""

    default: str | None
    runtimes: dict[str, dict[str, t.Any]]
    source: dict[str, str]


# -- reading


def _version(seen: t.Mapping[str, t.Any]) -> tuple[int, int]:
    """CRI-O's version; of one that does not say it, the newest."""
    match = re.search(r"(?:version:?\s+v?)(\d{1,9})\.(\d{1,9})", seen["version"], re.IGNORECASE)
    return (int(match.group(1)), int(match.group(2))) if match else (99, 0)


def _act(seen: t.Mapping[str, t.Any]) -> str:
    return "reload" if _version(seen) >= _RELOADS else "restart"


def _check_folder(seen: t.Mapping[str, t.Any], drop_in: str) -> None:
    if not drop_in.startswith(f"{FOLDER}/"):
        raise InputError("CRI-O does not read it.", f"Choose a file in {FOLDER}, or leave the option out.",
                         path="drop_in_path", value=drop_in)
    words = seen["command"]
    for index, word in enumerate(words):
        flag, sign, value = word.partition("=")
        folder = value if sign else "".join(words[index + 1:index + 2])
        if flag in ("-d", "--config-dir") and folder.rstrip("/") != FOLDER:
            raise HostError(f"CRI-O is started with {flag} {folder} and does not read {drop_in}.",
                            f"Leave that flag out, so that it reads {FOLDER}.", path=drop_in, flag=flag)


def _files(seen: t.Mapping[str, t.Any]) -> dict[str, str]:
    """The files in CRI-O's order: the main one, then all below the folder, compared name by name."""
    main = seen["config"]
    below = [path for path, text in seen["files"].items() if text is not None and path.startswith(f"{FOLDER}/")]
    return {path: seen["files"][path] for path in [main, *_sorted(below)] if seen["files"].get(path) is not None}


def _sorted(paths: t.Iterable[str]) -> list[str]:
    return sorted(paths, key=lambda path: path.split("/"))


def _merged(files: t.Mapping[str, str]) -> _Merged:
    default: str | None = None
    runtimes: dict[str, dict[str, t.Any]] = {}
    source: dict[str, str] = {}
    for path, text in files.items():
        table = lookup(load(text, path), _RUNTIME)
        if not isinstance(table, dict):
            continue
        if isinstance(table.get("default_runtime"), str):
            default, source["default_runtime"] = table["default_runtime"], path
        declared = table.get("runtimes", {})
        if not isinstance(declared, dict) or not all(isinstance(runtime, dict) for runtime in declared.values()):
            raise HostError(f"{path}: crio.runtime.runtimes holds something else than tables.",
                            "Correct the file, then run again.", path=path)
        for name, runtime in declared.items():
            runtimes[name], source[f"runtimes.{name}"] = runtime, path
    return _Merged(default, runtimes, source)


def _satisfies(merged: _Merged, options: Options) -> bool:
    if options.set_as_default and merged.default != "nvidia":
        return False
    # CRI-O finds a program without a folder on its PATH only where the path is left out.
    return all(merged.runtimes.get(name, {}).get("runtime_path") == binary
               for name, binary in options.classes.items())


# -- what is wanted


def _render(without: _Merged, default: str, options: Options) -> str:
    """The drop-in's text: the runtime is a copy of the default one, the vendor's program in its place."""
    source = next((without.runtimes[name] for name in (default, "crun", "runc")
                   if name not in NAMES and name in without.runtimes), {})
    values: dict[Path, t.Any] = {}
    if options.set_as_default:
        values[(*_RUNTIME, "default_runtime")] = "nvidia"
    for name, binary in options.classes.items():
        table: Path = (*_RUNTIME, "runtimes", name)
        values[(*table, "runtime_path")] = binary
        values[(*table, "runtime_type")] = "oci"
        for key in sorted(set(source) - set(_OWN)):
            values[(*table, key)] = source[key]
    return _HEADER + render(values)


def _low_level(seen: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """A setting of nvidia-container-runtime, where it would find neither runc nor crun on its PATH.

    CRI-O's packages have both in a folder of their own (NVIDIA/gpu-operator issue 984).
    """
    found = seen["facts"]["low_level"]["stdout"].split()
    packaged = [path for path in found if path.startswith(f"{_PACKAGED}/")]
    if len(packaged) < len(found) or not packaged:
        return {}
    return {"nvidia-container-runtime.runtimes": packaged}


def _drop_stale(seen: t.Mapping[str, t.Any], journal: t.Mapping[str, t.Any], current: str | None,
                proposal: Proposal) -> None:
    """Drop-ins that we wrote under another name, or all of them."""
    for path, record in journal["config"].items():
        if record["runtime"] == "crio" and path != current and seen["files"].get(path) is not None:
            proposal.changes.append(FileChange(path, seen["files"][path], None, "drop-in",
                                               "no longer used" if current else ""))


def _check_effect(files: t.Mapping[str, str], drop_in: str, options: Options) -> None:
    """Raises HostError where another file says the same and comes later than ours."""
    merged = _merged({path: files[path] for path in sorted(files, key=lambda path: (
        path.startswith(f"{FOLDER}/") or path == drop_in, path.split("/")))})
    wanted = [f"runtimes.{name}" for name in options.classes] + ["default_runtime"] * options.set_as_default
    for what in wanted:
        other = merged.source[what]
        if other == drop_in:
            continue
        name = pathlib.PurePosixPath(other).name
        if name in _FOREIGN:
            who = ", written by the NVIDIA GPU Operator or 'nvidia-ctk runtime configure',"
            hint = ("Let the operator go on (placement 'cluster' or 'none' for container_toolkit), or remove that file "
                    "first.")
        else:
            who = ", which looks like an editor's leftover," if _LEFTOVER.match(name) else ""
            hint = "CRI-O reads every file in that folder. Remove it, or give it a name that sorts before ours."
        raise HostError(f"{other}{who} sets {what} too and comes after {drop_in}.", hint, path=other)


def _warn(seen: t.Mapping[str, t.Any], files: t.Mapping[str, str], drop_in: str, proposal: Proposal) -> None:
    leftovers = [path for path in files if path != drop_in and path.startswith(f"{FOLDER}/")
                 and _LEFTOVER.match(pathlib.PurePosixPath(path).name)]
    if leftovers:
        proposal.warnings.append(f"CRI-O reads every file in {FOLDER}, what editors and packages left there too: "
                                 f"{', '.join(leftovers)}.")
    if seen["files"].get(_STRAY) is not None:
        proposal.warnings.append(f"{_STRAY} has no effect: CRI-O does not look there. nvidia-ctk 1.18.0 to 1.19.0 "
                                 "wrote it; it can be removed.")


def _trial(seen: t.Mapping[str, t.Any], files: t.Mapping[str, str]) -> Trial:
    """All drop-ins in one folder, their names numbered so that the order stays."""
    below = _sorted(path for path in files if path != seen["config"])
    copies = {f"{index:03}-{pathlib.PurePosixPath(path).name}": files[path] for index, path in enumerate(below)}
    main = seen["config"] if seen["config"] in files else ""
    return Trial(copies, [seen["binary"], "--config", main, "--config-dir", "{dir}", "config"])
