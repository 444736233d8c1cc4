# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a target of the fuzzer is, and the inputs that many of them share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import GpuopsError
from hypothesis import strategies as st


class Target(NamedTuple):
    """A parser. inputs: by chance; act: reads one, and lets nothing out but the error by which it refuses one."""

    inputs: st.SearchStrategy[Any]
    act: Callable[[Any], object]
    refuses: type[Exception] = GpuopsError


def words(*common: str) -> st.SearchStrategy[str]:
    """Texts of the words that a format is made of, and of any others, some of them many times."""
    one = st.one_of(st.sampled_from(common), st.sampled_from(common), st.text(max_size=4))
    times = st.sampled_from([1, 1, 1, 1, 1, 1, 2, 60, 5000])
    return st.lists(st.tuples(one, times).map(lambda pair: pair[0] * pair[1]), max_size=12).map("".join)


def data(*names: str) -> st.SearchStrategy[Any]:
    """Lists and mappings of any values; names: of keys and values that mean something."""
    scalars = st.one_of(st.none(), st.booleans(), st.integers(-2, 9), st.just(10 ** 4000), st.floats(), st.dates(),
                        st.binary(max_size=2), st.sampled_from(names), st.text(max_size=3))
    keys = st.one_of(st.sampled_from(names), st.sampled_from(names), st.integers(0, 2), st.none(), st.dates())
    return st.recursive(scalars, lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(keys, inner, max_size=4)), max_leaves=20)


def fields(needed: dict[str, st.SearchStrategy[Any]], odd: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """A mapping of these fields, each of them sometimes odd or missing."""
    return st.fixed_dictionaries({}, optional={name: st.one_of(one, one, one, odd) for name, one in needed.items()})


def lines(*parts: st.SearchStrategy[str], separator: str = "\t") -> st.SearchStrategy[str]:
    """Lines of parts, with a separator between them, and others among them."""
    right = st.tuples(*parts).map(separator.join)
    return st.lists(st.one_of(right, right, right, words(separator, "a")), max_size=6).map(
        lambda all_lines: "".join(f"{line}\n" for line in all_lines))
