# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""gpu_monitoring: when rules, dashboards and counters are delivered, and how thresholds reach them.

The tests in tests/conformance/monitoring prove with a real Prometheus that the queries return data and that alerts
fire.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.refusals import PolicyError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.read_cluster import read_cluster
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import monitoring
from ansible_collections.gpuops.nvidia.tests.unit.nodes.test_read_cluster import MONITORS, Fake
from ansible_collections.gpuops.nvidia.tests.unit.simulated.clusters import env, facts, node, objects, plan, pod

EXPORTER = "nvidia-dcgm-exporter"
RULE, BOARDS, COUNTERS = (f"PrometheusRule/{EXPORTER}", f"ConfigMap/{EXPORTER}-dashboards",
                          f"ConfigMap/{EXPORTER}-counters")
OWN = {"dcgmExporter": {"config": {"name": "mine"}}}


def cluster(monitors: bool = True, rules: bool = True) -> dict[str, Any]:
    return {**facts(node(), monitors=monitors), "prometheus_rules": rules}


def delivered(seen: dict[str, Any], policy: Any = None, release: str = "26.7.0", **wanted: Any) -> dict[str, Any]:
    return objects(policy, seen, release=release, monitoring=monitoring.read(wanted))


def alerts(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {rule["alert"]: rule for group in found[RULE]["spec"]["groups"] for rule in group["rules"]}


@pytest.mark.parametrize(("seen", "policy", "wanted", "made"), [
    (cluster(), None, {}, [RULE]),
    # without a monitor rules have nothing to go on, unless somebody asks
    (cluster(), {"dcgmExporter": {"serviceMonitor": {"enabled": False}}}, {}, []),
    (cluster(), {"dcgmExporter": {"serviceMonitor": {"enabled": False}}}, {"rules": True}, [RULE]),
    (cluster(rules=False), None, {}, []),
    (cluster(monitors=False, rules=False), None, {}, []),
    (cluster(), None, {"rules": False}, []),
    (cluster(), None, {"dashboards": True, "rules": False}, [BOARDS]),
    (cluster(rules=False), None, {"dashboards": True, "counters": "full"}, [BOARDS, COUNTERS]),
    (cluster(), {"dcgmExporter": {"enabled": False}}, {"dashboards": True}, []),
])
def test_what_is_delivered(seen: dict[str, Any], policy: Any, wanted: dict[str, Any], made: list[str]) -> None:
    found = delivered(seen, policy, **wanted)
    assert [one for one in (RULE, BOARDS, COUNTERS) if one in found] == made


@pytest.mark.parametrize(("seen", "policy", "wanted", "told"), [
    (cluster(rules=False), None, {"rules": True},
     "gpu_monitoring.rules is true, but the cluster has no PrometheusRule"),
    (cluster(), OWN, {"counters": "full"}, "gpu_monitoring.counters is full, but dcgmExporter.config"),
])
def test_what_cannot_be_is_refused(seen: dict[str, Any], policy: Any, wanted: dict[str, Any], told: str) -> None:
    with pytest.raises(PolicyError, match=told):
        plan(policy, seen, monitoring=monitoring.read(wanted))


@pytest.mark.parametrize(("wanted", "told"), [
    ({"rule": True}, "rule: unknown key; did you mean 'rules'"),
    ({"rules": "yes"}, "rules: true or false is expected, not 'yes'"),
    ({"counters": "all"}, "counters: 'all' is not allowed; allowed: 'vendor', 'full'"),
    ({"thresholds": {"temp": 80}}, "thresholds.temp: unknown key"),
    ({"thresholds": {"temperature": 851}}, "thresholds.temperature: 851 is too large; the largest value is 150"),
    ({"thresholds": {"fatal_xids": ["79"]}}, r"thresholds.fatal_xids\[0\]: a whole number is expected, not '79'"),
    ({"dashboard_labels": []}, "dashboard_labels: a mapping of strings is expected"),
    ({"rule": 1, "rules": 2}, "gpu_monitoring has 2 faults"),
    ("all", "a mapping is expected, not 'all'"),
])
def test_wrong_values(wanted: Any, told: str) -> None:
    with pytest.raises(InputError, match=told):
        monitoring.read(wanted)


def test_thresholds_reach_the_rules() -> None:
    found = alerts(delivered(cluster(), thresholds={
        "temperature": 70, "power": 250, "idle_percent": 3, "idle_minutes": 30, "lost_hours": 1,
        "fatal_xids": [79, 48]}))
    assert found["GpuHot"]["expr"].endswith("> 70")
    assert found["GpuMemoryHot"]["expr"].endswith("> 95")
    assert found["GpuPowerHigh"]["expr"].endswith("> 250")
    assert found["GpuIdle"]["expr"].endswith("< 3") and found["GpuIdle"]["for"] == "30m"
    assert "[1h]" in found["GpuLost"]["expr"]
    assert "DCGM_FI_DEV_XID_ERRORS == 79 or DCGM_FI_DEV_XID_ERRORS == 48)" in found["GpuXidFatal"]["expr"]
    assert {"GpuPowerHigh", "GpuXidFatal"}.isdisjoint(alerts(delivered(cluster(), thresholds={"fatal_xids": []})))


def test_rules_of_more_counters_come_with_these() -> None:
    more = {"GpuEccDoubleBit", "GpuThrottledByHeat", "GpuThrottledByPower"}
    assert more.isdisjoint(alerts(delivered(cluster())))
    assert more <= set(alerts(delivered(cluster(), counters="full")))
    # what somebody's own file collects is not known
    assert more <= set(alerts(delivered(cluster(), OWN)))


def test_full_counters_are_what_the_exporter_reads() -> None:
    found = delivered(cluster(), counters="full")
    assert env(found, EXPORTER)["DCGM_EXPORTER_COLLECTORS"] == "/etc/dcgm-exporter/dcgm-metrics.csv"
    assert "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL, counter," in found[COUNTERS]["data"]["dcgm-metrics.csv"]
    assert [one["configMap"]["name"] for one in pod(found, EXPORTER)["volumes"] if "configMap" in one] == [
        f"{EXPORTER}-counters"]


def test_the_exporter_is_replaced_when_its_counters_change() -> None:
    def mark(text: str) -> Any:
        config = {"create": True, "name": "mine", "data": text}
        found = delivered(cluster(), {"dcgmExporter": {"config": config}})
        return found[f"DaemonSet/{EXPORTER}"]["spec"]["template"]["metadata"]["annotations"]["gpuops.nvidia/config"]

    assert mark("A, gauge, a\n") == mark("A, gauge, a\n") != mark("B, gauge, b\n")
    assert "annotations" not in delivered(cluster())[f"DaemonSet/{EXPORTER}"]["spec"]["template"]["metadata"]


@pytest.mark.parametrize(("release", "policy", "label"), [
    ("26.7.0", None, "hostname"), ("26.3.3", None, "Hostname"), ("24.9.2", None, "Hostname"),
    ("26.7.0", {"dcgmExporter": {"version": "4.5.3-4.8.2-distroless", "repository": "nvcr.io/nvidia/k8s",
                                 "image": "dcgm-exporter"}}, "Hostname"),
])
def test_the_node_has_the_name_that_the_exporter_gives_it(release: str, policy: Any, label: str) -> None:
    found = delivered(cluster(), policy, release, rules=True, dashboards=True)
    text = json.dumps(found[RULE]) + json.dumps(found[BOARDS])
    other = {"hostname": "Hostname", "Hostname": "hostname"}[label]
    assert f"({label}, gpu" in text and other not in text


def test_pods_have_the_labels_that_the_monitor_leaves_them() -> None:
    honest = {"dcgmExporter": {"serviceMonitor": {"enabled": True, "honorLabels": True}}}
    assert "exported_" in json.dumps(delivered(cluster(), dashboards=True)[BOARDS])
    found = delivered(cluster(), honest, dashboards=True)
    assert "exported_" not in json.dumps(found[BOARDS]) + json.dumps(found[RULE])
    # of a GPU that nobody holds the Pod is the exporter's
    assert '{pod!="", container!="nvidia-dcgm-exporter"}' in alerts(found)["GpuIdle"]["expr"]


def test_labels_by_which_others_find_them() -> None:
    found = delivered(cluster(), dashboards=True, rule_labels={"release": "prometheus"})
    assert found[BOARDS]["metadata"]["labels"] == {"grafana_dashboard": "1"}
    assert found[RULE]["metadata"]["labels"]["release"] == "prometheus"
    mine = delivered(cluster(), dashboards=True, dashboard_labels={"a": "b"})
    assert mine[BOARDS]["metadata"]["labels"] == {"a": "b"}


def test_the_cluster_is_asked_for_rules_where_it_has_monitors() -> None:
    rules = "prometheusrules.monitoring.coreos.com"
    assert read_cluster(Fake(definitions={MONITORS: {}, rules: {}}))["prometheus_rules"] is True
    assert read_cluster(Fake(definitions={rules: {}}))["prometheus_rules"] is False
