"""Prefill, relay and main as they behave towards the handoff machine when they keep to the protocol: models for stateful tests.

Each peer has a queue of commands that it has not read and one of events that have not arrived, so that anything may cross. They
agree on the answer: the token at index i is `token(i)`, there are `length` of them, and an end of sequence is none of them.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from gateway.handoff.actions import Abort, Action, Extend, RecallMain, StopRelay
from gateway.handoff.events import (
    Closed,
    Extended,
    Finished,
    FirstToken,
    HandoffEvent,
    KvReady,
    NewTokens,
    Recalled,
    Stopped,
    TransferDone,
    TransferFailed,
)
from pdd.catalog.base import Role
from pdd.engine.base import FinishReason


def token(index: int) -> int:
    return 1000 + index


@dataclass(frozen=True)
class Answer:
    length: int  # at least 1 where it ends by LENGTH
    reason: FinishReason

    @property
    def end_at_prefill(self) -> FinishReason | None:
        last = 0 if self.reason is FinishReason.STOP else 1
        return self.reason if self.length == last else None


@dataclass
class Peer:
    role: Role
    answer: Answer
    commands: deque[Action] = field(default_factory=deque)
    events: deque[HandoffEvent] = field(default_factory=deque)
    closed: bool = False  # nothing more will be said, except in answer to an abort

    def close(self, event: HandoffEvent) -> None:
        self.events.append(event)
        self.closed = True

    def lose(self, event: HandoffEvent) -> None:
        """The stream breaks: what had not arrived never will."""
        self.commands.clear()
        self.events.clear()
        self.close(event)

    def obey(self) -> None:
        """Read one command."""
        command = self.commands.popleft()
        if isinstance(command, Abort):
            self.close(Closed(self.role))
        elif not self.closed:
            self.on_command(command)

    def on_command(self, command: Action) -> None:
        raise NotImplementedError

    def progress(self, count: int, extend_s: float) -> None:
        """Do the next thing that there is to do, if any: make `count` tokens at most, extend at `extend_s` a token."""
        raise NotImplementedError


@dataclass
class Prefill(Peer):
    """Its jobs as whoever keeps to the words in `gateway.handoff.actions` hands them on: one voice for all of them."""

    jobs: list[list[Decoder]] = field(default_factory=list)  # the targets of each
    sampled: bool = False
    down: bool = False  # can't take a job any more

    @property
    def decoders(self) -> list[Decoder]:
        return [decoder for job in self.jobs for decoder in job]

    def start(self, decoder: Decoder) -> None:
        """Take one more job. That the others have closed is not the last word then, unless it was heard."""
        self.jobs.insert(0, [decoder])
        self.closed = False
        self.events = deque(event for event in self.events if not isinstance(event, Closed))

    def lose(self, event: HandoffEvent) -> None:
        super().lose(event)
        self.down = True
        if len(self.jobs) > 1:
            self.events.append(event)  # once for each handle

    def fail(self, failed: HandoffEvent, job: int) -> None:
        """One job breaks; before index 0 that is all there is."""
        if self.sampled and len(self.jobs) > 1:
            for decoder in self.jobs[job % len(self.jobs)]:
                if not decoder.whole and not decoder.closed:
                    decoder.starves = True
                    self.events.append(TransferFailed(decoder.role, "broke"))
        else:
            self.down = True
            self.close(failed)
            self.events.append(Closed(self.role))

    def progress(self, count: int, extend_s: float) -> None:
        if self.closed:
            return
        if not self.sampled:
            self.sampled = True
            self.events.append(FirstToken(token(0), self.answer.end_at_prefill))
        elif waiting := [
            decoder for decoder in self.decoders if not decoder.whole and not decoder.closed and not decoder.starves
        ]:
            decoder = waiting[count % len(waiting)]
            decoder.commit(final=self.answer.end_at_prefill is not None)
            self.events.append(TransferDone(decoder.role, 3, 300, 0.1))
        else:
            self.close(Closed(self.role))


@dataclass
class Decoder(Peer):
    whole: bool = False
    starves: bool = False  # nobody sends it KV any more
    final: bool = False
    next_index: int = 0
    decoding: bool = False
    stopping: bool = False
    extends: deque[Extend] = field(default_factory=deque)

    def commit(self, *, final: bool) -> None:
        self.whole, self.final = True, final
        self.events.append(KvReady(self.role))
        if self.role is Role.RELAY and not final:
            self.next_index, self.decoding = 1, True

    def on_command(self, command: Action) -> None:
        if isinstance(command, Extend):
            self._take_extend(command)
        elif isinstance(command, StopRelay):
            self.stopping = True
        elif isinstance(command, RecallMain) and not self.whole:
            self.extends.clear()
            self.events.append(Recalled(self.role))

    def _take_extend(self, command: Extend) -> None:
        assert self.role is Role.MAIN
        assert not any(queued.then_decode for queued in self.extends), "extended after then_decode"
        assert not self.decoding, "extended while it decodes"
        queued = sum(len(extend.ids) for extend in self.extends)
        assert command.first_index == self.next_index + queued, "ids must follow those it has"
        assert command.ids, "an extend has at least one id"
        assert command.ids == tuple(token(command.first_index + offset) for offset in range(len(command.ids)))
        end = command.first_index + len(command.ids)
        assert end <= self.answer.length - (self.answer.reason is FinishReason.LENGTH), "the last token was made already"
        self.extends.append(command)

    def progress(self, count: int, extend_s: float) -> None:
        if self.closed:
            return
        if self.stopping:
            self.close(Stopped(self.role, self.next_index))
        elif self.whole and self.extends:
            extend = self.extends.popleft()
            self.next_index += len(extend.ids)
            self.decoding = extend.then_decode
            self.events.append(Extended(self.role, self.next_index, len(extend.ids), len(extend.ids) * extend_s))
        elif self.decoding:
            self._decode(count)

    def _decode(self, count: int) -> None:
        end = min(self.answer.length, self.next_index + count)
        made = tuple(token(index) for index in range(self.next_index, end))
        if made:
            self.events.append(NewTokens(self.role, self.next_index, made))
            self.next_index = end
        # An end of sequence takes a step of its own, in which there may come a stop.
        if end == self.answer.length and (self.answer.reason is FinishReason.LENGTH or not made):
            self.close(Finished(self.role, self.answer.reason, end))
