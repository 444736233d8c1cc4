# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Clusters: a real API server, scheduler and controllers on this machine, nodes and pods simulated by kwok.

Several clusters can run in parallel, each with its own ports, processes and files. An existing cluster can be
registered under a name instead; then no process runs here.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from lab import runs
from lab.controlplane import api, binary, certificates, parts, processes
from lab.tools import alone

NAME = re.compile(r"[a-z][a-z0-9-]{0,30}")
SERVER = ("etcd", "kube-apiserver")
IN_USE = "address already in use"  # what these two say of a port
MADE_BY = "gpuops-lab/cluster"  # the label of what the lab makes inside a cluster
# Its garbage, some 20 MB, goes with it: to collect it takes a third of its processor time.
KUBECTL = {"GOGC": "off"}
Say = Callable[[str], None]


@dataclass
class Cluster:
    """The stored data of a cluster. marks: maps parts to their processes. external: the kubeconfig of a cluster that
    the lab has not started."""

    name: str
    ports: dict[str, int] = field(default_factory=dict)
    marks: dict[str, processes.Mark] = field(default_factory=dict)
    external: str = ""

    @property
    def folder(self) -> Path:
        """The folder of the cluster's files."""
        return folder() / self.name

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return Path(self.external) if self.external else self.folder / "kubeconfig"

    @property
    def audit_log(self) -> Path:
        """The audit log: one JSON document in each line, for each request that does not come from the control plane or
        the lab itself."""
        if self.external:
            raise SystemExit(f"cluster {self.name} is not ours ({self.external}): its audit log is not known here")
        return self.folder / "audit.log"

    @property
    def runs(self) -> bool:
        """Whether all processes of a cluster of the lab are running."""
        return bool(self.marks) and all(map(processes.runs, self.marks.values()))

    @property
    def client(self) -> tuple[str, list[str]]:
        """The path and the arguments of kubectl; its discovery cache is in the folder of the cluster."""
        found = shutil.which("kubectl") if self.external else None
        config = self.kubeconfig if self.external else self.folder / "lab.kubeconfig"
        return found or str(binary.program()), ["kubectl", "--kubeconfig", str(config), "--cache-dir",
                                                str(self.folder / "kubectl")]

    def kubectl(self, *words: str) -> str:
        """What kubectl prints."""
        program, command = self.client
        done = subprocess.run([*command, *words], executable=program, text=True, capture_output=True, check=False,
                              stdin=subprocess.DEVNULL, timeout=300, env={**os.environ, **KUBECTL})
        if done.returncode:
            raise SystemExit(f"kubectl {' '.join(words)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    @contextmanager
    def api(self) -> Iterator[api.Api]:
        """An Api for many requests in parallel."""
        if not self.external:
            yield api.direct(self.ports["api"], self.folder / "pki", "lab")
            return
        with api.proxy(*self.client) as opened:
            yield opened

    def save(self) -> None:
        """Writes the record."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "cluster.json").write_text(json.dumps(asdict(self), indent=2) + "\n")


def folder() -> Path:
    """The folder of the files of all clusters of this run."""
    return runs.folder() / "clusters"


def names() -> list[str]:
    """The existing clusters."""
    return sorted(path.parent.name for path in folder().glob("*/cluster.json"))


def load(name: str) -> Cluster:
    """The cluster of this name."""
    record = folder() / name / "cluster.json"
    if not record.exists():
        raise SystemExit(f"there is no cluster {name} (clusters: {', '.join(names()) or 'none'}); start it: "
                         f"python3 -m lab cluster up --name {name}")
    values = json.loads(record.read_text())
    values["marks"] = {part: tuple(mark) for part, mark in values["marks"].items()}
    return Cluster(**values)


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Allows one change of a cluster at a time."""
    if not NAME.fullmatch(name):
        raise SystemExit(f"cluster name {name!r}: want small letters, digits and dashes, at most 31, a letter first")
    folder().mkdir(parents=True, exist_ok=True)
    with alone(folder() / f".{name}.lock"):
        yield


def up(name: str, say: Say = print) -> Cluster:
    """Starts a cluster. A running one is not changed; one whose processes have ended continues with its data."""
    program = binary.program()
    with locked(name):
        cluster = load(name) if name in names() else Cluster(name)
        if cluster.external:
            raise SystemExit(f"cluster {name} is registered from {cluster.external}: use another --name, or "
                             f"python3 -m lab cluster down --name {name}")
        if not cluster.runs:
            processes.stop(list(cluster.marks.values()))
            cluster.marks = {}
            start(cluster, program, say)
    return cluster


def start(cluster: Cluster, program: Path, say: Say) -> None:
    """Starts all parts and waits until nodes and pods are served."""
    began = time.monotonic()
    start_server(cluster, program)
    run(cluster, program, "kube-controller-manager")  # would give up where the API server is slow
    run(cluster, program, "kube-scheduler")
    say(f"cluster {cluster.name}: API server ready after {time.monotonic() - began:.1f} s")
    install_kwok(cluster)
    run(cluster, program, "kwok")
    say(f"cluster {cluster.name}: up after {time.monotonic() - began:.1f} s")


def start_server(cluster: Cluster, program: Path, attempts: int = 5) -> None:
    """Starts etcd and the API server, again with other ports if a port was taken meanwhile."""
    while True:
        attempts -= 1
        prepare(cluster)
        for part in SERVER:
            log(cluster, part).unlink(missing_ok=True)
            run(cluster, program, part)
        try:
            wait_ready(cluster)
            return
        except SystemExit:
            if not attempts or not any(IN_USE in log(cluster, part).read_text(errors="replace") for part in SERVER):
                raise
        cluster.marks, cluster.ports = {}, {}


def run(cluster: Cluster, program: Path, part: str) -> None:
    """Starts a part and records it."""
    wanted = parts.arguments(cluster.folder, cluster.ports)[part]
    cluster.marks[part] = processes.start(program, part, wanted, cluster.folder)
    cluster.save()


def log(cluster: Cluster, part: str) -> Path:
    """The log of a part."""
    return cluster.folder / "logs" / f"{part}.log"


def prepare(cluster: Cluster) -> None:
    """Creates ports, certificates, kubeconfigs and the audit policy, unless they exist."""
    if not cluster.ports:
        cluster.ports = dict(zip(("api", "etcd", "peer"), free_ports(3), strict=True))
    pki = cluster.folder / "pki"
    if not pki.exists():
        certificates.make(pki)
    title = f"gpuops-{cluster.name}"
    for user in certificates.USERS:
        path = cluster.kubeconfig if user == "admin" else cluster.folder / f"{user}.kubeconfig"
        path.touch(mode=0o600)
        path.write_text(certificates.kubeconfig(pki, user, title, cluster.ports["api"]))
    (cluster.folder / "audit-policy.yaml").write_text(parts.AUDIT_POLICY)
    cluster.save()


def free_ports(count: int) -> list[int]:
    """Ports of the loopback interface that nothing listens on."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ignored in range(count)]
        return [int(opened.getsockname()[1]) for opened in sockets]


def wait_ready(cluster: Cluster, limit: float = 240.0) -> None:
    """Waits until the API server reports that it is ready."""
    trust = ssl.create_default_context(cafile=str(cluster.folder / "pki" / "ca.crt"))
    end = time.monotonic() + limit
    while time.monotonic() < end:
        gone = [part for part, mark in cluster.marks.items() if not processes.runs(mark)]
        if gone:
            break
        try:
            with urllib.request.urlopen(f"https://127.0.0.1:{cluster.ports['api']}/readyz", context=trust, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    processes.stop(list(cluster.marks.values()))
    part = (gone or ["kube-apiserver"])[0]
    said = log(cluster, part)
    last = "\n".join(said.read_text(errors="replace").splitlines()[-15:])
    raise SystemExit(f"cluster {cluster.name} did not come up: {part} {'ended' if gone else 'is not ready'}\n{last}\n"
                     f"(the whole log: {said})")


def install_kwok(cluster: Cluster) -> None:
    """Installs kwok's own definition of Stages, and its Stages for nodes and pods."""
    with cluster.api() as server:
        for part, where in (("kwok-crds", "apiextensions.k8s.io/v1/customresourcedefinitions"),
                            ("kwok-stages", "kwok.x-k8s.io/v1alpha1/stages")):
            for text in re.split(r"^---$", binary.printed(part), flags=re.MULTILINE):
                if text.strip():
                    (name,) = re.findall(r"^  name: (\S+)$", text, re.MULTILINE)
                    server.apply(f"/apis/{where}/{name}", text)
            if part == "kwok-crds":
                wait_established(server, "stages.kwok.x-k8s.io")


def wait_established(server: api.Api, name: str, limit: float = 120.0) -> None:
    """Waits until objects of a definition can be created, which is a moment after its status says so."""
    plural, _dot, group = name.partition(".")
    end = time.monotonic() + limit
    while True:
        found = server.request("GET", f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}")
        if any(one["type"] == "Established" and one["status"] == "True"
               for one in found.get("status", {}).get("conditions") or ()):
            versions = (one["name"] for one in found["spec"]["versions"] if one["served"])
            served = server.request("GET", f"/apis/{group}/{next(versions)}", missing_ok=True)
            if any(one["name"] == plural for one in served.get("resources", ())):
                return
        if time.monotonic() > end:
            raise SystemExit(f"the definition {name} is not established after {limit:.0f} s")
        time.sleep(0.1)


def register(name: str, kubeconfig: Path) -> Cluster:
    """Registers an existing cluster under a name; it must respond."""
    if not kubeconfig.is_file():
        raise SystemExit(f"--kubeconfig {kubeconfig}: there is no such file")
    with locked(name):
        if name in names() and load(name).external != str(kubeconfig.resolve()):
            raise SystemExit(f"there is a cluster {name} already; remove it first: "
                             f"python3 -m lab cluster down --name {name}")
        cluster = Cluster(name, external=str(kubeconfig.resolve()))
        try:
            cluster.kubectl("version", "--request-timeout=10s")
        except SystemExit:
            forget(cluster)
            raise
        cluster.save()
    return cluster


def has_kwok(cluster: Cluster) -> bool:
    """Whether Stages can be changed in the cluster, as they can in ours."""
    return not cluster.external or bool(cluster.kubectl("get", "customresourcedefinitions", "stages.kwok.x-k8s.io",
                                                        "--ignore-not-found", "--output", "name"))


def down(name: str) -> None:
    """Ends a cluster of the lab and removes its files; from another cluster, removes what the lab has created there."""
    with locked(name):
        cluster = load(name)
        if cluster.external:
            kinds = "nodes,stages.kwok.x-k8s.io" if has_kwok(cluster) else "nodes"
            cluster.kubectl("delete", kinds, "--selector", f"{MADE_BY}={name}", "--wait=false")
        processes.stop(list(cluster.marks.values()))
        forget(cluster)


def forget(cluster: Cluster) -> None:
    """Removes a cluster's files."""
    shutil.rmtree(cluster.folder, ignore_errors=True)
    (folder() / f".{cluster.name}.lock").unlink(missing_ok=True)


def purge() -> None:
    """Removes all clusters of this run; a registered one that does not respond is only forgotten."""
    for name in names():
        try:
            down(name)
        except SystemExit as problem:
            if not load(name).external:
                raise
            print(f"cluster {name}: nodes and faults that the lab made stay there: {problem}", flush=True)
    shutil.rmtree(folder(), ignore_errors=True)
