# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Serves one connection of a guest to the repositories of the lab, on standard input: C(python3 -m lab.vm.inetd ROOT
FAULTS).

QEMU starts it for each connection to an address that only the guest can use: no server runs, and no port is used.
"""

from __future__ import annotations

import socket
import sys
from pathlib import Path

from lab.packages.serve import Handler


class Connection(Handler):
    """A handler of a connection that no server has accepted."""

    def __init__(self, root: Path, faults: Path) -> None:
        super().__init__(socket.socket(fileno=0), ("guest", 0), None, directory=str(root), faults=faults, log=None)


def main(root: str, faults: str) -> None:
    """Answers until the guest closes the connection."""
    Connection(Path(root), Path(faults))


if __name__ == "__main__":
    main(*sys.argv[1:])
