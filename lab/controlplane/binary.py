# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One program that contains etcd, the control plane of Kubernetes, kwok and kubectl; it is built once from Go source
and cached."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from lab import tools
from lab.host import needs

SOURCE = Path(__file__).resolve().parent / "program"
PROGRAM = "gpuops-controlplane"
KUBERNETES = "v1.36.3"
BEAT = 15.0  # seconds between signs of life
FLAGS = ("-trimpath", "-ldflags", " ".join([
    "-s", "-w",
    f"-X=k8s.io/component-base/version.gitVersion={KUBERNETES}",
    "-X=k8s.io/component-base/version.gitMajor=1",
    f"-X=k8s.io/component-base/version.gitMinor={KUBERNETES.split('.')[1]}",
    f"-X=k8s.io/client-go/pkg/version.gitVersion={KUBERNETES}",
]))


def program() -> Path:
    """The path of the program. The first call takes 6 to 10 minutes; calls at the same time wait for each other."""
    needs.go_ready()
    sources = sorted(path for path in SOURCE.iterdir() if path.suffix in (".go", ".mod", ".sum"))
    inputs = [*(path.read_bytes() for path in sources), repr(FLAGS).encode(), tools.go_version()]

    def build(folder: Path) -> None:
        print("building etcd, Kubernetes, kwok and kubectl as one program: 6 to 10 minutes, once", file=sys.stderr,
              flush=True)
        compile_to(folder / PROGRAM)

    return tools.cached("controlplane", inputs, build) / PROGRAM


def printed(part: str) -> str:
    """The output of a part of the program, which is cached: starting the program takes half a second of CPU time."""
    kept = program().with_name(f"{part}.yaml")
    if not kept.exists():
        tools.write_whole(kept, subprocess.run([part], executable=program(), text=True, capture_output=True, check=True,
                                               timeout=120).stdout)
    return kept.read_text()


def compile_to(path: Path) -> None:
    """Builds the program, and reports from time to time how many packages are compiled."""
    command = ["nice", "-n", "10", "go", "build", "-v", "-buildvcs=false", *FLAGS, "-o", str(path), "."]
    lines: list[str] = []
    began = said = time.monotonic()
    with subprocess.Popen(command, cwd=SOURCE, env={**os.environ, "CGO_ENABLED": "0"}, text=True,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        limit = threading.Timer(tools.COMMAND_LIMIT, process.kill)
        limit.start()
        for line in process.stdout or ():
            lines.append(line.strip())
            if time.monotonic() - said > BEAT:
                said = time.monotonic()
                print(f"  {said - began:.0f} s: {len(lines)} packages, now {lines[-1]}", file=sys.stderr, flush=True)
        limit.cancel()
    if process.returncode:
        last = "\n".join(lines[-20:])
        raise SystemExit(f"the control plane could not be built: {' '.join(command)}: {process.returncode} after "
                         f"{time.monotonic() - began:.0f} s\n{last}")
