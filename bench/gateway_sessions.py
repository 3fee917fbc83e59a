"""What the free instances of `bench/gateway.py` say: sessions behind the mesh's own `serve_attached`, with canned tokens.

Used by `gateway_instances`. Plain calls and no waits, but for the pace.
"""

from __future__ import annotations

import asyncio
import mmap
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc

from pdd.catalog.base import Role
from pdd.rpc.attach import Attachment, StreamEnd
from pdd.v1 import decode_pb2, identity_pb2, prefill_pb2, sampling_pb2

SLOTS = 4096
COUNTERS = struct.Struct("=QQQ")  # requests, tokens, frames


class Meeting:
    """Two instances that come to the same point of a request, in either order; the second one sets off what was left there."""

    def __init__(self) -> None:
        self._waiting: dict[bytes, Callable[[], None] | None] = {}

    def come(self, request: identity_pb2.RequestId, then: Callable[[], None] | None = None) -> None:
        key = request.SerializeToString()
        if key not in self._waiting:
            self._waiting[key] = then
            return
        left = self._waiting.pop(key)
        for action in (left, then):
            if action is not None:
                action()


@dataclass(slots=True)
class Run:
    """An answer that is being decoded."""

    request: identity_pb2.RequestId
    next_index: int
    end: int


class Site:
    """What the instances share."""

    def __init__(self, tokens: Sequence[int], pace_s: float, eager: int, relayed: bool, counters: mmap.mmap) -> None:
        self.tokens = tokens  # what every answer says, again and again
        self.pace_s = pace_s
        self.eager = eager
        self.relayed = relayed
        self.committed = Meeting()
        self.kv_at_main = Meeting()
        self.decoders: list[DecodeSession] = []
        self._counters = counters
        self._totals = (0, 0, 0)

    def step_if_idle(self) -> None:
        """Without a pace: let every decoder make a step, if all have got rid of the last one and there is something to make."""
        decoders = self.decoders
        if not self.pace_s and all(one.idle for one in decoders) and any(one.running for one in decoders):
            for one in decoders:
                one.step()

    def count(self, *, requests: int = 0, tokens: int = 0, frames: int = 0) -> None:
        before = self._totals
        self._totals = (before[0] + requests, before[1] + tokens, before[2] + frames)
        self._counters[: COUNTERS.size] = COUNTERS.pack(*self._totals)


class PrefillSession:
    def __init__(self, site: Site) -> None:
        self.attachment = Attachment()
        self._site = site
        self._events: list[prefill_pb2.PrefillEvent] = []

    def accept(self, command: prefill_pb2.PrefillCommand) -> None:
        match command.WhichOneof("command"):
            case "start":
                self._start(command.start)
            case "abort":
                self._say(command.abort.handle, released=prefill_pb2.Released())
            case "detach":
                raise StreamEnd(grpc.StatusCode.OK)
        self.attachment.wake()

    def take(self) -> prefill_pb2.PrefillFrame | None:
        if not self._events:
            return None
        events, self._events = self._events, []
        return prefill_pb2.PrefillFrame(events=events, load=prefill_pb2.PrefillLoad())

    def close(self) -> None:
        self._events.clear()

    def _start(self, start: prefill_pb2.StartPrefill) -> None:
        for target in start.targets:
            wanted = prefill_pb2.TransferWanted(target=target.instance.id, missing_blocks=1, missing_bytes=16)
            self._say(start.handle, wanted=wanted)
        prompt = len(start.prompt_ids)
        self._say(start.handle, first_token=prefill_pb2.FirstToken(token=self._site.tokens[0], computed_tokens=prompt))
        for target in start.targets:
            self._say(start.handle, transfer_done=prefill_pb2.TransferDone(target=target.instance.id, blocks=1, bytes=16))
        self._say(start.handle, released=prefill_pb2.Released())
        self._site.count(requests=1, tokens=1)
        (self._site.committed if self._site.relayed else self._site.kv_at_main).come(start.request)

    def _say(self, handle: int, **event: Any) -> None:
        self._events.append(prefill_pb2.PrefillEvent(handle=handle, **event))


class DecodeSession:
    """A relay's or a main's."""

    def __init__(self, site: Site, role: Role) -> None:
        self.attachment = Attachment()
        self.idle = True  # nothing waits to be made or to be taken by the stream
        self.running: dict[int, Run] = {}
        self._site = site
        self._role = role
        self._step = 0
        self._due = 0  # steps whose time has come
        self._admitted: dict[int, decode_pb2.Admit] = {}
        self._opening: list[decode_pb2.OpeningEvent] = []
        self._closing: list[decode_pb2.ClosingEvent] = []

    def accept(self, command: decode_pb2.DecodeCommand) -> None:
        match command.WhichOneof("command"):
            case "admit":
                self._admit(command.admit)
            case "extend":
                self._extend(command.extend)
            case "stop":
                run = self.running.pop(command.stop.handle, None)
                if run is not None:
                    self._close(command.stop.handle, stopped=decode_pb2.Stopped(next_index=run.next_index))
            case "abort":
                self.running.pop(command.abort.handle, None)
                self._close(command.abort.handle, aborted=decode_pb2.Aborted())
            case "detach":
                raise StreamEnd(grpc.StatusCode.OK)
        self.attachment.wake()

    def take(self) -> decode_pb2.DecodeFrame | None:
        """What there is to say, and the tokens of all steps that are due. Called again when the stream has taken it."""
        if not (self._opening or self._closing or (self._due and self.running)):
            self._due, self.idle = 0, True
            self._site.step_if_idle()
            return None
        load = decode_pb2.DecodeLoad(running=len(self.running), slots=SLOTS)
        frame = decode_pb2.DecodeFrame(opening=self._opening, load=load)
        for _ in range(self._due):
            self._make_step(frame)
        self._due = 0
        frame.step = self._step
        frame.closing.extend(self._closing)
        self._opening, self._closing = [], []
        self._site.count(tokens=len(frame.token), frames=1)
        self.attachment.wake()
        return frame

    def close(self) -> None:
        self._site.decoders.remove(self)

    def step(self) -> None:
        self.idle = False
        self._due += 1
        self.attachment.wake()

    async def keep_pace(self) -> None:
        """Steps fall due at fixed times, however late the last one was."""
        now_s = asyncio.get_running_loop().time
        due_s = now_s()
        while True:
            due_s += self._site.pace_s
            await asyncio.sleep(max(0.0, due_s - now_s()))
            self.step()

    def _make_step(self, frame: decode_pb2.DecodeFrame) -> None:
        self._step += 1
        tokens, ended = self._site.tokens, []
        for handle, run in self.running.items():
            index = run.next_index
            frame.handle.append(handle)
            frame.index.append(index)
            frame.token.append(tokens[index % len(tokens)])
            run.next_index = index + 1
            if run.next_index == run.end:
                ended.append(handle)
            if index == self._site.eager and self._role is Role.RELAY:
                self._site.kv_at_main.come(run.request)
        for handle in ended:
            run = self.running.pop(handle)
            finished = decode_pb2.Finished(reason=sampling_pb2.FINISH_REASON_LENGTH, next_index=run.end)
            self._close(handle, finished=finished)

    def _admit(self, admit: decode_pb2.Admit) -> None:
        self._admitted[admit.handle] = admit
        self._open(admit.handle, wanted=decode_pb2.Wanted(missing_blocks=1, missing_bytes=16))
        meeting = self._site.committed if self._role is Role.RELAY else self._site.kv_at_main
        meeting.come(admit.request, partial(self._ready, admit.handle))

    def _ready(self, handle: int) -> None:
        self._open(handle, kv_ready=decode_pb2.KvReady(blocks=1))
        if self._role is Role.RELAY:
            self._decode(handle, 1)

    def _extend(self, extend: decode_pb2.Extend) -> None:
        next_index = extend.first_index + len(extend.ids)
        self._open(extend.handle, extended=decode_pb2.Extended(next_index=next_index, computed_tokens=len(extend.ids)))
        if extend.then_decode:
            self._decode(extend.handle, next_index)

    def _decode(self, handle: int, next_index: int) -> None:
        admit = self._admitted[handle]
        self.running[handle] = Run(admit.request, next_index, admit.sampling.max_tokens)
        self._site.step_if_idle()

    def _open(self, handle: int, **event: Any) -> None:
        self._opening.append(decode_pb2.OpeningEvent(handle=handle, **event))
        self.attachment.wake()

    def _close(self, handle: int, **event: Any) -> None:
        self._admitted.pop(handle, None)
        self._closing.append(decode_pb2.ClosingEvent(handle=handle, **event))
