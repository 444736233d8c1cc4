# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""MicroK8s: its template, edited as text with all placeholders kept. PRIVATE to the collection.

Facts: canonical/microk8s (run-containerd-with-args): at each start sed makes containerd.toml of the template; the
placeholders such as ${RUNTIME} stand inside strings, so that the template itself is TOML.
"""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit.failure_text import words_of
from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit.packages import BINARIES
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes import cri
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.base import (
    FileChange,
    Options,
    Proposal,
    Trial,
    switched_off,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.cri import V2, V3, place
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.toml import Document, lookup

_ARGS = "/var/snap/microk8s/current/args"
TEMPLATE = f"{_ARGS}/containerd-template.toml"
_CONTAINERD = "/snap/microk8s/current/bin/containerd"


class Microk8s:
    """Implements C(base.Runtime)."""

    probe: t.ClassVar[t.Mapping[str, t.Any]] = {
        "name": "microk8s", "binary": _CONTAINERD, "units": ["snap.microk8s.daemon-containerd.service"],
        "config": TEMPLATE, "config_flags": [], "facts": {"version": [_CONTAINERD, "--version"]},
    }

    def propose(self, seen: t.Mapping[str, t.Any], journal: t.Mapping[str, t.Any], options: Options) -> Proposal:
        """See C(base.Runtime)."""
        path, text = seen["config"], seen["files"][seen["config"]]
        if text is None:
            raise HostError(f"{path} does not exist.", "Repair MicroK8s (snap refresh microk8s), or give its template "
                            "as config_path.", path=path)
        data = cri.read(text, path)
        plugin = V3 if int(data.get("version", 1)) > 2 else V2
        own = dict(lookup(data, ("plugins", plugin)) or {})
        if re.search(r"\bv?1\.7\.", seen["facts"]["version"]["stdout"]):
            own.setdefault("enable_cdi", False)
        proposal = Proposal(previous_default=journal["default_runtime"] or lookup(own, cri.DEFAULT) or "runc",
                            parts=options.parts)
        former = str(proposal.previous_default)
        values = {rel: value for rel, value in cri.wanted(own, options, former).items()
                  if lookup(data, place(plugin, rel)) != value}
        record = journal["config"].get(path)
        off = switched_off(journal, options, lookup(own, cri.DEFAULT))
        left = cri.take_back(text, path, record["before"] or "", off) if record else text
        if values or left != text:
            document = Document(left, path)
            cri.declare(document, plugin, values, own, former)
            edited = bool(record and record["is"] == "edited")
            proposal.changes.append(FileChange(
                path, text, document.text, "main", "it was changed by somebody since" if edited else "",
                _rest(text, path, record) if edited else None))
            if seen["facts"]["version"]["rc"] == 0:
                proposal.trials = [Trial({"main.toml": document.text},
                                         [_CONTAINERD, "-c", "{dir}/main.toml", "config", "dump"])]
            proposal.confirm = ["grep", "-qF", BINARIES[options.mode], f"{_ARGS}/containerd.toml"]
        return proposal

    def judge(self, seen: t.Mapping[str, t.Any], results: t.Sequence[t.Mapping[str, t.Any]], options: Options,
              proposal: Proposal) -> None:
        """See C(base.Runtime)."""
        for result in results:
            if result["rc"] != 0:
                raise HostError(f"containerd rejects the candidate for {seen['config']}: {words_of(result)}.",
                                "Nothing was changed. Report this with the file.", path=seen["config"])

    def withdraw(self, seen: t.Mapping[str, t.Any], journal: t.Mapping[str, t.Any]) -> Proposal:
        """See C(base.Runtime)."""
        proposal = Proposal(previous_default=journal["default_runtime"] or None)
        for path, record in journal["config"].items():
            text = seen["files"].get(path)
            if record["is"] == "ours":
                proposal.changes.append(FileChange(path, text, record["before"], "main", "as it was", restore=True))
            elif record["is"] == "edited" and text is not None:
                rest = _rest(text, path, record)
                proposal.warnings.append(f"{path} was edited since this collection wrote it: only its part was taken "
                                         "out.")
                if rest != text:
                    proposal.changes.append(FileChange(path, text, rest, "main", "edited since: only our part",
                                                       baseline=rest))
        return proposal


def _rest(text: str, path: str, record: t.Mapping[str, t.Any]) -> str:
    """The template without our part."""
    before = record["before"] or ""
    document = cri.without_ours(text, path, before)
    document.drop_bare_headers(Document(before, path).headers)
    return document.text
