# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The gates: what each runs, what it needs, how long it takes, and which changes affect it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from lab import venv
from lab.stages import ROOT

BUILD = ROOT / ".build"
COLLECTIONS = BUILD / "collections"  # the checkout at a collection path, by a link
BIN = venv.VENV / "bin"
PYTHON = str(BIN / "python")


@dataclass(frozen=True)
class Gate:
    """A command of the gates.

    argv: the command, for pytest without the tests. tests: patterns of paths of test files in the checkout.
    minutes, cores: its duration on two cores together with other gates, and the average number of cores that it uses
    (core-minutes divided by minutes, as a run prints them): tests on hosts and clusters wait a lot. The schedule uses
    both.
    needs: gates that must have passed. inputs: patterns of further files that affect it, in addition to the
    dependencies of its tests and its program; ignores: patterns of such dependencies that none of its tests reaches.
    only_own_tests: why C(make check) runs it only where its own tests or its inputs have changed. nearest: patterns of
    files with the tests that are about these: if such a file changes, C(make check) runs only those, because the other
    tests use it in whole playbooks. The first pattern that a file matches counts. A file that matches none runs all
    tests that depend on it.
    """

    name: str
    argv: Sequence[str]
    minutes: float
    cores: float = 1.0
    needs: tuple[str, ...] = ("venv",)
    tests: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    only_own_tests: str = ""
    ignores: tuple[str, ...] = ()
    nearest: tuple[tuple[str, tuple[str, ...]], ...] = ()


# What is delivered in a cluster, which tests on hosts alone have not; gpu_verify can compare both.
OPERANDS = ("roles/*/templates/*", "roles/*/files/*")
# What runs on GPU hosts, by the module that it is for. The files beside these serve all of them.
DRIVER = ("plugins/modules/nvidia_driver.py", "plugins/module_utils/_driver/*", "plugins/module_utils/_packages/*")
SOFTWARE = ("plugins/modules/nvidia_software.py", "plugins/module_utils/_software/*")
TOOLKIT = ("plugins/modules/container_toolkit.py", "plugins/module_utils/_toolkit/*")
MIG = ("plugins/modules/mig_config.py", "plugins/module_utils/_mig/*")
SETTINGS = ("plugins/modules/gpu_settings.py", "plugins/module_utils/_settings/*")
LABELS = ("plugins/modules/gpu_labels.py", "plugins/module_utils/_labels/*")
FACTS = ("plugins/modules/gpu_info.py", "plugins/module_utils/_facts/*")
ON_A_HOST = (*DRIVER, *SOFTWARE, *TOOLKIT, *MIG, *SETTINGS, *LABELS, *FACTS)
# By a word in the name of a file of the two rooms of the driver, the tests of that source.
SOURCES = {"runfile": "runfile", "archive": "archive", "zypper": "zypper", "suse": "zypper", "rpm": "rpm", "dnf": "rpm"}


def pytest(name: str, minutes: float, cores: float, needs: tuple[str, ...], *tests: str,
           inputs: tuple[str, ...] = (), only_own_tests: str = "", ignores: tuple[str, ...] = (),
           nearest: dict[str, Sequence[str]] | None = None) -> Gate:
    """A gate that runs tests. nearest: maps patterns of files to the names of test files without C(test_) and
    C(.py)."""
    folder = tests[0].rpartition("/")[0]
    paths = tuple((pattern, tuple(f"{folder}/test_{word}.py" for word in words))
                  for pattern, words in (nearest or {}).items())
    return Gate(name, (PYTHON, "-m", "pytest"), minutes, cores, ("venv", *needs), tests, inputs, only_own_tests,
                ignores, paths)


def on_hosts(name: str, minutes: float, cores: float, *tests: str, needs: tuple[str, ...] = ("lab",),
             inputs: tuple[str, ...] = (), only_own_tests: str = "",
             nearest: dict[str, Sequence[str]] | None = None) -> Gate:
    """A gate that runs test files of tests/integration."""
    paths = [f"tests/integration/test_{test}.py" for test in tests]
    return pytest(name, minutes, cores, needs, *paths, inputs=inputs, only_own_tests=only_own_tests,
                  ignores=OPERANDS, nearest=nearest)


def on_clusters(name: str, minutes: float, cores: float, *tests: str, nearest: Sequence[str] = ()) -> Gate:
    """A gate that runs test files of tests/integration_cluster. nearest: those that are about the manifests."""
    paths = [f"tests/integration_cluster/test_{test}.py" for test in tests]
    return pytest(name, minutes, cores, ("control plane",), *paths,
                  nearest={**dict.fromkeys(OPERANDS, nearest), **dict.fromkeys(ON_A_HOST, ())})


def lab(name: str, minutes: float, *words: str, needs: tuple[str, ...] = ()) -> Gate:
    """A prerequisite of gates that is created once and cached. minutes: the time to create it."""
    return Gate(name, (sys.executable, "-m", *words), minutes, needs=needs)


WHOLE = "runs whole playbooks; make check runs it only if its own files change"
BASES = (
    Gate("venv", (sys.executable, "-m", "lab.venv", "--tests"), 2, needs=()),
    lab("control plane", 10, "lab", "cluster", "build"),
    lab("packages", 0.5, "lab", "build", "packages"),
    lab("browser package", 1, "lab", "build", "browser"),
    lab("lab", 4, "lab", "build", "hosts"),
    lab("other hosts", 5, "lab", "build", "kinds", needs=("lab",)),
    lab("containerd", 4, "lab.tools", "containerd"),
    lab("node", 3, "lab.node", needs=("control plane", "lab", "containerd")),
    lab("machine", 4, "lab", "vm", "build"),
    lab("gpu operator", 7, "lab.tools", "gpu-operator"),
)
CODE = ("*.py",)
GATES = (
    Gate("ruff", (str(BIN / "ruff"), "check", "."), 0.1, inputs=CODE),
    Gate("types", (str(BIN / "mypy"), "-p", "ansible_collections.gpuops.nvidia.plugins.module_utils",
                   "-p", "ansible_collections.gpuops.nvidia.plugins.plugin_utils"), 0.7, inputs=("plugins/*.py",)),
    Gate("yaml", (str(BIN / "yamllint"), "--strict", "."), 0.2, inputs=("*.yml", "*.yaml", ".yamllint")),
    Gate("docs", (PYTHON, "-m", "tests.gates.docs"), 0.2,
         inputs=("plugins/*.py", "roles/*/meta/*", "playbooks/*", "changelogs/*", "docs/*", "*.md")),
    Gate("ansible-lint", (str(BIN / "ansible-lint"), "--offline"), 2.0, 0.35,
         inputs=("*.yml", "*.yaml", "plugins/modules/*", "plugins/action/*", ".ansible-lint", ".yamllint")),
    Gate("sanity", (PYTHON, "-m", "tests.gates.sanity"), 2.0, 0.7,
         inputs=("plugins/*", "roles/*", "playbooks/*", "meta/*", "changelogs/*", "docs/*", "examples/*", "schemas/*",
                 "README.md", "CHANGELOG.md", "COPYING", "tests/sanity/*")),
    Gate("unit", (PYTHON, "-m", "tests.gates.unit"), 8.5, 0.65, needs=("venv", "packages"), tests=("tests/unit/*",)),
    Gate("python 3.8", (PYTHON, "-m", "pytest"), 2.0, 0.25, needs=("venv", "packages"), tests=("tests/python38/*",),
         inputs=("plugins/modules/*", "plugins/module_utils/*", "tests/unit/*", "tests/requirements-python38.txt")),
    pytest("conformance", 1.5, 0.3, ("packages", "containerd"), "tests/conformance/*"),
    pytest("browser", 0.5, 0.5, ("browser package",), "tests/browser/*"),
    pytest("gates", 1, 0.3, (), "tests/gates/*", inputs=("*",)),  # looks for a gate for each file of the checkout
    pytest("lab tests", 3, 0.4, ("lab", "control plane"), "tests/lab/*"),
    pytest("machine with a kernel", 10, 0.55, ("machine",), "tests/vm/*", inputs=("lab/vm/*.py",),
           ignores=OPERANDS, nearest=dict.fromkeys(ON_A_HOST, ())),
    on_hosts("driver", 10.5, 0.22, "switch", "image", "around", "components",
             nearest={**dict.fromkeys(ON_A_HOST, ()), **dict.fromkeys(DRIVER, ["switch", "image"]),
                      **dict.fromkeys(SOFTWARE, ["components"])}),
    on_hosts("sources", 15, 0.15, "rpm", "zypper", "archive", "runfile", needs=("lab", "other hosts"),
             nearest={**{f"plugins/module_utils/*{word}*": [test] for word, test in SOURCES.items()},
                      **dict.fromkeys(ON_A_HOST, ())}),
    on_hosts("toolkit", 10, 0.23, "toolkit", "toolkit_docker", "toolkit_rootless", "toolkit_cdi", "mig", "settings",
             needs=("lab", "other hosts", "containerd"),
             nearest={**dict.fromkeys(ON_A_HOST, ()), **dict.fromkeys(MIG, ["mig"]),
                      **dict.fromkeys(SETTINGS, ["settings"]),
                      **dict.fromkeys(TOOLKIT, [
                          "toolkit", "toolkit_docker", "toolkit_rootless", "toolkit_cdi"])}),
    on_hosts("slurm", 9, 0.25, "slurm", needs=("lab", "other hosts"), nearest=dict.fromkeys(ON_A_HOST, ()),
             inputs=("roles/maintenance/*",)),
    on_hosts("kill", 6, 0.16, "kill", nearest=dict.fromkeys(ON_A_HOST, ())),
    on_clusters("cluster", 15, 0.53, "causes", "components", "config_maps", "drain", "drift", "driver_pools", "fleet",
                "forged_hosts", "hostile", "labels", "maintenance", "mig", "operands", "operands_action", "playbooks",
                "preflight", "release_steps", "removal", "rights", "sharing", "verify", nearest=["components"]),
    # These have the cluster alone, each with its own Nodes.
    on_clusters("whole cluster", 7, 0.53, "adopt", "compared", "faulty_clusters", "releases", "secrets", "states",
                "upgrade_fleet"),
    pytest("kubelet", 5, 0.17, ("lab", "other hosts", "node", "control plane", "containerd"), "tests/kubelet/*",
           inputs=("lab/node/__main__.py",), nearest=dict.fromkeys((*OPERANDS, *ON_A_HOST), ())),
    on_hosts("site", 20, 0.35, "site", "hybrid", "bad_input", "become", "reboot", "windows",
             needs=("lab", "other hosts", "control plane"), only_own_tests=WHOLE,
             inputs=("tests/integration/converged.py", "lab/demo/*.yml", "playbooks/*", "examples/*")),
    on_hosts("trust", 15, 0.47, "forged", "hostile", "secrets", "levels", needs=("lab", "control plane"),
             only_own_tests=WHOLE, inputs=("tests/integration/hostile/*", "tests/integration/recorder/*")),
    Gate("molecule", (str(BIN / "molecule"), "test", "--all"), 3, 0.5, needs=("venv", "lab", "control plane"),
         inputs=("molecule/*",), only_own_tests=WHOLE),
    pytest("campaign", 45, 0.5, ("lab",), "tests/campaign/*"),
    pytest("operator", 3.5, 0.43, ("control plane", "gpu operator"), "tests/operator/*"),
    Gate("bench", (PYTHON, "-m", "tests.bench"), 15, 2.0, ("venv", "lab", "control plane", "containerd")),
)
# One measures, which other gates on the machine would spoil; two take long for what few changes touch: the second of
# these to build the vendor's operator.
ONLY_WHEN_NAMED = ("bench", "campaign", "operator")


def environment(name: str) -> dict[str, str]:
    """An environment that is isolated from the user's Ansible: its home, its collections, its configuration."""
    home, collections = BUILD / "ansible-home", COLLECTIONS
    if name == "molecule":  # installs a copy of the collection into the first folder of the path: one of its own
        home, collections = BUILD / "molecule" / "home", BUILD / "molecule" / "collections"
    # Byte code is cached even if the user's environment forbids it: gates start the same programs a thousand times.
    return {"PATH": f"{BIN}:{os.environ['PATH']}", "PYTHONDONTWRITEBYTECODE": "", "NO_COLOR": "1",
            "ANSIBLE_HOME": str(home), "ANSIBLE_NOCOWS": "1",
            "ANSIBLE_COLLECTIONS_PATH": str(collections), "PYTHONPATH": f"{COLLECTIONS}:{ROOT}",
            "MYPYPATH": str(COLLECTIONS)}


def nearest_tests(gate: Gate, name: str) -> tuple[str, ...] | None:
    """The tests of a gate that are about a file; None if all tests that depend on the file run."""
    return next((tests for pattern, tests in gate.nearest if fnmatchcase(name, pattern)), None)


def link_checkout() -> None:
    """Creates a link by which tools find the checkout as C(ansible_collections/gpuops/nvidia)."""
    link = COLLECTIONS / "ansible_collections" / "gpuops" / "nvidia"
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.is_symlink() or link.readlink() != ROOT:  # gates that run here see no moment without it
        link.unlink(missing_ok=True)
        link.symlink_to(ROOT)


def files(patterns: Sequence[str], names: set[str]) -> list[str]:
    """The names that match a pattern, in which * also matches slashes."""
    return sorted(name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns))


def tests(patterns: Sequence[str], names: set[str]) -> list[str]:
    """The matching files that are test files."""
    return [name for name in files(patterns, names) if fnmatchcase(name.rpartition("/")[2], "test_*.py")]


def unclaimed(names: set[str]) -> list[str]:
    """The test files that no gate runs."""
    return [test for test in tests(("tests/*",), names) if not any(files(gate.tests, {test}) for gate in GATES)]
