# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Changes of our objects by other clients, and the expected repair."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from tests.integration_cluster.conftest import Audit
from tests.integration_cluster.world import ROWS, Object, World

Act = Callable[[World], object]


class Drift(NamedTuple):
    """A change by another client. target: the object as a plan names it; added: whether it only adds to the desired
    state; action: the action of a run."""

    target: str
    act: Act
    added: bool = False
    action: str = "repair"

    @property
    def kind(self) -> str:
        """The kind of the target."""
        return self.target.split()[0]

    @property
    def name(self) -> str:
        """The name of the target."""
        return self.target.split()[1].split("/")[-1]

    def seen(self, world: World) -> Object:
        """The content of the target without its status; empty if it does not exist."""
        found = world.find(self.kind.lower(), self.name)
        return content(found) if found else {}


def patch(kind: str, name: str, op: str, path: str, value: Any = None) -> Act:
    """A JSON patch with one operation."""
    operation = {"op": op, "path": os.path.normpath(path), **({} if op == "remove" else {"value": value})}
    return lambda world: world.patch(kind.lower(), name, operation)


def ds(path: str, op: str, value: Any = None) -> Act:
    """The same for a path below the pod template of the sample DaemonSet."""
    return patch("daemonset", "agent", op, f"/spec/template/spec/{path}", value)


def reordered(path: str) -> Act:
    """Reverses the order of a list below the pod template of the sample."""
    def act(world: World) -> None:
        found: Any = world.get("daemonset", "agent")["spec"]["template"]["spec"]
        for part in path.split("/"):
            found = found[int(part) if part.isdigit() else part]
        ds(path, "replace", found[::-1])(world)

    return act


def hand(*words: str, **more: Any) -> Act:
    """Changes the object with a kubectl command."""
    return lambda world: world.kubectl(*words, **more)


def recreate(kind: str, name: str, change: Callable[[Object], None]) -> Act:
    """Deletes the object and creates it again, with another content and our labels."""
    return lambda world: world.recreate(kind, name, change)


def container(**more: Any) -> Object:
    """Applies the only container of the sample by server-side apply."""
    return {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "agent"},
            "spec": {"template": {"spec": {"containers": [{"name": "agent", **more}]}}}}


def headless(item: Object) -> None:
    """Makes a Service headless."""
    for key in ("clusterIPs", "ipFamilies", "ipFamilyPolicy"):
        item["spec"].pop(key, None)
    item["spec"]["clusterIP"] = "None"


def relabelled(item: Object) -> None:
    """Changes the label of the pods and the matching selector."""
    item["spec"]["selector"]["matchLabels"]["app"] = "other"
    item["spec"]["template"]["metadata"]["labels"]["app"] = "other"


def together(drifts: dict[str, Drift]) -> list[tuple[str, ...]]:
    """The names of drifts that one run repairs: never two of one object, because one could hide the other."""
    alone = [(name,) for name, drift in drifts.items() if drift.kind == "Namespace"]  # it decides on what is in it
    found: list[dict[str, str]] = []
    for name, drift in drifts.items():
        if drift.kind != "Namespace":
            free = next((one for one in found if drift.target not in one), None)
            if free is None:
                found.append(free := {})
            free[drift.target] = name
    return [*(tuple(one.values()) for one in found), *alone]


def title(names: tuple[str, ...]) -> str:
    """The title of a test of these drifts."""
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def repaired(world: World, audit: Audit, drifts: list[Drift]) -> None:
    """Check mode reports the drifts, a run repairs exactly these, and the next one writes nothing."""
    before = [drift.seen(world) for drift in drifts]
    for drift, was in zip(drifts, before, strict=True):
        drift.act(world)
        drifted = drift.seen(world)
        assert drift.added == (holds(drifted, was) and drifted != was), drift
    audit.start()
    preview = world.run(check=True)
    assert not audit.writes
    done = world.run()
    assert sorted((step["target"], step["action"]) for step in done["plan"]) == sorted(
        (drift.target, drift.action) for drift in drifts)
    assert preview["plan"] == done["plan"] and preview["diff"] == done["diff"]
    # Nothing else: no other object moves.
    written = Counter((one["resource"], one["name"]) for one in audit.writes)
    assert written.keys() == {(ROWS[drift.kind.lower()].plural, drift.name) for drift in drifts}
    # Refused is what loses a race with a controller that writes the status.
    accepted = Counter((one["resource"], one["name"]) for one in audit.writes if one["code"] < 300)
    assert max(accepted.values()) <= 3, accepted
    assert [drift.seen(world) for drift in drifts] == before
    audit.start()
    again = world.run()
    assert not again["changed"] and not again["plan"] and not again["diff"]
    assert not audit.writes


def content(item: Object) -> Object:
    """An object without its status, without what controllers count in it, and without the address that a Service was
    assigned."""
    metadata = {part: {key: value for key, value in (item["metadata"].get(part) or {}).items()
                       if not key.startswith(("deprecated.daemonset.", "deployment.kubernetes.io/"))}
                for part in ("labels", "annotations")}
    found = {**{key: value for key, value in item.items() if key != "status"}, "metadata": metadata}
    if item["kind"] == "Service":
        spec = {key: value for key, value in item["spec"].items() if key != "clusterIPs"}
        found["spec"] = {**spec, "clusterIP": "None" if spec["clusterIP"] == "None" else "an address"}
    return found


def holds(have: Any, want: Any) -> bool:
    """Whether a value still contains all of the desired value."""
    if isinstance(want, dict) and isinstance(have, dict):
        return all(key in have and holds(have[key], value) for key, value in want.items())
    if isinstance(want, list) and isinstance(have, list):
        return all(any(holds(one, item) for one in have) for item in want)
    return bool(have == want)


ENV = {"name": "ADDED", "value": "x"}
EVERYTHING = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}
MALLORY = {"kind": "User", "name": "mallory", "apiGroup": "rbac.authorization.k8s.io"}
AGENT, SETTINGS, ROLE, TOKEN = "DaemonSet drift/agent", "ConfigMap drift/settings", "Role drift/agent", \
    "Secret drift/token"
OURS = "app.kubernetes.io/managed-by"

ON_SAMPLES: dict[str, Drift] = {
    "image": Drift(AGENT, ds("containers/0/image", "replace", "evil:1")),
    "image of an init container": Drift(AGENT, ds("initContainers/0/image", "replace", "evil:1")),
    "env added": Drift(AGENT, ds("containers/0/env/-", "add", ENV), True),
    "env changed": Drift(AGENT, ds("containers/0/env/0/value", "replace", "none")),
    "env removed": Drift(AGENT, ds("containers/0/env/0", "remove")),
    "empty env set": Drift(AGENT, ds("containers/0/env/1/value", "add", "something"), True),
    "hostPID": Drift(AGENT, ds("hostPID", "add", True), True),
    "nodeSelector key added": Drift(AGENT, ds("nodeSelector/zone", "add", "a"), True),
    "container added": Drift(AGENT, ds("containers/-", "add", {"name": "extra", "image": "evil:1"}), True),
    "toleration removed": Drift(AGENT, ds("tolerations", "remove")),
    "toleration added": Drift(AGENT, ds("tolerations/-", "add", {"operator": "Exists"}), True),
    "volume added": Drift(AGENT, ds("volumes/-", "add", {"name": "etc", "hostPath": {"path": "/etc"}}), True),
    "volume changed": Drift(AGENT, ds("volumes/0/hostPath/path", "replace", "/")),
    "an empty volume set": Drift(AGENT, ds("volumes/2/emptyDir/medium", "add", "Memory"), True),
    "mount removed": Drift(AGENT, ds("containers/0/volumeMounts/1", "remove")),
    # Nothing that was there is gone.
    "init containers in another order": Drift(AGENT, reordered("initContainers"), True),
    "env that names another before it": Drift(AGENT, reordered("containers/0/env"), True),
    "a value becomes a reference": Drift(AGENT, ds("containers/0/env/0", "replace", {
        "name": "MODE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}})),
    "a volume of another kind": Drift(AGENT, ds("volumes/0", "replace", {"name": "run", "emptyDir": {}})),
    "a probe of another kind": Drift(AGENT, ds("containers/0/livenessProbe", "replace", {
        "httpGet": {"path": "/", "port": 9400}, "periodSeconds": 5})),
    "limits changed": Drift(AGENT, ds("containers/0/resources/limits/cpu", "replace", "2")),
    "command argument added": Drift(AGENT, ds("initContainers/0/command/-", "add", "x"), True),
    "label in the pod template": Drift(AGENT, ds("../metadata/labels/extra", "add", "x"), True),
    "annotation in the pod template": Drift(AGENT, ds("../metadata/annotations", "add", {"inject": "yes"}), True),
    "update strategy": Drift(AGENT, patch("daemonset", "agent", "replace", "/spec/updateStrategy",
                                          {"type": "OnDelete"})),
    "security context added": Drift(AGENT, ds("containers/0/securityContext", "add", {"privileged": True}), True),
    "env added by server-side apply": Drift(AGENT, lambda world: world.server_side(container(env=[ENV])), True),
    "image by server-side apply": Drift(AGENT, lambda world: world.server_side(container(image="evil:2"))),
    "replaced as a whole": Drift(AGENT, lambda world: world.replace(
        "daemonset", "agent", lambda item: item["spec"]["template"]["spec"].update(hostNetwork=True)), True),
    "edited": Drift(AGENT, hand("edit", "daemonset", "agent", editor="sed -i s#example.org/agent:1#evil:3#")),
    "env set": Drift(AGENT, hand("set", "env", "daemonset/agent", "ADDED=x"), True),
    "image set": Drift(AGENT, hand("set", "image", "daemonset/agent", "agent=evil:4")),
    "managedFields cleared": Drift(AGENT, patch("daemonset", "agent", "replace", "/metadata/managedFields", [{}])),
    "rule deleted": Drift(ROLE, patch("role", "agent", "remove", "/rules/1")),
    "rule added": Drift(ROLE, patch("role", "agent", "add", "/rules/-", EVERYTHING), True),
    "all rules deleted": Drift(ROLE, patch("role", "agent", "replace", "/rules", [])),
    "cluster role": Drift("ClusterRole drift", patch("clusterrole", "drift", "add", "/rules/0/verbs/-", "*"), True),
    "subject added": Drift("ClusterRoleBinding drift", patch("clusterrolebinding", "drift", "add", "/subjects/-",
                                                             MALLORY), True),
    "ConfigMap edited": Drift(SETTINGS, patch("configmap", "settings", "replace", "/data/config.yaml", "other")),
    "ConfigMap key added": Drift(SETTINGS, patch("configmap", "settings", "add", "/data/more", "x"), True),
    "ConfigMap binary key added": Drift(SETTINGS, patch("configmap", "settings", "add", "/binaryData",
                                                        {"b": "eA=="}), True),
    "data becomes binary": Drift(SETTINGS, lambda world: world.patch(
        "configmap", "settings", {"op": "remove", "path": "/data/config.yaml"},
        {"op": "add", "path": "/binaryData", "value": {"config.yaml": "eA=="}})),
    "ConfigMap sealed": Drift(SETTINGS, patch("configmap", "settings", "add", "/immutable", True), True, "replace"),
    "Secret edited": Drift(TOKEN, patch("secret", "token", "replace", "/data/password", "eA==")),
    "Secret key added": Drift(TOKEN, patch("secret", "token", "add", "/data/more", "eA=="), True),
    "Service port added": Drift("Service drift/metrics", patch(
        "service", "metrics", "add", "/spec/ports/-", {"name": "more", "port": 9500}), True),
    "our label removed": Drift(AGENT, hand("label", "daemonset", "agent", f"{OURS}-")),
    "our label changed": Drift(SETTINGS, hand("label", "--overwrite", "configmap", "settings", f"{OURS}=Helm")),
    "our annotation removed": Drift(SETTINGS, hand("annotate", "configmap", "settings", "gpuops.nvidia/applied-"),
                                    action="update"),
    "label of the Namespace changed": Drift("Namespace drift", hand(
        "label", "--overwrite", "namespace", "drift", "pod-security.kubernetes.io/enforce=baseline")),
    "scaled": Drift("Deployment drift/master", hand("scale", "deployment", "master", "--replicas", "5")),
    "deleted": Drift(SETTINGS, hand("delete", "configmap", "settings"), action="create"),
    "DaemonSet deleted": Drift(AGENT, hand("delete", "daemonset", "agent"), action="create"),
    "RuntimeClass deleted": Drift("RuntimeClass drift", hand("delete", "runtimeclass", "drift"), action="create"),
    "value set under our name": Drift(AGENT, lambda world: world.under_our_name(
        "daemonset", "agent", lambda item: item["spec"]["template"]["spec"]["containers"][0].update(image="evil:5"))),
    "made again headless": Drift("Service drift/metrics", recreate("service", "metrics", headless), action="replace"),
    "made again with another handler": Drift("RuntimeClass drift", recreate(
        "runtimeclass", "drift", lambda item: item.update(handler="runc")), action="replace"),
    "made again for another role": Drift("ClusterRoleBinding drift", recreate(
        "clusterrolebinding", "drift", lambda item: item["roleRef"].update(name="cluster-admin")), action="replace"),
    "made again with other pods": Drift(AGENT, recreate("daemonset", "agent", relabelled), action="replace"),
}


def part(target: str, op: str, path: str, value: Any = None, added: bool = False, action: str = "repair") -> Drift:
    """A JSON patch on an object of a component. target: the object without its namespace; path: C(pod) stands for the
    path of the pod template."""
    kind, name = target.split()
    place = path.replace("pod/", "/spec/template/spec/", 1) if path.startswith("pod/") else path
    where = target if kind in CLUSTER_WIDE else f"{kind} {COMPONENTS}/{name}"
    return Drift(where, patch(kind, name, op, place, value), added, action)


COMPONENTS = "components"
CLUSTER_WIDE = ("ClusterRole", "ClusterRoleBinding", "RuntimeClass", "NodeFeatureRule", "CustomResourceDefinition")
DRIVER, TOOLKIT, PLUGIN = "DaemonSet nvidia-driver-daemonset", "DaemonSet nvidia-container-toolkit-daemonset", \
    "DaemonSet nvidia-device-plugin-daemonset"
VALIDATOR, DCGM, EXPORTER = "DaemonSet nvidia-operator-validator", "DaemonSet nvidia-dcgm", \
    "DaemonSet nvidia-dcgm-exporter"

ON_COMPONENTS: dict[str, Drift] = {
    "drivers would roll": part(DRIVER, "replace", "/spec/updateStrategy", {"type": "RollingUpdate"}),
    "the driver's manager drains": part(DRIVER, "add", "pod/initContainers/0/env/-",
                                        {"name": "DRAIN_DELETE_EMPTYDIR_DATA", "value": "true"}, True),
    "the driver's startup probe": part(DRIVER, "remove", "pod/containers/0/startupProbe"),
    "a volume for the driver": part(DRIVER, "add", "pod/volumes/-", {"name": "etc", "hostPath": {"path": "/etc"}},
                                    True),
    "an init container for the toolkit": part(TOOLKIT, "add", "pod/initContainers/-",
                                              {"name": "first", "image": "evil:1"}, True),
    "the toolkit's command": part(TOOLKIT, "replace", "pod/containers/0/args", ["sleep", "9"]),
    "the toolkit's script": part("ConfigMap nvidia-container-toolkit-entrypoint", "replace", "/data/entrypoint.sh",
                                 "exit 1"),
    "a toleration for the device plugin": part(PLUGIN, "add", "pod/tolerations/-", {"operator": "Exists"}, True),
    "a node selector for the device plugin": part(PLUGIN, "add", "pod/nodeSelector/zone", "a", True),
    "the device plugin's class": part(PLUGIN, "remove", "pod/runtimeClassName"),
    "a hook for the device plugin": part(PLUGIN, "add", "pod/containers/0/lifecycle",
                                         {"preStop": {"exec": {"command": ["true"]}}}, True),
    "a check of the validator": part(VALIDATOR, "remove", "pod/initContainers/3"),
    "the validator in the host's network": part(VALIDATOR, "add", "pod/hostNetwork", True, True),
    "a pause for the validator": part(VALIDATOR, "add", "/spec/minReadySeconds", 30, True),
    "hostPID for DCGM": part(DCGM, "add", "pod/hostPID", True, True),
    "DCGM's probe": part(DCGM, "replace", "pod/containers/0/readinessProbe/tcpSocket/port", 5556),
    "DCGM's Service": part("Service nvidia-dcgm", "replace", "/spec/internalTrafficPolicy", "Cluster"),
    "an address for DCGM's Service": part("Service nvidia-dcgm", "add", "/spec/externalIPs", ["10.1.2.3"], True),
    "the exporter's token": part(EXPORTER, "replace", "pod/automountServiceAccountToken", False),
    "the exporter's counters": part("ConfigMap metrics", "replace", "/data/dcgm-metrics.csv", "x, gauge, y\n"),
    "env for the status exporter": part("DaemonSet nvidia-node-status-exporter", "add", "pod/containers/0/env/-", ENV,
                                        True),
    "layouts of MIG": part("ConfigMap default-mig-parted-config", "add", "/data/more", "x", True),
    "a token for all": part("ServiceAccount nvidia-device-plugin", "add", "/automountServiceAccountToken", False,
                            True),
    "a verb for the status exporter": part("Role nvidia-node-status-exporter", "add", "/rules/0/verbs/-", "delete",
                                           True),
    "a resource for the exporter": part("ClusterRole nvidia-dcgm-exporter-read-pods", "add", "/rules/0/resources/-",
                                        "secrets", True),
    "a rule for the driver": part("ClusterRole nvidia-driver", "add", "/rules/-", EVERYTHING, True),
    "a subject for MIG": part("ClusterRoleBinding nvidia-mig-manager", "add", "/subjects/-", MALLORY, True),
    "where the runtime class may be used": part("RuntimeClass nvidia", "add", "/scheduling",
                                                {"nodeSelector": {"zone": "a"}}, True),
    "how often metrics are read": part("ServiceMonitor nvidia-dcgm-exporter", "replace", "/spec/endpoints/0/interval",
                                       "1h"),
    "an alert": part("PrometheusRule nvidia-dcgm-exporter", "remove", "/spec/groups/0/rules/0"),
    "a group of alerts": part("PrometheusRule nvidia-dcgm-exporter", "add", "/spec/groups/-",
                              {"name": "more", "rules": []}, True),
    "a rule of NFD": part("NodeFeatureRule nvidia-kernel-modules", "remove", "/spec/rules/0"),
    "a kind of NFD's": part("CustomResourceDefinition nodefeatures.nfd.k8s-sigs.io", "add", "/spec/names/categories",
                            ["all"], True),
    "NFD's master": part("Deployment node-feature-discovery-master", "replace", "/spec/replicas", 3),
}
