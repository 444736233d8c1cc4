# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""daemon.json in every shape: the desired members, no other change, restored content; and how each change takes
effect."""

from __future__ import annotations

import json
import pathlib
import typing as t

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes import toolkit_steps
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.base import Options
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.docker import Docker
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.host_state import (
    HostJournal,
    HostState,
    ProgramResult,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.json_text import Document
from ansible_collections.gpuops.nvidia.tests.unit.runtimes.played import Played, shape
from hypothesis import given, settings
from hypothesis import strategies as st

SHAPES = sorted((pathlib.Path(__file__).parent / "shapes" / "docker").glob("*.json"))
FILE = "/etc/docker/daemon.json"
VERSIONS = {"20.10": "Docker version 20.10.24+dfsg1, build 297e128", "29.2": "Docker version 29.2.0, build 0b9d198",
            "26.1": "Docker version 26.1.5+dfsg1, build a72d7cd"}
COMMAND = ["/usr/sbin/dockerd", "-H", "fd://", "--containerd=/run/containerd/containerd.sock", "$DOCKER_OPTS"]


def host(text: str | None = None, version: str = "26.1", **more: t.Any) -> Played:
    files = {} if text is None else {FILE: text}
    return Played(Docker(), VERSIONS[version], FILE, files, unit="docker.service",
                  **{"facts": {"info": ProgramResult(1)}, "command": COMMAND, **more})


def says(**more: t.Any) -> dict[str, ProgramResult]:
    """The information that a daemon reports about itself."""
    info = {"Runtimes": {"runc": {}}, "DefaultRuntime": "runc", "LiveRestoreEnabled": False, "ContainersRunning": 0,
            "ContainersPaused": 0, "CDISpecDirs": []}
    return {"info": ProgramResult(0, json.dumps({**info, **more}))}


def content(one: Played) -> t.Any:
    return Document(one.files[FILE], FILE).data


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("path", SHAPES, ids=lambda path: path.stem)
def test_shape(path: pathlib.Path, version: str) -> None:
    text = shape(path)
    before = Document(text, FILE).data
    one = host(text, version)
    changed = one.converge()
    after = content(one)
    assert after["default-runtime"] == "nvidia"
    assert after["runtimes"]["nvidia"]["path"].endswith("nvidia-container-runtime")
    assert "runtimeType" not in after["runtimes"]["nvidia"]
    if version == "26.1":
        assert after["features"]["cdi"] is True
    elif version == "29.2":
        assert after.get("features", {}).get("cdi", True) is True
    else:
        assert after.get("features") == before.get("features")
    old = before.get("runtimes", {})
    assert after["runtimes"].get("nvidia", {}).get("args") == old.get("nvidia", {}).get("args")
    for key in set(before) - {"runtimes", "default-runtime", "features"}:
        assert after[key] == before[key]
    for name in set(old) - {"nvidia"}:
        assert after["runtimes"][name] == old[name]
    for name in set(before.get("features", {})) - {"cdi"}:
        assert after["features"][name] == before["features"][name]
    assert ("9007199254740993" in text) == ("9007199254740993" in one.files[FILE])
    assert one.files[FILE].startswith("\ufeff") == text.startswith("\ufeff")
    assert ("\r\n" in one.files[FILE]) == ("\r\n" in text)
    assert bool(changed.trials) == (bool(changed.changes) and version != "20.10")

    again = one.propose()
    assert (again.changes, again.trials, again.due_reason, again.warnings) == ([], [], "", [])

    one.remove()
    assert one.files[FILE] == text


@pytest.mark.parametrize("path", SHAPES, ids=lambda path: path.stem)
def test_edited_since_loses_only_our_part(path: pathlib.Path) -> None:
    text = shape(path)
    one = host(text)
    one.converge(mode="cdi")
    edit = Document(one.files[FILE], FILE)
    edit.set(("debug",), False)
    one.files[FILE] = edit.text
    wanted = {**Document(text, FILE).data, "debug": False}
    assert one.propose(mode="cdi").changes == []
    one.files[FILE] = one.files[FILE].replace("/usr/bin/nvidia-container-runtime.cdi", "/opt/mine")
    assert one.converge(mode="cdi").changes[0].reason == "the file was edited after a run had written it"
    assert content(one)["runtimes"]["nvidia"]["path"] == "/usr/bin/nvidia-container-runtime.cdi"
    edit = Document(one.files[FILE], FILE)
    edit.set(("debug",), True)
    one.files[FILE] = edit.text
    assert "after this collection had written it" in one.remove().warnings[0]
    assert content(one) == {**wanted, "debug": True}


def test_options_switched_off_go() -> None:
    one = host('{"debug": true}')
    one.converge(mode="auto", cdi=False, set_as_default=False)
    plain = one.files[FILE]
    one.converge(mode="cdi", set_as_default=False)
    assert one.converge(cdi=False, set_as_default=False).action == "restart"
    assert one.files[FILE] == plain
    assert one.propose(cdi=False, set_as_default=False).changes == []


def test_a_class_that_is_the_default_stays() -> None:
    one = host("{}")
    one.converge(mode="cdi", set_as_default=False)
    one.files[FILE] = one.files[FILE].replace("{", '{"default-runtime": "nvidia-cdi",', 1)
    one.converge(set_as_default=False)
    assert content(one)["default-runtime"] == "nvidia-cdi"
    assert "nvidia-cdi" in content(one)["runtimes"]


def test_a_default_that_the_user_set_by_hand_stays() -> None:
    one = host("{}")
    one.converge(set_as_default=False)
    one.files[FILE] = one.files[FILE].replace("{", '{"default-runtime": "nvidia",', 1)
    assert one.propose(set_as_default=False).changes == []


def test_a_second_removal_keeps_the_edits() -> None:
    """The restart of the first removal is pending and is requested again."""
    one = host('{\n  "log-driver": "journald"\n}\n')
    one.converge()
    one.files[FILE] = one.files[FILE].replace('"journald"', '"journald",\n  "debug": true')
    one.remove()
    rest = one.files[FILE]
    assert json.loads(rest) == {"log-driver": "journald", "debug": True}
    assert one.remove().changes == []
    assert one.files[FILE] == rest


def test_removal_without_the_path_that_was_given() -> None:
    one = host("{}")
    one.config, one.files = "/srv/daemon.json", {"/srv/daemon.json": "{}\n"}
    one.converge()
    one.config = FILE
    assert one.remove().action == "restart"
    assert one.files == {"/srv/daemon.json": "{}\n"}


def test_removal_of_a_file_that_somebody_removed() -> None:
    one = host("{}")
    one.converge()
    del one.files[FILE]
    assert one.remove().changes == []


def test_no_file() -> None:
    one = host()
    one.converge()
    assert content(one) == {"runtimes": {"nvidia": {"path": "/usr/bin/nvidia-container-runtime"}},
                            "default-runtime": "nvidia", "features": {"cdi": True}}
    assert one.files[FILE].endswith("\n}\n")
    one.remove()
    assert one.files == {}


def test_modes_declare_their_class() -> None:
    one = host("{}")
    one.converge(mode="legacy", set_as_default=False, cdi=False)
    program = {"path": "/usr/bin/nvidia-container-runtime.legacy"}
    assert content(one) == {"runtimes": {"nvidia": program, "nvidia-legacy": program}}


def test_default_is_given_back_aloud() -> None:
    one = host('{"default-runtime": "crun", "runtimes": {"crun": {"path": "/usr/bin/crun"}}}')
    one.converge()
    changed = one.converge(set_as_default=False)
    assert content(one)["default-runtime"] == "crun"
    assert changed.action == "reload"
    one = host("{}")
    one.converge()
    changed = one.converge(set_as_default=False)
    assert (content(one)["default-runtime"], changed.action) == ("runc", "reload")
    assert one.propose(set_as_default=False).changes == []
    one.files[FILE] = one.files[FILE].replace("{", '{"debug": true,', 1)
    one.remove()
    assert content(one) == {"debug": True}
    kept = host('{"default-runtime": "nvidia", "runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}}', "29.2")
    assert kept.propose(set_as_default=False).changes == []


@pytest.mark.parametrize(("text", "options", "said"), [
    ("{}", {"cdi": False}, "reload"),
    ("{}", {}, "restart"),
    ('{"features": {"cdi": true}}', {}, "reload"),
])
def test_act(text: str, options: dict[str, t.Any], said: str) -> None:
    assert host(text).propose(**options).action == said
    assert host(text, "20.10").propose(**options).action == "reload"
    assert host(text, "29.2").propose(**options).action == "reload"
    assert host('{"features": {"cdi": false}}', "29.2").propose().action == "restart"


@pytest.mark.parametrize(("info", "needs"), [
    ({}, "idle"), ({"ContainersRunning": 2}, "drain"), ({"ContainersPaused": 1}, "drain"),
    ({"ContainersRunning": 2, "LiveRestoreEnabled": True}, "never"),
])
def test_restart_needs(info: dict[str, t.Any], needs: str) -> None:
    one = host('{"live-restore": true}', facts=says(**info))
    proposal = one.propose()
    assert (proposal.action, proposal.needs, proposal.reload_first) == ("restart", needs, True)
    assert one.propose(cdi=False).needs == "never"
    one.owed = {"docker.service": "restart"}
    assert one.propose(cdi=False).needs == needs


def test_what_a_reload_gives_does_not_wait_for_the_restart() -> None:
    one = host('{"live-restore": true}', facts=says(ContainersRunning=1))

    def steps() -> list[tuple[str, str]]:
        seen = HostState({"docker": one.seen()}, journal=HostJournal(restart=one.owed))
        return [(step.action, step.needs) for step in toolkit_steps.runtime_steps(seen, {"docker": one.propose()})]

    assert steps() == [("edit file", "never"), ("reload service", "never"), ("restart service", "drain")]
    one.converge()
    one.owed = {"docker.service": "restart"}
    assert steps() == [("reload service", "never"), ("restart service", "drain")]  # killed before the reload
    one.facts = says(ContainersRunning=1, Runtimes={"runc": {}, "nvidia": {}}, DefaultRuntime="nvidia")
    assert steps() == [("restart service", "drain")]
    one.facts = says(LiveRestoreEnabled=True)
    assert steps() == [("restart service", "never")]


@pytest.mark.parametrize(("text", "flag", "needs"), [
    ("{}", [], "drain"), ('{"live-restore": false}', [], "drain"), ('{"live-restore": true}', [], "never"),
    ("{}", ["--live-restore"], "never"), ("{}", ["--live-restore=true"], "never"),
    ("{}", ["--live-restore=false"], "drain")])
def test_containers_live_on_if_the_next_start_takes_them_over(text: str, flag: list[str], needs: str) -> None:
    """The daemon reports its settings of the last start or reload; the file can have other settings by now."""
    one = host(text, facts=says(ContainersRunning=1, LiveRestoreEnabled=True), command=[*COMMAND, *flag])
    assert one.propose().needs == needs


def test_restart_of_a_daemon_that_does_not_answer_needs_most() -> None:
    assert host("{}").propose().needs == "drain"
    assert host("{}", running=False).propose().needs == "never"


def test_a_member_that_goes_needs_a_restart() -> None:
    one = host("{}", facts=says())
    one.converge(cdi=False)
    gone = one.remove()
    assert (gone.action, gone.needs, gone.reload_first) == ("restart", "idle", False)
    one = host('{"runtimes": {"crun": {"path": "/usr/bin/crun"}}}', facts=says())
    one.converge(cdi=False, set_as_default=False)
    gone = one.remove()
    assert (gone.action, gone.needs) == ("reload", "never")


def test_what_the_daemon_has_not_read() -> None:
    one = host("{}", facts=says())
    assert one.converge().due_reason == ""
    assert one.propose().due_reason == "the daemon has started before CDI was enabled"
    one.facts = says(CDISpecDirs=["/etc/cdi"])
    stale = one.propose()
    assert (stale.action, stale.needs, bool(stale.due_reason)) == ("reload", "never", True)
    one.facts = says(CDISpecDirs=["/etc/cdi"], Runtimes={"runc": {}, "nvidia": {}}, DefaultRuntime="nvidia")
    assert one.propose().due_reason == ""


def test_flags_of_the_unit() -> None:
    one = host("{}", "29.2")
    one.files["/etc/default/docker"] = '# no\nDOCKER_OPTS="--default-runtime=runc --debug"\n'
    with pytest.raises(HostError, match="started with --default-runtime. It does not start if 'default-runtime'"):
        one.propose()
    assert content_after(one, set_as_default=False) == {
        "runtimes": {"nvidia": {"path": "/usr/bin/nvidia-container-runtime"}}}
    one = host("{}", command=[*COMMAND[:-1], "--feature", "containerd-snapshotter=true"])
    with pytest.raises(HostError, match="started with --feature"):
        one.propose()
    one = host("{}", command=[*COMMAND[:-1], "--add-runtime", "nvidia=/usr/bin/nvidia-container-runtime",
                              "--default-runtime", "nvidia", "--feature=cdi"])
    assert one.propose().changes == []


def content_after(one: Played, **options: t.Any) -> t.Any:
    return Document(str(one.propose(**options).changes[0].after), FILE).data


def test_a_default_that_nobody_declares() -> None:
    with pytest.raises(HostError, match="the default runtime 'gone' is not declared"):
        host('{"default-runtime": "gone"}').propose(set_as_default=False)
    assert host('{"default-runtime": "io.containerd.runc.v2"}').propose(set_as_default=False).changes


def test_no_folders_for_cdi() -> None:
    one = host('{"cdi-spec-dirs": []}')
    with pytest.raises(HostError, match="'cdi-spec-dirs' is empty"):
        one.propose()
    assert one.propose(cdi=False).changes


def test_what_is_not_ours() -> None:
    with pytest.raises(HostError, match=r"it is a snap \(snap.docker.dockerd.service\)"):
        Played(Docker(), "snap 2.63", FILE, unit="snap.docker.dockerd.service").propose()
    one = host("{}", running=False)
    one.files["/run/user/1000/docker.pid"] = "812"
    with pytest.raises(HostError, match=r"rootless.*Name the user of this Docker in rootless_users"):
        one.propose()
    one.running = True
    assert one.propose().changes


@pytest.mark.parametrize("text", ['{"runtimes": []}', '{"runtimes": {"nvidia": 5}}', '{"features": "cdi"}', "[]",
                                  '{"default-runtime": ["x"], "runtimes": 5}', '{"a": 1, "a": 2}', "{'a': 1}"])
def test_wrong_kinds_are_one_error(text: str) -> None:
    with pytest.raises(HostError, match=FILE):
        host(text).propose()


def test_rejected_candidate() -> None:
    one = host("{}")
    proposal = one.propose()
    with pytest.raises(HostError, match="dockerd rejects the candidate for /etc/docker/daemon.json: no such option"):
        one.runtime.check_trials(one.seen(), [ProgramResult(1, "", "no such option\n")], Options(True, True, "auto"),
                                 proposal)


TREES = st.recursive(st.one_of(st.booleans(), st.integers(), st.text(max_size=3), st.none()), lambda inner: st.one_of(
    st.lists(inner, max_size=2), st.dictionaries(st.sampled_from(
        ["runtimes", "nvidia", "path", "args", "features", "cdi", "default-runtime", "runtimeType", "x"]), inner,
        max_size=4)), max_leaves=10)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from(["runtimes", "features", "default-runtime", "x"]), TREES, max_size=4),
       st.sampled_from([None, 2, "\t"]), st.sampled_from(sorted(VERSIONS)), st.booleans())
def test_any_file(data: dict[str, t.Any], indent: t.Any, version: str, default: bool) -> None:
    text = json.dumps(data, indent=indent)
    one = host(text, version)
    try:
        one.converge(set_as_default=default)
    except HostError:
        assert one.files == {FILE: text}
        return
    assert content(one)["runtimes"]["nvidia"]["path"].endswith("nvidia-container-runtime")
    assert one.propose(set_as_default=default).changes == []
    one.remove()
    assert one.files == {FILE: text}


def test_credentials_are_masked_in_diffs() -> None:
    path = next(path for path in SHAPES if "proxy" in path.name)
    one = host(shape(path))
    entry = toolkit_steps.diffs(one.propose().changes)[0]
    for side in ("before", "after"):
        assert "s3cret" not in entry[side]
        assert "176FCEBF" not in entry[side]
        assert '"splunk-token": "********", "splunk-url": "https://logs.example:8088"' in entry[side]
