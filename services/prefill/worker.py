"""Prefill: one engine, one prefix cache, any number of attached gateways.

Made by the entry point; the servicer hands it every Prefill stream. Owns the engine's one stream of steps and hands each event to
the job it belongs to. It never waits for a gateway or for a target.
"""

from __future__ import annotations

import asyncio
import itertools
from types import TracebackType
from typing import Self

import grpc
import grpc.aio

from pdd.engine.base import Aborted, Engine, EngineFault, Failed, KvBlocks, Prefilled, StepBatch
from pdd.engine.tally import StepTally
from pdd.identity import Instance
from pdd.kv.cache import PrefixCache
from pdd.rpc.attach import StreamEnd, hello_from, serve_attached
from pdd.telemetry import get_logger
from pdd.tracing.tracer import Tracer
from pdd.v1 import prefill_pb2
from services.prefill.links import Links
from services.prefill.observer import PrefillObserver, UnobservedPrefill
from services.prefill.running import Parts
from services.prefill.session import Session
from services.prefill.targets import TargetChannels

log = get_logger(__name__)

PrefillContext = grpc.aio.ServicerContext[prefill_pb2.PrefillCommand, prefill_pb2.PrefillFrame]


LOAD_S = 0.25  # between two looks at the links while the engine has no step to tell


class Worker:
    """An async context manager around an entered engine; entered, it reads the engine's steps. An engine that breaks takes the
    body of the context with it. Leaving waits until every job has let go. `backlog_bytes` bounds what may wait for one target."""

    def __init__(
        self,
        engine: Engine,
        cache: PrefixCache,
        channels: TargetChannels,
        instance: Instance,
        backlog_bytes: int | None = None,
        observer: PrefillObserver | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        observer = observer or UnobservedPrefill()
        self.steps = StepTally()
        self._parts = Parts(instance, engine, cache, channels, Links(backlog_bytes), observer, itertools.count(1), {}, tracer)
        self._sessions: list[Session] = []
        self._closing = False
        self._tasks = asyncio.TaskGroup()

    async def attach(self, context: PrefillContext) -> None:
        """Serve one gateway's stream to its end."""
        instance = self._parts.instance
        if self._closing:
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"{instance} is shutting down")
        session = Session(self._parts, self.load)
        self._sessions.append(session)
        log.info("gateway attached", peer=context.peer())
        try:
            await serve_attached(context, session, prefill_pb2.PrefillFrame(hello=hello_from(instance)))
        finally:
            self._sessions.remove(session)
            log.info("gateway detached", peer=context.peer())

    def load(self) -> prefill_pb2.PrefillLoad:
        load, jobs = self._parts.engine.load(), self._parts.running.values()
        joined = [job.queued_tokens for job in jobs if job.queued_tokens]
        return prefill_pb2.PrefillLoad(
            running=load.running,
            waiting=load.waiting + len(joined),
            transferring=sum(job.transferring for job in jobs),
            queued_tokens=load.queued_tokens + sum(joined),
            kv_used=max(load.kv_used, self._parts.cache.store.usage),
            links=self._parts.links.loads(asyncio.get_running_loop().time()),
        )

    @property
    def attached(self) -> int:
        """Streams of gateways."""
        return len(self._sessions)

    def close(self) -> None:
        """End every stream and take no new one; their jobs are aborted."""
        self._closing = True
        for session in self._sessions:
            session.attachment.end(StreamEnd(grpc.StatusCode.UNAVAILABLE, f"{self._parts.instance} is shutting down"))

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self._pumping = self._tasks.create_task(self._pump(), name="prefill pump")
        self._telling = self._tasks.create_task(self._tell_load(), name="prefill load")
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
        jobs = tuple(self._parts.running.values())
        for job in jobs:
            job.abort()
        if sending := [task for job in jobs for task in job.sending]:
            await asyncio.wait(sending)  # each is bounded: a sender waits for its receiver's word for a while only
        self._pumping.cancel()
        self._telling.cancel()
        await self._tasks.__aexit__(kind, error, trace)

    async def _pump(self) -> None:
        async for batch in self._parts.engine.steps():
            self._dispatch(batch)
        raise EngineFault("the engine's steps have ended under prefill; restart the instance")

    async def _tell_load(self) -> None:
        """Links move without the engine."""
        while True:
            await asyncio.sleep(LOAD_S)
            for session in self._sessions:
                session.changed()

    def _dispatch(self, batch: StepBatch) -> None:
        self.steps.note(batch)
        running = self._parts.running
        for event in batch.events:
            if isinstance(event, KvBlocks) and (job := running.get(event.seq)) is not None:
                job.made(event)
        for out in batch.tokens:
            if (job := running.get(out.seq)) is not None:
                job.sampled(out)
        for event in batch.events:
            match event:
                case Prefilled():
                    if (job := running.get(event.seq)) is not None:
                        job.prefilled(event)
                case Failed() | Aborted():
                    if (job := running.get(event.seq)) is not None:
                        job.engine_closed(event)
                case _:
                    pass
        for session in self._sessions:
            session.changed()
