# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads the rootless Docker of the users that this collection has configured. PRIVATE to the collection."""

from __future__ import annotations

import json
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import GpuopsError, JournalError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Fact, Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import JOURNAL_ROOT, Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Runner
from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit.users import Identity, find

# The most classes, and the characters of a name, in the fact. The controller refuses the facts of a host with more.
_MOST, _LONGEST = 1000, 1024


def read_rootless(root: Root, run: Runner) -> Fact:
    """The fact C(rootless) of gpu_info. Files are read as their user. Empty if the journal cannot be read."""
    try:
        with Journal("container_toolkit", root.at(JOURNAL_ROOT), readonly=True) as journal:
            paths = {entry["before"]["user"]: path for path, entry in journal.of_kind("user_file").items()}
    except (JournalError, OSError):
        return {}
    found: Fact = {}
    for name, path in paths.items():
        account = find(name)
        if account is not None:
            found[name] = _docker(Identity(account, run), path)
    return found


def _docker(user: Identity, path: str) -> Fact:
    """C({classes, running}); None for what cannot be read."""
    classes: t.Optional[t.List[str]] = None
    running = None
    try:
        runtimes = json.loads(user.read(path).data or b"{}").get("runtimes", {})
        if isinstance(runtimes, dict) and len(runtimes) <= _MOST and all(
                len(name) <= _LONGEST and name.isprintable() for name in runtimes):
            classes = sorted(runtimes)
        running = user(["systemctl", "is-active", "docker.service"], check=False).stdout.strip() == "active"
    except (GpuopsError, ValueError, AttributeError, TypeError, RecursionError):
        pass
    return {"classes": classes, "running": running}
