# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Docker and Podman of Debian 13: real daemons, containers that go through the vendor's runtime, and live on."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._toolkit._base import Options
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._toolkit._docker import Docker
from ansible_collections.gpuops.nvidia.tests.unit.toolkit.played import shape

from lab.stages import ROOT
from tests.integration import user
from tests.integration.conftest import LabHosts

HOST, FILE = "gpu-d1", "/etc/docker/daemon.json"
LOG = "/var/log/nvidia-container-runtime.log"
SETTINGS = {"nvidia-container-runtime": {"debug": LOG, "log-level": "debug"}}
SHAPES = sorted((ROOT / "tests" / "unit" / "toolkit" / "shapes" / "docker").glob("*.json"))
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


def role(lab: LabHosts, *words: str, tasks: str = "host", **variables: object) -> user.Run:
    """Runs a task file of the role container_toolkit."""
    return user.playbook(user.role("container_toolkit", tasks), lab.hosts, *words, **{
        "container_toolkit_runtime": "docker", "container_toolkit_settings": SETTINGS, **variables})


def result(run: user.Run) -> dict[str, Any]:
    """What the module returned."""
    assert run.rc == 0, run.output
    return run.result(HOST, "container_toolkit")


def ids(steps: list[dict[str, Any]]) -> list[str]:
    """The steps but those of packages and CDI."""
    return [step["id"] for step in steps if "docker" in step["id"]]


def settle(lab: LabHosts, **variables: object) -> dict[str, Any]:
    """A run, then one that changes nothing."""
    done = result(role(lab, **variables))
    before = state(lab)
    again = result(role(lab, **variables))
    assert again["plan"] == []
    assert not again["changed"]
    assert ids(again["pending"]) == ids(done["pending"])
    assert state(lab) == before
    return done


def state(lab: LabHosts) -> str:
    """Inode, time and mode of the file, and the daemon's process."""
    return lab.sh(HOST, f"stat -c '%i %Y %a %U' {FILE}; systemctl show -p MainPID -p ExecMainStartTimestamp docker")


def running(lab: LabHosts) -> str:
    """The process of the container that was there from the beginning."""
    return lab.sh(HOST, "docker inspect -f '{{.State.Pid}} {{.State.Running}}' keeper")


def through(lab: LabHosts, *words: str) -> str:
    """What a container prints; Docker starts it through the vendor's program, which writes a log."""
    lab.sh(HOST, f"rm -f {LOG}")
    said = lab.sh(HOST, f"docker run --rm --network none {' '.join(words)} tiny {SHOW}").strip()
    assert "Locating" in lab.sh(HOST, f"cat {LOG}")  # the low-level runtime, that is
    return said


@pytest.fixture(scope="module")
def lab() -> Iterator[LabHosts]:
    """A lab of its own with a host of Debian 13, which has Docker 26 and Podman 5."""
    hosts = LabHosts("dockertest")
    hosts("up", "--hosts", f"{HOST}=a100-80:1@trixie")
    hosts("reset", HOST)
    yield hosts
    hosts("down")


@pytest.fixture(scope="module")
def clean(lab: LabHosts) -> list[str]:
    """The snapshot of the host as it is at first; then a container starts that nothing may stop unasked."""
    found = lab.snapshot(HOST)
    lab.sh(HOST, f"{IMAGE.format('docker')}; docker run -d --name keeper --network none tiny /usr/bin/sleep 100000")
    return found


def test_reload_gives_the_runtime_while_the_restart_waits(lab: LabHosts, clean: list[str]) -> None:
    keeper = running(lab)
    preview = result(role(lab, "--check", container_toolkit_disruption="idle"))
    done = settle(lab, container_toolkit_disruption="idle")
    there = [step["id"] for step in done["plan"]]
    assert [step["id"] for step in preview["plan"] if not step["assumed"] or step["id"] in there] == there
    assert ids(done["plan"]) == [f"edit file: {FILE}", "reload service: docker.service"]
    assert ids(done["pending"]) == ["restart service: docker.service"]
    assert "needs 'drain'" in done["pending"][0]["pending_reason"]
    assert done["restart_required"] is True
    assert running(lab) == keeper
    assert through(lab, "--runtime", "nvidia") == "/dev/nvidia*"
    assert lab.sh(HOST, "docker info -f '{{.DefaultRuntime}} {{.CDISpecDirs}}'").strip() == "runc []"


def test_drain_restarts_and_cdi_is_there(lab: LabHosts) -> None:
    done = settle(lab, container_toolkit_disruption="drain")
    assert ids(done["plan"]) == ["restart service: docker.service"]
    assert "false" in running(lab)
    lab.sh(HOST, SPECIFICATION)
    wish = ("-e", "NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=all")
    assert through(lab, "--runtime", "nvidia", *wish) == "by-cdi /dev/nvidia0"
    assert lab.sh(HOST, f"docker run --rm --network none --device nvidia.com/gpu=all tiny {SHOW}").strip() == (
        "by-cdi /dev/nvidia0")


# What nvidia-ctk 1.20.1 does not handle: an empty file and a byte order mark stop it; arguments that a user gave are
# lost, and so are the last digits of large numbers.
THEIRS_FAILS, THEIRS_LOSES = {"01-empty", "03-bom-crlf"}, {"05-nvidia-with-args", "08-numbers-and-proxy"}


def test_every_shape_is_valid_and_has_the_effect_of_nvidia_ctk(lab: LabHosts) -> None:
    script = "mkdir -p /tmp/s && cd /tmp/s\n"
    for path in SHAPES:
        before = shape(path).encode()
        seen = {"binary": "dockerd", "unit": "docker.service", "running": True, "command": [], "facts": {},
                "version": "Docker version 26.1.5", "config": FILE, "files": {FILE: before.decode()}}
        journal: dict[str, Any] = {"config": {}, "default_runtime": None, "restart": {}}
        changes = Docker().propose(seen, journal, Options(set_as_default=True, cdi=True, mode="auto")).changes
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
    """The data; no arguments are none, and the program by its name alone is the same one."""
    data = json.loads(text)
    runtime = data["runtimes"]["nvidia"]
    return {**data, "runtimes": {**data["runtimes"], "nvidia": {
        **({"args": runtime["args"]} if runtime.get("args") else {}), "path": Path(runtime["path"]).name}}}


def test_default_runtime_by_reload_alone(lab: LabHosts) -> None:
    lab.sh(HOST, "docker start keeper")
    keeper = running(lab)
    wish = {"container_toolkit_disruption": "never", "container_toolkit_set_as_default": True}
    lab.put_killer(HOST)
    lab.sh(HOST, "printf '%s\\n' before 'reload service: docker.service' > /run/kill-step")
    killed = role(lab, **wish, ansible_python_interpreter="/opt/killer/python3")
    assert [line["result"].get("rc") for line in killed.of(HOST, ("failed",))] == [137], killed.output
    lab.sh(HOST, f"rm -r /run/kill-step /opt/killer; grep -q '\"default-runtime\": \"nvidia\"' {FILE}")
    assert lab.sh(HOST, "docker info -f '{{.DefaultRuntime}}'").strip() == "runc"
    assert ids(settle(lab, **wish)["plan"]) == ["reload service: docker.service"]
    assert through(lab) == "/dev/nvidia*"
    done = settle(lab, container_toolkit_disruption="never")
    assert ids(done["plan"]) == [f"edit file: {FILE}", "reload service: docker.service"]
    assert '"default-runtime": "runc"' in lab.sh(HOST, f"cat {FILE}")
    assert lab.sh(HOST, "docker info -f '{{.DefaultRuntime}}'").strip() == "runc"
    assert running(lab) == keeper


def test_podman_needs_the_specification_alone(lab: LabHosts) -> None:
    before = state(lab)
    found = result(role(lab, container_toolkit_runtime="podman"))
    assert (found["plan"], found["runtime"]) == ([], "podman")
    assert state(lab) == before
    # Put there anew: without a driver that is loaded a run takes it away.
    lab.sh(HOST, SPECIFICATION + IMAGE.format(f"{PODMAN} --log-level error"))
    assert lab.sh(HOST, f"{PODMAN} run --rm --network none --device nvidia.com/gpu=all tiny {SHOW} 2> /dev/null"
                  ).strip() == "by-cdi /dev/nvidia0"


def test_removal_leaves_the_user_s_edit_and_a_container_with_live_restore(lab: LabHosts, clean: list[str]) -> None:
    lab.sh(HOST, f"""sed -i 's/"shutdown-timeout": 5/"shutdown-timeout": 5, "live-restore":true/' {FILE}
systemctl reload docker; until docker info -f '{{{{.LiveRestoreEnabled}}}}' | grep -qx true; do sleep 0.2; done
rm -f /var/run/cdi/nvidia.yaml
docker rm -f keeper; docker run -d --name keeper --runtime nvidia --network none tiny /usr/bin/sleep 100000; rm -f {LOG}
rm -rf /var/lib/containerd/podman""")
    keeper = running(lab)
    check = result(role(lab, "--check", tasks="remove"))
    gone = role(lab, tasks="remove", container_toolkit_disruption="never")
    assert [step["id"] for step in result(gone)["plan"]] == [step["id"] for step in check["plan"]]
    assert ids(result(gone)["plan"])[:2] == [f"edit file: {FILE}", "restart service: docker.service"]
    assert running(lab) == keeper
    assert lab.sh(HOST, "docker info -f '{{len .CDISpecDirs}}{{range $name, $_ := .Runtimes}} {{$name}}{{end}}'"
                  ).split() == ["0", "io.containerd.runc.v2", "runc"]
    text = lab.sh(HOST, f"cat {FILE}")
    assert text.count("live-restore") == 1
    lab.sh(HOST, f"docker rm -f keeper; sed -i 's/, \"live-restore\":true//' {FILE}")
    assert lab.snapshot(HOST) == clean
    assert role(lab, tasks="remove").changed(HOST) == []


def test_the_former_file_returns_when_docker_does_not(lab: LabHosts) -> None:
    unit = "/run/systemd/system/docker.service.d"
    lab.sh(HOST, f"""mkdir -p {unit}; cat > {unit}/refuse.conf <<'END'
[Service]
ExecStartPre=/bin/sh -c '! grep nvidia {FILE}'
END
systemctl daemon-reload; chown nobody:adm {FILE}; chmod 640 {FILE}""")
    look = f"stat -c '%a %U %G' {FILE}; cat {FILE}; systemctl is-active docker"
    before = lab.sh(HOST, look)
    failed = role(lab, container_toolkit_disruption="drain")
    lab.sh(HOST, f"rm -r {unit}; systemctl daemon-reload")
    assert "former files are back and it runs with them" in failed.errors()[0], failed.output
    assert lab.sh(HOST, look) == before
    settle(lab, container_toolkit_disruption="drain")
    assert lab.sh(HOST, f"stat -c '%a %U %G' {FILE}").split() == ["640", "nobody", "adm"]
    assert role(lab, tasks="remove", container_toolkit_disruption="drain").rc == 0
    assert lab.sh(HOST, look) == before


def test_a_broken_file_is_one_error(lab: LabHosts) -> None:
    lab.sh(HOST, f"cp -p {FILE} /srv/kept; sed -i '1a // ours' {FILE}")
    before = state(lab)
    run = role(lab)
    assert run.errors()[0].startswith(f"{FILE}, line 2, column 1: a comment, which JSON does not have.")
    assert state(lab) == before
    lab.sh(HOST, f"sed -i '2d; s/^{{/{{ \"no-such-option\": 1,/' {FILE}")
    before = state(lab)
    run = role(lab)
    assert "dockerd rejects the candidate" in run.errors()[0]
    assert "no-such-option" in run.errors()[0]
    assert state(lab) == before
    lab.sh(HOST, f"mv /srv/kept {FILE}")
