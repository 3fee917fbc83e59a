"""The gateway's end of one stream, against decoders that behave and decoders that do not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import grpc
import pytest

from gateway.generation import GenerationSpec
from gateway.handoff.actions import Extend
from gateway.handoff.events import HandoffEvent, KvReady, Lost
from gateway.mesh.decode_link import DecodeLink
from gateway.mesh.link import LinkLost
from gateway.mesh.wiring import Wiring
from gateway.mode import DecoderLoad
from pdd.catalog.base import Role
from pdd.identity import Instance, RequestId
from pdd.rpc.attach import PROTOCOL
from pdd.rpc.channel import open_channel
from pdd.v1 import decode_pb2, identity_pb2
from tests.eventually import eventually
from tests.mesh.gateway.asking import GATEWAY, Observed, mesh_settings, spec
from tests.mesh.gateway.scripted import ScriptedDecoder, serving

LONG = spec(prompt_tokens=200_000)  # some 400 kB as a command: more than a stream's window takes unread
REQUEST = RequestId(GATEWAY.incarnation, 1)


@pytest.fixture
async def decoder() -> AsyncIterator[ScriptedDecoder]:
    async with serving(ScriptedDecoder(Role.MAIN)) as running:
        yield running


class Attached:
    """A link that runs, and what came over it."""

    def __init__(self, decoder: ScriptedDecoder, **settings: float) -> None:
        self.observed = Observed()
        self.loads: list[DecoderLoad] = []
        self.heard: list[HandoffEvent] = []
        self.link = DecodeLink(
            decoder.registration, Wiring(GATEWAY, mesh_settings(**settings), self.observed, open_channel), self._take_load
        )
        self.on_load: Callable[[], object] = lambda: None
        self.up = asyncio.Event()
        self.running = asyncio.ensure_future(self.link.run(self.up.set))

    def admit(self, asked: GenerationSpec) -> int:
        handle = self.link.open(self.hear)
        self.link.admit(handle, REQUEST, asked)
        return handle

    def _take_load(self, load: DecoderLoad) -> None:
        self.loads.append(load)
        self.on_load()

    def hear(self, events: Sequence[HandoffEvent]) -> None:
        self.heard.extend(events)

    async def lost(self) -> str:
        """Why the stream ended."""
        async with asyncio.timeout(10):
            with pytest.raises(LinkLost) as raised:
                await self.running
        return str(raised.value)


@asynccontextmanager
async def attached(decoder: ScriptedDecoder, **settings: float) -> AsyncIterator[Attached]:
    stream = Attached(decoder, **settings)
    async with asyncio.timeout(10):
        await stream.up.wait()
    try:
        yield stream
    finally:
        decoder.end(grpc.StatusCode.OK)
        stream.running.cancel()
        await asyncio.wait([stream.running])


@pytest.mark.parametrize(
    ("hello", "why"),
    [
        (identity_pb2.Hello(protocol="pdd.v9"), "speaks 'pdd.v9' instead of 'pdd.v1'"),
        (None, r"no Hello from 127\.0\.0\.1:\d+ in 0.3 s"),
        (
            identity_pb2.Hello(**{"from": Instance("main-0", 2).to_proto()}, protocol=PROTOCOL),
            "is main-0@0000000000000002, not main-0@0000000000000001 as the registry has it",
        ),
    ],
)
async def test_a_peer_must_say_who_it_is(decoder: ScriptedDecoder, hello: identity_pb2.Hello | None, why: str) -> None:
    decoder.hello = hello
    stream = Attached(decoder, greeting_timeout_s=0.3)
    with pytest.raises(LinkLost, match=why):
        await stream.running
    assert not stream.up.is_set()


async def test_a_peer_that_is_not_there(decoder: ScriptedDecoder) -> None:
    decoder.address = "127.0.0.1:1"
    assert "UNAVAILABLE" in await Attached(decoder).lost()


async def test_commands_arrive_in_order_with_what_they_mean(decoder: ScriptedDecoder) -> None:
    async with attached(decoder, lease_s=9.5) as stream:
        handle = stream.admit(spec(prompt_tokens=3))
        stream.link.extend(handle, Extend(0, (5, 6), then_decode=True))
        stream.link.throttle(handle, 0.02)
        stream.link.stop(handle)
        stream.link.abort(handle, "why not")
        abort = (await decoder.heard("abort")).abort
        assert decoder.kinds() == ["hello", "admit", "extend", "throttle", "stop", "abort"]
        hello, admit = decoder.commands[0].hello, decoder.commands[1].admit
        extend, throttle = decoder.commands[2].extend, decoder.commands[3].throttle
        assert (Instance.from_proto(getattr(hello, "from")), hello.protocol) == (GATEWAY, PROTOCOL)
        assert (admit.handle, RequestId.from_proto(admit.request), len(admit.prompt_ids)) == (handle, REQUEST, 3)
        assert (admit.lease_ms, admit.decode_on_commit) == (9500, False)
        assert (extend.first_index, list(extend.ids), extend.then_decode) == (0, [5, 6], True)
        assert throttle.min_interval_us == 20_000
        assert (abort.handle, abort.reason) == (handle, "why not")


async def test_a_relay_is_told_to_decode_on_commit() -> None:
    async with serving(ScriptedDecoder(Role.RELAY)) as relay, attached(relay) as stream:
        stream.admit(spec())
        assert (await relay.heard("admit")).admit.decode_on_commit


async def test_frames_reach_the_request_and_strangers_are_counted(decoder: ScriptedDecoder) -> None:
    async with attached(decoder) as stream:
        handle = stream.admit(spec())
        ready = [decode_pb2.OpeningEvent(handle=number, kv_ready=decode_pb2.KvReady()) for number in (handle, handle + 1)]
        load = decode_pb2.DecodeLoad(running=3, waiting=1, slots=8)
        decoder.say(decode_pb2.DecodeFrame(opening=ready, load=load))
        await eventually(lambda: bool(stream.heard))
        assert stream.heard == [KvReady(Role.MAIN)]
        assert stream.observed.dropped == {"main-0": 1}
        assert stream.loads == [DecoderLoad(3, 1, 8, 0.0)]
        assert stream.link.load(asyncio.get_running_loop().time()) == 0.5
        assert stream.link.in_flight == 1


async def test_an_old_report_of_load_gives_way_to_the_registrys(decoder: ScriptedDecoder) -> None:
    async with attached(decoder) as stream:
        stream.link.registration = replace(stream.link.registration, load=0.25)
        assert stream.link.load(asyncio.get_running_loop().time()) == 0.25


@pytest.mark.parametrize(
    "frame",
    [
        decode_pb2.DecodeFrame(handle=[1], index=[], token=[5]),
        decode_pb2.DecodeFrame(opening=[decode_pb2.OpeningEvent(handle=1)]),
        decode_pb2.DecodeFrame(load=decode_pb2.DecodeLoad(running=1)),
    ],
)
async def test_a_malformed_frame_ends_the_stream(decoder: ScriptedDecoder, frame: decode_pb2.DecodeFrame) -> None:
    async with attached(decoder) as stream:
        stream.admit(spec())
        decoder.say(frame)
        why = await stream.lost()
        assert why.startswith("the instance sent a malformed frame")
        assert stream.heard == [Lost(Role.MAIN, why)]


@pytest.mark.parametrize(
    ("code", "why"),
    [(grpc.StatusCode.OK, "the instance ended the stream"), (grpc.StatusCode.UNAVAILABLE, "UNAVAILABLE: as told")],
)
async def test_requests_hear_why_a_stream_has_ended(decoder: ScriptedDecoder, code: grpc.StatusCode, why: str) -> None:
    async with attached(decoder) as stream:
        stream.admit(spec())
        decoder.end(code)
        assert await stream.lost() == why
        assert stream.heard == [Lost(Role.MAIN, why)]
        assert not stream.link.up
        stream.admit(spec())  # too late, and harmless


async def test_a_peer_that_does_not_read_is_given_up(decoder: ScriptedDecoder) -> None:
    decoder.deaf = True
    async with attached(decoder, write_timeout_s=0.3) as stream:
        for _ in range(20):
            stream.admit(LONG)
        assert await stream.lost() == "a command was not taken within 0.3 s"
        assert [type(event) for event in stream.heard] == [Lost] * 20


async def test_what_waits_for_a_peer_is_bounded(decoder: ScriptedDecoder) -> None:
    decoder.deaf = True
    async with attached(decoder, outbox_commands=16) as stream:
        for _ in range(20):  # more than can leave, in one go
            stream.admit(LONG)
        assert (await stream.lost()).endswith("commands wait for the instance to read them")


async def test_an_abort_that_is_not_answered_is_noticed(decoder: ScriptedDecoder) -> None:
    async with attached(decoder, closing_timeout_s=0.05) as stream:
        stream.link.abort(stream.admit(spec()), "gone")
        await eventually(lambda: stream.observed.unanswered == ["main-0"])
        assert stream.link.in_flight == 0


async def test_detaching_sends_what_waits_and_ends_in_good_order(decoder: ScriptedDecoder) -> None:
    async with attached(decoder) as stream:
        stream.admit(spec())
        stream.link.detach()
        stream.link.detach()
        async with asyncio.timeout(10):
            await stream.running
        assert decoder.kinds() == ["hello", "admit", "detach"]
        assert stream.heard == [Lost(Role.MAIN, "the gateway closed the stream")]


async def test_detaching_from_a_peer_that_stays_ends_by_force(decoder: ScriptedDecoder) -> None:
    decoder.ends_on_detach = False
    async with attached(decoder, closing_timeout_s=0.05) as stream:
        stream.link.detach()
        async with asyncio.timeout(10):
            await stream.running


async def test_a_link_that_is_cancelled_while_it_breaks_is_cancelled(decoder: ScriptedDecoder) -> None:
    async with attached(decoder) as stream:
        stream.on_load = stream.running.cancel
        # The load is heard, and then the rest of the frame makes no sense.
        decoder.say(decode_pb2.DecodeFrame(load=decode_pb2.DecodeLoad(slots=8), opening=[decode_pb2.OpeningEvent(handle=1)]))
        async with asyncio.timeout(10):
            await asyncio.wait([stream.running])
        assert stream.running.cancelled()
