"""Listens for HTTP: the socket before an aiohttp application, opened and closed alike in every process that has one.

Called by the gateway, by `exposition` and by the WAN relay. Owns the socket and the runner; never what is served.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from pdd.rpc.errors import ListenError
from pdd.rpc.server import split_address


@asynccontextmanager
async def listening(runner: web.AppRunner, listen: str, *, shares_port: bool = False) -> AsyncIterator[str]:
    """Serve on `listen` ("host:port", port 0 for any) until left; gives the address with its real port. Raises ListenError.

    Leaving gives answers in progress the runner's `shutdown_timeout`. `shares_port` is that of `pdd.rpc.server.serve`.
    """
    host, port = split_address(listen)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host.strip("[]"), port, reuse_port=shares_port).start()
        except OSError as error:
            raise ListenError(f"can't listen on {listen}: {error.strerror or error}") from error
        yield f"{host}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
