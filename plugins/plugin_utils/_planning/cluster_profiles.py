# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The components that the profiles of Nodes include, so that the cluster does not deliver them again. Pure. PRIVATE."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import components
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.facts import Nodes
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.refusals import Concerned, Refused
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.wording import some_of
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory import node_facts
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning import profiles

# The key for Nodes that are not hosts of the inventory, in the setting C(profiles).
OTHERS = ""


def theirs(nodes: Nodes, places: t.Mapping[str, str], named: t.Collection[str], asked: t.Mapping[str, str | None],
           refused: list[Concerned]) -> dict[str, dict[str, str]]:
    """The components that the systems of Nodes include, but the cluster would deliver: C({Node: {component: reason}}).

    nodes: the Nodes with a GPU; named: components that the user names in gpu_placement; asked: the setting C(profiles).
    Adds refusals of Nodes whose system does not allow the named components.
    """
    found: dict[str, dict[str, str]] = {}
    fixed: dict[str, list[str]] = {}
    for name, node in nodes.items():
        profile = profiles.chosen(node_facts.facts_of_node(name, node), asked.get(name, asked.get(OTHERS)),
                                  cluster=True)
        if profile is None:
            continue
        for component in profile.components:
            if places[component] not in ("cluster", "hybrid"):
                continue
            why = profile.reason(component)
            if component not in named or not profile.replaceable(component):
                found.setdefault(name, {})[component] = why
            if component in named and not profile.replaceable(component):
                title = components.by_name(component).title
                fixed.setdefault(f"the component {title} is requested, but {why}", []).append(name)
    refused += [(Refused(text, "Remove the component from gpu_placement, or set gpu_profile: none.",
                         [("profile", text)]), names)
                for text, names in fixed.items()]
    return found


def notes_about(found: t.Mapping[str, t.Mapping[str, str]]) -> list[str]:
    """A note for each reason in the result of L(theirs), which lists its Nodes and components."""
    groups: dict[str, tuple[dict[str, None], dict[str, None]]] = {}
    for name, reasons in found.items():
        for component, why in reasons.items():
            nodes, titles = groups.setdefault(why, ({}, {}))
            nodes[name] = titles[components.by_name(component).title] = None
    return [f"{some_of(list(nodes))}: not delivered, because the system includes it: {', '.join(titles)}; {why}."
            for why, (nodes, titles) in groups.items()]
