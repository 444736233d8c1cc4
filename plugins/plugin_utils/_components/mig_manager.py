# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The MIG manager: its plans on a host and in a cluster, and its check. Pure. PRIVATE."""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.mig_boot import UNIT
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import allows
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._components import component, mig_layouts
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.facts import NO_CLUSTER, Gpu, HostFacts
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.refusals import Change, Refusals, Refused
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.releases import version_key
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.untyped import Data
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.wording import counted, some_of
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._drivers.situation import short_name
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import config_maps
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.cluster_mig import default_config, names_in
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.defaults import get_path

NO_LAYOUT: Change = {"drop": "mig.layout", "also": [], "result": "no mig_manager_selected (MIG stays as it is)"}


class MigPlan(component.HostPlan):
    """The plan on a host. state, config, selected, devices, boot: options of mig_config; selected: the name of a
    layout, None to keep the current instances; layouts: the same as config, but also set if no layout is selected."""

    state: str
    config: object
    selected: str | None
    layouts: object
    devices: t.List[object]
    boot: bool


class MigPart(component.PresentPlan):
    """The plan in a cluster. config: the ConfigMap with the layouts; clients: the ConfigMap with the services to stop,
    empty for the default; generates: whether the manager generates layouts from the GPUs; default_config: the layouts
    of the default ConfigMap; rolls: whether an update may restart the manager, which then applies the layout of its
    Node."""

    config: component.Config
    clients: str
    generates: bool
    default_config: t.Dict[str, t.List[Data]]
    rolls: bool


def host_plan(host: component.Host) -> MigPlan:
    """The plan on a host. The variables of the host take precedence over the policy. Raises Refused for a layout that
    the GPUs do not support."""
    variables, policy = host.variables, host.inputs.policy
    selected = variables.get("mig_manager_selected") or None
    if selected is not None and not isinstance(selected, str):
        raise Refused(f"mig_manager_selected {selected!r} is not the name of a layout", "Write a name in quotes.")
    own = variables.get("mig_manager_config") or None
    config = own or (_of_config_map(host, selected) if host.place == "host" else policy.mig_config)
    named = variables.get("mig_manager_devices")
    devices = named if isinstance(named, list) else []
    if (selected or own) and host.place != "host":
        raise Refused(f"MIG layout {selected!r} is selected, but MIG is off, because {host.why}",
                      "Remove mig_manager_selected, or set migManager.enabled: true in the policy.",
                      [("mig.layout", f"MIG layout {selected!r} is selected for this host")], [NO_LAYOUT])
    try:
        if own and not selected:
            selected = mig_layouts.only_layout(own)
        stands = mig_layouts.desired_states(config, selected, host.facts["gpus"], devices) if selected else {}
    except InputError as error:
        raise _impossible(selected, error, host.facts) from error
    _check_strategy(host, str(selected), stands)
    # A host keeps its instances until a layout is selected; the operator applies all-disabled to a Node in this case.
    because = f"layout {selected}" if selected else "no layout is selected for this host: MIG stays as it is"
    return {"placement": host.place, "state": "present" if selected else "gathered",
            "config": config if selected else None, "selected": selected, "layouts": config, "devices": devices,
            "boot": host.boolean_variable("mig_manager_boot", True), "because": host.because or [because]}


def _of_config_map(host: component.Host, selected: str | None) -> Data | None:
    """The layouts in the ConfigMap that the policy creates or names, None if it has none. If they are not known, adds a
    note, or raises Refused for a selected layout: the one that is generated from the GPUs can be another one. Raises
    Refusals for a ConfigMap that pods could not use."""
    policy, seen = host.inputs.policy, host.inputs.seen
    invalid = config_maps.faults(policy, config_maps.LAYOUTS)
    if invalid:
        raise Refusals(invalid)
    if policy.mig_config:
        return t.cast("Data", policy.mig_config)
    name, found = config_maps.name_of(policy, config_maps.LAYOUTS), seen.layouts(policy)
    if found is not None or not name:
        return found
    unknown = f"migManager.config.name: the layouts of ConfigMap {name!r} are not known"
    remedy = "Set mig_manager_config_file to a file with its layouts, or gpu_kubeconfig to the cluster that has it"
    if selected:
        text = f"MIG layout {selected!r} is selected"
        raise Refused(f"{unknown}, and {text}", f"{remedy}.", [("mig.layout", text)], [NO_LAYOUT])
    host.notes.append(f"{unknown}. No layout is selected for this host, so MIG stays as it is. To select one: "
                      f"{remedy[0].lower()}{remedy[1:]}.")
    return None


def _impossible(selected: str | None, error: InputError, facts: HostFacts) -> Refused:
    """The refusal of a layout that is invalid, or that the GPUs named in the error do not support."""
    what = f"MIG layout {selected!r}" if selected else "MIG configuration of this host"
    message = error.message.rstrip(".")
    models = sorted({gpu["model"] for gpu in facts["gpus"] if gpu["model"] and gpu["model"] in message})
    named = [("mig.layout", f"{what} is requested" if models else f"{what}: {message}"),
             *((f"gpu:{short_name(model)}", message) for model in models)]
    return Refused(f"{what}: {message}", error.hint, named, [NO_LAYOUT])


def _check_strategy(host: component.Host, selected: str, stands: t.Mapping[str, mig_layouts.MigState]) -> None:
    """Raises Refused for a layout with several profiles if the user requests the strategy single, which supports only
    one. If the strategy is a default, adds a note instead."""
    profiles = sorted({name for stand in stands.values() for name in stand.instances or ()})
    if mig_strategy(host) != "single" or len(profiles) < 2:
        return
    text = f"MIG layout {selected!r} has the profiles {', '.join(profiles)}"
    limit = "mig.strategy single supports only one profile"
    if host.variables.get("feature_discovery_mig_strategy") or any(
            get_path(source.spec, "mig.strategy") for source in host.inputs.policy.sources):
        raise Refused(f"{text}, but {limit}", "Set mig.strategy to mixed, or select a layout of one profile.",
                      [("mig.layout", text), ("mig.strategy", limit)],
                      [{"drop": "mig.strategy", "also": [], "result": f"mig.strategy: mixed (layout {selected})"},
                       NO_LAYOUT])
    host.notes.append(f"{text}, but {limit}. Labels and Kubernetes need mig.strategy mixed.")


def mig_strategy(host: component.Host) -> object:
    """The MIG strategy of a host. The variable of the host takes precedence over the policy."""
    return host.variables.get("feature_discovery_mig_strategy") or host.inputs.policy.get("mig.strategy")


# Arguments that allow the MIG manager to reboot a Node: nvidia-mig-manager --with-reboot, -r. A shell expands them.
_WITH_REBOOT = re.compile(r"with[-_]reboot|(^|\s)-r\b", re.IGNORECASE)
# A variable in arguments, in the syntax of the shell or of Kubernetes, $(NAME).
_VARIABLE = re.compile(r"\$(?:\{(\w+)[^}]*\}|\((\w+)\)|(\w+))")


def cluster_plan(context: component.Context, shared: component.PresentPlan) -> MigPart:
    """The plan in a cluster. If the policy names a ConfigMap of the operator, the default ConfigMap applies instead,
    because resource definitions before 26.3 add the name default-mig-parted-config to each ClusterPolicy.

    Raises Refused for an unknown default layout, and for arguments that allow reboots of Nodes if gpu_disruption does
    not, and for invalid layouts in a ConfigMap. Raises Refusals for ConfigMaps that do not exist.
    """
    gone = [one for section in (config_maps.LAYOUTS, config_maps.CLIENTS)
            for one in config_maps.missing(context.policy, section, context.facts, context.namespace)]
    if gone:
        raise Refusals(gone)
    config_maps.Seen(context.namespace, (context.facts or NO_CLUSTER).get("config_maps", {})).layouts(context.policy)
    env = component.limit_by_level(context, "migManager.env", shared["env"], {"WITH_REBOOT": "reboot"})
    if not allows(context.disruption, "reboot") and _asks_for_reboots(shared["args"], env):
        raise Refused("migManager.args lets the MIG manager reboot Nodes, by itself or by a variable of "
                      f"migManager.env, and gpu_disruption is {context.disruption}",
                      "Remove with-reboot from both, or set gpu_disruption: reboot.")
    config = component.config_map(context, "migManager")
    if config["name"] == "default-mig-parted-config" and not config["data"]:
        config["name"] = ""
    default, theirs = config["default"], config_maps.data_of(context.policy, config_maps.LAYOUTS, context.facts)
    known = names_in(config["data"] or {key: theirs[key] for key in ("config.yaml",) if theirs})
    if default and known and default not in known:
        where = f"ConfigMap {config['name']!r}" if theirs else "migManager.config.data"
        raise Refused(f"migManager.config.default ({default}) is not a layout of {where}, which has "
                      f"{some_of(known)}", "Add it there, or set migManager.config.default to an empty string.")
    clients = str(context.get("migManager.gpuClientsConfig.name") or "")
    return {**shared, "env": env, "config": config, "clients": "" if clients == "default-gpu-clients" else clients,
            # Since 26.3, the manager generates layouts from the GPUs, and uses the file only if that fails.
            "generates": version_key(context.release.version) >= (26, 3),
            "default_config": {} if config["name"] else default_config(), "rolls": allows(context.disruption, "idle")}


def _asks_for_reboots(args: t.Iterable[object], env: t.Mapping[str, str]) -> bool:
    """Whether arguments request reboots, directly or by the value of a variable that they contain."""
    def value(match: re.Match[str]) -> str:
        return env.get(match[1] or match[2] or match[3], "")

    texts = [re.sub(r"""["'\\]""", "", _VARIABLE.sub(value, str(one))) for one in args]
    return any(_WITH_REBOOT.search(one) for one in (*texts, *(env.values() if texts else ())))


def check(want: MigPlan, seen: component.HostState) -> component.Result:
    """Whether the GPUs have the selected layout now, and will have it after the next boot."""
    facts = seen.facts
    gpus = facts["gpus"]
    config = want.get("config")
    selected = want.get("selected") or (mig_layouts.only_layout(config) if config else None)
    wanted = mig_layouts.desired_states(config, selected, gpus, want.get("devices") or ()) if selected else {}
    faults, unknown = [], []
    for gpu in gpus:
        stand, goal = mig_layouts.current(gpu), wanted.get(gpu["pci"])
        if goal is not None and stand == mig_layouts.UNKNOWN:
            unknown.append(gpu["pci"])
        elif goal is not None and (_becomes(gpu) or stand).enabled != goal.enabled:
            faults.append(f"{gpu['pci']} has {_becomes(gpu) or stand}, desired is {goal}")
        elif goal is not None and not _becomes(gpu) and not stand.satisfies(goal):
            faults.append(f"{gpu['pci']} has {stand}, desired is {goal}")
    if faults:
        more = f" and {counted(len(faults) - 1, 'more GPU')}" if len(faults) > 1 else ""
        return component.Result("failed", faults[0] + more, "Run site.yml: it changes only the GPUs that differ.")
    if unknown:
        return component.Result("failed", f"the MIG state of {', '.join(unknown)} is not known",
                                "Repair the driver and these GPUs first; until then, no steps are planned for them.")
    waiting = [gpu["pci"] for gpu in gpus if _becomes(gpu)]
    if waiting:
        return component.Result("pending", f"the MIG mode of {', '.join(waiting)} changes with the next reset",
                                "Set gpu_disruption: idle, which allows the reset of idle GPUs, or reboot if they "
                                "cannot be reset."
                                if set(waiting) & set(wanted) else
                                "No layout is selected for these GPUs: reset them while they are idle, or restore the "
                                "mode with nvidia-smi -mig.")
    if not selected:
        return component.Result("ok", f"not managed ({mig_layouts.overview(gpus)})")
    lost = _lost_at_boot(wanted, facts) if want.get("boot") and wanted else ""
    if lost:
        return component.Result("failed", lost, "Run site.yml: it repairs this.")
    devices = sum(mig_layouts.current(gpu).devices for gpu in gpus if gpu["pci"] in wanted)
    masked = want.get("boot") and facts["mig_boot"]["masked"]
    forgotten = f"; {UNIT} is masked, so the layout is lost at the next boot" if masked else ""
    return component.Result("ok", f"{selected} ({devices} devices){forgotten}")


def _becomes(gpu: Gpu) -> mig_layouts.MigState | None:
    """The state of a GPU after its next reset, None if a reset does not change its MIG mode."""
    mig = gpu.get("mig")
    if not mig or mig["pending"] == mig["enabled"]:
        return None
    return mig_layouts.MigState(True, None) if mig["pending"] else mig_layouts.OFF


def _lost_at_boot(wanted: t.Mapping[str, mig_layouts.MigState], facts: HostFacts) -> str:
    """The difference between the selected layout and the layout after the next boot, empty if there is none."""
    boot = facts["mig_boot"]
    if boot["masked"]:
        return ""  # the administrator has chosen this
    if boot["vendor"]:
        return f"{boot['vendor']} is enabled, and applies its own layout at boot"
    if not boot["enabled"]:
        return "gpuops-mig.service is not enabled, so the layout is lost at the next boot"
    kept = {uuid.lower(): mig_layouts.after_boot(entry) for uuid, entry in (boot["gpus"] or {}).items()}
    for gpu in facts["gpus"]:
        goal, after = wanted.get(gpu["pci"]), kept.get(str(gpu["uuid"]).lower())
        if goal is not None and (after is None or not after.satisfies(goal)):
            return f"{gpu['pci']} will have {after or 'no layout'} after a boot, desired is {goal}"
    return ""


COMPONENT = component.Component(
    "mig_manager", host_plan, check, asked_for=lambda variables: bool(variables.get("mig_manager_selected")),
    journal="mig", images=("mig_manager", "validator"), cluster_plan=cluster_plan)
