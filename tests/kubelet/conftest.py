# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import functools
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._kube.client import Client

from lab import runs
from lab.controlplane import cluster as clusters
from lab.host import engine
from lab.host import lab as labs
from lab.stages import ROOT
from tests.integration import user
from tests.waiting import until

runs.begin()
NAME = "kubelet"
NODE = "gpu-n1"
GPUS = 2
NAMESPACE = "gpu-operator"
# Probes that ask soon; NFD has no stand-in here, the lab gives its labels.
POLICY = """\
nfd: {enabled: false}
driver:
  startupProbe: {initialDelaySeconds: 1, periodSeconds: 2}
gfd: {enabled: false}
dcgmExporter: {enabled: false}
migManager: {enabled: false}
"""
FAULTS = "/var/lib/gpulab/faults"
TOOLKIT_LOGS = "/var/log/pods/*nvidia-container-toolkit-daemonset*/nvidia-container-toolkit-ctr/*.log"
BARRIERS = {".driver-ctr-ready", "driver-ready", "toolkit-ready", "cuda-ready", "plugin-ready"}


@dataclass
class World:
    """A cluster with one Node, whose kubelet runs containers, and a user of the collection.

    first: the run that brought everything up.
    """

    cluster: clusters.Cluster
    folder: Path
    first: user.Run = field(default_factory=lambda: user.Run(-1, ""))

    def run(self, name: str = "site", timeout: int = 540, **variables: Any) -> user.Run:
        """Runs a playbook of the collection as its user does. timeout: seconds for operands to become ready."""
        return user.playbook(name, [self.folder / "inventory.json"], preflight_timeout=timeout, **variables)

    @functools.cached_property
    def client(self) -> Client:
        """An API client, which costs less CPU time than starting kubectl."""
        return Client(str(self.cluster.kubeconfig))

    def pods(self, app: str) -> list[Any]:
        """The pods of an operand that are not being removed."""
        found = self.client.list("v1", "Pod", NAMESPACE, f"app={app}")
        return [one for one in found if "deletionTimestamp" not in one["metadata"]]

    def phase(self, name: str) -> str:
        """The phase of a pod of a user."""
        found = self.client.get("v1", "Pod", name, "default")
        assert found is not None
        return str(found["status"]["phase"])

    def ready(self) -> bool:
        """Whether the pods of all operands are ready; completed pods do not count."""
        pods = self.client.list("v1", "Pod", NAMESPACE, field_selector="status.phase!=Succeeded")
        # One that was made this moment has no conditions yet.
        return all(any((one["type"], one["status"]) == ("Ready", "True") for one in pod["status"].get("conditions", ()))
                   for pod in pods)

    def up(self) -> bool:
        """Whether all operands have done their work and the Node offers its GPUs."""
        return self.ready() and self.allocatable == GPUS and self.barriers() >= BARRIERS and self.toolkit_waits()

    def toolkit_waits(self) -> bool:
        """Whether the toolkit has completed its work: it has no probe, and its pod is Ready earlier.

        Its last act is a restart of containerd. Its log does not show this: a containerd that ends loses what it has
        read and not yet written.
        """
        by_start = self.sh("ps -C nvidia-ctk-inst,containerd -o comm= --sort start_time || true").split()
        return by_start == ["nvidia-ctk-inst", "containerd"]

    def crashes(self, app: str) -> bool:
        """Whether the kubelet delays the restart of a container of an operand that has failed more than once."""
        return any((status["state"].get("waiting") or {}).get("reason") == "CrashLoopBackOff"
                   for pod in self.pods(app) for kind in ("initContainer", "container")
                   for status in pod["status"].get(f"{kind}Statuses", ()))

    def delete_pod(self, app: str) -> None:
        """Deletes the pod of an operand and waits until it no longer exists."""
        self.cluster.kubectl("--namespace", NAMESPACE, "delete", "pod", "--selector", f"app={app}")

    def sh(self, script: str) -> str:
        """Runs a script on the Node as root."""
        return engine.enter(labs.load(NAME).container(NODE), "sh", "-c", script).stdout

    def evidence(self) -> str:
        """The output of the last containers of the toolkit and of the kubelet, to explain a failure."""
        return self.sh(f"for log in $(ls -tr {TOOLKIT_LOGS} | tail -n 3); do echo $log; grep ' stderr ' $log; done; "
                       "journalctl --no-pager --unit kubelet --lines 2000 | grep -v reconciler_common | tail -n 150")

    @contextmanager
    def fault(self, name: str, words: str) -> Iterator[None]:
        """A context in which a simulated program prints these words and fails."""
        self.sh(f"echo '{words}' > {FAULTS}/{name}")
        try:
            yield
        finally:
            self.sh(f"rm -f {FAULTS}/{name}")

    def barriers(self) -> set[str]:
        """The files on the Node that show the progress of the validation."""
        return set(self.sh("ls -A /run/nvidia/validations 2>/dev/null || true").split())

    def drop_in(self) -> str:
        """The drop-in of the toolkit for containerd; empty if there is none."""
        return self.sh("cat /etc/containerd/conf.d/99-nvidia.toml 2>/dev/null || true")

    @property
    def allocatable(self) -> int:
        """How many GPUs the Node offers to pods."""
        found = self.client.get("v1", "Node", NODE)
        assert found is not None
        return int(found["status"]["allocatable"].get("nvidia.com/gpu", 0))


def lab(*words: str) -> None:
    """Runs a command of the lab."""
    subprocess.run([sys.executable, "-m", "lab", *words], cwd=ROOT, check=True, timeout=1800)


def images(folder: Path, variables: dict[str, Any]) -> list[str]:
    """The images of the manifests that site.yml would apply."""
    rendered = folder / "rendered"
    (folder / "offline.json").write_text(json.dumps({"all": {"vars": {
        **variables, "gpu_render_to": str(rendered), "gpu_node_os": ["ubuntu24.04"]}}, "gpu_control": {
            "hosts": {"control": {}}}}))
    done = user.playbook("site", [folder / "offline.json"])
    assert done.rc == 0, done.output
    texts = [path.read_text() for path in rendered.glob("*/*.yaml")]
    return sorted({name for text in texts for name in re.findall(r"\bimage: (\S+)", text)})


@pytest.fixture
def world(land: World) -> World:
    """All operands are ready when a test begins, whatever an earlier test has done."""
    until(land.up, "all operands are up")
    return land


@pytest.fixture(scope="session")
def land(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One cluster for the session, after a run of the playbook site."""
    user.install()
    folder = tmp_path_factory.mktemp("kubelet")
    (folder / "policy.yml").write_text(POLICY)
    variables = {"ansible_connection": "local", "ansible_python_interpreter": "{{ ansible_playbook_python }}",
                 "ansible_become": False, "gpu_policy": str(folder / "policy.yml"), "gpu_placement": "cluster"}
    lab("up", "--name", NAME, "--hosts", f"{NODE}=a100-80:{GPUS}@ubuntu2404")
    try:
        lab("cluster", "up", "--name", NAME, "--nodes", "empty")
        wanted = [word for name in images(folder, variables) for word in ("--image", name)]
        lab("cluster", "join", NODE, "--name", NAME, "--lab", NAME, *wanted)
        made = clusters.load(NAME)
        (folder / "inventory.json").write_text(json.dumps({
            "all": {"vars": {**variables, "gpu_kubeconfig": str(made.kubeconfig)}},
            "gpu_control": {"hosts": {"control": {}}}}))
        found = World(made, folder)
        found.first = found.run()
        assert found.first.rc == 0, found.first.output
        yield found
    finally:
        try:
            if NAME in clusters.names():
                lab("cluster", "down", "--name", NAME)
        finally:
            lab("down", "--name", NAME)
