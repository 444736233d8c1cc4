# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One change of one object on the API server. Pure. PRIVATE to the collection."""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, field

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube import kinds, objects
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.objects import Object


@dataclass(frozen=True)
class Change:
    """One object and what is to be done with it.

    action: create, update (what we want has changed), repair (a foreign hand changed it), replace (the same, where only
    a new object can have what is wanted), adopt (it was a GPU Operator's), delete, release (a foreign object that
    carries marks of ours loses them), stop and start (of an operator), or, without any write: keep (it is as wanted),
    reuse (a foreign object that does what we want).
    reasons: the fields that differ. orphans: whether a DaemonSet that is deleted leaves its pods.
    """

    action: str
    kind: kinds.Kind
    component: str
    manifest: Object | None
    live: Object | None
    reasons: t.Sequence[str] = field(default=())
    orphans: bool = False

    @property
    def writes(self) -> bool:
        """Whether it changes the cluster."""
        return self.action not in ("keep", "reuse")

    @property
    def label(self) -> str:
        """C(DaemonSet gpu-operator/nvidia-dcgm)."""
        return objects.label_of(t.cast(Object, self.manifest if self.live is None else self.live))

    @property
    def namespace(self) -> str:
        """Empty for a cluster-wide object."""
        return str(t.cast(Object, self.manifest if self.live is None else self.live)["metadata"].get("namespace", ""))

    @property
    def id(self) -> str:
        """What check mode names and the run then does."""
        return f"{self.action}: {self.label}"
