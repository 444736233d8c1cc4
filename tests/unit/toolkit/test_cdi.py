# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Specifications, their unit, and links of device nodes: planned for a host, executed, and planned again."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import time
import typing as t
from types import SimpleNamespace

import pytest
from ansible_collections.gpuops.nvidia.plugins.action.container_toolkit import ActionModule
from ansible_collections.gpuops.nvidia.plugins.module_utils import _cdi as shared
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Completed
from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit import cdi as cdi_module
from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit import cdi_files
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes import host_answer, toolkit_steps
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.base import Options
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.host_state import HostState

VERSION = "NVRM version: NVIDIA UNIX Open Kernel Module  {}  Release Build\n"
INSTALL = Step("install packages", "x", data={"packages": {"x": "1"}})
EMPTY = 'level=error msg="failed to write spec: invalid device, empty device edits"\n'
FULL = 'level=error msg="failed to save CDI spec: write /cdi/nvidia.yaml: no space left on device"\n'


def spec(*names: str, driver: str = "595.91.07") -> str:
    """A specification as nvidia-ctk prints it."""
    devices = "".join(f'    - name: "{name}"\n      containerEdits: {{}}\n' for name in (*names, "all"))
    return (f"---\ncdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n{devices}containerEdits:\n    mounts:\n"
            f"        - hostPath: /usr/lib/libcuda.so.{driver}\n    hooks:\n        - hookName: createContainer\n")


class Machine:
    """A host below a folder. says: the output of nvidia-ctk, None if it fails; modes: the MIG modes; full: whether the
    disk is full. modes: of MIG; full: no room.

    refreshing: the states, for each call of systemctl, of a unit that writes the specification; it has ended after the
    last.
    """

    def __init__(self, root: pathlib.Path, patch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.says: str | None = spec("0", "GPU-a")
        self.modes = "Disabled\n"
        self.full = False
        self.refreshing: list[str] = []
        self.calls: list[tuple[str, ...]] = []
        for module, name, path in (
                (cdi_module, "_SYSTEMD", "systemd"), (cdi_module, "_LINK_FOLDER", "dev/char"),
                (cdi_module, "_ETC_SPEC", "etc-cdi/nvidia.yaml"),
                (cdi_module, "UNIT_FILE", "units/s"),
                (cdi_files, "UNIT_FILE", "units/s"), (cdi_files, "PATH_FILE", "units/p"),
                (cdi_files, "SCRIPT", "lib/cdi-refresh"), (cdi_files, "RULE", "rules/r"),
                (cdi_files, "ENVIRONMENT", "env")):
            patch.setattr(module, name, str(root / path))
        patch.setattr(cdi_module, "Root", lambda: Root(str(root)))
        patch.setattr(cdi_module, "_NODE_PATTERNS", (f"{root}/dev/nvidia*",))
        patch.setattr(cdi_files, "ENABLED", (str(root / "wants"),))
        patch.setattr(cdi_files, "_PATHS", {"gpu": str(root / "cdi/nvidia.yaml"),
                                            "management": str(root / "cdi/management.yaml")})
        for folder in ("sys/module/nvidia", "proc/driver/nvidia", "sys/bus/pci/devices/0", "systemd", "dev", "etc-cdi",
                       "cdi"):
            (root / folder).mkdir(parents=True)
        (root / "sys/bus/pci/devices/0/vendor").write_text("0x10de\n")
        (root / "sys/bus/pci/devices/0/class").write_text("0x030200\n")
        self.driver("595.91.07")

    @property
    def spec(self) -> pathlib.Path:
        """The specification for containers."""
        return self.root / "cdi/nvidia.yaml"

    def driver(self, version: str | None) -> None:
        """Loads a driver, or unloads it."""
        path = self.root / "proc/driver/nvidia/version"
        path.unlink(missing_ok=True)
        if version:
            path.write_text(VERSION.format(version))

    def run(self, argv: t.Sequence[str], **options: t.Any) -> Completed:
        words = tuple(argv)
        self.calls.append(words)
        if "enable" in words and not (self.root / "wants").is_symlink():
            (self.root / "wants").symlink_to("units/s")
        if words[-1] == "SubState":
            assert {"gpuops-cdi-refresh.service", "nvidia-cdi-refresh.service"} <= set(words)
            state = self.refreshing.pop(0) if self.refreshing else "dead"
            if state == "start" and not self.refreshing:
                self.says = self.says or spec("0", "GPU-a")
                self.spec.write_text(self.says)
            return Completed(words, 0, f"SubState=dead\n\nSubState={state}\n", "")
        if words[0] == "nvidia-smi":
            return Completed(words, 0, self.modes if "--query-gpu=mig.mode.current" in words else "GPU 0\n", "")
        if words[0] != "nvidia-ctk":
            return Completed(words, 0, "", "")
        if self.says is None:
            return Completed(words, 1, "", EMPTY)
        output = (options.get("env") or {}).get("NVIDIA_CTK_CDI_OUTPUT_FILE_PATH", "")
        output = next((word.partition("=")[2] for word in words if word.startswith("--output=")), output)
        if output and self.full:
            return Completed(words, 1, "", FULL)
        said = json.dumps({"said": self.says}) if output.endswith(".json") or "--format=json" in words else self.says
        if output:
            pathlib.Path(output).write_text(said)
        return Completed(words, 0, "" if output else said, "")

    def cdi(self, journal: Journal, **options: t.Any) -> cdi_module.Cdi:
        wanted = {"state": "present", "cdi": True, "cdi_management": False, "check": False, **options}
        return cdi_module.Cdi(wanted, journal, self.run)

    def plan(self, packages: t.Sequence[Step] = (), **options: t.Any) -> dict[str, t.Any]:
        with Journal("container_toolkit", root=str(self.root / "journal"), readonly=True) as journal:
            return self.cdi(journal, **options).plan(packages)._asdict()

    def converge(self, packages: t.Sequence[Step] = (), **options: t.Any) -> list[str]:
        """The ids of the steps; checks that nothing is left to do afterwards."""
        steps = self.plan(packages, **options)["steps"]
        with Journal("container_toolkit", root=str(self.root / "journal")) as journal:
            acts = self.cdi(journal, **options).handlers
            for step in steps:
                acts[step.action](step)
        assert self.plan((), **options)["steps"] == []
        return [step.action for step in steps]


@pytest.fixture
def machine(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


FIRST = [cdi_module.INSTALL_UNIT, cdi_module.WRITE_RULE, cdi_module.GENERATE]


def test_first_run_and_removal(machine: Machine) -> None:
    former = sorted(machine.root.rglob("*"))
    assert machine.converge([INSTALL]) == FIRST
    assert machine.spec.read_text() == machine.says
    assert not [words for words in machine.calls if "daemon-reload" in words]
    assert machine.converge(state="absent") == [cdi_module.REMOVE_UNIT, cdi_module.RESTORE_RULE, cdi_module.REMOVE]
    (machine.root / "wants").unlink()
    with Journal("container_toolkit", root=str(machine.root / "journal")) as journal:
        for folder in journal.of_kind("directory"):
            journal.forget("directory", folder)
    assert sorted(machine.root.rglob("*")) == former


@pytest.mark.parametrize(("there", "reason"), [
    (None, "there is no specification"),
    (spec("0", "GPU-a", driver="580.126.20"), "it is for driver 580.126.20, but 595.91.07 is loaded"),
    (spec("0", "0:0", "GPU-a", "MIG-b"), "0 device names are missing and 2 are obsolete"),
    (spec("0"), "1 device names are missing and 0 are obsolete"),
    (f"{spec('0', 'GPU-a')}    env: [A=b]\n", "it differs from the output of nvidia-ctk"),
])
def test_a_wrong_specification_is_generated_again(machine: Machine, there: str | None, reason: str) -> None:
    machine.converge()
    if there is None:
        machine.spec.unlink()
    else:
        machine.spec.write_text(there)
    step, = machine.plan()["steps"]
    assert (step.action, step.target) == (cdi_module.GENERATE, str(machine.spec))
    assert reason in step.reason
    machine.converge()


@pytest.mark.parametrize("says", [spec("0", "GPU-a"), None])
def test_a_unit_that_writes_the_specification_just_now_is_waited_for(
        machine: Machine, monkeypatch: pytest.MonkeyPatch, says: str | None) -> None:
    monkeypatch.setattr(time, "sleep", lambda _seconds: None)
    machine.converge()
    machine.spec.write_text(spec("0"))
    machine.says = says
    machine.refreshing = ["start", "start-pre", "start"]
    found = machine.plan()
    assert (found["steps"], found["pending"], found["warnings"], machine.refreshing) == ([], [], [], [])


@pytest.mark.parametrize("state", ["auto-restart", "dead", "start"])
def test_a_unit_is_waited_for_within_limits_and_only_where_it_writes(
        machine: Machine, monkeypatch: pytest.MonkeyPatch, state: str) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    monkeypatch.setattr(time, "monotonic", lambda: 30.0 * len(slept))
    machine.converge()
    asked = len(machine.calls)
    assert machine.plan()["steps"] == []
    assert not [words for words in machine.calls[asked:] if "SubState" in words]  # nothing differs
    machine.spec.write_text(spec("0"))
    machine.refreshing = [state] * 9
    assert [step.action for step in machine.plan()["steps"]] == [cdi_module.GENERATE]
    assert len(slept) == (2 if state == "start" else 0)


def test_order_and_a_specification_of_the_host_do_not_matter(machine: Machine) -> None:
    machine.converge()
    said = spec("0", "GPU-a")
    machine.spec.write_text("\n".join(reversed(said.splitlines())))
    assert machine.plan()["steps"] == []
    machine.spec.rename(machine.root / "etc-cdi/nvidia.yaml")
    assert machine.plan()["steps"] == []


def test_all_gpus_in_mig_mode_without_devices(machine: Machine) -> None:
    machine.converge()
    machine.says, machine.modes = None, "Enabled\n"
    found = machine.plan()
    assert [step.action for step in found["steps"]] == [cdi_module.REMOVE]
    assert [one.pending_reason for one in found["pending"]] == [
        "every GPU is in MIG mode and has no MIG device yet"]
    machine.converge()
    assert not machine.spec.exists()
    machine.says = spec("0:0", "MIG-b")
    assert machine.converge() == [cdi_module.GENERATE]


def test_a_toolkit_that_comes_where_all_gpus_are_in_mig_mode(machine: Machine) -> None:
    machine.says, machine.modes = None, "Enabled\n"
    assert machine.converge([INSTALL]) == FIRST
    machine.spec.write_text(spec("0"))
    assert machine.converge([INSTALL]) == [cdi_module.GENERATE]
    assert not machine.spec.exists()
    machine.modes = "Disabled\n"
    machine.spec.write_text(spec("0"))
    assert machine.converge([INSTALL]) == [cdi_module.GENERATE]
    assert machine.spec.read_text() == spec("0")
    assert "empty device edits" in machine.plan()["warnings"][0]


def test_what_waits_is_told_as_it_is_after_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    action = object.__new__(ActionModule)
    state, pending = HostState(), [{"pending_reason": "every GPU is in MIG mode"}]
    monkeypatch.setattr(action, "_ask", lambda *_args, **_options: {"blocked_step": None})
    monkeypatch.setattr(host_answer, "state_of", lambda _answer: state)
    monkeypatch.setattr(toolkit_steps, "plan", lambda *_args: toolkit_steps.Plan([], pending, {}))
    options = Options(True, True, "auto")
    assert action._apply([INSTALL], options, False, [], []) == ([INSTALL], state, pending)


def test_a_tool_that_fails_changes_nothing(machine: Machine) -> None:
    machine.converge()
    machine.says = None
    found = machine.plan()
    assert (found["steps"], found["pending"]) == ([], [])
    assert "empty device edits" in found["warnings"][0]
    machine.spec.unlink()
    assert [one.pending_reason for one in machine.plan()["pending"]] == ["nvidia-ctk cannot describe the devices"]


def test_without_a_driver(machine: Machine) -> None:
    machine.driver(None)
    assert machine.converge([INSTALL]) == FIRST[:2]
    assert [one.pending_reason for one in machine.plan()["pending"]] == ["no NVIDIA driver is loaded"]
    assumed = [step.action for step in machine.plan([INSTALL], check=True)["steps"] if step.assumed]
    assert assumed == [cdi_module.LINK, cdi_module.GENERATE]
    machine.driver("595.91.07")
    assert machine.converge() == [cdi_module.GENERATE]
    machine.driver(None)
    assert machine.converge() == [cdi_module.REMOVE]


@pytest.mark.parametrize(("there", "actions", "expected"), [
    (True, ["load module", "refresh CDI specification"], []),
    (True, ["install packages again"], []),
    (False, ["load module", "refresh CDI specification"], []),
    (False, ["install packages again"], [cdi_module.GENERATE]),
])
@pytest.mark.parametrize("loaded", [None, "595.91.07"])
def test_check_mode_counts_on_the_steps_of_the_driver(machine: Machine, loaded: str | None, there: bool,
                                                      actions: list[str], expected: list[str]) -> None:
    machine.converge()
    machine.driver(loaded)
    machine.says = spec("0") if loaded else None  # as long as a file of the driver is missing
    if not there:
        machine.spec.unlink()
    found = machine.plan(check=True, driver=actions)
    assert [(step.action, step.assumed) for step in found["steps"]] == [(action, True) for action in expected]
    assert (found["pending"], found["warnings"]) == ([], [])
    # A toolkit that changes is followed by specifications all the same.
    assert cdi_module.GENERATE in [step.action for step in machine.plan([INSTALL], check=True, driver=actions)["steps"]]


def test_check_mode_leaves_links_to_the_unit_that_the_driver_starts(machine: Machine,
                                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    machine.converge()
    monkeypatch.setattr(cdi_module, "nodes_without_link", lambda: ["/dev/nvidia0"])
    for actions, expected in ((["refresh CDI specification"], []), (["install packages again"], [cdi_module.LINK])):
        steps = machine.plan(check=True, driver=actions)["steps"]
        assert [step.action for step in steps] == expected


def test_not_wanted(machine: Machine) -> None:
    assert machine.converge(cdi=False) == [cdi_module.WRITE_RULE]
    assert machine.converge() == [cdi_module.INSTALL_UNIT, cdi_module.GENERATE]
    assert machine.converge(cdi=False) == [cdi_module.REMOVE_UNIT, cdi_module.REMOVE]
    assert not machine.spec.exists()


def test_a_specification_of_somebody_else_stays(machine: Machine) -> None:
    machine.spec.write_text(spec("0"))
    assert machine.converge() == FIRST
    assert cdi_module.REMOVE not in machine.converge(cdi=False)
    machine.converge()
    assert cdi_module.REMOVE not in machine.converge(state="absent")
    assert machine.spec.exists()


def test_a_specification_without_a_driver_is_of_wsl_or_jetson(machine: Machine) -> None:
    machine.driver(None)
    machine.spec.write_text(spec("all", driver="1.1"))
    assert machine.converge() == FIRST[:2]
    assert machine.plan()["pending"] == []
    machine.spec.write_text(spec("0"))
    assert machine.converge() == [cdi_module.REMOVE]


def test_what_the_packages_write_is_ours(machine: Machine) -> None:
    with Journal("container_toolkit", root=str(machine.root / "journal")) as journal:
        machine.cdi(journal).journal_gpu_spec()
    machine.spec.write_text(spec("0"))
    machine.converge()
    assert cdi_module.REMOVE in machine.converge(cdi=False)


def test_a_read_only_system_is_named_before_anything_changes(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = os.statvfs(machine.root)
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_flag=shape.f_flag | os.ST_RDONLY))
    with pytest.raises(HostError, match="cdi-refresh cannot be written: its file system is read-only"):
        machine.plan()
    # What makes links to device nodes is written also without CDI.
    with pytest.raises(HostError, match="rules/r cannot be written: its file system is read-only"):
        machine.plan(cdi=False)


def test_management(machine: Machine) -> None:
    machine.converge()
    assert machine.converge(cdi_management=True) == [cdi_module.INSTALL_UNIT, cdi_module.GENERATE]
    assert ("nvidia-ctk", "--quiet", "cdi", "generate", "--mode=management", "--vendor=management.nvidia.com",
            f"--output={machine.root}/cdi/management.yaml") in machine.calls
    assert machine.converge() == [cdi_module.INSTALL_UNIT, cdi_module.REMOVE]


def test_an_edited_or_disabled_unit_is_put_right(machine: Machine) -> None:
    machine.converge()
    (machine.root / "lib/cdi-refresh").write_text("exit 1\n")
    assert machine.converge() == [cdi_module.INSTALL_UNIT]
    (machine.root / "wants").unlink()
    assert machine.converge() == [cdi_module.INSTALL_UNIT]


@pytest.mark.parametrize("name", ["own.yaml", "own.json"])
def test_the_output_of_the_vendors_settings(machine: Machine, name: str) -> None:
    own = machine.root / "cdi" / name
    (machine.root / "env").write_text(f'# mine\nNVIDIA_CTK_CDI_OUTPUT_FILE_PATH="{own}"\n')
    assert cdi_module.GENERATE in [step.action for step in machine.plan(cdi_management=True)["steps"]]
    assert not own.exists()  # a plan writes nothing
    machine.converge(cdi_management=True)
    assert own.exists() and not machine.spec.exists()


def test_a_specification_for_which_there_is_no_room_says_so(machine: Machine) -> None:
    """Otherwise, it would be missing without a reason, as if the devices could not be described."""
    machine.converge()
    machine.spec.unlink()
    machine.full = True
    with pytest.raises(HostError, match="nvidia.yaml cannot be written: .*no space left on device.*has space"):
        machine.converge()


@pytest.mark.parametrize("masked", ["rules/r", "cdi/nvidia.yaml"])
def test_a_masked_file_is_told_by_the_plan(machine: Machine, monkeypatch: pytest.MonkeyPatch, masked: str) -> None:
    """A pipe replaces the null device; otherwise, a defect would destroy that of this machine."""
    os.mkfifo(machine.root / "null")
    monkeypatch.setattr(os, "devnull", str(machine.root / "null"))
    (machine.root / masked).parent.mkdir(exist_ok=True)
    (machine.root / masked).symlink_to(machine.root / "null")
    with pytest.raises(HostError, match=f"{masked} cannot be written.*must not exist on this host"):
        machine.plan()


def test_links_of_device_nodes(machine: Machine) -> None:
    node = machine.root / "dev/nvidia0"
    node.symlink_to("/dev/null")
    (machine.root / "dev/nvidia-notes").write_text("no device")
    assert cdi_module.LINK in machine.converge()
    assert os.path.samefile(machine.root / "dev/char/1:3", node)
    (machine.root / "dev/char/1:3").unlink()
    (machine.root / "dev/char/1:3").symlink_to("../gone")
    assert machine.converge() == [cdi_module.LINK]


def test_the_script(machine: Machine) -> None:
    """The shell script makes the same decisions as the module; nvidia-ctk, nvidia-smi and /proc are simulated."""
    script = cdi_files.unit_files(False)[cdi_files.SCRIPT].decode()
    assert "@" not in script.replace("$@", "")
    script = script.replace("/proc/driver/nvidia/version", str(machine.root / "proc/driver/nvidia/version"))
    script = script.replace("/dev/nvidia*", str(machine.root / "dev/none*")).replace("/dev/nvidia-caps/*", "")
    tools = machine.root / "bin"
    tools.mkdir()

    def run(ctk: str, listing: str = "GPU 0", modes: str = "Disabled") -> tuple[int, bool]:
        for name, body in (("nvidia-ctk", ctk), ("nvidia-smi", f"case $1 in -L) echo '{listing}' ;; "
                                                               f"*) echo '{modes}' ;; esac")):
            (tools / name).write_text(f"#!/bin/sh\n{body}\n")
            (tools / name).chmod(0o755)
        done = subprocess.run(["sh", "-c", script], env={"PATH": f"{tools}:/usr/bin:/bin"}, check=False)
        return done.returncode, machine.spec.exists()

    write = f"echo libcuda.so.595.91.07 > {machine.spec}"
    assert run(write) == (0, True)
    assert run("exit 1") == (1, True)
    assert run("exit 1", listing="GPU 0\n  MIG 1g.10gb (UUID: MIG-x)", modes="Enabled") == (1, True)
    assert run("exit 1", modes="Enabled\nDisabled") == (1, True)
    assert run("exit 1", modes="Enabled") == (0, False)
    assert run(write) == (0, True)
    machine.driver(None)
    assert run(write) == (0, False)
    machine.spec.write_text("libcuda.so.1.1")
    assert run(write) == (0, True)


@pytest.mark.parametrize(("ctk", "stat"), [
    ("true", "true"), ("mv none1 none2", "true"), ("cp none1 new; mv new none1", "true"), ("true", "touch none4")])
def test_the_script_goes_on_until_no_node_changes(machine: Machine, ctk: str, stat: str) -> None:
    """Nodes are created, removed or replaced while nvidia-ctk writes, or while the first of them gets its link."""
    dev, runs = machine.root / "dev", machine.root / "runs"
    (dev / "none0").symlink_to("/dev/null")
    (dev / "none1").write_text("")
    script = cdi_files.unit_files(False)[cdi_files.SCRIPT].decode()
    for real, own in (("/proc/driver", machine.root / "proc/driver"), ("/dev/nvidia*", dev / "none*"),
                      ("/dev/nvidia-caps/*", ""), ("/dev/char", machine.root / "char")):
        script = script.replace(real, str(own))
    first = f"[ $(wc -l < {runs}) -gt 1 ] ||"
    for name, body in (("nvidia-ctk", f"echo run >> {runs}\n{first} {{ {ctk}; }}"),
                       ("stat", f"case $2 in 0x*) {first} {{ {stat}; }} ;; esac\nexec /usr/bin/stat \"$@\"")):
        tool = machine.root / "bin" / name
        tool.parent.mkdir(exist_ok=True)
        tool.write_text(f"#!/bin/sh\n{body}\n")
        tool.chmod(0o755)
    done = subprocess.run(["sh", "-c", script], cwd=dev, check=False,
                          env={"PATH": f"{machine.root}/bin:/usr/bin:/bin"})
    assert done.returncode == 0 and os.listdir(machine.root / "char") == ["0:0"]  # stat does not follow links
    assert runs.read_text().count("run") == (1 if ctk == stat == "true" else 2)


def test_parsing() -> None:
    text = '{"kind": "nvidia.com/gpu", "devices": [{"name": "0"}, {"name": "all"}], "x": "libcuda.so.580.126.20"}'
    assert shared.parse(text) == {"devices": ["0"], "driver": "580.126.20"}
    sorted_keys = "devices:\n- containerEdits:\n    deviceNodes: []\n  name: \"0:1\"\nkind: nvidia.com/gpu\n"
    assert shared.parse(sorted_keys) == {"devices": ["0:1"], "driver": None}
    assert shared.parse(spec("0", "MIG-b"))["devices"] == ["0", "MIG-b"]


def test_starting_the_unit() -> None:
    calls: list[t.Any] = []

    def run(argv: t.Sequence[str], **options: t.Any) -> Completed:
        calls.append((tuple(argv), options["check"]))
        return Completed(tuple(argv), len(calls) - 1, "", "")

    assert shared.refresh(run) and not shared.refresh(run)
    assert calls == [(("systemctl", "start", "gpuops-cdi-refresh.service"), False)] * 2


def test_the_specification_is_read_without_a_plan(machine: Machine) -> None:
    def read() -> tuple[list[str], dict[str, t.Any]]:
        with Journal("container_toolkit", root=str(machine.root / "journal"), readonly=True) as journal:
            cdi = machine.cdi(journal, state="gathered")
            return cdi.read().specs, cdi.specification()

    nothing = {"path": None, "devices": [], "driver": None, "management": False, "unit": False}
    assert read() == ([], nothing) and machine.calls == []
    machine.converge(cdi_management=True)
    asked = len(machine.calls)
    management = str(machine.root / "cdi/management.yaml")
    there = {"path": str(machine.spec), "devices": ["0", "GPU-a"], "driver": "595.91.07", "management": True,
             "unit": True}
    assert read() == ([str(machine.spec), management], there) and len(machine.calls) == asked
    machine.spec.unlink()
    assert read() == ([management], {**nothing, "management": True, "unit": True})


def test_a_rootless_docker_has_a_folder_with_a_link(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, file = machine.root / "run/cdi/rootless", machine.root / "tmpfiles.d/x.conf"
    monkeypatch.setattr(cdi_files, "ROOTLESS", str(folder))
    monkeypatch.setattr(cdi_files, "ROOTLESS_FILE", str(file))
    run = machine.run

    def with_tmpfiles(argv: t.Sequence[str], **options: t.Any) -> Completed:
        if argv[0] == "systemd-tmpfiles":
            assert list(argv[1:]) == ["--create", str(file)]
            folder.mkdir(parents=True, exist_ok=True)
            *_head, path, _mode, _user, _group, _age, target = file.read_text().split()
            link = folder / pathlib.Path(path).name
            link.unlink(missing_ok=True)
            link.symlink_to(target)
        return run(argv, **options)

    machine.run = with_tmpfiles  # type: ignore[method-assign]
    step = cdi_module.LINK_ROOTLESS
    assert step not in machine.converge()
    assert machine.converge(rootless_users=["builder"]) == [step]
    assert file.read_text().splitlines()[-1].endswith(f"/nvidia.yaml - - - - {machine.spec}")
    assert machine.converge() == []  # it stays until the removal
    (folder / "nvidia.yaml").unlink()
    folder.rmdir()
    assert machine.converge(rootless_users=["builder"]) == [step]
    for target in (None, "/elsewhere.yaml"):  # removed by somebody, or to a former place
        (folder / "nvidia.yaml").unlink()
        if target:
            (folder / "nvidia.yaml").symlink_to(target)
        assert machine.converge(rootless_users=["builder"]) == [step]
        assert os.readlink(folder / "nvidia.yaml") == str(machine.spec)
    (folder / "nvidia.json").symlink_to(machine.spec)
    assert machine.converge(rootless_users=["builder"]) == [step]
    assert [path.name for path in folder.iterdir()] == ["nvidia.yaml"]
    (folder / "theirs.yaml").write_text("")
    assert cdi_module.UNLINK_ROOTLESS in machine.converge(state="absent")
    assert [path.name for path in folder.iterdir()] == ["theirs.yaml"] and not file.parent.exists()
