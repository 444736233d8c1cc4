# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The rules of the gates: when each gate starts, which gates a change affects, what a run costs."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from lab.stages import ROOT, Stage, Stages
from tests.gates import __main__ as gates
from tests.gates import schedule as schedules
from tests.gates.inputs import Tree, changed
from tests.gates.schedule import Load, Schedule
from tests.gates.table import GATES, ONLY_WHEN_NAMED, Gate, files, nearest_tests, unclaimed
from tests.waiting import until


@pytest.fixture
def stages() -> Stages:
    """Stages with logs of their own."""
    return Stages("gates-test")


@pytest.fixture(scope="module")
def tree() -> Tree:
    """This checkout, with the files of GONE as deleted files that others may still depend on."""
    return Tree(ROOT, {name for name, _run, _left in GONE})


def gate(name: str, script: str = "true", minutes: float = 1.0, cores: float = 1.0,
         needs: tuple[str, ...] = ()) -> Gate:
    return Gate(name, ("sh", "-c", script), minutes, cores, needs)


def next_names(schedule: Schedule) -> list[str]:
    return [one.name for one in schedule._next()]


def test_the_longest_start_first_and_no_more_than_the_cores_carry(stages: Stages) -> None:
    schedule = Schedule(stages, [gate("short", minutes=1), gate("long", minutes=9), gate("half", minutes=3, cores=0.5),
                                 gate("other half", minutes=2, cores=0.5)], capacity=2.0)
    assert next_names(schedule) == ["long", "half", "other half"]


class Busy(Load):
    """A machine with this load."""

    def __init__(self, idle: bool) -> None:
        super().__init__()
        self.now = idle

    def idle(self) -> bool:
        return self.now


def test_many_side_by_side_only_while_processors_are_idle(stages: Stages) -> None:
    narrow = [gate(str(number), "sleep 60", cores=0.1) for number in range(6)]
    schedule = Schedule(stages, narrow, capacity=2.0, load=Busy(False))
    for one in schedule._next():
        schedule._start(one)
    assert list(schedule.running) == ["0", "1", "2"] and schedule._next() == []
    schedule.load = Busy(True)
    assert next_names(schedule) == ["3"]
    stages.stop()


def test_processors_are_idle_when_they_have_been_so_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0, 0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setattr(schedules, "processor_seconds", lambda: now[1])
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    load, told = Load(), []
    for second, worked in ((0, 0), (3, 3), (6, 6), (9, 12), (12, 18), (15, 20)):
        now[:] = second, worked
        told.append(load.idle())
    assert told == [False, False, True, True, False, True]
    load.started()
    assert not load.idle()


def test_what_others_wait_for_counts_with_their_length(stages: Stages) -> None:
    schedule = Schedule(stages, [gate("alone", minutes=5), gate("base", minutes=1),
                                 gate("on base", minutes=9, needs=("base",))], capacity=1.0)
    assert next_names(schedule) == ["base"]


def test_what_others_wait_for_does_not_wait_for_cores(stages: Stages) -> None:
    schedule = Schedule(stages, [gate("long", minutes=20, cores=1.5), gate("base", minutes=1),
                                 gate("narrow", cores=0.5), gate("on base", minutes=9, needs=("base",))], capacity=2.0)
    assert next_names(schedule) == ["long", "base"]


def test_one_that_is_wider_than_the_machine_runs_alone(stages: Stages) -> None:
    schedule = Schedule(stages, [gate("wide", cores=8, minutes=2), gate("narrow")], capacity=2.0)
    assert next_names(schedule) == ["wide"]


def test_what_needs_a_gate_that_failed_does_not_run_and_the_rest_does(stages: Stages, tmp_path: Path) -> None:
    schedule = Schedule(stages, [gate("bad", "exit 3"), gate("after bad", f"touch {tmp_path}/ran", needs=("bad",)),
                                 gate("good")])
    schedule.run()
    assert stages.failed == ["bad"] and [stage.name for stage in stages.done if not stage.rc] == ["good"]
    assert schedule.left_out == {"after bad": "bad did not pass"}
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(("log", "said"), [
    ("a\nE   assert 1 == 2\nFAILED tests/x.py::test - assert\n1 failed", ["FAILED tests/x.py::test - assert",
                                                                         "E   assert 1 == 2"]),
    ("\n".join("123456789"), list("456789")),
])
def test_the_end_names_what_failed(tmp_path: Path, log: str, said: list[str]) -> None:
    (tmp_path / "log").write_text(log)
    assert gates.why_failed(Stage("kill", tmp_path / "log", None, 0.0, 1)) == [f"  kill: {line}" for line in said]


def test_the_cost_counts_daemons_that_have_left_their_parent(stages: Stages, tmp_path: Path) -> None:
    work = "import os\nwhile sum(os.times()[:2]) < 1: pass"
    daemon = f"setsid sh -c \"{sys.executable} -c '{work}'; touch {tmp_path}/done\" &"
    wait = f"timeout 60 sh -c 'until [ -e {tmp_path}/done ]; do sleep 0.1; done'"
    schedule = Schedule(stages, [gate("daemon", f"({daemon})\n{wait}; sleep 0.1")])
    schedule.run()
    cost = stages.done[0].processor
    assert not stages.failed and cost is not None and cost >= 1.0
    assert "core-min" in stages.table()


def test_a_gate_may_take_twice_its_time_and_is_killed_then(stages: Stages, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedules, "LIMIT", 0.0)
    Schedule(stages, [gate("stuck", "exec sleep 600", minutes=0.001), gate("slow", minutes=9)]).run()
    assert stages.failed == ["stuck"]
    assert all("killed: " in stage.log.read_text() for stage in stages.done if stage.rc)


def test_a_killed_gate_names_the_tests_that_have_failed(tmp_path: Path) -> None:
    test, reached = tmp_path / "test_stuck.py", tmp_path / "reached"
    test.write_text("import pathlib, time\ndef test_red(): assert False\n"
                    f"def test_stuck(): pathlib.Path({str(reached)!r}).touch(); time.sleep(600)\n")
    process = subprocess.Popen([sys.executable, "-m", "tests.gates.measured", str(tmp_path / "cost"), sys.executable,
                                "-m", "pytest", "-rf", "--rootdir", str(tmp_path), str(test)],
                               stdout=subprocess.PIPE, start_new_session=True, cwd=ROOT)
    until(reached.exists)
    schedules.end(process)
    assert process.returncode and process.stdout
    assert "test_stuck.py::test_red" in process.stdout.read().decode()


def git(folder: Path, *words: str) -> str:
    """What git prints in a folder."""
    command = ["git", "-c", "user.name=t", "-c", "user.email=t@example.com", *words]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def checkout(folder: Path, **files: str) -> Tree:
    """A git repository with these files; C(__) in a name stands for a slash."""
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(path.suffix or ".py").write_text(text)
    git(folder, "init", "-q", "-b", "main")
    return Tree(folder)


def commit(folder: Path) -> str:
    """Commits all files; returns the commit id."""
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "a commit")
    return git(folder, "rev-parse", "HEAD")


def test_a_file_depends_on_what_it_imports_and_names(tmp_path: Path) -> None:
    (tmp_path / "roles/driver/tasks").mkdir(parents=True)
    (tmp_path / "roles/driver/tasks/host.yml").write_text("- gpuops.nvidia.nvidia_driver:\n")
    tree = checkout(tmp_path, **{
        "tests__a__conftest": "", "tests__a__test_one": "from lab import tools\nimport json\n",
        "tests__a__test_two": "from tests.integration import user\nuser.role('driver')\n",
        "tests__a__test_three": "PATH = 'roles/driver'\n", "tests__integration__user": "",
        "tests__a__test_four": '"Of roles/driver and lab.more."\n', "tests__a__test_five": "run('-m', 'lab.more')\n",
        "lab__tools": "import lab.more", "lab__more": "", "plugins__modules__nvidia_driver":
        "from ansible_collections.gpuops.nvidia.plugins.module_utils import x", "plugins__module_utils__x": ""})
    assert tree.closure("tests/a/test_one.py") == {"tests/a/test_one.py", "tests/a/conftest.py", "lab/tools.py",
                                                   "lab/more.py"}
    assert {"roles/driver/tasks/host.yml", "plugins/modules/nvidia_driver.py",
            "plugins/module_utils/x.py"} <= tree.closure("tests/a/test_two.py")
    assert "roles/driver/tasks/host.yml" in tree.closure("tests/a/test_three.py")
    assert tree.closure("tests/a/test_four.py") == {"tests/a/test_four.py", "tests/a/conftest.py"}
    assert "lab/more.py" in tree.closure("tests/a/test_five.py")


def test_a_file_depends_on_paths_from_its_folder_and_from_the_root(tmp_path: Path) -> None:
    tree = checkout(tmp_path, **{
        "tests__a__test_one": "HERE = Path(__file__).parent\n(HERE / 'data' / name).read_text()\n",
        "tests__a__test_two": "for path in (ROOT / 'docs' / 'pages').glob('*'): pass\n",
        "tests__a__test_three": "open(os.path.join(os.path.dirname(__file__), 'data', 'two.txt'))\n",
        "tests__b__test_four": "shape('one.txt')\n", "tests__b__test_five": "f'docs/pages/{name}'\n",
        "tests__a__data__one.txt": "", "tests__a__data__two.txt": "", "tests__a__data__code": "",
        "tests__b__one.txt": "", "docs__pages__one.md": "", "docs__two.md": ""})
    found = {Path(name).stem: tree.closure(name) - {name} for name in tree.files if "/test_" in name}
    data = {"tests/a/data/one.txt", "tests/a/data/two.txt"}
    assert found == {"test_one": {*data, "tests/a/data/code.py"}, "test_two": {"docs/pages/one.md"},
                     "test_three": {"tests/a/data/two.txt"}, "test_four": {"tests/b/one.txt"},
                     "test_five": {"docs/pages/one.md", "tests/b/one.txt"}}


def test_data_belongs_to_the_python_that_is_nearest(tmp_path: Path) -> None:
    tree = checkout(tmp_path, **{"tests__a__test_one": "", "tests__a__b__test_two": "", "tests__a__c__x.txt": "",
                                 "tests__a__b__d__y.txt": "", "tests__a__README.md": ""})
    assert tree.direct("tests/a/test_one.py") == {"tests/a/c/x.txt"}
    assert tree.direct("tests/a/b/test_two.py") == {"tests/a/b/d/y.txt"}


def test_the_last_commit_shared_with_the_main_branch_is_the_base(tmp_path: Path) -> None:
    upstream, here = tmp_path / "upstream", tmp_path / "here"
    checkout(upstream, one="1", two="2")
    first = commit(upstream)
    git(tmp_path, "clone", "-q", str(upstream), str(here))
    git(here, "switch", "-qc", "work")
    git(here, "mv", "two.py", "other.py")
    commit(here)
    (here / "new.py").touch()
    names = {"two.py", "other.py", "new.py"}  # of what has another name the former one, too
    assert changed(here) == (f"the last commit shared with origin/HEAD ({first[:10]})", names)
    git(here, "push", "-qu", "origin", "work")
    assert changed(here)[1] == names, "what is pushed to one's own branch counts"
    git(here, "remote", "set-head", "origin", "--delete")
    assert changed(here)[1] == names
    assert changed(here, "HEAD")[1] == {"new.py"}
    git(here, "remote", "rename", "origin", "other")
    git(here, "branch", "-qD", "main")
    with pytest.raises(ValueError, match="give a commit with BASE="):
        changed(here)


def test_without_a_remote_only_what_is_not_committed_counts(tmp_path: Path) -> None:
    checkout(tmp_path, one="1", two="2")
    first = commit(tmp_path)
    with pytest.raises(ValueError, match="give a commit with BASE="):
        changed(tmp_path)
    (tmp_path / "one.py").unlink()
    assert changed(tmp_path) == (f"HEAD, as there is no remote: only what is not committed ({first[:10]})", {"one.py"})
    git(tmp_path, "switch", "-qc", "work")
    second = commit(tmp_path)
    assert second != first and changed(tmp_path)[1] == {"one.py"}
    with pytest.raises(ValueError, match="git knows no commit typo; give one with BASE="):
        changed(tmp_path, "typo")


@pytest.mark.parametrize(("words", "said"), [
    (["typo"], "git knows no commit typo; give one with BASE="), (["HEAD", "HEAD"], "not HEAD HEAD")])
def test_check_refuses_what_is_no_commit(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert gates.main(["--check", *words]) == 2
    assert said in capsys.readouterr().out


LAB = {"lab tests", "driver", "sources", "toolkit", "kill", "kubelet"}
# A change of one file: gates that it affects, and some that it does not.
ROWS: list[tuple[str, set[str], set[str]]] = [
    ("roles/dcgm_exporter/templates/accelerators.yaml.j2", {"unit", "conformance", "cluster"},
     {"ruff", "kill", "sources", "machine with a kernel", "molecule", "site"}),
    ("roles/dcgm_exporter/files/gpu-fleet.json", {"unit", "cluster"}, {"kill", "sources", "molecule", "site"}),
    ("plugins/modules/mig_config.py", {"ruff", "sanity", "unit", "toolkit"},
     {"kill", "cluster", "kubelet", "sources", "molecule", "site"}),
    ("plugins/module_utils/_facts/dkms.py", {"unit", "lab tests"}, {"site"}),
    ("plugins/modules/gpu_info.py", {"lab tests"}, {"site"}),
    ("plugins/inventory/gpu_nodes.py", {"unit", "cluster"}, {"kill", "site"}),
    # A unit test looks for the variables of all playbooks.
    ("playbooks/status.yml", {"site", "unit"}, {"molecule"}), ("playbooks/verify.yml", {"site", "unit"}, {"kill"}),
    ("playbooks/remove.yml", {"site", "cluster", "unit"}, {"kill"}),
    ("examples/one-host/site.yml", {"site"}, {"unit", "kill"}),
    ("lab/demo/hosts.yml", {"site"}, {"unit", "cluster"}), ("lab/demo/policy.yml", {"site"}, {"unit", "cluster"}),
    ("lab/demo/cluster.yml", {"site"}, {"unit", "cluster"}),
    ("tests/integration/converged.py", {"site"}, {"kill", "toolkit"}),
    ("tests/integration/test_site.py", {"ruff", "site"}, {"kill", "toolkit"}),
    ("tests/integration/warm_server.py", {"driver", "sources", "toolkit", "kill", "cluster", "kubelet"}, {"site"}),
    ("tests/integration/callbacks/record.py", {"driver", "sources", "toolkit", "kill", "cluster", "kubelet"}, {"site"}),
    ("tests/integration/killer/python3", {"kill", "toolkit"}, {"site", "cluster"}),
    ("tests/integration/killer/sitecustomize.py", {"kill", "toolkit"}, {"site", "cluster"}),
    ("lab/__main__.py", {*LAB, "cluster"}, {"site"}), ("lab/cli.py", {*LAB, "cluster"}, {"site"}),
    ("lab/packages/__main__.py", LAB, {"site"}), ("lab/packages/serve.py", LAB, {"site"}),
    ("lab/nvml/tables.py", {*LAB, "conformance"}, {"site"}), ("lab/nvml/smi.c", {*LAB, "conformance"}, {"site"}),
    ("lab/node/door.py", {"kubelet"}, {"unit", "kill", "driver"}),
    ("lab/vm/inetd.py", {"machine with a kernel"}, {"unit", "kill", "cluster"}),
    ("lab/vm/cli.py", {"machine with a kernel"}, {"unit", "kill", "cluster"}),
    ("lab/vm/machine.py", {"ruff", "machine with a kernel"}, {"unit", "sanity", "toolkit", "cluster"}),
    ("lab/vm/dkms/nvidia.c", {"machine with a kernel"}, {"unit", "kill", "cluster", "lab tests"}),
    ("tests/gates/measured.py", {"gates"}, {"lab tests"}), ("tests/gates/unit.py", {"unit", "gates"}, {"lab tests"}),
    ("tests/gates/sanity.py", {"sanity"}, {"unit"}), ("tests/gates/docs.py", {"docs"}, {"unit"}),
    ("tests/unit/mig/published_layouts.yml", {"unit", "conformance"}, {"kill", "cluster"}),
    ("tests/unit/runtimes/shapes/01-packaged.1.7+2.2.toml", {"unit", "conformance"},
     {"kill", "cluster", "driver", "sources", "lab tests"}),
    ("tests/requirements-python38.txt", {"python 3.8"}, {"unit", "kill", "cluster", "lab tests"}),
    ("lab/README.md", {"docs", "gates"}, {gate.name for gate in GATES} - {"docs", "gates"}),
    ("README.md", {"docs", "sanity"}, {"unit", "lab tests"}), ("docs/driver.md", {"docs", "sanity"}, {"lab tests"}),
    ("schemas/policy.json", {"sanity", "unit"}, {"kill"}), ("CHANGELOG.md", {"docs", "sanity"}, {"unit"}),
    ("COPYING", {"sanity"}, {"unit"}), (".yamllint", {"yaml", "ansible-lint"}, {"unit"}),
    ("tests/conformance/published.yaml", {"yaml", "ansible-lint", "conformance"}, {"kill"}),
]
# Files that are gone; some never were there, which is all the same to git's list of what differs.
GONE: list[tuple[str, set[str], set[str]]] = [
    ("lab/nvml/old.c", {*LAB, "conformance"}, {"site"}), ("lab/host/image/old.sh", LAB, {"site"}),
    ("schemas/old.json", {"sanity", "unit"}, {"kill"}), ("roles/driver/tasks/old.yml", {"unit", "driver"}, {"site"}),
    ("tests/unit/driver/test_old.py", {"unit"}, {"kill"}), ("tests/conftest.py", {"unit", "kill", "cluster"}, {"site"}),
]


@pytest.mark.parametrize(("name", "run", "left"), [*ROWS, *GONE])
def test_what_a_change_affects(tree: Tree, name: str, run: set[str], left: set[str]) -> None:
    assert name in tree.files or (name, run, left) in GONE
    affected = {gate.name for gate in GATES if gates.choose(gate, tree, {name})[0]}
    assert run <= affected and not left & affected, affected


@pytest.mark.parametrize(("gate", "name", "tests"), [
    ("cluster", "roles/dcgm_exporter/templates/accelerators.yaml.j2", ["test_components"]),
    ("cluster", "plugins/modules/operands.py", None),
    ("driver", "plugins/module_utils/_driver/rollback.py", ["test_switch", "test_image"]),
    ("driver", "plugins/module_utils/_software/dcgm.py", ["test_components"]),
    ("sources", "plugins/module_utils/_packages/zypper.py", ["test_zypper"]),
    ("sources", "plugins/module_utils/_driver/cuda_suse.py", ["test_zypper"]),
    ("sources", "plugins/module_utils/_driver/runfile_fetch.py", ["test_runfile"]),
    ("toolkit", "plugins/module_utils/_mig/planning.py", ["test_mig"]),
])
def test_the_tests_that_are_about_a_file(tree: Tree, gate: str, name: str, tests: list[str] | None) -> None:
    """Tests are named explicitly, so that a moved test is noticed; if none is named, all tests that depend on the file
    run."""
    found = next(one for one in GATES if one.name == gate)
    near = nearest_tests(found, name)
    assert name in tree.files
    assert near == (None if tests is None else tuple(
        f"{found.tests[0].rpartition('/')[0]}/{test}.py" for test in tests))
    assert all(test in tree.files for gate in GATES for _pattern, near in gate.nearest for test in near)


def test_a_link_to_what_is_gone_affects_the_documentation(tmp_path: Path) -> None:
    checkout(tmp_path, **{"README.md": "[a](docs/a.md#x) [b](examples/b) [c](https://example.com/c)", "docs__d.md": ""})
    tree = Tree(tmp_path, {"docs/a.md", "examples/b/site.yml", "examples/c.yml"})
    assert tree.dead_links({"README.md"}) == {"docs/a.md", "examples/b/site.yml"}


@pytest.mark.parametrize(("test", "on"), [
    ("tests/integration_cluster/test_fleet.py", {"plugins/inventory/gpu_nodes.py", "plugins/action/gpu_labels.py"}),
    ("tests/lab/test_facts.py", {"plugins/modules/gpu_info.py", "plugins/module_utils/_facts/dkms.py"}),
    ("tests/unit/actions/test_gpu_policy.py", {"plugins/action/gpu_policy.py"}),
    ("tests/unit/kube/test_client_ambient.py", {"plugins/action/operands.py"}),
    ("tests/conformance/mig/test_mig.py", {"tests/unit/mig/published_layouts.yml"}),
    ("tests/integration_cluster/test_mig.py", {"plugins/modules/node_mig.py"}),
    ("tests/integration_cluster/test_playbooks.py", {"playbooks/remove.yml"}),
    ("tests/unit/components/test_scripts.py", {"roles/device_plugin/files/entrypoint.sh"}),
])
def test_what_a_test_depends_on(tree: Tree, test: str, on: set[str]) -> None:
    assert on <= tree.closure(test)


def test_requirements_affect_all(tree: Tree) -> None:
    assert all(gates.choose(gate, tree, {"tests/requirements.txt"})[0] for gate in GATES
               if gate.name not in ONLY_WHEN_NAMED)


# Gates that look at how a file is written or whether it is there, not at what it does.
LINTERS = {"ruff", "types", "yaml", "docs", "ansible-lint", "sanity", "gates"}
# What no other gate runs, and why.
NOT_RUN = {
    "*.md": "pages; some are held to the code by tests", "docs/images/*": "a picture in a page",
    "changelogs/*": "pages in parts", "COPYING": "the licence", ".gitignore": "for git alone",
    ".ansible-lint": "for a linter", ".yamllint": "for a linter",
    "Makefile": "calls python3 -m for all that it does", ".ci/run": "calls make test",
    "lab/demo/*.py": "make demo, which shows what gate site proves",
    "tests/bench/*": "runs only when named", "tests/campaign/*": "runs only when named",
    "tests/operator/*": "runs only when named", "lab/controlplane/operator.py": "for tests/operator",
    "tests/gates/*": "has its own tests in gate gates",
}


def test_every_file_has_a_gate_that_runs_it(tree: Tree) -> None:
    proving = [gate for gate in GATES if gate.name not in LINTERS]
    lost = [name for name in sorted(tree.files) if not files(list(NOT_RUN), {name})
            and not any(gates.choose(gate, tree, {name})[0] for gate in proving)]
    assert not lost


def test_a_file_of_tests_that_no_gate_runs_is_an_error(monkeypatch: pytest.MonkeyPatch,
                                                       capsys: pytest.CaptureFixture[str]) -> None:
    assert unclaimed({"tests/test_x.py", "tests/other/test_y.py", "tests/waiting.py"}) == [
        "tests/other/test_y.py", "tests/test_x.py"]
    monkeypatch.setattr(gates.table, "GATES", tuple(replace(one, tests=()) for one in GATES))
    assert gates.main(["ruff"]) == 2
    assert "No gate runs tests/" in capsys.readouterr().out
