# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver on a host from reading to re-reading. PRIVATE to the collection."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver._build import Build
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver._delivery import Delivery, choose, removable
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver._files import Files
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver._initramfs import Initramfs
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver._modules import (
    SECURE_BOOT_HINT,
    Modules,
    must_reload,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver._nouveau import UNLOAD_NOUVEAU, Nouveau
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver._parts import Aim, Holders, Host, Part
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver._plan import (
    changes_modules,
    gate_driver,
    plan_absent,
    plan_present,
    takes_modules,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver._services import Services
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver._spec import (
    Spec,
    check_version,
    kernel_module_type,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver._state import (
    Situation,
    read_holders,
    read_situation,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver._verify import ask_smi, disagreements
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts._root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._files import read_bytes
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step, apply, outcome, plan_diff
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Runner, run

CONCERN = "driver"
# In this order within each phase of a run.
PARTS: t.Tuple[t.Type[Part], ...] = (Nouveau, Build, Modules, Files, Services)
# What DKMS signs with: Debian and others; Ubuntu.
_SIGNING_KEYS = ("/var/lib/dkms/mok.pub", "/var/lib/shim-signed/mok/MOK.der")
# Kinds of journal entries that say how things were, and hold nothing to be restored by a step of its own.
_SETTLED = ("service", "initramfs", "paused", "restart")


class Driver:
    """One run of the module. check: plan only. level: gpu_disruption."""

    def __init__(self, spec: Spec, level: str, check: bool, command: Runner = run, root: Root | None = None) -> None:
        self.spec = spec
        self.level = level
        self.check = check
        self.run = command
        self.root = root or Root()

    # -- states

    def present(self) -> dict[str, t.Any]:
        """Installs, switches or repairs; see the module's documentation for the result."""
        now = self._read()
        if not now.gpus:
            raise HostError("This host has no NVIDIA GPU on its PCI bus.",
                            "Take it out of the group, or look at lspci -d 10de: and at passed-through devices.")
        flavour = kernel_module_type(self.spec, now.gpus)
        if self.spec.version or self.spec.branch:
            check_version(self.spec.version or str(self.spec.branch), flavour, now.gpus)
        with Journal(CONCERN, readonly=self.check) as journal:
            host, parts, initramfs = self._hands(journal)
            delivery, others = choose(host, now)
            version, delivered = delivery.plan(now, flavour)
            aim = self._aim(now, version, flavour, delivered, delivery, parts)
            steps = plan_present(now, aim, parts, initramfs, [step for one in others for step in one.displaced()],
                                 delivered)
            if aim.delivered:
                self._check_secure_boot(now)
            allowed, pending = gate_driver(steps, self.level)
            if self.check:
                return self._result(now, now, allowed, pending, aim.holders, version)
            apply(allowed, self._executor([delivery, *others, *parts, initramfs]), journal)
            after = self._read() if allowed else now
            reasons = self._reasons(after, aim, parts, delivery.installed() if allowed else version)
        if allowed and not pending:
            reasons += ask_smi(self.run, version)
            if reasons:
                raise HostError(f"All steps have run, but the driver does not work: {'; '.join(reasons)}.",
                                "Look at journalctl -k | grep -i nvrm.", reasons=reasons,
                                plan=[step.as_dict() for step in allowed])
        return self._result(now, after, allowed, pending, aim.holders, version, reasons)

    def absent(self) -> dict[str, t.Any]:
        """Takes away exactly what this collection brought; another's driver stays."""
        now = self._read()
        with Journal(CONCERN, readonly=self.check) as journal:
            host, parts, initramfs = self._hands(journal)
            deliveries = removable(host, now)
            displaced = [step for one in deliveries for step in one.absent()]
            own = {path for step in displaced for path in step.data.get("files", ())}
            files = [path for path in journal.of_kind("file") if path not in own]
            holders = read_holders(self.root) if takes_modules(displaced) and now.modules else []
            steps = plan_absent(now, parts, initramfs, displaced, files, holders)
            allowed, pending = gate_driver(steps, self.level)
            reasons = [text for one in deliveries for text in one.left()]
            if self.check:
                return self._result(now, now, allowed, pending, holders, None, reasons)
            apply(allowed, self._executor([*deliveries, *parts, initramfs]), journal)
            if not pending:
                for one in deliveries:
                    one.settle()
                for kind in _SETTLED:
                    for key in journal.of_kind(kind):
                        journal.forget(kind, key)
                journal.unfinished = None  # a step that a killed run left, and that has no trace any more
        return self._result(now, self._read() if allowed else now, allowed, pending, holders, None, reasons)

    def adopted(self) -> dict[str, t.Any]:
        """Changes nothing; fails where no driver works."""
        now = self._read()
        reasons = disagreements(now, self.spec.version, None, None)
        if now.loaded and not self.spec.accepts(now.loaded):
            reasons.append(f"{now.loaded} is loaded, {self.spec.wanted()} is wanted")
        reasons = list(dict.fromkeys(reasons)) + ask_smi(self.run, now.loaded)
        if reasons:
            raise HostError(f"The driver of this host does not work as wanted: {'; '.join(reasons)}.",
                            "Repair it with the tools that installed it, or use state present.", reasons=reasons)
        return self._result(now, now, [], [], [], now.loaded)

    # -- parts

    def _read(self) -> Situation:
        return read_situation(self.root, self.run)

    def _hands(self, journal: Journal) -> tuple[Host, list[Part], Initramfs]:
        host = Host(self.spec, self.run, self.root, journal, self.check)
        return host, [make(host) for make in PARTS], Initramfs(host)

    def _aim(self, now: Situation, version: str, flavour: str, delivered: t.Sequence[Step],
             delivery: Delivery, parts: t.Sequence[Part]) -> Aim:
        reasons = [must_reload(now, version, flavour), *(part.reload(now) for part in parts)]
        reload = next(filter(None, reasons), "")
        return Aim(version, flavour, reload, read_holders(self.root) if reload else (), changes_modules(delivered),
                   delivery.dkms, "none" if self.spec.fabric == "none" else now.fabric, delivery.name)

    @staticmethod
    def _executor(hands: t.Sequence[Delivery | Part | Initramfs]) -> t.Callable[[Step], None]:
        def execute(step: Step) -> None:
            if not any(hand.execute(step) for hand in hands):
                raise HostError(f"Nobody executes '{step.id}'.", "This is a bug: report it.")
        return execute

    @staticmethod
    def _reasons(after: Situation, aim: Aim, parts: t.Sequence[Part], packages: str | None) -> list[str]:
        found = disagreements(after, aim.version, aim.flavour, packages)
        return found + [text for part in parts for text in part.disagreements(after, aim)]

    def _check_secure_boot(self, now: Situation) -> None:
        if now.secure_boot and not enrolled(self.run, _SIGNING_KEYS):
            raise HostError("Secure Boot is on and no key that DKMS signs with is enrolled: the module would not load.",
                            SECURE_BOOT_HINT, keys=list(_SIGNING_KEYS))

    def _result(self, before: Situation, after: Situation, steps: t.Sequence[Step],
                pending: t.Sequence[t.Mapping[str, t.Any]], holders: Holders,
                version: str | None, reasons: t.Sequence[str] = ()) -> dict[str, t.Any]:
        # One sentence for the step that holds up the others.
        waiting = [f"{step['id']} waits: {step['pending_reason']}" for step in pending[:1]]
        mismatch = bool(after.loaded and after.library and after.loaded != after.library)
        rival = after.nouveau == "used" and any(step["action"] == UNLOAD_NOUVEAU for step in pending)
        return outcome(steps, pending, plan_diff("nvidia_driver", steps), version=version,
                       driver={"before": before.as_dict(), "after": after.as_dict()}, holders=list(holders),
                       reboot_required=bool(pending) and (mismatch or rival), reasons=[*reasons, *waiting])


def enrolled(run_command: Runner, keys: t.Sequence[str]) -> bool:
    """Whether one of the keys that DKMS may sign with is enrolled (mokutil(1))."""
    return any(read_bytes(key) is not None
               and "already enrolled" in run_command(["mokutil", "--test-key", key], check=False).stdout
               for key in keys)
