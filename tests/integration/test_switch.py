# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Switching the driver: any state ends as check mode predicted, with GPU clients, services, reboots, failures and
rollbacks."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import components

from tests.integration import user
from tests.integration.conftest import own_lab
from tests.integration.driver import DriverHost, Refused
from tests.integration.series import Done, Play

NEW, OLD = "595.91.07", "580.126.20"
RMMOD = "systemctl stop nvidia-fabricmanager nvidia-persistenced; rmmod nvidia_uvm nvidia_modeset nvidia"
PACKAGES = "$(dpkg-query -W -f '${Package} ' '*nvidia*' 'libcuda*')"
# A service of the system that holds a GPU. It has opened it when systemctl start returns.
TRAIN = ("printf '[Service]\\nType=exec\\nStandardInput=file:/dev/nvidia3\\nExecStart=/bin/sleep infinity\\n' "
         "> /etc/systemd/system/train.service; systemctl daemon-reload; systemctl start train")
# The versions that module, nvidia-smi, DKMS and packages tell, without repetitions.
TRUTH = """{ cat /sys/module/nvidia/version
nvidia-smi --query-gpu=driver_version --format=csv,noheader
dkms status -k $(uname -r) | grep -w installed | sed 's,nvidia/,,;s/[,:].*//'
dpkg-query -W -f '${Version}\\n' nvidia-driver-cuda libnvidia-ml1 nvidia-fabricmanager | sed s/-1$//; } | sort -u"""


class State(NamedTuple):
    """make: a script that creates the initial state on a host with the new driver. wanted: the options of the run;
    steps: the beginnings of steps that the plan has among others, the first of which is its first step."""

    make: str
    wanted: dict[str, Any]
    steps: list[str]


STATES = {
    "drifted in all that needs no other driver": State(
        "systemctl disable --now nvidia-persistenced; dkms uninstall nvidia/@NEW@ -k $(uname -r); "
        "sed -i s/Suites/suites/ /etc/apt/sources.list.d/gpuops-cuda.sources; "
        "echo '# mine' >> /usr/local/lib/gpuops/python/pynvml.py; rm /etc/modules-load.d/gpuops-nvidia.conf",
        {"version": NEW}, ["add repository", "list modules", "build modules", "install file",
                           "enable and start service: nvidia-persistenced"]),
    "other version and flavour": State("true", {"version": OLD, "kernel_module_type": "proprietary"},
                                       ["unload modules", "install packages"]),
    "module loaded without packages": State(f"dpkg --purge --force-all {PACKAGES}", {"version": NEW},
                                            ["refresh package"]),
    "packages of another version under the module": State(
        "apt-get install -y --allow-downgrades nvidia-driver-pinning-@OLD@ && apt-get install -y --allow-downgrades "
        "nvidia-driver-cuda=@OLD@-1 nvidia-kernel-open-dkms=@OLD@-1 nvidia-persistenced=@OLD@-1 "
        "nvidia-fabricmanager=@OLD@-1 libnvidia-nscq=@OLD@-1", {"version": OLD}, ["unload modules"]),
    "interrupted transaction": State(
        "cd /tmp && apt-get download nvidia-smi=@NEW@-1 && dpkg --unpack nvidia-smi_@NEW@-1_*.deb && rm *.deb",
        {"version": NEW}, ["repair package database"]),
    "nouveau drives the GPUs": State(
        f"{RMMOD}; rm /etc/modprobe.d/gpuops-nouveau.conf; touch /var/lib/gpulab/faults/nouveau; modprobe nouveau",
        {"version": NEW}, ["deny nouveau", "unload conflicting module: nouveau", "load module: nvidia"]),
}


@pytest.fixture(scope="module")
def host() -> Iterator[DriverHost]:
    """A host in a separate lab."""
    with own_lab("switch", "gpu-s1=a100-80:8") as lab:
        yield DriverHost(lab, "gpu-s1")


@pytest.fixture(scope="module")
def clean(host: DriverHost) -> list[str]:
    """The initial state of the host."""
    return host.fresh_state()


def play(version: str = NEW, level: str = "idle", check: bool = False, first: str = "", then: str = "",
         **wanted: Any) -> Play:
    """Runs the role with options of the module."""
    options = {"version": version, "disruption": level, **wanted}
    return Play({f"driver_{key}": value for key, value in options.items()}, check=check, first=first, then=then)


@pytest.fixture(scope="module")
def installed(host: DriverHost, clean: list[str]) -> list[Done]:
    """The state C(new) of the host, which has the new driver: check mode, the run and one more on a bare host."""
    host.start()
    runs = host.run(play(check=True, then=host.state_script), play(then=TRUTH), play())
    host.save("new")
    return runs


@pytest.fixture
def at_work(host: DriverHost, installed: list[Done]) -> DriverHost:
    """The host with the new driver loaded and its services running."""
    host.start("new")
    return host


def done(host: DriverHost, run: Done) -> dict[str, Any]:
    """The result of the module of a run that succeeded."""
    assert run.rc == 0, run.output
    return run.result(host.name, "nvidia_driver")


def failed(host: DriverHost, run: Done) -> dict[str, Any]:
    """The result of the module of a run that failed with only this error."""
    host.refused(run)
    return run.result(host.name, "nvidia_driver")


def ids(steps: list[dict[str, Any]]) -> list[str]:
    return [step["id"] for step in steps]


def task(host: DriverHost, **options: Any) -> dict[str, Any]:
    """The result of one task with the module."""
    path = user.HOME / f"task-{os.getpid()}.json"
    path.write_text(json.dumps([{"hosts": host.name, "gather_facts": False, "tasks": [
        {"gpuops.nvidia.nvidia_driver": options}]}]))
    run = user.ansible("ansible-playbook", *(f"-i{inventory}" for inventory in host.lab.hosts), str(path))
    path.unlink()
    return run.result(host.name, "nvidia_driver")


def active(host: DriverHost, *units: str) -> list[str]:
    return host.sh(f"systemctl is-active {' '.join(units)} || true").split()


def background(host: DriverHost, work: str, opens: str = "/dev/null") -> str:
    """Starts a program that belongs to no service and waits until its work is done; returns its process id."""
    code = f"import fcntl, os, time; {work}; print(os.getpid(), flush=True); time.sleep(3600)"
    return host.sh(f"mkfifo /run/said; setsid python3 -c {shlex.quote(code)} < {opens} > /run/said 2>&1 & "
                   "timeout 60 head -n 1 /run/said").strip()


def test_from_nothing_as_check_mode_said(host: DriverHost, installed: list[Done], clean: list[str]) -> None:
    check, run, again = installed
    result = done(host, run)
    assert ids(result["plan"]) == ids(done(host, check)["plan"])
    assert result["plan"][0]["action"] == "add repository" and check.said.splitlines() == clean
    assert (result["pending"], result["reasons"], run.said.split()) == ([], [], [NEW])
    host.untouched(again)


def test_the_gathered_state_as_options_changes_nothing(at_work: DriverHost) -> None:
    before = at_work.state()
    result = task(at_work, state="gathered")
    assert not result["changed"] and at_work.state() == before
    wanted = result["gathered"]
    assert {key: wanted[key] for key in ("version", "kernel_module_type", "source", "persistenced", "fabric")} == {
        "version": NEW, "kernel_module_type": "open", "source": "cuda_repository", "persistenced": True,
        "fabric": "auto"}
    assert result["packages"]["libnvidia-ml1"] == f"{NEW}-1" and not result["reboot_required"]
    again = task(at_work, **wanted)
    assert "plan" in again, again["msg"]
    assert (again["changed"], again["plan"], again["pending"], again["reasons"]) == (False, [], [], [])
    assert at_work.state() == before


def test_a_bare_host_is_gathered_as_absent(host: DriverHost, clean: list[str]) -> None:
    host.start()
    assert task(host, state="gathered")["gathered"] == {"state": "absent"}
    assert "version cannot be set with state gathered" in task(host, state="gathered", version=NEW)["msg"]
    assert host.state() == clean


@pytest.mark.parametrize("name", STATES)
def test_check_mode_names_the_steps_of_the_run(at_work: DriverHost, name: str) -> None:
    state = STATES[name]
    at_work.sh(state.make.replace("@NEW@", NEW).replace("@OLD@", OLD))
    before = at_work.state()
    check, run = at_work.run(play(check=True, then=at_work.state_script, **state.wanted),
                             play(then=TRUTH, **state.wanted))
    said, result = ids(done(at_work, check)["plan"]), done(at_work, run)
    assert check.said.splitlines() == before
    assert ids(result["plan"]) == said and said[0].startswith(state.steps[0])
    assert all(any(step.startswith(wanted) for step in said) for wanted in state.steps), said
    assert (result["pending"], result["reasons"], run.said.split()) == ([], [], [state.wanted["version"]])


def test_a_service_that_holds_a_gpu_waits_for_drain_and_runs_again(at_work: DriverHost) -> None:
    at_work.sh(f"{TRAIN}; modprobe nvidia-drm")
    before = at_work.state()
    waits, run = at_work.run(play(OLD, then=at_work.state_script), play(OLD, "drain", then=TRUTH))
    waiting, result = done(at_work, waits), done(at_work, run)
    assert not waiting["changed"] and waits.said.splitlines() == before
    assert waiting["pending"][0]["pending_reason"].startswith("held by train.service; ")
    assert [(one["name"], one["unit"], one["container"]) for one in waiting["holders"]] == [
        ("sleep", "train.service", None)]
    assert result["plan"][0]["id"] == "unload modules: nvidia_uvm nvidia_drm nvidia_modeset nvidia"
    assert ids(result["plan"])[-1] == "start stopped service again: train.service"
    assert run.said.split() == [OLD] and "nvidia_drm" in result["driver"]["after"]["modules"]
    assert active(at_work, "train", "nvidia-fabricmanager", "nvidia-persistenced") == ["active"] * 3


def test_others_processes_are_named_and_never_stopped(at_work: DriverHost) -> None:
    pid = int(background(at_work, "pass", "/dev/nvidia2"))
    before = at_work.state()
    for run in at_work.run(play(OLD, "never"), play(OLD, "idle"), play(OLD, "drain", then=TRUTH)):
        result = done(at_work, run)
        assert not result["changed"] and result["pending"] and not result["reboot_required"]
        assert f"in use by python3 (pid {pid}" in result["pending"][0]["pending_reason"]
        assert [one["pid"] for one in result["holders"]] == [pid]
    assert run.said.split() == [NEW] and at_work.state() == before


def test_a_reboot_loads_what_was_held(at_work: DriverHost) -> None:
    background(at_work, "pass", "/dev/nvidia2")
    run, = at_work.run(play(OLD, "reboot", then=TRUTH))
    first, last = (line["result"] for line in run.of(at_work.name) if line["action"].endswith(".nvidia_driver"))
    assert first["reboot_required"] and "install packages" in " ".join(ids(first["plan"]))
    assert ids(first["pending"])[0].startswith("unload modules")
    assert (last["plan"], last["pending"], run.said.split()) == ([], [], [OLD])
    assert "gpuops.nvidia.driver : Reboot the host" in run.changed(at_work.name)


def test_a_failed_build_returns_to_the_former_driver(at_work: DriverHost) -> None:
    at_work.sh(f"{TRAIN}; echo 'MAKE[0]=\"echo nv.c: error: no such thing; false\"' > /etc/dkms/nvidia-{OLD}.conf")
    before = at_work.state()
    run, again = at_work.run(play(OLD, "drain", then=TRUTH), play())
    result = failed(at_work, run)
    assert result["error"]["rolled_back"] == NEW and "nv.c: error: no such thing" in result["msg"]
    assert f"The former driver {NEW} is restored." in result["msg"]
    assert run.said.split() == [NEW] and at_work.state() == before
    assert active(at_work, "train", "nvidia-fabricmanager", "nvidia-persistenced") == ["active"] * 3
    at_work.untouched(again)


def test_a_service_that_does_not_start_returns_to_the_former_driver(at_work: DriverHost) -> None:
    folder = "/etc/systemd/system/nvidia-persistenced.service.d"
    picky = f"[Service]\\nExecStartPre=/bin/grep -q {NEW} /sys/module/nvidia/version\\n"
    at_work.sh(f"mkdir -p {folder}; printf '{picky}' > {folder}/only.conf; systemctl daemon-reload")
    run, = at_work.run(play(OLD, then=TRUTH))
    result = failed(at_work, run)
    assert result["error"]["rolled_back"] == NEW and "nvidia-persistenced.service" in result["msg"]
    assert run.said.split() == [NEW] and active(at_work, "nvidia-persistenced") == ["active"]


def test_a_failed_way_back_names_both_reasons_and_the_next_run_goes_on(at_work: DriverHost) -> None:
    with at_work.fault("build-fails", at_work.name):
        run, = at_work.run(play(OLD))
    result = failed(at_work, run)
    assert result["error"]["rolled_back"] is None and "too few arguments" in result["error"]["rollback_error"]
    assert f"The rollback to driver {NEW} failed, too" in result["msg"] and OLD in result["msg"]
    run, = at_work.run(play(OLD, then=TRUTH))
    done(at_work, run)
    assert run.said.split() == [OLD]
    assert active(at_work, "nvidia-fabricmanager", "nvidia-persistenced") == ["active"] * 2


def test_the_former_driver_comes_back_and_stays(at_work: DriverHost) -> None:
    """Also from a driver of the other module type, with check mode and a second run; the record outlives both."""
    back = Play({"driver_state": "rolled_back"}, then=TRUTH)
    none, switch, check, run, again = at_work.run(
        back, play(OLD, kernel_module_type="proprietary", then=TRUTH), replace(back, check=True), back, back)
    assert "nothing to return to" in at_work.refused(none)
    former = {"version": NEW, "kernel_module_type": "open", "source": "cuda_repository", "installation": "compute-only"}
    assert done(at_work, switch)["former"] == former and switch.said.split() == [OLD]
    result = done(at_work, run)
    assert ids(result["plan"]) == ids(done(at_work, check)["plan"]) and result["driver"]["after"]["flavour"] == "open"
    assert (result["former"], result["version"], run.said.split(), check.said.split()) == (former, NEW, [NEW], [OLD])
    at_work.untouched(again)
    assert task(at_work, state="gathered")["former"] == former
    assert "version cannot be set with state rolled_back" in task(at_work, state="rolled_back", version=OLD)["msg"]


def test_a_fleet_goes_back_and_reports_no_drift(at_work: DriverHost) -> None:
    """The plan has the version of the former driver, although the policy has another one."""
    wanted = {"gpu_policy": {"driver": {"version": OLD}}, "gpu_disruption": "idle",
              "gpu_placement": {**dict.fromkeys((component.name for component in components.ON_HOSTS), "none"),
                                "driver": "host"}}

    def site(*words: str, playbook: str = "site", **variables: Any) -> user.Run:
        return user.playbook(playbook, at_work.lab.hosts, *words, **wanted, **variables)

    refused = site("--tags", "driver", driver_state="rolled_back")
    assert refused.rc != 0 and "no former driver of this host is recorded" in refused.output
    assert site().rc == 0
    assert at_work.sh(TRUTH).split() == [OLD]
    check = site("--check", driver_state="rolled_back")
    assert check.rc == 0 and f"{OLD} open → {NEW} open" in check.output, check.output
    run, again = (site("--tags", "driver,verify", driver_state="rolled_back") for _run in range(2))
    assert run.rc == again.rc == 0, run.output + again.output
    assert run.steps(at_work.name) == check.steps(at_work.name) and again.changed(at_work.name) == []
    assert at_work.sh(TRUTH).split() == [NEW]
    assert site(playbook="verify", driver_state="rolled_back").rc == 0
    forward = site("--check")
    assert f"{NEW} open → {OLD} open" in forward.output  # the policy applies again


def test_the_packages_of_a_desktop_come_and_go(at_work: DriverHost) -> None:
    """In the same version, without a reload and below the level idle, exactly as check mode said."""
    before, loaded = at_work.state(), at_work.sh("stat -c %i /sys/module/nvidia")
    full, compute = (play(level="never", installation=name, then=f"dpkg -l nvidia-open | grep -c ^ii; {TRUTH}")
                     for name in ("full", "compute-only"))
    said, run, again, said_back, back, last = at_work.run(
        replace(full, check=True), full, full, replace(compute, check=True), compute, compute)
    assert ids(done(at_work, run)["plan"]) == ids(done(at_work, said)["plan"]) == [
        "refresh package lists: cuda", f"install packages: nvidia-open={NEW}-1"]
    assert run.said.split() == ["1", NEW] and done(at_work, run)["former"]["installation"] == "compute-only"
    at_work.untouched(again)
    assert ids(done(at_work, back)["plan"]) == ids(done(at_work, said_back)["plan"]) == [
        "purge packages: nvidia-driver nvidia-driver-libs nvidia-open"]
    assert back.said.split() == ["0", NEW]
    at_work.untouched(last)
    assert (at_work.state(), at_work.sh("stat -c %i /sys/module/nvidia")) == (before, loaded)


def test_a_lost_gpu_does_not_end_the_run(at_work: DriverHost) -> None:
    at_work.sh("systemctl stop nvidia-persistenced")
    with at_work.fault("gpu-lost:1", at_work.name):
        run, = at_work.run(play())
    assert ids(done(at_work, run)["plan"]) == ["enable and start service: nvidia-persistenced.service"]
    assert active(at_work, "nvidia-persistenced") == ["active"] and "GPU is lost" in run.output


# What a host is like, how it is mended, what is wanted of the driver, what is said.
REFUSED: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "no room": ("mkdir -p /var/lib/dkms; mount -t tmpfs -o size=20m none /var/lib/dkms", "umount /var/lib/dkms", {},
                "/var/lib/dkms has 20 MiB left"),
    "read-only": ("mount --bind /usr /usr; mount -o remount,ro,bind /usr", "umount -l /usr", {},
                  "/usr is mounted read-only"),
    "no such branch for open modules": ("", "", {"version": "510.108.03", "kernel_module_type": "open"}, "branch 510"),
    "no network and no mirror": ("", "", {"repository_url": "http://127.0.0.1:9/none/"}, "127.0.0.1:9"),
    "no driver of that branch": ("", "", {"version": "", "branch": "570"}, "branch 570"),
}


@pytest.fixture(scope="module")
def refused(host: DriverHost, clean: list[str]) -> Refused:
    """All refused cases, in check mode and without it, on one bare host."""
    host.start()
    plays = {}
    for name, (make, mend, wanted, _said) in REFUSED.items():
        plays[f"{name}, check"] = play(check=True, first=make, **wanted)
        plays[name] = play(then=mend, **wanted)
    runs, after = host.run_each(plays), host.state()
    if after == clean:
        host.left()
    return Refused(runs, clean, after)


@pytest.mark.parametrize("name", REFUSED)
def test_refused_before_anything_is_changed(host: DriverHost, refused: Refused, name: str) -> None:
    for case in (f"{name}, check", name):
        assert REFUSED[name][3] in host.refused(refused.runs[case])


def test_what_is_refused_changes_nothing(refused: Refused) -> None:
    assert refused.after == refused.before


def test_a_lock_of_another_package_manager_is_waited_for_and_named(host: DriverHost, clean: list[str]) -> None:
    host.start()
    pid = background(host, "lock = open('/var/lib/dpkg/lock-frontend', 'a'); fcntl.lockf(lock, fcntl.LOCK_EX)")
    run, = host.run(play(lock_timeout=3))
    assert f"held by process {pid}" in host.refused(run) and "over 3 s" in host.refused(run)
    assert host.state() == clean


def test_a_failed_first_install_leaves_nothing(host: DriverHost, clean: list[str]) -> None:
    host.start()
    with host.fault("build-fails", host.name):
        run, = host.run(play())
    result = failed(host, run)
    assert result["error"]["rolled_back"] is None and "is removed again" in result["msg"]
    assert host.state() == clean
