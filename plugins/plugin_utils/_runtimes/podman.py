# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Podman. It has no daemon and no runtime class, and only needs to find the CDI specifications. PRIVATE.

Sources: containers.conf(5) of containers/common; release notes of NVIDIA Container Toolkit 1.19 (CDI 0.7).
"""

from __future__ import annotations

import re

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.base import (
    Configuration,
    Options,
    Probe,
    Proposal,
    Runtime,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.host_state import Journal, RuntimeState
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.toml import load
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.values import lookup

_FOLDERS = ("/etc/cdi", "/var/run/cdi")
_SPECS = tuple(f"{folder}/nvidia.yaml" for folder in _FOLDERS)
_HOOKS = tuple(f"{folder}/containers/oci/hooks.d/oci-nvidia-hook.json" for folder in ("/usr/share", "/etc"))
# Later files override earlier ones.
_CONF = ("/usr/share/containers/containers.conf", "/etc/containers/containers.conf",
         "/etc/containers/containers.conf.d/*.conf")
_CDI_07 = (5, 1)  # the first Podman that supports CDI 0.7


class Podman(Runtime):
    probe = Probe(name="podman", binary="podman", config=_CONF[1], other_files=[*_CONF, *_HOOKS],
                  facts={"cdi": ["grep", "-hsm1", "cdiVersion", *reversed(_SPECS)]})

    def read(self, state: RuntimeState) -> Configuration:
        return Configuration({}, cdi=finds_specs(_spec_folders(state)[1]))

    def propose(self, state: RuntimeState, journal: Journal, options: Options) -> Proposal:
        """See Runtime. No file is written."""
        proposal = Proposal(action="none")
        if not options.cdi:
            proposal.warnings.append("Containers of Podman get GPUs only through CDI, but cdi is false.")
            return proposal
        path, folders = _spec_folders(state)
        if not finds_specs(folders):
            raise HostError(f"{path}: cdi_spec_dirs is {', '.join(folders) or 'empty'}. Podman would not find the "
                            f"specification in {_FOLDERS[1]}.", f"Add {_FOLDERS[1]} to the list, then run again.",
                            path=path)
        proposal.warnings += [f"{hook} of an old toolkit adds the GPUs in addition to CDI. Remove it."
                              for hook in _HOOKS if state.files.get(hook) is not None]
        match = re.search(r"cdiVersion\W{1,9}(\d{1,9})\.(\d{1,9})", state.facts["cdi"].stdout)
        if match and (int(match.group(1)), int(match.group(2))) >= (0, 7) and state.release < _CDI_07:
            proposal.warnings.append("The CDI specification has version 0.7 or later, which needs Podman 5.1. Update "
                                     "Podman, or set features.no-additional-gids-for-device-nodes, so that the "
                                     "toolkit writes an older version.")
        return proposal

    def propose_removal(self, state: RuntimeState, journal: Journal) -> Proposal:
        return Proposal(action="none")


def _spec_folders(state: RuntimeState) -> tuple[str, list[str]]:
    """The file that sets the folders of CDI specifications, and these folders."""
    found = _CONF[1], list(_FOLDERS)
    drop_ins = sorted(path for path in state.files if path.startswith("/etc/containers/containers.conf.d/"))
    for path in (*_CONF[:2], *drop_ins):
        folders = folders_of(path, state.files.get(path))
        if folders is not None:
            found = path, folders
    return found


def folders_of(path: str, text: str | None) -> list[str] | None:
    """The folders of CDI specifications that a file sets, None if it does not set them. Raises HostError."""
    folders = lookup(load(text or "", path), ("engine", "cdi_spec_dirs"))
    return [str(folder) for folder in folders] if isinstance(folders, list) else None


def finds_specs(folders: list[str]) -> bool:
    """Whether one of these folders contains the specification."""
    return bool({re.sub("^/run/", "/var/run/", folder.rstrip("/")) for folder in folders} & set(_FOLDERS))
