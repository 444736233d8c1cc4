# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Settings of a policy, and their places in the manifests."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import components
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.yamltext import load_data
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands.render import ORDER, render
from ansible_collections.gpuops.nvidia.tests.unit.simulated.clusters import env, facts, node, objects, plan, pod

PLUGIN, MPS = "nvidia-device-plugin-daemonset", "nvidia-device-plugin-mps-control-daemon"
DRIVER, TOOLKIT = "nvidia-driver-daemonset", "nvidia-container-toolkit-daemonset"
VALIDATOR, EXPORTER, MIG, GFD = ("nvidia-operator-validator", "nvidia-dcgm-exporter", "nvidia-mig-manager",
                                 "gpu-feature-discovery")
OPERANDS = (DRIVER, TOOLKIT, VALIDATOR, PLUGIN, MPS, GFD, EXPORTER, MIG)
WORKER = "node-feature-discovery-worker"


def variables(**values: str) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in values.items()]


def volume(found: Any, name: str, volume_name: str) -> str:
    return next(str(one["hostPath"]["path"]) for one in pod(found, name)["volumes"] if one["name"] == volume_name)


def container(found: Any, name: str, inner: str) -> Any:
    spec = pod(found, name)
    return next(one for one in [*spec["containers"], *spec.get("initContainers", ())] if one["name"] == inner)


def test_every_namespaced_object_is_in_the_namespace() -> None:
    found = objects(namespace="elsewhere")
    cluster_wide = ("CustomResourceDefinition", "ClusterRole", "ClusterRoleBinding", "RuntimeClass", "Namespace")
    for name, one in found.items():
        assert one["metadata"].get("namespace") == (None if one["kind"] in cluster_wide else "elsewhere"), name
        for subject in one.get("subjects", ()):
            assert subject["namespace"] == "elsewhere"
    assert len(found) > 50


def test_service_accounts_and_config_maps_that_pods_name_are_there() -> None:
    found = objects()
    for name in (*OPERANDS, WORKER):
        assert f"ServiceAccount/{pod(found, name)['serviceAccountName']}" in found
        for one in pod(found, name)["volumes"]:
            if "configMap" in one:
                assert f"ConfigMap/{one['configMap']['name']}" in found


@pytest.mark.parametrize("component", [one.name for one in components.IN_CLUSTERS])
def test_nothing_of_an_absent_component(component: str) -> None:
    made = plan()
    made["components"][component] = {"state": "absent", "because": ["a test"]}
    assert render(component, made) == []


def test_what_others_stand_on_comes_first() -> None:
    made = plan()
    kinds = [one["kind"] for one in render("nfd", made)]
    assert kinds[0] == "CustomResourceDefinition"
    assert kinds.index("ServiceAccount") < kinds.index("ConfigMap") < kinds.index("Deployment")
    assert list(ORDER) == ["cluster", *(one.name for one in components.IN_CLUSTERS)]


def test_runtime_classes_stay_where_the_toolkit_is_on_hosts() -> None:
    found = objects({"toolkit": {"enabled": False}, "operator": {"runtimeClass": "gpu"}})
    assert [name for name in found if name.startswith("RuntimeClass")] == [
        "RuntimeClass/gpu", "RuntimeClass/nvidia-cdi", "RuntimeClass/nvidia-legacy"]
    assert pod(found, PLUGIN)["runtimeClassName"] == "gpu"
    assert "RuntimeClass/nvidia-cdi" not in objects({"cdi": {"enabled": False}})


@pytest.mark.parametrize(("psa", "labels"), [(True, 3), (False, 0)])
def test_namespace(psa: bool, labels: int) -> None:
    metadata = objects({"psa": {"enabled": psa}})["Namespace/gpu-operator"]["metadata"]
    assert len(metadata.get("labels", {})) == labels
    assert set(metadata.get("labels", {}).values()) <= {"privileged"}


def test_common_settings_are_on_every_pod_of_the_operator() -> None:
    tolerations = [{"key": "team", "operator": "Exists"}]
    found = objects({"daemonsets": {
        "labels": {"team": "ml", "app": "mine", "app.kubernetes.io/part-of": "mine"}, "annotations": {"a": "yes"},
        "tolerations": tolerations, "priorityClassName": "high", "podSecurityContext": {"fsGroup": 7},
        "rollingUpdate": {"maxUnavailable": "10%"}}}, pull_secrets=["regcred"])
    for name in OPERANDS:
        template, spec = found[f"DaemonSet/{name}"]["spec"]["template"], pod(found, name)
        assert spec["tolerations"] == tolerations
        assert (spec["priorityClassName"], spec["securityContext"]) == ("high", {"fsGroup": 7})
        assert spec["imagePullSecrets"] == [{"name": "regcred"}]
        selected = found[f"DaemonSet/{name}"]["spec"]["selector"]["matchLabels"]
        for metadata in (template["metadata"], found[f"DaemonSet/{name}"]["metadata"]):
            assert metadata["labels"]["team"] == "ml"
            assert metadata["annotations"]["a"] == "yes"
            assert selected.items() <= metadata["labels"].items()
            assert "mine" not in metadata["labels"].values()
    assert found[f"DaemonSet/{PLUGIN}"]["spec"]["updateStrategy"]["rollingUpdate"] == {"maxUnavailable": "10%"}
    assert found[f"DaemonSet/{DRIVER}"]["spec"]["updateStrategy"] == {"type": "OnDelete"}
    # NFD must reach the same nodes, and stays itself otherwise.
    assert tolerations[0] in pod(found, WORKER)["tolerations"]
    assert pod(found, WORKER)["imagePullSecrets"] == [{"name": "regcred"}]
    assert "team" not in found[f"DaemonSet/{WORKER}"]["metadata"]["labels"]


def test_on_delete() -> None:
    found = objects({"daemonsets": {"updateStrategy": "OnDelete"}})
    assert {str(found[f"DaemonSet/{name}"]["spec"]["updateStrategy"]) for name in OPERANDS} == {"{'type': 'OnDelete'}"}


def test_variables_of_the_user_come_last_and_once() -> None:
    found = objects({
        "devicePlugin": {"env": variables(MIG_STRATEGY="mine", NEW="1"), "args": ["--x"]},
        "driver": {"env": variables(NODE_NAME="mine"), "manager": {"env": variables(DRAIN_USE_FORCE="true")}},
        "validator": {"env": variables(A="1"), "driver": {"env": variables(B="2")}, "plugin": {"env": variables(
            WITH_WORKLOAD="true")}}})
    assert env(found, PLUGIN)["MIG_STRATEGY"] == "mine"
    assert env(found, PLUGIN)["NEW"] == "1"
    names = [item["name"] for item in pod(found, PLUGIN)["containers"][0]["env"]]
    assert len(names) == len(set(names))
    assert names[-1] == "NEW"
    assert pod(found, PLUGIN)["containers"][0]["args"] == ["--x"]
    assert "NEW" not in env(found, MPS)
    assert "args" not in pod(found, MPS)["containers"][0]
    assert env(found, DRIVER)["NODE_NAME"] == "mine"
    assert env(found, DRIVER, "k8s-driver-manager")["DRAIN_USE_FORCE"] == "true"
    assert env(found, VALIDATOR)["A"] == "1"
    assert env(found, VALIDATOR, "plugin-validation")["WITH_WORKLOAD"] == "true"
    for name in (VALIDATOR, TOOLKIT):
        assert env(found, name, "driver-validation")["B"] == "2"
    assert "B" not in env(found, VALIDATOR, "toolkit-validation")


def test_resources() -> None:
    one, two = {"limits": {"cpu": "1"}}, {"requests": {"cpu": "2m"}}
    found = objects({"devicePlugin": {"resources": one, "config": {"name": "c"}}, "driver": {"resources": one},
                     "validator": {"resources": two}})
    for name, inner, expected in (
            (PLUGIN, "nvidia-device-plugin", one), (PLUGIN, "config-manager", one),
            (PLUGIN, "config-manager-init", one), (PLUGIN, "toolkit-validation", two),
            (MPS, "mps-control-daemon-mounts", one),
            (DRIVER, "k8s-driver-manager", one), (VALIDATOR, "cuda-validation", two),
            (VALIDATOR, "nvidia-operator-validator", two)):
        assert container(found, name, inner)["resources"] == expected, inner
    assert "resources" not in container(found, EXPORTER, "nvidia-dcgm-exporter")


@pytest.mark.parametrize(("section", "names"), [
    ("devicePlugin", (PLUGIN, MPS)), ("gfd", (GFD,)), ("toolkit", (TOOLKIT,)), ("driver", (DRIVER,)),
    ("dcgmExporter", (EXPORTER,)), ("validator", (VALIDATOR,)), ("migManager", (MIG,)),
])
def test_host_network(section: str, names: tuple[str, ...]) -> None:
    found = objects({section: {"hostNetwork": True}})
    for name in OPERANDS:
        dns = pod(found, name).get("dnsPolicy")
        assert (pod(found, name).get("hostNetwork"), dns) == (
            (True, "ClusterFirstWithHostNet") if name in names else (None, None))


def test_pull_secrets_of_all_images_of_a_pod() -> None:
    found = objects({"devicePlugin": {"imagePullSecrets": ["b", "a"]}, "validator": {"imagePullSecrets": ["v"]}},
                    pull_secrets=["a"])
    assert [one["name"] for one in pod(found, PLUGIN)["imagePullSecrets"]] == ["a", "b", "v"]
    assert env(found, VALIDATOR, "cuda-validation")["VALIDATOR_IMAGE_PULL_SECRETS"] == "a,v"


def test_paths_of_the_host() -> None:
    found = objects({"hostPaths": {"rootFS": "/root-of-host", "driverInstallDir": "/opt/driver",
                                   "kubeletRootDir": "/data/kubelet"},
                     "toolkit": {"installDir": "/opt/nvidia"}, "devicePlugin": {"mps": {"root": "/opt/mps"}}})
    assert volume(found, VALIDATOR, "host-root") == "/root-of-host"
    assert volume(found, VALIDATOR, "host-dev-char") == "/root-of-host/dev/char"
    assert env(found, VALIDATOR, "driver-validation")["HOST_ROOT"] == "/root-of-host"
    for name in (VALIDATOR, TOOLKIT):
        mounts = container(found, name, "driver-validation")["volumeMounts"]
        assert env(found, name, "driver-validation")["DRIVER_INSTALL_DIR_CTR_PATH"] == "/opt/driver"
        assert {one["name"]: one["mountPath"] for one in mounts}["driver-install-dir"] == "/opt/driver"
    for name in (VALIDATOR, TOOLKIT, PLUGIN, MIG):
        assert volume(found, name, "driver-install-dir") == "/opt/driver"
    assert volume(found, EXPORTER, "pod-gpu-resources") == "/data/kubelet/pod-resources"
    assert volume(found, TOOLKIT, "toolkit-install-dir") == "/opt/nvidia"
    assert env(found, TOOLKIT)["ROOT"] == "/opt/nvidia"
    for name in (PLUGIN, MIG):
        assert env(found, name)["NVIDIA_CDI_HOOK_PATH"] == "/opt/nvidia/toolkit/nvidia-cdi-hook"
    assert (volume(found, MPS, "mps-root"), volume(found, PLUGIN, "mps-shm")) == ("/opt/mps", "/opt/mps/shm")


def test_nri() -> None:
    found = objects({"cdi": {"nriPluginEnabled": True}})
    assert not [name for name in found if name.startswith("RuntimeClass")]
    for name, inner in ((VALIDATOR, "toolkit-validation"), (PLUGIN, "nvidia-device-plugin"),
                        (MPS, "mps-control-daemon-ctr"), (GFD, "gpu-feature-discovery"),
                        (EXPORTER, "nvidia-dcgm-exporter"), (MIG, "nvidia-mig-manager")):
        annotations = found[f"DaemonSet/{name}"]["spec"]["template"]["metadata"]["annotations"]
        assert annotations == {f"nvidia.cdi.k8s.io/container.{inner}": "management.nvidia.com/gpu=all"}
        assert "runtimeClassName" not in pod(found, name)
    toolkit = env(found, TOOLKIT)
    assert (toolkit["ENABLE_NRI_PLUGIN"], toolkit["NRI_SOCKET"]) == ("true", "/runtime/nri-sock-dir/nri.sock")
    assert not {"RUNTIME_CONFIG", "CONTAINERD_CONFIG", "RUNTIME_SOCKET"} & set(toolkit)
    assert volume(found, TOOLKIT, "nri-socket") == "/var/run/nri"


@pytest.mark.parametrize(("runtime", "expected", "volumes"), [
    ("docker", {"RUNTIME": "docker", "DOCKER_CONFIG": "/runtime/config-dir/daemon.json",
                "DOCKER_SOCKET": "/runtime/sock-dir/docker.sock"},
     {"docker-config": "/etc/docker", "docker-socket": "/var/run"}),
    ("crio", {"RUNTIME": "crio", "CRIO_CONFIG": "/runtime/config-dir/config.toml",
              "RUNTIME_DROP_IN_CONFIG_HOST_PATH": "/etc/crio/crio.conf.d/99-nvidia.conf"},
     {"crio-config": "/etc/crio", "crio-drop-in-config": "/etc/crio/crio.conf.d",
      "crio-hooks": "/usr/share/containers/oci/hooks.d"}),
])
def test_runtimes(runtime: str, expected: dict[str, str], volumes: dict[str, str]) -> None:
    found = objects(cluster=facts(node(runtime=runtime)))
    assert expected.items() <= env(found, TOOLKIT).items()
    assert {name: volume(found, TOOLKIT, name) for name in volumes} == volumes
    assert not any(name.startswith("CONTAINERD") for name in env(found, TOOLKIT))


def test_paths_of_a_runtime_elsewhere() -> None:
    """K3s: the user names files of the host, and the container has their folders below /runtime."""
    found = objects({"toolkit": {"env": variables(
        CONTAINERD_CONFIG="/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
        CONTAINERD_SOCKET="/run/k3s/containerd/containerd.sock",
        RUNTIME_CONFIG_SOURCE="command,file=/etc/a.toml", NVIDIA_RUNTIME_SET_AS_DEFAULT="true")}})
    got = env(found, TOOLKIT)
    assert got["CONTAINERD_CONFIG"] == got["RUNTIME_CONFIG"] == "/runtime/config-dir/config.toml"
    assert volume(found, TOOLKIT, "containerd-config") == "/var/lib/rancher/k3s/agent/etc/containerd"
    assert volume(found, TOOLKIT, "containerd-socket") == "/run/k3s/containerd"
    assert got["RUNTIME_CONFIG_SOURCE"] == "command,file=/host/etc/a.toml"
    assert got["NVIDIA_RUNTIME_SET_AS_DEFAULT"] == "true"


@pytest.mark.parametrize(("given", "named"), [
    ({"RUNTIME_CONFIG": "/etc/b/config.toml"}, ""), ({"CONTAINERD_CONFIG": "/etc/a/config.toml"}, "CONTAINERD_CONFIG"),
    ({"CONTAINERD_CONFIG": "/etc/a/config.toml", "RUNTIME_CONFIG": "/etc/b/config.toml"}, "CONTAINERD_CONFIG"),
])
def test_of_two_files_of_a_runtime_its_own_is_used_and_a_note_says_so(given: dict[str, str], named: str) -> None:
    policy = {"toolkit": {"env": variables(**given)}}
    assert volume(objects(policy), TOOLKIT, "containerd-config") == ("/etc/a" if named else "/etc/b")
    notes = [note for note in plan(policy)["notes"] if "RUNTIME_CONFIG" in note]
    assert notes == (["toolkit.env: RUNTIME_CONFIG: no effect, because CONTAINERD_CONFIG is set."]
                     if len(given) == 2 else [])


def test_without_cdi() -> None:
    found = objects({"cdi": {"enabled": False}, "mig": {"strategy": "none"}}, facts(node(runtime="crio")))
    assert env(found, PLUGIN)["DEVICE_LIST_STRATEGY"] == "envvar"
    assert not {"CDI_ENABLED", "NVIDIA_CDI_HOOK_PATH", "NVIDIA_MIG_MONITOR_DEVICES"} & set(env(found, PLUGIN))
    assert env(found, TOOLKIT)["CRIO_CONFIG_MODE"] == "hook"
    # cri-o has no runtime handlers then
    assert "runtimeClassName" not in pod(found, PLUGIN)


# devicePlugin.env of values.yaml up to 25.3.2, as it is in the ClusterPolicies that it made.
OLD_CHART = {"PASS_DEVICE_SPECS": "true", "FAIL_ON_INIT_ERROR": "true", "DEVICE_LIST_STRATEGY": "envvar",
             "DEVICE_ID_STRATEGY": "uuid", "NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "all"}
OWN = {"DEVICE_LIST_STRATEGY": "envvar"}


@pytest.mark.parametrize(("release", "given", "wanted"), [
    ("24.6.2", OLD_CHART, "envvar,cdi-annotations"), ("24.6.2", OWN, "envvar,cdi-annotations"),
    ("26.7.0", OLD_CHART, "cdi-annotations,cdi-cri"), ("26.7.0", OWN, "envvar")])
def test_what_old_charts_wrote_does_not_keep_gpus_out_of_cdi(release: str, given: dict[str, str], wanted: str) -> None:
    """Operators before 25.3.3 put the strategy of CDI last, later ones that of the user."""
    policy = {"devicePlugin": {"env": [{"name": name, "value": value} for name, value in given.items()]}}
    on, off = ({**policy, "cdi": {"enabled": enabled}} for enabled in (True, False))
    assert env(objects(on, release=release), PLUGIN)["DEVICE_LIST_STRATEGY"] == wanted
    assert env(objects(off, release=release), PLUGIN)["DEVICE_LIST_STRATEGY"] == "envvar"
    said = [one for one in plan(on, release=release)["notes"] if "DEVICE_LIST_STRATEGY=envvar is ignored" in one]
    assert bool(said) == (wanted != "envvar")


def test_versions_that_a_chart_has_left_in_a_policy_are_named() -> None:
    """The chart of 24.6.2 wrote all of them; in its own release they are right, and the driver version is a choice."""
    old = {"toolkit": {"version": "v1.16.2-ubuntu20.04"}, "validator": {"version": "v24.6.2"},
           "driver": {"version": "550.90.07"}, "dcgm": {"version": "9.9.9"}}

    def said(release: str) -> list[str]:
        return [one for one in plan(old, release=release)["notes"] if "a release older than" in one]

    assert said("24.6.2") == []
    assert said("26.7.0") == [
        "toolkit.version v1.16.2-ubuntu20.04, validator.version v24.6.2 in the policy: this is the version of a "
        "release older than 26.7.0. Remove it from the policy, unless you have chosen it on purpose."]


def test_the_sidecar_of_an_mps_daemon_reaches_it() -> None:
    """As with the operator: from 25.3 the process namespace of the host, before that the one of the pod, if a ConfigMap
    is named."""
    config = {"devicePlugin": {"config": {"name": "sharing", "default": "any"}}}
    for policy, release, wanted in ((config, "24.6.2", (None, True)), ({}, "24.6.2", (None, None)),
                                    (config, "26.7.0", (True, None))):
        spec = pod(objects(policy, release=release), MPS)
        assert (spec.get("hostPID"), spec.get("shareProcessNamespace")) == wanted


def test_digest_of_the_driver_changes_with_what_installs_it_only() -> None:
    def digest(policy: Any) -> str:
        found = objects(policy)
        assert env(found, DRIVER)["DRIVER_CONFIG_DIGEST"] == env(found, DRIVER, "k8s-driver-manager")[
            "DRIVER_CONFIG_DIGEST"]
        return env(found, DRIVER)["DRIVER_CONFIG_DIGEST"]

    same = digest({})
    assert len(same) == 16
    for policy in ({"driver": {"resources": {"limits": {"cpu": "1"}}}}, {"daemonsets": {"labels": {"a": "b"}}},
                   {"driver": {"startupProbe": {"periodSeconds": 5}}}, {"devicePlugin": {"version": "v1"}}):
        assert digest(policy) == same
    for policy in ({"driver": {"version": "580.173.02"}}, {"driver": {"kernelModuleType": "open"}},
                   {"driver": {"env": variables(A="1")}}, {"driver": {"secretEnv": "pro"}}, {"gds": {"enabled": True}}):
        assert digest(policy) != same


def test_startup_probe() -> None:
    found = objects({"driver": {"startupProbe": {"periodSeconds": 5, "initialDelaySeconds": 0}}})
    probe = container(found, DRIVER, "nvidia-driver-ctr")["startupProbe"]
    assert (probe["periodSeconds"], probe["initialDelaySeconds"], probe["failureThreshold"]) == (5, 60, 120)


def test_a_pool_for_each_system() -> None:
    found = objects(cluster=facts(node(), node(("rhel", "9.4"))))
    names = ("nvidia-driver-daemonset-rhel9", "nvidia-driver-daemonset-ubuntu22.04")
    assert [name for name in found if "driver-daemonset" in name] == [f"DaemonSet/{name}" for name in names]
    for name in names:
        assert found[f"DaemonSet/{name}"]["spec"]["selector"]["matchLabels"] == {"app": name}
        assert len(pod(found, name)["nodeSelector"]) == 3
        assert pod(found, name)["containers"][0]["image"].endswith(name.removeprefix("nvidia-driver-daemonset"))


def test_sidecars_and_files_of_the_driver() -> None:
    found = objects({
        "gds": {"enabled": True, "env": variables(A="1"), "args": ["mine"]}, "gdrcopy": {"enabled": True},
        "driver": {"rdma": {"enabled": True, "useHostMofed": True}, "secretEnv": "pro", "virtualTopology": {
            "config": "topology"}, "licensingConfig": {"secretName": "license", "nlsEnabled": True}}})
    assert [one["name"] for one in pod(found, DRIVER)["containers"]] == [
        "nvidia-driver-ctr", "nvidia-peermem-ctr", "nvidia-fs-ctr", "nvidia-gdrcopy-ctr"]
    main = container(found, DRIVER, "nvidia-driver-ctr")
    assert main["envFrom"] == [{"secretRef": {"name": "pro"}}]
    assert {"GDS_ENABLED", "GDRCOPY_ENABLED", "GPU_DIRECT_RDMA_ENABLED", "USE_HOST_MOFED"} <= set(env(found, DRIVER))
    assert {"/drivers/gridd.conf", "/drivers/ClientConfigToken/client_configuration_token.tok",
            "/etc/nvidia/nvidia-topologyd.conf"} <= {one["mountPath"] for one in main["volumeMounts"]}
    gds = container(found, DRIVER, "nvidia-fs-ctr")
    assert (gds["args"], gds["env"]) == (["mine"], variables(A="1"))
    assert gds["image"] == "nvcr.io/nvidia/cloud-native/nvidia-fs:2.29.4-ubuntu22.04"
    assert volume(found, DRIVER, "mlnx-ofed-usr-src") == "/usr/src"
    assert {"GDS_ENABLED", "MOFED_ENABLED", "GDRCOPY_ENABLED"} <= set(env(found, PLUGIN))


def test_exporter() -> None:
    found = objects({"dcgmExporter": {
        "config": {"create": True, "name": "metrics", "data": "a, b, c\n"}, "enablePodLabels": True, "hostPID": True,
        "podLabelAllowlistRegex": ["^a", "b$"], "hpcJobMapping": {"enabled": True}, "annotations": {"x": "1"},
        "service": {"type": "NodePort", "internalTrafficPolicy": "Local"},
        "serviceMonitor": {"enabled": True, "interval": "30s", "additionalLabels": {"release": "p"}}}},
        facts(node(), monitors=True))
    got, spec = env(found, EXPORTER), pod(found, EXPORTER)
    assert got["DCGM_EXPORTER_COLLECTORS"] == "/etc/dcgm-exporter/dcgm-metrics.csv"
    assert found["ConfigMap/metrics"]["data"] == {"dcgm-metrics.csv": "a, b, c\n"}
    assert got["DCGM_EXPORTER_KUBERNETES_POD_LABEL_ALLOWLIST_REGEX"] == "^a,b$"
    assert got["DCGM_HPC_JOB_MAPPING_DIR"] == "/var/lib/dcgm-exporter/job-mapping"
    assert (spec["automountServiceAccountToken"], spec["hostPID"]) == (True, True)
    assert {"ClusterRole/nvidia-dcgm-exporter-read-pods", "Role/nvidia-dcgm-exporter"} <= set(found)
    service = found[f"Service/{EXPORTER}"]["spec"]
    assert (service["type"], service["internalTrafficPolicy"]) == ("NodePort", "Local")
    monitor = found[f"ServiceMonitor/{EXPORTER}"]
    assert monitor["spec"]["endpoints"][0]["interval"] == "30s"
    assert monitor["metadata"]["labels"]["release"] == "p"


@pytest.mark.parametrize(("value", "token"), [("none", False), ("", False), ("ns:cm", True)])
def test_the_exporter_gets_a_token_only_where_it_asks_the_api(value: str, token: bool) -> None:
    found = objects({"dcgmExporter": {"env": variables(DCGM_EXPORTER_CONFIGMAP_DATA=value)}})
    assert pod(found, EXPORTER)["automountServiceAccountToken"] is token
    assert ("Role/nvidia-dcgm-exporter" in found) is token
    assert "ClusterRole/nvidia-dcgm-exporter-read-pods" not in found


def test_rules_of_node_features() -> None:
    rules = objects({"nfd": {"nodefeaturerules": True}})["NodeFeatureRule/nvidia-kernel-modules"]["spec"]["rules"]
    assert [(one["labels"], one["matchFeatures"]) for one in rules] == [
        ({f"nvidia.com/{feature}.capable": "true"},
         [{"feature": "kernel.loadedmodule", "matchExpressions": {module: {"op": "Exists"}}}])
        for feature, module in (("gdrcopy", "gdrdrv"), ("gds", "nvidia_fs"), ("peermem", "nvidia_peermem"))]
    assert "NodeFeatureRule/nvidia-kernel-modules" not in objects()


def test_mig_configurations() -> None:
    found = objects()
    document = load_data(found["ConfigMap/default-mig-parted-config"]["data"]["config.yaml"], "config.yaml")
    assert document["version"] == "v1"
    assert document["mig-configs"]["all-disabled"] == [{"devices": "all", "mig-enabled": False}]
    assert document["mig-configs"]["all-7g.80gb"][0]["mig-devices"] == {"7g.80gb": 1}
    assert env(found, MIG)["DEFAULT_CONFIG_FILE"].endswith("/config-default.yaml")
    # before 26.3 the file is the configuration
    assert env(objects(release="25.10.1"), MIG)["CONFIG_FILE"] == "/mig-parted-config/config.yaml"
    mine = objects({"migManager": {"config": {"name": "mine"}, "gpuClientsConfig": {"name": "clients"}}})
    assert env(mine, MIG)["CONFIG_FILE"] == "/mig-parted-config/config.yaml"
    maps = {one["name"]: one["configMap"]["name"] for one in pod(mine, MIG)["volumes"] if "configMap" in one}
    assert (maps["mig-parted-config"], maps["gpu-clients"]) == ("mine", "clients")
    assert not {"ConfigMap/mine", "ConfigMap/default-mig-parted-config", "ConfigMap/default-gpu-clients"} & set(mine)
    # Named as the operator names its own: by the definition's default up to 25.10.
    own = {"migManager": {"config": {"name": "default-mig-parted-config", "default": "all-disabled"},
                          "gpuClientsConfig": {"name": "default-gpu-clients"}}}
    for release in ("24.6.2", "26.7.0"):
        assert objects(own, release=release) == objects(release=release)
    data = {"config.yaml": "version: v1\nmig-configs: {}\n"}
    given = objects({"migManager": {"config": {"name": "default-mig-parted-config", "create": True, "data": data}}})
    assert given["ConfigMap/default-mig-parted-config"]["data"] == data
    assert env(given, MIG)["CONFIG_FILE"] == "/mig-parted-config/config.yaml"


def test_config_maps_that_the_chart_would_create() -> None:
    text = "version: v1\nsharing: {}\n"
    config = {"create": True, "name": "plugin", "default": "a", "data": {"a": text}}
    found = objects({"devicePlugin": {"config": config}})
    assert found["ConfigMap/plugin"]["data"] == {"a": text}
    assert env(found, GFD, "config-manager")["DEFAULT_CONFIG"] == "a"


@pytest.mark.parametrize("release", ["24.9.2", "25.3.4", "25.10.1", "26.3.3", "26.7.0"])
def test_every_release_renders(release: str) -> None:
    found = objects(release=release)
    assert {f"DaemonSet/{name}" for name in (*OPERANDS, WORKER)} <= set(found)
    for name in OPERANDS:
        for one in pod(found, name)["containers"]:
            assert one["image"].count(":") == 1 and one["image"].startswith("nvcr.io/nvidia/")
