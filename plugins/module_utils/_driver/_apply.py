# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Executes the driver's steps. Each may be killed and run again. PRIVATE to the collection."""

from __future__ import annotations

import glob
import os
import shutil
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver import _plan
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver._state import (
    DENY_FILE,
    PERSISTENCED,
    Situation,
    read_dkms,
    read_holders,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import CommandError, HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts._root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._files import read_bytes
from ansible_collections.gpuops.nvidia.plugins.module_utils._journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages._work import INSTALL, PackageWork
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Runner

DENY_TEXT = b"""\
# Written by gpuops.nvidia: nouveau would claim the GPUs before the NVIDIA driver.
blacklist nouveau
options nouveau modeset=0
"""
SECURE_BOOT_HINT = ("Secure Boot refuses modules whose key is not enrolled: enrol DKMS's key "
                    "(mokutil --import /var/lib/dkms/mok.pub, reboot, confirm at the console), or turn it off.")
# Seconds: one DKMS build of all modules on a slow machine; one initramfs.
_BUILD_LIMIT = 3600
_LOG_LINES = 15


class Executor:
    """Runs one step at a time; L(_result.apply) calls it. pynvml: the file to ship, if one is to be shipped."""

    def __init__(self, run: Runner, root: Root, journal: Journal, work: PackageWork, before: Situation,
                 pynvml: str | None) -> None:
        self.run = run
        self.root = root
        self.journal = journal
        self.work = work
        self.before = before
        self.pynvml = pynvml

    def __call__(self, step: Step) -> None:
        """Executes a step."""
        if step.action == INSTALL:
            self._install(step)
        elif not self.work.execute(step):
            {_plan.BUILD: self._build, _plan.DENY: self._deny, _plan.INITRAMFS: self._initramfs,
             _plan.UNLOAD: self._unload, _plan.UNLOAD_NOUVEAU: self._unload_nouveau, _plan.LOAD: self._load,
             _plan.START: self._start, _plan.STOP: self._stop, _plan.SHIP: self._ship,
             _plan.RESTORE: self._restore}[step.action](step)

    def _install(self, step: Step) -> None:
        try:
            self.work.execute(step)
        except CommandError as error:
            log = build_log()
            if log and "dkms" in str(error.details["stderr"]) + str(error.details["stdout"]):
                raise HostError(f"The kernel module was not built: {log}", "Correct what the log says, then run again.",
                                **error.details) from error
            raise

    def _build(self, step: Step) -> None:
        version, kernel, arch = step.data["version"], self.before.kernel, self.before.arch
        built, registered = read_dkms(self.root, kernel, arch)
        if version in built:
            return
        if version not in registered:
            raise HostError(f"DKMS does not know the driver {version}: {sorted(registered) or 'it knows none'}.",
                            "Look at the package's configuration: apt-get install --reinstall its dkms package.")
        done = self.run(["dkms", "install", "-m", registered[version], "-v", version, "-k", kernel, "-a", arch],
                        timeout=_BUILD_LIMIT, check=False)
        if version not in read_dkms(self.root, kernel, arch)[0]:
            text = (done.stdout + done.stderr).strip().splitlines()[-_LOG_LINES:]
            raise HostError(f"DKMS did not build {registered[version]}/{version} for kernel {kernel} (exit code "
                            f"{done.rc}): {build_log() or ' / '.join(text)}",
                            "Correct what the log says (often: linux-headers for this kernel), then run again.",
                            rc=done.rc, log=text)

    def _deny(self, step: Step) -> None:
        self._owe_initramfs()
        self.journal.write_file(step.target, DENY_TEXT)

    def _owe_initramfs(self) -> None:
        self.journal.keep("initramfs", "rebuild", None)
        self.journal.note("initramfs", "rebuild", "owed")

    def _initramfs(self, step: Step) -> None:
        self.run(["update-initramfs", "-u", "-k", step.target], timeout=_BUILD_LIMIT)
        self.journal.forget("initramfs", "rebuild")

    def _unload(self, step: Step) -> None:
        if self.before.service.state == "active":
            self.run(["systemctl", "stop", PERSISTENCED])
        gone: list[str] = []
        for module in step.data["modules"]:
            done = self.run(["rmmod", module], check=False)
            if done.rc != 0 and module in self.root.names("/sys/module"):
                self._reload(gone)
                holders = _plan.name_holders(read_holders(self.root))
                raise HostError(f"{module} cannot be unloaded: {done.stderr.strip()}"
                                f"{f'; in use by {holders}' if holders else ''}. All modules are loaded as before.",
                                "Stop what uses it, then run again.")
            gone.append(module)

    def _reload(self, modules: t.Sequence[str]) -> None:
        """Puts back what was unloaded when a client came in between: its driver stays whole."""
        for module in reversed(modules):
            self.run(["modprobe", module], check=False)
        if self.before.service.state == "active":
            self.run(["systemctl", "start", PERSISTENCED], check=False)

    def _unload_nouveau(self, step: Step) -> None:
        self.run(["rmmod", step.target], hint="A console or display may use it: reboot the host, then run again.")

    def _load(self, step: Step) -> None:
        done = self.run(["modprobe", step.target], check=False)
        if done.rc == 0:
            return
        if "Key was rejected" in done.stderr:
            raise HostError(f"The kernel rejects the signature of {step.target}: {done.stderr.strip()}.",
                            SECURE_BOOT_HINT)
        raise CommandError(done.argv, done.rc, done.stdout, done.stderr,
                           "The kernel log has the reason: journalctl -k | grep -i nvrm.")

    def _keep_service(self) -> None:
        self.journal.keep("service", PERSISTENCED, {"state": self.before.service.state,
                                                    "enabled": self.before.service.enabled})

    def _start(self, step: Step) -> None:
        self._keep_service()
        self.run(["systemctl", "enable", "--now", step.target], timeout=120,
                 hint=f"Look at journalctl -u {step.target}.")

    def _stop(self, step: Step) -> None:
        self._keep_service()
        self.run(["systemctl", "disable", "--now", step.target], timeout=120)

    def _ship(self, step: Step) -> None:
        data = read_bytes(self.pynvml) if self.pynvml else None
        if data is None:
            raise HostError(f"{self.pynvml} has gone.", "Run again.")
        self.journal.write_file(step.target, data)

    def _restore(self, step: Step) -> None:
        if step.target == DENY_FILE:
            self._owe_initramfs()
        if step.target.endswith(".py"):
            # What Python compiled of it on first use.
            shutil.rmtree(os.path.join(os.path.dirname(step.target), "__pycache__"), ignore_errors=True)
        self.journal.restore_file(step.target)


def build_log() -> str:
    """The last lines of the newest DKMS build log of the driver, empty where there is none."""
    logs = sorted(glob.glob("/var/lib/dkms/nvidia*/*/build/make.log"))
    text = (read_bytes(logs[-1]) or b"").decode("utf-8", "replace") if logs else ""
    lines = [line for line in text.splitlines() if line.strip()][-_LOG_LINES:]
    return f"{logs[-1]}: {' / '.join(lines)}" if lines else ""


def enrolled(run: Runner, keys: t.Sequence[str]) -> bool:
    """Whether one of the keys that DKMS may sign with is enrolled (mokutil(1))."""
    return any(read_bytes(key) is not None
               and "already enrolled" in run(["mokutil", "--test-key", key], check=False).stdout for key in keys)
