# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Metrics on the state of a node as a file for Prometheus' node exporter. PRIVATE to the collection.

What runs on the host is a zip of this collection's own code (C(_report.py) and what it imports), started by a timer of
systemd: no shell, no daemon, and nothing that could differ from what facts and verification say.
"""

from __future__ import annotations

import ast
import importlib.util
import io
import os
import typing as t
import zipfile

from ansible_collections.gpuops.nvidia.plugins.module_utils._errors import InputError, MissingLibrary
from ansible_collections.gpuops.nvidia.plugins.module_utils._files import read_bytes
from ansible_collections.gpuops.nvidia.plugins.module_utils._nvml import PYTHON_PATH, PYTHON_PATH_VARIABLE
from ansible_collections.gpuops.nvidia.plugins.module_utils._software import _report
from ansible_collections.gpuops.nvidia.plugins.module_utils._software._base import Host, Options, Wish

PROGRAM = "/usr/local/lib/gpuops/node-status.pyz"
PYNVML = f"{PYTHON_PATH}/pynvml.py"
SERVICE = "gpuops-node-status.service"
TIMER = "gpuops-node-status.timer"
UNITS = "/etc/systemd/system"
OUTPUT = "gpuops-node-status.prom"
_PACKAGE = "ansible_collections.gpuops.nvidia.plugins.module_utils"
_SERVICE_TEXT = """\
# Written by gpuops.nvidia.
[Unit]
Description=State of the NVIDIA GPUs of this node, for Prometheus' node exporter

[Service]
Type=oneshot
ExecStart={interpreter} {program} {output}
TimeoutStartSec=120
Nice=10
"""
_TIMER_TEXT = """\
# Written by gpuops.nvidia.
[Unit]
Description=State of the NVIDIA GPUs of this node, regularly

[Timer]
OnBootSec=15s
OnUnitActiveSec={interval}s
AccuracySec=1s

[Install]
WantedBy=timers.target
"""


class NodeStatusExporter:
    """Implements C(_base.Component)."""

    name = "node_status_exporter"
    unit = TIMER

    @staticmethod
    def wish(options: Options, host: Host) -> Wish:
        """See L(_base.Component). folder: where the node exporter looks for C(*.prom); interval: seconds."""
        folder, interval = str(options["folder"]).rstrip("/"), int(options["interval"])
        if not folder.startswith("/") or any(sign.isspace() or sign == "%" for sign in folder):
            raise InputError(f"'{folder}' cannot be the folder.", "Give an absolute path without blanks.",
                             path="node_status_exporter.folder", value=folder)
        if not 5 <= interval <= 86400:
            raise InputError(f"{interval} s is not allowed.", "Give 5 to 86400.", path="node_status_exporter.interval",
                             value=interval)
        output = f"{folder}/{OUTPUT}"
        service = _SERVICE_TEXT.format(interpreter=host.interpreter, program=PROGRAM, output=output)
        return Wish(files={PYNVML: _pynvml(host), PROGRAM: program(),
                           f"{UNITS}/{SERVICE}": service.encode(),
                           f"{UNITS}/{TIMER}": _TIMER_TEXT.format(interval=interval).encode()},
                    outputs=[output], unit=TIMER, first=SERVICE)


def program() -> bytes:
    """The zip, the same bytes for the same code."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, source in sorted(_sources(_report.__name__).items()):
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), source)
    return buffer.getvalue()


def _sources(start: str) -> dict[str, str]:
    """File name to text of a module and of all of this collection that it imports."""
    found = {"__main__.py": f"from {start} import main\n\nmain()\n"}
    waiting = [start]
    while waiting:
        module = waiting.pop()
        path = module.replace(".", "/") + ".py"
        if path in found:
            continue
        spec = importlib.util.find_spec(module)
        loader: t.Any = spec.loader if spec else None
        found[path] = loader.get_source(module)
        for index in range(1, module.count(".") + 1):
            found["/".join([*module.split(".")[:index], "__init__.py"])] = ""
        for node in ast.walk(ast.parse(found[path])):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith(_PACKAGE):
                name = str(node.module)
                waiting += [f"{name}.{alias.name}" for alias in node.names] if _is_package(name) else [name]
    return found


def _is_package(name: str) -> bool:
    spec = importlib.util.find_spec(name)
    return spec is not None and spec.submodule_search_locations is not None


def _pynvml(host: Host) -> bytes:
    """The file that stands there, which goes with the driver, or that of this run. Raises MissingLibrary."""
    shipped = os.path.join(os.environ.get(PYTHON_PATH_VARIABLE, "/nonexistent"), "pynvml.py")
    found = importlib.util.find_spec("pynvml")
    for path in (host.root.at(PYNVML), shipped, found.origin if found else None):
        data = read_bytes(path) if path and os.path.basename(path) == "pynvml.py" else None
        if data is not None:
            return data
    raise MissingLibrary("pynvml")
