# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Podman: no daemon, no runtime class; it needs CDI specifications where it looks for them. PRIVATE to the collection.

Facts: containers.conf(5) of containers/common; release notes of NVIDIA Container Toolkit 1.19 (CDI 0.7).
"""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.base import Options, Proposal
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.toml import load, lookup

_FOLDERS = ("/etc/cdi", "/var/run/cdi")
_SPECS = tuple(f"{folder}/nvidia.yaml" for folder in _FOLDERS)
_HOOKS = tuple(f"{folder}/containers/oci/hooks.d/oci-nvidia-hook.json" for folder in ("/usr/share", "/etc"))
# Later files win.
_CONF = ("/usr/share/containers/containers.conf", "/etc/containers/containers.conf",
         "/etc/containers/containers.conf.d/*.conf")
_CDI_07 = (5, 1)  # the first Podman that reads CDI 0.7


class Podman:
    """Implements C(base.Runtime)."""

    probe: t.ClassVar[t.Mapping[str, t.Any]] = {
        "name": "podman", "binary": "podman", "units": [], "config": _CONF[1], "config_flags": [],
        "more": [*_CONF, *_HOOKS],
        "facts": {"cdi": ["grep", "-hsm1", "cdiVersion", *reversed(_SPECS)]},
    }

    def propose(self, seen: t.Mapping[str, t.Any], journal: t.Mapping[str, t.Any], options: Options) -> Proposal:
        """See C(base.Runtime). Nothing is written: what Podman needs is the CDI specification alone."""
        proposal = Proposal(act="none")
        if not options.cdi:
            proposal.warnings.append("Podman hands out GPUs by CDI alone, and cdi is off.")
            return proposal
        path, folders = _spec_folders(seen)
        if not {re.sub("^/run/", "/var/run/", folder.rstrip("/")) for folder in folders} & set(_FOLDERS):
            raise HostError(f"{path}: cdi_spec_dirs is {', '.join(folders) or 'empty'}: Podman would not find the "
                            f"specification in {_FOLDERS[1]}.", f"Add {_FOLDERS[1]} to the list, then run again.",
                            path=path)
        for hook in (one for one in _HOOKS if seen["files"].get(one) is not None):
            proposal.warnings.append(f"{hook} of an old toolkit brings GPUs into containers a second time, beside CDI: "
                                     "remove it.")
        match = re.search(r"cdiVersion\W{1,9}(\d{1,9})\.(\d{1,9})", seen["facts"]["cdi"]["stdout"])
        if match and (int(match.group(1)), int(match.group(2))) >= (0, 7) and _version(seen) < _CDI_07:
            proposal.warnings.append("The CDI specification is of version 0.7 or later, which Podman reads from 5.1 "
                                     "on. Update Podman, or set features.no-additional-gids-for-device-nodes, which "
                                     "has the toolkit write an older version.")
        return proposal

    def judge(self, seen: t.Mapping[str, t.Any], results: t.Sequence[t.Mapping[str, t.Any]], options: Options,
              proposal: Proposal) -> None:
        """See C(base.Runtime). There are no trials."""

    def withdraw(self, seen: t.Mapping[str, t.Any], journal: t.Mapping[str, t.Any]) -> Proposal:
        """See C(base.Runtime)."""
        return Proposal(act="none")


def _version(seen: t.Mapping[str, t.Any]) -> tuple[int, int]:
    """Podman's version; of one that does not say it, the newest."""
    match = re.search(r"version v?(\d{1,9})\.(\d{1,9})", seen["version"])
    return (int(match.group(1)), int(match.group(2))) if match else (99, 0)


def _spec_folders(seen: t.Mapping[str, t.Any]) -> tuple[str, list[str]]:
    """Where Podman looks for specifications, and the file that says so."""
    found = _CONF[1], list(_FOLDERS)
    drop_ins = sorted(path for path in seen["files"] if path.startswith("/etc/containers/containers.conf.d/"))
    for path in (*_CONF[:2], *drop_ins):
        folders = lookup(load(seen["files"].get(path) or "", path), ("engine", "cdi_spec_dirs"))
        if isinstance(folders, list):
            found = path, [str(folder) for folder in folders]
    return found
