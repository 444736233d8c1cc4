# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The suggestions of messages for misspelt words."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import nearest
from ansible_collections.gpuops.nvidia.plugins.module_utils._mig.profile_names import nearest_of

PLUGINS = Path(__file__).parents[3] / "plugins"


@pytest.mark.parametrize(("word", "cutoff", "meant"), [
    ("verison", 0.6, "version"), ("VERSION", 1.0, "version"), ("envs", 0.6, "env"), ("x", 0.6, ""), ("", 0.6, ""),
    ("verison", 0.9, ""), ("versionsversions", 0.5, "version")])
def test_the_word_that_is_meant(word: str, cutoff: float, meant: str) -> None:
    assert nearest(word, ["image", "version", "env"], cutoff) == meant
    assert nearest(word, [], cutoff) == ""


def test_a_long_word_takes_no_time() -> None:
    began = time.process_time()
    assert nearest_of("1g.10gb" * 30_000, [f"{number}g.10gb" * 9 for number in range(100)])
    assert time.process_time() - began < 2


def test_one_function_compares_words() -> None:
    assert [str(path.relative_to(PLUGINS)) for path in sorted(PLUGINS.rglob("*.py"))
            if "import difflib" in path.read_text(encoding="utf-8")] == ["module_utils/_errors.py"]
