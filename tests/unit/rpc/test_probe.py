import asyncio
from collections.abc import Sequence

import grpc.aio
import pytest

from pdd.rpc import probe
from pdd.rpc.server import serve

ANY = "127.0.0.1:0"


def nothing(_: grpc.aio.Server) -> Sequence[str]:
    return ()


async def test_a_server_that_serves_is_fit_and_one_that_leaves_is_named() -> None:
    async with serve(ANY, nothing) as server:
        assert await asyncio.to_thread(probe.main, [server.address]) is None
        await server.set_serving("", False)
        assert await asyncio.to_thread(probe.main, [server.address]) == f"{server.address}: NOT_SERVING"


def test_no_server_is_one_line(unused_tcp_port: int) -> None:
    said = probe.main([f"127.0.0.1:{unused_tcp_port}"])
    assert said is not None
    assert said.startswith(f"127.0.0.1:{unused_tcp_port}: UNAVAILABLE: ")


@pytest.mark.parametrize("arguments", [[], ["127.0.0.1:1", "127.0.0.1:2"]])
def test_one_address_is_wanted(arguments: list[str]) -> None:
    assert probe.main(arguments) == "give one address: python -m pdd.rpc.probe HOST:PORT"
