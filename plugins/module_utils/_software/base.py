# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a component of the host's software is: options in, the wanted state of a host out."""

from __future__ import annotations

import re
import typing as t
from dataclasses import dataclass, field

from ansible_collections.gpuops.nvidia.plugins.module_utils._devices import Model
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root

Options = t.Mapping[str, t.Any]
_VERSION = re.compile(r"\d+(\.\d+)+(-\S+)?\Z")


@dataclass(frozen=True)
class Host:
    """What components need to know of a host.

    cuda: the CUDA level of its driver (C(13.2)), None where nobody knows. models: of its GPUs, None for unknown ones.
    packages: the installed ones by name. wanted: components of this run. interpreter: the Python that runs this module.
    """

    root: Root
    cuda: str | None
    models: t.Sequence[Model | None]
    packages: t.Mapping[str, str]
    wanted: t.Collection[str]
    interpreter: str

    @property
    def cuda_major(self) -> int | None:
        """13 of C(13.2)."""
        return int(self.cuda.split(".")[0]) if self.cuda else None


@dataclass(frozen=True)
class Wish:
    """How a component wants a host.

    packages: name to version, the vendor's version, or None for any. gone: packages that it takes the place of.
    files: path to content. outputs: files that its service writes. unit: to be enabled and running; first: a unit to
    be started once after it. address: where the unit answers soon after its start. needs_driver: whether the unit
    starts only with a driver. reasons: what a user should know.
    """

    packages: t.Mapping[str, str | None] = field(default_factory=dict)
    gone: t.Sequence[str] = ()
    files: t.Mapping[str, bytes] = field(default_factory=dict)
    outputs: t.Sequence[str] = ()
    unit: str = ""
    first: str = ""
    address: t.Tuple[str, int] | None = None
    needs_driver: bool = False
    reasons: t.Sequence[str] = ()


class Component(t.Protocol):
    """A part of the host's software. name: option of the module and concern of its journal."""

    name: str
    unit: str

    def wish(self, options: Options, host: Host) -> Wish:
        """How the host should be. Pure, apart from reading what is shipped. Raises InputError, HostError."""


def check_version(component: str, version: str | None) -> None:
    """Raises InputError for what is no version of a package, such as C(v4.6.0)."""
    if version and not _VERSION.match(version):
        raise InputError(f"'{version}' is no version.", "Give one such as 4.6.0, or a package's such as 4.6.0-1.",
                         path=f"{component}.version", value=version)
