# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Profiles on recorded facts: the facts of each system from gpu_info and from its Node.

The facts are in our own form. They contain what the documentation and sources of the systems say about os-release,
versions of kubelets and files; none was read on such a system.
"""

from __future__ import annotations

import pathlib
import re
import time
from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import components
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory.node_facts import facts_of_node
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning import profiles
from ansible_collections.gpuops.nvidia.tests.unit.simulated.host_facts import facts

DGX = {"name": "DGX Server", "version": "7.2.1"}


def host(os: str, kubernetes: str | None = None, **markers: Any) -> dict[str, Any]:
    """A host with this system, with the facts of gpu_info."""
    return facts(os=os, host={"markers": {"kubernetes": kubernetes, **markers}})


def node(image: str, kubelet: str, labels: dict[str, str] | None = None, kernel: str = "6.1.0",
         os: dict[str, str] | None = None) -> dict[str, Any]:
    """The facts of a Node whose host was not read."""
    return facts_of_node("n1", {
        "labels": {"nvidia.com/gpu.present": "true", **(labels or {})}, "annotations": {}, "os": os, "os_image": image,
        "kernel": kernel, "arch": "amd64", "runtime": "containerd", "runtime_version": "2.1.4", "ready": True,
        "gpu": True, "kubelet": kubelet, "provider": None, "taints": []})


THEIRS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "dgx_os": (host("ubuntu24.04", dgx=DGX), {"driver"}),
    "dgx_os+rke2": (host("ubuntu24.04", "rke2", dgx=DGX), {"driver"}),
    "bottlerocket": (node("Bottlerocket OS 1.34.0 (aws-k8s-1.33-nvidia)", "v1.33.3-eks-3abbec1"),
                     {"driver", "container_toolkit", "device_plugin", "mig_manager"}),
    "talos": (node("Talos (v1.13.2)", "v1.35.1"), {"driver", "container_toolkit"}),
    "flatcar": (host("flatcar4230.2.1", "kubeadm", immutable=True), {"driver"}),
    "cos+gke": (node("Container-Optimized OS from Google", "v1.33.4-gke.1134000"), {"driver"}),
    "gke": (node("Ubuntu 22.04.5 LTS", "v1.33.4-gke.1134000", os={"id": "ubuntu", "version": "22.04"}), {"driver"}),
    "aks": (node("Ubuntu 22.04.5 LTS", "v1.33.3", {"kubernetes.azure.com/agentpool": "gpu"},
                 "5.15.0-1089-azure", {"id": "ubuntu", "version": "22.04"}), {"driver", "container_toolkit"}),
    "eks": (node("Amazon Linux 2023.8.20250818", "v1.33.3-eks-3abbec1", os={"id": "amzn", "version": "2023"}),
            {"driver", "container_toolkit"}),
    "openshift": (node("Red Hat Enterprise Linux CoreOS 9.6.20250715-0", "v1.33.2",
                       {"node.openshift.io/os_id": "rhel"}, os={"id": "rhcos", "version": "4.20"}),
                  {"nfd", "driver", "container_toolkit"}),
    "preinstalled": (facts(driver={"source": "preinstalled", "loaded": "580.95.05", "library": "580.95.05"}),
                     {"driver"}),
    "k3s": (node("Ubuntu 24.04.3 LTS", "v1.34.1+k3s1", os={"id": "ubuntu", "version": "24.04"}), set()),
    "rke2": (host("rhel9.6", "rke2"), set()),
}
PLAIN = {
    "a host of its own": host("ubuntu24.04"),
    "kubeadm": host("ubuntu24.04", "kubeadm"),
    # Amazon's images for Ubuntu come without a driver.
    "EKS with Ubuntu": node("Ubuntu 22.04.5 LTS", "v1.33.3-eks-3abbec1", os={"id": "ubuntu", "version": "22.04"}),
    "a driver of a package source": facts(driver={"source": "distribution", "loaded": "580.95.05"}),
    "nothing known": {"host": {"os": {"id": None}, "markers": {"dgx": None, "kubernetes": None}}, "driver": {}},
}


@pytest.mark.parametrize("name", THEIRS)
def test_systems_are_known_by_their_facts(name: str) -> None:
    known, theirs = THEIRS[name]
    profile = profiles.chosen(known, "auto")
    assert profile is not None and profile.name == name
    assert {component for component in components.NAMES if profile.owner(component) == "theirs"} == theirs
    # One sentence with its source, and by what it was found.
    for part in profile.because.split("; found by "):
        assert part.endswith(")") and ": " in part
    assert profile.because.startswith("found by ")
    for component in theirs:
        assert profile.reason(component).split(":")[0] in profile.title


@pytest.mark.parametrize("name", PLAIN)
def test_plain_systems_have_no_profile(name: str) -> None:
    assert profiles.chosen(PLAIN[name]) is None


def test_every_profile_is_tried() -> None:
    assert {part for name in THEIRS for part in name.split("+")} == set(profiles.names())


def test_every_profile_is_documented() -> None:
    page = (pathlib.Path(__file__).parents[3] / "docs" / "profiles.md").read_text(encoding="utf-8")
    rows = {name: row for row in re.findall(r"^\| `.*$", page, re.M)
            for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    for name in profiles.names():
        theirs, fixed = rows[name].split("|")[2:4]
        for component in components.COMPONENTS:
            title = {"feature_discovery": "labels"}.get(component.name, component.title)
            assert (title in theirs) == (profiles.by_name(name).owner(component.name) == "theirs"), (name, title)
            assert (title in fixed) == (not profiles.by_name(name).replaceable(component.name)), (name, title)


def test_what_cannot_be_delivered_there() -> None:
    fixed = {name for name in profiles.names() if not profiles.by_name(name).replaceable("driver")}
    assert fixed == {"bottlerocket", "talos", "flatcar", "cos", "openshift"}
    assert profiles.by_name("aks").replaceable("driver"), "pools can be made without their driver"
    assert profiles.by_name("rke2").owner("container_toolkit") == "ours"


def test_a_user_decides() -> None:
    known = THEIRS["dgx_os"][0]
    assert profiles.chosen(known, "none") is None
    for asked in ("auto", "", None):
        assert profiles.chosen(known, asked) == profiles.detect(known)
    named = profiles.chosen(known, "talos")
    assert named is not None and named.name == "talos" and named.because.startswith("gpu_profile of this host; Talos ")
    both = profiles.by_name("dgx_os+eks")
    assert both.owner("container_toolkit") == "theirs" and both.title == "DGX OS and Amazon EKS"


@pytest.mark.parametrize("asked", ["talso", "dgx_os+talso", "all", "dgx_os+"])
def test_an_unknown_name_is_told_with_its_neighbours(asked: str) -> None:
    with pytest.raises(InputError) as caught:
        profiles.chosen({}, asked)
    message = str(caught.value)
    assert message.startswith("gpu_profile: ") and "rke2" in message and "none" in message
    assert ("Did you mean talos?" in message) == ("talso" in asked)


def test_settings_name_keys_of_a_policy() -> None:
    assert profiles.by_name("k3s").settings == {
        "toolkit.env.CONTAINERD_SOCKET": "/run/k3s/containerd/containerd.sock"}
    merged = profiles.detect(node("Container-Optimized OS from Google", "v1.34.1+k3s1"))
    assert merged is not None and set(merged.settings) == {
        "hostPaths.driverInstallDir", "toolkit.installDir", "toolkit.env.CONTAINERD_SOCKET"}


def test_fleets_take_no_time() -> None:
    known = [one for one, _theirs in THEIRS.values()]
    start = time.process_time()
    for _round in range(400):
        for one in known:
            profiles.chosen(one)
    assert time.process_time() - start < 1, f"{400 * len(known)} hosts"
