# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The interface of a software component, which computes the desired state of a host from options."""

from __future__ import annotations

import re
import typing as t
from dataclasses import dataclass, field

from ansible_collections.gpuops.nvidia.plugins.module_utils._devices import Model
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root

_VERSION = re.compile(r"\d+(\.\d+)+(-\S+)?\Z")


class Options(t.TypedDict, total=False):
    """The validated options of one component. Each component uses only some of them."""

    version: t.Optional[str]
    profile: bool
    profiling: bool
    listen: t.Optional[str]
    counters: t.Optional[str]
    args: t.Sequence[str]
    env: t.Mapping[str, str]
    job_mapping: t.Optional[str]
    web_config: t.Optional[str]
    folder: str
    interval: int


@dataclass(frozen=True)
class Host:
    """Facts about a host.

    cuda: the CUDA version that its driver supports (C(13.2)), None if unknown. models: the models of its GPUs, None for
    an unknown model. packages: installed packages, as C({name: version}). selected: the components of this run.
    interpreter: the Python interpreter that runs the module.
    """

    root: Root
    cuda: str | None
    models: t.Sequence[Model | None]
    packages: t.Mapping[str, str]
    selected: t.Collection[str]
    interpreter: str

    @property
    def cuda_major(self) -> int | None:
        """The major CUDA version, such as 13 for C(13.2), None if unknown."""
        return int(self.cuda.split(".")[0]) if self.cuda else None


@dataclass(frozen=True)
class Desired:
    """The desired state of a component on a host.

    packages: C({name: version}), where the version is a package version, a vendor version, or None for any version.
    replaced: packages that these packages replace. files: C({path: content}). outputs: files that the service writes.
    unit: the unit to enable and start. run_once: a unit to start once after unit. address: C((host, port)) on which the
    service accepts connections. needs_driver: whether the unit needs a driver to start. notes: sentences for the user.
    """

    packages: t.Mapping[str, str | None] = field(default_factory=dict)
    replaced: t.Sequence[str] = ()
    files: t.Mapping[str, bytes] = field(default_factory=dict)
    outputs: t.Sequence[str] = ()
    unit: str = ""
    run_once: str = ""
    address: t.Tuple[str, int] | None = None
    needs_driver: bool = False
    notes: t.Sequence[str] = ()


class Component(t.Protocol):
    """A software component. name: the name of its option and its journal. unit: empty if it has no service."""

    name: str
    unit: str

    def desired(self, options: Options, host: Host) -> Desired:
        """The desired state, without changing anything. Raises InputError and HostError."""


def check_version(component: str, version: str | None) -> None:
    """Raises InputError for an invalid package version, such as C(v4.6.0)."""
    if version and not _VERSION.match(version):
        raise InputError(f"'{version}' is not a version.", "Set a version such as 4.6.0 or 4.6.0-1.",
                         path=f"{component}.version", value=version)
