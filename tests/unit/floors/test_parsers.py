# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""No input ends in a traceback or takes long. A longer run: tests/fuzz/README.md."""

from __future__ import annotations

import typing as t

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz import parsers
from tests.fuzz.__main__ import main

# Of the processor, for one input while the coverage of branches is measured.
SECONDS = 20.0


@pytest.mark.parametrize("name", parsers.TARGETS)
def test_former_failures(name: str) -> None:
    for one in parsers.corpus(name):
        assert parsers.once(name, one, SECONDS) in ("read", "refused")


@pytest.mark.parametrize("name", parsers.TARGETS)
@settings(max_examples=15, suppress_health_check=list(HealthCheck))
@given(chance=st.data())
def test_inputs_by_chance(name: str, chance: t.Any) -> None:
    parsers.once(name, chance.draw(parsers.TARGETS[name].inputs), SECONDS)


def test_the_program_counts_what_it_has_tried(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--parser", next(iter(parsers.TARGETS)), "--count", "5", "--round", "5"]) == 0
    assert capsys.readouterr().out.endswith("5 inputs, 0 parsers failed\n")
