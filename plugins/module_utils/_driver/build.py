# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Kernel modules built on the host by DKMS, and the truth: scripts of packages hide a failed build."""

from __future__ import annotations

import glob
import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.parts import Aim, Part, Phased
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.state import Situation, modinfo, read_dkms
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._files import read_bytes
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Completed, Runner

BUILD = "build modules"
# Seconds: one DKMS build of all modules on a slow machine.
LIMIT = 3600
_LOG_LINES = 15
# A folder of sources below /usr/src: the names are those of L(state.read_dkms).
_SOURCES = re.compile(r"(nvidia(?:-srv|-current)?(?:-open)?)-(\d.*)\Z")


class Build(Part):
    """The modules for the running kernel."""

    def plan(self, now: Situation, aim: Aim) -> list[Phased]:
        """See L(Part)."""
        if not aim.dkms or not aim.delivered and aim.version in now.built:
            return []
        if not aim.delivered:  # else its packages register it
            self._name(aim.version, now.registered)
        return [("build", Step(BUILD, f"{aim.version} for kernel {now.kernel}", "package scripts hide a skipped build",
                               data={"version": aim.version, "kernel": now.kernel, "arch": now.arch,
                                     "flavour": aim.flavour}))]

    def execute(self, step: Step) -> bool:
        """See L(Part)."""
        if step.action != BUILD:
            return False
        version, kernel, arch = step.data["version"], step.data["kernel"], step.data["arch"]
        built, registered = read_dkms(self.host.root, kernel, arch)
        if version in built and self._is_of(step.data["flavour"], kernel):
            return True
        if version in built:
            # DKMS keeps what it has built of a version, and packages of both flavours have the same one.
            self.host.run(["dkms", "remove", "-m", registered[version], "-v", version, "--all"], timeout=LIMIT)
        name = self._name(version, registered)
        done = dkms_install(self.host.run, name, version, kernel, arch)
        if version not in read_dkms(self.host.root, kernel, arch)[0]:
            text = (done.stdout + done.stderr).strip().splitlines()[-_LOG_LINES:]
            raise HostError(f"DKMS did not build {name}/{version} for kernel {kernel} (exit code "
                            f"{done.rc}): {build_log() or ' / '.join(text)}",
                            "Correct what the log says (often: linux-headers for this kernel), then run again.",
                            rc=done.rc, log=text)
        return True

    def _name(self, version: str, registered: t.Mapping[str, str]) -> str:
        """The name of the driver in DKMS: the registered one, or that of the sources by which DKMS registers it anew.

        Raises HostError if it is not registered and has no sources.
        """
        sources = [found.group(1) for found in map(_SOURCES.match, self.host.root.names("/usr/src")) if found
                   and found.group(2) == version and self.host.root.exists(f"/usr/src/{found.group()}/dkms.conf")]
        if version not in registered and not sources:
            raise HostError(f"DKMS does not know the driver {version}: {sorted(registered) or 'it knows none'}.",
                            "Install its dkms package again: apt-get install --reinstall, or dnf reinstall.")
        return registered[version] if version in registered else sources[0]

    def _is_of(self, flavour: str, kernel: str) -> bool:
        return ("MIT" in modinfo(self.host.run, "license", kernel)) == (flavour == "open")

    def disagreements(self, now: Situation, aim: Aim) -> list[str]:
        """See L(Part)."""
        if aim.dkms and aim.version not in now.built:
            return [f"DKMS has not built {aim.version} for kernel {now.kernel}"]
        return []


def dkms_install(run: Runner, name: str, version: str, kernel: str, arch: str) -> Completed:
    """Builds modules and installs them, whatever stands there; the caller looks whether it has succeeded."""
    return run(["dkms", "install", "-m", name, "-v", version, "--force", "-k", kernel, "-a", arch], timeout=LIMIT,
               check=False)


def build_log() -> str:
    """The last lines of the newest DKMS build log of the driver, empty where there is none."""
    logs = sorted(glob.glob("/var/lib/dkms/nvidia*/*/build/make.log"))
    text = (read_bytes(logs[-1]) or b"").decode("utf-8", "replace") if logs else ""
    lines = [line for line in text.splitlines() if line.strip()][-_LOG_LINES:]
    return f"{logs[-1]}: {' / '.join(lines)}" if lines else ""
