# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads files below a root folder. The result is None if a file is missing or not readable. PRIVATE to the collection.

An unreadable file must not end the collection of facts. L(_files.read_text) raises an error instead.
"""

from __future__ import annotations

import os
import typing as t

# A fact of gpu_info as JSON. The documentation of gpu_info has its shape; the controller checks it (answer_shapes).
Fact = t.Dict[str, t.Any]


class Root:
    """The file system below a folder, which is C(/) on a host."""

    def __init__(self, path: str = "/") -> None:
        self.path = path.rstrip("/")

    def at(self, path: str) -> str:
        """The path by which this process reaches an absolute path of the host."""
        return self.path + path

    def text(self, path: str) -> str | None:
        """The text of a file without leading and trailing white space; None if it cannot be read."""
        data = self.data(path)
        return None if data is None else data.decode("utf-8", "replace").strip()

    def data(self, path: str) -> bytes | None:
        """The bytes of a file; None if it cannot be read."""
        try:
            with open(self.at(path), "rb") as handle:
                return handle.read()
        except OSError:
            return None

    def stat(self, path: str) -> os.stat_result | None:
        """The status of a file after following links; None if it cannot be read."""
        try:
            return os.stat(self.at(path))
        except OSError:
            return None

    def names(self, path: str) -> list[str]:
        """The sorted names in a folder; none if it is missing or not readable."""
        try:
            return sorted(os.listdir(self.at(path)))
        except OSError:
            return []

    def link(self, path: str) -> str | None:
        """The target of a symbolic link; None if the path is no link."""
        try:
            return os.readlink(self.at(path))
        except OSError:
            return None

    def is_there(self, path: str) -> bool:
        """Whether the path exists, without following links."""
        return os.path.lexists(self.at(path))

    def exists(self, path: str) -> bool:
        """Whether the path exists, following links within the root."""
        for _hop in range(8):
            target = self.link(path)
            if target is None:
                return os.path.exists(self.at(path))
            path = os.path.normpath(os.path.join(os.path.dirname(path), target))
        return False
