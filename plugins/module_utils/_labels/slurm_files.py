# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A file with the GPUs of a host, which Slurm's gres.conf includes. PRIVATE to the collection.

In `gres.conf`, only the line `Include` is ours. Everything else in it stays, and a removal removes only this line.
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
_CONF, _OURS = "gres.conf", "gpuops-gres.conf"
WRITE, REMOVE = "write gres file", "remove gres file"
INCLUDE, DROP = "include gres file", "drop include of gres file"
_HEADER = "# Written by gpuops.nvidia.gpu_labels, which writes it anew. Your own lines belong into gres.conf.\n"
_PAIR = re.compile(r"\b(\w+)\s*=\s*(\S+)")  # \b: otherwise it takes quadratic time
_LINE = re.compile(r"(?:.*\\\n)*.*")
_NUMBER = re.compile(r"[0-9]{1,18}\Z")
_RANGES = re.compile(r"\[([^\]]*)\]")


class SlurmFiles:
    """The two files, with the journal of the concern `slurm`. folder: that of slurm.conf; exists: whether a device file
    exists."""

    def __init__(self, journal: Journal, folder: str = FOLDER,
                 exists: t.Callable[[str], bool] = os.path.exists) -> None:
        self.journal = journal
        self.exists = exists
        folder = os.path.realpath(folder)  # the journal compares paths
        self.conf = os.path.join(folder, _CONF)
        self.ours = os.path.join(folder, _OURS)

    def read(self) -> t.List[str]:
        """The current lines of our file, without the header; none if there is no file."""
        return (read_text(self.ours) or "").splitlines()[1:]

    def plan_present(self, lines: t.Sequence[str], node: str) -> t.List[Step]:
        """The steps that write these lines. Raises HostError if another file describes the GPUs of the node, a device
        file is missing, or a file cannot be written."""
        if lines and not os.path.isdir(os.path.dirname(self.conf)):
            raise HostError(f"{os.path.dirname(self.conf)} does not exist.",
                            "Install Slurm first, or set slurm_folder to the folder of its slurm.conf. If nodes get "
                            "their configuration from slurmctld, use state gathered and add slurm.lines there.",
                            path=self.conf)
        if os.path.islink(self.conf) and not os.path.exists(self.conf):
            raise HostError(f"{self.conf} is a link to {os.path.realpath(self.conf)}, which does not exist.",
                            "Create that file (its file system may not be mounted), or remove the link.",
                            path=self.conf)
        conf = read_text(self.conf) or ""
        steps = []
        if lines != self.read() or (read_text(self.ours) is None and lines):
            steps.append(Step(WRITE, self.ours, "its devices differ from those of the host",
                              data={"text": _HEADER + "".join(f"{line}\n" for line in lines)}))
        if lines and not _includes(conf, self.ours):
            steps.append(Step(INCLUDE, self.conf, f"it does not include {self.ours}"))
        self._check(lines, node)
        steps += self._removal("slurm_folder has changed", os.path.dirname(self.conf))
        for step in steps:
            check_writable(step.target)
        return steps

    def plan_absent(self) -> t.List[Step]:
        """The steps that remove our file and line, in all folders."""
        return self._removal("this collection has written it")

    def _removal(self, why: str, but: str = "") -> t.List[Step]:
        """The steps of a removal, except in one folder. The lines come first, so that Slurm never misses a file."""
        kept = [path for path in self.journal.of_kind("file") if os.path.dirname(path) != but]
        return [Step(action, path, why) for action, name in ((DROP, _CONF), (REMOVE, _OURS)) for path in kept
                if os.path.basename(path) == name]

    def execute(self, step: Step) -> None:
        """Executes a step."""
        if step.action == WRITE:
            self.journal.write_file(self.ours, step.data["text"].encode())
        elif step.action == INCLUDE:
            conf = read_text(self.conf) or ""
            gap = "\n" if conf and not conf.endswith("\n") else ""
            self.journal.write_file(self.conf, f"{conf}{gap}Include {self.ours}\n".encode())
        elif step.action == DROP and self.journal.file_is(step.target) == "edited":
            text = read_text(step.target)
            if text is not None:
                ours = os.path.join(os.path.dirname(step.target), _OURS)
                rest = "".join(line for line in text.splitlines(keepends=True) if not _includes(line, ours))
                self.journal.write_file(step.target, rest.encode())
            self.journal.forget("file", step.target)  # the rest is foreign
        else:
            self.journal.restore_file(step.target)

    def _foreign_lines(self, path: str, visited: t.Set[str]) -> t.Iterator[t.Tuple[str, int, str]]:
        """(file, number, line) of a file and of files that it includes, without visited ones."""
        visited.add(path)
        for number, line in _lines(read_text(path) or ""):
            more = os.path.join(os.path.dirname(self.conf), _included(line))
            if not _included(line):
                yield path, number, line
            elif more not in visited:
                yield from self._foreign_lines(more, visited)

    def _check(self, lines: t.Sequence[str], node: str) -> None:
        for path, number, line in self._foreign_lines(self.conf, {self.ours}) if lines else ():
            pairs = {key.lower(): value for key, value in _PAIR.findall(line)}
            if pairs.get("name", "").lower() == "gpu" and matches(pairs.get("nodename"), node):
                raise HostError(f"{path} already describes GPUs of {node}, in line {number}: "
                                f"{' '.join(line.split())[:200]}",
                                "Remove this line, or do not use the target slurm: with both, GPUs are counted twice.",
                                path=path)
        missing = [path for line in lines if not line.startswith("#")
                   for path in line.rpartition("=")[2].split(",") if not self.exists(path)]
        if missing:
            raise HostError(f"{', '.join(missing[:4])}: no such device file, and slurmd does not start without it.",
                            "Create them: nvidia-modprobe -c 0 -u; for MIG, nvidia-modprobe -f FILE for each file in "
                            "/proc/driver/nvidia/capabilities.", path=missing[0])


def _lines(text: str) -> t.Iterator[t.Tuple[int, str]]:
    """(number, line) without comments; a backslash at the end continues a line."""
    for match in _LINE.finditer(text):
        line = match[0].replace("\\\n", " ").partition("#")[0].strip()
        if line:
            yield text.count("\n", 0, match.start()) + 1, line


def _included(line: str) -> str:
    """The file that a line includes, empty if it includes none."""
    words = line.split()
    return words[1] if len(words) > 1 and words[0].lower() == "include" else ""


def _includes(text: str, path: str) -> bool:
    return any(_included(line) == path for _number, line in _lines(text))


def matches(names: str | None, node: str) -> bool:
    """Whether a NodeName of Slurm such as `gpu[1-4,7],login` contains a node. A line without one is for all nodes."""
    return names is None or any(_matches(name, node) for name in re.split(r",(?![^\[]*\])", names))


def _matches(name: str, node: str) -> bool:
    ranges = _RANGES.findall(name)
    pattern = "([0-9]+)".join(re.escape(part) for part in _RANGES.split(name)[::2])
    found = re.fullmatch(pattern, node)
    return found is not None and all(_within(number, allowed) for number, allowed in zip(found.groups(), ranges))


def _within(number: str, allowed: str) -> bool:
    for part in allowed.split(","):
        first, _dash, last = part.partition("-")
        # Leading zeros count: 01 is in [01-12], but not in [1-12].
        last = last or first
        if not (_NUMBER.match(first) and _NUMBER.match(last)):
            continue
        if len(first) <= len(number) <= len(last) and int(first) <= int(number) <= int(last):
            return True
    return False
