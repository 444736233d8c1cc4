# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads facts of the machine: hypervisor, cloud, kernel lockdown, MOK, distribution of Kubernetes. PRIVATE.

Sources: systemd-detect-virt(1) for DMI strings of hypervisors; cloud-init's ds-identify for clouds; dkms(8) and shim's
MokListRT for Secure Boot keys; the files of each distribution for markers.
"""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Fact, Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.system import dmi, enrolled_keys

# (beginning of product_name, sys_vendor or bios_vendor; hypervisor).
_HYPERVISORS = (
    ("kvm", "kvm"), ("openstack", "kvm"), ("kubevirt", "kvm"), ("amazon ec2", "amazon"), ("google", "google"),
    ("qemu", "qemu"), ("vmware", "vmware"), ("vmw", "vmware"), ("innotek gmbh", "virtualbox"),
    ("virtualbox", "virtualbox"), ("oraclecloud.com", "kvm"), ("xen", "xen"), ("hvm domu", "xen"), ("bochs", "bochs"),
    ("parallels", "parallels"), ("bhyve", "bhyve"), ("apple virtualization", "apple"), ("alibaba cloud", "kvm"),
    ("virtual machine", "microsoft"), ("hyper-v", "microsoft"),
)
_AZURE_CHASSIS = "7783-7084-3265-9085-8269-3286-77"
# The certificates of keys that sign modules on the host: of DKMS, of Ubuntu's DKMS, of akmods.
_CERTIFICATES = ("/var/lib/dkms/mok.pub", "/var/lib/shim-signed/mok/MOK.der", "/etc/pki/akmods/certs/public_key.der")
_FRAMEWORK = "/etc/dkms/framework.conf"
_CONFIGURED = re.compile(r"""^\s*mok_certificate=["']?(/[^"'\s$]+)""", re.M)
# The distributions of Kubernetes and their files. A distribution comes before the one on which it is based.
_KUBERNETES = (
    ("openshift", ("/etc/machine-config-daemon",)),
    ("rke2", ("/var/lib/rancher/rke2/agent", "/etc/rancher/rke2")),
    ("k3s", ("/var/lib/rancher/k3s/agent", "/etc/rancher/k3s")),
    ("k0s", ("/var/lib/k0s", "/etc/k0s")),
    ("microk8s", ("/var/snap/microk8s/current",)),
    ("eks", ("/etc/eks",)),
    ("gke", ("/home/kubernetes/kube-env", "/home/kubernetes/bin/kubelet")),
    ("aks", ("/opt/azure/containers",)),
    ("kubeadm", ("/var/lib/kubelet/kubeadm-flags.env",)),
)
# Distributions whose system folders packages must not change, even if these are mounted writable.
IMMUTABLE = ("flatcar", "bottlerocket", "talos", "rhcos", "scos", "cos", "sl-micro", "opensuse-microos")


def read_virtual(root: Root) -> str | None:
    """The hypervisor: C(kvm), C(vmware), C(amazon) ..., C(vm) for an unknown one; None on bare metal.

    On x86 the CPU has a flag for a hypervisor. On other processors, bare-metal machines of Amazon are detected by the
    name of their instance type, such as C(g5g.metal).
    """
    flags = re.search(r"^flags\s*:(.*)$", root.text("/proc/cpuinfo") or "", re.M)
    virtual = "hypervisor" in flags.group(1).split() if flags else None
    if virtual is False or (not virtual and dmi(root, "product_name").endswith(".metal")):
        return None
    for key in ("product_name", "sys_vendor", "bios_vendor"):
        value = dmi(root, key).lower()
        found = next((name for start, name in _HYPERVISORS if value.startswith(start)), None)
        if found:
            return found
    kind = root.text("/sys/hypervisor/type")
    return kind or ("vm" if virtual else None)


def read_cloud(root: Root) -> str | None:
    """C(aws), C(azure), C(gcp) or C(oracle) by DMI, also on bare metal; None elsewhere."""
    chassis, vendor = dmi(root, "chassis_asset_tag"), dmi(root, "sys_vendor")
    if vendor == "Amazon EC2" or dmi(root, "bios_version").lower().endswith("amazon"):
        return "aws"
    if chassis == _AZURE_CHASSIS:
        return "azure"
    if vendor == "Google" or dmi(root, "product_name") == "Google Compute Engine":
        return "gcp"
    return "oracle" if chassis == "OracleCloud.com" else None


def read_lockdown(root: Root) -> str | None:
    """The kernel's lockdown: C(none), C(integrity), C(confidentiality); None if the kernel does not support it."""
    found = re.search(r"\[(\w+)\]", root.text("/sys/kernel/security/lockdown") or "")
    return found.group(1) if found else None


def read_mok(root: Root) -> dict[str, bool | None]:
    """C({tool, enrolled}): whether mokutil is installed, and whether a key that signs modules on the host is enrolled.

    enrolled is None if the firmware shows no list of enrolled certificates.
    """
    tool = root.exists("/usr/bin/mokutil")
    enrolled = enrolled_keys(root)
    if enrolled is None:
        return {"tool": tool, "enrolled": None}
    texts = (root.text(path) or "" for path in (_FRAMEWORK, *(f"{_FRAMEWORK}.d/{name}" for name in
                                                              root.names(f"{_FRAMEWORK}.d"))))
    paths = (*_CERTIFICATES, *(path for text in texts for path in _CONFIGURED.findall(text)))
    certificates = [data for data in map(root.data, paths) if data]
    return {"tool": tool, "enrolled": any(data in enrolled for data in certificates)}


def read_markers(root: Root, release: t.Mapping[str, str]) -> Fact:
    """C({dgx: {name, version} or None, kubernetes, immutable}). release: the values of os-release."""
    return {"dgx": _dgx(root), "kubernetes": _kubernetes(root, release), "immutable": _immutable(root, release)}


def _dgx(root: Root) -> dict[str, str | None] | None:
    """C({name, version}) of DGX OS, None for other systems. version: that of the last update or the installation."""
    text = root.text("/etc/dgx-release")
    if text is None:
        return None
    values = dict(re.findall(r'^(DGX_\w+)="?(.*?)"?$', text, re.M))
    return {"name": values.get("DGX_NAME"), "version": values.get("DGX_OTA_VERSION", values.get("DGX_SWBUILD_VERSION"))}


def _kubernetes(root: Root, release: t.Mapping[str, str]) -> str | None:
    if release.get("ID") == "rhcos":
        return "openshift"
    if release.get("VARIANT_ID", "").startswith("aws-k8s"):  # Bottlerocket
        return "eks"
    return next((name for name, paths in _KUBERNETES if any(map(root.exists, paths))), None)


def _immutable(root: Root, release: t.Mapping[str, str]) -> bool:
    """Whether /usr is read-only, by the distribution, ostree, or its mount options."""
    if release.get("ID") in IMMUTABLE or root.exists("/run/ostree-booted"):
        return True
    mounts = {fields[1]: fields[3].split(",") for fields in
              (line.split() for line in (root.text("/proc/mounts") or "").splitlines()) if len(fields) > 3}
    return "ro" in mounts.get("/usr", mounts.get("/", ()))
