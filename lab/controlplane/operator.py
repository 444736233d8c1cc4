# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The vendor's GPU Operator as a process beside a cluster, with the rights of the administrator."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lab.controlplane import cluster, nodes
from lab.tools import gpu_operator

NAMESPACE, RELEASE = "gpu-operator", "25.3.4"
# It has a root of its own, because it reads its manifests from /opt/gpu-operator, and from /host-etc the system of the
# Node on which it runs. It ends with the process that has started it.
_START = """\
mount -t tmpfs none /mnt
cd /mnt
mkdir -p opt/gpu-operator host-etc tmp
mount --bind "$1/opt" opt/gpu-operator
touch gpu-operator
mount --bind "$1/gpu-operator" gpu-operator
cp "$2" kubeconfig
printf %s "$3" > host-etc/os-release
exec chroot . /gpu-operator --metrics-bind-address=0 --health-probe-bind-address=0
"""
_COMMAND = ("setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "sh", "-ec", _START, "sh")


def definitions() -> list[Path]:
    """The files of its CustomResourceDefinitions."""
    return sorted((gpu_operator() / "crds").iterdir())


@contextmanager
def running(made: cluster.Cluster, log: Path, system: str = "ubuntu22.04") -> Iterator[subprocess.Popen[bytes]]:
    """The operator until it is killed, at the latest at the end of the block. Its output is appended to the log.
    system: that of its Node, a name in nodes.SYSTEMS."""
    one = nodes.SYSTEMS[system]
    given = [str(gpu_operator()), str(made.kubeconfig), f"ID={one.id}\nVERSION_ID={one.version}\n"]
    environment = {"PATH": os.environ["PATH"], "HOME": "/", "KUBECONFIG": "/kubeconfig",
                   "OPERATOR_NAMESPACE": NAMESPACE}
    with log.open("ab") as stream, subprocess.Popen([*_COMMAND, *given], env=environment, stdout=stream, stderr=stream,
                                                    stdin=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()
