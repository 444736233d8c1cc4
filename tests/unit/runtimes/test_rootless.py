# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The rootless Docker and Podman of users: files, levels, pending steps and warnings."""

from __future__ import annotations

import json
import typing as t
from dataclasses import replace

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError, InputError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import runtime_names
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes import toolkit_steps
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.base import Options
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.docker import Docker
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.gathered import gathered
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.host_state import (
    HostJournal,
    HostState,
    ProgramResult,
    RuntimeState,
    User,
    UserFile,
)
from ansible_collections.gpuops.nvidia.tests.unit.runtimes.played import Played

FILE, KEY, UNIT = "/home/builder/.config/docker/daemon.json", "docker of builder", "docker.service of builder"
BUILDER = User("/home/builder/.config", "/run/user/1000", True, True, [], None)
WISH = Options(False, True, "auto", rootless_users=["builder"])
LINKED = "/var/run/cdi/rootless"
INFO = {"Runtimes": {"runc": {}}, "DefaultRuntime": "runc", "LiveRestoreEnabled": True, "ContainersRunning": 0,
        "ContainersPaused": 0, "CDISpecDirs": []}


class PlayedUser(Played):
    def seen(self) -> RuntimeState:
        return replace(super().seen(), user="builder", user_folders=("/home/builder/.config", "/run/user/1000"))


def docker(text: str | None = None, version: str = "26.1.5", **info: t.Any) -> PlayedUser:
    answer = ProgramResult(0, json.dumps({**INFO, **info})) if info else ProgramResult(1)
    return PlayedUser(Docker(), f"Docker version {version}", FILE, {} if text is None else {FILE: text}, unit=UNIT,
                      facts={"info": answer}, running=bool(info))


def host(one: PlayedUser | None, user: User = BUILDER, **more: RuntimeState) -> HostState:
    journal = HostJournal(True, {path: replace(record, runtime=KEY) for path, record in one.journal().files.items()}) \
        if one else HostJournal()
    return HostState({**more, **({KEY: one.seen()} if one else {})}, journal=journal, users={"builder": user})


@pytest.mark.parametrize("text", [None, '{\n  "log-level": "warn"\n}\n', '{"cdi-spec-dirs": ["/srv/cdi"]}'])
def test_the_file_of_a_user_has_the_runtime_and_the_folder_and_is_restored(text: str | None) -> None:
    one = docker(text)
    one.converge(set_as_default=False)
    data = json.loads(one.files[FILE])
    assert data["features"] == {"cdi": True}
    assert data["runtimes"] == {"nvidia": {"path": "/usr/bin/nvidia-container-runtime"}}
    own = ["/srv/cdi"] if text and "srv" in text else ["/etc/cdi", "/var/run/cdi"]
    assert data["cdi-spec-dirs"] == [*own, LINKED]
    assert one.propose(set_as_default=False).changes == []
    edited = json.dumps({**data, "debug": True})
    one.files[FILE] = edited
    one.remove()
    assert json.loads(one.files[FILE]) == {**(json.loads(text) if text else {}), "debug": True}


def test_the_folders_of_the_user_are_kept_where_docker_reads_them() -> None:
    one = docker(version="29.2.0")
    one.converge(set_as_default=False)
    data = json.loads(one.files[FILE])
    assert data["cdi-spec-dirs"] == [
        "/etc/cdi", "/var/run/cdi", "/home/builder/.config/cdi", "/run/user/1000/cdi", LINKED]
    assert "features" not in data  # CDI is on by default


@pytest.mark.parametrize("version", ["26.1.5", "29.2.0"])
def test_a_removal_keeps_the_folders_that_the_user_adds(version: str) -> None:
    one = docker(version=version)
    one.converge(set_as_default=False)
    data = json.loads(one.files[FILE])
    rest = [folder for folder in data["cdi-spec-dirs"] if folder != LINKED]
    one.files[FILE] = json.dumps({**data, "cdi-spec-dirs": [*data["cdi-spec-dirs"], "/home/builder/cdi"]})
    one.remove()
    assert json.loads(one.files[FILE])["cdi-spec-dirs"] == [*rest, "/home/builder/cdi"]


def test_a_docker_without_cdi_is_refused() -> None:
    with pytest.raises(HostError, match=r"Docker 24.0 does not support CDI .* rootless containers of builder"):
        docker(version="24.0.9").propose()


@pytest.mark.parametrize(("running", "needs"), [(0, "idle"), (2, "drain")])
def test_a_restart_ends_containers_although_live_restore_is_on(running: int, needs: str) -> None:
    one = docker('{"live-restore": true}', ContainersRunning=running)
    steps = toolkit_steps.plan(host(one), WISH).steps
    assert [step.id for step in steps] == [f"edit file: {FILE}", f"reload service: {UNIT}", f"restart service: {UNIT}"]
    restart = steps[-1]
    assert (restart.needs, restart.data["user"], steps[0].data["user"]) == (needs, "builder", "builder")
    scripts = " ".join([*restart.data["idle"], *restart.data["confirm"]])
    assert "unix://$XDG_RUNTIME_DIR/docker.sock" in scripts and "/var/run/docker.sock" not in scripts
    assert ("ContainersRunning" in scripts) == (needs == "idle")


def test_a_daemon_that_has_not_read_the_folder_is_restarted() -> None:
    one = docker(CDISpecDirs=["/etc/cdi", "/var/run/cdi"], Runtimes={"runc": {}, "nvidia": {}})
    one.converge(set_as_default=False)
    assert one.propose(set_as_default=False).due_reason == "the daemon has started before CDI was enabled"
    one.facts = docker(CDISpecDirs=[LINKED], Runtimes={"runc": {}, "nvidia": {}}).facts
    assert one.propose(set_as_default=False).due_reason == ""


@pytest.mark.parametrize(("user", "words"), [
    (replace(BUILDER, manager=False, lingers=False), ["builder is not logged in", "loginctl enable-linger builder"]),
    (replace(BUILDER, manager=False), ["builder is not logged in"]),
    (BUILDER, ["systemctl --user enable --now docker as builder"]),
])
def test_a_docker_that_does_not_run_is_pending(user: User, words: list[str]) -> None:
    plan = toolkit_steps.plan(host(docker(), user), WISH)
    assert [step.id for step in plan.steps] == [f"write file: {FILE}"]
    found, = plan.pending
    assert found.id == f"start service: {UNIT}" and all(word in found.pending_reason for word in words)
    assert ("enable-linger" in found.pending_reason) == (not user.lingers)


def test_a_user_without_any_runtime_is_pending_and_podman_needs_no_file() -> None:
    found, = [step for step in toolkit_steps.plan(host(None), WISH).pending if "builder" in step.id]
    assert "dockerd-rootless-setuptool.sh install" in found.pending_reason
    podman = replace(BUILDER, podman=UserFile("/home/builder/.config/containers/containers.conf", None))
    plan = toolkit_steps.plan(host(None, podman), WISH)
    assert (plan.steps, plan.warnings) == ([], []) and not [step for step in plan.pending if "builder" in step.id]


@pytest.mark.parametrize(("user", "words"), [
    (replace(BUILDER, closed=["/dev/nvidiactl"]), "builder cannot open /dev/nvidiactl, so rootless containers"),
    (replace(BUILDER, podman=UserFile("/c.conf", '[engine]\ncdi_spec_dirs = ["/srv"]')),
     "cdi_spec_dirs is /srv. Podman"),
    (replace(BUILDER, podman=UserFile("/c.conf", "[engine")), "/c.conf"),
])
def test_why_containers_would_get_no_gpus_is_a_warning(user: User, words: str) -> None:
    warning, = toolkit_steps.plan(host(None, user), WISH).warnings
    assert words in warning


def test_the_docker_of_root_that_does_not_run_is_left_alone() -> None:
    root = RuntimeState("/usr/bin/dockerd", "/etc/docker/daemon.json", "docker.service",
                        version="Docker version 26.1.5",
                        files={"/etc/docker/daemon.json": None, "/run/user/1000/docker.pid": "exists"},
                        facts={"info": ProgramResult(1)})
    plan = toolkit_steps.plan(host(docker(), docker=root), WISH)
    assert list(plan.proposals) == [KEY]
    with pytest.raises(HostError, match="Name the user of this Docker in rootless_users"):
        toolkit_steps.plan(host(None, docker=root), replace(WISH, rootless_users=[]))


def test_a_removal_restores_the_files_of_all_users() -> None:
    one = docker("{}")
    one.converge(set_as_default=False)
    step, = toolkit_steps.plan(host(one), Options(False, True, "auto", state="absent")).steps
    assert (step.id, step.data["user"], step.data["runtime"]) == (f"restore file: {FILE}", "builder", KEY)


def test_gathered_names_the_users() -> None:
    one = docker("{}")
    one.converge(set_as_default=False)
    state = replace(host(one), packages=HostState().packages._replace(version="1.20.1"))
    specification = {"path": None, "devices": [], "driver": None, "management": False, "unit": False}
    found = gathered(state, Options(False, True, "auto"), specification, {})
    assert found["gathered"]["rootless_users"] == ["builder"]
    row, = found["runtimes"]
    found_keys = [row[key] for key in ("name", "user", "config_path", "service")]
    assert found_keys == ["docker", "builder", FILE, "docker.service"]


@pytest.mark.parametrize(("users", "cdi", "mode", "path"), [
    (["a", "a"], True, "auto", "rootless_users"), ([""], True, "auto", "rootless_users"),
    (["a"], False, "auto", "cdi"), (["a"], True, "legacy", "mode"),
])
def test_options_that_rootless_containers_cannot_use(users: list[str], cdi: bool, mode: str, path: str) -> None:
    with pytest.raises(InputError, match=f"^{path}: ") as caught:
        runtime_names.check_rootless(users, cdi, mode)
    assert caught.value.details["allowed"] and caught.value.hint
    runtime_names.check_rootless([], False, "legacy")
    runtime_names.check_rootless(["a", "b"], True, "cdi")
