"""Instances that do what real ones never would, or only when told to: for the gateway's side of a stream alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

import grpc
import grpc.aio

from pdd.catalog.base import Registration, Role
from pdd.engine.sim.vocabulary import sim_card
from pdd.identity import Instance
from pdd.kv.layout import SIM_DIGEST, KvLayout
from pdd.rpc.attach import hello_from
from pdd.rpc.server import serve
from pdd.v1 import decode_pb2, decode_pb2_grpc, identity_pb2, prefill_pb2, prefill_pb2_grpc

PATIENCE_S = 10.0

CommandT = TypeVar("CommandT", decode_pb2.DecodeCommand, prefill_pb2.PrefillCommand)
FrameT = TypeVar("FrameT", decode_pb2.DecodeFrame, prefill_pb2.PrefillFrame)


class Scripted(Generic[CommandT, FrameT]):
    """One stream at a time: reads commands unless it is deaf, says what it is told to say, and ends when it is told to."""

    def __init__(self, frame: type[FrameT], role: Role) -> None:
        self.frame: type[FrameT] = frame
        self.role = role
        self.instance = Instance(f"{role.value}-0", 1)
        self.address = ""
        self.hello: identity_pb2.Hello | None = hello_from(self.instance)  # None: says nothing at all
        self.deaf = False
        self.ends_on_detach = True
        self.commands: list[CommandT] = []
        self._to_say: asyncio.Queue[FrameT | grpc.StatusCode] = asyncio.Queue()
        self._heard = asyncio.Condition()

    @property
    def registration(self) -> Registration:
        card = sim_card(8192)
        layout = KvLayout(card.model_digest, card.tokenizer_digest, 2, 1, 4, 16, (SIM_DIGEST,), 1024, "scripted")
        return Registration(self.instance, self.role, "a", self.address, layout, context_tokens=8192, slots=8)

    def say(self, frame: FrameT) -> None:
        self._to_say.put_nowait(frame)

    def end(self, code: grpc.StatusCode) -> None:
        self._to_say.put_nowait(code)

    async def heard(self, kind: str) -> CommandT:
        """The first command of a kind, once it is here."""
        async with asyncio.timeout(PATIENCE_S), self._heard:
            await self._heard.wait_for(lambda: kind in self.kinds())
        return self.commands[self.kinds().index(kind)]

    def kinds(self) -> list[str | None]:
        return [command.WhichOneof("command") for command in self.commands]

    async def serve(self, context: grpc.aio.ServicerContext[CommandT, FrameT]) -> None:
        if self.hello is not None:
            await context.write(self.frame(hello=self.hello))
        reading = asyncio.ensure_future(self._read(context))
        try:
            while isinstance(said := await self._to_say.get(), self.frame):
                await context.write(said)
        finally:
            reading.cancel()
        if said is not grpc.StatusCode.OK:
            assert isinstance(said, grpc.StatusCode)
            await context.abort(said, "as told")

    async def _read(self, context: grpc.aio.ServicerContext[CommandT, FrameT]) -> None:
        while not self.deaf:
            command = await context.read()
            if command is grpc.aio.EOF:
                return
            async with self._heard:
                self.commands.append(command)
                self._heard.notify_all()
            if command.WhichOneof("command") == "detach" and self.ends_on_detach:
                self.end(grpc.StatusCode.OK)


class ScriptedDecoder(Scripted[decode_pb2.DecodeCommand, decode_pb2.DecodeFrame], decode_pb2_grpc.DecodeServicer):
    def __init__(self, role: Role) -> None:
        super().__init__(decode_pb2.DecodeFrame, role)

    async def Attach(  # type: ignore[override]
        self, request_iterator: object, context: grpc.aio.ServicerContext[decode_pb2.DecodeCommand, decode_pb2.DecodeFrame]
    ) -> None:
        await self.serve(context)

    def add(self, server: grpc.aio.Server) -> list[str]:
        decode_pb2_grpc.add_DecodeServicer_to_server(self, server)
        return ["pdd.v1.Decode"]


class ScriptedPrefill(Scripted[prefill_pb2.PrefillCommand, prefill_pb2.PrefillFrame], prefill_pb2_grpc.PrefillServicer):
    def __init__(self) -> None:
        super().__init__(prefill_pb2.PrefillFrame, Role.PREFILL)

    async def Attach(  # type: ignore[override]
        self, request_iterator: object, context: grpc.aio.ServicerContext[prefill_pb2.PrefillCommand, prefill_pb2.PrefillFrame]
    ) -> None:
        await self.serve(context)

    def add(self, server: grpc.aio.Server) -> list[str]:
        prefill_pb2_grpc.add_PrefillServicer_to_server(self, server)
        return ["pdd.v1.Prefill"]


ScriptedT = TypeVar("ScriptedT", ScriptedDecoder, ScriptedPrefill)


@asynccontextmanager
async def serving(scripted: ScriptedT) -> AsyncIterator[ScriptedT]:
    register: Callable[[grpc.aio.Server], list[str]] = scripted.add
    async with serve("127.0.0.1:0", register) as server:
        scripted.address = server.address
        yield scripted
