# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The one program that is etcd, Kubernetes' control plane, kwok and kubectl: built once from Go source, and kept."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from lab import tools
from lab.host import needs

SOURCE = Path(__file__).resolve().parent / "program"
PROGRAM = "gpuops-controlplane"
KUBERNETES = "v1.36.3"
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
    inputs = [*(path.read_bytes() for path in sources), repr(FLAGS).encode(),
              subprocess.run(["go", "env", "GOVERSION"], capture_output=True, check=True).stdout]

    def build(folder: Path) -> None:
        print("building etcd, Kubernetes, kwok and kubectl as one program: 6 to 10 minutes, once", file=sys.stderr,
              flush=True)
        command = ["nice", "-n", "10", "go", "build", "-C", str(SOURCE), *FLAGS, "-o", str(folder / PROGRAM), "."]
        tools.run_quietly(command, "the control plane", {"CGO_ENABLED": "0"})

    return tools.cached("controlplane", inputs, build) / PROGRAM
