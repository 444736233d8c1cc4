# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Device nodes at boot."""

from __future__ import annotations

import typing as t
from dataclasses import replace

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver._nodes import RULES_FILE, Nodes, rules_text


def test_packages_bring_their_own(made: t.Any) -> None:
    assert made.ids(Nodes) == []


def test_the_run_file_does_not(made: t.Any) -> None:
    made.aim = replace(made.aim, source="runfile")
    assert made.ids(Nodes) == [f"configure/write device rules: {RULES_FILE}"]
    made.do(Nodes)
    assert made.ids(Nodes) == []
    assert 'KERNEL=="nvidia_uvm", RUN+="/usr/bin/nvidia-modprobe -u -c 0"' in made.read(RULES_FILE)
    made.aim = replace(made.aim, source="cuda_repository")
    assert made.ids(Nodes) == [f"configure/restore file: {RULES_FILE}"]


def test_a_node_for_each_gpu() -> None:
    assert b"nvidia-modprobe -c 0 -c 1 -c 2\"" in rules_text(3)
