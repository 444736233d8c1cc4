# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the journals of this collection can be read and trusted, as every change needs them. PRIVATE."""

from __future__ import annotations

import os
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import JournalError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import JOURNAL_ROOT, Journal

# Of what is delivered to hosts, also where there is no file yet: its folder may be the fault.
CONCERNS = ("driver", "container_toolkit", "mig", "cuda", "dcgm", "dcgm_exporter", "node_status_exporter")


def read_journals(root: Root) -> dict[str, t.Any]:
    """C({brought, faults}): the concerns with something on record, and C([{concern, message, hint}]) of the journals
    that would be refused. One that may not be read is left out."""
    folder = root.at(JOURNAL_ROOT)
    if not os.path.lexists(os.path.dirname(folder)):
        return {"brought": [], "faults": []}
    found = {name.rpartition(".")[0] for name in root.names(JOURNAL_ROOT)
             if name.endswith((".json", ".lock", ".blobs"))}
    brought, faults = [], []
    for concern in sorted(found.union(CONCERNS)):
        try:
            with Journal(concern, folder, readonly=True) as journal:
                brought += [concern] if journal.entries else []
        except JournalError as error:
            faults.append({"concern": concern, "message": error.message, "hint": error.hint})
        except OSError:
            continue  # without root nothing is known of it
    return {"brought": brought, "faults": faults}
