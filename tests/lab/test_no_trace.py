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

from lab.host import trace
from lab.tools import cache_root
from tests.lab.conftest import ROOT

KEEP = ("rootfs-", "nvml-", "nvidia-", "packages-", "keys", "go")


def test_purge_leaves_no_trace(tmp_path: Path) -> None:
    ours = cache_root()
    private = tmp_path / "cache" / "gpuops"
    private.mkdir(parents=True)
    for folder in ours.iterdir():
        if folder.is_dir() and folder.name.startswith(KEEP) and folder.name not in ("go", "go-build"):
            shutil.copytree(folder, private / folder.name, copy_function=os.link, symlinks=True)
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}

    def lab(*words: str) -> None:
        subprocess.run([sys.executable, "-m", "lab", *words], cwd=ROOT, env=env, check=True, timeout=300)

    skip = (str(ROOT), str(ours), str(private.parent.parent))
    before = trace.capture(skip)
    lab("up", "--name", "traced", "--hosts", "gpu-n1=t4:1")
    during = trace.compare(before, trace.capture(skip))
    assert any(line.startswith("+mount") for line in during)
    assert any(line.startswith("+process") for line in during)
    assert any(line.startswith("+interface") for line in during)
    lab("down", "--purge")
    assert trace.compare(before, trace.capture(skip)) == []
    assert not private.exists()
