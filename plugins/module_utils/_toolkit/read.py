# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads the state of a host from which the controller computes the configuration of a runtime. PRIVATE.

The request names the programs, units and files to read. The controller parses them: `plugin_utils/_runtimes`.
"""

from __future__ import annotations

import base64
import glob
import os
import re
import tempfile
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import CommandError, HostError, InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.package_names import TOOLKIT_SETTINGS as SETTINGS
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.unit_files import SHOWN, at_boot, is_stale, triggers
from ansible_collections.gpuops.nvidia.plugins.module_utils._files import check_writable, read_bytes
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Completed, Runner, which
from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit.packages import BINARIES, Json
from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit.users import (
    OF_USER,
    Identity,
    UserFiles,
    checked,
    find,
)

# Finds only the other files to read. The controller parses the configuration.
_IMPORTS = re.compile(r"^\s*imports\s*=\s*\[(.*?)\]", re.MULTILINE | re.DOTALL)
# Maximum seconds for a program to end, so that a hanging daemon does not block the others.
_TIMEOUT = 20
# The controller refuses the answer of a host with a longer output.
_LONGEST_OUTPUT = 2**20
# The unit of a rootless Docker, in the manager of its user.
_USER_UNIT = "docker.service"
_STRING = re.compile(r"\"([^\"\n]+)\"|'([^'\n]+)'")


def read_state(request: Json, journal: Journal, run: Runner) -> dict[str, object]:
    """The state of the host, without packages and CDI, as JSON. See HostState in `_runtimes/host_state.py`."""
    _check_program(request)
    probes = request["runtimes"]
    units = _units([name for probe in probes for name in probe["units"]], run)
    records = _records(journal)
    rootless: dict[str, object] = {}
    unread: dict[str, str] = {}
    for name, user in _users(request, journal, run).items():
        try:
            own = _records_of_user(UserFiles(journal, user))
            row, found = read_user(user, request, own, run)
            if request["state"] == "absent":
                for path in own:
                    user.check_writable(path)
        except HostError as error:
            if name in _named(request):
                raise
            # A user must not be able to prevent the runs for the others.
            unread[name] = (f"a command of {name} did not end in time" if isinstance(error, CommandError)
                            else error.message.rstrip(".")[:1000])
            continue
        rootless[name] = row
        records.update(own)
        units.update({f"{unit}{OF_USER}{name}": properties for unit, properties in found.items()})
    restarts = {unit: entry["after"]["act"] for unit, entry in journal.of_kind("restart").items()
                if entry["after"] and not _is_restarted(entry["after"], units.get(unit, {}))}
    of_root = [path for path, record in records.items() if OF_USER not in str(record["runtime"])]
    return {"runtimes": {probe["name"]: _runtime(probe, units, request, of_root, run)
                         or _uninstalled(probe, request, records) for probe in probes},
            "markers": [path for path in request["markers"] if os.path.lexists(path)],
            "journal": {"present": bool(journal.entries or journal.unfinished), "config": records, "restart": restarts,
                        "default_runtime": {runtime: entry["before"] for runtime, entry
                                            in journal.of_kind("default_runtime").items()}},
            "rootless": rootless, "unread": unread,
            "settings": _settings(journal)}


def _named(request: Json) -> t.Sequence[str]:
    """The users of the option. A removal is about those of the journal."""
    return () if request["state"] == "absent" else request.get("rootless_users") or ()


def _users(request: Json, journal: Journal, run: Runner) -> dict[str, Identity]:
    """The users of the option and of the journal, by name. Raises InputError for an unknown one of the option."""
    accounts = {name: checked(name) for name in _named(request)}
    names = [entry["before"]["user"] for entry in journal.of_kind("user_file").values()]
    # A restart can still be pending after the files were restored.
    names += [unit.partition(OF_USER)[2] for unit in journal.of_kind("restart") if OF_USER in unit]
    for name in names:
        account = accounts.get(name) or find(name)
        if account is not None:  # otherwise the user was deleted
            accounts[name] = account
    return {name: Identity(account, run) for name, account in accounts.items()}


def read_user(user: Identity, request: Json, records: t.Mapping[str, t.Mapping[str, object]], run: Runner
              ) -> tuple[dict[str, object], dict[str, dict[str, str]]]:
    """C((row, units)): the rootless Docker and Podman of a user as JSON, and the units of its Docker. See User in
    `_runtimes/host_state.py`."""
    name = user.account.name
    units = _units([_USER_UNIT], user)
    folder = user.config_folder()
    unit = units.get(_USER_UNIT, {})
    config = _configured(unit, ["--config-file"]) or f"{folder}/docker/daemon.json"
    owned = [path for path, record in records.items() if record["runtime"] == f"docker{OF_USER}{name}"]
    if len(_command(unit)) > 1000 or max(map(len, [folder, config, *_command(unit)])) > 4000:
        raise HostError(f"The command line of {_USER_UNIT}{OF_USER}{name} is too long.", "Shorten it.")
    binary = which("dockerd")
    unit_files = [f"{folder}/systemd/user/{_USER_UNIT}", f"/etc/systemd/user/{_USER_UNIT}",
                  f"/usr/lib/systemd/user/{_USER_UNIT}"]
    has_docker = bool(unit) or bool(owned) or binary is not None and any(map(user.exists, [config, *unit_files]))
    lingers = os.path.exists(f"/var/lib/systemd/linger/{name}")
    row: dict[str, object] = {
        "config_folder": folder, "runtime_folder": user.runtime_folder, "lingers": lingers, "manager": bool(units) or
        user(["systemctl", "is-system-running"], check=False).stdout.strip() not in ("", "offline", "unknown"),
        "closed": user.closed(), "podman": None, "docker": None}
    if which("podman"):
        path = f"{folder}/containers/containers.conf"
        row["podman"] = {"path": path, "text": _user_text(user, path)}
    if has_docker:
        boot = at_boot(unit)
        info = _run_program(request["user_info"], user) if _is_active(unit) else None
        if info and len(info.stdout + info.stderr) > _LONGEST_OUTPUT:
            info = None
        row["docker"] = {
            "binary": binary or "", "unit": f"{_USER_UNIT}{OF_USER}{name}", "boot": boot,
            "running": _is_active(unit) and boot != "masked", "on_demand": False, "stale": False,
            "command": _command(unit), "config": config,
            "version": _run_program([binary, "--version"], run).stdout.strip() if binary else "", "imports": {},
            "files": {path: _user_text(user, path) for path in dict.fromkeys([config, *owned])}, "health": [],
            "dump": None, "facts": {"info": _json(info) if info else {"rc": 1, "stdout": "", "stderr": ""}}}
    return row, units


def _user_text(user: Identity, path: str) -> str | None:
    data = user.read(path).data
    return None if data is None else _decode(path, data)


def _check_program(request: Json) -> None:
    """Raises InputError if the program of the option nvidia_runtime_path cannot be executed."""
    path = request.get("nvidia_runtime_path")
    if request["state"] != "present" or path in (None, BINARIES["auto"]):  # the packages contain the latter
        return
    if not (os.path.isfile(path) and os.access(path, os.X_OK)):
        why = "is not an executable file" if os.path.lexists(path) else "does not exist"
        raise InputError(f"the program {why} on this host.", "Install it first, or correct the path.",
                         path="nvidia_runtime_path", value=path, allowed="an executable file on the host")


def _records_of_user(user: UserFiles) -> dict[str, dict[str, object]]:
    """As _records, for the files of a user."""
    records: dict[str, dict[str, object]] = {}
    for path, entry in user.journal.of_kind("config").items():
        of_user = user.journal.get("user_file", path)
        name = entry["before"]["runtime"].partition(OF_USER)[2]
        if of_user is not None and name == user.identity.account.name:
            former = of_user["before"]["bytes"]
            records[path] = {"part": entry["before"]["part"], "runtime": entry["before"]["runtime"],
                             "parts": entry["after"] or [], "is": user.state(path, user.identity.read(path).data),
                             "before": None if former is None else _decode(path, base64.b64decode(former))}
    return records


def _records(journal: Journal) -> dict[str, dict[str, object]]:
    """Maps the path of each journalled file of a runtime of root to its record."""
    records: dict[str, dict[str, object]] = {}
    for path, entry in journal.of_kind("config").items():
        if journal.get("user_file", path) is not None or OF_USER in entry["before"]["runtime"]:
            continue
        known = journal.get("file", path) is not None
        before = journal.former_bytes(path) if known else None
        records[path] = {"part": entry["before"]["part"], "is": journal.file_is(path) if known else "before",
                         "before": None if before is None else _decode(path, before),
                         "runtime": entry["before"]["runtime"], "parts": entry["after"] or []}
    return records


def _is_restarted(pending: Json, unit: t.Mapping[str, str]) -> bool:
    """Whether the unit has restarted since the pending action was recorded, for example by a reboot."""
    then, now = pending["invocation"], unit.get("InvocationID", "")
    return _is_active(unit) and "" not in (then, now) and then != now


def _settings(journal: Journal) -> dict[str, object]:
    entry, file = journal.get("settings", SETTINGS), journal.get("file", SETTINGS)
    return {"text": _text(SETTINGS), "ours": (entry or {}).get("after") or {},
            "file": None if file is None else journal.file_is(SETTINGS),
            "new": file is not None and file["before"]["state"] == "absent"}


def _units(names: t.Sequence[str], run: Runner) -> dict[str, dict[str, str]]:
    """Maps the name of each existing unit, and of those that start it on demand, to its properties. Empty without
    systemd."""
    shown = ",".join((*SHOWN, "InvocationID", "ExecStart", "Environment"))
    units: dict[str, dict[str, str]] = {}
    while names:
        completed = run(["systemctl", "show", *names, "-p", shown], check=False)
        for block in completed.stdout.split("\n\n"):
            properties = dict(line.partition("=")[::2] for line in block.splitlines() if "=" in line)
            if properties.get("LoadState") in ("loaded", "masked"):
                units[properties.get("Id", "")] = properties
        asked = {*names, *units}
        names = [trigger for name in names for trigger in units.get(name, {}).get("TriggeredBy", "").split()
                 if trigger not in asked]
    return units


def _is_active(unit: t.Mapping[str, str]) -> bool:
    return unit.get("ActiveState") in ("active", "activating", "reloading")


def _runtime(probe: Json, units: t.Mapping[str, t.Mapping[str, str]], request: Json, journal_paths: t.Sequence[str],
             run: Runner) -> dict[str, object] | None:
    names = sorted(filter(units.__contains__, probe["units"]), key=lambda name: at_boot(units[name]) == "masked")
    name = next((name for name in names if _is_active(units[name])), names[0] if names else None)
    unit = units[name] if name else {}
    binary = _daemon(unit) or which(probe["binary"])
    if binary is None:
        return None
    config = request.get("config_path") or _configured(unit, probe["config_flags"]) or probe["config"]
    text = _text(config)
    imports = _imports(config, text or "")
    paths = [config, request.get("drop_in_path") or probe.get("drop_in"), *sum(imports.values(), [])]
    for pattern in probe.get("other_files", ()):
        paths += sorted(path for path in glob.glob(pattern, recursive=True) if os.path.isfile(path))
    # Without a file the daemon uses its defaults. With an empty file, the dump prints the same.
    words = {"binary": binary, "config": config if text is not None else os.devnull}

    def run_command(argv: t.Sequence[str]) -> dict[str, object] | None:
        return _json(_run_program([word.format(**words) for word in argv], run)) if argv else None

    dump = run_command(probe.get("dump", ()))
    if dump and dump["rc"] != 0 and name:
        # A parser that crashes may print nothing.
        dump["journal"] = _run_program(["journalctl", f"_SYSTEMD_UNIT={name}", "-n", "200", "-o", "cat"], run).stdout
    sockets = triggers(unit, units)
    boot = at_boot(unit, sockets)
    # A masked unit cannot be restarted, so it counts as stopped.
    return {"binary": binary, "unit": name, "running": _is_active(unit) and boot != "masked", "boot": boot,
            "on_demand": any(map(_is_active, sockets)),
            "stale": bool(probe.get("reads_once") and is_stale(filter(None, paths), unit)),
            "command": _command(unit), "config": config,
            "version": _run_program([binary, "--version"], run).stdout.strip(), "imports": imports,
            # Users can put links to any file into their folders, so of these files only the existence is read.
            "files": {path: "exists" if path.startswith("/run/user/") else _text(path)
                      for path in (*paths, *journal_paths) if path},
            "health": probe.get("health", []), "dump": dump,
            "facts": {key: run_command(argv) for key, argv in probe.get("facts", {}).items()}}


def _uninstalled(probe: Json, request: Json, records: t.Mapping[str, t.Mapping[str, object]]
                 ) -> dict[str, object] | None:
    """For a removal: the state of an uninstalled runtime whose files are still in the journal, otherwise None."""
    owned_paths = [path for path, record in records.items() if record["runtime"] == probe["name"]]
    if request["state"] != "absent" or not owned_paths:
        return None
    config = request.get("config_path") or probe["config"]
    return {"binary": "", "unit": None, "running": False, "boot": None, "on_demand": False, "stale": False,
            "command": [], "config": config, "version": "", "imports": {},
            "files": {path: _text(path) for path in (config, *owned_paths)}, "health": [], "dump": None, "facts": {}}


def _run_program(argv: t.Sequence[str], run: Runner) -> Completed:
    """The result of a program. rc is 124 if it did not end in time."""
    try:
        return run(argv, timeout=_TIMEOUT, check=False)
    except CommandError:
        return Completed(tuple(argv), 124, "", f"it did not answer within {_TIMEOUT} s")


def _json(completed: Completed) -> dict[str, object]:
    return {"rc": completed.rc, "stdout": completed.stdout, "stderr": completed.stderr}


def _command(unit: t.Mapping[str, str]) -> list[str]:
    """The words of the unit's command line."""
    match = re.search(r"argv\[\]=(.*?) ;", unit.get("ExecStart", ""))
    return match.group(1).split() if match else []


def _daemon(unit: t.Mapping[str, str]) -> str | None:
    """The program that the unit starts. It may differ from the program on PATH."""
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
    matches: dict[str, list[str]] = {}
    for match in _IMPORTS.finditer(text):
        for double, single in _STRING.findall(match.group(1)):
            pattern = double or single
            matches[pattern] = sorted(glob.glob(os.path.join(os.path.dirname(config), pattern)))
    return matches


def _text(path: str) -> str | None:
    data = read_bytes(path)
    return None if data is None else _decode(path, data)


def _decode(path: str, data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise HostError(f"{path} is not UTF-8 (byte {error.start}).", "Correct the file, then run again.",
                        path=path) from error


def run_trials(request: Json, run: Runner) -> list[dict[str, object]]:
    """The results of the runtime's own checks of candidate files, as JSON. Each check has a temporary folder.

    Raises HostError if a path of the request cannot be written, so that a run writes all files or none.
    """
    for path in request["paths"]:
        check_writable(path)
    for name, paths in request.get("user_paths", {}).items():
        user = Identity(checked(name), run)
        for path in paths:
            user.check_writable(path)
    return [_run_trial(trial, run) for trial in request["trials"]]


def _run_trial(request: Json, run: Runner) -> dict[str, object]:
    with tempfile.TemporaryDirectory(prefix="gpuops-toolkit-") as folder:
        for name, text in request["files"].items():
            with open(os.path.join(folder, name), "w", encoding="utf-8", newline="") as stream:
                stream.write(text.replace("{dir}", folder))
        completed = _run_program([word.replace("{dir}", folder) for word in request["argv"]], run)
    return _json(completed._replace(stderr=completed.stderr.replace(folder, "")))
