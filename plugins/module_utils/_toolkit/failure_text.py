# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Why a program failed, from what it printed. Pure. PRIVATE to the collection."""

from __future__ import annotations

import re
import typing as t

_NOISE = re.compile(r"level=(warning|info|debug)\b")
# What Go prints before the calls that led there.
_CRASH = re.compile(r"^(?:panic|fatal error): (.+?)(?: \[recovered\])?$", re.MULTILINE)


def words_of(answer: t.Mapping[str, t.Any], most: int = 3) -> str:
    """The last lines that say something, or how it ended.

    answer: C({rc, stderr}), and C(journal), what its unit said last, where that was read. most: number of lines.
    """
    for where, text in (("", answer["stderr"]), ("its journal says: ", answer.get("journal", ""))):
        crashes = _CRASH.findall(text)
        if crashes:
            return f"{where}it crashes: {crashes[-1]}"
        lines = [line.strip() for line in text.splitlines() if line.strip() and not _NOISE.search(line)]
        if lines:
            return where + " / ".join(lines[-most:]).rstrip(".")
    rc = answer["rc"]
    return f"it printed nothing and {f'was killed by signal {-rc}' if rc < 0 else f'ended with {rc}'}"
