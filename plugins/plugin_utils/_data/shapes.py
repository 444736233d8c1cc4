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
    """What is wrong. path: the place, such as C(.gpus[0].uuid), empty for the value itself; value: the value there,
    shortened; allowed: what is allowed there, as a part of a sentence."""

    path: str
    value: str
    allowed: str

    def below(self, step: str) -> Fault:
        """The same fault, seen from one level above."""
        return self._replace(path=step + self.path)


class Shape(t.Protocol):
    """The interface of all shapes."""

    def fault(self, value: object) -> Fault | None:
        """What is wrong with a value, None if nothing is."""


def _said(value: object) -> str:
    # Only the beginning, because it takes long to format a huge value.
    if isinstance(value, str):
        return shown(value[:80])
    return f"a {type(value).__name__} of {len(value)}" if isinstance(value, (dict, list, tuple)) else shown(value)


@dataclass(frozen=True)
class Text:
    """A string. pattern: the whole string must match it; allowed: the same in words; longest: in characters."""

    pattern: str = ""
    allowed: str = ""
    longest: int = 1024

    def fault(self, value: object) -> Fault | None:
        if not isinstance(value, str):
            return Fault("", _said(value), "a string")
        if len(value) > self.longest:
            return Fault("", f"a string of {len(value)} characters", f"at most {self.longest} characters")
        if self.pattern and not re.fullmatch(self.pattern, value, re.ASCII):
            return Fault("", _said(value), self.allowed)
        return None


@dataclass(frozen=True)
class Number:
    """A whole number."""

    largest: int = 2**53
    smallest: int = 0

    def fault(self, value: object) -> Fault | None:
        if isinstance(value, bool) or not isinstance(value, int) or not self.smallest <= value <= self.largest:
            return Fault("", _said(value), f"a whole number from {self.smallest} to {self.largest}")
        return None


class Flag:
    """True or false."""

    def fault(self, value: object) -> Fault | None:
        return None if isinstance(value, bool) else Fault("", _said(value), "true or false")


class Anything:
    """No check."""

    def fault(self, value: object) -> Fault | None:
        return None


@dataclass(frozen=True)
class OneOf:
    """One of a few words."""

    words: t.Tuple[str, ...]

    def fault(self, value: object) -> Fault | None:
        return None if isinstance(value, str) and value in self.words else Fault("", _said(value), "one of "
                                                                                 f"{', '.join(self.words)}")


@dataclass(frozen=True)
class Nullable:
    """Null, or what has the shape."""

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
            return Fault("", _said(value), "a list")
        if len(value) > self.most:
            return Fault("", _said(value), f"at most {self.most} entries")
        for index, one in enumerate(value):
            fault = self.shape.fault(one)
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
            return Fault("", _said(value), "a mapping")
        if len(value) > self.most:
            return Fault("", _said(value), f"at most {self.most} entries")
        for key, one in value.items():
            fault = self.key.fault(key)
            if fault is not None:
                return Fault("", f"the key {fault.value}", fault.allowed)
            fault = self.shape.fault(one)
            if fault is not None:
                return fault.below(f".{key[:80]}")
        return None


@dataclass(frozen=True)
class Fields:
    """A mapping of known keys. needed: required keys; optional: allowed keys; whole: whether other keys are a fault;
    other: the shape of the values of other keys, which are then allowed."""

    needed: t.Mapping[str, Shape] = field(default_factory=dict)
    optional: t.Mapping[str, Shape] = field(default_factory=dict)
    whole: bool = True
    other: Shape | None = None

    def fault(self, value: object) -> Fault | None:
        if not isinstance(value, dict):
            return Fault("", _said(value), "a mapping")
        missing = [key for key in self.needed if key not in value]
        if missing:
            return Fault("", f"without {missing[0]}", f"the keys {', '.join(self.needed)}")
        for key, one in value.items():
            shape = self.needed.get(key) or self.optional.get(key) or self.other
            if shape is None and self.whole:
                return Fault("", f"the key {_said(key)}", f"the keys {', '.join((*self.needed, *self.optional))}")
            fault = shape.fault(one) if shape is not None else None
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
