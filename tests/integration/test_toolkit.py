# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Real containerd on systemd hosts, 1.6 as Debian packages it and 2.3.

Containers go through the vendor's runtime, those that run survive, a converged host is left in peace, a run that was
killed is finished, nothing is left after removal.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lab.host import engine
from lab.host import lab as hosts
from lab.tools import containerd_programs, cri_program
from tests.integration import user
from tests.integration.conftest import LabHosts

OLD, NEW = "gpu-c1", "gpu-c2"
BOTH = (OLD, NEW)
MAIN = "/etc/containerd/config.toml"
DROP_IN = "/etc/containerd/conf.d/99-gpuops-nvidia.toml"
RESTART = "restart service: containerd.service"
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
while [ ! -e {K3S} ]; do sleep 0.2; done
"""
K3S_DOWN = ("systemctl stop k3s-agent; rm -r /usr/local/bin/k3s /etc/systemd/system/k3s-agent.service "
            "/var/lib/rancher; systemctl daemon-reload")


@pytest.fixture(scope="module")
def lab() -> Iterator[LabHosts]:
    made = LabHosts("toolkit")
    made("up", "--hosts", f"{OLD}=a100-80:1,{NEW}=a100-80:1")
    for host in BOTH:
        made("reset", host)
    known = hosts.load("toolkit")
    for host, programs in ((OLD, []), (NEW, sorted(containerd_programs().iterdir()))):
        for program in (*programs, cri_program()):
            engine.podman("cp", str(program), f"{known.container(host)}:/usr/bin/{program.name}")
    made.sh(NEW, f"{DEFAULTS}; chown nobody:adm {MAIN}; chmod 640 {MAIN}")
    for host in BOTH:
        made.sh(host, f"set -e\n{ROOT}{PODS}")
    yield made
    made("down")


@pytest.fixture(scope="module")
def clean(lab: LabHosts) -> dict[str, list[str]]:
    return {host: lab.snapshot(host) for host in BOTH}


def run(lab: LabHosts, tasks: str = "host", *words: str, **variables: object) -> user.Run:
    wish = {"container_toolkit_set_as_default": True,
            "container_toolkit_settings": {"nvidia-container-runtime": {"debug": LOG}}}
    return user.playbook(user.role("container_toolkit", tasks), lab.hosts, *words, **{**wish, **variables})


def plan(done: user.Run, host: str) -> list[str]:
    """The steps, without those that a later task of a whole run would bring about by loading the driver."""
    return [step["id"] for step in done.result(host, "container_toolkit")["plan"] if not step["assumed"]]


def pod(lab: LabHosts, host: str, runtime_class: str) -> tuple[str, int]:
    """What a container in a pod of this class says, or why there is none; how many containers were the vendor's."""
    said = lab.sh(host, f"rm -f {LOG}; cri -cgroup '{SLICE[host]}' -handler '{runtime_class}' {IMAGE} "
                        "/bin/echo through 2>&1 || true")
    return said.strip(), lab.sh(host, f"cat {LOG} || true").count("/k8s.io/")


def running(lab: LabHosts, host: str) -> str:
    return next(line for line in lab.sh(host, "ctr task ls").splitlines() if line.startswith("before "))


def test_the_former_files_return_when_containerd_does_not(lab: LabHosts, clean: dict[str, list[str]]) -> None:
    look = f"cat {MAIN}; ls /etc/containerd; systemctl is-active containerd"
    before = {host: lab.sh(host, look) for host in BOTH}
    for host in BOTH:
        lab.sh(host, REFUSE)
    failed = run(lab)
    for host in BOTH:
        lab.sh(host, REFUSE_NO_MORE)
    assert len(failed.errors()) == len(BOTH), failed.output
    assert all("The former files are back and it runs with them." in text for text in failed.errors())
    assert {host: lab.sh(host, look) for host in BOTH} == before


def test_running_containers_survive(lab: LabHosts, clean: dict[str, list[str]]) -> None:
    tasks = {}
    for host in BOTH:
        lab.sh(host, "ctr run -d --rootfs /srv/image before /bin/sleep 100000")
        tasks[host] = running(lab, host)
        assert tasks[host].endswith("RUNNING")
    preview = run(lab, "host", "--check")
    done = run(lab)
    assert done.rc == 0, done.output
    for host in BOTH:
        steps = plan(done, host)
        assert plan(preview, host) == steps
        assert steps[-1] == RESTART
        assert f"edit file: {MAIN}" in steps
        assert (f"write file: {DROP_IN}" in steps) == (host == NEW)
        assert running(lab, host) == tasks[host]
    assert "# Ask the platform team before changing it." in lab.sh(OLD, f"cat {MAIN}")
    assert "# ours since the upgrade" in lab.sh(NEW, f"cat {MAIN}")
    assert lab.sh(NEW, f"stat -c '%U:%G %a' {MAIN}").split() == ["nobody:adm", "640"]


@pytest.mark.parametrize("host", BOTH)
def test_a_container_goes_through_the_runtime(lab: LabHosts, host: str) -> None:
    effective = lab.sh(host, "containerd config dump")
    binary = "/usr/bin/nvidia-container-runtime"
    assert 'default_runtime_name = "nvidia"' in effective.replace("'", '"')
    assert f'BinaryName = "{binary}"' in effective.replace("'", '"')
    lab.sh(host, f"rm -f {LOG}")
    # A file, as ctr of containerd 1.6 loses the output of what ends at once.
    lab.sh(host, f"ctr run --rm --runc-binary {binary} --rootfs /srv/image after /bin/sh -c 'echo through > /said'")
    assert lab.sh(host, "cat /srv/image/said && rm /srv/image/said").split() == ["through"]
    assert "after" in lab.sh(host, f"cat {LOG}")
    if host == OLD:
        assert "SystemdCgroup = true" in effective.partition(".runtimes.nvidia.options]")[2].partition("[")[0]
    assert pod(lab, host, "") == pod(lab, host, "nvidia") == THROUGH


def test_a_converged_host_is_left_in_peace(lab: LabHosts) -> None:
    before = {host: lab.sh(host, STATE) for host in BOTH}
    again = run(lab)
    assert again.rc == 0, again.output
    for host in BOTH:
        assert plan(again, host) == []
        assert again.changed(host) == []
        assert len([line for line in again.of(host) if line["action"] not in user.ON_CONTROLLER]) <= 2
        assert lab.sh(host, STATE) == before[host]


def test_killed_between_write_and_restart(lab: LabHosts) -> None:
    def started() -> list[str]:
        return [lab.sh(host, "systemctl show containerd -p MainPID") for host in BOTH]

    tasks, before = [running(lab, host) for host in BOTH], started()
    for host in BOTH:
        lab.put_killer(host)
        lab.sh(host, f"printf '%s\\n' before '{RESTART}' > /run/kill-step")
    killed = run(lab, container_toolkit_set_as_default=False, ansible_python_interpreter="/opt/killer/python3")
    for host in BOTH:
        assert [line["result"].get("rc") for line in killed.of(host, ("failed",))] == [137], killed.output
        lab.sh(host, "rm -rf /run/kill-step /opt/killer")
    assert started() == before
    done = run(lab, container_toolkit_set_as_default=False)
    for host in BOTH:
        assert plan(done, host) == [RESTART], done.output
        effective = lab.sh(host, "containerd config dump").replace("'", '"')
        assert 'default_runtime_name = "runc"' in effective
    assert all(old != new for old, new in zip(before, started(), strict=True))
    assert [running(lab, host) for host in BOTH] == tasks


@pytest.mark.parametrize("host", BOTH)
def test_a_pod_goes_through_the_runtime_by_its_class_alone(lab: LabHosts, host: str) -> None:
    """Kubernetes names the handler of a RuntimeClass; here runc is the default again."""
    assert pod(lab, host, "") == ("through", 0)
    assert pod(lab, host, "nvidia") == THROUGH
    said, seen = pod(lab, host, "nvidia-other")
    assert said.endswith('no runtime for "nvidia-other" is configured') and seen == 0


def test_what_cannot_be_written_is_said_before_anything_is(lab: LabHosts) -> None:
    """On 2.x two files change: neither does when the second one is immutable."""
    lab.sh(NEW, f"rm -r {DROP_IN}; chattr +i {MAIN}; sed -n p {MAIN} > /srv/main")
    before = lab.sh(NEW, STATE)
    try:
        failed = run(lab, "remove", "--limit", NEW)
        assert failed.rc != 0
        assert f"{MAIN} cannot be written: {MAIN} is immutable" in failed.errors()[0]
        assert lab.sh(NEW, STATE) == before
    finally:
        lab.sh(NEW, f"chattr -i {MAIN}")


def test_kubespray_is_told_and_k3s_is_followed(lab: LabHosts) -> None:
    lab.sh(OLD, "mkdir /usr/local/bin/kubernetes-scripts")
    told = run(lab, "host", "--check", "--limit", OLD)
    lab.sh(OLD, "rmdir /usr/local/bin/kubernetes-scripts")
    assert plan(told, OLD) == []
    assert "containerd_additional_runtimes:" in told.result(OLD, "container_toolkit")["pending"][0]["pending_reason"]

    lab.sh(OLD, K3S_UP)
    done = run(lab, "host", "--limit", OLD)
    assert plan(done, OLD) == [f"write file: {K3S_OURS}", K3S_RESTART], done.output
    assert done.result(OLD, "container_toolkit")["runtime"] == "k3s"
    assert 'default_runtime_name = "nvidia"' in lab.sh(OLD, f"cat {K3S}")
    assert plan(run(lab, "host", "--limit", OLD), OLD) == []


def test_nothing_is_left(lab: LabHosts, clean: dict[str, list[str]]) -> None:
    tasks = {host: running(lab, host) for host in BOTH}
    done = run(lab, "remove")
    assert done.rc == 0, done.output
    assert {f"remove file: {K3S_OURS}", K3S_RESTART, f"restore file: {MAIN}", RESTART} <= set(plan(done, OLD))
    lab.sh(OLD, K3S_DOWN)
    for host in BOTH:
        assert lab.snapshot(host) == clean[host]
        assert running(lab, host) == tasks[host]
