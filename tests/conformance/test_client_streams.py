import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio

from tests.conformance.echo import Reply, Request
from tests.conformance.stacks import DEAD, TOO_LARGE, Log, Site, is_too_large, outcome, settle, write_until_it_fails

CODE = grpc.StatusCode


async def total(requests: Any, context: Any) -> Any:
    return Reply(number=sum([request.number async for request in requests]))


async def first(requests: Any, context: Any) -> Any:
    async for request in requests:
        return Reply(number=request.number)
    return Reply(number=-1)


async def refuse_the_first(requests: Any, context: Any) -> Any:
    await context.read()
    await context.abort(CODE.DATA_LOSS, "bad")


async def test_requests_of_an_async_iterator_are_sent(site: Site) -> None:
    async def requests() -> AsyncIterator[Any]:
        for number in range(4):
            yield Request(number=number)

    assert (await (await site.connect(Upload=total)).Upload(requests())).number == 6


async def test_requests_of_a_plain_iterator_are_sent(site: Site) -> None:
    assert (await (await site.connect(Upload=total)).Upload(iter([Request(number=1), Request(number=2)]))).number == 3


async def test_an_iterator_that_fails_cancels_the_call(site: Site) -> None:
    async def requests() -> AsyncIterator[Any]:
        yield Request()
        raise ValueError("boom")

    assert await outcome((await site.connect(Upload=total)).Upload(requests())) is asyncio.CancelledError


async def test_requests_can_be_written_one_by_one(site: Site) -> None:
    call = (await site.connect(Upload=total)).Upload()
    await call.write(Request(number=1))
    await call.write(Request(number=2))
    await call.done_writing()
    assert (await call).number == 3
    await call.done_writing()  # again: nothing happens


async def test_nothing_can_be_written_after_done_writing(site: Site) -> None:
    call = (await site.connect(Upload=total)).Upload()
    await call.done_writing()
    assert await outcome(call.write(Request())) is asyncio.InvalidStateError


async def test_iterator_and_writing_do_not_mix(site: Site) -> None:
    call = (await site.connect(Upload=total)).Upload(iter([Request()]))
    assert await outcome(call.write(Request())) is grpc.aio.UsageError


async def test_a_server_can_answer_before_all_is_sent(site: Site) -> None:
    call = (await site.connect(Upload=first)).Upload()
    await call.write(Request(number=5))
    assert (await call).number == 5
    assert [await outcome(call.write(Request())) for _ in range(2)] == [asyncio.InvalidStateError] * 2


# A write that fails. Whether it was under way when the call ended, and so hides the outcome, is a matter of chance in gRPC. The
# network in memory never hides it from who awaits the call.
FAILED = (DEAD, asyncio.InvalidStateError)


async def test_an_early_answer_fails_a_busy_writer(site: Site) -> None:
    call = (await site.connect(Upload=first)).Upload()
    await call.write(Request(number=5))
    assert await write_until_it_fails(call) in FAILED
    assert await outcome(call) in (DEAD, Reply(number=5))


async def test_an_abort_fails_a_busy_writer(site: Site) -> None:
    call = (await site.connect(Upload=refuse_the_first)).Upload()
    await call.write(Request())
    assert await write_until_it_fails(call) in FAILED
    assert await outcome(call) in (DEAD, (CODE.DATA_LOSS, "bad"))


async def test_an_answer_fails_a_writer_that_waits(site: Site) -> None:
    answer = asyncio.Event()

    async def upload(requests: Any, context: Any) -> Any:
        await answer.wait()
        return Reply(number=1)

    call = (await site.connect(Upload=upload)).Upload()
    writing = asyncio.ensure_future(write_until_it_fails(call))
    await settle()
    assert not writing.done()
    answer.set()
    assert await writing in FAILED
    assert await outcome(call) in (DEAD, Reply(number=1))


async def test_a_request_above_the_limit_ends_the_call(site: Site, log: Log) -> None:
    async def upload(requests: Any, context: Any) -> Any:
        log.add(await outcome(context.read()))
        log.add(await outcome(context.read()))

    call = (await site.connect(Upload=upload)).Upload()
    await call.write(Request(number=1))
    await log.until(1)
    assert await outcome(call.write(Request(payload=TOO_LARGE))) == DEAD
    assert is_too_large(await outcome(call), "CLIENT")
    assert await log.until(2) == [Request(number=1), "end"]
