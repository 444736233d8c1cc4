# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads what a host has logged about its GPUs: the kernel, services, DKMS and nvidia-smi. Changes nothing."""

from __future__ import annotations

import glob
import os
import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import CommandError, HostError
from ansible_collections.gpuops.nvidia.plugins.module_utils._files import read_bytes
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Runner, which

# The most characters of a text; its end is kept.
SIZE = 2**16
KERNEL_LOG, BUILD_LOG, SMI, DCGM = "kernel.log", "dkms.log", "nvidia-smi.txt", "dcgmi-diag.txt"
# Lines of the kernel log about GPUs, their drivers, PCIe errors, module signatures and lockdown.
_RELEVANT = re.compile(r"NVRM|nvidia|nouveau|vfio|\bAER\b|pcieport|Lockdown|secure boot|module verification|PKCS#7|"
                       r"Out of memory|mlx5|ib_umad", re.IGNORECASE)
_UNITS = ("nvidia-*", "gpuops-*", "dkms*", "containerd*", "docker*", "crio*", "k3s*", "rke2-*")
_JOURNAL = ("journalctl", "-b", "-q", "--no-pager", "-o", "short-iso")
_COMMANDS: t.Mapping[str, t.Sequence[str]] = {
    KERNEL_LOG: (*_JOURNAL, "-k"),
    "services.log": (*_JOURNAL, "-n", "400", *(f"--unit={unit}" for unit in _UNITS)),
    SMI: ("nvidia-smi", "-q"),
}
# Seconds for one command, and for the test of DCGM by its level.
_LIMIT = 60
_DIAG_LIMITS = {1: 300, 2: 1800, 3: 7200}


class Diag(t.NamedTuple):
    """The test of DCGM. ran: whether it has run; passed: its result, None if it has none; why: the failed tests, or why
    there is no result, empty if the test was not requested."""

    ran: bool
    passed: t.Optional[bool]
    why: str


def read_evidence(run: Runner) -> dict[str, str]:
    """The texts by file name, without those that are empty, each with its last L(SIZE) characters."""
    found = {name: _output(run, words, _LIMIT) for name, words in _COMMANDS.items()}
    found[KERNEL_LOG] = "\n".join(line for line in found[KERNEL_LOG].splitlines() if _RELEVANT.search(line))
    found[BUILD_LOG] = _build_log()
    return {name: text[-SIZE:] for name, text in found.items() if text.strip()}


def run_diag(run: Runner, clients: t.Sequence[str], level: int) -> t.Tuple[Diag, str]:
    """Runs C(dcgmi diag), which needs idle GPUs: C((result, output)). clients: the names of the GPU clients."""
    if clients:
        return Diag(False, None, f"GPU clients run: {', '.join(sorted(set(clients))[:5])}"), ""
    if which("dcgmi") is None:
        return Diag(False, None, "the program dcgmi is not installed"), ""
    try:
        done = run(["dcgmi", "diag", "-r", str(level)], timeout=_DIAG_LIMITS[level], check=False)
    except CommandError as error:
        return Diag(True, None, error.message.rstrip(".")), ""
    text = (done.stdout + done.stderr)[-SIZE:]
    failed = [" ".join(line.strip("| \t").split()) for line in text.splitlines() if re.search(r"\bFail\b", line)]
    if failed:
        return Diag(True, False, "; ".join(failed[:5])), text
    # Without its host engine or a driver, it ends with an error and has tested nothing.
    return Diag(True, None if done.rc else True, f"exit code {done.rc}" if done.rc else ""), text


def _output(run: Runner, words: t.Sequence[str], limit: float) -> str:
    """The output of a command; an error message if it has taken too long, empty if there is no such program."""
    try:
        done = run(words, timeout=limit, check=False)
    except CommandError as error:
        return error.message
    return done.stdout if done.rc == 0 else f"{done.stdout}{done.stderr}" if done.rc not in (126, 127) else ""


def _build_log() -> str:
    """The most recent build log of DKMS for the driver."""
    try:
        newest = max(glob.glob("/var/lib/dkms/nvidia*/*/build/make.log"), key=lambda path: os.stat(path).st_mtime,
                     default="")
        return (read_bytes(newest) or b"").decode("utf-8", "replace") if newest else ""
    except (OSError, HostError):  # a build may delete it meanwhile
        return ""
