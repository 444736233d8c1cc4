# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The settings file of nvidia-container-runtime: known names, and edits that leave the rest alone. Pure. PRIVATE.

Sources: NVIDIA Container Toolkit 1.20 (what C(nvidia-ctk config) prints, internal/config and its features) and its
release notes for the versions in which names came or went. The package rewrites the file at every upgrade: it keeps
values, and drops comments.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError, nearest
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step, diff_entry
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.toml import Document, Path, lookup

EDIT, RESTORE = "edit settings", "restore settings"
FILE = "/etc/nvidia-container-runtime/config.toml"

_CLI, _RUNTIME, _MODES = "nvidia-container-cli", "nvidia-container-runtime", "nvidia-container-runtime.modes"
_BOOL, _TEXT, _LIST = ("bool",), ("str",), ("list",)
# Dotted name to its type, or to the words that it may be.
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


def wanted(settings: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """Dotted name to value of the option C(settings), nested or dotted. Raises InputError."""
    found = dict(_flat(settings, ""))
    for name, value in found.items():
        _check(name, value)
    return found


def _flat(settings: t.Mapping[str, t.Any], prefix: str) -> t.Iterator[tuple[str, t.Any]]:
    for key, value in settings.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and name not in KNOWN:
            yield from _flat(value, f"{name}.")
        else:
            yield name, value


def _check(name: str, value: t.Any) -> None:
    where = f"settings.{name}"
    if name not in KNOWN:
        near = nearest(name, KNOWN, 0.5)
        raise InputError(f"'{name}' is no known setting of nvidia-container-runtime.",
                         f"Did you mean {near}?" if near else "Look at nvidia-ctk config.", path=where, value=value,
                         allowed=sorted(KNOWN))
    kind = KNOWN[name]
    if kind == _BOOL:
        right, told = isinstance(value, bool), "true or false"
    elif kind == _LIST:
        right, told = isinstance(value, list) and all(isinstance(one, str) for one in value), "a list of strings"
    else:
        right, told = isinstance(value, str) and (kind == _TEXT or value in kind), \
            "a string" if kind == _TEXT else f"one of {', '.join(kind)}"
    if not right:
        raise InputError(f"{value!r} cannot be the value of {name}.", f"Set it to {told}.", path=where, value=value)
    ldconfig = f"{_CLI}.ldconfig"
    if name == ldconfig and not value.startswith("@"):
        raise InputError(f"{ldconfig} without @ runs a program of the container, which the toolkit refuses since "
                         "1.17.3.", f"Write @{value}, a path on the host.", path=where, value=value)


def plan(settings: t.Mapping[str, t.Any], seen: t.Mapping[str, t.Any], installing: bool) -> list[Step]:
    """The step that brings the file to the settings, none where it has them.

    seen: C({text, ours}): the file, and by name what we have set: C({before, after}), before None for none.
    installing: whether packages come before, which write the file where there is none.
    """
    wish, text = wanted(settings), seen["text"]
    if text is None and installing:
        return [Step(EDIT, FILE, "once the packages have written it", assumed=True)] if wish else []
    document = Document(text or "", FILE)
    ours, said = dict(seen["ours"]), []
    for name in [name for name in ours if name not in wish]:
        if _put_back(document, name, ours.pop(name)):
            said.append(f"{name} is not wanted any more")
    for name, value in wish.items():
        former = lookup(document.data, _path(name))
        if former != value:
            ours[name] = {"before": ours[name]["before"] if name in ours else former, "after": value}
            document.set(_path(name), value)
            said.append(name)
    return [_step(text, document, ours, ", ".join(said))] if said or ours != seen["ours"] else []


def withdraw(seen: t.Mapping[str, t.Any], purging: bool) -> list[Step]:
    """The step of removal. purging: whether packages that we brought go, which have written the file.

    seen: as in L(plan), with C(file), how the file stands: C(before), C(ours), C(edited) or None (not kept), and
    C(new), whether there was none before us.
    """
    if seen["file"] in (None, "before"):
        return []
    if purging or seen["new"] or seen["file"] == "ours":
        return [Step(RESTORE, FILE, "as it was before", data={"path": FILE})]
    if seen["text"] is None:
        return []
    document = Document(seen["text"], FILE)
    names = [name for name, record in seen["ours"].items() if _put_back(document, name, record)]
    return [_step(seen["text"], document, {}, f"without our {', '.join(names)}")] if names else []


def warnings(settings: t.Mapping[str, t.Any], text: str | None) -> list[str]:
    """What of the settings that will stand is known to make trouble."""
    name = f"{_CLI}.no-cgroups"
    stands = lookup(Document(text, FILE).data, _path(name)) if text else None
    if wanted(settings).get(name, stands):
        return [f"{name} is true in {FILE}: containers of root get no access to GPUs by cgroups; it is for rootless "
                "containers alone."]
    return []


def diffs(steps: t.Sequence[Step]) -> list[dict[str, str]]:
    """The file before and after."""
    return [diff_entry(FILE, step.data["before"] or "", step.data["text"]) for step in steps
            if step.action == EDIT and not step.assumed]


def _step(before: str | None, document: Document, ours: t.Mapping[str, t.Any], reason: str) -> Step:
    return Step(EDIT, FILE, reason, data={"path": FILE, "before": before, "text": document.text, "ours": dict(ours)})


def _put_back(document: Document, name: str, record: t.Mapping[str, t.Any]) -> bool:
    """Gives a setting its former value, unless somebody has changed it since."""
    if lookup(document.data, _path(name)) != record["after"]:
        return False
    if record["before"] is None:
        document.remove(_path(name))
        if lookup(document.data, _path(name)[:-1]) == {}:
            document.remove(_path(name)[:-1])
    else:
        document.set(_path(name), record["before"])
    return True


def _path(name: str) -> Path:
    return tuple(name.split("."))
