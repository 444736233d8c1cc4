# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What each component of a cluster is made of: one function a component, from the policy to the plan. Pure. PRIVATE.

The driver's is L(cluster_driver).

Source of the rules: GPU Operator 26.7 (how its ClusterPolicy becomes DaemonSets), also for the names of variables.
"""

from __future__ import annotations

import posixpath
import re
import typing as t
from dataclasses import dataclass, field

from ansible_collections.gpuops.nvidia.plugins.module_utils._result import allows
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._components import cluster_nfd, cluster_sharing, monitoring
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.matrix import Release, version_key
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.refusals import Concerned, Refused
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.wording import some_of
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import cluster_images as images
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.cluster_mig import default_config, names_in
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.formats import Policy
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy.sharing import Sharing, checksum

Plan = t.Dict[str, t.Any]
# devicePlugin.env of every ClusterPolicy that a chart up to 25.3.2 has made (its values.yaml).
_OLD_CHART_ENV = {"PASS_DEVICE_SPECS": "true", "FAIL_ON_INIT_ERROR": "true", "DEVICE_LIST_STRATEGY": "envvar",
                  "DEVICE_ID_STRATEGY": "uuid", "NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "all"}


@dataclass
class Context:
    """What all components share. plugin: whether a device plugin is delivered, here or by the Nodes' system; proxy: of
    L(_proxy.read); given: gpu_sharing; sharing: the device plugin's configurations, as far as they are known; present:
    components that are delivered, of those resolved so far; said: notes for the user, filled while resolving;
    faulty: by name of each NVIDIADriver that cannot be followed the reasons with its Nodes, filled while resolving."""

    policy: Policy
    release: Release
    mirror: str
    secrets: t.Sequence[str]
    disruption: str
    runtime: str
    openshift: bool = False
    plugin: bool = True
    service_monitors: bool | None = None
    prometheus_rules: bool | None = None
    monitoring: t.Mapping[str, t.Any] | None = None
    proxy: t.Mapping[str, str] = field(default_factory=dict)
    given: Sharing | None = None
    sharing: Sharing | None = None
    present: set[str] = field(default_factory=set)
    said: list[str] = field(default_factory=list)
    faulty: dict[str, list[Concerned]] = field(default_factory=dict)

    def get(self, path: str) -> t.Any:
        """A value of the policy."""
        return self.policy.get(path)

    def on(self, section: str) -> bool:
        """Whether a section of the policy is on."""
        return self.policy.enabled(section)

    def faults(self) -> list[Concerned]:
        """All of faulty."""
        return [one for reasons in self.faulty.values() for one in reasons]

    def image(self, name: str) -> str:
        """An image's reference."""
        return images.image(self.policy, self.release, name, self.mirror)


def environment(items: t.Iterable[t.Mapping[str, t.Any]] | None) -> dict[str, str]:
    """C({NAME: value}) of a list of name and value; of two with a name the last one counts, as in a container."""
    return {str(item["name"]): "" if item.get("value") is None else str(item["value"]) for item in items or ()}


def is_true(text: str) -> bool:
    """Whether a program written in Go reads a variable as true (strconv.ParseBool)."""
    return text in ("1", "t", "T", "TRUE", "true", "True")


def gated(context: Context, path: str, env: t.Mapping[str, str], levels: t.Mapping[str, str]) -> dict[str, str]:
    """A manager's variables, in which what gpu_disruption forbids is false, whatever the policy says.

    path: of the variables in the policy; levels: by variable the lowest level of gpu_disruption that allows it. Adds a
    note for each value of the policy that has no effect.
    """
    found = dict(env)
    for name, level in levels.items():
        if name not in env or allows(context.disruption, level):
            continue
        found[name] = "false"
        # What the manager cannot read as false may be true to another version of it.
        if env[name] not in ("", "0", "f", "F", "FALSE", "false", "False"):
            note = (f"{path}: {name} stays false, as gpu_disruption is {context.disruption} and this needs {level} or "
                    "higher.")
            context.said += [note] if note not in context.said else []
    return found


def part(context: Context, name: str, section: str) -> Plan:
    """The plan of a present component: what all have, and its own keys. Raises Refused."""
    used = _IMAGES[name]
    plan: Plan = {
        "state": "present", "because": [],
        "images": {one: context.image(one) for one in used if one != "driver"},
        "pull": {one: images.pull_policy(context.policy, one) for one in used},
        "pull_secrets": images.pull_secrets(context.policy, used, context.secrets),
        "args": list(context.get(f"{section}.args") or []), "env": environment(context.get(f"{section}.env")),
        "resources": context.get(f"{section}.resources") or {},
        "host_network": bool(context.get(f"{section}.hostNetwork")),
    }
    own = _OWN.get(name)
    if own is not None:
        own(context, plan)
    return plan


def config_map(context: Context, section: str, key: str = "") -> Plan:
    """C({name, default, data, checksum}) of a ConfigMap that the user names; data, and the checksum of it, only where
    the chart's values carry it."""
    config = context.get(f"{section}.config")
    config = config if isinstance(config, dict) else {}
    name, data = str(config.get("name") or ""), config.get("data")
    if config.get("create") and not name:
        raise Refused(f"{section}.config.create asks for a ConfigMap without a name", f"Set {section}.config.name.")
    if isinstance(data, str):
        data = {key: data}
    texts = dict(data) if config.get("create") and isinstance(data, dict) else {}
    return {"name": name, "default": str(config.get("default") or ""), "data": texts, "checksum": checksum(texts)}


# runtime: its own variable names, and the host's files: main configuration, drop-in, socket.
_RUNTIMES: dict[str, tuple[str, str, str | None, str | None]] = {
    "containerd": ("CONTAINERD", "/etc/containerd/config.toml", "/etc/containerd/conf.d/99-nvidia.toml",
                   "/run/containerd/containerd.sock"),
    "docker": ("DOCKER", "/etc/docker/daemon.json", None, "/var/run/docker.sock"),
    "crio": ("CRIO", "/etc/crio/config.toml", "/etc/crio/crio.conf.d/99-nvidia.conf", None),
}


def _container_toolkit(context: Context, plan: Plan) -> None:
    """A user gives paths of the host; the container sees their folders below /runtime."""
    mine, cdi, nri = plan["env"], bool(context.get("cdi.enabled")), bool(context.get("cdi.nriPluginEnabled"))
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
        plan["folders"] = [_folder("nri-socket", "/runtime/nri-sock-dir/", socket, "DirectoryOrCreate")]
    else:
        plan["folders"] = _runtime_folders(context.runtime, env, mine)
        _hold_restart(context, mine)
        if context.runtime == "containerd":
            env["CONTAINERD_RUNTIME_CLASS"] = str(context.get("operator.runtimeClass") or "nvidia")
        _sources(mine)
    plan["runtime_env"] = env
    plan["hooks"] = ("/usr/share/containers/oci/hooks.d" if context.runtime == "crio" and not context.openshift
                     else "/run/containers/oci/hooks.d")


def _hold_restart(context: Context, mine: dict[str, str]) -> None:
    """Below drain the toolkit does not restart Docker, which ends containers unless live-restore is on; by default it
    sends a signal. The containers of other runtimes live on."""
    for name in ("RUNTIME_RESTART_MODE", "DOCKER_RESTART_MODE"):
        if context.runtime == "docker" and mine.get(name) == "systemd" and not allows(context.disruption, "drain"):
            mine[name] = "signal"
            context.said.append(f"toolkit.env: {name} is signal, as gpu_disruption is {context.disruption}: a restart "
                                "of Docker ends containers and needs drain or higher.")


def _runtime_folders(runtime: str, env: dict[str, str], mine: dict[str, str]) -> list[Plan]:
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


def _folder(name: str, mount: str, path: str, kind: str) -> Plan:
    return {"name": name, "mount": mount, "path": posixpath.dirname(path), "type": kind}


def _sources(mine: dict[str, str]) -> None:
    """Files among the sources of the runtime's configuration are the host's, which the container has at /host."""
    if mine.get("RUNTIME_CONFIG_SOURCE"):
        mine["RUNTIME_CONFIG_SOURCE"] = ",".join(
            f"file=/host{source[5:]}" if source.startswith("file=/") else source
            for source in mine["RUNTIME_CONFIG_SOURCE"].split(","))


def _validator(context: Context, plan: Plan) -> None:
    """Where no device plugin is delivered nobody must wait for its resources."""
    plan["device_plugin"] = context.plugin
    # From 26.3 the check of the driver has them.
    release = version_key(context.release.version)
    checks = (("nvidia-fs", "gds", (24, 6)), ("gdrcopy", "gdrcopy", (25, 10)))
    plan["modules"] = [name for name, section, first in checks
                       if context.on(section) and first <= release < (26, 3)]


def _device_plugin(context: Context, plan: Plan) -> None:
    """The operator before 25.3.3 put the strategy of CDI above any that the policy names."""
    env = plan["env"]
    if context.get("cdi.enabled") and "DEVICE_LIST_STRATEGY" in env and (
            version_key(context.release.version) < (25, 3, 3) or _OLD_CHART_ENV.items() <= env.items()):
        context.said.append(f"devicePlugin.env: DEVICE_LIST_STRATEGY={env.pop('DEVICE_LIST_STRATEGY')} is left out, as "
                            "cdi.enabled is true: the operator overruled it, too, while its chart wrote it.")
    plan["config"] = _plugin_config(context)
    plan["mps_root"] = str(context.get("devicePlugin.mps.root") or "/run/nvidia/mps")
    plan["gds"] = context.on("gds")
    plan["gdrcopy"] = context.on("gdrcopy")


def _plugin_config(context: Context) -> Plan:
    carried = config_map(context, "devicePlugin")
    return carried if context.sharing is None else cluster_sharing.plan(context.sharing, context.given, carried)


def _feature_discovery(context: Context, plan: Plan) -> None:
    plan["config"] = {**_plugin_config(context), "data": {}}
    if not plan["config"]["name"]:  # no sidecar of the device plugin's image
        plan["pull_secrets"] = images.pull_secrets(context.policy, ("feature_discovery", "validator"), context.secrets)


def _dcgm_exporter(context: Context, plan: Plan) -> None:
    get, env = context.get, plan["env"]
    # It runs an engine of its own where there is none beside it.
    plan["engine"] = "nvidia-dcgm:5555" if "dcgm" in context.present else ""
    plan["config"] = config_map(context, "dcgmExporter", "dcgm-metrics.csv")
    plan["service"] = {"type": str(get("dcgmExporter.service.type") or "ClusterIP"),
                       "internal_traffic_policy": str(get("dcgmExporter.service.internalTrafficPolicy") or "Cluster")}
    plan["annotations"] = dict(get("dcgmExporter.annotations") or {})
    plan["host_pid"] = bool(get("dcgmExporter.hostPID"))
    plan["job_mapping"] = (str(get("dcgmExporter.hpcJobMapping.directory") or "/var/lib/dcgm-exporter/job-mapping")
                           if context.on("dcgmExporter.hpcJobMapping") else "")
    plan["pod_labels"] = bool(get("dcgmExporter.enablePodLabels"))
    plan["pod_uid"] = bool(get("dcgmExporter.enablePodUID"))
    plan["pod_label_allow"] = ",".join(get("dcgmExporter.podLabelAllowlistRegex") or [])
    by_env = any(is_true(env.get(name, "")) for name in _METADATA)
    plan["read_pods"] = plan["pod_labels"] or plan["pod_uid"] or by_env
    # The exporter asks the API server for nothing else.
    plan["api_access"] = plan["read_pods"] or env.get("DCGM_EXPORTER_CONFIGMAP_DATA", "none") not in ("", "none")
    # An engine of the Node itself is reached from the Node's own network only.
    if env.get("DCGM_REMOTE_HOSTENGINE_INFO", "").startswith("localhost"):
        plan["host_network"] = True
    plan["service_monitor"] = _service_monitor(context)
    plan["monitoring"] = monitoring.plan(
        dict(context.monitoring or monitoring.read(None)), plan["images"]["dcgm_exporter"], plan["service_monitor"],
        context.prometheus_rules, bool(plan["config"]["name"]))
    plan["accelerators"] = context.openshift and bool(context.prometheus_rules)
    if plan["monitoring"]["counters"] == "full":
        name, data = monitoring.config()
        plan["config"] = {"name": name, "default": "", "data": data, "checksum": checksum(data)}


_METADATA = ("DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS", "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_UID")


def _service_monitor(context: Context) -> Plan:
    """Empty where none is made. The chart's own default has it on from 26.7."""
    wanted = context.get("dcgmExporter.serviceMonitor")
    monitor = dict(wanted) if isinstance(wanted, dict) else {}
    default = context.policy.kind in ("values", "defaults") and version_key(context.release.version) >= (26, 7)
    if not monitor.get("enabled", default):
        return {}
    if not context.service_monitors:
        why = ("the cluster has no ServiceMonitor (monitoring.coreos.com)" if context.service_monitors is False
               else "no cluster was asked whether it knows ServiceMonitor")
        context.said.append(f"dcgmExporter.serviceMonitor: {why}; it is left out.")
        return {}
    # Without a time limit Prometheus takes its own, or the interval where that is shorter.
    return {"interval": monitor.get("interval") or "15s", "scrape_timeout": monitor.get("scrapeTimeout") or "",
            "honor_labels": bool(monitor.get("honorLabels")), "labels": dict(monitor.get("additionalLabels") or {}),
            "relabelings": list(monitor.get("relabelings") or [])}


def _node_status_exporter(context: Context, plan: Plan) -> None:
    """Prometheus is told of it wherever there is one, as the operator does."""
    plan["service_monitor"] = bool(context.service_monitors)
    plan["rules"] = context.openshift and bool(context.prometheus_rules)


def _nfd(context: Context, plan: Plan) -> None:
    plan["rules"] = bool(context.get("nfd.nodefeaturerules"))
    plan["tolerations"] = cluster_nfd.tolerations(context.get(cluster_nfd.TOLERATIONS),
                                                  context.get("daemonsets.tolerations") or ())
    ignored = cluster_nfd.without_effect(context.get(cluster_nfd.SECTION))
    if ignored:
        context.said.append(f"{', '.join(ignored)} in the policy: without effect, as NFD is delivered as the chart's "
                            "own values have it. Set nfd.enabled to false and install NFD with these yourself.")


# How arguments of the MIG manager, which a shell reads, ask for reboots: nvidia-mig-manager --with-reboot, -r.
_WITH_REBOOT = re.compile(r"with[-_]reboot|(^|\s)-r\b", re.IGNORECASE)
# A variable in these arguments: of the shell, or of Kubernetes, which fills in $(NAME).
_VARIABLE = re.compile(r"\$(?:\{(\w+)[^}]*\}|\((\w+)\)|(\w+))")


def _mig_manager(context: Context, plan: Plan) -> None:
    """The operator's own names ask for its own: definitions before 26.3 put the first into every ClusterPolicy.

    Raises Refused for arguments by which the manager reboots Nodes, where gpu_disruption forbids that.
    """
    plan["env"] = gated(context, "migManager.env", plan["env"], {"WITH_REBOOT": "reboot"})
    if not allows(context.disruption, "reboot") and _asks_for_reboots(plan["args"], plan["env"]):
        raise Refused("migManager.args lets the MIG manager reboot Nodes, by itself or by a variable of "
                      f"migManager.env, and gpu_disruption is {context.disruption}",
                      "Take with-reboot out of both, or set gpu_disruption: reboot.")
    plan["config"] = config_map(context, "migManager")
    if plan["config"]["name"] == "default-mig-parted-config" and not plan["config"]["data"]:
        plan["config"]["name"] = ""
    default, known = plan["config"]["default"], names_in(plan["config"]["data"])
    if default and known and default not in known:
        raise Refused(f"migManager.config.default ({default}) is no layout of migManager.config.data, which has "
                      f"{some_of(known)}", "Add it there, or set migManager.config.default to an empty text.")
    clients = str(context.get("migManager.gpuClientsConfig.name") or "")
    plan["clients"] = "" if clients == "default-gpu-clients" else clients
    # From 26.3 the manager asks the GPUs for their layouts; the file is what it falls back to.
    plan["generates"] = version_key(context.release.version) >= (26, 3)
    plan["default_config"] = {} if plan["config"]["name"] else default_config()


def _asks_for_reboots(args: t.Iterable[t.Any], env: t.Mapping[str, str]) -> bool:
    """Whether arguments ask for reboots, by themselves or by what a variable in them holds."""
    def value(match: re.Match[str]) -> str:
        return env.get(match[1] or match[2] or match[3], "")

    texts = [re.sub(r"""["'\\]""", "", _VARIABLE.sub(value, str(one))) for one in args]
    return any(_WITH_REBOOT.search(one) for one in (*texts, *(env.values() if texts else ())))


_OWN: dict[str, t.Callable[[Context, Plan], None]] = {
    "container_toolkit": _container_toolkit, "validator": _validator,
    "device_plugin": _device_plugin, "feature_discovery": _feature_discovery, "dcgm_exporter": _dcgm_exporter,
    "mig_manager": _mig_manager, "nfd": _nfd, "node_status_exporter": _node_status_exporter,
}
# Which images the pods of a component run.
_IMAGES: dict[str, tuple[str, ...]] = {
    "nfd": ("nfd",),
    "driver": ("driver", "driver_manager"),
    "container_toolkit": ("container_toolkit", "validator"),
    "validator": ("validator",),
    "device_plugin": ("device_plugin", "validator"),
    "feature_discovery": ("feature_discovery", "device_plugin", "validator"),
    "dcgm": ("dcgm", "validator"),
    "dcgm_exporter": ("dcgm_exporter", "validator"),
    "mig_manager": ("mig_manager", "validator"),
    "node_status_exporter": ("node_status_exporter",),
}
