# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The drivers to choose from: combinations of version, module flavour, source and features. Pure. PRIVATE."""

from __future__ import annotations

import functools
import itertools
import typing as t
from dataclasses import dataclass

from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.releases import branch_of, version_key

FLAVOURS = ("open", "proprietary")
# The sources of kernel modules, each with whether the modules are precompiled and signed, in order of preference.
ON_HOSTS = (("cuda_repository", False), ("distribution", True), ("distribution", False), ("runfile", False))
IN_CLUSTER = (("container", False), ("container", True))
# Features that only some drivers support.
FEATURES = ("gds", "mig", "cuda")
ARCHITECTURES = ("x86_64", "aarch64")


@dataclass(frozen=True)
class Version:
    """A driver version (C(595.91.07)), or the newest version of a branch if text is None."""

    text: str | None
    branch: int

    @classmethod
    def of(cls, text: str) -> Version:
        """Parses a version such as C(595.91.07), or a branch such as C(595)."""
        return cls(text if "." in text else None, branch_of(text))

    @property
    def named(self) -> str:
        """The version or the branch, such as C(595.91.07) or C(595)."""
        return self.text or str(self.branch)

    @property
    def key(self) -> tuple[int, ...]:
        """The sort key. The newest version of a branch sorts after all named versions of the branch."""
        return version_key(self.text) if self.text else (self.branch, 10 ** 6)

    def __str__(self) -> str:
        return self.text or f"branch {self.branch}"


class Candidate(t.NamedTuple):
    """A driver. signed: whether its modules are precompiled and signed; otherwise they are built on the host or in the
    container; arch: the architecture of the machine; gds, mig, cuda: whether it is used with GPUDirect Storage, with a
    MIG layout, and with the requested CUDA version."""

    version: Version
    flavour: str
    source: str
    signed: bool
    arch: str
    gds: bool
    mig: bool
    cuda: bool


class Universe:
    """Numbered candidates, and sets of them as the bits of integers."""

    def __init__(self, candidates: t.Iterable[Candidate]) -> None:
        self.candidates = tuple(candidates)
        self.all = (1 << len(self.candidates)) - 1

    def where(self, predicate: t.Callable[[Candidate], bool]) -> int:
        """The set of the candidates for which a predicate is true."""
        return sum(1 << number for number, one in enumerate(self.candidates) if predicate(one))

    def members(self, bits: int) -> list[Candidate]:
        """The candidates in a set."""
        return [one for number, one in enumerate(self.candidates) if bits >> number & 1]


@functools.lru_cache(maxsize=64)
def universe(versions: t.Tuple[Version, ...], sources: t.Tuple[t.Tuple[str, bool], ...],
             features: t.FrozenSet[str]) -> Universe:
    """All combinations of the arguments. features: the requested features; other features are off in all candidates."""
    switches = [(False, True) if name in features else (False,) for name in FEATURES]
    return Universe(Candidate(version, flavour, source, signed, arch, *on)
                    for version, flavour, (source, signed), arch, on in itertools.product(
                        versions, FLAVOURS, sources, ARCHITECTURES, itertools.product(*switches)))
