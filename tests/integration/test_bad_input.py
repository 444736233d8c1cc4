# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bad input gives one clear error each, before anything is changed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration import user
from tests.integration.conftest import LabHosts

HOST = "gpu-a2"
POLICY = {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": {"name": "cluster-policy"}}
# A case: variables of a run of site.yml, and what its error says. These are about all hosts of a play: each is a run.
OF_A_PLAY: dict[str, tuple[dict[str, Any], str]] = {
    "unknown key": ({"gpu_policy": {**POLICY, "spec": {"driver": {"verison": "595.91.07"}}}}, "spec.driver.verison"),
    "wrong type": ({"gpu_policy": {**POLICY, "spec": {"driver": {"enabled": "perhaps"}}}}, "spec.driver.enabled"),
    "unknown release": ({"gpu_release": "12.1.0"}, "12.1.0"),
    "unknown disruption": ({"gpu_disruption": "always"}, "always"),
}
# Those of one host. In one run it has a name for each case.
OF_A_HOST: dict[str, tuple[dict[str, Any], str]] = {
    "wrong fingerprint": ({"driver_repository_fingerprint": "A" * 40}, "A" * 40),
    "unreachable repository": ({"driver_repository_url": "http://127.0.0.1:9/none"}, "127.0.0.1:9"),
    "version not there": ({"driver_version": "595.1.1"}, "595.1.1"),
    "profile the GPU lacks": ({"mig_manager_selected": "all-1g.18gb"}, "1g.18gb"),
    "wrong toolkit fingerprint": ({"container_toolkit_repository_fingerprint": "B" * 40}, "B" * 40),
}
CASES = {**OF_A_PLAY, **OF_A_HOST}


@dataclass
class Told:
    """The messages of the runs of all cases on one host, and its snapshots before and after them. cases: maps names to
    the run and the name of the host in it.
    """

    cases: dict[str, tuple[user.Run, str]]
    without_gpu: user.Run
    preflight: user.Run
    document: Path
    unreachable: user.Run
    before: list[str]
    after: list[str]


@contextmanager
def fault(lab: LabHosts, name: str) -> Iterator[None]:
    """A context in which HOST has a fault."""
    lab("fault", HOST, name, "on")
    try:
        yield
    finally:
        lab("fault", HOST, name, "off")


def alias(case: str) -> str:
    """The name of the host in a case."""
    return case.replace(" ", "-")


def aliases(lab: LabHosts, inventory: Path) -> user.Run:
    """The cases of one host, one after another: in parallel, they would wait for each other's locks."""
    hosts = yaml.safe_load(lab.hosts[0].read_text())["all"]["children"]["gpu_hosts"]["hosts"]
    inventory.write_text(json.dumps({"gpu_hosts": {"hosts": {
        alias(name): {**hosts[HOST], **variables} for name, (variables, _expected) in OF_A_HOST.items()}}}))
    return user.playbook("site", [*lab.hosts, inventory], "--limit", ",".join(map(alias, OF_A_HOST)), "--forks", "1")


@pytest.fixture(scope="module")
def told(lab: LabHosts, tmp_path_factory: pytest.TempPathFactory) -> Told:
    """Runs all cases on a fresh host."""
    lab.reset(HOST)
    before = lab.snapshot(HOST)
    cases = {name: (user.playbook("site", lab.hosts, "--limit", HOST, **variables), HOST)
             for name, (variables, _expected) in OF_A_PLAY.items()}
    together = aliases(lab, tmp_path_factory.mktemp("aliases") / "hosts.json")
    cases.update({name: (together, alias(name)) for name in OF_A_HOST})
    with fault(lab, "no-gpus"):
        without_gpu = user.playbook("site", lab.hosts, "--limit", HOST)
    document = tmp_path_factory.mktemp("preflight") / "preflight.json"
    with fault(lab, "nouveau"):
        preflight = user.playbook("preflight", lab.hosts, "--limit", HOST, gpu_report_json=str(document),
                                  driver_branch=470, driver_kernel_module_type="open")
    unreachable = user.playbook("site", lab.hosts, "--limit", f"{HOST},gpu-l1", "-e",
                                '{"ansible_ssh_common_args": "-o ConnectTimeout=3"}', ansible_port=9)
    return Told(cases, without_gpu, preflight, document, unreachable, before, lab.snapshot(HOST))


@pytest.mark.parametrize("case", CASES)
def test_one_clear_error(told: Told, case: str) -> None:
    (run, host), expected = told.cases[case], CASES[case][1]
    assert run.rc != 0, run.output
    error, = [str(line["result"].get("msg")) for line in run.of(host, ("failed", "unreachable"))]
    assert expected in error
    assert len(run.errors()) == (1 if case in OF_A_PLAY else len(OF_A_HOST)), run.errors()
    assert "Traceback" not in run.output and "MODULE FAILURE" not in run.output


def test_a_host_without_a_gpu(told: Told) -> None:
    run = told.without_gpu
    assert run.rc != 0 and len(run.errors()) == 1, run.output
    assert HOST in run.errors()[0] and "GPU" in run.errors()[0]


def test_preflight_names_everything_that_stands_in_the_way(told: Told) -> None:
    run = told.preflight
    assert run.rc != 0 and "Traceback" not in run.output, run.output
    report = json.loads(told.document.read_text())
    assert [sorted(one["id"] for one in refusal["constraints"]) for refusal in report["refusals"]] == [
        ["branch.flavours", "driver.kernelModuleType", "driver.version"]]
    found = {(one["severity"], one["check"]) for one in report["findings"] if HOST in str(one["host"])}
    assert report["counts"]["error"] > 0 and {check for _severity, check in found} >= {"nouveau"}, found
    assert "nouveau" in run.output


def test_an_unreachable_host(told: Told) -> None:
    run = told.unreachable
    assert run.rc != 0
    assert any("unreachable" in error.lower() or "connect" in error.lower() for error in run.errors()), run.output


def test_none_of_these_runs_changed_anything(told: Told) -> None:
    assert told.after == told.before


def test_a_file_that_is_refused_on_one_host_stops_no_other(lab: LabHosts) -> None:
    """With gpu_strict, nothing is changed on any host."""
    other = "gpu-l1"
    for host in (HOST, other):
        lab.reset(host)
    lab.sh(HOST, "mkdir -p /etc/containerd; echo '[plugins' >/etc/containerd/config.toml")
    before = {host: lab.snapshot(host) for host in (HOST, other)}
    words = ("--limit", f"{HOST},{other}")
    placement = dict.fromkeys(("cuda", "feature_discovery", "dcgm", "dcgm_exporter", "mig_manager",
                               "node_status_exporter", "validator"), "none")
    strict = user.playbook("site", lab.hosts, *words, gpu_placement=placement, gpu_strict=True)
    said = f"gpu_strict is set, and {HOST} failed. Nothing was changed."
    assert strict.rc == 2 and said in strict.output, strict.output
    assert {host: lab.snapshot(host) for host in before} == before
    done = user.playbook("site", lab.hosts, *words, gpu_placement=placement)
    assert done.rc == 2 and any("/etc/containerd/config.toml" in error for error in done.errors()), done.output
    assert lab.snapshot(HOST) == before[HOST]
    assert done.steps(other)["container_toolkit"] and not done.steps(HOST), done.output
    assert "nvidia" in lab.sh(other, "containerd config dump | grep -A8 'runtimes.nvidia'")
