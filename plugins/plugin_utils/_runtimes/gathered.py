# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The result of container_toolkit with state gathered: the current state, and the same as options. PRIVATE."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit.packages import BINARIES
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes import registry, settings_file
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.base import Configuration, Options
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.host_state import HostState
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.values import Value

# The runtimes that use the option drop_in_path.
_DROP_IN_IS_AN_OPTION = ("containerd", "crio", "k0s")


def gathered(state: HostState, options: Options, specification: t.Mapping[str, Value],
             repository: t.Mapping[str, Value]) -> dict[str, Value]:
    """The keys of the result, see the documentation of the module. specification, repository: of the host's answer."""
    name = registry.choose("auto", state.runtimes, registry.KUBELET in state.markers) if options.runtime == "auto" \
        else options.runtime if options.runtime in state.runtimes else None
    runtime = state.runtimes.get(name or "")
    found: dict[str, Configuration] = {}
    problems: dict[str, str] = {}
    for one in state.runtimes:
        try:
            found[one] = registry.RUNTIMES[one].read(state.runtimes[one])
        except HostError as error:
            problems[one] = error.message
        except (AttributeError, TypeError, ValueError):  # a table of the file has another shape
            problems[one] = f"{state.runtimes[one].config} has an unexpected structure."
    warnings = [f"The configuration of {one} could not be read. {text}" for one, text in problems.items()]
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
                  **_of_runtime(state, options, name, found.get(name or ""), specification)}
    return {"gathered": wanted, "runtime": name, "config_path": runtime.config if runtime else None,
            "packages": state.packages.installed, "version": state.packages.version,
            "previous_default_runtime": state.journal.default_runtime.get(name or ""),
            "restart_required": runtime is not None and (runtime.stale or runtime.unit in state.journal.restart),
            "cdi_specs": state.cdi.specs, "cdi": {key: specification[key] for key in ("path", "devices", "driver")},
            "runtimes": [_row(state, one, found.get(one), problems.get(one)) for one in state.runtimes],
            **({"warnings": warnings} if warnings else {})}


def _of_runtime(state: HostState, options: Options, name: str | None, found: Configuration | None,
                specification: t.Mapping[str, Value]) -> dict[str, Value]:
    """The options that describe the configuration of a runtime."""
    found = found or Configuration({})
    cdi = bool(specification["path"]) or bool(specification["unit"]) if found.cdi is None else found.cdi
    mode = next((mode for mode in ("cdi", "legacy") if f"nvidia-{mode}" in found.classes
                 and found.classes.get("nvidia") == BINARIES[mode]), "auto")
    records = state.journal.of(name or "").files
    # NRI is reported only if this collection has enabled it: false does not disable it.
    wanted: dict[str, Value] = {"set_as_default": found.default == "nvidia", "cdi": cdi, "mode": mode,
                                "nri": any("nri" in record.parts for record in records.values())}
    if name:
        wanted["runtime"] = name
        if options.config_path:
            wanted["config_path"] = options.config_path
        paths = _drop_ins(state, name)
        if name in _DROP_IN_IS_AN_OPTION and len(paths) == 1 and paths[0] != registry.RUNTIMES[name].probe.drop_in:
            wanted["drop_in_path"] = paths[0]
    return wanted


def _drop_ins(state: HostState, name: str) -> list[str]:
    """The existing drop-ins that this collection has written."""
    return [path for path, record in state.journal.of(name).files.items()
            if record.part == "drop-in" and state.runtimes[name].files.get(path) is not None]


def _row(state: HostState, name: str, found: Configuration | None, problem: str | None) -> dict[str, Value]:
    """An element of the result `runtimes`."""
    runtime = state.runtimes[name]
    uses = None if found is None else "nvidia" in found.classes or name == "podman" and bool(
        found.cdi and state.cdi.specs)
    known = found or Configuration({})
    return {"name": name, "config_path": runtime.config, "drop_in_paths": _drop_ins(state, name),
            "service": runtime.unit, "running": runtime.running, "configured": uses, "classes": known.classes,
            "default_runtime": known.default, "is_default": None if found is None else known.default == "nvidia",
            "cdi": known.cdi, "nri": known.nri, "problem": problem}
