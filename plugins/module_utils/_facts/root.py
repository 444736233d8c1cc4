# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files below a root folder, read forgivingly: what is not there or not readable is None. PRIVATE to the collection.

A fact that cannot be read must not end the run, so these readers answer None where L(_files.read_text) would raise.
"""

from __future__ import annotations

import os


class Root:
    """The file system below C(path); C(/) on a host, a made-up tree in tests."""

    def __init__(self, path: str = "/") -> None:
        self.path = path.rstrip("/")

    def at(self, path: str) -> str:
        """An absolute path of the host as a path of this process."""
        return self.path + path

    def text(self, path: str) -> str | None:
        """The content, stripped of surrounding white space, or None."""
        data = self.data(path)
        return None if data is None else data.decode("utf-8", "replace").strip()

    def data(self, path: str) -> bytes | None:
        """The bytes, or None."""
        try:
            with open(self.at(path), "rb") as handle:
                return handle.read()
        except OSError:
            return None

    def stat(self, path: str) -> os.stat_result | None:
        """What stands there, links followed, or None."""
        try:
            return os.stat(self.at(path))
        except OSError:
            return None

    def names(self, path: str) -> list[str]:
        """The sorted names in a folder; none where it is missing or not readable."""
        try:
            return sorted(os.listdir(self.at(path)))
        except OSError:
            return []

    def link(self, path: str) -> str | None:
        """Where a link points, or None."""
        try:
            return os.readlink(self.at(path))
        except OSError:
            return None

    def is_there(self, path: str) -> bool:
        """Whether a file or a link has this name, wherever a link points."""
        return os.path.lexists(self.at(path))

    def exists(self, path: str) -> bool:
        """Whether something is there; a link counts by what it points to, within the root."""
        for _hop in range(8):
            target = self.link(path)
            if target is None:
                return os.path.exists(self.at(path))
            path = os.path.normpath(os.path.join(os.path.dirname(path), target))
        return False
