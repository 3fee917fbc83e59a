import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.conformance.echo import Reply, Request
from tests.conformance.stacks import TOO_LARGE, Log, Site, is_too_large, outcome, settle

CODE = grpc.StatusCode


async def test_a_request_is_answered(site: Site) -> None:
    async def get(request: Any, context: Any) -> Any:
        return Reply(number=request.number + 1)

    stub = await site.connect(Get=get)
    assert (await stub.Get(Request(number=1))).number == 2


async def test_a_call_can_be_awaited_twice(site: Site) -> None:
    async def get(request: Any, context: Any) -> Any:
        return Reply(number=1)

    call = (await site.connect(Get=get)).Get(Request())
    assert (await call, await call) == (Reply(number=1), Reply(number=1))


async def test_messages_are_copied_on_the_way(site: Site) -> None:
    async def get(request: Any, context: Any) -> Any:
        request.number = 7
        return Reply(number=request.number)

    request = Request(number=1)
    await (await site.connect(Get=get)).Get(request)
    assert request.number == 1


async def test_a_plain_function_can_be_a_handler(site: Site) -> None:
    def get(request: Any, context: Any) -> Any:
        return Reply(number=1)

    assert (await (await site.connect(Get=get)).Get(Request())).number == 1


async def test_abort_carries_code_details_and_trailing_metadata(site: Site) -> None:
    async def get(request: Any, context: Any) -> Any:
        context.set_trailing_metadata((("key", "value"),))
        await context.abort(CODE.RESOURCE_EXHAUSTED, "full")

    with pytest.raises(grpc.aio.AioRpcError) as error:
        await (await site.connect(Get=get)).Get(Request())
    assert (error.value.code(), error.value.details()) == (CODE.RESOURCE_EXHAUSTED, "full")
    assert tuple(error.value.trailing_metadata()) == (("key", "value"),)


async def test_an_exception_in_a_handler_is_an_unknown_error_that_names_it(site: Site) -> None:
    async def get(request: Any, context: Any) -> Any:
        raise ValueError("boom")

    stub = await site.connect(Get=get)
    assert await outcome(stub.Get(Request())) == (CODE.UNKNOWN, "Unexpected <class 'ValueError'>: boom")


async def test_an_exception_keeps_the_code_that_the_handler_had_set(site: Site) -> None:
    async def get(request: Any, context: Any) -> Any:
        context.set_code(CODE.NOT_FOUND)
        raise ValueError("boom")

    stub = await site.connect(Get=get)
    assert await outcome(stub.Get(Request())) == (CODE.NOT_FOUND, "Unexpected <class 'ValueError'>: boom")


async def test_a_code_that_a_handler_sets_wins_over_its_answer(site: Site) -> None:
    async def get(request: Any, context: Any) -> Any:
        context.set_code(CODE.NOT_FOUND)
        context.set_details("no such thing")
        return Reply()

    assert await outcome((await site.connect(Get=get)).Get(Request())) == (CODE.NOT_FOUND, "no such thing")


async def test_an_answer_that_is_no_message_is_an_unknown_error(site: Site) -> None:
    async def get(request: Any, context: Any) -> Any:
        return None

    with pytest.raises(grpc.aio.AioRpcError, match="TypeError") as error:
        await (await site.connect(Get=get)).Get(Request())
    assert error.value.code() is CODE.UNKNOWN


async def test_a_method_that_a_servicer_lacks_is_unimplemented(site: Site) -> None:
    stub = await site.connect()
    assert await outcome(stub.Get(Request())) == (
        CODE.UNIMPLEMENTED,
        "Unexpected <class 'NotImplementedError'>: Method not implemented!",
    )


async def test_a_method_that_nobody_has_heard_of_is_unimplemented(site: Site) -> None:
    channel: Any = site.channel((await site.serve()).address)
    assert await outcome(channel.unary_unary("/pdd.conformance.Echo/Nothing")(b"")) == (CODE.UNIMPLEMENTED, "Method not found!")


async def test_metadata_goes_both_ways(site: Site, log: Log) -> None:
    async def get(request: Any, context: Any) -> Any:
        log.add({key: value for key, value in context.invocation_metadata() if key != "user-agent"})
        await context.send_initial_metadata((("first", "1"),))
        context.set_trailing_metadata((("last", "2"),))
        return Reply()

    call = (await site.connect(Get=get)).Get(Request(), metadata=(("asked", "0"),))
    assert tuple(await call.initial_metadata()) == (("first", "1"),)
    await call
    assert tuple(await call.trailing_metadata()) == (("last", "2"),)
    assert (await call.code(), await call.details()) == (CODE.OK, "")
    assert log.entries == [{"asked": "0"}]


async def test_initial_metadata_can_be_sent_once(site: Site, log: Log) -> None:
    async def get(request: Any, context: Any) -> Any:
        await context.send_initial_metadata(())
        log.add(await outcome(context.send_initial_metadata(())))
        return Reply()

    await (await site.connect(Get=get)).Get(Request())
    assert log.entries == [grpc.aio.UsageError]


async def test_a_deadline_ends_both_ends(site: Site, log: Log) -> None:
    async def get(request: Any, context: Any) -> Any:
        log.add(await outcome(asyncio.sleep(60)))
        log.add((context.cancelled(), context.done()))
        raise asyncio.CancelledError

    call = (await site.connect(Get=get)).Get(Request(), timeout=0.3)
    assert await outcome(call) == (CODE.DEADLINE_EXCEEDED, "Deadline Exceeded")
    assert await log.until(2) == [asyncio.CancelledError, (False, False)]


async def test_a_handler_knows_what_is_left_of_the_deadline(site: Site, log: Log) -> None:
    async def get(request: Any, context: Any) -> Any:
        log.add(context.time_remaining())
        return Reply()

    stub = await site.connect(Get=get)
    await stub.Get(Request())
    await stub.Get(Request(), timeout=100)
    unbounded, bounded = log.entries
    assert unbounded is None
    assert isinstance(bounded, float)
    assert 50 < bounded < 110  # gRPC rounds it up on the way


async def test_a_handler_that_raises_cancelled_error_leaves_the_client_to_its_deadline(site: Site) -> None:
    async def get(request: Any, context: Any) -> Any:
        raise asyncio.CancelledError

    call = (await site.connect(Get=get)).Get(Request(), timeout=0.5)
    assert await outcome(call) == (CODE.DEADLINE_EXCEEDED, "Deadline Exceeded")


async def test_cancelling_the_call_cancels_the_handler(site: Site, log: Log) -> None:
    async def get(request: Any, context: Any) -> Any:
        log.add("called")
        log.add(await outcome(asyncio.sleep(60)))
        raise asyncio.CancelledError

    call = (await site.connect(Get=get)).Get(Request())
    await log.until(1)
    assert (call.cancel(), call.cancel()) == (True, False)
    assert await outcome(call) is asyncio.CancelledError
    assert call.cancelled()
    assert (await call.code(), await call.details()) == (CODE.CANCELLED, "Locally cancelled by application!")
    assert await log.until(2) == ["called", asyncio.CancelledError]


async def test_cancelling_the_task_that_waits_cancels_the_call(site: Site, log: Log) -> None:
    async def get(request: Any, context: Any) -> Any:
        log.add("called")
        log.add(await outcome(asyncio.sleep(60)))
        raise asyncio.CancelledError

    call = (await site.connect(Get=get)).Get(Request())
    waiting = asyncio.ensure_future(outcome(call))
    await log.until(1)
    waiting.cancel()
    assert await waiting is asyncio.CancelledError
    assert await call.code() is CODE.CANCELLED
    assert await log.until(2) == ["called", asyncio.CancelledError]


async def test_a_handler_can_abort_only_once_and_is_finished_then(site: Site, log: Log) -> None:
    async def get(request: Any, context: Any) -> Any:
        log.add(await outcome(context.abort(CODE.ABORTED, "first")))
        log.add(await outcome(context.abort(CODE.UNKNOWN, "second")))
        log.add(context.done())
        return Reply()

    stub = await site.connect(Get=get)
    assert await outcome(stub.Get(Request())) == (CODE.ABORTED, "first")
    assert await log.until(3) == [grpc.aio.AbortError, grpc.aio.UsageError, True]


async def test_a_message_above_the_limit_ends_the_call(site: Site) -> None:
    async def get(request: Any, context: Any) -> Any:
        return Reply(payload=TOO_LARGE)

    stub = await site.connect(Get=get)
    assert is_too_large(await outcome(stub.Get(Request(payload=TOO_LARGE))), "CLIENT")
    assert is_too_large(await outcome(stub.Get(Request())), "SERVER")


async def test_callbacks_run_when_a_call_is_done(site: Site, log: Log) -> None:
    async def get(request: Any, context: Any) -> Any:
        context.add_done_callback(lambda of: log.add(("handler", of is context, of.done())))
        return Reply()

    call = (await site.connect(Get=get)).Get(Request())
    call.add_done_callback(lambda of: log.add(("caller", of is call, of.done())))
    await call
    await log.until(2)
    call.add_done_callback(lambda of: log.add(("late", of is call, of.done())))
    await settle()
    assert sorted(map(str, log.entries)) == sorted(
        map(str, [("handler", True, True), ("caller", True, True), ("late", True, True)])
    )
