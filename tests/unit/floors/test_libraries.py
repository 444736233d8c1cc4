# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A truncated library is not loaded, because reading it would kill the process of the module."""

from __future__ import annotations

import ctypes
import sys
import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils import _libraries
from ansible_collections.gpuops.nvidia.plugins.module_utils._nvml import LIBRARY, Nvml
from ansible_collections.gpuops.nvidia.plugins.module_utils._software.manage import driver_level


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The libraries that were requested from the linker, on a host with those of two folders; it finds none."""
    found: list[str] = []

    def link(name: str) -> t.Any:
        found.append(name)
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", link)
    monkeypatch.setattr(_libraries, "FOLDERS", (str(tmp_path / "none"), str(tmp_path)))
    return found


@pytest.mark.parametrize(("size", "asked"), [(None, True), (-1, False), (4000, False), (40, False), (0, False)])
def test_what_is_cut_off_is_not_loaded(loaded: list[str], tmp_path: Path, size: int | None, asked: bool) -> None:
    content = Path(sys.executable).resolve().read_bytes()
    for name in (LIBRARY, "libcuda.so.1"):
        (tmp_path / name).write_bytes(content[:size])
    with Nvml() as nvml:
        assert (nvml.available, nvml.error) == (False, None)
    assert driver_level() is None
    assert loaded == ([LIBRARY, "libcuda.so.1"] if asked else [])


def test_where_it_lies_elsewhere_the_linker_knows(loaded: list[str]) -> None:
    with pytest.raises(OSError, match="cannot open"):
        _libraries.load("libx.so")
    assert loaded == ["libx.so"]
