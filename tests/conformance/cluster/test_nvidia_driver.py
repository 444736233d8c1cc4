# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What we render for an NVIDIADriver is what GPU Operator 26.7.0 renders for it, fact by fact."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._cluster.render import render
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import components, formats, matrix
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.cluster import resolve_cluster

from tests.conformance.cluster.test_facts import FOLDER, RELEASE, differences

VARIABLES = [{"name": "FOO", "value": "foo"}, {"name": "BAR", "value": "bar"}]
SPECS: dict[str, dict[str, Any]] = {
    "minimal": {},
    "full": {
        "args": ["--foo", "--bar"], "env": VARIABLES, "manager": {"env": VARIABLES}, "kernelModuleType": "open",
        "labels": {"custom-label-1": "custom-value-1", "custom-label-2": "custom-value-2"},
        "annotations": {"custom-annotation-1": "custom-value-1", "custom-annotation-2": "custom-value-2"},
        "priorityClassName": "custom-priority-class-name", "hostNetwork": True,
        "nodeSelector": {"example.com/foo": "foo", "example.com/bar": "bar"},
        "tolerations": [{"key": "foo", "operator": "Equal", "value": "bar", "effect": "NoSchedule"}],
        "rdma": {"enabled": True, "useHostMofed": True}, "gds": {"enabled": True}, "gdrcopy": {"enabled": True},
        "licensingConfig": {"name": "licensing-config-configmap", "nlsEnabled": True}},
    "precompiled": {"usePrecompiled": True, "version": "580"},
}
# (end of paths, why we differ). One that is not needed fails.
ALWAYS = (
    ("serviceAccountName", "one account, nvidia-driver, serves all drivers"),
    (" | app", "the object's name, which holds the NVIDIADriver's instead of a hash of its uid"),
    ("system-os_release.ID", "the operator's test leaves out the pool's labels"),
    ("system-os_release.VERSION_ID", "the operator's test leaves out the pool's labels"),
)
UNTOLD = ("env | KERNEL_MODULE_TYPE", "the definition's default, which the operator's test does not fill in")
EXCEPTIONS = {
    "minimal": (*ALWAYS, UNTOLD), "precompiled": (*ALWAYS, UNTOLD),
    "full": (
        *ALWAYS,
        ("nvidia-fs-ctr | image", "no real tag in the operator's test"),
        ("nvidia-gdrcopy-ctr | image", "no real tag in the operator's test"),
        ("nvidia-fs-ctr | command", "the script does not log each of its commands"),
        ("nvidia-gdrcopy-ctr | command", "the script does not log each of its commands"),
        ("client_configuration_token.tok", "read-only, as the operator has it and its test leaves out"),
        ("gridd.conf", "read-only, as the operator has it and its test leaves out"),
    ),
}


def rendered(spec: dict[str, Any]) -> list[dict[str, Any]]:
    """The DaemonSet of a fleet of one Node."""
    release = matrix.release(RELEASE)
    labels = dict(spec.get("nodeSelector") or {})
    seen = {"server": "", "version": "v1.36.0", "nfd": "none", "service_monitors": False,
            "config_maps": {"licensing-config-configmap": {"gridd.conf": "", "client_configuration_token.tok": ""}},
            "nodes": {"n": {"labels": labels, "annotations": {}, "os": {"id": "ubuntu", "version": "22.04"},
                            "os_image": "", "kernel": "5.15.0-84-generic", "arch": "amd64", "runtime": "containerd",
                            "runtime_version": "2.1.0", "kubelet": "v1.36.0", "provider": None, "taints": [],
                            "ready": True, "gpu": True}}}
    document = {"apiVersion": "nvidia.com/v1alpha1", "kind": "NVIDIADriver", "metadata": {"name": "mine"},
                "spec": {"driverType": "gpu", "image": "driver", "default": False, **spec}}
    plan = resolve_cluster(formats.read(document, release), release, seen, components.placements("cluster"), {}, {},
                           "drain")
    return [one for one in render("driver", plan) if one["kind"] == "DaemonSet"]


@pytest.mark.parametrize("name", list(SPECS))
def test_nvidia_driver(name: str) -> None:
    document = yaml.safe_load((FOLDER / "nvidia_driver.yaml").read_text())
    made = rendered(SPECS[name])
    place = f"DaemonSet | {made[0]['metadata']['name']} | "
    facts = {f"{place}{path}": value for path, value in {**document["minimal"], **document[name]}.items()}
    ends = [end for end, _why in EXCEPTIONS[name]]
    told = {one.partition(": ours ")[0]: one for one in differences(made, facts, ())}
    assert [text for path, text in told.items() if not path.endswith(tuple(ends))] == []
    assert [end for end in ends if not any(path.endswith(end) for path in told)] == []


def test_the_facts_are_many() -> None:
    """The comparison is one of something."""
    document = yaml.safe_load((FOLDER / "nvidia_driver.yaml").read_text())
    assert len(document["minimal"]) > 70
    assert len(document["full"]) > 70
