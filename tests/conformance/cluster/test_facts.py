# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What we render is what GPU Operator 26.7.0 was seen to make, fact by fact. Every exception has its reason."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._cluster.render import ORDER, render
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import components, formats, matrix
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.cluster import resolve_cluster

from tests.conformance.cluster.forms import facts_of, flat

FOLDER = Path(__file__).parent
RELEASE = "26.7.0"

# (beginning of paths, why we differ). One that is not needed fails.
EXCEPTIONS = (
    ("ClusterRole | nvidia-driver | config.openshift.io", "OpenShift is refused"),
    ("ClusterRole | nvidia-operator-validator | nvidia.com", "no object of ours has an owner whose finalizers count"),
    ("ClusterRole | nvidia-device-plugin-mps-control-daemon", "the pods run as nvidia-device-plugin"),
    ("ClusterRoleBinding | nvidia-device-plugin-mps-control-daemon", "the pods run as nvidia-device-plugin"),
    ("ServiceAccount | nvidia-device-plugin-mps-control-daemon", "the pods run as nvidia-device-plugin"),
    ("Role | nvidia-device-plugin-mps-control-daemon", "the pods run as nvidia-device-plugin"),
    ("RoleBinding | nvidia-device-plugin-mps-control-daemon", "the pods run as nvidia-device-plugin"),
    ("Role | nvidia-container-toolkit | security.openshift.io", "OpenShift is refused"),
    ("Role | nvidia-gpu-feature-discovery | security.openshift.io", "OpenShift is refused"),
    ("Role | nvidia-mig-manager | security.openshift.io", "OpenShift is refused"),
    ("Role | nvidia-operator-validator | security.openshift.io", "OpenShift is refused"),
    ("Role | nvidia-device-plugin | security.openshift.io", "OpenShift is refused"),
    ("RoleBinding | nvidia-device-plugin | ", "OpenShift is refused, no rule is left"),
    ("Role | nvidia-driver | security.openshift.io", "OpenShift is refused"),
    ("RoleBinding | nvidia-driver | ", "OpenShift is refused, no rule is left"),
    ("Role | nvidia-dcgm-exporter | ", "its pods have no token; the role comes with the settings that give them one"),
    ("RoleBinding | nvidia-dcgm-exporter | ", "its pods have no token"),
)
MORE = (
    ("Role | nvidia-dcgm | ", "OpenShift is refused, no rule is left"),
    ("RoleBinding | nvidia-dcgm | ", "OpenShift is refused, no rule is left"),
    ("Role | nvidia-node-status-exporter | security.openshift.io", "OpenShift is refused"),
    ("DaemonSet | nvidia-driver-daemonset | containers | nvidia-gdrcopy-ctr | command",
     "the container's script does not log each of its commands"),
)


def rendered(policy: Any = None) -> list[dict[str, Any]]:
    """What the operator's components are made of; NFD is not among them."""
    release = matrix.release(RELEASE)
    plan = resolve_cluster(formats.read(policy, release), release, None, components.placements("cluster"), {},
                           {"node_os": ["ubuntu22.04"]}, "drain")
    return [manifest for name in ORDER if name != "nfd" for manifest in render(name, plan)]


def expected(more: bool = False) -> dict[str, Any]:
    facts = dict(flat(yaml.safe_load((FOLDER / "default.yaml").read_text())))
    if more:
        facts.update(yaml.safe_load((FOLDER / "more.yaml").read_text())["facts"])
    return facts


def differences(manifests: list[dict[str, Any]], facts: dict[str, Any], exceptions: tuple[tuple[str, str], ...]
                ) -> list[str]:
    """Facts that differ without an exception, and exceptions that nothing needs."""
    ours = dict(flat(facts_of(manifests)))
    paths = [path for path in sorted({*ours, *facts}) if ours.get(path) != facts.get(path)]
    said = [f"{path}: ours {ours.get(path)!r}, the operator's {facts.get(path)!r}" for path in paths
            if not path.startswith(tuple(start for start, _reason in exceptions))]
    unused = [start for start, _reason in exceptions if not any(path.startswith(start) for path in paths)]
    return said + [f"exception {start!r} is not needed" for start in unused]


def test_default_policy() -> None:
    assert differences(rendered(), expected(), EXCEPTIONS) == []


def test_more_switched_on() -> None:
    policy = yaml.safe_load((FOLDER / "more.yaml").read_text())["policy"]
    assert differences(rendered(policy), expected(more=True), (*EXCEPTIONS, *MORE)) == []


def test_facts_are_many() -> None:
    """The comparison is one of something: hundreds of facts, of all eight DaemonSets."""
    facts = expected()
    assert len(facts) > 500
    assert len({path.split(" | ")[1] for path in facts if path.startswith("DaemonSet")}) == 8


def _daemon_set(manifests: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(one for one in manifests if one["kind"] == "DaemonSet" and one["metadata"]["name"] == name)["spec"]


def _pod(manifests: list[dict[str, Any]], name: str = "nvidia-device-plugin-daemonset") -> dict[str, Any]:
    return _daemon_set(manifests, name)["template"]["spec"]


@pytest.mark.parametrize("spoil", [
    lambda all_: _pod(all_)["containers"][0]["env"].pop(),
    lambda all_: _pod(all_)["containers"][0]["env"].append({"name": "NEW", "value": "1"}),
    lambda all_: _pod(all_)["containers"][0].update(image="other"),
    lambda all_: _pod(all_)["containers"][0]["securityContext"].clear(),
    lambda all_: _pod(all_)["containers"][0]["volumeMounts"][0].pop("readOnly"),
    lambda all_: _pod(all_)["volumes"][-1]["hostPath"].update(path="/elsewhere"),
    lambda all_: _pod(all_)["initContainers"].pop(),
    lambda all_: _pod(all_).pop("runtimeClassName"),
    lambda all_: _pod(all_).update(hostPID=True),
    lambda all_: _pod(all_)["nodeSelector"].update({"more": "true"}),
    lambda all_: _pod(all_)["tolerations"].clear(),
    lambda all_: _pod(all_, "nvidia-dcgm-exporter")["containers"][0]["livenessProbe"].update(periodSeconds=6),
    lambda all_: _pod(all_, "nvidia-operator-validator")["initContainers"].reverse(),
    lambda all_: _daemon_set(all_, "nvidia-driver-daemonset")["updateStrategy"].update(type="RollingUpdate"),
    lambda all_: next(one for one in all_ if one["kind"] == "ClusterRole")["rules"][0]["verbs"].append("delete"),
    lambda all_: next(one for one in all_ if one["kind"] == "ConfigMap")["data"].clear(),
    lambda all_: all_.pop(),
])
def test_a_spoilt_object_is_seen(spoil: Callable[[list[dict[str, Any]]], Any]) -> None:
    manifests = copy.deepcopy(rendered())
    spoil(manifests)
    assert len(differences(manifests, expected(), EXCEPTIONS)) >= 1
