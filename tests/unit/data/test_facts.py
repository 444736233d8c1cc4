# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The types of facts match the shapes that validate the answers of hosts, and the facts of Nodes."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from typing import Any

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import facts, shapes
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory.answer_shapes import FACTS
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import read_cluster
from ansible_collections.gpuops.nvidia.tests.unit.simulated import clusters

NONE = type(None)


def differences(hint: Any, shape: Any, path: str) -> Iterator[str]:
    """The places where a type has a key that its shape does not have, or excludes a null that the shape allows."""
    if isinstance(shape, shapes.Nullable):
        if NONE not in typing.get_args(hint) and hint is not Any:
            yield f"{path} can be null"
        shape = shape.shape
    arguments = [one for one in typing.get_args(hint) if one is not NONE]
    if NONE in typing.get_args(hint):
        hint = arguments[0]
        arguments = list(typing.get_args(hint))
    if isinstance(shape, shapes.Rows):
        yield from differences(arguments[0], shape.shape, f"{path}[]")
    elif isinstance(shape, shapes.Table):
        yield from differences(arguments[1], shape.shape, f"{path}.*")
    elif isinstance(shape, shapes.Fields) and typing.is_typeddict(hint):
        known = {**shape.needed, **shape.optional}
        for key, inner in typing.get_type_hints(hint).items():
            if key not in known:
                yield f"{path}.{key} is not a fact"
            else:
                yield from differences(inner, known[key], f"{path}.{key}")


def test_the_facts_of_hosts_have_these_types() -> None:
    assert list(differences(facts.HostFacts, FACTS, "")) == []


def test_the_facts_of_a_cluster_have_these_keys() -> None:
    seen = clusters.facts(clusters.node())
    assert set(seen) <= set(typing.get_type_hints(facts.ClusterFacts))
    (node,) = seen["nodes"].values()
    assert set(node) == set(typing.get_type_hints(facts.Node)) - {"written"}
    assert typing.get_type_hints(read_cluster.read_cluster)["return"] is facts.ClusterFacts
