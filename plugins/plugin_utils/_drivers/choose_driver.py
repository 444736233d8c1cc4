# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Chooses the driver of a host or pool, or explains which constraints exclude all drivers, and what to change.

Sources of the constraints: L(releases), L(packages) and C(_devices). Pure. PRIVATE.
"""

from __future__ import annotations

import functools
import re
import typing as t
from dataclasses import dataclass, field, replace

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.runfile_options import version_in
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.spec import BRANCH, OPEN_BY_DEFAULT_FROM, VERSION
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import releases
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.components import HostVars
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.refusals import Change, Refusals, Refused
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.releases import Release, version_key
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.schema import shown
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._drivers import solve
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._drivers.candidates import (
    IN_CLUSTER,
    ON_HOSTS,
    Candidate,
    Universe,
    Version,
    universe,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._drivers.constraints import Request, constraints
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._drivers.situation import Situation
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._drivers.solve import Constraint
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.config_maps import Seen
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.formats import Policy

# The repository of the vendor's driver images.
_VENDOR_REPOSITORY = "nvcr.io/nvidia"


@dataclass(frozen=True)
class Choice:
    """The chosen driver. because: the reasons for it, each a clause without a full stop."""

    driver: Candidate
    because: t.Tuple[str, ...]


def parse_version(text: str, by: str) -> Version:
    """Parses a version such as C(595.91.07), C(595) or C(R595), with or without the suffix of an image. by: the
    variable that contains it, for messages. Raises Refused."""
    match = re.fullmatch(r"[Rr]?([0-9]{3})((?:\.[0-9]{1,9}){1,2})?(?:-[a-z][a-z0-9.]*)?", text)
    if match is None:
        raise Refused(f"{shown(text)} ({by}) is not a driver version",
                      "Write a version such as 595.91.07 or a branch such as 595. Digests of images are allowed only "
                      "in clusters.",
                      [("driver.version", f"{by} is {shown(text)}")])
    return Version.of(match[1] + (match[2] or ""))


@dataclass
class PlanInputs:
    """The policy and the release of a run, and the ConfigMaps that the policy names. The request is computed only once
    for hosts with the same variables."""

    policy: Policy
    release: Release
    seen: Seen = field(default_factory=Seen)
    requests: dict[str, Request] = field(default_factory=dict)

    def request(self, variables: HostVars) -> Request:
        """The driver request of a host with these variables. Raises Refused."""
        key = repr([variables.get(name) for name in _VARIABLES])
        if key not in self.requests:
            self.requests[key] = request_of(self.policy, self.release, variables)
        return self.requests[key]


_VARIABLES = ("driver_version", "driver_branch", "driver_kernel_module_type", "driver_source", "driver_fabric",
              "driver_runfile_src", "driver_peermem", "driver_gds", "driver_gdrcopy", "driver_signing_key",
              "driver_state", "cuda_version")


def request_of(policy: Policy, release: Release, variables: HostVars) -> Request:
    """The driver request of a host. The variables of the host take precedence over the policy. Raises Refused."""
    request, src = Request(), str(variables.get("driver_runfile_src") or "")
    _check_variables(variables)
    for value, by, key in (
        (variables.get("driver_version"), "driver_version of this host", "driver_version"),
        (variables.get("driver_branch"), "driver_branch of this host", "driver_branch"),
        (version_in(src), "driver_runfile_src of this host", "driver_runfile_src"),
        (policy.get("driver.version"), f"driver.version of {policy.origin}", "driver.version"),
    ):
        if value not in (None, ""):
            request = replace(request, version=parse_version(str(value), by), by=by, key=key,
                              grid=str(value).endswith("-grid"))
            break
    flavour, flavour_by = _requested_flavour(policy, release, variables)
    beside, source = extras(policy, variables), variables.get("driver_source")
    if source in (None, "", "auto"):
        source = "runfile" if src else ""
    return replace(
        request, flavour=flavour, flavour_by=flavour_by, precompiled=bool(policy.get("driver.usePrecompiled")),
        source=str(source) or None, runfile=bool(src), gds=beside["gds"],
        gdrcopy=beside["gdrcopy"], peermem=beside["peermem"], gds_by=_requested_by("gds", variables),
        gdrcopy_by=_requested_by("gdrcopy", variables),
        gds_open=beside["gds"] and releases.gds_needs_open(str(policy.get("gds.version") or release.components["gds"])),
        vgpu=policy.driver_type == "vgpu", own_image=_own_image(str(policy.get("driver.repository") or "")),
        own_key=bool(variables.get("driver_signing_key")), fabric=variables.get("driver_fabric") != "none",
        cuda=_cuda_level(policy, variables))


def _own_image(repository: str) -> bool:
    """Whether a repository can contain images that the vendor does not publish."""
    return bool(repository) and repository.rstrip("/") != _VENDOR_REPOSITORY


def _cuda_level(policy: Policy, variables: HostVars) -> str | None:
    """The CUDA version that the driver must support, None for any. The host's variable takes precedence over the
    policy."""
    level = str(variables.get("cuda_version") or (policy.enabled("cuda") and policy.get("cuda.version")) or "")
    # The plan of the CUDA toolkit refuses other texts.
    return level if re.fullmatch(r"\d+(\.\d+)*", level) else None


# The sections of the policy for additional kernel modules, by the name of the module in plans and role variables
# (C(driver_gds)).
EXTRAS = {"peermem": "driver.rdma", "gds": "gds", "gdrcopy": "gdrcopy"}


def extras(policy: Policy, variables: HostVars) -> dict[str, bool]:
    """Whether a host gets each of L(EXTRAS), by name. The variables of the host take precedence over the policy. Raises
    Refused."""
    return {name: boolean_variable(f"driver_{name}", variables, policy.get(f"{section}.enabled"))
            for name, section in EXTRAS.items()}


def _requested_by(name: str, variables: HostVars) -> str:
    return f"{EXTRAS[name]}.enabled" if variables.get(f"driver_{name}") in (None, "") else f"driver_{name}"


def boolean_variable(name: str, variables: HostVars, default: object) -> bool:
    """The value of a boolean variable of a host, or default if the variable is not set. Raises Refused."""
    value = variables.get(name)
    if value in (None, ""):
        return bool(default)
    # In inventories in INI format, booleans are strings.
    flag = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}.get(str(value).lower())
    if flag is None:
        raise Refused(f"{name} {value!r} is not allowed", "Set true or false.")
    return flag


# (pattern, allowed values, remedy) of the variables that the role passes to the module as they are.
_EXACT = {
    "driver_version": (VERSION, "a complete version such as 595.91.07, without the suffix of an image",
                       "Write the complete version, or remove driver_version and set driver_branch, such as 595."),
    "driver_branch": (BRANCH, "a branch of three digits such as 595",
                      "Write the branch, or remove driver_branch and set driver_version, such as 595.91.07."),
}


def _check_variables(variables: HostVars) -> None:
    """Raises Refused if the variables of a host set a version or a branch that the module would refuse, or a version
    that does not belong to the branch."""
    # For a return to the former driver, the role does not pass them.
    for name, (pattern, allowed, remedy) in _EXACT.items() if variables.get("driver_state") != "rolled_back" else ():
        value = variables.get(name)
        if value not in (None, "") and not pattern.match(str(value)):
            raise Refused(f"{name} of this host is {shown(value)}; allowed: {allowed}", remedy,
                          [("driver.version", f"{name} of this host is {shown(value)}")])
    version, branch = variables.get("driver_version"), variables.get("driver_branch")
    if not version or not branch:
        return
    one, other = parse_version(str(version), "driver_version"), parse_version(str(branch), "driver_branch")
    if one.branch != other.branch:
        raise Refused(f"driver_version {version} does not belong to driver_branch {branch}", "Set only one of them.",
                      [("driver.version", f"driver_version of this host is {version}, driver_branch {branch}")])


def _requested_flavour(policy: Policy, release: Release, variables: HostVars) -> tuple[str, str]:
    requested = variables.get("driver_kernel_module_type")
    if requested:
        return str(requested), "driver_kernel_module_type of this host"
    # Before 25.3, this was the only key that the operator used.
    switch = policy.get("driver.useOpenKernelModules")
    if switch is not None and version_key(release.version) < (25, 3):
        return ("open" if switch else "proprietary"), "driver.useOpenKernelModules"
    return str(policy.get("driver.kernelModuleType") or "auto"), "driver.kernelModuleType"


def version_to_install(driver: Candidate, request: Request) -> Version:
    """The version to install. For the archive of a distribution, which has its own versions, this is the newest version
    of the branch, unless the user requests a version."""
    return Version(None, driver.version.branch) if driver.source == "distribution" and not request.version \
        else driver.version


def choose(situation: Situation, request: Request, release: Release) -> Choice:
    """The driver for a situation and a request. The result is cached. Raises Refusals."""
    # The kernel is relevant only for precompiled modules, and if modules cannot be built.
    if situation.headers and situation.secure_boot != "signed" and not request.precompiled and not request.source:
        situation = replace(situation, kernel="", kernel_flavour=None)
    found = _choose(situation, request, release)
    if isinstance(found, Choice):
        return found
    raise Refusals(found)


@functools.lru_cache(maxsize=8192)
def _choose(situation: Situation, request: Request, release: Release) -> Choice | tuple[Refused, ...]:
    space = _space([request.version] if request.version else map(Version.of, release.drivers), request)
    rules = constraints(space, situation, request, release)
    left = solve.allowed(space.all, rules)
    if left:
        driver = _best(space.members(left), request, release)
        return Choice(driver, (_why_version(space, rules, driver, request, release),
                               _why_flavour(space, rules, driver, request)))
    return tuple(_refusals(situation, request, release))


def _space(versions: t.Iterable[Version], request: Request) -> Universe:
    return universe(tuple(dict.fromkeys(versions)), IN_CLUSTER if request.cluster else ON_HOSTS, request.features)


def _best(found: t.Iterable[Candidate], request: Request, release: Release) -> Candidate:
    """The default driver of the release, otherwise the newest driver that the release supports, otherwise the newest
    driver of the newest release."""
    default, sources = release.components["driver"], IN_CLUSTER if request.cluster else ON_HOSTS

    def rank(one: Candidate) -> tuple[bool, bool, tuple[int, bool], tuple[int, ...], int, bool]:
        text = one.version.text
        usual = "open" if one.version.branch >= OPEN_BY_DEFAULT_FROM else "proprietary"
        return (text == default, text in release.drivers, _releases_of_versions().get(text, (-1, False)),
                one.version.key, -sources.index((one.source, one.signed)), one.flavour == usual)

    return max(found, key=rank)


@functools.lru_cache(maxsize=1)
def _releases_of_versions() -> dict[str | None, tuple[int, bool]]:
    """(index of the newest release that has a version, whether the version is its default), by version."""
    return {text: (number, text == releases.release(name).components["driver"])
            for number, name in enumerate(releases.available()) for text in releases.release(name).drivers}


# -- reasons for a choice

def _why_version(space: Universe, rules: t.Sequence[Constraint], driver: Candidate, request: Request,
                 release: Release) -> str:
    default = release.components["driver"]
    if request.version:
        return f"driver {driver.version}: {request.by}"
    if driver.version.text == default:
        return f"driver {driver.version}: the default of release {release.version}"
    why = _excluded(space, rules, lambda one: one.version.text == default)
    return (f"driver {driver.version}: the newest of release {release.version} that this host supports; its default "
            f"{default} is excluded: {why}")


def _why_flavour(space: Universe, rules: t.Sequence[Constraint], driver: Candidate, request: Request) -> str:
    if request.flavour != "auto":
        return f"{driver.flavour} kernel modules: {request.flavour_by}"
    why = _excluded(space, rules, lambda one: one.version == driver.version and one.flavour != driver.flavour)
    if not why:
        why = ("every GPU supports open modules" if driver.flavour == "open"
               else f"the vendor's installer selects open modules from branch {OPEN_BY_DEFAULT_FROM} on")
    return f"{driver.flavour} kernel modules: auto: {why}"


def _excluded(space: Universe, rules: t.Sequence[Constraint], which: t.Callable[[Candidate], bool]) -> str:
    """The texts of a smallest set of constraints that excludes all of these candidates; empty if one remains."""
    conflict = solve.smallest_conflict(space.where(which), rules)
    return " and ".join(rule.text for rule in conflict or ())


# -- reasons for a refusal

def _refusals(situation: Situation, request: Request, release: Release) -> t.Iterator[Refused]:
    """A refusal for each conflict, with the drivers of all releases as candidates."""
    every = {Version.of(text) for name in releases.available() for text in releases.release(name).drivers}
    every |= {Version.of(str(number)) for number in releases.branches()} - {Version(None, one.branch) for one in every}
    versions = sorted(every, key=lambda one: one.key)
    space = _space([*versions, *([request.version] if request.version else [])], request)
    rules = constraints(space, situation, request, release)
    for conflict in solve.conflicts(space.all, rules):
        free = _smallest_changes(list(_possible_changes(space, rules, conflict, situation, request, release)))
        yield Refused(_reason(conflict), _remedy(conflict, free, situation, request),
                      [(one.id, one.text) for one in conflict], free)


def _possible_changes(space: Universe, rules: t.Sequence[Constraint], conflict: t.Sequence[Constraint],
                      situation: Situation, request: Request, release: Release) -> t.Iterator[Change]:
    """For each constraint that a user can change, the change that removes it, if a driver remains after the change."""
    for dropped in dict.fromkeys(one.id for one in conflict if one.change):
        more = solve.fewest_further(space.all, rules, dropped)
        if more is None:
            continue
        gone = [dropped, *more]
        driver = _best(space.members(solve.allowed(space.all, solve.without(rules, gone))), request, release)
        changes = dict.fromkeys(_change(rule, driver, situation, request, release)
                                for name in gone for rule in rules if rule.id == name)
        done = " and ".join(changes)
        version = version_to_install(driver, request)
        named = str(version) in done or "driver_branch: " in done
        details = ", ".join([f"driver {version}"] * (not named)
                            + [f"{driver.flavour} modules"] * (driver.flavour not in done))
        yield {"drop": dropped, "also": list(more), "result": f"{done} ({details})" if details else done}


def _smallest_changes(free: t.Sequence[Change]) -> list[Change]:
    """The changes, except those that include all parts of another change."""
    sets = [{one["drop"], *one["also"]} for one in free]
    return [one for one, own in zip(free, sets) if not any(other < own for other in sets)]


def _change(rule: Constraint, driver: Candidate, situation: Situation, request: Request, release: Release) -> str:
    """The variable or key, with the value, that a user sets so that a constraint no longer excludes a driver."""
    version = driver.version.text or str(driver.version.branch)
    if rule.id == "release":
        number, _default = _releases_of_versions().get(driver.version.text, (None, False))
        return f"driver.version: {version}" if number is None else f"gpu_release: {releases.available()[number]}"
    return rule.change.format(version=version, branch=driver.version.branch, flavour=driver.flavour,
                              source="precompiled" if driver.signed else driver.source,
                              switch=str(driver.flavour == "open").lower(),
                              cuda=_nearest_cuda_level(driver, situation, request))


def _nearest_cuda_level(driver: Candidate, situation: Situation, request: Request) -> str:
    """The CUDA version nearest to the requested one among those that both the driver and the GPUs support."""
    limits = [gpu.architecture.cuda for gpu in situation.gpus if gpu.architecture and gpu.architecture.cuda]
    first = max((one[0] for one in limits), key=version_key, default="")
    if request.cuda and version_key(request.cuda) < version_key(first):
        return first
    branch = releases.branch(driver.version.branch)
    lasts = [one[1] for one in limits if len(one) > 1] + ([branch.cuda] if branch and branch.cuda else [])
    return min(lasts, key=version_key, default="")


def _reason(conflict: t.Sequence[Constraint]) -> str:
    texts = [rule.text for rule in conflict]
    return ", but ".join(texts) if len(texts) < 3 else f"{'; '.join(texts)}: no driver meets all of these"


def _remedy(conflict: t.Sequence[Constraint], free: t.Sequence[Change], situation: Situation,
            request: Request) -> str:
    if free:
        return f"A driver is found with one of these changes: {', or '.join(change['result'] for change in free)}."
    if conflict and all(rule.id.startswith("gpu:") for rule in conflict):
        only = [gpu.name for gpu in situation.gpus if gpu.open_modules == "required"]
        mixed = any(gpu.open_modules == "no" for gpu in situation.gpus)
        partly = f" With open modules, only {' and '.join(only)} can be used." if only and mixed else ""
        return f"Put these GPUs into different hosts.{partly}"
    if request.cluster:
        return "Install a driver on these Nodes yourself, and set driver.enabled: false in the policy."
    return ("Install a suitable driver yourself and set driver_state: adopted, or remove the host from the group "
            "gpu_hosts.")
