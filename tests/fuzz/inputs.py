# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Defines a fuzz target, and the inputs that many targets share."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import GpuopsError
from hypothesis import strategies as st

Choice = TypeVar("Choice")
_DEEP = 6  # lists and mappings within each other


class Target(NamedTuple):
    """A fuzz target. inputs: random inputs; act: parses one, and raises only the error by which the parser refuses an
    input."""

    inputs: st.SearchStrategy[Any]
    act: Callable[[Any], object]
    refuses: type[Exception] = GpuopsError


class Tape:
    """Choices that are read from bytes; the first choice each time when no bytes are left.

    Hypothesis draws all bytes at once. Drawing each choice separately takes ten times as long, and so does shrinking.
    """

    def __init__(self, content: bytes) -> None:
        self._content = iter(content)

    def below(self, count: int) -> int:
        """A number from 0 up to, but not including, count."""
        return int.from_bytes(islice(self._content, 1 if count <= 256 else 4), "big") % count

    def of(self, choices: Sequence[Choice]) -> Choice:
        """One of the choices."""
        return choices[self.below(len(choices))]

    def text(self, most: int) -> str:
        """Any characters except surrogates, which UTF-8 does not have."""
        return "".join(self.of(_RANGES)(self) for _character in range(self.below(most + 1)))


# ASCII, Latin-1, up to the surrogates, behind them.
_RANGES: tuple[Callable[[Tape], str], ...] = (
    lambda tape: chr(tape.below(0x80)), lambda tape: chr(tape.below(0x100)), lambda tape: chr(tape.below(0xd800)),
    lambda tape: chr(0xe000 + tape.below(0x110000 - 0xe000)))
_TIMES = (1, 1, 1, 1, 1, 1, 2, 60, 5000)
_ENTROPY = st.binary(min_size=40, max_size=40)


def words(*common: str) -> st.SearchStrategy[str]:
    """Texts that combine the words of a format with other words; some words are repeated many times."""
    def make(content: bytes) -> str:
        tape = Tape(content)
        return "".join((tape.of(common) if tape.below(3) else tape.text(4)) * tape.of(_TIMES)
                       for _word in range(tape.below(13)))
    return _ENTROPY.map(make)


_SCALARS: tuple[Callable[[Tape], Any], ...] = (
    lambda tape: None, lambda tape: bool(tape.below(2)), lambda tape: tape.below(12) - 2, lambda tape: 10 ** 4000,
    lambda tape: tape.of((0.0, 1.5, -0.0, 1e308, math.inf, -math.inf, math.nan)),
    lambda tape: datetime.date.fromordinal(1 + tape.below(datetime.date.max.toordinal())),
    lambda tape: bytes(tape.below(256) for _byte in range(tape.below(3))), lambda tape: tape.text(3))


def data(*names: str) -> st.SearchStrategy[Any]:
    """Lists and mappings of any values. names: meaningful keys and values."""
    kinds = (lambda tape: tape.of(names), *_SCALARS)
    keys = (kinds[0], kinds[0], lambda tape: tape.below(3), _SCALARS[0], _SCALARS[5])

    def value(tape: Tape, depth: int = 0) -> Any:
        if depth < _DEEP and tape.below(depth + 3) < 2:
            if tape.below(2):
                return [value(tape, depth + 1) for _item in range(tape.below(4))]
            return {tape.of(keys)(tape): value(tape, depth + 1) for _item in range(tape.below(5))}
        return tape.of(kinds)(tape)

    return _ENTROPY.map(lambda content: value(Tape(content)))


def fields(needed: dict[str, st.SearchStrategy[Any]], odd: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """A mapping with these fields, some of which can be invalid or missing."""
    return st.fixed_dictionaries({}, optional={name: st.one_of(one, one, one, odd) for name, one in needed.items()})


def lines(*parts: st.SearchStrategy[str], separator: str = "\t") -> st.SearchStrategy[str]:
    """Lines of these parts with a separator between them, mixed with other lines."""
    right = st.tuples(*parts).map(separator.join)
    return st.lists(st.one_of(right, right, right, words(separator, "a")), max_size=6).map(
        lambda all_lines: "".join(f"{line}\n" for line in all_lines))
