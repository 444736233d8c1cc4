# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Any TOML: it is edited correctly or refused by an error of ours; there is never a traceback or an invalid file."""

from __future__ import annotations

import copy
import typing as t
from dataclasses import replace

import pytest
import tomllib
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.base import Options
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.containerd import DROP_IN, Containerd
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.cri import V2, V3, plugin_path
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.host_state import (
    FileRecord,
    Journal,
    ProgramResult,
    RuntimeState,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.toml import Document, dotted
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.values import lookup
from hypothesis import given, settings
from hypothesis import strategies as st

CONFIG = "/etc/containerd/config.toml"
KEYS = st.sampled_from(["a", "b-c", "d.e", "ü", "", "plugins", "x y", "imports", "version"])
SCALARS = st.one_of(
    st.booleans().map(lambda one: str(one).lower()), st.integers(-9, 10**18).map(str),
    st.sampled_from(["1.5", "1e3", "inf", "2020-01-01T00:00:00Z", "'lit # eral'", '"a \\" b"', '"""x\ny"""',
                     "'''p\n# q\n'''", "[]", "[1, 2]", '["a", # why\n  "b",\n]', "{}", "{ k = 1 }",
                     "{ k.l = [1], m = { n = 'o' } }"]))
BLANKS = st.sampled_from(["", "\n", "# note\n", "  # [not.a.table]\n", "\t\n"])


@st.composite
def documents(draw: t.Any) -> str:
    """Valid TOML in many layouts: headers in any order, dotted keys, arrays of tables, indents, comments, line ends."""
    lines: list[str] = []
    for number in range(draw(st.integers(0, 4))):
        path = tuple(draw(st.lists(KEYS, min_size=1, max_size=3)))
        if number or draw(st.booleans()):
            array = draw(st.integers(0, 5)) == 0
            lines.append(f"{'[[' if array else '['}{dotted(path)}{']]' if array else ']'}{draw(BLANKS) or chr(10)}")
        for _key in range(draw(st.integers(0, 4))):
            key = tuple(draw(st.lists(KEYS, min_size=1, max_size=2)))
            indent = draw(st.sampled_from(["", "  ", "\t"]))
            comment = draw(st.sampled_from(["", " # c", "  #x = 1"]))
            lines.append(f"{draw(BLANKS)}{indent}{dotted(key)} {draw(st.sampled_from(['=', ' = ']))} {draw(SCALARS)}"
                         f"{comment}\n")
    text = "".join(line if line.endswith("\n") else line + "\n" for line in lines)
    if draw(st.integers(0, 3)) == 0:
        text = text.rstrip("\n")
    if draw(st.integers(0, 3)) == 0:
        text = text.replace("\n", "\r\n")
    return text


def _valid(text: str) -> bool:
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return False
    return True


@settings(max_examples=200, deadline=None)
@given(documents(), st.lists(KEYS, min_size=1, max_size=3), st.sampled_from([True, 7, "new", ["x", "y"]]))
def test_set_and_remove(text: str, keys: list[str], value: t.Any) -> None:
    path = tuple(keys)
    try:
        document = Document(text, "f")
    except HostError:
        assert not _valid(text)
        return
    assert document.text == text
    before = copy.deepcopy(document.data)
    former = lookup(before, path)
    try:
        document.set(path, value)
    except HostError:
        assert document.data == before
        return
    found = tomllib.loads(document.text)
    assert lookup(found, path) == value
    if former is None:
        after = document.text.replace("\r\n", "\n")
        gone = [line for line in text.replace("\r\n", "\n").splitlines() if line not in after]
        # Only the line of an inline table becomes another.
        assert not gone or len(gone) == 1 and "{" in gone[0], gone
    try:
        document.remove(path)
    except HostError:
        return
    assert lookup(tomllib.loads(document.text), path) is None


DUMPS = {version: f"""version = {number}
[plugins."{plugin}"]
enable_cdi = false
[plugins."{plugin}".containerd]
default_runtime_name = "runc"
[plugins."{plugin}".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."{plugin}".containerd.runtimes.runc.options]
SystemdCgroup = true
""" for version, number, plugin in (("1.7.27", 2, V2), ("2.3.4", 3, V3))}
CRI = st.sampled_from([f'plugins."{plugin}"{rest}' for plugin in (V2, V3, "cri") for rest in (
    "", ".containerd", ".containerd.runtimes", ".containerd.runtimes.runc", ".containerd.runtimes.nvidia.options")])
PIECES = st.one_of(
    CRI.map(lambda path: f"[{path}]\n"), CRI.map(lambda path: f"[[{path}]]\n"),
    st.tuples(CRI, st.sampled_from(["1", "{}", "[]", "'x'", "{ runc = {} }"])).map(
        lambda pair: " = ".join(pair) + "\n"),
    st.sampled_from(["version = 2\n", "version = 3\n", "version = '2'\n", "version = 1\n", "version = 2.5\n",
                     "imports = []\n", "imports = 'x'\n", "imports = [1]\n", 'imports = ["conf.d/*.toml"]\n',
                     "plugins = 1\n", "[plugins]\n", "disabled_plugins = 3\n", "disabled_plugins = [['cri']]\n",
                     "# ours\n", "default_runtime_name = 'runc'\n", "enable_cdi = 'yes'\n", "runtimes = []\n",
                     "containerd = false\n", "nvidia = {}\n", "x = '''\n", "= 1\n", "\x00", "[", "\ufeff"]))


@pytest.mark.parametrize("version", list(DUMPS))
@settings(max_examples=200, deadline=None)
@given(pieces=st.lists(PIECES, max_size=6))
def test_main_files(version: str, pieces: list[str]) -> None:
    """containerd itself refuses most of these; those that it accepts must not be misread."""
    text = "".join(pieces)
    seen = RuntimeState("containerd", CONFIG, running=True, boot="yes", version=f"containerd x {version} y",
                        files={CONFIG: text, DROP_IN: None}, dump=ProgramResult(0, DUMPS[version]))
    runtime = Containerd()
    try:
        proposal = runtime.propose(seen, Journal(), Options(True, True, "auto", nri=True))
    except HostError:
        return
    plugin = V2 if version.startswith("1") else V3
    for change in proposal.changes:
        data = tomllib.loads((change.after or "").removeprefix("\ufeff"))
        if change.part == "drop-in":
            runtimes = [lookup(data, plugin_path(one, ("containerd", "runtimes", "nvidia"))) for one in (V2, V3)]
            assert any(runtimes)
        elif plugin == V2:
            assert any(lookup(data, plugin_path(one, ("containerd", "default_runtime_name"))) == "nvidia"
                       for one in ("cri", V2))
    after = {change.path: change.after for change in proposal.changes}
    journal = Journal({change.path: FileRecord(change.part, "edited", change.before, "x")
                       for change in proposal.changes})
    try:
        rest = runtime.propose_removal(replace(seen, files={**seen.files, **after}), journal)
    except HostError:
        return
    for change in rest.changes:
        data = tomllib.loads((change.after or "").removeprefix("\ufeff"))
        assert "/usr/bin/nvidia-container-runtime" not in str(data)
