# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks whether the driver version is the same in the loaded module, the libraries, the packages and nvidia-smi."""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._driver.state import DriverState
from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import CommandError
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Runner


def disagreements(situation: DriverState, version: str | None, flavour: str | None, packages: str | None) -> list[str]:
    """One sentence for each difference between the loaded module, the libraries, the packages and the desired driver.

    version, flavour: the desired version and module type, None for those of the loaded module. packages: the version
    that the delivery has installed, None without a delivery.
    """
    if situation.loaded is None:
        return ["no NVIDIA module is loaded"]
    wanted = version or situation.loaded
    found = []
    if situation.loaded != wanted:
        found.append(f"the loaded module is {situation.loaded}, not {wanted}")
    if flavour and situation.flavour != flavour:
        found.append(f"the loaded module is {situation.flavour}, not {flavour}")
    if situation.library is None:
        found.append("libnvidia-ml is not installed")
    elif situation.library != situation.loaded:
        found.append(f"Driver/library version mismatch: module {situation.loaded}, libraries {situation.library}")
    if packages is not None and packages != wanted:
        found.append(f"the packages are {packages}, not {wanted}")
    return found


# Messages of nvidia-smi about a single GPU. With these, its exit code reports an error, although the driver works.
_LOST = re.compile(r"GPU is lost|requires reset|Unable to determine the device handle", re.I)


class Smi(t.NamedTuple):
    """The problems that nvidia-smi reports. faults: problems of the driver. lost: problems of single GPUs, which no
    other driver can repair."""

    faults: list[str]
    lost: list[str]


def ask_smi(run: Runner, wanted: str | None) -> Smi:
    """Runs nvidia-smi and returns the problems that it reports; none if it lists GPUs with the desired driver."""
    try:
        done = run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], timeout=120, check=False)
    except CommandError as error:
        return Smi([error.message.rstrip(".")], [])  # for example, because a GPU hangs
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    if done.rc != 0:
        text = " / ".join((done.stdout + done.stderr).strip().splitlines()) or f"exit code {done.rc}"
        problem = [f"nvidia-smi: {text}"]
        return Smi([], problem) if _LOST.search(text) else Smi(problem, [])
    if not lines:
        return Smi(["nvidia-smi lists no GPU"], [])
    return Smi([f"nvidia-smi reports {line}, not {wanted}" for line in sorted(set(lines)) if wanted and line != wanted],
               [])
