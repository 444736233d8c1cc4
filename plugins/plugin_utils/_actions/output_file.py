# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes files on the controller that a user has requested. PRIVATE."""

from __future__ import annotations

import os

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError, InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._files import read_bytes, write_atomic
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._actions.screen import display


def write(option: str, path: str, content: bytes, check: bool, title: str = "Report", mode: int = 0o644
          ) -> bool:
    """Writes a file and prints its path. Returns whether its content changes.

    option: the option with the path, for errors; check: whether check mode is on, in which the file is not written;
    title: what the file is; mode: that of a new file. Raises InputError if it cannot be written.
    """
    try:
        differs = read_bytes(path) != content
        if check:
            display.display(f"{title}: {path} (not written in check mode)")
            return differs
        made = not os.path.isdir(os.path.dirname(path))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if differs:
            write_atomic(path, content, mode)
    except (OSError, HostError) as error:
        why = error.message if isinstance(error, HostError) else f"{path} cannot be written: {error.strerror}."
        raise InputError(why, "Name a file in a folder that can be written.", path=option, value=path) from error
    display.display(f"{title}: {path}{' (its folder was created)' if made else ''}")
    return differs
