"""The gateway's side of attached streams, for tests: sends commands, keeps what it was told, and lets a test wait for it."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar, cast

import grpc.aio

from pdd.identity import Instance, RequestId
from pdd.rpc.attach import PROTOCOL
from pdd.rpc.channel import open_channel
from pdd.sampling import SamplingParams
from pdd.sampling_proto import sampling_to_proto
from pdd.v1 import decode_pb2, decode_pb2_grpc, identity_pb2, prefill_pb2, prefill_pb2_grpc

PATIENCE_S = 10.0
LEASE_MS = 30_000
HELLO = identity_pb2.Hello(protocol=PROTOCOL)

CommandT = TypeVar("CommandT", decode_pb2.DecodeCommand, prefill_pb2.PrefillCommand)
FrameT = TypeVar("FrameT", decode_pb2.DecodeFrame, prefill_pb2.PrefillFrame)


class Stream(ABC, Generic[CommandT, FrameT]):
    def __init__(self, call: grpc.aio.StreamStreamCall[CommandT, FrameT]) -> None:
        self.call: grpc.aio.StreamStreamCall[CommandT, FrameT] = call
        self.frames: list[FrameT] = []
        self.over = False
        self.error: grpc.aio.AioRpcError | None = None  # how it ended; None where in good order
        self._changed = asyncio.Event()
        self._writing = asyncio.Lock()  # gRPC takes one write at a time

    @abstractmethod
    def take(self, frame: FrameT) -> None: ...

    async def send(self, command: CommandT) -> None:
        async with self._writing:
            await self.call.write(command)

    async def read_all(self) -> None:
        try:
            while (message := await self.call.read()) is not grpc.aio.EOF:
                frame = cast(FrameT, message)
                self.frames.append(frame)
                self.take(frame)
                self._changed.set()
        except grpc.aio.AioRpcError as error:
            self.error = error
        self.over = True
        self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return once `condition()` is true after some frame."""
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                self._changed.clear()
                await self._changed.wait()


@dataclass
class Told:
    """What a decoder said of one handle."""

    opening: list[decode_pb2.OpeningEvent] = field(default_factory=list)
    tokens: list[tuple[int, int]] = field(default_factory=list)  # (output index, token)
    closing: list[decode_pb2.ClosingEvent] = field(default_factory=list)

    @property
    def ids(self) -> list[int]:
        return [token for _, token in self.tokens]

    @property
    def kv_ready(self) -> bool:
        return any(event.HasField("kv_ready") for event in self.opening)

    @property
    def extended_to(self) -> list[int]:
        return [event.extended.next_index for event in self.opening if event.HasField("extended")]

    @property
    def agreement(self) -> tuple[int, int]:
        """Ids that were scored in all extends, and those that were agreed with."""
        extended = [event.extended for event in self.opening if event.HasField("extended")]
        return sum(event.scored_tokens for event in extended), sum(event.agreed_tokens for event in extended)

    @property
    def ended(self) -> str | None:
        """The last closing event's kind."""
        return self.closing[-1].WhichOneof("event") if self.closing else None

    @property
    def error(self) -> decode_pb2.HandleError:
        assert self.ended == "error"
        return self.closing[-1].error


class DecodeStream(Stream[decode_pb2.DecodeCommand, decode_pb2.DecodeFrame]):
    def __init__(self, call: grpc.aio.StreamStreamCall[decode_pb2.DecodeCommand, decode_pb2.DecodeFrame]) -> None:
        super().__init__(call)
        self.told: defaultdict[int, Told] = defaultdict(Told)

    @property
    def load(self) -> decode_pb2.DecodeLoad:
        """As the last frame has it."""
        return self.frames[-1].load

    @property
    def idle(self) -> bool:
        return (self.load.running, self.load.waiting, self.load.kv_used) == (0, 0, 0)

    def take(self, frame: decode_pb2.DecodeFrame) -> None:
        for opening in frame.opening:
            self.told[opening.handle].opening.append(opening)
        for handle, index, token in zip(frame.handle, frame.index, frame.token, strict=True):
            self.told[handle].tokens.append((index, token))
        for closing in frame.closing:
            self.told[closing.handle].closing.append(closing)

    async def admit(
        self,
        handle: int,
        request: RequestId,
        prompt: Sequence[int],
        sampling: SamplingParams,
        *,
        decode_on_commit: bool = False,
        lease_ms: int = LEASE_MS,
    ) -> None:
        admit = decode_pb2.Admit(
            handle=handle,
            request=request.to_proto(),
            prompt_ids=prompt,
            sampling=sampling_to_proto(sampling),
            lease_ms=lease_ms,
            decode_on_commit=decode_on_commit,
        )
        await self.send(decode_pb2.DecodeCommand(admit=admit))

    async def extend(
        self, handle: int, first_index: int, ids: Sequence[int], then_decode: bool = False, *, score: bool = False
    ) -> None:
        extend = decode_pb2.Extend(handle=handle, first_index=first_index, ids=ids, then_decode=then_decode, score=score)
        await self.send(decode_pb2.DecodeCommand(extend=extend))

    async def stop(self, handle: int) -> None:
        await self.send(decode_pb2.DecodeCommand(stop=decode_pb2.Stop(handle=handle)))

    async def abort(self, handle: int) -> None:
        await self.send(decode_pb2.DecodeCommand(abort=decode_pb2.Abort(handle=handle, reason="test")))

    async def until_closed(self, handle: int) -> Told:
        told = self.told[handle]
        await self.until(lambda: bool(told.closing))
        return told


class PrefillStream(Stream[prefill_pb2.PrefillCommand, prefill_pb2.PrefillFrame]):
    def __init__(self, call: grpc.aio.StreamStreamCall[prefill_pb2.PrefillCommand, prefill_pb2.PrefillFrame]) -> None:
        super().__init__(call)
        self.told: defaultdict[int, list[prefill_pb2.PrefillEvent]] = defaultdict(list)

    def take(self, frame: prefill_pb2.PrefillFrame) -> None:
        for event in frame.events:
            self.told[event.handle].append(event)

    async def start(
        self,
        handle: int,
        request: RequestId,
        prompt: Sequence[int],
        sampling: SamplingParams,
        targets: Sequence[tuple[Instance, str]],
        *,
        lease_ms: int = LEASE_MS,
    ) -> None:
        start = prefill_pb2.StartPrefill(
            handle=handle,
            request=request.to_proto(),
            prompt_ids=prompt,
            sampling=sampling_to_proto(sampling),
            targets=[prefill_pb2.Target(instance=instance.to_proto(), kv_address=address) for instance, address in targets],
            lease_ms=lease_ms,
        )
        await self.send(prefill_pb2.PrefillCommand(start=start))

    async def abort(self, handle: int) -> None:
        await self.send(prefill_pb2.PrefillCommand(abort=prefill_pb2.AbortPrefill(handle=handle, reason="test")))

    def kinds(self, handle: int) -> list[str]:
        return [str(event.WhichOneof("event")) for event in self.told[handle]]

    async def until_told(self, handle: int, kind: str) -> prefill_pb2.PrefillEvent:
        await self.until(lambda: kind in self.kinds(handle))
        return next(event for event in self.told[handle] if event.WhichOneof("event") == kind)

    async def until_released(self, handle: int) -> list[str]:
        """All kinds of events that the handle heard, in order."""
        await self.until_told(handle, "released")
        return self.kinds(handle)


StreamT = TypeVar("StreamT", DecodeStream, PrefillStream)


@asynccontextmanager
async def attached_decoder(address: str) -> AsyncIterator[DecodeStream]:
    async with open_channel(address) as channel:
        stream = DecodeStream(decode_pb2_grpc.DecodeStub(channel).Attach())
        await stream.call.write(decode_pb2.DecodeCommand(hello=HELLO))
        async with _reading(stream):
            yield stream


@asynccontextmanager
async def attached_prefill(address: str) -> AsyncIterator[PrefillStream]:
    async with open_channel(address) as channel:
        stream = PrefillStream(prefill_pb2_grpc.PrefillStub(channel).Attach())
        await stream.call.write(prefill_pb2.PrefillCommand(hello=HELLO))
        async with _reading(stream):
            yield stream


@asynccontextmanager
async def _reading(stream: StreamT) -> AsyncIterator[None]:
    reading = asyncio.create_task(stream.read_all())
    try:
        await stream.until(lambda: bool(stream.frames) or stream.over)
        yield
    finally:
        stream.call.cancel()
        reading.cancel()
        await asyncio.wait([reading])
