# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The state that site.yml has established on a host persists across a reboot, without another run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from lab.stages import ROOT
from tests.integration import user
from tests.integration.conftest import LabHosts
from tests.integration.converged import converge
from tests.integration.test_mig import boot

HOST = "gpu-a2"
LAYOUT = {"version": "v1", "mig-configs": {"two": [
    {"devices": [0], "mig-enabled": True, "mig-devices": {"3g.40gb": 1, "2g.20gb": 1}},
    {"devices": list(range(1, 8)), "mig-enabled": False}]}}
# The driver and what holds it, GPUs and instances with their UUIDs, the files and names of CDI, services of ours and
# the vendor's, and what containerd, which reads its configuration when it starts, knows of the runtime.
LOOK = {
    "driver": "cat /sys/module/nvidia/version && lsmod | grep -o '^nvidia[a-z_]*' | sort",
    "GPUs": "nvidia-smi -L",
    "CDI": "nvidia-ctk cdi list 2>/dev/null | sort",
    "services": "systemctl list-units --type=service --state=active --plain --no-legend 'nvidia*' containerd.service | "
                "cut -d ' ' -f 1 | sort; systemctl list-unit-files --state=enabled --no-legend 'nvidia*' 'gpuops*' | "
                "cut -d ' ' -f 1 | sort; systemctl --failed --plain --no-legend",
    "runtime": "containerd config dump | grep -A 12 'runtimes.nvidia'",
}


@pytest.mark.timeout(1800)
def test_all_comes_back(lab: LabHosts, tmp_path: Path) -> None:
    layout = tmp_path / "layout.yml"
    layout.write_text(json.dumps(LAYOUT))
    policy = yaml.safe_load((ROOT / "lab" / "demo" / "policy.yml").read_text())
    policy["spec"]["mig"]["strategy"] = "mixed"
    wishes = {"gpu_policy": policy, "gpu_disruption": "idle",
              "mig_manager_config_file": str(layout), "mig_manager_selected": "two"}
    lab.reset(HOST, converge(lab).disks[HOST])

    def run(playbook: str) -> user.Run:
        done = user.playbook(playbook, lab.hosts, "--limit", HOST, **wishes)
        assert done.rc == 0, done.output
        return done

    assert "mig_config" in run("site").steps(HOST)
    before = {what: lab.sh(HOST, script) for what, script in LOOK.items()}
    assert before["driver"].split()[:2] == ["595.91.07", "nvidia"]
    assert before["GPUs"].count("MIG ") == 2 and before["GPUs"].count("GPU ") == 8
    assert before["CDI"].count("nvidia.com/gpu=") > 2 and "nvidia-container-runtime" in before["runtime"]
    assert {"containerd.service", "nvidia-persistenced.service", "gpuops-mig.service"} <= set(
        before["services"].split())
    assert boot(lab, HOST) == "running"
    assert {what: lab.sh(HOST, script) for what, script in LOOK.items()} == before
    run("verify")
    assert run("site").changed(HOST) == []
