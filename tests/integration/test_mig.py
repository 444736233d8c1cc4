# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""MIG on hosts that reboot: the layout is restored before the services that need it; two runs at once, drift, faults,
removal.

Each test starts from a saved disk, which boots like a machine that was off: the GPUs keep only what persists across a
reboot.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest
import yaml

from lab.host import engine
from lab.host import lab as labs
from lab.stages import ROOT
from tests.integration import series, user
from tests.integration.conftest import LabHosts, own_lab
from tests.integration.series import Done, Play
from tests.integration.test_runfile import OLDEST, wanted
from tests.waiting import until

AMPERE, HOPPER = "gpu-m1", "gpu-m2"
HOSTS = [AMPERE, HOPPER]
A30 = "gpu-m3"
STATE, UNIT = "/etc/gpuops/mig.json", "gpuops-mig.service"
LOCK = "/var/lib/gpuops/journal/mig.lock"
REMEMBER, INSTALL, REMOVE = f"remember MIG for boot: {STATE}", f"install boot unit: {UNIT}", f"remove boot unit: {UNIT}"
# Stands for a node agent: what it sees at its start it keeps.
AGENT = """[Unit]
Description=stand-in of a node agent
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh -c 'nvidia-smi -L > /run/agent-saw'
[Install]
WantedBy=multi-user.target
"""
PLACES = "nvidia-smi --query-gpu=mig.mode.current --format=csv,noheader; gpusim show | grep -E '^(gi|ci) '"
# Inodes and times of what a run could write, and what systemd has been told.
MARKS = (f"stat -c '%n %i %y' {STATE} /etc/systemd/system/{UNIT} /usr/local/lib/gpuops/mig-boot.pyz "
         "/usr/local/lib/gpuops/python/pynvml.py /var/lib/gpuops/journal/mig.json; gpusim show | grep generation; "
         "systemctl show -p UnitsLoadFinishTimestampMonotonic --value")
# Holds the lock as another run does, until it is killed or somebody has opened the file so many times. Who has opened
# it tries the lock at once and then again and again: the second leaves it time to find the file locked.
HOLDER = f"""
import ctypes, fcntl, os, signal, sys, time
signal.alarm(300)
held = open("{LOCK}", "a")
fcntl.flock(held, fcntl.LOCK_EX)
calls = ctypes.CDLL(None)
watch = calls.inotify_init()
assert calls.inotify_add_watch(watch, b"{LOCK}", 0x20) > 0  # IN_OPEN
os.write(1, b"held\\n")
seen = 0
while seen < int(sys.argv[1]):
    seen += len(os.read(watch, 4096)) // 16  # the size of an event without a name
time.sleep(1)
"""


class Converged(NamedTuple):
    """Both hosts with the layout all-balanced. plain, clean: disks and snapshots before it. disks: the disks with it.
    check, run, verify, again: the runs. marks: MARKS after the last run.
    """

    plain: dict[str, str]
    clean: dict[str, list[str]]
    disks: dict[str, str]
    check: Done
    run: Done
    verify: Done
    again: Done
    marks: dict[str, str]


def mig(selected: str, tasks: str = "host", level: str = "idle", *, check: bool = False, hosts: str = AMPERE,
        script: str = "", **variables: Any) -> Play:
    """Runs the role mig_manager with a layout."""
    return Play({"mig_manager_disruption": level, "mig_manager_selected": selected, **variables}, tasks, check,
                first=script, role="mig_manager", hosts=hosts)


def result(run: Done, host: str = AMPERE) -> dict[str, Any]:
    return run.result(host, "mig_config")


def ids(steps: list[dict[str, Any]]) -> list[str]:
    return [step["id"] for step in steps]


def places(lab: LabHosts, host: str) -> list[str]:
    """The MIG modes, and the instances of the simulated GPUs by profile and placement."""
    lines = [line.split() for line in lab.sh(host, f"{PLACES} || true").splitlines()]
    return sorted(line[0] if len(line) == 1 else " ".join((line[0], line[1], *line[-3:])) for line in lines)


def boot(lab: LabHosts, host: str) -> str:
    """Reboots the host; returns the state of systemd."""
    mark = "systemctl show --property=UserspaceTimestampMonotonic"
    look = ("exec", labs.load(lab.name).container(host), "sh", "-c", f"{mark} && systemctl is-system-running --wait")
    before = lab.sh(host, mark)

    def up() -> str:
        lines = engine.podman(*look, check=False).stdout.splitlines()
        back = len(lines) == 2 and lines[0] != before.strip() and lines[1] in ("running", "degraded")
        return lines[1] if back else ""

    with contextlib.suppress(SystemExit):  # the call may end with the system
        lab.sh(host, "systemctl reboot")
    return until(up, f"{host} is back after a reboot", 300)


def told(lab: LabHosts, host: str) -> str:
    """The log of the unit since the boot."""
    return lab.sh(host, f"journalctl --sync; journalctl -b -o cat -u {UNIT}")


def seen(lab: LabHosts, host: str) -> int:
    """How many MIG devices existed when the node agent started."""
    return int(lab.sh(host, "grep -c MIG- /run/agent-saw || true"))


def start(lab: LabHosts, disks: dict[str, str]) -> None:
    """Starts hosts with these disks in parallel."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda item: lab.reset(*item), disks.items()))


@contextlib.contextmanager
def locked(lab: LabHosts, host: str, opened: int) -> Iterator[None]:
    """A context in which another run holds the lock. The lock is released when the file has been opened this many
    times, or at the end; if a number is given, it must have been reached."""
    lab.sh(host, f"cat > /run/holder.py <<'GPUOPS_END'\n{HOLDER}GPUOPS_END\n"
                 f"systemd-run --quiet --unit=holder -p StandardOutput=file:/run/held python3 /run/holder.py {opened}; "
                 "timeout 60 sh -c 'until grep -q held /run/held; do sleep 0.1; done'")
    try:
        yield
        active = "systemctl is-active --quiet holder"
        lab.sh(host, active if opened > 1000 else f"timeout 60 sh -c 'while {active}; do sleep 0.1; done'")
    finally:
        lab.sh(host, "systemctl stop holder 2> /dev/null; rm -f /run/held /run/holder.py")


@pytest.fixture(scope="module")
def lab() -> Iterator[LabHosts]:
    """A separate lab."""
    with own_lab("mig", f"{AMPERE}=a100-80:2,{HOPPER}=h100-80:2") as hosts:
        yield hosts


@pytest.fixture(scope="module")
def balanced(lab: LabHosts) -> Converged:
    """Installs driver and container toolkit on hosts on which a node agent starts at boot; then applies a layout."""
    series.well(lab, *(Play({f"{name}_disruption": "idle"}, role=name)
                       for name in ("driver", "container_toolkit")))
    for host in HOSTS:
        lab.sh(host, f"printf '%s' \"{AGENT}\" > /etc/systemd/system/kubelet.service; systemctl daemon-reload; "
                     "systemctl enable -q --now kubelet.service")
    plain, clean = ({host: keep(host) for host in HOSTS} for keep in (lab.save, lab.snapshot_beside_driver))
    layout = "all-balanced"
    runs = series.run(lab, mig(layout, check=True, hosts="all"), mig(layout, hosts="all"),
                      mig(layout, "verify", hosts="all"), mig(layout, level="never", hosts="all", script=MARKS))
    marks = {host: lab.sh(host, MARKS) for host in HOSTS}
    return Converged(plain, clean, {host: lab.save(host) for host in HOSTS}, *runs, marks)


def test_the_vendors_unit_is_not_fought(lab: LabHosts, balanced: Converged) -> None:
    lab.reset(AMPERE, balanced.plain[AMPERE])
    vendors = "/etc/systemd/system/nvidia-mig-manager.service"
    lab.sh(AMPERE, f"printf '[Service]\\nExecStart=/bin/true\\n[Install]\\nWantedBy=multi-user.target\\n' > {vendors}; "
                   "systemctl enable -q nvidia-mig-manager.service")
    run, = series.run(lab, mig("all-1g.10gb"))
    lab.sh(AMPERE, f"systemctl disable -q nvidia-mig-manager.service; rm {vendors}; systemctl daemon-reload")
    assert run.rc != 0 and "systemctl disable nvidia-mig-manager.service, or set boot to false" in run.errors()[0]
    assert lab.snapshot_beside_driver(AMPERE) == balanced.clean[AMPERE]


def test_a_layout_with_its_unit(balanced: Converged) -> None:
    assert balanced.check.rc == balanced.run.rc == balanced.verify.rc == 0, balanced.run.output
    for host in HOSTS:
        steps = ids(result(balanced.run, host)["plan"])
        assert ids(result(balanced.check, host)["plan"]) == steps and steps[-2:] == [REMEMBER, INSTALL]


def test_the_second_run_writes_nothing(balanced: Converged) -> None:
    assert balanced.again.rc == 0, balanced.again.output
    for host in HOSTS:
        assert not result(balanced.again, host)["changed"]
        assert result(balanced.again, host)["plan"] == []
        assert balanced.again.parts(host) == [balanced.marks[host].strip()]


def test_a_boot_brings_it_back_before_what_needs_it(lab: LabHosts, balanced: Converged) -> None:
    start(lab, balanced.disks)
    for host in HOSTS:
        kept = json.loads(lab.sh(host, f"cat {STATE}"))["gpus"]
        assert [len(entry["instances"]) for entry in kept.values()] == [4, 4]
        assert lab.sh(host, f"systemctl is-enabled {UNIT}").strip() == "enabled"
        assert seen(lab, host) == 8, told(lab, host)
        assert ("done: enable MIG mode" in told(lab, host)) == (host == HOPPER)
        assert told(lab, host).count("done: create MIG instances") == 2
        ended, began = lab.sh(host, f"systemctl show -p ExecMainExitTimestampMonotonic --value {UNIT}; systemctl show "
                                    "-p ExecMainStartTimestampMonotonic --value containerd").split()
        assert int(ended) <= int(began)
        uuids = {line.split("UUID: ")[1].rstrip(")") for line in lab.sh(host, "nvidia-smi -L").splitlines()
                 if "MIG-" in line}
        assert all(uuid in lab.sh(host, "cat /var/run/cdi/nvidia.yaml") for uuid in uuids) and len(uuids) == 8
    run, = series.well(lab, mig("all-balanced", level="never", hosts="all"))
    assert [result(run, host)["changed"] for host in HOSTS] == [False, False]


def test_started_again_it_keeps_what_is_right(lab: LabHosts, balanced: Converged) -> None:
    lab.reset(AMPERE, balanced.disks[AMPERE])
    before = lab.sh(AMPERE, "gpusim show | grep -E '^(generation|gi|ci)'")
    lab.sh(AMPERE, f"systemctl restart {UNIT}")
    assert lab.sh(AMPERE, "gpusim show | grep -E '^(generation|gi|ci)'") == before
    lab.sh(AMPERE, f"nvidia-smi mig -i 1 -dci && nvidia-smi mig -i 1 -dgi; systemctl restart {UNIT}")
    after = lab.sh(AMPERE, "gpusim show | grep -E '^(gi|ci) '").splitlines()
    assert [line for line in before.splitlines() if line[:4] in ("gi 0", "ci 0")] == [
        line for line in after if line[:4] in ("gi 0", "ci 0")]
    assert len([line for line in after if line.startswith("gi 1")]) == 4
    run, = series.well(lab, mig("all-balanced"))
    assert not result(run)["changed"]


def test_what_waits_is_done_at_idle_or_by_a_boot(lab: LabHosts, balanced: Converged) -> None:
    """Users of a GPU are not disturbed; at C(never), no GPU changes, and the layout is applied at the next boot."""
    lab.reset(AMPERE, balanced.disks[AMPERE])
    instance = next(line.split()[2] for line in lab.sh(AMPERE, "gpusim show").splitlines() if line.startswith("ci 0"))
    lab.sh(AMPERE, f"gpusim client add --pid 4242 --gpu 0 --gi {instance} --ci 0 training")
    off, cut = "all-disabled", "all-1g.10gb"
    waiting, = series.well(lab, mig(off))
    # In a run of its own, in which verify does not know that something waits.
    differs, idle, same, never = series.run(
        lab, mig(off, "verify"), mig(off, script="gpusim client remove all"), mig(off, "verify"),
        mig(cut, level="never", script=f"{PLACES} || true"))
    assert "training (4242)" in ids(result(waiting)["pending"])[0] and len(result(waiting)["created"]) == 0
    assert differs.rc != 0, differs.output
    assert (idle.rc, result(idle)["pending"], same.rc) == (0, [], 0), idle.output
    assert never.parts(AMPERE) == ["Disabled\nDisabled"]
    assert "needs 'idle'" in result(never)["pending"][0]["pending_reason"]
    assert ids(result(never)["plan"]) == [REMEMBER]
    assert places(lab, AMPERE) == ["Disabled"] * 2
    assert boot(lab, AMPERE) == "running", told(lab, AMPERE)
    assert seen(lab, AMPERE) == 14
    after, = series.well(lab, mig(cut, level="never"))
    assert not result(after)["changed"]


# What is done to the host: the step that repairs it, and what verify says.
DAMAGES = {
    f"systemctl disable -q {UNIT}": (INSTALL, f"{UNIT} is not enabled"),
    f"sed -i s/1g.10gb/1g.20gb/ {STATE}": (REMEMBER, "will have 7 x 1g.20gb after a boot, desired is 7 x 1g.10gb"),
    f"rm {STATE}": (REMEMBER, "will have no layout after a boot"),
    f"rm /etc/systemd/system/{UNIT}": (INSTALL, f"{UNIT} is not enabled"),
    "echo > /usr/local/lib/gpuops/mig-boot.pyz": (INSTALL, "")}


@pytest.fixture(scope="module")
def repairs(lab: LabHosts, balanced: Converged) -> dict[str, tuple[Done, ...]]:
    """Maps each kind of damage to what verify reports and what a run does; the empty name has what both do in the
    end."""
    lab.reset(AMPERE, balanced.disks[AMPERE])
    cut = "all-1g.10gb"
    pairs = [(mig(cut, "verify", script=damage), mig(cut)) for damage in (*DAMAGES, "")]
    _first, *runs = series.run(lab, mig(cut), *(play for pair in pairs for play in pair))
    return dict(zip((*DAMAGES, ""), zip(runs[::2], runs[1::2], strict=True), strict=True))


@pytest.mark.parametrize("damage", DAMAGES)
def test_drift_is_told_and_repaired(repairs: dict[str, tuple[Done, ...]], damage: str) -> None:
    step, said = DAMAGES[damage]
    verified, repaired = repairs[damage]
    assert (verified.rc != 0) == bool(said), verified.output
    assert said in " ".join(verified.errors())
    assert repaired.rc == 0 and ids(result(repaired)["plan"]) == [step]


def test_after_all_repairs_nothing_differs(repairs: dict[str, tuple[Done, ...]]) -> None:
    verified, again = repairs[""]
    assert verified.rc == again.rc == 0 and not result(again)["changed"], again.output


def test_a_fault_at_boot_fails_the_unit_alone_and_the_next_run_mends(lab: LabHosts, balanced: Converged) -> None:
    lab.reset(AMPERE, balanced.disks[AMPERE])
    lab.sh(AMPERE, "gpusim fault set insufficient-resources 0")
    assert boot(lab, AMPERE) == "degraded"
    assert lab.sh(AMPERE, "systemctl --failed --plain --no-legend | cut -d' ' -f1").split() == [UNIT]
    assert "INSUFFICIENT_RESOURCES" in told(lab, AMPERE) and "Traceback" not in told(lab, AMPERE)
    assert seen(lab, AMPERE) == 4
    mended, again = series.well(lab, mig("all-balanced", script="gpusim fault clear insufficient-resources 0"),
                                mig("all-balanced"))
    assert len(result(mended)["created"]) == 4
    assert lab.sh(AMPERE, "systemctl is-system-running").strip() == "running"
    assert not result(again)["changed"]


def test_a_gpu_that_was_taken_out_is_a_warning(lab: LabHosts, balanced: Converged) -> None:
    lab.reset(HOPPER, balanced.disks[HOPPER])
    lab.sh(HOPPER, "gpusim fault set off-bus 1")
    assert boot(lab, HOPPER) == "running", told(lab, HOPPER)
    assert "is not in this host any more" in told(lab, HOPPER)
    assert seen(lab, HOPPER) == 4
    lab.sh(HOPPER, "gpusim fault clear off-bus 1")
    assert boot(lab, HOPPER) == "running", told(lab, HOPPER)
    run, = series.well(lab, mig("all-balanced", hosts=HOPPER))
    assert not result(run, HOPPER)["changed"]


def test_two_runs_at_once(lab: LabHosts, balanced: Converged) -> None:
    """Each run waits for the other one, but not without limit; so does the unit."""
    lab.reset(AMPERE, balanced.disks[AMPERE])
    kept = lab.sh(AMPERE, f"cat {STATE}")
    with locked(lab, AMPERE, 1):
        run, = series.well(lab, mig("all-balanced"))
    assert not result(run)["changed"]
    with locked(lab, AMPERE, 1):
        lab.sh(AMPERE, f"systemctl restart {UNIT}")
    with locked(lab, AMPERE, 1_000_000):
        failed, = series.run(lab, mig("all-1g.10gb"))
    assert failed.rc != 0 and f"Another run has held {LOCK}" in failed.errors()[0]
    assert lab.sh(AMPERE, f"cat {STATE}") == kept


FINISH = "reboot to finish the MIG mode: 0000:0f:00.0"


def test_a_mode_that_only_a_reboot_applies(lab: LabHosts, balanced: Converged) -> None:
    """The second GPU cannot be reset, as in a virtual machine. Below reboot, nothing of it changes. The role alone and
    the playbook site reboot the host and continue."""
    cut = "all-1g.10gb"
    lab.reset(AMPERE, balanced.plain[AMPERE])
    lab.sh(AMPERE, "gpusim fault set reboot-only 1")
    idle, off, module, before = series.run(
        lab, mig(cut), mig(cut, script=f"{PLACES} || true", check=True),
        mig(cut, level="reboot", mig_manager_boot=False), mig(cut, level="reboot", mig_manager_boot=False))
    assert idle.rc != 0 and "Not Supported" in idle.errors()[0], idle.output
    assert "only a reboot applies the mode: set disruption to reboot" in idle.errors()[0]
    assert off.parts(AMPERE)[0].splitlines()[:2] == ["Enabled", "Disabled"]
    assert result(module)["reboot_required"] and ids(result(module)["pending"])[0] == FINISH
    assert not result(before)["changed"] and result(before)["reboot_required"]
    assert boot(lab, AMPERE) == "running"
    assert places(lab, AMPERE) == ["Enabled"] * 2  # no unit restores the instances
    after, same, role, again = series.well(
        lab, mig(cut, level="reboot", mig_manager_boot=False), mig(cut, level="never", mig_manager_boot=False),
        mig("all-disabled", "main", "reboot"), mig("all-disabled", "main", "reboot"))
    assert len(result(after)["created"]) == 14 and not result(same)["changed"]
    assert any("Reboot the host" in task for task in role.changed(AMPERE)), role.output
    assert result(role)["pending"] == [] and again.changed(AMPERE) == []
    assert places(lab, AMPERE) == ["Disabled"] * 2


def test_site_reboots_for_a_mode_that_only_a_reboot_applies(lab: LabHosts, balanced: Converged) -> None:
    lab.reset(AMPERE, balanced.plain[AMPERE])
    lab.sh(AMPERE, "gpusim fault set reboot-only 1")
    policy = yaml.safe_load((ROOT / "lab" / "demo" / "policy.yml").read_text())
    policy["spec"]["mig"]["strategy"] = "mixed"

    def site(level: str) -> user.Run:
        return user.playbook("site", lab.hosts, "--limit", AMPERE, "--tags", "mig_manager", gpu_policy=policy,
                             gpu_disruption=level, mig_manager_selected="all-balanced")

    run = site("reboot")
    assert run.rc == 0 and any("Reboot the host" in task for task in run.changed(AMPERE)), run.output
    assert len(places(lab, AMPERE)) == 2 + 2 * 8 and places(lab, AMPERE)[:2] == ["Enabled"] * 2
    assert site("idle").changed(AMPERE) == []


@pytest.fixture(scope="module")
def before_r550() -> Iterator[LabHosts]:
    """A lab with a host of a driver that tells MIG profiles only while MIG is on. A30 needs no fabric manager."""
    with own_lab("mig535", f"{A30}=a30:2") as hosts:
        address = re.search(r'driver_repository_url: "(http://[^/]+/)', hosts.hosts[0].read_text())
        assert address
        series.well(hosts, Play(wanted(address.group(1), OLDEST, driver_disruption="idle"), role="driver"))
        yield hosts


def test_a_driver_that_tells_profiles_only_while_mig_is_on(before_r550: LabHosts) -> None:
    lab, cut = before_r550, "all-1g.6gb"
    one = {"mig_manager_devices": [0]}
    alone, check, run, same, off, gone, rest, last = series.well(
        lab, mig(cut, hosts=A30, **one), mig(cut, check=True, hosts=A30), mig(cut, hosts=A30),
        mig(cut, "verify", hosts=A30), mig("all-disabled", hosts=A30, **one),
        mig("all-disabled", hosts=A30), mig("all-balanced", check=True, hosts=A30), mig("all-balanced", hosts=A30))
    assert alone.result(A30, "mig_config")["created"] and same.rc == 0
    steps = ids(result(run, A30)["plan"])
    assert ids(result(check, A30)["plan"]) == steps and steps[1].endswith("1g.6gb at 0,1,2,3") and "enable" in steps[0]
    assert [len(result(one, A30)["destroyed"]) for one in (off, gone)] == [4, 4]
    assert result(rest, A30)["plan"] == result(last, A30)["plan"] and len(result(last, A30)["created"]) == 6
    before = places(lab, A30)
    assert boot(lab, A30) == "running" and places(lab, A30) == before, told(lab, A30)
    again, = series.well(lab, mig("all-balanced", level="never", hosts=A30))
    assert not result(again, A30)["changed"]


def test_removal_leaves_nothing(lab: LabHosts, balanced: Converged) -> None:
    start(lab, balanced.disks)
    unit_off = mig("all-balanced", hosts=HOPPER, mig_manager_boot=False)
    without, still, check = series.well(
        lab, unit_off, mig("all-balanced", hosts=HOPPER, mig_manager_boot=False,
                           script=f"[ ! -e {STATE} ] && [ ! -e /usr/local/lib/gpuops/mig-boot.pyz ]"),
        mig("", "remove", check=True, hosts="all"))
    assert ids(result(without, HOPPER)["plan"]) == [REMOVE] and not result(still, HOPPER)["changed"]
    run, again = series.well(lab, mig("", "remove", hosts="all"), mig("", "remove", hosts="all"))
    for host, first in ((AMPERE, [REMOVE]), (HOPPER, [])):
        steps = ids(result(run, host)["plan"])
        assert ids(result(check, host)["plan"]) == steps and steps[:len(first)] == first
        assert places(lab, host) == ["Disabled"] * 2 and lab.snapshot_beside_driver(host) == balanced.clean[host]
        assert again.changed(host) == []
