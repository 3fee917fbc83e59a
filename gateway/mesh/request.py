"""One running request: feeds the handoff machine with what its instances say, and does what the machine answers.

Made by `mesh`. A shell without tasks: links call `deliver` from their readers, the machine and its actions are plain calls, and
only the API's side waits, for tokens that it has not read. So a slow client never holds up a stream or a handoff; what it leaves
unread is bounded. Owns the handles of the request and the time limit on silence. `leave` is the one cancel path.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Self

from gateway.generation import End, GenerationSpec, MeshError, MeshErrorCode, Moments, Timeline, Tokens
from gateway.handoff import agreement
from gateway.handoff.actions import (
    Abort,
    Action,
    Emit,
    Extend,
    Fail,
    Finish,
    OpenRelay,
    RecallMain,
    StartTransfer,
    StopRelay,
    ThrottleRelay,
)
from gateway.handoff.events import (
    ClientGone,
    Closed,
    DeadlinePassed,
    Extended,
    Failed,
    FirstToken,
    HandoffEvent,
    KvReady,
    MainLoad,
    ModeChanged,
    NewTokens,
    PrefillProgress,
    StopRequested,
    Unavailable,
)
from gateway.handoff.machine import HandoffMachine
from gateway.handoff.pace import Measured
from gateway.handoff.phase import Phase
from gateway.mesh.course import Course
from gateway.mesh.crew import Crew, Links
from gateway.mesh.observer import MeshObserver
from gateway.mesh.player import Player
from gateway.mesh.settings import MeshSettings
from gateway.mesh.unread import Unread
from gateway.playout import Playout
from gateway.timeline import TimelineRecorder
from pdd.catalog.base import Role
from pdd.engine.base import FinishReason
from pdd.identity import RequestId
from pdd.telemetry import get_logger

log = get_logger(__name__)


class RunningRequest:
    """A `Generation`: iterate it to its End."""

    def __init__(
        self,
        request: RequestId,
        spec: GenerationSpec,
        course: Course,
        links: Links,
        machine: HandoffMachine,
        playout: Playout | None,
        settings: MeshSettings,
        observer: MeshObserver,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._request = request
        self._spec = spec
        self._course = course
        self._crew = Crew(course.plan, links, request, spec, self.deliver)
        self._machine = machine
        self._settings = settings
        self._observer = observer
        block_tokens = course.plan.prefill.layout.block_tokens
        self._recorder = TimelineRecorder(
            course.plan.pipeline.value,
            self._crew.ids,
            self._loop.time(),
            len(spec.prompt) // block_tokens,
            block_tokens,
            course.plan.main_hit_tokens,
        )
        self._unread = Unread(settings.unread_tokens)
        self._player = Player(playout, self._hand_on)
        self._cached_tokens = 0
        self._reason: FinishReason | None = None
        self._error: BaseException | None = None
        self._stopped = False
        self._ended = False
        self._heard_s = self._loop.time()
        self._silence: asyncio.TimerHandle | None = None

    # For the mesh

    def start(self) -> None:
        self._crew.start()
        self._course.begin(lambda event: self._feed((event,)), lambda: self._machine.log.next_index)
        self._silence = self._loop.call_later(self._settings.stall_deadline_s, self._check_silence)
        log.debug("request started", request=str(self._request), label=self._spec.label, **self._crew.names())

    def leave(self) -> None:
        """Nobody reads any more: abort what is not closed."""
        self._feed((ClientGone(),))
        self._player.close()
        if self._silence is not None:
            self._silence.cancel()
        self._course.end(self._machine.log.next_index if self._reason is not None else None)

    @property
    def measured(self) -> Measured:
        """What the request has taught of its relay's and main's pace."""
        return self._machine.measured

    # For the links

    def deliver(self, events: Sequence[HandoffEvent]) -> None:
        """Take what one frame says of the request."""
        if self._machine.phase is Phase.PREFILLING or not isinstance(events[0], PrefillProgress):
            self._heard_s = self._loop.time()
        self._feed(events)

    # For the API

    @property
    def plan(self) -> str:
        return self._course.plan.header()

    @property
    def moments(self) -> Moments:
        return self._recorder.moments(str(self._request), self._timeline())

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Tokens | End:
        while not self._ended:
            item = self.take()
            if item is not None:
                return item
            await self._unread.changed()
        raise StopAsyncIteration

    def take(self) -> Tokens | End | None:
        if self._ended:
            return None
        if self._stopped:
            return self._end(FinishReason.STOP)
        tokens = self._unread.take()
        if tokens is not None:
            return tokens
        if self._error is not None:
            self._ended = True
            raise self._error
        return None if self._reason is None else self._end(self._reason)

    def listen(self, listener: Callable[[], None] | None) -> None:
        self._unread.listen(listener)

    def stop(self) -> None:
        self._stopped = True
        self._player.close()
        self._feed((StopRequested(),))

    # Inside

    def _feed(self, events: Sequence[HandoffEvent]) -> None:
        now_s = self._loop.time()
        self._unread.hold()  # whoever reads may stop the request, which is not to happen between two actions
        try:
            for event in events:
                if not isinstance(event, NewTokens):  # of which there are many, and there is nothing to note
                    self._note(event, now_s)
                self._act_on(event, now_s)
        except Exception as error:
            # A fault of ours must not take down the stream that it came over, which others share; the client gets it.
            log.exception("request broke", request=str(self._request), label=self._spec.label)
            self._break(error)
        finally:
            self._unread.let_go()

    def _act_on(self, event: HandoffEvent, now_s: float) -> None:
        after: HandoffEvent | None = None
        for action in self._machine.handle(event, now_s):
            self._recorder.note_action(action, now_s)
            if isinstance(action, OpenRelay | StartTransfer):
                after = self._join(Role.RELAY if isinstance(action, OpenRelay) else Role.MAIN, action.reason)
            else:
                self._perform(action, now_s)
        if after is not None:
            self._act_on(after, now_s)

    def _note(self, event: HandoffEvent, now_s: float) -> None:
        match event:
            case FirstToken(cached_tokens=cached_tokens):
                self._cached_tokens = cached_tokens
            case KvReady(role=Role.MAIN) if not self._machine.over:
                load = self._crew.ask_slot()
                if load is not None:
                    self._act_on(MainLoad(load), now_s)
            case Extended(scored_tokens=scored, agreed_tokens=agreed):
                self._crew.leave_slot()
                if scored:
                    self._note_agreement(scored, agreed)
            case Failed(role=Role.MAIN) | Closed(role=Role.MAIN):
                self._crew.leave_slot()
        if not self._machine.over:
            wrong = self._course.note(event, now_s)
            if wrong is not None:
                self._act_on(wrong, now_s)
            self._recorder.note_event(event, now_s)

    def _note_agreement(self, scored: int, agreed: int) -> None:
        self._observer.tokens_scored(scored, agreed)
        if agreed < scored and agreement.expected(self._crew.registrations.values()):
            text = "main would have chosen other tokens than a relay of the same engine"
            log.warning(text, request=str(self._request), scored=scored, agreed=agreed, **self._crew.names())

    def _perform(self, action: Action, now_s: float) -> None:
        match action:
            case Emit(first_index, tokens, source, logprobs):
                self._player.play(Tokens(first_index, tokens, self._crew.ids[source], logprobs), source, now_s)
            case Extend():
                self._crew.extend(action)
            case RecallMain():
                self._crew.recall()
            case ThrottleRelay(min_interval_s):
                self._crew.throttle(min_interval_s)
            case StopRelay():
                self._crew.stop_relay()
                self._player.switch()
            case Abort(role, reason, keep):
                self._crew.abort(role, reason, keep=keep)
            case Finish(reason):
                self._player.flush(now_s)
                self._reason = reason
                self._unread.wake()
                if self._machine.handoff is not None:
                    self._observer.handoff_done(self._timeline())
            case Fail():
                self._player.flush(now_s)
                self._fail(self._mesh_error(action))

    def _join(self, role: Role, why: str) -> HandoffEvent | None:
        """Find a decoder that was not planned, and take it in; returns what the machine is to hear of it."""
        found = self._course.recruit(role)
        if found is None:
            return Unavailable(role, f"no {role.value} can take the request")
        log.info("decoder joins", request=str(self._request), role=role.value, instance=found.instance.id, why=why)
        self._observer.joined(role)
        self._crew.join(found)
        return ModeChanged(self._crew.leaning(found)) if role is Role.RELAY else None

    def _hand_on(self, played: Sequence[Tokens]) -> None:
        for tokens in played:
            if self._error is not None or self._stopped:
                return  # nothing may follow a hole, or a stop string
            if not self._unread.add(tokens):
                text = f"the client has left {self._settings.unread_tokens} tokens unread: read faster, or ask for fewer"
                self._fail(MeshError(MeshErrorCode.OVERLOADED, text))
                self._loop.call_soon(self.leave)  # not now: the machine's own actions are being carried out

    def _check_silence(self) -> None:
        waited_s = self._loop.time() - self._heard_s
        if waited_s >= self._settings.stall_deadline_s:
            self._feed((DeadlinePassed(waited_s),))
        else:
            self._silence = self._loop.call_later(self._settings.stall_deadline_s - waited_s, self._check_silence)

    def _fail(self, error: BaseException) -> None:
        self._error = self._error or error
        self._unread.wake()

    def _break(self, error: Exception) -> None:
        self._crew.abort_all("the gateway failed")
        self._player.close()
        self._fail(error)

    def _mesh_error(self, fail: Fail) -> MeshError:
        who = "" if fail.role is None else f"{fail.role.value} {self._crew.ids[fail.role]}: "
        error = MeshError(fail.code, who + fail.message)
        log.warning("request failed", request=str(self._request), label=self._spec.label, code=fail.code.value, why=str(error))
        return error

    def _end(self, reason: FinishReason) -> End:
        self._ended = True
        # Tokens that came after a stop string was complete are in the log, but are none of the answer's.
        shown = self._unread.taken_tokens if self._stopped else None
        usage = self._machine.log.usage(len(self._spec.prompt), self._cached_tokens, shown)
        return End(reason, usage, self._timeline())

    def _timeline(self) -> Timeline:
        return self._recorder.timeline(self._machine.handoff, self._player.gap_s)
