"""Where gRPC does one thing or another by chance, and the network in memory always the same: the one that tells less."""

import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.conformance.echo import Reply, Request
from tests.conformance.stacks import DEAD, MEBIBYTE, Log, Site, outcome, settle, stack_of_this_loop, write_until_it_fails
from virtual.clock import VirtualLoop

CODE = grpc.StatusCode


async def hang(requests: Any, context: Any) -> None:
    await asyncio.sleep(60)


@pytest.fixture
async def site(loop: VirtualLoop) -> Any:
    async with Site(stack_of_this_loop()) as opened:
        yield opened


async def test_a_write_that_waits_in_a_handler_fails_before_the_cancellation(site: Site) -> None:
    log = Log()

    async def watch(request: Any, context: Any) -> None:
        while (what := await outcome(context.write(Reply(payload=MEBIBYTE)))) is None:
            pass
        log.add(what)
        log.add(await outcome(asyncio.sleep(60)))

    call = (await site.connect(Watch=watch)).Watch(Request())
    await settle()
    call.cancel()
    assert await log.until(2) == [grpc.aio.InternalError, asyncio.CancelledError]


async def test_a_write_of_the_client_that_waits_hides_the_deadline(site: Site) -> None:
    call = (await site.connect(Talk=hang)).Talk(timeout=0.5)
    assert await write_until_it_fails(call) == DEAD
    assert await call.code() is CODE.INTERNAL


async def test_a_write_of_the_client_that_waits_hides_an_abort_from_its_reader(site: Site) -> None:
    end = asyncio.Event()

    async def talk(requests: Any, context: Any) -> None:
        await end.wait()
        await context.abort(CODE.ABORTED, "gone")

    call = (await site.connect(Talk=talk)).Talk()
    reading = asyncio.ensure_future(outcome(call.read()))
    writing = asyncio.ensure_future(write_until_it_fails(call))
    await settle()
    end.set()
    assert (await writing, await reading) == (DEAD, DEAD)


async def test_an_awaited_outcome_is_not_hidden_by_a_failed_write(site: Site) -> None:
    answer = asyncio.Event()

    async def upload(requests: Any, context: Any) -> Any:
        await answer.wait()
        return Reply(number=1)

    call = (await site.connect(Upload=upload)).Upload()
    writing = asyncio.ensure_future(write_until_it_fails(call))
    await settle()
    answer.set()
    assert await writing == DEAD
    assert (await call).number == 1


async def test_a_handler_that_outlives_its_server_can_do_nothing_more(site: Site) -> None:
    log = Log()

    async def talk(requests: Any, context: Any) -> None:
        await context.write(Reply())
        log.add(await outcome(context.read()))
        log.add(await outcome(context.read()))
        log.add(await outcome(context.write(Reply())))

    served = await site.serve(Talk=talk)
    await site.stub(served.address).Talk().read()
    await served.server.stop(None)
    assert await log.until(3) == ["end", asyncio.CancelledError, grpc.aio.BaseError]


async def test_reads_at_once_are_refused(site: Site) -> None:
    call = (await site.connect(Talk=hang)).Talk()
    reading = asyncio.ensure_future(outcome(call.read()))
    await settle()
    with pytest.raises(grpc.aio.UsageError, match="another task"):
        await call.read()
    reading.cancel()
