# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""All gates: C(python3 -m tests.gates [NAME ...]); without names, all of them. C(make test) and CI call this."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from lab import venv
from lab.stages import ROOT, Stages

BUILD = ROOT / ".build"
COLLECTIONS = BUILD / "collections"  # the checkout at a collection path, by a link
# Molecule installs a copy of the collection into the first folder of the path; here that is its own.
MOLECULE = {"ANSIBLE_HOME": str(BUILD / "molecule" / "home"),
            "ANSIBLE_COLLECTIONS_PATH": str(BUILD / "molecule" / "collections")}
# These take long and are seldom the ones that need the processor: they run beside what follows them.
BESIDE = ("sanity", "kill", "cluster", "sources", "toolkit", "kubelet")
# Virtual machines without KVM take two processors for themselves: they run when all else has ended.
LAST = ("vm", "kernel")
ON_HOSTS = {"lab", "kill", "sources", "toolkit", "kubelet", "driver", "integration", "molecule", "bench"}
# Measures, which a machine with other gates on it would spoil.
BY_NAME = ("bench",)
IN_CLUSTER = {"lab", "cluster", "kubelet", "integration", "molecule", "bench"}
# Tests of hosts that have labs of their own, by gate: what installs a driver from where, and what is around it.
HOSTS = {"kill": ("kill",), "sources": ("rpm", "zypper", "archive", "runfile"),
         "toolkit": ("toolkit", "toolkit_docker", "toolkit_cdi", "mig"),
         "driver": ("switch", "around", "components")}


def link_checkout() -> None:
    """Tools that want C(ansible_collections/gpuops/nvidia) above the code find it through this link."""
    link = COLLECTIONS / "ansible_collections" / "gpuops" / "nvidia"
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(ROOT)


def environment(bin_folder: Path) -> dict[str, str]:
    """Isolated from the user's Ansible: its home, its collections, its configuration."""
    return {
        "PATH": f"{bin_folder}:{os.environ['PATH']}",
        "ANSIBLE_HOME": str(BUILD / "ansible-home"),
        "ANSIBLE_COLLECTIONS_PATH": str(COLLECTIONS),
        "PYTHONPATH": f"{COLLECTIONS}:{ROOT}",
        "MYPYPATH": str(COLLECTIONS),
        "ANSIBLE_NOCOWS": "1",
        "NO_COLOR": "1",
    }


def commands() -> dict[str, list[str]]:
    """Name to command, in order. Slow ones that need few others' results are started early, see main()."""
    python = str(venv.VENV / "bin" / "python")
    on_hosts = {gate: [python, "-m", "pytest", *(f"tests/integration/test_{name}.py" for name in names)]
                for gate, names in HOSTS.items()}
    return {
        "ruff": ["ruff", "check", "."],
        "types": ["mypy", "-p", "ansible_collections.gpuops.nvidia.plugins.module_utils",
                  "-p", "ansible_collections.gpuops.nvidia.plugins.plugin_utils"],
        "yaml": ["yamllint", "--strict", "."],
        "sanity": [python, "-m", "tests.gates.sanity"],
        "docs": [python, "-m", "tests.gates.docs"],
        "unit": [python, "-m", "pytest", "tests/unit"],
        "ansible-lint": ["ansible-lint"],
        "conformance": [python, "-m", "pytest", "tests/conformance"],
        "lab": [python, "-m", "pytest", "tests/lab"],
        "vm": [python, "-m", "pytest", "tests/vm/test_driver.py"],
        "kernel": [python, "-m", "pytest", "tests/vm/test_kernel.py"],
        "kill": on_hosts["kill"],
        "sources": on_hosts["sources"],
        "toolkit": on_hosts["toolkit"],
        "cluster": [python, "-m", "pytest", "tests/integration_cluster"],
        "kubelet": [python, "-m", "pytest", "tests/kubelet"],
        "driver": on_hosts["driver"],
        "integration": [python, "-m", "pytest", "tests/integration",
                        *(f"--ignore={path}" for words in on_hosts.values() for path in words[3:])],
        "molecule": ["molecule", "test", "--all"],
        "bench": [python, "-m", "tests.bench"],
    }


def main(names: list[str]) -> int:
    """Runs the named gates (default: all but those of BY_NAME) and prints the table. Returns the exit code."""
    known = commands()
    wrong = [name for name in names if name not in known]
    if wrong:
        print(f"No gate named {', '.join(wrong)}; there are: {', '.join(known)}")
        return 2
    wanted = names or [name for name in known if name not in BY_NAME]
    stages = Stages("bench" if wanted == ["bench"] else "test")
    print("Everything runs on this machine. Gates: " + ", ".join(wanted), flush=True)
    if not names:
        print(f"Only by name: {', '.join(BY_NAME)}", flush=True)
    try:
        # What others stand on, started before anything else: by gates that need it, the command that provides it.
        bases = [(needed, stages.start(name, [sys.executable, "-m", *words])) for needed, name, words in (
            (IN_CLUSTER, "control plane build", ["lab", "cluster", "build"]), (ON_HOSTS, "lab up", ["lab", "up"]),
            ({"conformance", "toolkit", "kubelet"}, "containerd build", ["lab.tools", "containerd"]),
            ({"vm", "kernel"}, "vm build", ["lab", "vm", "build"]),
        ) if needed & set(wanted)]
        if not stages.run("venv", [sys.executable, "-m", "lab.venv", "--tests"]):
            return finish(stages)
        link_checkout()
        env = environment(venv.VENV / "bin")
        for group in ([name for name in wanted if name not in LAST], [name for name in wanted if name in LAST]):
            beside = []
            for name in group:
                due = [base for needed, base in bases if name in needed]
                bases = [(needed, base) for needed, base in bases if base not in due]
                if not all(stages.join(base) for base in due):
                    return finish(stages)
                mine = {**env, **MOLECULE} if name == "molecule" else env
                if name in (*BESIDE, *LAST):
                    beside.append(stages.start(name, known[name], mine))
                else:
                    stages.run(name, known[name], mine)
            for stage in beside:
                stages.join(stage)
    finally:
        stages.stop()
    return finish(stages)


def finish(stages: Stages) -> int:
    """The table, the sum, and where to look."""
    print(f"\n{stages.table()}\n")
    failed = stages.failed
    for stage in stages.done:
        if stage.rc:
            print(f"{stage.name}, the end of its log:")
            print("\n".join(f"    {line}" for line in stage.log.read_text(errors="replace").splitlines()[-40:]))
    if failed:
        print(f"Failed: {', '.join(failed)}. Logs: {stages.logs.relative_to(ROOT)}")
    print(f"{len(stages.done) - len(failed)} passed, {len(failed)} failed", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
