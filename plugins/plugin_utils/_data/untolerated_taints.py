# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The taints that pods of a DaemonSet do not tolerate (Kubernetes, "Taints and Tolerations"). Pure. PRIVATE."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.untyped import Section


def untolerated(taints: t.Iterable[Section], tolerations: t.Sequence[Section]) -> list[Section]:
    """The taints of a Node because of which pods with these tolerations are not scheduled there, or are evicted."""
    # Pods of DaemonSets tolerate the taints that Kubernetes itself adds to Nodes.
    return [taint for taint in taints
            if taint["effect"] != "PreferNoSchedule" and not taint["key"].startswith("node.kubernetes.io/")
            and not any(_tolerates(one, taint) for one in tolerations)]


def _tolerates(toleration: Section, taint: Section) -> bool:
    """A toleration without a key or an effect matches all of them. Exists matches any value."""
    if toleration.get("effect") and toleration["effect"] != taint["effect"]:
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return toleration.get("key") in (None, "", taint["key"])
    return bool(toleration.get("key") == taint["key"] and (toleration.get("value") or "") == (taint.get("value") or ""))
