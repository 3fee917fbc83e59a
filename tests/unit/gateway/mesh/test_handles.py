"""Which request hears what a stream says, and when a handle is forgotten."""

import asyncio
from collections.abc import Sequence

import pytest

from gateway.generation import MeshErrorCode
from gateway.handoff.events import Closed, Failed, Finished, HandoffEvent, KvReady, Lost, NewTokens, Stopped
from gateway.mesh.handles import HandleTable
from pdd.catalog.base import Role
from pdd.engine.base import FinishReason


class Table:
    """A handle table with ears."""

    def __init__(self, role: Role = Role.MAIN, closing_timeout_s: float = 60.0) -> None:
        self.dropped = 0
        self.unanswered = asyncio.Event()
        self.heard: list[HandoffEvent] = []
        self.handles = HandleTable(role, closing_timeout_s, self._drop, self.unanswered.set)

    def _drop(self, count: int) -> None:
        self.dropped += count

    def hear(self, events: Sequence[HandoffEvent]) -> None:
        self.heard.extend(events)


READY = KvReady(Role.MAIN)
FINISHED = Finished(Role.MAIN, FinishReason.STOP, 3)
ABORTED = Closed(Role.MAIN)
FAILED = Failed(Role.MAIN, MeshErrorCode.ENGINE_FAILED, "broke")


async def test_handles_are_never_reused() -> None:
    table = Table()
    first = table.handles.open(table.hear, {})
    table.handles.deliver(first, (FINISHED,))
    assert table.handles.open(table.hear, {}) != first


async def test_unknown_handles_are_counted_not_heard() -> None:
    table = Table()
    table.handles.deliver(7, (READY, NewTokens(Role.MAIN, 0, (1,))))
    assert (table.dropped, table.heard) == (2, [])


@pytest.mark.parametrize("closing", [FINISHED, Stopped(Role.MAIN, 3), FAILED, ABORTED])
async def test_a_closing_event_is_a_handles_last(closing: HandoffEvent) -> None:
    table = Table()
    handle = table.handles.open(table.hear, {})
    table.handles.deliver(handle, (READY, closing))
    table.handles.deliver(handle, (READY,))
    assert table.heard == [READY, closing]
    assert (len(table.handles), table.dropped) == (0, 1)


async def test_prefill_closes_with_its_release_alone() -> None:
    table = Table(Role.PREFILL)
    handle = table.handles.open(table.hear, {"main-0": Role.MAIN})
    table.handles.deliver(handle, (Failed(Role.PREFILL, MeshErrorCode.OVERLOADED, "full"),))
    assert table.handles.targets(handle) == {"main-0": Role.MAIN}
    table.handles.deliver(handle, (Closed(Role.PREFILL),))
    assert len(table.handles) == 0
    assert table.handles.targets(handle) == {}


@pytest.mark.parametrize(("answers", "open_after"), [([ABORTED], 0), ([FAILED], 0), ([FINISHED], 1), ([FINISHED, ABORTED], 0)])
async def test_an_aborted_handle_is_silent_and_waits_for_its_answer(answers: list[HandoffEvent], open_after: int) -> None:
    table = Table()
    handle = table.handles.open(table.hear, {})
    assert table.handles.start_closing(handle)
    for answer in answers:  # a finish may have crossed the abort
        table.handles.deliver(handle, (answer,))
    assert (table.heard, table.dropped, len(table.handles)) == ([], 0, open_after)


async def test_an_abort_that_is_not_answered_is_given_up() -> None:
    table = Table(closing_timeout_s=0.0)
    table.handles.start_closing(table.handles.open(table.hear, {}))
    async with asyncio.timeout(5):
        await table.unanswered.wait()
    assert len(table.handles) == 0


async def test_a_closed_handle_is_not_aborted() -> None:
    table = Table()
    handle = table.handles.open(table.hear, {})
    table.handles.deliver(handle, (FINISHED,))
    assert not table.handles.start_closing(handle)


async def test_a_lost_stream_voids_every_handle() -> None:
    table = Table()
    table.handles.open(table.hear, {})
    table.handles.start_closing(table.handles.open(table.hear, {}))
    table.handles.lose_all("gone")
    assert table.heard == [Lost(Role.MAIN, "gone")]
    assert len(table.handles) == 0


async def test_a_broadcast_reaches_those_who_listen() -> None:
    table = Table()
    table.handles.open(table.hear, {})
    table.handles.start_closing(table.handles.open(table.hear, {}))
    table.handles.broadcast(READY)
    assert table.heard == [READY]
