# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Names and defaults in the pages agree with roles, playbooks and tables of the code: variables, components, checks of
the preflight, constraints, profiles, metrics, thresholds of alerts, releases."""

from __future__ import annotations

import functools
import re
from typing import Any

import yaml
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import components, releases
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory import settings
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning import (
    preflight_cluster,
    preflight_health,
    preflight_host,
    profiles,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import monitoring
from ansible_collections.gpuops.nvidia.tests.unit.pages import HOME

PAGES = {path.name: path.read_text(encoding="utf-8") for path in (HOME / "docs").glob("*.md")}
PREFIXES = (*components.NAMES, "gpu", "maintenance", "preflight", "software", "hand_back")


@functools.lru_cache(maxsize=1)
def code() -> str:
    """The text of plugins, roles and playbooks."""
    return "\n".join(path.read_text(encoding="utf-8") for folder in ("plugins", "roles", "playbooks")
                     for path in sorted((HOME / folder).rglob("*")) if path.suffix in (".py", ".yml", ".j2"))


def table(page: str, header: str) -> list[list[str]]:
    """The cells of the rows of the table with this header."""
    lines = PAGES[page].partition(f"{header}\n")[2].partition("\n\n")[0].splitlines()[1:]
    assert lines, header
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in lines]


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_fleet_variables_have_their_defaults() -> None:
    for variable, _meaning, default in table("cluster.md", "| variable | meaning | default |"):
        name, = names(variable)
        value = "inventory_hostname" if name == "gpu_node_name" else settings.DEFAULTS.get(name.replace("gpu_", "", 1))
        assert names(default) == ([value] if value else []), name


def test_variables_of_the_maintenance_have_their_defaults() -> None:
    role = yaml.safe_load((HOME / "roles/maintenance/defaults/main.yml").read_text(encoding="utf-8"))
    known = {**role, **{f"gpu_{name}": value for name, value in settings.DEFAULTS.items()},
             "gpu_max_fail_percentage": 0}
    rows = table("maintenance.md", "| variable | default | meaning |")
    assert len(rows) > 5
    for variable, default, _meaning in rows:
        assert yaml.safe_load(names(default)[0]) == known[names(variable)[0]], variable


def defaults_of(name: str) -> set[str]:
    """The numbers that a role or a playbook has as the default of a variable."""
    return {*re.findall(rf"^{name}: (\d+)$", code(), re.M),
            *re.findall(rf"^{name}: .*\| default\((\d+)\b", code(), re.M),
            *re.findall(rf"\b{name} \| default\((\d+)\b", code())}


def test_numbers_after_variables_are_their_defaults() -> None:
    found = [(page, *match) for page, text in PAGES.items()
             for match in re.findall(rf"`((?:{'|'.join(PREFIXES)})_\w+)`(?:\s\w+)?\s\((\d+)\b(?!\.)", text)]
    assert len(found) > 8
    for page, name, number in found:
        assert defaults_of(name) == {number}, (page, name)


def test_components_of_hosts_and_clusters() -> None:
    text = PAGES["cluster.md"]
    listed = re.findall(r"`(\w+)`", text.partition("GPU Operator initializes the components:")[2].partition(". ")[0])
    assert listed == [entry.name for entry in components.IN_CLUSTERS]
    component = next(row for row in table("glossary.md", "| word | meaning |") if row[0] == "component")
    assert set(names(component[1])) == set(components.NAMES)
    assert {name for row in table("components.md", "| component, role | default on hosts | what it installs |")
            for name in names(row[0])} == {*components.SOFTWARE, "validator"}


def test_checks_of_the_preflight() -> None:
    listed = {name for row in table("preflight.md", "| check | finds |") for name in names(row[0])}
    changing = {entry.name for entry in components.ON_HOSTS if entry.stage == 0}
    assert listed == {*preflight_host.CHECKS, *preflight_health.HEALTH_CHECKS,
                      *preflight_cluster.CLUSTER_CHECKS, *preflight_cluster.NODE_CHECKS,
                      *changing, "policy", "facts", "variables", "release"}


def test_constraints_of_drivers() -> None:
    listed = {name for row in table("refusals.md", "| Id | Excludes | Changed by |") for name in names(row[0])}
    text = (HOME / "plugins/plugin_utils/_drivers/constraints.py").read_text(encoding="utf-8")
    constraints = set(re.findall(r'Constraint\("([\w.]+)"', text))
    assert len(constraints) > 15
    assert constraints <= listed
    assert {name for name in listed - constraints if not name.startswith("gpu:")} == {"mig.strategy", "profile"}


TITLES = {"driver": "driver", "container toolkit": "container_toolkit", "device plugin": "device_plugin",
          "MIG": "mig_manager", "NFD": "nfd"}


def said(cell: str) -> tuple[set[str], set[str]]:
    """(components anywhere, components on hosts) in a cell such as C(NFD, on hosts also driver)."""
    anywhere, _on, hosts = cell.partition("on hosts")
    one, two = ({TITLES[title] for title in TITLES if re.search(rf"\b{title}\b", text)} for text in (anywhere, hosts))
    return one, one | two


def test_profiles() -> None:
    header = "| profile | components of the system | cannot be delivered on this system | detected by |"
    rows = {name: row for row in table("profiles.md", header) for name in names(row[0])}
    assert list(rows) == list(profiles.names())
    for name, (_name, included, fixed, _by) in rows.items():
        for cluster in (True, False):
            owners = profiles.by_name(name, cluster).components
            assert said(included)[not cluster] == set(owners), (name, cluster)
            assert said(fixed)[not cluster] == {one for one, how in owners.items() if how == "fixed"}, (name, cluster)


def test_metrics_of_hosts() -> None:
    found = [name for row in table("components.md", "| metric | meaning |") for name in names(row[0])]
    assert sorted(found) == sorted(set(re.findall(r'"(gpu(?:_operator|ops)_\w+)":', (
        HOME / "plugins/module_utils/_software/report.py").read_text(encoding="utf-8"))))


def test_thresholds_of_alerts() -> None:
    rows = table("monitoring.md", "| alert | when | severity | threshold |")
    cells = " ".join(row[3] for row in rows)
    found: dict[str, Any] = {name: [int(number) for number in re.findall(r"\d+", numbers)]
                             for name, numbers in re.findall(r"`(\w+)` (\d[\d, ]*)", cells)}
    assert found == {name: value if isinstance(value, list) else [value]
                     for name, value in monitoring.THRESHOLDS.items()}
    template = (HOME / "roles/dcgm_exporter/templates/prometheusrule.yaml.j2").read_text(encoding="utf-8")
    alerts = re.findall(r'alert\("(\w+)",(?:.|\n)*?"(critical|warning|info)"', template)
    assert alerts == [(name, row[2]) for row in rows for name in names(row[0])]


def test_releases() -> None:
    first, last = re.findall(r"all patch releases from ([\d.]+) to ([\d.]+)\.", PAGES["releases.md"])[0]
    known = sorted((path.stem for path in (HOME / "plugins/plugin_utils/_data/gpu_operator").glob("*.yml")),
                   key=releases.version_key)
    assert [first, last] == [known[0], known[-1]]
    support = re.findall(r"releases ([\d.]+) to ([\d.]+), driver branches (\d+) to (\d+)", PAGES["support.md"])[0]
    branches = yaml.safe_load((HOME / "plugins/plugin_utils/_data/drivers.yml").read_text(encoding="utf-8"))["branches"]
    numbers = [int(number) for number in branches]
    assert list(support) == [first, last, str(min(numbers)), str(max(numbers))]
    new, old = (next(".".join(name.split(".")[:2]) for name in reversed(known)
                     if releases.release(name).life == life) for life in ("supported", "deprecated"))
    assert f"(such as {new}) is supported" in PAGES["releases.md"] and f"({old}) is deprecated" in " ".join(
        PAGES["releases.md"].split())
