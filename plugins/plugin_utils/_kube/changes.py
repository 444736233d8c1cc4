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
    """A planned action on one object.

    action: C(create); C(update), because the plan has changed; C(repair), because another client has changed the
    object; C(replace), which deletes the object and creates it again to change an immutable field; C(adopt), which
    makes an object of a GPU Operator an owned one; C(delete); C(release), which removes the marks of owned objects from
    a foreign object; C(stop) and C(start), for the Deployment of an operator. Two actions write nothing: C(keep),
    because the object is as planned; C(reuse), because a foreign object is used instead of the planned object.
    manifest: the desired object, None for a deletion; live: the current object, None for a creation; reasons: the
    fields that differ; orphans: whether the deletion of a DaemonSet leaves its pods running.
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
        """Whether the action changes the cluster."""
        return self.action not in ("keep", "reuse")

    @property
    def label(self) -> str:
        """The name of the object in messages, such as C(DaemonSet gpu-operator/nvidia-dcgm)."""
        return objects.label_of(self._object)

    @property
    def namespace(self) -> str:
        """The namespace of the object, empty for a cluster-wide object."""
        return str(self._object["metadata"].get("namespace", ""))

    @property
    def id(self) -> str:
        """The name of the step. It is the same in check mode and in a run."""
        return f"{self.action}: {self.label}"

    @property
    def _object(self) -> Object:
        return t.cast(Object, self.manifest if self.live is None else self.live)
