# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads pages of docs/ for the tests that compare them with the code."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterable

HOME = pathlib.Path(__file__).parents[2]


def rows(page: str, name: str) -> list[list[str]]:
    """The cells of the table between the marks with this name on a page, without the header."""
    lines = page.partition(f"<!-- {name} -->")[2].partition(f"<!-- /{name} -->")[0].strip().splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def named_tests(cells: Iterable[str]) -> list[pathlib.Path]:
    """The integration test that each of the cells names."""
    found = []
    for cell in cells:
        name, = re.findall(r"`(\w+\.py)`", cell)
        found.append(HOME / "tests" / "integration" / name)
    return found
