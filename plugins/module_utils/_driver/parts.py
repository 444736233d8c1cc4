# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The interface of the parts of a driver, besides the delivery of its files.

A part plans steps with their phases, executes them, and checks the result. A new part needs a file with a subclass of
L(Part) and an entry in C(manage.PARTS).
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.spec import Spec
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.state import Situation
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Runner

# In the order of a run. Modules are unloaded before their files are replaced: every new GPU process fails if libraries
# and loaded module have different versions. A removal has the same order.
PHASES = ("prepare", "unload", "stop", "displace", "sign", "deliver", "configure", "build", "initramfs", "load",
          "serve", "interrupt", "clients")
# The order if a reboot unloads the modules: phases that change files come first.
_IN_MEMORY = ("unload", "stop", "load", "serve", "interrupt", "clients")
OFFLINE_PHASES = (*(phase for phase in PHASES if phase not in _IN_MEMORY), *_IN_MEMORY)

Phased = t.Tuple[str, Step]
Holders = t.Sequence[t.Mapping[str, t.Any]]


@dataclass(frozen=True)
class Host:
    """The context of parts and deliveries. journal: read-only in check mode. check: only plan."""

    spec: Spec
    run: Runner
    root: Root
    journal: Journal
    check: bool = False

    def is_in_place(self, path: str) -> bool:
        """Whether a file exists. An owned file must also be unchanged."""
        kept = self.journal.get("file", path) is not None
        return self.root.exists(path) and not (kept and self.journal.file_is(path) != "ours")


@dataclass(frozen=True)
class Aim:
    """The desired driver.

    flavour: C(open) or C(proprietary). reload: the reason to unload the loaded modules, empty if they stay. holders:
    GPU clients that block this. delivered: whether the run changes kernel modules on the disk. dkms: whether DKMS
    builds them. fabric: C(none), C(nvswitch), C(nvlink5) or C(nvlink5_rack), see L(_devices.Model.fabric). source: the
    name of the delivery. clients: foreign services that use a GPU and are stopped for the unload. offline: GPU clients
    block the unload and a reboot is allowed: files change now, and the reboot loads the modules.
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


class Part:
    """The base class of parts. Its methods plan and do nothing."""

    def __init__(self, host: Host) -> None:
        self.host = host

    def reload(self, now: Situation) -> str:
        """The reason why this part needs a reload of the modules, empty without one."""
        return ""

    def plan(self, now: Situation, aim: Aim) -> list[Phased]:
        """The necessary steps with their phases. Raises InputError, HostError."""
        return []

    def follow(self, steps: t.Sequence[Step], aim: Aim) -> list[Phased]:
        """The steps that the steps of other parts make necessary. They run later."""
        return []

    def absent(self, now: Situation) -> list[Phased]:
        """The steps of a removal, except those that restore files, which are planned for all parts."""
        return []

    def execute(self, step: Step) -> bool:
        """Runs a step of this part. Returns False for other steps."""
        return False

    def disagreements(self, now: Situation, aim: Aim) -> list[str]:
        """One sentence for each difference from the plan."""
        return []


def in_order(phased: t.Iterable[Phased], phases: t.Sequence[str] = PHASES) -> list[Step]:
    """The steps in the order of their phases, and within a phase in their present order."""
    found: dict[str, list[Step]] = {phase: [] for phase in phases}
    for phase, step in phased:
        found[phase].append(step)
    return [step for phase in phases for step in found[phase]]
