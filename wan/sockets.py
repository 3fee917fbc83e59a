"""The relay's sockets: small buffers, no delay, and an end that can be a reset.

Called by `connection` and `forwards`. Sockets are non-blocking and belong to whoever asked for them.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any

# The kernel's own buffers would swallow megabytes before anyone felt the line.
BUFFER_BYTES = 128 << 10
BACKLOG = 128

_LINGER_NONE = struct.pack("ii", 1, 0)


def split_target(target: str) -> tuple[str, int]:
    """("host", port) of "host:port". Raises ValueError."""
    host, colon, port = target.rpartition(":")
    if not (colon and host and port.isascii() and port.isdigit() and 0 < int(port) <= 65535):
        raise ValueError(f"target {target!r}: must be host:port")
    return host.strip("[]"), int(port)


async def listen(host: str, port: int) -> socket.socket:
    """Listen on one address of `host`; port 0 takes any. Raises OSError."""
    family, address = await _resolve(host, port)
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _prepare(listener)  # accepted sockets inherit it
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


async def dial(target: str, timeout_s: float) -> socket.socket:
    """Connect to "host:port". Raises OSError, TimeoutError among them."""
    async with asyncio.timeout(timeout_s):
        family, address = await _resolve(*split_target(target))
        far = socket.socket(family, socket.SOCK_STREAM)
        try:
            _prepare(far)
            await asyncio.get_running_loop().sock_connect(far, address)
        except BaseException:
            far.close()
            raise
    return far


def abort(connection: socket.socket) -> None:
    """Close with a reset; the peer's next read or write fails."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NONE)
    connection.close()


def _prepare(new: socket.socket) -> None:
    new.setblocking(False)
    new.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
    new.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
    new.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


async def _resolve(host: str, port: int) -> tuple[socket.AddressFamily, tuple[Any, ...]]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    family, _, _, _, address = found[0]
    return family, address
