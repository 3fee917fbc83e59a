"""The stream to one decoder, relay or main: decode.proto's commands as calls, its frames as handoff events.

Used by `request` for its commands and by `peer`, which runs it. See `link` for what it owns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

import grpc.aio

from gateway.generation import GenerationSpec
from gateway.handoff.actions import Extend
from gateway.handoff.events import HandoffEvent, MainLoad
from gateway.handoff.slots import SlotBook
from gateway.mesh.decode_frames import decode_events, decoder_load
from gateway.mesh.gate import FrameGate
from gateway.mesh.link import Link, LinkLost
from gateway.mesh.wiring import Wiring
from gateway.mode import DecoderLoad
from pdd.catalog.base import Registration, Role
from pdd.identity import RequestId
from pdd.sampling_proto import sampling_to_proto
from pdd.v1 import decode_pb2, decode_pb2_grpc, identity_pb2


class DecodeLink(Link[decode_pb2.DecodeCommand, decode_pb2.DecodeFrame]):
    def __init__(
        self,
        registration: Registration,
        wiring: Wiring,
        on_load: Callable[[DecoderLoad], None],
    ) -> None:
        """`on_load` hears each report of the decoder's load, before the events of its frame."""
        super().__init__(registration, wiring)
        self._slots = SlotBook()
        self._gate = FrameGate()
        self._timer: asyncio.TimerHandle | None = None  # there while the gate holds something
        self._on_load = on_load
        self.decoder_load: DecoderLoad | None = None  # as last told

    def admit(self, handle: int, request: RequestId, spec: GenerationSpec) -> None:
        """Expect the request's KV; a relay decodes from the commit, a main waits for `extend`."""
        admit = decode_pb2.Admit(
            handle=handle,
            request=request.to_proto(),
            prompt_ids=spec.prompt,
            sampling=sampling_to_proto(spec.sampling),
            salt=self._settings.tenant_salt,
            lease_ms=round(self._settings.lease_s * 1000),
            decode_on_commit=self.registration.role is Role.RELAY,
            trace=spec.trace,
        )
        self._send(decode_pb2.DecodeCommand(admit=admit))

    def extend(self, handle: int, extend: Extend) -> None:
        message = decode_pb2.Extend(
            handle=handle,
            first_index=extend.first_index,
            ids=extend.ids,
            then_decode=extend.then_decode,
            score=extend.score,
        )
        self._send(decode_pb2.DecodeCommand(extend=message))

    def recall(self, handle: int) -> None:
        """Take back the extends that a main has not begun with."""
        self._send(decode_pb2.DecodeCommand(recall=decode_pb2.Recall(handle=handle)))

    def throttle(self, handle: int, min_interval_s: float) -> None:
        message = decode_pb2.Throttle(handle=handle, min_interval_us=round(min_interval_s * 1e6))
        self._send(decode_pb2.DecodeCommand(throttle=message))

    def stop(self, handle: int) -> None:
        self._send(decode_pb2.DecodeCommand(stop=decode_pb2.Stop(handle=handle)))

    def ask_slot(self, handle: int) -> DecoderLoad | None:
        """The load as the request is to see it; None: not told. Where it is full the handle hears MainLoad once it has a slot."""
        return self._slots.ask(handle)

    def leave_slot(self, handle: int) -> None:
        """The decoder has the request in its load by now, or no slot is wanted any more."""
        self._slots.leave(handle)

    def abort(self, handle: int, reason: str, *, keep: bool = False) -> None:
        self._slots.leave(handle)
        super().abort(handle, reason, keep=keep)

    async def _read_all(self, call: grpc.aio.StreamStreamCall[decode_pb2.DecodeCommand, decode_pb2.DecodeFrame]) -> None:
        try:
            await super()._read_all(call)
        finally:
            self._let_go()

    def _arrived(self, frame: decode_pb2.DecodeFrame) -> None:
        loop = asyncio.get_running_loop()
        for passing in self._gate.arrive(frame, loop.time()):
            self._take(passing)
        if self._gate.due_s is None:
            self._stop_timer()
        elif self._timer is None:
            self._timer = loop.call_at(self._gate.due_s, self._let_go)

    def _let_go(self) -> None:
        self._stop_timer()
        try:
            for passing in self._gate.let_go(asyncio.get_running_loop().time()):
                self._take(passing)
        except LinkLost as error:
            self._give_up(str(error))  # not from within the exchange

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _take(self, frame: decode_pb2.DecodeFrame) -> None:
        super()._take(frame)
        # Only now: what the frame says of requests that were given a slot before belongs to its load.
        while (granted := self._slots.grant()) is not None:
            handle, load = granted
            if load is not None:
                self._handles.deliver(handle, (MainLoad(load),))

    def _attach(self, channel: grpc.aio.Channel) -> grpc.aio.StreamStreamCall[decode_pb2.DecodeCommand, decode_pb2.DecodeFrame]:
        return decode_pb2_grpc.DecodeStub(channel).Attach()

    def _hello(self, hello: identity_pb2.Hello) -> decode_pb2.DecodeCommand:
        return decode_pb2.DecodeCommand(hello=hello)

    def _detach(self) -> decode_pb2.DecodeCommand:
        return decode_pb2.DecodeCommand(detach=decode_pb2.Detach())

    def _abort(self, handle: int, reason: str, keep: bool) -> decode_pb2.DecodeCommand:
        return decode_pb2.DecodeCommand(abort=decode_pb2.Abort(handle=handle, reason=reason, keep=keep))

    def _events(self, frame: decode_pb2.DecodeFrame) -> Mapping[int, Sequence[HandoffEvent]]:
        return decode_events(frame, self.registration.role)

    def _load_of(self, frame: decode_pb2.DecodeFrame) -> float | None:
        if not frame.HasField("load"):
            return None
        load = self.decoder_load = decoder_load(frame.load)
        self._slots.report(load)
        self._on_load(load)
        return (load.running + load.waiting) / load.slots
