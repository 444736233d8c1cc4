# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Docker and Podman of Debian 13: real daemons and containers that use the runtime of the vendor and survive changes.

One host goes through all of that in the fixtures; the tests examine what was recorded on the way.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.base import Options
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.docker import Docker
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes.host_state import Journal, RuntimeState
from ansible_collections.gpuops.nvidia.tests.unit.runtimes.played import shape

from lab.stages import ROOT
from tests.integration import series, user
from tests.integration.conftest import LabHosts, own_lab
from tests.integration.series import Done, Play

HOST, FILE = "gpu-d1", "/etc/docker/daemon.json"
MAIN = "/etc/containerd/config.toml"
LOG = "/var/log/nvidia-container-runtime.log"
SETTINGS = {"nvidia-container-runtime": {"debug": LOG, "log-level": "debug"}}
SHAPES = sorted((ROOT / "tests" / "unit" / "runtimes" / "shapes" / "docker").glob("*.json"))
# A shell and a sleep with what they load.
IMAGE = ("tar -C / -ch usr/bin/dash usr/bin/sleep lib64/ld-linux-x86-64.so.2 lib/x86_64-linux-gnu/libc.so.6 | "
         "{} import - tiny")
# As the vendor's tool writes them where a driver is loaded.
SPECIFICATION = """mkdir -p /var/run/cdi; cat > /var/run/cdi/nvidia.yaml <<'END'
cdiVersion: 0.5.0
kind: nvidia.com/gpu
devices:
  - name: all
    containerEdits:
      env: [GPU=by-cdi]
      deviceNodes: [{path: /dev/nvidia0, hostPath: /dev/null}]
END
"""
SHOW = "/usr/bin/dash -c 'echo $GPU /dev/nvidia*'"
PODMAN = "podman --storage-driver vfs --root /var/lib/containerd/podman --cgroup-manager cgroupfs"


# Inode, time and mode of the file, and the daemon's process.
STATE = f"stat -c '%i %Y %a %U' {FILE}; systemctl show -p MainPID -p ExecMainStartTimestamp docker"
LOOK = f"stat -c '%a %U %G' {FILE}; cat {FILE}; systemctl is-active docker"
# The process of the container that was there from the beginning.
KEEPER = "docker inspect -f '{{.State.Pid}} {{.State.Running}}' keeper"
KEEP = "docker run -d --name keeper --network none {} tiny /usr/bin/sleep 100000"
DEFAULT = "docker info -f '{{.DefaultRuntime}}'"
# Files and processes of both daemons, and the runtime classes that they know.
BOTH = f"{STATE}; stat -c '%i %Y %a %U' {MAIN}; systemctl show -p MainPID containerd"
CLASSES = ("docker info -f '{{range $name, $_ := .Runtimes}}{{$name}} {{end}}'; "
           "containerd config dump | grep -o 'runtimes.nvidia]'")
# Docker does not start with a configuration that knows the runtime.
UNIT = "/run/systemd/system/docker.service.d"
REFUSE = f"""mkdir -p {UNIT}; cat > {UNIT}/refuse.conf <<'END'
[Service]
ExecStartPre=/bin/sh -c '! grep nvidia {FILE}'
END
systemctl daemon-reload"""


class Refused(NamedTuple):
    """Broken files, and a Docker that does not start; then a Docker that starts, and the removal."""

    comment: Done
    option: Done
    start: Done
    done: Done
    again: Done
    removal: Done
    look: str


class Settled(NamedTuple):
    """A run, and one that changes nothing. keeper: the container before and after. state: the state after the run.
    said: the output of containers."""

    done: Done
    again: Done
    keeper: tuple[str, str]
    state: str
    said: list[str]


class Default(NamedTuple):
    """A killed run and another one make the runtime the default; a later run reverts this."""

    killed: Done
    on: Settled
    off: Settled


class Removed(NamedTuple):
    """A removal with a Docker that keeps containers alive."""

    check: Done
    done: Done
    again: Done
    keeper: str
    snapshot: list[str]


class Several(NamedTuple):
    """Docker and containerd with CRI as the runtimes of one task. first: Docker must not be restarted; then: it may
    be; read: the state gathered of all runtimes, and the result of the same as options; verify: with a Docker without
    the runtime. snapshot: after the removal."""

    check: Done
    first: Done
    then: Done
    again: Done
    read: user.Run
    verify: Done
    removal: Done
    gone: Done
    snapshot: list[str]


def play(level: str = "idle", tasks: str = "host", *, check: bool = False, script: str = "",
         **variables: object) -> Play:
    """Runs the role container_toolkit."""
    return Play({"container_toolkit_runtime": "docker", "container_toolkit_settings": SETTINGS,
                 "container_toolkit_disruption": level, **variables}, tasks, check, first=script,
                role="container_toolkit")


def result(run: user.Run) -> dict[str, Any]:
    """The result of the module."""
    assert run.rc == 0, run.output
    return run.result(HOST, "container_toolkit")


def ids(steps: list[dict[str, Any]]) -> list[str]:
    """The steps without those of packages and CDI."""
    return [step["id"] for step in steps if "docker" in step["id"] or "containerd" in step["id"]]


def settled(found: Settled) -> dict[str, Any]:
    """The result of a run, after which another run changes nothing."""
    done, again = result(found.done), result(found.again)
    assert again["plan"] == [] and not again["changed"]
    assert ids(again["pending"]) == ids(done["pending"])
    assert found.again.parts(HOST)[-1] == found.state
    return done


def through(*words: str) -> str:
    """A script that prints the output of a container, and the log of the vendor's program with which Docker starts
    it."""
    return f"rm -f {LOG}; docker run --rm --network none {' '.join(words)} tiny {SHOW}; echo ======; cat {LOG}"


# Docker's unit may be started three times a minute, and these tests start it as often as they come to it.
UNCOUNTED = "systemctl reset-failed docker.service"


@pytest.fixture(scope="module")
def lab() -> Iterator[LabHosts]:
    """A lab of its own with a host of Debian 13, which has Docker 26 and Podman 5."""
    with own_lab("dockertest", f"{HOST}=a100-80:1@trixie") as hosts:
        yield hosts


@pytest.fixture(scope="module")
def clean(lab: LabHosts) -> list[str]:
    """The snapshot of the host in its initial state."""
    return lab.snapshot(HOST)


@pytest.fixture(scope="module")
def refused(lab: LabHosts, clean: list[str]) -> Refused:
    """Refused cases with a file of somebody else, which in the end is the former file of the host."""
    lab.sh(HOST, f"cp -p {FILE} /srv/former; chown nobody:adm {FILE}; chmod 640 {FILE}; cp -p {FILE} /srv/kept")
    runs = series.run(
        lab, play(script=f"sed -i '1a // ours' {FILE}; {STATE}"),
        play(script=f"{STATE}; echo ======; sed -i '2d; s/^{{/{{ \"no-such-option\": 1,/' {FILE}; {STATE}"),
        play("drain", script=f"{STATE}; echo ======; mv /srv/kept {FILE}\n{REFUSE}; {LOOK}"),
        play("drain", script=f"{LOOK}; rm -r {UNIT}; systemctl daemon-reload; {UNCOUNTED}"),
        play("drain", script=STATE),
        play("drain", "remove", script=f"{UNCOUNTED}; {STATE}; echo ======; stat -c '%a %U %G' {FILE}"))
    return Refused(*runs, lab.sh(HOST, f"{LOOK}; mv /srv/former {FILE}"))


@pytest.fixture(scope="module")
def reloaded(lab: LabHosts, refused: Refused) -> tuple[user.Run, Settled]:
    """A container runs that must not be stopped: check mode, and a run that must not restart Docker."""
    lab.sh(HOST, f"{IMAGE.format('docker')}; {KEEP.format('')}")
    keeper, first = lab.sh(HOST, KEEPER), play()
    preview = user.playbook(user.role("container_toolkit"), lab.hosts, "--check", **first.variables)
    done, again = series.run(lab, first, play(script=STATE))
    said = lab.sh(HOST, f"{STATE}; echo ======; {KEEPER}; echo ======; {through('--runtime', 'nvidia')}; echo ======; "
                        "docker info -f '{{.DefaultRuntime}} {{.CDISpecDirs}}'").split("======\n")
    return preview, Settled(done, again, (keeper, said[1]), said[0].strip(), said[2:])


@pytest.fixture(scope="module")
def restarted(lab: LabHosts, reloaded: object) -> Settled:
    """A run that may restart it."""
    keeper = lab.sh(HOST, f"{UNCOUNTED}; {KEEPER}")
    done, again = series.run(lab, play("drain"), play("drain", script=STATE))
    wish = through("--runtime", "nvidia", "-e", "NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=all")
    said = lab.sh(HOST, f"{STATE}; echo ======; {KEEPER}; echo ======; {SPECIFICATION}{wish}; echo ======; "
                        f"docker run --rm --network none --device nvidia.com/gpu=all tiny {SHOW}").split("======\n")
    return Settled(done, again, (keeper, said[1]), said[0].strip(), said[2:])


@pytest.fixture(scope="module")
def default(lab: LabHosts, restarted: Settled) -> Default:
    """Makes the runtime the default without a restart of Docker."""
    lab.put_killer(HOST)
    keeper = lab.sh(HOST, f"docker start keeper > /dev/null; {KEEPER}")
    wish = {"container_toolkit_set_as_default": True}
    killed, on, on_again, off, off_again = series.run(
        lab, play("never", script="printf '%s\\n' before 'reload service: docker.service' > /run/kill-step", **wish,
                  ansible_python_interpreter="/opt/killer/python3"),
        play("never", script=f"rm -r /run/kill-step /opt/killer; grep default-runtime {FILE}; echo ======; {DEFAULT}",
             **wish),
        play("never", script=STATE, **wish), play("never", script=f"{STATE}; echo ======; {KEEPER}; echo ======; "
                                                                  f"{through()}"), play("never", script=STATE))
    state, alive, *said = off.parts(HOST)
    after = lab.sh(HOST, f"{STATE}; echo ======; {KEEPER}; echo ======; cat {FILE}; echo ======; {DEFAULT}")
    off_state, still_alive, *off_said = after.split("======\n")
    return Default(killed, Settled(on, on_again, (keeper, alive), state, said),
                   Settled(off, off_again, (keeper, still_alive), off_state.strip(), off_said))


@pytest.fixture(scope="module")
def podman(lab: LabHosts, default: Default) -> Settled:
    """Adds Podman."""
    done, again = series.run(lab, play(script=STATE, container_toolkit_runtime="podman"),
                             play(script=STATE, container_toolkit_runtime="podman"))
    state = lab.sh(HOST, STATE).strip()
    # Put there anew: without a driver that is loaded a run takes it away.
    said = lab.sh(HOST, f"{SPECIFICATION}{IMAGE.format(f'{PODMAN} --log-level error')} > /dev/null\n{PODMAN} run --rm "
                        f"--network none --device nvidia.com/gpu=all tiny {SHOW} 2> /dev/null")
    return Settled(done, again, ("", ""), state, [said])


@pytest.fixture(scope="module")
def removed(lab: LabHosts, podman: Settled) -> Removed:
    """Removes the toolkit after the user has edited the file."""
    keeper = lab.sh(HOST, f"""exec 3>&1 > /dev/null
sed -i 's/"shutdown-timeout": 5/"shutdown-timeout": 5, "live-restore":true/' {FILE}
systemctl reload docker
timeout 60 sh -c 'until docker info -f "{{{{.LiveRestoreEnabled}}}}" | grep -qx true; do sleep 0.1; done'
rm -f /var/run/cdi/nvidia.yaml
docker rm -f keeper; {KEEP.format('--runtime nvidia')}; rm -f {LOG}
rm -rf /var/lib/containerd/podman
{KEEPER} >&3""")
    check, done, again = series.run(lab, play(tasks="remove", check=True), play("never", "remove"), play(
        tasks="remove", script=f"{KEEPER}; echo ======; docker info -f '{{{{len .CDISpecDirs}}}}{{{{range $name, $_ := "
                               f".Runtimes}}}} {{{{$name}}}}{{{{end}}}}'; echo ======; cat {FILE}; docker rm -f keeper "
                               f"> /dev/null; sed -i 's/, \"live-restore\":true//' {FILE}"))
    return Removed(check, done, again, keeper.strip(), lab.snapshot(HOST))


@pytest.fixture(scope="module")
def several(lab: LabHosts, removed: Removed) -> Several:
    """Configures two runtimes in one run on the host that the removal has left, and removes both."""
    def both(level: str = "never", tasks: str = "host", **more: Any) -> Play:
        return play(level, tasks, **{"container_toolkit_runtime": ["docker", "containerd"], **more})

    runs = series.run(lab, both(check=True), both(script=UNCOUNTED), both("idle"),
                      both("idle", script=f"{BOTH}; echo ======; {CLASSES}"))
    path = user.HOME / f"gathered-{os.getpid()}.json"
    path.write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": [
        {"gpuops.nvidia.container_toolkit": {"state": "gathered", "runtime": "all"}, "register": "found"},
        {"gpuops.nvidia.container_toolkit": "{{ found.gathered }}"}]}]))
    read = user.ansible("ansible-playbook", *(f"-i{inventory}" for inventory in lab.hosts), str(path))
    path.unlink()
    # In a run of its own, in which verify does not know that a specification is pending.
    last = series.run(
        lab, both(tasks="verify", script=f"{BOTH}; mv {FILE} /srv/ours; echo '{{}}' > {FILE}",
                  container_toolkit_cdi=False),
        both("idle", "remove", script=f"mv /srv/ours {FILE}; {UNCOUNTED}"), both("idle", "remove"))
    return Several(*runs, read, *last, lab.snapshot(HOST))


def test_a_broken_file_is_one_error(refused: Refused) -> None:
    comment, = refused.comment.errors()
    assert comment.startswith(f"{FILE}, line 2, column 1: JSON does not allow comments.")
    assert refused.option.parts(HOST)[0] == refused.comment.parts(HOST)[0]
    option, = refused.option.errors()
    assert "dockerd rejects the candidate" in option and "no-such-option" in option
    assert refused.start.parts(HOST)[0] == refused.option.parts(HOST)[1]


def test_the_former_file_returns_when_docker_does_not(refused: Refused) -> None:
    assert "former files are restored, and it runs with them" in refused.start.errors()[0], refused.start.output
    before = refused.start.parts(HOST)[1]
    assert before.startswith("640 nobody adm\n") and before.endswith("\nactive")
    assert refused.done.parts(HOST) == [before]
    state, owner = refused.removal.parts(HOST)
    assert settled(Settled(refused.done, refused.again, ("", ""), state, []))["changed"]
    assert owner == "640 nobody adm"
    assert refused.removal.rc == 0 and refused.look.strip() == before


def test_reload_gives_the_runtime_while_the_restart_waits(reloaded: tuple[user.Run, Settled]) -> None:
    preview, found = result(reloaded[0]), reloaded[1]
    done = settled(found)
    there = [step["id"] for step in done["plan"]]
    assert [step["id"] for step in preview["plan"] if not step["assumed"] or step["id"] in there] == there
    assert ids(done["plan"]) == [f"edit file: {FILE}", "reload service: docker.service"]
    assert ids(done["pending"]) == ["restart service: docker.service"]
    assert "needs 'drain'" in done["pending"][0]["pending_reason"]
    assert done["restart_required"] is True
    assert found.keeper[0] == found.keeper[1]
    said, log, info = found.said
    assert said.strip() == "/dev/nvidia*" and "Locating" in log  # the low-level runtime, that is
    assert info.strip() == "runc []"


def test_drain_restarts_and_cdi_is_there(restarted: Settled) -> None:
    assert ids(settled(restarted)["plan"]) == ["restart service: docker.service"]
    assert "true" in restarted.keeper[0] and "false" in restarted.keeper[1]
    said, log, by_docker = restarted.said
    assert said.strip() == by_docker.strip() == "by-cdi /dev/nvidia0" and "Locating" in log


# What nvidia-ctk 1.20.1 does not handle: an empty file and a byte order mark stop it; arguments that a user gave are
# lost, and so are the last digits of large numbers.
THEIRS_FAILS, THEIRS_LOSES = {"01-empty", "03-bom-crlf"}, {"05-nvidia-with-args", "08-numbers-and-proxy"}


def test_every_shape_is_valid_and_has_the_effect_of_nvidia_ctk(lab: LabHosts, restarted: object) -> None:
    script = "mkdir -p /tmp/s && cd /tmp/s\n"
    for path in SHAPES:
        before = shape(path).encode()
        state = RuntimeState("dockerd", FILE, "docker.service", running=True, version="Docker version 26.1.5",
                             files={FILE: before.decode()})
        changes = Docker().propose(state, Journal(), Options(set_as_default=True, cdi=True, mode="auto")).changes
        after = changes[0].after.encode() if changes else before
        script += "".join(f"base64 -d > {name} <<< '{base64.b64encode(data).decode()}'\n" for name, data in (
            (f"{path.stem}.theirs", before), (f"{path.stem}.ours", after)))
    script += """for one in *.ours; do
dockerd --validate --config-file $one > said 2>&1 || { echo "$one: $(cat said)"; exit 1; }
nvidia-ctk --quiet runtime configure --runtime docker --nvidia-set-as-default --cdi.enabled \\
    --config $PWD/${one%.ours}.theirs > /dev/null 2>&1 || echo failed > ${one%.ours}.theirs
done
python3 -c 'import json, os; print(json.dumps({name: open(name, encoding="utf-8").read() for name in os.listdir()}))'
rm -r /tmp/s
"""
    files = json.loads(lab.sh(HOST, f"bash -s <<'SCRIPT'\n{script}SCRIPT\n"))
    failed = {path.stem for path in SHAPES if files[f"{path.stem}.theirs"] == "failed\n"}
    assert failed == THEIRS_FAILS
    differs = {path.stem for path in SHAPES if path.stem not in failed
               and plain(files[f"{path.stem}.ours"]) != plain(files[f"{path.stem}.theirs"])}
    assert differs == THEIRS_LOSES


def plain(text: str) -> Any:
    """The parsed data, in which missing arguments equal empty ones, and a program name equals its path."""
    data = json.loads(text)
    runtime = data["runtimes"]["nvidia"]
    return {**data, "runtimes": {**data["runtimes"], "nvidia": {
        **({"args": runtime["args"]} if runtime.get("args") else {}), "path": Path(runtime["path"]).name}}}


def test_default_runtime_by_reload_alone(default: Default) -> None:
    assert [line["result"].get("rc") for line in default.killed.of(HOST, ("failed",))] == [137], default.killed.output
    written, still = default.on.done.parts(HOST)
    assert '"default-runtime": "nvidia"' in written and still == "runc"
    assert ids(settled(default.on)["plan"]) == ["reload service: docker.service"]
    said, log = default.on.said
    assert said == "/dev/nvidia*" and "Locating" in log
    assert ids(settled(default.off)["plan"]) == [f"edit file: {FILE}", "reload service: docker.service"]
    text, info = default.off.said
    assert '"default-runtime": "runc"' in text and info.strip() == "runc"
    assert default.on.keeper[0].strip() == default.on.keeper[1].strip() == default.off.keeper[1].strip()


def test_podman_needs_the_specification_alone(podman: Settled) -> None:
    found = settled(podman)
    assert (found["plan"], found["runtime"]) == ([], "podman")
    assert podman.done.parts(HOST) == [podman.state]
    assert podman.said[0].strip() == "by-cdi /dev/nvidia0"


def test_removal_leaves_the_user_s_edit_and_a_container_with_live_restore(removed: Removed, clean: list[str]) -> None:
    done = result(removed.done)
    assert [step["id"] for step in done["plan"]] == [step["id"] for step in result(removed.check)["plan"]]
    assert ids(done["plan"])[:2] == [f"edit file: {FILE}", "restart service: docker.service"]
    keeper, info, text = removed.again.parts(HOST)
    assert keeper == removed.keeper and keeper.endswith("true")
    assert info.split() == ["0", "io.containerd.runc.v2", "runc"]
    assert text.count("live-restore") == 1
    assert not result(removed.again)["changed"]
    assert removed.snapshot == clean


def test_two_runtimes_in_one_run(several: Several) -> None:
    preview, first, then, again = (result(run) for run in several[:4])
    there = [step["id"] for step in first["plan"]]
    assert [step["id"] for step in preview["plan"] if not step["assumed"] or step["id"] in there] == there
    assert ids(first["plan"]) == [f"edit file: {FILE}", f"edit file: {MAIN}", "reload service: docker.service",
                                  "restart service: containerd.service"]
    assert ids(first["pending"]) == ids(preview["pending"]) == ["restart service: docker.service"]
    assert (first["restart_required"], first["runtime_names"]) == (True, ["docker", "containerd"])
    assert first["config_paths"] == {"docker": FILE, "containerd": MAIN}
    assert ids(then["plan"]) == ["restart service: docker.service"]
    assert (ids(then["pending"]), then["restart_required"]) == ([], False)
    assert again["plan"] == [] and not again["changed"]
    state, classes = several.again.parts(HOST)
    assert "nvidia " in classes and classes.endswith("runtimes.nvidia]")
    assert several.verify.parts(HOST) == [state]


def test_the_gathered_state_of_several_as_options_changes_nothing(several: Several) -> None:
    assert several.read.rc == 0, several.read.output
    found, again = (line["result"] for line in several.read.of(HOST))
    assert found["gathered"]["runtime"] == ["docker", "containerd", "podman"] and "warnings" not in found
    assert [row["configured"] for row in found["runtimes"][:2]] == [True, True]
    assert [step for step in again["plan"] if not step["assumed"]] == [] and not again["changed"]
    assert again["runtime_names"] == ["docker", "containerd", "podman"]


def test_verify_fails_for_one_of_two_and_removal_restores_both(several: Several, clean: list[str]) -> None:
    assert "docker does not have the nvidia runtime" in several.verify.errors()[0]
    assert ids(result(several.removal)["plan"]) == [
        f"restore file: {FILE}", f"restore file: {MAIN}", "restart service: containerd.service",
        "restart service: docker.service"]
    assert not result(several.gone)["changed"]
    assert several.snapshot == clean
