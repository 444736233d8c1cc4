# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""k3s and RKE2. PRIVATE to the collection.

At each start, k3s and RKE2 write the configuration of their containerd and declare the runtimes that they find on PATH.
This collection only writes files that they read: one for the option default-runtime, and a drop-in if a runtime class
must run another program than the program on PATH.

Sources: documentation of k3s (advanced options) and RKE2 (advanced, GPU operators); k3s pull requests 7991, 9702 and
13680.
"""

from __future__ import annotations

import pathlib
import re
import typing as t
from dataclasses import replace

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes import base, cri
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.cri import V2, V3, plugin_path
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.host_state import Journal, RuntimeState
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.toml import render
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.values import Path, Table, Value, lookup, merge

# The name of the runtime class that k3s and RKE2 declare.
_DETECTED = "nvidia"
_DEFAULT_TEXT = f"{base.HEADER}default-runtime: {_DETECTED}\n"
_DEFAULT_RUNTIME = re.compile(r"default-runtime\s*:\s*[\"']?([^\"'\s#]+)")
_OTHER_RUNTIME = re.compile(r"^(--)?(container-runtime-endpoint\b.*|docker(: *true|=true)?)$", re.MULTILINE)
_BASE_TEMPLATE = re.compile(r"\{\{-?\s*template\s+\"base\"")


class Rancher(base.Runtime):
    """See Runtime. name: `k3s` or `rke2`; servers: units whose restart interrupts the control plane."""

    def __init__(self, name: str, servers: tuple[str, ...], agents: tuple[str, ...]) -> None:
        self.servers = servers
        self.settings_folder = f"/etc/rancher/{name}"
        self.default_file = f"{self.settings_folder}/config.yaml.d/99-gpuops-nvidia.yaml"
        folder = f"/var/lib/rancher/{name}/agent/etc/containerd"
        self.probe = base.Probe(
            name=name, binary=name, units=[*agents, *servers], config=f"{folder}/config.toml",
            drop_in=self.default_file,
            other_files=[f"{folder}/*.tmpl", f"{folder}/config-v3.toml.d/*.toml"],
            # Only these lines are read, because the files also contain the token of the cluster.
            facts={"settings": ["grep", "-rHE", "--include=*.yaml",
                                "^(default-runtime|container-runtime-endpoint|docker) *:", self.settings_folder]})

    def read(self, state: RuntimeState) -> base.Configuration:
        self._check_own_containerd(state)
        data = cri.read(state.text or "", state.config)
        path = self._drop_in(state)
        if _imports(data, path):
            merge(data, cri.read(state.files.get(path) or "", path))
        return cri.configuration(data, _plugin(data), None)

    def propose(self, state: RuntimeState, journal: Journal, options: base.Options) -> base.Proposal:
        path, text = state.config, state.text
        name = self.probe.name
        self._check_own_containerd(state)
        if text is None:
            if state.running:
                raise HostError(f"{path} does not exist although {state.unit} runs.",
                                f"If {name} has another data-dir, set config_path to its config.toml.", path=path)
            proposal = base.Proposal(action="none", previous_default=journal.default_runtime or "runc", warnings=[
                f"{name} has not been started yet. It declares the runtime at its first start after the toolkit was "
                "installed."])
            if options.nvidia_runtime_name != _DETECTED or options.nvidia_runtime_path:
                raise HostError(f"{name} has not been started yet, so it is unknown whether it reads drop-ins.",
                                f"Start {name}, then run again. Or omit nvidia_runtime_name and nvidia_runtime_path.",
                                path=path)
            self._propose_default(state, journal, options, proposal)
            return proposal
        data = cri.read(text, path)
        plugin = _plugin(data)
        table = lookup(data, ("plugins", plugin)) or {}
        former = journal.default_runtime or lookup(table, cri.DEFAULT) or "runc"
        base.check_name(journal, options, cri.programs(table), path)
        proposal = base.Proposal(previous_default=former, needs=self._needs(state), parts=options.parts)
        if options.nri and plugin == V2:
            proposal.warnings.append(f"This release of {name} runs containerd 1.7, in which NRI is disabled.")
        # The option default-runtime names a class that k3s has detected. Another name is set in the drop-in.
        is_detected = options.nvidia_runtime_name == _DETECTED
        self._propose_default(state, journal, replace(options, set_as_default=options.set_as_default and is_detected),
                              proposal)
        values: dict[Path, Value] = {}
        missing: list[str] = []
        if options.mode == "auto" and is_detected and not options.nvidia_runtime_path:
            missing = [runtime for runtime in options.classes if lookup(table, (*cri.RUNTIMES, runtime)) is None]
        else:
            # k3s enables CDI if its containerd supports it.
            values = cri.desired(table, replace(options, nri=False, cdi=False,
                                                set_as_default=options.set_as_default and not is_detected), former)
        self._propose_drop_in(state, journal, data, values, proposal)
        confirm = ["grep", "-qF", "nvidia-container-runtime", path]
        if options.set_as_default and is_detected and lookup(table, cri.DEFAULT) != _DETECTED:
            missing.append(f"{_DETECTED} as the default")
            # The current file may already contain the program.
            confirm = ["grep", "-qE", "default_runtime_name = [\"']nvidia[\"']", path]
        if missing:
            self._check_template(state, plugin)
            proposal.due_reason = f"{name} declares {', '.join(missing)} at its start"
            proposal.confirm = confirm
        return proposal

    def _check_own_containerd(self, state: RuntimeState) -> None:
        """Raises HostError if k3s or RKE2 uses another runtime than its own containerd."""
        match = _OTHER_RUNTIME.search("\n".join([*self._user_settings(state), *state.command]))
        if match:
            raise HostError(f"{self.probe.name} does not run its own containerd ({match.group().strip()}).",
                            "Set runtime to the runtime that it uses, containerd or docker.", unit=state.unit)

    def _user_settings(self, state: RuntimeState) -> list[str]:
        """The lines of the user's settings files. Later lines override earlier ones."""
        match = sorted(line.partition(".yaml:")[::2] for line in state.facts["settings"].stdout.splitlines())
        return [line for path, line in match
                if f"{path}.yaml" != self.default_file
                and f"{path}.yaml".startswith(f"{self.settings_folder}/config.yaml")]

    def _needs(self, state: RuntimeState) -> str:
        return "idle" if state.unit in self.servers else "never"

    @staticmethod
    def _check_template(state: RuntimeState, plugin: str) -> None:
        """Raises HostError if a restart would not declare the runtime, because the user's template does not."""
        folder = pathlib.PurePosixPath(state.config).parent
        v3_template = str(folder / "config-v3.toml.tmpl")
        name = v3_template if plugin == V3 and v3_template in state.files else str(folder / "config.toml.tmpl")
        template = state.files.get(name)
        if template and not _BASE_TEMPLATE.search(template) and "nvidia-container-runtime" not in template:
            raise HostError(f"{name} replaces the whole configuration of containerd and has no NVIDIA runtime.",
                            'Begin it with {{ template "base" . }} and remove duplicate settings, or declare the '
                            "runtime in it.", path=name)

    def _propose_default(self, state: RuntimeState, journal: Journal, options: base.Options,
                         proposal: base.Proposal) -> None:
        """Adds the file for the option default-runtime. It is the last file in config.yaml.d, so it has precedence."""
        current = state.files.get(self.default_file)
        flag = re.search(r"--default-runtime[= ](\S+)", " ".join(state.command))
        if options.set_as_default and flag and flag.group(1) != _DETECTED:
            raise HostError(f"{state.unit} is started with --default-runtime={flag.group(1)}, which overrides files.",
                            "Remove the flag from the unit, then run again.", unit=state.unit)
        others = [match.group(1) for line in self._user_settings(state) if (match := _DEFAULT_RUNTIME.match(line))]
        is_set_by_user = bool(flag) or others[-1:] == [_DETECTED]
        desired = _DEFAULT_TEXT if options.set_as_default and (current is not None or not is_set_by_user) else None
        proposal.write(self.default_file, current, desired, "drop-in", journal)

    def _propose_drop_in(self, state: RuntimeState, journal: Journal, data: Table, values: t.Mapping[Path, Value],
                         proposal: base.Proposal) -> None:
        """Adds the drop-in with these values; removes it if there are none."""
        path = self._drop_in(state)
        current = state.files.get(path)
        desired = None
        if values:
            if not _imports(data, path):
                raise HostError(
                    f"{state.config} imports no drop-ins (containerd 1.x, an older release or a template): "
                    f"{self.probe.name} chooses the name and the program of its NVIDIA runtime.",
                    "Set mode to auto, omit nvidia_runtime_name and nvidia_runtime_path, and use a class that it "
                    "declares, such as nvidia-cdi.", path=state.config)
            desired = base.HEADER + render({("version",): data.get("version", 3),
                                            **{plugin_path(V3, key): value for key, value in values.items()}})
        proposal.write(path, current, desired, "drop-in", journal)

    @staticmethod
    def _drop_in(state: RuntimeState) -> str:
        return str(pathlib.PurePosixPath(state.config).parent / "config-v3.toml.d" / "99-gpuops-nvidia.toml")

    def propose_removal(self, state: RuntimeState, journal: Journal) -> base.Proposal:
        return base.Proposal(needs=self._needs(state)).restore_all(state, journal)


def _imports(data: Table, path: str) -> bool:
    """Whether the configuration reads the drop-in."""
    return any(pathlib.PurePosixPath(path).match(pattern) for pattern in data.get("imports", []))


def _plugin(data: Table) -> str:
    return V3 if lookup(data, ("plugins", V3)) is not None else V2
