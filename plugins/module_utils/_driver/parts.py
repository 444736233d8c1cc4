# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The interface of the parts of a driver, other than the delivery of its files.

A part plans steps with their phases, executes them, and checks the result. A new part requires a file with a subclass
of L(Part) and an entry in C(manage.PARTS).
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.spec import Spec
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.state import DriverState
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Runner

# In the order of a run. Modules are unloaded before their files are replaced, because every new GPU process fails if
# the libraries and the loaded modules have different versions. A removal has the same order.
PHASES = ("prepare", "unload", "stop", "displace", "sign", "deliver", "configure", "build", "initramfs", "load",
          "serve", "interrupt", "clients")
# The order if a reboot unloads the modules: phases that change files come first.
IN_MEMORY = ("unload", "stop", "load", "serve", "interrupt", "clients")
OFFLINE_PHASES = (*(phase for phase in PHASES if phase not in IN_MEMORY), *IN_MEMORY)

Phased = t.Tuple[str, Step]
Holders = t.Sequence[t.Mapping[str, t.Any]]


@dataclass(frozen=True)
class Host:
    """The context of parts and deliveries. journal: read-only in check mode. check: whether steps are only planned."""

    spec: Spec
    run: Runner
    root: Root
    journal: Journal
    check: bool = False

    def is_in_place(self, path: str) -> bool:
        """Whether a file exists and, if this collection has written it, is unchanged."""
        owned = self.journal.get("file", path) is not None
        return self.root.exists(path) and not (owned and self.journal.file_is(path) != "ours")


@dataclass(frozen=True)
class DesiredDriver:
    """The desired driver.

    flavour: C(open) or C(proprietary). reload: the reason to unload the loaded modules, empty if they remain loaded.
    holders: GPU clients that block the unload. delivered: whether the run changes kernel modules on the disk. dkms:
    whether DKMS builds the modules. fabric: C(none), C(nvswitch), C(nvlink5) or C(nvlink5_rack), see
    L(_devices.Model.fabric). source: the name of the delivery. clients: other services that use a GPU and are stopped
    before the unload. offline: whether files are changed now and a later reboot loads the modules, because GPU clients
    block the unload and a reboot is allowed. installation: C(full) or C(compute-only). image: whether the host is an
    image without a GPU: files are changed and services enabled, and nothing is loaded or started.
    """

    version: str
    flavour: str
    reload: str = ""
    holders: Holders = ()
    delivered: bool = False
    dkms: bool = True
    fabric: str = "none"
    source: str = ""
    clients: t.Sequence[str] = ()
    offline: bool = False
    installation: str = "auto"
    image: bool = False


class Part:
    """The base class of parts. Its methods plan no steps and execute none."""

    def __init__(self, host: Host) -> None:
        self.host = host

    def tidy(self) -> None:
        """Deletes entries of the journal that have become void. Called at the end of a run without pending steps."""

    def reload(self, now: DriverState) -> str:
        """The reason to reload the modules, empty if this part does not require it."""
        return ""

    def plan(self, now: DriverState, desired: DesiredDriver) -> list[Phased]:
        """The necessary steps with their phases. Raises InputError, HostError."""
        return []

    def follow(self, steps: t.Sequence[Step], desired: DesiredDriver) -> list[Phased]:
        """Further steps, with their phases, that the planned steps of all parts require. They run after those steps."""
        return []

    def absent(self, now: DriverState) -> list[Phased]:
        """The steps of a removal, with their phases. L(plan.plan_absent) plans the steps that restore files."""
        return []

    def execute(self, step: Step) -> bool:
        """Executes a step of this part. Returns False for other steps."""
        return False

    def disagreements(self, now: DriverState, desired: DesiredDriver) -> list[str]:
        """One sentence for each difference between the host and the desired driver."""
        return []


def in_order(phased: t.Iterable[Phased], phases: t.Sequence[str] = PHASES) -> list[Step]:
    """The steps sorted by phase. The order within a phase is kept."""
    found: dict[str, list[Step]] = {phase: [] for phase in phases}
    for phase, step in phased:
        found[phase].append(step)
    return [step for phase in phases for step in found[phase]]
