"""What a handler's writes do when they have to wait."""

import asyncio
from typing import Any

import grpc
import grpc.aio

from tests.conformance.echo import Reply, Request, numbers
from tests.conformance.stacks import MEBIBYTE, TOO_LARGE, Log, Site, collect, is_too_large, outcome, settle

CODE = grpc.StatusCode


async def test_a_reader_who_does_not_read_holds_up_the_writer(site: Site, log: Log) -> None:
    async def watch(request: Any, context: Any) -> None:
        for _ in range(200):
            await context.write(Reply(payload=MEBIBYTE))
            log.add("written")

    call = (await site.connect(Watch=watch)).Watch(Request())
    await call.read()
    await log.until(1)
    await settle()
    held_at = len(log.entries)
    await settle()
    assert len(log.entries) == held_at < 100
    for _ in range(50):
        await call.read()
    await log.until(held_at + 1)


async def test_a_write_that_waits_fails_when_the_client_cancels(site: Site, log: Log) -> None:
    call = (await site.connect(Watch=writing_until_it_fails(log))).Watch(Request())
    await call.read()
    await settle()
    call.cancel()
    assert (await log.until(1))[0] in FAILED


async def test_a_write_that_waits_fails_at_the_deadline(site: Site, log: Log) -> None:
    call = (await site.connect(Watch=writing_until_it_fails(log))).Watch(Request(), timeout=0.5)
    await call.read()
    assert (await log.until(1))[0] in FAILED


# gRPC has both, by chance, and the cancellation follows on the first. The network in memory always gives the first.
FAILED = (grpc.aio.InternalError, asyncio.CancelledError)


def writing_until_it_fails(log: Log) -> Any:
    async def watch(request: Any, context: Any) -> None:
        while (what := await outcome(context.write(Reply(payload=MEBIBYTE)))) is None:
            pass
        log.add(what)

    return watch


async def test_a_write_that_a_handler_gave_up_is_sent_all_the_same(site: Site, log: Log) -> None:
    async def watch(request: Any, context: Any) -> None:
        log.add(await write_until_given_up(context))

    call = (await site.connect(Watch=watch)).Watch(Request())
    (given_up,) = await log.until(1)
    assert numbers(await collect(call)) == list(range(int(str(given_up)) + 1))
    assert await call.code() is CODE.OK


async def test_a_write_fails_while_one_that_was_given_up_waits(site: Site, log: Log) -> None:
    async def watch(request: Any, context: Any) -> None:
        log.add(await write_until_given_up(context))
        log.add(await outcome(context.write(Reply())))
        log.add("still there")

    call = (await site.connect(Watch=watch)).Watch(Request())
    assert (await log.until(3))[1:] == [grpc.aio.InternalError, "still there"]
    assert len(await collect(call)) == int(str(log.entries[0])) + 1


async def write_until_given_up(context: Any) -> int:
    """The number of the response that was given up, the first that had to wait for long."""
    number = 0
    while True:
        try:
            async with asyncio.timeout(0.3):
                await context.write(Reply(number=number, payload=MEBIBYTE))
        except TimeoutError:
            return number
        number += 1


async def test_a_response_above_the_limit_ends_the_call(site: Site, log: Log) -> None:
    async def watch(request: Any, context: Any) -> None:
        await context.write(Reply(number=1))
        log.add(await outcome(context.write(Reply(payload=TOO_LARGE))))
        log.add(await outcome(context.write(Reply())))

    call = (await site.connect(Watch=watch)).Watch(Request())
    assert (await call.read()).number == 1
    assert is_too_large(await outcome(call.read()), "SERVER")
    assert await log.until(2) == [grpc.aio.InternalError, asyncio.CancelledError]
