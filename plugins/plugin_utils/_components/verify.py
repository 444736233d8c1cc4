# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a host is as its plan says, component by component, from facts alone. Pure. PRIVATE."""

from __future__ import annotations

import functools
import re
import typing as t
from dataclasses import asdict, dataclass

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.services import wanted_units
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.spec import Spec
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.state import LOAD_ORDER
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.mig_boot import UNIT
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.package_names import is_driver
from ansible_collections.gpuops.nvidia.plugins.module_utils._units import AT_BOOT, PERSISTENCED
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._components import host_toolkit, layouts
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._components.gpu_faults import fault_of
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.matrix import branch_of
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.wording import counted, some_of

Facts = t.Mapping[str, t.Any]
Expected = t.Mapping[str, t.Any]
Sample = t.Mapping[str, t.Any]
# By component steps of its module, as plain data.
Steps = t.Mapping[str, t.Sequence[t.Mapping[str, t.Any]]]


@dataclass(frozen=True)
class Check:
    """state: C(ok), C(pending) (it waits for something that is named), C(failed), or C(absent) (nothing is there)."""

    component: str
    state: str
    detail: str
    hint: str = ""

    @property
    def ok(self) -> bool:
        """Whether nothing is left to do."""
        return self.state == "ok"

    def as_dict(self) -> dict[str, t.Any]:
        """C({component, ok, state, detail, hint})."""
        return {**asdict(self), "ok": self.ok}


def verify(expected: t.Mapping[str, Expected], facts: Facts, only: t.Sequence[str] | None = None,
           labels: t.Mapping[str, str] | None = None, samples: t.Sequence[Sample] | None = None) -> list[Check]:
    """Compares the plan of a host with its facts. only: these components.

    labels, samples: what gpu_labels and gpu_info returned, if they ran; without samples CUDA is not judged.

    A component that nobody delivers here is left out, the driver apart: an adopted one must work too.
    """
    checks = []
    for name, compare in _CHECKS.items():
        want = expected.get(name)
        if want is None or (only is not None and name not in only) or (name == "validator" and samples is None):
            continue
        if want.get("placement") not in ("none", "cluster") or (name == "driver" and want["placement"] == "none"):
            checks.append(compare(want, facts))
    # Where labels are judged alone, facts are of the GPUs alone.
    faults = (facts.get("journals") or {}).get("faults", ())
    refused = {_CONCERNS.get(fault["concern"], fault["concern"]): fault for fault in faults}
    checks = [_refused(check, refused[check.component]) if expected[check.component].get("placement") != "none"
              and check.component in refused else check for check in checks]
    if samples is not None:
        checks = [_sampled(samples) if check.component == "validator" else check for check in checks]
    if labels is not None:
        checks = [_labelled(labels) if check.component == "feature_discovery" else check for check in checks]
    return checks


# Journals whose name is not that of the component.
_CONCERNS = {"mig": "mig_manager"}


def _refused(check: Check, fault: t.Mapping[str, str]) -> Check:
    """A component whose journal its module refuses, so that no run changes or repairs it."""
    more = "" if check.ok else f"; {check.detail}"
    return Check(check.component, "failed", f"{fault['message'].rstrip('.')}{more}", fault["hint"])


def with_answers(checks: t.Sequence[Check], plans: Steps, pending: Steps,
                 errors: t.Mapping[str, t.Mapping[str, t.Any]]) -> list[Check]:
    """Checks that are ok by the facts, and by what the modules have answered in check mode are not.

    plans, pending: by component the steps of its module; errors: C({message, hint}) of those that refuse to run.
    """
    result = []
    for check in checks:
        steps, waiting = plans.get(check.component), pending.get(check.component)
        error = errors.get(check.component)
        if error:
            more = "" if check.ok else f"; {check.detail}"
            result.append(Check(check.component, "failed", f"{str(error['message']).strip().rstrip('.')}{more}",
                                str(error["hint"])))
        elif check.ok and steps:
            result.append(Check(check.component, "failed", f"a run would {_first(steps)}",
                                "Run site.yml; it repairs exactly this."))
        elif check.ok and waiting:
            result.append(_waits(check, waiting))
        else:
            result.append(check)
    return result


def _waits(check: Check, waiting: t.Sequence[t.Mapping[str, t.Any]]) -> Check:
    """A check of what waits for these steps."""
    level = waiting[0].get("needs") or "never"  # which allows such a step, so that it waits for something else
    return Check(check.component, "pending", f"{_first(waiting)}: {waiting[0]['pending_reason']}",
                 check.hint if level == "never" else f"Allow it by gpu_disruption: {level}.")


def _first(steps: t.Sequence[t.Mapping[str, t.Any]]) -> str:
    """The first of some steps, and how many follow."""
    return f"{steps[0]['id']}{f' and {len(steps) - 1} more' if len(steps) > 1 else ''}"


def with_pending(checks: t.Sequence[Check], pending: Steps, check_mode: bool = False) -> list[Check]:
    """Checks that are not ok because a step was not allowed become C(pending), with that reason.

    pending: by component what its module returned; what waits for the driver waits too. In check mode nothing has been
    done yet, so nothing has failed.
    """
    result = []
    for check in checks:
        waiting = pending.get(check.component) or []
        if waiting and check.state in ("failed", "absent"):
            result.append(_waits(check, waiting))
        elif pending.get("driver") and not check.ok:
            result.append(Check(check.component, "pending", f"it waits for the driver: {check.detail}"))
        elif check_mode and not check.ok:
            result.append(Check(check.component, "pending", f"check mode: {check.detail}"))
        else:
            result.append(check)
    return result


# Kernel modules that a plan may ask for beside the driver's own.
_BESIDE = {"peermem": "nvidia_peermem", "gds": "nvidia_fs", "gdrcopy": "gdrdrv"}
_UNMASK = "site.yml stops there: systemctl unmask it, or change the variable that asks for it."


def _driver(want: Expected, facts: Facts) -> Check:
    driver = facts["driver"]
    loaded, library = driver["loaded"], driver["library"]
    faults: list[str] = []
    hint = "Run site.yml; its plan names the steps."
    if want.get("placement") == "none":
        hint = "driver.enabled is false: install a driver yourself, or enable it."
    if not loaded and not driver["packages"] and not library:
        return Check("driver", "absent", "no driver is installed", hint)
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
        faults += _lost(driver) + [f"{path}: {fault}" for path, fault in (driver["nodes"] or {}).items()]
    broken = [gpu for gpu in facts["gpus"] if gpu.get("error")]
    if broken and not faults:
        hint = f"{fault_of(broken[0])[1]}."
    faults += _nvml_faults(facts)
    beside = [*_missing_packages(want, facts), *_service_faults(want, facts)]
    if beside:
        masked = any("is masked" in fault for fault in beside)
        return Check("driver", "failed", "; ".join([*faults, *beside]), _UNMASK if masked else hint)
    if not faults:
        return Check("driver", "ok", f"{loaded} {driver['flavour'] or ''}".strip())
    if driver.get("reboot_pending"):
        return Check("driver", "pending", "; ".join(faults), "Reboot the host, or allow it by gpu_disruption: reboot.")
    return Check("driver", "failed", "; ".join(faults), hint)


def _lost(part: Facts) -> list[str]:
    """What of the files that packages have brought is gone."""
    lost = part["missing_files"]
    return [f"{counted(len(lost), 'file')} of its packages {'is' if len(lost) == 1 else 'are'} missing or damaged "
            f"({some_of(lost)})"] if lost else []


def _managed(want: Expected) -> bool:
    """Whether the role driver installs and repairs this driver."""
    return want.get("placement") != "none" and want.get("state") == "present"


def _fabric_of(want: Expected, facts: Facts) -> str:
    """What the host's boards need, C(none) where the plan leaves it to somebody else; as in C(_driver._parts.Aim)."""
    planned = want.get("fabric") or {}
    return str(facts["nvlink"]["fabric"]) if planned.get("manager") or planned.get("imex") else "none"


def _missing_modules(want: Expected, facts: Facts) -> list[str]:
    """The kernel modules that the plan loads and that are not there."""
    needed = [module for key, module in _BESIDE.items() if want.get(key)]
    if _managed(want):
        needed += [*LOAD_ORDER, *(["ib_umad"] if _fabric_of(want, facts) == "nvlink5" else [])]
    return [module for module in needed if facts["modules"].get(module) is False]


def _missing_packages(want: Expected, facts: Facts) -> list[str]:
    """Packages that the plan asks for by name and that are gone; facts have those of the driver alone."""
    have = facts["driver"]["packages"]
    gone = [name for name in want.get("packages") or () if _managed(want) and is_driver(name) and name not in have]
    return [f"{' and '.join(gone)} {'is' if len(gone) == 1 else 'are'} not installed"] if gone else []


def _service_faults(want: Expected, facts: Facts) -> list[str]:
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


def _nvml_faults(facts: Facts) -> list[str]:
    nvml = facts["driver"]["nvml"]
    if not nvml["available"]:
        return [f"NVML does not answer: {nvml['error'] or 'no library'}"]
    faults = [fault_of(gpu)[0] for gpu in facts["gpus"] if gpu.get("error")]
    unseen = [gpu["pci"] for gpu in facts["gpus"] if gpu.get("uuid") is None and not gpu.get("error")]
    if unseen:
        faults.append(f"{len(unseen)} of {len(facts['gpus'])} GPUs are not seen by NVML ({', '.join(unseen)})")
    return faults


def _container_toolkit(want: Expected, facts: Facts) -> Check:
    toolkit = facts["toolkit"]
    if not toolkit["version"]:
        return Check("container_toolkit", "absent", "not installed", "Run site.yml.")
    faults = []
    if want.get("version") and toolkit["version"] != want["version"]:
        faults.append(f"version {toolkit['version']} is installed, {want['version']} is wanted")
    runtimes = {name: state for name, state in facts["runtimes"].items() if state}
    chosen = want.get("runtime") or "auto"
    if chosen in facts["runtimes"] and chosen not in runtimes:
        faults.append(f"{chosen} is not installed")
    # podman takes CDI devices and needs no configuration.
    told = [name for name in runtimes if name != "podman" and chosen in ("auto", name)]
    ready = [name for name in told if runtimes[name]["nvidia"]]
    if told and not ready:
        faults.append(f"{' and '.join(told)} {'does' if len(told) == 1 else 'do'} not know the nvidia runtime")
    if want.get("cdi"):
        faults += _cdi_faults(facts)
    faults += _lost(toolkit)
    name = _configured(chosen, facts)
    if name and name in ready and runtimes[name]["stale"]:
        faults.append(f"{name} runs with an older configuration than that of its files")
    if faults:
        return Check("container_toolkit", "failed", "; ".join(faults), "Run site.yml; it repairs exactly this.")
    idle = _idle(name, runtimes[name]) if name else None
    if idle:
        return Check("container_toolkit", "pending", *idle)
    parts = [str(toolkit["version"]), " and ".join(ready), "CDI" if toolkit["cdi_specs"] else ""]
    return Check("container_toolkit", "ok", ", ".join(part for part in parts if part))


def _configured(chosen: str, facts: Facts) -> str | None:
    """The runtime that container_toolkit configures, where facts tell of it."""
    kubernetes = facts["host"]["markers"]["kubernetes"]
    if chosen == "auto" and kubernetes in host_toolkit.OWN_RUNTIME:
        return None
    order = ("containerd", "crio", "docker") if kubernetes else ("docker", "containerd", "crio")
    there = [name for name in order if facts["runtimes"][name] and chosen in ("auto", name)]
    return next(iter([name for name in there if facts["runtimes"][name]["running"]] + there), None)


def _idle(name: str, runtime: Facts) -> tuple[str, str] | None:
    """Why a runtime starts no containers, now or after a boot, and what to do; None where it does or nobody knows."""
    if runtime["boot"] == "masked":
        return f"{name} is masked", f"Whoever masked it decides: systemctl unmask {name}."
    if runtime["running"] is False:
        return f"{name} does not run", f"Whoever stopped it decides: systemctl enable --now {name}."
    if runtime["boot"] == "no":
        return f"{name} does not start at boot", f"Whoever disabled it decides: systemctl enable {name}."
    return None


def _cdi_faults(facts: Facts) -> list[str]:
    """Where the specification does not name the loaded driver and the devices that NVML reports."""
    toolkit, loaded = facts["toolkit"], facts["driver"]["loaded"]
    devices = _uuids(facts["gpus"])
    said = toolkit.get("cdi")
    if not toolkit["cdi_specs"]:
        # Nothing can be named where all GPUs are in MIG mode and have no MIG device.
        return [] if loaded and devices == set() else ["there is no CDI specification"]
    if said is None:
        return []
    if loaded and said["driver"] and said["driver"] != loaded:
        return [f"the CDI specification is of driver {said['driver']}, {loaded} is loaded"]
    # Names are UUIDs and indexes, or indexes alone.
    named = {name for name in said["devices"] if name.startswith(("GPU-", "MIG-"))}
    if devices is None or not named:
        return []
    missing, gone = sorted(devices - named), sorted(named - devices)
    return ([f"the CDI specification lacks {missing[0]}{_more(missing)}"] if missing else []) + (
        [f"the CDI specification has {gone[0]}{_more(gone)}, which is not there"] if gone else [])


def _more(found: t.Sequence[str]) -> str:
    return f" and {len(found) - 1} more" if len(found) > 1 else ""


def _uuids(gpus: t.Sequence[Facts]) -> set[str] | None:
    """Of the devices that containers can get: GPUs, or where one is in MIG mode its MIG devices; None where unknown."""
    found: set[str] = set()
    for gpu in gpus:
        if gpu.get("uuid") is None:
            return None
        mig = gpu.get("mig")
        if mig and mig["enabled"]:
            found |= {uuid for instance in mig["instances"] for uuid in instance["uuids"]}
        else:
            found.add(gpu["uuid"])
    return found if gpus else None


def _mig_manager(want: Expected, facts: Facts) -> Check:
    gpus = facts["gpus"]
    config = want.get("config")
    selected = want.get("selected") or (layouts.only(config) if config else None)
    wanted = layouts.wanted(config, selected, gpus, want.get("devices") or ()) if selected else {}
    faults, unknown = [], []
    for gpu in gpus:
        stand, goal = layouts.present(gpu), wanted.get(gpu["pci"])
        if goal is not None and stand == layouts.UNKNOWN:
            unknown.append(gpu["pci"])
        elif goal is not None and (_becomes(gpu) or stand).enabled != goal.enabled:
            faults.append(f"{gpu['pci']} has {_becomes(gpu) or stand}, wanted is {goal}")
        elif goal is not None and not _becomes(gpu) and not stand.satisfies(goal):
            faults.append(f"{gpu['pci']} has {stand}, wanted is {goal}")
    if faults:
        more = f" and {counted(len(faults) - 1, 'more GPU')}" if len(faults) > 1 else ""
        return Check("mig_manager", "failed", faults[0] + more, "Run site.yml; it changes only GPUs that differ.")
    if unknown:
        return Check("mig_manager", "failed", f"the MIG state of {', '.join(unknown)} is not known",
                     "Make the driver and these GPUs answer first; nothing is planned for them until then.")
    waiting = [gpu["pci"] for gpu in gpus if _becomes(gpu)]
    if waiting:
        return Check("mig_manager", "pending", f"the MIG mode of {', '.join(waiting)} changes with the next reset",
                     "Allow a reset of idle GPUs by gpu_disruption: idle." if set(waiting) & set(wanted) else
                     "Nobody has selected a layout for them: reset them while they are idle, or take the mode back by "
                     "nvidia-smi -mig.")
    if not selected:
        return Check("mig_manager", "ok", f"not managed ({layouts.overview(gpus)})")
    lost = _lost_at_boot(wanted, facts) if want.get("boot") and wanted else ""
    if lost:
        return Check("mig_manager", "failed", lost, "Run site.yml; it repairs exactly this.")
    devices = sum(layouts.present(gpu).devices for gpu in gpus if gpu["pci"] in wanted)
    forgotten = f"; {UNIT} is masked, so a boot ends it" if want.get("boot") and facts["mig_boot"]["masked"] else ""
    return Check("mig_manager", "ok", f"{selected} ({devices} devices){forgotten}")


def _becomes(gpu: Facts) -> layouts.Stand | None:
    """How a GPU stands after its next reset, None where its mode stays."""
    mig = gpu.get("mig")
    if not mig or mig["pending"] == mig["enabled"]:
        return None
    return layouts.Stand(True, None) if mig["pending"] else layouts.OFF


def _lost_at_boot(wanted: t.Mapping[str, layouts.Stand], facts: Facts) -> str:
    """What will be otherwise after a boot, empty where nothing will."""
    boot = facts["mig_boot"]
    if boot["masked"]:
        return ""  # somebody wants it so
    if boot["vendor"]:
        return f"{boot['vendor']} is enabled: at boot it applies a layout of its own"
    if not boot["enabled"]:
        return "gpuops-mig.service is not enabled, so the layout ends with the next boot"
    kept = {uuid.lower(): layouts.kept(entry) for uuid, entry in (boot["gpus"] or {}).items()}
    for gpu in facts["gpus"]:
        goal, after = wanted.get(gpu["pci"]), kept.get(str(gpu["uuid"]).lower())
        if goal is not None and (after is None or not after.satisfies(goal)):
            return f"{gpu['pci']} will have {after or 'nothing'} after a boot, wanted is {goal}"
    return ""


def _feature_discovery(want: Expected, facts: Facts) -> Check:
    count = sum(1 for gpu in facts["gpus"] if gpu.get("uuid") is not None)
    if not count:
        return Check("feature_discovery", "failed", "no GPU can be read, so there is nothing to label",
                     "Make the driver work first.")
    return Check("feature_discovery", "ok", counted(count, "GPU"))


def _labelled(labels: t.Mapping[str, str]) -> Check:
    count = labels.get("nvidia.com/gpu.count", "0")
    if not re.fullmatch("[0-9]{1,9}", count) or int(count) == 0:
        return Check("feature_discovery", "failed", "the labels count no GPU", "Make the driver work first.")
    return Check("feature_discovery", "ok", f"{len(labels)} labels, {counted(int(count), 'GPU')}")


def _cuda(want: Expected, facts: Facts) -> Check:
    have, wanted = facts["software"]["cuda"], want.get("version") or ""
    found = [level for level, release in have.items()
             if not wanted or wanted in (level, release) or level.startswith(f"{wanted}.")]
    if found:
        return Check("cuda", "ok", ", ".join(have[level] for level in sorted(found)))
    if not have:
        return Check("cuda", "absent", "no CUDA toolkit is installed", "Run site.yml.")
    return Check("cuda", "failed", f"CUDA {', '.join(have.values())} is installed, {wanted} is wanted", "Run site.yml.")


def _service(name: str, want: Expected, facts: Facts, *same: str) -> Check:
    """A component with a service. same: keys in which plan and facts have to agree, besides the version."""
    have = facts["software"][name]
    if have is None:
        return Check(name, "absent", "not installed", "Run site.yml.")
    faults = [f"{key} is {have[key]}, {want[key]} is wanted" for key in ("version", *same)
              if key in have and want.get(key) and have[key] != want[key]]
    if not have["running"]:
        faults.append("its service does not run")
    if faults:
        return Check(name, "failed", "; ".join(faults), "Run site.yml; it repairs exactly this.")
    return Check(name, "ok", " ".join(str(have[key]) for key in ("version", *same) if key in have))


def _sampled(samples: t.Sequence[Sample]) -> Check:
    """samples: of gpu_info, C([{gpu, state, reason}])."""
    failed = [one for one in samples if one["state"] == "failed"]
    if failed:
        more = f" and {counted(len(failed) - 1, 'more GPU')}" if len(failed) > 1 else ""
        return Check("validator", "failed", f"{failed[0]['gpu'] or 'CUDA'}: {failed[0]['reason']}{more}",
                     "Look at dmesg for NVRM and Xid messages.")
    skipped = sum(1 for one in samples if one["state"] != "ok")
    busy = f", {skipped} in use" if skipped else ""
    return Check("validator", "ok", f"CUDA works on {counted(len(samples) - skipped, 'GPU')}{busy}")


_CHECKS: dict[str, t.Callable[[Expected, Facts], Check]] = {
    "driver": _driver,
    "container_toolkit": _container_toolkit,
    "mig_manager": _mig_manager,
    "feature_discovery": _feature_discovery,
    "cuda": _cuda,
    "dcgm": functools.partial(_service, "dcgm"),
    "dcgm_exporter": lambda want, facts: _service("dcgm_exporter", want, facts, "listen"),
    "node_status_exporter": lambda want, facts: _service("node_status_exporter", want, facts, "folder"),
    # By the samples alone.
    "validator": lambda want, facts: _sampled([]),
}
