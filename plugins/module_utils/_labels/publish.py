# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What gpu_labels writes on a host: the feature file of NFD, or Slurm's gres.conf. PRIVATE to the collection."""

from __future__ import annotations

import os
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._files import read_text
from ansible_collections.gpuops.nvidia.plugins.module_utils._labels import nfd, steady
from ansible_collections.gpuops.nvidia.plugins.module_utils._labels.model import Labels, Reading
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step, apply, diff_entry, outcome

if t.TYPE_CHECKING:
    from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal

# The journal of the feature file, see L(_journal.Journal.path).
_LABELS_JOURNAL = "/var/lib/gpuops/journal/labels.json"
Parameters = t.Mapping[str, t.Any]
Warn = t.Callable[[str], None]


def publish(given: Parameters, check_mode: bool, reading: Reading, warn: Warn) -> dict[str, t.Any]:
    """The whole task for a target that is a file. given: the module's parameters; reading: empty for state absent."""
    text = nfd.render(reading.labels)
    if given["target"] == "nfd_file" and given["state"] == "present" and not reading.unread \
            and read_text(nfd.PATH) == text and steady.calm(_LABELS_JOURNAL):
        return _outcome([], reading.labels, reading.labels, reading)
    from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal

    concern, work = ("labels", _nfd_file) if given["target"] == "nfd_file" else ("slurm", _slurm)
    with Journal(concern, readonly=check_mode or given["state"] == "gathered") as journal:
        return work(given, journal, reading, warn)


def _nfd_file(given: Parameters, journal: Journal, reading: Reading, warn: Warn) -> dict[str, t.Any]:
    labels, before = reading.labels, nfd.read_labels()
    feature_file = nfd.FeatureFile(journal)
    steps: list[Step] = []
    if given["state"] == "absent":
        labels, steps = feature_file.without_ours(), feature_file.plan_absent()
    elif given["state"] == "present":
        if _stays(journal, reading, warn) and before:
            labels = before
        steps = feature_file.plan_present(labels)
    _carry_out(given, journal, steps, feature_file.execute)
    return _outcome(steps, before, labels, reading)


def _outcome(steps: list[Step], before: Labels, labels: Labels, reading: Reading) -> dict[str, t.Any]:
    differences = nfd.compare(before, labels)
    diff = [diff_entry(nfd.PATH, nfd.render(before), nfd.render(labels))] if steps else []
    return outcome(steps, diff=diff, labels=labels, added=differences["added"], removed=differences["removed"],
                   changed_labels=differences["changed"], unread=reading.unread)


def _slurm(given: Parameters, journal: Journal, reading: Reading, warn: Warn) -> dict[str, t.Any]:
    from ansible_collections.gpuops.nvidia.plugins.module_utils._labels import slurm as gres
    from ansible_collections.gpuops.nvidia.plugins.module_utils._labels.slurm_files import SlurmFiles

    node = given["node_name"] or os.uname().nodename.partition(".")[0]
    files = SlurmFiles(journal, given["slurm_folder"])
    before = files.read()
    lines = gres.describe(gres.resources(reading.facts, Root().text(gres.MINORS_TABLE) or ""), node, reading.labels)
    steps: list[Step] = []
    if given["state"] == "absent":
        steps = files.plan_absent()
    elif given["state"] == "present":
        if _stays(journal, reading, warn) and before:
            lines = before
        steps = files.plan_present(lines, node)
    _carry_out(given, journal, steps, files.execute)
    diff = [diff_entry(files.ours, *("".join(f"{line}\n" for line in text) for text in (before, lines)))]
    return outcome(steps, diff=diff if steps else [], labels=reading.labels, added={}, changed_labels={}, removed={},
                   unread=reading.unread, slurm={"node": node, **gres.told(lines)})


def _stays(journal: Journal, reading: Reading, warn: Warn) -> bool:
    """Whether what was published stays, since this reading is not to be trusted yet."""
    if reading.unread:
        return True
    gpus = len(reading.facts["gpus"])
    if steady.fewer(journal, gpus):
        warn(f"The PCI bus has {gpus} GPUs, fewer than before. What was published stays until another run sees the "
             "same.")
        return True
    return False


def _carry_out(given: Parameters, journal: Journal, steps: list[Step], execute: t.Callable[[Step], None]) -> None:
    if journal.readonly:
        return
    apply(steps, execute, journal)
    journal.unfinished = None  # a step that a killed run left has been done or is not needed any more
    if given["state"] == "absent":
        steady.forget(journal)
