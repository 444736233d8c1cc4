# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The current state of the driver as options of the module, for C(state: gathered). Changes nothing."""

from __future__ import annotations

import ipaddress
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.assignments import values
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.cuda_rpm import NAME as RPM_NAME
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.fabric import NODES
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.fabric_settings import SETTINGS_FILE as FABRIC_FILE
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.kernel_hold import is_held
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.licence import SETTINGS_FILE
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.module_parameters import OPTIONS_FILE, written
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.services import wanted_units
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.sources import SOURCES, all_sources
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.spec import Spec
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.state import DriverState
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.driver import flavour, source
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.installed_packages import read_packages
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.package_names import driver_packages
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._packages.configured import read_repository
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Runner
from ansible_collections.gpuops.nvidia.plugins.module_utils._units import GRIDD, IMEX, PERSISTENCED


class Gathered(t.NamedTuple):
    """options: as in C(gathered) of the module. packages: C({name: version}). source: as the fact of gpu_info."""

    options: t.Dict[str, t.Any]
    packages: t.Dict[str, str]
    source: t.Optional[str]


def gather(root: Root, run: Runner, now: DriverState, fabric_names: t.Container[str] = (),
           runfile_installation: str = "auto") -> Gathered:
    """The current state. The version is that of the libraries, which the next boot loads. fabric_names: the settings of
    the fabric manager that this collection has set. runfile_installation: the installation of a driver that this
    collection has installed from a .run file."""
    own = driver_packages(read_packages(root, run, now.family))
    packages = {name: package.version for name, package in own.items()}
    version = now.library or now.loaded
    known = source(root, own, version)
    installation = runfile_installation
    if known == "distribution":  # its sources differ in the packages of the kernel modules
        known = next((one.name for one in all_sources(now.os_id, now.os_version, now.arch)
                      if one.name in ("distribution", "precompiled") and one.installed(packages)), known)
    if known in SOURCES:
        installation = next((one.installation(packages) for one in all_sources(now.os_id, now.os_version, now.arch)
                             if one.name == known), "auto")
    if version is None:
        return Gathered({"state": "absent"}, packages, known)
    missing = [unit for unit in wanted_units(Spec(persistenced=False), now.fabric)
               if now.services[unit].state == "absent"]
    options: t.Dict[str, t.Any] = {
        "state": "present", "version": version,
        "kernel_module_type": now.flavour or flavour(root, None, own) or "auto",
        "source": known if known in (*SOURCES, "runfile") else "auto",
        "installation": installation if known in (*SOURCES, "runfile") else "auto",
        "persistenced": now.services[PERSISTENCED].state == "active",
        "fabric": "none" if missing else "auto",
        "imex_nodes": _imex_nodes(root) if now.services[IMEX].state == "active" else [],
        "fabric_manager_settings": {name: value for name, value in values(root.text(FABRIC_FILE) or "").items()
                                    if name in fabric_names},
        "peermem": "nvidia_peermem" in now.modules, "gds": "nvidia_fs" in now.modules,
        "gdrcopy": "gdrdrv" in now.modules, "hold_kernel": is_held(root, now), "module_parameters": {}}
    for (module, name), value in written(root.text(OPTIONS_FILE) or "").items():
        options["module_parameters"].setdefault(module, {})[name] = value
    repository = read_repository(root, "cuda", RPM_NAME)
    if repository:
        options["repository"] = repository
    settings = values(root.text(SETTINGS_FILE) or "") if now.services[GRIDD].state != "absent" else {}
    if settings:
        feature_type = settings.get("FeatureType", "")
        options["licence"] = {"settings": settings}
        if feature_type.isdecimal():
            del settings["FeatureType"]
            options["licence"]["feature_type"] = int(feature_type)
    return Gathered(options, packages, known)


def _imex_nodes(root: Root) -> list[str]:
    """The addresses in the file of IMEX, which has comments, too."""
    found = []
    for line in (root.text(NODES) or "").splitlines():
        try:
            found.append(str(ipaddress.ip_address(line.strip())))
        except ValueError:
            continue
    return found
