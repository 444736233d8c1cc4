# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver: its plan on a host and its check. L(driver_containers) contains its plan in a cluster. Pure. PRIVATE.

GPU faults are derived from NVML errors (nvml.h, nvmlReturn_t). A run never resets a GPU or reboots a host because of
such a fault, at any level of gpu_disruption, because every run would reset a broken GPU again.
"""

from __future__ import annotations

import functools
import typing as t
from dataclasses import replace

from ansible_collections.gpuops.nvidia.plugins.module_utils import _proxy
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver import fabric_settings
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.services import wanted_units
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.spec import INSTALLS_ONLY, Spec, is_set
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.state import LOAD_ORDER
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.package_names import is_driver
from ansible_collections.gpuops.nvidia.plugins.module_utils._units import AT_BOOT, PERSISTENCED
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._components import component, driver_containers
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import releases
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.components import HostVars
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.facts import Gpu, HostFacts, Service
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.refusals import Refused
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.releases import branch_of, version_key
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.untyped import Section
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._drivers import packages
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._drivers.candidates import Candidate, Version
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._drivers.choose_driver import (
    EXTRAS,
    PlanInputs,
    choose,
    extras,
    version_to_install,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._drivers.constraints import Request
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._drivers.packages import Repository
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._drivers.situation import Situation, situation_of
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.defaults import get_path
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.formats import Policy

# The name of the layout without MIG.
_WHOLE = "all-disabled"
# The prefix of variables in driver.env that are settings of the fabric manager. Source: NVIDIA/gpu-driver-container,
# the function _configure_fabric_manager of its scripts.
_FABRIC_VARIABLE = "NVFM_CONFIG_"


class Fabric(t.TypedDict):
    """The services of an NVLink fabric. manager: C(fabricmanager), C(fabricmanager+nvlsm) or None; version: the version
    of the driver; imex_nodes: the addresses of the compute trays of a rack."""

    manager: str | None
    imex: bool
    version: str | None
    imex_nodes: t.NotRequired[t.List[object]]


class Packages(t.TypedDict):
    """The packages to install. kernel_packages: the packages that are needed to build kernel modules."""

    packages: t.List[str]
    repository: Repository | None
    kernel_packages: t.List[str]


class DriverPlan(component.HostPlan, Packages):
    """The plan of the driver on a host.

    state: C(present), C(absent), C(adopted) or C(rolled_back). version: None for the newest version of the branch.
    source: C(cuda_repository), C(distribution), C(runfile) or C(precompiled). installation: C(auto), C(full) or
    C(compute-only). next_kernel: whether modules are also installed for the kernel of the next boot. hold_kernel:
    whether upgrades keep the installed kernels. licence: whether the user sets a licence token. proxy: that of the
    policy for downloads, C({http, https, no_proxy}). fabric_manager_settings: C({NAME: value}). module_parameters:
    C({module: {parameter: value}}). cuda: the highest CUDA version that the driver supports. secure_boot: the reason
    why the kernel accepts the driver's modules, C(signed), C(mok) or None. kernel_module_type and source are None for
    an adopted driver.
    """

    state: str
    version: str | None
    branch: int | None
    kernel_module_type: str | None
    source: str | None
    installation: str
    precompiled: bool
    fabric: Fabric
    persistenced: bool
    peermem: bool
    gds: bool
    gdrcopy: bool
    next_kernel: bool
    hold_kernel: bool
    licence: bool
    proxy: t.Dict[str, str]
    fabric_manager_settings: Section
    module_parameters: Section
    cuda: str | None
    secure_boot: str | None


def host_plan(host: component.Host) -> DriverPlan:
    """The plan on a host. With the placement C(none), this collection does not manage the driver, and only verifies it.
    Raises Refused and Refusals."""
    inputs, variables = host.inputs, host.variables
    if host.boolean_variable("driver_image", False):
        raise Refused("driver_image is true, but a host with GPUs is not an image",
                      "Set driver_image only for the role driver in the build of an image.")
    situation = situation_of(host.facts)
    state = str(variables.get("driver_state") or "present")
    adopted = state == "adopted"
    if host.place == "none" or adopted:
        host.notes += [*_extra_module_notes(inputs, variables), *_ignored_notes(host)]
        # Only the variables of the host itself are verified.
        named = host.place != "none" and (variables.get("driver_version") or variables.get("driver_branch"))
        return _adopted(situation, inputs.request(variables).version if named else None,
                        host.why if host.place == "none" else "driver_state of this host is adopted")
    request = inputs.request(variables)
    if state == "rolled_back":
        request = _former(request, host.facts)
    selected = variables.get("mig_manager_selected")
    if selected and selected != _WHOLE and any(gpu.coherent for gpu in situation.gpus):
        request = replace(request, mig=str(selected))
    choice = choose(situation, request, inputs.release)
    driver = choice.driver
    if driver.signed and variables.get("driver_source") == "auto" and state != "rolled_back":
        raise Refused("driver_source of this host is auto, which installs modules that are built, but precompiled ones "
                      f"are planned ({_why_signed(request)})", "Set driver_source: precompiled, or remove "
                      "driver_source.", [("driver.source", "driver_source of this host is auto"),
                                         ("driver.usePrecompiled", "precompiled modules are planned")])
    source, version = "precompiled" if driver.signed else driver.source, version_to_install(driver, request).text
    following = host.boolean_variable("driver_next_kernel", True)
    persistenced = host.boolean_variable("driver_persistenced", True)
    host.notes += [*_notes(situation, driver, source, request.cuda), *_reference_notes(inputs.policy, variables)]
    installation = _installation(host, situation, source)
    fabric = _fabric(situation if request.fabric else replace(situation, fabric=None), version)
    proxy, settings = _of_environment(host, fabric)
    imex_nodes, parameters = variables.get("driver_imex_nodes"), variables.get("driver_module_parameters")
    return {"placement": host.place, "state": state, "version": version,
            "branch": driver.version.branch, "kernel_module_type": driver.flavour, "source": source,
            **_packages(situation, host.facts, driver, source, request, following, persistenced, installation),
            "installation": installation, "precompiled": driver.signed,
            "fabric": {**fabric, "imex_nodes": imex_nodes if isinstance(imex_nodes, list) else []},
            "persistenced": persistenced, "peermem": request.peermem, "gds": request.gds, "gdrcopy": request.gdrcopy,
            "next_kernel": following, "hold_kernel": host.boolean_variable("driver_hold_kernel", False),
            "licence": bool(variables.get("driver_licence_token")),
            "proxy": proxy, "fabric_manager_settings": settings,
            "module_parameters": (parameters if isinstance(parameters, dict) and parameters
                                  else inputs.policy.module_parameters or {}),
            "cuda": _cuda(driver), "secure_boot": _secure_boot(situation, driver, request),
            "because": _because(situation, driver, request, choice.because)}


def _former(request: Request, facts: HostFacts) -> Request:
    """The request for the driver before the last change of the host. Raises Refused if none is recorded."""
    former = facts["journals"]["former_driver"]
    if former is None:
        raise Refused("driver_state is rolled_back, but no former driver of this host is recorded",
                      "Set driver_state: present, and the driver_version that you want.")
    source = former["source"]
    return replace(request, version=Version.of(former["version"]), by="driver_state: rolled_back",
                   key="driver_state: present and driver_version", flavour=former["flavour"] or "auto",
                   flavour_by="driver_kernel_module_type of the former driver", precompiled=False, source=source,
                   source_by="driver_source of the former driver", runfile=source == "runfile")


def _installation(host: component.Host, situation: Situation, source: str) -> str:
    """The set of packages. Raises Refused if the source does not have it."""
    wanted = str(host.variables.get("driver_installation") or "auto")
    former = host.facts["journals"]["former_driver"]
    if former and host.variables.get("driver_state") == "rolled_back":
        wanted = former["installation"]
    if situation.os is None:
        return wanted
    allowed = ("auto", *packages.installations(situation.os, situation.arch or "x86_64", source))
    if wanted not in allowed:
        raise Refused(f"driver_installation {wanted} is not available from {source} on {' '.join(situation.os)}",
                      f"Set one of {', '.join(allowed)}.")
    return wanted


def _of_environment(host: component.Host, fabric: Fabric) -> tuple[dict[str, str], Section]:
    """What hosts use of the variables of the driver container: the proxy, and the settings of the fabric manager. Adds
    notes for the others. Raises Refused for an invalid setting."""
    environment = component.environment(host.inputs.policy.get("driver.env"))
    given = {name: value for name, value in environment.items() if name in _proxy.SPELLINGS}
    proxy: dict[str, str] = {}
    try:
        proxy = _proxy.read(given, "driver.env")
    except InputError as error:
        host.notes.append(f"{error.message} Hosts do not use this proxy; set driver_proxy.")
    if _proxy.has_password(proxy):
        proxy = {}
        host.notes.append("driver.env has a proxy with a password, which hosts do not use; set driver_proxy, from a "
                          "vault.")
    settings = {name[len(_FABRIC_VARIABLE):]: value for name, value in environment.items()
                if name.startswith(_FABRIC_VARIABLE) and fabric["manager"]}
    host.notes += component.only_in_pods("driver.env", environment, (
        *given, *(f"{_FABRIC_VARIABLE}{name}" for name in settings)))
    own = host.variables.get("driver_fabric_manager_settings")
    try:
        fabric_settings.settings(Spec(fabric_manager_settings=settings))
    except InputError as error:
        name = error.details["path"].partition(".")[2]
        raise Refused(f"driver.env: {_FABRIC_VARIABLE}{name}: {name}={error.details['value']} is not a setting of the "
                      "fabric manager", error.hint) from error
    return proxy, own if isinstance(own, dict) and own and fabric["manager"] else settings


def _why_signed(request: Request) -> str:
    return ("driver.usePrecompiled is true" if request.precompiled
            else "Secure Boot is on and no key is enrolled")


def _because(situation: Situation, driver: Candidate, request: Request, because: t.Sequence[str]) -> list[str]:
    why = list(because)
    if driver.signed and situation.secure_boot == "signed" and not request.precompiled:
        why.append("Secure Boot is on and no key is enrolled: modules that the distribution signs are used")
    if version_to_install(driver, request) != driver.version:
        why.append(f"the archive of the distribution has its own version of branch {driver.version.branch}")
    return why


def _adopted(situation: Situation, version: Version | None, why: str) -> DriverPlan:
    return {"placement": "none", "state": "adopted", "version": version.text if version else None,
            "branch": version.branch if version else None, "kernel_module_type": None, "source": None, "packages": [],
            "repository": None, "kernel_packages": [], "installation": "auto", "precompiled": False,
            "fabric": _fabric(situation, None),
            "persistenced": False, "peermem": False, "gds": False, "gdrcopy": False, "next_kernel": False,
            "hold_kernel": False, "licence": False, "proxy": {}, "fabric_manager_settings": {}, "module_parameters": {},
            "cuda": None, "secure_boot": None,
            "because": [f"{why}: the installed driver is adopted as it is"]}


# Keys of the policy that name objects of the cluster, which are not available to hosts: (path below driver, kind, the
# equivalent task on hosts, the variable for it).
_REFERENCES = (
    ("kernelModuleConfig.name", "ConfigMap", "set driver_module_parameters", "driver_module_parameters"),
    ("licensingConfig.secretName", "Secret", "set driver_licence_token, from a vault", "driver_licence_token"),
    ("licensingConfig.configMapName", "ConfigMap", "set driver_licence_token, from a vault", "driver_licence_token"),
    ("repoConfig.configMapName", "ConfigMap", "set driver_repository_url to a mirror", "driver_repository_url"),
    ("certConfig.name", "ConfigMap", "install the certificates on the host (update-ca-certificates, "
     "update-ca-trust)", ""),
    ("virtualTopology.config", "ConfigMap", "write /etc/nvidia/nvidia-topologyd.conf yourself", ""),
    ("secretEnv", "Secret", "set driver_proxy, from a vault, and configure credentials of repositories in the files of "
     "the package manager", ""),
)


def _reference_notes(policy: Policy, variables: HostVars) -> t.Iterator[str]:
    section = policy.get("driver")
    for key, kind, todo, variable in _REFERENCES:
        name = get_path(section, key)
        carried = key == "kernelModuleConfig.name" and policy.module_parameters is not None
        if name and not carried and not variables.get(variable):
            yield f"driver.{key} names the {kind} {name}, which hosts cannot read; for hosts, {todo}."


def _extra_module_notes(inputs: PlanInputs, variables: HostVars) -> list[str]:
    """A note if additional kernel modules are requested for a driver that this collection does not manage."""
    named = [EXTRAS[name] for name, on in extras(inputs.policy, variables).items() if on]
    return [f"{', '.join(named)}: requested, but not delivered, because this collection does not manage the driver "
            "here."] if named else []


# Additional modules have a note of their own, and booleans can be text.
_IGNORED = [name for option, name in INSTALLS_ONLY.items() if option not in (*EXTRAS, "hold_kernel", "image")] + [
    "driver_fabric", "driver_proxy", "driver_runfile_checksum", "driver_signing_certificate",
    "driver_licence_settings", "driver_signing_password", "driver_licence_feature_type"]
# The keys of the section driver that have no effect either, each with the path that says whether it is set.
_IGNORED_KEYS = (
    ("version", "version"), ("kernelModuleType", "kernelModuleType"), ("env", "env"),
    ("usePrecompiled", "usePrecompiled"), ("secretEnv", "secretEnv"), ("certConfig", "certConfig.name"),
    ("virtualTopology", "virtualTopology.config"),
    ("kernelModuleConfig", "kernelModuleConfig.name"), ("licensingConfig", "licensingConfig.secretName"),
    ("licensingConfig", "licensingConfig.configMapName"), ("repoConfig", "repoConfig.configMapName"),
)


def _ignored_notes(host: component.Host) -> list[str]:
    """A note that names the variables of the host, and the keys of an enabled section of the policy, that have no
    effect, because this collection does not manage the driver here. Raises Refused for a value that is not allowed."""
    named = [name for name in _IGNORED if is_set(host.variables.get(name))]
    named += ["driver_hold_kernel"] if host.boolean_variable("driver_hold_kernel", False) else []
    named += [name for name in ("driver_persistenced", "driver_next_kernel") if not host.boolean_variable(name, True)]
    named += ["driver_state: rolled_back"] if host.variables.get("driver_state") == "rolled_back" else []
    policy = host.inputs.policy
    if policy.enabled("driver"):
        named += dict.fromkeys(f"driver.{key}" for key, path in _IGNORED_KEYS if is_set(policy.get(f"driver.{path}")))
    return [f"{', '.join(named)}: no effect, because this collection does not manage the driver here."] if named else []


def _secure_boot(situation: Situation, driver: Candidate, request: Request) -> str | None:
    """C(signed) if the distribution signs the modules; C(mok) if they are signed with a key that is or will be
    enrolled; None if Secure Boot is off or the key is unknown."""
    if not situation.secure_boot or driver.signed:
        return "signed" if situation.secure_boot else None
    return "mok" if situation.secure_boot == "mok" or request.own_key else None


def _cuda(driver: Candidate) -> str | None:
    known = releases.branch(driver.version.branch)
    return known.cuda if known else None


def _packages(situation: Situation, facts: HostFacts, driver: Candidate, source: str, request: Request, following: bool,
              persistenced: bool, installation: str) -> Packages:
    if situation.os is None:
        return {"packages": [], "repository": None, "kernel_packages": []}
    kernel, family, arch = facts["host"]["kernel"], facts["host"]["os"]["family"], situation.arch or "x86_64"
    branch, kernels = driver.version.branch, (kernel["release"], kernel["newest_installed"])
    # As in the module, auto keeps the installed set.
    kept = packages.installed_set(situation.os, arch, source, facts["driver"]["packages"])
    beside = Spec(installation=kept if installation == "auto" else installation, persistenced=persistenced,
                  fabric="auto" if request.fabric else "none", gds=request.gds, gdrcopy=request.gdrcopy)
    named = packages.packages_to_install(situation.os, arch, source, driver.version.named, driver.flavour, beside,
                                         situation.fabric or "none",
                                         tuple(dict.fromkeys(one for one in kernels if one)))
    return {"packages": list(named),
            "repository": packages.repository(situation.os, arch, source, branch, driver.flavour),
            "kernel_packages": ([] if driver.signed
                                else packages.kernel_packages(kernel, family, situation.os, following))}


def _fabric(situation: Situation, version: str | None) -> Fabric:
    """The services of the fabric. On HGX boards, the fabric manager runs on the host; in racks (NVL72), on the
    switches."""
    manager = {"nvswitch": "fabricmanager", "nvlink5": "fabricmanager+nvlsm"}.get(situation.fabric or "")
    return {"manager": manager, "imex": situation.fabric == "nvlink5_rack", "version": version if manager else None}


_installs = functools.lru_cache(maxsize=256)(packages.can_install)


def _notes(situation: Situation, driver: Candidate, source: str, cuda: str | None) -> t.Iterator[str]:
    branch = releases.branch(driver.version.branch)
    if branch is None:
        yield (f"driver branch {driver.version.branch} is not known to this collection, so it is not checked whether "
               "the branch supports the GPUs.")
    elif branch.end_of_life == "ended":
        yield f"driver branch {branch.number} gets no more fixes."
    for gpu in situation.gpus:
        if gpu.open_modules is None:
            yield f"{gpu.name} is not known, so it is not checked which driver this GPU needs."
    if situation.secure_boot == "unknown":
        yield "Secure Boot is on: kernel modules built here load only if their key is enrolled (mokutil)."
    if cuda and branch and branch.cuda and version_key(cuda) > version_key(branch.cuda):
        yield (f"CUDA {cuda} runs on driver {driver.version} ({branch.cuda}) by minor version compatibility: "
               "features that need a newer driver fail.")
    if situation.os and not _installs(situation.os, situation.arch or "x86_64", source):
        yield (f"this version of the collection does not install drivers from {source} on {' '.join(situation.os)}; "
               "the plan shows which packages the driver needs.")


# The additional kernel modules, by the key of the plan that requests them.
_EXTRA_MODULES = {"peermem": "nvidia_peermem", "gds": "nvidia_fs", "gdrcopy": "gdrdrv"}
_UNMASK = "site.yml fails for a masked service. Run systemctl unmask, or change the variable that requests the service."


def check(want: DriverPlan, seen: component.HostState) -> component.Result:
    """Whether the planned driver is loaded and works. This also applies to an adopted driver."""
    facts = seen.facts
    driver = facts["driver"]
    loaded, library = driver["loaded"], driver["library"]
    faults: list[str] = []
    hint = "Run site.yml: its plan lists the steps."
    if want.get("placement") == "none":
        hint = "Install a driver yourself, or set driver.enabled: true in the policy."
    if not loaded and not driver["packages"] and not library:
        return component.Result("absent", "no driver is installed", hint)
    version, branch = want.get("version"), want.get("branch")
    if not loaded:
        faults.append("no kernel module is loaded")
        hint = "Read the kernel log (dmesg) and the output of dkms status on the host; then run site.yml."
    elif version and loaded != version:
        faults.append(f"{loaded} is loaded, desired is {version}")
    elif branch and branch_of(loaded) != int(branch):
        faults.append(f"{loaded} is loaded, desired is branch {branch}")
    elif want.get("kernel_module_type") in ("open", "proprietary") and driver["flavour"] not in (
            None, want["kernel_module_type"]):
        faults.append(f"{driver['flavour']} modules are loaded, desired are {want['kernel_module_type']} modules")
    missing = _missing_modules(want, facts)
    if loaded and missing:
        faults.append(f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not loaded")
    if loaded and library and library != loaded:
        faults.append(f"the libraries have version {library}, the loaded module has version {loaded}")
        hint = "The module is from before an upgrade: reload it (gpu_disruption: idle) or reboot."
    if want.get("placement") == "host":
        faults += component.missing_files(driver["missing_files"])
        faults += [f"{path}: {fault}" for path, fault in (driver["nodes"] or {}).items()]
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
        return component.Result("pending", "; ".join(faults), "Reboot the host, or set gpu_disruption: reboot.")
    return component.Result("failed", "; ".join(faults), hint)


def _managed(want: DriverPlan) -> bool:
    """Whether the role driver installs and repairs this driver."""
    return want.get("placement") != "none" and want.get("state") in ("present", "rolled_back")


def _fabric_of(want: DriverPlan, facts: HostFacts) -> str:
    """The fabric whose services are planned, C(none) for none; as in C(_driver.parts.Aim)."""
    planned = want.get("fabric")
    return str(facts["nvlink"]["fabric"]) if planned and (planned["manager"] or planned["imex"]) else "none"


def _missing_modules(want: DriverPlan, facts: HostFacts) -> list[str]:
    """The planned kernel modules that are not loaded."""
    needed = [module for key, module in _EXTRA_MODULES.items() if want.get(key)]
    if _managed(want):
        needed += [*LOAD_ORDER, *(["ib_umad"] if _fabric_of(want, facts) == "nvlink5" else [])]
    return [module for module in needed if facts["modules"].get(module) is False]


def _missing_packages(want: DriverPlan, facts: HostFacts) -> list[str]:
    """A fault if planned packages are not installed. The facts contain only packages of the driver."""
    have = facts["driver"]["packages"]
    gone = [name for name in want.get("packages") or () if _managed(want) and is_driver(name) and name not in have]
    return [f"{' and '.join(gone)} {'is' if len(gone) == 1 else 'are'} not installed"] if gone else []


def _service_faults(want: DriverPlan, facts: HostFacts) -> list[str]:
    """Differences between the planned services of the driver and the current ones; none if their state is unknown."""
    known, fabric = facts["driver"].get("services"), want.get("fabric")
    if known is None or not _managed(want):
        return []
    nodes = [str(one) for one in fabric.get("imex_nodes", ())] if fabric else ()
    spec = Spec(persistenced=bool(want.get("persistenced")), imex_nodes=nodes,
                licence={"token": ""} if want.get("licence") else None)
    wanted = wanted_units(spec, _fabric_of(want, facts))
    faults = [fault for unit in wanted for fault in [_service_fault(unit, known.get(unit))] if fault]
    spare = known.get(PERSISTENCED)
    if want.get("persistenced") is False and spare and (
            spare["state"] == "active" or spare["enabled"] == "enabled"):
        faults.append(f"{PERSISTENCED} runs, but the plan disables it")
    return faults


def _service_fault(unit: str, service: Service | None) -> str:
    if service is None:
        return ""
    if service["enabled"] == "masked":
        return f"{unit} is masked"
    if service["state"] == "absent":
        return f"{unit} is not installed"
    if service["state"] != "active":
        return f"{unit} is {service['state']}"
    return "" if service["enabled"] in AT_BOOT else f"{unit} does not start at boot"


def _nvml_faults(facts: HostFacts) -> list[str]:
    nvml = facts["driver"]["nvml"]
    if not nvml["available"]:
        return [f"NVML does not answer: {nvml['error'] or 'no library'}"]
    faults = [fault_of(gpu)[0] for gpu in facts["gpus"] if gpu.get("error")]
    unseen = [gpu["pci"] for gpu in facts["gpus"] if gpu.get("uuid") is None and not gpu.get("error")]
    if unseen:
        faults.append(f"NVML does not report {len(unseen)} of {len(facts['gpus'])} GPUs ({', '.join(unseen)})")
    return faults


_LOOK = "Search journalctl -k for NVRM and Xid messages"
_RESET = ("Stop its GPU clients (a run stops them only for a change of the plan), then reset it: nvidia-smi "
          "--gpu-reset -i {pci}. If the reset is refused, reboot the host")
REBOOT = "Reboot the host, and power-cycle it if that does not help; the other GPUs stay in use"
# (part of the error message, state of the GPU, remedy).
_STATES = (
    ("RESET_REQUIRED", "needs a reset", _RESET),
    ("GPU_IS_LOST", "is lost", REBOOT),
    ("does not list it", "has fallen off the bus, or the driver no longer uses it", REBOOT),
    ("GPU_NOT_FOUND", "has fallen off the bus, or the driver no longer uses it", REBOOT),
    ("TIMEOUT", "does not answer in time", f"{_LOOK}. {_RESET}"),
    ("UNKNOWN", "answers with an unknown error", f"{_LOOK}. {_RESET}"),
)


def lost(gpu: Gpu) -> str | None:
    """The state of a GPU that only a reboot may bring back, such as C(is lost); None for any other GPU."""
    return next((state for word, state, remedy in _STATES if word in str(gpu["error"]) and remedy == REBOOT), None)


def fault_of(gpu: Gpu) -> tuple[str, str]:
    """(fault, remedy) for a GPU with an error, both without a full stop."""
    pci, error = gpu["pci"], str(gpu["error"]).rstrip(".")
    for word, state, remedy in _STATES:
        if word in error:
            return f"{pci} {state} ({error})", remedy.format(pci=pci)
    return f"{pci}: {error}", _LOOK


def _unseen(plan: DriverPlan) -> bool:
    """See C(component.Component)."""
    return plan["hold_kernel"] or plan["state"] == "rolled_back" or plan["installation"] != "auto" or bool(
        plan["module_parameters"] or plan["fabric_manager_settings"] or plan["fabric"].get("imex_nodes"))


COMPONENT = component.Component(
    "driver", host_plan, check, unchecked=("cluster",), unseen=_unseen,
    asked_for=lambda variables: variables.get("driver_state") == "present",
    images=("driver", "driver_manager"), cluster_plan=driver_containers.cluster_plan)
