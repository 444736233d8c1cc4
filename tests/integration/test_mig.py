# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""MIG on hosts that boot: the layout is back before what needs it, two at once, drift, faults, removal; in order."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from lab.host import engine
from lab.host import lab as labs
from tests.integration import user
from tests.integration.conftest import LabHosts, own_lab

AMPERE, HOPPER = "gpu-m1", "gpu-m2"
HOSTS = [AMPERE, HOPPER]
STATE, UNIT = "/etc/gpuops/mig.json", "gpuops-mig.service"
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


def role(lab: LabHosts, host: str, *words: str, name: str = "mig_manager", tasks: str = "host",
         level: str = "idle", **variables: Any) -> user.Run:
    """Runs a task file of a role on a host, or on both with C(all)."""
    return user.playbook(user.role(name, tasks), lab.hosts, "--limit", host, *words,
                         **{f"{name}_disruption": level, **variables})


def mig(lab: LabHosts, host: str, selected: str, *words: str, **variables: Any) -> dict[str, Any]:
    """The result of mig_config after a run that ended well."""
    run = role(lab, host, *words, mig_manager_selected=selected, **variables)
    assert run.rc == 0, run.output
    return run.result(host, "mig_config")


def ids(steps: list[dict[str, Any]]) -> list[str]:
    return [step["id"] for step in steps]


def places(lab: LabHosts, host: str) -> list[str]:
    """Modes, and the instances of the simulated GPUs by profile and place."""
    lines = [line.split() for line in lab.sh(host, f"{PLACES} || true").splitlines()]
    return sorted(line[0] if len(line) == 1 else " ".join((line[0], line[1], *line[-3:])) for line in lines)


def boot(lab: LabHosts, host: str) -> str:
    """Reboots the host; says how systemd stands then."""
    mark = "systemctl show --property=UserspaceTimestampMonotonic"
    look = ("exec", labs.load(lab.name).container(host), "sh", "-c", f"{mark} && systemctl is-system-running --wait")
    before = lab.sh(host, mark)
    with contextlib.suppress(AssertionError):
        lab("exec", host, "systemctl reboot")
    end = time.monotonic() + 300
    while time.monotonic() < end:
        done = engine.podman(*look, check=False)
        lines = done.stdout.splitlines()
        if len(lines) == 2 and lines[0] != before.strip() and lines[1] in ("running", "degraded"):
            return lines[1]
        time.sleep(0.1)
    raise AssertionError(f"{host} did not come back: {done.stdout}{done.stderr}")


def told(lab: LabHosts, host: str) -> str:
    """What the unit has said since the boot."""
    return lab.sh(host, f"journalctl -b -o cat -u {UNIT}")


def marks(lab: LabHosts, host: str) -> str:
    """Inodes and times of what a run could write, and what systemd has been told."""
    return lab.sh(host, f"stat -c '%n %i %y' {STATE} /etc/systemd/system/{UNIT} /usr/local/lib/gpuops/mig-boot.pyz "
                        "/usr/local/lib/gpuops/python/pynvml.py /var/lib/gpuops/journal/mig.json; gpusim show | "
                        "grep generation; systemctl show -p UnitsLoadFinishTimestampMonotonic --value")


@pytest.fixture(scope="module")
def lab() -> Iterator[LabHosts]:
    """A lab of its own with driver and container toolkit; on one host a node agent starts at boot."""
    with own_lab("mig", f"{AMPERE}=a100-80:2,{HOPPER}=h100-80:2") as hosts:
        for name in ("driver", "container_toolkit"):
            done = role(hosts, "all", name=name)
            assert done.rc == 0, done.output
        for host in HOSTS:
            hosts.sh(host, f"printf '%s' \"{AGENT}\" > /etc/systemd/system/kubelet.service; systemctl daemon-reload; "
                           "systemctl enable -q kubelet.service; systemctl start kubelet.service")
        yield hosts


@pytest.fixture(scope="module")
def clean(lab: LabHosts) -> dict[str, list[str]]:
    """The snapshots of the hosts before MIG."""
    return {host: lab.snapshot_beside_driver(host) for host in HOSTS}


def test_the_vendors_unit_is_not_fought(lab: LabHosts, clean: dict[str, list[str]]) -> None:
    vendors = "/etc/systemd/system/nvidia-mig-manager.service"
    lab.sh(AMPERE, f"printf '[Service]\\nExecStart=/bin/true\\n[Install]\\nWantedBy=multi-user.target\\n' > {vendors}; "
                   "systemctl enable -q nvidia-mig-manager.service")
    run = role(lab, AMPERE, mig_manager_selected="all-1g.10gb")
    lab.sh(AMPERE, f"systemctl disable -q nvidia-mig-manager.service; rm {vendors}; systemctl daemon-reload")
    assert run.rc != 0 and "systemctl disable nvidia-mig-manager.service, or set boot: false" in run.errors()[0]
    assert lab.snapshot_beside_driver(AMPERE) == clean[AMPERE]


def test_a_layout_with_its_unit(lab: LabHosts, clean: dict[str, list[str]]) -> None:
    for host in HOSTS:
        check, run = (mig(lab, host, "all-balanced", *words) for words in (["--check"], []))
        assert ids(check["plan"]) == ids(run["plan"]) and ids(run["plan"])[-2:] == [REMEMBER, INSTALL]
        assert lab.sh(host, f"systemctl is-enabled {UNIT}").strip() == "enabled"
        kept = json.loads(lab.sh(host, f"cat {STATE}"))["gpus"]
        assert [len(entry["instances"]) for entry in kept.values()] == [4, 4]
        assert role(lab, host, tasks="verify", mig_manager_selected="all-balanced").rc == 0


def test_the_second_run_writes_nothing(lab: LabHosts) -> None:
    before = [marks(lab, host) for host in HOSTS]
    assert [mig(lab, host, "all-balanced", mig_manager_disruption="never")["changed"] for host in HOSTS] == [False] * 2
    assert [marks(lab, host) for host in HOSTS] == before


def test_a_boot_brings_it_back_before_what_needs_it(lab: LabHosts) -> None:
    for host in HOSTS:
        before = places(lab, host)
        assert boot(lab, host) == "running", told(lab, host)
        assert places(lab, host) == before
        assert lab.sh(host, "grep -c MIG- /run/agent-saw").strip() == "8", told(lab, host)
        assert ("done: enable MIG mode" in told(lab, host)) == (host == HOPPER)
        assert told(lab, host).count("done: create MIG instances") == 2
        ended, began = lab.sh(host, f"systemctl show -p ExecMainExitTimestampMonotonic --value {UNIT}; systemctl show "
                                    "-p ExecMainStartTimestampMonotonic --value containerd").split()
        assert int(ended) <= int(began)
        assert not mig(lab, host, "all-balanced", mig_manager_disruption="never")["changed"]
        uuids = {line.split("UUID: ")[1].rstrip(")") for line in lab.sh(host, "nvidia-smi -L").splitlines()
                 if "MIG-" in line}
        assert all(uuid in lab.sh(host, "cat /var/run/cdi/nvidia.yaml") for uuid in uuids) and len(uuids) == 8


def test_started_again_it_keeps_what_is_right(lab: LabHosts) -> None:
    before = lab.sh(AMPERE, "gpusim show | grep -E '^(generation|gi|ci)'")
    lab.sh(AMPERE, f"systemctl restart {UNIT}")
    assert lab.sh(AMPERE, "gpusim show | grep -E '^(generation|gi|ci)'") == before
    lab.sh(AMPERE, f"nvidia-smi mig -i 1 -dci && nvidia-smi mig -i 1 -dgi; systemctl restart {UNIT}")
    after = lab.sh(AMPERE, "gpusim show | grep -E '^(gi|ci) '").splitlines()
    assert [line for line in before.splitlines() if line[:4] in ("gi 0", "ci 0")] == [
        line for line in after if line[:4] in ("gi 0", "ci 0")]
    assert len([line for line in after if line.startswith("gi 1")]) == 4
    assert not mig(lab, AMPERE, "all-balanced")["changed"]


def test_busy_ones_wait_and_are_reached_at_idle(lab: LabHosts) -> None:
    instance = next(line.split()[2] for line in lab.sh(AMPERE, "gpusim show").splitlines() if line.startswith("ci 0"))
    lab.sh(AMPERE, f"gpusim client add --pid 4242 --gpu 0 --gi {instance} --ci 0 training")
    waiting = mig(lab, AMPERE, "all-disabled")
    assert "training (4242)" in ids(waiting["pending"])[0] and len(waiting["created"]) == 0
    assert role(lab, AMPERE, tasks="verify", mig_manager_selected="all-disabled").rc != 0
    lab.sh(AMPERE, "gpusim client remove all")
    assert mig(lab, AMPERE, "all-disabled")["pending"] == []
    assert places(lab, AMPERE) == ["Disabled"] * 2
    assert role(lab, AMPERE, tasks="verify", mig_manager_selected="all-disabled").rc == 0


def test_what_never_leaves_pending_is_there_after_a_boot(lab: LabHosts) -> None:
    result = mig(lab, AMPERE, "all-1g.10gb", mig_manager_disruption="never")
    assert "needs 'idle'" in result["pending"][0]["pending_reason"] and ids(result["plan"]) == [REMEMBER]
    assert places(lab, AMPERE) == ["Disabled"] * 2
    assert boot(lab, AMPERE) == "running", told(lab, AMPERE)
    assert lab.sh(AMPERE, "grep -c MIG- /run/agent-saw").strip() == "14"
    assert not mig(lab, AMPERE, "all-1g.10gb", mig_manager_disruption="never")["changed"]


@pytest.mark.parametrize(("damage", "step", "said"), [
    (f"systemctl disable -q {UNIT}", INSTALL, f"{UNIT} is not enabled"),
    (f"sed -i s/1g.10gb/1g.20gb/ {STATE}", REMEMBER, "will have 7 x 1g.20gb after a boot, wanted is 7 x 1g.10gb"),
    (f"rm {STATE}", REMEMBER, "will have nothing after a boot"),
    (f"rm /etc/systemd/system/{UNIT}", INSTALL, f"{UNIT} is not enabled"),
    ("echo > /usr/local/lib/gpuops/mig-boot.pyz", INSTALL, "")])
def test_drift_is_told_and_repaired(lab: LabHosts, damage: str, step: str, said: str) -> None:
    lab.sh(AMPERE, damage)
    verified = role(lab, AMPERE, tasks="verify", mig_manager_selected="all-1g.10gb")
    assert (verified.rc != 0) == bool(said) and said in verified.output.replace("\n", " "), verified.output
    assert ids(mig(lab, AMPERE, "all-1g.10gb")["plan"]) == [step]
    assert role(lab, AMPERE, tasks="verify", mig_manager_selected="all-1g.10gb").rc == 0
    assert not mig(lab, AMPERE, "all-1g.10gb")["changed"]


def test_a_fault_at_boot_fails_the_unit_alone_and_the_next_run_mends(lab: LabHosts) -> None:
    lab("fault", AMPERE, "insufficient-resources:0", "on")
    assert boot(lab, AMPERE) == "degraded"
    assert lab.sh(AMPERE, "systemctl --failed --plain --no-legend | cut -d' ' -f1").split() == [UNIT]
    assert "INSUFFICIENT_RESOURCES" in told(lab, AMPERE) and "Traceback" not in told(lab, AMPERE)
    assert lab.sh(AMPERE, "grep -c MIG- /run/agent-saw").strip() == "7"
    lab("fault", AMPERE, "insufficient-resources:0", "off")
    assert len(mig(lab, AMPERE, "all-1g.10gb")["created"]) == 7
    assert lab.sh(AMPERE, "systemctl is-system-running").strip() == "running"
    assert not mig(lab, AMPERE, "all-1g.10gb")["changed"]


def test_a_gpu_that_was_taken_out_is_a_warning(lab: LabHosts) -> None:
    lab("fault", HOPPER, "off-bus:1", "on")
    assert boot(lab, HOPPER) == "running", told(lab, HOPPER)
    assert "is not in this host any more" in told(lab, HOPPER)
    assert lab.sh(HOPPER, "grep -c MIG- /run/agent-saw").strip() == "4"
    lab("fault", HOPPER, "off-bus:1", "off")
    assert boot(lab, HOPPER) == "running", told(lab, HOPPER)
    assert not mig(lab, HOPPER, "all-balanced")["changed"]


def test_two_runs_at_once(lab: LabHosts) -> None:
    # As another run does, for as long as the file is there.
    held = ("touch /run/held; setsid flock {0} sh -c 'while [ -e /run/held ]; do sleep 0.1; done' > /dev/null 2>&1 "
            "< /dev/null & while flock --nonblock {0} true; do sleep 0.1; done; "
            ).format("/var/lib/gpuops/journal/mig.lock")
    goes = "setsid sh -c 'sleep 8; rm /run/held' > /dev/null 2>&1 < /dev/null & "
    lab.sh(AMPERE, held + goes)
    assert not mig(lab, AMPERE, "all-1g.10gb")["changed"]
    lab.sh(AMPERE, "! test -e /run/held")
    lab.sh(AMPERE, held)
    failed = role(lab, AMPERE, mig_manager_selected="all-balanced")
    assert failed.rc != 0 and "Another run has held /var/lib/gpuops/journal/mig.lock" in failed.errors()[0]
    assert lab.sh(AMPERE, f"grep -c 1g.10gb {STATE}").strip() == "14"
    lab.sh(AMPERE, f"{goes} systemctl restart {UNIT}; ! test -e /run/held")  # it waits for a run that is under way


def test_removal_leaves_nothing(lab: LabHosts, clean: dict[str, list[str]]) -> None:
    assert ids(mig(lab, HOPPER, "all-balanced", mig_manager_boot=False)["plan"]) == [REMOVE]
    lab.sh(HOPPER, f"[ ! -e {STATE} ] && [ ! -e /usr/local/lib/gpuops/mig-boot.pyz ]")
    assert not mig(lab, HOPPER, "all-balanced", mig_manager_boot=False)["changed"]
    for host, first in ((AMPERE, [REMOVE]), (HOPPER, [])):
        check, run = (role(lab, host, *words, tasks="remove") for words in (["--check"], []))
        assert check.rc == run.rc == 0, check.output + run.output
        steps = ids(run.result(host, "mig_config")["plan"])
        assert ids(check.result(host, "mig_config")["plan"]) == steps and steps[:len(first)] == first
        assert places(lab, host) == ["Disabled"] * 2 and lab.snapshot_beside_driver(host) == clean[host]
        assert role(lab, host, tasks="remove").changed(host) == []
