# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The container toolkit: its plans on a host and in a cluster, and its check. Pure. PRIVATE.

Source of the variables: the installer in NVIDIA/nvidia-container-toolkit, which the operator's toolkit image runs.
"""

from __future__ import annotations

import posixpath
import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import allows
from ansible_collections.gpuops.nvidia.plugins.module_utils._toolkit.options import CHOOSING, RUNTIME_CLASSES
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._components import component
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import runtime_names
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.components import HostVars
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.facts import Gpu, HostFacts, Runtime
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.refusals import Refused
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.releases import version_key
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.wording import some_of
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._runtimes import settings_file

# Distributions of Kubernetes that include their own containerd; also allowed values of the module's option runtime.
OWN_RUNTIME = ("k3s", "rke2", "k0s", "microk8s")
_MODE = "nvidia-container-runtime.mode"
_DEFAULT = ("NVIDIA_RUNTIME_SET_AS_DEFAULT", "CONTAINERD_SET_AS_DEFAULT", "DOCKER_SET_AS_DEFAULT",
            "CRIO_SET_AS_DEFAULT")
# The first variable that is set applies, as in the installer; the last one is of its former program for CRI-O.
_NAMES = ("NVIDIA_RUNTIME_NAME", "CONTAINERD_RUNTIME_CLASS", "DOCKER_RUNTIME_NAME", "CRIO_RUNTIME_CLASS")
# (setting of nvidia-container-runtime on a host, its type), by variable in toolkit.env.
_SETTINGS: dict[str, tuple[str, type]] = {
    "ACCEPT_NVIDIA_VISIBLE_DEVICES_AS_VOLUME_MOUNTS": ("accept-nvidia-visible-devices-as-volume-mounts", bool),
    "ACCEPT_NVIDIA_VISIBLE_DEVICES_ENVVAR_WHEN_UNPRIVILEGED": (
        "accept-nvidia-visible-devices-envvar-when-unprivileged", bool),
    "NVIDIA_CONTAINER_CLI_DEBUG": ("nvidia-container-cli.debug", str),
    "NVIDIA_CONTAINER_RUNTIME_DEBUG": ("nvidia-container-runtime.debug", str),
    "NVIDIA_CONTAINER_RUNTIME_HOOK_SKIP_MODE_DETECTION": ("nvidia-container-runtime-hook.skip-mode-detection", bool),
    "NVIDIA_CONTAINER_RUNTIME_LOG_LEVEL": ("nvidia-container-runtime.log-level", str),
    "NVIDIA_CONTAINER_RUNTIME_MODE": (_MODE, str),
    "NVIDIA_CONTAINER_RUNTIME_MODES_CDI_ANNOTATION_PREFIXES": (
        "nvidia-container-runtime.modes.cdi.annotation-prefixes", list),
    "NVIDIA_CONTAINER_RUNTIME_MODES_CDI_DEFAULT_KIND": ("nvidia-container-runtime.modes.cdi.default-kind", str),
    "NVIDIA_CONTAINER_RUNTIME_RUNTIMES": ("nvidia-container-runtime.runtimes", list),
}

# Hosts detect the container runtime and its file. The variables for another one, by variable in toolkit.env.
_OF_HOSTS = {
    "RUNTIME": "container_toolkit_runtime", "CONTAINERD_SOCKET": "container_toolkit_runtime",
    "CONTAINERD_CONFIG": "container_toolkit_config_path", "RUNTIME_CONFIG": "container_toolkit_config_path",
    "DOCKER_CONFIG": "container_toolkit_config_path", "CRIO_CONFIG": "container_toolkit_config_path",
    "RUNTIME_DROP_IN_CONFIG": "container_toolkit_drop_in_path",
}


class ToolkitPlan(component.HostPlan):
    """The plan on a host. All keys are options of the module container_toolkit. version: without the prefix C(v);
    runtime: one name, or a list of several; settings: the settings of nvidia-container-runtime, by path."""

    state: str
    version: str
    runtime: t.Union[t.List[str], str]
    set_as_default: bool
    nvidia_runtime_name: str
    cdi: bool
    mode: object
    nri: bool
    rootless_users: t.List[str]
    settings: t.Dict[str, object]


class Folder(t.TypedDict):
    """A folder of the Node that is mounted into the container. name: the name of the volume; mount: the path in the
    container; path: the path on the Node; type: the type of the hostPath volume."""

    name: str
    mount: str
    path: str
    type: str


class ToolkitPart(component.PresentPlan):
    """The plan in a cluster. runtime_env: variables that are derived from the policy; hooks: the folder of the Node for
    OCI hooks."""

    folders: t.List[Folder]
    runtime_env: t.Dict[str, str]
    hooks: str


def host_plan(host: component.Host) -> ToolkitPlan:
    """The plan on a host. The variables of the host take precedence over the policy. Raises Refused."""
    policy, release, variables = host.inputs.policy, host.inputs.release, host.variables
    cdi = host.boolean_variable("container_toolkit_cdi", policy.get("cdi.enabled"))
    environment = component.environment(policy.get("toolkit.env"))
    given = next(((name, environment[name]) for name in _DEFAULT if name in environment), None)
    # As in the operator, the nvidia runtime does not have to be the default runtime if CDI is enabled.
    default = (not cdi) if not given or host.place != "host" else _boolean(*given)
    text = str(variables.get("container_toolkit_version") or policy.get("toolkit.version")
               or release.components["container_toolkit"])
    match = re.fullmatch(r"v?(\d+\.\d+\.\d+(?:-rc\.\d+)?)(?:-[a-z].*)?", text)
    if match is None:
        raise Refused(f"toolkit version {text!r} is not valid", "Write a version such as 1.20.0 or v1.20.0.")
    if host.place == "host":
        if not any(host.facts["runtimes"].values()) and host.facts["host"]["markers"]["kubernetes"] not in OWN_RUNTIME:
            host.notes.append("no container runtime is installed, so the container toolkit cannot be configured.")
        host.notes += component.only_in_pods("toolkit.env", environment, (*_SETTINGS, *_DEFAULT, *_NAMES),
                                             _OF_HOSTS)
    runtime, nri = _runtime(variables), bool(policy.get("cdi.nriPluginEnabled"))
    if host.place == "host" and nri:
        host.notes += _without_nri(runtime_names.names_in(runtime), host.facts)
    return {"placement": host.place, "state": "present", "version": match[1],
            "runtime": runtime,
            "set_as_default": host.boolean_variable("container_toolkit_set_as_default", default),
            "nvidia_runtime_name": _name(host, environment), "cdi": cdi,
            "mode": variables.get("container_toolkit_mode"), "nri": nri,
            "rootless_users": _users(variables),
            "settings": _settings(host, environment, cdi) if host.place == "host" else {}, "because": host.because}


def _settings(host: component.Host, environment: t.Mapping[str, str], cdi: bool) -> dict[str, object]:
    """The settings of nvidia-container-runtime by dotted name: those of the policy, and those of the host, which take
    precedence. Raises Refused."""
    policy = host.inputs.policy
    settings = {name: _typed(variable, environment[variable], kind) for variable, (name, kind) in _SETTINGS.items()
                if environment.get(variable)}
    if cdi and policy.get("cdi.default") and version_key(host.inputs.release.version) < (25, 10):
        settings.setdefault(_MODE, "cdi")
    own = host.variables.get("container_toolkit_settings")
    merged: dict[str, object] = {}
    for source, given in (("toolkit.env", settings), ("container_toolkit_settings", own)):
        try:
            merged.update(settings_file.by_name(given) if isinstance(given, dict) else {})
        except InputError as error:
            reason = error.message.rstrip(".").replace("settings.", "", 1)
            raise Refused(f"{source}: {reason}", error.hint) from error
    return merged


def _without_nri(names: t.Sequence[str], facts: HostFacts) -> list[str]:
    """A note if none of the configured container runtimes uses containerd, so that NRI is not enabled. names: the
    option runtime."""
    if names[0] not in CHOOSING:
        chosen = list(names)
    elif facts["host"]["markers"]["kubernetes"] in OWN_RUNTIME:
        return []
    else:
        chosen = _chosen(names, facts)
    return [f"cdi.nriPluginEnabled: no effect on {some_of(chosen)}: only NRI of containerd is enabled."] if (
        chosen and not {"containerd", *OWN_RUNTIME}.intersection(chosen)) else []


def _name(host: component.Host, environment: t.Mapping[str, str]) -> str:
    """The option nvidia_runtime_name. Raises Refused."""
    variable = "container_toolkit_nvidia_runtime_name"
    values = {variable: str(host.variables.get(variable) or ""),
              **{f"toolkit.env: {name}": environment.get(name, "") for name in _NAMES},
              "operator.runtimeClass": str(host.inputs.policy.get("operator.runtimeClass") or "")}
    source, name = next(((source, name) for source, name in values.items() if name), (variable, RUNTIME_CLASSES[0]))
    if source != variable and name in RUNTIME_CLASSES[1:]:
        if host.place == "host":
            host.notes.append(f"{source}: {name} is reserved for the mode {name.rpartition('-')[2]}, so the runtime is "
                              f"named {RUNTIME_CLASSES[0]}, as by the toolkit of the operator.")
        return RUNTIME_CLASSES[0]
    path, mode = host.variables.get("container_toolkit_nvidia_runtime_path"), host.variables.get(
        "container_toolkit_mode")
    try:
        runtime_names.check_nvidia_runtime(name, str(path or ""), str(mode or "auto"), "container_toolkit_")
    except InputError as error:
        # The message begins with the path, which for a name of the policy is not that of the variable.
        reason = error.message.rstrip(".").replace(f"{variable}: ", f"{source}: {name}: ")
        raise Refused(reason, f"{error.hint} Allowed: {error.details['allowed']}.") from error
    return name


def _users(variables: HostVars) -> list[str]:
    """The option rootless_users."""
    users = variables.get("container_toolkit_rootless_users")
    return [str(name) for name in users] if isinstance(users, (list, tuple)) else []


def _runtime(variables: HostVars) -> list[str] | str:
    """The option runtime. The names in the variables of the host are known. Raises Refused."""
    names = runtime_names.names_in(variables.get("container_toolkit_runtime"))
    paths = {name: variables.get(name) for name in ("container_toolkit_config_path", "container_toolkit_drop_in_path")}
    try:
        runtime_names.check(names, "container_toolkit_runtime", **paths)
    except InputError as error:
        raise Refused(error.message.rstrip("."), error.hint) from error
    return names if len(names) > 1 else names[0]


def _boolean(variable: str, value: str) -> bool:
    """The value of a boolean variable in toolkit.env. The toolkit of the operator does not start with other values.
    Raises Refused."""
    if value and not component.is_true(value) and not component.is_false(value):
        raise Refused(f"toolkit.env: {variable}: {value!r} is not allowed", "Set true or false, in quotes.")
    return component.is_true(value)


def _typed(variable: str, value: str, kind: type) -> object:
    if kind is bool:
        return _boolean(variable, value)
    return [part.strip() for part in value.split(",") if part.strip()] if kind is list else value


# (prefix of variables, configuration file, drop-in file, socket), by container runtime.
_RUNTIMES: dict[str, tuple[str, str, str | None, str | None]] = {
    "containerd": ("CONTAINERD", "/etc/containerd/config.toml", "/etc/containerd/conf.d/99-nvidia.toml",
                   "/run/containerd/containerd.sock"),
    "docker": ("DOCKER", "/etc/docker/daemon.json", None, "/var/run/docker.sock"),
    "crio": ("CRIO", "/etc/crio/config.toml", "/etc/crio/crio.conf.d/99-nvidia.conf", None),
}


def cluster_plan(context: component.Context, shared: component.PresentPlan) -> ToolkitPart:
    """The plan in a cluster. Paths in the policy are paths on the Node; the container mounts their folders below
    /runtime."""
    given, cdi, nri = shared["env"], bool(context.get("cdi.enabled")), bool(context.get("cdi.nriPluginEnabled"))
    env = {"RUNTIME": context.runtime}
    if cdi and version_key(context.release.version) < (25, 10):
        # Without native CDI, the device plugin requests devices by annotations, and nvidia is the default runtime.
        env.update(CDI_ENABLED="true", CRIO_CONFIG_MODE="config",
                   NVIDIA_CONTAINER_RUNTIME_MODES_CDI_ANNOTATION_PREFIXES="nvidia.cdi.k8s.io/")
        if context.get("cdi.default"):
            env["NVIDIA_CONTAINER_RUNTIME_MODE"] = "cdi"
    elif cdi:
        env.update(CDI_ENABLED="true", NVIDIA_RUNTIME_SET_AS_DEFAULT="false", NVIDIA_CONTAINER_RUNTIME_MODE="cdi",
                   CRIO_CONFIG_MODE="config")
    elif context.runtime == "crio":
        env["CRIO_CONFIG_MODE"] = "hook"
    if nri:
        socket = given.pop("NRI_SOCKET", "") or "/var/run/nri/nri.sock"
        env.update(ENABLE_NRI_PLUGIN="true", NRI_SOCKET=f"/runtime/nri-sock-dir/{posixpath.basename(socket)}")
        folders = [_folder("nri-socket", "/runtime/nri-sock-dir/", socket, "DirectoryOrCreate")]
    else:
        folders = _runtime_folders(context.runtime, env, given, context.notes)
        _limit_restart(context, given)
        if context.runtime == "containerd":
            env["CONTAINERD_RUNTIME_CLASS"] = str(context.get("operator.runtimeClass") or "nvidia")
        _sources(given)
    return {**shared, "folders": folders, "runtime_env": env,
            "hooks": ("/usr/share/containers/oci/hooks.d" if context.runtime == "crio" and not context.openshift
                      else "/run/containers/oci/hooks.d")}


def _limit_restart(context: component.Context, given: dict[str, str]) -> None:
    """Replaces the restart of Docker with a signal if gpu_disruption is below C(drain), because a restart ends
    containers unless Docker's live-restore is on. Other container runtimes keep their containers during a restart."""
    for name in ("RUNTIME_RESTART_MODE", "DOCKER_RESTART_MODE"):
        if context.runtime == "docker" and given.get(name) == "systemd" and not allows(context.disruption, "drain"):
            given[name] = "signal"
            context.notes.append(f"toolkit.env: {name} is set to signal, because a restart of Docker ends containers; "
                                 f"systemd needs gpu_disruption drain or higher, and it is {context.disruption}.")


def _runtime_folders(runtime: str, env: dict[str, str], given: dict[str, str], notes: list[str]) -> list[Folder]:
    word, config, drop_in, socket = _RUNTIMES[runtime]
    own, common = given.pop(f"{word}_CONFIG", ""), given.pop("RUNTIME_CONFIG", "")
    if own and common and own != common:
        notes.append(f"toolkit.env: RUNTIME_CONFIG: no effect, because {word}_CONFIG is set.")
    config = own or common or config
    inside = f"/runtime/config-dir/{posixpath.basename(config)}"
    env.update({"RUNTIME_CONFIG": inside, f"{word}_CONFIG": inside})
    folders = [_folder(f"{runtime}-config", "/runtime/config-dir/", config, "DirectoryOrCreate")]
    if drop_in:
        drop_in = given.pop("RUNTIME_DROP_IN_CONFIG", "") or drop_in
        env.update(RUNTIME_DROP_IN_CONFIG=f"/runtime/config-dir.d/{posixpath.basename(drop_in)}",
                   RUNTIME_DROP_IN_CONFIG_HOST_PATH=drop_in)
        folders.append(_folder(f"{runtime}-drop-in-config", "/runtime/config-dir.d/", drop_in, "DirectoryOrCreate"))
    if socket:
        socket = given.pop(f"{word}_SOCKET", "") or socket
        inside = f"/runtime/sock-dir/{posixpath.basename(socket)}"
        env.update({"RUNTIME_SOCKET": inside, f"{word}_SOCKET": inside})
        folders.append(_folder(f"{runtime}-socket", "/runtime/sock-dir/", socket, ""))
    return folders


def _folder(name: str, mount: str, path: str, kind: str) -> Folder:
    return {"name": name, "mount": mount, "path": posixpath.dirname(path), "type": kind}


def _sources(given: dict[str, str]) -> None:
    """Adds the prefix /host to the files of the Node in RUNTIME_CONFIG_SOURCE."""
    if given.get("RUNTIME_CONFIG_SOURCE"):
        given["RUNTIME_CONFIG_SOURCE"] = ",".join(
            f"file=/host{source[5:]}" if source.startswith("file=/") else source
            for source in given["RUNTIME_CONFIG_SOURCE"].split(","))


def check(want: ToolkitPlan, seen: component.HostState) -> component.Result:
    """Checks whether the toolkit is installed, and whether a container runtime is configured for it."""
    facts = seen.facts
    toolkit = facts["toolkit"]
    if not toolkit["version"]:
        return component.Result("absent", "not installed", "Run site.yml.")
    faults = []
    if want.get("version") and toolkit["version"] != want["version"]:
        faults.append(f"version {toolkit['version']} is installed, desired is {want['version']}")
    chosen = runtime_names.names_in(want.get("runtime"))
    missing = [name for name in chosen if name in facts["runtimes"] and not facts["runtimes"][name]]
    if missing:
        faults.append(f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed")
    served = _served(chosen, facts)
    runtime_class = str(want.get("nvidia_runtime_name") or RUNTIME_CLASSES[0])
    ready = [name for name, runtime in served.items() if runtime_class in runtime["classes"]]
    # `auto` configures one of them.
    unready = [] if chosen == ["auto"] and ready else [name for name in served if name not in ready]
    if unready:
        faults.append(f"{' and '.join(unready)} {'does' if len(unready) == 1 else 'do'} not have the "
                      f"{runtime_class} runtime")
    if want.get("cdi"):
        faults += _cdi_faults(facts)
    faults += component.missing_files(toolkit["missing_files"])
    configured = ({name: served[name] for name in _chosen(chosen, facts) if name in served} if chosen == ["auto"]
                  else served)
    faults += [f"{name} has not loaded its current configuration files" for name, runtime in configured.items()
               if name in ready and runtime["stale"]]
    users = {name: docker for name, docker in facts["rootless"].items() if name in (want.get("rootless_users") or ())}
    unset = [name for name, docker in users.items() if docker["classes"] is not None
             and runtime_class not in docker["classes"]]
    if unset:
        faults.append(f"the rootless Docker of {' and '.join(unset)} does not have the {runtime_class} runtime")
    if faults:
        hint = "Run site.yml: it repairs this." if not missing else (
            f"Install {' and '.join(missing)}, or remove {'it' if len(missing) == 1 else 'them'} from "
            "container_toolkit_runtime. Then run site.yml.")
        return component.Result("failed", "; ".join(faults), hint)
    idle = [reason for name, runtime in configured.items() if (reason := _idle(name, runtime))]
    idle += [(f"the rootless Docker of {name} does not run",
              f"A run does not change this. To start it, as {name}: systemctl --user enable --now docker")
             for name, docker in users.items() if docker["running"] is False]
    if idle:
        return component.Result("pending", "; ".join(reason for reason, _remedy in idle),
                                "; ".join(remedy for _reason, remedy in idle))
    parts = [str(toolkit["version"]), " and ".join(ready), "CDI" if toolkit["cdi_specs"] else ""]
    return component.Result("ok", ", ".join(part for part in parts if part))


def _served(chosen: t.Collection[str], facts: HostFacts) -> dict[str, Runtime]:
    """The installed container runtimes that the module may configure, except podman, which uses CDI without any
    configuration."""
    names = _chosen(chosen, facts) if "all" in chosen else facts["runtimes"] if "auto" in chosen else chosen
    return {name: state for name, state in facts["runtimes"].items() if state and name in names and name != "podman"}


def _chosen(chosen: t.Collection[str], facts: HostFacts) -> list[str]:
    """The container runtimes that `auto` or `all` means, as far as they are in the facts."""
    kubernetes = facts["host"]["markers"]["kubernetes"]
    if kubernetes in OWN_RUNTIME and "auto" in chosen:
        return []
    installed = {name: state for name, state in facts["runtimes"].items() if state}
    only_docker = "containerd" in installed and installed["containerd"]["cri"] is False
    return runtime_names.choose(chosen, {name: state["running"] for name, state in installed.items()}, only_docker,
                                bool(kubernetes))


def _idle(name: str, runtime: Runtime) -> tuple[str, str] | None:
    """(reason, remedy) if a container runtime does not run now or will not start at boot; otherwise None, or if
    unknown."""
    if runtime["boot"] == "masked":
        return f"{name} is masked", f"A run does not change this. To unmask the service: systemctl unmask {name}"
    if runtime["running"] is False:
        return (f"{name} does not run",
                f"A run does not change this. To start the service: systemctl enable --now {name}")
    if runtime["boot"] == "no":
        return (f"{name} does not start at boot",
                f"A run does not change this. To enable the service: systemctl enable {name}")
    return None


def _cdi_faults(facts: HostFacts) -> list[str]:
    """Differences between the CDI specification and the loaded driver or the devices that NVML reports."""
    toolkit, loaded = facts["toolkit"], facts["driver"]["loaded"]
    devices = _uuids(facts["gpus"])
    specification = toolkit["cdi"]
    if not toolkit["cdi_specs"]:
        # The specification has no devices if all GPUs are in MIG mode without MIG devices.
        return [] if loaded and devices == set() else ["the CDI specification is missing"]
    if specification is None:
        return []
    driver = specification["driver"]
    if loaded and driver and driver != loaded:
        return [f"the CDI specification is for driver {driver}, but {loaded} is loaded"]
    # The names of devices are either UUIDs and indexes, or indexes only.
    named = {name for name in specification["devices"] if name.startswith(("GPU-", "MIG-"))}
    if devices is None or not named:
        return []
    missing, gone = sorted(devices - named), sorted(named - devices)
    return ([f"the CDI specification does not have {missing[0]}{_more(missing)}"] if missing else []) + (
        [f"the CDI specification has unknown devices: {gone[0]}{_more(gone)}"] if gone else [])


def _more(found: t.Sequence[str]) -> str:
    return f" and {len(found) - 1} more" if len(found) > 1 else ""


def _uuids(gpus: t.Sequence[Gpu]) -> set[str] | None:
    """The UUIDs of the devices for containers: GPUs or, for GPUs in MIG mode, their MIG devices. None if unknown."""
    found: set[str] = set()
    for gpu in gpus:
        mig = gpu.get("mig")
        in_mig = mig["instances"] if mig and mig["enabled"] else None
        for uuid in [gpu.get("uuid")] if in_mig is None else [one for instance in in_mig for one in instance["uuids"]]:
            if uuid is None:
                return None
            found.add(uuid)
    return found if gpus else None


COMPONENT = component.Component("container_toolkit", host_plan, check, images=("container_toolkit", "validator"),
                                cluster_plan=cluster_plan)
