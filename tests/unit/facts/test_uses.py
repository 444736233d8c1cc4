# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host has: drivers, switches, GPU clients, runtimes."""

from __future__ import annotations

import pytest
from ansible_collections.gpuops.nvidia.tests.unit.facts import trees
from ansible_collections.gpuops.nvidia.tests.unit.facts.conftest import Host
from ansible_collections.gpuops.nvidia.tests.unit.facts.trees import UBUNTU

# -- drivers


def test_driver_of_a_container(host: Host) -> None:
    """If the root of a driver container is mounted, packages of the host do not count."""
    host.system(UBUNTU, "6.8.0-45-generic").put("/run/nvidia/driver/usr/bin/nvidia-smi")
    host.put("/sys/module/nvidia/version", "580.126.20\n")
    trees.dpkg(host.path, trees.package("nvidia-firmware", "1"))
    found = host.facts()["driver"]
    assert (found["source"], found["loaded"], found["library"]) == ("container", "580.126.20", None)


def test_driver_of_an_image(host: Host) -> None:
    """A running driver without a package and without traces of the installer was part of the image."""
    host.system("ID=cos\n", "6.1.112+").put("/sys/module/nvidia/version", "580.126.20\n")
    assert host.facts()["driver"]["source"] == "preinstalled"


DKMS = "/var/lib/dkms"


@pytest.mark.parametrize(("index", "files", "state"), [
    ("updates/dkms/nvidia.ko.xz: kernel/drm.ko\nupdates/dkms/nvidia-uvm.ko.xz: updates/dkms/nvidia.ko.xz\n",
     ["nvidia.ko.xz", "nvidia-uvm.ko.xz"], "installed"),
    ("updates/dkms/nvidia.ko.xz:\nupdates/dkms/nvidia-uvm.ko.xz: updates/dkms/nvidia.ko.xz\n",
     ["nvidia-uvm.ko.xz"], "built"),
    # depmod has run since.
    ("updates/dkms/nvidia-uvm.ko.xz: updates/dkms/nvidia.ko.xz\n", ["nvidia-uvm.ko.xz"], "built"),
    (None, [], "installed"),
], ids=["whole", "a file is gone", "it is not in the index", "no index"])
def test_modules_that_dkms_installed_and_somebody_deleted(host: Host, index: str | None, files: list[str],
                                                          state: str) -> None:
    kernel, arch = "6.8.0-45-generic", "x86_64"
    host.system(UBUNTU, kernel).link(f"{DKMS}/nvidia/kernel-{kernel}-{arch}", f"595.91.07/{kernel}/{arch}")
    for name in ("nvidia", "nvidia-uvm"):
        host.put(f"{DKMS}/nvidia/595.91.07/{kernel}/{arch}/module/{name}.ko")
    if index:
        host.put(f"/lib/modules/{kernel}/modules.dep", index)
    for name in files:
        host.put(f"/lib/modules/{kernel}/updates/dkms/{name}")
    assert [entry["state"] for entry in host.facts()["driver"]["dkms"]] == [state]


def test_dkms(host: Host) -> None:
    """Modules that are installed for one kernel and built for another, only built, or only registered; other modules
    are ignored."""
    host.system(UBUNTU, "6.8.0-45-generic")
    host.put(f"{DKMS}/nvidia/580.126.20/6.8.0-45-generic/x86_64/module/nvidia.ko")
    host.put(f"{DKMS}/nvidia/580.126.20/6.8.0-49-generic/x86_64/module/nvidia.ko")
    host.link(f"{DKMS}/nvidia/kernel-6.8.0-45-generic-x86_64", "580.126.20/6.8.0-45-generic/x86_64")
    host.put(f"{DKMS}/nvidia/580.126.20/build/log").put(f"{DKMS}/nvidia/575.57.08/source/dkms.conf")
    host.put(f"{DKMS}/gdrdrv/2.5/6.8.0-45-generic/x86_64/module/gdrdrv.ko").put(f"{DKMS}/zfs/2.2/source/x")
    host.put(f"{DKMS}/mok.pub", "key")
    assert host.facts()["driver"]["dkms"] == [
        {"name": "gdrdrv", "version": "2.5", "kernel": "6.8.0-45-generic", "state": "built"},
        {"name": "nvidia", "version": "575.57.08", "kernel": None, "state": "added"},
        {"name": "nvidia", "version": "580.126.20", "kernel": "6.8.0-45-generic", "state": "installed"},
        {"name": "nvidia", "version": "580.126.20", "kernel": "6.8.0-49-generic", "state": "built"}]


# -- fabric


@pytest.mark.parametrize(("device", "switches", "fabric"), [
    ("20b2", 6, "nvswitch"), ("20b2", 0, "none"), ("2901", 0, "nvlink5"), ("3182", 0, "nvlink5"),
    ("2941", 0, "nvlink5_rack"), ("31c3", 0, "none"), ("26b9", 0, "none"), ("ffff", 0, "none"),
])
def test_fabric(host: Host, device: str, switches: int, fabric: str) -> None:
    """A100 with and without switches, HGX B200 and B300, GB200, DGX Station, L40S, and an unknown GPU."""
    host.system(UBUNTU, "6.8.0-45-generic", device)
    for number in range(switches):
        trees.pci(host.path, f"0000:c{number}:00.0", "1af1", pci_class="0680")
    assert host.facts()["nvlink"] == {"switches": switches, "fabric": fabric}


# -- holders


IDENT = "0123456789ab" + "cd" * 26


@pytest.mark.parametrize(("group", "unit", "container"), [
    ("/system.slice/training.service", "training.service", None),
    ("/user.slice/user-1000.slice/session-3.scope", "session-3.scope", None),
    ("/user.slice/user-1000.slice/user@1000.service/app.slice/app-x.scope", "app-x.scope", None),
    (f"/system.slice/docker-{IDENT}.scope", None, "0123456789ab"),
    (f"/docker/{IDENT}", None, "0123456789ab"),
    (f"/kubepods.slice/kubepods-pod1.slice/cri-containerd-{IDENT}.scope", None, "0123456789ab"),
    (f"/kubepods.slice/kubepods-pod1.slice/crio-{IDENT}.scope/container", None, "0123456789ab"),
    (f"/machine.slice/libpod-{IDENT}.scope", None, "0123456789ab"),
    (f"/system.slice/containerd.service/kubepods-burstable-pod1.slice:cri-containerd:{IDENT}", None, "0123456789ab"),
    ("/", None, None),
])
def test_who_holds_a_gpu(host: Host, group: str, unit: str | None, container: str | None) -> None:
    """The systemd unit of a process, or its container."""
    host.system(UBUNTU, "6.8.0-45-generic").put("/dev/nvidia0").put("/dev/nvidiactl")
    host.put("/proc/driver/nvidia/gpus/0000:07:00.0/information", "Device Minor: \t 0\n")
    trees.process(host.path, 4711, "python3", "/dev/nvidia0", group=group)
    assert host.facts()["clients"] == [{"pid": 4711, "name": "python3", "gpu": "0000:07:00.0", "instance": None,
                                        "unit": unit, "container": container}]


def test_holder_in_an_older_control_group(host: Host) -> None:
    """Version 1 has a line for each controller; that of systemd names the unit."""
    host.system(UBUNTU, "5.4.0-200-generic").put("/dev/nvidia0")
    trees.process(host.path, 5, "python3", "/dev/nvidia0")
    host.put("/proc/5/cgroup", "12:devices:/user.slice\n1:name=systemd:/system.slice/training.service\n0::/\n")
    client, = host.facts()["clients"]
    assert (client["unit"], client["container"]) == ("training.service", None)


def test_holder_that_only_nvml_sees(host: Host) -> None:
    """A process that has ended, or that is in another namespace, has no owner."""
    host.system(UBUNTU, "6.8.0-45-generic")
    told = {**trees.NO_NVML, "available": True,
            "clients": [{"pid": 99, "name": "python3", "gpu": "0000:07:00.0", "instance": 7}]}
    assert host.facts(told)["clients"] == [{"pid": 99, "name": "python3", "gpu": "0000:07:00.0", "instance": 7,
                                            "unit": None, "container": None}]


# -- runtimes


CONTAINERD = trees.package("containerd.io", "1.7.28-1")


@pytest.mark.parametrize(("path", "text", "found"), [
    ("/etc/containerd/config.toml", '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]\n', True),
    ("/etc/containerd/config.toml", "  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.'nvidia']\n", True),
    ("/etc/containerd/conf.d/99-nvidia.toml", "[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia."
     "options]\nBinaryName = '/usr/bin/nvidia-container-runtime'\n", True),
    ("/etc/containerd/config.toml", '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia-cdi]\n', False),
    ("/etc/containerd/config.toml", '[plugins."io.containerd.grpc.v1.cri".registry.configs."nvidia.example"]\n', False),
    ("/etc/containerd/config.toml", "# [plugins.x.containerd.runtimes.nvidia]\n", False),
    ("/etc/containerd/config.toml", "[nvidia]\nnvidia = 1\n", False),
])
def test_named_runtime(host: Host, path: str, text: str, found: bool) -> None:
    """Only the runtime named nvidia counts, not every table that contains the word."""
    host.system(UBUNTU, "6.8.0-45-generic").put(path, text)
    trees.dpkg(host.path, CONTAINERD)
    assert host.facts()["runtimes"]["containerd"]["nvidia"] is found


@pytest.mark.parametrize(("name", "package", "path", "text", "found"), [
    ("docker", "docker-ce", "/etc/docker/daemon.json", '{"runtimes": {"nvidia": {"path": "x"}}}', True),
    ("docker", "docker-ce", "/etc/docker/daemon.json", '{"registry-mirrors": ["https://nvidia.example"]}', False),
    ("docker", "docker-ce", "/etc/docker/daemon.json", '{"runtimes": ', False),
    ("docker", "docker-ce", "/etc/docker/daemon.json", '[]', False),
    ("docker", "docker-ce", "/etc/docker/daemon.json", '{"runtimes": [{}]}', False),
    ("docker", "docker-ce", "/etc/docker/daemon.json", '{"runtimes": [1, "nvidia"]}', False),
    ("docker", "docker-ce", "/etc/docker/daemon.json", '{"runtimes": "nvidia"}', False),
    ("crio", "cri-o", "/etc/crio/crio.conf.d/99-nvidia.conf", "[crio.runtime.runtimes.nvidia]\n", True),
    ("crio", "cri-o", "/etc/crio/crio.conf.d/99-nvidia.conf", "[crio.runtime.runtimes.crun]\n# nvidia\n", False),
    ("podman", "podman", "/etc/containers/containers.conf", '[engine.runtimes]\nnvidia = ["/usr/bin/x"]\n', True),
    ("podman", "podman", "/etc/containers/containers.conf.d/x.conf", '[engine]\nruntime = "nvidia"\n', False),
])
def test_named_runtime_elsewhere(host: Host, name: str, package: str, path: str, text: str, found: bool) -> None:
    """The same for Docker, CRI-O and Podman."""
    host.system(UBUNTU, "6.8.0-45-generic").put(path, text)
    trees.dpkg(host.path, trees.package(package, "1.0.0-1"))
    assert host.facts()["runtimes"][name]["nvidia"] is found
