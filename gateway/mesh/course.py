"""A plan while its request runs: what it teaches, and when it has proved wrong.

Made by `mesh` for each request, told by `request` of what happens to it. Owns the request's entries in the planner's books and
the timer of its next look. What has proved wrong goes to the handoff machine as an event; whom a request is to be joined by is
found here when the machine asks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.handoff.events import (
    Extended,
    FirstToken,
    HandoffEvent,
    KvLate,
    KvReady,
    LongerThanExpected,
    Recalled,
    RecallLate,
    TransferDone,
    Wanted,
)
from gateway.handoff.machine import Pipeline
from gateway.mesh.planner import Planned, Planner
from gateway.routing.correct import kv_is_late, longer_than_expected, main_for, relay_for
from gateway.routing.plan import Plan
from gateway.routing.snapshot import Line, Link
from pdd.catalog.base import Registration, Role

_LOOK_S = 0.25  # between two looks at an answer that is to be short


class Course:
    def __init__(self, planner: Planner, planned: Planned) -> None:
        self._planner = planner
        self._planned = planned
        self._loop = asyncio.get_running_loop()
        self._deliver: Callable[[HandoffEvent], None] = lambda _: None
        self._shown: Callable[[], int] = lambda: 0
        self._main = planned.plan.main
        self._answered = False
        self._ended = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def plan(self) -> Plan:
        return self._planned.plan

    def begin(self, deliver: Callable[[HandoffEvent], None], shown: Callable[[], int]) -> None:
        """`deliver` takes what has proved wrong; `shown` tells how many tokens the answer has."""
        self._deliver, self._shown = deliver, shown

    def note(self, event: HandoffEvent, now_s: float) -> HandoffEvent | None:
        """Take what an instance said; returns what proves wrong by it."""
        match event:
            case FirstToken():
                self._on_first_token(event, now_s)
            case Wanted(role=Role.MAIN, missing_bytes=missing_bytes):
                return self._on_wanted(missing_bytes, now_s)
            case KvReady(role=Role.MAIN) | Extended(role=Role.MAIN) | Recalled():
                self._stop_looking()
            case TransferDone(role=Role.MAIN, bytes=sent_bytes, duration_s=took_s) if self._main is not None:
                self._planner.books.links.transferred(self._line(self._main), sent_bytes, took_s, now_s)
            case _:
                pass
        return None

    def recruit(self, role: Role) -> Registration | None:
        """A relay or a main for a request that was planned without one; None where there is nobody."""
        planned, planner = self._planned, self._planner
        snapshot = planner.snapshot(planned.hashes)
        find = relay_for if role is Role.RELAY else main_for
        found = find(planned.plan, snapshot, planned.asked, planner.policy)
        if found is not None and role is Role.MAIN:
            self._main = found
            planner.books.links.promise(planned.request, self._line(found), planned.plan.missing_bytes)
        return found

    def end(self, output_tokens: int | None) -> None:
        """The request is over; `output_tokens` where its answer is whole. May be repeated."""
        if self._ended:
            return
        self._ended = True
        planned, books = self._planned, self._planner.books
        self._stop_looking()
        self._note_answered()
        books.links.settle(planned.request)
        claimed = planned.asked.session_main
        books.sessions.ended(planned.hashes, claimed if self._main is None else self._main.instance)
        if output_tokens is not None:
            books.lengths.learn(None, output_tokens)
        self._planner.relay_changed()

    def _on_first_token(self, event: FirstToken, now_s: float) -> None:
        self._note_answered()
        self._planner.books.rates.learn(self.plan.prefill.instance.id, event.computed_tokens, event.compute_s)
        if event.finish is not None:
            return
        match self.plan.pipeline:
            case Pipeline.DIRECT:
                budget_s = self._planner.policy.stall_budget_s
                self._timer = self._loop.call_later(budget_s, self._look_for_kv, now_s)
            case Pipeline.SINGULAR:
                self._timer = self._loop.call_later(_LOOK_S, self._look_at_length)
            case Pipeline.RELAY:
                pass

    def _on_wanted(self, missing_bytes: int, now_s: float) -> KvLate | None:
        self._planner.books.links.settle(self._planned.request)
        if self._main is None:
            return None
        why = kv_is_late(self.plan, self._planner.policy, missing_bytes=missing_bytes, link=self._link(self._main, now_s))
        if why is None:
            return None
        self._stop_looking()
        self._wait_for_recall()
        return KvLate(why)

    def _look_for_kv(self, since_s: float) -> None:
        self._timer = None
        policy = self._planner.policy
        waited_s = max(policy.stall_budget_s, self._loop.time() - since_s)  # a timer may fire a tick of the clock early
        why = kv_is_late(self.plan, policy, waited_s=waited_s)
        if why is not None:
            self._wait_for_recall()
            self._deliver(KvLate(why))

    def _wait_for_recall(self) -> None:
        """Main's line may be dead: the relay's tokens are not to wait for it."""
        trip_s = 0.0 if self._main is None else self._link(self._main, self._loop.time()).round_trip_s
        patience_s = self._planner.policy.stall_budget_s + 2 * trip_s
        self._timer = self._loop.call_later(patience_s, self._look_for_recall, patience_s)

    def _look_for_recall(self, patience_s: float) -> None:
        # Again and again: the relay that goes on in main's place may not have its KV yet.
        self._timer = self._loop.call_later(patience_s, self._look_for_recall, patience_s)
        self._deliver(RecallLate(f"main has not answered a recall within {patience_s:.3g} s"))

    def _look_at_length(self) -> None:
        self._timer = None
        planned = self._planned
        snapshot = self._planner.snapshot(planned.hashes)
        main = main_for(planned.plan, snapshot, planned.asked, self._planner.policy)
        if main is not None:
            why = longer_than_expected(
                planned.plan,
                self._planner.policy,
                shown_tokens=self._shown(),
                max_tokens=planned.asked.max_tokens,
                step_s=snapshot.step_s(planned.plan.relay),
                link=self._link(main, self._loop.time()),
            )
            if why is not None:
                self._deliver(LongerThanExpected(why))
                return
        self._timer = self._loop.call_later(_LOOK_S, self._look_at_length)

    def _note_answered(self) -> None:
        if not self._answered:
            self._answered = True
            self._planner.answered(self._planned)

    def _stop_looking(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _line(self, main: Registration) -> Line:
        return self.plan.prefill.site, main.site

    def _link(self, main: Registration, now_s: float) -> Link:
        return self._planner.books.links.link(self._line(main), now_s)
