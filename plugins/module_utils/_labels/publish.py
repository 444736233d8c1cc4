# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files that gpu_labels writes on a host: the feature file of NFD, or Slurm's gres.conf. PRIVATE."""

from __future__ import annotations

import os
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._files import read_text
from ansible_collections.gpuops.nvidia.plugins.module_utils._labels import gpu_loss, nfd
from ansible_collections.gpuops.nvidia.plugins.module_utils._labels.model import Labels, Reading
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step, apply, diff_entry, outcome

if t.TYPE_CHECKING:
    from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal

# The journal of the feature file, see Journal.path in `_journal.py`.
_LABELS_JOURNAL = "/var/lib/gpuops/journal/labels.json"
Warn = t.Callable[[str], None]


def publish(options: t.Mapping[str, t.Any], check_mode: bool, reading: Reading, warn: Warn) -> dict[str, object]:
    """Updates the file of the target. Returns the result of the module. Raises HostError.

    options: those of the module; reading: empty for state absent.
    """
    state, text = str(options["state"]), nfd.render(reading.labels)
    nfd_file = options["target"] == "nfd_file"
    if nfd_file and state == "present" and not reading.unread and read_text(nfd.PATH) == text \
            and gpu_loss.last_run_complete(_LABELS_JOURNAL):
        return _outcome([], reading.labels, reading.labels, reading)
    from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal

    with Journal("labels" if nfd_file else "slurm", readonly=check_mode or state == "gathered") as journal:
        if nfd_file:
            return _nfd_file(state, journal, reading, warn)
        node = options["node_name"] or os.uname().nodename.partition(".")[0]
        return _slurm(state, node, options["slurm_folder"], journal, reading, warn)


def _nfd_file(state: str, journal: Journal, reading: Reading, warn: Warn) -> dict[str, object]:
    labels, before = reading.labels, nfd.read_labels()
    feature_file = nfd.FeatureFile(journal)
    steps: list[Step] = []
    if state == "absent":
        labels, steps = feature_file.labels_after_removal(), feature_file.plan_absent()
    elif state == "present":
        if _keeps_published(journal, reading, warn) and before:
            labels = before
        steps = feature_file.plan_present(labels)
    _apply(state, journal, steps, feature_file.execute)
    return _outcome(steps, before, labels, reading)


def _outcome(steps: list[Step], before: Labels, labels: Labels, reading: Reading) -> dict[str, object]:
    differences = nfd.compare(before, labels)
    diff = [diff_entry(nfd.PATH, nfd.render(before), nfd.render(labels))] if steps else []
    return outcome(steps, diff=diff, labels=labels, added=differences["added"], removed=differences["removed"],
                   changed_labels=differences["changed"], unread=reading.unread)


def _slurm(state: str, node: str, folder: str, journal: Journal, reading: Reading, warn: Warn) -> dict[str, object]:
    from ansible_collections.gpuops.nvidia.plugins.module_utils._labels import slurm
    from ansible_collections.gpuops.nvidia.plugins.module_utils._labels.slurm_files import SlurmFiles

    files = SlurmFiles(journal, folder)
    before = files.read()
    resources = slurm.resources(reading.facts, Root().text(slurm.MINORS_TABLE) or "")
    lines = slurm.gres_lines(resources, node, reading.labels)
    steps: list[Step] = []
    if state == "absent":
        steps = files.plan_absent()
    elif state == "present":
        if _keeps_published(journal, reading, warn) and before:
            lines = before
        steps = files.plan_present(lines, node)
    _apply(state, journal, steps, files.execute)
    diff = [diff_entry(files.ours, *("".join(f"{line}\n" for line in text) for text in (before, lines)))]
    return outcome(steps, diff=diff if steps else [], labels=reading.labels, added={}, changed_labels={}, removed={},
                   unread=reading.unread, slurm={"node": node, **slurm.summary(lines)})


def _keeps_published(journal: Journal, reading: Reading, warn: Warn) -> bool:
    """Whether the published labels or lines are kept, because this reading may be incomplete."""
    if reading.unread:
        return True
    gpus = len(reading.facts["gpus"])
    if gpu_loss.is_first_loss(journal, gpus):
        warn(f"The PCI bus has {gpus} GPUs, fewer than before. The published values are kept until a second run "
             "finds the same number.")
        return True
    return False


def _apply(state: str, journal: Journal, steps: list[Step], execute: t.Callable[[Step], None]) -> None:
    if journal.readonly:
        return
    apply(steps, execute, journal)
    journal.unfinished = None  # the last step of a killed run was repeated or is no longer needed
    if state == "absent":
        gpu_loss.forget(journal)
