# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From policy, release and facts to the plan of every host, or one refusal that lists all reasons. Pure. PRIVATE.

Each host is resolved by itself: what one host has never changes the plan of another.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import LEVELS
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._components import ON_HOSTS, software, verify
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._components.component import Component, Host
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._components.mig_manager import NO_LAYOUT
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import components
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.refusals import (
    Refusals,
    Refused,
    left_out,
    policy_error,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.releases import Release
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.wording import some_of
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._drivers.choose_driver import Asked
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning import profiles
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning.profiles import Profile
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.formats import Policy

Facts = t.Mapping[str, t.Any]
Mine = t.Mapping[str, t.Any]
Plan = t.Dict[str, t.Any]
# Hosts that a note names.
_SHOWN = 20


def check_level(disruption: t.Any) -> None:
    """Raises InputError for a value of gpu_disruption that is no level."""
    if disruption not in LEVELS:
        raise InputError(f"{disruption!r} is not a level.", f"Choose from {', '.join(LEVELS)}.", path="gpu_disruption",
                         value=disruption, allowed=list(LEVELS))


def resolve(policy: Policy, release: Release, facts: t.Mapping[str, Facts | None], overrides: t.Mapping[str, Mine],
            placement: t.Any = "hosts", disruption: str = "never", strict: bool = True) -> dict[str, t.Any]:
    """The plan of the whole fleet.

    facts: by host what gpu_info returned, None where a host could not be asked (it is left out, and said so).
    overrides: by host the role variables that its inventory sets. strict: whether one host that cannot follow the
    policy leaves all without a plan. Raises PolicyError with every refusal of every host where strict, and where no
    host is left. Returns C({release, policy, disruption, placement, hosts: {HOST: {COMPONENT: plan, preview,
    delivered}}, notes, explanations: {HOST: [text]}, refused: {HOST: {path, message, hint}}}). Hosts to which
    nothing is delivered as hosts are left out.
    """
    check_level(disruption)
    places = components.placements(placement)
    notes = [*policy.warnings, *_unused(policy)]
    if not {"host", "hybrid"} & set(places.values()):
        facts = {}
    silent = sorted(host for host, known in facts.items() if known is None)
    if silent:
        notes.append(f"{', '.join(silent)}: no facts (unreachable, or left out by --limit); not part of this plan.")
    hosts: dict[str, Plan] = {}
    explanations: dict[str, list[str]] = {}
    refusals: dict[tuple[str, str], tuple[Refused, list[str]]] = {}
    heard: dict[str, list[str]] = {}
    asked, named = Asked(policy, release), components.named(placement, "host")
    for host, known in facts.items():
        if known is None:
            continue
        try:
            hosts[host], explanations[host], said = _host(
                asked, known, overrides.get(host, {}), places, disruption, named)
            for text in said:
                heard.setdefault(text, []).append(host)
        except Refusals as error:
            for reason in error.reasons:
                refusals.setdefault((reason.reason, reason.remedy), (reason, []))[1].append(host)
    if refusals and (strict or not hosts):
        raise policy_error(policy.origin, release.version, refusals.values())
    notes += [f"{some_of(having, _SHOWN)}: {text}" for text, having in heard.items()]
    return {"release": release.version, "policy": policy.origin, "format": policy.kind, "disruption": disruption,
            "placement": places, "hosts": hosts, "notes": notes, "explanations": explanations,
            "refused": left_out(refusals.values())}


def _host(asked: Asked, facts: Facts, mine: Mine, places: t.Mapping[str, str], disruption: str,
          named: t.Collection[str]) -> tuple[Plan, list[str], list[str]]:
    """(plan, explanations, notes) of one host. Raises Refusals with every reason, not only the first."""
    plan: Plan = {}
    said: list[str] = []
    reasons = [Refused(f"{name} {mine[name]!r} is not allowed", f"Set one of {', '.join(allowed)}.")
               for name, allowed in components.CHOICES.items() if mine.get(name) not in (None, "", *allowed)]
    reasons += [Refused(f"{name} {mine[name]!r} is not allowed", f"Write {words}.")
                for name, (shape, words) in components.SHAPES.items()
                if mine.get(name) not in (None, "") and not isinstance(mine[name], shape)]
    reasons += [Refused(f"{name} {mine[name]!r} is not allowed", "Write a number of seconds, 0 or more.")
                for name in components.SECONDS if not str(mine.get(name) or 0).isdecimal()]
    if not facts["gpus"]:
        reasons.append(Refused("no NVIDIA GPU is on its PCI bus", "Take the host out of the group gpu_hosts."))
    if reasons:
        raise Refusals(reasons)
    profile = profiles.chosen(facts, mine.get("gpu_profile"))
    for component in ON_HOSTS:
        name = component.name
        try:
            place, why = _place(asked, component, places[name], profile, mine, named)
            if place == "cluster" or component.host_plan is None:
                plan[name] = {"placement": place, "because": [why]}
            else:
                plan[name] = component.host_plan(Host(asked, facts, mine, place, why, said))
            plan[name]["disruption"] = min(disruption, mine.get(f"{name}_disruption") or disruption, key=LEVELS.index)
        except (Refused, Refusals) as error:
            reasons += error.reasons
    if reasons:
        raise Refusals(reasons)
    said += _without_driver(plan, facts)
    # autoUpgrade false: a running driver is not replaced. All else in upgradePolicy says how to upgrade, not whether.
    if asked.policy.get("driver.upgradePolicy.autoUpgrade") is False and plan["driver"]["disruption"] != "never":
        plan["driver"]["disruption"] = "never"
        plan["driver"]["because"].append("driver.upgradePolicy.autoUpgrade is false: what runs is not disturbed")
    plan["profile"] = {"name": profile.name, "because": profile.because} if profile else {"name": None, "because": ""}
    said += _left(plan, facts)
    # Options of nvidia_software.
    plan["software"] = {one.name: {key: plan[one.name][key] for key in one.options} for one in ON_HOSTS
                        if one.options and plan[one.name]["placement"] == "host"}
    plan["preview"] = _preview(plan, facts)
    plan["delivered"] = [one.name for one in ON_HOSTS if plan[one.name]["placement"] == "host"]
    explained = [f"{one.name}: {text}" for one in ON_HOSTS for text in plan[one.name].get("because", ())]
    return plan, explained, said


def _without_driver(plan: Plan, facts: Facts) -> t.Iterator[str]:
    """Leaves out what needs a driver where there will be none. Returns notes. Raises Refusals for a MIG layout."""
    why = software.no_driver(plan["driver"], facts)
    mig = plan["mig_manager"]
    if why and mig["placement"] == "host" and mig["selected"]:
        text = f"MIG layout {mig['selected']!r} is selected"
        raise Refusals([Refused(f"{text}, but {why}", "Remove mig_manager_selected, or have a driver installed first.",
                                [("mig.layout", text)], [NO_LAYOUT])])
    for component in ON_HOSTS:
        part = plan[component.name]
        if why and part["placement"] == "host" and component.needs_driver(part):
            part.update(placement="none", because=[f"not delivered: {why}"])
            yield f"{component.entry.title} is not delivered there: {why}."


def _left(plan: Plan, facts: Facts) -> t.Iterator[str]:
    """What earlier runs have brought and this plan does not deliver, as a note for each: nothing takes it away."""
    for component in ON_HOSTS:
        name = component.name
        if plan[name]["placement"] == "none" and (component.journal or name) in facts["journals"]["brought"]:
            yield (f"{component.entry.title}: no longer managed, and what earlier runs have brought stays "
                   f"({'; '.join(plan[name]['because'])}). To remove it: ansible-playbook gpuops.nvidia.remove --tags "
                   f"{name}, with --limit for some hosts alone.")


def _preview(plan: Plan, facts: Facts) -> list[str]:
    """The components whose modules are asked what they would do: those that differ, and MIG beside a driver that does,
    as GPUs lose their instances where its modules are reloaded."""
    differing = {check.component for check in verify.verify(plan, facts) if check.state != "ok"}
    if "driver" in differing and plan["mig_manager"].get("selected") and plan["mig_manager"]["placement"] == "host":
        differing.add("mig_manager")
    return [component.name for component in ON_HOSTS if component.name in differing]


def _place(asked: Asked, component: Component, place: str, profile: Profile | None, mine: Mine,
           named: t.Collection[str]) -> tuple[str, str]:
    """(host, cluster or none; why). Raises Refused for what is asked for and impossible under the host's profile."""
    name, section = component.name, component.entry.section
    wanted = name in named or component.asked_for(mine)
    # What the policy leaves off comes where the inventory names it, or where something else needs it.
    needed = bool(component.options) and (name in named or component.needed(asked, mine))
    if place == "cluster" and (not section or asked.policy.enabled(section)):
        return place, "delivered in the cluster"
    if place == "none":
        return place, "gpu_placement says so"
    if section and (place == "cluster" or not needed) and not asked.policy.enabled(section):
        return "none", f"{section}.enabled is false"
    if profile is None or profile.owner(name) == "ours" or (wanted and profile.replaceable(name)):
        return "host", ""
    if wanted:
        raise Refused(f"the {component.entry.title} is asked for, but {profile.reason(name)}",
                      "Leave it to the system.", [("profile", profile.reason(name))])
    return "none", profile.reason(name)


def _unused(policy: Policy) -> list[str]:
    """What a policy switches on by itself and hosts do not deliver yet: said, not ignored."""
    found = [name for name in ("sandboxWorkloads",) if policy.get(f"{name}.enabled")]
    return [f"{name} is enabled in the policy; this version of the collection does not deliver it on hosts."
            for name in found]
