# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every query of the rules and dashboards returns data in a real Prometheus that scrapes exporters with the metrics of
DCGM."""

from __future__ import annotations

import functools
import json
import re
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import monitoring
from ansible_collections.gpuops.nvidia.tests.unit.simulated.clusters import facts, node, objects

from lab.tools import prometheus_programs
from tests.conformance.monitoring import fleet

# The names that the exporter's etc/dcp-metrics-included.csv and etc/default-counters.csv switch on.
VENDOR = frozenset((Path(__file__).parent / "vendor-counters.txt").read_text().split())
FULL = "Requires gpu_monitoring.counters: full."


@functools.lru_cache(maxsize=None)
def standard() -> dict[str, dict[str, Any]]:
    """The rules and dashboards with all options enabled."""
    return rendered()


HONEST = {"dcgmExporter": {"serviceMonitor": {"enabled": True, "honorLabels": True}}}


def rendered(policy: Any = None, **wanted: Any) -> dict[str, dict[str, Any]]:
    given = {"rules": True, "dashboards": True, "counters": "full", "thresholds": {"power": 600}, **wanted}
    cluster = {**facts(node(), monitors=True), "prometheus_rules": True}
    return objects(policy, cluster, monitoring=monitoring.read(given))


def dashboards(found: dict[str, Any] | None = None) -> dict[str, dict[str, Any]]:
    data = (found or standard())["ConfigMap/nvidia-dcgm-exporter-dashboards"]["data"]
    return {name: json.loads(text) for name, text in data.items()}


def rules(found: dict[str, Any] | None = None) -> dict[str, dict[str, Any]]:
    groups = (found or standard())["PrometheusRule/nvidia-dcgm-exporter"]["spec"]["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


PANELS = [(name, panel, target["expr"]) for name, board in dashboards().items() for panel in board["panels"]
          for target in panel["targets"]]
VARIABLES = [(name, one["definition"]) for name, board in dashboards().items()
             for one in board["templating"]["list"] if one["type"] == "query"]
NAMED = [f"{name}: {panel['title']}" for name, panel, _expression in PANELS]


class Prometheus:
    """A running Prometheus. ask: returns an answer of its HTTP API."""

    def __init__(self, address: str) -> None:
        self.url = f"http://{address}/api/v1/"

    def ask(self, path: str, **words: str) -> Any:
        with urllib.request.urlopen(f"{self.url}{path}?{urllib.parse.urlencode(words)}", timeout=60) as answer:
            return json.load(answer)["data"]

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        found = self.ask("query", query=expression)["result"]
        return [(one["metric"], float(one["value"][1])) for one in found]


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus with the default settings of the ServiceMonitor."""
    yield from running(tmp_path_factory.mktemp("prometheus"))


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus that honours the labels of the exporter."""
    yield from running(tmp_path_factory.mktemp("honest"), honoured=True)


def running(folder: Path, honoured: bool = False) -> Iterator[Prometheus]:
    """A Prometheus with an hour of history, with the rules loaded and all targets scraped."""
    programs, found = prometheus_programs(), rendered(HONEST if honoured else None)
    start = time.time()
    (folder / "history").write_text(fleet.history(start, honoured))
    subprocess.run([programs / "promtool", "tsdb", "create-blocks-from", "openmetrics", "history", "data"], cwd=folder,
                   check=True, capture_output=True)
    (folder / "rules.yml").write_text(yaml.safe_dump(found["PrometheusRule/nvidia-dcgm-exporter"]["spec"]))
    with fleet.exporters(start, honoured) as targets, open(folder / "log", "w") as log:
        (folder / "prometheus.yml").write_text(yaml.safe_dump({
            "global": {"evaluation_interval": "1s"}, "rule_files": ["rules.yml"], "scrape_configs": targets}))
        process = subprocess.Popen([
            programs / "prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=data",
            "--web.listen-address=127.0.0.1:0"], cwd=folder, stdout=log, stderr=log)
        try:
            yield _await(process, folder / "log")
        finally:
            process.terminate()
            process.wait(120)


def _await(process: subprocess.Popen[bytes], log: Path) -> Prometheus:
    """Waits until every target has been scraped three times and every rule has been evaluated after that."""
    end, scraped = time.monotonic() + 240, 0.0
    while time.monotonic() < end and process.poll() is None:
        time.sleep(0.3)
        listens = re.search(r'"Listening on" address=(\S+)', log.read_text())
        if not listens:
            continue
        served = Prometheus(listens[1])
        try:
            if not scraped and len(served.query("count_over_time(up[1m]) >= 3")) == 4:
                scraped = time.time()
            groups = served.ask("rules")["groups"]
        except OSError:  # it listens before it is ready
            continue
        if scraped and groups and all(_evaluated(group) > scraped for group in groups):
            return served
    raise AssertionError(f"Prometheus ({process.poll() or 'running'}) has no data:\n{log.read_text()[-3000:]}")


def _evaluated(group: dict[str, Any]) -> float:
    """When a rule of the group was last evaluated, by the rule that was evaluated first; the year 1 means never."""
    return min(_timestamp(rule["lastEvaluation"]) for rule in group["rules"])


def _timestamp(text: str) -> float:
    """Parses a time with nanoseconds in any time zone."""
    whole, fraction, zone = re.fullmatch(r"(.{19})(\.\d+)?(.*)", text).groups()  # type: ignore[union-attr]
    return 0.0 if whole < "1970" else datetime.fromisoformat(whole + zone).timestamp() + float(fraction or 0)


def filled(expression: str) -> str:
    """The query of a dashboard with all variables set to All."""
    return expression.replace("$node", ".*").replace("$gpu", ".*")


def names(expression: str) -> set[str]:
    return set(re.findall(r"DCGM_\w+", expression))


@pytest.mark.parametrize(("name", "panel", "expression"), PANELS, ids=NAMED)
def test_every_panel_has_data(prometheus: Prometheus, name: str, panel: dict[str, Any], expression: str) -> None:
    assert prometheus.query(filled(expression)), expression


@pytest.mark.parametrize("panel", [panel for _name, panel, _expression in PANELS if panel["type"] == "table"],
                         ids=[named for named, one in zip(NAMED, PANELS) if one[1]["type"] == "table"])
def test_every_column_of_a_table_has_a_heading_and_a_place(prometheus: Prometheus, panel: dict[str, Any]) -> None:
    (organize,) = panel["transformations"]
    options = organize["options"]
    answered = {key for labels, _value in prometheus.query(filled(panel["targets"][0]["expr"])) for key in labels}
    shown = list(options["renameByName"])
    assert answered <= set(shown) | set(options["excludeByName"])
    assert options["indexByName"] == {key: place for place, key in enumerate(shown)}
    assert ("Value" in shown) != ("Value" in options["excludeByName"])


def test_no_number_takes_the_colours_that_grafana_gives_by_itself() -> None:
    """Without explicit thresholds, Grafana shows every number above 80 in red, whether it counts nodes or watts."""
    for _name, panel, _expression in PANELS:
        if panel["type"] == "stat":
            first, *more = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
            assert first == {"color": "green", "value": None} and all(step["color"] == "red" for step in more)


@pytest.mark.parametrize(("name", "definition"), VARIABLES)
def test_every_variable_of_a_dashboard_has_values(prometheus: Prometheus, name: str, definition: str) -> None:
    match = re.fullmatch(r"label_values\((.*), (\w+)\)", definition)
    assert match is not None
    assert prometheus.ask(f"label/{match[2]}/values", **{"match[]": filled(match[1])})


VALUES = {
    "GPU fleet: Nodes": 2, "GPU fleet: GPUs": 4, "GPU fleet: MIG instances": 3, "GPU fleet: Hottest GPU": 92,
    "GPU fleet: Exporters that answer": 3, "GPU fleet: Exporters that do not": 1, "GPU fleet: GPUs held by Pods": 3,
    "GPU fleet: Power": 300 + 300 + 300 + 650, "GPU fleet: GPUs with a failed row remap": 1,
    # 0.3 kWh of each of four, and five sixths of it of the lost one
    "GPU fleet: Energy, last hour": pytest.approx(1.45, rel=0.05),
    "GPU instances (MIG): GPUs in MIG mode": 1, "GPU instances (MIG): Instances": 3,
    "GPU instances (MIG): Allocated to pods": 2, "GPU instances (MIG): Free": 1,
}


def number(served: Prometheus, place: str, boards: dict[str, dict[str, Any]]) -> float:
    """The value that a panel shows."""
    board, _colon, title = place.partition(": ")
    panel = next(one for found in boards.values() if found["title"] == board for one in found["panels"]
                 if one["title"] == title)
    (_labels, value), = served.query(filled(panel["targets"][0]["expr"]))
    return value


@pytest.mark.parametrize("place", VALUES)
def test_numbers(prometheus: Prometheus, place: str) -> None:
    assert number(prometheus, place, dashboards()) == VALUES[place]


# Whom each alert is about: the target, or GPU and instance.
FIRES = {
    "GpuExporterDown": ["n3"], "GpuExporterSilent": ["n4"], "GpuLost": ["GPU-n2-2"], "GpuHot": ["GPU-n2-1"],
    "GpuMemoryHot": ["GPU-n2-1"], "GpuPowerHigh": ["GPU-n2-1"], "GpuXidFatal": ["GPU-n2-1"], "GpuXid": ["GPU-n2-1"],
    "GpuRowRemapFailed": ["GPU-n2-1"], "GpuRowsRemapped": ["GPU-n2-1"], "GpuIdle": ["GPU-n1-1"],
    "MigIdle": ["GPU-n2-0/9"], "GpuEccDoubleBit": ["GPU-n2-1"], "GpuThrottledByHeat": ["GPU-n2-1"],
    "GpuThrottledByPower": ["GPU-n2-1"],
}


def test_every_alert_is_in_the_table() -> None:
    assert sorted(FIRES) == sorted(rules())


@pytest.mark.parametrize("alert", FIRES)
def test_an_alert_is_about_the_right_ones_only(prometheus: Prometheus, alert: str) -> None:
    assert about(prometheus, rules()[alert]) == FIRES[alert]


def about(served: Prometheus, rule: dict[str, Any]) -> list[str]:
    """The GPUs or nodes for which a rule fires now."""
    found = [labels for labels, _value in served.query(rule["expr"])]
    return ["/".join(filter(None, (one.get("UUID") or one["instance"], one.get("GPU_I_ID")))) for one in found]


def test_the_same_where_prometheus_honours_the_exporters_labels(honest: Prometheus) -> None:
    """With honoured labels, a GPU that no pod uses has the labels of the exporter's pod."""
    found = rendered(HONEST)
    assert {alert: about(honest, rule) for alert, rule in rules(found).items()} == FIRES
    boards = dashboards(found)
    assert {place: number(honest, place, boards) for place in VALUES} == VALUES
    every = [target["expr"] for board in boards.values() for panel in board["panels"] for target in panel["targets"]]
    assert [expression for expression in every if not honest.query(filled(expression))] == []


def test_texts_of_alerts_are_whole(prometheus: Prometheus) -> None:
    """A missing label or a wrong template would be visible in the text."""
    alerts = {one["labels"]["alertname"]: one["annotations"] for one in prometheus.ask("alerts")["alerts"]}
    assert sorted(alerts) == sorted(FIRES), prometheus.ask("rules")
    for texts in alerts.values():
        assert not re.search(r"<|no value|  |of $", texts["summary"]), texts
    assert alerts["GpuIdle"]["summary"] == "notebooks/nb-0 has GPU 1 of n1 and does not use it"
    assert re.fullmatch(r"GPU 1 of n2 is slowed down by heat for (1[5-9]|2[0-5]) % of the time",
                        alerts["GpuThrottledByHeat"]["summary"])


# -- names

def test_the_seeds_panels_are_there() -> None:
    """Five panels of a tutorial about the operator, with the same queries except for the selection of node and GPU."""
    board = next(one for one in dashboards().values() if one["title"] == "GPU nodes")
    found = {panel["title"]: re.sub(r"\{[^}]*\}", "", panel["targets"][0]["expr"]) for panel in board["panels"]}
    wanted = {
        "GPU Utilization": "DCGM_FI_DEV_GPU_UTIL",
        "Memory Usage": "DCGM_FI_DEV_FB_USED / (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE) * 100",
        "GPU Temperature": "DCGM_FI_DEV_GPU_TEMP", "Power Usage": "DCGM_FI_DEV_POWER_USAGE",
        "XID Errors": "rate(DCGM_FI_DEV_XID_ERRORS[5m])"}
    assert {title: found.get(title) for title in wanted} == wanted


def test_what_the_exporter_collects_by_itself_is_enough_unless_it_is_said() -> None:
    for name, panel, expression in PANELS:
        if FULL not in panel.get("description", ""):
            assert names(expression) <= VENDOR, (name, panel["title"])
    groups = rendered(counters="vendor")["PrometheusRule/nvidia-dcgm-exporter"]["spec"]["groups"]
    for rule in (rule for group in groups for rule in group["rules"]):
        assert names(rule["expr"]) <= VENDOR, rule["alert"]


def test_full_counters_are_the_exporters_own_and_all_that_is_asked_for() -> None:
    text = standard()["ConfigMap/nvidia-dcgm-exporter-counters"]["data"]["dcgm-metrics.csv"]
    rows = [line.split(",", 2) for line in text.splitlines() if line and not line.startswith("#")]
    assert {row[1].strip() for row in rows} == {"gauge", "counter", "label"} and all(row[2].strip() for row in rows)
    ours = {row[0] for row in rows}
    assert ours >= VENDOR
    assert ours >= set().union(*(names(one) for one in [*(expression for _name, _panel, expression in PANELS),
                                                        *(rule["expr"] for rule in rules().values())]))
    assert ours - {"DCGM_FI_DRIVER_VERSION"} == set().union(*(fleet.values(gpu, 0) for gpu in fleet.GPUS))
