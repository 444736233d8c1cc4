# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The controller's half of container_toolkit together with the host's half: the requests to a host, and the messages
about it."""

from __future__ import annotations

import base64
import dataclasses
import json
import typing as t
from types import SimpleNamespace

import pytest
from ansible_collections.gpuops.nvidia.plugins.action.container_toolkit import ActionModule
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import GpuopsError, InUse
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step
from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit import config, packages, read, step_executor
from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit.seal import encrypt
from ansible_collections.gpuops.nvidia.plugins.modules import container_toolkit as module
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import runtime_names
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes import owners, registry, settings_file

OPTIONS = {"state": "present", "version": None, "runtime": ["auto"], "set_as_default": True, "cdi": True,
           "rootless_users": [], "nvidia_runtime_name": "nvidia", "nvidia_runtime_path": None,
           "cdi_management": False, "nri": False, "settings": {}, "mode": "auto", "proxy": None,
           "disruption": "idle", "repository": {"url": "http://x/", "key": "k", "fingerprint": "A" * 40}}
CONTAINERD = b"version = 2\n"


class Variables(dict[str, t.Any]):
    """Ansible's hostvars."""

    def raw_get(self, host: str) -> t.Any:
        return self[host]



class Play:
    """Runs the task for a host; phases: the requests to the host, in order."""

    def __init__(self, host: t.Any, patch: pytest.MonkeyPatch) -> None:
        self.host, self.patch = host, patch
        self.phases: list[str] = []
        self.steps: list[list[str]] = []
        self.removed: list[str] = []
        self.packages: list[Step] = []  # what the host plans by itself until it has been executed
        self.script: t.Callable[[], t.Any] = lambda: None  # what the scripts of these packages do
        self.options: dict[str, t.Any] = {}  # what the host says that it was given, in place of the truth
        self.registered: dict[str, t.Any] = {}  # what tasks of the play have registered before
        self.driver: list[str] = []  # what the host is told of the driver
        self.instead: dict[str, t.Any] | None = None  # the host's answer, where it fails
        settings = host.root / "nvidia-container-runtime" / "config.toml"
        settings.parent.mkdir()
        self.settings = settings
        patch.setattr(read, "SETTINGS", str(settings))
        patch.setattr(step_executor, "SETTINGS", str(settings))
        patch.setattr(settings_file, "FILE", str(settings))
        patch.setattr(module, "run", host.run)
        patch.setattr(module, "Journal", lambda concern, readonly: Journal(concern, host.journal_root, readonly))
        patch.setattr(module, "plan", lambda *_args: {
            "packages": {"installed": {"nvidia-container-toolkit": "1.20"}, "version": "1.20",
                         "steps": [step_executor.step_as_json(step) for step in self.packages]},
            "cdi": {"specs": ["/var/run/cdi/nvidia.yaml"], "driver": None, "steps": [], "pending": [], "warnings": []}})
        patch.setattr(module, "gather", lambda *words: (module.plan(*words), {"repository": {}, "specification": {
            "path": "/var/run/cdi/nvidia.yaml", "devices": ["0"], "driver": "595.91.07", "management": False,
            "unit": True}}))
        patch.setattr(packages.Packages, "execute", lambda _self, step: self._install(step))
        patch.setattr(packages.Packages, "forget_restored", lambda _self: None)

    def _install(self, _step: Step) -> bool:
        self.packages.clear()
        self.script()
        return True

    def _execute(self, module_name: str, module_args: dict[str, t.Any], task_vars: dict[str, t.Any]) -> t.Any:
        assert (module_name, task_vars["inventory_hostname"]) == ("gpuops.nvidia.container_toolkit", "h")
        request = json.loads(base64.b64decode(module_args["request"]))
        self.driver = request.get("driver", [])
        self.phases.append(request["phase"])
        self.steps.append([f"{step['action']}: {step['target']}" for step in request.get("steps", ())])
        if self.instead is not None:
            return self.instead
        try:
            given = {**OPTIONS, "config_path": None, "drop_in_path": None, **module_args}
            answer = module.handle_request({**given, "runtime": runtime_names.names_in(given["runtime"])})
        except GpuopsError as error:
            return {"failed": True, **error.as_result()}
        told = json.loads(json.dumps(answer))
        told.get("options", {}).update(self.options)
        return told

    def __call__(self, check: bool = False, diff: bool = False, **options: t.Any) -> dict[str, t.Any]:
        self.phases.clear()
        self.steps.clear()
        action = object.__new__(ActionModule)
        given = {"config_path": str(self.host.config), "drop_in_path": str(self.host.drop_in), **options}
        action._task = SimpleNamespace(args=given, check_mode=check, diff=diff, async_val=0, action="container_toolkit")
        action._connection = SimpleNamespace(_shell=SimpleNamespace(tmpdir="/tmp/ansible-x"))
        action._execute_module = self._execute
        action._remove_tmp_path = self.removed.append
        variables = {"inventory_hostname": "h", "hostvars": Variables(h=self.registered)}
        return t.cast("dict[str, t.Any]", action.run(None, variables))


@pytest.fixture
def play(host: t.Any, monkeypatch: pytest.MonkeyPatch) -> Play:
    monkeypatch.setattr(read, "which", lambda name: f"/usr/bin/{name}" if name == "containerd" else None)
    return Play(host("1.7", CONTAINERD), monkeypatch)


@pytest.mark.parametrize("state", ["present", "absent"])
def test_containers_that_start_after_the_plan_leave_the_restart_pending(
        play: Play, monkeypatch: pytest.MonkeyPatch, state: str) -> None:
    """A later run does the restart."""
    if state == "absent":
        play()
        play.packages.append(Step("purge packages", "nvidia-container-toolkit"))
    restarts = play.host.restarts

    def expect(_self: t.Any, unit: str, _idle: t.Any) -> None:
        raise InUse(f"containers have started since the plan was made, or {unit} does not say whether any run")

    with monkeypatch.context() as patch:
        patch.setattr(config.ConfigFiles, "_check_idle", expect)
        result = play(state=state, diff=True)
    first, *others = result["pending"]
    assert first["id"] == "restart service: containerd.service" and first["id"] not in ids(result)
    assert first["pending_reason"] == ("containers have started since the plan was made, or containerd.service does "
                                       "not say whether any run")
    assert {step["pending_reason"] for step in others} <= {f"it follows '{first['id']}'"}
    assert bool(others) == (state == "absent") and "restart service" not in str(result["diff"])
    assert result["changed"] and result["restart_required"] and play.host.restarts == restarts
    again = play(state=state)
    assert first["id"] in ids(again) and not again["pending"] and play.host.restarts == restarts + 1


def ids(result: t.Mapping[str, t.Any]) -> list[str]:
    return [step["id"] for step in result["plan"]]


def test_it_comes_stays_and_goes(play: Play) -> None:
    former = play.host.shape()
    first = play()
    assert play.phases == ["read", "try", "apply"]
    assert ids(first)[-1] == "restart service: containerd.service"
    assert (first["changed"], first["restart_required"], first["pending"]) == (True, False, [])
    assert (first["runtime"], first["config_path"]) == ("containerd", str(play.host.config))
    assert (first["previous_default_runtime"], first["version"]) == ("runc", "1.20")
    assert first["packages"] == {"nvidia-container-toolkit": "1.20"}
    assert first["cdi_specs"] == ["/var/run/cdi/nvidia.yaml"]
    again = play()
    assert (again["changed"], again["plan"], play.phases) == (False, [], ["read"])
    gone = play(state="absent")
    assert (gone["changed"], gone["runtime"], play.phases[-1]) == (True, "containerd", "apply")
    assert play.host.shape() == former
    assert play(state="absent")["changed"] is False
    assert play.phases == ["read"]
    assert len(play.removed) == 4


def test_the_host_is_told_what_check_mode_has_planned_for_the_driver(play: Play) -> None:
    actions = ["write module parameters", "load module", "install packages again"]
    play.registered["driver_result"] = {"plan": [{"action": action, "target": "x"} for action in actions]}
    play(check=True)
    assert play.driver == ["install packages again", "load module"]
    play()
    assert play.driver == []


def test_check_mode_asks_and_changes_nothing(play: Play) -> None:
    former = play.host.tree()
    told = play(check=True, diff=True)
    assert play.phases == ["read", "try"]
    assert play.host.tree() == former
    assert (told["changed"], told["restart_required"]) == (True, True)
    assert [entry["before_header"] for entry in told["diff"] if "nvidia" in entry["after"]]
    done = play()
    assert ids(told) == ids(done)
    assert "diff" not in done


def test_the_gathered_state_as_options_changes_nothing(play: Play) -> None:
    former = play.host.tree()
    bare = play(state="gathered")
    assert (bare["changed"], bare["plan"], bare["pending"], play.phases) == (False, [], [], ["gather"])
    assert bare["gathered"]["set_as_default"] is False and bare["runtimes"][0]["configured"] is False
    assert play.host.tree() == former and play.removed == ["/tmp/ansible-x"]
    play(settings={"nvidia-container-runtime.mode": "cdi"})
    former = play.host.tree()
    for check in (False, True):
        result = play(state="gathered", check=check, diff=True)
        assert (result["changed"], play.phases, play.host.tree()) == (False, ["gather"], former)
    wanted = result["gathered"]
    assert wanted["settings"] == {"nvidia-container-runtime": {"mode": "cdi"}}
    assert (wanted["runtime"], wanted["set_as_default"], wanted["cdi"], wanted["version"]) == (
        "containerd", True, True, "1.20")
    assert (result["runtimes"][0]["is_default"], result["previous_default_runtime"]) == (True, "runc")
    assert result["cdi"] == {"path": "/var/run/cdi/nvidia.yaml", "devices": ["0"], "driver": "595.91.07"}
    again = play(**wanted)
    assert (again["changed"], again["plan"], play.host.tree()) == (False, [], former)


def test_a_host_without_a_runtime_is_gathered(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "which", lambda _name: None)
    result = play(state="gathered")
    assert (result["runtime"], result["runtimes"], result["changed"]) == (None, [], False)


def test_options_that_gathered_does_not_use_are_refused(play: Play) -> None:
    result = play(state="gathered", cdi=True, version="1.20.1", nri=None, disruption="idle")
    assert result["failed"] and "cdi, version cannot be set with state gathered." in result["msg"]
    assert (result["error"]["path"], play.phases) == ("cdi", [])


@pytest.mark.parametrize("value", [None, {"path": 7}, {"path": None, "devices": [], "driver": None}])
def test_a_forged_specification_is_refused(play: Play, monkeypatch: pytest.MonkeyPatch, value: t.Any) -> None:
    real = module.gather
    monkeypatch.setattr(module, "gather", lambda *words: (real(*words)[0], {
        "specification": value, "repository": {}}))
    assert play(state="gathered")["error"]["path"].startswith("specification")


def test_what_the_level_forbids_waits(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    containerd = registry.RUNTIMES["containerd"]
    propose, removal = containerd.propose, containerd.propose_removal
    for name, real in (("propose", propose), ("propose_removal", removal)):
        monkeypatch.setattr(containerd, name, lambda *args, real=real: dataclasses.replace(real(*args), needs="drain"))
    waiting = play()
    assert [step["needs"] for step in waiting["pending"]] == ["drain"]
    assert (waiting["changed"], waiting["restart_required"], play.host.restarts) == (True, True, 0)
    again = play()
    assert (again["changed"], again["restart_required"], len(again["pending"])) == (False, True, 1)
    assert play(disruption="drain")["restart_required"] is False
    assert play.host.restarts == 1
    kept = play(state="absent")
    assert kept["pending"] and play.host.see().journal.present, "a removal that has to wait forgets nothing"
    play(state="absent", disruption="drain")
    assert not play.host.see().journal.present


def test_what_the_scripts_of_packages_leave_in_the_settings_is_edited_after_them(play: Play) -> None:
    play.packages = [Step("install packages", "nvidia-container-toolkit", "missing")]
    play.script = lambda: play.settings.write_text('[nvidia-container-runtime]\nmode = "legacy"\n')
    told = play(settings={"nvidia-container-runtime.mode": "auto"}, check=True)
    assert not play.settings.exists()
    done = play(settings={"nvidia-container-runtime.mode": "auto"})
    assert ids(told) == ids(done)
    assert play.phases == ["read", "try", "apply", "apply"]
    assert play.steps[-1] == [f"edit settings: {play.settings}"]
    assert 'mode = "auto"' in play.settings.read_text()
    assert play(settings={"nvidia-container-runtime.mode": "auto"})["changed"] is False


def test_settings_known_to_make_trouble_are_warned_of(play: Play) -> None:
    play.settings.write_text("[nvidia-container-cli]\nno-cgroups = true\n")
    assert "Containers of root get no access" in play()["warnings"][0]
    assert "warnings" not in play(state="absent")


def test_what_does_not_last_is_an_error(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program writes the file, too."""
    real = module.apply

    def undone(*args: t.Any) -> None:
        real(*args)
        play.host.config.write_bytes(CONTAINERD)

    monkeypatch.setattr(module, "apply", undone)
    told = play()
    assert told["failed"] and "After the run, the host still needs these steps: " in told["msg"]


@pytest.mark.parametrize("answer", [{"failed": True, "msg": "no", "error": {"kind": "x", "message": "no", "hint": ""}},
                                    {"unreachable": True, "msg": "gone"}])
def test_what_fails_on_the_host_is_the_result(play: Play, answer: dict[str, t.Any]) -> None:
    play.instead = answer
    assert play() == answer
    assert play.removed == ["/tmp/ansible-x"]


def test_where_no_module_has_answered_the_words_of_what_did_are_told(play: Play) -> None:
    play.instead = {"failed": True, "_ansible_parsed": False, "msg": "Module result deserialization failed.",
                    "module_stderr": "/bin/sh: 1: sudo: not found\n"}
    told = play()
    assert told["failed"] and "The host did not run the module: /bin/sh: 1: sudo: not found." in told["msg"]


def test_what_the_controller_refuses_fails_before_anything_changes(play: Play) -> None:
    play.host.config.write_bytes(b"version = 2\n[plugins\n")
    former = play.host.tree()
    told = play()
    assert told["failed"] and "apply" not in play.phases
    assert (play.host.tree(), play.removed) == (former, ["/tmp/ansible-x"])


def test_where_somebody_else_manages_the_runtime_that_is_told(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owners, "check_owner", lambda *_args: "Set this in the inventory: x")
    former = play.host.tree()
    play.options = {"config_path": None}
    told = play()
    assert told["warnings"][0] == "Set this in the inventory: x"
    assert [one["pending_reason"] for one in told["pending"]] == ["Set this in the inventory: x"]
    assert (told["changed"], play.host.tree()) == (False, former)
    play.options = {}
    assert play()["changed"], "a path that is given is ours to write"


def test_a_host_without_a_runtime(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "which", lambda _name: None)
    told = play()
    assert (told["runtime"], told["config_path"], told["changed"]) == (None, None, False)
    assert [one["pending_reason"] for one in told["pending"]] == [
        "no supported container runtime is installed"]
    assert play.phases == ["read"]


FORGED = (None, 7, "x", "[" * 2000, [None], {"x": {}})


def places(value: t.Any, path: t.Tuple[t.Any, ...] = ()) -> t.Iterator[t.Tuple[t.Any, ...]]:
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in items:
        yield from places(one, (*path, key))


def test_hundreds_of_forged_answers(play: Play) -> None:
    """The plan is made on the controller: a compromised host gets an error that names the path, or a plan that affects
    no other host."""
    play()
    play.script = lambda: None
    whole = play._execute("gpuops.nvidia.container_toolkit", {"request": base64.b64encode(json.dumps(
        {"phase": "read", "runtimes": [one.probe.as_request() for one in registry.RUNTIMES.values()], "check": True,
         "markers": []}).encode()).decode(), "config_path": str(play.host.config),
        "drop_in_path": str(play.host.drop_in)}, {"inventory_hostname": "h"})
    refused = believed = 0
    for path in places(whole):
        for value in FORGED:
            play.instead = json.loads(json.dumps(whole))
            holder: t.Any = play.instead
            for key in path[:-1]:
                holder = holder[key]
            holder[path[-1]] = value
            try:
                told = play(check=True, diff=True)
            except Exception as error:
                raise AssertionError(f"{path} = {value!r:.80}") from error
            json.dumps(told)
            if told.get("error", {}).get("kind") == "answer":
                refused += 1
                assert told["error"]["path"].startswith(("host_state", "options", "trials")) and len(told["msg"]) < 2000
            else:
                believed += 1
    assert refused > 150 and believed > 20, (refused, believed)


def test_an_answer_need_not_name_a_step_that_is_held_up(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    execute = play._execute
    monkeypatch.setattr(play, "_execute", lambda **request: {
        key: value for key, value in execute(**request).items() if key != "blocked_step"})
    told = play()
    assert told["changed"] and not told["pending"] and "apply" in play.phases


def test_a_runtime_without_what_its_programs_say(play: Play) -> None:
    play()
    play.instead = play._execute("gpuops.nvidia.container_toolkit", {"request": base64.b64encode(json.dumps(
        {"phase": "read", "runtimes": [one.probe.as_request() for one in registry.RUNTIMES.values()], "check": True,
         "markers": []}).encode()).decode(), "config_path": str(play.host.config)}, {"inventory_hostname": "h"})
    play.instead["host_state"]["runtimes"]["containerd"]["dump"] = None
    assert play()["error"]["path"] == "host_state.runtimes.containerd"
    runtimes = play.instead["host_state"]["runtimes"]
    play.instead["host_state"]["runtimes"] = {"crio": {**runtimes["containerd"], "facts": {}}}
    assert "without low_level" in play()["msg"]
    play.instead["host_state"]["settings"]["text"] = "\x1b" * 5_000_000
    assert "\x1b" not in play()["msg"]


def test_an_answer_is_sealed_on_its_way(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[str] = []

    def sealing(module_name: str, module_args: dict[str, t.Any], task_vars: dict[str, t.Any]) -> t.Any:
        told = Play._execute(play, module_name, module_args, task_vars)
        answers.append(base64.b64encode(encrypt(json.dumps(told).encode(), module_args["seal"])).decode())
        return {"changed": told["changed"], "sealed": answers[-1]}

    plain = play(check=True)
    monkeypatch.setattr(play, "_execute", sealing)
    assert play(check=True) == plain and len(answers) == 2
    assert not any("containerd" in answer for answer in answers) and len(set(answers)) == 2
    # What was sealed for another question, and what was not sealed at all.
    for other in (answers[0], "x", "", base64.b64encode(b"[" * 100_000).decode()):
        play.instead = {"changed": False, "sealed": other}
        monkeypatch.setattr(play, "_execute", lambda **options: Play._execute(play, **options))
        refused = play(check=True)
        assert refused["failed"] and refused["error"]["path"] == "sealed", refused


@pytest.mark.parametrize(("options", "path", "words"), [
    ({"runtime": ["docker", "docker"]}, "runtime", "docker is named twice"),
    ({"runtime": "docker,auto"}, "runtime", "auto excludes other names"),
    ({"runtime": []}, "runtime", "no runtime is named"),
    ({"runtime": ["containerd", "podman"]}, "config_path", "it is the path of one runtime"),
    ({"runtime": "all", "config_path": None}, "drop_in_path", "it is the path of one runtime"),
    ({"runtime": ["dokcer"]}, "", "value of runtime must be one or more of")])
@pytest.mark.parametrize("state", ["present", "absent", "gathered", "rendered"])
def test_names_that_exclude_each_other_are_refused_before_the_host_is_asked(
        play: Play, state: str, options: dict[str, t.Any], path: str, words: str) -> None:
    told = play(state=state, **options)
    assert told["failed"] and words in told["msg"] and play.phases == []
    assert (told["error"]["kind"], told["error"]["path"]) == ("input", path)


def test_a_list_or_nothing_is_one_runtime(play: Play) -> None:
    assert play(runtime=["containerd"], check=True)["runtime_names"] == ["containerd"]
    assert play(runtime=None, check=True)["config_paths"] == {"containerd": str(play.host.config)}
