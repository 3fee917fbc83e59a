"""What happened to one request and when: events and actions with their times in, a `Timeline` out.

Fed by `gateway.mesh.request` with what it feeds the handoff machine and what the machine answers. A recorder: it decides nothing,
checks nothing, and reads no clock. All times are the gateway's, so a span's edge is when the news of it arrived here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.generation import Moments, Run, Span, Timeline
from gateway.handoff.actions import Action, Emit, Extend, Finish
from gateway.handoff.events import Extended, FirstToken, HandoffEvent, KvReady, TransferDone, Wanted
from gateway.mode import HandoffMode
from pdd.catalog.base import Role


@dataclass(slots=True)
class _Run:
    """Tokens shown from one decoder, and when the first and last of them came."""

    first_s: float
    last_s: float
    tokens: int


@dataclass(slots=True)
class TimelineRecorder:
    pipeline: str  # as planned
    instances: Mapping[Role, str]  # instance ids
    arrived_s: float  # the request's arrival, on the clock of all other times
    prompt_blocks: int = 0  # full ones
    block_tokens: int = 16
    main_cached_tokens: int = 0  # as the catalog says, until main has said
    _spans: list[Span] = field(default_factory=list)
    _runs: dict[Role, _Run] = field(default_factory=dict)
    _extends: deque[tuple[float, int]] = field(default_factory=deque)  # (sent at, ids) of each without an Extended
    _main_ready_s: float | None = None
    _main_missing_bytes: int = 0
    _main_sent_bytes: int | None = None
    _main_computed_tokens: int = 0
    _scored_tokens: int = 0
    _agreed_tokens: int = 0
    _shown: int = 0
    _cached_tokens: int = 0
    _first_token_s: float | None = None
    _finished: bool = False

    def note_event(self, event: HandoffEvent, now_s: float) -> None:
        match event:
            case FirstToken(compute_s=compute_s, computed_tokens=tokens):
                self._first_token_s, self._cached_tokens = now_s, event.cached_tokens
                self._add("prefill", Role.PREFILL, now_s - compute_s, now_s, tokens=tokens)
            case Wanted(role=Role.MAIN, missing_bytes=missing_bytes):
                self._main_missing_bytes = missing_bytes
                self.main_cached_tokens = (self.prompt_blocks - event.missing_blocks) * self.block_tokens
            case TransferDone(role=role, bytes=sent_bytes, duration_s=duration_s):
                self._add(f"transfer.{role.value}", role, now_s - duration_s, now_s, bytes_moved=sent_bytes)
                if role is Role.MAIN:
                    self._main_sent_bytes = sent_bytes
            case KvReady(role=Role.MAIN):
                self._main_ready_s = now_s
            case Extended(role=Role.MAIN):
                self._main_computed_tokens += event.computed_tokens
                self._scored_tokens += event.scored_tokens
                self._agreed_tokens += event.agreed_tokens
                self._note_extended(now_s)
            case _:
                pass

    def note_action(self, action: Action, now_s: float) -> None:
        match action:
            case Emit(source=source, tokens=tokens):
                self._shown += len(tokens)
                run = self._runs.get(source)
                if run is None:
                    run = self._runs[source] = _Run(now_s, now_s, 0)
                run.last_s, run.tokens = now_s, run.tokens + len(tokens)
            case Extend(ids=ids):
                self._extends.append((now_s, len(ids)))
            case Finish():
                self._finished = True
            case _:
                pass

    def timeline(self, handoff: HandoffMode | None, user_gap_s: float | None = None) -> Timeline:
        """Everything so far; spans in order of their start. `handoff` is how main took over, None where it did not.

        `user_gap_s` is what a playout left of the gap at the switch; None where nothing was held back.
        """
        spans = [*self._spans, *(self._run_span(role) for role in (Role.RELAY, Role.MAIN) if role in self._runs)]
        main = self._runs.get(Role.MAIN)
        relay = self._runs.get(Role.RELAY)
        gap_s = main.first_s - relay.last_s if main and relay else 0.0
        return Timeline(
            pipeline=self.pipeline,
            handoff="" if handoff is None else handoff.value,
            spans=tuple(sorted(spans, key=lambda span: span.start_s)),
            switch_gap_s=gap_s,
            eager_tokens=self._shown - (main.tokens if main else 0),
            main_computed_tokens=self._main_computed_tokens,
            wan_kv_bytes=self._wan_kv_bytes(),
            main_cached_tokens=self.main_cached_tokens,
            user_gap_s=user_gap_s if user_gap_s is not None and gap_s else gap_s,
            scored_tokens=self._scored_tokens,
            agreed_tokens=self._agreed_tokens,
        )

    def moments(self, request: str, timeline: Timeline) -> Moments:
        """The same by the clock, for a trace. `request` and `timeline` are put in as they are."""
        return Moments(
            request=request,
            started_s=self.arrived_s,
            timeline=timeline,
            cached_tokens=self._cached_tokens,
            output_tokens=self._shown,
            first_token_s=self._first_token_s,
            relay=self._run(Role.RELAY),
            main=self._run(Role.MAIN),
            finished=self._finished,
        )

    def _run(self, role: Role) -> Run | None:
        run = self._runs.get(role)
        return None if run is None else Run(run.first_s, run.last_s, run.tokens)

    def _wan_kv_bytes(self) -> int:
        if self._main_sent_bytes is not None:
            return self._main_sent_bytes
        # Main's KvReady and prefill's report of the same commit race; a short answer may end between the two.
        return self._main_missing_bytes if self._main_ready_s is not None else 0

    def _note_extended(self, now_s: float) -> None:
        if not self._extends:
            return
        sent_s, ids = self._extends.popleft()
        # One sent ahead waits for the KV first; that time belongs to the transfer.
        start_s = sent_s if self._main_ready_s is None else max(sent_s, self._main_ready_s)
        self._add("extend", Role.MAIN, start_s, now_s, tokens=ids)

    def _run_span(self, role: Role) -> Span:
        run = self._runs[role]
        return self._span(role.value, role, run.first_s, run.last_s, tokens=run.tokens)

    def _add(self, name: str, role: Role, start_s: float, end_s: float, *, tokens: int = 0, bytes_moved: int = 0) -> None:
        self._spans.append(self._span(name, role, start_s, end_s, tokens=tokens, bytes_moved=bytes_moved))

    def _span(self, name: str, role: Role, start_s: float, end_s: float, *, tokens: int = 0, bytes_moved: int = 0) -> Span:
        # A peer measures durations on its own clock: an edge reckoned back from one may fall before the request's arrival.
        start_s = max(0.0, start_s - self.arrived_s)
        return Span(name, self.instances[role], start_s, max(start_s, end_s - self.arrived_s), tokens, bytes_moved)
