# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A Node, as far as its state depends on it. Pure. PRIVATE."""

from __future__ import annotations

import typing as t
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True)
class NodeStatus:
    """What a run has read of a Node. All times are as in the Kubernetes API (RFC 3339), empty if unknown.

    ready, ready_since: its condition Ready, and the time of its last transition; cordoned; upgrade, upgrade_since: the
    state of the driver upgrade, and since when the Node is in it or cordoned for it; held, held_since: the controller
    of the run that holds the Node, empty for none; left: why it is out of service if a killed or failed run has left it
    so; operands: whether no label of the user keeps all operands off; workload: C(vm-passthrough) or C(vm-vgpu), empty
    for containers; labels: maps the components whose deploy label is not C(true) to its value, empty without the label;
    mig: the state of the MIG layout; driver: the version of the driver that feature discovery has found; capacity,
    offered: the numbers of GPUs and MIG devices that the kubelet has and offers; gone_since: since when NFD sees no
    GPU; valid_since: since when the validator's pod is ready.
    """

    ready: bool = True
    ready_since: str = ""
    cordoned: bool = False
    upgrade: str = ""
    upgrade_since: str = ""
    held: str = ""
    held_since: str = ""
    left: str = ""
    operands: bool = True
    workload: str = ""
    labels: t.Mapping[str, str] = field(default_factory=dict)
    mig: str = ""
    driver: str = ""
    capacity: int = 0
    offered: int = 0
    gone_since: str = ""
    valid_since: str = ""

    def as_dict(self) -> dict[str, t.Any]:
        """The status as JSON. Values that are as in a Node without particulars are left out."""
        usual = vars(NodeStatus())
        return {key: value for key, value in asdict(self).items() if value != usual[key]}
