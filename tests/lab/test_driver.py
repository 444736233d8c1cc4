# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver is installed by hand as the guide of the vendor describes: what the product automates must also be
possible without it."""

from __future__ import annotations

from tests.lab.conftest import Host

UNLOAD = "systemctl stop nvidia-persistenced; modprobe -r nvidia-uvm nvidia-drm nvidia-modeset nvidia"


def test_wrong_key_is_refused_by_apt(host: Host) -> None:
    host.add_repository()
    host.sh("head -c 200 /dev/zero > /usr/share/keyrings/cuda.gpg")
    assert "NO_PUBKEY" in host.fails("apt-get update --error-on=any")


def test_repository_down(host: Host) -> None:
    host.add_repository()
    host.fault("down", "on", "repo")
    try:
        assert "503" in host.fails("apt-get update --error-on=any")
    finally:
        host.fault("down", "off", "repo")
    host.sh("apt-get update --error-on=any")


def test_install_and_load(host: Host) -> None:
    before = host.snapshot()
    host.add_repository()
    host.install("nvidia-driver-pinning-580")
    host.install("nvidia-open")
    assert host.sh("dkms status").startswith("nvidia/580.126.20, ")
    assert host.sh("dkms status").endswith(": installed")
    assert host.sh("modinfo -F license nvidia") == "Dual MIT/GPL"
    host.sh("modprobe nvidia")
    assert "Open Kernel Module" in host.sh("cat /proc/driver/nvidia/version")
    assert host.sh("cat /sys/module/nvidia/version") == "580.126.20"
    assert len(host.sh("nvidia-smi -L").splitlines()) == 8
    assert host.sh("readlink /sys/bus/pci/devices/0000:07:00.0/driver").endswith("/nvidia")
    assert set(before) - set(host.snapshot()) <= {line for line in before if line.startswith("sha256 ")}


def test_users_hold_the_module(host: Host) -> None:
    host.sh("modprobe nvidia-uvm; systemctl start nvidia-persistenced")
    assert "in use by: nvidia" in host.fails("rmmod nvidia")
    host.sh("modprobe -r nvidia-uvm nvidia-modeset")
    assert "is in use" in host.fails("modprobe -r nvidia")
    host.sh(UNLOAD)
    host.sh("modprobe nvidia && gpusim client add --gpu 3 trainer")
    assert "in use" in host.fails(UNLOAD)
    host.sh("gpusim client remove all")
    host.fault("module-in-use", "on")
    assert "in use" in host.fails(UNLOAD)
    host.fault("module-in-use", "off")
    host.sh(UNLOAD)
    assert "nvidia" not in host.sh("lsmod")
    assert host.fails("nvidia-smi")


def test_an_unload_beside_a_refresh_leaves_nothing(host: Host) -> None:
    host.sh("""touch /run/go; (while [ -e /run/go ]; do /usr/lib/gpulab/refresh; done) & for _ in $(seq 10); do
        modprobe nvidia-uvm && rmmod nvidia-uvm && [ ! -e /sys/module/nvidia_uvm ] || exit 1; done; rm /run/go; wait""")
    host.sh(UNLOAD)


def test_secure_boot(host: Host) -> None:
    host.fault("secure-boot", "on")
    assert "Key was rejected by service" in host.fails("modprobe nvidia")
    host.fault("secure-boot", "off")
    host.sh("modprobe nvidia")


def test_reboot_loads_the_driver(host: Host) -> None:
    host.reboot()
    assert len(host.sh("nvidia-smi -L").splitlines()) == 8
    assert host.sh("systemctl is-active nvidia-persistenced") == "active"


def test_mig_shows_its_capabilities(host: Host) -> None:
    """A unit notices the changes: two instances of each kind have four files and, with the two of the whole GPU, six
    device nodes."""
    host.sh("nvidia-smi -i 0 -mig 1 && nvidia-smi mig -i 0 -cgi 9,9 -C")
    host.until("[ $(ls /dev/nvidia-caps | wc -l) = 6 ]")
    host.until("[ $(find /proc/driver/nvidia/capabilities/gpu0 -name access | wc -l) = 4 ]")
    host.sh("nvidia-smi mig -i 0 -dci && nvidia-smi mig -i 0 -dgi && nvidia-smi -i 0 -mig 0")
    host.until("[ $(ls /dev/nvidia-caps | wc -l) = 2 ]")


def test_gpu_faults_are_forwarded(host: Host) -> None:
    host.fault("gpu-lost:1", "on")
    assert "lost" in host.lab("exec", "gpu-t1", "nvidia-smi -L", check=False).stdout.lower()
    host.fault("gpu-lost", "off")
    assert len(host.sh("nvidia-smi -L").splitlines()) == 8


def test_branch_change_by_pinning(host: Host) -> None:
    host.install("nvidia-driver-pinning-595.91.07")
    host.sh("DEBIAN_FRONTEND=noninteractive apt-get dist-upgrade -qq -y --no-install-recommends "
            "--autoremove --purge 2>&1")
    assert host.sh("dkms status").startswith("nvidia/595.91.07, ")
    assert host.sh("cat /sys/module/nvidia/version") == "580.126.20"
    assert "mismatch" in host.fails("nvidia-smi")
    host.reboot()
    assert host.sh("nvidia-smi --query-gpu=driver_version --format=csv,noheader -i 0") == "595.91.07"


def test_build_failure_is_silent_in_apt(host: Host) -> None:
    host.sh(UNLOAD)
    host.fault("build-fails", "on")
    host.sh("DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --reinstall nvidia-kernel-open-dkms 2>&1")
    assert "installed" not in host.sh("dkms status")
    host.fault("build-fails", "off")
    host.sh("dkms install nvidia/595.91.07 2>&1")
    assert host.sh("dkms status").endswith("installed")


def test_purge_leaves_the_first_state(host: Host) -> None:
    host.sh("apt-get purge -qq -y --autoremove 'nvidia*' 'libnvidia*' 'libcuda1' 'firmware-nvidia*' 2>&1")
    host.sh("rm -f /etc/apt/sources.list.d/cuda.list /usr/share/keyrings/cuda.gpg")
    left = host.snapshot()
    host.lab("reset", "gpu-t1")
    assert left == host.snapshot()
