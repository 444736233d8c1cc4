# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compromised hosts beside one that is not: the answers of their Python change only what is planned for them.

One container represents a hundred hosts of the inventory; each has a Python of its own with other answers, and some
have a shell of their own. The unit tests cover every answer that a module can forge (actions/test_forged.py,
floors/test_answers.py); here, each kind is part of whole runs.
"""

from __future__ import annotations

import base64
import io
import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab.host import engine
from lab.stages import ROOT
from tests.integration import user
from tests.integration.conftest import LabHosts, own_lab
from tests.integration.hostile import compared, forged, sound

HOSTILE, SOUND = "gpu-h1", "gpu-s1"
FOLDER = "/opt/hostile"
LATER = ("nvidia_driver", "container_toolkit")


@dataclass
class Fleet:
    """The lab. recorded: maps modules and calls to the output of the Python of a sound host."""

    lab: LabHosts
    recorded: dict[str, str]
    folder: Path

    def inventory(self, name: str, answers: list[dict[str, bytes]]) -> Path:
        """An inventory with one host for each. answers: maps modules, or calls of modules, to the outputs of the host,
        or C(shell) to the shell of the host."""
        at = json.loads(self.sh("cat /opt/hostile/at.json", HOSTILE))
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as archive:
            for number, mine in enumerate(answers):
                for module, output in mine.items():
                    member = tarfile.TarInfo(f"{name}-{number}/{module}")
                    member.size, member.mode = len(output), 0o755
                    archive.addfile(member, io.BytesIO(output))
        unpack = (f"cd {FOLDER} && base64 -d | tar -xz && for one in {name}-*; do ln -s ../python3 $one/python3; done")
        engine.podman("exec", "-i", self.lab._container(HOSTILE), "sh", "-c", unpack,
                      stdin=base64.b64encode(packed.getvalue()).decode())
        hosts = {f"{name}-{number}": {
            **at, "ansible_python_interpreter": f"{FOLDER}/{name}-{number}/python3",
            # Without pipelining, Ansible asks more of a shell.
            **({"ansible_shell_executable": f"{FOLDER}/{name}-{number}/shell", "ansible_pipelining": False}
               if "shell" in mine else {})} for number, mine in enumerate(answers)}
        path = self.folder / f"{name}.json"
        path.write_text(json.dumps({"all": {"children": {"gpu_hosts": {"hosts": hosts}}}}))
        return path

    def sh(self, script: str, host: str) -> str:
        """Runs a script on a host."""
        return self.lab.sh(host, script)

    def run(self, playbook: str, *words: str, more: tuple[Path, ...] = (), limit: str = "") -> user.Run:
        """Runs a playbook on the sound host and the hosts of these inventories."""
        return user.playbook(playbook, [*self.lab.hosts, *more], *words, "--forks", "20", "--limit",
                             limit or f"all:!{HOSTILE}", gpu_disruption="idle",
                             gpu_policy=str(ROOT / "lab" / "demo" / "policy.yml"))


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Both hosts as delivered, and the answers of one of them in a whole run."""
    Path(forged.CANARY).unlink(missing_ok=True)
    with own_lab("hostile", f"{HOSTILE}=a100-80:2,{SOUND}=l40s:1") as lab:
        script = base64.b64encode((Path(forged.__file__).parent / "python3").read_bytes()).decode()
        lab.sh(HOSTILE, f"mkdir -p {FOLDER}/recorded && cd {FOLDER} && echo {script} | base64 -d > python3 && "
                        "chmod 755 python3 && ln -s ../python3 recorded/python3")
        found = user.ansible("ansible-inventory", f"-i{lab.hosts[0]}", "--host", HOSTILE)
        at = {key: value for key, value in json.loads(found.output).items() if key.startswith("ansible_")}
        lab.sh(HOSTILE, f"echo {base64.b64encode(json.dumps(at).encode()).decode()} | base64 -d > {FOLDER}/at.json")
        made = Fleet(lab, {}, tmp_path_factory.mktemp("hostile"))
        done = user.playbook("site", lab.hosts, "--limit", HOSTILE, gpu_disruption="idle",
                             gpu_policy=str(ROOT / "lab" / "demo" / "policy.yml"),
                             ansible_python_interpreter=f"{FOLDER}/recorded/python3")
        assert done.rc == 0, done.output
        for name in lab.sh(HOSTILE, f"cd {FOLDER}/recorded && ls -p | grep -v /").split():
            if name != "python3":
                made.recorded[name] = lab.sh(HOSTILE, f"cat {FOLDER}/recorded/{name}")
        assert {"gpu_info.1", *(f"{module}.1" for module in LATER)} <= set(made.recorded)
        yield made
    Path(forged.CANARY).unlink(missing_ok=True)


def beside(fleet: Fleet, run: user.Run, alone: user.Run, hosts: set[str]) -> None:
    """See L(compared.beside). Also checks on the hosts themselves that no answer of the others was obeyed."""
    compared.beside(SOUND, run, alone, hosts)
    for host in (HOSTILE, SOUND):
        assert fleet.sh(f"ls {forged.CANARY} 2>&1 || true", host).startswith("ls:")


def of_facts(fleet: Fleet) -> list[dict[str, bytes]]:
    """Forged answers to the first module, and of shells."""
    good = fleet.recorded["gpu_info.1"]
    answers = [*forged.of_facts(good, 2 * len(forged.VALUES)), *forged.of_variables(good), *forged.of_keys(good),
               *forged.outputs(good)]
    return [*({"gpu_info": answer} for answer in answers), *({"shell": shell} for shell in forged.shells())]


def of_modules(fleet: Fleet) -> list[dict[str, bytes]]:
    """Forged answers of the modules that change hosts."""
    answers: list[dict[str, bytes]] = []
    for module in LATER:
        good = fleet.recorded[f"{module}.1"]
        every = [*forged.of_variables(good)[::4], *forged.of_keys(good), *forged.outputs(good)]
        answers += [{module: one} for one in every[LATER.index(module)::len(LATER)]]
    return answers


def test_there_are_two_hundred(fleet: Fleet) -> None:
    """With those of mig.yml in a cluster (integration_cluster/test_forged_hosts.py)."""
    batch = forged.in_batch(json.dumps(sound.answers(sound.facts())["mig_config"]))
    assert len(of_facts(fleet)) + len(of_modules(fleet)) + len(batch) >= 200


def test_facts(fleet: Fleet) -> None:
    """For each forged answer to the first module, the host is left out or gets a plan that affects no other host."""
    answers = of_facts(fleet)
    inventory = fleet.inventory("facts", answers)
    hosts = {f"facts-{number}" for number in range(len(answers))}
    alone = fleet.run("site", "--check", "--tags", "preflight", limit=SOUND)
    assert alone.rc == 0, alone.output
    run = fleet.run("site", "--check", "--tags", "preflight", more=(inventory,))
    beside(fleet, run, alone, hosts)
    plan = compared.plan(run)
    failed = {line["host"] for line in run.results if line["kind"] in ("failed", "unreachable")}
    silent = hosts - set(plan["hosts"]) - set(plan["rejected"]) - failed
    assert silent == set(), [str(answers[int(host.partition("-")[2])])[:300] for host in sorted(silent)]
    gone = {line["host"] for line in run.results if line["kind"] == "unreachable"}
    assert len([number for number, one in enumerate(answers) if "shell" in one and f"facts-{number}" in gone]) >= 3
    assert len(set(plan["rejected"]) | failed) >= 40


def test_modules(fleet: Fleet) -> None:
    """Hosts whose facts are accepted, but which forge the answers of the modules that change them."""
    answers = of_modules(fleet)
    hosts = {f"modules-{number}" for number in range(len(answers))}
    inventory = fleet.inventory("modules", answers)
    alone = fleet.run("site", "--check", limit=SOUND)
    assert alone.rc == 0, alone.output
    beside(fleet, fleet.run("site", "--check", more=(inventory,)), alone, hosts)
    # And the sound host gets what it shall have, whatever the others say: some of each kind, as the same action judges
    # what a module answers in check mode and in a run that changes hosts.
    some = fleet.inventory("some", answers[::4])
    done = fleet.run("site", more=(some,))
    assert done.rc != 0
    assert [line for line in done.of(SOUND) if line["kind"] == "failed"] == []
    verified = fleet.run("verify", limit=SOUND)
    assert verified.rc == 0, verified.output
    assert not Path(forged.CANARY).exists() and "Traceback" not in done.output
