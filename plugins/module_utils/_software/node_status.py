# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes metrics about the state of a host to a file for the Prometheus node exporter.

A systemd timer runs a zip file that contains C(report.py) and the files of this collection that it imports. Therefore,
the metrics agree with the facts and the verification.
"""

from __future__ import annotations

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.nvidia.plugins.module_utils._program import FOLDER, program, pynvml
from ansible_collections.gpuops.nvidia.plugins.module_utils._pynvml import PYNVML
from ansible_collections.gpuops.nvidia.plugins.module_utils._software import report
from ansible_collections.gpuops.nvidia.plugins.module_utils._software.base import Desired, Host, Options

PROGRAM = f"{FOLDER}/node-status.pyz"
SERVICE = "gpuops-node-status.service"
TIMER = "gpuops-node-status.timer"
UNITS = "/etc/systemd/system"
OUTPUT = "gpuops-node-status.prom"
_SERVICE_TEXT = """\
# Written by gpuops.nvidia.
[Unit]
Description=Write the state of the NVIDIA GPUs of this node for the Prometheus node exporter

[Service]
Type=oneshot
ExecStart={interpreter} {program} {output}
TimeoutStartSec=120
Nice=10
"""
_TIMER_TEXT = """\
# Written by gpuops.nvidia.
[Unit]
Description=Regularly write the state of the NVIDIA GPUs of this node

[Timer]
OnBootSec=15s
OnUnitActiveSec={interval}s
AccuracySec=1s

[Install]
WantedBy=timers.target
"""


class NodeStatusExporter:
    """Implements C(base.Component)."""

    name = "node_status_exporter"
    unit = TIMER

    @staticmethod
    def desired(options: Options, host: Host) -> Desired:
        """See L(base.Component). folder: the folder for C(*.prom) files; interval: seconds between two runs."""
        folder, interval = str(options["folder"]).rstrip("/"), int(options["interval"])
        if not folder.startswith("/") or any(sign.isspace() or sign == "%" for sign in folder):
            raise InputError(f"'{folder}' is not a valid folder.", "Set an absolute path without spaces and %.",
                             path="node_status_exporter.folder", value=folder)
        if not 5 <= interval <= 86400:
            raise InputError(f"An interval of {interval} s is not allowed.", "Set 5 to 86400 seconds.",
                             path="node_status_exporter.interval", value=interval)
        output = f"{folder}/{OUTPUT}"
        service = _SERVICE_TEXT.format(interpreter=host.interpreter, program=PROGRAM, output=output)
        return Desired(files={PYNVML: pynvml(host.root), PROGRAM: program(report.__name__),
                              f"{UNITS}/{SERVICE}": service.encode(),
                              f"{UNITS}/{TIMER}": _TIMER_TEXT.format(interval=interval).encode()},
                       outputs=[output], unit=TIMER, run_once=SERVICE)
