# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Edits of JSON text: the desired data, no other change, a removal that restores the content, one error for invalid
text."""

from __future__ import annotations

import copy
import json
import typing as t

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.json_text import Document
from hypothesis import given, settings
from hypothesis import strategies as st

SPACES = st.text(" \t\n\r", max_size=3)
NUMBERS = st.sampled_from(["0", "-0", "1", "12345678901234567890123", "1.50", "1E3", "-2.5e-07", "9" * 5000])
STRINGS = st.one_of(st.text(max_size=6).map(json.dumps), st.sampled_from(['"\\u0041"', '"\\/"', '"é"', '"}"', '"\\""']))
SCALARS = st.one_of(NUMBERS, STRINGS, st.sampled_from(["true", "false", "null"]))
KEYS = st.sampled_from(["a", "b", "c", "runtimes", "nvidia", "é", ""])
VALUES = st.sampled_from([True, "x", 5, [], {}, ["p", "q"], {"path": "/usr/bin/x", "args": ["a"]}])


@st.composite
def objects(draw: t.Any, inner: t.Any = SCALARS) -> str:
    members = []
    for key in draw(st.lists(KEYS, unique=True, max_size=4)):
        space = [draw(SPACES) for _ignored in range(4)]
        members.append(f"{space[0]}{json.dumps(key)}{space[1]}:{space[2]}{draw(inner)}{space[3]}")
    return "{" + (",".join(members) or draw(SPACES)) + "}"


@st.composite
def arrays(draw: t.Any, inner: t.Any) -> str:
    items = draw(st.lists(inner, max_size=3))
    return "[" + ",".join(f"{draw(SPACES)}{item}{draw(SPACES)}" for item in items) + "]"


TREES = st.recursive(SCALARS, lambda inner: st.one_of(objects(inner), arrays(inner)), max_leaves=8)
TEXTS = st.tuples(st.sampled_from(["", "\ufeff"]), SPACES, objects(TREES), SPACES).map("".join)
PATHS = st.lists(KEYS, min_size=1, max_size=3).map(tuple)


def _parsed(text: str) -> t.Any:
    return json.loads(text.removeprefix("\ufeff"), parse_int=lambda word: int(word) if len(word) < 100 else float(word))


def _holder(data: t.Any, path: tuple[str, ...]) -> t.Any:
    for key in path[:-1]:
        data = data.get(key) if isinstance(data, dict) else None
    return data


@settings(max_examples=400, deadline=None)
@given(TEXTS, PATHS, VALUES)
def test_set_then_remove(text: str, path: tuple[str, ...], value: t.Any) -> None:
    document = Document(text, "x.json")
    former = _parsed(text)
    assert document.data == former
    wanted = copy.deepcopy(former)
    target, added = wanted, None
    for depth, key in enumerate(path):
        if not isinstance(target, dict):
            with pytest.raises(HostError, match="is not an object"):
                document.set(path, value)
            assert document.text == text
            return
        if added is None and key not in target:
            added = path[:depth + 1]
        if depth == len(path) - 1:
            target[key] = value
        else:
            target = target.setdefault(key, {})
    document.set(path, value)
    assert _parsed(document.text) == document.data == wanted
    assert Document(document.text, "x.json").data == wanted
    if added is None:
        start, end = _span(Document(text, "x.json"), path)
        assert document.text.startswith(text[:start])
        assert document.text.endswith(text[end:])
    elif _holder(former, added):
        document.remove(added)
        assert document.text == text


def _span(document: Document, path: tuple[str, ...]) -> tuple[int, int]:
    """The position of the value at a path in the text."""
    value = document._root
    for key in path:
        value = value.members[key]
    start = len(document.text) - len(document.text.removeprefix("\ufeff"))
    return start + value.start, start + value.end


@settings(max_examples=300, deadline=None)
@given(TEXTS, st.randoms())
def test_remove_and_replace_touch_only_the_member(text: str, random: t.Any) -> None:
    document = Document(text, "x.json")
    if not document.data:
        return
    key = random.choice(list(document.data))
    spelled = _spelled(text)
    document.set((key,), {"new": [1]})
    assert {name: word for name, word in _spelled(document.text).items() if name != key} == {
        name: word for name, word in spelled.items() if name != key}
    document.remove((key,))
    assert _spelled(document.text) == {name: word for name, word in spelled.items() if name != key}


def _spelled(text: str) -> dict[str, str]:
    """The text of each member of the outermost object."""
    document = Document(text, "x.json")
    body = text.removeprefix("\ufeff")
    return {key: body[member.key:member.end] for key, member in document._root.members.items()}


@settings(max_examples=400, deadline=None)
@given(st.one_of(TEXTS.flatmap(lambda text: st.tuples(st.just(text), st.integers(0, len(text)), st.sampled_from(
    list('{}[],:"\\x0-.#\n'))).map(lambda cut: cut[0][:cut[1]] + cut[2] + cut[0][cut[1] + 1:])), st.text(max_size=30)))
def test_broken_text_is_refused_as_the_standard_reader_does(text: str) -> None:
    body = text.removeprefix("\ufeff")
    repeated = []

    def pairs(members: list[tuple[str, t.Any]]) -> dict[str, t.Any]:
        repeated.extend(key for index, (key, _value) in enumerate(members)
                        if key in [other for other, _ignored in members[:index]])
        return dict(members)

    try:
        data = json.loads(body, object_pairs_hook=pairs, parse_int=float, parse_constant=int)
        valid = isinstance(data, dict) and not repeated
    except ValueError:
        valid = not body.strip(" \t\r\n")
    if valid:
        Document(text, "x.json")
    else:
        with pytest.raises(HostError, match=r"x\.json, line \d+, column \d+: .*\. Correct it"):
            Document(text, "x.json")


@pytest.mark.parametrize(("text", "said"), [
    ('{\n  "a": 1,\n}\n', "line 2, column 9: JSON does not allow a comma before '}'"),
    ('{\n  // no\n  "a": 1\n}', "line 2, column 3: JSON does not allow comments"),
    ('{"a": 1} # no', "line 1, column 10: JSON does not allow comments"),
    ('{"a": 1,\r\n "a": 2}', 'line 2, column 2: the key "a" occurs twice in one object'),
    ('\ufeff{"a": tru}', 'line 1, column 7: a value is expected, not "t"'),
    ('{"a": 1', "line 1, column 8: a comma or '}' is expected, not the end of the file"),
    ('{"a": "b\n"}', "line 1, column 7: the string is not closed or not valid"),
    ("[]", "line 1, column 1: an object in braces is expected"),
    ('{"a": ' + "[" * 5000, "line 1, column 107: nested more than 100 deep"),
])
def test_error_names_the_place(text: str, said: str) -> None:
    with pytest.raises(HostError) as error:
        Document(text, "daemon.json")
    assert said in str(error.value)


@pytest.mark.parametrize(("text", "after"), [
    ("", '{\n    "r": {\n        "n": {\n            "p": "x"\n        }\n    }\n}\n'),
    ("{}\n", '{\n    "r": {\n        "n": {\n            "p": "x"\n        }\n    }\n}\n'),
    ('{\r\n\t"a": 1\r\n}', '{\r\n\t"a": 1,\r\n\t"r": {\r\n\t\t"n": {\r\n\t\t\t"p": "x"\r\n\t\t}\r\n\t}\r\n}'),
    ('{"a":1}', '{"a":1,"r":{"n": {"p": "x"}}}'),
    ('{ "a": 1 }\n', '{ "a": 1, "r": {"n": {"p": "x"}} }\n'),
    ('{\n  "r": {}\n}', '{\n  "r": {\n    "n": {\n      "p": "x"\n    }\n  }\n}'),
    ('{\n  "r": {"m": {}}\n}', '{\n  "r": {"m": {}, "n": {"p": "x"}}\n}'),
    ('{\n  "r": {"n": {"p": "y", "args": []}}\n}', '{\n  "r": {"n": {"p": "x", "args": []}}\n}'),
])
def test_layout_follows_the_file(text: str, after: str) -> None:
    document = Document(text, "daemon.json")
    document.set(("r", "n", "p"), "x")
    assert document.text == after


def test_large_files_are_refused() -> None:
    with pytest.raises(HostError, match="daemon.json has 1,048,578 characters; at most 1,048,576 are read"):
        Document("{}" + " " * 1024 * 1024, "daemon.json")
