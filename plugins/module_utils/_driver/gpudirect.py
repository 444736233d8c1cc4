# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""GPUDirect Storage (nvidia-fs), GDRCopy (gdrdrv) and GPUDirect RDMA (nvidia-peermem): builds and loads modules.

The delivery installs their packages together with the driver. Sources: nvidia-fs 2.17.5 ChangeLog (since then only open
modules, on x86_64), NVIDIA/gdrcopy (packages and module), NVIDIA/gpu-driver-container (nvidia-peermem last, after
ib_core).
"""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.build import dkms_rebuild
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.modules import LOAD
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.parts import DesiredDriver, Part, Phased
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.spec import Spec
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.state import DriverState
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError, InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.dkms import read_dkms
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step

BUILD_EXTRA = "build module of GPUDirect"
# The modules in load order: (module, name in DKMS).
_DKMS = {"nvidia_fs": "nvidia-fs", "gdrdrv": "gdrdrv"}
# The kind of journal entries that contain the driver version for which a module was built.
_KIND = "extra"
_ORDER = ("nvidia_drm", "nvidia_fs", "gdrdrv", "nvidia_peermem", "nv_peer_mem")
# The required companions, each with the option that makes it unnecessary.
NEEDED = {"fabric_manager": "fabric to none", "nvlsm": "fabric to none", "gds": "gds to false",
          "gdrcopy": "gdrcopy to false"}


def wanted_extras(spec: Spec, fabric: str) -> list[str]:
    """The kinds of companions that are required, see L(source.Source.companions). fabric: as in C(DesiredDriver)."""
    found = {"nvswitch": ["fabric_manager", "nscq"],
             "nvlink5": ["fabric_manager", "nscq", "nvlsm", "nvsdm", "imex"],
             "nvlink5_rack": ["imex"]}.get("none" if spec.fabric == "none" else fabric, [])
    return found + (["gds"] if spec.gds else []) + (["gdrcopy"] if spec.gdrcopy else [])


def wanted_tools(spec: Spec, fabric: str) -> list[str]:
    """Packages of the distribution that companions need: NVLSM runs tools of infiniband-diags."""
    return ["infiniband-diags"] if "nvlsm" in wanted_extras(spec, fabric) else []


def wanted_modules(spec: Spec) -> list[str]:
    """The kernel modules that the options request, in load order."""
    requested = {"nvidia_fs": spec.gds, "gdrdrv": spec.gdrcopy, "nvidia_peermem": spec.peermem}
    return [module for module in _ORDER if requested.get(module)]


class GpuDirect(Part):
    """Builds and loads the requested modules. After a driver reload, also loads modules that were loaded before."""

    def plan(self, now: DriverState, desired: DesiredDriver) -> list[Phased]:
        """See L(Part)."""
        spec = self.host.spec
        if spec.gds and desired.flavour != "open":
            raise InputError("GPUDirect Storage needs open kernel modules.", "Set kernel_module_type to open, or gds "
                             "to false.", path="gds", value=True)
        if spec.peermem and not self._has_rdma(now):
            raise HostError("peermem needs the module ib_core, which this kernel does not have.",
                            "Install an RDMA stack (DOCA, or that of the distribution), or set peermem to false.",
                            kernel=now.kernel)
        wanted = wanted_modules(spec)
        if desired.source == "runfile":
            self._check_known(wanted, now)
        steps: list[Phased] = []
        for module in wanted:
            name = _DKMS.get(module)
            if name and (self._built_for(name) != desired.version or not self._built(name, now)):
                steps.append(("build", Step(BUILD_EXTRA, f"{name} for kernel {now.kernel}",
                                            f"it must match the driver {desired.version}", data={
                                                "name": name, "kernel": now.kernel, "arch": now.arch,
                                                "driver": desired.version})))
        for module in _ORDER:
            loaded = module in now.modules
            if desired.reload and loaded or module in wanted and not loaded:
                steps.append(("load", Step(LOAD, module.replace("_", "-"), "reload" if loaded else "it is not loaded")))
        return steps

    def _check_known(self, wanted: t.Sequence[str], now: DriverState) -> None:
        known = {entry["name"] for entry in read_dkms(self.host.root, now.arch)}
        missing = [name for module, name in _DKMS.items() if module in wanted and name not in known]
        if missing:
            names = " and ".join(missing)
            raise HostError(f"The .run file does not contain {names}.",
                            f"Register {names} with DKMS yourself, or use another source.", modules=missing)

    def _has_rdma(self, now: DriverState) -> bool:
        root = self.host.root
        return root.exists("/sys/module/ib_core") or \
            bool(re.search(r"/ib_core\.ko", root.text(f"/lib/modules/{now.kernel}/modules.dep") or ""))

    def _built_for(self, name: str) -> str | None:
        """The driver version for which a module was last built."""
        entry = self.host.journal.get(_KIND, name)
        return entry["after"] if entry else None

    def _built(self, name: str, now: DriverState) -> bool:
        return any((entry["name"], entry["kernel"], entry["state"]) == (name, now.kernel, "installed")
                   for entry in read_dkms(self.host.root, now.arch))

    def execute(self, step: Step) -> bool:
        """See L(Part)."""
        if step.action != BUILD_EXTRA:
            return False
        name, arch, journal = step.data["name"], step.data["arch"], self.host.journal
        version = next((entry["version"] for entry in read_dkms(self.host.root, arch) if entry["name"] == name), None)
        if version is None:
            raise HostError(f"{name} is not registered with DKMS.", f"Reinstall the package that contains {name}.")
        # The script of the package may have built the module for the former driver.
        dkms_rebuild(self.host.run, name, version, step.data["kernel"], arch)
        journal.keep(_KIND, name, None)
        journal.note(_KIND, name, step.data["driver"])
        return True

    def disagreements(self, now: DriverState, desired: DesiredDriver) -> list[str]:
        """See L(Part)."""
        return [f"{module} is not loaded" for module in wanted_modules(self.host.spec)
                if module not in now.modules and not desired.image]
