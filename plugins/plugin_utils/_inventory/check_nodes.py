# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The values of gpu_check_pods and gpu_check_metrics: on which Nodes a run checks at its end. Pure. PRIVATE."""

from __future__ import annotations

import math
import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError, brief, nearest

# The options of gpu_policy and gpu_verify with such a value.
OPTIONS = ("check_pods", "check_metrics")
_PERCENTAGE = re.compile(r"([0-9]{1,2}|100)%")
_ALLOWED = "a number of Nodes, a percentage such as 10%, or a list of names of GPU Nodes"
_SHOWN = 20  # the maximum number of names that an error has


def count(amount: t.Any, gpu_nodes: t.Sequence[str] | None, option: str) -> int | list[str]:
    """The number of Nodes, or their names.

    gpu_nodes: the GPU Nodes of the plan, None if they are not known. If there are none, such as before NFD has labelled
    them, any name is allowed, and nothing is chosen by names or a percentage. option: the option with this amount.
    Raises InputError for another value or an unknown Node.
    """
    path = f"gpu_{option}"
    if isinstance(amount, list):
        unknown = [name for name in amount
                   if not isinstance(name, str) or gpu_nodes and name not in gpu_nodes]
        if not unknown:
            return amount if gpu_nodes != [] else []
        known = gpu_nodes or ()
        similar = nearest(str(unknown[0]), known)
        raise InputError(f"{brief(unknown[0])} is no GPU Node of this cluster.", " ".join(
            [*([f"Did you mean {similar}?"] if similar else []), "Write the names as kubectl get nodes shows them. A "
             "Node is a GPU Node as soon as it has the labels of its hardware."]), path=path, value=unknown[0],
            allowed=list(known)[:_SHOWN] or _ALLOWED)
    text = "" if isinstance(amount, bool) else str(amount)
    if re.fullmatch("[0-9]{1,6}", text):
        return int(text)
    if _PERCENTAGE.fullmatch(text):
        return math.ceil(len(gpu_nodes or ()) * int(text[:-1]) / 100)
    raise InputError(f"{brief(amount)} is no number of Nodes.", f"Set {path} to {_ALLOWED}.", path=path, value=amount,
                     allowed=_ALLOWED)


def note(amount: t.Any, gpu_nodes: t.Sequence[str] | None, rendered: bool, option: str) -> list[str]:
    """The note that a run checks nothing, although the amount asks for it. rendered: whether it only writes manifests;
    others: as in L(count)."""
    if amount in (0, "0", "0%", []) or gpu_nodes and not rendered:
        return []
    why, then = "no Node has the labels of a GPU yet", "Run the playbook verify when Nodes have them."
    if rendered:
        why, then = "gpu_render_to is set", "When the manifests are applied, run the playbook verify without it."
    return [f"gpu_{option}: nothing is checked in this run, because {why}. {then}"]
