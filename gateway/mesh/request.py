"""One running request: feeds the handoff machine with what its instances say, and does what the machine answers.

Made by `mesh`. A shell without tasks: links call `deliver` from their readers, the machine and its actions are plain calls, and
only the API's side waits, for tokens that it has not read. So a slow client never holds up a stream or a handoff; what it leaves
unread is bounded. Owns the handles of the request and the time limit on silence. `leave` is the one cancel path.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from gateway.generation import End, GenerationSpec, MeshError, MeshErrorCode, Timeline, Tokens
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
from gateway.mesh.decode_link import DecodeLink
from gateway.mesh.observer import MeshObserver
from gateway.mesh.player import Player
from gateway.mesh.prefill_jobs import PrefillJobs
from gateway.mesh.prefill_link import PrefillLink
from gateway.mesh.settings import MeshSettings
from gateway.mesh.unread import Unread
from gateway.mode import Leaning
from gateway.playout import Playout
from gateway.timeline import TimelineRecorder
from pdd.catalog.base import Registration, Role
from pdd.engine.base import FinishReason
from pdd.identity import Instance, RequestId
from pdd.telemetry import get_logger

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Links:
    """Where the streams to instances are found."""

    prefill: Callable[[Instance], PrefillLink]
    decoder: Callable[[Instance], DecodeLink]
    leaning: Callable[[Instance], Leaning]  # a relay's


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
        self._registrations: dict[Role, Registration] = {}  # of those who take part, or did
        self._ids: dict[Role, str] = {}
        self._links = links
        self._decoders: dict[Role, tuple[DecodeLink, int]] = {}  # with the handle
        self._prefill = PrefillJobs(lambda: links.prefill(course.plan.prefill.instance), request, spec, self.deliver)
        self._machine = machine
        self._settings = settings
        self._observer = observer
        block_tokens = course.plan.prefill.layout.block_tokens
        self._recorder = TimelineRecorder(
            course.plan.pipeline.value,
            self._ids,
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
        """Send the admissions and the prefill at once: an offer that overtakes its admission is parked."""
        plan = self._course.plan
        self._take_in(plan.prefill)
        targets = [registration for registration in (plan.relay, plan.main) if registration is not None]
        for target in targets:
            self._take_in(target)
            self._admit(target)
        self._prefill.start(targets)
        self._course.begin(lambda event: self._feed((event,)), lambda: self._machine.log.next_index)
        self._silence = self._loop.call_later(self._settings.stall_deadline_s, self._check_silence)
        log.debug("request started", request=str(self._request), label=self._spec.label, **self._ids_by_name())

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
                link, handle = self._decoders[Role.MAIN]
                load = link.ask_slot(handle)
                if load is not None:
                    self._act_on(MainLoad(load), now_s)
            case Extended(scored_tokens=scored, agreed_tokens=agreed):
                self._leave_slot()
                if scored:
                    self._note_agreement(scored, agreed)
            case Failed(role=Role.MAIN) | Closed(role=Role.MAIN):
                self._leave_slot()
        if not self._machine.over:
            wrong = self._course.note(event, now_s)
            if wrong is not None:
                self._act_on(wrong, now_s)
            self._recorder.note_event(event, now_s)

    def _note_agreement(self, scored: int, agreed: int) -> None:
        self._observer.tokens_scored(scored, agreed)
        if agreed < scored and agreement.expected(self._registrations.values()):
            text = "main would have chosen other tokens than a relay of the same engine"
            log.warning(text, request=str(self._request), scored=scored, agreed=agreed, **self._ids_by_name())

    def _perform(self, action: Action, now_s: float) -> None:
        match action:
            case Emit(first_index, tokens, source, logprobs):
                self._player.play(Tokens(first_index, tokens, self._ids[source], logprobs), source, now_s)
            case Extend():
                link, handle = self._decoders[Role.MAIN]
                link.extend(handle, action)
            case RecallMain():
                link, handle = self._decoders[Role.MAIN]
                link.recall(handle)
            case ThrottleRelay(min_interval_s):
                link, handle = self._decoders[Role.RELAY]
                link.throttle(handle, min_interval_s)
            case StopRelay():
                link, handle = self._decoders[Role.RELAY]
                link.stop(handle)
                self._player.switch()
            case Abort(role, reason, keep):
                self._abort(role, reason, keep)
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
        """Take in a decoder that was not planned, and have prefill send it the KV; returns what the machine is to hear of it."""
        found = self._course.recruit(role)
        if found is None:
            return Unavailable(role, f"no {role.value} can take the request")
        log.info("decoder joins", request=str(self._request), role=role.value, instance=found.instance.id, why=why)
        self._observer.joined(role)
        self._take_in(found)
        self._admit(found)
        self._prefill.start([found])
        return ModeChanged(self._links.leaning(found.instance)) if role is Role.RELAY else None

    def _take_in(self, registration: Registration) -> None:
        self._registrations[registration.role] = registration
        self._ids[registration.role] = registration.instance.id

    def _admit(self, decoder: Registration) -> None:
        link = self._links.decoder(decoder.instance)
        handle = link.open(self.deliver)
        link.admit(handle, self._request, self._spec)
        self._decoders[decoder.role] = link, handle

    def _abort(self, role: Role, reason: str, keep: bool) -> None:
        if role is Role.PREFILL:
            self._prefill.abort(reason)
        elif role in self._decoders:  # not where it joined, and nobody was found
            link, handle = self._decoders[role]
            link.abort(handle, reason, keep=keep)

    def _leave_slot(self) -> None:
        if Role.MAIN in self._decoders:
            link, handle = self._decoders[Role.MAIN]
            link.leave_slot(handle)

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
        for role in self._registrations:
            self._abort(role, "the gateway failed", keep=False)
        self._player.close()
        self._fail(error)

    def _mesh_error(self, fail: Fail) -> MeshError:
        who = "" if fail.role is None else f"{fail.role.value} {self._ids[fail.role]}: "
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

    def _ids_by_name(self) -> dict[str, str]:
        return {role.value: instance_id for role, instance_id in self._ids.items()}
