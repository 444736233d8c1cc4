# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads what the controller needs to compute the configuration of a runtime. PRIVATE to the collection.

The request names the programs, units and files to read. The controller parses them: `plugin_utils/_runtimes`.
"""

from __future__ import annotations

import glob
import os
import re
import tempfile
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import CommandError, HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.package_names import TOOLKIT_SETTINGS as SETTINGS
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.unit_files import SHOWN, at_boot, is_stale
from ansible_collections.gpuops.nvidia.plugins.module_utils._files import check_writable, read_bytes
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Completed, Runner, which
from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit.packages import Json

# Only to find the other files to read; the controller parses the file.
_IMPORTS = re.compile(r"^\s*imports\s*=\s*\[(.*?)\]", re.MULTILINE | re.DOTALL)
# Seconds for a program to end, so that a daemon that hangs does not block the others.
_TIMEOUT = 20
_STRING = re.compile(r"\"([^\"\n]+)\"|'([^'\n]+)'")


def observe(request: Json, journal: Journal, run: Runner) -> dict[str, object]:
    """JSON of the state of the host, see HostState in `plugin_utils/_runtimes/host_state.py`, without packages and CDI.
    """
    probes = request["runtimes"]
    units = _units([name for probe in probes for name in probe["units"]], run)
    records = _records(journal)
    restarts = {unit: entry["after"]["act"] for unit, entry in journal.of_kind("restart").items()
                if entry["after"] and not _was_restarted(entry["after"], units.get(unit, {}))}
    return {"runtimes": {probe["name"]: _runtime(probe, units, request, list(records), run)
                         or _uninstalled(probe, request, records) for probe in probes},
            "markers": [path for path in request["markers"] if os.path.lexists(path)],
            "journal": {"present": bool(journal.entries or journal.unfinished), "config": records, "restart": restarts,
                        "default_runtime": {runtime: entry["before"] for runtime, entry
                                            in journal.of_kind("default_runtime").items()}},
            "settings": _settings(journal)}


def _records(journal: Journal) -> dict[str, dict[str, object]]:
    """Maps the path of each file of a runtime to its record in the journal."""
    records: dict[str, dict[str, object]] = {}
    for path, entry in journal.of_kind("config").items():
        known = journal.get("file", path) is not None
        before = journal.former_bytes(path) if known else None
        records[path] = {"part": entry["before"]["part"], "is": journal.file_is(path) if known else "before",
                         "before": None if before is None else _decode(path, before),
                         "runtime": entry["before"]["runtime"], "parts": entry["after"] or []}
    return records


def _was_restarted(owed: Json, unit: t.Mapping[str, str]) -> bool:
    """Whether the unit was restarted since the act was journalled, for example by a reboot."""
    then, now = owed["invocation"], unit.get("InvocationID", "")
    return _runs(unit) and "" not in (then, now) and then != now


def _settings(journal: Journal) -> dict[str, object]:
    kept, file = journal.get("settings", SETTINGS), journal.get("file", SETTINGS)
    return {"text": _text(SETTINGS), "ours": (kept or {}).get("after") or {},
            "file": None if file is None else journal.file_is(SETTINGS),
            "new": file is not None and file["before"]["state"] == "absent"}


def _units(names: t.Sequence[str], run: Runner) -> dict[str, dict[str, str]]:
    """Name to properties of the units that exist; empty without systemd."""
    shown = ",".join((*SHOWN, "InvocationID", "ExecStart", "Environment"))
    done = run(["systemctl", "show", *names, "-p", shown], check=False)
    found = {}
    for block in done.stdout.split("\n\n"):
        properties = dict(line.partition("=")[::2] for line in block.splitlines() if "=" in line)
        if properties.get("LoadState") in ("loaded", "masked"):
            found[properties.get("Id", "")] = properties
    return found


def _runs(unit: t.Mapping[str, str]) -> bool:
    return unit.get("ActiveState") in ("active", "activating", "reloading")


def _runtime(probe: Json, units: t.Mapping[str, t.Mapping[str, str]], request: Json, journalled: t.Sequence[str],
             run: Runner) -> dict[str, object] | None:
    there = sorted((name for name in probe["units"] if name in units), key=lambda one: at_boot(units[one]) == "masked")
    name = next((name for name in there if _runs(units[name])), there[0] if there else None)
    unit = units[name] if name else {}
    binary = _daemon(unit) or which(probe["binary"])
    if binary is None:
        return None
    config = request.get("config_path") or _configured(unit, probe["config_flags"]) or probe["config"]
    text = _text(config)
    imports = _imports(config, text or "")
    paths = [config, request.get("drop_in_path") or probe.get("drop_in"), *sum(imports.values(), [])]
    for pattern in probe.get("more", ()):
        paths += sorted(path for path in glob.glob(pattern, recursive=True) if os.path.isfile(path))
    # Without a file the daemon uses its defaults, which an empty file also dumps.
    words = {"binary": binary, "config": config if text is not None else os.devnull}

    def ask(argv: t.Sequence[str]) -> dict[str, object] | None:
        return _json(_answer([word.format(**words) for word in argv], run)) if argv else None

    dump = ask(probe.get("dump", ()))
    if dump and dump["rc"] != 0 and name:
        # A parser that crashes can print nothing.
        dump["journal"] = _answer(["journalctl", f"_SYSTEMD_UNIT={name}", "-n", "200", "-o", "cat"], run).stdout
    boot = at_boot(unit)
    # A masked unit cannot be restarted, so it counts as stopped.
    return {"binary": binary, "unit": name, "running": _runs(unit) and boot != "masked", "boot": boot,
            "on_demand": bool(unit.get("TriggeredBy")),
            "stale": bool(probe.get("reads_once") and is_stale(filter(None, paths), unit)),
            "command": _command(unit), "config": config,
            "version": _answer([binary, "--version"], run).stdout.strip(), "imports": imports,
            "files": {path: _text(path) for path in (*paths, *journalled) if path}, "health": probe.get("health", []),
            "dump": dump, "facts": {key: ask(argv) for key, argv in probe.get("facts", {}).items()}}


def _uninstalled(probe: Json, request: Json, records: t.Mapping[str, t.Mapping[str, object]]
                 ) -> dict[str, object] | None:
    """For a removal: a runtime that was uninstalled, but whose files are still in the journal."""
    ours = [path for path, record in records.items() if record["runtime"] == probe["name"]]
    if request["state"] != "absent" or not ours:
        return None
    config = request.get("config_path") or probe["config"]
    return {"binary": "", "unit": None, "running": False, "boot": None, "on_demand": False, "stale": False,
            "command": [], "config": config, "version": "", "imports": {},
            "files": {path: _text(path) for path in (config, *ours)}, "health": [], "dump": None, "facts": {}}


def _answer(argv: t.Sequence[str], run: Runner) -> Completed:
    """How a program ended; rc is 124 if it did not end in time."""
    try:
        return run(argv, timeout=_TIMEOUT, check=False)
    except CommandError:
        return Completed(tuple(argv), 124, "", f"it did not answer within {_TIMEOUT} s")


def _json(done: Completed) -> dict[str, object]:
    return {"rc": done.rc, "stdout": done.stdout, "stderr": done.stderr}


def _command(unit: t.Mapping[str, str]) -> list[str]:
    """The words of the unit's command line."""
    match = re.search(r"argv\[\]=(.*?) ;", unit.get("ExecStart", ""))
    return match.group(1).split() if match else []


def _daemon(unit: t.Mapping[str, str]) -> str | None:
    """The program that the unit starts, which can be another one than that on PATH."""
    match = re.search(r"path=(\S+)", unit.get("ExecStart", ""))
    return match.group(1) if match and os.access(match.group(1), os.X_OK) else None


def _configured(unit: t.Mapping[str, str], flags: t.Sequence[str]) -> str | None:
    """The configuration file in the unit's command line, or None."""
    words = _command(unit)
    for index, word in enumerate(words):
        flag, sign, value = word.partition("=")
        if flag in flags:
            value = value if sign else "".join(words[index + 1:index + 2])
            for setting in unit.get("Environment", "").split():
                name, _sign, content = setting.partition("=")
                value = content if value == f"${name}" else value.replace(f"${{{name}}}", content)
            return value or None
    return None


def _imports(config: str, text: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for match in _IMPORTS.finditer(text):
        for double, single in _STRING.findall(match.group(1)):
            pattern = double or single
            found[pattern] = sorted(glob.glob(os.path.join(os.path.dirname(config), pattern)))
    return found


def _text(path: str) -> str | None:
    data = read_bytes(path)
    return None if data is None else _decode(path, data)


def _decode(path: str, data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise HostError(f"{path} is not UTF-8 (byte {error.start}).", "Correct the file, then run again.",
                        path=path) from error


def trials(request: Json, run: Runner) -> list[dict[str, object]]:
    """JSON of the results of the runtime's checks of candidate files, each in a temporary folder.

    Raises HostError if one of the request's paths cannot be written, so that a run writes all files or none.
    """
    for path in request["paths"]:
        check_writable(path)
    return [_trial(trial, run) for trial in request["trials"]]


def _trial(request: Json, run: Runner) -> dict[str, object]:
    with tempfile.TemporaryDirectory(prefix="gpuops-toolkit-") as folder:
        for name, text in request["files"].items():
            with open(os.path.join(folder, name), "w", encoding="utf-8", newline="") as stream:
                stream.write(text.replace("{dir}", folder))
        done = _answer([word.replace("{dir}", folder) for word in request["argv"]], run)
    return _json(done._replace(stderr=done.stderr.replace(folder, "")))
