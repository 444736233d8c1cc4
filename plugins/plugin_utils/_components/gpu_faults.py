# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is wrong with a GPU that does not answer, and what to do. Pure. PRIVATE.

The fault is derived from what NVML returns for the GPU (nvml.h, nvmlReturn_t). A run never resets a GPU or reboots a
host because of such a fault, at no level of gpu_disruption, as every run would reset a broken GPU again.
"""

from __future__ import annotations

import typing as t

_LOOK = "Look at journalctl -k for NVRM and Xid messages"
_RESET = ("Stop its clients (what gpu_disruption drain does for a change), then reset it: nvidia-smi --gpu-reset -i "
          "{pci}; where that is refused, reboot the host")
_REBOOT = "Reboot the host, and power-cycle it if that does not help; the other GPUs are served meanwhile"
# A word in the error, the state of the GPU, what to do.
_STATES = (
    ("RESET_REQUIRED", "needs a reset", _RESET),
    ("GPU_IS_LOST", "is lost", _REBOOT),
    ("does not list it", "has fallen off the bus, or its driver has given it up", _REBOOT),
    ("GPU_NOT_FOUND", "has fallen off the bus, or its driver has given it up", _REBOOT),
    ("TIMEOUT", "does not answer in time", f"{_LOOK}. {_RESET}"),
    ("UNKNOWN", "answers with an unknown error", f"{_LOOK}. {_RESET}"),
)


def fault_of(gpu: t.Mapping[str, t.Any]) -> tuple[str, str]:
    """C((what is wrong, what to do)) of a GPU of the facts with an error; sentences without a full stop."""
    pci, error = gpu["pci"], str(gpu["error"]).rstrip(".")
    for word, state, remedy in _STATES:
        if word in error:
            return f"{pci} {state} ({error})", remedy.format(pci=pci)
    return f"{pci}: {error}", _LOOK
