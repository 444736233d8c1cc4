# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plans the steps that install a driver, executes them, and checks the result."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver import image
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.delivery import Delivery, choose
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.files import RESTORE
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.initramfs import Initramfs
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.modules import must_reload
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.parts import DesiredDriver, Holders, Host, Part
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.plan import (
    changes_driver,
    changes_modules,
    needs_unload,
    plan_present,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.runfile import DROP_UNIT
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.spec import check_version, kernel_module_type
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.state import DriverState, read_holders
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.verify import disagreements
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.clients import stoppable
from ansible_collections.gpuops.nvidia.plugins.module_utils._files import check_writable
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.work import RELEASE
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step, apply


class Executor:
    """Executes each step with the object that planned it. started: the executed steps, including a failed one."""

    def __init__(self, planners: t.Sequence[Delivery | Part | Initramfs]) -> None:
        self.planners = planners
        self.started: list[Step] = []

    def __call__(self, step: Step) -> None:
        self.started.append(step)
        if not any(planner.execute(step) for planner in self.planners):
            raise HostError(f"No planner executes the step '{step.id}'.", "This is a bug of the collection: report it.")


class Attempt:
    """The installation of one driver. The constructor plans its steps and changes nothing.

    Raises GpuopsError if the options or the host do not allow the installation. level: a value of gpu_disruption.
    parts: the parts to plan besides the delivery. untouched: the version of a driver whose files are known to be
    installed, so that the delivery plans no steps. installs: whether the plan changes files of a driver.
    """

    def __init__(self, host: Host, now: DriverState, level: str, parts: t.Sequence[t.Type[Part]],
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
        displaced = [] if untouched else [step for other in others for step in other.displaced()]
        self.holders: Holders = ()
        self.desired = self._desired(flavour, [*displaced, *delivered], changes_modules(delivered), level)
        self.steps = plan_present(now, self.desired, self.parts, initramfs, displaced, delivered)
        for step in self.steps:
            if step.target.startswith("/etc/") and step.action not in (RESTORE, RELEASE, DROP_UNIT):
                check_writable(host.root.at(step.target))
        self.installs = changes_driver(delivered)
        self.executor = Executor([self.delivery, *others, *self.parts, initramfs])

    def _desired(self, flavour: str, steps: t.Sequence[Step], delivered: bool, level: str) -> DesiredDriver:
        now, root = self.now, self.host.root
        reasons = [must_reload(now, self.version, flavour), *(part.reload(now) for part in self.parts),
                   needs_unload(now, steps)]
        reload = next(filter(None, reasons), "")
        self.holders = read_holders(root) if reload else ()
        clients = stoppable(root, self.holders)
        blocking = [holder for holder in self.holders if holder["unit"] not in clients]
        return DesiredDriver(self.version, flavour, reload, blocking, delivered, self.delivery.dkms,
                             "none" if self.host.spec.fabric == "none" else now.fabric, self.delivery.name,
                             () if blocking else clients, bool(blocking) and level == "reboot",
                             self.delivery.installation, self.host.spec.image)

    def apply(self, steps: t.Sequence[Step]) -> None:
        """Executes steps of the plan. Raises GpuopsError."""
        apply(steps, self.executor, self.host.journal)

    def reasons(self, after: DriverState, packages: str | None) -> list[str]:
        """One sentence for each difference from the plan. packages: the version that the delivery has installed."""
        found = (image.disagreements(self.host, after, self.desired, packages) if self.desired.image
                 else disagreements(after, self.version, self.desired.flavour, packages))
        return found + [text for part in self.parts for text in part.disagreements(after, self.desired)]
