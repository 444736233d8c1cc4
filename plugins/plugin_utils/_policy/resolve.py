# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From policy, release and facts to the plan of every host, or one refusal that lists all reasons. Pure. PRIVATE.

Each host is resolved by itself: what one host has never changes the plan of another.
"""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import GpuopsError, InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import LEVELS
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import components, layouts, matrix, verify
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.drivers import (
    Refused,
    check_branch,
    check_together,
    models,
    module_type,
    wanted_version,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.formats import Policy
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.matrix import Release, version_key

Facts = t.Mapping[str, t.Any]
Mine = t.Mapping[str, t.Any]
Plan = t.Dict[str, t.Any]


class PolicyError(GpuopsError):
    """A well-formed policy that these hosts cannot follow. details: C(refusals: [{hosts, reason, remedy}])."""

    kind = "policy"


def resolve(policy: Policy, release: Release, facts: t.Mapping[str, Facts | None], overrides: t.Mapping[str, Mine],
            placement: t.Any = "hosts", disruption: str = "never") -> dict[str, t.Any]:
    """The plan of the whole fleet.

    facts: by host what gpu_info returned, None where a host could not be asked (it is left out, and said so).
    overrides: by host the role variables that its inventory sets. Raises PolicyError with every refusal of every host.
    Returns C({release, policy, disruption, placement, hosts: {HOST: {COMPONENT: plan, preview}}, notes,
    explanations: {HOST: [text]}}). Hosts to which nothing is delivered as hosts are left out.
    """
    if disruption not in LEVELS:
        raise InputError(f"{disruption!r} is not a level.", f"Choose from {', '.join(LEVELS)}.", path="gpu_disruption",
                         value=disruption, allowed=list(LEVELS))
    places = components.placements(placement)
    notes = [*policy.warnings, *_unused(policy)]
    if not {"host", "hybrid"} & set(places.values()):
        facts = {}
    silent = sorted(host for host, known in facts.items() if known is None)
    if silent:
        notes.append(f"{', '.join(silent)}: no facts (unreachable, or left out by --limit); not part of this plan.")
    hosts: dict[str, Plan] = {}
    explanations: dict[str, list[str]] = {}
    refusals: list[tuple[str, Refused]] = []
    for host, known in facts.items():
        if known is None:
            continue
        try:
            hosts[host], explanations[host], said = _host(policy, release, known, overrides.get(host, {}), places,
                                                          disruption)
            notes += [f"{host}: {text}" for text in said]
        except _Refusals as error:
            refusals += [(host, reason) for reason in error.reasons]
    if refusals:
        raise _refuse(policy, release, refusals)
    return {"release": release.version, "policy": policy.origin, "format": policy.kind, "disruption": disruption,
            "placement": places, "hosts": hosts, "notes": notes, "explanations": explanations}


class _Refusals(Exception):
    def __init__(self, reasons: list[Refused]) -> None:
        super().__init__()
        self.reasons = reasons


def _refuse(policy: Policy, release: Release, refusals: t.Sequence[tuple[str, Refused]]) -> PolicyError:
    """One message; hosts with the same reason stand together."""
    grouped: dict[tuple[str, str], list[str]] = {}
    for host, reason in refusals:
        grouped.setdefault((reason.reason, reason.remedy), []).append(host)
    lines = "".join(f"\n  {', '.join(hosts)}: {reason}.\n    {remedy}" for (reason, remedy), hosts in grouped.items())
    listed = [{"hosts": hosts, "reason": reason, "remedy": remedy} for (reason, remedy), hosts in grouped.items()]
    return PolicyError(f"The policy ({policy.origin}, release {release.version}) cannot be carried out:{lines}\n"
                       "Nothing was changed.", refusals=listed)


def _host(policy: Policy, release: Release, facts: Facts, mine: Mine, places: t.Mapping[str, str],
          disruption: str) -> tuple[Plan, list[str], list[str]]:
    """(plan, explanations, notes) of one host. Raises _Refusals with every reason, not only the first."""
    plan: Plan = {}
    said: list[str] = []
    reasons: list[Refused] = []
    if not facts["gpus"]:
        raise _Refusals([Refused("no NVIDIA GPU is on its PCI bus", "Take the host out of the group gpu_hosts.")])
    for name, part in _PARTS.items():
        place = "host" if places[name] == "hybrid" else places[name]
        if place == "cluster":
            plan[name] = {"placement": place, "disruption": disruption, "because": ["delivered in the cluster"]}
            continue
        if place == "host" and not policy.get(f"{components.by_name(name).section}.enabled"):
            place = "none"
        try:
            plan[name] = part(policy, release, facts, mine, place, said)
            plan[name]["disruption"] = disruption
        except Refused as error:
            reasons.append(error)
    if reasons:
        raise _Refusals(reasons)
    plan["driver"]["disruption"] = _driver_disruption(policy, disruption)
    if plan["driver"]["disruption"] != disruption:
        plan["driver"]["because"].append("driver.upgradePolicy.autoUpgrade is false: what runs is not disturbed")
    plan["preview"] = [check.component for check in verify.verify(plan, facts) if check.state != "ok"]
    explained = [f"{name}: {text}" for name in _PARTS for text in plan[name].get("because", ())]
    return plan, explained, said


def _driver_disruption(policy: Policy, disruption: str) -> str:
    """The stricter of gpu_disruption and the policy's upgradePolicy.

    autoUpgrade false, said by the policy, means that nobody replaces a running driver by himself: C(never). Anything
    else in upgradePolicy says how an upgrade goes, not whether; then gpu_disruption alone counts.
    """
    return "never" if policy.get("driver.upgradePolicy.autoUpgrade") is False else disruption


def _driver(policy: Policy, release: Release, facts: Facts, mine: Mine, place: str, said: list[str]) -> Plan:
    if place == "none":
        # A driver that somebody else looks after: used, verified, never touched.
        return {"placement": "none", "state": "adopted", "version": None, "branch": None, "kernel_module_type": None,
                "source": None, "because": ["driver.enabled is false: the installed driver is adopted as it is"]}
    if policy.get("driver.usePrecompiled"):
        raise Refused("driver.usePrecompiled is not supported on hosts yet", "Set it to false.")
    host_models = models(facts["gpus"])
    check_together(host_models)
    wanted = wanted_version(policy, release, mine)
    check_branch(wanted, host_models, release)
    flavour, why = module_type(policy, release, mine, wanted, host_models)
    known = matrix.branch(wanted.branch)
    _check_cuda(policy, wanted.text, known)
    if known is None:
        said.append(f"driver branch {wanted.branch} is newer than this collection; what it drives is not checked.")
    elif known.end_of_life == "ended":
        said.append(f"driver branch {wanted.branch} gets no more fixes.")
    said += [f"{model.name} is not known; what it needs is not checked." for model in host_models
             if model.open_modules is None]
    if facts["host"].get("secure_boot"):
        said.append("Secure Boot is on: kernel modules built here load only if their key is enrolled (mokutil).")
    return {"placement": place, "state": mine.get("driver_state") or "present", "version": wanted.version,
            "branch": wanted.branch, "kernel_module_type": flavour,
            "source": mine.get("driver_source") or "cuda_repository",
            "because": [f"{wanted.text}: {wanted.source}", f"{flavour} kernel modules: {why}"]}


def _check_cuda(policy: Policy, driver: str, known: matrix.Branch | None) -> None:
    """The CUDA level that a policy names must run on the driver (minor versions are compatible within a major)."""
    level = policy.get("cuda.version") if policy.get("cuda.enabled") else None
    if level and known and known.cuda and version_key(str(level))[:1] > version_key(known.cuda)[:1]:
        raise Refused(f"CUDA {level} (cuda.version) needs a newer driver than {driver}, which runs up to {known.cuda}",
                      "Set a newer driver.version or a lower cuda.version.")


def _container_toolkit(policy: Policy, release: Release, facts: Facts, mine: Mine, place: str,
                       said: list[str]) -> Plan:
    cdi = _first(mine.get("container_toolkit_cdi"), policy.get("cdi.enabled"))
    environment = {str(item.get("name")): item.get("value") for item in policy.get("toolkit.env") or []}
    asked = environment.get("NVIDIA_RUNTIME_SET_AS_DEFAULT", environment.get("CONTAINERD_SET_AS_DEFAULT"))
    # As the operator has it: with CDI nobody needs the nvidia runtime as default.
    default = (not cdi) if asked is None else str(asked).lower() in ("true", "1")
    text = str(_first(mine.get("container_toolkit_version"), policy.get("toolkit.version") or None,
                      release.components["container_toolkit"]))
    match = re.fullmatch(r"v?(\d+\.\d+\.\d+(?:-rc\.\d+)?)(?:-[a-z].*)?", text)
    if match is None:
        raise Refused(f"toolkit version {text!r} is not a version", "Write a version such as 1.20.0 or v1.20.0.")
    if place == "host" and not any(facts["runtimes"].values()):
        said.append("no container runtime is installed; the toolkit's configuration waits for one.")
    return {"placement": place, "state": "present", "version": match[1],
            "runtime": mine.get("container_toolkit_runtime") or "auto",
            "set_as_default": _first(mine.get("container_toolkit_set_as_default"), default), "cdi": cdi,
            "mode": mine.get("container_toolkit_mode"),
            "because": [] if place == "host" else ["not delivered: toolkit.enabled or gpu_placement says so"]}


def _mig_manager(policy: Policy, release: Release, facts: Facts, mine: Mine, place: str, said: list[str]) -> Plan:
    selected = mine.get("mig_manager_selected")
    own = mine.get("mig_manager_config") or None
    config = own or policy.mig_config
    if (selected or own) and place != "host":
        raise Refused(f"MIG layout {selected!r} is selected while migManager.enabled or gpu_placement switches MIG off",
                      "Remove mig_manager_selected, or switch migManager on.")
    try:
        if own and not selected:
            selected = layouts.only(own)
        if selected:
            layouts.wanted(config, selected, facts["gpus"])
    except InputError as error:
        what = f"MIG layout {selected!r}" if selected else "MIG configuration of this host"
        raise Refused(f"{what}: {error.message.rstrip('.')}", error.hint) from error
    # The operator sets all-disabled on every node; a host keeps its instances until somebody selects a layout for it.
    because = f"layout {selected}" if selected else "no layout is selected for this host: MIG stays as it is"
    return {"placement": place, "state": "present" if selected else "gathered", "config": config if selected else None,
            "selected": selected or None, "because": [because]}


def _feature_discovery(policy: Policy, release: Release, facts: Facts, mine: Mine, place: str,
                       said: list[str]) -> Plan:
    return {"placement": place, "state": "gathered", "target": "facts",
            "mig_strategy": mine.get("feature_discovery_mig_strategy") or policy.get("mig.strategy"),
            "sharing": _first(mine.get("feature_discovery_sharing"), policy.sharing), "because": []}


def _first(*values: t.Any) -> t.Any:
    """The first value that is set."""
    return next((value for value in values if value is not None), None)


_PARTS: dict[str, t.Callable[[Policy, Release, Facts, Mine, str, list[str]], Plan]] = {
    "driver": _driver,
    "container_toolkit": _container_toolkit,
    "mig_manager": _mig_manager,
    "feature_discovery": _feature_discovery,
}


def _unused(policy: Policy) -> list[str]:
    """What a policy switches on by itself and hosts do not deliver yet: said, not ignored."""
    found = [name for name in ("gds", "gdrcopy", "driver.rdma", "sandboxWorkloads", "cuda")
             if policy.get(f"{name}.enabled")]
    return [f"{name} is enabled in the policy; this version of the collection does not deliver it on hosts."
            for name in found]
