import aiohttp
import pytest
from aiohttp import web

from pdd.rpc.errors import ListenError
from pdd.rpc.http import listening


async def hello(_: web.Request) -> web.Response:
    return web.Response(text="hello")


def runner() -> web.AppRunner:
    app = web.Application()
    app.add_routes([web.get("/", hello)])
    return web.AppRunner(app, access_log=None)


async def test_the_address_has_the_port_that_was_taken_and_is_free_afterwards() -> None:
    async with (
        listening(runner(), "127.0.0.1:0") as address,
        aiohttp.ClientSession() as http,
        http.get(f"http://{address}/") as reply,
    ):
        assert await reply.text() == "hello"
    async with listening(runner(), address) as again:
        assert again == address


async def test_a_port_in_use_is_named() -> None:
    async with listening(runner(), "127.0.0.1:0") as address:
        with pytest.raises(ListenError, match=f"can't listen on {address}"):
            async with listening(runner(), address):
                pass


@pytest.mark.parametrize("listen", ["127.0.0.1", "127.0.0.1:http"])
async def test_an_address_that_is_none_is_named(listen: str) -> None:
    with pytest.raises(ListenError, match=listen):
        async with listening(runner(), listen):
            pass
