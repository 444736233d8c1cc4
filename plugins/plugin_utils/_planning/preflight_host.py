# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The checks of a preflight on a host. Pure. PRIVATE.

A fact that is None is unknown, as are many facts of a Node, and causes no finding. Repositories, packages, digests and
disk space can only be checked by modules, so the role preflight runs the modules in check mode for them
(C(roles/preflight/tasks/preview.yml)).
"""

from __future__ import annotations

import datetime
import typing as t
from dataclasses import dataclass

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.state import SERVICES
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.mig_boot import UNIT
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._components import container_toolkit, software
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._components.component import HostPlan
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._components.driver import DriverPlan, fault_of, lost
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import releases
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.facts import Client, HostFacts
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.releases import Release, branch_of
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.wording import some_of
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._drivers.packages import companions
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning import (
    preflight_health,
    preflight_release,
    profiles,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning.findings import Finding, Result
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning.plans import FleetPlan, PlanOfHost
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning.profiles import Profile

_802 = "without this, CUDA fails with 'system not yet initialized' (802)"
# Services that the roles driver and mig_manager stop and later start again.
_STEP_ASIDE = (*SERVICES, "nvsm.service")


@dataclass(frozen=True)
class Host:
    """A host and the data that its checks need.

    plan: None if the host has no plan; place, toolkit_place: where the driver and the toolkit are delivered, C(host),
    C(cluster) or C(none); today: the date with which the end of life of a driver branch is compared.
    """

    facts: HostFacts
    plan: PlanOfHost | None
    place: str
    toolkit_place: str
    profile: Profile | None
    release: Release | None
    today: datetime.date

    @property
    def loaded(self) -> str | None:
        """The version of the loaded driver, None if no driver is loaded or it is unknown."""
        return self.facts["driver"]["loaded"]

    @property
    def driver(self) -> DriverPlan:
        """The plan of the driver. Keys are missing if no driver is delivered on the host, or without a plan."""
        return self.plan["driver"] if self.plan else t.cast("DriverPlan", {})

    @property
    def desired(self) -> str | None:
        """The desired version or branch of the driver, None if it is unknown or there is no plan."""
        planned = self.driver.get("version") or self.driver.get("branch")
        return str(planned or (self.loaded if self.place != "host" else None) or "") or None

    @property
    def runs(self) -> bool:
        """Whether the desired driver is loaded."""
        version = self.driver.get("version")
        return self.loaded is not None and (self.place != "host" or version in (None, self.loaded))

    @property
    def brings_fabric(self) -> bool:
        """Whether the driver role installs the fabric manager. True if the host has no plan for a driver."""
        fabric = self.driver.get("fabric")
        return self.place == "host" and (self.plan is None or bool(fabric and fabric["manager"]))


def of_host(name: str, facts: HostFacts | None, fleet: FleetPlan | None, release: Release | None,
            today: datetime.date) -> t.Iterator[Finding]:
    """All findings of a host."""
    if facts is None and fleet is not None and not {"host", "hybrid"} & set(fleet["placement"].values()):
        # Nothing is delivered on hosts.
        return
    if facts is None:
        yield Finding(name, "facts", "error", "the host has no facts: it is unreachable, or gpu_info failed there",
                      "Repair the connection or the error above, or exclude the host with --limit")
        return
    if not facts["gpus"]:
        # resolve refuses such a host.
        return
    plan = fleet["hosts"].get(name) if fleet else None
    planned = plan and plan["profile"] and plan["profile"]["name"]
    profile = profiles.by_name(planned) if planned and planned != "none" else \
        profiles.detect(facts) if plan is None else None
    places = (_place(fleet, plan and plan["driver"], profile, "driver"),
              _place(fleet, plan and plan["container_toolkit"], profile, "container_toolkit"))
    host = Host(facts, plan, *places, profile, release, today)
    for check, function in CHECKS.items():
        for severity, text, fix in function(host):
            yield Finding(name, check, severity, text, fix)
    yield from preflight_health.of_host(name, facts)


def _place(fleet: FleetPlan | None, plan: HostPlan | None, profile: Profile | None, component: str) -> str:
    if plan is not None:
        return plan["placement"]
    if fleet is not None:
        place = fleet["placement"].get(component, "none")
        return "host" if place == "hybrid" else place
    return "none" if profile and profile.owner(component) == "theirs" else "host"


def _profile(host: Host) -> t.Iterator[Result]:
    if host.profile is not None:
        because = host.plan["profile"]["because"] if host.plan and host.plan["profile"] else ""
        yield ("info", f"{host.profile.summary}; {because or host.profile.because}",
               "If this is wrong, set gpu_profile of the host to none or to another profile")


def _immutable(host: Host) -> t.Iterator[Result]:
    if host.facts["host"]["markers"]["immutable"] and "host" in (host.place, host.toolkit_place):
        yield ("error", "/usr is read-only, so packages cannot be installed on this system",
               "Deliver the components in the cluster (gpu_placement: cluster), or set gpu_profile to the profile of "
               "this system")


def _nouveau(host: Host) -> t.Iterator[Result]:
    modules = host.facts["modules"]
    loaded, denied = modules["nouveau"], modules.get("nouveau_denied")
    how = "Write 'blacklist nouveau' and 'options nouveau modeset=0' to /etc/modprobe.d, rebuild the initramfs, reboot"
    if host.loaded:
        return
    if loaded and host.place == "host":
        yield ("info", "the kernel module nouveau uses the GPUs; the driver role deny-lists it, and unloads it unless "
               "a display uses it", "")
    elif loaded:
        yield "error", "the kernel module nouveau uses the GPUs, so the NVIDIA driver cannot be loaded", how
    elif denied is False and host.place == "cluster":
        yield "warning", "nouveau is not deny-listed, so it may use the GPUs after the next boot", how


def _kernel_headers(host: Host) -> t.Iterator[Result]:
    kernel = host.facts["host"]["kernel"]
    if kernel["headers"] is not False or host.place == "none" or host.driver.get("precompiled") or host.runs:
        return
    package, available = kernel.get("headers_package"), kernel.get("headers_available")
    if available is False:
        yield ("error" if host.place == "host" else "warning",
               f"the driver cannot be built: the headers of kernel {kernel['release']} are not installed, and "
               f"{package} is not in the package index",
               "Boot a kernel whose headers are in a package repository, or add the repository of this kernel")
    elif available is None and host.place == "host":
        yield ("warning", f"the headers of kernel {kernel['release']} are not installed, and it is not known whether "
               f"{package or 'their package'} is available", "Refresh the package index, or install the headers")


def _next_kernel(host: Host) -> t.Iterator[Result]:
    kernel = host.facts["host"]["kernel"]
    newest = kernel.get("newest_installed")
    if not newest or newest == kernel["release"] or host.place == "cluster":
        return
    built = any(module["kernel"] == newest and str(module["state"]).startswith("installed")
                for module in host.facts["driver"].get("dkms") or ())
    what = f"kernel {newest} boots next, kernel {kernel['release']} is running"
    if built and (host.place == "none" or host.runs):
        return
    if host.place == "none":
        yield ("warning", f"{what}: DKMS has no driver for kernel {newest}",
               "Before the next boot, install the driver for this kernel, with DKMS or with packages of modules")
    elif host.driver.get("next_kernel") is False:
        yield ("warning", f"{what}: driver_next_kernel is false, so the driver is built only for the running kernel",
               "Set driver_next_kernel to true, or reboot first")
    else:
        yield "info", f"{what}: the driver role installs modules for both kernels", ""


def _dkms(host: Host) -> t.Iterator[Result]:
    release = host.facts["host"]["kernel"]["release"]
    for module in host.facts["driver"].get("dkms") or ():
        if module["kernel"] in (None, release) and not str(module["state"]).startswith("installed"):
            yield ("warning", f"DKMS has not installed {module['name']} {module['version']} for kernel {release}: its "
                   f"state is {module['state']}",
                   f"Read /var/lib/dkms/{module['name']}/{module['version']}/build/make.log, or remove the module with "
                   "dkms remove if it is not needed")


def _secure_boot(host: Host) -> t.Iterator[Result]:
    facts = host.facts["host"]
    lockdown = facts.get("lockdown")
    checked = facts["secure_boot"] or lockdown in ("integrity", "confidentiality")
    if not checked or host.place != "host" or host.runs or host.driver.get("secure_boot") == "signed":
        return
    enrolled = facts["mok"]["enrolled"]
    if enrolled:
        return
    what = "Secure Boot is on" if facts["secure_boot"] else f"the kernel is locked down ({lockdown})"
    if host.driver.get("secure_boot") == "mok":
        yield ("warning", f"{what}, and the key of driver_signing_key is not enrolled: the driver role requests its "
               "enrolment, and the driver cannot be loaded before", "At the next boot choose 'Enroll MOK' at the "
               "console and enter the password (driver_signing_password, otherwise root's). Then run again")
        return
    known = "the key with which DKMS signs is not enrolled" if enrolled is False else \
        "it is not known whether the key with which DKMS signs is enrolled"
    yield ("error" if enrolled is False else "warning", f"{what}, and {known}: modules built here cannot be loaded",
           "Use modules that the distribution signs (driver_source: precompiled), set driver_signing_key so that the "
           "driver role signs with your key and requests its enrolment, or disable Secure Boot")


def _end_of_life(host: Host) -> t.Iterator[Result]:
    branch = releases.branch(branch_of(host.desired)) if host.desired and host.place != "cluster" else None
    if branch is not None and branch.ended(host.today):
        newer = [text for text in (host.release.drivers if host.release else ())
                 if not _ended(text, host.today)]
        yield ("warning", f"driver branch {branch.number} gets no more fixes",
               f"Set driver.version to one of {', '.join(newer)}" if newer else "Choose a newer branch")


def _ended(version: str, today: datetime.date) -> bool:
    branch = releases.branch(branch_of(version))
    return branch is not None and branch.ended(today)


def _known_faults(host: Host) -> t.Iterator[Result]:
    if host.desired and "." in host.desired and host.place != "cluster":
        for fault in releases.known_faults(host.desired):
            yield "warning", f"driver {host.desired}: {fault}", "Choose another version of the branch"


def _no_driver(host: Host) -> t.Iterator[Result]:
    if host.place == "none" and host.driver and software.no_driver("none", host.driver.get("state", ""), host.facts):
        yield ("error", "no driver is installed, and the plan does not deliver one, so no program can use the GPUs",
               "Install a driver, or let the plan deliver one: set driver: host in gpu_placement and driver.enabled: "
               "true in the policy")


def _foreign_driver(host: Host) -> t.Iterator[Result]:
    if host.place == "host" and host.facts["driver"]["source"] == "container":
        yield ("error", "a driver container has loaded the driver, and a driver on the host would conflict with it",
               "Remove the container (the GPU Operator's driver pod on the Node), or set driver: cluster in "
               "gpu_placement")


def _fabric(host: Host) -> t.Iterator[Result]:
    fabric = host.facts["nvlink"]["fabric"]
    if fabric not in ("nvswitch", "nvlink5", "nvlink5_rack") or host.place == "cluster":
        return
    packages = host.facts["driver"]["packages"]
    if fabric == "nvlink5_rack":
        yield from _imex(host, packages)
        return
    if host.brings_fabric:
        if not host.runs or not preflight_health.manager_runs(host.facts):
            more = f" and {_companion(host, 'nvlsm')}" if fabric == "nvlink5" else ""
            what = f"{_companion(host, 'fabric_manager')}{more}"
            yield ("info", f"the driver role installs {what}, which the NVSwitches of this host need" if host.plan else
                   f"the NVSwitches of this host need {what}; the driver role installs this together with a driver", "")
    else:
        yield from _fabric_manager(host, fabric, packages)
    # The role loads ib_umad. mlx5_core, the driver of the management ports of the switches, is part of the kernel.
    missing = [module for module in ("ib_umad", "mlx5_core")[host.brings_fabric:]
               if host.facts["modules"].get(module) is False]
    if fabric == "nvlink5" and missing:
        yield ("warning", f"the kernel modules {' and '.join(missing)} are not loaded, which manage the NVLink "
               f"switches; {_802}",
               "Install the extra modules of the kernel (linux-modules-extra) and load these modules at boot")


def _imex(host: Host, packages: t.Mapping[str, str]) -> t.Iterator[Result]:
    what = "this host is a tray of an NVLink rack"
    fabric = host.driver.get("fabric") or {}
    if host.place == "host" and fabric.get("imex"):
        if not fabric.get("imex_nodes"):
            yield ("warning", f"{what}, and driver_imex_nodes is not set: IMEX does not run, so the GPUs cannot share "
                   "memory with other trays", "Set driver_imex_nodes to the addresses of all trays of the rack")
    elif not any("imex" in name for name in packages):
        yield ("warning", f"{what}, and nvidia-imex is not installed: the GPUs cannot share memory with other trays",
               f"Install {_companion(host, 'imex')} and list the trays in /etc/nvidia-imex/nodes_config.cfg")


def _fabric_manager(host: Host, fabric: str, packages: t.Mapping[str, str]) -> t.Iterator[Result]:
    """Findings about a fabric manager that the role does not install."""
    name = next((name for name in packages if "fabric" in name and "manager" in name and "dev" not in name), None)
    if name and host.runs and not _same(packages[name], str(host.loaded)):
        yield ("error", f"{name} {packages[name]} does not match driver {host.loaded}, so it cannot start; {_802}",
               f"Install version {host.loaded} of {name}")
    elif host.runs and not preflight_health.manager_runs(host.facts) and not preflight_health.manager_failed(
            host.facts):
        # On boards with NVLink 5, the fabric manager can run without being a GPU client, so it may not be detected.
        yield ("error" if fabric == "nvswitch" else "warning", f"no fabric manager runs on this host with "
               f"{'NVSwitches' if fabric == 'nvswitch' else 'an NVLink switch fabric'}: {_802}",
               "Run: systemctl enable --now nvidia-fabricmanager" if name else
               f"Install {_companion(host, 'fabric_manager')} and start nvidia-fabricmanager")
    elif not host.runs and not name:
        more = f" and {_companion(host, 'nvlsm')}" if fabric == "nvlink5" else ""
        yield ("warning", f"this host needs a fabric manager, which is not installed and not in the plan; {_802}",
               f"Install {_companion(host, 'fabric_manager')}{more} after the driver and start nvidia-fabricmanager")


def _companion(host: Host, what: str) -> str:
    """The name and version of the additional package of a kind (what), or a description if they are unknown."""
    system, version = host.facts["host"]["os"], host.desired
    found = companions((system["id"] or "", system["version_id"] or ""), host.facts["host"]["arch"],
                       "cuda_repository", version, (what,)) if version else {}
    if not found:
        return f"the {what.replace('_', ' ')} of the driver's version"
    return ", ".join(f"{name} {one}" if one and "." in one else name for name, one in found.items())


def _same(package: str, version: str) -> bool:
    """Whether a package version (C(1:580.95.05-1)) contains a driver version (C(580.95.05))."""
    return package.rpartition(":")[2].split("-")[0] == version


def _gpu_clients(host: Host) -> t.Iterator[Result]:
    preview = host.plan["preview"] if host.plan else ()
    loose = [client for client in host.facts["clients"] if client.get("unit") not in _STEP_ASIDE
             and not str(client["name"]).startswith(("nvidia-persiste", preflight_health.MANAGER))]
    what = "the driver" if "driver" in preview and _reloads(host) else "MIG" if "mig_manager" in preview else None
    if what and loose:
        clients = some_of(list(dict.fromkeys(_client(client) for client in loose)))
        yield ("warning", f"the plan changes {what} while these GPU clients run: {clients}",
               "Stop the GPU clients, or set gpu_disruption to drain or reboot; otherwise the change stays pending")


def _reloads(host: Host) -> bool:
    """Whether the plan requires a reload of the loaded modules."""
    driver, desired = host.facts["driver"], host.driver.get("kernel_module_type")
    return host.loaded is not None and (not host.runs or driver["library"] not in (None, host.loaded)
                                        or desired not in (None, driver["flavour"]))


def _client(client: Client) -> str:
    if client["container"]:
        return f"{client['name']} (container {client['container'][:12]})"
    return client["unit"] or f"{client['name']} (pid {client['pid']})"


def _runtime(host: Host) -> t.Iterator[Result]:
    # Some distributions of Kubernetes include their own containerd.
    if host.toolkit_place != "host" or host.facts["host"]["markers"]["kubernetes"] in container_toolkit.OWN_RUNTIME:
        return
    runtimes = {name: one for name, one in host.facts["runtimes"].items() if one}
    if not runtimes:
        yield ("warning", "no container runtime is installed, so the container toolkit cannot be configured",
               "Install containerd, or set container_toolkit: none in gpu_placement")
    for name, one in runtimes.items():
        if one["boot"] == "masked":
            yield "warning", f"the service {name} is masked", f"Run: systemctl unmask {name}"
        elif one["running"] is False:
            yield "warning", f"the service {name} does not run", f"Run: systemctl enable --now {name}"
        elif one["boot"] == "no":
            yield "warning", f"the service {name} does not start at boot", f"Run: systemctl enable {name}"


def _toolkit(host: Host) -> t.Iterator[Result]:
    packages = host.facts["toolkit"]["packages"]
    if host.toolkit_place == "cluster":
        return
    planned = host.plan["container_toolkit"].get("version") if host.plan else None
    version = planned if host.toolkit_place == "host" else host.facts["toolkit"]["version"]
    yield from preflight_release.toolkit(str(version or ""))
    if len(set(packages.values())) > 1:
        listed = ", ".join(f"{name} {version}" for name, version in packages.items())
        yield ("warning", f"the packages of the container toolkit have different versions: {listed}",
               "Install one version of all packages; the role container_toolkit does this if it delivers the toolkit")


def _reboot(host: Host) -> t.Iterator[Result]:
    if host.facts["driver"]["reboot_pending"]:
        yield ("warning", "the host must be rebooted: the loaded driver is not the installed one, or the distribution "
               "requires a reboot", "Reboot the host, or set gpu_disruption: reboot")


def _gpus(host: Host) -> t.Iterator[Result]:
    for gpu in host.facts["gpus"]:
        if gpu.get("error") and not lost(gpu):
            yield ("warning", *fault_of(gpu))
    models = dict.fromkeys(gpu["model"] or f"GPU {gpu['device_id']}" for gpu in host.facts["gpus"])
    if len(models) > 1:
        yield ("info", f"the host has GPUs of several models: {', '.join(models)}",
               "Labels and the resource nvidia.com/gpu do not distinguish the models; select a MIG profile or a host")


def _journals(host: Host) -> t.Iterator[Result]:
    if host.place == "host" or (host.plan and host.plan.get("delivered")):
        faults = host.facts["journals"]["faults"]
        yield from dict.fromkeys(("error", fault["message"].rstrip("."), fault["hint"].rstrip(".")) for fault in faults)


def _mig_boot(host: Host) -> t.Iterator[Result]:
    mig = host.plan["mig_manager"] if host.plan else None
    if host.facts["mig_boot"].get("masked") and mig and mig.get("selected") and mig.get("boot"):
        yield ("warning", f"{UNIT} is masked, and a run does not change this: after a boot, the GPUs do not have their "
               "MIG layout",
               f"Run: systemctl unmask {UNIT}; or set mig_manager_boot to false")


def _vgpu(host: Host) -> t.Iterator[Result]:
    vgpu = host.facts["vgpu"]
    if vgpu and host.driver.get("source") == "runfile":
        if not host.driver.get("licence"):
            yield ("warning", f"this host is a guest with a vGPU (host driver {vgpu['version']}), and "
                   "driver_licence_token is not set: without a licence the vGPU works only for a short time",
                   "Set driver_licence_token, from a vault, to the token of your licence server")
    elif vgpu and host.place == "host":
        yield ("error", f"this host is a guest with a vGPU (host driver {vgpu['version']}), which needs the vGPU guest "
               "driver", "Set driver_runfile_src to the .run file of the guest driver; or install the guest driver "
               "yourself, and set driver_state: adopted")


def _system(host: Host) -> t.Iterator[Result]:
    system = host.facts["host"]["os"]
    if host.release and system["id"] and system["version_id"] and host.place == "cluster":
        yield from preflight_release.system(host.release, system["id"], system["version_id"])


CHECKS: t.Dict[str, t.Callable[[Host], t.Iterator[Result]]] = {
    "immutable": _immutable, "vgpu": _vgpu, "nouveau": _nouveau, "secure_boot": _secure_boot,
    "no_driver": _no_driver, "kernel_headers": _kernel_headers, "next_kernel": _next_kernel, "dkms": _dkms,
    "foreign_driver": _foreign_driver,
    "fabric": _fabric, "driver_end_of_life": _end_of_life, "driver_faults": _known_faults, "holders": _gpu_clients,
    "reboot": _reboot, "runtime": _runtime, "toolkit": _toolkit, "system": _system, "gpus": _gpus,
    "profile": _profile, "journal": _journals, "mig_boot": _mig_boot,
}
