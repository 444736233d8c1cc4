# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver: its plan on a host, with its packages and companions, and whether it is there. Pure. PRIVATE.

Its containers are planned in L(driver_containers). What is wrong with a GPU is derived from what NVML returns for it
(nvml.h, nvmlReturn_t). A run never resets a GPU or reboots a host because of such a fault, at no level of
gpu_disruption, as every run would reset a broken GPU again.
"""

from __future__ import annotations

import functools
import typing as t
from dataclasses import replace

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.services import wanted_units
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.spec import Spec
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.state import LOAD_ORDER
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.package_names import is_driver
from ansible_collections.gpuops.nvidia.plugins.module_utils._units import AT_BOOT, PERSISTENCED
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._components import component, driver_containers
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import releases
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.releases import branch_of, version_key
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._drivers import packages
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._drivers.candidates import Candidate, Version
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._drivers.choose_driver import (
    EXTRAS,
    Asked,
    choose,
    extras,
    version_of,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._drivers.constraints import Wish
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._drivers.situation import Situation, situation
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.defaults import look
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.formats import Policy

# A layout without MIG.
_WHOLE = "all-disabled"


def host_plan(host: component.Host) -> component.Plan:
    """With the placement C(none) somebody else looks after the driver: it is used, verified, never touched."""
    asked, variables = host.asked, host.variables
    here = situation(host.facts)
    if host.place == "none":
        host.notes += _not_beside(asked, variables)
        return _adopted(here, None, host.why)
    if variables.get("driver_state") == "adopted":
        host.notes += _not_beside(asked, variables)
        # What it must be is only what this host's own variables say.
        named = variables.get("driver_version") or variables.get("driver_branch")
        return _adopted(here, asked.wish(variables).version if named else None, "driver_state of this host is adopted")
    wish = asked.wish(variables)
    selected = variables.get("mig_manager_selected")
    if selected and selected != _WHOLE and any(gpu.coherent for gpu in here.gpus):
        wish = replace(wish, mig=str(selected))
    choice = choose(here, wish, asked.release)
    driver = choice.driver
    source, version = "precompiled" if driver.signed else driver.source, version_of(driver, wish).text
    following = host.switched("driver_next_kernel", True)
    persistenced = host.switched("driver_persistenced", True)
    host.notes += [*_notes(here, driver, source, wish.cuda), *_by_hand(asked.policy, variables)]
    return {"placement": host.place, "state": variables.get("driver_state") or "present", "version": version,
            "branch": driver.version.branch, "kernel_module_type": driver.flavour, "source": source,
            **_packages(here, host.facts, driver, source, wish, following, persistenced), "precompiled": driver.signed,
            "fabric": {**_fabric(here if wish.fabric else replace(here, fabric=None), version),
                       "imex_nodes": list(variables.get("driver_imex_nodes") or ())},
            "persistenced": persistenced, "peermem": wish.peermem, "gds": wish.gds, "gdrcopy": wish.gdrcopy,
            "next_kernel": following, "licence": bool(variables.get("driver_licence_token")),
            "module_parameters": dict(variables.get("driver_module_parameters") or asked.policy.module_parameters
                                      or {}),
            "cuda": _cuda(driver), "secure_boot": _secure_boot(here, driver, wish),
            "because": _because(here, driver, wish, choice.because)}


def _because(here: Situation, driver: Candidate, wish: Wish, because: t.Sequence[str]) -> list[str]:
    why = list(because)
    if driver.signed and here.secure_boot == "signed" and not wish.precompiled:
        why.append("Secure Boot is on and no key is enrolled: modules that the distribution signs are taken")
    if version_of(driver, wish) != driver.version:
        why.append(f"of branch {driver.version.branch} the distribution's archive has a version of its own")
    return why


def _adopted(here: Situation, version: Version | None, why: str) -> component.Plan:
    return {"placement": "none", "state": "adopted", "version": version.text if version else None,
            "branch": version.branch if version else None, "kernel_module_type": None, "source": None, "packages": [],
            "repository": None, "kernel_packages": [], "precompiled": False, "fabric": _fabric(here, None),
            "persistenced": False, **dict.fromkeys(EXTRAS, False), "next_kernel": False, "licence": False,
            "module_parameters": {}, "cuda": None, "secure_boot": None,
            "because": [f"{why}: the installed driver is adopted as it is"]}


# What a policy keeps in objects of the cluster, which no host can read: the path of its name, the kind, what to do on
# hosts instead, and the variable with which it is done.
_BY_HAND = (
    ("kernelModuleConfig.name", "ConfigMap", "set driver_module_parameters", "driver_module_parameters"),
    ("licensingConfig.secretName", "Secret", "set driver_licence_token, from a vault", "driver_licence_token"),
    ("licensingConfig.configMapName", "ConfigMap", "set driver_licence_token, from a vault", "driver_licence_token"),
    ("repoConfig.configMapName", "ConfigMap", "name a mirror in driver_repository_url", "driver_repository_url"),
    ("certConfig.name", "ConfigMap", "add the certificates to those that the host trusts (update-ca-certificates, "
     "update-ca-trust)", ""),
    ("virtualTopology.config", "ConfigMap", "write /etc/nvidia/nvidia-topologyd.conf yourself", ""),
    ("secretEnv", "Secret", "give the package manager its proxies and credentials in its own files", ""),
)


def _by_hand(policy: Policy, variables: component.HostVars) -> t.Iterator[str]:
    section = policy.get("driver")
    for key, kind, todo, variable in _BY_HAND:
        name = look(section, key)
        carried = key == "kernelModuleConfig.name" and policy.module_parameters is not None
        if name and not carried and not variables.get(variable):
            yield f"driver.{key} names the {kind} {name}, which is in the cluster and not on hosts; {todo}."


def _not_beside(asked: Asked, variables: component.HostVars) -> list[str]:
    """Kernel modules that are asked for beside a driver that is not ours."""
    named = [EXTRAS[name] for name, on in extras(asked.policy, variables).items() if on]
    return [f"{', '.join(named)}: asked for, and not delivered beside a driver that is not ours."] if named else []


def _secure_boot(here: Situation, driver: Candidate, wish: Wish) -> str | None:
    """What makes the kernel load the modules: who signs them, C(signed), or an enrolled key, C(mok)."""
    if not here.secure_boot or driver.signed:
        return "signed" if here.secure_boot else None
    return "mok" if here.secure_boot == "mok" or wish.own_key else None


def _cuda(driver: Candidate) -> str | None:
    known = releases.branch(driver.version.branch)
    return known.cuda if known else None


def _packages(here: Situation, facts: component.Facts, driver: Candidate, source: str, wish: Wish, following: bool,
              persistenced: bool) -> component.Plan:
    """C({packages, repository, kernel_packages}), as what installs them will ask for them."""
    if here.os is None:
        return {"packages": [], "repository": None, "kernel_packages": []}
    kernel, family, arch = facts["host"].get("kernel") or {}, facts["host"]["os"].get("family"), here.arch or "x86_64"
    branch, kernels = driver.version.branch, (kernel.get("release"), kernel.get("newest_installed"))
    beside = Spec(persistenced=persistenced, fabric="auto" if wish.fabric else "none", gds=wish.gds,
                  gdrcopy=wish.gdrcopy)
    named = packages.wanted(here.os, arch, source, driver.version.named, driver.flavour, beside,
                            here.fabric or "none", tuple(dict.fromkeys(one for one in kernels if one)))
    return {"packages": list(named),
            "repository": packages.repository(here.os, arch, source, branch, driver.flavour),
            "kernel_packages": [] if driver.signed else packages.kernel_packages(kernel, family, here.os, following)}


def _fabric(here: Situation, version: str | None) -> component.Plan:
    """C({manager, imex, version}): on HGX boards the host runs the manager, in racks (NVL72) the switches do."""
    manager = {"nvswitch": "fabricmanager", "nvlink5": "fabricmanager+nvlsm"}.get(here.fabric or "")
    return {"manager": manager, "imex": here.fabric == "nvlink5_rack", "version": version if manager else None}


_installs = functools.lru_cache(maxsize=256)(packages.installs)


def _notes(here: Situation, driver: Candidate, source: str, cuda: str | None) -> t.Iterator[str]:
    branch = releases.branch(driver.version.branch)
    if branch is None:
        yield f"driver branch {driver.version.branch} is not known to this collection; what it drives is not checked."
    elif branch.end_of_life == "ended":
        yield f"driver branch {branch.number} gets no more fixes."
    for gpu in here.gpus:
        if gpu.open_modules is None:
            yield f"{gpu.name} is not known; what it needs is not checked."
    if here.secure_boot == "unknown":
        yield "Secure Boot is on: kernel modules built here load only if their key is enrolled (mokutil)."
    if cuda and branch and branch.cuda and version_key(cuda) > version_key(branch.cuda):
        yield (f"CUDA {cuda} runs on driver {driver.version} ({branch.cuda}) by minor version compatibility: what "
               "needs a newer driver fails.")
    if here.os and not _installs(here.os, here.arch or "x86_64", source):
        yield (f"this version of the collection does not install drivers from {source} on {' '.join(here.os)}; "
               "what it would take is in the plan.")


# Kernel modules that a plan may ask for beside the driver's own.
_BESIDE = {"peermem": "nvidia_peermem", "gds": "nvidia_fs", "gdrcopy": "gdrdrv"}
_UNMASK = "site.yml stops there: systemctl unmask it, or change the variable that asks for it."


def check(want: component.Expected, seen: component.Seen) -> component.Result:
    """Also of an adopted one, which must work, too."""
    facts = seen.facts
    driver = facts["driver"]
    loaded, library = driver["loaded"], driver["library"]
    faults: list[str] = []
    hint = "Run site.yml; its plan names the steps."
    if want.get("placement") == "none":
        hint = "driver.enabled is false: install a driver yourself, or enable it."
    if not loaded and not driver["packages"] and not library:
        return component.Result("absent", "no driver is installed", hint)
    version, branch = want.get("version"), want.get("branch")
    if not loaded:
        faults.append("no kernel module is loaded")
        hint = "Look at dmesg and dkms status on the host; then run site.yml."
    elif version and loaded != version:
        faults.append(f"{loaded} is loaded, {version} is wanted")
    elif branch and branch_of(loaded) != int(branch):
        faults.append(f"{loaded} is loaded, branch {branch} is wanted")
    elif want.get("kernel_module_type") in ("open", "proprietary") and driver["flavour"] not in (
            None, want["kernel_module_type"]):
        faults.append(f"{driver['flavour']} modules are loaded, {want['kernel_module_type']} are wanted")
    missing = _missing_modules(want, facts)
    if loaded and missing:
        faults.append(f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not loaded")
    if loaded and library and library != loaded:
        faults.append(f"libraries are {library}, the module is {loaded}")
        hint = "The module is from before an upgrade: reload it (gpu_disruption: idle) or reboot."
    if want.get("placement") == "host":
        faults += component.lost_files(driver) + [f"{path}: {fault}" for path, fault in (driver["nodes"] or {}).items()]
    broken = [gpu for gpu in facts["gpus"] if gpu.get("error")]
    if broken and not faults:
        hint = f"{fault_of(broken[0])[1]}."
    faults += _nvml_faults(facts)
    beside = [*_missing_packages(want, facts), *_service_faults(want, facts)]
    if beside:
        masked = any("is masked" in fault for fault in beside)
        return component.Result("failed", "; ".join([*faults, *beside]), _UNMASK if masked else hint)
    if not faults:
        return component.Result("ok", f"{loaded} {driver['flavour'] or ''}".strip())
    if driver.get("reboot_pending"):
        return component.Result("pending", "; ".join(faults), "Reboot the host, or allow it by gpu_disruption: reboot.")
    return component.Result("failed", "; ".join(faults), hint)


def _managed(want: component.Expected) -> bool:
    """Whether the role driver installs and repairs this driver."""
    return want.get("placement") != "none" and want.get("state") == "present"


def _fabric_of(want: component.Expected, facts: component.Facts) -> str:
    """What the host's boards need, C(none) where the plan leaves it to somebody else; as in C(_driver.parts.Aim)."""
    planned = want.get("fabric") or {}
    return str(facts["nvlink"]["fabric"]) if planned.get("manager") or planned.get("imex") else "none"


def _missing_modules(want: component.Expected, facts: component.Facts) -> list[str]:
    """The kernel modules that the plan loads and that are not there."""
    needed = [module for key, module in _BESIDE.items() if want.get(key)]
    if _managed(want):
        needed += [*LOAD_ORDER, *(["ib_umad"] if _fabric_of(want, facts) == "nvlink5" else [])]
    return [module for module in needed if facts["modules"].get(module) is False]


def _missing_packages(want: component.Expected, facts: component.Facts) -> list[str]:
    """Packages that the plan asks for by name and that are gone; facts have those of the driver alone."""
    have = facts["driver"]["packages"]
    gone = [name for name in want.get("packages") or () if _managed(want) and is_driver(name) and name not in have]
    return [f"{' and '.join(gone)} {'is' if len(gone) == 1 else 'are'} not installed"] if gone else []


def _service_faults(want: component.Expected, facts: component.Facts) -> list[str]:
    """Where the driver's services are not as the role driver starts them; none where their state is not known."""
    known = facts["driver"].get("services")
    if known is None or not _managed(want):
        return []
    nodes = (want.get("fabric") or {}).get("imex_nodes", ())
    spec = Spec(persistenced=bool(want.get("persistenced")), imex_nodes=nodes,
                licence={"token": ""} if want.get("licence") else None)
    wanted = wanted_units(spec, _fabric_of(want, facts))
    faults = [fault for unit in wanted for fault in [_service_fault(unit, known.get(unit))] if fault]
    spare = known.get(PERSISTENCED) or {}
    if want.get("persistenced") is False and (spare.get("state") == "active" or spare.get("enabled") == "enabled"):
        faults.append(f"{PERSISTENCED} runs, and is not wanted")
    return faults


def _service_fault(unit: str, service: t.Mapping[str, str] | None) -> str:
    if service is None:
        return ""
    if service["enabled"] == "masked":
        return f"{unit} is masked"
    if service["state"] == "absent":
        return f"{unit} is not installed"
    if service["state"] != "active":
        return f"{unit} is {service['state']}"
    return "" if service["enabled"] in AT_BOOT else f"{unit} does not start at boot"


def _nvml_faults(facts: component.Facts) -> list[str]:
    nvml = facts["driver"]["nvml"]
    if not nvml["available"]:
        return [f"NVML does not answer: {nvml['error'] or 'no library'}"]
    faults = [fault_of(gpu)[0] for gpu in facts["gpus"] if gpu.get("error")]
    unseen = [gpu["pci"] for gpu in facts["gpus"] if gpu.get("uuid") is None and not gpu.get("error")]
    if unseen:
        faults.append(f"{len(unseen)} of {len(facts['gpus'])} GPUs are not seen by NVML ({', '.join(unseen)})")
    return faults


_LOOK = "Look at journalctl -k for NVRM and Xid messages"
_RESET = ("Stop its clients (what gpu_disruption drain does for a change), then reset it: nvidia-smi --gpu-reset -i "
          "{pci}; where that is refused, reboot the host")
_REBOOT = "Reboot the host, and power-cycle it if that does not help; the other GPUs are served meanwhile"
# A word in the error, the state of the GPU, what to do.
_STATES = (
    ("RESET_REQUIRED", "needs a reset", _RESET),
    ("GPU_IS_LOST", "is lost", _REBOOT),
    ("does not list it", "has fallen off the bus, or its driver has given it up", _REBOOT),
    ("GPU_NOT_FOUND", "has fallen off the bus, or its driver has given it up", _REBOOT),
    ("TIMEOUT", "does not answer in time", f"{_LOOK}. {_RESET}"),
    ("UNKNOWN", "answers with an unknown error", f"{_LOOK}. {_RESET}"),
)


def fault_of(gpu: component.Facts) -> tuple[str, str]:
    """C((what is wrong, what to do)) of a GPU of the facts with an error; sentences without a full stop."""
    pci, error = gpu["pci"], str(gpu["error"]).rstrip(".")
    for word, state, remedy in _STATES:
        if word in error:
            return f"{pci} {state} ({error})", remedy.format(pci=pci)
    return f"{pci}: {error}", _LOOK


COMPONENT = component.Component(
    "driver", host_plan, check, unchecked=("cluster",),
    asked_for=lambda variables: variables.get("driver_state") == "present",
    images=("driver", "driver_manager"), cluster_plan=driver_containers.cluster_plan)
