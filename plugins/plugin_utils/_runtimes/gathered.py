# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The result of container_toolkit with state gathered: the current state, and the same as options. PRIVATE."""

from __future__ import annotations

import contextlib
import typing as t
from dataclasses import replace

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import GpuopsError, HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit.options import CHOOSING, RUNTIME_CLASSES
from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit.packages import BINARIES
from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit.users import OF_USER
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import runtime_names
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes import registry, settings_file
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.base import (
    Configuration,
    Options,
    is_nvidia,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.host_state import HostState, Journal
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.values import Value

# The runtimes that use the option drop_in_path.
_DROP_IN_IS_AN_OPTION = ("containerd", "crio", "k0s")


def gathered(state: HostState, options: Options, specification: t.Mapping[str, Value],
             repository: t.Mapping[str, Value]) -> dict[str, Value]:
    """The keys of the result, see the documentation of the module. specification, repository: of the host's answer."""
    names = registry.choose([name for name in options.runtime if name in (*CHOOSING, *state.runtimes)],
                            state.runtimes, registry.KUBELET in state.markers)
    found: dict[str, Configuration] = {}
    problems: dict[str, str] = {}
    for one in state.runtimes:
        try:
            configuration = registry.of(one).read(state.runtimes[one])
            found[one] = replace(configuration, classes=_nvidia_classes(configuration, state.journal.of(one)))
        except HostError as error:
            problems[one] = error.message
        except (AttributeError, TypeError, ValueError):  # a table of the file has another shape
            problems[one] = f"{state.runtimes[one].config} has an unexpected structure."
    warnings = [f"The configuration of {one} could not be read. {text}" for one, text in problems.items()]
    warnings += [f"The rootless Docker of {name} could not be read: {reason}." for name, reason in state.unread.items()]
    settings: dict[str, Value] = {}
    try:
        settings = settings_file.known(state.settings.text or "")
    except HostError as error:
        warnings.append(error.message)
    wanted: dict[str, Value] = {"state": "absent"}
    if state.packages.version is not None:
        wanted = {"state": "present", "version": state.packages.version, "settings": settings,
                  "cdi_management": specification["management"],
                  **({"repository": dict(repository)} if repository else {}),
                  **_of_users(state),
                  **_of_runtimes(state, options, names, found, specification)}
        left_out = sorted(set(names) - set(runtime_names.names_in(wanted.get("runtime"))))
        if left_out:
            warnings.append(f"gathered omits {' and '.join(left_out)}, because its options would change this "
                            "configuration. To gather it, name only this runtime.")
    return {"gathered": wanted, **registry.named(names, state.runtimes),
            "packages": state.packages.installed, "version": state.packages.version,
            "previous_default_runtime": state.journal.default_runtime.get(names[0]) if names else None,
            "restart_required": any(state.runtimes[name].stale or state.runtimes[name].unit in state.journal.restart
                                    for name in names),
            "cdi_specs": state.cdi.specs, "cdi": {key: specification[key] for key in ("path", "devices", "driver")},
            "runtimes": [_row(state, one, found.get(one), problems.get(one)) for one in state.runtimes],
            **({"warnings": warnings} if warnings else {})}


def _of_runtimes(state: HostState, options: Options, names: t.Sequence[str], found: t.Mapping[str, Configuration],
                 specification: t.Mapping[str, Value]) -> dict[str, Value]:
    """The options that describe the configuration of runtimes. With several, those of the first configured one; its
    `runtime` are the ones that these options do not change."""
    none = Configuration({})
    mains = {other: _main_class(found.get(other, none), state.journal.of(other)) for other in names}
    name = next((other for other in names if mains[other]), names[0] if names else "")
    one, main = found.get(name, none), mains.get(name)
    program = one.classes.get(main or "")
    cdi = bool(specification["path"]) or bool(specification["unit"]) if one.cdi is None else one.cdi
    mode = next((mode for mode in ("cdi", "legacy") if f"nvidia-{mode}" in one.classes
                 and program == BINARIES[mode]), "auto")
    records = [record for runtime in names for record in state.journal.of(runtime).files.values()]
    # NRI is reported only if this collection has enabled it: false does not disable it.
    wanted: dict[str, Value] = {"set_as_default": bool(main) and one.default == main, "cdi": cdi, "mode": mode,
                                "nri": any("nri" in record.parts for record in records)}
    if main and main != RUNTIME_CLASSES[0]:
        wanted["nvidia_runtime_name"] = main
    if program and program.startswith("/") and program not in BINARIES.values():
        wanted["nvidia_runtime_path"] = program
    alike = [other for other in names if len(names) > 1 and _is_unchanged(state, other, Options(**wanted))]
    if name in alike and len(alike) > 1:
        wanted["runtime"] = alike
    elif name:
        wanted["runtime"] = name
        if options.config_path:
            wanted["config_path"] = options.config_path
        paths = _drop_ins(state, name)
        if name in _DROP_IN_IS_AN_OPTION and len(paths) == 1 and paths[0] != registry.RUNTIMES[name].probe.drop_in:
            wanted["drop_in_path"] = paths[0]
    return wanted


def _nvidia_classes(found: Configuration, journal: Journal) -> dict[str, str | None]:
    """The runtime classes of the vendor, of this collection, or with a program of the vendor."""
    return {name: program for name, program in found.classes.items()
            if name in (*RUNTIME_CLASSES, *journal.classes) or is_nvidia(program)}


def _main_class(found: Configuration, journal: Journal) -> str | None:
    """The runtime class that the option nvidia_runtime_name describes: the one that this collection has declared, else
    `nvidia`, else one with a program of the vendor. found: with NVIDIA runtime classes only."""
    others = [name for name in found.classes if name not in RUNTIME_CLASSES]
    ours = [name for name in others if name in journal.classes]
    return next(iter([*ours, *[name for name in found.classes if name == RUNTIME_CLASSES[0]], *others]), None)


def _of_users(state: HostState) -> dict[str, Value]:
    """The users whose Docker this collection has configured."""
    users = [runtime.user for key, runtime in state.runtimes.items() if runtime.user and state.journal.of(key).files]
    return {"rootless_users": users} if users else {}


def _is_unchanged(state: HostState, name: str, options: Options) -> bool:
    """Whether these options change no file of a runtime."""
    with contextlib.suppress(GpuopsError):
        return not registry.RUNTIMES[name].propose(state.runtimes[name], state.journal.of(name), options).changes
    return False


def _drop_ins(state: HostState, name: str) -> list[str]:
    """The existing drop-ins that this collection has written."""
    return [path for path, record in state.journal.of(name).files.items()
            if record.part == "drop-in" and state.runtimes[name].files.get(path) is not None]


def _row(state: HostState, name: str, found: Configuration | None, problem: str | None) -> dict[str, Value]:
    """An element of the result `runtimes`."""
    runtime = state.runtimes[name]
    known = found or Configuration({})
    main = _main_class(known, state.journal.of(name))
    is_default = main is not None and known.default == main
    uses = None if found is None else main is not None or name == "podman" and bool(known.cdi and state.cdi.specs)
    return {"name": name.partition(OF_USER)[0], "user": runtime.user, "config_path": runtime.config,
            "drop_in_paths": _drop_ins(state, name), "service": runtime.unit and runtime.unit.partition(OF_USER)[0],
            "running": runtime.running, "configured": uses, "classes": known.classes,
            "default_runtime": known.default, "is_default": None if found is None else is_default,
            "cdi": known.cdi, "nri": known.nri, "problem": problem}
