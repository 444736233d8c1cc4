# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Computes the plan of each host from policy, release and facts, or one error with all refusals. Pure. PRIVATE.

The plan of a host does not depend on other hosts.
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, field

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import LEVELS
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._components import ON_HOSTS, software, verify
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._components.component import Component, Host, HostPlan
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._components.driver import DriverPlan
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._components.mig_manager import NO_LAYOUT, MigPlan
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import components, runtime_names
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.components import HostVars
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.facts import HostFacts
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.refusals import (
    Refusals,
    Refused,
    left_out,
    policy_error,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.releases import Release, version_key
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.untyped import Value
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.wording import some_of
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._drivers.choose_driver import PlanInputs
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning import profiles
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning.plans import FleetPlan, PlanOfHost
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning.profiles import Profile
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import config_maps, key_effects
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.formats import Policy

# The maximum number of hosts that a note names.
_SHOWN = 20
_NO_SANDBOX = "sandboxWorkloads.enabled is true in the policy; this version of the collection ignores it on hosts."


def check_level(disruption: object) -> None:
    """Raises InputError if the value of gpu_disruption is not a level."""
    if disruption not in LEVELS:
        raise InputError(f"{disruption!r} is not a level of gpu_disruption.", f"Choose from {', '.join(LEVELS)}.",
                         path="gpu_disruption",
                         value=disruption, allowed=list(LEVELS))


def resolve(policy: Policy, release: Release, facts: t.Mapping[str, HostFacts | None],
            overrides: t.Mapping[str, HostVars], placement: object = "hosts", disruption: str = "never",
            strict: bool = True, seen: config_maps.Seen | None = None) -> FleetPlan:
    """The plan of all hosts. Hosts on which nothing is delivered are omitted.

    facts: the facts by host, None for hosts without facts, which are omitted with a note; overrides: the role variables
    in the inventory, by host; strict: whether one rejected host causes the rejection of all; seen: the ConfigMaps in
    the cluster, None for none. Raises PolicyError with the refusals of all hosts if strict is true and a host is
    rejected, or if no host remains.
    """
    check_level(disruption)
    places = components.placements(placement)
    notes = [*policy.warnings]
    if not {"host", "hybrid"} & set(places.values()):
        facts = {}
        notes += _unused_variables(overrides)
    elif facts:
        notes += [_NO_SANDBOX] if policy.get("sandboxWorkloads.enabled") else []
        notes += key_effects.notes(policy, release, "hosts", places)
        # In a hybrid placement, the plan of the cluster has the note.
        left = [] if {"cluster", "hybrid"} & set(places.values()) else key_effects.undelivered_kinds(
            policy, [policy.get("driver.kernelModuleConfig.name")])
        notes += [f"extraObjects: objects of the kind {', '.join(left)} have no effect on hosts."] if left else []
    silent = sorted(host for host, known in facts.items() if known is None)
    if silent:
        notes.append(f"{', '.join(silent)}: not part of this plan, because there are no facts (unreachable, or "
                     "excluded with --limit).")
    hosts: dict[str, PlanOfHost] = {}
    explanations: dict[str, list[str]] = {}
    refusals: dict[tuple[str, str], tuple[Refused, list[str]]] = {}
    hosts_by_note: dict[str, list[str]] = {}
    asked, named = PlanInputs(policy, release, seen or config_maps.Seen()), components.named(placement, "host")
    for host, known in facts.items():
        if known is None:
            continue
        try:
            planning = _plan(asked, known, overrides.get(host, {}), places, disruption, named)
            hosts[host], explanations[host] = planning.as_mapping(), planning.explanations()
            for text in planning.notes:
                hosts_by_note.setdefault(text, []).append(host)
        except Refusals as error:
            for reason in error.reasons:
                refusals.setdefault((reason.reason, reason.remedy), (reason, []))[1].append(host)
    if refusals and (strict or not hosts):
        raise policy_error(policy.origin, release.version, refusals.values())
    notes += [f"{some_of(names, _SHOWN)}: {text}" for text, names in hosts_by_note.items()]
    notes += _unused_sharing(asked.seen, places, hosts, overrides)
    return {"release": release.version, "policy": policy.origin, "format": policy.kind, "disruption": disruption,
            "placement": places, "hosts": hosts, "notes": notes, "explanations": explanations,
            "refused": left_out(refusals.values())}


def _unused_variables(overrides: t.Mapping[str, HostVars]) -> list[str]:
    """Notes about the variables of components if nothing is delivered on hosts. Those of components that are never
    delivered on hosts configure the cluster."""
    hosts: dict[str, list[str]] = {}
    for host, variables in overrides.items():
        names = [name for one in components.ON_HOSTS for name in _set_variables(one, variables)]
        if names:
            hosts.setdefault(", ".join(names), []).append(host)
    return [f"{some_of(having, _SHOWN)}: {names}: no effect: nothing is delivered on hosts."
            for names, having in hosts.items()]


def _set_variables(entry: components.Entry, variables: HostVars) -> list[str]:
    """The variables of a component that a host sets. The level of a component, and driver_state, are often set for all
    hosts and do not ask for the component. All reboots use driver_reboot_timeout."""
    return [name for name in (*entry.variables, *entry.secrets) if not name.endswith("_disruption")
            and name not in ("driver_state", "driver_reboot_timeout") and (variables.get(name) or (
                name in components.TRUE_BY_DEFAULT and variables.get(name) is False))]


def _unused_sharing(seen: config_maps.Seen, places: t.Mapping[str, str], hosts: t.Mapping[str, PlanOfHost],
                    overrides: t.Mapping[str, HostVars]) -> list[str]:
    """Notes about the variables of the device plugin, which have an effect on hosts only if these compute labels. If
    the cluster has the device plugin or the labels, its plan has the note."""
    left = [host for host, one in hosts.items() if one["feature_discovery"]["placement"] == "none"]
    if not left or "cluster" in (places["device_plugin"], places["feature_discovery"]):
        return []
    why = "no effect on hosts: they do not compute labels"
    named = [host for host in left if overrides.get(host, {}).get("device_plugin_config")]
    return [*([f"gpu_sharing: {why}."] if seen.sharing and len(left) == len(hosts) else []),
            *([f"{some_of(named, _SHOWN)}: device_plugin_config: {why}."] if named else [])]


@dataclass
class _Planning:
    """The plan of a host during its computation. parts, levels: the plans of components and their levels of
    gpu_disruption, by component; notes: texts for the user."""

    facts: HostFacts
    profile: Profile | None
    parts: dict[str, HostPlan] = field(default_factory=dict)
    levels: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def driver(self) -> DriverPlan:
        """The plan of the driver."""
        return t.cast("DriverPlan", self.parts["driver"])

    @property
    def mig(self) -> MigPlan:
        """The plan of the MIG manager."""
        return t.cast("MigPlan", self.parts["mig_manager"])

    def delivered(self) -> list[Component[Value]]:
        """The components that are delivered on the host."""
        return [one for one in ON_HOSTS if self.parts[one.name]["placement"] == "host"]

    def explanations(self) -> list[str]:
        """The reasons for the plans of all components, as C(component: reason)."""
        return [f"{one.name}: {text}" for one in ON_HOSTS for text in self.parts[one.name]["because"]]

    def preview(self) -> list[str]:
        """The components that differ from the plan, or whose module must tell. If the driver differs, MIG is added,
        because a reload of the driver's modules destroys the MIG instances."""
        differing = {check.component for check in verify.verify(self.parts, self.facts) if check.state != "ok"}
        if "driver" in differing and self.mig["placement"] == "host" and self.mig["selected"]:
            differing.add("mig_manager")
        unseen = {one.name for one in self.delivered() if one.unseen(self.parts[one.name])}
        return [one.name for one in ON_HOSTS if one.name in differing | unseen]

    def as_mapping(self) -> PlanOfHost:
        """The plan as Ansible passes it to roles. The plan of each component contains its level in C(disruption)."""
        profile = self.profile
        return t.cast("PlanOfHost", {
            **{name: {**part, "disruption": self.levels[name]} for name, part in self.parts.items()},
            "profile": {"name": profile.name, "because": profile.because} if profile else {"name": None, "because": ""},
            "software": {one.name: {key: value for key, value in self.parts[one.name].items() if key in one.options}
                         for one in self.delivered() if one.options},
            "preview": self.preview(), "delivered": [one.name for one in self.delivered()]})


def _plan(asked: PlanInputs, facts: HostFacts, variables: HostVars, places: t.Mapping[str, str], disruption: str,
          named: t.Collection[str]) -> _Planning:
    """The plan of a host. named: the components for which gpu_placement sets the placement on hosts by name. Raises
    Refusals with all refusals."""
    reasons = _invalid(variables)
    if not facts["gpus"]:
        reasons.append(Refused("no NVIDIA GPU is on its PCI bus", "Remove the host from the group gpu_hosts. "
                               "To install the driver in an image, use the role driver with driver_image: true."))
    if reasons:
        raise Refusals(reasons)
    planning = _Planning(facts, profiles.chosen(facts, variables.get("gpu_profile")))
    for component in ON_HOSTS:
        name = component.name
        try:
            place, why = _place(asked, component, places, planning.profile, variables, named)
            planning.parts[name] = (
                {"placement": place, "because": [why]} if place == "cluster" or component.host_plan is None
                else component.host_plan(Host(asked, facts, variables, place, why, planning.notes)))
        except (Refused, Refusals) as error:
            reasons += error.reasons
        planning.levels[name] = min(disruption, str(variables.get(f"{name}_disruption") or disruption),
                                    key=LEVELS.index)
    if reasons:
        raise Refusals(reasons)
    _leave_out_without_driver(planning)
    _check_exporter(planning)
    # With autoUpgrade false, a loaded driver is not replaced. The other keys of upgradePolicy control the replacement.
    if asked.policy.get("driver.upgradePolicy.autoUpgrade") is False and planning.levels["driver"] != "never":
        planning.levels["driver"] = "never"
        planning.driver["because"].append("driver.upgradePolicy.autoUpgrade is false: a running driver is not replaced")
    planning.notes += [*_no_longer_managed(planning), *_without_effect(planning, variables)]
    return planning


def _invalid(variables: HostVars) -> list[Refused]:
    """Refusals for variables that have an invalid value."""
    wrong = [(name, f"Set one of {', '.join(allowed)}{', or a list of them' if name in components.SEVERAL else ''}.")
             for name, allowed in components.CHOICES.items() if not _is_allowed(name, variables.get(name), allowed)]
    wrong += [(name, f"Write {words}.") for name, (shape, words) in components.SHAPES.items()
              if variables.get(name) not in (None, "") and not isinstance(variables[name], shape)]
    wrong += [(name, "Write a number of seconds, 0 or more.") for name in components.SECONDS
              if not str(variables.get(name) or 0).isdecimal()]
    return [Refused(f"{name} {variables[name]!r} is not allowed", remedy) for name, remedy in wrong]


def _is_allowed(name: str, value: object, allowed: t.Collection[object]) -> bool:
    """Whether a variable has one of its allowed values, or several of them if it takes several."""
    if name in components.SEVERAL and isinstance(value, (str, list)) and value:
        value = runtime_names.names_in(value)
        return all(one in allowed for one in value)
    return value in (None, "", *allowed)


def _leave_out_without_driver(planning: _Planning) -> None:
    """If the host will have no driver, omits the components that need one. Raises Refusals for a MIG layout."""
    driver, mig = planning.driver, planning.mig
    why = software.no_driver(driver["placement"], driver.get("state", ""), planning.facts)
    if why and mig["placement"] == "host" and mig["selected"]:
        text = f"MIG layout {mig['selected']!r} is selected"
        raise Refusals([Refused(f"{text}, but {why}", "Remove mig_manager_selected, or install a driver first.",
                                [("mig.layout", text)], [NO_LAYOUT])])
    for component in planning.delivered():
        part = planning.parts[component.name]
        if why and component.needs_driver(part):
            part["placement"], part["because"] = "none", [f"not delivered: {why}"]
            planning.notes.append(f"{component.entry.title} is not delivered: {why}.")


def _check_exporter(planning: _Planning) -> None:
    """Raises Refusals if the host gets the DCGM exporter, but neither has nor gets DCGM 4, which the exporter needs."""
    engine, installed = planning.parts["dcgm"], planning.facts["software"]["dcgm"]
    if planning.parts["dcgm_exporter"]["placement"] != "host" or engine["placement"] == "host" or (
            installed and version_key(installed["version"])[0] >= software.FIRST_SPLIT):
        return
    why = "; ".join(engine["because"]).replace("not delivered: ", "")
    texts = ("the DCGM exporter is delivered on the host", f"DCGM is not: {why}")
    raise Refusals([Refused(
        f"{texts[0]}, but {texts[1]}", "Set dcgm: host beside dcgm_exporter in gpu_placement, or set dcgm_exporter to "
        "none or cluster there, or install DCGM 4 on the host yourself.",
        [("placement.dcgm_exporter", texts[0]), ("placement.dcgm", texts[1])])])


def _no_longer_managed(planning: _Planning) -> t.Iterator[str]:
    """Notes about components that earlier runs installed and that are no longer delivered: they are not removed."""
    for component in ON_HOSTS:
        name, part = component.name, planning.parts[component.name]
        if part["placement"] == "none" and (component.journal or name) in planning.facts["journals"]["brought"]:
            yield (f"{component.entry.title} is no longer managed ({'; '.join(part['because'])}), and what earlier "
                   "runs have installed is kept. To remove it: ansible-playbook gpuops.nvidia.remove --tags "
                   f"{name}, with --limit for some hosts only.")


def _without_effect(planning: _Planning, variables: HostVars) -> t.Iterator[str]:
    """Notes about variables of components that are not delivered on the host."""
    for component in ON_HOSTS:
        part, entry = planning.parts[component.name], component.entry
        names = _set_variables(entry, variables)
        # The plan of a driver that is only verified names its variables itself.
        elsewhere = part["placement"] == "cluster" or part["placement"] == "none" and entry.name != "driver"
        if names and elsewhere:
            why = "; ".join(one.removeprefix("not delivered: ") for one in part["because"])
            yield f"{', '.join(names)}: {entry.title} is not delivered on the host ({why}), so nothing is configured."


def _place(asked: PlanInputs, component: Component[Value], places: t.Mapping[str, str], profile: Profile | None,
           variables: HostVars, named: t.Collection[str]) -> tuple[str, str]:
    """The placement and its reason, (C(host), C(cluster) or C(none), reason). places: the placements of all components
    in gpu_placement. Raises Refused for a requested component that the profile of the host does not allow."""
    name, section, place = component.name, component.entry.section, places[component.name]
    requested = name in named or component.asked_for(variables)
    # A component that the policy disables is delivered if the inventory requests it, or if another component needs it.
    needed = component.needed(asked, variables, places)
    forced = bool(component.options) and (name in named or bool(needed))
    enabled = not section or asked.policy.enabled(section)
    if place == "cluster" and enabled:
        return place, "delivered in the cluster"
    if place == "none":
        return place, "gpu_placement does not deliver it on the host"
    if not enabled and (place == "cluster" or not forced):
        return "none", f"{section}.enabled is false"
    if profile is None or profile.owner(name) == "ours" or (requested and profile.replaceable(name)):
        return "host", "" if enabled else needed
    if requested:
        raise Refused(f"the component {component.entry.title} is requested, but {profile.reason(name)}",
                      "Remove the component from gpu_placement and its variables from this host.",
                      [("profile", profile.reason(name))])
    return "none", profile.reason(name)
