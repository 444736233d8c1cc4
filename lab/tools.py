# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Programs that the lab builds once and keeps: ``python -m lab.tools NAME`` prints the path of one.

NAME is one of ``nvidia-ctk``, ``nvidia-cdi-hook``, ``nvidia-container-runtime`` and ``nvidia-ctk-installer``: the
vendor's own, from the Go module of the NVIDIA Container Toolkit; or ``cri``, our client of container runtimes; or
``containerd``, for the folder with the programs of containerd 2; or ``cni``, for that of the plugins for pods'
networks; or ``prometheus``, for that of Prometheus and promtool; or ``gpu-operator``, for that of the vendor's GPU
Operator and its files. They are in C(${XDG_CACHE_HOME:-~/.cache}/gpuops), in
folders whose names depend on their inputs.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

TOOLKIT = "github.com/NVIDIA/nvidia-container-toolkit/cmd/{}@v1.20.1"
# NVML is bound lazily: a symbol that an older library lacks must matter only where it is called.
LINKER = "-s -w -extldflags=-Wl,-z,lazy"
CONTAINERD = "github.com/containerd/containerd/v2/cmd/{}@v2.3.4"
# A commit that calls itself v25.3.4: the tags of the module have no form that Go knows.
GPU_OPERATOR = "github.com/NVIDIA/gpu-operator", "v0.0.0-20250917190837-d73a0086a6ba"
# What is kept of its source: the manifests, as its image has them in /opt/gpu-operator, and the
# CustomResourceDefinitions.
OPERATOR_FILES = {"assets": "opt", "manifests": "opt/manifests", "config/crd/bases": "crds"}
CNI = "github.com/containernetworking/plugins/plugins/{}@v1.7.1"
CRI = Path(__file__).resolve().parent / "cri"
DEVICE_PLUGIN = Path(__file__).resolve().parent / "node" / "plugin"
NAMES = ("nvidia-ctk", "nvidia-cdi-hook", "nvidia-container-runtime")
INSTALLER = "nvidia-ctk-installer"  # the toolkit's container; hosts have no use for it
# apt waits for nobody. Whoever of us installs or updates lists holds this folder, as no file of ours may stay behind.
APT = Path("/var/lib/apt")


# Seconds, both far above what is needed: for one command of a build, and for a lock, whose holder may run several.
COMMAND_LIMIT, LOCK_LIMIT = 3600.0, 7200.0


@contextmanager
def alone(path: Path, limit: float = LOCK_LIMIT) -> Iterator[None]:
    """Holds the lock of a folder, or of a file that is created if necessary; a second process waits.

    The holder can remove the file: a process that has waited for it takes the lock of the file that exists then.
    """
    end = time.monotonic() + limit
    while True:
        handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.exists() and os.path.samestat(os.fstat(handle), path.stat()):
                break
        except BlockingIOError:
            pass
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)
        if time.monotonic() > end:
            raise SystemExit(f"another process still holds the lock of {path} after {limit:.0f} s")
        time.sleep(0.05)
    try:
        yield
    finally:
        os.close(handle)


def write_whole(path: Path, text: str) -> None:
    """Writes a file that others can read at the same time: they see the former text or the new one, never a part."""
    if path.exists() and path.read_text() == text:
        return
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}-", delete=False) as fresh:
        fresh.write(text)
    Path(fresh.name).chmod(0o644)
    Path(fresh.name).replace(path)


def cache_root() -> Path:
    """The folder for the builds of the lab; created if necessary."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    root = Path(base) / "gpuops"
    root.mkdir(parents=True, exist_ok=True)
    return root


def cached(kind: str, inputs: list[bytes], build: Callable[[Path], None]) -> Path:
    """The folder of one build, made by ``build(empty folder)`` unless the same inputs were built before.

    Parallel runs wait for each other; a failed build leaves nothing behind.
    """
    digest = hashlib.sha256()
    for data in inputs:
        digest.update(len(data).to_bytes(8, "big") + data)
    root = cache_root()
    folder = root / f"{kind}-{digest.hexdigest()[:16]}"
    with alone(root / f".{kind}.lock"):
        if not folder.is_dir():
            fresh = Path(tempfile.mkdtemp(prefix=f".{kind}-", dir=root))
            try:
                build(fresh)
                fresh.chmod(0o755)
                fresh.rename(folder)
            finally:
                shutil.rmtree(fresh, ignore_errors=True)
    return folder


def run_quietly(command: list[str], what: str, environment: dict[str, str] | None = None,
                folder: Path | None = None) -> None:
    """Runs a build command in a folder; on failure, stops with its complete output."""
    result = subprocess.run(command, env={**os.environ, **(environment or {})}, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True, check=False, cwd=folder, timeout=COMMAND_LIMIT)
    if result.returncode:
        why = f"{' '.join(command)} ended with {result.returncode}\n{result.stdout}"
        raise SystemExit(f"{what} could not be built: {why}")


def toolkit_program(name: str) -> Path:
    """The path of one of the vendor's programs, built on the first call (about a minute)."""
    if name not in (*NAMES, INSTALLER):
        raise SystemExit(f"there is no tool {name!r}; known: {', '.join((*NAMES, INSTALLER))}")
    return go_programs(name, [TOOLKIT.format(name)], LINKER, "about a minute", {"CGO_ENABLED": "1"}) / name


def containerd_programs() -> Path:
    """The folder of containerd 2's programs (containerd, its shim, ctr), built on the first call (3 to 5 minutes)."""
    version = CONTAINERD.rpartition("@v")[2]
    linker = f"-s -w -X github.com/containerd/containerd/v2/version.Version={version}"
    packages = [CONTAINERD.format(name) for name in ("containerd", "containerd-shim-runc-v2", "ctr")]
    return go_programs("containerd", packages, linker, "3 to 5 minutes", {"CGO_ENABLED": "0"})


def cri_program() -> Path:
    """The path of lab/cri, which runs a container as a kubelet does it; it shares what containerd has compiled."""
    time = "seconds, or a minute without containerd"
    return go_programs("cri", ["."], "-s -w", time, {"CGO_ENABLED": "0"}, CRI) / "cri"


def cni_programs() -> Path:
    """The folder of the plugins that give pods an address: loopback, ptp, host-local. Half a minute."""
    packages = [CNI.format(name) for name in ("main/loopback", "main/ptp", "ipam/host-local")]
    return go_programs("cni", packages, "-s -w", "half a minute", {"CGO_ENABLED": "0"})


def device_plugin() -> Path:
    """The path of our replacement for the device plugin; it shares compiled packages with the control plane."""
    time = "seconds, or a minute without the control plane"
    return go_programs("device-plugin", ["."], "-s -w", time, {"CGO_ENABLED": "0"}, DEVICE_PLUGIN) / "plugin"


def gpu_operator() -> Path:
    """The folder of the vendor's GPU Operator, built on the first call (7 minutes): the program C(gpu-operator), and
    OPERATOR_FILES."""
    module, version = GPU_OPERATOR
    program = go_programs("gpu-operator", [f"{module}/cmd/gpu-operator@{version}"], "-s -w", "7 minutes",
                          {"CGO_ENABLED": "0"})

    def copy(folder: Path) -> None:
        told = subprocess.run(["go", "mod", "download", "-json", f"{module}@{version}"], capture_output=True,
                              check=True, timeout=COMMAND_LIMIT, cwd=folder)
        source = Path(json.loads(told.stdout)["Dir"])
        for name, target in OPERATOR_FILES.items():
            shutil.copytree(source / name, folder / target)
            for path in (folder / target, *(folder / target).rglob("*")):  # the module cache is read-only
                path.chmod(path.stat().st_mode | 0o200)
        shutil.copy(program / "gpu-operator", folder)

    inputs = [version, str(program), json.dumps(OPERATOR_FILES)]
    return cached("gpu-operator-files", [text.encode() for text in inputs], copy)


def prometheus_programs() -> Path:
    """The folder of Prometheus and promtool: those on PATH, else from Debian's package, unpacked and not installed."""
    installed = shutil.which("prometheus")
    if installed and shutil.which("promtool"):
        return Path(installed).parent

    return debian_package("prometheus") / "usr" / "bin"


def debian_package(name: str) -> Path:
    """The folder of a package of Debian, unpacked and not installed."""
    if not shutil.which("apt-get"):
        raise SystemExit(f"{name} comes from Debian's package, and there is no apt-get: install {name}")

    def build(folder: Path) -> None:
        script = 'cd "$1" && apt-get download -q "$2" && dpkg-deb -x "$2"_*.deb . && rm "$2"_*.deb'
        fetch = ["sh", "-c", script, "sh", str(folder), name]
        if subprocess.run(fetch, capture_output=True, check=False, timeout=COMMAND_LIMIT).returncode:
            with alone(APT):
                run_quietly(["apt-get", "update", "-qq"], f"the lists for Debian's {name}")
            run_quietly(fetch, f"Debian's {name}")

    return cached(name, [Path("/etc/os-release").read_bytes()], build)


def go_programs(kind: str, packages: list[str], linker: str, time: str, environment: dict[str, str],
                source: Path | None = None) -> Path:
    """The folder of programs built from Go packages, kept by what they are made from.

    time: for the message. source: the folder of a module of ours, which the packages are relative to.
    """
    if not shutil.which("go"):
        raise SystemExit(f"{kind} is built from Go source, and there is no go on PATH: install Go 1.24 or newer")

    def build(folder: Path) -> None:
        print(f"building {', '.join(packages)}, which takes {time}", file=sys.stderr, flush=True)
        command = ["nice", "-n", "10", "go", "install", "-trimpath", "-ldflags", linker, *packages]
        run_quietly(command, kind, {"GOBIN": str(folder), **environment}, source)

    ours = [path.read_bytes() for path in sorted(source.iterdir())] if source else []
    return cached(kind, [*(package.encode() for package in packages), linker.encode(), go_version(), *ours], build)


def go_version() -> bytes:
    """The version of Go on PATH."""
    return subprocess.run(["go", "env", "GOVERSION"], capture_output=True, check=True, timeout=300).stdout


def main(arguments: list[str]) -> None:
    """Entry point, see the module's text."""
    if len(arguments) != 1:
        raise SystemExit(__doc__)
    ours = {"containerd": containerd_programs, "cri": cri_program, "cni": cni_programs,
            "gpu-operator": gpu_operator, "prometheus": prometheus_programs}
    print(ours[arguments[0]]() if arguments[0] in ours else toolkit_program(arguments[0]))


if __name__ == "__main__":
    main(sys.argv[1:])
