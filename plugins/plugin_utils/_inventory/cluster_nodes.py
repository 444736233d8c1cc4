# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads the data that a plan needs from Nodes: operating system, driver pools, container runtime. Pure. PRIVATE."""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.label_keys import PCI, PRESENT
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.releases import Release, version_key

# A Node in JSON, as L(read_cluster.read_cluster) returns it.
Node = t.Mapping[str, t.Any]
# (id, version) as in os-release(5).
System = t.Tuple[str, str]

# The labels of NFD for the operating system. A label in PCI with the value "true" means a GPU (GPU Operator 26.7).
OS_ID = "feature.node.kubernetes.io/system-os_release.ID"
OS_VERSION = "feature.node.kubernetes.io/system-os_release.VERSION_ID"
OS_MAJOR = f"{OS_VERSION}.major"
KERNEL = "feature.node.kubernetes.io/kernel-version.full"
GPU_PRODUCT = "nvidia.com/gpu.product"
# Annotations of a driver DaemonSet: its operating system, as in image tags, and its NVIDIADriver.
SYSTEM = "gpuops.nvidia/system"
NVIDIA_DRIVER = "gpuops.nvidia/driver"

# (prefix of nodeInfo.osImage, which is PRETTY_NAME in os-release; ID in os-release).
_PRETTY = (
    ("Ubuntu", "ubuntu"), ("Red Hat Enterprise Linux CoreOS", "rhcos"), ("Red Hat Enterprise Linux", "rhel"),
    ("Rocky Linux", "rocky"), ("Oracle Linux", "ol"), ("CentOS", "centos"), ("Debian GNU/Linux", "debian"),
    ("SUSE Linux Enterprise Server", "sles"), ("SUSE Linux Micro", "sl-micro"),
)
_ID, _VERSION = re.compile("[a-z][a-z0-9-]{0,39}"), re.compile(r"v?[0-9]{1,9}(\.[0-9]{1,9}){0,3}")
# The value of a label that is not empty (Kubernetes documentation, "Labels and Selectors").
_VALUE = re.compile("[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_RUNTIMES = ("containerd", "docker", "crio")
_SYSTEM = r"\D{0,40}([0-9]{1,9})(?:\.([0-9]{1,9}))?(?: SP([0-9]{1,9}))?"


def system_of(labels: t.Mapping[str, str], pretty: str) -> System | None:
    """The operating system of a Node according to the labels of NFD, otherwise according to nodeInfo.osImage, such as
    C(Ubuntu 22.04.5 LTS). None if unknown."""
    # A Node can set any label on itself, and both values become parts of the names of objects and images.
    name, version = labels.get(OS_ID, ""), labels.get(OS_VERSION, "")
    if _ID.fullmatch(name) and _VERSION.fullmatch(version) and _VALUE.fullmatch(name + version):
        return name, version
    for start, name in _PRETTY:
        match = re.match(re.escape(start) + _SYSTEM, pretty)
        if match:
            minor = match[2] or match[3]
            return name, f"{match[1]}.{minor}" if minor else match[1]
    return None


def os_text(node: Node) -> str:
    """The operating system of a Node as text, such as C(ubuntu 24.04); empty if unknown."""
    system = node.get("os") or {}
    return " ".join(str(system[key]) for key in ("id", "version") if system.get(key))


def has_gpu(labels: t.Mapping[str, str]) -> bool:
    """Whether a Node has a label for an NVIDIA GPU."""
    return any(labels.get(key) == "true" for key in (*PCI, PRESENT))


def tag(system: System, release: Release) -> str:
    """The suffix of driver image tags: C(ubuntu22.04), C(rhel9). Which tags omit the minor version depends on the
    release."""
    name, version = system
    major = version.split(".")[0]
    since = version_key(release.version)
    whole = {"rocky", "rhel", "ol"} if since >= (26, 7) else {"rocky"}
    if name in whole or (since >= (26, 3) and name == "rhel" and major.isdecimal() and int(major) >= 10):
        version = major
    return f"{name}{version}"


def parse_tag(text: str) -> System | None:
    """Parses an image tag such as C(ubuntu24.04). Returns (id, version), None for any other text."""
    match = re.fullmatch(r"([a-z][a-z-]*)(\d+(?:\.\d+)?)", text)
    return (match[1], match[2]) if match else None


def selector(system: System, os_tag: str) -> dict[str, str]:
    """The labels that select the Nodes of a pool."""
    name, version = system
    if os_tag == f"{name}{version}":
        return {OS_ID: name, OS_VERSION: version}
    return {OS_ID: name, OS_MAJOR: version.split(".")[0]}


class CommonValue(t.NamedTuple):
    """The value that is used for all Nodes. because: the reason, such as C(more than half of the Nodes have it)."""

    value: str
    because: str


def common_value(counts: t.Mapping[str, int], running: t.Collection[str], order: t.Callable[[str], t.Any],
                 first: str) -> CommonValue:
    """The value that more than half of the Nodes have; otherwise a value in use; otherwise the most frequent value.

    A compromised Node may report any value. So half of the Nodes or fewer cannot change the value in use while any Node
    has that value. counts: the number of Nodes by value; running: the values in use; order: a sort key; of several
    equally frequent values, the highest one is chosen; first: a description of this choice, such as C(the newest).
    """
    most = max(counts, key=lambda value: (counts[value], order(value)))
    if 2 * counts[most] > sum(counts.values()):
        return CommonValue(most, "more than half of the Nodes have it")
    stays = max((value for value in counts if value in running), key=order, default=None)
    if stays is not None:
        return CommonValue(stays, "it is in use, and no other value is that of more than half of the Nodes")
    tied = sum(count == counts[most] for count in counts.values()) > 1
    return CommonValue(most, f"it is {first} of the most frequent values" if tied else "most Nodes have it")


def runtime_of(nodes: t.Iterable[Node], running: str = "") -> CommonValue:
    """The container runtime that the toolkit's DaemonSet configures on all Nodes. running: the runtime that an existing
    DaemonSet configures, empty without a DaemonSet."""
    counts: dict[str, int] = {}
    for node in nodes:
        if node["runtime"] in _RUNTIMES:
            counts[node["runtime"]] = counts.get(node["runtime"], 0) + 1
    if not counts:
        return CommonValue(running if running in _RUNTIMES else _RUNTIMES[0], "no Node reports a supported one")
    return common_value(counts, {running}, lambda name: -_RUNTIMES.index(name), "the first supported one")


def kernel_of(node: Node) -> str:
    """The kernel in the form of NFD's label and image tags; empty if it is not a valid label value."""
    kernel = str(node.get("kernel") or "").replace("+", "_")
    return kernel if _VALUE.fullmatch(kernel) else ""


def pools(nodes: t.Mapping[str, Node]) -> list[dict[str, str | int | list[str] | None]]:
    """Groups of similar GPU Nodes for reports, C([{count, gpu, os, kernel, runtime, nodes}]), with the largest group
    first.

    gpu is None if feature discovery has not labelled the Nodes yet.
    """
    found: dict[tuple[str | None, ...], list[str]] = {}
    for name, node in sorted(nodes.items()):
        if node["gpu"]:
            key = (node["labels"].get(GPU_PRODUCT), os_text(node) or None, node.get("kernel"), node.get("runtime"))
            found.setdefault(key, []).append(name)
    ordered = sorted(found.items(), key=lambda item: (-len(item[1]), item[1]))
    return [{"count": len(names), "gpu": key[0], "os": key[1], "kernel": key[2], "runtime": key[3], "nodes": names}
            for key, names in ordered]
