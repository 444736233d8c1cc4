# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether promtool reads the metrics of states, and finds nothing to criticize in them."""

from __future__ import annotations

import subprocess

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._reports import metrics
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._reports.model import NodeState

from lab.tools import prometheus_programs

EVIL = 'gpu"3\\\n# TYPE x counter\u2028é'
FLEET = [
    NodeState("gpu-1", "Ready", "AsPlanned", "fine", "2026-11-22T07:10:47Z", "gpu-1", "595.91.07", "595.91.07", False,
              False, False),
    NodeState("gpu-2", "Degraded", "Drift", "x", "", "", "595.91.07", None, None, True, None),
    NodeState(EVIL, "NotReady", "HostUnreachable", EVIL, "", EVIL, "", EVIL),
]


def check(text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([prometheus_programs() / "promtool", "check", "metrics"], input=text, capture_output=True,
                          text=True, check=False, timeout=60)


def test_promtool_accepts_the_metrics() -> None:
    done = check(metrics.text(FLEET, 1800000000))
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_promtool_refuses_a_name_that_is_not_escaped() -> None:
    """Proves that promtool really reads the values."""
    text = metrics.text(FLEET[:1], 1800000000)
    assert check(text.replace('node="gpu-1"', 'node="gpu"1"')).returncode != 0
