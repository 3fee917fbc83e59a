"""A decoder, relay or main: one engine, one receiver, one prefix cache, any number of attached gateways.

Made by `services.relay` and `services.main`, whose servicers hand it every Decode stream. Owns the engine's one stream of steps
and hands each event to the session it belongs to. It never waits for a session's peer.
"""

from __future__ import annotations

import asyncio
import itertools
from types import TracebackType
from typing import Self

import grpc
import grpc.aio

from pdd.decode.commands import Rules
from pdd.decode.observer import DecoderObserver, UnobservedDecoder
from pdd.decode.session import Session
from pdd.decode.traces import HandleTraces
from pdd.decode.traffic import Traffic
from pdd.engine.base import Aborted, Engine, EngineFault, Extended, Failed, Finished, Retained, SeqId, StepBatch, Stopped
from pdd.engine.tally import StepTally
from pdd.identity import Instance
from pdd.kv.cache import PrefixCache
from pdd.rpc.attach import StreamEnd, hello_from, serve_attached
from pdd.telemetry import get_logger
from pdd.tracing.tracer import Tracer
from pdd.transfer.receiver import Receiver
from pdd.v1 import decode_pb2

log = get_logger(__name__)

DecodeContext = grpc.aio.ServicerContext[decode_pb2.DecodeCommand, decode_pb2.DecodeFrame]


class Decoder:
    """An async context manager around an entered engine; entered, it reads the engine's steps. An engine that breaks takes the
    body of the context with it."""

    def __init__(
        self,
        engine: Engine,
        receiver: Receiver,
        instance: Instance,
        rules: Rules,
        cache: PrefixCache,
        observer: DecoderObserver | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        """`cache` takes what the engine retains, where the rules say that it does."""
        self.steps = StepTally()
        self.traffic = Traffic()
        self._engine = engine
        self._receiver = receiver
        self._instance = instance
        self._rules = rules
        self._cache = cache
        self._observer = observer or UnobservedDecoder()
        self._tracer = tracer
        self._seqs = itertools.count(1)
        self._routes: dict[SeqId, Session] = {}  # also of sessions that have ended, until the engine has let go
        self._sessions: list[Session] = []
        self._closing = False
        self._tasks = asyncio.TaskGroup()

    async def attach(self, context: DecodeContext) -> None:
        """Serve one gateway's stream to its end."""
        if self._closing:
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"{self._instance} is shutting down")
        traces = None if self._tracer is None else HandleTraces(self._tracer, self._rules.role)
        session = Session(
            self._engine, self._receiver, self._rules, self._cache, self._seqs, self._routes, self._observer, traces
        )
        self._sessions.append(session)
        log.info("gateway attached", peer=context.peer())
        try:
            await serve_attached(context, session, decode_pb2.DecodeFrame(hello=hello_from(self._instance)))
        finally:
            self._sessions.remove(session)
            log.info("gateway detached", peer=context.peer())

    @property
    def attached(self) -> int:
        """Streams of gateways."""
        return len(self._sessions)

    @property
    def parked(self) -> int:
        """Offers of KV that wait for their admission."""
        return self._receiver.parked

    def close(self) -> None:
        """End every stream and take no new one; what they hold is let go of."""
        self._closing = True
        for session in self._sessions:
            session.attachment.end(StreamEnd(grpc.StatusCode.UNAVAILABLE, f"{self._instance} is shutting down"))

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self._pumping = self._tasks.create_task(self._pump(), name="decoder pump")
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
        self._pumping.cancel()
        await self._tasks.__aexit__(kind, error, trace)

    async def _pump(self) -> None:
        async for batch in self._engine.steps():
            self._dispatch(batch)
        raise EngineFault("the engine's steps have ended under the decoder; restart the instance")

    def _dispatch(self, batch: StepBatch) -> None:
        self.steps.note(batch)
        for event in batch.events:
            if isinstance(event, Extended | Retained) and (session := self._routes.get(event.seq)) is not None:
                session.opening(event)
        for out in batch.tokens:
            if (session := self._routes.get(out.seq)) is not None:
                session.token(out)
        for event in batch.events:
            if isinstance(event, Stopped | Finished | Aborted | Failed):
                session = self._routes.pop(event.seq, None)
                if session is not None:
                    session.closed(event)
        for session in self._sessions:
            session.stepped(batch.step)
