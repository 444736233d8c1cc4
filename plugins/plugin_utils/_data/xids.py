# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The meaning of Xids, and what NVIDIA recommends. Pure data. PRIVATE.

Source of numbers and actions: NVIDIA's Xid catalog (docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html), the
column of immediate actions. Numbers that it calls unused, for which it has no such action, or that refer to other
software (159) are left out. Where it refers to a procedure (45, 48, 74), the action is the first step of it. 144 to 150
have a code in their message, on which the action depends.
"""

from __future__ import annotations

import typing as t


class Action(t.NamedTuple):
    """What to do after an Xid. severity: that of the finding; fix: what a user should do."""

    severity: str
    fix: str


SUPPORT = "run NVIDIA's field diagnostics and ask the vendor of the host for a replacement (RMA)"
_RESET = "Stop the GPU clients of the GPU, then reset it: nvidia-smi --gpu-reset -i ADDRESS, or reboot the host"
_ACTIONS = {
    "none": Action("info", "NVIDIA recommends no action of its own; look at other Xids of the same time"),
    "restart": Action("info", "Restart the program, and look for the error in it; if known good programs cause it, "
                      f"{SUPPORT}"),
    "contained": Action("warning", "Restart the program; when no program uses the GPU, reset it: nvidia-smi "
                        "--gpu-reset -i ADDRESS, or reboot the host"),
    "code": Action("warning", "Look up the code in the message in NVIDIA's Xid catalog: many need no action. The check "
                   "gpu_recovery says whether a reset is needed"),
    "bus": Action("warning", "Check the PCIe link of the GPU: the check pcie_link, and AER in the kernel log; if it "
                  f"comes again, {SUPPORT}"),
    "corrected": Action("info", "The error was corrected; a reset of the GPU trains the link again"),
    "machine": Action("warning", "Restart the virtual machine, or reboot the host if it is none"),
    "watch": Action("warning", f"The GPU can be used further; if it comes again, {SUPPORT}"),
    "reset": Action("warning", f"{_RESET}; if it comes again, {SUPPORT}"),
    "nvlink": Action("warning", f"{_RESET}. nvidia-smi nvlink --status shows the link; if it comes again, {SUPPORT}"),
    "reboot": Action("warning", f"Reboot the host, and power-cycle it if that does not help; if it comes again, "
                     f"{SUPPORT}"),
    "mechanics": Action("warning", "Power off the host and check the power cables of the board"),
    "update": Action("warning", "Update the driver of the guest or of the vGPU host, so that both fit"),
    "recovery": Action("info", "The check gpu_recovery has the action that is recommended now"),
    "support": Action("warning", f"If it comes again, {SUPPORT}"),
}
# (Xids, action, meaning).
_ROWS: t.Tuple[t.Tuple[str, str, str], ...] = (
    ("8", "restart", "a channel of the GPU did not become idle in time"),
    ("11 25 80", "restart", "the GPU got invalid or damaged commands"),
    ("32", "bus", "the GPU got damaged commands, mostly because of the quality of the PCIe link"),
    ("13", "restart", "a program caused an exception of the graphics engine, such as an address out of bounds"),
    ("31", "restart", "a program accessed an invalid address of GPU memory"),
    ("37 38", "none", "the firmware of the graphics engine reported an error"),
    ("39-41 70-72 75-77 85 126-135", "restart", "a copy engine reported an error"),
    ("43", "none", "a program's work was stopped after an error of its own"),
    ("44", "none", "a fault occurred while the GPU changed between programs"),
    ("45", "none", "the work of a program was removed, because it ended or after another error"),
    ("46", "reset", "the GPU stopped processing"),
    ("48", "reset", "an uncorrectable memory error occurred (double-bit ECC)"),
    ("54", "mechanics", "the auxiliary power of the board is not connected"),
    ("60", "restart", "the video processor reported an exception"),
    ("62", "reset", "an internal controller of the GPU halted"),
    ("63", "none", "a faulty part of the memory was recorded and will be replaced at the next reset"),
    ("64", "reset", "a faulty part of the memory could not be recorded for replacement"),
    ("66 67", "none", "the driver made an access that the GPU refused"),
    ("68 83 84 88 89 96-98", "restart", "a video decoder reported an error"),
    ("69", "restart", "the graphics engine got an invalid command of its class"),
    ("74", "nvlink", "an NVLink reported an error"),
    ("78", "update", "a vGPU could not start"),
    ("79", "reboot", "the GPU has fallen off the bus"),
    ("82 99-105", "restart", "a JPEG decoder reported an error"),
    ("86 139", "restart", "the optical flow accelerator reported an error"),
    ("92", "watch", "memory errors that were corrected are frequent"),
    ("93", "none", "the InfoROM of the board is written more often than intended"),
    ("94", "contained", "an uncorrectable memory error was contained: only the program that used it is affected"),
    ("95", "reset", "an uncorrectable memory error was not contained: all programs on the GPU may be affected"),
    ("106 107", "none", "a test message of the board's management interface"),
    ("109", "reset", "the GPU could not change between programs in time"),
    ("110", "reset", "a security fault occurred"),
    ("119", "reset", "the firmware of the GPU (GSP) did not answer the driver in time"),
    ("120", "reset", "the firmware of the GPU (GSP) reported an error"),
    ("121", "corrected", "the link to the Grace CPU (C2C) corrected an error"),
    ("136", "reset", "an NVLink could not be trained"),
    ("137", "none", "a peer made an access over NVLink that the GPU refused"),
    ("140", "reset", "an uncorrectable memory error could not be handled"),
    ("141 152 153 160 161", "none", "a part of the GPU reported an error that needs no action"),
    ("142", "support", "a video encoder reported an error"),
    ("143", "reset", "the GPU could not be initialized"),
    ("144-150", "code", "a part of NVLink 5 reported an error"),
    ("151", "machine", "the rotation of keys for confidential computing failed"),
    ("154", "recovery", "the driver changed the action that it recommends for the GPU"),
    ("155", "reset", "the software of NVLink reported an error"),
    ("156", "reset", "a faulty part of the GPU was taken out of use"),
    ("157", "watch", "a faulty part of the GPU could not be taken out of use"),
    ("158", "reset", "the GPU did not answer in time"),
    ("171 172", "none", "details of an uncorrectable memory error, which an Xid 48 reports"),
)


class Meaning(t.NamedTuple):
    """The meaning of an Xid, as a part of a sentence, and what to do."""

    text: str
    action: Action


_UNKNOWN = Meaning("its meaning is not known here",
                   Action("warning", "Look it up in NVIDIA's Xid catalog: "
                          "https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html"))


def _numbers(text: str) -> t.Iterator[int]:
    for part in text.split():
        first, _dash, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


MEANINGS = {number: Meaning(text, _ACTIONS[action]) for numbers, action, text in _ROWS for number in _numbers(numbers)}


def meaning_of(number: int) -> Meaning:
    """The meaning of an Xid, also of an unknown one."""
    return MEANINGS.get(number, _UNKNOWN)
