# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A lab: hosts and the repositories that they install from, in a network of their own. Several labs can run in
parallel."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

from lab import runs
from lab.controlplane import certificates
from lab.host import engine, image, needs
from lab.nvml.build import build as build_nvml
from lab.packages import Repositories
from lab.packages import build as build_packages
from lab.tools import NAMES, alone, cache_root, toolkit_program, write_whole

DEFAULT = "gpu-a1=a100-80:8,gpu-a2=a100-80:8,gpu-l1=l40s:4"
CODE = Path(__file__).resolve().parent.parent
NAME = re.compile(r"[a-z][a-z0-9-]{0,15}")  # short, as it is in the paths of sockets
# Held by whoever takes a network: those that have other caches look for one on the same machine. Nothing is written.
NETWORKS_LOCK = Path("/run")
HOST_NAME = re.compile(r"[a-z][a-z0-9-]{0,30}")
SYSTEMD = "/sys/fs/cgroup/systemd"  # the hierarchy that systemd keeps services in, on cgroup v1
SERVE = ("python3", "-m", "lab.packages", "serve", "--root", "/www/root", "--bind", "0.0.0.0", "--faults",
         "/www/faults", "--log", "/www/requests.log")
FIRST_ADDRESS = 11  # .1 is this machine, .2 the repositories


@dataclass
class Lab:
    """The stored data of a lab.

    hosts: maps names to their GPUs, in the notation of gpusim. kinds: maps names to a kind of lab.host.image. network:
    the first three numbers of its addresses.
    """

    name: str
    network: str
    hosts: dict[str, str] = field(default_factory=dict)
    repositories: dict[str, str] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """The folder of the lab's files."""
        return labs_folder() / self.name

    def at(self, host: str) -> list[str]:
        """Podman's options for the address of a host, and for a hardware address that a reset does not change.

        With another hardware address, the host would be unreachable until this machine has forgotten the former one.
        """
        address = self.address(host)
        hardware = ":".join(f"{int(part):02x}" for part in address.split("."))
        return ["--ip", address, "--mac-address", f"02:67:{hardware}"]

    def container(self, host: str) -> str:
        """The container of a host."""
        if host != "repo" and host not in self.hosts:
            raise SystemExit(f"lab {self.name} has no host {host}; it has {', '.join(self.hosts)}")
        return f"{self.title}-{host}"

    @property
    def title(self) -> str:
        """The name of its network, and the prefix of the names of its containers."""
        return f"gpuops-{runs.title(self.name)}"

    def kind(self, host: str) -> str:
        """The kind of a host."""
        return self.kinds.get(host, image.DEFAULT)

    def address(self, host: str) -> str:
        """A host's IP address."""
        return f"{self.network}.{2 if host == 'repo' else FIRST_ADDRESS + list(self.hosts).index(host)}"

    @property
    def url(self) -> str:
        """The URL at which the hosts find the repositories."""
        return f"http://{self.address('repo')}/"

    def save(self) -> None:
        """Writes the record."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_whole(self.folder / "lab.json", json.dumps(asdict(self), indent=2) + "\n")


def labs_folder() -> Path:
    """The folder of the files of all labs of this run."""
    return runs.folder() / "labs"


def names() -> list[str]:
    """The existing labs."""
    return sorted(path.parent.name for path in labs_folder().glob("*/lab.json"))


def load(name: str) -> Lab:
    """The lab of this name."""
    record = labs_folder() / name / "lab.json"
    if not record.exists():
        there = ", ".join(names()) or "none"
        raise SystemExit(f"there is no lab {name} (labs: {there}); start it: python3 -m lab up --name {name}")
    return Lab(**json.loads(record.read_text()))


@contextlib.contextmanager
def locked(name: str) -> Iterator[None]:
    """Allows one change of a lab at a time."""
    if not NAME.fullmatch(name):
        raise SystemExit(f"lab name {name!r}: want small letters, digits and dashes, at most 16, a letter first")
    labs_folder().mkdir(parents=True, exist_ok=True)
    with alone(labs_folder() / f".{name}.lock"):
        yield


def parse(spec: str) -> tuple[dict[str, str], dict[str, str]]:
    """C(gpu-a1=a100-80:8,gpu-x=t4:2+l40s:1@rocky9) to the GPUs and the kind of each host.

    Here C({"gpu-a1": "a100-80=8", "gpu-x": "t4=2 l40s=1"}) and C({"gpu-a1": "debian12", "gpu-x": "rocky9"}).
    """
    hosts: dict[str, str] = {}
    kinds: dict[str, str] = {}
    for part in spec.split(","):
        host, _ignored, gpus = part.partition("=")
        gpus, _ignored, kind = gpus.partition("@")
        groups = [group.rpartition(":") for group in gpus.split("+")]
        if not HOST_NAME.fullmatch(host) or host in hosts or host == "repo" or not all(
                model and count.isdigit() for model, _ignored, count in groups):
            raise SystemExit(f"--hosts {part!r}: want NAME=MODEL:COUNT[+MODEL:COUNT][@KIND], for example "
                             "gpu-a1=a100-80:8; names once each, of small letters, digits and dashes, not 'repo'")
        if kind and kind not in image.KINDS:
            raise SystemExit(f"--hosts {part!r}: hosts are {', '.join(image.KINDS)}, not {kind}")
        hosts[host] = " ".join(f"{model}={count}" for model, _ignored, count in groups)
        kinds[host] = kind or image.DEFAULT
    return hosts, kinds


def free_network(name: str) -> str:
    """A network of 10.213.0.0/16 that nothing on this machine uses, the same for the same name where possible."""
    routes = subprocess.run(["ip", "-4", "route"], capture_output=True, text=True, check=True, timeout=60).stdout
    taken = set()
    for pattern in ("labs/*/lab.json", "runs/*/labs/*/lab.json"):
        for record in cache_root().glob(pattern):
            with contextlib.suppress(FileNotFoundError):  # a lab that goes at this moment
                taken.add(json.loads(record.read_text())["network"])
    start = int(hashlib.sha256(name.encode()).hexdigest(), 16)
    for offset in range(250):
        network = f"10.213.{(start + offset) % 250 + 1}"
        if network not in taken and f"{network}." not in routes:
            return network
    raise SystemExit("no free network in 10.213.0.0/16")


def build() -> None:
    """Creates what all labs share, unless it exists: the repositories and the image of most hosts."""
    needs.ensure()
    engine.prepare()
    with ThreadPoolExecutor() as pool, tempfile.TemporaryDirectory("", "building-", cache_root()) as folder:
        packages = pool.submit(build_repositories, Path(folder) / "root")
        image.image(image.DEFAULT)
        packages.result()


def build_kinds() -> None:
    """Creates the images of all kinds of hosts, unless they exist."""
    needs.ensure()
    engine.prepare()
    for kind in image.KINDS:
        image.image(kind)


def up(name: str, spec: str) -> Lab:
    """Starts a lab, or completes a running one: hosts with other GPUs or an older image are created again."""
    hosts, kinds = parse(spec)
    needs.ensure()
    engine.prepare()
    with locked(name):
        lab = load(name) if name in names() else Lab(name, "")
        with ThreadPoolExecutor() as pool:
            packages = pool.submit(build_repositories, lab.folder / "www" / "root")
            images = {kind: image.image(kind) for kind in sorted({image.DEFAULT, *kinds.values()})}
            found = packages.result()
        for gone in set(lab.hosts) - set(hosts):
            remove_container(lab.container(gone))
        if list(hosts)[:len(lab.hosts)] != list(lab.hosts):
            for host in lab.hosts:
                remove_container(lab.container(host))  # addresses go by place
        lab.hosts, lab.kinds = hosts, kinds
        lab.repositories = {key: str(value) for key, value in vars(found).items() if key != "root"}
        connect(lab, images[image.DEFAULT])
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda host: ensure_host(lab, host, images[kinds[host]]), lab.hosts))
        wait_for_repositories(lab)
    return lab


def connect(lab: Lab, host_image: str) -> None:
    """Assigns a network to a lab, and records it once this machine has a route to it: then no other lab takes it."""
    with alone(NETWORKS_LOCK):
        lab.network = lab.network or free_network(lab.name)
        lab.save()
        ensure_network(lab)
        ensure_repo(lab, host_image)


def build_repositories(out: Path) -> Repositories:
    """All repositories, in a folder to serve."""
    tools = {tool: toolkit_program(tool) for tool in NAMES}
    print("building the package repositories, unless they are there", flush=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    return build_packages(out, build_nvml(), tools)


def ensure_network(lab: Lab) -> None:
    """The bridge: internal, so that podman sets up no forwarding and no packet filter rules.

    Podman numbers the bridges in each storage separately, and would share one with a network of another storage, so the
    lab sets the name of the bridge.
    """
    if engine.podman("network", "exists", lab.title, check=False).returncode:
        engine.podman("network", "create", "--internal", "--disable-dns", "--subnet", f"{lab.network}.0/24", lab.title)
        record = engine.folder() / "networks" / f"{lab.title}.json"
        settings = json.loads(record.read_text())
        settings["network_interface"] = f"gpu{hashlib.sha256(str(lab.folder).encode()).hexdigest()[:8]}"
        write_whole(record, json.dumps(settings))


def ensure_repo(lab: Lab, host_image: str) -> None:
    """The server of the repositories. It also keeps the bridge active, which gets the address of this machine here."""
    container = lab.container("repo")
    (lab.folder / "www" / "faults").touch()
    if not is_up(container, "{{.ImageName}}", host_image):
        remove_container(container)
        engine.podman("run", "--detach", "--name", container, "--hostname", "repo", "--network", lab.title,
                      *lab.at("repo"), "--volume", f"{CODE}:/code/lab:ro", "--workdir", "/code",
                      "--volume", f"{lab.folder / 'www'}:/www", "--env", "PYTHONDONTWRITEBYTECODE=1", host_image,
                      *SERVE, "--port", "80")
    bridge = json.loads(engine.podman("network", "inspect", lab.title).stdout)[0]["network_interface"]
    subprocess.run(["ip", "address", "replace", f"{lab.network}.1/24", "dev", bridge], check=True,
                   timeout=60)


def serve_by_tls(lab: Lab) -> Path:
    """Serves the repositories also at C(https://) with the same address; returns the certificate of the authority."""
    folder = lab.folder / "www" / "tls"
    certificates.make_authority(folder, [f"IP:{lab.address('repo')}"])
    certificates.sign(folder, "server", "/CN=repositories")
    (folder / "server.pem").write_text((folder / "server.key").read_text() + (folder / "server.crt").read_text())
    engine.podman("exec", "--detach", lab.container("repo"), *SERVE, "--port", "443", "--tls", "/www/tls/server.pem")
    wait_for_repositories(lab, 443)
    return folder / "ca.crt"


def wait_for_repositories(lab: Lab, port: int = 80, limit: float = 120.0) -> None:
    """Waits until their server accepts connections, which is a moment after the start of its container."""
    end = time.monotonic() + limit
    while True:
        try:
            socket.create_connection((lab.address("repo"), port), 10).close()
            return
        except OSError as problem:
            if time.monotonic() > end:
                logs = engine.podman("logs", "--tail", "20", lab.container("repo"), check=False)
                raise SystemExit(f"the server of {lab.url} does not answer: {problem}\n{logs.stderr}") from problem
        time.sleep(0.1)


def ensure_host(lab: Lab, host: str, host_image: str) -> None:
    """Starts a host; creates it again if its GPUs or its image have changed."""
    container = lab.container(host)
    if not is_up(container, '{{.ImageName}} {{index .Config.Labels "gpus"}}', f"{host_image} {lab.hosts[host]}"):
        start_host(lab, host, host_image)


def start_host(lab: Lab, host: str, host_image: str) -> None:
    """Creates a fresh host and waits until it has booted."""
    container = lab.container(host)
    remove_container(container)
    began = time.monotonic()
    # On cgroup v1 podman puts systemd's hierarchy of this machine over the host's own part of it, and all hosts would
    # put their services into the same groups. Below lies the private one.
    groups, start = [], ""
    if not engine.cgroup_v2():
        groups, start = ["--cgroupns=private"], f"umount {SYSTEMD}/release_agent {SYSTEMD}; "
    kept = ["--volume", f"{engine.kept_code()}:/var/lib/gpulab/kept-code"] if engine.keeps_code() else []
    engine.podman("run", "--detach", "--name", container, "--hostname", host, "--label", f"gpus={lab.hosts[host]}",
                  "--network", lab.title, *lab.at(host), "--restart=always", "--systemd=always",
                  "--privileged", *groups, "--env", f"GPULAB_SPEC={lab.hosts[host]}",
                  "--env", f"GPULAB_SEED={lab.name}/{host}", "--volume", "/var/lib/containerd",
                  "--volume", "/var/lib/docker", *kept, host_image, "/bin/sh", "-c", f"{start}exec /sbin/init")
    wait(container)
    print(f"{host}: up in {time.monotonic() - began:.1f} s at {lab.address(host)} "
          f"({lab.kind(host)}, {lab.hosts[host]})", flush=True)


def wait(container: str, limit: float = 240.0) -> None:
    """Waits until systemd reports that the host runs; the first calls can come before systemd listens."""
    end = time.monotonic() + limit
    said = ""
    while time.monotonic() < end:
        done = engine.enter(container, "systemctl", "is-system-running", "--wait", check=False, timeout=limit)
        said = done.stdout.strip()
        if said == "running":
            return
        if said == "degraded":
            failed = engine.enter(container, "systemctl", "--failed", "--plain", "--no-legend", check=False)
            raise SystemExit(f"{container} came up with failed units:\n{failed.stdout}")
        time.sleep(0.1)
    raise SystemExit(f"{container} did not come up within {limit:.0f} s: {said}")


def inspect(container: str, template: str) -> str:
    """The value of a podman template, empty if the container does not exist."""
    return engine.podman("container", "inspect", "--format", template, container, check=False).stdout.strip()


def is_up(container: str, template: str, wanted: str) -> bool:
    """Whether a container runs and a template has the wanted value.

    The state that Podman reports is not sufficient: if its monitor was killed, too, it continues to report a running
    container.
    """
    pid, _ignored, value = inspect(container, f"{{{{.State.Pid}}}} {template}").partition(" ")
    return value == wanted and pid != "0" and Path(f"/proc/{pid}").exists()


def remove_container(container: str) -> None:
    """Removes the container and its volumes, if they exist."""
    engine.podman("rm", "--force", "--volumes", "--time", "0", "--ignore", container)


def reset(lab: Lab, host: str, saved: str = "") -> None:
    """Restores the initial state of the host, or an image of C(save)."""
    with locked(lab.name):
        close_connections(lab.name)
        start_host(lab, host, saved or image.image(lab.kind(host)))


def save(lab: Lab, host: str) -> str:
    """Saves the disk of a host as an image, from which C(reset) starts hosts; the image is removed with the lab.
    Returns its name.

    The contents of memory, /run and the stores of containerd and Docker are not saved, as if a disk was moved.
    """
    container = lab.container(host)
    engine.enter(container, "sync")
    name = f"localhost/{container}:{secrets.token_hex(4)}"
    engine.podman("commit", "--quiet", container, name)
    return name


def down(name: str) -> None:
    """Removes a lab with its hosts, network and files; cached files for the next lab stay."""
    with locked(name):
        lab = load(name)
        close_connections(name)
        shutil.rmtree(sockets(name), ignore_errors=True)
        with ThreadPoolExecutor() as pool:
            list(pool.map(remove_container, [lab.container(host) for host in [*lab.hosts, "repo"]]))
        for host in lab.hosts:
            saved = engine.podman("images", "--quiet", "--no-trunc", f"localhost/{lab.container(host)}").stdout.split()
            if saved:
                engine.podman("rmi", "--force", *saved)
        engine.podman("network", "rm", "--force", lab.title)
        shutil.rmtree(lab.folder)
        (labs_folder() / f".{name}.lock").unlink()


def sockets(name: str) -> Path:
    """The folder of the SSH connections that Ansible shares; its path is short, as sockets' paths must be."""
    return engine.run_folder() / "ssh" / runs.title(name)


def close_connections(name: str) -> None:
    """Ends the shared SSH connections that Ansible left open."""
    for path in sockets(name).glob("*"):
        subprocess.run(["ssh", "-O", "exit", "-o", f"ControlPath={path}", "lab"], check=False, capture_output=True,
                       timeout=60)


def purge() -> None:
    """Removes everything that the lab has installed on this machine, including all labs."""
    engine.purge()
    needs.purge()
    shutil.rmtree(cache_root())
