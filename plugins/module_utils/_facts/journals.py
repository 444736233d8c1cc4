# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks the journals of this collection, without which nothing can be changed, and reads the former driver. PRIVATE.
"""

from __future__ import annotations

import os

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import JournalError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Fact, Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._former_driver import FormerDriver, former_driver
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import JOURNAL_ROOT, Journal

# These journals are checked even if they have no file, because the fault may be in their folder.
CONCERNS = ("driver", "container_toolkit", "mig", "cuda", "dcgm", "dcgm_exporter", "node_status_exporter")


def read_journals(root: Root) -> Fact:
    """C({brought, faults, former_driver}): the concerns whose journals have entries, C([{concern, message, hint}]) of
    invalid journals, and C({version, flavour, source, installation}) of the driver before the last change, None if none
    is recorded. Journals that this user may not read are left out."""
    folder = root.at(JOURNAL_ROOT)
    if not os.path.lexists(os.path.dirname(folder)):
        return {"brought": [], "faults": [], "former_driver": None}
    found = {name.rpartition(".")[0] for name in root.names(JOURNAL_ROOT)
             if name.endswith((".json", ".lock", ".blobs"))}
    brought, faults = [], []
    former: FormerDriver | None = None
    for concern in sorted(found.union(CONCERNS)):
        try:
            with Journal(concern, folder, readonly=True) as journal:
                brought += [concern] if journal.entries else []
                former = former_driver(journal) if concern == "driver" else former
        except JournalError as error:
            faults.append({"concern": concern, "message": error.message, "hint": error.hint})
        except OSError:
            continue
    return {"brought": brought, "faults": faults, "former_driver": former and {
        **{key: former.get(key) for key in ("version", "flavour", "source")},
        "installation": former.get("installation", "auto")}}
