# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The container toolkit's packages with apt and dnf, its settings, and a CDI specification that stays right."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration import user
from tests.integration.conftest import LabHosts

DEBIAN, ROCKY = "gpu-c1", "gpu-c2"
HOSTS = [DEBIAN, ROCKY]
OLD, NEW = "1.19.1", "1.20.0"
FORMER_DRIVER, DRIVER = "580.126.20", "595.91.07"
SPEC = "/var/run/cdi/nvidia.yaml"
NODE, SAID = "/dev/nvidia9", "/srv/said"
SETTINGS = {"container_toolkit_settings": {"nvidia-container-runtime": {"log-level": "debug"}}}


def role(lab: LabHosts, host: str, *words: str, name: str = "container_toolkit", tasks: str = "host",
         **variables: object) -> user.Run:
    """Runs a task file of a role on a host, or on both with C(all)."""
    return user.playbook(user.role(name, tasks), lab.hosts, "--limit", host, *words, **variables)


def plan(run: user.Run, host: str) -> list[str]:
    """The steps that a run took or would take."""
    return [step["id"] for step in run.result(host, "container_toolkit")["plan"]]


def converge(lab: LabHosts, **variables: object) -> user.Run:
    """On both hosts: check, then run: the same steps; then a run without a change."""
    check, run = (role(lab, "all", *words, **variables) for words in (["--check"], []))
    assert run.rc == check.rc == 0, run.output + check.output
    for host in HOSTS:
        assert plan(run, host) == plan(check, host) != []
    return run


def toolkit(lab: LabHosts, host: str) -> set[str]:
    """The versions of the toolkit's packages."""
    query = "dpkg-query -W -f '${Version}\\n' '*nvidia-container*'" if host == DEBIAN else \
        "rpm -qa --qf '%{VERSION}-%{RELEASE}\\n' '*nvidia-container*'"
    return set(lab.sh(host, query).split())


def named(lab: LabHosts, host: str) -> set[str]:
    """The UUIDs that the specification names."""
    return {word for word in lab.sh(host, f"cat {SPEC} || true").split() if word.startswith(("GPU-", "MIG-"))}


def present(lab: LabHosts, host: str) -> set[str]:
    """The UUIDs of the devices that containers can get."""
    lines = [line for line in lab.sh(host, "nvidia-smi -L").splitlines() if "UUID" in line]
    uuids = [line.split("UUID: ")[1].rstrip(")") for line in lines]
    cut = [index for index, uuid in enumerate(uuids) if uuid.startswith("MIG-")]
    return {uuid for index, uuid in enumerate(uuids) if index in cut or index + 1 not in cut}


def settle(lab: LabHosts, host: str) -> None:
    """In the lab the nodes of MIG devices come a moment after them, and are noticed then."""
    lab.sh(host, f"""
        rest() {{ ! systemctl is-active --quiet gpulab-refresh.service gpuops-cdi-refresh.service; }}
        systemctl start gpulab-refresh.service
        for _ in $(seq 600); do
            open=0
            for node in /dev/nvidia-caps/*; do
                [ -e /dev/char/$((0x$(stat -c %t $node))):$((0x$(stat -c %T $node))) ] || open=1
                grep -q $node {SPEC} || case $node in *cap1|*cap2) ;; *) open=1 ;; esac
            done
            if [ $open = 0 ] && sleep 0.3 && rest; then exit 0; fi
            sleep 0.2
        done
        exit 1""")


@pytest.fixture(scope="module")
def lab() -> Iterator[LabHosts]:
    """A lab of its own with one host of Debian and one of Rocky Linux, both with a driver."""
    hosts = LabHosts("cditest")
    hosts("down")
    hosts("up", "--hosts", f"{DEBIAN}=a100-80:2,{ROCKY}=a100-80:2@rocky9")
    done = role(hosts, "all", name="driver", driver_version=FORMER_DRIVER, driver_disruption="idle")
    assert done.rc == 0, done.output
    yield hosts
    hosts("down")


@pytest.fixture(scope="module")
def clean(lab: LabHosts) -> dict[str, list[str]]:
    """The snapshots of the hosts with a driver alone."""
    return {host: lab.snapshot_beside_driver(host) for host in HOSTS}


def test_bad_input_changes_nothing(lab: LabHosts, clean: dict[str, list[str]]) -> None:
    for variables, said in (({"container_toolkit_version": "1.2.3"}, f"It has {NEW}, {OLD}"),
                            ({"container_toolkit_repository_fingerprint": "0" * 40}, "has the fingerprint"),
                            ({"container_toolkit_settings": {"mod": 1}}, "no known setting")):
        run = role(lab, "all", **variables)
        assert run.rc != 0 and len([text for text in run.errors() if said in text]) == 2, run.output
    for host in HOSTS:
        assert lab.snapshot_beside_driver(host) == clean[host]


def test_a_source_of_somebody_else_for_the_same_place_is_named(lab: LabHosts) -> None:
    path = "/etc/apt/sources.list.d/nvidia-container-toolkit.list"
    url = role(lab, DEBIAN, "--check").result(DEBIAN, "container_toolkit")["plan"][1]["reason"].split(",")[0]
    place = url.removesuffix("amd64/") + "$(ARCH) /"
    lab.sh(DEBIAN, f"echo 'deb [signed-by=/usr/share/keyrings/x.gpg] {place}' > {path}")
    run = role(lab, DEBIAN)
    lab.sh(DEBIAN, f"rm {path}")
    assert run.rc != 0 and path in run.errors()[0]


def test_first_installation(lab: LabHosts, clean: dict[str, list[str]]) -> None:
    converge(lab, container_toolkit_version=OLD, **SETTINGS)
    for host in HOSTS:
        assert toolkit(lab, host) == {f"{OLD}-1"}
        assert named(lab, host) == present(lab, host) != set()
        assert 'log-level = "debug"' in lab.sh(host, "cat /etc/nvidia-container-runtime/config.toml")
        lab.sh(host, "for node in /dev/nvidia[0-9]* /dev/nvidia-caps/*; do "
                     "[ -e /dev/char/$((0x$(stat -c %t $node))):$((0x$(stat -c %T $node))) ]; done")
        lab.sh(host, "systemctl is-enabled gpuops-cdi-refresh.service gpuops-cdi-refresh.path")


def test_running_containers_keep_their_gpus(lab: LabHosts) -> None:
    """runc 1.1.5 tells systemd of a device only where there is a link; systemd denies the others at a reload.

    Behind the vendor's number is no driver: who may open such a node gets another error than who may not.
    """
    def start(name: str) -> None:
        lab.sh(DEBIAN, f"ctr run --detach --runc-systemd-cgroup --cgroup system.slice:ctr:{name} --device {NODE} "
                       f"--rootfs /srv/root {name} /bin/sleep 100000")

    def opened() -> list[str]:
        """By a file, for containerd 1.6 now and then loses what a process says that ends at once."""
        return [lab.sh(DEBIAN, f"""ctr task exec --exec-id open {name} /bin/sh -c 'exec 2> {SAID}; : < {NODE}' || true
            cat {SAID}
            rm {SAID}""").strip().rpartition(": ")[2] for name in ("before", "after")]

    allowed, denied = "No such device or address", "Operation not permitted"
    lab.sh(DEBIAN, f"mkdir /srv/root && mount --bind / /srv/root && mknod -m 666 {NODE} c 195 9")
    start("before")
    run = role(lab, DEBIAN, **SETTINGS)
    assert plan(run, DEBIAN) == ["link device nodes: /dev/char"], run.output
    start("after")
    assert opened() == [allowed, allowed]
    lab.sh(DEBIAN, "systemctl daemon-reload")
    assert opened() == [denied, allowed]
    lab.sh(DEBIAN, f"""set -e
        for name in before after; do
            ctr task delete --force $name
            ctr container delete $name
        done
        umount /srv/root
        rm -r /srv/root {NODE} /dev/char/195:9""")


def test_a_converged_host_is_left_alone(lab: LabHosts) -> None:
    look = (f"stat -c '%n %i %Y' {SPEC} /etc/nvidia-container-runtime/config.toml /etc/containerd/config.toml "
            "/var/lib/gpuops/journal/container_toolkit.json /dev/char /usr/local/lib/gpuops/cdi-refresh; "
            "systemctl show containerd -p ActiveEnterTimestampMonotonic")
    before = [lab.sh(host, look) for host in HOSTS]
    lab.sh(ROCKY, "mv /usr/bin/dnf /usr/bin/dnf.away")
    try:
        run = role(lab, "all", **SETTINGS)
    finally:
        lab.sh(ROCKY, "mv /usr/bin/dnf.away /usr/bin/dnf")
    assert run.rc == 0, run.output
    assert [run.changed(host) + plan(run, host) for host in HOSTS] == [[], []]
    assert [lab.sh(host, look) for host in HOSTS] == before


def test_upgrades_leave_the_set(lab: LabHosts) -> None:
    lab.sh(DEBIAN, "apt-get update -qq && apt-get -y -qq upgrade")
    lab.sh(ROCKY, "dnf -y -q upgrade")
    assert [toolkit(lab, host) for host in HOSTS] == [{f"{OLD}-1"}] * 2


def test_another_version_keeps_settings_and_comments(lab: LabHosts) -> None:
    converge(lab, container_toolkit_version=NEW, **SETTINGS)
    for host in HOSTS:
        assert toolkit(lab, host) == {f"{NEW}-1"}
        assert 'log-level = "debug"' in lab.sh(host, "cat /etc/nvidia-container-runtime/config.toml")
    assert [role(lab, host, **SETTINGS).changed(host) for host in HOSTS] == [[], []]


def test_the_specification_follows_mig(lab: LabHosts) -> None:
    for selected in ("all-1g.10gb", "all-enabled", "all-disabled"):
        run = role(lab, "all", name="mig_manager", mig_manager_selected=selected, mig_manager_disruption="idle",
                   mig_manager_boot=False)
        assert run.rc == 0, run.output
        for host in HOSTS:
            assert named(lab, host) == (set() if selected == "all-enabled" else present(lab, host))
            settle(lab, host)
        again = role(lab, "all", **SETTINGS)
        assert [again.changed(host) for host in HOSTS] == [[], []]
        waiting = [step["pending_reason"] for step in again.result(DEBIAN, "container_toolkit")["pending"]]
        assert waiting == (["every GPU is in MIG mode and has no MIG device yet"] if selected == "all-enabled" else [])


def test_what_happened_behind_our_back_is_seen(lab: LabHosts) -> None:
    lab.sh(DEBIAN, "nvidia-smi -i 0 -mig 1 && nvidia-smi mig -i 0 -cgi 19 -C")
    settle(lab, DEBIAN)
    assert named(lab, DEBIAN) == present(lab, DEBIAN)
    # However often nodes come and go, systemd does not give up.
    lab.sh(DEBIAN, "for _ in $(seq 31); do systemctl start gpuops-cdi-refresh.service || exit; done")
    lab.sh(DEBIAN, "touch /dev/nvidia-caps/x && rm /dev/nvidia-caps/x && sleep 0.2 && "
                   "systemctl is-active gpuops-cdi-refresh.path")
    settle(lab, DEBIAN)
    lab.sh(DEBIAN, f"sed -i s/MIG-/MIG-0/ {SPEC}")
    verified = role(lab, DEBIAN, tasks="verify")
    assert verified.rc != 0 and "the CDI specification lacks MIG-" in verified.output, verified.output
    run = role(lab, DEBIAN, **SETTINGS)
    assert plan(run, DEBIAN) == [f"generate CDI specification: {SPEC}"]
    assert role(lab, DEBIAN, tasks="verify").rc == 0
    lab.sh(DEBIAN, "nvidia-smi mig -i 0 -dci && nvidia-smi mig -i 0 -dgi && nvidia-smi -i 0 -mig 0")
    lab.sh(DEBIAN, "systemctl start gpuops-cdi-refresh.service")
    settle(lab, DEBIAN)
    assert named(lab, DEBIAN) == present(lab, DEBIAN)


def test_the_specification_follows_the_driver(lab: LabHosts) -> None:
    switched = role(lab, DEBIAN, name="driver", driver_version=DRIVER, driver_disruption="idle")
    assert switched.rc == 0, switched.output
    assert f"libcuda.so.{DRIVER}" in lab.sh(DEBIAN, f"cat {SPEC}")
    assert role(lab, DEBIAN, **SETTINGS).changed(DEBIAN) == []
    removed = role(lab, DEBIAN, name="driver", tasks="remove", driver_disruption="idle")
    assert removed.rc == 0, removed.output
    assert lab.sh(DEBIAN, f"ls {SPEC} 2>&1 || true").startswith("ls: cannot access")


def test_removal_leaves_nothing(lab: LabHosts, clean: dict[str, list[str]]) -> None:
    back = role(lab, DEBIAN, name="driver", driver_version=FORMER_DRIVER, driver_disruption="idle")
    assert back.rc == 0, back.output
    check, run = (role(lab, "all", *words, tasks="remove") for words in (["--check"], []))
    assert run.rc == 0, run.output
    for host in HOSTS:
        assert plan(run, host) == plan(check, host) != []
        assert lab.snapshot_beside_driver(host) == clean[host]
    again = role(lab, "all", tasks="remove")
    assert [again.changed(host) for host in HOSTS] == [[], []]
