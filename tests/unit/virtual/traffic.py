"""A busy network for tests: calls of all kinds at once over a bad link, some of which are cancelled, time out or are cut off.

Also a program: prints a digest of what happened, so that runs in fresh interpreters can be compared.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable
from contextlib import suppress
from random import Random
from typing import Any

import grpc.aio

from virtual.clock import run
from virtual.network import Host, Network
from wan.link import LinkSettings, Outage

CLIENTS = 6
LINK = LinkSettings(rate_mbit=50.0, rtt_ms=40.0, jitter_ms=5.0, loss=0.01)
METHOD = "/test.Traffic/Echo"


async def echo(_: Any, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
    async with asyncio.TaskGroup() as tasks:  # the stock one, on purpose
        while isinstance(message := await context.read(), bytes):
            tasks.create_task(asyncio.sleep(len(message) * 1e-6))
            await context.write(message)


async def talk(host: Host, log: list[str], random: Random) -> None:
    async with host.open_channel("server:1") as channel:
        for number in range(8):
            multi: Any = channel.stream_stream(METHOD)
            call = multi(timeout=random.choice([None, 0.2, 1.0]), wait_for_ready=True)
            try:
                for _ in range(random.randrange(5)):
                    await call.write(bytes(random.randrange(200_000)))
                    reply = await call.read()
                    log.append(f"{host.name} {number} got {len(reply)} at {asyncio.get_running_loop().time()!r}")
                if random.random() < 0.7:
                    await call.done_writing()
                    await call.read()
                else:
                    call.cancel()
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
                log.append(f"{host.name} {number} {type(error).__name__} at {asyncio.get_running_loop().time()!r}")


async def fail(network: Network) -> None:
    for outage in (Outage.RESET, Outage.BLACK_HOLE, Outage.REFUSE):
        await asyncio.sleep(0.4)
        network.configure("a", "b", LinkSettings(outage=outage))
        await asyncio.sleep(0.1)
        network.configure("a", "b", LINK)


async def traffic(seed: int) -> list[str]:
    """What each client saw, and when."""
    network = Network(seed=seed)
    network.configure("a", "b", LINK)
    server = network.host("server", "b").new_server()
    handlers: dict[str, Any] = {"Echo": grpc.stream_stream_rpc_method_handler(echo)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Traffic", handlers),))
    server.add_insecure_port("server:1")
    await server.start()
    log: list[str] = []
    talking: set[Awaitable[None]] = {asyncio.create_task(fail(network))}  # a set, on purpose
    for number in range(CLIENTS):
        talking.add(asyncio.create_task(talk(network.host(f"client-{number}", "a"), log, Random(number))))
    for one in talking:
        with suppress(asyncio.CancelledError):
            await one
    await server.stop(None)
    return log


def record(seed: int = 1, ties: int | None = None) -> list[str]:
    """The whole trace of a run: each step of each task and callback, and what the clients saw."""
    trace: list[str] = []
    seen = run(traffic, seed, seed=ties, trace=lambda at_s, who: trace.append(f"{at_s!r} {who}"))
    return trace + seen


if __name__ == "__main__":
    print(hashlib.sha256("\n".join(record()).encode()).hexdigest())  # noqa: T201
