# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""k0s: a drop-in in a folder that k0s watches and merges without a restart. PRIVATE to the collection.

Sources: k0s documentation (runtime) and its containerd component. k0s reads the folder from 1.27 on, and only if the
first line of containerd.toml says that k0s manages it. Up to 1.35 (containerd 1.7), files have tables of version 2.
From 1.36 on (containerd 2.3), k0s does not start with a table of version 2.
"""

from __future__ import annotations

import pathlib
import re
import typing as t
from dataclasses import replace

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError, InputError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes import base, cri
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.cri import V2, V3, plugin_path
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.host_state import Journal, RuntimeState
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.toml import render
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.values import Table, lookup, merge

FOLDER = "/etc/k0s/containerd.d"
DROP_IN = f"{FOLDER}/99-gpuops-nvidia.toml"
MANAGED = "# k0s_managed=true"
# The configuration that k0s up to 1.35 merges from the folder.
_MERGED = "/run/k0s/containerd-cri.toml"


class K0s(base.Runtime):
    probe = base.Probe(
        name="k0s", binary="k0s", units=["k0sworker.service", "k0scontroller.service"],
        config="/etc/k0s/containerd.toml", drop_in=DROP_IN, other_files=[f"{FOLDER}/*.toml", _MERGED],
        facts={"version": ["{binary}", "version"]})

    def read(self, state: RuntimeState) -> base.Configuration:
        plugin = _plugin(state)
        files = [cri.read(text, path) for path, text in sorted(state.files.items())
                 if text and path.startswith(f"{FOLDER}/")]
        return cri.configuration({"plugins": {plugin: _merged(state, plugin, files)}}, plugin, True)

    def propose(self, state: RuntimeState, journal: Journal, options: base.Options) -> base.Proposal:
        release = _release(state)
        plugin = _plugin(state)
        version = 3 if plugin == V3 else 2
        drop_in = options.drop_in_path or DROP_IN
        if not pathlib.PurePosixPath(drop_in).match(f"{FOLDER}/*.toml"):
            raise InputError("k0s does not read this file.", f"Choose a file {FOLDER}/*.toml, or omit the option.",
                             path="drop_in_path", value=drop_in)
        others = {path: cri.read(text, path) for path, text in sorted(state.files.items())
                  if text and path.startswith(f"{FOLDER}/") and path not in (drop_in, *journal.files)}
        table = _merged(state, plugin, others.values())
        former = journal.default_runtime or lookup(table, cri.DEFAULT) or "runc"
        base.check_name(journal, options, cri.programs(table), state.config)
        proposal = base.Proposal(action="none", previous_default=former, parts=options.parts)
        if options.nri and plugin == V2:
            proposal.warnings.append("k0s before 1.36 runs containerd 1.7, in which NRI is disabled.")
        proposal.remove_unused_drop_ins(state, journal, drop_in)
        values = cri.desired(table, replace(options, nri=False), former)
        outdated = state.files.get(drop_in)
        if outdated is None and all(lookup(table, path) == value for path, value in values.items()):
            return proposal  # foreign drop-ins contain the desired configuration
        _check_drop_in(state, release, others)
        desired = base.HEADER + render({("version",): version,
                                        **{plugin_path(plugin, path): value for path, value in values.items()}})
        # k0s reads the folder 3 s after the last change, so it does not see the temporary file of an atomic write.
        proposal.write(drop_in, outdated, desired, "drop-in", journal)
        return proposal

    def propose_removal(self, state: RuntimeState, journal: Journal) -> base.Proposal:
        return base.Proposal(action="none").restore_all(state, journal)


def _check_drop_in(state: RuntimeState, release: tuple[int, int], others: t.Mapping[str, Table]) -> None:
    """Raises HostError if k0s would not read the drop-in, or would not start with it."""
    path = state.config
    text = state.files.get(path)
    if release < (1, 27):
        raise HostError(f"k0s {release[0]}.{release[1]} does not read drop-ins in {FOLDER}.",
                        "Update k0s to 1.27 or later.", path=FOLDER)
    if text is not None and text.partition("\n")[0].rstrip("\r") != MANAGED:
        raise HostError(f"{path} does not begin with '{MANAGED}', so k0s does not manage it and ignores {FOLDER}.",
                        f"Restore this first line and move your settings to {FOLDER}, or declare the runtime nvidia "
                        f"(BinaryName /usr/bin/nvidia-container-runtime) in {path} yourself.", path=path)
    outdated = [name for name, data in others.items() if release >= (1, 36) and V2 in data.get("plugins", {})]
    if outdated:
        raise HostError(f"k0s from 1.36 on does not start if files have tables of {V2}: {', '.join(outdated)}.",
                        f"Move their settings to plugins.'{V3}' and set version = 3.", path=outdated[0])


def _release(state: RuntimeState) -> tuple[int, int]:
    answer = state.facts["version"].stdout
    match = re.search(r"v?(\d{1,9})\.(\d{1,9})\.\d+", answer)
    if match is None:
        raise HostError(f"'k0s version' printed no version: '{answer.strip()[:200]}'.",
                        "Run this command on the host to find the error.")
    return int(match.group(1)), int(match.group(2))


def _plugin(state: RuntimeState) -> str:
    return V3 if _release(state) >= (1, 36) else V2


def _merged(state: RuntimeState, plugin: str, others: t.Iterable[Table]) -> Table:
    """The table of the CRI plugin without our drop-in, as far as it is known."""
    table: Table = {"containerd": {"runtimes": {"runc": {"runtime_type": cri.RUNC}}}}
    if plugin == V2:
        table["enable_cdi"] = False
        merged = lookup(cri.read(state.files.get(_MERGED) or "", _MERGED), ("plugins", V2, *cri.RUNTIMES, "runc"))
        table["containerd"]["runtimes"]["runc"].update(merged or {})
    for data in others:
        merge(table, lookup(data, ("plugins", plugin)) or {})
    return table
