# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Very large TOML: it is read in linear time, or refused with one HostError."""

from __future__ import annotations

import typing as t

import pytest
import tomllib
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes import toml
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.toml import Document, load


@pytest.mark.parametrize(("text", "words"), [
    ("x = " + "[" * 60 + "]" * 60, "f, line 1: nested more than 50 deep"),
    ("a = 1\nx = " + "[" * 100_000, "f, line 2: nested more than 50 deep"),
    ("a" + ".a" * 100_000 + " = 1", "f, line 1: nested more than 50 deep"),
    ("[a" + ".a" * 60 + "]", "f, line 1: nested"),
    ("x = {" + "a." * 60 + "b = 1}", "f, line 1: nested"),
    ("[a" + ".a" * 40 + "]\nb" + ".b" * 40 + " = 1\n", "f is nested more than 50 deep"),
    ("x = " + "9" * 5000, "f is not valid TOML: a number in it is too long."),
    ("#" * 300_000, "f has 300,000 characters; at most 262,144 are read."),
    ('x = """' + '\\"""' * 50_000, "f is not valid TOML"), ("x = '''" + "'' " * 50_000, "f is not valid TOML"),
    ('"' * 200_000, "f is not valid TOML"), ("x = [" + "\n" * 200_000, "f is not valid TOML"),
])
def test_texts_without_bounds(text: str, words: str) -> None:
    for read in (load, Document):
        with pytest.raises(HostError) as error:
            read(text, "f")
        assert words in str(error.value) and "then run again." in str(error.value)


def test_each_statement_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time for an array of many lines, and for a long key, is proportional to its size."""
    seen: list[int] = []

    def loads(text: str) -> t.Any:
        seen.append(len(text))
        return tomllib_loads(text)

    tomllib_loads = tomllib.loads
    monkeypatch.setattr(toml.tomllib, "loads", loads)
    lines = "".join(f'  "item {number}",\n' for number in range(2000))
    text = f'"{"=" * 2000}" = [\n{lines}]\n'
    text += "".join(f"[t{number}.x]\n[t{number}.x.y]\na = 1\n" for number in range(500))
    document = Document(text, "f")
    assert document.text == text and sum(seen) < 3 * len(text)
    seen.clear()
    document.remove_bare_headers([("t0", "x")])
    assert len(seen) == 1 and document.headers == {("t0", "x"), *((f"t{number}", "x", "y") for number in range(500))}


def test_only_headers_that_mean_nothing_are_dropped() -> None:
    text = "[a]\n\n[a.b]\nx = 1\n\n[c]\n\n[[d]]\n\n[d.e]\n\n[d.e.f]\nx = 1\n"
    document = Document(text, "f")
    document.remove_bare_headers([])
    assert document.text == "\n[a.b]\nx = 1\n\n[c]\n\n[[d]]\n\n[d.e]\n\n[d.e.f]\nx = 1\n"


@pytest.mark.parametrize("text", [
    'a = "\\"#]"   # [\nb = 1\n', "a = '['\nb = 1", 'a = """x""""" # "\nb = 1\n', "a = '''x'''''\nb = 1\n",
    'a = ""\nb = 1',
    'a = [ # ]\n "x", [1, # "\n 2]]\n\n  b = 1\n', '"a = b" = 1\n\'c = d\' = "="\nb = 1\n', "a = 1.5\r\nb = 1\r\n",
    "[[x]]\n[x.y] # z\na = {b.c = [1, {d = '}'}]}\n[t]\n", 'a = """\n[x]\\\n "" \\""" y"""\nb = 1\n', ""])
def test_statements_are_told_apart(text: str) -> None:
    document = Document(text, "f")
    assert document.text == text
    document.set(("b",), "new")
    assert tomllib.loads(document.text) == {**tomllib.loads(text), "b": "new"}


def test_large_values_are_read_and_not_changed() -> None:
    lines = "".join(f'  "item {number}",\n' for number in range(2000))
    document = Document(f"a = [\n{lines}]\n", "f")
    with pytest.raises(HostError, match="f: a has .* characters; the maximum for an edit is 16,384"):
        document.set(("a",), [*document.data["a"], "x"])
    document.set(("b",), 1)
    assert document.text == f"a = [\n{lines}]\nb = 1\n"
