# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""No secret of a cluster is in anything that the playbooks print, return, log or write.

These are the token of the kubeconfig, the contents of the Secrets that the policy names, the password of the proxy, the
token of the licence, and passwords in variables of the policy. The test searches the output of -vvvv with differences
and tracebacks, all results with their invocations, Ansible's log and cache, the reports, the files of hand_back, and
the command lines of all programs on the controller. The runs in check mode do not write the user's files there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from lab.controlplane import cluster as clusters
from lab.controlplane import nodes
from tests.integration import user
from tests.integration.watched import Controller
from tests.integration_cluster.conftest import Kubectl, occupied
from tests.integration_cluster.plays import LOCAL, install

MARK, SPACE = "pl4nted", "gpu-operator"
# Of the policy itself: it also stands in the file with the policy that hand_back writes.
OWN_MARK = "pl4inly"
DRAIN = ("-e", "gpu_disruption=drain")
# adopt comes where no GPU Operator runs: then it is a run of site.
PLAYBOOKS: tuple[tuple[str, ...], ...] = (
    ("preflight",), ("preflight", "--check"), ("site", "--check"),
    ("site", "--check", "-e", "gpu_render_to=manifests"), ("site",), ("mig", "--check"), ("mig",), ("verify",),
    ("status",), ("adopt", "--check"), ("adopt",), ("hand_back", "--check"), ("hand_back",),
    ("remove", "--check", *DRAIN), ("remove", *DRAIN))
# Runs of site that fail: what is another user or cluster in the kubeconfig, and what the error says.
FAILING: dict[str, tuple[dict[str, str], dict[str, str], str]] = {
    "refused token": ({"token": f"{MARK}-token"}, {}, "Unauthorized"),
    "refused password": ({"username": "me", "password": f"{MARK}-password"}, {}, "gives no credentials"),
    "proxy that is not there": ({}, {"proxy-url": f"http://me:{MARK}-proxy@127.0.0.1:9"}, "failed: "),
    "unknown kind of proxy": ({}, {"proxy-url": f"ftp://me:{MARK}-proxy@127.0.0.1:9"}, "proxy-url"),
}
POLICY = {"driver": {"version": "580.95.05", "secretEnv": "driver-proxy", "imagePullSecrets": ["pull"],
                     "licensingConfig": {"secretName": "licence", "nlsEnabled": True},
                     "env": [{"name": "FTP_PROXY", "value": f"http://me:{OWN_MARK}-proxy@proxy.example.com:3128"}]},
          "toolkit": {"env": [{"name": name, "value": f"{OWN_MARK}-{name}"} for name in (
              "NGC_API_KEY", "REGISTRY_AUTH", "GPG_PASSPHRASE", "SIGNING_KEY", "AWS_ACCESS_KEY_ID", "SESSION_COOKIE",
              "JWT")] + [
              {"name": "MIRROR", "value": f"https://mirror.example.com/x?sig={OWN_MARK}-query"},
              {"name": "PEM", "value": f"-----BEGIN PRIVATE KEY-----\n{OWN_MARK}-pem\n-----END PRIVATE KEY-----\n"}]}}
SECRETS: dict[str, dict[str, str]] = {
    "pull": {".dockerconfigjson": json.dumps({"auths": {"r.example.com": {"auth": f"{MARK}pull"}}})},
    "licence": {"client_configuration_token.tok": f"{MARK}-licence", "gridd.conf": ""},
    "driver-proxy": {"HTTPS_PROXY": f"http://me:{MARK}-secret@proxy.example.com:3128"}}
PROXY = f"http://me:{MARK}-proxy@proxy.example.com:3128"


def prepare(kubectl: Kubectl, made: clusters.Cluster, folder: Path) -> tuple[Path, str]:
    """A kubeconfig of a user with a token, and this token; creates the Secrets in the cluster."""
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


@dataclass
class Runs:
    """What was printed, returned and written, by run and file; marks: the texts to search for. marks: to look for.
    codes: the exit codes by run. written: the files that each run in check mode wrote. errors: by the names of FAILING.
    programs: the command lines."""

    found: dict[str, str] = field(default_factory=dict)
    marks: list[str] = field(default_factory=list)
    codes: dict[str, int] = field(default_factory=dict)
    written: dict[str, set[str]] = field(default_factory=dict)
    errors: dict[str, list[str]] = field(default_factory=dict)
    programs: str = ""


@pytest.fixture(scope="module")
def runs(empty: clusters.Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """Runs all playbooks one after another, then the failing ones."""
    install()
    with occupied(empty, *nodes.plain(1, 0, "a100-80", "ubuntu22.04")) as made:
        controller = Controller(tmp_path_factory.mktemp("secrets"))
        project, kubectl = controller.project, Kubectl(str(made.kubeconfig))
        kubeconfig, token = prepare(kubectl, made, project)
        variables: dict[str, Any] = {
            "gpu_placement": "cluster", "gpu_kubeconfig": str(kubeconfig), "gpu_policy": POLICY,
            "gpu_pull_secrets": ["pull"], "gpu_proxy": {"http": PROXY, "https": PROXY},
            "gpu_disruption": "idle", "driver_licence_token": f"{MARK}-licence"}
        inventory = project / "inventory.json"
        inventory.write_text(json.dumps({"gpu_control": {"hosts": {"cluster": LOCAL}, "vars": variables}}))
        result = Runs(marks=[MARK, OWN_MARK, *token.split(".")[1:]])

        def run(name: str, playbook: str, *words: str, **more: str) -> user.Run:
            before = controller.files()
            done = controller.run(playbook, [inventory], *words, gpu_report_html=f"{name}.html",
                                  gpu_report_json=f"{name}.json", hand_back_file=str(project / f"{name}.yml"), **more)
            result.found[name] = done.output + json.dumps(done.results)
            if "--check" in words:
                result.written[name] = controller.written(before)
            return done

        for words in PLAYBOOKS:
            name = " ".join(words)
            result.codes[name] = run(name, *words).rc
        others = []
        for name, (person, cluster, _said) in FAILING.items():
            config = yaml.safe_load(kubeconfig.read_text())
            config["users"][0]["user"] = person or {"token": token}
            config["clusters"][0]["cluster"].update(cluster)
            others.append(project / f"{name}.conf")
            others[-1].write_text(yaml.safe_dump(config))
            result.errors[name] = run(name, "site", gpu_kubeconfig=str(others[-1])).errors()
        result.found.update(controller.texts(inventory, kubeconfig, *others))
        result.programs = controller.programs()
        yield result


def test_no_secret_is_printed_returned_or_written(runs: Runs) -> None:
    for name, text in {**runs.found, "programs": runs.programs}.items():
        marks = [mark for mark in runs.marks if mark != OWN_MARK or not name.endswith("hand_back.yml")]
        for mark in marks:
            at = text.find(mark)
            assert at < 0, (name, text[max(0, at - 300):at + 100])


def test_check_mode_writes_nothing_on_the_controller(runs: Runs) -> None:
    assert runs.written == {" ".join(words): set() for words in PLAYBOOKS if "--check" in words}


def test_the_playbooks_did_their_work(runs: Runs) -> None:
    """Proves that the search had something to find."""
    assert runs.codes == {" ".join(words): 0 for words in PLAYBOOKS}, {
        name: runs.found[name][-3000:] for name, code in runs.codes.items() if code}
    assert {"preflight.html", "site.html", "site.json", "hand_back.yml", "log"} <= runs.found.keys()
    assert "driver-proxy" in runs.found["hand_back.yml"] and "DaemonSet" in runs.found["site --check"]
    for name, (_person, _cluster, said) in FAILING.items():
        assert said in str(runs.errors[name]), (name, runs.errors[name])
    assert "ansible" in runs.programs
