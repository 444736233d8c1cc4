# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The software beside the driver, in a separate lab: DCGM, exporters and CUDA are installed, changed and removed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.integration import user
from tests.integration.conftest import LabHosts, own_lab
from tests.integration.driver import DriverHost
from tests.integration.series import Play, series
from tests.waiting import until

HOST, OTHER = "gpu-c1", "gpu-c2"
WANTED = {"gpu_placement": {"cuda": "host", "node_status_exporter": "host"}}
# The second host has a GPU that only branch 580 drives and for which CUDA 13 does not compile.
VERSIONS = {HOST: {"cuda_version": "13.0"}, OTHER: {"cuda_version": "12.9", "driver_version": "580.126.20"}}
# The first host by other names, with values that it cannot have.
WRONG = {"gpu-cuda": ({"cuda_version": "14.0"}, "CUDA 14.0"),
         "gpu-port": ({"dcgm_exporter_listen": "9400"}, "not a listen address"),
         "gpu-dcgm": ({"dcgm_version": "4.4.4"}, "4.4.4")}
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


def play(name: str, own: LabHosts, *words: str, **variables: object) -> user.Run:
    """A playbook with all components and the versions of each host."""
    inventory = own.hosts[0].parent / "versions.json"
    inventory.write_text(json.dumps({"gpu_hosts": {"hosts": VERSIONS}}))
    return user.playbook(name, [*own.hosts, inventory], *words, **{**WANTED, **variables})


def site(own: LabHosts, *words: str, **variables: object) -> user.Run:
    """Runs site.yml with all components, which succeeds."""
    run = play("site", own, *words, **variables)
    assert run.rc == 0, run.output
    return run


@dataclass
class Installed:
    """The first runs on fresh hosts: one in check mode, with the state of HOST before and after it, and one without."""

    before: list[str]
    preview: user.Run
    after_preview: list[str]
    run: user.Run


@pytest.fixture(scope="module")
def hosts(own: LabHosts) -> dict[str, DriverHost]:
    """The hosts by name; their state C(converged) is the one after the first run."""
    return {name: DriverHost(own, name) for name in (HOST, OTHER)}


@pytest.fixture(scope="module")
def first(own: LabHosts, hosts: dict[str, DriverHost]) -> Installed:
    """The first runs; the second host had DCGM 3 before."""
    own.sh(OTHER, FORMER.format(url=own.hosts[0].read_text().split('driver_repository_url: "')[1].split('"')[0]))
    before = own.snapshot(HOST)
    preview = site(own, "--check")
    after = own.snapshot(HOST)
    run = site(own)
    for host in hosts.values():
        host.save("converged")
    return Installed(before, preview, after, run)


@pytest.fixture
def converged(hosts: dict[str, DriverHost], first: Installed) -> None:
    """Both hosts in the state after the first run."""
    for host in hosts.values():
        host.start("converged")


@pytest.fixture
def shared(hosts: dict[str, DriverHost], converged: None) -> Iterator[None]:
    """The same hosts, for a test that does not change their state."""
    yield
    for host in hosts.values():
        host.left("converged")


@pytest.fixture
def trainer(own: LabHosts, shared: None) -> Iterator[None]:
    """A program that computes on the second GPU of HOST."""
    own.sh(HOST, "gpusim client add --gpu 1 trainer")
    yield
    own.sh(HOST, "gpusim client remove all")


def metrics_page(own: LabHosts, host: str, port: int = 9400) -> str:
    """The text that the exporter serves."""
    ask = f"python3 -c 'import urllib.request as u; print(u.urlopen(\"http://localhost:{port}/metrics\").read().decode())'"
    return until(lambda: own.sh(host, f"{ask} 2>/dev/null || true").strip(), f"metrics at port {port} of {host}")


def scrape(own: LabHosts, host: str, port: int = 9400) -> dict[str, list[float]]:
    """Maps each metric that the exporter serves to its values."""
    found: dict[str, list[float]] = {}
    for name, value in re.findall(r"^([A-Za-z_]+)\{[^}]*\} (\S+)$", metrics_page(own, host, port), re.M):
        found.setdefault(name, []).append(float(value))
    return found


def status(own: LabHosts, host: str) -> dict[str, float]:
    """The metrics of the node status, freshly written."""
    text = own.sh(host, "systemctl start gpuops-node-status && cat /var/lib/prometheus/node-exporter/*.prom")
    return {name: float(value) for name, value in re.findall(r"^([a-z_]+)\{[^}]*\} (\S+)$", text, re.M)}


def processes(own: LabHosts, host: str) -> list[str]:
    """Maps services to their main processes, which a restart changes."""
    return own.sh(host, f"systemctl show -p MainPID --value {UNITS[0]} {UNITS[1]}").split()


def test_check_names_what_the_first_run_does(first: Installed) -> None:
    assert first.after_preview == first.before
    for host in (HOST, OTHER):
        assert first.run.steps(host) == first.preview.steps(host)
        assert len(first.run.steps(host)["nvidia_software"]) > 5
    components = first.run.result(HOST, "nvidia_software")["components"]
    assert {name: part["version"] for name, part in components.items()} == {
        "cuda": "13.0.2", "dcgm": "4.6.0", "dcgm_exporter": "4.8.3", "node_status_exporter": None}
    assert [line["state"] for line in first.run.result(HOST, "gpu_info")["samples"]] == ["ok", "ok"]


def test_everything_runs(own: LabHosts, shared: None) -> None:
    for host in (HOST, OTHER):
        for unit in UNITS:
            assert own.sh(host, f"systemctl is-active {unit}; systemctl is-enabled {unit}").split() == \
                ["active", "enabled"], unit
    idle = scrape(own, HOST)
    assert len(idle["DCGM_FI_DEV_GPU_TEMP"]) == 2 and idle["DCGM_FI_DEV_GPU_UTIL"] == [0, 0]
    assert "13.0" in own.sh(HOST, "/usr/local/cuda/bin/nvcc --version")
    metrics = status(own, HOST)
    assert metrics["gpu_operator_node_driver_validation"] == 1 and metrics["gpuops_node_gpus"] == 2
    assert metrics["gpu_operator_node_driver_validation_last_success_ts_seconds"] > 1_700_000_000


def test_dcgm_4_has_taken_the_place_of_dcgm_3(own: LabHosts, shared: None) -> None:
    packages = own.sh(OTHER, "dpkg-query -W -f '${Package} ${db:Status-Abbrev}\n' 'datacenter-gpu-manager*'")
    assert "datacenter-gpu-manager ii" not in packages
    # A GPU that branch 580 is the last to drive needs the libraries of CUDA 12, too.
    assert "datacenter-gpu-manager-4-cuda12 ii" in packages and "datacenter-gpu-manager-4-cuda13 ii" in packages
    assert len(scrape(own, OTHER)["DCGM_FI_DEV_GPU_TEMP"]) == 1


def test_the_second_run_changes_nothing(own: LabHosts, trainer: None) -> None:
    assert scrape(own, HOST)["DCGM_FI_DEV_GPU_UTIL"][1] > 90
    before = [processes(own, host) for host in (HOST, OTHER)]
    again = site(own)
    for host in (HOST, OTHER):
        assert again.changed(host) == []
        on_host = [line for line in again.of(host) if line["action"] not in user.ON_CONTROLLER]
        assert len(again.of(host)) <= 25 and len(on_host) <= 8, [line["task"] for line in on_host]
    assert [processes(own, host) for host in (HOST, OTHER)] == before
    # The GPU that computes was left alone.
    assert [one["state"] for one in again.result(HOST, "gpu_info")["samples"]] == ["ok", "busy"]
    assert "trainer" in again.result(HOST, "gpu_info")["samples"][1]["reason"]


def test_another_port_and_other_counters_are_one_restart_of_the_exporter(own: LabHosts, converged: None) -> None:
    engine, exporter = processes(own, HOST)
    run = site(own, "--limit", HOST, dcgm_exporter_listen="127.0.0.1:9500",
               dcgm_exporter_counters="DCGM_FI_DEV_GPU_TEMP, gauge, degrees\n")
    assert [step for step in run.steps(HOST)["nvidia_software"] if "service" in step.split(":")[0]] == \
        ["restart service: nvidia-dcgm-exporter.service"]
    after = processes(own, HOST)
    assert after[0] == engine and after[1] != exporter
    assert list(scrape(own, HOST, 9500)) == ["DCGM_FI_DEV_GPU_TEMP"]
    assert processes(own, HOST) == after
    site(own, "--limit", HOST)
    assert "DCGM_FI_DEV_FB_USED" in scrape(own, HOST)
    assert "gpuops-counters" not in own.sh(HOST, "ls /etc/dcgm-exporter")


def test_arguments_variables_and_jobs_reach_the_exporter(own: LabHosts, converged: None) -> None:
    own.sh(HOST, "mkdir -p /run/jobs; echo 4711 > /run/jobs/0; touch /etc/web.yml")
    more = {"dcgm_exporter_args": ["--collect-interval=10000"], "dcgm_exporter_env": {"PROBE": 'a "b" 50% $HOME \\'},
            "dcgm_exporter_job_mapping": "/run/jobs", "dcgm_exporter_web_config": "/etc/web.yml"}
    run = site(own, "--limit", HOST, **more)
    assert [step for step in run.steps(HOST)["nvidia_software"] if "service" in step.split(":")[0]] == \
        ["restart service: nvidia-dcgm-exporter.service"]
    assert 'hpc_job="4711"' in metrics_page(own, HOST)
    process = own.sh(HOST, "systemctl show -P MainPID nvidia-dcgm-exporter").strip()
    assert "PROBE=a \"b\" 50% $HOME \\" in own.sh(HOST, f"tr '\\0' '\\n' < /proc/{process}/environ")
    assert own.sh(HOST, f"tr '\\0' ' ' < /proc/{process}/cmdline").rstrip().endswith(
        "--hpc-job-mapping-dir /run/jobs --web-config-file /etc/web.yml --collect-interval=10000")
    assert not site(own, "--limit", HOST, **more).steps(HOST).get("nvidia_software")
    site(own, "--limit", HOST)


def test_arguments_and_variables_reach_dcgm(own: LabHosts, converged: None) -> None:
    """The exporter is restarted with DCGM. A second run changes nothing, and without them the unit is as before."""
    more = {"dcgm_args": ["--log-level", "DEBUG"], "dcgm_env": {"PROBE": "a b"}}
    units = ["restart service: nvidia-dcgm.service", "restart service: nvidia-dcgm-exporter.service"]
    for variables in (more, {}):
        run = site(own, "--limit", HOST, **variables)
        assert [step for step in run.steps(HOST)["nvidia_software"] if "service" in step.split(":")[0]] == units
        process = own.sh(HOST, "systemctl show -P MainPID nvidia-dcgm").strip()
        command = own.sh(HOST, f"tr '\\0' ' ' < /proc/{process}/cmdline").rstrip()
        assert command.endswith("nvidia-dcgm --log-level DEBUG" if variables else "--service-account nvidia-dcgm")
        assert ("PROBE=a b" in own.sh(HOST, f"tr '\\0' '\\n' < /proc/{process}/environ")) == bool(variables)
        assert "DCGM_FI_DEV_GPU_TEMP" in scrape(own, HOST)
        assert not site(own, "--limit", HOST, **variables).steps(HOST).get("nvidia_software")
    assert "nvidia-dcgm.service.d" not in own.sh(HOST, "ls /etc/systemd/system")


def test_a_single_role_is_about_its_component_alone(own: LabHosts, converged: None) -> None:
    """Runs without a plan. The role finds what site.yml has installed as desired, and removes nothing else."""
    names = {"cuda": ["cuda"], "dcgm": ["dcgm"], "dcgm_exporter": ["dcgm", "dcgm_exporter"],
             "node_status_exporter": ["node_status_exporter"]}
    same = [Play({"cuda_version": "13.0"}, "main", role=role) for role in names]
    remove, install = (Play({}, tasks, role="node_status_exporter") for tasks in ("remove", "main"))
    *unchanged, removed, installed = series(own, HOST, "", [*same, remove, install])
    for (role, parts), done in zip(names.items(), unchanged):
        assert done.rc == 0 and done.changed(HOST) == [], (role, done.output)
        assert sorted(done.result(HOST, "nvidia_software")["components"]) == parts
    for done in (removed, installed):
        assert done.rc == 0 and [*done.result(HOST, "nvidia_software")["components"]] == ["node_status_exporter"]
        assert len(done.changed(HOST)) == 1, done.output
    for unit in UNITS:
        assert own.sh(HOST, f"systemctl is-active {unit}").strip() == "active"


def test_a_broken_driver_is_named(own: LabHosts, hosts: dict[str, DriverHost], converged: None) -> None:
    own.sh(HOST, "rmmod nvidia_uvm && rm -f /dev/nvidia-uvm")
    broken = play("verify", own, "--limit", HOST)
    assert broken.rc != 0
    assert any("CUDA_ERROR_UNKNOWN" in text and "nvidia-uvm" in text for text in broken.errors()), broken.output
    own.sh(HOST, "modprobe nvidia-uvm")
    own.sh(HOST, "systemctl stop nvidia-persistenced")
    stopped = play("verify", own, "--limit", HOST)
    own.sh(HOST, "systemctl start nvidia-persistenced")
    assert stopped.rc != 0 and any("nvidia-persistenced.service is inactive" in text for text in stopped.errors())
    with hosts[HOST].fault("gpu-lost:0", HOST):
        assert status(own, HOST)["gpu_operator_node_driver_validation"] == 0
        lost = play("verify", own, "--limit", HOST)
    assert lost.rc != 0 and any("does not answer" in text for text in lost.errors()), lost.output
    assert play("verify", own, "--limit", HOST).rc == 0


def test_wrong_values_change_nothing(own: LabHosts, shared: None) -> None:
    address = {"ansible_host": re.findall(r"ansible_host: (\S+)", own.hosts[0].read_text())[0]}
    inventory = own.hosts[0].parent / "wrong.json"
    inventory.write_text(json.dumps({"gpu_hosts": {"hosts": {
        name: {**VERSIONS[HOST], **address, **variables} for name, (variables, _text) in WRONG.items()}}}))
    # The first one has no plan, so that the others would not be looked at.
    for names in (["gpu-cuda"], ["gpu-port", "gpu-dcgm"]):
        wrong = user.playbook("site", [*own.hosts, inventory], "--limit", ",".join(names), **WANTED)
        assert wrong.rc != 0
        for name in names:
            errors = [line["result"]["msg"] for line in wrong.of(name, ("failed",))]
            assert any(WRONG[name][1] in error for error in errors), wrong.output
            assert wrong.changed(name) == []


def test_removal_leaves_what_was_there_before(own: LabHosts, first: Installed, converged: None) -> None:
    removed = user.playbook("remove", own.hosts, gpu_disruption="idle")
    assert removed.rc == 0, removed.output
    assert own.snapshot(HOST) == first.before
    assert "gpuops" not in own.sh(HOST, "ls -A /var/lib /usr/local/lib /etc; ls -A /var/lib/prometheus || true")
    gone = removed.result(OTHER, "nvidia_software")["components"]["dcgm"]["reasons"]
    assert any("datacenter-gpu-manager 1:3.3.9 was installed before" in reason for reason in gone)
