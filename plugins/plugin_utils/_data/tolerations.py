# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which taints keep the pods of a DaemonSet away (Kubernetes, "Taints and Tolerations"). Pure. PRIVATE."""

from __future__ import annotations

import typing as t

Fields = t.Mapping[str, t.Any]


def untolerated(taints: t.Iterable[Fields], tolerations: t.Sequence[Fields]) -> list[Fields]:
    """The taints of a Node by which pods with these tolerations are not scheduled there, or are evicted."""
    # Pods of DaemonSets tolerate the taints that Kubernetes itself puts on Nodes.
    return [taint for taint in taints
            if taint["effect"] != "PreferNoSchedule" and not taint["key"].startswith("node.kubernetes.io/")
            and not any(_tolerates(one, taint) for one in tolerations)]


def _tolerates(toleration: Fields, taint: Fields) -> bool:
    """As Kubernetes matches them: no key and no effect stand for all; Exists takes any value."""
    if toleration.get("effect") and toleration["effect"] != taint["effect"]:
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return toleration.get("key") in (None, "", taint["key"])
    return bool(toleration.get("key") == taint["key"] and (toleration.get("value") or "") == (taint.get("value") or ""))
