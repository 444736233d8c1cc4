# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The ranked causes of hosts and Nodes, and the archive with the evidence."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._reports import bundle
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._reports.diagnosis import (
    Diagnosis,
    Logged,
    diagnose,
    render,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._reports.model import Report
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._reports.terminal import Style

NOUVEAU = {"check": "nouveau", "severity": "error", "text": "nouveau uses the GPUs", "fix": "Blacklist it"}
NO_MODULE = {"component": "driver", "state": "failed", "detail": "no NVIDIA module is loaded.", "hint": "Run site.yml."}
NO_CLASS = {"component": "container_toolkit", "state": "failed", "detail": "there is no class", "hint": "Run site.yml."}
XID = {"check": "xid", "severity": "warning", "text": "GPU 0 has reported Xid 79", "fix": "Power-cycle the host"}
REJECTED = {"message": "modprobe: Key was rejected by service", "meaning": "Secure Boot is on.", "action": "Enrol it."}
OK = {"component": "driver", "state": "ok", "detail": "595.91.07"}


def report(hosts: dict[str, Any], findings: list[dict[str, str]] | None = None, plan: Any = None,
           checks: list[dict[str, Any]] | None = None) -> Report:
    """A report. hosts: the checks by host."""
    known = {name: {"facts": None, "checks": checks_of, "steps": {}, "pending": {}}
             for name, checks_of in hosts.items()}
    return Report.of({"plan": plan, "problem": "", "hosts": known, "findings": findings or [],
                      "cluster": {"plan": {}, "checks": checks} if checks else None})


def causes(found: list[Diagnosis], machine: str) -> list[tuple[str, str]]:
    """The causes of a machine as C((concern, cause))."""
    one, = [one for one in found if machine in one.machines]
    return [(cause.concern, cause.cause) for cause in one.causes]


def test_the_first_cause_explains_the_others() -> None:
    found = diagnose(report({"a": [NO_CLASS, NO_MODULE]}, [{**NOUVEAU, "host": "a"}]), {"a": Logged([REJECTED])})
    assert causes(found, "a") == [
        ("driver", "nouveau uses the GPUs"), ("driver", "Secure Boot is on"), ("driver", "no NVIDIA module is loaded"),
        ("container toolkit", "there is no class")]


def test_a_gpu_that_has_failed_comes_before_the_driver() -> None:
    found = diagnose(report({"a": [NO_MODULE], "b": [OK]}, [{**XID, "host": host} for host in "ab"]), {})
    assert causes(found, "a")[0] == ("hardware", "GPU 0 has reported Xid 79")
    assert causes(found, "b") == [("hardware", "GPU 0 has reported Xid 79")], "also with a driver that works"
    assert [(one.machines, one.state) for one in found] == [(["a"], "failed"), (["b"], "warned")]


def test_messages_and_warnings_explain_nothing_while_the_driver_works() -> None:
    """They may be older than a repair, or about something that has no effect."""
    old = {"check": "driver_end_of_life", "severity": "warning", "text": "branch 550 gets no fixes", "fix": ""}
    found = diagnose(report({"a": [OK], "b": [OK, NO_CLASS]}, [{**old, "host": host} for host in "ab"]),
                     {"a": Logged([REJECTED]), "b": Logged([REJECTED])})
    assert causes(found, "a") == [] and causes(found, "b") == [("container toolkit", "there is no class")]


@pytest.mark.parametrize(("checks", "state"), [
    ([OK], "fine"), ([], "fine"), (None, "unknown"), ([NO_MODULE], "failed"),
    ([{**NO_MODULE, "state": "pending"}], "waiting"), ([{**NO_MODULE, "state": "pending"}, NO_CLASS], "failed"),
])
def test_states(checks: Any, state: str) -> None:
    """Messages in logs count only while the driver does not work, not while an upgrade of it waits."""
    found, = diagnose(report({"a": checks}), {"a": Logged([REJECTED])})
    assert found.state == state


def test_what_only_waits_comes_last() -> None:
    found = diagnose(report({"a": [{**NO_MODULE, "state": "pending"}, NO_CLASS]}), {})
    assert [concern for concern, _cause in causes(found, "a")] == ["container toolkit", "driver"]


def test_a_failed_test_of_dcgm_is_about_the_hardware() -> None:
    found = diagnose(report({"a": [OK]}), {"a": Logged((), "Memory Fail")})
    assert causes(found, "a") == [("hardware", "dcgmi diag reports: Memory Fail")]


def stuck(component: str, *nodes: str, **more: Any) -> dict[str, Any]:
    """The check of a component that is not ready on these Nodes."""
    return {"component": component, "ok": False, "state": "failed", "detail": "0/2", "nodes": [
        {"node": node, "cause": "the driver image is missing", "hint": "Choose another.", "log": ["l1", "l2"], **more}
        for node in nodes]}


def test_a_host_and_its_node_are_one_machine() -> None:
    """A component that only waits for another one is no cause."""
    plan = {"hosts": {"a": {"node": {"name": "node-a"}}, "b": {"node": None}}}
    found = diagnose(report({"a": [NO_CLASS], "b": [OK]}, plan=plan, checks=[
        stuck("driver", "node-a", "node-z"), stuck("validator", "node-a", waits_for="driver")]), {})
    assert causes(found, "a") == [("driver", "the driver image is missing"), ("container toolkit", "there is no class")]
    assert causes(found, "node-z") == [("driver", "the driver image is missing")]
    assert [one.machines for one in found] == [["node-z"], ["a"], ["b"]]


def test_a_check_of_the_cluster_without_nodes() -> None:
    found = diagnose(report({}, [{**NOUVEAU, "host": "node-y"}, {**XID, "host": "node-w"}], checks=[
        {"component": "labels", "ok": False, "state": "failed", "detail": "a label differs.", "hint": "Run site.yml."},
        {"component": "dcgm", "ok": True}]), {})
    assert causes(found, "cluster") == [("host", "a label differs")]
    assert causes(found, "node-y") == [("driver", "nouveau uses the GPUs")]
    assert all("node-w" not in one.machines for one in found), "warnings about Nodes are no faults"


def test_nodes_without_a_problem_are_machines_too() -> None:
    """But the cluster is none."""
    made = report({}, [], checks=[{"component": "labels", "ok": False, "state": "failed", "detail": "x"}])
    assert made.cluster
    made = replace(made, cluster=replace(made.cluster, plan={"nodes": {"gpu": ["n1", "n2"]}}))
    assert render(diagnose(made, {}), Style()).startswith("Diagnosis: 0 of 2 machines have a fault.")


def test_rendering() -> None:
    """Machines with the same causes are one entry, whatever their logs say."""
    findings = [{**NOUVEAU, "host": f"gpu-0{number}"} for number in (1, 2, 3)]
    hosts = {**{f"gpu-0{number}": [NO_MODULE, NO_CLASS, {**NO_CLASS, "detail": "x"}] for number in (1, 2, 3)},
             "b": [OK], "c": None}
    found = diagnose(report(hosts, findings, checks=[stuck("nfd", "n")]), {})
    text = render(found, Style(80, fancy=False))
    assert text.splitlines() == [
        "Diagnosis: 4 of 6 machines have a fault.",
        "XX gpu-[01-03]:  driver: nouveau uses the GPUs", "    -> Blacklist it",
        "    also  driver: no NVIDIA module is loaded", "    also  container toolkit: there is no class",
        "    and 1 further cause",
        "XX n:  NFD: the driver image is missing", "    -> Choose another.", "    | l1", "    | l2",
        "- c:  not compared with a plan", "ok b:  no fault found"]
    assert found[0].as_dict()["causes"][0] == {"concern": "driver", "cause": "nouveau uses the GPUs",
                                               "fix": "Blacklist it", "evidence": (), "waits": False,
                                               "warns": False}


def test_an_archive_has_no_secrets_and_no_control_characters() -> None:
    pod = {"metadata": {"annotations": {"x": "s3cret", "nvidia.com/a": "b"}, "labels": {"env": "prod"}}, "spec": {
        "volumes": [{"projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}, "secret": {"secretName": "n"}}
                    ],
        "containers": [{"args": ["--token", "s3cret"], "command": ["s3cret"], "env": [{"value": "s3cret"}],
                        "livenessProbe": {"httpGet": {"httpHeaders": [{"name": "k", "value": "s3cret"}]}}}]}}
    plan = {"dcgm": {"env": {"K": "s3cret"}, "args": ["s3cret"]}, "url": "https://u:s3cret@host/"}
    texts = {"hosts/a/x.log": "password=hunter2 \x1b[2J\nline", "pods.json": bundle.document([pod, plan]),
             "b.json": bundle.document({"token": "abc", "n": 1})}
    packed = bundle.archive(texts)
    assert packed == bundle.archive(dict(reversed(texts.items()))), "the same content is the same archive"
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(packed))) as archive:
        found = {one.name: (archive.extractfile(one) or io.BytesIO()).read().decode() for one in archive.getmembers()}
    assert found["gpu-support/hosts/a/x.log"] == "password=******** \\x1b[2J\nline"
    assert json.loads(found["gpu-support/b.json"]) == {"token": "********", "n": 1}
    pods, = [json.loads(text) for name, text in found.items() if name.endswith("pods.json")]
    assert pods[0]["metadata"] == {"annotations": {"nvidia.com/a": "b"}, "labels": {"env": "prod"}}
    assert pods[0]["spec"]["volumes"] == pod["spec"]["volumes"] and "s3cret" not in str(pods)


@pytest.mark.parametrize(("name", "part"), [
    ("gpu-01.example", "gpu-01.example"), ("../../etc/passwd", "_.._etc_passwd"), ("..", "_"), ("a/b", "a_b"),
    ("", "_"), ("x" * 300, "x" * 120), ("\x1b[2J", "_2J")])
def test_parts_of_paths(name: str, part: str) -> None:
    assert bundle.part(name) == part
