import asyncio
import gc
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.conformance.echo import Reply, Request, numbers
from tests.conformance.stacks import Log, Site, collect, outcome, settle

CODE = grpc.StatusCode


async def three(request: Any, context: Any) -> None:
    for number in range(3):
        await context.write(Reply(number=number))


async def three_then_abort(request: Any, context: Any) -> None:
    await three(request, context)
    await context.abort(CODE.ABORTED, "gone")


async def one_then_hang(request: Any, context: Any) -> None:
    await context.write(Reply(number=1))
    await asyncio.sleep(60)


async def test_responses_come_in_order(site: Site) -> None:
    call = (await site.connect(Watch=three)).Watch(Request())
    assert numbers(await collect(call)) == [0, 1, 2]
    assert await call.code() is CODE.OK


async def test_an_async_generator_can_be_a_handler(site: Site) -> None:
    async def watch(request: Any, context: Any) -> Any:
        for number in range(3):
            yield Reply(number=number)

    assert numbers(await collect((await site.connect(Watch=watch)).Watch(Request()))) == [0, 1, 2]


async def test_reading_past_the_end_gives_the_end_again(site: Site) -> None:
    call = (await site.connect(Watch=three)).Watch(Request())
    assert numbers([await call.read() for _ in range(3)]) == [0, 1, 2]
    assert [await outcome(call.read()) for _ in range(2)] == ["end", "end"]


async def test_iterating_and_reading_do_not_mix(site: Site) -> None:
    call = (await site.connect(Watch=one_then_hang)).Watch(Request())
    await call.read()
    with pytest.raises(grpc.aio.UsageError, match="may not be mixed"):
        aiter(call)


async def test_initial_metadata_comes_with_the_first_response(site: Site) -> None:
    call = (await site.connect(Watch=one_then_hang)).Watch(Request())
    assert tuple(await call.initial_metadata()) == ()
    assert not call.done()


async def test_initial_metadata_cannot_follow_a_response(site: Site, log: Log) -> None:
    async def watch(request: Any, context: Any) -> None:
        await context.write(Reply())
        log.add(await outcome(context.send_initial_metadata(())))

    await collect((await site.connect(Watch=watch)).Watch(Request()))
    assert log.entries == [grpc.aio.UsageError]


# The server's word counts only once its messages are read.


async def test_a_late_reader_gets_every_response(site: Site) -> None:
    call = (await site.connect(Watch=three)).Watch(Request())
    await settle()
    assert not call.done()
    assert numbers(await collect(call)) == [0, 1, 2]


async def test_a_late_reader_in_steps_gets_every_response(site: Site) -> None:
    call = (await site.connect(Watch=three)).Watch(Request())
    await settle()
    got = [await outcome(call.read()) for _ in range(5)]
    assert (numbers(got[:3]), got[3:]) == ([0, 1, 2], ["end", "end"])


async def test_responses_before_an_abort_are_read_first(site: Site) -> None:
    call = (await site.connect(Watch=three_then_abort)).Watch(Request())
    got = [await outcome(call.read()) for _ in range(5)]
    assert (numbers(got[:3]), got[3:]) == ([0, 1, 2], [(CODE.ABORTED, "gone")] * 2)


async def test_responses_before_an_abort_survive_a_late_reader(site: Site) -> None:
    call = (await site.connect(Watch=three_then_abort)).Watch(Request())
    await settle()
    assert not call.done()
    got = [await outcome(call.read()) for _ in range(4)]
    assert (numbers(got[:3]), got[3]) == ([0, 1, 2], (CODE.ABORTED, "gone"))


async def test_a_code_that_a_handler_sets_ends_the_stream(site: Site) -> None:
    async def watch(request: Any, context: Any) -> None:
        await context.write(Reply(number=1))
        context.set_code(CODE.NOT_FOUND)
        context.set_details("no such thing")

    call = (await site.connect(Watch=watch)).Watch(Request())
    assert (await call.read()).number == 1
    assert await outcome(call.read()) == (CODE.NOT_FOUND, "no such thing")


async def test_an_exception_in_a_handler_ends_the_stream(site: Site) -> None:
    async def watch(request: Any, context: Any) -> None:
        await context.write(Reply(number=1))
        raise ValueError("boom")

    call = (await site.connect(Watch=watch)).Watch(Request())
    assert (await call.read()).number == 1
    assert await outcome(call.read()) == (CODE.UNKNOWN, "Unexpected <class 'ValueError'>: boom")


# An end that is not the server's word counts at once.


async def test_what_was_not_read_by_the_deadline_is_lost(site: Site) -> None:
    call = (await site.connect(Watch=one_then_hang)).Watch(Request(), timeout=0.3)
    assert await call.code() is CODE.DEADLINE_EXCEEDED
    assert await outcome(call.read()) == (CODE.DEADLINE_EXCEEDED, "Deadline Exceeded")


async def test_what_was_not_iterated_by_the_deadline_is_lost(site: Site) -> None:
    call = (await site.connect(Watch=one_then_hang)).Watch(Request(), timeout=0.3)
    assert await call.code() is CODE.DEADLINE_EXCEEDED
    assert await outcome(collect(call)) == (CODE.DEADLINE_EXCEEDED, "Deadline Exceeded")


async def test_what_was_not_read_by_the_cancellation_is_lost(site: Site) -> None:
    call = (await site.connect(Watch=one_then_hang)).Watch(Request())
    await settle()
    call.cancel()
    assert [await outcome(call.read()) for _ in range(2)] == [asyncio.CancelledError] * 2


async def test_cancelling_ends_a_read(site: Site) -> None:
    call = (await site.connect(Watch=one_then_hang)).Watch(Request())
    await call.read()
    reading = asyncio.ensure_future(outcome(call.read()))
    await settle()
    call.cancel()
    assert await reading is asyncio.CancelledError


async def test_cancelling_ends_an_iteration(site: Site) -> None:
    call = (await site.connect(Watch=one_then_hang)).Watch(Request())
    iterating = asyncio.ensure_future(outcome(collect(call)))
    await settle()
    call.cancel()
    assert await iterating is asyncio.CancelledError


async def test_cancelling_the_task_that_reads_cancels_the_call(site: Site, log: Log) -> None:
    async def watch(request: Any, context: Any) -> None:
        log.add("called")
        log.add(await outcome(asyncio.sleep(60)))

    call = (await site.connect(Watch=watch)).Watch(Request())
    reading = asyncio.ensure_future(outcome(call.read()))
    await log.until(1)
    reading.cancel()
    assert await reading is asyncio.CancelledError
    assert (call.cancelled(), await call.details()) == (True, "Locally cancelled by application!")
    assert await log.until(2) == ["called", asyncio.CancelledError]


async def test_leaving_an_iteration_does_not_end_the_call(site: Site, log: Log) -> None:
    async def watch(request: Any, context: Any) -> None:
        await context.write(Reply())
        log.add(await outcome(asyncio.sleep(60)))

    call = (await site.connect(Watch=watch)).Watch(Request())
    async for _ in call:
        break
    await settle()
    assert (call.done(), log.entries) == (False, [])
    call.cancel()
    assert await log.until(1) == [asyncio.CancelledError]


async def test_letting_go_of_a_call_does_not_end_it(site: Site, log: Log) -> None:
    async def watch(request: Any, context: Any) -> None:
        await context.write(Reply())
        log.add(await outcome(asyncio.sleep(60)))

    call = (await site.connect(Watch=watch)).Watch(Request())
    await call.read()
    del call
    gc.collect()
    await settle()
    assert log.entries == []


async def test_a_generator_that_waits_sees_the_cancellation(site: Site, log: Log) -> None:
    async def watch(request: Any, context: Any) -> Any:
        yield Reply()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            log.add("cancelled")
            raise
        finally:
            log.add("left")

    call = (await site.connect(Watch=watch)).Watch(Request())
    await call.read()
    await settle()
    call.cancel()
    assert await log.until(2) == ["cancelled", "left"]
