# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""k3s and RKE2, which write their containerd's file at each start and declare the runtimes that they find on PATH.

So nothing is written but what they read: a file for their own option default-runtime, and a drop-in where a class must
run another program than the one they find. PRIVATE to the collection.

Facts: documentation of k3s (advanced options) and RKE2 (advanced, GPU operators); k3s pull requests 7991, 9702, 13680.
"""

from __future__ import annotations

import pathlib
import re
import typing as t
from dataclasses import replace

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes import cri
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.base import (
    FileChange,
    Options,
    Proposal,
    give_back,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.cri import V2, V3, place
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.toml import Path, lookup, render

_DEFAULT = cri.HEADER + "default-runtime: nvidia\n"
_FLAG = re.compile(r"default-runtime\s*:\s*[\"']?([^\"'\s#]+)")
_OTHER = re.compile(r"^(--)?(container-runtime-endpoint\b.*|docker(: *true|=true)?)$", re.MULTILINE)
_BASE = re.compile(r"\{\{-?\s*template\s+\"base\"")


class Rancher:
    """Implements C(base.Runtime) for one of the two. servers: units whose restart interrupts the control plane."""

    def __init__(self, name: str, servers: t.Tuple[str, ...], agents: t.Tuple[str, ...]) -> None:
        self.servers = servers
        self.settings = f"/etc/rancher/{name}"
        self.ours = f"{self.settings}/config.yaml.d/99-gpuops-nvidia.yaml"
        self.folder = f"/var/lib/rancher/{name}/agent/etc/containerd"
        self.probe: t.Mapping[str, t.Any] = {
            "name": name, "binary": name, "units": [*agents, *servers], "config": f"{self.folder}/config.toml",
            "config_flags": [], "drop_in": self.ours,
            "more": [f"{self.folder}/*.tmpl", f"{self.folder}/config-v3.toml.d/*.toml"],
            # Only these lines: the files hold the cluster's token too.
            "facts": {"settings": ["grep", "-rHE", "--include=*.yaml",
                                   "^(default-runtime|container-runtime-endpoint|docker) *:", self.settings]},
        }

    def propose(self, seen: t.Mapping[str, t.Any], journal: t.Mapping[str, t.Any], options: Options) -> Proposal:
        """See C(base.Runtime)."""
        path, text = seen["config"], seen["files"][seen["config"]]
        name = self.probe["name"]
        self._check_own(seen)
        if text is None:
            if seen["running"]:
                raise HostError(f"{path} does not exist although {seen['unit']} runs.",
                                f"Where {name} has another data-dir, give its file as config_path.", path=path)
            proposal = Proposal(act="none", previous_default=journal["default_runtime"] or "runc", warnings=[
                f"{name} has not been started yet: it declares the runtime by itself at its first start after the "
                "toolkit has been installed."])
            self._default(seen, options, proposal)
            return proposal
        data = cri.read(text, path)
        plugin = V3 if lookup(data, ("plugins", V3)) is not None else V2
        own = lookup(data, ("plugins", plugin)) or {}
        former = journal["default_runtime"] or lookup(own, cri.DEFAULT) or "runc"
        proposal = Proposal(previous_default=former, needs=self._needs(seen))
        if options.nri and plugin == V2:
            proposal.warnings.append(f"{name} of this release runs containerd 1.7, which has NRI switched off.")
        self._default(seen, options, proposal)
        # k3s switches CDI on by itself where its containerd has it, and has an option of its own for the default.
        wish = replace(options, nri=False, cdi=False, set_as_default=False)
        values = cri.wanted(own, wish, former)
        self._drop_in(seen, data, values if options.mode != "auto" else {}, proposal)
        missing = [runtime for runtime in options.classes if lookup(own, (*cri.RUNTIMES, runtime)) is None]
        if options.mode != "auto":
            missing = []  # a drop-in of ours declares them
        confirm = ["grep", "-qF", "nvidia-container-runtime", path]
        if options.set_as_default and lookup(own, cri.DEFAULT) != "nvidia":
            missing.append("nvidia as the default")
            # The former file may have the program already.
            confirm = ["grep", "-qE", "default_runtime_name = [\"']nvidia[\"']", path]
        if missing:
            self._check_template(seen, plugin)
            proposal.due = f"{name} declares {', '.join(missing)} at its start"
            proposal.confirm = confirm
        return proposal

    def _check_own(self, seen: t.Mapping[str, t.Any]) -> None:
        """With a runtime of somebody else's there is no file of theirs to follow."""
        found = _OTHER.search("\n".join([*self._settings(seen), *seen["command"]]))
        if found:
            raise HostError(f"{self.probe['name']} does not run its own containerd here ({found.group().strip()}).",
                            "Name the runtime that it uses: runtime=containerd or runtime=docker.", unit=seen["unit"])

    def _settings(self, seen: t.Mapping[str, t.Any]) -> list[str]:
        """The lines of others' settings files that count here; the last one wins."""
        found = sorted(line.partition(".yaml:")[::2] for line in seen["facts"]["settings"]["stdout"].splitlines())
        return [line for path, line in found
                if f"{path}.yaml" != self.ours and f"{path}.yaml".startswith(f"{self.settings}/config.yaml")]

    def _needs(self, seen: t.Mapping[str, t.Any]) -> str:
        return "idle" if seen["unit"] in self.servers else "never"

    @staticmethod
    def _check_template(seen: t.Mapping[str, t.Any], plugin: str) -> None:
        """A template of the user's that has neither the base nor the runtime keeps a restart from doing anything."""
        folder = pathlib.PurePosixPath(seen["config"]).parent
        newer = str(folder / "config-v3.toml.tmpl")
        name = newer if plugin == V3 and newer in seen["files"] else str(folder / "config.toml.tmpl")
        template = seen["files"].get(name)
        if template and not _BASE.search(template) and "nvidia-container-runtime" not in template:
            raise HostError(f"{name} replaces containerd's whole configuration and has no NVIDIA runtime.",
                            'Begin it with {{ template "base" . }} and leave out what that has, or declare the runtime '
                            "there.", path=name)

    def _default(self, seen: t.Mapping[str, t.Any], options: Options, proposal: Proposal) -> None:
        """The file for the option default-runtime, the last of config.yaml.d."""
        old = seen["files"].get(self.ours)
        flag = re.search(r"--default-runtime[= ](\S+)", " ".join(seen["command"]))
        if options.set_as_default and flag and flag.group(1) != "nvidia":
            raise HostError(f"{seen['unit']} is started with --default-runtime={flag.group(1)}, which wins over files.",
                            "Take the flag out of the unit, then run again.", unit=seen["unit"])
        others = [match.group(1) for line in self._settings(seen) if (match := _FLAG.match(line))]
        given = bool(flag) or others[-1:] == ["nvidia"]
        want = _DEFAULT if options.set_as_default and (old is not None or not given) else None
        if old != want:
            proposal.changes.append(FileChange(self.ours, old, want, "drop-in", ""))

    def _drop_in(self, seen: t.Mapping[str, t.Any], data: t.Mapping[str, t.Any], values: t.Mapping[Path, t.Any],
                 proposal: Proposal) -> None:
        """Where the classes must run other programs: a drop-in, if this release imports them."""
        folder = pathlib.PurePosixPath(seen["config"]).parent / "config-v3.toml.d"
        path = str(folder / "99-gpuops-nvidia.toml")
        old = seen["files"].get(path)
        want = None
        if values:
            if not any(pathlib.PurePosixPath(path).match(pattern) for pattern in data.get("imports", [])):
                raise HostError(
                    f"{seen['config']} imports no drop-ins (containerd 1.x, an older release or a template): "
                    f"{self.probe['name']} itself chooses the program behind the class nvidia.",
                    "Use mode=auto and the class that it declares, such as nvidia-cdi.", path=seen["config"])
            want = cri.HEADER + render({("version",): data.get("version", 3),
                                        **{place(V3, rel): value for rel, value in values.items()}})
        if old != want:
            proposal.changes.append(FileChange(path, old, want, "drop-in", ""))

    def judge(self, seen: t.Mapping[str, t.Any], results: t.Sequence[t.Mapping[str, t.Any]], options: Options,
              proposal: Proposal) -> None:
        """Nothing is tried: k3s and RKE2 cannot be asked beforehand."""

    def withdraw(self, seen: t.Mapping[str, t.Any], journal: t.Mapping[str, t.Any]) -> Proposal:
        """See C(base.Runtime)."""
        return give_back(seen, journal, Proposal(needs=self._needs(seen)))
