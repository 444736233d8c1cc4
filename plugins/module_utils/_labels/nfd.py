# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Labels in a feature file of Node Feature Discovery. PRIVATE to the collection.

NFD publishes each line `key=value` of the files in its folder as a label of the Node (source:
kubernetes-sigs/node-feature-discovery, "Local feature source").
"""

from __future__ import annotations

import os
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._files import check_writable, read_bytes, read_text
from ansible_collections.gpuops.nvidia.plugins.module_utils._labels.model import Labels
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step

if t.TYPE_CHECKING:
    from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal

PATH = "/etc/kubernetes/node-feature-discovery/features.d/gpuops"
WRITE, REMOVE = "write feature file", "remove feature file"
_OUR_KEYS = ("nvidia.com/", "gpuops.nvidia/")


def render(labels: t.Mapping[str, str]) -> str:
    """The text of the file, sorted by label."""
    return "".join(f"{key}={labels[key]}\n" for key in sorted(labels))


def parse(text: str) -> Labels:
    """The labels of a feature file, without comments and blank lines."""
    lines = (line.strip() for line in text.splitlines())
    pairs = (line.partition("=") for line in lines if line and not line.startswith("#"))
    return {key: value for key, _separator, value in pairs}


def read_labels(path: str = PATH) -> Labels:
    """The labels of the current file; none if there is no file."""
    return parse(read_text(path) or "")


def compare(before: t.Mapping[str, str], after: t.Mapping[str, str]) -> dict[str, object]:
    """The differences as JSON: `{added: {key: value}, changed: {key: {before, after}}, removed: {key: value}}`."""
    return {
        "added": {key: value for key, value in after.items() if key not in before},
        "changed": {key: {"before": before[key], "after": value} for key, value in after.items()
                    if key in before and before[key] != value},
        "removed": {key: value for key, value in before.items() if key not in after},
    }


class FeatureFile:
    """The feature file and its journal, whose concern is `labels`. path: for tests."""

    def __init__(self, journal: Journal, path: str = PATH) -> None:
        self.journal = journal
        self.path = path

    def plan_present(self, labels: t.Mapping[str, str]) -> list[Step]:
        """The step that writes the file if it differs. Raises HostError if it cannot be written."""
        text = render(labels)
        if read_bytes(self.path) == text.encode():
            return []
        check_writable(self.path)
        return [Step(WRITE, self.path, "its labels differ from those of the host", data={"text": text})]

    def plan_absent(self) -> list[Step]:
        """The step that removes the file if a run has written it."""
        if self.journal.of_kind("file") or self.journal.of_kind("directory"):
            return [Step(REMOVE, self.path, "this collection has written it")]
        return []

    def labels_after_removal(self) -> Labels:
        """The labels that remain in the file after a removal."""
        if self.journal.get("file", self.path) is None:
            return read_labels(self.path)
        former = self.journal.former_bytes(self.path) or b""
        return parse(self._foreign_lines() or former.decode("utf-8", "replace"))

    def execute(self, step: Step) -> None:
        """Executes a step."""
        if step.action == WRITE:
            self.journal.write_file(self.path, step.data["text"].encode())
            return
        if self.journal.get("file", self.path) is not None:
            foreign = self._foreign_lines()
            if foreign:
                # Lines that somebody else has added are kept. The file is foreign from now on.
                self.journal.write_file(self.path, foreign.encode())
                self.journal.forget("file", self.path)
            else:
                self.journal.restore_file(self.path)
        # After a killed run, the journal may contain folders without the file.
        for folder in sorted(self.journal.of_kind("directory"), reverse=True):
            if os.path.isdir(folder) and not os.listdir(folder):
                os.rmdir(folder)
            self.journal.forget("directory", folder)

    def _foreign_lines(self) -> str:
        """The lines of an edited file, without the labels of this collection; empty if the file was not edited."""
        if self.journal.file_is(self.path) != "edited":
            return ""
        lines = (read_text(self.path) or "").splitlines()
        return "".join(f"{line}\n" for line in lines if line.strip() and not line.startswith(_OUR_KEYS))
