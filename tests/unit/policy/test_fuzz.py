# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Random documents never end in a traceback. A longer run: C(python -m tests.fuzz --parser policies)."""

from __future__ import annotations

import collections
import pathlib

from tests import fuzz

DOCUMENTS = 2000


def test_documents_by_chance(tmp_path: pathlib.Path) -> None:
    counts: collections.Counter[str] = collections.Counter()
    for number in range(DOCUMENTS):
        try:
            counts[fuzz.once(number, tmp_path)] += 1
        except Exception as error:
            raise AssertionError(f"document {number}") from error
    assert set(counts) == {"read", "refused"}
    assert min(counts.values()) > DOCUMENTS // 5, f"both ends are to be tried: {counts}"


def test_the_same_number_gives_the_same_document() -> None:
    def made(number: int) -> bytes:
        return fuzz.text(fuzz.random.Random(number))

    assert made(7) == made(7) != made(8)
