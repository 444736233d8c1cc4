# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""C(lab down --purge) restores the former state of this machine.

This lab has its own caches, which are filled with links to ours. It runs in namespaces of its own for processes, the
network and mounts. An overlay over the root file system receives all writes, and /run and /tmp are empty. So everything
that is found there belongs to the lab, whatever other processes of this machine do.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lab.host import needs
from lab.tools import alone, cache_root
from tests.lab.conftest import ROOT

# Podman's own cache of where it has seen layers: one file for all who use podman here, which grows by doubling.
BLOBS = "/var/lib/containers/cache/blob-info-cache-v1.boltdb"
KEEP = ("rootfs-", "nvml-", "nvidia-", "packages-", "signing-")
# Arguments: a folder for the box, then the folders that are the same in it. What is written elsewhere shows in
# /run/written, which is no part of the layer.
ENTER = """
set -eu
box=$1
shift
mount --make-rprivate /
mount -t tmpfs box "$box"
mkdir "$box/written" "$box/work" "$box/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$box/written,workdir=$box/work" "$box/root"
cd "$box/root"
mount -t proc proc proc
mount --rbind /sys sys
mount --rbind /dev dev
for name in dev/shm run tmp; do mount -t tmpfs empty $name; done
mkdir run/former run/written
mount --bind "$box/written" run/written
for kept; do
    mkdir -p "./$kept"
    mount --rbind "$kept" "./$kept"
done
pivot_root . run/former
umount -l /run/former
rmdir /run/former
ip link set lo up
cd "$ROOT"
exec "$PYTHON" -c "$INSIDE"
"""
# Prints what came with a lab, and what of it a purge has left.
INSIDE = """
import json, subprocess, sys
from pathlib import Path
from lab.host import engine, trace

def lab(*words):
    subprocess.run([sys.executable, "-m", "lab", *words], check=True, timeout=1200, stdout=sys.stderr)

def capture():
    skip = tuple(str(top) for top in Path("/").iterdir() if top.name not in ("run", "tmp"))
    return set(trace.capture((*skip, "/tmp"))) | {f"temporary {path}" for path in Path("/tmp").iterdir()}

def groups(names):
    return {f"control group {path}" for name in names for path in Path("/sys/fs/cgroup").rglob(f"*{name}*")}

before, names = capture(), []
try:
    lab("up", "--hosts", "gpu-n1=t4:1")
    names = engine.podman("ps", "--all", "--quiet", "--no-trunc").stdout.split()
    came = (capture() | groups(names)) - before
finally:
    lab("down", "--purge")
print(json.dumps([sorted(came), sorted((capture() | groups(names)) - before)]))
"""


def test_packages_that_the_lab_installs_go_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with alone(Path("/var/lib/dpkg")):  # another run of this test on this machine waits
        needs.record().write_text("hello\n")  # a killed run may have left it
        needs.purge()
        needs.ensure(("tar", "hello"))
        assert needs.record().read_text().split() == ["hello"]
        needs.purge()
        assert "hello" not in needs.installed() and "tar" in needs.installed()


def test_purge_leaves_no_trace(tmp_path: Path) -> None:
    private, box = tmp_path / "cache" / "gpuops", tmp_path / "box"
    private.mkdir(parents=True)
    box.mkdir()
    for folder in cache_root().iterdir():
        if folder.is_dir() and folder.name.startswith(KEEP):
            shutil.copytree(folder, private / folder.name, copy_function=os.link, symlinks=True)
    done = subprocess.run(
        ["unshare", "--mount", "--net", "--pid", "--ipc", "--fork", "--kill-child", "sh", "-c", ENTER, "sh", str(box),
         str(private.parent), str(ROOT), sys.base_prefix], cwd=ROOT, text=True, capture_output=True, check=False,
        timeout=1800, env={**os.environ, "XDG_CACHE_HOME": str(private.parent), "PYTHONDONTWRITEBYTECODE": "1",
                           "ROOT": str(ROOT), "PYTHON": sys.executable, "INSIDE": INSIDE})
    assert done.returncode == 0, done.stdout + done.stderr
    came, left = json.loads(done.stdout.splitlines()[-1])
    for kind in ("mount", "process", "interface", "route", "control group", "file /run/gpuops-", "file /run/written/"):
        assert any(line.startswith(kind) for line in came), f"no {kind} came: the trace sees nothing"
    changed = [line for line in left if not as_it_was(line)]
    assert not changed, "\n".join(changed)
    assert not private.exists()


def as_it_was(line: str) -> bool:
    """Whether a line is about a path of the overlay that is the same as on this machine."""
    kind, _ignored, rest = line.partition(" /run/written")
    if kind == "folder":
        return Path(rest).is_dir()
    path, _ignored, size = rest.rpartition(" ")
    return kind == "file" and Path(path).is_file() and (path == BLOBS or Path(path).stat().st_size == int(size))
