# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Text that is not YAML, or is YAML without bounds: always one InputError with its line, before it uses much time or
memory."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import yamltext


@pytest.mark.parametrize(("value", "kind"), [
    ("!!timestamp x", "timestamp"), ("!!bool x", "bool"), ("!!int ''", "int"), ("!!int x", "int"),
    ("!!float ''", "float"), ("!!float x", "float"), ("!!null [", None), ("!!binary '*'", None),
    ("2026-13-45", "timestamp"),
    ("2026-01-01T99:00:00Z", "timestamp"), ("0x" + "f" * 5000, "int"), ("9" * 5000, "int"), ("1" + ":1" * 5000, "int"),
    ("1" + ":1" * 400 + ".5", "float"), ("1:" * 3 + "9" * 5000 + ".5", None), ("0b" + "1" * 5000, "int"),
    ("-.", None), ("+_", None), ("!!int 0x", "int"), ("!!int '-'", "int"),
])
def test_values_that_are_not_of_their_type(value: str, kind: str | None) -> None:
    try:
        yamltext.parse(f"a: 1\nb: {value}\n", "x.yml")
    except InputError as error:
        assert str(error).startswith("x.yml, line 2: ") or kind is None
        assert kind is None or f"is not a value of YAML's type {kind}. Correct it" in str(error)
        assert len(str(error)) < 300
    else:
        assert kind is None


def keys(count: int) -> str:
    return "".join(f"k{number}: 1\n" for number in range(count))


def chained(first: str, line: t.Callable[[str, str], str]) -> str:
    """YAML in which each line contains the previous one ten times."""
    return first + "".join(line(new, ", ".join([f"*{old}"] * 10)) for old, new in zip("abcdef", "bcdefg"))


@pytest.mark.parametrize(("text", "words"), [
    (keys(30_000), ", line 25000: the text has more than 50,000 keys and values"),
    ("---\n" * 60_000, ": the text has more than 50,000 keys and values. Split the file."),
    ("a: [\n" + "[" * 400, ", line 2: the text has more than 100 levels. Use fewer levels."),
    ("- " * 500, ", line 1: the text has more than 100 levels"),
    ("? " * 500, ", line 1: the text has more than 100 levels"),
    ("#" * 1_000_001, ": the text has 1,000,001 characters; at most 1,000,000 are allowed. Split the file."),
    (chained("a: &a [1, 1]\n", lambda new, old: f"{new}: &{new} [{old}]\n"), "too large with its aliases"),
    (chained("a: &a {b: 1}\n", lambda new, old: f"{new}: &{new}\n  <<: [{old}]\n"), "too large with its aliases"),
], ids=["keys", "documents", "flow", "lists", "complex keys", "characters", "aliases", "merges"])
def test_texts_without_bounds(text: str, words: str) -> None:
    with pytest.raises(InputError) as error:
        yamltext.parse(text, "x.yml")
    assert str(error.value).startswith("x.yml") and words in str(error.value)


def test_what_people_write_is_within_the_bounds() -> None:
    assert yamltext.load_data("[" * 99 + "]" * 99, "x") is not None
    assert yamltext.load_data("a: 1e300\nb: 0xff\nc: 2026-01-01\nd: !!str 5\ne: 1:30\n", "x")["e"] == 90
    assert len(yamltext.load_data(keys(2000), "x")) == 2000
