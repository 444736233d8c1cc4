# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One lost reading moves nothing on which running work depends. PRIVATE to the collection.

A GPU that the driver has and that does not answer is C(unread): what was published stays until it answers. A GPU that
is not even on the PCI bus may be in a reset, or gone: what was published stays until a second run does not see it.
"""

from __future__ import annotations

import json
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._files import read_bytes

if t.TYPE_CHECKING:
    from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal

_KIND, _KEY = "reading", "gpus"
# The VERSION of L(_journal), which costs more to import than the shortcut saves.
_FORMAT = 1


def calm(path: str) -> bool:
    """Whether a journal tells of a run that ended and saw all GPUs; path: its file. Where the labels are right too, it
    need not be opened, which is a good part of what a task costs on a host where nothing differs."""
    try:
        document = json.loads(read_bytes(path) or b"{}")
        readings = [one["after"] for one in document["entries"] if one["kind"] == _KIND]
        known = document["version"] == _FORMAT and not isinstance(document["version"], (bool, float))
        return known and document["unfinished"] is None and readings != [] and not any(one["fewer"] for one in readings)
    except (KeyError, TypeError, ValueError, RecursionError):
        return False


def fewer(journal: Journal, gpus: int) -> bool:
    """Whether there are fewer GPUs than a former run saw, for the first time. Records what is seen.

    gpus: their number on the PCI bus.
    """
    entry = journal.get(_KIND, _KEY)
    known = entry["after"] if entry else {"gpus": 0, "fewer": False}
    first = gpus < known["gpus"] and not known["fewer"]
    now = {"gpus": known["gpus"], "fewer": True} if first else {"gpus": gpus, "fewer": False}
    if not journal.readonly:
        journal.keep(_KIND, _KEY, None)
        journal.note(_KIND, _KEY, now)
    return first


def forget(journal: Journal) -> None:
    """Once nothing is published any more."""
    journal.forget(_KIND, _KEY)
