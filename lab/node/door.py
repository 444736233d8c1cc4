# Copyright: gpuops.nvidia contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Makes the API server of a cluster available at an address inside a host: C(python3 door.py PID ADDRESS PORT TARGET).

Listens on ADDRESS:PORT in the network namespace of the process PID, and forwards connections to TARGET, a port of this
machine's loopback interface. So the cluster cannot be reached from elsewhere. Imports nothing of the lab, because it
runs where the lab cannot be imported.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import socket
import sys

NETWORK = 0x40000000  # CLONE_NEWNET
FREEBIND = 15  # IP_FREEBIND: the address may come later


def listen(pid: int, address: str, port: int) -> socket.socket:
    """A socket that listens in the network namespace of another process, and stays there when this process returns to
    its own."""
    libc = ctypes.CDLL(None, use_errno=True)
    mine, theirs = (os.open(f"/proc/{name}/ns/net", os.O_RDONLY) for name in ("self", pid))

    def enter(namespace: int) -> None:
        if libc.setns(namespace, NETWORK):
            raise OSError(ctypes.get_errno(), "setns")

    enter(theirs)
    try:
        opened = socket.socket()
    finally:
        enter(mine)
    opened.setsockopt(socket.SOL_IP, FREEBIND, 1)
    opened.bind((address, port))
    opened.listen(64)
    return opened


async def serve(opened: socket.socket, target: int) -> None:
    """Forwards connections without end."""
    async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65536):
                sink.write(data)
                await sink.drain()
        except OSError:
            pass  # one side has gone; the other is told
        finally:
            sink.close()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            other_reader, other_writer = await asyncio.open_connection("127.0.0.1", target)
        except OSError:
            writer.close()
            return
        await asyncio.gather(copy(reader, other_writer), copy(other_reader, writer))

    async with await asyncio.start_server(connected, sock=opened) as server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(listen(int(sys.argv[1]), sys.argv[2], int(sys.argv[3])), int(sys.argv[4])))
