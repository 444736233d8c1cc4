# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Computes the labels of a Node from its present labels, the components delivered there, and the labels that its host
reports. Pure. PRIVATE.

The deploy labels are the labels of GPU Operator 26.7 for containers: DaemonSets select their Nodes by them, the driver
manager and the MIG manager change their values to pause operands, and users set C(false) to keep an operand off a Node.
The operator sets the labels of all its components on each Node. Here a Node only gets the labels of the components that
the cluster delivers on it, so that the labels show what runs there. Each GPU Node gets the label C(client), for
DaemonSets of others that both managers must stop.

"Ours" are the labels that this collection has written. An annotation lists their keys: managedFields does not show them
all, because the managers become the owners of the labels that they change. If the annotation was removed, the labels
that managedFields attributes to this collection are used instead.
- A key that the Node had before is not listed, unless this collection has changed its value.
- If a listed deploy label is now C(false) or C(pre-installed), or a listed mig.config names another layout, the label
  belongs to the user. It is no longer listed, and stays.
- A key that Node Feature Discovery maintains belongs to Node Feature Discovery, even if this collection wrote it first.
  It is no longer listed, and is not changed.
- Labels of others are only removed if they are deploy labels and the operand must not run on the Node: because the Node
  no longer has a GPU, operands are switched off there, the Node is for another kind of workload, or the component is
  installed on its host. The values C(false) and C(pre-installed) let no operand run, so they stay.
- GPU clients need the pods of the driver and, on a Node that shares GPUs by MPS, the pods of the device plugin. While
  these pods must not end, their labels stay, even labels of others. Values that the user has set, and switches such as
  C(operands), take precedence.

A plan changes deploy labels only if the delivered components are known, and feature labels only if the host has
reported them. A GPU counts as gone only after it has been missing for Terms.gone_after seconds. Until then, another
annotation stores when the GPU was first found missing, and no label changes.
"""

from __future__ import annotations

import calendar
import time
import typing as t
from dataclasses import dataclass, field, replace
from functools import cached_property

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import facts, label_keys
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

# Maps labels or annotations to their new values, None to remove one.
Changes = t.Dict[str, t.Optional[str]]

ANNOTATION = "gpuops.nvidia/labels"
# The annotations with the time since which NFD, or the host, reports no GPU: C(2026-11-22T07:10:47Z). There are two,
# because some tasks rely on NFD and others on the host, and their reports may differ.
GONE, HOST_GONE = "gpuops.nvidia/gpu-gone-since", "gpuops.nvidia/host-gpu-gone-since"
# Seconds for which a GPU must be missing before it counts as gone. The worker of NFD looks once a minute, and its
# labels come back some minutes after a restart of its master or of an API server.
GONE_AFTER = 600
# An annotation older than GONE_AFTER plus these seconds is ignored, because the GPU may have come back since. It is
# longer than a week for users who run a playbook once a week.
_TRUSTED = 8 * 86400
_TIME = "%Y-%m-%dT%H:%M:%SZ"
MIG_DEFAULT = "all-disabled"
# The state of a Node's layout, and why it failed: written by the vendor's MIG manager or by node_mig.
MIG_STATE, MIG_REASON = f"{MIG_CONFIG}.state", "gpuops.nvidia/mig-reason"
# The state of a layout that was not applied, and those of a change that has not ended.
MIG_FAILED, MIG_UNDER_WAY = "failed", ("pending", "rebooting")
SANDBOX = ("vm-passthrough", "vm-vgpu")

_WORDS = {
    "driver": "driver", "container_toolkit": "container-toolkit", "validator": "operator-validator",
    "device_plugin": "device-plugin", "feature_discovery": "gpu-feature-discovery", "dcgm": "dcgm",
    "dcgm_exporter": "dcgm-exporter", "mig_manager": "mig-manager", "node_status_exporter": "node-status-exporter",
}
# Maps a component to its label. Node Feature Discovery has none, because it runs on all Nodes.
LABELS = {component: DEPLOY + word for component, word in _WORDS.items()}
CLIENT = f"{DEPLOY}client"
MIG_MANAGER = LABELS["mig_manager"]
# All labels that operands select; the MIG manager creates nvsm when it ends.
CONTAINER_SET = frozenset((*LABELS.values(), CLIENT, f"{DEPLOY}nvsm"))
# Labels of Nodes for virtual machines, which this collection does not serve. GPU Operator 26.7 removes them from all
# other Nodes.
VM_SET = frozenset(DEPLOY + word for word in (
    "sandbox-device-plugin", "kata-sandbox-device-plugin", "sandbox-validator", "vfio-manager", "kata-manager",
    "cc-manager", "vgpu-manager", "vgpu-device-manager"))
# Labels of the operator's mode GPUCluster, which this collection does not serve. They stay while the Node has a GPU.
DRA_SET = frozenset(DEPLOY + word for word in ("dra-driver", "dra-validator", "dcgm-dra", "dcgm-exporter-dra"))
_ATTRACTS_NOTHING = ("", "false", "pre-installed")


def gets_driver_pod(labels: t.Mapping[str, str]) -> bool:
    """Whether a Node with these labels gets a driver pod, possibly later."""
    return labels.get(LABELS["driver"], "") not in _ATTRACTS_NOTHING


@dataclass(frozen=True)
class Node:
    """The state of a Node on which its plan depends.

    ready: its condition Ready, only needed if a GPU is missing and no host has reported; host: the labels that
    gpu_labels has computed on its host, None if gpu_labels has not run there; adopt: keys that count as ours if the
    Node has them; orphaned: whether NFD was removed from the cluster, so that nothing maintains the labels listed in
    NFD's annotations; written: the labels that managedFields attributes to us, used if our annotation is missing.
    """

    name: str
    labels: Labels
    annotations: Labels = field(default_factory=dict)
    ready: bool = False
    host: t.Optional[Labels] = None
    adopt: t.FrozenSet[str] = frozenset()
    orphaned: bool = False
    written: t.FrozenSet[str] = frozenset()

    @classmethod
    def of_facts(cls, name: str, node: facts.Node, adopt: t.FrozenSet[str] = frozenset()) -> Node:
        """Creates a Node from the facts of a cluster."""
        return cls(name, node["labels"], node["annotations"], node["ready"], adopt=adopt,
                   written=frozenset(node.get("written", ())))

    def with_gpus(self, count: int) -> Node:
        """The Node as if its host had reported this number of GPUs and the feature labels that the Node has."""
        features = {key: value for key, value in self.labels.items() if label_keys.is_feature(key)}
        return replace(self, host={SHOWS_A_GPU[0]: str(count), **features})

    @cached_property
    def ours(self) -> t.FrozenSet[str]:
        """The keys that the annotation lists, without keys that cannot be ours, and the adopted keys of the Node.

        managedFields alone is not enough, because a run that pauses operands also writes labels of others.
        """
        known = self.annotations[ANNOTATION].split(",") if ANNOTATION in self.annotations else self.written
        listed = frozenset(key for key in known if label_keys.may_be_ours(key))
        return listed | (self.adopt & set(self.labels))

    @property
    def gpu(self) -> bool:
        """Whether the Node has an NVIDIA GPU, according to its host or, if the host has not reported, to NFD."""
        if self.host is not None:
            return any(key in self.host for key in SHOWS_A_GPU)
        return any(self.labels.get(key) == "true" for key in PCI)

    @property
    def described(self) -> bool:
        """Whether the host or NFD has searched the Node for GPUs."""
        return self.host is not None or any(key.startswith(NFD) for key in self.labels)

    @property
    def reported(self) -> t.Dict[str, str]:
        """The labels of the Node. Values that its host has reported replace the present ones."""
        return {**self.labels, **(self.host or {})}

    @cached_property
    def nfd(self) -> t.FrozenSet[str]:
        """The labels that Node Feature Discovery maintains on the Node."""
        return label_keys.nfd_keys({**self.annotations, **self.freed})

    @property
    def freed(self) -> t.Dict[str, str]:
        """The new values of a removed NFD's annotations, which no longer list the adopted keys."""
        return label_keys.nfd_lists_without(self.annotations, self.adopt) if self.orphaned else {}

    @property
    def sighting(self) -> str:
        """The key of the annotation with the time since which no GPU has been found: the host's annotation if
        gpu_labels has run there, otherwise NFD's annotation."""
        return GONE if self.host is None else HOST_GONE


@dataclass(frozen=True)
class Deploy:
    """The delivered components.

    components: the components in the cluster; on_host: maps a Node to the components that its host has instead;
    mig_default: the layout for a Node without a layout (all-disabled), empty for none; plugin_configs: maps a Node to
    the device plugin's configuration that the inventory names; mig_changes: whether a layout may be requested for a
    Node without one, and the MIG manager may start on a Node with one, which destroys other instances; pods_may_end:
    whether labels may be removed even if this ends pods on which GPU clients depend; ended_on: the Nodes to which
    pods_may_end is limited, because these pods have ended there, None for all Nodes; without_driver: Nodes for which no
    driver is planned, and which do not get the driver's label.
    """

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
    """When a GPU counts as gone. now: seconds since 1970; gone_after: seconds for which the GPU must be missing."""

    now: float
    gone_after: float = GONE_AFTER


class Summary(t.TypedDict):
    """A change of labels, as shown in results. changed: maps a label to its values C(before) and C(after)."""

    added: t.Dict[str, str]
    changed: t.Dict[str, t.Dict[str, str]]
    removed: t.Dict[str, str]


@dataclass(frozen=True)
class Change:
    """A change of one Node: the new values, as in L(Changes), and the values that these keys had before."""

    node: str
    labels: Changes
    before: t.Dict[str, str]
    annotations: Changes
    annotations_before: t.Dict[str, str]

    def patch(self) -> t.Dict[str, t.Dict[str, Changes]]:
        """A merge patch of the keys that differ.

        It needs no resourceVersion: because it has only these keys, it keeps what others write to other keys meanwhile.
        """
        parts = {"labels": self.labels, "annotations": self.annotations}
        return {"metadata": {name: part for name, part in parts.items() if part}}

    def summary(self) -> Summary:
        """The change of the labels. A label with an empty value counts as missing before the change."""
        before = {key: value for key, value in self.before.items() if value}
        return {
            "added": {key: value for key, value in self.labels.items() if value is not None and key not in before},
            "changed": {key: {"before": before[key], "after": value} for key, value in self.labels.items()
                        if value is not None and key in before},
            "removed": {key: self.before[key] for key, value in self.labels.items() if value is None},
        }


def parse_deploy(given: t.Mapping[str, t.Any]) -> Deploy:
    """Parses the option C(deploy): C({components: {name: bool}, on_host: {node: [name]}, mig_default: str,
    plugin_configs: {node: name}, mig_changes: bool, pods_may_end: bool, leaving: {component: [node]}, ended_on: [node],
    without_driver: [node]}).

    Raises InputError for an invalid value. Other keys of the plan are ignored.
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


def _check_name(path: str, name: str) -> None:
    if name not in LABELS and name != "nfd":
        allowed = ["nfd", *LABELS]
        raise InputError(f"{name!r} is no component.", f"Choose from {', '.join(allowed)}.", path=path, value=name,
                         allowed=allowed)


def mig_capable(labels: Labels) -> t.Optional[bool]:
    """Whether GPUs of the Node support MIG; None if the labels C(mig.capable) and C(gpu.product) are both missing.

    A vGPU guest never supports MIG. If C(mig.capable) is missing, the product decides, as in the GPU Operator.
    """
    if labels.get("nvidia.com/vgpu.host-driver-version"):
        return False
    if labels.get("nvidia.com/mig.capable"):
        return labels["nvidia.com/mig.capable"] == "true"
    product = labels.get("nvidia.com/gpu.product", "").lower()
    return any(model in product for model in ("h100", "a100", "a30")) if product else None


def is_off(labels: Labels) -> bool:
    """Whether no operand may run on the Node, because of the label C(operands) or because it is for virtual machines.
    """
    return labels.get(OPERANDS) == "false" or labels.get(WORKLOAD) in SANDBOX


def wanted_labels(node: Node, deploy: Deploy, kept: t.Optional[Labels] = None) -> t.Dict[str, str]:
    """The wanted labels of a Node with a GPU. kept: the result of L(kept_labels), None to compute it."""
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
        capable = mig_capable(node.reported)
        # The MIG manager handles a removed label like an unknown layout. So if no layout may change, the label stays.
        layout = deploy.mig_default if deploy.mig_changes else node.labels.get(MIG_CONFIG, "")
        # While the MIG manager works, feature discovery is paused and its labels may be missing. Present labels stay.
        manager = "" if manager_waits(node, deploy) else "true"
        for key, value in ((MIG_MANAGER, manager), (MIG_CONFIG, layout)):
            if value and (capable or (capable is None and node.labels.get(key))):
                wanted[key] = value
        # Only for this label, an empty value counts as set by the user, as in the GPU Operator.
        if node.labels.get(MIG_MANAGER) == "":
            wanted.pop(MIG_MANAGER, None)
        if node.labels.get(MIG_MANAGER) in ("", "false"):
            wanted.pop(MIG_CONFIG, None)
    return wanted


def manager_waits(node: Node, deploy: Deploy) -> bool:
    """Whether a Node with a GPU must not get the MIG manager yet: no layout may change, and the manager applies the
    layout that the Node's label requests as soon as it starts."""
    return (not deploy.mig_changes and "mig_manager" in deploy.delivered_on(node.name) and not is_off(node.labels)
            and bool(node.labels.get(MIG_CONFIG)) and MIG_MANAGER not in node.labels
            and bool(mig_capable(node.reported)))


def kept_labels(node: Node, deploy: Deploy) -> t.Dict[str, str]:
    """Labels that are no longer planned but stay, because without them pods that GPU clients need would end. They
    include labels of others that the plan would remove: a driver pod can depend on a label of a former operator."""
    may_end = deploy.pods_may_end and (deploy.ended_on is None or node.name in deploy.ended_on)
    if may_end or is_off(node.labels):
        return {}
    planned = deploy.delivered_on(node.name) if node.gpu else frozenset()
    keys = [] if "driver" in planned else [LABELS["driver"]]
    if "device_plugin" not in planned and node.labels.get("nvidia.com/mps.capable") == "true":
        keys += [LABELS["device_plugin"], PLUGIN_CONFIG]  # another configuration would restart the MPS daemon
    keys = [key for key in keys if node.labels.get(key)]
    going: t.Set[str] = set()
    if keys:
        taken = _forbidden(node, deploy) if node.gpu else CONTAINER_SET
        going = _mine(node) | {key for key in taken if node.labels.get(key, "") not in _ATTRACTS_NOTHING}
    return {key: node.labels[key] for key in keys if key in going}


def leaving(nodes: t.Iterable[Node], deploy: Deploy, terms: Terms) -> t.Dict[str, t.List[str]]:
    """Maps a component to the Nodes that would lose its label, and with it its pods, if pods_may_end were true."""
    found: t.Dict[str, t.List[str]] = {}
    for node in nodes:
        if not node.gpu and node.name in deploy.on_host:
            node = node.with_gpus(1)  # its host reports the real number later
        held = kept_labels(node, replace(deploy, pods_may_end=False))
        change = plan_present(node, replace(deploy, pods_may_end=True), terms) if held else None
        for name in ("driver", "device_plugin"):
            if change and LABELS[name] in held and change.labels.get(LABELS[name], "") is None:
                found.setdefault(name, []).append(node.name)
    return found


def is_marked(node: Node, deploy: t.Optional[Deploy]) -> bool:
    """Whether a Node has labels that a plan would remove if its GPU were gone."""
    if any(key != PRESENT and _in_scope(key, node, deploy) for key in _mine(node)):
        return True
    return deploy is not None and node.labels.get(PRESENT) == "true" and PRESENT not in node.nfd


def seems_gone(node: Node, deploy: t.Optional[Deploy]) -> bool:
    """Whether labels say that the Node has a GPU, although its host, or NFD, has found none."""
    return node.described and not node.gpu and is_marked(node, deploy)


def plan_present(node: Node, deploy: t.Optional[Deploy], terms: Terms) -> t.Optional[Change]:
    """The change that gives a Node its wanted labels, None if nothing changes.

    A Node on which no GPU is found keeps its labels until the GPU counts as gone. If only NFD reports the loss, the
    Node must also be Ready and have other labels of NFD: labels can be missing when NFD restarts, and operands must not
    stop because of that.
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
    """The change that removes the listed keys, except those that now belong to the user or Node Feature Discovery."""
    return _difference(node, {}, frozenset(), lambda key: True, (GONE, HOST_GONE, MIG_REASON))


def left_over(node: Node) -> t.FrozenSet[str]:
    """Deploy labels that let operands run and that a removal leaves, because nothing says that we wrote them."""
    return frozenset(key for key in CONTAINER_SET - _mine(node) - node.nfd
                     if node.labels.get(key, "") not in _ATTRACTS_NOTHING)


def foreign(node: Node, deploy: t.Optional[Deploy]) -> t.FrozenSet[str]:
    """The keys that we would write but that others have set, whatever their value."""
    if not node.gpu:
        return frozenset()
    kept = {} if deploy is None else kept_labels(node, deploy)
    wanted = {} if deploy is None else wanted_labels(node, deploy, kept)
    ours = _mine(node)
    theirs = {key for key in wanted if node.labels.get(key) and key not in ours and key not in (PRESENT, *kept)}
    return frozenset(theirs) | _features(node)[1]


def features(node: Node) -> t.Dict[str, str]:
    """The labels that the host reports, without labels that others maintain on the Node."""
    return _features(node)[0]


def _features(node: Node) -> t.Tuple[t.Dict[str, str], t.FrozenSet[str]]:
    """(the labels of the host that we write, the keys of the host's other labels, which others maintain on the Node).
    """
    reported = node.host or {}
    others = frozenset(key for key in reported
                       if key in node.nfd or (key in node.labels and key not in node.ours))
    return {key: value for key, value in reported.items() if key not in others}, others


def _forbidden(node: Node, deploy: Deploy) -> t.FrozenSet[str]:
    """The deploy labels by which no operand may run on a Node with a GPU."""
    if node.labels.get(OPERANDS) == "false":
        return CONTAINER_SET | VM_SET
    if node.labels.get(WORKLOAD) in SANDBOX:
        return CONTAINER_SET
    here = deploy.on_host.get(node.name, frozenset()) & deploy.components
    return VM_SET | {LABELS[name] for name in here if name in LABELS}


def stayed_away(node: Node, terms: Terms) -> bool:
    """Whether a GPU has been missing long enough to count as gone."""
    return terms.gone_after <= 0 or (_away(node, terms) or 0) >= terms.gone_after


def first_sighting(node: Node, terms: Terms) -> t.Optional[Change]:
    """The change that records the present time as the time since which no GPU has been found; None if a time is already
    recorded."""
    if _away(node, terms) is not None:
        return None
    key = node.sighting
    before = {key: node.annotations[key]} if key in node.annotations else {}
    return Change(node.name, {}, {}, {key: time.strftime(_TIME, time.gmtime(terms.now))}, before)


def _away(node: Node, terms: Terms) -> t.Optional[float]:
    """The seconds for which no GPU has been found; None if the annotation is missing, invalid or too old."""
    try:
        away = terms.now - calendar.timegm(time.strptime(node.annotations.get(node.sighting, ""), _TIME))
    except ValueError:
        return None
    return away if 0 <= away <= terms.gone_after + _TRUSTED else None


def _in_scope(key: str, node: Node, deploy: t.Optional[Deploy]) -> bool:
    """Whether the plan may change a key: deploy labels need deploy, feature labels need a report of the host. Only a
    removal changes the state of an upgrade."""
    if key == label_keys.UPGRADE_STATE:
        return False
    return deploy is not None if label_keys.is_deploy(key) else node.host is not None


def undecided(node: Node, deploy: Deploy) -> bool:
    """Whether it is not known yet if the MIG manager must run on the Node."""
    here = deploy.delivered_on(node.name)
    return node.gpu and "mig_manager" in here and not is_off(node.labels) and mig_capable(node.reported) is None


def _difference(node: Node, wanted: t.Mapping[str, str], forbidden: t.AbstractSet[str],
                in_scope: t.Callable[[str], bool], sightings: t.Sequence[str]) -> t.Optional[Change]:
    mine = _mine(node)
    ours = {key for key in mine if in_scope(key)}
    labels: Changes = {key: None for key in ours if key not in wanted}
    # The annotation with the time stays while there are labels that another task, or a run at a higher level, removes.
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
    """Whether a differing label value is overwritten. Labels that state a fact are; other labels can state what a user
    wants, and keep their value. The configuration of the device plugin is overwritten if we wrote the label."""
    return key == PRESENT or not label_keys.is_deploy(key) or (key == PLUGIN_CONFIG and key in ours)


def _mine(node: Node) -> t.Set[str]:
    """Our keys, without those that now belong to the user or to Node Feature Discovery."""
    return {key for key in node.ours if key in node.labels and key not in node.nfd
            and not _is_users(key, node.labels[key])}


def _is_users(key: str, value: str) -> bool:
    """Whether the user has changed a key that we wrote: neither we nor the managers write such a value."""
    return (key.startswith(DEPLOY) and value in ("false", "pre-installed")) or (key == MIG_MANAGER and value == "") or (
        key == MIG_CONFIG and value not in ("", MIG_DEFAULT))


def owned(node: Node) -> t.Tuple[t.Dict[str, str], t.Dict[str, str]]:
    """(our labels of a Node, its other deploy and feature labels)."""
    labels = {key: value for key, value in node.labels.items() if key in node.ours or key == WORKLOAD
              or label_keys.is_deploy(key) or label_keys.is_feature(key)}
    return ({key: value for key, value in labels.items() if key in node.ours},
            {key: value for key, value in labels.items() if key not in node.ours})


def differs(nodes: t.Iterable[Node], deploy: Deploy, now: float) -> bool:
    """Whether the labels of any Node would change."""
    return any(plan_present(node, deploy, Terms(now)) for node in nodes)
