# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One way to a wanted driver: what is planned, who executes it, what is true afterwards."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.delivery import Delivery, choose
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.files import RESTORE
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.initramfs import Initramfs
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.modules import must_reload
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.parts import Aim, Holders, Host, Part
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.plan import (
    changes_modules,
    needs_unload,
    plan_present,
    takes_modules,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.runfile import DROP_UNIT
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.spec import check_version, kernel_module_type
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.state import Situation, read_holders
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.verify import disagreements
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.clients import stoppable
from ansible_collections.gpuops.nvidia.plugins.module_utils._files import check_writable
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.work import RELEASE
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step, apply


class Executor:
    """Hands each step to whose it is. started: the steps so far, the one that failed included."""

    def __init__(self, hands: t.Sequence[Delivery | Part | Initramfs]) -> None:
        self.hands = hands
        self.started: list[Step] = []

    def __call__(self, step: Step) -> None:
        self.started.append(step)
        if not any(hand.execute(step) for hand in self.hands):
            raise HostError(f"Nobody executes '{step.id}'.", "This is a bug: report it.")


class Attempt:
    """Planned when it is made; raises GpuopsError before anything is changed.

    level: gpu_disruption. parts: the concerns beside the delivery. untouched: a version whose files are known to stand,
    so that the delivery is not asked. brings: whether files of a driver come.
    """

    def __init__(self, host: Host, now: Situation, level: str, parts: t.Sequence[t.Type[Part]],
                 untouched: str | None = None) -> None:
        self.host = host
        self.now = now
        self.level = level
        self.parts = [make(host) for make in parts]
        initramfs = Initramfs(host)
        flavour = kernel_module_type(host.spec, now.gpus)
        if host.spec.version or host.spec.branch:
            check_version(host.spec.version or str(host.spec.branch), flavour, now.gpus)
        self.delivery, others = choose(host, now)
        self.version, delivered = (untouched, []) if untouched else self.delivery.plan(now, flavour)
        displaced = [] if untouched else [step for one in others for step in one.displaced()]
        self.holders: Holders = ()
        self.aim = self._aim(flavour, [*displaced, *delivered], changes_modules(delivered), level)
        self.steps = plan_present(now, self.aim, self.parts, initramfs, displaced, delivered)
        for step in self.steps:
            if step.target.startswith("/etc/") and step.action not in (RESTORE, RELEASE, DROP_UNIT):
                check_writable(host.root.at(step.target))
        self.brings = takes_modules(delivered)
        self.executor = Executor([self.delivery, *others, *self.parts, initramfs])

    def _aim(self, flavour: str, steps: t.Sequence[Step], delivered: bool, level: str) -> Aim:
        now, root = self.now, self.host.root
        reasons = [must_reload(now, self.version, flavour), *(part.reload(now) for part in self.parts),
                   needs_unload(now, steps)]
        reload = next(filter(None, reasons), "")
        self.holders = read_holders(root) if reload else ()
        clients = stoppable(root, self.holders)
        loose = [holder for holder in self.holders if holder["unit"] not in clients]
        return Aim(self.version, flavour, reload, loose, delivered, self.delivery.dkms,
                   "none" if self.host.spec.fabric == "none" else now.fabric, self.delivery.name,
                   () if loose else clients, bool(loose) and level == "reboot")

    def apply(self, steps: t.Sequence[Step]) -> None:
        """Executes steps of the plan."""
        apply(steps, self.executor, self.host.journal)

    def reasons(self, after: Situation, packages: str | None) -> list[str]:
        """What is not as wanted, a sentence each. packages: the version that the delivery has on the disk."""
        found = disagreements(after, self.version, self.aim.flavour, packages)
        return found + [text for part in self.parts for text in part.disagreements(after, self.aim)]
