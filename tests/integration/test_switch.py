# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Switching the driver: from any state as check mode said, with holders, services, reboots, failures and ways back.

The tests go on from each other's hosts, so that a state costs a command and not a host.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from tests.integration import user
from tests.integration.conftest import LabHosts, own_lab

HOST = "gpu-s1"
NEW, OLD = "595.91.07", "580.126.20"
RMMOD = ("systemctl stop nvidia-fabricmanager nvidia-persistenced\n"
         "rmmod nvidia_uvm; rmmod nvidia_modeset; rmmod nvidia\n")
PACKAGES = "$(dpkg-query -W -f '${Package} ' '*nvidia*' 'libcuda*')"
# A service of the system that holds a GPU, and one that is the user's own.
TRAIN = "[Service]\nExecStart=/bin/sh -c 'exec sleep infinity < /dev/nvidia3'\n"
LOOSE = ("setsid sleep infinity < /dev/nvidia2 > /dev/null 2>&1 & echo $! > /run/loose; "
         "until grep -qsx sleep /proc/$!/comm; do sleep 0.1; done")
# systemd does not wait until its shell has opened the GPU and become another program.
START = ("systemctl daemon-reload; systemctl start train; until grep -qsx sleep "
         "/proc/$(systemctl show -p MainPID --value train)/comm; do sleep 0.1; done")


class State(NamedTuple):
    """make: a script that makes the state of a host with the last one's driver. wanted: of the run; first: the action
    that its plan begins with, empty where it has nothing to do."""

    make: str
    wanted: dict[str, Any]
    first: str


STATES = {
    "bare": State("true", {"version": NEW}, "add repository"),
    "converged": State("true", {"version": NEW}, ""),
    "service off": State("systemctl disable --now nvidia-persistenced", {"version": NEW}, "enable and start service"),
    "repository file edited": State("sed -i s/Suites/suites/ /etc/apt/sources.list.d/gpuops-cuda.sources",
                                    {"version": NEW}, "add repository"),
    "other version": State("true", {"version": OLD}, "unload modules"),
    "other flavour": State("true", {"version": OLD, "kernel_module_type": "proprietary"}, "unload modules"),
    "built for no kernel": State(f"dkms uninstall nvidia/{OLD} -k $(uname -r)",
                                 {"version": OLD, "kernel_module_type": "proprietary"}, "build modules"),
    "packages without a loaded module": State(RMMOD, {"version": OLD, "kernel_module_type": "proprietary"},
                                              "load module"),
    "module loaded without packages": State(f"dpkg --purge --force-all {PACKAGES}",
                                            {"version": OLD, "kernel_module_type": "proprietary"}, "refresh package"),
    "packages of another version under the module": State(
        f"apt-get install -y --allow-downgrades nvidia-driver-pinning-{NEW} && apt-get install -y --allow-downgrades "
        f"nvidia-driver-cuda={NEW}-1 nvidia-kernel-open-dkms={NEW}-1 nvidia-persistenced={NEW}-1 "
        f"nvidia-fabricmanager={NEW}-1 libnvidia-nscq={NEW}-1", {"version": NEW}, "unload modules"),
    "interrupted transaction": State(
        f"cd /tmp && apt-get download nvidia-smi={NEW}-1 && dpkg --unpack nvidia-smi_{NEW}-1_*.deb && rm *.deb",
        {"version": NEW}, "repair package database"),
    "nouveau drives the GPUs": State(RMMOD + "rm /etc/modprobe.d/gpuops-nouveau.conf; touch "
                                     "/var/lib/gpulab/faults/nouveau; modprobe nouveau", {"version": NEW},
                                     "deny nouveau"),
    "files of ours changed": State("echo '# mine' >> /usr/local/lib/gpuops/python/pynvml.py; "
                                   "rm /etc/modules-load.d/gpuops-nvidia.conf", {"version": NEW}, "list modules"),
}


@pytest.fixture(scope="module")
def lab() -> Iterator[LabHosts]:
    """A lab of its own, for these tests take long and run beside the others."""
    with own_lab("switch", f"{HOST}=a100-80:8") as hosts:
        yield hosts


@pytest.fixture(scope="module")
def bare(lab: LabHosts) -> list[str]:
    """The snapshot of the host as it is at first."""
    return lab.snapshot(HOST)


def role(lab: LabHosts, *words: str, level: str = "idle", tasks: str = "host", **wanted: Any) -> user.Run:
    """Runs the role with options of the module."""
    variables = {f"driver_{key}": value for key, value in {**wanted, "disruption": level}.items()}
    return user.playbook(user.role("driver", tasks), lab.hosts, "--limit", HOST, *words, **variables)


def done(run: user.Run) -> dict[str, Any]:
    """The module's result of a run that ended well."""
    assert run.rc == 0, run.output
    return run.result(HOST, "nvidia_driver")


def failed(run: user.Run) -> dict[str, Any]:
    """The module's result of a run that failed with its one error."""
    assert run.rc != 0 and len(run.errors()) == 1, run.output
    return run.result(HOST, "nvidia_driver")


def ids(steps: list[dict[str, Any]]) -> list[str]:
    return [step["id"] for step in steps]


def truth(lab: LabHosts) -> list[str]:
    """The versions that module, nvidia-smi, DKMS and packages tell, without repetitions."""
    return lab.sh(HOST, "{ cat /sys/module/nvidia/version; "
                        "nvidia-smi --query-gpu=driver_version --format=csv,noheader; "
                        "dkms status -k $(uname -r) | grep -w installed | sed 's,nvidia/,,;s/[,:].*//'; "
                        "dpkg-query -W -f '${Version}\\n' nvidia-driver-cuda libnvidia-ml1 nvidia-fabricmanager | "
                        "sed s/-1$//; } | sort -u").split()


def states(lab: LabHosts, *units: str) -> list[str]:
    return lab.sh(HOST, f"systemctl is-active {' '.join(units)} || true").split()


@pytest.mark.parametrize("name", STATES)
def test_check_mode_names_the_steps_of_the_run(lab: LabHosts, bare: list[str], name: str) -> None:
    state = STATES[name]
    lab.sh(HOST, state.make)
    before = lab.snapshot(HOST)
    said = ids(done(role(lab, "--check", **state.wanted))["plan"])
    assert lab.snapshot(HOST) == before
    result = done(role(lab, **state.wanted))
    assert ids(result["plan"]) == said
    assert (said[0] if said else "").startswith(state.first) and bool(said) == bool(state.first), said
    assert (result["pending"], result["reasons"], truth(lab)) == ([], [], [state.wanted["version"]])
    if "nouveau" in name:
        lab("fault", HOST, "nouveau", "off")


def test_nothing_is_left_to_do(lab: LabHosts, bare: list[str]) -> None:
    assert done(role(lab, version=NEW))["plan"] == []


def test_a_service_that_holds_a_gpu_waits_for_drain_and_runs_again(lab: LabHosts) -> None:
    lab.sh(HOST, f"printf '%s' \"{TRAIN}\" > /etc/systemd/system/train.service; {START}; "
                 "modprobe nvidia-drm")
    before = lab.snapshot(HOST)
    waiting = done(role(lab, version=OLD))
    assert not waiting["changed"] and lab.snapshot(HOST) == before
    assert waiting["pending"][0]["pending_reason"].startswith("held by train.service; ")
    assert [(one["name"], one["unit"], one["container"]) for one in waiting["holders"]] == [
        ("sleep", "train.service", None)]
    result = done(role(lab, version=OLD, level="drain"))
    assert result["plan"][0]["id"] == "unload modules: nvidia_uvm nvidia_drm nvidia_modeset nvidia"
    assert ids(result["plan"])[-1] == "start stopped service again: train.service"
    assert truth(lab) == [OLD] and "nvidia_drm" in result["driver"]["after"]["modules"]
    assert states(lab, "train", "nvidia-fabricmanager", "nvidia-persistenced") == ["active"] * 3


def test_others_processes_are_named_and_never_stopped(lab: LabHosts) -> None:
    lab.sh(HOST, f"systemctl stop train; rmmod nvidia_drm; {LOOSE}")
    pid = int(lab.sh(HOST, "cat /run/loose"))
    before = lab.snapshot(HOST)
    for level in ("never", "idle", "drain"):
        result = done(role(lab, version=NEW, level=level))
        assert not result["changed"] and result["pending"] and not result["reboot_required"]
        assert f"in use by sleep (pid {pid}" in result["pending"][0]["pending_reason"]
        assert [one["pid"] for one in result["holders"]] == [pid]
    assert lab.snapshot(HOST) == before and truth(lab) == [OLD]


def test_a_reboot_loads_what_was_held(lab: LabHosts) -> None:
    run = role(lab, version=NEW, level="reboot")
    first, last = (line["result"] for line in run.of(HOST) if line["action"].endswith(".nvidia_driver"))
    assert first["reboot_required"] and "install packages" in " ".join(ids(first["plan"]))
    assert ids(first["pending"])[0].startswith("unload modules")
    assert (last["plan"], last["pending"], truth(lab)) == ([], [], [NEW])
    assert "gpuops.nvidia.driver : Reboot the host" in run.changed(HOST)


def test_a_failed_build_returns_to_the_former_driver(lab: LabHosts) -> None:
    lab.sh(HOST, f"printf '%s' \"{TRAIN}\" > /etc/systemd/system/train.service; {START}; "
                 f"echo 'MAKE[0]=\"echo nv.c: error: no such thing; false\"' > "
                 f"/etc/dkms/nvidia-{OLD}.conf")
    before = lab.snapshot(HOST)
    result = failed(role(lab, version=OLD, level="drain"))
    assert result["error"]["rolled_back"] == NEW and "nv.c: error: no such thing" in result["msg"]
    assert f"The former driver {NEW} is back." in result["msg"]
    assert truth(lab) == [NEW] and lab.snapshot(HOST) == before
    assert states(lab, "train", "nvidia-fabricmanager", "nvidia-persistenced") == ["active"] * 3
    lab.sh(HOST, f"systemctl stop train; rm /etc/dkms/nvidia-{OLD}.conf /etc/systemd/system/train.service")
    assert done(role(lab, version=NEW))["plan"] == []


def test_a_service_that_does_not_start_returns_to_the_former_driver(lab: LabHosts) -> None:
    folder = "/etc/systemd/system/nvidia-persistenced.service.d"
    picky = f"[Service]\\nExecStartPre=/bin/grep -q {NEW} /sys/module/nvidia/version\\n"
    lab.sh(HOST, f"mkdir -p {folder}; printf '{picky}' > {folder}/only.conf; systemctl daemon-reload")
    result = failed(role(lab, version=OLD))
    assert result["error"]["rolled_back"] == NEW and "nvidia-persistenced.service" in result["msg"]
    assert truth(lab) == [NEW] and states(lab, "nvidia-persistenced") == ["active"]
    lab.sh(HOST, f"rm -r {folder}; systemctl daemon-reload")


def test_a_failed_way_back_names_both_reasons_and_the_next_run_goes_on(lab: LabHosts) -> None:
    lab("fault", HOST, "build-fails", "on")
    result = failed(role(lab, version=OLD))
    assert result["error"]["rolled_back"] is None and "too few arguments" in result["error"]["rollback_error"]
    assert f"Going back to driver {NEW} failed as well" in result["msg"] and OLD in result["msg"]
    lab("fault", HOST, "build-fails", "off")
    done(role(lab, version=OLD))
    assert truth(lab) == [OLD]
    assert states(lab, "nvidia-fabricmanager", "nvidia-persistenced") == ["active"] * 2


REFUSED: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "no room": ("mkdir -p /var/lib/dkms; mount -t tmpfs -o size=20m none /var/lib/dkms", "umount /var/lib/dkms", {},
                "/var/lib/dkms has 20 MiB left"),
    "read-only": ("mount --bind /usr /usr; mount -o remount,ro,bind /usr", "umount -l /usr", {},
                  "/usr is mounted read-only"),
    "no such branch for open modules": ("true", "true", {"version": "510.108.03", "kernel_module_type": "open"},
                                        "branch 510"),
    "no network and no mirror": ("true", "true", {"repository_url": "http://127.0.0.1:9/none/"}, "127.0.0.1:9"),
    "no driver of that branch": ("true", "true", {"branch": "570"}, "branch 570"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_before_anything_is_changed(lab: LabHosts, bare: list[str], name: str) -> None:
    make, mend, options, expected = REFUSED[name]
    wanted = options if "branch" in options else {"version": NEW, **options}
    if name == next(iter(REFUSED)):
        lab("reset", HOST)
    lab.sh(HOST, make)
    for words in ((), ("--check",)):
        assert expected in failed(role(lab, *words, **wanted))["msg"]
    lab.sh(HOST, mend)
    assert lab.snapshot(HOST) == bare


def test_a_lock_of_another_package_manager_is_waited_for_and_named(lab: LabHosts, bare: list[str]) -> None:
    hold = ("import fcntl, os, time; lock = open('/var/lib/dpkg/lock-frontend', 'a'); "
            "fcntl.lockf(lock, fcntl.LOCK_EX); print(os.getpid(), flush=True); time.sleep(600)")
    pid = lab.sh(HOST, f"setsid python3 -c \"{hold}\" > /run/locker 2>&1 & "
                       "until grep . /run/locker; do sleep 0.1; done").strip()
    result = failed(role(lab, version=NEW, lock_timeout=3))
    assert f"held by process {pid}" in result["msg"] and "over 3 s" in result["msg"]
    lab.sh(HOST, f"kill {pid}; rm /run/locker")
    assert lab.snapshot(HOST) == bare


def test_a_failed_first_install_leaves_nothing(lab: LabHosts, bare: list[str]) -> None:
    lab("fault", HOST, "build-fails", "on")
    result = failed(role(lab, version=NEW))
    lab("fault", HOST, "build-fails", "off")
    assert result["error"]["rolled_back"] is None and "is gone again" in result["msg"]
    assert lab.snapshot(HOST) == bare
