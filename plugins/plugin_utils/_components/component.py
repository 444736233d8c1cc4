# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The interface of a component for planning and verification, and functions that components share. Pure. PRIVATE.

Source of the rules for clusters: GPU Operator 26.7, which makes DaemonSets from a ClusterPolicy.
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, field

from ansible_collections.gpuops.nvidia.plugins.module_utils._result import allows
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.components import Entry, HostVars, by_name
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.facts import ClusterFacts, HostFacts, Nodes
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.refusals import Concerned, Refused
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.releases import Release
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.untyped import Section, Value
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.wording import counted, some_of
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._drivers.choose_driver import PlanInputs, boolean_variable
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._drivers.cluster_pools import Pool
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import cluster_images as images
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.formats import Policy
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.monitoring import Monitoring
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.sharing import Sharing, checksum


class HostPlan(t.TypedDict):
    """The plan of a component on a host; Ansible passes it to the component's role as a mapping. Components add keys.

    placement: C(host), C(cluster) or C(none); because: the reasons for the plan, as clauses without a full stop.
    """

    placement: str
    because: t.List[str]


class ClusterPart(t.TypedDict):
    """The plan of a component in a cluster; Ansible passes it to the component's role as a mapping. state: C(present)
    or C(absent); because: the reasons for the plan, as clauses without a full stop."""

    state: str
    because: t.List[str]


class PresentPlan(ClusterPart):
    """The plan of a component that is delivered in a cluster. Components add keys. images, pull: the image references
    and the pull policies, each by the name of the image; resources: requests and limits, as in a container."""

    images: t.Dict[str, str]
    pull: t.Dict[str, str]
    pull_secrets: t.List[str]
    args: t.List[str]
    env: t.Dict[str, str]
    resources: Section
    host_network: bool


class Config(t.TypedDict):
    """A ConfigMap. data, checksum: its content and the checksum of it, both empty if this collection does not deliver
    the ConfigMap; default: the key of data that applies by default."""

    name: str
    default: str
    data: t.Dict[str, str]
    checksum: str


class Result(t.NamedTuple):
    """The result of a check. state: C(ok), C(pending) (the component waits for what detail names), C(failed), or
    C(absent) (the component is not installed)."""

    state: str
    detail: str
    hint: str = ""


@dataclass
class Host:
    """The inputs for the plan of a component on a host. variables: the role variables that the inventory sets for the
    host; place: C(host), or C(none) if the component is not delivered; why: the reason why it is not delivered, or why
    it is delivered although the policy disables it; notes: texts for the user, to which planning adds."""

    inputs: PlanInputs
    facts: HostFacts
    variables: HostVars
    place: str
    why: str
    notes: list[str]

    @property
    def because(self) -> list[str]:
        """The reason why the component is not delivered, as a list; an empty list if it is delivered."""
        return [] if self.place == "host" else [f"not delivered: {self.why}"]

    def boolean_variable(self, name: str, default: object) -> bool:
        """The value of a boolean variable of the host, or default if the variable is not set. Raises Refused."""
        return boolean_variable(name, self.variables, default)


@dataclass
class Context:
    """The inputs for the plans of components in a cluster.

    mirror: the registry that replaces public ones; secrets: names of pull secrets; runtime: C(containerd), C(docker) or
    C(crio); has_device_plugin: whether a device plugin is delivered, by this collection or by the system of the Nodes;
    service_monitors, prometheus_rules: whether the cluster has these kinds, None if unknown; monitoring: the result of
    L(monitoring.read); proxy: the result of L(_proxy.read); gpu_sharing: the variable of that name; facts: None if
    manifests are only rendered; gpu_nodes: the names of the Nodes with a GPU; on_host: the components that the host of
    each Node has, by Node; node_os: the variable gpu_node_os.

    Planning adds: present: the components that are delivered; sharing: the device plugin's configurations, if known;
    notes: texts for the user; pools: the driver pools; without_driver: the refusals of Nodes for which there is no
    suitable driver; faulty: the refusals of invalid NVIDIADrivers, by NVIDIADriver.
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
    monitoring: Monitoring | None = None
    proxy: t.Mapping[str, str] = field(default_factory=dict)
    gpu_sharing: Sharing | None = None
    sharing: Sharing | None = None
    namespace: str = ""
    facts: ClusterFacts | None = None
    gpu_nodes: t.Sequence[str] = ()
    on_host: t.Mapping[str, t.Sequence[str]] = field(default_factory=dict)
    node_os: t.Sequence[object] = ()
    present: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)
    pools: list[Pool] = field(default_factory=list)
    without_driver: list[Concerned] = field(default_factory=list)
    faulty: dict[str, list[Concerned]] = field(default_factory=dict)

    def get(self, path: str) -> Value:
        """The value at a path of the policy, None if it is not set there."""
        return self.policy.get(path)

    def enabled(self, section: str) -> bool:
        """Whether a section of the policy is enabled."""
        return self.policy.enabled(section)

    def faults(self) -> list[Concerned]:
        """All refusals of NVIDIADrivers in faulty."""
        return [one for reasons in self.faulty.values() for one in reasons]

    @property
    def nodes(self) -> Nodes:
        """The Nodes by name; empty if manifests are only rendered."""
        return self.facts["nodes"] if self.facts else {}


@dataclass(frozen=True)
class HostState:
    """The current state of a host. labels, samples: the results of gpu_labels and of the CUDA sample, None if these did
    not run."""

    facts: HostFacts
    labels: t.Mapping[str, str] | None = None
    samples: t.Sequence[Section] | None = None


Planned = t.TypeVar("Planned", bound=HostPlan)


@dataclass(frozen=True)
class Component(t.Generic[Planned]):
    """A component, which is delivered by one role. All plans raise Refused and Refusals.

    On hosts. host_plan: returns the plan; check: compares the host with the plan, and returns None if it cannot compare
    them; unchecked: the placements for which check is not called; asked_for: whether the variables of a host request
    the component, even if the profile of the host includes it; needed: the reason why the variables of a host or
    another component need it although the policy disables it, from these variables and the placements of all
    components, empty if none does; needs_driver: whether a plan needs an installed driver; options: the keys of the
    plan that are options of nvidia_software, if that module installs it; unseen: whether a plan has options that no
    fact shows, so that only its module knows whether the host differs; journal: the name of its journal, by default
    the name of the component.

    In a cluster. images: returns the images of the pods; cluster_plan: completes the plan; foreign: returns the reason
    why objects that exist in the cluster prevent the delivery, empty if it is delivered.
    """

    name: str
    host_plan: t.Callable[[Host], Planned] | None = None
    check: t.Callable[[Planned, HostState], Result | None] | None = None
    unchecked: t.Tuple[str, ...] = ("none", "cluster")
    asked_for: t.Callable[[HostVars], bool] = lambda _variables: False
    needed: t.Callable[[PlanInputs, HostVars, t.Mapping[str, str]], str] = lambda _inputs, _variables, _places: ""
    needs_driver: t.Callable[[Planned], bool] = lambda _plan: False
    options: t.Tuple[str, ...] = ()
    unseen: t.Callable[[Planned], bool] = lambda _plan: False
    journal: str = ""
    images: t.Tuple[str, ...] = ()
    cluster_plan: t.Callable[[Context, PresentPlan], ClusterPart] = lambda _context, shared: shared
    foreign: t.Callable[[ClusterFacts], str] = lambda _facts: ""

    @property
    def entry(self) -> Entry:
        """The entry of the component in the list of all components."""
        return by_name(self.name)

    def checked(self, want: Planned, seen: HostState) -> Result | None:
        """The result of check, None if the component has no check or its placement is not checked."""
        return None if self.check is None or want.get("placement") in self.unchecked else self.check(want, seen)

    def in_cluster(self, context: Context) -> ClusterPart:
        """The plan of this component in a cluster to which it is delivered. Raises Refused and Refusals."""
        policy, section = context.policy, context.get(self.entry.section or self.name) or {}
        return self.cluster_plan(context, {
            "state": "present", "because": [],
            # The image of the driver depends on the Node.
            "images": {one: images.image(policy, context.release, one, context.mirror)
                       for one in self.images if one != "driver"},
            "pull": {one: images.pull_policy(policy, one) for one in self.images},
            "pull_secrets": images.pull_secrets(policy, self.images, context.secrets),
            "args": list(section.get("args") or []), "env": environment(section.get("env")),
            "resources": section.get("resources") or {}, "host_network": bool(section.get("hostNetwork")),
        })


def environment(items: t.Iterable[Section] | None) -> dict[str, str]:
    """Converts a list of C({name, value}) to C({NAME: value}). The last value of a repeated name applies, as in a
    container."""
    return {str(item["name"]): "" if item.get("value") is None else str(item["value"]) for item in items or ()}


def only_in_pods(path: str, given: t.Iterable[str], used: t.Container[str],
                 instead: t.Mapping[str, str] | None = None) -> list[str]:
    """A note that names the variables or arguments that have no effect on hosts. path: their path in the policy; used:
    the names of those that hosts use; instead: the variables of hosts that have their effect."""
    names = sorted(name for name in given if name not in used)
    own = list(dict.fromkeys((instead or {})[name] for name in names if name in (instead or {})))
    return [f"{path}: {', '.join(names)}: no effect: hosts do not use {'them' if len(names) > 1 else 'it'}"
            f"{f'; set {some_of(own)} if needed' if own else ''}."] if names else []


def is_true(text: str) -> bool:
    """Whether programs in Go interpret the value of a variable as true (strconv.ParseBool)."""
    return text in ("1", "t", "T", "TRUE", "true", "True")


def is_false(text: str) -> bool:
    """Whether programs in Go interpret the value of a variable as false (strconv.ParseBool)."""
    return text in ("0", "f", "F", "FALSE", "false", "False")


def limit_by_level(context: Context, path: str, env: t.Mapping[str, str],
                   levels: t.Mapping[str, str]) -> dict[str, str]:
    """The variables of a manager, with the value false for those that gpu_disruption does not allow. Adds a note for
    each changed value.

    path: the path of the variables in the policy; levels: the lowest level that allows each variable, by variable.
    """
    found = dict(env)
    for name, level in levels.items():
        if name not in env or allows(context.disruption, level):
            continue
        found[name] = "false"
        # Another version of the manager may interpret such an unknown value as true.
        if env[name] and not is_false(env[name]):
            note = (f"{path}: {name} stays false, because gpu_disruption is {context.disruption}; true needs {level} "
                    "or higher.")
            context.notes += [note] if note not in context.notes else []
    return found


def config_map(context: Context, section: str, key: str = "") -> Config:
    """The ConfigMap that a section of the policy names, with its data if the values of the chart contain them. key: the
    key in the ConfigMap if those values contain a single text instead of a mapping. Raises Refused."""
    config = context.get(f"{section}.config") or {}
    name, data = str(config.get("name") or ""), config.get("data")
    if config.get("create") and not name:
        raise Refused(f"{section}.config.create is true, but the ConfigMap has no name", f"Set {section}.config.name.")
    if isinstance(data, str):
        data = {key: data}
    texts = dict(data) if config.get("create") and isinstance(data, dict) else {}
    return {"name": name, "default": str(config.get("default") or ""), "data": texts, "checksum": checksum(texts)}


def missing_files(missing: t.Sequence[str] | None) -> list[str]:
    """A list with one fault if files of packages are missing or damaged. missing: the fact C(missing_files)."""
    return [f"{counted(len(missing), 'file')} of its packages {'is' if len(missing) == 1 else 'are'} missing or "
            f"damaged ({some_of(missing)})"] if missing else []
