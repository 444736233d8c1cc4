# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Systems that somebody has prepared, such as DGX OS or RKE2: which components are whose business. Pure. PRIVATE.

The profiles are data, C(profiles.yml), which says what its keys mean.
"""

from __future__ import annotations

import functools
import os
import typing as t
from dataclasses import dataclass, field, replace

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError, nearest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.components import COMPONENTS, NAMES
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.yamltext import load_own

Facts = t.Mapping[str, t.Any]
# By the path of a fact its allowed values, or True where it only has to be there.
Rule = t.Mapping[str, t.Any]
OWNERS = ("theirs", "fixed")
_FILE = os.path.join(os.path.dirname(__file__), "profiles.yml")


@dataclass(frozen=True)
class Profile:
    """One profile, or several of one host together (C(dgx_os+rke2)).

    components: by name C(theirs) or C(fixed); settings: by path of a policy what it should say there; sentences: by
    component why it is theirs; because: the whole in one sentence, with how the profile was found and its source.
    """

    name: str
    title: str
    components: t.Mapping[str, str] = field(default_factory=dict, hash=False)
    settings: t.Mapping[str, t.Any] = field(default_factory=dict, hash=False)
    sentences: t.Mapping[str, str] = field(default_factory=dict, hash=False)
    because: str = ""

    def owner(self, component: str) -> str:
        """C(ours) or C(theirs)."""
        return "theirs" if component in self.components else "ours"

    def replaceable(self, component: str) -> bool:
        """Whether the component can be delivered by us all the same, where a user asks for it."""
        return self.components.get(component) != "fixed"

    @property
    def summary(self) -> str:
        """C(profile dgx_os, theirs: driver, container toolkit)."""
        theirs = ", ".join(component.title for component in COMPONENTS if component.name in self.components)
        return f"profile {self.name}, theirs: {theirs or 'nothing'}"

    def reason(self, component: str) -> str:
        """Why a component is theirs: C(DGX OS: driver and ... (source)); empty where it is ours."""
        return self.sentences.get(component, "")


@dataclass(frozen=True)
class _Entry:
    profile: Profile
    rules: t.Tuple[Rule, ...]


def chosen(facts: Facts, asked: str | None = "auto", cluster: bool = False) -> Profile | None:
    """The profile of a host. asked: its variable gpu_profile: C(auto), C(none), or names; cluster: what of it counts
    where containers deliver. Raises InputError."""
    if asked in (None, "", "auto"):
        return detect(facts, cluster)
    if asked == "none":
        return None
    profile = by_name(str(asked), cluster)
    return replace(profile, because=f"gpu_profile of this host; {profile.because}")


def detect(facts: Facts, cluster: bool = False) -> Profile | None:
    """What the facts of a host tell, in the shape of gpu_info, also those made of a Node; None for a plain system."""
    return _detect(tuple(_fact(facts, path) for path in _paths()), cluster)


def by_name(name: str, cluster: bool = False) -> Profile:
    """A profile, or several joined by C(+). Raises InputError."""
    found = []
    for part in name.split("+"):
        if part not in _entries():
            near = nearest(part, _entries())
            meant = f"Did you mean {near}? " if near else ""
            allowed = ["auto", "none", *names()]
            raise InputError(f"{part!r} is no profile.", f"{meant}Choose from {', '.join(allowed)}, or join several "
                             "by +, such as dgx_os+rke2.", path="gpu_profile", value=name, allowed=allowed)
        found.append(_entries(cluster)[part].profile)
    return t.cast(Profile, _together(found))


def names() -> tuple[str, ...]:
    """All profiles, in the order in which they count."""
    return tuple(_entries())


def _together(found: t.Sequence[Profile]) -> Profile | None:
    """One profile of several: for each component and setting the first that names it."""
    if len(found) < 2:
        return found[0] if found else None
    components: dict[str, str] = {}
    settings: dict[str, t.Any] = {}
    sentences: dict[str, str] = {}
    for profile in reversed(found):
        components.update(profile.components)
        settings.update(profile.settings)
        sentences.update(profile.sentences)
    return Profile("+".join(profile.name for profile in found), " and ".join(profile.title for profile in found),
                   components, settings, sentences, "; ".join(profile.because for profile in found))


def _fact(facts: Facts, path: str) -> str:
    """A fact as text, that of a dictionary its values; empty where it is not there."""
    value: t.Any = facts
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return " ".join(str(item) for item in value.values() if item) if isinstance(value, dict) else str(value or "")


@functools.lru_cache(maxsize=1024)
def _detect(values: t.Tuple[str, ...], cluster: bool) -> Profile | None:
    """The profile of hosts whose facts of L(_paths) are these."""
    facts = dict(zip(_paths(), values))
    found = []
    for entry in _entries(cluster).values():
        rule = next((rule for rule in entry.rules if all(
            bool(facts[path]) if want is True else facts[path] in want for path, want in rule.items())), None)
        if rule is not None:
            seen = " and ".join(f"{path} {facts[path]}" for path in rule)
            found.append(replace(entry.profile, because=f"found by {seen}; {entry.profile.because}"))
    return _together(found)


@functools.lru_cache(maxsize=1)
def _paths() -> tuple[str, ...]:
    """Every fact that a rule asks for."""
    return tuple(sorted({path for entry in _entries().values() for rule in entry.rules for path in rule}))


@functools.lru_cache(maxsize=2)
def _entries(cluster: bool = False) -> dict[str, _Entry]:
    with open(_FILE, encoding="utf-8") as handle:
        data = load_own(handle.read())
    return {name: _entry(name, {**one, "components": one.get("in_clusters", one["components"])} if cluster else one)
            for name, one in data["profiles"].items()}


def _entry(name: str, data: t.Mapping[str, t.Any]) -> _Entry:
    """One profile of the file. Raises InputError where it names a component or an owner that is none."""
    for component, owner in data["components"].items():
        if component not in NAMES or owner not in OWNERS:
            raise InputError(f"{component}: {owner} is not allowed.", f"Name a component ({', '.join(NAMES)}) and "
                             f"{' or '.join(OWNERS)}.", path=f"profiles.yml: {name}.components", value=owner)
    sentence = f"{data['title']}: {data['why']} ({data['source']})"
    profile = Profile(name, data["title"], dict(data["components"]), dict(data.get("settings") or {}),
                      dict.fromkeys(data["components"], sentence), sentence)
    return _Entry(profile, tuple(data["detect"]))
