# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The metrics of states, read as Prometheus reads them. tests/conformance/monitoring has promtool read them."""

from __future__ import annotations

import re

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._reports import metrics
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._reports.model import NodeState
from hypothesis import given
from hypothesis import strategies as st

NOW = 1800000000.7
_SAMPLE = re.compile(r'([a-z_]+)(?:\{((?:[a-z]+="(?:[^"\\\n]|\\[\\n"])*",?)+)\})? (\d+)')
_LABEL = re.compile(r'([a-z]+)="((?:[^"\\]|\\.)*)"')
Samples = dict[str, list[tuple[dict[str, str], int]]]


def read(text: str) -> Samples:
    """The samples by the name of their metric. Fails for text that is not in the format of Prometheus."""
    assert text.endswith("\n")
    found: Samples = {}
    told: set[str] = set()
    for line in text[:-1].split("\n"):
        if line.startswith("# "):
            told.add(line.split(" ")[2])
            continue
        match = _SAMPLE.fullmatch(line)
        assert match and match[1] in told, line
        labels = {key: re.sub(r"\\(.)", lambda one: "\n" if one[1] == "n" else one[1], value)
                  for key, value in _LABEL.findall(match[2] or "")}
        found.setdefault(match[1], []).append((labels, int(match[3])))
    return found


def state(name: str, **parts: object) -> NodeState:
    return NodeState(**{"name": name, "state": "Ready", "reason": "AsPlanned", "message": "fine",  # type: ignore[arg-type]
                        **parts})


def test_what_is_known_has_samples() -> None:
    found = read(metrics.text([
        state("gpu-1", since="2026-11-22T07:10:47Z", desired="595.91.07", running="580.126.20", drift=True),
        state("gpu-2", state="NotReady", reason="HostUnreachable", reboot_pending=False)], NOW))
    assert found["gpuops_node_state"] == [
        ({"node": name, "state": one}, int(one == now)) for name, now in (("gpu-1", "Ready"), ("gpu-2", "NotReady"))
        for one in ("NotReady", "Upgrading", "Degraded", "Disabled", "Ready")]
    assert found["gpuops_node_state_reason"][1] == ({"node": "gpu-2", "reason": "HostUnreachable"}, 1)
    assert found["gpuops_node_state_since_seconds"] == [({"node": "gpu-1"}, 1795331447)]
    assert found["gpuops_node_reboot_pending"] == [({"node": "gpu-2"}, 0)]
    assert found["gpuops_node_drift"] == [({"node": "gpu-1"}, 1)]
    assert found["gpuops_node_driver_info"] == [
        ({"node": "gpu-1", "desired": "595.91.07", "running": "580.126.20"}, 1),
        ({"node": "gpu-2", "desired": "", "running": ""}, 1)]
    assert found["gpuops_status_timestamp_seconds"] == [({}, 1800000000)]


def test_a_fleet_without_nodes_has_only_the_time() -> None:
    assert set(read(metrics.text([], NOW))) == {"gpuops_status_timestamp_seconds"}


@given(name=st.text(), running=st.text())
def test_texts_from_outside_stay_values_of_labels(name: str, running: str) -> None:
    text = metrics.text([state(name, running=running, since=running)], NOW)
    found = read(text.encode().decode())
    safe = [one.encode("utf-8", "backslashreplace").decode() for one in (name, running)]
    assert found["gpuops_node_driver_info"] == [({"node": safe[0], "desired": "", "running": safe[1]}, 1)]
    assert len(found["gpuops_node_state"]) == 5 and "gpuops_node_state_since_seconds" not in found


def test_a_line_feed_begins_no_sample() -> None:
    evil = 'x"} 1\ngpuops_node_state{node="y",state="Ready'
    assert len(metrics.text([state(evil)], NOW).splitlines()) == len(metrics.text([state("x")], NOW).splitlines())
