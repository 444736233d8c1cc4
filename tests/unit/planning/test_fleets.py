# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fleets and their expected plans, as tables in C(fleets/). Most expectations are transcribed from vendor documents.

An entry: name; given; expected; source (document and section); transcribed (from that document, not derived by us);
note, where documents disagree.
given: gpus (C(8 x H100), names of C(fleets/gpus.yml) or device ids) and what C(host_facts.facts) takes of a host,
C(variables) of its inventory, or several of these as C(hosts); for a cluster C(nodes); release, policy, placement.
expected: what of the plan must hold (for packages: those at least), or C(refused): ids of constraints that must be
named (C(gpu:*) is any GPU), words, and by id what the plan would be without that constraint.
"""

from __future__ import annotations

import copy
import fnmatch
import functools
import os
import re
import typing as t

import pytest
import yaml
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import GpuopsError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import components, releases
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.refusals import PolicyError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning.cluster import resolve_cluster
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning.resolve import resolve
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import formats
from ansible_collections.gpuops.nvidia.tests.unit.simulated import host_facts as facts_sample

Data = dict[str, t.Any]
FOLDER = os.path.join(os.path.dirname(__file__), "fleets")
NEWEST = "26.7.0"


def load(name: str) -> t.Any:
    with open(os.path.join(FOLDER, name), encoding="utf-8") as handle:
        return yaml.safe_load(handle)


GPUS: Data = load("gpus.yml")
TABLES = {name[:-4]: load(name) for name in sorted(os.listdir(FOLDER)) if name.endswith(".yml") and name != "gpus.yml"}
FLEETS: dict[str, Data] = {f"{table}: {one['name']}": one for table, entries in TABLES.items() for one in entries}


def boards(wanted: t.Sequence[str]) -> list[str]:
    """Device ids for a list such as C([8 x H100, T4])."""
    found: list[str] = []
    for text in wanted:
        count, _x, name = text.rpartition(" x ")
        found += [GPUS[name]["id"] if name in GPUS else name] * int(count or 1)
    return found


def host_facts(given: t.Mapping[str, t.Any]) -> Data:
    plain = {key: given[key] for key in ("os", "kernel", "arch", "secure_boot") if key in given}
    made = facts_sample.facts(boards(given["gpus"]), **plain, **copy.deepcopy(given.get("facts", {})))
    if given.get("driver"):
        made = facts_sample.driven(made, given["driver"], source=given.get("driver_source", "cuda_repository"))
    return made


def on_hosts(given: t.Mapping[str, t.Any]) -> Data:
    """The plan of these hosts."""
    hosts = given.get("hosts") or {"host": given}
    release = releases.release(given.get("release", NEWEST))
    return resolve(formats.read(given.get("policy"), release), release,
                   {name: host_facts(one) for name, one in hosts.items()},
                   {name: dict(one.get("variables", {})) for name, one in hosts.items()},
                   given.get("placement", "hosts"))


def node(given: t.Mapping[str, t.Any]) -> Data:
    """A Node as read_cluster returns it, with labels of feature discovery."""
    labels: dict[str, str] = {}
    if "gpu" in given:
        gpu = GPUS[given["gpu"]]
        labels = {"feature.node.kubernetes.io/pci-10de.present": "true", "nvidia.com/gpu.family": gpu["family"],
                  "nvidia.com/gpu.product": gpu["name"].replace(" ", "-"), "nvidia.com/gpu.present": "true"}
    system = given["os"].rstrip("0123456789.")
    return {"labels": labels, "annotations": {}, "os": {"id": system, "version": given["os"][len(system):]},
            "os_image": "", "kernel": given.get("kernel", "6.8.0-45-generic"), "arch": given.get("arch", "amd64"),
            "runtime": "containerd", "runtime_version": "1.7.28", "kubelet": "v1.36.0", "provider": None, "taints": [],
            "ready": True, "gpu": "gpu" in given}


def in_cluster(given: t.Mapping[str, t.Any]) -> Data:
    """The plan of this cluster."""
    release = releases.release(given.get("release", NEWEST))
    seen = {"server": "https://10.0.0.1:6443", "version": "v1.36.0", "nfd": "none", "service_monitors": False,
            "nodes": {name: node(one) for name, one in given["nodes"].items()}}
    return resolve_cluster(formats.read(given.get("policy"), release), release, seen, components.placements("cluster"),
                           {}, {}, "never")


@functools.lru_cache(maxsize=None)
def outcome(name: str) -> tuple[Data | None, GpuopsError | None]:
    """(plan, None) or (None, refusal)."""
    return resolved(FLEETS[name]["given"])


def resolved(given: t.Mapping[str, t.Any]) -> tuple[Data | None, GpuopsError | None]:
    try:
        return (in_cluster(given) if "nodes" in given else on_hosts(given)), None
    except PolicyError as error:
        return None, error


def is_undelivered(error: GpuopsError) -> bool:
    """Whether the only refusal is that one DaemonSet cannot serve all pools; the pools themselves have been
    resolved."""
    return all(not one["constraints"] and "need different drivers" in one["reason"]
               for one in error.details["refusals"])


def disagreements(name: str) -> list[str]:
    """The parts of the expectation that do not hold."""
    expected = FLEETS[name]["expected"]
    plan, error = outcome(name)
    if "refused" in expected:
        return ["a plan, not a refusal"] if error is None else _refusal(expected["refused"], error)
    if error is not None and not is_undelivered(error):
        return [f"refused: {error}"]
    if "pools" in expected or "images" in expected:
        return _pools(expected, (plan or t.cast(GpuopsError, error).details)["pools"])
    if plan is None:
        return [f"refused: {error}"]
    hosts = expected.get("hosts") or {"host": expected}
    return [text for host, wanted in hosts.items() for text in _host(wanted, plan["hosts"][host], plan["notes"])]


def _refusal(wanted: t.Mapping[str, t.Any], error: GpuopsError) -> list[str]:
    refusals = error.details["refusals"]
    named = {one["id"] for refusal in refusals for one in refusal["constraints"]}
    free = {one["drop"]: one["result"] for refusal in refusals for one in refusal["free"]}
    hosts = {host for refusal in refusals for host in refusal["hosts"]}
    found = [f"{constraint} is not named in {sorted(named)}" for constraint in wanted["constraints"]
             if not fnmatch.filter(named, constraint)]
    found += [f"without {drop}: {free.get(drop)!r}, not {text!r}" for drop, text in wanted.get("free", {}).items()
              if text not in free.get(drop, "")]
    if set(wanted.get("hosts", hosts)) != hosts:
        found.append(f"of {sorted(hosts)}")
    for key, field in (("says", "reason"), ("remedy", "remedy")):
        text = " ".join(one[field] for one in refusals)
        found += [] if wanted.get(key, "") in text else [f"{field} {text!r}, not {wanted[key]!r}"]
    return found


def _host(wanted: t.Mapping[str, t.Any], plan: t.Mapping[str, t.Any], notes: t.Sequence[str]) -> list[str]:
    driver = plan["driver"]
    found: list[str] = []
    for key, value in wanted.items():
        if key in ("packages", "kernel_packages"):
            found += [f"{key} {driver[key]}, without {one}" for one in value if one not in driver[key]]
        elif key == "notes":
            found += [f"no note says {text!r}" for text in value if not any(text in note for note in notes)]
        elif key == "profile":
            name = (plan["profile"] or {}).get("name")
            found += [] if value == name or value in str(name).split("+") else [f"profile: {name!r}, not {value!r}"]
        else:
            found += _differs(key, value, _actual(key, plan))
    return found


def _actual(key: str, plan: t.Mapping[str, t.Any]) -> t.Any:
    parts = {"toolkit": "container_toolkit", "mig": "mig_manager"}
    return plan[parts[key]] if key in parts else plan["driver"][key]


def _differs(key: str, wanted: t.Any, actual: t.Any) -> list[str]:
    """Compares only the expected keys of a mapping."""
    if isinstance(wanted, dict) and isinstance(actual, dict):
        return [text for inner in wanted for text in _differs(f"{key}.{inner}", wanted[inner], actual.get(inner))]
    return [] if actual == wanted else [f"{key}: {actual!r}, not {wanted!r}"]


def _pools(expected: t.Mapping[str, t.Any], pools: t.Sequence[t.Mapping[str, t.Any]]) -> list[str]:
    by_nodes = {tuple(pool["nodes"]): pool["driver"] or {} for pool in pools}
    found: list[str] = []
    for wanted in expected.get("pools", ()):
        driver = by_nodes.pop(tuple(wanted["nodes"]), None)
        if driver is None:
            found.append(f"no pool of {wanted['nodes']}")
        else:
            found += [text for key in wanted if key != "nodes" for text in _differs(key, wanted[key], driver.get(key))]
    if "pools" in expected and by_nodes:
        found.append(f"pools of {sorted(by_nodes)} too")
    if "images" in expected:
        found += _differs("images", sorted(expected["images"]), sorted({pool["driver"]["image"] for pool in pools}))
    return found


@pytest.mark.parametrize("name", sorted(FLEETS))
def test_fleet(name: str) -> None:
    assert disagreements(name) == [], FLEETS[name]["source"]


def advised(given: Data, advice: str) -> Data | None:
    """The fleet after the user has followed an advice; None if the advice leaves a choice."""
    made = copy.deepcopy(given)
    if advice.startswith("no mig_manager_selected"):
        made["variables"] = {name: value for name, value in made["variables"].items() if not name.startswith("mig_")}
        return made
    if advice.startswith("Secure Boot off"):
        return {**made, "secure_boot": False}
    setting = re.match(r"([\w.]+): (\S+)", advice)
    if setting is None:
        return None
    name, value = setting[1], setting[2] if "version" in setting[1] else yaml.safe_load(setting[2])
    if name == "gpu_release":
        return {**made, "release": value}
    if "." not in name:
        return {**made, "variables": {**made.get("variables", {}), name: value}}
    policy = made.setdefault("policy", {})
    if isinstance(policy, list):
        return None
    *path, last = name.split(".")
    # The driver's settings are the whole of an NVIDIADriver.
    path = path[policy.get("kind") == "NVIDIADriver":]
    for part in ["spec", *path] if "spec" in policy else path:
        policy = policy.setdefault(part, {})
    policy[last] = value
    return made


def planned_drivers(given: t.Mapping[str, t.Any]) -> list[Data]:
    """The planned drivers, including those that cannot be delivered yet."""
    plan, error = resolved(given)
    assert error is None or is_undelivered(error), error
    if "nodes" in given:
        return [pool["driver"] for pool in (plan or t.cast(GpuopsError, error).details)["pools"]]
    return [one["driver"] for one in t.cast(Data, plan)["hosts"].values()]


@pytest.mark.parametrize("name", [name for name in sorted(FLEETS) if "refused" in FLEETS[name]["expected"]
                                  and "hosts" not in FLEETS[name]["given"]])
def test_who_follows_an_advice_gets_what_it_says(name: str) -> None:
    _plan, error = outcome(name)
    assert error is not None
    for advice in [one for refusal in error.details["refusals"] for one in refusal["free"] if not one["also"]]:
        fleet = advised(FLEETS[name]["given"], advice["result"])
        if fleet is None:
            continue
        drivers = planned_drivers(fleet)
        promised = re.search(r"driver (?:branch )?(\d[\d.]*)", advice["result"])
        for driver in drivers if promised else ():
            # A branch is named where the repository has the choice.
            said = driver["version"] or str(driver["branch"])
            assert promised and said.startswith(promised[1]), (advice, driver)


def test_the_tables_are_whole() -> None:
    """There are enough entries, each with its source, most of them transcribed, and without duplicate names."""
    entries = [one for table in TABLES.values() for one in table]
    assert len(entries) == len(FLEETS) >= 150
    assert sum(one["transcribed"] for one in entries) >= 80
    for one in entries:
        assert {"name", "given", "expected", "source", "transcribed"} <= set(one) <= {
            "name", "given", "expected", "source", "transcribed", "note"}, one
        wanted = one["expected"].get("refused", one["expected"])
        assert any(value or key not in ("constraints", "hosts") for key, value in wanted.items()), one
        assert len(one["source"]) > 10 and one["source"].startswith("no document") <= (not one["transcribed"])


def test_an_expectation_can_fail() -> None:
    """A table that compared nothing would always pass."""
    plan, _error = outcome("architectures: volta takes 580 where the release's default is too new")
    assert plan is not None
    assert _host({"version": "595.91.07"}, plan["hosts"]["host"], []) == ["version: '580.173.02', not '595.91.07'"]
    assert _host({"packages": ["nothing"], "notes": ["nothing"]}, plan["hosts"]["host"], [])
    assert _pools({"pools": [{"nodes": ["n1"]}]}, []) == ["no pool of ['n1']"]
    assert disagreements("architectures: volta with 595") == []
    _plan, refusal = outcome("architectures: volta with 595")
    assert refusal is not None and _refusal({"constraints": ["nothing"], "hosts": [], "says": "nothing"}, refusal)
