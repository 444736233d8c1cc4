# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From policy, release and facts to the plan of every host, or one refusal that lists all reasons. Pure. PRIVATE.

Each host is resolved by itself: what one host has never changes the plan of another.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._labels.sharing import parse_sharing
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import LEVELS
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._components import (
    host_driver,
    host_software,
    host_toolkit,
    layouts,
    verify,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import components
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.matrix import Release
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.refusals import (
    Refusals,
    Refused,
    left_out,
    policy_error,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.wording import some_of
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._drivers.drivers import Asked, switched
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._drivers.situation import short_name
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning import profiles
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning.profiles import Profile
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.defaults import look
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
    for name, part in _PARTS.items():
        try:
            place, why = _place(asked, name, places[name], profile, mine, named)
            if place == "cluster":
                plan[name] = {"placement": place, "because": [why]}
            else:
                plan[name] = part(asked, facts, mine, place, why, said)
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
    plan["software"] = host_software.options(plan)
    plan["preview"] = _preview(plan, facts)
    plan["delivered"] = [one.name for one in components.ON_HOSTS if plan[one.name]["placement"] == "host"]
    explained = [f"{name}: {text}" for name in _PARTS for text in plan[name].get("because", ())]
    return plan, explained, said


def _without_driver(plan: Plan, facts: Facts) -> t.Iterator[str]:
    """Leaves out what needs a driver where there will be none. Returns notes. Raises Refusals for a MIG layout."""
    why = host_software.no_driver(plan["driver"], facts)
    mig = plan["mig_manager"]
    if why and mig["placement"] == "host" and mig["selected"]:
        text = f"MIG layout {mig['selected']!r} is selected"
        raise Refusals([Refused(f"{text}, but {why}", "Remove mig_manager_selected, or have a driver installed first.",
                                [("mig.layout", text)], [_NO_LAYOUT])])
    if why:
        yield from host_software.leave_out(plan, why)


# By component the record of what this collection has brought of it, where that has another name.
_RECORDS = {"mig_manager": "mig"}


def _left(plan: Plan, facts: Facts) -> t.Iterator[str]:
    """What earlier runs have brought and this plan does not deliver, as a note for each: nothing takes it away."""
    for name in _PARTS:
        if plan[name]["placement"] == "none" and _RECORDS.get(name, name) in facts["journals"]["brought"]:
            yield (f"{components.by_name(name).title}: no longer managed, and what earlier runs have brought stays "
                   f"({'; '.join(plan[name]['because'])}). To remove it: ansible-playbook gpuops.nvidia.remove --tags "
                   f"{name}, with --limit for some hosts alone.")


def _preview(plan: Plan, facts: Facts) -> list[str]:
    """The components whose modules are asked what they would do: those that differ, and MIG beside a driver that does,
    as GPUs lose their instances where its modules are reloaded."""
    differing = {check.component for check in verify.verify(plan, facts) if check.state != "ok"}
    if "driver" in differing and plan["mig_manager"].get("selected") and plan["mig_manager"]["placement"] == "host":
        differing.add("mig_manager")
    return [component.name for component in components.ON_HOSTS if component.name in differing]


def _wanted(name: str, mine: Mine) -> bool:
    """Whether the variables of a host ask for a component, whatever its profile says."""
    return {"driver": mine.get("driver_state") == "present", "mig_manager": bool(mine.get("mig_manager_selected")),
            }.get(name, False)


def _place(asked: Asked, name: str, place: str, profile: Profile | None, mine: Mine,
           named: t.Collection[str]) -> tuple[str, str]:
    """(host, cluster or none; why). Raises Refused for what is asked for and impossible under the host's profile."""
    section = components.by_name(name).section
    wanted = name in named or _wanted(name, mine)
    # What the policy leaves off comes where the inventory names it, or where something else needs it.
    needed = name in components.SOFTWARE and (name in named or host_software.wanted(asked, name, mine))
    if place == "cluster" and (not section or asked.policy.enabled(section)):
        return place, "delivered in the cluster"
    if place == "none":
        return place, "gpu_placement says so"
    if section and (place == "cluster" or not needed) and not asked.policy.enabled(section):
        return "none", f"{section}.enabled is false"
    if profile is None or profile.owner(name) == "ours" or (wanted and profile.replaceable(name)):
        return "host", ""
    if wanted:
        raise Refused(f"the {components.by_name(name).title} is asked for, but {profile.reason(name)}",
                      "Leave it to the system.", [("profile", profile.reason(name))])
    return "none", profile.reason(name)


def _mig_manager(asked: Asked, facts: Facts, mine: Mine, place: str, why: str,
                 said: list[str]) -> Plan:
    selected = mine.get("mig_manager_selected")
    if selected and not isinstance(selected, str):
        raise Refused(f"mig_manager_selected {selected!r} is not the name of a layout", "Write a name in quotes.")
    own = mine.get("mig_manager_config") or None
    config = own or asked.policy.mig_config
    devices = mine.get("mig_manager_devices") or []
    if (selected or own) and place != "host":
        raise Refused(f"MIG layout {selected!r} is selected while {why}, which switches MIG off",
                      "Remove mig_manager_selected, or switch migManager on.",
                      [("mig.layout", f"MIG layout {selected!r} is selected for this host")], [_NO_LAYOUT])
    try:
        if own and not selected:
            selected = layouts.only(own)
        stands = layouts.wanted(config, selected, facts["gpus"], devices) if selected else {}
    except InputError as error:
        raise _impossible(selected, error, facts) from error
    _check_strategy(asked.policy, mine, str(selected), stands, said)
    # The operator sets all-disabled on every node; a host keeps its instances until somebody selects a layout for it.
    because = f"layout {selected}" if selected else "no layout is selected for this host: MIG stays as it is"
    return {"placement": place, "state": "present" if selected else "gathered", "config": config if selected else None,
            "selected": selected or None, "layouts": config, "devices": devices,
            "boot": switched("mig_manager_boot", mine, True), "because": [because]}


_NO_LAYOUT = {"drop": "mig.layout", "also": [], "result": "no mig_manager_selected (MIG stays as it is)"}


def _impossible(selected: str | None, error: InputError, facts: Facts) -> Refused:
    """A layout that is wrong by itself, or that a GPU which the error names cannot have."""
    what = f"MIG layout {selected!r}" if selected else "MIG configuration of this host"
    said = error.message.rstrip(".")
    models = sorted({str(gpu["model"]) for gpu in facts["gpus"] if gpu.get("model") and gpu["model"] in said})
    named = [("mig.layout", f"{what} is asked for" if models else f"{what}: {said}"),
             *((f"gpu:{short_name(model)}", said) for model in models)]
    return Refused(f"{what}: {said}", error.hint, named, [_NO_LAYOUT])


def _check_strategy(policy: Policy, mine: Mine, selected: str, stands: t.Mapping[str, layouts.Stand],
                    said: list[str]) -> None:
    """The strategy single serves one profile. Raises Refused where a user asks for it, else it is said."""
    profiles = sorted({name for stand in stands.values() for name in stand.instances or ()})
    if _strategy(policy, mine) != "single" or len(profiles) < 2:
        return
    text = f"MIG layout {selected!r} has the profiles {', '.join(profiles)}"
    told = "mig.strategy single serves devices of one profile only"
    if mine.get("feature_discovery_mig_strategy") or any(look(source.spec, "mig.strategy") for source in
                                                         policy.sources):
        raise Refused(f"{text}, but {told}", "Set mig.strategy to mixed, or select a layout of one profile.",
                      [("mig.layout", text), ("mig.strategy", told)],
                      [{"drop": "mig.strategy", "also": [], "result": f"mig.strategy: mixed (layout {selected})"},
                       _NO_LAYOUT])
    said.append(f"{text}, but {told}: in labels and for Kubernetes they need mig.strategy mixed.")


def _strategy(policy: Policy, mine: Mine) -> t.Any:
    return mine.get("feature_discovery_mig_strategy") or policy.get("mig.strategy")


def _feature_discovery(asked: Asked, facts: Facts, mine: Mine, place: str, why: str,
                       said: list[str]) -> Plan:
    own = mine.get("feature_discovery_sharing")
    sharing = _first(own, asked.policy.sharing)
    try:
        if place == "host":
            parse_sharing(sharing)
    except InputError as error:
        by = f"devicePlugin.config of {asked.policy.origin}" if own is None else "feature_discovery_sharing"
        raise Refused(f"{by}: {error.message.rstrip('.')}",
                      error.hint or "Write it as the device plugin takes it, such as {timeSlicing: {resources: [...]}}."
                      ) from error
    return {"placement": place, "state": "gathered", "target": "facts",
            "mig_strategy": _strategy(asked.policy, mine), "sharing": sharing, "because": []}


def _first(*values: t.Any) -> t.Any:
    """The first value that is set."""
    return next((value for value in values if value is not None), None)


_PARTS: dict[str, t.Callable[[Asked, Facts, Mine, str, str, list[str]], Plan]] = {
    "driver": host_driver.plan,
    "container_toolkit": host_toolkit.plan,
    "mig_manager": _mig_manager,
    "feature_discovery": _feature_discovery,
    "cuda": host_software.cuda,
    "dcgm": host_software.dcgm,
    "dcgm_exporter": host_software.dcgm_exporter,
    "node_status_exporter": host_software.node_status_exporter,
    "validator": host_software.validator,
}


def _unused(policy: Policy) -> list[str]:
    """What a policy switches on by itself and hosts do not deliver yet: said, not ignored."""
    found = [name for name in ("sandboxWorkloads",) if policy.get(f"{name}.enabled")]
    return [f"{name} is enabled in the policy; this version of the collection does not deliver it on hosts."
            for name in found]
