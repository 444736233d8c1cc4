# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A client of QEMU's monitor, with the commands that save a machine (QEMU Machine Protocol: lines of JSON on a
socket)."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path
from types import TracebackType
from typing import Any


class Monitor:
    """A connection to a machine's monitor: C(with Monitor(path) as monitor)."""

    def __init__(self, path: Path, limit: float = 600.0) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(limit)  # for each answer
        try:
            self.socket.connect(str(path))
        except OSError:
            self.socket.close()
            raise
        self.lines = self.socket.makefile("r", encoding="utf-8")
        self.lines.readline()
        self("qmp_capabilities")

    def __enter__(self) -> Monitor:
        return self

    def __exit__(self, kind: type[BaseException] | None, problem: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.lines.close()
        self.socket.close()

    def __call__(self, command: str, **arguments: Any) -> Any:
        """Executes a command; returns its answer. Other events of the machine are ignored."""
        self.socket.sendall(json.dumps({"execute": command, "arguments": arguments}).encode() + b"\n")
        try:
            for line in self.lines:
                answer = json.loads(line)
                if "error" in answer:
                    raise SystemExit(f"the virtual machine refuses {command}: {answer['error']['desc']}")
                if "return" in answer:
                    return answer["return"]
        except TimeoutError as problem:
            raise SystemExit(f"the virtual machine's monitor does not answer {command}") from problem
        raise SystemExit(f"the virtual machine has ended during {command}")

    def save(self, file: Path) -> None:
        """Stops the machine and writes its memory and devices to a file, from which L(resume) continues."""
        self("stop")
        self("migrate-set-parameters", **{"max-bandwidth": 2**40})
        self("migrate", uri=f"exec:cat > '{file}'")
        self.settle("query-migrate", "completed")

    def resume(self, file: Path) -> None:
        """Reads memory and devices from a file, in a machine that was started with C(-incoming defer)."""
        self("migrate-incoming", uri=f"exec:cat '{file}'")
        self.settle("query-status", "paused")
        self("cont")

    def settle(self, query: str, wanted: str, limit: float = 1200.0) -> None:
        """Waits until the answer to a query has the wanted status."""
        end = time.monotonic() + limit
        while (status := self(query).get("status")) != wanted:
            if status == "failed" or time.monotonic() > end:
                raise SystemExit(f"the virtual machine's {query} says {status!r}, not {wanted!r}")
            time.sleep(0.2)
