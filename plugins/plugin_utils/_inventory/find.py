# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Finds the file on the controller that a variable names. PRIVATE to the collection."""

from __future__ import annotations

import os
import typing as t

# The variables of a task or host, as Ansible passes them: values of any type, by name.
Variables = t.Mapping[str, t.Any]


def find_file(task_vars: Variables, path: str) -> str:
    """The absolute path of a file, which is searched beside an inventory, beside the playbook, and in the working
    directory.

    Ansible's own search starts at the playbook, which can be a playbook of this collection.
    """
    path = os.path.expanduser(path)
    sources = [str(source) for source in task_vars.get("ansible_inventory_sources") or []]
    folders = [source if os.path.isdir(source) else os.path.dirname(source) for source in sources]
    for folder in (task_vars.get("inventory_dir"), *folders, task_vars.get("playbook_dir")):
        if folder and os.path.exists(os.path.join(str(folder), path)):
            return os.path.abspath(os.path.join(str(folder), path))
    return os.path.abspath(path)
