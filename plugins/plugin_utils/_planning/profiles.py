# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Profiles: the components that the operating system of a host includes, such as on DGX OS or RKE2. Pure. PRIVATE.

C(profiles.yml) contains the profiles, and explains its keys.
"""

from __future__ import annotations

import functools
import os
import typing as t
from dataclasses import dataclass, field, replace

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError, nearest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.components import COMPONENTS, NAMES
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.facts import HostFacts
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.untyped import Section, Value
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.yamltext import read_own

# The allowed values of facts, by path of the fact; True for any value.
Rule = t.Mapping[str, Value]
OWNERS = ("theirs", "fixed")


@dataclass(frozen=True)
class Profile:
    """A profile, or several profiles of one host combined (C(dgx_os+rke2)).

    components: C(theirs) or, for components that cannot be replaced, C(fixed), by included component; settings: the
    values that the system needs, by path in the policy; sentences: the reason why each component is included, by
    component; because: the reason why the host has the profile, with its source.
    """

    name: str
    title: str
    components: t.Mapping[str, str] = field(default_factory=dict, hash=False)
    settings: t.Mapping[str, str] = field(default_factory=dict, hash=False)
    sentences: t.Mapping[str, str] = field(default_factory=dict, hash=False)
    because: str = ""

    def owner(self, component: str) -> str:
        """C(theirs) if the profile includes the component, otherwise C(ours)."""
        return "theirs" if component in self.components else "ours"

    def replaceable(self, component: str) -> bool:
        """Whether a component can be delivered if a user requests it, although the profile includes it."""
        return self.components.get(component) != "fixed"

    @property
    def summary(self) -> str:
        """The profile as text, such as C(profile dgx_os, which includes: driver, container toolkit)."""
        included = ", ".join(component.title for component in COMPONENTS if component.name in self.components)
        return f"profile {self.name}, which includes: {included or 'no components'}"

    def reason(self, component: str) -> str:
        """The reason why the profile includes a component, with its source; empty if it does not."""
        return self.sentences.get(component, "")


@dataclass(frozen=True)
class _Entry:
    profile: Profile
    rules: t.Tuple[Rule, ...]


def chosen(facts: HostFacts, asked: object = "auto", cluster: bool = False) -> Profile | None:
    """The profile of a host, None for a system without a profile. asked: the variable gpu_profile of the host, C(auto),
    C(none), or names; cluster: whether to return only what applies to components in a cluster. Raises InputError."""
    if asked in (None, "", "auto"):
        return detect(facts, cluster)
    if asked == "none":
        return None
    profile = by_name(str(asked), cluster)
    return replace(profile, because=f"gpu_profile of this host; {profile.because}")


def detect(facts: HostFacts, cluster: bool = False) -> Profile | None:
    """The profile according to the facts of a host or Node, None for a system without a profile."""
    return _detect(tuple(_fact(facts, path) for path in _paths()), cluster)


def by_name(name: str, cluster: bool = False) -> Profile:
    """The profile with this name, or several profiles whose names are joined by C(+). Raises InputError."""
    found: list[Profile] = []
    for part in name.split("+"):
        if part not in _entries():
            near = nearest(part, _entries())
            meant = f"Did you mean {near}? " if near else ""
            allowed = ["auto", "none", *names()]
            raise InputError(f"{part!r} is not a profile.", f"{meant}Choose from {', '.join(allowed)}, or join several "
                             "profiles with +, such as dgx_os+rke2.", path="gpu_profile", value=name, allowed=allowed)
        found.append(_entries(cluster)[part].profile)
    return _together(found)


def names() -> tuple[str, ...]:
    """The names of all profiles, in the order of precedence."""
    return tuple(_entries())


def _together(found: t.Sequence[Profile]) -> Profile:
    """Combines one or more profiles. For each component and setting, the first profile that contains it takes
    precedence."""
    if len(found) == 1:
        return found[0]
    components: dict[str, str] = {}
    settings: dict[str, str] = {}
    sentences: dict[str, str] = {}
    for profile in reversed(found):
        components.update(profile.components)
        settings.update(profile.settings)
        sentences.update(profile.sentences)
    return Profile("+".join(profile.name for profile in found), " and ".join(profile.title for profile in found),
                   components, settings, sentences, "; ".join(profile.because for profile in found))


def _fact(facts: HostFacts, path: str) -> str:
    """The value of a fact as text, or the values of a mapping as text; empty if unknown."""
    value: object = facts
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return " ".join(str(item) for item in value.values() if item) if isinstance(value, dict) else str(value or "")


@functools.lru_cache(maxsize=1024)
def _detect(values: t.Tuple[str, ...], cluster: bool) -> Profile | None:
    """The profile that matches the values of the facts in L(_paths), None if there is none."""
    facts = dict(zip(_paths(), values))
    found = []
    for entry in _entries(cluster).values():
        rule = next((rule for rule in entry.rules if all(
            bool(facts[path]) if want is True else facts[path] in want for path, want in rule.items())), None)
        if rule is not None:
            seen = " and ".join(f"{path} {facts[path]}" for path in rule)
            found.append(replace(entry.profile, because=f"found by {seen}; {entry.profile.because}"))
    return _together(found) if found else None


@functools.lru_cache(maxsize=1)
def _paths() -> tuple[str, ...]:
    """The paths of all facts that rules of profiles use."""
    return tuple(sorted({path for entry in _entries().values() for rule in entry.rules for path in rule}))


@functools.lru_cache(maxsize=2)
def _entries(cluster: bool = False) -> dict[str, _Entry]:
    data = read_own(os.path.dirname(__file__), "profiles.yml")
    return {name: _entry(name, {**one, "components": one.get("in_clusters", one["components"])} if cluster else one)
            for name, one in data["profiles"].items()}


def _entry(name: str, data: Section) -> _Entry:
    """Converts an entry of the file to a profile. Raises InputError for an unknown component or owner."""
    for component, owner in data["components"].items():
        if component not in NAMES or owner not in OWNERS:
            raise InputError(f"{component}: {owner} is not allowed.", f"Name a component ({', '.join(NAMES)}) and "
                             f"{' or '.join(OWNERS)}.", path=f"profiles.yml: {name}.components", value=owner)
    sentence = f"{data['title']}: {data['why']} ({data['source']})"
    profile = Profile(name, data["title"], dict(data["components"]), dict(data.get("settings") or {}),
                      dict.fromkeys(data["components"], sentence), sentence)
    return _Entry(profile, tuple(data["detect"]))
