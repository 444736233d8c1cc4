# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which deploy labels a Node gets, from its labels and what is delivered. Pure. PRIVATE to the collection.

The labels are those of the GPU Operator 26.7 for containers: DaemonSets choose their Nodes by them, the driver manager
and the MIG manager pause operands by rewriting their values, and users keep an operand off by C(false). Unlike the
operator, which labels a Node for every component it knows, only what is delivered in the cluster on that Node is
labelled: a label is then a statement that can be trusted. C(client) goes to every GPU Node, as it stands for DaemonSets
of others which both managers have to stop.

The keys that we wrote are listed in an annotation, because the managers rewrite values and so take over the field:
- A key that was there with a value stays out of the list. It counts where it says what we would say.
- A listed deploy label that is C(false) by now, or a listed mig.config with another layout, is the user's: it leaves
  the list and stays.
- Taken from others are deploy labels alone, and only from a Node on which that operand must not run: no GPU any more,
  switched off there, or the component is delivered on the host. C(false) and C(pre-installed) attract nothing and stay.
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, field

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError

Labels = t.Mapping[str, str]
# Label to its new value, None to take it away.
Changes = t.Dict[str, t.Optional[str]]

ANNOTATION = "gpuops.nvidia/labels"
NFD = "feature.node.kubernetes.io/"
# NFD writes the first for vendor, the others for class and vendor: 3D controller, VGA controller.
PCI = tuple(f"{NFD}pci-{kind}10de.present" for kind in ("", "0302_", "0300_"))
PRESENT = "nvidia.com/gpu.present"
DEPLOY = "nvidia.com/gpu.deploy."
MIG_CONFIG = "nvidia.com/mig.config"
MIG_DEFAULT = "all-disabled"
# Input of users.
OPERANDS = f"{DEPLOY}operands"
WORKLOAD = "nvidia.com/gpu.workload.config"
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
_ATTRACTS_NOTHING = ("", "false", "pre-installed")


@dataclass(frozen=True)
class Node:
    """What counts of a Node. ready: its condition Ready; needed only where L(seems_gone)."""

    name: str
    labels: Labels
    annotations: Labels = field(default_factory=dict)
    ready: bool = False

    @property
    def ours(self) -> t.FrozenSet[str]:
        """The keys that the annotation lists."""
        return frozenset(key for key in self.annotations.get(ANNOTATION, "").split(",") if key)

    @property
    def gpu(self) -> bool:
        """Whether NFD sees an NVIDIA GPU."""
        return any(self.labels.get(key) == "true" for key in PCI)

    @property
    def described(self) -> bool:
        """Whether NFD has labelled it at all."""
        return any(key.startswith(NFD) for key in self.labels)

    @property
    def seems_gone(self) -> bool:
        """Whether labels speak of a GPU that NFD, which is there, does not see."""
        marked = self.labels.get(PRESENT) == "true" or bool(self.ours - {PRESENT})
        return marked and self.described and not self.gpu


@dataclass(frozen=True)
class Deploy:
    """What is delivered. components: in the cluster; on_host: by Node, those that its host has instead;
    mig_default: the layout for a Node without one (all-disabled), empty for none."""

    components: t.FrozenSet[str] = frozenset()
    on_host: t.Mapping[str, t.FrozenSet[str]] = field(default_factory=dict)
    mig_default: str = ""


@dataclass(frozen=True)
class Change:
    """What differs on one Node. labels: see Changes; before: the values they had; ours: the new list of keys."""

    node: str
    labels: Changes
    before: t.Dict[str, str]
    ours: t.FrozenSet[str]
    ours_before: t.FrozenSet[str]

    def patch(self) -> t.Dict[str, t.Any]:
        """A merge patch of the keys that differ.

        It needs no resourceVersion: whatever others write to the Node meanwhile concerns other keys and stays.
        """
        metadata: t.Dict[str, t.Any] = {}
        if self.labels:
            metadata["labels"] = self.labels
        if self.ours != self.ours_before:
            metadata["annotations"] = {ANNOTATION: ",".join(sorted(self.ours)) or None}
        return {"metadata": metadata}

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
    """The option C(deploy): C({components: {name: bool}, on_host: {node: [name]}, mig_default: str}).

    Raises InputError. Other keys are the plan's and do not count here.
    """
    components = given.get("components")
    if not isinstance(components, dict):
        raise InputError("A mapping of components to true or false is needed.", "Give gpu_plan.cluster.deploy, or "
                         "{components: {device_plugin: true}}.", path="deploy.components", value=components)
    on_host = given.get("on_host") or {}
    for name, delivered in components.items():
        _check_name(f"deploy.components.{name}", name)
        if not isinstance(delivered, bool):
            raise InputError(f"{delivered!r} is not allowed.", "Set true or false.",
                             path=f"deploy.components.{name}", value=delivered, allowed=[True, False])
    for node, names in on_host.items():
        for name in names:
            _check_name(f"deploy.on_host.{node}", name)
    mig_default = given.get("mig_default") or ""
    if mig_default not in ("", MIG_DEFAULT):
        raise InputError(f"{mig_default!r} is not allowed.", f"Set {MIG_DEFAULT}, or nothing.",
                         path="deploy.mig_default", value=mig_default, allowed=[MIG_DEFAULT, ""])
    return Deploy(frozenset(name for name, delivered in components.items() if delivered),
                  {node: frozenset(names) for node, names in on_host.items()}, mig_default)


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


def wanted_labels(node: Node, deploy: Deploy) -> t.Dict[str, str]:
    """The labels that a Node with a GPU is to have."""
    wanted = {PRESENT: "true"}
    if is_off(node.labels):
        return wanted
    here = deploy.components - deploy.on_host.get(node.name, frozenset())
    wanted[CLIENT] = "true"
    wanted.update({LABELS[name]: "true" for name in here if name in LABELS and name != "mig_manager"})
    if "mig_manager" in here:
        capable = mig_capable(node.labels)
        # The MIG manager stops feature discovery while it works, and labels may vanish then: what is there stays.
        for key, value in ((MIG_MANAGER, "true"), (MIG_CONFIG, deploy.mig_default)):
            if value and (capable or (capable is None and node.labels.get(key))):
                wanted[key] = value
        if node.labels.get(MIG_MANAGER) == "false":
            wanted.pop(MIG_CONFIG, None)
    return wanted


def plan_present(node: Node, deploy: Deploy) -> t.Optional[Change]:
    """What differs from the wanted labels, None where nothing does.

    A Node whose GPU NFD does not see keeps its labels, unless it is ready and NFD's other labels are there: labels
    vanish for a while when NFD restarts, and operands must not be stopped by that.
    """
    if node.gpu:
        wanted = wanted_labels(node, deploy)
        here = deploy.on_host.get(node.name, frozenset()) & deploy.components
        forbidden = CONTAINER_SET if is_off(node.labels) else frozenset(LABELS[name] for name in here & set(LABELS))
    elif node.described and node.ready:
        wanted = {PRESENT: "false"} if node.labels.get(PRESENT) else {}
        forbidden = CONTAINER_SET if node.seems_gone else frozenset()
    else:
        return None
    return _difference(node, wanted, forbidden)


def plan_absent(node: Node) -> t.Optional[Change]:
    """Takes back the listed keys, but for those that have become the user's."""
    return _difference(node, {}, frozenset())


def undecided(node: Node, deploy: Deploy) -> bool:
    """Whether it is not known yet if the MIG manager belongs on the Node."""
    here = deploy.components - deploy.on_host.get(node.name, frozenset())
    return node.gpu and "mig_manager" in here and not is_off(node.labels) and mig_capable(node.labels) is None


def _difference(node: Node, wanted: t.Mapping[str, str], forbidden: t.AbstractSet[str]) -> t.Optional[Change]:
    ours = {key for key in node.ours if key in node.labels and not _is_users(key, node.labels[key])}
    labels: Changes = {key: None for key in ours if key not in wanted}
    ours &= set(wanted)
    for key, value in wanted.items():
        now = node.labels.get(key, "")
        # Whether a GPU is there is no wish: a wrong answer is put right whoever gave it. All others are honoured.
        if not now or (key == PRESENT and now != value):
            labels[key] = value
            ours.add(key)
    for key in forbidden:
        if node.labels.get(key, "") not in _ATTRACTS_NOTHING:
            labels[key] = None
    if not labels and ours == node.ours:
        return None
    before = {key: node.labels[key] for key in sorted(labels) if key in node.labels}
    return Change(node.name, {key: labels[key] for key in sorted(labels)}, before, frozenset(ours), node.ours)


def _is_users(key: str, value: str) -> bool:
    """Whether a value of a key that we wrote is the user's: neither we nor the managers write it."""
    return (key.startswith(DEPLOY) and value == "false") or (key == MIG_CONFIG and value not in ("", MIG_DEFAULT))


def owned(node: Node) -> t.Dict[str, t.Dict[str, str]]:
    """C({present: the labels that are ours, foreign: those of the same family that are not}), for looking."""
    family = {key: value for key, value in node.labels.items()
              if key in (PRESENT, MIG_CONFIG, WORKLOAD) or key.startswith(DEPLOY)}
    return {"present": {key: value for key, value in node.labels.items() if key in node.ours},
            "foreign": {key: value for key, value in family.items() if key not in node.ours}}


def differs(nodes: t.Iterable[Node], deploy: Deploy) -> bool:
    """Whether any Node has to be written."""
    return any(plan_present(node, deploy) for node in nodes)
