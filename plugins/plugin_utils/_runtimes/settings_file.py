# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The settings file of nvidia-container-runtime: known settings, and edits that change only these. PRIVATE.

Sources: NVIDIA Container Toolkit 1.20 (output of `nvidia-ctk config`, internal/config and its features) and its release
notes. At each upgrade, the package rewrites the file, keeps the values and removes the comments.
"""

from __future__ import annotations

import contextlib
import typing as t
from dataclasses import asdict

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError, nearest
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step, diff_entry
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.host_state import Setting, SettingsState
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.toml import Document
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.values import Path, Value, lookup, remove_empty

EDIT, RESTORE = "edit settings", "restore settings"
FILE = "/etc/nvidia-container-runtime/config.toml"

_CLI, _RUNTIME, _MODES = "nvidia-container-cli", "nvidia-container-runtime", "nvidia-container-runtime.modes"
_BOOL, _TEXT, _LIST = ("bool",), ("str",), ("list",)
# Maps the dotted name of a setting to its type or its allowed values.
KNOWN: dict[str, tuple[str, ...]] = {
    "accept-nvidia-visible-devices-as-volume-mounts": _BOOL,
    "accept-nvidia-visible-devices-envvar-when-unprivileged": _BOOL,
    "disable-require": _BOOL,
    "supported-driver-capabilities": _TEXT,
    "swarm-resource": _TEXT,
    f"{_CLI}.debug": _TEXT, f"{_CLI}.environment": _LIST, f"{_CLI}.ldcache": _TEXT, f"{_CLI}.ldconfig": _TEXT,
    f"{_CLI}.load-kmods": _BOOL, f"{_CLI}.no-cgroups": _BOOL, f"{_CLI}.path": _TEXT, f"{_CLI}.root": _TEXT,
    f"{_CLI}.user": _TEXT,
    f"{_RUNTIME}.debug": _TEXT,
    f"{_RUNTIME}.log-level": ("trace", "debug", "info", "warning", "error"),
    f"{_RUNTIME}.mode": ("auto", "cdi", "jit-cdi", "legacy", "csv"),
    f"{_RUNTIME}.runtimes": _LIST,
    f"{_MODES}.cdi.annotation-prefixes": _LIST, f"{_MODES}.cdi.default-kind": _TEXT, f"{_MODES}.cdi.spec-dirs": _LIST,
    f"{_MODES}.csv.compat-container-root": _TEXT, f"{_MODES}.csv.mount-spec-path": _TEXT,
    f"{_MODES}.jit-cdi.nvcdi-disable-hooks": _LIST, f"{_MODES}.jit-cdi.nvcdi-feature-flags": _LIST,
    f"{_MODES}.legacy.cuda-compat-mode": ("ldconfig", "hook", "mount", "disabled"),
    "nvidia-container-runtime-hook.path": _TEXT, "nvidia-container-runtime-hook.skip-mode-detection": _BOOL,
    "nvidia-ctk.path": _TEXT,
    **{f"features.{name}": _BOOL for name in (
        "allow-cuda-compat-libs-from-container", "allow-ldconfig-from-container", "allow-unknown-oci-spec-fields",
        "disable-cuda-compat-lib-hook", "disable-imex-channel-creation", "gdrcopy", "gds",
        "ignore-imex-channel-requests", "mofed", "no-additional-gids-for-device-nodes", "nvswitch")},
}


def by_name(settings: t.Mapping[str, Value]) -> dict[str, Value]:
    """Maps the dotted name of each setting to its value, without nulls. settings: nested or with dotted names. Raises
    InputError."""
    found = dict(_flat(settings, ""))
    for name, value in found.items():
        _check(name, value)
    return found


def known(text: str) -> dict[str, Value]:
    """The known settings in a file with valid values, nested as in the option `settings`. Raises HostError."""
    data = Document(text, FILE).data
    found: dict[str, Value] = {}
    for name in KNOWN:
        value = lookup(data, _path(name))
        if value is None:
            continue
        with contextlib.suppress(InputError):
            _check(name, value)
            _nest(found, _path(name), value)
    return found


def _nest(data: dict[str, Value], path: Path, value: Value) -> None:
    for key in path[:-1]:
        data = data.setdefault(key, {})
    data[path[-1]] = value


def _flat(settings: t.Mapping[str, Value], prefix: str) -> t.Iterator[tuple[str, Value]]:
    for key, value in settings.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and name not in KNOWN:
            yield from _flat(value, f"{name}.")
        elif value is not None:
            yield name, value


def _check(name: str, value: Value) -> None:
    path = f"settings.{name}"
    if name not in KNOWN:
        suggestion = nearest(name, KNOWN, 0.5)
        raise InputError(f"'{name}' is not a known setting of nvidia-container-runtime.",
                         f"Did you mean {suggestion}?" if suggestion else "See the output of 'nvidia-ctk config'.",
                         path=path, value=value, allowed=sorted(KNOWN))
    kind = KNOWN[name]
    if kind == _BOOL:
        valid, allowed = isinstance(value, bool), "true or false"
    elif kind == _LIST:
        valid, allowed = isinstance(value, list) and all(isinstance(item, str) for item in value), "a list of strings"
    else:
        valid, allowed = isinstance(value, str) and (kind == _TEXT or value in kind), \
            "a string" if kind == _TEXT else f"one of {', '.join(kind)}"
    if not valid:
        raise InputError(f"{value!r} is not a valid value of {name}.", f"Set it to {allowed}.", path=path, value=value)
    ldconfig = f"{_CLI}.ldconfig"
    if name == ldconfig and not value.startswith("@"):
        raise InputError(f"Without @, {ldconfig} is a program in the container, which toolkits since 1.17.3 reject.",
                         f"Set @{value}, a path on the host.", path=path, value=value)


def plan(settings: t.Mapping[str, Value], state: SettingsState, installing: bool) -> list[Step]:
    """The step that edits the file, if its settings differ. Raises InputError and HostError.

    installing: whether an earlier step installs packages, which write the file if it does not exist.
    """
    desired, text = by_name(settings), state.text
    if text is None and installing:
        return [Step(EDIT, FILE, "once the packages have written it", assumed=True)] if desired else []
    document = Document(text or "", FILE)
    changed, reasons = dict(state.ours), []
    for name in [name for name in changed if name not in desired]:
        if _restore_setting(document, name, changed.pop(name)):
            reasons.append(f"{name} is no longer desired")
    for name, value in desired.items():
        former = lookup(document.data, _path(name))
        if former != value:
            changed[name] = Setting(changed[name].before if name in changed else former, value)
            document.set(_path(name), value)
            reasons.append(name)
    return [_step(text, document, changed, ", ".join(reasons))] if reasons or changed != state.ours else []


def plan_removal(state: SettingsState, purging: bool) -> list[Step]:
    """The step that removes this collection's settings. purging: whether an earlier step removes the packages."""
    if state.file in (None, "before"):
        return []
    if purging or state.new or state.file == "ours":
        return [Step(RESTORE, FILE, "this collection has written it", data={"path": FILE})]
    if state.text is None:
        return []
    document = Document(state.text, FILE)
    names = [name for name, setting in state.ours.items() if _restore_setting(document, name, setting)]
    return [_step(state.text, document, {}, f"remove {', '.join(names)}")] if names else []


def warnings(settings: t.Mapping[str, Value], text: str | None) -> list[str]:
    """Warnings about the desired settings. text: the current text of the file."""
    name = f"{_CLI}.no-cgroups"
    current = lookup(Document(text, FILE).data, _path(name)) if text else None
    if by_name(settings).get(name, current):
        return [f"{name} is true in {FILE}. Containers of root get no access to GPUs through cgroups. Use this setting "
                "only for rootless containers."]
    return []


def diffs(steps: t.Sequence[Step]) -> list[dict[str, str]]:
    """The diffs of steps that edit the file."""
    return [diff_entry(FILE, step.data["before"] or "", step.data["text"]) for step in steps
            if step.action == EDIT and not step.assumed]


def _step(before: str | None, document: Document, changed: t.Mapping[str, Setting], reason: str) -> Step:
    return Step(EDIT, FILE, reason, data={"path": FILE, "before": before, "text": document.text,
                                          "ours": {name: asdict(setting) for name, setting in changed.items()}})


def _restore_setting(document: Document, name: str, setting: Setting) -> bool:
    """Restores the former value of a setting. Returns False if the setting was changed after the run."""
    path = _path(name)
    if lookup(document.data, path) != setting.after:
        return False
    if setting.before is None:
        document.remove(path)
        remove_empty(document, {}, path[:-1])
    else:
        document.set(path, setting.before)
    return True


def _path(name: str) -> Path:
    return tuple(name.split("."))
