# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A simulated fleet that serves the metrics and labels of DCGM exporters, for a real Prometheus to scrape.

The labels are those of NVIDIA/dcgm-exporter 4.8.3. The node n1 is healthy, but a pod on its second GPU does nothing. n2
has a GPU in MIG mode, one with errors, and one that was lost a few minutes ago. n3 does not respond, and n4 responds
without a GPU.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

HISTORY = 3600  # seconds that are known before the first scrape
XID_AGO = 300
LOST_AGO = 600  # longer than Prometheus takes the last value for the present one
# What Prometheus puts on every series of a target, as by the ServiceMonitor.
TARGET = {"job": "nvidia-dcgm-exporter", "namespace": "gpu-operator", "service": "nvidia-dcgm-exporter",
          "container": "nvidia-dcgm-exporter", "endpoint": "gpu-metrics"}
_THEIRS = ("namespace", "pod", "container")

Labels = dict[str, str]


class Gpu(NamedTuple):
    """A GPU or a MIG instance. pod: namespace and name of the pod that uses it; instance: id and profile."""

    node: str
    index: int
    model: str = "NVIDIA H100 80GB HBM3"
    pod: tuple[str, str] = ("", "")
    instance: tuple[str, str] = ("", "")
    state: str = "busy"

    @property
    def labels(self) -> Labels:
        found = {"gpu": str(self.index), "UUID": f"GPU-{self.node}-{self.index}",
                 "pci_bus_id": f"00000000:0{self.index}:00.0", "device": f"nvidia{self.index}",
                 "modelName": self.model}
        if self.instance[0]:
            found.update(GPU_I_PROFILE=self.instance[1], GPU_I_ID=self.instance[0])
        found.update(hostname=self.node, DCGM_FI_DRIVER_VERSION="595.91.07")
        if not (self.pod[0] or self.instance[0]):
            return found
        # Empty ones also occur, here on instances that nobody holds.
        return {**found, "container": "main" if self.pod[0] else "", "namespace": self.pod[0], "pod": self.pod[1]}


A100 = "NVIDIA A100-SXM4-80GB"
GPUS = (
    Gpu("n1", 0, pod=("training", "train-0")),
    Gpu("n1", 1, pod=("notebooks", "nb-0"), state="idle"),
    Gpu("n2", 0, A100, ("training", "part-0"), ("1", "3g.40gb")),
    Gpu("n2", 0, A100, ("notebooks", "part-1"), ("9", "1g.10gb"), "idle"),
    Gpu("n2", 0, A100, instance=("10", "1g.10gb"), state="idle"),
    Gpu("n2", 1, state="trouble"),
    Gpu("n2", 2, state="lost"),
)
SERVED, DOWN, SILENT = ("n1", "n2"), "n3", "n4"


def values(gpu: Gpu, ago: float) -> dict[str, float]:
    """Maps each metric to its value this many seconds ago (negative: in the future)."""
    idle, trouble = gpu.state == "idle", gpu.state == "trouble"
    past = HISTORY - ago
    found = {
        "DEV_SM_CLOCK": 1980, "DEV_MEM_CLOCK": 2619, "DEV_MEMORY_TEMP": 99 if trouble else 60,
        "DEV_GPU_TEMP": 92 if trouble else 61, "DEV_POWER_USAGE": 650 if trouble else 300,
        "DEV_TOTAL_ENERGY_CONSUMPTION": 3e5 * past, "DEV_PCIE_REPLAY_COUNTER": 0,
        "DEV_XID_ERRORS": 79 if trouble and ago < XID_AGO else 0,
        "DEV_FB_FREE": 70000, "DEV_FB_USED": 10 if idle else 9000, "DEV_FB_RESERVED": 600,
        "DEV_NVLINK_BANDWIDTH_TOTAL": 1e6 * past, "DEV_VGPU_LICENSE_STATUS": 0,
        "DEV_UNCORRECTABLE_REMAPPED_ROWS": past // 600 if trouble else 0, "DEV_CORRECTABLE_REMAPPED_ROWS": 0,
        "DEV_ROW_REMAP_FAILURE": 1 if trouble else 0,
        "PROF_GR_ENGINE_ACTIVE": 0.01 if idle else 0.9, "PROF_PIPE_TENSOR_ACTIVE": 0 if idle else 0.6,
        "PROF_DRAM_ACTIVE": 0 if idle else 0.4, "PROF_PCIE_TX_BYTES": 1e8, "PROF_PCIE_RX_BYTES": 2e8,
        "DEV_ECC_SBE_VOL_TOTAL": 1, "DEV_ECC_DBE_VOL_TOTAL": past // 1200 if trouble else 0,
        "DEV_POWER_VIOLATION": 4e8 * past if trouble else 0, "DEV_THERMAL_VIOLATION": 2e8 * past if trouble else 0,
    }
    if not gpu.instance[0]:
        # Of a GPU that is cut nobody knows these.
        found.update({"DEV_GPU_UTIL": 1 if idle else 90, "DEV_MEM_COPY_UTIL": 0 if idle else 30, "DEV_ENC_UTIL": 0,
                      "DEV_DEC_UTIL": 0})
    return {f"DCGM_FI_{name}": value for name, value in found.items()}


def _line(name: str, labels: Labels, value: float) -> str:
    told = ",".join(f'{key}="{one}"' for key, one in labels.items())
    return f"{name}{{{told}}} {value:.10g}"


def page(node: str, start: float) -> str:
    """The metrics page of an exporter, this long after the start; a lost GPU is no longer listed."""
    lines = [_line(name, gpu.labels, value) for gpu in GPUS if gpu.node == node and gpu.state != "lost"
             for name, value in values(gpu, start - time.time()).items()]
    return "".join(f"{line}\n" for line in lines)


def history(start: float, honoured: bool = False) -> str:
    """The metrics before the start, in the OpenMetrics format, with the labels that Prometheus combines from both
    sides."""
    lines = []
    for gpu in GPUS:
        theirs = {f"exported_{key}" if key in _THEIRS and not honoured else key: value
                  for key, value in gpu.labels.items() if value}
        labels = {**TARGET, "pod": f"exporter-{gpu.node}", "instance": gpu.node, **theirs}
        for ago in range(HISTORY, LOST_AGO if gpu.state == "lost" else 0, -60):
            lines += [f"{_line(name, labels, value)} {start - ago:.0f}" for name, value in values(gpu, ago).items()]
    return "".join(f"{line}\n" for line in [*lines, "# EOF"])


class _Exporter(BaseHTTPRequestHandler):
    """Serves metrics; the path is the name of the node, such as /n1."""

    start: float

    def do_GET(self) -> None:
        body = page(self.path.strip("/"), self.start).encode() or b"# nothing\n"
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing."""


@contextmanager
def exporters(start: float, honoured: bool = False) -> Iterator[list[dict[str, Any]]]:
    """Serves all exporters; yields the scrape_configs for Prometheus. A scrape that takes longer than its configured
    timeout counts as failed."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Exporter", (_Exporter,), {"start": start}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"127.0.0.1:{server.server_port}"
    targets = [{"targets": [address if node != DOWN else "127.0.0.1:1"], "labels": {
        **{key: value for key, value in TARGET.items() if key != "job"}, "instance": node, "pod": f"exporter-{node}",
        "__metrics_path__": f"/{node}"}} for node in (*SERVED, DOWN, SILENT)]
    try:
        yield [{"job_name": TARGET["job"], "scrape_interval": "4s", "scrape_timeout": "4s", "static_configs": targets,
                "honor_labels": honoured}]
    finally:
        server.shutdown()
        server.server_close()
