# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The terms of a required node affinity, and which Nodes they select. Pure. PRIVATE.

A term is C({matchExpressions: [...], matchFields: [...]}), each a list of C({key, operator, values}). A Node matches a
term if it matches all of these expressions, and must match one of the terms (Kubernetes, "Assigning Pods to Nodes").
"""

from __future__ import annotations

import itertools
import math
import typing as t

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.untyped import Data, Section

OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")
_KINDS = ("matchExpressions", "matchFields")
_OPPOSITE = {"In": "NotIn", "NotIn": "In", "Exists": "DoesNotExist", "DoesNotExist": "Exists"}


def required(affinity: Section | None) -> list[Section]:
    """The terms that a node affinity requires, empty if it requires none."""
    wanted = (affinity or {}).get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    return list(wanted.get("nodeSelectorTerms") or ())


def matches(term: Section, name: str, labels: t.Mapping[str, str]) -> bool:
    """Whether a Node matches all expressions of a term. An empty term matches no Node."""
    expressions, places = (term.get(kind) or () for kind in _KINDS)
    return bool(expressions or places) and all(holds(one, labels) for one in expressions) and all(
        holds(one, {"metadata.name": name}) for one in places)


def any_matches(terms: t.Iterable[Section], name: str, labels: t.Mapping[str, str]) -> bool:
    """Whether a Node matches one of the terms."""
    return any(matches(one, name, labels) for one in terms)


def holds(expression: Section, there: t.Mapping[str, str]) -> bool:
    """Whether labels, or fields, match an expression."""
    key, operator = str(expression["key"]), str(expression["operator"])
    values: t.Sequence[str] = expression.get("values") or ()
    if operator in ("Exists", "DoesNotExist"):
        return (key in there) == (operator == "Exists")
    if operator == "NotIn":
        return there.get(key) not in values
    if operator == "In":
        return there.get(key) in values
    try:
        have, bound = int(there[key]), int(values[0])
    except (KeyError, ValueError, IndexError):
        return False
    return have > bound if operator == "Gt" else have < bound


def both(one: Section, other: Section) -> Data:
    """A term for the Nodes that match both terms."""
    joined: Data = {**one}
    for kind in _KINDS:
        expressions = [*(one.get(kind) or ()), *(other.get(kind) or ())]
        if expressions:
            joined[kind] = expressions
    return joined


def others(selector: t.Mapping[str, str], terms: t.Sequence[Section]) -> list[Data]:
    """Terms for the Nodes that a selector and terms do not select: one of the labels does not match, or no term does.
    terms: empty if only the selector selects Nodes.
    """
    found: list[Data] = [{"matchExpressions": [{"key": key, "operator": "NotIn", "values": [value]}]}
                         for key, value in selector.items()]
    # A Node matches no term if an expression of each of them does not hold.
    for parts in itertools.product(*([part for kind in _KINDS for one in term.get(kind) or ()
                                      for part in _opposite(kind, one)] for term in terms)) if terms else ():
        term: Data = {}
        for part in parts:
            term = both(term, part)
        found.append(term)
    return found


def count_of_others(selector: t.Mapping[str, str], terms: t.Sequence[Section]) -> int:
    """The number of terms that L(others) returns."""
    return len(selector) + (math.prod(sum(len(_opposite(kind, one)) for kind in _KINDS for one in term.get(kind) or ())
                                      for term in terms) if terms else 0)


def _opposite(kind: str, expression: Section) -> list[Data]:
    """Terms for the Nodes that do not match an expression. A label that is not a number cannot be compared, so no term
    of Gt or Lt selects its Nodes."""
    key, operator = expression["key"], expression["operator"]
    if operator in _OPPOSITE:
        return [{kind: [{**expression, "operator": _OPPOSITE[operator]}]}]
    bound = int(expression["values"][0])
    beyond = ("Lt", bound + 1) if operator == "Gt" else ("Gt", bound - 1)
    return [{kind: [{"key": key, "operator": beyond[0], "values": [str(beyond[1])]}]},
            {kind: [{"key": key, "operator": "DoesNotExist"}]}]
