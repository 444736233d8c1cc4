# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The software beside the driver on a lab of its own: DCGM, exporters, CUDA, from nothing and back."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.integration import user
from tests.integration.conftest import LabHosts, own_lab

HOST, OTHER = "gpu-c1", "gpu-c2"
WANTED = {"gpu_placement": {"cuda": "host", "node_status_exporter": "host"}}
# The second host has a GPU that only branch 580 drives and for which CUDA 13 does not compile.
VERSIONS = f"""\
gpu_hosts:
  hosts:
    {HOST}: {{cuda_version: "13.0"}}
    {OTHER}: {{cuda_version: "12.9", driver_version: 580.126.20}}
"""
UNITS = ("nvidia-dcgm.service", "nvidia-dcgm-exporter.service", "gpuops-node-status.timer")
FORMER = """
echo "deb [trusted=yes] {url} /" > /etc/apt/sources.list.d/former.list
apt-get update -q && apt-get install -yq --no-install-recommends datacenter-gpu-manager=1:3.3.9
rm /etc/apt/sources.list.d/former.list && apt-get update -q
"""


@pytest.fixture(scope="module")
def own() -> Iterator[LabHosts]:
    """Two hosts with few GPUs."""
    with own_lab("components", f"{HOST}=a100-80:2,{OTHER}=v100:1") as hosts:
        yield hosts


@pytest.fixture(scope="module")
def story() -> dict[str, object]:
    """What the tests of this file hand on to each other."""
    return {}


def play(name: str, own: LabHosts, *words: str, **variables: object) -> user.Run:
    """A playbook with all components, each host with its versions."""
    inventory = own.hosts[0].parent / "versions.yml"
    inventory.write_text(VERSIONS)
    return user.playbook(name, [*own.hosts, inventory], *words, **{**WANTED, **variables})


def site(own: LabHosts, *words: str, **variables: object) -> user.Run:
    """site.yml with all components."""
    return play("site", own, *words, **variables)


def scrape(own: LabHosts, host: str, port: int = 9400) -> dict[str, list[float]]:
    """The values of each metric that the exporter serves."""
    text = own.sh(host, f"python3 -c 'import urllib.request as u; print(u.urlopen(\"http://localhost:{port}/metrics\")"
                        ".read().decode())'")
    found: dict[str, list[float]] = {}
    for name, value in re.findall(r"^([A-Za-z_]+)\{[^}]*\} (\S+)$", text, re.M):
        found.setdefault(name, []).append(float(value))
    return found


def status(own: LabHosts, host: str) -> dict[str, float]:
    """The metrics of the node, written anew."""
    text = own.sh(host, "systemctl start gpuops-node-status && cat /var/lib/prometheus/node-exporter/*.prom")
    return {name: float(value) for name, value in re.findall(r"^([a-z_]+)\{[^}]*\} (\S+)$", text, re.M)}


def processes(own: LabHosts, host: str) -> list[str]:
    """The main process of each service, which a restart changes."""
    return own.sh(host, f"systemctl show -p MainPID --value {UNITS[0]} {UNITS[1]}").split()


def test_check_names_what_the_first_run_does(own: LabHosts, story: dict[str, object]) -> None:
    own.sh(OTHER, FORMER.format(url=own.hosts[0].read_text().split('driver_repository_url: "')[1].split('"')[0]))
    story["before"] = own.snapshot(HOST)
    preview = site(own, "--check")
    assert preview.rc == 0, preview.output
    assert own.snapshot(HOST) == story["before"]
    first = site(own)
    assert first.rc == 0, first.output
    for host in (HOST, OTHER):
        assert first.steps(host) == preview.steps(host)
        assert len(first.steps(host)["nvidia_software"]) > 5
    components = first.result(HOST, "nvidia_software")["components"]
    assert {name: part["version"] for name, part in components.items()} == {
        "cuda": "13.0.2", "dcgm": "4.6.0", "dcgm_exporter": "4.8.3", "node_status_exporter": None}
    assert all(line["state"] == "ok" for line in first.result(HOST, "gpu_info")["samples"])
    assert len(first.result(HOST, "gpu_info")["samples"]) == 2


def test_everything_runs(own: LabHosts) -> None:
    for host in (HOST, OTHER):
        for unit in UNITS:
            assert own.sh(host, f"systemctl is-active {unit}; systemctl is-enabled {unit}").split() == \
                ["active", "enabled"], unit
    idle = scrape(own, HOST)
    assert len(idle["DCGM_FI_DEV_GPU_TEMP"]) == 2 and idle["DCGM_FI_DEV_GPU_UTIL"] == [0, 0]
    own.sh(HOST, "gpusim client add --gpu 1 trainer")
    assert scrape(own, HOST)["DCGM_FI_DEV_GPU_UTIL"][1] > 90
    assert "13.0" in own.sh(HOST, "/usr/local/cuda/bin/nvcc --version")
    metrics = status(own, HOST)
    assert metrics["gpu_operator_node_driver_validation"] == 1 and metrics["gpuops_node_gpus"] == 2
    assert metrics["gpu_operator_node_driver_validation_last_success_ts_seconds"] > 1_700_000_000


def test_dcgm_4_has_taken_the_place_of_dcgm_3(own: LabHosts) -> None:
    packages = own.sh(OTHER, "dpkg-query -W -f '${Package} ${db:Status-Abbrev}\\n' 'datacenter-gpu-manager*'")
    assert "datacenter-gpu-manager ii" not in packages
    # A GPU that branch 580 is the last to drive needs the libraries of CUDA 12, too.
    assert "datacenter-gpu-manager-4-cuda12 ii" in packages and "datacenter-gpu-manager-4-cuda13 ii" in packages
    assert len(scrape(own, OTHER)["DCGM_FI_DEV_GPU_TEMP"]) == 1


def test_the_second_run_changes_nothing(own: LabHosts) -> None:
    before = [processes(own, host) for host in (HOST, OTHER)]
    again = site(own)
    assert again.rc == 0, again.output
    for host in (HOST, OTHER):
        assert again.changed(host) == []
        on_host = [line for line in again.of(host) if line["action"] not in user.ON_CONTROLLER]
        assert len(again.of(host)) <= 25 and len(on_host) <= 8, [line["task"] for line in on_host]
    assert [processes(own, host) for host in (HOST, OTHER)] == before
    # The GPU that computes was left alone.
    assert [one["state"] for one in again.result(HOST, "gpu_info")["samples"]] == ["ok", "busy"]
    assert "trainer" in again.result(HOST, "gpu_info")["samples"][1]["reason"]
    own.sh(HOST, "gpusim client remove all")


def test_another_port_is_one_restart_of_the_exporter(own: LabHosts) -> None:
    engine, exporter = processes(own, HOST)
    run = site(own, "--limit", HOST, dcgm_exporter_listen="127.0.0.1:9500")
    assert run.rc == 0, run.output
    assert [step for step in run.steps(HOST)["nvidia_software"] if "service" in step.split(":")[0]] == \
        ["restart service: nvidia-dcgm-exporter.service"]
    after = processes(own, HOST)
    assert after[0] == engine and after[1] != exporter
    assert scrape(own, HOST, 9500)["DCGM_FI_DEV_GPU_TEMP"]
    assert processes(own, HOST) == after


def test_counters_are_those_that_are_given(own: LabHosts) -> None:
    run = site(own, "--limit", HOST, dcgm_exporter_counters="DCGM_FI_DEV_GPU_TEMP, gauge, degrees\n")
    assert run.rc == 0, run.output
    assert list(scrape(own, HOST)) == ["DCGM_FI_DEV_GPU_TEMP"]
    assert site(own, "--limit", HOST).rc == 0
    assert "DCGM_FI_DEV_FB_USED" in scrape(own, HOST)
    assert "gpuops-counters" not in own.sh(HOST, "ls /etc/dcgm-exporter")


def test_a_broken_driver_is_named(own: LabHosts) -> None:
    own.sh(HOST, "rmmod nvidia_uvm && rm -f /dev/nvidia-uvm")
    broken = play("verify", own, "--limit", HOST)
    assert broken.rc != 0
    assert any("CUDA_ERROR_UNKNOWN" in text and "nvidia-uvm" in text for text in broken.errors()), broken.output
    own.sh(HOST, "modprobe nvidia-uvm")
    own("fault", HOST, "gpu-lost:0", "on")
    assert status(own, HOST)["gpu_operator_node_driver_validation"] == 0
    lost = play("verify", own, "--limit", HOST)
    assert lost.rc != 0 and any("does not answer" in text for text in lost.errors()), lost.output
    own("fault", HOST, "gpu-lost:0", "off")
    assert play("verify", own, "--limit", HOST).rc == 0


def test_wrong_values_change_nothing(own: LabHosts) -> None:
    for variables, text in (({"dcgm_exporter_listen": "9400"}, "no address to listen on"),
                            ({"cuda_version": "14.0"}, "14"), ({"dcgm_version": "4.4.4"}, "4.4.4")):
        wrong = site(own, "--limit", HOST, **variables)
        assert wrong.rc != 0 and any(text in error for error in wrong.errors()), wrong.output
        assert wrong.changed(HOST) == []


def test_removal_leaves_what_was_there_before(own: LabHosts, story: dict[str, object]) -> None:
    removed = user.playbook("remove", own.hosts, gpu_disruption="idle")
    assert removed.rc == 0, removed.output
    assert own.snapshot(HOST) == story["before"]
    assert "gpuops" not in own.sh(HOST, "ls -A /var/lib /usr/local/lib /etc; ls -A /var/lib/prometheus || true")
    gone = removed.result(OTHER, "nvidia_software")["components"]["dcgm"]["reasons"]
    assert any("datacenter-gpu-manager 1:3.3.9 was there before" in reason for reason in gone)
