# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Builds kernel modules with DKMS and checks them, because the scripts of packages do not report a failed build."""

from __future__ import annotations

import glob
import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.parts import DesiredDriver, Part, Phased
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.state import DriverState, module_flavour, read_dkms
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._files import read_bytes
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Completed, Runner

BUILD = "build modules"
# Maximum seconds for a DKMS build of all modules on a slow machine.
LIMIT = 3600
_LOG_LINES = 15
# A folder in /usr/src, with the groups that L(state.read_dkms) also uses.
_SOURCES = re.compile(r"(nvidia(?:-srv|-current)?(?:-open)?)-(\d.*)\Z")


class Build(Part):
    """Builds the modules for the running kernel."""

    def plan(self, now: DriverState, desired: DesiredDriver) -> list[Phased]:
        """See L(Part)."""
        if not desired.dkms or not desired.delivered and desired.version in now.built:
            return []
        if not desired.delivered:  # otherwise the packages register the modules with DKMS
            self._name(desired.version, now.registered)
        return [("build", Step(BUILD, f"{desired.version} for kernel {now.kernel}",
                               "package scripts report no error if DKMS skips the build",
                               data={"version": desired.version, "kernel": now.kernel, "arch": now.arch,
                                     "flavour": desired.flavour}))]

    def execute(self, step: Step) -> bool:
        """See L(Part)."""
        if step.action != BUILD:
            return False
        version, kernel, arch = step.data["version"], step.data["kernel"], step.data["arch"]
        built, registered = read_dkms(self.host.root, kernel, arch)
        if version in built and module_flavour(self.host.run, kernel) == step.data["flavour"]:
            return True
        if version in built:
            # DKMS keeps modules that it has built for this version, but packages of both module types have the same
            # version.
            self.host.run(["dkms", "remove", "-m", registered[version], "-v", version, "--all"], timeout=LIMIT)
        name = self._name(version, registered)
        done = dkms_install(self.host.run, name, version, kernel, arch)
        if version not in read_dkms(self.host.root, kernel, arch)[0]:
            text = (done.stdout + done.stderr).strip().splitlines()[-_LOG_LINES:]
            raise HostError(f"DKMS did not build {name}/{version} for kernel {kernel} (exit code "
                            f"{done.rc}): {build_log() or ' / '.join(text)}",
                            "Correct the error in the log (often, kernel headers are missing), then run again.",
                            rc=done.rc, log=text)
        return True

    def _name(self, version: str, registered: t.Mapping[str, str]) -> str:
        """The name under which the driver is registered with DKMS. If it is not registered, the name of its sources in
        /usr/src, from which it can be registered again.

        Raises HostError if the driver is not registered and has no sources.
        """
        sources = [found.group(1) for found in map(_SOURCES.match, self.host.root.names("/usr/src")) if found
                   and found.group(2) == version and self.host.root.exists(f"/usr/src/{found.group()}/dkms.conf")]
        if version not in registered and not sources:
            raise HostError(f"Driver {version} is not registered with DKMS and has no sources in /usr/src (registered: "
                            f"{', '.join(sorted(registered)) or 'no driver'}).",
                            "Reinstall its dkms package: apt-get install --reinstall, or dnf reinstall.")
        return registered[version] if version in registered else sources[0]

    def disagreements(self, now: DriverState, desired: DesiredDriver) -> list[str]:
        """See L(Part)."""
        if desired.dkms and desired.version not in now.built:
            return [f"DKMS has not built {desired.version} for kernel {now.kernel}"]
        return []


def dkms_install(run: Runner, name: str, version: str, kernel: str, arch: str) -> Completed:
    """Builds modules with DKMS and installs them over existing ones. The caller must check the result."""
    return run(["dkms", "install", "-m", name, "-v", version, "--force", "-k", kernel, "-a", arch], timeout=LIMIT,
               check=False)


def dkms_rebuild(run: Runner, name: str, version: str, kernel: str, arch: str) -> None:
    """Builds and installs modules again although DKMS has already built them. Raises CommandError."""
    for verb in ("build", "install"):
        run(["dkms", verb, "--force", "-m", name, "-v", version, "-k", kernel, "-a", arch], timeout=LIMIT,
            hint=f"Check the log in /var/lib/dkms/{name}.")


def build_log() -> str:
    """The last lines of the most recent DKMS build log of the driver, empty if there is no log."""
    logs = sorted(glob.glob("/var/lib/dkms/nvidia*/*/build/make.log"))
    text = (read_bytes(logs[-1]) or b"").decode("utf-8", "replace") if logs else ""
    lines = [line for line in text.splitlines() if line.strip()][-_LOG_LINES:]
    return f"{logs[-1]}: {' / '.join(lines)}" if lines else ""
