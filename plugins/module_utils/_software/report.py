# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The program that writes metrics about the state of a host. C(node_status.py) installs it.

The metrics C(gpu_operator_*) have the names and meanings of those of the GPU Operator's node status exporter (validator
26.7), so that its alerts and dashboards work. Its metrics about the cluster are omitted.
"""

from __future__ import annotations

import os
import re
import sys
import time
import typing as t

from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.gpus import Snapshot
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.label_facts import collect_devices, nvml_snapshot
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.root import Root
from ansible_collections.gpuops.nvidia.plugins.module_utils._facts.versions import (
    library_version,
    loaded_version,
    reboot_pending,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils._files import read_text, sweep, write_atomic

# The samples of one metric, each with its labels and its value.
Samples = t.Sequence[t.Tuple[t.Mapping[str, str], float]]
_HELP = {
    "gpu_operator_node_metrics_ready_ts_seconds": "Time when these metrics were first written.",
    "gpu_operator_node_driver_ready": "Whether the driver's kernel module is loaded.",
    "gpu_operator_node_driver_validation": "Whether driver, libraries and all GPUs worked at the last check.",
    "gpu_operator_node_driver_validation_last_success_ts_seconds": "Time of the last successful validation, or 0.",
    "gpu_operator_node_toolkit_ready": "Whether the NVIDIA container runtime is installed.",
    "gpu_operator_nvidia_pci_devices_total": "NVIDIA devices on the PCI bus, GPUs and others.",
    "gpuops_node_driver_info": "Versions of the loaded module and of the libraries, empty if unknown.",
    "gpuops_node_driver_version_mismatch": "Whether the module and the libraries have different versions.",
    "gpuops_node_reboot_pending": "Whether the driver waits for a reboot or a reload.",
    "gpuops_node_gpus": "GPUs on the PCI bus.",
    "gpuops_node_gpu_lost": "Whether the driver cannot reach a GPU.",
    "gpuops_node_gpu_mig_mode_pending": "Whether the MIG mode of a GPU waits for a reset.",
}
_SUCCESS = "gpu_operator_node_driver_validation_last_success_ts_seconds"
_READY = "gpu_operator_node_metrics_ready_ts_seconds"


def metrics(root: Root, snapshot: Snapshot, former_text: str, now: float) -> dict[str, Samples]:
    """The samples of all metrics, by the name of the metric.

    snapshot: see L(_facts.label_facts.nvml_snapshot). former_text: the former metrics. now: seconds since the epoch.
    """
    facts = collect_devices(root, snapshot)
    loaded, library = loaded_version(root), library_version(root)
    gpus = facts["gpus"]
    # If NVML does not respond, no GPU is reported as lost.
    unreachable = {gpu["pci"]: bool(snapshot["available"] and gpu["error"]) for gpu in gpus}
    is_valid = bool(loaded and loaded == library and snapshot["available"] and gpus and not any(unreachable.values()))
    vendors = [root.text(f"/sys/bus/pci/devices/{name}/vendor") for name in root.names("/sys/bus/pci/devices")]
    return {
        _READY: [({}, _former_value(former_text, _READY) or int(now))],
        "gpu_operator_node_driver_ready": [({}, loaded is not None)],
        "gpu_operator_node_driver_validation": [({}, is_valid)],
        _SUCCESS: [({}, int(now) if is_valid else _former_value(former_text, _SUCCESS))],
        "gpu_operator_node_toolkit_ready": [({}, root.exists("/usr/bin/nvidia-container-runtime"))],
        "gpu_operator_nvidia_pci_devices_total": [({}, vendors.count("0x10de"))],
        "gpuops_node_driver_info": [({"loaded": loaded or "", "library": library or ""}, 1)],
        "gpuops_node_driver_version_mismatch": [({}, bool(loaded and library and loaded != library))],
        "gpuops_node_reboot_pending": [({}, reboot_pending(root, loaded, library))],
        "gpuops_node_gpus": [({}, len(gpus))],
        "gpuops_node_gpu_lost": [({"gpu": pci}, value) for pci, value in unreachable.items()],
        "gpuops_node_gpu_mig_mode_pending": [
            ({"gpu": gpu["pci"]}, gpu["mig"]["enabled"] != gpu["mig"]["pending"]) for gpu in gpus if gpu["mig"]],
    }


def _former_value(text: str, name: str) -> int:
    """The value of a metric in the former metrics, 0 if there is none."""
    facts = re.search(rf"^{name}\{{[^}}]*\}} (\d{{1,18}})$", text, re.M)
    return int(facts.group(1)) if facts else 0


def render(values: t.Mapping[str, Samples], node: str) -> str:
    """The metrics in the text format of Prometheus. Each metric has the label C(node), as in the operator."""
    lines = []
    for name, samples in values.items():
        if not samples:
            continue
        lines += [f"# HELP {name} {_HELP[name]}", f"# TYPE {name} gauge"]
        for labels, value in samples:
            pairs = ",".join(f'{key}="{content}"' for key, content in {**labels, "node": node}.items())
            lines.append(f"{name}{{{pairs}}} {int(value)}")
    return "\n".join(lines) + "\n"


def main() -> None:
    """C(node-status.pyz FILE): atomically replaces the file with the metrics.

    If the file is a link, the link itself is replaced, because the program runs as root and the folder may belong to
    another user.
    """
    path, root = sys.argv[1], Root()
    former_text = "" if os.path.islink(path) else read_text(path) or ""
    values = metrics(root, nvml_snapshot(clients=False), former_text, time.time())
    sweep(path)
    write_atomic(path, render(values, os.uname().nodename).encode("utf-8"), mode=0o644, follow=False)
