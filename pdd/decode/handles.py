"""The handles of one attached stream: what each has reached, and what a command, the receiver or the engine makes of it.

Called by the session, which carries out the actions returned. Owns every handle's state; never awaits, calls an engine or a
receiver, or reads a clock.

    admit ─► ADMITTED ── KV whole ─► OPEN ───────────── Stopped | Finished | Error | Aborted ─► ended
                │  └── KV whole, index 0 was the last ─► KV_READY ── stop | abort ─► ended
                └── refused | lost | stop | abort ─► ended
    OPEN ── abort | bad command ─► DROPPING ── the engine has let go ─► ended

A recall empties the queue of an ADMITTED handle. An abort that keeps lets the engine stop instead, where output is retained: it
gives that out before it lets go.

A handle's closing event is its last, and is only sent once nothing is held for it any more.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field

from pdd.decode import events
from pdd.decode.actions import (
    AbortSeq,
    Action,
    AdmitKv,
    CancelKv,
    ExtendSeq,
    KeepOutput,
    OpenSeq,
    ReleaseKv,
    StopSeq,
    ThrottleSeq,
)
from pdd.decode.commands import Rules
from pdd.decode.events import EngineClosing
from pdd.engine.base import Extended, Retained, SeqId
from pdd.request_proto import RequestSpec
from pdd.rpc.handles import EndedHandles
from pdd.transfer.base import Received, Refusal
from pdd.v1 import decode_pb2


class Stage(enum.Enum):
    ADMITTED = "admitted"  # waits for its KV; extends queue
    KV_READY = "kv_ready"  # whole, but index 0 was the last token: the engine never hears of it
    OPEN = "open"  # the engine has it
    DROPPING = "dropping"  # the engine was told to drop it, and has not answered yet


@dataclass(slots=True)
class _Handle:
    number: int
    seq: SeqId
    spec: RequestSpec
    stage: Stage = Stage.ADMITTED
    next_index: int = 0  # the next output index it lacks, queued extends counted
    decodes: bool = False  # an extend with then_decode was taken
    queued: list[ExtendSeq] = field(default_factory=list)
    throttle_s: float = 0.0
    holds_kv: bool = False  # the receiver keeps the payloads
    farewell: decode_pb2.ClosingEvent | None = None  # what to answer once the engine has dropped it


@dataclass(slots=True)
class HandleTable:
    rules: Rules
    bound: int = 4096  # handles at a time
    _live: dict[int, _Handle] = field(default_factory=dict)
    _by_seq: dict[SeqId, _Handle] = field(default_factory=dict)
    _ended: EndedHandles = field(default_factory=EndedHandles)

    def __len__(self) -> int:
        return len(self._live)

    # ── commands ──

    def admit(self, number: int, spec: RequestSpec, seq: SeqId) -> list[Action]:
        """`seq` is fresh within the engine."""
        if self.knows(number):
            return self.refuse(number, f"handle {number} was used on this stream before: give each request a new one")
        if len(self._live) >= self.bound:
            text = f"{self.bound} requests are admitted on this stream already: wait for some to end"
            return [self._ends(number, events.error(number, events.OVERLOADED, text))]
        self._live[number] = _Handle(number, seq, spec)
        return [AdmitKv(number, spec)]

    def extend(self, number: int, first_index: int, ids: Sequence[int], then_decode: bool, score: bool = False) -> list[Action]:
        handle = self._live.get(number)
        if handle is None:
            return self._not_live(number)
        if handle.stage is Stage.DROPPING:
            return []
        wrong = self._wrong_extend(handle, first_index, ids)
        if wrong is not None:
            return self.refuse(number, wrong)
        action = ExtendSeq(handle.seq, first_index, tuple(ids), then_decode, score)
        handle.next_index += len(ids)
        handle.decodes = then_decode
        if handle.stage is Stage.OPEN:
            return [action]
        handle.queued.append(action)
        return []

    def recall(self, number: int) -> list[Action]:
        """Take back what is queued. Nothing where the KV is whole: the engine has it all, and will say so."""
        handle = self._live.get(number)
        if handle is None:
            return self._not_live(number)
        if not self.rules.takes_handoff:
            return self.refuse(number, f"a {self.rules.role} takes no handoff: there's nothing to recall")
        if handle.stage is not Stage.ADMITTED:
            return []
        handle.queued, handle.next_index, handle.decodes = [], 0, False
        return [events.recalled(number)]

    def throttle(self, number: int, min_interval_s: float) -> list[Action]:
        handle = self._live.get(number)
        if handle is None:
            return self._not_live(number)
        handle.throttle_s = min_interval_s
        return [ThrottleSeq(handle.seq, min_interval_s)] if handle.stage is Stage.OPEN else []

    def stop(self, number: int) -> list[Action]:
        handle = self._live.get(number)
        if handle is None:
            return self._not_live(number)
        match handle.stage:
            case Stage.OPEN:
                return [StopSeq(handle.seq)]  # answered in-band, after its last token
            case Stage.DROPPING:
                return []
            case Stage.ADMITTED:
                return self._drop(handle, events.stopped(number, 0))
            case Stage.KV_READY:
                return self._drop(handle, events.stopped(number, 1))

    def abort(self, number: int, *, keep: bool = False) -> list[Action]:
        """`keep`: what was computed of the answer is worth retaining."""
        handle = self._live.get(number)
        if handle is not None:
            return self._drop(handle, events.aborted(number), retain=keep and self.rules.retains_output)
        return [events.aborted(number)] if number in self._ended else self._not_live(number)

    def abort_all(self) -> list[Action]:
        return [action for handle in tuple(self._live.values()) for action in self._drop(handle, events.aborted(handle.number))]

    def refuse(self, number: int, text: str) -> list[Action]:
        """Answer a command that can't be meant: the handle it names ends with BAD_COMMAND, whatever it had reached."""
        farewell = events.error(number, events.BAD_COMMAND, text)
        handle = self._live.get(number)
        return [self._ends(number, farewell)] if handle is None else self._drop(handle, farewell)

    # ── the receiver ──

    def wanted(self, number: int, missing_blocks: int, missing_bytes: int) -> list[Action]:
        return [events.wanted(number, missing_blocks, missing_bytes)] if number in self._live else []

    def ready(self, number: int, received: Received) -> list[Action]:
        """The KV is proven whole: open, unless index 0 was the last token."""
        handle = self._live[number]
        told: list[Action] = [events.kv_ready(number, len(received.payloads))]
        if received.final:
            handle.stage = Stage.KV_READY
            handle.queued.clear()
            return [*told, ReleaseKv(received.request)]
        handle.stage, handle.holds_kv = Stage.OPEN, True
        self._by_seq[handle.seq] = handle
        opened: list[Action] = [OpenSeq(handle.seq, handle.spec, received.payloads)]
        if handle.throttle_s:
            opened.append(ThrottleSeq(handle.seq, handle.throttle_s))
        if self.rules.decodes_on_commit:
            handle.next_index, handle.decodes = 1, True
            opened.append(ExtendSeq(handle.seq, 0, (received.first_token,), then_decode=True))
        queued, handle.queued = handle.queued, []
        return [*told, *opened, *queued]

    def not_admitted(self, number: int, text: str) -> list[Action]:
        """The receiver can't expect the request: it does so for another handle."""
        return [self._ends(number, events.error(number, events.BAD_COMMAND, text))]

    def kv_failed(self, number: int, reason: Refusal | None, message: str) -> list[Action]:
        """Refused, lost, or (once whole) not imported within its lease. Extends that were queued for this KV go with it."""
        farewell = events.kv_failed(number, reason, message)
        handle = self._live.get(number)
        if handle is None:
            return []
        handle.holds_kv = False
        if handle.stage is Stage.ADMITTED:
            return [self._ends(number, farewell)]
        return self._drop(handle, farewell)

    # ── the engine ──

    def decoding(self, seq: SeqId) -> int | None:
        """The handle that a token of `seq` is for; None where nobody wants it any more."""
        handle = self._by_seq.get(seq)
        return handle.number if handle is not None and handle.stage is Stage.OPEN else None

    def extended(self, event: Extended) -> list[Action]:
        handle = self._by_seq.get(event.seq)
        if handle is None:
            return []
        told: list[Action] = [] if handle.stage is Stage.DROPPING else [events.extended(handle.number, event)]
        return [*told, *self._released(handle)]  # the first one says that the KV is imported

    def retained(self, event: Retained) -> list[Action]:
        """Output for the prefix cache, whether or not its gateway still listens."""
        handle = self._by_seq.get(event.seq)
        if handle is None:
            return []
        return [KeepOutput(handle.spec.request, handle.spec.salt, event.ids, event.first_block, event.payloads)]

    def closed(self, event: EngineClosing) -> list[Action]:
        """The engine holds nothing for the sequence any more."""
        handle = self._by_seq.get(event.seq)
        if handle is None:
            return []
        farewell = handle.farewell or events.engine_closed(handle.number, event)
        return [*self._released(handle), self._ends(handle.number, farewell)]

    # ── shared ──

    def knows(self, number: int) -> bool:
        return number in self._live or number in self._ended

    def _wrong_extend(self, handle: _Handle, first_index: int, ids: Sequence[int]) -> str | None:
        """Why an extend can't be taken. Bounds the queue too: no more ids than the request may have tokens."""
        if not self.rules.takes_handoff:
            return f"a {self.rules.role} takes no handoff: send Extend to a main"
        if handle.stage is Stage.KV_READY:
            return "index 0 was the last token: there's nothing to extend"
        if handle.decodes:
            return f"handle {handle.number} decodes already: it can't be extended any more"
        if not ids:
            return "ids: at least 1 token"
        if first_index != handle.next_index:
            return f"first_index: {first_index}, but the next index this decoder lacks is {handle.next_index}"
        limit = handle.spec.sampling.max_tokens
        if first_index + len(ids) > limit:
            return f"ids: tokens up to index {first_index + len(ids) - 1}, but max_tokens is {limit}"
        return None

    def _not_live(self, number: int) -> list[Action]:
        """Nothing for a handle that ended: its closing event and this command have crossed."""
        if number in self._ended:
            return []
        text = f"handle {number} is not known on this stream: send Admit first"
        return [events.error(number, events.UNKNOWN_HANDLE, text)]

    def _drop(self, handle: _Handle, farewell: decode_pb2.ClosingEvent, *, retain: bool = False) -> list[Action]:
        """Let go of everything; the farewell follows when it's true."""
        match handle.stage:
            case Stage.DROPPING:
                return []
            case Stage.OPEN:
                handle.stage, handle.farewell = Stage.DROPPING, farewell
                return [StopSeq(handle.seq) if retain else AbortSeq(handle.seq)]
            case Stage.ADMITTED:
                return [CancelKv(handle.spec.request), self._ends(handle.number, farewell)]
            case Stage.KV_READY:
                return [self._ends(handle.number, farewell)]

    def _released(self, handle: _Handle) -> list[Action]:
        if not handle.holds_kv:
            return []
        handle.holds_kv = False
        return [ReleaseKv(handle.spec.request)]

    def _ends(self, number: int, farewell: decode_pb2.ClosingEvent) -> decode_pb2.ClosingEvent:
        handle = self._live.pop(number, None)
        if handle is not None:
            self._by_seq.pop(handle.seq, None)
        self._ended.add(number)
        return farewell
