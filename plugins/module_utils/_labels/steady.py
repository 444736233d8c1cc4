# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keeps published labels after a single incomplete reading, because running work can depend on them. PRIVATE.

If a GPU of the driver does not answer, it is `unread`, and the published labels stay until it answers. If a GPU is not
on the PCI bus, it can be in a reset, so the published labels stay until a second run does not find it either.
"""

from __future__ import annotations

import json
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._files import read_bytes

if t.TYPE_CHECKING:
    from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal

_KIND, _KEY = "reading", "gpus"
# VERSION of `_journal.py`, whose import takes longer than what this file saves.
_FORMAT = 1


def calm(path: str) -> bool:
    """Whether the last run has ended and found all GPUs, according to the journal in a file.

    If the labels are as desired, too, the journal does not have to be opened, which saves much of the task's time.
    """
    try:
        document = json.loads(read_bytes(path) or b"{}")
        readings = [one["after"] for one in document["entries"] if one["kind"] == _KIND]
        known = document["version"] == _FORMAT and not isinstance(document["version"], (bool, float))
        return known and document["unfinished"] is None and readings != [] and not any(one["fewer"] for one in readings)
    except (KeyError, TypeError, ValueError, RecursionError):
        return False


def fewer(journal: Journal, gpus: int) -> bool:
    """Whether the PCI bus has fewer GPUs than in a former run, for the first time. Records their number."""
    entry = journal.get(_KIND, _KEY)
    known = entry["after"] if entry else {"gpus": 0, "fewer": False}
    first = gpus < known["gpus"] and not known["fewer"]
    now = {"gpus": known["gpus"], "fewer": True} if first else {"gpus": gpus, "fewer": False}
    if not journal.readonly:
        journal.keep(_KIND, _KEY, None)
        journal.note(_KIND, _KEY, now)
    return first


def forget(journal: Journal) -> None:
    """Forgets the number of GPUs, after a removal."""
    journal.forget(_KIND, _KEY)
