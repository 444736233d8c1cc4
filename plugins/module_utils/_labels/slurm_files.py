# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The GPUs of this host in Slurm's gres.conf: a file of our own that it includes. PRIVATE to the collection.

Of C(gres.conf) only the line C(Include) is ours: everything else in it stays, and a removal takes out this line alone.
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
_PAIR = re.compile(r"\b(\w+)\s*=\s*(\S+)")  # from the beginning of a word alone: else it takes quadratic time
_LINE = re.compile(r"(?:.*\\\n)*.*")
_NUMBER = re.compile(r"[0-9]{1,18}\Z")
_RANGES = re.compile(r"\[([^\]]*)\]")


class SlurmFiles:
    """The two files under a journal (concern C(slurm)).

    folder: where slurm.conf lies; exists: whether a device file is there.
    """

    def __init__(self, journal: Journal, folder: str = FOLDER,
                 exists: t.Callable[[str], bool] = os.path.exists) -> None:
        self.journal = journal
        self.exists = exists
        folder = os.path.realpath(folder)  # one name for one folder: what is written in another one goes
        self.conf = os.path.join(folder, _CONF)
        self.ours = os.path.join(folder, _OURS)

    def read(self) -> t.List[str]:
        """Our lines as they are now, without the header; none where there is no file."""
        return (read_text(self.ours) or "").splitlines()[1:]

    def plan_present(self, lines: t.Sequence[str], node: str) -> t.List[Step]:
        """Steps where the files do not say this. Raises HostError, before anything is changed, where others describe
        this node's GPUs, a device file is missing or a file cannot be written."""
        if lines and not os.path.isdir(os.path.dirname(self.conf)):
            raise HostError(f"{os.path.dirname(self.conf)} is not there.",
                            "Install Slurm first, or name the folder of its slurm.conf: slurm_folder. Where nodes get "
                            "their configuration from slurmctld, use state gathered and put slurm.lines there.",
                            path=self.conf)
        if os.path.islink(self.conf) and not os.path.exists(self.conf):
            raise HostError(f"{self.conf} is a link to {os.path.realpath(self.conf)}, which is not there.",
                            "Make that file (it may be on a file system that is not mounted), or remove the link.",
                            path=self.conf)
        conf = read_text(self.conf) or ""
        steps = []
        if lines != self.read() or (read_text(self.ours) is None and lines):
            steps.append(Step(WRITE, self.ours, "its devices are not those of the host",
                              data={"text": _HEADER + "".join(f"{line}\n" for line in lines)}))
        if lines and not _includes(conf, self.ours):
            steps.append(Step(INCLUDE, self.conf, f"it does not include {self.ours}"))
        self._check(lines, node)
        steps += self._removal("slurm_folder is another one now", os.path.dirname(self.conf))
        for step in steps:
            check_writable(step.target)
        return steps

    def plan_absent(self) -> t.List[Step]:
        """Steps where something of ours is still there, in whatever folder."""
        return self._removal("it was written by this collection")

    def _removal(self, why: str, but: str = "") -> t.List[Step]:
        """In all folders but one; first the lines, so that Slurm finds whole files in between."""
        kept = [path for path in self.journal.of_kind("file") if os.path.dirname(path) != but]
        return [Step(action, path, why) for action, name in ((DROP, _CONF), (REMOVE, _OURS)) for path in kept
                if os.path.basename(path) == name]

    def execute(self, step: Step) -> None:
        """Runs a step of the plans."""
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
            self.journal.forget("file", step.target)  # what is left is somebody else's
        else:
            self.journal.restore_file(step.target)

    def _theirs(self, path: str, seen: t.Set[str]) -> t.Iterator[t.Tuple[str, int, str]]:
        """(file, number, line) of a file and of what it includes, but for files that were seen."""
        seen.add(path)
        for number, line in _lines(read_text(path) or ""):
            more = os.path.join(os.path.dirname(self.conf), _included(line))
            if not _included(line):
                yield path, number, line
            elif more not in seen:
                yield from self._theirs(more, seen)

    def _check(self, lines: t.Sequence[str], node: str) -> None:
        for path, number, line in self._theirs(self.conf, {self.ours}) if lines else ():
            pairs = {key.lower(): value for key, value in _PAIR.findall(line)}
            if pairs.get("name", "").lower() == "gpu" and matches(pairs.get("nodename"), node):
                raise HostError(f"{path} describes GPUs of {node} already, in line {number}: "
                                f"{' '.join(line.split())[:200]}",
                                "Remove this line, or leave the target slurm; both would count GPUs twice.",
                                path=path)
        missing = [path for line in lines if not line.startswith("#")
                   for path in line.rpartition("=")[2].split(",") if not self.exists(path)]
        if missing:
            raise HostError(f"{', '.join(missing[:4])}: no such device file, and slurmd does not start without it.",
                            "Make them: nvidia-modprobe -c 0 -u, for MIG nvidia-modprobe -f FILE of each in "
                            "/proc/driver/nvidia/capabilities.", path=missing[0])


def _lines(text: str) -> t.Iterator[t.Tuple[int, str]]:
    """(number, line) without comments; a backslash at the end goes on with the next line."""
    for match in _LINE.finditer(text):
        line = match[0].replace("\\\n", " ").partition("#")[0].strip()
        if line:
            yield text.count("\n", 0, match.start()) + 1, line


def _included(line: str) -> str:
    """The file that a line includes, empty where it does not."""
    words = line.split()
    return words[1] if len(words) > 1 and words[0].lower() == "include" else ""


def _includes(text: str, path: str) -> bool:
    return any(_included(line) == path for _number, line in _lines(text))


def matches(names: str | None, node: str) -> bool:
    """Whether a NodeName of Slurm, such as C(gpu[1-4,7],login), means a node; a line without one means every node."""
    return names is None or any(_matches(name, node) for name in re.split(r",(?![^\[]*\])", names))


def _matches(name: str, node: str) -> bool:
    ranges = _RANGES.findall(name)
    pattern = "([0-9]+)".join(re.escape(part) for part in _RANGES.split(name)[::2])
    found = re.fullmatch(pattern, node)
    return found is not None and all(_within(number, allowed) for number, allowed in zip(found.groups(), ranges))


def _within(number: str, allowed: str) -> bool:
    for part in allowed.split(","):
        first, _dash, last = part.partition("-")
        # Digits count: 01 is in [01-12] and not in [1-12].
        last = last or first
        if not (_NUMBER.match(first) and _NUMBER.match(last)):
            continue
        if len(first) <= len(number) <= len(last) and int(first) <= int(number) <= int(last):
            return True
    return False
