# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Docker: members of daemon.json. PRIVATE to the collection.

Facts: moby's daemon/config and daemon/reload, dockerd 26.1 run. Runtimes and the default runtime are read again at
SIGHUP, but a key that is gone keeps its former value until the daemon starts; CDI is set up at the start alone.
C(dockerd --validate) came with 23.0; it does not see a default runtime that nobody declares.
"""

from __future__ import annotations

import copy
import json
import re
import shlex
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit.failure_text import words_of
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.base import (
    NAMES,
    PARTS,
    FileChange,
    Options,
    Proposal,
    Trial,
    switched_off,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.json_text import Document, Path
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.toml import lookup

_CLIENT = "docker -H unix:///var/run/docker.sock info --format"
_INFO = _CLIENT + " '{{{{json .}}}}'"  # the host side makes one brace of two
# Whether the daemon says of itself all words that are given: runtimes, and the default one as default=NAME.
_SAYS = ('said=" $(' + _CLIENT + " 'default={{.DefaultRuntime}}{{range $name, $_ := .Runtimes}} {{$name}}{{end}}') \"; "
         'for word; do case $said in *" $word "*) ;; *) exit 1;; esac; done')
# Succeeds while a restart stops no container: none is running or paused; the daemon leaves them alone.
_IDLE = "test \"$(" + _CLIENT + " '{{.ContainersRunning}} {{.ContainersPaused}}')\" = '0 0'"
_LIVES = f"test \"$({_CLIENT} '{{{{.LiveRestoreEnabled}}}}')\" = true || {_IDLE}"
_CDI: Path = ("features", "cdi")
_CDI_KNOWN, _CDI_ON, _VALIDATES = (25, 0), (28, 2), (23, 0)
# Flags of dockerd that it refuses beside the member of the file.
_EXCLUSIVE = {"default-runtime": "default-runtime", "feature": "features"}
# Where distributions keep the variables that the unit's command line names.
_VARIABLES = ("/etc/default/docker", "/etc/sysconfig/docker")


class Docker:
    """Implements C(base.Runtime)."""

    probe: t.ClassVar[t.Mapping[str, t.Any]] = {
        "name": "docker", "binary": "dockerd", "units": ["docker.service", "snap.docker.dockerd.service"],
        "config": "/etc/docker/daemon.json", "config_flags": ["--config-file"],
        "more": [*_VARIABLES, "/run/user/*/docker.pid"],
        # Only of a daemon that runs: its socket would start it.
        "facts": {"info": ["sh", "-c", f"systemctl -q is-active docker.service && exec {_INFO}"]},
    }

    def propose(self, seen: t.Mapping[str, t.Any], journal: t.Mapping[str, t.Any], options: Options) -> Proposal:
        """See C(base.Runtime)."""
        _refuse_elsewhere(seen)
        path, text = seen["config"], seen["files"][seen["config"]]
        document, flags = Document(text or "", path), _flags(seen)
        before = copy.deepcopy(document.data)
        effective = str(flags.get("default-runtime") or before.get("default-runtime") or "runc")
        proposal = Proposal(previous_default=journal["default_runtime"] or effective, parts=options.parts)
        record = journal["config"].get(path)
        off = switched_off(journal, options, effective)
        if record:
            _take_back(document, Document(record["before"] or "", path).data, off)
        for member, value in _wanted(seen, before, flags, options, proposal, off).items():
            document.set(member, value)
        if document.data != before:
            _check_flags(path, before, document.data, flags)
            _check_default(path, document.data, flags)
            edited = record is not None and record["is"] == "edited"
            baseline = _without_ours(text or "", path, record) if edited else None
            proposal.changes.append(FileChange(path, text, document.text, "main", "it was changed by somebody since"
                                               if edited else "", baseline))
            if _version(seen) >= _VALIDATES:
                proposal.trials.append(Trial({"daemon.json": document.text},
                                             [seen["binary"], "--validate", "--config-file", "{dir}/daemon.json"]))
        else:
            proposal.warnings.clear()
        _choose_act(seen, journal, before, document.data, proposal)
        if not proposal.changes:
            _compare_live(seen, document.data, flags, options, proposal)
        if _live(seen):
            default = flags.get("default-runtime") or document.data.get("default-runtime")
            words = [*options.classes, *([f"default={default}"] if default else [])]
            proposal.confirm = ["sh", "-c", _SAYS, "sh", *words]
        return proposal

    def judge(self, seen: t.Mapping[str, t.Any], results: t.Sequence[t.Mapping[str, t.Any]], options: Options,
              proposal: Proposal) -> None:
        """See C(base.Runtime)."""
        for result in results:
            if result["rc"] != 0:
                raise HostError(f"dockerd rejects the candidate for {seen['config']}: {words_of(result)}.",
                                "Nothing was changed. Correct what it names, then run again.", path=seen["config"])

    def withdraw(self, seen: t.Mapping[str, t.Any], journal: t.Mapping[str, t.Any]) -> Proposal:
        """See C(base.Runtime)."""
        proposal = Proposal(previous_default=journal["default_runtime"])
        before = after = Document(seen["files"].get(seen["config"]) or "", seen["config"]).data
        # The file that the daemon reads comes last: it says how the removal takes effect.
        for path, record in sorted(journal["config"].items(), key=lambda item: item[0] == seen["config"]):
            text = seen["files"].get(path)
            if text is None or record["is"] == "before":
                continue  # removed by somebody: it is theirs
            rest = record["before"] if record["is"] == "ours" else _without_ours(text, path, record)
            before, after = Document(text, path).data, Document(rest or "", path).data
            if record["is"] == "ours":
                proposal.changes.append(FileChange(path, text, rest, "main", "", restore=True))
                continue
            proposal.warnings.append(f"{path} was edited since this collection wrote it: only its part was taken out.")
            if rest != text:
                _check_default(path, after, _flags(seen))
                proposal.changes.append(FileChange(path, text, rest, "main", "edited since: only our part",
                                                   baseline=rest))
        _choose_act(seen, journal, before, after, proposal)
        return proposal


# -- reading


def _version(seen: t.Mapping[str, t.Any]) -> tuple[int, int]:
    """Docker's version; of one that does not say it, the newest."""
    match = re.search(r"version v?(\d{1,9})\.(\d{1,9})", seen["version"])
    return (int(match.group(1)), int(match.group(2))) if match else (99, 0)


def _refuse_elsewhere(seen: t.Mapping[str, t.Any]) -> None:
    """Raises HostError for a daemon that reads another file than the one we write."""
    if str(seen["unit"]).startswith("snap."):
        raise HostError(f"{seen['config']} is not read here: Docker is a snap ({seen['unit']}), which brings its own "
                        "toolkit.", "Use the snap's own setting (snap set docker nvidia-support...), or Docker from "
                        "packages of the distribution or of Docker.", unit=seen["unit"])
    rootless = next((path for path, text in seen["files"].items() if text and path.startswith("/run/user/")), None)
    if rootless and not seen["running"]:
        raise HostError(f"{seen['config']} is not read here: Docker runs rootless ({rootless}).",
                        "Set the runtime in that user's ~/.config/docker/daemon.json and run 'systemctl --user restart "
                        "docker'; the legacy mode also needs nvidia-container-cli.no-cgroups.", path=rootless)


def _flags(seen: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """What dockerd's command line sets: C({runtimes: [name], default-runtime, feature: [name], live-restore}), only
    what is there."""
    found: dict[str, t.Any] = {}
    words = list(_expanded(seen))
    for index, word in enumerate(words):
        flag, sign, value = word.partition("=")
        value = value if sign else "".join(words[index + 1:index + 2])
        if flag == "--add-runtime":
            found.setdefault("runtimes", []).append(value.partition("=")[0])
        elif flag == "--default-runtime":
            found["default-runtime"] = value
        elif flag == "--feature":
            found.setdefault("feature", []).append(value)
        elif flag == "--live-restore":
            found["live-restore"] = not sign or value.lower() in ("1", "t", "true")
    return found


def _expanded(seen: t.Mapping[str, t.Any]) -> t.Iterator[str]:
    """The words of the unit's command line, variables filled in from the files that distributions keep them in."""
    variables: dict[str, str] = {}
    for path in _VARIABLES:
        for line in (seen["files"].get(path) or "").splitlines():
            match = re.fullmatch(r"\s*(?:export\s+)?([A-Za-z_]\w*)=(.*)", line)
            if match:
                variables[match.group(1)] = match.group(2).strip().strip("\"'")
    for word in seen["command"]:
        match = re.fullmatch(r"\$\{?(\w+)\}?", word)
        if match:
            yield from shlex.split(variables.get(match.group(1), "").replace("'", ""))
        else:
            yield word


def _live(seen: t.Mapping[str, t.Any]) -> dict[str, t.Any] | None:
    """What the running daemon says of itself (docker info), None where it cannot be asked."""
    fact = seen["facts"].get("info")
    if not seen["running"] or not fact or fact["rc"] != 0:
        return None
    try:
        info = json.loads(fact["stdout"])
    except (ValueError, RecursionError):
        return None
    return info if isinstance(info, dict) and isinstance(info.get("Runtimes"), dict) else None


def _hands_out_cdi(seen: t.Mapping[str, t.Any], data: t.Any) -> bool:
    """Whether a daemon that starts with this file knows CDI devices."""
    said = lookup(data, _CDI)
    version = _version(seen)
    return version >= _CDI_ON and said is not False or version >= _CDI_KNOWN and said is True


# -- what is wanted


def _wanted(seen: t.Mapping[str, t.Any], data: t.Any, flags: t.Mapping[str, t.Any], options: Options,
            proposal: Proposal, off: set[str]) -> dict[Path, t.Any]:
    """Member to value, only those that differ."""
    values: dict[Path, t.Any] = {}
    for name, binary in options.classes.items():
        entry = lookup(data, ("runtimes", name))
        if name in flags.get("runtimes", ()) or isinstance(entry, dict) and _is_program(entry.get("path"), binary):
            continue
        if entry is None or isinstance(entry, dict) and "runtimeType" in entry:
            values["runtimes", name] = {"path": binary}  # a type excludes a path
        else:
            values["runtimes", name, "path"] = binary
    default = flags.get("default-runtime") or data.get("default-runtime")
    if options.set_as_default:
        if default != "nvidia":
            values[("default-runtime",)] = "nvidia"
    elif "set_as_default" in off and default in NAMES and proposal.previous_default not in (None, *NAMES):
        # Said aloud: without the member the daemon would keep the one it has.
        values[("default-runtime",)] = proposal.previous_default
    if options.cdi and data.get("cdi-spec-dirs") == []:
        raise HostError(f"{seen['config']}: 'cdi-spec-dirs' is empty, so that Docker hands out no CDI devices.",
                        "Take that member out, or set cdi to false.", path=seen["config"])
    if options.cdi and not _hands_out_cdi(seen, data) and "cdi" not in _names(flags.get("feature", ())):
        if _version(seen) >= _CDI_KNOWN:
            values[_CDI] = True
        else:
            proposal.warnings.append("This Docker has no CDI (it came with 25.0): only the runtime class can hand out "
                                     "GPUs.")
    return values


def _names(features: t.Iterable[str]) -> set[str]:
    return {name for name, _ignored, value in (one.partition("=") for one in features) if value in ("", "true")}


def _is_program(path: t.Any, binary: str) -> bool:
    """Whether a runtime's path is the program; nvidia-ctk writes its name alone, which dockerd finds on its PATH."""
    return path in (binary, binary.rpartition("/")[2])


def _check_flags(path: str, before: t.Any, after: t.Any, flags: t.Mapping[str, t.Any]) -> None:
    for flag, key in _EXCLUSIVE.items():
        if flag in flags and key in after and after[key] != before.get(key):
            raise HostError(f"dockerd is started with --{flag} and would refuse '{key}' in {path} beside it.",
                            f"Move --{flag} from the unit's command line into the file, then run again.",
                            path=path, flag=f"--{flag}", key=key)


def _check_default(path: str, data: t.Any, flags: t.Mapping[str, t.Any]) -> None:
    """What --validate misses: the daemon would not start with a default that nobody declares."""
    default = data.get("default-runtime")
    declared = data.get("runtimes")
    known = ["runc", *(declared if isinstance(declared, dict) else ()), *flags.get("runtimes", ())]
    if default and default not in known and not str(default).startswith("io.containerd."):
        raise HostError(f"{path}: the default runtime '{default}' is not declared; dockerd would not start.",
                        "Declare it below 'runtimes' or correct 'default-runtime'.", path=path)


def _without_ours(text: str, path: str, record: t.Mapping[str, t.Any] | None) -> str:
    """The text without our part; what stood there before us returns."""
    document = Document(text, path)
    former = Document((record or {}).get("before") or "", path).data
    _take_back(document, former, PARTS)
    if document.data.get("default-runtime") in (*NAMES, "runc"):  # runc: said aloud by us, see _wanted
        _put_back(document, former, ("default-runtime",))
    return document.text


def _take_back(document: Document, former: t.Any, parts: t.Collection[str]) -> None:
    """Takes out classes of ours and the switch for CDI."""
    filled = [key for key in ("runtimes", "features") if document.data.get(key)]
    for name in NAMES:
        if name in parts:
            _put_back(document, former, ("runtimes", name))
    if "cdi" in parts and lookup(document.data, _CDI) is True:
        _put_back(document, former, _CDI)
    for key in filled:
        if document.data.get(key) == {} and key not in former:
            document.remove((key,))


def _put_back(document: Document, former: t.Any, path: Path) -> None:
    now, then = lookup(document.data, path), lookup(former, path)
    if now is None or now == then:
        return
    if then is None:
        document.remove(path)
    else:
        document.set(path, then)


# -- how it takes effect


def _choose_act(seen: t.Mapping[str, t.Any], journal: t.Mapping[str, t.Any], before: t.Any, after: t.Any,
                proposal: Proposal) -> None:
    reasons = []
    if _hands_out_cdi(seen, before) != _hands_out_cdi(seen, after):
        reasons.append("CDI is set up when the daemon starts")
    gone = [key for key in ("runtimes", "default-runtime") if before.get(key) not in (None, {}, "runc")
            and key not in after]
    if gone:
        reasons.append(f"without '{gone[0]}' the daemon keeps what it had until it starts")
    proposal.act = "restart" if reasons else "reload"
    if reasons:
        proposal.act_reason = "; ".join(reasons)
        proposal.reload_first = not gone
    if reasons or journal["restart"].get(seen["unit"]) == "restart":
        _weigh_restart(seen, after, proposal)


def _weigh_restart(seen: t.Mapping[str, t.Any], data: t.Any, proposal: Proposal) -> None:
    """Containers live on if the daemon leaves them at its end and takes them over at its start.

    At its start it stops those that live if its file does not say so by then (moby, daemon.restore).
    """
    info = _live(seen)
    if info is None:
        proposal.needs = "drain" if seen["running"] else "never"
        return
    lives = info.get("LiveRestoreEnabled") and (data.get("live-restore") is True or _flags(seen).get("live-restore"))
    if not lives:
        proposal.needs = "drain" if info.get("ContainersRunning") or info.get("ContainersPaused") else "idle"
    proposal.idle = ["sh", "-c", _LIVES if lives else _IDLE]


def _compare_live(seen: t.Mapping[str, t.Any], data: t.Any, flags: t.Mapping[str, t.Any], options: Options,
                  proposal: Proposal) -> None:
    """The files are as wanted: whether the daemon has read them."""
    info = _live(seen)
    if info is None:
        return
    default = flags.get("default-runtime") or data.get("default-runtime") or info.get("DefaultRuntime")
    stale = not set(options.classes) <= set(info["Runtimes"]) or default != info.get("DefaultRuntime")
    if _hands_out_cdi(seen, data) and options.cdi and info.get("CDISpecDirs") == []:
        proposal.act, proposal.due = "restart", "the daemon started before CDI was switched on"
        proposal.reload_first = stale
        _weigh_restart(seen, data, proposal)
    elif stale:
        proposal.act, proposal.due = "reload", "the daemon has not read its file since it was changed"
