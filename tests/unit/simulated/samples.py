# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Facts of hosts from the names of their GPUs, and a MIG configuration, in a compact notation."""

from __future__ import annotations

import copy
from typing import Any

from ansible_collections.gpuops.nvidia.tests.unit.simulated import host_facts as facts_sample

# By name the device id, with its board.
MODELS = {
    "K80": "102d", "P40": "1b38", "V100": "1db5", "T4": "1eb8 10de:12a2", "A30": "20b7 10de:1532",
    "A100": "20b2 10de:1463", "L40S": "26b9 10de:1851", "H100": "2330 10de:16c1", "GH200": "2342 10de:1809",
    "B200": "2901 10de:1999", "NEW": "3fff",
}


def facts(*models: str, driver: str | None = None, toolkit: str | None = None, containerd: bool | None = False,
          mig: dict[str, int] | None = None, cdi: bool = True) -> dict[str, Any]:
    """A host with these GPUs. driver: loaded and installed; containerd: None where missing, else whether configured.

    With a toolkit it has DCGM and its exporter too, as runs leave them.
    """
    made = facts_sample.facts(
        [MODELS[name] for name in models], "debian12", "6.1.0-28-amd64",
        runtimes={"containerd": None if containerd is None else {
            "nvidia": containerd, "classes": ["nvidia", "runc"] if containerd else []}},
        toolkit={"version": toolkit, "cdi_specs": ["/var/run/cdi/nvidia.yaml"] if toolkit and cdi else []})
    if toolkit:
        made["software"].update(dcgm={"version": "4.6.0", "running": True},
                                dcgm_exporter={"version": "4.8.3", "running": True, "listen": ":9400"})
    if driver:
        made = facts_sample.driven(made, driver)
    if mig is not None:
        for index, gpu in enumerate(made["gpus"]):
            gpu["mig"] = {"enabled": True, "pending": True, "instances": [
                {"gi": 7 + number, "profile": profile, "profile_id": 19, "start": number, "size": 1,
                 "uuids": [f"MIG-{index}-{number}"]} for profile, count in mig.items() for number in range(count)]}
    return made


def changed(base: dict[str, Any], **parts: dict[str, Any]) -> dict[str, Any]:
    """A copy with keys of its sections replaced: C(changed(facts("T4"), driver={"library": None}))."""
    result = copy.deepcopy(base)
    for section, values in parts.items():
        result[section].update(values)
    return result


MIG_CONFIG: dict[str, Any] = {"version": "v1", "mig-configs": {
    "all-disabled": [{"devices": "all", "mig-enabled": False}],
    "all-1g.10gb": [{"devices": "all", "mig-enabled": True, "mig-devices": {"1g.10gb": 7}}],
    "half": [{"devices": [0], "mig-enabled": True, "mig-devices": {"3g.40gb": 2}},
             {"devices": [1], "mig-enabled": False}],
    "a100-only": [{"device-filter": "0x20B210DE", "devices": "all", "mig-enabled": True,
                   "mig-devices": {"2g.20gb": 3}}],
}}
