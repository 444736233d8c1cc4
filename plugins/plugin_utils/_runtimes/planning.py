# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan of a run: pure, from what the host side read. PRIVATE to the collection."""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step, diff_entry
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes import settings_file
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.base import FileChange, Proposal
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.toml import TOKEN

_MASKED = "********"
# Keys of credentials, without signs and in small letters: these words are in them, they end so, or they are these.
_WORDS = ("password", "passwd", "passphrase", "secret", "token", "credential", "apikey", "accesskey", "privatekey",
          "cookie")
_ENDS = ("auth", "authorization", "header", "headers")
_KEYS = ("pass", "pwd", "authconfig")
# The header of a table in TOML, or a key with its separator in TOML, JSON, YAML, or a variable, also within a string.
_KEY = re.compile(r"""^[ \t]*\[\[?(?P<table>[^\]\n]{1,1000})\]\]?[ \t]*(?:\#.*)?$|"""
                  r"""(?P<key>"(?:[^"\\\n]|\\.){0,200}"|'[^'\n]{0,200}'|(?<![\w.-])[\w.-]+)\s{0,100}(?:=[ \t]*|:\s*)""",
                  re.MULTILINE)
_PLAIN = re.compile(r"(?:null|true|false)\b")
_BARE = re.compile(r"[^\n\"'}\]]*")
# What stands before the host: a user with a password, or a token alone. A slash in it only where no port can be meant.
_IN_URL = re.compile(r"""(://)(?:[^/\s"']*|[^/@:\s"']*:(?![0-9]+/)[^\s"']{1,300})@""")


def present(seen: t.Mapping[str, t.Any], runtime: str | None, proposal: Proposal,
            settings: t.Mapping[str, t.Any]) -> list[Step]:
    """The steps to the wanted state, in order. seen: the host side's answer to C(read). settings: the option."""
    packages, cdi = ([_step(raw) for raw in seen[name]["steps"]] for name in ("packages", "cdi"))
    # First: the scripts of packages make systemd read its units again: without links containers lose devices then.
    steps = [step for step in cdi if step.action.startswith("link")]
    steps += packages + settings_file.plan(settings, seen["settings"], bool(packages))
    steps += [step for step in cdi if step not in steps]
    # Last: what gpu_disruption forbids holds up everything behind it.
    return steps + (runtime_steps(seen, runtime, proposal) if runtime else [])


def waiting(seen: t.Mapping[str, t.Any], runtime: str | None, told: str) -> list[dict[str, t.Any]]:
    """What has to wait for something else than gpu_disruption, in the shape of C(pending)."""
    found = []
    if runtime is None:
        found.append({**Step("configure", "container runtime").as_dict(),
                      "pending_reason": "no container runtime that can be configured is installed"})
    if told:
        found.append({**Step("configure", str(runtime)).as_dict(), "pending_reason": told})
    found += _idle(seen["runtimes"][runtime]) if runtime else []
    return found + list(seen["cdi"]["pending"])


def _idle(view: t.Mapping[str, t.Any]) -> list[dict[str, t.Any]]:
    """What is left to whoever looks after a runtime's service: it runs no containers, now or after a boot."""
    unit = view["unit"]
    if unit is None:
        return []
    if view["boot"] == "masked":
        action, reason = "unmask service", f"it is masked; whoever masked it decides (systemctl unmask {unit})"
    elif not view["running"] and not view["on_demand"]:
        action, reason = "start service", f"it does not run; whoever stopped it decides (systemctl enable --now {unit})"
    elif view["boot"] == "no":
        action = "enable service"
        reason = f"it does not start at boot; whoever disabled it decides (systemctl enable {unit})"
    else:
        return []
    return [{**Step(action, unit).as_dict(), "pending_reason": reason}]


def journal_of(seen: t.Mapping[str, t.Any], runtime: str) -> dict[str, t.Any]:
    """The part of the journal that is about one runtime, as its methods take it."""
    journal = seen["journal"]
    config = {path: record for path, record in journal["config"].items() if record["runtime"] == runtime}
    return {**journal, "config": config, "default_runtime": journal["default_runtime"].get(runtime)}


def absent(seen: t.Mapping[str, t.Any], proposals: t.Mapping[str, Proposal]) -> list[Step]:
    """The steps that take away what this collection brought, in order. proposals: by runtime."""
    steps = [step for runtime, one in proposals.items() for step in runtime_steps(seen, runtime, one)]
    steps += [_step(raw) for raw in seen["cdi"]["steps"]]
    package_steps = [_step(raw) for raw in seen["packages"]["steps"]]
    purging = any(step.action.startswith(("purge", "remove packages")) for step in package_steps)
    # The settings file is written by the package's scripts: it can go only after them, and before its repository.
    last = [step for step in package_steps if step.action.startswith(("remove repository", "release"))]
    steps += [step for step in package_steps if step not in last]
    return steps + settings_file.withdraw(seen["settings"], purging) + last


def runtime_steps(seen: t.Mapping[str, t.Any], runtime: str, proposal: Proposal) -> list[Step]:
    """Files, then one restart or reload of the runtime where they change what it has read."""
    view = seen["runtimes"][runtime]
    steps = [_file_step(change, view, runtime, proposal) for change in proposal.changes]
    owed = seen["journal"]["restart"].get(view["unit"])
    act = proposal.act if steps or proposal.due else "none"
    reason = proposal.act_reason if steps else proposal.due
    by_reload = act == "reload" or act == "restart" and proposal.reload_first
    if owed and owed != act and act != "restart":
        # A restart that is owed is not made good by a reload.
        act, reason = owed, "a former run changed its configuration and was stopped"
    if act != "none" and view["running"]:
        data = {"unit": view["unit"], "health": view["health"], "runtime": runtime, "confirm": proposal.confirm}
        if act == "restart" and by_reload and proposal.needs != "never":
            steps.append(Step("reload service", view["unit"], "what can be read again, before the restart",
                              data={**data, "act": "reload"}))
        idle = proposal.idle if act == "restart" and proposal.needs != "drain" else []
        steps.append(Step(f"{act} service", view["unit"], reason, proposal.needs,
                          data={**data, "act": act, "idle": idle}))
    return steps


def _file_step(change: FileChange, view: t.Mapping[str, t.Any], runtime: str, proposal: Proposal) -> Step:
    if change.after is None:
        action = "remove file"
    elif change.restore:
        action = "restore file"
    else:
        action = "write file" if change.before is None or change.part == "drop-in" else "edit file"
    return Step(action, change.path, change.reason, data={
        "path": change.path, "text": change.after, "before": change.before, "baseline": change.baseline,
        "restore": change.restore, "part": change.part, "runtime": runtime, "default": proposal.previous_default,
        "parts": proposal.parts,
        "unit": view["unit"] if view["running"] and proposal.act != "none" else None, "act": proposal.act})


def _step(raw: t.Mapping[str, t.Any]) -> Step:
    return Step(raw["action"], raw["target"], raw["reason"], raw["needs"], raw["assumed"], raw["data"])


def as_request(steps: t.Sequence[Step]) -> list[dict[str, t.Any]]:
    """The steps as the host side takes them."""
    return [{**step.as_dict(), "data": dict(step.data)} for step in steps]


def diffs(changes: t.Sequence[FileChange]) -> list[dict[str, str]]:
    """The files' text before and after, credentials of registries masked."""
    return [diff_entry(change.path, mask(change.before or ""), mask(change.after or "")) for change in changes]


def mask(text: str) -> str:
    """The text without credentials: values of keys for them (registries, log drivers) and what is in URLs (proxies).

    Any text is taken, valid or not; where the end of a value cannot be told, all that follows is masked.
    """
    pieces: list[str] = []
    at, in_headers = 0, False
    while True:
        match = _KEY.search(text, at)
        if match is None:
            break
        pieces.append(text[at:match.end()])
        at = match.end()
        if match["table"]:
            in_headers = re.sub(r"\W", "", match["table"].rpartition(".")[2]).lower() in ("header", "headers")
        elif in_headers or _is_secret(match["key"]):
            end = _value_end(text, at)
            if end > at:
                pieces.append(f'"{_MASKED}"' if text[at] in "[{\"'" else _MASKED)
                at = end
    return _IN_URL.sub(rf"\1{_MASKED}@", "".join(pieces) + text[at:])


def _is_secret(key: str) -> bool:
    name = re.sub(r"[^a-z0-9]", "", key.lower())
    return name in _KEYS or name.endswith(_ENDS) or any(word in name for word in _WORDS)


def _value_end(text: str, start: int) -> int:
    """Where the value that begins at start ends; start where there is none that could be a credential."""
    if text[start:start + 1] not in ("[", "{", '"', "'"):
        bare = _BARE.match(text, start)
        return start if bare is None or _PLAIN.match(text, start) else start + len(bare.group().rstrip())
    depth = 0
    for match in TOKEN.finditer(text, start):
        token = match.group()
        if token in ("'", '"'):  # a string without end
            return len(text)
        depth += 1 if token in "[{" else -1 if token in "]}" else 0
        if depth <= 0:
            return match.end()
    return len(text)


def prove(steps: t.Sequence[Step], after: t.Sequence[Step]) -> None:
    """Raises HostError where a second read still wants something: what was done did not last."""
    left = [step.id for step in after]
    if left:
        raise HostError(f"After the run the host still differs: {', '.join(left)}.",
                        "Something on the host undoes the change; find what else writes there.",
                        done=[step.id for step in steps], left=left)
