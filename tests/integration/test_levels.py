# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""All that site.yml does to two hosts and their Nodes at each level of gpu_disruption, as one table.

On the busy host (B), two pods and a system service use GPUs, and a disruption budget forbids the eviction of one of the
pods. On the quiet one (Q) nothing uses a GPU. Each run after the first must change the driver and MIG.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpuops.nvidia.plugins.plugin_utils._nodes.node_lock import HELD

from lab.controlplane import api, faults, nodes
from lab.controlplane import cluster as clusters
from lab.stages import ROOT
from tests.integration import user
from tests.integration.conftest import LabHosts, own_lab
from tests.integration.test_hybrid import BUDGET, FRESH, TRAINER, WRITES, Cluster
from tests.waiting import until

# first: both hosts are fresh. budget, drain: with the disruption budget, and without it.
RUNS = ("first", "never", "idle", "budget", "drain", "reboot")
LEVELS = {"first": "never", "budget": "drain"}
# By act, on which hosts each run did it: C stands for the cluster as a whole.
ACTS = {
    "write objects": ("C", "", "", "", "", ""),
    "label the Node": ("BQ", "", "", "", "", ""),
    "install packages": ("BQ", "", "Q", "", "B", "BQ"),
    "load modules": ("BQ", "", "Q", "", "B", "Q"),
    "start services of the driver": ("BQ", "", "Q", "", "B", "Q"),
    "restart containerd": ("BQ", "", "", "", "", ""),
    "create MIG instances": ("", "BQ", "Q", "", "B", "Q"),
    "change the MIG mode": ("", "", "Q", "", "BQ", ""),
    "destroy MIG instances": ("", "", "", "", "Q", ""),
    "reset a GPU": ("", "", "Q", "", "Q", ""),
    "stop services of the driver": ("", "", "Q", "", "B", "Q"),
    "unload modules": ("", "", "Q", "", "B", "Q"),
    # Under never only the operands that have to be told about the MIG instances are paused.
    "hold the Node": ("", "BQ", "Q", "B", "BQ", "BQ"),
    "pause the operands": ("", "BQ", "Q", "", "BQ", "BQ"),
    "release the Node": ("", "BQ", "Q", "B", "BQ", "BQ"),
    "cordon": ("", "", "", "B", "BQ", "BQ"),
    "uncordon": ("", "", "", "B", "BQ", "BQ"),
    "evict trainer": ("", "", "", "", "B", "B"),
    # Nothing is evicted where the budget forbids one of the evictions.
    "evict worker": ("", "", "", "", "B", "B"),
    "stop job.service": ("", "", "", "", "B", ""),
    "start job.service": ("", "", "", "", "B", ""),
    "signal a process": ("", "", "", "", "Q", ""),
    "evict a pod without a GPU": ("", "", "", "", "", "B"),
    "reboot": ("", "", "", "", "", "B"),
}
# Programs that modules start, and what that is; "": they only look, or write files. All others stand in the record as
# they are.
PROGRAMS = (
    (r"(apt-helper|capsh|containerd|ctr|dpkg-deb|dpkg-query|file|lsb_release|modinfo|nvidia-ctk|uname)\b", ""),
    (r"journalctl ", ""),
    (r"apt-get .*( -s |\bupdate$|\bindextargets$)|nvidia-smi --query", ""),
    (r"systemctl (show|is-active|reset-failed|daemon-reload|enable --no-reload|(try-)?(re)?start gpuops-)", ""),
    (r"apt-get .*\binstall ", "install packages"),
    (r"modprobe nvidia", "load modules"),
    (r"rmmod nvidia", "unload modules"),
    (r"systemctl enable --now nvidia-", "start services of the driver"),
    (r"systemctl stop nvidia-", "stop services of the driver"),
    (r"systemctl restart containerd\.service", "restart containerd"),
    (r"systemctl (start|stop) job\.service", r"\1 job.service"),
    (r"nvidia-smi --gpu-reset", "reset a GPU"),
    (r"signal ", "signal a process"),
)
# Calls of the simulated NVML, in the same way.
CALLS = (
    (r"nvml\w*(Get|Is[A-Z]|Init|Shutdown|ErrorString)|gpusimPciInfo", ""),
    (r"nvmlDeviceSetMigMode", "change the MIG mode"),
    (r"nvml\w+Create(Gpu|Compute)Instance", "create MIG instances"),
    (r"nvml(Gpu|Compute)InstanceDestroy", "destroy MIG instances"),
    (r"gpusimResetGpu", "reset a GPU"),
)
HOSTS = {"B": "gpu-v1", "Q": "gpu-v2"}
BUSY, QUIET = HOSTS.values()
RECORDER = Path(__file__).parent / "recorder"
RECORD = "/opt/recorder"
FREE = {"devices": [0], "mig-enabled": True, "mig-devices": {"3g.40gb": 1, "1g.10gb": 1}}
LAYOUTS = {"version": "v1", "mig-configs": {
    "off": [{"devices": "all", "mig-enabled": False}],
    "more": [FREE, {"devices": [1], "mig-enabled": True, "mig-devices": {"7g.80gb": 1}}],
    "less": [FREE, {"devices": [1], "mig-enabled": False}]}}
# A part of FREE.
BY_HAND = "nvidia-smi -i 0 -mig 1 && nvidia-smi mig -i 0 -cgi 3g.40gb -C"
LESS = f"{{{{ 'less' if inventory_hostname == '{QUIET}' else 'more' }}}}"
USE = "sh -c 'exec 3</dev/nvidia{gpu}; exec sleep 3000'"
IDLY = ">/dev/null 2>&1 </dev/null &"
JOB = f"[Service]\nExecStart=/bin/{USE.format(gpu=1)}\n"
PODS = "/api/v1/namespaces/default/pods"


@dataclass
class World:
    """The hosts and their cluster. gone: the names of pods whose processes had ended before the kubelet ended the pods.
    written: the writes of the last run to the cluster in their order, as C((act, host))."""

    lab: LabHosts
    cluster: Cluster
    server: api.Api
    inventories: list[Path]
    processes: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    written: list[tuple[str, str]] = field(default_factory=list)

    def site(self, level: str, **variables: Any) -> tuple[user.Run, set[tuple[str, str]]]:
        """Runs site.yml; returns the run and what it did, as C((act, host))."""
        asked, boots = len(self.cluster.requests()), self.boots()
        for host in HOSTS.values():
            self.lab.sh(host, f": > {RECORD}/acts; : > {RECORD}/nvml")
        run = user.playbook("site", self.inventories, gpu_disruption=level, gpu_kubeconfig=self.cluster.kubeconfig,
                            **variables)
        self.written = list(on_nodes(self.cluster.requests()[asked:]))
        acts = set(self.written)
        for letter, host in HOSTS.items():
            programs = [json.loads(line) for line in self.lab.sh(host, f"cat {RECORD}/acts").splitlines()]
            texts = [" ".join(map(str, [str(words[0]).rpartition("/")[2], *words[1:]])) for words in programs]
            found = [said(text, PROGRAMS) for text in texts]
            found += [said(call, CALLS) for call in self.lab.sh(host, f"cat {RECORD}/nvml").splitlines()]
            found += ["reboot"] if self.boots()[host] != boots[host] else []
            acts |= {(act, letter) for act in found if act}
        return run, acts

    def boots(self) -> dict[str, str]:
        """Maps hosts to their boot times."""
        return {host: self.lab.sh(host, "stat -c %Y /proc/1") for host in HOSTS.values()}

    def pods(self) -> list[dict[str, Any]]:
        """The running pods that use GPUs."""
        return [pod for pod in self.server.objects(PODS) if pod["metadata"]["labels"]["app"] != "web"
                and pod["status"].get("phase") == "Running"]

    def deploy(self) -> None:
        """Creates pods with GPUs, a pod without one and a service on the busy host, with their processes."""
        self.lab.sh(BUSY, f"cat > /etc/systemd/system/job.service <<'GPUOPS_END'\n{JOB}GPUOPS_END\n"
                          "systemctl daemon-reload; systemctl start job.service")
        for name in ("trainer", "worker", "web"):
            manifest = json.loads(json.dumps(TRAINER).replace("trainer", name).replace(FRESH, BUSY))
            if name == "web":
                del manifest["spec"]["template"]["spec"]["containers"][0]["env"]
            self.cluster.client.apply(manifest)
        self.cluster.client.apply(BUDGET)
        until(lambda: len(self.pods()) == 2, "both pods with GPUs run")
        for gpu, pod in enumerate(self.pods()):
            uid = pod["metadata"]["uid"]
            self.processes.add(uid)
            self.lab.sh(BUSY, f"systemd-run --quiet --scope --unit={scope(uid)} "
                              f"--slice=kubepods-besteffort-pod{uid.replace('-', '_')}.slice "
                              f"{USE.format(gpu=gpu)} {IDLY}")
        until(lambda: len(self.lab.sh(BUSY, "pidof sleep || true").split()) == 3, "three processes use GPUs")

    def end(self, pod: dict[str, Any]) -> None:
        """Ends a pod as the kubelet does: first its processes, then the pod."""
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        if uid in self.processes:
            state = self.lab.sh(BUSY, f"systemctl is-active {scope(uid)} || true; systemctl stop {scope(uid)} || true")
            self.gone |= set() if state.strip() == "active" else {name}
            self.processes.remove(uid)
        self.server.request("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": 0}, missing_ok=True)


def said(text: str, known: tuple[tuple[str, str], ...]) -> str:
    """The name of the act for a program or a call; the text itself if it is unknown."""
    found = ((match, act) for pattern, act in known if (match := re.match(pattern, text)))
    match, act = next(found, (None, text))
    return act if match is None else match.expand(act)


def on_nodes(requests: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """What was written to the cluster. An eviction is attributed to the Node that is held at that time."""
    letters, held = {name: letter for letter, name in HOSTS.items()}, "C"
    for line in requests:
        code, what = line["responseStatus"]["code"], line.get("objectRef", {})
        if line["verb"] not in WRITES or "accessreviews" in line["requestURI"] or "dryRun" in line["requestURI"] or (
                code == 409):  # made again, as it has lost a race
            continue
        if what.get("subresource") == "eviction":
            app = what["name"].partition("-")[0]
            known = app in ("trainer", "worker") and what["namespace"] == "default"
            yield f"evict {app if known else 'a pod without a GPU'}{': refused' if code == 429 else ''}", held
        elif what.get("resource") != "nodes":
            yield "write objects", "C"
        else:
            held = letters[what["name"]]
            yield from ((act, held) for act in on_node(line["requestObject"]))


def on_node(patch: dict[str, Any]) -> list[str]:
    """The acts of a patch on a Node."""
    annotations = patch.get("metadata", {}).get("annotations", {})
    found = []
    if "unschedulable" in patch.get("spec", {}):
        found.append("cordon" if patch["spec"]["unschedulable"] else "uncordon")
    if HELD in annotations:
        found.append("hold the Node" if annotations[HELD] else "release the Node")
    if any(str(value).startswith("paused-for") for value in patch.get("metadata", {}).get("labels", {}).values()):
        found.append("pause the operands")
    return found or ["label the Node"]


def scope(uid: str) -> str:
    """The control group of the only container of a pod."""
    return f"cri-containerd-{uid.replace('-', '') * 2}.scope"


@contextmanager
def kubelet(world: World) -> Iterator[None]:
    """Makes the pods of the namespace default end when their processes have ended, instead of at the time that kwok
    chooses."""
    where = [{"key": ".metadata.deletionTimestamp", "operator": "Exists"},
             faults.matches(".metadata.namespace", "default")]
    world.server.apply(f"{faults.STAGES}/kubelet", faults.stage("kubelet", "Pod", where, "", weight=10**6))
    stop = threading.Event()

    def end() -> None:
        while not stop.wait(0.3):
            for pod in world.server.objects(PODS):
                if "deletionTimestamp" in pod["metadata"]:
                    world.end(pod)

    thread = threading.Thread(target=end)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Fresh hosts with a recording Python, which are the only Nodes of a cluster."""
    folder, made = tmp_path_factory.mktemp("levels"), Cluster("levels")
    policy = yaml.safe_load((ROOT / "lab" / "demo" / "policy.yml").read_text())
    policy["spec"]["mig"]["strategy"] = "mixed"
    (folder / "layouts.yml").write_text(json.dumps(LAYOUTS))
    (folder / "hosts.yml").write_text(json.dumps({"gpu_hosts": {"vars": {
        "ansible_python_interpreter": f"{RECORD}/python3", "gpu_policy": policy,
        "mig_manager_config_file": str(folder / "layouts.yml")}}}))
    with own_lab("levels", ",".join(f"{host}=a100-80:2" for host in HOSTS.values())) as lab:
        made.lab("up", "--nodes", "empty")
        try:
            known = clusters.load(made.name)
            nodes.create(known, nodes.hosts(lab.name), nodes.Labels())
            for host in HOSTS.values():
                lab.put_python(host, RECORDER)
            with known.api() as server:
                built = World(lab, made, server, [*lab.hosts, ROOT / "lab" / "demo" / "cluster.yml",
                                                  folder / "hosts.yml"])
                with kubelet(built):
                    yield built
        finally:
            made.lab("down")


@pytest.mark.timeout(1800)
def test_each_act_happens_where_its_level_allows_it(world: World) -> None:
    lab, client = world.lab, world.cluster.client
    other = {"driver_branch": "580", "mig_manager_selected": "more"}
    record: dict[str, set[tuple[str, str]]] = {}

    def site(name: str, **variables: Any) -> user.Run:
        run, record[name] = world.site(LEVELS.get(name, name), **variables)
        assert (run.rc == 0) == (name != "budget"), f"{name}: {run.output}"
        return run

    site("first", mig_manager_selected="off")
    for host in HOSTS.values():
        lab.sh(host, BY_HAND)
    lab.sh(QUIET, "gpusim fault set mode-pending 1")  # by which a change of the mode needs a reset
    world.deploy()
    before = {name: one["labels"] for name, one in world.cluster.nodes().items()}
    pods = {pod["metadata"]["uid"] for pod in world.pods()}
    site("never", **other)
    idle = site("idle", **other)
    waits = [one for line in idle.of(BUSY) if line["action"].endswith(".node_maintenance")
             for one in line["result"]["pending"]]
    assert waits and {one["needs"] for one in waits} == {"drain"}, waits
    assert all("gpu_disruption is 'idle'" in one["pending_reason"] for one in waits), waits
    node = world.cluster.nodes()[BUSY]
    stopped = site("budget", maintenance_drain_timeout=3, **other)
    assert "disruption budget trainer" in str(stopped.errors())
    # Held, and given back as it was.
    after = world.cluster.nodes()[BUSY]
    assert after["labels"] == node["labels"] and after.get("annotations") == node.get("annotations")
    assert {pod["metadata"]["uid"] for pod in world.pods()} == pods
    client.delete("policy/v1", "PodDisruptionBudget", "trainer", "default")
    lab.sh(QUIET, f"setsid {USE.format(gpu=1)} {IDLY}")
    drained = site("drain", driver_branch="580", mig_manager_selected=LESS)
    assert drained.result(BUSY, "nvidia_driver")["driver"]["after"]["loaded"].startswith("580")
    order = [act for act, host in world.written if host == "B"]
    assert order[0] == "hold the Node" and max(order.index("hold the Node"), order.index("cordon")) < min(
        order.index("evict trainer"), order.index("evict worker")), order
    assert {"release the Node", "uncordon"} & {order[-1]}, order
    until(lambda: len(world.pods()) == 2, "both pods with GPUs run again")
    lab.sh(BUSY, f"setsid {USE.format(gpu=0)} {IDLY}")
    site("reboot", mig_manager_selected=LESS)

    found = {act: tuple("".join(letter for letter in "CBQ" if (act, letter) in record[name]) for name in RUNS)
             for acts in record.values() for act, _host in acts}
    assert found == ACTS
    assert not world.gone, "processes of these pods ended before their pod was evicted"
    for name, one in world.cluster.nodes().items():
        assert one["labels"] == before[name] and HELD not in one.get("annotations", {}), name
    assert not [one["metadata"]["name"] for one in client.list("v1", "Node") if one["spec"].get("unschedulable")]
