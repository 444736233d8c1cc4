# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads what the controller needs to compute a runtime's configuration. PRIVATE to the collection.

This side knows no TOML and no runtime: the request says which programs, units and files to read.
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
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Runner, which

# Only to know which files to read beside the main one; the controller parses the real thing.
_IMPORTS = re.compile(r"^\s*imports\s*=\s*\[(.*?)\]", re.MULTILINE | re.DOTALL)
# Seconds until a daemon has answered a question; one that hangs must not keep others from being configured.
_PATIENCE = 20
_STRING = re.compile(r"\"([^\"\n]+)\"|'([^'\n]+)'")


def observe(request: t.Mapping[str, t.Any], journal: Journal, run: Runner) -> dict[str, t.Any]:
    """Shape: C({runtimes, markers, journal, settings}); C(packages) and C(cdi) come from C(work.py)."""
    probes = request["runtimes"]
    units = _units([name for probe in probes for name in probe["units"]], run)
    kept = _journalled(journal, units)
    runtimes = {probe["name"]: _runtime(probe, units, request, list(kept["config"]), run)
                or _gone(probe, request, kept["config"]) for probe in probes}
    return {"runtimes": runtimes, "markers": [path for path in request["markers"] if os.path.lexists(path)],
            "journal": kept, "settings": _settings(journal)}


def _journalled(journal: Journal, units: t.Mapping[str, t.Mapping[str, str]]) -> dict[str, t.Any]:
    config: dict[str, t.Any] = {}
    for path, entry in journal.of_kind("config").items():
        known = journal.get("file", path) is not None
        before = journal.former_bytes(path) if known else None
        config[path] = {"part": entry["before"]["part"], "is": journal.file_is(path) if known else "before",
                        "before": None if before is None else _decode(path, before),
                        "runtime": entry["before"]["runtime"], "parts": entry["after"] or []}
    defaults = {runtime: entry["before"] for runtime, entry in journal.of_kind("default_runtime").items()}
    return {"present": bool(journal.entries or journal.unfinished), "config": config, "default_runtime": defaults,
            "restart": {unit: entry["after"]["act"] for unit, entry in journal.of_kind("restart").items()
                        if entry["after"] and not _made_good(entry["after"], units.get(unit, {}))}}


def _made_good(owed: t.Mapping[str, t.Any], unit: t.Mapping[str, str]) -> bool:
    """Whether the unit was started again by somebody since the act was owed, such as by a reboot."""
    then, now = owed["invocation"], unit.get("InvocationID", "")
    return _runs(unit) and "" not in (then, now) and then != now


def _settings(journal: Journal) -> dict[str, t.Any]:
    """C({text, ours, file, new}): the settings file, what we have set in it, how it stands where it is kept."""
    kept, file = journal.get("settings", SETTINGS), journal.get("file", SETTINGS)
    return {"text": _text(SETTINGS), "ours": (kept or {}).get("after") or {},
            "file": None if file is None else journal.file_is(SETTINGS),
            "new": file is not None and file["before"]["state"] == "absent"}


def _units(names: t.Sequence[str], run: Runner) -> dict[str, dict[str, str]]:
    """systemd's properties of units, by name; empty where there is no systemd."""
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


def _runtime(probe: t.Mapping[str, t.Any], units: t.Mapping[str, t.Mapping[str, str]],
             request: t.Mapping[str, t.Any], journalled: t.Sequence[str], run: Runner) -> dict[str, t.Any] | None:
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
    # Without a file the daemon runs on its defaults: an empty one dumps these.
    words = {"binary": binary, "config": config if text is not None else os.devnull}

    def ask(argv: t.Sequence[str]) -> dict[str, t.Any] | None:
        return _answer([word.format(**words) for word in argv], run) if argv else None

    dump = ask(probe.get("dump", ()))
    if dump and dump["rc"] != 0 and name:
        # A parser that crashes may print nothing itself.
        dump["journal"] = _answer(["journalctl", f"_SYSTEMD_UNIT={name}", "-n", "200", "-o", "cat"], run)["stdout"]
    boot = at_boot(unit)
    # One that is masked cannot be told anything, whether it runs or not.
    return {"binary": binary, "unit": name, "running": _runs(unit) and boot != "masked", "boot": boot,
            "on_demand": bool(unit.get("TriggeredBy")),
            "stale": bool(probe.get("reads_once") and is_stale(filter(None, paths), unit)),
            "command": _command(unit), "config": config,
            "version": _answer([binary, "--version"], run)["stdout"].strip(), "imports": imports,
            "files": {path: _text(path) for path in (*paths, *journalled) if path}, "health": probe.get("health", []),
            "dump": dump,
            "facts": {key: ask(argv) for key, argv in probe.get("facts", {}).items()}}


def _gone(probe: t.Mapping[str, t.Any], request: t.Mapping[str, t.Any], journalled: t.Mapping[str, t.Any]
          ) -> dict[str, t.Any] | None:
    """What a removal sees of a runtime that was uninstalled: the files that we have left there."""
    ours = [path for path, record in journalled.items() if record["runtime"] == probe["name"]]
    if request["state"] != "absent" or not ours:
        return None
    config = request.get("config_path") or probe["config"]
    return {"binary": "", "unit": None, "running": False, "boot": None, "on_demand": False, "stale": False,
            "command": [], "config": config, "version": "", "imports": {},
            "files": {path: _text(path) for path in (config, *ours)}, "health": [], "dump": None, "facts": {}}


def _answer(argv: t.Sequence[str], run: Runner) -> dict[str, t.Any]:
    """C({rc, stdout, stderr}); rc is 124 where time ran out."""
    try:
        done = run(argv, timeout=_PATIENCE, check=False)
    except CommandError:
        return {"rc": 124, "stdout": "", "stderr": f"it did not answer within {_PATIENCE} s"}
    return {"rc": done.rc, "stdout": done.stdout, "stderr": done.stderr}


def _command(unit: t.Mapping[str, str]) -> list[str]:
    """The words of the unit's command line."""
    match = re.search(r"argv\[\]=(.*?) ;", unit.get("ExecStart", ""))
    return match.group(1).split() if match else []


def _daemon(unit: t.Mapping[str, str]) -> str | None:
    """The program that the unit really starts: a second one on PATH may belong to another product."""
    match = re.search(r"path=(\S+)", unit.get("ExecStart", ""))
    return match.group(1) if match and os.access(match.group(1), os.X_OK) else None


def _configured(unit: t.Mapping[str, str], flags: t.Sequence[str]) -> str | None:
    """The configuration file that the unit's command line names, or None."""
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


def trials(request: t.Mapping[str, t.Any], run: Runner) -> list[dict[str, t.Any]]:
    """Lets the runtime judge candidate files, each trial in a temporary folder. Shape: C([{rc, stdout, stderr}]).

    Raises HostError where one of the request's paths could not be written: a run writes all its files or none.
    """
    for path in request["paths"]:
        check_writable(path)
    return [_trial(one, run) for one in request["trials"]]


def _trial(request: t.Mapping[str, t.Any], run: Runner) -> dict[str, t.Any]:
    with tempfile.TemporaryDirectory(prefix="gpuops-toolkit-") as folder:
        for name, text in request["files"].items():
            with open(os.path.join(folder, name), "w", encoding="utf-8", newline="") as stream:
                stream.write(text.replace("{dir}", folder))
        answer = _answer([word.replace("{dir}", folder) for word in request["argv"]], run)
    return {**answer, "stderr": answer["stderr"].replace(folder, "")}
