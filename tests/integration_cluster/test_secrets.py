# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every secret of a cluster is in nothing that the playbooks print, return, log or write.

These are the token of the kubeconfig, the contents of the Secrets that the policy names, the password of the proxy and
the token of the licence. Looked at are -vvv with differences, all results with their invocations, Ansible's log, the
reports, and what hand_back writes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from lab.controlplane import cluster as clusters
from tests.integration import user
from tests.integration_cluster.conftest import NAME, Kubectl, running
from tests.integration_cluster.plays import LOCAL, install

MARK, SPACE = "pl4nted", "gpu-operator"
# adopt comes where no GPU Operator runs: then it is a run of site.
PLAYBOOKS: tuple[tuple[str, ...], ...] = (
    ("site", "--check"), ("site",), ("mig",), ("verify",), ("status",), ("adopt",), ("hand_back",),
    ("remove", "-e", "gpu_disruption=drain"))
POLICY = {"driver": {"version": "580.95.05", "secretEnv": "driver-proxy", "imagePullSecrets": ["pull"],
                     "licensingConfig": {"secretName": "licence", "nlsEnabled": True}}}
SECRETS: dict[str, dict[str, str]] = {
    "pull": {".dockerconfigjson": json.dumps({"auths": {"r.example.com": {"auth": f"{MARK}pull"}}})},
    "licence": {"client_configuration_token.tok": f"{MARK}-licence", "gridd.conf": ""},
    "driver-proxy": {"HTTPS_PROXY": f"http://me:{MARK}-secret@proxy.example.com:3128"}}
PROXY = f"http://me:{MARK}-proxy@proxy.example.com:3128"


def prepare(kubectl: Kubectl, made: clusters.Cluster, folder: Path) -> tuple[Path, str]:
    """The kubeconfig of a user with a token, and this token; in the cluster the Secrets."""
    kubectl("create", "namespace", SPACE)
    for name, data in SECRETS.items():
        form = "kubernetes.io/dockerconfigjson" if name == "pull" else "Opaque"
        kubectl("create", "--filename", "-", stdin={
            "apiVersion": "v1", "kind": "Secret", "type": form, "stringData": data,
            "metadata": {"name": name, "namespace": SPACE}})
    kubectl("--namespace", "default", "create", "serviceaccount", "admin")
    kubectl("create", "clusterrolebinding", "admin", "--clusterrole=cluster-admin", "--serviceaccount=default:admin")
    token = kubectl("--namespace", "default", "create", "token", "admin").strip()
    config = yaml.safe_load(Path(made.kubeconfig).read_text())
    for one in config["users"]:
        one["user"] = {"token": token}
    path = folder / "admin.conf"
    path.write_text(yaml.safe_dump(config))
    return path, token


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, str], list[str], dict[str, int]]]:
    """By playbook what it printed and returned, and by file what it wrote; the marks to look for; the exit codes."""
    folder = tmp_path_factory.mktemp("secrets")
    install()
    with running(f"{NAME}-secrets", "--nodes", "plain", "--gpu", "1", "--os", "ubuntu22.04") as made:
        kubectl = Kubectl(str(made.kubeconfig))
        kubeconfig, token = prepare(kubectl, made, folder)
        variables: dict[str, Any] = {
            "gpu_placement": "cluster", "gpu_kubeconfig": str(kubeconfig), "gpu_policy": POLICY,
            "gpu_pull_secrets": ["pull"], "gpu_proxy": {"http": PROXY, "https": PROXY},
            "gpu_disruption": "idle", "driver_licence_token": f"{MARK}-licence"}
        found: dict[str, str] = {}
        codes: dict[str, int] = {}
        for number, (playbook, *words) in enumerate(PLAYBOOKS):
            name, out = " ".join([playbook, *words]), folder / str(number)
            out.mkdir()
            inventory = folder / "inventory.json"
            inventory.write_text(json.dumps({"gpu_control": {"hosts": {"cluster": LOCAL}, "vars": variables}}))
            run = user.playbook(playbook, [inventory], "-vvv", "--diff", *words, cold=True,
                                settings={"ANSIBLE_LOG_PATH": str(out / "log")},
                                gpu_report_html=str(out / "report.html"), gpu_report_json=str(out / "report.json"),
                                hand_back_file=str(out / "cluster-policy.yml"))
            codes[name] = run.rc
            found[name] = run.output + json.dumps(run.results)
            found.update({f"{name}: {path.name}": path.read_text(errors="replace") for path in out.iterdir()})
        yield found, [MARK, *token.split(".")[1:]], codes


def test_no_secret_is_printed_returned_or_written(runs: tuple[dict[str, str], list[str], dict[str, int]]) -> None:
    found, marks, _codes = runs
    for name, text in found.items():
        for mark in marks:
            at = text.find(mark)
            assert at < 0, (name, text[max(0, at - 300):at + 100])


def test_the_playbooks_did_their_work(runs: tuple[dict[str, str], list[str], dict[str, int]]) -> None:
    """What is not looked at cannot be seen."""
    found, _marks, codes = runs
    assert codes == {" ".join(words): 0 for words in PLAYBOOKS}, {
        name: found[name][-3000:] for name, code in codes.items() if code}
    assert {"site: report.html", "site: report.json", "hand_back: cluster-policy.yml", "site: log"} <= found.keys()
    assert "driver-proxy" in found["hand_back: cluster-policy.yml"] and "DaemonSet" in found["site --check"]
