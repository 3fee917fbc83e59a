"""One attached gateway at prefill: which of its handles run, and what it is owed.

Made by the worker for each stream. Its calls return at once. When the stream ends its jobs are aborted; they let go of what they
hold in their own time, and nobody is told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

import grpc

from pdd.kv.store import NoMemory
from pdd.request_proto import RequestSpec, spec_from_proto
from pdd.rpc.attach import Attachment, StreamEnd
from pdd.rpc.handles import EndedHandles
from pdd.tracing.context import TraceContext
from pdd.v1 import prefill_pb2
from services.prefill import events
from services.prefill.commands import Target, targets_of_start
from services.prefill.frames import Outbox
from services.prefill.running import Parts, RunningJob
from services.prefill.traces import JobTrace

MAX_HANDLES = 4096  # at a time


class Session:
    def __init__(self, parts: Parts, load: Callable[[], prefill_pb2.PrefillLoad]) -> None:
        self.attachment = Attachment()
        self._parts = parts
        self._load = load
        self._outbox = Outbox()
        self._jobs: dict[int, RunningJob] = {}
        self._ended = EndedHandles()
        self._closed = False

    # ── the stream ──

    def accept(self, command: prefill_pb2.PrefillCommand) -> None:
        match command.WhichOneof("command"):
            case "start":
                self._start(command.start)
            case "abort":
                self._abort(command.abort.handle)
            case "detach":
                raise StreamEnd(grpc.StatusCode.OK)
            case other:
                raise StreamEnd(grpc.StatusCode.INVALID_ARGUMENT, f"a command of {other or 'an unknown kind'} has no place here")

    def take(self) -> prefill_pb2.PrefillFrame | None:
        return self._outbox.take(self._load())

    def close(self) -> None:
        self._closed = True
        self._outbox.clear()
        for job in tuple(self._jobs.values()):
            job.abort()

    def changed(self) -> None:
        """The load may be another; there may be something to send."""
        if self._outbox.overflowing and not self.attachment.ended:
            text = f"{self._outbox.waiting} events wait unread: read frames as they come, then attach again"
            self.attachment.end(StreamEnd(grpc.StatusCode.RESOURCE_EXHAUSTED, text))
        self.attachment.wake()

    # ── commands ──

    def _start(self, message: prefill_pb2.StartPrefill) -> None:
        handle = message.handle
        if handle in self._jobs:
            self._jobs[handle].fail(events.BAD_COMMAND, _used_before(handle))
            return
        if handle in self._ended:
            self._refuse(handle, events.BAD_COMMAND, _used_before(handle))
            return
        if len(self._jobs) >= MAX_HANDLES:
            text = f"{MAX_HANDLES} requests run on this stream already: wait for some to end"
            self._refuse(handle, events.OVERLOADED, text)
            return
        try:
            spec = spec_from_proto(message, self._parts.engine.capabilities.context_tokens)
            targets = targets_of_start(message)
            emit = self._traced(spec, targets)
            job = RunningJob(self._parts, handle, spec, targets, emit, partial(self._job_ended, handle))
        except ValueError as error:
            self._refuse(handle, events.BAD_COMMAND, str(error))
        except NoMemory as error:
            self._refuse(handle, events.OVERLOADED, str(error))
        else:
            self._jobs[handle] = job
            self.changed()

    def _abort(self, handle: int) -> None:
        if handle in self._jobs:
            self._jobs[handle].abort()
        elif handle in self._ended:
            self._emit(events.released(handle))
        else:
            self._refuse(handle, events.UNKNOWN_HANDLE, f"handle {handle} is not known on this stream: send StartPrefill first")

    def _refuse(self, handle: int, code: events.ErrorCode, text: str) -> None:
        """Answer for a handle that holds nothing."""
        self._ended.add(handle)
        self._emit(events.failed(handle, code, text))
        self._emit(events.released(handle))

    # ── jobs ──

    def _traced(self, spec: RequestSpec, targets: Sequence[Target]) -> Callable[[prefill_pb2.PrefillEvent], None]:
        """Where a job's events go: by way of its trace, if it has one."""
        tracer, context = self._parts.tracer, TraceContext.from_bytes(spec.trace)
        if tracer is None or context is None:
            return self._emit
        return JobTrace(tracer, context, spec, targets, self._emit, asyncio.get_running_loop().time)

    def _emit(self, event: prefill_pb2.PrefillEvent) -> None:
        if not self._closed:
            self._outbox.add(event)
            self.changed()

    def _job_ended(self, handle: int) -> None:
        del self._jobs[handle]
        self._ended.add(handle)


def _used_before(handle: int) -> str:
    return f"handle {handle} was used on this stream before: give each request a new one"
