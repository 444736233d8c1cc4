# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The life of three hosts, in order: preview, converge, converged, drift and repair, status, removal."""

from __future__ import annotations

import pytest

from tests.integration import user
from tests.integration.conftest import LabHosts

HOSTS = ("gpu-a1", "gpu-a2", "gpu-l1")
MIG_HOST = "gpu-a1"
EXAMPLE = user.HOME / "collections/ansible_collections/gpuops/nvidia/examples/one-host/site.yml"


@pytest.fixture(scope="module")
def story(lab: LabHosts) -> dict[str, object]:
    """What the tests of this file hand on to each other."""
    for host in HOSTS:
        lab("reset", host)
    return {}


def test_the_checkout_is_not_seen() -> None:
    shown = user.ansible("ansible-galaxy", "collection", "list", "gpuops.nvidia")
    assert "0.1.0" in shown.output
    assert shown.output.count("gpuops.nvidia") == 1, shown.output


def test_check_before_the_first_run_changes_nothing(lab: LabHosts, story: dict[str, object]) -> None:
    story["before"] = {host: lab.snapshot(host) for host in HOSTS}
    preview = user.playbook("site", lab.wishes, "--check", "--diff")
    assert preview.rc == 0, preview.output
    story["preview"] = {host: preview.steps(host) for host in HOSTS}
    assert {host: lab.snapshot(host) for host in HOSTS} == story["before"]
    assert set(preview.steps(MIG_HOST)) == {"nvidia_driver", "container_toolkit", "mig_config", "nvidia_software"}


def test_the_first_run_does_the_steps_that_check_named(lab: LabHosts, story: dict[str, object]) -> None:
    first = user.playbook("site", lab.wishes, "--diff")
    assert first.rc == 0, first.output
    for host in HOSTS:
        assert first.steps(host) == story["preview"][host], host  # type: ignore[index]
    story["first"] = first


def test_what_the_hosts_then_are(lab: LabHosts, story: dict[str, object]) -> None:
    versions = lab.sh("gpu-a1", "nvidia-smi --query-gpu=driver_version --format=csv,noheader")
    assert set(versions.split()) == {"595.91.07"}
    assert lab.sh("gpu-a1", "nvidia-smi -L | grep -c 'MIG 1g.10gb'").strip() == "56"
    assert lab.sh("gpu-a2", "nvidia-smi -L | grep -c '^GPU '").strip() == "8"
    assert "MIG" not in lab.sh("gpu-a2", "nvidia-smi -L")
    assert lab.sh("gpu-l1", "nvidia-smi -L | grep -c 'L40S'").strip() == "4"
    for host in HOSTS:
        assert "nvidia" in lab.sh(host, "containerd config dump | grep -A8 'runtimes.nvidia'")
        assert lab.sh(host, "systemctl is-active containerd").strip() == "active"
    first = story["first"]
    assert isinstance(first, user.Run)
    labels = first.result("gpu-a1", "gpu_labels")["labels"]
    assert labels["nvidia.com/gpu.count"] == "56"
    assert labels["nvidia.com/gpu.product"] == "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb"
    assert first.result("gpu-l1", "gpu_labels")["labels"]["nvidia.com/gpu.product"] == "NVIDIA-L40S"


def test_the_second_run_changes_nothing(lab: LabHosts, story: dict[str, object]) -> None:
    marks = "systemctl show -p MainPID containerd; stat -c '%i %Y %n' /etc/containerd/*.toml /etc/apt/sources.list.d/*"
    before = {host: lab.sh(host, marks) for host in HOSTS}
    again = user.playbook(str(EXAMPLE), lab.wishes)  # a user's own site.yml, one line that imports ours
    assert again.rc == 0, again.output
    for host in HOSTS:
        assert again.changed(host) == [], host
        executed = again.of(host)
        on_host = [line for line in executed if line["action"] not in user.ON_CONTROLLER]
        assert len(executed) <= 25, [line["task"] for line in executed]
        assert len(on_host) <= 8, [line["task"] for line in on_host]
        assert lab.sh(host, marks) == before[host]
    assert "gpu-a1" in again.output and "mig_manager" in again.output


def test_check_on_converged_hosts_is_empty(lab: LabHosts) -> None:
    check = user.playbook("site", lab.wishes, "--check", "--diff")
    assert check.rc == 0, check.output
    assert [check.steps(host) for host in HOSTS] == [{}, {}, {}]


def test_drift_is_repaired_exactly(lab: LabHosts) -> None:
    lab.sh("gpu-a2", "sed -i '/nvidia-container-runtime/d' /etc/containerd/config.toml")
    lab.sh("gpu-l1", "dpkg --purge --force-depends nvidia-persistenced")
    lab.sh("gpu-a1", "nvidia-smi mig -dci -i 3 -gi 9 && nvidia-smi mig -dgi -i 3 -gi 9")
    repair = user.playbook("site", lab.wishes, "--diff")
    assert repair.rc == 0, repair.output
    assert set(repair.steps("gpu-a2")) == {"container_toolkit"}
    assert set(repair.steps("gpu-l1")) == {"nvidia_driver"}
    assert any("nvidia-persistenced" in step for step in repair.steps("gpu-l1")["nvidia_driver"])
    assert set(repair.steps("gpu-a1")) == {"mig_config"}
    assert len(repair.steps("gpu-a1")["mig_config"]) == 1
    assert "1g.10gb" in repair.steps("gpu-a1")["mig_config"][0]
    assert lab.sh("gpu-a1", "nvidia-smi -L | grep -c 'MIG 1g.10gb'").strip() == "56"
    assert "nvidia-container-runtime" in lab.sh("gpu-a2", "containerd config dump")
    assert "ii" in lab.sh("gpu-l1", "dpkg -l nvidia-persistenced | tail -1")
    again = user.playbook("site", lab.wishes)
    assert [again.changed(host) for host in HOSTS] == [[], [], []]


def test_status_and_verify_say_what_is_there(lab: LabHosts) -> None:
    status = user.playbook("status", lab.wishes)
    assert status.rc == 0 and all(host in status.output for host in HOSTS), status.output
    assert all(not status.changed(host) for host in HOSTS)
    verify = user.playbook("verify", lab.wishes)
    assert verify.rc == 0, verify.output
    lab.sh("gpu-a1", "nvidia-smi mig -dci -i 2 -gi 9 && nvidia-smi mig -dgi -i 2 -gi 9")
    broken = user.playbook("verify", lab.wishes)
    assert broken.rc != 0 and "mig" in broken.output.lower()


def test_remove_leaves_what_was_there_before(lab: LabHosts, story: dict[str, object]) -> None:
    removed = user.playbook("remove", lab.wishes, "--diff")
    assert removed.rc == 0, removed.output
    for host in HOSTS:
        assert lab.snapshot(host) == story["before"][host], host  # type: ignore[index]
        assert "gpuops" not in lab.sh(host, "ls -A /var/lib /usr/local/lib /etc")
    again = user.playbook("remove", lab.wishes)
    assert again.rc == 0, again.output
    assert [again.changed(host) for host in HOSTS] == [[], [], []]
