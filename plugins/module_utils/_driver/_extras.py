# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""GPUDirect: Storage (nvidia-fs), GDRCopy (gdrdrv) and RDMA (nvidia-peermem). PRIVATE to the collection.

Sources: nvidia-fs 2.17.5 ChangeLog (open modules only from then on, x86_64), NVIDIA/gdrcopy (packages and module),
NVIDIA/gpu-driver-container (nvidia-peermem last, after ib_core). The packages come with the driver's.
"""

from __future__ import annotations

import re

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver._build import LIMIT
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver._modules import LOAD
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver._parts import Aim, Part, Phased
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver._spec import Spec
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver._state import Situation
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError, InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts._dkms import read_dkms
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step

BUILD_EXTRA = "build module of GPUDirect"
# In the order of loading: module, its name in DKMS.
_DKMS = {"nvidia_fs": "nvidia-fs", "gdrdrv": "gdrdrv"}
_ORDER = ("nvidia_drm", "nvidia_fs", "gdrdrv", "nvidia_peermem")


def wanted_extras(spec: Spec, fabric: str) -> list[str]:
    """What has to come with the driver, by the words of L(_sources.Source.companions). fabric: of C(Aim)."""
    found = {"nvswitch": ["fabric_manager", "nscq"],
             "nvlink5": ["fabric_manager", "nscq", "nvlsm", "nvsdm", "imex"],
             "nvlink5_rack": ["imex"]}.get("none" if spec.fabric == "none" else fabric, [])
    return found + (["gds"] if spec.gds else []) + (["gdrcopy"] if spec.gdrcopy else [])


def wanted_modules(spec: Spec) -> list[str]:
    """The kernel modules that the options ask for."""
    asked = {"nvidia_fs": spec.gds, "gdrdrv": spec.gdrcopy, "nvidia_peermem": spec.peermem}
    return [module for module in _ORDER if asked.get(module)]


class Extras(Part):
    """Their modules are built and loaded; those that somebody else had loaded come back after a reload."""

    def plan(self, now: Situation, aim: Aim) -> list[Phased]:
        """See L(Part)."""
        spec = self.host.spec
        if spec.gds and aim.flavour != "open":
            raise InputError("GPUDirect Storage needs open kernel modules.", "Set kernel_module_type to open, or gds "
                             "to false.", path="gds", value=True)
        if spec.peermem and not self._has_rdma(now):
            raise HostError("peermem is asked for, and this kernel has no ib_core to join.",
                            "Install the RDMA stack (DOCA or the distribution's), or set peermem to false.",
                            kernel=now.kernel)
        steps: list[Phased] = []
        wanted = wanted_modules(spec)
        for module in wanted:
            if module in _DKMS and (aim.delivered or not self._built(_DKMS[module], now)):
                steps.append(("build", Step(BUILD_EXTRA, f"{_DKMS[module]} for kernel {now.kernel}",
                                            "package scripts hide a failed build",
                                            data={"name": _DKMS[module], "kernel": now.kernel, "arch": now.arch})))
        for module in _ORDER:
            there = module in now.modules
            if aim.reload and there or module in wanted and not there:
                steps.append(("load", Step(LOAD, module.replace("_", "-"), "reload" if there else "it is asked for")))
        return steps

    def _has_rdma(self, now: Situation) -> bool:
        root = self.host.root
        return root.exists("/sys/module/ib_core") or \
            bool(re.search(r"/ib_core\.ko", root.text(f"/lib/modules/{now.kernel}/modules.dep") or ""))

    def _built(self, name: str, now: Situation) -> bool:
        return any((entry["name"], entry["kernel"], entry["state"]) == (name, now.kernel, "installed")
                   for entry in read_dkms(self.host.root, now.arch))

    def execute(self, step: Step) -> bool:
        """See L(Part)."""
        if step.action != BUILD_EXTRA:
            return False
        name, kernel, arch = (step.data[key] for key in ("name", "kernel", "arch"))
        known = [entry for entry in read_dkms(self.host.root, arch) if entry["name"] == name]
        if not known:
            raise HostError(f"DKMS does not know {name}.", "Look at the configuration of its package.")
        if not any((entry["kernel"], entry["state"]) == (kernel, "installed") for entry in known):
            self.host.run(["dkms", "install", "-m", name, "-v", known[-1]["version"], "-k", kernel, "-a", arch],
                          timeout=LIMIT, hint=f"Look at /var/lib/dkms/{name}.")
        return True

    def disagreements(self, now: Situation, aim: Aim) -> list[str]:
        """See L(Part)."""
        return [f"{module} is not loaded" for module in wanted_modules(self.host.spec) if module not in now.modules]
