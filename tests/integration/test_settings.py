# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Settings of GPUs on a host that reboots: planned as applied, kept, put back by the unit, restored on removal; and by
the playbooks for the whole host."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from tests.integration import series, user
from tests.integration.conftest import LabHosts, own_lab
from tests.integration.series import Done, Play
from tests.integration.test_mig import boot

HOST = "gpu-s1"
STATE, UNIT = "/etc/gpuops/settings.json", "gpuops-settings.service"
REMEMBER, INSTALL, REMOVE = (f"remember GPU settings for boot: {STATE}", f"install boot unit: {UNIT}",
                             f"remove boot unit: {UNIT}")
HOPPER, T4 = "NVIDIA H100 80GB HBM3", "Tesla T4"
ENTRIES = [{"gpus": "all", "persistence": True},
           {"gpus": [HOPPER], "power_limit": 500, "locked_graphics_clocks": {"min": 1200, "max": 1800}},
           {"gpus": [T4], "power_limit": 65, "ecc": False, "compute_mode": "exclusive_process"}]
# The state of the simulated GPUs, without what moves with every change.
SEEN = "gpusim show | grep -E '^(settings|gpu) '"
# Inodes and times of what a run could write, and what systemd has been told.
MARKS = (f"stat -c '%n %i %y' {STATE} /etc/systemd/system/{UNIT} /usr/local/lib/gpuops/settings-boot.pyz "
         "/var/lib/gpuops/journal/gpu_settings.json; gpusim show | grep generation; "
         "systemctl show -p UnitsLoadFinishTimestampMonotonic --value")
SET = ["settings 0 65000 5001 585 0 0 0 0 3 1 0", "settings 1 500000 2619 1980 1200 1800 0 0 0 1 1"]


class Converged(NamedTuple):
    """The host with the settings. clean, plain: its snapshot and its GPUs before them; disk: its disk with them; marks:
    MARKS after the last run."""

    clean: list[str]
    plain: str
    disk: str
    check: Done
    run: Done
    verify: Done
    again: Done
    marks: str


def role(entries: Any = None, tasks: str = "host", *, check: bool = False, script: str = "", **variables: Any) -> Play:
    """Runs the role gpu_settings."""
    return Play({"gpu_settings": ENTRIES if entries is None else entries, **variables}, tasks, check, first=script,
                role="gpu_settings")


def result(run: Done) -> dict[str, Any]:
    return run.result(HOST, "gpu_settings")


def ids(steps: list[dict[str, Any]]) -> list[str]:
    return [step["id"] for step in steps]


def settings(lab: LabHosts) -> list[str]:
    """The settings of the simulated GPUs that are not as shipped."""
    return [line for line in lab.sh(HOST, SEEN).splitlines() if line.startswith("settings")]


def told(lab: LabHosts) -> str:
    """The log of the unit since the boot."""
    return lab.sh(HOST, f"journalctl --sync; journalctl -b -o cat -u {UNIT}")


@pytest.fixture(scope="module")
def lab() -> Iterator[LabHosts]:
    """A separate lab with one host."""
    with own_lab("settings", f"{HOST}=h100-80:1+t4:1") as hosts:
        yield hosts


@pytest.fixture(scope="module")
def converged(lab: LabHosts) -> Converged:
    """Installs the driver; then applies the settings."""
    series.well(lab, Play({"driver_disruption": "idle"}, role="driver"))
    clean, plain = lab.snapshot_beside_driver(HOST), lab.sh(HOST, SEEN)
    runs = series.run(lab, role(check=True), role(), role(tasks="verify"), role(script=MARKS))
    marks = lab.sh(HOST, MARKS)
    return Converged(clean, plain, lab.save(HOST), *runs, marks)


def test_check_mode_plans_what_the_run_does(lab: LabHosts, converged: Converged) -> None:
    assert converged.check.rc == converged.run.rc == converged.verify.rc == 0, converged.run.output
    steps = ids(result(converged.run)["plan"])
    assert ids(result(converged.check)["plan"]) == steps and steps[-2:] == [REMEMBER, INSTALL]
    assert len(steps) == len(result(converged.run)["changes"]) + 2 >= 7
    assert result(converged.run)["reset_required"] == ["0000:17:00.0"]
    assert settings(lab) == SET and lab.sh(HOST, f"systemctl is-enabled {UNIT}").strip() == "enabled"


def test_the_second_run_writes_nothing(converged: Converged) -> None:
    assert converged.again.rc == 0, converged.again.output
    assert not result(converged.again)["changed"] and result(converged.again)["plan"] == []
    assert converged.again.parts(HOST) == [converged.marks.strip()]


def test_a_boot_puts_them_back(lab: LabHosts, converged: Converged) -> None:
    lab.reset(HOST, converged.disk)
    # The ECC mode is the GPU's own, and the boot has applied it.
    assert settings(lab) == [SET[0].replace(" 1 0", " 0 0"), SET[1]], told(lab)
    assert told(lab).count("done: ") == 6 and "done: lock graphics clocks" in told(lab)
    run, verify = series.well(lab, role(), role(tasks="verify"))
    assert not result(run)["changed"] and result(run)["reset_required"] == [], verify.output


def test_started_again_the_unit_sets_what_somebody_has_changed(lab: LabHosts, converged: Converged) -> None:
    lab.reset(HOST, converged.disk)
    lab.sh(HOST, f"gpusim reset 1; systemctl restart {UNIT}")
    assert settings(lab)[1] == SET[1], told(lab)


def test_a_fault_at_boot_fails_the_unit_alone_and_the_next_run_mends(lab: LabHosts, converged: Converged) -> None:
    lab.reset(HOST, converged.disk)
    lab.sh(HOST, "gpusim fault set no-permission 0")
    assert boot(lab, HOST) == "degraded"
    assert lab.sh(HOST, "systemctl --failed --plain --no-legend | cut -d' ' -f1").split() == [UNIT]
    assert "NO_PERMISSION" in told(lab) and "Traceback" not in told(lab)
    assert settings(lab)[1] == SET[1]  # the other GPU has them
    run, = series.well(lab, role(script="gpusim fault clear"))
    assert result(run)["changed"] and lab.sh(HOST, "systemctl is-system-running").strip() == "running"


def reset_by_module(lab: LabHosts, level: str) -> dict[str, Any]:
    """The result of gpu_reset for the H100."""
    path = user.HOME / "settings-reset.json"
    path.write_text(json.dumps([{"hosts": "all", "become": True, "gather_facts": False, "tasks": [
        {"gpuops.nvidia.gpu_reset": {"gpus": [{"pci": "0000:1b:00.0"}], "disruption": level}}]}]))
    done = user.ansible("ansible-playbook", *(f"-i{inventory}" for inventory in lab.hosts), str(path))
    assert done.rc == 0, done.output
    return done.result(HOST, "gpu_reset")


@pytest.mark.parametrize("lasting", [True, False])
def test_a_reset_by_the_collection_loses_no_setting(lab: LabHosts, converged: Converged, lasting: bool) -> None:
    """The unit applies the settings at once, although it has failed before; without it, the next run does."""
    lab.reset(HOST, converged.disk)
    if lasting:
        lab.sh(HOST, f"gpusim fault set no-permission 1; ! systemctl restart {UNIT}; gpusim fault clear")
        assert lab.sh(HOST, f"systemctl is-failed {UNIT}").strip() == "failed"
    else:
        series.well(lab, role(gpu_settings_boot=False))
    lab.sh(HOST, """cat > /etc/systemd/system/watch.service <<'END'
[Service]
ExecStart=/bin/sh -c 'exec sleep infinity < /dev/nvidia1'
END
systemctl daemon-reload; systemctl start watch; gpusim fault set reset-required 1""")
    waits = reset_by_module(lab, "idle")  # NVML tells no process of this GPU
    assert waits["plan"] == [] and "watch.service" in waits["pending"][0]["id"]
    reset = reset_by_module(lab, "drain")
    assert [step["action"] for step in reset["plan"]] == ["stop GPU clients", "reset GPU", "start service"]
    assert lab.sh(HOST, "systemctl is-active watch").strip() == "active"
    assert (settings(lab)[-1] == SET[1]) is lasting, told(lab)
    run, again = series.well(lab, *[role(gpu_settings_boot=lasting)] * 2)
    assert ids(result(run)["plan"]) == ([] if lasting else [
        "set power limit: 0000:1b:00.0 500 W", "lock graphics clocks: 0000:1b:00.0 1200-1800 MHz"])
    assert settings(lab)[1] == SET[1] and not result(again)["changed"]


DAMAGES = {f"systemctl disable -q {UNIT}": [INSTALL], f"rm {STATE}": [REMEMBER],
           f"rm /etc/systemd/system/{UNIT}": [INSTALL],
           "gpusim reset 1": ["set power limit: 0000:1b:00.0 500 W"]}


def test_drift_is_told_and_repaired(lab: LabHosts, converged: Converged) -> None:
    lab.reset(HOST, converged.disk)
    runs = series.run(lab, *(play for damage in DAMAGES
                             for play in (role(tasks="verify", script=damage), role(tasks="host"))))
    for (damage, steps), verified, repaired in zip(DAMAGES.items(), runs[::2], runs[1::2], strict=True):
        assert verified.rc != 0 and steps[0] in " ".join(verified.errors()), damage
        assert repaired.rc == 0 and ids(result(repaired)["plan"]) == steps, damage


def test_a_removal_leaves_nothing(lab: LabHosts, converged: Converged) -> None:
    lab.reset(HOST, converged.disk)
    check, removed, again = series.well(
        lab, role(tasks="remove", check=True), role(tasks="remove"), role(tasks="remove"))
    assert ids(result(check)["plan"]) == ids(result(removed)["plan"]) and REMOVE in ids(result(removed)["plan"])
    assert not result(again)["changed"]
    # ECC waits for the next reset.
    assert settings(lab) == ["settings 0 70000 5001 585 0 0 0 0 0 0 1"]
    assert lab.snapshot_beside_driver(HOST) == converged.clean
    assert boot(lab, HOST) == "running"
    assert settings(lab) == []


def test_an_empty_declaration_restores_and_no_declaration_changes_nothing(lab: LabHosts, converged: Converged) -> None:
    lab.reset(HOST, converged.disk)
    none, empty = series.well(lab, Play({}, role="gpu_settings", first=MARKS), role([]))
    assert lab.snapshot_beside_driver(HOST) == converged.clean and none.rc == 0
    assert result(empty)["changed"] and settings(lab) == ["settings 0 70000 5001 585 0 0 0 0 0 0 1"]


def test_before_the_driver_is_installed_the_settings_wait(lab: LabHosts, converged: Converged) -> None:
    """So site does not fail where the driver waits for a reboot, for example."""
    lab.reset(HOST)
    before = lab.snapshot(HOST)
    check, run = series.well(lab, role(check=True), role())
    assert ids(result(run)["pending"]) == ids(result(check)["plan"]) and not result(run)["changed"]
    assert {step["pending_reason"] for step in result(run)["pending"]} == {"the NVIDIA driver is not installed"}
    assert "No setting is applied, because the NVIDIA driver is not installed." in run.output
    assert lab.snapshot(HOST) == before
    verify, = series.run(lab, role(tasks="verify"))
    assert verify.rc != 0 and "set power limit: 0000:1b:00.0 500 W" in str(verify.errors()), verify.output


@pytest.mark.timeout(1800)
def test_the_playbooks(lab: LabHosts) -> None:
    """A whole host: refused before anything is changed, applied by site, compared by verify, restored by remove."""
    lab.reset(HOST)
    wishes = {"gpu_disruption": "idle", "gpu_policy": {"driver": {"enabled": True}, "toolkit": {"enabled": False}}}
    before = lab.snapshot(HOST)
    wrong = [*ENTRIES, {"gpus": ["7"], "power_limit": 300}]
    refused = user.playbook("site", lab.hosts, gpu_settings=wrong, **wishes)
    assert refused.rc != 0 and "this host has no GPU '7'" in refused.output, refused.output
    assert lab.snapshot(HOST) == before
    findings = user.playbook("preflight", lab.hosts, gpu_settings=wrong, **wishes)
    assert findings.rc != 0 and "this host has no GPU '7'" in findings.output, findings.output
    done = user.playbook("site", lab.hosts, gpu_settings=ENTRIES, **wishes)
    assert done.rc == 0, done.output
    assert settings(lab) == SET and json.loads(lab.sh(HOST, f"cat {STATE}"))["version"] == 1
    again = user.playbook("site", lab.hosts, "--check", "--diff", gpu_settings=ENTRIES, **wishes)
    assert again.rc == 0 and " changed=0 " in again.output, again.output
    lab.sh(HOST, "gpusim reset 1")
    differs = user.playbook("verify", lab.hosts, gpu_settings=ENTRIES, **wishes)
    assert differs.rc != 0 and "set power limit: 0000:1b:00.0 500 W" in differs.output, differs.output
    removed = user.playbook("remove", lab.hosts, **wishes)
    assert removed.rc == 0, removed.output
    assert settings(lab) == []  # the end of the driver has applied the ECC mode
    assert "gpuops-settings" not in "\n".join(lab.snapshot(HOST))
