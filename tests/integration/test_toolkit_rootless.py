# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rootless Docker and Podman on Debian 13: the real daemon of a user, started by the real systemd of this user.

One host goes through all of that in one fixture; the tests examine what was recorded on the way.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from tests.integration import series, user
from tests.integration.conftest import LabHosts, own_lab
from tests.integration.series import Done, Play
from tests.integration.test_toolkit_docker import IMAGE, SHOW, SPECIFICATION

# Without the device node: rootless runtimes mount the node of the host, which exists only with a driver.
SPEC = "".join(line for line in SPECIFICATION.splitlines(keepends=True) if "deviceNodes" not in line)
# In a container of the lab, a user cannot mount /proc anew.
PROC = "--network none -v /proc:/proc"

HOST = "gpu-u1"
FILE = "/home/builder/.config/docker/daemon.json"
UNIT = "docker.service of builder"
LINKED = "/var/run/cdi/rootless"
# As udev sets the mode of /dev/net/tun, and as dockerd-rootless-setuptool.sh install sets up the Docker of a user.
SETUP = """chmod 666 /dev/net/tun
useradd --create-home --uid 1500 --shell /bin/sh builder
mkdir -p /etc/systemd/system/user@1500.service.d /var/lib/systemd/linger
printf '[Service]\\nEnvironment=XDG_RUNTIME_DIR=/run/user/1500\\n' > /etc/systemd/system/user@1500.service.d/lab.conf
touch /var/lib/systemd/linger/builder
cat > /tmp/user.sh <<'END'
set -e
mkdir -p ~/.config/systemd/user ~/.config/docker
cat > ~/.config/systemd/user/docker.service <<'UNIT'
[Service]
Environment=PATH=/usr/share/docker.io/contrib:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
ExecStart=/usr/share/docker.io/contrib/dockerd-rootless.sh
ExecReload=/bin/kill -s HUP $MAINPID
Type=notify
NotifyAccess=all
KillMode=mixed
Delegate=yes
[Install]
WantedBy=default.target
UNIT
cat > ~/.config/docker/daemon.json <<'FILE'
{
  "bridge": "none", "iptables": false, "ip6tables": false,
  "storage-driver": "vfs",
  "shutdown-timeout": 5
}
FILE
chmod 600 ~/.config/docker/daemon.json
END
su builder -c 'sh /tmp/user.sh'
systemctl daemon-reload
systemctl start user@1500.service
"""
MINE = "setpriv --reuid=1500 --regid=1500 --init-groups env HOME=/home/builder XDG_RUNTIME_DIR=/run/user/1500"
DOCKER = f"{MINE} docker -H unix:///run/user/1500/docker.sock"
PODMAN = f"{MINE} podman --log-level error --storage-driver vfs --cgroup-manager cgroupfs"
STARTED = f"{MINE} systemctl --user show -p MainPID -p ExecMainStartTimestampMonotonic docker"
LOOK = f"stat -c '%a %U %G' {FILE}; cat {FILE}"
INFO = f"{DOCKER} info -f '{{{{json .Runtimes}}}} {{{{json .CDISpecDirs}}}}'"


class Course(NamedTuple):
    """What happened on the host, in order. clean, files, last: the host and the home before and after; said: output of
    containers; idle: containers run, so the restart waits; renamed: while a container runs; read: the state gathered;
    link: the file is a link to a file of root."""

    clean: list[str]
    files: str
    check: Done
    done: Done
    again: Done
    info: str
    said: str
    podman: str
    renamed: Done
    keeper: tuple[str, str]
    verify: Done
    read: user.Run
    link: Done
    waits: Done
    removal: Done
    gone: Done
    last: tuple[list[str], str]


def play(level: str = "idle", tasks: str = "host", *, check: bool = False, script: str = "", **variables: object
         ) -> Play:
    """Runs the role container_toolkit for builder."""
    return Play({"container_toolkit_runtime": "podman", "container_toolkit_rootless_users": ["builder"],
                 "container_toolkit_disruption": level, **variables}, tasks, check, first=script,
                role="container_toolkit")


def ids(run: Done, part: str = "plan") -> list[str]:
    """The steps for the files and the Docker of builder."""
    assert run.rc == 0, run.output
    return [step["id"] for step in run.result(HOST, "container_toolkit")[part] if "builder" in step["id"]]


@pytest.fixture(scope="module")
def lab() -> Iterator[LabHosts]:
    """A lab of its own with a host of Debian 13."""
    with own_lab("rootlesstest", f"{HOST}=a100-80:1@trixie") as hosts:
        yield hosts


@pytest.fixture(scope="module")
def course(lab: LabHosts) -> Course:
    """The host after the setup of builder, and all runs."""
    lab.sh(HOST, SETUP)
    lab.sh(HOST, f"{MINE} systemctl --user enable --now docker")
    clean = lab.snapshot(HOST)
    home = "cd /home/builder; find .config -printf '%p %m %u %g %l\\n' | sort; md5sum .config/docker/daemon.json"
    files = lab.sh(HOST, home)
    check, done, again = series.run(lab, play(check=True, script=LOOK), play(script=LOOK),
                                    play(script=f"{STARTED}; {LOOK}"))
    info = lab.sh(HOST, f"{STARTED}; echo ======; {INFO}")
    said = lab.sh(HOST, f"{SPEC}{IMAGE.format(DOCKER)} > /dev/null\n{DOCKER} run --rm {PROC} "
                        f"--device nvidia.com/gpu=all tiny {SHOW}")
    podman = lab.sh(HOST, f"cd /; {IMAGE.format(PODMAN)} > /dev/null\n{PODMAN} run --rm {PROC} "
                          f"--device nvidia.com/gpu=all tiny {SHOW}")
    keep = f"{DOCKER} inspect -f '{{{{.State.Pid}}}} {{{{.State.Running}}}}' keeper"
    start = f"{DOCKER} run -d --name keeper {PROC} tiny /usr/bin/sleep 100000"
    keeper = lab.sh(HOST, f"{start} > /dev/null; {keep}")
    renamed, verify = series.run(
        lab, play("never", container_toolkit_nvidia_runtime_name="gpu"),
        play(tasks="verify", script=keep, container_toolkit_nvidia_runtime_name="gpu", container_toolkit_cdi=False))
    path = user.HOME / f"gathered-{os.getpid()}.json"
    path.write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": [
        {"gpuops.nvidia.container_toolkit": {"state": "gathered", "runtime": "podman"}, "register": "found"},
        {"gpuops.nvidia.container_toolkit": "{{ found.gathered | combine({'nvidia_runtime_name': 'gpu'}) }}"}]}]))
    read = user.ansible("ansible-playbook", *(f"-i{inventory}" for inventory in lab.hosts), str(path))
    path.unlink()
    link, = series.run(lab, play(script=f"mv {FILE} /srv/builder; echo root > /srv/root; chmod 600 /srv/root; "
                                        f"ln -s /srv/root {FILE}"))
    waits, removal, gone = series.run(
        lab, play("idle", "remove", script=f"rm {FILE}; mv /srv/builder {FILE}; cat /srv/root"),
        play("drain", "remove", script=keep), play("drain", "remove"))
    lab.sh(HOST, f"{DOCKER} rm -f keeper > /dev/null; rm /srv/root")
    return Course(clean, files, check, done, again, info, said, podman, renamed, (keeper, verify.parts(HOST)[0]),
                  verify, read, link, waits, removal, gone, (lab.snapshot(HOST), lab.sh(HOST, home)))


def test_the_file_is_the_user_s_and_docker_has_read_it(course: Course) -> None:
    assert ids(course.check) == ids(course.done) == [
        f"edit file: {FILE}", f"reload service: {UNIT}", f"restart service: {UNIT}"]
    assert course.check.parts(HOST) == course.done.parts(HOST)
    assert ids(course.again) == [] and not course.again.result(HOST, "container_toolkit")["changed"]
    started, info = course.info.split("======\n")
    assert course.again.parts(HOST)[0].startswith(started.strip())
    assert '"nvidia"' in info and f'"{LINKED}"' in info
    listing = course.again.parts(HOST)[0]
    assert "600 builder builder" in listing and '"storage-driver": "vfs"' in listing
    assert ids(course.done, "pending") == []


def test_containers_of_the_user_find_the_device(course: Course) -> None:
    assert course.said.strip() == course.podman.strip() == "by-cdi /dev/nvidia*"


def test_another_name_needs_no_restart(course: Course) -> None:
    assert ids(course.renamed) == [f"edit file: {FILE}", f"reload service: {UNIT}"]
    assert course.keeper[0].strip() == course.keeper[1].strip() and course.keeper[0].strip().endswith("true")


def test_verify_and_gathered_know_the_user(course: Course) -> None:
    assert course.verify.rc == 0, course.verify.output
    assert course.read.rc == 0, course.read.output
    found, again = (line["result"] for line in course.read.of(HOST))
    assert found["gathered"]["rootless_users"] == ["builder"]
    row, = [row for row in found["runtimes"] if row["user"] == "builder"]
    assert (row["name"], row["config_path"], row["running"], list(row["classes"])) == ("docker", FILE, True, ["gpu"])
    assert [step for step in again["plan"] if "builder" in step["id"]] == []


def test_a_link_to_a_file_of_root_is_an_error(course: Course) -> None:
    error, = course.link.errors()
    assert f"builder cannot read {FILE}: permission denied" in error
    assert course.waits.parts(HOST) == ["root"]


def test_a_removal_restores_the_home_and_waits_for_containers(course: Course) -> None:
    assert ids(course.waits) == [f"restore file: {FILE}"]
    assert ids(course.waits, "pending") == [f"restart service: {UNIT}"]
    assert course.removal.parts(HOST)[0].endswith("true")
    assert ids(course.removal) == [f"restart service: {UNIT}"] and ids(course.gone) == []
    assert course.last == (course.clean, course.files)


def test_words(course: Course) -> None:
    result: dict[str, Any] = course.done.result(HOST, "container_toolkit")
    assert result["runtime_names"] == ["podman", "docker of builder"]
    assert result["config_paths"]["docker of builder"] == FILE
