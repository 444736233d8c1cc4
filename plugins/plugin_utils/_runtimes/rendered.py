# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files that the options of container_toolkit would produce on a host without configuration files. PRIVATE."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes import cri, registry, settings_file, toolkit_steps
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.base import Options
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.host_state import (
    Journal,
    ProgramResult,
    RuntimeState,
    SettingsState,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.values import Value

# The defaults of containerd 2.x, as far as they matter here.
_CONTAINERD = f"""version = 3
[plugins.'{cri.V3}']
enable_cdi = true
[plugins.'{cri.V3}'.containerd]
default_runtime_name = 'runc'
[plugins.'{cri.V3}'.containerd.runtimes.runc]
runtime_type = '{cri.RUNC}'
[plugins.'io.containerd.nri.v1.nri']
disable = false
"""
# What the programs of a runtime print. Without a version, the newest release is assumed.
_PRINTED = {"docker": {"info": ProgramResult(1)}, "crio": {"low_level": ProgramResult(0)},
            "k0s": {"version": ProgramResult(0, "v1.36.0+k0s.0")}, "podman": {"cdi": ProgramResult(1)},
            "k3s": {"settings": ProgramResult(1)}, "rke2": {"settings": ProgramResult(1)}, "containerd": {}}


def rendered(options: Options) -> dict[str, Value]:
    """The keys of the result, see the documentation of the module. Raises InputError and HostError."""
    for name in options.runtime:
        if name not in _PRINTED:
            why = ("the files of MicroK8s are edits of its own template" if name == "microk8s"
                   else "the runtime must be named")
            raise InputError(f"{why}.", f"Use one of {', '.join(sorted(_PRINTED))}.", path="runtime", value=name,
                             allowed=sorted(_PRINTED))
    states = {name: _empty(name, options) for name in options.runtime}
    for name, state in states.items():
        registry.check_paths(name, state, options.drop_in_path)
    proposals = {name: registry.RUNTIMES[name].propose(state, Journal(), options) for name, state in states.items()}
    files = [{"path": change.path, "content": change.after} for proposal in proposals.values()
             for change in proposal.changes]
    wanted = toolkit_steps.merged_settings(proposals, options.settings)
    files += [{"path": step.target, "content": step.data["text"]}
              for step in settings_file.plan(wanted, SettingsState(), False)]
    warnings = [*[warning for proposal in proposals.values() for warning in proposal.warnings],
                *settings_file.warnings(wanted, None)]
    return {"rendered": files, **registry.named(options.runtime, states),
            **({"warnings": warnings} if warnings else {})}


def _empty(name: str, options: Options) -> RuntimeState:
    """A runtime without files."""
    probe = registry.RUNTIMES[name].probe
    config = options.config_path or probe.config
    files: dict[str, str | None] = {config: None}
    if name in ("k3s", "rke2"):  # they write this file themselves
        files[config] = f"imports = ['{config.rpartition('/')[0]}/config-v3.toml.d/*.toml']\n{_CONTAINERD}"
    return RuntimeState(probe.binary, config, files=files, facts=_PRINTED[name],
                        dump=ProgramResult(0, _CONTAINERD) if probe.dump else None)


def options_of(arguments: t.Mapping[str, Value]) -> Options:
    """The options in validated arguments."""
    return Options(**{name: arguments[name] for name in (
        "state", "runtime", "config_path", "drop_in_path", "set_as_default", "cdi", "nri", "settings", "mode",
        "nvidia_runtime_name", "nvidia_runtime_path")})
