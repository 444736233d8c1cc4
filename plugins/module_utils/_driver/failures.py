# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Explains error messages of the kernel, modprobe, DKMS, nvidia-smi and the installer of the .run file.

Sources: NVIDIA/open-gpu-kernel-modules 595 (nv.c, osapi.c, osinit.c), NVIDIA/nvidia-installer 590, dell/dkms,
gpu-driver-container, Ubuntu Server documentation on NVIDIA drivers.
"""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import CommandError, GpuopsError
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Runner

_OPEN = "These GPUs need open kernel modules."
_IN_USE = "Stop the GPU clients (see holders), then run again."
# (regular expression, meaning, remedy). The most specific entries come first.
_KNOWN: t.Tuple[t.Tuple[str, str, str], ...] = (
    (r"requires use of the NVIDIA open kernel modules", _OPEN, "Set kernel_module_type to open or auto."),
    (r"not supported by open nvidia\.ko", "Open kernel modules do not support these GPUs, which have no GSP.",
     "Set kernel_module_type to proprietary and branch to 580 at most."),
    (r"Key was rejected by service", "Secure Boot is on, and the signature of the module is not trusted.",
     "Enrol its key (mokutil --import, reboot, confirm at the console), use source precompiled, or turn Secure Boot "
     "off."),
    (r"fallen off the bus|Xid \([^)]{0,40}\): 79\b", "A GPU no longer answers on PCIe. This is a hardware problem.",
     "Power-cycle the host. If it happens again, check the GPU, the riser and the power supply."),
    (r"is not supported by the NVIDIA .{0,80}driver release", "This driver branch does not support one of the GPUs.",
     "Set branch to one that supports it; gpu_info lists the branches."),
    (r"NVRM: No NVIDIA GPU found", "No GPU is visible on the PCI bus.",
     "Check lspci -d 10de: and whether the device is passed through."),
    (r"The NVIDIA probe routine was not called for", "Another driver (nouveau, vfio-pci) uses the GPUs.",
     "Check lspci -k -d 10de: and unbind the other driver."),
    (r"RmInitAdapter failed", "A GPU could not be initialised.",
     "Read the lines before it in the kernel log: firmware, kernel module type or fabric manager."),
    (r"API mismatch|Driver/library version mismatch",
     "The loaded kernel module and the libraries have different versions.",
     "Stop the GPU clients so that the modules can be reloaded, or reboot the host."),
    (r"kernel headers for kernel \S{1,80} (?:cannot|could not) be found",
     "The headers of the running kernel are missing.", "Install them, or boot a kernel that has headers."),
    (r"Module nvidia\S{0,40} not found in directory", "There is no driver module for the running kernel.",
     "Check dkms status."),
    (r"could not insert '[^']{0,200}': No such device", "The module found no GPU that it supports.",
     "Check whether nouveau or vfio-pci uses the GPUs (lspci -k -d 10de:), and the kernel log."),
    (r"Could not unload NVIDIA driver kernel modules|Module nvidia\S{0,40} is in use",
     "A GPU client uses the GPUs.", _IN_USE),
    (r"appears to be already loaded", "The installer does not work while a module is loaded.", _IN_USE),
    (r"due to .{0,40}alternate driver installation", "The installer found packages of a driver.",
     "Set source to that of the packages, or remove them first."),
    (r"system not yet initialized", "The fabric manager does not run, or does not have the version of the driver.",
     "For the cause: systemctl status nvidia-fabricmanager"),
    (r"unable to load nvidia-uvm", "The module nvidia-uvm is missing or has another version.", "Check dkms status."),
    (r"couldn't communicate with the NVIDIA driver", "The kernel module is not loaded.",
     "Run modprobe nvidia and read its error."),
    (r"No devices were found", "The driver is loaded, but finds no GPU.",
     "Check the kernel log: nouveau, wrong kernel module type, or a GPU that failed."),
)
_EXPRESSIONS = tuple((re.compile(pattern), meaning, action) for pattern, meaning, action in _KNOWN)
_RELEVANT = re.compile(r"NVRM|nvidia|nouveau|Lockdown", re.IGNORECASE)
_LINES = 20


def explain(text: str) -> list[dict[str, str]]:
    """C([{message, meaning, action}]) for each known message in a text, with the most specific first."""
    found = []
    for expression, meaning, action in _EXPRESSIONS:
        line = next((line.strip() for line in text.splitlines() if expression.search(line)), None)
        if line is not None:
            found.append({"message": line, "meaning": meaning, "action": action})
    return found


def kernel_log(run: Runner, since: float) -> list[str]:
    """The last lines of the kernel log about the driver; empty if it is unreadable. since: seconds since the epoch."""
    try:
        done = run(["journalctl", "-k", "-q", "--no-pager", "-o", "cat", "--since", f"@{int(since)}"], check=False)
    except CommandError:  # the command exceeded its time limit
        return []
    return [line for line in done.stdout.splitlines() if _RELEVANT.search(line)][-_LINES:]


def explain_error(error: GpuopsError, run: Runner, since: float) -> None:
    """Adds C(kernel_log) and C(explained) to an error, and the most specific explanation to its message and hint.

    since: seconds since the epoch; earlier lines of the kernel log are ignored.
    """
    log = kernel_log(run, since)
    texts = [error.message, *(str(error.details.get(key, "")) for key in ("stderr", "stdout")), *log]
    found = explain("\n".join(texts))
    if log:
        error.details["kernel_log"] = log
    if found:
        error.details["explained"] = found
        error.message = f"{error.message.rstrip()} That means: {found[0]['meaning']}"
        if found[0]["action"] not in error.hint:
            error.hint = f"{found[0]['action']} {error.hint}".strip()
