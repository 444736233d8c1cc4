# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which labels a Node gets, from its labels, what is delivered, and what its host tells. Pure. PRIVATE.

The deploy labels are those of the GPU Operator 26.7 for containers: DaemonSets choose their Nodes by them, the driver
manager and the MIG manager pause operands by rewriting their values, and users keep an operand off by C(false). Unlike
the operator, which labels a Node for every component it knows, only what is delivered in the cluster on that Node is
labelled: a label is then a statement that can be trusted. C(client) goes to every GPU Node, as it stands for DaemonSets
of others which both managers have to stop.

The keys that we wrote are listed in an annotation, because the managers rewrite values and so take over the field.
Where it was taken away, those count that the API server has on record as ours:
- A key that was there with a value stays out of the list. It counts where it says what we would say.
- A listed deploy label that is C(false) or C(pre-installed) by now, or a listed mig.config with another layout, is the
  user's: it leaves the list and stays.
- A key that Node Feature Discovery keeps up is its own, whoever wrote it first: it leaves the list and is not touched.
- Taken from others are deploy labels alone, and only from a Node on which that operand must not run: no GPU any more,
  switched off there, for another kind of workload, or the component is delivered on the host. C(false) and
  C(pre-installed) attract nothing and stay.
- While pods that GPU clients need may not end, the labels by which they run stay, whoever wrote them: those of a
  driver, and on a Node that shares by MPS that of the device plugin. The user's own values, and switches such as
  C(operands), count.

A plan speaks of deploy labels where it is told what is delivered, of features where the host has told them, and leaves
the other family as it is. A GPU is gone only when it has stayed away for a while: until then the first sighting is kept
in another annotation, and nothing else moves.
"""

from __future__ import annotations

import calendar
import time
import typing as t
from dataclasses import dataclass, field, replace
from functools import cached_property

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import label_keys
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.label_keys import (
    DEPLOY,
    MIG_CONFIG,
    NFD,
    OPERANDS,
    PCI,
    PLUGIN_CONFIG,
    PRESENT,
    SHOWS_A_GPU,
    WORKLOAD,
    Labels,
)

# Label or annotation to its new value, None to take it away.
Changes = t.Dict[str, t.Optional[str]]

ANNOTATION = "gpuops.nvidia/labels"
# When a GPU was first not seen any more, by NFD and by the host: C(2026-11-22T07:10:47Z). Each is a witness of its own,
# as one task asks this one and another that one, and they need not agree.
GONE, HOST_GONE = "gpuops.nvidia/gpu-gone-since", "gpuops.nvidia/host-gpu-gone-since"
# Seconds that it has to stay away. NFD's worker looks once a minute, and its labels come back some minutes after a
# restart of its master or an API server.
GONE_AFTER = 600
# Seconds beyond that after which a sighting says nothing about now, as the GPU may have been back since. Whoever runs
# once a week is still served.
_TRUSTED = 8 * 86400
_TIME = "%Y-%m-%dT%H:%M:%SZ"
MIG_DEFAULT = "all-disabled"
# How the layout of a Node went, and why not: of the vendor's manager, or of node_mig.
MIG_STATE, MIG_REASON = f"{MIG_CONFIG}.state", "gpuops.nvidia/mig-reason"
SANDBOX = ("vm-passthrough", "vm-vgpu")

_WORDS = {
    "driver": "driver", "container_toolkit": "container-toolkit", "validator": "operator-validator",
    "device_plugin": "device-plugin", "feature_discovery": "gpu-feature-discovery", "dcgm": "dcgm",
    "dcgm_exporter": "dcgm-exporter", "mig_manager": "mig-manager", "node_status_exporter": "node-status-exporter",
}
# Component to its label. The node feature discovery has none: it runs everywhere.
LABELS = {component: DEPLOY + word for component, word in _WORDS.items()}
CLIENT = f"{DEPLOY}client"
MIG_MANAGER = LABELS["mig_manager"]
# All that may attract an operand; nvsm is created by the MIG manager when it ends.
CONTAINER_SET = frozenset((*LABELS.values(), CLIENT, f"{DEPLOY}nvsm"))
# Of Nodes for virtual machines, which this collection does not serve; GPU Operator 26.7 takes them from all others.
VM_SET = frozenset(DEPLOY + word for word in (
    "sandbox-device-plugin", "kata-sandbox-device-plugin", "sandbox-validator", "vfio-manager", "kata-manager",
    "cc-manager", "vgpu-manager", "vgpu-device-manager"))
# Of its mode GPUCluster, which this collection does not serve either and leaves alone while there is a GPU.
DRA_SET = frozenset(DEPLOY + word for word in ("dra-driver", "dra-validator", "dcgm-dra", "dcgm-exporter-dra"))
_ATTRACTS_NOTHING = ("", "false", "pre-installed")


@dataclass(frozen=True)
class Node:
    """What counts of a Node. ready: its condition Ready, needed only where a GPU is missing and no host has told;
    host: the labels that gpu_labels has computed on its host, None where it was not asked; adopt: keys that count as
    ours where the Node carries them; orphaned: whether no NFD is left that keeps up what its lists here name; written:
    labels that are ours by the API server's record, which counts where the annotation is gone."""

    name: str
    labels: Labels
    annotations: Labels = field(default_factory=dict)
    ready: bool = False
    host: t.Optional[Labels] = None
    adopt: t.FrozenSet[str] = frozenset()
    orphaned: bool = False
    written: t.FrozenSet[str] = frozenset()

    @cached_property
    def ours(self) -> t.FrozenSet[str]:
        """The keys that the annotation lists, but for what is never ours, and those adopted.

        The server's record alone would not do: who pauses operands writes labels of others, too.
        """
        known = self.annotations[ANNOTATION].split(",") if ANNOTATION in self.annotations else self.written
        listed = frozenset(key for key in known if label_keys.may_be_ours(key))
        return listed | (self.adopt & set(self.labels))

    @property
    def gpu(self) -> bool:
        """Whether it has an NVIDIA GPU: its host knows best, else NFD tells."""
        if self.host is not None:
            return any(key in self.host for key in SHOWS_A_GPU)
        return any(self.labels.get(key) == "true" for key in PCI)

    @property
    def described(self) -> bool:
        """Whether anybody has looked for GPUs at all: its host, or NFD."""
        return self.host is not None or any(key.startswith(NFD) for key in self.labels)

    @property
    def said(self) -> t.Dict[str, str]:
        """Its labels, with what its host knows better."""
        return {**self.labels, **(self.host or {})}

    @cached_property
    def nfd(self) -> t.FrozenSet[str]:
        """The labels that Node Feature Discovery keeps up here."""
        return label_keys.nfd_keys({**self.annotations, **self.freed})

    @property
    def freed(self) -> t.Dict[str, str]:
        """The lists of an NFD that is no more, without the keys that are adopted; only those that change by this."""
        return label_keys.nfd_lists_without(self.annotations, self.adopt) if self.orphaned else {}

    @property
    def sighting(self) -> str:
        """The annotation of who is asked about the GPU."""
        return GONE if self.host is None else HOST_GONE


@dataclass(frozen=True)
class Deploy:
    """What is delivered. components: in the cluster; on_host: by Node, those that its host has instead;
    mig_default: the layout for a Node without one (all-disabled), empty for none; plugin_configs: by Node the
    configuration of the device plugin that the inventory names; mig_changes: whether a Node without a layout may be
    asked for one, which destroys the instances that it has; pods_may_end: whether labels may go without which pods end
    that GPU clients need; ended_on: of the Nodes only those on which such pods have ended, None for all;
    without_driver: Nodes for which no driver is planned, and that get no label of one."""

    components: t.FrozenSet[str] = frozenset()
    on_host: t.Mapping[str, t.FrozenSet[str]] = field(default_factory=dict)
    mig_default: str = ""
    plugin_configs: t.Mapping[str, str] = field(default_factory=dict)
    mig_changes: bool = True
    pods_may_end: bool = True
    ended_on: t.Optional[t.FrozenSet[str]] = None
    without_driver: t.FrozenSet[str] = frozenset()

    def delivered_on(self, node: str) -> t.FrozenSet[str]:
        """The components that the cluster delivers on a Node."""
        without = frozenset(("driver",)) if node in self.without_driver else frozenset()
        return self.components - self.on_host.get(node, frozenset()) - without


@dataclass(frozen=True)
class Terms:
    """When a GPU counts as gone. now: seconds since 1970; gone_after: seconds that it has to stay away."""

    now: float
    gone_after: float = GONE_AFTER


@dataclass(frozen=True)
class Change:
    """What differs on one Node: the new values, see Changes, and those that these keys had before."""

    node: str
    labels: Changes
    before: t.Dict[str, str]
    annotations: Changes
    annotations_before: t.Dict[str, str]

    def patch(self) -> t.Dict[str, t.Any]:
        """A merge patch of the keys that differ.

        It needs no resourceVersion: whatever others write to the Node meanwhile concerns other keys and stays.
        """
        parts = {"labels": self.labels, "annotations": self.annotations}
        return {"metadata": {name: part for name, part in parts.items() if part}}

    def summary(self) -> t.Dict[str, t.Any]:
        """C({added: {key: value}, changed: {key: {before, after}}, removed: {key: value}}); an empty value is none."""
        before = {key: value for key, value in self.before.items() if value}
        return {
            "added": {key: value for key, value in self.labels.items() if value is not None and key not in before},
            "changed": {key: {"before": before[key], "after": value} for key, value in self.labels.items()
                        if value is not None and key in before},
            "removed": {key: self.before[key] for key, value in self.labels.items() if value is None},
        }


def parse_deploy(given: t.Mapping[str, t.Any]) -> Deploy:
    """The option C(deploy): C({components: {name: bool}, on_host: {node: [name]}, mig_default: str, plugin_configs:
    {node: name}, mig_changes: bool, pods_may_end: bool, leaving: {component: [node]}, ended_on: [node], without_driver:
    [node]}).

    Raises InputError. Other keys are the plan's and do not count here.
    """
    components = given.get("components")
    if not isinstance(components, dict):
        raise InputError("A mapping of components to true or false is needed.", "Give gpu_plan.cluster.deploy, or "
                         "{components: {device_plugin: true}}.", path="deploy.components", value=components)
    on_host = given.get("on_host") or {}
    if not isinstance(on_host, dict):
        raise InputError("A mapping of Nodes to lists of components is needed.", "Write {gpu-a1: [driver]}.",
                         path="deploy.on_host", value=on_host)
    for name, delivered in components.items():
        _check_name(f"deploy.components.{name}", name)
        if not isinstance(delivered, bool):
            raise InputError(f"{delivered!r} is not allowed.", "Set true or false.",
                             path=f"deploy.components.{name}", value=delivered, allowed=[True, False])
    for node, names in on_host.items():
        if not isinstance(names, list):
            raise InputError("A list of components is needed.", "Write [driver].", path=f"deploy.on_host.{node}",
                             value=names)
        for name in names:
            _check_name(f"deploy.on_host.{node}", name)
    mig_default = given.get("mig_default") or ""
    if mig_default not in ("", MIG_DEFAULT):
        raise InputError(f"{mig_default!r} is not allowed.", f"Set {MIG_DEFAULT}, or nothing.",
                         path="deploy.mig_default", value=mig_default, allowed=[MIG_DEFAULT, ""])
    return Deploy(frozenset(name for name, delivered in components.items() if delivered),
                  {node: frozenset(names) for node, names in on_host.items()}, mig_default,
                  given.get("plugin_configs") or {}, bool(given.get("mig_changes", True)),
                  bool(given.get("pods_may_end", True)),
                  frozenset(given.get("ended_on") or ()) if given.get("leaving") or "ended_on" in given else None,
                  frozenset(given.get("without_driver") or ()))


def _check_name(path: str, name: t.Any) -> None:
    if name not in LABELS and name != "nfd":
        allowed = ["nfd", *LABELS]
        raise InputError(f"{name!r} is no component.", f"Choose from {', '.join(allowed)}.", path=path, value=name,
                         allowed=allowed)


def mig_capable(labels: Labels) -> t.Optional[bool]:
    """Whether GPUs of the Node can be cut, None while feature discovery has not said so.

    A vGPU guest never can. Where the label is missing, the product decides, as in the GPU Operator.
    """
    if labels.get("nvidia.com/vgpu.host-driver-version"):
        return False
    if labels.get("nvidia.com/mig.capable"):
        return labels["nvidia.com/mig.capable"] == "true"
    product = labels.get("nvidia.com/gpu.product", "").lower()
    return any(model in product for model in ("h100", "a100", "a30")) if product else None


def is_off(labels: Labels) -> bool:
    """Whether the Node is kept free of operands, or meant for virtual machines."""
    return labels.get(OPERANDS) == "false" or labels.get(WORKLOAD) in SANDBOX


def wanted_labels(node: Node, deploy: Deploy, kept: t.Optional[Labels] = None) -> t.Dict[str, str]:
    """The labels that a Node with a GPU is to have. kept: what L(kept_labels) has returned, if that is known."""
    wanted = {PRESENT: "true"}
    if is_off(node.labels):
        return wanted
    here = deploy.delivered_on(node.name)
    wanted.update(kept_labels(node, deploy) if kept is None else kept)
    wanted[CLIENT] = "true"
    wanted.update({LABELS[name]: "true" for name in here if name in LABELS and name != "mig_manager"})
    if "device_plugin" in here and node.name in deploy.plugin_configs:
        wanted[PLUGIN_CONFIG] = deploy.plugin_configs[node.name]
    if "mig_manager" in here:
        capable = mig_capable(node.said)
        # The manager takes a label that goes for a layout that it does not know: where no layout may change, it stays.
        layout = deploy.mig_default if deploy.mig_changes else node.labels.get(MIG_CONFIG, "")
        # The MIG manager stops feature discovery while it works, and labels may vanish then: what is there stays.
        for key, value in ((MIG_MANAGER, "true"), (MIG_CONFIG, layout)):
            if value and (capable or (capable is None and node.labels.get(key))):
                wanted[key] = value
        # For this one label an empty value is a value, as in the GPU Operator.
        if node.labels.get(MIG_MANAGER) == "":
            wanted.pop(MIG_MANAGER, None)
        if node.labels.get(MIG_MANAGER) in ("", "false"):
            wanted.pop(MIG_CONFIG, None)
    return wanted


def kept_labels(node: Node, deploy: Deploy) -> t.Dict[str, str]:
    """Labels that stay although nothing is planned for them any more, because pods that GPU clients need would end:
    labels of ours, and those of others that would be removed, as a driver pod may run by a former operator's label."""
    may_end = deploy.pods_may_end and (deploy.ended_on is None or node.name in deploy.ended_on)
    if may_end or is_off(node.labels):
        return {}
    planned = deploy.delivered_on(node.name) if node.gpu else frozenset()
    keys = [] if "driver" in planned else [LABELS["driver"]]
    if "device_plugin" not in planned and node.labels.get("nvidia.com/mps.capable") == "true":
        keys += [LABELS["device_plugin"], PLUGIN_CONFIG]  # another configuration would start the MPS daemon anew
    keys = [key for key in keys if node.labels.get(key)]
    going: t.Set[str] = set()
    if keys:
        taken = _forbidden(node, deploy) if node.gpu else CONTAINER_SET
        going = _mine(node) | {key for key in taken if node.labels.get(key, "") not in _ATTRACTS_NOTHING}
    return {key: node.labels[key] for key in keys if key in going}


def leaving(nodes: t.Iterable[Node], deploy: Deploy, terms: Terms) -> t.Dict[str, t.List[str]]:
    """By component the Nodes that lose the label by which its pods run, if such pods may end."""
    found: t.Dict[str, t.List[str]] = {}
    for node in nodes:
        if not node.gpu and node.name in deploy.on_host:  # its host tells what GPUs it has
            node = replace(node, host={**{key: value for key, value in node.labels.items()
                                          if label_keys.is_feature(key)}, SHOWS_A_GPU[0]: "1"})
        held = kept_labels(node, replace(deploy, pods_may_end=False))
        change = plan_present(node, replace(deploy, pods_may_end=True), terms) if held else None
        for name in ("driver", "device_plugin"):
            if change and LABELS[name] in held and change.labels.get(LABELS[name], "") is None:
                found.setdefault(name, []).append(node.name)
    return found


def is_marked(node: Node, deploy: t.Optional[Deploy]) -> bool:
    """Whether a Node carries labels that a plan would have to take if its GPU were gone."""
    if any(key != PRESENT and _in_scope(key, node, deploy) for key in _mine(node)):
        return True
    return deploy is not None and node.labels.get(PRESENT) == "true" and PRESENT not in node.nfd


def seems_gone(node: Node, deploy: t.Optional[Deploy]) -> bool:
    """Whether labels speak of a GPU that nobody sees who looks for it."""
    return node.described and not node.gpu and is_marked(node, deploy)


def plan_present(node: Node, deploy: t.Optional[Deploy], terms: Terms) -> t.Optional[Change]:
    """What differs from the wanted labels, None where nothing does.

    A Node whose GPU nobody sees keeps its labels, unless it has stayed so for a while, and, where NFD says so, is ready
    and has NFD's other labels: labels vanish when NFD restarts, and operands must not be stopped by that.
    """
    forbidden: t.FrozenSet[str] = frozenset()
    kept = {} if deploy is None else kept_labels(node, deploy)
    if deploy is None and node.host is None:
        return None
    if node.gpu:
        wanted = {} if deploy is None else wanted_labels(node, deploy, kept)
        wanted.update(features(node))
        if deploy is not None:
            forbidden = _forbidden(node, deploy)
    elif not node.described or not (node.ready or node.host is not None):
        return None
    elif is_marked(node, deploy) and not stayed_away(node, terms):
        return first_sighting(node, terms)
    else:
        wanted = {**kept, PRESENT: "false"} if deploy is not None and node.labels.get(PRESENT) else kept
        if deploy is not None and is_marked(node, deploy):
            forbidden = CONTAINER_SET | VM_SET | DRA_SET
    return _difference(node, wanted, forbidden - kept.keys(), lambda key: _in_scope(key, node, deploy),
                       (node.sighting,))


def plan_absent(node: Node) -> t.Optional[Change]:
    """Takes back the listed keys, but for those that have become the user's or Node Feature Discovery's."""
    return _difference(node, {}, frozenset(), lambda key: True, (GONE, HOST_GONE, MIG_REASON))


def left_over(node: Node) -> t.FrozenSet[str]:
    """Deploy labels that a removal leaves and that attract operands, as they are nobody's by any record."""
    return frozenset(key for key in CONTAINER_SET - _mine(node) - node.nfd
                     if node.labels.get(key, "") not in _ATTRACTS_NOTHING)


def foreign(node: Node, deploy: t.Optional[Deploy]) -> t.FrozenSet[str]:
    """The keys that we would write and that others keep, whatever they say."""
    if not node.gpu:
        return frozenset()
    kept = {} if deploy is None else kept_labels(node, deploy)
    wanted = {} if deploy is None else wanted_labels(node, deploy, kept)
    ours = _mine(node)
    theirs = {key for key in wanted if node.labels.get(key) and key not in ours and key not in (PRESENT, *kept)}
    return frozenset(theirs) | _features(node)[1]


def features(node: Node) -> t.Dict[str, str]:
    """What its host tells, but for what others keep on the Node."""
    return _features(node)[0]


def _features(node: Node) -> t.Tuple[t.Dict[str, str], t.FrozenSet[str]]:
    """(what the host tells and we write, keys among it that others keep on the Node)."""
    told = node.host or {}
    theirs = frozenset(key for key in told if key in node.nfd or (key in node.labels and key not in node.ours))
    return {key: value for key, value in told.items() if key not in theirs}, theirs


def _forbidden(node: Node, deploy: Deploy) -> t.FrozenSet[str]:
    """Labels that must not attract anything on a Node with a GPU."""
    if node.labels.get(OPERANDS) == "false":
        return CONTAINER_SET | VM_SET
    if node.labels.get(WORKLOAD) in SANDBOX:
        return CONTAINER_SET
    here = deploy.on_host.get(node.name, frozenset()) & deploy.components
    return VM_SET | {LABELS[name] for name in here if name in LABELS}


def stayed_away(node: Node, terms: Terms) -> bool:
    """Whether a GPU that nobody sees has been away long enough."""
    return terms.gone_after <= 0 or (_away(node, terms) or 0) >= terms.gone_after


def first_sighting(node: Node, terms: Terms) -> t.Optional[Change]:
    """The change that keeps now as the first sighting, None where one is kept already."""
    if _away(node, terms) is not None:
        return None
    key = node.sighting
    before = {key: node.annotations[key]} if key in node.annotations else {}
    return Change(node.name, {}, {}, {key: time.strftime(_TIME, time.gmtime(terms.now))}, before)


def _away(node: Node, terms: Terms) -> t.Optional[float]:
    """Seconds since the first sighting, None where none is kept that can be read and counts."""
    try:
        away = terms.now - calendar.timegm(time.strptime(node.annotations.get(node.sighting, ""), _TIME))
    except ValueError:
        return None
    return away if 0 <= away <= terms.gone_after + _TRUSTED else None


def _in_scope(key: str, node: Node, deploy: t.Optional[Deploy]) -> bool:
    """Whether a plan speaks of a key."""
    return deploy is not None if label_keys.is_deploy(key) else node.host is not None


def undecided(node: Node, deploy: Deploy) -> bool:
    """Whether it is not known yet if the MIG manager belongs on the Node."""
    here = deploy.delivered_on(node.name)
    return node.gpu and "mig_manager" in here and not is_off(node.labels) and mig_capable(node.said) is None


def _difference(node: Node, wanted: t.Mapping[str, str], forbidden: t.AbstractSet[str],
                in_scope: t.Callable[[str], bool], sightings: t.Sequence[str]) -> t.Optional[Change]:
    mine = _mine(node)
    ours = {key for key in mine if in_scope(key)}
    labels: Changes = {key: None for key in ours if key not in wanted}
    # For the task that speaks of the other family, or for the level at which these may go.
    waits = {key for key in mine if key != PRESENT and (key in wanted or not in_scope(key))}
    ours &= set(wanted)
    theirs = node.nfd
    for key, value in wanted.items():
        now = node.labels.get(key)
        if key not in theirs and now != value and (not now or _is_statement(key, ours)):
            labels[key] = value
            ours.add(key)
    for key in forbidden - theirs:
        if node.labels.get(key, "") not in _ATTRACTS_NOTHING:
            labels[key] = None
    listed = ",".join(sorted(ours | {key for key in node.ours if not in_scope(key)}))
    new: t.Dict[str, str] = {ANNOTATION: listed} if listed else {}
    if waits and not node.gpu and node.sighting in node.annotations:
        new[node.sighting] = node.annotations[node.sighting]
    annotations: Changes = {key: new.get(key) for key in (ANNOTATION, *sightings)
                            if node.annotations.get(key) != new.get(key)}
    annotations.update((key, value or None) for key, value in node.freed.items())
    if not labels and not annotations:
        return None
    return Change(node.name, {key: labels[key] for key in sorted(labels)},
                  {key: node.labels[key] for key in sorted(labels) if key in node.labels}, annotations,
                  {key: node.annotations[key] for key in annotations if key in node.annotations})


def _is_statement(key: str, ours: t.Collection[str]) -> bool:
    """Whether a key says what is so: then a wrong value is put right, while wishes of others are honoured. The
    configuration of the device plugin is the inventory's wherever we wrote it."""
    return key == PRESENT or not label_keys.is_deploy(key) or (key == PLUGIN_CONFIG and key in ours)


def _mine(node: Node) -> t.Set[str]:
    """The keys that are ours still."""
    return {key for key in node.ours if key in node.labels and key not in node.nfd
            and not _is_users(key, node.labels[key])}


def _is_users(key: str, value: str) -> bool:
    """Whether a value of a key that we wrote is the user's: neither we nor the managers write it."""
    return (key.startswith(DEPLOY) and value in ("false", "pre-installed")) or (key == MIG_MANAGER and value == "") or (
        key == MIG_CONFIG and value not in ("", MIG_DEFAULT))


def owned(node: Node) -> t.Dict[str, t.Dict[str, str]]:
    """C({present: the labels that are ours, foreign: those of the same families that are not}), for looking."""
    families = {key: value for key, value in node.labels.items()
                if key == WORKLOAD or label_keys.is_deploy(key) or label_keys.is_feature(key)}
    return {"present": {key: value for key, value in node.labels.items() if key in node.ours},
            "foreign": {key: value for key, value in families.items() if key not in node.ours}}


def differs(nodes: t.Iterable[Node], deploy: Deploy, now: float) -> bool:
    """Whether any Node has to be written."""
    return any(plan_present(node, deploy, Terms(now)) for node in nodes)
