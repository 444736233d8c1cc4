# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The container toolkit's packages with apt and dnf, its settings, and a CDI specification that stays right."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest

from lab.host import inventory
from lab.host import lab as labs
from tests.integration import series
from tests.integration.conftest import LabHosts, own_lab
from tests.integration.series import Done, Play

DEBIAN, ROCKY = "gpu-c1", "gpu-c2"
HOSTS = [DEBIAN, ROCKY]
OLD, NEW = "1.19.1", "1.20.0"
FORMER_DRIVER, DRIVER = "580.126.20", "595.91.07"
SPEC = "/var/run/cdi/nvidia.yaml"
REFRESH = "gpuops-cdi-refresh"
NODE, SAID = "/dev/nvidia9", "/srv/said"
SETTINGS = {"container_toolkit_settings": {"nvidia-container-runtime": {"log-level": "debug"}}}
SOURCE = "/etc/apt/sources.list.d/nvidia-container-toolkit.list"
# What a run could touch, with inode and time.
MARKS = (f"stat -c '%n %i %Y' {SPEC} /etc/nvidia-container-runtime/config.toml /etc/containerd/config.toml "
         "/var/lib/gpuops/journal/container_toolkit.json /dev/char /usr/local/lib/gpuops/cdi-refresh; "
         "systemctl show containerd -p ActiveEnterTimestampMonotonic")
# The specification, and behind it the devices that there are.
SEEN = f"cat {SPEC} 2> /dev/null; echo ------; nvidia-smi -L"
# In the lab the nodes of MIG devices come a moment after them, and are noticed then: linked, and in the specification.
SETTLED = f"""
systemctl start gpulab-refresh.service
timeout 120 sh -c '
    settled() {{
        for node in /dev/nvidia-caps/*; do
            [ -e /dev/char/$((0x$(stat -c %t $node))):$((0x$(stat -c %T $node))) ] || return 1
            case $node in *cap1|*cap2) ;; *) grep -q $node {SPEC} || return 1 ;; esac
        done
        [ "$(systemctl show -p ActiveState --value {REFRESH}.service)" = inactive ]
    }}
    until settled; do sleep 0.1; done'"""
UNLINKED = """for node in /dev/nvidia[0-9]* /dev/nvidia-caps/*; do
    [ -e /dev/char/$((0x$(stat -c %t $node))):$((0x$(stat -c %T $node))) ] || echo unlinked $node
done"""
# Wishes that cannot be met, and what is said of them.
BAD = {
    "no such version": ({"container_toolkit_version": "1.2.3"}, f"It has {NEW}, {OLD}"),
    "another key": ({"container_toolkit_repository_fingerprint": "0" * 40}, "has the fingerprint"),
    "no such setting": ({"container_toolkit_settings": {"mod": 1}}, "not a known setting"),
}


class Stage(NamedTuple):
    """Both hosts after a change of the toolkit. disks: their saved disks. check, run, again: the runs that led there
    and one without a change. packages, settings: versions and the file of the runtime, by host. marks: MARKS after
    C(again).
    """

    disks: dict[str, str]
    check: Done
    run: Done
    again: Done
    packages: dict[str, set[str]]
    settings: dict[str, str]
    marks: dict[str, str]


def toolkit(tasks: str = "host", *, check: bool = False, hosts: str = "all", script: str = "",
            **variables: Any) -> Play:
    """Runs the role container_toolkit."""
    return Play(variables, tasks, check, first=script, role="container_toolkit", hosts=hosts)


def driver(version: str, tasks: str = "host", hosts: str = "all") -> Play:
    """Runs the role driver."""
    return Play({"driver_version": version, "driver_disruption": "idle"}, tasks, role="driver", hosts=hosts)


def plan(run: Done, host: str) -> list[str]:
    """The steps that a run executed or previewed."""
    return [step["id"] for step in run.result(host, "container_toolkit")["plan"]]


def packages(lab: LabHosts, host: str) -> set[str]:
    """The versions of the toolkit's packages."""
    query = "dpkg-query -W -f '${Version}\\n' '*nvidia-container*'" if host == DEBIAN else \
        "rpm -qa --qf '%{VERSION}-%{RELEASE}\\n' '*nvidia-container*'"
    return set(lab.sh(host, query).split())


def devices(seen: str) -> tuple[set[str], set[str]]:
    """From the output of SEEN, the UUIDs that the specification names, and those of the devices that containers can
    get."""
    specification, _ignored, listed = seen.partition("------")
    named = {word for word in specification.split() if word.startswith(("GPU-", "MIG-"))}
    uuids = [line.split("UUID: ")[1].rstrip(")") for line in listed.splitlines() if "UUID" in line]
    cut = [index for index, uuid in enumerate(uuids) if uuid.startswith("MIG-")]
    return named, {uuid for index, uuid in enumerate(uuids) if index in cut or index + 1 not in cut}


def start(lab: LabHosts, disks: dict[str, str]) -> None:
    """Starts hosts with these disks in parallel."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda item: lab.reset(*item), disks.items()))


@pytest.fixture(scope="module")
def lab() -> Iterator[LabHosts]:
    """A separate lab with one Debian host and one Rocky Linux host."""
    with own_lab("cditest", f"{DEBIAN}=a100-80:2,{ROCKY}=a100-80:2@rocky9") as hosts:
        yield hosts


@pytest.fixture(scope="module")
def clean(lab: LabHosts) -> dict[str, list[str]]:
    """The snapshots of the hosts with only a driver."""
    series.well(lab, driver(FORMER_DRIVER))
    return {host: lab.snapshot_beside_driver(host) for host in HOSTS}


@pytest.fixture(scope="module")
def refused(lab: LabHosts, clean: dict[str, list[str]]) -> tuple[dict[str, Done], dict[str, list[str]]]:
    """Runs that must fail, and the snapshots after them."""
    url = inventory.variables(labs.load(lab.name))["container_toolkit_repository_url"]
    place = url.removesuffix("amd64/") + "$(ARCH) /"
    theirs = f"echo 'deb [signed-by=/usr/share/keyrings/x.gpg] {place}' > {SOURCE}"
    runs = series.run(lab, *(toolkit(**variables) for variables, _said in BAD.values()),
                      toolkit(hosts=DEBIAN, script=theirs))
    lab.sh(DEBIAN, f"rm {SOURCE}")
    return dict(zip((*BAD, "a source"), runs, strict=True)), {host: lab.snapshot_beside_driver(host) for host in HOSTS}


def stage(lab: LabHosts, version: str) -> Stage:
    """Installs a version of the toolkit on both hosts. The run without a change would fail if it needed dnf, which is
    missing then."""
    wish = {"container_toolkit_version": version, **SETTINGS}
    look = (f"{MARKS}; echo ======; {SEEN}; {UNLINKED}; "
            "[ ! -e /usr/bin/dnf ] || mv /usr/bin/dnf /usr/bin/dnf.away")
    check, run, again = series.run(lab, toolkit(check=True, **wish), toolkit(**wish), toolkit(script=look, **SETTINGS))
    marks = {host: lab.sh(host, MARKS) for host in HOSTS}
    lab.sh(ROCKY, "mv /usr/bin/dnf.away /usr/bin/dnf")
    return Stage({host: lab.save(host) for host in HOSTS}, check, run, again,
                 {host: packages(lab, host) for host in HOSTS},
                 {host: lab.sh(host, "cat /etc/nvidia-container-runtime/config.toml") for host in HOSTS}, marks)


@pytest.fixture(scope="module")
def stages(lab: LabHosts, refused: object) -> tuple[Stage, dict[str, set[str]], Stage]:
    """The toolkit OLD; its packages after an upgrade of all packages of the hosts; the toolkit NEW."""
    first = stage(lab, OLD)
    lab.sh(DEBIAN, "apt-get update -qq && apt-get -y -qq upgrade")
    lab.sh(ROCKY, "dnf -y -q upgrade")
    return first, {host: packages(lab, host) for host in HOSTS}, stage(lab, NEW)


@pytest.fixture(scope="module")
def upgraded(stages: tuple[Stage, dict[str, set[str]], Stage]) -> Stage:
    """The toolkit NEW."""
    return stages[2]


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused(refused: tuple[dict[str, Done], object], case: str) -> None:
    run = refused[0][case]
    assert len([text for text in run.errors() if BAD[case][1] in text]) == len(HOSTS), run.output


def test_a_source_of_somebody_else_for_the_same_place_is_named(refused: tuple[dict[str, Done], object]) -> None:
    run = refused[0]["a source"]
    assert run.rc != 0 and SOURCE in run.errors()[0], run.output


def test_what_is_refused_changes_nothing(refused: tuple[object, dict[str, list[str]]],
                                         clean: dict[str, list[str]]) -> None:
    for host in HOSTS:
        assert refused[1][host] == clean[host]


@pytest.mark.parametrize("version", (OLD, NEW))
def test_a_version_with_settings(stages: tuple[Stage, dict[str, set[str]], Stage], version: str) -> None:
    """The first installation, then another version that keeps the settings."""
    found = stages[0 if version == OLD else 2]
    assert found.check.rc == found.run.rc == 0, found.run.output
    for host in HOSTS:
        assert plan(found.run, host) == plan(found.check, host) != []
        assert found.packages[host] == {f"{version}-1"}
        assert 'log-level = "debug"' in found.settings[host]


@pytest.mark.parametrize("version", (OLD, NEW))
def test_a_converged_host_is_left_alone(stages: tuple[Stage, dict[str, set[str]], Stage], version: str) -> None:
    found = stages[0 if version == OLD else 2]
    assert found.again.rc == 0, found.again.output
    for host in HOSTS:
        assert found.again.changed(host) == plan(found.again, host) == []
        assert found.again.parts(host)[0] == found.marks[host].strip()


def test_the_specification_names_what_there_is(lab: LabHosts, upgraded: Stage) -> None:
    """After a run and after a boot."""
    start(lab, upgraded.disks)
    for host in HOSTS:
        after_run = upgraded.again.parts(host)[1]
        assert "unlinked" not in after_run
        for seen in (after_run, lab.sh(host, SEEN)):
            named, present = devices(seen)
            assert named == present != set()
        lab.sh(host, f"systemctl is-enabled {REFRESH}.service {REFRESH}.path")


def test_upgrades_leave_the_set(stages: tuple[Stage, dict[str, set[str]], Stage]) -> None:
    assert stages[1] == {host: {f"{OLD}-1"} for host in HOSTS}


def test_running_containers_keep_their_gpus(lab: LabHosts, upgraded: Stage) -> None:
    """runc 1.1.5 passes a device to systemd only if it has a link; systemd denies access to the others at a reload.

    No driver is behind the vendor's device number: opening such a node with permission fails with another error than
    without.
    """
    def run_container(name: str) -> None:
        lab.sh(DEBIAN, f"ctr run --detach --runc-systemd-cgroup --cgroup system.slice:ctr:{name} --device {NODE} "
                       f"--rootfs /srv/root {name} /bin/sleep 100000")

    def opened() -> list[str]:
        """Uses a file, because containerd 1.6 sometimes loses the output of a process that ends immediately."""
        return [lab.sh(DEBIAN, f"""ctr task exec --exec-id open {name} /bin/sh -c 'exec 2> {SAID}; : < {NODE}' || true
            cat {SAID}
            rm {SAID}""").strip().rpartition(": ")[2] for name in ("before", "after")]

    allowed, denied = "No such device or address", "Operation not permitted"
    lab.reset(DEBIAN, upgraded.disks[DEBIAN])
    lab.sh(DEBIAN, f"mkdir /srv/root && mount --bind / /srv/root && mknod -m 666 {NODE} c 195 9")
    run_container("before")
    run, = series.well(lab, toolkit(hosts=DEBIAN, **SETTINGS))
    assert plan(run, DEBIAN) == ["link device nodes: /dev/char"], run.output
    run_container("after")
    assert opened() == [allowed, allowed]
    lab.sh(DEBIAN, "systemctl daemon-reload")
    assert opened() == [denied, allowed]


def test_the_specification_follows_mig(lab: LabHosts, upgraded: Stage) -> None:
    start(lab, upgraded.disks)
    layouts = ("all-1g.10gb", "all-enabled", "all-disabled")
    runs = series.well(lab, *(play for selected in layouts for play in (
        Play({"mig_manager_selected": selected, "mig_manager_disruption": "idle", "mig_manager_boot": False},
             role="mig_manager"),
        toolkit(**SETTINGS, script=f"{SEEN}\n{SETTLED}"))))
    for selected, again in zip(layouts, runs[1::2], strict=True):
        for host in HOSTS:
            named, present = devices(again.parts(host)[0])
            assert named == (set() if selected == "all-enabled" else present)
            assert again.changed(host) == []
        waiting = [step["pending_reason"] for step in again.result(DEBIAN, "container_toolkit")["pending"]]
        assert waiting == (["every GPU is in MIG mode and has no MIG device yet"] if selected == "all-enabled" else [])


def test_what_happened_behind_our_back_is_seen(lab: LabHosts, upgraded: Stage) -> None:
    lab.reset(DEBIAN, upgraded.disks[DEBIAN])
    lab.sh(DEBIAN, f"nvidia-smi -i 0 -mig 1 && nvidia-smi mig -i 0 -cgi 19 -C\n{SETTLED}")
    named, present = devices(lab.sh(DEBIAN, SEEN))
    assert named == present != set()
    # However often nodes come and go, systemd does not give up.
    assert lab.sh(DEBIAN, f"systemctl show -p StartLimitIntervalUSec --value {REFRESH}.service").strip() == "0"
    last = f"systemctl show -p InvocationID {REFRESH}.service"
    lab.sh(DEBIAN, f"""for _ in 1 2 3 4 5 6; do systemctl start {REFRESH}.service || exit; done
        last=$({last}); touch /dev/nvidia-caps/x; rm /dev/nvidia-caps/x
        timeout 60 sh -c "while [ '$last' = \\"\\$({last})\\" ]; do sleep 0.1; done"
        systemctl is-active {REFRESH}.path""")
    # Somebody's edit, after which nothing starts the unit that it has been told of before.
    lab.sh(DEBIAN, f"""systemctl stop {REFRESH}.path
        timeout 60 sh -c 'until systemctl show -p ActiveState {REFRESH}.service | grep -q =inactive; do sleep 0.1; done'
        sed -i s/MIG-/MIG-0/ {SPEC}; systemctl start {REFRESH}.path""")
    broken, run, verified = series.run(lab, toolkit("verify", hosts=DEBIAN), toolkit(hosts=DEBIAN, **SETTINGS),
                                       toolkit("verify", hosts=DEBIAN))
    assert "the CDI specification does not have MIG-" in " ".join(broken.errors()), broken.output
    assert plan(run, DEBIAN) == [f"generate CDI specification: {SPEC}"]
    assert verified.rc == 0, verified.output
    lab.sh(DEBIAN, "nvidia-smi mig -i 0 -dci && nvidia-smi mig -i 0 -dgi && nvidia-smi -i 0 -mig 0; "
                   f"systemctl start {REFRESH}.service\n{SETTLED}")
    named, present = devices(lab.sh(DEBIAN, SEEN))
    assert named == present != set()


def test_the_specification_follows_the_driver(lab: LabHosts, upgraded: Stage) -> None:
    lab.reset(DEBIAN, upgraded.disks[DEBIAN])
    _switched, again, _removed = series.well(lab, driver(DRIVER, hosts=DEBIAN), toolkit(
        hosts=DEBIAN, script=f"grep libcuda {SPEC}", **SETTINGS), driver(DRIVER, "remove", DEBIAN))
    assert f"libcuda.so.{DRIVER}" in again.parts(DEBIAN)[0]
    assert again.changed(DEBIAN) == []
    assert lab.sh(DEBIAN, f"ls {SPEC} 2>&1 || true").startswith("ls: cannot access")


def test_removal_leaves_nothing(lab: LabHosts, upgraded: Stage, clean: dict[str, list[str]]) -> None:
    start(lab, upgraded.disks)
    check, run, again = series.well(lab, toolkit("remove", check=True), toolkit("remove"), toolkit("remove"))
    for host in HOSTS:
        assert plan(run, host) == plan(check, host) != []
        assert again.changed(host) == []
        assert lab.snapshot_beside_driver(host) == clean[host]
