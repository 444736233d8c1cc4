# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Shapes of data from outside: types, sizes and keys. Data is checked before anything uses it. Pure. PRIVATE.

A shape is data. C(fault) returns None for a value that has the shape, otherwise the first L(Fault).
"""

from __future__ import annotations

import re
import typing as t
from dataclasses import dataclass, field

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.schema import shown


class Fault(t.NamedTuple):
    """A fault. path: such as C(.gpus[0].uuid), empty for the value itself; value: the value at the path, shortened;
    allowed: the allowed values, as a part of a sentence."""

    path: str
    value: str
    allowed: str

    def below(self, step: str) -> Fault:
        """The same fault, with a path from the parent of the value. step: the path of the value in the parent."""
        return self._replace(path=step + self.path)


class Shape(t.Protocol):
    """The interface of all shapes."""

    def fault(self, value: object) -> Fault | None:
        """The first fault of a value, None if it has none."""


def _described(value: object) -> str:
    # Only the beginning, because it takes long to format a huge value.
    if isinstance(value, str):
        return shown(value[:80])
    return f"a {type(value).__name__} of {len(value)}" if isinstance(value, (dict, list, tuple)) else shown(value)


@dataclass(frozen=True)
class Text:
    """A string. pattern: the whole string must match it; allowed: its description for messages; longest: in
    characters."""

    pattern: str = ""
    allowed: str = ""
    longest: int = 1024

    def fault(self, value: object) -> Fault | None:
        if not isinstance(value, str):
            return Fault("", _described(value), "a string")
        if len(value) > self.longest:
            return Fault("", f"a string of {len(value)} characters", f"at most {self.longest} characters")
        if self.pattern and not re.fullmatch(self.pattern, value, re.ASCII):
            return Fault("", _described(value), self.allowed)
        return None


@dataclass(frozen=True)
class Number:
    """A whole number."""

    largest: int = 2**53
    smallest: int = 0

    def fault(self, value: object) -> Fault | None:
        if isinstance(value, bool) or not isinstance(value, int) or not self.smallest <= value <= self.largest:
            return Fault("", _described(value), f"a whole number from {self.smallest} to {self.largest}")
        return None


class Flag:
    """True or false."""

    def fault(self, value: object) -> Fault | None:
        return None if isinstance(value, bool) else Fault("", _described(value), "true or false")


class Anything:
    """No check."""

    def fault(self, value: object) -> Fault | None:
        return None


@dataclass(frozen=True)
class OneOf:
    """One of these strings."""

    words: t.Tuple[str, ...]

    def fault(self, value: object) -> Fault | None:
        return None if isinstance(value, str) and value in self.words else Fault("", _described(value), "one of "
                                                                                 f"{', '.join(self.words)}")


@dataclass(frozen=True)
class Nullable:
    """Null, or a value of the shape."""

    shape: Shape

    def fault(self, value: object) -> Fault | None:
        return None if value is None else self.shape.fault(value)


@dataclass(frozen=True)
class Rows:
    """A list of values of one shape."""

    shape: Shape
    most: int

    def fault(self, value: object) -> Fault | None:
        if not isinstance(value, (list, tuple)):
            return Fault("", _described(value), "a list")
        if len(value) > self.most:
            return Fault("", _described(value), f"at most {self.most} entries")
        for index, item in enumerate(value):
            fault = self.shape.fault(item)
            if fault is not None:
                return fault.below(f"[{index}]")
        return None


@dataclass(frozen=True)
class Table:
    """A mapping whose keys are data: all of one shape, as are its values."""

    key: Shape
    shape: Shape
    most: int

    def fault(self, value: object) -> Fault | None:
        if not isinstance(value, dict):
            return Fault("", _described(value), "a mapping")
        if len(value) > self.most:
            return Fault("", _described(value), f"at most {self.most} entries")
        for key, item in value.items():
            fault = self.key.fault(key)
            if fault is not None:
                return Fault("", f"a mapping with the key {fault.value}", fault.allowed)
            fault = self.shape.fault(item)
            if fault is not None:
                return fault.below(f".{key[:80]}")
        return None


@dataclass(frozen=True)
class Fields:
    """A mapping of known keys. needed: required keys; optional: allowed keys; closed: whether other keys are a fault;
    other: the shape of the values of other keys, which are then allowed."""

    needed: t.Mapping[str, Shape] = field(default_factory=dict)
    optional: t.Mapping[str, Shape] = field(default_factory=dict)
    closed: bool = True
    other: Shape | None = None

    def fault(self, value: object) -> Fault | None:
        if not isinstance(value, dict):
            return Fault("", _described(value), "a mapping")
        missing = [key for key in self.needed if key not in value]
        if missing:
            return Fault("", f"a mapping without {missing[0]}", f"the keys {', '.join(self.needed)}")
        for key, item in value.items():
            shape = self.needed.get(key) or self.optional.get(key) or self.other
            if shape is None and self.closed:
                return Fault("", f"a mapping with the key {_described(key)}",
                             f"the keys {', '.join((*self.needed, *self.optional))}")
            fault = shape.fault(item) if shape is not None else None
            if fault is not None:
                return fault.below(f".{key}")
        return None


@dataclass(frozen=True)
class Case:
    """A mapping whose shape depends on the value of one of its keys."""

    key: str
    shapes: t.Mapping[str, Shape]
    otherwise: Shape

    def fault(self, value: object) -> Fault | None:
        case = value.get(self.key) if isinstance(value, dict) else None
        return (self.shapes.get(case, self.otherwise) if isinstance(case, str) else self.otherwise).fault(value)
