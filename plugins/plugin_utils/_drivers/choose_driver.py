# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver of one host or pool: the best one that nothing excludes, or what excludes them all and what would free it.

Pure. PRIVATE. Sources of the facts used: L(releases), L(packages) and C(_devices).
"""

from __future__ import annotations

import functools
import re
import typing as t
from dataclasses import dataclass, field, replace

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.runfile_options import version_in
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import releases
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.refusals import Refusals, Refused
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
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._drivers.constraints import Wish, constraints
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._drivers.situation import Situation
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._drivers.solve import Constraint
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.formats import Policy

# Where the vendor publishes its images.
_VENDOR_REPOSITORY = "nvcr.io/nvidia"


@dataclass(frozen=True)
class Choice:
    """The driver that is taken, and why."""

    driver: Candidate
    because: t.Tuple[str, ...]


def parse_version(text: str, by: str) -> Version:
    """C(595.91.07), C(595), C(R595), also with an image's system suffix. Raises Refused for anything else."""
    match = re.fullmatch(r"[Rr]?([0-9]{3})((?:\.[0-9]{1,9}){1,2})?(?:-[a-z][a-z0-9.]*)?", text)
    if match is None:
        raise Refused(f"{shown(text)} ({by}) is not a driver version",
                      "Write a version such as 595.91.07 or a branch such as 595; digests of images are for clusters.",
                      [("driver.version", f"{by} is {shown(text)}")])
    return Version.of(match[1] + (match[2] or ""))


@dataclass
class Asked:
    """What one run asks of all hosts. Hosts whose variables are alike wish the same, which is read once."""

    policy: Policy
    release: Release
    wishes: dict[str, Wish] = field(default_factory=dict)

    def wish(self, mine: t.Mapping[str, t.Any]) -> Wish:
        """Of a host with these variables. Raises Refused."""
        key = repr([mine.get(name) for name in _VARIABLES])
        if key not in self.wishes:
            self.wishes[key] = wish_of(self.policy, self.release, mine)
        return self.wishes[key]


_VARIABLES = ("driver_version", "driver_branch", "driver_kernel_module_type", "driver_source", "driver_fabric",
              "driver_runfile_src", "driver_peermem", "driver_gds", "driver_gdrcopy", "driver_signing_key",
              "cuda_version")


def wish_of(policy: Policy, release: Release, mine: t.Mapping[str, t.Any]) -> Wish:
    """What policy and host variables ask of the driver. Whose word counts: the host's, else the policy's. Raises
    Refused for what is not a version."""
    wish, src = Wish(), str(mine.get("driver_runfile_src") or "")
    _agree(mine)
    for value, by, key in (
        (mine.get("driver_version"), "driver_version of this host", "driver_version"),
        (mine.get("driver_branch"), "driver_branch of this host", "driver_branch"),
        (version_in(src), "driver_runfile_src of this host", "driver_runfile_src"),
        (policy.get("driver.version"), f"driver.version of {policy.origin}", "driver.version"),
    ):
        if value not in (None, ""):
            wish = replace(wish, version=parse_version(str(value), by), by=by, key=key,
                           grid=str(value).endswith("-grid"))
            break
    flavour, flavour_by = _asked_type(policy, release, mine)
    beside, source = extras(policy, mine), mine.get("driver_source")
    if source in (None, "", "auto"):
        source = "runfile" if src else None
    return replace(
        wish, flavour=flavour, flavour_by=flavour_by, precompiled=bool(policy.get("driver.usePrecompiled")),
        source=source, runfile=bool(src), gds=beside["gds"],
        gdrcopy=beside["gdrcopy"], peermem=beside["peermem"], gds_by=_by("gds", mine), gdrcopy_by=_by("gdrcopy", mine),
        gds_open=beside["gds"] and releases.gds_needs_open(str(policy.get("gds.version") or release.components["gds"])),
        vgpu=policy.driver_type == "vgpu", own_image=_own_image(str(policy.get("driver.repository") or "")),
        own_key=bool(mine.get("driver_signing_key")), fabric=mine.get("driver_fabric") != "none",
        cuda=_cuda_level(policy, mine))


def _own_image(repository: str) -> bool:
    """Whether a repository may hold what the vendor does not publish."""
    return bool(repository) and repository.rstrip("/") != _VENDOR_REPOSITORY


def _cuda_level(policy: Policy, mine: t.Mapping[str, t.Any]) -> str | None:
    """The CUDA level that must run: a host's own word counts, else the policy's."""
    told = mine.get("cuda_version") or (policy.get("cuda.version") if policy.get("cuda.enabled") else None)
    # What is no level is refused where the toolkit is planned.
    return str(told) if re.fullmatch(r"\d+(\.\d+)*", str(told or "")) else None


# Kernel modules beside a driver: as plans and role variables (C(driver_gds)) have them, and their section of a policy.
EXTRAS = {"peermem": "driver.rdma", "gds": "gds", "gdrcopy": "gdrcopy"}


def extras(policy: Policy, mine: t.Mapping[str, t.Any]) -> dict[str, bool]:
    """Whether a host gets each of L(EXTRAS): its own word counts, else the policy's. Raises Refused."""
    return {name: switched(f"driver_{name}", mine, policy.get(f"{section}.enabled"))
            for name, section in EXTRAS.items()}


def _by(name: str, mine: t.Mapping[str, t.Any]) -> str:
    return f"{EXTRAS[name]}.enabled" if mine.get(f"driver_{name}") in (None, "") else f"driver_{name}"


def switched(name: str, mine: t.Mapping[str, t.Any], otherwise: t.Any) -> bool:
    """A variable of a host that is true or false. Raises Refused."""
    told = mine.get(name)
    if told in (None, ""):
        return bool(otherwise)
    # Inventories in INI format have words where YAML has booleans.
    found = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}.get(str(told).lower())
    if found is None:
        raise Refused(f"{name} {told!r} is not allowed", "Set true or false.")
    return found


def _agree(mine: t.Mapping[str, t.Any]) -> None:
    """Raises Refused where a host names a version and another branch."""
    version, branch = mine.get("driver_version"), mine.get("driver_branch")
    if not version or not branch:
        return
    one, other = parse_version(str(version), "driver_version"), parse_version(str(branch), "driver_branch")
    if one.branch != other.branch:
        raise Refused(f"driver_version {version} is not of driver_branch {branch}", "Give one of the two.",
                      [("driver.version", f"driver_version of this host is {version}, driver_branch {branch}")])


def _asked_type(policy: Policy, release: Release, mine: t.Mapping[str, t.Any]) -> tuple[str, str]:
    asked = mine.get("driver_kernel_module_type")
    if asked:
        return str(asked), "driver_kernel_module_type of this host"
    # Before 25.3 the operator obeyed this switch, and nothing but it.
    switch = policy.get("driver.useOpenKernelModules")
    if switch is not None and version_key(release.version) < (25, 3):
        return ("open" if switch else "proprietary"), "driver.useOpenKernelModules"
    return str(policy.get("driver.kernelModuleType") or "auto"), "driver.kernelModuleType"


def version_of(driver: Candidate, wish: Wish) -> Version:
    """The version that is asked for. Those that releases name are the vendor's: of an archive, where nobody names one,
    the branch is what counts."""
    return Version(None, driver.version.branch) if driver.source == "distribution" and not wish.version \
        else driver.version


def choose(here: Situation, wish: Wish, release: Release) -> Choice:
    """The driver for a situation. Raises Refusals. Equal situations and wishes are worked out once."""
    # Which kernel it is counts only where modules may come built, or cannot be built.
    if here.headers and here.secure_boot != "signed" and not wish.precompiled and not wish.source:
        here = replace(here, kernel="", kernel_flavour=None)
    found = _choose(here, wish, release)
    if isinstance(found, Choice):
        return found
    raise Refusals(found)


@functools.lru_cache(maxsize=8192)
def _choose(here: Situation, wish: Wish, release: Release) -> Choice | tuple[Refused, ...]:
    space = _space([wish.version] if wish.version else map(Version.of, release.drivers), wish)
    rules = constraints(space, here, wish, release)
    left = solve.allowed(space.all, rules)
    if left:
        driver = _best(space.members(left), wish, release)
        return Choice(driver, (_why_version(space, rules, driver, wish, release),
                               _why_flavour(space, rules, driver, wish)))
    return tuple(_refusals(here, wish, release))


def _space(versions: t.Iterable[Version], wish: Wish) -> Universe:
    return universe(tuple(dict.fromkeys(versions)), IN_CLUSTER if wish.cluster else ON_HOSTS, wish.features)


def _best(found: t.Iterable[Candidate], wish: Wish, release: Release) -> Candidate:
    """The release's default, else the newest that it supports, else what the newest release has that has one."""
    default, sources = release.components["driver"], IN_CLUSTER if wish.cluster else ON_HOSTS

    def rank(one: Candidate) -> tuple[t.Any, ...]:
        text = one.version.text
        usual = "open" if one.version.branch >= releases.open_by_default_from() else "proprietary"
        return (text == default, text in release.drivers, _naming().get(text, (-1, False)), one.version.key,
                -sources.index((one.source, one.signed)), one.flavour == usual)

    return max(found, key=rank)


@functools.lru_cache(maxsize=1)
def _naming() -> dict[str | None, tuple[int, bool]]:
    """By version the number of the newest release that names it, and whether it is the default there."""
    return {text: (number, text == releases.release(name).components["driver"])
            for number, name in enumerate(releases.available()) for text in releases.release(name).drivers}


# -- why

def _why_version(space: Universe, rules: t.Sequence[Constraint], driver: Candidate, wish: Wish,
                 release: Release) -> str:
    default = release.components["driver"]
    if wish.version:
        return f"driver {driver.version}: {wish.by}"
    if driver.version.text == default:
        return f"driver {driver.version}: the default of release {release.version}"
    why = _excluded(space, rules, lambda one: one.version.text == default)
    return (f"driver {driver.version}: the newest of release {release.version} that suits this host; its default "
            f"{default} does not: {why}")


def _why_flavour(space: Universe, rules: t.Sequence[Constraint], driver: Candidate, wish: Wish) -> str:
    if wish.flavour != "auto":
        return f"{driver.flavour} kernel modules: {wish.flavour_by}"
    why = _excluded(space, rules, lambda one: one.version == driver.version and one.flavour != driver.flavour)
    if not why:
        first = releases.open_by_default_from()
        why = ("every GPU supports open modules" if driver.flavour == "open"
               else f"open modules are the vendor's choice from branch {first} on")
    return f"{driver.flavour} kernel modules: auto: {why}"


def _excluded(space: Universe, rules: t.Sequence[Constraint], which: t.Callable[[Candidate], bool]) -> str:
    """The fewest constraints that exclude all of these candidates, in words; empty where one of them is left."""
    conflict = solve.core(space.where(which), rules)
    return " and ".join(rule.text for rule in conflict or ())


# -- why not

def _refusals(here: Situation, wish: Wish, release: Release) -> t.Iterator[Refused]:
    """Every conflict, explained among all drivers that are known to any release."""
    every = {Version.of(text) for name in releases.available() for text in releases.release(name).drivers}
    every |= {Version.of(str(number)) for number in releases.branches()} - {Version(None, one.branch) for one in every}
    versions = sorted(every, key=lambda one: one.key)
    space = _space([*versions, *([wish.version] if wish.version else [])], wish)
    rules = constraints(space, here, wish, release)
    for conflict in solve.cores(space.all, rules):
        free = _enough(list(_free(space, rules, conflict, here, wish, release)))
        yield Refused(_reason(conflict), _remedy(conflict, free, here, wish),
                      [(one.id, one.text) for one in conflict], free)


def _free(space: Universe, rules: t.Sequence[Constraint], conflict: t.Sequence[Constraint], here: Situation,
          wish: Wish, release: Release) -> t.Iterator[dict[str, t.Any]]:
    """What would be the plan without each constraint that a user can change."""
    for dropped in dict.fromkeys(one.id for one in conflict if one.change):
        more = solve.also(space.all, rules, dropped)
        if more is None:
            continue
        gone = [dropped, *more]
        driver = _best(space.members(solve.allowed(space.all, solve.without(rules, gone))), wish, release)
        changes = dict.fromkeys(_change(rule, driver, here, wish, release)
                                for name in gone for rule in rules if rule.id == name)
        done = " and ".join(changes)
        version = version_of(driver, wish)
        told = str(version) in done or "driver_branch: " in done
        details = ", ".join([f"driver {version}"] * (not told)
                            + [f"{driver.flavour} modules"] * (driver.flavour not in done))
        yield {"drop": dropped, "also": list(more), "result": f"{done} ({details})" if details else done}


def _enough(free: t.Sequence[dict[str, t.Any]]) -> list[dict[str, t.Any]]:
    """Without those that change more than another one of them does."""
    sets = [{one["drop"], *one["also"]} for one in free]
    return [one for one, mine in zip(free, sets) if not any(other < mine for other in sets)]


def _change(rule: Constraint, driver: Candidate, here: Situation, wish: Wish, release: Release) -> str:
    """What a user sets, as it would be set."""
    version = driver.version.text or str(driver.version.branch)
    if rule.id == "release":
        number, _default = _naming().get(driver.version.text, (None, False))
        return f"driver.version: {version}" if number is None else f"gpu_release: {releases.available()[number]}"
    return rule.change.format(version=version, branch=driver.version.branch, flavour=driver.flavour,
                              source=driver.source, switch=str(driver.flavour == "open").lower(),
                              cuda=_level(driver, here, wish))


def _level(driver: Candidate, here: Situation, wish: Wish) -> str:
    """The CUDA level that is nearest to the one asked for, and suits driver and GPUs."""
    limits = [gpu.architecture.cuda for gpu in here.gpus if gpu.architecture and gpu.architecture.cuda]
    first = max((one[0] for one in limits), key=version_key, default="")
    if wish.cuda and version_key(wish.cuda) < version_key(first):
        return first
    branch = releases.branch(driver.version.branch)
    lasts = [one[1] for one in limits if len(one) > 1] + ([branch.cuda] if branch and branch.cuda else [])
    return min(lasts, key=version_key, default="")


def _reason(conflict: t.Sequence[Constraint]) -> str:
    texts = [rule.text for rule in conflict]
    return ", but ".join(texts) if len(texts) < 3 else f"{'; '.join(texts)}: no driver does all of it"


def _remedy(conflict: t.Sequence[Constraint], free: t.Sequence[t.Mapping[str, t.Any]], here: Situation,
            wish: Wish) -> str:
    if free:
        return f"What would free it: {', or '.join(str(one['result']) for one in free)}."
    if conflict and all(rule.id.startswith("gpu:") for rule in conflict):
        only = [gpu.name for gpu in here.gpus if gpu.open_modules == "required"]
        mixed = any(gpu.open_modules == "no" for gpu in here.gpus)
        partly = f" Open modules would install here, but drive only {' and '.join(only)}." if only and mixed else ""
        return f"Put these GPUs into different hosts.{partly}"
    if wish.cluster:
        return "Install a driver on these Nodes yourself and set driver.enabled to false."
    return "Install a driver that suits it yourself and set driver_state to adopted, or take the host out of gpu_hosts."
