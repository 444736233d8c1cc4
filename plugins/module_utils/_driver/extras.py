# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""GPUDirect: Storage (nvidia-fs), GDRCopy (gdrdrv) and RDMA (nvidia-peermem).

Sources: nvidia-fs 2.17.5 ChangeLog (open modules only from then on, x86_64), NVIDIA/gdrcopy (packages and module),
NVIDIA/gpu-driver-container (nvidia-peermem last, after ib_core). The packages come with the driver's.
"""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.build import LIMIT
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.modules import LOAD
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.parts import Aim, Part, Phased
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.spec import Spec
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.state import Situation
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import HostError, InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.dkms import read_dkms
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step

BUILD_EXTRA = "build module of GPUDirect"
# In the order of loading: module, its name in DKMS.
_DKMS = {"nvidia_fs": "nvidia-fs", "gdrdrv": "gdrdrv"}
# The kind of journal entries that say beside which driver a module was built.
_KIND = "extra"
_ORDER = ("nvidia_drm", "nvidia_fs", "gdrdrv", "nvidia_peermem", "nv_peer_mem")
# What cannot be left out where it is wanted, and how not to want it.
NEEDED = {"fabric_manager": "fabric to none", "nvlsm": "fabric to none", "gds": "gds to false",
          "gdrcopy": "gdrcopy to false"}


def wanted_extras(spec: Spec, fabric: str) -> list[str]:
    """What has to come with the driver, by the words of L(source.Source.companions). fabric: of C(Aim)."""
    found = {"nvswitch": ["fabric_manager", "nscq"],
             "nvlink5": ["fabric_manager", "nscq", "nvlsm", "nvsdm", "imex"],
             "nvlink5_rack": ["imex"]}.get("none" if spec.fabric == "none" else fabric, [])
    return found + (["gds"] if spec.gds else []) + (["gdrcopy"] if spec.gdrcopy else [])


def wanted_tools(spec: Spec, fabric: str) -> list[str]:
    """Packages of the distribution that go with these: what NVLSM runs."""
    return ["infiniband-diags"] if "nvlsm" in wanted_extras(spec, fabric) else []


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
        wanted = wanted_modules(spec)
        if aim.source == "runfile":
            self._check_known(wanted, now)
        steps: list[Phased] = []
        for module in wanted:
            name = _DKMS.get(module)
            if name and (self._beside(name) != aim.version or not self._built(name, now)):
                steps.append(("build", Step(BUILD_EXTRA, f"{name} for kernel {now.kernel}",
                                            f"it takes symbols of the driver {aim.version}", data={
                                                "name": name, "kernel": now.kernel, "arch": now.arch,
                                                "beside": aim.version})))
        for module in _ORDER:
            there = module in now.modules
            if aim.reload and there or module in wanted and not there:
                steps.append(("load", Step(LOAD, module.replace("_", "-"), "reload" if there else "it is asked for")))
        return steps

    def _check_known(self, wanted: t.Sequence[str], now: Situation) -> None:
        known = {entry["name"] for entry in read_dkms(self.host.root, now.arch)}
        missing = [name for module, name in _DKMS.items() if module in wanted and name not in known]
        if missing:
            raise HostError(f"The .run file does not bring {' and '.join(missing)}.",
                            "Install it for DKMS yourself, or use another source.", modules=missing)

    def _has_rdma(self, now: Situation) -> bool:
        root = self.host.root
        return root.exists("/sys/module/ib_core") or \
            bool(re.search(r"/ib_core\.ko", root.text(f"/lib/modules/{now.kernel}/modules.dep") or ""))

    def _beside(self, name: str) -> str | None:
        """The driver beside which a module was built last."""
        entry = self.host.journal.get(_KIND, name)
        return entry["after"] if entry else None

    def _built(self, name: str, now: Situation) -> bool:
        return any((entry["name"], entry["kernel"], entry["state"]) == (name, now.kernel, "installed")
                   for entry in read_dkms(self.host.root, now.arch))

    def execute(self, step: Step) -> bool:
        """See L(Part)."""
        if step.action != BUILD_EXTRA:
            return False
        name, arch, journal = step.data["name"], step.data["arch"], self.host.journal
        version = next((entry["version"] for entry in read_dkms(self.host.root, arch) if entry["name"] == name), None)
        if version is None:
            raise HostError(f"DKMS does not know {name}.", "Look at the configuration of its package.")
        # What a package's script has built beside the former driver, or before this one was there, is built anew.
        for verb in ("build", "install"):
            self.host.run(["dkms", verb, "--force", "-m", name, "-v", version, "-k", step.data["kernel"], "-a", arch],
                          timeout=LIMIT, hint=f"Look at /var/lib/dkms/{name}.")
        journal.keep(_KIND, name, None)
        journal.note(_KIND, name, step.data["beside"])
        return True

    def disagreements(self, now: Situation, aim: Aim) -> list[str]:
        """See L(Part)."""
        return [f"{module} is not loaded" for module in wanted_modules(self.host.spec) if module not in now.modules]
