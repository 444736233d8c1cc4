# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""C(lab down --purge) leaves this machine as it was. The lab here has caches of its own, filled by links from ours."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lab.host import needs, trace
from lab.tools import cache_root
from tests.lab.conftest import ROOT

# The folders in which a program can leave something behind on a Debian machine.
SYSTEM = ("bin", "boot", "dev", "etc", "home", "lib", "lib64", "opt", "root", "run", "sbin", "srv", "usr", "var")
KEEP = ("rootfs-", "nvml-", "nvidia-", "packages-", "keys", "go")


def test_packages_that_the_lab_installs_go_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert "hello" not in needs.installed()
    needs.ensure(("tar", "hello"))
    assert needs.record().read_text().split() == ["hello"]
    needs.purge()
    assert "hello" not in needs.installed() and "tar" in needs.installed()


def temporary() -> set[str]:
    """What has our name in /tmp."""
    return {f"file {path}" for path in Path("/tmp").glob("*gpuops*")}


def test_purge_leaves_no_trace(tmp_path: Path) -> None:
    ours = cache_root()
    private = tmp_path / "cache" / "gpuops"
    private.mkdir(parents=True)
    for folder in ours.iterdir():
        if folder.is_dir() and folder.name.startswith(KEEP) and folder.name not in ("go", "go-build"):
            shutil.copytree(folder, private / folder.name, copy_function=os.link, symlinks=True)
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}

    def lab(*words: str) -> None:
        subprocess.run([sys.executable, "-m", "lab", *words], cwd=ROOT, env=env, check=True, timeout=1200)

    skip = (str(ROOT), str(ours), str(private.parent.parent), str(Path.home() / ".ansible"),
            str(Path.home() / ".cache"),
            # Other work on this machine writes here; the lab's own folders there are asked for by name below.
            *(str(top) for top in Path("/").iterdir() if top.name not in SYSTEM),
            *(str(folder) for folder in Path("/run").glob("gpuops-*")),  # labs of other caches
            # Podman has one such cache on a machine; where it was before, the purge leaves it.
            *(["/var/lib/containers/cache"] if Path("/var/lib/containers/cache").exists() else []))
    before = set(trace.capture(skip)) | temporary()
    try:
        # Podman books addresses by network name for the whole machine: a name of its own for each run.
        lab("up", "--name", f"trace-{os.getpid()}", "--hosts", "gpu-n1=t4:1")
        came = (set(trace.capture(skip)) | temporary()) - before
    finally:
        lab("down", "--purge")
    for kind in ("mount", "process", "interface", "route", "file /run"):
        assert any(line.startswith(kind) for line in came), f"no {kind} came: the trace sees nothing"
    # What else runs on this machine comes and goes; what came with the lab must have gone.
    left = came & (set(trace.capture(skip)) | temporary())
    others = ("namespace ", *(" ".join(line.split()[:2]) for line in before if line.startswith("process ")))
    assert not sorted(line for line in left if not line.startswith(others) or str(tmp_path) in line)
    assert not private.exists()
