# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""gpu_proxy in a cluster becomes variables of all containers that download packages, in upper and lower case, as GPU
Operator 26.7 sets them for the proxy of OpenShift."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.refusals import PolicyError
from ansible_collections.gpuops.nvidia.tests.unit.simulated.clusters import env, facts, node, objects, plan

PROXY = {"http": "http://p.example:3128", "https": "http://q.example:3128", "no_proxy": ".svc,10.0.0.0/8"}
SIDE = {"gds": {"enabled": True}, "gdrcopy": {"enabled": True}, "driver": {"rdma": {"enabled": True}}}
VARIABLES = {"HTTP_PROXY": "http://p.example:3128", "http_proxy": "http://p.example:3128",
             "HTTPS_PROXY": "http://q.example:3128", "https_proxy": "http://q.example:3128",
             "NO_PROXY": ".svc,10.0.0.0/8", "no_proxy": ".svc,10.0.0.0/8"}
SECRET = {"https": "http://me:s3cret@p.example:3128"}


def proxies(found: dict[str, Any], name: str, container: str) -> dict[str, str]:
    return {key: value for key, value in env(found, name, container).items() if key.lower().endswith("_proxy")}


def test_what_fetches_packages_has_it_and_nothing_else() -> None:
    found = objects(SIDE, proxy=PROXY)
    having = {(name, container["name"])
              for name, one in found.items() if one["kind"] == "DaemonSet"
              for pod in [one["spec"]["template"]["spec"]]
              for container in [*pod["containers"], *pod.get("initContainers", ())]
              if any(item["name"].lower().endswith("_proxy") for item in container.get("env", ()))}
    daemon_set = "DaemonSet/nvidia-driver-daemonset"
    assert having == {(daemon_set, "nvidia-driver-ctr"), (daemon_set, "nvidia-fs-ctr"),
                      (daemon_set, "nvidia-gdrcopy-ctr")}
    for container in ("nvidia-driver-ctr", "nvidia-fs-ctr", "nvidia-gdrcopy-ctr"):
        assert proxies(found, "nvidia-driver-daemonset", container) == VARIABLES


def test_the_policy_has_the_last_word() -> None:
    """The policy takes precedence in upper and lower case; otherwise, two programs of one container could use different
    proxies."""
    own = {"driver": {"env": [{"name": "https_proxy", "value": "http://own:1"}, {"name": "NO_PROXY", "value": ""}]}}
    assert proxies(objects(own, proxy=PROXY), "nvidia-driver-daemonset", "nvidia-driver-ctr") == {
        "HTTP_PROXY": "http://p.example:3128", "http_proxy": "http://p.example:3128",
        "https_proxy": "http://own:1", "NO_PROXY": ""}


def test_an_nvidia_driver_has_it_too() -> None:
    mine = {"apiVersion": "nvidia.com/v1alpha1", "kind": "NVIDIADriver", "metadata": {"name": "mine"}, "spec": {
        "driverType": "gpu", "image": "driver", "repository": "nvcr.io/nvidia", "version": "595.91.07"}}
    found = objects(mine, facts(node()), proxy=PROXY)
    name = next(one["metadata"]["name"] for one in found.values() if one["kind"] == "DaemonSet"
                and "-driver-mine-" in one["metadata"]["name"])
    assert proxies(found, name, "nvidia-driver-ctr") == VARIABLES


def test_modules_that_come_built_need_none() -> None:
    policy = {"driver": {"usePrecompiled": True, "version": "580", "repository": "quay.io/me"}}
    found = objects(policy, facts({**node(), "kernel": "5.15.0-84-generic"}), proxy=SECRET)
    assert not [one for one in found.values() if "_proxy" in str(one).lower()]


def test_a_password_is_in_no_daemon_set() -> None:
    with pytest.raises(PolicyError) as caught:
        plan(proxy=SECRET)
    text = str(caught.value.as_result())
    assert "driver.secretEnv names no Secret" in text and "create secret generic" in text and "s3cret" not in text
    made = plan({"driver": {"secretEnv": "driver-proxy"}}, {**facts(node()), "secrets": {"driver-proxy": True}},
                proxy=SECRET)
    assert "p.example" not in json.dumps(made)


def test_a_password_harms_nothing_where_the_driver_is_the_hosts() -> None:
    assert plan(placement="hybrid", hosts={"h": "n1"}, proxy=SECRET)["components"]["driver"]["state"] == "absent"
