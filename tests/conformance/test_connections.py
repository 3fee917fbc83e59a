import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.conformance.echo import Reply, Request, Stub
from tests.conformance.stacks import SOON_S, Log, Site, code_of, outcome, settle

CODE = grpc.StatusCode
STATE = grpc.ChannelConnectivity


async def get(request: Any, context: Any) -> Any:
    return Reply(number=request.number)


async def echo(requests: Any, context: Any) -> None:
    while (request := await context.read()) is not grpc.aio.EOF:
        await context.write(Reply(number=request.number))


# Connecting.


async def test_a_call_to_nobody_is_unavailable(site: Site) -> None:
    stub = site.stub(site.stack.nowhere)
    assert await code_of(stub.Get(Request())) is CODE.UNAVAILABLE
    call = stub.Talk()
    assert await code_of(call.write(Request())) is CODE.UNAVAILABLE
    assert await code_of(call.read()) is CODE.UNAVAILABLE
    assert await code_of(stub.Talk().wait_for_connection()) is CODE.UNAVAILABLE


async def test_a_call_that_waits_for_ready_waits_for_its_deadline(site: Site) -> None:
    stub = site.stub(site.stack.nowhere)
    assert await code_of(stub.Get(Request(), timeout=0.5, wait_for_ready=True)) is CODE.DEADLINE_EXCEEDED


async def test_a_call_that_waits_for_ready_finds_a_server_that_comes_later(site: Site) -> None:
    gone = await site.serve(Get=get)
    await gone.server.stop(None)
    call = site.stub(gone.address).Get(Request(number=1), timeout=SOON_S, wait_for_ready=True)
    await settle()
    await site.serve(gone.address, Get=get)
    assert (await call).number == 1


async def test_a_channel_becomes_ready_when_asked_to(site: Site) -> None:
    channel = site.channel((await site.serve(Get=get)).address)
    assert channel.get_state() is STATE.IDLE
    changing = asyncio.ensure_future(channel.wait_for_state_change(STATE.IDLE))
    await channel.channel_ready()
    await changing
    assert channel.get_state() is STATE.READY


async def test_channels_to_one_server_have_connections_of_their_own(site: Site, log: Log) -> None:
    async def peer(request: Any, context: Any) -> Any:
        log.add(context.peer())
        return Reply()

    served = await site.serve(Get=peer)
    one, other = site.stub(served.address), site.stub(served.address)
    for stub in (one, one, other):
        await stub.Get(Request())
    assert log.entries[0] == log.entries[1] != log.entries[2]


async def test_an_address_can_be_taken_once(site: Site) -> None:
    served = await site.serve()
    with pytest.raises(RuntimeError, match="Failed to bind"):
        site.stack.new_server().add_insecure_port(served.address)


# Closing a channel.


async def test_leaving_a_channel_cancels_its_calls(site: Site, log: Log) -> None:
    async def talk(requests: Any, context: Any) -> None:
        log.add("called")
        log.add(await outcome(context.read()))
        log.add(await outcome(context.read()))

    address = (await site.serve(Talk=talk)).address
    async with site.channel(address) as channel:
        call = Stub(channel).Talk()
        await log.until(1)
    assert await outcome(call.read()) is asyncio.CancelledError
    assert call.cancelled()
    assert await log.until(3) == ["called", "end", asyncio.CancelledError]


async def test_a_closed_channel_takes_no_calls(site: Site) -> None:
    channel = site.channel((await site.serve(Get=get)).address)
    stub = Stub(channel)
    await channel.close()
    with pytest.raises(grpc.aio.UsageError, match="Channel is closed"):
        stub.Get(Request())
    assert channel.get_state() is STATE.SHUTDOWN


async def test_a_channel_can_be_closed_with_time_for_its_calls(site: Site) -> None:
    channel = site.channel((await site.serve(Talk=echo)).address)
    call = Stub(channel).Talk()
    await call.write(Request(number=1))
    await call.read()
    closing = asyncio.ensure_future(channel.close(0.5))
    await asyncio.sleep(0)
    await call.write(Request(number=2))
    assert (await call.read()).number == 2
    await closing
    assert await outcome(call.read()) is asyncio.CancelledError


# Stopping a server.


async def test_a_server_that_stops_ends_its_calls(site: Site, log: Log) -> None:
    async def talk(requests: Any, context: Any) -> None:
        await context.write(Reply(number=1))
        log.add(await outcome(context.read()))
        log.add(await outcome(context.read()))
        log.add(await outcome(context.write(Reply())))

    served = await site.serve(Talk=talk)
    call = site.stub(served.address).Talk()
    await call.read()
    await settle()
    await served.server.stop(None)
    assert await outcome(call.read()) == (CODE.UNAVAILABLE, "Cancelling all calls")
    seen = await log.until(3)
    assert seen[:2] == ["end", asyncio.CancelledError]
    assert seen[2] in (grpc.aio.BaseError, grpc.aio.InternalError)  # the first where the server has stopped by then


async def test_a_server_that_stops_cancels_a_write_that_waits(site: Site, log: Log) -> None:
    async def watch(request: Any, context: Any) -> None:
        while (what := await outcome(context.write(Reply(payload=bytes(1 << 20))))) is None:
            pass
        log.add(what)

    served = await site.serve(Watch=watch)
    call = site.stub(served.address).Watch(Request())
    await call.read()
    await settle()
    await served.server.stop(None)
    assert await log.until(1) == [asyncio.CancelledError]


async def test_responses_before_a_stop_survive_a_late_reader(site: Site) -> None:
    async def watch(request: Any, context: Any) -> None:
        await context.write(Reply(number=1))
        await asyncio.sleep(60)

    served = await site.serve(Watch=watch)
    call = site.stub(served.address).Watch(Request())
    await settle()
    await served.server.stop(None)
    await settle()
    assert not call.done()
    assert (await call.read()).number == 1
    assert await outcome(call.read()) == (CODE.UNAVAILABLE, "Cancelling all calls")


async def test_a_server_can_be_stopped_with_time_for_its_calls(site: Site) -> None:
    served = await site.serve(Talk=echo)
    stub = site.stub(served.address)
    call = stub.Talk()
    await call.write(Request(number=1))
    await call.read()
    stopping = asyncio.ensure_future(served.server.stop(SOON_S))
    await settle()
    await call.write(Request(number=2))
    assert (await call.read()).number == 2
    assert await code_of(stub.Talk().read()) is CODE.UNAVAILABLE
    await call.done_writing()
    assert await outcome(call.read()) == "end"
    await stopping  # long before its time is over


async def test_calls_that_take_longer_than_a_stop_are_cancelled(site: Site) -> None:
    served = await site.serve(Talk=echo)
    channel = site.channel(served.address)
    call = Stub(channel).Talk()
    await call.write(Request(number=1))
    await call.read()
    await served.server.stop(0.2)
    assert await outcome(call.read()) == (CODE.UNAVAILABLE, "Cancelling all calls")
    assert channel.get_state() is STATE.IDLE
    assert not await served.server.wait_for_termination(SOON_S)


async def test_waiting_for_a_server_to_stop_can_take_too_long(site: Site) -> None:
    served = await site.serve()
    assert await served.server.wait_for_termination(0.05)


async def test_a_channel_finds_a_restarted_server(site: Site) -> None:
    served = await site.serve(Get=get)
    stub = site.stub(served.address)
    assert (await stub.Get(Request(number=1))).number == 1
    await served.server.stop(None)
    await settle()
    await site.serve(served.address, Get=get)
    assert (await stub.Get(Request(number=2), wait_for_ready=True, timeout=SOON_S)).number == 2


async def test_a_call_right_after_a_failed_connection_fails_without_a_new_one(site: Site) -> None:
    served = await site.serve(Get=get)
    stub = site.stub(served.address)
    await served.server.stop(None)
    assert await code_of(stub.Get(Request())) is CODE.UNAVAILABLE
    await site.serve(served.address, Get=get)
    assert await code_of(stub.Get(Request())) is CODE.UNAVAILABLE
    assert (await stub.Get(Request(number=2), wait_for_ready=True, timeout=SOON_S)).number == 2
