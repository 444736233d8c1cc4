# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The output for users about a cluster: with hosts, alone, in a narrow terminal, during a run, and as a page."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._inventory import cluster_nodes
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.checks import (
    Check,
    Failing,
    Open,
    Progress,
    SharedProblem,
    Waiting,
    read,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._reports import report_cluster, webpage
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._reports.model import Cluster, Report
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._reports.report import (
    render_plan,
    render_result,
    render_state,
    verdict,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._reports.terminal import Style
from ansible_collections.gpuops.nvidia.tests.unit.reports.test_report import Parser, assert_golden, fleet

NAMES = ("nfd", "validator", "device_plugin", "feature_discovery", "dcgm_exporter")
IMAGES = {
    "nfd": {"nfd": "registry.k8s.io/nfd/node-feature-discovery:v0.19.0"},
    "validator": {"validator": "nvcr.io/nvidia/gpu-operator:v26.7.0"},
    "device_plugin": {"device_plugin": "nvcr.io/nvidia/k8s-device-plugin:v0.20.0", "validator": "left out here"},
    "feature_discovery": {"feature_discovery": "nvcr.io/nvidia/k8s-device-plugin@sha256:" + 64 * "a"},
    "dcgm_exporter": {"dcgm_exporter": "nvcr.io/nvidia/k8s/dcgm-exporter:4.6.0-4.8.3-distroless"},
}
PRODUCT = "nvidia.com/gpu.product"


def nodes() -> dict[str, dict[str, Any]]:
    """20 GPU Nodes of two kinds, a new one, and a Node without GPUs."""
    found = {f"gpu-{number:02}": {
        "gpu": True, "labels": {PRODUCT: "NVIDIA-H100-80GB-HBM3" if number < 12 else "NVIDIA-L40S"},
        "os": {"id": "ubuntu", "version": "22.04"}, "kernel": "5.15.0-91-generic", "runtime": "containerd"}
        for number in range(20)}
    found["new"] = {"gpu": True, "labels": {}, "os": {"id": None, "version": None}, "kernel": "6.1", "runtime": "crio"}
    return {**found, "cpu": {**found["gpu-00"], "gpu": False}}


def check(name: str, **parts: Any) -> dict[str, Any]:
    """A check of the cluster, by default a good one on 21 Nodes."""
    return {"component": name, "ok": "state" not in parts, "state": "ok", "detail": "21/21 ready", "hint": "",
            "desired": 21, "ready": 21, "updated": 21, "nodes": [], **parts}


def change(action: str, name: str, component: str, *reasons: str) -> dict[str, Any]:
    """An object as operands returns it."""
    return {"object": name, "component": component, "action": action, "reasons": list(reasons), "before": {},
            "after": {}}


def part() -> dict[str, Any]:
    """A cluster after a run in which the validator is not ready on one Node."""
    plan = {
        "server": "https://10.0.0.1:6443", "namespace": "gpu-operator", "render_to": None,
        "components": {"driver": {"state": "absent", "because": ["gpu_placement delivers it on hosts"]},
                       **{name: {"state": "present", "images": IMAGES[name]} for name in NAMES}},
        "deploy": {"on_host": {"gpu-00": ["device_plugin"]}},
        "nodes": {"gpu": [name for name, one in nodes().items() if one["gpu"]], "cpu": 1, "by_host": {},
                  "pools": cluster_nodes.pools(nodes())}}
    kinds = ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding", "ConfigMap", "DaemonSet")
    objects = [change("create", "Namespace gpu-operator", "cluster"),
               *[change("create", f"{kind} gpu-operator/nvidia-device-plugin", "device_plugin") for kind in kinds],
               change("repair", "DaemonSet gpu-operator/nvidia-operator-validator", "validator",
                      "spec.template.spec.hostPID", "spec.template.spec.containers"),
               change("keep", "DaemonSet gpu-operator/gpu-feature-discovery", "feature_discovery")]
    stuck = {"node": "gpu-03", "pod": "nvidia-operator-validator-x7k2p", "container": "toolkit-validation",
             "state": "Init:1/4", "reason": "", "message": "", "level": "failed", "waits_for": "",
             "cause": "the nvidia runtime is not injected", "hint": "restart the runtime"}
    waits = {**stuck, "pod": "nvidia-device-plugin-q2", "state": "Init:0/1", "waits_for": "validator",
             "level": "pending"}
    checks = [
        check("nfd", desired=22, ready=22, updated=22, detail="22/22 ready"),
        check("validator", state="failed", ready=20, nodes=[stuck], hint="Look for runtimes.nvidia and restart it.",
              detail="20/21 ready; gpu-03: toolkit-validation Init:1/4: the nvidia runtime is not injected"),
        check("device_plugin", state="pending", ready=20, nodes=[waits], detail="20/21 ready; waits for validator on "
              "gpu-03"),
        check("feature_discovery"), check("dcgm_exporter", desired=0, ready=0, updated=0,
                                          detail="no node asks for it: no GPU node carries its label")]
    return {"plan": plan, "operands": {"objects": objects}, "checks": checks,
            "labels": {"changed": True, "nodes": {name: {} for name in plan["nodes"]["gpu"]}}}


def test_a_take_over_is_told_as_such() -> None:
    objects = [change("stop", "Deployment gpu-operator/gpu-operator", "", "spec.replicas 1 to 0"),
               change("adopt", "DaemonSet gpu-operator/nvidia-dcgm-exporter", "dcgm_exporter")]
    assert report_cluster.steps(Cluster.of({"operands": {"objects": objects}})) == {
        "operator": ["stop Deployment gpu-operator (spec.replicas 1 to 0)"],
        "DCGM exporter": ["adopt DaemonSet nvidia-dcgm-exporter"]}


def both() -> dict[str, Any]:
    return {**fleet(), "cluster": part()}


def alone() -> dict[str, Any]:
    return {**fleet(), "hosts": {}, "cluster": part()}


@pytest.mark.parametrize("name", ["plan-119", "plan-79", "result-119", "result-79", "state-100"])
def test_rendering(name: str) -> None:
    kind, width = name.split("-")
    style = Style(int(width), fancy=width != "79")
    render = {"plan": render_plan, "result": render_result, "state": render_state}[kind]
    text = render(Report.of(both() if kind == "result" else alone()), style) + "\n"
    assert_golden(f"cluster-{name}", text)
    assert max(map(len, text.splitlines())) <= int(width)
    assert style.fancy or text.isascii()


def test_verdicts() -> None:
    assert verdict(Report.of(both())).endswith("; 3 of 5 components are ready in the cluster, 1 pending, 1 failed.")
    assert verdict(Report.of(alone())) == "3 of 5 components are ready in the cluster, 1 pending, 1 failed."
    unreached = alone()
    unreached["cluster"]["checks"] = None
    assert verdict(Report.of(unreached)) == "the cluster was not reached."
    assert "not reached" in render_result(Report.of(unreached), Style())


def test_components_with_one_cause_stand_together() -> None:
    report = alone()
    report["cluster"]["checks"] = [
        check(name, state="pending", detail=f"{count}/{count} ready; gpu-3: not counted; the node is NotReady",
              hint="Bring gpu-3 back.") for count, name in enumerate(NAMES)]
    lines = render_result(Report.of(report), Style(160)).splitlines()
    assert "… NFD, validator, device plugin, labels, DCGM exporter:  gpu-3: not counted; the node is NotReady" in lines
    assert lines.count("    → Bring gpu-3 back.") == 1


def test_a_page_does_not_list_hundreds_of_nodes() -> None:
    report = alone()
    places = report["cluster"]["checks"][1]["nodes"]
    report["cluster"]["checks"][1]["nodes"] = [{**places[0], "node": f"n-{number}"} for number in range(300)]
    text = webpage.page(Report.of(report))
    assert "n-29<" in text and "n-30<" not in text and "and 270 more" in text


def test_rendered_manifests_are_no_cluster() -> None:
    report = both()
    report["cluster"]["plan"].update(render_to="/tmp/manifests", server=None)
    report["cluster"]["checks"] = None
    assert "written to /tmp/manifests; no cluster was changed" in render_result(Report.of(report), Style())
    assert "cluster" not in verdict(Report.of(report))


def test_a_converged_cluster_has_nothing_to_do() -> None:
    report = alone()
    report["cluster"]["operands"], report["cluster"]["labels"] = {"objects": []}, {"changed": False, "nodes": {}}
    text = render_plan(Report.of(report), Style())
    assert "Nothing to do in the cluster" in text and "host is as planned" not in text


def test_a_removal_without_a_plan_names_what_went() -> None:
    gone = [change("delete", f"DaemonSet gpu-operator/d{number}", "driver") for number in range(2)]
    report = {"plan": None, "problem": None, "hosts": {}, "cluster": {
        "plan": None, "operands": {"objects": gone}, "labels": None, "checks": None}}
    assert "delete DaemonSet d0, DaemonSet d1" in render_state(Report.of(report), Style())


def on_the_way(**more: Any) -> Progress:
    return Progress(65.2, 1134.8, **more)


@pytest.mark.parametrize("width", [60, 100])
def test_progress_is_one_line(width: int) -> None:
    told = on_the_way(open=[
        Open("driver", 18, 24, [], [Waiting(f"gpu-{number}", "k8s-driver-manager") for number in range(6)]),
        Open("device_plugin", 3, 24, [], [])])
    line = report_cluster.progress(told, Style(width))
    assert line.startswith(" 1:05  driver █████████░░░ 18/24, waiting: gpu-0 (k8s-")
    assert len(line) <= width and (width > 60 or line.endswith("..."))
    assert report_cluster.progress(told, Style(200, fancy=False)).endswith(
        "driver #########... 18/24, waiting: gpu-0 (k8s-driver-manager) and 5 more; then device plugin 3/24")


def test_progress_names_what_fails_and_what_is_done() -> None:
    told = on_the_way(done=[("nfd", 3)], open=[
        Open("driver", 0, 2, [], []), Open("validator", 0, 2, [Failing("gpu-7", "nouveau holds the GPU")], [])])
    lines = report_cluster.progress(told, Style(120)).splitlines()
    assert lines[0] == " 1:05  ✔ ready: NFD (3)"
    assert lines[1] == (" 1:05  validator ░░░░░░░░░░░░ 0/2, 1 failing: gpu-7 (nouveau holds the GPU); then driver 0/2")
    last = report_cluster.progress(on_the_way(done=[("driver", 2)]), Style(120))
    assert last == " 1:05  ✔ ready: driver (2); all are ready"
    over = report_cluster.progress(told._replace(done=[], ends="timeout"), Style(120)).splitlines()
    assert len(over) == 2 and "timeout" in over[1]


def test_page() -> None:
    report = both()
    report["cluster"]["checks"][1]["nodes"][0]["message"] = "<script>x</script>"
    report["cluster"]["operands"]["objects"][0]["object"] = "Namespace <img>"
    text = webpage.page(Report.of(report))
    parser = Parser()
    parser.feed(text)
    assert not {"img", "link"} & set(parser.tags) and parser.tags.count("script") == 1 and parser.loaded == []
    for words in ("GPU hosts and cluster", "&lt;script&gt;", "&lt;img&gt;", "gpu-03", "waits for validator there",
                  "restart the runtime", "NVIDIA-L40S", "3 of 5 components"):
        assert words in text
    assert "GPU hosts" not in webpage.page(Report.of(alone()))


def images(**plan: Any) -> list[list[str]]:
    """The rows of components in the plan of a cluster, as text."""
    cluster = Cluster.of({"plan": {**part()["plan"], **plan}})
    return [[cell.text for cell in row] for row in report_cluster.component_rows(cluster)]


def test_images_and_for_how_many_nodes() -> None:
    assert images() == [["NFD", "node-feature-discovery:v0.19.0", "22"], ["validator", "gpu-operator:v26.7.0", "21"],
                        ["device plugin", "k8s-device-plugin:v0.20.0", "20"],
                        ["labels", "k8s-device-plugin@sha256:aaaaaaaaaaaa", "21"],
                        ["DCGM exporter", "dcgm-exporter:4.6.0-4.8.3-distroless", "21"]]
    assert {row[2] for row in images(server=None)} == {""}, "nobody knows the nodes of rendered manifests"
    mig = {"mig_manager": {"state": "present", "images": {"mig_manager": "x/k8s-mig-manager:v0.15.0"}}}
    assert images(components=mig) == [["MIG", "k8s-mig-manager:v0.15.0", "up to 21"]]


def test_driver_images_by_pools() -> None:
    def pool(version: str) -> dict[str, Any]:
        return {"os": f"ubuntu{version}", "images": {"driver": f"nvcr.io/nvidia/driver:595.91.07-ubuntu{version}"}}

    one = {"driver": {"state": "present", "pools": [pool("22.04")]}}
    assert images(components=one) == [["driver", "driver:595.91.07-ubuntu22.04", "21"]]
    two = {"driver": {"state": "present", "pools": [pool("22.04"), pool("24.04")]}}
    resolved = [{"nodes": ["a", "b"], "driver": {"image": "x/driver:595.91.07-ubuntu22.04"}},
                {"nodes": ["c"], "driver": {"image": "x/driver:595.91.07-ubuntu22.04"}},
                {"nodes": ["d"], "driver": {"image": "x/driver:580.173.02-ubuntu24.04"}}]
    assert images(components=two, pools=resolved) == [["driver", "driver:595.91.07-ubuntu22.04", "3"],
                                                      ["", "driver:580.173.02-ubuntu24.04", "1"]]


def test_hosts_are_named_where_a_cluster_stands_beside() -> None:
    calm = {**both(), "hosts": {"gpu03": both()["hosts"]["gpu03"]}}
    assert "Nothing to do on hosts: every host is as planned." in render_plan(Report.of(calm), Style())


def cause(**more: Any) -> dict[str, Any]:
    """The result of gpu_verify for all Nodes with the same state."""
    words = "nvidia-driver-ctr Running, CrashLoopBackOff; likely cause: it is <broken>"
    return {
        "level": "failed", "waits_for": "", "node": "gpu-01", "pod": "nvidia-driver-daemonset-x7",
        "nodes": ["gpu-01", "gpu-02"], "where": "2 nodes, gpu-[01-02]", "container": "nvidia-driver-ctr",
        "cause": "it is <broken>", "state": "Running", "reason": "CrashLoopBackOff", "restarts": 6,
        "since": "2026-01-01T10:02:00Z", "text": f"2 nodes, gpu-[01-02]: {words}", "hint": "Mend it.",
        "log": ["one", "two " * 40], "log_problem": "", "do": ["kubectl logs x --previous"],
        "holds_up": {"validator": 2, "device_plugin": 1}, **more}


def test_a_cause_is_told_once_with_its_evidence() -> None:
    waits = cause(level="pending", waits_for="driver", text="waits for driver on 2 nodes")
    report = alone()
    report["cluster"]["checks"] = [
        check("driver", state="failed", ready=19, nodes=[{}], causes=[cause()]),
        check("validator", state="pending", ready=19, nodes=[{}], causes=[waits])]
    lines = report_cluster.render_result(Cluster.of(report["cluster"]), Style(80))
    text = "\n".join(lines)
    start = text.index("✖ driver:  2 nodes")
    told = text[start:]
    assert "waits for driver on" not in told and told.count("likely cause") == 1
    assert "pod nvidia-driver-daemonset-x7 on gpu-01, container nvidia-driver-ctr" in told
    assert "2026-01-01 10:02:00 UTC" in told and "6 restarts" in told and "\n      │ one\n" in told
    assert "\n      kubectl logs x --previous\n" in told
    assert told.endswith("waiting for it: validator (2), device plugin (1)")
    assert max(map(len, told.splitlines())) <= 80
    page = webpage.page(Report.of(report))
    assert "Why components are not ready" in page and "it is &lt;broken&gt;" in page and "<pre>one\n" in page
    assert "kubectl logs x --previous\n</pre>" in page


def test_a_log_that_was_not_read_is_said() -> None:
    problem = "its log cannot be read: the user of this kubeconfig does not have the right get pods/log"
    shared = read(SharedProblem, cause(log=[], log_problem=problem))
    assert report_cluster.pod_line(shared).endswith(f"6 restarts; {problem}")


def test_a_lost_node_is_one_entry_for_all_components() -> None:
    lost = {"level": "pending", "nodes": ["n1"], "where": "n1", "cause": "the node is NotReady", "hint": "Mend it."}
    checks = [check(name, state="pending", causes=[cause(**lost, container=name, text=f"n1: {name} Pending")])
              for name in ("driver", "validator")]
    [(titles, one)] = report_cluster.roots([Check.of(check) for check in checks])
    assert titles == ["driver", "validator"] and one.text == "n1: the node is NotReady"


def test_objects_that_are_changed_are_named_however_many() -> None:
    made = [{"object": f"ConfigMap a/c{number}", "component": "dcgm", "action": "repair", "reasons": ["data"]}
            for number in range(14)]
    text, = report_cluster.steps(Cluster.of({"operands": {"objects": made}}))["DCGM"]
    assert text.startswith("repair ConfigMap c0 (data), ConfigMap c1 (data), ") and text.endswith(" and 2 more")


def test_a_removal_that_finds_nothing_says_so() -> None:
    cluster = Cluster.of({"plan": None, "operands": {"objects": [], "server": "https://a"}})
    assert report_cluster.render_state(cluster, Style(100)) == [
        "Cluster https://a", "There were no owned objects to remove."]
