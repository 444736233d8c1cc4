# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where a file named in a variable is, on the controller. PRIVATE to the collection."""

from __future__ import annotations

import os
import typing as t


def find_file(task_vars: t.Mapping[str, t.Any], path: str) -> str:
    """The absolute path of a file named by the user: beside an inventory, the playbook, or in the working directory.

    The playbook may be the collection's own, so Ansible's search would look in the wrong place.
    """
    path = os.path.expanduser(path)
    sources = [str(source) for source in task_vars.get("ansible_inventory_sources") or []]
    folders = [source if os.path.isdir(source) else os.path.dirname(source) for source in sources]
    for folder in (task_vars.get("inventory_dir"), *folders, task_vars.get("playbook_dir")):
        if folder and os.path.exists(os.path.join(str(folder), path)):
            return os.path.abspath(os.path.join(str(folder), path))
    return os.path.abspath(path)
