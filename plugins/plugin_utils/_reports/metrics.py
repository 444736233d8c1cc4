# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The states of hosts and Nodes as metrics in the text format of Prometheus, for the textfile collector. Pure. PRIVATE.
"""

from __future__ import annotations

import calendar
import time
import typing as t

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._reports.model import NodeState
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._reports.states import STATES

_FORMAT = "%Y-%m-%dT%H:%M:%SZ"
# (labels and their values, value of the sample)
_Sample = t.Tuple[t.Mapping[str, str], int]


def text(states: t.Sequence[NodeState], now: float) -> str:
    """The content of the file. now: when the states were read, in seconds since 1970."""
    families: tuple[tuple[str, str, list[_Sample]], ...] = (
        ("gpuops_node_state", "Whether the GPU stack of the Node or host is in this state.",
         [({"node": one.name, "state": state}, int(one.state == state)) for one in states for state in STATES]),
        ("gpuops_node_state_reason", "Why the Node or host is in its state.",
         [({"node": one.name, "reason": one.reason}, 1) for one in states]),
        ("gpuops_node_state_since_seconds", "Since when the Node or host is in its state, in seconds since 1970.",
         [({"node": one.name}, since) for one in states for since in [_seconds(one.since)] if since is not None]),
        ("gpuops_node_reboot_pending", "Whether the host waits for a reboot.",
         [({"node": one.name}, int(one.reboot_pending)) for one in states if one.reboot_pending is not None]),
        ("gpuops_node_drift", "Whether the Node or host differs from the plan.",
         [({"node": one.name}, int(one.drift)) for one in states if one.drift is not None]),
        ("gpuops_node_driver_info", "The driver versions of the plan and of the loaded driver.",
         [({"node": one.name, "desired": one.desired, "running": one.running or ""}, 1) for one in states]),
        ("gpuops_status_timestamp_seconds", "When the states were read, in seconds since 1970.", [({}, int(now))]),
    )
    return "".join(_family(*one) for one in families if one[2])


def _family(name: str, help_text: str, samples: t.Iterable[_Sample]) -> str:
    lines = [f"# HELP {name} {help_text}", f"# TYPE {name} gauge",
             *(f"{name}{_labels(labels)} {value}" for labels, value in samples)]
    return "\n".join(lines) + "\n"


def _labels(labels: t.Mapping[str, str]) -> str:
    return "{" + ",".join(f'{key}="{_escaped(value)}"' for key, value in labels.items()) + "}" if labels else ""


def _escaped(value: str) -> str:
    """A value of a label: names of hosts and Nodes, and versions, come from outside."""
    safe = value.encode("utf-8", "backslashreplace").decode()  # a surrogate cannot be encoded
    return safe.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _seconds(since: str) -> int | None:
    """A time of the Kubernetes API in seconds since 1970, None if it is empty or invalid."""
    try:
        return calendar.timegm(time.strptime(since, _FORMAT))
    except ValueError:
        return None
