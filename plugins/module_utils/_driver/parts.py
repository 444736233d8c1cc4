# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What stands around the driver's files: one part a concern, planned and executed side by side.

A part says which steps it needs, and in which phase of the run; it executes its own steps and, at the end, says what is
not as wanted. A new concern is one file with a class as L(Part) and one line in C(manage.PARTS).
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

# In the order of a run. Modules go before their files: libraries of another version than the loaded module break every
# new GPU process, so what may not be unloaded may not be replaced either. The same order serves removal.
PHASES = ("prepare", "unload", "stop", "displace", "sign", "deliver", "configure", "build", "initramfs", "load",
          "serve", "interrupt", "clients")
# Where a reboot will unload the modules: all that is on the disk comes first.
_IN_MEMORY = ("unload", "stop", "load", "serve", "interrupt", "clients")
OFFLINE_PHASES = (*(phase for phase in PHASES if phase not in _IN_MEMORY), *_IN_MEMORY)

Phased = t.Tuple[str, Step]
Holders = t.Sequence[t.Mapping[str, t.Any]]


@dataclass(frozen=True)
class Host:
    """What parts and deliveries work with. journal: read-only in check mode."""

    spec: Spec
    run: Runner
    root: Root
    journal: Journal
    check: bool = False

    def stands(self, path: str) -> bool:
        """Whether a file is there and, if it is ours, as we wrote it: an edited one of ours is written again."""
        kept = self.journal.get("file", path) is not None
        return self.root.exists(path) and not (kept and self.journal.file_is(path) != "ours")


@dataclass(frozen=True)
class Aim:
    """What a run wants.

    flavour: C(open) or C(proprietary). reload: why loaded modules have to go, empty when they stay. holders: who keeps
    them then. delivered: whether kernel modules change on disk in this run. dkms: whether they are built on the host.
    fabric: C(none), C(nvswitch), C(nvlink5) or C(nvlink5_rack), see L(_devices.Model.fabric). source: the delivery's
    name. clients: services of others that hold a GPU and are stopped for the unload. offline: holders stay, and a
    reboot is allowed: everything goes to the disk now, and the reboot loads it.
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
    """One concern. The base does nothing, so that a part has only the methods that it needs."""

    def __init__(self, host: Host) -> None:
        self.host = host

    def reload(self, now: Situation) -> str:
        """Why loaded modules have to go for this part's sake, empty where they need not."""
        return ""

    def plan(self, now: Situation, aim: Aim) -> list[Phased]:
        """The steps that are missing, none when all is right. Raises InputError, HostError before any change."""
        return []

    def follow(self, steps: t.Sequence[Step], aim: Aim) -> list[Phased]:
        """The steps that the steps of all parts for a wanted driver make necessary. They are carried out later."""
        return []

    def absent(self, now: Situation) -> list[Phased]:
        """The steps that take back what the journal holds of this part; files of ours are restored without it."""
        return []

    def execute(self, step: Step) -> bool:
        """Runs a step of this part; False when it is another's."""
        return False

    def disagreements(self, now: Situation, aim: Aim) -> list[str]:
        """What is not as wanted, a sentence each."""
        return []


def in_order(phased: t.Iterable[Phased], phases: t.Sequence[str] = PHASES) -> list[Step]:
    """The steps by phase; within a phase as they come."""
    found: dict[str, list[Step]] = {phase: [] for phase in phases}
    for phase, step in phased:
        found[phase].append(step)
    return [step for phase in phases for step in found[phase]]
