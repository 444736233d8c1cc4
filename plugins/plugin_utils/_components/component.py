# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What planning and verification know of a component, and what all components share. Pure. PRIVATE.

Source of the rules for clusters: GPU Operator 26.7 (how its ClusterPolicy becomes DaemonSets), also for variables.
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, field

from ansible_collections.gpuops.nvidia.plugins.module_utils._result import allows
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.components import Entry, by_name
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.refusals import Concerned, Refused
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.releases import Release
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.wording import counted, some_of
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._drivers.choose_driver import Asked, switched
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._drivers.cluster_pools import Pool
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import cluster_images as images
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.formats import Policy
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.sharing import Sharing, checksum

# What Ansible carries: facts of gpu_info or of read_cluster, the variables of a host, a host's plan of a component.
Facts = t.Mapping[str, t.Any]
HostVars = t.Mapping[str, t.Any]
Expected = t.Mapping[str, t.Any]
# What roles and templates read of the plan of a component: the keys are those of its L(Component.host_plan), which has
# C(placement) and C(because), or of its L(Component.cluster_plan), which has C(state) and C(because).
Plan = t.Dict[str, object]


class PresentPlan(t.TypedDict):
    """What the plan of each component that a cluster gets has. images, pull: by image its reference and pull policy."""

    state: str
    because: t.List[str]
    images: t.Dict[str, str]
    pull: t.Dict[str, str]
    pull_secrets: t.List[str]
    args: t.List[object]
    env: t.Dict[str, str]
    resources: object
    host_network: bool


class Config(t.TypedDict):
    """A ConfigMap. data, checksum: of what is delivered, empty where somebody else delivers it."""

    name: str
    default: str
    data: t.Dict[str, str]
    checksum: str


class Result(t.NamedTuple):
    """state: C(ok), C(pending) (it waits for something that is named), C(failed), or C(absent) (nothing is there)."""

    state: str
    detail: str
    hint: str = ""


@dataclass
class Host:
    """What a plan on a host is made from. variables: those of the roles that its inventory sets; place: C(host), or
    C(none) for what is not delivered, because of why; notes: for the user, filled while planning."""

    asked: Asked
    facts: Facts
    variables: HostVars
    place: str
    why: str
    notes: list[str]

    @property
    def because(self) -> list[str]:
        """Why it is not delivered."""
        return [] if self.place == "host" else [f"not delivered: {self.why}"]

    def switched(self, name: str, otherwise: object) -> bool:
        """A variable that is true or false. Raises Refused."""
        return switched(name, self.variables, otherwise)


@dataclass
class Context:
    """What the plans of all components of a cluster use.

    has_device_plugin: whether a device plugin is delivered, here or by the Nodes' system; proxy: of L(_proxy.read);
    gpu_sharing: that variable; facts: the result of read_cluster, None if manifests are only rendered; gpu_nodes: names
    of the Nodes with a GPU; on_host: maps Nodes to the components that their hosts have; node_os: gpu_node_os.

    Filled while planning: present: components that are delivered; sharing: the device plugin's configurations, as far
    as they are known; notes: for the user; pools: of drivers; without_driver: reasons with the Nodes that no driver
    suits; faulty: maps each NVIDIADriver that cannot be followed to the reasons.
    """

    policy: Policy
    release: Release
    mirror: str
    secrets: t.Sequence[str]
    disruption: str
    runtime: str
    openshift: bool = False
    has_device_plugin: bool = True
    service_monitors: bool | None = None
    prometheus_rules: bool | None = None
    monitoring: t.Mapping[str, object] | None = None
    proxy: t.Mapping[str, str] = field(default_factory=dict)
    gpu_sharing: Sharing | None = None
    sharing: Sharing | None = None
    namespace: str = ""
    facts: Facts | None = None
    gpu_nodes: t.Sequence[str] = ()
    on_host: t.Mapping[str, t.Sequence[str]] = field(default_factory=dict)
    node_os: t.Sequence[object] = ()
    present: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)
    pools: list[Pool] = field(default_factory=list)
    without_driver: list[Concerned] = field(default_factory=list)
    faulty: dict[str, list[Concerned]] = field(default_factory=dict)

    def get(self, path: str) -> t.Any:
        """A value of the policy."""
        return self.policy.get(path)

    def enabled(self, section: str) -> bool:
        """Whether a section of the policy is enabled."""
        return self.policy.enabled(section)

    def faults(self) -> list[Concerned]:
        """All of faulty."""
        return [one for reasons in self.faulty.values() for one in reasons]

    @property
    def nodes(self) -> t.Mapping[str, Facts]:
        """By name what read_cluster returned of each Node."""
        return t.cast("t.Mapping[str, Facts]", (self.facts or {"nodes": {}})["nodes"])


@dataclass(frozen=True)
class Seen:
    """What a run has seen of a host. labels, samples: what gpu_labels and gpu_info returned, if they ran."""

    facts: Facts
    labels: t.Mapping[str, str] | None = None
    samples: t.Sequence[t.Mapping[str, str]] | None = None


@dataclass(frozen=True)
class Component:
    """What one role delivers.

    On hosts. host_plan: its plan, raises Refused and Refusals; check: whether a host is as its plan says, None where
    that is not judged; unchecked: the placements with which it is not asked; asked_for: whether a host's variables ask
    for it, whatever its profile says; needed: whether a host's variables or another component ask for it where the
    policy leaves it off; needs_driver: whether it cannot be installed without a driver, by its plan; options: the keys
    of its plan that are options of nvidia_software, where that installs it; journal: the record of what was brought.

    In a cluster. images: those of its pods; cluster_plan: its plan from what all have, raises Refused and Refusals;
    foreign: why it is not delivered as the cluster has it, empty where it is.
    """

    name: str
    host_plan: t.Callable[[Host], Plan] | None = None
    check: t.Callable[[Expected, Seen], Result | None] | None = None
    unchecked: t.Tuple[str, ...] = ("none", "cluster")
    asked_for: t.Callable[[HostVars], bool] = lambda _variables: False
    needed: t.Callable[[Asked, HostVars], bool] = lambda _asked, _variables: False
    needs_driver: t.Callable[[Expected], bool] = lambda _plan: False
    options: t.Tuple[str, ...] = ()
    journal: str = ""
    images: t.Tuple[str, ...] = ()
    cluster_plan: t.Callable[[Context, PresentPlan], Plan] = lambda _context, shared: {**shared}
    foreign: t.Callable[[Facts], str] = lambda _facts: ""

    @property
    def entry(self) -> Entry:
        """What the inventory may say of it."""
        return by_name(self.name)

    def checked(self, want: Expected, seen: Seen) -> Result | None:
        """The result of check; None if there is no check, if its placement is not checked, or if check cannot judge."""
        return None if self.check is None or want.get("placement") in self.unchecked else self.check(want, seen)

    def in_cluster(self, context: Context) -> Plan:
        """The plan of this component, which the cluster gets. Raises Refused and Refusals."""
        policy, section = context.policy, self.entry.section or self.name
        return self.cluster_plan(context, {
            "state": "present", "because": [],
            # That of a driver depends on the Node.
            "images": {one: images.image(policy, context.release, one, context.mirror)
                       for one in self.images if one != "driver"},
            "pull": {one: images.pull_policy(policy, one) for one in self.images},
            "pull_secrets": images.pull_secrets(policy, self.images, context.secrets),
            "args": list(policy.get(f"{section}.args") or []), "env": environment(policy.get(f"{section}.env")),
            "resources": policy.get(f"{section}.resources") or {},
            "host_network": bool(policy.get(f"{section}.hostNetwork")),
        })


def environment(items: t.Iterable[Facts] | None) -> dict[str, str]:
    """C({NAME: value}) of a list of name and value; of two with a name the last one counts, as in a container."""
    return {str(item["name"]): "" if item.get("value") is None else str(item["value"]) for item in items or ()}


def is_true(text: str) -> bool:
    """Whether a program written in Go reads a variable as true (strconv.ParseBool)."""
    return text in ("1", "t", "T", "TRUE", "true", "True")


def gated(context: Context, path: str, env: t.Mapping[str, str], levels: t.Mapping[str, str]) -> dict[str, str]:
    """A manager's variables, in which what gpu_disruption forbids is false, whatever the policy says.

    path: of the variables in the policy; levels: by variable the lowest level of gpu_disruption that allows it. Adds a
    note for each value of the policy that has no effect.
    """
    found = dict(env)
    for name, level in levels.items():
        if name not in env or allows(context.disruption, level):
            continue
        found[name] = "false"
        # What the manager cannot read as false may be true to another version of it.
        if env[name] not in ("", "0", "f", "F", "FALSE", "false", "False"):
            note = (f"{path}: {name} stays false, as gpu_disruption is {context.disruption} and this needs {level} or "
                    "higher.")
            context.notes += [note] if note not in context.notes else []
    return found


def config_map(context: Context, section: str, key: str = "") -> Config:
    """The ConfigMap that the user names; with data only where the chart's values carry it. Raises Refused."""
    config = context.get(f"{section}.config")
    config = config if isinstance(config, dict) else {}
    name, data = str(config.get("name") or ""), config.get("data")
    if config.get("create") and not name:
        raise Refused(f"{section}.config.create asks for a ConfigMap without a name", f"Set {section}.config.name.")
    if isinstance(data, str):
        data = {key: data}
    texts = dict(data) if config.get("create") and isinstance(data, dict) else {}
    return {"name": name, "default": str(config.get("default") or ""), "data": texts, "checksum": checksum(texts)}


def lost_files(part: Facts) -> list[str]:
    """What of the files that packages have brought is gone."""
    lost = part["missing_files"]
    return [f"{counted(len(lost), 'file')} of its packages {'is' if len(lost) == 1 else 'are'} missing or damaged "
            f"({some_of(lost)})"] if lost else []
