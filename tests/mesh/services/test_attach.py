"""The serving side of an attached stream over real gRPC, with a session that only counts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import grpc.aio
import pytest
from structlog.testing import capture_logs

from pdd.identity import Instance
from pdd.rpc.attach import Attachment, StreamEnd, hello_from, serve_attached
from pdd.rpc.channel import open_channel
from pdd.rpc.server import serve
from pdd.v1 import decode_pb2, decode_pb2_grpc
from tests.eventually import eventually
from tests.mesh.services.gateways import HELLO, DecodeStream

BIG = 20_000  # tokens of a frame: a few hundred such frames fill every buffer between the two sides


class CountingSession:
    def __init__(self) -> None:
        self.attachment = Attachment()
        self.accepted: list[decode_pb2.DecodeCommand] = []
        self.due = 0
        self.taken = 0
        self.closes = 0

    def accept(self, command: decode_pb2.DecodeCommand) -> None:
        self.accepted.append(command)

    def take(self) -> decode_pb2.DecodeFrame | None:
        if self.taken == self.due:
            return None
        self.taken += 1
        self.attachment.wake()
        return decode_pb2.DecodeFrame(step=self.taken, handle=[1] * BIG, index=[1] * BIG, token=[1] * BIG)

    def close(self) -> None:
        self.closes += 1


class Servicer(decode_pb2_grpc.DecodeServicer):
    def __init__(self) -> None:
        self.session = CountingSession()
        self.over = False

    async def Attach(  # type: ignore[override]
        self, request_iterator: object, context: grpc.aio.ServicerContext[decode_pb2.DecodeCommand, decode_pb2.DecodeFrame]
    ) -> None:
        try:
            await serve_attached(context, self.session, decode_pb2.DecodeFrame(hello=hello_from(Instance("main-0", 1))))
        finally:
            self.over = True


@asynccontextmanager
async def attached(servicer: Servicer) -> AsyncIterator[DecodeStream]:
    def register(server: grpc.aio.Server) -> Sequence[str]:
        decode_pb2_grpc.add_DecodeServicer_to_server(servicer, server)
        return ()

    async with serve("127.0.0.1:0", register) as server, open_channel(server.address) as channel:
        stream = DecodeStream(decode_pb2_grpc.DecodeStub(channel).Attach())
        await stream.call.write(decode_pb2.DecodeCommand(hello=HELLO))
        yield stream


@pytest.fixture
def servicer() -> Servicer:
    return Servicer()


async def until_stuck(session: CountingSession) -> None:
    """Give more than a peer that does not read can be sent, and wait until no more of it leaves."""
    session.due = 10_000
    session.attachment.wake()
    seen = -1

    def stuck() -> bool:
        nonlocal seen
        before, seen = seen, session.taken
        return before == seen > 1

    await eventually(stuck)
    assert session.taken < session.due


async def test_frames_wait_for_a_peer_that_does_not_read_and_commands_do_not(servicer: Servicer) -> None:
    async with attached(servicer) as stream:
        await stream.call.read()
        await until_stuck(servicer.session)
        await stream.call.write(decode_pb2.DecodeCommand(stop=decode_pb2.Stop(handle=1)))
        await eventually(lambda: len(servicer.session.accepted) == 1)


async def test_a_peer_that_does_not_read_is_detached_and_told_why_when_it_reads_again(servicer: Servicer) -> None:
    async with attached(servicer) as stream:
        await stream.call.read()
        await until_stuck(servicer.session)
        servicer.session.attachment.end(StreamEnd(grpc.StatusCode.RESOURCE_EXHAUSTED, "too slow"))
        await eventually(lambda: servicer.session.closes == 1)
        await stream.read_all()
        assert stream.error is not None
        assert (stream.error.code(), stream.error.details()) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "too slow")


async def test_a_peer_that_leaves_under_a_blocked_write_ends_the_session(servicer: Servicer) -> None:
    async with attached(servicer) as stream:
        await stream.call.read()
        await until_stuck(servicer.session)
        stream.call.cancel()
        await eventually(lambda: servicer.over)
        assert servicer.session.closes == 1


async def test_a_command_that_cannot_be_decoded_is_refused_by_name_and_logged_once(servicer: Servicer) -> None:
    def register(server: grpc.aio.Server) -> Sequence[str]:
        decode_pb2_grpc.add_DecodeServicer_to_server(servicer, server)
        return ()

    with capture_logs() as logs:
        async with serve("127.0.0.1:0", register) as server, open_channel(server.address) as channel:
            call: grpc.aio.StreamStreamCall[bytes, bytes] = channel.stream_stream("/pdd.v1.Decode/Attach")()
            await call.write(decode_pb2.DecodeCommand(hello=HELLO).SerializeToString())
            await call.read()
            await call.write(b"\xff\xff")
            assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert "a command is not the message" in await call.details()
            await eventually(lambda: servicer.over)
    assert servicer.session.closes == 1
    assert [entry["log_level"] for entry in logs if "decoded" in entry["event"]] == ["warning"]


async def test_the_first_reason_to_end_is_the_one_told(servicer: Servicer) -> None:
    async with attached(servicer) as stream:
        await stream.call.read()
        servicer.session.attachment.end(StreamEnd(grpc.StatusCode.UNAVAILABLE, "first"))
        servicer.session.attachment.end(StreamEnd(grpc.StatusCode.INTERNAL, "second"))
        await stream.read_all()
        assert stream.error is not None
        assert stream.error.details() == "first"
        assert servicer.session.closes == 1
