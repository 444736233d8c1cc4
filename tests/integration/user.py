# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A user of the collection: installed from its tarball into an environment that does not see the checkout."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab import venv
from lab.host import engine, image
from lab.stages import ROOT
from lab.tools import write_whole
from tests.integration.warm import Pool

HOME = ROOT / ".build" / "user"
# The default looks for a result a thousand times a second, for 3 % of a processor in each run.
CONFIGURATION = "[defaults]\ninternal_poll_interval = 0.01\n"
KEPT = 4  # installed collections beside a new one
CALLBACKS = Path(__file__).parent / "callbacks"
PYTHON = HOME / "venv" / "bin" / "python"
WARM = Pool(PYTHON, HOME, {})
# Actions that run no module on the host.
ON_CONTROLLER = {"ansible.builtin.assert", "ansible.builtin.debug", "ansible.builtin.set_fact", "ansible.builtin.meta",
                 "ansible.builtin.validate_argument_spec",
                 "gpuops.nvidia.gpu_policy", "gpuops.nvidia.gpu_verify", "gpuops.nvidia.gpu_report",
                 "gpuops.nvidia.gpu_diagnosis"}


@dataclass
class Run:
    """The result of a run of ansible-playbook. results: the lines of the record callback."""

    rc: int
    output: str
    results: list[dict[str, Any]] = field(default_factory=list)

    def of(self, host: str, kinds: tuple[str, ...] = ("ok", "failed")) -> list[dict[str, Any]]:
        """The tasks that were executed on a host."""
        return [line for line in self.results if line["host"] == host and line["kind"] in kinds]

    def steps(self, host: str) -> dict[str, list[str]]:
        """C({module: [step id, ...]}) of the tasks that converge a host (previews of play 1 left out)."""
        found: dict[str, list[str]] = {}
        for line in self.of(host):
            result = line["result"]
            if "plan" in result and isinstance(result["plan"], list) and not line["play"].startswith("Resolve"):
                ids = [step["id"] for step in result["plan"]]
                if ids:
                    found.setdefault(line["action"].rsplit(".", 1)[-1], []).extend(ids)
        return found

    def result(self, host: str, action: str) -> dict[str, Any]:
        """The last result of a module on a host."""
        return next(line["result"] for line in reversed(self.of(host)) if line["action"].endswith("." + action))

    def changed(self, host: str) -> list[str]:
        """The names of the changed tasks of a host."""
        return [line["task"] for line in self.of(host) if line["result"].get("changed")]

    def errors(self) -> list[str]:
        """The message of each failed or unreachable result."""
        return [str(line["result"].get("msg")) for line in self.results if line["kind"] in ("failed", "unreachable")]


@functools.cache
def collections() -> Path:
    """The folder of the collection as the checkout was at the first call of this process; later edits get another
    folder."""
    return HOME / "collections" / tree_digest()[:12]


def tree_digest() -> str:
    """A digest that changes with each file that Galaxy would ship and git does not ignore."""
    names = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "-z", "galaxy.yml", "meta", "playbooks",
                            "plugins", "roles", "requirements.txt", "examples"], cwd=ROOT, check=True,
                           capture_output=True, text=True).stdout.split("\0")
    whole = hashlib.sha256()
    for name in sorted(filter(None, names)):
        if (ROOT / name).is_file():
            whole.update(name.encode() + b"\0" + (ROOT / name).read_bytes())
    return whole.hexdigest()


def install() -> Path:
    """Builds the tarball and installs it, unless this state of the checkout is already installed. Returns the bin
    folder."""
    env = environment()
    with open(HOME / "lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        write_whole(HOME / "ansible.cfg", CONFIGURATION)
        bin_folder = venv.make(HOME / "venv", [ROOT / "requirements.txt"], "run")
        keep_code(bin_folder.parent)
        if not collections().exists():
            _install(bin_folder / "ansible-galaxy", env)
        return bin_folder


def keep_code(environment: Path) -> None:
    """Gives an environment the bytecode cache that lab hosts have, for modules that run on this machine."""
    for source in (image.HERE / "python").iterdir():
        for site in environment.glob("lib/python3.*/site-packages"):
            write_whole(site / source.name, source.read_text())


def _install(galaxy: Path, env: dict[str, str]) -> None:
    collections().parent.mkdir(parents=True, exist_ok=True)
    # Those of other states stay for the runs that use them; a few are enough.
    for old in sorted(collections().parent.iterdir(), key=lambda folder: folder.stat().st_mtime)[:-KEPT]:
        shutil.rmtree(old)
    with tempfile.TemporaryDirectory(dir=HOME) as folder:
        def run(*words: str) -> None:
            done = subprocess.run([str(galaxy), "collection", *words], check=False, cwd=HOME, env=env, text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=600)
            if done.returncode:
                raise SystemExit(f"ansible-galaxy collection {' '.join(words)}: {done.stdout}")

        run("build", "--output-path", folder, str(ROOT))
        run("install", *map(str, Path(folder).glob("*.tar.gz")), "-p", f"{folder}/installed")
        Path(folder, "installed").rename(collections())


def environment() -> dict[str, str]:
    """The environment of that user, without anything from the checkout, from the Ansible of this machine, or from the
    running test."""
    HOME.mkdir(parents=True, exist_ok=True)
    env = {key: value for key, value in os.environ.items()
           if not key.startswith(("ANSIBLE_", "PYTEST_")) and key not in ("PYTHONPATH", "MYPYPATH", "VIRTUAL_ENV")}
    env.update({"ANSIBLE_HOME": str(HOME / "ansible"), "ANSIBLE_CONFIG": str(HOME / "ansible.cfg"),
                "ANSIBLE_COLLECTIONS_PATH": str(collections()),
                "PATH": f"{HOME / 'venv' / 'bin'}:{os.environ['PATH']}", "ANSIBLE_NOCOWS": "1", "LC_ALL": "C.UTF-8",
                "ANSIBLE_FORCE_COLOR": "0", "ANSIBLE_PIPELINING": "1", "ANSIBLE_FORKS": "10",
                "ANSIBLE_CALLBACK_PLUGINS": str(CALLBACKS), "ANSIBLE_CALLBACKS_ENABLED": "record"})
    if engine.keeps_code():
        env["GPUOPS_KEPT_CODE"] = str(engine.kept_code())
    return env


def ansible(program: str, *arguments: str, timeout: float = 600, cold: bool = False,
            settings: Mapping[str, str] | None = None, cwd: Path = HOME) -> Run:
    """Runs an Ansible program from a folder outside the collections tree of the checkout.

    timeout: seconds after which a run is killed and fails. cold: start the program itself; otherwise, runs of
    ansible-playbook share one import of Ansible. settings: further variables of the environment. cwd: the working
    directory.
    """
    record = HOME / f"record-{os.getpid()}.jsonl"
    record.unlink(missing_ok=True)
    argv, env = [str(HOME / "venv" / "bin" / program), *arguments], {**environment(), "RECORD_FILE": str(record),
                                                                                 **(settings or {})}
    if program == "ansible-playbook" and not cold:
        code, output = WARM.run(argv, env, timeout, cwd)
    else:
        done = subprocess.run(argv, cwd=cwd, timeout=timeout, check=False, env=env, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        code, output = done.returncode, done.stdout
    lines = [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []
    return Run(code, output, lines)


def role(name: str, tasks: str = "host") -> str:
    """Writes a playbook with one task file of a role, as a user of single roles does; returns its path.

    Gates that run at the same time share these playbooks.
    """
    play = HOME / f"{name}-{tasks}.yml"
    write_whole(play, "- hosts: all\n  gather_facts: false\n  tasks:\n    - ansible.builtin.import_role:\n"
                      f"        name: gpuops.nvidia.{name}\n        tasks_from: {tasks}\n")
    return str(play)


def playbook(name: str, inventories: Sequence[Path], *arguments: str, cold: bool = False,
             settings: Mapping[str, str] | None = None, cwd: Path = HOME, **variables: Any) -> Run:
    """Runs C(ansible-playbook gpuops.nvidia.NAME) (or a path) with extra variables. cold, settings, cwd: as in
    L(ansible).
    """
    return ansible("ansible-playbook", *(f"-i{path}" for path in inventories), *arguments,
                   *(["-e", json.dumps(variables)] if variables else []),
                   name if "/" in name else f"gpuops.nvidia.{name}", cold=cold, settings=settings, cwd=cwd)
