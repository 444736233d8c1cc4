# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""MicroK8s: edits of its template, whose placeholders are kept. PRIVATE to the collection.

Source: canonical/microk8s (run-containerd-with-args). At each start, sed writes containerd.toml from the template.
Placeholders such as ${RUNTIME} are inside strings, so the template is valid TOML.
"""

from __future__ import annotations

import re
from dataclasses import replace

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes import base, cri
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.cri import V2, V3, plugin_path
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.host_state import Journal, RuntimeState
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.toml import Document
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.values import Table, lookup

_ARGS = "/var/snap/microk8s/current/args"
TEMPLATE = f"{_ARGS}/containerd-template.toml"
# A runtime class that the template of every MicroK8s declares, even without the toolkit.
_OWN_CLASS = "nvidia-container-runtime"
_CONTAINERD = "/snap/microk8s/current/bin/containerd"


class Microk8s(base.Runtime):
    probe = base.Probe(name="microk8s", binary=_CONTAINERD, units=["snap.microk8s.daemon-containerd.service"],
                       config=TEMPLATE, facts={"version": [_CONTAINERD, "--version"]})

    def read(self, state: RuntimeState) -> base.Configuration:
        data = cri.read(state.text or "", state.config)
        old = re.search(r"\bv?1\.7\.", state.facts["version"].stdout)
        found = cri.configuration(data, _plugin(data), not old)
        return replace(found, classes={name: program for name, program in found.classes.items() if name != _OWN_CLASS})

    def propose(self, state: RuntimeState, journal: Journal, options: base.Options) -> base.Proposal:
        path, text = state.config, state.text
        if text is None:
            raise HostError(f"{path} does not exist.", "Repair MicroK8s (snap refresh microk8s), or set config_path "
                            "to its template.", path=path)
        data = cri.read(text, path)
        plugin = _plugin(data)
        table = dict(lookup(data, ("plugins", plugin)) or {})
        version = state.facts["version"]
        if re.search(r"\bv?1\.7\.", version.stdout):
            table.setdefault("enable_cdi", False)
        former = str(journal.default_runtime or lookup(table, cri.DEFAULT) or "runc")
        base.check_name(journal, options, cri.programs(table), path)
        proposal = base.Proposal(previous_default=former)
        values = {key: value for key, value in cri.desired(table, options, former).items()
                  if lookup(data, plugin_path(plugin, key)) != value}
        unwanted = base.unwanted_parts(journal, options, lookup(table, cri.DEFAULT))
        proposal.parts = base.parts_without(unwanted, journal, options)
        rest = cri.without_parts(text, path, journal, unwanted)
        if values or rest != text:
            document = Document(rest, path)
            cri.declare(document, plugin, values, table, former)
            proposal.write(path, text, document.text, "main", journal,
                           cri.without_ours(text, path, journal).text if journal.is_edited(path) else None)
            if version.rc == 0:
                proposal.trials = [base.Trial({"main.toml": document.text},
                                              [_CONTAINERD, "-c", "{dir}/main.toml", "config", "dump"])]
            proposal.confirm = ["grep", "-qF", options.classes[options.nvidia_runtime_name],
                                f"{_ARGS}/containerd.toml"]
        return proposal

    def propose_removal(self, state: RuntimeState, journal: Journal) -> base.Proposal:
        proposal = base.Proposal(previous_default=journal.default_runtime or None)
        for path, record in journal.files.items():
            text = state.files.get(path)
            if record.state == "ours":
                proposal.restore(path, text, record)
            elif record.state == "edited" and text is not None:
                proposal.keep_edits(path, text, cri.without_ours(text, path, journal).text, "main")
        return proposal


def _plugin(data: Table) -> str:
    return V3 if int(data.get("version", 1)) > 2 else V2
