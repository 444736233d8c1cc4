# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The file with the GPUs of a host, which Slurm's gres.conf includes. PRIVATE to the collection.

In `gres.conf`, only the line `Include` is owned. A removal removes only this line.
"""

from __future__ import annotations

import os
import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._files import check_writable, read_text
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step

FOLDER = "/etc/slurm"
_GRES_CONF, _OUR_FILE = "gres.conf", "gpuops-gres.conf"
WRITE, REMOVE = "write gres file", "remove gres file"
INCLUDE, EXCLUDE = "include gres file", "remove include of gres file"
_HEADER = "# Written by gpuops.nvidia.gpu_labels. Changes are overwritten. Add your own lines to gres.conf.\n"
_KEY_VALUE = re.compile(r"\b(\w+)\s*=\s*(\S+)")  # without \b, the search takes quadratic time
_LOGICAL_LINE = re.compile(r"(?:.*\\\n)*.*")
_NUMBER = re.compile(r"[0-9]{1,18}\Z")
_RANGES = re.compile(r"\[([^\]]*)\]")


class SlurmFiles:
    """The two files and their journal, whose concern is `slurm`. folder: the folder of slurm.conf; exists: returns
    whether a device file exists."""

    def __init__(self, journal: Journal, folder: str = FOLDER,
                 exists: t.Callable[[str], bool] = os.path.exists) -> None:
        self.journal = journal
        self.exists = exists
        folder = os.path.realpath(folder)  # the journal compares paths
        self.conf = os.path.join(folder, _GRES_CONF)
        self.ours = os.path.join(folder, _OUR_FILE)

    def read(self) -> t.List[str]:
        """The current lines of our file, without the header; empty if there is no file."""
        return (read_text(self.ours) or "").splitlines()[1:]

    def plan_present(self, lines: t.Sequence[str], node: str) -> t.List[Step]:
        """The steps that write these lines.

        Raises HostError if another file describes the GPUs of the node, a device file is missing, or a file cannot be
        written.
        """
        if lines and not os.path.isdir(os.path.dirname(self.conf)):
            raise HostError(f"{os.path.dirname(self.conf)} does not exist.",
                            "Install Slurm first, or set slurm_folder to the folder of slurm.conf. If nodes get "
                            "their configuration from slurmctld, use state gathered and add slurm.lines there.",
                            path=self.conf)
        if os.path.islink(self.conf) and not os.path.exists(self.conf):
            raise HostError(f"{self.conf} is a link to {os.path.realpath(self.conf)}, which does not exist.",
                            "Create this file (its file system may not be mounted), or remove the link.",
                            path=self.conf)
        conf = read_text(self.conf) or ""
        steps = []
        if lines != self.read() or (read_text(self.ours) is None and lines):
            steps.append(Step(WRITE, self.ours, "its devices differ from those of the host",
                              data={"text": _HEADER + "".join(f"{line}\n" for line in lines)}))
        if lines and not _includes(conf, self.ours):
            steps.append(Step(INCLUDE, self.conf, f"it does not include {self.ours}"))
        self._check_conflicts(lines, node)
        steps += self._removal("slurm_folder has changed", os.path.dirname(self.conf))
        for step in steps:
            check_writable(step.target)
        return steps

    def plan_absent(self) -> t.List[Step]:
        """The steps that remove our file and our line, in all folders."""
        return self._removal("this collection has written it")

    def _removal(self, reason: str, excluded_folder: str = "") -> t.List[Step]:
        """The steps of a removal. Lines are removed first, so that Slurm does not include a missing file."""
        owned = [path for path in self.journal.of_kind("file") if os.path.dirname(path) != excluded_folder]
        return [Step(action, path, reason) for action, name in ((EXCLUDE, _GRES_CONF), (REMOVE, _OUR_FILE))
                for path in owned if os.path.basename(path) == name]

    def execute(self, step: Step) -> None:
        """Executes a step."""
        if step.action == WRITE:
            self.journal.write_file(self.ours, step.data["text"].encode())
        elif step.action == INCLUDE:
            conf = read_text(self.conf) or ""
            line_end = "\n" if conf and not conf.endswith("\n") else ""
            self.journal.write_file(self.conf, f"{conf}{line_end}Include {self.ours}\n".encode())
        elif step.action == EXCLUDE and self.journal.file_is(step.target) == "edited":
            text = read_text(step.target)
            if text is not None:
                ours = os.path.join(os.path.dirname(step.target), _OUR_FILE)
                rest = "".join(line for line in text.splitlines(keepends=True) if not _includes(line, ours))
                self.journal.write_file(step.target, rest.encode())
            self.journal.forget("file", step.target)  # the rest of the file is foreign
        else:
            self.journal.restore_file(step.target)

    def _foreign_lines(self, path: str, visited: t.Set[str]) -> t.Iterator[t.Tuple[str, int, str]]:
        """(file, line number, line) of a file and of the files that it includes, except visited files."""
        visited.add(path)
        for number, line in _lines(read_text(path) or ""):
            included = os.path.join(os.path.dirname(self.conf), _included(line))
            if not _included(line):
                yield path, number, line
            elif included not in visited:
                yield from self._foreign_lines(included, visited)

    def _check_conflicts(self, lines: t.Sequence[str], node: str) -> None:
        for path, number, line in self._foreign_lines(self.conf, {self.ours}) if lines else ():
            pairs = {key.lower(): value for key, value in _KEY_VALUE.findall(line)}
            if pairs.get("name", "").lower() == "gpu" and matches(pairs.get("nodename"), node):
                raise HostError(f"{path} already describes GPUs of {node}, in line {number}: "
                                f"{' '.join(line.split())[:200]}",
                                "Remove this line, or do not use the target slurm. With both, Slurm counts GPUs twice.",
                                path=path)
        missing = [path for line in lines if not line.startswith("#")
                   for path in line.rpartition("=")[2].split(",") if not self.exists(path)]
        if missing:
            raise HostError(f"Missing device files: {', '.join(missing[:4])}. slurmd does not start without them.",
                            "Create them with nvidia-modprobe -c 0 -u; for MIG, with nvidia-modprobe -f FILE for each "
                            "file in /proc/driver/nvidia/capabilities.", path=missing[0])


def _lines(text: str) -> t.Iterator[t.Tuple[int, str]]:
    """(line number, line) of a text, without comments. A backslash at the end continues a line."""
    for match in _LOGICAL_LINE.finditer(text):
        line = match[0].replace("\\\n", " ").partition("#")[0].strip()
        if line:
            yield text.count("\n", 0, match.start()) + 1, line


def _included(line: str) -> str:
    """The file that a line includes; empty if it includes no file."""
    words = line.split()
    return words[1] if len(words) > 1 and words[0].lower() == "include" else ""


def _includes(text: str, path: str) -> bool:
    return any(_included(line) == path for _number, line in _lines(text))


def matches(names: str | None, node: str) -> bool:
    """Whether a NodeName of Slurm such as `gpu[1-4,7],login` contains a node. None means all nodes."""
    return names is None or any(_matches(name, node) for name in re.split(r",(?![^\[]*\])", names))


def _matches(name: str, node: str) -> bool:
    ranges = _RANGES.findall(name)
    pattern = "([0-9]+)".join(re.escape(part) for part in _RANGES.split(name)[::2])
    match = re.fullmatch(pattern, node)
    return match is not None and all(_within(number, allowed) for number, allowed in zip(match.groups(), ranges))


def _within(number: str, allowed: str) -> bool:
    for part in allowed.split(","):
        first, _dash, last = part.partition("-")
        # Leading zeros are significant: 01 is in [01-12], but not in [1-12].
        last = last or first
        if not (_NUMBER.match(first) and _NUMBER.match(last)):
            continue
        if len(first) <= len(number) <= len(last) and int(first) <= int(number) <= int(last):
            return True
    return False
