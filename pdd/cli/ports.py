"""Ports on this machine: which are free, and whether a wanted one can be had.

Called by `cluster` before it starts anything, so that a port in use is one clear line and not a child's traceback.
"""

from __future__ import annotations

import socket

from pdd.rpc.errors import ListenError
from pdd.rpc.server import split_address


def claim(address: str) -> str:
    """`address` ("host:port") with port 0 replaced by a free one. Raises ListenError where it can't be listened on now.

    The port is let go again, so another process may take it in between; its own listener then says so.
    """
    host, port = split_address(address)
    try:
        with socket.create_server((host, port)) as listener:
            return f"{host}:{listener.getsockname()[1]}"
    except OSError as error:
        raise ListenError(f"can't listen on {address}: {error.strerror or error}") from error
