# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Xids in the kernel log: the lines of drivers, and lines that only look like them."""

from __future__ import annotations

import os
import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import CommandError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts import xids
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Completed
from ansible_collections.gpuops.nvidia.tests.unit.facts import trees

NOW = "2023-11-14T22:13:20Z"


class Journal:
    """A journalctl with this answer."""

    def __init__(self, text: str = "", rc: int = 0, stderr: str = "") -> None:
        self.text, self.rc, self.stderr = text, rc, stderr

    def __call__(self, argv: t.Sequence[str], *, timeout: float = 60, check: bool = True, stdin: str | None = None,
                 env: t.Mapping[str, str] | None = None, hint: str = "") -> Completed:
        if self.rc < 0:
            raise CommandError(argv, None, "", "", hint)
        return Completed(tuple(argv), self.rc, self.text, self.stderr)


NONE, BROKEN = Journal(rc=1), Journal(rc=1, stderr="Compiled without pattern matching support")


def read(root: Path, text: str) -> list[dict[str, t.Any]] | None:
    return xids.read_xids(Root(str(root)), Journal(text))


def line(message: str, seconds: int = 1700000000) -> str:
    return f"{seconds}.000001 gpu-1 kernel: {message}\n"


@pytest.mark.parametrize(("message", "pci", "number"), [
    ("NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.", "0000:3b:00.0",
     79),
    ("NVRM: Xid (0000:03:00): 14, Channel 00000001", "0000:03:00.0", 14),
    ("NVRM: Xid (PCI:0000:3B:00.0): 119, Timeout", "0000:3b:00.0", 119),
    ("NVRM: Xid (PCI:0000:1a:00 GPU-I:05): 43, pid=7", "0000:1a:00.0", 43),
    ("NVRM: Xid (PCI:0000:1a:00 GPU-I:05 GPU-CI:00): 43, pid=7", "0000:1a:00.0", 43),
    ("NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6)", "0018:01:00.0", 149),
    ("NVRM: Xid (PCI:00000009:01:00): 31, x", "0009:01:00.0", 31),
])
def test_lines_of_drivers(tmp_path: Path, message: str, pci: str, number: int) -> None:
    assert read(tmp_path, line(message)) == [{"pci": pci, "xid": number, "count": 1, "first": NOW, "last": NOW}]


@pytest.mark.parametrize("text", [
    line("python3[7]: segfault NVRM: Xid (PCI:0000:3b:00): 79, x"),
    line("audit: comm=\"NVRM: Xid (PCI:0000:3b:00): 79, \""),
    "1700000000.000001 gpu-1 sudo[7]: NVRM: Xid (PCI:0000:3b:00): 79, x\n",
    line("audit: name=a") + "                           NVRM: Xid (PCI:0000:3b:00): 79, the next line of a message\n",
    line("NVRM: Xid (PCI:0000:3b:00): 99999, x"), line("NVRM: Xid (PCI:zz00:3b:00): 79, x"),
    line("NVRM: Xid (PCI:0000:3b:00): , x"), line("NVRM: Xid (PCI:0000:3b:00 " + "a" * 100 + "): 79, x"),
    line("NVRM: Xid (PCI:0000:3b:00: 79, x"), "[123B blob data]\n", "\x00\x1b[31m",
])
def test_lines_that_are_none(tmp_path: Path, text: str) -> None:
    """Another program's line, a process's name, a further line of a message, damaged lines."""
    assert read(tmp_path, text) == []


def test_only_the_beginning_of_a_line_counts(tmp_path: Path) -> None:
    found = read(tmp_path, line("NVRM: Xid (PCI:0000:3b:00): 31, pid=7, name=NVRM: Xid (PCI:0000:5e:00): 79, x"))
    assert found and [(one["pci"], one["xid"]) for one in found] == [("0000:3b:00.0", 31)]


def test_counts_and_times(tmp_path: Path) -> None:
    """By GPU and number; journalctl may print the newest line first."""
    lines = [line(f"NVRM: Xid (PCI:0000:{bus}:00): {number}, x", 1700000000 + second)
             for second, (bus, number) in enumerate([("5e", 31), ("3b", 79), ("3b", 31), ("3b", 31), ("3b", 31)])]
    found = read(tmp_path, "".join(reversed(lines))) or []
    assert [(one["pci"], one["xid"], one["count"]) for one in found] == [
        ("0000:3b:00.0", 31, 3), ("0000:3b:00.0", 79, 1), ("0000:5e:00.0", 31, 1)]
    assert (found[0]["first"], found[0]["last"]) == ("2023-11-14T22:13:22Z", "2023-11-14T22:13:24Z")


def test_times_of_a_clock_that_is_wrong(tmp_path: Path) -> None:
    found = read(tmp_path, line("NVRM: Xid (PCI:0000:3b:00): 79, x", 999999999999)) or []
    assert found[0]["first"] == "1970-01-01T00:00:00Z"


def test_the_fact_is_bounded(tmp_path: Path) -> None:
    text = "".join(line(f"NVRM: Xid (PCI:{number:04x}:3b:00): 79, x") for number in range(xids.MOST_ROWS + 7))
    assert len(read(tmp_path, text) or ()) == xids.MOST_ROWS


RECORD = "3,7,5000000,-;NVRM: Xid (PCI:0000:3b:00): 79, x\n SUBSYSTEM=pci\n"


@pytest.mark.parametrize(("journal", "records", "expected"), [
    (NONE, None, []), (BROKEN, None, None), (Journal(rc=127, stderr="not found"), None, None),
    (Journal(rc=-1), None, None),
    (NONE, RECORD, 1), (BROKEN, RECORD, 1), (Journal(rc=-1), RECORD, 1), (BROKEN, "", []),
    (NONE, "6,1,1,-;x\n NVRM: Xid (PCI:0000:3b:00): 79, x\n", []), (NONE, "x;" + RECORD, []),
])
def test_where_it_is_read(tmp_path: Path, journal: Journal, records: str | None, expected: t.Any) -> None:
    """The journal, otherwise the buffer of the kernel."""
    if records is not None:
        trees.put(tmp_path, "/dev/kmsg", records)
    found = xids.read_xids(Root(str(tmp_path)), journal)
    assert (len(found) if found else found) == expected


def test_time_of_a_record(tmp_path: Path) -> None:
    trees.put(tmp_path, "/dev/kmsg", RECORD)
    found = xids.from_buffer(Root(str(tmp_path)), 1700000000.0)
    assert found == [xids.Xid("0000:3b:00.0", 79, 1700000005)]


def test_overwritten_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device gives one record per read, fails once with EPIPE, and with EAGAIN after the last record."""
    answers: list[bytes | OSError] = [RECORD.encode(), BrokenPipeError(32, "x"), RECORD.encode(),
                                      BlockingIOError(11, "x")]

    def give(_handle: int, size: int) -> bytes:
        assert size >= 8192
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr(os, "read", give)
    trees.put(tmp_path, "/dev/kmsg", "")
    found = xids.from_buffer(Root(str(tmp_path)), 0)
    assert found is not None and len(found) == 2
