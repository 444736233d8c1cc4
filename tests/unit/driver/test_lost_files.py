# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A driver whose packages are installed, but whose files are missing."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.delivery import PackageDelivery
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.parts import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.sources import source_of
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.spec import Spec
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.base import PackageState
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.work import PackageWork

FULL = "595.91.07-1"
LIBRARY = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.595.91.07"


class Manager:
    """A package manager whose packages are all installed. asked: the packages whose files were searched for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def read(self) -> PackageState:
        return PackageState({"nvidia-open": FULL, "nvidia-driver-cuda": FULL, "libnvidia-ml1": FULL, "zlib1g": "1.2",
                             "libnvidia-ml1:i386": FULL, "libnvidia-container1": "1"})

    def lost_files(self, names: t.Sequence[str]) -> dict[str, list[str]]:
        self.asked += names
        return {"libnvidia-ml1": [LIBRARY]}

    def reinstall(self, packages: t.Mapping[str, str], check: bool = False) -> None:
        assert check


def test_a_library_that_is_gone_comes_again(made: t.Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made.works()
    monkeypatch.setattr(PackageWork, "is_present", lambda *_arguments: True)
    monkeypatch.setattr(PackageWork, "holds", lambda *_arguments: True)
    manager: t.Any = Manager()
    spec = Spec(version="595.91.07", repository={"fingerprint": "0" * 40, "key": "key.pub"})
    delivery = PackageDelivery(Host(spec, made.run, Root(str(made.folder)), made.journal), manager,
                               source_of("cuda_repository", "debian", "12", "x86_64"))
    monkeypatch.setattr(delivery.work, "_has_repository", lambda: True)
    monkeypatch.setattr(delivery, "_prerequisites", lambda *_arguments: [])
    version, steps = delivery.plan(made.now, "open")
    assert version == "595.91.07"
    assert [step.id for step in steps] == ["refresh package lists: cuda",
                                           f"install packages again: libnvidia-ml1={FULL}"]
    assert steps[1].reason == f"{LIBRARY} missing or damaged"
    assert manager.asked == ["libnvidia-ml1", "nvidia-driver-cuda", "nvidia-open"]
