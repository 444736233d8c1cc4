# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Records the number of GPUs, so that a single incomplete reading never changes published labels. PRIVATE.

Running work can depend on labels. A GPU that is missing on the PCI bus can be in a reset, so the published labels are
kept until a second run does not find the GPU either. (A GPU that does not answer is `unread`, see publish.py.)
"""

from __future__ import annotations

import json
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._files import read_bytes

if t.TYPE_CHECKING:
    from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal

_KIND, _KEY = "reading", "gpus"
# VERSION of `_journal.py`. Importing it would take longer than last_run_complete saves.
_FORMAT = 1


def last_run_complete(path: str) -> bool:
    """Whether the last run was not killed and found all GPUs. path: that of the journal.

    If the labels also have their desired values, the journal is not opened, which saves much of the task's time.
    """
    try:
        document = json.loads(read_bytes(path) or b"{}")
        losses = [entry["after"]["fewer"] for entry in document["entries"] if entry["kind"] == _KIND]
        valid = document["version"] == _FORMAT and not isinstance(document["version"], (bool, float))
        return valid and document["unfinished"] is None and losses != [] and not any(losses)
    except (KeyError, TypeError, ValueError, RecursionError):
        return False


def is_first_loss(journal: Journal, gpus: int) -> bool:
    """Whether this run is the first that finds fewer GPUs than an earlier run. Records the number of GPUs."""
    entry = journal.get(_KIND, _KEY)
    recorded = entry["after"] if entry else {"gpus": 0, "fewer": False}
    is_first = gpus < recorded["gpus"] and not recorded["fewer"]
    new = {"gpus": recorded["gpus"], "fewer": True} if is_first else {"gpus": gpus, "fewer": False}
    if not journal.readonly:
        journal.keep(_KIND, _KEY, None)
        journal.note(_KIND, _KEY, new)
    return is_first


def forget(journal: Journal) -> None:
    """Deletes the recorded number of GPUs after a removal."""
    journal.forget(_KIND, _KEY)
