# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The answers of the modules of a sound host, from which forged answers are derived."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpuops.nvidia.tests.unit.simulated import host_facts as facts_sample

Data = dict[str, Any]

STEP: Data = {"id": "write file: /etc/x", "action": "write file", "target": "/etc/x", "reason": "", "needs": "never",
              "assumed": False}
CHANGE: Data = {"changed": True, "plan": [STEP], "pending": [], "diff": [{"before": "", "after": "x"}]}
# Of a host without a container runtime, to the first question of container_toolkit.
TOOLKIT: Data = {
    "changed": False,
    "host_state": {"runtimes": dict.fromkeys(("containerd", "docker", "crio", "podman")), "markers": [],
                   "rootless": {}, "unread": {},
                   "journal": {"present": False, "default_runtime": {}, "restart": {}, "config": {}},
                   "settings": {"text": None, "ours": {}, "file": None, "new": False},
                   "packages": {"installed": {"nvidia-container-toolkit": "1.20.0-1"}, "version": "1.20.0",
                                "steps": []},
                   "cdi": {"specs": [], "driver": None, "steps": [], "pending": [], "warnings": []}},
    "options": {"state": "present", "runtime": ["auto"], "mode": "auto", "config_path": None, "drop_in_path": None,
                "rootless_users": [], "nvidia_runtime_name": "nvidia", "nvidia_runtime_path": None,
                "set_as_default": True, "cdi": True,
                "nri": False, "settings": {}, "disruption": "idle"}}


def answers(facts: Data) -> dict[str, Data]:
    """Maps modules to their answers. facts: those of gpu_info."""
    return {
        "gpu_info": {"changed": False, "facts": facts},
        "nvidia_driver": {**CHANGE, "reboot_required": False, "mok": {"enrolled": None, "pending": False},
                          "holders": []},
        "container_toolkit": TOOLKIT,
        "mig_config": {**CHANGE, "touched": ["0000:07:00.0"], "holders": []},
        "gpu_labels": {"changed": False, "labels": {"nvidia.com/gpu.count": "8"}, "unread": [],
                       "ansible_facts": {"gpu_labels": {"nvidia.com/gpu.count": "8"}, "gpu_labels_unread": []}},
        "gpu_evidence": {"changed": False, "evidence": {"kernel.log": "NVRM: loaded"},
                         "explained": [{"message": "m", "meaning": "w", "action": "a"}],
                         "dcgm": {"ran": False, "passed": None, "why": "not asked"}},
        "nvidia_software": {**CHANGE, "components": {"dcgm": {"plan": [STEP], "pending": []}}},
    }


def facts() -> Data:
    """The facts of a host with one GPU and a loaded driver."""
    made: Data = facts_sample.driven(facts_sample.facts(["20b2 10de:1463"]), "580.126.20")
    return made
