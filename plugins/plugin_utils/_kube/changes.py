# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A planned change of one object in the cluster. Pure. PRIVATE to the collection."""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, field

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube import kinds, objects
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.objects import Object


@dataclass(frozen=True)
class Change:
    """One object and the action of a run on it.

    action: C(create); C(update), because the plan has changed; C(repair), because somebody else has changed the object;
    C(replace), a repair or update of an immutable field by deletion and creation; C(adopt), an object of a GPU Operator
    becomes owned; C(delete); C(release), a foreign object loses the marks of owned objects; C(stop) and C(start) the
    Deployment of an operator. Two actions write nothing: C(keep), the object is as planned; C(reuse), a foreign object
    serves in place of the planned one.
    manifest: desired, None for a deletion; live: current, None for a creation; reasons: the fields that differ;
    orphans: whether the deletion of a DaemonSet leaves its pods running.
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
        return objects.label_of(self._object)

    @property
    def namespace(self) -> str:
        """Empty for a cluster-wide object."""
        return str(self._object["metadata"].get("namespace", ""))

    @property
    def id(self) -> str:
        """The name of the step, the same in check mode and in the run."""
        return f"{self.action}: {self.label}"

    @property
    def _object(self) -> Object:
        return t.cast(Object, self.manifest if self.live is None else self.live)
