# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The settings file of nvidia-container-runtime: known settings, and edits that keep everything else. PRIVATE.

Sources: NVIDIA Container Toolkit 1.20 (output of `nvidia-ctk config`, internal/config and its features) and its release
notes. At every upgrade, the package rewrites the file: it keeps values and removes comments.
"""

from __future__ import annotations

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
# Dotted name to type, or to the allowed words.
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
    """Dotted name to value of the option `settings`, which is nested or has dotted names. Raises InputError."""
    found = dict(_flat(settings, ""))
    for name, value in found.items():
        _check(name, value)
    return found


def _flat(settings: t.Mapping[str, Value], prefix: str) -> t.Iterator[tuple[str, Value]]:
    for key, value in settings.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and name not in KNOWN:
            yield from _flat(value, f"{name}.")
        else:
            yield name, value


def _check(name: str, value: Value) -> None:
    where = f"settings.{name}"
    if name not in KNOWN:
        near = nearest(name, KNOWN, 0.5)
        raise InputError(f"'{name}' is not a known setting of nvidia-container-runtime.",
                         f"Did you mean {near}?" if near else "See the output of 'nvidia-ctk config'.", path=where,
                         value=value, allowed=sorted(KNOWN))
    kind = KNOWN[name]
    if kind == _BOOL:
        valid, allowed = isinstance(value, bool), "true or false"
    elif kind == _LIST:
        valid, allowed = isinstance(value, list) and all(isinstance(item, str) for item in value), "a list of strings"
    else:
        valid, allowed = isinstance(value, str) and (kind == _TEXT or value in kind), \
            "a string" if kind == _TEXT else f"one of {', '.join(kind)}"
    if not valid:
        raise InputError(f"{value!r} cannot be the value of {name}.", f"Set it to {allowed}.", path=where, value=value)
    ldconfig = f"{_CLI}.ldconfig"
    if name == ldconfig and not value.startswith("@"):
        raise InputError(f"{ldconfig} without @ is a program in the container, which the toolkit refuses since 1.17.3.",
                         f"Set it to @{value}, a path on the host.", path=where, value=value)


def plan(settings: t.Mapping[str, Value], state: SettingsState, installing: bool) -> list[Step]:
    """The step that edits the file if it does not have the settings. Raises InputError and HostError.

    installing: whether packages are installed before, which write the file if it does not exist.
    """
    desired, text = by_name(settings), state.text
    if text is None and installing:
        return [Step(EDIT, FILE, "once the packages have written it", assumed=True)] if desired else []
    document = Document(text or "", FILE)
    ours, reasons = dict(state.ours), []
    for name in [name for name in ours if name not in desired]:
        if _put_back(document, name, ours.pop(name)):
            reasons.append(f"{name} is no longer desired")
    for name, value in desired.items():
        former = lookup(document.data, _path(name))
        if former != value:
            ours[name] = Setting(ours[name].before if name in ours else former, value)
            document.set(_path(name), value)
            reasons.append(name)
    return [_step(text, document, ours, ", ".join(reasons))] if reasons or ours != state.ours else []


def plan_removal(state: SettingsState, purging: bool) -> list[Step]:
    """The step that removes this collection's settings. purging: whether its packages are removed."""
    if state.file in (None, "before"):
        return []
    if purging or state.new or state.file == "ours":
        return [Step(RESTORE, FILE, "as it was before", data={"path": FILE})]
    if state.text is None:
        return []
    document = Document(state.text, FILE)
    names = [name for name, setting in state.ours.items() if _put_back(document, name, setting)]
    return [_step(state.text, document, {}, f"without our {', '.join(names)}")] if names else []


def warnings(settings: t.Mapping[str, Value], text: str | None) -> list[str]:
    """Warnings about settings that the file will have. text: that of the file."""
    name = f"{_CLI}.no-cgroups"
    current = lookup(Document(text, FILE).data, _path(name)) if text else None
    if by_name(settings).get(name, current):
        return [f"{name} is true in {FILE}: containers of root get no access to GPUs by cgroups. It is only for "
                "rootless containers."]
    return []


def diffs(steps: t.Sequence[Step]) -> list[dict[str, str]]:
    """The diffs of the steps that edit the file."""
    return [diff_entry(FILE, step.data["before"] or "", step.data["text"]) for step in steps
            if step.action == EDIT and not step.assumed]


def _step(before: str | None, document: Document, ours: t.Mapping[str, Setting], reason: str) -> Step:
    return Step(EDIT, FILE, reason, data={"path": FILE, "before": before, "text": document.text,
                                          "ours": {name: asdict(setting) for name, setting in ours.items()}})


def _put_back(document: Document, name: str, setting: Setting) -> bool:
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
