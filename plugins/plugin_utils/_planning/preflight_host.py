# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The checks of a preflight on a host. Pure. PRIVATE.

A fact that is None is not known, as for many facts of a Node. It causes no finding.
"""

from __future__ import annotations

import datetime
import typing as t
from dataclasses import dataclass

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.state import SERVICES
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.mig_boot import UNIT
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._components import container_toolkit, software
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._components.component import HostPlan
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._components.driver import DriverPlan, fault_of
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import releases
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.facts import Client, HostFacts
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.releases import Release, branch_of
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.wording import some_of
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._drivers.packages import companions
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning import preflight_release, profiles
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning.findings import Finding, Result
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning.plans import FleetPlan, PlanOfHost
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._planning.profiles import Profile

# Linux cuts names of processes to 15 characters.
_MANAGER = "nv-fabricmanage"
_802 = "without it CUDA says 'system not yet initialized' (802)"
# Services that the roles driver and mig_manager stop and start again.
_STEP_ASIDE = (*SERVICES, "nvsm.service")


@dataclass(frozen=True)
class Host:
    """A host. plan: None if it has no plan; place, toolkit_place: where driver and toolkit are delivered, C(host),
    C(cluster) or C(none); today: for ends of life."""

    facts: HostFacts
    plan: PlanOfHost | None
    place: str
    toolkit_place: str
    profile: Profile | None
    release: Release | None
    today: datetime.date

    @property
    def loaded(self) -> str | None:
        """The version of the loaded driver."""
        return self.facts["driver"]["loaded"]

    @property
    def driver(self) -> DriverPlan:
        """The plan of the driver. Some or all keys are missing if the host does not get a driver, or has no plan."""
        return self.plan["driver"] if self.plan else t.cast("DriverPlan", {})

    @property
    def desired(self) -> str | None:
        """The desired version or branch of the driver, None if it is not known without a plan."""
        planned = self.driver.get("version") or self.driver.get("branch")
        return str(planned or (self.loaded if self.place != "host" else None) or "") or None

    @property
    def runs(self) -> bool:
        """Whether the desired driver is loaded."""
        version = self.driver.get("version")
        return self.loaded is not None and (self.place != "host" or version in (None, self.loaded))

    @property
    def brings_fabric(self) -> bool:
        """Whether the driver role installs what NVSwitches need. Without a plan it is assumed."""
        fabric = self.driver.get("fabric")
        return self.place == "host" and (self.plan is None or bool(fabric and fabric["manager"]))


def of_host(name: str, facts: HostFacts | None, fleet: FleetPlan | None, release: Release | None,
            today: datetime.date) -> t.Iterator[Finding]:
    """All findings of a host."""
    if facts is None and fleet is not None and not {"host", "hybrid"} & set(fleet["placement"].values()):
        # Hosts get nothing.
        return
    if facts is None:
        yield Finding(name, "facts", "error", "it could not be asked, as it is not reached or gave an error",
                      "Make it reachable, or leave it out by --limit")
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
    for check, look in CHECKS.items():
        for severity, text, fix in look(host):
            yield Finding(name, check, severity, text, fix)


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
               "Set gpu_profile of the host to none, or to another profile, where this is wrong")


def _immutable(host: Host) -> t.Iterator[Result]:
    if host.facts["host"]["markers"]["immutable"] and "host" in (host.place, host.toolkit_place):
        yield ("error", "/usr cannot be written, so no packages can be installed on this system",
               "Deliver in the cluster (gpu_placement: cluster), or leave the host to its system (gpu_profile)")


def _nouveau(host: Host) -> t.Iterator[Result]:
    modules = host.facts["modules"]
    loaded, denied = modules["nouveau"], modules.get("nouveau_denied")
    how = "Write 'blacklist nouveau' and 'options nouveau modeset=0' to /etc/modprobe.d, rebuild the initramfs, reboot"
    if host.loaded:
        return
    if loaded and host.place == "host":
        yield ("info", "nouveau drives the GPUs; the driver role deny-lists it, and unloads it unless a display uses "
               "it", "")
    elif loaded:
        yield "error", "nouveau drives the GPUs, so the NVIDIA driver cannot be loaded", how
    elif denied is False and host.place == "cluster":
        yield "warning", "nouveau is not deny-listed and may take the GPUs at the next boot", how


def _kernel_headers(host: Host) -> t.Iterator[Result]:
    kernel = host.facts["host"]["kernel"]
    if kernel["headers"] is not False or host.place == "none" or host.driver.get("precompiled") or host.runs:
        return
    package, available = kernel.get("headers_package"), kernel.get("headers_available")
    if available is False:
        yield ("error" if host.place == "host" else "warning",
               f"the driver cannot be built: kernel {kernel['release']} has no headers here, and {package} is not in "
               "the package index",
               "Boot a kernel whose headers the package source has, or add the source of this one")
    elif available is None and host.place == "host":
        yield ("warning", f"kernel {kernel['release']} has no headers here; whether {package or 'a package of them'} "
               "can be had is not known", "Refresh the package index, or install the headers")


def _next_kernel(host: Host) -> t.Iterator[Result]:
    kernel = host.facts["host"]["kernel"]
    newest = kernel.get("newest_installed")
    if not newest or newest == kernel["release"] or host.place == "cluster":
        return
    built = any(module["kernel"] == newest and str(module["state"]).startswith("installed")
                for module in host.facts["driver"].get("dkms") or ())
    what = f"kernel {newest} boots next, {kernel['release']} runs"
    if built and (host.place == "none" or host.runs):
        return
    if host.place == "none":
        yield ("warning", f"{what}: DKMS has no driver for the next one",
               "Install the driver for it, by DKMS or by packages with modules, before the next boot")
    elif host.driver.get("next_kernel") is False:
        yield ("warning", f"{what}: driver_next_kernel is false, so the driver is built for the running one alone",
               "Leave driver_next_kernel at true, or reboot first")
    else:
        yield "info", f"{what}: the driver role installs modules for both", ""


def _dkms(host: Host) -> t.Iterator[Result]:
    release = host.facts["host"]["kernel"]["release"]
    for module in host.facts["driver"].get("dkms") or ():
        if module["kernel"] in (None, release) and not str(module["state"]).startswith("installed"):
            yield ("warning", f"DKMS has {module['name']} {module['version']} for kernel {release} as "
                   f"{module['state']}, not installed",
                   f"Look at /var/lib/dkms/{module['name']}/{module['version']}/build/make.log; remove what is not "
                   "wanted by dkms remove")


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
        yield ("warning", f"{what} and the key of driver_signing_key is not enrolled: the driver role asks for its "
               "enrolment, and the driver waits for it", "At the next boot choose 'Enroll MOK' at the console and give "
               "the password (driver_signing_password, else root's); then run again")
        return
    known = "no key that DKMS signs with is enrolled" if enrolled is False else \
        "whether a key that DKMS signs with is enrolled is not known"
    yield ("error" if enrolled is False else "warning", f"{what} and {known}: modules built here are not loaded",
           "Use modules that the distribution signs (driver_source: precompiled), let the driver role sign with a key "
           "of yours and ask for its enrolment (driver_signing_key), or switch Secure Boot off")


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
        yield ("error", "no driver is installed, and the plan brings none, so that no program can use the GPUs",
               "Install a driver, or have it delivered: driver: host in gpu_placement, and driver.enabled true")


def _foreign_driver(host: Host) -> t.Iterator[Result]:
    if host.place == "host" and host.facts["driver"]["source"] == "container":
        yield ("error", "a driver container delivers the driver here, and a driver on the host would conflict with it",
               "Remove the container (the GPU Operator's driver on the Node), or place the driver in the "
               "cluster")


def _fabric(host: Host) -> t.Iterator[Result]:
    fabric = host.facts["nvlink"]["fabric"]
    if fabric not in ("nvswitch", "nvlink5", "nvlink5_rack") or host.place == "cluster":
        return
    packages = host.facts["driver"]["packages"]
    if fabric == "nvlink5_rack":
        yield from _imex(host, packages)
        return
    if host.brings_fabric:
        if not host.runs or not _manager_runs(host):
            more = f" and {_companion(host, 'nvlsm')}" if fabric == "nvlink5" else ""
            yield ("info", f"the driver role brings {_companion(host, 'fabric_manager')}{more}, which the NVSwitches "
                   "of this host need", "")
    else:
        yield from _fabric_manager(host, fabric, packages)
    # The role loads ib_umad. mlx5_core, the driver of the switches' management ports, belongs to the kernel.
    missing = [module for module in ("ib_umad", "mlx5_core")[host.brings_fabric:]
               if host.facts["modules"].get(module) is False]
    if fabric == "nvlink5" and missing:
        yield ("warning", f"{' and '.join(missing)} not loaded: the NVLink switches cannot be managed, and {_802}",
               "Install the kernel's extra modules (linux-modules-extra) and load them at boot")


def _imex(host: Host, packages: t.Mapping[str, str]) -> t.Iterator[Result]:
    what = "this is a tray of an NVLink rack"
    fabric = host.driver.get("fabric") or {}
    if host.place == "host" and fabric.get("imex"):
        if not fabric.get("imex_nodes"):
            yield ("warning", f"{what}, and driver_imex_nodes is not set: IMEX does not run, its GPUs share no memory "
                   "with other trays", "Set driver_imex_nodes to the addresses of all trays of the rack")
    elif not any("imex" in name for name in packages):
        yield ("warning", f"{what}, and nvidia-imex is not installed: its GPUs share no memory with other trays",
               f"Install {_companion(host, 'imex')} and name the trays in /etc/nvidia-imex/nodes_config.cfg")


def _fabric_manager(host: Host, fabric: str, packages: t.Mapping[str, str]) -> t.Iterator[Result]:
    """Findings about a fabric manager that the role does not install."""
    name = next((name for name in packages if "fabric" in name and "manager" in name and "dev" not in name), None)
    if name and host.runs and not _same(packages[name], str(host.loaded)):
        yield ("error", f"{name} {packages[name]} does not fit driver {host.loaded}: it ends at its start, and {_802}",
               f"Install {name} of version {host.loaded}")
    elif host.runs and not _manager_runs(host):
        # On boards with NVLink 5, the manager does not have to be a GPU client, so that it can run unseen.
        yield ("error" if fabric == "nvswitch" else "warning", f"no fabric manager runs on this host with "
               f"{'NVSwitches' if fabric == 'nvswitch' else 'an NVLink switch fabric'}: {_802}",
               "Run: systemctl enable --now nvidia-fabricmanager" if name else
               f"Install {_companion(host, 'fabric_manager')} and start nvidia-fabricmanager")
    elif not host.runs and not name:
        more = f" and {_companion(host, 'nvlsm')}" if fabric == "nvlink5" else ""
        yield ("warning", f"this host needs a fabric manager, which nobody brings: {_802}",
               f"Install {_companion(host, 'fabric_manager')}{more} after the driver and start nvidia-fabricmanager")


def _companion(host: Host, what: str) -> str:
    """The additional package of a kind (what) with its version, as far as they are known."""
    system, version = host.facts["host"]["os"], host.desired
    found = companions((system["id"] or "", system["version_id"] or ""), host.facts["host"]["arch"],
                       "cuda_repository", version, (what,)) if version else {}
    if not found:
        return f"the {what.replace('_', ' ')} of the driver's version"
    return ", ".join(f"{name} {one}" if one and "." in one else name for name, one in found.items())


def _same(package: str, version: str) -> bool:
    """Whether a package's version (C(1:580.95.05-1)) is that of a driver."""
    return package.rpartition(":")[2].split("-")[0] == version


def _manager_runs(host: Host) -> bool:
    return any(str(client["name"]).startswith(_MANAGER) or "fabricmanager" in str(client.get("unit") or "")
               for client in host.facts["clients"])


def _gpu_clients(host: Host) -> t.Iterator[Result]:
    preview = host.plan["preview"] if host.plan else ()
    loose = [client for client in host.facts["clients"] if client.get("unit") not in _STEP_ASIDE
             and not str(client["name"]).startswith(("nvidia-persiste", _MANAGER))]
    what = "the driver" if "driver" in preview and _reloads(host) else "MIG" if "mig_manager" in preview else None
    if what and loose:
        held = some_of(list(dict.fromkeys(_client(client) for client in loose)))
        yield ("warning", f"{what} is to be changed while GPUs are held by {held}",
               "Stop them, or allow it by gpu_disruption (drain, reboot); else the change stays pending")


def _reloads(host: Host) -> bool:
    """Whether the plan needs a reload of the loaded modules."""
    driver, desired = host.facts["driver"], host.driver.get("kernel_module_type")
    return host.loaded is not None and (not host.runs or driver["library"] not in (None, host.loaded)
                                        or desired not in (None, driver["flavour"]))


def _client(client: Client) -> str:
    if client["container"]:
        return f"{client['name']} (container {client['container'][:12]})"
    return client["unit"] or f"{client['name']} (pid {client['pid']})"


def _runtime(host: Host) -> t.Iterator[Result]:
    # Some distributions of Kubernetes have their own containerd.
    if host.toolkit_place != "host" or host.facts["host"]["markers"]["kubernetes"] in container_toolkit.OWN_RUNTIME:
        return
    runtimes = {name: one for name, one in host.facts["runtimes"].items() if one}
    if not runtimes:
        yield ("warning", "no container runtime is installed; the toolkit's configuration waits for one",
               "Install containerd, or set container_toolkit to none in gpu_placement")
    for name, one in runtimes.items():
        if one["boot"] == "masked":
            yield "warning", f"{name} is installed and masked", f"Run: systemctl unmask {name}"
        elif one["running"] is False:
            yield "warning", f"{name} is installed and does not run", f"Run: systemctl enable --now {name}"
        elif one["boot"] == "no":
            yield "warning", f"{name} does not start at boot", f"Run: systemctl enable {name}"


def _toolkit(host: Host) -> t.Iterator[Result]:
    packages = host.facts["toolkit"]["packages"]
    if host.toolkit_place == "cluster":
        return
    planned = host.plan["container_toolkit"].get("version") if host.plan else None
    version = planned if host.toolkit_place == "host" else host.facts["toolkit"]["version"]
    yield from preflight_release.toolkit(str(version or ""))
    if len(set(packages.values())) > 1:
        listed = ", ".join(f"{name} {version}" for name, version in packages.items())
        yield ("warning", f"packages of the container toolkit are of different versions: {listed}",
               "Install all of them in one version; the role does so where it delivers the toolkit")


def _reboot(host: Host) -> t.Iterator[Result]:
    if host.facts["driver"]["reboot_pending"]:
        yield ("warning", "a reboot is pending: the loaded driver is not the installed one, or the distribution asks "
               "for it", "Reboot the host, or allow it by gpu_disruption: reboot")


def _gpus(host: Host) -> t.Iterator[Result]:
    for gpu in host.facts["gpus"]:
        if gpu.get("error"):
            yield ("warning", *fault_of(gpu))
    models = dict.fromkeys(gpu["model"] or f"GPU {gpu['device_id']}" for gpu in host.facts["gpus"])
    if len(models) > 1:
        yield ("info", f"GPUs of several models in one host: {', '.join(models)}",
               "Labels and the resource nvidia.com/gpu do not distinguish them; select by MIG profile or by host")


def _journals(host: Host) -> t.Iterator[Result]:
    if host.place == "host" or (host.plan and host.plan.get("delivered")):
        faults = host.facts["journals"]["faults"]
        yield from dict.fromkeys(("error", fault["message"].rstrip("."), fault["hint"].rstrip(".")) for fault in faults)


def _mig_boot(host: Host) -> t.Iterator[Result]:
    mig = host.plan["mig_manager"] if host.plan else None
    if host.facts["mig_boot"].get("masked") and mig and mig.get("selected") and mig.get("boot"):
        yield ("warning", f"{UNIT} is masked and stays so: after a boot, the GPUs do not have their MIG layout",
               f"Run: systemctl unmask {UNIT}; or set mig_manager_boot to false")


def _vgpu(host: Host) -> t.Iterator[Result]:
    vgpu = host.facts["vgpu"]
    if vgpu and host.driver.get("source") == "runfile":
        if not host.driver.get("licence"):
            yield ("warning", f"this is a guest with a vGPU (host driver {vgpu['version']}), and driver_licence_token "
                   "is not set: without a licence it works for a short time only",
                   "Set driver_licence_token, from a vault, to the token of your licence server")
    elif vgpu and host.place == "host":
        yield ("error", f"this is a guest with a vGPU (host driver {vgpu['version']}), which needs the vGPU guest "
               "driver", "Name its .run file in driver_runfile_src, or install it yourself and set driver_state to "
               "adopted")


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
