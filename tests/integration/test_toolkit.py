# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Real containerd on systemd hosts, 1.6 as Debian packages it and 2.3.

Containers use the runtime of the vendor, running containers survive, a converged host is not changed, a killed run is
completed, and nothing is left after the removal. Two hosts go through all of that in the fixtures; the tests examine
what was recorded on the way.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from lab.host import engine
from lab.host import lab as labs
from lab.tools import containerd_programs, cri_program
from tests.integration import series, user
from tests.integration.conftest import LabHosts, own_lab
from tests.integration.series import Done, Play

OLD, NEW = "gpu-c1", "gpu-c2"
BOTH = (OLD, NEW)
MAIN = "/etc/containerd/config.toml"
DROP_IN = "/etc/containerd/conf.d/99-gpuops-nvidia.toml"
RESTART = "restart service: containerd.service"
BINARY = "/usr/bin/nvidia-container-runtime"
LOG = "/var/log/nvidia-container-runtime.log"
# A root of a container that can do no more than sleep and speak.
ROOT = r"""
mkdir -p /srv/image/proc /srv/image/dev /srv/image/sys /srv/image/etc
for file in /bin/sleep /bin/echo /bin/sh; do
  for one in $file $(ldd $file | grep -o '/[^ ]*'); do
    mkdir -p /srv/image$(dirname $one); cp -L $one /srv/image$one
  done
done
"""
# It is the image of pods and of their containers, too, and containerd has it without a registry. On the lab's hosts
# nobody may protect a process from the kernel's killer, as containerd does with pods.
IMAGE = "localhost/lab:1"
PODS = rf"""
sed -i 's|^\( *sandbox\(_image\)*\) = [^ ]*|\1 = "{IMAGE}"|; s|^ *sandbox_image|    restrict_oom_score_adj = true\n&|
        s|restrict_oom_score_adj = false|restrict_oom_score_adj = true|' {MAIN}
systemctl restart containerd
mkdir /srv/packed && cd /srv/packed
tar -C /srv/image -cf layer.tar .
printf '{{"architecture": "amd64", "os": "linux", "config": {{"Cmd": ["/bin/sleep", "100000"]}}, "rootfs":
    {{"type": "layers", "diff_ids": ["sha256:%s"]}}}}' "$(sha256sum layer.tar | cut -d ' ' -f 1)" > config.json
echo '[{{"Config": "config.json", "RepoTags": ["{IMAGE}"], "Layers": ["layer.tar"]}}]' > manifest.json
tar -c . | ctr --namespace k8s.io images import -
"""
# What a kubelet that leaves cgroups to systemd, as that containerd does, says of a pod's place.
SLICE = {OLD: "system.slice", NEW: ""}
THROUGH = ("through", 2)  # a pod has one container of its own
# What somebody who upgraded to containerd 2.1 had: its defaults, which import nothing, with one comment of theirs.
DEFAULTS = ("(echo '# ours since the upgrade'; containerd config default | sed 's/^imports = .*/imports = []/') "
            f"> {MAIN}")
# Everything that a run could touch, with inode and time.
STATE = ("find /etc/containerd /etc/nvidia-container-runtime /var/lib/gpuops /etc/cdi /run/cdi /etc/systemd/system "
         "-exec stat -c '%n %i %Y %Z %s' {} + 2>/dev/null | sort; systemctl show containerd -p MainPID,ExecMainStart"
         "Timestamp,NRestarts")

# containerd is not started with a configuration that knows the runtime, as one that an administrator's check refuses.
REFUSE = f"""mkdir -p /run/systemd/system/containerd.service.d
cat > /run/systemd/system/containerd.service.d/refuse.conf <<'END'
[Service]
ExecStartPre=/bin/sh -c '! containerd --config {MAIN} config dump | grep nvidia'
END
systemctl daemon-reload"""
REFUSE_NO_MORE = "rm -r /run/systemd/system/containerd.service.d; systemctl daemon-reload"
LOOK = f"cat {MAIN}; ls /etc/containerd; systemctl is-active containerd"
STARTED = "systemctl show containerd -p MainPID"

# A stand-in that does what k3s is documented to do: some time after each start its containerd's file is written anew,
# with the runtimes that it finds; the first start was before the toolkit came.
K3S = "/var/lib/rancher/k3s/agent/etc/containerd/config.toml"
K3S_OURS = "/etc/rancher/k3s/config.yaml.d/99-gpuops-nvidia.yaml"
K3S_RESTART = "restart service: k3s-agent.service"
K3S_UP = f"""
mkdir -p {K3S.rpartition('/')[0]}
cat > /usr/local/bin/k3s <<'END'
#!/bin/sh
[ "$1" = agent ] || {{ echo 'k3s version v1.34.1+k3s1 (stand-in)'; exit; }}
sleep 2
table="plugins.'io.containerd.cri.v1.runtime'.containerd"
{{
  printf 'version = 3\\n[%s]\\n' "$table"
  grep -rqs '^default-runtime: nvidia' /etc/rancher/k3s && echo 'default_runtime_name = "nvidia"'
  printf "[%s.runtimes.runc]\\nruntime_type = 'io.containerd.runc.v2'\\n" "$table"
  [ -e {K3S} ] && [ -x /usr/bin/nvidia-container-runtime ] && printf "[%s.runtimes.nvidia]\\nruntime_type = %s\\n%s" \
    "$table" "'io.containerd.runc.v2'" "options = {{ BinaryName = '/usr/bin/nvidia-container-runtime' }}"
}} > /run/k3s.toml
mv /run/k3s.toml {K3S}
exec sleep infinity
END
chmod 755 /usr/local/bin/k3s
printf '[Service]\nExecStart=/usr/local/bin/k3s agent\n' > /etc/systemd/system/k3s-agent.service
systemctl daemon-reload
systemctl start k3s-agent
timeout 60 sh -c 'until [ -e {K3S} ]; do sleep 0.1; done'
"""
K3S_DOWN = ("systemctl stop k3s-agent; rm -r /usr/local/bin/k3s /etc/systemd/system/k3s-agent.service "
            "/var/lib/rancher; systemctl daemon-reload")


class Pod(NamedTuple):
    """The output of a container in a pod, or why it does not exist; how many containers used the runtime of the
    vendor."""

    said: str
    seen: int


class Converged(NamedTuple):
    """The runtime as the default one. before: the first output of LOOK; others: of a run, or by host."""

    before: dict[str, str]
    refused: Done
    preview: Done
    run: Done
    again: Done
    tasks: dict[str, list[str]]
    files: dict[str, str]
    owner: str
    effective: dict[str, str]
    said: dict[str, str]
    log: dict[str, str]
    pods: dict[str, list[Pod]]
    state: dict[str, str]


class Read(NamedTuple):
    """The state of the converged hosts, by host, and the result of the same as options."""

    gathered: dict[str, Any]
    again: dict[str, Any]
    before: dict[str, str]
    after: dict[str, str]


class Switched(NamedTuple):
    """runc as the default again, after a killed run and another one."""

    before: dict[str, str]
    killed: Done
    run: Done
    after: dict[str, str]
    tasks: dict[str, str]
    effective: dict[str, str]
    pods: dict[str, list[Pod]]


class Ended(NamedTuple):
    """A removal that cannot write; the owners of the files; a removal that succeeds."""

    stopped: Done
    state: str
    kubespray: Done
    k3s: Done
    k3s_again: Done
    removal: Done
    snapshots: dict[str, list[str]]
    tasks: dict[str, str]


@pytest.fixture(scope="module")
def lab() -> Iterator[LabHosts]:
    """A separate lab."""
    with own_lab("toolkit", f"{OLD}=a100-80:1,{NEW}=a100-80:1") as made:
        known = labs.load(made.name)
        engine.podman("cp", f"{containerd_programs()}/.", f"{known.container(NEW)}:/usr/bin")
        for host in BOTH:
            engine.podman("cp", str(cri_program()), f"{known.container(host)}:/usr/bin/{cri_program().name}")
        made.sh(NEW, f"{DEFAULTS}; chown nobody:adm {MAIN}; chmod 640 {MAIN}")
        for host in BOTH:
            made.sh(host, f"set -e\n{ROOT}{PODS}")
        yield made


@pytest.fixture(scope="module")
def clean(lab: LabHosts) -> dict[str, list[str]]:
    """The snapshots of the hosts in their initial state."""
    return {host: lab.snapshot(host) for host in BOTH}


def play(tasks: str = "host", *, check: bool = False, hosts: str = "all", script: str = "",
         **variables: object) -> Play:
    """Runs the role, with the runtime as the default one and with its log."""
    return Play({"container_toolkit_set_as_default": True,
                 "container_toolkit_settings": {"nvidia-container-runtime": {"debug": LOG}}, **variables}, tasks, check,
                first=script, role="container_toolkit", hosts=hosts)


def on_both(lab: LabHosts, script: str) -> dict[str, str]:
    """The output of a script on each host."""
    return {host: lab.sh(host, script) for host in BOTH}


def plan(done: Done, host: str) -> list[str]:
    """The steps, except those that a later task of a whole run would do by loading the driver."""
    return [step["id"] for step in done.result(host, "container_toolkit")["plan"] if not step["assumed"]]


def pods(lab: LabHosts, host: str, *classes: str) -> list[Pod]:
    """Starts a pod of each runtime class."""
    found = []
    for name in classes:
        said = lab.sh(host, f"rm -f {LOG}; cri -cgroup '{SLICE[host]}' -handler '{name}' {IMAGE} /bin/echo through 2>&1"
                            f" || true; echo ======; cat {LOG} || true").partition("======\n")
        found.append(Pod(said[0].strip(), said[2].count("/k8s.io/")))
    return found


def running(lab: LabHosts, host: str) -> str:
    """The container that runs from the beginning, with its process and its state."""
    return next(line for line in lab.sh(host, "ctr task ls").splitlines() if line.startswith("before "))


@pytest.fixture(scope="module")
def converged(lab: LabHosts, clean: dict[str, list[str]]) -> Converged:
    """A run after which containerd does not start; then one that succeeds, and another."""
    before = on_both(lab, LOOK)
    on_both(lab, "ctr run -d --rootfs /srv/image before /bin/sleep 100000")
    tasks = {host: [running(lab, host)] for host in BOTH}
    refused, preview, run, again = series.run(lab, play(script=REFUSE), play(
        check=True, script=f"{REFUSE_NO_MORE}; {LOOK}"), play(), play(script=STATE))
    state = on_both(lab, STATE)
    for host in BOTH:
        tasks[host].append(running(lab, host))
    # A file, as ctr of containerd 1.6 loses the output of what ends at once.
    said = on_both(lab, f"rm -f {LOG}; ctr run --rm --runc-binary {BINARY} --rootfs /srv/image after "
                        "/bin/sh -c 'echo through > /said'; cat /srv/image/said; rm /srv/image/said")
    log = on_both(lab, f"cat {LOG} || true")
    return Converged(before, refused, preview, run, again, tasks, on_both(lab, f"cat {MAIN}"),
                     lab.sh(NEW, f"stat -c '%U:%G %a' {MAIN}"), on_both(lab, "containerd config dump"), said, log,
                     {host: pods(lab, host, "", "nvidia") for host in BOTH}, state)


def task(lab: LabHosts, options: dict[str, Any]) -> dict[str, Any]:
    """The result of one task with the module, by host."""
    path = user.HOME / f"task-{os.getpid()}.json"
    path.write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": [
        {"gpuops.nvidia.container_toolkit": "{{ options[inventory_hostname] }}", "vars": {"options": options}}]}]))
    run = user.ansible("ansible-playbook", *(f"-i{inventory}" for inventory in lab.hosts), str(path))
    path.unlink()
    assert run.rc == 0, run.output
    return {host: run.result(host, "container_toolkit") for host in BOTH}


@pytest.fixture(scope="module")
def gathered(lab: LabHosts, converged: Converged) -> Read:
    """Reads the converged hosts, and uses the result as options."""
    before = on_both(lab, STATE)
    found = task(lab, dict.fromkeys(BOTH, {"state": "gathered"}))
    again = task(lab, {host: found[host]["gathered"] for host in BOTH})
    return Read(found, again, before, on_both(lab, STATE))


@pytest.fixture(scope="module")
def switched(lab: LabHosts, converged: Converged, gathered: Read) -> Switched:
    """The killed run, and the run that completes it."""
    for host in BOTH:
        lab.put_killer(host)
    wish = {"container_toolkit_set_as_default": False}
    before = on_both(lab, STARTED)
    killed, run = series.run(
        lab, play(script=f"printf '%s\\n' before '{RESTART}' > /run/kill-step", **wish,
                  ansible_python_interpreter="/opt/killer/python3"),
        play(script=f"rm -r /run/kill-step /opt/killer; {STARTED}", **wish))
    return Switched(before, killed, run, on_both(lab, STARTED), {host: running(lab, host) for host in BOTH},
                    on_both(lab, "containerd config dump"),
                    {host: pods(lab, host, "", "nvidia", "nvidia-other") for host in BOTH})


@pytest.fixture(scope="module")
def ended(lab: LabHosts, switched: Switched) -> Ended:
    """Removes everything. On 2.x, two files change; if the second one is immutable, neither changes."""
    scripts = "/usr/local/bin/kubernetes-scripts"
    stopped, kubespray, k3s, k3s_again = series.run(
        lab, play("remove", hosts=NEW, script=f"rm -r {DROP_IN}; chattr +i {MAIN}; {STATE}"),
        play(check=True, hosts=OLD, script=f"mkdir {scripts}"), play(hosts=OLD, script=f"rmdir {scripts}\n{K3S_UP}"),
        play(hosts=OLD, script=f"cat {K3S}"))
    state = lab.sh(NEW, f"{STATE}; chattr -i {MAIN}")
    removal, = series.run(lab, play("remove"))
    lab.sh(OLD, K3S_DOWN)
    return Ended(stopped, state, kubespray, k3s, k3s_again, removal,
                 {host: lab.snapshot(host) for host in BOTH}, {host: running(lab, host) for host in BOTH})


@pytest.mark.parametrize("host", BOTH)
def test_the_former_files_return_when_containerd_does_not(converged: Converged, host: str) -> None:
    error, = [line["result"]["msg"] for line in converged.refused.of(host, ("failed",))]
    assert "Its former files are restored, and it runs with them." in error
    assert converged.preview.parts(host) == [converged.before[host].strip()]


@pytest.mark.parametrize("host", BOTH)
def test_running_containers_survive(converged: Converged, host: str) -> None:
    assert converged.run.rc == 0, converged.run.output
    steps = plan(converged.run, host)
    assert plan(converged.preview, host) == steps
    assert steps[-1] == RESTART
    assert f"edit file: {MAIN}" in steps
    assert (f"write file: {DROP_IN}" in steps) == (host == NEW)
    before, after = converged.tasks[host]
    assert before == after and after.endswith("RUNNING")


def test_an_administrator_s_file_stays_theirs(converged: Converged) -> None:
    assert "# Ask the platform team before changing it." in converged.files[OLD]
    assert "# ours since the upgrade" in converged.files[NEW]
    assert converged.owner.split() == ["nobody:adm", "640"]


@pytest.mark.parametrize("host", BOTH)
def test_a_container_goes_through_the_runtime(converged: Converged, host: str) -> None:
    effective = converged.effective[host].replace("'", '"')
    assert 'default_runtime_name = "nvidia"' in effective
    assert f'BinaryName = "{BINARY}"' in effective
    if host == OLD:
        assert "SystemdCgroup = true" in effective.partition(".runtimes.nvidia.options]")[2].partition("[")[0]
    assert converged.said[host].split() == ["through"]
    assert "after" in converged.log[host]
    assert converged.pods[host] == [THROUGH, THROUGH]


@pytest.mark.parametrize("host", BOTH)
def test_a_converged_host_is_left_in_peace(converged: Converged, host: str) -> None:
    again = converged.again
    assert again.rc == 0, again.output
    assert plan(again, host) == []
    assert again.changed(host) == []
    asked = [line for line in again.of(host) if line["action"] not in user.ON_CONTROLLER]
    assert len(asked) <= 2
    assert again.parts(host) == [converged.state[host].strip()]


@pytest.mark.parametrize("host", BOTH)
def test_the_gathered_state_as_options_changes_nothing(gathered: Read, host: str) -> None:
    result, again = gathered.gathered[host], gathered.again[host]
    wanted = result["gathered"]
    assert (wanted["runtime"], wanted["set_as_default"], wanted["mode"]) == ("containerd", True, "auto")
    assert wanted["settings"]["nvidia-container-runtime"]["debug"] == LOG
    row, = (one for one in result["runtimes"] if one["name"] == "containerd")
    assert (row["config_path"], row["classes"], row["is_default"], row["running"]) == (
        MAIN, {"nvidia": BINARY}, True, True)
    assert row["drop_in_paths"] == ([DROP_IN] if host == NEW else [])
    assert result["packages"]["nvidia-container-toolkit"].startswith(result["version"])
    assert not result["changed"]
    assert [step["id"] for step in again["plan"] if not step["assumed"]] == [] and not again["changed"]
    assert gathered.before[host] == gathered.after[host]


@pytest.mark.parametrize("host", BOTH)
def test_killed_between_write_and_restart(switched: Switched, converged: Converged, host: str) -> None:
    killed, run = switched.killed, switched.run
    assert [line["result"].get("rc") for line in killed.of(host, ("failed",))] == [137], killed.output
    assert run.parts(host) == [switched.before[host].strip()]
    assert run.rc == 0 and plan(run, host) == [RESTART], run.output
    assert 'default_runtime_name = "runc"' in switched.effective[host].replace("'", '"')
    assert switched.after[host] != switched.before[host]
    assert switched.tasks[host] == converged.tasks[host][0]


@pytest.mark.parametrize("host", BOTH)
def test_a_pod_goes_through_the_runtime_by_its_class_alone(switched: Switched, host: str) -> None:
    """In Kubernetes, a RuntimeClass names the handler; runc is the default again here."""
    default, ours, other = switched.pods[host]
    assert default == ("through", 0)
    assert ours == THROUGH
    assert other.said.endswith('no runtime for "nvidia-other" is configured') and other.seen == 0


def test_what_cannot_be_written_is_said_before_anything_is(ended: Ended) -> None:
    assert ended.stopped.rc != 0
    assert f"{MAIN} cannot be written: {MAIN} is immutable" in ended.stopped.errors()[0]
    assert ended.stopped.parts(NEW) == [ended.state.strip()]


def test_kubespray_is_told_and_k3s_is_followed(ended: Ended) -> None:
    assert plan(ended.kubespray, OLD) == []
    pending = ended.kubespray.result(OLD, "container_toolkit")["pending"]
    assert "containerd_additional_runtimes:" in pending[0]["pending_reason"]
    assert plan(ended.k3s, OLD) == [f"write file: {K3S_OURS}", K3S_RESTART], ended.k3s.output
    assert ended.k3s.result(OLD, "container_toolkit")["runtime"] == "k3s"
    assert 'default_runtime_name = "nvidia"' in ended.k3s_again.before[OLD]
    assert plan(ended.k3s_again, OLD) == []


def test_nothing_is_left(ended: Ended, clean: dict[str, list[str]], converged: Converged) -> None:
    assert ended.removal.rc == 0, ended.removal.output
    steps = set(plan(ended.removal, OLD))
    assert {f"remove file: {K3S_OURS}", K3S_RESTART, f"restore file: {MAIN}", RESTART} <= steps
    for host in BOTH:
        assert ended.snapshots[host] == clean[host]
        assert ended.tasks[host] == converged.tasks[host][0]
