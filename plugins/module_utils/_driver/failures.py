# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What messages of the kernel, modprobe, DKMS, nvidia-smi and the installer mean, and what to do.

Sources: NVIDIA/open-gpu-kernel-modules 595 (nv.c, osapi.c, osinit.c), NVIDIA/nvidia-installer 590, dell/dkms,
gpu-driver-container, Ubuntu Server documentation on NVIDIA drivers.
"""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import CommandError, GpuopsError
from ansible_collections.gpuops.nvidia.plugins.module_utils._run import Runner

_OPEN = "These GPUs need open kernel modules."
_IN_USE = "Stop what holds the GPUs (see holders), then run again."
# Expression, meaning, what to do; the most telling first.
_KNOWN: t.Tuple[t.Tuple[str, str, str], ...] = (
    (r"requires use of the NVIDIA open kernel modules", _OPEN, "Set kernel_module_type to open or auto."),
    (r"not supported by open nvidia\.ko", "Open kernel modules do not drive these GPUs: they have no GSP.",
     "Set kernel_module_type to proprietary and branch to 580 at most."),
    (r"Key was rejected by service", "Secure Boot is on and the module's signature is not trusted.",
     "Enrol the key it is signed with (mokutil --import, reboot, confirm at the console), use source precompiled, or "
     "turn Secure Boot off."),
    (r"fallen off the bus|Xid \([^)]{0,40}\): 79\b", "A GPU no longer answers on PCIe: that is hardware, not packages.",
     "Power-cycle the host; if it happens again, have the GPU, riser and power looked at."),
    (r"is not supported by the NVIDIA .{0,80}driver release", "This driver branch does not drive one of the GPUs.",
     "Set branch to one that does; gpu_info tells which."),
    (r"NVRM: No NVIDIA GPU found", "No GPU is visible on the PCI bus.",
     "Look at lspci -d 10de: and at passed-through devices."),
    (r"The NVIDIA probe routine was not called for", "Another driver (nouveau, vfio-pci) has the GPUs.",
     "See lspci -k -d 10de:; unbind the other driver."),
    (r"RmInitAdapter failed", "A GPU could not be initialised.",
     "The kernel log's lines before it say why: firmware, kernel module type or fabric manager."),
    (r"API mismatch|Driver/library version mismatch",
     "The loaded kernel module is of another version than the libraries.",
     "The module has to be reloaded: stop what holds the GPUs, or reboot."),
    (r"kernel headers for kernel \S{1,80} (?:cannot|could not) be found",
     "The headers of the running kernel are missing.", "Install them, or boot a kernel whose headers are there."),
    (r"Module nvidia\S{0,40} not found in directory", "There is no driver module for the running kernel.",
     "Look whether DKMS built it: dkms status."),
    (r"could not insert '[^']{0,200}': No such device", "The module found no GPU that it could drive.",
     "Look for nouveau or vfio-pci on the GPUs (lspci -k -d 10de:) and at the kernel log."),
    (r"Could not unload NVIDIA driver kernel modules|Module nvidia\S{0,40} is in use",
     "Something holds the GPUs.", _IN_USE),
    (r"appears to be already loaded", "The installer refuses to work under a loaded module.", _IN_USE),
    (r"due to .{0,40}alternate driver installation", "The installer found the driver's packages.",
     "Set source to the packages', or remove them first."),
    (r"system not yet initialized", "The fabric manager does not run, or is of another version than the driver.",
     "Look at systemctl status nvidia-fabricmanager."),
    (r"unable to load nvidia-uvm", "The module nvidia-uvm is missing or of another version.", "Look at dkms status."),
    (r"couldn't communicate with the NVIDIA driver", "The kernel module is not loaded.",
     "Try modprobe nvidia, and read its error."),
    (r"No devices were found", "The driver runs, but drives no GPU.",
     "Look at the kernel log: nouveau, wrong kernel module type, or a GPU that failed."),
)
_EXPRESSIONS = tuple((re.compile(pattern), meaning, action) for pattern, meaning, action in _KNOWN)
_TELLING = re.compile(r"NVRM|nvidia|nouveau|Lockdown", re.IGNORECASE)
_LINES = 20


def explain(text: str) -> list[dict[str, str]]:
    """C([{message, meaning, action}]) for the messages of a text that are known, the most telling first."""
    found = []
    for expression, meaning, action in _EXPRESSIONS:
        line = next((line.strip() for line in text.splitlines() if expression.search(line)), None)
        if line is not None:
            found.append({"message": line, "meaning": meaning, "action": action})
    return found


def kernel_log(run: Runner, since: float) -> list[str]:
    """The kernel's last lines on the driver since a time (seconds of the epoch); none where the log is not readable."""
    try:
        done = run(["journalctl", "-k", "-q", "--no-pager", "-o", "cat", "--since", f"@{int(since)}"], check=False)
    except CommandError:  # it took too long
        return []
    return [line for line in done.stdout.splitlines() if _TELLING.search(line)][-_LINES:]


def enlighten(error: GpuopsError, run: Runner, since: float) -> None:
    """Adds to an error what its text and the kernel's log since then are known to mean: C(kernel_log), C(explained)."""
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
