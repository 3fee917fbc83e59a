"""A link that fails under its calls: the WAN emulator's, on loopback, and the one in memory."""

import asyncio
from typing import Any

import grpc
import grpc.aio

from tests.conformance.echo import Reply, Request, numbers
from tests.conformance.stacks import SOON_S, Log, Site, code_of, outcome, settle
from wan.link import LinkSettings, Outage

CODE = grpc.StatusCode
LINK = LinkSettings(rtt_ms=10.0)
RESET = LinkSettings(rtt_ms=10.0, outage=Outage.RESET)
REFUSE = LinkSettings(rtt_ms=10.0, outage=Outage.REFUSE)
BLACK_HOLE = LinkSettings(rtt_ms=10.0, outage=Outage.BLACK_HOLE)


async def echo(requests: Any, context: Any) -> None:
    while (request := await context.read()) is not grpc.aio.EOF:
        await context.write(Reply(number=request.number))


async def connect_across_link(site: Site, **behaviours: Any) -> Any:
    await site.stack.set_link(LINK)
    served = await site.serve(None, **behaviours)
    return site.stub(await site.stack.across_link(served.address))


async def talk_once(call: Any, number: int) -> int:
    await call.write(Request(number=number))
    return int((await call.read()).number)


async def test_a_reset_ends_calls_at_both_ends(site: Site, log: Log) -> None:
    async def talk(requests: Any, context: Any) -> None:
        await context.write(Reply(number=1))
        log.add(await outcome(context.read()))
        log.add(await outcome(context.read()))

    stub = await connect_across_link(site, Talk=talk)
    call = stub.Talk()
    await call.read()
    await settle()
    await site.stack.set_link(RESET)
    assert await code_of(call.read()) is CODE.UNAVAILABLE
    assert await log.until(2) == ["end", asyncio.CancelledError]
    assert await outcome(call.write(Request())) is asyncio.InvalidStateError


async def test_responses_that_were_not_read_by_a_reset_are_lost(site: Site) -> None:
    async def watch(request: Any, context: Any) -> None:
        await context.write(Reply(number=1))
        await asyncio.sleep(60)

    stub = await connect_across_link(site, Watch=watch)
    call = stub.Watch(Request())
    await settle()
    await site.stack.set_link(RESET)
    assert await call.code() is CODE.UNAVAILABLE
    assert await code_of(call.read()) is CODE.UNAVAILABLE


async def test_a_channel_recovers_from_a_reset(site: Site) -> None:
    stub = await connect_across_link(site, Talk=echo)
    assert await talk_once(stub.Talk(), 1) == 1
    await site.stack.set_link(RESET)
    await settle()
    await site.stack.set_link(LINK)
    assert await talk_once(stub.Talk(wait_for_ready=True, timeout=SOON_S), 2) == 2


async def test_a_link_that_refuses_lets_running_calls_go_on(site: Site) -> None:
    stub = await connect_across_link(site, Talk=echo)
    served = await site.serve(Talk=echo)
    address = await site.stack.across_link(served.address)
    call = stub.Talk()
    assert await talk_once(call, 1) == 1
    await site.stack.set_link(REFUSE)
    assert await talk_once(call, 2) == 2
    assert await code_of(site.stub(address).Talk().read()) is CODE.UNAVAILABLE


async def test_a_black_hole_delivers_when_it_ends(site: Site, log: Log) -> None:
    async def talk(requests: Any, context: Any) -> None:
        while (request := await context.read()) is not grpc.aio.EOF:
            log.add(request.number)
            await context.write(Reply(number=request.number))

    stub = await connect_across_link(site, Talk=talk)
    call = stub.Talk()
    assert await talk_once(call, 1) == 1
    await site.stack.set_link(BLACK_HOLE)
    for number in (2, 3):
        await call.write(Request(number=number))
    await settle()
    assert log.entries == [1]
    await site.stack.set_link(LINK)
    assert numbers([await call.read(), await call.read()]) == [2, 3]


async def test_a_black_hole_holds_calls_to_their_deadline_at_both_ends(site: Site, log: Log) -> None:
    async def talk(requests: Any, context: Any) -> None:
        await context.write(Reply())
        log.add(await outcome(context.read()))
        log.add(await outcome(context.read()))

    stub = await connect_across_link(site, Talk=talk)
    call = stub.Talk(timeout=1.0)
    await call.read()
    await site.stack.set_link(BLACK_HOLE)
    assert await code_of(call.read()) is CODE.DEADLINE_EXCEEDED
    assert await log.until(2) == ["end", asyncio.CancelledError]


async def test_a_cancellation_crosses_a_black_hole_when_it_ends(site: Site, log: Log) -> None:
    async def talk(requests: Any, context: Any) -> None:
        await context.write(Reply())
        log.add(await outcome(context.read()))

    stub = await connect_across_link(site, Talk=talk)
    call = stub.Talk()
    await call.read()
    await site.stack.set_link(BLACK_HOLE)
    call.cancel()
    await settle()
    assert log.entries == []
    await site.stack.set_link(LINK)
    assert await log.until(1) == ["end"]
