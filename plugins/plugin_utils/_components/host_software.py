# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan of a host's software beside the driver: CUDA toolkit, DCGM, exporters, the CUDA sample. Pure. PRIVATE."""

from __future__ import annotations

import functools
import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.spec import Spec
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._software.sources import source_for
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.components import by_name
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.matrix import version_key
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.refusals import Refused
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._drivers.drivers import Asked, switched

Facts = t.Mapping[str, t.Any]
Mine = t.Mapping[str, t.Any]
Plan = t.Dict[str, t.Any]

# Components that one call of nvidia_software brings, with the keys of their plans that are its options.
OPTIONS: dict[str, t.Tuple[str, ...]] = {
    "cuda": ("version", "profile"),
    "dcgm": ("version", "profiling"),
    "dcgm_exporter": ("version", "listen", "counters"),
    "node_status_exporter": ("folder", "interval"),
}
# Where Debian's package of Prometheus' node exporter looks.
FOLDER = "/var/lib/prometheus/node-exporter"
_LEVEL = re.compile(r"\d+(\.\d+(\.\d+\S*)?)?\Z")
_FIRST_SPLIT = 4


def wanted(asked: Asked, name: str, mine: Mine) -> bool:
    """Whether something beside its own section of the policy asks for a component: a host's variable, or another."""
    if name == "cuda":
        return bool(mine.get("cuda_version"))
    return name == "dcgm" and asked.policy.enabled("dcgmExporter")


def _nowhere(facts: Facts, mine: Mine) -> str:
    """Why packages of NVIDIA's repository cannot be installed on a host, empty where they can."""
    if facts["host"]["markers"].get("immutable"):
        return "/usr cannot be written"
    system = facts["host"]["os"]
    given = ((name, str(mine.get(f"driver_repository_{name}") or "")) for name in ("url", "key", "fingerprint"))
    return _unserved(system["id"] or "", system["version_id"] or "", facts["host"]["arch"],
                     tuple((name, value) for name, value in given if value))


@functools.lru_cache(maxsize=1024)  # of a fleet's hosts most are of a few kinds
def _unserved(os_id: str, version: str, arch: str, given: tuple[tuple[str, str], ...]) -> str:
    """Why NVIDIA's repository serves no such system. given: what the inventory says of the repository."""
    source = source_for(os_id, version, arch)
    if source is None:
        release = f"{os_id} {version}".strip()
        return f"this version of the collection installs nothing from NVIDIA's repository on {release}"
    try:
        source.repository(Spec(repository=dict(given)))
    except InputError as error:
        return f"{error.message} {error.hint}".rstrip(".")
    return ""


def _plan(facts: Facts, mine: Mine, place: str, why: str, said: list[str], title: str,
          **options: t.Any) -> Plan:
    """The common shape; what cannot be installed there is left out, and said so."""
    if place == "host":
        why = _nowhere(facts, mine)
        if why:
            said.append(f"{title} is not delivered there: {why}.")
    because = [f"not delivered: {why}"] if why else []
    return {"placement": "none" if why else place, "state": "present", **options, "because": because}


def dcgm(asked: Asked, facts: Facts, mine: Mine, place: str, why: str, said: list[str]) -> Plan:
    """DCGM, which the exporter asks: so it comes with it."""
    version = mine.get("dcgm_version") or _packaged(asked, "dcgm", r"v?(\d+\.\d+\.\d+)", said)
    made = _plan(facts, mine, place, why, said, "DCGM", version=str(version) if version else None,
                 profiling=switched("dcgm_profiling", mine, True))
    if made["placement"] == "host" and not asked.policy.enabled("dcgm"):
        made["because"].append("the DCGM exporter asks it")
    return made


def dcgm_exporter(asked: Asked, facts: Facts, mine: Mine, place: str, why: str, said: list[str]) -> Plan:
    """The exporter. Its address is that of the policy's environment, its counters those of the policy's values."""
    version = mine.get("dcgm_exporter_version") or _packaged(
        asked, "dcgm_exporter", r"v?\d+\.\d+\.\d+-(\d+\.\d+\.\d+)", said)
    environment = {str(one.get("name")): one.get("value") for one in asked.policy.get("dcgmExporter.env") or []}
    config = asked.policy.get("dcgmExporter.config")
    config = config if isinstance(config, dict) else {}
    data = config.get("data")
    text = data.get("dcgm-metrics.csv") if isinstance(data, dict) else data
    counters = mine.get("dcgm_exporter_counters") or (text if isinstance(text, str) else None)
    if config.get("name") and not counters and place == "host":
        said.append(f"dcgmExporter.config names the ConfigMap {config['name']}, which hosts cannot read: the vendor's "
                    "counters are shown; set dcgm_exporter_counters to change that.")
    listen = mine.get("dcgm_exporter_listen") or environment.get("DCGM_EXPORTER_LISTEN") or ":9400"
    return _plan(facts, mine, place, why, said, "the DCGM exporter", version=str(version) if version else None,
                 listen=str(listen), counters=counters)


def _packaged(asked: Asked, name: str, pattern: str, said: list[str]) -> str | None:
    """The version of a policy or release, which is that of an image; None for the newest package."""
    section = {"dcgm": "dcgm", "dcgm_exporter": "dcgmExporter"}[name]
    text = str(asked.policy.get(f"{section}.version") or asked.release.components[name])
    found = re.match(pattern, text)
    if found is None:
        said.append(f"{section}.version {text!r} is none of a package; hosts get the newest.")
        return None
    # DCGM 3 came as other packages, and the exporter of its time as none.
    return found.group(1) if version_key(text)[0] >= _FIRST_SPLIT else None


def cuda(asked: Asked, facts: Facts, mine: Mine, place: str, why: str, said: list[str]) -> Plan:
    """The CUDA toolkit of a level; without one the newest that the driver runs. Raises Refused."""
    version = str(mine.get("cuda_version") or asked.policy.get("cuda.version") or "")
    if place == "host" and version and not _LEVEL.match(version):
        raise Refused(f"CUDA is asked for with the version {version!r}",
                      "Set cuda.version, or cuda_version of the host, to a level such as 13.0.")
    return _plan(facts, mine, place, why, said, "the CUDA toolkit", version=version or None,
                 profile=switched("cuda_profile", mine, False))


def node_status_exporter(asked: Asked, facts: Facts, mine: Mine, place: str, why: str, said: list[str]) -> Plan:
    """Metrics on the state of the node, which need no packages."""
    return {"placement": place, "state": "present", "folder": mine.get("node_status_exporter_folder") or FOLDER,
            "interval": mine.get("node_status_exporter_interval") or 60,
            "because": [] if place == "host" else [f"not delivered: {why}"]}


def validator(asked: Asked, facts: Facts, mine: Mine, place: str, why: str, said: list[str]) -> Plan:
    """The CUDA sample, which verification runs on each GPU that nobody uses."""
    return {"placement": place, "because": [] if place == "host" else [f"not delivered: {why}"]}


def no_driver(driver: t.Mapping[str, t.Any], facts: Facts) -> str:
    """Why no program of a host finds a driver after the run, empty where it does. driver: the host's plan of it."""
    if driver.get("state") == "absent":
        return "driver_state is absent"
    brought = driver["placement"] == "host" or facts["driver"]["library"] is not None
    return "" if brought else "no driver is installed on the host, and the plan brings none to it"


def leave_out(plan: t.Mapping[str, Plan], why: str) -> t.Iterator[str]:
    """Leaves out the components whose packages are chosen by the driver, as there is none. Returns notes."""
    for name in ("cuda", "dcgm", "dcgm_exporter"):
        if plan[name]["placement"] == "host" and not (name == "cuda" and plan[name]["version"]):
            plan[name].update(placement="none", because=[f"not delivered: {why}"])
            yield f"{by_name(name).title} is not delivered there: {why}."


def options(plan: t.Mapping[str, Plan]) -> dict[str, Plan]:
    """Of the plan of a host the options of nvidia_software, by component that is delivered there."""
    return {name: {key: plan[name][key] for key in keys} for name, keys in OPTIONS.items()
            if plan[name]["placement"] == "host"}
