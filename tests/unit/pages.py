# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Pages of docs/ as tests read them, which hold them to the code."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterable

HOME = pathlib.Path(__file__).parents[2]


def rows(page: str, name: str) -> list[list[str]]:
    """The cells of the table between a page's marks of this name, without its head."""
    lines = page.partition(f"<!-- {name} -->")[2].partition(f"<!-- /{name} -->")[0].strip().splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def named_tests(cells: Iterable[str]) -> list[pathlib.Path]:
    """The integration test that each cell names."""
    found = []
    for cell in cells:
        name, = re.findall(r"`(\w+\.py)`", cell)
        found.append(HOME / "tests" / "integration" / name)
    return found
