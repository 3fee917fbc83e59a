import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.conformance.echo import Reply, Request, numbers
from tests.conformance.stacks import DEAD, Log, Site, outcome, settle, write_until_it_fails

CODE = grpc.StatusCode


async def echo(requests: Any, context: Any) -> None:
    while (request := await context.read()) is not grpc.aio.EOF:
        await context.write(Reply(number=request.number))


async def hang(requests: Any, context: Any) -> None:
    await context.read()
    await asyncio.sleep(60)


async def test_requests_and_responses_alternate(site: Site) -> None:
    call = (await site.connect(Talk=echo)).Talk()
    for number in range(4):
        await call.write(Request(number=number))
        assert (await call.read()).number == number
    await call.done_writing()
    assert await outcome(call.read()) == "end"
    assert await call.code() is CODE.OK
    assert await outcome(call.write(Request())) is asyncio.InvalidStateError


async def test_a_handler_may_go_on_after_the_last_request(site: Site) -> None:
    async def talk(requests: Any, context: Any) -> None:
        await echo(requests, context)
        assert await outcome(context.read()) == "end"  # again
        await context.write(Reply(number=99))

    call = (await site.connect(Talk=talk)).Talk()
    await call.write(Request(number=1))
    await call.done_writing()
    assert numbers([await call.read(), await call.read()]) == [1, 99]
    assert await outcome(call.read()) == "end"


async def test_a_handler_can_iterate_and_yield(site: Site) -> None:
    async def talk(requests: Any, context: Any) -> Any:
        async for request in requests:
            yield Reply(number=request.number)

    call = (await site.connect(Talk=talk)).Talk(iter([Request(number=1), Request(number=2)]))
    assert numbers([reply async for reply in call]) == [1, 2]


async def test_a_handler_may_return_while_the_client_could_write(site: Site) -> None:
    async def talk(requests: Any, context: Any) -> None:
        await context.read()

    call = (await site.connect(Talk=talk)).Talk()
    await call.write(Request())
    assert await outcome(call.read()) == "end"
    assert (call.done(), await call.code()) == (True, CODE.OK)
    assert await outcome(call.write(Request())) is asyncio.InvalidStateError


async def test_cancelling_ends_reads_and_writes(site: Site) -> None:
    call = (await site.connect(Talk=hang)).Talk()
    await call.write(Request())
    call.cancel()
    assert await outcome(call.read()) is asyncio.CancelledError
    assert await outcome(call.write(Request())) is asyncio.InvalidStateError


async def test_the_deadline_ends_reads_and_writes(site: Site) -> None:
    call = (await site.connect(Talk=hang)).Talk(timeout=0.3)
    await call.write(Request())
    assert await outcome(call.read()) == (CODE.DEADLINE_EXCEEDED, "Deadline Exceeded")
    assert await outcome(call.write(Request())) is asyncio.InvalidStateError


# A write that fails can hide the cause, by chance in gRPC. In memory it always does.
FAILED = (DEAD, asyncio.InvalidStateError)


async def test_a_server_that_returns_fails_a_write_that_waits(site: Site) -> None:
    end = asyncio.Event()

    async def talk(requests: Any, context: Any) -> None:
        await end.wait()

    call = (await site.connect(Talk=talk)).Talk()
    writing = asyncio.ensure_future(write_until_it_fails(call))
    await settle()
    end.set()
    assert await writing in FAILED
    assert await outcome(call.write(Request())) is asyncio.InvalidStateError
    assert await outcome(call.read()) in (DEAD, "end")


async def test_a_server_that_aborts_fails_a_write_that_waits(site: Site) -> None:
    end = asyncio.Event()

    async def talk(requests: Any, context: Any) -> None:
        await end.wait()
        await context.abort(CODE.ABORTED, "gone")

    call = (await site.connect(Talk=talk)).Talk()
    reading = asyncio.ensure_future(outcome(call.read()))
    writing = asyncio.ensure_future(write_until_it_fails(call))
    await settle()
    end.set()
    assert await writing in FAILED
    assert await outcome(call.write(Request())) is asyncio.InvalidStateError
    assert await reading in (DEAD, (CODE.ABORTED, "gone"))
    assert await call.code() in (CODE.INTERNAL, CODE.ABORTED)


async def test_the_deadline_fails_a_write_that_waits(site: Site) -> None:
    call = (await site.connect(Talk=hang)).Talk(timeout=0.5)
    assert await write_until_it_fails(call) in FAILED
    assert await outcome(call.read()) in (DEAD, (CODE.DEADLINE_EXCEEDED, "Deadline Exceeded"))


async def test_a_write_to_a_server_that_has_ended_loses_what_was_not_read(site: Site) -> None:
    async def talk(requests: Any, context: Any) -> None:
        await context.write(Reply(number=1))
        context.set_code(CODE.NOT_FOUND)

    call = (await site.connect(Talk=talk)).Talk()
    await settle()
    assert not call.done()
    assert await outcome(call.write(Request())) == DEAD
    assert await outcome(call.write(Request())) is asyncio.InvalidStateError
    assert await outcome(call.read()) == DEAD


async def test_cancelling_ends_a_write_that_waits(site: Site) -> None:
    call = (await site.connect(Talk=hang)).Talk()
    writing = asyncio.ensure_future(write_until_it_fails(call))
    await settle()
    call.cancel()
    assert await writing is asyncio.CancelledError
    assert await outcome(call.read()) is asyncio.CancelledError


async def test_cancelling_the_task_that_writes_cancels_the_call(site: Site) -> None:
    call = (await site.connect(Talk=hang)).Talk()
    writing = asyncio.ensure_future(write_until_it_fails(call))
    await settle()
    writing.cancel()
    assert await writing is asyncio.CancelledError
    assert call.cancelled()


# What a handler sees of a client that is gone, whatever took it: the end of its requests, and only then the cancellation.


async def cancel(call: Any) -> None:
    call.cancel()


async def pass_the_deadline(call: Any) -> None:
    await call.code()


ENDINGS = [cancel, pass_the_deadline]


@pytest.mark.parametrize("end", ENDINGS)
async def test_a_handler_that_reads_sees_the_end_before_the_cancellation(site: Site, log: Log, end: Any) -> None:
    async def talk(requests: Any, context: Any) -> None:
        log.add("called")
        log.add(await outcome(context.read()))
        log.add((context.done(), context.cancelled()))
        log.add(await outcome(context.read()))
        log.add(await outcome(context.write(Reply())))
        log.add(await outcome(asyncio.sleep(0)))
        log.add(await outcome(context.read()))

    call = (await site.connect(Talk=talk)).Talk(timeout=0.5)
    await log.until(1)
    await end(call)
    assert await log.until(7) == [
        *("called", "end", (False, False), asyncio.CancelledError),
        *(grpc.aio.InternalError, None, "end"),
    ]


@pytest.mark.parametrize("end", ENDINGS)
async def test_requests_that_were_not_read_are_lost_with_the_client(site: Site, log: Log, end: Any) -> None:
    async def talk(requests: Any, context: Any) -> None:
        log.add("called")
        log.add(await outcome(asyncio.sleep(60)))
        log.add(await outcome(context.read()))
        log.add(await outcome(context.write(Reply())))

    call = (await site.connect(Talk=talk)).Talk(timeout=0.5)
    await call.write(Request())
    await log.until(1)
    await settle()
    await end(call)
    assert await log.until(4) == ["called", asyncio.CancelledError, "end", grpc.aio.InternalError]


async def test_requests_that_arrived_before_the_cancellation_are_read(site: Site, log: Log) -> None:
    async def talk(requests: Any, context: Any) -> None:
        while (request := await context.read()) is not grpc.aio.EOF:
            log.add(request.number)

    call = (await site.connect(Talk=talk)).Talk()
    for number in range(3):
        await call.write(Request(number=number))
    await log.until(3)
    call.cancel()
    await settle()
    assert log.entries == [0, 1, 2]


async def test_a_handler_may_swallow_the_cancellation(site: Site, log: Log) -> None:
    async def talk(requests: Any, context: Any) -> None:
        log.add("called")
        log.add(await outcome(asyncio.sleep(60)))
        log.add(await outcome(asyncio.sleep(0)))

    call = (await site.connect(Talk=talk)).Talk()
    await log.until(1)
    call.cancel()
    assert await log.until(3) == ["called", asyncio.CancelledError, None]
    assert await call.code() is CODE.CANCELLED


async def test_a_second_read_at_once_in_a_handler_sees_the_end(site: Site, log: Log) -> None:
    async def talk(requests: Any, context: Any) -> None:
        reads = [asyncio.ensure_future(outcome(context.read())) for _ in range(2)]
        log.add([await read for read in reads])

    call = (await site.connect(Talk=talk)).Talk()
    await settle()
    await call.write(Request(number=1))
    assert await log.until(1) == [[Request(number=1), "end"]]


async def test_a_read_that_a_handler_gave_up_takes_the_next_request_with_it(site: Site, log: Log) -> None:
    async def talk(requests: Any, context: Any) -> None:
        await give_up_reading(context)
        log.add("given up")
        await settle()
        log.add(await outcome(context.read()))

    call = (await site.connect(Talk=talk)).Talk()
    await log.until(1)
    for number in range(2):
        await call.write(Request(number=number))
    assert await log.until(2) == ["given up", Request(number=1)]


async def test_a_read_after_one_that_was_given_up_sees_the_end_until_a_request_comes(site: Site, log: Log) -> None:
    async def talk(requests: Any, context: Any) -> None:
        await give_up_reading(context)
        log.add(await outcome(context.read()))
        log.add(await outcome(context.read()))

    call = (await site.connect(Talk=talk)).Talk()
    assert await log.until(2) == ["end", "end"]
    assert not call.done()


async def test_a_read_in_a_task_of_its_own_can_be_waited_for_again(site: Site, log: Log) -> None:
    async def talk(requests: Any, context: Any) -> None:
        reading = asyncio.ensure_future(context.read())
        done, _ = await asyncio.wait([reading], timeout=0.1)
        log.add(len(done))
        log.add(await reading)
        log.add(await outcome(context.read()))

    call = (await site.connect(Talk=talk)).Talk()
    await log.until(1)
    for number in range(2):
        await call.write(Request(number=number))
    assert await log.until(3) == [0, Request(number=0), Request(number=1)]


async def give_up_reading(context: Any) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await context.read()
