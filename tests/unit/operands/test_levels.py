# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What no policy can reach below its level, in rendered objects, which are read as the vendor's managers read them."""

from __future__ import annotations

import itertools
import random
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.plan import gate_driver
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import GpuopsError
from ansible_collections.gpuops.nvidia.plugins.module_utils._result import Step, allows, gate
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data import releases
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._data.refusals import PolicyError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube import kinds, objects
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.changes import Change
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes import deploy_labels
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands import pending_changes
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._operands.render import render
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._policy import format_schemas
from ansible_collections.gpuops.nvidia.tests.unit.levels import NO, TABLE, YES, cases
from ansible_collections.gpuops.nvidia.tests.unit.nodes.test_drain import pod
from ansible_collections.gpuops.nvidia.tests.unit.nodes.test_maintenance import Site, mps
from ansible_collections.gpuops.nvidia.tests.unit.simulated.clusters import facts, node, plan
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import fuzz

# True to Go's ParseBool, and what a shell script or another version may take for it.
TRUE = ("1", "t", "T", "TRUE", "true", "True", "yes", "on", "tRuE")
FALSE = ("", "0", "f", "F", "FALSE", "false", "False")
# By variable of the managers the lowest level that allows it.
FORBIDDEN = {"ENABLE_GPU_POD_EVICTION": "drain", "ENABLE_AUTO_DRAIN": "drain", "WITH_REBOOT": "reboot"}
LEVELS = ("never", "idle", "drain", "reboot")
ARGUMENTS: tuple[list[str], ...] = ([], ["nvidia-mig-manager --with-reboot"], ["nvidia-mig-manager -r=1"],
                                    ["export WITH_REBOOT=t; /bin/entrypoint.sh"], ["nvidia-mig-manager $X"])
UPGRADES: tuple[dict[str, Any], ...] = (
    {}, {"autoUpgrade": True, "drain": {"enable": True, "force": True}, "podDeletion": {"force": True}})
CAPABLE = {"feature.node.kubernetes.io/pci-10de.present": "true", "nvidia.com/mig.capable": "true"}


def policy(value: str, args: list[str], upgrade: dict[str, Any]) -> dict[str, Any]:
    variables = [{"name": name, "value": value} for name in (
        *FORBIDDEN, "DRAIN_USE_FORCE", "DRAIN_DELETE_EMPTYDIR_DATA")]
    return {"driver": {"manager": {"env": variables}, "env": variables, "upgradePolicy": upgrade},
            "migManager": {"env": [*variables, {"name": "X", "value": "--with-reboot"}], "args": args,
                           "config": {"default": "all-disabled"}},
            "devicePlugin": {"config": {"name": "c", "create": True, "data": {"a": "version: v1\n"}}}}


def allowed(made: dict[str, Any], arguments: bool = True) -> set[str]:
    """The variables that their managers do not read as false, and (arguments) what a shell would run."""
    found = set()
    for component, name, reads in (("driver", "k8s-driver-manager", ("ENABLE_GPU_POD_EVICTION", "ENABLE_AUTO_DRAIN")),
                                   ("mig_manager", "nvidia-mig-manager", ("WITH_REBOOT",))):
        pods = [one["spec"]["template"]["spec"] for one in render(component, made) if one["kind"] == "DaemonSet"]
        for container in (one for spec in pods for one in (*spec["containers"], *spec.get("initContainers", ()))):
            if container["name"] == name:
                assert "envFrom" not in container
                found |= {item["name"] for item in container["env"] if item["name"] in reads
                          and item.get("value", "?") not in FALSE}
                said = " ".join(container["args"]) if arguments and component == "mig_manager" else ""
                if re.search(r"(?i)reboot|-r\b", said):
                    found.add("WITH_REBOOT")
    return found


@pytest.mark.parametrize("level", LEVELS)
def test_no_policy_gets_what_its_level_forbids(level: str) -> None:
    cases = [(value, ARGUMENTS[0], UPGRADES[1]) for value in (*TRUE, *FALSE)]
    cases += [("true", args, upgrade) for args, upgrade in itertools.product(ARGUMENTS, UPGRADES)]
    for value, args, upgrade in cases:
        try:
            made = plan(policy(value, args, upgrade), facts(node(**CAPABLE)), disruption=level)
        except PolicyError as error:
            assert args and level != "reboot", error
            continue
        forbidden = {name for name, needs in FORBIDDEN.items() if LEVELS.index(level) < LEVELS.index(needs)}
        assert not allowed(made) & forbidden, (value, args)
        if value == "true" and not args:
            assert allowed(made) == set(FORBIDDEN) - forbidden


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("now", [{}, {"nvidia.com/mig.config": "all-1g.10gb"}, {"nvidia.com/mig.config": ""}])
def test_no_node_is_asked_for_another_layout_below_idle(level: str, now: dict[str, str]) -> None:
    made = plan(policy("true", [], {}), facts(node(**CAPABLE, **now)), disruption=level)
    change = deploy_labels.plan_present(deploy_labels.Node("n1", {**CAPABLE, **now}),
                                        deploy_labels.parse_deploy(made["deploy"]), deploy_labels.Terms(0))
    assert change is not None
    asked = change.labels.get("nvidia.com/mig.config")
    assert asked == (None if level == "never" or any(now.values()) else "all-disabled")


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", ["RUNTIME_RESTART_MODE", "DOCKER_RESTART_MODE"])
def test_docker_is_not_restarted_under_containers(level: str, name: str) -> None:
    """The toolkit restarts it at each start of its pod; a restart ends containers, but a signal does not, nor does a
    restart of other runtimes."""
    for runtime, value in itertools.product(("docker", "containerd"), ("systemd", "none")):
        made = plan({"toolkit": {"env": [{"name": name, "value": value}]}}, facts(node(runtime=runtime)),
                    disruption=level)
        pods = [one["spec"]["template"]["spec"] for one in render("container_toolkit", made)
                if one["kind"] == "DaemonSet"]
        found = {item["name"]: item.get("value") for item in pods[0]["containers"][0]["env"]}[name]
        held = (runtime, value) == ("docker", "systemd") and level in ("never", "idle")
        assert found == ("signal" if held else value)
        assert any(name in note and "gpu_disruption" in note for note in made["notes"]) == held


# -- policies by chance

BELOW_DRAIN = st.sampled_from(["never", "idle"])
RELEASES = st.sampled_from(releases.available())
VALUES = st.sampled_from([*TRUE, *FALSE])
# After the name of the manager's program; X and Y are variables of the policy.
WORDS = st.sampled_from(["$X", "${X}", "$(X)", "$X$Y", "'$X'", '--with""-reboot', "--with-reboot", "--with-$Y", "-r",
                         "x"])
TEXTS = st.sampled_from(["--with-reboot", "-r", "--with-", "reboot", "", "x"])
SHARING = st.sampled_from([None, *({"name": "c", "create": True, "default": "a", "data": {
    "a": f"version: v1\nsharing: {{{how}: {{resources: [{{name: nvidia.com/gpu, replicas: 2}}]}}}}\n"}}
    for how in ("mps", "timeSlicing"))])
KERNEL = {"kernel": "5.15.0-84-generic"}
NODES = ({**node(**CAPABLE, zone="a"), **KERNEL},
         {**node(("ubuntu", "24.04"), **CAPABLE, zone="b"), "kernel": "6.8.0-31-generic"},
         {**node(**CAPABLE, zone="a", rack="1", **{"nvidia.com/mps.capable": "true"}), **KERNEL})
CLUSTER = facts(*NODES, nfd="foreign")


# What NVIDIADrivers select: several the same Nodes, one none, one all others.
SELECTORS = st.sampled_from([{"zone": "a"}, {"zone": "b"}, {"rack": "1"}, {"zone": "nowhere"}, None])


@st.composite
def nvidia_drivers(draw: st.DrawFn, variables: list[dict[str, str]]) -> list[dict[str, Any]]:
    """Random NVIDIADrivers."""
    found = []
    for number, selector in enumerate(draw(st.lists(SELECTORS, max_size=3, unique_by=str))):
        precompiled = draw(st.booleans())
        found.append({"apiVersion": "nvidia.com/v1alpha1", "kind": "NVIDIADriver", "metadata": {"name": f"d{number}"},
                      "spec": {"driverType": "gpu", "image": "driver", "repository": "nvcr.io/nvidia",
                               "default": selector is None, **({"nodeSelector": selector} if selector else {}),
                               "usePrecompiled": precompiled, "version": "580" if precompiled else "580.95.05",
                               "env": variables, "manager": {"env": variables}}})
    return found


@st.composite
def policies(draw: st.DrawFn) -> Any:
    """A random valid document, also with NVIDIADrivers, with any values for the disruptive options of the managers."""
    chance = random.Random(draw(st.sampled_from(range(10_000))))
    form = format_schemas.FORMS[draw(st.sampled_from(["values", "ClusterPolicy"]))]
    # Most examples with these are refused.
    spec = {name: one for name, one in fuzz.good(chance, form.schema).items()
            if name not in ("extraObjects", "sandboxWorkloads", "gpuCluster")}
    variables = [{"name": name, "value": draw(VALUES)} for name in FORBIDDEN]
    more = [{"name": name, "value": draw(TEXTS)} for name in ("X", "Y")]
    args = draw(st.one_of(st.just([]), st.lists(WORDS, max_size=2).map(
        lambda words: [" ".join(["nvidia-mig-manager", *words])])))
    precompiled = draw(st.booleans())
    spec["driver"] = {"enabled": draw(st.sampled_from([True, True, False])), "usePrecompiled": precompiled,
                      "version": "580" if precompiled else "580.95.05", "env": variables,
                      "upgradePolicy": draw(st.sampled_from(UPGRADES)), "manager": {"env": variables}}
    spec["migManager"] = {"env": [*variables, *more], "args": args, "config": {"default": "all-disabled"}}
    sharing = draw(SHARING) if form.kind == "values" else None
    spec["devicePlugin"] = {"enabled": draw(st.booleans()), "config": sharing or {}}
    spec["mig"] = {"strategy": draw(st.sampled_from(["none", "single"]))}
    if form.kind == "values":
        return spec
    beside = draw(nvidia_drivers(variables))
    spec["driver"]["useNvidiaDriverCRD"] = bool(beside)
    return [{"apiVersion": form.api_version, "kind": form.kind, "metadata": {"name": "a"}, "spec": spec}, *beside]


def planned(policy: Any, release: str, level: str) -> dict[str, Any] | None:
    """The plan; None if the policy is refused. Nodes without a plan are left out."""
    try:
        return plan(policy, CLUSTER, release, disruption=level, strict=False)
    except GpuopsError:
        return None


@pytest.fixture(scope="module")
def manager(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a replacement for the MIG manager, which prints the arguments and variables that it reads."""
    folder = tmp_path_factory.mktemp("bin")
    program = folder / "nvidia-mig-manager"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$WITH_REBOOT" "$@"\n')
    program.chmod(0o755)
    return folder


def reboots(container: dict[str, Any], folder: Path) -> bool:
    """Whether the MIG manager would reboot Nodes: Kubernetes replaces $(NAME), and a shell reads the first argument."""
    env = {item["name"]: item["value"] for item in container["env"] if "value" in item}
    args = [re.sub(r"\$\((\w+)\)", lambda match: env.get(match[1], match[0]), one) for one in container["args"]]
    if args == ["/bin/entrypoint.sh"]:
        args = ["nvidia-mig-manager"]
    # There is no other program in PATH: the arguments come by chance.
    said = subprocess.run([*container["command"], *args], env={**env, "PATH": str(folder)},
                          capture_output=True, text=True, check=False).stdout.splitlines()
    flags = [one.lstrip("-").partition("=") for one in said[1:] if one.startswith("-")]
    return bool(said) and (said[0] not in FALSE or any(
        name in ("with-reboot", "r") and value not in FALSE[1:] for name, _sign, value in flags))


@given(policies(), RELEASES, BELOW_DRAIN)
@settings(max_examples=140)
def test_no_manager_disturbs(manager: Path, policy: Any, release: str, level: str) -> None:
    made = planned(policy, release, level)
    if made is None:
        return
    assert not allowed(made, arguments=False)
    for one in render("mig_manager", made):
        if one["kind"] == "DaemonSet":
            assert not reboots(one["spec"]["template"]["spec"]["containers"][0], manager)


def ends(change: Change) -> str:
    """Why a change of a DaemonSet ends pods, empty if it does not."""
    if change.live is None or change.action == "delete":
        return change.action
    live, new = (one["spec"] for one in (change.live, change.manifest or {}))
    old_pod, new_pod = (one["template"]["spec"] for one in (live, new))
    if old_pod.get("affinity") != new_pod.get("affinity"):
        return "affinity"
    selector = (new_pod.get("nodeSelector") or {}).items()
    moved = [name for name, labels in PLACES.items() if (old_pod.get("nodeSelector") or {}).items() <= labels.items()
             and not selector <= labels.items()]
    return f"moves from {moved}" if moved else "" if new["updateStrategy"]["type"] == "OnDelete" else "rolls"


PLACES = {f"n{number}": {**one["labels"], "nvidia.com/gpu.deploy.driver": "true",
                         "feature.node.kubernetes.io/kernel-version.full": one["kernel"],
                         "feature.node.kubernetes.io/system-os_release.ID": one["os"]["id"],
                         "feature.node.kubernetes.io/system-os_release.VERSION_ID": one["os"]["version"]}
          for number, one in enumerate(NODES, 1)}


def daemon_sets(made: dict[str, Any]) -> dict[str, tuple[str, dict[str, Any]]]:
    """Maps names to the DaemonSets whose pods GPU clients need."""
    return {one["metadata"]["name"]: (component, one) for component in ("driver", "device_plugin")
            for one in render(component, made) if one["kind"] == "DaemonSet" and (
                component == "driver" or one["metadata"]["name"] == objects.MPS_DAEMON)}


@given(policies(), policies(), RELEASES, RELEASES, st.sampled_from(LEVELS), BELOW_DRAIN)
@settings(max_examples=60)
def test_no_change_ends_what_gpu_clients_need(before: Any, after: Any, release: str, later: str, former: str, level: str
                                              ) -> None:
    """This holds for every earlier release and level, for upgrades and downgrades."""
    old, new = planned(before, release, former), planned(after, later, level)
    if old is None or new is None:
        return
    assert all(one["spec"]["updateStrategy"] == {"type": "OnDelete"} for _component, one in daemon_sets(new).values())
    there, wanted = daemon_sets(old), daemon_sets(new)
    changes = []
    for name, (component, live) in there.items():
        manifest = wanted[name][1] if name in wanted else None
        if manifest != live:
            changes.append(Change("update" if manifest else "delete", kinds.find("apps/v1", "DaemonSet"), component,
                                  manifest, {**live, "status": {"currentNumberScheduled": 1}}))
    left, pending = pending_changes.hold(changes, level, lambda: [{"metadata": {"name": name, "labels": labels}}
                                                                  for name, labels in PLACES.items()])
    assert len(left) + len(pending) == len(changes)
    assert {one.id: ends(one) for one in left if ends(one)} == {}


@given(policies(), policies(), RELEASES, RELEASES, BELOW_DRAIN)
@settings(max_examples=60)
def test_no_label_moves_a_driver_or_asks_for_a_layout(before: Any, after: Any, release: str, later: str, level: str
                                                      ) -> None:
    old, new = planned(before, release, level), planned(after, later, level)
    if old is None or new is None:
        return
    for name, labels in PLACES.items():
        bare = {key: value for key, value in labels.items() if "deploy" not in key}
        first = deploy_labels.plan_present(deploy_labels.Node(name, bare), deploy_labels.parse_deploy(old["deploy"]),
                                           deploy_labels.Terms(0))
        assert first is not None
        assert level != "never" or "nvidia.com/mig.config" not in first.labels
        now = {**bare, **{key: value for key, value in first.labels.items() if value is not None}}
        marks = {key: value for key, value in first.annotations.items() if value is not None}
        change = deploy_labels.plan_present(deploy_labels.Node(name, now, marks),
                                            deploy_labels.parse_deploy(new["deploy"]), deploy_labels.Terms(0))
        then = dict(now) if change is None else {**now, **change.labels}
        if now.get("nvidia.com/mig.config"):
            assert then.get("nvidia.com/mig.config") == now["nvidia.com/mig.config"]
        for _component, one in daemon_sets(old).values():
            selector = one["spec"]["template"]["spec"].get("nodeSelector") or {}
            if selector.items() <= now.items():
                assert selector.items() <= then.items(), (name, one["metadata"]["name"])


STEPS = st.lists(st.builds(
    lambda number, needs, blocked: Step("act", str(number), needs=needs, data={"blocked": blocked}),
    st.integers(0, 99), st.sampled_from(LEVELS), st.sampled_from(["", "", "in use"])), max_size=8)


@given(STEPS, st.sampled_from(LEVELS))
def test_no_step_needs_more_than_its_level(steps: list[Step], level: str) -> None:
    for split in (gate, gate_driver):
        done, pending = split(steps, level)
        assert done == steps[:len(done)] and len(done) + len(pending) == len(steps)
        assert all(allows(level, step.needs) for step in done)
        assert all(step.pending_reason for step in pending)
    assert not any(step.data["blocked"] for step in gate_driver(steps, level)[0])


MPS = {"config": {"name": "c", "create": True, "default": "a", "data": {
    "a": "version: v1\nsharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}\n"}}}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("running", [set(), {"driver"}, {"device_plugin"}, {"driver", "device_plugin"}])
def test_a_removal_leaves_what_the_pods_need_that_stay(level: str, running: set[str]) -> None:
    """running: the components whose DaemonSets have pods."""
    made = plan({"devicePlugin": MPS}, facts(NODES[2]), disruption=level)
    changes = [Change("delete", kinds.find(one["apiVersion"], one["kind"]), component, None, {
        **one, "status": {"currentNumberScheduled": int(component in running)}})
        for component in (*made["components"], objects.SHARED) for one in render(component, made)]
    assert {objects.SHARED, "driver", "device_plugin", "dcgm_exporter"} <= {one.component for one in changes}
    left, pending = pending_changes.hold(changes, level, removal=True)
    stays = {*running, objects.SHARED} if running and level in ("never", "idle") else set()
    assert [one for one in changes if one.component not in stays] == left
    assert [one.id for one in pending] == [one.id for one in changes if one.component in stays]
    assert all(one.needs == "drain" and f"gpu_disruption is '{level}'" in one.pending_reason for one in pending)


MPS_ACTS = {"delete the DaemonSet of the MPS daemon without pods": 0,
            "delete the DaemonSet of the MPS daemon with pods": 2}


PAUSES: dict[str, list[str]] = {
    "pause the MPS daemon of a Node without GPU pods": [], "pause the MPS daemon of a Node with GPU pods": ["job"]}


@pytest.mark.parametrize(("act", "level", "said"), [one for one in cases("cluster") if one[0] in PAUSES])
@pytest.mark.parametrize("evict", [True, False])
@pytest.mark.parametrize("owner", ["ReplicaSet", "DaemonSet"])
def test_a_pause_of_operands_ends_no_mps_daemon_below_its_level(act: str, level: str, said: str, evict: bool,
                                                                owner: str) -> None:
    """This holds for every change of the host, MIG instances in free space or more, and every owner of the pods."""
    assert {*MPS_ACTS, *PAUSES, LABEL_ACT, START_ACT, RESTART_ACT, NFD_ACT} == TABLE["cluster"].keys()
    site = Site(mps(), *(pod(name, owner=owner) for name in PAUSES[act]))
    begun = site.run("started", level, evict=evict, creates=True)
    assert begun["started"] is ("mps" not in site.running) is (said == YES)


LABEL_ACT = "remove the deploy label by which a driver pod runs"
START_ACT, RESTART_ACT = "start the MIG manager on a Node that requests a layout", "restart an outdated MIG manager"
NFD_ACT = "delete Node Feature Discovery while a driver selects its Nodes by its labels"


@pytest.mark.parametrize(("_act", "level", "said"), [one for one in cases("cluster") if one[0] == LABEL_ACT])
def test_a_deploy_label_needs_its_level(_act: str, level: str, said: str) -> None:
    """From that level on, the label is removed after its pod has ended."""
    key = "nvidia.com/gpu.deploy.driver"
    made = plan({"driver": {"enabled": False}}, facts(NODES[2]), disruption=level)
    one = deploy_labels.Node("n1", {**PLACES["n3"], key: "true", "feature.node.kubernetes.io/pci-10de.present": "true"},
                             {deploy_labels.ANNOTATION: key})
    for ended_on in ([], ["n1"]):
        deploy = deploy_labels.parse_deploy({**made["deploy"], "ended_on": ended_on})
        change = deploy_labels.plan_present(one, deploy, deploy_labels.Terms(0))
        assert bool(change and key in change.labels) == (said == YES and bool(ended_on))


@pytest.mark.parametrize(("act", "level", "said"), [one for one in cases("cluster") if one[0] in MPS_ACTS])
def test_the_mps_daemon_needs_its_level(act: str, level: str, said: str) -> None:
    """The API server cannot tell whether its pods have clients, so they count as if they had."""
    made = plan({"devicePlugin": MPS}, facts(NODES[2]), disruption=level)
    _component, manifest = daemon_sets(made)[objects.MPS_DAEMON]
    live = {**manifest, "status": {"currentNumberScheduled": MPS_ACTS[act]}}
    change = Change("delete", kinds.find("apps/v1", "DaemonSet"), "device_plugin", None, live)
    left, pending = pending_changes.hold([change], level)
    assert (bool(left), bool(pending)) == (said == YES, said == NO)


MIG_MANAGER, LAYOUT = "nvidia.com/gpu.deploy.mig-manager", {"nvidia.com/mig.config": "all-1g.10gb"}


@pytest.mark.parametrize(("_act", "level", "said"), [one for one in cases("cluster") if one[0] == START_ACT])
@pytest.mark.parametrize("layout", [LAYOUT, {}])
def test_a_mig_manager_starts_where_layouts_may_change(_act: str, level: str, said: str, layout: dict[str, str]
                                                       ) -> None:
    """It applies the layout of its Node when it starts."""
    made = plan({}, facts(node(**CAPABLE, **layout)), disruption=level)
    change = deploy_labels.plan_present(deploy_labels.Node("n1", {**CAPABLE, **layout}),
                                        deploy_labels.parse_deploy(made["deploy"]), deploy_labels.Terms(0))
    assert change is not None and (MIG_MANAGER in change.labels) == (said == YES or not layout)


@pytest.mark.parametrize(("_act", "level", "said"), [one for one in cases("cluster") if one[0] == RESTART_ACT])
def test_an_outdated_mig_manager_restarts_where_layouts_may_change(_act: str, level: str, said: str) -> None:
    made = plan({}, facts(node(**CAPABLE)), disruption=level)
    strategy = next(one["spec"]["updateStrategy"]["type"] for one in render("mig_manager", made)
                    if one["kind"] == "DaemonSet")
    assert strategy == ("RollingUpdate" if said == YES else "OnDelete")


@pytest.mark.parametrize(("_act", "level", "said"), [one for one in cases("cluster") if one[0] == RESTART_ACT])
@pytest.mark.parametrize(("labels", "pods", "starts"), [
    ({MIG_MANAGER: "true", **LAYOUT}, 1, True), ({MIG_MANAGER: "true", **LAYOUT}, 0, False),
    ({MIG_MANAGER: "true"}, 1, False), ({MIG_MANAGER: "false", **LAYOUT}, 1, False)])
def test_a_mig_manager_moves_where_layouts_may_change(_act: str, level: str, said: str, labels: dict[str, str],
                                                      pods: int, starts: bool) -> None:
    """To another namespace, where its pods start anew. The other objects of the component follow its DaemonSet."""
    made = plan({}, facts(node(**CAPABLE)), disruption=level)
    live = next(one for one in render("mig_manager", made) if one["kind"] == "DaemonSet")
    live = {**live, "metadata": {**live["metadata"], "namespace": "former"}, "status": {"currentNumberScheduled": pods}}
    changes = [*(Change("create", kinds.find(one["apiVersion"], one["kind"]), component, one, None)
                 for component in ("dcgm_exporter", "mig_manager") for one in render(component, made)),
               Change("delete", kinds.find("apps/v1", "DaemonSet"), "mig_manager", None, live)]
    left, pending = pending_changes.hold(changes, level, lambda: [{"metadata": {"name": "n1", "labels": labels}}])
    holds = starts and said == NO
    assert [one.id for one in pending] == [one.id for one in changes if holds and one.component == "mig_manager"]
    assert len(left) + len(pending) == len(changes)
    assert all(one.needs == "idle" and "this needs 'idle' or higher: " in one.pending_reason for one in pending)
    assert any("the MIG layouts of 1 Nodes, such as n1" in one.pending_reason for one in pending) == holds


FEATURE = "feature.node.kubernetes.io/kernel-version.full"
BY_AFFINITY = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
    {"matchExpressions": [{"key": FEATURE, "operator": "In", "values": ["x"]}]}]}}}


@pytest.mark.parametrize(("_act", "level", "said"), [one for one in cases("cluster") if one[0] == NFD_ACT])
@pytest.mark.parametrize(("spec", "pods", "needs"), [
    ({"nodeSelector": {FEATURE: "x"}}, 2, True), ({"affinity": BY_AFFINITY}, 2, True),
    ({"nodeSelector": {FEATURE: "x"}}, 0, False), ({"nodeSelector": {"zone": "a"}}, 2, False), ({}, 2, False)])
@pytest.mark.parametrize("kept", ["elsewhere", "unchanged", "changed", "deleted"])
@pytest.mark.parametrize("moves", [False, True])
def test_nfd_stays_while_drivers_select_by_its_labels(_act: str, level: str, said: str, spec: dict[str, Any], pods: int,
                                                      needs: bool, kept: str, moves: bool) -> None:
    """A master that ends may still take its labels from the Nodes, and driver pods would end there. The whole component
    stays, also where it would only move to another namespace. kept: what happens to the driver itself."""
    driver: dict[str, Any] = {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {
        "name": "d", "namespace": "n", "labels": objects.marks("driver")},
        "spec": {"updateStrategy": {"type": "OnDelete"}, "template": {"spec": spec}},
        "status": {"currentNumberScheduled": pods}}
    made = plan({}, facts(node()), disruption=level)
    gone = [Change("delete", kinds.find(one["apiVersion"], one["kind"]), "nfd", None, one)
            for one in render("nfd", made)]
    assert {"DaemonSet", "Deployment", "CustomResourceDefinition"} <= {one.kind.kind for one in gone}
    new = [replace(one, action="create", manifest=one.live, live=None) for one in gone if moves]
    now = [Change({"changed": "update", "unchanged": "keep", "deleted": "delete"}[kept], kinds.find(
        "apps/v1", "DaemonSet"), "driver", None if kept == "deleted" else driver, driver, (),
        kept == "deleted" and said == YES)] if kept != "elsewhere" else []
    left, pending = pending_changes.hold([*new, *now, *gone], level, there=[driver])
    held = needs and said == NO
    assert [one.id for one in [*new, *gone] if one not in left] == ([one.id for one in [*new, *gone]] if held else [])
    assert all(one.needs == "drain" and f"gpu_disruption is '{level}'" in one.pending_reason for one in pending)
    assert sum("DaemonSet n/d selects its Nodes by labels" in one.pending_reason for one in pending) == (
        len([one for one in gone if one.kind.kind in ("DaemonSet", "Deployment")]) if held else 0)


def test_nfd_may_change_while_drivers_select_by_its_labels() -> None:
    """Its deletion alone takes labels from Nodes; what it no longer needs may go."""
    made = plan({}, facts(node()))
    driver = {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {
        "name": "d", "namespace": "n", "labels": objects.marks("driver")},
        "spec": {"template": {"spec": {"nodeSelector": {FEATURE: "x"}}}}, "status": {"currentNumberScheduled": 2}}
    changes = [Change("delete" if one["kind"] == "ConfigMap" else "update", kinds.find(one["apiVersion"], one["kind"]),
                      "nfd", one, one) for one in render("nfd", made)]
    assert pending_changes.hold(changes, "never", there=[driver]) == (changes, [])
