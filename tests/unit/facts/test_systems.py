# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Many kinds of systems, kernels, firmware and machines as trees of files, and their facts."""

from __future__ import annotations

import pytest
from ansible_collections.gpuops.nvidia.tests.unit.facts import trees
from ansible_collections.gpuops.nvidia.tests.unit.facts.conftest import Host
from ansible_collections.gpuops.nvidia.tests.unit.facts.trees import RHEL, UBUNTU

SHIM = "/sys/firmware/efi/efivars/MokListRT-605dab50-e046-4300-abb6-3dd810dd8b23"
SECURE_BOOT = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
CERTIFICATE = b"\x30\x82\x03\x0d" + bytes(range(256))


# -- Secure Boot


@pytest.mark.parametrize(("certificate", "listed", "enrolled"), [
    ("/var/lib/shim-signed/mok/MOK.der", SHIM, True), ("/var/lib/dkms/mok.pub", SHIM, True),
    ("/etc/pki/akmods/certs/public_key.der", "/sys/firmware/efi/mok-variables/MokListRT", True),
    (None, SHIM, False), ("/var/lib/dkms/mok.pub", None, None),
], ids=["ubuntu", "dkms", "akmods", "no key", "no list"])
def test_secure_boot_with_a_key(host: Host, certificate: str | None, listed: str | None, enrolled: bool | None) -> None:
    """Ubuntu 24.04 with Secure Boot: the list of shim contains the signing key of DKMS between the keys of the
    vendor."""
    host.system(UBUNTU, "6.8.0-45-generic").put(SECURE_BOOT, b"\x06\0\0\0\x01").put("/usr/bin/mokutil")
    host.put("/sys/kernel/security/lockdown", "none [integrity] confidentiality\n")
    if certificate:
        host.put(certificate, CERTIFICATE)
    if listed:
        host.put(listed, b"\x06\0\0\0" + b"distributor" * 90 + CERTIFICATE + b"end")
    found = host.facts()["host"]
    assert (found["secure_boot"], found["lockdown"], found["mok"]) == (
        True, "integrity", {"tool": True, "enrolled": enrolled})


def test_certificate_named_in_the_configuration_of_dkms(host: Host) -> None:
    """A site that signs with its own key configures its certificate there."""
    host.system(UBUNTU, "6.8.0-45-generic").put("/etc/site.der", CERTIFICATE).put(SHIM, b"\x06\0\0\0" + CERTIFICATE)
    host.put("/etc/dkms/framework.conf", "# mok_certificate=/none\nmok_certificate=/etc/site.der\n")
    assert host.facts()["host"]["mok"]["enrolled"] is True


def test_certificate_named_in_a_file_of_its_own(host: Host) -> None:
    """The file is named as the driver module names it."""
    host.system(UBUNTU, "6.8.0-45-generic").put("/var/lib/gpuops/mok/mok.der", CERTIFICATE)
    host.put(SHIM, b"\x06\0\0\0" + CERTIFICATE)
    assert host.facts()["host"]["mok"]["enrolled"] is False
    host.put("/etc/dkms/framework.conf.d/gpuops.conf", "mok_certificate=/var/lib/gpuops/mok/mok.der\n")
    assert host.facts()["host"]["mok"]["enrolled"] is True


def test_another_key_is_enrolled(host: Host) -> None:
    """A key of somebody else does not allow our modules."""
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
    """The names of kernels, and the tools that build modules for them."""
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
    """Missing headers are searched for once; without a package manager, it is unknown whether they are available."""
    host.system(system, "6.8.0-45-generic", headers=False)
    host.put("/var/lib/apt/lists/archive.ubuntu.com_ubuntu_dists_noble_main_binary-amd64_Packages.lz4")
    host.run = trees.Answers(answers)
    found = host.facts()["host"]["kernel"]
    assert (found["headers"], found["headers_available"]) == (False, available)
    assert len(host.run.asked) == 1


@pytest.mark.parametrize("system", [UBUNTU, 'ID="sles"\nVERSION_ID="15.7"\n', "ID=flatcar\n"])
def test_no_index(host: Host, system: str) -> None:
    """Without package lists, apt finds no packages; other package managers have no cheap query."""
    host.system(system, "6.8.0-45-generic", headers=False).put("/var/lib/apt/lists/lock")
    assert host.facts()["host"]["kernel"]["headers_available"] is None
    assert host.run.asked == []


@pytest.mark.parametrize("how", ["no GPU", "headers", "driver"])
def test_index_is_left_alone(host: Host, how: str) -> None:
    """The package manager is not queried if nothing is to be built."""
    host.system(UBUNTU, "6.8.0-45-generic", None if how == "no GPU" else "20b2", headers=how == "headers")
    if how == "driver":
        host.put("/sys/module/nvidia/version", "580.126.20\n")
    assert host.facts()["host"]["kernel"]["headers_available"] is None
    assert [command[0] for command in host.run.asked] == (["journalctl"] if how == "driver" else [])


@pytest.mark.parametrize(("system", "kernel", "installed", "newest"), [
    (UBUNTU, "6.8.0-45-generic", ["6.8.0-45-generic", "6.8.0-101-generic"], "6.8.0-101-generic"),
    (UBUNTU, "6.8.0-101-generic", ["6.8.0-45-generic", "6.8.0-101-generic"], "6.8.0-101-generic"),
    (UBUNTU, "6.8.0-45-generic", ["6.8.0-45-generic", "6.11.0-2-aws"], "6.11.0-2-aws"),
    (RHEL, "5.14.0-427.el9.x86_64", ["5.14.0-427.el9.x86_64", "5.14.0-503.el9.x86_64+rt",
                                     "0-rescue-0123456789abcdef"], "5.14.0-427.el9.x86_64"),
    (UBUNTU, "6.8.0-45-generic", [], None),
])
def test_next_kernel(host: Host, system: str, kernel: str, installed: list[str], newest: str | None) -> None:
    """The newest kernel that a boot loader would choose."""
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
    """RHEL 9 where nouveau uses the GPU, and the files that deny it at the next boot."""
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
    """DGX OS is recognized by its own release file, in which the last update counts."""
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
    """The distribution of Kubernetes of a host, and whether packages can be installed."""
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
    """DMI identifies clouds; the processor shows virtual machines, and DMI names them."""
    found = host.system(UBUNTU, "6.8.0-45-generic").dmi(**dmi).cpu(*flags).facts()["host"]
    assert (found["virtual"], found["cloud"], found["vendor"]) == (virtual, cloud, dmi.get("sys_vendor"))


def test_virtual_without_a_processor_flag(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arm has no such flag: only DMI identifies the machine, including the bare metal machines of Amazon."""
    monkeypatch.setattr("os.uname", lambda: type("uname", (), {"machine": "aarch64", "release": "", "nodename": ""}))
    host.system(UBUNTU, "6.8.0-45-generic").put("/proc/cpuinfo", "processor : 0\nFeatures : fp asimd\n")
    host.dmi(sys_vendor="Amazon EC2", product_name="g5g.metal")
    assert host.facts()["host"]["virtual"] is None
    host.dmi(product_name="g5g.xlarge")
    assert host.facts()["host"]["virtual"] == "amazon"


def test_vgpu_guest(host: Host) -> None:
    """A guest with a vGPU reports the driver version of its host."""
    space = bytearray(256)
    space[0x06], space[0x34] = 0x10, 0x60
    capability = b"\x09\x00\x1bVF" + b"\x00\x16" + b"580.65.05\0" + b"r580_00\0\0\0"
    space[0x60:0x60 + len(capability)] = capability
    host.system(UBUNTU, "6.8.0-45-generic", None)
    trees.pci(host.path, "0000:02:00.0", "26b9", config=bytes(space))
    found = host.dmi(sys_vendor="VMware, Inc.").cpu("hypervisor").facts()
    assert (found["vgpu"], found["host"]["virtual"]) == ({"version": "580.65.05", "branch": "r580_00"}, "vmware")
