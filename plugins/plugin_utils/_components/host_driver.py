# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan of a host's driver: what was chosen, with its packages and companions. Pure. PRIVATE."""

from __future__ import annotations

import functools
import typing as t
from dataclasses import replace

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.spec import Spec
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import matrix
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.matrix import version_key
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._drivers import packages
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._drivers.candidates import Candidate, Version
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._drivers.constraints import Wish
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._drivers.drivers import (
    EXTRAS,
    Asked,
    choose,
    extras,
    switched,
    version_of,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._drivers.situation import Situation, situation
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.defaults import look
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.formats import Policy

Facts = t.Mapping[str, t.Any]
Plan = t.Dict[str, t.Any]

# A layout under which no GPU is cut.
_WHOLE = "all-disabled"


def plan(asked: Asked, facts: Facts, mine: t.Mapping[str, t.Any], place: str, why: str, said: list[str]) -> Plan:
    """What C(gpu_plan.hosts[HOST].driver) holds; said: notes for the user. Raises Refused and Refusals.

    place: C(host), or C(none) for a driver that somebody else looks after: used, verified, never touched.
    """
    here = situation(facts)
    if place == "none":
        said += _not_beside(asked, mine)
        return _adopted(here, None, why)
    if mine.get("driver_state") == "adopted":
        said += _not_beside(asked, mine)
        # What it must be is only what this host's own variables say.
        return _adopted(here, asked.wish(mine).version if mine.get("driver_version") or mine.get("driver_branch") else
                        None, "driver_state of this host is adopted")
    wish = asked.wish(mine)
    selected = mine.get("mig_manager_selected")
    if selected and selected != _WHOLE and any(gpu.coherent for gpu in here.gpus):
        wish = replace(wish, mig=str(selected))
    choice = choose(here, wish, asked.release)
    driver = choice.driver
    source, version = "precompiled" if driver.signed else driver.source, version_of(driver, wish).text
    following = switched("driver_next_kernel", mine, True)
    persistenced = switched("driver_persistenced", mine, True)
    said += [*_notes(here, driver, source, wish.cuda), *_by_hand(asked.policy, mine)]
    return {"placement": place, "state": mine.get("driver_state") or "present", "version": version,
            "branch": driver.version.branch, "kernel_module_type": driver.flavour, "source": source,
            **_packages(here, facts, driver, source, wish, following, persistenced), "precompiled": driver.signed,
            "fabric": {**_fabric(here if wish.fabric else replace(here, fabric=None), version),
                       "imex_nodes": list(mine.get("driver_imex_nodes") or ())},
            "persistenced": persistenced, "peermem": wish.peermem, "gds": wish.gds, "gdrcopy": wish.gdrcopy,
            "next_kernel": following, "licence": bool(mine.get("driver_licence_token")),
            "module_parameters": dict(mine.get("driver_module_parameters") or asked.policy.module_parameters or {}),
            "cuda": _cuda(driver), "secure_boot": _secure_boot(here, driver, wish),
            "because": _because(here, driver, wish, choice.because)}


def _because(here: Situation, driver: Candidate, wish: Wish, because: t.Sequence[str]) -> list[str]:
    why = list(because)
    if driver.signed and here.secure_boot == "signed" and not wish.precompiled:
        why.append("Secure Boot is on and no key is enrolled: modules that the distribution signs are taken")
    if version_of(driver, wish) != driver.version:
        why.append(f"of branch {driver.version.branch} the distribution's archive has a version of its own")
    return why


def _adopted(here: Situation, version: Version | None, why: str) -> Plan:
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


def _by_hand(policy: Policy, mine: t.Mapping[str, t.Any]) -> t.Iterator[str]:
    section = policy.get("driver")
    for key, kind, todo, variable in _BY_HAND:
        name = look(section, key)
        carried = key == "kernelModuleConfig.name" and policy.module_parameters is not None
        if name and not carried and not mine.get(variable):
            yield f"driver.{key} names the {kind} {name}, which is in the cluster and not on hosts; {todo}."


def _not_beside(asked: Asked, mine: t.Mapping[str, t.Any]) -> list[str]:
    """Kernel modules that are asked for beside a driver that is not ours."""
    named = [EXTRAS[name] for name, on in extras(asked.policy, mine).items() if on]
    return [f"{', '.join(named)}: asked for, and not delivered beside a driver that is not ours."] if named else []


def _secure_boot(here: Situation, driver: Candidate, wish: Wish) -> str | None:
    """What makes the kernel load the modules: who signs them, C(signed), or an enrolled key, C(mok)."""
    if not here.secure_boot or driver.signed:
        return "signed" if here.secure_boot else None
    return "mok" if here.secure_boot == "mok" or wish.own_key else None


def _cuda(driver: Candidate) -> str | None:
    known = matrix.branch(driver.version.branch)
    return known.cuda if known else None


def _packages(here: Situation, facts: Facts, driver: Candidate, source: str, wish: Wish, following: bool,
              persistenced: bool) -> Plan:
    """C({packages, repository, kernel_packages}), as what installs them will ask for them."""
    if here.os is None:
        return {"packages": [], "repository": None, "kernel_packages": []}
    kernel, family, arch = facts["host"].get("kernel") or {}, facts["host"]["os"].get("family"), here.arch or "x86_64"
    branch, releases = driver.version.branch, (kernel.get("release"), kernel.get("newest_installed"))
    beside = Spec(persistenced=persistenced, fabric="auto" if wish.fabric else "none", gds=wish.gds,
                  gdrcopy=wish.gdrcopy)
    named = packages.wanted(here.os, arch, source, driver.version.named, driver.flavour, beside,
                            here.fabric or "none", tuple(dict.fromkeys(one for one in releases if one)))
    return {"packages": list(named),
            "repository": packages.repository(here.os, arch, source, branch, driver.flavour),
            "kernel_packages": [] if driver.signed else packages.kernel_packages(kernel, family, here.os, following)}


def _fabric(here: Situation, version: str | None) -> Plan:
    """C({manager, imex, version}): on HGX boards the host runs the manager, in racks (NVL72) the switches do."""
    manager = {"nvswitch": "fabricmanager", "nvlink5": "fabricmanager+nvlsm"}.get(here.fabric or "")
    return {"manager": manager, "imex": here.fabric == "nvlink5_rack", "version": version if manager else None}


_installs = functools.lru_cache(maxsize=256)(packages.installs)


def _notes(here: Situation, driver: Candidate, source: str, cuda: str | None) -> t.Iterator[str]:
    branch = matrix.branch(driver.version.branch)
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
