# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""For the same policy and Nodes, our manifests have the same facts as the objects of real GPU Operators.

These operators ran on a live API server with simulated Nodes. exceptions.yaml lists each exception with its reason.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from tests.conformance.cluster import cases


@pytest.mark.parametrize("name", cases.NAMES)
def test_facts(name: str) -> None:
    assert cases.compared(name)[0] == []


def test_each_exception_is_needed() -> None:
    """Each pattern is needed for each group of policies that it names."""
    needed = {name: cases.compared(name)[1] for name in cases.NAMES}
    unused = [(one["reason"], pattern) for one in cases.exceptions() for pattern in one["paths"]
              if not any(pattern in needed[name] for which in one["policies"] for name in cases.matching(which))]
    idle = [which for one in cases.exceptions() for which in one["policies"]
            if not any(needed[name] & set(one["paths"]) for name in cases.matching(which))]
    assert (unused, idle) == ([], [])


def test_exceptions_are_few_and_have_reasons() -> None:
    assert len(cases.exceptions()) <= 25
    assert all(set(one) == {"paths", "policies", "reason"} and one["reason"] for one in cases.exceptions())


def test_facts_are_many() -> None:
    """Guards against an empty comparison: there are hundreds of facts, of all eight DaemonSets, and policies change
    them."""
    facts = cases.expected("default")
    assert len(facts) > 500
    assert len({path.split(" | ")[1] for path in facts if path.startswith("DaemonSet")}) == 8
    assert len(cases.NAMES) >= 25
    assert [name for name in cases.NAMES if name != "default" and not cases.case(name)["facts"]] == []


def _daemon_set(manifests: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(one for one in manifests if one["kind"] == "DaemonSet" and one["metadata"]["name"] == name)["spec"]


def _pod(manifests: list[dict[str, Any]], name: str = "nvidia-device-plugin-daemonset") -> dict[str, Any]:
    return _daemon_set(manifests, name)["template"]["spec"]


@pytest.mark.parametrize("spoil", [
    lambda all_: _pod(all_)["containers"][0]["env"].pop(),
    lambda all_: _pod(all_)["containers"][0]["env"].append({"name": "NEW", "value": "1"}),
    lambda all_: _pod(all_)["containers"][0].update(image="other"),
    lambda all_: _pod(all_)["containers"][0].update(imagePullPolicy="Always"),
    lambda all_: _pod(all_)["containers"][0].update(resources={"limits": {"cpu": 1}}),
    lambda all_: _pod(all_)["containers"][0]["securityContext"].clear(),
    lambda all_: _pod(all_)["containers"][0]["volumeMounts"][0].pop("readOnly"),
    lambda all_: _pod(all_)["volumes"][-1]["hostPath"].update(path="/elsewhere"),
    lambda all_: _pod(all_)["initContainers"].pop(),
    lambda all_: _pod(all_).pop("runtimeClassName"),
    lambda all_: _pod(all_).update(hostPID=True),
    lambda all_: _pod(all_).update(imagePullSecrets=[{"name": "mine"}]),
    lambda all_: _pod(all_).update(dnsPolicy="Default"),
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
    manifests = copy.deepcopy(cases.ours("default"))
    spoil(manifests)
    assert len(cases.differences("default", manifests)[0]) >= 1
