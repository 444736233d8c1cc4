# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whole playbooks on hosts each of which forges an answer, and on hosts whose cached facts are forged.

The sound host gets the same as in a run on it alone, the forging hosts are named, and nothing else happens.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import components
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.label_keys import MIG_CONFIG
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import mig_labels
from ansible_collections.gpuops.nvidia.tests.unit.simulated.server import ApiServer

from tests.integration import user
from tests.integration.hostile import compared, forged, local, sound

Data = dict[str, Any]
SOUND, REMEMBERED = "sound", "remembered"
# Those of which all hosts of the play ask gpu_info first.
LOOKING = ("site", "verify", "status", "preflight")
EVIDENCE = "gpu_evidence"
COMPONENTS = ("nvidia_driver", "container_toolkit", "nvidia_software", "mig_config")
# Facts that a cache may hold of a host: variables of this collection, of which each is refused.
CACHED = {**{name: value for name, value in forged.VARIABLES.items() if name.startswith(("gpu_", "driver_"))},
          "remove_from": {"batch": "100%", "disruption": "reboot"}, "hand_back_file": forged.CANARY,
          "hand_back_from": {"exported": {"x": 1}, "cluster": None}, "inventory_dir": "/tmp",
          "preflight_plan": {"batch": "100%"}, "maintenance_failure": "x"}


@dataclass
class Fleet:
    """folder: the folder of the hosts' programs; variables: maps hosts to variables, in the order of the inventory;
    lone: maps playbooks to the run on the sound host alone."""

    folder: Path
    variables: dict[str, Data]
    lone: dict[str, user.Run] = field(default_factory=dict)

    def run(self, playbook: str, hosts: list[str], settings: Mapping[str, str] | None = None) -> user.Run:
        """Runs a playbook on some of the hosts, with the sound one last. settings: environment variables."""
        inventory = self.folder / "inventory" / "hosts.json"
        inventory.parent.mkdir(exist_ok=True)
        inventory.write_text(json.dumps({"all": {"children": {"gpu_hosts": {
            "hosts": {host: self.variables[host] for host in [*hosts, SOUND]}}}}}))
        check = ["--check"] if playbook in ("site", "remove") else []
        run = user.playbook(playbook, [inventory], *check, "--forks", "20", settings=settings, gpu_disruption="idle",
                            mig_manager_selected="all-balanced",
                            hand_back_file=str(self.folder / f"policy-{len(hosts)}.yml"))
        assert [*inventory.parent.iterdir()] == [inventory]
        return run

    def alone(self, playbook: str) -> user.Run:
        """Runs a playbook on the sound host alone."""
        if playbook not in self.lone:
            self.lone[playbook] = self.run(playbook, [])
        return self.lone[playbook]

    def cached(self, host: str, facts: Data) -> dict[str, str]:
        """Adds a host; returns an environment in which Ansible has cached these facts of it from an earlier run."""
        settings = {"ANSIBLE_CACHE_PLUGIN": "jsonfile", "ANSIBLE_CACHE_PLUGIN_CONNECTION": str(self.folder / "cache")}
        play = self.folder / "remember.yml"
        play.write_text(json.dumps([{"hosts": host, "gather_facts": False, "tasks": [
            {"ansible.builtin.set_fact": {**facts, "cacheable": True}}]}]))
        self.variables[host] = local.host(self.folder, host, {})
        assert self.run(str(play), [host], settings).rc == 0
        return settings


@functools.cache
def answers() -> list[tuple[str, bytes]]:
    """(module, output) of forged answers, selected from all tables."""
    good = {module: json.dumps(answer) for module, answer in sound.answers(sound.facts()).items()}
    first = good["gpu_info"]
    found = [("gpu_info", one) for one in [*forged.of_facts(first, 8), *forged.of_variables(first)[::6],
                                           *forged.of_keys(first)[::6], *forged.outputs(first)[:6]]]
    for number, module in enumerate(COMPONENTS):
        every = [*forged.of_variables(good[module])[::4], *forged.of_keys(good[module]),
                 *forged.of_read(good[module])[::9], *forged.outputs(good[module])[:17]]
        found += [(module, one) for one in every[number::len(COMPONENTS)][::2]]
    logged = good[EVIDENCE]
    return [*found, *((EVIDENCE, one) for one in [*forged.of_keys(logged)[::6], *forged.of_read(logged)[::9],
                                                  *forged.outputs(logged)[:6]])]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    """A fleet with one host for each forged answer, and a sound one."""
    user.install()
    folder = tmp_path_factory.mktemp("forged")
    local.prepare(folder, sound.facts())
    variables = {f"forged-{number}": local.host(folder, f"forged-{number}", {module: output})
                 for number, (module, output) in enumerate(answers())}
    return Fleet(folder, {**variables, SOUND: local.host(folder, SOUND, {})})


def part(playbook: str) -> list[str]:
    """The forging hosts of a playbook: for diagnose those that forge the answer of its own module. The playbooks of
    LOOKING share all others; each other playbook has every sixth."""
    evidence = [f"forged-{number}" for number, (module, _output) in enumerate(answers()) if module == EVIDENCE]
    names = [name for name in (f"forged-{number}" for number in range(len(answers()))) if name not in evidence]
    if playbook == "diagnose":
        return evidence
    if playbook not in LOOKING:
        return names[::6]
    return names[LOOKING.index(playbook)::len(LOOKING)]


@pytest.mark.parametrize("playbook", [*LOOKING, "diagnose", "remove"])
def test_forged_answers(fleet: Fleet, playbook: str) -> None:
    assert len(answers()) >= 60
    hosts, alone = part(playbook), fleet.alone(playbook)
    run = fleet.run(playbook, hosts)
    assert compared.done(SOUND, alone)
    compared.beside(SOUND, run, alone, hosts)
    failed = {line["host"] for line in run.results if line["kind"] in ("failed", "unreachable")}
    forgers = {line["host"] for line in run.results if (line["result"].get("error") or {}).get("kind") == "answer"}
    assert len(forgers) >= 3 and all(host in run.output for host in failed | forgers)
    assert run.rc != 0 or playbook == "status"


def test_shells_that_print_what_a_terminal_obeys(fleet: Fleet) -> None:
    """What is printed on the way to an answer stands in errors and warnings of Ansible."""
    hosts = {f"shell-{number}-{pipelining}": {**local.over_ssh(fleet.folder, f"shell-{number}-{pipelining}", shell),
                                              "ansible_pipelining": pipelining == "piped"}
             for number, shell in enumerate(forged.shells()) for pipelining in ("piped", "copied")}
    fleet.variables.update(hosts)
    run = fleet.run("preflight", list(hosts))
    compared.beside(SOUND, run, fleet.alone("preflight"), hosts)
    ended = {kind: {line["host"] for line in run.results
                    if line["kind"] == kind and line["action"] == "gpuops.nvidia.gpu_info"}
             for kind in ("unreachable", "failed")}
    assert "shell-0-piped" in ended["unreachable"] and not ended["unreachable"] & ended["failed"]
    assert len(ended["unreachable"]) >= 6 and r"\x1b]0;owned" in run.output
    assert "Error deleting remote temporary files" in run.output


def test_a_host_that_prints_what_a_terminal_obeys_instead_of_rebooting(fleet: Fleet) -> None:
    """Its shell runs its Python and nothing else, so that nothing reboots."""
    beside = forged.shells()[0].rpartition(b"noise >&2; exit 255")[0]
    shell = beside + b"case $2 in *python*) exec /bin/sh \"$@\";; esac; noise; noise >&2; exit 1\n"
    variables = local.over_ssh(fleet.folder, "rebooting", shell)
    play = fleet.folder / "reboot.yml"
    play.write_text(json.dumps([{"hosts": "rebooting", "gather_facts": False, "tasks": [
        {"gpuops.nvidia.host_reboot": {}}]}]))
    fleet.variables["rebooting"] = {**variables, "ansible_python_interpreter": str(user.PYTHON)}
    run = fleet.run(str(play), ["rebooting"])
    result, = [line["result"] for line in run.of("rebooting")]
    assert run.rc != 0 and result["msg"].count(r"\x1b]0;owned") == 2, run.output
    assert "failed to get host boot time" in result["msg"] and not forged.OBEYED.search(run.output)


@pytest.fixture(scope="module")
def remembered(fleet: Fleet) -> dict[str, str]:
    """The environment in which the facts of one host are forged."""
    return fleet.cached(REMEMBERED, CACHED)


@pytest.mark.parametrize("playbook", [*LOOKING, "remove", "hand_back"])
def test_a_first_host_whose_cached_facts_are_forged(fleet: Fleet, remembered: dict[str, str], playbook: str) -> None:
    """Tasks for all hosts run on the first host. The first host fails with its name, and the run is that of the other
    hosts."""
    host, alone = REMEMBERED, fleet.alone(playbook)
    run = fleet.run(playbook, [host], remembered)
    compared.beside(SOUND, run, alone, [host])
    failed = {line["host"] for line in run.results if line["kind"] == "failed"}
    assert run.rc != 0 and host in failed, run.output[-3000:]
    assert (SOUND in failed) == (alone.rc != 0 or playbook == "preflight"), run.output[-3000:]
    assert f"{host} has a fact" in " ".join(run.output.split())
    assert local.asked(fleet.folder, host) == set()
    if playbook == "hand_back":
        assert (fleet.folder / "policy-1.yml").read_text() == (fleet.folder / "policy-0.yml").read_text()


@pytest.mark.parametrize("playbook", ["verify", "status", "preflight"])
def test_a_preview_that_ends_without_a_result_is_no_success(fleet: Fleet, playbook: str) -> None:
    """An option that cannot be templated ends the preview of a host before a module has answered."""
    fleet.variables["broken"] = {**local.host(fleet.folder, f"broken-{playbook}", {}),
                                 "gpu_undisturbed": "{{ 1 / 0 }}"}
    run = fleet.run(playbook, ["broken"])
    compared.beside(SOUND, run, fleet.alone(playbook), ["broken"])
    text = " ".join(run.output.split())
    assert "division by zero" in text and "failed before this module ran" in text, run.output[-4000:]
    assert run.rc != 0 or playbook == "status"


# Of gpu_info: one that is invalid, one that fails, and one of a host that has no GPU.
LEFT_OUT = {"forged": ({"changed": False, "facts": {}}, "is invalid"),
            "failing": ({"failed": True, "msg": "no sudo here", "error": {"kind": "host", "message": "no sudo here",
                                                                          "hint": "Look."}}, "no sudo here"),
            "bare": ({"changed": False, "facts": {**sound.facts(), "gpus": []}}, "no NVIDIA GPU is on its PCI bus")}


def test_mig_names_whom_it_leaves_out_and_serves_the_others(tmp_path: Path) -> None:
    """All Nodes have a requested layout; no Node waits for a host that is left out."""
    user.install()
    local.prepare(tmp_path / "hosts", sound.facts())
    hosts = {name: local.host(tmp_path / "hosts", name, {"gpu_info": json.dumps(answer).encode()})
             for name, (answer, _said) in LEFT_OUT.items()}
    hosts["away"] = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 9}
    hosts[SOUND] = local.host(tmp_path / "hosts", SOUND, {})
    server = ApiServer(tmp_path)
    server.put(*({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {
        "nvidia.com/gpu.present": "true", MIG_CONFIG: "all-1g.10gb"}}} for name in hosts))
    inventory = tmp_path / "hosts.json"
    inventory.write_text(json.dumps({"gpu_hosts": {"hosts": hosts}, "gpu_control": {"hosts": {
        "cluster": local.host(tmp_path / "hosts", "cluster", {})}}}))
    placed = {**dict.fromkeys(components.NAMES, "none"), "mig_manager": "host", "device_plugin": "cluster"}
    words = ("mig", [inventory], "-e", '{"gpu_max_unavailable": "100%"}')
    variables = {"gpu_placement": placed, "gpu_kubeconfig": str(server.kubeconfig), "gpu_disruption": "idle",
                 "mig_manager_boot": False}
    try:
        # The policy itself is refused for the host without a GPU.
        strict = user.playbook(*words, "--limit", "all:!bare", gpu_strict=True, **variables)
        assert strict.rc != 0 and "gpu_strict is set, and away, " in strict.output, strict.output[-6000:]
        assert not any(mig_labels.STATE in server.objects[f"/api/v1/nodes/{name}"]["metadata"]["labels"]
                       for name in hosts)
        run = user.playbook(*words, **variables)
    finally:
        server.close()
    said = " ".join(run.output.split())
    labels = {name: server.objects[f"/api/v1/nodes/{name}"]["metadata"]["labels"] for name in hosts}
    assert labels[SOUND].get(mig_labels.STATE) == mig_labels.SUCCESS, run.output[-6000:]
    failed = {line["host"]: str(line["result"].get("msg")) for line in run.results
              if line["kind"] in ("failed", "unreachable")}
    assert run.rc != 0 and SOUND not in failed
    for name, why in {**{name: why for name, (_answer, why) in LEFT_OUT.items()}, "away": "port 9"}.items():
        assert mig_labels.STATE not in labels[name] and why in failed.get(name, "") and why in said, (
            name, run.output[-6000:])
