# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host as a tree of files, for the tests of the facts."""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.collect import collect
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.tests.unit.facts import trees


@pytest.fixture(autouse=True)
def x86_64(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hosts have this architecture on every test machine."""
    monkeypatch.setattr("os.uname", lambda: type("uname", (), {"machine": "x86_64", "release": "", "nodename": ""}))


class Host:
    """A tree to which tests add files, and its facts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run = trees.Answers()

    def system(self, text: str, kernel: str, device: str | None = "20b2", headers: bool = True) -> Host:
        """Writes os-release, the running kernel and one GPU."""
        self.put("/etc/os-release", text)
        self.put("/proc/sys/kernel/osrelease", f"{kernel}\n")
        if headers:
            self.put(f"/lib/modules/{kernel}/build/Makefile", "all:\n")
        if device:
            trees.pci(self.path, "0000:07:00.0", device)
        return self

    def put(self, path: str, content: str | bytes = "") -> Host:
        trees.put(self.path, path, content)
        return self

    def link(self, path: str, target: str) -> Host:
        trees.link(self.path, path, target)
        return self

    def dmi(self, **strings: str) -> Host:
        for key, value in strings.items():
            self.put(f"/sys/class/dmi/id/{key}", f"{value}\n")
        return self

    def cpu(self, *flags: str) -> Host:
        return self.put("/proc/cpuinfo", f"processor\t: 0\nflags\t\t: fpu vme {' '.join(flags)} lahf_lm\n")

    def facts(self, snapshot: t.Mapping[str, t.Any] | None = None) -> dict[str, t.Any]:
        return collect(Root(str(self.path)), self.run, snapshot or trees.NO_NVML)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)
