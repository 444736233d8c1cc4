# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A user of the collection: installed from its tarball into an environment that does not see the checkout."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab.stages import ROOT
from lab.tools import write_whole

HOME = ROOT / ".build" / "user"
CALLBACKS = Path(__file__).parent / "callbacks"
# Actions that run no module on the host.
ON_CONTROLLER = {"ansible.builtin.assert", "ansible.builtin.debug", "ansible.builtin.set_fact", "ansible.builtin.meta",
                 "ansible.builtin.validate_argument_spec",
                 "gpuops.nvidia.gpu_policy", "gpuops.nvidia.gpu_verify", "gpuops.nvidia.gpu_report"}


@dataclass
class Run:
    """What an ansible-playbook run did. results: the lines of the record callback."""

    rc: int
    output: str
    results: list[dict[str, Any]] = field(default_factory=list)

    def of(self, host: str, kinds: tuple[str, ...] = ("ok", "failed")) -> list[dict[str, Any]]:
        """The executed tasks of a host."""
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


def tree_digest() -> str:
    """Changes with any file that git does not ignore."""
    names = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "-z", "galaxy.yml", "meta", "playbooks",
                            "plugins", "roles", "requirements.txt", "examples"], cwd=ROOT, check=True,
                           capture_output=True, text=True).stdout.split("\0")
    whole = hashlib.sha256()
    for name in sorted(filter(None, names)):
        if (ROOT / name).is_file():
            whole.update(name.encode() + b"\0" + (ROOT / name).read_bytes())
    return whole.hexdigest()


def install() -> Path:
    """Builds the tarball and installs it; again only when something changed. Returns the bin folder."""
    env = environment()
    with open(HOME / "lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _install(env)


def _install(env: dict[str, str]) -> Path:
    bin_folder = HOME / "venv" / "bin"
    needed, installed = ROOT / "requirements.txt", HOME / "venv" / "requirements.txt"
    if not installed.exists() or installed.read_text() != needed.read_text():
        subprocess.run([sys.executable, "-m", "venv", str(HOME / "venv")], check=True)
        subprocess.run([str(bin_folder / "pip"), "install", "-q", "--disable-pip-version-check", "-r", str(needed)],
                       check=True)
        shutil.copy(needed, installed)
    stamp = HOME / "digest"
    if not stamp.exists() or stamp.read_text() != tree_digest():
        shutil.rmtree(HOME / "collections", ignore_errors=True)
        for old in HOME.glob("*.tar.gz"):
            old.unlink()
        galaxy = [str(bin_folder / "ansible-galaxy"), "collection"]
        for words in (["build", "--force", "--output-path", str(HOME), str(ROOT)],
                      ["install", str(HOME / "gpuops-nvidia-0.1.0.tar.gz"), "-p", str(HOME / "collections")]):
            subprocess.run([*galaxy, *words], check=True, cwd=HOME, env=env, capture_output=True)
        stamp.write_text(tree_digest())
    return bin_folder


def environment() -> dict[str, str]:
    """The environment of that user: nothing of the checkout, nothing of this machine's Ansible."""
    HOME.mkdir(parents=True, exist_ok=True)
    env = {key: value for key, value in os.environ.items()
           if not key.startswith("ANSIBLE_") and key not in ("PYTHONPATH", "MYPYPATH", "VIRTUAL_ENV")}
    env.update({"ANSIBLE_HOME": str(HOME / "ansible"), "ANSIBLE_COLLECTIONS_PATH": str(HOME / "collections"),
                "PATH": f"{HOME / 'venv' / 'bin'}:{os.environ['PATH']}", "ANSIBLE_NOCOWS": "1", "LC_ALL": "C.UTF-8",
                "ANSIBLE_FORCE_COLOR": "0", "ANSIBLE_PIPELINING": "1", "ANSIBLE_FORKS": "10",
                "ANSIBLE_CALLBACK_PLUGINS": str(CALLBACKS), "ANSIBLE_CALLBACKS_ENABLED": "record"})
    return env


def ansible(program: str, *arguments: str, timeout: float = 1800) -> Run:
    """Runs a program of ansible from a folder outside the checkout's tree of collections."""
    record = HOME / f"record-{os.getpid()}.jsonl"
    record.unlink(missing_ok=True)
    done = subprocess.run([str(HOME / "venv" / "bin" / program), *arguments], cwd=HOME, timeout=timeout, check=False,
                          env={**environment(), "RECORD_FILE": str(record)}, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    lines = [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []
    return Run(done.returncode, done.stdout, lines)


def role(name: str, tasks: str = "host") -> str:
    """A playbook with one task file of a role, as a user of single roles has it; its path.

    Gates that run at the same time have the same ones.
    """
    play = HOME / f"{name}-{tasks}.yml"
    write_whole(play, "- hosts: all\n  gather_facts: false\n  tasks:\n    - ansible.builtin.import_role:\n"
                      f"        name: gpuops.nvidia.{name}\n        tasks_from: {tasks}\n")
    return str(play)


def playbook(name: str, inventories: Sequence[Path], *arguments: str, **variables: Any) -> Run:
    """C(ansible-playbook gpuops.nvidia.NAME) (or a path) with extra variables."""
    return ansible("ansible-playbook", *(f"-i{path}" for path in inventories), *arguments,
                   *(["-e", json.dumps(variables)] if variables else []),
                   name if "/" in name else f"gpuops.nvidia.{name}")
