# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""ConfigMaps that a policy names are read from a real API server, for the cluster and for hosts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ansible_collections.gpuops.nvidia.tests.unit.simulated.host_facts import facts

from tests.integration_cluster.conftest import Audit, Kubectl
from tests.integration_cluster.plays import LOCAL, play, run

LAYOUTS = "version: v1\nmig-configs: {half: [{devices: all, mig-enabled: false}]}\n"
COUNTERS = "DCGM_FI_DEV_GPU_TEMP, gauge, degrees\n"
SHARED = "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}\n"
DATA = {"layouts": {"config.yaml": LAYOUTS}, "clients": {"clients.yaml": "version: v1\n"},
        "counters": {"dcgm-metrics.csv": COUNTERS}, "sharing": {"two": SHARED}}
POLICY = {"driver": {"enabled": False}, "toolkit": {"enabled": False}, "nfd": {"enabled": False},
          "migManager": {"config": {"name": "layouts", "default": ""}, "gpuClientsConfig": {"name": "clients"}},
          "dcgmExporter": {"config": {"name": "counters"}, "imagePullSecrets": ["none"]},
          "devicePlugin": {"config": {"name": "sharing", "default": "two"}}}


def test_what_is_missing_is_refused_before_a_change_and_hosts_use_what_is_there(
        kubectl: Kubectl, kubeconfig: str, tmp_path: Path, audit: Audit, fresh: Callable[[], str]) -> None:
    space = fresh()
    variables: dict[str, Any] = {"gpu_placement": "cluster", "gpu_kubeconfig": kubeconfig, "gpu_policy": POLICY,
                                 "gpu_namespace": space}
    inventory = {"gpu_control": {"hosts": {"cluster": LOCAL}, "vars": variables}}
    options: dict[str, Any] = {"policy": {**POLICY, "driver": {}}, "kubeconfig": kubeconfig, "namespace": space,
                               "placement": "hosts", "facts": {"gpu01": facts()},
                               "overrides": {"gpu01": {"mig_manager_selected": "half"}}}
    calls = [options, {**options, "policy": POLICY, "placement": "cluster", "facts": {}, "overrides": {}}]
    tasks = [{"gpuops.nvidia.gpu_policy": one, "ignore_errors": True} for one in calls]
    kubectl("create", "namespace", space)
    try:
        audit.start()
        done = run(tmp_path, "site", inventory)
        words = " ".join(done.output.split())
        assert done.rc == 2, done.output
        for section, name in (("migManager.config", "layouts"), ("migManager.gpuClientsConfig", "clients"),
                              ("dcgmExporter.config", "counters"), ("devicePlugin.config", "sharing")):
            assert f"{section}.name: ConfigMap '{name}' is not in namespace {space}, so the pods of" in words
        assert f"kubectl -n {space} create configmap layouts --from-file=config.yaml" in words
        assert not [one for one in audit.writes if one["agent"] == "gpuops.nvidia"]
        for name, data in DATA.items():
            kubectl("create", "--filename", "-", stdin={
                "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": space}, "data": data})
        on_hosts, in_cluster = (one["result"] for one in play(tmp_path, tasks).results)
        assert "hosts" in on_hosts, on_hosts["msg"]
        host = on_hosts["hosts"]["gpu01"]
        assert "half" in host["mig_manager"]["config"]["mig-configs"]
        assert host["dcgm_exporter"]["counters"] == COUNTERS
        assert host["feature_discovery"]["sharing"]["sharing"]["timeSlicing"]["resources"][0]["replicas"] == 2
        assert in_cluster["cluster"]["components"]["mig_manager"]["config"]["name"] == "layouts"
        assert [one for one in in_cluster["notes"] if one.startswith("none: gpu_pull_secrets or imagePullSecrets")]
    finally:
        kubectl("delete", "namespace", space)
