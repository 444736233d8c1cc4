# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Podman with its own storage: the user's containers, images and networks are neither visible nor changed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from lab.tools import alone, cache_root, write_whole

CONF = """\
[containers]
default_ulimits = ["nofile=20000:20000", "nproc=20000:20000"]
[engine]
runtime = "{runtime}"
cgroup_manager = "{manager}"
events_logger = "file"
lock_type = "file"
tmp_dir = "{run}/libpod"
volume_path = "{root}/volumes"
[network]
network_backend = "netavark"
network_config_dir = "{root}/networks"
"""
# What podman leaves at fixed paths, whatever storage it is given.
FIXED = ("/var/lib/containers/cache/blob-info-cache-v1.boltdb", "/run/containers/networks/ipam.db",
         "/run/lock/netavark.lock")
FIXED_FOLDERS = ("/var/lib/containers/cache", "/var/lib/containers", "/run/containers/networks", "/run/containers",
                 "/run/runc", "/run/crun", "/run/netns")


def folder() -> Path:
    """The folder of images, containers and networks."""
    return cache_root() / "engine"


def run_folder() -> Path:
    """A short path for data that need not survive a reboot: podman's state, SSH control sockets."""
    return Path("/run") / f"gpuops-{hashlib.sha256(bytes(cache_root())).hexdigest()[:8]}"


def keeps_code() -> bool:
    """Whether lab hosts cache bytecode. A benchmark runs without this cache, because other hosts do not have it."""
    return not os.environ.get("GPUOPS_BENCHMARK")


def kept_code() -> Path:
    """The folder of the byte code cache, which all lab hosts share, see image/python/kept_code.py. Makes it."""
    run_folder().mkdir(mode=0o700, exist_ok=True)
    (run_folder() / "kept-code").mkdir(exist_ok=True)
    return run_folder() / "kept-code"


def cgroup_v2() -> bool:
    """Whether this machine has only the unified cgroup hierarchy."""
    return Path("/sys/fs/cgroup/cgroup.controllers").exists()


def prepare() -> None:
    """Writes the configuration; records what existed at podman's fixed paths before."""
    root = folder()
    root.mkdir(parents=True, exist_ok=True)
    kept_code()
    # On a hybrid of cgroup v1 and v2 crun refuses to start systemd; there runc does.
    v2 = cgroup_v2()
    text = CONF.format(runtime="crun" if v2 and shutil.which("crun") else "runc",
                       manager="systemd" if v2 and Path("/run/systemd/system").is_dir() else "cgroupfs",
                       run=run_folder(), root=root)
    write_whole(root / "containers.conf", text)  # podman of another lab reads it all the time
    noted = root / "there-before"
    with alone(root):  # before another lab has podman make them
        if not noted.exists():
            noted.write_text("".join(f"{path}\n" for path in (*FIXED, *FIXED_FOLDERS) if Path(path).exists()))


def prepare_if_there() -> None:
    """Prepares again after a reboot of this machine, when the folder in /run no longer exists."""
    if folder().exists():
        prepare()


def podman(*words: str, check: bool = True, capture: bool = True, stdin: str | None = None,
           timeout: float = 1800) -> subprocess.CompletedProcess[str]:
    """Runs podman. check: stop with its output on failure."""
    root = folder()
    command = ["podman", "--root", str(root / "storage"), "--runroot", str(run_folder() / "run"), *words]
    env = {**os.environ, "CONTAINERS_CONF": str(root / "containers.conf")}
    done = subprocess.run(command, env=env, text=True, check=False, capture_output=capture, timeout=timeout,
                          **({"input": stdin} if stdin is not None else {"stdin": subprocess.DEVNULL}))
    if check and done.returncode:
        raise SystemExit(f"podman {' '.join(words)}: {done.stderr or ''}{done.stdout or ''}".rstrip())
    return done


# Into a container's groups on cgroup v1, then into its namespaces. Arguments: its id, its first process, a command.
ENTER = """set -e
for group in /sys/fs/cgroup/*/libpod_parent/libpod-$1/cgroup.procs; do echo $$ > "$group"; done
target=$2; shift 2
exec nsenter --all --target "$target" "$@"
"""


def enter(container: str, *words: str, check: bool = True, stdin: str = "",
          timeout: float = 1800) -> subprocess.CompletedProcess[str]:
    """Runs a command in a container as C(podman exec) does, with a tenth of the CPU time on cgroup v1.

    It returns when the command has ended, even if processes of it still run.
    """
    if cgroup_v2():
        return podman("exec", "-i", container, *words, check=check, stdin=stdin, timeout=timeout)
    try:
        found, process, env = init_process(container)
    except OSError as problem:  # down, or on its way up again
        done = subprocess.CompletedProcess(words, 125, "", f"does not run: {problem}")
    else:
        done = _enter(found, process, env, words, stdin, timeout)
    if check and done.returncode:
        raise SystemExit(f"{container}: {' '.join(words)}: {done.stderr}{done.stdout}".rstrip())
    return done


def _enter(container: str, process: str, env: dict[str, str], words: tuple[str, ...], stdin: str,
           timeout: float) -> subprocess.CompletedProcess[str]:
    # Files: a pipe would be waited for until all that holds its other end has ended.
    with tempfile.TemporaryFile("w+") as given, tempfile.TemporaryFile("w+") as said, \
            tempfile.TemporaryFile("w+") as errors:
        given.write(stdin)
        given.seek(0)
        with subprocess.Popen(["sh", "-c", ENTER, "sh", container, process, *words], env=env, stdin=given,
                              stdout=said, stderr=errors, text=True, start_new_session=True) as entered:
            _finish(entered, timeout)
        said.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(words, entered.returncode, said.read(), errors.read())


def _finish(entered: subprocess.Popen[str], timeout: float) -> None:
    """Waits for nsenter, and continues it if it has stopped. Raises TimeoutExpired.

    nsenter stops itself when its child stops, as all processes of a container do at shutdown. systemd lets its child go
    on, but does not see nsenter; and a container whose process nobody waits for does not end.
    """
    end = time.monotonic() + timeout
    while True:
        try:
            entered.wait(min(1.0, timeout))
            return
        except subprocess.TimeoutExpired:
            if time.monotonic() > end:
                entered.kill()
                raise
            entered.send_signal(signal.SIGCONT)


def init_process(container: str) -> tuple[str, str, dict[str, str]]:
    """The id of a container, and the process id and the environment of its first process. Raises OSError if it does not
    run."""
    records = json.loads((folder() / "storage" / "overlay-containers" / "containers.json").read_text())
    found = next((record["id"] for record in records if container in record["names"]), "none")
    process = (run_folder() / "run" / "overlay-containers" / found / "userdata" / "pidfile").read_text().strip()
    if found not in Path(f"/proc/{process}/cgroup").read_text():
        raise ProcessLookupError(f"process {process} is not one of the container")
    pairs = Path(f"/proc/{process}/environ").read_text().split("\0")
    return found, process, dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def purge() -> None:
    """Removes all containers, images, networks and files of this engine."""
    if not folder().exists():
        return
    if shutil.which("podman"):
        podman("rm", "--all", "--force", "--volumes", "--time", "0")
        podman("rmi", "--all", "--force", check=False)
    noted = folder() / "there-before"
    before = set(noted.read_text().split()) if noted.exists() else set()
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for mount in reversed(mounts):
        if mount.startswith((f"{folder()}/", f"{run_folder()}/")):
            subprocess.run(["umount", mount], check=False, timeout=60)
    if "/run/netns" not in before and "/run/netns" in mounts and not list(Path("/run/netns").iterdir()):
        for _ignored in range(mounts.count("/run/netns")):
            subprocess.run(["umount", "/run/netns"], check=False, timeout=60)
    for name in FIXED:
        if name not in before:
            Path(name).unlink(missing_ok=True)
    for name in FIXED_FOLDERS:
        if name not in before and Path(name).is_dir() and not list(Path(name).iterdir()):
            Path(name).rmdir()
    shutil.rmtree(folder())
    shutil.rmtree(run_folder(), ignore_errors=True)
