# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Counts the Xids that the driver has written to the kernel log since boot. PRIVATE to the collection.

A line begins with C(NVRM: Xid (PCI:0000:3b:00): 79, ), of a GPU instance with C(NVRM: Xid (PCI:0000:3b:00 GPU-I:05):),
of older drivers without C(PCI:) (NVIDIA Xid Errors). What follows may contain the name of a process, which any user can
choose, so only the beginning of a message counts.
"""

from __future__ import annotations

import datetime
import errno
import os
import re
import time
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import CommandError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Fact, Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Runner

# The most rows of the fact, and the highest number that is read.
MOST_ROWS, HIGHEST = 1000, 9999
_KMSG = "/dev/kmsg"
# The most lines of the journal and bytes of /dev/kmsg that are read, and seconds for the journal. The kernel's buffer
# usually has 0.25 to 16 MiB.
_LINES, _BYTES, _TIMEOUT = 10_000, 32 * 2**20, 20.0
_XID = (r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(?:\.[0-7])?(?: [^)\n]{1,64})?\): "
        r"([0-9]{1,4})(?![0-9])")
# journalctl --output=short-unix: seconds, host, identifier. Further lines of a message are indented.
_JOURNAL = re.compile(rf"^([0-9]{{1,12}})\.[0-9]+ \S+ kernel: {_XID}", re.MULTILINE)
# Kernel documentation, ABI/testing/dev-kmsg: priority, sequence, microseconds, flags. Further lines are indented.
_RECORD = re.compile(rf"^[0-9]+,[0-9]+,([0-9]{{1,18}}),[^;\n]*;{_XID}", re.MULTILINE)


class Xid(t.NamedTuple):
    """One Xid. seconds: when, since the epoch."""

    pci: str
    number: int
    seconds: int


def read_xids(root: Root, run: Runner) -> list[Fact] | None:
    """The fact C(xids) of gpu_info, sorted by GPU and number; None if the kernel log cannot be read.

    The journal goes back to the boot, the buffer of the kernel only as far as it reaches. It is read if the journal has
    no Xid, because not every host keeps messages of the kernel in its journal.
    """
    found = from_journal(run)
    if not found:
        buffer = from_buffer(root, time.time() - time.monotonic())
        found = found if buffer is None else buffer
    if found is None:
        return None
    rows: dict[t.Tuple[str, int], Fact] = {}
    for xid in sorted(found, key=lambda one: one.seconds):
        row = rows.setdefault((xid.pci, xid.number), {"pci": xid.pci, "xid": xid.number, "count": 0,
                                                      "first": _utc(xid.seconds)})
        row.update(count=row["count"] + 1, last=_utc(xid.seconds))
    return [rows[key] for key in sorted(rows)][:MOST_ROWS]


def from_journal(run: Runner) -> list[Xid] | None:
    """The Xids in the journal since boot, at most the last 10000; None if it cannot be searched.

    A systemd that was built without PCRE2 has no C(--grep).
    """
    try:
        done = run(["journalctl", "--dmesg", "--boot", "--quiet", "--no-pager", "--output=short-unix",
                    f"--lines={_LINES}", "--grep=^NVRM: Xid"], timeout=_TIMEOUT, check=False)
    except CommandError:  # it took too long
        return None
    # Without a match, its exit code is 1 and it prints nothing.
    if done.rc != 0 and (done.rc != 1 or done.stderr.strip()):
        return None
    return _xids(_JOURNAL, done.stdout, int)


def from_buffer(root: Root, booted: float) -> list[Xid] | None:
    """The Xids in the buffer of the kernel; None if this user may not read it. booted: seconds since the epoch."""
    try:
        handle = os.open(root.at(_KMSG), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    text, size = [], 0
    try:
        while size < _BYTES:
            data = _record(handle)
            if not data:
                break
            size += len(data)
            text.append(data)
    finally:
        os.close(handle)
    return _xids(_RECORD, b"".join(text).decode("utf-8", "replace"), lambda text: int(booted + int(text) / 10**6))


def _record(handle: int) -> bytes:
    """The next record of /dev/kmsg, empty at the end."""
    while True:
        try:
            return os.read(handle, 8192)  # the longest record; with a smaller buffer, the read would fail
        except OSError as error:
            if error.errno != errno.EPIPE:  # the next record has been overwritten meanwhile
                return b""


def _xids(pattern: t.Pattern[str], text: str, seconds: t.Callable[[str], int]) -> list[Xid]:
    return [Xid(f"{int(domain, 16):04x}:{bus.lower()}:{device.lower()}.0", int(number), seconds(when))
            for when, domain, bus, device, number in pattern.findall(text)]


def _utc(seconds: int) -> str:
    """A time such as C(2026-11-27T20:01:02Z)."""
    try:
        return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, OSError, ValueError):  # a clock that was never set
        return "1970-01-01T00:00:00Z"
