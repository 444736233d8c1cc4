# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A bare host has the documented content, and each fault has the effect that its name promises."""

from __future__ import annotations

import subprocess

import pytest

from tests.lab.conftest import HOST, Host


def ansible_ssh(host: Host) -> list[str]:
    """An ssh command with the variables of the inventory."""
    from lab.host import inventory

    values = inventory.variables(host.record)
    return ["ssh", "-o", "ControlPath=none", *values["ansible_ssh_args"].split(), "-o", "BatchMode=yes", "-i",
            values["ansible_ssh_private_key_file"], f"root@{host.record.address(HOST)}"]


def test_systemd_and_containerd_run(host: Host) -> None:
    assert host.sh("systemctl is-system-running") == "running"
    assert host.sh("systemctl is-active containerd ssh").split() == ["active", "active"]
    assert "SystemdCgroup = true" in host.sh("containerd config dump")


def test_looks_like_a_bare_gpu_host(host: Host) -> None:
    assert len(host.sh("lspci -n -d 10de: | grep ' 0302:'").splitlines()) == 8
    assert host.sh("cat /sys/bus/pci/devices/0000:07:00.0/device") == "0x20b2"
    assert host.sh("cat /sys/class/dmi/id/product_name") == "Lab GPU Server"
    assert host.sh("ls /sys/class/net/eth0/address /sys/module/loop")
    assert host.sh("od -An -t u1 /sys/firmware/efi/efivars/SecureBoot-*").split() == ["6", "0", "0", "0", "0"]
    assert "not found in directory" in host.fails("modprobe nvidia")
    assert host.fails("ls /proc/driver/nvidia; ldconfig -p | grep libnvidia-ml")


def test_nothing_shows_outside(host: Host) -> None:
    mounts = subprocess.run(["cat", "/proc/self/mountinfo"], capture_output=True, text=True, check=True).stdout
    assert " gpulab " not in mounts
    assert host.sh("grep -c ' gpulab ' /proc/self/mountinfo") != "0"


def test_what_python_imports_from_a_zip_is_compiled_once(host: Host) -> None:
    """A traceback names the zip file from which the code was imported in this run."""
    host.sh("mkdir /tmp/zips && cd /tmp/zips && printf 'def fail():\\n    raise ValueError\\n' > failing.py && "
            "python3 -m zipfile -c one.zip failing.py && cp one.zip other.zip")
    for name, before in (("one", "pass"), ("other", "import kept_code; kept_code.compile_source = None")):
        said = host.fails(f"PYTHONPATH=/tmp/zips/{name}.zip python3 -c '{before}; import failing; failing.fail()'")
        assert f'File "/tmp/zips/{name}.zip/failing.py", line 2, in fail' in said and "ValueError" in said


def test_ssh_with_the_inventory(host: Host) -> None:
    done = subprocess.run([*ansible_ssh(host), "hostname"], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == HOST


def test_unreachable(host: Host) -> None:
    host.fault("unreachable", "on")
    try:
        assert subprocess.run([*ansible_ssh(host), "true"], timeout=120, check=False, capture_output=True).returncode
    finally:
        host.fault("unreachable", "off")
    assert not subprocess.run([*ansible_ssh(host), "true"], timeout=120, check=False).returncode


def test_slow_ssh(host: Host) -> None:
    host.fault("slow-ssh", "on")
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            subprocess.run([*ansible_ssh(host), "true"], timeout=3, check=True)
    finally:
        host.fault("slow-ssh", "off")


def test_no_gpus(host: Host) -> None:
    host.fault("no-gpus", "on")
    assert not host.sh("lspci -n -d 10de:")
    host.fault("no-gpus", "off")
    assert host.sh("lspci -n -d 10de:")


def test_nouveau(host: Host) -> None:
    host.fault("nouveau", "on")
    host.fault("nouveau-in-use", "on")
    assert host.sh("readlink /sys/bus/pci/devices/0000:07:00.0/driver").endswith("/nouveau")
    assert "in use" in host.fails("rmmod nouveau")
    host.fault("nouveau-in-use", "off")
    host.reboot()
    assert "nouveau" in host.sh("lsmod")
    host.sh("modprobe -r nouveau")
    assert host.fails("readlink /sys/bus/pci/devices/0000:07:00.0/driver") == ""
    host.fault("nouveau", "off")


def test_reset_gives_the_first_state(host: Host) -> None:
    first = host.snapshot()
    host.sh("echo changed >> /etc/containerd/config.toml; touch /usr/local/left; systemctl stop containerd")
    changed = set(first) ^ set(host.snapshot())
    assert {line.split()[0] for line in changed} == {"file", "sha256", "active"}, changed
    host.lab("reset", HOST)
    assert host.snapshot() == first


def test_a_command_that_is_stopped_and_goes_on(host: Host) -> None:
    """systemd stops all processes in this way when a host shuts down; nobody must wait for them without limit."""
    assert host.sh("(sleep 0.2; kill -CONT $$) & kill -STOP $$; echo on") == "on"
