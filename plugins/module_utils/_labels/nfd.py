# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Labels as a feature file of Node Feature Discovery: read, compared, written, removed. PRIVATE to the collection.

NFD's local source publishes each C(key=value) line of the files in its folder as a label of the node
(source: kubernetes-sigs/node-feature-discovery, "Local feature source").
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
    """The file for these labels, sorted."""
    return "".join(f"{key}={labels[key]}\n" for key in sorted(labels))


def parse(text: str) -> Labels:
    """The labels of a feature file; comments and blank lines are none."""
    lines = (line.strip() for line in text.splitlines())
    pairs = (line.partition("=") for line in lines if line and not line.startswith("#"))
    return {key: value for key, _separator, value in pairs}


def read_labels(path: str = PATH) -> Labels:
    """The labels that the file gives now; none where there is no file."""
    return parse(read_text(path) or "")


def compare(before: t.Mapping[str, str], after: t.Mapping[str, str]) -> dict[str, t.Any]:
    """C({added: {key: value}, changed: {key: {before, after}}, removed: {key: value}})."""
    return {
        "added": {key: value for key, value in after.items() if key not in before},
        "changed": {key: {"before": before[key], "after": value} for key, value in after.items()
                    if key in before and before[key] != value},
        "removed": {key: value for key, value in before.items() if key not in after},
    }


class FeatureFile:
    """The feature file under a journal (concern C(labels)). path: elsewhere in tests."""

    def __init__(self, journal: Journal, path: str = PATH) -> None:
        self.journal = journal
        self.path = path

    def plan_present(self, labels: t.Mapping[str, str]) -> list[Step]:
        """One step where the file does not say exactly this. Raises HostError where it cannot be written."""
        text = render(labels)
        if read_bytes(self.path) == text.encode():
            return []
        check_writable(self.path)
        return [Step(WRITE, self.path, "its labels are not those of the host", data={"text": text})]

    def plan_absent(self) -> list[Step]:
        """One step where something of ours is still there."""
        if self.journal.of_kind("file") or self.journal.of_kind("directory"):
            return [Step(REMOVE, self.path, "it was written by this collection")]
        return []

    def without_ours(self) -> Labels:
        """The labels that will be left once ours are taken back."""
        if self.journal.get("file", self.path) is None:
            return read_labels(self.path)
        former = self.journal.former_bytes(self.path) or b""
        return parse(self._foreign_lines() or former.decode("utf-8", "replace"))

    def execute(self, step: Step) -> None:
        """Runs a step of L(plan_present) or L(plan_absent)."""
        if step.action == WRITE:
            self.journal.write_file(self.path, step.data["text"].encode())
            return
        if self.journal.get("file", self.path) is not None:
            foreign = self._foreign_lines()
            if foreign:
                # Somebody added to the file: what they wrote stays, and the file is theirs now.
                self.journal.write_file(self.path, foreign.encode())
                self.journal.forget("file", self.path)
            else:
                self.journal.restore_file(self.path)
        # A run killed in between may have left folders of ours on record without their file.
        for folder in sorted(self.journal.of_kind("directory"), reverse=True):
            if os.path.isdir(folder) and not os.listdir(folder):
                os.rmdir(folder)
            self.journal.forget("directory", folder)

    def _foreign_lines(self) -> str:
        """Lines of an edited file that are not labels of ours."""
        if self.journal.file_is(self.path) != "edited":
            return ""
        lines = (read_text(self.path) or "").splitlines()
        return "".join(f"{line}\n" for line in lines if line.strip() and not line.startswith(_OUR_KEYS))
