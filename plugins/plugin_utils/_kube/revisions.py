# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Finds out which pods of a DaemonSet are outdated. Pure. PRIVATE to the collection."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.objects import Live
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.workloads import without_node_selection

_REVISION = "controller-revision-hash"


class Revisions(t.NamedTuple):
    """The revisions of a DaemonSet. template: the newest pod template; current: the hashes of all revisions whose pods
    are not outdated, because they differ from the newest one in the node selection at most; former: the hashes of the
    others."""

    template: Live
    current: t.FrozenSet[str]
    former: t.FrozenSet[str] = frozenset()

    def is_outdated(self, pod: Live) -> bool:
        """Whether a pod of the DaemonSet is outdated."""
        return hash_of(pod) not in self.current


def of_daemon_set(uid: str, revisions: t.Iterable[Live]) -> Revisions | None:
    """The revisions of the DaemonSet with this uid, None if it has none yet. revisions: ControllerRevisions."""
    own = [one for one in revisions
           if any(owner["uid"] == uid for owner in one["metadata"].get("ownerReferences") or ())]
    if not own:
        return None
    template: Live = max(own, key=lambda one: int(one["revision"]))["data"]["spec"]["template"]
    same = without_node_selection(template)
    hashes = {hash_of(one): without_node_selection(one["data"]["spec"]["template"]) == same for one in own}
    return Revisions(template, *(frozenset(name for name, current in hashes.items() if current is wanted)
                                 for wanted in (True, False)))


def hash_of(item: Live) -> str:
    """The hash of the revision of a pod or a ControllerRevision, empty if it has none."""
    return str((item["metadata"].get("labels") or {}).get(_REVISION, ""))


def tag(pod: Live) -> str:
    """The tag or digest of the first container's image, such as C(570.172.08-ubuntu22.04). pod: a pod or a template."""
    return str(pod["spec"]["containers"][0]["image"]).rpartition("/")[2].partition(":")[2]
