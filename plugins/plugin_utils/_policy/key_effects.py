# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a run does with each key of a policy (C(key_effects.yml)): an effect, a note, or a refusal. PRIVATE."""

from __future__ import annotations

import functools
import os
import typing as t
from dataclasses import dataclass
from fnmatch import fnmatchcase

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import components
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.releases import Release, version_key
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.schema import Needed, Schema
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.untyped import Data, Section, Value
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.wording import some_of
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.yamltext import read_own
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import (
    cluster_images,
    defaults,
    format_schemas,
    translate,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.defaults import get_path
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.formats import Policy, Source

# The placements of the table, and how messages name them.
PLACEMENTS = {"hosts": "on hosts", "cluster": "in the cluster"}
_PLACES = {"hosts": "host", "cluster": "cluster"}
KINDS = ("effect", "note", "noted", "refused")
_NAMED = 8  # the number of keys that a note lists before sections stand for them
# The sections that an NVIDIADriver has.
_OF_DRIVER = ("driver", *translate.BESIDE_DRIVER)


@dataclass(frozen=True)
class KeyEffect:
    """What a run does with a key in a placement. kind: one of L(KINDS), as C(key_effects.yml) explains them; text: its
    text there; before: the release before which C(noted) is C(note); pods: the components of a cluster whose objects
    depend on the key, empty for any; beside: the component without which they do not, empty for none."""

    kind: str
    text: str
    before: str = ""
    pods: t.Tuple[str, ...] = ()
    beside: str = ""

    def is_used(self, delivered: t.Collection[str]) -> bool:
        """Whether the objects of these components depend on the key."""
        return (not self.pods or any(one in delivered for one in self.pods)) and (
            not self.beside or self.beside in delivered)


@functools.lru_cache(maxsize=None)
def _data() -> Data:
    return read_own(os.path.dirname(__file__), "key_effects.yml")


@functools.lru_cache(maxsize=None)
def of_key(path: str, placement: str) -> KeyEffect:
    """What a run does with a key. path: in the common format; placement: one of L(PLACEMENTS). Raises KeyError for a
    path without a row."""
    for row in _data()["rows"]:
        if any(fnmatchcase(path, pattern) for pattern in row["keys"]):
            (kind, text), = row[placement].items()
            return KeyEffect(kind, text, row.get("before", ""), tuple(row.get("pods", ())),
                             row.get("beside", ""))
    raise KeyError(path)


def rows() -> list[list[str]]:
    """The patterns of each row of the table, in their order."""
    return [row["keys"] for row in _data()["rows"]]


def keys_of(schema: Schema, data: Value, path: tuple[str, ...] = ()) -> t.Iterator[tuple[str, Value]]:
    """The keys of a document with their values: C((path, value)) for each key that a schema has no keys below."""
    schema = schema.schema if isinstance(schema, Needed) else schema
    if path and not (isinstance(schema, dict) and schema and isinstance(data, dict)):
        yield ".".join(path), data
        return
    for key, value in data.items():
        yield from keys_of(t.cast("dict[str, Schema]", schema).get(key, "any"), value, (*path, key))


def set_keys(policy: Policy, release: Release, sources: t.Iterable[Source] | None = None) -> list[str]:
    """The keys that documents set to another value than their default, and components that they enable, in the common
    format. sources: the documents, by default all of the policy."""
    of_resource = {**_flat(defaults.of_resource(release)), **defaults.of_definition(),
                   **dict.fromkeys(_data()["usually_true"], True)}
    only_chart = _flat(defaults.of_chart(release))
    on_in_chart = [path for path, value in only_chart.items() if value is True]
    of_chart = {**of_resource, **only_chart}
    found: dict[str, None] = {}
    for source in policy.sources if sources is None else sources:
        usual = of_chart if source.kind == "values" else of_resource
        on = [*_data()["usually_true"], *(on_in_chart if source.kind == "values" else _data()["true_in_sample"])]
        for path, value in keys_of(format_schemas.COMMON, translate.to_common(source.kind, source.spec)):
            if path.endswith(".enabled"):
                chosen = value is True and path not in on
            else:
                chosen = path in _data()["explicit"] or not _is_usual(path, value, usual, release)
            if chosen:
                found[path] = None
    return list(found)


def _is_usual(path: str, value: Value, usual: t.Mapping[str, Value], release: Release) -> bool:
    """Whether a value is empty, the default, or one that a chart writes although it is the default."""
    defaults_of_path = (usual.get(path, False), cluster_images.default_version(path, release))
    return value in ("", [], {}) or value in defaults_of_path or any(
        value in row["values"] for row in _data()["usual"] if any(fnmatchcase(path, one) for one in row["keys"]))


def _flat(data: Section) -> dict[str, Value]:
    return dict(keys_of(format_schemas.COMMON, data))


def notes(policy: Policy, release: Release, placement: str, places: t.Mapping[str, str]) -> list[str]:
    """Notes about the keys that a policy sets and that have no effect in a placement. Each names the keys with the same
    reason. places: the result of L(components.placements). Keys of components that are not delivered for another reason
    are left out: the plan names that reason."""
    drivers, others = _drivers(policy, placement), [one for one in policy.sources if one.kind != "NVIDIADriver"]
    used = [one for one in policy.sources if one.kind == "NVIDIADriver" and one.name in drivers]
    replacing = f"NVIDIADriver {some_of(drivers, _NAMED)} is used instead" if drivers and others else ""
    given, own = set_keys(policy, release, others), set_keys(policy, release, used)
    by_text: dict[str, dict[str, None]] = {}
    for path, replaced in [*((path, _is_replaced(path)) for path in given), *((path, False) for path in own)]:
        effect = of_key(path, placement)
        if replacing and replaced:
            text = replacing
        elif effect.kind == "note" or _is_older(policy, release, effect, path):
            text = effect.text
        elif placement == "cluster" and not {"host", "hybrid"} & {*places.values()} and not effect.is_used(
                _enabled_in_cluster(policy, places)):
            text = "nothing that is delivered there uses it"
        else:
            continue
        if path.startswith("driver.nvidiaDriverCRD.") and not policy.get("driver.useNvidiaDriverCRD"):
            continue  # a warning of the policy names it
        if _applies(policy, path, placement, places):
            by_text.setdefault(text, {})[path] = None
    return [*_about_pools(policy, placement, places), *(
        f"{', '.join(_as_written(policy, path) for path in shortened(list(paths), [*given, *own]))}: no effect "
        f"{PLACEMENTS[placement]}: {text}." for text, paths in by_text.items())]


def merged(notes_of_plan: t.Iterable[str]) -> list[str]:
    """The notes of a plan without repetitions: two notes that keys have no effect on hosts and in the cluster, for the
    same reason, become one."""
    hosts, cluster = (f": no effect {words}: " for words in PLACEMENTS.values())
    found = list(dict.fromkeys(notes_of_plan))
    both = {one for one in found if hosts in one and one.replace(hosts, cluster) in found}
    others = {one.replace(hosts, cluster) for one in both}
    return [one.replace(hosts, f": no effect {' and '.join(PLACEMENTS.values())}: ") if one in both else one
            for one in found if one not in others]


def _as_written(policy: Policy, path: str) -> str:
    """The name of a key, or of a section, as the values of the chart have it, if the policy is such values."""
    if policy.kind != "values" or any(get_path(one.spec, path) is not None for one in policy.sources):
        return path
    for own, common in translate.VALUES_PAIRS:
        if f"{path}.".startswith(f"{common}."):
            return own + path[len(common):]
    return path


def _is_older(policy: Policy, release: Release, effect: KeyEffect, path: str) -> bool:
    """Whether a key needs a note because the release is older than those in which other code prints it. As in that
    code, a section that is disabled needs none."""
    return bool(effect.before) and version_key(release.version) < version_key(effect.before) and get_path(
        policy.spec, f"{path.split('.', maxsplit=1)[0]}.enabled") is not False


def _drivers(policy: Policy, placement: str) -> list[str]:
    """The names of the NVIDIADrivers in the documents that are used in a placement. Hosts have no Node labels, so they
    use none with a node selector."""
    used = {policy.driver_name, *(pool.name for pool in policy.pools if placement == "cluster")}
    return [one.name for one in policy.sources if one.kind == "NVIDIADriver" and one.name in used]


def _is_replaced(path: str) -> bool:
    """Whether an NVIDIADriver replaces a key of a ClusterPolicy or of values."""
    return path.split(".")[0] in _OF_DRIVER and path not in ("driver.enabled", "driver.useNvidiaDriverCRD") and (
        not path.startswith("driver.nvidiaDriverCRD."))


def _about_pools(policy: Policy, placement: str, places: t.Mapping[str, str]) -> list[str]:
    """A note about NVIDIADrivers that have no effect on hosts because they select Nodes."""
    left = [pool for pool in policy.pools if pool.name != policy.driver_name]
    if placement == "cluster" or not left or not _applies(policy, "driver.enabled", placement, places):
        return []
    keys = " or ".join(dict.fromkeys(one.keys for one in left))
    return [f"NVIDIADriver {some_of([one.name for one in left], _NAMED)}: no effect on hosts: hosts have no Node "
            f"labels for its {keys}; set the variables of the role driver for groups of the inventory."]


def shortened(paths: t.Sequence[str], every: t.Iterable[str] = ()) -> list[str]:
    """The keys for a note. If there are many, a section stands for its keys, unless one of them has another reason.
    every: all keys that are set."""
    found, others = [*paths], set(every) - set(paths)
    for depth in range(max(path.count(".") for path in found), 0, -1):
        if len(found) > _NAMED:
            found = list(dict.fromkeys(_parent(path, depth, others) for path in found))
    return found


def _parent(path: str, depth: int, others: t.Iterable[str]) -> str:
    """The section of a key at a depth, or the key itself if it is less deep, or if the section has one of others."""
    section = path.rpartition(".")[0]
    return path if path.count(".") < depth or any(one.startswith(f"{section}.") for one in others) else section


def _in_cluster(places: t.Mapping[str, str]) -> set[str]:
    """The components that are delivered in the cluster."""
    return {name for name, one in places.items() if one in ("cluster", "hybrid")}


def _enabled_in_cluster(policy: Policy, places: t.Mapping[str, str]) -> set[str]:
    """The components that are delivered in the cluster and that the policy does not disable."""
    disabled = {one.name for one in components.COMPONENTS if one.section and not policy.enabled(one.section)}
    return _in_cluster(places) - disabled


def _applies(policy: Policy, path: str, placement: str, places: t.Mapping[str, str]) -> bool:
    """Whether the component of a key is delivered in a placement, or can never be. A key of a section without a
    component applies to all of them. On hosts, such a key is left out if something in the cluster uses it: it has an
    effect there, or the plan of the cluster has the note."""
    place, section, in_cluster = _PLACES[placement], path.split(".")[0], _in_cluster(places)
    delivered = [name for name, one in places.items() if one in (place, "hybrid")]
    section = "driver" if section in _OF_DRIVER else "nfd" if section == "node-feature-discovery" else section
    entry = next((one for one in components.COMPONENTS if one.section == section), None)
    if entry is None:
        users = {*(of_key(path, "cluster").pods or in_cluster)}
        return bool(delivered) and not (placement == "hosts" and users & in_cluster)
    if placement == "hosts" and entry.name in in_cluster and "host" not in entry.places:
        return False
    # On hosts, the DCGM exporter needs DCGM.
    enabled = policy.enabled(section) or placement == "hosts" and section == "dcgm" and policy.enabled("dcgmExporter")
    return enabled and (entry.name in delivered or bool(delivered) and place not in entry.places)


def undelivered_kinds(policy: Policy, used: t.Container[str] = ()) -> list[str]:
    """The kinds of the objects in extraObjects that are neither NVIDIADrivers nor ConfigMaps with a name in used."""
    objects = [one for one in policy.get("extraObjects") or () if isinstance(one, dict)]
    return sorted({str(one.get("kind")) for one in objects if one.get("kind") != "NVIDIADriver" and not (
        one.get("kind") == "ConfigMap" and (one.get("metadata") or {}).get("name") in used)})
