# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The container toolkit: its plans on a host and in a cluster, and whether it is there. Pure. PRIVATE.

Source of the variables: NVIDIA/nvidia-container-toolkit, the installer that the operator's toolkit image runs.
"""

from __future__ import annotations

import posixpath
import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._result import allows
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._components import component
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.refusals import Refused
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.releases import version_key

# Distributions of Kubernetes with a containerd of their own, which the module knows by their names.
OWN_RUNTIME = ("k3s", "rke2", "k0s", "microk8s")
_MODE = "nvidia-container-runtime.mode"
_DEFAULT = ("NVIDIA_RUNTIME_SET_AS_DEFAULT", "CONTAINERD_SET_AS_DEFAULT", "DOCKER_SET_AS_DEFAULT",
            "CRIO_SET_AS_DEFAULT")
# Variables of toolkit.env that are settings of the vendor's runtime on a host, too: the name there, and the type.
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


def host_plan(host: component.Host) -> component.Plan:
    """Raises Refused."""
    policy, release, variables = host.asked.policy, host.asked.release, host.variables
    cdi = host.switched("container_toolkit_cdi", policy.get("cdi.enabled"))
    environment = component.environment(policy.get("toolkit.env"))
    told = next((environment[name] for name in _DEFAULT if name in environment), None)
    # As the operator has it: with CDI nobody needs the nvidia runtime as default.
    default = (not cdi) if told is None else component.is_true(told)
    text = str(variables.get("container_toolkit_version") or policy.get("toolkit.version")
               or release.components["container_toolkit"])
    match = re.fullmatch(r"v?(\d+\.\d+\.\d+(?:-rc\.\d+)?)(?:-[a-z].*)?", text)
    if match is None:
        raise Refused(f"toolkit version {text!r} is not a version", "Write a version such as 1.20.0 or v1.20.0.")
    if host.place == "host":
        if not any(host.facts["runtimes"].values()) and host.facts["host"]["markers"]["kubernetes"] not in OWN_RUNTIME:
            host.notes.append("no container runtime is installed; the toolkit's configuration waits for one.")
        pods = sorted(name for name in environment if name not in _SETTINGS and name not in _DEFAULT)
        if pods:
            host.notes.append(f"toolkit.env {', '.join(pods)}: of the operator's pod alone, without a meaning on a "
                              "host.")
    settings = {name: _typed(environment[variable], kind) for variable, (name, kind) in _SETTINGS.items()
                if environment.get(variable)}
    if cdi and policy.get("cdi.default") and version_key(release.version) < (25, 10):
        settings.setdefault(_MODE, "cdi")
    return {"placement": host.place, "state": "present", "version": match[1],
            "runtime": variables.get("container_toolkit_runtime") or "auto",
            "set_as_default": host.switched("container_toolkit_set_as_default", default), "cdi": cdi,
            "mode": variables.get("container_toolkit_mode"), "nri": bool(policy.get("cdi.nriPluginEnabled")),
            "settings": settings, "because": host.because}


def _typed(value: str, kind: type) -> object:
    if kind is bool:
        return component.is_true(value)
    return [part.strip() for part in value.split(",") if part.strip()] if kind is list else value


# runtime: its own variable names, and the host's files: main configuration, drop-in, socket.
_RUNTIMES: dict[str, tuple[str, str, str | None, str | None]] = {
    "containerd": ("CONTAINERD", "/etc/containerd/config.toml", "/etc/containerd/conf.d/99-nvidia.toml",
                   "/run/containerd/containerd.sock"),
    "docker": ("DOCKER", "/etc/docker/daemon.json", None, "/var/run/docker.sock"),
    "crio": ("CRIO", "/etc/crio/config.toml", "/etc/crio/crio.conf.d/99-nvidia.conf", None),
}


def cluster_plan(context: component.Context, shared: component.PresentPlan) -> component.Plan:
    """A user gives paths of the host; the container sees their folders below /runtime."""
    mine, cdi, nri = shared["env"], bool(context.get("cdi.enabled")), bool(context.get("cdi.nriPluginEnabled"))
    env = {"RUNTIME": context.runtime}
    if cdi and version_key(context.release.version) < (25, 10):
        # Before native CDI: devices come by annotations of the device plugin, and nvidia is the default runtime.
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
        socket = mine.pop("NRI_SOCKET", "") or "/var/run/nri/nri.sock"
        env.update(ENABLE_NRI_PLUGIN="true", NRI_SOCKET=f"/runtime/nri-sock-dir/{posixpath.basename(socket)}")
        folders = [_folder("nri-socket", "/runtime/nri-sock-dir/", socket, "DirectoryOrCreate")]
    else:
        folders = _runtime_folders(context.runtime, env, mine)
        _hold_restart(context, mine)
        if context.runtime == "containerd":
            env["CONTAINERD_RUNTIME_CLASS"] = str(context.get("operator.runtimeClass") or "nvidia")
        _sources(mine)
    return {**shared, "folders": folders, "runtime_env": env,
            "hooks": ("/usr/share/containers/oci/hooks.d" if context.runtime == "crio" and not context.openshift
                      else "/run/containers/oci/hooks.d")}


def _hold_restart(context: component.Context, mine: dict[str, str]) -> None:
    """Below drain the toolkit does not restart Docker, which ends containers unless live-restore is on; by default it
    sends a signal. The containers of other runtimes live on."""
    for name in ("RUNTIME_RESTART_MODE", "DOCKER_RESTART_MODE"):
        if context.runtime == "docker" and mine.get(name) == "systemd" and not allows(context.disruption, "drain"):
            mine[name] = "signal"
            context.notes.append(f"toolkit.env: {name} is signal, as gpu_disruption is {context.disruption}: a restart "
                                 "of Docker ends containers and needs drain or higher.")


def _runtime_folders(runtime: str, env: dict[str, str], mine: dict[str, str]) -> list[component.Plan]:
    word, config, drop_in, socket = _RUNTIMES[runtime]
    own, common = mine.pop(f"{word}_CONFIG", ""), mine.pop("RUNTIME_CONFIG", "")
    config = own or common or config
    inside = f"/runtime/config-dir/{posixpath.basename(config)}"
    env.update({"RUNTIME_CONFIG": inside, f"{word}_CONFIG": inside})
    folders = [_folder(f"{runtime}-config", "/runtime/config-dir/", config, "DirectoryOrCreate")]
    if drop_in:
        drop_in = mine.pop("RUNTIME_DROP_IN_CONFIG", "") or drop_in
        env.update(RUNTIME_DROP_IN_CONFIG=f"/runtime/config-dir.d/{posixpath.basename(drop_in)}",
                   RUNTIME_DROP_IN_CONFIG_HOST_PATH=drop_in)
        folders.append(_folder(f"{runtime}-drop-in-config", "/runtime/config-dir.d/", drop_in, "DirectoryOrCreate"))
    if socket:
        socket = mine.pop(f"{word}_SOCKET", "") or socket
        inside = f"/runtime/sock-dir/{posixpath.basename(socket)}"
        env.update({"RUNTIME_SOCKET": inside, f"{word}_SOCKET": inside})
        folders.append(_folder(f"{runtime}-socket", "/runtime/sock-dir/", socket, ""))
    return folders


def _folder(name: str, mount: str, path: str, kind: str) -> component.Plan:
    return {"name": name, "mount": mount, "path": posixpath.dirname(path), "type": kind}


def _sources(mine: dict[str, str]) -> None:
    """Files among the sources of the runtime's configuration are the host's, which the container has at /host."""
    if mine.get("RUNTIME_CONFIG_SOURCE"):
        mine["RUNTIME_CONFIG_SOURCE"] = ",".join(
            f"file=/host{source[5:]}" if source.startswith("file=/") else source
            for source in mine["RUNTIME_CONFIG_SOURCE"].split(","))


def check(want: component.Expected, seen: component.Seen) -> component.Result:
    """Whether the toolkit is there, and the runtime that it serves knows it."""
    facts = seen.facts
    toolkit = facts["toolkit"]
    if not toolkit["version"]:
        return component.Result("absent", "not installed", "Run site.yml.")
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
    faults += component.lost_files(toolkit)
    name = _configured(chosen, facts)
    if name and name in ready and runtimes[name]["stale"]:
        faults.append(f"{name} runs with an older configuration than that of its files")
    if faults:
        return component.Result("failed", "; ".join(faults), "Run site.yml; it repairs exactly this.")
    idle = _idle(name, runtimes[name]) if name else None
    if idle:
        return component.Result("pending", *idle)
    parts = [str(toolkit["version"]), " and ".join(ready), "CDI" if toolkit["cdi_specs"] else ""]
    return component.Result("ok", ", ".join(part for part in parts if part))


def _configured(chosen: str, facts: component.Facts) -> str | None:
    """The runtime that container_toolkit configures, where facts tell of it."""
    kubernetes = facts["host"]["markers"]["kubernetes"]
    if chosen == "auto" and kubernetes in OWN_RUNTIME:
        return None
    order = ("containerd", "crio", "docker") if kubernetes else ("docker", "containerd", "crio")
    there = [name for name in order if facts["runtimes"][name] and chosen in ("auto", name)]
    return next(iter([name for name in there if facts["runtimes"][name]["running"]] + there), None)


def _idle(name: str, runtime: component.Facts) -> tuple[str, str] | None:
    """Why a runtime starts no containers, now or after a boot, and what to do; None where it does or nobody knows."""
    if runtime["boot"] == "masked":
        return f"{name} is masked", f"Whoever masked it decides: systemctl unmask {name}."
    if runtime["running"] is False:
        return f"{name} does not run", f"Whoever stopped it decides: systemctl enable --now {name}."
    if runtime["boot"] == "no":
        return f"{name} does not start at boot", f"Whoever disabled it decides: systemctl enable {name}."
    return None


def _cdi_faults(facts: component.Facts) -> list[str]:
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


def _uuids(gpus: t.Sequence[component.Facts]) -> set[str] | None:
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


COMPONENT = component.Component("container_toolkit", host_plan, check, images=("container_toolkit", "validator"),
                                cluster_plan=cluster_plan)
