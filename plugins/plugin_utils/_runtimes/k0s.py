# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""k0s: a drop-in in its own folder, which it watches and merges by itself; no restart. PRIVATE to the collection.

Facts: k0s documentation (runtime) and its containerd component: the folder counts from 1.27 on, and only while the
first line of containerd.toml is k0s's own; up to 1.35 (containerd 1.7) files hold version 2 tables; from 1.36 on
(containerd 2.3) a version 2 table keeps k0s from starting.
"""

from __future__ import annotations

import copy
import pathlib
import re
import typing as t
from dataclasses import replace

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError, InputError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes import cri
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.base import (
    FileChange,
    Options,
    Proposal,
    give_back,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.cri import V2, V3, place
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.toml import lookup, render

FOLDER = "/etc/k0s/containerd.d"
DROP_IN = f"{FOLDER}/99-gpuops-nvidia.toml"
MANAGED = "# k0s_managed=true"
# What k0s up to 1.35 has merged for its containerd.
_MERGED = "/run/k0s/containerd-cri.toml"


class K0s:
    """Implements C(base.Runtime)."""

    probe: t.ClassVar[t.Mapping[str, t.Any]] = {
        "name": "k0s", "binary": "k0s", "units": ["k0sworker.service", "k0scontroller.service"],
        "config": "/etc/k0s/containerd.toml", "config_flags": [], "drop_in": DROP_IN,
        "more": [f"{FOLDER}/*.toml", _MERGED], "facts": {"version": ["{binary}", "version"]},
    }

    def propose(self, seen: t.Mapping[str, t.Any], journal: t.Mapping[str, t.Any], options: Options) -> Proposal:
        """See C(base.Runtime)."""
        release = _release(seen)
        plugin, version = (V3, 3) if release >= (1, 36) else (V2, 2)
        drop_in = options.drop_in_path or DROP_IN
        if not pathlib.PurePosixPath(drop_in).match(f"{FOLDER}/*.toml"):
            raise InputError("k0s does not read it.", f"Choose a file {FOLDER}/*.toml, or leave the option out.",
                             path="drop_in_path", value=drop_in)
        others = {path: cri.read(text, path) for path, text in sorted(seen["files"].items())
                  if text and path.startswith(f"{FOLDER}/") and path not in (drop_in, *journal["config"])}
        own = _merged(seen, plugin, others.values())
        former = journal["default_runtime"] or lookup(own, cri.DEFAULT) or "runc"
        proposal = Proposal(act="none", previous_default=former)
        if options.nri and plugin == V2:
            proposal.warnings.append("k0s before 1.36 runs containerd 1.7, which has NRI switched off.")
        proposal.changes = [FileChange(path, seen["files"][path], None, "drop-in", "no longer used")
                            for path in journal["config"] if path != drop_in and seen["files"].get(path) is not None]
        values = cri.wanted(own, replace(options, nri=False), former)
        old = seen["files"].get(drop_in)
        if old is None and all(lookup(own, rel) == value for rel, value in values.items()):
            return proposal  # a drop-in of somebody else's does it already
        self._check(seen, release, others)
        wanted = cri.HEADER + render({("version",): version,
                                      **{place(plugin, rel): value for rel, value in values.items()}})
        if old != wanted:
            # k0s reads 3 s after the folder has come to rest: it never meets the temporary file of an atomic write.
            proposal.changes.append(FileChange(drop_in, old, wanted, "drop-in", ""))
        return proposal

    @staticmethod
    def _check(seen: t.Mapping[str, t.Any], release: t.Tuple[int, int], others: t.Mapping[str, t.Any]) -> None:
        path = seen["config"]
        text = seen["files"].get(path)
        if release < (1, 27):
            raise HostError(f"k0s {release[0]}.{release[1]} reads no drop-ins from {FOLDER}.",
                            "Update k0s to 1.27 or later.", path=FOLDER)
        if text is not None and text.partition("\n")[0].rstrip("\r") != MANAGED:
            raise HostError(f"{path} does not begin with '{MANAGED}': k0s takes it as yours and ignores {FOLDER}.",
                            f"Give that first line back and move your settings to {FOLDER}, or declare the runtime "
                            f"nvidia (BinaryName /usr/bin/nvidia-container-runtime) in {path} yourself.", path=path)
        old = [name for name, data in others.items() if release >= (1, 36) and V2 in data.get("plugins", {})]
        if old:
            raise HostError(f"k0s from 1.36 on does not start with tables of {V2}: {', '.join(old)}.",
                            f"Move them to plugins.'{V3}' and version = 3.", path=old[0])

    def judge(self, seen: t.Mapping[str, t.Any], results: t.Sequence[t.Mapping[str, t.Any]], options: Options,
              proposal: Proposal) -> None:
        """Nothing is tried: k0s merges the files by itself."""

    def withdraw(self, seen: t.Mapping[str, t.Any], journal: t.Mapping[str, t.Any]) -> Proposal:
        """See C(base.Runtime)."""
        return give_back(seen, journal, Proposal(act="none"))


def _release(seen: t.Mapping[str, t.Any]) -> t.Tuple[int, int]:
    answer = seen["facts"]["version"]["stdout"]
    match = re.search(r"v?(\d{1,9})\.(\d{1,9})\.\d+", answer)
    if match is None:
        raise HostError(f"k0s does not tell its version: '{answer.strip()[:200]}'.", "See what 'k0s version' says.")
    return int(match.group(1)), int(match.group(2))


def _merged(seen: t.Mapping[str, t.Any], plugin: str, others: t.Iterable[t.Mapping[str, t.Any]]) -> dict[str, t.Any]:
    """The CRI plugin's table without our drop-in, as far as it can be known."""
    own: dict[str, t.Any] = {"containerd": {"runtimes": {"runc": {"runtime_type": cri.RUNC}}}}
    if plugin == V2:
        own["enable_cdi"] = False
        merged = lookup(cri.read(seen["files"].get(_MERGED) or "", _MERGED), ("plugins", V2, *cri.RUNTIMES, "runc"))
        own["containerd"]["runtimes"]["runc"].update(merged or {})
    for data in others:
        _merge(own, lookup(data, ("plugins", plugin)) or {})
    return own


def _merge(into: dict[str, t.Any], more: t.Mapping[str, t.Any]) -> None:
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = copy.deepcopy(value)
