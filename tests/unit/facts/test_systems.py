# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts of many kinds as trees of files, and what their facts say of them."""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts._collect import collect
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts._root import Root
from ansible_collections.gpuops.nvidia.tests.unit.facts import trees

UBUNTU = 'ID=ubuntu\nID_LIKE=debian\nVERSION_ID="24.04"\nVERSION_CODENAME=noble\nPRETTY_NAME="Ubuntu 24.04.3 LTS"\n'
RHEL = 'ID="rhel"\nID_LIKE="fedora"\nVERSION_ID="9.4"\nPRETTY_NAME="Red Hat Enterprise Linux 9.4 (Plow)"\n'
SHIM = "/sys/firmware/efi/efivars/MokListRT-605dab50-e046-4300-abb6-3dd810dd8b23"
SECURE_BOOT = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
CERTIFICATE = b"\x30\x82\x03\x0d" + bytes(range(256))


@pytest.fixture(autouse=True)
def x86_64(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hosts are of that architecture, wherever the tests run."""
    monkeypatch.setattr("os.uname", lambda: type("uname", (), {"machine": "x86_64", "release": "", "nodename": ""}))


class Host:
    """A tree that tests add to, and its facts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run = trees.Answers()

    def system(self, text: str, kernel: str, device: str | None = "20b2", headers: bool = True) -> Host:
        """os-release, the running kernel and one GPU."""
        self.put("/etc/os-release", text)
        self.put("/proc/sys/kernel/osrelease", f"{kernel}\n")
        if headers:
            self.put(f"/lib/modules/{kernel}/build/Makefile", "all:\n")
        if device:
            trees.pci(self.path, "0000:07:00.0", device)
        return self

    def put(self, path: str, content: str | bytes = "") -> Host:
        trees.put(self.path, path, content)
        return self

    def link(self, path: str, target: str) -> Host:
        trees.link(self.path, path, target)
        return self

    def dmi(self, **strings: str) -> Host:
        for key, value in strings.items():
            self.put(f"/sys/class/dmi/id/{key}", f"{value}\n")
        return self

    def cpu(self, *flags: str) -> Host:
        return self.put("/proc/cpuinfo", f"processor\t: 0\nflags\t\t: fpu vme {' '.join(flags)} lahf_lm\n")

    def facts(self, snapshot: t.Mapping[str, t.Any] = trees.NO_NVML) -> dict[str, t.Any]:
        return collect(Root(str(self.path)), self.run, snapshot)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


# -- Secure Boot


@pytest.mark.parametrize(("certificate", "listed", "enrolled"), [
    ("/var/lib/shim-signed/mok/MOK.der", SHIM, True), ("/var/lib/dkms/mok.pub", SHIM, True),
    ("/etc/pki/akmods/certs/public_key.der", "/sys/firmware/efi/mok-variables/MokListRT", True),
    (None, SHIM, False), ("/var/lib/dkms/mok.pub", None, None),
], ids=["ubuntu", "dkms", "akmods", "no key", "no list"])
def test_secure_boot_with_a_key(host: Host, certificate: str | None, listed: str | None, enrolled: bool | None) -> None:
    """Ubuntu 24.04 with Secure Boot: the key that DKMS signs with stands in shim's list between the vendor's own."""
    host.system(UBUNTU, "6.8.0-45-generic").put(SECURE_BOOT, b"\x06\0\0\0\x01").put("/usr/bin/mokutil")
    host.put("/sys/kernel/security/lockdown", "none [integrity] confidentiality\n")
    if certificate:
        host.put(certificate, CERTIFICATE)
    if listed:
        host.put(listed, b"\x06\0\0\0" + b"distributor" * 90 + CERTIFICATE + b"end")
    found = host.facts()["host"]
    assert (found["secure_boot"], found["lockdown"], found["mok"]) == (
        True, "integrity", {"tool": True, "enrolled": enrolled})


def test_another_key_is_enrolled(host: Host) -> None:
    """A key of somebody else does not let our modules in."""
    host.system(UBUNTU, "6.8.0-45-generic").put("/var/lib/dkms/mok.pub", CERTIFICATE).put(SHIM, b"\x06\0\0\0other")
    assert host.facts()["host"]["mok"] == {"tool": False, "enrolled": False}


# -- kernels


@pytest.mark.parametrize(("system", "kernel", "flavour", "package"), [
    (UBUNTU, "6.8.0-45-generic", "generic", "linux-headers-6.8.0-45-generic"),
    (UBUNTU, "6.8.0-1018-aws", "aws", "linux-headers-6.8.0-1018-aws"),
    (UBUNTU, "6.8.0-1013-nvidia-64k", "nvidia-64k", "linux-headers-6.8.0-1013-nvidia-64k"),
    (trees.OS_RELEASE, "6.1.0-28-cloud-amd64", "cloud-amd64", "linux-headers-6.1.0-28-cloud-amd64"),
    (trees.OS_RELEASE, "6.12.43+deb13-amd64", "amd64", "linux-headers-6.12.43+deb13-amd64"),
    (RHEL, "5.14.0-427.13.1.el9_4.x86_64", None, "kernel-devel-5.14.0-427.13.1.el9_4.x86_64"),
    (RHEL, "5.14.0-427.13.1.el9_4.aarch64+64k", "64k", "kernel-64k-devel-5.14.0-427.13.1.el9_4.aarch64"),
    (RHEL, "5.14.0-427.13.1.el9_4.x86_64+rt", "rt", "kernel-rt-devel-5.14.0-427.13.1.el9_4.x86_64"),
    ('ID="ol"\nID_LIKE="fedora"\n', "5.15.0-300.163.18.el9uek.x86_64", "uek",
     "kernel-uek-devel-5.15.0-300.163.18.el9uek.x86_64"),
    ('ID="amzn"\nVERSION_ID="2023"\n', "6.1.109-118.189.amzn2023.x86_64", None,
     "kernel-devel-6.1.109-118.189.amzn2023.x86_64"),
    ('ID="amzn"\nVERSION_ID="2023"\n', "6.12.20-23.97.amzn2023.x86_64", None,
     "kernel6.12-devel-6.12.20-23.97.amzn2023.x86_64"),
    ('ID="sles"\nVERSION_ID="15.7"\n', "6.4.0-150700.53.6-default", "default",
     "kernel-default-devel=6.4.0-150700.53.6"),
    ("ID=flatcar\nID_LIKE=coreos\n", "6.6.30-flatcar", "flatcar", None),
    ("ID=bottlerocket\n", "6.1.102", None, None),
])
def test_kernels(host: Host, system: str, kernel: str, flavour: str | None, package: str | None) -> None:
    """What a kernel is called, and what builds modules for it."""
    found = host.system(system, kernel).facts()["host"]["kernel"]
    assert (found["release"], found["flavour"], found["headers"], found["headers_package"]) == (
        kernel, flavour, True, package)
    assert host.run.asked == []


POLICY = """linux-headers-6.8.0-45-generic:
  Installed: (none)
  Candidate: 6.8.0-45.45
  Version table:
     6.8.0-45.45 {}
        {} {}
"""
INDEX = "500 http://archive.ubuntu.com/ubuntu noble-updates/main amd64 Packages"


@pytest.mark.parametrize(("system", "answers", "available"), [
    (UBUNTU, {("apt-cache", "policy"): POLICY.format("500", "", INDEX)}, True),
    (UBUNTU, {("apt-cache", "policy"): POLICY.format("100", "100", "/var/lib/dpkg/status")}, False),
    (UBUNTU, {("apt-cache", "policy"): ""}, False), (UBUNTU, {}, None),
    (RHEL, {("dnf",): "kernel-devel-0:5.14.0-427.13.1.el9_4.x86_64\n"}, True), (RHEL, {("dnf",): "\n"}, False),
    (RHEL, {}, None),
])
def test_headers_in_the_index(host: Host, system: str, answers: dict[tuple[str, ...], str],
                              available: bool | None) -> None:
    """Missing headers are looked up once; without a package manager nobody knows."""
    host.system(system, "6.8.0-45-generic", headers=False)
    host.put("/var/lib/apt/lists/archive.ubuntu.com_ubuntu_dists_noble_main_binary-amd64_Packages.lz4")
    host.run = trees.Answers(answers)
    found = host.facts()["host"]["kernel"]
    assert (found["headers"], found["headers_available"]) == (False, available)
    assert len(host.run.asked) == 1


@pytest.mark.parametrize("system", [UBUNTU, 'ID="sles"\nVERSION_ID="15.7"\n', "ID=flatcar\n"])
def test_no_index(host: Host, system: str) -> None:
    """An apt that was never updated knows nothing; of others there is no cheap way to ask."""
    host.system(system, "6.8.0-45-generic", headers=False).put("/var/lib/apt/lists/lock")
    assert host.facts()["host"]["kernel"]["headers_available"] is None
    assert host.run.asked == []


@pytest.mark.parametrize("how", ["no GPU", "headers", "driver"])
def test_index_is_left_alone(host: Host, how: str) -> None:
    """Nobody asks a package manager where nothing is to be built."""
    host.system(UBUNTU, "6.8.0-45-generic", None if how == "no GPU" else "20b2", headers=how == "headers")
    if how == "driver":
        host.put("/sys/module/nvidia/version", "580.126.20\n")
    assert host.facts()["host"]["kernel"]["headers_available"] is None
    assert host.run.asked == []


@pytest.mark.parametrize(("system", "kernel", "installed", "newest"), [
    (UBUNTU, "6.8.0-45-generic", ["6.8.0-45-generic", "6.8.0-101-generic"], "6.8.0-101-generic"),
    (UBUNTU, "6.8.0-101-generic", ["6.8.0-45-generic", "6.8.0-101-generic"], "6.8.0-101-generic"),
    (UBUNTU, "6.8.0-45-generic", ["6.8.0-45-generic", "6.11.0-2-aws"], "6.11.0-2-aws"),
    (RHEL, "5.14.0-427.el9.x86_64", ["5.14.0-427.el9.x86_64", "5.14.0-503.el9.x86_64+rt",
                                     "0-rescue-0123456789abcdef"], "5.14.0-427.el9.x86_64"),
    (UBUNTU, "6.8.0-45-generic", [], None),
])
def test_next_kernel(host: Host, system: str, kernel: str, installed: list[str], newest: str | None) -> None:
    """The newest of what a boot loader would take."""
    host.system(system, kernel)
    for name in installed:
        host.put(f"/boot/vmlinuz-{name}")
    assert host.facts()["host"]["kernel"]["newest_installed"] == newest


# -- nouveau


@pytest.mark.parametrize(("path", "content", "denied"), [
    ("/etc/modprobe.d/gpuops-nouveau.conf", "blacklist nouveau\n", True),
    ("/usr/lib/modprobe.d/nvidia.conf", "# one\ninstall nouveau /bin/false\n", True),
    ("/etc/modprobe.d/x.conf", "# blacklist nouveau\noptions nouveau modeset=1\n", False),
    ("/etc/modprobe.d/x.conf.bak", "blacklist nouveau\n", False),
    ("/proc/cmdline", "BOOT_IMAGE=x rd.driver.blacklist=nova,nouveau modprobe.blacklist=nouveau ro\n", True),
    ("/proc/cmdline", "BOOT_IMAGE=x module_blacklist=nouveau\n", True),
    ("/proc/cmdline", "BOOT_IMAGE=x nouveau.modeset=0\n", True),
    ("/proc/cmdline", "BOOT_IMAGE=x modprobe.blacklist=nouveaux nouveau.modeset=1\n", False),
])
def test_rhel_with_nouveau(host: Host, path: str, content: str, denied: bool) -> None:
    """RHEL 9 with nouveau on the GPU, and what is to keep it away at the next boot."""
    host.system(RHEL, "5.14.0-427.el9.x86_64").put("/sys/module/nouveau/refcnt", "1\n").put(path, content)
    found = host.facts()
    assert (found["modules"]["nouveau"], found["modules"]["nouveau_denied"]) == (True, denied)


# -- prepared systems


DGX = """DGX_NAME="DGX Server"
DGX_PRETTY_NAME="NVIDIA DGX Server"
DGX_SWBUILD_VERSION="6.1.0"
DGX_PLATFORM="DGX Server for DGX H100"
"""


@pytest.mark.parametrize(("more", "version"), [
    ("", "6.1.0"), ('\nDGX_OTA_VERSION="6.2.1"\nDGX_OTA_DATE="x"\n\nDGX_OTA_VERSION="6.3.2"\n', "6.3.2"),
])
def test_dgx_os(host: Host, more: str, version: str) -> None:
    """DGX OS by its own release file: the last update counts."""
    host.system(UBUNTU, "5.15.0-1042-nvidia", "2330").put("/etc/dgx-release", DGX + more)
    host.dmi(sys_vendor="NVIDIA", product_name="DGXH100")
    found = host.facts()["host"]
    assert found["markers"]["dgx"] == {"name": "DGX Server", "version": version}
    assert (found["vendor"], found["machine"], found["virtual"], found["kernel"]["flavour"]) == (
        "NVIDIA", "DGXH100", None, "nvidia")


@pytest.mark.parametrize(("release", "paths", "mounts", "kubernetes", "immutable"), [
    ('ID=bottlerocket\nVERSION_ID=1.20.3\nVARIANT_ID=aws-k8s-1.30-nvidia\n', [], "", "eks", True),
    ("ID=flatcar\nVERSION_ID=3975.2.0\n", ["/var/lib/kubelet/kubeadm-flags.env"], "", "kubeadm", True),
    ("ID=talos\nVERSION_ID=v1.9.2\n", [], "", None, True),
    ('ID="rhcos"\nVERSION_ID="418.94"\n', ["/etc/machine-config-daemon/node-annotations.json"], "", "openshift", True),
    ("ID=fedora\nVARIANT_ID=coreos\n", ["/run/ostree-booted"], "", None, True),
    (UBUNTU, ["/var/lib/rancher/k3s/agent/kubelet.kubeconfig"], "", "k3s", False),
    (UBUNTU, ["/etc/rancher/rke2/config.yaml", "/etc/rancher/k3s/x"], "", "rke2", False),
    (UBUNTU, ["/etc/k0s/containerd.toml"], "", "k0s", False),
    (UBUNTU, ["/var/snap/microk8s/current/args/kubelet"], "", "microk8s", False),
    (UBUNTU, ["/opt/azure/containers/provision.sh", "/var/lib/kubelet/kubeadm-flags.env"], "", "aks", False),
    ("ID=cos\n", ["/home/kubernetes/kube-env"], "", "gke", True),
    ('ID="amzn"\nVERSION_ID="2023"\n', ["/etc/eks/bootstrap.sh"], "", "eks", False),
    (UBUNTU, [], "/dev/sda1 / ext4 rw,relatime 0 0\n/dev/sda2 /usr ext4 ro,relatime 0 0\n", None, True),
    (UBUNTU, [], "/dev/sda1 / ext4 ro,relatime 0 0\n", None, True),
    (UBUNTU, [], "/dev/sda1 / ext4 rw,errors=remount-ro 0 0\nsysfs /sys sysfs ro 0 0\n", None, False),
])
def test_markers(host: Host, release: str, paths: list[str], mounts: str, kubernetes: str | None,
                 immutable: bool) -> None:
    """Whose Kubernetes a host belongs to, and whether packages can be installed at all."""
    host.system(release, "6.8.0-45-generic")
    for path in paths:
        host.put(path)
    if mounts:
        host.put("/proc/mounts", mounts)
    assert host.facts()["host"]["markers"] == {"dgx": None, "kubernetes": kubernetes, "immutable": immutable}


# -- machines and clouds


@pytest.mark.parametrize(("dmi", "flags", "virtual", "cloud"), [
    ({"sys_vendor": "Amazon EC2", "product_name": "p4d.24xlarge"}, ["hypervisor"], "amazon", "aws"),
    ({"sys_vendor": "Amazon EC2", "product_name": "g5g.metal"}, [], None, "aws"),
    ({"sys_vendor": "Xen", "product_name": "HVM domU", "bios_version": "4.11.amazon"}, ["hypervisor"], "xen", "aws"),
    ({"sys_vendor": "Microsoft Corporation", "product_name": "Virtual Machine",
      "chassis_asset_tag": "7783-7084-3265-9085-8269-3286-77"}, ["hypervisor"], "microsoft", "azure"),
    ({"sys_vendor": "Microsoft Corporation", "product_name": "Virtual Machine"}, ["hypervisor"], "microsoft", None),
    ({"sys_vendor": "Google", "product_name": "Google Compute Engine"}, ["hypervisor"], "google", "gcp"),
    ({"sys_vendor": "QEMU", "chassis_asset_tag": "OracleCloud.com"}, ["hypervisor"], "qemu", "oracle"),
    ({"sys_vendor": "Oracle Corporation", "chassis_asset_tag": "OracleCloud.com"}, [], None, "oracle"),
    ({"sys_vendor": "VMware, Inc.", "product_name": "VMware20,1"}, ["hypervisor"], "vmware", None),
    ({"sys_vendor": "Red Hat", "product_name": "KVM"}, ["hypervisor"], "kvm", None),
    ({"sys_vendor": "Supermicro", "product_name": "SYS-821GE-TNHR"}, [], None, None),
    ({"sys_vendor": "Unheard of"}, ["hypervisor"], "vm", None), ({}, [], None, None),
])
def test_machines(host: Host, dmi: dict[str, str], flags: list[str], virtual: str | None, cloud: str | None) -> None:
    """Clouds are told by DMI, virtual machines by the processor and named by DMI."""
    found = host.system(UBUNTU, "6.8.0-45-generic").dmi(**dmi).cpu(*flags).facts()["host"]
    assert (found["virtual"], found["cloud"], found["vendor"]) == (virtual, cloud, dmi.get("sys_vendor"))


def test_virtual_without_a_processor_flag(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arm has no such flag: DMI alone tells, and Amazon's bare metal is called so."""
    monkeypatch.setattr("os.uname", lambda: type("uname", (), {"machine": "aarch64", "release": "", "nodename": ""}))
    host.system(UBUNTU, "6.8.0-45-generic").put("/proc/cpuinfo", "processor : 0\nFeatures : fp asimd\n")
    host.dmi(sys_vendor="Amazon EC2", product_name="g5g.metal")
    assert host.facts()["host"]["virtual"] is None
    host.dmi(product_name="g5g.xlarge")
    assert host.facts()["host"]["virtual"] == "amazon"


def test_vgpu_guest(host: Host) -> None:
    """A guest with a vGPU says which driver its host runs."""
    space = bytearray(256)
    space[0x06], space[0x34] = 0x10, 0x60
    capability = b"\x09\x00\x1bVF" + b"\x00\x16" + b"580.65.05\0" + b"r580_00\0\0\0"
    space[0x60:0x60 + len(capability)] = capability
    host.system(UBUNTU, "6.8.0-45-generic", None)
    trees.pci(host.path, "0000:02:00.0", "26b9", config=bytes(space))
    found = host.dmi(sys_vendor="VMware, Inc.").cpu("hypervisor").facts()
    assert (found["vgpu"], found["host"]["virtual"]) == ({"version": "580.65.05", "branch": "r580_00"}, "vmware")


# -- drivers


def test_driver_of_a_container(host: Host) -> None:
    """The driver container's root is mounted: no package of the host counts."""
    host.system(UBUNTU, "6.8.0-45-generic").put("/run/nvidia/driver/usr/bin/nvidia-smi")
    host.put("/sys/module/nvidia/version", "580.126.20\n")
    trees.dpkg(host.path, trees.package("nvidia-firmware", "1"))
    found = host.facts()["driver"]
    assert (found["source"], found["loaded"], found["library"]) == ("container", "580.126.20", None)


def test_driver_of_an_image(host: Host) -> None:
    """No package, no installer's trace, and yet it runs: it came with the image."""
    host.system("ID=cos\n", "6.1.112+").put("/sys/module/nvidia/version", "580.126.20\n")
    assert host.facts()["driver"]["source"] == "preinstalled"


DKMS = "/var/lib/dkms"


def test_dkms(host: Host) -> None:
    """Installed for one kernel and built for another, built only, known only; other modules do not matter."""
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
    """A100 with and without switches, HGX B200 and B300, GB200, DGX Station, L40S, something new."""
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
    """The systemd unit of a process, or the container that it runs in."""
    host.system(UBUNTU, "6.8.0-45-generic").put("/dev/nvidia0").put("/dev/nvidiactl")
    host.put("/proc/driver/nvidia/gpus/0000:07:00.0/information", "Device Minor: \t 0\n")
    trees.process(host.path, 4711, "python3", "/dev/nvidia0", group=group)
    assert host.facts()["clients"] == [{"pid": 4711, "name": "python3", "gpu": "0000:07:00.0", "instance": None,
                                        "unit": unit, "container": container}]


def test_holder_in_an_older_control_group(host: Host) -> None:
    """Version 1 has a line for each controller, of which the one of systemd names the unit."""
    host.system(UBUNTU, "5.4.0-200-generic").put("/dev/nvidia0")
    trees.process(host.path, 5, "python3", "/dev/nvidia0")
    host.put("/proc/5/cgroup", "12:devices:/user.slice\n1:name=systemd:/system.slice/training.service\n0::/\n")
    client, = host.facts()["clients"]
    assert (client["unit"], client["container"]) == ("training.service", None)


def test_holder_that_only_nvml_sees(host: Host) -> None:
    """A process that has ended, or lives where we do not see it, has no owner."""
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
    """Only the runtime named nvidia counts, not any table in which the word stands."""
    host.system(UBUNTU, "6.8.0-45-generic").put(path, text)
    trees.dpkg(host.path, CONTAINERD)
    assert host.facts()["runtimes"]["containerd"]["nvidia"] is found


@pytest.mark.parametrize(("name", "package", "path", "text", "found"), [
    ("docker", "docker-ce", "/etc/docker/daemon.json", '{"runtimes": {"nvidia": {"path": "x"}}}', True),
    ("docker", "docker-ce", "/etc/docker/daemon.json", '{"registry-mirrors": ["https://nvidia.example"]}', False),
    ("docker", "docker-ce", "/etc/docker/daemon.json", '{"runtimes": ', False),
    ("docker", "docker-ce", "/etc/docker/daemon.json", '[]', False),
    ("crio", "cri-o", "/etc/crio/crio.conf.d/99-nvidia.conf", "[crio.runtime.runtimes.nvidia]\n", True),
    ("crio", "cri-o", "/etc/crio/crio.conf.d/99-nvidia.conf", "[crio.runtime.runtimes.crun]\n# nvidia\n", False),
    ("podman", "podman", "/etc/containers/containers.conf", '[engine.runtimes]\nnvidia = ["/usr/bin/x"]\n', True),
    ("podman", "podman", "/etc/containers/containers.conf.d/x.conf", '[engine]\nruntime = "nvidia"\n', False),
])
def test_named_runtime_elsewhere(host: Host, name: str, package: str, path: str, text: str, found: bool) -> None:
    """Docker, CRI-O and podman."""
    host.system(UBUNTU, "6.8.0-45-generic").put(path, text)
    trees.dpkg(host.path, trees.package(package, "1.0.0-1"))
    assert host.facts()["runtimes"][name]["nvidia"] is found
