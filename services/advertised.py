"""The address that peers are told: an instance's own, or one leased from a WAN relay and kept up to date.

An instance that listens on every address of its host is reached by the host's name: in containers that is the container's.

Used by the shell. A relay that restarts has forgotten its forwards and gives another port, so the lease is asked for again with
each beat; as long as the relay lives the answer is the same. Never ends the service: a relay that is away is asked on.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from pdd.rpc.errors import StartupError
from pdd.telemetry import get_logger

START_S = 10.0  # to try for at the start, where the relay may be starting too
RENEW_S = 1.0  # between two askings, as between two heartbeats

_EVERY_ADDRESS = frozenset({"0.0.0.0", "[::]", "::"})

log = get_logger(__name__)

# The address that peers would use and the seconds to try for, to the address that they are to use. Raises StartupError.
LeaseAddress = Callable[[str, float], Awaitable[str]]


@dataclass(slots=True)
class Advertised:
    address: str


@asynccontextmanager
async def advertised(own: str, lease: LeaseAddress | None, renew_s: float = RENEW_S) -> AsyncIterator[Advertised]:
    """What to advertise; it changes under way where a lease does. Raises StartupError where there is none to begin with."""
    own = reachable(own, socket.gethostname())
    if lease is None:
        yield Advertised(own)
        return
    place = Advertised(await lease(own, START_S))
    keeping = asyncio.create_task(_keep(place, own, lease, renew_s), name="leased address")
    try:
        yield place
    finally:
        keeping.cancel()
        with suppress(asyncio.CancelledError):
            await keeping


def reachable(address: str, hostname: str) -> str:
    """`address` ("host:port"), with this host's name in place of "every address"."""
    host, _, port = address.rpartition(":")
    return f"{hostname}:{port}" if host in _EVERY_ADDRESS else address


async def _keep(place: Advertised, own: str, lease: LeaseAddress, renew_s: float) -> None:
    away = False
    while True:
        await asyncio.sleep(renew_s)
        try:
            address = await lease(own, 0.0)
        except StartupError as error:
            if not away:
                log.warning("the leased address can't be renewed, trying on", address=place.address, error=str(error))
            away = True
            continue
        if away:
            log.info("the leased address can be renewed again", address=address)
        away = False
        if address != place.address:
            log.warning("the leased address has changed", was=place.address, now=address)
            place.address = address
